"""A plain function of a trial, as something that can be searched: a loop of one's own, or any computation."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from ..backends.base import Backend
from ..errors import ArgumentError, CheckpointError, ObjectiveError, SpaceError, StudyError
from ..search.metrics.objective import natural_direction
from ..search.study import STEP
from ..search.trial import Trial
from ..search.trial_record import TrialRecord
from ..searching.search_arguments import SearchArguments
from ..searching.searched_recipe import Evaluation
from ..system.checkpoint_files import TRIAL_FILE
from ..system.files import read_json
from ..system.json_types import JsonObject
from ..trial.reporting_callback import ReportingCallback
from .first_call import KnownResult, Space, name_of, not_suggested
from .function_call import FunctionArguments, FunctionCall, for_trial
from .function_trial import VALUE
from .optuna_names import StudyOfTrial


class PlainFunction:
    """A function that trains, or computes, and reports; see `SearchedRecipe`.

    Args:
        function: of a `FunctionTrial`.
        args: what was found out about it at its first call, or is known from the study.
        known: what its first call has returned; None if it has not returned.

    Attributes:
        earlier: what an earlier session of the study knew about it; None: a new study.
    """

    default_seed = 42
    defaults = object()  # it has none: only the function knows what a parameter is for
    has_fixed_model = False
    training_samples: int | None = None
    sets_arguments_by_name = False  # what decides when it reports is its own
    writes_its_checkpoints = True
    suggested_names: Sequence[str] = ()
    names: Mapping[str, str] = MappingProxyType({})
    data_to_split: None = None
    has_own_data = True
    cannot_extend: str | None = "the function sets the length of a trial"

    def __init__(
        self, function: Callable[[Any], object], args: FunctionArguments, known: KnownResult | None = None
    ) -> None:
        self.function, self.args, self._known = function, args, known
        self._noticed: set[str] = set()
        self.earlier: FunctionArguments | None = None

    @property
    def user_code(self) -> str:
        """The name of the function."""
        return name_of(self.function)

    @property
    def cannot_pause(self) -> str | None:
        """Why its trials do not pause at rungs; None if they can."""
        if self.args.max_resource is None:
            return f"the last step of {self.user_code} is not known (max_resource=)"
        return None if self.args.reads_checkpoint else f"{self.user_code} never reads trial.checkpoint"

    @property
    def notices(self) -> Sequence[str]:
        """What the user should know before the first trial."""
        found, now = [], self.args.max_resource
        before = now if self.earlier is None else self.earlier.max_resource
        if not self.args.reports:
            nothing = "reports nothing while it runs, so no trial can be pruned"
            found.append(f"{self.user_code} {nothing}; trial.report would allow it")
        if None not in (before, now) and before != now:
            found.append(
                f"max_resource was {before} in the last session and is {now} now: rungs compare earlier and new trials "
                "at the same fraction of it, which are different numbers of steps; another study_name= avoids this"
            )
        return found

    @property
    def evaluation(self) -> Evaluation:
        """What the evaluations are."""
        return Evaluation(1, True, objective=self.args.objective, unit=STEP)

    def with_arguments(self, **parameters: object) -> PlainFunction:
        """Return the same recipe with other values of what all calls have in common, such as those of an older session.

        Raises:
            ArgumentError: another argument is given.
        """
        others = sorted(parameters.keys() - vars(self.args).keys())
        if others:
            raise ArgumentError(f"{others[0]} cannot be set from outside: {self.user_code}(trial) decides it.")
        other = copy.copy(self)
        other.args = FunctionArguments.of({**vars(self.args), **parameters})
        return other

    def is_read_by_user_code(self, name: str) -> bool:
        """Return True: the function reads all parameters."""
        return True

    def is_set_before_user_code(self, name: str) -> bool:
        """Return False: there is no other code."""
        return False

    def for_trial(self, trial: Trial, output_dir: str | None = None) -> FunctionCall:
        """Return a call of the function for a trial, which writes to `output_dir`.

        Raises:
            SpaceError: a function as space returns something that it has not suggested.
        """
        if unread := trial.arguments.keys() - trial.params.values_by_name.keys():
            name = min(unread)
            raise SpaceError(not_suggested(name, trial.arguments[name], self.user_code))
        known = self._known if self._known is not None and self._known.is_of(trial) else None
        return FunctionCall(self.function, trial, for_trial(self.args, trial, output_dir), known, self._noticed)

    def preflight_trainer(self, trial: Trial, output_dir: str) -> NoReturn:
        """Refuse: a function cannot be tried for one step; `tune` searches it without a preflight.

        Raises:
            StudyError: always.
        """
        raise StudyError(f"{self.user_code} cannot be tried for one step; pass preflight=False.")

    def let_user_code_suggest(self, trial: Trial) -> None:
        """Refuse: the function suggests while it trains.

        Raises:
            StudyError: always.
        """
        raise StudyError(
            f"hp_name asks for a parameter which {self.user_code} suggests while it runs; the run is named before. "
            "Suggest it in hp_space."
        )

    def check_parameter(self, name: str, value: object, conditions: Mapping[str, object] | None = None) -> None:
        """Do nothing: what a parameter may be, the function knows."""

    def check_changeable(self, name: str) -> None:
        """Refuse: a function resumes with the parameters that it began with.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(f"{name!r} cannot change when a plain function resumes; hpsearch.Trainer can.")

    def resumable_checkpoints(self, folder: Path) -> list[Path]:
        """Return the checkpoints in a folder that the function can resume from, newest first."""
        if not self.args.reads_checkpoint:
            return []
        found = [each for each in folder.glob("checkpoint-*") if (each / TRIAL_FILE).is_file()]
        return sorted(found, key=lambda each: int(each.name.rpartition("-")[2]), reverse=True)

    def read_state(self, checkpoint: Path) -> JsonObject:
        """Return what a checkpoint records of the trial; empty if it cannot be read."""
        try:
            return {"stateful_callbacks": {ReportingCallback.__name__: read_json(checkpoint / TRIAL_FILE)}}
        except (OSError, ValueError):
            return {}

    def smaller_batches(self, args: object) -> None:
        """Return None: the function makes its batches."""

    def build_best_model(self, record: TrialRecord, folder: Path) -> NoReturn:
        """Refuse: only the function knows how to read its checkpoints.

        Raises:
            CheckpointError: always.
        """
        raise CheckpointError(
            f"hpsearch cannot load what {self.user_code} has saved; load it from {str(folder)!r} (best_run.checkpoint)."
        )

    def data(self) -> dict[str, object]:
        """Return nothing: the function loads its data."""
        return {}

    def functions(self) -> dict[str, object]:
        """Return the function by name."""
        return {FUNCTION: self.function}

    def prepare(self, space: object, folds: object = None) -> None:
        """Do nothing: all that is to be known was found out at the first call."""


