"""A trial whose parameters are drawn at random: to try what is made of them; it is in no study."""

from __future__ import annotations

import random

from ..trial import Trial
from .parameters import Parameter
from .search_space import SearchSpace


class DrawnTrial(Trial):
    """A trial whose parameters are drawn at random, the same ones for the same seed; its reports go nowhere.

    Args:
        seed: of the draws.
        number: of the trial.
    """

    def __init__(self, seed: int | str, number: int = 0) -> None:
        super().__init__(number)
        self._stream = random.Random(seed)

    def report(self, value: float, resource: int) -> None:
        """Do nothing."""

    def should_prune(self) -> bool:
        """Return False."""
        return False

    def _choose(self, name: str, parameter: Parameter) -> object:
        return SearchSpace({name: parameter}).sample(self._stream)[name]
