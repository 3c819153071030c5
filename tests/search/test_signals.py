"""SIGTERM or SIGUSR1 while a search runs: the trial ends with a checkpoint after the step, and resumes from there."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from hpsearch import BestRun, Float, SearchInterrupted, StorageError, TrialRecord, open_study, tune
from tests.support.searching import AtStep, Events
from tests.support.small_trainer import TwoLayers, small_trainer, transformers_trainer

SPACE = {"weight_decay": Float(0.0, 0.1)}
EVERY_STEP = {"eval_strategy": "steps", "eval_steps": 1}
ONE_STEP_EPOCHS = {"per_device_train_batch_size": 16, "num_train_epochs": 4}


def send(number: int) -> Callable[[], None]:
    return partial(signal.raise_signal, number)


def search(folder: Path, *callbacks: Any, trials: int = 2, progress: Any = False, **arguments: Any) -> BestRun:
    best = small_trainer(folder, *callbacks, **{"learning_rate": 5.0, "dataloader_num_workers": 0, **arguments})
    found = best.hyperparameter_search(
        SPACE, "loss", trials, "minimize", pruner="none", storage="journal", progress=progress
    )
    assert isinstance(found, BestRun)
    return found


def search_for_brought(folder: Path, *callbacks: Any, trials: int = 2, **arguments: Any) -> BestRun:
    def make_trainer(trial: Any) -> Any:
        return transformers_trainer(
            folder, TwoLayers(), *callbacks, **{"learning_rate": 5.0, **arguments, **trial.params}
        )

    found = tune(
        make_trainer,
        SPACE,
        compute_objective="loss",
        n_trials=trials,
        direction="minimize",
        pruner="none",
        storage="journal",
        progress=False,
    )
    assert isinstance(found, BestRun)
    return found


def comparable(best: BestRun) -> list[Any]:
    return [
        (each.state, each.params, [(report.step, report.values) for report in each.reports], each.values)
        for each in best.run_summary.records
    ]


def trial(folder: Path, number: int) -> TrialRecord:
    return next(each for each in open_study(folder / "study").records if each.number == number)


@pytest.mark.parametrize("searched", [search, search_for_brought], ids=["Trainer", "tune"])
@pytest.mark.parametrize(
    ("step", "left_at", "arguments"),
    [
        pytest.param(2, 2, {}, id="before the first evaluation"),
        pytest.param(6, 6, {}, id="after an evaluation"),
        pytest.param(4, 4, {}, id="the last step of an epoch"),
        pytest.param(3, 3, EVERY_STEP, id="a step with an evaluation"),
        pytest.param(4, 4, EVERY_STEP, id="the last step of an epoch with an evaluation"),
        pytest.param(2, 2, ONE_STEP_EPOCHS, id="epochs of one step"),
        pytest.param(2, 2, {**ONE_STEP_EPOCHS, "eval_strategy": "no"}, id="epochs of one step and no evaluation"),
    ],
)
def test_a_trial_is_interrupted_with_a_checkpoint_at_that_step_and_ends_as_an_undisturbed_one(
    tmp_path: Path, step: int, left_at: int, arguments: dict[str, Any], searched: Callable[..., BestRun]
) -> None:
    undisturbed = searched(tmp_path / "a", **arguments)
    at = AtStep(send(signal.SIGTERM), run=1, step=step)
    with pytest.raises(SearchInterrupted, match="interrupted by SIGTERM after 1 of 2 trials") as caught:
        searched(tmp_path / "b", at, **arguments)
    assert (caught.value.signal, caught.value.exit_code) == (signal.SIGTERM, 143)
    assert caught.value.best_run.run_id == "0"
    left = trial(tmp_path / "b", 1)
    assert (left.state.value, left.reason) == ("interrupted", "interrupted by SIGTERM")
    assert at.steps[-1] == (1, left_at)
    assert (tmp_path / "b" / "study" / left.name / f"checkpoint-{left_at}").is_dir()

    again = AtStep(lambda: None, run=0, step=0)
    assert comparable(searched(tmp_path / "b", again, **arguments)) == comparable(undisturbed)
    assert again.steps[0] == (0, left_at + 1)


class AtEndOfTrial(Events):
    """Sends SIGUSR1 when the first trial has ended."""

    def on_trial_end(self, record: TrialRecord) -> None:
        super().on_trial_end(record)
        if record.number == 0:
            signal.raise_signal(signal.SIGUSR1)


def test_between_trials_the_search_ends_at_once(tmp_path: Path) -> None:
    events = AtEndOfTrial()
    with pytest.raises(SearchInterrupted, match="by SIGUSR1 after 1 of 3 trials") as caught:
        search(tmp_path, trials=3, progress=events)
    assert caught.value.exit_code == 138
    assert len(events.begun) == len(events.ended) == 1
    assert events.is_over


def test_a_signal_in_the_last_step_of_the_last_trial_ends_the_search_with_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(SearchInterrupted, match="after 1 of 1 trials") as caught:
        search(tmp_path, AtStep(send(signal.SIGTERM), run=0, step=8), trials=1)
    assert [each.state.value for each in caught.value.best_run.run_summary.records] == ["complete"]


class AfterSteps(TrainerCallback):
    """Sends SIGTERM after so many steps of the session."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._left -= 1
        if self._left == 0:
            signal.raise_signal(signal.SIGTERM)


