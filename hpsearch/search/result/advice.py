"""Sentences at the end of a search: what it found, and what a further one might find."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ...errors import SpaceError
from ...system.json_types import JsonObject
from ..decisions.repeats import Repeats
from ..metrics.replicas import without_replicas
from ..metrics.selection import best_records
from ..space.search_space import SearchSpace
from ..space.without_effect import without_effect
from ..store.provenance import MODEL_INIT
from ..store.stored_study import StoredStudy
from ..trial_record import TrialRecord
from .earlier_best import earlier_best
from .findings.at_bounds import at_bounds
from .findings.early_stops import early_stops
from .findings.equal_values import are_equal, equal_values, single_result
from .findings.exhausted_space import exhausted_space
from .findings.failing_values import failing_values
from .findings.pruned_ahead import pruned_ahead
from .findings.repeated_best import repeated_best
from .findings.ties import ties
from .known_study import KnownStudy, known_noise, on_disk


def advice(study: KnownStudy, records: Sequence[TrialRecord]) -> list[str]:
    """Return sentences about the best trial's rivals and parameters, about pruned trials, the space and the scope.

    Empty: there is nothing to say, as with several objectives, where another trial is best by each of them. If all
    results are equal, nothing is said of the best one. Where trials were repeated with other seeds, the sentences
    about other things know the first runs only.
    """
    objectives = study.objectives
    best = best_records(records, objectives) if len(objectives) == 1 else []
    if not best:
        return []
    is_repeated = without_replicas(records) is not records
    repeated, records = repeated_best(records, Repeats.of(study)), without_replicas(records)
    space, stored = _space(study.described_space()), on_disk(study)
    noise, earlier = known_noise(stored, records), earlier_best(records, objectives, study.scope)
    to_beat = best[0].value if earlier is None else earlier.value
    is_distinct = not are_equal(records)
    return [
        *equal_values(objectives[0], records),
        *single_result(records),
        *repeated,
        *(ties(records, objectives, noise) if is_distinct and not is_repeated else []),
        *(at_bounds(space, best[0].params, _ineffective(stored, best[0])) if space is not None and is_distinct else []),
        *(exhausted_space(space, records) if space is not None else []),
        *(failing_values(space, records) if space is not None else []),
        *early_stops(objectives[0], records, noise, None if stored is None else stored.ladder),
        *pruned_ahead(objectives[0], best[0], records, to_beat),
        *([] if earlier is None else [earlier.describe()]),
    ]


def _space(described: JsonObject | str) -> SearchSpace | None:
    """Return the space from its description; None of a function, and of a space of a later version."""
    try:
        return SearchSpace.from_description(described if isinstance(described, Mapping) else {})
    except SpaceError:
        return None


def _ineffective(stored: StoredStudy | None, best: TrialRecord) -> Collection[str]:
    """Return the parameters of a `Trainer` that changed nothing in the best trial, by what its session recorded."""
    sessions = [] if stored is None else stored.settings["sessions"]
    session = sessions[best.session] if best.session < len(sessions) else {}
    functions = session.get("functions", {})
    is_derived = not str(functions.get("trainer")).startswith("hpsearch.")
    has_own_optimizer = is_derived or "optimizer_cls_and_kwargs" in functions
    is_of_trainer = MODEL_INIT in functions
    return without_effect(best.params, session.get("arguments", {}), has_own_optimizer) if is_of_trainer else ()
