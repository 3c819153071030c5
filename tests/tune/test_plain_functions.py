"""A plain function is searched as a trainer is: its first call, reports, pruning, pauses, resumption, bad input."""

from __future__ import annotations

import datetime
import functools
import math
import os
import re
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch

import hpsearch
from hpsearch import (
    BestRun,
    CheckpointError,
    Float,
    FunctionTrial,
    Int,
    Ladder,
    ObjectiveError,
    SearchPlan,
    SpaceError,
    StudyError,
    TrialPruned,
    TrialState,
    tune,
)
from hpsearch.any_trainer.function_trial import as_metrics
from hpsearch.any_trainer.tuning import TunedFunction
from hpsearch.cli import main
from hpsearch.reports.page import write_report
from hpsearch.search.listener import SearchListener
from tests.support.clock import Clock
from tests.support.html_pages import packed_json, parse_html

X = {"x": Float(-3.0, 3.0)}
STEPS = 6
Call = tuple[int, int, float]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def search(function: Callable[[Any], Any], space: Any = X, **arguments: Any) -> Any:
    return tune(function, space, **{"progress": False, "n_trials": 8, **arguments})


def curve(trial: FunctionTrial, step: int) -> float:
    return float((trial.params["x"] - 1) ** 2 + 1 / step)


class Loop:
    """A loop with checkpoints, as users write it; notes at which step each call begins."""

    def __init__(self, asks: bool = True, saves: bool = True) -> None:
        self.calls: list[tuple[int, int]] = []
        self._asks, self._saves = asks, saves

    def __call__(self, trial: FunctionTrial) -> None:
        begin = 0
        if self._saves and trial.checkpoint is not None:
            begin = int((trial.checkpoint / "step").read_text())
        self.calls.append((trial.number, begin))
        for step in range(begin + 1, STEPS + 1):
            trial.report({"loss": curve(trial, step)}, step)
            if self._saves:
                with trial.save() as folder:
                    (folder / "step").write_text(str(step))
            if self._asks and trial.should_prune():
                return


def test_a_number_that_is_returned_is_the_result_and_the_first_call_is_trial_0() -> None:
    seen = []

    def quadratic(trial: FunctionTrial) -> float:
        seen.append(trial.params["x"])
        if trial.number == 0:
            now[0] += 60.0
        return float((trial.params["x"] - 2) ** 2)

    now = [0.0]
    function = TunedFunction(quadratic, X, clock=lambda: now[0])
    best = function.hyperparameter_search(direction="minimize", n_trials=5, progress=False)
    assert isinstance(best, BestRun)
    records = best.run_summary.records
    assert [record.seconds >= 60.0 for record in records] == [True, False, False, False, False]
    assert [record.params["x"] for record in records] == seen
    assert [record.value for record in records] == [(x - 2) ** 2 for x in seen]
    assert best.objective == min((x - 2) ** 2 for x in seen)
    assert all(record.state is TrialState.COMPLETE and record.fraction == 1.0 for record in records)


@pytest.mark.parametrize("start", [{"x": 2.5}, [{"x": 2.5}, {"x": -1.0}]])
def test_the_first_call_has_the_parameters_that_the_search_starts_with(start: Any) -> None:
    seen = []

    def quadratic(trial: FunctionTrial) -> float:
        seen.append(trial.params["x"])
        return float(trial.params["x"] ** 2)

    search(quadratic, direction="minimize", n_trials=3, start_with=start)
    given = start if isinstance(start, list) else [start]
    assert seen[: len(given)] == [each["x"] for each in given]
    assert len(seen) == 3


@pytest.mark.slow
def test_a_loop_pauses_at_rungs_and_resumes_from_its_own_checkpoints() -> None:
    loop = Loop()
    best = search(loop, max_resource=STEPS, n_trials=12)
    first, *calls = loop.calls
    records = best.run_summary.records
    assert first == (0, 0), "the call that shows what it is, which ends at its first report"
    resumed = [(number, begin) for number, begin in calls if begin > 0]
    assert resumed, "some trials were promoted"
    assert {begin for _, begin in resumed} <= {1, 3}, "the rungs at 1/6 and 1/2"
    assert len(calls) == 12 + len(resumed)
    for record in records:
        steps = [report.step for report in record.reports]
        assert steps == list(range(1, len(steps) + 1))
        assert [report.value for report in record.reports] == [
            (record.params["x"] - 1) ** 2 + 1 / step for step in steps
        ]
        assert record.state in (TrialState.COMPLETE, TrialState.PRUNED)
    assert {len(record.reports) for record in records if record.state is TrialState.PRUNED} <= {1, 3}
    assert best.checkpoint is not None
    assert (best.checkpoint / "step").read_text() == str(STEPS)


def test_of_all_checkpoints_that_of_the_best_trial_is_left() -> None:
    best = search(Loop(), max_resource=STEPS, n_trials=6)
    left = sorted(str(each.relative_to("output")) for each in Path("output").glob("study/run-*/checkpoint-*"))
    assert left == [f"study/run-{best.run_id}/checkpoint-{STEPS}"]


def test_by_scope_all_the_best_report_counts_and_its_checkpoint_is_kept() -> None:
    def turns_up(trial: FunctionTrial) -> None:
        if trial.checkpoint is not None:
            raise AssertionError("no trial pauses")
        for step in range(1, 5):
            trial.report({"loss": (step - 2) ** 2 + abs(trial.params["x"])}, step)
            with trial.save() as folder:
                (folder / "step").write_text(str(step))

    best = search(turns_up, pruner=None, scope="all", n_trials=3, max_resource=4)
    assert best.objective == min(abs(record.params["x"]) for record in best.run_summary.records)
    assert best.checkpoint is not None
    assert (best.checkpoint / "step").read_text() == "2"


