"""The fingerprint of data: the same in every process, another one for other data, and never a wrong alarm."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset
from transformers import BertModel

from hpsearch import FromPretrained, TrainingArguments
from hpsearch.search.store.provenance import describe_environment, differences, fingerprint
from tests.support.models import classification_data, language_data
from tests.support.searching import ROOT
from tests.support.small_trainer import points


class Augments(Dataset[dict[str, Any]]):
    """Gives another view of the same sample every time."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {"x": torch.randn(2) + random.random() + np.random.rand(), "labels": place % 2}


class Raises(Dataset[Any]):
    """Raises on its last sample."""

    def __len__(self) -> int:
        return 137

    def __getitem__(self, place: int) -> dict[str, Any]:
        if place == 136:
            raise OSError("the file is damaged")
        return {"x": place}


class Stream(IterableDataset[dict[str, Any]]):
    """Has no length."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from points(4, seed=0)


class Opaque:
    """A value whose `repr` holds its address."""


class CountsReads(Dataset[int]):
    """Counts how often it is asked."""

    def __init__(self, size: int) -> None:
        self._size, self.reads = size, 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: int) -> int:
        if not 0 <= place < self._size:
            raise IndexError(place)
        self.reads += 1
        return place


def image(value: int) -> Image.Image:
    return Image.new("RGB", (4, 4), (value, 0, 0))


def hugging_face(seed: int = 0) -> datasets.Dataset:
    return datasets.Dataset.from_list(classification_data(20, seed=seed))


STABLE: dict[str, Callable[[], Any]] = {
    "list of tensors": lambda: points(20, seed=0),
    "list of lists": lambda: language_data(20),
    "dataset": hugging_face,
    "dataset of torch": lambda: hugging_face().with_format("torch"),
    "dataset of numpy": lambda: hugging_face().with_format("numpy"),
    "shuffled dataset": lambda: hugging_face().shuffle(seed=1),
    "dict of datasets": lambda: {"near": points(8, seed=0), "far": hugging_face()},
    "dataset dict": lambda: datasets.DatasetDict({"a": hugging_face(), "b": hugging_face(1)}),
    "tensors": lambda: TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6)),
    "subset": lambda: Subset(points(20, seed=0), [1, 5, 9]),
    "arrays": lambda: [{"x": np.arange(3, dtype=np.float32), "y": np.float64(0.5)}] * 4,
    "half precision": lambda: [torch.arange(3).to(torch.bfloat16)] * 3,
    "texts": lambda: ["a", "b", "ä"],
    "bytes and nothing": lambda: [{"a": b"x", "b": None, "c": True, "d": 1.5}] * 2,
    "images": lambda: [{"image": image(value)} for value in range(3)],
    "sets of keys in another order": lambda: [{"b": 1, "a": 2}, {"a": 2, "b": 1}],
    "objects": lambda: [{"x": Opaque(), "y": place} for place in range(3)],
    "range": lambda: range(1000),
    "empty": lambda: [],
    "one": lambda: [1],
}


@pytest.mark.parametrize("name", STABLE)
def test_data_made_again_have_the_same_fingerprint(name: str) -> None:
    first, second = fingerprint(STABLE[name]()), fingerprint(STABLE[name]())
    assert first == second
    assert "samples, " in first


@pytest.mark.process
def test_another_process_gives_the_same_fingerprints() -> None:
    code = (
        "import json\n"
        "from tests.search.test_provenance import STABLE, fingerprint\n"
        "print(json.dumps({name: fingerprint(make()) for name, make in STABLE.items()}))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "123"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == {name: fingerprint(make()) for name, make in STABLE.items()}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: points(20, seed=0), lambda: points(20, seed=1)),
        (lambda: points(20, seed=0), lambda: points(21, seed=0)),
        (hugging_face, lambda: hugging_face(1)),
        (hugging_face, lambda: hugging_face().shuffle(seed=1)),
        (hugging_face, lambda: hugging_face().remove_columns("labels")),
        (hugging_face, lambda: hugging_face().rename_column("labels", "label")),
        (lambda: {"a": points(4, 0)}, lambda: {"b": points(4, 0)}),
        (lambda: {"a": points(4, 0), "b": points(4, 1)}, lambda: {"a": points(4, 1), "b": points(4, 0)}),
        (lambda: {"a": points(4, 0)}, lambda: points(4, 0)),
        (lambda: [{"x": "ab", "y": "c"}], lambda: [{"x": "a", "y": "bc"}]),
        (lambda: [[1, 23]], lambda: [[12, 3]]),
        (lambda: [{"x": 1}], lambda: [{"x": "1"}]),
        (lambda: [{"x": 1}], lambda: [{"x1": None}]),
        (lambda: [1, 2], lambda: [2, 1]),
        (lambda: [{"image": image(1)}], lambda: [{"image": image(2)}]),
        (lambda: [0] * 5, lambda: []),
    ],
)
def test_other_data_have_another_fingerprint(one: Callable[[], Any], other: Callable[[], Any]) -> None:
    assert fingerprint(one()) != fingerprint(other())


def test_what_gives_another_sample_each_time_is_known_by_its_length_alone() -> None:
    assert fingerprint(Augments(20)) == "20 samples"
    assert fingerprint({"train": Augments(20), "test": [1]}).startswith("train: 20 samples, test: 1 samples, ")


def test_what_raises_is_known_by_its_length_alone() -> None:
    assert fingerprint(Raises()) == "137 samples"


def test_a_stream_is_a_stream() -> None:
    streams = [
        Stream(),
        hugging_face().to_iterable_dataset(),
        (sample for sample in points(4, 0)),
        iter([]),
    ]
    assert [fingerprint(each) for each in streams] == ["stream"] * 4


def test_a_stream_is_not_consumed() -> None:
    stream = iter(range(4))
    fingerprint(stream)
    assert list(stream) == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [0, 1, 2, 15, 16, 17, 1000])
def test_a_large_dataset_is_not_read_through(size: int) -> None:
    data = CountsReads(size)
    fingerprint(data)
    assert data.reads <= 32


def test_the_first_and_the_last_sample_count() -> None:
    base = list(range(1000))
    assert fingerprint(base) != fingerprint([-1, *base[1:]])
    assert fingerprint(base) != fingerprint([*base[:-1], -1])


def test_the_surroundings_are_json_and_say_what_differs(tmp_path: Any) -> None:
    def surroundings(**changes: Any) -> dict[str, Any]:
        args = TrainingArguments(str(tmp_path), use_cpu=True, **changes)
        return describe_environment(args, {"train_dataset": points(4, 0), "eval_dataset": None})

    first = surroundings(weight_decay=0.1)
    assert json.loads(json.dumps(first)) == first
    assert first["versions"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert set(first["data"]) == {"train_dataset"}
    assert differences(first, surroundings(weight_decay=0.1)) == []
    assert differences(first, surroundings(weight_decay=0.2)) == ["weight_decay 0.1 -> 0.2"]
    assert differences(first, surroundings(weight_decay=0.1, disable_tqdm=True)) == []


def test_secrets_are_not_written_down(tmp_path: Any) -> None:
    args = TrainingArguments(str(tmp_path), use_cpu=True, hub_token="hf_very_secret")
    assert "hf_very_secret" not in json.dumps(describe_environment(args, {}))


def test_no_secret_among_the_arguments_is_recorded_or_shown() -> None:
    @dataclasses.dataclass
    class WithKey(TrainingArguments):
        service_password: str = ""

    args = WithKey("out", hub_token="hf_SECRET", service_password="hunter2", use_cpu=True)
    recorded = describe_environment(args, {})
    for shown in (str(recorded), repr(TrainingArguments("out", hub_token="hf_SECRET", use_cpu=True)), repr(args)):
        assert "hf_SECRET" not in shown
    assert "hunter2" not in str(recorded)
    by_an_earlier_version = {"arguments": {"service_password": "hunter2", "seed": 1}}
    assert differences(by_an_earlier_version, recorded) == ["seed 1 -> 42"]


def test_secrets_in_the_values_of_arguments_are_neither_recorded_nor_shown() -> None:
    url, options = "https://user:hunter2@host/x", {"api_key": "hunter2", "decay": 0.1}
    args = TrainingArguments("out", run_name=url, lr_scheduler_kwargs=options, use_cpu=True)
    recorded = describe_environment(args, {})
    assert recorded["arguments"]["run_name"] == "https://***@host/x"
    assert recorded["arguments"]["lr_scheduler_kwargs"] == {"api_key": "***", "decay": 0.1}
    by_an_earlier_version = {"arguments": {"hub_model_id": url, "lr_scheduler_kwargs": {**options, "decay": 0.2}}}
    shown = str(differences(by_an_earlier_version, recorded))
    assert "hub_model_id" in shown
    assert "'decay': 0.2" in shown
    assert "hunter2" not in shown


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (datasets.DatasetInfo(dataset_name="glue", config_name="sst2"), "glue sst2 train"),
        (datasets.DatasetInfo(dataset_name="imdb", config_name="default"), "imdb train"),
        (datasets.DatasetInfo(dataset_name="csv"), None),
        (datasets.DatasetInfo(), None),
    ],
    ids=["configuration", "default configuration", "read from files", "made here"],
)
def test_a_dataset_of_the_hub_is_named_in_a_session(info: datasets.DatasetInfo, expected: str | None) -> None:
    data = datasets.Dataset.from_dict({"x": [1]}, info=info, split="train")
    names = describe_environment(TrainingArguments("out"), {"train_dataset": data, "eval_dataset": [1]})["names"]
    assert names == ({} if expected is None else {"train_dataset": expected})


def test_a_model_is_named_by_its_weights_or_by_the_function_that_makes_it() -> None:
    def name_of_model(model_init: object) -> str | None:
        described = describe_environment(TrainingArguments("out"), {}, {"model_init": model_init})
        name: str | None = described["names"].get("model")
        return name

    assert name_of_model(FromPretrained(BertModel, "some/weights")) == "some/weights (BertModel)"
    assert name_of_model(points) == "made by tests.support.small_trainer.points"
    assert name_of_model(lambda: None) is None
    assert name_of_model(None) is None
