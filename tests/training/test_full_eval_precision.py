"""Half precision on a CPU and, where there is one, on a GPU: what is cast, for how long, and that it comes off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from transformers import TrainerCallback
from transformers.utils.import_utils import enable_tf32

from hpsearch import ArgumentError, Categorical, Trainer, TrainingArguments
from tests.support.models import accuracy, bert_classifier, classification_data, weights_of
from tests.support.small_training import losses, make_trainer

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
without_a_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU can do this")
HALVES = [("bf16_full_eval", torch.bfloat16), ("fp16_full_eval", torch.float16)]


def classifier(dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    model = bert_classifier(hidden=16, dropout=dropout)
    model.register_buffer("extra", torch.full((3,), 1 / 3))
    model.register_buffer("count", torch.arange(3))
    return model


def classifier_trainer(folder: Path, kind: Any = Trainer, *callbacks: Any, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "train_dataset": classification_data(24),
        "eval_dataset": classification_data(16, seed=1),
        "compute_metrics": accuracy,
        "callbacks": list(callbacks),
        "learning_rate": 1e-2,
        "num_train_epochs": 2,
        **changes,
    }
    if "model_init" not in values:
        values.setdefault("model", classifier())
    return make_trainer(folder, kind, **values)


class Look(TrainerCallback):
    """Remembers, for every forward of the model, the weights' type, autocast's, and whether it is training."""

    def __init__(self, model: Any) -> None:
        self.seen: list[tuple[Any, Any, bool]] = []
        model.classifier.register_forward_hook(self._look)

    def _look(self, module: Any, inputs: Any, output: Any) -> None:
        device = inputs[0].device.type
        cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        self.seen.append((module.weight.dtype, cast, module.training))


def depth(model: Any) -> int:
    """How many wrappers are around the model's own forward."""
    function, layers = model.__dict__.get("forward"), 0
    while function is not None:
        function, layers = getattr(function, "__wrapped__", None), layers + 1
    return layers


