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

import hpsearch
from hpsearch.any_trainer.trainer_function import TrainerFunction
from hpsearch.search.store.code_origin import name_of
from hpsearch.search.store.fingerprints import fingerprints, function_fingerprint, is_comparable

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
    exec(compile(textwrap.dedent(source), "user_code", "exec", dont_inherit=True), names)
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
    written = {"problem_type": "regression", "architectures": ["Mine"], "use_cache": False, "pad_token_id": 3}
    for name, value in written.items():
        assert before == function_fingerprint(init_with(hidden_size=8, **{name: value}))
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


CONSTANTS = """
import argparse, collections, dataclasses, functools, pathlib, re
import numpy, torch

WEIGHTS = {"f1": VALUE}

class Config:
    def __init__(self, hidden, unread=0):
        self.hidden, self.unread, self.models = hidden, unread, []

    def model_init(self, trial):
        return self.hidden

class Holder:
    def __init__(self, hidden):
        self.kept = hidden
    def __call__(self, trial):
        return self.kept

class Slots:
    __slots__ = ("hidden",)
    def __init__(self, hidden):
        self.hidden = hidden

@dataclasses.dataclass
class Record:
    hidden: int = 8
    unread: int = 0
    def build(self, trial):
        return self.hidden

class Lazy:
    @functools.cached_property
    def hidden(self):
        return VALUE

def read(config):
    return config.hidden

def read_all(**values):
    return values

def closure(config):
    return lambda trial: config.hidden

@torch.no_grad()
def decorated(x):
    return x + WEIGHTS["f1"]
"""
ARRAY, PATTERN, PATH, NAMESPACE, RECORD = (
    *("numpy.array([1.0, VALUE])", "re.compile(f'a{VALUE}')", "pathlib.Path(str(VALUE))"),
    *("argparse.Namespace(hidden=VALUE)", "Record(VALUE)"),
)


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    out = {}\n    out['s'] = WEIGHTS['f1'] * x\n    return out",
        "def f(x):\n    out = dict(WEIGHTS)\n    out.pop('f1')\n    out.update(WEIGHTS)\n    return out",
        "def f(x):\n    out = []\n    for each in WEIGHTS.values():\n        out.append(each)\n    return out",
        "def f(x, weights=WEIGHTS):\n    x['a'] = weights\n    return x",
        "f = Config(VALUE).model_init",
        "f = closure(Config(VALUE))",
        "f = closure(Slots(VALUE))",
        "f = Holder(VALUE)",
        "f = Record(VALUE).build",
        f"CONFIG = {RECORD}\ndef f(x): return read(CONFIG)",
        f"CONFIG = {RECORD}\ndef f(x): return read_all(**vars(CONFIG))",
        f"CONFIG = {NAMESPACE}\ndef f(x): return read(CONFIG)",
        f"CONFIG = {NAMESPACE}\ndef f(x): return getattr(CONFIG, 'hidden')",
        f"W = {ARRAY}\ndef f(x): return x * W",
        "W = torch.tensor([1.0, VALUE])\ndef f(x): return torch.nn.CrossEntropyLoss(weight=W)",
        "W = torch.tensor([1.0, VALUE], dtype=torch.bfloat16)\ndef f(x): return x * W",
        "W = torch.zeros(2, int(VALUE))\ndef f(x): return x * W",
        "W = numpy.float32(VALUE)\ndef f(x): return x * W",
        "KIND = torch.float32 if VALUE == 2 else torch.bfloat16\ndef f(x): return x.to(KIND)",
        "KIND = numpy.dtype('int8' if VALUE == 2 else 'int16')\ndef f(x): return x.to(KIND)",
        f"P = {PATH}\ndef f(x): return P",
        f"P = {PATTERN}\ndef f(x): return P.match(x)",
        "R = range(int(VALUE))\ndef f(x): return x in R",
        "f = closure(Lazy())",
        "f = decorated",
        "\n".join(["def f0(x): return VALUE", *(f"def f{n}(x): return f{n - 1}(x)" for n in range(1, 21)), "f = f20"]),
    ],
)
def test_an_edit_of_a_constant_is_seen(source: str) -> None:
    two, again, three = (of(f"{CONSTANTS}\n{source}".replace("VALUE", value)) for value in ("2", "2", "3"))
    assert two == again
    assert two != three


