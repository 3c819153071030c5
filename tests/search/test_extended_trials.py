"""A trial that extends another one continues from its checkpoint, to a new length."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from hpsearch import Ladder, SearchInterrupted, StudyError, TrialState, open_study
from tests.support.live_requests import EPOCHS, search
from tests.support.searching import HearsNotices
from tests.support.small_trainer import small_trainer


@pytest.mark.parametrize("to", [{"num_train_epochs": 9}, {"max_steps": 36}], ids=str)
def test_an_extended_trial_continues_from_the_checkpoint_with_the_schedule_of_its_new_length(
    tmp_path: Path, to: dict[str, int]
) -> None:
    arguments = {"save_strategy": "epoch", "logging_steps": 1}
    search(tmp_path, n_trials=2, keep_checkpoints=None, arguments=arguments)
    answer = open_study(tmp_path / "study").extend(0, **to)
    assert "from the last checkpoint of trial 0" in answer
    records = search(tmp_path, n_trials=2, keep_checkpoints=None, arguments=arguments).run_summary.records
    first, extended = records[0], records[2]
    assert (extended.state, len(extended.reports)) == (TrialState.COMPLETE, 9)
    assert [each.values for each in extended.reports[:EPOCHS]] == [each.values for each in first.reports]
    assert [round(each.fraction, 6) for each in extended.reports] == [round(each / 9, 6) for each in range(1, 10)]
    assert extended.arguments == {**first.arguments, **to}
    assert [part["trial"] for part in extended.schedule] == [0, 2]
    assert extended.origin["trial"] == 0
    with pytest.raises(StudyError, match="Trial 2 extends trial 0; to try that again, extend 0 again"):
        open_study(tmp_path / "study").retry(2)
    trainer = small_trainer(tmp_path, num_train_epochs=EPOCHS, save_strategy="epoch", logging_steps=1)
    with pytest.raises(StudyError, match=r"Trial 2 extends trial 0, .* trial 0 can be"):
        trainer.replay(number=2, progress=False)


@pytest.mark.slow
def test_an_extended_trial_is_not_judged_at_rungs(tmp_path: Path) -> None:
    options: dict[str, Any] = {"pruner": Ladder((1 / 2,), 2), "keep_checkpoints": None, "n_trials": 6}
    options["arguments"] = {"save_strategy": "epoch"}
    records = search(tmp_path, **options).run_summary.records
    pruned = [each for each in records if each.state is TrialState.PRUNED]
    worst = max(pruned, key=lambda each: each.reports[-1].value)
    open_study(tmp_path / "study").extend(worst.number, num_train_epochs=12)
    asks = HearsNotices()
    extended = search(tmp_path, asks, **options).run_summary.records[6]
    assert (extended.state, len(extended.reports)) == (TrialState.COMPLETE, 12)
    assert [each.state for each in asks.ended] == [TrialState.COMPLETE]


def test_a_trial_without_a_checkpoint_fails_alone_if_it_is_extended(tmp_path: Path) -> None:
    arguments = {"save_strategy": "epoch"}
    search(tmp_path, n_trials=2, keep_checkpoints=None, arguments=arguments)
    open_study(tmp_path / "study").extend(0, num_train_epochs=9)
    for each in (tmp_path / "study" / "run-0").glob("checkpoint-*/optimizer.pt"):
        each.unlink()
    for each in (tmp_path / "study" / "run-0").glob("checkpoint-*/run_state.json"):
        each.unlink()
    records = search(tmp_path, n_trials=2, arguments=arguments).run_summary.records
    assert records[2].state is TrialState.FAILED
    assert "No checkpoint of trial 0 is left" in records[2].reason


def test_an_extension_that_was_killed_before_its_checkpoints_were_copied_copies_them(tmp_path: Path) -> None:
    arguments = {"save_strategy": "epoch"}
    search(tmp_path, n_trials=1, keep_checkpoints=None, arguments=arguments)
    open_study(tmp_path / "study").extend(0, num_train_epochs=9)

    class Interrupts(HearsNotices):
        def on_trial_begin(self, trial: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises((SearchInterrupted, KeyboardInterrupt)):
        search(tmp_path, Interrupts(), n_trials=1, keep_checkpoints=None, arguments=arguments)
    for each in (tmp_path / "study" / "run-1").glob("checkpoint-*"):
        shutil.rmtree(each)
    records = search(tmp_path, n_trials=1, keep_checkpoints=None, arguments=arguments).run_summary.records
    assert [part["trial"] for part in records[1].schedule] == [0, 1]
    assert len(records[1].reports) == 9


def test_an_extension_that_was_killed_while_its_checkpoints_were_copied_begins_at_the_last_one(tmp_path: Path) -> None:
    options: dict[str, Any] = {"n_trials": 1, "keep_checkpoints": None, "arguments": {"save_strategy": "epoch"}}
    search(tmp_path, **options)
    open_study(tmp_path / "study").extend(0, num_train_epochs=9)

    class Interrupts(HearsNotices):
        def on_trial_begin(self, trial: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises((SearchInterrupted, KeyboardInterrupt)):
        search(tmp_path, Interrupts(), **options)
    for each in (tmp_path / "study" / "run-1").glob("checkpoint-*"):
        if each.name != "checkpoint-8":
            shutil.rmtree(each)
    extended = search(tmp_path, **options).run_summary.records[1]
    assert [part["step"] for part in extended.schedule] == [0, 24]


def test_a_length_that_is_no_extension_is_refused(tmp_path: Path) -> None:
    arguments = {"save_strategy": "epoch"}
    search(tmp_path / "epochs", n_trials=1, keep_checkpoints=None, arguments=arguments)
    study = open_study(tmp_path / "epochs" / "study")
    for steps in (5, 24):
        with pytest.raises(StudyError, match=f"was trained up to max_steps=24; max_steps={steps} does not extend it"):
            study.extend(0, max_steps=steps)
    search(tmp_path / "steps", n_trials=1, keep_checkpoints=None, arguments={**arguments, "max_steps": 12})
    with pytest.raises(StudyError, match="max_steps=12, which comes before num_train_epochs"):
        open_study(tmp_path / "steps" / "study").extend(0, num_train_epochs=9)
