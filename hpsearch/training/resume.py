"""Resuming from a checkpoint: found, read, put back into a run; damaged or foreign ones are refused by file name."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.trainer_pt_utils import safe_globals
from transformers.trainer_utils import get_last_checkpoint, sort_checkpoints

from ..arguments import TrainingArguments
from ..errors import CheckpointError, InvalidInputError
from ..system.files import read_json
from ..system.json_types import JsonObject
from . import sharding
from .callbacks import TrainerState
from .checkpoints import (
    FIRST_RATE,
    OPTIMIZER_FILE,
    RUN_STATE_FILE,
    SCALER_FILE,
    SCHEDULER_FILE,
    STATE_FILE,
    LastUpdate,
    Position,
    streams_file,
)
from .data import TrainingLength
from .hyperparameters import given_hyperparameters, reapply
from .optimization import follows_a_metric
from .randomness import RandomStreams

if TYPE_CHECKING:
    from .run import TrainingRun

logger = logging.getLogger(__name__)

_ADVICE = "resume from another checkpoint"


@dataclass(frozen=True)
class ResumePoint:
    """The state, besides weights and optimizer, that a run needs to resume exactly from a checkpoint.

    `position`, `loss`, `samples_per_batch` and `last_update` are None if the checkpoint was written by transformers,
    which does not keep them. `streams` are the random streams at the checkpoint, `epoch_streams` those at the start of
    its epoch (transformers does not keep these); both are None where the number of processes has changed.
    `reapplies_arguments` means that hyperparameters are those of the run's arguments, not those of the checkpoint.
    """

    folder: Path
    state: TrainerState
    position: Position | None
    samples_per_batch: int | None
    loss: dict[str, float] | None
    last_update: LastUpdate | None
    streams: RandomStreams | None
    epoch_streams: RandomStreams | None
    reapplies_arguments: bool = False


def resolve(resume_from_checkpoint: str | os.PathLike[str] | bool | None, output_dir: str) -> Path | None:
    """Return the checkpoint folder to resume from: the newest in `output_dir` for True, None for None or False.

    Raises:
        CheckpointError: there is no such checkpoint.
    """
    if resume_from_checkpoint is None or resume_from_checkpoint is False:
        return None
    if resume_from_checkpoint is True:
        newest = get_last_checkpoint(output_dir) if os.path.isdir(output_dir) else None
        if newest is None:
            raise CheckpointError(
                f"resume_from_checkpoint=True, but there is no checkpoint-N folder: "
                f"No valid checkpoint found in output directory ({output_dir})."
            )
        return Path(newest)
    folder = Path(resume_from_checkpoint)
    if not folder.is_dir():
        raise CheckpointError(f"Can't find a valid checkpoint at {folder}: it does not exist or is not a folder.")
    return folder


def resumable_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder that a run can resume from exactly, newest first; none of weights alone."""
    if not folder.is_dir():
        return []
    whole = [
        Path(each)
        for each in sort_checkpoints(str(folder))
        if Path(each, STATE_FILE).is_file()
        and Path(each, RUN_STATE_FILE).is_file()
        and list(Path(each).glob("rng_state*"))
    ]
    return whole[::-1]


