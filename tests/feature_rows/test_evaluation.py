"""What docs/feature-table.md says of evaluation, prediction and metrics and no other test shows, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.trainer_utils import EvalLoopOutput

from tests.support.models import (
    Line,
    accuracy,
    bert_classifier,
    classification_data,
    gpt2_language_model,
    language_data,
)
from tests.support.rows import Look, at_process
from tests.support.small_training import make_trainer


@pytest.mark.feature(83)
def test_the_keys_of_an_evaluation_are_loss_metrics_speed_and_epoch(tmp_path: Path) -> None:
    seen: list[Any] = []

    def note(metrics: Any, **_: Any) -> None:
        seen.append(metrics)

    trainer = make_trainer(tmp_path, model=Line(), callbacks=[Look("on_evaluate", note)])
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
    trainer = make_trainer(tmp_path, model=bert_classifier(hidden=16), compute_metrics=accuracy)
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

    trainer = make_trainer(
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
    trainer = make_trainer(tmp_path, model=gpt2_language_model(), use_cache=True)
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
    trainer = make_trainer(tmp_path)
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
    trainer = make_trainer(tmp_path / "out", model=Line())
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
