"""The layout is the architecture: imports go down only, and files are read in one sitting."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import hpsearch

ROOT = Path(__file__).parents[1]


@pytest.mark.process
def test_imports_go_down_only() -> None:
    pytest.importorskip("importlinter")
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", ["utils", "helpers", "manager", "engine", "misc"])
def test_no_room_has_a_name_that_says_nothing(name: str) -> None:
    assert list((ROOT / "hpsearch").rglob(f"{name}.py")) == []


def test_no_folder_is_named_like_an_engine() -> None:
    assert [path for path in (ROOT / "hpsearch").rglob("*") if path.is_dir() and path.name in ("optuna", "ray")] == []


def test_no_test_module_imports_another() -> None:
    found = []
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else [module or ""]
            found += [f"{path.name}: {name}" for name in names if name.rpartition(".")[2].startswith("test_")]
    assert found == []


def folders() -> list[Path]:
    return [path.parent for path in (ROOT / "hpsearch").rglob("__init__.py")]


def test_the_top_level_can_be_held_in_the_head() -> None:
    names = {
        path.stem for path in (ROOT / "hpsearch").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert len(names) <= 18, sorted(names)


def test_no_file_name_occurs_twice_and_no_folder_has_the_name_of_a_public_function() -> None:
    files = Counter(path.name for path in (ROOT / "hpsearch").rglob("*.py") if path.name != "__init__.py")
    assert [name for name, count in files.items() if count > 1] == []
    functions = {name for name in hpsearch.__all__ if inspect.isfunction(getattr(hpsearch, name))}
    assert [folder.name for folder in folders() if folder.name in functions] == []


def test_every_folder_of_the_package_is_in_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = set(settings["tool"]["setuptools"]["packages"])
    present = {".".join(each.parent.relative_to(ROOT).parts) for each in (ROOT / "hpsearch").rglob("__init__.py")}
    assert listed == present | {"hpsearch.spaces", "hpsearch.objectives"}


def test_every_folder_says_in_a_line_what_it_is() -> None:
    for folder in folders():
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
        assert text, folder
        assert text.splitlines()[0].endswith((".", ":")), folder