@pytest.mark.slow
def test_a_function_that_never_asks_runs_to_completion_whatever_the_study_says() -> None:
    best = search(Loop(asks=False), max_resource=STEPS, n_trials=10)
    assert all(
        record.state is TrialState.COMPLETE and len(record.reports) == STEPS for record in best.run_summary.records
    )


@pytest.mark.slow
def test_without_checkpoints_trials_do_not_pause_and_a_pruner_takes_the_place_of_the_rungs(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop(saves=False)
    with caplog.at_level("INFO", "hpsearch"):
        best = search(loop, max_resource=STEPS, n_trials=16)
    states = [record.state for record in best.run_summary.records]
    assert set(states) == {TrialState.COMPLETE, TrialState.PRUNED}
    assert all(begin == 0 for _, begin in loop.calls)
    assert "trials do not pause, as Loop never reads trial.checkpoint" in caplog.text


@pytest.mark.slow
def test_without_max_resource_a_pruner_compares_reports_at_the_same_step() -> None:
    best = search(Loop(), n_trials=16, pruner="median")
    records = best.run_summary.records
    assert any(record.state is TrialState.PRUNED for record in records)
    assert all(record.fraction == 1.0 for record in records if record.state is TrialState.COMPLETE)


@pytest.mark.slow
@pytest.mark.parametrize("error", [TrialPruned, optuna.TrialPruned])
def test_raising_trial_pruned_is_returning(error: type[Exception]) -> None:
    def loop(trial: FunctionTrial) -> float:
        for step in range(1, STEPS + 1):
            trial.report(curve(trial, step), step)
            if trial.should_prune():
                raise error
        return curve(trial, STEPS)

    states = [record.state for record in search(loop, n_trials=16, direction="minimize").run_summary.records]
    assert set(states) == {TrialState.COMPLETE, TrialState.PRUNED}


def test_a_trial_may_prune_itself_and_fails_if_it_has_reported_nothing() -> None:
    def loop(trial: FunctionTrial) -> float:
        if trial.number == 1:
            raise TrialPruned
        trial.report(trial.params["x"], 1)
        if trial.number == 2:
            raise TrialPruned
        return float(trial.params["x"])

    records = search(loop, n_trials=4, direction="minimize").run_summary.records
    assert [record.state.value for record in records] == ["complete", "failed", "pruned", "complete"]


def test_the_returned_number_is_the_value_whatever_was_reported_before() -> None:
    def loop(trial: FunctionTrial) -> float:
        for step in range(1, 4):
            trial.report(step + 0 * trial.params["x"], step)
        return 10.0

    best = search(loop, n_trials=2, direction="maximize")
    assert best.objective == 10.0
    assert [report.value for report in best.run_summary.records[0].reports] == [1, 2, 3, 10]


@pytest.mark.parametrize("steps", [[1, 1, 2, 3], [1, 2, 3, 2], [0, 0, 1, 2], [0, 1, 2, 0]])
def test_the_first_report_of_a_step_counts_as_in_optuna_and_one_notice_says_so(steps: list[int]) -> None:
    def loop(trial: Any) -> float:
        trial.suggest_float("x", 0, 1)
        for value, step in enumerate(steps):
            trial.report(value, step)
        return 9.0

    study = optuna.create_study()
    with pytest.warns(UserWarning, match="is ignored because"):
        study.optimize(loop, n_trials=1)
    listener = Notices()
    best = tune(loop, n_trials=3, direction="minimize", progress=listener, pruner=None)
    for record in best.run_summary.records:
        *reported, _ = record.reports  # the last one is the result
        assert [report.value for report in reported] == list(study.trials[0].intermediate_values.values())
    repeated = next(step for index, step in enumerate(steps) if step in steps[:index])
    assert listener.notices == [
        f"loop reports step {repeated} more than once: the first report of a step counts, and others are ignored"
    ]


def test_steps_may_count_from_0() -> None:
    def loop(trial: FunctionTrial) -> None:
        begin = 0 if trial.checkpoint is None else int((trial.checkpoint / "step").read_text()) + 1
        for step in range(begin, STEPS):
            trial.report({"loss": curve(trial, step + 1)}, step)
            with trial.save() as folder:
                (folder / "step").write_text(str(step))
            if trial.should_prune():
                return

    records = search(loop, max_resource=STEPS, n_trials=10).run_summary.records
    reported = {tuple(report.step for report in record.reports) for record in records}
    assert reported <= {(1,), (1, 2, 3), tuple(range(1, STEPS + 1))}
    assert tuple(range(1, STEPS + 1)) in reported


def test_each_call_is_seeded_with_the_seed_of_its_trial() -> None:
    drawn = []

    def function(trial: FunctionTrial) -> float:
        drawn.append((trial.seed, float(torch.rand(())), float(np.random.rand())))
        return float(trial.params["x"])

    search(function, direction="minimize", n_trials=3, seed=7)
    assert len(set(drawn)) == 1
    assert drawn[0][0] == 7


def test_parameters_may_be_suggested_where_they_are_needed() -> None:
    def conditional(trial: FunctionTrial) -> float:
        if trial.suggest_categorical("kind", ["line", "square"]) == "line":
            return trial.suggest_float("slope", 0.1, 1.0)
        return trial.suggest_int("side", 1, 9) ** 2

    best = tune(conditional, n_trials=8, direction="minimize", progress=False)
    names = {tuple(sorted(record.params)) for record in best.run_summary.records}
    assert names == {("kind", "slope"), ("kind", "side")}


def test_several_objectives_are_a_tuple() -> None:
    def two(trial: FunctionTrial) -> tuple[float, float]:
        return trial.params["x"] ** 2, (trial.params["x"] - 2) ** 2

    front = search(two, direction=["minimize", "minimize"], n_trials=6)
    assert all(
        best.objective == [best.hyperparameters["x"] ** 2, (best.hyperparameters["x"] - 2) ** 2] for best in front
    )


def test_a_metric_whose_name_tells_the_direction_needs_none() -> None:
    best = search(lambda trial: {"accuracy": -abs(trial.params["x"])}, n_trials=4)
    assert best.objective == max(-abs(record.params["x"]) for record in best.run_summary.records)


def test_attributes_are_in_the_record() -> None:
    def function(trial: FunctionTrial) -> float:
        trial.set_user_attr("squared", trial.params["x"] ** 2)
        trial.report(trial.params["x"])
        return float(trial.params["x"])

    record = search(function, direction="minimize", n_trials=1).run_summary.records[0]
    assert record.user_attrs == {"squared": record.params["x"] ** 2}


def test_an_error_fails_the_trial_and_the_search_continues() -> None:
    def fails(trial: FunctionTrial) -> float:
        if trial.number == 1:
            raise ValueError("no such thing")
        return float(trial.params["x"])

    records = search(fails, direction="minimize", n_trials=3).run_summary.records
    assert [record.state.value for record in records] == ["complete", "failed", "complete"]
    assert records[1].reason == "ValueError: no such thing"


def test_a_first_call_that_prunes_itself_is_no_end_of_the_search() -> None:
    def prunes(trial: FunctionTrial) -> float:
        if trial.params["x"] == 2.5:
            raise TrialPruned
        return float(trial.params["x"])

    records = search(prunes, direction="minimize", n_trials=3, start_with={"x": 2.5}).run_summary.records
    assert [record.state.value for record in records] == ["failed", "complete", "complete"]


@pytest.mark.slow
def test_a_function_that_does_not_count_its_steps_never_repeats_one() -> None:
    def loop(trial: FunctionTrial) -> None:
        begin = 0 if trial.checkpoint is None else int((trial.checkpoint / "step").read_text())
        for step in range(begin + 1, STEPS + 1):
            trial.report({"loss": curve(trial, step)})
            if trial.should_prune():
                return
            with trial.save() as folder:
                (folder / "step").write_text(str(step))

    records = search(loop, max_resource=STEPS, n_trials=20, sampler="random").run_summary.records
    for record in records:
        assert [report.value for report in record.reports] == [
            (record.params["x"] - 1) ** 2 + 1 / step for step in range(1, len(record.reports) + 1)
        ]


@pytest.mark.slow
def test_a_trial_resumes_from_its_checkpoint_though_its_best_report_has_none() -> None:
    begun: list[int] = []

    def turns_up(trial: FunctionTrial) -> None:
        begin = 0 if trial.checkpoint is None else int((trial.checkpoint / "step").read_text())
        begun.append(begin)
        for step in range(begin + 1, STEPS + 1):
            trial.report({"loss": (trial.params["x"] - 1) ** 2 + step}, step)
            if step == 3:
                with trial.save() as folder:
                    (folder / "step").write_text(str(step))
            if trial.should_prune():
                return

    search(turns_up, max_resource=STEPS, n_trials=20, sampler="random", scope="all", keep_checkpoints=None)
    assert set(begun) == {0, 3}


def test_if_the_first_call_fails_the_function_is_called_with_other_parameters_and_trial_0_fails_alone() -> None:
    def fails(trial: FunctionTrial) -> float:
        if trial.params["x"] == 2.5:
            raise ValueError("not for 2.5")
        return float(trial.params["x"])

    records = search(fails, direction="minimize", n_trials=3, start_with={"x": 2.5}).run_summary.records
    assert [record.state.value for record in records] == ["failed", "complete", "complete"]
    assert records[0].params == {"x": 2.5}


def test_a_trial_without_a_result_fails_and_the_search_continues() -> None:
    def forgets(trial: FunctionTrial) -> float | None:
        return None if trial.number == 1 else float(trial.params["x"])

    records = search(forgets, direction="minimize", n_trials=3).run_summary.records
    assert [record.state.value for record in records] == ["complete", "failed", "complete"]
    assert "forgets returned None and has reported nothing" in str(records[1].reason)


def test_a_study_continues_without_another_first_call_and_a_trial_is_replayed() -> None:
    loop = Loop()
    search(loop, max_resource=STEPS, n_trials=4, pruner=None)
    before = len(loop.calls)
    best = search(loop, max_resource=STEPS, n_trials=6, pruner=None)
    assert loop.calls[before:] == [(4, 0), (5, 0)]
    assert len(best.run_summary.records) == 6
    again = (
        SearchPlan(lambda trial: loop(trial), X).trainer({"output_dir": "output"}).replay("study", 2, progress=False)
    )
    assert again.is_equal


@pytest.mark.slow
def test_a_study_continued_with_an_edited_function_finds_out_again_whether_it_can_resume(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def does_not_save(trial: FunctionTrial) -> None:
        for step in range(1, STEPS + 1):
            trial.report({"loss": curve(trial, step)}, step)
            if trial.should_prune():
                return

    search(Loop(), max_resource=STEPS, n_trials=4)
    with caplog.at_level("INFO", "hpsearch"):
        search(does_not_save, max_resource=STEPS, n_trials=8)
    assert "trials do not pause, as does_not_save never reads trial.checkpoint" in caplog.text


def test_a_save_that_fails_leaves_the_last_checkpoint() -> None:
    seen: list[list[str]] = []

    def write(trial: FunctionTrial, text: str, error: type[Exception] | None = None) -> None:
        with trial.save() as folder:
            (folder / "weights").write_text(text)
            if error is not None:
                raise error

    def saves(trial: FunctionTrial) -> float:
        trial.report(0 * trial.params["x"], 1)
        write(trial, "whole")
        with pytest.raises(ZeroDivisionError):
            write(trial, "half", ZeroDivisionError)
        seen.append([each.read_text() for each in Path("output").glob("study/run-0/checkpoint-*/weights")])
        return 1.0

    search(saves, direction="minimize", n_trials=1)
    assert seen[-1] == ["whole"]


def test_ctrl_c_lets_a_function_that_saves_complete_its_step_and_the_trial_resumes_after_it() -> None:
    loop = Loop()

    def interrupted(trial: FunctionTrial) -> None:
        save, count = trial.save, iter(range(100))

        class Interrupts:
            def __init__(self) -> None:
                self._inner = save()

            def __enter__(self) -> Path:
                return self._inner.__enter__()

            def __exit__(self, *error: Any) -> None:
                self._inner.__exit__(*error)
                if next(count) == 2 and trial.number == 1 and len(loop.calls) == 3:
                    os.kill(os.getpid(), 2)

        trial.save = Interrupts  # type: ignore[assignment]
        loop(trial)

    with pytest.raises(hpsearch.SearchInterrupted):
        search(interrupted, {"x": Float(-3.0, 3.0)}, max_resource=STEPS, n_trials=3, pruner=None)
    best = search(interrupted, max_resource=STEPS, n_trials=3, pruner=None)
    assert loop.calls == [(0, 0), (0, 0), (1, 0), (1, 4), (2, 0)]
    assert [len(record.reports) for record in best.run_summary.records] == [STEPS] * 3


def test_ctrl_c_immediately_ends_a_function_that_saves_but_does_not_ask_whether_it_ends() -> None:
    steps: list[int] = []

    def never_asks(trial: FunctionTrial) -> None:
        assert trial.checkpoint is None
        for step in range(1, STEPS + 1):
            steps.append(step)
            trial.report({"loss": curve(trial, step)}, step)
            with trial.save() as folder:
                (folder / "state").touch()
            if step == 2:
                os.kill(os.getpid(), 2)

    with pytest.raises(hpsearch.SearchInterrupted):
        search(never_asks, {"x": Float(-3.0, 3.0)}, max_resource=STEPS, n_trials=1)
    assert max(steps) == 2


def test_a_limit_in_epochs_counts_steps() -> None:
    records = search(Loop(), max_resource=STEPS, n_trials=4, pruner=None, trial_max_epochs=2).run_summary.records
    assert [record.state.value for record in records] == ["stopped"] * 4
    assert [len(record.reports) for record in records] == [2] * 4


def test_limits_and_reasons_count_the_steps_of_a_function() -> None:
    [record] = search(Loop(), n_trials=4, pruner=None, max_epochs=2).run_summary.records
    assert (record.state, record.reason) == (TrialState.STOPPED, "the study's 2 steps are exhausted")
    many = search(Loop(), max_resource=STEPS, n_trials=8, study_name="pruned").run_summary.records
    pruned = {record.reason for record in many if record.state is TrialState.PRUNED}
    assert pruned
    assert pruned <= {"pruned after 1 step", "pruned after 3 steps"}


def test_all_that_shows_a_study_of_a_function_counts_steps(capsys: pytest.CaptureFixture[str]) -> None:
    best = search(Loop(), max_resource=STEPS, n_trials=4, progress=True)
    for command in (["show"], ["show", "--sort", "steps"], ["show", "--sort", "epochs", "--markdown"]):
        assert main([*command, "output/study"]) == 0
    assert main(["show", "--markdown", "output/study"]) == 0
    assert main(["compare", "0", "1", "--study", "output/study"]) == 0
    assert main(["compare", "output/study", "output/study"]) == 0
    shown = capsys.readouterr().out
    assert "epoch" not in shown
    assert len(re.findall(r"\bsteps\b.*\bseconds\b", shown)) == 4, "the headings of the tables"
    assert len(re.findall(r"^[ ≠]+steps ", shown, re.MULTILINE)) == 2, "the rows of the comparisons"
    assert len(re.findall(r"All trials together trained \d+ steps", shown)) == 1
    assert best.run_summary.trials_markdown().splitlines()[0].endswith("| steps | seconds |")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda trial: trial.params["x"] ** 2, ["minimize value", "reports nothing while it runs, so no trial can be"]),
        (
            lambda trial: [trial.report({"loss": trial.params["x"]}, step) for step in (1, 2)] and None,
            ["minimize loss", "sampler TPESampler, as the default one needs trials that pause at rungs or run to"],
        ),
    ],
)
def test_the_first_lines_say_what_is_searched_and_why_so_in_the_words_of_the_function_and_once(
    function: Any, said: list[str], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    search(function, X, n_trials=4, max_resource=2, direction="minimize", progress=True)
    assert main(["best", "output/study"]) == 0
    shown = capsys.readouterr().out
    assert [shown.count(each) for each in said] == [1] * len(said), shown
    assert "eval_" not in shown
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


def test_a_notice_that_nothing_shows_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    search(lambda trial: trial.params["x"] ** 2, X, n_trials=1, direction="minimize", progress=False)
    assert "reports nothing while it runs" in caplog.text


def test_the_report_of_a_function_counts_steps() -> None:
    pytest.importorskip("plotly")
    search(Loop(), max_resource=STEPS, n_trials=4, pruner=None)
    summary = hpsearch.open_study("output/study")
    write_report(summary, "report.html")
    page = Path("report.html").read_text()
    assert '<th scope="col" class="number">steps</th>' in page
    assert "All trials together trained 24 steps" in page
    assert packed_json(parse_html(page), "figures")["curves"]["layout"]["xaxis"]["title"]["text"] == "steps"


def test_load_model_says_where_the_checkpoint_is() -> None:
    best = search(Loop(), max_resource=STEPS, n_trials=2)
    where = r"hpsearch cannot load what Loop has saved; load it from '.*/output/study"
    with pytest.raises(CheckpointError, match=where):
        best.load_model()


def test_load_model_says_that_a_function_has_saved_nothing() -> None:
    best = search(lambda trial: trial.params["x"], direction="minimize", n_trials=1)
    with pytest.raises(StudyError, match=r"Trial 0 of a plain function has saved no checkpoint \(trial.save\(\)\)"):
        best.load_model()


def test_several_processes_of_a_launcher_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(StudyError, match=r"started 2 processes \(WORLD_SIZE\). Start the program with python"):
        search(lambda trial: trial.params["x"], direction="minimize")


def test_what_the_first_call_notes_is_in_the_record_of_trial_0() -> None:
    def function(trial: FunctionTrial) -> float:
        trial.set_user_attr("number", trial.number)
        return float(trial.params["x"])

    records = search(function, direction="minimize", n_trials=2).run_summary.records
    assert [record.user_attrs for record in records] == [{"number": 0}, {"number": 1}]


def test_a_function_that_saves_and_returns_leaves_its_checkpoint() -> None:
    def function(trial: FunctionTrial) -> float:
        with trial.save() as folder:
            (folder / "x").write_text(str(trial.params["x"]))
        return float(trial.params["x"])

    best = search(function, direction="minimize", n_trials=3)
    assert best.checkpoint is not None
    assert float((best.checkpoint / "x").read_text()) == best.objective
    alone = search(function, direction="minimize", n_trials=1, study_name="alone")
    assert float((alone.checkpoint / "x").read_text()) == alone.objective


def test_a_searched_seed_seeds_the_first_call_too() -> None:
    records = search(
        lambda trial: float(torch.rand(())) + 0 * trial.params["seed"] + 0 * trial.seed,
        {"seed": Int(0, 1000)},
        direction="minimize",
        n_trials=2,
    ).run_summary.records
    for record in records:
        torch.manual_seed(record.params["seed"])
        assert record.value == float(torch.rand(()))


def test_a_function_may_suggest_more_than_the_space_has() -> None:
    def function(trial: FunctionTrial) -> float:
        return float(trial.params["x"]) + trial.suggest_float("y", 0, 1)

    for record in search(function, direction="minimize", n_trials=3).run_summary.records:
        assert record.value == record.params["x"] + record.params["y"]


def test_a_value_to_start_with_that_the_function_cannot_take_is_refused() -> None:
    with pytest.raises(SpaceError, match="start_with gives x=5, which is not in Float"):
        search(lambda trial: trial.suggest_float("x", 0, 1), None, direction="minimize", start_with={"x": 5})


def swallows_everything(trial: FunctionTrial) -> None:
    begin = 0 if trial.checkpoint is None else int((trial.checkpoint / "step").read_text())
    try:
        for step in range(begin + 1, STEPS + 1):
            trial.report({"loss": curve(trial, step)}, step)
            with trial.save() as folder:
                (folder / "step").write_text(str(step))
            if trial.should_prune():
                return
    except BaseException:
        pass


@pytest.mark.slow
def test_a_function_that_catches_everything_is_searched_as_one_that_does_not() -> None:
    def numbers(function: Any, name: str) -> list[Any]:
        records = search(function, max_resource=STEPS, n_trials=10, study_name=name).run_summary.records
        return [(record.state, record.params, [report.values for report in record.reports]) for record in records]

    assert numbers(swallows_everything, "swallows") == numbers(Loop(), "does-not")


def test_a_function_may_report_from_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)

    def function(trial: FunctionTrial) -> None:
        thread = threading.Thread(target=trial.report, args=({"loss": trial.params["x"] ** 2}, 1))
        thread.start()
        thread.join()

    records = search(function, n_trials=2).run_summary.records
    assert [record.value for record in records] == [record.params["x"] ** 2 for record in records]


