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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from ..callbacks import TrainerCallback
from ..errors import ArgumentTypeError, HpsearchError, ObjectiveError, PreflightError, SpaceError, UnknownArgumentError
from ..files import disk_problem
from ..scratch import scratch_folder
from .added_metrics import with_num_parameters
from .drawn_trial import DrawnTrial
from .ranks import Ranks
from .read_parameters import ReadsParameters, check_read
from .space import SearchSpace
from .study import Study
from .trial import Trial

BATCHES = 2
# So many other parameters are tried before an error is taken for a mistake.
_DRAWS = 3
# Where there is no trainer yet that knows better: Python's and torch's.
_OF_MEMORY = ("MemoryError", "OutOfMemoryError")
Result = TypeVar("Result")


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


class Draw(NamedTuple):
    """Other parameters than those of the trial, drawn at random from the same space.

    Attributes:
        params: all of them.
        arguments: those that the run is configured with.
    """

    params: dict[str, Any]
    arguments: dict[str, Any]


def other_draws(study: Study, number: int) -> tuple[Draw, ...]:
    """Return some parameters, to tell an error that all trials make from one of the parameters of trial `number`.

    There are none of a function as space, which is called for trials only.
    """
    found: list[Draw] = []
    for draw in range(_DRAWS if isinstance(study.space, SearchSpace) else 0):
        trial = DrawnTrial(f"{study.seed}/preflight/{draw}", number)
        arguments = study.suggest(trial)
        found.append(Draw(dict(trial.params.values_by_name), arguments))
    return tuple(found)


def preflight(
    recipe: MakesPreflightTrainers,
    study: Study,
    trial: Trial,
    others: Sequence[Draw],
    ranks: Ranks,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Train one step and evaluate two batches as the trial would; return in a line that it passed, and its cost.

    Args:
        recipe: that the trial is made from.
        study: the settings; its objectives, constraints and pruning metric are read from the evaluation.
        trial: with its parameters.
        others: parameters that are tried if those of the trial raise an error.
        ranks: the processes of the trial; all of them do it together.
        clock: tells seconds.

    Raises:
        PreflightError: building, training or evaluating the model fails, and not for these parameters only; or
            `compute_metrics` fails on the whole evaluation set too.
        SpaceError: nobody reads a parameter, or it is unknown.
        ObjectiveError: a metric that is needed is missing, also from an evaluation of the whole set.
    """
    began = clock()
    with scratch_folder() as folder:
        said = _Preflight(recipe, study, ranks, folder).run(trial, others)
    return f"Preflight in {clock() - began:.1f} s: {said} (preflight=False skips it)"


class _Preflight:
    """What is tried with one configuration after the other; each process of the trial does the same."""

    def __init__(self, recipe: MakesPreflightTrainers, study: Study, ranks: Ranks, folder: Path) -> None:
        self._recipe, self._study, self._ranks, self._folder = recipe, study, ranks, folder

    def run(self, trial: Trial, others: Sequence[Draw]) -> str:
        """Return what works, or why it is left to the trial."""
        try:
            return self._try(trial)
        except _LeftToTheTrial as left:
            return str(left)
        except _Failed as failed:
            doing, error, may_be_bad_luck = failed.doing, failed.error, failed.may_be_bad_luck
        for other in others if may_be_bad_luck else ():
            try:
                self._try(_trial_of(other, trial))
            except (_Failed, _LeftToTheTrial, HpsearchError):
                pass
            else:
                return f"{doing} raises {_described(error)} with these parameters, but not with others"
        raise PreflightError(
            f"The preflight failed: {doing} raises {_described(error)}{_place(error)}. No trial has trained. Mend it "
            "and run the same again, or pass preflight=False if only some parameters raise it."
        ) from error

    def _try(self, trial: Trial) -> str:
        """Train one step and evaluate two batches; return what works.

        Raises:
            _Failed: one of them failed.
            _LeftToTheTrial: memory is exhausted.
            HpsearchError: a mistake in the study.
        """
        with contextlib.ExitStack() as stack:
            made = self._recipe.preflight_trainer(trial, str(self._folder))
            trainer = self._do("building the trainer", None, lambda: stack.enter_context(made))
            if trainer.skips is not None:
                check_read(trial, trainer)
                return f"the step and the evaluation are skipped, because {trainer.skips}"
            callback = _OneStep()
            trainer.add_callback(callback)
            self._do("building the model, or its first training step,", trainer, trainer.train)
            check_read(trial, trainer)
            return self._evaluate(trainer, callback)

    def _evaluate(self, trainer: PreflightTrainer, callback: _OneStep) -> str:
        def judge(evaluate: Callable[[], Any]) -> None:
            callback.metrics.clear()
            evaluate()
            _check_metrics(self._study, callback)

        try:
            self._do("evaluating", trainer, lambda: judge(lambda: trainer.evaluate_batches(BATCHES)))
        except (_Failed, ObjectiveError):
            self._do("evaluating", trainer, lambda: judge(trainer.evaluate), may_be_bad_luck=False)
            return "one step and the whole evaluation work; two batches are not enough for its metrics"
        return f"one step and an evaluation of {BATCHES} batches work"

    def _do(
        self, doing: str, trainer: PreflightTrainer | None, action: Callable[[], Result], may_be_bad_luck: bool = True
    ) -> Result:
        """Act together with the other processes; what any of them raises is raised in all."""
        try:
            return self._ranks.together(action)
        except (UnknownArgumentError, ArgumentTypeError) as error:
            raise SpaceError(str(error)) from None
        except HpsearchError:
            raise
        except Exception as error:
            is_of_memory = type(error).__name__ in _OF_MEMORY or (
                trainer is not None and trainer.is_out_of_memory(error)
            )
            if is_of_memory:
                raise _LeftToTheTrial(f"{doing} runs out of memory, which the trial will record") from None
            if disk_problem(error) is not None:
                raise
            raise _Failed(doing, error, may_be_bad_luck) from error


def _trial_of(draw: Draw, trial: Trial) -> Trial:
    """Return a trial with other parameters; those that only the user's code suggests are drawn as it does."""
    other = DrawnTrial(f"preflight/{trial.number}", trial.number)
    other.params.values_by_name.update(draw.params)
    other.params.of_all_branches = trial.params.of_all_branches
    other.arguments, other.suggested_by_space = dict(draw.arguments), set(draw.params)
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
