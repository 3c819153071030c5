"""The machines, workers and GPUs that trained the trials of a study."""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from typing import NamedTuple

from ..search.trial_record import Span, TrialRecord


class Place(NamedTuple):
    """The trials that one place has trained.

    Attributes:
        where: the machine, the worker and the GPU, in words.
        lines: of the timeline, from 1, which are its own.
        trials: how many it has trained, or parts of them.
        seconds: from begin to end of each of them, added up.
    """

    where: str
    lines: list[int]
    trials: int
    seconds: float


def places(records: Sequence[TrialRecord]) -> list[Place]:
    """Return the places that have trained, in the order of their lines in the timeline."""
    trained = sorted(((span, each.number) for each in records for span in each.spans), key=lambda pair: pair)
    found: dict[str, list[tuple[Span, int, int]]] = {}
    for (span, number), line in zip(trained, lines_of([span for span, _ in trained]), strict=True):
        found.setdefault(span.where, []).append((span, number, line + 1))
    return [
        Place(
            where or "not recorded",
            sorted({line for _, _, line in found[where]}),
            len({number for _, number, _ in found[where]}),
            sum(span.end - span.begin for span, _, _ in found[where]),
        )
        for where in sorted(found, key=_in_order)
    ]


def lines_of(spans: Sequence[Span]) -> list[int]:
    """Return for each span a line, from 0, that it has for itself; those of one place are side by side.

    Args:
        spans: in order of their begin.

    Examples:
        >>> lines_of([Span(0, 2, "b"), Span(0, 9, "a"), Span(1, 3, "a"), Span(4, 5, "b")])
        [2, 0, 1, 2]
    """
    lines = [0] * len(spans)
    count = 0
    for where in sorted({each.where for each in spans}, key=_in_order):
        free: list[int] = []
        busy: list[tuple[float, int]] = []
        for place, span in enumerate(spans):
            if span.where != where:
                continue
            while busy and busy[0][0] <= span.begin:
                heapq.heappush(free, heapq.heappop(busy)[1])
            if not free:
                heapq.heappush(free, count)
                count += 1
            lines[place] = heapq.heappop(free)
            heapq.heappush(busy, (span.end, lines[place]))
    return lines


def _in_order(where: str) -> list[tuple[str, int]]:
    """Return a sort key that puts worker 2 before worker 10."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", where)]
