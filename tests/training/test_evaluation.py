"""Evaluation and prediction: the peer's metrics, exact losses, and every way to name, gather and report them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import PrinterCallback
from transformers.trainer_utils import EvalLoopOutput

from hpsearch import Trainer, TrainingArguments
from hpsearch.errors import InvalidInputError
from tests.support.models import (
    Line,
    accuracy,
    bert_classifier,
    classification_data,
    gpt2_language_model,
    language_data,
    line_data,
    weights_of,
)
from tests.support.small_training import Look, at_process
from tests.support.small_training import make_trainer as line_trainer

TIMINGS = ("_runtime", "_per_second", "_preparation_time")


def make_trainer(folder: Path, kind: Any = Trainer, **changes: Any) -> Any:
    names = (
        "model",
        "model_init",
        "train_dataset",
        "eval_dataset",
        "compute_metrics",
        "preprocess_logits_for_metrics",
        "callbacks",
        "data_collator",
    )
    parts = {name: changes.pop(name) for name in names if name in changes}
    if "model_init" not in parts:
        parts.setdefault("model", bert())
    values: dict[str, Any] = {"per_device_eval_batch_size": 8, "use_cpu": True, "disable_tqdm": True, **changes}
    arguments = TrainingArguments if kind is Trainer else transformers.TrainingArguments
    parts = {"eval_dataset": classification_data(21, seed=1), **parts}
    trainer = kind(args=arguments(str(folder), **values), **parts)
    trainer.remove_callback(PrinterCallback)
    return trainer


def bert() -> Any:
    """A classifier whose weights are the same at every call, and whose dropout shows in training mode."""
    torch.manual_seed(0)
    return bert_classifier(dropout=0.3)


def timeless(metrics: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if not name.endswith(TIMINGS)}


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "loss_only": {"prediction_loss_only": True},
    "no_metrics": {"compute_metrics": None},
    "accumulated": {"eval_accumulation_steps": 2},
    "label_smoothing": {"label_smoothing_factor": 0.3},
    "drop_last": {"dataloader_drop_last": True},
    "bfloat16": {"bf16_full_eval": True},
}


@pytest.mark.feature(85)
@pytest.mark.parametrize("case", CASES)
def test_evaluate_and_predict_give_the_peers_numbers_for_the_same_weights(tmp_path: Path, case: str) -> None:
    results = []
    for kind in (transformers.Trainer, Trainer):
        trainer = make_trainer(tmp_path, kind, **{"compute_metrics": accuracy, **CASES[case]})
        output = trainer.predict(classification_data(13, seed=2))
        results.append((trainer.evaluate(), output))
    (peer_metrics, peer_output), (metrics, output) = results
    assert timeless(metrics) == pytest.approx(timeless(peer_metrics), rel=1e-6)
    assert timeless(output.metrics) == pytest.approx(timeless(peer_output.metrics), rel=1e-6)
    if peer_output.predictions is None:
        assert output.predictions is None
        assert output.label_ids is None
    else:
        np.testing.assert_array_equal(output.predictions, peer_output.predictions)
        np.testing.assert_array_equal(output.label_ids, peer_output.label_ids)


@pytest.mark.feature(83)
def test_speed_metrics_count_all_samples_and_batches(tmp_path: Path) -> None:
    metrics = make_trainer(tmp_path).evaluate()
    assert metrics["eval_runtime"] > 0
    ratio = metrics["eval_samples_per_second"] / metrics["eval_steps_per_second"]
    assert ratio == pytest.approx(21 / 3, rel=0.02)


@pytest.mark.feature(84)
def test_evaluation_runs_without_dropout_and_without_gradients_and_training_mode_comes_back(tmp_path: Path) -> None:
    class Look(transformers.TrainerCallback):
        seen: list[tuple[bool, bool]] = []

        def on_prediction_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            self.seen.append((model.training, any(each.grad is not None for each in model.parameters())))

        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            modes.append(model.training)

    modes: list[bool] = []
    trainer = make_trainer(
        tmp_path,
        train_dataset=classification_data(16),
        eval_strategy="steps",
        eval_steps=1,
        num_train_epochs=1,
        save_strategy="no",
        learning_rate=0.0,
        callbacks=[Look],
    )
    trainer.train()
    assert Look.seen == [(False, False)] * 6
    assert modes[0] is True
    evaluated = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert evaluated[0] == evaluated[1]


@pytest.mark.feature(84)
def test_the_loss_is_the_exact_mean_over_samples_with_a_short_last_batch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, points = Line(), line_data(11)
    points[-1]["labels"] = torch.tensor(50.0)
    with torch.no_grad():
        errors = [(model.linear(each["x"]).squeeze() - each["labels"]) ** 2 for each in points]
    expected = float(torch.stack(errors).mean())
    for batch_size in (1, 2, 4, 8, 16):
        trainer = make_trainer(tmp_path, model=model, eval_dataset=points, per_device_eval_batch_size=batch_size)
        assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)
        assert trainer.predict(points).metrics["test_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.feature(68)
def test_each_of_several_sets_is_evaluated_under_its_name(tmp_path: Path) -> None:
    sets = {"dev": classification_data(9, seed=1), "другой": classification_data(10, seed=2)}
    trainer = make_trainer(tmp_path, eval_dataset=sets, compute_metrics=accuracy)
    together = trainer.evaluate()
    for name, dataset in sets.items():
        alone = trainer.evaluate(dataset)
        assert together[f"eval_{name}_loss"] == alone["eval_loss"]
        assert together[f"eval_{name}_accuracy"] == alone["eval_accuracy"]
    assert "eval_loss" not in together
    expected = {f"eval_{name}_{metric}" for name in sets for metric in ("loss", "accuracy")}
    assert set(timeless(together)) == {*expected, "epoch"}


def test_a_dict_of_sets_may_be_passed_to_evaluate(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, eval_dataset=None)
    extra = classification_data(9, seed=1)
    assert trainer.evaluate({"extra": extra})["eval_extra_loss"] == trainer.evaluate(extra)["eval_loss"]


@pytest.mark.feature(68)
def test_one_of_the_sets_is_evaluated_by_its_name(tmp_path: Path) -> None:
    sets = {"dev": classification_data(9, seed=1), "other": classification_data(10, seed=2)}
    trainer = make_trainer(tmp_path, eval_dataset=sets)
    assert trainer.evaluate("other")["eval_loss"] == trainer.evaluate(sets["other"])["eval_loss"]
    assert trainer.evaluate("dev")["eval_loss"] != trainer.evaluate("other")["eval_loss"]
    with pytest.raises(ValueError, match=r"(?s)missing.*dev.*other"):
        trainer.evaluate("missing")


@pytest.mark.feature(68)
def test_the_best_model_may_be_that_of_one_of_the_sets(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path,
        train_dataset=classification_data(16),
        eval_dataset={"dev": classification_data(9, seed=1), "other": classification_data(10, seed=2)},
        eval_strategy="epoch",
        save_strategy="no",
        num_train_epochs=2,
        metric_for_best_model="eval_dev_loss",
    )
    trainer.train()
    history = [entry["eval_dev_loss"] for entry in trainer.state.log_history if "eval_dev_loss" in entry]
    assert trainer.state.best_metric == min(history)
    assert len(history) == 2


@pytest.mark.feature(83)
def test_the_prefix_starts_every_key_once(tmp_path: Path) -> None:
    def metrics(prediction: Any) -> dict[str, float]:
        return {"accuracy": 1.0, "valid_f1": 0.5}

    trainer = make_trainer(tmp_path, compute_metrics=metrics)
    received = trainer.evaluate(metric_key_prefix="valid")
    assert set(received) >= {"valid_loss", "valid_accuracy", "valid_f1", "valid_runtime", "epoch"}
    assert all(name == "epoch" or name.startswith("valid_") for name in received)
    assert not any(name.startswith("valid_valid") for name in received)
    assert set(trainer.predict(classification_data(4)).metrics) >= {"test_loss", "test_accuracy", "test_valid_f1"}


@pytest.mark.feature(70)
@pytest.mark.parametrize("returned", [0.5, None, [("accuracy", 0.5)], "accuracy"])
def test_metrics_that_are_no_dict_are_refused_and_shown(tmp_path: Path, returned: Any) -> None:
    trainer = make_trainer(tmp_path, compute_metrics=lambda prediction: returned)
    with pytest.raises(InvalidInputError, match="must return a dict"):
        trainer.evaluate()


def test_metrics_become_plain_numbers_that_json_can_write(tmp_path: Path) -> None:
    def metrics(prediction: Any) -> dict[str, Any]:
        return {"numpy": np.float64(0.5), "tensor": torch.tensor(0.25), "count": np.int64(3)}

    received = make_trainer(tmp_path, compute_metrics=metrics).evaluate()
    assert json.loads(json.dumps(received)) == received
    assert (received["eval_numpy"], received["eval_tensor"], received["eval_count"]) == (0.5, 0.25, 3)


@pytest.mark.feature(86)
@pytest.mark.parametrize("accumulation", [None, 1, 2])
def test_predictions_of_unequal_length_are_padded_on_the_right_with_minus_100(
    tmp_path: Path, accumulation: int | None
) -> None:
    samples = [*language_data(4, length=5), *language_data(4, length=9), *language_data(2, length=7)]
    trainer = make_trainer(
        tmp_path,
        model=gpt2_language_model(),
        eval_dataset=samples,
        per_device_eval_batch_size=2,
        eval_accumulation_steps=accumulation,
        compute_metrics=lambda prediction: {"shape": float(prediction.predictions.shape[1])},
        preprocess_logits_for_metrics=lambda logits, labels: logits[0] if isinstance(logits, tuple) else logits,
    )
    output = trainer.predict(samples)
    assert output.predictions.shape == (10, 9, 100)
    assert output.label_ids.shape == (10, 9)
    assert output.metrics["test_shape"] == 9.0
    for row, sample in enumerate(samples):
        length = len(sample["labels"])
        assert output.label_ids[row, :length].tolist() == sample["labels"]
        assert (output.label_ids[row, length:] == -100).all()
        assert (output.predictions[row, length:] == -100).all()
        assert not (output.predictions[row, :length] == -100).any()


@pytest.mark.feature(21)
def test_loss_only_gives_the_loss_and_no_predictions(tmp_path: Path) -> None:
    calls: list[Any] = []
    trainer = make_trainer(tmp_path, prediction_loss_only=True, compute_metrics=calls.append)
    output = trainer.predict(classification_data(5))
    assert output.predictions is None
    assert output.label_ids is None
    assert output.metrics["test_loss"] > 0
    assert timeless(trainer.evaluate()).keys() == {"eval_loss", "epoch"}
    assert calls == []


def test_without_metrics_evaluation_keeps_no_predictions_but_predict_does(tmp_path: Path) -> None:
    kept: list[bool] = []

    class Look(Trainer):
        def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
            output = super().evaluation_loop(*args, **kwargs)
            kept.append(output.predictions is not None)
            return output

    trainer = Look(bert(), TrainingArguments(str(tmp_path), use_cpu=True), eval_dataset=classification_data(5))
    trainer.remove_callback(transformers.ProgressCallback)
    trainer.evaluate()
    trainer.predict(classification_data(5))
    assert kept == [False, True]


@pytest.mark.feature(21)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_moving_outputs_to_the_host_in_between_changes_nothing(tmp_path: Path, steps: int) -> None:
    moved = make_trainer(tmp_path, eval_accumulation_steps=steps, compute_metrics=accuracy)
    kept = make_trainer(tmp_path, compute_metrics=accuracy)
    assert timeless(moved.evaluate()) == timeless(kept.evaluate())
    np.testing.assert_array_equal(
        moved.predict(moved.eval_dataset).predictions, kept.predict(kept.eval_dataset).predictions
    )


@pytest.mark.feature(57)
@pytest.mark.parametrize("accumulation", [None, 1])
def test_inputs_and_losses_reach_compute_metrics_if_asked_for(tmp_path: Path, accumulation: int | None) -> None:
    seen: dict[str, Any] = {}

    def metrics(prediction: Any) -> dict[str, float]:
        seen["inputs"], seen["losses"] = prediction.inputs, prediction.losses
        return {}

    dataset = classification_data(21, seed=1)
    wanted = make_trainer(
        tmp_path,
        compute_metrics=metrics,
        include_for_metrics=["inputs", "loss"],
        eval_accumulation_steps=accumulation,
    )
    loss = wanted.evaluate()["eval_loss"]
    assert seen["inputs"].tolist() == [each["input_ids"] for each in dataset]
    assert seen["losses"].shape == (21,)
    assert float(seen["losses"].mean()) == pytest.approx(loss)
    make_trainer(tmp_path, compute_metrics=metrics).evaluate()
    assert seen == {"inputs": None, "losses": None}


class BatchAccuracy:
    """Accuracy collected batch by batch."""

    def __init__(self) -> None:
        self.hits: list[float] = []
        self.batches = 0

    def __call__(self, prediction: Any, compute_result: bool) -> dict[str, float]:
        self.batches += 1
        self.hits += (prediction.predictions.argmax(-1) == prediction.label_ids).float().tolist()
        if not compute_result:
            return {}
        result = {"accuracy": float(np.mean(self.hits)), "count": float(len(self.hits))}
        self.hits = []
        return result


@pytest.mark.feature(70)
@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_metrics_collected_batch_by_batch_equal_those_over_the_whole_set(tmp_path: Path, method: str) -> None:
    by_batch = BatchAccuracy()
    batched = make_trainer(tmp_path, compute_metrics=by_batch, batch_eval_metrics=True)
    whole = make_trainer(tmp_path, compute_metrics=accuracy)
    dataset = classification_data(21, seed=1)
    if method == "evaluate":
        expected, received = whole.evaluate(dataset), batched.evaluate(dataset)
    else:
        output = batched.predict(dataset)
        expected, received = whole.predict(dataset).metrics, output.metrics
        assert output.predictions.shape == (21, 2)
    prefix = "eval" if method == "evaluate" else "test"
    assert by_batch.batches == 3
    assert received[f"{prefix}_count"] == 21.0
    for metric in ("accuracy", "loss"):
        assert received[f"{prefix}_{metric}"] == pytest.approx(expected[f"{prefix}_{metric}"])


@pytest.mark.feature(87)
@pytest.mark.parametrize("model", ["bert", "line", "gpt2"])
def test_without_labels_there_is_no_loss_but_there_are_predictions(tmp_path: Path, model: str) -> None:
    chosen, dataset = {
        "bert": (bert(), classification_data(5)),
        "line": (Line(), line_data(5)),
        "gpt2": (gpt2_language_model(), language_data(5)),
    }[model]
    unlabelled = [{key: value for key, value in each.items() if key != "labels"} for each in dataset]
    trainer = make_trainer(tmp_path, model=chosen, compute_metrics=accuracy)
    output = trainer.predict(unlabelled)
    assert output.label_ids is None
    first = output.predictions[0] if isinstance(output.predictions, tuple) else output.predictions
    assert len(first) == 5
    assert timeless(output.metrics) == {}
    assert "eval_loss" not in trainer.evaluate(unlabelled)
    batch = trainer.data_collator(unlabelled)
    assert trainer.prediction_step(trainer.model, batch, prediction_loss_only=False)[0::2] == (None, None)


def test_keys_to_ignore_are_left_out_of_the_predictions(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=Line())
    unlabelled = [{"x": each["x"]} for each in line_data(5)]
    predictions, features = trainer.predict(unlabelled).predictions
    assert (predictions.shape, features.shape) == ((5,), (5, 2))
    assert trainer.predict(unlabelled, ignore_keys=["features"]).predictions.shape == (5,)


@pytest.mark.feature(32)
def test_a_loss_that_is_no_number_does_not_spoil_the_mean_unless_asked(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, points = Line(), line_data(8)
    rest = make_trainer(tmp_path, model=model, eval_dataset=points[4:]).evaluate()["eval_loss"]
    points[0]["labels"] = torch.tensor(float("nan"))
    changes: dict[str, Any] = {"model": model, "eval_dataset": points, "per_device_eval_batch_size": 4}
    assert make_trainer(tmp_path, **changes).evaluate()["eval_loss"] == pytest.approx(rest)
    assert math.isnan(make_trainer(tmp_path, **changes, logging_nan_inf_filter=False).evaluate()["eval_loss"])


def test_evaluation_before_training_works_with_model_init_and_uses_the_seeded_model(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model_init=lambda: bert_classifier(dropout=0.0), seed=5, eval_dataset=None)
    torch.manual_seed(5)
    same = make_trainer(tmp_path, model=bert_classifier(dropout=0.0))
    dataset = classification_data(9)
    assert trainer.evaluate(dataset)["eval_loss"] == same.evaluate(dataset)["eval_loss"]
    assert trainer.predict(dataset).predictions.shape == (9, 2)


def test_evaluation_before_training_leaves_no_trace_in_training(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "model_init": lambda: bert_classifier(dropout=0.2),
        "train_dataset": classification_data(16),
        "save_strategy": "no",
        "num_train_epochs": 1,
    }
    looked, plain = make_trainer(tmp_path, **changes), make_trainer(tmp_path, **changes)
    looked.evaluate()
    looked.train()
    plain.train()
    for name, weights in weights_of(looked.model).items():
        assert torch.equal(weights, weights_of(plain.model)[name]), name


def test_evaluation_without_a_dataset_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="eval_dataset"):
        make_trainer(tmp_path, eval_dataset=None).evaluate()


@pytest.mark.feature(83)
def test_evaluate_logs_its_metrics_with_step_and_epoch(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, train_dataset=classification_data(16), save_strategy="no", num_train_epochs=1)
    trainer.train()
    metrics = trainer.evaluate()
    assert metrics["epoch"] == 1.0
    assert trainer.state.log_history[-1] == {**metrics, "step": 2}


@pytest.mark.feature(89)
def test_log_metrics_prints_an_aligned_table_in_readable_units(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"eval_loss": 0.123456, "eval_runtime": 3661.5, "total_flos": 5e12, "eval_samples": 21}
    make_trainer(tmp_path).log_metrics("eval", values)
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[0] == "***** eval metrics *****"
    assert [line.split()[0] for line in lines[1:]] == sorted(values)
    shown = dict(line.replace(" ", "").split("=") for line in lines[1:])
    assert shown["eval_loss"] == "0.1235"
    assert shown["eval_runtime"] == "1:01:01.50"
    assert shown["total_flos"].endswith("GF")
    assert len({len(line) for line in lines[1:]}) == 1
    assert values["eval_loss"] == 0.123456


@pytest.mark.feature(90)
def test_save_metrics_writes_one_file_per_split_and_merges_them_into_one(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "new")
    trainer.save_metrics("train", {"train_loss": 0.5})
    trainer.save_metrics("eval", {"eval_loss": 0.25, "eval_runtime": 1.123456789})
    trainer.save_metrics("test", {"test_loss": 9.0}, combined=False)
    folder = tmp_path / "new"
    read = {path.name: json.loads(path.read_text()) for path in folder.iterdir()}
    assert read == {
        "train_results.json": {"train_loss": 0.5},
        "eval_results.json": {"eval_loss": 0.25, "eval_runtime": 1.123456789},
        "test_results.json": {"test_loss": 9.0},
        "all_results.json": {"train_loss": 0.5, "eval_loss": 0.25, "eval_runtime": 1.123456789},
    }


@pytest.mark.feature(75)
def test_keys_to_ignore_reach_the_evaluations_during_training(tmp_path: Path) -> None:
    counts: list[int] = []

    class Widely(Line):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
            return {**super().forward(x, labels), "features": x}

    def metrics(prediction: Any) -> dict[str, float]:
        counts.append(len(prediction.predictions) if isinstance(prediction.predictions, tuple) else 1)
        return {}

    trainer = line_trainer(tmp_path, model_init=Widely, compute_metrics=metrics, eval_strategy="epoch")
    trainer.train()
    trainer.train(ignore_keys_for_eval=["features"])
    assert counts == [2, 1]


@pytest.mark.feature(83)
def test_the_keys_of_an_evaluation_are_loss_metrics_speed_and_epoch(tmp_path: Path) -> None:
    seen: list[Any] = []

    def note(metrics: Any, **_: Any) -> None:
        seen.append(metrics)

    trainer = line_trainer(tmp_path, model=Line(), callbacks=[Look("on_evaluate", note)])
    metrics = trainer.evaluate()
    speed = {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second"}
    assert set(metrics) == {"eval_loss", *speed, "epoch"}
    assert seen == [metrics]
    trainer.compute_metrics = lambda prediction: {"one": 1.0}
    assert set(trainer.evaluate()) == {"eval_loss", "eval_one", *speed, "epoch"}


@pytest.mark.feature(84)
@pytest.mark.parametrize("loss_only", [False, True])
def test_an_evaluation_loop_returns_predictions_labels_metrics_and_how_many(tmp_path: Path, loss_only: bool) -> None:
    data = classification_data(11)
    trainer = line_trainer(tmp_path, model=bert_classifier(hidden=16), compute_metrics=accuracy)
    loader = trainer.get_eval_dataloader(data)
    output = trainer.evaluation_loop(loader, "Some set", prediction_loss_only=loss_only, metric_key_prefix="some")
    assert isinstance(output, EvalLoopOutput)
    assert output.num_samples == 11
    assert output.metrics["some_loss"] > 0
    assert trainer.model.training is False
    if loss_only:
        assert (output.predictions, output.label_ids) == (None, None)
    else:
        assert output.predictions.shape == (11, 2)
        assert output.label_ids.tolist() == [each["labels"] for each in data]
        expected = (output.predictions.argmax(-1) == output.label_ids).mean()
        assert output.metrics["some_accuracy"] == pytest.approx(expected)


@pytest.mark.feature(85)
def test_a_prediction_has_metrics_under_its_prefix_and_is_announced(tmp_path: Path) -> None:
    seen: list[Any] = []

    def note(metrics: Any, **_: Any) -> None:
        seen.append(metrics)

    trainer = line_trainer(
        tmp_path,
        model=bert_classifier(hidden=16),
        compute_metrics=accuracy,
        callbacks=[Look("on_predict", note)],
    )
    predictions, labels, metrics = trainer.predict(classification_data(5), metric_key_prefix="last")
    assert (predictions.shape, labels.shape) == ((5, 2), (5,))
    assert set(metrics) == {
        "last_loss",
        "last_accuracy",
        "last_runtime",
        "last_samples_per_second",
        "last_steps_per_second",
    }
    assert seen == [metrics]
    assert trainer.state.log_history == []


@pytest.mark.feature(87)
def test_a_prediction_step_leaves_out_what_the_configuration_ignores(tmp_path: Path) -> None:
    trainer = line_trainer(tmp_path, model=gpt2_language_model(), use_cache=True)
    model, batch = trainer.model.eval(), trainer.data_collator(language_data(2))
    loss, logits, labels = trainer.prediction_step(model, batch, prediction_loss_only=False)
    assert "past_key_values" in model.config.keys_to_ignore_at_inference
    assert isinstance(logits, torch.Tensor)
    assert logits.shape == (2, 12, 100)
    assert torch.equal(labels, batch["labels"])
    assert (loss.requires_grad, logits.requires_grad) == (False, False)
    _, everything, _ = trainer.prediction_step(model, batch, prediction_loss_only=False, ignore_keys=[])
    assert isinstance(everything, tuple)
    assert torch.equal(everything[0], logits)
    assert trainer.prediction_step(model, batch, prediction_loss_only=True)[1:] == (None, None)


@pytest.mark.feature(89)
def test_metrics_are_shown_in_megabytes_hours_and_four_digits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = line_trainer(tmp_path)
    values = {
        "init_mem_cpu_alloc_delta": 3 * 2**20,
        "train_runtime": 3725.25,
        "total_flos": 3 * 2**30,
        "loss": 1 / 3,
        "n": 7,
    }
    trainer.log_metrics("train", values)
    shown = dict(line.replace(" ", "").split("=") for line in capsys.readouterr().out.strip().splitlines()[1:])
    assert shown == {
        "init_mem_cpu_alloc_delta": "3MB",
        "train_runtime": "1:02:05.25",
        "total_flos": "3GF",
        "loss": "0.3333",
        "n": "7",
    }


@pytest.mark.feature(89, 90, 96)
def test_only_the_main_process_shows_and_writes_metrics_state_and_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = line_trainer(tmp_path / "out", model=Line())
    assert trainer.is_local_process_zero()
    assert trainer.is_world_process_zero()

    def write() -> None:
        trainer.log_metrics("eval", {"eval_loss": 1.0})
        trainer.save_metrics("eval", {"eval_loss": 1.0})
        trainer.save_state()
        trainer.save_model()

    with monkeypatch.context() as patched:
        at_process(patched, 1, 1)
        write()
        assert (trainer.is_local_process_zero(), trainer.is_world_process_zero()) == (False, False)
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "out").exists()
    write()
    assert "eval_loss" in capsys.readouterr().out
    expected = {"all_results.json", "eval_results.json", "trainer_state.json", "model.safetensors", "training_args.bin"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == expected
