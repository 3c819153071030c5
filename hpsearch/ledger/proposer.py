"""An alternative to Optuna's samplers for choosing parameters, such as a searcher of Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from ..search.decisions.decide import Wait
from ..search.space.parameters import Params
from ..search.space.tried_configurations import ASKS
from ..search.trial_record import TrialRecord

# There are no parameters now.
WAIT = Wait()


class Proposer(Protocol):
    """Chooses the parameters of trials in place of a sampler."""

    def propose(self, number: int) -> Params | Wait | None:
        """Return the parameters of a trial by its number; WAIT if there are none now, None if there are no more."""

    def reject(self, number: int, known: TrialRecord) -> None:
        """Note that the last proposed parameters are those of a known trial; `propose` is called again."""

    def end(self, record: TrialRecord, result: Mapping[str, object]) -> None:
        """Note how a trial has ended, and what it reported last."""


def proposed_by(
    proposer: Proposer, number: int, known_trial: Callable[[Params], TrialRecord | None]
) -> Params | Wait | None:
    """Ask for the parameters of a trial; up to ten times, if a trial that is known has what is proposed."""
    for _ in range(ASKS - 1):
        proposed = proposer.propose(number)
        known = known_trial(proposed) if isinstance(proposed, Mapping) else None
        if known is None:
            return proposed
        proposer.reject(number, known)
    return proposer.propose(number)
