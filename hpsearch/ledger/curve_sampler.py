"""A sampler of Optuna that learns from all reports of all trials, also of those that are paused at a rung or run."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers._lazy_random_state import LazyRandomState
from optuna.trial import FrozenTrial
from threadpoolctl import ThreadpoolController

from ..search.learning_curves.curves import LatestModel, since
from ..search.learning_curves.proposal import are_enough, candidates, is_plateau, propose
from ..search.metrics.objective import Objective
from ..search.metrics.replicas import without_replicas
from ..search.space.priors import Belief
from ..search.trial_record import TrialRecord
from .branches import Branches
from .curve_data import CurveData, CurvesSeen

Array = NDArray[np.float64]


class CurveSampler(optuna.samplers.BaseSampler):
    """Proposes the parameters with the highest expected improvement at completion.

    They are chosen as `hpsearch.search.learning_curves.proposal` says.
    Parameters that only some trials have (branches) are taken to be at the middle of their range in the others, those
    that are compared before one is chosen among them.

    Args:
        seed: of the random draws.
        objective: what is optimised.
        first: the number of trials that are drawn at random before the model is asked.
        priors: where the best values of parameters are believed to be.
        branches: under which choices parameters exist; None: the trials show it.
        by_seconds: the cost of trials is their measured seconds, not a count of operations.

    Attributes:
        trials: all trials of the study, as far as they are known; set before each choice.
        reliable_from: returns the fraction of the training run before which the reports of trials mislead, so that the
            model ignores them; None: they never do.
    """

    def __init__(
        self,
        seed: int,
        objective: Objective,
        first: int,
        priors: Mapping[str, object] | None = None,
        branches: Branches | None = None,
        by_seconds: bool = False,
    ) -> None:
        self._data, self._priors = CurveData(objective, branches, by_seconds), dict(priors or {})
        self._first = first
        self._rng = LazyRandomState(seed)
        self._random = optuna.samplers.RandomSampler(seed)
        self._models = LatestModel()
        self.trials: Sequence[TrialRecord] = ()
        self.reliable_from: Callable[[Sequence[TrialRecord]], float] | None = None
        self._lock = threading.RLock()  # a program may optimize with a study of Optuna in several threads

    def __getstate__(self) -> dict[str, object]:
        left_out = ("_lock", "reliable_from")  # the rungs hold functions of the user
        return {name: each for name, each in vars(self).items() if name not in left_out}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        vars(self).update(state)
        self.reliable_from = None
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def _decides(self) -> Iterator[None]:
        with self._lock, _libraries().limit(limits=1):
            yield

    def reseed_rng(self) -> None:
        """Draw another seed."""
        self._rng.rng.seed()
        self._random.reseed_rng()

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial | None
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that trials of this study have had, always with the same range."""
        with self._lock:
            self._data.read(study, None if trial is None else trial.number)
            return dict(self._data.space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, object]:
        """Choose values for these parameters together; none to choose at random."""
        if not search_space:
            return {}
        with self._decides():
            self._data.read(study, trial.number)
            seen = self._data.seen(self.trials, search_space, trial.number)
            cube, tried = seen.cube, self._data.tried(seen.cube)
            random = np.random.default_rng(self._rng.rng.randint(2**31))
            believed = {name: value for name, value in self._priors.items() if name in search_space}
            belief = Belief(cube.point(believed, elsewhere=np.nan), cube.choices(believed)) if believed else None

            def valid(points: Array) -> Array:
                return tried.without(cube.valid(points))

            work, reliable_from = self._data.work(cube), self._reliable_from(self.trials)
            point = propose(
                seen.curves, seen.running, random, valid, self._models.of, belief, self._first, work, reliable_from
            )
            return {} if point is None else cube.params(point)

    def promise(
        self, study: optuna.Study, candidates: Sequence[TrialRecord], trials: Sequence[TrialRecord]
    ) -> Sequence[float]:
        """Return by how much each candidate is expected to improve on the best so far at its end, for its work."""
        with self._decides():
            seen = self._seen(study, trials)
            points, work = self._data.points(candidates, seen.cube), self._data.work(seen.cube)
            model = self._models.of(since(seen.curves, self._reliable_from(trials)))
            return [float(each) for each in model.improvement_for_work(points, work)]

    def most_expected(self, study: optuna.Study, trials: Sequence[TrialRecord]) -> float | None:
        """Return the largest improvement on the best so far that is expected anywhere, in deviations of the ranks.

        None on a plateau: half of the trials are at their best as good as the best of all, which teaches nothing.
        """
        with self._decides():
            seen = self._seen(study, trials)
            curves = since(seen.curves, self._reliable_from(trials))
            if is_plateau(curves):
                return None
            points = seen.cube.valid(candidates(curves, np.random.default_rng(len(seen.curves))))
            return float(self._models.of(curves).improvement(points).max())

    def knows_enough(self, study: optuna.Study, trials: Sequence[TrialRecord]) -> bool:
        """Return whether there is something to choose, and enough trials have reported to make a model of them."""
        with self._lock:
            self._data.read(study)
            space = self._data.space
            if not space:
                return False
            return are_enough(self._data.seen(trials, space).curves, self._first, self._reliable_from(trials))

    def _reliable_from(self, trials: Sequence[TrialRecord]) -> float:
        return 0.0 if self.reliable_from is None else self.reliable_from(without_replicas(trials))

    def _seen(self, study: optuna.Study, trials: Sequence[TrialRecord]) -> CurvesSeen:
        self._data.read(study)
        return self._data.seen(trials, self._data.space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> object:
        """Return the prior, if no other trial of this study has had the parameter; else draw a value at random."""
        with self._lock:
            is_first = param_name in self._priors and not self._data.has_had(param_name, study, trial.number)
        if is_first:
            return param_distribution.to_external_repr(param_distribution.to_internal_repr(self._priors[param_name]))
        return self._random.sample_independent(study, trial, param_name, param_distribution)


@functools.cache
def _libraries() -> ThreadpoolController:
    """Return the libraries of linear algebra in this process.

    In several threads, these small matrices are no faster, the threads wait by computing and take the cores from the
    trials, and what is chosen depends on the number of cores.
    """
    return ThreadpoolController().select(user_api="blas")
