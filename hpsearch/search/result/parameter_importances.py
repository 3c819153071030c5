"""The importances of the parameters of a study, with what they rest on."""

from __future__ import annotations

from collections.abc import Mapping


class Importances(dict[str, float]):
    """The fraction of the objective's variation that each parameter explains, largest first.

    Args:
        shares: names to fractions.
        trials: the number of trials that were compared.
        resource: the resource at which their reports were compared; None: their results.
    """

    def __init__(self, shares: Mapping[str, float] | None = None, trials: int = 0, resource: int | None = None) -> None:
        super().__init__(shares or {})
        self.trials, self.resource = trials, resource

    def basis(self, unit: str) -> str:
        """Return what they rest on, in words.

        >>> Importances({}, 12).basis("epoch"), Importances({}, 30, 2).basis("epoch")
        ('the results of 12 trials', 'the reports of 30 trials after 2 epochs')
        """
        trials = f"{self.trials} trial{'' if self.trials == 1 else 's'}"
        if self.resource is None:
            return f"the results of {trials}"
        return f"the reports of {trials} after {self.resource} {unit}{'' if self.resource == 1 else 's'}"
