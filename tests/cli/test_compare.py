"""`hpsearch compare` lists all that is recorded and differs, also what was not searched."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpsearch import open_study
from hpsearch.cli.compare import _print
from hpsearch.cli.differences import NOT_RECORDED, Row, in_short
from hpsearch.search.wording import format_value
from tests.support.command_line import Told


@pytest.mark.parametrize(
    ("values", "differs"),
    [((9, 9.0), False), ((1, True), True), ((0.1, 0.2), True), (("9", 9), True), ((NOT_RECORDED, 9), True)],
)
def test_numbers_are_compared_as_numbers(values: tuple[object, object], differs: bool) -> None:
    assert Row("arguments", "num_train_epochs", values, ("", "")).differs is differs


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("name", ["per_device_train_batch_size", "deepspeed.zero_optimization.offload_optimizer.path"])
def test_no_character_of_a_wide_table_is_lost(
    name: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    folders, counts = ["runs/a_study_of_a_long_name", "runs/b"], ("30 trials: 14 complete, 16 pruned",) * 2
    _print("two studies", folders, [Row("study", name, ("1", "2"), counts)])
    kept = "".join(capsys.readouterr().out.split())
    given = "".join(["two studies", *folders, "study", "≠", name, *counts, "≠ differs"]).replace(" ", "")
    assert Counter(kept.replace("─", "")) == Counter(given)


def changed_copy(here: Path, change: Callable[[dict[str, Any]], None]) -> str:
    folder = shutil.copytree(here / "runs/spirals", here / "runs/other")
    file = folder / "study.json"
    settings = json.loads(file.read_text())
    change(settings)
    file.write_text(json.dumps(settings))
    return "runs/other"


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("scope", "avg", "not comparable: their scopes differ"),
        ("direction", "minimize", "not comparable: their objectives differ"),
    ],
)
def test_studies_that_cannot_be_compared_have_no_verdict_and_the_last_line_says_why(
    here: Path, told: Told, setting: str, value: str, said: str
) -> None:
    _, out, _ = told("compare", "runs/spirals", changed_copy(here, lambda settings: settings.update({setting: value})))
    assert out.splitlines()[-1] == said


def test_a_trial_without_a_result_is_not_compared_and_the_last_line_says_so(here: Path, told: Told) -> None:
    other = changed_copy(here, lambda settings: None)
    set_states(here / other, ["complete", "pruned"])
    assert told("compare", "0", "1", "--study", other)[1].splitlines()[-1] == "not comparable: trial 1 has no result"
    set_states(here / other, ["complete"] * 2, violations={"eval_accuracy >= 2": 1.0})
    told_last = told("compare", "0", "1", "--study", other)[1].splitlines()[-1]
    assert told_last == "not comparable: trial 0 breaks a constraint"


def set_states(study: Path, states: list[str], **others: object) -> None:
    for number, state in enumerate(states):
        file = study / f"run-{number}" / "trial.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "state": state, **others}))


def differing(out: str) -> dict[tuple[str, str], list[Any]]:
    rows = [each for each in json.loads(out)["rows"] if each["differs"]]
    found = {}
    for each in rows:
        values = zip(each["values"], each["recorded"], strict=True)
        found[each["group"], each["name"]] = [value if is_recorded else "missing" for value, is_recorded in values]
    return found


def test_equal_studies_differ_in_nothing(here: Path, told: Told) -> None:
    other = changed_copy(here, lambda settings: None)
    assert differing(told("compare", "runs/spirals", other, "--json")[1]) == {}
    assert "nothing differs" in told("compare", "runs/spirals", other)[1]


def test_the_last_line_says_which_is_better_and_whether_by_more_than_the_noise(here: Path, told: Told) -> None:
    other = changed_copy(here, lambda settings: None)
    set_states(here / other, ["complete"] * 2)
    best, worst = [each for each in open_study(here / other).ranked() if each.number < 2]
    last = told("compare", "0", "1", "--study", other)[1].splitlines()[-1]
    assert last.startswith(f"trial {best.number} is better by ")
    assert worst.number == 1 - best.number
    assert re.search(r", (within|beyond) the noise \(standard error of the difference 0\.\d+\)$", last)
    shutil.rmtree(here / other)
    best = open_study(here / "runs/spirals").ranked()[0]
    other = changed_copy(here, lambda settings: None)
    both = f"both have {format_value(best.value)}"
    assert told("compare", "runs/spirals", other)[1].splitlines()[-1] == both
    shutil.rmtree(here / other)
    changed_copy(here, lambda settings: settings["sessions"][-1]["data"].update(eval_dataset="another one"))
    assert both not in told("compare", "runs/spirals", other)[1]  # values on other data say nothing


def test_arguments_that_were_not_searched_are_listed_where_they_differ(here: Path, told: Told) -> None:
    def change(settings: dict[str, Any]) -> None:
        arguments = settings["sessions"][0]["arguments"]
        arguments["max_grad_norm"] = 0.5
        arguments["accelerator_config"]["split_batches"] = True
        del arguments["bf16"]
        settings["sessions"][0]["versions"]["torch"] = "0.1"
        settings["sessions"][0]["data"]["train_dataset"] = "1 sample"

    other = changed_copy(here, change)
    found = differing(told("compare", "runs/spirals", other, "--json")[1])
    assert found.pop(("versions", "torch"))[1] == "0.1"
    assert found.pop(("data", "train_dataset"))[1] == "1 sample"
    assert found == {
        ("arguments", "max_grad_norm"): [1.0, 0.5],
        ("arguments", "accelerator_config.split_batches"): [False, True],
        ("arguments", "bf16"): [False, "missing"],
    }
    _, out, _ = told("compare", "runs/spirals", other)
    [line] = [line for line in out.splitlines() if "bf16 " in line]
    assert line.split() == ["≠", "bf16", "False", "-"]
    assert "- not recorded" in out


def test_a_parameter_that_only_one_study_searches_has_its_fixed_value_in_the_other(here: Path, told: Told) -> None:
    other = changed_copy(here, lambda settings: settings["space"].pop("weight_decay"))
    found = differing(told("compare", "runs/spirals", other, "--json")[1])
    assert found == {("space", "weight_decay"): ["0.0 to 0.1", "0.0, not searched"]}


def without(study: Path, name: str) -> None:
    """Leave a parameter out of all trials of a study, as if it had not been searched."""
    for file in study.glob("run-*/trial.json"):
        record = json.loads(file.read_text())
        for each in ("params", "arguments", "hyperparameters"):
            record[each].pop(name)
        file.write_text(json.dumps(record))


def test_a_parameter_that_the_best_trial_did_not_search_has_the_value_that_it_trained_with(
    here: Path, told: Told
) -> None:
    other = changed_copy(here, lambda settings: settings["space"].pop("weight_decay"))
    without(here / other, "weight_decay")
    without(here / other, "model.width")
    found = differing(told("compare", "runs/spirals", other, "--json")[1])
    assert found["best trial", "weight_decay"][1] == 0.0
    assert found["best trial", "model.width"][1] == "missing"


def test_a_parameter_that_only_one_of_two_trials_has_is_the_argument_of_the_other(here: Path, told: Told) -> None:
    study, aside = here / "runs/spirals", here / "aside"
    shutil.move(study / "run-1", aside / "run-1")
    without(aside, "weight_decay")
    shutil.move(aside / "run-1", study / "run-1")
    found = differing(told("compare", "0", "1", "--study", "runs/spirals", "--json")[1])
    assert found["parameters", "weight_decay"][1] == 0.0


def test_rows_that_differ_are_the_first_of_their_group_in_a_terminal() -> None:
    rows = [Row(group, name, (1, 1 + (name in "bd")), ("", "")) for group, name in ("xa", "xb", "xc", "xd", "ya", "yb")]
    assert "".join(each.group + each.name for each in in_short(rows)) == "xbxdxaxcybya"


def test_an_argument_that_changed_between_sessions_has_all_its_values(here: Path, told: Told) -> None:
    def change(settings: dict[str, Any]) -> None:
        later = json.loads(json.dumps(settings["sessions"][0]))
        later["arguments"]["logging_steps"] = 7
        settings["sessions"].append(later)

    found = differing(told("compare", "runs/spirals", changed_copy(here, change), "--json")[1])
    assert found[("arguments", "logging_steps")] == [500, "500 → 7"]


def test_trials_of_different_sessions_differ_in_the_arguments_of_these(here: Path, told: Told) -> None:
    def change(settings: dict[str, Any]) -> None:
        later = json.loads(json.dumps(settings["sessions"][0]))
        later["arguments"]["max_grad_norm"] = 0.25
        settings["sessions"].append(later)

    study = changed_copy(here, change)
    file = here / study / "run-1/trial.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"session": 1}))
    found = differing(told("compare", "0", "1", "--study", study, "--json")[1])
    assert found[("arguments", "max_grad_norm")] == [1.0, 0.25]
    assert ("parameters", "learning_rate") in found
    assert ("arguments", "learning_rate") not in found


def test_many_values_that_only_one_study_records_are_one_line_in_a_terminal(here: Path, told: Told) -> None:
    other = changed_copy(here, lambda settings: settings["sessions"][0].update(arguments={"max_grad_norm": 0.5}))
    count = len(differing(told("compare", "runs/spirals", other, "--json")[1]))
    _, out, _ = told("compare", "runs/spirals", other)
    lines = [line.split() for line in out.splitlines() if line.startswith(" ≠")]
    assert lines == [["≠", "max_grad_norm", "1.0", "0.5"], ["≠", str(count - 1), "values", "recorded", "-"]]


@pytest.mark.parametrize("columns", ["80", "120"])
def test_names_are_whole_and_no_line_is_wider_than_the_terminal(
    here: Path, told: Told, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = told("compare", "runs/spirals", "runs/spirals")
    assert "per_device_train_batch_size" in out
    assert max(map(len, out.splitlines())) <= int(columns)
