"""A search that waits for the last trial of another one ends with that trial in all that it shows."""

from __future__ import annotations

import threading
from pathlib import Path

from hpsearch.reports.line_view import LineView
from tests.support.rendering import text_console
from tests.support.searching import AtStep
from tests.support.small_search import search

SECONDS = 60


class ReleasesPeer(LineView):
    """Lets the trial of the other search end once this one waits for it."""

    def __init__(self, released: threading.Event) -> None:
        console, self.printed = text_console(width=200)
        super().__init__(console)
        self._released = released

    def on_notice(self, notice: str) -> None:
        super().on_notice(notice)
        if "waiting for those of other searches" in notice:
            self._released.set()


def test_the_last_lines_count_the_trial_of_another_search_that_was_awaited(tmp_path: Path) -> None:
    begun, released = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        released.wait(SECONDS)

    peer = threading.Thread(target=search, args=(tmp_path, 3, AtStep(hold, run=0, step=1)))
    peer.start()
    try:
        assert begun.wait(SECONDS)
        view = ReleasesPeer(released)
        best = search(tmp_path, 3, progress=view)
    finally:
        released.set()
        peer.join()

    shown = view.printed.getvalue()
    assert len(best.run_summary.records) == 3
    assert "trial 0 complete" not in shown
    assert "\n3 trials: 3 complete." in shown
    assert view.state.best.result.number == best.run_summary.best()[0].number
