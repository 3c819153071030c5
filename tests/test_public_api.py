"""What users see: the public names, their documentation, the version, and an import that costs nothing."""

from __future__ import annotations

import ast
import doctest
import inspect
import pydoc
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec as autospecced

import pytest

import hpsearch

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hpsearch"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)
USED_BY_THE_MODULE_ITSELF = {"annotations", "importlib", "sys", "TYPE_CHECKING", "Any"}


def names_for_type_checkers() -> list[str]:
    """The names imported under `if TYPE_CHECKING:`, each re-exported as itself."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    names = []
    for block in tree.body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for statement in block.body:
                assert isinstance(statement, ast.ImportFrom), ast.unparse(statement)
                for alias in statement.names:
                    assert alias.asname == alias.name, f"{alias.name} is not re-exported as itself"
                    source = ".".join(["hpsearch", statement.module or ""])
                    assert getattr(sys.modules[source], alias.name) is getattr(hpsearch, alias.name)
                    names.append(alias.name)
    return names


def test_all_is_what_is_visible() -> None:
    for name in hpsearch.__all__:
        getattr(hpsearch, name)
    visible = {
        name
        for name in dir(hpsearch)
        if not name.startswith("_")
        and name not in USED_BY_THE_MODULE_ITSELF
        and not isinstance(getattr(hpsearch, name), types.ModuleType)
    }
    assert visible == set(hpsearch.__all__) - {"__version__"}
    assert len(hpsearch.__all__) == len(set(hpsearch.__all__))


def test_type_checkers_see_the_same_names_from_the_same_places() -> None:
    for name in hpsearch.__all__:
        getattr(hpsearch, name)
    names = names_for_type_checkers()
    assert set(names) == set(hpsearch.__all__) - {"__version__"}
    assert len(names) == len(set(names))


def test_every_error_is_public() -> None:
    from hpsearch import errors

    made = {name for name, each in vars(errors).items() if inspect.isclass(each) and each.__module__ == errors.__name__}
    assert made <= set(hpsearch.__all__)


WITHOUT_A_PLACE = {
    "Trainr": "'hpsearch' has no attribute 'Trainr'. Did you mean 'Trainer'?",
    "nothing_like_it": "'hpsearch' has no attribute 'nothing_like_it'.",
    "load_metric": "use evaluate.load",
    "AutoTokenizer": "from transformers import AutoTokenizer",
}


@pytest.mark.parametrize("name", WITHOUT_A_PLACE)
def test_a_name_that_is_not_there_says_why_as_an_attribute_and_in_an_import_statement(name: str) -> None:
    assert hasattr(hpsearch, name) is False
    assert getattr(hpsearch, name, None) is None
    with pytest.raises(AttributeError) as as_attribute:
        getattr(hpsearch, name)
    with pytest.raises(ImportError) as in_statement:
        exec(f"from hpsearch import {name}", {})
    assert str(as_attribute.value) == str(in_statement.value)
    assert WITHOUT_A_PLACE[name] in str(as_attribute.value)


@pytest.mark.parametrize("name", ["__wrapped__", "_private", "not.a.name", ""])
def test_names_that_no_one_could_have_meant_are_simply_not_there(name: str) -> None:
    assert hasattr(hpsearch, name) is False


def test_a_name_whose_package_is_not_installed_is_not_there_and_says_which_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(vars(hpsearch), "SearchPlan", raising=False)
    monkeypatch.setitem(sys.modules, "hpsearch.any_trainer.search_plan", None)
    assert hasattr(hpsearch, "SearchPlan") is False
    with pytest.raises(
        AttributeError, match=r"hpsearch\.SearchPlan cannot be imported: .*hpsearch\.any_trainer\.search_plan"
    ) as caught:
        hpsearch.SearchPlan  # noqa: B018
    assert isinstance(caught.value.__cause__, ImportError)
    with pytest.raises(
        ImportError, match=r"hpsearch\.SearchPlan cannot be imported: .*hpsearch\.any_trainer\.search_plan"
    ):
        exec("from hpsearch import SearchPlan", {})
    assert "SearchPlan" not in dict(inspect.getmembers(hpsearch))
    assert "Trainer" in dict(inspect.getmembers(hpsearch))


def test_a_submodule_is_imported_by_a_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(hpsearch, "version")
    monkeypatch.delitem(sys.modules, "hpsearch.version")
    given: dict[str, Any] = {}
    exec("from hpsearch import version", given)
    assert given["version"].__version__ == hpsearch.__version__


def test_tools_that_look_at_modules_see_every_public_name() -> None:
    members = dict(inspect.getmembers(hpsearch))
    assert members.keys() >= set(hpsearch.__all__)
    assert "hpsearch" in [each.name for each in doctest.DocTestFinder().find(hpsearch, module=hpsearch)]
    assert autospecced(hpsearch).Trainer.train is not hpsearch.Trainer.train
    assert pydoc.render_doc(hpsearch.Float).startswith("Python Library Documentation")
    shown: dict[str, Any] = {}
    exec("from hpsearch import *", shown)
    assert shown.keys() >= set(hpsearch.__all__)


FRESH = """
import sys
import hpsearch