class Notices(SearchListener):
    """Keeps the notices of a search, and the news of the first call."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.first_call: list[str] = []
        self.notes: list[str] = []

    def on_search_begin(self, study: Any, records: Any, notes: Sequence[str]) -> None:
        self.notes = list(notes)

    def on_first_call(self, news: str) -> None:
        self.first_call.append(news)

    def on_notice(self, notice: str) -> None:
        self.notices.append(notice)


@pytest.mark.slow
@pytest.mark.parametrize(
    "order", [pytest.param("report, save, ask", marks=pytest.mark.smoke), "save, report, ask", "report, ask, save"]
)
def test_trials_pause_and_resume_in_whatever_order_the_function_saves_reports_and_asks(order: str) -> None:
    begun: list[int] = []

    def loop(trial: FunctionTrial) -> None:
        begin = 0 if trial.checkpoint is None else int((trial.checkpoint / "step").read_text())
        begun.append(begin)
        for step in range(begin + 1, STEPS + 1):
            for action in order.split(", "):
                if action == "report":
                    trial.report({"loss": curve(trial, step)}, step)
                elif action == "save":
                    with trial.save() as folder:
                        (folder / "step").write_text(str(step))
                elif trial.should_prune():
                    return

    listener = Notices()
    rungs = Ladder((1 / 6, 1 / 2), 2)
    records = search(loop, max_resource=STEPS, n_trials=12, pruner=rungs, progress=listener).run_summary.records
    assert {record.state for record in records} == {TrialState.COMPLETE, TrialState.PRUNED}
    assert any(begun), "some were promoted"
    repeated = [notice for notice in listener.notices if "more than once" in notice]
    assert repeated == [], "a step that is repeated after a pause needs no notice"
    for record in records:
        assert [report.step for report in record.reports] == list(range(1, len(record.reports) + 1))
        assert [report.value for report in record.reports] == [
            (record.params["x"] - 1) ** 2 + 1 / step for step in range(1, len(record.reports) + 1)
        ]


def test_a_function_that_rarely_saves_is_told_once_that_it_does_not_pause() -> None:
    def loop(trial: FunctionTrial) -> None:
        assert trial.checkpoint is None
        for step in range(1, STEPS + 1):
            trial.report({"loss": curve(trial, step)}, step)
            if trial.should_prune():
                return

    listener = Notices()
    search(loop, max_resource=STEPS, n_trials=8, progress=listener)
    assert listener.notices == [
        "loop has saved nothing since the report before the last one: its trials do not pause at such rungs"
    ]


def test_a_first_call_is_shown_when_it_begins_and_when_it_ends_at_its_first_report() -> None:
    listener, shown, now = Notices(), [], [0.0]

    def loop(trial: FunctionTrial) -> None:
        shown.append(list(listener.first_call))
        now[0] += 7.0
        trial.report({"loss": 0.25 + 0 * trial.params["x"]}, 3)

    TunedFunction(loop, X, clock=lambda: now[0]).hyperparameter_search(n_trials=1, progress=listener)
    begins = "the first call of loop is running: it shows what loop is"
    ended = (
        "the first call of loop has reported loss=0.25 at step 3 after 7.0 s, and ends here: trial 0 calls loop again"
    )
    assert shown == [[begins], [begins, ended]]


def test_of_several_processes_only_the_main_one_shows_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        listener = Notices()
        with pytest.raises(StudyError, match="started 2 processes"):
            search(lambda trial: trial.params["x"], direction="minimize", progress=listener)
        assert bool(listener.first_call) == (rank == "0")


def test_the_time_of_the_first_call_is_a_part_of_the_timeout(clock: Clock) -> None:
    calls = iter(range(100))

    def loop(trial: FunctionTrial) -> None:
        clock.move(60.0 if next(calls) == 0 else 0.0)()
        for step in range(1, STEPS + 1):
            trial.report({"loss": curve(trial, step)}, step)
            clock.move(15.0)()
            if trial.should_prune():
                return

    best = TunedFunction(loop, X, clock=clock).hyperparameter_search(n_trials=5, timeout=100.0, progress=False)
    assert isinstance(best, BestRun)
    [record] = best.run_summary.records
    assert (record.state, record.reason) == (TrialState.STOPPED, "the study's timeout of 100.0 s is over")
    assert len(record.reports) == 4, "the first call took 60 s, and three steps 45"


def test_a_first_call_that_returns_after_the_timeout_is_the_only_trial(clock: Clock) -> None:
    def slow(trial: FunctionTrial) -> float:
        clock.move(60.0)()
        return float(trial.params["x"])

    listener = Notices()
    best = TunedFunction(slow, X, clock=clock).hyperparameter_search(
        n_trials=5, timeout=50.0, direction="minimize", progress=listener
    )
    assert isinstance(best, BestRun)
    [record] = best.run_summary.records
    assert (record.state, record.reason, record.seconds) == (TrialState.COMPLETE, None, 60.0)
    assert listener.notices[-1:] == ["the search ends early: the study's timeout of 50.0 s is over"]


def test_a_result_that_a_function_completes_after_a_signal_counts() -> None:
    def loop(trial: FunctionTrial) -> None:
        for step in range(1, STEPS + 1):
            if trial.number == 1 and step == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            trial.report({"loss": curve(trial, step)}, step)

    with pytest.raises(hpsearch.SearchInterrupted) as interrupted:
        search(loop, n_trials=3)
    records = interrupted.value.best_run.run_summary.records
    assert [(record.state.value, len(record.reports)) for record in records] == [("complete", STEPS)] * 2


def test_trials_of_sessions_with_other_settings_are_replayed_with_theirs() -> None:
    search(Loop(), max_resource=4, n_trials=1, seed=1, pruner=None)
    search(Loop(), max_resource=STEPS, n_trials=2, seed=2, pruner=None)
    for number in (0, 1):
        again = SearchPlan(lambda trial: Loop()(trial), X).trainer().replay("study", number, progress=False)
        assert again.is_equal
        assert again.record.seed == number + 1


@pytest.mark.slow
def test_another_max_resource_is_said_with_what_it_does_to_the_rungs() -> None:
    said = []
    for n_trials, max_resource in ((2, 4), (4, STEPS), (5, STEPS), (6, 4)):
        listener = Notices()
        search(Loop(), max_resource=max_resource, n_trials=n_trials, progress=listener)
        changes = [note.partition("earlier trials: ")[2] for note in listener.notes if note.startswith("CHANGED")]
        said.append((changes, [each.partition(": rungs compare")[0] for each in listener.notices if "rungs" in each]))
    assert said == [
        ([], []),
        (["max_resource 4 -> 6"], ["max_resource was 4 in the last session and is 6 now"]),
        (["max_resource 4 -> 6"], []),
        (["max_resource 6 -> 4"], ["max_resource was 6 in the last session and is 4 now"]),
    ]


@pytest.mark.slow
def test_a_study_that_returns_to_earlier_code_makes_no_further_first_call() -> None:
    def one(trial: FunctionTrial) -> None:
        calls.append(trial.number)
        trial.report({"loss": trial.params["x"]}, 1)

    def other(trial: FunctionTrial) -> None:
        trial.report({"loss": trial.params["x"] + 1}, 1)

    calls: list[int] = []
    for n_trials, function in enumerate((one, other, one, one), start=1):
        calls.clear()
        search(function, n_trials=n_trials)
    assert calls == [3], "the session before had the same code"


def test_a_replay_of_a_study_that_does_not_exist_is_refused() -> None:
    with pytest.raises(StudyError, match="There is no study 'none' of <lambda> in 'output'"):
        SearchPlan(lambda trial: Loop()(trial), X).trainer().replay("none", 0, progress=False)


def reports(*values: Any, steps: Any = None) -> Callable[[Any], None]:
    def function(trial: FunctionTrial) -> None:
        trial.params["x"]
        for value, step in zip(values, steps or range(1, len(values) + 1), strict=True):
            trial.report(value, step)

    return function


def returns(value: Any) -> Callable[[Any], Any]:
    def function(trial: FunctionTrial) -> Any:
        trial.params["x"]
        return value

    return function


@pytest.mark.parametrize(
    ("function", "arguments", "kind", "message"),
    [
        (returns("good"), {}, StudyError, "must return a transformers.Trainer, a number or a dict .* the text 'good'"),
        (returns(None), {}, StudyError, "or report some, but returned None"),
        (returns({}), {}, StudyError, "is no number"),
        (returns({"a": "b"}), {"compute_objective": "a"}, StudyError, "a=the text 'b' is no number"),
        (returns(1.0), {}, ObjectiveError, "function reports a number, so say which way is better: direction="),
        (returns({"quality": 1.0}), {}, ObjectiveError, "reports quality, so say which way is better"),
        (returns({"loss": 1.0, "time": 2.0}), {}, ObjectiveError, "reports loss, time: name the metric to optimise"),
        (returns((1.0, 2.0)), {}, ObjectiveError, "reports a tuple, so say which way is better"),
        (returns(1.0), {"direction": "minimise"}, ObjectiveError, "Did you mean 'minimize'"),
        (reports(1.0, "bad"), {"direction": "minimize"}, StudyError, "the text 'bad' is no number"),
        (reports(1.0, 2.0, steps=[3, 2]), {"direction": "minimize"}, StudyError, "reports step 2 after step 3"),
        (reports(1.0, 2.0, steps=[1, 1.5]), {"direction": "minimize"}, StudyError, "a whole number .* but got 1.5"),
        (reports(1.0, 2.0, steps=[1, -1]), {"direction": "minimize"}, StudyError, "a whole number .* but got -1"),
        (reports(1.0, steps=["one"]), {"direction": "minimize"}, StudyError, "a whole number .* but got 'one'"),
        (reports({1: 1.0, 2: 2.0}), {}, ObjectiveError, "reports 1, 2: name the metric to optimise"),
        (
            lambda trial: (trial.report({"loss": trial.params["x"]}, 1), 0.9)[1] if trial.number >= 0 else None,
            {},
            StudyError,
            "<lambda> returned value, but has reported loss: it must report and return the objective",
        ),
        (lambda trial: 1.0, {"direction": "minimize"}, SpaceError, "Parameter 'x' is never used"),
        (lambda trial: trial.params["y"], {}, SpaceError, "There is no parameter 'y'"),
        (lambda trial: 1 / 0, {}, StudyError, "raised ZeroDivisionError: .* before the first trial"),
        (returns(1.0), {"max_resource": 0}, StudyError, "max_resource must be .*at least 1, but got 0"),
        (returns(1.0), {"max_resources": 3}, StudyError, "max_resource"),
        (3, {}, StudyError, "tune needs a function of a trial, but got 3"),
    ],
)
def test_bad_input_ends_the_search_with_one_clear_line(
    function: Any, arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        search(function, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"direction": "minimise"}, "Did you mean 'minimize'"),
        ({"direction": "minimize", "n_trials": 0}, "n_trials"),
        ({"direction": "minimize", "start_with": {"y": 1}}, "start_with gives y=1, which is not in the search space"),
        ({"direction": ["minimize", "down"]}, "'down' is not a direction"),
    ],
)
def test_arguments_are_checked_before_the_function_is_called(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(hpsearch.InvalidInputError, match=message):
        search(lambda trial: pytest.fail("it was called"), **arguments)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, {"eval_value": 1.0}),
        (np.float32(0.5), {"eval_value": 0.5}),
        (torch.tensor(0.5), {"eval_value": 0.5}),
        (np.array([0.5]), {"eval_value": 0.5}),
        (True, {"eval_value": 1.0}),
        ({"eval_f1": 1, "loss": 2}, {"eval_f1": 1.0, "eval_loss": 2.0}),
        ([1, 2], {"eval_value_0": 1.0, "eval_value_1": 2.0}),
    ],
)
def test_what_counts_as_metrics(value: object, expected: dict[str, float]) -> None:
    assert as_metrics(value, "function") == expected


@pytest.mark.parametrize("value", [None, "0.5", object(), [], {}, {"a": None}, [1, "b"], torch.zeros(2)])
def test_what_does_not_count_as_metrics(value: object) -> None:
    with pytest.raises(StudyError, match="is no number"):
        as_metrics(value, "function")


def test_a_value_that_is_not_finite_fails_the_trial() -> None:
    values = iter([math.nan, 1.0, math.inf, 2.0])
    records = search(
        lambda trial: trial.params["x"] * 0 + next(values), direction="minimize", n_trials=4
    ).run_summary.records
    assert [record.state.value for record in records] == ["failed", "complete", "failed", "complete"]


def quadratic(trial: optuna.Trial) -> float:
    """Optuna's first example: the minimum of a parabola."""
    x = trial.suggest_float("x", -10, 10)
    return (x - 2) ** 2


