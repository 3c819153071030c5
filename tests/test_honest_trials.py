"""What today's searches get wrong must hold here; each test is named after what must hold.

The comments give the row of the list of the peer's defects that a test answers.
"""

from __future__ import annotations

import gc
import json
import math
import weakref
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from transformers import TrainerCallback

from hpsearch import (
    Categorical,
    EarlyStoppingCallback,
    Float,
    Int,
    ObjectiveError,
    SearchSpace,
    SpaceError,
    StudyError,
    Trainer,
    TrainingArguments,
    TrialState,
)
from tests.support.clock import Clock
from tests.support.models import accuracy, bert_classifier, classification_data, weights_of
from tests.support.searching import outcome_of, without_result


def make_trainer(folder: Path, model_init: Any = bert_classifier, callbacks: Any = None, **changes: Any) -> Trainer:
    arguments: dict[str, Any] = {
        "learning_rate": 1e-3,
        "num_train_epochs": 2,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "use_cpu": True,
        **changes,
    }
    return Trainer(
        model_init=model_init,
        args=TrainingArguments(str(folder), **arguments),
        train_dataset=classification_data(40),
        eval_dataset=classification_data(20, seed=1),
        compute_metrics=accuracy,
        callbacks=callbacks,
    )


def search(trainer: Trainer, space: Any, n_trials: int, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "compute_objective": "eval_loss",
        "pruner": "none",
        "storage": "journal",
        "preflight": False,  # what is counted and noted is of trials
        "progress": False,
        **options,
    }
    return trainer.hyperparameter_search(space, n_trials=n_trials, **settings)


def records_of(best: Any) -> list[Any]:
    return best.run_summary.records


class AlwaysPrune(optuna.pruners.BasePruner):
    """Has seen enough at once."""

    def prune(self, study: Any, trial: Any) -> bool:
        return True


LEARNING_RATE = {"learning_rate": Float(1e-4, 1e-2, log=True)}


class Fails(TrainerCallback):
    """Raises in the trial whose learning rate is asked for, or in the n-th training."""

    def __init__(self, error: Exception, at: int) -> None:
        self.error, self.at, self.trainings = error, at, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainings += 1
        if self.trainings - 1 == self.at:
            raise self.error


@pytest.mark.parametrize("precision", [{}, {"bf16": True}])
@pytest.mark.parametrize("ending", ["complete", "pruned", "failed"])
def test_nothing_of_a_trial_is_alive_when_the_next_model_is_built(
    tmp_path: Path, ending: str, precision: dict[str, Any]
) -> None:
    """Row 1: the run is dropped whole, whichever way the trial ended, without waiting for the garbage collector."""
    models: list[weakref.ref[Any]] = []
    optimizers: list[weakref.ref[Any]] = []
    alive_at_init: list[tuple[int, int]] = []

    class NotesOptimizer(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
            optimizers.append(weakref.ref(optimizer))

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if ending == "failed" and state.global_step == 2:
                error = RuntimeError("out of luck")
                raise error from error

    def model_init() -> Any:
        alive_at_init.append(
            (sum(each() is not None for each in models), sum(each() is not None for each in optimizers))
        )
        model = bert_classifier()
        models.append(weakref.ref(model))
        return model

    gc.collect()
    gc.disable()
    try:
        best = outcome_of(
            search,
            make_trainer(tmp_path, model_init, callbacks=[NotesOptimizer()], **precision),
            LEARNING_RATE,
            4,
            pruner=AlwaysPrune() if ending == "pruned" else "none",
        )
        assert alive_at_init == [(0, 0)] * 4
        assert [each() for each in models] == [None] * 4
    finally:
        gc.enable()
    assert {record.state.value for record in records_of(best)} == {ending}


def test_live_tensors_after_a_search_are_none_of_the_models(tmp_path: Path) -> None:
    """Row 1: count every live tensor of the models' odd size."""
    width = 37

    def model_init() -> torch.nn.Module:
        class Odd(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(12, width)
                self.head = torch.nn.Linear(width, 2)

            def forward(self, input_ids: torch.Tensor, labels: Any = None) -> dict[str, torch.Tensor]:
                logits = self.head(self.layer(input_ids.float() / 100))
                return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

        return Odd()

    search(make_trainer(tmp_path, model_init), LEARNING_RATE, 2)
    gc.collect()
    live = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor) and width in each.shape]
    assert live == []


