"""The title and the note that a report was made with, read from its page: a report that is made again keeps them."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import NamedTuple

STUDY, TITLE, NOTE = "hpsearch-study", "hpsearch-title", "hpsearch-note"
# They are at the beginning of the page.
_CHARACTERS = 1_000_000


class Heading(NamedTuple):
    """What a user has written above a report; None: nothing."""

    title: str | None = None
    note: str | None = None


def label_of(study: Path) -> str:
    """Return what a report knows its study by: the last two names of its folder, as most studies have the same one."""
    return "/".join(study.resolve().parts[-2:])


def earlier_heading(file: Path, study: Path) -> Heading:
    """Return the title and the note of a report of the study in a folder; none of another file, which may be any.

    A link is not followed.
    """
    if file.is_symlink() or not file.is_file():
        return Heading()
    with file.open(encoding="utf-8", errors="replace", newline="") as page:
        head = page.read(_CHARACTERS)
    if _content(head, STUDY) != label_of(study):
        return Heading()
    return Heading(_content(head, TITLE), _content(head, NOTE))


def _content(head: str, name: str) -> str | None:
    found = re.search(rf'^<meta name="{name}" content="([^"]*)">$', head, re.MULTILINE)
    return None if found is None else html.unescape(found[1])
