"""What scripts call, read and override in transformers' trainers and arguments is here, or the docs say why not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import transformers

import hpsearch
from tests.support.transformers_surface import public_names, shared_methods, signature_differences

PAGE = Path(__file__).parents[2] / "docs" / "trainer.md"
CLASSES = ["Trainer", "Seq2SeqTrainer", "TrainingArguments", "Seq2SeqTrainingArguments"]
# Why a call that transformers takes is taken otherwise.
OTHER_SIGNATURES = {
    # None means 20, or a budget; and the direction by the name of the metric.
    "Trainer.hyperparameter_search": [
        "n_trials is None by default, not 20",
        "direction is None by default, not 'minimize'",
    ],
    "Seq2SeqTrainer.hyperparameter_search": [
        "n_trials is None by default, not 20",
        "direction is None by default, not 'minimize'",
    ],
    # Ours takes optimizer_cls_and_kwargs before it, as the Trainer of both does.
    "Seq2SeqTrainer.__init__": ["preprocess_logits_for_metrics is in another place"],
}


def absent_by_the_docs() -> list[str]:
    """Return the names of the table in docs/trainer.md; every row has a reason."""
    section = PAGE.read_text(encoding="utf-8").split("## Names that are missing\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    assert all(len(row) == 2 and len(row[1].split()) > 3 for row in rows)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]


def both(name: str) -> tuple[Any, Any]:
    return getattr(transformers, name), getattr(hpsearch, name)


def test_every_public_name_is_here_or_the_docs_say_why_not_and_no_reason_is_stale() -> None:
    absent = {each for name in CLASSES for each in set.difference(*map(public_names, both(name)))}
    listed = absent_by_the_docs()
    assert len(absent) > 10
    assert sorted(absent - set(listed)) == [], "neither here nor in the table of docs/trainer.md"
    assert sorted(set(listed) - absent) == [], "in the table of docs/trainer.md, but here or gone from transformers"
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("name", CLASSES)
def test_every_method_that_both_have_takes_the_same_arguments(name: str) -> None:
    theirs, ours = both(name)
    methods = ["__init__", *shared_methods(theirs, ours)]
    assert len(methods) > 15
    found = {
        f"{name}.{method}": signature_differences(getattr(theirs, method), getattr(ours, method)) for method in methods
    }
    expected = {key: value for key, value in OTHER_SIGNATURES.items() if key.startswith(f"{name}.")}
    assert {key: value for key, value in found.items() if value} == expected


@pytest.mark.parametrize(
    ("ours", "differences"),
    [
        (lambda a, b=1, **c: 0, []),
        (lambda a, b=1, *, more=2, **c: 0, []),
        (lambda a, b=1: 0, ["**c is not taken"]),
        (lambda b=1, a=0, **c: 0, ["a is in another place", "b is in another place"]),
        (lambda a, **c: 0, ["b is not taken"]),
        (lambda a, b=2, **c: 0, ["b is 2 by default, not 1"]),
        (lambda a, b, **c: 0, ["b is <class 'inspect._empty'> by default, not 1"]),
        (lambda a, b=1, *, d, **c: 0, ["d must be given"]),
    ],
)
def test_a_difference_of_signatures_is_seen(ours: Any, differences: list[str]) -> None:
    assert signature_differences(lambda a, b=1, **c: 0, ours) == differences


def test_what_methods_set_on_their_object_counts_as_public() -> None:
    names = public_names(transformers.Trainer)
    assert {"train", "label_names", "push_in_progress", "current_gradient_accumulation_steps"} <= names
    assert not [name for name in names if name.startswith("_")]
