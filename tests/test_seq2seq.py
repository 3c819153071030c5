"""A Seq2SeqTrainer's evaluations and predictions generate; its numbers are those of transformers' Seq2SeqTrainer."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import pickle
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DataCollatorForSeq2Seq,
    GenerationConfig,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    PrinterCallback,
    T5Config,
    T5ForConditionalGeneration,
    T5Model,
    TrainerCallback,
)

from hpsearch import ArgumentError, Categorical, InvalidInputError, Seq2SeqTrainer, Seq2SeqTrainingArguments
from hpsearch.arguments import TrainingArguments, adopt
from hpsearch.arguments.casting import cast_argument
from tests.support.launch import start

LETTERS = "abcde"
PAD, END = 0, 1
SPECIAL_TOKENS = {"pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": PAD}


def letter_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are single letters; it appends no end of its own."""
    vocabulary = {"<pad>": PAD, "</s>": END, **{letter: 2 + place for place, letter in enumerate(LETTERS)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>")


TOKENIZER = letter_tokenizer()


def tiny_t5() -> T5ForConditionalGeneration:
    """A T5 of one layer over the five letters."""
    config = T5Config(
        vocab_size=2 + len(LETTERS),
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=1,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=8,
        dropout_rate=0.0,
        **SPECIAL_TOKENS,
    )
    return T5ForConditionalGeneration(config)


def seeded_t5(max_length: int | None = None) -> T5ForConditionalGeneration:
    torch.manual_seed(0)
    model = tiny_t5()
    model.accepts_loss_kwargs = False  # transformers takes T5 to use the count of items, which it does not
    model.generation_config.max_length = max_length
    return model


def reversals(words: list[str]) -> list[dict[str, list[int]]]:
    """Each word as input, its letters in reverse order as labels."""
    tokens = [TOKENIZER(word)["input_ids"] for word in words]
    return [{"input_ids": [*each, END], "labels": [*reversed(each), END]} for each in tokens]


def all_words(*lengths: int) -> list[str]:
    """Every word of these lengths, in an order that is always the same."""
    words = ["".join(letters) for length in lengths for letters in itertools.product(LETTERS, repeat=length)]
    random.Random(0).shuffle(words)
    return words


WORDS = all_words(3, 4)
SEEN, UNSEEN = reversals(WORDS[:650]), reversals(WORDS[650:])


def letters_of(tokens: Any) -> list[int]:
    """What a sequence says: its tokens after the start, without padding, up to the first end."""
    said = [int(token) for token in tokens if token not in (PAD, -100)]
    return said[: said.index(END)] if END in said else said


def exact_match(prediction: Any) -> dict[str, float]:
    pairs = zip(prediction.predictions, prediction.label_ids, strict=True)
    return {"exact_match": float(np.mean([letters_of(said) == letters_of(wanted) for said, wanted in pairs]))}


class ShapesSeen:
    """A `compute_metrics` that remembers the shapes of the predictions of every evaluation."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, prediction: Any) -> dict[str, float]:
        self.shapes.append(prediction.predictions.shape)
        return exact_match(prediction)

    def widths(self) -> list[int]:
        return [shape[1] for shape in self.shapes]


COMMON: dict[str, Any] = {
    "learning_rate": 5e-3,
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 50,
    "predict_with_generate": True,
    "save_strategy": "no",
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
}


def make_trainer(folder: Path, kind: Any = Seq2SeqTrainer, **changes: Any) -> Any:
    """A trainer of a tiny T5 on reversals; `changes` are of the trainer or its arguments."""
    parts: dict[str, Any] = {
        "train_dataset": SEEN,
        "eval_dataset": UNSEEN,
        "data_collator": DataCollatorForSeq2Seq(TOKENIZER),
        "processing_class": TOKENIZER,
        "compute_metrics": exact_match,
    }
    parts.update({name: changes.pop(name) for name in [*parts, "compute_loss_func"] if name in changes})
    default = {"model": seeded_t5(changes.pop("max_length_of_the_model", None))}
    source = {name: changes.pop(name) for name in ("model", "model_init") if name in changes} or default
    theirs = kind is transformers.Seq2SeqTrainer
    arguments = transformers.Seq2SeqTrainingArguments if theirs else Seq2SeqTrainingArguments
    trainer = kind(args=arguments(str(folder), **{**COMMON, **changes}), **source, **parts)
    trainer.remove_callback(PrinterCallback)
    return trainer


@pytest.fixture(scope="module")
def lesson(tmp_path_factory: pytest.TempPathFactory) -> Seq2SeqTrainer:
    """A trainer that has taught its model to reverse."""
    trainer = make_trainer(
        tmp_path_factory.mktemp("lesson"),
        num_train_epochs=20,
        eval_strategy="steps",
        eval_steps=0.5,
        eval_on_start=True,
        generation_max_length=8,
        logging_steps=50,
    )
    trainer.train()
    return trainer


@pytest.fixture
def taught(lesson: Seq2SeqTrainer, tmp_path: Path) -> Seq2SeqTrainer:
    """A trainer of a copy of the model that has learnt to reverse."""
    return make_trainer(tmp_path, model=copy.deepcopy(lesson.model), generation_max_length=8)


@pytest.mark.slow
@pytest.mark.feature(125)
def test_a_tiny_t5_learns_to_reverse_words_it_has_not_seen(lesson: Seq2SeqTrainer, taught: Seq2SeqTrainer) -> None:
    matches = [entry["eval_exact_match"] for entry in lesson.state.log_history if "eval_exact_match" in entry]
    assert matches[0] == 0.0
    assert matches[-1] > 0.9
    assert taught.evaluate()["eval_exact_match"] == matches[-1]


# The numbers are those of transformers.

CASES: dict[str, dict[str, Any]] = {
    "lengths_of_the_model": {"max_length_of_the_model": 12},
    "lengths_and_beams_of_the_arguments": {"generation_max_length": 6, "generation_num_beams": 3},
    "a_generation_config": {"generation_config": GenerationConfig(max_length=9, num_beams=2, **SPECIAL_TOKENS)},
    "sampling": {"generation_config": GenerationConfig(max_length=7, do_sample=True, top_k=4, **SPECIAL_TOKENS)},
    "no_generation": {"predict_with_generate": False},
    "batches_of_similar_length": {"train_sampling_strategy": "group_by_length", "generation_max_length": 7},
    "accumulation": {"gradient_accumulation_steps": 3, "generation_max_length": 7},
}


def train_and_predict(folder: Path, kind: Any, **changes: Any) -> tuple[list[dict[str, Any]], Any, Any]:
    trainer = make_trainer(
        folder,
        kind,
        train_dataset=SEEN[:200],
        eval_dataset=UNSEEN[:20],
        **{
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 10,
            "max_steps": 50,
            "logging_steps": 5,
            "eval_strategy": "steps",
            "eval_steps": 25,
            **changes,
        },
    )
    if not trainer.args.predict_with_generate:
        trainer.compute_metrics = None
    trainer.train()
    predicted = trainer.predict(UNSEEN[20:40])
    return trainer.state.log_history, predicted, trainer.evaluate()


def without_times(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in entry.items() if not key.endswith(("runtime", "per_second", "preparation_time"))}


def assert_same(ours: Any, theirs: Any) -> None:
    for our_entry, their_entry in zip([*ours[0], ours[2]], [*theirs[0], theirs[2]], strict=True):
        assert without_times(our_entry) == pytest.approx(without_times(their_entry), rel=1e-6)
    our_prediction, their_prediction = ours[1], theirs[1]
    assert without_times(our_prediction.metrics) == pytest.approx(without_times(their_prediction.metrics), rel=1e-6)
    assert np.array_equal(our_prediction.label_ids, their_prediction.label_ids)
    our_logits = our_prediction.predictions
    for our_array, their_array in zip(
        our_logits if isinstance(our_logits, tuple) else (our_logits,),
        their_prediction.predictions if isinstance(our_logits, tuple) else (their_prediction.predictions,),
        strict=True,
    ):
        assert our_array.shape == their_array.shape
        assert np.allclose(our_array, their_array, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=pytest.mark.smoke if each == "lengths_of_the_model" else ()) for each in CASES]
)
def test_log_history_and_generated_predictions_are_those_of_transformers(tmp_path: Path, case: str) -> None:
    ours = train_and_predict(tmp_path / "ours", Seq2SeqTrainer, **copy.deepcopy(CASES[case]))
    theirs = train_and_predict(tmp_path / "theirs", transformers.Seq2SeqTrainer, **copy.deepcopy(CASES[case]))
    assert_same(ours, theirs)


@pytest.mark.slow
def test_label_smoothing_needs_no_decoder_inputs_from_the_collator(tmp_path: Path) -> None:
    theirs_model = seeded_t5()
    theirs = train_and_predict(
        tmp_path / "theirs",
        transformers.Seq2SeqTrainer,
        model=theirs_model,
        data_collator=DataCollatorForSeq2Seq(TOKENIZER, model=theirs_model),
        label_smoothing_factor=0.1,
        generation_max_length=8,
    )
    ours = train_and_predict(
        tmp_path / "ours", Seq2SeqTrainer, label_smoothing_factor=0.1, generation_max_length=8, max_steps=50
    )
    assert_same(ours, theirs)


def test_a_loss_function_of_ones_own_sees_outputs_of_the_decoder(tmp_path: Path) -> None:
    def cross_entropy(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten())

    own, model_loss = (
        make_trainer(tmp_path, compute_loss_func=function, eval_dataset=UNSEEN[:50]).evaluate()["eval_loss"]
        for function in (cross_entropy, None)
    )
    assert own == pytest.approx(model_loss)


def test_the_loss_of_an_evaluation_that_generates_is_that_of_compute_loss(tmp_path: Path) -> None:
    class Halved(Seq2SeqTrainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:  # the older form
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
            return (loss / 2, outputs) if return_outputs else loss / 2

    metrics = [make_trainer(tmp_path, kind, eval_dataset=UNSEEN[:50]).evaluate() for kind in (Halved, Seq2SeqTrainer)]
    assert metrics[0]["eval_loss"] == pytest.approx(metrics[1]["eval_loss"] / 2)


def test_every_sample_counts_once_in_the_loss_also_in_a_short_last_batch(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, eval_dataset=UNSEEN[:7], per_device_eval_batch_size=3)
    batches = [DataCollatorForSeq2Seq(TOKENIZER)(UNSEEN[first : min(first + 3, 7)]) for first in (0, 3, 6)]
    with torch.no_grad():
        losses = [trainer.model.eval()(**batch).loss.item() for batch in batches]
    assert trainer.evaluate()["eval_loss"] == pytest.approx((3 * losses[0] + 3 * losses[1] + losses[2]) / 7)


# What generation is given.


@pytest.mark.feature(125)
def test_arguments_of_one_call_are_not_those_of_the_next(tmp_path: Path) -> None:
    seen = ShapesSeen()
    trainer = make_trainer(
        tmp_path, compute_metrics=seen, generation_max_length=25, max_steps=1, eval_strategy="steps", eval_steps=1
    )
    trainer.evaluate(max_length=40, num_beams=2)
    trainer.evaluate()
    trainer.predict(UNSEEN[:5], max_new_tokens=29)
    trainer.train()
    trainer.predict(UNSEEN[:5])
    assert seen.widths() == [40, 25, 30, 25, 25]


def test_arguments_of_a_call_that_failed_are_not_those_of_the_next(tmp_path: Path) -> None:
    seen = ShapesSeen()
    trainer = make_trainer(tmp_path, compute_metrics=seen, generation_max_length=25)
    with pytest.raises(ValueError, match="max_lenght"):
        trainer.evaluate(max_length=40, max_lenght=3)
    trainer.evaluate()
    assert seen.widths() == [25]


def test_each_of_several_evaluation_sets_is_generated_with_the_arguments_of_the_call(tmp_path: Path) -> None:
    seen = ShapesSeen()
    sets = {"some": UNSEEN[:4], "others": UNSEEN[4:10]}
    trainer = make_trainer(tmp_path, compute_metrics=seen, eval_dataset=sets)
    metrics = trainer.evaluate(max_length=31)
    assert seen.shapes == [(4, 31), (6, 31)]
    assert {"eval_some_exact_match", "eval_others_exact_match"} <= metrics.keys()


@pytest.mark.slow
@pytest.mark.feature(125)
def test_max_length_cuts_what_is_generated(taught: Seq2SeqTrainer) -> None:
    whole = [letters_of(row) for row in taught.predict(UNSEEN[:20]).predictions]
    cut = [letters_of(row) for row in taught.predict(UNSEEN[:20], max_length=3).predictions]
    assert {len(row) for row in whole} == {3, 4}
    assert cut == [row[:2] for row in whole]
    assert [letters_of(row) for row in taught.predict(UNSEEN[:20], max_new_tokens=1).predictions] == [
        row[:1] for row in whole
    ]


@pytest.mark.feature(124)
def test_the_number_of_beams_of_a_call_of_the_arguments_and_of_the_model_reaches_generate(tmp_path: Path) -> None:
    model = seeded_t5()
    trainer = make_trainer(tmp_path, model=model, generation_max_length=8)
    batch = DataCollatorForSeq2Seq(TOKENIZER)(UNSEEN[:50])
    expected = {
        beams: model.eval().generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], max_length=8, num_beams=beams
        )
        for beams in (1, 4)
    }
    assert expected[1].shape != expected[4].shape or not torch.equal(expected[1], expected[4])

    def says(made: Any, **gen_kwargs: Any) -> list[list[int]]:
        return [letters_of(row) for row in made.predict(UNSEEN[:50], **gen_kwargs).predictions]

    greedy, four_beams = ([letters_of(row) for row in expected[beams]] for beams in (1, 4))
    assert says(trainer) == greedy
    assert says(trainer, num_beams=4) == four_beams
    assert says(trainer, num_beams=None) == greedy
    by_arguments = trainer.with_arguments(generation_num_beams=4)
    assert says(by_arguments) == four_beams
    assert says(by_arguments, num_beams=1) == greedy
    model.generation_config.num_beams = 4
    assert says(trainer) == four_beams


@pytest.mark.slow
def test_a_length_that_was_asked_for_wins_over_the_new_tokens_of_the_models_generation_config(
    taught: Seq2SeqTrainer,
) -> None:
    model = copy.deepcopy(taught.model)
    model.generation_config.max_new_tokens = 2
    trainer = make_trainer(Path(taught.args.output_dir), model=model)
    assert {len(letters_of(row)) for row in trainer.predict(UNSEEN[:20]).predictions} == {2}
    longer = trainer.with_arguments(generation_max_length=8)
    assert {len(letters_of(row)) for row in longer.predict(UNSEEN[:20]).predictions} == {3, 4}


def test_the_generation_config_of_a_call_comes_before_the_arguments_of_the_run(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, generation_max_length=5)
    config = transformers.GenerationConfig(max_length=30, min_length=30, suppress_tokens=[PAD], **SPECIAL_TOKENS)
    predictions = trainer.predict(UNSEEN[:3], generation_config=config).predictions
    assert predictions.shape == (3, 30)
    assert (predictions[:, 1:-1] != PAD).all()
    assert (trainer.predict(UNSEEN[:3]).predictions[:, 5:] == PAD).all()


def test_the_pad_token_of_the_model_serves_where_the_processing_class_has_none(tmp_path: Path) -> None:
    class Silent:
        pad_token_id = eos_token_id = None
        model_input_names = ("input_ids",)

    trainer = make_trainer(tmp_path, processing_class=Silent(), generation_max_length=6)
    assert trainer.predict(UNSEEN[:3]).predictions.shape[0] == 3


def test_arguments_for_generation_that_have_no_effect_are_not_ignored_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(tmp_path, compute_metrics=None, eval_dataset=UNSEEN[:5])
    with caplog.at_level(logging.WARNING, logger="hpsearch"):
        trainer.evaluate(num_beams=None)
        assert not caplog.records
        trainer.evaluate(num_beams=2)
        trainer.with_arguments(predict_with_generate=False).predict(UNSEEN[:5], max_length=7)
    assert [record.getMessage() for record in caplog.records] == [
        "Nothing is generated, so num_beams will have no effect: without compute_metrics an evaluation gives the loss "
        "only.",
        "Nothing is generated, so max_length will have no effect: predict_with_generate is False.",
    ]


@pytest.mark.slow
def test_decoder_inputs_that_are_the_shifted_labels_do_not_give_the_answer_away(taught: Seq2SeqTrainer) -> None:
    words = UNSEEN[:10]
    wrong = [{**word, "labels": [2] * 4 + [END]} for word in words]
    free = taught.predict(words).predictions
    with_model = make_trainer(
        Path(taught.args.output_dir),
        model=taught.model,
        data_collator=DataCollatorForSeq2Seq(TOKENIZER, model=taught.model),
    )
    assert [letters_of(row) for row in with_model.predict(wrong).predictions] == [letters_of(row) for row in free]


@pytest.mark.slow
def test_decoder_inputs_of_another_length_are_a_beginning_to_go_on_from(taught: Seq2SeqTrainer) -> None:
    words = [{**word, "decoder_input_ids": [PAD, 6, 6]} for word in UNSEEN[:10]]
    unlabelled = [{name: value for name, value in word.items() if name != "labels"} for word in words]
    predictions = taught.predict(unlabelled).predictions
    assert (predictions[:, :3] == [PAD, 6, 6]).all()


# Shapes.


@pytest.mark.slow
@pytest.mark.feature(125)
def test_predictions_of_uneven_length_become_one_array_padded_with_the_pad_token(taught: Seq2SeqTrainer) -> None:
    words = [*reversals(["abc"]), *reversals(["abcd"] * 2)]
    trainer = make_trainer(Path(taught.args.output_dir), model=taught.model, per_device_eval_batch_size=1)
    for gen_kwargs, width in (
        ({}, 20),
        ({"max_length": 8}, 20),
        ({"max_length": 30}, 30),
        ({"max_new_tokens": 30}, 31),
    ):
        output = trainer.predict(words, **gen_kwargs)
        assert output.predictions.shape == (3, width)
        assert output.label_ids.shape == (3, width)
        assert output.predictions[0].tolist() == [PAD, 4, 3, 2, END] + [PAD] * (width - 5)
        assert output.predictions[1].tolist() == [PAD, 5, 4, 3, 2, END] + [PAD] * (width - 6)
        assert output.label_ids[0].tolist() == [4, 3, 2, END] + [PAD] * (width - 4)


def test_an_untrained_model_that_never_ends_is_cut_at_one_length_in_every_batch(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, per_device_eval_batch_size=2)
    trainer.model.generation_config.eos_token_id = None
    trainer.model.generation_config.suppress_tokens = [END]
    predictions = trainer.predict(UNSEEN[:5]).predictions
    assert predictions.shape == (5, 20)
    assert not (predictions == -100).any()


@pytest.mark.slow
def test_longer_labels_than_predictions_stay_whole(taught: Seq2SeqTrainer) -> None:
    long = [{"input_ids": [2, 3, END], "labels": [2] * 24 + [END]}]
    output = taught.predict(long)
    assert output.predictions.shape == (1, 20)
    assert output.label_ids.tolist() == [[2] * 24 + [END]]


@pytest.mark.slow
def test_predictions_without_labels_have_no_loss(taught: Seq2SeqTrainer) -> None:
    words = [{"input_ids": word["input_ids"]} for word in UNSEEN[:4]]
    output = taught.predict(words, metric_key_prefix="new")
    assert output.label_ids is None
    assert [letters_of(row) for row in output.predictions] == [letters_of(word["labels"]) for word in UNSEEN[:4]]
    assert all(key.startswith("new_") for key in output.metrics)
    assert not {"new_loss", "new_exact_match"} & output.metrics.keys()


@pytest.mark.slow
def test_predictions_with_labels_have_metrics_under_their_prefix(taught: Seq2SeqTrainer) -> None:
    metrics = taught.predict(UNSEEN[:20]).metrics
    assert metrics["test_exact_match"] > 0.9
    assert metrics["test_loss"] < 0.2


def test_without_a_pad_token_padding_is_refused_with_what_to_do(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, processing_class=None)
    trainer.model.config.pad_token_id = trainer.model.config.eos_token_id = None
    with pytest.raises(InvalidInputError, match="pass a tokenizer with a pad_token"):
        trainer.predict([{"input_ids": UNSEEN[0]["input_ids"]}], max_length=3)


def predict_seven_words(folder: Path) -> dict[str, Any]:
    trainer = make_trainer(folder, per_device_eval_batch_size=2, generation_max_length=8)
    output = trainer.predict([*reversals(["abc", "bcd", "cde"]), *reversals(["eabc", "debc", "edac", "aaaa"])])
    return {
        "predictions": output.predictions.tolist(),
        "labels": output.label_ids.tolist(),
        "loss": output.metrics["test_loss"],
    }


@pytest.mark.process
def test_two_processes_gather_every_generated_sequence_once_and_in_order(tmp_path: Path) -> None:
    start("torchrun", "tests.test_seq2seq", [str(tmp_path)])
    alone = predict_seven_words(tmp_path)
    for rank in (0, 1):
        gathered = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert gathered["predictions"] == alone["predictions"]
        assert gathered["labels"] == alone["labels"]
        assert gathered["loss"] == pytest.approx(alone["loss"], rel=0.1)  # the last batch holds one sample twice


# The generation config.


def test_a_generation_config_is_the_models_in_every_run_and_nowhere_else(tmp_path: Path) -> None:
    config = GenerationConfig(max_length=11, num_beams=2, pad_token_id=PAD)
    before = config.to_json_string()
    model = seeded_t5()
    trainer = make_trainer(tmp_path, model=model, generation_config=config, eval_dataset=UNSEEN[:5], max_steps=1)
    assert model.generation_config.max_length is None
    seen = trainer.compute_metrics = ShapesSeen()
    trainer.evaluate()
    trainer.train()
    assert seen.widths() == [11]
    assert trainer.model.generation_config.num_beams == 2
    assert trainer.model.generation_config is not config
    assert config.to_json_string() == before
    trainer.save_model()
    assert json.loads((tmp_path / "generation_config.json").read_text())["max_length"] == 11


def test_each_model_of_a_model_init_has_a_generation_config_of_its_own(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model_init=tiny_t5, generation_config=GenerationConfig(max_length=11), max_steps=1)
    first = trainer.model.generation_config
    trainer.train()
    first.max_length = 3
    assert trainer.model.generation_config.max_length == 11
    assert trainer.args.generation_config.max_length == 11


@pytest.mark.parametrize("form", ["folder", "folder as text", "file"])
def test_a_generation_config_is_loaded_from_a_folder_or_a_file(tmp_path: Path, form: str) -> None:
    GenerationConfig(max_length=13).save_pretrained(tmp_path, config_file_name="generation_config.json")
    source = {"folder": tmp_path, "folder as text": str(tmp_path), "file": tmp_path / "generation_config.json"}[form]
    trainer = make_trainer(tmp_path, generation_config=source, eval_dataset=UNSEEN[:5])
    trainer.compute_metrics = ShapesSeen()
    trainer.evaluate()
    assert trainer.compute_metrics.widths() == [13]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no/such/folder", "generation_config is 'no/such/folder', which cannot be used"),
        (
            GenerationConfig(do_sample=False, temperature=0.5),
            "generation_config is a GenerationConfig, which (.|\\n)*temperature",
        ),
    ],
)
def test_a_generation_config_that_cannot_be_used_is_refused_at_once(tmp_path: Path, source: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_trainer(tmp_path, generation_config=source)


# The arguments.


@pytest.mark.feature(124)
def test_the_arguments_are_ours_and_those_of_transformers() -> None:
    args = Seq2SeqTrainingArguments("out", use_cpu=True)
    assert isinstance(args, TrainingArguments)
    assert isinstance(args, transformers.Seq2SeqTrainingArguments)
    assert (args.predict_with_generate, args.generation_max_length, args.generation_num_beams) == (False, None, None)


def test_the_arguments_are_written_copied_pickled_and_parsed_with_their_generation_config() -> None:
    config = GenerationConfig(max_length=7)
    args = Seq2SeqTrainingArguments("out", use_cpu=True, generation_config=config, predict_with_generate=True)
    assert json.loads(args.to_json_string())["generation_config"]["max_length"] == 7
    other = args.replace(generation_num_beams=3, learning_rate=1)
    assert (other.generation_config, other.generation_num_beams, other.predict_with_generate) == (config, 3, True)
    assert args.generation_num_beams is None
    assert pickle.loads(pickle.dumps(other)).replace(seed=5).generation_config == config
    line = "--output_dir out --use_cpu --predict_with_generate --generation_max_length 5 --generation_config a/folder"
    (parsed,) = HfArgumentParser(Seq2SeqTrainingArguments).parse_args_into_dataclasses(line.split())
    assert (parsed.generation_max_length, parsed.generation_config) == (5, Path("a/folder"))
    assert cast_argument("generation_num_beams", 3.0, Seq2SeqTrainingArguments) == 3


@pytest.mark.feature(124)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sortish_sampler": True}, "train_sampling_strategy='group_by_length'"),
        ({"generation_max_length": 0}, "generation_max_length must be at least 1, but got 0"),
        ({"generation_num_beams": -1}, "generation_num_beams must be at least 1, but got -1"),
    ],
)
def test_arguments_that_cannot_be_honoured_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Seq2SeqTrainingArguments("out", use_cpu=True, **changes)
    with pytest.raises(ArgumentError, match=message):
        Seq2SeqTrainingArguments("out", use_cpu=True).replace(**changes)


def test_arguments_of_transformers_own_class_are_taken_over() -> None:
    theirs = transformers.Seq2SeqTrainingArguments(
        "out", use_cpu=True, predict_with_generate=True, generation_num_beams=3, learning_rate=1e-3
    )
    ours = adopt(theirs)
    assert isinstance(ours, Seq2SeqTrainingArguments)
    assert (ours.predict_with_generate, ours.generation_num_beams, ours.learning_rate) == (True, 3, 1e-3)
    assert isinstance(Seq2SeqTrainer(tiny_t5(), theirs).args, Seq2SeqTrainingArguments)


@pytest.mark.parametrize("args", [None, TrainingArguments("out", use_cpu=True)], ids=["none", "plain"])
def test_plain_arguments_are_refused_at_construction(args: Any) -> None:
    with pytest.raises(ArgumentError, match="Seq2SeqTrainer needs Seq2SeqTrainingArguments, but args is a TrainingArg"):
        Seq2SeqTrainer(tiny_t5(), args)


def test_a_model_that_cannot_generate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"T5Model has no generate\(\)"):
        make_trainer(tmp_path, model=T5Model(tiny_t5().config))
    trainer = make_trainer(tmp_path, model_init=lambda: torch.nn.Linear(1, 1))
    with pytest.raises(InvalidInputError, match=r"Linear has no generate\(\)"):
        trainer.train()


# Recipe and search.


@pytest.mark.slow
def test_with_arguments_gives_a_trainer_that_generates_otherwise_and_leaves_the_first_alone(
    taught: Seq2SeqTrainer,
) -> None:
    other = taught.with_arguments(generation_max_length=3)
    assert type(other) is Seq2SeqTrainer
    assert {len(letters_of(row)) for row in other.predict(UNSEEN[:10]).predictions} == {2}
    assert {len(letters_of(row)) for row in taught.predict(UNSEEN[:10]).predictions} == {3, 4}


def test_callbacks_see_arguments_of_the_kind_they_know(tmp_path: Path) -> None:
    class Remembers(TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.generates = isinstance(args, transformers.Seq2SeqTrainingArguments) and args.predict_with_generate

    trainer = make_trainer(tmp_path, eval_dataset=UNSEEN[:2])
    trainer.add_callback(callback := Remembers())
    trainer.evaluate()
    assert callback.generates


@pytest.mark.slow
def test_a_search_is_decided_by_what_the_models_generate(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path,
        model_init=tiny_t5,
        num_train_epochs=6,
        eval_strategy="epoch",
        eval_dataset=UNSEEN[:50],
        generation_config=GenerationConfig(max_length=8),
    )
    best = trainer.hyperparameter_search(
        {"learning_rate": Categorical([1e-5, 1e-2]), "generation_num_beams": Categorical([1, 2])},
        compute_objective="eval_exact_match",
        n_trials=3,
        direction="maximize",
        progress=False,
    )
    assert best.hyperparameters["learning_rate"] == 1e-2
    assert best.objective > 0.1
    model = best.load_model()
    assert model.generation_config.max_length == 8
    again = make_trainer(
        tmp_path,
        model=model,
        eval_dataset=UNSEEN[:50],
        generation_num_beams=best.hyperparameters["generation_num_beams"],
    )
    assert again.evaluate()["eval_exact_match"] == pytest.approx(best.objective)


if __name__ == "__main__":  # one of the two processes
    output_folder = Path(sys.argv[1])
    result = json.dumps(predict_seven_words(output_folder))
    (output_folder / f"rank-{torch.distributed.get_rank()}.json").write_text(result)
    torch.distributed.destroy_process_group()
