"""Every error that hpsearch raises on purpose.

    Exception
    ├── HpsearchError
    │   ├── InvalidInputError (also ValueError)   an invalid value from the caller
    │   │   ├── ArgumentError                     a training argument or its value
    │   │   │   ├── ArgumentTypeError             a value of the wrong type
    │   │   │   └── UnknownArgumentError          an argument that does not exist
    │   │   ├── SpaceError                        a search space or one of its parameters
    │   │   │   └── UnknownParameterError         (also KeyError) a parameter that does not exist
    │   │   ├── ObjectiveError                    the objective, its metric or its direction
    │   │   │   └── MissingMetricError            (also KeyError) a metric that no evaluation has
    │   │   └── StudyError                        the settings of a study, or its folder
    │   │       ├── CannotResumeError             a half-done trial cannot resume
    │   │       └── PreflightError                the preflight failed
    │   ├── CheckpointError                       a checkpoint is missing, damaged or of another model
    │   │   └── WeightsMismatchError              the weights are of another model
    │   ├── MissingPackageError               (also ImportError) a package is not installed
    │   ├── StorageError                          the storage of a study cannot be reached or written
    │   ├── CommunicationError                    the processes of a trial have lost their connection
    │   │   └── ProcessFailedError                one of them failed in a collective operation
    │   ├── NoCompletedTrialError                 no trial may be the best; has all trials
    │   └── TooManyFailuresError                  consecutive trials failed; has the best run so far
    └── KeyboardInterrupt
        └── SearchInterrupted                     Ctrl-C or a signal ended a search

A SpaceError, an ObjectiveError and a StudyError are about the study itself, and end a search. StorageError and
CommunicationError are not the fault of a trial, and end a search too. Any other error inside a trial fails only that
trial.
"""

from __future__ import annotations

import reprlib
import signal
from collections.abc import Iterable
from typing import Any


class HpsearchError(Exception):
    """Base class of the errors that hpsearch raises on purpose."""


class InvalidInputError(HpsearchError, ValueError):
    """A value from the caller is invalid; the message names it and the allowed values."""


class ArgumentError(InvalidInputError):
    """A training argument does not exist, or cannot take the given value."""


class ArgumentTypeError(ArgumentError):
    """A training argument cannot take a value of this type, such as text for a number. It ends a search."""


class UnknownArgumentError(ArgumentError):
    """No training argument and no parameter group has this name."""


class SpaceError(InvalidInputError):
    """A search space, or one of its parameters, cannot be searched."""


class UnknownParameterError(SpaceError, KeyError):
    """Code reads ``trial.params[name]``, but the trial has no such parameter. It ends the search."""

    __str__ = Exception.__str__


class ObjectiveError(InvalidInputError):
    """The objective has a metric, a direction or a value that cannot be optimised."""


class MissingMetricError(ObjectiveError, KeyError):
    """An evaluation did not produce a metric that the objective, a constraint or `metric_for_best_model` needs."""

    __str__ = Exception.__str__


class StudyError(InvalidInputError):
    """The settings of a study contradict each other, or the study on disk."""


class CannotResumeError(StudyError):
    """A half-done trial cannot resume: the code builds another model, or the folder has unsafe settings."""


class PreflightError(StudyError):
    """The preflight, which tries a step and two batches before the first trial, failed. It ends the search."""


class CheckpointError(HpsearchError):
    """A checkpoint is missing, damaged or belongs to another model."""


class WeightsMismatchError(CheckpointError):
    """The weights of a checkpoint belong to another model; the message names a tensor that does not fit."""


class MissingPackageError(HpsearchError, ImportError):
    """A feature needs a package that is not installed."""


class NoCompletedTrialError(HpsearchError):
    """No trial of a study may be the best, at the end of a search or when its best model is needed.

    Either no trial has a result, or all trials break a constraint. The message names the first failure, or the trial
    that comes closest.

    Attributes:
        run_summary: all trials: a `SearchSummary`, as in a `BestRun`.
    """

    def __init__(self, message: str, run_summary: Any = None) -> None:
        super().__init__(message)
        self.run_summary = run_summary


class StorageError(HpsearchError):
    """The storage of a study cannot be reached or written; the same command continues once it can."""


class CommunicationError(HpsearchError):
    """The processes of a trial have lost their connection: a process, the agent of `torchrun` or a node died.

    The trial is interrupted. Nothing is lost; the same command (or torchrun's ``--max-restarts``) resumes.
    """


class ProcessFailedError(CommunicationError):
    """One process of a trial failed while the others were in a collective operation; under a launcher the search ends.

    The trial is recorded with the error of that process. Nothing else is lost; the same command (or torchrun's
    ``--max-restarts``) continues. With `processes_per_trial`, a new group of processes continues.

    Attributes:
        rank: the number of the process.
        error: the error that it raised.
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
    """The search ended after `max_failures` consecutive failed trials; the message shows the first failure.

    Attributes:
        best_run: the `BestRun` so far (its `run_id` is None if no trial has a result); with several objectives, a
            list of them.
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
        best_run: the `BestRun` so far (its `run_id` is None if no trial has a result); with several objectives, a
            list of them.
        signal: the number of the signal; SIGINT for Ctrl-C.
        exit_code: the exit code of the program, if it does not catch the error: 130, 143 or 138.
        command (str | None): the command that continues the search; None if it is unknown, contains a secret, or was
            not requested.
    """

    def __init__(
        self, message: str, best_run: Any = None, signal: int = signal.SIGINT, command: str | None = None
    ) -> None:
        super().__init__(message)
        self.best_run, self.signal, self.command = best_run, int(signal), command

    @property
    def exit_code(self) -> int:
        """128 plus the number of the signal, as in shells."""
        return 128 + self.signal

    def __str__(self) -> str:
        return super().__str__() + (f"\nTo continue: {self.command}" if self.command else "")

    def _render_traceback_(self) -> list[str]:
        """Return what IPython, and so a notebook, shows of the error in place of a traceback."""
        return str(self).splitlines()


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
