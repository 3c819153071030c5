"""Before the first trial of a study: one training step and an evaluation of two batches, and what mistakes they show.

It runs where the trial is about to run, with the parameters and the seed of the trial, on a model of its own that is
thrown away. Nothing of it is kept: no checkpoint, no report, no tracker hears of it, and the random streams are put
back. What may be the bad luck of these parameters (memory, numbers that are not finite, an error that other parameters
do not make) is left to the trial, which records it.
"""

from __future__ import annotations

import contextlib
import sysconfig
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ..callbacks import TrainerCallback
from ..errors import HpsearchError, ObjectiveError, PreflightError, SpaceError, UnknownArgumentError
from ..files import disk_problem
from ..scratch import scratch_folder
from .added_metrics import with_num_parameters
from .drawn_trial import DrawnTrial
from .read_parameters import ReadsParameters, check_read
from .study import Study
from .trial import Trial

BATCHES = 2
# So many other parameters are tried before an error is taken for a mistake.
_DRAWS = 3


class PreflightTrainer(ReadsParameters, Protocol):
    """A trainer for a preflight: it has no callbacks and no trackers, evaluates and saves nothing while it trains.

    Attributes:
        skips: why it cannot train a step only to try it, in words that follow "because"; None: it can.
    """

    skips: str | None

    def add_callback(self, callback: Any) -> None:
        """Add a callback to it."""

    def train(self) -> Any:
        """Train a new model until a callback stops it."""

    def evaluate(self) -> dict[str, float]:
        """Evaluate the model on the whole of the evaluation data."""

    def evaluate_batches(self, count: int) -> dict[str, float]:
        """Evaluate the model on the first batches of each evaluation set."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Tell whether an error is one of memory that is exhausted."""


class MakesPreflightTrainers(Protocol):
    """The recipe that trials are made from."""

    def preflight_trainer(self, trial: Trial, output_dir: str) -> contextlib.AbstractContextManager[PreflightTrainer]:
        """Return a trainer with the trial's parameters; after the block it is dropped, the random streams put back."""


def preflight(
    recipe: MakesPreflightTrainers, study: Study, trial: Trial, clock: Callable[[], float] = time.monotonic
) -> str:
    """Train one step and evaluate two batches as the trial would; return in a line that it passed, and its cost.

    Args:
        recipe: that the trial is made from.
        study: the settings; its objectives, constraints and pruning metric are read from the evaluation.
        trial: with its parameters.
        clock: tells seconds.

    Raises:
        PreflightError: building, training or evaluating the model fails, and not for these parameters only; or
            `compute_metrics` fails on the whole evaluation set too.
        SpaceError: nobody reads a parameter, or it is unknown.
        ObjectiveError: a metric that is needed is missing, also from an evaluation of the whole set.
    """
    began = clock()
    said = _attempt(recipe, study, trial)
    return f"Preflight in {clock() - began:.1f} s: {said} (preflight=False skips it)"


def _attempt(recipe: MakesPreflightTrainers, study: Study, trial: Trial) -> str:
    with scratch_folder() as folder:
        try:
            return _try(recipe, study, trial, folder)
        except _LeftToTheTrial as left:
            return str(left)
        except _Failed as failed:
            error, doing, may_be_bad_luck = failed.error, failed.doing, failed.may_be_bad_luck
        for draw in range(_DRAWS if may_be_bad_luck else 0):
            try:
                _try(recipe, study, _other_trial(study, trial, draw), folder)
            except (_Failed, _LeftToTheTrial, HpsearchError):
                pass
            else:
                return f"{doing} raises {_described(error)} with these parameters, but not with others"
        raise PreflightError(
            f"The preflight failed: {doing} raises {_described(error)}{_place(error)}. No trial has trained. Mend it "
            "and run the same again, or pass preflight=False if only some parameters raise it."
        ) from error


