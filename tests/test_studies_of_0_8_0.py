"""Studies that hpsearch 0.8.0 wrote and did not finish can be opened, shown, replayed and continued."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from hpsearch import SearchSummary, TrialRecord, open_study
from hpsearch.cli import main
from tests.support.stored_studies_0_8_0 import SEARCHES, TRAINERS, copy_study, described_report, expected

ENDED = {"complete", "pruned", "stopped", "failed"}
STATES = {
    "sqlite_with_rungs": {"complete", "paused", "pruned", "interrupted"},
    "journal_with_workers": {"complete", "interrupted"},
    "several_objectives": {"complete", "failed", "running"},
}
# Trials with a checkpoint that a search must resume: interrupted, of a killed process, paused and promoted by hand.
RESUMED = {"sqlite_with_rungs": {1, 6}, "journal_with_workers": {5}, "several_objectives": {4}}
RELATIVE = 1e-4  # how far another version of torch may be from the recorded numbers


class RecordsSteps(TrainerCallback):
    """Record the optimizer steps of each run."""

    def __init__(self) -> None:
        self.steps: dict[str, list[int]] = defaultdict(list)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps[Path(args.output_dir).name].append(state.global_step)


class Continued:
    """A stored study that the same call has continued to one more trial than before.

    Attributes:
        summary: the study, as it is on disk after the search.
        best: the best run that the search returned; of several objectives, the first of the front.
        steps: the optimizer steps of each run.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, recorder = name, RecordsSteps()
        copy = copy_study(name, folder)
        options = {"n_jobs": 1} if name == "journal_with_workers" else {}
        best = SEARCHES[name](folder, recorder, n_trials=expected(name)["n_trials"] + 1, **options)
        self.best = best[0] if isinstance(best, list) else best
        self.summary, self.steps = open_study(copy), recorder.steps
        self.records = {each.number: each for each in self.summary.records}


