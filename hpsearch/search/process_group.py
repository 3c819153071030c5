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
    def rank(self) -> int:
        """The number of this process; that of the main one is 0."""

    @property
    def size(self) -> int:
        """How many processes there are."""

    def decide(self, choose: Callable[[], Result]) -> Result:
        """Call `choose` in the main process; return in all of them what it returned, or raise what it raised."""

    def agree(self, choose: Callable[[], bool]) -> bool:
        """As `decide`, for yes or no, at less cost."""

    def largest(self, *values: int) -> tuple[int, ...]:
        """Return, for each of these, the largest that any process has given."""

    def check_connected(self) -> None:
        """Raise a CommunicationError if the processes have lost their connection, as far as it is known."""

    def together(self, action: Callable[[], Result]) -> Result:
        """Return `action()`; if it raises in any process, raise the first error in all of them.

        None of them is left waiting for the one that failed. Afterwards they can work together again, unless one of
        them was left in the middle of a collective.

        Raises:
            ProcessFailedError: one of them was.
            CommunicationError: one of them has died.
        """


class OneProcess:
    """A trial in one process: no other process needs the decisions."""

    is_main = True
    rank = 0
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
