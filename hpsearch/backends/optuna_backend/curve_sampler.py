"""A sampler of Optuna that learns from all reports of all trials, also of those that wait at a rung or run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers._lazy_random_state import LazyRandomState
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as EngineState

from ...search.curves import Curve, LatestModel, candidates, is_plateau, propose
from ...search.objective import Objective
from ...search.priors import Belief
from ...search.selection import shares_and_costs
from ...search.trial import TrialRecord, TrialState
from ...search.work import WorkModel, in_one_unit, work_model, work_of
from .branches import Branches, branches_shown
from .cube import Cube, Tried
from .engine_trials import trials_as_read
from .learning import is_taught, taught_curve

Array = NDArray[np.float64]
# Such trials may still be promoted, so their expected improvement will be needed.
_OPEN = (TrialState.RUNNING, TrialState.PAUSED, TrialState.INTERRUPTED)


class CurveSampler(optuna.samplers.BaseSampler):
    """Chooses the parameters from which most is expected at the end of the training; see `hpsearch.search.curves`.

    Parameters that only some trials have (branches) are taken to be at the middle of their range in the others, those
    that are compared before one is chosen among them.

    Args:
        seed: of the random draws.
        objective: what is optimised.
        first: so many trials are drawn at random before the model is asked.
        priors: where the best values of parameters are believed to be.
        branches: under which choices parameters exist; None: the trials show it.
        by_seconds: the cost of trials is their measured seconds, not a count of operations.

    Attributes:
        trials: all trials of the study, as far as they are known; set before each choice.
    """

    def __init__(
        self,
        seed: int,
        objective: Objective,
        first: int,
        priors: Mapping[str, Any] | None = None,
        branches: Branches | None = None,
        by_seconds: bool = False,
    ) -> None:
        self._by_seconds = by_seconds
        self._objective, self._priors, self._branches = objective, dict(priors or {}), branches
        self._first = first
        self._rng = LazyRandomState(seed)
        self._random = optuna.samplers.RandomSampler(seed)
        self._models = LatestModel()
        self.trials: Sequence[TrialRecord] = ()

    def reseed_rng(self) -> None:
        """Draw another seed."""
        self._rng.rng.seed()
        self._random.reseed_rng()

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial | None
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that trials of this study have had, always with the same range."""
        found: dict[str, BaseDistribution] = {}
        changed: set[str] = set()
        others = (each for each in trials_as_read(study) if trial is None or each.number != trial.number)
        for each in others:
            if is_taught(each):
                continue  # perhaps of other ranges
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
        params = {each.number: each.params for each in trials_as_read(study)}
        cube = self._cube(search_space, self.trials, params)
        known = [each for each in self.trials if each.number in params and each.number != trial.number]
        under_way = [cube.point(params[each.number]) for each in known if each.state is TrialState.RUNNING]
        random = np.random.default_rng(self._rng.rng.randint(2**31))
        own = (each for each in trials_as_read(study) if each.number != trial.number and not is_taught(each))
        tried = Tried(cube, [each.params for each in own])
        curves = self._curves(study, known, cube)
        believed = {name: value for name, value in self._priors.items() if name in search_space}
        belief = Belief(cube.point(believed, elsewhere=np.nan), cube.choices(believed)) if believed else None

        def valid(points: Array) -> Array:
            return tried.without(cube.valid(points))

        work = _work(known, params, cube, self._by_seconds)
        point = propose(curves, under_way, random, valid, self._models.of, belief, self._first, work)
        return {} if point is None else cube.params(point)

    def promise(
        self, study: optuna.Study, candidates: Sequence[TrialRecord], trials: Sequence[TrialRecord]
    ) -> Sequence[float]:
        """Return by how much each candidate is expected to improve on the best so far at its end, for its work."""
        space = self.infer_relative_search_space(study, None)
        params = {each.number: each.params for each in trials_as_read(study)}
        cube = self._cube(space, trials, params)
        curves = self._curves(study, trials, cube)
        points = np.array([cube.point(params[each.number]) for each in candidates])
        work = _work([each for each in trials if each.number in params], params, cube, self._by_seconds)
        return [float(each) for each in self._models.of(curves).improvement_for_work(points, work)]

    def most_expected(self, study: optuna.Study, trials: Sequence[TrialRecord]) -> float | None:
        """Return the largest improvement on the best so far that is expected anywhere, in deviations of the ranks.

        None on a plateau: half of the trials are at their best as good as the best of all, which teaches nothing.
        """
        space = self.infer_relative_search_space(study, None)
        params = {each.number: each.params for each in trials_as_read(study)}
        cube = self._cube(space, trials, params)
        curves = self._curves(study, trials, cube)
        if is_plateau(curves):
            return None
        points = cube.valid(candidates(curves, np.random.default_rng(len(curves))))
        return float(self._models.of(curves).improvement(points).max())

    def knows_enough(self, study: optuna.Study, trials: Sequence[TrialRecord]) -> bool:
        """Tell whether there is something to choose, and enough trials have reported to make a model of them."""
        space = self.infer_relative_search_space(study, None)
        return bool(space) and len(self._curves(study, trials, Cube(space))) >= self._first

    def _cube(
        self,
        space: Mapping[str, BaseDistribution],
        trials: Sequence[TrialRecord],
        params: Mapping[int, Mapping[str, Any]],
    ) -> Cube:
        """Return the cube of a space; trials that have reported have all of their parameters."""
        if self._branches is not None:
            return Cube(space, self._branches)
        choices = [name for name, each in space.items() if isinstance(each, CategoricalDistribution)]
        complete = [params[each.number] for each in trials if each.reports and each.number in params]
        return Cube(space, branches_shown(complete, choices))

    def _curves(self, study: optuna.Study, trials: Sequence[TrialRecord], cube: Cube) -> list[Curve]:
        """Return what trials have shown, of this study and of the one that it started from."""
        stored = trials_as_read(study)
        params = {each.number: each.params for each in stored}
        own = [set(each.params) for each in stored if not is_taught(each) and each.params and not _has_failed(each)]
        needed = set.intersection(*own) if own else set()  # by a function; of a space they have all
        taught = [
            (each.params, taught_curve(each, self._objective), False)
            for each in stored
            if is_taught(each) and needed <= set(each.params) and cube.holds(each.params)
        ]
        known = [each for each in trials if each.number in params]
        seen = [
            (params[each.number], _shown(each, self._objective), each.state in _OPEN)
            for each in known
            if each.reports or (params[each.number] and needed <= set(params[each.number]))  # it has failed with them
        ]
        return [Curve(cube.point(had), reports, is_open) for had, reports, is_open in [*taught, *seen] if reports]

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the prior, if no other trial of this study has had the parameter; else draw a value at random."""
        others = [each for each in trials_as_read(study) if each.number != trial.number and not is_taught(each)]
        if param_name in self._priors and not any(param_name in each.params for each in others):
            return param_distribution.to_external_repr(param_distribution.to_internal_repr(self._priors[param_name]))
        return self._random.sample_independent(study, trial, param_name, param_distribution)


def _has_failed(trial: FrozenTrial) -> bool:
    return trial.state is EngineState.FAIL


def _shown(trial: TrialRecord, objective: Objective) -> Sequence[tuple[float, float]]:
    """Return share of the training and cost of each report; one that failed is as bad as can be at its end.

    Else nothing would keep the next trials from the same place, such as that of models that are too large, however good
    the reports are that come before the failure.
    """
    shown = shares_and_costs(trial.reports, objective)
    if trial.state is TrialState.FAILED:
        return [*(each for each in shown if each[0] < 1.0), (1.0, math.inf)]
    return shown


def _work(
    trials: Sequence[TrialRecord], params: Mapping[int, Mapping[str, Any]], cube: Cube, by_seconds: bool
) -> WorkModel | None:
    """Return a model of how much work trials are, learnt from these."""
    known = [(params[each.number], work) for each in trials if (work := work_of(each)) is not None]
    works = in_one_unit([work for _, work in known], by_seconds)
    points = [cube.point(had) for (had, _), work in zip(known, works, strict=True) if work > 0]
    return work_model(np.array(points), np.array([each for each in works if each > 0]))
