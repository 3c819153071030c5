"""The live view of a search in a notebook: one output of the cell, written again and again; no widgets."""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from ..search.study import Study
from ..search.trial import TrialRecord
from .console import LiveView

_WIDTH, _HEIGHT, _LINES = 110, 40, 12
_SECONDS_BETWEEN = 0.5
_FORMAT = '<pre style="white-space: pre; overflow-x: auto; line-height: 1.3">{code}</pre>'


class NotebookView(LiveView):
    """The live view in the output of a notebook cell: the decisions, the latest trials, and those that run."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO(), width=_WIDTH, height=_HEIGHT, force_jupyter=False))
        self._decided: list[Text] = []
        self._latest: deque[Text] = deque(maxlen=_LINES)
        self._live: Any = _Output(self._whole)

    def on_first_call(self, news: str) -> None:
        """Print it in the cell: the output is opened later."""
        Console(force_jupyter=False).print(news, markup=False, highlight=False, soft_wrap=True)

    def on_search_prepare(self, study: Study) -> None:
        """Show nothing yet: the output is opened once, with the decisions."""

    def on_search_begin(self, study: Study, records: Sequence[TrialRecord], notes: Sequence[str]) -> None:
        """Show the decisions, and open the output."""
        self._decided.clear()
        self._latest.clear()
        super().on_search_begin(study, records, notes)
        self._decided = list(self._latest)
        self._latest.clear()

    def on_notice(self, notice: str) -> None:
        """Show it, also after the search: a test set is evaluated then."""
        super().on_notice(notice)
        self._live.write_if_over()

    def _print(self, line: str, style: str | None = None) -> None:
        self._latest.append(Text(line, style=style or ""))

    def _whole(self) -> RenderableType:
        return Group(*self._decided, *list(self._latest), self._render())


class _Output:
    """An output of a cell that shows something as it is at the moment, as `rich.live.Live` does in a terminal."""

    def __init__(self, render: Callable[[], RenderableType]) -> None:
        self._render = render
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._handle: Any = None

    def start(self) -> None:
        """Open an output in the cell that runs, and write it again from time to time."""
        from IPython.display import HTML, display

        self._is_over.clear()
        self._handle = display(HTML(self._html()), display_id=True)
        self._thread = threading.Thread(target=self._write_again, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write it for the last time."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._write()

    def write_if_over(self) -> None:
        """Write it once more, if it is not written from time to time any more."""
        if self._handle is not None and self._thread is None:
            self._write()

    def _write_again(self) -> None:
        while not self._is_over.wait(_SECONDS_BETWEEN):
            self._write()

    def _write(self) -> None:
        from IPython.display import HTML

        self._handle.update(HTML(self._html()))

    def _html(self) -> str:
        page = Console(file=io.StringIO(), width=_WIDTH, record=True, force_jupyter=False)
        page.print(self._render())
        return page.export_html(code_format=_FORMAT, inline_styles=True)
