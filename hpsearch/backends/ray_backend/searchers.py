"""Searchers of Ray Tune, which choose parameters in place of a sampler."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from ray.tune.search import BasicVariantGenerator, Searcher, create_searcher
from ray.tune.search.search_generator import SearchGenerator

from ...errors import StudyError
from ...search.space import SearchSpace
from ...search.study import Study
from ...search.trial import TrialRecord, TrialState
from ..optuna_backend.trials import WAIT, Wait
from .domains import from_searcher, to_ray
from .schedulers import copied
from .spaces import RaySpace
from .worker import OBJECTIVE

_RANDOM = (
    "search_alg=BasicVariantGenerator is Ray's random search: pass sampler=optuna.samplers.RandomSampler(seed=...) "
    "in its place. Grids in the space (tune.grid_search) are tried point by point without it."
)


def as_searcher(search_alg: Any) -> Searcher | None:
    """Return a copy of a searcher of Ray, or one by name; None for None.

    Searchers remember trials, so that of another search would take those for trials of this one.

    Raises:
        StudyError: it is neither, or needs a package that is not installed.
    """
    if search_alg is None or isinstance(search_alg, Searcher):
        return copied(search_alg)
    if isinstance(search_alg, str):
        try:
            return as_searcher(create_searcher(search_alg))
        except StudyError:
            raise
        except Exception as error:
            raise StudyError(f"search_alg={search_alg!r} cannot be made: {error}") from error
    if isinstance(search_alg, SearchGenerator):
        return as_searcher(search_alg.searcher)
    if isinstance(search_alg, BasicVariantGenerator):
        raise StudyError(_RANDOM)
    raise StudyError(f"search_alg must be a searcher of ray.tune.search, its name or None, but got {search_alg!r}.")


def check_searcher(searcher: Searcher | None, study: Study) -> None:
    """Check that a searcher fits the study.

    Raises:
        StudyError: there are several objectives.
    """
    if searcher is not None and len(study.objectives) > 1:
        raise StudyError(
            f"search_alg={type(searcher).__name__} is for one objective, but this search has several: leave it out, or "
            "pass a sampler."
        )


class Proposals:
    """The parameters that a searcher of Ray proposes for our trials, and what it is told of them.

    Args:
        searcher: any searcher of Ray.
        study: the settings; the searcher gets its space, unless it was made with one.
        records: the trials of earlier sessions, which the searcher hears of if it can.

    Attributes:
        note: what the user should know of it.

    Raises:
        StudyError: the searcher cannot be told the space.
    """

    def __init__(self, searcher: Searcher, study: Study, records: Sequence[TrialRecord]) -> None:
        self._searcher, self._objective = searcher, study.objective
        self._proposed: set[int] = set()
        self._space = _known_space(study)
        self.note = f"searcher {type(searcher).__name__}"
        _tell_space(searcher, study, self._space)
        ended = [each for each in records if each.state.is_counted]
        if ended and not all(self._add(each) for each in ended):
            self.note += " (which starts anew: it cannot be told of earlier trials)"

    def propose(self, number: int) -> Mapping[str, Any] | Wait | None:
        """Return the parameters of trial `number`; WAIT if there are none now, None if there are no more."""
        proposed: Any = self._searcher.suggest(_name(number))
        if proposed is None:
            return WAIT
        if proposed == Searcher.FINISHED:
            return None
        self._proposed.add(number)
        known = {} if self._space is None else self._space.all_parameters()
        return {
            name: from_searcher(name, known[name], value) if name in known else value
            for name, value in proposed.items()
        }

    def hear(self, number: int, result: Mapping[str, Any]) -> None:
        """Tell the searcher of a report."""
        if number in self._proposed:
            self._searcher.on_trial_result(_name(number), dict(result))

    def end(self, record: TrialRecord, result: Mapping[str, Any]) -> None:
        """Tell the searcher how a trial has ended."""
        if record.number not in self._proposed:
            self._add(record)
            return
        last = {} if record.value is None else {OBJECTIVE: record.value}
        has_failed = record.state is TrialState.FAILED
        self._searcher.on_trial_complete(_name(record.number), None if has_failed else {**result, **last}, has_failed)

    def _add(self, record: TrialRecord) -> bool:
        """Tell the searcher of a trial that it has not proposed; False if it cannot be told."""
        if record.value is None:
            return True
        with contextlib.suppress(NotImplementedError, TypeError, ValueError):
            is_pruned = record.state is TrialState.PRUNED
            known = record.params if self._space is None else self._space.all_parameters()
            params = {name: value for name, value in record.params.items() if name in known}
            self._searcher.add_evaluated_point(params, record.value, pruned=is_pruned)
            return True
        return False


def _known_space(study: Study) -> SearchSpace | None:
    """Return what is known of the space before a trial asks it; None of a function."""
    if isinstance(study.space, SearchSpace):
        return study.space
    return study.space.parameters if isinstance(study.space, RaySpace) else None


def _tell_space(searcher: Searcher, study: Study, space: SearchSpace | None) -> None:
    mode = "min" if study.objective.direction == "minimize" else "max"
    domains = {} if space is None else to_ray(space)
    try:
        is_taken = searcher.set_search_properties(OBJECTIVE, mode, domains)
    except Exception as error:
        raise StudyError(f"search_alg={type(searcher).__name__} does not take this space: {error}") from error
    if not is_taken and searcher.mode not in (None, mode):
        raise StudyError(
            f"search_alg={type(searcher).__name__} was made with mode={searcher.mode!r}, but the objective is to be "
            f"{study.objective.direction}d. Leave metric and mode out where it is made."
        )


def _name(number: int) -> str:
    return f"trial-{number}"
