"""The learning curves of a study's trials as points of the unit cube: encoded once per trial, not at each decision."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_not

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as EngineState

from ..search.learning_curves.cost import Work, WorkModel, in_one_unit, work_model, work_of
from ..search.learning_curves.curves import Curve
from ..search.metrics.objective import Objective
from ..search.metrics.selection import shares_and_costs
from ..search.time_and_epoch_limits import ended_by_itself
from ..search.trial_record import TrialRecord, TrialState
from ..search.trials_by_number import place_of
from .branches import Branches, branches_shown
from .trial_cache import trials_as_read
from .unit_cube import Cube, Tried
from .warm_starts import is_taught, taught_curve

Array = NDArray[np.float64]

# The most trials that the work of a training run is learnt from, the last ones.
_MOST_WORKS = 500


@dataclass
class _Known:
    """The data of a trial.

    Attributes:
        stored: the trial in Optuna's storage.
        is_warm_start: whether it is one of another study.
        count: the number of its parameters.
        names: of its parameters.
        point: its parameters in the cube, once asked for.
        record: as it was last seen; None: never.
        curve: its learning curve; None if it has shown nothing.
        work: of its whole training run; None if unknown.
    """

    stored: FrozenTrial
    is_warm_start: bool
    count: int = 0
    names: frozenset[str] = frozenset()
    point: Array | None = None
    record: TrialRecord | None = None
    curve: Curve | None = None
    work: Work | None = None

    @property
    def has_parameters(self) -> bool:
        """Whether its parameters determine those that all trials have."""
        return self.count > 0 and not self.is_warm_start and self.stored.state is not EngineState.FAIL


@dataclass(frozen=True)
class CurvesSeen:
    """The results of the trials of a study.

    Attributes:
        cube: of the parameters.
        curves: of the trials of another study, then of the trials that have a learning curve, by number.
        running: the points of the running trials.
    """

    cube: Cube
    curves: list[Curve]
    running: list[Array]


@dataclass
class _Seen:
    """What was seen of trials that were given last.

    Attributes:
        of: what it depends on beside the trials: their cube, and the parameters that all have.
        trials: as they were given, by number.
        curves: of each of them; None where there is none.
        running: the points of the running ones, by their places.
        outdated: the numbers of those whose parameters have changed since.
    """

    of: tuple[Cube, frozenset[str]] | None = None
    trials: Sequence[TrialRecord] = ()
    curves: list[Curve | None] = field(default_factory=list)
    running: dict[int, Array] = field(default_factory=dict)
    outdated: set[int] = field(default_factory=set)


class CurveData:
    """Encodes the trials of one study.

    What it returns depends on the trials only, not on when they were read.

    Args:
        objective: to optimize.
        branches: under which choices parameters exist; None: the trials show it.
        by_seconds: whether the work of trials is measured in seconds.

    Attributes:
        space: the distributions of the parameters that always had the same one; without those of a single value.
    """

    def __init__(self, objective: Objective, branches: Branches | None = None, by_seconds: bool = False) -> None:
        self._objective, self._branches, self._by_seconds = objective, branches, by_seconds
        self._study: tuple[optuna.storages.BaseStorage, int] | None = None
        self._begin()

    def _begin(self) -> None:
        self.space: dict[str, BaseDistribution] = {}
        self._trials: dict[int, _Known] = {}
        self._looked_at, self._unfinished = 0, list[int]()
        self._distributions: dict[str, BaseDistribution] = {}
        self._changed: set[str] = set()
        self._names: Counter[frozenset[str]] = Counter()
        self._cube: Cube | None = None
        self._cube_of: tuple[Mapping[str, BaseDistribution], Branches] = {}, {}
        self._has_warm_start = False
        self._warm_start: tuple[tuple[int, frozenset[str]] | None, list[Curve]] = None, []
        self._tried: Tried | None = None
        self._untried: set[int] = set()
        self._seen = _Seen()

    def read(self, engine: optuna.Study, new: int | None = None) -> None:
        """Take note of the trials in Optuna's storage; not of the new one, whose parameters are to be chosen."""
        if self._study != (engine._storage, engine._study_id):
            self._study = engine._storage, engine._study_id
            self._begin()
        is_other_space, trials = False, trials_as_read(engine)
        if len(trials) < self._looked_at:  # Optuna keeps them by thread, and another thread has read later ones
            return
        later = [*self._unfinished, *range(self._looked_at, len(trials))]  # those that had ended change no more
        self._unfinished = [number for number in later if not trials[number].state.is_finished()]
        self._looked_at = len(trials)
        for stored in map(trials.__getitem__, later):
            known = self._trials.get(stored.number)
            if known is not None and known.stored is stored and known.count == len(stored.params):
                continue
            if known is None and stored.number == new:
                continue
            is_other_space |= self._note(known, stored)
        if is_other_space:
            self._find_space()

    def _note(self, known: _Known | None, stored: FrozenTrial) -> bool:
        """Take note of a trial that is new or has changed; return whether its parameters change the space."""
        if known is not None:
            self._names[known.names] -= known.has_parameters
            if 0 < known.count < len(stored.params):
                self._forget_points()
        before = 0 if known is None else known.count
        if known is None:
            known = self._trials[stored.number] = _Known(stored, is_taught(stored))
            self._has_warm_start |= known.is_warm_start
        known.stored, known.count, known.names = stored, len(stored.params), frozenset(stored.params)
        self._seen.outdated.add(stored.number)
        self._names[known.names] += known.has_parameters
        if known.count == before or known.is_warm_start:  # whose ranges may be others
            return False
        known.record = known.point = known.curve = None
        self._untried.add(stored.number)
        return any(
            name not in self._changed and self._distributions.get(name) != each
            for name, each in stored.distributions.items()
        )

    def _find_space(self) -> None:
        """Find the space again, in the order of the trials, however late their parameters were read."""
        self._distributions, self._changed = {}, set()
        for _, known in sorted(self._trials.items()):
            for name, each in {} if known.is_warm_start else known.stored.distributions.items():
                if self._distributions.setdefault(name, each) != each:
                    self._changed.add(name)
        unchanged = {name: each for name, each in self._distributions.items() if name not in self._changed}
        self.space = {name: each for name, each in unchanged.items() if not each.single()}

    def seen(
        self, trials: Sequence[TrialRecord], space: Mapping[str, BaseDistribution], new: int | None = None
    ) -> CurvesSeen:
        """Return the results of trials, with those of another study; only trials that have changed are read.

        Args:
            trials: of this study, as they are now, by number.
            space: of the parameters that matter, such as `space`.
            new: the number of the trial whose parameters are to be chosen.
        """
        cube = self._cube_for(space, trials)
        # A function may give some trials fewer parameters; of a space all have the same.
        shared = frozenset.intersection(*(+self._names or [frozenset()]))
        if self._seen.of != (cube, shared) or len(trials) < len(self._seen.trials):
            self._seen = _Seen((cube, shared))
        seen = self._seen
        seen.curves += [None] * (len(trials) - len(seen.trials))
        for place in self._changed_places(trials):
            self._look_at(trials[place], place, cube, shared)
        seen.trials = tuple(trials)
        curves, running = seen.curves, seen.running
        left_out = None if new is None else place_of(new, trials)
        if left_out is not None:
            curves = [*curves[:left_out], *curves[left_out + 1 :]]
            running = {place: point for place, point in running.items() if place != left_out}
        shown = [each for each in curves if each is not None]
        return CurvesSeen(
            cube, [*self._warm_start_curves(cube, shared), *shown], [point for _, point in sorted(running.items())]
        )

    def _changed_places(self, trials: Sequence[TrialRecord]) -> Iterator[int]:
        """Yield the places of the trials that were not seen as they are now."""
        before, outdated = self._seen.trials, self._seen.outdated
        places = [place_of(number, trials) for number in outdated]
        yield from (each for each in places if each is not None)
        outdated.clear()
        yield from itertools.compress(itertools.count(), map(is_not, trials, before))
        yield from range(len(before), len(trials))

    def _look_at(self, record: TrialRecord, place: int, cube: Cube, shared: frozenset[str]) -> None:
        """Take note of what a trial has shown."""
        seen, known = self._seen, self._trials.get(record.number)
        seen.curves[place] = None
        seen.running.pop(place, None)
        if known is None:
            return
        if known.record is not record:
            self._observe(known, record, cube)
        if record.reports or (known.count and shared <= known.names):
            seen.curves[place] = known.curve
        if record.state is TrialState.RUNNING:
            seen.running[place] = self._point(known, cube)

    def has_had(self, name: str, engine: optuna.Study, new: int) -> bool:
        """Return whether a trial of this study, other than the new one, has had a parameter."""
        self.read(engine, new)
        others = (each for number, each in self._trials.items() if number != new and not each.is_warm_start)
        return any(name in each.names for each in others)

    def points(self, trials: Sequence[TrialRecord], cube: Cube) -> Array:
        """Return the points of trials, (n, d)."""
        return np.array([self._point(self._trials[each.number], cube) for each in trials])

    def tried(self, cube: Cube) -> Tried:
        """Return the parameters that trials of this study have had."""
        self._tried = self._tried or Tried(cube)
        for number in self._untried:
            self._tried.add(self._trials[number].stored.params)
        self._untried.clear()
        return self._tried

    def work(self, cube: Cube) -> WorkModel | None:
        """Return a model of the cost of trials, fitted to the last ones."""
        backwards = map(self._trials.__getitem__, sorted(self._trials, reverse=True))
        latest = ((each, each.work) for each in backwards if each.work)
        known = [*itertools.islice(latest, _MOST_WORKS)][::-1]
        works = in_one_unit([work for _, work in known], self._by_seconds)
        if len(set(works)) < 2:
            return None
        points = [self._point(each, cube) for (each, _), work in zip(known, works, strict=True) if work > 0]
        return work_model(np.array(points), np.array([work for work in works if work > 0]))

    def _cube_for(self, space: Mapping[str, BaseDistribution], trials: Sequence[TrialRecord]) -> Cube:
        """Return the cube of a space; trials that have reported have all of their parameters."""
        branches = self._branches
        if branches is None:
            choices = [name for name, each in space.items() if isinstance(each, CategoricalDistribution)]
            has_branches = len(+self._names) > 1
            reported = (each.number for each in trials if each.reports and each.number in self._trials)
            shown = [self._trials[number].stored.params for number in reported] if has_branches else []
            branches = branches_shown(shown, choices)
        if self._cube is None or self._cube_of != (space, branches):
            self._cube, self._cube_of = Cube(space, branches), (dict(space), branches)
            self._forget_points()
        return self._cube

    def _forget_points(self) -> None:
        for known in self._trials.values():
            known.point = known.record = known.curve = None
        self._warm_start = None, []
        self._seen = _Seen()
        self._tried = None
        self._untried = {number for number, each in self._trials.items() if each.count and not each.is_warm_start}

    def _warm_start_curves(self, cube: Cube, shared: frozenset[str]) -> list[Curve]:
        """Return the curves of the trials of another study that have the parameters of this one."""
        taught = [each for each in self._trials.values() if each.is_warm_start] if self._has_warm_start else []
        key = (len(taught), shared)
        if self._warm_start[0] != key:
            fitting = [each for each in taught if shared <= each.names and cube.holds(each.stored.params)]
            shown = [(each, taught_curve(each.stored, self._objective)) for each in fitting]
            curves = [Curve(self._point(each, cube), reports) for each, reports in shown if reports]
            self._warm_start = key, curves
        return self._warm_start[1]

    def _observe(self, known: _Known, record: TrialRecord, cube: Cube) -> None:
        """Take note of a trial as it is now."""
        is_open = record.state.is_open  # then its expected improvement will be needed
        last, known.record = known.record, record
        is_same_state = last is not None and (last.state is record.state or (last.state.is_open and is_open))
        if last is None or last.reports != record.reports or not is_same_state:
            shown = _shown(record, self._objective)
            is_result = ended_by_itself(record)
            known.curve = Curve(self._point(known, cube), shown, is_open, is_result) if shown else None
        known.work = work_of(record)

    def _point(self, known: _Known, cube: Cube) -> Array:
        if known.point is None:
            known.point = cube.point(known.stored.params)
        return known.point


def _shown(trial: TrialRecord, objective: Objective) -> Sequence[tuple[float, float]]:
    """Return fraction of the training run and cost of each report; a failure is the worst possible end.

    Otherwise good early reports would attract the next trials to a region that fails, such as that of models that are
    too large.
    """
    shown = shares_and_costs(trial.reports, objective)
    if trial.state is TrialState.FAILED:
        return [*(each for each in shown if each[0] < 1.0), (1.0, math.inf)]
    return shown
