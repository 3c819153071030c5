"""The command line: `hpsearch run`, `show`, `best`, `report` and so on; each command is a file of its own."""

from __future__ import annotations

from .main import main

__all__ = ["main"]
