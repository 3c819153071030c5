"""Searches by cross-validation: their values, their folds in all kinds of recipes, the refit, and how they continue."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import Timeout
from sklearn.base import BaseEstimator
from sklearn.model_selection import KFold, cross_val_score
from torch.utils.data import Subset
from transformers import Trainer as TransformersTrainer
from transformers import TrainingArguments

from hpsearch import (
    BestRun,
    EarlyStoppingCallback,
    Float,
    Int,
    ObjectiveError,
    SearchInterrupted,
    StudyError,
    TrialRecord,
    TrialState,
    open_study,
    tune,
)
from hpsearch.search.folds import Folds
from hpsearch.search.store.refit_file import REFIT_LOCK
from hpsearch.search.trial import FixedTrial
from hpsearch.system.files import file_lock
from hpsearch.trainer.searchable_trainer import SearchableTrainer
from hpsearch.trial.preflight import Draw, _trial_of
from tests.support.searching import AtStep, HearsNotices, interrupt, same_but_time, states
from tests.support.small_trainer import TwoLayers, points, small_trainer

SPACE = {"learning_rate": Float(1e-3, 1.0, log=True)}
DATA = points(20, seed=0)
PAIRS = [(list(train), list(evaluation)) for train, evaluation in KFold(3).split(np.zeros(20))]
WITHOUT_EVALUATION: dict[str, Any] = {"eval_dataset": None, "eval_strategy": "no"}


def search(folder: Path, *callbacks: Any, trainer: dict[str, Any] | None = None, **options: Any) -> BestRun:
    given: dict[str, Any] = {"n_trials": 4, "folds": 4, "pruner": None, "progress": False, **options}
    parts = {"train_dataset": DATA, **WITHOUT_EVALUATION, **(trainer or {})}
    found = small_trainer(folder, *callbacks, **parts).hyperparameter_search(given.pop("space", SPACE), **given)
    assert isinstance(found, BestRun)
    return found


def further(best: BestRun) -> list[TrialRecord]:
    return [each for each in best.run_summary.records if each.replica is not None]


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = torch.nn.Linear(3, 1)
        torch.nn.init.zeros_(self.slope.weight)
        torch.nn.init.zeros_(self.slope.bias)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.slope(x).squeeze(-1)
        return logits if labels is None else {"loss": torch.nn.functional.mse_loss(logits, labels), "logits": logits}


class PlainLine(BaseEstimator):  # type: ignore[misc]
    """The same model, trained by hand with the same whole batches."""

    def __init__(self, learning_rate: float = 0.1) -> None:
        self.learning_rate = learning_rate

    def fit(self, x: Any, y: Any) -> PlainLine:
        self.model_ = Line()
        optimizer = torch.optim.SGD(self.model_.parameters(), lr=self.learning_rate)
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(self.model_(torch.tensor(x)), torch.tensor(y)).backward()
            optimizer.step()
        return self

    def score(self, x: Any, y: Any) -> float:
        with torch.no_grad():
            return float(torch.nn.functional.mse_loss(self.model_(torch.tensor(x)), torch.tensor(y)))


def test_the_means_of_folds_are_those_of_cross_val_score(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(50, 3)).astype("float32")
    y = (x @ np.array([1.0, -2.0, 0.5]) + random.normal(size=50)).astype("float32")
    splitter = KFold(5, shuffle=True, random_state=3)
    whole = {
        "train_dataset": [
            {"x": torch.tensor(row), "labels": torch.tensor(each)} for row, each in zip(x, y, strict=True)
        ],
        "model_init": Line,
        "per_device_train_batch_size": 64,
        "num_train_epochs": 3,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 0.0,
        "compute_metrics": None,
    }
    best = search(tmp_path, trainer=whole, folds=splitter, n_trials=2, start_with=[{"learning_rate": 0.3}])
    for number, found in _folds_by_trial(best).items():
        rate = best.run_summary.records[number].params["learning_rate"]
        expected = cross_val_score(PlainLine(rate), x, y, cv=splitter)
        assert found == pytest.approx(expected[: len(found)], rel=1e-5)
    rate = best.hyperparameters["learning_rate"]
    assert best.objective == pytest.approx(cross_val_score(PlainLine(rate), x, y, cv=splitter).mean(), rel=1e-5)
    assert list(best.values or {}) == [0, 1, 2, 3, 4]


def _runs_of_best(best: BestRun) -> list[TrialRecord]:
    number = int(best.run_id or 0)
    return [
        each for each in best.run_summary.records if (each.replica.trial if each.replica else each.number) == number
    ]


def _folds_by_trial(best: BestRun) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for each in best.run_summary.records:
        found.setdefault(each.number if each.replica is None else each.replica.trial, []).append(each.values[0])
    return found


def test_the_folds_of_a_trial_have_its_seed_and_parameters_and_do_not_count(tmp_path: Path) -> None:
    best = search(tmp_path)
    assert states(best) == ["complete"] * len(best.run_summary.records)
    assert sum(each.is_counted for each in best.run_summary.records) == 4
    first = len(best.run_summary.records) - len(further(best))
    assert first == 4
    for each in further(best):
        base = best.run_summary.records[each.replica.trial]
        assert (each.seed, each.params, each.replica.kind) == (base.seed, base.params, "fold")
        assert each.reports != base.reports
    assert all(each.replica is None for each in best.run_summary.records[:4])  # folds wait for the last trial
    stored = open_study(tmp_path / "study")
    assert stored.best()[0].values == (best.objective,)
    assert stored.study.fold_count == 4
    assert stored.problems == ()


def test_without_a_refit_there_is_no_model_and_the_error_names_it(tmp_path: Path) -> None:
    best = search(tmp_path)
    assert best.checkpoint is None
    assert open_study(tmp_path / "study").best()[0].checkpoint is None
    for load in (best.load_model, lambda: best.load_model(seed=42)):
        with pytest.raises(StudyError, match="one for each of its 4 folds: search with refit=True"):
            load()


def test_a_refit_trains_the_best_parameters_on_all_data_once(tmp_path: Path) -> None:
    heard = HearsNotices()
    best = search(tmp_path, refit=True, progress=heard)
    told = [each for each in heard.notices if "on all 20 samples" in each]
    assert told == [
        f"training the parameters of trial {best.run_id} on all 20 samples, to completion; they were chosen by the "
        f"mean sum of metrics of 4 folds, {best.objective:.4g}"
    ]
    assert best.checkpoint == tmp_path / "study" / "refit" / "weights"
    alone = small_trainer(tmp_path / "alone", train_dataset=DATA, learning_rate=best.hyperparameters["learning_rate"])
    alone.train()
    model = best.load_model()
    assert model.output.weight.tolist() == alone.model.output.weight.tolist()
    with pytest.raises(StudyError, match="no single model"):
        best.load_model(seed=42)
    assert open_study(tmp_path / "study").best()[0].checkpoint == best.checkpoint
    assert json.loads((tmp_path / "study" / "best.json").read_text())["checkpoint"] == "refit/weights"
    written = (tmp_path / "study" / "refit" / "weights" / "refit.json").stat().st_mtime_ns
    heard = HearsNotices()
    again = search(tmp_path, refit=True, progress=heard)
    assert again.checkpoint == best.checkpoint
    assert not any("on all 20 samples" in each for each in heard.notices)
    assert (tmp_path / "study" / "refit" / "weights" / "refit.json").stat().st_mtime_ns == written


@pytest.mark.slow
def test_no_other_process_trains_the_same_refit_meanwhile(tmp_path: Path) -> None:
    lock = file_lock(tmp_path / "study" / REFIT_LOCK, thread_local=False)
    free: list[bool] = []

    def try_it() -> None:
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=0)
        free.append(lock.is_locked)
        lock.release(force=True)

    search(tmp_path)
    search(tmp_path, AtStep(try_it, 0, 1), refit=True)
    assert free == [False]


@pytest.mark.slow
def test_a_refit_ends_after_the_median_of_what_the_folds_selected(tmp_path: Path) -> None:
    heard = HearsNotices()
    length = {"num_train_epochs": 4, "learning_rate": 0.5}
    best = search(tmp_path, refit=True, scope="all", progress=heard, trainer=length)
    runs = [
        each for each in best.run_summary.records if best.run_id in (str(each.number), str((each.replica or [""])[0]))
    ]
    selected = [max(each.reports, key=lambda report: report.value).epoch for each in runs]
    share = float(np.median(selected)) / 4
    assert share < 1, "the case shows nothing"
    rate = {"learning_rate": best.hyperparameters["learning_rate"]}
    stopped = small_trainer(tmp_path / "alone", train_dataset=DATA, num_train_epochs=4, eval_strategy="no", **rate)
    stopped.add_callback(_Stops(round(share * 20)))
    stopped.train()
    assert best.load_model().output.weight.tolist() == stopped.model.output.weight.tolist()
    assert any(f"for {share:.0%} of its run, the median of the folds (" in each for each in heard.notices)


class _Stops(EarlyStoppingCallback):
    """Stops after a number of steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def on_train_begin(self, *event: Any, **kwargs: Any) -> None:
        pass

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control.should_training_stop = state.global_step >= self.steps
        return control


