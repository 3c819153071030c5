"""Learning curves that need no training: those of LCBench, by a surrogate of it, and synthetic ones.

A task gives, for points of the unit cube, a score after each epoch, of which more is better, and how long the training
has taken until then. Here the score is the validation accuracy in percent, and a training has 52 epochs;
`recorded_curves` has others.

LCBench are training runs of 2000 multilayer perceptrons on each of 35 tables (Zimmer, Lindauer, Hutter: Auto-PyTorch
Tabular, 2021). The surrogate is a neural network that was fitted to them, of YAHPO Gym (Pfisterer, Schneider,
Moosbauer, Binder, Bischl, 2022); it has 34 tables and no noise. Its folder holds `model.onnx`, `config_space.json` and
`encoding.json`.
"""

from __future__ import annotations

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

EPOCHS = 52


class Known(NamedTuple):
    """The scores of a task that regret is measured by.

    Attributes:
        best: the best score known at any epoch.
        best_at_end: the best score known after the last epoch of a training.
        without: the score of a search that has none yet.
        is_relative: whether regret is in percent of the distance from `without` to the best, else in the score's unit.
    """

    best: float
    best_at_end: float
    without: float = 0.0
    is_relative: bool = False

    def regret(self, scores: Array, is_at_end: Array) -> Array:
        """Return the regret of the best scores of searches, which are -inf where a search has none."""
        best = np.where(is_at_end, self.best_at_end, self.best)
        lacks = best - np.where(np.isfinite(scores), scores, self.without)
        return np.asarray(100 * lacks / (best - self.without) if self.is_relative else lacks)


class Task(ABC):
    """One problem to search.

    Attributes:
        name: of the task.
        dimensions: how many parameters there are.
        epochs: of the longest training.
        n_configurations: the number of different training runs; None: any number.
        known: what regret is measured by; None: `best_known` has to search for it.
        core: the same task without the parameters that do nothing; None: there are none.
    """

    name: str
    dimensions: int
    epochs: int = EPOCHS
    n_configurations: int | None = None
    known: Known | None = None
    core: Task | None = None

    @abstractmethod
    def curves(self, points: Array) -> Array:
        """Return the score after each epoch, (n, epochs), for (n, dimensions) points of the unit cube.

        Of a training that has diverged the score is -inf.
        """

    @abstractmethod
    def times(self, points: Array) -> Array:
        """Return the time until the end of each epoch, (n, epochs), in whatever unit."""

    def run(self, point: Array, offset: int) -> Array:
        """Return the scores of one training run, (epochs,); `offset` is that of its seed, 0 but of replicas."""
        return np.asarray(self.curves(point[None])[0])

    def length(self, point: Array) -> int:
        """Return how many epochs a training with these parameters has, of which the scores after them are void."""
        return self.epochs

    def snap(self, point: Array, tried: Sequence[Array]) -> Array:
        """Return the point of the training that stands in for a proposal: the proposal, if any point can be trained.

        Args:
            point: that a strategy proposes.
            tried: the points that the search has tried; none of them is returned if there are no more.
        """
        return point

    def valid(self, points: Array, tried: Sequence[Array]) -> Array:
        """Return the points that a strategy may choose from in place of these, as a space of few values tells it."""
        return points


class Tasks(ABC):
    """Tasks of one kind.

    Attributes:
        names: of all tasks.
    """

    names: tuple[str, ...]

    @abstractmethod
    def task(self, name: str) -> Task:
        """Return the task of this name."""


class MissingCurves(Exception):
    """The curves that were asked for cannot be read; the message says why in one line."""


