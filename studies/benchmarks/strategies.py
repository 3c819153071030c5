"""Ways to search, as one that asks what a free worker is to train, and is told what came of it."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import optuna
from optuna.trial import TrialState as EngineState

from hpsearch.search.decisions.decide import Prune, Repeat, Resume, Rules, Snapshot, Start, decide, judge
from hpsearch.search.decisions.ladder import FEW, FEW_OF_A_BUDGET, NEVER_FEW, Ladder, ladder_for
from hpsearch.search.decisions.paused_limit import PausedLimit
from hpsearch.search.decisions.promotion_at_rungs import Rating, Rungs
from hpsearch.search.decisions.repeats import Confirmation, Repeats
from hpsearch.search.decisions.training_budget import TrainingBudget, expected_trials
from hpsearch.search.learning_curves.cost import WorkModel, work_model
from hpsearch.search.learning_curves.curves import Curve, LatestModel, since
from hpsearch.search.learning_curves.proposal import are_enough, count_at_random, propose
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.metrics.replicas import without_replicas
from hpsearch.search.metrics.selection import best_records, cost_of, ranking, select_report
from hpsearch.search.space.parameters import Float
from hpsearch.search.space.priors import Belief
from hpsearch.search.space.search_space import SearchSpace
from hpsearch.search.study import Study
from hpsearch.search.trial import Verdict
from hpsearch.search.trial_record import Report, TrialRecord, TrialState

from .learning_curves import Array, Task

# Without an end in sight, no paused trial is pruned.
NO_END = 10**6


class Job(NamedTuple):
    """What a worker trains: a trial, after the epoch `begin` up to the epoch `end`."""

    trial: int
    begin: int
    end: int


class Strategy(ABC):
    """One way to search the unit cube.

    Args:
        task: what is searched.
        seed: of its random draws.
        n_trials: how many trials there are to be.

    Attributes:
        points: the parameters of each trial, by number: those that it is trained with.
    """

    def __init__(self, task: Task, seed: int, n_trials: int = NO_END) -> None:
        self.points: list[Array] = []
        self._task, self._n_trials = task, min(n_trials, task.n_configurations or NO_END)
        self._dimensions, self._seed = task.dimensions, seed
        self._random = np.random.default_rng(seed)

    @abstractmethod
    def next(self) -> Job | None:
        """Return what a free worker is to train; None if it has to wait for another one, or all trials have ended."""

    @abstractmethod
    def told(self, trial: int, scores: Array, elapsed: float) -> None:
        """Take note of a job that is done.

        The worker that was at it asks for its next job at once.

        Args:
            trial: its number.
            scores: after each of the trial's epochs so far.
            elapsed: the time that they took.
        """

    def seed_offset(self, trial: int) -> int:
        """Return the offset of the seed that a trial is trained with: 0, but of replicas."""
        return 0

    @property
    def _has_begun_all(self) -> bool:
        return len(self.points) >= self._n_trials

    def _add(self, point: Array) -> int:
        """Return the number of a new trial for a proposal."""
        self.points.append(self._task.snap(point, self.points))
        return len(self.points) - 1

    def _length(self, trial: int) -> int:
        """Return how many epochs a trial has."""
        return self._task.length(self.points[trial])

    def _anywhere(self) -> Array:
        return self._random.random(self._dimensions)


class RandomInFull(Strategy):
    """Trains all trials to their end, with parameters at random."""

    def next(self) -> Job | None:
        """Return a new trial."""
        if self._has_begun_all:
            return None
        trial = self._add(self._anywhere())
        return Job(trial, 0, self._length(trial))

    def told(self, trial: int, scores: Array, elapsed: float) -> None:
        """Do nothing."""


class OneEpochFirst(Strategy):
    """Trains 64 random trials for one epoch, then the best four of them to their end, and so on."""

    _MANY, _FEW = 64, 4

    def __init__(self, task: Task, seed: int, n_trials: int = NO_END) -> None:
        super().__init__(task, seed, n_trials)
        self._begun = 0
        self._after_one: dict[int, float] = {}
        self._chosen: deque[int] = deque()

    def next(self) -> Job | None:
        """Return one of the best, else a new trial; nothing while the last of the 64 are still in their epoch."""
        if self._chosen:
            trial = self._chosen.popleft()
            return Job(trial, 1, self._length(trial))
        if self._begun == self._MANY or self._has_begun_all:
            return None
        self._begun += 1
        return Job(self._add(self._anywhere()), 0, 1)

    def told(self, trial: int, scores: Array, elapsed: float) -> None:
        """Choose the best four once all have had their epoch."""
        if len(scores) > 1:
            return
        self._after_one[trial] = scores[0]
        if len(self._after_one) == self._MANY or (self._has_begun_all and len(self._after_one) == self._begun):
            best = sorted(self._after_one, key=lambda number: -self._after_one[number])
            self._chosen.extend(best[: self._FEW])
            self._begun, self._after_one = 0, {}


class _Engine:
    """Optuna's study of the unit cube, in memory."""

    def __init__(
        self,
        dimensions: int,
        seed: int,
        pruner: optuna.pruners.BasePruner | None = None,
        sampler: optuna.samplers.BaseSampler | None = None,
    ) -> None:
        self.study = optuna.create_study(
            study_name=f"seed {seed}",  # Hyperband draws brackets by it
            direction="maximize",
            sampler=sampler or optuna.samplers.TPESampler(seed=seed),
            pruner=pruner or optuna.pruners.NopPruner(),
        )
        self._names = [f"x{place}" for place in range(dimensions)]

    def ask(self) -> tuple[optuna.Trial, Array]:
        """Return a trial and its parameters."""
        trial = self.study.ask()
        return trial, np.array([trial.suggest_float(name, 0, 1) for name in self._names])

    def tell(self, trial: optuna.Trial, point: Array, score: float | None) -> None:
        """End a trial.

        Args:
            trial: that was asked for.
            point: what it was trained with.
            score: at its end; None: it was pruned. One that has diverged has failed, as an objective of NaN has.
        """
        self.stored(trial.number).params = self._params(point)
        if score is None:
            self.study.tell(trial, state=EngineState.PRUNED)
        elif math.isfinite(score):
            self.study.tell(trial, score)
        else:
            self.study.tell(trial, state=EngineState.FAIL)

    def stored(self, number: int) -> optuna.trial.FrozenTrial:
        """Return the storage's own copy of a trial: Optuna lets no one change parameters, or tell a trial twice."""
        return self.study.get_trials(deepcopy=False)[number]

    def add(self, point: Array, score: float) -> None:
        """Add a trial that is complete."""
        between = dict.fromkeys(self._names, optuna.distributions.FloatDistribution(0, 1))
        added = optuna.trial.create_trial(params=self._params(point), distributions=between, value=score)
        self.study.add_trial(added)

    def _params(self, point: Array) -> dict[str, float]:
        return dict(zip(self._names, point.tolist(), strict=True))


