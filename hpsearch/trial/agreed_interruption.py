"""A signal that one process of a trial has received ends the trial in all of them, after the same step."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..search.process_group import Ranks
from ..system.interruption import Interruption

# The interval, in seconds, at which several processes agree: each time costs one small all-reduce, and on a GPU the
# wait for what it computes.
_SECONDS_BETWEEN_AGREEMENTS = 1.0


class AgreedInterruption:
    """An `Interruption`, as all processes of a trial see it.

    The main process decides after how many steps all of them communicate again, from the time that the last ones took;
    their number at most doubles each time.

    Args:
        interruption: of this process; it notes what another process has received.
        ranks: the processes of the trial.
        clock: returns the seconds since some moment.
    """

    def __init__(self, interruption: Interruption, ranks: Ranks, clock: Callable[[], float] = time.monotonic) -> None:
        self._interruption, self._ranks, self._clock = interruption, ranks, clock
        self._interval = self._left = 1
        self._agreed_at = clock()

    @property
    def reason(self) -> str:
        """Why the trial ends, in words."""
        return self._interruption.reason

    def await_it(self) -> None:
        """Note that the trial, which trains, now ends with a checkpoint when a signal comes."""
        self._interruption.is_awaited = True

    def has_come(self) -> bool:
        """Return whether a signal has come; asked by all processes at the same steps."""
        if self._ranks.size == 1:
            return self._interruption.signal != 0
        self._left -= 1
        if self._left:
            return False
        signal, self._interval = self._ranks.largest(
            self._interruption.signal, self._next_interval() if self._ranks.is_main else 0
        )
        self._left = self._interval
        if signal:
            self._interruption.note(signal)
        return signal != 0

    def _next_interval(self) -> int:
        now = self._clock()
        seconds = (now - self._agreed_at) / self._interval
        self._agreed_at = now
        fitting = _SECONDS_BETWEEN_AGREEMENTS / max(seconds, 1e-6)
        return max(1, min(2 * self._interval, int(fitting)))
