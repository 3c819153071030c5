"""JSON on stdout, for programs: docs/json.md describes what each command prints."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ..system.files import finite

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def print_json(value: Any) -> None:
    """Print a value as JSON; numbers that JSON does not have, such as NaN, become null."""
    print(json.dumps(finite(value), indent=2, allow_nan=False, default=str))