class TPEInFull(Strategy):
    """Trains all trials to their end, with parameters by Optuna's TPE as it is by default."""

    def __init__(self, task: Task, seed: int, n_trials: int = NO_END) -> None:
        super().__init__(task, seed, n_trials)
        self._engine = _Engine(task.dimensions, seed, self._pruner(), self._sampler())
        self._trials: list[optuna.Trial] = []

    def next(self) -> Job | None:
        """Return a new trial."""
        if self._has_begun_all:
            return None
        trial = self._ask()
        return Job(trial, 0, self._length(trial))

    def told(self, trial: int, scores: Array, elapsed: float) -> None:
        """Tell the sampler the last score."""
        self._tell(trial, float(scores[-1]))

    def _ask(self) -> int:
        trial, point = self._engine.ask()
        self._trials.append(trial)
        return self._add(point)

    def _tell(self, trial: int, score: float | None) -> None:
        self._engine.tell(self._trials[trial], self.points[trial], score)

    def _pruner(self) -> optuna.pruners.BasePruner | None:
        return None

    def _sampler(self) -> optuna.samplers.BaseSampler | None:
        return None


class GPSamplerInFull(TPEInFull):
    """Trains all trials to their end, with parameters by Optuna's Gaussian process as it is by default."""

    def _sampler(self) -> optuna.samplers.BaseSampler:
        return optuna.samplers.GPSampler(seed=self._seed)


