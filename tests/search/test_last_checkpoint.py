"""The progress of a running trial, and of one whose process was killed, is read from its last checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpsearch import Float, SearchInterrupted, TrialRecord, TrialState, open_study, tune
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


def written(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the state of a trial's checkpoint of its second epoch."""
    file = run / "checkpoint-8" / "trainer_state.json"
    state = json.loads(file.read_text())
    change(state)
    file.write_text(json.dumps(state))


def so_far(state: dict[str, Any]) -> Any:
    return state["stateful_callbacks"]["ReportingCallback"]["attributes"]["so_far"]


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda run: (run / "checkpoint-8" / "trainer_state.json").write_text(""),
    "a list": lambda run: (run / "checkpoint-8" / "trainer_state.json").write_text("[]"),
    "cut off": lambda run: (run / "checkpoint-8" / "trainer_state.json").write_text("{"),
    "no callback": lambda run: written(run, lambda state: state.update(stateful_callbacks={"ReportingCallback": 3})),
    "no seconds": lambda run: written(run, lambda state: so_far(state).pop("seconds")),
    "no values": lambda run: written(run, lambda state: so_far(state)["reports"][0].update(values=[])),
    "more values": lambda run: written(run, lambda state: so_far(state)["reports"][1].update(values=[1.0, 2.0])),
    "a huge epoch": lambda run: written(run, lambda state: state.update(epoch=10**400)),
    "huge steps": lambda run: written(run, lambda state: state.update(max_steps=10**400)),
    "a text": lambda run: written(run, lambda state: state.update(global_step="8")),
    "weights alone": lambda run: (run / "checkpoint-8" / "optimizer.pt").unlink(),
    "a link": lambda run: (
        (run / "checkpoint-8").rename(run.parent.parent / "elsewhere")
        and (run / "checkpoint-8").symlink_to(run.parent.parent / "elsewhere")
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_a_checkpoint_that_cannot_be_resumed_from_is_not_read(
    tmp_path: Path, damage: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    before, _ = as_it_was(tmp_path / "whole", 10)
    assert before.epochs == 2

    def damaged(run: Path) -> None:
        damage(run)
        assert main(["show", str(run.parent)]) == 0

    during, _ = as_it_was(tmp_path, 10, damaged)
    assert (during.epochs, during.reports, during.values) == (0, (), ())
    assert "Traceback" not in capsys.readouterr().err


def test_the_progress_of_a_trial_that_ends_early_is_that_of_its_own_limit(tmp_path: Path) -> None:
    changes = {"save_strategy": "epoch", "num_train_epochs": 10}
    seen: list[TrialRecord] = []
    look = AtStep(lambda: seen.extend(open_study(tmp_path / "study").records), run=0, step=6)
    search(tmp_path, 1, look, trainer=changes, trial_max_epochs=2, constraints=["loss <= 1000"])
    [during] = seen
    assert during.fraction == 0.5
    assert list(during.violations.values()) == [during.values[0] - 1000]


@pytest.mark.parametrize(("save", "start"), [("epoch", "epoch 1"), ("no", "its beginning")])
def test_the_next_call_says_where_a_half_done_trial_resumes_also_after_a_second_ctrl_c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], save: str, start: str
) -> None:
    def dies() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SearchInterrupted):
        search(tmp_path, 1, AtStep(dies, run=0, step=6), trainer={"save_strategy": save})
    search(tmp_path, 1, trainer={"save_strategy": save}, progress=True)
    assert f"first with half-done trial 0 (from {start})" in capsys.readouterr().out


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
