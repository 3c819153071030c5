"""The headline of a report: the best value, what the defaults reach, the gain, the cost, the noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpsearch import Float, SearchSpace, SearchSummary, TrialRecord, TrialState
from hpsearch.reports.headline import Headline, NoiseOfBest, headline, tiles
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.store.held_out_file import HeldOutEvaluation, write_held_out
from hpsearch.search.store.stored_study import StoredStudy
from hpsearch.search.trial_record import Replica, Report
from tests.support.rendering import NoEngine, record, summary_of

SPACE = SearchSpace({"learning_rate": Float(1e-5, 1e-1, log=True), "weight_decay": Float(0.0, 0.3)})
DEFAULTS = {"learning_rate": 5e-5, "weight_decay": 0.0}
OTHERS = {"learning_rate": 1e-3, "weight_decay": 0.0}


def stored(
    folder: Path, records: Sequence[TrialRecord], direction: str = "maximize", samples: int | None = None
) -> SearchSummary:
    """A study as its folder has it, with the arguments and the data of one session."""
    data = {} if samples is None else {"eval_dataset": f"{samples} samples"}
    settings = {
        **{"study_name": "study", "objective": "eval_accuracy", "direction": direction, "constraints": []},
        **{"scope": "last", "space": SPACE.describe(), "n_trials": 9, "session": 0},
        "sessions": [{"arguments": DEFAULTS, "data": data}],
    }
    [accuracy] = resolve_objectives("accuracy", None, has_metrics=True)
    objectives = (replace(accuracy, direction=direction),)
    return SearchSummary(StoredStudy(folder, settings, objectives, ()), records, NoEngine)


def trial(number: int, value: float, params: dict[str, Any] = OTHERS, **changes: Any) -> TrialRecord:
    report = Report((value,), 2.0, 20, 2.0, {"eval_accuracy": value}, horizon=2.0)
    return record(number, value, params=params, reports=(report,), epochs=2.0, fraction=1.0, **changes)


@pytest.mark.parametrize(
    ("values", "direction", "gain"),
    [((0.5, 0.75), "maximize", 0.25), ((0.5, 0.25), "minimize", 0.25), ((0.5, 0.25), "maximize", 0.0)],
)
def test_the_gain_over_the_trial_with_the_defaults_is_positive_where_the_best_is_better(
    tmp_path: Path, values: tuple[float, float], direction: str, gain: float
) -> None:
    records = [trial(0, values[0], DEFAULTS), trial(1, values[1])]
    shown = headline(stored(tmp_path, records, direction))
    assert (shown.defaults, shown.defaults_trial, shown.gain) == (0.5, 0, gain)


@pytest.mark.parametrize(
    "params",
    [OTHERS, {"learning_rate": 5e-5}, {**DEFAULTS, "optim": "sgd"}],
    ids=["others", "only some of them", "one more"],
)
def test_a_trial_with_other_parameters_is_not_that_of_the_defaults(tmp_path: Path, params: dict[str, Any]) -> None:
    shown = headline(stored(tmp_path, [trial(0, 0.5, params)]))
    assert (shown.defaults, shown.gain) == (None, None)
    assert headline(summary_of([trial(0, 0.5, DEFAULTS)])).defaults is None  # the arguments of no session are known


def test_a_pruned_trial_with_the_defaults_has_no_result_to_compare_with(tmp_path: Path) -> None:
    records = [trial(0, 0.5, DEFAULTS, state=TrialState.PRUNED), trial(1, 0.75)]
    assert headline(stored(tmp_path, records)).defaults is None


def test_the_run_of_the_defaults_for_the_test_set_counts_if_no_trial_has_them(tmp_path: Path) -> None:
    best = HeldOutEvaluation(1, (0.75,), {"test_accuracy": 0.7}, "300 samples", "", 0.0)
    write_held_out(tmp_path, [best, replace(best, trial=None, values=(0.5,), metrics={"test_accuracy": 0.4})])
    summary = stored(tmp_path, [trial(1, 0.75)])
    shown = headline(summary)
    assert (shown.test, shown.defaults, shown.defaults_trial, shown.gain) == (0.7, 0.5, None, 0.25)
    by_name = {each.name: each for each in tiles(summary, shown)}
    assert by_name["Gain"].figure == "+0.25"
    assert by_name["Test set"].details == ("On the test set: accuracy 0.7 of trial 1; accuracy 0.4 of the defaults.",)


def test_the_noise_is_that_of_the_samples_or_of_the_seeds_or_unknown(tmp_path: Path) -> None:
    records = [trial(0, 0.5, DEFAULTS), trial(1, 0.75), trial(2, 0.74)]
    known = headline(stored(tmp_path, records, samples=100))
    assert known.noise == NoiseOfBest(pytest.approx(0.0440, abs=1e-4), "100 samples", 1)
    assert known.is_gain_in_noise is False
    assert headline(stored(tmp_path, records, samples=4)).is_gain_in_noise is None  # 0.74 is no fraction of 4
    replica = trial(3, 0.77, origin=Replica(1, 1).origin)
    repeated = headline(stored(tmp_path, [*records, replica]))
    assert repeated.noise is not None
    assert (repeated.best, repeated.noise.source, repeated.noise.tied) == (0.76, "2 seeds", None)
    assert repeated.noise.chance is not None
    unknown = stored(tmp_path, records)
    assert tiles(unknown, headline(unknown))[-1].figure == "unknown"


def test_the_cost_is_in_full_training_runs_and_what_pruning_saved(tmp_path: Path) -> None:
    half = Report((0.5,), 1.0, 10, 1.0, {}, horizon=2.0)
    pruned = record(1, 0.5, TrialState.PRUNED, params=OTHERS, reports=(half,), epochs=1.0, fraction=0.5)
    shown = headline(stored(tmp_path, [trial(0, 0.5), pruned]))
    assert (shown.full_runs, shown.seconds, shown.saved) == (1.5, 2.5, 0.25)


def test_without_a_best_trial_or_with_several_objectives_only_the_cost_is_known() -> None:
    assert headline(summary_of([])) == Headline(0, 0, 0, None)
    several = resolve_objectives(["accuracy", "eval_runtime"], None, has_metrics=True)
    records = [replace(trial(number, 0.5), values=(0.5 + number, 1.0 + number)) for number in (0, 1)]
    summary = summary_of(records, objectives=several)
    shown = headline(summary)
    assert (shown.trials, shown.best, shown.noise, shown.full_runs) == (2, None, None, 2.0)
    assert tiles(summary, shown)[0].figure == "2 trials"
    alone = headline(summary_of(records[:1], objectives=several))
    assert (alone.trials, alone.best) == (1, None)
