"""`train(resume_from_checkpoint=..., reapply_arguments=True)`: a run goes on with hyperparameters of its own.

That they reach the weights is measured with bare torch loops, which change them at the same update.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.optim import lr_scheduler
from torch.utils.data import default_collate
from transformers import TrainerCallback
from transformers.optimization import Adafactor
from transformers.trainer_utils import SchedulerType

from hpsearch import ArgumentError, CheckpointError, InvalidInputError, Trainer, TrainingArguments
from hpsearch.training.hyperparameters import CHANGEABLE, check_changeable
from tests.support.launch import start
from tests.support.models import Line, bert_classifier, classification_data, line_data, weights_of
from tests.support.small_training import make_trainer

FIRST, SECOND = 0.05, 0.02
BY_METRIC = (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)
BY_UPDATE = [each.value for each in SchedulerType if each not in BY_METRIC]
SCHEDULE_KWARGS: dict[str, dict[str, Any]] = {
    "cosine_with_restarts": {"num_cycles": 2},
    "polynomial": {"lr_end": 0.001, "power": 2.0},
    "cosine_with_min_lr": {"min_lr": 0.001},
    "cosine_warmup_with_min_lr": {"min_lr": 0.001, "warmup_lr_rate": 0.3},
    "warmup_stable_decay": {"num_decay_steps": 3},
}


class Updates(TrainerCallback):
    """Notes, for every update, the hyperparameters it is made with; and the weights when training begins."""

    def __init__(self) -> None:
        self.groups: dict[int, list[dict[str, Any]]] = {}
        self.weights: dict[str, torch.Tensor] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.weights = weights_of(kwargs["model"])

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        groups = kwargs["optimizer"].param_groups
        self.groups[state.global_step] = [{k: v for k, v in each.items() if k != "params"} for each in groups]

    def rates(self) -> dict[int, list[float]]:
        return {step: [each["lr"] for each in groups] for step, groups in self.groups.items()}


def trained(folder: Path, resume: Any = None, kind: type = Trainer, reapply: bool = True, **changes: Any) -> Any:
    """A trainer after its run of nine updates, with a checkpoint of each; `updates` notes them."""
    parameters = {name: changes.pop(name) for name in list(changes) if "." in name}
    common = {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 1, "max_grad_norm": 0.0}
    ordered = {"train_sampling_strategy": "sequential", "optim": "adamw_torch"}
    trainer = make_trainer(folder, kind, **{"learning_rate": FIRST, **common, **ordered, **changes})
    if parameters:
        trainer = trainer.with_arguments(**parameters)
    updates = Updates()
    trainer.add_callback(updates)
    if resume is None:
        trainer.train()
    else:
        trainer.train(resume_from_checkpoint=str(resume), reapply_arguments=reapply)
    trainer.updates = updates
    return trainer


def same_weights(one: Any, other: Any) -> bool:
    expected = weights_of(getattr(other, "model", other))
    return all(torch.equal(each, expected[name]) for name, each in weights_of(getattr(one, "model", one)).items())


def bare_loop(start: dict[str, torch.Tensor], kind: Any, fixed: dict[str, Any], phases: dict[int, Any]) -> Line:
    """Nine updates with torch alone; `phases` holds the hyperparameters from an update on, decay for the matrix only.

    The schedule is linear: `rate * (9 - update) / 9`.
    """
    model = Line()
    model.load_state_dict(start)
    groups = [{"params": [model.linear.weight]}, {"params": [model.linear.bias]}]
    optimizer = kind(groups, lr=1.0, **fixed)
    batches = [default_collate(line_data()[start : start + 8]) for start in (0, 8, 16)] * 3
    for step, batch in enumerate(batches):
        present = phases[max(each for each in phases if each <= step)]
        for decays, group in zip((True, False), optimizer.param_groups, strict=True):
            group.update(present, weight_decay=present["weight_decay"] if decays else 0.0)
            group["lr"] = present["lr"] * (float(9 - step) / float(9))
        model(**batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@dataclass(frozen=True)
class Case:
    """An optimizer, with the arguments of two trainers and the same hyperparameters in torch's names."""

    kind: Any
    first: dict[str, Any]
    second: dict[str, Any]
    first_values: dict[str, Any]
    second_values: dict[str, Any]
    fixed: dict[str, Any]


