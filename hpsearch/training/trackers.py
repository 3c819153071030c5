"""The trackers in `report_to`; in a search every trial is a separate run, with its name and folder, grouped by study.

Outside a search they are transformers' own. In a search, a run lasts as long as its trial: it begins with
the training, receives a later evaluation too, and ends when `end_trial` reports the end of the trial. Settings from the
environment (W&B's group, folder and project, MLflow's store and experiment, TensorBoard's folder) are respected.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from transformers.integrations import MLflowCallback, TensorBoardCallback, WandbCallback

from ..system.files import read_json, write_json

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

logger = logging.getLogger(__name__)

TRACKERS_FILE = "trackers.json"
FAILED, INTERRUPTED = "failed", "interrupted"
_MLFLOW_STATUS = {FAILED: "FAILED", INTERRUPTED: "KILLED"}
_WANDB_EXIT_CODE = {FAILED: 1, INTERRUPTED: 255}


@dataclass(frozen=True)
class TrackedTrial:
    """A trial of a search as its trackers know it.

    Attributes:
        folder: ``<output_dir>/<study>/<name>``; its `trackers.json` names the runs, so that a trial that is continued
            continues in them.
        params: its parameters.
    """

    folder: Path
    params: Mapping[str, object]

    @classmethod
    def of(cls, args: TrainingArguments, state: TrainerState) -> TrackedTrial | None:
        """Return the trial that a run is; None if it is not one of a search."""
        folder = Path(args.output_dir).absolute()
        is_one = state.is_hyper_param_search and state.trial_name == folder.name
        return cls(folder, state.trial_params or {}) if is_one else None

    @property
    def name(self) -> str:
        """The name of its runs."""
        return self.folder.name

    @property
    def study(self) -> str:
        """The name of its study."""
        return self.folder.parent.name

    def earlier_run(self, tracker: str) -> str | None:
        """Return the id of the run that a tracker began for this trial before; None if there is none."""
        return (read_json(self.folder / TRACKERS_FILE) or {}).get(tracker)

    def remember_run(self, tracker: str, run: str) -> None:
        """Note the id of the run of a tracker."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / TRACKERS_FILE, {**(read_json(self.folder / TRACKERS_FILE) or {}), tracker: run})


class Tracker:
    """The common base of the trackers: the trial they are open for, and its end."""

    trial: TrackedTrial | None = None

    def end_trial(self, state: str, reason: str | None = None) -> None:
        """Note how the trial ended and close its run; nothing if there is none open."""
        if self.trial is not None:
            try:
                self._end(state, reason)
            finally:
                self.trial = None

    def _end(self, state: str, reason: str | None) -> None:
        raise NotImplementedError


class TensorBoardTracker(TensorBoardCallback, Tracker):
    """Writes a trial's events into its folder, so that ``tensorboard --logdir <study>`` shows the trials by name.

    A folder that users name (TENSORBOARD_LOGGING_DIR, `tensorboard_logging_dir`) gets ``<study>/<trial>`` inside. The
    parameters are there as hyperparameters.
    """

    logging_dir: str | None
    tb_writer: Any

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Open the files, and write down the parameters of a trial."""
        self.trial = trial = TrackedTrial.of(args, state)
        if trial is not None:
            self._folder = trial.folder
            if self.logging_dir is not None:
                self._folder = Path(self.logging_dir, trial.study, trial.name)
        super().on_train_begin(args, state, control, **kwargs)
        if trial is not None and self.tb_writer is not None:
            plain = {
                name: value if isinstance(value, (bool, int, float, str)) else str(value)
                for name, value in trial.params.items()
            }
            _, begin, self._session_end = _hparams(plain)
            self.tb_writer.file_writer.add_summary(begin)
            self.tb_writer.flush()

    def _init_summary_writer(self, args: object) -> None:
        if self.trial is not None:
            self.logging_dir = str(self._folder)
        super()._init_summary_writer(args)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Close the files, unless there is a trial, which may still be evaluated."""
        if self.trial is None:
            super().on_train_end(args, state, control, **kwargs)

    def _end(self, state: str, reason: str | None) -> None:
        if self.tb_writer is not None:
            if state not in (FAILED, INTERRUPTED):
                self.tb_writer.file_writer.add_summary(self._session_end)
            self.tb_writer.close()
            self.tb_writer = None


