"""Trials at rungs: which of those that wait go on, by their reports, by what is expected of them, or by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import optuna
from optuna.trial import FrozenTrial

from ...search.agreement import describe
from ...search.ladder import Ladder
from ...search.own_files import is_own_folder
from ...search.promotion import is_promoted
from ...search.rungs import Promise, Rungs
from ...search.runner import TrialRunner
from ...search.study import Study
from ...search.training_budget import TrainingBudget
from ...search.trial import TrialRecord, TrialState, Verdict
from .curve_sampler import CurveSampler
from .engine_trials import renew_trial
from .paused_limit import PausedLimit
from .trial import Judge


class AtRungs:
    """Judges trials that come to a rung, and chooses among those that wait there.

    Args:
        study: the settings.
        engine: Optuna's study.
        ladder: the rungs.
        limit: on the number of paused trials and on the size of their checkpoints.
        budget: in full training runs; None: no limit.

    Every method is called under the study's lock, but for the judge.
    """

    def __init__(
        self,
        study: Study,
        engine: optuna.Study,
        ladder: Ladder,
        limit: PausedLimit,
        budget: TrainingBudget | None = None,
    ) -> None:
        self._folder, self._engine, self._limit = study.folder, engine, limit
        self._rungs = Rungs(study, ladder, budget)
        self._misleading: set[float] = set()  # as announced

    def judge(
        self, runner: TrialRunner, trial: optuna.Trial, known_now: Callable[[], Sequence[TrialRecord]] | None = None
    ) -> Judge:
        """Return the judge of a trial: at a rung it continues, pauses or is pruned.

        Args:
            runner: has the records.
            trial: the trial, as Optuna has it.
            known_now: reads all trials as they are now, of other searches too; None: there is no budget to share.
        """

        def verdict(so_far: TrialRecord, earlier: TrialRecord | None) -> Verdict:
            if not self._rungs.is_at_rung(so_far, earlier) or is_promoted(self._folder, so_far.name):
                return Verdict()
            if known_now is None:
                return judged(so_far, earlier, runner.known_trials())
            with runner.locked():  # other searches reserve what this trial costs up to its next pause
                said = judged(so_far, earlier, known_now())
                if said == Verdict():
                    runner.note(so_far)
            return said

        def judged(so_far: TrialRecord, earlier: TrialRecord | None, known: Sequence[TrialRecord]) -> Verdict:
            renew_trial(self._engine, trial)
            others = [each for each in known if each.number != so_far.number]
            return self._rungs.verdict(so_far, others, self._promise([so_far, *others]), earlier)

        return verdict

    @staticmethod
    def trials(paused: Sequence[FrozenTrial], runner: TrialRunner) -> tuple[TrialRecord, ...]:
        """Return all known trials; one that another search has resumed meanwhile runs, whatever its record says.

        Args:
            paused: the trials that are paused, as the storage says.
            runner: has the records.
        """
        numbers = {each.number for each in paused}
        return tuple(
            replace(each, state=TrialState.RUNNING)
            if each.state is TrialState.PAUSED and each.number not in numbers
            else each
            for each in runner.known_trials()
        )

    def promoted_by_hand(self, paused: Sequence[FrozenTrial], trials: Sequence[TrialRecord]) -> FrozenTrial | None:
        """Return a waiting trial that the user wants to go on; None if there is none."""
        waiting = [each for each in trials if each.state is TrialState.PAUSED]
        return _first(paused, [each for each in waiting if is_promoted(self._folder, each.name)])

    def next(
        self, paused: Sequence[FrozenTrial], trials: Sequence[TrialRecord], is_last_chance: bool = False
    ) -> FrozenTrial | None:
        """Return the waiting trial that may go on; None if there is none.

        With `is_last_chance`, no trial is to come any more.
        """
        promoted = self._rungs.next(trials, self._promise(trials), is_last_chance)
        return None if promoted is None else _first(paused, [promoted])

    def lacks_budget(self, trials: Sequence[TrialRecord]) -> bool:
        """Tell whether a trial would be promoted now if the budget could pay for it."""
        return self._rungs.next(trials, self._promise(trials), is_last_chance=True, ignores_budget=True) is not None

    def last(self, trials: Sequence[TrialRecord]) -> TrialRecord | None:
        """Return the paused trial that would be completed if the search ended now; None if there is none."""
        return self._rungs.last(trials)

    def announce_misleading(self, trials: Sequence[TrialRecord], runner: TrialRunner) -> None:
        """Announce each rung that begins to mislead, and each that does no longer."""
        agreements = self._rungs.agreements(trials)
        misleading = {fraction for fraction, found in agreements.items() if found.misleads}
        for fraction in sorted(misleading ^ self._misleading):
            runner.announce(describe(fraction, agreements[fraction]))
        self._misleading = misleading

    def hopeless(self, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return the waiting trials that will not go on, whatever comes."""
        return self._rungs.hopeless(trials)

    def surplus(self, trials: Sequence[TrialRecord]) -> tuple[list[TrialRecord], str]:
        """Return the worst of the paused trials beyond the limit, and the limit in words."""
        return self._limit.surplus(self._rungs.paused(trials), self._folder)

    def best_waiting(self, known: Sequence[TrialRecord]) -> TrialRecord | None:
        """Return the best of the waiting trials that have weights, if it is the best of all; None if it is not."""
        lost = [each for each in known if each.state is TrialState.PAUSED and not self._has_weights(each)]
        return self._rungs.best_waiting([each for each in known if each not in lost])

    def count_since_improvement(self, runner: TrialRunner) -> int:
        """Return the number of trials that reached a rung, or failed, since the last new best at any rung."""
        return self._rungs.count_since_improvement(runner.known_trials())

    def most_expected(self, runner: TrialRunner) -> float | None:
        """Return the largest expected improvement of any parameters; None without a model."""
        trials, engine, sampler = runner.known_trials(), self._engine, self._engine.sampler
        if not isinstance(sampler, CurveSampler) or not sampler.knows_enough(engine, trials):
            return None
        return sampler.most_expected(engine, trials)

    def _has_weights(self, trial: TrialRecord) -> bool:
        """Tell whether a checkpoint of a waiting trial is there; somebody may have deleted it."""
        run = self._folder / trial.name
        return any(is_own_folder(each, run) for each in run.glob("checkpoint-*"))

    def _promise(self, trials: Sequence[TrialRecord]) -> Promise | None:
        """Return what rates trials at a rung by what is expected of them; None while nothing can be expected."""
        engine, sampler = self._engine, self._engine.sampler
        if not isinstance(sampler, CurveSampler) or not sampler.knows_enough(engine, trials):
            return None
        return lambda candidates, known: sampler.promise(engine, candidates, known)


def _first(paused: Sequence[FrozenTrial], chosen: Sequence[TrialRecord]) -> FrozenTrial | None:
    numbers = {each.number for each in chosen}
    return next((each for each in paused if each.number in numbers), None)
