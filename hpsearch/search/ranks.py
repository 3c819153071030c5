"""The processes that train one trial together: the first one decides, and all receive the decision before they act."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class Ranks(Protocol):
    """The processes of one trial, as each of them sees them; every method is called by all of them together."""

    @property
    def is_main(self) -> bool:
        """True in the process that decides: it alone asks the backend and writes the study's files."""

    @property
    def size(self) -> int:
        """How many processes there are."""

    def decide(self, choose: Callable[[], Result]) -> Result:
        """Call `choose` in the main process and return in all of them what it returned."""

    def agree(self, choose: Callable[[], bool]) -> bool:
        """As `decide`, for yes or no, at less cost."""

    def largest(self, *values: int) -> tuple[int, ...]:
        """Return, for each of these, the largest that any process has given."""

    def check_connected(self) -> None:
        """Raise a CommunicationError if it is known that the processes have lost their connection; costs nothing."""

    def together(self, action: Callable[[], Result]) -> Result:
        """Return `action()`; if it raises in any process, raise that error in all of them.

        None of them is left waiting for the one that failed, and afterwards they can work together again.

        Raises:
            CommunicationError: one of them has died, and they can not.
        """


class OneProcess:
    """A trial in one process: no other process needs the decisions."""

    is_main = True
    size = 1

    def decide(self, choose: Callable[[], Result]) -> Result:
        """Return `choose()`."""
        return choose()

    def agree(self, choose: Callable[[], bool]) -> bool:
        """Return `choose()`."""
        return choose()

    def largest(self, *values: int) -> tuple[int, ...]:
        """Return the values."""
        return values

    def check_connected(self) -> None:
        """Do nothing."""

    def together(self, action: Callable[[], Result]) -> Result:
        """Return `action()`."""
        return action()
