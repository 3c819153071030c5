"""A trial as `hp_space` and `model_init` see it, and its record."""

from __future__ import annotations

import enum
import functools
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import SpaceError, StudyError, UnknownParameterError
from ..system.html_table import html_pairs
from ..system.json_types import JsonObject
from ..system.spelling import nearest_name
from .folds import Fold, Folds
from .metrics.added_metrics import RecordedMetrics
from .process_group import OneProcess, Ranks
from .space.parameters import Categorical, Float, Int, Parameter, Params, Scalar
from .store.checked_json import Unreadable, as_written, printable
from .wording import format_value


class TrialState(enum.StrEnum):
    """The state of a trial.

    COMPLETE, PRUNED, STOPPED (by a budget, after an evaluation) and FAILED count as trials of the study. RUNNING and
    INTERRUPTED (by the user, or by a budget of the study before any evaluation) resume: the same trial, from its last
    checkpoint. A PAUSED trial resumes if it turns out to be among the best at its rung, and otherwise is pruned. A
    REFUSED trial revealed a mistake in the study, so it neither counts nor resumes.
    """

    RUNNING = "running"
    PAUSED = "paused"
    COMPLETE = "complete"
    PRUNED = "pruned"
    STOPPED = "stopped"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    REFUSED = "refused"

    @functools.cached_property
    def is_counted(self) -> bool:
        """True if the trial counts towards `n_trials`."""
        return not self.is_open and self is not TrialState.REFUSED

    @functools.cached_property
    def is_open(self) -> bool:
        """True if the trial is running, or may resume."""
        return self in (TrialState.RUNNING, TrialState.PAUSED, TrialState.INTERRUPTED)

    @functools.cached_property
    def has_result(self) -> bool:
        """True if the trial's value may be the best of the study."""
        return self in (TrialState.COMPLETE, TrialState.STOPPED)


@dataclass(frozen=True)
class Report:
    """One evaluation of a trial.

    Attributes:
        values: the objectives, in their order; each may be NaN.
        resource: the data seen: epochs, or samples if evaluation is by steps.
        step: the number of optimizer steps so far.
        epoch: the number of epochs so far.
        metrics: everything the evaluation produced.
        violations: by how much each constraint is broken; at most 0 if it holds.
        horizon: the resource at which the training run is complete; 0 if unknown.
        operations: the floating-point operations of training so far, as `hpsearch.training.flops` counts them; 0 if
            unknown, as for models from outside transformers.
    """

    values: tuple[float, ...]
    resource: float
    step: int
    epoch: float
    metrics: dict[str, float]
    violations: dict[str, float] = field(default_factory=dict)
    horizon: float = 0.0
    operations: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.metrics, RecordedMetrics):
            object.__setattr__(self, "metrics", RecordedMetrics(self.metrics))

    @property
    def value(self) -> float:
        """The objective, or the first of several."""
        return self.values[0]

    @property
    def fraction(self) -> float:
        """The fraction of its training run that the trial had trained; 0 if unknown."""
        return self.resource / self.horizon if self.step > 0 and self.horizon > 0 else 0.0

    @property
    def comparable_resource(self) -> int | None:
        """The resource as an integer, at which engines compare trials; None where they cannot be compared."""
        return int(self.resource) if float(self.resource).is_integer() else None

    def to_json(self) -> JsonObject:
        """Return the fields as JSON-ready values; unknown operations are omitted, as in hpsearch 0.8.0."""
        return {name: each for name, each in vars(self).items() if name != "operations" or each}

    @classmethod
    def from_json(cls, values: JsonObject) -> Report:
        """Return the report from its fields, possibly read from JSON."""
        return cls(**{**values, "values": tuple(values["values"])})


class Span(NamedTuple):
    """A period in which a trial was trained.

    Attributes:
        begin, end: in seconds since 1970.
        where: the machine, the worker and the GPU, in words, as `hpsearch.system.machine.whereabouts` gives them; empty
            if it is not known, as for a trial whose worker has died.
    """

    begin: float
    end: float
    where: str = ""


