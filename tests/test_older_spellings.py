"""Older spellings of transformers mean what they meant, say what to write instead, or are refused by successor.

Every spelling of the table has its cases here; the trainings they stand for are compared with their successors.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import PrinterCallback
from transformers.debug_utils import DebugOption

import hpsearch
from hpsearch import Categorical, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments
from hpsearch.arguments import older_spellings
from hpsearch.arguments.casting import argument_names
from hpsearch.errors import ArgumentError, InvalidInputError, SpaceError, UnknownArgumentError
from tests.support.models import Line, bert_classifier, classification_data, line_data, small_tokenizer
from tests.support.small_trainer import small_trainer

# Every argument of transformers 4.57 that 5.23 no longer has: spelling, value, and the successors it is taken for.
ACCEPTED: list[tuple[str, Any, dict[str, Any]]] = [
    ("adafactor", True, {"optim": "adafactor"}),
    ("adafactor", False, {}),
    ("dispatch_batches", True, {"accelerator_config": {"dispatch_batches": True}}),
    ("dispatch_batches", None, {}),
    ("evaluation_strategy", "epoch", {"eval_strategy": "epoch"}),
    ("evaluation_strategy", transformers.IntervalStrategy.STEPS, {"eval_strategy": "steps"}),
    ("evaluation_strategy", None, {}),
    *(
        (name, value, {})
        for name in ("fp16_backend", "half_precision_backend")
        for value in ("auto", "amp", "cuda_amp", "cpu_amp", None)
    ),
    ("fp16_opt_level", "O1", {}),
    ("fp16_opt_level", None, {}),
    ("fsdp_min_num_params", 100, {"fsdp_config": {"min_num_params": 100}}),
    ("fsdp_min_num_params", 0, {}),
    ("fsdp_transformer_layer_cls_to_wrap", "Block", {"fsdp_config": {"transformer_layer_cls_to_wrap": "Block"}}),
    ("fsdp_transformer_layer_cls_to_wrap", None, {}),
    ("group_by_length", True, {"train_sampling_strategy": "group_by_length"}),
    ("group_by_length", False, {}),
    ("include_inputs_for_metrics", True, {"include_for_metrics": ["inputs"]}),
    ("include_inputs_for_metrics", False, {}),
    ("include_tokens_per_second", True, {"include_num_input_tokens_seen": "all"}),
    ("include_tokens_per_second", False, {}),
    ("jit_mode_eval", False, {}),
    ("jit_mode_eval", None, {}),
    ("logging_dir", "logs", {"tensorboard_logging_dir": "logs"}),
    ("logging_dir", None, {}),
    ("mp_parameters", "", {}),
    ("mp_parameters", None, {}),
    ("no_cuda", True, {"use_cpu": True}),
    ("no_cuda", False, {}),
    ("overwrite_output_dir", True, {}),
    ("overwrite_output_dir", False, {}),
    ("past_index", -1, {}),
    ("past_index", None, {}),
    ("per_gpu_eval_batch_size", 3, {"per_device_eval_batch_size": 3}),
    ("per_gpu_eval_batch_size", None, {}),
    ("per_gpu_train_batch_size", 3, {"per_device_train_batch_size": 3}),
    ("per_gpu_train_batch_size", None, {}),
    ("push_to_hub_model_id", "model", {"hub_model_id": "model"}),
    ("push_to_hub_model_id", None, {}),
    ("push_to_hub_organization", None, {}),
    ("push_to_hub_organization", "", {}),
    ("push_to_hub_token", "secret", {"hub_token": "secret"}),
    ("push_to_hub_token", None, {}),
    ("save_safetensors", True, {}),
    ("save_safetensors", None, {}),
    ("sharded_ddp", "", {}),
    ("sharded_ddp", False, {}),
    ("sharded_ddp", None, {}),
    ("sharded_ddp", [], {}),
    ("split_batches", True, {"accelerator_config": {"split_batches": True}}),
    ("split_batches", None, {}),
    ("torchdynamo", "eager", {"torch_compile_backend": "eager"}),
    ("torchdynamo", None, {}),
    ("tpu_metrics_debug", True, {"debug": ["tpu_metrics_debug"]}),
    ("tpu_metrics_debug", False, {}),
    ("tpu_num_cores", None, {}),
    ("use_ipex", False, {}),
    ("use_ipex", None, {}),
    ("use_legacy_prediction_loop", False, {}),
    ("use_legacy_prediction_loop", None, {}),
    ("use_mps_device", True, {}),
    ("use_mps_device", False, {}),
    ("use_mps_device", None, {}),
    ("warmup_ratio", 0.1, {"warmup_steps": 0.1}),
    ("warmup_ratio", np.float64(0.25), {"warmup_steps": 0.25}),
    ("warmup_ratio", 0, {"warmup_steps": 0}),
    ("xpu_backend", "ccl", {"ddp_backend": "ccl"}),
    ("xpu_backend", None, {}),
]
# Values without a faithful successor, and what the refusal must name.
REFUSED: list[tuple[str, Any, str]] = [
    ("fp16_backend", "apex", "fp16=True or bf16=True"),
    ("half_precision_backend", "apex", "fp16=True or bf16=True"),
    ("fp16_opt_level", "O2", "fp16=True or bf16=True"),
    ("jit_mode_eval", True, "torch_compile=True"),
    ("mp_parameters", "partitions=2", "fsdp"),
    ("past_index", 2, "past_key_values"),
    ("push_to_hub_organization", "acme", "hub_model_id='organization/name'"),
    ("save_safetensors", False, "safetensors"),
    ("sharded_ddp", "zero_dp_2", "fsdp=True"),
    ("sharded_ddp", ["simple"], "fsdp=True"),
    ("tpu_num_cores", 8, "accelerate launch"),
    ("use_ipex", True, "torch_compile=True"),
    ("use_legacy_prediction_loop", True, "evaluation_loop"),
    ("warmup_ratio", -0.1, "warmup_steps"),
    ("warmup_ratio", 1.0, "warmup_steps"),
    ("warmup_ratio", 5, "warmup_steps"),
    ("warmup_ratio", "0.1", "warmup_steps"),
]
# What a whole TrainingArguments of one process on a CPU has where the translation cannot be read off it directly.
REFUSED_ON_A_CPU = {"tpu_metrics_debug"}


def make(kind: Any = TrainingArguments, **values: Any) -> Any:
    return kind("out", **{"use_cpu": True, **values})


def warned(call: Callable[[], Any]) -> tuple[Any, list[warnings.WarningMessage]]:
    """Call, and return the result with the DeprecationWarnings it gave."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, [each for each in caught if issubclass(each.category, DeprecationWarning)]


