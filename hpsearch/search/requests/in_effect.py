"""What the requests to a search come to, at one moment: a pure function of the requests and of who is at work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..decisions.repeats import Confirmation, Repeats
from ..metrics.objective import Objective
from ..trial_record import TrialRecord
from .request import OF_A_CONFIRMATION, Kind, Request


@dataclass(frozen=True)
class InEffect:
    """The requests that are in effect.

    Attributes:
        stopped: the numbers of the trials that are to be stopped, with the value that they have.
        promoted: the numbers of the trials that are to be trained to completion.
        new: the requests for new trials, in the order in which they were made.
        is_paused: whether no trial may begin or continue.
        settings: the settings of the search that were changed, by name.
        confirmations: the trials that are to be repeated until the best of them is clear.
    """

    stopped: frozenset[int] = frozenset()
    promoted: frozenset[int] = frozenset()
    new: tuple[Request, ...] = ()
    is_paused: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
    confirmations: tuple[Confirmation, ...] = ()

    @classmethod
    def of(cls, requests: Sequence[Request], is_at_work: Callable[[str], bool] = lambda session: False) -> InEffect:
        """Return what requests come to.

        Args:
            requests: in the order in which they were made.
            is_at_work: whether a session is still at work; pauses and settings last as long as those that they were
                made to.

        Examples:
            >>> InEffect.of([Request(Kind.STOP, 7), Request(Kind.PROMOTE, 3)]).stopped
            frozenset({7})
        """
        lasting = [each for each in requests if each.kind.ends_with_the_search and any(map(is_at_work, each.sessions))]
        switches = [each.kind for each in lasting if each.kind is not Kind.SET]
        return cls(
            _numbers(requests, Kind.STOP),
            _numbers(requests, Kind.PROMOTE),
            tuple(each for each in requests if each.kind.is_for_new_trial),
            switches[-1:] == [Kind.PAUSE],
            {name: value for each in lasting if each.kind is Kind.SET for name, value in each.arguments.items()},
            tuple(_confirmation(each) for each in requests if each.kind is Kind.CONFIRM),
        )

    def total(self, n_trials: int | None) -> int | None:
        """Return the total number of trials: as set or else as given, and one more for each new trial asked for."""
        total = self.settings.get("n_trials", n_trials)
        return total + len(self.new) if isinstance(total, int) else None

    def without_trial(self, begun: Collection[str]) -> tuple[Request, ...]:
        """Return the requests for new trials that have not begun; `begun` are the requests of those that have."""
        return tuple(each for each in self.new if each.id not in begun)


def unfulfilled(
    requests: Sequence[Request],
    records: Sequence[TrialRecord],
    objectives: tuple[Objective, ...],
    sessions: Collection[str] = (),
) -> list[Request]:
    """Return the requests that no search has fulfilled.

    These are requests for trials that have not begun, and about trials that have not ended; requests to confirm trials
    of which one would be trained once more; and the last request to pause, while the search is paused.

    Args:
        requests: in the order in which they were made.
        records: the trials of the study.
        objectives: of the study.
        sessions: those that are at work.
    """
    begun = {str(each.origin["request"]) for each in records if each.origin is not None}
    open_trials = {each.number for each in records if each.state.is_open}
    is_paused = InEffect.of(requests, sessions.__contains__).is_paused
    pauses = [each for each in requests if each.kind is Kind.PAUSE][-1:] if is_paused else []
    return [
        each
        for each in requests
        if (each.kind.is_for_new_trial and each.id not in begun)
        or (each.kind in (Kind.STOP, Kind.PROMOTE) and each.trial in open_trials)
        or (each.kind is Kind.CONFIRM and _is_left(_confirmation(each), records, objectives))
        or each in pauses
    ]


def _is_left(asked: Confirmation, records: Sequence[TrialRecord], objectives: tuple[Objective, ...]) -> bool:
    """Return whether one of the trials would be trained once more."""
    return Repeats(1, objectives, (asked,)).next(records, more_may_come=False) is not None


def _confirmation(request: Request) -> Confirmation:
    trials, repeats = (request.arguments[each] for each in OF_A_CONFIRMATION)
    return Confirmation(tuple(trials), repeats)


def _numbers(requests: Iterable[Request], kind: Kind) -> frozenset[int]:
    return frozenset(each.trial for each in requests if each.kind is kind and each.trial is not None)
