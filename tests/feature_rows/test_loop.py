"""What docs/feature-table.md says of the training loop and no other test shows, row by row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import SequentialSampler

from hpsearch import Trainer
from tests.support.models import (
    Line,
    bert_classifier,
    classification_data,
    line_data,
)
from tests.support.rows import ToldEpochs, args_of, logged
from tests.support.small_training import make_trainer


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


@pytest.mark.feature(75)
def test_keys_to_ignore_reach_the_evaluations_during_training(tmp_path: Path) -> None:
    counts: list[int] = []

    class Widely(Line):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
            return {**super().forward(x, labels), "features": x}

    def metrics(prediction: Any) -> dict[str, float]:
        counts.append(len(prediction.predictions) if isinstance(prediction.predictions, tuple) else 1)
        return {}

    trainer = make_trainer(tmp_path, model_init=Widely, compute_metrics=metrics, eval_strategy="epoch")
    trainer.train()
    trainer.train(ignore_keys_for_eval=["features"])
    assert counts == [2, 1]


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


@pytest.mark.feature(79)
def test_data_without_a_length_are_loaded_in_their_order_and_without_a_sampler(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, train_dataset=ToldEpochs(), max_steps=1)
    loader = trainer.get_train_dataloader()
    received = torch.cat([batch["x"] for batch in loader])
    assert torch.equal(received, torch.stack([each["x"] for each in line_data(16)]))
    with pytest.raises(ValueError, match="train_dataset"):
        make_trainer(tmp_path, train_dataset=None).get_train_dataloader()


@pytest.mark.feature(45, 80)
def test_loaders_of_evaluation_and_test_take_any_dataset_and_drop_what_the_model_does_not_take(tmp_path: Path) -> None:
    sets = {"dev": line_data(6, extra=1), "other": line_data(7)}
    trainer = make_trainer(tmp_path, model=Line(), eval_dataset=sets)
    given = line_data(5, extra=1)
    loaders = [trainer.get_eval_dataloader(given), trainer.get_test_dataloader(given)]
    for loader in loaders:
        (batch,) = loader
        assert set(batch) == {"x", "labels"}
        assert trainer.num_examples(loader) == 5
    assert isinstance(loaders[1].sampler, SequentialSampler)
    assert trainer.num_examples(trainer.get_eval_dataloader("dev")) == 6
    assert trainer.num_examples(trainer.get_eval_dataloader("other")) == 7


@pytest.mark.feature(53, 81)
def test_the_optimizer_of_some_arguments_can_be_asked_for(tmp_path: Path) -> None:
    kind, kwargs = Trainer.get_optimizer_cls_and_kwargs(args_of(optim="sgd", optim_args="momentum=0.5"))
    assert kind is torch.optim.SGD
    assert (kwargs["lr"], float(kwargs["momentum"])) == (5e-5, 0.5)
    trainer = make_trainer(tmp_path, model=Line())
    own = torch.optim.SGD(trainer.model.parameters(), lr=0.5)
    schedule = trainer.create_scheduler(10, optimizer=own)
    assert schedule.optimizer is own
    both = make_trainer(tmp_path, model=Line())
    both.create_optimizer_and_scheduler(10)
    assert both.lr_scheduler.optimizer is both.optimizer
