"""Any trainer of transformers is searched as ours is: isolated, pruned, resumed, selected, replayed, in workers."""

from __future__ import annotations

import gc
import json
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
import transformers
from transformers import EarlyStoppingCallback

from hpsearch import (
    BestRun,
    Categorical,
    Float,
    SearchPlan,
    SpaceError,
    StudyError,
    TrialState,
    open_study,
    tune,
)
from tests.models import bert_classifier, classification_data
from tests.search.small_trainer import CountsModels, TwoLayers, small_trainer, transformers_trainer

RATE = {"learning_rate": Float(1e-3, 0.3, log=True)}
QUIET = {"progress": False, "compute_objective": "loss", "direction": "minimize"}


def make_trainer(trial: Any) -> transformers.Trainer:
    return transformers_trainer("made", TwoLayers(), **trial.params)


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def search(make: Callable[[Any], Any] = make_trainer, space: Any = None, **options: Any) -> BestRun:
    given = {**QUIET, "n_trials": 3, "pruner": None, "output_dir": "out", **options}
    best: BestRun = tune(make, RATE if space is None else space, **given)
    return best


def curves(best: BestRun) -> list[list[float]]:
    return [[report.value for report in record.reports] for record in best.run_summary.records]


def test_each_trial_makes_the_numbers_that_its_trainer_makes_alone() -> None:
    best = search()
    for record in best.run_summary.records:
        transformers.set_seed(record.seed)
        alone = transformers_trainer("alone", TwoLayers(), **record.params)
        alone.train()
        losses = [entry["eval_loss"] for entry in alone.state.log_history if "eval_loss" in entry]
        assert [report.value for report in record.reports] == losses
        assert record.state is TrialState.COMPLETE


