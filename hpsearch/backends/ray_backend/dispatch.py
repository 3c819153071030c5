"""Between our search and Tune: gives trials to Tune's workers, and takes what comes back of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import StorageError, StudyError
from ...search.assignment import Assignment
from ...search.ending import Ended, TrialEndedSearch
from ...search.runner import TrialRunner
from ...search.trial import TrialRecord, TrialState, Verdict
from ..optuna_backend.backend import OptunaBackend
from ..optuna_backend.trial import OptunaTrial
from .events import KEY, Progress, Question, Reported, Unusable
from .leavings import Leavings
from .searchers import Proposals

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_WITHOUT_ROOM = 60.0
# Workers tell how far they are every few seconds. If nothing is heard of any, all trials wait for room, for as long as
# others use it.
_SECONDS_OF_SILENCE = 60.0


@dataclass
class LiveTrial:
    """A trial that a worker is at, or will be as soon as there is one.

    Attributes:
        trial: as the storage knows it.
        told: what its worker was told.
        so_far: its record, as far as its worker has told.
    """

    trial: OptunaTrial
    told: Assignment
    so_far: TrialRecord

    def ended(self, state: TrialState, reason: str, cause: BaseException | None = None) -> Ended:
        """Return how the trial ended, by something else than itself."""
        return Ended(replace(self.so_far, state=state, reason=reason), cause)


class Dispatch:
    """Chooses trials for Tune as its workers become free, and records what they tell.

    Nothing that goes wrong here is raised into Tune, which would take it for the trial's fault: it ends the search, and
    is in `error`.

    Args:
        runner: records the trials.
        engine: keeps them in its storage, and chooses parameters.
        slots: how many trials may be with workers at once.
        has_room: whether any node could hold a trial, or is to be waited for.
        is_gathering: whether further trials are wanted even if there are no workers for them yet.
        leavings: brings what trials leave to where it is needed.
        proposals: chooses parameters in place of the engine; None: the engine does.

    Attributes:
        is_over: no further trial will begin.
        has_no_more: no trial could begin when one was last asked for.
        ends_now: the trials that are under way are not waited for.
        error: what ended the search; None if nothing has.
    """

    def __init__(
        self,
        runner: TrialRunner,
        engine: OptunaBackend,
        slots: Callable[[], int],
        has_room: Callable[[], bool],
        is_gathering: Callable[[], bool],
        leavings: Leavings,
        proposals: Proposals | None = None,
    ) -> None:
        self._runner, self._engine, self._slots = runner, engine, slots
        self._is_gathering, self._leavings, self._proposals = is_gathering, leavings, proposals
        self._has_room, self._had_room, self._heard = has_room, time.monotonic(), time.monotonic()
        self._live: dict[str, LiveTrial] = {}
        self._paused: set[str] = set()
        self._params: dict[int, dict[str, Any]] = {}
        self._is_closing = False
        self._look_again = 0.0
        self.is_over = self.has_no_more = self.ends_now = False
        self.error: BaseException | None = None

    def next(self, tune_id: str) -> dict[str, Any] | None:
        """Return the config of a new trial of Tune's; None if none can begin now, or any more (`is_over`)."""
        if self.is_over or self.error is not None:
            return None
        if len(self._live) - len(self._paused) >= self._slots() and not self._is_gathering():
            return None
        live = self._choose()
        if live is None:
            return None
        self._live[tune_id] = live
        self._runner.under_way[live.told.number] = live.so_far.epochs
        return {**live.told.arguments, KEY: live.told}

    def end_with(self, error: BaseException) -> None:
        """End the search with an error, unless another one has ended it before."""
        self.error = self.error or error
        self.ends_now = True

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
            used_up = self._runner.used_up()
            if used_up is not None:
                self._runner.announce(f"the search ends: {used_up}, and no worker is free for the trials that wait")
                self.is_over = self.ends_now = True

    def trial(self, tune_id: str) -> LiveTrial:
        """Return the trial that one of Tune's is."""
        return self._live[tune_id]

    def hear(self, tune_id: str, event: Progress | Reported | Question, result: Mapping[str, Any]) -> Any:
        """Take what a running trial tells, and what Tune made of it; return the answer to a question."""
        live = self._live[tune_id]
        self._heard = time.monotonic()
        if isinstance(event, Progress):
            if event.so_far is not None:
                self._note(live, event.so_far)
            self._runner.listener.on_progress(live.trial, event.step, event.max_steps)
        elif isinstance(event, Question):
            try:
                with self._engine.talking():
                    return live.trial.suggest(event.name, event.parameter)
            except StorageError:
                raise
            except Exception as error:
                return error
        else:
            self._note(live, event.so_far)
            with self._engine.talking():
                for value, resource in event.told:
                    live.trial.report(value, resource)
            if self._proposals is not None and event.is_comparable:
                self._proposals.hear(live.told.number, result)
            self._runner.listener.on_report(live.trial, event.report)
        return None

    def should_prune(self, tune_id: str) -> bool:
        """Ask the pruner about a trial that has reported."""
        with self._engine.talking():
            return self._live[tune_id].trial.should_prune()

    def used_up(self) -> str | None:
        """Return which budget of the study the trials under way have used up together; None: none."""
        return self._runner.used_up()

    def end(self, tune_id: str, event: Ended | Unusable, result: Mapping[str, Any]) -> None:
        """Record a trial that has ended."""
        live = self._leave(tune_id)
        ended = _unbegun(live, event) if isinstance(event, Unusable) else event
        self._finish(live, self._fetched(ended), result)

    def end_waiting(self, tune_id: str, verdict: Verdict, result: Mapping[str, Any]) -> None:
        """Record a trial that is stopped while it waits: there is no worker that could end it."""
        live = self._leave(tune_id)
        self._leavings.fetch(live.so_far)
        execution = self._runner.execution(live.trial, live.told.others)
        self._finish(live, Ended(execution.record_of_waiting(live.so_far, verdict)), result)

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
        known = self._params.get(donor.number, donor.params)
        self._runner.execution(live.trial, live.told.others).check_changes(donor.arguments, arguments)
        live.told = replace(
            live.told,
            arguments=arguments,
            params={**known, **arguments},
            suggested_by_space=donor.suggested_by_space,
        )
        changed = ", ".join(f"{name}={value!r}" for name, value in arguments.items() if value != known.get(name))
        self._runner.announce(
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

    def begin_again(self, tune_id: str, reason: str) -> None:
        """Note that the worker of a trial is gone: another one goes on from its last checkpoint."""
        live = self._live[tune_id]
        live.trial.begin_again()
        self._runner.announce(f"trial {live.trial.number} has lost its worker ({reason}): it goes on in another one")

    def give_up(self, tune_id: str, reason: str, had_worker: bool) -> None:
        """Record a trial whose workers have died too often.

        Raises:
            TrialEndedSearch: no worker for it could be started at all, which is not the trial's fault.
        """
        live = self._leave(tune_id)
        if had_worker:
            self._finish(live, self._fetched(live.ended(TrialState.FAILED, f"its worker died: {reason}")))
            return
        reason = f"No worker can be started on the cluster: {reason}. All nodes need hpsearch and what it imports."
        self._finish(live, live.ended(TrialState.INTERRUPTED, reason, StudyError(reason)))

    def interrupt(self, reason: str) -> None:
        """Record the trials that are not at their end: they go on another time."""
        is_stored = not isinstance(getattr(self.error, "cause", self.error), StorageError)
        for tune_id in list(self._live):
            live = self._leave(tune_id)
            record = self._runner.finish(live.ended(TrialState.INTERRUPTED, reason))
            self._settle(live, record, is_stored=is_stored)

    def _choose(self) -> LiveTrial | None:
        """Return a new trial; None if there is none now."""
        if self._is_closing:
            self.is_over = not self._live
            return None
        if time.monotonic() < self._look_again:
            return None
        while True:
            with self._engine.deciding(self._runner) as trials:
                chosen = trials.next(self._runner, None if self._proposals is None else self._proposals.propose)
            self.has_no_more = not isinstance(chosen, OptunaTrial)
            if isinstance(chosen, OptunaTrial):
                live = self._begin(chosen)
                if live is not None:
                    return live
                continue
            if chosen is None:
                self._is_closing = True
                self.is_over = not self._live
                if trials.ended_early is not None:
                    self._runner.announce(f"the search ends early: {trials.ended_early}")
            self._look_again = time.monotonic() + _SECONDS_BETWEEN_LOOKS
            return None

    def _begin(self, trial: OptunaTrial) -> LiveTrial | None:
        """Prepare a trial; None if it has ended before it could be trained."""
        try:
            with self._engine.talking():
                told = self._runner.begin(trial)
        except TrialEndedSearch as ended:
            is_stored = not isinstance(ended.cause, StorageError)
            self._engine.settle(trial, ended.record, self._runner, is_stored)
            raise
        if isinstance(told, TrialRecord):
            self._engine.settle(trial, told, self._runner)
            return None
        if told.earlier is not None:
            self._leavings.send(told.name)
            return LiveTrial(trial, told, replace(told.earlier, state=TrialState.RUNNING, reason=None))
        params = {**trial.params.values_by_name, **told.arguments}
        begun = TrialRecord(told.number, told.name, TrialState.RUNNING, params, dict(told.arguments))
        return LiveTrial(trial, told, begun)

    def _note(self, live: LiveTrial, so_far: TrialRecord) -> None:
        """Remember how far a trial is; on disk, where its checkpoints alone do not tell."""
        if so_far.schedule != live.so_far.schedule:
            self._runner.note(so_far)
        live.so_far = so_far
        self._params[live.told.number] = so_far.params
        self._runner.under_way[live.told.number] = so_far.epochs

    def _leave(self, tune_id: str) -> LiveTrial:
        """Take a trial from those that are under way."""
        live = self._live.pop(tune_id)
        self._paused.discard(tune_id)
        for known in (self._params, self._runner.under_way):
            known.pop(live.told.number, None)
        return live

    def _fetched(self, ended: Ended) -> Ended:
        return replace(ended, record=self._leavings.fetch(ended.record))

    def _finish(self, live: LiveTrial, ended: Ended, result: Mapping[str, Any] | None = None) -> None:
        """Write the record of a trial whose leavings are in the study's folder, and settle it."""
        try:
            record = self._runner.finish(ended)
        except TrialEndedSearch as found:
            self._leavings.forget(found.record)
            self._settle(live, found.record, is_stored=not isinstance(found.cause, StorageError))
            raise
        self._leavings.forget(record)
        self._settle(live, record, result)

    def _settle(
        self, live: LiveTrial, record: TrialRecord, result: Mapping[str, Any] | None = None, is_stored: bool = True
    ) -> None:
        self._look_again = -math.inf
        self._engine.settle(live.trial, record, self._runner, is_stored)
        if self._proposals is not None and record.state.is_counted:
            self._proposals.end(record, result or {})


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
