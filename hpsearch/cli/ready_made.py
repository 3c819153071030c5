"""`hpsearch spaces` and `hpsearch objectives`: what is ready-made, with a line each."""

from __future__ import annotations

import ast
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text


def spaces() -> None:
    """List the ready-made search spaces: these, and those in a folder spaces/ here.

    \b
    hpsearch spaces
    """
    _list("spaces")


def objectives() -> None:
    """List the ready-made objectives: these, and those in a folder objectives/ here.

    \b
    hpsearch objectives
    """
    _list("objectives")


def _list(kind: str) -> None:
    grid = Table.grid(padding=(0, 2))
    for name, (file, line) in sorted(_found(kind).items()):
        grid.add_row(Text(name, style="bold"), Text(line), Text(str(file), style="dim"))
    Console(highlight=False).print(grid)


def _found(kind: str) -> dict[str, tuple[Path, str]]:
    """Return files by name, with the first line of what they say of themselves; those here come before ours."""
    package = Path(__file__).parents[1]
    found: dict[str, tuple[Path, str]] = {}
    for folder in (package.parent / kind, package / kind, Path(kind)):
        for file in sorted(folder.glob("[!_]*.py")):
            told = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
            found[file.stem] = (file, told.partition("\n")[0])
    return found
