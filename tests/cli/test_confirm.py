"""What `hpsearch confirm` says when it has ended: which trial is the best, and what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpsearch.cli.confirm import next_steps
from hpsearch.search.metrics.objective import Objective
from hpsearch.search.result.best_run import SearchSummary
from hpsearch.search.store.stored_study import StoredStudy
from hpsearch.search.trial_record import Replica, TrialRecord, TrialState


def runs_of(number: int, *values: Sequence[float], **changes: Any) -> list[TrialRecord]:
    """Return a trial and its replicas, with a list of objectives each."""
    return [
        TrialRecord(
            number + 10 * offset,
            f"run-{number + 10 * offset}",
            TrialState.COMPLETE,
            {},
            values=tuple(each),
            fraction=1.0,
            origin=Replica(number, offset).origin if offset else None,
            **changes,
        )
        for offset, each in enumerate(values)
    ]


def summary_of(*trials: Sequence[TrialRecord], names: Sequence[str] = ("accuracy",)) -> SearchSummary:
    objectives = tuple(Objective(lambda metrics: 0.0, "maximize", f"maximize {name}", name) for name in names)
    study = StoredStudy(Path("runs/my study"), {"study_name": "study"}, objectives, ())
    return SearchSummary(study, [each for some in trials for each in some], lambda: pytest.fail("no engine is needed"))


CLEAR = [runs_of(0, [0.9], [0.901], [0.902]), runs_of(1, [0.5], [0.501], [0.502])]
CLOSE = [runs_of(0, [0.7], [0.5], [0.6]), runs_of(1, [0.65], [0.55], [0.59])]


def test_the_best_trial_is_named_with_its_chance_and_the_command_for_it() -> None:
    assert next_steps(summary_of(*CLEAR), {0}, 3) == [
        "trial 0 is still the best, with a chance of >99%",
        "its parameters: hpsearch best 'runs/my study'",
    ]
    assert next_steps(summary_of(*CLEAR), {1}, 3)[0] == "trial 0 is the best now, with a chance of >99%"


def test_weights_that_were_kept_can_be_exported() -> None:
    kept = runs_of(0, [0.9], [0.8], checkpoint=Path("checkpoint-1"))
    said = next_steps(summary_of(kept), {0}, 2)
    assert said[1] == "its parameters, and its model: hpsearch best 'runs/my study' --export model"


@pytest.mark.parametrize(("trials", "repeats", "is_said"), [(CLOSE, 3, True), (CLOSE, 5, False), (CLEAR, 3, False)])
def test_more_runs_are_suggested_where_it_is_not_clear_and_all_runs_were_used(
    trials: list[list[TrialRecord]], repeats: int, is_said: bool
) -> None:
    more = [each for each in next_steps(summary_of(*trials), {0}, repeats) if each.startswith("to be surer")]
    assert more == (["to be surer: hpsearch confirm 'runs/my study' --repeats 6"] if is_said else [])
    assert [f"{each} --top 2" for each in more] == [
        each for each in next_steps(summary_of(*trials), {0}, repeats, 2) if each.startswith("to be surer")
    ]


def test_of_several_objectives_one_trial_of_the_front_is_chosen() -> None:
    summary = summary_of(runs_of(0, [0.9, 0.1], [0.8, 0.2]), runs_of(1, [0.1, 0.9]), names=("accuracy", "speed"))
    assert next_steps(summary, {0, 1}, 2) == [
        "on the Pareto front of means: 0, 1; choose one: hpsearch best 'runs/my study' --trial 0"
    ]
