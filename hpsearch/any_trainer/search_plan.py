"""A search as a value: what to train, in which space, with which settings; a study file defines one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import StudyError
from ..search.space.set_arguments import all_names, check_set_names, start_without, without_set_arguments
from ..training.model_init import takes_trial

if TYPE_CHECKING:
    from ..search.result.best_run import BestRun


class SearchPlan:
    """The plan of a search: a file that defines ``study = SearchPlan(...)`` is a study file.

    ``hpsearch run FILE`` runs the plan, and its options change it; ``hpsearch resume`` and ``hpsearch replay`` read the
    file again.

    Args:
        make_trainer: a function without arguments that returns an `hpsearch.Trainer`; or a function of a trial, as in
            `tune`, that returns any `transformers.Trainer`, or trains by itself. It is called only when the search
            begins.
        hp_space: as in `Trainer.hyperparameter_search`.
        search: further arguments of `Trainer.hyperparameter_search`, by name; of a plain function also `max_resource`.

    Raises:
        StudyError: `make_trainer` is not a function.

    Examples:
        >>> study = SearchPlan(lambda: None, n_trials=20, compute_objective="accuracy")
        >>> study.search
        {'n_trials': 20, 'compute_objective': 'accuracy'}
    """

    def __init__(self, make_trainer: Callable[..., Any], hp_space: Any = None, **search: object) -> None:
        if not callable(make_trainer):
            raise StudyError(f"make_trainer must be a function that returns the trainer, but got {make_trainer!r}.")
        self.make_trainer, self.hp_space, self.search = make_trainer, hp_space, search

    def trainer(self, arguments: Mapping[str, object] | None = None) -> Any:
        """Return the trainer, or the recipe of the trials' trainers, with some training arguments changed.

        Raises:
            ArgumentError: an argument does not exist, or cannot take the value.
        """
        if takes_trial(self.make_trainer):
            from .tuning import TunedFunction

            function = TunedFunction(self.make_trainer, self.hp_space)
            return function.with_arguments(**arguments) if arguments else function
        trainer = self.make_trainer()
        if not hasattr(trainer, "hyperparameter_search"):
            raise StudyError(
                f"make_trainer() returned {trainer!r}, which is no hpsearch.Trainer; for one of "
                "transformers, let make_trainer take a trial, as in hpsearch.tune."
            )
        return trainer.with_arguments(**arguments) if arguments else trainer

    def run(self, arguments: Mapping[str, object] | None = None, **search: object) -> BestRun | Any:
        """Run or continue the search; return the `BestRun` or, with several objectives, a list of them.

        Args:
            arguments: training arguments that replace the trainer's own; they are not searched.
            search: arguments of `Trainer.hyperparameter_search` that replace the plan's own.

        Raises:
            HpsearchError: as in `Trainer.hyperparameter_search`.
        """
        trainer = self.trainer(arguments)
        settings, _ = self.settings(arguments, search, trainer)
        return trainer.hyperparameter_search(**settings)

    def settings(
        self,
        arguments: Mapping[str, object] | None = None,
        search: Mapping[str, object] | None = None,
        trainer: Any = None,
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the arguments of `Trainer.hyperparameter_search`, and the names of the parameters that are set.

        The search does not vary these parameters, and `start_with` does not contain them.

        Args:
            arguments: training arguments to set, and parameters of the space that `model_init(trial)` reads.
            search: arguments of the search that replace the plan's own.
            trainer: what `trainer(arguments)` returned; it knows what `model_init` reads. None: nothing that is set.

        Raises:
            SpaceError: one that is set is in a branch of the space, or nothing is left to search.
            UnknownArgumentError: one that is set is neither a training argument nor in the space.
        """
        settings = {"hp_space": self.hp_space, **self.search, **(search or {})}
        whole, given = settings["hp_space"], arguments or {}
        fixed = _read_by_model_init(trainer, given)
        if fixed:
            check_set_names(given, fixed, whole, [each.name for each in dataclasses.fields(trainer.args)])
        settings["hp_space"], names = without_set_arguments(whole, given, fixed)
        if names and "start_with" in settings:
            gone = all_names(whole) - all_names(settings["hp_space"]) | fixed
            settings["start_with"] = start_without(settings["start_with"], gone)
        return settings, names

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.search.items())
        return f"SearchPlan({getattr(self.make_trainer, '__qualname__', self.make_trainer)}{options})"


def _read_by_model_init(trainer: Any, names: Iterable[str]) -> set[str]:
    """Return the names that `model_init(trial)` reads; a function of a trial takes no arguments from outside."""
    is_read = getattr(trainer, "is_read_by_user_code", None)
    return set() if is_read is None else set(filter(is_read, names))