def test_the_trials_are_those_of_our_own_trainer_with_the_same_seed() -> None:
    best = search()
    ours = small_trainer("ours", model_init=lambda: TwoLayers()).hyperparameter_search(
        RATE, n_trials=3, pruner=None, **QUIET
    )
    assert [each.params for each in best.run_summary.records] == [each.params for each in ours.run_summary.records]
    for one, other in zip(curves(best), curves(ours), strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def test_the_best_model_is_the_one_that_was_selected() -> None:
    best = search(scope="all", n_trials=4)
    model = best.load_model()
    points = transformers_trainer("alone", model)
    assert points.evaluate()["eval_loss"] == best.objective
    assert not model.training


def test_weights_of_a_report_before_the_last_are_kept_without_any_checkpoint_of_the_trainer() -> None:
    def too_fast(trial: Any) -> transformers.Trainer:
        rate = trial.params["learning_rate"]
        return transformers_trainer("made", TwoLayers(), learning_rate=rate, num_train_epochs=6, weight_decay=0.1)

    best = search(too_fast, {"learning_rate": Float(0.5, 0.9)}, scope="all", n_trials=1)
    [record] = best.run_summary.records
    losses = [report.value for report in record.reports]
    assert losses.index(min(losses)) < 5, "this is about a report before the last"
    assert transformers_trainer("alone", best.load_model()).evaluate()["eval_loss"] == min(losses)


def test_trials_wait_at_rungs_and_go_on_with_the_same_numbers() -> None:
    space = {**RATE, "num_train_epochs": Categorical([4])}
    waiting = search(space=space, n_trials=6, pruner="rungs")
    states = [record.state for record in waiting.run_summary.records]
    assert states.count(TrialState.PRUNED) >= 2
    assert TrialState.COMPLETE in states
    whole = search(space=space, n_trials=6, pruner=None, output_dir="whole")
    by_params = {
        json.dumps(record.params): [each.value for each in record.reports] for record in whole.run_summary.records
    }
    for record in waiting.run_summary.records:
        if json.dumps(record.params) in by_params:
            reports = [each.value for each in record.reports]
            assert reports == by_params[json.dumps(record.params)][: len(reports)]


def test_workers_make_the_same_trials_as_this_process() -> None:
    here = search(n_trials=4, sampler=optuna.samplers.RandomSampler(seed=3))
    there = search(n_trials=4, sampler=optuna.samplers.RandomSampler(seed=3), output_dir="workers", n_jobs=2)
    assert curves(there) == curves(here)
    assert there.hyperparameters == here.hyperparameters
    assert there.load_model().hidden.weight.equal(here.load_model().hidden.weight)


def test_a_trial_is_replayed_with_the_same_reports() -> None:
    plan = SearchPlan(make_trainer, RATE, n_trials=3, pruner=None, **QUIET)
    best = plan.run({"output_dir": "out"})
    replayed = plan.trainer({"output_dir": "out"}).replay(number=1, progress=False)
    assert replayed.is_equal, replayed.first_difference
    assert replayed.original == best.run_summary.records[1]


def test_the_same_call_goes_on_with_the_study() -> None:
    search(n_trials=2)
    best = search(n_trials=4)
    assert len(best.run_summary.records) == 4
    assert curves(best) == curves(search(n_trials=4, output_dir="at once"))


def test_make_trainer_may_suggest_by_itself() -> None:
    def suggests(trial: Any) -> transformers.Trainer:
        rate = trial.suggest_float("learning_rate", 1e-3, 0.3, log=True)
        return transformers_trainer("made", TwoLayers(trial.suggest_int("hidden", 2, 8)), learning_rate=rate)

    best = tune(suggests, output_dir="out", n_trials=3, pruner=None, **QUIET)
    assert set(best.hyperparameters) == {"learning_rate", "hidden"}
    assert best.load_model().hidden.out_features == best.hyperparameters["hidden"]


def test_the_seed_of_a_trial_is_set_before_its_model_is_made() -> None:
    def make(trial: Any) -> transformers.Trainer:
        return transformers_trainer("made", TwoLayers(), seed=trial.params["seed"])

    best = search(make, {"seed": Categorical([1, 2])}, n_trials=4, sampler=optuna.samplers.RandomSampler(seed=3))
    by_seed: dict[int, set[str]] = {}
    for record, curve in zip(best.run_summary.records, curves(best), strict=True):
        by_seed.setdefault(record.params["seed"], set()).add(str(curve))
        assert record.seed == record.params["seed"]
    assert [len(each) for each in by_seed.values()] == [1, 1]
    assert by_seed[1] != by_seed[2]


def test_precision_of_one_trial_is_not_that_of_the_next() -> None:
    seen: list[Any] = []

    def make(trial: Any) -> transformers.Trainer:
        trainer = transformers_trainer("made", TwoLayers(), bf16=trial.params["bf16"])
        seen.append((trial.params["bf16"], trainer.accelerator.mixed_precision))
        return trainer

    search(make, {"bf16": Categorical([True, False])}, n_trials=4, start_with=[{"bf16": True}, {"bf16": False}] * 2)
    assert seen[1:] == [(True, "bf16"), (False, "no")] * 2


def test_early_stopping_is_counted_anew_in_each_trial_and_ends_it() -> None:
    def make(trial: Any) -> transformers.Trainer:
        stops = EarlyStoppingCallback(early_stopping_patience=1)
        settings = {"metric_for_best_model": "loss", "greater_is_better": False, "num_train_epochs": 8}
        return transformers_trainer("made", TwoLayers(), stops, **settings, save_strategy="epoch", **trial.params)

    best = search(make, {"learning_rate": Float(0.3, 0.9)})
    for record in best.run_summary.records:
        losses = [report.value for report in record.reports]
        assert record.state is TrialState.COMPLETE
        assert len(losses) < 8
        assert losses[-1] > min(losses[:-1])


def test_a_trial_that_fails_is_recorded_and_the_search_goes_on() -> None:
    def make(trial: Any) -> transformers.Trainer:
        if trial.params["layers"] == 3:
            raise RuntimeError("three layers do not fit")
        return transformers_trainer("made", TwoLayers(trial.params["layers"]))

    best = search(
        make,
        {"layers": Categorical([2, 3])},
        n_trials=6,
        sampler=optuna.samplers.RandomSampler(seed=3),
        max_failures=None,
    )
    failed = [each for each in best.run_summary.records if each.state is TrialState.FAILED]
    assert failed
    assert all(each.reason == "RuntimeError: three layers do not fit" for each in failed)
    assert best.hyperparameters == {"layers": 2}


def test_nothing_of_a_trial_is_left_in_memory() -> None:
    models: list[weakref.ref[Any]] = []

    def make(trial: Any) -> transformers.Trainer:
        assert all(each() is None for each in models), "the model of an earlier trial is still there"
        model = TwoLayers()
        models.append(weakref.ref(model))
        return transformers_trainer("made", model, **trial.params)

    search(make)
    gc.collect()
    assert len(models) == 4
    assert all(each() is None for each in models)


def test_what_transformers_sets_in_the_environment_is_put_back() -> None:
    def make(trial: Any) -> transformers.Trainer:
        os.environ["ACCELERATE_DYNAMO_BACKEND"] = "inductor"  # as torch_compile=True does
        trainer = make_trainer(trial)
        del os.environ["ACCELERATE_DYNAMO_BACKEND"]
        os.environ["ACCELERATE_DYNAMO_MODE"] = "default"
        return trainer

    search(make)
    assert "ACCELERATE_DYNAMO_MODE" not in os.environ


def test_the_random_streams_of_the_program_are_left_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    search(n_trials=1).load_model()
    assert torch.equal(torch.get_rng_state(), before)


def test_trackers_name_each_trial() -> None:
    def make(trial: Any) -> transformers.Trainer:
        return transformers_trainer("made", TwoLayers(), report_to=["tensorboard"], **trial.params)

    search(make, n_trials=2)
    assert [len(list(Path("out/study", run).glob("events.*"))) for run in ("run-0", "run-1")] == [1, 1]


def test_a_model_of_transformers_is_kept_as_transformers_keeps_it() -> None:
    train, dev = classification_data(32), classification_data(16, seed=1)

    def make(trial: Any) -> transformers.Trainer:
        args = transformers.TrainingArguments(
            "made", use_cpu=True, eval_strategy="epoch", save_strategy="epoch", num_train_epochs=2, **trial.params
        )
        return transformers.Trainer(bert_classifier(), args, train_dataset=train, eval_dataset=dev)

    best = search(make, compute_objective=None, direction=None)
    assert type(best.load_model()) is transformers.BertForSequenceClassification
    assert best.checkpoint is not None
    again = transformers.BertForSequenceClassification.from_pretrained(best.checkpoint)
    assert again.classifier.weight.equal(best.load_model().classifier.weight)
    assert open_study("out/study").best()[0].number == int(best.run_id or -1)


# Mistakes are found before the first trial.


def assert_refused(match: str, make: Callable[[Any], Any], space: Any = None, error: Any = StudyError, **options: Any):
    with pytest.raises(error, match=match):
        search(make, space, **options)
    assert not Path("out/study").exists()


def test_a_parameter_that_nobody_reads_is_refused() -> None:
    assert_refused(
        r"Nobody reads the parameter 'weight_decay': make_trainer\(trial\) must look it up",
        lambda trial: transformers_trainer("made", TwoLayers(), learning_rate=trial.params["learning_rate"]),
        {**RATE, "weight_decay": Float(0.0, 0.1)},
        SpaceError,
    )


def test_a_misspelt_parameter_is_named() -> None:
    assert_refused(
        r"raised KeyError: 'learning_rat'.* Did you mean 'learning_rate'\?",
        lambda trial: transformers_trainer("made", TwoLayers(), learning_rate=trial.params["learning_rat"]),
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"auto_find_batch_size": True}, "auto_find_batch_size=True: it would train trials with other batch sizes"),
        ({"eval_dataset": None, "eval_strategy": "no"}, "needs an eval_dataset"),
        ({"train_dataset": None}, "needs a train_dataset"),
    ],
)
def test_a_trainer_that_cannot_be_searched_is_refused(changes: dict[str, Any], told: str) -> None:
    assert_refused(told, lambda trial: transformers_trainer("made", TwoLayers(), **changes, **trial.params))