def classifier(trial: optuna.Trial) -> float:
    """Optuna's example of a conditional space: one of two classifiers, by cross-validation."""
    from sklearn.datasets import load_iris
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import cross_val_score
    from sklearn.svm import SVC

    data = load_iris()
    if trial.suggest_categorical("classifier", ["SVC", "RandomForest"]) == "SVC":
        model: Any = SVC(C=trial.suggest_float("svc_c", 1e-10, 1e10, log=True), gamma="auto")
    else:
        depth = trial.suggest_int("rf_max_depth", 2, 32, log=True)
        model = RandomForestClassifier(max_depth=depth, n_estimators=5, random_state=0)
    return float(cross_val_score(model, data.data, data.target, n_jobs=1, cv=3).mean())


def network(trial: optuna.Trial, epochs: int = 4) -> float:
    """Optuna's example of pruning: a small network, which reports its accuracy after each epoch."""
    layers: list[torch.nn.Module] = []
    width = 4
    for index in range(trial.suggest_int("n_layers", 1, 2)):
        wider = trial.suggest_int(f"units_{index}", 4, 16)
        layers += [torch.nn.Linear(width, wider), torch.nn.ReLU()]
        width = wider
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 3))
    kind = trial.suggest_categorical("optimizer", ["Adam", "SGD"])
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=trial.suggest_float("lr", 1e-4, 1e-1, log=True))
    data = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    labels = (data.sum(1) > 0).long() + (data.sum(1) > 1.5).long()
    accuracy = 0.0
    for epoch in range(epochs):
        for begin in range(0, 90, 30):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(data[begin : begin + 30]), labels[begin : begin + 30]).backward()
            optimizer.step()
        accuracy = (model(data[90:]).argmax(1) == labels[90:]).float().mean().item()
        trial.report(accuracy, epoch)
        if trial.should_prune():
            raise optuna.exceptions.TrialPruned()
    trial.set_user_attr("epochs", epochs)
    return accuracy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "direction", "n_trials"),
    [
        pytest.param(quadratic, "minimize", 12, marks=pytest.mark.smoke),
        (classifier, "maximize", 6),
        (network, "maximize", 16),
    ],
)
def test_an_objective_of_optuna_runs_unchanged(objective: Any, direction: str, n_trials: int) -> None:
    best: BestRun = tune(objective, n_trials=n_trials, direction=direction, progress=False)
    records = best.run_summary.records
    assert len(records) == n_trials
    assert {record.state for record in records} <= {TrialState.COMPLETE, TrialState.PRUNED}
    for record in records:
        if record.state is not TrialState.COMPLETE:
            continue
        torch.manual_seed(record.seed or 0)
        alone = objective(optuna.trial.FixedTrial(record.params))
        assert record.value == pytest.approx(alone, abs=1e-6), f"trial {record.number}, with the same seed alone"


