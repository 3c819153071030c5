"""Run trials in the process of the search, in series: the reference for all other executors."""

from __future__ import annotations

from ..coordinator.coordinator import Coordinator
from ..search.trial import Verdict
from ..search.trial_record import TrialRecord
from ..system.ctrl_c import ignoring_ctrl_c
from ..trial.local_trials import LocalTrials
from ..trial.messages import Reported


def run_inline(coordinator: Coordinator, local: LocalTrials) -> None:
    """Run the trials of a search until there are no more, or a signal ends it.

    Under a launcher, the other processes of each trial train it too. An error that ends the search is raised; a trial
    that it has cut off is recorded as interrupted.

    Args:
        coordinator: gives the trials, and receives what they report.
        local: trains them.
    """
    try:
        _run(coordinator, local)
    except BaseException as error:
        coordinator.end_with(error)
        with ignoring_ctrl_c():
            coordinator.close()
        raise


def _run(coordinator: Coordinator, local: LocalTrials) -> None:
    is_waiting = False
    while not coordinator.interruption.signal:
        assignment = coordinator.next()
        if assignment is not None:
            reporter = InlineReporter(coordinator, assignment.number)
            ended = local.train(coordinator.trial(assignment.number), assignment, reporter)
            coordinator.ended(ended)
        elif coordinator.is_over:
            return
        elif not coordinator.interruption.signal:
            if not is_waiting and not coordinator.is_paused:
                is_waiting = True
                coordinator.announce("all trials have started: waiting for those of other searches")
            local.wait()


class InlineReporter:
    """Passes what a trial reports on to the search, which shares its process.

    Args:
        coordinator: of the search.
        number: of the trial.
    """

    def __init__(self, coordinator: Coordinator, number: int) -> None:
        self._coordinator, self._number = coordinator, number

    def progress(self, step: int, max_steps: int) -> None:
        """Show it."""
        self._coordinator.progress(self._number, step, max_steps)

    def report(self, reported: Reported) -> Verdict:
        """Record it, and return the verdict; the trial itself looks at the limits of the study, after each step."""
        self._coordinator.record_report(self._number, reported)
        return self._coordinator.next_action(self._number, reported)

    def note(self, so_far: TrialRecord) -> None:
        """Write it to the trial's record."""
        self._coordinator.note(self._number, so_far)

    def checkpoint(self, step: int) -> None:
        """Show it."""
        self._coordinator.checkpoint(self._number, step)

    def notice(self, text: str) -> None:
        """Show it."""
        self._coordinator.notice(self._number, text)