def test_a_refit_stops_with_the_folds_and_not_by_an_evaluation(tmp_path: Path) -> None:
    stops = EarlyStoppingCallback(early_stopping_patience=1)
    best = search(tmp_path, stops, refit=True, trainer={"metric_for_best_model": "loss", "num_train_epochs": 4})
    assert best.load_model() is not None


def test_the_test_set_is_for_the_model_of_all_data(tmp_path: Path) -> None:
    best = search(tmp_path, refit=True, test_dataset=points(32, seed=5))
    trainer = small_trainer(tmp_path / "alone", model=best.load_model(), train_dataset=DATA)
    expected = trainer.evaluate(points(32, seed=5))["eval_accuracy"]
    assert best.test_metrics is not None
    assert best.test_metrics["test_accuracy"] == expected


@pytest.mark.slow
def test_an_interrupted_refit_is_done_by_the_same_call(tmp_path: Path) -> None:
    whole = search(tmp_path / "whole", refit=True)
    trials = len(whole.run_summary.records)
    with pytest.raises(SearchInterrupted) as caught:
        search(tmp_path / "cut", AtStep(interrupt, trials, 6), refit=True)
    assert caught.value.best_run is not None
    best = search(tmp_path / "cut", refit=True)
    assert len(best.run_summary.records) == trials
    assert same_but_time(best) == same_but_time(whole)
    assert best.load_model().output.weight.tolist() == whole.load_model().output.weight.tolist()