def study_before_first_call(
    recipe: PlainFunction, given: SearchArguments, backend: Backend, space: Space
) -> StudyOfTrial:
    """Return the study as the first call of a function sees it, and check the arguments: the call may take long.

    Raises:
        InvalidInputError: one of them cannot be right, whatever the function is.
    """
    directions = given.directions if given.direction is None else given.direction
    count = len(directions) if isinstance(directions, (list, tuple)) else 1
    names = tuple(f"{VALUE}_{index}" for index in range(count)) if count > 1 else (VALUE,)
    other = copy.copy(recipe)
    other.args = replace(recipe.args, objective=names)
    study, _ = given.make_study(backend, space, other)
    are_given = directions is not None and None not in (directions if count > 1 else [directions])
    is_known = are_given or given.compute_objective is not None
    known = [each.direction for each in study.objectives] if is_known else None
    return StudyOfTrial(study.name, str(study.folder), known)


def check_direction(args: FunctionArguments, code: str, has_objective: bool, direction: object) -> None:
    """Check that it is known what is optimised, and which way is better.

    Raises:
        ObjectiveError: it is not.
    """
    if has_objective or not args.objective:
        return
    if len(args.objective) > 1 and not _is_tuple(args.objective):
        raise ObjectiveError(
            f"{code} reports {', '.join(args.objective)}: name the metric to optimise as compute_objective."
        )
    if direction is None and all(natural_direction(each) is None for each in args.objective):
        what = "a tuple" if _is_tuple(args.objective) else args.objective[0]
        what = "a number" if what == VALUE else what
        raise ObjectiveError(f"{code} reports {what}, so say which way is better: direction='minimize' or 'maximize'.")


def check_processes(code: str) -> None:
    """Check that no launcher has started several processes, each of which would search alone.

    Raises:
        StudyError: one has.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise StudyError(
            f"{code} is a plain function, whose trials have one process each, but a launcher started "
            f"{os.environ['WORLD_SIZE']} processes (WORLD_SIZE). Start the program with python; n_jobs= runs trials in "
            "parallel."
        )


def _is_tuple(names: Sequence[str]) -> bool:
    return all(each.startswith(f"{VALUE}_") for each in names)


FUNCTION = "function"
