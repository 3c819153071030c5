"""Which checkpoints a run writes, keeps and loads, and that what is saved loads again with equal weights."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from tokenizers import Tokenizer, models
from transformers import (
    BertForSequenceClassification,
    GPT2LMHeadModel,
    PrinterCallback,
    TrainerCallback,
    TrainerState,
)
from transformers.trainer_utils import get_last_checkpoint

from hpsearch import Trainer, TrainingArguments
from hpsearch.errors import CheckpointError, WeightsMismatchError
from hpsearch.training.weights import check_fits, load_weights
from tests.support.models import (
    Line,
    TiedPair,
    bert_classifier,
    classification_data,
    gpt2_language_model,
    language_data,
    line_data,
    weights_of,
)
from tests.support.small_training import Look, args_of, at_process
from tests.support.small_training import make_trainer as line_trainer


class Course:
    """Metrics that follow a given course, evaluation by evaluation."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def __call__(self, prediction: Any) -> dict[str, float]:
        return {"score": self.values.pop(0)}


class KeepWeights(TrainerCallback):
    """Keeps the weights of every step, and the checkpoints that are there after every save."""

    def __init__(self) -> None:
        self.weights: dict[int, dict[str, torch.Tensor]] = {}
        self.folders: list[list[int]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.weights[state.global_step] = weights_of(model)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.folders.append(steps_saved(Path(args.output_dir)))


def make_trainer(folder: Path, *callbacks: Any, kind: Any = Trainer, **changes: Any) -> Any:
    """24 points in batches of 8: 3 updates an epoch."""
    names = ("model", "model_init", "train_dataset", "eval_dataset", "compute_metrics", "processing_class")
    parts = {name: changes.pop(name) for name in names if name in changes}
    if "model" not in parts:
        parts.setdefault("model_init", Line)
    values: dict[str, Any] = {
        "learning_rate": 0.05,
        "per_device_train_batch_size": 8,
        "num_train_epochs": 4,
        "logging_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        **changes,
    }
    arguments = TrainingArguments if issubclass(kind, Trainer) else transformers.TrainingArguments
    parts = {"train_dataset": line_data(), "eval_dataset": line_data(10, seed=1), **parts}
    trainer = kind(args=arguments(str(folder), **values), callbacks=list(callbacks), **parts)
    trainer.remove_callback(PrinterCallback)
    return trainer


def steps_saved(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))


def assert_equal_weights(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, weights in left.items():
        assert torch.equal(weights, right[name]), name


@pytest.mark.feature(33, 103)
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"save_strategy": "no"}, []),
        ({"save_strategy": "epoch"}, [3, 6, 9, 12]),
        ({"save_strategy": "epoch", "num_train_epochs": 1.5}, [3, 5]),
        ({"save_strategy": "steps", "save_steps": 5}, [5, 10, 12]),
        ({"save_strategy": "steps", "save_steps": 4}, [4, 8, 12]),
        ({"save_strategy": "steps", "save_steps": 0.5}, [6, 12]),
        ({"save_strategy": "steps", "save_steps": 500}, [12]),
    ],
)
def test_checkpoints_are_written_when_the_strategy_says(
    tmp_path: Path, changes: dict[str, Any], expected: list[int]
) -> None:
    make_trainer(tmp_path, **changes).train()
    assert steps_saved(tmp_path) == expected
    assert all(path.name.startswith("checkpoint-") for path in tmp_path.iterdir())


BEST: dict[str, Any] = {
    "eval_strategy": "epoch",
    "save_strategy": "best",
    "metric_for_best_model": "score",
    "greater_is_better": True,
}
COURSES = {
    "best_in_between": (0.1, 0.4, 0.3, 0.2),
    "best_first": (0.4, 0.3, 0.2, 0.1),
    "best_last": (0.1, 0.2, 0.3, 0.4),
    "ties": (0.2, 0.2, 0.2, 0.1),
    "not_a_number_first": (float("nan"), 0.1, 0.3, 0.2),
}


