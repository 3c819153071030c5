"""A misspelt name gets the suggestion that its writer would pick, and none where nothing is near."""

from __future__ import annotations

import random
import string

import pytest

from hpsearch.arguments import Seq2SeqTrainingArguments
from hpsearch.arguments.casting import argument_names
from hpsearch.search.metrics.selection import SCOPES
from hpsearch.system.spelling import edit_distance, nearest, nearest_name

ARGUMENTS = argument_names(Seq2SeqTrainingArguments)
METRICS = ["eval_accuracy", "eval_loss", "eval_f1", "epoch", "num_parameters"]
MODEL = ["model.width", "model.depth", "learning_rate"]

MISSPELT = [
    ("lerning_rate", ARGUMENTS, "learning_rate"),
    ("learnig_rate", ARGUMENTS, "learning_rate"),
    ("learningrate", ARGUMENTS, "learning_rate"),
    ("Learning_Rate", ARGUMENTS, "learning_rate"),
    ("learning-rate", ARGUMENTS, "learning_rate"),
    ("rate_learning", ARGUMENTS, "learning_rate"),
    ("lr", ARGUMENTS, "learning_rate"),
    ("bs", ARGUMENTS, "per_device_train_batch_size"),
    ("wd", ARGUMENTS, "weight_decay"),
    ("grad_clip", ARGUMENTS, "max_grad_norm"),
    ("weigth_decay", ARGUMENTS, "weight_decay"),
    ("warmup_step", ARGUMENTS, "warmup_steps"),
    ("warmup", ARGUMENTS, "warmup_steps"),
    ("adam_betal", ARGUMENTS, "adam_beta1"),
    ("sed", ARGUMENTS, "seed"),
    ("batch_size", ARGUMENTS, "per_device_train_batch_size"),
    ("train_batch_size", ARGUMENTS, "per_device_train_batch_size"),
    ("eval_batch_size", ARGUMENTS, "per_device_eval_batch_size"),
    ("per_device_batch_size", ARGUMENTS, "per_device_train_batch_size"),
    ("epochs", ARGUMENTS, "num_train_epochs"),
    ("num_epochs", ARGUMENTS, "num_train_epochs"),
    ("evaluate_strategy", ARGUMENTS, "eval_strategy"),
    ("lr_scheduler", ARGUMENTS, "lr_scheduler_type"),
    ("grad_accum_steps", ARGUMENTS, "gradient_accumulation_steps"),
    ("label_smoothing", ARGUMENTS, "label_smoothing_factor"),
    ("optimizer", ARGUMENTS, "optim"),
    ("model.widht", MODEL, "model.width"),
    ("model.witdh", MODEL, "model.width"),
    ("width", MODEL, "model.width"),
    ("modle.width", MODEL, "model.width"),
    ("eval_acuracy", METRICS, "eval_accuracy"),
    ("accuracy", METRICS, "eval_accuracy"),
    ("eval_acc", METRICS, "eval_accuracy"),
    ("evaluation_loss", METRICS, "eval_loss"),
    ("lss", METRICS, "eval_loss"),
    ("epochs", METRICS, "epoch"),
    ("eval_accuracy", ["accuracy", "loss"], "accuracy"),
    ("lats", SCOPES, "last"),
    ("last_5_avg", SCOPES, "last-5-avg"),
    ("minimise", ["minimize", "maximize"], "minimize"),
    ("min", ["minimize", "maximize"], "minimize"),
    ("medain", ["none", "median", "rungs"], "median"),
    ("lwo", ["high", "low", "step"], "low"),
]

UNRELATED = [
    ("foo", ARGUMENTS),
    ("x", ARGUMENTS),
    ("", ARGUMENTS),
    ("loss", ARGUMENTS),
    ("alpha", ARGUMENTS),
    ("gamma", ARGUMENTS),
    ("momentum", ARGUMENTS),
    ("dropout", ARGUMENTS),
    ("hidden_size", ARGUMENTS),
    ("precision", ARGUMENTS),
    ("dataset", ARGUMENTS),
    ("temperature", ARGUMENTS),
    ("n_layers", ARGUMENTS),
    ("steps", ARGUMENTS),
    ("device", ARGUMENTS),
    ("model.hidden", MODEL),
    ("model.heads", MODEL),
    ("depht_of_model", ["learning_rate"]),
    ("train_loss", METRICS),
    ("eval_runtime", METRICS),
    ("bleu", METRICS),
    ("perplexity", METRICS),
    ("f2", ["f1"]),
    ("on", ["no", "steps", "epoch"]),
    ("yes", ["no", "steps", "epoch"]),
    ("best", SCOPES),
    ("tpe", ["cmaes", "random", "grid"]),
    ("hyperopt", ["optuna", "ray"]),
    ("data", ["model", "lora", "optim"]),
    ("num_steps", ["num_parameters"]),
    ("anything", []),
]


@pytest.mark.parametrize(("name", "allowed", "meant"), MISSPELT, ids=lambda value: str(value)[:30])
def test_a_misspelt_abbreviated_or_shortened_name_is_found(name: str, allowed: list[str], meant: str) -> None:
    assert nearest(name, allowed) == meant
    assert nearest_name(name, allowed) == f" Did you mean {meant!r}?"


@pytest.mark.parametrize(("name", "allowed"), UNRELATED, ids=lambda value: str(value)[:30])
def test_a_name_that_is_near_none_gets_no_suggestion(name: str, allowed: list[str]) -> None:
    assert nearest(name, allowed) is None
    assert nearest_name(name, allowed) == ""


def edited(name: str, draw: random.Random) -> str:
    """Return the name with a letter inserted, dropped or replaced, or with two neighbours in each other's place."""
    place = draw.randrange(len(name) - 1)
    before, letter, rest = name[:place], name[place], name[place + 1 :]
    other = draw.choice(string.ascii_lowercase)
    return draw.choice([before + other + letter + rest, before + rest, before + other + rest])


def test_every_argument_is_found_with_one_edit_and_a_long_one_with_two() -> None:
    draw = random.Random(0)
    for name in ARGUMENTS:
        place = draw.randrange(len(name) - 1)
        written = [edited(name, draw), name[:place] + name[place + 1] + name[place] + name[place + 2 :]]
        written += [edited(edited(name, draw), draw)] if len(name) >= 8 else []
        for each in written:
            found = nearest(each, ARGUMENTS)
            assert found is not None, (name, each)
            assert edit_distance(each, found) <= edit_distance(each, name), (name, each)


def test_of_two_names_equally_near_the_first_is_suggested_whatever_the_order_of_a_set() -> None:
    assert nearest("adam_beta", ["adam_beta2", "adam_beta1"]) == "adam_beta2"
    assert nearest("adam_beta", {"adam_beta2", "adam_beta1"}) == "adam_beta1"


@pytest.mark.parametrize(
    ("one", "other", "edits"),
    [("", "", 0), ("", "abc", 3), ("rate", "rate", 0), ("rtae", "rate", 1), ("rat", "rate", 1), ("ratio", "rate", 2)],
)
def test_an_edit_is_a_letter_more_or_less_or_another_one_or_two_that_changed_places(
    one: str, other: str, edits: int
) -> None:
    assert edit_distance(one, other) == edit_distance(other, one) == edits
