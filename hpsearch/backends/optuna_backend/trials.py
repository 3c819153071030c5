"""The trials of a study in Optuna's storage: which one is next, who is at it, and how it ended."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import optuna
from optuna.samplers import GridSampler
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as EngineState

from ...search.decide import Closing, End, Prune, Resume, Rules, Snapshot, Start, Stop, Wait, decide, judge
from ...search.ending import Ended
from ...search.paused_limit import PausedLimit
from ...search.promotion import is_promoted
from ...search.repeats import EVERYTHING_TRIED
from ...search.runner import TrialRunner
from ...search.study import Study
from ...search.training_budget import TrainingBudget
from ...search.trial import TrialRecord, TrialState, Verdict
from .at_rungs import AtRungs
from .curve_sampler import CurveSampler
from .engine_trials import forget_trials, read_trials, renew_trial
from .finite import has_values_left
from .learning import ORIGIN, can_be_compared, far_off, is_taught
from .paused_checkpoints import PausedCheckpoints
from .proposer import Proposer, proposed_by
from .pruning import PruningByOneObjective
from .ranges import RangesOfTrials
from .sampling import RepeatableSampling
from .trial import Judge, OptunaTrial

# User attributes of Optuna's trials: how a trial ended where Optuna's state does not say it, why; whose it is; its
# place among the trials that the user wants the search to start with; and what a scheduler has changed.
_STATE, _REASON, _SESSION, _PLACE, _SCHEDULE = (
    f"hpsearch:{each}" for each in ("state", "reason", "session", "place", "schedule")
)
# A user attribute of Optuna's study: with which sampler and space everything has been tried.
_EXHAUSTED = "hpsearch:exhausted"
# With fewer paused trials, the size of their checkpoints does not matter.
_LEAST_TO_MEASURE = 3
_STATES_THAT_OPTUNA_HAS = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAILED)


class StoredTrials:
    """Chooses, takes over and ends trials in Optuna's storage; several processes may be at it, one after the other.

    Every method but `end` is called under the study's lock; so is `end`, by the process that ran the trial.

    Args:
        study: the settings.
        engine: Optuna's study.
        sampling: seeds the sampler for each trial.
        by_one: prunes where there are several objectives; None with one.
        at_rungs: lets trials pause, and go on; None: a pruner of Optuna judges.
        is_converged: tells whether the search may end early.
        may_give: whether a configuration that was never tried may take the place of what the sampler proposes.
        may_repeat: whether a configuration may be trained again although its result is known.
        budget: in full training runs; None: no limit.
        paused_limit: on the number of paused trials, and on the size of their checkpoints.

    Attributes:
        ending: why `next` gave None, to announce; None if there is nothing to announce.
    """

    def __init__(
        self,
        study: Study,
        engine: optuna.Study,
        sampling: RepeatableSampling,
        by_one: PruningByOneObjective | None,
        at_rungs: AtRungs | None,
        is_converged: Callable[[TrialRunner], bool],
        may_give: bool = False,
        may_repeat: bool = False,
        budget: TrainingBudget | None = None,
        paused_limit: PausedLimit | None = None,
    ) -> None:
        self._study, self._engine, self._sampling = study, engine, sampling
        self._by_one, self._at_rungs, self._is_converged = by_one, at_rungs, is_converged
        self._may_give, self._may_repeat = may_give, may_repeat
        rungs = None if at_rungs is None else at_rungs.rungs
        self._rules = Rules(study.n_trials, rungs, budget, paused_limit or PausedLimit())
        self._checkpoints = PausedCheckpoints(study.folder)
        self._ended = _Ended()
        self._ranges: RangesOfTrials | None = None
        self._is_compared: bool | None = None  # with another study; None: it is not known whether there is one
        self._has_said_limit = False
        self._searcher_ended: str | None = None
        self.ending: str | None = None

    def next(self, runner: TrialRunner, proposer: Proposer | None = None) -> OptunaTrial | Wait | None:
        """Return the trial to run next; `Wait` while there is none, but others are running; None at the end.

        What `hpsearch.search.decide` decides is carried out.

        Args:
            runner: records the trials.
            proposer: chooses the parameters of a new trial in place of the sampler.
        """
        self.ending = None
        nothing_new = self._searcher_ended
        while True:
            stored = self._read(runner)
            decision = decide(self._snapshot(stored, runner, nothing_new))
            match decision:
                case Start():
                    nothing_new = self._reason_not_to_start(stored, runner)
                    if nothing_new is None:
                        started = self._begin(stored.trials, stored.queued, runner, proposer)
                        if started is not None:
                            return started
                        nothing_new = self._searcher_ended = "the searcher has nothing more to try"
                case Resume(number, by_hand):
                    if by_hand:
                        runner.announce(f"trial {number} is promoted by hand: it trains to completion")
                    return self._take_over(stored.left[number], runner)
                case Prune(numbers, limit):
                    self._prune(numbers, limit, stored, runner)
                case Stop(number, reason):
                    self._stop(stored.left[number], reason, runner)
                case Wait() as wait:
                    return wait
                case End(reason, is_early):
                    if reason is not None:
                        self.ending = f"the search ends{' early' if is_early else ''}: {reason}"
                    return None

    def _read(self, runner: TrialRunner) -> _Stored:
        """Read the trials anew; those that ended, or paused, just before their process died are recorded as such."""
        runner.refresh()
        trials = read_trials(self._engine)
        self._ranges = self._ranges or RangesOfTrials(self._study, trials)
        self._warn_of_other_study(trials, runner)
        counted, unfinished = self._ended.count(trials)
        stored = _Stored.of(trials, counted, unfinished)
        records = {each.number: each for each in runner.records}
        recovered = [self._recover(each, records.get(number), runner) for number, each in stored.left.items()]
        return self._read(runner) if any(recovered) else stored

    def _snapshot(self, stored: _Stored, runner: TrialRunner, nothing_new: str | None) -> Snapshot:
        """Return the study as it is now, to decide by."""
        trials = self._known(stored.left, runner)
        paused = [] if self._at_rungs is None else [each for each in trials if each.state is TrialState.PAUSED]
        if self._at_rungs is not None:
            self._at_rungs.announce_misleading(trials, runner)
        ended = sum(each.state.is_counted for each in trials)
        is_measured = _LEAST_TO_MEASURE < len(paused) <= self._rules.paused_limit.number
        return Snapshot(
            self._rules,
            trials,
            deleted=max(0, stored.counted - ended),
            next_number=stored.queued[0] if stored.queued else len(stored.trials),
            by_hand=self._by_hand(trials if self._rules.budget is not None else paused),
            closing=self._closing(runner, paused),
            nothing_new=nothing_new,
            rating=self._at_rungs.rating(trials) if self._at_rungs is not None and paused else None,
            sizes=self._checkpoints.sizes(paused) if is_measured else {},
            free_bytes=self._checkpoints.free_bytes if is_measured else math.inf,
        )

    def _by_hand(self, trials: Sequence[TrialRecord]) -> frozenset[int]:
        """Return the numbers of those of the trials that the user has promoted."""
        folder = self._study.folder
        return frozenset(each.number for each in trials if each.state.is_open and is_promoted(folder, each.name))

    def _closing(self, runner: TrialRunner, paused: Sequence[TrialRecord]) -> Closing | None:
        """Return why no trial may start or resume in this session; None if one may."""
        reason = runner.reason_to_stop()
        if reason is None:
            return None
        selects_best = runner.used_up() is not None and runner.is_last()
        return Closing(reason, selects_best, self._checkpoints.lost(paused) if selects_best else frozenset())

    def _known(self, left: Mapping[int, FrozenTrial], runner: TrialRunner) -> tuple[TrialRecord, ...]:
        """Return all trials; those that have not ended with their state in the storage, where others take them over.

        Args:
            left: the trials that have begun and have not ended, as the storage has them.
            runner: has the records.
        """
        known = {each.number: each for each in runner.known_trials()}
        for number, record in known.items():
            if record.state.is_open and number not in left:  # it has ended in the storage only
                known[number] = replace(record, state=TrialState.PRUNED)
        for number, trial in left.items():
            state = TrialState.INTERRUPTED
            if _is_paused(trial) and number in known:  # else its folder was deleted
                state = TrialState.PAUSED
            elif not _is_paused(trial) and runner.is_alive(trial.user_attrs.get(_SESSION)):
                state = TrialState.RUNNING
            record = known.get(number) or TrialRecord(number, "", state, {})
            known[number] = record if record.state is state else replace(record, state=state)
        return tuple(known[number] for number in sorted(known))

    def end(self, trial: OptunaTrial, record: TrialRecord) -> None:
        """Tell Optuna how a trial ended; one that was interrupted stays running there, to go on."""
        if trial.judged is not None and self._by_one is not None:
            self._by_one.end(trial.judged, record)
        self._tell(trial.engine_trial, record, trial.told_before)

    def _warn_of_other_study(self, trials: Sequence[FrozenTrial], runner: TrialRunner) -> None:
        """Say, once, that the study which this one learns from was of something else."""
        if self._is_compared is None:
            self._is_compared = not any(map(is_taught, trials))
        if self._is_compared or not can_be_compared(trials):
            return
        self._is_compared = True
        notice = far_off(trials, self._study.objectives[0])
        if notice is not None:
            runner.announce(notice)

    def _reason_not_to_start(self, stored: _Stored, runner: TrialRunner) -> str | None:
        """Return why there is no use in another trial: everything was tried, or the terminator says so."""
        engine = self._engine
        is_exhausted = isinstance(engine.sampler, GridSampler) and engine.sampler.is_exhausted(engine)
        tried = engine.user_attrs.get(_EXHAUSTED)
        if is_exhausted or (tried is not None and tried == self._what_is_tried()):
            return f"{type(engine.sampler).__name__} has tried everything there is in this space"
        if self._is_converged(runner):
            return "the terminator expects no further improvement"
        return EVERYTHING_TRIED if self._is_everything_tried(stored, runner) else None

    def _is_everything_tried(self, stored: _Stored, runner: TrialRunner) -> bool:
        """Tell whether the space is finite, and no configuration of it is left for another trial."""
        if stored.queued or self._may_repeat or has_values_left(stored.trials):
            return False
        if self._place(stored.trials) < len(self._study.start_with):
            return False
        sessions = {number: each.user_attrs.get(_SESSION) for number, each in stored.left.items()}
        alive = {number for number, session in sessions.items() if runner.is_alive(session)}
        return runner.is_everything_tried(len(stored.trials), alive)

    def _what_is_tried(self) -> str:
        return f"{type(self._engine.sampler).__name__} {json.dumps(self._study.described_space())}"

    def _begin(
        self, trials: Sequence[FrozenTrial], waiting: Sequence[int], runner: TrialRunner, proposer: Proposer | None
    ) -> OptunaTrial | Wait | None:
        """Ask for a trial; the first ones have the parameters that the user wants the search to start with.

        Return None if the proposer has no more.
        """
        place, is_queued = self._place(trials), bool(waiting)
        if not waiting and place < len(self._study.start_with):
            self._engine.enqueue_trial(dict(self._study.start_with[place]), user_attrs={_PLACE: place})
            is_queued = True
        elif not waiting and proposer is not None:
            proposed = proposed_by(
                proposer, len(trials), (lambda params: None) if self._may_repeat else runner.known_trial
            )
            if proposed is None or isinstance(proposed, Wait):
                return proposed
            self._engine.enqueue_trial(dict(proposed))
            is_queued = True
        self._sampling.seed_for(waiting[0] if waiting else len(trials))
        self._tell_sampler(runner)
        trial = self._ask(runner.session, is_queued)
        renew_trial(self._engine, trial)
        judged, at_rung = self._judged(trial.number, runner), self._judge(runner, trial)
        return OptunaTrial(
            trial,
            self._sampling,
            judged,
            judge=at_rung,
            may_repeat=self._may_repeat,
            may_be_given=self._may_give,
            check_range=None if self._ranges is None else self._ranges.check,
        )

    def _place(self, trials: Sequence[FrozenTrial]) -> int:
        """Return how many of the trials that the user wants the search to start with have begun."""
        if not self._study.start_with:
            return 0
        bound = self._study.uncounted_before
        uncounted = {each.number for each in trials[:bound] if each.state is EngineState.FAIL}
        started_with = [each for each in trials if _PLACE in each.user_attrs and each.number not in uncounted]
        return sum(is_counted(each) or not each.state.is_finished() for each in started_with)

    def _ask(self, session: str, is_queued: bool) -> optuna.Trial:
        """Return the queued trial, or a new one, as `optuna.Study.ask` does, with the name of the session on it.

        A new one is written with it at once: one write in place of two, and no moment in which nobody is at it.
        """
        engine = self._engine
        if is_queued:
            trial = engine.ask()
            trial.set_user_attr(_SESSION, session)
            return trial
        begun = optuna.trial.create_trial(state=EngineState.RUNNING, user_attrs={_SESSION: session})
        return optuna.Trial(engine, engine._storage.create_new_trial(engine._study_id, begun))

    def _tell_sampler(self, runner: TrialRunner) -> None:
        """Let the sampler that learns from curves know them."""
        if isinstance(self._engine.sampler, CurveSampler):
            self._engine.sampler.trials = runner.known_trials()

    def _take_over(self, trial: FrozenTrial, runner: TrialRunner) -> OptunaTrial:
        """Go on with a trial that another session has begun."""
        self._sampling.seed_for(trial.number)
        self._tell_sampler(runner)
        taken = optuna.Trial(self._engine, trial._trial_id)
        taken.set_user_attr(_SESSION, runner.session)
        if _is_paused(trial):
            taken.set_user_attr(_STATE, TrialState.RUNNING.value)  # until then it still waits
        earlier = runner.earlier_record(trial.number)
        renew_trial(self._engine, taken)
        judged, at_rung = self._judged(trial.number, runner), self._judge(runner, taken)
        return OptunaTrial(
            taken, self._sampling, judged, earlier, trial, at_rung, self._may_repeat, may_be_given=self._may_give
        )

    def _judge(self, runner: TrialRunner, trial: optuna.Trial) -> Judge | None:
        """Return what tells a trial at a rung whether to go on; None where a pruner of Optuna does."""
        if self._at_rungs is None:
            return None
        at_rungs = self._at_rungs

        def verdict(so_far: TrialRecord, earlier: TrialRecord | None) -> Verdict:
            is_by_hand = bool(self._by_hand([so_far]))
            if is_by_hand or not at_rungs.rungs.is_at_rung(so_far, earlier):
                return Verdict()
            if self._rules.budget is None:
                return judged(so_far, earlier, runner.known_trials())
            with runner.locked():  # other searches reserve what this trial costs up to its next pause
                runner.refresh()
                counted, unfinished = self._ended.count(read_trials(self._engine))
                left = _Stored.of([], counted, unfinished).left
                said = judged(so_far, earlier, self._known(left, runner))
                if said == Verdict():
                    runner.note(so_far)
            return said

        def judged(so_far: TrialRecord, earlier: TrialRecord | None, known: Sequence[TrialRecord]) -> Verdict:
            renew_trial(self._engine, trial)
            others = (each for each in known if each.number != so_far.number)
            trials = tuple(sorted([so_far, *others], key=attrgetter("number")))
            by_hand = frozenset() if self._rules.budget is None else self._by_hand(trials)
            now = Snapshot(self._rules, trials, by_hand=by_hand, rating=at_rungs.rating(trials))
            return judge(now, so_far.number, earlier)

        return verdict

    def _judged(self, number: int, runner: TrialRunner) -> optuna.Trial | None:
        return None if self._by_one is None else self._by_one.begin(runner.records, number)

    def _prune(self, numbers: Sequence[int], limit: str | None, stored: _Stored, runner: TrialRunner) -> None:
        """Prune paused trials; that there are too many of them is announced once."""
        if limit is not None and not self._has_said_limit:
            self._has_said_limit = True
            runner.announce(f"{limit}: the worst of them are pruned, now and whenever it is so again")
        records = {each.number: each for each in runner.known_trials()}
        for number in numbers:
            record, trial = records[number], stored.left[number]
            after = (record.reason or "").removeprefix(TrialState.PAUSED.value)
            why = "" if limit is None else f", as {limit}"
            pruned = runner.finish(Ended(replace(record, state=TrialState.PRUNED, reason=f"pruned{after}{why}")))
            self._tell(optuna.Trial(self._engine, trial._trial_id), pruned, {*trial.user_attrs, *trial.constraints})
            runner.settle(pruned, has_run=False)

    def _stop(self, trial: FrozenTrial, reason: str, runner: TrialRunner) -> None:
        """Stop a paused trial with the result that it has: the budget of the study ends the search."""
        record = next(each for each in runner.known_trials() if each.number == trial.number)
        taken = self._take_over(trial, runner)
        stopped = runner.stop_waiting(taken, record, reason)
        self._tell(taken.engine_trial, stopped, taken.told_before)
        runner.settle(stopped)

    def _recover(self, trial: FrozenTrial, record: TrialRecord | None, runner: TrialRunner) -> bool:
        """Settle a trial that had ended, or paused, when its process died; False if it had not."""
        if runner.is_alive(trial.user_attrs.get(_SESSION)) and not _is_paused(trial):
            return False
        if record is None or not (record.state.is_counted or record.state is TrialState.PAUSED):
            return False
        if record.state is TrialState.PAUSED and _is_paused(trial):  # it waits, and the storage knows
            return False
        told_before = {*trial.user_attrs, *trial.constraints}
        self._tell(optuna.Trial(self._engine, trial._trial_id), record, told_before)
        runner.recover(record)
        return True

    def _tell(self, trial: optuna.Trial, record: TrialRecord, told_before: Collection[str]) -> None:
        """Tell Optuna how a trial ended; `told_before` are the attributes and constraints of earlier sessions."""
        forget_trials(self._engine)
        if record.state not in _STATES_THAT_OPTUNA_HAS or _STATE in told_before:
            trial.set_user_attr(_STATE, record.state.value)
        if record.reason is not None or _REASON in told_before:
            trial.set_user_attr(_REASON, record.reason)
        if record.schedule:
            trial.set_user_attr(_SCHEDULE, list(record.schedule))
        for name, value in record.user_attrs.items():
            trial.set_user_attr(name, value)
        if record.state in (TrialState.INTERRUPTED, TrialState.PAUSED):
            return
        for name, violation in record.violations.items():
            if name not in told_before:
                trial.set_constraint(name, violation)
        try:
            if record.state.has_result:
                self._engine.tell(trial, list(record.values), state=EngineState.COMPLETE)
            else:
                is_pruned = record.state is TrialState.PRUNED
                self._engine.tell(trial, state=EngineState.PRUNED if is_pruned else EngineState.FAIL)
        except RuntimeError as error:
            # A sampler that has tried everything (GridSampler) stops the study, which Optuna allows only in `optimize`.
            # The trial has been told all the same.
            if "Study.stop" not in str(error):
                raise
            self._engine.set_user_attr(_EXHAUSTED, self._what_is_tried())


@dataclass(frozen=True)
class _Stored:
    """The trials of the storage as they were read.

    Attributes:
        trials: all of them, by number.
        counted: the number of those that have ended and count towards the total.
        queued: the numbers of those that somebody has queued.
        left: by number, those that have begun and have not ended.
    """

    trials: Sequence[FrozenTrial]
    counted: int
    queued: Sequence[int]
    left: Mapping[int, FrozenTrial]

    @classmethod
    def of(cls, trials: Sequence[FrozenTrial], counted: int, unfinished: Sequence[FrozenTrial]) -> _Stored:
        """Sort those that have not ended."""
        queued = [each.number for each in unfinished if each.state is EngineState.WAITING]
        left = {each.number: each for each in unfinished if each.state is EngineState.RUNNING}
        return cls(trials, counted, queued, left)


class _Ended:
    """Counts the trials that have ended and count: each is looked at until it has ended, and no more."""

    def __init__(self) -> None:
        self._looked_at, self._counted = 0, 0
        self._unfinished: list[int] = []

    def count(self, trials: Sequence[FrozenTrial]) -> tuple[int, list[FrozenTrial]]:
        """Return how many count, and those that have not ended.

        Args:
            trials: all trials, by number.
        """
        later = [*self._unfinished, *range(self._looked_at, len(trials))]
        self._unfinished = [number for number in later if not trials[number].state.is_finished()]
        ended = set(later).difference(self._unfinished)
        self._counted += sum(is_counted(trials[number]) for number in ended)
        self._looked_at = len(trials)
        return self._counted, [trials[number] for number in self._unfinished]


def attributes_of(record: TrialRecord, place: int | None) -> dict[str, Any]:
    """Return the user attributes of a trial that is known from its record only; see `StoredTrials`.

    Args:
        record: of the trial.
        place: which of the parameters that the search starts with it has; None if none.
    """
    has_state = record.state in (*_STATES_THAT_OPTUNA_HAS, TrialState.RUNNING)
    attributes = {
        _STATE: None if has_state else record.state.value,
        _REASON: record.reason,
        _SCHEDULE: list(record.schedule) or None,
        _PLACE: place,
        **record.user_attrs,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _is_paused(trial: FrozenTrial) -> bool:
    return trial.user_attrs.get(_STATE) == TrialState.PAUSED.value


def is_counted(trial: FrozenTrial) -> bool:
    """Tell whether a trial counts towards the study's total: it has ended, here, and was not refused."""
    is_refused = trial.user_attrs.get(_STATE) == TrialState.REFUSED.value
    return trial.state.is_finished() and not is_refused and ORIGIN not in trial.user_attrs
