"""Any trainer of transformers is searched as ours is: isolated, pruned, resumed, selected, replayed, in workers."""

from __future__ import annotations

import errno
import gc
import io
import json
import logging
import os
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import optuna
import pytest
import torch
import transformers
from torch import distributed
from transformers import EarlyStoppingCallback, TrainerCallback

from hpsearch import (
    ArgumentError,
    BestRun,
    Categorical,
    CheckpointError,
    CommunicationError,
    Float,
    NoCompletedTrialError,
    SearchInterrupted,
    SearchPlan,
    StorageError,
    TrialState,
    open_study,
    tune,
)
from hpsearch.search.decisions.ladder import LADDER_OF_0_8_0
from tests.support.interrupting import InterruptsOnce
from tests.support.models import bert_classifier, classification_data
from tests.support.small_trainer import TwoLayers, small_trainer, transformers_trainer
from tests.support.small_tune import QUIET, RATE, curves, make_trainer, search


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
    waiting = search(space=space, n_trials=6, pruner=LADDER_OF_0_8_0)
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


@pytest.mark.process
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

    best = search(make, {"seed": Categorical([1, 2])}, n_trials=4, start_with=[{"seed": 1}, {"seed": 2}] * 2)
    by_seed: dict[int, set[str]] = {}
    for record, curve in zip(best.run_summary.records, curves(best), strict=True):
        by_seed.setdefault(record.params["seed"], set()).add(str(curve))
        assert record.seed == record.params["seed"]
    assert [len(each) for each in by_seed.values()] == [1, 1]
    assert by_seed[1] != by_seed[2]


def test_a_seed_that_make_trainer_chooses_is_set_before_its_model_is_made() -> None:
    def make(trial: Any) -> transformers.Trainer:
        return transformers_trainer("made", TwoLayers(), seed=trial.suggest_int("seed", 1, 3))

    plan = SearchPlan(make, n_trials=5, pruner=None, sampler=optuna.samplers.RandomSampler(seed=3), **QUIET)
    best = plan.run({"output_dir": "out"})
    by_seed: dict[int, set[str]] = {}
    for record, curve in zip(best.run_summary.records, curves(best), strict=True):
        by_seed.setdefault(record.params["seed"], set()).add(str(curve))
        assert record.seed == record.params["seed"]
    assert len(by_seed) > 1
    assert all(len(each) == 1 for each in by_seed.values())
    for number in (0, 1):
        replayed = plan.trainer({"output_dir": "out"}).replay(number=number, progress=False)
        assert replayed.is_equal, replayed.first_difference
    assert transformers_trainer("alone", best.load_model()).evaluate()["eval_loss"] == best.objective


