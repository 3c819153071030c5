"""The trainer of one trial where it is transformers' own, or derived from that: trained through its public methods.

It needs only callbacks, which every `transformers.Trainer` takes, and replaces none of its methods.
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers.trainer_utils import sort_checkpoints

from ..errors import ArgumentError, CheckpointError
from ..search.metrics.known_trainers import LIBRARIES_OF_TRAINERS, is_rewarded
from ..search.trial import Trial
from ..system.checkpoint_files import STATE_FILE, TRIAL_FILE
from ..system.files import read_json, remove_folder, sync_tree, write_json
from ..system.json_types import JsonObject
from ..system.progress_bars import no_progress_bars
from ..training import flops, weights
from ..training.acceleration import forget_loader
from ..training.callbacks import (
    DefaultFlowCallback,
    TrainerCallback,
    TrainerState,
    is_display,
    is_of_package,
    make_tracker,
    restore_callbacks,
)
from ..training.evaluation import checked_metrics
from ..training.trackers import OURS, end_trial
from ..training.unrelated_errors import is_of_outside
from ..trial.reporting_callback import ReportingCallback
from .exact_resume import ExactResume

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainingArguments

_ENVIRONMENT = ("ACCELERATE_", "FSDP_")  # what transformers sets for accelerate


class TransformersTrainer:
    """A `transformers.Trainer` that trains one trial of a search.

    A checkpoint is complete once it holds the file that records the trial, which is written last; that file is empty
    in a checkpoint of weights only.

    Args:
        trainer: made for the trial, and not trained yet.
        trial: the trial.
        output_dir: the folder of its run.
        environment: the variables of the environment before the trainer was made; `release` puts back those that
            transformers sets for accelerate.
    """

    def __init__(
        self, trainer: transformers.Trainer, trial: Trial, output_dir: str, environment: Mapping[str, str]
    ) -> None:
        self._trainer: Any = trainer
        self._environment = dict(environment)
        self._relay: _Relay | None = None
        self._exact: ExactResume | None = None
        args = self.args = trainer.args
        args.output_dir, args.run_name = output_dir, Path(output_dir).name
        args.save_total_limit = None  # the search decides which checkpoints stay
        self.eval_dataset = trainer.eval_dataset
        _be_quiet(trainer)
        trackers = _take_trackers(trainer)
        trainer.add_callback(_NamesTrial(trial))
        for tracker in trackers:
            trainer.add_callback(tracker)

    def with_arguments(self, **parameters: object) -> TransformersTrainer:
        """Refuse: the trainer has been made.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(f"{sorted(parameters)} cannot be set: make_trainer(trial) has made the trainer.")

    def add_callback(self, callback: ReportingCallback) -> None:
        """Add the callback that reports, last of all: it marks a checkpoint as whole."""
        self._exact, self._relay = ExactResume(self._trainer), _Relay(callback, self._trainer.store_flos)
        self._trainer.add_callback(_Turn(self._relay, of_others=False))
        self._trainer.add_callback(self._exact)
        self._trainer.add_callback(self._relay)
        self._trainer.callback_handler.callbacks.insert(0, _Turn(self._relay, of_others=True))

    def train(self, resume_from_checkpoint: object = None, *, reapply_arguments: bool = False) -> None:
        """Train to completion, or until a callback stops it; a trial that is complete is not trained further.

        Raises:
            CheckpointError: the checkpoint cannot be resumed from.
            Exception: as it is, where memory, disk, another process or a callback has failed.
        """
        trainer = self._trainer
        if trainer.is_world_process_zero():
            for folder in _checkpoints(Path(self.args.output_dir)):
                if not (folder / TRIAL_FILE).is_file():
                    remove_folder(folder)  # the process died while it was written
        trainer.accelerator.wait_for_everyone()
        with no_progress_bars():
            self._train(resume_from_checkpoint, reapply_arguments)

    def _train(self, resume_from_checkpoint: Any, reapply_arguments: bool) -> None:
        trainer = self._trainer
        if resume_from_checkpoint is None:
            trainer.train()
            return
        if reapply_arguments:
            raise CheckpointError(f"{str(resume_from_checkpoint)!r} was written with other arguments.")
        try:
            state = TrainerState.load_from_json(str(Path(resume_from_checkpoint, STATE_FILE)))
            reported = read_json(Path(resume_from_checkpoint, TRIAL_FILE)) or {}
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(f"{str(resume_from_checkpoint)!r} cannot be read: {error}.") from error
        restore_callbacks(trainer.callback_handler.callbacks, state.stateful_callbacks)
        relay, exact = self._relay, self._exact
        assert relay is not None
        assert exact is not None
        restore_callbacks([relay.reporting], {type(relay.reporting).__name__: reported})
        if relay.reporting.is_at_its_end:
            trainer.state = state
            relay.reporting.on_train_begin(self.args, state, trainer.control)
            self._load(Path(resume_from_checkpoint))
            return
        if self._is_loaded_as_usual:
            weights.check_fits(self._core, resume_from_checkpoint)
        self.args.eval_on_start = False  # it was made at the start
        exact.resume_from(Path(resume_from_checkpoint))
        relay.when_it_begins = lambda: self._load(Path(resume_from_checkpoint))  # transformers itself is not strict
        try:
            trainer.train(resume_from_checkpoint=str(resume_from_checkpoint))
        except Exception as error:
            if relay.has_begun or relay.is_turn_of_others or is_of_outside(error):
                raise
            raise CheckpointError(f"{str(resume_from_checkpoint)!r} cannot be resumed from: {error}") from error

    def evaluate(self, eval_dataset: object = None) -> dict[str, float]:
        """Evaluate the model that was trained; default: on the trainer's own evaluation data."""
        given = () if eval_dataset is None else (eval_dataset,)  # a trainer of another class may take none
        return dict(self._trainer.evaluate(*given))

    def evaluate_weights(self, folder: Path, dataset: object, prefix: str) -> dict[str, float]:
        """Load the weights that a trainer wrote into a folder, and evaluate them on a dataset.

        Raises:
            CheckpointError: they cannot be loaded, or are of another model.
        """
        self._load(folder)
        return dict(self._trainer.evaluate(dataset, metric_key_prefix=prefix))

    def operations_so_far(self) -> float:
        """Return the floating-point operations of the training run up to now; 0 if they are not known."""
        trainer = self._trainer
        count = getattr(trainer.floating_point_ops, "__func__", None)
        samples = flops.samples_so_far(trainer.state, self.args, trainer.callback_handler.train_dataloader)
        is_own_count = count is not transformers.Trainer.floating_point_ops
        return flops.operations_so_far(trainer.state, self._core, samples, is_own_count)

    @property
    def skips(self) -> str | None:
        """Why it cannot train a step only to try it; None: it can."""
        kind = type(self._trainer)
        return f"the rewards of a {kind.__name__} may come from another service" if is_rewarded(kind) else None

    def prepare_preflight(self) -> list[TrainerCallback]:
        """Take off what a single step does without, all callbacks but those of the trainer's own library included.

        Return the callbacks of the user among them.
        """
        trainer, args = self._trainer, self.args
        callbacks = list(trainer.callback_handler.callbacks)
        known = ("hpsearch", "transformers", *LIBRARIES_OF_TRAINERS)
        left_out = [each for each in callbacks if not is_of_package(each, *known)]
        for callback in callbacks:
            is_needed = is_of_package(callback, *LIBRARIES_OF_TRAINERS) or isinstance(callback, DefaultFlowCallback)
            if not is_needed:
                trainer.remove_callback(callback)
        if trainer.compute_metrics is not None and not args.batch_eval_metrics:
            trainer.compute_metrics = _checked(trainer.compute_metrics)
        args.report_to, args.eval_on_start, args.load_best_model_at_end = [], False, False
        args.dataloader_num_workers, args.dataloader_persistent_workers = 0, False
        args.dataloader_prefetch_factor = None
        return left_out

    def capture_weights(self) -> dict[str, torch.Tensor]:
        """Return a copy, on the host, of the weights that `save_weights` writes: of a PEFT model the trained ones."""
        return {name: each.detach().to("cpu", copy=True) for name, each in self._weights().items()}

    def save_weights(self, folder: str | Path, state_dict: Mapping[str, torch.Tensor] | None = None) -> None:
        """Write the model as its trainer does, with its present weights or those captured earlier."""
        now = None if state_dict is None else self.capture_weights()
        self._put_back(state_dict)
        try:
            with no_progress_bars():
                self._trainer.save_model(str(folder))
        finally:
            self._put_back(now)
        write_json(Path(folder, TRIAL_FILE), {})

    def load_model(self, folder: Path) -> torch.nn.Module:
        """Return the model with the weights that its trainer wrote into a folder, in evaluation mode.

        On the host, unless the model was placed by `device_map` or is quantized: then it stays where it is.

        Raises:
            CheckpointError: they cannot be loaded, or are of another model.
        """
        self._load(folder)
        model = self._core
        stays = getattr(model, "hf_device_map", None) or getattr(model, "is_quantized", False)
        return (model if stays else model.to("cpu")).eval()

    def end_trackers(self, state: str, reason: str | None) -> None:
        """Report to the experiment trackers how the trial ended."""
        end_trial(self._trainer.callback_handler.callbacks, state, reason)

    def release(self) -> None:
        """Drop the trainer and all that it has made."""
        trainer, self._trainer, self._relay, self._exact = self._trainer, None, None, None
        if trainer is None:
            return
        end_trial(trainer.callback_handler.callbacks, "failed")  # nothing else has notified them
        handler = trainer.callback_handler
        for loader in (handler.train_dataloader, handler.eval_dataloader):
            forget_loader(loader)
        for held in ("_models", "_optimizers", "_schedulers", "_dataloaders"):
            setattr(trainer.accelerator, held, [])
        trainer.model = trainer.model_wrapped = trainer.optimizer = trainer.lr_scheduler = None
        handler.model = handler.optimizer = handler.lr_scheduler = None
        handler.train_dataloader = handler.eval_dataloader = None
        self.eval_dataset = None
        del trainer, handler
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        for name in [each for each in os.environ if each.startswith(_ENVIRONMENT)]:
            if name not in self._environment:
                del os.environ[name]
        os.environ.update({name: each for name, each in self._environment.items() if name.startswith(_ENVIRONMENT)})

    @property
    def _is_loaded_as_usual(self) -> bool:
        return type(self._trainer)._load_from_checkpoint is transformers.Trainer._load_from_checkpoint

    @property
    def _core(self) -> Any:
        return self._trainer.accelerator.unwrap_model(self._trainer.model, keep_torch_compile=False)

    def _weights(self) -> dict[str, torch.Tensor]:
        core = self._core
        is_adapted = hasattr(core, "peft_config")
        named = {name: each for name, each in core.named_parameters() if each.requires_grad or not is_adapted}
        return {**named, **dict(core.named_buffers())}

    def _put_back(self, captured: Mapping[str, torch.Tensor] | None) -> None:
        present = self._weights() if captured is not None else {}
        with torch.no_grad():
            for name, each in (captured or {}).items():
                present[name].copy_(each)

    def _load(self, folder: Path) -> None:
        """Load weights, all of them; where a class has a way of its own of writing them, in its way."""
        if self._is_loaded_as_usual:
            weights.load_weights(self._core, folder)
            return
        try:
            self._trainer._load_from_checkpoint(str(folder))
        except Exception as error:
            if is_of_outside(error):
                raise
            raise CheckpointError(f"The weights in {str(folder)!r} cannot be loaded: {error}") from error


