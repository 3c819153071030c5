"""The results of `returned_models` and `repeated_models`: a file with a line for each search and training run.

A race is a search that was watched over time; the other searches end with a budget in full training runs.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpsearch.search.trial_record import TrialState, configuration

# A trial in one of these states may be returned by a search that ends now, if it has a report.
_RETURNABLE = {TrialState.RUNNING, TrialState.PAUSED, TrialState.COMPLETE, TrialState.STOPPED}
_RESAMPLES = 2000


@dataclass(frozen=True)
class TrialEvents:
    """What happened to a trial of a race, and when, in seconds since the race began.

    Attributes:
        number: the trial's number in its search.
        params: all of its parameters.
        reports: seconds and the objective, for each evaluation that the search may return the trial for.
        states: seconds and the state that the trial was in from then on.
    """

    number: int
    params: dict[str, Any]
    reports: list[tuple[float, float]]
    states: list[tuple[float, str]]


@dataclass(frozen=True)
class Race:
    """A search of one side, which was watched until its time was over.

    Attributes:
        metric: the objective, ``"accuracy"`` or ``"loss"``.
        shares: fractions of the time of all workers, by what it was used for; empty if that is not known.
    """

    task: str
    side: str
    seed: int
    seconds: float
    metric: str
    trials: Sequence[TrialEvents]
    shares: Mapping[str, float]


@dataclass(frozen=True)
class Search:
    """What a search returned when its budget was exhausted.

    Attributes:
        budget: in full training runs.
        metric: the objective, ``"accuracy"`` or ``"loss"``.
        params: of the best run.
        reported: the objective of the best run: a mean over seeds, if it was repeated.
        runs: the number of training runs of the best trial.
        chance_of_best: as the search reports it; None if no trial was repeated.
        trials, replicas, full_runs: what the search trained; `full_runs` includes the replicas.
    """

    task: str
    side: str
    seed: int
    budget: float
    metric: str
    params: dict[str, Any]
    reported: float
    runs: int
    chance_of_best: float | None
    trials: int
    replicas: int
    full_runs: float


@dataclass(frozen=True)
class Retraining:
    """One full training run with parameters that a search returned.

    Attributes:
        seed: of the training run.
        dev, test: the metric of the task at the end, on the data of the search and on those that no search sees.
    """

    task: str
    params: dict[str, Any]
    seed: int
    dev: float
    test: float


def returned_at(race: Race, seconds: float) -> dict[str, Any] | None:
    """Return the parameters that the search of a race returns when its time is over then; None if it has none yet.

    Of the trials that are complete, running or paused, it is the one with the best last report; of equals, a paused one
    comes last, and the earlier one first.
    """
    sign = -1.0 if race.metric == "accuracy" else 1.0
    found: list[tuple[float, bool, int, dict[str, Any]]] = []
    for trial in race.trials:
        values = [value for moment, value in trial.reports if moment <= seconds and math.isfinite(value)]
        states = [state for moment, state in trial.states if moment <= seconds]
        if values and states and states[-1] in _RETURNABLE:
            found.append((sign * values[-1], states[-1] == TrialState.PAUSED, trial.number, trial.params))
    return min(found, key=lambda each: each[:3])[3] if found else None


class Results:
    """All races, searches and retrainings of a file, in memory; each addition is written immediately, as a line.

    Args:
        file: is read if it exists. A last line that was not written whole is left aside.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._races: dict[tuple[str, str, int], Race] = {}
        self._searches: dict[tuple[str, str, int, float], Search] = {}
        self._retrainings: dict[tuple[str, str, int], Retraining] = {}
        self._is_whole = True
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            *lines, last = text.split("\n")
            self._is_whole = not last
            for line in lines:
                self._take(read_line(line))

    @property
    def races(self) -> list[Race]:
        """The longest race of each side at each task with each seed."""
        return list(self._races.values())

    def race(self, task: str, side: str, seed: int, seconds: float) -> Race | None:
        """Return a race of at least this many seconds; None if there is none."""
        race = self._races.get((task, side, seed))
        return race if race is not None and race.seconds >= seconds else None

    def search(self, task: str, side: str, seed: int, budget: float) -> Search | None:
        """Return a search that ended with this budget; None if there is none."""
        return self._searches.get((task, side, seed, budget))

    def retraining(self, task: str, params: Mapping[str, Any], seed: int) -> Retraining | None:
        """Return the training run with these parameters and this seed; None if there is none."""
        return self._retrainings.get((task, configuration(params), seed))

    def add(self, result: Race | Search | Retraining) -> None:
        """Append a line to the file, in one write."""
        line = json.dumps({"kind": type(result).__name__, **asdict(result)}) + "\n"
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with open(self._file, "ab", buffering=0) as file:
            file.write((line if self._is_whole else "\n" + line).encode())
            os.fsync(file.fileno())
        self._is_whole = True
        self._take(result)

    def _take(self, result: Race | Search | Retraining | None) -> None:
        if isinstance(result, Race):
            known = self._races.get((result.task, result.side, result.seed))
            if known is None or known.seconds <= result.seconds:
                self._races[result.task, result.side, result.seed] = result
        elif isinstance(result, Search):
            self._searches[result.task, result.side, result.seed, result.budget] = result
        elif isinstance(result, Retraining):
            self._retrainings[result.task, configuration(result.params), result.seed] = result