def test_precision_of_one_trial_is_not_that_of_the_next() -> None:
    seen: list[Any] = []

    def make(trial: Any) -> transformers.Trainer:
        trainer = transformers_trainer("made", TwoLayers(), bf16=trial.params["bf16"])
        seen.append((trial.params["bf16"], trainer.accelerator.mixed_precision))
        return trainer

    search(make, {"bf16": Categorical([True, False])}, n_trials=4, start_with=[{"bf16": True}, {"bf16": False}] * 2)
    assert seen[1:] == [(True, "bf16"), *[(True, "bf16"), (False, "no")] * 2]  # the preflight has the first one's


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"eval_on_start": True},
        {"gradient_accumulation_steps": 2},
        {"load_best_model_at_end": True, "save_strategy": "epoch"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_trial_that_has_waited_ends_as_one_that_has_not(changes: dict[str, Any]) -> None:
    def make(trial: Any) -> transformers.Trainer:
        return transformers_trainer("made", TwoLayers(), num_train_epochs=6, **changes, **trial.params)

    waiting, whole = search(make, n_trials=5, pruner=LADDER_OF_0_8_0), search(make, n_trials=5, output_dir="whole")
    assert any(len(each.spans) > 1 for each in waiting.run_summary.records if each.state is TrialState.COMPLETE)
    for record in waiting.run_summary.records[:2]:  # later ones have other parameters
        [same] = [each for each in whole.run_summary.records if each.params == record.params]
        steps = [(each.step, each.value) for each in record.reports]
        assert steps == [(each.step, each.value) for each in same.reports][: len(steps)]


def interrupted_and_damaged(make: Callable[[Any], Any], damage: Callable[[Path], None]) -> BestRun:
    """Search, be interrupted in the last epoch, damage what is there, and go on."""

    def made(trial: Any) -> transformers.Trainer:
        trainer = make(trial)
        trainer.add_callback(InterruptsOnce(at=7))
        return trainer

    with pytest.raises(SearchInterrupted):
        search(made, n_trials=1)
    [checkpoint] = Path("out/study/run-0").glob("checkpoint-*")
    damage(checkpoint)
    return search(made, n_trials=1)


@pytest.mark.parametrize(
    "name", ["optimizer.pt", "model.safetensors", "rng_state.pth", "exact_resume_0.pth", "trainer_state.json"]
)
def test_a_damaged_checkpoint_costs_the_trial_nothing_but_time(name: str) -> None:
    def make(trial: Any) -> transformers.Trainer:
        return transformers_trainer("made", TwoLayers(), save_strategy="epoch", **trial.params)

    best = interrupted_and_damaged(make, lambda checkpoint: (checkpoint / name).write_bytes(b"half"))
    [record] = best.run_summary.records
    assert record.state is TrialState.COMPLETE, record.reason
    assert curves(best) == curves(search(make, n_trials=1, output_dir="undisturbed"))


class CannotGoOn(transformers.Trainer):
    """Raises an error while a checkpoint is read, in the place named, and counts the attempts."""

    error: Exception
    in_callback = False
    attempts = 0

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and not self.in_callback:
            CannotGoOn.attempts += 1
            raise self.error


class CannotBegin(TrainerCallback):
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if Path("once").exists():
            CannotGoOn.attempts += 1
            raise CannotGoOn.error


@pytest.mark.parametrize(
    ("error", "in_callback", "said"),
    [
        pytest.param(OSError(errno.ENOSPC, "No space left on device"), False, "No space left", id="disk"),
        pytest.param(distributed.DistNetworkError("reset by peer"), False, "reset by peer", id="peer"),
        pytest.param(ArgumentError("no such value"), False, "no such value", id="ours"),
        pytest.param(RuntimeError("no server for the tracker"), True, "no server for the tracker", id="callback"),
    ],
)
def test_an_error_that_is_not_of_the_checkpoint_costs_no_checkpoint(
    error: Exception, in_callback: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CannotGoOn, "error", error, raising=False)
    monkeypatch.setattr(CannotGoOn, "in_callback", in_callback)
    monkeypatch.setattr(CannotGoOn, "attempts", 0)

    def make(trial: Any) -> transformers.Trainer:
        callbacks = [CannotBegin()] if in_callback else []
        model = TwoLayers()
        return transformers_trainer("made", model, *callbacks, kind=CannotGoOn, save_strategy="epoch", **trial.params)

    with pytest.raises((StorageError, CommunicationError, NoCompletedTrialError, ArgumentError)) as ended:
        interrupted_and_damaged(make, lambda checkpoint: None)
    assert re.search(said, f"{type(ended.value).__name__}: {ended.value}")
    assert CannotGoOn.attempts == 1


def test_a_half_done_trial_begins_again_without_what_nobody_reads_any_more() -> None:
    def make(trial: Any) -> transformers.Trainer:
        arguments = {"learning_rate": trial.params["learning_rate"]}
        if not Path("once").exists():
            arguments["weight_decay"] = trial.params["weight_decay"]
        trainer = transformers_trainer("made", TwoLayers(), save_strategy="epoch", **arguments)
        trainer.add_callback(InterruptsOnce(at=7))
        return trainer

    with pytest.raises(SearchInterrupted):
        search(make, {**RATE, "weight_decay": Float(0.01, 0.1)}, n_trials=1)
    [record] = search(make, n_trials=1).run_summary.records
    assert record.state is TrialState.COMPLETE, record.reason
    assert curves(search(make, n_trials=1, output_dir="undisturbed")) == [[each.value for each in record.reports]]


def test_weights_that_a_callback_unfreezes_are_kept() -> None:
    class Unfreezes(TrainerCallback):
        def on_epoch_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            model.hidden.requires_grad_(True)

    def make(trial: Any) -> transformers.Trainer:
        model = TwoLayers()
        model.hidden.requires_grad_(False)
        return transformers_trainer("made", model, Unfreezes(), num_train_epochs=4, **trial.params)

    best = search(make, scope="all")
    assert transformers_trainer("alone", best.load_model()).evaluate()["eval_loss"] == best.objective


def test_what_the_evaluations_of_a_callback_give_is_no_report() -> None:
    class LooksAtTraining(TrainerCallback):
        trainer: Any = None

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.trainer.evaluate(self.trainer.train_dataset, metric_key_prefix="train")

    def make(trial: Any) -> transformers.Trainer:
        looks = LooksAtTraining()
        looks.trainer = transformers_trainer("made", TwoLayers(), looks, **trial.params)
        return looks.trainer

    assert curves(search(make)) == curves(search(output_dir="without"))


def test_defaults_to_start_with_are_those_of_the_parameters() -> None:
    space = {"learning_rate": Float(1e-3, 0.3, log=True, default=0.02), "weight_decay": Float(0.0, 0.1)}
    best = search(space=space, n_trials=1, start_with="defaults")
    assert best.hyperparameters["learning_rate"] == 0.02
    session = json.loads(Path("out/study/study.json").read_text())["sessions"][0]["arguments"]
    assert (session["learning_rate"], session["weight_decay"]) == (5e-5, 0.0)  # not those that were drawn to look


def test_a_model_that_has_changed_since_is_not_given_half_of_the_weights() -> None:
    layers = [1]

    def make(trial: Any) -> transformers.Trainer:
        args = transformers.TrainingArguments(
            "made", use_cpu=True, eval_strategy="epoch", num_train_epochs=1, disable_tqdm=True, **trial.params
        )
        data = classification_data(16)
        return transformers.Trainer(bert_classifier(layers=layers[0]), args, train_dataset=data, eval_dataset=data)

    best = search(make, n_trials=1)
    best.load_model()
    layers[0] = 2
    with pytest.raises(CheckpointError, match="belong to another model: missing"):
        best.load_model()


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
    assert len(models) == 5
    assert all(each() is None for each in models)


def test_what_transformers_sets_in_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(trial: Any) -> transformers.Trainer:
        trainer = make_trainer(trial)
        os.environ["ACCELERATE_DYNAMO_MODE"] = "default"  # as torch_compile=True does
        del os.environ["ACCELERATE_DYNAMO_USE_DYNAMIC"]
        return trainer

    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_DYNAMIC", "0")
    search(make, n_trials=1)
    assert "ACCELERATE_DYNAMO_MODE" not in os.environ
    assert os.environ["ACCELERATE_DYNAMO_USE_DYNAMIC"] == "0"


def test_the_random_streams_of_the_program_are_left_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    search(n_trials=1).load_model()
    assert torch.equal(torch.get_rng_state(), before)


class OwnFormat(transformers.Trainer):
    """Writes and reads its weights in a way of its own, as the trainer of sentence-transformers does."""

    def _save(self, output_dir: Any = None, state_dict: Any = None) -> None:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        torch.save(self.model.state_dict(), Path(output_dir, "own.pt"))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self.model.load_state_dict(torch.load(Path(resume_from_checkpoint, "own.pt"), weights_only=True))


def test_weights_are_kept_in_the_format_of_the_trainer() -> None:
    def make(trial: Any) -> transformers.Trainer:
        return transformers_trainer("made", TwoLayers(), kind=OwnFormat, num_train_epochs=4, **trial.params)

    best = search(make, n_trials=4, pruner=LADDER_OF_0_8_0, scope="all")
    assert Path(str(best.checkpoint), "own.pt").is_file()
    assert transformers_trainer("alone", best.load_model()).evaluate()["eval_loss"] == best.objective


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


def test_bars_and_warnings_of_libraries_are_shown_while_the_first_trainer_is_made_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[bool] = []
    shown = io.StringIO()

    def make(trial: Any) -> transformers.Trainer:
        drawn.append(not datasets.are_progress_bars_disabled())
        logging.getLogger("trl").warning("the tokenizer has new tokens")
        logging.getLogger("mine").warning("my own")
        return make_trainer(trial)

    handler = logging.StreamHandler(shown)
    logging.getLogger().addHandler(handler)
    datasets.enable_progress_bars()
    try:
        search(make, n_trials=2)
    finally:
        logging.getLogger().removeHandler(handler)
    assert drawn == [True, False, False, False], "before the search, in its preflight, and twice in it"
    assert not datasets.are_progress_bars_disabled()
    assert shown.getvalue().count("new tokens") == 1
    assert shown.getvalue().count("my own") == 4


class EvaluatesByKeyword(transformers.Trainer):
    """Takes no data by position, as trainers of other libraries may."""

    def evaluate(self, **given: Any) -> dict[str, float]:
        return dict(super().evaluate(**given))


class HasItsOwnData(transformers.Trainer):
    """Knows nothing given from None."""

    def evaluate(self, *given: Any, **named: Any) -> dict[str, float]:
        assert given != (None,)
        return dict(super().evaluate(*given, **named))


@pytest.mark.parametrize("kind", [EvaluatesByKeyword, HasItsOwnData])
def test_a_trainer_is_evaluated_as_its_class_does(kind: type[transformers.Trainer]) -> None:
    def make(trial: Any) -> transformers.Trainer:
        return transformers_trainer("made", TwoLayers(), kind=kind, eval_strategy="no", **trial.params)

    best = search(make, n_trials=1, preflight=kind is HasItsOwnData)
    assert [record.state for record in best.run_summary.records] == [TrialState.COMPLETE]


@pytest.mark.parametrize(
    ("space", "shown"),
    [
        ({}, "some/weights (BertForSequenceClassification)"),
        ({"weights": Categorical(["some/weights"])}, "BertForSequenceClassification"),
    ],
)
def test_the_model_and_its_data_are_named_and_the_weights_only_if_they_are_those_of_all_trials(
    space: dict[str, Any], shown: str
) -> None:
    info = datasets.DatasetInfo(dataset_name="glue", config_name="sst2")

    def make(trial: Any) -> transformers.Trainer:
        model = bert_classifier()
        model.config._name_or_path = trial.params["weights"] if space else "some/weights"
        args = transformers.TrainingArguments(
            "made", use_cpu=True, max_steps=1, learning_rate=trial.params["learning_rate"]
        )
        train = datasets.Dataset.from_list(list(classification_data(8)), info=info, split="train")
        return transformers.Trainer(model, args, train_dataset=train, eval_dataset=classification_data(8))

    search(make, {**RATE, **space}, n_trials=1, compute_objective=None, direction=None)
    [session] = json.loads(Path("out/study/study.json").read_text())["sessions"]
    assert session["names"] == {"model": shown, "train_dataset": "glue sst2 train"}
