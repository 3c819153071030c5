"""A trial or a search ends at the very optimizer step that exhausts its budget.

16 samples in batches of 4 make four steps an epoch. `tests/search/test_budgets.py` has the tables of when a budget is
exhausted.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from hpsearch import SearchInterrupted
from tests.support.clock import Clock
from tests.support.search_processes import assert_disk_and_storage_agree, assert_nothing_is_left_over, load
from tests.support.searching import AtStep, interrupt, scripted, states
from tests.support.small_search import Steps, records_of, search
from tests.support.small_trainer import CountsModels, points, small_trainer


def test_a_trial_stops_at_the_update_that_uses_up_its_epochs(tmp_path: Path) -> None:
    steps = Steps()
    changes = {"num_train_epochs": 3, "save_strategy": "epoch"}
    best = search(tmp_path, 2, steps, trainer=changes, trial_max_epochs=1.25)
    assert [step for _, step in steps.steps] == [1, 2, 3, 4, 5] * 2
    assert states(best) == ["stopped", "stopped"]
    for record in records_of(best):
        assert record.reason == "the trial's 1.25 epochs are exhausted"
        assert [report.step for report in record.reports] == [4]
        assert record.epochs == 1.25
        assert record.value == record.reports[0].value
    assert best.checkpoint.name == "checkpoint-4"
    measured = small_trainer(tmp_path / "again", model=best.load_model()).evaluate()["eval_loss"]
    assert measured == pytest.approx(best.objective, rel=1e-6)
    assert_stopped_on_disk_and_in_storage(tmp_path / "study", "the trial's 1.25 epochs are exhausted")
    assert_nothing_is_left_over(tmp_path / "study")


@pytest.mark.slow
def test_epochs_alone_limit_a_search_to_the_trials_that_they_allow(tmp_path: Path) -> None:
    best = search(tmp_path, None, trainer={"num_train_epochs": 1, "eval_strategy": "no"}, max_epochs=22)
    assert states(best) == ["complete"] * 22
    again = search(tmp_path, None, trainer={"num_train_epochs": 1, "eval_strategy": "no"}, max_epochs=23)
    assert states(again) == ["complete"] * 23


@pytest.mark.slow
def test_a_time_limit_alone_starts_trials_until_the_time_is_over(tmp_path: Path, clock: Clock) -> None:
    class TakesASecond(TrainerCallback):
        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock.move(1.0)()

    changes = {"num_train_epochs": 1, "eval_strategy": "no"}
    best = search(tmp_path, None, TakesASecond(), trainer=changes, timeout=21.5)
    assert states(best) == ["complete"] * 22


def assert_stopped_on_disk_and_in_storage(study: Path, reason: str) -> None:
    records = assert_disk_and_storage_agree(study)
    for record, trial in zip(records, load(study).trials, strict=True):
        assert (record["state"], record["reason"]) == ("stopped", reason)
        assert trial.user_attrs["hpsearch:state"] == "stopped"
        assert trial.user_attrs["hpsearch:reason"] == reason


def test_a_schedule_is_that_of_the_epochs_asked_for(tmp_path: Path) -> None:
    rates: list[float] = []

    class Watches(AtStep):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            rates.append(kwargs["lr_scheduler"].get_last_lr()[0] / args.learning_rate)

    search(tmp_path, 1, Watches(interrupt, -1, -1), trainer={"num_train_epochs": 4}, trial_max_epochs=1)
    assert rates == pytest.approx([1 - step / 16 for step in (1, 2, 3, 4)])


def test_the_seconds_of_a_trial_are_those_of_training_and_evaluation(tmp_path: Path, clock: Clock) -> None:
    slow_to_build = CountsModels(lambda trial: clock.move(100.0)())
    changes = {"model_init": slow_to_build, "save_strategy": "epoch"}
    with pytest.raises(SearchInterrupted):
        search(tmp_path, 1, Steps(clock.move(2.0), 0, 3), AtStep(interrupt, 0, 6), trainer=changes, trial_timeout=50.0)
    best = search(tmp_path, 1, Steps(clock.move(1.0), 0, 7), trainer=changes, trial_timeout=50.0)
    assert states(best) == ["complete"]
    assert [record.seconds for record in records_of(best)] == [3.0]


def test_the_study_stops_at_the_update_that_uses_up_its_epochs(tmp_path: Path) -> None:
    steps = Steps()
    best = search(tmp_path, 9, steps, max_epochs=5.5)
    assert states(best) == ["complete", "complete", "stopped"]
    assert len(steps.steps) == 8 + 8 + 6
    record = records_of(best)[2]
    assert record.reason == "the study's 5.5 epochs are exhausted"
    assert [report.step for report in record.reports] == [4]
    assert states(search(tmp_path, 9, steps, max_epochs=5.5)) == states(best)
    assert len(steps.steps) == 8 + 8 + 6

    more = search(tmp_path, 9, steps, max_epochs=7.5)
    assert states(more) == ["complete", "complete", "stopped", "complete"]
    assert_disk_and_storage_agree(tmp_path / "study")


def test_the_epochs_of_failed_trials_are_used_up_too(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("out of luck")

    best = search(tmp_path, 9, Steps(fail, run=0, step=6), max_epochs=3.25)
    assert states(best) == ["failed", "complete"]
    assert records_of(best)[0].epochs in (1.25, 1.5), "with or without the update that it failed in"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "save_strategy", "eval_strategy"),
    [
        ("max_epochs", "epoch", "epoch"),
        ("max_epochs", "epoch", "no"),
        ("max_epochs", "no", "epoch"),
        ("max_epochs", "no", "no"),
        ("timeout", "epoch", "epoch"),
    ],
)
def test_a_trial_that_the_study_s_budget_stopped_before_its_first_evaluation_goes_on_from_there(
    tmp_path: Path, clock: Clock, budget: str, save_strategy: str, eval_strategy: str
) -> None:
    changes = {"eval_strategy": eval_strategy, "save_strategy": save_strategy}
    expected = search(tmp_path / "undisturbed", 3, trainer=changes)
    slow = Steps(clock.move(4.0), run=1, step=2)
    limit = {"timeout": 4.0} if budget == "timeout" else {"max_epochs": 2.5}
    stopped = search(tmp_path / "stopped", 3, slow, trainer=changes, **limit)
    assert slow.steps[-1] == (1, 2)
    assert states(stopped) == ["complete", "interrupted"]
    record = records_of(stopped)[1]
    words = "the study's timeout of 4.0 s is over" if budget == "timeout" else "the study's 2.5 epochs are exhausted"
    assert record.reason == f"{words}, before its first evaluation"
    assert record.reports == ()
    assert stopped.run_id == "0"

    steps = Steps()
    best = search(tmp_path / "stopped", 3, steps, trainer=changes)
    assert [step for run, step in steps.steps if run == 0] == [3, 4, 5, 6, 7, 8]
    assert states(best) == ["complete"] * 3
    for mine, other in zip(records_of(best), records_of(expected), strict=True):
        assert (mine.params, mine.values) == (other.params, other.values)
        assert [report.step for report in mine.reports] == [report.step for report in other.reports]
    assert_disk_and_storage_agree(tmp_path / "stopped" / "study")
    assert_nothing_is_left_over(tmp_path / "stopped" / "study")


def test_time_is_checked_after_every_step(tmp_path: Path, clock: Clock) -> None:
    """The first epoch ends after 100 steps."""

    class Slow(Steps):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            super().on_step_end(args, state, control, **kwargs)
            clock.move(0.25)()

    steps = Slow()
    changes = {"train_dataset": points(400, seed=0), "num_train_epochs": 1}
    best = search(tmp_path, 1, steps, trainer=changes, trial_timeout=0.75)
    assert [step for _, step in steps.steps] == [1, 2, 3]
    (record,) = records_of(best)
    assert (record.state.value, record.reason) == ("stopped", "the trial's timeout of 0.75 s is over")
    assert record.seconds == 0.75
    assert [report.step for report in record.reports] == [3], "evaluated where it stopped"
    assert best.checkpoint.name == "checkpoint-3"
    assert_stopped_on_disk_and_in_storage(tmp_path / "study", "the trial's timeout of 0.75 s is over")


def test_the_clock_of_a_search_is_that_of_the_machine(tmp_path: Path) -> None:
    """The trial ends only if the budgets see real time pass; its 400,000 steps would take minutes."""
    changes = {"num_train_epochs": 100_000, "eval_strategy": "no"}
    began = time.monotonic()
    (record,) = records_of(search(tmp_path, 1, trainer=changes, trial_timeout=0.2))
    assert record.reason == "the trial's timeout of 0.2 s is over"
    assert 0.2 <= record.seconds <= time.monotonic() - began


def test_a_trial_s_time_counts_over_all_sessions(tmp_path: Path, clock: Clock) -> None:
    class TakesLong(Steps):
        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock.move(0.8)()

    changes = {"num_train_epochs": 9, "save_strategy": "epoch"}
    with pytest.raises(SearchInterrupted):
        search(tmp_path, 1, TakesLong(interrupt, 0, 5), trainer=changes, trial_timeout=1.4)
    steps = Steps(clock.move(0.8), run=0, step=6)
    best = search(tmp_path, 1, steps, trainer=changes, trial_timeout=1.4)
    assert [step for _, step in steps.steps] == [5, 6]
    assert states(best) == ["stopped"]
    assert records_of(best)[0].seconds == pytest.approx(1.6)


def test_the_best_of_a_stopped_trial_may_win(tmp_path: Path, clock: Clock) -> None:
    objective = scripted([0.5, 0.6], [0.2, 0.7, 0.8], [0.3, 0.3])
    steps = Steps(clock.move(1.0), run=1, step=6)
    options = {"compute_objective": objective, "direction": "minimize", "scope": "all", "trial_timeout": 1.0}
    best = search(tmp_path, 3, steps, **options)
    assert states(best) == ["complete", "stopped", "complete"]
    assert (best.run_id, best.objective) == ("1", 0.2)
    assert best.checkpoint.name == "checkpoint-4"
    told = json.loads((tmp_path / "study" / "best.json").read_text())
    assert (told["trial"], told["value"], told["checkpoint"]) == (1, 0.2, "run-1/checkpoint-4")