def test_a_search_that_is_interrupted_in_a_fold_continues_as_one_that_was_not(tmp_path: Path) -> None:
    epochs = {"save_strategy": "epoch"}
    whole = search(tmp_path / "whole", trainer=epochs)
    with pytest.raises(SearchInterrupted):
        search(tmp_path / "cut", AtStep(interrupt, 5, 6), trainer=epochs)
    record = open_study(tmp_path / "cut" / "study").records[5]
    assert record.state is TrialState.INTERRUPTED
    assert record.replica is not None
    assert same_but_time(search(tmp_path / "cut", trainer=epochs)) == same_but_time(whole)


def test_a_fold_is_replayed_on_its_samples(tmp_path: Path) -> None:
    best = search(tmp_path)
    trainer = small_trainer(tmp_path, train_dataset=DATA, **WITHOUT_EVALUATION)
    number = further(best)[-1].number
    replay = trainer.replay(number=number, progress=False)
    assert replay.is_equal, replay.first_difference
    (tmp_path / "study" / "folds.json").unlink()
    with pytest.raises(StudyError, match=r"does not have the folds that the trials were trained on"):
        trainer.replay(number=number, progress=False)


@pytest.mark.slow
def test_rungs_compare_trials_on_their_first_fold(tmp_path: Path) -> None:
    best = search(tmp_path, n_trials=9, folds=3, pruner="rungs", trainer={"num_train_epochs": 6})
    assert "pruned" in states(best)
    assert list(best.values or {}) == [0, 1, 2]
    for each in further(best):
        assert best.run_summary.records[each.replica.trial].state is TrialState.COMPLETE


