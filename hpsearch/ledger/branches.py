"""The choices under which a parameter exists: from the search space, or from the trials of a define-by-run function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..search.space.parameters import Params
from ..search.space.search_space import SearchSpace

# For each parameter that only some trials have, the choices under any of which it exists; outer parameters come first.
Branches = Mapping[str, Sequence[Params]]


def branches_of(space: SearchSpace) -> Branches:
    """Return the choices under which the parameters of a space exist.

    >>> from hpsearch import Categorical, Float
    >>> branches_of(SearchSpace({"optim": Categorical({"adam": {}, "sgd": {"momentum": Float(0.0, 0.9)}})}))
    {'momentum': [{'optim': 'sgd'}]}
    """
    found: dict[str, list[Params]] = {}
    for name, _, conditions in space.walk():
        found.setdefault(name, []).append(conditions)
    return {name: places for name, places in found.items() if all(places)}


def branches_shown(trials: Sequence[Params], choices: Sequence[str]) -> Branches:
    """Infer the choices under which parameters exist from trials, where a single categorical parameter decides.

    Args:
        trials: the complete parameters of each trial.
        choices: the names of parameters that are choices.

    >>> branches_shown([{"optim": "adam"}, {"optim": "sgd", "momentum": 0.9}], ["optim"])
    {'momentum': [{'optim': 'sgd'}]}
    """
    having = Counter(name for each in trials for name in each)
    some = sorted((name for name, count in having.items() if count < len(trials)), key=lambda name: -having[name])
    found: dict[str, list[Params]] = {}
    for name in some:
        for choice in choices:
            with_it = dict.fromkeys(each.get(choice, _NONE) for each in trials if name in each)
            without_it = dict.fromkeys(each[choice] for each in trials if name not in each and choice in each)
            if without_it and not any(value is _NONE or value in without_it for value in with_it):
                found[name] = [{choice: value} for value in with_it]
                break
    return found


_NONE = object()
