"""The objectives of a search: metrics by name, functions of the metrics, or the documented default."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

from ...errors import MissingMetricError, ObjectiveError, described_value
from ...system.spelling import nearest_name
from .added_metrics import ADDED, NUM_PARAMETERS, Metrics, as_function_sees

MINIMIZE, MAXIMIZE = "minimize", "maximize"
DIRECTIONS = (MINIMIZE, MAXIMIZE)

_LOWER_IS_BETTER = {
    "loss",
    "error",
    "err",
    "perplexity",
    "ppl",
    "mse",
    "rmse",
    "mae",
    "mape",
    "nll",
    "wer",
    "cer",
    "ter",
    "parameters",
    "runtime",
}
_HIGHER_IS_BETTER = {
    "accuracy",
    "acc",
    "f1",
    "precision",
    "recall",
    "auc",
    "auroc",
    "bleu",
    "rouge",
    "rouge1",
    "rouge2",
    "rougel",
    "r2",
    "mcc",
    "ndcg",
    "pearson",
    "spearman",
    "pearsonr",
    "spearmanr",
    "match",
    "reward",
}
_SAY_NOTHING = {"rate", "score", "macro", "micro", "weighted", "mean", "avg", "average", "at", "top", "k"}
_NOT_A_METRIC = re.compile(
    r"(^|_)(epoch|runtime|samples_per_second|steps_per_second|tokens_per_second|time)$|_mem_|^(num_)?parameters$"
)


@dataclass(frozen=True)
class Objective:
    """An objective and its direction; created by `resolve_objectives`.

    Attributes:
        metric: the key of a metric, or a function from all metrics to a number.
        direction: ``"minimize"`` or ``"maximize"``.
        description: the objective in words, printed before the search.
        name: the key under which reports and tables show the value.
    """

    metric: Union[str, Callable[[dict[str, float]], float]]
    direction: str
    description: str
    name: str

    @property
    def identity(self) -> str:
        """The identity of the objective in a later session: a metric's key, or the name of a function."""
        is_function = callable(self.metric) and self.metric not in (sum_of_metrics, sum_of_losses)
        return f"{self.name}(metrics)" if is_function else self.name

    def value(self, metrics: Mapping[str, float], what: str = "objective") -> float:
        """Return the objective of one evaluation; NaN and infinities are returned as they are.

        Args:
            metrics: the metrics of the evaluation.
            what: the purpose of the value, in messages.

        Raises:
            MissingMetricError: the metric is not among `metrics`, which the message lists.
            ObjectiveError: the value is not a number.
        """
        return number_from(self.metric, metrics, f"The {what}" if self.name == what else f"The {what} {self.name}")

    def is_better(self, value: float, than: float | None) -> bool:
        """Return whether `value` is better than `than`; a finite value is better than None, NaN and infinities."""
        if not math.isfinite(value):
            return False
        if than is None or not math.isfinite(than):
            return True
        return value < than if self.direction == MINIMIZE else value > than

    @property
    def best_of(self) -> Callable[..., Any]:
        """The function that finds the best value: `min` or `max`."""
        return min if self.direction == MINIMIZE else max