@pytest.mark.slow
def test_further_folds_are_not_pruned_and_the_model_learns_from_first_folds_only(tmp_path: Path) -> None:
    best = search(tmp_path, n_trials=8, folds=3, pruner="median", trainer={"num_train_epochs": 4})
    assert {each.state for each in further(best)} == {TrialState.COMPLETE}
    best = search(tmp_path, n_trials=9, folds=3, study_name="modelled")
    seen = best.run_summary.engine_study.sampler.trials
    assert len(seen) >= 8
    assert all(each.replica is None for each in seen)


def test_the_samples_of_an_epoch_are_those_of_a_fold(tmp_path: Path) -> None:
    recipe = SearchableTrainer(small_trainer(tmp_path, train_dataset=DATA, **WITHOUT_EVALUATION))
    recipe.prepare(None, Folds.of_pairs(PAIRS, "pairs of indices"))
    assert recipe.training_samples == 13
    assert recipe.with_arguments(seed=1).training_samples == 13
    assert len(recipe.data_to_split) == 20


def test_other_parameters_that_a_preflight_tries_have_the_fold_of_the_trial() -> None:
    trial = FixedTrial({})
    trial.folds = Folds.of_pairs(PAIRS, "pairs of indices")
    other = _trial_of(Draw({"x": 1}, {"x": 1}), trial, 0)
    assert other.fold is not None
    assert other.fold.number == 0


