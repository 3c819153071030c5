"""A trial as `hp_space` and `model_init` see it, in a study or with fixed parameters; the verdict on its reports."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import SpaceError, StudyError, UnknownParameterError
from ..system.spelling import nearest_name
from .folds import Fold, Folds
from .process_group import OneProcess, Ranks
from .space.parameters import Categorical, Float, Int, Parameter, Params, Scalar
from .store.checked_json import Unreadable, as_written
from .trial_record import FOLD, TrialRecord, replica_of


@dataclass(frozen=True)
class Verdict:
    """The verdict of a study on a report.

    Attributes:
        prune: the trial is not worth continuing.
        pause: the trial pauses here, with a checkpoint, and may resume later.
        stop: why the trial ends here with its current result; None if it does not.
        save: write a checkpoint here, so that the trial can be paused, or copied.
        leave: why the trial is interrupted here, with a checkpoint from which it resumes later; None: it is not.
        seconds_left: of the time of the search, if the user has changed the limit; None: as before.
    """

    prune: bool = False
    pause: bool = False
    stop: str | None = None
    save: bool = False
    leave: str | None = None
    seconds_left: float | None = None


@dataclass
class _ReadParams(Mapping[str, Any]):
    """Parameters that remember which of them were read.

    Attributes:
        of_all_branches: the names of a static space; those of branches that are not open have no value.
    """

    values_by_name: dict[str, Any]
    read: set[str] = field(default_factory=set)
    of_all_branches: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> object:
        if name not in self.values_by_name:
            if name in self.of_all_branches:
                raise KeyError(name)
            names = sorted({*self.values_by_name, *self.of_all_branches})
            raise UnknownParameterError(
                f"There is no parameter {name!r}: the trial has {', '.join(map(repr, names)) or 'none'}."
                f"{nearest_name(str(name), names)}"
            )
        self.read.add(name)
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    def __repr__(self) -> str:
        return repr(self.values_by_name)


class Trial(ABC):
    """One trial of a search, as `hp_space(trial)` and `model_init(trial)` see it.

    Attributes:
        number: its number in the study, from 0.
        name: the name of its run and its folder.
        params: the parameters suggested so far; ``trial.params["model.hidden_size"]``.
        arguments: the parameters that the run is configured with, set once the space has suggested them.
        suggested_by_space: the names among `params` that the space suggested, or set as constants; `model_init` may
            suggest more.
        fixed: values set in advance for parameters that the trial may suggest.
        priors: the priors that the study knows before its first trial; None for a trial outside a study.
        earlier: the record of this trial from an earlier session; None for a new trial.
        ranks: the processes that train the trial; the main one chooses values.
        user_attrs: the values that the user's code set with `set_user_attr`.
        may_be_given: whether a configuration that was never tried may replace the sampler's proposal.
        origin: the request that the trial comes from; see `TrialRecord`.
        folds: of the cross-validation that the trial is part of; None outside of one.
        has_read_fold: whether anybody has asked for `fold`.
    """

    may_be_given = False
    folds: Folds | None = None
    has_read_fold = False

    def __init__(self, number: int, earlier: TrialRecord | None = None) -> None:
        self.number = number
        self.earlier = earlier
        self.name = f"run-{number}" if earlier is None else earlier.name
        self.ranks: Ranks = OneProcess()
        self.arguments: dict[str, Any] = {}
        self.suggested_by_space: set[str] = set()
        self.fixed: Params = {}
        self.priors: Params | None = None
        self.params = _ReadParams({})
        self.user_attrs: dict[str, object] = {} if earlier is None else dict(earlier.user_attrs)
        self.origin = None if earlier is None else earlier.origin

    @property
    def seed_offset(self) -> int:
        """What is added to the training seed and to the data seed: 0, or the offset of a replica with other seeds."""
        replica = replica_of(self.origin)
        return 0 if replica is None or replica.kind == FOLD else replica.offset

    @property
    def fold(self) -> Fold | None:
        """The samples that this run of the trial trains on, and those that evaluate it; None without `folds`.

        Its attributes are `number`, `train` and `evaluation`, the last two arrays of indices. A function that `tune`
        searches must read it.
        """
        if self.folds is None:
            return None
        self.has_read_fold = True
        replica = replica_of(self.origin)
        return self.folds[0 if replica is None else replica.offset]

    def __getitem__(self, name: str) -> object:
        """Return a parameter, as `params` does: a trial can be read like the dict that Ray gives to `model_init`.

        Raises:
            UnknownParameterError: the trial has none of this name.
        """
        is_argument = name not in self.params.values_by_name and name in self.arguments
        return self.arguments[name] if is_argument else self.params[name]

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> list[str]:
        """Return the names of its parameters, those that the space gives as constants included."""
        return list({**self.params.values_by_name, **self.arguments})

    def items(self) -> list[tuple[str, object]]:
        """Return the names and values of its parameters."""
        return [(name, self[name]) for name in self.keys()]

    def get(self, name: str, default: object = None) -> Any:
        """Return a parameter, or `default` if the trial has none of this name."""
        return self[name] if name in self.keys() else default

    def suggest(self, name: str, parameter: Parameter) -> Any:
        """Return the trial's value for a parameter, choosing it at the first call.

        Raises:
            SpaceError: the trial already has another value, or the parameter has a prior that the study does not know.
        """
        known = self.params.values_by_name
        if name not in known:
            if parameter.prior is not None and self.priors is not None and name not in self.priors:
                raise SpaceError(
                    f"The prior {parameter.prior!r} of {name} comes too late: priors must be known before the first "
                    "trial. Pass a mapping of names to parameters as hp_space, or remove the prior (prior=None)."
                )
            known[name] = self.ranks.decide(lambda: self._choose(name, parameter))
        elif not parameter.contains(known[name]):
            raise SpaceError(f"Trial {self.number} already has {name}={known[name]!r}, which is not in {parameter!r}.")
        self.params.read.add(name)
        return known[name]

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Suggest a real number between `low` and `high`, both included."""
        return float(self.suggest(name, Float(low, high, step=step, log=log)))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Suggest a whole number between `low` and `high`, both included."""
        return int(self.suggest(name, Int(low, high, step=step, log=log)))

    def suggest_categorical(self, name: str, choices: Sequence[Scalar]) -> object:
        """Suggest one of `choices`."""
        return self.suggest(name, Categorical(tuple(choices)))

    def set_user_attr(self, key: str, value: object) -> None:
        """Attach a value to the trial: to its record and, once the trial ends, to Optuna's trial.

        Args:
            key: the name, which must not begin with ``hpsearch``.
            value: a value that JSON can hold; integers have at most 64 bits.

        Raises:
            StudyError: the name is not allowed, or JSON cannot hold the value.
        """
        if not isinstance(key, str) or not key.strip() or key.startswith("hpsearch"):
            raise StudyError(
                f"The name of an attribute must be text that does not begin with 'hpsearch', but got {key!r}."
            )
        try:
            self.user_attrs[key] = as_written(json.loads(json.dumps(value)))
        except (TypeError, ValueError, Unreadable) as error:
            raise StudyError(f"The attribute {key}={value!r} of a trial cannot be stored: {error}.") from error

    def propose_again(self, params: Mapping[str, object] | None = None) -> bool:
        """Discard the suggested values; the next ones are drawn again, or are `params`.

        Return False, and discard nothing, if the trial must keep its values.
        """
        return False

    def keep(self) -> None:  # noqa: B027 - most trials have nothing to write
        """Write the suggested values to the storage, where they were only proposed so far."""

    @abstractmethod
    def report(self, value: float, resource: int) -> None:
        """Report the objective after `resource` units of data to the study."""

    @abstractmethod
    def should_prune(self) -> bool:
        """Return whether the study asks to prune this trial."""

    def verdict(self, so_far: TrialRecord, is_comparable: bool, is_last: bool) -> Verdict:
        """Return the study's verdict on the trial's last report.

        Args:
            so_far: the trial as it is now.
            is_comparable: whether a pruner can compare the report with those of other trials.
            is_last: whether the trial is at its end, where pruning would save nothing.
        """
        return Verdict(prune=is_comparable and not is_last and self.should_prune())

    @abstractmethod
    def _choose(self, name: str, parameter: Parameter) -> object:
        """Choose a value for a parameter that has none yet."""


class FixedTrial(Trial):
    """A trial with fixed parameters, to train or build a model with known values outside a study.

    Raises:
        SpaceError: the value of a parameter is needed, but was not given.

    Examples:
        >>> FixedTrial({"layers": 2}).suggest_int("layers", 1, 4)
        2
    """

    def __init__(
        self, params: Mapping[str, object], number: int = 0, arguments: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(number)
        self.params = _ReadParams(dict(params))
        self.arguments = dict(params if arguments is None else arguments)

    @classmethod
    def of(cls, record: TrialRecord) -> FixedTrial:
        """Return a trial that trains, or builds the model, as a recorded one did; a replica with its own seed."""
        trial = cls(record.params, record.number, record.arguments)
        trial.origin = None if record.replica is None else record.origin
        return trial

    def report(self, value: float, resource: int) -> None:
        """Do nothing: there is no study."""

    def should_prune(self) -> bool:
        """Return False: there is no study."""
        return False

    def _choose(self, name: str, parameter: Parameter) -> object:
        raise SpaceError(f"No value was given for {name!r}; given are {sorted(self.params)}.")
