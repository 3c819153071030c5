"""A study: what to search, how long and with what."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from ..errors import SpaceError, StorageError, StudyError
from ..system.json_types import JsonObject
from .folds import Folds
from .metrics.constraints import Constraint
from .metrics.objective import Objective
from .metrics.selection import check_scope
from .space.foreign_parameters import what_is_foreign
from .space.parameters import Parameter, Params, Scalar
from .space.search_space import SearchSpace, default_space
from .store.checked_json import is_folder_name, plain
from .store.provenance import HP_SPACE
from .trial import Trial
from .wording import metric_label

SpaceFunction = Callable[[Trial], Any]
"""A space as a function of a trial (define-by-run): it suggests, and may return the arguments of the trial."""
SpaceLike = Union[SearchSpace, Mapping[str, Parameter], SpaceFunction, None]

SET_BY_THE_SEARCH = ("output_dir", "run_name")
EPOCH, STEP = "epoch", "step"
SEEDS = ("seed", "data_seed")  # of training; a trial that is repeated gets others
SEEDS_IN_ALL = 2**32


@dataclass(frozen=True)
class Study:
    """The settings of a search, checked on construction.

    Args:
        name: the name of the folder, and of the study in its storage.
        folder: ``<output_dir>/<name>``, an absolute path.
        space: a `SearchSpace`, or a function of a trial (define-by-run).
        objectives: what to optimise; usually one.
        n_trials: the total number of trials, over all sessions of this study; None: as many as the other limits allow.
        budget: the total number of full training runs, over all sessions; None: no limit. See
            `hpsearch.search.decisions.training_budget`.
        scope: the reports of a trial that determine its value and its checkpoint.
        constraints: the bounds that the best trial must satisfy.
        pruning_objective: with several objectives, the one by which trials are pruned in place of rungs; None: trials
            pause at rungs, if they can.
        keep_checkpoints: the number of best trials that keep their selected weights (with several objectives, 1 keeps
            those of the Pareto front); 0: none; None: every trial.
        timeout: seconds for this session, at the end of which a running trial is stopped. None: no limit.
        trial_timeout: seconds for one trial. None: no limit.
        max_epochs: passes over the data, of all trials of all sessions together. None: no limit.
        trial_max_epochs: passes over the data for one trial; its schedule is that of its `num_train_epochs`. None: no
            limit.
        max_failures: stop after this many consecutive failures; None: no limit.
        oom_fallback: continue a trial that runs out of memory with half the micro-batch and twice the accumulation.
        seed: the seed of the sampler.
        hp_name: a function from a trial to the name of its run; None: ``run-<number>``.
        start_with: the parameters of the first trials; the sampler chooses missing ones.
        uncounted_before: failed trials with smaller numbers do not count, and took no parameters from `start_with`.
        preflight: whether to try one training step and two evaluation batches before the first trial.
        costs_in_seconds: whether the cost of a trial is its measured seconds, instead of a count of operations, which
            is the same when the search is repeated.
        processes: the number of processes that train each trial together.
        gpus: the number of GPUs that each of them trains on (DataParallel).
        repeats: the most training runs of a trial, each with another seed; see `hpsearch.search.decisions.repeats`.
        folds: of a cross-validation: a trial trains on the first of them, the best ones on the others too. None: there
            is none.
        unit: the unit of `TrialRecord.epochs`, and so of `max_epochs` and `trial_max_epochs`: passes over the data, or
            the steps that a plain function reports.

    Raises:
        StudyError: a setting is out of range.
    """

    name: str
    folder: Path
    space: SearchSpace | SpaceFunction
    objectives: tuple[Objective, ...]
    n_trials: int | None
    scope: str = "last"
    constraints: tuple[Constraint, ...] = ()
    pruning_objective: Objective | None = None
    keep_checkpoints: int | None = 1
    timeout: float | None = None
    trial_timeout: float | None = None
    max_epochs: float | None = None
    trial_max_epochs: float | None = None
    max_failures: int | None = 5
    oom_fallback: bool = False
    seed: int = 42
    hp_name: Callable[[Trial], str] | None = None
    start_with: tuple[Params, ...] = ()
    preflight: bool = False
    uncounted_before: int = 0
    budget: float | None = None
    costs_in_seconds: bool = False
    processes: int = 1
    gpus: int = 1
    unit: str = EPOCH
    repeats: int = 1
    folds: Folds | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "study_name")
        check_scope(self.scope)
        if self.n_trials is not None or (self.budget, self.timeout, self.max_epochs) == (None, None, None):
            check_whole("n_trials", self.n_trials, 1)
        check_budget(self.budget)
        check_whole("repeats", self.repeats, 1)
        if self.repeats > 1 and self.folds is not None:
            raise StudyError(
                f"repeats={self.repeats} and folds are two ways to train a trial several times; pass only one of them."
            )
        if self.n_trials is None and self.timeout is None and self.max_failures is None:
            limit = "max_epochs" if self.budget is None else "budget"
            raise StudyError(
                f"{limit}= without n_trials needs max_failures: trials that fail before their first step cost "
                "nothing, so the search might never end. Pass n_trials too, or a number of failures."
            )
        if self.keep_checkpoints is not None:
            check_whole("keep_checkpoints", self.keep_checkpoints, 0, "None or ")
        if self.max_failures is not None:
            check_whole("max_failures", self.max_failures, 1, "None or ")
        for name, unit in _BUDGETS.items():
            value = getattr(self, name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value is not None and not (is_number and value > 0):
                raise StudyError(f"{name} must be None or a number of {unit} above 0, but got {value!r}.")
        for name in ("oom_fallback", "preflight"):
            if not isinstance(getattr(self, name), bool):
                raise StudyError(f"{name} must be True or False, but got {getattr(self, name)!r}.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < SEEDS_IN_ALL:
            raise StudyError(f"seed must be a whole number from 0 to {SEEDS_IN_ALL - 1}, but got {self.seed!r}.")
        if self.hp_name is not None and not callable(self.hp_name):
            raise StudyError(f"hp_name must be a function of a trial or None, but got {self.hp_name!r}.")
        self._check_several()

    def _check_several(self) -> None:
        if len(self.objectives) > 1 and self.scope == "all":
            raise StudyError(
                "scope='all' is the best report of a trial, but with several objectives no report is best in all of "
                "them; use 'last' or an average."
            )
        if len(self.objectives) == 1 and self.pruning_objective is not None:
            raise StudyError(
                f"pruning_metric={self.pruning_objective.name!r} is for several objectives; with a single one, that "
                "objective is used for pruning."
            )

    @property
    def objective(self) -> Objective:
        """The objective, or the first of several."""
        return self.objectives[0]

    @property
    def fold_count(self) -> int:
        """The number of folds of its cross-validation; 0: there is none."""
        return 0 if self.folds is None else len(self.folds)

    @property
    def description(self) -> str:
        """The objectives and constraints, in words."""
        return describe(self.objectives, self.constraints, self.unit)

    def run_name(self, trial: Trial, is_complete: bool = True) -> str | None:
        """Return the name of a trial's run: from `hp_name`, else ``run-<number>``.

        Return None if `hp_name` reads a parameter that the trial does not have yet (`is_complete=False`).

        Raises:
            StudyError: `hp_name` raised, or returned something that cannot name a folder.
        """
        if self.hp_name is None:
            return f"run-{trial.number}"
        read = set(trial.params.read)
        try:
            given = self.hp_name(trial)
        except KeyError as error:
            if not is_complete:
                return None
            raise StudyError(f"hp_name(trial) raised {type(error).__name__}: {error}") from error
        except Exception as error:
            raise StudyError(f"hp_name(trial) raised {type(error).__name__}: {error}") from error
        finally:
            trial.params.read &= read  # a parameter that only its name shows has no effect
        return check_name(given, "hp_name(trial)")

    def suggest(self, trial: Trial) -> dict[str, object]:
        """Suggest the trial's parameters, and return those that the run is configured with.

        Raises:
            SpaceError: a define-by-run function raised, or returned neither None nor a mapping.
        """
        trial.priors, trial.params.of_all_branches = self.priors(), self.parameter_names()
        arguments = {name: _plain(value) for name, value in self._ask_space(trial).items()}
        for name in SET_BY_THE_SEARCH:
            if name in arguments:
                raise SpaceError(f"The search space has {name}={arguments[name]!r}, but the search itself sets {name}.")
        for name in SEEDS if self.repeats > 1 or trial.seed_offset else ():
            if name in arguments:
                raise SpaceError(
                    f"Repeats train trials again with other seeds, but the space has {name}={arguments[name]!r}: take "
                    "it out, or leave repeats out."
                )
        trial.params.read.clear()
        return arguments

    def _ask_space(self, trial: Trial) -> Mapping[str, object]:
        if isinstance(self.space, SearchSpace):
            return self.space.suggest(trial)
        try:
            returned = self.space(trial)
        except (SpaceError, StorageError):
            raise
        except Exception as error:
            raise SpaceError(f"hp_space(trial) raised {type(error).__name__}: {error}") from error
        if returned is None:
            return dict(trial.params)
        if not isinstance(returned, Mapping):
            raise SpaceError(
                f"hp_space(trial) returned {returned!r}; it must return a mapping of parameters to values, or None "
                "to use the suggested values."
            )
        for name, value in returned.items():
            if foreign := what_is_foreign(value):
                raise SpaceError(f"hp_space(trial) returned {name!r}, which is {foreign}.")
        parameters = {
            name: value
            for name, value in returned.items()
            if isinstance(value, Parameter)  # type: ignore[arg-type]
        }
        suggested = SearchSpace(parameters).suggest(trial) if parameters else {}
        return {**{name: value for name, value in returned.items() if name not in parameters}, **suggested}

    def identity(self) -> JsonObject:
        """Return the identity of a study, the same in all of its sessions, as JSON-ready values."""
        return {
            "study_name": self.name,
            "objective": _one_or_all([each.identity for each in self.objectives]),
            "direction": _one_or_all([each.direction for each in self.objectives]),
            "constraints": [each.name for each in self.constraints],
            "scope": self.scope,
        }

    def about_choosing(self) -> JsonObject:
        """Return the settings that affect how trials are chosen and pruned, as JSON-ready values."""
        pruning = self.pruning_objective
        return {"seed": self.seed, "pruning_metric": None if pruning is None else pruning.name}

    def parameter_names(self) -> frozenset[str]:
        """Return the names of the parameters in all branches; empty for a function."""
        known = known_space(self.space)
        return frozenset() if known is None else frozenset(known.all_parameters())

    def priors(self) -> dict[str, Scalar]:
        """Return the priors by parameter; empty for a function."""
        known = known_space(self.space)
        return {} if known is None else known.priors()

    def functions(self) -> dict[str, object]:
        """Return the functions of the study by their purpose, except `hp_name`."""
        named = {f"objective {each.name}": each.metric for each in self.objectives}
        named.update({f"constraint {each.name}": each.metric for each in self.constraints})
        functions: dict[str, object] = {name: each for name, each in named.items() if callable(each)}
        return functions if isinstance(self.space, SearchSpace) else {HP_SPACE: self.space, **functions}

    @property
    def goes_by_number(self) -> bool:
        """Whether a trial's number determines parameters that are not suggested, as in Ray's grids."""
        return bool(getattr(self.space, "goes_by_number", False))

    def described_space(self) -> JsonObject | str:
        """Return the space as JSON-ready values, by parameter; ``"define-by-run"`` for a function."""
        return self.space.describe() if isinstance(self.space, SearchSpace) else DEFINE_BY_RUN

    def check_same(self, earlier: Mapping[str, object]) -> None:
        """Check that a study on disk has the same identity, so that old and new trials are comparable.

        Raises:
            StudyError: its objective, direction, constraints, scope or the range of a parameter differs.
        """
        for key, value in self.identity().items():
            if earlier.get(key) != plain(value):
                raise StudyError(f"{self._was_made_with(key, earlier.get(key), value)} {_REMEDY}")
        self._check_same_folds(earlier.get("folds"))
        before, now = flat(earlier.get("space")), flat(self.described_space())
        for name in before.keys() & now.keys():
            if json.dumps(before[name]) != json.dumps(plain(now[name])):  # 1, 1.0 and True are different choices
                shown = self._was_made_with(f"space of {name!r}", _shown(before[name]), _shown(now[name]))
                raise StudyError(f"{shown} {_REMEDY}")

    def _check_same_folds(self, before: Any) -> None:
        now = None if self.folds is None else self.folds.identity
        if before == now:
            return
        if before is None or now is None or (before["number"], before["by"]) != (now["number"], now["by"]):
            described = (
                "none" if each is None else f"{each['number']} folds by {each['by']}" for each in (before, now)
            )
            raise StudyError(f"{self._was_made_with('cross-validation', *described)} {_REMEDY}")
        raise StudyError(
            f"The study {self.name!r} in {str(self.folder)!r} has {now['number']} other folds, also made by {now['by']}"
            f": the data, or the indices, have changed. {_REMEDY}"
        )

    def made_with_other_range(self, name: str, before: Parameter, now: Parameter) -> StudyError:
        """Return the error for a parameter whose range differs from that of the study on disk."""
        shown = (_shown(flat(SearchSpace({name: each}).describe())[name]) for each in (before, now))
        return StudyError(f"{self._was_made_with(f'space of {name!r}', *shown)} {_REMEDY}")

    def changes_of_space(self, earlier: Mapping[str, object]) -> list[str]:
        """Return the parameters that were added or removed since the study on disk, in words."""
        before, now = earlier.get("space"), self.described_space()
        if DEFINE_BY_RUN in (before, now):
            return [] if before == now else [f"space {_kind(before)} -> {_kind(now)}"]
        names, present = flat(before), flat(now)
        new = [f"{name} is searched now" for name in present if name not in names]
        return new + [f"{name} is no longer searched" for name in names if name not in present]

    def _was_made_with(self, what: str, before: object, now: object) -> str:
        place = f"The study {self.name!r} in {str(self.folder)!r} was made with another {what}"
        return f"{place}: {before!r}, now {now!r}."


DEFINE_BY_RUN = "define-by-run"
_REMEDY = (
    "Pass another study_name (with start_from=open_study(folder) it learns from these trials), or delete that folder."
)
_BUDGETS = {"timeout": "seconds", "trial_timeout": "seconds", "max_epochs": "epochs", "trial_max_epochs": "epochs"}


def _one_or_all(values: list[str]) -> str | list[str]:
    return values if len(values) > 1 else values[0]


def describe(objectives: Sequence[Objective], constraints: Sequence[Constraint], unit: str) -> str:
    """Return the objectives and constraints, in words."""
    described = " and ".join(
        each.description.replace(each.name, metric_label(each.name, unit), 1) for each in objectives
    )
    bounds = " and ".join(each.name for each in constraints)
    return f"{described}, with {bounds}" if bounds else described


def check_whole(name: str, value: object, least: int, also: str = "") -> None:
    """Check that a value is a whole number of at least `least`; `also` says in words what else the caller allows.

    Raises:
        StudyError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise StudyError(f"{name} must be {also}a whole number of at least {least}, but got {value!r}.")


