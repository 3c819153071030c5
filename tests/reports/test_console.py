"""What a search shows: lines without a terminal, tables that fit; test_live_view.py is about terminals."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpsearch import BestRun, FixedTrial, Float, Report, SearchListener, SearchSummary, TrialState
from hpsearch.reports.console import console_listener
from hpsearch.reports.line_view import LineView
from hpsearch.reports.live_view import LiveView
from hpsearch.reports.tables import (
    count_states,
    describe_best,
    effort_in_words,
    failures,
    format_clock,
    format_duration,
    format_value,
    importance_table,
    saved_fraction,
    sparkline,
    trials_table,
)
from hpsearch.search.listener import showing
from hpsearch.search.result.parameter_importances import Importances
from hpsearch.search.trial_record import Replica
from tests.support.rendering import NoEngine, make_study, record, report, reports, shown, text_console
from tests.support.small_trainer import small_trainer


def test_the_table_of_the_best_trials_has_means_with_their_deviation_and_the_seconds_of_all_runs() -> None:
    again = replace(record(2, 0.5), origin=Replica(0, 1).origin)
    lines = [
        line.split()
        for line in shown(trials_table(make_study(), [record(0, 0.75), record(1, 0.5), again])).splitlines()
    ]
    for expected in (
        ["trial", "0", "1"],
        ["eval_accuracy", "0.625", "0.5"],
        ["standard", "deviation", "0.18", "-"],
        ["runs", "2", "1"],
        ["seconds", "2.5", "1.2"],
    ):
        assert expected in lines
    without = shown(trials_table(make_study(), [record(0, 0.75), record(1, 0.5)]))
    assert "runs" not in without


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
        "3 trials: 2 complete, 1 pruned.",
    ]


def test_the_first_line_comes_before_the_search_is_prepared_and_comes_once() -> None:
    console, stream = text_console()
    view, study = LineView(console), make_study()
    view.on_search_prepare(study)
    assert stream.getvalue().splitlines() == ["search 'digits': maximize eval_accuracy"]
    view.on_search_begin(study, [], ["sampler TPESampler"])
    assert stream.getvalue().splitlines() == ["search 'digits': maximize eval_accuracy", "  sampler TPESampler"]


def test_the_first_call_of_a_function_is_the_first_line() -> None:
    console, stream = text_console()
    for view in (LineView(console), LiveView(console)):
        view.on_first_call("the first call of [f] is running")
    assert stream.getvalue().splitlines() == ["the first call of [f] is running"] * 2


class FailsAtOnce(SearchListener):
    """Ends a search when it hears of it for the first time."""

    def on_search_prepare(self, study: Any) -> None:
        raise RuntimeError(study.name)


def test_a_listener_hears_of_a_search_before_its_folder_is_made(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path / "out")
    with pytest.raises(RuntimeError, match="study"):
        trainer.hyperparameter_search({"learning_rate": Float(0.01, 0.1)}, "loss", progress=FailsAtOnce())
    assert not (tmp_path / "out" / "study").exists()


def test_at_the_end_a_search_says_what_it_saved_that_not_all_trials_were_trained_to_their_end() -> None:
    console, stream = text_console()
    view, study = LineView(console), make_study(2)
    view.on_search_begin(study, [], [])
    for number, epochs in enumerate((18, 2)):
        state = TrialState.COMPLETE if epochs == 18 else TrialState.PRUNED
        last = Report((0.5,), epochs, epochs, float(epochs), {}, horizon=18)
        view.on_trial_end(record(number, 0.5, state, epochs=float(epochs), reports=(last,), seconds=30.0))
    view.on_search_end(study, [])
    assert stream.getvalue().splitlines()[-2] == (
        "2 trials: 1 complete, 1 pruned. All trials together trained 20 epochs in 60 s of training. "
        "Run to completion, they would have trained 36 epochs; 44% was saved."
    )
    assert stream.getvalue().splitlines()[-1] == "Only trial 0 has a result, 0.5: it has nothing to be compared with."


def test_at_the_end_a_search_says_that_a_pruned_trial_was_better_than_the_best_one() -> None:
    console, stream = text_console()
    view, study = LineView(console), make_study(2)
    view.on_search_begin(study, [], [])
    view.on_trial_end(record(0, 0.5))
    view.on_trial_end(record(1, 0.75, TrialState.PRUNED, reports=(Report((0.75,), 1, 1, 1.0, {}),)))
    view.on_search_end(study, [])
    assert stream.getvalue().splitlines()[-3].startswith("2 trials: 1 complete, 1 pruned.")
    assert stream.getvalue().splitlines()[-1].startswith("Trial 1 was pruned with 0.75, which is better than 0.5")


def test_one_trial_of_one_epoch_is_no_trials() -> None:
    last = Report((0.5,), 1, 1, 1.0, {}, horizon=1)
    [only] = [record(0, 0.5, epochs=1.0, reports=(last,), seconds=30.0)]
    assert count_states([only]) == "1 trial: 1 complete"
    assert effort_in_words(make_study(), [only]) == ["All trials together trained 1 epoch in 30 s of training."]


def test_what_a_plain_function_trains_is_counted_in_steps() -> None:
    last = Report((0.5,), 3, 3, 3.0, {}, horizon=6)
    pruned = record(0, 0.5, TrialState.PRUNED, epochs=3.0, reports=(last,), seconds=30.0)
    assert effort_in_words(make_study(unit="step"), [pruned]) == [
        "All trials together trained 3 steps in 30 s of training.",
        "Run to completion, they would have trained 6 steps; 50% was saved.",
    ]


def test_a_complete_trial_that_its_own_early_stopping_ended_counts_as_the_epochs_that_it_trained() -> None:
    halfway = Report((0.5,), 4, 4, 4.0, {}, horizon=8)
    ended = record(0, 0.5, epochs=4.0, reports=(halfway,), seconds=30.0)
    pruned = record(1, 0.5, TrialState.PRUNED, epochs=4.0, reports=(halfway,), seconds=30.0)
    assert saved_fraction([ended]) is None
    assert saved_fraction([ended, pruned]) == pytest.approx(1 - 8 / 12)


def test_nothing_was_saved_by_trials_that_failed_or_go_on_another_time() -> None:
    console, stream = text_console()
    view, study = LineView(console), make_study(3)
    view.on_search_begin(study, [], [])
    for number, state in enumerate((TrialState.INTERRUPTED, TrialState.FAILED, TrialState.PAUSED)):
        last = Report((0.5,), 1, 1, 1.0, {}, horizon=18)
        view.on_trial_end(record(number, None, state, epochs=1.0, reports=(last,), seconds=30.0, reason="so"))
    view.on_search_end(study, [])
    assert "saved" not in stream.getvalue()
    assert "All trials together trained 3 epochs" in stream.getvalue()


def test_a_search_that_had_nothing_to_do_says_nothing_at_its_end() -> None:
    console, stream = text_console()
    view, study = LineView(console), make_study(1)
    view.on_search_begin(study, [record(0, 0.5)], [])
    told = stream.getvalue()
    view.on_search_end(study, [])
    assert stream.getvalue() == told


def test_where_nobody_watches_only_what_is_news_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    console, stream = text_console()
    view = console_listener(True, console)
    view.on_search_begin(make_study(6), [], ["sampler TPESampler"])
    view.on_trial_end(record(0, 0.5))
    view.on_trial_end(record(1, 0.4))
    view.on_trial_end(record(2, None, TrialState.FAILED, reason="ValueError: no"))
    view.on_trial_end(record(3, 0.3, TrialState.PRUNED))
    view.on_trial_end(record(4, 0.9))
    view.on_trial_end(record(5, 0.8))
    lines = stream.getvalue().splitlines()
    assert [line.partition(" trial ")[2][0] for line in lines[2:]] == ["0", "2", "4", "5"]  # the last ends the search


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
    half_done = [
        record(number, state=TrialState.INTERRUPTED, epochs=epochs) for number, epochs in ((1, 0.0), (4, 2.126))
    ]
    earlier = [record(0, 0.5), *half_done, record(2, state=TrialState.FAILED, reason="x")]
    view.on_search_begin(make_study(), earlier, [])
    view.on_trial_end(record(3, 0.25))
    first = "first with half-done trial 1 (from its beginning), 4 (from its beginning)"
    assert f"continues after 2 of 3 trials, {first}" in stream.getvalue()
    assert "[3/3] trial 3 complete 0.25 in 1.2 s; best 0.5 (trial 0)" in stream.getvalue()


def test_a_study_that_is_done_says_that_nothing_runs() -> None:
    console, stream = text_console()
    LineView(console).on_search_begin(make_study(1), [record(0, 0.5)], [])
    assert "has all of its 1 trials" in stream.getvalue()
    assert "study_name=" in stream.getvalue()


def test_a_study_that_has_more_trials_than_the_call_asks_for_says_which_number_adds_some() -> None:
    console, stream = text_console(width=200)
    LineView(console).on_search_begin(make_study(2), [record(number, 0.5) for number in range(4)], [])
    assert "has 4 trials, more than the 2 asked for: no new one begins (n_trials= above 4 adds" in stream.getvalue()


def test_an_interrupted_trial_that_goes_on_is_one_trial() -> None:
    console, stream = text_console()
    view = LineView(console)
    view.on_search_begin(make_study(), [record(0, state=TrialState.INTERRUPTED)], [])
    view.on_trial_end(record(0, 0.5))
    view.on_trial_end(record(1, 0.25))
    assert "[1/3] trial 0 complete 0.5 in 1.2 s; best 0.5 (trial 0)" in stream.getvalue()
    assert "[2/3] trial 1" in stream.getvalue()


def test_lines_tell_only_of_trials_that_end_however_many_run_at_once() -> None:
    console, stream = text_console()
    view, trials = LineView(console), [FixedTrial({"x": 0.5}, number) for number in range(3)]
    view.on_search_begin(make_study(), [], ["scope last"])
    for trial in trials:
        view.on_trial_begin(trial)
    for trial in reversed(trials):
        view.on_progress(trial, 1, 10)
        view.on_report(trial, report(0.5, 1))
    view.on_trial_end(record(2, 0.5))
    view.on_trial_end(record(0, 0.75))
    assert stream.getvalue().splitlines()[2:] == [
        "[1/3] trial 2 complete 0.5 in 1.2 s; best 0.5 (trial 2)",
        "[2/3] trial 0 complete 0.75 in 1.2 s; best 0.75 (trial 0)",
    ]


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
    assert ["curve", "▇█", "▄", "▁▂▃"] in lines  # on the scale of all of them
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
    assert "[cls]" in shown(importance_table(Importances({"[cls]": 1.0}, 4), "epoch"))


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


def test_the_table_of_importances_shows_fractions_and_what_they_rest_on() -> None:
    output = shown(importance_table(Importances({"learning_rate": 0.75, "optim.momentum": 0.25}, 30, 2), "epoch"))
    assert "by the reports of 30 trials after 2 epochs" in " ".join(output.split())
    assert all(len(line) <= 80 for line in output.splitlines())
    lines = [line for line in output.splitlines() if "%" in line]
    assert ["75%" in lines[0], "25%" in lines[1]] == [True, True]
    assert lines[0].count("█") > 2 * lines[1].count("█") > 0
    assert shown(importance_table(Importances(), "epoch"))


def test_failures_give_their_reason() -> None:
    assert failures(RECORDS) == ["trial 1 failed: ValueError: bad"]


def test_the_best_run_is_described_or_its_absence_explained() -> None:
    study = make_study()
    summary = SearchSummary(study, RECORDS, NoEngine)
    best = BestRun("2", 0.9751234, {"learning_rate": 0.5}, summary, Path("out/digits/run-2/checkpoint-3"))
    text = describe_best(best)
    for part in ("best trial 2: 0.9751", "scope last", "learning_rate=0.5", "out/digits/run-2/checkpoint-3"):
        assert part in text
    assert "not kept" in describe_best(best._replace(checkpoint=None))
    nothing = BestRun(None, None, {}, SearchSummary(study, RECORDS[1:2], NoEngine))
    assert describe_best(nothing) == "No trial has a result: 1 failed. The first failure, trial 1: ValueError: bad."
    assert "No trial has run" in describe_best(BestRun(None, None, {}, SearchSummary(study, [], NoEngine)))


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


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0:00"), (59.99, "0:59"), (60, "1:00"), (3599, "59:59"), (90000, "25:00:00")]
)
def test_a_clock_shows_seconds_minutes_and_hours(seconds: float, text: str) -> None:
    assert format_clock(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.6, "1 s"), (89, "89 s"), (91, "2 min"), (5401, "1.5 h"), (129601, "1.5 days")]
)
def test_what_is_left_is_told_no_more_exactly_than_it_is_known(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_paused_trials_are_shown_as_paused() -> None:
    console, stream = text_console()
    view = LineView(console)
    view.on_search_begin(make_study(4), [], [])
    view.on_trial_end(record(0, 0.5, TrialState.PAUSED, reason="paused after 1 epoch", reports=reports(0.5)))
    assert "[0/4] trial 0 paused 0.5 after 1 epoch in 1.2 s; best so far 0.5 (trial 0, paused)" in stream.getvalue()
    view.on_trial_end(record(1, 0.7))
    assert "[1/4] trial 1 complete 0.7 in 1.2 s; best 0.7 (trial 1)" in stream.getvalue()


def test_a_paused_trial_that_breaks_a_constraint_is_not_the_best_so_far() -> None:
    console, stream = text_console()
    view = LineView(console)
    view.on_search_begin(make_study(4), [], [])
    for number, value, by in ((0, 0.9, 0.1), (1, 0.5, -0.1)):
        last = replace(report(value, 1), violations={"runtime": by})
        view.on_trial_end(record(number, value, TrialState.PAUSED, reports=(last,), violations={"runtime": by}))
    first, second = stream.getvalue().splitlines()[-2:]
    assert first.endswith("(breaks runtime); no result yet")
    assert second.endswith("best so far 0.5 (trial 1, paused)")


def test_a_trial_that_was_pruned_ahead_of_the_best_result_is_explained_in_one_line() -> None:
    console, stream = text_console()
    view = LineView(console)
    view.on_search_begin(make_study(3), [], [])
    curve = tuple(Report((value,), at, 40 * at, at, {}, horizon=6) for at, value in enumerate((0.75, 0.8, 0.5), 1))
    view.on_trial_end(record(0, 0.5, reports=curve))
    told = record(1, 0.7, TrialState.PRUNED, reports=(replace(curve[0], values=(0.7,)),), reason="pruned after 1 epoch")
    view.on_trial_end(told)
    assert stream.getvalue().splitlines()[-1] == (
        "  trial 1 was pruned after 1 epoch (step 40, 17% of its training run) though 0.7 is better than the best "
        "result, 0.5: 1 of 1 other trials was better at that point"
    )
    view.on_trial_end(record(2, 0.4, TrialState.PRUNED, reports=(replace(curve[0], values=(0.4,)),)))
    assert stream.getvalue().splitlines()[-1].startswith("[3/3] trial 2 pruned 0.4")


def test_an_activity_before_the_search_is_a_line_at_once_and_of_a_failed_one_nothing_stays() -> None:
    console, stream = text_console()
    with pytest.raises(ValueError, match="no data"), showing(LineView(console), "importing study.py"):
        raise ValueError("no data")
    assert stream.getvalue() == "importing study.py ...\n"
