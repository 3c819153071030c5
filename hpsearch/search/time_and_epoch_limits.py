"""When the budget of a trial or of the whole search is exhausted: time, epochs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ..system.interruption import Interruption
from .peer_summary import PeerTrials
from .study import Study
from .trial_record import TrialRecord, TrialState

# How the reason of a budget begins that is the trial's own.
OF_THE_TRIAL, _OF_THE_STUDY = "the trial's ", "the study's "
# Epochs are sums of fractions.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Stop:
    """Why a budget or a signal stops a trial.

    Attributes:
        reason: in words.
        ends_study: whether the search ends too.
        is_interruption: whether the trial resumes from here in the next session, whatever it has reached.
    """

    reason: str
    ends_study: bool
    is_interruption: bool = False


class FirstCall(NamedTuple):
    """The call of a function before its search begins; it belongs to the time of the search.

    Attributes:
        seconds: that it took; 0 if there was none.
        is_first_trial: whether its result is that of trial 0, which only has to be recorded.
    """

    seconds: float = 0.0
    is_first_trial: bool = False


NO_FIRST_CALL = FirstCall()


class SearchBudget:
    """The budget of one call of the search: its own time, and the remaining epochs of the study.

    Args:
        study: the settings.
        seconds: what is left of the time; None: all of the study's timeout.
        clock: returns the seconds since some moment; the budgets of the trials read it too.
        interruption: notes a signal that ends the search; the trials ask it too.
    """

    def __init__(
        self,
        study: Study,
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        interruption: Interruption | None = None,
    ) -> None:
        self._study, self.clock, self._begin = study, clock, clock()
        self.interruption = interruption or Interruption()
        left = study.timeout if seconds is None else seconds
        self._end = None if left is None else self._begin + left
        self._limit = f"timeout of {study.timeout} s"
        self._is_set_by_hand = False

    @property
    def seconds(self) -> float | None:
        """What is left of the time; None if there is no limit."""
        return None if self._end is None else max(self._end - self.clock(), 0.0)

    def set_timeout(self, seconds: float, earlier: float = 0.0) -> None:
        """Set another limit of time, counted from the beginning; `earlier` seconds had passed before it."""
        self._end, self._limit = self._begin + seconds - earlier, f"timeout of {seconds} s, as set by hand,"
        self._is_set_by_hand = True

    def set_seconds_left(self, seconds: float) -> None:
        """Set what is left of the time from now on, as the searching process says."""
        self._end = self.clock() + seconds
        if not self._is_set_by_hand:  # here; else the limit is known in words
            self._limit = "timeout, as set by hand,"

    def passed(self, epochs: float) -> Stop | None:
        """Return why no more may be trained after this number of epochs of all trials, or None."""
        if self._end is not None and self.clock() >= self._end:
            return Stop(f"{_OF_THE_STUDY}{self._limit} is over", ends_study=True)
        limit = self._study.max_epochs
        if limit is not None and epochs >= limit - _ROUNDING:
            return Stop(f"{_OF_THE_STUDY}{limit:g} {self._study.unit}s are exhausted", ends_study=True)
        return None


class TrialBudget:
    """The budget of one trial, checked after every optimizer step.

    Args:
        study: the settings.
        search: what the call of the search may take, and its clock.
        others: the other trials of the study.
    """

    def __init__(self, study: Study, search: SearchBudget, others: PeerTrials) -> None:
        self._study, self._search, self._others = study, search, others
        self._clock, self.interruption = search.clock, search.interruption
        self._begin = self._clock()
        self._is_training = False
        self._earlier_seconds = 0.0

    @property
    def is_limited(self) -> bool:
        """True if there is a budget at all."""
        study = self._study
        limits = (self._search.seconds, study.max_epochs, study.trial_timeout, study.trial_max_epochs)
        return any(each is not None for each in limits)

    def set_seconds_left(self, seconds: float) -> None:
        """Set what is left of the time of the search from now on."""
        self._search.set_seconds_left(seconds)

    @property
    def seconds(self) -> float:
        """The time that training and evaluation have taken, sessions before this one included."""
        return self._earlier_seconds + self._clock() - self._begin

    def begin_training(self) -> None:
        """Count from here, if the trial has not trained in this session: without a preflight, or building the model."""
        if not self._is_training:
            self._begin, self._is_training = self._clock(), True

    def continue_after(self, seconds: float) -> None:
        """Continue from a checkpoint that was written after `seconds`; those of this session are known already."""
        known = self._clock() - self._begin if self._is_training else 0.0
        self._earlier_seconds = max(self._earlier_seconds, seconds - known)

    def passed(self, epochs: float) -> Stop | None:
        """Return why to stop after this number of epochs of this trial, or None while its budget lasts."""
        stop = self._search.passed(self._others.epochs + epochs)
        if stop is not None:
            return stop
        study = self._study
        if study.trial_timeout is not None and self.seconds >= study.trial_timeout:
            return Stop(f"{OF_THE_TRIAL}timeout of {study.trial_timeout} s is over", ends_study=False)
        if study.trial_max_epochs is not None and epochs >= study.trial_max_epochs - _ROUNDING:
            return Stop(f"{OF_THE_TRIAL}{study.trial_max_epochs:g} {study.unit}s are exhausted", ends_study=False)
        return None


def ended_by_itself(record: TrialRecord) -> bool:
    """Return whether a trial has trained to completion, or exhausted its own budget."""
    return record.state is TrialState.COMPLETE or (record.reason or "").startswith(OF_THE_TRIAL)


def was_cut_short(record: TrialRecord, study: Study) -> bool:
    """Return whether a budget stopped a trial before the budgets that this study has for each trial would stop it.

    A budget of the whole study that stopped a trial says nothing about what one of the next search may take.
    """
    if record.state is not TrialState.STOPPED or not (record.reason or "").startswith((OF_THE_TRIAL, _OF_THE_STUDY)):
        return False
    has_its_time = study.trial_timeout is not None and record.seconds >= study.trial_timeout
    has_its_epochs = study.trial_max_epochs is not None and record.epochs >= study.trial_max_epochs - _ROUNDING
    return not (has_its_time or has_its_epochs)
