"""Schedulers of Ray Tune judge our trials: what they stop is recorded as what it is, and they hear what they need."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler, MedianStoppingRule, TrialScheduler

from hpsearch import BestRun, Float, Report, SearchInterrupted, StudyError, TrialRecord, TrialState
from hpsearch.executors.ray_executor.schedulers import check_report
from hpsearch.executors.ray_executor.searchers import _last_metrics
from hpsearch.executors.ray_executor.tune_worker import _numbers
from hpsearch.trial.messages import Reported
from tests.support.on_ray import ON_RAY, loss_of
from tests.support.searching import Diary, Events, states, stored_trials
from tests.support.small_trainer import CountsModels, small_trainer

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_instance")]

SPACE = {"learning_rate": Float(1e-4, 1e-1, log=True)}


def search(folder: Path, rates: list[float], *, trainer: dict[str, Any] | None = None, **options: Any) -> BestRun:
    """Search on Ray; the trials learn at these rates."""
    start = [{"learning_rate": rate} for rate in rates]
    options = {"compute_objective": "loss", **ON_RAY, "n_trials": len(rates), "start_with": start, **options}
    return small_trainer(folder, **(trainer or {})).hyperparameter_search(SPACE, **options)


@pytest.mark.feature(8)
def test_asha_prunes_the_bad_and_stops_the_good_at_their_longest(tmp_path: Path) -> None:
    events = Events()
    scheduler = ASHAScheduler(grace_period=1, reduction_factor=2, max_t=3)
    best = search(
        tmp_path,
        [0.1, 0.05, 1e-4, 2e-4],
        trainer={"num_train_epochs": 4},
        scheduler=scheduler,
        max_concurrent_trials=1,
        progress=events,
    )
    records = best.run_summary.records
    assert states(best) == ["stopped", "pruned", "pruned", "pruned"]
    assert len(records[0].reports) == 3
    assert records[0].reason == "AsyncHyperBandScheduler lets no trial continue after training_iteration=3"
    assert [record.reason for record in records[2:]] == ["pruned after 1 epoch"] * 2
    assert best.run_id == "0"
    assert best.objective == records[0].reports[-1].value
    assert best.load_model() is not None
    assert any(note.startswith("scheduler AsyncHyperBandScheduler") for note in events.notes)
    assert not any(note.startswith("pruner") for note in events.notes)
    stored = stored_trials(tmp_path / "study")
    assert [each.resources for each in stored] == [[report.epoch for report in record.reports] for record in records]
    assert [each.state for each in stored] == ["complete", "pruned", "pruned", "pruned"]
    assert stored[0].notes["state"] == "stopped"


class InterruptsAtAReport(Events):
    """Ctrl-C at the third report."""

    def __init__(self) -> None:
        super().__init__()
        self._reports = 0

    def on_report(self, trial: Any, report: Any) -> None:
        self._reports += 1
        if self._reports == 3:
            raise KeyboardInterrupt


def test_hyperband_lets_trials_wait_for_each_other_and_goes_on_after_an_interruption(tmp_path: Path) -> None:
    # Brackets of two: the even ones run for two epochs, of the odd ones the worse trial ends after one.
    rates = [0.1, 0.05, 1e-4, 0.1, 0.02, 1e-4, 0.1, 1e-4]
    scheduler = HyperBandScheduler(max_t=2, reduction_factor=2)
    options = {"trainer": {"num_train_epochs": 3}, "scheduler": scheduler}
    with pytest.raises(SearchInterrupted) as caught:
        search(tmp_path, rates, progress=InterruptsAtAReport(), **options)
    half_done = {record.number: len(record.reports) for record in caught.value.best_run.run_summary.records}
    assert sum(half_done.values()) == 3
    best = search(tmp_path, rates, **options)
    records = best.run_summary.records
    assert [record.params["learning_rate"] for record in records] == rates
    for record in records:
        assert record.state.is_counted
        if not half_done.get(record.number):  # the others go on where they were
            is_pruned = record.number in (2, 7)
            assert record.state is (TrialState.PRUNED if is_pruned else TrialState.STOPPED)
            assert len(record.reports) == (1 if is_pruned else 2)
    assert best.objective == min(record.value for record in records if record.state is not TrialState.PRUNED)
    assert loss_of(best.load_model()) == pytest.approx(best.objective, rel=1e-6)
    assert [each.state == "pruned" for each in stored_trials(tmp_path / "study")] == [
        record.state is TrialState.PRUNED for record in records
    ]


def test_hyperband_ends_trials_that_wait_without_a_worker(tmp_path: Path) -> None:
    best = search(
        tmp_path,
        [0.1, 0.05, 1e-4, 0.02],
        trainer={"num_train_epochs": 3},
        scheduler=HyperBandScheduler(max_t=2, reduction_factor=2),
        max_concurrent_trials=1,
    )
    # Trial 0 waits for trial 1, and trial 2 for trial 3.
    assert states(best) == ["stopped", "stopped", "pruned", "stopped"]
    records = best.run_summary.records
    assert records[0].reason == "HyperBandScheduler lets no trial continue after training_iteration=2"
    assert records[2].reason == "pruned after 1 epoch"
    assert (best.run_id, best.objective) == ("0", records[0].reports[-1].value)
    assert loss_of(best.load_model()) == pytest.approx(best.objective, rel=1e-6)
    assert [path.parent.name for path in (tmp_path / "study").glob("*/checkpoint-*")] == ["run-0"]


@pytest.mark.parametrize(
    "scheduler",
    [
        MedianStoppingRule("training_iteration", grace_period=1, min_samples_required=1),
        ASHAScheduler(mode="min"),
        "asha",
    ],
    ids=["median", "asha with a mode", "asha by name"],
)
def test_a_trial_that_falls_behind_is_pruned(tmp_path: Path, scheduler: Any) -> None:
    best = search(tmp_path, [0.1, 1e-4], scheduler=scheduler, max_concurrent_trials=1)
    assert states(best) == ["complete", "pruned"]
    assert len(best.run_summary.records[1].reports) == 1


class Own(TrialScheduler):
    """Writes down what it hears, and stops the second trial at its second report."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def _hear(self, what: str, trial: Any, result: Any = None) -> None:
        self._diary.write((what, trial.trial_id, result and [result["training_iteration"], result["objective"]]))

    def on_trial_add(self, controller: Any, trial: Any) -> None:
        self._hear("add", trial)

    def on_trial_error(self, controller: Any, trial: Any) -> None:
        self._hear("error", trial)

    def on_trial_result(self, controller: Any, trial: Any, result: Any) -> str:
        self._hear("result", trial, result)
        added = [name for what, name, _ in self._diary.read() if what == "add"]
        is_second = len(added) > 1 and trial.trial_id == added[1]
        return self.STOP if is_second and result["training_iteration"] > 1 else self.CONTINUE

    def on_trial_complete(self, controller: Any, trial: Any, result: Any) -> None:
        self._hear("complete", trial, result)

    def on_trial_remove(self, controller: Any, trial: Any) -> None:
        self._hear("remove", trial)

    def choose_trial_to_run(self, controller: Any) -> Any:
        return next((each for each in controller.get_trials() if each.status in (each.PENDING, each.PAUSED)), None)

    def debug_string(self) -> str:
        return "of my own"


