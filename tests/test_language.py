"""The project speaks the field's language: some phrases of its former dialect do not come back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What to write instead: paused, resume, continue; selected; to completion; training runs; exhausted; the number of;
# cannot be promoted; parallel trials; changes; best so far; is given twice; resumed; exists already; their
# connection; is never read; returns whether.
DIALECT = re.compile(
    r"\b(goes on|go on|going on|went on|that waits?|waiting trials?|lets? stand|stands? for|trainings|used up|so many|"
    r"so often|hopeless|trials at once|what is other|in full(?!-| training)|ahead is|comes? twice|"
    r"gone on with|is there already|as if nothing|lost each other|nobody (?:reads|knows|needs)|tells whether)\b",
    re.IGNORECASE,
)


def prose() -> Iterator[Path]:
    """Yield the files that users and contributors read, but the history."""
    for folder in ("hpsearch", "spaces", "objectives", "studies", "docs"):
        yield from (ROOT / folder).rglob("*.py")
        yield from (ROOT / folder).rglob("*.md")
        yield from (ROOT / folder).rglob("*.jinja")
    yield from (ROOT / "README.md", ROOT / "CONTRIBUTING.md")


def test_no_page_docstring_or_message_has_a_phrase_of_the_dialect() -> None:
    found = []
    for path in prose():
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            following = lines[number].lstrip(' #"') if number < len(lines) else ""
            both = f"{line.rstrip()} {following}"
            found += [
                f"{path.relative_to(ROOT)}:{number}: {each.group()}"
                for each in DIALECT.finditer(both)
                if each.start() < len(line)
            ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "is_dialect"),
    [
        ("the study goes on", True),
        ("a trial that waits", True),
        ("trained in full", True),
        ("the objective 'f1' comes twice", True),
        ("ahead is 0.93 (trial 4)", True),
        ("a budget in full training runs", False),
        ("it continues; one that is waiting", False),
    ],
)
def test_what_is_found(text: str, is_dialect: bool) -> None:
    assert bool(DIALECT.search(text)) == is_dialect
