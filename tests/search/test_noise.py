"""The noise of a trial's value: what the samples and the ends of the learning curves show, and which trials tie."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpsearch import Float, Report, TrialRecord, TrialState, open_study
from hpsearch.cli import main
from hpsearch.reports.line_view import LineView
from hpsearch.reports.page import write_report
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.result.findings.ties import tied_with_best, ties
from hpsearch.search.result.noise import Noise, evaluation_samples, is_fraction_of, noise_of, noise_of_curves
from tests.support.html_pages import parse_html, text_of
from tests.support.rendering import record, text_console
from tests.support.small_trainer import small_trainer

ACCURACY = resolve_objectives("accuracy", None, has_metrics=True)
LOSS = resolve_objectives("loss", None, has_metrics=True)
SEVERAL = resolve_objectives(["loss", "accuracy"], None, has_metrics=True)
SIGMA = 0.02


def curve(values: Sequence[float], metric: str = "eval_accuracy") -> tuple[Report, ...]:
    return tuple(
        Report((value,), step, step, float(step), {metric: value}, horizon=len(values))
        for step, value in enumerate(values, start=1)
    )


def trial(number: int, *values: float, metric: str = "eval_accuracy", **changes: Any) -> TrialRecord:
    return record(number, values[-1], reports=curve(values, metric), **changes)


@pytest.mark.parametrize(
    ("samples", "value", "error"),
    [
        (300, 0.5, 0.029),
        (300, 0.9933, 0.0058),
        (300, 1.0, 0.0033),
        (300, 0.0, 0.0033),
        (10, 1.0, 0.0957),
        (10, 1.5, 0.0957),  # no fraction, but no error either
    ],
)
def test_the_standard_error_of_a_fraction_is_that_of_its_samples_and_never_0(
    samples: int, value: float, error: float
) -> None:
    assert Noise(samples=samples).standard_error(value) == pytest.approx(error, abs=5e-5)


def test_of_samples_and_curves_the_larger_error_counts_and_is_named() -> None:
    noise = Noise(curves=0.02, samples=300)
    assert [noise.source(value) for value in (0.99, 0.5)] == ["the learning curves", "300 samples"]
    assert noise.standard_error(0.99) == 0.02 < noise.standard_error(0.5)


@pytest.mark.parametrize(
    ("metric", "values", "samples", "expected"),
    [
        ("eval_accuracy", (0.5, 299 / 300, 1.0), 300, True),
        ("eval_exact_match", (0.5, 0.0), 300, True),
        ("eval_accuracy", (0.9967, 0.9933), 300, True),  # rounded to four digits
        ("eval_accuracy", (0.5, 0.9912), 300, False),  # of tokens
        ("eval_exact_match", (50.0, 99.0), 300, False),  # a percentage
        ("eval_f1", (0.5, 1.0), 300, False),
        ("eval_accuracy", (), 300, False),
    ],
)
def test_a_metric_is_a_fraction_of_the_samples_by_its_name_and_its_values(
    metric: str, values: Sequence[float], samples: int, expected: bool
) -> None:
    assert is_fraction_of(samples, curve(values, metric)) is expected


def test_an_objective_that_is_another_function_of_an_accuracy_is_no_fraction() -> None:
    halved = [Report((each.value / 2,), 1, 1, 1.0, each.metrics) for each in curve((0.5, 1.0))]
    assert not is_fraction_of(300, halved)


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        (["300 samples, 0a1b2c3d4e5f"], 300),
        (["300 samples", "300 samples"], 300),
        (["300 samples", "301 samples"], None),
        (["stream"], None),
        (["first: 300 samples, 0a1b, second: 20 samples, 0a1b"], None),
        ([None], None),
        ([], None),
    ],
)
def test_the_number_of_samples_is_the_one_that_all_sessions_recorded(described: list[Any], expected: Any) -> None:
    data: list[Any] = [{} if each is None else {"eval_dataset": each} for each in described]
    assert evaluation_samples([{"data": each} for each in data]) == expected


def test_without_an_evaluation_dataset_and_without_curves_there_is_no_noise() -> None:
    assert noise_of([trial(0, 0.5), trial(1, 0.75)], None) is None
    assert noise_of([trial(0, 0.5), trial(1, 0.75)], 4) == Noise(samples=4)
    pruned = trial(0, 0.5, state=TrialState.PRUNED)
    assert noise_of([pruned], 4) is None
    unclear = trial(0, math.nan, 0.75)
    assert noise_of([unclear], 4) == Noise(samples=4)


def flat(progress: float, rate: float) -> float:
    return 0.0


def decaying(progress: float, rate: float) -> float:
    return math.exp(-6 * rate * progress)


def simulated(trials: int, length: int, trend: Callable[[float, float], float], seed: int) -> list[tuple[Report, ...]]:
    """Return learning curves with white noise about a trend that differs between trials by its rate."""
    generator = random.Random(seed)
    curves = []
    for _ in range(trials):
        rate = generator.uniform(0.5, 2.0)
        trended = (trend(step / length, rate) for step in range(1, length + 1))
        curves.append(curve([each + generator.gauss(0, SIGMA) for each in trended]))
    return curves


@pytest.mark.parametrize("trend", [flat, decaying])
@pytest.mark.parametrize(("trials", "length"), [(10, 10), (20, 12), (12, 30)])
def test_the_noise_of_the_curves_of_200_simulated_searches_is_right_within_20_percent(
    trials: int, length: int, trend: Callable[[float, float], float]
) -> None:
    found = [noise_of_curves(simulated(trials, length, trend, seed)) for seed in range(200)]
    known = [each for each in found if each is not None]
    assert len(known) > 190
    assert statistics.fmean(known) == pytest.approx(SIGMA, rel=0.2)
    assert statistics.median(known) == pytest.approx(SIGMA, rel=0.2)


@pytest.mark.parametrize(("trials", "length"), [(5, 4), (10, 10), (20, 12)])
def test_at_most_7_percent_of_equal_trials_are_told_apart_by_their_curves(trials: int, length: int) -> None:
    apart = []
    for seed in range(400):
        curves = simulated(trials, length, flat, seed)
        found = noise_of_curves(curves)
        if found is not None:
            noise, generator = Noise(found), random.Random(-seed - 1)
            values = [generator.gauss(0, SIGMA) for _ in range(10)]
            apart += [not noise.is_within(*pair) for pair in zip(values[::2], values[1::2], strict=True)]
    assert len(apart) > 1900
    assert 0.02 < statistics.fmean(apart) <= 0.07


def test_the_best_of_20_equal_trials_differs_clearly_from_a_fifth_of_them() -> None:
    generator = random.Random(0)
    tied = []
    for _ in range(400):
        records = [trial(number, generator.gauss(0, SIGMA)) for number in range(20)]
        tied.append(len(tied_with_best(records, ACCURACY, Noise(SIGMA))) / 19)
    assert statistics.fmean(tied) == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("samples", [20, 300, 2000])
@pytest.mark.parametrize("fraction", [0.5, 0.9, 0.99])
def test_at_most_7_percent_of_equal_trials_are_told_apart_by_their_samples(samples: int, fraction: float) -> None:
    noise = Noise(samples=samples)
    pairs = np.random.default_rng(samples).binomial(samples, fraction, size=(4000, 2)) / samples
    apart = [not noise.is_within(*pair) for pair in pairs.tolist()]
    assert statistics.fmean(apart) <= 0.07


def test_curves_that_bend_are_not_noise() -> None:
    for length in (4, 6):
        bent = [curve([math.exp(-rate * step / length) for step in range(length)]) for rate in (1, 2, 3, 2, 1, 2)]
        assert noise_of_curves(bent) is None
    assert noise_of_curves([curve([float(step) for step in range(20)])] * 5) is None
    assert noise_of_curves([curve([0.5, math.nan, 0.4, 0.6, 0.5])] * 9) is None
    assert noise_of_curves(simulated(4, 4, flat, 1)) is None


def test_a_curve_that_jumps_hardly_matters_and_unequal_distances_are_allowed() -> None:
    curves = simulated(20, 12, flat, 3)
    known = noise_of_curves(curves) or math.nan
    assert noise_of_curves([*curves, curve([0.0, 99.0] * 6)]) == pytest.approx(known, rel=0.2)
    line = tuple(
        Report((2.0 * at + (1e-6 if step % 2 else -1e-6),), at, step, at, {}, horizon=9.0)
        for step, at in enumerate((1.0, 2.0, 3.0, 4.0, 4.5, 6.0))
    )
    assert 1e-6 < (noise_of_curves([line] * 5) or math.nan) < 1e-5


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            (0.9933, 0.99, 0.9867, 0.96),
            "0.9933 (trial 0) is the best value; 0.9900 (trial 1) and 0.9867 (trial 2) are within the noise of 300 "
            "samples (standard error 0.0058).",
        ),
        (
            (0.5, 0.9867, 0.9933),
            "0.9933 (trial 2) is the best value; 0.9867 (trial 1) is within the noise of 300 samples (standard error "
            "0.0058).",
        ),
        (
            (0.9933, *[0.99] * 10),
            "0.9933 (trial 0) is the best value; 0.9900 (trial 1), 0.9900 (trial 2), 0.9900 (trial 3) and 7 more are "
            "within the noise of 300 samples (standard error 0.0058).",
        ),
        ((0.9933, 0.9), None),
        ((0.9933,), None),
        ((), None),
    ],
)
def test_trials_that_cannot_be_told_apart_from_the_best_are_named(
    values: Sequence[float], sentence: str | None
) -> None:
    records = [trial(number, value) for number, value in enumerate(values)]
    assert ties(records, ACCURACY, Noise(samples=300)) == ([] if sentence is None else [sentence])


def test_no_trials_tie_without_an_estimate_and_with_several_objectives() -> None:
    records = [trial(0, 0.5), trial(1, 0.5)]
    assert [each.number for each in tied_with_best(records, ACCURACY, Noise(0.1))] == [1]
    assert tied_with_best(records, ACCURACY, None) == tied_with_best(records, SEVERAL, Noise(0.1)) == []


def test_a_tie_by_the_curves_names_them() -> None:
    records = [trial(0, 0.52), trial(1, 0.5)]
    assert ties(records, LOSS, Noise(0.01)) == [
        "0.5000 (trial 1) is the best value; 0.5200 (trial 0) is within the noise of the learning curves (standard "
        "error 0.01)."
    ]


def test_a_search_and_its_report_say_which_trials_are_within_the_noise_of_the_evaluation_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console, stream = text_console(width=1000)
    best = small_trainer(tmp_path).hyperparameter_search(
        {"learning_rate": Float(0.01, 0.1, log=True)},
        "accuracy",
        n_trials=5,
        sampler="random",
        pruner="none",
        preflight=False,
        progress=LineView(console),
    )
    tied = best.run_summary.tied_with_best()
    said = [line for line in stream.getvalue().splitlines() if "within the noise" in line]
    assert len(said) == 1
    assert said[0].endswith(f"within the noise of 32 samples (standard error {_error(best.objective, 32):.2g}).")
    assert tied
    assert all(f"(trial {each.number})" in said[0] for each in tied[:3])
    opened = open_study(tmp_path / "study")
    assert [each.number for each in opened.tied_with_best()] == [each.number for each in tied]
    write_report(opened, tmp_path / "report.html")
    assert said[0] in text_of(parse_html((tmp_path / "report.html").read_text(encoding="utf-8")).find(".//main"))
    capsys.readouterr()
    assert main(["show", str(tmp_path / "study")]) == 0
    assert said[0] in capsys.readouterr().out


def _error(value: float, samples: int) -> float:
    fraction = (value * samples + 1) / (samples + 2)
    return math.sqrt(fraction * (1 - fraction) * (samples + 2)) / samples
