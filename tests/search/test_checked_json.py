"""What `trial.json` and `study.json` may hold: a value that no search writes is refused."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from hpsearch.search.store.checked_json import Unreadable, printable
from hpsearch.search.store.read_study import _checked_settings
from hpsearch.search.store.stored_record import record_from_json
from hpsearch.search.wording import format_value
from tests.support.stored_studies_0_8_0 import STORED

STUDY = STORED / "sqlite_with_rungs"
RECORD = json.loads((STUDY / "run-1" / "trial.json").read_text())
SETTINGS = json.loads((STUDY / "study.json").read_text())


def changed(values: Any, path: str, value: Any) -> Any:
    """Return a copy with another value at a path such as ``reports.0.step``."""
    values = copy.deepcopy(values)
    *parents, last = (int(each) if each.isdecimal() else each for each in path.split("/"))
    inner = values
    for each in parents:
        inner = inner[each]
    inner[last] = value
    return values


def test_every_record_of_0_8_0_is_read_as_it_was_written() -> None:
    files = sorted(STORED.glob("*/*/trial.json"))
    assert len(files) > 10
    for file in files:
        written = json.loads(file.read_text())
        assert record_from_json(written, file.parent).to_json() == written


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((path, value) for path in ("number", "reports/0/step", "session") for value in (-1, 1.5, "1", True, 10**30)),
        *(("name", value) for value in ("../../x", "/etc", "a/b", "..", "", None, 3, "run\x1b[2J")),
        *(("checkpoint", value) for value in ("../../secret", "/etc", "checkpoint-8/..", "secret", ".", 3, [])),
        *(("state", value) for value in ("running away", None, [], 3)),
        *(("params", value) for value in (None, [], "x", {".": 1}, {"": 1}, {"model.": 1}, {"x": 10**30})),
        *(("values", value) for value in (None, 0.1, [None], ["0.1"], [0.1, 0.2])),
        *(("reports", value) for value in (None, {}, [3], [{}])),
        *(("reports/0/values", value) for value in ([], [True], [0.1, 0.2])),
        *(("reports/0/metrics", value) for value in ({"parameters": "many"}, [])),
        *((path, value) for path in ("seconds", "epochs") for value in (None, -1, math.nan, math.inf, 1e300, "1")),
        *(("spans", value) for value in ([3], [[1]], [[1, 2, 3]], [[1, 1e15, "here"]])),
        *((path, 3) for path in ("reason", "traceback", "schedule", "fallbacks", "violations")),
        ("schedule", [{"trial": 0}]),
        *(
            ("fallbacks", [{"arguments": value}])
            for value in ({"output_dir": "/x"}, {"gradient_accumulation_steps": 0})
        ),
        ("another field", 1),
    ],
)
def test_what_no_search_writes_into_a_record_is_refused(path: str, value: Any) -> None:
    with pytest.raises(Unreadable):
        record_from_json(changed(RECORD, path, value), STUDY / "run-1")


@pytest.mark.parametrize("name", ["number", "name", "state", "params"])
def test_a_record_without_a_field_that_it_must_have_is_refused(name: str) -> None:
    with pytest.raises(Unreadable, match=name):
        record_from_json({key: value for key, value in RECORD.items() if key != name}, STUDY / "run-1")


@pytest.mark.parametrize("value", [3, None, [], "x", True])
def test_what_is_no_object_is_refused(value: Any) -> None:
    with pytest.raises(Unreadable, match="must be an object"):
        record_from_json(value, STUDY / "run-1")
    with pytest.raises(Unreadable, match="must be an object"):
        _checked_settings(value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *(("study_name", value) for value in ("../x", None, 3)),
        *(("objective", value) for value in (None, 3, [], ["a", "b"], [3])),
        *(("direction", value) for value in ("up", None, ["minimize"])),
        *(("constraints", value) for value in (None, "x", [3], ["x"], ["x <= y"], [" <= 3"])),
        *(("scope", value) for value in ("best", None, [])),
        *(("n_trials", value) for value in (0, -1, 1.5, "3")),
        *(("space", value) for value in (None, [], "x", {"x": 3}, {"x": {"kind": "Float"}}, {"x": {"kind": []}})),
        ("space", {"x": {"kind": "Categorical", "choices": [1], "branches": [{"choice": [], "parameters": {}}]}}),
        *(("sessions", value) for value in (None, {}, [3], [{"arguments": 3}], [])),
        *(("session", value) for value in (1, -1, None)),
        ("storage", 3),
    ],
)
def test_what_no_search_writes_into_the_settings_is_refused(path: str, value: Any) -> None:
    with pytest.raises(Unreadable):
        _checked_settings(changed(SETTINGS, path, value))


def test_texts_are_printable_wherever_they_are() -> None:
    dirty = "\x1b]0;title\x07\x1b[2J \u202e\x9b1m\r\ud800"
    record = changed(changed(RECORD, "reason", dirty), "params", {dirty: "adamw"})
    read = record_from_json(record, Path("run-1"))
    settings = _checked_settings(changed(SETTINGS, "objective", dirty))
    for text in (read.reason, *read.params, settings["objective"]):
        assert text == "\\x1b]0;title\\x07\\x1b[2J \\u202e\\x9b1m\\r\\ud800"
    assert printable("a\tb\nc äöü 漢字 👩‍🔬") == "a\tb\nc äöü 漢字 👩‍🔬"


def test_values_of_parameters_are_kept_as_they_are_and_printable_where_they_are_shown() -> None:
    values = {"model.sep": "a\r\nb", "lora.targets": ["q\x1b", {"c\rd": 1}]}
    record = RECORD
    for name in ("params", "arguments", "hyperparameters"):
        record = changed(record, name, values)
    record = changed(record, "schedule", [{"trial": 0, "step": 1, "arguments": values}])
    read = record_from_json(record, Path("run-1"))
    assert [read.params, read.arguments, read.hyperparameters, read.schedule[0]["arguments"]] == [values] * 4
    assert format_value("a\r\x1b[2J") == "a\\r\\x1b[2J"
