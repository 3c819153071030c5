"""Which view shows a search: live in a terminal and in a notebook, lines elsewhere."""

from __future__ import annotations

import os

from rich.console import Console

from ..search.listener import SearchListener
from .line_view import LineView, NewsView
from .live_view import LiveView


def console_listener(is_shown: bool, console: Console | None = None) -> SearchListener:
    """Return the listener that shows a search, silent if not `is_shown`.

    Live in a terminal and in a notebook, as lines elsewhere, and as few lines if the variable ``CI`` is set.
    """
    if not is_shown:
        return SearchListener()
    console = console or Console()
    if console.is_terminal:
        return LiveView(console)
    if console.is_jupyter:
        from .notebook import NotebookView

        return NotebookView()
    return NewsView(console) if os.environ.get("CI", "").lower() in ("1", "true") else LineView(console)