def adam(lr: float, decay: float, beta1: float, beta2: float, eps: float) -> tuple[dict[str, Any], dict[str, Any]]:
    arguments = {"learning_rate": lr, "weight_decay": decay}
    arguments |= {"adam_beta1": beta1, "adam_beta2": beta2, "adam_epsilon": eps}
    return arguments, {"lr": lr, "weight_decay": decay, "betas": (beta1, beta2), "eps": eps}


def others(lr: float, decay: float, **own: float) -> tuple[dict[str, Any], dict[str, Any]]:
    names = {f"optim.{name}": value for name, value in own.items()}
    return {"learning_rate": lr, "weight_decay": decay, **names}, {"lr": lr, "weight_decay": decay, **own}


def case(kind: Any, optim: str, first: Any, second: Any, **fixed: Any) -> Any:
    named = [{"optim": optim, **each[0]} for each in (first, second)]
    return pytest.param(Case(kind, *named, first[1], second[1], fixed), id=optim)


OPTIMIZERS = [
    case(torch.optim.AdamW, "adamw_torch", adam(0.05, 0.1, 0.9, 0.999, 1e-8), adam(0.02, 0.3, 0.7, 0.95, 1e-3)),
    case(
        torch.optim.AdamW,
        "adamw_torch_fused",
        adam(0.05, 0.1, 0.9, 0.999, 1e-8),
        adam(0.02, 0.3, 0.7, 0.95, 1e-3),
        fused=True,
    ),
    case(torch.optim.SGD, "sgd", others(0.05, 0.1, momentum=0.9), others(0.02, 0.3, momentum=0.5)),
    case(torch.optim.RMSprop, "rmsprop", others(0.05, 0.1, alpha=0.9), others(0.02, 0.3, alpha=0.5)),
    case(
        Adafactor,
        "adafactor",
        others(0.05, 0.1, decay_rate=-0.8),
        others(0.02, 0.3, decay_rate=-0.5),
        scale_parameter=False,
        relative_step=False,
    ),
]


@pytest.mark.parametrize("each", OPTIMIZERS)
@pytest.mark.parametrize("step", [1, 3, 5])
def test_every_hyperparameter_of_the_optimizer_is_the_new_one_from_that_update_on(
    tmp_path: Path, each: Case, step: int
) -> None:
    donor = trained(tmp_path / "donor", **each.first)
    assert same_weights(donor, bare_loop(donor.updates.weights, each.kind, each.fixed, {0: each.first_values}))
    run = trained(tmp_path / "run", tmp_path / "donor" / f"checkpoint-{step}", **each.second)
    phases = {0: each.first_values, step: each.second_values}
    assert same_weights(run, bare_loop(donor.updates.weights, each.kind, each.fixed, phases))


def test_only_the_new_learning_rate_explains_the_weights(tmp_path: Path) -> None:
    values = adam(FIRST, 0.1, 0.9, 0.999, 1e-8)[1]
    donor = trained(tmp_path / "donor", weight_decay=0.1)
    run = trained(tmp_path / "run", tmp_path / "donor" / "checkpoint-4", weight_decay=0.1, learning_rate=SECOND)
    ends = [
        bare_loop(donor.updates.weights, torch.optim.AdamW, {}, phases)
        for phases in ({0: values, 4: {**values, "lr": SECOND}}, {0: values}, {0: {**values, "lr": SECOND}})
    ]
    assert [same_weights(run, each) for each in ends] == [True, False, False]
    logged = [each["learning_rate"] for each in run.state.log_history if "learning_rate" in each]
    rates = [FIRST] * 4 + [SECOND] * 5
    assert logged == [rate * (float(9 - step) / float(9)) for step, rate in enumerate(rates)]


def chain(folder: Path, **changes: Any) -> Any:
    trained(folder / "a", learning_rate=FIRST, **changes)
    trained(folder / "b", folder / "a" / "checkpoint-3", learning_rate=SECOND, **changes)
    return trained(folder / "c", folder / "b" / "checkpoint-5", learning_rate=0.08, weight_decay=0.2, **changes)


