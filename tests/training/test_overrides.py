"""Subclasses: what of transformers' Trainer may be overridden here, and what is refused because it is never called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.utils.data import SequentialSampler

from hpsearch import InvalidInputError, Trainer, TrainingArguments
from tests.support.models import Line, bert_classifier, gpt2_language_model, language_data, line_data
from tests.support.small_training import losses, make_trainer


def train(kind: type[Trainer], folder: Path, **changes: Any) -> Trainer:
    args = TrainingArguments(
        str(folder), use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", max_steps=3, **changes
    )
    trainer = kind(Line(), args, train_dataset=line_data(), eval_dataset=line_data(6))
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    "name",
    [
        *("_save_checkpoint", "_inner_training_loop", "set_initial_training_values", "_wrap_model"),
        *("preflight_trainer", "resumable_checkpoints", "check_changeable"),  # of the Trainer of hpsearch 0.8.0
    ],
)
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
    with pytest.raises(ValueError, match="othing to train"):
        trainer.train()


class HardBatches(Trainer):
    """Draws two micro-batches for each that it trains on: the one with the larger labels."""

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        drawn, items = super().get_batch_samples(epoch_iterator, 2 * num_batches, device)
        return sorted(drawn, key=lambda batch: -batch["labels"].abs().sum())[: (len(drawn) + 1) // 2], items


def hard(folder: Path, kind: type[Trainer] = HardBatches, **changes: Any) -> Trainer:
    args = {"per_device_train_batch_size": 2, "num_train_epochs": 2, "logging_steps": 1, "max_steps": -1, **changes}
    return make_trainer(folder, kind, train_dataset=line_data(24), **args)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_an_override_of_get_batch_samples_chooses_what_is_trained_on_and_resumes_exactly(
    tmp_path: Path, accumulation: int
) -> None:
    whole = hard(tmp_path, gradient_accumulation_steps=accumulation, save_strategy="steps", save_steps=1)
    whole.train()
    plain = hard(tmp_path / "plain", Trainer, gradient_accumulation_steps=accumulation)
    plain.train()
    assert whole.state.global_step == plain.state.global_step // 2
    assert whole.state.epoch == 2.0
    assert losses(whole)[0] > losses(plain)[0]
    for step in range(1, whole.state.global_step):
        resumed = hard(tmp_path / "resumed", gradient_accumulation_steps=accumulation)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert losses(resumed) == losses(whole)


def test_an_override_of_get_batch_samples_may_skip_an_update_and_end_an_epoch(tmp_path: Path) -> None:
    class Choosy(Trainer):
        calls = 0

        def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
            self.calls += 1
            if self.calls == 8:
                return [], None
            group, items = super().get_batch_samples(epoch_iterator, num_batches, device)
            return ([] if self.calls == 2 else group), items

    trainer = hard(tmp_path, Choosy)
    trainer.train()
    assert trainer.calls == 8 + 12
    assert trainer.state.global_step == (8 - 2) + 12


def test_the_item_count_of_an_override_of_get_batch_samples_reaches_the_training_step(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Counting(Trainer):
        def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
            return super().get_batch_samples(epoch_iterator, num_batches, device)[0], "mine"

        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
            seen.append((num_items_in_batch, self.current_gradient_accumulation_steps))
            return super().training_step(model, inputs)

    hard(tmp_path, Counting, num_train_epochs=1, gradient_accumulation_steps=5).train()
    assert seen == [*[("mine", 5)] * 10, *[("mine", 2)] * 2]


def test_the_default_of_get_batch_samples_draws_and_counts_as_transformers_does(tmp_path: Path) -> None:
    drawn = {}
    for kind in (transformers.Trainer, Trainer):
        trainer = make_trainer(tmp_path, kind, model=gpt2_language_model(), train_dataset=language_data(8))
        batches = iter(torch.utils.data.DataLoader(language_data(5), collate_fn=trainer.data_collator))
        groups = [trainer.get_batch_samples(batches, 3, torch.device("cpu")) for _ in range(3)]
        drawn[kind] = [(len(group), None if items is None else int(items)) for group, items in groups]
    assert drawn[Trainer] == drawn[transformers.Trainer]
    assert [size for size, _ in drawn[Trainer]] == [3, 2, 0]


@pytest.mark.parametrize("is_scaled", [True, False])
def test_loss_is_scaled_for_ga_decides_whether_a_loss_is_divided(tmp_path: Path, is_scaled: bool) -> None:
    found = {}
    for kind in (transformers.Trainer, Trainer):
        own = type("Own", (kind,), {"loss_is_scaled_for_ga": is_scaled})
        torch.manual_seed(0)
        trainer = make_trainer(
            tmp_path, own, model=Line(), gradient_accumulation_steps=4, per_device_train_batch_size=2, max_grad_norm=0.0
        )
        trainer.train()
        found[kind] = losses(trainer)
    assert found[Trainer] == pytest.approx(found[transformers.Trainer], rel=1e-5)


def test_whether_the_model_takes_the_item_count_can_be_set_also_for_trials(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model_init=gpt2_language_model, train_dataset=language_data(8))
    assert trainer.model_accepts_loss_kwargs is True
    trainer.model_accepts_loss_kwargs = False
    assert trainer.model_accepts_loss_kwargs is False
    seen: list[Any] = []

    def noted(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        seen.append(num_items_in_batch)
        return Trainer.training_step(self, model, inputs, num_items_in_batch)

    own = make_trainer(tmp_path, type("Own", (Trainer,), {"training_step": noted}), model_init=gpt2_language_model)
    own.train_dataset = language_data(8)
    own.model_accepts_loss_kwargs = False
    own.with_arguments(learning_rate=0.1).train()
    assert seen == [None]
    own.model_accepts_loss_kwargs = True
    own.train()
    assert seen[1] is not None


def test_the_group_of_a_parameter_is_found_by_name_and_by_itself(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model_init=bert_classifier, weight_decay=0.5)
    with pytest.raises(InvalidInputError, match="there is none yet"):
        trainer.get_optimizer_group()
    optimizer = trainer.create_optimizer()
    assert trainer.get_optimizer_group() == [group["params"] for group in optimizer.param_groups]
    assert trainer.get_optimizer_group(trainer.model.classifier.weight)["weight_decay"] == 0.5
    assert trainer.get_optimizer_group("classifier.bias") is optimizer.param_groups[1]
    with pytest.raises(
        InvalidInputError, match=r"no parameter 'classifier\.wieght'\. Did you mean 'classifier.weight'"
    ):
        trainer.get_optimizer_group("classifier.wieght")
    with pytest.raises(InvalidInputError, match="does not train"):
        trainer.get_optimizer_group(torch.nn.Parameter(torch.zeros(1)))


def test_what_scripts_read_of_a_trainer_in_a_single_process(tmp_path: Path) -> None:
    trainer = train(Trainer, tmp_path)
    assert (trainer.is_fsdp_enabled, trainer.is_deepspeed_enabled, trainer.deepspeed) == (False, False, None)
    assert trainer.can_return_loss is False
    assert trainer.current_flos == 0.0
    assert Trainer.metrics_format({"total_flos": 2e9}) == transformers.Trainer.metrics_format({"total_flos": 2e9})


def test_end_leaves_the_process_group_and_does_nothing_without_one(tmp_path: Path) -> None:
    trainer = train(Trainer, tmp_path)
    trainer.end()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    trainer.end()
    assert not torch.distributed.is_initialized()
    trainer.end()
