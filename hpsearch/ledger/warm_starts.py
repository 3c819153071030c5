"""Warm starts: the trials of another study inform the sampler, without counting as trials of the new study."""

from __future__ import annotations

import copy
import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as EngineState

from ..errors import StudyError, one_of
from ..search.metrics.objective import MINIMIZE, Objective
from ..search.metrics.selection import BROKEN, shares_and_costs
from ..search.space.parameters import Categorical, Float, Parameter
from ..search.space.search_space import SearchSpace
from ..search.study import Study
from ..search.trial_record import Report
from ..search.warm_start import WarmStart
from ..search.wording import counted
from ..system.spelling import nearest_name
from .storage import close
from .stored_source import open_source

# A user attribute of a trial that came from another study: the name of that study and the trial's number in it.
ORIGIN = "hpsearch:origin"
# What such a trial had shown, as a list of pairs.
_CURVE = "hpsearch:curve"
# An attribute of the study: whether all of them are there.
_IS_LEARNED = "hpsearch:is_learned"
# The number of values of this study that show whether it is like the other one.
_ENOUGH = 3
# Values that differ by less than this share of them are near each other.
_SHARE_NEAR = 0.25
# An infinite cost is no JSON, which the dashboard reads.
_MOST = 1e300


@dataclass(frozen=True)
class Learned:
    """The data of a warm start.

    Attributes:
        name: of the other study.
        direction: in which it optimised.
        trials: its complete trials; those that were pruned too, if it is known what they had shown. What another study
            had taught it is among them.
        reports: of the trials, by number, if it is known.
        rename: the names that parameters had there to those that they have here, and in `trials`.
    """

    name: str
    direction: str
    trials: Sequence[FrozenTrial]
    reports: Mapping[int, Sequence[Report]]
    rename: Mapping[str, str]


def learn_from(start_from: object, learner: tuple[str | None, str]) -> Learned:
    """Return the data of a warm start.

    Args:
        start_from: an `optuna.Study`; a `SearchSummary` or a `BestRun`; the URL or the journal file of a storage; or a
            `WarmStart` with one of these.
        learner: the URL or the journal file of this search's storage, if it has one, and the name of its study.

    Raises:
        StudyError: it is none of these, has several objectives, or lacks a parameter that is to be renamed.
    """
    given = start_from if isinstance(start_from, WarmStart) else WarmStart(start_from)
    summary = getattr(given.study, "run_summary", given.study)
    if isinstance(summary, str | os.PathLike):
        other = open_source(summary, given.study_name, learner)
        try:
            return _learned(other, {}, given.rename)
        finally:
            close(other._storage)
    other = getattr(summary, "engine_study", summary)
    if not isinstance(other, optuna.Study):
        raise StudyError(
            "start_from must be an Optuna study, the summary or best run of a search, the URL or journal file of a "
            f"storage, or a WarmStart with one of these, but got {start_from!r}."
        )
    if given.study_name not in (None, other.study_name):
        raise StudyError(
            f"start_from=WarmStart(..., study_name={given.study_name!r}): the study that was given is "
            f"{other.study_name!r}; study_name is for a storage, given by its URL or journal file."
        )
    reports = {each.number: each.reports for each in getattr(summary, "records", ()) if each.reports}
    return _learned(other, reports, given.rename)


def _learned(other: optuna.Study, reports: Mapping[int, Sequence[Report]], rename: Mapping[str, str]) -> Learned:
    if len(other.directions) != 1:
        raise StudyError(
            f"start_from={other.study_name!r} has {len(other.directions)} objectives; a warm start needs exactly one."
        )
    trials = [
        each
        for each in other.get_trials(deepcopy=False, states=(EngineState.COMPLETE, EngineState.PRUNED))
        if each.state is EngineState.COMPLETE or each.number in reports or _CURVE in each.user_attrs
    ]
    names = _names_of(trials)
    unknown = next((each for each in rename if trials and each not in names), None)
    if unknown is not None:
        raise StudyError(
            f"start_from={other.study_name!r} has no parameter {unknown!r} to rename; it has {one_of(names)}."
            f"{nearest_name(unknown, names)}"
        )
    renamed = [_renamed(each, rename) for each in trials] if rename else trials
    return Learned(other.study_name, other.direction.name.lower(), renamed, reports, rename)


