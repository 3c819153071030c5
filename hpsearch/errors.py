"""Every error hpsearch raises on purpose, and the wording they share.

    Exception
    ├── HpsearchError
    │   ├── InvalidInputError (also ValueError)   something the caller wrote cannot be right
    │   │   ├── ArgumentError                     a training argument or its value
    │   │   │   ├── ArgumentTypeError             a value of another type than the argument's
    │   │   │   └── UnknownArgumentError          there is no such argument
    │   │   ├── SpaceError                        a search space or one of its parameters
    │   │   │   └── UnknownParameterError (also KeyError)   code reads a parameter that the trial does not have
    │   │   ├── ObjectiveError                    the objective, its metric or its direction
    │   │   │   └── MissingMetricError (also KeyError)   evaluation does not produce a metric that is needed
    │   │   └── StudyError                        the settings of a study, or a clash with the study on disk
    │   │       ├── CannotResumeError             a half-done trial has checkpoints of another model
    │   │       └── PreflightError                one step and two batches, tried before the first trial, fail
    │   ├── CheckpointError                       a checkpoint that is missing, damaged or of another model
    │   │   └── WeightsMismatchError              the weights are of another model
    │   ├── MissingPackageError (also ImportError)   a feature needs a package that is not installed
    │   ├── StorageError                          the storage of a study cannot be reached or written
    │   ├── CommunicationError                    the processes of a trial have lost their connection
    │   │   └── ProcessFailedError                one of them failed in the middle of a collective operation
    │   ├── NoCompletedTrialError                 no trial of a study may be the best; carries all trials
    │   └── TooManyFailuresError                  trial after trial failed; carries what was found before
    └── KeyboardInterrupt
        └── SearchInterrupted                     Ctrl-C or a signal ended a search; carries what was found so far

Errors of the first family about the study itself (space, objective, study) end a search, and so do StorageError and
CommunicationError, which are no fault of the trial; anything else that happens inside a trial fails that trial only.
"""

from __future__ import annotations

import reprlib
import signal
from collections.abc import Iterable
from typing import Any


class HpsearchError(Exception):
    """Base class of the errors that hpsearch raises on purpose."""


class InvalidInputError(HpsearchError, ValueError):
    """Something the caller wrote cannot be right; the message names the value and what is allowed."""


class ArgumentError(InvalidInputError):
    """A training argument does not exist, or cannot take the value it was given."""


class ArgumentTypeError(ArgumentError):
    """A training argument cannot take a value of this type, such as text for a number; it ends a search."""


class UnknownArgumentError(ArgumentError):
    """There is no training argument, and no parameter group, of this name."""


class SpaceError(InvalidInputError):
    """A search space, or one of its parameters, cannot be searched."""


class UnknownParameterError(SpaceError, KeyError):
    """Code reads ``trial.params[name]`` of a parameter that the trial does not have; it ends the search."""

    __str__ = Exception.__str__


class ObjectiveError(InvalidInputError):
    """The objective names a metric, a direction or a value that cannot be optimised."""


class MissingMetricError(ObjectiveError, KeyError):
    """An evaluation did not produce a metric that the objective, a constraint or `metric_for_best_model` needs."""

    __str__ = Exception.__str__


class StudyError(InvalidInputError):
    """A study's settings contradict each other or the study that is already on disk."""


class CannotResumeError(StudyError):
    """A half-done trial cannot resume: the code makes another model, or the folder sets what acts elsewhere."""


class PreflightError(StudyError):
    """The step and the two batches that are tried before the first trial of a study fail; it ends the search."""


class CheckpointError(HpsearchError):
    """A checkpoint is missing, damaged or belongs to another model."""


class WeightsMismatchError(CheckpointError):
    """The weights of a checkpoint belong to another model; the message names a tensor that does not fit."""


class MissingPackageError(HpsearchError, ImportError):
    """A feature was asked for whose package is not installed."""