def quietly(call: Callable[[], Any]) -> Any:
    return warned(call)[0]


def assert_one_warning(caught: list[warnings.WarningMessage], spelling: str, successor: str) -> None:
    """Assert that there is one warning, that it names both, and that it points at the line of this file."""
    assert len(caught) == 1, [str(each.message) for each in caught]
    message = str(caught[0].message)
    assert message.startswith(f"{spelling} is an older spelling")
    assert successor in message
    assert caught[0].filename == __file__


def same(value: Any, other: Any) -> bool:
    """True if both are equal, enums counting as their values."""
    return bool(getattr(value, "value", value) == getattr(other, "value", other))


def id_of(value: Any) -> str | None:
    return repr(value)[:30] if not isinstance(value, dict) else ""


# The table.


def test_every_spelling_of_the_table_has_its_cases_here() -> None:
    named = {name for name, _, _ in ACCEPTED} | {name for name, _, _ in REFUSED}
    assert named == set(older_spellings._ARGUMENTS)
    refusable = {name for name, _, _ in REFUSED}
    translated = {name for name, _, successors in ACCEPTED if successors}
    neutral_only = {"overwrite_output_dir", "use_mps_device"}
    assert refusable | translated | neutral_only == set(older_spellings._ARGUMENTS)


def test_no_spelling_is_a_present_argument_and_every_successor_is_one() -> None:
    assert not set(older_spellings._ARGUMENTS) & set(argument_names(TrainingArguments))
    assert {successor for _, _, successors in ACCEPTED for successor in successors} <= set(
        argument_names(TrainingArguments)
    )


