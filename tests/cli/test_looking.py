"""What commands tell of a study is what is on disk."""

from __future__ import annotations

import ast
import itertools
import json
import os
import platform
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from hpsearch import open_study
from hpsearch.reports.commands_to_repeat import how_to_repeat
from hpsearch.search.result.advice import advice
from hpsearch.search.store.held_out_file import HeldOutEvaluation, write_held_out
from hpsearch.search.store.live_sessions import Session
from tests.support.command_line import TRIALS, Told
from tests.support.html_pages import parse_html, text_of

ROOT = Path(__file__).parents[2]


def records(here: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in here.glob("runs/spirals/*/trial.json")]
    return sorted(found, key=lambda each: int(each["number"]))


def best_of(here: Path) -> dict[str, Any]:
    return dict(json.loads((here / "runs/spirals/best.json").read_text()))


def test_show_lists_every_trial_best_first(here: Path, told: Told) -> None:
    code, out, _ = told("show")
    assert code == 0
    rows = [found for line in out.splitlines() if (found := re.match(r" *(\d+)(\*?) +(complete|pruned) ", line))]
    assert sorted(int(row[1]) for row in rows) == list(range(TRIALS))
    assert [int(row[1]) for row in rows if row[2]] == [int(rows[0][1])] == [best_of(here)["trial"]]


def test_show_says_what_the_test_set_said_and_how_often_it_was_evaluated(here: Path, told: Told) -> None:
    evaluation = HeldOutEvaluation(3, (0.9,), {"test_accuracy": 0.75}, "300 samples", "", 0.0)
    write_held_out(here / "runs/spirals", [evaluation, evaluation])
    _, out, _ = told("show")
    assert "On the test set: accuracy 0.75 of trial 3. It was evaluated 2 times." in out.splitlines()


def test_without_a_name_the_study_that_was_written_to_last_is_shown(here: Path, told: Told) -> None:
    older = shutil.copytree(here / "runs" / "spirals", here / "runs" / "older")
    for folder, seconds in ((older, 1000), (here / "runs" / "spirals", 2000)):
        os.utime(folder, (seconds, seconds))
    _, _, said = told("show")
    assert said.strip() == f"study {Path('runs', 'spirals')}"
    os.utime(older, (3000, 3000))
    _, _, said = told("show")
    assert said.strip() == f"study {Path('runs', 'older')}"


def test_show_as_json_has_whole_records(here: Path, told: Told) -> None:
    _, out, _ = told("show", "runs/spirals", "--json", "--sort", "number")
    kept = {each.parent.name: each.name for each in here.glob("runs/spirals/run-*/checkpoint-*")}
    assert json.loads(out) == [
        each | {"checkpoint": kept.get(each["name"]), "std": [], "runs": 1} for each in records(here)
    ]


@pytest.mark.parametrize("by", ["learning_rate", "seconds", "number", "epochs", "state"])
def test_show_sorts_by_any_parameter_or_figure(here: Path, told: Told, by: str) -> None:
    _, out, _ = told("show", "--json", "--sort", by)
    values = [each["params"].get(by, each.get(by)) for each in json.loads(out)]
    assert values == sorted(values)
    assert len(set(values)) > 1


def test_show_says_how_a_trial_whose_search_was_killed_resumes(here: Path, told: Told) -> None:
    for count, said in ((1, "trial 0 resumes"), (2, "trials 0, 1 resume")):
        file = here / f"runs/spirals/run-{count - 1}/trial.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"state": "running", "values": []}))
        _, out, _ = told("show", "runs/spirals")
        assert f"{said} when the search continues (the same command again, or hpsearch resume runs/spirals)" in out
        assert out.count("interrupted") == 1 + count  # in the line of all states, and in the table


def test_show_does_not_say_how_to_continue_a_search_that_is_running(here: Path, told: Told) -> None:
    file = here / "runs/spirals/run-0/trial.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"state": "interrupted", "values": []}))
    assert "trial 0 resumes" in told("show", "runs/spirals")[1]
    session = Session(here / "runs/spirals")
    session.begin()
    try:
        assert "trial 0 resumes" not in told("show", "runs/spirals")[1]
    finally:
        session.end()


