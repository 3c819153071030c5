"""The calls that a plain function makes on its trial, where the processes of a group call the function together.

Process 0 alone asks the search: the others receive its answers. Each trial has a store of its own for torch's process
group, which the function may make as it likes; a group that it leaves behind is ended, so the next trial can make one.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import distributed

from ..errors import HpsearchError, TrialPaused
from ..executors.processes.rendezvous import Rendezvous
from ..search.process_group import OneProcess
from ..search.space.parameters import Parameter
from ..search.trial import Trial
from ..trial.store_ranks import StoreRanks
from .function_trial import FunctionEvents

_SECONDS_UNTIL_A_WARNING = 30.0
_PAUSED = "paused"
logger = logging.getLogger(__name__)


@contextlib.contextmanager
def events_in_group(trial: Trial, alone: FunctionEvents) -> Iterator[FunctionEvents]:
    """Yield what answers the calls of a function in this process of the trial; the function is called in the block.

    Args:
        trial: whose `ranks` are the processes of a group, or one process.
        alone: answers the calls in one process.
    """
    ranks = trial.ranks
    if not isinstance(ranks, StoreRanks):
        yield alone
        return
    trial.ranks = OneProcess()  # the main process suggests by itself, and the others find its values by their names
    try:
        with _store_of_process_group(ranks):
            yield _MainEvents(alone, ranks) if ranks.is_main else _FollowerEvents(trial, ranks)
    finally:
        trial.ranks = ranks


class _MainEvents:
    """Asks the search, and writes its answers down for the other processes.

    Args:
        alone: asks the search.
        ranks: the processes.
    """

    def __init__(self, alone: FunctionEvents, ranks: StoreRanks) -> None:
        self._alone, self._ranks = alone, ranks
        self._answers = self._saves = 0

    def suggest(self, name: str, parameter: Parameter) -> Any:
        """Ask for a value."""
        value = self._alone.suggest(name, parameter)
        self._ranks.write(f"parameter {name}", value)
        return value

    def report(self, value: object, step: int | None) -> None:
        """Report an evaluation."""
        self._alone.report(value, step)

    def should_prune(self) -> bool:
        """Ask whether the trial ends here."""
        self._answers += 1
        try:
            answer = self._alone.should_prune()
        except TrialPaused:
            self._ranks.write(_answer(self._answers), _PAUSED)
            raise
        self._ranks.write(_answer(self._answers), answer)
        return answer

    @contextlib.contextmanager
    def save(self) -> Iterator[Path]:
        """Give a new folder; the checkpoint is complete when no other process writes to it any more."""
        self._saves += 1
        with self._alone.save() as folder:
            self._ranks.write(_folder(self._saves), folder)
            yield folder
            self._wait_for_others()
        self._ranks.write(_complete(self._saves))

    def _wait_for_others(self) -> None:
        warns_at = time.monotonic() + _SECONDS_UNTIL_A_WARNING
        for _ in self._ranks.looks():
            late = [rank for rank in range(1, self._ranks.size) if not self._writes_no_more(rank)]
            if not late:
                return
            if time.monotonic() > warns_at:
                warns_at = math.inf
                logger.warning(
                    "trial.save() of process 0 waits for process %s, which has neither left its own trial.save() nor "
                    "called trial.should_prune(). Call trial.save() in all processes.",
                    ", ".join(map(str, late)),
                )

    def _writes_no_more(self, rank: int) -> bool:
        """Return whether a process has left its own block, or waits elsewhere without having had one."""
        ranks = self._ranks
        if ranks.has(_left(self._saves, rank)) or ranks.has_left(rank):
            return True
        return ranks.has(_asked(rank)) and ranks.read(_asked(rank)) > self._answers


class _FollowerEvents:
    """Receives the answers that process 0 has received, or will receive."""

    def __init__(self, trial: Trial, ranks: StoreRanks) -> None:
        self._trial, self._ranks = trial, ranks
        self._answers = self._saves = 0

    def suggest(self, name: str, parameter: Parameter) -> Any:
        """Return the value of process 0."""
        known = self._trial.params.values_by_name
        if name not in known:
            known[name] = self._ranks.read(f"parameter {name}")
        return self._trial.suggest(name, parameter)

    def report(self, value: object, step: int | None) -> None:
        """Do nothing: process 0 reports."""

    def should_prune(self) -> bool:
        """Return what process 0 was answered by the same call."""
        self._answers += 1
        self._ranks.write(_asked(self._ranks.rank), self._answers)
        answer = self._ranks.read(_answer(self._answers))
        if answer == _PAUSED:
            raise TrialPaused
        return bool(answer)

    @contextlib.contextmanager
    def save(self) -> Iterator[Path]:
        """Give the folder of process 0, and wait until the checkpoint is complete."""
        self._saves += 1
        folder = self._ranks.read(_folder(self._saves))
        if self._ranks.has(_complete(self._saves)):
            raise HpsearchError(
                f"process {self._ranks.rank} calls trial.save() after the checkpoint is complete: all processes must "
                "call trial.save() and trial.should_prune() in the same order, or process 0 alone calls trial.save()."
            )
        yield folder
        self._ranks.write(_left(self._saves, self._ranks.rank))
        self._ranks.read(_complete(self._saves))


@contextlib.contextmanager
def _store_of_process_group(ranks: StoreRanks) -> Iterator[None]:
    """Let torch's process group of this trial find a new store; end the group that is left after the block.

    After an error it is ended immediately: processes in a collective get an error too, and leave the trial.
    """
    end_process_group()  # training arguments that were sent with the function have made one
    rendezvous = Rendezvous(ranks.size) if ranks.is_main else None  # kept until the block ends
    port = ranks.decide(lambda: rendezvous and rendezvous.variables(0)["MASTER_PORT"])
    before, os.environ["MASTER_PORT"] = os.environ["MASTER_PORT"], str(port)
    try:
        yield
    except BaseException as error:
        ranks.report_error(error)  # first: those in a collective must not report its end as the cause
        raise
    else:
        ranks.leave()  # together: the others may still be in the last collective
    finally:
        os.environ["MASTER_PORT"] = before
        end_process_group()


def end_process_group() -> None:
    """End torch's process group, if there is one, and what accelerate has made of it."""
    if distributed.is_initialized():
        distributed.destroy_process_group()
    for state in (GradientState, AcceleratorState, PartialState):
        state._reset_state()


def _answer(number: int) -> str:
    return f"answer {number} to should_prune"


def _asked(rank: int) -> str:
    return f"questions of process {rank}"


def _folder(number: int) -> str:
    return f"folder of save {number}"


def _left(number: int, rank: int) -> str:
    return f"end of save {number} in process {rank}"


def _complete(number: int) -> str:
    return f"completion of save {number}"