class LCBench(Tasks):
    """The tables of LCBench.

    Args:
        folder: of the surrogate.

    Raises:
        MissingCurves: there is no surrogate in the folder, or `onnxruntime` is not installed.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / "model.onnx").is_file():
            raise MissingCurves(
                f"There is no surrogate of LCBench in {folder}: name its folder with --data, or search synthetic "
                "curves with --curves synthetic."
            )
        try:
            import onnxruntime
        except ImportError:
            raise MissingCurves(
                "onnxruntime, which reads the surrogate of LCBench, is not installed: `pip install onnxruntime`."
            ) from None
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(folder / "model.onnx"), settings)
        described = json.loads((folder / "config_space.json").read_text())["hyperparameters"]
        self._described = {each["name"]: each for each in described}
        self._codes = json.loads((folder / "encoding.json").read_text())[_TABLE]
        self.names = tuple(self._described[_TABLE]["choices"])

    def task(self, name: str) -> Task:
        """Return a table by its number at OpenML."""
        return _Table(name, self._session, self._codes[name], [self._described[each] for each in _PARAMETERS])


_TABLE = "OpenML_task_id"
# In the order of the surrogate's numeric inputs, of which the epoch is the first.
_PARAMETERS = ("batch_size", "learning_rate", "momentum", "weight_decay", "num_layers", "max_units", "max_dropout")
_SECONDS, _ACCURACY = 0, 1
_TICKS = 1e-3 * np.arange(1, EPOCHS + 1)
_AT_ONCE = 200


class _Table(Task):
    dimensions = len(_PARAMETERS)

    def __init__(self, name: str, session: Any, code: int, parameters: list[dict[str, Any]]) -> None:
        self.name, self._session, self._code, self._parameters = name, session, code, parameters

    def curves(self, points: Array) -> Array:
        """Return the accuracies that the surrogate predicts."""
        return self._predict(points, _ACCURACY)

    def times(self, points: Array) -> Array:
        """Return the seconds that the surrogate predicts, as far as they rise; an epoch takes some time."""
        return np.asarray(np.maximum.accumulate(self._predict(points, _SECONDS), axis=1) + _TICKS)

    def _predict(self, points: Array, output: int) -> Array:
        parts = np.split(points, range(_AT_ONCE, len(points), _AT_ONCE))
        return np.concatenate([self._predict_part(part)[:, :, output] for part in parts])

    def _predict_part(self, points: Array) -> Array:
        columns = [_value(side, each) for side, each in zip(points.T, self._parameters, strict=True)]
        values = np.repeat(np.stack(columns, axis=1), EPOCHS, axis=0)
        epochs = np.tile(np.arange(1.0, EPOCHS + 1), len(points))
        inputs = {
            "x_cat": np.full((len(values), 1), self._code, np.int32),
            "x_cont": np.column_stack([epochs, values]).astype(np.float32),
        }
        predicted = self._session.run(None, inputs)[0]
        return np.asarray(predicted, dtype=float).reshape(len(points), EPOCHS, -1)


def _value(side: Array, parameter: dict[str, Any]) -> Array:
    """Return the values of a parameter at these places between 0 and 1; each whole number has as much room."""
    is_whole = parameter["type"] == "uniform_int"
    room = 0.5 if is_whole else 0.0
    low, high = parameter["lower"] - room, parameter["upper"] + room
    values = low * (high / low) ** side if parameter["log"] else low + side * (high - low)
    return np.clip(np.round(values), parameter["lower"], parameter["upper"]) if is_whole else np.asarray(values)


class SyntheticTasks(Tasks):
    """Curves by formula; see `_Synthetic`."""

    names = tuple(f"synthetic-{seed}" for seed in range(8))

    def task(self, name: str) -> Task:
        """Return the task that is drawn with the seed in its name."""
        return _Synthetic(name, int(name.rpartition("-")[2]))


_CHANCE, _CEILING = 10.0, 99.0
_HEIGHTS = np.array([0.92, 0.88, 0.8, 0.7])
_NOISE = 0.2


class _Synthetic(Task):
    """Curves that rise by a power law of the epoch.

    What they rise to is a smooth function of the parameters with four optima. How fast they rise depends on the first
    parameter most, like a learning rate, and those that rise fast end lower: curves cross. Where that parameter is
    largest, training diverges: accuracy falls to chance, the earlier the further out.
    """

    dimensions = 6

    def __init__(self, name: str, seed: int) -> None:
        self.name, self._seed = name, seed
        random = np.random.default_rng(seed)
        self._centres = random.uniform(0.1, 0.9, (len(_HEIGHTS), self.dimensions))
        self._centres[:, 0] = random.permutation([0.25, 0.4, 0.55, 0.7])
        self._widths = random.uniform(0.35, 0.8, (len(_HEIGHTS), self.dimensions))
        self._tilt = random.uniform(-0.15, 0.15, self.dimensions - 1)

    def curves(self, points: Array) -> Array:
        """Return the curves with noise, which is the same each time."""
        squares = (((points[:, None] - self._centres) / self._widths) ** 2).sum(axis=2)
        missed = np.prod(1 - _HEIGHTS * np.exp(-squares / 2), axis=1)
        speed = points[:, 0] + (points[:, 1:] - 0.5) @ self._tilt
        limit = _CHANCE + (_CEILING - _CHANCE) * (1 - 0.6 * missed) - 6 * np.clip(speed, 0, 1) ** 2
        epochs = np.arange(1, EPOCHS + 1)
        slowness = 20 * np.exp(-4 * speed)
        risen = 1 - (1 + epochs / slowness[:, None]) ** -1.5
        diverges_after = np.where(speed > 0.85, 40 * np.exp(-12 * (speed - 0.85)), EPOCHS)
        accuracies = _CHANCE + (limit - _CHANCE)[:, None] * risen * (epochs <= diverges_after[:, None])
        noise = np.stack([self._random(point).standard_normal(EPOCHS) for point in points])
        return np.asarray(np.clip(accuracies + _NOISE * noise, 0, 100))

    def times(self, points: Array) -> Array:
        """Return times that are up to ten times as long where the last parameter is largest, like a model's width."""
        return np.asarray(10 ** points[:, -1:] * np.arange(1, EPOCHS + 1))

    def _random(self, point: Array) -> np.random.Generator:
        return np.random.default_rng([self._seed, zlib.crc32(point.tobytes())])


