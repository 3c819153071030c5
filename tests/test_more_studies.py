"""The studies beside the quickstart: each runs in its small form, as a user would run it, on data made here."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import BertConfig, BertModel, BertTokenizerFast

from hpsearch import SearchPlan
from hpsearch.cli.study_file import read_plan
from studies import character_model, grouped_auc, lora, sst2
from tests.support.programs import ROOT, finish

pytestmark = pytest.mark.docs

FILES = sorted(path.name for path in (ROOT / "studies").glob("*.py") if "\nstudy = SearchPlan(" in path.read_text())
FEELINGS = (("awful", "poor", "sad", "dull"), ("fine", "great", "lovely", "wise"))
NEUTRAL = ("the", "film", "was", "and", "so", "very", "it", "seen")


def write_sentences(path: Path, count: int, seed: int, head: str = "") -> None:
    """Write a TSV file of sentences, each with one word that tells its label."""
    generator = random.Random(seed)
    lines = []
    for _ in range(count):
        label = generator.randrange(2)
        words = [*generator.sample(NEUTRAL, 4), generator.choice(FEELINGS[label])]
        lines.append(f"{' '.join(generator.sample(words, len(words)))}\t{label}\n")
    path.write_text(head + "".join(lines), encoding="utf-8")


@pytest.fixture
def sentences(tmp_path: Path) -> str:
    """A folder with train.tsv and dev.tsv."""
    folder = tmp_path / "sentences"
    folder.mkdir()
    write_sentences(folder / "train.tsv", 400, seed=0)
    write_sentences(folder / "dev.tsv", 200, seed=1)
    return str(folder)


@pytest.fixture
def text(tmp_path: Path) -> str:
    """A file of 60,000 characters, in words of which each has a first letter and the same four after it."""
    generator = random.Random(0)
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{generator.choice('abcdefgh')}rest " for _ in range(10_000)), encoding="utf-8")
    return str(path)


def numbers(pattern: str, output: str) -> list[float]:
    """Return the numbers of the groups of a pattern in what was printed; it must be there."""
    found = re.search(pattern, output)
    assert found is not None, output
    return [float(each) for each in found.groups()]


def weights_of_best(output: str, folder: Path) -> Path:
    found = re.search(r"weights in (\S+)", output)
    assert found is not None, output
    return folder / found[1]


def records_in(study: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in study.glob("run-*/trial.json")]


def test_there_are_the_studies_that_these_tests_know() -> None:
    names = ["accelerate_loop", "character_model", "classical", "digits", "grouped_auc", "lora", "manual_loop"]
    assert [f"{name}.py" for name in [*names, "several_objectives", "sst2", "transformers_example"]] == FILES


@pytest.mark.parametrize("name", FILES)
def test_reading_a_study_makes_a_plan_and_imports_nothing_large(name: str) -> None:
    program = (
        f"import sys, studies.{name[:-3]}; print(sorted({{'torch', 'transformers', 'datasets'}} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    plan = read_plan(ROOT / "studies" / name)
    assert isinstance(plan, SearchPlan)
    assert plan.search["n_trials"] > 3  # fewer are not pruned
    assert plan.search["study_name"]


# Plain functions.


def test_classical_models_are_searched_by_cross_validation(tmp_path: Path) -> None:
    output = finish("studies.classical", "--trials", "4", folder=tmp_path)
    (found,) = numbers(r"accuracy (\d\.\d+) with", output)
    assert found > 0.8
    assert len(records_in(tmp_path / "output/classical")) == 4


@pytest.mark.parametrize("name", ["manual_loop", "accelerate_loop"])
def test_trials_of_a_loop_by_hand_pause_and_resume_and_the_best_model_knows_the_digits(
    tmp_path: Path, name: str
) -> None:
    output = finish(f"studies.{name}", "--trials", "8", folder=tmp_path)
    found, on_test = numbers(r"accuracy (\d\.\d+), on the test split (\d\.\d+), with", output)
    assert found > 0.9
    assert on_test > 0.9
    records = records_in(tmp_path / "output" / name)
    assert len(records) == 8
    assert {each["state"] for each in records} == {"complete", "pruned"}
    assert any(len(each["spans"]) > 1 for each in records), "some were resumed"


# Sentences.

SMALL = ("--trials", "4", "--epochs", "4")
ACCURACIES = r"test accuracy: (\d\.\d+) with the best trial, (\d\.\d+) with the default arguments"


def test_sst2_from_scratch_finds_a_model_that_knows_the_words(tmp_path: Path, sentences: str) -> None:
    output = finish("studies.sst2", "--data", sentences, *SMALL, folder=tmp_path)
    found, default = numbers(ACCURACIES, output)
    assert found > 0.9
    assert found > default
    assert "100 sentences that the search has not seen" in output  # half of dev, as there is no test.tsv
    assert (weights_of_best(output, tmp_path) / "model.safetensors").is_file()
    assert {len(each["params"]) for each in records_in(tmp_path / "runs/sst2")} == {7}


def test_sst2_fine_tunes_a_model_by_name_in_the_space_for_encoders(tmp_path: Path, sentences: str) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *NEUTRAL, *FEELINGS[0], *FEELINGS[1]]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "encoder")
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(words), **size)).save_pretrained(tmp_path / "encoder")
    small = ("--trials", "2", "--samples", "64")
    output = finish("studies.sst2", "--data", sentences, "--model", "encoder", *small, folder=tmp_path)
    records = records_in(tmp_path / "runs/sst2")
    assert len(records) == 2
    assert all({"num_train_epochs", "weight_decay"} <= set(each["params"]) for each in records)
    assert json.loads((weights_of_best(output, tmp_path) / "config.json").read_text())["vocab_size"] == len(words)


def test_sentences_are_read_with_and_without_a_head_and_the_labelled_test_split_is_taken(tmp_path: Path) -> None:
    write_sentences(tmp_path / "train.tsv", 30, seed=0, head="sentence\tlabel\n")
    write_sentences(tmp_path / "dev.tsv", 20, seed=1)
    halves = sst2.load_data(str(tmp_path), samples=10)
    assert {name: len(split) for name, split in halves.items()} == {"train": 10, "dev": 10, "test": 10}
    write_sentences(tmp_path / "test.tsv", 12, seed=2)
    data = sst2.load_data(str(tmp_path))
    assert {name: len(split) for name, split in data.items()} == {"train": 30, "dev": 20, "test": 12}
    told = [any(word in row["sentence"].split() for word in FEELINGS[row["label"]]) for row in data["test"]]
    assert all(told)


def test_the_vocabulary_are_the_words_that_occur_twice() -> None:
    tokenizer = sst2.make_tokenizer(["good film", "good plot"])
    assert set(tokenizer.get_vocab()) == {"[PAD]", "[UNK]", "[CLS]", "good"}
    assert tokenizer.decode(tokenizer("good film")["input_ids"]) == "[CLS] good [UNK]"


def test_the_example_of_transformers_runs_with_its_space_for_optuna(tmp_path: Path, sentences: str) -> None:
    output = finish("studies.transformers_example", "--data", sentences, *SMALL, folder=tmp_path)
    found, default = numbers(ACCURACIES, output)
    assert found > 0.9
    assert found > default
    assert "maximize compute_objective(metrics)" in output
    assert (weights_of_best(output, tmp_path) / "model.safetensors").is_file()


@pytest.mark.docs
def test_the_example_of_transformers_runs_with_its_space_for_ray(tmp_path: Path, sentences: str) -> None:
    ray = ("--backend", "ray", "--trials", "2", "--epochs", "2")
    output = finish("studies.transformers_example", "--data", sentences, *ray, folder=tmp_path)
    assert "a local Ray instance" in output
    assert numbers(ACCURACIES, output)[0] > 0.4
    records = records_in(tmp_path / "runs/transformers_example")
    assert all(1e-4 <= each["params"]["learning_rate"] <= 1e-2 for each in records)


# Text.


def test_the_character_model_learns_the_words_of_a_text(tmp_path: Path, text: str) -> None:
    small = ("--trials", "4", "--steps", "36")
    output = finish("studies.character_model", "--data", text, *small, folder=tmp_path)
    found, default = numbers(r"test: (\S+) bits per character with the best trial, (\S+) with the default", output)
    [alike] = numbers(r"guessing each of the characters alike takes (\d+\.\d+)", output)
    assert alike == pytest.approx(np.log2(12 + 1), abs=1e-3)  # a to h, r, s, t, the blank, and unknown ones
    # One letter of six has to be guessed, among eight: what is possible is log2(8) / 6.
    assert 0.5 - 0.05 < found < default < alike
    assert (weights_of_best(output, tmp_path) / "model.safetensors").is_file()


def test_the_splits_of_a_text_hold_it_in_blocks_without_overlap() -> None:
    context = character_model.CONTEXT
    text = "".join(random.Random(0).choices("xyz ", k=(16 * 40 + 1) * context + 5))
    tokenizer = character_model.make_tokenizer(text)
    data = character_model.load_data(text, tokenizer)
    assert {name: len(split) for name, split in data.items()} == {"train": 16 * 36 + 1, "dev": 32, "test": 32}
    blocks = {
        name: ["".join(tokenizer.convert_ids_to_tokens(block.tolist())) for block in split["input_ids"][:]]
        for name, split in data.items()
    }
    stretch = 16 * context
    assert "".join(blocks["train"][: 16 * 18]) == text[: 18 * stretch]
    assert "".join(blocks["dev"]) == text[18 * stretch : 19 * stretch] + text[38 * stretch : 39 * stretch]
    assert "".join(blocks["test"]) == text[19 * stretch : 20 * stretch] + text[39 * stretch : 40 * stretch]
    assert data["train"]["labels"][:].equal(data["train"]["input_ids"][:])
    assert len(character_model.read_text(None)) > 100_000  # what comes with Python


def test_lora_adapts_a_base_that_is_trained_once(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--trials", "4", "--steps", "18", "--base-steps", "6")
    output = finish("studies.lora", "--data", text, *small, folder=tmp_path)
    found, default = numbers(r"test loss: (\S+) with the best trial, (\S+) with the defaults of the space", output)
    [base] = numbers(r"\((\S+) without adapters", output)
    assert found < default < base
    folder = weights_of_best(output, tmp_path)
    assert (folder / "adapter_model.safetensors").is_file()
    assert not (folder / "model.safetensors").exists()
    assert {len(each["params"]) for each in records_in(tmp_path / "runs/lora")} == {5}
    assert "training the base model, 6 steps" in output
    output_dir = str(tmp_path / "runs")
    lora.prepare(text, output_dir, steps=18, base_steps=6)
    assert "training the base model" not in capsys.readouterr().out
    lora.prepare(text, output_dir, steps=18, base_steps=2)  # another base has another folder
    assert "training the base model, 2 steps" in capsys.readouterr().out
    assert len(list((tmp_path / "runs").glob("lora-base-*"))) == 2


# Clicks.


def test_the_grouped_auc_is_the_mean_over_groups_with_both_classes() -> None:
    groups = np.array([7, 3, 7, 3, 7, 3, 5, 5])
    scores = np.array([0.9, 0.2, 0.1, 0.2, 0.5, 0.8, 0.3, 0.4])
    labels = np.array([1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    # In group 7 both pairs are in order; in group 3 one of two, and a tie; group 5 has clicks only.
    assert grouped_auc.grouped_auc(groups, scores, labels) == pytest.approx((1.0 + 0.75) / 2)
    assert np.isnan(grouped_auc.grouped_auc(groups[6:], scores[6:], labels[6:]))


def test_the_auc_is_that_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = np.random.default_rng(0)
    scores, labels = generator.integers(0, 20, 200) / 20, generator.integers(0, 2, 200).astype(float)
    assert grouped_auc.auc(scores, labels) == pytest.approx(metrics.roc_auc_score(labels, scores))


def test_the_clicks_are_the_same_for_the_same_seed_and_the_splits_have_no_sample_twice() -> None:
    data, again = grouped_auc.load_data(1000), grouped_auc.load_data(1000)
    assert [len(split) for split in data.values()] == [800, 100, 100]
    assert all(data[name]["labels"][:].equal(again[name]["labels"][:]) for name in data)
    assert not data["dev"]["user"][:].equal(data["test"]["user"][:])


def test_grouped_auc_searches_for_the_order_within_users(tmp_path: Path) -> None:
    small = ("--trials", "6", "--epochs", "3", "--samples", "10000")
    output = finish("studies.grouped_auc", *small, folder=tmp_path)
    found, default = numbers(r"within users: (\S+) with the best trial, (\S+) with the default", output)
    [overall, _] = numbers(r"over all samples (\S+) and (\S+);", output)
    assert found > max(0.52, default)
    assert overall > found + 0.05  # who clicks much is easier to know
    assert "maximize eval_grouped_auc" in output
    assert (weights_of_best(output, tmp_path) / "model.safetensors").is_file()


def test_hpsearch_runs_a_study_file_with_options(tmp_path: Path) -> None:
    file = str(ROOT / "studies" / "grouped_auc.py")
    options = ("-n", "4", "--set", "num_train_epochs=2", "--output", "elsewhere")
    output = finish("hpsearch", "run", file, *options, folder=tmp_path)
    assert "best trial" in output
    records = records_in(tmp_path / "elsewhere/grouped_auc")
    assert len(records) == 4
    assert max(each["epochs"] for each in records) == 2.0


def test_hpsearch_runs_a_study_file_on_the_data_that_a_variable_names(tmp_path: Path, sentences: str) -> None:
    file = str(ROOT / "studies" / "sst2.py")
    small = ("-n", "2", "--set", "num_train_epochs=1")
    output = finish("hpsearch", "run", file, *small, folder=tmp_path, STUDY_DATA=sentences)
    assert "best trial" in output
    assert (weights_of_best(output, tmp_path) / "model.safetensors").is_file()


# Several objectives.


@pytest.mark.parametrize("cost", ["size", "latency"])
def test_several_objectives_prints_the_pareto_front(tmp_path: Path, cost: str) -> None:
    pytest.importorskip("sklearn")
    small = ("--trials", "6", "--epochs", "2", "--cost", cost)
    output = finish("studies.several_objectives", *small, folder=tmp_path)
    rows = [line.split() for line in output.splitlines() if re.match(r" +\d+ +\d\.\d{4} ", line)]
    front = {int(trial): (float(accuracy), float(price)) for trial, accuracy, price, _, _ in rows}
    assert front
    prices = [price for _, price in front.values()]
    assert prices == sorted(prices)
    study = tmp_path / f"runs/accuracy_and_{cost}"
    values = {each["number"]: each["values"] for each in records_in(study) if each["state"] == "complete"}

    def dominates(one: list[float], other: list[float]) -> bool:
        return one != other and one[0] >= other[0] and one[1] <= other[1]

    not_dominated = {
        number for number, own in values.items() if not any(dominates(each, own) for each in values.values())
    }
    assert set(front) == not_dominated
    assert all(front[number] == pytest.approx(values[number], rel=1e-3) for number in front)
    assert all((tmp_path / row[4] / "model.safetensors").is_file() for row in rows)
    assert all(float(row[3]) > 0.2 for row in rows if float(row[1]) > 0.5)  # the test split, of ten digits
    [default] = numbers(r"default arguments: test accuracy (\d\.\d+) with \d+ weights", output)
    assert max(float(row[3]) for row in rows) > default
