"""The ranges that functions suggest: trials of one study must have the same, or they cannot be compared."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial

from ..errors import HpsearchError
from ..search.space.parameters import Categorical, Float, Int, Parameter
from ..search.space.search_space import SearchSpace
from ..search.study import Study
from ..search.trial import Trial
from .warm_starts import ORIGIN, distribution

logger = logging.getLogger(__name__)

# The largest number of earlier trials to compare with, each with another set of parameters.
_MOST = 8


def check_ranges(engine: optuna.Study, study: Study) -> None:
    """Call a function as space with the parameters of earlier trials, and compare the ranges that it suggests.

    With the same parameters, ranges that depend on other parameters are the same too. If the function raises,
    nothing is compared: the next trial will show the error.

    Raises:
        StudyError: a range has changed.
    """
    if isinstance(study.space, SearchSpace):
        return
    agreed: set[str] = set()  # older trials may have other ranges: 0.8.0 allowed that
    for trial in _one_of_each(engine):
        asked, otherwise = (_asked(study, trial, edge) for edge in (0, -1))
        for name, parameter in asked.items():
            before = trial.distributions.get(name)
            depends_on_a_new_one = otherwise.get(name) != parameter
            if before is None or depends_on_a_new_one or name in agreed:
                continue
            if before != distribution(parameter):
                raise study.made_with_other_range(name, _parameter(before), parameter)
            agreed.add(name)


class RangesOfTrials:
    """Compares what trials suggest themselves, in `model_init` or `make_trainer`, with trials of earlier sessions.

    Args:
        study: the settings.
        earlier: the trials of earlier sessions.
    """

    def __init__(self, study: Study, earlier: Sequence[FrozenTrial]) -> None:
        self._study = study
        self._earlier = [each for each in earlier if ORIGIN not in each.user_attrs]
        self._warned: set[str] = set()

    def check(self, name: str, parameter: Parameter, before: Mapping[str, object]) -> None:
        """Refuse a range that has changed, or warn of one that may depend on parameters suggested before it.

        Where earlier trials have several ranges of a name, the range depends on something, and nothing is compared.

        Args:
            name, parameter: what the trial suggests.
            before: the parameters that it has suggested before.

        Raises:
            StudyError: the same parameters led to another range, or the choices of a Categorical are others.
        """
        having = [each for each in self._earlier if name in each.distributions]
        known = having[-1].distributions[name] if having else distribution(parameter)
        if known == distribution(parameter) or any(each.distributions[name] != known for each in having):
            return
        error = self._study.made_with_other_range(name, _parameter(known), parameter)
        if isinstance(parameter, Categorical) or any(before.items() <= each.params.items() for each in having):
            raise error
        if name not in self._warned:
            self._warned.add(name)
            logger.warning("%s If the range depends on other parameters, ignore this.", error)


def _asked(study: Study, trial: FrozenTrial, edge: int) -> dict[str, Parameter]:
    """Return what the function asks for if a trial has these parameters, and of new ones the first or last value."""
    probe = _Probe(trial, edge)
    with contextlib.suppress(HpsearchError):
        study.suggest(probe)
    return probe.asked


def _one_of_each(engine: optuna.Study) -> Iterator[FrozenTrial]:
    """Yield the latest trial of each set of parameters, the latest of all first."""
    seen: set[frozenset[str]] = set()
    for trial in reversed(engine.get_trials(deepcopy=False)):
        names = frozenset(trial.distributions)
        if names and names not in seen and ORIGIN not in trial.user_attrs:
            seen.add(names)
            yield trial
        if len(seen) == _MOST:
            return


class _Probe(Trial):
    """A trial with the parameters of an earlier one; it is never trained.

    Attributes:
        asked: what it was asked for.
    """

    def __init__(self, stored: FrozenTrial, edge: int) -> None:
        super().__init__(stored.number)
        self._stored, self._edge = stored.params, edge
        self.asked: dict[str, Parameter] = {}

    def report(self, value: float, resource: int) -> None:
        """Do nothing: there is no training."""

    def should_prune(self) -> bool:
        """Return False: there is no training."""
        return False

    def _choose(self, name: str, parameter: Parameter) -> object:
        self.asked[name] = parameter
        value = self._stored.get(name)
        return value if name in self._stored and parameter.contains(value) else parameter.edges()[self._edge]


def _parameter(stored: BaseDistribution) -> Parameter:
    """Return a range of Optuna's as ours."""
    if isinstance(stored, CategoricalDistribution):
        return Categorical(tuple(stored.choices))
    if isinstance(stored, IntDistribution):
        return Int(stored.low, stored.high, log=stored.log, step=stored.step)
    assert isinstance(stored, FloatDistribution), stored
    return Float(stored.low, stored.high, log=stored.log, step=stored.step)
