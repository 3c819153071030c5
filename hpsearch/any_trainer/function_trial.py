"""A trial as a plain function sees it: parameters, reports, the question whether to end, and checkpoints."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from ..errors import StudyError, described_value
from ..search.folds import Fold
from ..search.space.parameters import Parameter
from ..search.trial import Trial
from .optuna_names import ReadAsInOptuna, StudyOfTrial


class FunctionEvents(Protocol):
    """What a run of a function does with the calls that the function makes on its trial."""

    @abstractmethod
    def suggest(self, name: str, parameter: Parameter) -> Any:
        """Return the trial's value for a parameter."""

    @abstractmethod
    def report(self, value: object, step: int | None) -> None:
        """Report an evaluation."""

    @abstractmethod
    def should_prune(self) -> bool:
        """Return whether the trial ends here; may raise `TrialPaused`."""

    @abstractmethod
    def save(self) -> AbstractContextManager[Path]:
        """Return a context in which the function writes a checkpoint."""


class FunctionTrial(ReadAsInOptuna, Trial):
    """The trial that a plain function receives from `hpsearch.tune`.

    The function reads parameters from `params`, or suggests them with `suggest_float`, `suggest_int` and
    `suggest_categorical`, as in Optuna. It returns a number or a dict of metrics; or None, if it has reported.

    With `processes_per_trial`, all processes of a group call the function, with the same parameters, seed and
    checkpoint. Only what process 0 reports, returns and notes counts.

    Attributes:
        seed: the seed of the trial; the random streams of Python, numpy and torch are seeded with it before the call.

    Examples:
        >>> def train(trial):
        ...     model, start = Net(trial.params["hidden"]), 0
        ...     if trial.checkpoint is not None:  # the trial resumes
        ...         saved = torch.load(trial.checkpoint / "state.pt", weights_only=True)
        ...         model.load_state_dict(saved["model"])
        ...         start = saved["epoch"]
        ...     for epoch in range(start, 10):
        ...         train_epoch(model)
        ...         trial.report({"accuracy": evaluate(model)}, step=epoch + 1)
        ...         with trial.save() as folder:
        ...             torch.save({"model": model.state_dict(), "epoch": epoch + 1}, folder / "state.pt")
        ...         if trial.should_prune():
        ...             return
        >>> best = hpsearch.tune(train, {"hidden": Int(8, 64)}, max_resource=10)  # doctest: +SKIP
    """

    def __init__(
        self, trial: Trial, seed: int, checkpoint: Path | None, events: FunctionEvents, study: StudyOfTrial
    ) -> None:
        super().__init__(trial.number, trial.earlier)
        spans = () if trial.earlier is None else trial.earlier.spans
        self.set_names_of_optuna(study, datetime.fromtimestamp(spans[0].begin) if spans else datetime.now())
        self._trial, self._events, self._checkpoint = trial, events, checkpoint
        self.seed = seed
        self.name, self.params, self.arguments = trial.name, trial.params, trial.arguments
        self.user_attrs, self.ranks = trial.user_attrs, trial.ranks

    @property
    def checkpoint(self) -> Path | None:
        """The folder of the checkpoint that the trial resumes from; None for a new trial.

        A function that never reads it cannot resume: its trials do not pause, and start again after an interruption.
        """
        return self._checkpoint

    @property
    def fold(self) -> Fold | None:
        """The indices of the samples to train on, and of those to evaluate on; None without `folds`; see `Trial`."""
        return self._trial.fold

    def report(self, value: object, step: int | None = None) -> None:
        """Report an evaluation; call `should_prune` afterwards. In a group, this has an effect in process 0 only.

        Args:
            value: a number, a dict of metrics by name or, for several objectives, a tuple of numbers.
            step: the progress of training, an integer that increases from report to report: epochs, optimizer steps,
                trees, ... It counts from 1, or from 0 in all trials. Default: one more than before. A step that was
                reported already keeps its first value, as in Optuna, and the search gives notice of it once.

        Raises:
            StudyError: the value is not a number, or the step comes before the last one and was not reported.
        """
        self._events.report(value, step)

    def should_prune(self) -> bool:
        """Return whether the trial ends here: it is pruned, or a limit or a signal ends it.

        The function then returns, or raises `TrialPruned`. In a group, all processes call it, and get the same answer.

        Raises:
            TrialPaused: the trial pauses, as there is a checkpoint of this step or of the one before. It is not an
                `Exception`.
        """
        return self._events.should_prune()

    def save(self) -> AbstractContextManager[Path]:
        """Return a context that provides an empty folder for a checkpoint.

        The folder becomes the trial's checkpoint at the end of the block. If the block raises, the last checkpoint
        stays. In a group, all processes get the same folder, and wait for each other at the end of the block; process 0
        may call it alone if `should_prune` is what the others call next.
        """
        return self._events.save()

    def suggest(self, name: str, parameter: Parameter) -> Any:
        """Return the trial's value for a parameter, choosing it at the first call."""
        return self._events.suggest(name, parameter)

    def _choose(self, name: str, parameter: Parameter) -> Any:
        return self._trial.suggest(name, parameter)


def as_metrics(value: object, code: str) -> dict[str, float]:
    """Return what a function has reported or returned as metrics by name: a number is ``eval_value``.

    >>> as_metrics(0.5, "train"), as_metrics({"accuracy": 0.9}, "train"), as_metrics((1, 2.0), "train")
    ({'eval_value': 0.5}, {'eval_accuracy': 0.9}, {'eval_value_0': 1.0, 'eval_value_1': 2.0})

    Raises:
        StudyError: it is none of these.
    """
    if isinstance(value, Mapping) and value:
        named = {str(name): each for name, each in value.items()}
    elif isinstance(value, (tuple, list)) and value:
        named = {f"{VALUE}_{index}": each for index, each in enumerate(value)}
    else:
        named = {VALUE: value}
    numbers = {name: as_number(each) for name, each in named.items()}
    for name, each in numbers.items():
        if each is None:
            which = "" if named[name] is value else f"{name}="
            raise StudyError(
                f"{code} must report and return numbers, dicts of metrics, or tuples of numbers, but {which}"
                f"{described_value(named[name])} is no number."
            )
    return {
        name if name.startswith("eval_") else f"eval_{name}": math.nan if each is None else each
        for name, each in numbers.items()
    }


def as_number(value: object) -> float | None:
    """Return a number, also of numpy or torch, as a float; None if it is none."""
    if isinstance(value, (str, bytes)) or value is None:
        return None
    try:
        return float(value.item() if hasattr(value, "item") else value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        return None


VALUE = "value"