@pytest.mark.feature(18, 35, 37, 39, 40, 41, 50, 51, 53, "P1", "P14")
@pytest.mark.parametrize(("name", "value", "successors"), ACCEPTED, ids=id_of)
def test_an_accepted_value_is_taken_for_its_successor_with_one_warning_at_the_callers_line(
    name: str, value: Any, successors: dict[str, Any]
) -> None:
    shown = older_spellings._ARGUMENTS[name][0]
    assert all(successor in shown for successor in successors)
    if name in REFUSED_ON_A_CPU and successors:
        with pytest.raises(ArgumentError, match="TPU"), pytest.warns(DeprecationWarning, match=name):
            make(**{name: value})
        translated = quietly(lambda: older_spellings.translate_arguments({name: value}))
        assert translated == successors
        return
    args, caught = warned(lambda: make(**{name: value}))
    assert_one_warning(caught, name, shown)
    plain = quietly(lambda: make(**copy.deepcopy(successors)))
    for each in argument_names(TrainingArguments):
        assert same(getattr(args, each), getattr(plain, each)), each
    if name == "dispatch_batches" and value:
        assert args.accelerator_config.dispatch_batches is True
    if name == "split_batches" and value:
        assert args.accelerator_config.split_batches is True


@pytest.mark.parametrize(
    ("name", "value", "successors"),
    [each for each in ACCEPTED if each[2]],
    ids=[each[0] for each in ACCEPTED if each[2]],
)
def test_a_translated_value_changes_the_arguments_it_is_taken_for(
    name: str, value: Any, successors: dict[str, Any]
) -> None:
    """Guards the test above: what is compared there is not the default on both sides."""
    if name in REFUSED_ON_A_CPU:
        return
    defaults = TrainingArguments("out")
    args = quietly(lambda: TrainingArguments("out", **{name: value}))
    changed = [each for each in successors if not same(getattr(args, each), getattr(defaults, each))]
    assert changed == list(successors) or value == 0


@pytest.mark.feature(37, 39, 41, 50, 123)
@pytest.mark.parametrize(("name", "value", "words"), REFUSED, ids=id_of)
def test_a_value_without_a_faithful_successor_is_refused_by_name_value_and_successor(
    name: str, value: Any, words: str
) -> None:
    with pytest.raises(ArgumentError) as caught:
        make(**{name: value})
    message = str(caught.value)
    assert f"{name}={value!r}" in message
    assert words in message


def test_several_spellings_give_one_warning_each() -> None:
    args, caught = warned(lambda: make(evaluation_strategy="epoch", warmup_ratio=0.1, per_gpu_train_batch_size=3))
    assert (args.eval_strategy, args.warmup_steps, args.per_device_train_batch_size) == ("epoch", 0.1, 3)
    assert [str(each.message).split()[0] for each in caught] == [
        "evaluation_strategy",
        "warmup_ratio",
        "per_gpu_train_batch_size",
    ]
    assert {each.filename for each in caught} == {__file__}


def test_present_arguments_give_no_warning() -> None:
    assert warned(lambda: make(eval_strategy="epoch", warmup_steps=0.1))[1] == []


@pytest.mark.feature(53, 114)
@pytest.mark.parametrize("value", ["adamw_hf", "adamw_apex_fused"])
def test_an_optimizer_that_is_gone_is_refused_with_the_one_to_use(value: str) -> None:
    successor = {"adamw_hf": "adamw_torch", "adamw_apex_fused": "adamw_torch_fused"}[value]
    with pytest.raises(ArgumentError, match=rf"optim='{value}'.*'{successor}'"):
        make(optim=value)


# A spelling beside its successor.


def test_a_spelling_and_its_successor_may_agree_and_may_not_contradict_each_other() -> None:
    assert quietly(lambda: make(evaluation_strategy="epoch", eval_strategy="epoch")).eval_strategy == "epoch"
    with pytest.raises(ArgumentError, match=r"evaluation_strategy.*eval_strategy='no' contradict"):
        quietly(lambda: make(evaluation_strategy="epoch", eval_strategy="no"))
    with pytest.raises(ArgumentError, match=r"no_cuda.*use_cpu=False contradict"):
        quietly(lambda: make(no_cuda=True, use_cpu=False))


