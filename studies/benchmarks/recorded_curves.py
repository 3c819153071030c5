"""Learning curves that were recorded: tables of configurations, each with its curve of the validation loss.

A search may only train what the table holds. So a proposal of a strategy becomes a configuration of the table that the
search has not tried, and the search learns from that configuration's point. The score is the loss with its sign
changed, and -inf where a training has diverged.

Regret is in percent of the distance from the median configuration to the best one, both after the last epoch; for the
best score seen at any epoch, the best one is that of any epoch too.

TaskSet are training runs of recurrent networks on text, 1000 settings of an optimizer each (Metz, Maheswaranathan, Sun,
Freeman, Poole, Sohl-Dickstein: Using a thousand optimization tasks to learn hyperparameter search strategies, 2020).
The others are machine translation: transformers trained from scratch, and LoRA fine-tunings of language models (Zhang,
Duh: Best Practices of Successive Halving on Neural Machine Translation and Large Language Models, AMTA 2024).
"""

from __future__ import annotations

import functools
import json
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .learning_curves import Array, Known, MissingCurves, Task, Tasks


class Table(Task):
    """A task with a training for each configuration of a table, and for no other.

    Args:
        name: of the task.
        points: (n, dimensions), the configurations in the unit cube; no two are the same.
        scores: (n, epochs), their curves.
    """

    def __init__(self, name: str, points: Array, scores: Array) -> None:
        self.name, self._points, self._scores = name, points, scores
        self.n_configurations, self.dimensions = points.shape
        self.epochs = scores.shape[1]
        self._rows = {point.tobytes(): row for row, point in enumerate(points)}
        last = scores[:, -1]
        median = float(np.median(last[np.isfinite(last)]))
        self.known = Known(float(scores.max()), float(last.max()), without=median, is_relative=True)

    def curves(self, points: Array) -> Array:
        """Return the curves of the configurations at these points; at any other point, of that which it snaps to."""
        snapped = (point if point.tobytes() in self._rows else self.snap(point, ()) for point in points)
        return self._scores[self._rows_of(list(snapped))]

    def times(self, points: Array) -> Array:
        """Return the numbers of the epochs: all take the same time."""
        return np.tile(np.arange(1.0, self.epochs + 1), (len(points), 1))

    def snap(self, point: Array, tried: Sequence[Array]) -> Array:
        """Return the configuration, of those that were not tried, that is closest."""
        closeness = self._closeness(point[None])[0]
        closeness[self._rows_of(tried)] = -np.inf
        return np.asarray(self._points[np.argmax(closeness)])

    @abstractmethod
    def _closeness(self, points: Array) -> Array:
        """Return how close the configurations are to points, (n, configurations)."""

    def _distances(self, points: Array) -> Array:
        return np.asarray(np.linalg.norm(points[:, None] - self._points, axis=2))

    def _rows_of(self, points: Sequence[Array]) -> list[int]:
        return [self._rows[point.tobytes()] for point in points]


class Grid(Table):
    """A table of parameters that have a few values each, where the closest configuration is the nearest one.

    As the space tells which values there are, strategies may choose from them.
    """

    def valid(self, points: Array, tried: Sequence[Array]) -> Array:
        """Return the nearest configurations, those that were not tried; all of these if there are no others."""
        left = np.delete(np.arange(len(self._points)), self._rows_of(tried))
        near = np.intersect1d(self._closeness(points).argmax(axis=1), left)
        return self._points[near if len(near) else left]

    def _closeness(self, points: Array) -> Array:
        return -self._distances(points)


class Scattered(Table):
    """A table of configurations drawn at random, where few are near a point, and which are alike depends on the task.

    A forest of extremely randomised trees learns how the configurations rank at their end. The closest configuration is
    the one that most trees put in the same leaf as the point; of several the nearest. By the distance alone, the curve
    found would have little to do with the point.
    """

    _TREES = 100

    def __init__(self, name: str, points: Array, scores: Array) -> None:
        super().__init__(name, points, scores)
        try:
            from sklearn.ensemble import ExtraTreesRegressor
        except ImportError:
            raise MissingCurves(
                "scikit-learn, which finds the configuration for a proposal, is not installed: "
                "`pip install scikit-learn`."
            ) from None
        self._forest = ExtraTreesRegressor(self._TREES, random_state=0)
        self._forest.fit(points, np.argsort(np.argsort(scores[:, -1], kind="stable")))
        self._leaves = self._forest.apply(points)

    def _closeness(self, points: Array) -> Array:
        votes = (self._forest.apply(points)[:, None] == self._leaves).mean(axis=2)
        return np.asarray(votes - 1e-6 * self._distances(points))


class TaskSet(Tasks):
    """The tasks of TaskSet.

    Args:
        folder: has a folder `taskset` with a table for each task, and `tasks.json`.

    Raises:
        MissingCurves: there is none.
    """

    def __init__(self, folder: Path) -> None:
        self._files = _files(folder / "taskset", ".npz", "TaskSet")
        self.names = tuple(self._files)
        self._parameters: list[str] = json.loads((folder / "taskset" / "tasks.json").read_text())["hp"]
        self._made = functools.cache(self._read)

    def task(self, name: str) -> Task:
        """Return the task of this name, which is read once."""
        return self._made(name)

    def _read(self, name: str) -> Task:
        with np.load(self._files[name]) as table:
            losses = table["valid"][:, 1:].astype(float)  # the first one is before the training
            logs = np.stack([_LOGS[each](side) for each, side in zip(self._parameters, table["hp"].T, strict=True)])
        low, high = logs.min(axis=1), logs.max(axis=1)
        points = np.ascontiguousarray((logs.T - low) / (high - low))
        return Scattered(name, points, -np.where(np.isfinite(losses), losses, np.inf))


