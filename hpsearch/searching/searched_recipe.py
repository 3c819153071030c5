"""What a search of hyperparameters asks of the recipe that it searches, beyond what its trials ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import torch

from ..arguments import TrainingArguments
from ..search.folds import Folds
from ..search.space.parameters import Params
from ..search.space.search_space import SearchSpace
from ..search.space.static_checks import TakesParameters
from ..search.study import EPOCH, SpaceFunction
from ..search.trial import Trial
from ..search.trial_record import TrialRecord
from ..trial.searchable import Searchable


class Evaluation(NamedTuple):
    """What the evaluations of a recipe are.

    Attributes:
        sets: the number of evaluation sets.
        has_metrics: whether there is a `compute_metrics`.
        trainer: the class of the trainers.
        objective: the metrics that a plain function reports, optimised if no objective is named; empty: the default.
        unit: what trials are trained for between them: epochs, or the steps that a plain function reports.
    """

    sets: int
    has_metrics: bool
    trainer: type = object
    objective: tuple[str, ...] = ()
    unit: str = EPOCH


class SearchedRecipe(Searchable, TakesParameters, Protocol):
    """A recipe that can be searched; see `Searchable`."""

    @property
    def default_seed(self) -> int:
        """The seed of the sampler if none is given."""

    @property
    def defaults(self) -> object:
        """An object whose attributes are the defaults of parameters that have none of their own."""

    @property
    def evaluation(self) -> Evaluation:
        """What the evaluations are; known once `prepare` has been called."""

    @property
    def notices(self) -> Sequence[str]:
        """What the user should know before the first trial; known once `prepare` has been called."""

    @property
    def names(self) -> Mapping[str, str]:
        """Names of the model and the datasets for readers, where neither the datasets nor `functions` show them."""

    @property
    def suggested_names(self) -> Sequence[str]:
        """The parameters that user code suggested while `prepare` was called."""

    def with_arguments(self, **parameters: object) -> SearchedRecipe:
        """Return the same recipe with other arguments, and without anything that it has built."""

    @property
    def data_to_split(self) -> Any:
        """The training data that folds split; None if there are none, or only the user's code has them."""

    @property
    def has_own_data(self) -> bool:
        """True if only the user's code has the data."""

    def prepare(self, space: SearchSpace | SpaceFunction | None, folds: Folds | None = None) -> None:
        """Check that there is all that a search in this space needs, with these folds; None: a replay."""

    def data(self) -> dict[str, object]:
        """Return datasets, or their fingerprints, by name: they show whether an earlier session had the same."""

    def functions(self) -> dict[str, object]:
        """Return the functions that trials are made of, and the class of their trainers, by name."""

    def build_best_model(self, record: TrialRecord, folder: Path) -> torch.nn.Module:
        """Build the model of a trial, with the weights in a folder, in evaluation mode."""


@runtime_checkable
class EvaluatesWeights(Protocol):
    """A recipe whose trainers can evaluate stored weights, as they evaluate a trial."""

    @property
    def args(self) -> TrainingArguments:
        """The training arguments that trials have in common."""

    def evaluate_weights(self, trial: Trial, folder: Path, dataset: Any, prefix: str) -> dict[str, float]:
        """Return the metrics of the weights in a folder, which a trial has trained; the names begin with `prefix`.

        No callback of the user is called, and no tracker.
        """

    def with_defaults(self, space: SearchSpace | SpaceFunction) -> tuple[Self, Params]:
        """Return a recipe, and the parameters of its trial, that train what a user trains who searches nothing.

        Raises:
            StudyError: the defaults are not known.
        """