def number_from(metric: str | Callable[[dict[str, float]], float], metrics: Mapping[str, float], what: str) -> float:
    """Return a metric by name, or what a function makes of all metrics.

    What the search adds to them can be read by name, from a function too, whose mapping has the evaluation's own as
    items only. If the evaluation has a metric of the same name, a name means that.

    Raises:
        MissingMetricError: there is no such metric; those there are, are listed.
        ObjectiveError: it is not a number.
    """
    metrics = as_function_sees(metrics)
    if isinstance(metric, str):
        own = f"eval_{metric}"
        name = own if metric in ADDED and own in metrics else metric
        if name not in metrics:
            raise _missing(name, metrics, what)
        value: Any = metrics[name]
    else:
        try:
            value = metric(as_function_sees(metrics))
        except MissingMetricError:
            raise
        except KeyError as error:
            if error.args[0] in metrics.added:
                raise MissingMetricError(
                    f"{what} reads {error.args[0]!r} from a copy of the metrics, which lacks it, because the search "
                    "adds it to the original mapping. Read it from that mapping."
                ) from error
            raise _missing(str(error.args[0]), metrics, what) from error
    try:
        if isinstance(value, (bool, str)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        is_several = isinstance(value, (list, tuple)) and len(value) > 1
        advice = f" Of {len(value)} objectives, pass a list of as many directions." if is_several else ""
        raise ObjectiveError(f"{what} must be a number, but it is {described_value(value)}.{advice}") from None


def metric_key(name: str) -> str:
    """Return the key of a metric whose ``eval_`` prefix may have been left out."""
    return name if name.startswith("eval_") or name in ADDED else f"eval_{name}"


def resolve_objectives(
    compute_objective: object, direction: object, has_metrics: bool, eval_sets: int = 1
) -> tuple[Objective, ...]:
    """Return the objectives that a search's arguments ask for; most often one.

    Args:
        compute_objective: the name of a metric (its ``eval_`` prefix may be left out), a function from the metrics
            of an evaluation to a number, or None for the default: the evaluation loss if there is no
            `compute_metrics`, else the sum of all metrics except losses, speed and memory. A list of names and
            functions: several objectives; as is one function that returns a tuple, with a list of directions.
        direction: ``"minimize"`` or ``"maximize"``; None derives it: losses and errors are minimised, other metrics
            maximised. A function needs one. With several objectives, a list of them.
        has_metrics: whether there is a `compute_metrics`.
        eval_sets: how many evaluation sets there are.

    Raises:
        ObjectiveError: a direction is not one, is missing, or contradicts its metric; or the lists do not fit.
    """
    if isinstance(direction, (list, tuple)) and len(direction) > 1 and callable(compute_objective):
        return _resolve_components(compute_objective, direction)
    if not isinstance(compute_objective, (list, tuple)):
        if isinstance(direction, (list, tuple)):
            if len(direction) != 1:
                raise ObjectiveError(
                    f"direction={list(direction)!r} is a list, so compute_objective must be a list of as many metrics "
                    f"or functions, or a function that returns as many values, but got {compute_objective!r}."
                )
            [direction] = direction
        return (_resolve(compute_objective, direction, has_metrics, eval_sets),)
    if not compute_objective:
        raise ObjectiveError("compute_objective is an empty list; name at least one metric or function.")
    directions = direction if isinstance(direction, (list, tuple)) else [direction] * len(compute_objective)
    if len(directions) != len(compute_objective):
        raise ObjectiveError(
            f"compute_objective is a list of {len(compute_objective)} and direction one of {len(directions)}; give "
            "one direction for each objective (None: its natural one)."
        )
    resolved: list[Objective] = []
    for metric, each in zip(compute_objective, directions, strict=True):
        if metric is None:
            raise ObjectiveError("A list of objectives must name each of them, but contains None.")
        objective = _resolve(metric, each, has_metrics, eval_sets)
        if any(objective.name == other.name for other in resolved):
            raise ObjectiveError(f"The objective {objective.name!r} is given twice in {compute_objective!r}.")
        resolved.append(objective)
    return tuple(resolved)


def resolve_pruning(metric: object, objectives: tuple[Objective, ...]) -> Objective | None:
    """Return the objective that prunes trials of several objectives: one of them, or another metric, by name.

    Another metric has its natural direction; one whose name implies none is maximised.

    Raises:
        ObjectiveError: it is no name.
    """
    if metric is None:
        return None
    if not isinstance(metric, str) or not metric:
        raise ObjectiveError(f"pruning_metric must be the name of a metric or None, but got {metric!r}.")
    among = next((each for each in objectives if each.metric == metric_key(metric)), None)
    return among or _named_objective(metric, None)


class _Several:
    """A function of several objectives, called once for each evaluation."""

    def __init__(self, function: Callable[[Metrics], object], count: int) -> None:
        self.__wrapped__, self._count = function, count
        self._latest: tuple[dict[str, float], Sequence[object]] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_latest": None}

    def component(self, index: int, metrics: Metrics) -> object:
        """Return one of the values that the function makes of the metrics of an evaluation.

        Raises:
            ObjectiveError: it does not return as many as there are directions.
        """
        if self._latest is None or self._latest[0] != dict(metrics):
            self._latest = dict(metrics), self._values(metrics)
        return self._latest[1][index]

    def _values(self, metrics: Metrics) -> Sequence[object]:
        values = self.__wrapped__(metrics)
        if not isinstance(values, (list, tuple)) or len(values) != self._count:
            raise ObjectiveError(
                f"{_name_of(self.__wrapped__)}(metrics) must return {self._count} values, one for each direction, but "
                f"got {values!r}."
            )
        return values


def _resolve_components(function: Callable[[Metrics], object], directions: Sequence[object]) -> tuple[Objective, ...]:
    """Return the objectives of a function that returns as many values as there are directions."""
    several = _Several(function, len(directions))
    return tuple(
        replace(
            _resolve(functools.partial(several.component, index), each, has_metrics=False, eval_sets=1),
            name=f"{_name_of(function)}[{index}]",
            description=f"{each} {_name_of(function)}[{index}](metrics)",
        )
        for index, each in enumerate(directions)
    )


def _name_of(function: object) -> str:
    return str(getattr(function, "__name__", "objective")).replace("<lambda>", "objective")


def _resolve(compute_objective: object, direction: object, has_metrics: bool, eval_sets: int) -> Objective:
    if direction is not None and direction not in DIRECTIONS:
        raise ObjectiveError(
            f"direction={direction!r} is not a direction; allowed: 'minimize', 'maximize'."
            f"{nearest_name(str(direction), DIRECTIONS)}"
        )
    if compute_objective is None:
        return _default_objective(direction, has_metrics, eval_sets)
    if callable(compute_objective):
        if direction is None:
            raise ObjectiveError(
                "compute_objective is a function, so say which way is better: direction='minimize' or 'maximize'."
            )
        name = _name_of(compute_objective)
        return Objective(compute_objective, direction, f"{direction} {name}(metrics)", name)
    if isinstance(compute_objective, str) and compute_objective:
        return _named_objective(compute_objective, direction)
    raise ObjectiveError(
        f"compute_objective must be a metric's name, a function, a list of these or None, but got "
        f"{compute_objective!r}."
    )


def natural_direction(metric: str) -> str | None:
    """Return the direction that the words of a metric's name imply, or None.

    >>> natural_direction("eval_loss"), natural_direction("eval_f1"), natural_direction("eval_quality")
    ('minimize', 'maximize', None)
    """
    words = metric.lower().replace("-", "_").split("_")
    named = _LOWER_IS_BETTER | _HIGHER_IS_BETTER
    bare = [word if word in named else word.rstrip("0123456789") for word in words]
    telling = next((word for word in reversed(bare) if word and word not in _SAY_NOTHING), "")
    if telling in _LOWER_IS_BETTER:
        return MINIMIZE
    return MAXIMIZE if telling in _HIGHER_IS_BETTER else None


def sum_of_losses(metrics: Mapping[str, float]) -> float:
    """Return the evaluation loss; of several evaluation sets, the sum of theirs. What else there is does not count.

    Raises:
        MissingMetricError: there is none.

    >>> sum_of_losses({"eval_loss": 0.5, "eval_entropy": 3.0}), sum_of_losses({"eval_a_loss": 0.5, "eval_b_loss": 1.0})
    (0.5, 1.5)
    """
    if "eval_loss" in metrics:
        return metrics["eval_loss"]
    losses = [value for name, value in metrics.items() if name.endswith("_loss")]
    if not losses:
        raise MissingMetricError(
            f"The default objective is the evaluation loss, but an evaluation produces {sorted(metrics) or 'nothing'}; "
            "pass a metric's name as compute_objective."
        )
    return sum(losses)


def measures_model(name: str) -> bool:
    """Return whether a metric measures the model, and not time, speed or memory.

    >>> [measures_model(name) for name in ("eval_accuracy", "eval_loss", "eval_runtime", "epoch")]
    [True, True, False, False]
    """
    return not _NOT_A_METRIC.search(name)


def sum_of_metrics(metrics: Mapping[str, float]) -> float:
    """Return the sum of all metrics except losses, speed and memory; without any, the sum of the losses.

    Raises:
        ObjectiveError: one of them is no number.

    >>> sum_of_metrics({"eval_loss": 9.0, "eval_accuracy": 0.5, "eval_f1": 0.25, "eval_runtime": 3.0, "epoch": 1.0})
    0.75
    """
    shown = {key: value for key, value in metrics.items() if measures_model(key)}
    scores = {key: value for key, value in shown.items() if not key.endswith("_loss")}
    for key, value in scores.items():
        if isinstance(value, str) or value is None or math.prod(getattr(value, "shape", ())) != 1:
            numbers = [other for other, each in scores.items() if isinstance(each, (int, float))]
            example = f" ({numbers[0].removeprefix('eval_')!r})" if numbers else ""
            raise ObjectiveError(
                f"The default objective is the sum of all metrics, but {key} is {described_value(value)}, which is no "
                f"number. Name the metric to optimise{example} as compute_objective, or leave {key} out of what "
                "compute_metrics returns."
            )
    return float(sum((scores or shown).values()))


def _missing(metric: str, metrics: Mapping[str, float], what: str) -> MissingMetricError:
    produced = sorted(key for key in metrics if measures_model(key))
    return MissingMetricError(
        f"{what} needs {metric!r}, but evaluation does not produce it. It produces {', '.join(produced)}."
        f"{nearest_name(metric, produced) or nearest_name(metric.removeprefix('eval_'), [*metrics, NUM_PARAMETERS])}"
    )


def _named_objective(metric: str, direction: str | None) -> Objective:
    key = metric_key(metric)
    natural = natural_direction(key)
    if direction is not None and natural is not None and direction != natural:
        raise ObjectiveError(
            f"direction={direction!r} contradicts the objective {key!r}, for which {natural!r} is better. If you "
            f"mean it, pass compute_objective=lambda metrics: metrics[{key!r}]."
        )
    resolved = direction or natural or MAXIMIZE
    origin = "" if direction or natural else " (direction not given: higher is taken as better)"
    return Objective(key, resolved, f"{resolved} {key}{origin}", key)


def _default_objective(direction: str | None, has_metrics: bool, eval_sets: int) -> Objective:
    if not has_metrics:
        if direction == MAXIMIZE:
            raise ObjectiveError(
                "direction='maximize' contradicts the default objective, the evaluation loss (there is no "
                "compute_metrics). Pass compute_metrics and the metric's name as compute_objective."
            )
        if eval_sets > 1:
            said = f"minimize the sum of the losses of the {eval_sets} evaluation sets (default: no compute_metrics)"
            return Objective(sum_of_losses, MINIMIZE, said, "sum of losses")
        said = "minimize the evaluation loss (default: no compute_metrics)"
        return Objective(sum_of_losses, MINIMIZE, said, "eval_loss")
    resolved = direction or MAXIMIZE
    where = "" if eval_sets == 1 else f", over {eval_sets} evaluation sets"
    return Objective(
        sum_of_metrics,
        resolved,
        f"{resolved} the sum of all metrics except losses, speed and memory{where} (default: no compute_objective)",
        "sum of metrics",
    )
