"""Searchers of Ray Tune, which choose parameters in place of a sampler."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from ray.tune.search import BasicVariantGenerator, Searcher, create_searcher
from ray.tune.search.search_generator import SearchGenerator

from ...errors import StudyError
from ...ledger.proposer import WAIT
from ...search.decisions.decide import Wait
from ...search.metrics.added_metrics import by_every_name
from ...search.space.parameters import Params
from ...search.space.search_space import SearchSpace
from ...search.study import Study
from ...search.trial_record import TrialRecord, TrialState
from ...system.spelling import nearest_name
from .ray_domains import from_searcher, to_ray
from .ray_spaces import RaySpace
from .schedulers import copied
from .tune_worker import OBJECTIVE

_RANDOM = (
    "search_alg=BasicVariantGenerator is Ray's random search: pass sampler=optuna.samplers.RandomSampler(seed=...) "
    "instead. Grids in the space (tune.grid_search) are tried point by point without it."
)


def as_searcher(search_alg: object) -> Searcher | None:
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
        StudyError: there are several objectives, or it cannot propose anything for this space.
    """
    if searcher is None:
        return
    if len(study.objectives) > 1:
        raise StudyError(
            f"search_alg={type(searcher).__name__} supports one objective, but this search has several: leave it "
            "out, or pass a sampler."
        )
    _tell_space(copied(searcher), study, _known_space(study))


class Proposals:
    """A Ray searcher as the source of parameters: trials receive its proposals, and it receives their results.

    Args:
        searcher: any searcher of Ray.
        study: the settings; the searcher gets its space, unless it was made with one.
        records: the trials of earlier sessions, which the searcher receives if it supports that.

    Attributes:
        note: what the user should know of it.

    Raises:
        StudyError: the searcher does not support the space.
    """

    def __init__(self, searcher: Searcher, study: Study, records: Sequence[TrialRecord]) -> None:
        self._searcher, self._objective = searcher, study.objective
        self._names: dict[int, str] = {}
        self._repeated = 0
        self._space = _known_space(study)
        self.note = f"searcher {type(searcher).__name__}"
        _tell_space(searcher, study, self._space)
        ended = [each for each in records if each.state.is_counted]
        # Only in a space of ours is a trial what is proposed: grids and draws go by its number.
        self._earlier = ended if isinstance(study.space, SearchSpace) else []
        untold = [each for each in ended if not self._add(each)]
        if untold:
            self.note += " (which starts anew: it does not accept earlier trials)"

    def propose(self, number: int) -> Params | Wait | None:
        """Return the parameters of trial `number`; WAIT if there are none now, None if there are no more.

        A searcher with a seed begins every session with the same proposals: it receives their results, and is asked
        again.
        """
        while True:
            name = f"trial-{number}" + (f"-{self._repeated}" if self._repeated else "")
            proposed: Any = self._searcher.suggest(name)
            if proposed is None:
                return WAIT
            if proposed == Searcher.FINISHED:
                return None
            params = self._in_space(proposed)
            known = next((each for each in self._earlier if params.items() <= each.params.items()), None)
            if known is None:
                break
            self._earlier = [each for each in self._earlier if each is not known]
            self._repeated += 1
            self._complete(name, known, _last_metrics(known))
        self._names[number] = name
        return params

    def reject(self, number: int, known: TrialRecord) -> None:
        """Send the searcher the known results of its latest proposal."""
        self._repeated += 1
        self._complete(self._names.pop(number), known, _last_metrics(known))

    def receive(self, number: int, result: Mapping[str, object]) -> None:
        """Send a report to the searcher."""
        if number in self._names:
            self._searcher.on_trial_result(self._names[number], dict(result))

    def end(self, record: TrialRecord, result: Mapping[str, object]) -> None:
        """Send the end of a trial to the searcher."""
        if record.number in self._names:
            self._complete(self._names[record.number], record, result)
        else:
            self._add(record)

    def _complete(self, name: str, record: TrialRecord, result: Mapping[str, object]) -> None:
        last = {} if record.value is None else {OBJECTIVE: record.value}
        has_failed = record.state is TrialState.FAILED or not (result or last)
        self._searcher.on_trial_complete(name, None if has_failed else {**result, **last}, has_failed)

    def _in_space(self, proposed: Mapping[str, object]) -> dict[str, object]:
        """Return the searcher's proposal as values of the space, if the space is known."""
        if self._space is None:
            return dict(proposed)
        known = self._space.all_parameters()
        others = sorted(known.keys() ^ proposed.keys())
        if others:
            raise StudyError(
                f"search_alg={type(self._searcher).__name__} proposes {sorted(proposed)}, but the search space has "
                f"{sorted(known)}: {others[0]!r} is in only one of them. Leave out the searcher's own space."
                f"{nearest_name(others[0], known.keys() - proposed.keys())}"
            )
        return {name: from_searcher(name, known[name], value) for name, value in proposed.items()}

    def _add(self, record: TrialRecord) -> bool:
        """Send the searcher a trial that it has not proposed; return False if it does not support that."""
        if record.value is None or record.state is TrialState.FAILED:
            return True
        with contextlib.suppress(NotImplementedError, TypeError, ValueError):
            is_pruned = record.state is TrialState.PRUNED
            known = record.params if self._space is None else self._space.all_parameters()
            params = {name: value for name, value in record.params.items() if name in known}
            self._searcher.add_evaluated_point(params, record.value, pruned=is_pruned)
            return True
        return False


def _last_metrics(record: TrialRecord) -> dict[str, float]:
    return by_every_name(record.reports[-1].metrics) if record.reports else {}


def _known_space(study: Study) -> SearchSpace | None:
    """Return the parameters of the space that are known before the first trial; None for a function."""
    if isinstance(study.space, SearchSpace):
        return study.space
    return study.space.parameters if isinstance(study.space, RaySpace) else None


def _tell_space(searcher: Searcher, study: Study, space: SearchSpace | None) -> None:
    mode = "min" if study.objective.direction == "minimize" else "max"
    name, domains = type(searcher).__name__, {} if space is None else to_ray(space)
    if searcher.metric in (None, OBJECTIVE, study.objective.name) and searcher.mode not in (None, mode):
        raise StudyError(
            f"search_alg={name} was made with mode={searcher.mode!r}, but {study.objective.name} is to be "
            f"{study.objective.direction}d. Leave metric and mode out of its constructor."
        )
    try:
        searcher.set_search_properties(OBJECTIVE, mode, domains)
    except Exception as error:
        raise StudyError(f"search_alg={name} does not support this space: {error}") from error
    innermost: object = searcher
    while isinstance(innermost, Searcher) and hasattr(innermost, "searcher"):
        innermost = innermost.searcher
    if not domains and not getattr(innermost, "_space", True):
        raise StudyError(
            f"search_alg={name} must know the space beforehand, but hp_space is a function, or leaves nothing to "
            "propose: pass a mapping of names to domains, or leave out search_alg."
        )
