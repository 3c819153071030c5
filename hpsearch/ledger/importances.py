"""The importance of each parameter: the fraction of the variation of the results that it explains."""

from __future__ import annotations

import math
import warnings
from collections import Counter

import optuna
from optuna.trial import TrialState as EngineState

from ..search.result.parameter_importances import Importances
from ..search.trial_record import Replica
from .ledger import REQUEST

_LEAST = 4


def importances(study: optuna.Study) -> Importances:
    """Return Optuna's parameter importances (PED-ANOVA), largest first; none of fewer than four trials.

    Of several objectives, those for the first one. Where fewer trials have trained to their end than have come to an
    earlier evaluation, which rungs bring about, they are compared by what they had reported there.
    """
    study = _without_replicas(study)
    is_single = len(study.directions) == 1
    compared, resource = _at_the_same_point(study) if is_single else (study, None)
    count = len(compared.get_trials(deepcopy=False, states=(EngineState.COMPLETE,)))
    if count < _LEAST:
        return Importances()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)
        try:
            found = optuna.importance.get_param_importances(
                compared, target=None if is_single else lambda trial: trial.values[0]
            )
        except (ValueError, RuntimeError, ZeroDivisionError):
            return Importances()
    return Importances(dict(sorted(found.items(), key=lambda item: -item[1])), count, resource)


def _without_replicas(study: optuna.Study) -> optuna.Study:
    """Return a study without the trials that repeat others: their parameters would count several times."""
    trials = study.get_trials(deepcopy=False)
    own = [each for each in trials if Replica.of_id(each.user_attrs.get(REQUEST)) is None]
    if len(own) == len(trials):
        return study
    others = optuna.create_study(directions=study.directions)
    others.add_trials(own)
    return others


def _at_the_same_point(study: optuna.Study) -> tuple[optuna.Study, int | None]:
    """Return a study of what each trial had reported where most had come to, and the resource of that point.

    The same study, and None, if that is the end.
    """
    trials = study.get_trials(deepcopy=False)
    reached = Counter(resource for each in trials for resource in each.intermediate_values)
    complete = sum(each.state is EngineState.COMPLETE for each in trials)
    most = max(reached.values(), default=0)
    if complete >= _LEAST and 2 * complete >= most:
        return study, None
    place = max((resource for resource, count in reached.items() if count == most), default=0)
    compared = optuna.create_study(direction=study.direction)
    compared.add_trials(
        [
            optuna.trial.create_trial(
                params=each.params, distributions=each.distributions, value=each.intermediate_values[place]
            )
            for each in trials
            if math.isfinite(each.intermediate_values.get(place, math.nan))
        ]
    )
    return compared, place
