"""Whatever was done to a study's folder: an error with a remedy or a result, and nothing outside it is touched."""

from __future__ import annotations

import contextlib
import io
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpsearch import HpsearchError, open_study
from hpsearch.cli import main
from tests.support.outside import SECRET, make_outside, untouched
from tests.support.small_search import interrupted_study, search
from tests.support.small_trainer import small_trainer
from tests.support.stored_studies_0_8_0 import STORED

EVIL: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    1e308,
    10**30,
    math.nan,
    math.inf,
    "",
    "x" * 3000,
    "../../outside/secret",
    "../outside/run-0",
    "/dev/null",
    "\x1b[2J\x07",
    "\ud800",
    "$(touch owned)",
    [],
    {},
    [None],
    {"x": {"y": [1]}},
    "run-0",
]
# What is done at a place of a JSON file: the value is replaced, deleted, or moved to another name.
CHANGES = st.one_of(
    st.tuples(st.just("replace"), st.sampled_from(EVIL)),
    st.tuples(st.just("delete"), st.none()),
    st.tuples(st.just("rename"), st.sampled_from([each for each in EVIL if isinstance(each, str)])),
)
FILES = (
    "study.json",
    "command.json",
    "best.json",
    "requests.json",
    "run-0/trial.json",
    "run-1/trial.json",
    "run-2/trial.json",
)
# They read more of a study, or would run the program that it names, which lies outside of the current folder.
OTHERS = ("compare", "compare trials", "export", "flags", "promote", "replay", "requests", "resume")
PATHS = (*FILES, "study.db", "study.db-wal", "study.lock", "sessions", "run-0", "run-1", "run-2", "run-0/checkpoint-8")
Step = Callable[[Path, Path], None]


@st.composite
def crafted(draw: st.DrawFn) -> Step:
    """Return what changes one value in a JSON file of a study."""
    name, places = draw(st.sampled_from(FILES)), draw(st.lists(st.integers(0, 30), max_size=5))
    how, value = draw(CHANGES)

    def change(study: Path, outside: Path) -> None:
        with contextlib.suppress(OSError, ValueError):  # an earlier step has damaged the file
            content = json.loads((study / name).read_text())
            changed = _changed(content, places, how, value)
            (study / name).write_text(json.dumps(changed))

    return change


def _changed(content: Any, places: list[int], how: str, value: Any) -> Any:
    """Return JSON with a change at a place: each number chooses one of the keys or items there."""
    if not places or not content or not isinstance(content, dict | list):
        return value if how == "replace" else content
    keys = list(content) if isinstance(content, dict) else list(range(len(content)))
    key = keys[places[0] % len(keys)]
    if len(places) > 1 or how == "replace":
        content[key] = _changed(content[key], places[1:], how, value)
    elif how == "delete" or isinstance(content, list):
        del content[key]
    else:
        content[value] = content.pop(key)
    return content


@st.composite
def damaged(draw: st.DrawFn) -> Step:
    """Return what deletes, cuts, moves, copies or replaces a file or folder of a study."""
    name = draw(st.sampled_from(PATHS))
    how = draw(st.sampled_from(["delete", "cut", "garbage", "folder", "file", "link", "rename", "copy"]))
    other = draw(st.sampled_from(["copy of it", "run-1", "run-9", "\x1b[2J", "run-1 "]))

    def change(study: Path, outside: Path) -> None:
        path = study / name
        with contextlib.suppress(OSError):  # what an earlier step has left does not allow it
            if how == "cut":
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            elif how == "garbage":
                path.write_bytes(b"\xff\x00{[\n" * 50)
            elif how == "rename":
                path.rename(path.with_name(other))
            elif how == "copy":
                shutil.copytree(path, path.with_name(other), symlinks=True)
            else:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
                if how == "folder":
                    path.mkdir()
                elif how == "file":
                    path.write_text("")
                elif how == "link":
                    path.symlink_to(outside / ("run-0" if name.startswith("run") else "secret"))

    return change


STEPS = st.lists(st.one_of(crafted(), damaged()), min_size=1, max_size=3)
# For what takes long: fewer examples, each with more in it, so that as much is done to a study altogether.
MANY_STEPS = st.lists(st.one_of(crafted(), damaged()), min_size=2, max_size=6)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two trials that have ended, and one that was interrupted after its first checkpoint; and a request."""
    study = interrupted_study(tmp_path_factory.mktemp("whole"), 3)
    open_study(study).retry(0)
    return study


@contextlib.contextmanager
def changed_copy(whole: Path, steps: list[Step]) -> Any:
    """Give a copy of a study to which all of this was done; check that nothing outside is touched meanwhile."""
    with TemporaryDirectory() as place:
        study, outside = Path(place, whole.name), make_outside(Path(place, "outside"))
        shutil.copytree(whole, study)
        (outside / "study.py").write_text(SECRET)
        begun = {"file": str(outside / "study.py"), "folder": str(outside), "arguments": {}, "search": {"n_trials": 9}}
        (study / "command.json").write_text(json.dumps(begun))
        for step in steps:
            step(study, outside)
        with untouched(outside), contextlib.redirect_stdout(io.StringIO()) as out:
            yield study
        assert "\x1b" not in out.getvalue()
        assert not (Path.cwd() / "owned").exists()


def look_at(study: Path, *commands: str) -> None:
    """Look at a study in every way; an error is one of ours."""
    place = str(study)
    arguments = {
        "report": ["report", place, "-o", str(study.parent / "page.html")],
        "compare": ["compare", place, place],
        "compare trials": ["compare", "0", "1", "--study", place],
        "export": ["best", place, "--export", str(study.parent / "model")],
        "flags": ["best", place, "--format", "flags"],
        "promote": ["promote", "2", place],
        "replay": ["replay", "0", place],
        "requests": ["retry", "0", place],
        "resume": ["resume", place],
    }
    for command in commands:
        assert main(arguments.get(command, [command, place])) in (0, 1, 2), command
    shutil.rmtree(study.parent / "model", ignore_errors=True)
    with contextlib.suppress(HpsearchError):
        summary = open_study(study)
        assert all("\n" not in each for each in summary.problems)
        summary.trials_markdown()
        repr(summary)


def settings_of(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@settings_of(25)
@given(STEPS)
def test_a_crafted_or_damaged_study_can_be_looked_at(whole: Path, steps: list[Step]) -> None:
    with changed_copy(whole, steps) as study:
        look_at(study, "show", "doctor", "compare", "export", "replay")


@pytest.mark.fault
@pytest.mark.parametrize("name", ["sqlite_with_rungs", "journal_with_workers", "several_objectives"])
@settings_of(30)
@given(MANY_STEPS)
def test_a_crafted_or_damaged_study_of_0_8_0_can_be_looked_at(name: str, steps: list[Step]) -> None:
    with changed_copy(STORED / name, steps) as study:
        look_at(study, "show", "doctor", "best", "report", *OTHERS)


@pytest.mark.fault
@settings_of(30)
@given(MANY_STEPS)
def test_a_crafted_or_damaged_study_is_continued_or_refused_with_a_reason(whole: Path, steps: list[Step]) -> None:
    with changed_copy(whole, steps) as study:
        look_at(study, "show", "doctor", "best")
        with contextlib.suppress(HpsearchError):
            best = search(study.parent, 4, trainer={"save_strategy": "epoch"})
            assert sum(each.state.is_counted for each in best.run_summary.records) >= 1
        with contextlib.suppress(HpsearchError):
            small_trainer(study.parent, save_strategy="epoch").replay(study.name, progress=False)
        look_at(study, "show", "report", *OTHERS)