class TPEMedianPruning(TPEInFull):
    """TPE, with a pruner that is asked after each epoch: the default of transformers' own search with Optuna."""

    def __init__(self, task: Task, seed: int, n_trials: int = NO_END) -> None:
        super().__init__(task, seed, n_trials)
        self._go_on: deque[Job] = deque()

    def next(self) -> Job | None:
        """Return the next epoch of the trial that was just told, else the first of a new one."""
        if self._go_on:
            return self._go_on.popleft()
        return None if self._has_begun_all else Job(self._ask(), 0, 1)

    def told(self, trial: int, scores: Array, elapsed: float) -> None:
        """Report an epoch, and ask the pruner."""
        asked, epoch, score = self._trials[trial], len(scores), float(scores[-1])
        asked.report(score if math.isfinite(score) else math.nan, epoch)
        if epoch == self._length(trial):
            self._tell(trial, score)
        elif asked.should_prune():
            self._tell(trial, None)
        else:
            self._go_on.append(Job(trial, epoch, epoch + 1))

    def _pruner(self) -> optuna.pruners.BasePruner | None:
        return optuna.pruners.MedianPruner()


class TPEHyperbandPruning(TPEMedianPruning):
    """TPE with Hyperband in place of the median, which is told how long a training is."""

    def _pruner(self) -> optuna.pruners.BasePruner | None:
        return optuna.pruners.HyperbandPruner(max_resource=self._task.epochs)


OBJECTIVES = resolve_objectives("eval_accuracy", "maximize", has_metrics=True)


def _study(n_trials: int | None, budget: float | None) -> Study:
    space = SearchSpace({"x": Float(0, 1)})
    return Study("simulated", Path("simulated"), space, OBJECTIVES, n_trials, budget=budget)


_EPOCHS_BETWEEN = (1, 2, 3, 4, 6, 9, 13, 18, 26, 36, 52, 73, 104, 147)


@functools.cache
def _evaluated(length: int, ladder: Ladder) -> tuple[int, ...]:
    """Return the epochs after which a training run is evaluated: at rungs, and a few others."""
    rungs = {math.ceil(share * length - 1e-9) for share in ladder.fractions}
    others = {each for each in _EPOCHS_BETWEEN if min(rungs) <= each < length}
    return tuple(sorted(rungs | others | {length}))


