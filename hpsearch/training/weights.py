"""Model weights on disk: saved as safetensors, loaded whole or refused."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import safetensors.torch
import torch
from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_NAME

from ..errors import CheckpointError, WeightsMismatchError
from ..system.progress_bars import no_progress_bars
from . import adapters
from .randomness import preserved_streams
from .sharding import has_shards, load_whole_weights
from .stored_weights import parts_of
from .unrelated_errors import is_of_outside


def save_weights(model: Any, folder: Path, state_dict: Mapping[str, torch.Tensor] | None = None) -> None:
    """Write the weights (and configuration) of `model`, or `state_dict` in their place, as safetensors."""
    if isinstance(model, PreTrainedModel) or hasattr(model, "peft_config"):
        with no_progress_bars():
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
        CheckpointError: there are no weights, or they are damaged.
        WeightsMismatchError: they belong to another model.
        Exception: as it is, where memory, disk or another process has failed.
    """
    path = Path(folder)
    try:
        if (path / SAFE_WEIGHTS_NAME).is_file():
            state_dict = safetensors.torch.load_file(str(path / SAFE_WEIGHTS_NAME), device="cpu")
        elif (path / WEIGHTS_NAME).is_file():
            state_dict = torch.load(path / WEIGHTS_NAME, map_location="cpu", weights_only=True)
        elif (path / SAFE_WEIGHTS_INDEX_NAME).is_file():
            state_dict = _read_parts(path)
        elif adapters.files_in(path):
            adapters.load(model, path)
            return
        else:
            raise CheckpointError(
                f"Can't find a valid checkpoint at {path}: there are no weights ({SAFE_WEIGHTS_NAME}) in it."
            )
        if isinstance(model, PreTrainedModel) and not state_dict.keys() <= model.state_dict().keys():
            _load_converted(model, path)
            return
        if not has_shards(model):
            _check_shapes(path, {name: tensor.shape for name, tensor in state_dict.items()}, model.state_dict())
        load = load_whole_weights if has_shards(model) else _load_state
        result = load(model, state_dict)
    except (OSError, RuntimeError, ValueError, EOFError, UnpicklingError, safetensors.SafetensorError) as error:
        if is_of_outside(error):
            raise
        raise CheckpointError(
            f"{str(_weights_file(path))!r} cannot be loaded: {error or type(error).__name__}. It is damaged or of "
            "another model; use another checkpoint."
        ) from error
    absent = [name for name in result.missing_keys if not _is_tied(model, name)]
    if absent or result.unexpected_keys:
        raise _names_differ(path, absent, result.unexpected_keys)
    if result.missing_keys and hasattr(model, "tie_weights"):
        model.tie_weights()


def check_fits(model: torch.nn.Module, folder: str | os.PathLike[str]) -> None:
    """Check by names and shapes that the weights in `folder` are those of a model like this one.

    Nothing is checked of weights in several files, or of a damaged file: loading them shows it.

    Raises:
        WeightsMismatchError: they belong to another model.
    """
    path = Path(folder)
    if adapters.is_wrapped(model) and adapters.files_in(path):
        adapters.check_fits(model, path)
        return
    try:
        with safetensors.safe_open(str(path / SAFE_WEIGHTS_NAME), "pt") as file:
            shapes = {name: torch.Size(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError):
        return
    present = model.state_dict()
    unexpected = [name for name in shapes if name not in present]
    if unexpected and isinstance(model, PreTrainedModel):
        _load_converted(model, path)
        return
    absent = [name for name in present if name not in shapes and not _is_tied(model, name)]
    if absent or unexpected:
        raise _names_differ(path, absent, unexpected)
    _check_shapes(path, shapes, present)


def _check_shapes(path: Path, shapes: Mapping[str, torch.Size], present: Mapping[str, torch.Tensor]) -> None:
    """Check that what is in a file has the shapes that it has in the model.

    Raises:
        WeightsMismatchError: it has not; the message names the first tensor.
    """
    for name, shape in shapes.items():
        if name in present and present[name].shape != shape:
            raise WeightsMismatchError(
                f"The weights in {str(path)!r} belong to another model: {name!r} has the shape {tuple(shape)} there, "
                f"but {tuple(present[name].shape)} in the model."
            )


def _names_differ(path: Path, absent: Sequence[str], unexpected: Sequence[str]) -> WeightsMismatchError:
    return WeightsMismatchError(
        f"The weights in {str(path)!r} belong to another model: missing {list(absent[:3])}, unexpected "
        f"{list(unexpected[:3])}."
    )


def _read_parts(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights that an index says are spread over several files."""
    names = sorted(parts_of(folder / SAFE_WEIGHTS_INDEX_NAME))
    parts = [safetensors.torch.load_file(str(folder / name)) for name in names]
    return {name: tensor for part in parts for name, tensor in part.items()}


def _weights_file(folder: Path) -> Path:
    names = (SAFE_WEIGHTS_NAME, WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)
    return next((folder / name for name in names if (folder / name).is_file()), folder)


def _load_state(model: torch.nn.Module, state_dict: dict[str, torch.Tensor]) -> Any:
    return model.load_state_dict(state_dict, strict=False)


def _load_converted(model: PreTrainedModel, folder: Path) -> None:
    """Load weights whose names on disk are not those in memory (transformers renames some models' when it saves)."""
    with preserved_streams(), no_progress_bars():
        loaded, info = type(model).from_pretrained(
            str(folder),
            config=model.config,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below
        )
    wrong = [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
    if wrong:
        raise WeightsMismatchError(f"The weights in {str(folder)!r} belong to another model: {wrong[:3]} do not fit.")
    model.load_state_dict(loaded.state_dict())


def _is_tied(model: torch.nn.Module, name: str) -> bool:
    """Return whether parameter `name` shares its memory with another one, which safetensors stores once."""
    parameters = model.state_dict(keep_vars=True)
    pointer = parameters[name].data_ptr()
    return sum(each.data_ptr() == pointer for each in parameters.values()) > 1
