"""A finite space of which every configuration has been tried."""

from __future__ import annotations

from collections.abc import Sequence

from ...space.search_space import SearchSpace
from ...space.tried_configurations import untried
from ...trial_record import TrialRecord


def exhausted_space(space: SearchSpace, records: Sequence[TrialRecord]) -> list[str]:
    """Return a sentence if no configuration of the space is left to try.

    A grid of the user's own sampler over a parameter with endless values is not recognised.
    """
    tried = {each.configuration for each in records if each.state.is_counted and each.params}
    if not tried or untried(space.suggest, 0, "", tried) is not None:
        return []
    if len(tried) == 1:
        return ["The only configuration of this space has been tried: search a larger space."]
    return [f"All {len(tried)} configurations of this space have been tried: search a larger space."]