class MLflowTracker(MLflowCallback, Tracker):
    """Makes a trial a run of MLflow, in the experiment that users chose, else in one named as the study.

    Inside a run that is open already it is a nested one.
    """

    _asks_for_nested_run = False

    @property
    def _nested_run(self) -> bool:
        """Whether `setup` shall begin a run inside the present one, which of a trial is its own."""
        return self._asks_for_nested_run and self.trial is None

    @_nested_run.setter
    def _nested_run(self, value: bool) -> None:
        self._asks_for_nested_run = value

    def setup(self, args: TrainingArguments, state: TrainerState, model: object) -> None:
        """Begin the run, and log the arguments and a trial's parameters."""
        trial = TrackedTrial.of(args, state) if state.is_world_process_zero else None
        if trial is not None:
            self._run = self._begin(trial)
            self.trial = trial
            trial.remember_run("mlflow", self._run)
            others = {name: value for name, value in trial.params.items() if not hasattr(args, name)}
            self._ml_flow.log_params(others, synchronous=False)
        super().setup(args, state, model)

    def _begin(self, trial: TrackedTrial) -> str:
        """Continue the trial's earlier run if there is one in this store; else begin one."""
        mlflow, earlier = self._ml_flow, trial.earlier_run("mlflow")
        if earlier is not None and "MLFLOW_RUN_ID" not in os.environ:
            with contextlib.suppress(mlflow.MlflowException):
                return str(mlflow.start_run(run_id=earlier, nested=True).info.run_id)
        tags = {"hpsearch.study": trial.study, "hpsearch.trial": trial.name, "hpsearch.folder": str(trial.folder)}
        experiment = _experiment(mlflow, trial.study)
        run = mlflow.start_run(experiment_id=experiment, run_name=trial.name, nested=True, tags=tags)
        return str(run.info.run_id)

    def _end(self, state: str, reason: str | None) -> None:
        mlflow = self._ml_flow
        active = mlflow.active_run()
        if active is not None and active.info.run_id == self._run:
            mlflow.flush_async_logging()
            mlflow.set_tags({"hpsearch.state": state, **({} if reason is None else {"hpsearch.reason": reason})})
            mlflow.end_run(_MLFLOW_STATUS.get(state, "FINISHED"))


class WandbTracker(WandbCallback, Tracker):
    """Makes a trial a run of W&B, with its files in the trial's folder and the study as its group.

    One process has one run: a run that is open when a trial begins is finished, as transformers does.
    """

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: object = None,
        **kwargs: object,
    ) -> None:
        """Begin the run; the arguments stay as they are."""
        trial = TrackedTrial.of(args, state)
        if trial is None:
            super().on_train_begin(args, state, control, model=model, **kwargs)
            return
        if state.is_world_process_zero:
            self._run = self._begin(trial)
            self.trial = trial
        self.setup(args, state, model, **kwargs)

    def _begin(self, trial: TrackedTrial) -> object:
        """Begin the trial's run, or continue the one it had before."""
        self._wandb.finish()
        earlier = trial.earlier_run("wandb")
        run = self._wandb.init(
            project=os.getenv("WANDB_PROJECT", "huggingface"),
            group=os.getenv("WANDB_RUN_GROUP", trial.study),
            dir=os.getenv("WANDB_DIR", str(trial.folder)),
            name=trial.name,
            id=earlier or secrets.token_hex(4),
            resume=None if earlier is None else "allow",
            config=dict(trial.params),
        )
        trial.remember_run("wandb", run.id)
        return run

    def _end(self, state: str, reason: str | None) -> None:
        if self._wandb.run is self._run:
            self._run.summary.update(
                {"hpsearch/state": state, **({} if reason is None else {"hpsearch/reason": reason})}
            )
            self._run.finish(exit_code=_WANDB_EXIT_CODE.get(state, 0))


OURS: dict[type, type] = {
    TensorBoardCallback: TensorBoardTracker,
    MLflowCallback: MLflowTracker,
    WandbCallback: WandbTracker,
}


def end_trial(callbacks: Iterable[object], state: str, reason: str | None = None) -> None:
    """Notify the trackers among `callbacks` of the end of their trial; a failing tracker does not end a search.

    Args:
        callbacks: of a run.
        state: "complete", "pruned", "failed", "interrupted" and so on.
        reason: why.
    """
    for tracker in callbacks:
        if isinstance(tracker, Tracker):
            try:
                tracker.end_trial(state, reason)
            except Exception as error:
                logger.warning("%s could not end the run of a trial: %s", type(tracker).__name__, error)


def _hparams(params: Mapping[str, object]) -> tuple[object, object, object]:
    """Return TensorBoard's summaries of hyperparameters: the columns, the beginning and the end of a session.

    Of the two packages that write events, the one that `TensorBoardCallback` takes.
    """
    try:
        package = importlib.import_module("torch.utils.tensorboard.summary")
    except ImportError:
        package = importlib.import_module("tensorboardX.summary")
    return package.hparams(params, {})


def _experiment(mlflow: ModuleType, study: str) -> str | None:
    """Return the id of the experiment for a trial; None if MLflow finds it, as users chose one.

    They choose it in the environment, where `mlflow.set_experiment` writes it too, or by a run that is open.
    """
    active = mlflow.active_run()
    if active is not None:
        return str(active.info.experiment_id)
    if os.getenv("MLFLOW_EXPERIMENT_ID") and not os.getenv("MLFLOW_EXPERIMENT_NAME"):
        return None
    name = os.getenv("MLFLOW_EXPERIMENT_NAME") or study
    known = mlflow.get_experiment_by_name(name)
    if known is None:
        with contextlib.suppress(mlflow.MlflowException):  # another process may be faster
            mlflow.create_experiment(name)
        known = mlflow.get_experiment_by_name(name)
    return str(known.experiment_id)
