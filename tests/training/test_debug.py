"""What a model wears only while it trains: the overflow detector and NEFTune's noise. Afterwards it is as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import TrainerCallback

from hpsearch import ArgumentError, CheckpointError, InvalidInputError, Trainer, TrainingArguments
from tests.support.models import (
    Line,
    PlainClassifier,
    bert_classifier,
    classification_data,
    gpt2_language_model,
    language_data,
    weights_of,
)
from tests.support.small_training import losses, make_trainer

DETECT = {"debug": "underflow_overflow"}
NOISE = {"neftune_noise_alpha": 5.0}
BOTH = {**DETECT, **NOISE}


def hooks_of(model: torch.nn.Module) -> int:
    """How many hooks all modules of a model have."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


def classifier() -> Any:
    torch.manual_seed(0)
    return bert_classifier(hidden=8, dropout=0.0)


def classifier_trainer(folder: Path, kind: Any = Trainer, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "train_dataset": classification_data(24),
        "eval_dataset": classification_data(8, seed=1),
        "learning_rate": 1e-3,
        **changes,
    }
    if "model_init" not in values:
        values.setdefault("model", classifier())
    return make_trainer(folder, kind, **values)


class CountHooks(TrainerCallback):
    """Remembers how many hooks the model has at every step."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.seen.append(hooks_of(model))


class Breaks(Line):
    """A model whose forward number `at` gives an infinite or no number, inside its module `linear`."""

    def __init__(self, at: int = 2, value: float = float("inf")) -> None:
        super().__init__()
        self.inner = torch.nn.Identity()
        self.calls, self.at, self.value = 0, at, value

    def forward(self, x: torch.Tensor, labels: Any = None) -> Any:
        self.calls += 1
        if self.calls == self.at:
            x = x + self.value
        return super().forward(self.inner(x), labels)


# The overflow detector.


@pytest.mark.feature(42)
@pytest.mark.parametrize("value", [float("inf"), float("nan")], ids=["inf", "nan"])
def test_the_first_number_that_is_none_stops_training_and_its_module_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: float
) -> None:
    trainer = make_trainer(tmp_path, model=Breaks(at=2, value=value), **DETECT)
    with pytest.raises(ValueError, match="inf/nan detected"):
        trainer.train()
    assert trainer.state.global_step == 1
    shown = capsys.readouterr().out
    assert "Detected inf/nan during batch_number=1" in shown
    report = shown[shown.index("Detected inf/nan") :]
    assert report.rstrip().splitlines()[-3].split() == ["inner", "Identity"]
    assert ("has infs" if value == float("inf") else "has nans") in shown
    assert hooks_of(trainer.model) == 0


def test_a_weight_that_overflows_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = classifier()
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight[0, 0] = float("inf")
    trainer = classifier_trainer(tmp_path, model=model, **DETECT)
    with pytest.raises(ValueError, match="inf/nan detected"):
        trainer.train()
    shown = capsys.readouterr().out
    assert "weight has infs" in shown
    assert "bert.encoder.layer.0.output.dense Linear" in shown
    assert trainer.state.global_step == 0


def test_numbers_in_range_train_as_without_the_detector(tmp_path: Path) -> None:
    plain, watched = classifier_trainer(tmp_path), classifier_trainer(tmp_path, **DETECT)
    plain.train()
    watched.train()
    assert losses(watched) == losses(plain)
    for name, weights in weights_of(watched.model).items():
        assert torch.equal(weights, weights_of(plain.model)[name]), name


@pytest.mark.feature(42)
def test_the_detector_takes_its_report_from_the_peer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for kind in (transformers.Trainer, Trainer):
        torch.manual_seed(0)
        trainer = make_trainer(tmp_path, kind, model=Breaks(at=3), **DETECT)
        with pytest.raises(ValueError, match="inf/nan detected"):
            trainer.train()
        report = capsys.readouterr().out
        shown.append(report[report.index("Detected inf/nan") :])
    assert shown[1] == shown[0]


def test_every_training_of_a_given_model_has_one_detector(tmp_path: Path) -> None:
    count = CountHooks()
    trainer = make_trainer(tmp_path, model=Line(), callbacks=[count], num_train_epochs=1, **DETECT)
    before = hooks_of(trainer.model)
    trainer.train()
    trainer.train()
    trainer.with_arguments(learning_rate=1e-3).train()
    modules = sum(1 for _ in Line().modules())
    assert count.seen == [modules] * 9
    assert before == hooks_of(trainer.model) == 0


def test_an_evaluation_after_training_is_not_watched(tmp_path: Path) -> None:
    model = Breaks(at=99)
    trainer = make_trainer(tmp_path, model=model, **DETECT)
    trainer.train()
    model.at = model.calls + 1
    assert trainer.evaluate()["eval_runtime"] > 0


def test_a_debug_option_of_a_tpu_is_refused_and_so_is_one_that_does_not_exist() -> None:
    with pytest.raises(ArgumentError, match=r"tpu_metrics_debug.*underflow_overflow"):
        TrainingArguments("out", use_cpu=True, debug="tpu_metrics_debug")
    with pytest.raises(ArgumentError, match="tpu_metrics_debug"):
        TrainingArguments("out", use_cpu=True, debug="underflow_overflow tpu_metrics_debug")
    with pytest.raises(ArgumentError, match=r"debug='overflow'.*'underflow_overflow'"):
        TrainingArguments("out", use_cpu=True, debug="overflow")


# The noise.


class Embedded(TrainerCallback):
    """Runs the embeddings on the same tokens in training and in evaluation mode, at every step."""

    def __init__(self) -> None:
        self.noise: list[float] = []
        self.in_evaluation: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.noise.append(self._difference(model))

    def on_prediction_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.in_evaluation.append(self._difference(model))

    @staticmethod
    def _difference(model: Any) -> float:
        embeddings, tokens = model.get_input_embeddings(), torch.ones(2, 8, dtype=torch.long)
        with torch.no_grad():
            return float((embeddings(tokens) - embeddings.weight[tokens]).abs().max())


@pytest.mark.feature(59)
def test_noise_is_added_while_training_only_and_is_as_strong_as_the_paper_says(tmp_path: Path) -> None:
    look = Embedded()
    trainer = classifier_trainer(tmp_path, callbacks=[look], eval_strategy="epoch", **NOISE)
    trainer.train()
    trainer.evaluate()
    limit = 5.0 / (8 * 8) ** 0.5  # alpha / sqrt(length * width)
    assert len(look.noise) == 3
    assert all(0.8 * limit < each <= limit for each in look.noise)
    assert len(look.in_evaluation) == 2
    assert set(look.in_evaluation) == {0.0}


@pytest.mark.feature(59)
def test_the_noise_is_gone_after_training_and_the_module_is_as_it_was(tmp_path: Path) -> None:
    trainer = classifier_trainer(tmp_path, **NOISE)
    embeddings = trainer.model.get_input_embeddings()
    before = set(vars(embeddings))
    trainer.train()
    assert hooks_of(trainer.model) == 0
    assert set(vars(embeddings)) == before
    trainer.model.train()
    assert Embedded._difference(trainer.model) == 0.0


def test_noise_changes_the_training_loss_and_no_evaluation(tmp_path: Path) -> None:
    noisy = classifier_trainer(tmp_path, learning_rate=0.0, **NOISE)
    plain = classifier_trainer(tmp_path, learning_rate=0.0)
    for trainer in (noisy, plain):
        trainer.train()
    assert losses(noisy) != losses(plain)
    assert noisy.evaluate()["eval_loss"] == plain.evaluate()["eval_loss"]


def test_a_language_model_takes_noise(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, model=gpt2_language_model(), train_dataset=language_data(8), eval_dataset=None, **NOISE
    )
    trainer.train()
    assert hooks_of(trainer.model) == 0


class Tells(PlainClassifier):
    """A plain module that tells its embeddings."""

    def get_input_embeddings(self) -> Any:
        return self.embedding


@pytest.mark.feature(59)
def test_a_plain_module_takes_noise_if_it_tells_its_embeddings_and_is_refused_if_not(tmp_path: Path) -> None:
    data = [{key: each[key] for key in ("input_ids", "labels")} for each in classification_data(16)]
    parts: dict[str, Any] = {"train_dataset": data, "eval_dataset": None, "learning_rate": 0.0}

    def trained(**changes: Any) -> list[float]:
        torch.manual_seed(0)
        trainer = make_trainer(tmp_path, model=Tells(), **parts, **changes)
        trainer.train()
        assert hooks_of(trainer.model) == 0
        return losses(trainer)

    assert trained(**NOISE) != trained()
    refused = make_trainer(tmp_path, model=PlainClassifier(), **parts, **NOISE)
    with pytest.raises(InvalidInputError, match=r"neftune_noise_alpha.*PlainClassifier.*get_input_embeddings"):
        refused.train()
    assert hooks_of(refused.model) == 0


# Failures.


class FailsInTheMiddle(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        raise RuntimeError("in the middle")


class FailsWhilePreparing(Trainer):
    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        raise RuntimeError("while preparing")


@pytest.mark.parametrize("changes", [DETECT, NOISE, BOTH], ids=["detector", "noise", "both"])
@pytest.mark.parametrize("where", ["in the middle", "while preparing"])
def test_a_training_that_fails_leaves_no_hook_behind(tmp_path: Path, where: str, changes: dict[str, Any]) -> None:
    model = classifier()
    if where == "in the middle":
        trainer = classifier_trainer(tmp_path, model=model, callbacks=[FailsInTheMiddle()], **changes)
    else:
        trainer = classifier_trainer(tmp_path, FailsWhilePreparing, model=model, **changes)
    with pytest.raises(RuntimeError, match=where):
        trainer.train()
    assert hooks_of(model) == 0
    count = CountHooks()
    classifier_trainer(tmp_path, model=model, callbacks=[count], **changes).train()
    fresh = CountHooks()
    classifier_trainer(tmp_path, callbacks=[fresh], **changes).train()
    assert count.seen == fresh.seen


def test_a_checkpoint_that_is_refused_leaves_no_hook_behind(tmp_path: Path) -> None:
    classifier_trainer(tmp_path, save_strategy="epoch").train()
    (tmp_path / "checkpoint-3" / "optimizer.pt").write_bytes(b"damaged")
    model = classifier()
    trainer = classifier_trainer(tmp_path, model=model, **BOTH)
    with pytest.raises(CheckpointError, match=r"optimizer\.pt"):
        trainer.train(resume_from_checkpoint=True)
    assert hooks_of(model) == 0


def test_hooks_of_the_users_own_stay(tmp_path: Path) -> None:
    calls: list[Any] = []
    model = classifier()
    model.classifier.register_forward_hook(lambda *args: calls.append(args[0]))
    classifier_trainer(tmp_path, model=model, **BOTH).train()
    assert hooks_of(model) == 1
    assert len(calls) == 3
