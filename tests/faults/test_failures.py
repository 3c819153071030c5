"""Whatever goes wrong inside a trial is in its record, costs that trial only, and leaves nothing behind."""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hpsearch import TooManyFailuresError
from tests.support.models import accuracy
from tests.support.scarce_memory import OUT_OF_MEMORY
from tests.support.search_processes import (
    assert_disk_and_storage_agree,
    assert_nothing_is_left_over,
    load,
    records_on_disk,
)
from tests.support.searching import scripted, states, without_result
from tests.support.small_search import fails_in, records_of, search
from tests.support.small_trainer import TwoLayers, points

# What can go wrong: in trial 1 of three.


class Present:
    """Knows which trial runs, and whether the models of the trials before it are gone."""

    def __init__(self) -> None:
        self.trial = -1
        self.models: list[weakref.ref[torch.nn.Module]] = []
        self.alive: list[int] = []
        self.fail_in_model_init: Callable[[], None] = lambda: None
        self.fail_in_forward: Callable[[], None] = lambda: None

    def model_init(self, trial: Any) -> torch.nn.Module:
        self.trial = trial.number
        self.alive.append(sum(each() is not None for each in self.models))
        model = BreaksDown(lambda: self.fail_in_forward() if self.trial == 1 else None)
        self.models.append(weakref.ref(model))
        if self.trial == 1:
            self.fail_in_model_init()
        return model


class BreaksDown(TwoLayers):
    def __init__(self, fail: Callable[[], None]) -> None:
        super().__init__()
        self.fail = fail

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        outputs = super().forward(x, labels)
        self.fail()
        return outputs


class BrokenAt(torch.utils.data.Dataset):
    """Samples of which number 137 cannot be read in trial 1."""

    def __init__(self, present: Present) -> None:
        self._samples, self._present = points(160, seed=0), present

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 137 and self._present.trial == 1:
            raise OSError(f"sample {index} cannot be read")
        return self._samples[index]


def raises(error: BaseException) -> Callable[[], None]:
    def fail_on_purpose() -> None:
        raise error

    return fail_on_purpose


def in_model_init(present: Present) -> dict[str, Any]:
    present.fail_in_model_init = raises(ValueError("no such model"))
    return {}


def in_compute_metrics(present: Present) -> dict[str, Any]:
    def metrics(prediction: Any) -> dict[str, float]:
        if present.trial == 1:
            raise ZeroDivisionError("no positives")
        return accuracy(prediction)

    return {"compute_metrics": metrics}


def in_the_data(present: Present) -> dict[str, Any]:
    return {"train_dataset": BrokenAt(present), "per_device_train_batch_size": 32}


def in_forward(error: BaseException) -> Callable[[Present], dict[str, Any]]:
    def prepare(present: Present) -> dict[str, Any]:
        present.fail_in_forward = raises(error)
        return {}

    return prepare


@pytest.mark.parametrize(
    ("prepare", "reason", "place"),
    [
        (in_model_init, "ValueError: no such model", "in model_init"),
        (in_compute_metrics, "ZeroDivisionError: no positives", "in metrics"),
        (in_the_data, "OSError: sample 137 cannot be read", "in __getitem__"),
        (in_forward(MemoryError("80 GB are not enough")), "MemoryError: 80 GB are not enough", "in forward"),
        (in_forward(MemoryError()), "MemoryError: ", "in forward"),
        (in_forward(RuntimeError(OUT_OF_MEMORY)), f"RuntimeError: {OUT_OF_MEMORY}", "in forward"),
        (
            in_forward(torch.cuda.OutOfMemoryError("CUDA out of memory.")),
            "OutOfMemoryError: CUDA out of memory.",
            "in forward",
        ),
    ],
    ids=[
        "model_init",
        "compute_metrics",
        "sample 137",
        "MemoryError",
        "silent MemoryError",
        "CUDA",
        "OutOfMemoryError",
    ],
)
def test_an_error_in_a_trial_is_recorded_and_the_study_goes_on(
    tmp_path: Path, prepare: Callable[[Present], dict[str, Any]], reason: str, place: str
) -> None:
    present = Present()
    best = search(tmp_path, 3, trainer={"model_init": present.model_init, **prepare(present)})
    assert states(best) == ["complete", "failed", "complete"]
    failed = records_of(best)[1]
    assert failed.reason == reason
    assert place in failed.traceback
    assert (failed.values, failed.checkpoint) == ((), None)
    on_disk = assert_disk_and_storage_agree(tmp_path / "study")[1]
    assert (on_disk["reason"], on_disk["traceback"]) == (failed.reason, failed.traceback)
    assert load(tmp_path / "study").trials[1].user_attrs["hpsearch:reason"] == reason
    assert_nothing_is_left_over(tmp_path / "study")
    assert present.alive == [0, 0, 0], "the next model is built when the last one is gone"
    assert [each() for each in present.models] == [None] * 3


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_an_objective_that_is_never_finite_fails_the_trial(tmp_path: Path, value: float) -> None:
    present = Present()
    objective = scripted([0.5, 0.5], [value, value], [0.4, 0.4])
    options = {"compute_objective": objective, "direction": "minimize", "sampler": "random"}  # which asks nobody again
    best = search(tmp_path, 3, trainer={"model_init": present.model_init}, **options)
    assert states(best) == ["complete", "failed", "complete"]
    failed = records_of(best)[1]
    assert failed.reason == f"the objective was never finite (last reports: {value}, {value})"
    assert len(failed.reports) == 2
    assert (best.run_id, best.objective) == ("2", 0.4)
    assert_disk_and_storage_agree(tmp_path / "study")
    assert_nothing_is_left_over(tmp_path / "study")
    assert present.alive == [0, 0, 0]