@pytest.mark.parametrize(
    "source",
    [
        "f = closure(Config(8, unread=VALUE))",
        "f = closure(Record(8, unread=VALUE))",
        "C = argparse.Namespace(hidden=8, unread=VALUE)\ndef f(x): return read(C)",
        "P = pathlib.Path('/tmp/VALUE')\ndef f(x): return P",
        "__file__ = 'VALUE.py'\ndef f(x): return pathlib.Path(__file__).parent",
        "W = torch.nn.Parameter(torch.tensor([1.0, VALUE]))\ndef f(x): return x * W",
        "W = numpy.array([object()])\ndef f(x): return x * W",
    ],
)
def test_what_is_not_read_is_trained_or_other_each_time_does_not_count(source: str) -> None:
    two, three = (of(f"{CONSTANTS.replace('VALUE', '1')}\n{source}".replace("VALUE", value)) for value in ("2", "3"))
    assert two == three


STATE = """
import functools, time
import numpy

class Model:
    made = 0
    models = []
    by_name = {}
    def __init__(self):
        Model.made += 1
        self.models.append(self)
        type(self).by_name["model"] = self
        self.hidden, self.calls, self.seen, self.total = 8, 0, [], numpy.zeros(2)
        self.began = time.time()
    def __call__(self, x):
        self.calls += 1
        self.seen.append(x)
        self.total += x
        return [self.hidden, self.began, self.lazy]
    @functools.cached_property
    def lazy(self):
        return 3

class Meter:
    def __init__(self):
        self.values = {}
        self.count = 0

def log(store, x):
    store.append(x)

class Setter:
    def __init__(self, value):
        self.set(a=value)
    def set(self, **values):
        for name, each in values.items():
            setattr(self, name, each)
    def __call__(self, x):
        return self.a

COUNT, SEEN, LAST, METER, NESTED, ARRAY = 0, [], None, Meter(), {"a": {"b": []}}, numpy.zeros(2)
GIVEN, SETTER, MODEL = [], Setter(1), Model()
"""


@pytest.mark.parametrize(
    "source",
    [
        "def f(x): return Model()",
        "f = MODEL",
        "f = MODEL.__call__",
        "def f(x):\n    global COUNT\n    COUNT += 1",
        "def f(x):\n    note(x)\n    return COUNT, LAST\n"
        "def note(x):\n    global COUNT, LAST\n    COUNT, LAST = COUNT + 1, x",
        "def f(x):\n    log(GIVEN, x)\n    return GIVEN",
        "def f(x):\n    METER.values['a'] = x\n    METER.count += 1\n    return METER.values, METER.count",
        "def f(x):\n    inner = NESTED['a']\n    inner['b'].append(x)\n    return NESTED",
        "def f(x):\n    for each in NESTED.values():\n        each.update(c=x)\n    return NESTED",
        "def f(x):\n    NESTED[x if x else 'no'] = 1\n    return NESTED",
        "def f(x):\n    NESTED['n'] = 0\n    NESTED['n'] += 1\n    return NESTED",
        "def f(x):\n    ARRAY[0] += 1\n    return ARRAY",
        "def f(x):\n    total = ARRAY\n    total += 1\n    return ARRAY",
        "def f(x, seen=[]):\n    seen.append(x)",
        "def f(x):\n    SETTER.set(a=SETTER(x) + 1)\n    return SETTER.a",
        "def made():\n    n, seen = 0, []\n    def note():\n        nonlocal n\n        n += 1\n        seen.append(n)"
        "\n    def f(x):\n        note()\n        return n, seen\n    return f\nf = made()",
    ],
)
def test_what_code_changes_while_it_runs_does_not_count(source: str) -> None:
    function = defined(f"{STATE}\n{source}")
    before = function_fingerprint(function)
    for _ in range(2):
        function(3)
        assert function_fingerprint(function) == before
    assert before is not None


