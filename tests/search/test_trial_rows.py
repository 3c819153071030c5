"""A trial that was trained several times is one row, with the mean of its runs, or a row for each run: on records."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hpsearch.search.metrics.objective import Objective
from hpsearch.search.result.best_run import SearchSummary
from hpsearch.search.result.dataframe import markdown_table, trials_dataframe, trials_markdown
from hpsearch.search.result.trial_rows import below_their_trials, run_rows, trial_rows
from hpsearch.search.trial_record import Replica, Report, TrialRecord, TrialState
from tests.support.rendering import NoEngine, make_study

ACCURACY = Objective(lambda metrics: 0.0, "maximize", "maximize eval_accuracy", "eval_accuracy")
SIZE = Objective(lambda metrics: 0.0, "minimize", "minimize size", "size")
SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "show.json").read_text(encoding="utf-8"))


def run(number: int, *values: float, of: tuple[int, int] | None = None, **changes: Any) -> TrialRecord:
    """Return a training run with an evaluation, of one epoch and two seconds; `of` the trial and the offset."""
    origin = None if of is None else Replica(*of, changes.pop("kind", "replica")).origin
    reports = (Report(values, 1.0, 4, 1.0, {}),) if values else ()
    given: dict[str, Any] = {"state": TrialState.COMPLETE, "seed": 42, "epochs": 1.0, "seconds": 2.0} | changes
    return TrialRecord(number, f"run-{number}", params={}, values=values, reports=reports, origin=origin, **given)


def of_kind(kind: str) -> list[TrialRecord]:
    return [
        run(0, 0.9),
        run(1, 0.5),
        run(2, 0.6, state=TrialState.PRUNED),
        run(3, 0.5, of=(0, 1), kind=kind, seed=43),
        run(4, 0.7, of=(0, 2), kind=kind, seed=44),
        run(5, of=(1, 1), kind=kind, state=TrialState.FAILED),
    ]


RECORDS = of_kind("replica")


def test_the_row_of_a_repeated_trial_has_the_mean_of_its_runs_and_the_cost_of_all() -> None:
    rows = {each.trial.number: each for each in trial_rows(RECORDS)}
    assert list(rows) == [0, 1, 2]
    assert rows[0].record.value == pytest.approx(0.7)
    assert rows[0].deviations == (pytest.approx(statistics.stdev([0.9, 0.5, 0.7])),)
    assert [each.runs for each in rows.values()] == [3, 1, 1]
    assert [each.record.epochs for each in rows.values()] == [3.0, 2.0, 1.0], "a failed run has a cost too"
    assert [each.record.seconds for each in rows.values()] == [6.0, 4.0, 2.0]
    assert [each.evaluations for each in rows.values()] == [3, 1, 1]
    assert (rows[1].record.value, rows[1].deviations) == (0.5, ())
    assert rows[2].record is RECORDS[2]


def test_each_objective_has_its_own_deviation() -> None:
    [row] = trial_rows([run(0, 0.5, 1.0), run(1, 0.7, 4.0, of=(0, 1))])
    assert row.record.values == (pytest.approx(0.6), 2.5)
    assert row.deviations == (pytest.approx(statistics.stdev([0.5, 0.7])), pytest.approx(statistics.stdev([1, 4])))


def test_a_further_run_is_below_its_trial_and_one_whose_trial_is_missing_comes_last() -> None:
    records = [run(9, 0.1, of=(7, 1)), *reversed(RECORDS)]
    assert [each.number for each in below_their_trials(records, lambda each: each)] == [2, 1, 5, 0, 3, 4, 9]


@pytest.mark.parametrize("kind", ["replica", "fold"])
def test_json_says_what_a_row_stands_for(kind: str) -> None:
    trials = [each.to_json() for each in trial_rows(of_kind(kind))]
    runs = [each.run_to_json(has_folds=kind == "fold") for each in run_rows(of_kind(kind))]
    for found in (trials, runs):
        jsonschema.validate(found, SCHEMA)
    assert [(each["number"], each["runs"]) for each in trials] == [(0, 3), (1, 1), (2, 1)]
    assert (trials[0]["values"], trials[0]["epochs"]) == ([pytest.approx(0.7)], 3.0)
    assert [each["repeats"] for each in runs] == [None, None, None, 0, 0, 1]
    assert [each["values"] for each in runs[:4]] == [[0.9], [0.5], [0.6], [0.5]]
    assert [each.get("fold") for each in runs] == ([0, 0, 0, 1, 2, 1] if kind == "fold" else [None] * 6)


def test_a_dataframe_has_means_and_costs_of_trials_or_all_runs_with_the_trial_that_they_repeat() -> None:
    table = trials_dataframe(RECORDS, [ACCURACY])
    assert list(table.index) == [0, 1, 2]
    assert list(table.columns)[:5] == ["state", "eval_accuracy", "eval_accuracy_std", "runs", "last_report"]
    assert list(table["runs"]) == [3, 1, 1]
    assert table["eval_accuracy"][0] == pytest.approx(0.7)
    assert table["eval_accuracy_std"].notna().tolist() == [True, False, False]
    assert list(table["evaluations"]) == [3, 1, 1]
    assert "repeats" not in table
    table = trials_dataframe(RECORDS, [ACCURACY], runs=True)
    assert [None if each != each else int(each) for each in table["repeats"].astype(float)] == [*[None] * 3, 0, 0, 1]
    assert list(table["eval_accuracy"])[:2] == [0.9, 0.5]
    assert not {"runs", "eval_accuracy_std", "fold"} & set(table.columns)
    assert list(trials_dataframe(of_kind("fold"), [ACCURACY], runs=True)["fold"]) == [0, 0, 0, 1, 2, 1]


def test_a_dataframe_of_several_objectives_has_a_deviation_beside_each() -> None:
    table = trials_dataframe([run(0, 0.5, 1.0), run(1, 0.7, 4.0, of=(0, 1))], [ACCURACY, SIZE])
    assert list(table.columns)[1:6] == ["eval_accuracy", "eval_accuracy_std", "size", "size_std", "runs"]


def test_columns_of_runs_are_only_there_where_trials_were_repeated() -> None:
    plain, runs = (trials_dataframe(RECORDS[:3], [ACCURACY], runs=each) for each in (False, True))
    assert list(plain.columns) == list(runs.columns)
    assert not {"runs", "repeats", "eval_accuracy_std"} & set(plain.columns)


def test_a_run_in_markdown_names_the_trial_that_it_repeats() -> None:
    rows = run_rows(RECORDS)
    lines = markdown_table([rows[0], rows[3]], [ACCURACY]).splitlines()
    assert [each.split(" | ")[0] for each in lines[2:]] == ["| 0", "| 3 (repeats 0)"]
    assert markdown_table([rows[2]], [ACCURACY]).splitlines()[2].startswith("| 2 | (0.6) |"), "it is no result"


def test_in_short_tables_the_value_of_a_repeated_trial_is_a_mean_with_its_deviation() -> None:
    lines = trials_markdown(RECORDS, [ACCURACY]).splitlines()
    assert lines[2] == "| 0 | 0.7 ± 0.2 (3 runs) | 3 | 6 |"
    assert [each.split(" | ")[:2] for each in lines[3:]] == [["| 1", "0.5"]]
    summary = SearchSummary(make_study(), RECORDS, NoEngine)
    page = summary._repr_html_()
    assert "0.7 ± 0.2 (3 runs)" in page
    assert "(2 best of 3 trials)" in page
    assert repr(summary) == "SearchSummary('digits', 3 trials)"


def test_further_runs_are_not_counted_as_trials() -> None:
    summary = SearchSummary(make_study(), RECORDS, NoEngine)
    assert [summary.count(each) for each in (TrialState.COMPLETE, TrialState.FAILED)] == [2, 0]
