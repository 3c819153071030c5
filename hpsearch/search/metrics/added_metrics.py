"""The metric that a search adds to those of every evaluation, and evaluations as functions of the user see them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

NUM_PARAMETERS = "num_parameters"
# Its name in 0.8.0, which stays readable.
OLDER_NAME = "parameters"
ADDED = (NUM_PARAMETERS, OLDER_NAME)


class Metrics(dict[str, float]):
    """The metrics of an evaluation; those that the search adds are read by name, and are no items.

    So a function that sums all metrics, or copies and pops them, has only those that the evaluation produced.

    Args:
        items: the evaluation's own metrics.
        added: further metrics, for ``[]``, `get` and ``in``; an item of the same name takes precedence.

    Examples:
        >>> metrics = Metrics({"eval_accuracy": 0.5}, {"num_parameters": 1000})
        >>> list(metrics), sum(metrics.values()), metrics["num_parameters"], "num_parameters" in metrics
        (['eval_accuracy'], 0.5, 1000, True)
    """

    def __init__(
        self, items: Mapping[str, float] | Iterable[tuple[str, float]] = (), added: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(items)
        self.added = dict(added or {})

    def __missing__(self, name: str) -> float:
        return self.added[name]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.added

    def get(self, name: str, default: object = None) -> Any:
        """Return a metric by name, also an added one; `default` if there is none."""
        try:
            return self[name]
        except KeyError:
            return default


class RecordedMetrics(Metrics):
    """The metrics that a report records: the added one is an item, and both of its names can be read."""

    def __init__(self, items: Mapping[str, float] | Iterable[tuple[str, float]] = ()) -> None:
        super().__init__(items)
        self.added = _both_names(self)


def with_num_parameters(metrics: Mapping[str, float], count: int) -> Metrics:
    """Return the metrics of an evaluation, to which the number of weights of its model is added."""
    return Metrics(metrics, dict.fromkeys(ADDED, count))


def recorded(metrics: Metrics) -> RecordedMetrics:
    """Return the metrics that a report records: those that are numbers, and the added one."""
    added = {NUM_PARAMETERS: metrics[NUM_PARAMETERS]} if NUM_PARAMETERS in metrics else {}
    return RecordedMetrics({key: each for key, each in {**metrics, **added}.items() if isinstance(each, (int, float))})


def as_function_sees(metrics: Mapping[str, float]) -> Metrics:
    """Return a copy of metrics in which the added one is no item, also where a report records it."""
    if isinstance(metrics, RecordedMetrics):
        return Metrics({name: each for name, each in metrics.items() if name not in ADDED}, _both_names(metrics))
    return Metrics(metrics, metrics.added if isinstance(metrics, Metrics) else _both_names(metrics))


def by_every_name(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics with the added one as an item under each of its names, for what knows no `Metrics`.

    >>> by_every_name(RecordedMetrics({"eval_loss": 0.5, "num_parameters": 9}))
    {'num_parameters': 9, 'parameters': 9, 'eval_loss': 0.5}
    """
    return {**(metrics.added if isinstance(metrics, Metrics) else _both_names(metrics)), **metrics}


def _both_names(metrics: Mapping[str, float]) -> dict[str, float]:
    found = [metrics[name] for name in ADDED if name in metrics.keys()]  # noqa: SIM118 - the items only
    return dict.fromkeys(ADDED, found[0]) if found else {}
