"""Either trainer goes on from the other's checkpoint, and ends where a run that was never stopped ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import TrainerCallback

from hpsearch import Trainer
from tests.support.models import weights_of
from tests.support.parity import STEPS, Script, Stream, assert_same_numbers, make_trainer, ragged

BOTH = {"ours_from_the_peers": (transformers.Trainer, Trainer), "the_peer_from_ours": (Trainer, transformers.Trainer)}
EVERY_STEP = {**STEPS, "save_steps": 1, "eval_steps": 2}
# Each script with the steps to go on from: inside the first epoch, inside a later one, at the end of one.
SCRIPTS: dict[str, tuple[Script, tuple[int, ...]]] = {
    "plain_module": (Script(EVERY_STEP), (1, 8)),
    "classifier_with_dropout": (Script(EVERY_STEP, "classification"), (2, 9)),
    "language_model_of_tied_weights": (Script(EVERY_STEP, "language"), (3,)),
    "end_of_an_epoch": (Script(task="classification"), (6,)),
    "accumulation": (Script({**EVERY_STEP, "gradient_accumulation_steps": 2}, "classification"), (1, 4)),
    "accumulation_with_a_leftover": (Script({**EVERY_STEP, "gradient_accumulation_steps": 4}, "language"), (1, 3)),
    "accumulation_at_the_end_of_an_epoch": (Script({"gradient_accumulation_steps": 4}, "classification"), (2,)),
    "bf16": (Script({**EVERY_STEP, "bf16": True}, "classification"), (4,)),
    "bf16_of_a_plain_module": (Script({**EVERY_STEP, "bf16": True}), (4,)),
    "activation_checkpointing": (Script({**EVERY_STEP, "activation_checkpointing": True}, "classification"), (4,)),
    "noisy_embeddings": (Script({**EVERY_STEP, "neftune_noise_alpha": 5.0}, "classification"), (4,)),
    "cosine_with_warm_up": (Script({**EVERY_STEP, "lr_scheduler_type": "cosine", "warmup_steps": 4}), (2, 7)),
    "plateau": (
        Script(
            {
                **EVERY_STEP,
                "lr_scheduler_type": "reduce_lr_on_plateau",
                "lr_scheduler_kwargs": {"patience": 0, "threshold": 0.9},
            }
        ),
        (3, 6),
    ),
    "adafactor": (Script({**EVERY_STEP, "optim": "adafactor"}, "classification"), (4,)),
    "sgd_with_momentum": (Script({**EVERY_STEP, "optim": "sgd", "optim_args": "momentum=0.9"}), (4,)),
    "other_orders": (Script({**EVERY_STEP, "seed": 3, "data_seed": 5}, "classification"), (4, 10)),
    "grouped_by_length": (
        Script({**EVERY_STEP, "train_sampling_strategy": "group_by_length"}, "classification", ragged),
        (4,),  # in a later epoch, the order of the samples cannot be known from the peer's checkpoint
    ),
    "order_by_the_random_stream": (
        Script({**EVERY_STEP, "accelerator_config": {"use_seedable_sampler": False}}),
        (4,),
    ),
    "stream": (Script({**EVERY_STEP, "max_steps": 6}, parts=lambda: {"train_dataset": Stream(48)}), (2, 5)),
    "worker": (Script({**EVERY_STEP, "dataloader_num_workers": 1}), (3,)),
    "best_so_far": (
        Script({**EVERY_STEP, "save_steps": 2, "load_best_model_at_end": True, "learning_rate": 0.8}),
        (4,),
    ),
}
SMOKE = ("classifier_with_dropout", "accumulation")
CASES = [
    pytest.param(script, step, id=f"{name}-{step}", marks=pytest.mark.smoke if name in SMOKE else ())
    for name, (script, steps) in SCRIPTS.items()
    for step in steps
]


@pytest.mark.feature(92)
@pytest.mark.slow
@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize(("script", "step"), CASES)
def test_going_on_from_the_others_checkpoint_equals_never_stopping(
    tmp_path: Path, script: Script, step: int, direction: str
) -> None:
    writer, reader = BOTH[direction]
    whole = make_trainer(writer, tmp_path / "whole", script)
    whole.train()
    resumed = make_trainer(reader, tmp_path / "resumed", script)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
    assert resumed.state.global_step == whole.state.global_step
    assert_same_numbers(entries(resumed), entries(whole))
    expected = weights_of(whole.model)
    for name, weights in weights_of(resumed.model).items():
        torch.testing.assert_close(weights, expected[name], rtol=1e-4, atol=1e-6, msg=name)
    assert resumed.state.best_metric == pytest.approx(whole.state.best_metric)
    assert resumed.state.best_global_step == whole.state.best_global_step


class StopAt(TrainerCallback):
    """Stops training after a number of updates."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control.should_training_stop |= state.global_step == self.step
        return control


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_run_handed_back_and_forth_equals_one_that_never_stopped(tmp_path: Path, accumulation: int) -> None:
    script = Script(
        {**EVERY_STEP, "gradient_accumulation_steps": accumulation, "num_train_epochs": 4}, "classification"
    )
    whole = make_trainer(Trainer, tmp_path / "whole", script)
    whole.train()
    trainer: Any = None
    for kind, stop in ((Trainer, 1), (transformers.Trainer, 3), (Trainer, 5), (transformers.Trainer, 7), (Trainer, 99)):
        trainer, resume = make_trainer(kind, tmp_path / "handed", script, StopAt(stop)), trainer is not None
        trainer.train(resume_from_checkpoint=resume)
    assert_same_numbers(entries(trainer), entries(whole))


def entries(trainer: Any) -> list[dict[str, Any]]:
    """Return the log lines of updates and evaluations; not the summary, which counts what one process has done."""
    lines = [each for each in trainer.state.log_history if "train_runtime" not in each]
    return [dict(sorted(each.items())) for each in lines]
