"""Runs a page of the documentation: all its code, from top to bottom, as a program and a shell would.

    python -m tests.support.run_page docs/tutorial.md

A block of Python with a title that is a file's name is written to that file too; JSON, TOML and YAML are read. What
stands behind ``<!-- not run: why -->`` is left out.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import tomllib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hpsearch.cli.text_classification import TextClassification
from tests.support.given import given

SHOWN_ONLY = ("text", "")
_BLOCK = re.compile(r"^( *)```(\w*)([^\n]*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A piece of code of a page; `reason` says why it is not run, if it is not."""

    language: str
    title: str
    code: str
    line: int
    reason: str | None


def blocks(page: Path) -> list[Block]:
    """Return the code of a page."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        before = text[: match.start()]
        reason = re.search(r"<!-- not run: (.*?) -->\s*$", before)
        title = re.search(r'title="(.*?)"', match[3])
        code = textwrap.dedent(match[4])
        line = before.count("\n") + 1
        found.append(Block(match[2], title[1] if title else "", code, line, reason[1] if reason else None))
    return found


def run(page: Path, names: dict[str, object]) -> None:
    """Run the code of a page with these global names."""
    for block in blocks(page):
        if block.reason is not None:
            continue
        if block.title.endswith(".py") and " " not in block.title:
            Path(block.title).write_text(block.code)
        if block.language == "python":
            # As many empty lines before it as on the page, so that an error tells where it is.
            exec(compile("\n" * block.line + block.code, str(page), "exec"), names)
        elif block.language == "bash":
            subprocess.run(["bash", "-e", "-c", block.code], check=True)
        elif block.language == "json":
            json.loads(block.code)
        elif block.language == "toml":
            read_study(tomllib.loads(block.code))
        elif block.language == "yaml":
            yaml.safe_load(block.code)
        elif block.language not in SHOWN_ONLY:
            raise AssertionError(f"{page}:{block.line}: nobody knows how to run {block.language!r}")


def read_study(settings: dict[str, Any]) -> None:
    """Read the settings of a study file, or as many of them as a page shows, as `hpsearch run` does."""
    TextClassification(**{"model": "m", "data": "d", **settings}).plan()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    _page = Path(sys.argv[1])
    globals().update(given(_page.stem))
    run(_page, globals())
