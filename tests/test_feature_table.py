"""The page docs/feature-table.md is whole, and what it names exists: files, and tests that pytest would find."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "feature-table.md"
CATEGORIES = {"CORE": 102, "REUSE": 21, "LEGACY": 12, "HUB": 3}
CONTRADICTIONS = 18
LIBRARIES = {"accelerate", "datasets", "evaluate", "huggingface_hub", "transformers"}


@dataclass(frozen=True)
class Row:
    """One line of a table: a feature (with category and place) or a contradiction (with the choice)."""

    number: str
    text: str
    category: str
    where: str
    shown_by: str

    @property
    def places(self) -> list[str]:
        return re.split(r",\s*", self.where)

    @property
    def tests(self) -> list[str]:
        return [each.strip().strip("`") for each in self.shown_by.split("<br>")]


def read_rows() -> list[Row]:
    """Read the tables; a `|` inside a cell would make it two, which no line may have."""
    rows = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [each.strip() for each in line.strip().strip("|").split("|")]
        if not line.startswith("|") or not re.fullmatch(r"P?\d+", cells[0]):
            continue
        number, text, *rest = cells
        category, where, shown_by = rest if len(rest) == 3 else ("", *rest)
        rows.append(Row(number, text, category, where, shown_by))
    return rows


ROWS = read_rows()
FEATURES = [row for row in ROWS if not row.number.startswith("P")]


@functools.cache
def syntax_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def functions_in(body: list[ast.stmt]) -> set[str]:
    return {each.name for each in body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}


def methods_of(class_name: str, file: Path) -> set[str]:
    """Names of the methods of a class, those of its base classes in this repository included."""
    module = syntax_of(file)
    for statement in module.body:
        if isinstance(statement, ast.ClassDef) and statement.name == class_name:
            bases = [base.id for base in statement.bases if isinstance(base, ast.Name)]
            return functions_in(statement.body).union(*(methods_of(base, file) for base in bases))
        if isinstance(statement, ast.ImportFrom) and class_name in {each.name for each in statement.names}:
            source = ROOT / f"{(statement.module or '').replace('.', '/')}.py"
            return methods_of(class_name, source) if source.is_file() else set()
    return set()


def exists(test: str) -> bool:
    """Tell whether pytest would find a test by this name; the values of its parameters may be left out."""
    path, *inside = test.split("[")[0].split("::")
    file = ROOT / path
    if not (path.startswith("tests/") and file.name.startswith("test_") and file.is_file()):
        return False
    if len(inside) == 1:
        return inside[0].startswith("test_") and inside[0] in functions_in(syntax_of(file).body)
    return len(inside) == 2 and inside[1].startswith("test_") and inside[1] in methods_of(inside[0], file)


def test_every_row_is_there_once_and_in_its_order() -> None:
    expected = [str(number) for number in range(1, sum(CATEGORIES.values()) + 1)]
    assert [row.number for row in ROWS] == [*expected, *(f"P{number}" for number in range(1, CONTRADICTIONS + 1))]


def test_every_category_has_as_many_rows_as_it_should() -> None:
    assert Counter(row.category for row in FEATURES) == CATEGORIES


def test_no_row_is_merely_planned() -> None:
    assert [row.number for row in ROWS if "planned" in f"{row.text} {row.where} {row.shown_by}".lower()] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number)
def test_every_test_that_a_row_names_exists(row: Row) -> None:
    assert [test for test in row.tests if not exists(test)] == []
    assert len(set(row.tests)) == len(row.tests)


@pytest.mark.parametrize("row", FEATURES, ids=lambda row: row.number)
def test_every_place_that_a_row_names_exists(row: Row) -> None:
    for place in row.places:
        if place.startswith("`"):
            assert (ROOT / place.strip("`")).exists(), place
        else:
            assert place in LIBRARIES


def test_every_row_of_a_library_names_it_and_every_older_spelling_its_successor() -> None:
    for row in FEATURES:
        if row.category == "REUSE":
            assert LIBRARIES.intersection(row.places), row.number
        if row.category == "LEGACY":
            assert "→" in row.text, row.number
            assert "`hpsearch/older_spellings.py`" in row.places, row.number


@pytest.mark.parametrize(
    "name",
    [
        "tests/test_feature_table.py::test_that_is_not_there",
        "tests/test_nowhere.py::test_every_row_is_there_once_and_in_its_order",
        "tests/test_feature_table.py::exists",
        "tests/test_feature_table.py::Row::tests",
        "tests/backends/test_optuna_backend.py::TestOptuna::test_that_is_not_there",
        "tests/backends/contract.py::BackendContract::test_the_best_run_tells_what_won",
        "tests/test_feature_table.py",
        "",
    ],
)
def test_a_name_that_pytest_would_not_find_does_not_pass_for_a_test(name: str) -> None:
    assert not exists(name)


@pytest.mark.parametrize(
    "name",
    [
        "tests/test_feature_table.py::test_every_row_is_there_once_and_in_its_order",
        "tests/test_feature_table.py::test_every_test_that_a_row_names_exists[5]",
        "tests/backends/test_optuna_backend.py::TestOptuna::test_the_best_run_tells_what_won",
    ],
)
def test_a_function_a_method_and_an_inherited_method_are_found(name: str) -> None:
    assert exists(name)
