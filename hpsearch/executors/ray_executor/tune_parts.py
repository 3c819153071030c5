"""The parts of hpsearch that Tune calls: the searcher, the stopper, and the callback that follows its workers."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from ray import tune
from ray.exceptions import RayTaskError
from ray.tune.experiment import Trial
from ray.tune.search import SearchAlgorithm, Searcher
from ray.tune.search.search_generator import SearchGenerator

from ...coordinator.lost_worker import Loss
from .events import TuneConfig, TuneResult
from .group_training import GroupLost
from .tune_dispatch import TuneDispatch
from .tune_worker import OBJECTIVE

# How Ray says that what a worker is made of has raised an error.
_CREATION = "creation task"
P = ParamSpec("P")
R = TypeVar("R")
G = TypeVar("G", bound="Guarded")


class StaysHere:
    """Is neither copied nor stored by Tune: a search resumes from its own folder, not from Tune's."""

    def __reduce__(self) -> tuple[object, ...]:
        return (object, ())

    def __deepcopy__(self, memo: object) -> object:
        return self


class Guarded(StaysHere):
    """A function that Tune calls; an error in it ends the search, since Tune would attribute it to a trial."""

    _dispatch: TuneDispatch


def guarded(method: Callable[Concatenate[G, P], R]) -> Callable[Concatenate[G, P], R | None]:
    """Let an error in a method of something `Guarded` end the search; the method returns None then."""

    @functools.wraps(method)
    def wrapper(self: G, *args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return method(self, *args, **kwargs)
        except BaseException as error:
            self._dispatch.end_with(error)
            return None

    return wrapper


class StudySearcher(Guarded, Searcher):
    """Gives Tune the trials of the study."""

    def __init__(self, dispatch: TuneDispatch) -> None:
        super().__init__(metric=OBJECTIVE, mode="min")
        self._dispatch = dispatch

    @property
    def is_over(self) -> bool:
        """True when no further trial will begin."""
        return self._dispatch.is_over or self._dispatch.error is not None

    @guarded
    def suggest(self, trial_id: str) -> TuneConfig | None:
        """Return the config of the next trial; None if there is none now."""
        return self._dispatch.next(trial_id)

    def on_trial_complete(self, trial_id: str, result: object = None, error: bool = False) -> None:
        """Do nothing: the scheduler receives the event."""

    def set_search_properties(self, metric: str | None, mode: str | None, config: object, **spec: object) -> bool:
        """Take what Tune says; the study knows better."""
        return True


class StudyTrials(StaysHere, SearchAlgorithm):
    """Makes Tune's trials of those that the study begins."""

    def __init__(self, searcher: StudySearcher) -> None:
        self._searcher, self._maker = searcher, SearchGenerator(searcher)

    def add_configurations(self, experiments: Any) -> None:
        """Take Tune's own settings."""
        self._maker.add_configurations(experiments)

    def next_trial(self) -> Trial | None:
        """Return the next trial; None if there is none now."""
        return None if self.is_finished() else self._maker.next_trial()  # type: ignore[no-untyped-call]

    def is_finished(self) -> bool:
        """Return whether no further trial will begin."""
        return self._finished or self._searcher.is_over


class StudyStopper(Guarded, tune.Stopper):
    """Ends the whole of Tune's run when the search does not wait for the trials under way."""

    def __init__(self, dispatch: TuneDispatch) -> None:
        self._dispatch = dispatch

    def __call__(self, trial_id: str, result: TuneResult) -> bool:
        """Return False: no trial ends for itself here."""
        return False

    def stop_all(self) -> bool:
        """Return whether the search has ended."""
        self._look()
        return self._dispatch.ends_now

    @guarded
    def _look(self) -> None:
        self._dispatch.check()


class WorkerEvents(Guarded, tune.Callback):
    """A callback that follows the ends of trials and the lives of workers, and forwards a signal that ends the search.

    Args:
        dispatch: records the trials.
        put_back_signals: undoes what Tune has done to the handlers of signals.
    """

    def __init__(self, dispatch: TuneDispatch, put_back_signals: Callable[[], None]) -> None:
        self._dispatch, self._put_back_signals = dispatch, put_back_signals
        self._finishing: set[str] = set()
        self._had_workers: set[str] = set()
        self._recovering: set[str] = set()

    def setup(self, *args: object, **info: object) -> None:
        """Put back the handlers of signals: Tune has set its own, and is about to begin."""
        self._put_back_signals()

    @guarded
    def on_step_begin(self, iteration: int, trials: list[Trial], **info: object) -> None:
        """After a signal, let the running trials finish their steps and write checkpoints; then end the search."""
        interruption = self._dispatch.interruption
        if not interruption.signal or self._dispatch.error is not None:
            return
        running = [each for each in trials if each.status == Trial.RUNNING]
        if running and not self._finishing:
            self._dispatch.announce(interruption.announcement)
        for trial in (each for each in running if each.trial_id not in self._finishing):
            worker: Any = trial.temporary_state.ray_actor
            worker.finish_step.remote(interruption.signal)
            self._finishing.add(trial.trial_id)
        if not running or interruption.is_overdue:
            self._dispatch.end_with(KeyboardInterrupt())

    @guarded
    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        """Note that the trial has a worker, and send it the remaining time: the trial may have waited for it."""
        self._had_workers.add(trial.trial_id)
        self._recovering.discard(trial.trial_id)
        self._finishing.discard(trial.trial_id)  # a new worker has not been asked to finish
        worker: Any = trial.temporary_state.ray_actor
        worker.begin.remote(self._dispatch.seconds_left)

    @guarded
    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        """Forget the statistics that Tune keeps of every number of every result, for as long as it runs."""
        self._had_workers.discard(trial.trial_id)
        trial.run_metadata.metric_analysis, trial.run_metadata.metric_n_steps = {}, {}

    @guarded
    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        """Note that another worker will resume the trial."""
        self._recovering.add(trial.trial_id)
        self._dispatch.lost(trial.trial_id, Loss(_reason(trial), resumes_itself=True))

    @guarded
    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        """Note that Tune will not resume it: Tune also says so when a worker dies that it meant to use again."""
        is_creation = _CREATION in str(_error(trial))
        had_worker, is_new = trial.trial_id in self._had_workers, trial.trial_id not in self._recovering
        self._had_workers.discard(trial.trial_id)
        self._recovering.discard(trial.trial_id)
        self._dispatch.lost(trial.trial_id, Loss(_reason(trial), had_worker, is_creation, is_new))


def _error(trial: Trial) -> object:
    """Return the last error of a trial, which Tune has written to a file of this machine."""
    path = trial.pickled_error_file
    if path is None or not Path(path).exists():
        return None
    return pickle.loads(Path(path).read_bytes())  # noqa: S301 - Tune's own file


def _reason(trial: Trial) -> str:
    """Return the error of a trial in a line: what was raised in its worker, else what Ray says of that."""
    error = _error(trial)
    cause = getattr(error, "cause", None)
    if isinstance(cause, GroupLost):
        return str(cause)
    text = str(error).strip() if error is not None else "no reason was given"
    was_raised = isinstance(error, RayTaskError) or _CREATION in text
    return text.splitlines()[-1 if was_raised else 0]