def _try(recipe: MakesPreflightTrainers, study: Study, trial: Trial, folder: Path) -> str:
    """Train one step and evaluate two batches; return what was proved.

    Raises:
        _Failed: one of them failed.
        _LeftToTheTrial: memory is exhausted.
        HpsearchError: a mistake in the study.
    """
    try:
        with recipe.preflight_trainer(trial, str(folder)) as trainer:
            return _use(trainer, study, trial)
    except UnknownArgumentError as error:
        raise SpaceError(str(error)) from None
    except (HpsearchError, _Failed, _LeftToTheTrial):
        raise
    except Exception as error:
        if disk_problem(error) is not None:
            raise
        raise _Failed("building the trainer", error) from error


def _use(trainer: PreflightTrainer, study: Study, trial: Trial) -> str:
    if trainer.skips is not None:
        check_read(trial, trainer)
        return f"the step and the evaluation are skipped, because {trainer.skips}"
    callback = _OneStep()
    trainer.add_callback(callback)
    _do("building the model, or its first training step,", trainer, trainer.train)
    check_read(trial, trainer)

    def judge(evaluate: Callable[[], Any]) -> None:
        callback.metrics.clear()
        evaluate()
        _check_metrics(study, callback)

    try:
        _do("evaluating", trainer, lambda: judge(lambda: trainer.evaluate_batches(BATCHES)))
    except (_Failed, ObjectiveError):
        _do("evaluating", trainer, lambda: judge(trainer.evaluate), may_be_bad_luck=False)
        return "one step and the whole evaluation work; two batches are not enough for its metrics"
    return f"one step and an evaluation of {BATCHES} batches work"


def _do(doing: str, trainer: PreflightTrainer, action: Callable[[], Any], may_be_bad_luck: bool = True) -> None:
    try:
        action()
    except HpsearchError:
        raise
    except Exception as error:
        if trainer.is_out_of_memory(error):
            raise _LeftToTheTrial(f"{doing} runs out of memory, which the trial will record") from None
        if disk_problem(error) is not None:
            raise
        raise _Failed(doing, error, may_be_bad_luck) from error


def _other_trial(study: Study, trial: Trial, draw: int) -> Trial:
    """Return a trial of the same number with other parameters."""
    other = DrawnTrial(f"{study.seed}/preflight/{draw}", trial.number)
    other.arguments = study.suggest(other)
    other.suggested_by_space = set(other.params.values_by_name)
    return other


def _check_metrics(study: Study, evaluated: _OneStep) -> None:
    """Check that all metrics that the study needs are there; what they are, is of no interest.

    Raises:
        ObjectiveError: one is not.
    """
    metrics = with_num_parameters(evaluated.metrics, evaluated.num_parameters)
    for objective in study.objectives:
        objective.value(metrics)
    if study.pruning_objective is not None:
        study.pruning_objective.value(metrics, "pruning_metric")
    for constraint in study.constraints:
        constraint.violation(metrics)


class _OneStep(TrainerCallback):
    """Stops training after the first update, and notes what evaluations give.

    Attributes:
        metrics: of all evaluation sets.
        num_parameters: of the model.
    """

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.num_parameters = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control.should_training_stop = True
        control.should_log = control.should_evaluate = control.should_save = False
        return control

    on_epoch_end = on_step_end

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        self.metrics.update(metrics or {})
        model = kwargs.get("model")
        if model is not None:
            self.num_parameters = sum(each.numel() for each in model.parameters())


class _Failed(Exception):
    """Something failed; `may_be_bad_luck`: perhaps only with these parameters."""

    def __init__(self, doing: str, error: Exception, may_be_bad_luck: bool = True) -> None:
        super().__init__(doing)
        self.doing, self.error, self.may_be_bad_luck = doing, error, may_be_bad_luck


class _LeftToTheTrial(Exception):
    """What happened is for the trial to record."""


def _described(error: BaseException) -> str:
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _place(error: BaseException) -> str:
    """Return where in the user's own code an error was raised, as " (train.py, line 3, in collate)"; or nothing."""
    own = [each for each in traceback.extract_tb(error.__traceback__) if not _is_of_a_package(each.filename)]
    if not own:
        return ""
    last = own[-1]
    return f" ({Path(last.filename).name}, line {last.lineno}, in {last.name})"


def _is_of_a_package(file: str) -> bool:
    library = sysconfig.get_paths()
    places = (library["purelib"], library["platlib"], library["stdlib"], str(Path(__file__).parents[1]))
    return file.startswith(places) or file.startswith("<")
