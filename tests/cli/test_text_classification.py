"""A text classifier is fine-tuned by a TOML file, without a line of Python."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification, BertConfig, BertModel, BertTokenizerFast

from hpsearch.cli.study_file import read_plan
from hpsearch.reports.commands_to_repeat import how_to_repeat
from tests.support.command_line import Told

WORDS = {"good": ("fine", "great", "lovely"), "bad": ("awful", "poor", "sad")}
NEUTRAL = ("the", "film", "was", "and", "so", "very")
STUDY = """
model = "encoder"
data = "reviews.csv"
text = "review"
label = "verdict"
space = "encoder"

[arguments]
per_device_eval_batch_size = 64

[search]
n_trials = 2
pruner = "none"
"""


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    generator = random.Random(seed)
    labels = [generator.choice(list(WORDS)) for _ in range(count)]
    return [(" ".join([*generator.sample(NEUTRAL, 4), generator.choice(WORDS[label])]), label) for label in labels]


def write_csv(file: Path, rows: list[tuple[str, ...]], head: str = "review,verdict") -> None:
    file.write_text("\n".join([head, *(",".join(row) for row in rows)]) + "\n")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small pretrained encoder, data and a study file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *NEUTRAL,
        *(each for some in WORDS.values() for each in some),
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained("encoder")
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(vocabulary), **size)).save_pretrained("encoder")
    write_csv(tmp_path / "reviews.csv", sentences(200, seed=0))
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path


def test_a_study_of_toml_may_have_a_budget_in_place_of_a_number_of_trials(here: Path, told: Told) -> None:
    (here / "study.toml").write_text(STUDY.replace("n_trials = 2", "budget = 1"))
    code, out, err = told("run", "study.toml", "--set", "num_train_epochs=1")
    assert code == 0, err
    assert "1 trial: 1 complete; 1 of 1 full training runs" in out


@pytest.mark.slow
def test_a_csv_and_a_model_are_enough_and_the_best_model_knows_its_labels(here: Path, told: Told) -> None:
    code, out, err = told("run", "study.toml")
    assert code == 0, err
    assert "best trial" in out
    study = json.loads((here / "runs/reviews/study.json").read_text())
    assert study["objective"] == "eval_accuracy"
    assert "num_train_epochs" in study["space"]
    assert told("best", "--export", "model")[0] == 0
    model = AutoModelForSequenceClassification.from_pretrained(here / "model")
    assert model.config.id2label == {0: "bad", 1: "good"}


@pytest.mark.slow
def test_it_learns_with_a_space_of_its_own_another_metric_and_a_file_to_validate_on(here: Path, told: Told) -> None:
    pytest.importorskip("sklearn")
    write_csv(here / "held-out.csv", sentences(60, seed=1))
    text = STUDY.replace('space = "encoder"', 'metric = "f1"\nvalidation = "held-out.csv"')
    text = text.replace("[arguments]", "[arguments]\nnum_train_epochs = 6")
    text += '\n[space]\nlearning_rate = {kind = "Float", low = 3e-3, high = 1e-2, log = true}\n'
    (here / "study.toml").write_text(text)
    code, _, err = told("run", "study.toml")
    assert code == 0, err
    best = json.loads((here / "runs/reviews/best.json").read_text())
    assert 3e-3 <= best["hyperparameters"]["learning_rate"] <= 1e-2
    assert best["value"] > 0.9
    [data] = [each["data"] for each in json.loads((here / "runs/reviews/study.json").read_text())["sessions"]]
    assert data["eval_dataset"].startswith("60")


@pytest.mark.process
def test_a_study_of_a_toml_file_runs_in_workers(here: Path, told: Told) -> None:
    code, _, err = told("run", "study.toml", "--n-jobs", "2", "--set", "num_train_epochs=1")
    assert code == 0, err
    trials = [json.loads(each.read_text()) for each in (here / "runs/reviews").glob("*/trial.json")]
    assert [each["state"] for each in trials] == ["complete", "complete"]


@pytest.mark.process
def test_a_study_of_a_toml_file_runs_in_groups_of_processes_and_resumes_in_them(here: Path, told: Told) -> None:
    code, _, err = told("run", "study.toml", "--processes-per-trial", "2", "--set", "num_train_epochs=1")
    assert code == 0, err
    assert json.loads((here / "runs/reviews/command.json").read_text())["search"]["processes_per_trial"] == 2
    assert told("resume", "runs/reviews", "-n", "3")[0] == 0
    trials = [json.loads(each.read_text()) for each in (here / "runs/reviews").glob("*/trial.json")]
    assert [(each["state"], each["processes"]) for each in trials] == [("complete", 2)] * 3


@pytest.mark.ray
@pytest.mark.usefixtures("ray_instance")
def test_a_study_of_a_toml_file_runs_in_groups_of_processes_on_ray(here: Path, told: Told) -> None:
    (here / "study.toml").write_text(STUDY + "resources_per_trial = {cpu = 2}\nprocesses_per_trial = 2\n")
    options = ("--backend", "ray", "--placement", "spread", "--set", "num_train_epochs=1")
    code, out, err = told("run", "study.toml", "-n", "1", *options)
    assert code == 0, err
    assert "each with 2 CPUs for 2 processes" in out
    assert json.loads((here / "runs/reviews/command.json").read_text())["search"]["placement"] == "spread"
    assert "--placement spread" in str(how_to_repeat(here / "runs/reviews", "reviews", 0).study)
    assert told("resume", "runs/reviews", "-n", "2", "--placement", "pack")[0] == 0
    trials = [json.loads(each.read_text()) for each in (here / "runs/reviews").glob("*/trial.json")]
    assert [(each["state"], each["processes"]) for each in trials] == [("complete", 2)] * 2


def test_a_toml_file_says_how_many_processes_train_each_trial(here: Path) -> None:
    (here / "study.toml").write_text(STUDY + 'processes_per_trial = 2\ngroup_timeout = 60\nplacement = "pack"\n')
    search = read_plan(here / "study.toml").search
    assert (search["processes_per_trial"], search["group_timeout"], search["placement"]) == (2, 60, "pack")


def test_what_the_file_or_the_command_line_sets_is_not_searched(here: Path, told: Told) -> None:
    start = "start_with = { learning_rate = 4e-3, num_train_epochs = 2, per_device_train_batch_size = 16 }\n"
    (here / "study.toml").write_text(STUDY.replace("[arguments]", "[arguments]\nnum_train_epochs = 1") + start)
    code, out, err = told("run", "study.toml", "--set", "learning_rate=2e-3")
    assert code == 0, err
    assert "not searched, as --set gives them: learning_rate=0.002" in out
    trials = [json.loads(each.read_text()) for each in (here / "runs/reviews").glob("*/trial.json")]
    assert trials
    for each in trials:
        assert not {"num_train_epochs", "learning_rate"} & each["params"].keys()
        assert each["epochs"] == 1.0
    assert any(each["params"]["per_device_train_batch_size"] == 16 for each in trials)
    [session] = json.loads((here / "runs/reviews/study.json").read_text())["sessions"]
    assert (session["arguments"]["learning_rate"], session["arguments"]["num_train_epochs"]) == (2e-3, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reviews (v2).csv", "_reviews.csv"])
def test_a_study_gets_a_name_of_its_data_that_can_name_a_folder(here: Path, told: Told, name: str) -> None:
    (here / "reviews.csv").rename(here / name)
    (here / "study.toml").write_text(STUDY.replace("reviews.csv", name).replace("n_trials = 2", "n_trials = 1"))
    code, _, err = told("run", "study.toml")
    assert code == 0, err
    assert (here / "runs" / {"_reviews.csv": "reviews"}.get(name, "reviews-v2") / "best.json").is_file()


@pytest.mark.slow
def test_pairs_of_texts_and_numbered_labels_are_read_from_json_lines(here: Path, told: Told) -> None:
    lines = [
        json.dumps({"first": one, "second": other, "same": int(label == another)})
        for (one, label), (other, another) in zip(sentences(80, 2), sentences(80, 3), strict=True)
    ]
    (here / "pairs.jsonl").write_text("\n".join(lines))
    text = STUDY.replace("reviews.csv", "pairs.jsonl").replace('"review"', '["first", "second"]')
    (here / "study.toml").write_text(text.replace('"verdict"', '"same"').replace("n_trials = 2", "n_trials = 1"))
    code, _, err = told("run", "study.toml")
    assert code == 0, err


@pytest.mark.parametrize(
    ("before", "after", "parts"),
    [
        ('model = "encoder"\n', "", ["lacks model"]),
        ('data = "reviews.csv"', 'data = ["a.csv", "b.csv"]', ["data = ['a.csv', 'b.csv'] must be a text"]),
        ('label = "verdict"', "label = 5", ["label = 5 must be a text"]),
        ('text = "review"', "text = [1]", ["text = [1] must be a column"]),
        ('space = "encoder"', "space = 3", ["space = 3 must be the name of a space"]),
        ('space = "encoder"', "max_length = 1.5", ["max_length = 1.5 must be a whole number"]),
        ("[arguments]\nper_device_eval_batch_size = 64\n", 'arguments = "x"', ["must be a table, [arguments]"]),
        ("n_trials = 2", 'hp_space = "encoder"', ["[search] has hp_space", "the setting space"]),
        (
            'model = "encoder"',
            'model = "nowhere"',
            ["model = 'nowhere' cannot be loaded", "no such folder exists"],
        ),
        (
            'space = "encoder"',
            'space = {learning_rate = {kind = "float", low = 1e-5, high = 1e-3}}',
            ["kind 'float' is none of 'Categorical', 'Float', 'Int'. Did you mean 'Float'?"],
        ),
        (
            'space = "encoder"',
            'space = {learning_rate = {kind = "Float", lo = 1e-5, high = 1e-3}}',
            ["Float does not take 'lo'; allowed:", "'high'", "'low'"],
        ),
        ('data = "reviews.csv"', 'data = "review.csv"', ["There is no file 'review.csv'"]),
        ('data = "reviews.csv"', 'data = "no/such-set"', ["nor a dataset on the Hub"]),
        ('text = "review"', 'text = "reviews"', ["no column 'reviews'", "'review'"]),
        ('label = "verdict"', 'lable = "verdict"', ["unknown setting 'lable'", "'label'"]),
        ('label = "verdict"', 'label = "empty"', ["'empty'", "is empty in 200 of 200 rows"]),
        ('label = "verdict"', 'label = "same"', ["only", "two labels"]),
        ('space = "encoder"', 'space = "encodre"', ["'encodre'", "'encoder'"]),
        ('space = "encoder"', 'metric = "acuracy"', ["'acuracy'", "'accuracy'"]),
        ('space = "encoder"', "validation = 2", ["validation = 2", "a fraction such as 0.1"]),
        ('space = "encoder"', 'validation = "test"', ["neither a file nor one of the splits ['train']"]),
        ('space = "encoder"', 'space = "enco', ["cannot be read", "line 6"]),
        ("n_trials", "n_trails", ["n_trails", "'n_trials'"]),
        ("per_device_eval_batch_size", "per_device_evl_batch_size", ["'per_device_eval_batch_size'"]),
    ],
)
def test_a_mistake_in_the_file_is_named(here: Path, told: Told, before: str, after: str, parts: list[str]) -> None:
    rows = [(text, label, "", "x") for text, label in sentences(200, seed=0)]
    write_csv(here / "reviews.csv", rows, "review,verdict,empty,same")
    assert before in STUDY
    (here / "study.toml").write_text(STUDY.replace(before, after))
    code, _, err = told("run", "study.toml")
    assert code == 2, err
    for part in parts:
        assert part in " ".join(err.split()), err
    assert "Traceback" not in err


def test_a_label_that_only_the_validation_data_have_is_a_mistake(here: Path, told: Told) -> None:
    write_csv(here / "held-out.csv", [("the film", "odd")])
    (here / "study.toml").write_text(STUDY.replace('space = "encoder"', 'validation = "held-out.csv"'))
    code, _, err = told("run", "study.toml")
    assert code == 2
    assert "'odd'" in err
