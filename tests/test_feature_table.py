"""The page docs/feature-table.md is whole, its places exist, and its last column is made from the tests."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.support.feature_table import PAGE, is_row, shown_by, with_tests

ROOT = Path(__file__).parents[1]
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

    @property
    def places(self) -> list[str]:
        return re.split(r",\s*", self.where)


def read_rows() -> list[Row]:
    """Read the tables; a `|` inside a cell would make it two, which no line may have."""
    rows = []
    for line in filter(is_row, PAGE.read_text(encoding="utf-8").splitlines()):
        number, text, *rest, _tests = [each.strip() for each in line.strip().strip("|").split("|")]
        category, where = rest if len(rest) == 2 else ("", *rest)
        rows.append(Row(number, text, category, where))
    return rows


ROWS = read_rows()
FEATURES = [row for row in ROWS if not row.number.startswith("P")]


def test_every_row_is_there_once_and_in_its_order() -> None:
    expected = [str(number) for number in range(1, sum(CATEGORIES.values()) + 1)]
    assert [row.number for row in ROWS] == [*expected, *(f"P{number}" for number in range(1, CONTRADICTIONS + 1))]


def test_every_category_has_as_many_rows_as_it_should() -> None:
    assert Counter(row.category for row in FEATURES) == CATEGORIES


def test_no_row_is_merely_planned() -> None:
    assert [row.number for row in ROWS if "planned" in f"{row.text} {row.where}".lower()] == []


def test_every_row_is_shown_by_a_test_and_no_test_shows_a_row_that_does_not_exist() -> None:
    assert set(shown_by()) == {row.number for row in ROWS}


def test_the_page_names_the_tests_that_carry_the_marks() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_tests(page, shown_by()), "run python -m tests.support.feature_table"


def test_every_place_that_a_row_names_exists() -> None:
    for row in FEATURES:
        for place in row.places:
            if place.startswith("`"):
                assert (ROOT / place.strip("`")).exists(), (row.number, place)
            else:
                assert place in LIBRARIES, (row.number, place)


def test_every_row_of_a_library_names_it_and_every_older_spelling_its_successor() -> None:
    for row in FEATURES:
        if row.category == "REUSE":
            assert LIBRARIES.intersection(row.places), row.number
        if row.category == "LEGACY":
            assert "→" in row.text, row.number
            assert "`hpsearch/arguments/older_spellings.py`" in row.places, row.number


def test_a_row_without_tests_and_a_stale_name_are_seen() -> None:
    page = "| 7 | text | CORE | `place` | `tests/old.py::test_gone` |\n| P2 | text | choice | |\ntext\n"
    made = with_tests(page, {"7": ["tests/a.py::test_b", "tests/a.py::C::test_d"]})
    assert made.splitlines() == [
        "| 7 | text | CORE | `place` | `tests/a.py::test_b`<br>`tests/a.py::C::test_d` |",
        "| P2 | text | choice |  |",
        "text",
    ]
