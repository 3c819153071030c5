"""The preflight before the first trial of a study: one training step and an evaluation of two batches.

It runs where the trial is about to run, with the parameters and the seed of the trial, on a separate model that is
discarded. It leaves no trace: no checkpoint and no report, no callback of the user's and no tracker is called, and the
random streams are restored.

Only an error that is certain to be a mistake ends the search: one that other parameters raise too, or that a trial has
failed with before. All others (exhausted memory, numbers that are not finite, an error that a callback might prevent,
which a preflight leaves out) are left to the trial, which records them.
"""

from __future__ import annotations

import contextlib
import sysconfig
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..errors import (
    ArgumentTypeError,
    HpsearchError,
    InvalidInputError,
    ObjectiveError,
    PreflightError,
    SpaceError,
    StudyError,
    UnknownArgumentError,
)
from ..search.metrics.added_metrics import with_num_parameters
from ..search.process_group import Ranks
from ..search.space.drawn_trial import DrawnTrial
from ..search.space.read_parameters import check_read
from ..search.space.search_space import SearchSpace
from ..search.study import Study
from ..search.trial import Trial
from ..system.files import disk_problem
from ..system.temporary_folders import scratch_folder
from ..training.batch_size import is_out_of_memory
from ..training.best_model import metric_value
from ..training.callbacks import TrainerCallback
from ..training.first_samples import first_samples
from .searchable import PreflightTrainer, Searchable, Trainable

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

BATCHES = 2
# The number of other configurations that are tried before an error counts as a mistake.
_DRAWS = 3
# Advice for errors of transformers that lack it.
_ADVICE = {
    "vars() argument must have __dict__": "samples must be dicts of what the model's forward takes, not tuples; or "
    "pass a data_collator that makes such a dict of them",
}
Result = TypeVar("Result")


class Draw(NamedTuple):
    """Other parameters than those of the trial, drawn at random from the same space.

    Attributes:
        params: all of them.
        arguments: those that the run is configured with.
    """

    params: dict[str, object]
    arguments: dict[str, object]


@dataclass(frozen=True)
class PreflightPlan:
    """The facts that a preflight needs from the process of the search.

    Attributes:
        others: parameters that are tried if those of the trial raise an error.
        failed: the trial that has failed last, if there is no success so far, and its reason; None: none has.
    """

    others: tuple[Draw, ...] = ()
    failed: tuple[int, str] | None = None


def plan_preflight(study: Study, number: int, failed: tuple[int, str] | None) -> PreflightPlan:
    """Return the plan for trial `number`; `failed` is the trial that has failed last, with its reason.

    Other parameters are drawn from a static space only: a function as space is called for trials only.
    """
    found: list[Draw] = []
    for draw in range(_DRAWS if isinstance(study.space, SearchSpace) else 0):
        trial = DrawnTrial(f"{study.seed}/preflight/{draw}", number)
        arguments = study.suggest(trial)
        found.append(Draw(dict(trial.params.values_by_name), arguments))
    return PreflightPlan(tuple(found), failed)