def test_show_filters_by_state_and_limits(here: Path, told: Told) -> None:
    _, out, _ = told("show", "--json", "--state", "pruned")
    assert [each["state"] for each in json.loads(out)] == ["pruned"] * sum(
        each["state"] == "pruned" for each in records(here)
    )
    _, out, _ = told("show", "--limit", "2")
    assert f"{TRIALS - 2} more trials: --limit {TRIALS}" in out
    opened = open_study(here / "runs" / "spirals")
    [finding, *_] = advice(opened.study, opened.records)
    assert finding in out
    _, out, _ = told("show", "--state", "pruned")
    assert finding not in out
    _, out, _ = told("show", "--limit", str(TRIALS - 1))
    assert f"1 more trial: --limit {TRIALS}" in out


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_table_fits_the_width_that_the_user_has_set_and_names_what_it_omits(
    here: Path, told: Told, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = told("show")
    lines = out.splitlines()
    [heading] = [line for line in lines if line.startswith("trial ")]
    place = lines.index(heading)
    table = lines[place - 2 : place + 1 + TRIALS]
    assert max(map(len, table)) <= columns
    assert ("curve" in heading) == (columns == 200)
    assert any(re.match(r"no room for .*curve; choose with --columns", line) for line in lines) == (columns < 200)
    assert "\x1b" not in out


def test_the_best_trial_has_a_colour_in_a_terminal(here: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    _, out, _ = told("show")
    [line] = [line for line in out.splitlines() if "\x1b[1;32m" in line]
    assert f"{best_of(here)['trial']}*" in line
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;32m" not in told("show")[1]


def test_show_in_markdown_is_a_table_of_the_best(here: Path, told: Told) -> None:
    _, out, _ = told("show", "--markdown", "--limit", "1")
    head, _, row = out.splitlines()
    cells = dict(
        zip((each.strip() for each in head.split("|")), (each.strip() for each in row.split("|")), strict=True)
    )
    best = best_of(here)
    assert cells["trial"] == str(best["trial"])
    assert float(cells["eval_accuracy"]) == pytest.approx(best["value"], rel=1e-3)


def test_the_command_that_the_report_names_goes_on_with_the_study(here: Path, told: Told) -> None:
    found = how_to_repeat(here / "runs/spirals", "spirals", 0)
    before = records(here)
    for line in (str(found.study), found.trial):
        program, *arguments = shlex.split(line)
        assert program == "hpsearch"
        code, _, err = told(*arguments)
        assert code == 0, err
    assert records(here) == before


def test_show_makes_markdown_of_what_it_shows(here: Path, told: Told) -> None:
    _, out, _ = told("show", "--markdown", "--sort", "number", "--state", "pruned", "--limit", "3")
    found = [line.split("|")[1].strip() for line in out.splitlines()[2:]]
    pruned = sorted(each["number"] for each in records(here) if each["state"] == "pruned")
    assert found == [str(each) for each in pruned[:3]]


def test_best_prints_the_same_parameters_in_every_format(here: Path, told: Told) -> None:
    expected = best_of(here)["hyperparameters"]
    assert json.loads(told("best", "--format", "json")[1]) == expected
    assert yaml.safe_load(told("best", "--format", "yaml")[1]) == expected
    _, out, err = told("best", "--format", "flags")
    flags = [each.removeprefix("--").split("=", 1) for each in shlex.split(out)]
    of_the_model = {name: value for name, value in expected.items() if "." in name}
    assert {name: ast.literal_eval(value) for name, value in flags} | of_the_model == expected
    assert not of_the_model.keys() & {name for name, _ in flags}
    assert all(f"{name}={value!r}" in err for name, value in of_the_model.items())
    assert of_the_model
    assert f"trial {best_of(here)['trial']}: eval_accuracy" in told("best")[1]


def test_best_exports_the_weights_without_what_only_training_needs(here: Path, told: Told) -> None:
    assert told("best", "--export", "model")[0] == 0
    checkpoint = here / "runs/spirals" / best_of(here)["checkpoint"]
    exported = {path.name for path in (here / "model").iterdir()}
    assert {"model.safetensors", "hyperparameters.json"} <= exported
    assert not {"optimizer.pt", "trainer_state.json", "scheduler.pt"} & exported
    weights, original = load_file(here / "model/model.safetensors"), load_file(checkpoint / "model.safetensors")
    assert all(weights[name].equal(original[name]) for name in original)
    code, _, err = told("best", "--export", "model")
    assert code == 2
    assert "not an empty folder" in err


def test_best_prints_any_trial_also_one_without_a_result(here: Path, told: Told) -> None:
    file = here / "runs/spirals/run-1/trial.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"state": "failed", "values": [], "reports": []}))
    for each in records(here):
        code, out, err = told("best", "--trial", str(each["number"]))
        assert code == 0, err
        value = f"eval_accuracy {each['values'][0]:.4g}" if each["values"] else "no result"
        assert out.splitlines()[0] == f"trial {each['number']}: {value} (scope last)"


def test_best_of_a_trial_whose_weights_were_not_kept_says_so(here: Path, told: Told) -> None:
    other = next(each["number"] for each in records(here) if each["number"] != best_of(here)["trial"])
    code, _, err = told("best", "--trial", str(other), "--export", "model")
    assert code == 2
    assert "keep_checkpoints" in err
    assert not (here / "model").exists()


def test_compare_shows_two_trials_side_by_side(here: Path, told: Told) -> None:
    _, out, _ = told("compare", "0", "1")
    first, second = records(here)[:2]
    [line] = [line for line in out.splitlines() if "learning_rate" in line]
    assert line.split()[0] == "≠"
    assert [float(each) for each in line.split()[2:]] == [
        pytest.approx(each["params"]["learning_rate"], rel=1e-3) for each in (first, second)
    ]


def test_compare_shows_two_studies_side_by_side(here: Path, told: Told) -> None:
    code, out, _ = told("compare", "runs/spirals", "runs/spirals")
    assert code == 0
    [line] = [line for line in out.splitlines() if "0.0001 to 0.1, log" in line]
    assert line.split()[0] == "learning_rate"
    assert line.count("0.0001 to 0.1, log") == 2


@pytest.mark.parametrize("kind", ["spaces", "objectives"])
def test_what_is_ready_made_is_listed_with_its_own_words(told: Told, kind: str) -> None:
    _, out, _ = told(kind)
    for file in (ROOT / kind).glob("[!_]*.py"):
        line = (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]
        assert any(each.startswith(file.stem) and line in each for each in out.splitlines()), file


def test_a_labs_own_spaces_are_listed_too(here: Path, told: Told) -> None:
    (here / "spaces").mkdir()
    (here / "spaces/ours.py").write_text('"""What we search."""\n')
    _, out, _ = told("spaces")
    assert "What we search." in out


def test_doctor_says_what_is_here_and_what_would_install_the_rest(told: Told) -> None:
    import torch

    code, out, _ = told("doctor")
    assert code == 0
    assert torch.__version__ in out
    assert "optuna-dashboard" in out


def test_a_study_is_found_below_or_beside_or_by_its_file(
    here: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    for named in ("runs", "runs/spirals", "runs/spirals/study.json"):
        assert told("best", named, "--format", "json")[1] == told("best", "--format", "json")[1]
    monkeypatch.chdir(here / "runs/spirals")
    assert json.loads(told("best", "--format", "json")[1]) == best_of(here)["hyperparameters"]


def test_the_report_says_how_to_continue_the_study_and_to_repeat_a_trial(here: Path, told: Told) -> None:
    pytest.importorskip("plotly")
    code, out, _ = told("report", "runs/spirals")
    assert (code, Path(out.strip())) == (0, Path("runs/spirals/report.html"))
    page = parse_html((here / out.strip()).read_text(encoding="utf-8"))
    again = text_of(page.find(".//section[@aria-labelledby='again']"))
    assert f"hpsearch replay {best_of(here)['trial']} " in again
    assert re.search(r"hpsearch run \S+first/study.py --output ", again)
    assert "searched" in text_of(page.find(".//section[@aria-labelledby='summary']"))
    [place] = page.findall(".//section[@aria-labelledby='places']//tbody/tr")
    assert platform.node() in text_of(place)
    assert "worker" not in text_of(place)


def test_how_to_continue_names_the_place_where_the_study_is_now(here: Path) -> None:
    moved = here / "elsewhere" / "moved study"
    shutil.copytree(here / "runs/spirals", moved)
    command = json.loads((moved / "command.json").read_text())
    command["search"]["timeout"] = None
    (moved / "command.json").write_text(json.dumps(command))
    assert "--time none" in str(how_to_repeat(moved, "spirals", 3).study)
    command["search"]["timeout"] = 14 * 86400.0
    (moved / "command.json").write_text(json.dumps({**command, "left_out": ["storage"]}))
    found = how_to_repeat(moved, "spirals", 3)
    assert found.trial == f"hpsearch replay 3 '{moved}'"
    words = shlex.split(str(found.study))
    assert words[:2] == ["hpsearch", "run"]
    options = dict(itertools.pairwise(words))
    assert options["--output"] == str(here / "elsewhere")
    assert options["--study-name"] == "moved study"
    assert options["--time"] == "1209600s"
    assert found.left_out == ("storage",)
