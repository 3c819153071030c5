"""A trial as it is assigned to the process that trains it, and as that process sees it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..search.peer_summary import PeerTrials
from ..search.space.parameters import Parameter
from ..search.trial import FixedTrial, Trial
from ..search.trial_record import TrialRecord
from ..system.json_types import JsonObject
from .preflight import PreflightPlan


@dataclass(frozen=True)
class Assignment:
    """The assignment of a trial to the process that trains it.

    Attributes:
        others: the other trials of the study.
        preflight: of the preflight that comes first; None: there is none.
        of_all_branches: names of parameters, also of branches that are not open.
        user_attrs: what the user's code has noted so far.
        origin: the request that the trial comes from; see `TrialRecord`.
        seconds: the time that the search has left when it is handed over; None: no limit. The process that receives it
            counts by its own clock: the clocks of two machines may differ.
    """

    number: int
    name: str
    params: dict[str, object]
    arguments: dict[str, object]
    suggested_by_space: set[str]
    fixed: dict[str, object]
    earlier: TrialRecord | None
    others: PeerTrials
    seconds: float | None
    preflight: PreflightPlan | None
    of_all_branches: frozenset[str]
    user_attrs: dict[str, object]
    origin: JsonObject | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.number})"  # engines name trials by their settings

    def after(self, seconds: float) -> Assignment:
        """Return the assignment as it is `seconds` after its receipt."""
        return self if self.seconds is None else replace(self, seconds=max(self.seconds - seconds, 0.0))

    @classmethod
    def of(
        cls, trial: Trial, others: PeerTrials, seconds: float | None, preflight: PreflightPlan | None = None
    ) -> Assignment:
        """Return the assignment of a trial, beside these other ones, with `seconds` of the search's time left."""
        return cls(
            trial.number,
            trial.name,
            dict(trial.params.values_by_name),
            dict(trial.arguments),
            set(trial.suggested_by_space),
            dict(trial.fixed),
            trial.earlier,
            others,
            seconds,
            preflight,
            trial.params.of_all_branches,
            dict(trial.user_attrs),
            trial.origin,
        )


class AssignedTrial(Trial):
    """A trial in another process than the one that searches: that one chooses its parameters, reports and prunes.

    A copy of it, also in another process, has the parameters that are known by then.
    """

    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment.number, assignment.earlier)
        self.name, self.arguments = assignment.name, assignment.arguments
        self.suggested_by_space, self.fixed = assignment.suggested_by_space, assignment.fixed
        self.params.values_by_name.update(assignment.params)
        self.params.of_all_branches = assignment.of_all_branches
        self.user_attrs = dict(assignment.user_attrs)
        self.origin = assignment.origin

    def __reduce__(self) -> tuple[object, ...]:
        return FixedTrial, (dict(self.params.values_by_name), self.number, dict(self.arguments))

    def report(self, value: float, resource: int) -> None:
        """Do nothing: the other process reports."""

    def should_prune(self) -> bool:
        """Return False: the other process asks."""
        return False

    def _choose(self, name: str, parameter: Parameter) -> object:
        raise AssertionError("the process that searches chooses")