@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA out of memory"), MemoryError("no memory"), ValueError("bad batch")]
)
def test_a_failing_trial_is_recorded_with_its_reason_and_the_study_goes_on(tmp_path: Path, error: Exception) -> None:
    """Row 2."""
    best = search(make_trainer(tmp_path, callbacks=[Fails(error, at=1)]), LEARNING_RATE, 3)
    states = [record.state for record in records_of(best)]
    assert states == [TrialState.COMPLETE, TrialState.FAILED, TrialState.COMPLETE]
    failed = records_of(best)[1]
    assert failed.reason == f"{type(error).__name__}: {error}"
    assert "on_train_begin" in failed.traceback
    assert best.run_id in ("0", "2")


def test_a_metric_for_best_model_that_is_none_ends_the_search_in_its_first_trial(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, metric_for_best_model="acuracy")
    with pytest.raises(ObjectiveError, match=r"eval_acuracy.*eval_accuracy"):
        search(trainer, LEARNING_RATE, 3)
    assert [path.name for path in (tmp_path / "study").glob("run-*")] == ["run-0"]


def test_a_search_refused_in_its_first_trial_can_be_corrected_and_run_again(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    with pytest.raises(ObjectiveError, match="Did you mean 'eval_accuracy'"):
        search(trainer, LEARNING_RATE, 2, compute_objective="acuracy")
    assert len(records_of(search(trainer, LEARNING_RATE, 2, compute_objective="accuracy"))) == 2


def test_arguments_that_changed_between_sessions_are_said(tmp_path: Path, capsys: Any) -> None:
    search(make_trainer(tmp_path), LEARNING_RATE, 1)
    search(make_trainer(tmp_path, num_train_epochs=3), LEARNING_RATE, 2, progress=True)
    assert "CHANGED since earlier trials: num_train_epochs 2 -> 3" in capsys.readouterr().out


def test_without_a_limit_every_trial_keeps_its_scoped_weights(tmp_path: Path) -> None:
    best = search(make_trainer(tmp_path), LEARNING_RATE, 3, keep_checkpoints=None)
    assert all(record.checkpoint is not None and record.checkpoint.is_dir() for record in records_of(best))
    assert best.load_model() is not None


@pytest.mark.feature(13)
def test_hyperparameters_are_what_was_trained_with_under_the_names_of_the_arguments(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    best = search(trainer, lambda trial: {"learning_rate": trial.suggest_float("lr", 1e-4, 1e-2)}, 1)
    assert list(best.hyperparameters) == ["learning_rate"]
    again = trainer.with_arguments(**best.hyperparameters)
    again.train()
    assert again.evaluate()["eval_loss"] == best.objective


def test_model_init_cannot_suggest_a_training_argument(tmp_path: Path) -> None:
    def model_init(trial: Any) -> Any:
        trial.suggest_float("learning_rate", 0.1, 0.2)
        return bert_classifier()

    with pytest.raises(SpaceError, match="model_init suggested 'learning_rate'"):
        search(make_trainer(tmp_path, model_init), {"seed": Int(1, 5)}, 1)


@pytest.mark.parametrize("strategy", ["no", "epoch"])
def test_the_best_model_is_there_after_the_search(tmp_path: Path, strategy: str) -> None:
    """Row 3: with the value that was reported, also when nothing is saved during training."""
    trainer = make_trainer(tmp_path, save_strategy=strategy)
    best = search(trainer, LEARNING_RATE, 3)
    assert best.checkpoint is not None
    assert best.checkpoint.is_dir()
    judge = Trainer(
        model=best.load_model(), args=trainer.args, eval_dataset=trainer.eval_dataset, compute_metrics=accuracy
    )
    assert judge.evaluate()["eval_loss"] == pytest.approx(best.objective, rel=1e-6)


def test_without_kept_checkpoints_there_is_no_model_and_the_error_says_why(tmp_path: Path) -> None:
    best = search(make_trainer(tmp_path), LEARNING_RATE, 1, keep_checkpoints=0)
    assert best.checkpoint is None
    with pytest.raises(FileNotFoundError, match="keep_checkpoints=0"):
        best.load_model()


@pytest.mark.feature(11)
@pytest.mark.parametrize("scope", ["last", "all", "avg"])
def test_value_and_checkpoint_and_reports_follow_one_scope(tmp_path: Path, scope: str) -> None:
    """Row 4: what is reported is what was selected, and the weights are those of the selected report."""
    trainer = make_trainer(tmp_path, num_train_epochs=4, learning_rate=2e-2)
    best = search(trainer, {"seed": Int(1, 100)}, 3, scope=scope)
    record = next(each for each in records_of(best) if str(each.number) == best.run_id)
    values = [report.value for report in record.reports]
    expected = {"last": values[-1], "all": min(values), "avg": sum(values) / len(values)}[scope]
    assert best.objective == pytest.approx(expected)
    weights_from = {"last": len(values) - 1, "all": values.index(min(values)), "avg": len(values) - 1}[scope]
    assert best.checkpoint.name == f"checkpoint-{record.reports[weights_from].step}"
    judge = Trainer(
        model=best.load_model(), args=trainer.args, eval_dataset=trainer.eval_dataset, compute_metrics=accuracy
    )
    assert judge.evaluate()["eval_loss"] == pytest.approx(values[weights_from], rel=1e-6)
    on_disk = json.loads((tmp_path / "study" / "best.json").read_text())
    assert on_disk["value"] == best.objective
    assert on_disk["scope"] == scope


class NotesArguments(TrainerCallback):
    """Notes the arguments each training had."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append((args.lr_scheduler_type.value, args.warmup_steps, args.label_smoothing_factor))


@pytest.mark.feature(15)
def test_a_conditional_parameter_of_one_trial_is_not_set_in_another(tmp_path: Path) -> None:
    """Rows 5 and 22: arguments are replaced, never mutated; the trainer is as it was before."""
    notes = NotesArguments()
    trainer = make_trainer(tmp_path, callbacks=[notes])
    before = trainer.args.to_dict()
    space = {"lr_scheduler_type": Categorical({"linear": {}, "cosine": {"warmup_steps": Int(3, 5)}})}
    search(trainer, space, 8)
    assert {kind for kind, _, _ in notes.seen} == {"linear", "cosine"}
    for kind, warmup, _ in notes.seen:
        assert (warmup >= 3) == (kind == "cosine")
    assert trainer.args.to_dict() == before


@pytest.mark.feature(15)
def test_the_trials_own_seed_builds_its_model(tmp_path: Path) -> None:
    """Row 6: configure, seed, build."""
    initial: list[dict[str, torch.Tensor]] = []

    def model_init() -> Any:
        model = bert_classifier()
        initial.append(weights_of(model))
        return model

    best = search(make_trainer(tmp_path, model_init), {"seed": Int(1, 1000)}, 3)
    for record, weights in zip(records_of(best), initial, strict=True):
        torch.manual_seed(record.params["seed"])
        expected = weights_of(bert_classifier())
        assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("name", "value"), [("label_smoothing_factor", 0.4), ("neftune_noise_alpha", 50.0), ("weight_decay", 0.9)]
)
def test_every_argument_in_the_space_has_its_effect(tmp_path: Path, name: str, value: float) -> None:
    """Row 7: nothing was derived from the arguments when the trainer was made."""
    space = {name: Categorical((value,))}
    searched = search(make_trainer(tmp_path / "searched"), space, 1).objective
    plain = search(make_trainer(tmp_path / "plain"), {"seed": Categorical((42,))}, 1).objective
    direct = make_trainer(tmp_path / "direct", **{name: value})
    direct.train()
    assert searched != plain
    assert searched == direct.state.log_history[-2]["eval_loss"]


@pytest.mark.feature(14)
def test_values_are_cast_by_the_fields_annotation_without_loss_or_refused(tmp_path: Path) -> None:
    """Row 8."""
    trainer = make_trainer(tmp_path)
    assert trainer.with_arguments(warmup_steps=0.1).args.warmup_steps == 0.1
    assert trainer.with_arguments(max_steps=3.0).args.max_steps == 3
    with pytest.raises(SpaceError, match="'False'"):
        search(trainer, {"fp16": Categorical(("False",))}, 1)
    with pytest.raises(SpaceError, match=r"3\.9"):
        search(trainer, {"max_steps": Float(1.0, 3.9)}, 1)


def test_a_misspelt_parameter_is_an_error_with_the_nearest_name(tmp_path: Path) -> None:
    """Row 9: from a static space before the first trial, from a define-by-run function in it."""
    with pytest.raises(SpaceError, match=r"lerning_rate.*Did you mean 'learning_rate'"):
        search(make_trainer(tmp_path), {"lerning_rate": Float(1e-4, 1e-2)}, 1)
    with pytest.raises(SpaceError, match=r"lerning_rate.*Did you mean 'learning_rate'"):
        search(make_trainer(tmp_path), lambda trial: {"lerning_rate": trial.suggest_float("lerning_rate", 0.1, 1)}, 3)


def test_the_default_objective_says_what_it_sums_skips_speed_and_maximises(tmp_path: Path, capsys: Any) -> None:
    """Row 10."""

    def two_metrics(prediction: Any) -> dict[str, float]:
        value = accuracy(prediction)["accuracy"]
        return {"accuracy": value, "f1": value / 2}

    trainer = make_trainer(tmp_path)
    trainer.compute_metrics = two_metrics
    best = trainer.hyperparameter_search(LEARNING_RATE, n_trials=3)
    metrics = [record.reports[-1].metrics for record in records_of(best)]
    assert best.objective == max(each["eval_accuracy"] + each["eval_f1"] for each in metrics)
    assert "maximize the sum of all metrics" in capsys.readouterr().out


def test_several_evaluation_sets_make_one_report_and_any_of_their_metrics_can_be_the_objective(tmp_path: Path) -> None:
    """Row 10."""
    trainer = make_trainer(tmp_path)
    trainer.eval_dataset = {"easy": classification_data(10, seed=1), "hard": classification_data(10, seed=2)}
    best = search(trainer, LEARNING_RATE, 2, compute_objective="eval_hard_loss")
    for record in records_of(best):
        assert len(record.reports) == 2
        assert record.value == record.reports[-1].metrics["eval_hard_loss"]
        assert "eval_easy_loss" in record.reports[-1].metrics


@pytest.mark.slow
def test_trials_are_compared_after_the_same_amount_of_data(tmp_path: Path, capsys: Any) -> None:
    """Row 11: the resource is data seen, not steps; the pruner is said."""
    space = {"per_device_train_batch_size": Categorical((4, 8))}
    best = search(make_trainer(tmp_path / "epochs"), space, 6, pruner="median", progress=True)
    assert "pruner MedianPruner" in capsys.readouterr().out
    trials = best.run_summary.engine_study.trials
    assert {record.params["per_device_train_batch_size"] for record in records_of(best)} == {4, 8}
    assert all(set(trial.intermediate_values) <= {1, 2} for trial in trials)
    by_steps = make_trainer(tmp_path / "steps", eval_strategy="steps", eval_steps=2)
    best = search(by_steps, space, 6)
    for record, trial in zip(records_of(best), best.run_summary.engine_study.trials, strict=True):
        batch = record.params["per_device_train_batch_size"]
        assert sorted(trial.intermediate_values) == [report.step * batch for report in record.reports]


@pytest.mark.parametrize("why", ["pruned", "nan"])
def test_a_study_without_a_result_says_so_and_why(tmp_path: Path, why: str) -> None:
    """Row 12."""
    objective: Any = (lambda metrics: math.nan) if why == "nan" else "eval_loss"
    error = without_result(
        search,
        make_trainer(tmp_path),
        LEARNING_RATE,
        2,
        pruner=AlwaysPrune() if why == "pruned" else "none",
        compute_objective=objective,
        direction="minimize",
    )
    assert ("2 pruned" if why == "pruned" else "never finite") in str(error)
    assert len(error.run_summary.engine_study.trials) == 2


def test_a_pruner_without_a_metric_to_prune_several_objectives_by_is_refused_before_the_first_trial(
    tmp_path: Path,
) -> None:
    """Row 13."""
    with pytest.raises(StudyError, match="2 objectives: name it in pruning_metric"):
        search(make_trainer(tmp_path), LEARNING_RATE, 1, compute_objective=["loss", "accuracy"], pruner="median")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["no", "epoch"])
def test_only_the_best_trials_keep_a_checkpoint(tmp_path: Path, strategy: str) -> None:
    """Row 18: retention is study-wide, and one folder holds one study."""
    trainer = make_trainer(tmp_path, save_strategy=strategy)
    best = search(trainer, LEARNING_RATE, 5, keep_checkpoints=2)
    ranked = best.run_summary.ranked()
    kept = set((tmp_path / "study").glob("*/checkpoint-*"))
    assert kept == {record.checkpoint for record in ranked[:2]}
    assert best.checkpoint == ranked[0].checkpoint


def test_a_second_study_in_the_same_place_has_its_own_folder(tmp_path: Path) -> None:
    """Row 18."""
    trainer = make_trainer(tmp_path)
    first = search(trainer, LEARNING_RATE, 1, study_name="first")
    second = search(trainer, {"seed": Int(1, 5)}, 1, study_name="second")
    assert first.checkpoint.parent.parent != second.checkpoint.parent.parent
    assert first.checkpoint.is_dir()


@pytest.mark.feature(16)
def test_tensorboard_has_a_folder_for_every_trial(tmp_path: Path) -> None:
    """Row 19."""
    pytest.importorskip("tensorboardX")
    trainer = make_trainer(tmp_path, report_to="tensorboard", logging_steps=1)
    search(trainer, LEARNING_RATE, 2)
    folders = {path.parent for path in tmp_path.rglob("events.out.tfevents.*")}
    assert len(folders) == 2
    assert {folder.name for folder in folders} == {"run-0", "run-1"}


class TakesASecond(TrainerCallback):
    """Makes every step take one second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._clock.move(1.0)()


def test_the_timeout_stops_a_running_trial_at_its_next_step(tmp_path: Path, clock: Clock) -> None:
    """Row 20."""
    trainer = make_trainer(tmp_path, callbacks=[TakesASecond(clock)], num_train_epochs=1000)
    best = search(trainer, LEARNING_RATE, 5, timeout=8.0)
    assert records_of(best)[0].epochs == pytest.approx(8 / 5)  # five steps an epoch
    assert [record.state for record in records_of(best)] == [TrialState.STOPPED]
    assert "timeout of 8.0 s" in records_of(best)[0].reason
    assert best.objective == records_of(best)[0].reports[-1].value
    assert best.checkpoint is not None


def test_a_trials_own_timeout_lets_the_next_trial_run(tmp_path: Path, clock: Clock) -> None:
    """Row 20."""
    trainer = make_trainer(tmp_path, callbacks=[TakesASecond(clock)], num_train_epochs=1000)
    best = search(trainer, LEARNING_RATE, 2, trial_timeout=3.0)
    assert [record.reports[-1].step for record in records_of(best)] == [3, 3]
    assert [record.state for record in records_of(best)] == [TrialState.STOPPED, TrialState.STOPPED]


@pytest.mark.feature(77)
def test_both_documented_forms_of_compute_loss_can_be_searched(tmp_path: Path) -> None:
    """Row 21."""

    class OlderForm(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:  # type: ignore[override]
            outputs = model(**inputs)
            loss = 2 * outputs["loss"]
            return (loss, outputs) if return_outputs else loss

    plain = make_trainer(tmp_path / "plain")
    older = OlderForm(
        model_init=plain.model_init,
        args=plain.args.replace(output_dir=str(tmp_path / "older"), num_train_epochs=1, learning_rate=0.0),
        train_dataset=plain.train_dataset,
        eval_dataset=plain.eval_dataset,
    )
    doubled = search(older, {"seed": Categorical((1,))}, 1).objective
    plain.args = plain.args.replace(num_train_epochs=1, learning_rate=0.0)
    single = search(plain, {"seed": Categorical((1,))}, 1).objective
    assert doubled == pytest.approx(2 * single, rel=1e-6)


def test_a_failed_search_leaves_the_trainer_and_the_callers_random_streams_as_they_were(tmp_path: Path) -> None:
    """Row 22."""
    trainer = make_trainer(tmp_path)
    before, callbacks = dict(vars(trainer)), list(trainer.callbacks)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with pytest.raises(ObjectiveError):
        search(trainer, LEARNING_RATE, 2, compute_objective="eval_nothing")
    assert vars(trainer) == before
    assert trainer.callbacks == callbacks
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.slow
@pytest.mark.feature(15)
def test_same_trial_same_numbers_first_last_alone_or_after_a_failed_one(tmp_path: Path) -> None:
    """One configuration, run in every place of a study, and as a plain training, gives bit-identical reports."""
    same = {"learning_rate": 3e-3, "seed": 11}
    other = {"learning_rate": 1e-4, "seed": 3}

    def reports_at(place: int, total: int, name: str, fails_at: int = -1) -> list[float]:
        def space(trial: Any) -> dict[str, Any]:
            return same if trial.number == place else other

        callbacks = [Fails(RuntimeError("no"), fails_at), EarlyStoppingCallback(early_stopping_patience=1)]
        trainer = make_trainer(tmp_path / name, callbacks=callbacks, metric_for_best_model="loss", num_train_epochs=3)
        return [report.value for report in records_of(search(trainer, space, total))[place].reports]

    alone = make_trainer(
        tmp_path / "alone",
        callbacks=[EarlyStoppingCallback(early_stopping_patience=1)],
        metric_for_best_model="loss",
        num_train_epochs=3,
    ).with_arguments(**same)
    alone.train()
    expected = [entry["eval_loss"] for entry in alone.state.log_history if "eval_loss" in entry]
    assert reports_at(0, 1, "only") == expected
    assert reports_at(0, 3, "first") == expected
    assert reports_at(2, 3, "last") == expected
    assert reports_at(1, 2, "after a failed one", fails_at=0) == expected


@pytest.mark.feature(1)
def test_the_documented_call_alone_does_the_sensible_thing(tmp_path: Path) -> None:
    """`hyperparameter_search(hp_space, n_trials=...)` with nothing else said, not even an evaluation strategy."""
    trainer = make_trainer(tmp_path, eval_strategy="no")
    best = trainer.hyperparameter_search(SearchSpace(LEARNING_RATE), n_trials=3)
    assert best.objective == max(record.value for record in records_of(best))
    assert all(len(record.reports) == 1 for record in records_of(best))
    assert best.load_model() is not None
