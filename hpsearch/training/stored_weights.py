"""Check that the weights in a folder are complete, without a model and without running code in them."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePath

import safetensors
import torch

from ..errors import CheckpointError
from ..system.files import read_json

_INDEX = ".index.json"
_OF_TORCH = (".bin", ".pt", ".pth", ".ckpt", ".distcp")
_NAMED = ", ".join((".safetensors", *_OF_TORCH))
# How the names of files begin that hold tensors only.
_OF_WEIGHTS = ("adapter_model", "model", "pytorch_model")
# What files of torch are, since torch 1.6.
_ZIP = b"PK\x03\x04"


def check_weights(folder: Path, files: Iterable[Path]) -> None:
    """Check that the weights among some files of a checkpoint are whole.

    Files of safetensors have the length that their headers say, those of torch can be read (with `weights_only`, so
    that nothing in them runs), and the parts that an index names are there.

    Args:
        folder: of the checkpoint.
        files: in it, or in folders in it.

    Raises:
        CheckpointError: a file is missing or damaged; the message names it.
    """
    has_weights = False
    for file in files:
        if file.name.endswith(_INDEX):
            _check_index(file)
        elif file.suffix == ".safetensors":
            _names_in(file)
        elif file.suffix in _OF_TORCH:
            _check_torch(file)
        has_weights |= file.suffix in (".safetensors", *_OF_TORCH)
    if not has_weights:
        raise CheckpointError(f"{str(folder)!r} has no weights; names of weight files end in {_NAMED}.")


def parts_of(index: Path) -> dict[str, set[str]]:
    """Return the files that an index spreads weights over, with the names of the weights in each.

    Raises:
        CheckpointError: it is none, or names a file that is not beside it.
    """
    try:
        found = read_json(index)["weight_map"]
        parts: dict[str, set[str]] = {}
        for name, part in found.items():
            parts.setdefault(part, set()).add(name)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{str(index)!r} is damaged: {error!r}.") from error
    for part in parts:
        if not isinstance(part, str) or PurePath(part).name != part or part in ("", ".."):
            raise CheckpointError(f"{str(index)!r} names the weights {part!r}, which must be a file beside it.")
    return parts


def _check_index(index: Path) -> None:
    for part, names in parts_of(index).items():
        file = index.with_name(part)
        if not file.is_file():
            raise CheckpointError(f"{str(file)!r} is missing: {index.name!r} names it as a part of the weights.")
        absent = names - _names_in(file) if file.suffix == ".safetensors" else None
        if absent:
            raise CheckpointError(f"{str(file)!r} lacks {sorted(absent)[:3]}, which {index.name!r} lists.")


def _names_in(file: Path) -> set[str]:
    """Return the names of the weights in a file of safetensors, whose header has to fit its length."""
    try:
        with safetensors.safe_open(str(file), framework="pt") as weights:
            return set(weights.keys())
    except (OSError, safetensors.SafetensorError) as error:
        raise _damaged(file, error) from error


def _check_torch(file: Path) -> None:
    """Check a file of torch; one of a kind that is not known must not be empty."""
    with open(file, "rb") as stream:
        begin = stream.read(len(_ZIP))
    if not begin:
        raise _damaged(file, "it is empty")
    if begin == _ZIP:
        if not zipfile.is_zipfile(file):
            raise _damaged(file, "its end is missing")
        return
    if file.name.startswith(_OF_WEIGHTS):
        try:
            torch.load(file, map_location="cpu", weights_only=True)
        except MemoryError:
            raise
        except Exception as error:  # a stream that is cut off may mean anything to the unpickler
            raise _damaged(file, error) from error


def _damaged(file: Path, reason: object) -> CheckpointError:
    shown = str(reason).strip() or type(reason).__name__
    return CheckpointError(
        f"{str(file)!r} is damaged, as by a copy that was cut off ({shown}). Use another checkpoint."
    )
