"""transformers' schedules and Adafactor under our trainer: logged rates equal their formulas (rows 115 to 117)."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Adafactor, SchedulerType, get_scheduler
from transformers.optimization import (
    AdafactorSchedule,
    GreedyLR,
    get_constant_schedule,
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_cosine_with_hard_restarts_schedule_with_warmup,
    get_linear_schedule_with_warmup,
    get_polynomial_decay_schedule_with_warmup,
)

from hpsearch.errors import ArgumentError
from tests.support.line_trainer import line_trainer, logged
from tests.support.models import Line, line_data, weights_of

RATE, STEPS, WARMUP = 0.1, 12, 3
Factor = Callable[[int], float]


def after_warmup(decay: Callable[[float], float]) -> Factor:
    """Rise from 0 to 1 over the warm-up, then `decay` of the remaining progress in [0, 1]."""
    return lambda step: step / WARMUP if step < WARMUP else decay((step - WARMUP) / (STEPS - WARMUP))


def half_cosine(progress: float) -> float:
    return (1 + math.cos(math.pi * progress)) / 2


def stable_then_linear(step: int) -> float:
    if step < WARMUP:
        return step / WARMUP
    return min(1.0, (STEPS - step) / 4)


def raised_cosine_after_high_warmup(step: int) -> float:
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.2 + 0.8 * half_cosine((step - WARMUP + 1) / (STEPS - WARMUP))


# Name: the factor on the learning rate before update number `step` (from 0), and lr_scheduler_kwargs.
CURVES: dict[str, list[tuple[Factor, dict[str, Any]]]] = {
    "linear": [(after_warmup(lambda progress: 1 - progress), {})],
    "cosine": [
        (after_warmup(half_cosine), {}),
        (after_warmup(lambda progress: half_cosine(2 * progress)), {"num_cycles": 1.0}),
    ],
    "cosine_with_restarts": [
        (after_warmup(half_cosine), {}),
        (after_warmup(lambda progress: half_cosine(3 * progress % 1)), {"num_cycles": 3}),
    ],
    "polynomial": [
        (after_warmup(lambda progress: (1e-7 + (RATE - 1e-7) * (1 - progress)) / RATE), {}),
        (after_warmup(lambda progress: 0.1 + 0.9 * (1 - progress) ** 2), {"lr_end": RATE / 10, "power": 2.0}),
    ],
    "constant": [(lambda step: 1.0, {})],
    "constant_with_warmup": [(after_warmup(lambda progress: 1.0), {})],
    "inverse_sqrt": [
        (lambda step: step / WARMUP if step < WARMUP else math.sqrt(WARMUP / step), {}),
        (lambda step: step / WARMUP if step < WARMUP else (1 + (step - WARMUP) / 5) ** -0.5, {"timescale": 5}),
    ],
    "cosine_with_min_lr": [
        (after_warmup(lambda progress: 0.2 + 0.8 * half_cosine(progress)), {"min_lr": RATE / 5}),
        (after_warmup(lambda progress: 0.2 + 0.8 * half_cosine(progress)), {"min_lr_rate": 0.2}),
    ],
    "cosine_warmup_with_min_lr": [(raised_cosine_after_high_warmup, {"min_lr_rate": 0.2})],
    "warmup_stable_decay": [(stable_then_linear, {"num_decay_steps": 4, "decay_type": "linear"})],
}
FOLLOW_A_METRIC = {"reduce_lr_on_plateau", "greedy"}
CASES = [
    pytest.param(name, factor, kwargs, id="-".join([name, *kwargs]))
    for name, curves in CURVES.items()
    for factor, kwargs in curves
]


def optimizer() -> torch.optim.SGD:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)


def rates_of(schedule: Any, used: torch.optim.Optimizer) -> list[float]:
    rates = []
    for _ in range(STEPS):
        rates.append(schedule.get_last_lr()[0])
        used.step()
        schedule.step()
    return rates


@pytest.mark.feature(27)
def test_every_schedule_of_transformers_has_a_curve_here() -> None:
    assert {each.value for each in SchedulerType} == set(CURVES) | FOLLOW_A_METRIC


@pytest.mark.feature(27, 116)
@pytest.mark.parametrize("as_enum", [False, True], ids=["text", "enum"])
@pytest.mark.parametrize(("name", "factor", "kwargs"), CASES)
def test_the_learning_rate_of_every_update_follows_the_formula(
    tmp_path: Path, name: str, factor: Factor, kwargs: dict[str, Any], as_enum: bool
) -> None:
    trainer = line_trainer(
        tmp_path,
        learning_rate=RATE,
        num_train_epochs=4,
        warmup_steps=WARMUP,
        lr_scheduler_type=SchedulerType(name) if as_enum else name,
        lr_scheduler_kwargs=kwargs or None,
    )
    trainer.train()
    expected = [RATE * factor(step) for step in range(STEPS)]
    assert [rate for _, rate in logged(trainer, "learning_rate")] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.feature(117)
@pytest.mark.parametrize("name", sorted({"linear", "cosine", "polynomial", "constant", "inverse_sqrt"}))
def test_the_defaults_warm_up_nothing(tmp_path: Path, name: str) -> None:
    trainer = line_trainer(tmp_path, learning_rate=RATE, lr_scheduler_type=name)
    trainer.train()
    assert logged(trainer, "learning_rate")[0] == (1, RATE)


def test_on_a_plateau_the_rate_falls_by_the_factor_at_every_evaluation_without_progress(tmp_path: Path) -> None:
    trainer = line_trainer(
        tmp_path,
        {"compute_metrics": lambda prediction: {"score": 1.0}},
        learning_rate=RATE,
        num_train_epochs=4,
        eval_strategy="epoch",
        metric_for_best_model="score",
        lr_scheduler_type="reduce_lr_on_plateau",
        lr_scheduler_kwargs={"factor": 0.5, "patience": 0},
    )
    trainer.train()
    # The first evaluation is the best so far; each later one halves the rate of the epoch that follows.
    expected = [RATE * 0.5 ** max(0, step // 3 - 1) for step in range(STEPS)]
    assert [rate for _, rate in logged(trainer, "learning_rate")] == pytest.approx(expected)


def test_the_greedy_schedule_sees_the_metric_of_every_evaluation(tmp_path: Path) -> None:
    kwargs = {"factor": 0.5, "patience": 0, "min_lr": 1e-6}
    trainer = line_trainer(
        tmp_path,
        learning_rate=RATE,
        num_train_epochs=4,
        eval_strategy="epoch",
        metric_for_best_model="loss",
        lr_scheduler_type="greedy",
        lr_scheduler_kwargs=kwargs,
    )
    trainer.train()
    alone = optimizer()
    schedule, expected = GreedyLR(alone, **kwargs), []
    for _, loss in logged(trainer, "eval_loss"):
        expected += 3 * [alone.param_groups[0]["lr"]]
        schedule.step(loss)
    assert len(set(expected)) > 1
    assert [rate for _, rate in logged(trainer, "learning_rate")] == pytest.approx(expected)


@pytest.mark.feature(117)
@pytest.mark.parametrize(
    ("name", "function", "kwargs"),
    [
        ("constant", get_constant_schedule, {}),
        ("constant_with_warmup", get_constant_schedule_with_warmup, {}),
        ("linear", get_linear_schedule_with_warmup, {}),
        ("cosine", get_cosine_schedule_with_warmup, {"num_cycles": 1.0}),
        ("cosine_with_restarts", get_cosine_with_hard_restarts_schedule_with_warmup, {"num_cycles": 3}),
        ("polynomial", get_polynomial_decay_schedule_with_warmup, {"lr_end": RATE / 10, "power": 2.0}),
    ],
)
def test_a_schedule_function_passed_with_its_optimizer_gives_the_curve_of_its_name(
    tmp_path: Path, name: str, function: Callable[..., Any], kwargs: dict[str, Any]
) -> None:
    counts = {
        "constant": {},
        "constant_with_warmup": {"num_warmup_steps": WARMUP},
    }.get(name, {"num_warmup_steps": WARMUP, "num_training_steps": STEPS})
    model = Line()
    own = torch.optim.SGD(model.parameters(), lr=RATE)
    schedule = function(own, **counts, **kwargs)
    trainer = line_trainer(tmp_path, {"model": model, "optimizers": (own, schedule)}, num_train_epochs=4)
    trainer.train()
    by_name = optimizer()
    expected = rates_of(get_scheduler(name, by_name, WARMUP, STEPS, kwargs or None), by_name)
    assert [rate for _, rate in logged(trainer, "learning_rate")] == pytest.approx(expected)
    assert expected == pytest.approx([RATE * curve(step) for curve, used in CURVES[name][-1:] for step in range(STEPS)])


@pytest.mark.feature(117)
def test_a_schedule_goes_on_from_its_last_epoch() -> None:
    whole_optimizer, resumed_optimizer = optimizer(), optimizer()
    whole = rates_of(get_linear_schedule_with_warmup(whole_optimizer, WARMUP, STEPS), whole_optimizer)
    resumed_optimizer.param_groups[0]["initial_lr"] = RATE
    resumed = get_linear_schedule_with_warmup(resumed_optimizer, WARMUP, STEPS, last_epoch=5)
    assert resumed.get_last_lr()[0] == pytest.approx(whole[6])


@pytest.mark.feature(116)
@pytest.mark.parametrize(("name", "missing"), [("linear", "num_training_steps"), ("cosine", "num_warmup_steps")])
def test_a_count_that_a_schedule_needs_and_does_not_get_is_an_error(name: str, missing: str) -> None:
    counts = {"num_warmup_steps": WARMUP, "num_training_steps": STEPS}
    del counts[missing]
    with pytest.raises(ValueError, match=missing):
        get_scheduler(name, optimizer(), **counts)


@pytest.mark.parametrize(
    ("name", "kwargs", "shown"),
    [
        ("cosine_with_min_lr", None, "min_lr"),
        ("linear", {"power": 2.0}, "power"),
        ("polynomial", {"lr_end": 1.0}, "lr_end"),
    ],
)
def test_arguments_that_a_schedule_lacks_or_does_not_take_are_an_error_before_the_first_update(
    tmp_path: Path, name: str, kwargs: dict[str, Any] | None, shown: str
) -> None:
    with pytest.raises(ArgumentError, match=rf"lr_scheduler_type='{name}'.*{shown}"):
        line_trainer(tmp_path, lr_scheduler_type=name, lr_scheduler_kwargs=kwargs, learning_rate=RATE).train()


def trained_by_hand(model: Line, used: Adafactor) -> dict[str, torch.Tensor]:
    """Three updates on the 24 points in their order."""
    data = line_data()
    for start in range(0, len(data), 8):
        samples = data[start : start + 8]
        batch = {name: torch.stack([each[name] for each in samples]) for name in ("x", "labels")}
        model(**batch)["loss"].backward()
        used.step()
        used.zero_grad()
    return weights_of(model)


@pytest.mark.feature(115)
@pytest.mark.parametrize("given", ["optim", "class", "instance"])
def test_adafactor_trains_the_weights_of_a_loop_written_by_hand(tmp_path: Path, given: str) -> None:
    kwargs = {"lr": RATE, "scale_parameter": False, "relative_step": False}
    model, twin = Line(), Line()
    twin.load_state_dict(model.state_dict())
    trainer: dict[str, Any] = {"model": model}
    changes: dict[str, Any] = {}
    if given == "optim":
        changes["optim"] = "adafactor"
    elif given == "class":
        trainer["optimizer_cls_and_kwargs"] = (Adafactor, kwargs)
    else:
        trainer["optimizers"] = (Adafactor(model.parameters(), **kwargs), None)
    ours = line_trainer(
        tmp_path,
        trainer,
        learning_rate=RATE,
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        train_sampling_strategy="sequential",
        **changes,
    )
    ours.train()
    assert isinstance(ours.optimizer, Adafactor)
    expected = trained_by_hand(twin, Adafactor(twin.parameters(), **kwargs))
    for name, weights in weights_of(model).items():
        torch.testing.assert_close(weights, expected[name])


@pytest.mark.feature(115)
def test_the_first_step_of_adafactor_moves_a_bias_by_the_learning_rate(tmp_path: Path) -> None:
    model = Line()
    before = weights_of(model)["linear.bias"]
    trainer = line_trainer(tmp_path, {"model": model}, optim="adafactor", learning_rate=RATE, max_steps=1)
    trainer.train()
    # The first second-moment estimate is the squared gradient itself, so the update is its sign.
    assert (weights_of(model)["linear.bias"] - before).abs().item() == pytest.approx(RATE, rel=1e-5)


@pytest.mark.feature(115)
def test_adafactors_own_relative_steps_are_logged_through_its_proxy_schedule(tmp_path: Path) -> None:
    model = Line()
    own = Adafactor(model.parameters(), scale_parameter=False, relative_step=True, warmup_init=True)
    trainer = line_trainer(
        tmp_path, {"model": model, "optimizers": (own, AdafactorSchedule(own, 0.5))}, num_train_epochs=4
    )
    trainer.train()
    # The proxy shows what the optimizer last used: the initial value before there was any, then 1e-6 per step.
    expected = [0.5, *(1e-6 * step for step in range(1, STEPS))]
    assert [rate for _, rate in logged(trainer, "learning_rate")] == pytest.approx(expected)