@pytest.mark.feature(33)
@pytest.mark.parametrize("course", COURSES)
def test_the_strategy_best_saves_at_every_new_best_and_only_there(tmp_path: Path, course: str) -> None:
    saved = []
    for kind in (transformers.Trainer, Trainer):
        folder = tmp_path / kind.__module__
        make_trainer(folder, kind=kind, compute_metrics=Course(*COURSES[course]), **BEST).train()
        saved.append(steps_saved(folder))
    assert saved[1] == saved[0]
    assert len(saved[1]) >= 1


@pytest.mark.feature(34, 97)
@pytest.mark.parametrize("greater_is_better", [True, False])
@pytest.mark.parametrize("limit", [None, 1, 2, 3])
@pytest.mark.parametrize("course", COURSES)
def test_best_metric_step_and_checkpoint_and_the_folders_left_are_the_peers(
    tmp_path: Path, course: str, limit: int | None, greater_is_better: bool
) -> None:
    results = []
    for kind in (transformers.Trainer, Trainer):
        folder = tmp_path / kind.__module__
        trainer = make_trainer(
            folder,
            kind=kind,
            compute_metrics=Course(*COURSES[course]),
            **{**BEST, "save_strategy": "epoch", "greater_is_better": greater_is_better},
            load_best_model_at_end=True,
            save_total_limit=limit,
        )
        trainer.train()
        state = trainer.state
        best_folder = state.best_model_checkpoint and Path(state.best_model_checkpoint).name
        results.append((state.best_metric, state.best_global_step, best_folder, steps_saved(folder)))
    assert results[1] == results[0]


@pytest.mark.feature(34)
def test_the_limit_keeps_the_best_and_the_newest_after_every_save(tmp_path: Path) -> None:
    keep = KeepWeights()
    make_trainer(
        tmp_path,
        keep,
        compute_metrics=Course(0.1, 0.9, 0.3, 0.2),
        **{**BEST, "save_strategy": "epoch"},
        save_total_limit=2,
    ).train()
    assert keep.folders == [[3], [3, 6], [6, 9], [6, 12]]