def test_something_else_than_a_trainer_of_transformers_is_refused() -> None:
    assert_refused("must return a transformers.Trainer, but returned None", lambda trial: trial.params and None)
    ours = lambda trial: small_trainer("made", model_init=CountsModels(), **trial.params)  # noqa: E731
    assert_refused("returned an hpsearch.Trainer, which searches itself", ours)
    with pytest.raises(StudyError, match="make_trainer must be a function of a trial, but got 3"):
        tune(3)  # type: ignore[arg-type]


def test_what_trials_would_share_is_refused() -> None:
    model, stops = TwoLayers(), EarlyStoppingCallback()
    args = transformers_trainer("made", model).args

    def same_args(trial: Any) -> transformers.Trainer:
        args.learning_rate = trial.params["learning_rate"]
        data = transformers_trainer("made", model)
        return transformers.Trainer(TwoLayers(), args, train_dataset=data.train_dataset, eval_dataset=data.eval_dataset)

    for part, make in {
        "model": lambda trial: transformers_trainer("made", model, **trial.params),
        "args": same_args,
        "callback EarlyStoppingCallback": lambda trial: transformers_trainer(
            "made", TwoLayers(), stops, metric_for_best_model="loss", **trial.params
        ),
    }.items():
        with pytest.raises(StudyError, match=f"returned the same {part} as for an earlier trial"):
            search(make, output_dir=part)


@pytest.mark.parametrize("option", [{"oom_fallback": True}, {"paused_memory": 1e6}])
def test_what_needs_our_trainer_is_refused(option: dict[str, Any]) -> None:
    assert_refused(f"{next(iter(option))}=.* needs hpsearch.Trainer", make_trainer, **option)


def test_an_error_of_make_trainer_says_with_what_it_was_called() -> None:
    def fails(trial: Any) -> transformers.Trainer:
        raise OSError(f"no model of that name, {len(trial.params)}")

    assert_refused(r"raised OSError: no model of that name, 1\. It was called with \{'learning_rate': 0\.", fails)


def test_arguments_are_for_make_trainer_to_set() -> None:
    plan = SearchPlan(make_trainer, RATE)
    with pytest.raises(Exception, match="seed cannot be set from outside: make_trainer"):
        plan.trainer({"seed": 3})