def test_a_trial_that_exits_ends_the_search_and_goes_on_with_the_same_command(tmp_path: Path) -> None:
    present = Present()
    present.fail_in_forward = lambda: sys.exit(3)
    with pytest.raises(SystemExit) as caught:
        search(tmp_path, 3, trainer={"model_init": present.model_init})
    assert caught.value.code == 3
    del caught
    left = records_on_disk(tmp_path / "study")
    assert [record["state"] for record in left] == ["complete", "interrupted"]
    assert left[1]["reason"] == "ended by SystemExit(3)"
    stored = load(tmp_path / "study").trials[1]
    assert stored.state.name == "RUNNING"
    assert stored.user_attrs["hpsearch:reason"] == "ended by SystemExit(3)"
    assert [each() for each in present.models] == [None] * 2
    best = search(tmp_path, 3)
    assert states(best) == ["complete"] * 3
    assert records_of(best)[1].params == left[1]["params"]
    assert_disk_and_storage_agree(tmp_path / "study")


# Too many of them.


def test_five_failures_one_after_the_other_end_the_search_with_the_first_reason(tmp_path: Path) -> None:
    init = fails_in(*range(1, 20))
    with pytest.raises(TooManyFailuresError) as caught:
        search(tmp_path, 8, trainer={"model_init": init})
    assert len(init.trials) == 6
    message = str(caught.value)
    assert "The last 5 trials failed" in message
    assert "max_failures" in message
    assert "trial 1: RuntimeError: out of luck in trial 1" in message
    assert "in fail" in message, "the traceback of the first one"
    assert "trial 2" not in message
    assert (caught.value.best_run.run_id, states(caught.value.best_run)) == ("0", ["complete", *["failed"] * 5])
    assert caught.value.best_run.load_model() is not None
    assert_nothing_is_left_over(tmp_path / "study")

    best = search(tmp_path, 8)
    assert states(best) == ["complete", *["failed"] * 5, "complete", "complete"]
    assert_disk_and_storage_agree(tmp_path / "study")


def test_the_next_session_counts_its_own_failures(tmp_path: Path) -> None:
    for already in (2, 4):
        with pytest.raises(TooManyFailuresError, match=rf"trial {already - 2}: .*out of luck in trial {already - 2}"):
            search(tmp_path, 8, trainer={"model_init": fails_in()}, max_failures=2)
        assert len(records_on_disk(tmp_path / "study")) == already


def test_a_search_whose_last_trials_all_failed_says_so_too(tmp_path: Path) -> None:
    with pytest.raises(TooManyFailuresError) as caught:
        search(tmp_path, 5, trainer={"model_init": fails_in()})
    assert caught.value.best_run.run_id is None
    assert states(caught.value.best_run) == ["failed"] * 5


def test_objectives_that_are_never_finite_count_as_failures(tmp_path: Path) -> None:
    objective = scripted(*[[float("nan")] * 2] * 3)
    with pytest.raises(TooManyFailuresError, match="trial 0: the objective was never finite"):
        search(tmp_path, 8, compute_objective=objective, direction="minimize", max_failures=3)
    assert len(records_on_disk(tmp_path / "study")) == 3


def test_failures_with_a_success_between_them_do_not_end_the_search(tmp_path: Path) -> None:
    best = search(tmp_path, 12, trainer={"model_init": fails_in(0, 1, 2, 3, 5, 6, 7, 8, 10, 11)})
    expected = ["failed"] * 4 + ["complete"] + ["failed"] * 4 + ["complete"] + ["failed"] * 2
    assert states(best) == expected


def test_without_a_limit_every_trial_may_fail(tmp_path: Path) -> None:
    error = without_result(search, tmp_path, 7, trainer={"model_init": fails_in()}, max_failures=None)
    assert states(error) == ["failed"] * 7
    said = (
        r"No trial has a result: 7 failed\. The first failure, trial 0: RuntimeError: out of luck in trial 0 \(.*, line"
    )
    assert re.match(rf"{said} \d+, in fail\)\.$", str(error))