@pytest.mark.parametrize(
    ("trainer", "options", "message"),
    [
        (
            {"eval_dataset": DATA},
            {},
            "folds evaluate on parts of the train_dataset, but the Trainer has an eval_dataset",
        ),
        ({}, {"repeats": 2}, "repeats=2 and folds are two ways"),
        ({}, {"test_dataset": points(4, 1)}, "test_dataset needs the model of the best run, .* pass refit=True"),
        ({}, {"refit": "yes"}, "refit must be True or False, but got 'yes'"),
        ({"eval_dataset": DATA}, {"folds": None, "refit": True}, "refit=True trains .* pass folds too"),
        ({}, {"refit": True, "compute_objective": ["loss", "accuracy"]}, "refit=True is for one objective"),
        ({"train_dataset": None}, {}, "A search needs a train_dataset; the Trainer has none"),
        ({}, {"folds": None}, "A search compares evaluations, so the Trainer needs an eval_dataset"),
    ],
)
def test_what_cannot_be_is_refused_before_any_trial(
    trainer: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((StudyError, ObjectiveError), match=message):
        search(tmp_path, trainer=trainer, **options)
    assert not (tmp_path / "study").exists()


@pytest.mark.slow
def test_a_study_keeps_its_folds(tmp_path: Path) -> None:
    search(tmp_path, n_trials=1)
    with pytest.raises(StudyError, match=r"another cross-validation: '4 folds by KFold.*', now '3 folds by"):
        search(tmp_path, folds=3, n_trials=2)
    with pytest.raises(StudyError, match="now 'none'"):
        search(tmp_path, folds=None, n_trials=2, trainer={"eval_dataset": DATA})
    with pytest.raises(
        StudyError, match=r"has 4 other folds, also made by KFold.*: the data, or the indices, have changed"
    ):
        search(tmp_path, n_trials=2, trainer={"train_dataset": points(24, 0)})
    with pytest.raises(StudyError, match="this study is a cross-validation"):
        open_study(tmp_path / "study").confirm()
    assert sum(each.is_counted for each in search(tmp_path, n_trials=2).run_summary.records) == 2


def tuned(function: Any, folder: Path, **options: Any) -> BestRun:
    given = {"n_trials": 3, "folds": PAIRS, "pruner": None, "progress": False, "output_dir": folder, **options}
    found = tune(function, given.pop("space", SPACE), **given)
    assert isinstance(found, BestRun)
    return found


def test_a_function_that_makes_trainers_gets_the_indices_of_its_fold(tmp_path: Path) -> None:
    def make_trainer(trial: Any) -> TransformersTrainer:
        args = TrainingArguments(
            str(tmp_path), learning_rate=trial.params["learning_rate"], eval_strategy="epoch", report_to=[]
        )
        train, evaluation = Subset(DATA, trial.fold.train), Subset(DATA, trial.fold.evaluation)
        return TransformersTrainer(TwoLayers(), args, train_dataset=train, eval_dataset=evaluation)

    best = tuned(make_trainer, tmp_path, preflight=False)
    assert list(best.values or {}) == [0, 1, 2]
    assert len(set((best.values or {}).values())) == 3
    with pytest.raises(StudyError, match=r"refit=True needs hpsearch.Trainer: only make_trainer has the data"):
        tuned(make_trainer, tmp_path / "other", refit=True, preflight=False)


def test_a_plain_function_gets_the_indices_of_its_fold(tmp_path: Path) -> None:
    def train(trial: Any) -> float:
        return float(sum(trial.fold.evaluation)) + trial.params["x"] + 1000 * trial.seed

    best = tuned(train, tmp_path, space={"x": Float(0.0, 1.0)}, direction="minimize")
    assert [round(value - best.hyperparameters["x"]) for value in (best.values or {}).values()] == [
        42_000 + sum(evaluation) for _, evaluation in PAIRS
    ]


@pytest.mark.parametrize("kind", ["trainer", "function"])
def test_a_function_that_never_reads_its_fold_is_refused(kind: str, tmp_path: Path) -> None:
    def train(trial: Any) -> float:
        return float(trial.params["learning_rate"])

    def make_trainer(trial: Any) -> TransformersTrainer:
        args = TrainingArguments(str(tmp_path), learning_rate=trial.params["learning_rate"], report_to=[])
        return TransformersTrainer(TwoLayers(), args, train_dataset=DATA, eval_dataset=DATA)

    function = make_trainer if kind == "trainer" else train
    with pytest.raises(StudyError, match=rf"{function.__name__}\(trial\) never reads trial.fold"):
        tuned(function, tmp_path, direction="minimize")
    records = open_study(tmp_path / "study").records if (tmp_path / "study").exists() else []
    assert not any(each.is_counted for each in records)


def test_a_function_cannot_have_a_number_of_folds(tmp_path: Path) -> None:
    def train(trial: Any) -> float:
        raise AssertionError("it was called")

    with pytest.raises(StudyError, match="Only train has the data, so folds must be pairs of indices"):
        tuned(train, tmp_path, folds=5, direction="minimize")


def test_a_searched_seed_is_allowed_since_folds_do_not_change_it(tmp_path: Path) -> None:
    best = search(tmp_path, space={"seed": Int(1, 9)}, n_trials=2)
    assert {each.seed for each in further(best)} <= {each.seed for each in best.run_summary.records[:2]}


@pytest.mark.process
def test_workers_train_folds_in_parallel_with_the_numbers_of_one_process(tmp_path: Path) -> None:
    options: dict[str, Any] = {"sampler": "random", "n_trials": 3, "refit": True}
    alone, both = search(tmp_path / "alone", **options), search(tmp_path / "both", n_jobs=2, **options)
    assert _folds_by_trial(both)[int(both.run_id or 0)] == list((alone.values or {}).values())
    assert both.objective == alone.objective
    assert both.load_model().output.weight.tolist() == alone.load_model().output.weight.tolist()
