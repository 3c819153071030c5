"""The callback vocabulary of transformers, and the handler that calls callbacks cheaply.

Callbacks written for the transformers Trainer work unchanged. Knows nothing of models or searches.
"""

from __future__ import annotations

import copy
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import (
    DefaultFlowCallback,
    EarlyStoppingCallback,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from transformers.integrations import TensorBoardCallback, get_reporting_integration_callbacks
from transformers.trainer_callback import CallbackHandler as _TransformersCallbackHandler
from transformers.trainer_callback import ExportableState
from transformers.utils import is_in_notebook

from ..arguments import TrainingArguments
from ..errors import ArgumentError, MissingPackageError
from .trackers import OURS

__all__ = [
    "CallbackHandler",
    "CheckpointOnTermination",
    "DefaultFlowCallback",
    "EarlyStoppingCallback",
    "ExportableState",
    "PrinterCallback",
    "ProgressCallback",
    "TrainerCallback",
    "TrainerControl",
    "TrainerState",
    "check_early_stopping",
    "copy_for_new_trainer",
    "default_callbacks",
    "is_display",
    "make_tracker",
    "restore_callbacks",
]


def default_callbacks(args: TrainingArguments) -> list[TrainerCallback]:
    """Return fresh default callbacks: the flow, the trackers in `report_to`, and, last, what shows the progress.

    That is a bar, in a notebook transformers' bar and table, and with `disable_tqdm` a printer.
    """
    terminated = [CheckpointOnTermination()] if args.enable_jit_checkpoint else []
    names = [args.report_to] if isinstance(args.report_to, str) else args.report_to or []
    trackers = [_tracker(name, args) for name in names if name != "none"]
    return [DefaultFlowCallback(), *trackers, *terminated, _display(args)]


def _display(args: TrainingArguments) -> TrainerCallback:
    if args.disable_tqdm:
        return PrinterCallback()
    if not is_in_notebook():
        return ProgressCallback()
    from .notebook_progress import NotebookProgress  # it imports IPython

    return NotebookProgress()


def is_display(callback: object) -> bool:
    """Return whether a callback shows the progress: as a printer, as a bar, or as transformers' table in a notebook."""
    is_of_notebook = any(each.__name__ == "NotebookProgressCallback" for each in type(callback).__mro__)
    return is_of_notebook or isinstance(callback, (PrinterCallback, ProgressCallback))


def _tracker(name: str, args: TrainingArguments) -> TrainerCallback:
    [kind] = get_reporting_integration_callbacks([name])
    try:
        return make_tracker(kind, args)
    except (RuntimeError, ImportError, ValueError) as error:
        raise MissingPackageError(f"report_to={name!r} cannot be used: {error}") from error


def make_tracker(kind: type, args: object) -> TrainerCallback:
    """Return the tracker in place of transformers' `kind`: one that knows trials, where there is one."""
    tracker: TrainerCallback = OURS.get(kind, kind)()
    folder = getattr(args, "tensorboard_logging_dir", None)  # an argument of ours
    if isinstance(tracker, TensorBoardCallback) and folder is not None:
        tracker.logging_dir = os.path.expanduser(folder)
    return tracker


class CheckpointOnTermination(TrainerCallback):
    """Writes a checkpoint and stops the training when the process is asked to end (SIGTERM): `enable_jit_checkpoint`.

    The current optimizer step is finished first; ``train(resume_from_checkpoint=True)`` continues after it. With
    several processes all stop after the same update. Only a program's main thread may listen to signals; training in
    another one is refused.
    """

    def __init__(self) -> None:
        self._is_terminated = False
        self._earlier: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Listen to SIGTERM."""
        if threading.current_thread() is not threading.main_thread():
            raise ArgumentError(
                "enable_jit_checkpoint=True listens to SIGTERM, so train() must run in the main thread."
            )
        self._is_terminated = False
        self._earlier = signal.signal(signal.SIGTERM, self._remember)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Save and stop, if the signal has come to any process."""
        if args.world_size > 1:
            flag = torch.tensor(int(self._is_terminated), device=args.device)
            torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
            self._is_terminated = bool(flag)
        if self._is_terminated:
            control.should_save = control.should_training_stop = True

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Leave out the evaluation at the epoch's end, for which there may be no time; a resumed run makes it."""
        if self._is_terminated:
            control.should_evaluate = control.should_save = control.should_log = False

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Listen no longer."""
        self.close()

    def close(self) -> None:
        """Give the signal back to whom it belonged."""
        if self._earlier is not None:
            signal.signal(signal.SIGTERM, self._earlier)
            self._earlier = None

    def _remember(self, signum: int, frame: object) -> None:
        self._is_terminated = True


def is_of_package(callback: object, *packages: str) -> bool:
    """Return whether the class of a callback comes from one of these packages."""
    return type(callback).__module__.partition(".")[0] in packages


def check_early_stopping(callbacks: Iterable[object], args: TrainingArguments, searched: Collection[str] = ()) -> None:
    """Check that early stopping has evaluations, and a metric to compare: else it ends each training run with an error.

    Args:
        callbacks: those of a trainer. One that checks its arguments in a way of its own is not checked here.
        args: of the trainer.
        searched: the names of arguments that each trial sets.

    Raises:
        ArgumentError: it has not.
    """
    for callback in callbacks:
        own = getattr(type(callback), "on_train_begin", None)
        if not isinstance(callback, EarlyStoppingCallback) or own is not EarlyStoppingCallback.on_train_begin:
            continue
        name = type(callback).__name__
        if args.metric_for_best_model is None and "metric_for_best_model" not in searched:
            raise ArgumentError(
                f"{name} compares metric_for_best_model, which is None. Set it in the training arguments, such as "
                "metric_for_best_model='loss' with greater_is_better=False."
            )
        if args.eval_strategy == "no" and "eval_strategy" not in searched:
            raise ArgumentError(f"{name} needs evaluations: eval_strategy is 'no'; set it to 'epoch' or 'steps'.")


def copy_for_new_trainer(callback: TrainerCallback) -> TrainerCallback:
    """Return the callback for a trainer made by `with_arguments`: a copy if the callback keeps state, else itself.

    A callback keeps state if it declares so (`ExportableState`), like the patience counter of early stopping.
    """
    return copy.deepcopy(callback) if isinstance(callback, ExportableState) else callback


def restore_callbacks(
    callbacks: Iterable[TrainerCallback], stored: Mapping[str, object], with_arguments: bool = False
) -> None:
    """Give callbacks that keep state (early stopping's patience) the state they had at a checkpoint.

    Args:
        callbacks: of a run.
        stored: `stateful_callbacks` of the checkpoint's trainer state.
        with_arguments: also put back what they were constructed with.
    """
    present = list(callbacks)
    for name, saved in stored.items():
        same_kind = [each for each in present if type(each).__name__ == name]
        states = saved if isinstance(saved, list) else [saved]  # transformers leaves those of the beginning in front
        for callback, state in zip(same_kind, states[-len(same_kind) :] if same_kind else [], strict=False):
            arguments = state["args"] if with_arguments else {}
            for attribute, value in {**arguments, **state["attributes"]}.items():
                setattr(callback, attribute, value)


class CallbackHandler(_TransformersCallbackHandler):
    """Calls, for every event, the callbacks that define it, in order.

    Same behaviour as transformers' handler; an event that no callback defines costs a dictionary look-up.
    """

    def __init__(self, callbacks: list[TrainerCallback], model: torch.nn.Module, processing_class: object) -> None:
        self._listeners: dict[str, list[Callable[..., object]]] = {}
        super().__init__(callbacks, model, processing_class, None, None)

    def add_callback(self, callback: object) -> None:
        """Add a callback, class or instance."""
        self._listeners.clear()
        super().add_callback(callback)

    def pop_callback(self, callback: object) -> TrainerCallback | None:
        """Remove and return the first match of a class or instance; None if there is none."""
        self._listeners.clear()
        return super().pop_callback(callback)

    def remove_callback(self, callback: object) -> None:
        """Remove the first match of a class or instance."""
        self._listeners.clear()
        super().remove_callback(callback)

    def call_event(
        self, event: str, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> TrainerControl:
        """Call `event` on every callback that defines it and return the control they leave."""
        listeners = self._listeners.get(event)
        if listeners is None:
            listeners = self._listeners[event] = self._defining(event)
        for listener in listeners:
            result = listener(
                args,
                state,
                control,
                model=self.model,
                processing_class=self.processing_class,
                optimizer=self.optimizer,
                lr_scheduler=self.lr_scheduler,
                train_dataloader=self.train_dataloader,
                eval_dataloader=self.eval_dataloader,
                **kwargs,
            )
            if result is not None:
                control = _checked_control(result, listener)
        return control

    def release(self) -> None:
        """Let go of the model, the optimizer and the loaders."""
        self.model = self.optimizer = self.lr_scheduler = None
        self.train_dataloader: DataLoader[object] | None = None
        self.eval_dataloader: DataLoader[object] | None = None

    def _defining(self, event: str) -> list[Callable[..., object]]:
        undefined = getattr(TrainerCallback, event)
        methods = [getattr(callback, event) for callback in self.callbacks]
        return [method for method in methods if getattr(method, "__func__", method) is not undefined]


def _checked_control(result: object, listener: Callable[..., object]) -> TrainerControl:
    if not isinstance(result, TrainerControl):
        raise TypeError(
            f"{listener.__qualname__} returned {result!r}; a callback must return the TrainerControl that it "
            "received, or None."
        )
    return result