def test_a_scheduler_of_the_users_own_hears_what_tune_would_tell_it_but_nothing_that_is_not_finite(
    tmp_path: Path,
) -> None:
    def fail_in_the_third(trial: Any) -> None:
        if trial.number == 2:
            raise RuntimeError("out of luck")

    def objective(metrics: dict[str, float]) -> float:
        return math.nan if metrics["epoch"] in (1.0, 4.0) else metrics["eval_loss"]

    diary = Diary(tmp_path / "diary")
    best = search(
        tmp_path,
        [0.1, 1e-4, 0.1],
        trainer={"num_train_epochs": 4, "model_init": CountsModels(fail_in_the_third)},
        scheduler=Own(diary),
        compute_objective=objective,
        direction="minimize",
        max_concurrent_trials=1,
    )
    assert states(best) == ["complete", "pruned", "failed"]
    records = best.run_summary.records
    entries = diary.read()
    ids = [name for what, name, _ in entries if what == "add"]
    told = [[(what, result) for what, name, result in entries if name == each] for each in ids]
    first, second = ([[place, report.value] for place, report in enumerate(each.reports, 1)] for each in records[:2])
    assert told[0] == [("add", None), ("result", first[1]), ("result", first[2]), ("complete", first[2])]
    assert told[1] == [("add", None), ("result", second[1]), ("complete", second[1])]
    assert told[2] == [("add", None), ("error", None)]
    assert [math.isnan(report.value) for report in records[0].reports] == [True, False, False, True]


def test_a_scheduler_that_looks_for_a_metric_that_evaluations_do_not_have_is_refused(tmp_path: Path) -> None:
    message = "metric='eval_acuracy', which the reports do not have.*Did you mean 'eval_accuracy'"
    with pytest.raises(StudyError, match=message):
        search(tmp_path, [0.1], scheduler=ASHAScheduler(metric="eval_acuracy", mode="max"))


@pytest.mark.parametrize("name", ["num_parameters", "parameters"])
def test_a_report_to_tune_has_the_number_of_weights_under_both_of_its_names(name: str) -> None:
    report = Report((0.5,), 1.0, 1, 1.0, {"eval_loss": 0.5, "num_parameters": 9})
    record = TrialRecord(0, "run-0", TrialState.RUNNING, {}, reports=[report])
    result = _numbers(Reported(report, ((0.5, 1),), is_comparable=True, is_last=False, so_far=record))
    check_report(ASHAScheduler(metric=name, mode="min"), result)
    assert result[name] == 9
    assert _last_metrics(record)[name] == 9, "for searchers"


def test_the_metric_of_a_scheduler_may_be_another_one_than_that_of_the_search(tmp_path: Path) -> None:
    scheduler = ASHAScheduler(time_attr="epoch", metric="eval_accuracy", mode="min", grace_period=1, max_t=9)
    best = search(tmp_path, [1e-4, 0.1], scheduler=scheduler, max_concurrent_trials=1)
    accuracies = [record.reports[0].metrics["eval_accuracy"] for record in best.run_summary.records]
    assert accuracies[0] < accuracies[1]
    assert states(best) == ["complete", "pruned"]


def test_a_trial_that_waits_for_one_that_fails_ends_too(tmp_path: Path) -> None:
    def fail_in_the_second(trial: Any) -> None:
        if trial.number == 1:
            raise RuntimeError("out of luck")

    best = search(
        tmp_path,
        [0.1, 0.1],
        trainer={"num_train_epochs": 3, "model_init": CountsModels(fail_in_the_second)},
        scheduler=HyperBandScheduler(max_t=2, reduction_factor=2),
        max_concurrent_trials=1,
    )
    assert states(best) == ["stopped", "failed"]
    assert loss_of(best.load_model()) == pytest.approx(best.objective, rel=1e-6)
