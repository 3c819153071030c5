"""The progress of a running trial, and of one whose process was killed, is read from its last checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpsearch import Float, TrialRecord, TrialState, open_study, tune
from hpsearch.cli import main
from hpsearch.search.store.last_checkpoint import REPORTING_CALLBACK
from hpsearch.trial.reporting_callback import ReportingCallback
from tests.support.searching import AtStep
from tests.support.small_search import records_of, search


def as_it_was(folder: Path, step: int, damage: Any = lambda run: None) -> tuple[TrialRecord, TrialRecord]:
    """Return the record of a trial of four steps an epoch as it was read after a step, and as it was in the end."""
    seen: list[TrialRecord] = []

    def look() -> None:
        damage(folder / "study" / "run-0")
        seen.extend(open_study(folder / "study").records)

    best = search(folder, 1, AtStep(look, run=0, step=step), trainer={"save_strategy": "epoch", "num_train_epochs": 3})
    [during], [after] = seen, records_of(best)
    return during, after


@pytest.mark.parametrize(("step", "epochs"), [(3, 0), (6, 1), (11, 2)])
def test_a_running_trial_has_the_reports_of_its_last_checkpoint(tmp_path: Path, step: int, epochs: int) -> None:
    during, after = as_it_was(tmp_path, step)
    assert (during.state, during.epochs) == (TrialState.RUNNING, epochs)
    assert during.reports == after.reports[:epochs]
    assert during.fraction == pytest.approx(epochs / 3)
    assert during.values == tuple(each.value for each in after.reports[:epochs][-1:])
    assert 0 <= during.seconds < after.seconds


@pytest.mark.parametrize("contents", ["", "[]", "{", '{"stateful_callbacks": {"ReportingCallback": 3}}', "unreadable"])
def test_a_checkpoint_that_cannot_be_read_is_not_used(tmp_path: Path, contents: str) -> None:
    def damage(run: Path) -> None:
        state = run / "checkpoint-8" / "trainer_state.json"
        state.write_text(state.read_text().replace('"seconds"', '"s"') if contents == "unreadable" else contents)

    during, after = as_it_was(tmp_path, 10, damage)
    assert (during.epochs, during.reports) in [(0, ()), (1, after.reports[:1])]


def test_a_running_trial_of_a_plain_function_has_the_reports_of_its_last_checkpoint(tmp_path: Path) -> None:
    seen: list[TrialRecord] = []

    def loop(trial: Any) -> float:
        for step in range(1, 5):
            trial.report(trial.params["x"] / step, step)
            with trial.save() as folder:
                (folder / "weights.txt").write_text("of the loop")
            if step == 3:
                seen.extend(open_study(tmp_path / "study").records)
        return float(trial.params["x"])

    tune(loop, {"x": Float(0.0, 1.0)}, n_trials=1, direction="minimize", output_dir=str(tmp_path), progress=False)
    [during] = seen[-1:]
    assert [each.step for each in during.reports] == [1, 2, 3]
    assert (during.state, during.epochs) == (TrialState.RUNNING, 3)


def test_show_lists_how_far_a_running_trial_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def show() -> None:
        assert main(["show", str(tmp_path / "study")]) == 0

    changes = {"save_strategy": "epoch", "num_train_epochs": 3}
    search(tmp_path, 1, AtStep(show, run=0, step=6), trainer=changes)
    [row] = [line for line in capsys.readouterr().out.splitlines() if "running" in line and line.split()[0] == "0"]
    assert "(" in row, "the value of its last report"


def test_transformers_stores_the_state_of_the_callback_by_the_name_of_its_class() -> None:
    assert ReportingCallback.__name__ == REPORTING_CALLBACK
