"""The fingerprint of a function is another one after an edit that matters, and after no other, wherever it is."""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest
import transformers

from hpsearch.search.fingerprints import fingerprints, function_fingerprint, is_comparable

BASE = """
import functools

HIDDEN = 8
LAYERS = [1, 2]
seen = []

def scale(x):
    return 2 * x

class Net:
    size = 3
    def __init__(self, hidden):
        self.hidden = scale(hidden)

class Base:
    factor = 1

class Metric(Base):
    def __init__(self, name, top=1):
        self.name, self.top, self.calls = name, top, 0
    def __call__(self, x):
        self.calls += 1
        return {self.name: x}

def make(width):
    def model_init(trial):
        seen.append(trial)
        return Net(HIDDEN + width + len(LAYERS))
    return model_init

f = make(4)
"""


def defined(source: str, name: str = "f") -> Any:
    names: dict[str, Any] = {"__name__": "user_code"}
    exec(textwrap.dedent(source), names)
    return names[name]


def of(source: str) -> str:
    found = function_fingerprint(defined(source))
    assert found is not None
    return found


EDITS = {
    "constant of the body": ("return Net(HIDDEN + width", "return Net(HIDDEN - width"),
    "global": ("HIDDEN = 8", "HIDDEN = 16"),
    "global list": ("LAYERS = [1, 2]", "LAYERS = [1, 2, 3]"),
    "value it encloses": ("make(4)", "make(5)"),
    "class it makes": ("self.hidden = scale(hidden)", "self.hidden = scale(hidden + 1)"),
    "attribute of a class": ("size = 3", "size = 4"),
    "function of a function": ("return 2 * x", "return 3 * x"),
    "argument": ("def model_init(trial):", "def model_init(trial, depth=2):"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_what_a_function_does_or_uses_is_seen(edit: str) -> None:
    before, after = EDITS[edit]
    if edit == "global list":  # a function that appends somewhere may append to any list
        base = BASE.replace("seen.append(trial)", "pass")
        assert of(base) != of(base.replace(before, after))
    else:
        assert before in BASE
        assert of(BASE) != of(BASE.replace(before, after))


@pytest.mark.parametrize(
    "edited",
    [
        "\n\n# A comment\n" + BASE,
        BASE.replace("    def model_init(trial):\n", '    def model_init(trial):\n        """Say what it is."""\n'),
        BASE.replace("def scale(x):\n", 'def scale(x):\n    "Twice."\n\n'),
        BASE.replace("HIDDEN + width + len(LAYERS)", "\n            (HIDDEN + width) +\n  len(LAYERS)"),
        BASE.replace("class Net:\n", 'class Net:\n    """A model."""\n\n'),
        BASE + "\nunused = 3\ndef other(): return unused\n",
        BASE + "\nseen.append(4)\n",
    ],
    ids=[
        "comment",
        "docstring",
        "docstring of another",
        "formatting",
        "docstring of a class",
        "unrelated",
        "what it changes",
    ],
)
def test_an_edit_that_changes_nothing_is_not_seen(edited: str) -> None:
    assert of(BASE) == of(edited)


COUNTS = """
calls = 0
def f():
    global calls
    calls += 1
"""
MAKES_A_CLASS = """
def f():
    class Net:
        size = 3
    return Net
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (COUNTS, COUNTS.replace("calls = 0", "calls = 5")),
        (MAKES_A_CLASS, MAKES_A_CLASS.replace("class Net:", 'class Net:\n        "A model."')),
    ],
    ids=["a global that it assigns", "the docstring of a class in it"],
)
def test_what_a_function_assigns_and_docstrings_inside_it_do_not_count(before: str, after: str) -> None:
    assert before != after
    assert of(before) == of(after)


def test_of_the_configuration_of_a_model_what_transformers_writes_there_does_not_count() -> None:
    def init_with(**values: Any) -> Any:
        config = transformers.BertConfig(**values)
        return lambda trial: config

    before = function_fingerprint(init_with(hidden_size=8))
    assert before == function_fingerprint(init_with(hidden_size=8, problem_type="regression"))
    assert before != function_fingerprint(init_with(hidden_size=16))


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ("functools.partial(scale, 3)", "functools.partial(scale, 3)", True),
        ("functools.partial(scale, 3)", "functools.partial(scale, x=4)", False),
        ("functools.lru_cache(scale)", "functools.lru_cache(make)", False),
        ("Metric('a')", "Metric('a')", True),
        ("Metric('a')", "Metric('b')", False),
        ("Metric('a').__call__", "Metric('b').__call__", False),
        ("lambda x: x, lambda x: 2", "lambda x: x, lambda x: 3", False),
        ("lambda x: x in {'a', 'b', 'c'}", "lambda x: x in {'c', 'b', 'a'}", True),
        ("lambda x: x in {'a', 'b', 'c'}", "lambda x: x in {'a', 'b', 'd'}", False),
        ("(Net, {'lr': 1})", "(Net, {'lr': 2})", False),
        ("object()", "object()", True),
        ("lambda: threading", "lambda: threading", True),
        ("lambda x=1: x", "lambda x=2: x", False),
        ("lambda *, x=1: x", "lambda *, x=2: x", False),
        ("type('Sub', (Base,), {})", "type('Sub', (Net,), {})", False),
    ],
)
def test_objects_that_can_be_called_have_one_too(before: str, after: str, is_same: bool) -> None:
    first, second = (function_fingerprint(defined(f"{BASE}\nf = {each}\n")) for each in (before, after))
    assert first is not None
    assert (first == second) is is_same


def test_an_object_that_has_counted_its_calls_is_the_same() -> None:
    metric = defined(BASE, "Metric")("a")
    before = function_fingerprint(metric)
    metric(3)
    assert function_fingerprint(metric) == before


def test_of_settings_what_the_function_reads_counts() -> None:
    def reads(settings: Any) -> Any:
        return lambda trial: settings.hidden

    kinds = (argparse.Namespace, types.SimpleNamespace)
    for kind in kinds:
        one, same, other = (kind(hidden=hidden, n_trials=n) for hidden, n in ((1, 1), (1, 2), (2, 1)))
        assert function_fingerprint(reads(one)) == function_fingerprint(reads(same))
        assert function_fingerprint(reads(one)) != function_fingerprint(reads(other))


def test_functions_that_refer_to_themselves_and_to_each_other_have_one() -> None:
    source = "def f(n): return g(n - 1) if n else f\ndef g(n): return f(n)\n"
    assert of(source) == of(source)
    assert of(source) != of(source.replace("n - 1", "n - 2"))


def test_what_a_package_defines_counts_by_its_name() -> None:
    assert function_fingerprint(json.dumps) == "json.dumps"
    assert function_fingerprint(argparse.Namespace) == "argparse.Namespace"
    assert function_fingerprint(len) == "builtins.len"


class Unfriendly:
    @property
    def __wrapped__(self) -> Any:
        raise RuntimeError("not now")


def test_of_what_cannot_be_looked_at_there_is_none() -> None:
    assert fingerprints({"a": Unfriendly(), "b": None, "c": len}) == {"c": "builtins.len"}


def test_fingerprints_of_another_python_are_not_compared() -> None:
    assert not is_comparable("cpython-311:aa", "cpython-312:bb")
    assert is_comparable("cpython-311:aa", "cpython-311:bb")
    assert is_comparable("hpsearch.trainer.Trainer", "cpython-311:bb")


@pytest.mark.process
def test_a_script_a_module_a_cell_and_another_process_have_the_same(tmp_path: Path) -> None:
    shows = "from hpsearch.search.fingerprints import function_fingerprint\nprint(function_fingerprint(f))\n"
    (tmp_path / "one.py").write_text(f"{BASE}\nif __name__ == '__main__':\n{textwrap.indent(shows, '    ')}")
    cell = f"exec(compile(open('one.py').read(), '<ipython-input-3>', 'exec'))\n{shows}"
    commands = ([sys.executable, "one.py"], [sys.executable, "-c", f"from one import f\n{shows}"])
    run = functools.partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, check=True)
    root = str(Path(__file__).parents[2])
    said = [
        run(command, env={"PYTHONPATH": f"{root}:{tmp_path}", "PYTHONHASHSEED": seed}).stdout.split()[-1]
        for command, seed in zip((*commands, [sys.executable, "-c", cell]), "123", strict=True)
    ]
    assert said == [of(BASE)] * 3


IN_A_SET = """
def shared(x):
    return x + 1

class Base:
    def f(self):
        return shared(1)

class One(Base): pass
class Two(Base): pass
def three(x): return shared(x), KINDS
def four(x): return shared(x) - 1

KINDS = {One, Two, three, four}

def f(x):
    return [kind for kind in KINDS]
"""
IN_AN_ENUM = """
import enum

def double(x):
    return 2 * x

class Kind(enum.Enum):
    DOUBLE = (double,)

def f(x):
    return Kind.DOUBLE.value[0](x)
"""


@pytest.mark.parametrize(
    ("source", "edit"), [(IN_A_SET, ("x + 1", "x + 2")), (IN_AN_ENUM, ("2 * x", "3 * x"))], ids=["set", "enum"]
)
def test_where_things_lie_in_memory_makes_no_difference(source: str, edit: tuple[str, str]) -> None:
    kept = [defined(source) for _ in range(20)]
    assert {function_fingerprint(each) for each in kept} == {of(source)}
    assert of(source.replace(*edit)) != of(source)
