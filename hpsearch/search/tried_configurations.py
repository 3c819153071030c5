"""Configurations that a study has tried: one whose result is known is not trained again."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import SpaceError
from .budgets import was_cut_short
from .parameters import Categorical, Int, Parameter
from .space import SearchSpace
from .study import Study
from .trial import Trial, TrialRecord, TrialState, configuration

# How often a sampler is asked for a configuration that is not known.
ASKS = 10
EVERYTHING_TRIED = "every configuration of this space has been tried"
_WITH_RESULT = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.STOPPED)
_UNDER_WAY = (TrialState.RUNNING, TrialState.PAUSED, TrialState.INTERRUPTED)

Suggest = Callable[[Trial], Mapping[str, Any]]


@dataclass(frozen=True)
class Tried:
    """The configurations that a study has tried.

    Attributes:
        known: those whose result is known, or that a trial is training or will resume; with the first such trial.
        failed: those that have failed since a search of the study ended the last time.
    """

    known: Mapping[str, TrialRecord] = field(default_factory=dict)
    failed: frozenset[str] = frozenset()

    @property
    def avoided(self) -> Collection[str]:
        """The configurations that are not trained while others are left."""
        return self.known.keys() | self.failed

    @classmethod
    def of(
        cls, records: Sequence[TrialRecord], study: Study, sessions: Collection[int], ended_before: int = 0
    ) -> Tried:
        """Return the configurations that these trials have tried.

        Nothing counts that is of one session only, as a search that was killed and continued is to choose as one that
        was not.

        Args:
            records: all trials of the study, by number.
            study: the settings; a trial that they would train for longer has no known result.
            sessions: the sessions whose arguments, data and functions are those of this one.
            ended_before: the number of the first trial that began after a search of the study ended the last time.
        """
        of_this = [each for each in records if each.session in sessions and each.params]
        with_result = [
            each
            for each in of_this
            if each.state in _WITH_RESULT and not each.schedule and not was_cut_short(each, study)
        ]
        # What the model_init of a running trial will suggest is not known yet.
        suggests_more = any(each.hyperparameters.keys() - each.arguments.keys() for each in records)
        under_way = [] if suggests_more else [each for each in records if each.state in _UNDER_WAY and each.params]
        known = {each.configuration: each for each in reversed([*with_result, *under_way])}
        failed = (each for each in of_this if each.state is TrialState.FAILED and each.number >= ended_before)
        return cls(known, frozenset(each.configuration for each in failed))


def choose(
    trial: Trial, suggest: Suggest, arguments: Mapping[str, Any], tried: Tried, stream: str
) -> Mapping[str, Any]:
    """Return the arguments of a trial; where its configuration is known, those of another one that is proposed.

    The sampler is asked up to ten times. A sampler of the user has the last word; in place of the default one, a
    configuration that was not tried is taken then, if there is one. What has failed since a search ended the last time,
    the default sampler is not to propose again either.

    Args:
        trial: has its first proposal.
        suggest: asks the space for the parameters of a trial.
        arguments: what it returned for the first proposal.
        tried: what the study has tried.
        stream: seeds the choice among those that were not tried.
    """
    known = tried.known.keys()
    avoided = tried.avoided if trial.may_be_given else known
    for _ in range(ASKS - 1):
        if not is_among(avoided, trial, arguments) or not trial.propose_again():
            return arguments
        arguments = suggest(trial)
    if not is_among(avoided, trial, arguments) or not trial.may_be_given:
        return arguments
    left = untried(suggest, trial.number, stream, avoided) or untried(suggest, trial.number, stream, known)
    if left is None or not trial.propose_again(left.params):
        return arguments
    return suggest(trial)


def is_among(configurations: Collection[str], trial: Trial, arguments: Mapping[str, Any]) -> bool:
    """Return whether what a trial proposes is one of these configurations; False where nothing was suggested."""
    suggested = trial.params.values_by_name
    return bool(suggested) and configuration({**suggested, **arguments}) in configurations


def is_everything_tried(suggest: Suggest, number: int, tried: Tried, reserved: int = 0) -> bool:
    """Return whether no configuration is left for another trial.

    Args:
        suggest: asks the space for the parameters of a trial.
        number: of the trial that would be next.
        tried: what the study has tried.
        reserved: the number of trials that have begun, and whose configuration is not known yet.
    """
    avoided = tried.avoided
    return bool(avoided) and untried(suggest, number, "", avoided, reserved) is None


@dataclass(frozen=True)
class Leaf:
    """A configuration of the space.

    Attributes:
        params: what the space suggests, by name.
        configuration: the text of all parameters; see `configuration`.
        is_endless: whether a parameter has endlessly many values, of which `params` has any one.
    """

    params: Mapping[str, Any]
    configuration: str
    is_endless: bool


def untried(suggest: Suggest, number: int, stream: str, tried: Collection[str], skip: int = 0) -> Leaf | None:
    """Return a configuration that was not tried, after skipping as many as given; None if there is none."""
    for leaf in leaves(suggest, number, stream):
        if leaf.is_endless or not leaf.params:
            return leaf
        if leaf.configuration not in tried:
            if not skip:
                return leaf
            skip -= 1
    return None


def leaves(suggest: Suggest, number: int, stream: str = "") -> Iterator[Leaf]:
    """Yield the configurations of a space in turn, branches included; the stream says where to begin.

    A space with a parameter of endlessly many values yields a configuration for each combination of the others.
    """
    path: Sequence[int] | None = ()
    while path is not None:
        walk = _Walk(number, path, stream)
        try:
            arguments = suggest(walk)
        except SpaceError:  # a trial will show it
            yield Leaf({}, "", True)
            return
        params = dict(walk.params.values_by_name)
        yield Leaf(params, configuration({**params, **arguments}), walk.is_endless)
        path = walk.next_path()


class _Walk(Trial):
    """A trial whose values are those along a path of choices; it is never trained."""

    def __init__(self, number: int, path: Sequence[int], stream: str) -> None:
        super().__init__(number)
        self._path, self._stream = path, stream
        self._taken: list[tuple[int, int]] = []
        self.is_endless = False

    def report(self, value: float, resource: int) -> None:
        """Do nothing: there is no study."""

    def should_prune(self) -> bool:
        """Return False: there is no study."""
        return False

    def next_path(self) -> list[int] | None:
        """Return the path to the next configuration; None after the last."""
        for place in range(len(self._taken) - 1, -1, -1):
            index, count = self._taken[place]
            if index + 1 < count:
                return [*(each for each, _ in self._taken[:place]), index + 1]
        return None

    def _choose(self, name: str, parameter: Parameter) -> Any:
        values = values_of(parameter)
        if values is None:
            self.is_endless = True
            drawn = SearchSpace({name: parameter}).sample(random.Random(f"{self._stream}/{name}"))
            values = [drawn[name]]
        place = len(self._taken)
        index = self._path[place] if place < len(self._path) else 0
        self._taken.append((index, len(values)))
        begin = random.Random(f"{self._stream}/{name}").randrange(len(values)) if self._stream else 0
        return values[(begin + index) % len(values)]


def values_of(parameter: Parameter) -> Sequence[Any] | None:
    """Return the values of a parameter; None if there is no end of them.

    >>> from hpsearch import Float
    >>> values_of(Int(2, 8, step=3)), values_of(Float(0.0, 1.0, step=0.5)), values_of(Float(0.0, 1.0))
    (range(2, 9, 3), [0.0, 0.5, 1.0], None)
    """
    if isinstance(parameter, Categorical):
        return parameter.choices
    if isinstance(parameter, Int):
        return range(parameter.low, parameter.top + 1, parameter.step)
    if parameter.low == parameter.top:
        return [float(parameter.low)]
    if parameter.step is None:
        return None
    steps = round((parameter.top - parameter.low) / parameter.step)
    return [min(parameter.low + step * parameter.step, parameter.high) for step in range(steps + 1)]