def in_both(objective: Callable[[Any], float], **arguments: Any) -> tuple[list[Any], list[Any]]:
    """What an objective notes as attributes in a trial of Optuna, and in all trials here."""
    study = optuna.create_study(study_name="study", direction=arguments["direction"])
    study.optimize(objective, n_trials=1)
    best = tune(objective, n_trials=2, progress=False, **arguments)
    return [study.trials[0].user_attrs], [record.user_attrs for record in best.run_summary.records]


def test_a_trial_knows_its_study_as_in_optuna_in_the_first_call_too() -> None:
    def objective(trial: Any) -> float:
        study = trial.study
        is_minimized = study.direction == optuna.study.StudyDirection.MINIMIZE
        trial.set_user_attr("known", [study.study_name, is_minimized, [each.name for each in study.directions]])
        trial.set_user_attr("began", abs((datetime.datetime.now() - trial.datetime_start).total_seconds()) < 60)
        return float(trial.suggest_float("x", 0, 1))

    [theirs], ours = in_both(objective, direction="minimize")
    assert theirs == {"known": ["study", True, ["MINIMIZE"]], "began": True}
    assert ours == [theirs, theirs]


@pytest.mark.slow
def test_a_resumed_trial_began_when_it_began() -> None:
    began: dict[int, list[datetime.datetime]] = {}
    loop = Loop()

    def noting(trial: FunctionTrial) -> None:
        began.setdefault(trial.number, []).append(trial.datetime_start)
        loop(trial)

    records = search(noting, max_resource=STEPS, n_trials=12).run_summary.records
    resumed = {number: times for number, times in began.items() if number > 0 and len(times) > 1}
    assert resumed
    for number, (_, *again) in resumed.items():
        begin = records[number].spans[0].begin
        assert [each.timestamp() for each in again] == pytest.approx([begin] * len(again), abs=1e-3)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (
            lambda trial: trial.study.best_value,
            r"study.best_value does not exist: .*open_study\('.*/output/study'\).best",
        ),
        (
            lambda trial: trial.study.best_trial,
            "trial.study.best_trial does not exist: a trial does not see the others",
        ),
        (lambda trial: trial.study.trials, r"trial.study.trials does not exist: .*best.run_summary.records"),
        (lambda trial: trial.study.user_attrs, "trial.study.user_attrs does not exist: .*use trial.set_user_attr"),
        (lambda trial: trial.study.stop(), "trial.study.stop does not exist: pass callbacks= to tune"),
        (lambda trial: trial.study.nonsense, r"trial.study.nonsense does not exist\.$"),
        (lambda trial: trial.system_attrs, "trial.system_attrs does not exist: use trial.user_attrs"),
        (lambda trial: trial.suggest_loguniform, "trial.suggest_loguniform does not exist: use trial.suggest_float"),
        (lambda trial: trial.nonsense, r"trial.nonsense does not exist\.$"),
    ],
)
def test_what_a_trial_cannot_know_of_its_study_says_what_takes_its_place(
    read: Callable[[Any], object], message: str
) -> None:
    errors: list[Exception] = []

    def function(trial: FunctionTrial) -> float:
        with pytest.raises(AttributeError) as caught:
            read(trial)
        errors.append(caught.value)
        return float(trial.params["x"])

    search(function, direction="minimize", n_trials=2)
    assert len(errors) == 2, "in the first call and in a trial"
    assert all(re.search(message, str(error)) for error in errors), errors


def test_a_direction_that_is_not_known_yet_and_one_of_several_are_refused() -> None:
    def one(trial: FunctionTrial) -> dict[str, float]:
        trial.set_user_attr("direction", trial.study.direction.name)
        return {"loss": trial.params["x"]}

    with pytest.raises(StudyError, match=r"no direction yet: this is the first call .* Pass direction= to tune"):
        search(one)
    [record] = search(one, compute_objective="loss", n_trials=1).run_summary.records
    assert record.user_attrs == {"direction": "MINIMIZE"}

    def two(trial: FunctionTrial) -> tuple[float, float]:
        trial.set_user_attr("directions", [each.name for each in trial.study.directions])
        return trial.params["x"], trial.study.direction.value

    with pytest.raises(StudyError, match="there are several objectives: use directions"):
        search(two, direction=["minimize", "maximize"])


def test_the_space_may_be_given_apart_and_lambdas_are_functions() -> None:
    best = search(functools.partial(lambda power, trial: abs(trial.params["x"]) ** power, 2), {"x": Int(-5, 5)},
                  direction="minimize", n_trials=4)  # fmt: skip
    assert best.objective == min(record.params["x"] ** 2 for record in best.run_summary.records)
