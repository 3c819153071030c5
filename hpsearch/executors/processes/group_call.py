"""A function that the processes of a group call once, in place of trials; the first one sends what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...trial.remote_trial import sendable


@dataclass(frozen=True)
class Called:
    """The result of a call in a group.

    Attributes:
        returned: by the function in process 0.
        error: that it raised, in any of the processes.
        rank: the number of the process.
    """

    returned: object
    error: BaseException | None = None
    rank: int = 0


@dataclass(frozen=True)
class GroupCall:
    """A function without arguments."""

    function: Callable[[], object]

    def result(self, rank: int) -> Called | None:
        """Call it, and return what this process has to send."""
        try:
            returned = self.function()
        except BaseException as error:
            return Called(None, sendable(error), rank)
        return Called(returned) if rank == 0 else None
