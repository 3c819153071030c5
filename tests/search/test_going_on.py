"""A trial that is interrupted and goes on ends as one that was not, whatever its arguments and callbacks."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from transformers import EarlyStoppingCallback, TrainerCallback

from hpsearch import BestRun, Float, Int, SearchInterrupted, TrialRecord
from tests.support.searching import HearsNotices, without_result
from tests.support.small_trainer import small_trainer


class InterruptsOnce(TrainerCallback):
    """Presses Ctrl-C after an event of an update, the first time it comes there."""

    def __init__(self, event: str, step: int) -> None:
        self._step, self._is_done = step, False
        setattr(self, event, self._interrupt)

    def _interrupt(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._step and not self._is_done:
            self._is_done = True
            raise KeyboardInterrupt


class InterruptsAnImport(InterruptsOnce):
    """Presses Ctrl-C a second time, while compiled code is imported, which makes another error of it."""

    def _interrupt(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._step and not self._is_done:
            self._is_done = True
            signal.raise_signal(signal.SIGINT)
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise TypeError("expected a message argument") from None


class PressesCtrlC(TrainerCallback):
    """Presses Ctrl-C in the sixth step, once, and counts the steps."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps.append(state.global_step)
        if self.steps == [*range(6)]:
            signal.raise_signal(signal.SIGINT)