def test_what_one_function_of_a_search_changes_is_no_constant_of_another() -> None:
    source = "N, SEEN = 0, []\ndef f(x): return N, SEEN\ndef g(x):\n    global N\n    N += 1\n    SEEN.append(x)\n"
    names: dict[str, Any] = {"__name__": "user_code"}
    exec(source, names)
    functions = {"f": names["f"], "g": names["g"]}
    before = fingerprints(functions)
    names["g"](3)
    assert fingerprints(functions) == before
    assert fingerprints({"f": names["f"]})["f"] != before["f"], "without it, they are constants"


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


KEPT = """
import argparse, dataclasses, logging, pathlib
import numpy

@dataclasses.dataclass
class Record:
    sizes: set = dataclasses.field(default_factory=lambda: {"a", "b", "c"})

class Holder:
    def __init__(self, hidden):
        self.hidden, self.log = hidden, logging.getLogger(__name__)
    def build(self, trial):
        self.log.info(__name__)
        return self.hidden, RECORD.sizes, WEIGHTS, pathlib.Path(__file__).parent / FOLDER, SETTINGS.rate

RECORD, WEIGHTS, FOLDER = Record(), numpy.arange(3.0), pathlib.Path("data")
SETTINGS = argparse.Namespace(rate=0.1)
f = (f, Holder(3).build, Holder(4))
"""


@pytest.mark.process
def test_a_script_a_module_a_cell_and_another_process_have_the_same(tmp_path: Path) -> None:
    shows = "from hpsearch.search.store.fingerprints import function_fingerprint\nprint(function_fingerprint(f))\n"
    (tmp_path / "one.py").write_text(f"{BASE}{KEPT}\nif __name__ == '__main__':\n{textwrap.indent(shows, '    ')}")
    cell = f"exec(compile(open('one.py').read(), '<ipython-input-3>', 'exec'))\n{shows}"
    commands = ([sys.executable, "one.py"], [sys.executable, "-c", f"from one import f\n{shows}"])
    run = functools.partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, check=True)
    root = str(Path(__file__).parents[2])
    said = [
        run(command, env={"PYTHONPATH": f"{root}:{tmp_path}", "PYTHONHASHSEED": seed}).stdout.split()[-1]
        for command, seed in zip((*commands, [sys.executable, "-c", cell]), "123", strict=True)
    ]
    assert said == [of(BASE + KEPT)] * 3


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


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("BestRun", "hpsearch.search.best_run"),
        ("FromPretrained", "hpsearch.pretrained"),
        ("Replay", "hpsearch.replay"),
        ("Report", "hpsearch.search.trial"),
        ("SearchPlan", "hpsearch.search_plan"),
        ("SearchSpace", "hpsearch.search.space"),
        ("SearchSummary", "hpsearch.search.best_run"),
        ("Seq2SeqTrainer", "hpsearch.seq2seq"),
        ("Trainer", "hpsearch.trainer"),
        ("TrainingArguments", "hpsearch.arguments"),
        ("Trial", "hpsearch.search.trial"),
        ("TrialRecord", "hpsearch.search.trial"),
        ("TrialState", "hpsearch.search.trial"),
        ("open_study", "hpsearch.stored_studies"),
        ("promote", "hpsearch.search.promotion"),
        ("tune", "hpsearch.trainer_function"),
    ],
)
def test_studies_record_public_names_as_in_0_8_0_wherever_they_are_now(name: str, module: str) -> None:
    assert name_of(getattr(hpsearch, name)) == f"{module}.{name}"


def test_a_search_of_a_function_that_suggests_records_its_space_as_0_8_0_did() -> None:
    space = TrainerFunction(lambda trial: None).space_or_default(None)  # type: ignore[arg-type,return-value]
    assert callable(space)
    assert name_of(space) == "hpsearch.trainer_function._left_to_make_trainer"