def read_line(line: str) -> Race | Search | Retraining | None:
    """Return the result of a line; None of one that was not written whole."""
    try:
        values = json.loads(line)
    except ValueError:
        return None
    kind = values.pop("kind")
    if kind == Retraining.__name__:
        return Retraining(**values)
    if kind == Search.__name__:
        return Search(**values)
    trials = [
        TrialEvents(each["number"], each["params"], _pairs(each["reports"]), _pairs(each["states"]))
        for each in values.pop("trials")
    ]
    return Race(trials=trials, **values)


def _pairs(lists: Iterable[Sequence[Any]]) -> list[Any]:
    return [tuple(each) for each in lists]


def values_on_test_set(
    results: Results, races: Iterable[Race], seconds: float, seeds: Sequence[int]
) -> list[list[float]]:
    """Return, for each race, the test metrics of what it returns after this time, trained with each of the seeds.

    A search that returns nothing has the worst value there is. Races that lack one of the training runs are left out.
    """
    values: list[list[float]] = []
    for race in races:
        params = returned_at(race, seconds)
        if params is None:
            values.append([-math.inf if race.metric == "accuracy" else math.inf] * len(seeds))
            continue
        retrainings = [results.retraining(race.task, params, seed) for seed in seeds]
        known = [each.test for each in retrainings if each is not None]
        if len(known) == len(seeds):
            values.append(known)
    return values


def median_with_interval(values: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return the median of all values, and its 95 % interval by bootstrap over the searches that the values are of.

    Of a single search, the interval is over its new seeds, and says nothing about other searches.
    """
    draw = random.Random(0)
    drawn = values if len(values) > 1 else [[each] for each in values[0]]
    medians = sorted(_median(draw.choices(drawn, k=len(drawn))) for _ in range(_RESAMPLES))
    return _median(values), medians[_RESAMPLES * 25 // 1000], medians[_RESAMPLES * 975 // 1000 - 1]


def _median(values: Sequence[Sequence[float]]) -> float:
    return statistics.median_low([value for of_search in values for value in of_search])


def mean_shares(races: Sequence[Race]) -> dict[str, float]:
    """Return the mean of the shares of races, by what the time was used for."""
    known = [race.shares for race in races if race.shares]
    names = list(dict.fromkeys(name for each in known for name in each))
    return {name: statistics.fmean(each.get(name, 0.0) for each in known) for name in names}
