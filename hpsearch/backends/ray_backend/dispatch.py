"""Between our search and Tune: gives trials to Tune's workers, and takes what comes back of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...errors import StorageError, StudyError
from ...search.assignment import Assignment
from ...search.ending import Ended, TrialEndedSearch
from ...search.runner import TrialRunner
from ...search.trial import TrialRecord, TrialState, Verdict
from ..optuna_backend.backend import OptunaBackend
from ..optuna_backend.trial import OptunaTrial
from .events import KEY, Progress, Question, Reported, Unusable
from .searchers import Proposals

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_WITHOUT_ROOM = 60.0


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
        fetch: brings what an ended trial has left into the study's folder.
        proposals: chooses parameters in place of the engine; None: the engine does.

    Attributes:
        is_gathering: tells whether further trials are wanted even if there are no workers for them yet.
        is_over: no further trial will begin.
        has_no_more: no trial could begin when one was last asked for.
        error: what ended the search; None if nothing has.
    """

    def __init__(
        self,
        runner: TrialRunner,
        engine: OptunaBackend,
        slots: Callable[[], int],
        has_room: Callable[[], bool],
        fetch: Callable[[TrialRecord], TrialRecord],
        proposals: Proposals | None = None,
    ) -> None:
        self._runner, self._engine, self._slots = runner, engine, slots
        self._fetch, self._proposals = fetch, proposals
        self._has_room, self._had_room = has_room, time.monotonic()
        self._live: dict[str, LiveTrial] = {}
        self._paused: set[str] = set()
        self._waiting: list[LiveTrial] = []
        self._params: dict[int, dict[str, Any]] = {}
        self._is_closing = False
        self._look_again = 0.0
        self.is_gathering: Callable[[], bool] = lambda: False
        self.is_over = self.has_no_more = False
        self.error: BaseException | None = None

    def next(self, tune_id: str) -> dict[str, Any] | None:
        """Return the config of a new trial of Tune's; None if none can begin now, or any more (`is_over`)."""
        if self.is_over or self.error is not None:
            return None
        if len(self._live) - len(self._paused) >= self._slots() and not self.is_gathering():
            return None
        live = self._waiting.pop() if self._waiting else self._choose()
        if live is None:
            return None
        self._live[tune_id] = live
        return {**live.told.arguments, KEY: live.told}

    def check_room(self) -> None:
        """Check that the cluster still has a node that can hold a trial.

        Raises:
            StudyError: it has had none for a while.
        """
        now = time.monotonic()
        if self._has_room():
            self._had_room = now
        elif now - self._had_room > _SECONDS_WITHOUT_ROOM:
            raise StudyError(
                f"For {_SECONDS_WITHOUT_ROOM:g} s no node of the cluster could hold a trial: those that could are "
                "gone. The same call goes on once there are some; autoscaling=True waits for them."
            )

    def trial(self, tune_id: str) -> LiveTrial:
        """Return the trial that one of Tune's is."""
        return self._live[tune_id]

    def hear(self, tune_id: str, event: Progress | Reported | Question, result: Mapping[str, Any]) -> Any:
        """Take what a running trial tells, and what Tune made of it; return the answer to a question."""
        live = self._live[tune_id]
        if isinstance(event, Progress):
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
            if event.so_far.schedule != live.so_far.schedule:
                self._runner.note(event.so_far)
            live.so_far = event.so_far
            self._params[live.told.number] = event.so_far.params
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

    def end(self, tune_id: str, event: Ended | Unusable, result: Mapping[str, Any]) -> None:
        """Record a trial that has ended."""
        live = self._live.pop(tune_id)
        self._paused.discard(tune_id)
        self._params.pop(live.told.number, None)
        if isinstance(event, Unusable):
            event = _unbegun(live, event)
        try:
            record = self._runner.finish(replace(event, record=self._fetch(event.record)))
        except TrialEndedSearch as ended:
            self._settle(live, ended.record, is_stored=not isinstance(ended.cause, StorageError))
            raise
        self._settle(live, record, result)

    def end_waiting(self, tune_id: str, verdict: Verdict, result: Mapping[str, Any]) -> None:
        """Record a trial that is stopped while it waits: there is no worker that could end it."""
        live = self._live.pop(tune_id)
        self._paused.discard(tune_id)
        self._params.pop(live.told.number, None)
        self._fetch(live.so_far)
        execution = self._runner.execution(live.trial, live.told.others)
        record = self._runner.finish(Ended(execution.record_of_waiting(live.so_far, verdict)))
        self._settle(live, record, result)

    def own_config(self, tune_id: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config of a trial to which a scheduler has given that of another one, with its own changes.

        Raises:
            StudyError: the trial cannot go on from the other one with these changes.
        """
        live, donor = self._live[tune_id], config[KEY]
        arguments = {name: value for name, value in config.items() if name != KEY}
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

    def give_up(self, tune_id: str, reason: str, has_begun: bool) -> None:
        """Record a trial whose workers have died too often; one that had none yet waits for the next."""
        live = self._live.pop(tune_id)
        self._paused.discard(tune_id)
        if not has_begun:
            self._waiting.append(live)
            return
        ended = live.ended(TrialState.FAILED, reason)
        self._settle(live, self._runner.finish(replace(ended, record=self._fetch(ended.record))))

    def interrupt(self, reason: str) -> None:
        """Record the trials that are not at their end: they go on another time."""
        is_stored = not isinstance(getattr(self.error, "cause", self.error), StorageError)
        for live in [*self._live.values(), *self._waiting]:
            record = self._runner.finish(live.ended(TrialState.INTERRUPTED, reason))
            self._settle(live, record, is_stored=is_stored)
        self._live.clear()
        self._waiting.clear()

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
            return LiveTrial(trial, told, replace(told.earlier, state=TrialState.RUNNING, reason=None))
        params = {**trial.params.values_by_name, **told.arguments}
        begun = TrialRecord(told.number, told.name, TrialState.RUNNING, params, dict(told.arguments))
        return LiveTrial(trial, told, begun)

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
