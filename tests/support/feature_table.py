"""The last column of docs/feature-table.md, made from the tests that carry ``@pytest.mark.feature(58)``.

python -m tests.support.feature_table
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "feature-table.md"
_ROW = re.compile(r"\| (P?\d+) \|.*\|$")


def is_row(line: str) -> bool:
    """Tell whether a line of the page is a row of one of its tables."""
    return _ROW.fullmatch(line) is not None


def shown_by() -> dict[str, list[str]]:
    """Return the tests that show each row, by its number, as ``path::class::name``."""
    found = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        for name, function in _tests_in(module):
            for number in _rows_of(function):
                found[number].append(f"{path.relative_to(ROOT).as_posix()}::{name}")
    return dict(found)


def with_tests(page: str, tests: dict[str, list[str]]) -> str:
    """Return the page with the tests of each row in its last column; a row that no test shows has none."""
    lines = []
    for line in page.splitlines():
        row = _ROW.fullmatch(line)
        if row is not None:
            before = line.rstrip("|").rpartition("|")[0]
            line = f"{before}| {'<br>'.join(f'`{test}`' for test in tests.get(row[1], []))} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _tests_in(module: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for statement in module.body:
        if isinstance(statement, ast.FunctionDef):
            yield statement.name, statement
        elif isinstance(statement, ast.ClassDef):
            for inner in statement.body:
                if isinstance(inner, ast.FunctionDef):
                    yield f"{statement.name}::{inner.name}", inner


def _rows_of(function: ast.FunctionDef) -> list[str]:
    calls = [each for each in function.decorator_list if isinstance(each, ast.Call)]
    marks = [call for call in calls if ast.unparse(call.func) == "pytest.mark.feature"]
    return [str(ast.literal_eval(argument)) for mark in marks for argument in mark.args]


if __name__ == "__main__":
    PAGE.write_text(with_tests(PAGE.read_text(encoding="utf-8"), shown_by()), encoding="utf-8")
