"""Known parameters that a search starts with: given ones, or the defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import SpaceError
from ...system.spelling import nearest_name
from ..study import SpaceFunction
from ..trial import Trial
from .parameters import Categorical, Float, Int, Parameter, Params, Scalar
from .search_space import SearchSpace

DEFAULTS = "defaults"


def resolve_start(start_with: object, space: SearchSpace | SpaceFunction, args: object) -> tuple[Params, ...]:
    """Return the parameters of the first trials, checked against a static space.

    Args:
        start_with: a mapping of names to values, ``"defaults"``, a list of these, or None. A mapping may leave
            parameters out: the sampler chooses them.
        space: what is searched; what a define-by-run function asks for is checked as it asks.
        args: the trainer's arguments: the defaults of parameters that have none of their own.

    Raises:
        SpaceError: one of them is neither, or does not lie in the space.
    """
    given = [] if start_with is None else start_with
    if isinstance(given, (str, Mapping)):
        given = [given]
    if not isinstance(given, (list, tuple)):
        raise SpaceError(f"start_with must be a dict of parameters, 'defaults' or a list of these, but got {given!r}.")
    return tuple(_resolve(each, space, args) for each in given)


def _resolve(given: object, space: SearchSpace | SpaceFunction, args: object) -> Mapping[str, object]:
    if given == DEFAULTS:
        return _defaults(space, args) if isinstance(space, SearchSpace) else _defaults_of_function(space, args)
    if not isinstance(given, Mapping):
        near = nearest_name(str(given), [DEFAULTS])
        raise SpaceError(f"start_with holds {given!r}; it must be a dict of parameters, or 'defaults'.{near}")
    if isinstance(space, SearchSpace):
        check_given(given, space, "start_with gives")
    return dict(given)


def notice_of_defaults_outside(start_with: object, space: SearchSpace | SpaceFunction, args: object) -> list[str]:
    """Return a notice that names defaults which a search is to start with, but which their ranges do not contain.

    >>> from types import SimpleNamespace
    >>> from hpsearch import Float
    >>> space = SearchSpace({"learning_rate": Float(1e-3, 1e-1, log=True)})
    >>> notice_of_defaults_outside("defaults", space, SimpleNamespace(learning_rate=5e-5))
    ["start_with='defaults': the sampler chooses learning_rate, as its default, 5e-05, is outside of its range"]
    """
    given = start_with if isinstance(start_with, list | tuple) else [start_with]
    if DEFAULTS not in given or not isinstance(space, SearchSpace):
        return []
    found, outside = _defaults(space, args), dict[str, object]()
    for name, parameter, conditions in space.walk():
        value = _default(name, parameter, args)
        is_open = all(found.get(each, _ABSENT) == choice for each, choice in conditions.items())
        if is_open and value is not None and not parameter.contains(value):
            outside[name] = value
    return [
        f"start_with={DEFAULTS!r}: the sampler chooses {name}, as its default, {value!r}, is outside of its range"
        for name, value in outside.items()
    ]


def check_given(
    given: Mapping[str, object], space: SearchSpace, what: str, others: Mapping[str, object] | None = None
) -> None:
    """Check given parameters of a trial against a static space; missing ones are left to the sampler.

    Args:
        given: names to values.
        space: the space.
        what: the beginning of a message, such as ``start_with gives``.
        others: other parameters of the trial, which may open branches.

    Raises:
        SpaceError: a parameter or its value is not in the space, or a branch is not open.
    """
    known = space.all_parameters()
    for name, value in given.items():
        if name not in known:
            raise SpaceError(f"{what} {name}={value!r}, which is not in the search space.{nearest_name(name, known)}")
        if not known[name].contains(value):
            raise SpaceError(f"{what} {name}={value!r}, which is not in {known[name]!r}.")
    places, together = _places(space), {**(others or {}), **given}
    for name, value in given.items():
        if not _is_open(places[name], together):
            under = " or ".join(", ".join(f"{key}={each!r}" for key, each in where.items()) for where in places[name])
            raise SpaceError(f"{what} {name}={value!r}, which exists only under {under}; give that too.")


def left_to_sampler(params: Mapping[str, object], space: SearchSpace) -> list[str]:
    """Return the names of the parameters that a trial with these given ones still needs, or may need.

    >>> from hpsearch import Categorical, Float
    >>> space = SearchSpace({"optim": Categorical({"sgd": {"momentum": Float(0.0, 1.0)}, "adamw_torch": {}})})
    >>> [left_to_sampler({"optim": optim}, space) for optim in ("sgd", "adamw_torch")], left_to_sampler({}, space)
    ([['momentum'], []], ['optim', 'momentum'])
    """
    return [
        name
        for name, places in _places(space).items()
        if name not in params
        and any(all(params.get(key, each) == each for key, each in where.items()) for where in places)
    ]


def in_open_branches(params: Mapping[str, object], space: SearchSpace) -> Params:
    """Return parameters without those of branches that others of them close; what is not in the space stays.

    >>> from hpsearch import Categorical, Float
    >>> space = SearchSpace({"optim": Categorical({"sgd": {"momentum": Float(0.0, 1.0)}, "adamw_torch": {}})})
    >>> in_open_branches({"optim": "adamw_torch", "momentum": 0.5, "width": 8}, space)
    {'optim': 'adamw_torch', 'width': 8}
    """
    places = _places(space)
    return {name: value for name, value in params.items() if name not in places or _is_open(places[name], params)}


def _places(space: SearchSpace) -> dict[str, list[dict[str, Scalar]]]:
    """Return, by name, under which values of others a parameter exists, for each of its places in a space."""
    places: dict[str, list[dict[str, Scalar]]] = {}
    for name, _, conditions in space.walk():
        places.setdefault(name, []).append(conditions)
    return places


def _is_open(places: Sequence[Mapping[str, Scalar]], params: Mapping[str, object]) -> bool:
    """Return whether one of the places of a parameter is in a branch that is open."""
    return any(all(params.get(key, _ABSENT) == each for key, each in where.items()) for where in places)


def _defaults(space: SearchSpace, args: object) -> dict[str, object]:
    """Return the default of each parameter: its own, else the trainer's argument where the parameter can take it."""
    found: dict[str, object] = {}
    for name, parameter, conditions in space.walk():
        if any(found.get(each, _ABSENT) != value for each, value in conditions.items()):
            continue
        value = _default(name, parameter, args)
        if parameter.contains(value):
            found[name] = value
    return found