def _names_of(trials: Sequence[FrozenTrial]) -> list[str]:
    """Return the names of all parameters that trials have, in order of first appearance."""
    return list(dict.fromkeys(name for each in trials for name in each.params))


def _renamed(trial: FrozenTrial, rename: Mapping[str, str]) -> FrozenTrial:
    """Return a trial of another study with the names that its parameters have here."""
    names = {name: rename.get(name, name) for name in trial.params}
    twice = next((new for old, new in names.items() if old != new and list(names.values()).count(new) > 1), None)
    if twice is not None:
        raise StudyError(
            f"start_from=WarmStart(...): rename gives two parameters of trial {trial.number} the name {twice!r}."
        )
    renamed = copy.copy(trial)
    renamed.params = {names[name]: value for name, value in trial.params.items()}
    renamed.distributions = {names[name]: each for name, each in trial.distributions.items()}
    return renamed


def is_taught(trial: FrozenTrial) -> bool:
    """Return whether a trial is one of another study."""
    return ORIGIN in trial.user_attrs


def taught_curve(trial: FrozenTrial, objective: Objective) -> Sequence[tuple[float, float]]:
    """Return share of the training and cost of each report of a trial of another study; there may be none."""
    kept: Sequence[tuple[float, float]] | None = trial.user_attrs.get(_CURVE)
    return _curve(trial, None, objective) if kept is None else kept


def check_learned(learned: Learned, study: Study) -> None:
    """Check that another study optimises in the direction of this one, and gets names of parameters of this one.

    Raises:
        StudyError: it does not.
    """
    if learned.direction != study.objective.direction:
        raise StudyError(
            f"start_from={learned.name!r} was to {learned.direction}, but this search is to "
            f"{study.objective.direction}."
        )
    known = study.space.all_parameters() if isinstance(study.space, SearchSpace) else None
    unknown = next((each for each in learned.rename.values() if known is not None and each not in known), None)
    if known is not None and unknown is not None:
        raise StudyError(
            f"start_from=WarmStart(...) renames a parameter to {unknown!r}, which this search does not have; it has "
            f"{one_of(known)}.{nearest_name(unknown, known)}"
        )


def learn(engine: optuna.Study, learned: Learned, study: Study) -> list[str]:
    """Add the trials of another study, once; return what was done, in words.

    They do not count, and have no records, so none of them can be the best of this search.
    """
    known = {each.user_attrs[ORIGIN] for each in engine.get_trials(deepcopy=False) if is_taught(each)}
    if engine.user_attrs.get(_IS_LEARNED, bool(known)):
        return []
    if engine.study_name == learned.name and _are_same(engine.get_trials(deepcopy=False), learned.trials):
        raise StudyError(f"start_from={learned.name!r} is this study itself, which continues without it.")
    fitting = [each for each in learned.trials if _fits(each, study)]
    if not fitting:  # the next session may rename parameters
        return [f"learns from 0 trials of {learned.name!r}: {_why_none(learned, study)}"]
    engine.set_user_attr(_IS_LEARNED, False)  # a process that is killed meanwhile has added some of them
    for trial in fitting:
        if _origin(trial, learned) not in known:
            engine.add_trial(_taught(trial, learned, study))
    engine.set_user_attr(_IS_LEARNED, True)
    others = len(learned.trials) - len(fitting)
    left_out = f" ({others} do not fit this space)" if others else ""
    return [f"learns from {counted(len(fitting), 'trial')} of {learned.name!r}{left_out}"]


def can_be_compared(trials: Sequence[FrozenTrial]) -> bool:
    """Return whether there are enough values of this study, and another one's, to see whether they are of one kind."""
    return any(map(is_taught, trials)) and len(_own_values(trials)) >= _ENOUGH


def far_off(trials: Sequence[FrozenTrial], objective: Objective) -> str | None:
    """Return in words that no value here is near what the other study had shown; None if one is.

    Args:
        trials: of this study, with those of the other one.
        objective: of this study.
    """
    sign = 1.0 if objective.direction == MINIMIZE else -1.0
    taught, own = [each for each in trials if is_taught(each)], _own_values(trials)
    shown = [sign * cost for each in taught for _, cost in taught_curve(each, objective) if abs(cost) < BROKEN]
    if not shown:
        return None
    least, most = min(shown), max(shown)
    reach = max(most - least, _SHARE_NEAR * max(abs(least), abs(most)))
    if any(least - reach <= value <= most + reach for value in own):
        return None
    name, _, _ = taught[0].user_attrs[ORIGIN].rpartition("/")
    return (
        f"the {len(own)} trials that have ended have {min(own):.4g} to {max(own):.4g}, those of {name!r} had "
        f"{least:.4g} to {most:.4g}: if they are from another task, a new study without start_from is better"
    )