dir(hpsearch)
heavy = "torch optuna transformers accelerate numpy sqlalchemy rich datasets pandas safetensors".split()
print([name for name in heavy if name in sys.modules])

from hpsearch import Categorical, Float, Int, SearchSpace, SpaceError, Study, TrialRecord

SearchSpace({"x": Float(0, 1)})
print([name for name in ("torch", "optuna", "transformers") if name in sys.modules])
"""
FRESH_AND_WHOLE = """
import sys
from hpsearch import *

print(Trainer.__name__, BestRun.__name__)
import hpsearch.backends.optuna_backend

print("scipy.stats" in sys.modules)
"""


def run_fresh(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.process
@pytest.mark.smoke
def test_importing_hpsearch_loads_nothing_heavy_and_spaces_and_errors_neither_torch_nor_optuna() -> None:
    assert run_fresh(FRESH) == ["[]", "[]"]


@pytest.mark.process
def test_a_star_import_gives_every_public_name_and_a_search_begins_without_the_slow_import_of_scipy_stats() -> None:
    assert run_fresh(FRESH_AND_WHOLE) == ["Trainer BestRun", "False"]


def documented(each: Any) -> bool:
    text = inspect.getdoc(each)
    return bool(text and text.strip()) and not text.startswith(f"{getattr(each, '__name__', '')}(")


def undocumented_members(each: type) -> list[str]:
    return [
        name
        for name, value in vars(each).items()
        if not name.startswith("_")
        and isinstance(value, (types.FunctionType, property, classmethod, staticmethod))
        and not inspect.getdoc(getattr(each, name))
    ]


def test_every_public_name_and_its_members_are_documented() -> None:
    public = {name: getattr(hpsearch, name) for name in hpsearch.__all__ if name != "__version__"}
    assert [name for name, each in public.items() if not documented(each)] == []
    classes = [each for each in public.values() if inspect.isclass(each) and each.__module__.startswith("hpsearch")]
    assert len(classes) > 20
    assert [each for each in classes if not each.__doc__] == []
    assert {each: members for each in classes if (members := undocumented_members(each))} == {}


def test_every_module_says_in_a_line_what_it_is_for() -> None:
    texts = {path: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) for path in MODULES}
    assert len(texts) > 100
    assert [path for path, text in texts.items() if not text or len(text.splitlines()[0]) > 120] == []


def test_the_version_is_that_of_the_package_and_of_the_first_entry_of_the_changelog() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^version = "([^"]+)"$', project, flags=re.MULTILINE)
    assert found is not None
    assert found.group(1) == hpsearch.__version__
    if not (ROOT / "CHANGELOG.md").exists():
        pytest.skip("there is no CHANGELOG.md yet")
    entries = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert next(each for each in entries if each != "Unreleased") == hpsearch.__version__