class InterruptsSecondTrial(TrainerCallback):
    """Presses Ctrl-C in the trial of number 1."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.run_name == "run-1":
            raise KeyboardInterrupt


def search(
    folder: Path, *callbacks: Any, scope: str = "last", objective: Any = "loss", **arguments: Any
) -> TrialRecord:
    """The record of the only trial of a search, which is begun again until nobody interrupts it."""
    for _ in range(3):
        trainer = small_trainer(folder, *callbacks, **{"learning_rate": 5.0, "num_train_epochs": 3, **arguments})
        try:
            best = trainer.hyperparameter_search(
                {"weight_decay": Float(0.0, 0.1)},
                objective,
                1,
                "minimize",
                scope=scope,
                pruner="none",
                storage="journal",
                progress=False,
            )
        except SearchInterrupted:
            continue
        assert best.load_model() is not None
        [record] = best.run_summary.records
        return record
    raise AssertionError("interrupted three times")


def told(record: TrialRecord) -> Any:
    checkpoint = None if record.checkpoint is None else record.checkpoint.name
    return record.state, [(report.step, report.values) for report in record.reports], record.values, checkpoint


def worse_and_worse(metrics: dict[str, float]) -> float:
    return metrics["epoch"]


@pytest.mark.parametrize("limit", [None, 1, 2])
@pytest.mark.parametrize(("event", "step"), [("on_step_end", 5), ("on_step_end", 10), ("on_save", 4), ("on_save", 12)])
def test_the_weights_of_the_best_report_stay_whatever_save_total_limit_says(
    tmp_path: Path, limit: int | None, event: str, step: int
) -> None:
    about: dict[str, Any] = {"scope": "all", "objective": worse_and_worse, "save_strategy": "epoch"}
    undisturbed = search(tmp_path / "a", save_total_limit=limit, **about)
    went_on = search(tmp_path / "b", InterruptsOnce(event, step), save_total_limit=limit, **about)
    assert told(went_on) == told(undisturbed)
    assert told(went_on)[-1] == "checkpoint-4"


class LosesItsBestWeights(InterruptsOnce):
    """Presses Ctrl-C when the weights of the first epoch have been deleted."""

    def _interrupt(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._step and not self._is_done:
            shutil.rmtree(Path(args.output_dir, "checkpoint-4"))
        super()._interrupt(args, state, control, **kwargs)


def test_a_trial_whose_best_weights_were_deleted_begins_again_to_have_them(tmp_path: Path) -> None:
    about: dict[str, Any] = {"scope": "all", "objective": worse_and_worse, "save_strategy": "epoch"}
    undisturbed = search(tmp_path / "a", **about)
    went_on = search(tmp_path / "b", LosesItsBestWeights("on_step_end", 10), **about)
    assert told(went_on) == told(undisturbed)
    assert told(went_on)[-1] == "checkpoint-4"


class NotesWhereItBegins(TrainerCallback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps.append(state.global_step)


def test_a_trial_resumes_though_no_checkpoint_was_written_when_its_weights_were_best(tmp_path: Path) -> None:
    begins = NotesWhereItBegins()
    about: dict[str, Any] = {"scope": "all", "objective": worse_and_worse, "save_strategy": "steps", "save_steps": 3}
    undisturbed = search(tmp_path / "a", **about)
    went_on = search(tmp_path / "b", InterruptsOnce("on_step_end", 10), begins, **about)
    assert told(went_on) == told(undisturbed)
    assert told(went_on)[-1] == "checkpoint-4"
    assert begins.steps == [0, 9]


def test_a_half_done_trial_keeps_what_is_not_searched_any_more(tmp_path: Path) -> None:
    space = {"weight_decay": Float(0.0, 0.1), "learning_rate": Float(1e-2, 1.0), "num_train_epochs": Int(3, 6)}

    def records(folder: Path, spaces: list[Any], *callbacks: Any) -> list[TrialRecord]:
        for each in spaces:
            trainer = small_trainer(folder, *callbacks, save_strategy="epoch")
            try:
                best = trainer.hyperparameter_search(each, "loss", 2, pruner="none", storage="journal", progress=False)
            except SearchInterrupted:
                continue
            return best.run_summary.records
        raise AssertionError

    fewer = {"weight_decay": space["weight_decay"]}
    undisturbed = records(tmp_path / "a", [space])
    went_on = records(tmp_path / "b", [space, fewer], InterruptsOnce("on_step_end", 5))
    assert told(went_on[0]) == told(undisturbed[0])
    assert went_on[0].params == undisturbed[0].params
    assert went_on[1].params.keys() == {"weight_decay"}


@pytest.mark.parametrize("strategy", ["no", "epoch"])
def test_the_first_ctrl_c_loses_no_step(tmp_path: Path, strategy: str) -> None:
    undisturbed = search(tmp_path / "a", save_strategy=strategy)
    presses = PressesCtrlC()
    assert told(search(tmp_path / "b", presses, save_strategy=strategy)) == told(undisturbed)
    assert presses.steps == [*range(12)]


def test_a_trial_does_not_fail_by_ctrl_c_in_the_middle_of_an_import(tmp_path: Path) -> None:
    undisturbed = search(tmp_path / "a")
    went_on = search(tmp_path / "b", InterruptsAnImport("on_step_end", 5))
    assert told(went_on) == told(undisturbed)
    assert went_on.state == "complete"


@pytest.mark.parametrize("step", [8, 12])
def test_the_best_model_of_the_run_and_that_of_the_search_may_be_different_ones(tmp_path: Path, step: int) -> None:
    about: dict[str, Any] = {
        "save_strategy": "epoch",
        "save_total_limit": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": "loss",
        "greater_is_better": True,
    }
    undisturbed = search(tmp_path / "a", **about)
    assert told(search(tmp_path / "b", InterruptsOnce("on_save", step), **about)) == told(undisturbed)


def test_a_trial_that_early_stopping_had_ended_does_not_train_on(tmp_path: Path) -> None:
    about: dict[str, Any] = {
        "save_strategy": "epoch",
        "num_train_epochs": 6,
        "load_best_model_at_end": True,
        "metric_for_best_model": "epoch_of_it",
        "greater_is_better": False,
        "compute_metrics": lambda prediction: {"epoch_of_it": 1.0},
    }
    undisturbed = search(tmp_path / "a", EarlyStoppingCallback(1), **about)
    assert [report.step for report in undisturbed.reports] == [4, 8]
    went_on = search(tmp_path / "b", EarlyStoppingCallback(1), InterruptsOnce("on_save", 8), **about)
    assert told(went_on) == told(undisturbed)


def test_a_report_before_any_training_does_not_stand_for_a_trial_that_a_budget_of_the_study_cuts_short(
    tmp_path: Path,
) -> None:
    trainer = small_trainer(tmp_path, eval_on_start=True)
    [first] = without_result(
        trainer.hyperparameter_search,
        {"weight_decay": Float(0.0, 0.1)},
        "loss",
        1,
        max_epochs=0.5,
        storage="journal",
        progress=False,
    ).run_summary.records
    assert (first.state.value, [report.step for report in first.reports]) == ("interrupted", [0])
    [record] = trainer.hyperparameter_search(
        {"weight_decay": Float(0.0, 0.1)}, "loss", 1, storage="journal", progress=False
    ).run_summary.records
    assert (record.state.value, [report.step for report in record.reports]) == ("complete", [0, 4, 8])


def test_a_half_done_trial_waits_when_the_study_has_all_the_trials_it_is_asked_for(tmp_path: Path) -> None:
    space = {"weight_decay": Float(0.0, 0.1)}
    with pytest.raises(SearchInterrupted):
        small_trainer(tmp_path, InterruptsSecondTrial()).hyperparameter_search(
            space, "loss", 3, storage="journal", progress=False
        )
    best = small_trainer(tmp_path).hyperparameter_search(space, "loss", 1, storage="journal", progress=False)
    assert [record.state.value for record in best.run_summary.records] == ["complete", "interrupted"]


@pytest.mark.parametrize("name", ["a?b", "{b}", "a%20b", "ü # & c"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    for total in (1, 2):
        best = small_trainer(folder).hyperparameter_search(
            {"weight_decay": Float(0.0, 0.1)}, "loss", total, progress=False
        )
    assert len(best.run_summary.records) == 2
    assert {path.name for path in tmp_path.iterdir()} == {name}
    assert (folder / "study" / "study.db").is_file()


class PressesCtrlCAt(HearsNotices):
    """Presses Ctrl-C when a trial, or the search, has ended."""

    def __init__(self, moment: str) -> None:
        super().__init__()
        setattr(self, moment, lambda *_: signal.raise_signal(signal.SIGINT))


def test_ctrl_c_between_trials_announces_no_checkpoint(tmp_path: Path) -> None:
    presses = PressesCtrlCAt("on_trial_end")
    with pytest.raises(SearchInterrupted, match="after 1 of 3 trials"):
        small_trainer(tmp_path).hyperparameter_search({"weight_decay": Float(0, 1)}, "loss", 3, progress=presses)
    assert not any("Ctrl-C" in each for each in presses.notices)


def test_ctrl_c_while_the_results_are_shown_does_not_interrupt_the_search(tmp_path: Path) -> None:
    presses = PressesCtrlCAt("on_search_end")
    best = small_trainer(tmp_path).hyperparameter_search({"weight_decay": Float(0, 1)}, "loss", 1, progress=presses)
    assert isinstance(best, BestRun)
