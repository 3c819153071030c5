"""The trials of a study in Optuna's storage: which one is next, who is at it, and how it ended."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import optuna
from optuna.samplers import GridSampler
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as EngineState

from ...search.ending import Ended
from ...search.repeats import EVERYTHING_TRIED
from ...search.runner import TrialRunner
from ...search.study import Study
from ...search.training_budget import TrainingBudget
from ...search.trial import TrialRecord, TrialState
from .at_rungs import AtRungs
from .curve_sampler import CurveSampler
from .engine_trials import forget_trials, read_trials, renew_trial
from .finite import has_values_left
from .learning import ORIGIN, can_be_compared, far_off, is_taught
from .proposer import WAIT, Proposer, Wait, proposed_by
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

    Attributes:
        ended_early: why `next` gave None although the total was not reached; None if it was.
        exhausted: how much of the budget the trials have cost, if `next` gave None because of it; else None.
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
    ) -> None:
        self._study, self._engine, self._sampling = study, engine, sampling
        self._by_one, self._at_rungs, self._is_converged = by_one, at_rungs, is_converged
        self._may_give, self._may_repeat, self._budget = may_give, may_repeat, budget
        self._ended = _Ended()
        self._ranges: RangesOfTrials | None = None
        self._is_compared: bool | None = None  # with another study; None: it is not known whether there is one
        self._has_said_limit = False
        self.ended_early: str | None = None
        self.exhausted: str | None = None

    @property
    def ending(self) -> str | None:
        """Why `next` gave None, to announce; None if there is nothing to announce."""
        if self.ended_early is not None:
            return f"the search ends early: {self.ended_early}"
        return None if self.exhausted is None else f"the search ends: {self.exhausted}"

    def next(self, runner: TrialRunner, proposer: Proposer | None = None) -> OptunaTrial | Wait | None:
        """Return the trial to run next; WAIT while there is none, but others are still at theirs; None at the end.

        Half-done trials whose process is gone come first, then those that have waited at a rung and may go on. At the
        end, those that still wait are pruned, unless the budget in full training runs ends the search.

        Args:
            runner: records the trials.
            proposer: chooses the parameters of a new trial in place of the sampler.
        """
        runner.refresh()
        trials = read_trials(self._engine)
        self._ranges = self._ranges or RangesOfTrials(self._study, trials)
        self._warn_of_other_study(trials, runner)
        counted, unfinished = self._ended.count(trials)
        running = [each for each in unfinished if each.state is EngineState.RUNNING]
        records = {each.number: each for each in runner.records}
        recovered = {each.number for each in running if self._recover(each, records.get(each.number), runner)}
        left = [each for each in running if each.number not in recovered]
        if any(records[number].state is TrialState.PAUSED for number in recovered):
            return self.next(runner, proposer)  # they wait, as they did before a process died
        # Paused trials whose folder was deleted begin again.
        paused = [each for each in left if _is_paused(each) and each.number in records]
        alive = [each for each in left if not _is_paused(each) and runner.is_alive(each.user_attrs.get(_SESSION))]
        numbers = {each.number for each in (*paused, *alive)}
        half_done = sorted((each for each in left if each.number not in numbers), key=_is_paused)
        if self._at_rungs is None:  # they have waited in an earlier session, which had rungs
            half_done, paused = [*half_done, *paused], []
        self.exhausted, self.ended_early = None, runner.reason_to_stop()
        if self.ended_early is not None:
            if runner.used_up() is not None and runner.is_last():
                self._stop_best_waiting(paused, runner, self.ended_early)
            return None
        started = counted + len(recovered) + len(paused) + len(alive)
        may_start, n_trials = True, self._study.n_trials
        if n_trials is not None:
            may_start = started < n_trials
        resumed = self._payable(half_done, left, runner) if may_start else []
        if resumed:
            return self._take_over(resumed[0], runner)
        promoted = self._promoted(paused, left, runner)
        if promoted is not None:
            return promoted
        is_payable = True
        if may_start:
            waiting = [each.number for each in unfinished if each.state is EngineState.WAITING]
            self.ended_early = self._reason_not_to_begin(runner)
            if self.ended_early is None and not waiting and self._is_everything_tried(trials, alive, runner):
                self.ended_early = EVERYTHING_TRIED
            if self.ended_early is None:
                new = TrialRecord(waiting[0] if waiting else len(trials), "", TrialState.RUNNING, {})
                is_payable = not half_done and self._affords(new, self._known(left, runner))
            if self.ended_early is None and is_payable:
                return self._begin(trials, waiting, runner, proposer)
        if alive:
            return WAIT
        promoted = self._promoted(paused, left, runner, is_last_chance=True)
        if promoted is not None:
            return promoted
        if self._budget is not None:
            known = self._known(left, runner)
            if not is_payable or (self._at_rungs is not None and self._at_rungs.lacks_budget(known)):
                self.exhausted = self._budget.exhausted(known)
                return None  # paused trials resume with a larger budget
        self._end_waiting(paused, runner)
        return None

    def _payable(
        self, half_done: Sequence[FrozenTrial], left: Sequence[FrozenTrial], runner: TrialRunner
    ) -> Sequence[FrozenTrial]:
        """Return the half-done trials that the budget can pay for up to their next pause."""
        if self._budget is None:
            return half_done
        known = self._known(left, runner)
        records = {each.number: each for each in known}
        return [each for each in half_done if self._affords(records[each.number], known)]

    def _affords(self, trial: TrialRecord, known: Sequence[TrialRecord]) -> bool:
        """Tell whether the budget can pay for a trial that is not running, up to its next pause."""
        if self._budget is None:
            return True
        best = None if self._at_rungs is None else self._at_rungs.last(known)
        return self._budget.account(known, best).affords(trial)

    def _known(self, left: Sequence[FrozenTrial], runner: TrialRunner) -> tuple[TrialRecord, ...]:
        """Return all trials; those that have not ended with their state in the storage, where others take them over.

        Args:
            left: the trials that have begun and have not ended, as the storage has them.
            runner: has the records.
        """
        known = {each.number: each for each in runner.known_trials()}
        for each in left:
            record = known.get(each.number) or TrialRecord(each.number, "", TrialState.INTERRUPTED, {})
            state = TrialState.INTERRUPTED
            if _is_paused(each) and each.number in known:
                state = TrialState.PAUSED
            elif not _is_paused(each) and runner.is_alive(each.user_attrs.get(_SESSION)):
                state = TrialState.RUNNING
            if record.state.is_open:  # else its process died before it told the storage
                known[each.number] = record if record.state is state else replace(record, state=state)
        return tuple(known[number] for number in sorted(known))

    def known_now(self, runner: TrialRunner) -> tuple[TrialRecord, ...]:
        """Return all trials as `next` would see them now; under the study's lock."""
        runner.refresh()
        _, unfinished = self._ended.count(read_trials(self._engine))
        return self._known([each for each in unfinished if each.state is EngineState.RUNNING], runner)

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

    def _reason_not_to_begin(self, runner: TrialRunner) -> str | None:
        """Return why there is no use in another trial: the sampler has tried everything, or the terminator says so."""
        engine = self._engine
        is_exhausted = isinstance(engine.sampler, GridSampler) and engine.sampler.is_exhausted(engine)
        tried = engine.user_attrs.get(_EXHAUSTED)
        if is_exhausted or (tried is not None and tried == self._what_is_tried()):
            return f"{type(engine.sampler).__name__} has tried everything there is in this space"
        return "the terminator expects no further improvement" if self._is_converged(runner) else None

    def _is_everything_tried(
        self, trials: Sequence[FrozenTrial], alive: Sequence[FrozenTrial], runner: TrialRunner
    ) -> bool:
        """Tell whether the space is finite, and no configuration of it is left for another trial."""
        if self._may_repeat or self._place(trials) < len(self._study.start_with) or has_values_left(trials):
            return False
        return runner.is_everything_tried(len(trials), {each.number for each in alive})

    def _what_is_tried(self) -> str:
        return f"{type(self._engine.sampler).__name__} {json.dumps(self._study.described_space())}"

    def _begin(
        self, trials: Sequence[FrozenTrial], waiting: Sequence[int], runner: TrialRunner, proposer: Proposer | None
    ) -> OptunaTrial | Wait | None:
        """Ask for a trial; the first ones have the parameters that the user wants the search to start with."""
        place, is_queued = self._place(trials), bool(waiting)
        if not waiting and place < len(self._study.start_with):
            self._engine.enqueue_trial(dict(self._study.start_with[place]), user_attrs={_PLACE: place})
            is_queued = True
        elif not waiting and proposer is not None:
            proposed = proposed_by(
                proposer, len(trials), (lambda params: None) if self._may_repeat else runner.known_trial
            )
            if proposed is None:
                self.ended_early = "the searcher has nothing more to try"
            if proposed is None or isinstance(proposed, Wait):
                return proposed
            self._engine.enqueue_trial(dict(proposed))
            is_queued = True
        self._sampling.seed_for(waiting[0] if waiting else len(trials))
        self._tell_sampler(runner)
        trial = self._ask(runner.session, is_queued)
        renew_trial(self._engine, trial)
        judged, judge = self._judged(trial.number, runner), self._judge(runner, trial)
        return OptunaTrial(
            trial,
            self._sampling,
            judged,
            judge=judge,
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
        judged, judge = self._judged(trial.number, runner), self._judge(runner, taken)
        return OptunaTrial(
            taken, self._sampling, judged, earlier, trial, judge, self._may_repeat, may_be_given=self._may_give
        )

    def _judge(self, runner: TrialRunner, trial: optuna.Trial) -> Judge | None:
        """Return what tells a trial at a rung whether to go on; None where a pruner of Optuna does."""
        known_now = None if self._budget is None else functools.partial(self.known_now, runner)
        return None if self._at_rungs is None else self._at_rungs.judge(runner, trial, known_now)

    def _judged(self, number: int, runner: TrialRunner) -> optuna.Trial | None:
        return None if self._by_one is None else self._by_one.begin(runner.records, number)

    def _promoted(
        self,
        paused: Sequence[FrozenTrial],
        left: Sequence[FrozenTrial],
        runner: TrialRunner,
        is_last_chance: bool = False,
    ) -> OptunaTrial | None:
        """Take over the trial that has waited at a rung and may go on; None if there is none. Prune those without hope.

        With `is_last_chance`, no trial is to come any more.
        """
        if self._at_rungs is None:
            return None
        trials = self._at_rungs.trials(paused, runner)
        self._at_rungs.announce_misleading(trials, runner)
        if not paused:
            return None
        by_hand = self._at_rungs.promoted_by_hand(paused, trials)
        if by_hand is not None:
            runner.announce(f"trial {by_hand.number} goes on to its end, promoted by hand")
            return self._take_over(by_hand, runner)
        pruned = self._at_rungs.hopeless(trials)
        for record in pruned:
            self._prune(record, paused, runner)
        trials = self._at_rungs.trials(paused, runner) if pruned else trials
        if self._prune_surplus(paused, trials, runner):
            trials = self._at_rungs.trials(paused, runner)
        if self._budget is not None:
            trials = self._known(left, runner)
        promoted = self._at_rungs.next(paused, trials, is_last_chance)
        return None if promoted is None else self._take_over(promoted, runner)

    def _prune_surplus(self, paused: Sequence[FrozenTrial], trials: Sequence[TrialRecord], runner: TrialRunner) -> bool:
        """Prune the worst of the paused trials beyond the limit, announced once; return whether there were any."""
        assert self._at_rungs is not None
        surplus, limit = self._at_rungs.surplus(trials)
        if surplus and not self._has_said_limit:
            self._has_said_limit = True
            runner.announce(f"{limit}: the worst of them are pruned, now and whenever it is so again")
        for record in surplus:
            self._prune(record, paused, runner, f", as {limit}")
        return bool(surplus)

    def _stop_best_waiting(self, paused: Sequence[FrozenTrial], runner: TrialRunner, reason: str) -> None:
        """Let the best of the waiting trials stand as it is, if it is the best of all: a budget ends the search."""
        at_rungs = self._at_rungs
        best = None if at_rungs is None else at_rungs.best_waiting(at_rungs.trials(paused, runner))
        stored = next((each for each in paused if best is not None and each.number == best.number), None)
        if best is None or stored is None:
            return
        taken = self._take_over(stored, runner)
        record = runner.stop_waiting(taken, best, reason)
        self._tell(taken.engine_trial, record, taken.told_before)
        runner.settle(record)

    def _end_waiting(self, paused: Sequence[FrozenTrial], runner: TrialRunner) -> None:
        """Prune the trials that still wait at a rung: nothing is to come that could let them go on."""
        for record in runner.known_trials():
            if record.state is TrialState.PAUSED:
                self._prune(record, paused, runner)

    def _prune(self, record: TrialRecord, paused: Sequence[FrozenTrial], runner: TrialRunner, why: str = "") -> None:
        stored = next((each for each in paused if each.number == record.number), None)
        if stored is None:
            return
        after = (record.reason or "").removeprefix(TrialState.PAUSED.value)
        pruned = runner.finish(Ended(replace(record, state=TrialState.PRUNED, reason=f"pruned{after}{why}")))
        self._tell(optuna.Trial(self._engine, stored._trial_id), pruned, {*stored.user_attrs, *stored.constraints})
        runner.settle(pruned, has_run=False)

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
