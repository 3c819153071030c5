"""The scheduler that Tune asks: it records the workers' reports, and consults the user's scheduler or the pruner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, PopulationBasedTraining, TrialScheduler

from ...search.trial import Verdict
from ...trial.ending import Ended
from ...trial.messages import Question, Reported
from .events import KEY, TuneResult, Unusable
from .perturbations import check_perturbed
from .schedulers import check_report, tell_metric
from .stopping import reason_to_stop
from .tune_dispatch import TuneDispatch
from .tune_parts import Guarded, guarded
from .tune_worker import OBJECTIVE

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController


class _Tune:
    """Tune as schedulers see it, without trials that have failed, for which some would wait forever.

    A trial that is writing a checkpoint already does not begin another one: it is at the same update still, and the
    second one would be empty. Population-based training asks for it.
    """

    def __init__(self, controller: Any) -> None:
        self._controller = controller

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)

    def get_live_trials(self) -> list[Trial]:
        """Return the trials that have not ended; Tune's own list keeps those that have failed."""
        return [each for each in self._controller.get_live_trials() if not each.is_finished()]

    def _schedule_trial_save(self, trial: Trial, result: TuneResult | None = None) -> object:
        return trial.temporary_state.saving_to or self._controller._schedule_trial_save(trial, result=result)


