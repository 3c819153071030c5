"""What a trial in another process says reaches the search, and its answers are obeyed."""

from __future__ import annotations

from typing import Any

import pytest

from hpsearch import Report
from hpsearch.search.trial import Verdict
from hpsearch.system.interruption import Interruption
from hpsearch.trial.messages import Noted, Notice, Reported, Saved
from hpsearch.trial.remote_trial import Line, RemoteReporter
from tests.support.at_rungs import running

REPORT = Report((0.5,), 1, 3, 1.0, {"eval_loss": 0.5}, horizon=6.0)
SO_FAR = running(0, 0.5)


def reported(is_last: bool = False) -> Reported:
    return Reported(REPORT, ((0.7, 1), (0.5, 2)), is_comparable=True, is_last=is_last, so_far=SO_FAR)


class Recorded(Line):
    """A line that notes what is sent, and answers a report with a verdict."""

    def __init__(self, verdict: Verdict | None = None) -> None:
        self.verdict, self.said, self.interruption = verdict or Verdict(), list[Any](), Interruption()

    def ask(self, message: Any) -> Any:
        self.said.append(message)
        return self.verdict if isinstance(message, Reported) else None

    def look(self) -> None:
        self.said.append((self.step, self.max_steps))

    def keep(self) -> None:
        self.said.append("kept")


def test_from_elsewhere_everything_is_sent_and_progress_is_only_looked_at() -> None:
    line = Recorded()
    reporter = RemoteReporter(line)
    reporter.progress(3, 6)
    reporter.note(SO_FAR)
    reporter.notice("a word")
    reporter.checkpoint(3)
    assert line.said == [(3, 6), Noted(SO_FAR), Notice("a word"), "kept"]


@pytest.mark.parametrize(
    ("verdict", "is_last", "obeyed"),
    [
        (Verdict(prune=True), False, Verdict(prune=True)),
        (Verdict(prune=True), True, Verdict()),
        (Verdict(pause=True), True, Verdict()),
        (Verdict(stop="over"), True, Verdict(stop="over")),
    ],
)
def test_a_trial_at_its_end_is_neither_pruned_nor_paused(verdict: Verdict, is_last: bool, obeyed: Verdict) -> None:
    assert RemoteReporter(Recorded(verdict)).report(reported(is_last)) == obeyed


def test_the_search_waits_for_one_checkpoint_that_it_wants() -> None:
    line = Recorded(Verdict(save=True))
    reporter = RemoteReporter(line)
    reporter.checkpoint(2)
    assert reporter.report(reported()).save
    reporter.checkpoint(3)
    reporter.checkpoint(4)
    assert line.said == ["kept", reported(), "kept", Saved(3), "kept"]