@pytest.mark.parametrize("limit", [1, 2])
def test_a_run_that_resumes_by_an_absolute_path_keeps_its_best_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {**BEST, "save_strategy": "epoch", "load_best_model_at_end": True}
    make_trainer(Path("out"), compute_metrics=Course(0.1, 0.9, 0.3, 0.2), **settings).train()
    resumed = make_trainer(Path("out"), save_total_limit=limit, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-12"))
    assert 6 in steps_saved(Path("out"))
    assert os.path.samefile(resumed.state.best_model_checkpoint, "out/checkpoint-6")


def test_without_a_best_metric_the_limit_keeps_the_newest(tmp_path: Path) -> None:
    keep = KeepWeights()
    make_trainer(tmp_path, keep, save_strategy="steps", save_steps=4, save_total_limit=1).train()
    assert keep.folders == [[4], [8], [12]]


@pytest.mark.feature(34)
def test_rotation_orders_by_number_and_not_by_spelling(tmp_path: Path) -> None:
    make_trainer(tmp_path, save_strategy="steps", save_steps=1, save_total_limit=3).train()
    assert steps_saved(tmp_path) == [10, 11, 12]


@pytest.mark.feature(47)
def test_the_best_weights_are_in_the_model_at_the_end(tmp_path: Path) -> None:
    keep = KeepWeights()
    trainer = make_trainer(
        tmp_path,
        keep,
        compute_metrics=Course(0.1, 0.9, 0.3, 0.2),
        **{**BEST, "save_strategy": "epoch"},
        load_best_model_at_end=True,
    )
    trainer.train()
    assert trainer.state.best_global_step == 6
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-6")
    assert_equal_weights(weights_of(trainer.model), keep.weights[6])
    plain = make_trainer(tmp_path / "plain", save_strategy="no")
    plain.train()
    assert_equal_weights(weights_of(plain.model), keep.weights[12])


@pytest.mark.feature(47)
def test_the_best_weights_are_found_beside_the_checkpoint_where_a_folder_was_moved(tmp_path: Path) -> None:
    keep = KeepWeights()
    course, best = Course(0.1, 0.9, 0.3, 0.2), {**BEST, "save_strategy": "epoch", "load_best_model_at_end": True}
    make_trainer(tmp_path / "before", keep, compute_metrics=course, **best).train()
    (tmp_path / "before").rename(tmp_path / "now")
    trainer = make_trainer(tmp_path / "now", compute_metrics=course, **best)
    trainer.train(resume_from_checkpoint=True)  # which has come to its end
    assert trainer.state.best_model_checkpoint == str(tmp_path / "now" / "checkpoint-6")
    assert_equal_weights(weights_of(trainer.model), keep.weights[6])


@pytest.mark.feature(47)
@pytest.mark.parametrize("strategy", ["best", "steps"])
def test_the_best_weights_are_loaded_with_the_other_strategies_too(tmp_path: Path, strategy: str) -> None:
    keep = KeepWeights()
    changes = {**BEST, "save_strategy": strategy}
    if strategy == "steps":
        changes |= {"eval_strategy": "steps", "eval_steps": 3, "save_steps": 3}
    trainer = make_trainer(
        tmp_path, keep, compute_metrics=Course(0.9, 0.1, 0.3, 0.2), **changes, load_best_model_at_end=True
    )
    trainer.train()
    assert trainer.state.best_global_step == 3
    assert_equal_weights(weights_of(trainer.model), keep.weights[3])


@pytest.mark.feature(97)
def test_the_best_model_by_loss_is_that_of_the_lowest_evaluation_loss(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, learning_rate=1.5
    )
    trainer.train()
    history = {each["step"]: each["eval_loss"] for each in trainer.state.log_history if "eval_loss" in each}
    best = min(history, key=lambda step: history[step])
    assert (trainer.state.best_metric, trainer.state.best_global_step) == (history[best], best)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(history[best])


@pytest.mark.feature(97)
@pytest.mark.parametrize("name", ["f1", "eval_f1"])
def test_a_missing_best_metric_is_a_key_error_that_lists_what_there_is(tmp_path: Path, name: str) -> None:
    trainer = make_trainer(
        tmp_path, compute_metrics=Course(0.1), **{**BEST, "metric_for_best_model": name, "save_strategy": "no"}
    )
    with pytest.raises(KeyError, match=r"eval_f1.*eval_loss.*eval_score"):
        trainer.train()


@pytest.mark.feature(69, 96)
def test_a_saved_model_loads_by_from_pretrained_with_equal_weights(tmp_path: Path) -> None:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"[PAD]": 0, "a": 1}, unk_token="[PAD]")), pad_token="[PAD]"
    )
    trainer = make_trainer(
        tmp_path,
        model_init=bert_classifier,
        train_dataset=classification_data(16),
        eval_dataset=None,
        processing_class=tokenizer,
        num_train_epochs=1,
        save_strategy="epoch",
    )
    trainer.train()
    trainer.save_model()
    trainer.save_model(str(tmp_path / "elsewhere"))
    for folder in (tmp_path, tmp_path / "elsewhere", tmp_path / "checkpoint-2"):
        loaded = BertForSequenceClassification.from_pretrained(folder)
        assert_equal_weights(weights_of(loaded), weights_of(trainer.model))
        assert transformers.AutoTokenizer.from_pretrained(folder).get_vocab() == tokenizer.get_vocab()
        args = torch.load(folder / "training_args.bin", weights_only=False)
        assert args.to_dict() == trainer.args.to_dict()


def test_a_saved_language_model_with_tied_weights_loads_with_them_tied(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path,
        model_init=gpt2_language_model,
        train_dataset=language_data(16),
        num_train_epochs=1,
        save_strategy="epoch",
    )
    trainer.train()
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path / "checkpoint-2")
    assert_equal_weights(weights_of(loaded), weights_of(trainer.model))
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    other = make_trainer(tmp_path, model=gpt2_language_model())
    other.load_weights(tmp_path / "checkpoint-2")
    assert_equal_weights(weights_of(other.model), weights_of(trainer.model))
    assert other.model.lm_head.weight is other.model.transformer.wte.weight


