"""Trials in the searching process itself, one after the other: the reference for all other ways to run them."""

from __future__ import annotations

from ...search.messages import Noted, Notice, Progress, Reported
from ...search.runner import TrialRunner
from ...search.trial import TrialRecord, Verdict
from ...surroundings import ignoring_ctrl_c
from .dispatch import Dispatch, LiveTrial
from .quiet import quiet_optuna


def run_inline(dispatch: Dispatch, runner: TrialRunner) -> None:
    """Run the trials that are dispatched, until there are no more or a signal ends the search.

    Under a launcher, the other processes of each trial train it too. An error that ends the search is raised; a trial
    that it has cut off is recorded as interrupted.
    """
    try:
        _run(dispatch, runner)
    except BaseException as error:
        dispatch.end_with(error)
        is_interrupted = isinstance(error, KeyboardInterrupt)
        with ignoring_ctrl_c():
            dispatch.interrupt(runner.interruption.reason if is_interrupted else "the search ended")
        raise


def _run(dispatch: Dispatch, runner: TrialRunner) -> None:
    is_waiting = False
    while not runner.interruption.signal:
        live = dispatch.next()
        if live is not None:
            with quiet_optuna():
                ended = runner.train(live.trial, live.told, InlineReporter(dispatch, runner, live))
            dispatch.finish(live, ended)
        elif dispatch.is_over:
            return
        elif not runner.interruption.signal:
            if not is_waiting:
                is_waiting = True
                runner.announce("all trials have begun: waiting for those that other searches are at")
            runner.wait()


class InlineReporter:
    """Reports a trial of this process as a worker does, by plain calls.

    Args:
        dispatch: receives the trial's messages.
        runner: shows it.
        live: the trial.
    """

    def __init__(self, dispatch: Dispatch, runner: TrialRunner, live: LiveTrial) -> None:
        self._dispatch, self._runner, self._live = dispatch, runner, live

    def progress(self, step: int, max_steps: int) -> None:
        """Show it."""
        self._dispatch.hear(self._live, Progress(step, max_steps))

    def report(self, reported: Reported) -> Verdict:
        """Report to the study, and return the verdict."""
        self._dispatch.hear(self._live, reported)
        return self._dispatch.verdict(self._live, reported)

    def note(self, so_far: TrialRecord) -> None:
        """Write it to the trial's record."""
        self._dispatch.hear(self._live, Noted(so_far))

    def checkpoint(self, step: int) -> None:
        """Show it."""
        self._runner.listener.on_checkpoint(self._live.trial, step)

    def notice(self, text: str) -> None:
        """Show it."""
        self._dispatch.hear(self._live, Notice(text))
