"""The table of `hpsearch show`: what it lists, in which order, and how it fits a width."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpsearch import StudyError
from hpsearch.cli.table_layout import Column, layout
from hpsearch.cli.trial_table import failures_in_words, notes_on_runs, sorted_rows, trial_table
from hpsearch.search.metrics.objective import Objective
from hpsearch.search.result.best_run import SearchSummary
from hpsearch.search.result.trial_rows import TrialRow, run_rows, trial_rows
from hpsearch.search.store.stored_study import StoredStudy
from hpsearch.search.trial_record import Replica, Report, TrialRecord, TrialState

COSINE = {"learning_rate": 2e-4, "per_device_train_batch_size": 32, "optim": "adafactor"}
TYPICAL = [
    COSINE | {"weight_decay": 0.12, "lr_scheduler_type": "cosine", "warmup_steps": 0.284, "model.hidden_size": 96},
    COSINE | {"weight_decay": 0.03, "lr_scheduler_type": "constant", "model.hidden_size": 64, "learning_rate": 1e-3},
    COSINE
    | {"weight_decay": 0.0, "lr_scheduler_type": "cosine", "warmup_steps": 0.1, "per_device_train_batch_size": 8}
    | {"model.hidden_size": 32},
]


def record(number: int, params: dict[str, Any], value: float | None = None, **others: Any) -> TrialRecord:
    state = others.pop("state", TrialState.COMPLETE)
    values = () if value is None else (value,)
    return TrialRecord(number, f"run-{number}", state, params, values=values, seconds=10.0 - number, epochs=3, **others)


def summary_of(
    records: Sequence[TrialRecord], direction: str = "maximize", unit: str = "epoch", space: object = "define-by-run"
) -> SearchSummary:
    objective = Objective(lambda metrics: 0.0, direction, f"{direction} eval_accuracy", "eval_accuracy")
    settings = {"study_name": "study", "space": space, "scope": "last", "unit": unit}
    study = StoredStudy(Path("study"), settings, (objective,), ())
    return SearchSummary(study, records, lambda: pytest.fail("the table needs no engine"))


def rows(summary: SearchSummary) -> list[TrialRow]:
    return trial_rows(summary.records)


def rows_of(summary: SearchSummary, width: int = 200, wanted: Sequence[str] = ()) -> list[list[str]]:
    """Return the cells of the table in a width, as far as they are not empty."""
    shown = sorted_rows(rows(summary), "value", summary)
    return [line.split() for line in layout(trial_table(summary, shown, wanted).columns, width).rows]


TRIALS = summary_of([record(number, params, 0.9 - number / 10) for number, params in enumerate(TYPICAL)])


def test_six_parameters_fit_80_columns_and_no_line_is_wider_than_it_may_be() -> None:
    table = trial_table(TRIALS, rows(TRIALS))
    for width in range(24, 160):
        found = layout(table.columns, width)
        assert max(map(len, [*found.headings, *found.rows])) <= width
    at_80 = layout(table.columns, 80)
    assert not {name for params in TYPICAL for name in params if name != "optim"} & set(at_80.omitted)
    assert layout(table.columns, 160).omitted == []


def test_columns_that_do_not_fit_are_omitted_from_the_right() -> None:
    names = [each.name for each in trial_table(TRIALS, rows(TRIALS)).columns]
    assert names[-3:] == ["epochs", "seconds", "curve"]
    for width in range(1, 160):
        found = layout(trial_table(TRIALS, rows(TRIALS)).columns, width)
        assert found.omitted == names[len(names) - len(found.omitted) :]


def test_what_is_the_same_in_all_trials_is_no_column() -> None:
    table = trial_table(TRIALS, rows(TRIALS))
    assert table.constants == {"optim": "adafactor"}
    assert "optim" not in [each.name for each in table.columns]
    table = trial_table(TRIALS, rows(TRIALS), ["optim"])
    assert table.constants == {}
    assert [each.name for each in table.columns] == ["trial", "optim"]


def test_a_parameter_named_like_a_figure_is_shown_too() -> None:
    trials = summary_of([record(0, {"seconds": 1}, 0.5), record(1, {"seconds": 2}, 0.4)])
    columns = [each for each in trial_table(trials, rows(trials)).columns if each.name == "seconds"]
    assert [each.cells for each in columns] == [("1", "2"), ("10.0", "9.0")]


def test_parameters_are_columns_once_each_in_the_order_of_the_space() -> None:
    space = {"b": {"kind": "Int"}, "a": {"kind": "Int"}, "unused": {"kind": "Int"}}
    trials = summary_of([record(0, {"a": 1, "b": 2, "c": 3}), record(1, {"a": 2, "b": 3, "c": 4})], space=space)
    assert [each.name for each in trial_table(trials, rows(trials)).columns][3:6] == ["b", "a", "c"]
    assert len(trial_table(trials, rows(trials)).columns) == 9


def test_1_and_true_are_not_the_same_value() -> None:
    table = trial_table(summary_of([record(0, {"a": 1, "b": 2}), record(1, {"a": True, "b": 2})]), [])
    assert table.constants == {"b": 2}


def test_a_parameter_of_a_branch_is_empty_in_the_other_trials_and_no_constant() -> None:
    trials = summary_of([record(0, {"kind": "a", "depth": 2}, 0.5), record(1, {"kind": "b"}, 0.4)])
    [depth] = [each for each in trial_table(trials, rows(trials)).columns if each.name == "depth"]
    assert depth.cells == ("2", "")
    assert trial_table(trials, rows(trials)).constants == {}


def test_none_is_a_value_of_a_parameter() -> None:
    trials = summary_of([record(0, {"targets": None}, 0.5), record(1, {"targets": "all"}, 0.4)])
    [targets] = [each for each in trial_table(trials, rows(trials)).columns if each.name == "targets"]
    assert targets.cells == ("None", "all")


def test_a_trial_that_failed_before_it_had_parameters_leaves_constants_as_they_are() -> None:
    trials = summary_of([record(0, {"a": 1}, 0.5), record(1, {"a": 1}, 0.4), record(2, {}, state=TrialState.FAILED)])
    assert trial_table(trials, rows(trials)).constants == {"a": 1}


def test_the_best_is_marked_and_a_value_without_result_is_in_brackets() -> None:
    trials = summary_of([record(0, {}, 0.5), record(1, {}, 0.75), record(2, {}, 0.25, state=TrialState.PRUNED)])
    rows = rows_of(trials, wanted=["value"])
    assert rows == [["1*", "0.75"], ["0", "0.50"], ["2", "(0.25)"]]


def test_decimal_points_are_below_each_other() -> None:
    trials = summary_of([record(0, {"x": 0.5}, 0.5), record(1, {"x": 0.0}, 0.1), record(2, {"x": 0.125}, 0.125)])
    found = layout(trial_table(trials, rows(trials), ["x", "value"]).columns, 80)
    points = [[place for place, letter in enumerate(row) if letter == "."] for row in found.rows]
    assert points[0] == points[2]
    assert points[1] == points[0][1:]


def repeated(kind: str) -> SearchSummary:
    """Return a study of two trials, of which the first one, 0.5, has the further runs 0.3 and 0.1."""
    further = [record(2, {"x": 1}, 0.1, origin=Replica(0, 2, kind).origin, seed=44)]
    further += [record(3, {"x": 1}, 0.3, origin=Replica(0, 1, kind).origin, seed=43)]
    trials = summary_of([record(0, {"x": 1}, 0.5, seed=42), record(1, {"x": 2}, 0.2, seed=42), *further])
    if kind == "fold":
        trials.study.settings["folds"] = {"number": 3}  # type: ignore[union-attr]
    return trials


def test_the_row_of_a_repeated_trial_has_the_mean_of_its_runs_their_deviation_and_number() -> None:
    trials = repeated("replica")
    table = trial_table(trials, sorted_rows(rows(trials), "value", trials))
    assert [each.name for each in table.columns[:5]] == ["trial", "state", "accuracy", "std", "runs"]
    assert [" ".join(each).split() for each in zip(*(each.cells for each in table.columns[:5]), strict=True)] == [
        ["0*", "complete", "0.3", "0.2", "3"],
        ["1", "complete", "0.2", "1"],
    ]
    [note] = notes_on_runs(trials, rows(trials))
    assert note.startswith("accuracy: mean of a trial's runs, with std; ")
    assert notes_on_runs(TRIALS, rows(TRIALS)) == notes_on_runs(trials, run_rows(trials.records)) == []


@pytest.mark.parametrize(("kind", "name", "values"), [("replica", "seed", "42 43 44 42"), ("fold", "fold", "0 1 2 0")])
def test_a_row_for_each_run_is_below_its_trial_and_names_it(kind: str, name: str, values: str) -> None:
    trials = repeated(kind)
    for is_reversed, numbers in ((False, [0, 3, 2, 1]), (True, [1, 0, 3, 2])):
        shown = sorted_rows(run_rows(trials.records), "value", trials, is_reversed)
        assert [each.trial.number for each in shown] == numbers
    columns = trial_table(trials, sorted_rows(run_rows(trials.records), "value", trials)).columns
    assert [each.name for each in columns[:5]] == ["trial", "repeats", name, "state", "accuracy"]
    assert [each.strip() for each in columns[1].cells] == ["", "0", "0", ""]
    assert " ".join(columns[2].cells) == values
    assert columns[4].cells == ("0.5", "0.3", "0.1", "0.2")


@pytest.mark.parametrize(("by", "numbers"), [("std", [0, 1]), ("runs", [1, 0]), ("trial", [0, 1])])
def test_figures_of_runs_are_columns_to_sort_by(by: str, numbers: list[int]) -> None:
    trials = repeated("replica")
    assert [each.trial.number for each in sorted_rows(rows(trials), by, trials)] == numbers


def test_all_curves_of_a_study_share_one_scale_also_those_that_are_not_shown() -> None:
    def flat(number: int, value: float) -> TrialRecord:
        return record(number, {}, value, reports=(Report((value,), 1.0, 4, 1.0, {}),))

    trials = summary_of([flat(0, 0.9), flat(1, 0.5), flat(2, 0.1)])
    [curve] = [each for each in trial_table(trials, rows(trials)).columns if each.name == "curve"]
    assert (curve.cells[0], curve.cells[2]) == ("█", "▁")
    assert curve.cells[1] not in curve.cells[::2]
    [curve] = [each for each in trial_table(trials, rows(trials)[:1]).columns if each.name == "curve"]
    assert curve.cells == ("█",)


@pytest.mark.parametrize(
    ("by", "is_reversed", "numbers"),
    [
        ("value", False, [0, 1, 2]),
        ("value", True, [2, 1, 0]),
        ("eval_accuracy", False, [0, 1, 2]),
        ("trial", True, [2, 1, 0]),
        ("number", False, [0, 1, 2]),
        ("seconds", False, [2, 1, 0]),
        ("learning_rate", True, [1, 2, 0]),
        ("batch_size", False, [2, 0, 1]),
        ("warmup_steps", False, [2, 0, 1]),
        ("warmup_steps", True, [0, 2, 1]),
        ("lr_scheduler_type", False, [1, 0, 2]),
    ],
)
def test_trials_are_sorted_and_those_without_a_value_are_last(by: str, is_reversed: bool, numbers: list[int]) -> None:
    assert [each.trial.number for each in sorted_rows(rows(TRIALS), by, TRIALS, is_reversed)] == numbers


def test_an_objective_that_is_minimized_is_sorted_from_the_least() -> None:
    trials = summary_of([record(0, {}, 0.5), record(1, {}, 0.25), record(2, {})], "minimize")
    assert [each.trial.number for each in sorted_rows(rows(trials), "accuracy", trials)] == [1, 0, 2]


def test_a_column_has_its_whole_name_its_heading_or_is_named_in_the_error() -> None:
    table = trial_table(TRIALS, rows(TRIALS), ["hidden_size", "accuracy"])
    assert [each.name for each in table.columns] == ["trial", "model.hidden_size", "accuracy"]
    with pytest.raises(StudyError, match=r"--columns lerning_rate: .* Did you mean 'learning_rate'\?"):
        trial_table(TRIALS, rows(TRIALS), ["lerning_rate"])
    with pytest.raises(StudyError, match=r"--sort secnds: .* Did you mean 'seconds'\?"):
        sorted_rows(rows(TRIALS), "secnds", TRIALS)
    steps = summary_of(TRIALS.records, unit="step")
    assert [each.name for each in trial_table(steps, rows(steps), ["epochs"]).columns] == ["trial", "steps"]


def test_reasons_are_below_the_table_once_each_and_on_one_line() -> None:
    failed = [record(n, {}, state=TrialState.FAILED, reason=reason) for n, reason in enumerate("aba")]
    refused = record(3, {}, state=TrialState.REFUSED, reason="not\n  possible")
    assert failures_in_words([*failed, refused]) == [
        "trials 0, 2 failed: a",
        "trial 1 failed: b",
        "trial 3 refused: not possible",
    ]
    again = record(4, {}, state=TrialState.FAILED, reason="b", origin=Replica(0, 1).origin)
    assert failures_in_words([*failed, again])[1] == "trials 1, 4 (replica 1 of trial 0) failed: b"


def test_wide_letters_count_as_the_columns_that_they_take() -> None:
    found = layout([Column("a", ("深層", "x"), is_text=True), Column("b", ("1", "2"))], 80)
    assert found.rows == ["深層  1", "x     2"]
