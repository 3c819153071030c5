"""Between our search and Tune: gives trials to Tune's workers, and takes what comes back of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import StorageError, StudyError
from ...files import disk_problem
from ...interruption import Interruption
from ...search.ending import Ended, TrialEndedSearch
from ...search.lost_worker import Loss
from ...search.messages import Message, Reported
from ...search.trial import TrialState, Verdict
from ..optuna_backend.dispatch import Dispatch, LiveTrial
from .events import KEY, Unusable
from .leavings import Leavings
from .searchers import Proposals

_SECONDS_WITHOUT_ROOM = 60.0
# Workers tell how far they are every few seconds. If nothing is heard of any, all trials wait for room, for as long as
# others use it.
_SECONDS_OF_SILENCE = 60.0


class TuneDispatch:
    """Gives the trials of a search to Tune, which knows them by names of its own, and brings back what they leave.

    Nothing that goes wrong here is raised into Tune, which would take it for the trial's fault: it ends the search, and
    is in `error`.

    Args:
        trials: chooses and records the trials.
        slots: how many trials may be with workers at once.
        has_room: whether any node could hold a trial, or is to be waited for.
        is_gathering: whether further trials are wanted even if there are no workers for them yet.
        leavings: brings what trials leave to where it is needed.
        proposals: hears what has come of its parameters; None: the engine chooses them.

    Attributes:
        ends_now: the trials that are under way are not waited for.
    """

    def __init__(
        self,
        trials: Dispatch,
        slots: Callable[[], int],
        has_room: Callable[[], bool],
        is_gathering: Callable[[], bool],
        leavings: Leavings,
        proposals: Proposals | None = None,
    ) -> None:
        self._trials, self._slots = trials, slots
        self._is_gathering, self._leavings, self._proposals = is_gathering, leavings, proposals
        self._has_room, self._had_room, self._heard = has_room, time.monotonic(), time.monotonic()
        self._live: dict[str, LiveTrial] = {}
        self._paused: set[str] = set()
        self.ends_now = False

    @property
    def error(self) -> BaseException | None:
        """What ended the search; None if nothing has."""
        return self._trials.error

    @property
    def interruption(self) -> Interruption:
        """Notes a signal that ends the search."""
        return self._trials.interruption

    @property
    def is_ending(self) -> bool:
        """Whether an error or a signal ends the search."""
        return self.error is not None or self.interruption.signal != 0

    @property
    def is_over(self) -> bool:
        """True when no further trial will begin."""
        return self._trials.is_over

    @property
    def has_no_more(self) -> bool:
        """True if no trial could begin when one was last asked for."""
        return self._trials.has_no_more

    def end_with(self, error: BaseException) -> None:
        """End the search with an error, unless another one has ended it before."""
        self._trials.end_with(error)
        self.ends_now = True

    def next(self, tune_id: str) -> dict[str, Any] | None:
        """Return the config of a new trial of Tune's; None if none can begin now, or any more (`is_over`)."""
        if self.is_over or self.is_ending:
            return None
        if len(self._live) - len(self._paused) >= self._slots() and not self._is_gathering():
            return None
        chosen = self._trials.next()
        if chosen is None:
            return None
        live = self._live[tune_id] = chosen
        self._heard = time.monotonic()
        if live.told.earlier is not None and not live.has_lost_process:
            self._leavings.send(live.told.name)
        return {**live.told.arguments, KEY: live.told}

    def check(self) -> None:
        """Look after what no worker can tell: that there is room for trials, and that the search's time is over.

        Raises:
            StudyError: no node of the cluster has been able to hold a trial for a while.
        """
        now = time.monotonic()
        if self._has_room():
            self._had_room = now
        elif now - self._had_room > _SECONDS_WITHOUT_ROOM:
            raise StudyError(
                f"For {_SECONDS_WITHOUT_ROOM:g} s no node of the cluster could hold a trial: those that could are "
                "gone. The same call goes on once there are some; autoscaling=True waits for them."
            )
        if self._live and now - self._heard > _SECONDS_OF_SILENCE:
            used_up = self.used_up()
            if used_up is not None:
                self.end_without_the_waiting(used_up)

    def end_without_the_waiting(self, used_up: str) -> None:
        """End the search, whose budget is used up, although trials wait for a worker: they go on another time."""
        self._trials.announce(f"the search ends: {used_up}, and no worker is free for the trials that wait")
        self._trials.is_over = self.ends_now = True

    @property
    def seconds_left(self) -> float | None:
        """What is left of the search's time; None if there is no limit."""
        return self._trials.seconds_left

    def number(self, tune_id: str) -> int:
        """Return the number of the trial that one of Tune's is."""
        return self._live[tune_id].told.number

    def hear(self, tune_id: str, message: Message, result: Mapping[str, Any]) -> Any:
        """Take what a running trial tells, and what Tune made of it; return the answer to a question."""
        live = self._live[tune_id]
        self._heard = time.monotonic()
        answer = self._trials.hear(live, message)
        if isinstance(message, Reported) and message.is_comparable and self._proposals is not None:
            self._proposals.hear(live.told.number, result)
        return answer

    def verdict(self, tune_id: str, message: Reported) -> Verdict:
        """Ask the pruner about a trial that has reported."""
        return self._trials.verdict(self._live[tune_id], message)

    def used_up(self) -> str | None:
        """Return which budget of the study the trials under way have used up together; None: none."""
        return self._trials.used_up()

    def reason_to_stop(self, message: Reported) -> str | None:
        """Return the budget of the study for which a trial stops that has reported; None if it goes on."""
        return self._trials.reason_to_stop(message)

    def end(self, tune_id: str, event: Ended | Unusable, result: Mapping[str, Any]) -> None:
        """Record a trial that has ended."""
        live = self._live[tune_id]
        self._finish(tune_id, _unbegun(live, event) if isinstance(event, Unusable) else event, result)

    def end_waiting(self, tune_id: str, verdict: Verdict, result: Mapping[str, Any]) -> None:
        """Record a trial that is stopped while it waits: there is no worker that could end it."""
        self._leavings.fetch(self._live[tune_id].so_far)
        record = self._trials.finish_waiting(self._leave(tune_id), verdict)
        self._leavings.forget(record)
        if self._proposals is not None:
            self._proposals.end(record, result)

    def own_config(self, tune_id: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config of a trial to which a scheduler has given that of another one, with its own changes.

        Raises:
            StudyError: the trial cannot go on from the other one with these changes.
        """
        live, donor = self._live[tune_id], config[KEY]
        arguments = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in config.items()
            if name != KEY
        }
        known = next((each.so_far.params for each in self._live.values() if each.told.number == donor.number), {})
        known = {**donor.params, **known}
        self._trials.check_changes(live, donor.arguments, arguments)
        live.told = replace(
            live.told,
            arguments=arguments,
            params={**known, **arguments},
            suggested_by_space=donor.suggested_by_space | arguments.keys(),
        )
        changed = ", ".join(f"{name}={value!r}" for name, value in arguments.items() if value != known.get(name))
        self._trials.announce(
            f"trial {live.told.number} goes on from trial {donor.number}{f', with {changed}' if changed else ''}"
        )
        live.trial.params.values_by_name.update(arguments)
        return {**arguments, KEY: live.told}

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
        live = self._live[tune_id]
        self._heard = time.monotonic()
        self._paused.discard(tune_id)
        if self._trials.lost(live, loss):
            if not loss.resumes_itself:
                self._leave(tune_id)
        elif loss.had_worker:
            self._finish(tune_id, given_up(live, loss.reason))
        else:
            reason = (
                f"No worker can be started on the cluster: {loss.reason}. All nodes need hpsearch and what it imports."
            )
            self._finish(tune_id, live.ended(TrialState.INTERRUPTED, reason, StudyError(reason)))

    def interrupt(self, reason: str) -> None:
        """Record the trials that are not at their end: they go on another time."""
        self._live.clear()
        self._trials.interrupt(reason)

    def _leave(self, tune_id: str) -> LiveTrial:
        self._heard = time.monotonic()
        self._paused.discard(tune_id)
        return self._live.pop(tune_id)

    def _finish(self, tune_id: str, ended: Ended, result: Mapping[str, Any] | None = None) -> None:
        """Bring what a trial has left into the study's folder, and record that it has ended."""
        ended = replace(ended, record=self._leavings.fetch(ended.record))
        try:
            record = self._trials.finish(self._leave(tune_id), ended)
        except TrialEndedSearch as found:
            self._leavings.forget(found.record)
            raise
        self._leavings.forget(record)
        if self._proposals is not None and record.state.is_counted:
            self._proposals.end(record, result or {})


def given_up(live: LiveTrial, reason: str) -> Ended:
    """Return how a trial ended whose worker died, and that does not go on.

    What the trial itself raises never reaches Tune: a full disk is one of Tune's own notes, whether or not there is
    room again by now, and interrupts the trial.
    """
    problem = disk_problem(StorageError(reason))
    if problem is None:
        return live.ended(TrialState.FAILED, f"its worker died: {reason}")
    said = (
        f"What Tune keeps of {live.so_far.name} cannot be written: {problem}. Nothing that was written before is lost: "
        "make space, then the same call continues."
    )
    return live.ended(TrialState.INTERRUPTED, problem, StorageError(said))


def _unbegun(live: LiveTrial, event: Unusable) -> Ended:
    """Return how a trial ended that its worker could not begin."""
    if event.has_trainer:
        reason = f"A worker cannot reach the checkpoints of {live.told.name}: {event.reason}"
        return live.ended(TrialState.INTERRUPTED, reason, StorageError(reason))
    reason = (
        f"The trainer cannot be loaded in a worker: {event.reason}. What it is made of (functions, classes, data) must "
        "be importable on every node of the cluster."
    )
    return live.ended(TrialState.REFUSED, reason, StudyError(reason))
