"""`hpsearch best` gives the model away whole, and only what lies in the study's folder."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import Told


def best_checkpoint(here: Path) -> Path:
    study = here / "runs/spirals"
    return study / json.loads((study / "best.json").read_text())["checkpoint"]


def assert_not_exported(here: Path, told: Told, expected: int, *parts: str) -> None:
    code, _, err = told("best", "runs/spirals", "--export", "model")
    assert code == expected, err
    for part in parts:
        assert part in err
    assert not [each for each in os.listdir(here) if "model" in each]


@pytest.mark.parametrize("keep", [0, 7, 300, -1])
def test_truncated_weights_are_not_exported(here: Path, told: Told, keep: int) -> None:
    weights = best_checkpoint(here) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    assert_not_exported(here, told, 1, str(weights.relative_to(here)), "is damaged")


def test_missing_weights_are_not_exported(here: Path, told: Told) -> None:
    (best_checkpoint(here) / "model.safetensors").unlink()
    assert_not_exported(here, told, 1, "has no weights")


@pytest.mark.parametrize("name", ["notes.txt", "vocabulary/words.txt", "folder"])
def test_a_link_in_a_checkpoint_is_an_error_that_names_it(here: Path, told: Told, name: str) -> None:
    (here / "private").mkdir()
    (here / "private/key.txt").write_text("private")
    link = best_checkpoint(here) / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(here / ("private" if name == "folder" else "private/key.txt"))
    code, _, err = told("best", "runs/spirals", "--export", "model")
    assert code == 2
    assert Path(name).name in err or "not on disk" in err
    assert not (here / "model").exists()


def test_a_pipe_in_a_checkpoint_is_an_error_that_names_it(here: Path, told: Told) -> None:
    os.mkfifo(best_checkpoint(here) / "pipe")
    assert_not_exported(here, told, 2, "pipe' is neither a file nor a folder")


def test_a_checkpoint_that_is_a_link_is_not_exported(here: Path, told: Told) -> None:
    checkpoint = best_checkpoint(here)
    checkpoint.rename(here / "elsewhere")
    checkpoint.symlink_to(here / "elsewhere")
    assert told("best", "runs/spirals", "--export", "model")[0] == 2
    assert not (here / "model").exists()


NAMES = ["a;touch canary;b", "$(touch canary)", "`touch canary`", "a b", "a\ntouch canary\n", "--help", "a'b", "é"]
VALUES = ["$(touch canary)", "a'b", "a\ntouch canary\n", "a\x1b[2Jb", '"; touch canary; "', "a b", "\\"]
ACTING = {"push_to_hub": True, "hub_model_id": "someone/x", "output_dir": "/etc"}


def test_flags_of_any_study_run_nothing(here: Path, told: Told) -> None:
    number = json.loads((here / "runs/spirals/best.json").read_text())["trial"]
    file = here / f"runs/spirals/run-{number}/trial.json"
    settings_file = here / "runs/spirals/study.json"
    values: dict[str, Any] = {**dict.fromkeys(NAMES, 1), **{f"value_{at}": each for at, each in enumerate(VALUES)}}
    values.update(ACTING)
    record, settings = json.loads(file.read_text()), json.loads(settings_file.read_text())
    record["params"] = {**record["params"], **values}
    record["hyperparameters"] = {**record.get("hyperparameters", {}), **values}
    for session in settings["sessions"]:
        session["arguments"].update(dict.fromkeys(values))
    file.write_text(json.dumps(record))
    settings_file.write_text(json.dumps(settings))
    code, out, err = told("best", "runs/spirals", "--format", "flags")
    assert code == 0, err
    flags = dict(each.removeprefix("--").split("=", 1) for each in shlex.split(out))
    assert "learning_rate" in flags
    assert not {*NAMES, *ACTING} & set(flags)
    assert "hub_model_id='someone/x'" in err
    assert flags["value_0"] == "$(touch canary)"
    assert "\x1b" not in out + err
    assert "a;touch canary;b=1" in err
    subprocess.run(["sh", "-c", 'eval "echo $1"', "sh", out], cwd=here, check=True, capture_output=True)
    subprocess.run(["xargs", "echo"], input=out, text=True, cwd=here, check=True, capture_output=True)
    assert not (here / "canary").exists()


def test_a_model_that_is_exported_is_said_to_be_beside_what_scripts_read(here: Path, told: Told) -> None:
    code, out, err = told("best", "runs/spirals", "--export", "model", "--format", "json")
    assert code == 0, err
    assert json.loads(out)
    assert "the model of trial" in err
    assert "is in 'model'" in err


def test_the_best_of_a_study_without_a_result_is_an_error_that_names_the_command_that_continues(
    here: Path, told: Told
) -> None:
    for record in (here / "runs/spirals").glob("*/trial.json"):
        unfinished = {"state": "interrupted", "values": [], "reports": [], "checkpoint": None}
        record.write_text(json.dumps({**json.loads(record.read_text()), **unfinished}))
    code, _, err = told("best", "runs/spirals")
    assert code == 1
    assert "hpsearch resume runs/spirals continues the study." in " ".join(err.split())