class _AsksForDefaults(Trial):
    """A trial whose parameters are the trainer's arguments, where they are inside the parameter; notes which are.

    It is never trained.
    """

    def __init__(self, args: object) -> None:
        super().__init__(0)
        self._args = args
        self.found: dict[str, object] = {}

    def report(self, value: float, resource: int) -> None:
        pass

    def should_prune(self) -> bool:
        return False

    def _choose(self, name: str, parameter: Parameter) -> object:
        value = _default(name, parameter, self._args)
        if not parameter.contains(value):
            value = parameter.edges()[0]
            if not isinstance(parameter, Categorical):
                return value
        self.found[name] = value  # a choice also where it is no default: the function may have asked for more under it
        return value


def _defaults_of_function(space: SpaceFunction, args: object) -> dict[str, object]:
    """Return the trainer's arguments for what a define-by-run function asks for; it is called once for that."""
    trial = _AsksForDefaults(args)
    try:
        returned = space(trial)
    except Exception as error:
        raise SpaceError(f"hp_space(trial) raised {type(error).__name__}: {error}") from error
    for name, value in dict(returned or {}).items():
        if isinstance(value, (Float, Int, Categorical)):
            trial.suggest(name, value)
    return trial.found


def _default(name: str, parameter: Parameter, args: object) -> object:
    """Return a parameter's own default, else the trainer's argument of that name; it may lie outside."""
    value = parameter.default if parameter.default is not None else getattr(args, name, None)
    if isinstance(parameter, Categorical) and not parameter.contains(value):
        return getattr(value, "value", value)  # the text of an enumeration
    return value


_ABSENT = object()
