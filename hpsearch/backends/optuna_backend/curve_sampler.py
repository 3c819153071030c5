"""A sampler of Optuna that learns from all reports of all trials, also of those that wait at a rung or run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers._lazy_random_state import LazyRandomState
from optuna.trial import FrozenTrial

from ...search.curves import Curve, CurveModel, model_of, propose
from ...search.objective import Objective
from ...search.priors import Belief
from ...search.selection import cost_of, says_how_good
from ...search.trial import TrialRecord, TrialState
from .engine_trials import trials_as_read

Array = NDArray[np.float64]


class CurveSampler(optuna.samplers.BaseSampler):
    """Chooses the parameters from which most is expected at the end of the training; see `hpsearch.search.curves`.

    Parameters that only some trials have (branches) are taken to be at the middle of their range in the others.

    Args:
        seed: of the random draws.
        objective: what is optimised.
        first: so many trials are drawn at random before the model is asked.
        priors: where the best values of parameters are believed to be.

    Attributes:
        trials: all trials of the study, as far as they are known; set before each choice.
    """

    def __init__(self, seed: int, objective: Objective, first: int, priors: Mapping[str, Any] | None = None) -> None:
        self._objective, self._priors = objective, dict(priors or {})
        self._first = first
        self._rng = LazyRandomState(seed)
        self._random = optuna.samplers.RandomSampler(seed)
        self._latest: tuple[Any, CurveModel] | None = None
        self.trials: Sequence[TrialRecord] = ()

    def reseed_rng(self) -> None:
        """Draw another seed."""
        self._rng.rng.seed()
        self._random.reseed_rng()

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial | None
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that trials have had, always with the same range."""
        found: dict[str, BaseDistribution] = {}
        changed: set[str] = set()
        others = (each for each in trials_as_read(study) if trial is None or each.number != trial.number)
        for each in others:
            for name, distribution in each.distributions.items():
                if found.setdefault(name, distribution) != distribution:
                    changed.add(name)
        return {name: each for name, each in found.items() if name not in changed and not each.single()}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Choose values for these parameters together; none to choose at random."""
        if not search_space:
            return {}
        cube = _Cube(search_space)
        params = _params(study, self.trials)
        known = [each for each in self.trials if each.number in params and each.number != trial.number]
        under_way = [cube.point(params[each.number]) for each in known if each.state is TrialState.RUNNING]
        random = np.random.default_rng(self._rng.rng.randint(2**31))
        tried = [each for number, each in params.items() if number != trial.number]
        curves = self._curves(known, params, cube)
        believed = {name: value for name, value in self._priors.items() if name in search_space}
        belief = Belief(cube.point(believed, elsewhere=np.nan), cube.choices(believed)) if believed else None

        def valid(points: Array) -> Array:
            return cube.untried(cube.valid(points), tried)

        point = propose(curves, under_way, random, valid, self._model_of, belief, self._first)
        return {} if point is None else cube.params(point)

    def promise(
        self, study: optuna.Study, candidates: Sequence[TrialRecord], trials: Sequence[TrialRecord]
    ) -> Sequence[float]:
        """Return by how much each of the candidates is expected to improve on the best so far at its end."""
        space = self.infer_relative_search_space(study, None)
        params, cube = _params(study, trials), _Cube(space)
        curves = self._curves([each for each in trials if each.number in params], params, cube)
        points = np.array([cube.point(params[each.number]) for each in candidates])
        return [float(each) for each in self._model_of(curves).improvement(points)]

    def knows_enough(self, study: optuna.Study, trials: Sequence[TrialRecord]) -> bool:
        """Tell whether there is something to choose, and enough trials have reported to make a model of them."""
        return (
            bool(self.infer_relative_search_space(study, None))
            and sum(bool(_reports_of(each, self._objective)) for each in trials) >= self._first
        )

    def _model_of(self, curves: Sequence[Curve]) -> CurveModel:
        """Return the model of these curves; what the last one was made of is often asked for again."""
        made_of = tuple((curve.point.tobytes(), len(curve.reports)) for curve in curves)
        if self._latest is None or self._latest[0] != made_of:
            self._latest = made_of, model_of(curves)
        return self._latest[1]

    def _curves(
        self, trials: Sequence[TrialRecord], params: Mapping[int, Mapping[str, Any]], cube: _Cube
    ) -> list[Curve]:
        seen = ((each, _reports_of(each, self._objective)) for each in trials)
        return [Curve(cube.point(params[each.number]), reports) for each, reports in seen if reports]

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the prior, if there is one and no other trial has had the parameter; else draw a value at random."""
        if param_name in self._priors and not any(
            param_name in each.params for each in trials_as_read(study) if each.number != trial.number
        ):
            return param_distribution.to_external_repr(param_distribution.to_internal_repr(self._priors[param_name]))
        return self._random.sample_independent(study, trial, param_name, param_distribution)