def _own_values(trials: Sequence[FrozenTrial]) -> list[float]:
    return [each.value for each in trials if not is_taught(each) and each.value is not None]


def _origin(trial: FrozenTrial, learned: Learned) -> str:
    return f"{learned.name}/{trial.number}"


def _fits(trial: FrozenTrial, study: Study) -> bool:
    """Return whether a trial lies in the space; what a function makes is not known before."""
    return not isinstance(study.space, SearchSpace) or study.space.contains(trial.params)


def _why_none(learned: Learned, study: Study) -> str:
    """Return why no trial of another study lies in the space of this one."""
    if not learned.trials or not isinstance(study.space, SearchSpace):
        return "none of its trials has a result"
    here, there = study.space.all_parameters(), _names_of(learned.trials)
    other_names = [each for each in there if each not in here]
    missing = [each for each in here if each not in there]
    if other_names or missing:
        names = f"its parameters are {_listed(there)}, those of this search {_listed(here)}"
        if not (other_names and missing):
            return names
        nearest = max(missing, key=lambda each: difflib.SequenceMatcher(None, other_names[0], each).ratio())
        return (
            f"{names}; where they mean the same, rename them: "
            f"start_from=hpsearch.WarmStart(..., rename={{{other_names[0]!r}: {nearest!r}}})"
        )
    had = {name: [each.params[name] for each in learned.trials if name in each.params] for name in there}
    outside = {name: [each for each in values if not here[name].contains(each)] for name, values in had.items()}
    name = max(outside, key=lambda each: len(outside[each]))
    if not outside[name]:
        return "none has all parameters of this search, and no other one"
    return f"{len(outside[name])} have values such as {name}={outside[name][0]!r}, which is not in {here[name]!r}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _taught(trial: FrozenTrial, learned: Learned, study: Study) -> FrozenTrial:
    """Return a trial of another study as one to add to this one."""
    distributions = dict(trial.distributions)
    if isinstance(study.space, SearchSpace):
        known = study.space.all_parameters()
        distributions = {each: distribution(known[each]) for each in trial.params}
    reports = learned.reports.get(trial.number)
    curve = trial.user_attrs.get(_CURVE) or _curve(trial, reports, study.objective)
    return optuna.trial.create_trial(
        state=trial.state,
        params=trial.params,
        distributions=distributions,
        value=trial.value,
        intermediate_values=trial.intermediate_values if trial.state is EngineState.PRUNED else None,
        user_attrs={ORIGIN: _origin(trial, learned), _CURVE: curve},
    )


def _curve(trial: FrozenTrial, reports: Sequence[Report] | None, objective: Objective) -> list[tuple[float, float]]:
    """Return the results of a trial: its reports or, if they are not known, its final value."""
    if reports is None and trial.value is not None:
        at_the_end = Report((trial.value,), 1.0, 1, 1.0, {}, violations=dict(trial.constraints), horizon=1.0)
        reports = [at_the_end]
    return [(share, min(cost, _MOST)) for share, cost in shares_and_costs(reports or (), objective)]


def _are_same(trials: Sequence[FrozenTrial], learned: Sequence[FrozenTrial]) -> bool:
    """Return whether trials of another study are those of this one."""
    own = {each.number: each.datetime_start for each in trials}
    return bool(learned) and all(own.get(each.number) == each.datetime_start for each in learned)


def distribution(parameter: Parameter) -> BaseDistribution:
    """Return what Optuna calls the values that a parameter can take."""
    if isinstance(parameter, Categorical):
        return CategoricalDistribution(parameter.choices)
    if isinstance(parameter, Float):
        return FloatDistribution(parameter.low, parameter.top, step=parameter.step, log=parameter.log)
    return IntDistribution(parameter.low, parameter.top, step=parameter.step, log=parameter.log)
