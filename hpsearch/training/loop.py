"""The training loop: epochs, updates, micro-batches, callbacks. Reads from top to bottom."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch.utils.data import DataLoader
from transformers.trainer_utils import SaveStrategy, TrainOutput, has_length, speed_metrics

from . import best_model, checkpoints, hub
from .batches import as_many_as_every_process, close, group_into_updates
from .checkpoints import LastUpdate, Position
from .data import TrainingLength
from .evaluation import set_mode
from .hooks import Batch, Hooks, takes_argument
from .optimization import current_learning_rate, follows_a_metric
from .randomness import RandomStreams
from .resume import ResumePoint, load_optimization
from .resume_epoch import resume_epoch, start_epoch
from .tokens import track_input_tokens

if TYPE_CHECKING:
    from .run import TrainingRun

logger = logging.getLogger(__name__)


def train(trainer: Hooks, resume: ResumePoint | None, ignore_keys: list[str] | None) -> TrainOutput:
    """Train the trainer's run to its end, or until a callback stops it."""
    run = trainer.run
    hub.prepare(trainer)
    loader = trainer.get_train_dataloader()
    length = TrainingLength.of(run.args, loader)
    try:
        run.prepare_for_training(trainer, length)
        run.callback_handler.train_dataloader = loader
        if resume is not None:
            run.restore(resume, length)
            load_optimization(run, resume.folder)
        _announce(run, length)

        run.begin_training(trainer)
        set_mode(run, training=True)
        run.zero_grad()
        run.control = run.callback_handler.on_train_begin(run.args, run.state, run.control)
        if run.args.eval_on_start and resume is None:
            _evaluate(trainer, ignore_keys, step_schedule=False)
        is_trained = run.state.global_step >= length.max_steps
        if is_trained and resume is not None and resume.position is not None and not run.position.epoch_finished:
            _end_last_epoch(trainer, length, resume, ignore_keys)
        is_done = is_trained or run.control.should_training_stop
        for epoch in () if is_done else range(_first_epoch(run.position), length.num_epochs):
            _train_epoch(trainer, loader, length, epoch, resume, ignore_keys)
            resume = None
            if run.control.should_training_stop:
                break
        return _finish(trainer, length)
    finally:
        run.end_training()


def _train_epoch(
    trainer: Hooks,
    loader: DataLoader[object],
    length: TrainingLength,
    epoch: int,
    resume: ResumePoint | None,
    ignore_keys: list[str] | None,
) -> None:
    """Train on one pass over the data, or on the rest of it after resuming."""
    run = trainer.run
    seen = _batches_to_skip(run, epoch, resume)
    run.refresh_parameters()
    run.position = Position(epoch, seen)
    run.control = run.callback_handler.on_epoch_begin(run.args, run.state, run.control)
    batches = _start_batches(run, loader, epoch, seen, resume)
    is_empty = seen == 0
    try:
        remaining = length.updates_per_epoch - seen // run.args.gradient_accumulation_steps
        shared = batches
        if run.accelerator.num_processes > 1 and not has_length(loader):
            shared = as_many_as_every_process(batches, run.args.gradient_accumulation_steps, run.accelerator)
        for micro_batches, items, place in group_into_updates(trainer, shared, seen, remaining):
            is_empty = False
            if _update(trainer, micro_batches, items, length, Position(epoch, place)):
                _log_evaluate_save(trainer, ignore_keys)
            if run.control.should_epoch_stop or run.control.should_training_stop:
                break
    finally:
        close(batches)
    if is_empty:
        logger.warning("The training data yielded no batch in epoch %d: training stops.", epoch)
        run.control.should_training_stop = True
    _end_epoch(trainer, length, ignore_keys)


def _update(
    trainer: Hooks,
    micro_batches: list[Batch],
    items: torch.Tensor | int | None,
    length: TrainingLength,
    after: Position,
) -> bool:
    """Accumulate the gradients of `micro_batches`, then step; return False if a callback stopped it before."""
    run = trainer.run
    args, state, handler = run.args, run.state, run.callback_handler
    track_input_tokens(trainer, micro_batches)
    run.micro_batches_in_update = len(micro_batches)
    run.control = handler.on_step_begin(args, state, run.control)
    for index, inputs in enumerate(micro_batches, start=1):
        is_last = index == len(micro_batches)
        with run.accumulating(is_last):
            loss = trainer.training_step(run.model_wrapped, inputs, *([items] if run.step_takes_items else []))
        run.loss_window.add(loss, state.global_step)
        run.current_flos += trainer.floating_point_ops(inputs)
        if not is_last:
            run.control = handler.on_substep_end(args, state, run.control)
            if run.control.should_epoch_stop or run.control.should_training_stop:
                run.zero_grad()
                return False

    grad_norm = run.clip_gradients()
    run.control = handler.on_pre_optimizer_step(args, state, run.control)
    run.optimizer.step()
    run.control = handler.on_optimizer_step(args, state, run.control)
    run.last_update = LastUpdate(current_learning_rate(run.optimizer, run.lr_scheduler), grad_norm)
    if not run.accelerator.optimizer_step_was_skipped and not follows_a_metric(run.lr_scheduler):
        run.lr_scheduler.step()
    run.zero_grad()
    state.global_step += 1
    state.epoch = after.epoch + after.batches / length.batches_per_epoch
    run.position = after
    run.control = handler.on_step_end(args, state, run.control)
    return True


