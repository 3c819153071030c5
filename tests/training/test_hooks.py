"""What users override or pass in takes effect: hooks, losses, optimizers, models of any kind, data of any kind."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.utils.data import IterableDataset

from hpsearch import Trainer
from hpsearch.errors import ArgumentError, InvalidInputError
from tests.support.models import (
    Line,
    accuracy,
    bert_classifier,
    classification_data,
    gpt2_language_model,
    language_data,
    line_data,
    weights_of,
)
from tests.support.small_training import losses, make_trainer

HOOKS = [
    "get_train_dataloader",
    "get_eval_dataloader",
    "get_test_dataloader",
    "log",
    "create_optimizer",
    "create_scheduler",
    "create_optimizer_and_scheduler",
    "get_decay_parameter_names",
    "compute_loss",
    "compute_loss_context_manager",
    "training_step",
    "get_batch_samples",
    "prediction_step",
    "evaluation_loop",
    "evaluate",
    "predict",
    "floating_point_ops",
    "save_model",
]


@pytest.mark.feature(73)
@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_called_through_the_trainer(tmp_path: Path, hook: str) -> None:
    calls: list[str] = []

    def override(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(hook)
        return getattr(Trainer, hook)(self, *args, **kwargs)

    override.__signature__ = inspect.signature(getattr(Trainer, hook))
    trainer = make_trainer(
        tmp_path, type("Own", (Trainer,), {hook: override}), save_strategy="epoch", eval_strategy="epoch"
    )
    trainer.train()
    during_training = len(calls)
    trainer.predict(line_data(4))
    trainer.evaluate()
    assert len(calls) > during_training or hook not in ("prediction_step", "evaluation_loop", "evaluate", "predict")
    only_after_training = hook in ("get_test_dataloader", "predict")
    assert (during_training > 0) is not only_after_training
    assert calls


@pytest.mark.feature(77)
def test_the_documented_loss_override_of_three_arguments_changes_the_loss(tmp_path: Path) -> None:
    class Doubled(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = 2 * torch.nn.functional.mse_loss(outputs["predictions"], labels)
            return (loss, outputs) if return_outputs else loss

    plain, doubled = (make_trainer(tmp_path, kind, learning_rate=0.0) for kind in (Trainer, Doubled))
    plain.train()
    doubled.train()
    assert losses(doubled) == pytest.approx([2 * loss for loss in losses(plain)])
    assert doubled.evaluate()["eval_loss"] == pytest.approx(2 * plain.evaluate()["eval_loss"])


@pytest.mark.feature(73)
def test_a_weighted_loss_override_trains_other_weights_than_the_plain_one(tmp_path: Path) -> None:
    class Weighted(Trainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            weight = torch.tensor([1.0, 5.0])
            loss = torch.nn.functional.cross_entropy(outputs.logits, labels, weight=weight)
            return (loss, outputs) if return_outputs else loss

    parts: dict[str, Any] = {
        "model_init": lambda: bert_classifier(dropout=0.0),
        "train_dataset": classification_data(32),
        "eval_dataset": classification_data(16, seed=1),
        "learning_rate": 1e-3,
    }
    plain, weighted = make_trainer(tmp_path, **parts), make_trainer(tmp_path, Weighted, **parts)
    plain.train()
    weighted.train()
    assert abs(losses(plain)[0] - losses(weighted)[0]) > 1e-3
    assert not torch.equal(plain.model.classifier.weight, weighted.model.classifier.weight)


def test_a_three_argument_loss_over_accumulated_batches_equals_one_large_batch(tmp_path: Path) -> None:
    class Own(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = torch.nn.functional.cross_entropy(outputs.logits, labels)
            return (loss, outputs) if return_outputs else loss

    parts: dict[str, Any] = {
        "model_init": lambda: bert_classifier(dropout=0.0),
        "train_dataset": classification_data(32),
        "train_sampling_strategy": "sequential",
        "optim": "sgd",
        "max_grad_norm": 0.0,
    }
    large = make_trainer(tmp_path, Own, **parts, per_device_train_batch_size=8)
    small = make_trainer(tmp_path, Own, **parts, per_device_train_batch_size=4, gradient_accumulation_steps=2)
    large.train()
    small.train()
    assert losses(small) == pytest.approx(losses(large), rel=1e-4)
    for name, weights in weights_of(small.model).items():
        torch.testing.assert_close(weights, weights_of(large.model)[name], msg=name)


AS_IN_TRANSFORMERS = "transformers 5.23 does the same, and test_parity holds us to its numbers"


@pytest.mark.feature(23)
@pytest.mark.parametrize(
    "task",
    ["line", "bert", "gpt2"],
)
def test_accumulated_batches_equal_one_large_batch(tmp_path: Path, task: str) -> None:
    model_init, dataset = {
        "line": (Line, line_data(32)),
        "bert": (lambda: bert_classifier(dropout=0.0), classification_data(32)),
        "gpt2": (gpt2_without_dropout, language_data(32)),
    }[task]
    parts: dict[str, Any] = {
        "model_init": model_init,
        "train_dataset": dataset,
        "train_sampling_strategy": "sequential",
        "optim": "sgd",
        "max_grad_norm": 0.0,
    }
    large = make_trainer(tmp_path, **parts, per_device_train_batch_size=8)
    small = make_trainer(tmp_path, **parts, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    large.train()
    small.train()
    assert losses(small) == pytest.approx(losses(large), rel=1e-4)
    for name, weights in weights_of(small.model).items():
        torch.testing.assert_close(weights, weights_of(large.model)[name], msg=name)


def gpt2_without_dropout() -> Any:
    model = gpt2_language_model()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def counted_items(folder: Path, kind: Any, dataset: Any) -> list[int]:
    """The counts that an override of `compute_loss` receives in one update of two batches."""
    received: list[int] = []

    class Counting(kind):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            received.append(int(num_items_in_batch))
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    make_trainer(
        folder,
        Counting,
        model_init=gpt2_language_model,
        train_dataset=dataset,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
    ).train()
    return received


@pytest.mark.feature(23)
def test_an_override_that_takes_the_item_count_receives_that_of_the_whole_update(tmp_path: Path) -> None:
    dataset = language_data(8)
    received = counted_items(tmp_path, Trainer, dataset)
    assert received == counted_items(tmp_path, transformers.Trainer, dataset)
    assert len(received) == 2
    assert received[0] == received[1] > 4 * 11


@pytest.mark.xfail(strict=True, reason=AS_IN_TRANSFORMERS)
def test_the_item_count_of_gpt2_leaves_out_the_first_position_which_has_no_loss(tmp_path: Path) -> None:
    dataset = language_data(8)
    with_loss = sum(label != -100 for sample in dataset for label in sample["labels"][1:])
    assert counted_items(tmp_path, Trainer, dataset) == [with_loss, with_loss]


def test_compute_loss_func_receives_outputs_labels_and_the_item_count_and_gives_the_loss(tmp_path: Path) -> None:
    received: list[tuple[Any, ...]] = []

    def summed(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        received.append((set(outputs), labels.shape, int(num_items_in_batch)))
        return ((outputs["predictions"] - labels) ** 2).sum() / num_items_in_batch

    parts: dict[str, Any] = {"train_sampling_strategy": "sequential", "optim": "sgd", "max_grad_norm": 0.0}
    own = make_trainer(
        tmp_path, compute_loss_func=summed, per_device_train_batch_size=4, gradient_accumulation_steps=2, **parts
    )
    plain = make_trainer(tmp_path, **parts)
    own.train()
    plain.train()
    assert received[0] == ({"predictions", "features"}, torch.Size([4]), 8)
    assert losses(own) == pytest.approx(losses(plain), rel=1e-5)
    torch.testing.assert_close(own.model.linear.weight, plain.model.linear.weight)


@pytest.mark.feature(71)
def test_what_preprocess_logits_returns_is_what_compute_metrics_sees(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def preprocess(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        seen["labels"] = None if labels is None else labels.shape
        return logits.argmax(-1)

    def metrics(prediction: Any) -> dict[str, float]:
        seen["shape"] = prediction.predictions.shape
        return {"accuracy": float((prediction.predictions == prediction.label_ids).mean())}

    parts: dict[str, Any] = {
        "model": bert_classifier(dropout=0.0),
        "train_dataset": None,
        "eval_dataset": classification_data(16),
    }
    own = make_trainer(tmp_path, compute_metrics=metrics, preprocess_logits_for_metrics=preprocess, **parts)
    plain = make_trainer(tmp_path, compute_metrics=accuracy, **parts)
    assert own.evaluate()["eval_accuracy"] == plain.evaluate()["eval_accuracy"]
    assert seen == {"labels": torch.Size([8]), "shape": (16,)}
    unlabelled = [{key: value for key, value in each.items() if key != "labels"} for each in classification_data(4)]
    assert own.predict(unlabelled).predictions.shape == (4,)
    assert seen["labels"] is None


@pytest.mark.feature(74)
@pytest.mark.parametrize("form", ["dict", "tuple"])
def test_a_plain_module_trains_to_the_same_weights_as_in_the_peer(tmp_path: Path, form: str) -> None:
    trained = []
    for kind in (transformers.Trainer, Trainer):
        trainer = make_trainer(tmp_path, kind, model_init=lambda: Line(form))
        trainer.train()
        trained.append((weights_of(trainer.model), trainer.evaluate()["eval_loss"], trainer.predict(line_data(5))))
    (peer_weights, peer_loss, peer_prediction), (weights, loss, prediction) = trained
    for name, value in weights.items():
        torch.testing.assert_close(value, peer_weights[name], msg=name)
    assert loss == pytest.approx(peer_loss, rel=1e-6)
    assert prediction.predictions.shape == peer_prediction.predictions.shape == (5,)
    assert prediction.label_ids.shape == (5,)


class TwoTargets(torch.nn.Module):
    """Predicts two targets, neither of which is called labels."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, height: Any = None, width: Any = None) -> Any:
        predictions = self.linear(x)
        if height is None:
            return {"predictions": predictions}
        loss = torch.nn.functional.mse_loss(predictions, torch.stack([height, width], dim=-1))
        return {"loss": loss, "predictions": predictions}