def test_a_chain_of_changes_equals_the_bare_loop_and_itself_once_more(tmp_path: Path) -> None:
    first, again = chain(tmp_path / "first"), chain(tmp_path / "again")
    assert same_weights(first, again)
    assert first.updates.rates() == again.updates.rates()
    start = trained(tmp_path / "start", num_train_epochs=1).updates.weights
    one = adam(FIRST, 0.0, 0.9, 0.999, 1e-8)[1]
    phases = {0: one, 3: {**one, "lr": SECOND}, 5: {**one, "lr": 0.08, "weight_decay": 0.2}}
    assert same_weights(first, bare_loop(start, torch.optim.AdamW, {}, phases))


def test_a_chain_with_dropout_and_a_random_order_gives_the_same_weights_again(tmp_path: Path) -> None:
    parts: dict[str, Any] = {"train_dataset": classification_data(24), "eval_dataset": None}
    parts |= {"model_init": lambda: bert_classifier(dropout=0.2), "train_sampling_strategy": "random"}
    first, again = chain(tmp_path / "first", **parts), chain(tmp_path / "again", **parts)
    assert same_weights(first, again)


def test_data_and_random_numbers_go_on_from_the_checkpoint(tmp_path: Path) -> None:
    parts: dict[str, Any] = {"train_dataset": classification_data(24), "eval_dataset": None}
    parts |= {"model_init": lambda: bert_classifier(dropout=0.2), "train_sampling_strategy": "random"}
    whole = trained(tmp_path / "whole", **parts)
    for step in (2, 3, 7):
        assert same_weights(trained(tmp_path / "run", tmp_path / "whole" / f"checkpoint-{step}", **parts), whole)


def test_weight_decay_does_not_reach_biases_and_norms(tmp_path: Path) -> None:
    parts: dict[str, Any] = {"train_dataset": classification_data(24), "eval_dataset": None}
    parts["model_init"] = bert_classifier
    trained(tmp_path / "donor", weight_decay=0.1, **parts)
    run = trained(tmp_path / "run", tmp_path / "donor" / "checkpoint-3", weight_decay=0.3, **parts)
    assert {step: [each["weight_decay"] for each in groups] for step, groups in run.updates.groups.items()} == {
        step: [0.3, 0.0] for step in range(3, 9)
    }
    names = {id(parameter): name for name, parameter in run.model.named_parameters()}
    spared = [names[id(each)] for each in run.optimizer.param_groups[1]["params"]]
    assert spared
    assert all("bias" in each or "LayerNorm" in each for each in spared)


