"""What a notebook and a prompt show of a result: short, with the values that count, and nothing that acts on a page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hpsearch import BestRun, SearchSummary, TrialRecord, TrialState
from tests.support.rendering import make_study, record, reports

HOSTILE = "boom <script>alert(1)</script>\x1b[2J"


def summary_of(*records: TrialRecord) -> SearchSummary:
    def no_engine() -> Any:
        raise AssertionError("a table needs no engine")

    return SearchSummary(make_study(), records, no_engine)


def cells(page: str) -> list[list[str]]:
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]


def test_a_record_at_a_prompt_is_its_number_its_state_and_its_result_exactly() -> None:
    assert repr(record(3, 0.1 + 0.2, reports=reports(0.1, 0.2), epochs=2.0)) == (
        "TrialRecord(3, complete, values=(0.30000000000000004,), params={'x': 0.123456789}, epochs=2.0, seconds=1.25)"
    )
    assert repr(record(4, state=TrialState.FAILED, reason="boom")).endswith("seconds=1.25, reason='boom')")


def test_a_record_in_a_notebook_is_a_table_that_escapes_the_reason() -> None:
    page = record(4, state=TrialState.FAILED, reason=HOSTILE)._repr_html_()
    assert ["state", "failed"] in cells(page)
    assert ["reason", "boom &lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2J"] in cells(page)


def test_a_search_in_a_notebook_is_a_table_of_its_ten_best_trials_best_first() -> None:
    page = summary_of(*(record(number, number / 8) for number in range(12)))._repr_html_()
    head, *rows = cells(page)
    assert head == ["trial", "eval_accuracy", "x", "epochs", "seconds"]
    assert [row[0] for row in rows] == [str(number) for number in range(11, 1, -1)]
    assert rows[0] == ["11", "1.375", "0.1235", "0", "1.25"]
    assert "10 best of 12 trials" in page


def test_the_best_run_shows_what_has_a_value(tmp_path: Path) -> None:
    best = BestRun("3", 0.5, {"learning_rate": 1e-3}, summary_of(record(3, 0.5)), tmp_path)
    assert repr(best) == (
        "BestRun(run_id='3', objective=0.5, hyperparameters={'learning_rate': 0.001}, "
        f"run_summary=SearchSummary('digits', 1 trial), checkpoint='{tmp_path}', scope='last')"
    )
    repeated = best._replace(objective_std=0.01, values={1: 0.49, 2: 0.51}, chance_of_best=0.9)
    page = repeated._replace(test_metrics={"eval_accuracy": 0.47})._repr_html_()
    assert cells(page) == [
        ["eval_accuracy", "0.5 ± 0.01 (2 runs)"],
        ["learning_rate", "0.001"],
        ["on the test set: eval_accuracy", "0.47"],
        ["weights", str(tmp_path)],
        ["chance that it is the best", "90%"],
    ]


def test_without_a_best_trial_a_notebook_shows_why() -> None:
    failed = record(0, state=TrialState.FAILED, reason="boom <b>")
    page = BestRun(None, None, {}, summary_of(failed))._repr_html_()
    assert "no best trial" in page
    assert "boom &lt;b&gt;" in page