@pytest.mark.feature(46, 74)
def test_custom_label_names_give_a_loss_and_come_back_as_a_tuple(tmp_path: Path) -> None:
    points = torch.randn(16, 2, generator=torch.Generator().manual_seed(0))
    dataset = [{"x": point, "height": point[0], "width": -point[1]} for point in points]
    seen: list[Any] = []

    def metrics(prediction: Any) -> dict[str, float]:
        seen.append(prediction.label_ids)
        return {"count": float(len(prediction.label_ids[0]))}

    trainer = make_trainer(
        tmp_path,
        model_init=TwoTargets,
        train_dataset=dataset,
        eval_dataset=dataset,
        label_names=["height", "width"],
        compute_metrics=metrics,
    )
    trainer.train()
    result = trainer.evaluate()
    assert result["eval_loss"] > 0
    assert result["eval_count"] == 16.0
    heights, widths = seen[-1]
    assert heights.tolist() == pytest.approx(points[:, 0].tolist())
    assert widths.tolist() == pytest.approx((-points[:, 1]).tolist())


@pytest.mark.feature(77)
def test_a_model_without_a_loss_is_an_error_that_names_the_keys_it_returned(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"no loss.*predictions, features.*x, labels"):
        make_trainer(tmp_path, model_init=lambda: Line("no_loss")).train()
    unlabelled = [{"x": each["x"]} for each in line_data()]
    with pytest.raises(InvalidInputError, match="are the labels"):
        make_trainer(tmp_path, train_dataset=unlabelled).train()


