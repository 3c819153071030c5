"""Trials that were better before their end are counted, and what scope "all" selects of them is what it would select.

The sentence is said once at the end of a search, in the report and by `hpsearch show`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpsearch import Report, TrialRecord, TrialState, open_study
from hpsearch.cli import main
from hpsearch.reports.line_view import LineView
from hpsearch.reports.page import write_report
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.result.advice import advice
from hpsearch.search.result.earlier_best import EarlierBest, earlier_best
from tests.support.html_pages import parse_html, text_of
from tests.support.rendering import text_console
from tests.support.small_search import search

LOSS = resolve_objectives("loss", None, has_metrics=True)
ACCURACY = resolve_objectives("accuracy", None, has_metrics=True)
SEVERAL = resolve_objectives(["loss", "accuracy"], None, has_metrics=True)


def trial(
    number: int, *values: float, state: TrialState = TrialState.COMPLETE, horizon: float | None = None
) -> TrialRecord:
    """A trial that was evaluated after each epoch; its value is that of the last report that is finite."""
    reports = tuple(
        Report((value,), epoch, 10 * epoch, float(epoch), {}, horizon=len(values) if horizon is None else horizon)
        for epoch, value in enumerate(values, start=1)
    )
    finite = [value for value in values if math.isfinite(value)]
    return TrialRecord(number, f"run-{number}", state, {}, values=tuple(finite[-1:]), reports=reports)


def trials(*curves: Sequence[float], **changes: Any) -> list[TrialRecord]:
    return [trial(number, *curve, **changes) for number, curve in enumerate(curves)]


def negated(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    return [
        replace(
            each,
            values=tuple(-value for value in each.values),
            reports=tuple(replace(report, values=(-report.value,)) for report in each.reports),
        )
        for each in records
    ]


# They end at 0.52, 0.56 and 0.60: the median distance from the median is 0.04.
TURNING = [(0.9, 0.41, 0.45, 0.52), (0.9, 0.5, 0.45, 0.56), (0.9, 0.47, 0.5, 0.6)]
IMPROVING = [(0.9, 0.7, 0.6, 0.55), (0.9, 0.7, 0.6, 0.57), (0.9, 0.7, 0.6, 0.58)]
FOUND = EarlierBest(turned=3, complete=3, fraction=0.5, number=0, value=0.41, last=0.52)


@pytest.mark.parametrize(
    ("records", "found"),
    [
        (trials(*TURNING), FOUND),
        (trials(*TURNING[::-1]), FOUND._replace(number=2)),
        (trials(*TURNING, *IMPROVING), FOUND._replace(complete=6)),
        (trials(*TURNING, *IMPROVING, (0.9, 0.7, 0.6, 0.59)), None),  # less than half
        # With three evaluations, less than two thirds.
        (trials(*[each[1:] for each in (*TURNING, IMPROVING[0])]), FOUND._replace(complete=4, fraction=1 / 3)),
        (trials(*[each[1:] for each in (*TURNING, *IMPROVING[:2])]), None),
        (trials(*TURNING[:2]), None),
        (trials(*TURNING[:2], IMPROVING[0]), None),
        (trials(*TURNING, state=TrialState.STOPPED), None),
        ([*trials(*TURNING), trial(3, 0.2, 0.1, state=TrialState.PRUNED)], FOUND),
        (trials(*IMPROVING), None),
        # The last finite report is the end.
        (trials(*[(*curve, math.nan, math.inf) for curve in TURNING]), FOUND._replace(fraction=2 / 6)),
        (trials(*[(*curve[:2], math.nan) for curve in TURNING]), None),
        (trials((math.nan, math.nan), *TURNING), FOUND._replace(number=1)),
        # As far as a callback has let them train.
        (trials(*TURNING, horizon=8), FOUND._replace(fraction=0.25)),
        (trials(*TURNING, horizon=0), FOUND),  # it is not known how far
        (trials(*TURNING, (0.9, 0.45, 0.4, 0.35)), None),  # the best of scope "all" is the best of scope "last"
        (trials(*[[each] for each in (0.3, 0.4, 0.5)]), None),
        ([], None),
    ],
)
def test_trials_that_were_better_before_their_end_are_counted(
    records: list[TrialRecord], found: EarlierBest | None
) -> None:
    assert earlier_best(records, LOSS, "last") == found
    negative = None if found is None else found._replace(value=-found.value, last=-found.last)
    assert earlier_best(negated(records), ACCURACY, "last") == negative


@pytest.mark.parametrize(
    ("before", "ends", "is_said"),
    [
        ((0.9, 0.47), (0.52, 0.56, 0.60), True),  # the smallest rise is 0.05, the spread of the ends 0.04
        ((0.9, 0.49), (0.52, 0.56, 0.60), False),  # 0.03
        ((0.9, 0.47), (0.52, 0.56, 99.0), True),  # one end that is far off does not matter
        ((0.9, 0.49), (0.50, 0.50, 0.50), True),
        ((0.9, 0.50), (0.50, 0.50, 0.50), False),
        ((0.9, 0.4, 0.5, 0.46), (0.52, 0.53, 0.54), True),  # down by 0.04, after a rise of 0.12
        ((0.9, 0.4, 0.5, 0.43), (0.52, 0.53, 0.54), False),  # by 0.07
        ((0.6, 0.65, 0.4, 0.5), (0.52, 0.53, 0.54), True),  # up by 0.05, before it
        ((0.6, 0.7, 0.4, 0.5), (0.52, 0.53, 0.54), False),  # by 0.1
    ],
)
def test_a_rise_within_the_spread_of_the_values_or_the_wiggling_of_the_curve_is_noise(
    before: tuple[float, ...], ends: tuple[float, ...], is_said: bool
) -> None:
    assert (earlier_best(trials(*[(*before, end) for end in ends]), LOSS, "last") is not None) == is_said


@pytest.mark.parametrize("scope", ["all", "avg", "last-5-avg", "last-10-avg"])
def test_with_another_scope_nothing_is_found(scope: str) -> None:
    assert earlier_best(trials(*TURNING), LOSS, scope) is None


def test_with_several_objectives_nothing_is_found() -> None:
    records = [
        replace(
            each,
            values=(*each.values, 0.5),
            reports=tuple(replace(report, values=(report.value, 0.5)) for report in each.reports),
        )
        for each in trials(*TURNING)
    ]
    assert earlier_best(records, SEVERAL, "last") is None


def test_a_best_report_that_breaks_a_constraint_is_not_selected() -> None:
    def broken_at_best(each: TrialRecord) -> TrialRecord:
        best = min(report.value for report in each.reports)
        reports = [replace(report, violations={"size": float(report.value == best)}) for report in each.reports]
        return replace(each, reports=tuple(reports))

    first, *others = [*trials(*TURNING), trial(3, 0.9, 0.43, 0.5, 0.54)]
    assert earlier_best([first, *others], LOSS, "last") == FOUND._replace(turned=4, complete=4)
    assert earlier_best([broken_at_best(first), *others], LOSS, "last") == EarlierBest(3, 4, 0.5, 3, 0.43, 0.52)
    assert earlier_best([broken_at_best(first), *others[:2]], LOSS, "last") is None


@pytest.mark.parametrize(("pruned", "is_said"), [(0.45, False), (0.4, True)])
def test_a_pruned_trial_is_not_ahead_of_complete_ones_that_were_better_before_their_end(
    pruned: float, is_said: bool
) -> None:
    study: Any = SimpleNamespace(
        objectives=LOSS, scope="last", repeats=1, fold_count=0, described_space=dict, folder=Path("nowhere")
    )
    said = advice(study, [*trials(*TURNING), trial(3, 0.9, pruned, state=TrialState.PRUNED)])
    assert [each.startswith("Trial 3 was pruned") for each in said] == ([True, False] if is_said else [False])
    assert said[-1] == FOUND.describe()


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[str]]:
    """A study whose trials are best after the second of five epochs, the sentence about it, and the search's lines."""
    folder = tmp_path_factory.mktemp("turning")

    def turns(metrics: dict[str, float]) -> float:
        return abs(metrics["epoch"] - 2) + metrics["eval_loss"] / 100

    console, stream = text_console(width=1000)
    options: dict[str, Any] = {"trainer": {"num_train_epochs": 5}, "compute_objective": turns, "direction": "minimize"}
    by_last = search(folder, 4, progress=LineView(console), **options)
    by_all = search(folder, 4, study_name="all", scope="all", **options)
    assert by_all.checkpoint.name == "checkpoint-8"
    number, value, last = by_all.run_id, by_all.objective, by_last.objective
    sentence = (
        "4 of 4 complete trials were clearly better before their end (median: after 40% of the training). A new search "
        'with scope="all" (another study_name) selects the best evaluation of each trial and its checkpoint; of these '
        f"trials it would select trial {number} with {value:.4g}, in place of {last:.4g}."
    )
    return folder, sentence, stream.getvalue().splitlines()


def test_a_search_whose_losses_turn_upwards_says_once_at_its_end_what_a_search_with_scope_all_finds(
    searched: tuple[Path, str, list[str]],
) -> None:
    _, sentence, lines = searched
    assert [line for line in lines if "scope=" in line] == [sentence]
    assert lines[-1] == sentence


@pytest.mark.parametrize(("study", "is_said"), [("study", True), ("all", False)])
def test_the_report_and_show_say_it_too(
    searched: tuple[Path, str, list[str]], study: str, is_said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, sentence, _ = searched
    assert main(["show", str(folder / study)]) == 0
    assert (sentence in capsys.readouterr().out.splitlines()) == is_said
    pytest.importorskip("plotly")
    write_report(open_study(folder / study), folder / "report.html")
    page = text_of(parse_html((folder / "report.html").read_text(encoding="utf-8")).find(".//main"))
    assert (sentence in page) == is_said
    assert ("clearly better" in page) == is_said