def _log_evaluate_save(trainer: Hooks, ignore_keys: list[str] | None) -> None:
    """Do what the callbacks asked for, in this order."""
    run = trainer.run
    if run.control.should_log and run.state.global_step > run.loss_window.last_logged_step:
        logs = {"loss": run.loss_window.drain(run.accelerator, run.state.global_step)}
        if run.last_update is not None:
            logs["grad_norm"] = float(run.last_update.grad_norm)
            logs["learning_rate"] = run.last_update.learning_rate
        store_flos(run)
        if takes_argument(trainer.log, "start_time"):
            trainer.log(logs, run.training_began)
        else:
            trainer.log(logs)
    if run.control.should_evaluate:
        store_flos(run)  # callbacks that receive the evaluation see the count up to here
        is_best = best_model.track_best(run, _evaluate(trainer, ignore_keys))
        if run.args.save_strategy == SaveStrategy.BEST:
            run.control.should_save = run.control.should_save or is_best
    if run.control.should_save:
        store_flos(run)
        hub.push_checkpoint(trainer, checkpoints.save_checkpoint(trainer))
        run.control = run.callback_handler.on_save(run.args, run.state, run.control)


def _evaluate(trainer: Hooks, ignore_keys: list[str] | None, step_schedule: bool = True) -> dict[str, float]:
    run = trainer.run
    metrics = trainer.evaluate(ignore_keys=ignore_keys)
    if step_schedule and follows_a_metric(run.lr_scheduler):
        run.lr_scheduler.step(best_model.metric_value(metrics, run.args.metric_for_best_model))
    return metrics


def _end_epoch(trainer: Hooks, length: TrainingLength, ignore_keys: list[str] | None) -> None:
    """Fire the epoch's end. If training stops inside the epoch, checkpoints still resume from where it stopped."""
    run = trainer.run
    is_cut_short = run.control.should_training_stop and run.position.batches < length.batches_per_epoch
    if is_cut_short:
        run.interrupted_streams = RandomStreams.capture()
    else:
        run.position = Position(run.position.epoch, run.position.batches, epoch_finished=True)
    run.control = run.callback_handler.on_epoch_end(run.args, run.state, run.control)
    _log_evaluate_save(trainer, ignore_keys)
    run.interrupted_streams = None


def _end_last_epoch(trainer: Hooks, length: TrainingLength, resume: ResumePoint, ignore_keys: list[str] | None) -> None:
    """Fire the end of the last epoch for a checkpoint of the very last update, which was written before it."""
    if resume.streams is not None:
        resume.streams.restore()
    trainer.run.control.should_training_stop = True
    _end_epoch(trainer, length, ignore_keys)


def _finish(trainer: Hooks, length: TrainingLength) -> TrainOutput:
    run = trainer.run
    steps = run.state.global_step - run.first_step
    metrics = speed_metrics(
        "train",
        run.training_began,
        num_samples=length.num_train_samples * steps / max(run.state.max_steps, 1),
        num_steps=steps,
    )
    store_flos(run)
    train_loss = run.loss_window.mean(run.accelerator, run.state.global_step)
    metrics["total_flos"] = run.state.total_flos
    metrics["train_loss"] = train_loss
    metrics.update(run.memory.stop("train"))
    trainer.log(metrics)
    best_model.load_best(run)
    run.hub.wait()
    run.control = run.callback_handler.on_train_end(run.args, run.state, run.control)
    return TrainOutput(run.state.global_step, train_loss, metrics)


def store_flos(run: TrainingRun) -> None:
    """Add the operations counted since the last call to the state, summed over all processes."""
    counted, run.current_flos = run.current_flos, 0.0
    if run.accelerator.num_processes > 1:
        total = torch.tensor(counted, dtype=torch.float64, device=run.accelerator.device)
        counted = run.accelerator.reduce(total, reduction="sum").item()
    run.state.total_flos += counted


def _start_batches(
    run: TrainingRun, loader: DataLoader[object], epoch: int, seen: int, resume: ResumePoint | None
) -> Iterator[Batch]:
    if resume is not None and seen > 0:
        run.epoch_streams = resume.epoch_streams
        return resume_epoch(loader, epoch, seen, resume)
    if resume is not None and resume.streams is not None:
        resume.streams.restore()
    run.epoch_streams = RandomStreams.capture()
    return start_epoch(loader, epoch)


def _first_epoch(position: Position) -> int:
    return position.epoch + 1 if position.epoch_finished else position.epoch


def _batches_to_skip(run: TrainingRun, epoch: int, resume: ResumePoint | None) -> int:
    if resume is None or run.position.epoch != epoch or run.args.ignore_data_skip:
        return 0
    return run.position.batches


def _announce(run: TrainingRun, length: TrainingLength) -> None:
    logger.info(
        "Training: %d examples, %d epochs, %d steps of %d micro-batches; %d trainable parameters; from step %d.",
        length.num_examples,
        length.num_epochs,
        length.max_steps,
        run.args.gradient_accumulation_steps,
        sum(each.numel() for each in run.model.parameters() if each.requires_grad),
        run.state.global_step,
    )