def test_a_number_of_warm_up_steps_wins_over_the_ratio_as_in_transformers_4() -> None:
    assert quietly(lambda: make(warmup_ratio=0.1, warmup_steps=5)).warmup_steps == 5
    assert quietly(lambda: make(warmup_steps=5, warmup_ratio=0.1)).warmup_steps == 5


def test_no_warm_up_steps_leave_the_ratio_as_in_transformers_4() -> None:
    assert quietly(lambda: make(warmup_ratio=0.1, warmup_steps=0)).warmup_steps == 0.1


def test_lists_and_dicts_of_a_spelling_and_its_successor_are_joined() -> None:
    args = quietly(lambda: make(include_inputs_for_metrics=True, include_for_metrics=["loss"]))
    assert sorted(args.include_for_metrics) == ["inputs", "loss"]
    args = quietly(lambda: make(split_batches=True, dispatch_batches=False, accelerator_config={"even_batches": False}))
    config = args.accelerator_config
    assert (config.split_batches, config.dispatch_batches, config.even_batches) == (True, False, False)
    args = quietly(lambda: make(fsdp_min_num_params=9, fsdp_transformer_layer_cls_to_wrap="Block"))
    assert args.fsdp_config["min_num_params"] == 9
    assert args.fsdp_config["transformer_layer_cls_to_wrap"] == "Block"


def test_what_is_given_is_not_changed() -> None:
    given: dict[str, Any] = {"include_for_metrics": ["loss"], "accelerator_config": {"even_batches": False}}
    before = copy.deepcopy(given)
    quietly(lambda: make(include_inputs_for_metrics=True, split_batches=True, **given))
    assert given == before


def test_organization_and_model_id_make_one_name() -> None:
    args = quietly(lambda: make(push_to_hub_organization="acme", push_to_hub_model_id="model"))
    assert args.hub_model_id == "acme/model"


@pytest.mark.parametrize("name", ["no_cuda", "group_by_length", "adafactor", "include_inputs_for_metrics"])
@pytest.mark.parametrize("value", ["False", "yes", 2])
def test_a_switch_that_is_neither_true_nor_false_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=name):
        quietly(lambda: make(**{name: value}))


# Every way to make arguments.


class Derived(TrainingArguments):
    """A subclass without fields of its own."""


@dataclasses.dataclass
class WithField(TrainingArguments):
    """A subclass with a field."""

    extra: int = 1


class OwnConstructor(TrainingArguments):
    """A subclass with a constructor."""

    def __init__(self, output_dir: str, extra: int = 2, **values: Any) -> None:
        super().__init__(output_dir, **values)
        self.extra = extra


@pytest.mark.parametrize("kind", [Derived, WithField, OwnConstructor, Seq2SeqTrainingArguments])
def test_subclasses_take_older_spellings_too(kind: Any) -> None:
    args, caught = warned(lambda: kind("out", use_cpu=True, evaluation_strategy="epoch"))
    assert type(args) is kind
    assert args.eval_strategy == "epoch"
    assert_one_warning(caught, "evaluation_strategy", "eval_strategy")


def test_a_subclass_keeps_its_own_fields_beside_older_spellings() -> None:
    args = quietly(lambda: WithField("out", use_cpu=True, extra=7, warmup_ratio=0.2))
    assert (args.extra, args.warmup_steps) == (7, 0.2)
    other = args.replace(seed=3)
    assert (type(other), other.extra, other.warmup_steps, other.seed) == (WithField, 7, 0.2, 3)
    generating = quietly(
        lambda: Seq2SeqTrainingArguments("out", use_cpu=True, predict_with_generate=True, group_by_length=True)
    )
    assert generating.predict_with_generate
    assert generating.train_sampling_strategy == "group_by_length"


