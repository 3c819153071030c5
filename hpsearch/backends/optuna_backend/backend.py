"""The embedded backend: asks Optuna for parameters, runs the trial, tells Optuna how it ended."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import optuna
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as EngineState

from ...errors import StudyError, nearest_name, one_of
from ...search.listener import SearchListener
from ...search.runner import TrialEndedSearch, TrialRunner
from ...search.study import Study
from ...search.trial import TrialRecord, TrialState
from ..base import Backend
from .storage import open_storage, sqlite_storage, storage_url
from .trial import OptunaTrial

PRUNERS: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
    "median": optuna.pruners.MedianPruner,
    "none": optuna.pruners.NopPruner,
    "successive_halving": optuna.pruners.SuccessiveHalvingPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
}

_STATE, _REASON, _PROCESS = (f"hpsearch:{each}" for each in ("state", "reason", "process"))


class OptunaBackend(Backend):
    """Optuna in this process, one trial after the other.

    Args:
        sampler: an `optuna.samplers.BaseSampler`; None: TPE, seeded with the study's seed.
        pruner: an `optuna.pruners.BasePruner`, or ``"median"``, ``"none"``, ``"successive_halving"``,
            ``"hyperband"``; None: median.
        storage: an Optuna storage or its URL; None: SQLite in the study folder.
        load_if_exists: False refuses to go on with a study that is in the storage already.
        n_jobs: 1; trials run one after the other.
        gc_after_trial, catch: taken for scripts that pass them on to Optuna; a trial's memory is always released, and
            an error in a trial always recorded.

    Raises:
        StudyError: an option is not one of these, or has another value.
    """

    name: ClassVar[str] = "optuna"
    options: ClassVar[tuple[str, ...]] = (
        "sampler",
        "pruner",
        "storage",
        "load_if_exists",
        "n_jobs",
        "gc_after_trial",
        "catch",
    )

    def __init__(
        self,
        sampler: Any = None,
        pruner: Any = None,
        storage: Any = None,
        load_if_exists: bool = True,
        n_jobs: int = 1,
        gc_after_trial: bool = True,
        catch: Any = (),
    ) -> None:
        if n_jobs != 1:
            raise StudyError(f"n_jobs={n_jobs!r} must be 1: trials run one after the other.")
        self._may_exist = load_if_exists
        if sampler is not None and not isinstance(sampler, optuna.samplers.BaseSampler):
            raise StudyError(f"sampler must be an Optuna sampler or None, but got {sampler!r}.")
        self._sampler = sampler
        self._pruner = _as_pruner("median" if pruner is None else pruner)
        self._pruner_was_given = pruner is not None
        self._storage = None if storage is None else open_storage(storage)
        self._study: optuna.Study | None = None
        self._sampler_is_done = False

    def prepare(self, study: Study, records: Sequence[TrialRecord]) -> list[str]:
        """Open the storage and the study in it."""
        storage = sqlite_storage(study.folder) if self._storage is None else self._storage
        with _quiet_optuna():
            existing = {each.study_name: each for each in optuna.get_all_study_summaries(storage)}
            known = existing.get(study.name)
            if known is not None and not self._may_exist:
                raise StudyError(
                    f"load_if_exists=False, but the storage has a study {study.name!r} already, with {known.n_trials} "
                    "trials. Pass another study_name."
                )
            if known is not None and known.direction.name.lower() != study.objective.direction:
                raise StudyError(
                    f"The study {study.name!r} in the storage was made with "
                    f"direction={known.direction.name.lower()!r}, now {study.objective.direction!r}. Pass another "
                    "study_name."
                )
            trials = 0 if known is None else known.n_trials
            sampler = self._sampler or optuna.samplers.TPESampler(seed=(study.seed + trials) % 2**32)
            self._study = optuna.create_study(
                study_name=study.name,
                storage=storage,
                sampler=sampler,
                pruner=self._pruner,
                direction=optuna.study.StudyDirection[study.objective.direction.upper()],
                load_if_exists=True,
            )
        self._check_same_trials(study, records)
        given = "" if self._pruner_was_given else " (default; pruner='none' turns it off)"
        notes = [f"sampler {type(sampler).__name__}", f"pruner {type(self._pruner).__name__}{given}"]
        url = storage_url(storage)
        return [*notes, f"storage {url or type(storage).__name__}"]

    def describe(self) -> Mapping[str, Any]:
        """Return sampler, pruner and storage as `study.json` records them."""
        study = self.engine_study()
        return {
            "backend": self.name,
            "sampler": type(study.sampler).__name__,
            "pruner": type(study.pruner).__name__,
            "storage": storage_url(study._storage),
            "optuna_version": optuna.__version__,
        }

    def search(self, study: Study, runner: TrialRunner, listener: SearchListener) -> None:
        """Ask, run, tell, settle; until the total is reached or time is over."""
        engine = self.engine_study()
        with _quiet_optuna():
            self._recover(engine, study, runner)
            while self._counted(engine) < study.n_trials and not runner.is_out_of_time:
                if self._sampler_is_done:
                    break
                trial = OptunaTrial(engine.ask())
                trial.engine_trial.set_user_attr(_PROCESS, _this_process())
                try:
                    record = runner.run(trial)
                except TrialEndedSearch as ended:
                    self._tell(engine, trial.engine_trial, ended.record)
                    runner.settle(ended.record)
                    raise
                self._tell(engine, trial.engine_trial, record)
                runner.settle(record)

    def engine_study(self) -> optuna.Study:
        """Return the `optuna.Study`."""
        assert self._study is not None, "prepare() opens the study"
        return self._study

    def importances(self) -> dict[str, float]:
        """Return Optuna's parameter importances (PED-ANOVA); none of fewer than four complete trials."""
        complete = self.engine_study().get_trials(deepcopy=False, states=(EngineState.COMPLETE,))
        if len(complete) < 4:
            return {}
        with _quiet_optuna(), warnings.catch_warnings():
            warnings.simplefilter("ignore", category=UserWarning)
            try:
                found = optuna.importance.get_param_importances(self.engine_study())
            except (ValueError, RuntimeError, ZeroDivisionError):
                return {}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def dashboard_command(self) -> str | None:
        """Return the `optuna-dashboard` command for the study's storage, on the loopback address."""
        url = storage_url(self.engine_study()._storage)
        return None if url is None else f"{_dashboard_program()} --host 127.0.0.1 {shlex.quote(url)}"

    def _tell(self, engine: optuna.Study, trial: optuna.Trial, record: TrialRecord) -> None:
        for key, value in (
            (_STATE, record.state.value if record.state not in _ENGINE_STATES_THAT_SAY_IT_ALL else None),
            (_REASON, record.reason),
        ):
            if value is not None:
                trial.set_user_attr(key, value)
        if record.state is TrialState.INTERRUPTED:
            engine.enqueue_trial(trial.params)
        pruned = EngineState.PRUNED if record.state is TrialState.PRUNED else EngineState.FAIL
        try:
            if record.state.has_result:
                engine.tell(trial, record.value, state=EngineState.COMPLETE)
            else:
                engine.tell(trial, state=pruned)
        except RuntimeError as error:
            # A sampler that has tried everything (GridSampler) stops the study, which Optuna allows only in `optimize`.
            # The trial has been told all the same.
            if "Study.stop" not in str(error):
                raise
            self._sampler_is_done = True

    def _recover(self, engine: optuna.Study, study: Study, runner: TrialRunner) -> None:
        """Settle the trials that a killed process left running: done ones by their record, others run again."""
        on_disk = {record.number: record for record in study.read_records()}
        for trial in engine.get_trials(deepcopy=False, states=(EngineState.RUNNING,)):
            if _is_alive(trial.user_attrs.get(_PROCESS)):
                continue
            name, params = f"run-{trial.number}", dict(trial.params)
            lost = TrialRecord(trial.number, name, TrialState.INTERRUPTED, params, reason="its process died")
            record = on_disk.get(trial.number, lost)
            if record.state is TrialState.RUNNING:
                record = replace(record, state=lost.state, reason=lost.reason)
            self._tell(engine, optuna.Trial(engine, trial._trial_id), record)
            runner.recover(record)

    def _check_same_trials(self, study: Study, records: Sequence[TrialRecord]) -> None:
        """Refuse to go on if the storage and the folder hold different trials."""
        trials = self.engine_study().get_trials(deepcopy=False)
        place = storage_url(self.engine_study()._storage) or "in memory"
        stored = {trial.number for trial in trials if trial.state.is_finished()}
        running = {trial.number for trial in trials if trial.state is EngineState.RUNNING}
        on_disk = {record.number for record in records}
        for numbers, here, there in (
            (on_disk - stored - running, "the folder", "the storage"),
            (stored - on_disk, "the storage", "the folder"),
        ):
            if numbers:
                raise StudyError(
                    f"The study {study.name!r}: {here} has trials {sorted(numbers)[:5]} that {there} does not know "
                    f"(folder {str(study.folder)!r}, storage {place}). Pass the storage it was made with, or another "
                    "study_name."
                )

    @staticmethod
    def _counted(engine: optuna.Study) -> int:
        ended = (EngineState.COMPLETE, EngineState.PRUNED, EngineState.FAIL)
        return sum(not _is_interrupted(each) for each in engine.get_trials(deepcopy=False, states=ended))


