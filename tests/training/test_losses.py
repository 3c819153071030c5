"""The loss of a step, the labels it needs, and the operations it costs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from hpsearch import Trainer
from tests.support.models import (
    Line,
    bert_classifier,
    classification_data,
    gpt2_language_model,
    language_data,
    line_data,
)
from tests.support.small_training import logged, make_trainer


def question_answering() -> Any:
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    return transformers.BertForQuestionAnswering(config)


@pytest.mark.feature(46)
def test_labels_are_those_the_model_names_or_those_that_are_given(tmp_path: Path) -> None:
    spans = [{"input_ids": [1, 2, 3], "start_positions": 0, "end_positions": 1} for _ in range(4)]
    answering = make_trainer(tmp_path, model=question_answering(), eval_dataset=spans)
    output = answering.predict(spans)
    assert [each.shape for each in output.label_ids] == [(4,), (4,)]
    assert output.metrics["test_loss"] > 0
    assert make_trainer(tmp_path, model=Line()).predict(line_data(4)).label_ids.shape == (4,)


@pytest.mark.feature(46)
def test_without_label_names_there_is_no_loss_only_predictions(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=Line(), label_names=[])
    output = trainer.predict([{"x": each["x"]} for each in line_data(4)])
    assert output.label_ids is None
    assert "test_loss" not in output.metrics
    assert output.predictions[0].shape == (4,)


@pytest.mark.feature(52)
def test_smoothing_leaves_out_the_labels_of_minus_100_and_shifts_those_of_a_language_model(tmp_path: Path) -> None:
    model = gpt2_language_model().eval()
    trainer = make_trainer(tmp_path, model=model, label_smoothing_factor=0.2)
    batch = trainer.data_collator(language_data(12))
    logits, labels = model(input_ids=batch["input_ids"]).logits[:, :-1], batch["labels"][:, 1:]
    kept = labels != -100
    assert 0 < kept.sum() < kept.numel()
    expected = torch.nn.functional.cross_entropy(logits[kept], labels[kept], label_smoothing=0.2)
    assert trainer.compute_loss(model, batch).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.feature(56)
def test_activations_are_computed_again_in_the_backward_pass_and_give_the_same_loss(tmp_path: Path) -> None:
    calls: list[str] = []

    def model_init() -> Any:
        model = bert_classifier(hidden=16, layers=2, dropout=0.0)
        model.bert.encoder.layer[0].attention.self.register_forward_hook(lambda *_: calls.append("forward"))
        return model

    results = []
    for recompute in (False, True):
        calls.clear()
        trainer = make_trainer(
            tmp_path,
            model_init=model_init,
            train_dataset=classification_data(8),
            activation_checkpointing=recompute,
        )
        trainer.train()
        results.append((len(calls), trainer.state.log_history[0]["loss"]))
    assert [count for count, _ in results] == [1, 2]
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-6)


@pytest.mark.feature(75)
@pytest.mark.parametrize("given", [None, False])
def test_training_returns_its_steps_its_loss_and_its_speed(tmp_path: Path, given: Any) -> None:
    output = make_trainer(tmp_path).train(resume_from_checkpoint=given)
    steps, loss, metrics = output
    assert (output.global_step, output.training_loss, output.metrics) == (steps, loss, metrics)
    assert steps == 3
    assert set(metrics) == {
        "train_runtime",
        "train_samples_per_second",
        "train_steps_per_second",
        "total_flos",
        "train_loss",
        "epoch",
    }
    assert metrics["train_loss"] == loss
    ratio = metrics["train_samples_per_second"] / metrics["train_steps_per_second"]
    assert ratio == pytest.approx(24 / 3, rel=0.05)


@pytest.mark.feature(75)
def test_the_training_loss_is_the_mean_over_all_updates(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, num_train_epochs=2)
    loss = trainer.train().training_loss
    assert loss == pytest.approx(sum(logged(trainer, "loss").values()) / 6, rel=1e-5)


@pytest.mark.feature(76)
def test_a_training_step_trains_in_the_context_of_the_loss_and_returns_it_detached(tmp_path: Path) -> None:
    entered: list[bool] = []

    class Own(Trainer):
        def compute_loss_context_manager(self) -> Any:
            @contextlib.contextmanager
            def noting() -> Iterator[None]:
                entered.append(True)
                yield

            return noting()

    trainer = make_trainer(tmp_path, Own, model=Line())
    trainer.model.eval()
    batch = trainer.data_collator(line_data(4))
    expected = trainer.model(**batch)["loss"]
    expected.backward()
    gradient = trainer.model.linear.weight.grad.clone()
    trainer.model.zero_grad()
    loss = trainer.training_step(trainer.model, batch)
    assert loss.item() == pytest.approx(expected.item())
    assert loss.requires_grad is False
    assert trainer.model.training is True
    assert entered == [True]
    torch.testing.assert_close(trainer.model.linear.weight.grad, gradient)
    with trainer.autocast_smart_context_manager():
        assert torch.is_autocast_enabled("cpu") is False


@pytest.mark.feature("P16")
@pytest.mark.parametrize("take", ["get", "pop"])
def test_an_override_of_the_loss_may_look_at_the_labels_or_take_them_out(tmp_path: Path, take: str) -> None:
    class Own(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
            labels = getattr(inputs, take)("labels")
            outputs = model(**inputs)
            loss = torch.nn.functional.mse_loss(outputs["predictions"], labels)
            return (loss, outputs) if return_outputs else loss

    own, plain = make_trainer(tmp_path, Own, eval_strategy="epoch"), make_trainer(tmp_path, eval_strategy="epoch")
    own.train()
    plain.train()
    assert logged(own, "loss") == pytest.approx(logged(plain, "loss"))
    assert logged(own, "eval_loss") == pytest.approx(logged(plain, "eval_loss"))


@pytest.mark.feature(78)
def test_operations_are_six_for_every_token_and_weight_outside_the_embeddings(tmp_path: Path) -> None:
    data = classification_data(16, length=12)
    trainer = make_trainer(tmp_path, model_init=bert_classifier, train_dataset=data)
    trainer.train()
    weights = trainer.model.num_parameters(exclude_embeddings=True)
    assert trainer.state.total_flos == 6 * 16 * 12 * weights
    assert trainer.floating_point_ops({"input_ids": torch.zeros(2, 5)}) == 6 * 10 * weights


@pytest.mark.feature(78)
def test_a_model_that_counts_its_operations_is_asked(tmp_path: Path) -> None:
    class Counts(Line):
        def floating_point_ops(self, inputs: Any) -> int:
            return 1000

    trainer = make_trainer(tmp_path, model_init=Counts)
    trainer.train()
    assert trainer.state.total_flos == 3000