class OursAtRandom(Strategy):
    """Our rungs, where trials pause and resume, with parameters at random.

    Args:
        task: what is searched.
        seed: of its random draws.
        n_trials: how many trials there are to be.
        budget: of the search in full training runs, which chooses the number of trials; None: `n_trials` is the limit.
        repeats: the most training runs of a trial.
    """

    _is_limited = False

    def __init__(
        self, task: Task, seed: int, n_trials: int = NO_END, budget: float | None = None, repeats: int = 1
    ) -> None:
        super().__init__(task, seed, n_trials)
        self._expected = expected_trials(n_trials, budget)
        few = NEVER_FEW if repeats > 1 else FEW if budget is None else FEW_OF_A_BUDGET
        self._ladder = ladder_for(self._expected, self._is_limited, few=few)
        total = None if budget is not None else self._n_trials
        points = tuple(epoch / task.epochs for epoch in _evaluated(task.epochs, self._ladder))
        self._rules = Rules(
            total,
            Rungs(_study(None if budget is not None else n_trials, budget), self._ladder),
            None if budget is None else TrainingBudget(budget, self._ladder, points),
            PausedLimit(NO_END),  # none, as it is for disks
            Repeats(repeats, OBJECTIVES),
        )
        self._records: list[TrialRecord] = []
        self._go_on: deque[TrialRecord] = deque()

    def next(self) -> Job | None:
        """Return the trial that has just reported if it continues, else what `decide` says."""
        record = self._go_on.popleft() if self._go_on else None
        while record is None:
            match decide(self._now()):
                case Start():
                    number = self._add(self._choose())
                    record = TrialRecord(number, f"run-{number}", TrialState.RUNNING, {})
                    self._records.append(record)
                case Repeat(replica):
                    number = len(self.points)
                    self.points.append(self.points[replica.trial])
                    record = TrialRecord(number, f"run-{number}", TrialState.RUNNING, {}, origin=replica.origin)
                    self._records.append(record)
                case Resume(number):
                    record = self._records[number]
                case Prune(numbers):
                    for number in numbers:
                        self._records[number] = replace(self._records[number], state=TrialState.PRUNED)
                case _:
                    return None
        self._records[record.number] = replace(record, state=TrialState.RUNNING)
        begin = int(record.reports[-1].resource) if record.reports else 0
        return Job(record.number, begin, next(epoch for epoch in self._evaluated(record.number) if epoch > begin))

    def told(self, trial: int, scores: Array, elapsed: float) -> None:
        """Report an evaluation, and ask whether the trial continues."""
        epoch, record, length = len(scores), self._records[trial], self._length(trial)
        report = Report((float(scores[-1]),), epoch, epoch, epoch, {}, horizon=length)
        record = replace(record, reports=(*record.reports, report), seconds=elapsed)
        if epoch == length:
            selected = select_report(record.reports, "last", OBJECTIVES)
            state = TrialState.COMPLETE if selected else TrialState.FAILED
            record = replace(record, state=state, values=selected.values if selected else ())
        else:
            self._records[trial] = record
            verdict = judge(self._now(), trial) if record.replica is None else Verdict()
            if verdict.prune or verdict.pause:
                record = replace(record, state=TrialState.PRUNED if verdict.prune else TrialState.PAUSED)
            else:
                self._go_on.append(record)
        self._records[trial] = record

    @property
    def ladder(self) -> Ladder:
        """The rungs."""
        return self._ladder

    @property
    def records(self) -> Sequence[TrialRecord]:
        """The trials as they are now, by number."""
        return self._records

    def seed_offset(self, trial: int) -> int:
        """Return the offset of a replica."""
        replica = self._records[trial].replica
        return 0 if replica is None else replica.offset

    @property
    def returned(self) -> int | None:
        """The number of the trial that the search would return now; None if none has a result."""
        return next((each.number for each in best_records(self._records, OBJECTIVES)), None)

    def _now(self) -> Snapshot:
        records = tuple(self._records)
        begun, most = sum(each.replica is None for each in records), self._task.n_configurations
        nothing_new = "everything has been tried" if most is not None and begun >= most else None
        rating = self._rating(records)
        return Snapshot(self._rules, records, next_number=len(records), nothing_new=nothing_new, rating=rating)

    def _evaluated(self, trial: int) -> tuple[int, ...]:
        """Return the epochs after which a trial is evaluated."""
        return _evaluated(self._length(trial), self._ladder)

    def _choose(self) -> Array:
        """Return the parameters of a new trial."""
        return self._anywhere()

    def _rating(self, records: Sequence[TrialRecord]) -> Rating | None:
        """Return what rates the trials that are paused at a rung; None: their reports do."""
        return None


