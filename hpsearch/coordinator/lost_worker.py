"""The policy of retries for a trial whose process has died."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Loss:
    """How the process of a trial was lost.

    Attributes:
        reason: in a line.
        had_worker: whether a process has ever trained the trial.
        is_creation: whether the process could not be made, as what it is made of has raised an error.
        is_new: whether this is the first report of the loss; engines report some losses twice.
        resumes_itself: whether the engine lets another process resume the trial, as Tune does.
    """

    reason: str
    had_worker: bool = True
    is_creation: bool = False
    is_new: bool = True
    resumes_itself: bool = False

    def is_retried(self, losses: int, retries: int) -> bool:
        """Return whether another process resumes the trial.

        Args:
            losses: the number of processes that the trial has lost, this one included.
            retries: the number of times that a trial is resumed after its process has died. One that no process has
                trained is tried once more in any case.

        >>> [Loss("killed").is_retried(losses, retries=1) for losses in (1, 2)]
        [True, False]
        >>> Loss("no node", had_worker=False).is_retried(1, retries=0), Loss("", is_creation=True).is_retried(1, 3)
        (True, False)
        """
        if self.resumes_itself:
            return True
        return not self.is_creation and losses <= (retries if self.had_worker else max(retries, 1))