def _log_of_rest(values: Array) -> Array:
    return np.asarray(np.log(1 - values))


# How each parameter is spread evenly.
_LOGS: Mapping[str, Callable[[Array], Array]] = defaultdict(
    lambda: np.log, {"beta1": _log_of_rest, "beta2": _log_of_rest}
)

_COLUMNS = ("base", "model_size", "ff_num_hidden", "num_layers", "batch_size", "bpe", "initial_lr", "r")


class Translation(Tasks):
    """Machine translation: a task is a file, or, of fine-tunings, one base model of the file.

    The score is the perplexity with its sign changed. A training that has fewer checkpoints than the longest one of its
    task keeps its last score. Where a configuration was trained several times, one of its curves is chosen at random,
    the same one in all searches: an average would have less noise than a training has.

    Args:
        folder: has a folder `nmt` with the files.

    Raises:
        MissingCurves: there is none.
    """

    def __init__(self, folder: Path) -> None:
        self._rows: dict[str, list[dict[str, Any]]] = {}
        for name, file in _files(folder / "nmt", ".json", "machine translation").items():
            self._rows[name] = json.loads(file.read_text())
            for row in self._rows[name] if name.startswith("finetune") else ():
                base = f"{row['base']}-{row['num_layers']}x{row['model_size']}"
                self._rows.setdefault(f"{name}/{base}", []).append(row)
        self.names = tuple(sorted(self._rows))
        self._made = functools.cache(self._grid)

    def task(self, name: str) -> Task:
        """Return the task of this name, which is made once."""
        return self._made(name)

    def _grid(self, name: str) -> Task:
        rows = self._rows[name]
        points = np.stack(_sides(rows), axis=1)
        repeats: dict[bytes, list[int]] = defaultdict(list)
        for place, point in enumerate(points):
            repeats[point.tobytes()].append(place)
        curves = [[np.array(rows[place]["ppl"], float) for place in places] for places in repeats.values()]
        return self._task(name, points[[places[0] for places in repeats.values()]], curves)

    def _task(self, name: str, points: Array, curves: Sequence[Sequence[Array]]) -> Task:
        """Return a task of configurations, of each of which there are several curves."""
        random = np.random.default_rng(0)
        return Grid(name, points, -_held([each[random.choice(len(each))] for each in curves]))


class TranslationWithSeeds(Translation):
    """The same, of the Transformers trained from scratch, where configurations were trained with several seeds.

    The score is the loss with its sign changed: the logarithm of the perplexity, as that of a run that has diverged
    would be all of a mean.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.names = tuple(name for name in self.names if name.startswith("scratch"))

    def _task(self, name: str, points: Array, curves: Sequence[Sequence[Array]]) -> Task:
        different = [list({each.tobytes(): each for each in several}.values()) for several in curves]
        kept = [place for place, several in enumerate(different) if len(several) > 1]
        held = -np.log(_held([each for place in kept for each in different[place]]))
        ends = np.cumsum([len(different[place]) for place in kept])
        return GridWithSeeds(name, points[kept], np.split(held, ends[:-1]))


class GridWithSeeds(Grid):
    """A grid whose configurations were trained with several seeds; the mean curves are the table.

    Args:
        name: of the task.
        points: (n, dimensions).
        runs: of each configuration, (seeds, epochs), at least two.
    """

    def __init__(self, name: str, points: Array, runs: Sequence[Array]) -> None:
        super().__init__(name, points, np.stack([each.mean(axis=0) for each in runs]))
        self._runs = runs

    def deviation(self, point: Array, random: np.random.Generator) -> Array:
        """Return by how much a run with a further seed differs from the mean: as one of those that there are.

        It is widened, since the mean is that of few runs.
        """
        runs = self._runs[self._rows_of([point])[0]]
        return np.asarray((random.choice(runs) - runs.mean(axis=0)) * np.sqrt(len(runs) / (len(runs) - 1)))


def _held(curves: Sequence[Array]) -> Array:
    """Return curves of the same length: the last value of a shorter one is held."""
    most = max(map(len, curves))
    return np.stack([np.pad(curve, (0, most - len(curve)), mode="edge") for curve in curves])


def _sides(rows: Sequence[dict[str, Any]]) -> list[Array]:
    """Return the parameters between 0 and 1, each value in order with as much room; without those that say the same."""
    kept: dict[bytes, Array] = {}
    for column in _COLUMNS:
        values, places = np.unique([row[column] for row in rows], return_inverse=True)
        if len(values) > 1:
            kept.setdefault(places.tobytes(), (places + 0.5) / len(values))
    return list(kept.values())


def _files(folder: Path, suffix: str, title: str) -> dict[str, Path]:
    """Return the files of a folder by the names of their tasks."""
    files = {file.stem: file for file in sorted(folder.glob(f"*{suffix}"))}
    if not files:
        raise MissingCurves(f"There are no curves of {title} in {folder}: name the folder that has it with --data.")
    return files