def test_rungs_judge_an_interrupted_search_as_an_undisturbed_one(tmp_path: Path) -> None:
    def with_rungs(folder: Path, *callbacks: Any) -> BestRun:
        found = small_trainer(folder, *callbacks, num_train_epochs=4).hyperparameter_search(
            {"learning_rate": Float(1e-3, 1e-1, log=True)}, "loss", 6, "minimize", storage="journal", progress=False
        )
        assert isinstance(found, BestRun)
        return found

    undisturbed = with_rungs(tmp_path / "a")
    for steps in (6, 8, 17):
        with pytest.raises(SearchInterrupted):
            with_rungs(tmp_path / "b", AfterSteps(steps))
    assert comparable(with_rungs(tmp_path / "b")) == comparable(undisturbed)


class LosesALoader(TrainerCallback):
    """Fails as a trial does whose loader process the same signal has ended."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2:
            signal.raise_signal(signal.SIGTERM)
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated.")


def test_an_error_after_the_signal_is_not_the_trials_fault(tmp_path: Path) -> None:
    with pytest.raises(SearchInterrupted):
        search(tmp_path, LosesALoader())
    left = trial(tmp_path, 0)
    assert left.state.value == "interrupted"
    assert left.reason == (
        "interrupted by SIGTERM: RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated."
    )


class StorageIsLost(Events):
    """Ends the search with an error of its own, after a signal has come."""

    def on_search_end(self, *args: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise StorageError("the disk is gone")


def test_a_signal_is_not_lost_where_the_search_ends_by_an_error(tmp_path: Path) -> None:
    with pytest.raises(SearchInterrupted, match=r"SIGTERM.*StorageError: the disk is gone") as ended:
        search(tmp_path, trials=1, progress=StorageIsLost())
    assert ended.value.exit_code == 143
    assert isinstance(ended.value.__cause__, StorageError)


def test_what_a_handler_of_the_program_raises_is_not_lost_where_the_search_ends_by_an_error(tmp_path: Path) -> None:
    def handle(number: int, frame: Any) -> None:
        raise SystemExit(7)

    before = signal.signal(signal.SIGTERM, handle)
    try:
        with pytest.raises(SystemExit) as ended:
            search(tmp_path, trials=1, progress=StorageIsLost())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 7
    assert isinstance(ended.value.__cause__, StorageError)


def test_a_handler_that_ends_the_program_is_called_at_once_and_ends_it_when_the_checkpoint_is_written(
    tmp_path: Path,
) -> None:
    """As that of submitit, which puts the job back into the queue, and exits."""
    steps: list[Any] = []
    at = AtStep(send(signal.SIGUSR1), run=0, step=3)

    def handle(number: int, frame: Any) -> None:
        steps.append(at.steps[-1])
        raise SystemExit(7)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(SystemExit) as ended:
            search(tmp_path, at)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ended.value.code == 7
    assert steps == [(0, 3)]
    left = trial(tmp_path, 0)
    assert (left.state.value, left.reason) == ("interrupted", "interrupted by SIGUSR1")
    assert (tmp_path / "study" / left.name / "checkpoint-3").is_dir()


def test_a_handler_of_the_program_is_called_and_is_there_afterwards(tmp_path: Path) -> None:
    called: list[int] = []

    def handle(number: int, frame: Any) -> None:
        called.append(number)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(SearchInterrupted):
            search(tmp_path, AtStep(send(signal.SIGUSR1), run=0, step=3))
        assert signal.getsignal(signal.SIGUSR1) is handle
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert called == [signal.SIGUSR1]
    assert trial(tmp_path, 0).state.value == "interrupted"
