"""The sides of `returned_models`: searches of which every trial is noted with the time of its reports and states."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
import torch
import transformers
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as EngineState

from hpsearch import NoCompletedTrialError, TrialRecord, TrialState

from .races import OURS, PEER, SLOTS, Record, direction_of, ours, peer
from .real_tasks import Task
from .retraining_results import TrialEvents

TPE, TRUNCATED = "tpe", "truncated"
_STUDY = "race"
_STATES = {EngineState.COMPLETE: TrialState.COMPLETE, EngineState.PRUNED: TrialState.PRUNED}


class Events(Record):
    """Notes the reports and states of all trials of a search of ours, and for what its workers used their time."""

    def __init__(self, metric: str, seconds: float) -> None:
        super().__init__(metric, seconds)
        self._begin_of_all = time.time()
        self._events: dict[int, TrialEvents] = {}
        self._ended: dict[int, TrialRecord] = {}
        self._evaluating = 0.0

    @property
    def now(self) -> float:
        """The seconds since the race began."""
        return self.seconds - self.left

    @property
    def events(self) -> list[TrialEvents]:
        """The trials, by number."""
        return [self._events[number] for number in sorted(self._events)]

    def on_trial_begin(self, trial: Any) -> None:
        super().on_trial_begin(trial)
        self._note(trial.number, dict(trial.params), TrialState.RUNNING)

    def on_report(self, trial: Any, report: Any) -> None:
        super().on_report(trial, report)
        self._events[trial.number].reports.append((self.now, report.value))
        self._evaluating += report.metrics.get("eval_runtime", 0.0)

    def on_trial_end(self, record: TrialRecord) -> None:
        self._note(record.number, dict(record.params), record.state)
        self._ended[record.number] = record

    def _note(self, number: int, params: dict[str, Any], state: TrialState) -> None:
        known = self._events.setdefault(number, TrialEvents(number, params, [], []))
        known.states.append((self.now, state.value))

    def shares(self) -> dict[str, float]:
        """Return the fractions of the workers' time by what it was used for.

        A segment of a trial lasts from when it is assigned to a worker until its end is known; what is no evaluation
        in it counts as training, making the model included. Between segments the search decides.
        """
        spans = sorted(span for record in self._ended.values() for span in record.spans)
        total = SLOTS * self.seconds
        begun = [span.begin - self._begin_of_all for span in spans[:SLOTS]]
        starting = sum(begun) + (SLOTS - len(begun)) * self.seconds
        busy = sum(span.end - span.begin for span in spans)
        between = total - starting - busy
        used = {
            "waiting to start": starting,
            "training": busy - self._evaluating,
            "evaluating": self._evaluating,
            "deciding, between segments": between,
        }
        return {name: seconds / total for name, seconds in used.items()}


def watched_ours(task: Task, seconds: float, folder: Path, seed: int) -> tuple[list[TrialEvents], dict[str, float]]:
    """Search with ours as it is by default, with two workers."""
    events = Events(task.metric, seconds)
    # An error of a search would also take its storage along to a process where that no longer exists.
    with contextlib.suppress(NoCompletedTrialError):
        ours(task, events, folder, seed)
    return events.events, events.shares()


def watched_peer(task: Task, seconds: float, folder: Path, seed: int) -> tuple[list[TrialEvents], dict[str, float]]:
    """Search with transformers' Trainer as it is by default, its median pruner included."""
    storage, record, begin = optuna.storages.InMemoryStorage(), Record(task.metric, seconds), datetime.now()
    peer(task, record, folder, seed, storage=storage, study_name=_STUDY)
    return events_of(optuna.load_study(study_name=_STUDY, storage=storage).trials, begin), {}


def tpe(task: Task, seconds: float, folder: Path, seed: int) -> tuple[list[TrialEvents], dict[str, float]]:
    """Ask Optuna's TPE for parameters and train with them to completion, in two processes that share a study."""
    record, begin, journal = Record(task.metric, seconds), datetime.now(), str(folder / "journal")
    # Made before the processes, which would both try to.
    optuna.create_study(storage=_storage(journal), study_name=_STUDY, direction=direction_of(task.metric))
    fork = multiprocessing.get_context("fork")  # all modules are imported
    loops = [fork.Process(target=_loop, args=(task, record, folder, SLOTS * seed + slot)) for slot in range(SLOTS)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
    if any(loop.exitcode for loop in loops):
        raise RuntimeError(f"a loop of {task} ended with an error")
    return events_of(optuna.load_study(study_name=_STUDY, storage=_storage(journal)).trials, begin), {}


def truncated(task: Task, seconds: float, folder: Path, seed: int) -> tuple[list[TrialEvents], dict[str, float]]:
    """Do the same with training runs of a quarter of the length, whose schedules are as short."""
    return tpe(dataclasses.replace(task, epochs=task.epochs // 4), seconds, folder, seed)


SIDES: dict[str, Callable[..., tuple[list[TrialEvents], dict[str, float]]]] = {
    OURS: watched_ours,
    PEER: watched_peer,
    TRUNCATED: truncated,
    TPE: tpe,
}


def _loop(task: Task, record: Record, folder: Path, seed: int) -> None:
    torch.set_num_threads(1)
    sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    study = optuna.load_study(study_name=_STUDY, storage=_storage(str(folder / "journal")), sampler=sampler)
    while record.left > 0:
        trial = study.ask()
        trainer = task.make_trainer_with(task.suggest_all(trial), folder, [record])
        trainer.train()
        if record.left > 0:  # else it was stopped
            study.tell(trial, last_value(trainer, task.metric))


def last_value(trainer: transformers.Trainer, metric: str) -> float:
    """Return the metric at the last evaluation of a trainer."""
    name = f"eval_{metric}"
    return float([each[name] for each in trainer.state.log_history if name in each][-1])


def _storage(journal: str) -> optuna.storages.JournalStorage:
    return optuna.storages.JournalStorage(JournalFileBackend(journal))


def events_of(trials: Iterable[FrozenTrial], begin: datetime) -> list[TrialEvents]:
    """Return the trials of a study of Optuna, which returns a trial for the value it was completed with."""

    def moment(time_of_day: datetime) -> float:
        return (time_of_day - begin) / timedelta(seconds=1)

    found: list[TrialEvents] = []
    for trial in trials:
        each = TrialEvents(trial.number, dict(trial.params), [], [])
        found.append(each)
        if trial.datetime_start is not None:
            each.states.append((moment(trial.datetime_start), TrialState.RUNNING.value))
        if trial.datetime_complete is not None:
            ended = moment(trial.datetime_complete)
            each.states.append((ended, _STATES.get(trial.state, TrialState.FAILED).value))
            if trial.state is EngineState.COMPLETE and trial.value is not None:
                each.reports.append((ended, trial.value))
    return found
