"""`hpsearch spaces` and `hpsearch objectives`: what is ready-made, with a line each."""

from __future__ import annotations

import ast
import contextlib
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.text import Text

from .json_output import JsonOption, print_json


def spaces(as_json: JsonOption = False) -> None:
    """List the ready-made search spaces: these, and those in a folder spaces/ here.

    \b
    hpsearch spaces
    """
    _list("spaces", "from hpsearch.spaces.encoder import SPACE", as_json)


def objectives(as_json: JsonOption = False) -> None:
    """List the ready-made objectives: these, and those in a folder objectives/ here.

    \b
    hpsearch objectives
    """
    _list("objectives", "from hpsearch.objectives.weighted import weighted", as_json)


def _list(kind: str, how: str, as_json: bool) -> None:
    ours = find_spec(f"hpsearch.{kind}")
    shipped = None if ours is None else Path(str(ours.origin)).parent
    found = {} if shipped is None else _lines(shipped)
    own = _lines(Path(kind)) if Path(kind).is_dir() and Path(kind).resolve() != shipped else {}
    if as_json:
        print_json(
            [
                {"name": name, "description": line, "module": f"{kind if name in own else f'hpsearch.{kind}'}.{name}"}
                for name, line in {**found, **own}.items()
            ]
        )
        return
    console = Console(highlight=False)
    width = max(map(len, [*found, *own]), default=0)
    for name, line in {**found, **own}.items():
        console.print(Text(f"{name:<{width}}  ", style="bold") + Text(line, style="default not bold"), soft_wrap=True)
    console.print(how, style="dim", markup=False)
    if own:
        console.print(f"in the folder {kind} here: {', '.join(own)}", style="dim", markup=False, soft_wrap=True)


def _lines(folder: Path) -> dict[str, str]:
    """Return the files of a folder by name, with the first line of what each says of itself."""
    found = {}
    for file in sorted(folder.glob("[!_]*.py")):
        with contextlib.suppress(SyntaxError, UnicodeDecodeError):
            told = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
            found[file.stem] = told.partition("\n")[0]
    return found
