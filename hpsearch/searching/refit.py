"""The model of a cross-validation: the best parameters are trained once more, on all data, when the search has ended.

That run is no trial, and counts in no budget. It ends after the fraction of its training run after which the folds had
their selected weights, by the median. It lies in ``<study>/refit``, and is used again while the best trial, the
arguments, the data and the functions are the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ..arguments import TrainingArguments
from ..errors import ObjectiveError, StudyError
from ..search.metrics.replicas import runs_of_trial
from ..search.metrics.selection import select_report
from ..search.result.best_run import BestRun
from ..search.store.refit_file import REFIT_FOLDER, REFIT_LOCK, Refit, folder_of_refit, read_refit, write_refit
from ..search.study import Study
from ..search.trial import FixedTrial
from ..search.trial_record import TrialRecord
from ..search.wording import counted, format_value
from ..system.files import file_lock, remove_partial, whole_folder
from ..system.interruption import Interruption
from .searched_recipe import SearchedRecipe


@runtime_checkable
class TrainsOnAllData(Protocol):
    """A recipe that can train on the data of all folds together."""

    @property
    def args(self) -> TrainingArguments:
        """The training arguments that trials have in common."""

    @property
    def data_to_split(self) -> Any:
        """The data that folds split."""

    def train_on_all_data(
        self, trial: FixedTrial, folder: Path, fraction: float, is_interrupted: Callable[[], bool]
    ) -> None:
        """Train without evaluations until this fraction of the training run, and write the weights to a folder.

        Where `is_interrupted` returns True, the training ends early, and no weights are written.
        """


def check_refit(refit: object, recipe: SearchedRecipe, study: Study) -> bool:
    """Return whether the model is to be trained on all data.

    Raises:
        InvalidInputError: it cannot.
    """
    if not isinstance(refit, bool):
        raise StudyError(f"refit must be True or False, but got {refit!r}.")
    if not refit:
        return False
    if study.folds is None:
        raise StudyError("refit=True trains the best parameters on the data of all folds; pass folds too.")
    if len(study.objectives) > 1:
        raise ObjectiveError(
            "refit=True is for one objective: with several there is no single best run. Choose one of the Pareto "
            "front, and train its hyperparameters on all data."
        )
    if not isinstance(recipe, TrainsOnAllData):
        raise StudyError(
            f"refit=True needs hpsearch.Trainer: only {recipe.user_code} has the data. Train best.hyperparameters on "
            "all of them yourself."
        )
    if study.processes > 1 or recipe.args.fsdp or recipe.args.deepspeed:
        raise StudyError(
            "refit=True trains in one process, without fsdp and deepspeed, so a model of several processes would be "
            "trained with other batches. Train best.hyperparameters on all data yourself."
        )
    if max(1, recipe.args.n_gpu) != study.gpus:
        raise StudyError(
            f"refit=True would train on the {recipe.args.n_gpu} GPUs of this process together, and each trial on one. "
            "Make one GPU visible to this process, or train best.hyperparameters on all data yourself."
        )
    return True


def refit_best(
    recipe: TrainsOnAllData,
    study: Study,
    best: BestRun,
    arguments: str,
    interruption: Interruption,
    announce: Callable[[str], None],
) -> None:
    """Train the parameters of the best run on all data, unless that has been done.

    Args:
        recipe: of the trials.
        study: the settings.
        best: its trial was trained on several folds.
        arguments: the fingerprint of what the runs of this session are trained with.
        interruption: notes a signal, which ends the training after its next optimizer step.
        announce: shows a notice.

    Raises:
        KeyboardInterrupt: it was interrupted; the same call of the search begins it again.
    """
    record = next(each for each in best.run_summary.best() if str(each.number) == best.run_id)
    runs = runs_of_trial(best.run_summary.records, record.number).records
    fractions = tuple(_selected_fraction(each, study) for each in runs)
    samples = len(recipe.data_to_split)
    made = Refit(record.number, record.values, fractions, statistics.median(fractions), samples, arguments)
    with file_lock(study.folder / REFIT_LOCK):
        if read_refit(study.folder) == made:
            return
        remove_partial(study.folder / REFIT_FOLDER)
        announce(_described(made, runs[0], study))
        with whole_folder(folder_of_refit(study.folder)) as folder:  # an earlier model stays until this one is whole
            trial = FixedTrial(record.params, record.number, _arguments(record))
            recipe.train_on_all_data(trial, folder, made.fraction, lambda: interruption.signal != 0)
            if interruption.signal:
                raise KeyboardInterrupt
            write_refit(folder, made)


def _selected_fraction(run: TrialRecord, study: Study) -> float:
    selected = select_report(run.reports, study.scope, study.objectives)
    return 1.0 if selected is None or not selected.report.fraction else min(selected.report.fraction, 1.0)


def _arguments(record: TrialRecord) -> dict[str, object]:
    """Return the arguments of a trial; those with which it fitted into the memory, if it had not before."""
    return {**record.arguments, **(record.fallbacks[-1]["arguments"] if record.fallbacks else {})}


def _described(refit: Refit, trial: TrialRecord, study: Study) -> str:
    """Return what is trained, for how long, and why this trial."""
    by_fold = ", ".join(f"{each:.0%}" for each in refit.fractions)
    much = (
        "to completion"
        if refit.fraction == 1
        else f"for {refit.fraction:.0%} of its run, the median of the folds ({by_fold})"
    )
    folds = counted(len(refit.fractions), "fold")
    return (
        f"training the parameters of trial {trial.number} on all {refit.samples:,} samples, {much}; they were chosen "
        f"by the mean {study.objective.name} of {folds}, {format_value(refit.values[0])}"
    )