def test_positional_arguments_stay_where_they_are() -> None:
    second = list(argument_names(TrainingArguments))[1]
    default = getattr(make(), second)
    args = quietly(lambda: TrainingArguments("elsewhere", default, no_cuda=True, evaluation_strategy="epoch"))
    assert (args.output_dir, getattr(args, second)) == ("elsewhere", default)
    assert (args.use_cpu, args.eval_strategy) == (True, "epoch")
    with pytest.raises(TypeError, match="multiple values"):
        TrainingArguments("elsewhere", output_dir="there")


def test_a_name_that_never_was_is_refused_with_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"'evaluate_strategy' is not an argument of TrainingArguments.*eval"):
        make(evaluate_strategy="epoch")
    with pytest.raises(TypeError, match=r"'extro' is not an argument of WithField.*'extra'"):
        make(WithField, extro=3)


def test_replace_takes_present_names_only_and_names_the_successor() -> None:
    for name, (successor, _) in older_spellings._ARGUMENTS.items():
        with pytest.raises(UnknownArgumentError) as caught:
            make().replace(**{name: True})
        assert repr(name) in str(caught.value)
        assert successor in str(caught.value)


def test_a_copy_and_a_pickle_of_translated_arguments_are_equal_to_them_and_give_no_warning() -> None:
    args = quietly(lambda: make(evaluation_strategy="epoch", warmup_ratio=0.1, logging_dir="logs"))
    copies, caught = warned(lambda: [pickle.loads(pickle.dumps(args)), copy.deepcopy(args), args.replace()])
    assert caught == []
    for each in copies:
        assert each.to_dict() == args.to_dict()
        assert each.replace(seed=9).warmup_steps == 0.1


def test_a_translated_value_can_be_replaced_and_derives_others_again() -> None:
    args = quietly(lambda: make(evaluation_strategy="steps", logging_steps=5))
    assert args.eval_steps == 5
    assert args.replace(logging_steps=7).eval_steps == 7
    assert args.replace(eval_strategy="no").do_eval is False


def test_the_signature_shows_the_present_arguments_to_those_who_ask() -> None:
    import inspect

    assert tuple(inspect.signature(TrainingArguments).parameters) == argument_names(TrainingArguments)
    assert "extra" in inspect.signature(WithField).parameters


# Names of the trainer.


@pytest.mark.feature(63, "P2")
def test_tokenizer_is_taken_for_processing_class_with_one_warning(tmp_path: Path) -> None:
    tokenizer = small_tokenizer()
    args = TrainingArguments(str(tmp_path), use_cpu=True)
    trainer, caught = warned(lambda: Trainer(Line(), args, tokenizer=tokenizer))
    assert_one_warning(caught, "tokenizer", "processing_class")
    assert trainer.processing_class is tokenizer
    assert isinstance(trainer.data_collator, transformers.DataCollatorWithPadding)
    shown, caught = warned(lambda: trainer.tokenizer)
    assert_one_warning(caught, "tokenizer", "processing_class")
    assert shown is tokenizer


def test_a_trainer_for_sequences_takes_a_tokenizer_too(tmp_path: Path) -> None:
    config = transformers.T5Config(vocab_size=8, d_model=8, d_ff=8, num_layers=1, num_heads=1, d_kv=8)
    args = Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True)
    model, tokenizer = transformers.T5ForConditionalGeneration(config), small_tokenizer()
    trainer, caught = warned(lambda: Seq2SeqTrainer(model, args, tokenizer=tokenizer))
    assert_one_warning(caught, "tokenizer", "processing_class")
    assert trainer.processing_class is tokenizer


def test_another_tokenizer_than_the_processing_class_is_refused_and_the_same_one_is_not(tmp_path: Path) -> None:
    args, tokenizer = TrainingArguments(str(tmp_path), use_cpu=True), small_tokenizer()
    with pytest.raises(InvalidInputError, match=r"tokenizer.*processing_class"):
        Trainer(Line(), args, tokenizer=tokenizer, processing_class=small_tokenizer())
    trainer = quietly(lambda: Trainer(Line(), args, tokenizer=tokenizer, processing_class=tokenizer))
    assert trainer.processing_class is tokenizer