def _checked(compute_metrics: Callable[..., object]) -> Callable[..., dict[str, object]]:
    """Return the same function with a clear error if it returns no dict."""
    return functools.wraps(compute_metrics)(lambda *given, **named: checked_metrics(compute_metrics(*given, **named)))


class _NamesTrial(TrainerCallback):
    """Names the trial and its search for the trackers."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Note the trial in the state, where transformers' own search notes it."""
        state.is_hyper_param_search = True
        state.trial_name = self._trial.name
        state.trial_params = dict(self._trial.params.values_by_name)


class _Relay(TrainerCallback):
    """Passes the events of a run on to the callback that reports, and leaves its state in every checkpoint.

    transformers would make a callback that keeps state anew when a run resumes, from nothing; not this one.

    Args:
        reporting: the callback that reports.
        store_operations: adds the operations that were counted since the last call to the trainer's state.
    """

    def __init__(self, reporting: ReportingCallback, store_operations: Callable[[], None]) -> None:
        self.reporting, self._store_operations = reporting, store_operations
        self.when_it_begins: Callable[[], None] = lambda: None
        self.has_begun = self.is_turn_of_others = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.when_it_begins()
        self.reporting.on_train_begin(args, state, control, **kwargs)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Note that all of a checkpoint has been read."""
        self.has_begun = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> object:
        return self.reporting.on_step_end(args, state, control, **kwargs)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.reporting.on_prediction_step(args, state, control, **kwargs)

    on_substep_end = on_prediction_step

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> object:
        self._store_operations()  # transformers does so only before it logs and saves
        return self.reporting.on_evaluate(args, state, control, **kwargs)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> object:
        return self.reporting.on_epoch_end(args, state, control, **kwargs)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        """Record the trial in the checkpoint, which completes it, and pass the event on."""
        if state.is_world_process_zero:
            checkpoint = Path(args.output_dir, f"checkpoint-{state.global_step}")
            sync_tree(checkpoint)
            write_json(checkpoint / TRIAL_FILE, self.reporting.state())
        self.reporting.on_save(args, state, control, **kwargs)


class _Turn(TrainerCallback):
    """Notes whose callbacks come next, until training has begun: those of the user, or ours, which read."""

    def __init__(self, relay: _Relay, of_others: bool) -> None:
        self._relay, self._of_others = relay, of_others

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._relay.is_turn_of_others = self._of_others

    on_epoch_begin = on_step_begin = on_train_begin


def _be_quiet(trainer: transformers.Trainer) -> None:
    """Take off what prints, and what listens to signals: the search does both."""
    present = trainer.callback_handler.callbacks
    for callback in list(present):
        if is_display(callback) or type(callback).__name__ == "JITCheckpointCallback":
            trainer.remove_callback(callback)


def _take_trackers(trainer: transformers.Trainer) -> list[object]:
    """Take off the trackers, and return those to put in their place: ours know where a trial begins and ends.

    One that was given a writer of its own stays.
    """
    present = trainer.callback_handler.callbacks
    found = [each for each in present if type(each) in OURS and getattr(each, "tb_writer", None) is None]
    for tracker in found:
        trainer.remove_callback(tracker)
    return [make_tracker(type(each), trainer.args) for each in found]


def resumable_checkpoints(folder: Path) -> list[Path]:
    """Return the whole checkpoints in a folder that hold more than weights, newest first."""
    needed = (TRIAL_FILE, STATE_FILE, "optimizer.pt", "scheduler.pt")
    return [each for each in _checkpoints(folder) if all((each / name).is_file() for name in needed)]


def read_state(checkpoint: Path) -> JsonObject:
    """Return the trainer state of a checkpoint, with what it records of the trial; empty if it cannot be read."""
    try:
        state, reported = read_json(checkpoint / STATE_FILE), read_json(checkpoint / TRIAL_FILE)
    except (OSError, ValueError):
        return {}
    return {**(state or {}), "stateful_callbacks": {ReportingCallback.__name__: reported}}


def _checkpoints(folder: Path) -> list[Path]:
    return [Path(each) for each in sort_checkpoints(str(folder))][::-1] if folder.is_dir() else []
