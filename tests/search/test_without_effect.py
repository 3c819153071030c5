"""Parameters that change no trial are named before the first one, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import get_scheduler
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames

from hpsearch import Float, Int, Trainer, TrainingArguments
from hpsearch.search.result.advice import advice
from hpsearch.search.space.without_effect import WITHOUT_ADAM, WITHOUT_WARMUP, without_effect
from hpsearch.training.optimization import optimizer_class_and_kwargs
from tests.support.searching import HearsNotices
from tests.support.small_trainer import TwoLayers, small_trainer

ADAM = {"adam_beta1": 0.5, "adam_beta2": 0.5, "adam_epsilon": 0.1}
# What a schedule needs besides.
OF_SCHEDULES = {
    "cosine_with_min_lr": {"min_lr": 0.1},
    "cosine_warmup_with_min_lr": {"min_lr": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 3},
}


@pytest.mark.parametrize("argument", ADAM)
@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused", "adafactor", "adagrad", "rmsprop", "sgd"])
def test_an_optimizer_is_listed_if_transformers_gives_it_nothing_of_adam(optim: str, argument: str) -> None:
    """Of those that need no further package."""

    def given(**arguments: Any) -> Any:
        return optimizer_class_and_kwargs(TrainingArguments("out", use_cpu=True, optim=optim, **arguments))

    assert (given() == given(**{argument: ADAM[argument]})) == (optim in WITHOUT_ADAM)


@pytest.mark.parametrize("schedule", [each.value for each in SchedulerType])
def test_a_schedule_is_listed_if_warmup_steps_change_no_rate(schedule: str) -> None:
    def rates(warmup: int) -> list[float]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        made = get_scheduler(schedule, optimizer, warmup, 20, OF_SCHEDULES.get(schedule, {}))
        seen = []
        for _ in range(8):
            seen.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            made.step(*([1.0] if schedule in ("greedy", "reduce_lr_on_plateau") else []))
        return seen

    assert (rates(0) == rates(5)) == (schedule in WITHOUT_WARMUP)


def test_only_names_of_transformers_are_listed() -> None:
    assert {each.value for each in OptimizerNames} > WITHOUT_ADAM
    assert {each.value for each in SchedulerType} > WITHOUT_WARMUP


@pytest.mark.parametrize(
    ("searched", "arguments", "expected"),
    [
        (["adam_beta1", "adam_epsilon"], {"optim": OptimizerNames.SGD}, ["adam_beta1", "adam_epsilon"]),
        (["adam_beta1"], {"optim": "adamw_torch"}, []),
        (["adam_beta1", "optim"], {"optim": "sgd"}, []),
        (["adam_beta1"], {}, []),
        (["warmup_steps"], {"optim": "sgd", "lr_scheduler_type": SchedulerType.CONSTANT}, ["warmup_steps"]),
        (["warmup_ratio"], {"optim": "sgd", "lr_scheduler_type": "constant"}, ["warmup_ratio"]),
        (["warmup_steps"], {"optim": "sgd", "lr_scheduler_type": "constant_with_warmup"}, []),
        (["warmup_steps"], {"optim": "schedule_free_adamw", "lr_scheduler_type": "constant"}, []),
        (["warmup_steps"], {"lr_scheduler_type": "constant"}, []),
        (["warmup_steps", "lr_scheduler_type"], {"optim": "sgd", "lr_scheduler_type": "constant"}, []),
        (["num_train_epochs"], {"max_steps": 3}, ["num_train_epochs"]),
        (["num_train_epochs"], {"max_steps": -1}, []),
        (["num_train_epochs", "max_steps"], {"max_steps": 3}, []),
        (["adam_beta1", "warmup_steps"], {"optim": "sgd", "lr_scheduler_type": "constant", "deepspeed": "a.json"}, []),
        (["adam_beta1", "warmup_steps"], {"optim": [], "lr_scheduler_type": {}, "max_steps": "3"}, []),
    ],
)
def test_a_parameter_has_no_effect_if_an_argument_of_all_trials_settles_it(
    searched: list[str], arguments: dict[str, Any], expected: list[str]
) -> None:
    assert list(without_effect(searched, arguments, has_own_optimizer=False)) == expected


class MakesOptimizer(Trainer):
    def create_optimizer(self, model: Any = None) -> Any:
        self.optimizer = torch.optim.Adam(self.model.parameters(), betas=(self.args.adam_beta1, 0.99))
        return self.optimizer


@pytest.mark.parametrize(
    ("kind", "optimizer", "is_said"),
    [(Trainer, None, True), (MakesOptimizer, None, False), (Trainer, (torch.optim.AdamW, {}), False)],
)
def test_nothing_is_said_of_what_code_of_ones_own_may_read(
    tmp_path: Path, kind: type[Trainer], optimizer: Any, is_said: bool
) -> None:
    trainer = small_trainer(tmp_path, model_init=TwoLayers, kind=kind, optim="sgd", lr_scheduler_type="constant")
    trainer.optimizer_cls_and_kwargs = optimizer
    space = {"adam_beta1": Float(0.5, 0.9), "warmup_steps": Int(0, 4), "seed": Int(0, 9)}
    starts = [{"adam_beta1": 0.5, "warmup_steps": 0, "seed": seed} for seed in (1, 2)]
    heard = HearsNotices()
    best = trainer.hyperparameter_search(
        space, "loss", direction="minimize", n_trials=2, start_with=starts, progress=heard
    )
    without = [each.split()[0] for each in heard.notices if " has no effect, as " in each]
    assert without == (["adam_beta1", "warmup_steps"] if is_said else [])
    found = advice(best.run_summary.study, best.run_summary.records)
    assert any(each.startswith("The best adam_beta1, 0.5, is at its lower") for each in found) == (not is_said)
