"""Checkpoints of a run: written whole, and rotated. `resume.py` reads them.

The files and their names are those of transformers, so that either trainer can resume the other's checkpoints.
`run_state.json` adds what exact resume needs: the position inside the epoch and the running loss.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from transformers.trainer_utils import sort_checkpoints

from ..system.checkpoint_files import STATE_FILE, TRIAL_FILE
from ..system.files import remove_folder, whole_folder, write_json
from . import sharding
from .callbacks import ExportableState
from .hooks import Hooks
from .optimization import follows_a_metric
from .randomness import RandomStreams

if TYPE_CHECKING:
    from .run import TrainingRun

OPTIMIZER_FILE = "optimizer.pt"
SCHEDULER_FILE = "scheduler.pt"
SCALER_FILE = "scaler.pt"
RUN_STATE_FILE = "run_state.json"
# The key of an optimizer's groups under which schedules of torch note the learning rate they began with.
FIRST_RATE = "initial_lr"
ARGUMENTS_FILE = "training_args.bin"
# What only a resumed run needs; streams of random numbers are in further files, of each process.
TO_GO_ON = (OPTIMIZER_FILE, SCHEDULER_FILE, SCALER_FILE, STATE_FILE, RUN_STATE_FILE, ARGUMENTS_FILE, TRIAL_FILE)


@dataclass(frozen=True)
class Position:
    """The position of a run in the data: after `batches` micro-batches of `epoch`.

    `epoch_finished` means that the events of the epoch's end (evaluation, saving) are done.
    """

    epoch: int = 0
    batches: int = 0
    epoch_finished: bool = False


@dataclass(frozen=True)
class LastUpdate:
    """The values of the last step for the next log line: its learning rate and the norm of its gradient."""

    learning_rate: float
    grad_norm: torch.Tensor | float


def save_checkpoint(trainer: Hooks) -> Path:
    """Write `checkpoint-<global_step>` into the output folder of the run, whole or not at all, and rotate old ones.

    All processes call it together; the main one (of each machine, with `save_on_each_node`) writes.
    """
    run = trainer.run
    folder = Path(run.args.output_dir, f"checkpoint-{run.state.global_step}")
    _point_at_best_checkpoint(run, folder)
    streams = gather_object([_streams(run)])
    if run.args.should_save:
        _write(trainer, folder, streams)
        _rotate(run)
    elif sharding.is_sharded(run):
        _write_together(trainer, folder)
    run.accelerator.wait_for_everyone()
    return folder


def _write(trainer: Hooks, folder: Path, streams: list[object]) -> None:
    run = trainer.run
    with whole_folder(folder) as partial:
        _write_together(trainer, partial)
        if not run.args.save_only_model:
            for index, each in enumerate(streams):
                save_tensors(each, partial / streams_file(index, run.args.world_size))
        write_json(partial / RUN_STATE_FILE, _run_state(run))
        save_state(run, partial / STATE_FILE)


def save_tensors(value: object, path: Path) -> None:
    """Write what `torch.load` reads.

    Raises:
        OSError: the file cannot be written; torch itself hides a full disk behind an error of its own format.
    """
    try:
        with open(path, "wb") as stream:
            torch.save(value, stream)
    except RuntimeError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise cause from error


def _write_together(trainer: Hooks, folder: Path) -> None:
    """Write weights and optimization, to which every process contributes its part if the model is sharded."""
    run = trainer.run
    with run.hub.paused():
        trainer.save_model(str(folder))
    if run.args.save_only_model:
        return
    if sharding.uses_deepspeed(run):
        [shared] = broadcast_object_list([str(folder)])
        sharding.save_engine(run, Path(shared))
    else:
        state = sharding.whole_optimizer_state(run)
        if follows_a_metric(run.lr_scheduler):  # the first rates are in the run's own state
            groups = [{key: group[key] for key in group if key != FIRST_RATE} for group in state["param_groups"]]
            state = {**state, "param_groups": groups}
        if run.args.should_save:
            save_tensors(state, folder / OPTIMIZER_FILE)
    if run.args.should_save and not sharding.engine_has_schedule(run):
        save_tensors(run.lr_scheduler.state_dict(), folder / SCHEDULER_FILE)
        if run.accelerator.scaler is not None:
            save_tensors(run.accelerator.scaler.state_dict(), folder / SCALER_FILE)


def _run_state(run: TrainingRun) -> dict[str, object]:
    last = run.last_update
    groups = run.optimizer.param_groups if follows_a_metric(run.lr_scheduler) else ()
    return {
        "first_rates": [group.get(FIRST_RATE) for group in groups],
        "position": dataclasses.asdict(run.position),
        "loss": run.loss_window.state(),
        "samples_per_batch": run.args.train_batch_size * run.args.world_size,
        "last_update": last and {"learning_rate": last.learning_rate, "grad_norm": float(last.grad_norm)},
    }


def save_state(run: TrainingRun, path: Path) -> None:
    """Write the trainer state, with the state of every callback that declares one."""
    stateful = [each for each in (*run.callback_handler.callbacks, run.control) if isinstance(each, ExportableState)]
    collected: dict[str, Any] = {}
    for callback in stateful:
        name = type(callback).__name__
        if name not in collected:
            collected[name] = callback.state()
        elif isinstance(collected[name], list):
            collected[name].append(callback.state())
        else:
            collected[name] = [collected[name], callback.state()]
    run.state.stateful_callbacks = collected
    run.state.save_to_json(str(path))


def _streams(run: TrainingRun) -> dict[str, object]:
    states = (run.interrupted_streams or RandomStreams.capture()).to_dict()
    if run.epoch_streams is not None:
        states["epoch_start"] = run.epoch_streams.to_dict()
    return states


def streams_file(process_index: int, world_size: int) -> str:
    """Return the name of the file with the random streams of a process."""
    return "rng_state.pth" if world_size <= 1 else f"rng_state_{process_index}.pth"


def _point_at_best_checkpoint(run: TrainingRun, being_written: Path) -> None:
    if run.state.best_global_step is None:
        return
    best = Path(run.args.output_dir, f"checkpoint-{run.state.best_global_step}")
    if best == being_written or best.is_dir():
        run.state.best_model_checkpoint = str(best)


def _rotate(run: TrainingRun) -> None:
    limit = run.args.save_total_limit
    if limit is None or limit <= 0:
        return
    checkpoints = [os.path.realpath(each) for each in sort_checkpoints(run.args.output_dir)]
    protected = {checkpoints[-1]}
    if run.state.best_model_checkpoint is not None:
        protected.add(os.path.realpath(run.state.best_model_checkpoint))
    surplus = len(checkpoints) - max(limit, len(protected))
    for checkpoint in [each for each in checkpoints if each not in protected][: max(surplus, 0)]:
        remove_folder(checkpoint)
