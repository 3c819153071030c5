"""What a study file or the command line sets is not searched: it is taken out of the space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import SpaceError
from ..search.parameters import Parameter
from ..search.space import SearchSpace
from ..search.study import as_space
from ..search.trial import Trial


def without_fixed(hp_space: Any, fixed: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Return a space without the parameters that are fixed, and their names; a fixed choice leaves its branch.

    Args:
        hp_space: as in `Trainer.hyperparameter_search`. A function is asked as before, and refused if it suggests one.
        fixed: training arguments that are set.

    Raises:
        SpaceError: a parameter is in a branch, from where it cannot be taken, or none is left.
    """
    space = as_space(hp_space) if hp_space is None else hp_space
    names = list(fixed)
    if not isinstance(space, Mapping):
        return (_Refusing(space, frozenset(names)) if callable(space) and names else hp_space), []
    found = [name for name in names if name in space]
    if all(isinstance(each, Parameter) for each in space.values()):  # type: ignore[arg-type]
        inside = SearchSpace(space).all_parameters().keys() - space.keys()
        if branched := sorted(inside.intersection(names)):
            raise SpaceError(
                f"{branched[0]} is set, but the space searches it in a branch of its own: fix what leads there, or "
                "leave it to the search."
            )
    if not found:
        return hp_space, []
    left = {name: each for name, each in space.items() if name not in found}
    for name in found:
        left.update(getattr(space[name], "branches", {}).get(fixed[name], {}))
    if not left:
        raise SpaceError(f"Nothing is left to search: {', '.join(found)} is set, and the space has nothing else.")
    return left, found


@dataclass(frozen=True)
class _Refusing:
    """A space that is a function, which must not suggest what is fixed."""

    space: Callable[[Trial], Any]
    fixed: frozenset[str]

    def __call__(self, trial: Trial) -> Any:
        returned = self.space(trial)
        named = trial.params.values_by_name if returned is None else returned
        if isinstance(named, Mapping) and (both := sorted(self.fixed.intersection(named))):
            raise SpaceError(f"{both[0]} is set, but hp_space(trial) searches it too: leave one of them out.")
        return returned
