"""The adapters of PEFT in a checkpoint: each in a file of its own, loaded into the adapter of its name.

PEFT writes the adapter "default" into the folder itself, and every other one into a folder of its name in there. A
model of transformers that has adapters writes the active one into the folder itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from transformers.utils import ADAPTER_SAFE_WEIGHTS_NAME

from ..errors import CheckpointError, WeightsMismatchError
from .sharding import has_shards
from .unrelated_errors import is_of_outside

_DEFAULT = "default"
_PREFIX = "base_model.model."


def files_in(folder: Path) -> dict[str, Path]:
    """Return the files of adapters in a checkpoint, by the names of the adapters."""
    whole = {_DEFAULT: folder / ADAPTER_SAFE_WEIGHTS_NAME}
    below = {file.parent.name: file for file in sorted(folder.glob(f"*/{ADAPTER_SAFE_WEIGHTS_NAME}"))}
    return {name: file for name, file in {**whole, **below}.items() if file.is_file()}


def is_wrapped(model: Any) -> bool:
    """Return whether a model is one of PEFT, around another; False for a model of transformers that has adapters."""
    return bool(getattr(model, "peft_config", None)) and not callable(model.active_adapters)


def load(model: torch.nn.Module, folder: Path) -> None:
    """Load every adapter in a checkpoint into a PEFT model, or the active one into a model that has adapters.

    Raises:
        CheckpointError: the model has no adapters, or a file is damaged.
        WeightsMismatchError: they are other adapters than those of the model.
    """
    from peft import set_peft_model_state_dict

    read = {name: (file, _read(file)) for name, file in _by_name_in_model(model, folder).items()}
    for name, (file, weights) in read.items():
        if not is_wrapped(model):
            read[name] = file, {key.removeprefix(_PREFIX): tensor for key, tensor in weights.items()}
        _check(model, name, file, {key: tensor.shape for key, tensor in read[name][1].items()})
    for name, (_, weights) in read.items():
        set_peft_model_state_dict(model, weights, name)


def check_fits(model: torch.nn.Module, folder: Path) -> None:
    """Check by names and shapes that the adapters in a checkpoint are those of a PEFT model; none of a damaged file.

    Raises:
        WeightsMismatchError: they are others.
    """
    for name, file in _by_name_in_model(model, folder).items():
        try:
            with safetensors.safe_open(str(file), "pt") as weights:
                shapes = {key: torch.Size(weights.get_slice(key).get_shape()) for key in weights.keys()}  # noqa: SIM118
        except (OSError, safetensors.SafetensorError):
            continue
        _check(model, name, file, shapes)


def _by_name_in_model(model: Any, folder: Path) -> dict[str, Path]:
    """Return the files in a checkpoint by the names that their adapters have in the model."""
    files = files_in(folder)
    own = getattr(model, "peft_config", None) or {}
    if not own:
        raise CheckpointError(
            f"{str(next(iter(files.values())))!r} is an adapter of a PEFT model, but {type(model).__name__} has none; "
            "wrap the model as it was wrapped when the checkpoint was written."
        )
    expected = list(own) if is_wrapped(model) else model.active_adapters()
    if files.keys() == {_DEFAULT} and len(expected) == 1:
        return {expected[0]: files[_DEFAULT]}
    if files.keys() != set(expected):
        raise WeightsMismatchError(
            f"The checkpoint {str(folder)!r} has the adapters {sorted(files)}, but the model has {sorted(expected)}. "
            "Add the adapters that the model had when the checkpoint was written."
        )
    return files


def _check(model: torch.nn.Module, name: str, file: Path, shapes: Mapping[str, torch.Size]) -> None:
    from peft import get_peft_model_state_dict

    present = get_peft_model_state_dict(model, adapter_name=name)
    different = sorted(shapes.keys() ^ present.keys())
    if not different and not has_shards(model):
        different = [key for key, shape in shapes.items() if present[key].shape != shape]
    if different:
        raise WeightsMismatchError(
            f"{str(file)!r} does not belong to the adapter {name!r} of the model: they differ in {different[:3]}. "
            "Give the "
            "adapter the modules and the rank it had when the checkpoint was written."
        )


def _read(file: Path) -> dict[str, torch.Tensor]:
    try:
        return safetensors.torch.load_file(str(file))
    except (OSError, safetensors.SafetensorError) as error:
        if is_of_outside(error):
            raise
        raise CheckpointError(f"{str(file)!r} is damaged ({error}); use another checkpoint.") from error
