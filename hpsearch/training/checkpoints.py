"""Checkpoints of a run: written whole, found, rotated, resumed exactly.

The files and their names are those of transformers, so that either trainer can resume the other's checkpoints.
`run_state.json` adds what exact resume needs: the position inside the epoch and the running loss.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from transformers import PreTrainedModel
from transformers.trainer_pt_utils import safe_globals
from transformers.trainer_utils import get_last_checkpoint, load_sharded_checkpoint, sort_checkpoints
from transformers.utils import ADAPTER_SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_NAME
from transformers.utils import logging as transformers_logging

from ..callbacks import ExportableState, TrainerState
from ..errors import CheckpointError
from ..files import read_json, remove_folder, whole_folder, write_json
from .hooks import Hooks
from .randomness import RandomStreams, preserved_streams

OPTIMIZER_FILE = "optimizer.pt"
SCHEDULER_FILE = "scheduler.pt"
SCALER_FILE = "scaler.pt"
STATE_FILE = "trainer_state.json"
RUN_STATE_FILE = "run_state.json"
ARGUMENTS_FILE = "training_args.bin"


@dataclass(frozen=True)
class Position:
    """Where in the data a run is: after `batches` micro-batches of `epoch`.

    `epoch_finished` tells that the events of the epoch's end (evaluation, saving) are behind it.
    """

    epoch: int = 0
    batches: int = 0
    epoch_finished: bool = False


@dataclass(frozen=True)
class ResumePoint:
    """What a run needs, beside weights and optimizer, to go on from a checkpoint as if it had never stopped.

    `streams` are the random streams at the checkpoint, `epoch_streams` those at the start of its epoch (None if the
    checkpoint was written by transformers, which does not keep them).
    """

    folder: Path
    state: TrainerState
    position: Position | None
    loss: dict[str, float] | None
    streams: RandomStreams | None
    epoch_streams: RandomStreams | None


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
                f"resume_from_checkpoint=True, but there is no checkpoint-N folder in {output_dir!r}."
            )
        return Path(newest)
    folder = Path(resume_from_checkpoint)
    if not folder.is_dir():
        raise CheckpointError(f"The checkpoint {str(folder)!r} does not exist or is not a folder.")
    return folder


def save_checkpoint(trainer: Hooks) -> Path:
    """Write `checkpoint-<global_step>` into the output folder of the run, whole or not at all, and rotate old ones."""
    run = trainer.run
    folder = Path(run.args.output_dir, f"checkpoint-{run.state.global_step}")
    if not run.args.should_save:
        return folder
    _point_at_best_checkpoint(run, folder)
    with whole_folder(folder) as partial:
        trainer.save_model(str(partial))
        if not run.args.save_only_model:
            torch.save(run.optimizer.state_dict(), partial / OPTIMIZER_FILE)
            torch.save(run.lr_scheduler.state_dict(), partial / SCHEDULER_FILE)
            if run.accelerator.scaler is not None:
                torch.save(run.accelerator.scaler.state_dict(), partial / SCALER_FILE)
            _save_streams(run, partial)
        write_json(
            partial / RUN_STATE_FILE, {"position": dataclasses.asdict(run.position), "loss": run.loss_window.state()}
        )
        save_state(run, partial / STATE_FILE)
    _rotate(run)
    return folder


def save_state(run: Any, path: Path) -> None:
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


def save_weights(model: Any, folder: Path, state_dict: Mapping[str, Any] | None = None) -> None:
    """Write the weights (and configuration) of `model`, or `state_dict` in their place, as safetensors."""
    if isinstance(model, PreTrainedModel) or hasattr(model, "peft_config"):
        with _no_progress_bars():
            model.save_pretrained(str(folder), state_dict=None if state_dict is None else dict(state_dict))
    elif state_dict is None:
        safetensors.torch.save_model(model, str(folder / SAFE_WEIGHTS_NAME), metadata={"format": "pt"})
    else:
        unique = {tensor.data_ptr(): name for name, tensor in reversed(list(state_dict.items()))}
        kept = {name: tensor.contiguous() for name, tensor in state_dict.items() if unique[tensor.data_ptr()] == name}
        safetensors.torch.save_file(kept, str(folder / SAFE_WEIGHTS_NAME), metadata={"format": "pt"})


def load_weights(model: Any, folder: str | os.PathLike[str]) -> None:
    """Load the weights in `folder` into `model`, in place.

    Raises:
        CheckpointError: there are no weights, they are damaged, or they belong to another model.
    """
    path = Path(folder)
    try:
        if (path / SAFE_WEIGHTS_NAME).is_file():
            state_dict = safetensors.torch.load_file(str(path / SAFE_WEIGHTS_NAME), device="cpu")
        elif (path / WEIGHTS_NAME).is_file():
            state_dict = torch.load(path / WEIGHTS_NAME, map_location="cpu", weights_only=True)
        elif (path / SAFE_WEIGHTS_INDEX_NAME).is_file():
            load_sharded_checkpoint(model, str(path), strict=False)
            return
        elif (path / ADAPTER_SAFE_WEIGHTS_NAME).is_file() and hasattr(model, "load_adapter"):
            model.load_adapter(str(path), model.active_adapters[0], is_trainable=True)
            return
        else:
            raise CheckpointError(f"There are no weights ({SAFE_WEIGHTS_NAME}) in the checkpoint {str(path)!r}.")
        if isinstance(model, PreTrainedModel) and not state_dict.keys() <= model.state_dict().keys():
            _load_converted(model, path)
            return
        result = model.load_state_dict(state_dict, strict=False)
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"The weights in {str(path)!r} cannot be loaded: {error}. They are damaged or of another model; use "
            "another checkpoint."
        ) from error
    absent = [name for name in result.missing_keys if not _is_tied(model, name)]
    if absent or result.unexpected_keys:
        raise CheckpointError(
            f"The weights in {str(path)!r} belong to another model: missing {absent[:3]}, unexpected "
            f"{result.unexpected_keys[:3]}."
        )
    if result.missing_keys and hasattr(model, "tie_weights"):
        model.tie_weights()


def _load_converted(model: PreTrainedModel, folder: Path) -> None:
    """Load weights whose names on disk are not those in memory (transformers renames some models' when it saves)."""
    with preserved_streams(), _no_progress_bars():
        loaded, info = type(model).from_pretrained(str(folder), config=model.config, output_loading_info=True)
    wrong = [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
    if wrong:
        raise CheckpointError(f"The weights in {str(folder)!r} belong to another model: {wrong[:3]} do not fit.")
    model.load_state_dict(loaded.state_dict())


def load_optimization(run: Any, folder: Path) -> None:
    """Restore optimizer, schedule and gradient scaler.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    parts = [(run.optimizer, OPTIMIZER_FILE), (run.lr_scheduler, SCHEDULER_FILE)]
    if run.accelerator.scaler is not None:
        parts.append((run.accelerator.scaler, SCALER_FILE))
    for part, name in parts:
        part.load_state_dict(_load_torch(folder / name, run.args.device))


def read_resume_point(folder: Path, process_index: int, world_size: int) -> ResumePoint:
    """Read the state of a run from a checkpoint folder.

    Raises:
        CheckpointError: the trainer state is missing or damaged.
    """
    try:
        state = TrainerState.load_from_json(str(folder / STATE_FILE))
    except FileNotFoundError as error:
        raise CheckpointError(f"{str(folder / STATE_FILE)!r} is missing: this checkpoint cannot be resumed.") from error
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{str(folder / STATE_FILE)!r} is damaged ({error}); resume from another one.") from error
    own = read_json(folder / RUN_STATE_FILE) or {}
    streams = epoch_streams = None
    random_file = folder / _streams_file(process_index, world_size)
    if random_file.is_file():
        with safe_globals():
            saved = _load_torch(random_file, "cpu")
        streams = RandomStreams.from_dict(saved)
        if "epoch_start" in saved:
            epoch_streams = RandomStreams.from_dict(saved["epoch_start"])
    return ResumePoint(
        folder=folder,
        state=state,
        position=Position(**own["position"]) if "position" in own else None,
        loss=own.get("loss"),
        streams=streams,
        epoch_streams=epoch_streams,
    )


@contextlib.contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing a bar for every file it writes, over whatever the terminal shows."""
    was_enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            transformers_logging.enable_progress_bar()


def _save_streams(run: Any, folder: Path) -> None:
    states = (run.interrupted_streams or RandomStreams.capture()).to_dict()
    if run.epoch_streams is not None:
        states["epoch_start"] = run.epoch_streams.to_dict()
    torch.save(states, folder / _streams_file(run.args.process_index, run.args.world_size))


def _streams_file(process_index: int, world_size: int) -> str:
    return "rng_state.pth" if world_size <= 1 else f"rng_state_{process_index}.pth"


def _load_torch(path: Path, device: Any) -> Any:
    if not path.is_file():
        raise CheckpointError(
            f"{str(path)!r} is missing, so this checkpoint cannot be resumed exactly (was it saved with "
            "save_only_model=True?). To train on from its weights alone, load them into the model instead."
        )
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{str(path)!r} is damaged ({error}); resume from another checkpoint.") from error


def _is_tied(model: Any, name: str) -> bool:
    """Tell whether parameter `name` shares its memory with another one, which safetensors stores once."""
    parameters = model.state_dict(keep_vars=True)
    pointer = parameters[name].data_ptr()
    return sum(each.data_ptr() == pointer for each in parameters.values()) > 1


def _point_at_best_checkpoint(run: Any, being_written: Path) -> None:
    if run.state.best_global_step is None:
        return
    best = Path(run.args.output_dir, f"checkpoint-{run.state.best_global_step}")
    if best == being_written or best.is_dir():
        run.state.best_model_checkpoint = str(best)


def _rotate(run: Any) -> None:
    limit = run.args.save_total_limit
    if limit is None or limit <= 0:
        return
    checkpoints = [str(Path(each)) for each in sort_checkpoints(run.args.output_dir)]
    protected = {checkpoints[-1]}
    if run.state.best_model_checkpoint is not None:
        protected.add(str(Path(run.state.best_model_checkpoint)))
    surplus = len(checkpoints) - max(limit, len(protected))
    for checkpoint in [each for each in checkpoints if each not in protected][: max(surplus, 0)]:
        remove_folder(checkpoint)
