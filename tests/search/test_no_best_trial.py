"""Why a study has no best trial: the first failure with its place, the closest trial, and what continues the study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpsearch import Constraint, NoCompletedTrialError, SearchSummary, TrialRecord, TrialState
from hpsearch.search.result.no_best_trial import explain_absence
from tests.support.clock import Clock
from tests.support.clock import clock as clock
from tests.support.rendering import NoEngine, make_study
from tests.support.searching import AtStep, states, without_result
from tests.support.small_search import fails_in, search

TRACE = """Traceback (most recent call last):
  File "/x/hpsearch/search/execution.py", line 228, in _attempt
    recipe.train()
  File "/home/me/train.py", line 12, in model_init
    raise RuntimeError("out of luck")
RuntimeError: out of luck
"""
SMALL = Constraint("num_parameters", at_most=5)


def trial(number: int, state: TrialState, **about: Any) -> TrialRecord:
    return TrialRecord(number, f"run-{number}", state, {}, **about)


def broken(number: int, by: float) -> TrialRecord:
    return trial(number, TrialState.COMPLETE, values=(0.5,), violations={SMALL.name: by})


FAILED = trial(1, TrialState.FAILED, reason="RuntimeError: out of luck", traceback=TRACE)
PRUNED = trial(0, TrialState.PRUNED, reason="pruned after 1 epoch")
LATE = trial(2, TrialState.INTERRUPTED, reason="the study's timeout of 9 s is over, before its first evaluation")


@pytest.mark.parametrize(
    ("records", "about", "said"),
    [
        ([], {}, "No trial has run. The same call continues the study."),
        (
            [PRUNED, FAILED],
            {},
            "No trial has a result: 1 pruned, 1 failed. The first failure, trial 1: RuntimeError: out of luck "
            "(/home/me/train.py, line 12, in model_init).",
        ),
        ([PRUNED], {}, "No trial has a result: 1 pruned. Trial 0: pruned after 1 epoch."),
        (
            [trial(0, TrialState.FAILED, reason="its worker died: killed")],
            {},
            "No trial has a result: 1 failed. The first failure, trial 0: its worker died: killed.",
        ),
        (
            [LATE],
            {},
            "No trial has a result: 1 interrupted. Trial 2: the study's timeout of 9 s is over, before its first "
            "evaluation. The same call continues the study.",
        ),
        (
            [trial(0, TrialState.INTERRUPTED, epochs=1.5), trial(1, TrialState.PAUSED, epochs=1.5)],
            {"max_epochs": 3.0},
            "No trial has a result: 1 paused, 1 interrupted. The same call with a larger max_epochs continues the "
            "study.",
        ),
        (
            [trial(0, TrialState.FAILED, fraction=0.4), trial(1, TrialState.PAUSED, fraction=0.5)],
            {"budget": 1.3},
            "The same call with a larger budget continues the study.",
        ),
        (
            [trial(0, TrialState.FAILED, fraction=0.4), trial(1, TrialState.PAUSED, fraction=0.5)],
            {"budget": 1.4},
            "The same call continues the study.",
        ),
        ([trial(0, TrialState.REFUSED, reason="no such metric")], {}, "1 refused. Trial 0: no such metric."),
        ([trial(0, TrialState.REFUSED, reason="No. Did you mean 'x'?")], {}, "Trial 0: No. Did you mean 'x'?"),
        (
            [broken(0, by=9.0), broken(3, by=2.0)],
            {},
            "None of the 2 trials with a result satisfies the constraints; trial 3 comes closest and breaks "
            "num_parameters <= 5.",
        ),
        (
            [broken(0, by=9.0), FAILED],
            {},
            "The only trial with a result, trial 0, breaks num_parameters <= 5. The first failure, trial 1: "
            "RuntimeError: out of luck (/home/me/train.py, line 12, in model_init).",
        ),
    ],
)
def test_what_is_said_of_a_study_without_a_best_trial(records: Any, about: dict[str, Any], said: str) -> None:
    assert explain_absence(records, [SMALL], **about).endswith(said)


def test_a_summary_knows_the_budget_of_its_study() -> None:
    paused = [trial(number, TrialState.PAUSED, fraction=0.5) for number in (0, 1)]
    said = SearchSummary(make_study(None, budget=1.4), paused, NoEngine).explain_absence()
    assert said.endswith("The same call with a larger budget continues the study.")


@pytest.mark.parametrize("objective", ["loss", ["loss", "num_parameters"]])
def test_a_search_in_which_every_trial_fails_raises_and_the_same_call_raises_again(
    tmp_path: Path, objective: Any
) -> None:
    for ended in (2, 4):  # failures without any report do not count in the next call
        options = {"trainer": {"model_init": fails_in()}, "compute_objective": objective}
        error = without_result(search, tmp_path, 2, **options)
        assert states(error) == ["failed"] * ended
        assert "trial 0: RuntimeError: out of luck in trial 0 (" in str(error)
    best = search(tmp_path, 1, compute_objective=objective)
    assert {each.run_id for each in (best if isinstance(objective, list) else [best])} == {"4"}


def test_a_budget_that_ends_before_the_first_evaluation_says_that_the_same_call_continues(
    tmp_path: Path, clock: Clock
) -> None:
    slow = AtStep(clock.move(60.0), run=0, step=2)
    with pytest.raises(NoCompletedTrialError, match=r"timeout of 60.0 s is over.*The same call continues the study"):
        search(tmp_path, 2, slow, timeout=60.0)
    assert states(search(tmp_path, 2)) == ["complete"] * 2


def test_epochs_that_are_used_up_before_the_first_evaluation_name_the_budget_to_raise(tmp_path: Path) -> None:
    options = {"trainer": {"num_train_epochs": 2, "eval_strategy": "no"}}
    error = without_result(search, tmp_path, 1, max_epochs=0.5, **options)
    assert str(error).endswith("The same call with a larger max_epochs continues the study.")
    assert states(search(tmp_path, 1, max_epochs=9, **options)) == ["complete"]