@dataclass(frozen=True)
class TrialRecord:
    """The record of a trial: enough to explain, select and replay it.

    Attributes:
        number: the trial's number in its study.
        name: the name of its run and its folder.
        state: the state of the trial.
        params: all parameters that were suggested, by name.
        arguments: the parameters that the run was configured with.
        hyperparameters: the arguments, and the parameters that `model_init` suggested; shown in `BestRun`.
        seed: the seed it trained with.
        values: the objectives by scope, in their order; empty if the trial has no result.
        violations: by how much each constraint is broken, at the selected report.
        reports: its evaluations, in order.
        checkpoint: the folder of its scoped weights; None if not kept.
        reason: why it failed, was stopped or interrupted.
        traceback: the traceback of a failure.
        seconds: the wall time of its training and evaluation, over all sessions, as far as its checkpoints record it.
        epochs: passes over the data that it trained.
        fallbacks: the changes each time it ran out of memory and was run again.
        session: the index of the session in which it ended, whose arguments, versions and data are in `study.json`.
        schedule: the segments of a trial whose parameters changed while it trained (population-based training). Each
            has the `trial` that trained it, the `step` after which it begins, and its `arguments`; reports and weights
            are the result of all segments together. Empty for all other trials.
        spans: when and where it was trained; a trial that was paused has several. A period that ended with the process
            of the search is not recorded.
        user_attrs: the values that the user's code set with `Trial.set_user_attr`.
        fraction: the fraction of its training run that it trained, from 0 to 1; None in a record of hpsearch 0.8.0.
            `trial_max_epochs` shortens the run.
        origin: the request of the user that the trial comes from: its id (`request`), its `kind`, the number of the
            `trial` that it is about, or None, and the `arguments` that it gives to the new trial; None for a trial that
            the search itself began. A replica has one too, of the kind ``replica`` or ``fold``.
        processes: the number of processes that train it together; None in a record of an earlier version.
    """

    number: int
    name: str
    state: TrialState
    params: dict[str, Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    values: tuple[float, ...] = ()
    violations: dict[str, float] = field(default_factory=dict)
    reports: tuple[Report, ...] = ()
    checkpoint: Path | None = None
    reason: str | None = None
    traceback: str | None = None
    seconds: float = 0.0
    epochs: float = 0.0
    fallbacks: tuple[JsonObject, ...] = ()
    session: int = 0
    schedule: tuple[JsonObject, ...] = ()
    spans: tuple[Span, ...] = ()
    user_attrs: dict[str, object] = field(default_factory=dict)
    fraction: float | None = None
    origin: JsonObject | None = None
    processes: int | None = None

    @property
    def value(self) -> float | None:
        """The objective by scope, or the first of several; None without a result."""
        return self.values[0] if self.values else None

    @functools.cached_property
    def is_eligible(self) -> bool:
        """True if the trial may be the best: it has a result and breaks no constraint."""
        return self.state.has_result and bool(self.values) and all(each <= 0 for each in self.violations.values())

    @property
    def extends(self) -> int | None:
        """The number of the trial that this one extends, at the request of the user; None: it extends none."""
        return extended_by(self.origin)

    @functools.cached_property
    def replica(self) -> Replica | None:
        """Which trial this one repeats with another seed, or on another fold; None: none."""
        return replica_of(self.origin)

    @property
    def is_counted(self) -> bool:
        """True if it counts towards `n_trials`: it has ended, was not refused, and is no replica."""
        return self.state.is_counted and self.replica is None

    @functools.cached_property
    def configuration(self) -> str:
        """The parameters as text; equal parameters give equal texts."""
        return configuration(self.params)

    def going_on_from(self, known: TrialRecord | None) -> TrialRecord:
        """Return this record, completed from an earlier record of the trial.

        The earlier record supplies when the trial was trained and, if this record has no report, the rest too.
        """
        if known is None:
            return self
        if self.reports:
            return replace(
                self,
                session=self.session or known.session,
                spans=self.spans or known.spans,
                origin=self.origin or known.origin,
            )
        return replace(
            self,
            params=self.params or known.params,
            arguments=self.arguments or known.arguments,
            hyperparameters=known.hyperparameters if known.reports else self.hyperparameters,
            seed=known.seed if self.seed is None else self.seed,
            values=known.values,
            violations=known.violations,
            reports=known.reports,
            seconds=max(self.seconds, known.seconds),
            epochs=max(self.epochs, known.epochs),
            fraction=max((each.fraction for each in (self, known) if each.fraction is not None), default=None),
            session=self.session or known.session,
            schedule=self.schedule or known.schedule,
            spans=self.spans or known.spans,
            user_attrs={**known.user_attrs, **self.user_attrs},
            origin=self.origin or known.origin,
            processes=self.processes or known.processes,
        )

    def __repr__(self) -> str:
        """Return the trial's number, its state and the result; its reports and arguments are attributes."""
        shown = {"values": self.values, "params": self.params, "epochs": self.epochs, "seconds": self.seconds}
        shown |= {name: value for name in ("replica", "reason") if (value := getattr(self, name)) is not None}
        parts = [str(self.number), self.state.value, *(f"{name}={value!r}" for name, value in shown.items())]
        return f"TrialRecord({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """Return the same as a table, for a notebook."""
        values = ", ".join(format_value(each) for each in self.values) or "-"
        last = {"replica": self.replica, "reason": self.reason, "checkpoint": self.checkpoint}
        pairs = {
            "state": self.state.value,
            "values" if len(self.values) > 1 else "value": values,
            **{name: format_value(value) for name, value in self.params.items()},
            "epochs": format_value(float(self.epochs)),
            "seconds": f"{self.seconds:.1f}",
            "reports": str(len(self.reports)),
            **{name: printable(str(value)) for name, value in last.items() if value is not None},
        }
        return html_pairs(pairs, f"Trial {self.number}")

    def to_json(self) -> JsonObject:
        """Return JSON-ready values; an argument that JSON cannot hold becomes text."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["reports"] = [each.to_json() for each in self.reports]
        values["state"] = self.state.value
        values["checkpoint"] = None if self.checkpoint is None else self.checkpoint.name
        if not self.user_attrs:
            del values["user_attrs"]
        for name in ("fraction", "origin", "processes"):
            if values[name] is None:
                del values[name]
        return dict(json.loads(json.dumps(values, default=str)))


class Replica(NamedTuple):
    """A further training run of a trial: with other seeds, or on another fold of a cross-validation.

    Attributes:
        trial: the number of the trial.
        offset: from 1; it is added to the training seed and to the data seed, or is the number of the fold.
        kind: ``replica`` or ``fold``.
    """

    trial: int
    offset: int
    kind: str = "replica"

    def __str__(self) -> str:
        return f"{self.kind} {self.offset} of trial {self.trial}"

    @property
    def id(self) -> str:
        """The id by which the storage knows that it has begun, as for a request of the user."""
        return f"{self.kind}-{self.trial}-{self.offset}"

    @property
    def origin(self) -> JsonObject:
        """The origin of its trial; see `TrialRecord`."""
        return {"request": self.id, "kind": self.kind, "trial": self.trial, "arguments": {"offset": self.offset}}

    @classmethod
    def of_id(cls, id: str | None) -> Replica | None:
        """Return the replica of an id; None if it is not that of a replica.

        >>> Replica.of_id(Replica(7, 1).id), Replica.of_id("4f2a")
        (Replica(trial=7, offset=1, kind='replica'), None)
        """
        found = _ID_OF_A_REPLICA.fullmatch(id or "")
        return None if found is None else cls(int(found[2]), int(found[3]), found[1])


REPLICA, FOLD = "replica", "fold"
KINDS_OF_REPLICAS = (REPLICA, FOLD)
_ID_OF_A_REPLICA = re.compile(rf"({'|'.join(KINDS_OF_REPLICAS)})-(\d+)-(\d+)")


def after_a_kill(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return records of a study in which no process is at work: running trials are interrupted, as theirs was killed.

    >>> [each.state.value for each in after_a_kill([TrialRecord(0, "run-0", TrialState.RUNNING, {})])]
    ['interrupted']
    """
    running, reason = TrialState.RUNNING, "its process died"
    return [
        replace(each, state=TrialState.INTERRUPTED, reason=reason) if each.state is running else each
        for each in records
    ]


def replica_of(origin: JsonObject | None) -> Replica | None:
    """Return the replica that a trial of this origin is; None if it is none."""
    return None if origin is None or origin["kind"] not in KINDS_OF_REPLICAS else Replica.of_id(origin["request"])


def extended_by(origin: JsonObject | None) -> int | None:
    """Return the number of the trial that one of this origin extends; None if it extends none."""
    return None if origin is None or origin["kind"] != "extend" else origin["trial"]


def configuration(params: Mapping[str, object]) -> str:
    """Return a text that is the same for the same parameters, also after a journey through JSON.

    >>> configuration({"a": 0.1 + 0.2, "b": (1, 2)}) == configuration({"b": [1, 2], "a": 0.3})
    True
    """
    return json.dumps({name: _rounded(value) for name, value in params.items()}, sort_keys=True, default=str)


def _rounded(value: object) -> object:
    """Return a number without the last digits, in which two ways of computing it may differ."""
    return float(f"{value:.12g}") if isinstance(value, float) and math.isfinite(value) else value


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