def test_without_it_the_hyperparameters_of_the_checkpoint_go_on(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", weight_decay=0.1)
    other = {"learning_rate": SECOND, "weight_decay": 0.3, "adam_beta1": 0.5}
    run = trained(tmp_path / "run", tmp_path / "whole" / "checkpoint-4", reapply=False, **other)
    assert same_weights(run, whole)
    assert run.updates.groups == {step: whole.updates.groups[step] for step in range(4, 9)}


@pytest.mark.parametrize("step", [2, 6])
@pytest.mark.parametrize("schedule", BY_UPDATE)
def test_every_schedule_goes_on_at_its_position_from_the_new_rate(tmp_path: Path, schedule: str, step: int) -> None:
    changes: dict[str, Any] = {"lr_scheduler_type": schedule}
    changes["lr_scheduler_kwargs"] = SCHEDULE_KWARGS.get(schedule)
    if schedule != "constant":
        changes["warmup_steps"] = 4
    trained(tmp_path / "donor", **changes)
    whole = trained(tmp_path / "whole", learning_rate=SECOND, **changes)
    run = trained(tmp_path / "run", tmp_path / "donor" / f"checkpoint-{step}", learning_rate=SECOND, **changes)
    assert run.updates.rates() == {each: whole.updates.rates()[each] for each in range(step, 9)}
    logged = [[each["learning_rate"]] * 2 for each in run.state.log_history if "learning_rate" in each]
    assert logged[step:] == list(run.updates.rates().values())
    assert run.lr_scheduler.state_dict()["base_lrs"] == [SECOND, SECOND]


PLATEAU = {"patience": 0, "threshold": 0.99, "factor": 0.5}
GREEDY = {"patience": 0, "threshold": 0.0, "factor": 0.5, "min_lr": 0.0, "max_lr": 10.0}


@pytest.mark.parametrize(
    ("schedule", "kwargs", "factors"),
    [("reduce_lr_on_plateau", PLATEAU, [1, 1, 0.5, 0.25]), ("greedy", GREEDY, [1, 2, 4, 8])],
)
def test_a_schedule_by_a_metric_keeps_its_changes_so_far(
    tmp_path: Path, schedule: str, kwargs: Any, factors: list[float]
) -> None:
    changes: dict[str, Any] = {"lr_scheduler_type": schedule, "lr_scheduler_kwargs": kwargs, "optim": "sgd"}
    changes |= {"eval_strategy": "epoch", "num_train_epochs": 4, "learning_rate": 0.01}
    donor = trained(tmp_path / "donor", **changes)
    assert donor.updates.rates() == {step: [0.01 * factors[step // 3]] * 2 for step in range(12)}
    first = trained(tmp_path / "first", tmp_path / "donor" / "checkpoint-7", **{**changes, "learning_rate": 0.003})
    assert first.updates.rates() == {step: [0.003 * factors[step // 3]] * 2 for step in range(7, 12)}
    second = trained(tmp_path / "second", tmp_path / "first" / "checkpoint-8", **{**changes, "learning_rate": 0.007})
    assert second.updates.rates() == {step: [0.007 * factors[step // 3]] * 2 for step in range(8, 12)}
    same = trained(tmp_path / "same", tmp_path / "donor" / "checkpoint-10", **changes)
    assert same_weights(same, donor)


@pytest.mark.parametrize(("lowest", "expected"), [(0.004, 0.004), (0.02, 0.01)])
def test_a_reduced_rate_stays_within_the_limits_of_the_schedule(tmp_path: Path, lowest: float, expected: float) -> None:
    kwargs = {**PLATEAU, "min_lr": lowest}
    changes: dict[str, Any] = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": kwargs}
    changes |= {"eval_strategy": "epoch", "num_train_epochs": 4}
    trained(tmp_path / "donor", learning_rate=0.08, **changes)
    run = trained(tmp_path / "run", tmp_path / "donor" / "checkpoint-11", learning_rate=0.01, **changes)
    assert run.updates.rates() == {11: [expected] * 2}


def test_a_plateau_schedule_without_its_first_rates_is_refused(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"}
    trained(tmp_path / "peer", kind=transformers.Trainer, **changes)
    with pytest.raises(CheckpointError, match="does not hold the initial learning rates of its ReduceLROnPlateau"):
        trained(tmp_path / "run", tmp_path / "peer" / "checkpoint-5", learning_rate=SECOND, **changes)


def test_a_checkpoint_of_transformers_goes_on_with_other_hyperparameters(tmp_path: Path) -> None:
    peer = trained(tmp_path / "peer", kind=transformers.Trainer)
    run = trained(tmp_path / "run", tmp_path / "peer" / "checkpoint-4", learning_rate=SECOND)
    one = adam(FIRST, 0.0, 0.9, 0.999, 1e-8)[1]
    phases = {0: one, 4: {**one, "lr": SECOND}}
    assert same_weights(run, bare_loop(peer.updates.weights, torch.optim.AdamW, {}, phases))


class OwnSchedule(Trainer):
    """Makes the schedule that `kind` says."""

    kind: Any = None

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        self.lr_scheduler = self.kind(self.optimizer)
        return self.lr_scheduler


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5),
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=9, eta_min=0.001),
        lambda optimizer: lr_scheduler.LambdaLR(optimizer, [lambda step: 0.9**step, lambda step: 0.8**step]),
    ],
    ids=["step", "cosine", "lambdas"],
)
def test_a_schedule_of_torch_goes_on_from_the_new_rate(tmp_path: Path, schedule: Any) -> None:
    kind = type("Own", (OwnSchedule,), {"kind": staticmethod(schedule)})
    trained(tmp_path / "donor", kind=kind)
    whole = trained(tmp_path / "whole", kind=kind, learning_rate=SECOND)
    run = trained(tmp_path / "run", tmp_path / "donor" / "checkpoint-5", kind=kind, learning_rate=SECOND)
    for step in range(5, 9):
        assert run.updates.rates()[step] == pytest.approx(whole.updates.rates()[step], rel=1e-12)


def test_a_schedule_that_cannot_tell_its_rate_for_another_base_is_refused(tmp_path: Path) -> None:
    def cycle(optimizer: Any) -> Any:
        return lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=9)

    kind = type("Own", (OwnSchedule,), {"kind": staticmethod(cycle)})
    trained(tmp_path / "donor", kind=kind)
    with pytest.raises(InvalidInputError, match="OneCycleLR does not give"):
        trained(tmp_path / "run", tmp_path / "donor" / "checkpoint-5", kind=kind)


class Counts(torch.optim.SGD):
    """Keeps a counter among its hyperparameters, as schedule-free optimizers do."""

    def __init__(self, params: Any, lr: float, damping: float = 1.0) -> None:
        super().__init__(params, lr=lr)
        self.defaults |= {"made": 0, "damping": damping}
        for group in self.param_groups:
            group.update(made=0, damping=damping)

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["made"] += 1
        super().step(closure)


def test_what_an_optimizer_counts_in_its_groups_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    trained(tmp_path / "donor", optimizer_cls_and_kwargs=(Counts, {"lr": FIRST, "damping": 1.0}))
    second = (Counts, {"lr": SECOND, "damping": 0.5})
    run = trained(tmp_path / "run", tmp_path / "donor" / "checkpoint-5", optimizer_cls_and_kwargs=second)
    assert {step: (each[0]["made"], each[0]["damping"]) for step, each in run.updates.groups.items()} == {
        step: (step, 0.5) for step in range(5, 9)
    }


class Scaled(Trainer):
    """Trains with a gradient scaler on the CPU, so with accelerate's wrapped optimizer."""

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        super().create_optimizer_and_scheduler(num_training_steps)


def test_the_gradient_scaler_goes_on_and_the_wrapped_optimizer_takes_the_new_values(tmp_path: Path) -> None:
    first, values = adam(FIRST, 0.1, 0.9, 0.999, 1e-8)
    second, other_values = adam(SECOND, 0.3, 0.7, 0.95, 1e-3)
    donor = trained(tmp_path / "donor", kind=Scaled, **first)
    run = trained(tmp_path / "run", tmp_path / "donor" / "checkpoint-4", kind=Scaled, **second)
    assert type(run.optimizer).__name__ == "AcceleratedOptimizer"
    assert run.accelerator.scaler.state_dict() == donor.accelerator.scaler.state_dict()
    assert run.accelerator.scaler.get_scale() == 2.0**14
    expected = weights_of(bare_loop(donor.updates.weights, torch.optim.AdamW, {}, {0: values, 4: other_values}))
    for name, weights in weights_of(run.model).items():
        torch.testing.assert_close(weights, expected[name])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"per_device_train_batch_size": 4}),
        ({}, {"gradient_accumulation_steps": 3}),
        ({"max_steps": 9}, {"max_steps": 9, "per_device_train_batch_size": 4}),
    ],
)
def test_other_samples_in_an_update_are_refused(tmp_path: Path, first: Any, second: Any) -> None:
    trained(tmp_path / "donor", **first)
    with pytest.raises(CheckpointError, match=r"the same number of samples per step as before"):
        trained(tmp_path / "run", tmp_path / "donor" / "checkpoint-6", **second)


@pytest.mark.parametrize("step", [3, 5])
def test_the_same_samples_in_smaller_batches_go_on(tmp_path: Path, step: int) -> None:
    trained(tmp_path / "donor")
    changes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": SECOND}
    run = trained(tmp_path / "run", tmp_path / "donor" / f"checkpoint-{step}", **changes)
    whole = trained(tmp_path / "whole", tmp_path / "donor" / f"checkpoint-{step}", learning_rate=SECOND)
    assert run.state.global_step == 9
    for name, weights in weights_of(run.model).items():
        torch.testing.assert_close(weights, weights_of(whole.model)[name])


def test_a_run_can_be_made_longer_and_take_another_rate(tmp_path: Path) -> None:
    trained(tmp_path / "donor")
    run = trained(tmp_path / "run", tmp_path / "donor" / "checkpoint-9", num_train_epochs=5, learning_rate=SECOND)
    assert run.updates.rates() == {step: [SECOND * (float(15 - step) / 15.0)] * 2 for step in range(9, 15)}


@pytest.mark.parametrize(("name", "value"), [("amsgrad", True), ("foreach", True)])
def test_a_switch_of_the_optimizer_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    trained(tmp_path / "donor")
    with pytest.raises(CheckpointError, match=f"{name}=(False|None), and this run has {name}=True"):
        trained(tmp_path / "run", tmp_path / "donor" / "checkpoint-5", **{f"optim.{name}": value})


def test_the_parameters_of_a_trial_are_reapplied(tmp_path: Path) -> None:
    trained(tmp_path / "donor")
    checkpoint = tmp_path / "donor" / "checkpoint-4"
    expected = trained(tmp_path / "run", checkpoint, learning_rate=SECOND)
    trainer = trained(tmp_path / "trial")
    trainer.train(resume_from_checkpoint=str(checkpoint), trial={"learning_rate": SECOND}, reapply_arguments=True)
    assert same_weights(trainer, expected)


def test_it_stands_behind_the_arguments_that_transformers_has() -> None:
    ours, peers = (inspect.signature(each.train).parameters for each in (Trainer, transformers.Trainer))
    assert list(ours) == [*peers, "reapply_arguments"]
    assert ours["reapply_arguments"].kind == inspect.Parameter.KEYWORD_ONLY


class TooLarge(Line):
    """Runs out of memory at its third forward of more than seven samples."""

    def __init__(self) -> None:
        super().__init__()
        self.forwards = 0

    def forward(self, x: torch.Tensor, labels: Any = None) -> Any:
        self.forwards += 1
        if len(x) > 7 and self.forwards > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return super().forward(x, labels)


def test_an_attempt_without_enough_memory_leaves_the_checkpoint_as_it_was_for_the_next(tmp_path: Path) -> None:
    trained(tmp_path / "donor")
    changes: dict[str, Any] = {"model_init": TooLarge, "num_train_epochs": 4, "reapply": False}
    checkpoint = tmp_path / "donor" / "checkpoint-3"
    found = trained(tmp_path / "found", checkpoint, auto_find_batch_size=True, **changes)
    asked = trained(tmp_path / "asked", checkpoint, per_device_train_batch_size=7, **changes)
    assert found.state.train_batch_size == 7
    assert found.state.global_step == asked.state.global_step
    assert [(each["step"], each.get("loss")) for each in found.state.log_history] == [
        (each["step"], each.get("loss")) for each in asked.state.log_history
    ]


# Which hyperparameters can change.

SIZEABLE: dict[str, Any] = {
    "learning_rate": SECOND,
    "weight_decay": 0.9,
    "adam_beta1": 0.5,
    "adam_beta2": 0.9,
    "adam_epsilon": 0.1,
    "max_grad_norm": 0.01,
    "label_smoothing_factor": 0.5,
    "neftune_noise_alpha": 20.0,
}


@pytest.mark.parametrize("name", CHANGEABLE)
def test_what_can_change_does_change_the_rest_of_the_run(tmp_path: Path, name: str) -> None:
    parts: dict[str, Any] = {"train_dataset": classification_data(24), "eval_dataset": None}
    parts["model_init"] = bert_classifier
    donor = trained(tmp_path / "donor", learning_rate=1e-3, **parts)
    changed = {"learning_rate": 1e-3, name: SIZEABLE[name]}
    run = trained(tmp_path / "run", tmp_path / "donor" / "checkpoint-3", **parts, **changed)
    assert not same_weights(run, donor)
    check_changeable(name, run.args)


@dataclass
class OwnArguments(TrainingArguments):
    temperature: float = 1.0


def test_an_argument_that_a_users_class_adds_can_change(tmp_path: Path) -> None:
    check_changeable("temperature", OwnArguments(str(tmp_path), use_cpu=True))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "schedule and length of the whole run") for name in ("num_train_epochs", "max_steps", "warmup_steps")),
        *((name, "schedule and length of the whole run") for name in ("lr_scheduler_type", "lr_scheduler_kwargs")),
        ("per_device_train_batch_size", "another number of samples"),
        ("gradient_accumulation_steps", "another number of samples"),
        *(
            (name, "continue from where the checkpoint was written")
            for name in ("seed", "data_seed", "train_sampling_strategy")
        ),
        ("optim", "the state of the optimizer"),
        ("optim_args", "as in 'optim.momentum'"),
        *((name, "when a model is built") for name in ("model.layers", "lora.r", "data.length")),
        *((name, "set for a whole run") for name in ("bf16", "eval_steps", "output_dir", "ray_scope", "fsdp")),
        ("optim.nesterov", "which state it keeps"),
        ("optim.fused", "which state it keeps"),
        ("optim.mometum", "SGD does not take it"),
    ],
)
def test_what_cannot_change_is_refused_with_its_reason(tmp_path: Path, name: str, reason: str) -> None:
    args = TrainingArguments(str(tmp_path), use_cpu=True, optim="sgd")
    with pytest.raises(ArgumentError, match=rf"'{name}' cannot change when a run resumes: .*{reason}"):
        check_changeable(name, args)