def read_resume_point(folder: Path, args: TrainingArguments, reapply_arguments: bool = False) -> ResumePoint:
    """Read the state of a run from a checkpoint folder.

    With `reapply_arguments`, optimizer and schedule will continue with the hyperparameters of `args`.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    state = _read_state(folder / STATE_FILE)
    own = _read_run_state(folder / RUN_STATE_FILE)
    streams, epoch_streams = _read_streams(folder, args, is_ours=own is not None)
    try:
        return ResumePoint(
            folder=folder,
            state=state,
            position=Position(**own["position"]) if own else None,
            samples_per_batch=own.get("samples_per_batch") if own else None,
            loss={name: float(own["loss"][name]) for name in ("sum", "total", "first_step", "last_logged_step")}
            if own
            else None,
            last_update=LastUpdate(**own["last_update"]) if own and own.get("last_update") else None,
            streams=streams,
            epoch_streams=epoch_streams,
            reapplies_arguments=reapply_arguments,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(folder / RUN_STATE_FILE, error) from error


def load_optimization(run: TrainingRun, folder: Path) -> None:
    """Restore optimizer, schedule and gradient scaler; put the run's own hyperparameters over them, if it says so.

    Raises:
        CheckpointError: a file is missing, damaged, or of another optimizer or schedule.
        InvalidInputError: `reapply_arguments` cannot be honoured with DeepSpeed, or with this schedule.
    """
    if run.reapplies_arguments and sharding.uses_deepspeed(run):
        raise InvalidInputError(
            "reapply_arguments=True cannot be honoured with DeepSpeed, whose engine restores the hyperparameters it "
            "saved. Train without DeepSpeed, or resume with the arguments of the checkpoint."
        )
    given = given_hyperparameters(run.optimizer) if run.reapplies_arguments else []
    if sharding.uses_deepspeed(run):
        sharding.load_engine(run, folder)
    else:
        _put_back(folder / OPTIMIZER_FILE, lambda state: _load_optimizer(run, state))
        if follows_a_metric(run.lr_scheduler):
            _put_back_first_rates(run, folder)
    if not sharding.engine_has_schedule(run):
        _put_back(folder / SCHEDULER_FILE, run.lr_scheduler.load_state_dict)
    if run.accelerator.scaler is not None:
        _put_back(folder / SCALER_FILE, run.accelerator.scaler.load_state_dict)
    if run.reapplies_arguments:
        reapply(run.optimizer, run.lr_scheduler, given, source=str(folder))


def position_of(point: ResumePoint, length: TrainingLength, args: TrainingArguments) -> Position:
    """Return where in the data a run resumes, counted in the batches it has now.

    A checkpoint of transformers holds only its steps. If batches hold more or fewer samples than before, the position
    is that of the samples, rounded down to a batch.
    """
    if point.position is None:
        epoch, updates = divmod(point.state.global_step, length.updates_per_epoch)
        return Position(epoch, updates * args.gradient_accumulation_steps)
    before, now = point.samples_per_batch, args.train_batch_size * args.world_size
    if before is None or before == now:
        return point.position
    logger.warning(
        "%s was written with %d samples a batch over all processes, now there are %d: training continues at the same "
        "sample, but not with the same numbers.",
        point.folder,
        before,
        now,
    )
    seen = point.position.batches * before // now
    return Position(point.position.epoch, seen, point.position.epoch_finished)


def check_same_updates(point: ResumePoint, position: Position, length: TrainingLength, args: TrainingArguments) -> None:
    """Check that the optimizer steps of a run that resumes at `position` hold as many samples as those before it.

    Its length and schedule would otherwise not fit the updates it has made: it would end too early or too late.

    Raises:
        CheckpointError: they do not.
    """
    saved = point.state
    if point.position is None or (saved.max_steps, saved.num_train_epochs) == (length.max_steps, length.num_epochs):
        return
    left = 0 if position.epoch_finished else max(0, length.batches_per_epoch - position.batches)
    counted = (position.epoch + 1) * length.updates_per_epoch - math.ceil(left / args.gradient_accumulation_steps)
    if counted != saved.global_step:
        raise CheckpointError(
            f"{str(point.folder)!r} was written after {saved.global_step} steps; with "
            f"per_device_train_batch_size={args.per_device_train_batch_size}, "
            f"gradient_accumulation_steps={args.gradient_accumulation_steps} and {args.world_size} processes it would "
            f"have been {counted}. reapply_arguments=True needs the same number of samples per step as before: do "
            "not change the product of the three, or the data."
        )


def _read_state(path: Path) -> TrainerState:
    try:
        state = TrainerState.load_from_json(str(path))
    except FileNotFoundError as error:
        raise CheckpointError(f"Can't find a valid checkpoint at {path.parent}: {path.name!r} is missing.") from error
    except (ValueError, TypeError) as error:
        raise _damaged(path, error) from error
    if not isinstance(state.global_step, int) or not isinstance(state.log_history, list):
        raise _damaged(path, f"global_step is {state.global_step!r}")
    return state


def _read_run_state(path: Path) -> JsonObject | None:
    """Return the content of `run_state.json`; None for a checkpoint of transformers, which has none."""
    try:
        own = read_json(path)
    except ValueError as error:
        raise _damaged(path, error) from error
    if own is not None and (not isinstance(own, dict) or set(own.get("position", ())) < {"epoch", "batches"}):
        raise _damaged(path, "there is no position in it")
    return own


def _read_streams(
    folder: Path, args: TrainingArguments, is_ours: bool
) -> tuple[RandomStreams | None, RandomStreams | None]:
    path = folder / streams_file(args.process_index, args.world_size)
    present = {each.name for each in folder.glob("rng_state*.pth")}
    expected = {streams_file(index, args.world_size) for index in range(args.world_size)}
    if present and present != expected and (path.name not in present or args.world_size == 1):
        logger.warning(
            "%s was written by another number of processes (%d files of random streams, now %d processes): training "
            "continues with new random numbers.",
            folder,
            len(present),
            args.world_size,
        )
        return None, None
    if not path.is_file():
        if is_ours:
            _read_torch(path)
        return None, None
    with safe_globals():
        saved = _read_torch(path)
    try:
        started = RandomStreams.from_dict(saved["epoch_start"]) if "epoch_start" in saved else None
        return RandomStreams.from_dict(saved), started
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, f"it holds no random streams: {error}") from error


def _load_optimizer(run: TrainingRun, state: dict[str, Any]) -> None:
    present = run.optimizer.state_dict()["param_groups"] if not sharding.is_sharded(run) else []
    for group, saved in zip(present, state["param_groups"], strict=False):
        absent = group.keys() - saved.keys() - ({FIRST_RATE} if follows_a_metric(run.lr_scheduler) else set())
        if absent:
            raise KeyError(f"{type(run.optimizer).__name__} needs {', '.join(sorted(absent))}")
    sharding.load_optimizer_state(run, state)


def _put_back_first_rates(run: TrainingRun, folder: Path) -> None:
    """Set the initial learning rates of a schedule that follows a metric, if the checkpoint holds them."""
    rates = (read_json(folder / RUN_STATE_FILE) or {}).get("first_rates", ())
    for group, rate in zip(run.optimizer.param_groups, rates, strict=False):
        if rate is not None:
            group[FIRST_RATE] = rate


def _put_back(path: Path, load: Callable[[Any], object]) -> None:
    state = _read_torch(path)
    try:
        load(state)
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"{str(path)!r} does not fit this run ({error}): it belongs to another optimizer, schedule or model. "
            "Train with the arguments it was written with, or start from its weights alone."
        ) from error


def _read_torch(path: Path) -> Any:
    if not path.is_file():
        raise CheckpointError(
            f"{str(path)!r} is missing, so this checkpoint cannot be resumed exactly (was it saved with "
            "save_only_model=True?). To continue from its weights alone, load them into the model instead."
        )
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise _damaged(path, type(error).__name__) from error


def _damaged(path: Path, what: object) -> CheckpointError:
    return CheckpointError(f"{str(path)!r} is damaged ({what}); {_ADVICE}.")
