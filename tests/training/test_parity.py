"""Our trainer gives the numbers of transformers' trainer: same seed, data and arguments, on CPU."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from hpsearch import Trainer, TrainingArguments
from tests.models import accuracy, bert_classifier, classification_data, gpt2_language_model, language_data

COMMON: dict[str, Any] = {
    "learning_rate": 1e-3,
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 16,
    "num_train_epochs": 2,
    "logging_steps": 1,
    "eval_strategy": "epoch",
    "save_strategy": "no",
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "short_last_batch": {"per_device_train_batch_size": 7},
    "accumulation_with_a_leftover": {"gradient_accumulation_steps": 3},
    "fractional_epochs": {"num_train_epochs": 1.6},
    "warm_up_steps": {"warmup_steps": 5, "lr_scheduler_type": "cosine"},
    "warm_up_ratio": {"warmup_steps": 0.3},
    "tight_clipping": {"max_grad_norm": 0.05},
    "no_clipping": {"max_grad_norm": 0.0},
    "weight_decay_groups": {"weight_decay": 0.3, "adam_beta1": 0.8, "adam_beta2": 0.9},
    "max_steps": {"max_steps": 11},
    "evaluation_by_steps": {"eval_strategy": "steps", "eval_steps": 4, "logging_steps": 3},
    "label_smoothing": {"label_smoothing_factor": 0.2},
    "length_grouping": {"train_sampling_strategy": "group_by_length"},
    "other_seed": {"seed": 7, "data_seed": 3},
    "plateau_schedule": {"lr_scheduler_type": "reduce_lr_on_plateau", "metric_for_best_model": "loss"},
    "adafactor": {"optim": "adafactor"},
}
TASKS: dict[str, Any] = {
    "bert": (lambda: bert_classifier(dropout=0.1), classification_data, accuracy),
    "gpt2": (gpt2_language_model, language_data, None),
}


def train_both(tmp_path: Any, task: str, changes: dict[str, Any], dict_eval: bool = False) -> tuple[Any, Any]:
    model_init, make_data, metrics = TASKS[task]
    evaluation: Any = make_data(size=21, seed=1)
    if dict_eval:
        evaluation = {"dev": evaluation, "other set": make_data(size=13, seed=2)}
    histories = []
    for trainer_class, arguments in (
        (transformers.Trainer, transformers.TrainingArguments),
        (Trainer, TrainingArguments),
    ):
        trainer = trainer_class(
            model_init=model_init,
            args=arguments(str(tmp_path / trainer_class.__module__), **{**COMMON, **changes}),
            train_dataset=make_data(),
            eval_dataset=evaluation,
            compute_metrics=metrics,
        )
        trainer.remove_callback(transformers.PrinterCallback)
        output = trainer.train()
        histories.append((trainer.state.log_history, output, trainer.evaluate()))
    return histories[0], histories[1]


def assert_same_numbers(peer: Any, ours: Any) -> None:
    ignored = ("runtime", "per_second", "preparation_time")
    peer_history, peer_output, peer_final = peer
    our_history, our_output, our_final = ours
    assert len(our_history) == len(peer_history)
    for our_entry, peer_entry in zip([*our_history, our_final], [*peer_history, peer_final], strict=True):
        expected = {key: value for key, value in peer_entry.items() if not key.endswith(ignored)}
        received = {key: value for key, value in our_entry.items() if not key.endswith(ignored)}
        assert list(received) == list(expected)
        assert received == pytest.approx(expected, rel=1e-5)
    assert our_output.global_step == peer_output.global_step
    assert our_output.training_loss == pytest.approx(peer_output.training_loss, rel=1e-5)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("case", CASES)
def test_every_logged_loss_and_the_final_evaluation_equal_the_peers(tmp_path: Any, task: str, case: str) -> None:
    peer, ours = train_both(tmp_path, task, CASES[case])
    assert_same_numbers(peer, ours)


def test_each_of_several_evaluation_sets_gives_the_peers_metrics(tmp_path: Any) -> None:
    peer, ours = train_both(tmp_path, "bert", {}, dict_eval=True)
    assert "eval_other set_accuracy" in ours[2]
    assert_same_numbers(peer, ours)
