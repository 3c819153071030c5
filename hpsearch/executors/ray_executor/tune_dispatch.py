"""Between our search and Tune: gives trials to Tune's workers, and takes what comes back of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from ...coordinator.coordinator import Coordinator, RunningTrial
from ...coordinator.lost_worker import Loss
from ...errors import StorageError, StudyError
from ...search.trial import Verdict
from ...search.trial_record import TrialState, extended_by
from ...system.files import disk_problem
from ...system.interruption import Interruption
from ...trial.ending import Ended, TrialEndedSearch
from ...trial.messages import Message, Reported
from .events import KEY, TuneConfig, Unusable
from .searchers import Proposals
from .trial_artifacts import TrialArtifacts

_SECONDS_WITHOUT_ROOM = 60.0
# Workers report how far they are every few seconds. If none reports, all trials wait for room, for as long as
# others use it.
_SECONDS_OF_SILENCE = 60.0


class TuneDispatch:
    """Passes the trials of a search to Tune, which uses names of its own, and fetches their files.

    Nothing that goes wrong here is raised into Tune, which would take it for the trial's fault: it ends the search, and
    is in `error`.

    Args:
        coordinator: gives the trials, and receives what they report.
        slots: returns the most trials that may be with workers.
        has_room: whether any node could hold a trial, or is to be waited for.
        is_gathering: whether further trials are wanted even if there are no workers for them yet.
        artifacts: brings what trials leave to where it is needed.
        proposals: learns from the results of the parameters that it proposed; None: the engine chooses them.

    Attributes:
        ends_now: the running trials are not waited for.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        slots: Callable[[], int],
        has_room: Callable[[], bool],
        is_gathering: Callable[[], bool],
        artifacts: TrialArtifacts,
        proposals: Proposals | None = None,
    ) -> None:
        self._coordinator, self._slots = coordinator, slots
        self._is_gathering, self._artifacts, self._proposals = is_gathering, artifacts, proposals
        self._has_room, self._had_room, self._last_news = has_room, time.monotonic(), time.monotonic()
        self._numbers: dict[str, int] = {}  # of our trials, by Tune's names of them
        self._paused: set[str] = set()
        self.ends_now = False

    @property
    def error(self) -> BaseException | None:
        """What ended the search; None if nothing has."""
        return self._coordinator.error

    @property
    def interruption(self) -> Interruption:
        """Notes a signal that ends the search."""
        return self._coordinator.interruption

    @property
    def is_ending(self) -> bool:
        """Whether an error or a signal ends the search."""
        return self._coordinator.is_ending

    @property
    def is_over(self) -> bool:
        """True when no further trial will begin."""
        return self._coordinator.is_over

    @property
    def has_no_more(self) -> bool:
        """True if no trial could begin when one was last asked for."""
        return self._coordinator.has_no_more

    def end_with(self, error: BaseException) -> None:
        """End the search with an error, unless another one has ended it before."""
        self._coordinator.end_with(error)
        self.ends_now = True

    def take_ctrl_c(self) -> None:
        """Take Ctrl-C: the first time, the trials finish their steps."""
        self._coordinator.take_ctrl_c()
        self.ends_now = self.error is not None

    def announce(self, notice: str) -> None:
        """Show a notice about the search while it runs."""
        self._coordinator.announce(notice)

    def next(self, tune_id: str) -> TuneConfig | None:
        """Return the config of a new trial of Tune's; None if none can begin now, or any more (`is_over`)."""
        if self.is_over:
            return None
        if self.interruption.signal and not self._numbers:  # Tune waits for a trial, and looks at nothing else
            self.end_with(KeyboardInterrupt())
            return None
        if len(self._numbers) - len(self._paused) >= self._slots() and not self._is_gathering():
            return None
        assignment = self._coordinator.next()
        if assignment is None:
            return None
        self._numbers[tune_id] = assignment.number
        self._last_news = time.monotonic()
        has_checkpoints = assignment.earlier is not None or extended_by(assignment.origin) is not None
        if has_checkpoints and not self._trial(tune_id).has_lost_process:
            self._artifacts.send(assignment.name)
        return {**assignment.arguments, KEY: assignment}

    def check(self) -> None:
        """Check what no worker can report: that the cluster has room for trials, and that the search has time left.

        Raises:
            StudyError: no node of the cluster has been able to hold a trial for a while.
        """
        now = time.monotonic()
        if self._has_room():
            self._had_room = now
        elif now - self._had_room > _SECONDS_WITHOUT_ROOM:
            raise StudyError(
                f"For {_SECONDS_WITHOUT_ROOM:g} s no node of the cluster could hold a trial: suitable nodes have "
                "left. The same call continues once the cluster has some; autoscaling=True waits for them."
            )
        if self._numbers and now - self._last_news > _SECONDS_OF_SILENCE:
            exhausted = self.exhausted()
            if exhausted is not None:
                self.end_without_the_waiting(exhausted)

    def end_without_the_waiting(self, exhausted: str) -> None:
        """End the search at a limit although trials wait for a worker: they resume another time."""
        self._coordinator.announce(f"the search ends: {exhausted}, and no worker is free for the paused trials")
        self._coordinator.is_over = self.ends_now = True

    @property
    def seconds_left(self) -> float | None:
        """What is left of the search's time; None if there is no limit."""
        return self._coordinator.seconds_left

    def number(self, tune_id: str) -> int:
        """Return the number of the trial that one of Tune's is."""
        return self._numbers[tune_id]

    def receive(self, tune_id: str, message: Message, result: Mapping[str, object]) -> object:
        """Receive what a running trial reports, and what Tune made of it; return the answer to a question."""
        number = self._numbers[tune_id]
        self._last_news = time.monotonic()
        if not isinstance(message, Reported):
            return self._coordinator.receive(number, message)
        self._coordinator.record_report(number, message)
        if message.is_comparable and self._proposals is not None:
            self._proposals.receive(number, result)
        return None

    def verdict(self, tune_id: str, message: Reported) -> Verdict:
        """Return the verdict of the rungs, or of the pruner, on a trial that has reported."""
        return self._coordinator.verdict(self._numbers[tune_id], message)

    def exhausted(self) -> str | None:
        """Return which limit of the study the running trials have exhausted together; None: none."""
        return self._coordinator.exhausted()

    def reason_to_stop(self, tune_id: str, message: Reported) -> str | None:
        """Return why a trial stops that has reported: a limit of the study, or the user; None if it continues."""
        return self._coordinator.reason_to_stop(self._numbers[tune_id], message)

    def end(self, tune_id: str, event: Ended | Unusable, result: Mapping[str, object]) -> None:
        """Record a trial that has ended."""
        ended = _unbegun(self._trial(tune_id), event) if isinstance(event, Unusable) else event
        self._finish(tune_id, ended, result)

    def end_waiting(self, tune_id: str, verdict: Verdict, result: Mapping[str, object]) -> None:
        """Record a trial that is stopped while it waits: there is no worker that could end it."""
        self._artifacts.fetch(self._trial(tune_id).so_far)
        record = self._coordinator.stop_paused(self._leave(tune_id), verdict)
        self._artifacts.forget(record)
        if self._proposals is not None:
            self._proposals.end(record, result)

    def own_config(self, tune_id: str, config: TuneConfig) -> TuneConfig:
        """Return the config of a trial to which a scheduler has given that of another one, with its own changes.

        Raises:
            StudyError: the trial cannot resume from the other one with these changes.
        """
        arguments = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in config.items()
            if name != KEY
        }
        return {**arguments, KEY: self._coordinator.adopt(self._numbers[tune_id], config[KEY], arguments)}

    def pause(self, tune_id: str) -> None:
        """Note that a trial waits without a worker."""
        self._paused.add(tune_id)

    def resume(self, tune_id: str) -> None:
        """Note that a trial has a worker again."""
        self._paused.discard(tune_id)

    def lost(self, tune_id: str, loss: Loss) -> None:
        """Take a trial whose worker is lost: it resumes, or is recorded if its retries are exhausted.

        Raises:
            TrialEndedSearch: no worker for it can be started, which is not the trial's fault.
        """
        trial = self._trial(tune_id)
        self._last_news = time.monotonic()
        self._paused.discard(tune_id)
        ended = self._coordinator.lost(self._numbers[tune_id], loss)
        if ended is None:
            if not loss.resumes_itself:
                self._leave(tune_id)
        elif loss.had_worker:
            self._finish(tune_id, interrupted_by_the_disk(trial, loss.reason) or ended)
        else:
            reason = (
                f"No worker can be started on the cluster: {loss.reason}. All nodes need hpsearch and its dependencies."
            )
            self._finish(tune_id, trial.ended(TrialState.INTERRUPTED, reason, StudyError(reason)))

    def close(self) -> None:
        """Record the trials that have not ended as interrupted: they can be resumed."""
        self._numbers.clear()
        self._coordinator.close()

    def _trial(self, tune_id: str) -> RunningTrial:
        return self._coordinator.running[self._numbers[tune_id]]

    def _leave(self, tune_id: str) -> int:
        """Take a trial from those that Tune knows; return its number."""
        self._last_news = time.monotonic()
        self._paused.discard(tune_id)
        return self._numbers.pop(tune_id)

    def _finish(self, tune_id: str, ended: Ended, result: Mapping[str, object] | None = None) -> None:
        """Bring what a trial has left into the study's folder, and record that it has ended."""
        ended = replace(ended, record=self._artifacts.fetch(ended.record))
        self._leave(tune_id)
        try:
            record = self._coordinator.ended(ended)
        except TrialEndedSearch as found:
            self._artifacts.forget(found.record)
            raise
        self._artifacts.forget(record)
        if self._proposals is not None and record.state.is_counted:
            self._proposals.end(record, result or {})


def interrupted_by_the_disk(trial: RunningTrial, reason: str) -> Ended | None:
    """Return that a trial is interrupted whose worker died of a full disk; None if it died of something else.

    Tune never receives the errors of the trial itself. So Tune could not write a note of its own, whether or not there
    is room again by now.
    """
    problem = disk_problem(StorageError(reason))
    if problem is None:
        return None
    said = (
        f"Tune's files of {trial.so_far.name} cannot be written: {problem}. Earlier files are not lost: free disk "
        "space, then the same call continues."
    )
    return trial.ended(TrialState.INTERRUPTED, problem, StorageError(said))


def _unbegun(trial: RunningTrial, event: Unusable) -> Ended:
    """Return how a trial ended that its worker could not begin."""
    if event.has_trainer:
        reason = f"A worker cannot reach the checkpoints of {trial.assignment.name}: {event.reason}"
        return trial.ended(TrialState.INTERRUPTED, reason, StorageError(reason))
    reason = (
        f"The trainer cannot be loaded in a worker: {event.reason}. Its functions, classes and data must be "
        "importable on every node of the cluster."
    )
    return trial.ended(TrialState.REFUSED, reason, StudyError(reason))