def preflight(
    recipe: Searchable,
    study: Study,
    trial: Trial,
    plan: PreflightPlan,
    ranks: Ranks,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Train one step and evaluate two batches as the trial would; return in a line whether it passed, and its cost.

    Args:
        recipe: that the trial is made from.
        study: the settings; its objectives, constraints and pruning metric are read from the evaluation.
        trial: with its parameters.
        plan: see `plan_preflight`.
        ranks: the processes of the trial; all of them do it together.
        clock: returns the time in seconds.

    Raises:
        PreflightError: building, training or evaluating the model fails, and not for these parameters only; or
            `compute_metrics` fails on the whole evaluation set too.
        SpaceError: a parameter is never read, or unknown.
        ObjectiveError: a metric that is needed is missing, also from an evaluation of the whole set.
    """
    began = clock()
    with scratch_folder() as folder:
        said = _Preflight(recipe, study, ranks, folder).run(trial, plan)
    return f"Preflight in {clock() - began:.1f} s: {said} (preflight=False skips it)"


class _Preflight:
    """Tries configurations in turn; each process of the trial does the same."""

    def __init__(self, recipe: Searchable, study: Study, ranks: Ranks, folder: Path) -> None:
        self._recipe, self._study, self._ranks, self._folder = recipe, study, ranks, folder

    def run(self, trial: Trial, plan: PreflightPlan) -> str:
        """Return a description of what works, or of what is left to the trial."""
        try:
            return self._try(trial)
        except _LeftToTheTrial as left:
            return str(left)
        except _Failed as failed:
            doing, error, left_out = failed.doing, failed.error, failed.left_out
        failing = 0
        for place, other in enumerate(plan.others):
            try:
                self._try(_trial_of(other, trial, place))
            except _LeftToTheTrial:  # it shows nothing
                continue
            except (_Failed, InvalidInputError):
                failing += 1
            else:
                return f"{doing} raises {_described(error)} with these parameters, but not with others"
        reasons = []
        if plan.failed is not None and plan.failed[1].startswith(f"{type(error).__name__}:"):
            reasons.append(f"trial {plan.failed[0]} has failed in the same way")
        if failing and not left_out:
            reasons.append(f"{failing} other configuration{'s raise' if failing > 1 else ' raises'} an error as well")
        if not reasons:
            why = f"without {_named(left_out)}" if left_out else "with these parameters"
            return f"{doing} raises {_described(error)} {why}; the trial will show whether this is a mistake"
        raise PreflightError(
            f"The preflight failed: {doing} raises {_described(error)}{_place(error)}; {' and '.join(reasons)}. "
            "Correct it and run the same command again. (preflight=False searches anyway.)"
        ) from error

    def _try(self, trial: Trial) -> str:
        """Train one step and evaluate two batches; return what works.

        Raises:
            _Failed: one of them failed.
            _LeftToTheTrial: memory is exhausted, or the numbers are not finite.
            HpsearchError: a mistake in the study.
        """
        with contextlib.ExitStack() as stack:
            made = self._recipe.preflight_trainer(trial, str(self._folder))
            found = self._do("building the trainer", lambda: stack.enter_context(made))
            if found.skips is not None:
                self._do("reading the parameters", lambda: check_read(trial, self._recipe))
                return f"the step and the evaluation are skipped, because {found.skips}"
            callback = _OneStep()
            found.trainer.add_callback(callback)
            self._do("building the model, or its first training step,", found.trainer.train, found.left_out)
            self._do("reading the parameters", lambda: check_read(trial, self._recipe))
            return self._evaluate(found, callback)

    def _evaluate(self, found: PreflightTrainer, callback: _OneStep) -> str:
        def judge(evaluate: Callable[[], object]) -> None:
            callback.metrics.clear()
            evaluate()
            _check_metrics(self._study, callback, getattr(found.trainer.args, "metric_for_best_model", None))

        try:
            self._do("evaluating", lambda: judge(lambda: _evaluate_batches(found.trainer)))
        except (_Failed, ObjectiveError):
            if self._ranks.together(callback.has_diverged):
                raise _LeftToTheTrial(
                    "after one step the weights are not finite, which the trial will record"
                ) from None
            try:
                self._do("evaluating", lambda: judge(found.trainer.evaluate))
            except ObjectiveError as error:
                adding = [each for each in found.left_out if _acts_on_evaluations(each)]
                if not adding or "Did you mean" in str(error):
                    raise
                raise _LeftToTheTrial(f"without {_named(adding)}, {_as_clause(error)}") from error
            return "one step and the whole evaluation work; two batches are not enough for its metrics"
        return f"one step and an evaluation of {BATCHES} batches work"

    def _do(self, doing: str, action: Callable[[], Result], left_out: Sequence[object] = ()) -> Result:
        """Act together with the other processes; an error of any of them is raised in all.

        The user's callbacks that are `left_out` might prevent it.
        """
        try:
            return self._ranks.together(action)
        except (UnknownArgumentError, ArgumentTypeError) as error:
            raise SpaceError(str(error)) from None
        except (SpaceError, ObjectiveError, StudyError):
            raise
        except InvalidInputError as error:  # other parameters may suit the arguments, or the model
            raise _Failed(doing, error, left_out) from error
        except HpsearchError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise _LeftToTheTrial(f"{doing} runs out of memory, which the trial will record") from None
            if disk_problem(error) is not None:
                raise
            raise _Failed(doing, error, left_out) from error


def _evaluate_batches(trainer: Trainable) -> None:
    """Evaluate the model on the first batches of each evaluation set; without one, as the trainer itself does."""
    if trainer.eval_dataset is None:
        trainer.evaluate()
        return
    samples = BATCHES * trainer.args.eval_batch_size * trainer.args.world_size
    trainer.evaluate(first_samples(trainer.eval_dataset, samples))


def _trial_of(draw: Draw, trial: Trial, place: int) -> Trial:
    """Return a trial with other parameters; those that only the user's code suggests are drawn as it does."""
    other = DrawnTrial(f"preflight/{trial.number}/{place}", trial.number)
    other.params.values_by_name.update(draw.params)
    other.params.of_all_branches, other.folds = trial.params.of_all_branches, trial.folds
    other.arguments, other.suggested_by_space = dict(draw.arguments), set(draw.params)
    return other


def _check_metrics(study: Study, evaluated: _OneStep, for_best_model: str | None) -> None:
    """Check that all metrics that the study needs exist; their values do not matter.

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
    if for_best_model is not None:  # each evaluation of a trial reads it
        metric_value(evaluated.metrics, for_best_model)


class _OneStep(TrainerCallback):
    """Stops training after the first step, and notes the results of evaluations.

    Attributes:
        metrics: of all evaluation sets.
        num_parameters: of the model.
    """

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.num_parameters = 0
        self._model: Any = None

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        self._model = kwargs.get("model")
        control.should_training_stop = True
        control.should_log = control.should_evaluate = control.should_save = False
        return control

    on_epoch_end = on_step_end

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        self.metrics.update(metrics or {})
        model = kwargs.get("model")
        if model is not None:
            self.num_parameters = sum(each.numel() for each in model.parameters())

    def has_diverged(self) -> bool:
        """Return whether the step has led to weights that are not finite."""
        weights = () if self._model is None else self._model.parameters()
        return not all(bool(each.isfinite().all()) for each in weights)


class _Failed(Exception):
    """Something failed, perhaps only with these parameters, or without the user's callbacks `left_out`."""

    def __init__(self, doing: str, error: Exception, left_out: Sequence[object] = ()) -> None:
        super().__init__(doing)
        self.doing, self.error, self.left_out = doing, error, left_out


class _LeftToTheTrial(Exception):
    """The trial will record what happened."""


def _acts_on_evaluations(callback: Any) -> bool:
    return type(callback).on_evaluate is not TrainerCallback.on_evaluate


def _named(callbacks: Sequence[object]) -> str:
    return ", ".join(type(each).__name__ for each in callbacks)


def _as_clause(error: Exception) -> str:
    said = str(error)
    return said[:1].lower() + said[1:].removesuffix(".")


def _described(error: BaseException) -> str:
    said = str(error).strip().partition("\n")[0]
    advice = "".join(f" ({each})" for begin, each in _ADVICE.items() if said.startswith(begin))
    return f"{type(error).__name__}: {said}{advice}" if said else type(error).__name__


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