def assert_same_weights(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, weights in left.items():
        assert weights.dtype == right[name].dtype, name
        assert torch.equal(weights, right[name]), name


# Mixed precision in training.


@pytest.mark.feature(38)
def test_bfloat16_losses_are_near_those_in_full_precision_and_equal_the_peers(tmp_path: Path) -> None:
    trained = {}
    for name, kind, changes in (
        ("full", Trainer, {}),
        ("ours", Trainer, {"bf16": True}),
        ("peer", transformers.Trainer, {"bf16": True}),
    ):
        trainer = classifier_trainer(tmp_path, kind, **changes)
        trainer.train()
        trained[name] = (losses(trainer), trainer.evaluate()["eval_loss"])
        assert {weights.dtype for weights in weights_of(trainer.model).values()} == {torch.float32}
    assert trained["ours"][0] == pytest.approx(trained["peer"][0], rel=1e-6)
    assert trained["ours"][1] == pytest.approx(trained["peer"][1], rel=1e-6)
    assert trained["ours"][0] == pytest.approx(trained["full"][0], rel=0.02)
    assert trained["ours"][0] != trained["full"][0]


@pytest.mark.feature(38)
def test_bfloat16_casts_in_training_and_in_evaluation(tmp_path: Path) -> None:
    model = classifier()
    look = Look(model)
    trainer = classifier_trainer(tmp_path, model=model, bf16=True, num_train_epochs=1)
    trainer.train()
    trainer.evaluate()
    assert set(look.seen) == {(torch.float32, torch.bfloat16, True), (torch.float32, torch.bfloat16, False)}


def test_training_a_given_model_again_and_again_wraps_its_forward_once(tmp_path: Path) -> None:
    model = classifier()
    depths: list[int] = []

    class Depth(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            depths.append(depth(model))

    trainer = classifier_trainer(tmp_path, Trainer, Depth(), model=model, bf16=True, max_steps=1)
    for _ in range(3):
        trainer.train()
        trainer.evaluate()
    for _ in range(3):
        trainer.with_arguments(seed=3).train()
        classifier_trainer(tmp_path, Trainer, Depth(), model=model, bf16=True, max_steps=1).train()
    assert len(depths) == 9
    assert len(set(depths)) == 1
    assert depths[0] > 0


def test_every_training_of_a_given_model_casts(tmp_path: Path) -> None:
    model = classifier()
    look = Look(model)
    trainer = classifier_trainer(tmp_path, model=model, bf16=True, max_steps=1)
    for _ in range(3):
        look.seen.clear()
        trainer.train()
        assert look.seen == [(torch.float32, torch.bfloat16, True)]


@pytest.mark.parametrize("first", ["train", "evaluate"])
def test_a_training_in_bfloat16_after_a_run_in_full_precision_casts(tmp_path: Path, first: str) -> None:
    model = classifier()
    look = Look(model)
    getattr(classifier_trainer(tmp_path, model=model, max_steps=1), first)()
    assert {cast for _, cast, _ in look.seen} == {None}
    look.seen.clear()
    classifier_trainer(tmp_path, model=model, bf16=True, max_steps=1).train()
    assert look.seen == [(torch.float32, torch.bfloat16, True)]


@pytest.mark.parametrize("later", ["train", "evaluate", "predict"])
def test_after_an_evaluation_before_any_training_the_same_trainer_casts(tmp_path: Path, later: str) -> None:
    model = classifier()
    look = Look(model)
    trainer = classifier_trainer(tmp_path, model=model, bf16=True, max_steps=1)
    trainer.evaluate()
    assert {cast for _, cast, _ in look.seen} == {torch.bfloat16}
    look.seen.clear()
    trainer.predict(classification_data(4)) if later == "predict" else getattr(trainer, later)()
    assert {cast for _, cast, _ in look.seen} == {torch.bfloat16}


@pytest.mark.parametrize("how", ["another trainer", "with_arguments"])
def test_the_next_training_in_full_precision_does_not_cast(tmp_path: Path, how: str) -> None:
    model = classifier()
    look = Look(model)
    first = classifier_trainer(tmp_path, model=model, bf16=True, max_steps=1)
    first.train()
    before = len(look.seen)
    if how == "with_arguments":
        second = first.with_arguments(bf16=False)
    else:
        second = classifier_trainer(tmp_path, model=model, max_steps=1)
    second.train()
    assert set(look.seen[before:]) == {(torch.float32, None, True)}


def test_release_takes_the_autocast_off(tmp_path: Path) -> None:
    model = classifier()
    trainer = classifier_trainer(tmp_path, model=model, bf16=True, max_steps=1)
    trainer.train()
    trainer.release()
    assert "forward" not in model.__dict__
    assert "_original_forward" not in model.__dict__


@pytest.mark.parametrize("how", ["in the middle", "while preparing"])
def test_a_training_that_failed_leaves_no_autocast_for_the_next_one(tmp_path: Path, how: str) -> None:
    class FailsInTheMiddle(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise RuntimeError("failed")

    class FailsWhilePreparing(Trainer):
        def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
            raise RuntimeError("failed")

    model = classifier()
    look = Look(model)
    kind, callbacks = (Trainer, [FailsInTheMiddle()]) if how == "in the middle" else (FailsWhilePreparing, [])
    with pytest.raises(RuntimeError, match="failed"):
        classifier_trainer(tmp_path, kind, *callbacks, model=model, bf16=True).train()
    look.seen.clear()
    classifier_trainer(tmp_path, model=model, max_steps=1).train()
    assert set(look.seen) == {(torch.float32, None, True)}


# Evaluation in half precision.


@pytest.mark.feature(38)
@pytest.mark.parametrize(("argument", "half"), HALVES)
def test_an_evaluation_outside_training_is_in_half_precision_and_one_inside_is_not(
    tmp_path: Path, argument: str, half: torch.dtype
) -> None:
    model = classifier()
    look = Look(model)
    trainer = classifier_trainer(tmp_path, model=model, eval_strategy="epoch", num_train_epochs=1, **{argument: True})
    trainer.train()
    assert {(kind, training) for kind, _, training in look.seen} == {(torch.float32, True), (torch.float32, False)}
    look.seen.clear()
    trainer.evaluate()
    trainer.predict(classification_data(4))
    assert set(look.seen) == {(half, None, False)}


@pytest.mark.parametrize(("argument", "half"), HALVES)
def test_the_numbers_in_half_precision_are_the_peers_and_not_those_in_full(
    tmp_path: Path, argument: str, half: torch.dtype
) -> None:
    received = {}
    for name, kind, changes in (
        ("ours", Trainer, {argument: True}),
        ("peer", transformers.Trainer, {argument: True}),
        ("full", Trainer, {}),
    ):
        received[name] = classifier_trainer(tmp_path, kind, **changes).evaluate()["eval_loss"]
    assert received["ours"] == received["peer"]
    assert received["ours"] != received["full"]
    assert received["ours"] == pytest.approx(received["full"], rel=0.01)


@pytest.mark.parametrize(("argument", "half"), HALVES)
@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_afterwards_the_weights_and_buffers_are_back_to_the_last_bit(
    tmp_path: Path, argument: str, half: torch.dtype, method: str
) -> None:
    model = classifier()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    parameters = {name: id(each) for name, each in model.named_parameters()}
    trainer = classifier_trainer(tmp_path, model=model, **{argument: True})
    trainer.evaluate() if method == "evaluate" else trainer.predict(classification_data(4))
    assert_same_weights(dict(model.state_dict()), before)
    assert {name: id(each) for name, each in model.named_parameters()} == parameters


def test_an_evaluation_that_fails_gives_the_weights_back_too(tmp_path: Path) -> None:
    def fails(prediction: Any) -> Any:
        raise RuntimeError("failed")

    model = classifier()
    before = weights_of(model)
    with pytest.raises(RuntimeError, match="failed"):
        classifier_trainer(tmp_path, model=model, compute_metrics=fails, bf16_full_eval=True).evaluate()
    assert_same_weights(weights_of(model), before)


@pytest.mark.parametrize(("argument", "half"), HALVES)
def test_evaluating_in_half_precision_before_between_and_after_changes_no_training(
    tmp_path: Path, argument: str, half: torch.dtype
) -> None:
    def trained(evaluates: bool) -> Any:
        trainer = classifier_trainer(tmp_path, model=classifier(), **{argument: True})
        course: list[float] = []
        for _ in range(2):
            if evaluates:
                trainer.evaluate()
            trainer.train()
            course += losses(trainer)
        if evaluates:
            trainer.evaluate()
        return course, weights_of(trainer.model)

    (course, weights), (expected, expected_weights) = trained(True), trained(False)
    assert course == expected
    assert_same_weights(weights, expected_weights)


def test_an_optimizer_goes_on_with_the_same_parameters_after_an_evaluation(tmp_path: Path) -> None:
    trainer = classifier_trainer(tmp_path, bf16_full_eval=True, save_strategy="epoch")
    trainer.train()
    trainer.evaluate()
    held = {id(each) for group in trainer.optimizer.param_groups for each in group["params"]}
    assert held == {id(each) for each in trainer.model.parameters()}


def test_what_is_saved_after_an_evaluation_is_not_rounded(tmp_path: Path) -> None:
    trainer = classifier_trainer(tmp_path, bf16_full_eval=True)
    trainer.train()
    before = weights_of(trainer.model)
    trainer.evaluate()
    trainer.save_model(str(tmp_path / "saved"))
    saved = safetensors.torch.load_file(str(tmp_path / "saved" / "model.safetensors"))
    assert {name: each.dtype for name, each in saved.items() if name in before} == dict.fromkeys(before, torch.float32)
    assert all(torch.equal(saved[name], weights) for name, weights in before.items())


def test_the_best_model_of_a_search_evaluated_in_half_precision_has_whole_weights(tmp_path: Path) -> None:
    trainer = classifier_trainer(
        tmp_path, model_init=classifier, bf16_full_eval=True, num_train_epochs=1, eval_strategy="no"
    )
    best = trainer.hyperparameter_search({"learning_rate": Categorical([1e-2])}, n_trials=1, progress=False)
    saved = weights_of(best.load_model())
    alone = classifier_trainer(tmp_path / "alone", model_init=classifier, num_train_epochs=1)
    alone.train(trial={"learning_rate": 1e-2})
    assert_same_weights(saved, weights_of(alone.model))


def test_half_precision_of_both_kinds_at_once_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"fp16.*bf16"):
        TrainingArguments("out", use_cpu=True, fp16_full_eval=True, bf16_full_eval=True)
    with pytest.raises(ArgumentError, match=r"fp16.*bf16"):
        TrainingArguments("out", use_cpu=True, fp16=True, bf16=True)


# What a CPU cannot do.


@without_a_gpu
def test_a_precision_of_gpus_is_refused_on_a_cpu() -> None:
    with pytest.raises(ArgumentError, match="tf32"):
        TrainingArguments("out", use_cpu=True, tf32=True)


@without_a_gpu
def test_float16_on_a_cpu_is_refused_or_as_with_the_peer_full_precision(tmp_path: Path) -> None:
    """The peer trains in full precision and says nothing; saying no is as good."""

    def trained(kind: Any) -> list[float]:
        trainer = classifier_trainer(tmp_path, kind, fp16=True)
        trainer.train()
        return losses(trainer)

    try:
        ours = trained(Trainer)
    except ArgumentError as refusal:
        assert "fp16" in str(refusal)  # noqa: PT017 - either answer is one
    else:
        assert ours == pytest.approx(trained(transformers.Trainer), rel=1e-6)
        full = classifier_trainer(tmp_path)
        full.train()
        assert ours == losses(full)


# What only a GPU can do.


class Stops(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_save = control.should_training_stop = state.global_step == 3


@pytest.mark.feature(38)
@on_a_gpu
def test_float16_on_a_gpu_scales_its_losses_and_resumes_with_the_scale(tmp_path: Path) -> None:
    common: dict[str, Any] = {"fp16": True, "use_cpu": False}
    first = classifier_trainer(tmp_path / "parts", Trainer, Stops(), **common)
    first.train()
    assert first.accelerator.scaler is not None
    saved = torch.load(tmp_path / "parts" / "checkpoint-3" / "scaler.pt", weights_only=True)
    assert saved == first.accelerator.scaler.state_dict()
    resumed = classifier_trainer(tmp_path / "parts", **common)
    resumed.train(resume_from_checkpoint=True)
    whole = classifier_trainer(tmp_path / "whole", **common)
    whole.train()
    assert losses(resumed) == pytest.approx(losses(whole), rel=1e-3)
    assert resumed.accelerator.scaler.state_dict() == whole.accelerator.scaler.state_dict()


@on_a_gpu
def test_float16_on_a_gpu_trains_as_the_peer(tmp_path: Path) -> None:
    trained = []
    for kind in (transformers.Trainer, Trainer):
        trainer = classifier_trainer(tmp_path, kind, fp16=True, use_cpu=False)
        trainer.train()
        trained.append(losses(trainer))
    assert trained[1] == pytest.approx(trained[0], rel=1e-3)


@on_a_gpu
@pytest.mark.parametrize(("optim", "is_schedule_skipped"), [("adamw_torch", True), ("adamw_torch_fused", False)])
def test_an_update_whose_gradients_overflow_is_skipped_and_the_schedule_with_it_as_far_as_torch_tells(
    tmp_path: Path, optim: str, is_schedule_skipped: bool
) -> None:
    """A fused optimizer skips the update on the GPU, and tells nobody: transformers' schedule goes on, too."""

    class Overflows(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            loss = super().compute_loss(model, inputs, **kwargs)
            return loss * float("inf") if self.state.global_step == 1 else loss

    trainer = classifier_trainer(tmp_path, Overflows, fp16=True, use_cpu=False, optim=optim)
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert (rates[2] == rates[1]) is is_schedule_skipped
    assert all(torch.isfinite(each).all() for each in weights_of(trainer.model).values())


@pytest.mark.feature(38)
@on_a_gpu
@pytest.mark.parametrize("switched_on", [True, False])
def test_tf32_is_what_the_argument_says(tmp_path: Path, switched_on: bool, restored_tf32: Callable[[], None]) -> None:
    classifier_trainer(tmp_path, tf32=switched_on, use_cpu=False, max_steps=1).train()
    factor = torch.randn(256, 256, device="cuda")
    error = (factor @ factor - (factor.double() @ factor.double())).abs().max()
    assert bool(error > 1e-3) is switched_on


@pytest.fixture
def restored_tf32() -> Any:
    enable_tf32.cache_clear()  # it does nothing a second time
    yield
    enable_tf32.cache_clear()
    enable_tf32(False)


@on_a_gpu
@pytest.mark.parametrize(("argument", "half"), HALVES)
def test_an_evaluation_in_half_precision_on_a_gpu_gives_the_weights_back(
    tmp_path: Path, argument: str, half: torch.dtype
) -> None:
    trainer = classifier_trainer(tmp_path, use_cpu=False, **{argument: True})
    trainer.train()
    before = weights_of(trainer.model)
    look = Look(trainer.model)
    trainer.evaluate()
    assert {kind for kind, _, _ in look.seen} == {half}
    assert_same_weights(weights_of(trainer.model), before)