@pytest.mark.feature(41)
@pytest.mark.parametrize(
    ("name", "successor"), [("prediction_loop", "evaluation_loop"), ("init_git_repo", "init_hf_repo")]
)
def test_a_method_that_is_gone_names_its_successor_and_is_not_there(tmp_path: Path, name: str, successor: str) -> None:
    trainer = Trainer(Line(), TrainingArguments(str(tmp_path), use_cpu=True))
    with pytest.raises(AttributeError, match=rf"{name} was removed.*{successor}"):
        getattr(trainer, name)
    assert not hasattr(trainer, name)
    assert callable(getattr(trainer, successor))


@pytest.mark.feature(41)
def test_an_override_of_the_old_prediction_loop_is_refused_because_nothing_would_call_it(tmp_path: Path) -> None:
    class Own(Trainer):
        def prediction_loop(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError

    class Later(Own):
        pass

    for kind in (Own, Later):
        with pytest.raises(InvalidInputError, match=rf"{kind.__name__}\.prediction_loop.*evaluation_loop"):
            kind(Line(), TrainingArguments(str(tmp_path), use_cpu=True))


@pytest.mark.feature(12, 50, 114, 118, 133, 134)
@pytest.mark.parametrize("name", sorted(older_spellings._NAMES))
def test_importing_a_name_that_is_gone_is_an_import_error_with_its_successor(name: str) -> None:
    code = f"from hpsearch import {name}"
    with pytest.raises(ImportError) as caught:
        exec(code, {})
    assert name in str(caught.value)
    assert older_spellings._NAMES[name] in str(caught.value)


@pytest.mark.feature(114)
def test_successors_that_are_importable_exist() -> None:
    for name in ("AdamW", "default_hp_space_sigopt"):
        dotted = older_spellings._NAMES[name].split()[0].rstrip(";")
        module, _, attribute = dotted.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), dotted


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Trainre"):
        _ = hpsearch.Trainre


# Search spaces.


def test_a_search_space_with_an_older_spelling_is_refused_before_the_first_trial_with_the_successor(
    tmp_path: Path,
) -> None:
    for name, successor in (
        ("warmup_ratio", "warmup_steps"),
        ("per_gpu_train_batch_size", "per_device_train_batch_size"),
    ):
        trainer = small_trainer(tmp_path)
        with pytest.raises(SpaceError, match=rf"{name}.*{successor}"):
            trainer.hyperparameter_search({name: Categorical([0.1, 0.2])}, n_trials=1, progress=False)
        assert trainer.model_init.trials == []


def test_a_function_that_suggests_an_older_spelling_is_told_the_successor(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match=r"warmup_ratio.*warmup_steps"):
        small_trainer(tmp_path).hyperparameter_search(
            lambda trial: {"warmup_ratio": trial.suggest_float("warmup_ratio", 0.0, 0.2)}, n_trials=1, progress=False
        )


# What comes out of it.


def trained(folder: Path, model: Any = None, data: Any = None, **values: Any) -> Any:
    torch.manual_seed(0)
    args = quietly(
        lambda: TrainingArguments(
            str(folder),
            **{
                "use_cpu": True,
                "disable_tqdm": True,
                "report_to": "none",
                "save_strategy": "no",
                "logging_steps": 1,
                "num_train_epochs": 2,
                "per_device_train_batch_size": 4,
                **values,
            },
        )
    )
    trainer = Trainer(model or Line(), args, train_dataset=data or line_data(40))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


