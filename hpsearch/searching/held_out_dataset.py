"""The test set of a search as its user gives it, checked before the first trial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers.trainer_utils import has_length

from ..errors import ObjectiveError, StudyError
from ..search.store.held_out_file import read_held_out
from ..search.store.provenance import fingerprint
from ..search.study import Study
from .searched_recipe import EvaluatesWeights, SearchedRecipe


@dataclass(frozen=True)
class HeldOut:
    """The test set of a search.

    Attributes:
        dataset: a dataset, or a dict of datasets.
        with_defaults: whether the defaults are trained too.
    """

    dataset: Any
    with_defaults: bool = True

    @classmethod
    def of(cls, test_dataset: object, test_defaults: object) -> HeldOut | None:
        """Return the test set that the arguments of a search give, or None.

        Raises:
            StudyError: they cannot be right.
        """
        if not isinstance(test_defaults, bool):
            raise StudyError(f"test_defaults must be True or False, but got {test_defaults!r}.")
        if test_dataset is None:
            return None
        if isinstance(test_dataset, str):
            raise StudyError(
                f"test_dataset must be a dataset, but got the text {test_dataset!r}; load it first, for example with "
                "datasets.load_dataset(...)."
            )
        if any(has_length(each) and len(each) == 0 for each in _sets(test_dataset)) or not _sets(test_dataset):
            raise StudyError("test_dataset is empty.")
        return cls(test_dataset, test_defaults)

    def check(self, recipe: SearchedRecipe, study: Study, has_refit: bool = False) -> list[str]:
        """Check that a search can evaluate on it at its end; return what the user should know before.

        With folds, only a model that is trained on all data (`has_refit`) can be evaluated.

        Raises:
            InvalidInputError: it cannot.
        """
        if not isinstance(recipe, EvaluatesWeights):
            raise StudyError(
                f"test_dataset needs a trainer, which evaluates it; {recipe.user_code} trains and evaluates by itself. "
                "Evaluate its best model after the search."
            )
        for name, each in recipe.data().items():
            if any(_is_same(one, other) for one in _sets(each) for other in _sets(self.dataset)):
                raise StudyError(
                    f"test_dataset is the {name} itself; a test set has samples that the search never sees."
                )
        if len(study.objectives) > 1:
            raise ObjectiveError(
                "test_dataset is for one objective: with several there is no single best run. Choose a run of the "
                "Pareto front, and evaluate its load_model()."
            )
        if study.folds is not None and not has_refit:
            raise StudyError(
                "test_dataset needs the model of the best run, but a cross-validation has one for each fold; pass "
                "refit=True, which trains the best parameters on all data."
            )
        if study.keep_checkpoints == 0 and not has_refit:
            raise StudyError(
                "test_dataset needs the weights of the best trial, but keep_checkpoints=0 keeps none; use "
                "keep_checkpoints=1."
            )
        if recipe.args.world_size > 1:
            raise StudyError(
                f"test_dataset is evaluated in one process, but torchrun has started {recipe.args.world_size}. "
                "Evaluate best.load_model() after the search."
            )
        if recipe.args.fsdp or recipe.args.deepspeed:
            raise StudyError(
                "test_dataset is evaluated in one process, without fsdp and deepspeed. Evaluate best.load_model() "
                "after the search."
            )
        read_held_out(study.folder)
        without = self.why_no_defaults(recipe, study)
        return [] if without is None else [f"the defaults are not evaluated on the test set: {without}"]

    def why_no_defaults(self, recipe: EvaluatesWeights, study: Study) -> str | None:
        """Return why the defaults cannot be trained; None if they can, or are not wanted."""
        if not self.with_defaults:
            return None
        if study.folds is not None:
            return "with folds, only the best parameters are trained on all data"
        if study.processes > 1:
            return f"they would be trained in one process, and the trials in {study.processes}"
        gpus = max(1, recipe.args.n_gpu)
        if gpus != study.gpus:
            return f"they would be trained on the {gpus} GPUs of this process together, and each trial on one"
        try:
            recipe.with_defaults(study.space)
        except StudyError as error:
            return str(error)
        return None


def _sets(dataset: Any) -> list[Any]:
    return list(dataset.values()) if isinstance(dataset, dict) else [dataset]


def _is_same(used: object, held_out: object) -> bool:
    """Return whether a dataset of the trials is the test set; of a trainer function, only its fingerprint is known."""
    if not isinstance(used, str):
        return used is held_out
    own = fingerprint(held_out)
    return ", " in own and own in used
