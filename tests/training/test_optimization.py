"""The optimizer, the clipping of its gradients, and the learning rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hpsearch import Trainer
from tests.support.models import (
    Line,
)
from tests.support.small_training import Look, args_of, logged, make_trainer


@pytest.mark.feature(24, "P15")
def test_the_optimizer_has_the_documented_defaults_and_those_that_are_given(tmp_path: Path) -> None:
    plain = Trainer(Line(), args_of())
    plain.create_optimizer()
    assert type(plain.optimizer) is torch.optim.AdamW
    for group in plain.optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (5e-5, (0.9, 0.999), 1e-8)
        assert group["weight_decay"] == 0.0
    given = {"learning_rate": 0.1, "adam_beta1": 0.5, "adam_beta2": 0.6, "adam_epsilon": 1e-3, "weight_decay": 0.25}
    own = Trainer(Line(), args_of(**given))
    own.create_optimizer()
    weights, biases = own.optimizer.param_groups
    assert (weights["lr"], weights["betas"], weights["eps"]) == (0.1, (0.5, 0.6), 1e-3)
    assert (weights["weight_decay"], biases["weight_decay"]) == (0.25, 0.0)


@pytest.mark.feature(25)
@pytest.mark.parametrize("limit", [1.0, 0.01, 0.0])
def test_gradients_are_clipped_to_their_norm_before_the_update_and_logged_as_they_were(
    tmp_path: Path, limit: float
) -> None:
    norms: list[float] = []

    def note(model: Any, **_: Any) -> None:
        norms.append(float(torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])))

    before = make_trainer(tmp_path, max_grad_norm=0.0, max_steps=1)
    before.train()
    trainer = make_trainer(tmp_path, max_grad_norm=limit, max_steps=1, callbacks=[Look("on_pre_optimizer_step", note)])
    trainer.train()
    unclipped = logged(before, "grad_norm")[1]
    assert unclipped > 1.0
    assert logged(trainer, "grad_norm")[1] == pytest.approx(unclipped)
    assert norms == [pytest.approx(limit or unclipped, rel=1e-4)]


@pytest.mark.feature(28)
@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 0),
        ({"warmup_steps": 7}, 7),
        ({"warmup_steps": 0.1}, 11),
        ({"warmup_steps": 0.101}, 11),
        ({"warmup_ratio": 0.1}, 11),
        ({"warmup_ratio": 0.1, "warmup_steps": 7}, 7),
    ],
)
@pytest.mark.filterwarnings("ignore:warmup_ratio:DeprecationWarning")
def test_warm_up_is_a_number_of_steps_or_a_rounded_up_share_of_them_and_the_number_wins(
    changes: dict[str, Any], count: int
) -> None:
    assert args_of(**changes).get_warmup_steps(105) == count


@pytest.mark.feature(28)
def test_the_learning_rate_rises_in_a_straight_line_and_falls_to_nothing(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, num_train_epochs=2, warmup_steps=0.5, learning_rate=0.3)
    trainer.train()
    assert list(logged(trainer, "learning_rate").values()) == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.2, 0.1])
    assert trainer.lr_scheduler.get_last_lr()[0] == 0.0


class Overflows(Trainer):
    """Trains with a gradient scaler, on the CPU; the gradients of its second update overflow, so that it is skipped."""

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        super().create_optimizer_and_scheduler(num_training_steps)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.state.global_step == 1:
            for each in model.parameters():
                each.grad.fill_(float("inf"))
        return loss


@pytest.mark.feature(28, 38)
def test_the_learning_rate_stays_after_an_update_that_the_scaler_has_skipped(tmp_path: Path) -> None:
    # A fused optimizer skips the update by itself, which accelerate does not notice.
    trainer = make_trainer(tmp_path, Overflows, learning_rate=0.3, optim="sgd")
    trainer.train()
    assert trainer.accelerator.scaler.get_scale() == 2.0
    assert list(logged(trainer, "learning_rate").values()) == pytest.approx([0.3, 0.2, 0.2])


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


@pytest.mark.feature("P10")
def test_hard_restarts_are_counted_and_one_by_default(tmp_path: Path) -> None:
    rates = []
    for kind, kwargs in (("cosine", None), ("cosine_with_restarts", None), ("cosine_with_restarts", {"num_cycles": 2})):
        trainer = make_trainer(
            tmp_path, num_train_epochs=2, lr_scheduler_type=kind, lr_scheduler_kwargs=kwargs, learning_rate=1.0
        )
        trainer.train()
        rates.append(list(logged(trainer, "learning_rate").values()))
    assert rates[0] == pytest.approx(rates[1])
    assert rates[2][3] == pytest.approx(1.0)