def test_a_model_without_a_head_is_refused_by_name(tmp_path: Path) -> None:
    headless = transformers.BertModel(bert_classifier().config)
    with pytest.raises(InvalidInputError, match="BertModel"):
        make_trainer(tmp_path, model=headless).train()


@pytest.mark.feature(45)
def test_columns_that_forward_does_not_take_are_dropped_and_none_left_is_an_error(tmp_path: Path) -> None:
    make_trainer(tmp_path, train_dataset=line_data(8, text=1)).train()
    with pytest.raises(TypeError, match="text"):
        make_trainer(tmp_path, train_dataset=line_data(8, text=1), remove_unused_columns=False).train()
    with pytest.raises(ValueError, match="forward"):
        make_trainer(tmp_path, train_dataset=[{"other": 1}] * 8).train()


@pytest.mark.feature(24)
def test_weight_decay_applies_to_all_but_biases_and_normalisation(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path,
        model=bert_classifier(),
        train_dataset=classification_data(16),
        weight_decay=0.25,
        learning_rate=0.0,
    )
    trainer.model.classifier.bias.requires_grad_(False)
    trainer.train()
    names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
    decayed, plain = trainer.optimizer.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.25, 0.0)
    decayed_names = {names[id(each)] for each in decayed["params"]}
    plain_names = {names[id(each)] for each in plain["params"]}
    assert not any("bias" in name or "LayerNorm" in name for name in decayed_names)
    assert all("bias" in name or "LayerNorm" in name for name in plain_names)
    assert decayed_names | plain_names == set(names.values()) - {"classifier.bias"}