@pytest.mark.parametrize("read", [load_weights, check_fits])
@pytest.mark.parametrize("other", [{"bias": False}, {"out_features": 3}], ids=["unexpected name", "other shape"])
def test_weights_with_other_names_or_shapes_are_of_another_model(
    tmp_path: Path, read: Any, other: dict[str, Any]
) -> None:
    one = {"in_features": 2, "out_features": 2}
    safetensors.torch.save_model(torch.nn.Linear(**one), str(tmp_path / "model.safetensors"))
    read(torch.nn.Linear(**one), tmp_path)
    with pytest.raises(WeightsMismatchError, match="belong to another model"):
        read(torch.nn.Linear(**{**one, **other}), tmp_path)


@pytest.mark.parametrize("read", [load_weights, check_fits])
def test_weights_of_another_size_whose_names_are_converted_are_of_another_model(tmp_path: Path, read: Any) -> None:
    def mixtral(size: int) -> transformers.MixtralForCausalLM:
        sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 2, "vocab_size": 8}
        config = transformers.MixtralConfig(
            hidden_size=size, intermediate_size=8, num_hidden_layers=1, num_experts_per_tok=1, **sizes
        )
        return transformers.MixtralForCausalLM(config)

    mixtral(8).save_pretrained(tmp_path)
    read(mixtral(8), tmp_path)
    with pytest.raises(WeightsMismatchError, match="belong to another model"):
        read(mixtral(16), tmp_path)


@pytest.mark.feature(96)
@pytest.mark.parametrize("model_class", [Line, TiedPair])
def test_a_plain_module_is_saved_as_safetensors_and_loads_again(tmp_path: Path, model_class: Any) -> None:
    trainer = make_trainer(tmp_path, model_init=model_class, num_train_epochs=1, save_strategy="epoch")
    trainer.train()
    stored = safetensors.torch.load_file(tmp_path / "checkpoint-3" / "model.safetensors")
    expected = weights_of(trainer.model)
    assert_equal_weights(
        {name: stored[name] for name in expected if name in stored},
        {name: expected[name] for name in expected if name in stored},
    )
    other = make_trainer(tmp_path, model=model_class())
    other.load_weights(tmp_path / "checkpoint-3")
    assert_equal_weights(weights_of(other.model), expected)
    if model_class is TiedPair:
        assert len(stored) == 3
        assert other.model.second.weight is other.model.first.weight
        assert make_trainer(tmp_path, model_init=model_class).train(resume_from_checkpoint=True).global_step == 12


@pytest.mark.parametrize(
    ("model_init", "dataset"),
    [
        (Line, line_data()),
        (TiedPair, line_data()),
        (gpt2_language_model, language_data(16)),
        (bert_classifier, classification_data(16)),
    ],
    ids=["plain", "plain_tied", "language_model_tied", "classifier"],
)
def test_weights_captured_earlier_are_saved_in_place_of_the_present_ones(
    tmp_path: Path, model_init: Any, dataset: Any
) -> None:
    trainer = make_trainer(
        tmp_path, model_init=model_init, train_dataset=dataset, save_strategy="no", num_train_epochs=1
    )
    earlier = weights_of(trainer.model)
    captured = trainer.capture_weights()
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.add_(1.0)
    trainer.save_weights(tmp_path / "earlier", captured)
    other = make_trainer(tmp_path, model=model_init())
    other.load_weights(tmp_path / "earlier")
    assert_equal_weights(weights_of(other.model), earlier)