class SeveralLengths(Tasks):
    """Tasks of another kind, with one parameter more: how many epochs a training has, from 5 to 52, logarithmically.

    As a learning-rate schedule that ends sooner lets a training come to rest sooner, an epoch of a training of a
    quarter of the length is worth two of the whole one: those of a training of n epochs are sqrt(52 / n) apart.

    Args:
        tasks: of which the training runs are the longest ones.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks, self.names = tasks, tasks.names

    def task(self, name: str) -> Task:
        """Return the task of this name, with lengths."""
        return _WithLengths(self._tasks.task(name))


_SHORTEST = 5


class _WithLengths(Task):
    def __init__(self, whole: Task) -> None:
        self._whole, self.name, self.dimensions = whole, f"{whole.name}, lengths", whole.dimensions + 1
        self.epochs = whole.epochs

    def curves(self, points: Array) -> Array:
        """Return the accuracies; those after the end are the last one."""
        whole = self._whole.curves(points[:, :-1])
        return np.stack([self._at(self.length(point), curve) for point, curve in zip(points, whole, strict=True)])

    def times(self, points: Array) -> Array:
        """Return the times of the epochs, of which each takes as long as in the longest training."""
        return self._whole.times(points[:, :-1])

    def length(self, point: Array) -> int:
        """Return what the last parameter means."""
        return round(_SHORTEST * (self.epochs / _SHORTEST) ** float(point[-1]))

    def _at(self, length: int, curve: Array) -> Array:
        every = np.arange(1, self.epochs + 1)
        return np.interp(np.minimum(every, length) * np.sqrt(self.epochs / length), every, curve)


class ManyParameters(Tasks):
    """Tasks of another kind, padded with irrelevant parameters to twenty.

    Args:
        tasks: of which the parameters are those that matter.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks, self.names = tasks, tasks.names

    def task(self, name: str) -> Task:
        """Return the task of this name, with more parameters."""
        return _WithIrrelevant(self._tasks.task(name))


class _WithIrrelevant(Task):
    dimensions = 20

    def __init__(self, core: Task) -> None:
        self.core, self.name, self.epochs = core, core.name, core.epochs

    def curves(self, points: Array) -> Array:
        """Return the curves of the parameters that matter."""
        return self.core.curves(points[:, : self.core.dimensions])

    def times(self, points: Array) -> Array:
        """Return the times of the parameters that matter."""
        return self.core.times(points[:, : self.core.dimensions])


_AT_RANDOM, _PARENTS, _CHILDREN = 3000, 40, 300
_STEPS = (0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.05, 0.03, 0.03, 0.02, 0.02, 0.01)


def best_known(task: Task) -> float:
    """Return the best score at any epoch that a long search finds: at random, then around the best, ever closer."""
    task = task.core or task
    random = np.random.default_rng(1)
    points = random.random((_AT_RANDOM, task.dimensions))
    scores = task.curves(points).max(axis=1)
    for step in _STEPS:
        parents = points[np.argsort(-scores)[:_PARENTS]]
        chosen = parents[random.integers(_PARENTS, size=_CHILDREN)]
        changes = random.normal(0, step, chosen.shape) * (random.random(chosen.shape) < 0.6)
        children = np.clip(chosen + changes, 0, 1)
        points = np.concatenate([points, children])
        scores = np.concatenate([scores, task.curves(children).max(axis=1)])
    return float(scores.max())