@pytest.mark.feature(81)
def test_an_optimizer_and_a_schedule_that_are_passed_are_kept_and_used(tmp_path: Path) -> None:
    model = Line()
    before = weights_of(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    trainer = make_trainer(tmp_path, model=model, optimizers=(optimizer, schedule))
    trainer.train()
    assert trainer.optimizer is optimizer
    assert trainer.lr_scheduler is schedule
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    assert rates == [0.5, 0.25, 0.125]
    assert optimizer.param_groups[0]["lr"] == 0.0625
    assert not torch.equal(model.linear.weight, before["linear.weight"])


def test_only_an_optimizer_is_passed_and_the_schedule_of_the_arguments_drives_it(tmp_path: Path) -> None:
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    trainer = make_trainer(tmp_path, model=model, optimizers=(optimizer, None))
    trainer.train()
    assert trainer.optimizer is optimizer
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    assert rates == pytest.approx([0.3, 0.2, 0.1])


@pytest.mark.parametrize("kind", [Trainer, transformers.Trainer])
def test_an_optimizer_made_by_the_caller_before_training_is_the_one_that_trains(tmp_path: Path, kind: type) -> None:
    trainer = make_trainer(tmp_path, kind, model=Line())
    made = trainer.create_optimizer()
    made.param_groups[0]["marked"] = True
    trainer.train()
    assert any(group.get("marked") for group in trainer.optimizer.param_groups)


@pytest.mark.feature(81)
def test_an_override_of_create_optimizer_is_given_to_the_default_schedule(tmp_path: Path) -> None:
    class Own(Trainer):
        def create_optimizer(self, model: Any = None) -> Any:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.3)
            return self.optimizer

    trainer = make_trainer(tmp_path, Own)
    trainer.train()
    assert isinstance(trainer.optimizer, torch.optim.SGD)
    assert trainer.lr_scheduler.optimizer is trainer.optimizer
    assert losses(trainer)[0] != losses(trainer)[-1]


@pytest.mark.feature(81)
def test_an_override_of_create_scheduler_receives_the_number_of_updates(tmp_path: Path) -> None:
    received: list[int] = []

    class Own(Trainer):
        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            received.append(num_training_steps)
            chosen = self.optimizer if optimizer is None else optimizer
            self.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(chosen, factor=0.5, total_iters=99)
            return self.lr_scheduler

    trainer = make_trainer(tmp_path, Own, gradient_accumulation_steps=2, num_train_epochs=2)
    trainer.train()
    assert received == [4]
    assert {entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry} == {0.025}


def test_an_optimizer_class_with_arguments_replaces_that_of_the_arguments(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.7, "momentum": 0.9}))
    trainer.train()
    assert type(trainer.optimizer) is torch.optim.SGD
    assert trainer.optimizer.param_groups[0]["initial_lr"] == 0.7
    assert trainer.optimizer.param_groups[0]["momentum"] == 0.9