class _Cube:
    """Parameters as points of the unit cube: a side for each number, and one for each choice."""

    def __init__(self, space: Mapping[str, BaseDistribution]) -> None:
        self._sides = {name: _side(each) for name, each in space.items()}
        ends = np.cumsum([side.width for side in self._sides.values()])
        self._places = {
            name: slice(end - side.width, end) for (name, side), end in zip(self._sides.items(), ends, strict=True)
        }
        self._width = int(ends[-1])

    def point(self, params: Mapping[str, Any], elsewhere: float = 0.5) -> Array:
        """Return the point of these parameters; in the middle, or elsewhere, along those that are missing."""
        point = np.full(self._width, elsewhere)
        for name, side in self._sides.items():
            if name in params:
                point[self._places[name]] = side.encode(params[name])
        return point

    def choices(self, names: Collection[str]) -> list[slice]:
        """Return the sides of each of these parameters that is a choice."""
        return [self._places[name] for name in names if isinstance(self._sides[name], _Choice)]

    def params(self, point: Array) -> dict[str, Any]:
        """Return the parameters of a point."""
        return {name: side.decode(point[self._places[name]]) for name, side in self._sides.items()}

    def valid(self, points: Array) -> Array:
        """Return the nearest points that stand for parameters."""
        sides = [side.valid(points[:, self._places[name]]) for name, side in self._sides.items()]
        return np.concatenate(sides, axis=1)

    def untried(self, points: Array, tried: Sequence[Mapping[str, Any]]) -> Array:
        """Return those of the points that no trial has had, whatever they have for what the trial had not; else all."""
        is_new = np.ones(len(points), dtype=bool)
        for params in tried:
            had = np.concatenate([np.full(side.width, name in params) for name, side in self._sides.items()])
            if not had.any():
                continue
            is_new &= ~np.isclose(points[:, had], self.point(params)[had], rtol=0, atol=1e-9).all(axis=1)
        return points[is_new] if is_new.any() else points


def _side(distribution: BaseDistribution) -> _Number | _Choice:
    if isinstance(distribution, CategoricalDistribution):
        return _Choice(distribution)
    assert isinstance(distribution, (FloatDistribution, IntDistribution)), distribution
    return _Number(distribution)


class _Number:
    """A number between 0 and 1: of its range, or of the logarithms of its range."""

    width = 1

    def __init__(self, distribution: FloatDistribution | IntDistribution) -> None:
        self._low, self._high, self._log = distribution.low, distribution.high, distribution.log
        self._step, self._kind = distribution.step, int if isinstance(distribution, IntDistribution) else float
        half = 0.0 if self._step is None else self._step / 2
        self._begin, self._end = self._scaled(np.array([self._low - half, self._high + half]))

    def encode(self, value: float) -> Array:
        return self._to_unit(np.array([value], dtype=float))

    def decode(self, side: Array) -> Any:
        return self._kind(self._values(side)[0])

    def valid(self, sides: Array) -> Array:
        return self._to_unit(self._values(sides))

    def _values(self, sides: Array) -> Array:
        scaled = self._begin + sides * (self._end - self._begin)
        values = np.exp(scaled) if self._log else scaled
        if self._step is not None:
            values = self._low + np.round((values - self._low) / self._step) * self._step
        return np.asarray(np.clip(values, self._low, self._high))

    def _to_unit(self, values: Array) -> Array:
        return np.asarray((self._scaled(values) - self._begin) / (self._end - self._begin))

    def _scaled(self, values: Array) -> Array:
        return np.asarray(np.log(values) if self._log else values, dtype=float)


class _Choice:
    """A side for each choice, 1 for the one that is taken, 0 for the others."""

    def __init__(self, distribution: CategoricalDistribution) -> None:
        self._distribution, self.width = distribution, len(distribution.choices)
        self._corners: Array = np.eye(self.width)

    def encode(self, value: Any) -> Array:
        chosen: Array = self._corners[int(self._distribution.to_internal_repr(value))]
        return chosen

    def decode(self, sides: Array) -> Any:
        return self._distribution.choices[int(sides.argmax())]

    def valid(self, sides: Array) -> Array:
        chosen: Array = self._corners[sides.argmax(axis=1)]
        return chosen


def _params(study: optuna.Study, trials: Sequence[TrialRecord]) -> dict[int, dict[str, Any]]:
    """Return the parameters of Optuna's trials, with those that have been chosen since these were read."""
    told = {each.number: each.params for each in trials}
    return {each.number: {**told.get(each.number, {}), **each.params} for each in trials_as_read(study)}


def _reports_of(trial: TrialRecord, objective: Objective) -> list[tuple[float, float]]:
    """Return share of the training and cost of each report."""
    return [
        (min(report.resource / report.horizon, 1.0), cost_of(report, report.value, objective))
        for count, report in enumerate(trial.reports, start=1)
        if report.horizon > 0 and report.resource > 0 and says_how_good(trial.reports[:count], objective)
    ]