def test_parameters_of_the_optimizer_can_change_if_it_reads_them_at_every_update(tmp_path: Path) -> None:
    sgd, adagrad = (TrainingArguments(str(tmp_path), use_cpu=True, optim=each) for each in ("sgd", "adagrad"))
    check_changeable("optim.momentum", sgd)
    check_changeable("optim.damping", sgd, optimizer=Counts)
    with pytest.raises(ArgumentError, match="Adagrad reads it only at the start"):
        check_changeable("optim.initial_accumulator_value", adagrad)
    with pytest.raises(ArgumentError, match=r"'lerning_rate' is not a training argument.*'learning_rate'"):
        check_changeable("lerning_rate", sgd)


# In two processes, with a model in each, and with one that is spread over them.


@pytest.mark.distributed
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_in_two_processes_it_gives_what_one_process_gives(tmp_path: Path, how: str) -> None:
    one = changed_run(tmp_path / "one", "plain")
    start("torchrun", __name__, [str(tmp_path / "two"), how])
    two = json.loads((tmp_path / "two" / "report.json").read_text())
    assert two["wrapper"] == "AcceleratedOptimizer"
    rates = {step: SECOND * (float(9 - step) / float(9)) for step in range(4, 9)}
    assert one["groups"] == {str(step): [[rate, 0.3], [rate, 0.0]] for step, rate in rates.items()}
    assert two["groups"] == one["groups"]
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-4)