@pytest.mark.feature(95)
def test_weights_of_another_model_or_none_are_refused(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer.save_model()
    other = make_trainer(tmp_path, model=TiedPair())
    with pytest.raises(CheckpointError, match="another model"):
        other.load_weights(tmp_path)
    with pytest.raises(CheckpointError, match="no weights"):
        other.load_weights(tmp_path / "nothing")


@pytest.mark.feature(96)
def test_save_state_writes_the_state_that_loads_as_it_was(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "new", save_strategy="no")
    trainer.train()
    trainer.save_state()
    written = json.loads((tmp_path / "new" / "trainer_state.json").read_text())
    assert (written["global_step"], written["max_steps"], written["epoch"]) == (12, 12, 4.0)
    assert vars(TrainerState.load_from_json(str(tmp_path / "new" / "trainer_state.json"))) == vars(trainer.state)


def test_the_state_in_a_checkpoint_is_that_of_its_step(tmp_path: Path) -> None:
    make_trainer(
        tmp_path,
        compute_metrics=Course(0.1, 0.9, 0.3, 0.2),
        **{**BEST, "save_strategy": "epoch"},
        logging_steps=1,
    ).train()
    read = {
        step: TrainerState.load_from_json(str(tmp_path / f"checkpoint-{step}" / "trainer_state.json"))
        for step in (3, 6, 9, 12)
    }
    assert {step: state.global_step for step, state in read.items()} == {3: 3, 6: 6, 9: 9, 12: 12}
    assert [state.best_metric for state in read.values()] == [0.1, 0.9, 0.9, 0.9]
    assert read[6].best_model_checkpoint == str(tmp_path / "checkpoint-6")
    assert read[9].log_history[-1]["eval_score"] == 0.3
    assert read[9].best_model_checkpoint == str(tmp_path / "checkpoint-6")


def test_a_checkpoint_of_only_the_model_has_no_optimizer_and_cannot_be_resumed(tmp_path: Path) -> None:
    make_trainer(tmp_path, save_strategy="epoch", save_only_model=True).train()
    names = {path.name for path in (tmp_path / "checkpoint-12").iterdir()}
    assert "model.safetensors" in names
    assert names.isdisjoint({"optimizer.pt", "scheduler.pt", "rng_state.pth"})
    with pytest.raises(CheckpointError, match="save_only_model"):
        make_trainer(tmp_path).train(resume_from_checkpoint=True)


@pytest.mark.feature(18)
def test_training_again_into_the_same_folder_replaces_its_checkpoints(tmp_path: Path) -> None:
    make_trainer(tmp_path, save_strategy="epoch", seed=1).train()
    trainer = make_trainer(tmp_path, save_strategy="epoch", seed=2)
    trainer.train()
    assert steps_saved(tmp_path) == [3, 6, 9, 12]
    stored = safetensors.torch.load_file(tmp_path / "checkpoint-12" / "model.safetensors")
    assert_equal_weights(stored, weights_of(trainer.model))


def test_a_best_folder_of_an_earlier_run_is_not_taken_for_the_best_of_this_one(tmp_path: Path) -> None:
    changes = {**BEST, "save_strategy": "epoch"}
    make_trainer(tmp_path, compute_metrics=Course(0.1, 0.9, 0.3, 0.2), **changes).train()
    keep = KeepWeights()
    trainer = make_trainer(
        tmp_path,
        keep,
        compute_metrics=Course(0.1, 0.2, 0.8, 0.3),
        **changes,
        seed=2,
        load_best_model_at_end=True,
    )
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-9")
    assert_equal_weights(weights_of(trainer.model), keep.weights[9])


def test_an_override_of_save_model_decides_what_a_checkpoint_holds(tmp_path: Path) -> None:
    class Own(Trainer):
        def save_model(self, output_dir: str | None = None) -> None:
            super().save_model(output_dir)
            Path(output_dir or self.args.output_dir, "own.txt").write_text("mine")

    make_trainer(tmp_path, kind=Own, save_strategy="epoch", num_train_epochs=1).train()
    assert (tmp_path / "checkpoint-3" / "own.txt").read_text() == "mine"
    assert (tmp_path / "checkpoint-3" / "optimizer.pt").is_file()


def test_a_best_checkpoint_that_is_gone_at_the_end_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Removes(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            for checkpoint in tmp_path.glob("checkpoint-*"):
                shutil.rmtree(checkpoint)

    options = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    trainer = make_trainer(tmp_path, Removes(), eval_dataset=line_data(6), num_train_epochs=2, **options)
    with caplog.at_level("WARNING", logger="hpsearch"):
        trainer.train()
    assert "best checkpoint" in caplog.text
    assert "does not exist" in caplog.text


def test_resuming_at_the_last_update_makes_no_further_one(tmp_path: Path) -> None:
    changes = {"save_strategy": "steps", "save_steps": 4, "max_steps": 4}
    make_trainer(tmp_path, **changes).train()
    resumed = make_trainer(tmp_path, **changes)
    assert resumed.train(resume_from_checkpoint=True).global_step == 4


@pytest.mark.feature(34)
@pytest.mark.parametrize(
    ("on_each_node", "place", "saves"),
    [(False, (0, 0), True), (False, (2, 0), False), (True, (2, 0), True), (True, (3, 1), False)],
)
def test_the_main_process_of_all_nodes_saves_or_that_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_each_node: bool, place: tuple[int, int], saves: bool
) -> None:
    trainer = line_trainer(tmp_path, save_strategy="epoch", save_on_each_node=on_each_node)
    at_process(monkeypatch, *place)
    trainer.train()
    files = {path.name for path in (tmp_path / "checkpoint-3").glob("*")}
    assert {"model.safetensors", "trainer_state.json"} <= files if saves else files == set()


@pytest.mark.feature(48, "P5")
@pytest.mark.parametrize(
    ("metric", "greater"),
    [
        ("loss", False),
        ("eval_loss", False),
        ("eval_data1_loss", False),
        ("my_loss", False),
        ("accuracy", True),
        ("eval_accuracy", True),
        ("loss_ratio", True),
    ],
)
def test_a_metric_whose_name_ends_in_loss_is_better_when_smaller_and_any_other_when_greater(
    metric: str, greater: bool
) -> None:
    assert args_of(metric_for_best_model=metric).greater_is_better is greater
    assert args_of(metric_for_best_model=metric, greater_is_better=not greater).greater_is_better is not greater


@pytest.mark.feature(48)
def test_the_best_model_is_by_default_the_one_of_least_loss_and_may_be_named_with_or_without_prefix(
    tmp_path: Path,
) -> None:
    both = {"eval_strategy": "epoch", "save_strategy": "epoch"}
    args = args_of(load_best_model_at_end=True, **both)
    assert (args.metric_for_best_model, args.greater_is_better) == ("loss", False)
    best = []
    for name in ("match", "eval_match"):
        course = iter((0.3, 0.9, 0.1))
        trainer = line_trainer(
            tmp_path / name,
            compute_metrics=lambda prediction, course=course: {"match": next(course)},
            metric_for_best_model=name,
            num_train_epochs=3,
            **both,
        )
        trainer.train()
        best.append((trainer.state.best_metric, trainer.state.best_global_step))
    assert best == [(0.9, 6), (0.9, 6)]


@pytest.mark.feature(92, "P17")
def test_a_checkpoint_is_named_by_its_step_and_holds_optimizer_schedule_streams_and_state(tmp_path: Path) -> None:
    line_trainer(tmp_path, save_strategy="epoch").train()
    (folder,) = tmp_path.iterdir()
    assert folder.name == "checkpoint-3"
    assert {path.name for path in folder.iterdir()} == {
        "model.safetensors",
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "trainer_state.json",
        "training_args.bin",
        "run_state.json",
    }
    state = torch.load(folder / "optimizer.pt", weights_only=True)
    assert all(float(each["exp_avg"].abs().sum()) > 0 for each in state["state"].values())


@pytest.mark.feature(95)
def test_the_newest_checkpoint_is_the_one_of_the_highest_number_and_can_be_loaded_to_predict(tmp_path: Path) -> None:
    assert get_last_checkpoint(str(tmp_path)) is None
    trainer = line_trainer(tmp_path, save_strategy="steps", save_steps=1, num_train_epochs=4)
    trainer.train()
    expected = trainer.predict(line_data(4)).predictions
    newest = get_last_checkpoint(str(tmp_path))
    assert newest == str(tmp_path / "checkpoint-12")
    other = line_trainer(tmp_path, model=Line())
    assert not np.array_equal(other.predict(line_data(4)).predictions, expected)
    other.load_weights(newest)
    np.testing.assert_array_equal(other.predict(line_data(4)).predictions, expected)
    steps: list[int] = []
    look = Look("on_step_end", lambda state, **_: steps.append(state.global_step))
    line_trainer(tmp_path, num_train_epochs=5, callbacks=[look]).train(resume_from_checkpoint=True)
    assert steps == [13, 14, 15]
