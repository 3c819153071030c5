"""PEFT models: only the adapter is trained, written, resumed, loaded and searched; the model below stays as it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from transformers import TrainerCallback

from hpsearch import Categorical, CheckpointError, Float, StudyError, Trainer, WeightsMismatchError
from hpsearch.training.resume import resumable_checkpoints
from hpsearch.training.weights import check_fits, load_weights
from tests.support.models import (
    accuracy,
    bert_classifier,
    classification_data,
    gpt2_language_model,
    language_data,
    weights_of,
)
from tests.support.small_training import losses, make_trainer

peft = pytest.importorskip("peft")
# peft asks transformers for a property that it is about to rename.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")

ADAPTER_FILES = {"adapter_model.safetensors", "adapter_config.json"}
COMMON_FILES = {"optimizer.pt", "rng_state.pth", "scheduler.pt", "trainer_state.json", "training_args.bin"}
SPEEDS = ("runtime", "per_second", "preparation_time")


def base_model() -> Any:
    torch.manual_seed(0)
    return bert_classifier(hidden=16, dropout=0.1)


def lora(r: int = 2, targets: tuple[str, ...] = ("query", "value")) -> Any:
    """A classifier of which only a LoRA adapter and the new head are trained."""
    settings = peft.LoraConfig(
        task_type="SEQ_CLS", r=r, lora_alpha=8, target_modules=list(targets), init_lora_weights=True
    )
    return peft.get_peft_model(base_model(), settings)


def lora_trainer(folder: Path, *callbacks: Any, kind: Any = Trainer, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "train_dataset": classification_data(32),
        "eval_dataset": classification_data(16, seed=1),
        "compute_metrics": accuracy,
        "callbacks": list(callbacks),
        "learning_rate": 0.02,
        "num_train_epochs": 2,
        "save_strategy": "epoch",
        "eval_strategy": "epoch",
        **changes,
    }
    if "model_init" not in values and "model" not in values:
        values["model"] = lora()
    torch.manual_seed(1)
    return make_trainer(folder, kind, **values)


def files_in(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def timeless(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in entry.items() if not name.endswith(SPEEDS)}
        for entry in history
        if "train_runtime" not in entry
    ]


def trained_part(model: Any) -> dict[str, torch.Tensor]:
    return {name: weights for name, weights in weights_of(model).items() if "lora" in name or "modules_to_save" in name}


def assert_same_weights(left: Any, right: Any) -> None:
    expected = weights_of(right)
    for name, weights in weights_of(left).items():
        assert torch.equal(weights, expected[name]), name


def test_only_the_adapter_and_the_head_are_trained(tmp_path: Path) -> None:
    trainer = lora_trainer(tmp_path)
    before = weights_of(trainer.model)
    trainer.train()
    after = weights_of(trainer.model)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == set(trained_part(trainer.model))
    in_optimizer = sum(len(group["params"]) for group in trainer.optimizer.param_groups)
    assert in_optimizer == len(changed)


def test_a_checkpoint_holds_the_adapter_alone(tmp_path: Path) -> None:
    lora_trainer(tmp_path).train()
    folder = tmp_path / "checkpoint-8"
    assert files_in(folder) == ADAPTER_FILES | COMMON_FILES | {"run_state.json", "README.md"}
    saved = safetensors.torch.load_file(str(folder / "adapter_model.safetensors"))
    assert len(saved) == 6
    assert all("lora_" in name or "classifier" in name for name in saved)


class StopsAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_save = control.should_training_stop = state.global_step == self._step


@pytest.mark.parametrize("step", [4, 6])
@pytest.mark.parametrize("changes", [{}, {"activation_checkpointing": True}], ids=["plain", "checkpointing"])
def test_resuming_is_exact(tmp_path: Path, step: int, changes: dict[str, Any]) -> None:
    common: dict[str, Any] = {"save_strategy": "no", "eval_strategy": "no", **changes}
    lora_trainer(tmp_path / "parts", StopsAt(step), **common).train()
    resumed = lora_trainer(tmp_path / "parts", **common)
    resumed.train(resume_from_checkpoint=True)
    whole = lora_trainer(tmp_path / "whole", **common)
    whole.train()
    assert resumed.state.global_step == 8
    assert timeless(resumed.state.log_history) == timeless(whole.state.log_history)
    assert_same_weights(resumed.model, whole.model)


def test_a_resumed_adapter_is_still_trained(tmp_path: Path) -> None:
    lora_trainer(tmp_path, StopsAt(4)).train()
    resumed = lora_trainer(tmp_path)
    saved = safetensors.torch.load_file(str(tmp_path / "checkpoint-4" / "adapter_model.safetensors"))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert all(each.requires_grad for name, each in resumed.model.named_parameters() if "lora" in name)
    name = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_B.weight"
    now = dict(resumed.model.named_parameters())[name.replace(".weight", ".default.weight")]
    assert not torch.equal(saved[name], now)


def test_an_adapter_of_another_rank_is_refused_by_file_name(tmp_path: Path) -> None:
    lora_trainer(tmp_path, StopsAt(4)).train()
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors"):
        lora_trainer(tmp_path, model=lora(r=4)).train(resume_from_checkpoint=True)


def test_a_model_with_an_adapter_of_its_own_resumes_exactly_too(tmp_path: Path) -> None:
    """`model.add_adapter(...)` of transformers, in place of a wrapper of PEFT."""

    def with_adapter() -> Any:
        torch.manual_seed(0)
        model = bert_classifier(dropout=0.0)
        model.add_adapter(peft.LoraConfig(r=2, target_modules=["query"], modules_to_save=["classifier"]))
        return model

    whole = lora_trainer(tmp_path, model=with_adapter())
    whole.train()
    resumed = lora_trainer(tmp_path, model=with_adapter())
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert losses(resumed) == losses(whole)


OTHER_MODULES = [("query", "key"), ("key",), ("query", "key", "value"), ("query",)]


@pytest.mark.parametrize("targets", OTHER_MODULES, ids=",".join)
def test_weights_of_an_adapter_of_other_modules_are_not_loaded(tmp_path: Path, targets: tuple[str, ...]) -> None:
    lora_trainer(tmp_path, StopsAt(4)).train()
    other = lora_trainer(tmp_path, model=lora(targets=targets))
    with pytest.raises(CheckpointError, match="checkpoint-4"):
        other.load_weights(tmp_path / "checkpoint-4")


@pytest.mark.parametrize("targets", OTHER_MODULES, ids=",".join)
def test_an_adapter_of_other_modules_is_refused(tmp_path: Path, targets: tuple[str, ...]) -> None:
    lora_trainer(tmp_path, StopsAt(4)).train()
    with pytest.raises(CheckpointError, match="checkpoint-4"):
        lora_trainer(tmp_path, model=lora(targets=targets)).train(resume_from_checkpoint=True)


def test_a_damaged_adapter_is_refused_by_file_name(tmp_path: Path) -> None:
    lora_trainer(tmp_path, StopsAt(4)).train()
    (tmp_path / "checkpoint-4" / "adapter_model.safetensors").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors"):
        lora_trainer(tmp_path).train(resume_from_checkpoint=True)


def test_a_whole_model_does_not_resume_from_an_adapter(tmp_path: Path) -> None:
    lora_trainer(tmp_path, StopsAt(4)).train()
    with pytest.raises(CheckpointError, match="checkpoint-4"):
        lora_trainer(tmp_path, model=base_model()).train(resume_from_checkpoint=True)


class KeepsWeights(TrainerCallback):
    def __init__(self) -> None:
        self.by_step: dict[int, dict[str, torch.Tensor]] = {}

    def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.by_step[state.global_step] = weights_of(model)


def test_the_best_adapter_is_loaded_at_the_end(tmp_path: Path) -> None:
    course = iter([0.2, 0.9, 0.5, 0.1])
    kept = KeepsWeights()
    trainer = lora_trainer(
        tmp_path,
        kept,
        num_train_epochs=4,
        compute_metrics=lambda prediction: {"quality": next(course)},
        metric_for_best_model="quality",
        load_best_model_at_end=True,
    )
    trainer.train()
    assert trainer.state.best_global_step == 8
    after = weights_of(trainer.model)
    for name, weights in kept.by_step[8].items():
        assert torch.equal(after[name], weights), name
    assert any(not torch.equal(after[name], weights) for name, weights in kept.by_step[16].items())


def test_a_saved_adapter_loads_onto_its_base_model_and_predicts_the_same(tmp_path: Path) -> None:
    trainer = lora_trainer(tmp_path / "run")
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    assert files_in(tmp_path / "saved") == ADAPTER_FILES | {"README.md", "training_args.bin"}
    loaded = peft.PeftModel.from_pretrained(base_model(), str(tmp_path / "saved"))
    data = classification_data(6, seed=2)
    expected = trainer.predict(data).predictions
    received = lora_trainer(tmp_path / "other", model=loaded).predict(data).predictions
    assert received.tolist() == expected.tolist()
    untrained = lora_trainer(tmp_path / "other", model=lora()).predict(data).predictions
    assert received.tolist() != untrained.tolist()


def test_weights_captured_earlier_are_saved_as_an_adapter_too(tmp_path: Path) -> None:
    trainer = lora_trainer(tmp_path / "run", save_strategy="no")
    trainer.train()
    captured = trainer.capture_weights()
    trainer.train()
    trainer.save_weights(tmp_path / "saved", captured)
    saved = safetensors.torch.load_file(str(tmp_path / "saved" / "adapter_model.safetensors"))
    assert len(saved) == 6
    name = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_B.weight"
    assert torch.equal(saved[name], captured[name.replace(".weight", ".default.weight")])


def several(names: tuple[str, ...], active: tuple[str, ...] = ()) -> Any:
    """A classifier with LoRA adapters of these names, those that are active trained (default: all of them)."""
    has_head = len(active or names) == 1  # PEFT does not train two heads at once
    settings = [
        peft.LoraConfig(task_type="SEQ_CLS" if has_head else None, r=rank, lora_alpha=8, target_modules=["query"])
        for rank in range(2, 2 + len(names))
    ]
    torch.manual_seed(1)
    model = peft.get_peft_model(base_model(), settings[0], adapter_name=names[0])
    for name, each in zip(names[1:], settings[1:], strict=True):
        model.add_adapter(name, each)
    model.base_model.set_adapter(list(active or names))
    return model


ADAPTERS: dict[str, dict[str, Any]] = {
    "one of another name": {"names": ("only",)},
    "one beside the default one": {"names": ("default", "other")},
    "the default one is not trained": {"names": ("default", "other"), "active": ("other",)},
    "two of other names": {"names": ("first", "second")},
    "names that begin alike": {"names": ("x", "xy", "y"), "active": ("x", "xy")},
}
of_adapters = pytest.mark.parametrize("case", ADAPTERS.values(), ids=ADAPTERS)


@of_adapters
def test_every_adapter_is_in_the_checkpoint_and_resuming_is_exact(tmp_path: Path, case: dict[str, Any]) -> None:
    common: dict[str, Any] = {"save_strategy": "no", "eval_strategy": "no", "max_grad_norm": 1.0}
    lora_trainer(tmp_path / "parts", StopsAt(6), model=several(**case), **common).train()
    [folder] = resumable_checkpoints(tmp_path / "parts")
    for name in case["names"]:
        assert files_in(folder if name == "default" else folder / name) >= ADAPTER_FILES
    resumed = lora_trainer(tmp_path / "parts", model=several(**case), **common)
    resumed.train(resume_from_checkpoint=True)
    whole = lora_trainer(tmp_path / "whole", model=several(**case), **common)
    whole.train()
    assert resumed.state.global_step == 8
    assert timeless(resumed.state.log_history) == timeless(whole.state.log_history)
    assert_same_weights(resumed.model, whole.model)


@of_adapters
def test_the_best_of_every_adapter_is_loaded_at_the_end(tmp_path: Path, case: dict[str, Any]) -> None:
    course = iter([0.9, 0.1])
    kept = KeepsWeights()
    trainer = lora_trainer(
        tmp_path,
        kept,
        model=several(**case),
        compute_metrics=lambda prediction: {"quality": next(course)},
        metric_for_best_model="quality",
        load_best_model_at_end=True,
    )
    trainer.train()
    after = weights_of(trainer.model)
    assert all(torch.equal(after[name], weights) for name, weights in kept.by_step[4].items())
    assert any(not torch.equal(after[name], weights) for name, weights in kept.by_step[8].items())


def test_captured_weights_of_several_adapters_are_saved_and_loaded(tmp_path: Path) -> None:
    trainer = lora_trainer(tmp_path / "run", model=several(("default", "other")), save_strategy="no")
    trainer.train()
    captured, expected = trainer.capture_weights(), weights_of(trainer.model)
    trainer.train()
    trainer.save_weights(tmp_path / "saved", captured)
    other = lora_trainer(tmp_path / "other", model=several(("default", "other")))
    other.load_weights(tmp_path / "saved")
    assert all(torch.equal(weights, expected[name]) for name, weights in weights_of(other.model).items())


@pytest.mark.parametrize("names", [("default",), ("first",), ("default", "second"), ("default", "first", "second")])
def test_a_checkpoint_of_other_adapters_is_refused_with_the_names_of_both(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    lora_trainer(tmp_path, StopsAt(4), model=several(("default", "first"))).train()
    other = lora_trainer(tmp_path, model=several(names))
    expected = rf"has the adapters \['default', 'first'\], but the model has {re.escape(str(sorted(names)))}"
    with pytest.raises(WeightsMismatchError, match=expected):
        other.train(resume_from_checkpoint=True)
    with pytest.raises(WeightsMismatchError, match=expected):
        check_fits(other.model, tmp_path / "checkpoint-4")


def test_no_adapter_is_loaded_if_one_is_damaged_or_of_another_rank(tmp_path: Path) -> None:
    lora_trainer(tmp_path, StopsAt(4), model=several(("x", "y"))).train()
    folder = tmp_path / "checkpoint-4"
    check_fits(several(("x", "y")), folder)
    other = several(("y", "x"))
    with pytest.raises(
        WeightsMismatchError, match=r"checkpoint-4/x/adapter_model\.safetensors' does not belong to the adapter"
    ):
        check_fits(other, folder)
    damaged = folder / "y" / "adapter_model.safetensors"
    damaged.write_bytes(b"damaged")
    for model, named in ((several(("x", "y")), "checkpoint-4/y/adapter"), (other, "checkpoint-4/.*adapter")):
        before = weights_of(model)
        with pytest.raises(CheckpointError, match=named):
            load_weights(model, folder)
        assert all(torch.equal(before[name], weights) for name, weights in weights_of(model).items())


@pytest.mark.slow
def test_a_search_resumes_trials_with_several_adapters_and_loads_all_of_the_best(tmp_path: Path) -> None:
    trainer = lora_trainer(
        tmp_path, model_init=lambda trial: several(("default", "other")), num_train_epochs=3, save_strategy="no"
    )
    best = trainer.hyperparameter_search({"learning_rate": Float(0.001, 0.1)}, n_trials=4, progress=False, seed=1)
    assert {record.state.value for record in best.run_summary.records} <= {"complete", "pruned"}
    loaded = weights_of(best.load_model())
    for name, folder in (("default", best.checkpoint), ("other", best.checkpoint / "other")):
        saved = safetensors.torch.load_file(str(folder / "adapter_model.safetensors"))
        [key] = [each for each in saved if "layer.0" in each and "lora_B" in each]
        assert saved[key].any()
        assert torch.equal(loaded[key.replace(".weight", f".{name}.weight")], saved[key])


PARITY: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 2},
    "activation_checkpointing": {"activation_checkpointing": True},
    "activation_checkpointing_with_arguments": {
        "activation_checkpointing": True,
        "activation_checkpointing_kwargs": {"use_reentrant": False},
    },
    "best": {"load_best_model_at_end": True, "metric_for_best_model": "loss"},
    "noise": {"neftune_noise_alpha": 5.0},
    "bfloat16": {"bf16": True},
}


@pytest.mark.parametrize("case", PARITY)
def test_losses_metrics_and_files_are_the_peers(tmp_path: Path, case: str) -> None:
    trained = []
    for kind in (transformers.Trainer, Trainer):
        model = lora()
        model.base_model.model.accepts_loss_kwargs = False  # the peer takes BERT to normalise over all micro-batches
        folder = tmp_path / kind.__module__
        trainer = lora_trainer(folder, kind=kind, model=model, **PARITY[case])
        trainer.train()
        checkpoints = {each.name: files_in(each) for each in sorted(folder.glob("checkpoint-*"))}
        trained.append((trainer, timeless(trainer.state.log_history), checkpoints))
    (peer, peer_history, peer_files), (ours, history, files) = trained
    for entry, expected in zip(history, peer_history, strict=True):
        assert list(entry) == list(expected)
        assert entry == pytest.approx(expected, rel=1e-4)
    assert {name: each - {"run_state.json"} for name, each in files.items()} == peer_files
    expected_weights = trained_part(peer.model)
    for name, weights in trained_part(ours.model).items():
        torch.testing.assert_close(weights, expected_weights[name], rtol=1e-4, atol=1e-6, msg=name)


def test_a_checkpoint_of_the_peer_is_resumed(tmp_path: Path) -> None:
    peer = lora_trainer(tmp_path, StopsAt(4), kind=transformers.Trainer, eval_strategy="no", save_strategy="no")
    peer.train()
    resumed = lora_trainer(tmp_path, eval_strategy="no", save_strategy="no")
    resumed.train(resume_from_checkpoint=True)
    whole = lora_trainer(tmp_path / "whole", eval_strategy="no", save_strategy="no")
    whole.train()
    assert losses(resumed) == pytest.approx(losses(whole), rel=1e-4)


def test_a_language_model_with_an_adapter_trains_shifts_its_labels_and_saves_the_adapter(tmp_path: Path) -> None:
    trained = []
    for kind in (transformers.Trainer, Trainer):
        torch.manual_seed(0)
        settings = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], fan_in_fan_out=True)
        model = peft.get_peft_model(gpt2_language_model(), settings)
        trainer = make_trainer(
            tmp_path / kind.__module__,
            kind,
            model=model,
            train_dataset=language_data(16),
            eval_dataset=language_data(8, seed=1),
            label_smoothing_factor=0.1,
            gradient_accumulation_steps=2,
            save_strategy="epoch",
        )
        trainer.train()
        trained.append((losses(trainer), trainer.evaluate()["eval_loss"]))
    (peer_losses, peer_eval), (our_losses, our_eval) = trained
    assert our_losses == pytest.approx(peer_losses, rel=1e-3)
    assert our_eval == pytest.approx(peer_eval, rel=1e-4)
    assert files_in(tmp_path / Trainer.__module__ / "checkpoint-1") >= ADAPTER_FILES


def test_a_search_reads_the_rank_in_model_init_and_loads_the_best_adapter(tmp_path: Path) -> None:
    ranks: list[int] = []

    def model_init(trial: Any) -> Any:
        ranks.append(2 if trial is None else trial.params["lora.r"])
        return lora(r=ranks[-1])

    trainer = lora_trainer(tmp_path, model_init=model_init, save_strategy="no", num_train_epochs=1)
    best = trainer.hyperparameter_search(
        {"lora.r": Categorical([1, 2, 4]), "learning_rate": Categorical([0.02])}, n_trials=3, progress=False, seed=1
    )
    assert set(ranks) <= {1, 2, 4}
    assert len({record.params["lora.r"] for record in best.run_summary.records}) > 1
    assert {record.state.value for record in best.run_summary.records} == {"complete"}
    model = best.load_model()
    assert model.peft_config["default"].r == best.hyperparameters["lora.r"]
    assert files_in(best.checkpoint) >= ADAPTER_FILES
    assert "model.safetensors" not in files_in(best.checkpoint)
    again = lora_trainer(tmp_path / "again", model=model, eval_strategy="no")
    assert again.evaluate()["eval_accuracy"] == best.objective
    saved = safetensors.torch.load_file(str(best.checkpoint / "adapter_model.safetensors"))
    name = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_B.weight"
    assert torch.equal(dict(model.named_parameters())[name.replace(".weight", ".default.weight")], saved[name])


@pytest.mark.filterwarnings("ignore:.*PEFT for a second time|.*already found a `peft_config`:UserWarning")
@pytest.mark.filterwarnings("ignore:(?i).*peft.*:UserWarning")
def test_adapters_in_a_base_model_that_all_trials_have_are_refused_before_any_is_trained(tmp_path: Path) -> None:
    """PEFT puts them into the base model, where those of an earlier trial stay unless the new ones replace them."""
    base = gpt2_language_model()

    def model_init(trial: Any) -> Any:
        return peft.get_peft_model(base, peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))

    trainer = lora_trainer(tmp_path, model_init=model_init, train_dataset=language_data(8), compute_metrics=None)
    with pytest.raises(StudyError, match="model_init returned the same base model as for an earlier trial"):
        trainer.hyperparameter_search({"learning_rate": Float(1e-4, 1e-2)}, n_trials=2, progress=False)
    assert not list(tmp_path.glob("study/run-*/checkpoint-*"))
