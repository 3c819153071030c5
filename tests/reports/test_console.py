"""What a search shows: lines without a terminal, a live view in one, tables that fit."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hpsearch import (
    BestRun,
    FixedTrial,
    Float,
    Report,
    SearchListener,
    SearchSpace,
    SearchSummary,
    Study,
    TrialRecord,
    TrialState,
)
from hpsearch.backends import get_backend
from hpsearch.reports.console import LineView, LiveView, console_listener
from hpsearch.reports.tables import describe_best, failures, format_value, importance_table, sparkline, trials_table
from hpsearch.search.objective import resolve_objectives
from tests.search.small_trainer import small_trainer


def make_study(n_trials: int = 3, **changes: Any) -> Study:
    objectives = resolve_objectives("accuracy", None, has_metrics=True)
    settings = {"space": SearchSpace({"x": Float(0.0, 1.0)}), "objectives": objectives, **changes}
    return Study(name="digits", folder=Path("out/digits"), n_trials=n_trials, **settings)


def reports(*values: float) -> tuple[Report, ...]:
    return tuple(Report((value,), step, step, float(step), {}) for step, value in enumerate(values, start=1))


def record(
    number: int, value: float | None = None, state: TrialState = TrialState.COMPLETE, **changes: Any
) -> TrialRecord:
    settings = {"params": {"x": 0.123456789}, "seconds": 1.25, **changes}
    return TrialRecord(number, f"run-{number}", state, values=() if value is None else (value,), **settings)


def text_console(width: int = 80, **settings: Any) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, width=width, color_system=None, **settings), stream


def shown(renderable: Any, width: int = 80) -> str:
    console, stream = text_console(width)
    console.print(renderable)
    return stream.getvalue()


def test_lines_tell_what_was_decided_every_trial_and_the_best_so_far() -> None:
    console, stream = text_console()
    view, study = LineView(console), make_study()
    view.on_search_begin(study, [], ["sampler TPESampler", "pruner MedianPruner"])
    view.on_trial_end(record(0, 0.5))
    view.on_trial_end(record(1, 0.75, TrialState.PRUNED))
    view.on_trial_end(record(2, 0.9))
    view.on_search_end(study, [])
    assert stream.getvalue().splitlines() == [
        "search 'digits': maximize eval_accuracy",
        "  sampler TPESampler; pruner MedianPruner",
        "[1/3] trial 0 complete 0.5 in 1.2 s; best 0.5 (trial 0)",
        "[2/3] trial 1 pruned 0.75 in 1.2 s; best 0.5 (trial 0)",
        "[3/3] trial 2 complete 0.9 in 1.2 s; best 0.9 (trial 2)",
    ]


@pytest.mark.parametrize("state", [TrialState.FAILED, TrialState.INTERRUPTED, TrialState.STOPPED])
def test_a_line_says_why_a_trial_did_not_complete_exactly_as_it_was_said(state: TrialState) -> None:
    console, stream = text_console()
    view = LineView(console)
    view.on_search_begin(make_study(), [], [])
    reason = "ValueError: shape [batch, 3] is not [/bold] [red]but[/red] " + "very long " * 10
    view.on_trial_end(record(0, None, state, reason=reason))
    (line,) = [each for each in stream.getvalue().splitlines() if "trial 0" in each]
    assert reason.strip() in line
    assert "no result yet" in line
    assert line.startswith("[0/3]" if state is TrialState.INTERRUPTED else "[1/3]")


def test_notes_are_shown_as_they_are() -> None:
    console, stream = text_console()
    LineView(console).on_search_begin(make_study(), [], ["storage sqlite:////data/[b]/[old]/study.db", "[/x]"])
    assert "storage sqlite:////data/[b]/[old]/study.db; [/x]" in stream.getvalue()


def test_a_study_that_goes_on_says_so_and_counts_on() -> None:
    console, stream = text_console()
    view = LineView(console)
    earlier = [record(0, 0.5), record(1, state=TrialState.INTERRUPTED), record(2, state=TrialState.FAILED, reason="x")]
    view.on_search_begin(make_study(), earlier, [])
    view.on_trial_end(record(3, 0.25))
    assert "goes on after 2 of 3 trials" in stream.getvalue()
    assert "[3/3] trial 3 complete 0.25 in 1.2 s; best 0.5 (trial 0)" in stream.getvalue()


def test_a_study_that_is_done_says_that_nothing_runs() -> None:
    console, stream = text_console()
    LineView(console).on_search_begin(make_study(1), [record(0, 0.5)], [])
    assert "has all of its 1 trials" in stream.getvalue()
    assert "study_name=" in stream.getvalue()


def test_the_live_view_shows_progress_the_best_and_the_running_curve() -> None:
    console, stream = text_console(force_terminal=True)
    view, study = LiveView(console), make_study()
    trial = FixedTrial({"x": 0.123456, "kind": "[bold]"}, number=1)
    view.on_search_begin(study, [], ["scope last"])
    try:
        assert "0/3" in shown(view._render())
        view.on_trial_end(record(0, 0.5))
        view.on_trial_begin(trial)
        assert "run 1" in shown(view._render())
        for step, value in enumerate([0.1, 0.5, 0.9], start=1):
            view.on_progress(trial, step, 12)
            view.on_report(trial, Report((value,), step, step, float(step), {}))
        rendered = shown(view._render())
    finally:
        view.on_search_end(study, [])
    for text in ("1/3", "run 1", "3/12", "best 0.5 (trial 0)", "▁▅█ 0.9", "x=0.1235", "kind=[bold]"):
        assert text in rendered
    assert all(len(line) <= 80 for line in rendered.splitlines())
    assert "[1/3] trial 0 complete 0.5" in stream.getvalue()
    assert not view._live.is_started


def test_a_live_view_before_and_after_a_search_renders() -> None:
    console, _ = text_console(force_terminal=True)
    view = LiveView(console)
    assert shown(view._render()).strip() == ""


def test_a_long_line_of_parameters_is_cut_and_not_wrapped() -> None:
    console, _ = text_console(force_terminal=True)
    view, study = LiveView(console), make_study()
    view.on_search_begin(study, [], [])
    view.on_trial_begin(FixedTrial({f"a.rather.long.name.{index}": 0.5 for index in range(20)}, number=0))
    rendered = shown(view._render())
    view.on_search_end(study, [])
    assert len(rendered.rstrip().splitlines()) == 4
    assert "…" in rendered


def test_the_view_fits_the_place() -> None:
    assert type(console_listener(False)) is SearchListener
    assert type(console_listener(True, text_console()[0])) is LineView
    assert type(console_listener(True, text_console(force_terminal=True)[0])) is LiveView


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_real_search_is_shown_from_beginning_to_end(tmp_path: Path, is_terminal: bool) -> None:
    console, stream = text_console(width=100, force_terminal=is_terminal)
    view = console_listener(True, console)
    best = small_trainer(tmp_path).hyperparameter_search(
        {"learning_rate": Float(1e-3, 1e-1, log=True)}, "loss", 2, progress=view
    )
    output = stream.getvalue()
    for text in ("search 'study': minimize eval_loss", "[1/2] trial 0 complete", "[2/2] trial 1 complete"):
        assert text in output
    assert f"(trial {best.run_id})" in output


RECORDS = [
    record(0, 0.5, reports=reports(0.25, 0.375, 0.5), params={"learning_rate": 1.23456e-5, "optim": "adamw_torch"}),
    record(1, None, TrialState.FAILED, reason="ValueError: bad", params={"learning_rate": 1e-3, "pooling": "[cls]"}),
    record(2, 0.9751234, reports=reports(0.9, math.nan, 0.9751234), params={"learning_rate": 0.5}),
    record(3, 0.7, TrialState.PRUNED, reports=reports(0.7), params={"learning_rate": 0.25}),
    record(4, None, TrialState.INTERRUPTED, params={}),
    record(5, 0.6, TrialState.STOPPED, reports=reports(0.6), params={"learning_rate": 0.125}),
]


def test_the_table_shows_the_best_trials_in_order_and_fits_80_columns() -> None:
    output = shown(trials_table(make_study(), RECORDS))
    lines = [line.split() for line in output.splitlines()]
    assert all(len(line) <= 80 for line in output.splitlines())
    assert ["trial", "2", "5", "0"] in lines
    assert ["eval_accuracy", "0.9751", "0.6", "0.5"] in lines
    assert ["learning_rate", "0.5", "0.125", "1.235e-05"] in lines
    assert ["optim", "-", "-", "adamw_torch"] in lines
    assert ["curve", "▁█", "▁", "▁▅█"] in lines
    told = " ".join(output.split())
    assert "digits: maximize eval_accuracy, scope last" in told
    assert "6 trials: 2 complete, 1 pruned, 1 stopped, 1 failed, 1 interrupted" in told


def test_a_table_of_four_trials_with_long_values_fits_80_columns() -> None:
    params = {"per_device_train_batch_size": 16, "learning_rate": 1.23456e-5, "optim": "adamw_torch_fused"}
    output = shown(trials_table(make_study(), [record(number, 0.5, params=params) for number in range(7)]))
    lines = output.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert ["trial", "0", "1", "2", "3"] in [line.split() for line in lines]
    assert ["learning_rate", *["1.235e-05"] * 4] in [line.split() for line in lines]


def test_values_with_brackets_are_shown_as_they_are() -> None:
    records = [record(0, 0.5, params={"model.pooling": "[cls]", "data.[x]": "[/b]"})]
    output = shown(trials_table(make_study(), records))
    for text in ("[cls]", "data.[x]", "[/b]"):
        assert text in output
    assert "[cls]" in shown(importance_table({"[cls]": 1.0}))


def test_a_choice_of_none_is_not_taken_for_a_parameter_that_is_not_there() -> None:
    records = [record(0, 0.5, params={"x": None}), record(1, 0.4, params={"y": 1})]
    lines = [line.split() for line in shown(trials_table(make_study(), records)).splitlines()]
    assert ["x", "None", "-"] in lines
    assert ["y", "-", "1"] in lines


def test_a_table_may_be_limited() -> None:
    lines = [line.split() for line in shown(trials_table(make_study(), RECORDS, limit=2)).splitlines()]
    assert ["trial", "2", "5"] in lines


def test_a_table_of_no_trials_renders() -> None:
    assert "digits" in shown(trials_table(make_study(), []))


def test_the_table_of_importances_shows_shares() -> None:
    output = shown(importance_table({"learning_rate": 0.75, "optim.momentum": 0.25}))
    assert all(len(line) <= 80 for line in output.splitlines())
    lines = [line for line in output.splitlines() if "%" in line]
    assert ["75%" in lines[0], "25%" in lines[1]] == [True, True]
    assert lines[0].count("█") > 2 * lines[1].count("█") > 0
    assert shown(importance_table({}))


def test_failures_give_their_reason() -> None:
    assert failures(RECORDS) == ["trial 1 failed: ValueError: bad"]


def test_the_best_run_is_described_or_its_absence_explained() -> None:
    study, engine = make_study(), get_backend("optuna", {})
    summary = SearchSummary(study, RECORDS, engine)
    best = BestRun("2", 0.9751234, {"learning_rate": 0.5}, summary, Path("out/digits/run-2/checkpoint-3"))
    text = describe_best(best)
    for part in ("best trial 2: 0.9751", "scope last", "learning_rate=0.5", "out/digits/run-2/checkpoint-3"):
        assert part in text
    assert "not kept" in describe_best(best._replace(checkpoint=None))
    nothing = BestRun(None, None, {}, SearchSummary(study, RECORDS[1:2], engine))
    assert describe_best(nothing) == "No trial has a result: 1 failed. First reason: ValueError: bad"
    assert "No trial has run" in describe_best(BestRun(None, None, {}, SearchSummary(study, [], engine)))


@pytest.mark.parametrize(
    ("values", "curve"),
    [
        ([], ""),
        ([math.nan], ""),
        ([1.0], "▁"),
        ([1.0, 1.0], "▁▁"),
        ([0.0, math.inf, 1.0], "▁█"),
        ([3.0, 2.0, 1.0], "█▅▁"),
        ([-1e308, 1e308], "▁█"),
    ],
)
def test_a_curve_is_drawn_of_its_finite_values(values: list[float], curve: str) -> None:
    assert sparkline(values) == curve


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-5, "1e-05"),
        (0.97512, "0.9751"),
        (123456.7, "1.235e+05"),
        (16, "16"),
        (True, "True"),
        (None, "None"),
        ("a", "a"),
    ],
)
def test_values_are_short(value: Any, text: str) -> None:
    assert format_value(value) == text
