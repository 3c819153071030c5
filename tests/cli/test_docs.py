"""The page about the command line names all of it."""

from __future__ import annotations

from pathlib import Path

from hpsearch.cli.main import app

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")


def test_the_page_names_every_command() -> None:
    for each in app.registered_commands:
        assert each.callback is not None
        assert f"hpsearch {each.callback.__name__}" in PAGE