class Ours(OursAtRandom):
    """Our default: rungs, and parameters by the model of all learning curves."""

    _belief: Belief | None = None

    def __init__(
        self, task: Task, seed: int, n_trials: int = NO_END, budget: float | None = None, repeats: int = 1
    ) -> None:
        super().__init__(task, seed, n_trials, budget, repeats)
        self._models, self._first = LatestModel(), count_at_random(self._expected, self._is_limited)

    def _choose(self) -> Array:
        curves = [self._curve(each) for each in self._records if each.reports]
        under_way = [self.points[each.number] for each in self._records if each.state is TrialState.RUNNING]
        point = propose(
            curves,
            under_way,
            self._random,
            valid=lambda points: self._task.valid(points, self.points),
            model_by=self._models.of,
            belief=self._belief,
            first=self._first,
            work=self._work(self._records),
            reliable_from=self._reliable_from(self._records),
        )
        return self._anywhere() if point is None else point

    def _rating(self, records: Sequence[TrialRecord]) -> Rating | None:
        """Rate by expected improvement, once enough trials have reported."""
        reported = [self._curve(each) for each in records if each.reports]
        if not are_enough(reported, self._first, self._reliable_from(records)):
            return None

        def rate(candidates: Sequence[TrialRecord], known: Sequence[TrialRecord]) -> Sequence[float]:
            curves = [self._curve(each) for each in known if each.reports]
            model = self._models.of(since(curves, self._reliable_from(known)))
            points = np.array([self.points[each.number] for each in candidates])
            return list(model.improvement_for_work(points, self._work(known)))

        return rate

    def _reliable_from(self, records: Sequence[TrialRecord]) -> float:
        return 0.0 if self._rules.rungs is None else self._rules.rungs.reliable_from(without_replicas(records))

    def _work(self, records: Sequence[TrialRecord]) -> WorkModel | None:
        """Return a model of how much work trials are: the time they take, where a search takes weights times epochs."""
        known = [each for each in records if each.reports]
        shares = np.array([each.reports[-1].resource / each.reports[-1].horizon for each in known])
        points = np.array([self.points[each.number] for each in known])
        return work_model(points, np.array([each.seconds for each in known]) / shares)

    def _curve(self, record: TrialRecord) -> Curve:
        return Curve(
            self.points[record.number],
            [(each.resource / each.horizon, cost_of(each, each.value, OBJECTIVES[0])) for each in record.reports],
        )


class OursConfirmed(Ours):
    """Our default with most of the budget; then the best are confirmed with the rest. For one worker."""

    _SHARE, _TOP, _MOST = 0.8, 4, 5

    def __init__(self, task: Task, seed: int, n_trials: int = NO_END, budget: float | None = None) -> None:
        assert budget is not None, "a share of it is kept"
        super().__init__(task, seed, n_trials, self._SHARE * budget)
        self._total = budget

    def next(self) -> Job | None:
        """Return the next job of the search, then the next replica."""
        job = super().next()
        if job is not None or self._rules.repeats.confirmations:
            return job
        self._records = [
            replace(each, state=TrialState.PRUNED) if each.state is TrialState.PAUSED else each
            for each in self._records
        ]
        best = tuple(each.number for each in ranking(self._records, OBJECTIVES, self._TOP))
        repeats = Repeats(1, OBJECTIVES, (Confirmation(best, self._MOST),))
        self._rules = Rules(len(self._records), budget=TrainingBudget(self._total), repeats=repeats)
        return super().next()


class OursInFull(Ours):
    """Trains all trials to their end, with parameters by our Gaussian process, which sees their ends only."""

    def _evaluated(self, trial: int) -> tuple[int, ...]:
        """Return the last epoch."""
        return (self._length(trial),)


class OursWithRightPrior(Ours):
    """Our default, told that the best is near the best of 100 configurations at random, after a full training."""

    _RANKED, _PLACE = 100, -1

    def __init__(self, task: Task, seed: int, n_trials: int = NO_END) -> None:
        super().__init__(task, seed, n_trials)
        points = np.random.default_rng([seed, 1]).random((self._RANKED, task.dimensions))
        self._centre = points[np.argsort(task.curves(points)[:, -1])[self._PLACE]]
        self._belief = Belief(self._centre)

    def _choose(self) -> Array:
        return super()._choose() if self.points else self._centre


class OursWithWrongPrior(OursWithRightPrior):
    """Our default, told that the best is near the worst of them."""

    _PLACE = 0


