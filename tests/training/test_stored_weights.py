"""Weights on disk are checked without a model: what is missing or cut off is named."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import distributed

from hpsearch.errors import CheckpointError
from hpsearch.training.stored_weights import check_weights, parts_of
from hpsearch.training.weights import load_weights

WEIGHTS = {"a": torch.arange(300.0), "b": torch.ones(20, 20)}


def check(folder: Path) -> None:
    check_weights(folder, sorted(each for each in folder.rglob("*") if each.is_file()))


def write(folder: Path, kind: str) -> list[Path]:
    """Write weights of a kind; return the files that must be whole."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    if kind == "safetensors":
        save_file(WEIGHTS, folder / "model.safetensors")
        return [folder / "model.safetensors"]
    if kind == "adapter in a folder":
        return [write(folder / "adapter", "safetensors")[0].rename(folder / "adapter/adapter_model.safetensors")]
    if kind == "torch":
        torch.save(WEIGHTS, folder / "pytorch_model.bin")
        return [folder / "pytorch_model.bin"]
    if kind == "torch before 1.6":
        torch.save(WEIGHTS, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
        return [folder / "pytorch_model.bin"]
    files = [folder / f"model-{number}-of-2.safetensors" for number in (1, 2)]
    for (name, each), file in zip(WEIGHTS.items(), files, strict=True):
        save_file({name: each}, file)
    index = {"weight_map": {name: file.name for name, file in zip(WEIGHTS, files, strict=True)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return files


KINDS = ["safetensors", "adapter in a folder", "torch", "torch before 1.6", "parts"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [1, 100, None])
def test_weights_that_are_cut_off_are_named_and_whole_ones_pass(tmp_path: Path, kind: str, cut: int | None) -> None:
    for file in write(tmp_path, kind):
        check(tmp_path)
        whole = file.read_bytes()
        file.write_bytes(b"" if cut is None else whole[:-cut])
        with pytest.raises(CheckpointError, match=f"{file.name}' is damaged"):
            check(tmp_path)
        file.write_bytes(whole)


def test_weights_of_the_older_format_are_named_wherever_they_are_cut_off(tmp_path: Path) -> None:
    [file] = write(tmp_path, "torch before 1.6")
    torch.save({"a": torch.zeros(4)}, file, _use_new_zipfile_serialization=False)
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=f"{file.name}' is damaged"):
            check_weights(tmp_path, [file])


@pytest.mark.parametrize("name", ["model.pt", "optimizer.pt"])
def test_a_file_of_torch_under_another_name_is_read_only_where_it_must_hold_weights(tmp_path: Path, name: str) -> None:
    torch.save({"a": torch.zeros(4)}, tmp_path / name, _use_new_zipfile_serialization=False)
    check_weights(tmp_path, [tmp_path / name])
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:-3])
    if name == "model.pt":
        with pytest.raises(CheckpointError, match="is damaged"):
            check_weights(tmp_path, [tmp_path / name])
    else:
        check_weights(tmp_path, [tmp_path / name])


def test_memory_that_is_exhausted_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*args: Any, **kwargs: Any) -> None:
        raise MemoryError

    [file] = write(tmp_path, "torch before 1.6")
    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(MemoryError):
        check_weights(tmp_path, [file])


def test_a_part_that_is_missing_or_holds_something_else_is_named(tmp_path: Path) -> None:
    first, second = write(tmp_path, "parts")
    second.write_bytes(first.read_bytes())
    with pytest.raises(CheckpointError, match=r"model-2-of-2.safetensors' lacks \['b'\]"):
        check(tmp_path)
    second.unlink()
    with pytest.raises(CheckpointError, match=r"model-2-of-2.safetensors' is missing"):
        check(tmp_path)
    with pytest.raises(CheckpointError, match=r"model-2-of-2.safetensors"):
        load_weights(torch.nn.Linear(1, 1), tmp_path)


def test_a_checkpoint_without_weights_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has no weights"):
        check(tmp_path)


@pytest.mark.parametrize("part", ["../elsewhere.safetensors", "/etc/passwd", "", 3, None, ["a"]])
def test_an_index_that_names_a_file_elsewhere_is_refused(tmp_path: Path, part: Any) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": part}}))
    for read in (parts_of, lambda _: load_weights(torch.nn.Linear(1, 1), tmp_path)):
        with pytest.raises(CheckpointError, match=r"index.json"):
            read(index)


class Canary:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_check_runs_nothing_that_a_file_of_torch_says(tmp_path: Path, is_new: bool) -> None:
    (tmp_path / "weights").mkdir()
    torch.save(
        Canary(tmp_path / "canary"), tmp_path / "weights/pytorch_model.bin", _use_new_zipfile_serialization=is_new
    )
    if is_new:
        check(tmp_path / "weights")
    else:
        with pytest.raises(CheckpointError, match="is damaged"):
            check(tmp_path / "weights")
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(OSError(errno.ENOSPC, "No space left on device"), id="disk"),
        pytest.param(distributed.DistNetworkError("reset by peer"), id="peer"),
        pytest.param(torch.OutOfMemoryError("CUDA out of memory."), id="memory"),
    ],
)
def test_an_error_of_the_surroundings_is_not_taken_for_damage(error: Exception, tmp_path: Path) -> None:
    class CannotTake(torch.nn.Linear):
        def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
            raise error

    model = CannotTake(2, 2)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(type(error)) as raised:
        load_weights(model, tmp_path)
    assert raised.value is error