@pytest.fixture(params=list(SEARCHES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(name: str, tmp_path: Path) -> Path:
    """The folder of a copy of the study."""
    return copy_study(name, tmp_path)


@pytest.fixture(scope="module", params=list(SEARCHES))
def continued(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Continued:
    return Continued(request.param, tmp_path_factory.mktemp("continued"))


def best_of(summary: SearchSummary) -> list[dict[str, Any]]:
    return [{"number": each.number, "values": list(each.values)} for each in summary.best()]


def reports_of(record: TrialRecord) -> list[dict[str, Any]]:
    return [described_report(each) for each in record.reports]


def last_checkpoint(trial: dict[str, Any]) -> int:
    """Return the step of a trial's newest checkpoint; 0 if it was interrupted before its first one."""
    return max((int(each.removeprefix("checkpoint-")) for each in trial["checkpoints"]), default=0)


def state_of(trial: dict[str, Any]) -> str:
    """Return the state that a trial is shown with: that of a killed search is no longer running."""
    return "interrupted" if trial["state"] == "running" else str(trial["state"])


def test_the_study_opens_with_all_trials_and_the_best_one(name: str, folder: Path) -> None:
    recorded, summary = expected(name), open_study(folder)
    assert summary.study.n_trials == recorded["n_trials"]
    assert {each["state"] for each in recorded["trials"]} == STATES[name]
    for trial, record in zip(recorded["trials"], summary.records, strict=True):
        for field in ("number", "name", "params", "seed"):
            assert getattr(record, field) == trial[field], field
        assert record.state.value == state_of(trial)
        if trial["state"] == "running":  # its checkpoints know more than its record did
            assert reports_of(record)[: len(trial["reports"])] == trial["reports"]
        else:
            assert (list(record.values), reports_of(record)) == (trial["values"], trial["reports"])
            assert record.violations == trial["violations"]
        if trial["state"] == "failed":
            assert record.reason == trial["reason"]
            assert "model_init" in (record.traceback or "")
    assert best_of(summary) == recorded["best"]
    assert len(best_of(summary)) > 0


def test_the_storage_has_the_same_trials(name: str, folder: Path) -> None:
    trials = open_study(folder).engine_study.trials
    assert [each.params for each in trials] == [each["params"] for each in expected(name)["trials"]]


def test_show_lists_every_trial_with_its_state(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(folder), "--sort", "number"]) == 0
    out = capfd.readouterr().out
    rows = re.findall(r"^ *(\d+)[* ] +([a-z]+)", out, re.MULTILINE)
    assert rows == [(str(each["number"]), state_of(each)) for each in expected(name)["trials"]]
    assert name in out


def test_the_report_is_one_page_about_the_study(name: str, folder: Path, tmp_path: Path) -> None:
    assert main(["report", str(folder), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert name in page
    assert "learning_rate" in page


def test_a_replay_of_the_best_trial_reports_the_same_metrics(name: str, folder: Path) -> None:
    number = expected(name)["best"][0]["number"]
    [trial] = [each for each in expected(name)["trials"] if each["number"] == number]
    again = TRAINERS[name](folder.parent).replay(name, number, progress=False)
    assert again.record.params == trial["params"]
    assert again.record.seed == trial["seed"]
    for report, before in zip(again.record.reports, trial["reports"], strict=True):
        now = described_report(report)
        assert (now["step"], now["epoch"]) == (before["step"], before["epoch"])
        assert now["values"] == pytest.approx(before["values"], rel=RELATIVE)
        assert now["metrics"] == pytest.approx(before["metrics"], rel=RELATIVE)
    assert best_of(open_study(folder)) == expected(name)["best"]


def test_a_continued_search_ends_with_the_requested_number_of_trials(continued: Continued) -> None:
    assert sorted(continued.records) == list(range(expected(continued.name)["n_trials"] + 1))
    assert {each.state.value for each in continued.records.values()} <= {"complete", "pruned", "failed"}
    assert continued.best.load_model() is not None
    assert int(continued.best.run_id) == continued.summary.best()[0].number


def test_a_continued_search_does_not_change_ended_trials(continued: Continued) -> None:
    ended = [each for each in expected(continued.name)["trials"] if each["state"] in ENDED]
    assert ended
    for trial in ended:
        record = continued.records[trial["number"]]
        assert (record.state.value, record.params, record.seed) == (trial["state"], trial["params"], trial["seed"])
        assert list(record.values) == trial["values"]
        assert reports_of(record) == trial["reports"]
        assert trial["name"] not in continued.steps


def test_a_continued_search_resumes_trials_from_their_checkpoints(continued: Continued) -> None:
    trials = [each for each in expected(continued.name)["trials"] if each["state"] not in ENDED]
    with_checkpoint = {each["number"] for each in trials if each["name"] in continued.steps and each["checkpoints"]}
    assert with_checkpoint >= RESUMED[continued.name]
    for trial in trials:
        if trial["name"] in continued.steps:
            assert_resumed(trial, continued)
        else:
            assert_pruned_as_it_is(trial, continued)


def test_a_resumed_trial_reports_what_it_reports_without_the_interruption(continued: Continued) -> None:
    output_dir = Path(continued.summary.study.folder).parent
    for number in RESUMED[continued.name]:
        again = TRAINERS[continued.name](output_dir).replay(continued.name, number, progress=False)
        resumed = continued.records[number]
        assert len(again.record.reports) == len(resumed.reports)
        for one, other in zip(reports_of(again.record), reports_of(resumed), strict=True):
            assert one["step"] == other["step"]
            assert one["metrics"] == pytest.approx(other["metrics"], rel=RELATIVE)


def assert_resumed(trial: dict[str, Any], continued: Continued) -> None:
    """Check that a trial trained from its newest checkpoint on, each step once, and kept its earlier reports."""
    record, steps, saved = continued.records[trial["number"]], continued.steps[trial["name"]], last_checkpoint(trial)
    assert steps == list(range(saved + 1, saved + 1 + len(steps)))
    assert (record.name, record.params) == (trial["name"], trial["params"])
    assert trial["seed"] in (None, record.seed)
    kept = [each for each in trial["reports"] if each["step"] <= saved]
    assert reports_of(record)[: len(kept)] == kept
    assert [each.step for each in record.reports] == list(range(2, steps[-1] + 1, 2))


def assert_pruned_as_it_is(trial: dict[str, Any], continued: Continued) -> None:
    """Check that a paused trial was pruned, and kept its reports."""
    record = continued.records[trial["number"]]
    assert (trial["state"], record.state.value) == ("paused", "pruned")
    assert record.params == trial["params"]
    assert reports_of(record) == trial["reports"]
