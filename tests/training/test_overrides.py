"""Subclasses: what of transformers' Trainer may be overridden here, and what is refused because it is never called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import SequentialSampler

from hpsearch import InvalidInputError, Trainer, TrainingArguments
from tests.support.models import Line, line_data


def train(kind: type[Trainer], folder: Path, **changes: Any) -> Trainer:
    args = TrainingArguments(
        str(folder), use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", max_steps=3, **changes
    )
    trainer = kind(Line(), args, train_dataset=line_data(), eval_dataset=line_data(6))
    trainer.train()
    return trainer


@pytest.mark.parametrize("name", ["_save_checkpoint", "_inner_training_loop", "get_batch_samples", "_wrap_model"])
def test_an_override_that_would_never_be_called_is_refused_by_name(tmp_path: Path, name: str) -> None:
    kind = type("Custom", (Trainer,), {name: lambda self, *args, **kwargs: None})
    with pytest.raises(InvalidInputError, match=rf"Custom\.{name} would never be called"):
        kind(Line(), TrainingArguments(str(tmp_path), use_cpu=True))


def test_the_samplers_and_the_inputs_may_be_overridden_under_the_names_they_have_in_transformers(
    tmp_path: Path,
) -> None:
    called: list[str] = []

    class Custom(Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            called.append("train")
            return SequentialSampler(train_dataset)

        def _get_eval_sampler(self, eval_dataset: Any) -> Any:
            called.append("eval")
            return super()._get_eval_sampler(eval_dataset)

        def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
            called.append("inputs")
            return super()._prepare_inputs(inputs)

    trainer = train(Custom, tmp_path)
    assert called == ["train", *["inputs"] * 3]
    trainer.evaluate()
    assert called[4:] == ["eval", "inputs"]


def test_a_training_step_of_the_documented_older_form_works(tmp_path: Path) -> None:
    class Custom(Trainer):
        def training_step(self, model: Any, inputs: Any) -> torch.Tensor:
            loss = self.compute_loss(model, self._prepare_inputs(inputs))
            self.accelerator.backward(loss)
            return loss.detach()

    assert train(Custom, tmp_path).state.global_step == 3


def test_what_scripts_ask_of_a_trainer_is_there(tmp_path: Path) -> None:
    trainer = train(Trainer, tmp_path, gradient_accumulation_steps=2, per_device_train_batch_size=4)
    assert trainer.label_names == ["labels"]
    assert trainer.get_num_trainable_parameters() == 3
    assert trainer.get_learning_rates() == [0.0, 0.0]
    assert trainer.get_total_train_batch_size() == 8
    assert trainer.metrics_format({"train_runtime": 61.5}) == {"train_runtime": "0:01:01.50"}
    trainer.log_metrics(split="train", metrics={"loss": 1.0})
    trainer.save_metrics(split="train", metrics={"loss": 1.0})
    assert (tmp_path / "train_results.json").is_file()


def test_bar_and_printer_come_last_so_that_callbacks_may_change_what_they_show(tmp_path: Path) -> None:
    from hpsearch import PrinterCallback, TrainerCallback

    class Own(TrainerCallback):
        pass

    args = TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True, report_to="none")
    trainer = Trainer(Line(), args, callbacks=[Own()])
    assert [type(each) for each in trainer.callback_handler.callbacks][-2:] == [Own, PrinterCallback]


def test_attributes_that_a_script_adds_to_its_arguments_are_in_their_copies(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), use_cpu=True)
    args.custom = 5  # type: ignore[attr-defined]
    assert args.replace(seed=1).custom == 5  # type: ignore[attr-defined]


def test_arguments_that_are_refused_while_a_run_goes_on_leave_it_undisturbed(tmp_path: Path) -> None:
    trainer = train(Trainer, tmp_path)
    with pytest.raises(ValueError, match="tf32"):
        TrainingArguments("other", use_cpu=True, tf32=True)
    assert "eval_loss" in trainer.evaluate()


@pytest.mark.filterwarnings("ignore:.*deterministic.*:UserWarning")
def test_full_determinism_ends_with_its_run(tmp_path: Path) -> None:
    train(Trainer, tmp_path, full_determinism=True)
    assert torch.are_deterministic_algorithms_enabled()
    train(Trainer, tmp_path)
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_accelerate_would_do_in_accumulation_is_refused_where_the_loop_does_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sync_each_batch"):
        train(Trainer, tmp_path, accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}})


@pytest.mark.parametrize("changes", [{"num_train_epochs": 0, "max_steps": -1}, {"max_steps": 0}])
def test_no_updates_at_all_are_accepted_for_evaluation_and_refused_by_training(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, **changes)
    trainer = Trainer(Line(), args, train_dataset=line_data(), eval_dataset=line_data(6))
    assert "eval_loss" in trainer.evaluate()
    with pytest.raises(ValueError, match="nothing to train"):
        trainer.train()
