"""A trial that runs out of memory is trained again in smaller batches, where that was asked for."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from hpsearch import SearchInterrupted
from tests.support.scarce_memory import BATCH, OUT_OF_MEMORY, MakesModels, Memory, NeedsMemory
from tests.support.search_processes import (
    Hold,
    Searches,
    assert_disk_and_storage_agree,
    assert_nothing_is_left_over,
    records_on_disk,
)
from tests.support.searching import AtStep, interrupt, states, without_result
from tests.support.small_search import Steps, fails_in, records_of, search
from tests.support.small_trainer import points


def with_memory(memory: Memory, **changes: Any) -> dict[str, Any]:
    return {**BATCH, "model_init": MakesModels(memory), **changes}


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, torch.cuda.OutOfMemoryError])
def test_a_trial_out_of_memory_runs_again_with_half_the_batch_and_twice_the_accumulation(
    tmp_path: Path, error: type[Exception]
) -> None:
    expected = search(tmp_path / "roomy", 2, trainer=with_memory(Memory()))
    memory, steps = Memory(training=2, error=error), Steps()
    best = search(tmp_path / "tight", 2, steps, trainer=with_memory(memory), oom_fallback=True)
    assert states(best) == ["complete", "complete"]
    assert memory.trained()[:2] == [8, 4]
    assert set(steps.batches) == {(2, 4)}, "the same effective batch"
    for record, other in zip(records_of(best), records_of(expected), strict=True):
        assert record.params == other.params
        assert [report.step for report in record.reports] == [report.step for report in other.reports] == [2, 4]
        assert record.value == pytest.approx(other.value, rel=1e-5)
        assert [each["arguments"] for each in record.fallbacks] == [
            {
                "per_device_train_batch_size": 4,
                "gradient_accumulation_steps": 2,
                "per_device_eval_batch_size": 8,
            },
            {
                "per_device_train_batch_size": 2,
                "gradient_accumulation_steps": 4,
                "per_device_eval_batch_size": 4,
            },
        ]
        assert all(OUT_OF_MEMORY in each["reason"] for each in record.fallbacks)
    on_disk = assert_disk_and_storage_agree(tmp_path / "tight" / "study")
    assert [tuple(record["fallbacks"]) for record in on_disk] == [record.fallbacks for record in records_of(best)]
    assert best.load_model() is not None


def test_a_batch_is_divided_only_as_often_as_it_can_be(tmp_path: Path) -> None:
    memory = Memory(training=0)
    changes = with_memory(memory, per_device_eval_batch_size=8)
    best = without_result(search, tmp_path, 1, trainer=changes, oom_fallback=True)
    assert memory.trained() == [8, 4, 2, 1]
    assert states(best) == ["failed"]
    (record,) = records_of(best)
    assert record.reason == f"RuntimeError: {OUT_OF_MEMORY}"
    assert "in need" in record.traceback
    assert len(record.fallbacks) == 3
    assert len(assert_disk_and_storage_agree(tmp_path / "study")[0]["fallbacks"]) == 3


def test_a_batch_of_an_odd_size_is_divided_evenly(tmp_path: Path) -> None:
    memory, steps = Memory(training=1), Steps()
    changes = with_memory(memory, per_device_train_batch_size=6, train_dataset=points(18, seed=0))
    best = search(tmp_path, 1, steps, trainer=changes, oom_fallback=True)
    assert memory.trained()[:2] == [6, 3]
    assert set(steps.batches) == {(1, 6)}
    assert [report.step for report in records_of(best)[0].reports] == [3, 6]


def test_without_being_asked_a_trial_out_of_memory_fails(tmp_path: Path) -> None:
    memory = Memory(training=4)
    best = without_result(search, tmp_path, 2, trainer=with_memory(memory))
    assert memory.trained() == [8, 8]
    assert states(best) == ["failed", "failed"]
    assert [record.fallbacks for record in records_of(best)] == [(), ()]


def test_other_errors_do_not_make_smaller_batches(tmp_path: Path) -> None:
    init = fails_in()
    best = without_result(search, tmp_path, 2, trainer={"model_init": init}, oom_fallback=True)
    assert len(init.trials) == 2
    assert [record.fallbacks for record in records_of(best)] == [(), ()]


def test_an_evaluation_out_of_memory_is_made_in_smaller_batches_too(tmp_path: Path) -> None:
    expected = search(tmp_path / "roomy", 1, trainer=with_memory(Memory()))
    best = search(tmp_path / "tight", 1, trainer=with_memory(Memory(evaluation=8)), oom_fallback=True)
    assert states(best) == ["complete"]
    assert best.objective == pytest.approx(expected.objective, rel=1e-5)
    assert len(records_of(best)[0].fallbacks) == 1


def test_an_evaluation_is_made_smaller_also_where_training_is_one_sample_at_a_time(
    tmp_path: Path,
) -> None:
    changes = with_memory(Memory(evaluation=2), per_device_train_batch_size=1, per_device_eval_batch_size=8)
    best = search(tmp_path, 1, trainer=changes, oom_fallback=True)
    assert states(best) == ["complete"]
    (record,) = records_of(best)
    assert [each["arguments"]["per_device_eval_batch_size"] for each in record.fallbacks] == [4, 2]
    assert [each["arguments"]["per_device_train_batch_size"] for each in record.fallbacks] == [1, 1]
    assert [report.step for report in record.reports] == [16, 32]


def test_the_model_that_did_not_fit_is_gone_before_the_next_one_is_built(tmp_path: Path) -> None:
    memory = Memory(training=2)
    built: list[weakref.ref[torch.nn.Module]] = []
    alive: list[int] = []

    def model_init(trial: Any) -> torch.nn.Module:
        alive.append(sum(each() is not None for each in built))
        model = NeedsMemory(memory)
        built.append(weakref.ref(model))
        return model

    search(tmp_path, 1, trainer={**BATCH, "model_init": model_init}, oom_fallback=True)
    assert alive == [0, 0, 0]


def test_smaller_batches_go_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    """16 samples in batches of 8 make two updates an epoch; the memory gets short in the second one."""
    expected = search(tmp_path / "roomy", 1, trainer=with_memory(Memory(), save_strategy="epoch"))
    memory = Memory()
    steps = Steps(lambda: setattr(memory, "training", 4), run=0, step=3)
    changes = with_memory(memory, save_strategy="epoch")
    best = search(tmp_path / "tight", 1, steps, trainer=changes, oom_fallback=True)
    assert [step for _, step in steps.steps] == [1, 2, 3, 3, 4]
    assert steps.batches == [(8, 1)] * 3 + [(4, 2)] * 2
    (record,), (other,) = records_of(best), records_of(expected)
    assert [report.step for report in record.reports] == [2, 4]
    assert record.value == pytest.approx(other.value, rel=1e-5)
    assert len(record.fallbacks) == 1
    assert_disk_and_storage_agree(tmp_path / "tight" / "study")
    assert_nothing_is_left_over(tmp_path / "tight" / "study")


def test_an_interrupted_trial_keeps_its_smaller_batches(tmp_path: Path) -> None:
    memory = Memory(training=4)
    changes = with_memory(memory, save_strategy="epoch")
    with pytest.raises(SearchInterrupted):
        search(tmp_path, 1, AtStep(interrupt, run=1, step=3), trainer=changes, oom_fallback=True)
    memory.tried.clear()
    best = search(tmp_path, 1, trainer=changes, oom_fallback=True)
    assert set(memory.trained()) == {4}
    assert len(memory.trained()) == 2 * 2, "two updates, from the checkpoint"
    assert states(best) == ["complete"]
    assert len(records_of(best)[0].fallbacks) == 1


@pytest.mark.fault
def test_a_killed_trial_keeps_its_smaller_batches(tmp_path: Path) -> None:
    changes = with_memory(Memory(training=4))
    with Searches(tmp_path) as searches:
        killed = searches.start(n_trials=1, trainer=changes, oom_fallback=True, hold=Hold(trial=0, step=3))
        killed.wait_until_held()
        killed.kill()
        (left,) = records_on_disk(tmp_path / "study")
        assert (left["state"], len(left["fallbacks"])) == ("running", 1)
        memory, steps = Memory(training=4), Steps()
        best = search(tmp_path, 1, steps, trainer=with_memory(memory, save_strategy="epoch"), oom_fallback=True)
    assert set(memory.trained()) == {4}
    assert [step for _, step in steps.steps] == [3, 4]
    assert records_of(best)[0].fallbacks == tuple(left["fallbacks"])