def test_dotted_optimizer_parameters_reach_the_optimizer_and_win(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, adam_beta1=0.5).with_arguments(
        **{"optim.betas": (0.8, 0.9), "optim.amsgrad": True, "learning_rate": 0.01}
    )
    trainer = trainer.with_arguments(**{"optim.eps": 1e-3})
    trainer.train()
    group = trainer.optimizer.param_groups[0]
    assert (group["betas"], group["amsgrad"], group["eps"], group["initial_lr"]) == ((0.8, 0.9), True, 1e-3, 0.01)
    own = make_trainer(tmp_path, optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.7, "momentum": 0.9}))
    own = own.with_arguments(**{"optim.momentum": 0.1})
    own.train()
    assert own.optimizer.param_groups[0]["momentum"] == 0.1


def test_an_optimizer_parameter_that_does_not_exist_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"optim\.beta.*'betas'"):
        make_trainer(tmp_path).with_arguments(**{"optim.beta": (0.8, 0.9)}).train()


class Stream(IterableDataset):
    """Points without a length."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[Any]:
        return iter(line_data(self.size))


@pytest.mark.feature(26, 67, "P18")
def test_a_stream_trains_for_max_steps_and_starts_again_when_it_ends(tmp_path: Path) -> None:
    trained = []
    for kind in (transformers.Trainer, Trainer):
        trainer = make_trainer(tmp_path, kind, train_dataset=Stream(20), max_steps=7)
        output = trainer.train()
        assert output.global_step == 7
        trained.append((losses(trainer), weights_of(trainer.model)))
    assert trained[1][0] == pytest.approx(trained[0][0], rel=1e-5)
    for name, weights in trained[1][1].items():
        torch.testing.assert_close(weights, trained[0][1][name], msg=name)


@pytest.mark.feature(26)
def test_a_stream_without_max_steps_is_an_error_that_names_the_argument(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="max_steps"):
        make_trainer(tmp_path, train_dataset=Stream(20)).train()


def test_an_empty_stream_ends_training_instead_of_hanging(tmp_path: Path) -> None:
    assert make_trainer(tmp_path, train_dataset=Stream(0), max_steps=3).train().global_step == 0


def test_a_stream_is_evaluated_to_the_exact_sample_mean(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=Line(), per_device_eval_batch_size=8)
    streamed, listed = trainer.evaluate(Stream(11)), trainer.evaluate(line_data(11))
    assert streamed["eval_loss"] == pytest.approx(listed["eval_loss"], rel=1e-6)


@pytest.mark.feature(80)
def test_num_examples_is_the_length_or_an_estimate_from_the_batches(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=Line())
    assert trainer.num_examples(trainer.get_train_dataloader()) == 24
    assert trainer.num_examples(trainer.get_eval_dataloader()) == 10
    loader = [1, 2, 3]
    assert trainer.num_examples(loader) == 24


@pytest.mark.feature(79)
def test_training_data_are_shuffled_and_evaluation_data_are_in_order(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=Line())
    expected = torch.stack([each["x"] for each in trainer.train_dataset])
    order = torch.cat([batch["x"] for batch in trainer.get_train_dataloader()])
    assert not torch.equal(order, expected)
    assert torch.equal(order.sort(0).values, expected.sort(0).values)
    evaluated = torch.cat([batch["x"] for batch in trainer.get_eval_dataloader(trainer.train_dataset)])
    tested = torch.cat([batch["x"] for batch in trainer.get_test_dataloader(trainer.train_dataset)])
    assert torch.equal(evaluated, expected)
    assert torch.equal(tested, expected)


@pytest.mark.feature(78)
def test_floating_point_ops_of_every_batch_add_up_in_the_state(tmp_path: Path) -> None:
    class Thousand(Trainer):
        def floating_point_ops(self, inputs: Any) -> int:
            return 1000

    trainer = make_trainer(tmp_path, Thousand, gradient_accumulation_steps=2)
    assert trainer.train().metrics["total_flos"] == 3000
    assert make_trainer(tmp_path).train().metrics["total_flos"] == 0
