"""`--json` prints what the schemas of docs/json.md describe."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hpsearch.search.trial_record import Replica
from tests.support.command_line import Told

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"
OUTPUTS = [
    ("show", "show"),
    ("show", "show runs/spirals --state pruned --sort seconds"),
    ("best", "best"),
    ("best", "best --trial 0"),
    ("compare", "compare 0 1"),
    ("compare", "compare runs/spirals runs/spirals"),
    ("doctor", "doctor"),
    ("doctor-study", "doctor runs/spirals"),
    ("ready-made", "spaces"),
    ("ready-made", "objectives"),
]


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize(("schema", "command"), OUTPUTS, ids=[each[1] for each in OUTPUTS])
def test_what_is_printed_is_what_the_schema_describes(here: Path, told: Told, schema: str, command: str) -> None:
    trial = here / "runs/spirals/run-0/trial.json"
    record = json.loads(trial.read_text())
    record["reports"][0]["values"] = [float("nan")]
    record["reports"][0]["metrics"]["eval_loss"] = float("inf")
    trial.write_text(json.dumps(record))
    code, out, _ = told(*shlex.split(command), "--json")
    assert code == 0
    described = json.loads((SCHEMAS / f"{schema}.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(described)
    jsonschema.validate(strict(out), described)


def test_requests_that_no_search_has_fulfilled_are_listed_for_people_and_programs(here: Path, told: Told) -> None:
    assert told("requests", "runs/spirals")[1] == "no pending requests\n"
    assert strict(told("requests", "runs/spirals", "--json")[1]) == []
    (here / "runs/spirals/command.json").unlink()  # as of a search that a program began: confirm does not continue it
    for command in ("retry 0", "add --like 1 --learning_rate 3e-4", "confirm --repeats 3 --top 2"):
        assert told(*command.split(), "runs/spirals")[0] == 0
    found = strict(told("requests", "runs/spirals", "--json")[1])
    jsonschema.validate(found, json.loads((SCHEMAS / "requests.json").read_text(encoding="utf-8")))
    assert [each["kind"] for each in found] == ["retry", "add", "confirm"]
    assert [each["trial"] for each in found] == [0, 1, None]
    assert found[1]["params"]["learning_rate"] == 3e-4
    assert found[2]["arguments"]["repeats"] == 3
    lines = told("requests", "runs/spirals")[1].splitlines()
    assert [each.partition(", made ")[0] for each in lines[:-1]] == [each["command"] for each in found]
    assert lines[-1].startswith("followed when the search continues")


def test_a_damaged_study_is_described_with_exit_code_1(here: Path, told: Told) -> None:
    (here / "runs/spirals/run-2/trial.json").write_text("{")
    code, out, _ = told("doctor", "runs/spirals", "--json")
    found = strict(out)
    jsonschema.validate(found, json.loads((SCHEMAS / "doctor-study.json").read_text(encoding="utf-8")))
    assert code == 1
    assert "'run-2/trial.json' cannot be read" in found["problems"][0]


def test_an_error_is_no_json_and_leaves_stdout_empty(here: Path, told: Told) -> None:
    for command in (["best", "--trial", "99"], ["show", "--sort", "x"], ["show", "--columns", "value"]):
        code, out, err = told(*command, "--json")
        assert (code, out) == (2, "")
        assert err.splitlines()[-1].startswith("Error: ")


def test_json_is_limited_only_if_asked(here: Path, told: Told) -> None:
    assert len(strict(told("show", "--json", "--limit", "3")[1])) == 3


def repeat_the_best(study: Path) -> int:
    """Add a run of the best trial with another seed, as a search with `repeats=` leaves it; return the trial."""
    best = int(json.loads((study / "best.json").read_text())["trial"])
    record = json.loads((study / f"run-{best}/trial.json").read_text())
    record |= {"number": 8, "name": "run-8", "origin": Replica(best, 1).origin, "seed": 43, "checkpoint": None}
    record["values"] = [record["values"][0] + 0.01]
    (study / "run-8").mkdir()
    (study / "run-8/trial.json").write_text(json.dumps(record))
    return best


def test_a_repeated_trial_is_one_row_with_its_mean_or_a_row_for_each_run(here: Path, told: Told) -> None:
    best = repeat_the_best(here / "runs/spirals")
    for command in (["show"], ["show", "--runs"], ["best"]):
        found = strict(told(*command, "--json")[1])
        jsonschema.validate(found, json.loads((SCHEMAS / f"{command[0]}.json").read_text(encoding="utf-8")))
    [trial] = found["trials"]
    assert (trial["number"], trial["runs"], trial["std"]) == (best, 2, [pytest.approx(0.01 / 2**0.5)])
    for number, said in ((best, "one of 2 seeds of trial"), (8, "one of 2 seeds of trial")):
        assert f"{said} {best}, whose mean is " in told("best", "--trial", str(number))[1]
        [run] = strict(told("best", "--trial", str(number), "--json")[1])["trials"]
        assert (run["number"], run["runs"], run["std"]) == (number, 1, [])
    assert "mean of 2 seeds with standard deviation 0.0071" in told("best")[1]
    assert [each["number"] for each in strict(told("show", "--json")[1]) if each["runs"] == 2] == [best]
    runs = strict(told("show", "--runs", "--json")[1])
    assert [each["number"] for each in runs[:2]] == [best, 8]
    assert [each["repeats"] for each in runs[:2]] == [None, best]
    rows = {each["name"]: each["values"] for each in strict(told("compare", str(best), "8", "--json")[1])["rows"]}
    assert rows["runs"] == [2, 1]
    assert rows["repeats"] == [None, best]