class NoCompletedTrialError(HpsearchError):
    """A search ended, or the best model of a study was asked for, but no trial may be the best.

    No trial has a result, or every one breaks a constraint. The message names the first failure, or the trial that
    comes closest.

    Attributes:
        run_summary: all trials, a `SearchSummary`; the same as in a `BestRun`.
    """

    def __init__(self, message: str, run_summary: Any = None) -> None:
        super().__init__(message)
        self.run_summary = run_summary


class StorageError(HpsearchError):
    """The storage of a study cannot be reached or written; the same command continues once it can."""


class CommunicationError(HpsearchError):
    """The processes of a trial have lost their connection: one of them, the agent of `torchrun` or a node has died.

    The trial is interrupted. Nothing is lost; the same command (or torchrun's ``--max-restarts``) resumes.
    """


class ProcessFailedError(CommunicationError):
    """One process of a trial failed in the middle of a collective operation of all of them, so the search ends.

    The trial is recorded with the error of that process. Nothing else is lost; the same command (or torchrun's
    ``--max-restarts``) continues.

    Attributes:
        rank: the number of the process.
        error: of the process.
    """

    def __init__(self, rank: int, error: BaseException) -> None:
        super().__init__(rank, error)
        self.rank, self.error = rank, error

    def __str__(self) -> str:
        return (
            f"Process {self.rank} failed with {type(self.error).__name__}: {self.error}\n"
            "A collective operation cannot be completed without it, so the search ends. The trial is recorded with "
            "this error, nothing else is lost: run the same command again to continue, or let torchrun restart the "
            "processes (--max-restarts)."
        )


class TooManyFailuresError(HpsearchError):
    """Trial after trial of a search failed (`max_failures`), so it ended; the message shows the first reason.

    Attributes:
        best_run: the `BestRun` over the trials there are (its `run_id` is None if none has a result); with several
            objectives a list of them.
    """

    def __init__(self, message: str, best_run: Any = None) -> None:
        super().__init__(message)
        self.best_run = best_run


class TrialPruned(HpsearchError):
    """Raised by a function that `tune` searches, to end its trial where ``trial.should_prune()`` returned True.

    Returning does the same. A function that was written for Optuna may raise ``optuna.TrialPruned``.
    """


class TrialPaused(BaseException):
    """Raised by ``trial.should_prune()`` in a function that `tune` searches: the trial pauses here.

    The function is called again with ``trial.checkpoint`` if the trial is promoted. It is no `Exception`, so that no
    ``except Exception`` of the function catches it; ``finally`` blocks and context managers run.
    """


class SearchInterrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGUSR1 ended a search; the same call continues it.

    Attributes:
        best_run: the `BestRun` over the trials that had finished (its `run_id` is None if there are none); with several
            objectives a list of them.
        signal: the number of the signal; of Ctrl-C, SIGINT.
        exit_code: that of the program, if it does not catch the error: 130, 143 or 138.
        command: continues the search; None if the command of this program is not known, holds a secret, or
            is not asked for.
    """

    def __init__(
        self, message: str, best_run: Any = None, signal: int = signal.SIGINT, command: str | None = None
    ) -> None:
        super().__init__(message)
        self.best_run, self.signal, self.command = best_run, int(signal), command

    @property
    def exit_code(self) -> int:
        """128 and the number of the signal, as shells have it."""
        return 128 + self.signal

    def __str__(self) -> str:
        return super().__str__() + (f"\nTo continue: {self.command}" if self.command else "")


def described_value(value: object) -> str:
    """Return a value in a few words: of an array its shape, of a long text its beginning.

    >>> described_value(0.9), described_value("a report"), described_value([1, 2])
    ('0.9 (float)', "the text 'a report'", '[1, 2] (list)')
    """
    kind = type(value).__name__
    if shape := getattr(value, "shape", None):
        return f"an array of shape {tuple(shape)}"
    if isinstance(value, str):
        return f"the text {reprlib.repr(value)}"
    return "None" if value is None else f"{reprlib.repr(value)} ({kind})"


def one_of(allowed: Iterable[object]) -> str:
    """Return the allowed values as readable text, sorted by their spelling.

    >>> one_of(["last", "all"])
    "'all', 'last'"
    """
    return ", ".join(sorted(repr(value) for value in allowed))
