"""What users see: the public names, their documentation, the version, and an import that costs nothing."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import hpsearch

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hpsearch"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)
USED_BY_THE_MODULE_ITSELF = {"annotations", "importlib", "TYPE_CHECKING", "Any"}


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


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="'hpsearch' has no attribute 'Trainr'"):
        hpsearch.Trainr  # noqa: B018


def run_fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_hpsearch_loads_nothing_heavy() -> None:
    code = """
import sys
import hpsearch
dir(hpsearch)
heavy = "torch optuna transformers accelerate numpy sqlalchemy rich datasets pandas safetensors".split()
print([name for name in heavy if name in sys.modules])
"""
    assert run_fresh(code) == "[]"


def test_spaces_and_errors_load_neither_torch_nor_optuna() -> None:
    code = """
import sys
from hpsearch import Categorical, Float, Int, SearchSpace, SpaceError, Study, TrialRecord
SearchSpace({"x": Float(0, 1)})
print([name for name in ("torch", "optuna", "transformers") if name in sys.modules])
"""
    assert run_fresh(code) == "[]"


def test_a_search_on_optuna_begins_without_the_slow_import_of_scipy_stats() -> None:
    code = """
import sys
import hpsearch.backends.optuna_backend.backend
print("scipy.stats" in sys.modules)
"""
    assert run_fresh(code) == "False"


def test_a_star_import_gives_every_public_name() -> None:
    assert run_fresh("from hpsearch import *\nprint(Trainer.__name__, BestRun.__name__)") == "Trainer BestRun"


def documented(each: Any) -> bool:
    text = inspect.getdoc(each)
    return bool(text and text.strip()) and not text.startswith(f"{getattr(each, '__name__', '')}(")


@pytest.mark.parametrize("name", [name for name in hpsearch.__all__ if name != "__version__"])
def test_every_public_name_is_documented(name: str) -> None:
    each = getattr(hpsearch, name)
    assert documented(each), name
    if each.__module__.startswith("hpsearch") and inspect.isclass(each):
        assert each.__doc__
        undocumented = [
            member
            for member, value in vars(each).items()
            if not member.startswith("_")
            and isinstance(value, (types.FunctionType, property, classmethod, staticmethod))
            and not inspect.getdoc(getattr(each, member))
        ]
        assert undocumented == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text
    assert len(text.splitlines()[0]) <= 120


def test_the_version_is_that_of_the_package_and_of_the_first_entry_of_the_changelog() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^version = "([^"]+)"$', project, flags=re.MULTILINE)
    assert found is not None
    assert found.group(1) == hpsearch.__version__
    if not (ROOT / "CHANGELOG.md").exists():
        pytest.skip("there is no CHANGELOG.md yet")
    entries = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert entries
    assert entries[0] == hpsearch.__version__