class NaiveTPEWithRungs(OursAtRandom):
    """Our rungs, with parameters by TPE that takes the last score of a trial for its result, however early."""

    def __init__(self, task: Task, seed: int, n_trials: int = NO_END) -> None:
        super().__init__(task, seed, n_trials)
        self._engine = _Engine(task.dimensions, seed)
        self._trials: list[optuna.Trial] = []

    def told(self, trial: int, scores: Array, elapsed: float) -> None:
        """Tell TPE as well, unless the trial continues immediately."""
        super().told(trial, scores, elapsed)
        if self._records[trial].state is TrialState.RUNNING:
            return
        stored, score = self._engine.stored(trial), float(scores[-1])
        if stored.state is EngineState.RUNNING:
            self._engine.tell(self._trials[trial], self.points[trial], score)
        elif stored.state is EngineState.COMPLETE and math.isfinite(score):
            stored.value = score

    def _choose(self) -> Array:
        trial, point = self._engine.ask()
        self._trials.append(trial)
        return point


class TPEOnHighestRung(OursAtRandom):
    """Our rungs, with parameters by TPE that learns from one rung: the highest to which enough trials have come."""

    _ENOUGH = 10

    def _choose(self) -> Array:
        engine = _Engine(self._dimensions, self._seed + len(self.points))
        for point, score in self._known():
            engine.add(point, score)
        return engine.ask()[1]

    def _known(self) -> list[tuple[Array, float]]:
        """Return parameters and score of the trials at the highest rung with enough of them, or at the lowest."""
        known: list[tuple[Array, float]] = []
        for share in (1.0, *reversed(self._ladder.fractions)):
            known = [
                (self.points[each.number], score)
                for each in self._records
                if (score := _score_at(share, each)) is not None and math.isfinite(score)
            ]
            if len(known) >= self._ENOUGH:
                break
        return known


def _score_at(share: float, trial: TrialRecord) -> float | None:
    """Return the first score of a trial after this share of its training; None if it has not come so far."""
    return next((each.value for each in trial.reports if each.resource >= share * each.horizon - 1e-9), None)


class OursPromotedByReport(Ours):
    """The model of curves chooses parameters, and the best reports are promoted: as MOBSTER does."""

    def _rating(self, records: Sequence[TrialRecord]) -> Rating | None:
        """Return None: the reports rate paused trials."""
        return None


class OursLimited(Ours):
    """Our default where time or epochs may end the search: fewer trials are drawn at random."""

    _is_limited = True


class OursWhateverTheWork(Ours):
    """Our default, to which a trial that is more work is as good as any other."""

    def _work(self, records: Sequence[TrialRecord]) -> WorkModel | None:
        """Return None: all are the same."""
        return None


OURS, PEER = "ours", "TPE, median pruning"
# They are told more than the others.
WITH_PRIORS: dict[str, type[Strategy]] = {
    "ours, with a right prior": OursWithRightPrior,
    "ours, with a wrong prior": OursWithWrongPrior,
}
# What ours was chosen from.
ALSO_TRIED: dict[str, type[Strategy]] = {
    "rungs, TPE on the highest rung": TPEOnHighestRung,
    "ours, promotion by report": OursPromotedByReport,
    "ours, whatever the work": OursWhateverTheWork,
    "ours, with a limit": OursLimited,
    "ours to completion": OursInFull,
}
STRATEGIES: dict[str, type[Strategy]] = {
    OURS: Ours,
    "ours, random parameters": OursAtRandom,
    "random to completion": RandomInFull,
    "TPE to completion": TPEInFull,
    PEER: TPEMedianPruning,
    "TPE, Hyperband pruning": TPEHyperbandPruning,
    "TPE with promotion, naively": NaiveTPEWithRungs,
    "one epoch, then the top 4 of 64": OneEpochFirst,
}
# A choice takes it a tenth of a second and more: name it, with few trials.
SLOW: dict[str, type[Strategy]] = {"GPSampler to completion": GPSamplerInFull}
ALL_STRATEGIES = {**STRATEGIES, **SLOW, **WITH_PRIORS, **ALSO_TRIED}
