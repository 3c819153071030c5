"""What is packed for workers comes out the same, its large data in memory that all share and nobody can spoil."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch

from hpsearch.executors.processes.payload import pack
from hpsearch.executors.processes.pickling import culprit
from tests.support.models import weights_of
from tests.support.small_trainer import TwoLayers

MEGABYTE = 2**20


def test_arrays_tensors_and_tables_come_out_the_same(tmp_path: Path) -> None:
    whole = {
        "array": np.arange(MEGABYTE, dtype=np.float32),
        "small": np.arange(3),
        "strided": np.arange(MEGABYTE).reshape(2, -1).T,
        "tensor": torch.arange(MEGABYTE, dtype=torch.float32).reshape(4, -1),
        "half": torch.ones(MEGABYTE, dtype=torch.bfloat16),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3),
        "transposed": torch.randn(300, 200).T,
        "dataset": datasets.Dataset.from_dict({"x": list(range(50_000))}),
    }
    again = pack(whole, tmp_path / "data").load()
    for name, value in whole.items():
        if isinstance(value, np.ndarray):
            assert np.array_equal(again[name], value)
        elif isinstance(value, torch.Tensor):
            assert torch.equal(again[name], value)
            assert (again[name].dtype, again[name].stride()) == (value.dtype, value.stride())
    assert again["dataset"]["x"][:] == whole["dataset"]["x"][:]


def test_views_of_one_tensor_travel_as_one(tmp_path: Path) -> None:
    drawn = torch.randn(1000, 1000)
    payload = pack([{"x": row, "all": drawn} for row in drawn], tmp_path / "data")
    assert payload.content[1] < 1e6
    assert payload.bytes_in_file - payload.content[1] < 4.2e6
    rows = payload.load()
    assert torch.equal(torch.stack([row["x"] for row in rows]), drawn)
    rows[0]["x"][0] = 7.0
    assert rows[5]["all"][0, 0] == 7.0


def test_what_one_worker_writes_no_other_one_sees(tmp_path: Path) -> None:
    payload = pack({"a": torch.zeros(MEGABYTE), "b": np.zeros(MEGABYTE)}, tmp_path / "data")
    first, second = payload.load(), payload.load()
    first["a"] += 1
    first["b"] += 1
    assert second["a"].sum() == second["b"].sum() == 0
    third = payload.load()
    assert third["a"].sum() == third["b"].sum() == 0


def test_a_model_with_shared_weights_and_its_gradients_settings_come_out_the_same(tmp_path: Path) -> None:
    model = TwoLayers(3000)
    model.tied = model.hidden.weight
    model.output.weight.requires_grad_(False)
    again = pack(model, tmp_path / "data").load()
    torch.testing.assert_close(weights_of(again), weights_of(model), rtol=0, atol=0)
    assert again.tied is again.hidden.weight
    assert [each.requires_grad for each in again.parameters()] == [each.requires_grad for each in model.parameters()]


def test_functions_without_a_module_travel_along(tmp_path: Path) -> None:
    offset = 5
    payload = pack(lambda value: value + offset, tmp_path / "data")
    assert payload.load()(1) == 6
    assert payload.extents == ()


def test_a_payload_is_small(tmp_path: Path) -> None:
    payload = pack(np.zeros(MEGABYTE), tmp_path / "data")
    assert len(pickle.dumps(payload)) < 1000


class Holder:
    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda lock: Holder(model_init=lambda: lock), ".model_init"),
        (lambda lock: Holder(callbacks=[1, lock]), ".callbacks[1]"),
        (lambda lock: Holder(data_collator=Holder(lock=lock)), ".data_collator.lock"),
        (lambda lock: Holder(sets={"dev": lock}), ".sets['dev']"),
    ],
)
def test_what_cannot_be_pickled_is_named(make: Callable[[Any], Any], name: str) -> None:
    found = culprit(make(threading.Lock()))
    assert found is not None
    assert found[0] == name
    assert "lock" in found[1]
    assert culprit(make(3)) is None


def test_tensors_over_parts_of_one_array_come_out_the_same(tmp_path: Path) -> None:
    array = np.arange(MEGABYTE, dtype=np.float32)
    part, whole = torch.from_numpy(array[:1000]), torch.from_numpy(array)
    again = pack((part, whole), tmp_path / "data").load()
    assert torch.equal(again[0], part)
    assert torch.equal(again[1], whole)
