"""The record of a trial: its state, what it reported, when it was trained, and which trial it repeats or extends."""

from __future__ import annotations

import enum
import functools
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..system.html_table import html_pairs
from ..system.json_types import JsonObject
from .metrics.added_metrics import RecordedMetrics
from .store.checked_json import printable
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