class StudyScheduler(Guarded, TrialScheduler):
    """A scheduler that records the workers' reports, and consults the user's scheduler, or else the pruner, about each.

    Args:
        dispatch: records the trials.
        given: a scheduler of Ray; None: the pruner of the study judges.
        at_once: the number of trials that may be with workers; None: as many as Tune finds room for.
        stop: numbers in a report at which a trial ends.
    """

    def __init__(
        self,
        dispatch: TuneDispatch,
        given: TrialScheduler | None,
        at_once: int | None = None,
        stop: Mapping[str, float] | None = None,
    ) -> None:
        self._dispatch, self._given, self._at_once, self._stop = dispatch, given, at_once, stop or {}
        self._acting: TrialScheduler = given or FIFOScheduler()  # type: ignore[no-untyped-call]
        self._held_back: list[Trial] = []
        self._has_judged = False
        self._judged: dict[str, TuneResult] = {}
        self._told_off: dict[str, Verdict] = {}

    @property
    def metric(self) -> str:
        """The key of the results that the scheduler compares."""
        return OBJECTIVE

    @property
    def supports_buffered_results(self) -> bool:
        """False: every report is answered before the trial continues."""
        return False

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: object) -> bool:
        """Hand on what is compared, unless the user's scheduler compares something else."""
        if self._given is not None:
            tell_metric(self._given, metric, mode)
        return True

    @guarded
    def on_trial_add(self, tune_controller: TuneController, trial: Trial) -> None:
        """Hand on; what is to be perturbed must be there. A trial beyond those that may run is held back.

        Tune starts every pending trial that there is room for, so that one waits as a paused one.
        """
        check_perturbed(self._acting, trial.config)
        self._acting.on_trial_add(tune_controller, trial)
        if self._at_once is not None and _active(tune_controller) > self._at_once:
            trial.set_status(Trial.PAUSED)  # type: ignore[no-untyped-call]
            self._held_back.append(trial)

    @guarded
    def on_trial_error(self, tune_controller: TuneController, trial: Trial) -> None:
        """Hand on."""
        self._acting.on_trial_error(tune_controller, trial)

    @guarded
    def on_trial_remove(self, tune_controller: TuneController, trial: Trial) -> None:
        """Hand on, and record that a trial has ended which the user's scheduler stops while it waits."""
        self._acting.on_trial_remove(tune_controller, trial)
        self._end_waiting(trial)

    def on_trial_result(self, tune_controller: TuneController, trial: Trial, result: TuneResult) -> str:
        """Record what a worker reports, and decide how the trial continues."""
        # After an error the search ends, and Tune may have taken the trial from its worker already.
        return self._decide(tune_controller, trial, result) or TrialScheduler.NOOP

    @guarded
    def _decide(self, tune_controller: TuneController, trial: Trial, result: TuneResult) -> str:
        event = result[KEY]
        answer = self._dispatch.receive(trial.trial_id, event, result)
        if isinstance(event, Question):
            _tell(trial, answer)
        if not isinstance(event, Reported):
            return TrialScheduler.CONTINUE
        if event.is_comparable:
            self._judged[trial.trial_id] = result
        if event.is_last:
            return TrialScheduler.CONTINUE
        reason = self._dispatch.reason_to_stop(trial.trial_id, event) or reason_to_stop(self._stop, result)
        if reason is not None:
            _tell(trial, Verdict(stop=reason))
            return TrialScheduler.CONTINUE
        if trial.trial_id in self._told_off:  # but its worker died before it could obey
            _tell(trial, self._told_off[trial.trial_id])
            return TrialScheduler.CONTINUE
        if self._given is None:
            verdict = self._dispatch.verdict(trial.trial_id, event)
            if verdict != Verdict():
                _tell(trial, verdict)
            return TrialScheduler.CONTINUE
        if not event.is_comparable:
            return TrialScheduler.CONTINUE
        if not self._has_judged:
            check_report(self._given, result)
            self._has_judged = True
        seen: Any = _Tune(tune_controller)
        decision = self._given.on_trial_result(seen, trial, result)
        if decision == TrialScheduler.STOP:
            verdict = self._told_off[trial.trial_id] = _verdict(self._given, result)
            self._given.on_trial_complete(tune_controller, trial, result)
            _tell(trial, verdict)
            return TrialScheduler.CONTINUE
        if isinstance(self._given, PopulationBasedTraining):
            self._keep_apart(tune_controller)
        if decision == TrialScheduler.PAUSE or trial.status == Trial.PAUSED:
            self._dispatch.pause(trial.trial_id)
        return decision

    def _keep_apart(self, tune_controller: Any) -> None:
        """Give every trial its own identity again that has got the config of another one."""
        for trial in tune_controller.get_trials():
            if not trial.is_finished() and trial.config[KEY].number != self._dispatch.number(trial.trial_id):
                trial.set_config(self._dispatch.own_config(trial.trial_id, trial.config))
                self._dispatch.pause(trial.trial_id)

    @guarded
    def on_trial_complete(self, tune_controller: TuneController, trial: Trial, result: TuneResult) -> None:
        """Record that a trial has ended."""
        event = result.get(KEY)
        if isinstance(event, (Ended, Unusable)):
            self._dispatch.end(trial.trial_id, event, result)
        judged = self._judged.get(trial.trial_id)
        if trial.trial_id in self._told_off:
            pass  # the user's scheduler knows: it has stopped the trial
        elif judged is None or (isinstance(event, Ended) and not event.record.state.has_result):
            self._acting.on_trial_error(tune_controller, trial)
        else:
            self._acting.on_trial_complete(tune_controller, trial, judged)
        if not isinstance(event, (Ended, Unusable)):
            self._end_waiting(trial)
        self._judged.pop(trial.trial_id, None)
        self._told_off.pop(trial.trial_id, None)

    def _end_waiting(self, trial: Trial) -> None:
        """Record that a trial has ended which waits without a worker, or is about to."""
        saving = trial.temporary_state.saving_to
        if saving is not None:
            saving.resolve()
        result = self._judged.pop(trial.trial_id)
        verdict = self._told_off.pop(trial.trial_id, None) or _verdict(self._acting, result)
        self._dispatch.end_waiting(trial.trial_id, verdict, result)

    def choose_trial_to_run(self, tune_controller: TuneController) -> Trial | None:
        """Ask the user's scheduler."""
        return self._choose(tune_controller)

    @guarded
    def _choose(self, tune_controller: TuneController) -> Trial | None:
        if self._dispatch.is_ending:
            return None
        exhausted = self._dispatch.exhausted()
        if exhausted is not None:
            self._end_those_that_wait(tune_controller, exhausted)
            return None
        if self._at_once is not None and _active(tune_controller) >= self._at_once:
            return None
        if self._held_back:
            return self._held_back.pop(0)
        chosen = self._acting.choose_trial_to_run(tune_controller) or self._left_waiting(tune_controller)
        if chosen is not None:
            self._dispatch.resume(chosen.trial_id)
        return chosen

    def _end_those_that_wait(self, tune_controller: Any, exhausted: str) -> None:
        """End the trials that have no worker, now that nothing is left to train them with."""
        trials = _Tune(tune_controller).get_live_trials()
        for trial in trials:
            if trial.status == Trial.PAUSED and trial.trial_id in self._judged:  # not by the end of another one
                self._told_off[trial.trial_id] = Verdict(stop=exhausted)
                tune_controller.stop_trial(trial)
        if trials and all(each.status == Trial.PAUSED for each in trials) and not self._judged:
            self._dispatch.end_without_the_waiting(exhausted)

    def _left_waiting(self, tune_controller: Any) -> Trial | None:
        """Return a trial paused for others, if there are none any more; one that can go no further ends.

        Ray's own schedulers wait forever for a trial that has failed, or has come to its end earlier.
        """
        trials = _Tune(tune_controller).get_live_trials()
        if not trials or not self._dispatch.has_no_more or any(each.status != Trial.PAUSED for each in trials):
            return None
        trial: Trial = min(trials, key=lambda each: each.config[KEY].number)
        if _verdict(self._acting, self._judged[trial.trial_id]).stop is None:
            return trial
        tune_controller.stop_trial(trial)
        return None

    def debug_string(self) -> str:
        """Return the text that Tune shows."""
        return self._acting.debug_string()


def _active(tune_controller: Any) -> int:
    """Return how many trials are with workers, or will be as soon as there are any."""
    return sum(each.status in (Trial.PENDING, Trial.RUNNING) for each in tune_controller.get_live_trials())


def _tell(trial: Trial, answer: object) -> None:
    """Send an answer to the worker of a trial; it comes before the next step."""
    worker: Any = trial.temporary_state.ray_actor
    worker.tell.remote(answer)


def _verdict(scheduler: TrialScheduler, result: TuneResult) -> Verdict:
    """Return the verdict on a trial that a scheduler stops: it is pruned, or has reached the maximum length."""
    longest = getattr(scheduler, "_max_t", None) or getattr(scheduler, "_max_t_attr", None)
    name = getattr(scheduler, "_time_attr", None)
    if isinstance(longest, (int, float)) and name in result and result[name] >= longest:
        return Verdict(stop=f"{type(scheduler).__name__} lets no trial continue after {name}={longest:g}")
    return Verdict(prune=True)