def column(trainer: Any, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.feature(28)
def test_a_warm_up_ratio_gives_the_learning_rates_of_that_fraction_of_all_steps(tmp_path: Path) -> None:
    by_ratio = trained(tmp_path, warmup_ratio=0.25, learning_rate=1.0)
    by_steps = trained(tmp_path, warmup_steps=5, learning_rate=1.0)
    without = trained(tmp_path, learning_rate=1.0)
    rates = column(by_ratio, "learning_rate")
    assert rates == column(by_steps, "learning_rate")
    assert rates[:6] == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates != column(without, "learning_rate")


@pytest.mark.feature(54)
def test_grouping_by_length_trains_on_batches_of_similar_length(tmp_path: Path) -> None:
    data = [each for length in (3, 9, 6) for each in classification_data(16, length=length)]

    def lengths(**changes: Any) -> list[list[int]]:
        seen: list[list[int]] = []

        class Look(Trainer):
            def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
                seen.append(inputs["attention_mask"].sum(1).tolist())
                return super().training_step(model, inputs, num_items_in_batch)

        args = quietly(
            lambda: TrainingArguments(
                str(tmp_path),
                use_cpu=True,
                disable_tqdm=True,
                save_strategy="no",
                num_train_epochs=1,
                per_device_train_batch_size=2,
                **changes,
            )
        )
        trainer = Look(bert_classifier(hidden=8), args, train_dataset=data, processing_class=small_tokenizer())
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return seen

    def of_one_length(batches: list[list[int]]) -> int:
        return sum(len(set(batch)) == 1 for batch in batches)

    grouped = lengths(group_by_length=True)
    assert len(grouped) == 24
    assert of_one_length(grouped) >= 15
    assert grouped == lengths(train_sampling_strategy="group_by_length")
    assert of_one_length(lengths()) < 15


@pytest.mark.feature(57)
def test_including_inputs_for_metrics_delivers_the_inputs(tmp_path: Path) -> None:
    seen: list[Any] = []

    def metrics(prediction: Any) -> dict[str, float]:
        seen.append(prediction.inputs)
        return {}

    data = classification_data(6)
    args = quietly(
        lambda: TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True, include_inputs_for_metrics=True)
    )
    trainer = Trainer(bert_classifier(hidden=8), args, eval_dataset=data, compute_metrics=metrics)
    trainer.remove_callback(PrinterCallback)
    trainer.evaluate()
    assert seen[0].tolist() == [each["input_ids"] for each in data]


@pytest.mark.parametrize(
    ("older", "present"),
    [
        ({"adafactor": True}, {"optim": "adafactor"}),
        ({"per_gpu_train_batch_size": 5}, {"per_device_train_batch_size": 5}),
        ({"split_batches": True}, {"accelerator_config": {"split_batches": True}}),
        ({"no_cuda": True, "fp16_backend": "auto", "sharded_ddp": ""}, {}),
    ],
    ids=lambda value: ",".join(value),
)
def test_training_by_the_older_spelling_equals_training_by_the_present_one(
    tmp_path: Path, older: dict[str, Any], present: dict[str, Any]
) -> None:
    values = {} if "per_device_train_batch_size" in present else {"per_device_train_batch_size": 4}
    spelled = {"use_cpu": True} if "no_cuda" not in older else {}

    def losses(changes: dict[str, Any]) -> list[float]:
        torch.manual_seed(0)
        common: dict[str, Any] = {"disable_tqdm": True, "report_to": "none", "save_strategy": "no", "logging_steps": 1}
        args = quietly(
            lambda: TrainingArguments(str(tmp_path), num_train_epochs=1, **{**common, **values, **spelled, **changes})
        )
        trainer = Trainer(Line(), args, train_dataset=line_data(20))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return column(trainer, "loss")

    expected = losses({"use_cpu": True, **present})
    assert losses(older) == expected
    assert len(expected) == 20 // (present.get("per_device_train_batch_size", 4))


@pytest.mark.feature("P1")
def test_an_evaluation_strategy_by_its_older_name_evaluates(tmp_path: Path) -> None:
    args = quietly(
        lambda: TrainingArguments(
            str(tmp_path),
            use_cpu=True,
            disable_tqdm=True,
            report_to="none",
            save_strategy="no",
            num_train_epochs=2,
            evaluation_strategy="epoch",
        )
    )
    trainer = Trainer(Line(), args, train_dataset=line_data(8), eval_dataset=line_data(4))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    assert len(column(trainer, "eval_loss")) == 2


@pytest.mark.feature(42)
def test_underflow_detection_and_the_tpu_switch_together_are_refused_for_the_tpu_only() -> None:
    with pytest.raises(ArgumentError, match="needs a TPU"):
        quietly(lambda: make(debug="underflow_overflow", tpu_metrics_debug=True))
    assert quietly(lambda: make(debug="underflow_overflow", tpu_metrics_debug=False)).debug == [
        DebugOption.UNDERFLOW_OVERFLOW
    ]
