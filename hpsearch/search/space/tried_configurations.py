"""Configurations that a study has tried: one whose result is known is not trained again."""

from __future__ import annotations

import itertools
import operator
import random
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from ...errors import SpaceError
from ..study import Study
from ..time_and_epoch_limits import was_cut_short
from ..trial import Trial
from ..trial_record import TrialRecord, TrialState, configuration
from .parameters import Categorical, Int, Parameter, Params, Scalar
from .search_space import SearchSpace

# How often a sampler is asked for a configuration that is not known.
ASKS = 10
EVERYTHING_TRIED = "every configuration of this space has been tried"
_WITH_RESULT = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.STOPPED)
_UNDER_WAY = (TrialState.RUNNING, TrialState.PAUSED, TrialState.INTERRUPTED)

Suggest = Callable[[Trial], Params]


@dataclass(frozen=True)
class Tried:
    """The configurations that a study has tried.

    Attributes:
        known: those whose result is known, or that a trial is training or will resume; with the first such trial.
        failed: those that have failed since a search of the study ended the last time.
    """

    known: MutableMapping[str, TrialRecord] = field(default_factory=dict)
    failed: Set[str] = frozenset()

    @property
    def avoided(self) -> Collection[str]:
        """The configurations that are not trained while others are left."""
        return ChainMap[str, Any](dict.fromkeys(self.failed), self.known)


class TriedSoFar:
    """Finds what the trials of a study have tried; only those are looked at that have changed since the last time.

    Nothing counts that is of one session only, as a search that was killed and continued is to choose as one that was
    not.

    Args:
        study: the settings; a trial that they would train for longer has no known result.
        sessions: the sessions whose arguments, data and functions are those of this one.
        ended_before: the number of the first trial that began after a search of the study ended the last time.

    Attributes:
        settings: the arguments.
    """

    def __init__(self, study: Study, sessions: Collection[int], ended_before: int = 0) -> None:
        self.settings = study, sessions, ended_before
        self._forget()

    def _forget(self) -> None:
        self._latest: Sequence[TrialRecord] = ()
        self._with_result: dict[str, TrialRecord] = {}
        self._failed: set[str] = set()
        self._under_way: dict[int, TrialRecord] = {}
        self._suggesting_more: set[int] = set()

    def of(self, records: Sequence[TrialRecord]) -> Tried:
        """Return what the trials of the study, by number, have tried; until this is called again."""
        latest = self._latest
        replaced = itertools.compress(zip(latest, records, strict=False), map(operator.is_not, latest, records))
        if len(records) < len(latest) or not all(self._may_follow(*each) for each in replaced):
            self._forget()
        for each in itertools.compress(records, map(operator.is_not, records, self._latest)):
            self._note(each)
        for each in records[len(self._latest) :]:
            self._note(each)
        self._latest = tuple(records)
        # What the model_init of a running trial will suggest is not known yet.
        last_first = [] if self._suggesting_more else sorted(self._under_way.items(), reverse=True)
        under_way = {each.configuration: each for _, each in last_first if each.params}
        return Tried(ChainMap(self._with_result, under_way), self._failed)

    def _may_follow(self, before: TrialRecord, now: TrialRecord) -> bool:
        """Tell whether a record is a later one of the same trial, which had not ended."""
        return before.number == now.number and now.number in self._under_way

    def _note(self, record: TrialRecord) -> None:
        study, sessions, ended_before = self.settings
        number, state = record.number, record.state
        self._under_way.pop(number, None)
        if state in _UNDER_WAY:
            self._under_way[number] = record
        self._suggesting_more.discard(number)
        if record.hyperparameters.keys() - record.arguments.keys():
            self._suggesting_more.add(number)
        if record.session not in sessions or not record.params:
            return
        if state in _WITH_RESULT and not record.schedule and not was_cut_short(record, study):
            first = self._with_result.setdefault(record.configuration, record)
            if number < first.number:
                self._with_result[record.configuration] = record
        elif state is TrialState.FAILED and number >= ended_before:
            self._failed.add(record.configuration)


def choose(
    trial: Trial, suggest: Suggest, arguments: Mapping[str, object], tried: Tried, stream: str
) -> Mapping[str, object]:
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
    known: Collection[str] = tried.known
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


def is_among(configurations: Collection[str], trial: Trial, arguments: Mapping[str, object]) -> bool:
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

    params: Params
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

    def _choose(self, name: str, parameter: Parameter) -> object:
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


def values_of(parameter: Parameter) -> Sequence[Scalar] | None:
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