_ENGINE_STATES_THAT_SAY_IT_ALL = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAILED)


def _as_pruner(pruner: Any) -> optuna.pruners.BasePruner:
    if isinstance(pruner, optuna.pruners.BasePruner):
        return pruner
    if isinstance(pruner, str) and pruner in PRUNERS:
        return PRUNERS[pruner]()
    raise StudyError(
        f"pruner must be an Optuna pruner or one of {one_of(PRUNERS)}, but got {pruner!r}."
        f"{nearest_name(str(pruner), PRUNERS)}"
    )


def _dashboard_program() -> str:
    """Return how to call the dashboard: by name if the shell finds it, else beside this interpreter."""
    beside = Path(sys.executable).with_name("optuna-dashboard")
    if shutil.which("optuna-dashboard") or not beside.exists():
        return "optuna-dashboard"
    return shlex.quote(os.path.relpath(beside))


def _is_interrupted(trial: FrozenTrial) -> bool:
    return trial.user_attrs.get(_STATE) == TrialState.INTERRUPTED.value


def _this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _is_alive(process: str | None) -> bool:
    """Tell whether a process is still there; one on another machine is taken to be."""
    if process is None:
        return False
    host, _, number = process.rpartition(":")
    if host != socket.gethostname():
        return True
    if int(number) == os.getpid():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Silence Optuna's own log lines and experimental warnings: progress is shown by our listeners."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)