def check_budget(budget: Any) -> None:
    """Check that a budget is None or a number of full training runs.

    Raises:
        StudyError: it is not; less than 1 would complete no trial.
    """
    is_number = isinstance(budget, (int, float)) and not isinstance(budget, bool)
    if budget is not None and not (is_number and math.isfinite(budget) and budget >= 1):
        raise StudyError(f"budget must be None or a number of full training runs of at least 1, but got {budget!r}.")


def flat(space: object) -> dict[str, JsonObject]:
    """Return every parameter of a described space, those in branches included, by name; none of a function."""
    if not isinstance(space, Mapping):
        return {}
    found: dict[str, JsonObject] = {}
    for name, described in space.items():
        found[name] = {key: value for key, value in described.items() if key != "branches"}
        for branch in described.get("branches", ()):
            found.update(flat(branch["parameters"]))
    return found


def _shown(described: Mapping[str, object]) -> str:
    values = {
        key: value for key, value in described.items() if key != "kind" and value is not None and value is not False
    }
    return f"{described['kind']}({', '.join(f'{key}={value!r}' for key, value in values.items())})"


def _kind(space: object) -> str:
    return "by a function" if space == DEFINE_BY_RUN else "by a mapping"


def _plain(value: object) -> object:
    """Return a number of numpy as Python's; everything else as it is."""
    return value.item() if isinstance(value, numbers.Number) and hasattr(value, "item") else value


def check_name(name: object, what: str) -> str:
    """Return `name` if it can name a folder and stays inside its parent.

    Raises:
        StudyError: it cannot.
    """
    if not is_folder_name(name):
        raise StudyError(
            f"{what} is {name!r}; it names a folder, so it must be text of letters, digits and any of ' .=,+@_-', "
            "start with a letter or digit, not end in a space or a dot, and be at most 200 bytes long."
        )
    return str(name)


def known_space(space: object) -> SearchSpace | None:
    """Return the parameters that are known before the first trial; None of a function that does not list them."""
    known = space if isinstance(space, SearchSpace) else getattr(space, "parameters", None)
    return known if isinstance(known, SearchSpace) else None


def as_space(hp_space: SpaceLike) -> SearchSpace | SpaceFunction:
    """Return `hp_space` as a SearchSpace or a function of a trial; None gives the default space.

    Raises:
        SpaceError: it is neither.
    """
    if hp_space is None:
        return default_space()
    if isinstance(hp_space, SearchSpace) or (callable(hp_space) and not isinstance(hp_space, type)):
        return hp_space
    return SearchSpace(hp_space)  # type: ignore[arg-type]
