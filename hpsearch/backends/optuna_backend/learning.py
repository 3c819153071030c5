"""Starting from another study: its finished trials teach the sampler, without counting as trials of the new study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as EngineState

from ...errors import StudyError
from ...search.parameters import Categorical, Float, Parameter
from ...search.space import SearchSpace
from ...search.study import Study

# A user attribute of a trial that came from another study: the name of that study and the trial's number in it.
ORIGIN = "hpsearch:origin"


def finished_trials(start_from: Any) -> tuple[str, str, list[FrozenTrial]]:
    """Return name, direction and complete trials of another study.

    Args:
        start_from: an `optuna.Study`; a `SearchSummary`; or a `BestRun`.

    Raises:
        StudyError: it is none of these, or has several objectives.
    """
    summary = getattr(start_from, "run_summary", start_from)
    other = getattr(summary, "engine_study", summary)
    if not isinstance(other, optuna.Study):
        raise StudyError(
            f"start_from must be an Optuna study, or the summary or best run of a search, but got {start_from!r}."
        )
    if len(other.directions) != 1:
        raise StudyError(f"start_from={other.study_name!r} has {len(other.directions)} objectives; only one can teach.")
    complete = other.get_trials(deepcopy=False, states=(EngineState.COMPLETE,))
    return other.study_name, other.direction.name.lower(), complete


def check_direction(learned: tuple[str, str, Sequence[FrozenTrial]], study: Study) -> None:
    """Check that another study optimises in the direction of this one.

    Raises:
        StudyError: it does not.
    """
    name, direction, _ = learned
    if direction != study.objective.direction:
        raise StudyError(f"start_from={name!r} was to {direction}, but this search is to {study.objective.direction}.")


def learn(engine: optuna.Study, learned: tuple[str, str, Sequence[FrozenTrial]], study: Study) -> list[str]:
    """Add the trials of another study, once; return what was done, in words.

    They do not count, and have no records, so none of them can be the best of this search.
    """
    if any(ORIGIN in each.user_attrs for each in engine.get_trials(deepcopy=False)):
        return []
    if engine.study_name == learned[0] and _are_same(engine.get_trials(deepcopy=False), learned[2]):
        raise StudyError(f"start_from={learned[0]!r} is this study itself, which goes on by itself.")
    fitting, others = _fitting(learned, study)
    for trial in fitting:
        engine.add_trial(trial)
    left_out = f" ({others} do not fit this space)" if others else ""
    return [f"learns from {len(fitting)} trials of {learned[0]!r}{left_out}"]


def _fitting(learned: tuple[str, str, Sequence[FrozenTrial]], study: Study) -> tuple[list[FrozenTrial], int]:
    """Return the trials of another study as trials to add to this one, and how many do not fit its space."""
    name, _, trials = learned
    known = study.space.all_parameters() if isinstance(study.space, SearchSpace) else None
    fitting = []
    for trial in trials:
        if known is not None and not (isinstance(study.space, SearchSpace) and study.space.contains(trial.params)):
            continue
        distributions = dict(trial.distributions)
        if known is not None:
            distributions = {each: distribution(known[each]) for each in trial.params}
        fitting.append(
            optuna.trial.create_trial(
                state=EngineState.COMPLETE,
                params=trial.params,
                distributions=distributions,
                value=trial.value,
                user_attrs={ORIGIN: f"{name}/{trial.number}"},
            )
        )
    return fitting, len(trials) - len(fitting)


def _are_same(trials: Sequence[FrozenTrial], learned: Sequence[FrozenTrial]) -> bool:
    """Tell whether trials of another study are those of this one."""
    own = {each.number: each.datetime_start for each in trials}
    return bool(learned) and all(own.get(each.number) == each.datetime_start for each in learned)


def distribution(parameter: Parameter) -> BaseDistribution:
    """Return what Optuna calls the values that a parameter can take."""
    if isinstance(parameter, Categorical):
        return CategoricalDistribution(parameter.choices)
    if isinstance(parameter, Float):
        return FloatDistribution(parameter.low, parameter.top, step=parameter.step, log=parameter.log)
    return IntDistribution(parameter.low, parameter.top, step=parameter.step, log=parameter.log)
