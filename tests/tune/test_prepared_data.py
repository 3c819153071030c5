"""Datasets in memory that `make_trainer` maps are mapped once in a search, wherever that changes no numbers."""

from __future__ import annotations

import contextlib
import functools
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import pytest
import torch
import transformers
from datasets import Dataset

from hpsearch import Categorical
from hpsearch.any_trainer import prepared_data
from hpsearch.any_trainer.prepared_data import mapping_once
from tests.support.small_trainer import TwoLayers, points, transformers_trainer
from tests.support.small_tune import curves, search

CALLS = Path("calls.txt")  # a function that notes its calls in memory changes what it refers to
FACTOR = 2


@pytest.fixture(autouse=True)
def _undisturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without progress bars, and without what an earlier search of this process has prepared."""
    monkeypatch.setattr(prepared_data, "folder_of_process", lambda: tmp_path)
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def numbers(size: int = 4) -> Dataset:
    return Dataset.from_dict({"x": list(range(size))})


def called() -> int:
    return len(CALLS.read_text().splitlines()) if CALLS.exists() else 0


def note(example: dict[str, Any]) -> None:
    with CALLS.open("a") as file:
        file.write(f"{example}\n")


def with_factor(example: dict[str, Any]) -> dict[str, Any]:
    note(example)
    return {"x": example["x"] * FACTOR}


def prepared(size: int, seed: int) -> Dataset:
    return Dataset.from_list([{"x": each["x"].tolist(), "labels": each["labels"]} for each in points(size, seed)])


TRAIN, DEV = prepared(16, seed=0), prepared(32, seed=1)


def make_trainer(trial: Any) -> transformers.Trainer:
    scale = trial.params.get("scale", 2.0)

    def scaled(example: dict[str, Any]) -> dict[str, Any]:
        note(example)
        return {"x": [each * scale for each in example["x"]]}

    rate = trial.params.get("learning_rate", 0.01)
    data = {"train_dataset": TRAIN.map(scaled), "eval_dataset": DEV.map(scaled)}
    return transformers_trainer("made", TwoLayers(), learning_rate=rate, **data)


@pytest.mark.slow
def test_data_are_mapped_once_and_trials_make_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    once = search(make_trainer)
    assert called() == 16 + 32
    once.load_model()
    assert called() == 16 + 32
    monkeypatch.setattr(datasets, "is_caching_enabled", lambda: False)
    assert curves(search(make_trainer, output_dir="each time")) == curves(once)
    assert called() > 4 * (16 + 32)


def test_a_parameter_that_changes_the_preparation_changes_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    space = {"scale": Categorical([0.5, 1.0, 2.0])}
    kept = search(make_trainer, space)
    monkeypatch.setattr(datasets, "is_caching_enabled", lambda: False)
    assert curves(search(make_trainer, space, output_dir="each time")) == curves(kept)
    assert len({str(each) for each in curves(kept)}) == 3


@pytest.mark.process
def test_workers_use_what_the_searching_process_has_prepared() -> None:
    assert len(search(make_trainer, n_jobs=2).run_summary.records) == 3
    assert called() == 16 + 32


@pytest.mark.process
def test_workers_keep_nothing_if_the_program_has_disabled_caching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "is_caching_enabled", lambda: False)
    search(make_trainer, n_jobs=2, n_trials=2, preflight=False)
    assert called() == 3 * (16 + 32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "prepared"
    made.mkdir()
    return made


Prepare = Callable[[Dataset], Any]


def results(folder: Path, prepare: Prepare, times: int = 3, at_once: bool = True) -> list[Any]:
    found = []
    for _ in range(times):
        with mapping_once(folder, at_once):
            found.append(prepare(numbers())["x"][:])
    return found


@pytest.mark.parametrize(
    "prepare",
    [
        lambda data: data.map(with_factor),
        lambda data: data.map(function=with_factor, desc="Scaling"),
        lambda data: data.map(with_factor).map(with_factor),
        lambda data: data.filter(lambda example: note(example) is None and example["x"] > 1),
        lambda data: data.map(with_factor).filter(lambda example: example["x"] > 1).map(with_factor),
        lambda data: data.select([1, 2]).map(with_factor),
        lambda data: datasets.DatasetDict({"a": data}).map(with_factor)["a"],
    ],
)
def test_the_rows_are_those_of_the_first_time(folder: Path, prepare: Prepare) -> None:
    expected = prepare(numbers())["x"][:]
    CALLS.unlink()
    with mapping_once(folder, at_once=True):
        assert prepare(numbers())["x"][:] == expected
    times = called()
    assert results(folder, prepare, times=2) == [expected] * 2
    assert called() == times > 0


def test_format_and_features_are_kept(folder: Path) -> None:
    for _ in range(2):
        with mapping_once(folder, at_once=True):
            made = numbers().with_format("torch").map(with_factor, features=datasets.Features(x=datasets.Value("int8")))
        assert torch.equal(made["x"][:], torch.tensor([0, 2, 4, 6], dtype=torch.int8))
        assert made.features == datasets.Features(x=datasets.Value("int8"))
    assert called() == 4


class Case(NamedTuple):
    """A preparation that has another result, or another effect, each time it is made."""

    prepare: Prepare
    is_pure: bool = False  # its result is the same


def drawing(data: Dataset) -> Dataset:
    return data.map(lambda example: {"x": note(example) or random.random()})


def drawing_with_torch(data: Dataset) -> Dataset:
    return data.map(lambda example: {"x": note(example) or float(torch.rand(()))})


def drawing_after_a_kept_result(data: Dataset) -> Dataset:
    return drawing(data.map(lambda example: {"x": 1 + example["x"]}))


def generator_after_a_kept_result(data: Dataset) -> Dataset:
    return with_a_generator(data.map(lambda example: {"x": 1 + example["x"]}))


SEEN: list[int] = []


def counting(data: Dataset) -> Dataset:
    SEEN.append(0)

    def count(example: dict[str, Any]) -> dict[str, Any]:
        note(example)
        SEEN.append(0)
        return {"x": len(SEEN)}

    return data.map(count)


def with_a_generator(data: Dataset) -> Dataset:
    stream = (each for each in "ab")
    return data.map(lambda example: {"x": note(example) or stream is None})


def for_its_effect(data: Dataset) -> Dataset:
    return data.map(note)


CASES = {
    "random numbers": Case(drawing),
    "random numbers of torch": Case(drawing_with_torch),
    "random numbers, of a result that is kept": Case(drawing_after_a_kept_result),
    "it cannot be hashed, of a result that is kept": Case(generator_after_a_kept_result, is_pure=True),
    "what it refers to changes": Case(counting),
    "it cannot be hashed": Case(with_a_generator, is_pure=True),
    "it changes no rows": Case(for_its_effect, is_pure=True),
    "the program keeps it in memory": Case(lambda data: data.map(with_factor, keep_in_memory=True), is_pure=True),
    "the program loads nothing": Case(lambda data: data.map(with_factor, load_from_cache_file=False), is_pure=True),
}


@pytest.mark.parametrize("name", CASES)
def test_what_may_differ_is_made_each_time(folder: Path, name: str) -> None:
    found = results(folder, CASES[name].prepare)
    assert called() == 3 * 4
    assert (found[0] == found[1]) is CASES[name].is_pure
    kept = [each for each in folder.iterdir() if each.is_dir()]
    assert len(kept) == name.endswith("of a result that is kept")
    assert not list(folder.glob("*/cache-*")), "datasets keeps it itself"


def scaled(value: int) -> int:
    return value * FACTOR


def with_scaled(example: dict[str, Any]) -> dict[str, Any]:
    return {"x": scaled(example["x"])}


def with_factors(example: dict[str, Any]) -> dict[str, Any]:
    return {"x": sum(each * FACTOR for each in [example["x"]])}


@pytest.mark.parametrize(
    "function",
    [with_factor, with_scaled, with_factors, functools.partial(with_scaled)],
    ids=["read", "in a function called", "in a generator", "partial"],
)
def test_a_global_variable_of_a_function_of_a_module_is_part_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, function: Any
) -> None:
    assert results(folder, lambda data: data.map(function), times=1) == [[0, 2, 4, 6]]
    monkeypatch.setattr(f"{__name__}.FACTOR", 3)
    assert results(folder, lambda data: data.map(function), times=1) == [[0, 3, 6, 9]]


def test_an_edited_function_of_a_module_is_another_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert results(folder, lambda data: data.map(with_scaled), times=1) == [[0, 2, 4, 6]]
    monkeypatch.setattr(f"{__name__}.scaled", lambda value: -value)
    assert results(folder, lambda data: data.map(with_scaled), times=1) == [[0, -1, -2, -3]]


def test_a_result_is_kept_when_it_is_asked_for_a_second_time(folder: Path) -> None:
    results(folder, lambda data: data.map(with_factor), times=1, at_once=False)
    assert not [each for each in folder.iterdir() if each.is_dir()]
    results(folder, lambda data: data.map(with_factor), times=3, at_once=False)
    assert called() == 2 * 4


@pytest.mark.parametrize("fault", ["small", "read-only"])
def test_a_disk_that_cannot_keep_a_result_costs_nothing_but_time(
    folder: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("read-only")

    if fault == "small":
        monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 1))  # type: ignore[attr-defined]
    else:
        monkeypatch.setattr(Dataset, "save_to_disk", fail)
    assert results(folder, lambda data: data.map(with_factor)) == [[0, 2, 4, 6]] * 3
    assert list(folder.iterdir()) == []


def test_data_from_disk_are_left_to_datasets(folder: Path, tmp_path: Path) -> None:
    numbers().save_to_disk(str(tmp_path / "stored"))
    for _ in range(2):
        with mapping_once(folder, at_once=True):
            made = datasets.load_from_disk(str(tmp_path / "stored")).map(with_factor)
        assert Path(made.cache_files[0]["filename"]).parent == tmp_path / "stored"
    assert called() == 4
    assert list(folder.iterdir()) == []


def test_map_is_put_back(folder: Path) -> None:
    before = Dataset.map
    block = contextlib.ExitStack()
    block.enter_context(mapping_once(folder))
    assert Dataset.map is not before
    with pytest.raises(RuntimeError), block:
        raise RuntimeError
    assert Dataset.map is before
    with mapping_once(None), mapping_once(folder / "of another machine"):
        assert Dataset.map is before


def test_a_parameter_that_only_the_mapped_function_reads_counts_as_read_in_each_trial() -> None:
    def make(trial: Any) -> transformers.Trainer:
        data = TRAIN.map(lambda example: {"x": [each * trial.params["scale"] for each in example["x"]]})
        return transformers_trainer("made", TwoLayers(), train_dataset=data, eval_dataset=DEV)

    best = search(make, {"scale": Categorical([1.0, 2.0])}, n_trials=2)
    first, second = curves(best)
    assert first != second