def changed_run(folder: Path, how: str) -> dict[str, Any]:
    """Train on from a checkpoint with another rate and decay; the updates hold as many samples in any `how`."""
    spread = {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["BertLayer"]}}
    parts: dict[str, Any] = {"train_dataset": classification_data(24), "eval_dataset": None, "report_to": "none"}
    parts |= {"model_init": lambda: bert_classifier(dropout=0.0), **(spread if how == "fsdp" else {})}
    parts["per_device_train_batch_size"] = 8 if how == "plain" else 4
    trained(folder, **parts, weight_decay=0.1)
    run = trained(folder, folder / "checkpoint-4", learning_rate=SECOND, weight_decay=0.3, **parts)
    groups = run.updates.groups.items()
    report = {
        "groups": {str(step): [[each["lr"], each["weight_decay"]] for each in noted] for step, noted in groups},
        "losses": [each["loss"] for each in run.state.log_history if "loss" in each],
        "wrapper": type(run.optimizer).__name__,
    }
    if run.is_world_process_zero():
        (folder / "report.json").write_text(json.dumps(report))
    return report


if __name__ == "__main__":
    changed_run(Path(sys.argv[1]), sys.argv[2])
    torch.distributed.barrier()
    os._exit(0)  # torch's gloo threads now and then abort a process that ends by itself
