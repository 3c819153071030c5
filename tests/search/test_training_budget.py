"""A budget in full training runs: what trials cost, and which of them may begin or resume."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from transformers import TrainerCallback

from hpsearch import SearchInterrupted, StudyError, TrialRecord
from hpsearch.reports.tables import budget_in_words
from hpsearch.search.decisions.ladder import Ladder
from hpsearch.search.decisions.training_budget import TrainingBudget, full_runs, full_runs_of, progress_in_words
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.space.search_space import SearchSpace
from hpsearch.search.store.live_sessions import Session
from hpsearch.search.store.stored_study import StoredStudy
from hpsearch.search.study import Study
from hpsearch.search.trial_record import TrialState
from tests.support.at_rungs import RATE, running, trial
from tests.support.in_workers import search as search_in_workers
from tests.support.searching import AtStep, HearsNotices, load
from tests.support.small_search import records_of, search

LADDER = Ladder((1 / 6, 1 / 2), 2)
# Trials of eighteen epochs that are evaluated after 1, 3, 9 and 18 of them: they pause after 3 and after 9.
POINTS = (1 / 18, 1 / 6, 1 / 2, 1.0)
NEW = TrialRecord(9, "", TrialState.RUNNING, {})
KILLED, KILLED_TOO = (TrialRecord(number, f"run-{number}", TrialState.INTERRUPTED, {}) for number in (5, 6))
AT_A_SIXTH, AT_A_HALF = trial(1, 0.5, 0.4), trial(2, 0.5, 0.4, 0.3)
COMPLETE = trial(3, 0.5, 0.4, 0.3, 0.2, state=TrialState.COMPLETE)
FAILED = TrialRecord(4, "run-4", TrialState.FAILED, {}, fraction=0.4)
SIX_EPOCHS: dict[str, Any] = {"num_train_epochs": 6}


@pytest.mark.parametrize(
    ("total", "trials", "best", "candidate", "is_affordable"),
    [
        # One trial can be completed, and it is the only one.
        (1, [], None, NEW, True),
        (0.99, [], None, NEW, False),
        # A second one reaches its first rung, and one of the two can be completed.
        (1.17, [running(1)], None, NEW, True),
        (1.16, [running(1)], None, NEW, False),
        # A running trial has reserved what brings it to its next pause, not more.
        (1.51, [running(1, 0.5, 0.4)], None, NEW, True),
        (1.49, [running(1, 0.5, 0.4)], None, NEW, False),
        # So has one that was killed, as it resumes first; another one that was killed does not keep it from that.
        (1.17, [KILLED], None, NEW, True),
        (1.16, [KILLED], None, NEW, False),
        (1.66, [KILLED, KILLED_TOO, AT_A_SIXTH], None, AT_A_SIXTH, False),
        (1.67, [KILLED, KILLED_TOO, AT_A_SIXTH], None, AT_A_SIXTH, True),
        (1.0, [KILLED, KILLED_TOO], None, KILLED, True),
        (1.16, [KILLED, running(1)], None, KILLED, False),
        # The costs of trials of all states count.
        (2.41, [COMPLETE, FAILED], None, NEW, True),
        (2.39, [COMPLETE, FAILED], None, NEW, False),
        # A promotion up to the next rung leaves enough to complete the promoted trial.
        (1.0, [AT_A_SIXTH], AT_A_SIXTH, AT_A_SIXTH, True),
        (0.99, [AT_A_SIXTH], AT_A_SIXTH, AT_A_SIXTH, False),
        # Another one than the best also leaves enough to complete the best.
        (2.0, [AT_A_SIXTH, AT_A_HALF], AT_A_SIXTH, AT_A_HALF, True),
        (1.99, [AT_A_SIXTH, AT_A_HALF], AT_A_SIXTH, AT_A_HALF, False),
        (1.17, [AT_A_SIXTH, AT_A_HALF], AT_A_HALF, AT_A_HALF, True),
    ],
)
def test_a_trial_begins_or_resumes_if_its_next_pause_and_one_completion_can_be_paid(
    total: float, trials: list[TrialRecord], best: TrialRecord | None, candidate: TrialRecord, is_affordable: bool
) -> None:
    assert TrainingBudget(total, LADDER, POINTS).account(trials, best).affords(candidate) is is_affordable


@pytest.mark.parametrize(("total", "is_affordable"), [(1.99, False), (2.0, True)])
def test_without_rungs_every_trial_needs_a_full_run(total: float, is_affordable: bool) -> None:
    assert TrainingBudget(total).account([COMPLETE], None).affords(NEW) is is_affordable
    assert TrainingBudget(total).account([running(1)], None).affords(NEW) is is_affordable


def test_a_trial_that_completes_whatever_it_reports_needs_a_full_run() -> None:
    hedged = Ladder((1 / 6, 1 / 2), 2, complete_first=1)
    budget = TrainingBudget(1.2, hedged, POINTS)
    assert not budget.account([running(0)]).affords(NEW)
    assert TrainingBudget(2.0, hedged, POINTS).account([running(0)]).affords(NEW)


def test_a_probe_needs_what_it_costs_up_to_the_last_rung() -> None:
    probed = Ladder((1 / 6, 1 / 2), 2, probe_first=1)
    for total, ladder, is_affordable in ((1.49, probed, False), (1.5, probed, True), (1.49, LADDER, True)):
        account = TrainingBudget(total, ladder, POINTS).account([running(0)])
        assert account.affords(NEW) is is_affordable


def test_a_trial_at_a_rung_reserves_what_it_costs_from_there() -> None:
    at_rung = running(1, 0.5, 0.4)
    assert TrainingBudget(1.0, LADDER, POINTS).account([at_rung]).affords(at_rung)
    assert not TrainingBudget(0.99, LADDER, POINTS).account([at_rung]).affords(at_rung)


@pytest.mark.parametrize("promoted", [AT_A_SIXTH, running(1), replace(AT_A_SIXTH, state=TrialState.INTERRUPTED)])
def test_a_trial_promoted_by_hand_reserves_its_completion_and_is_trained_in_any_case(promoted: TrialRecord) -> None:
    trials = [promoted, replace(AT_A_SIXTH, number=7)]
    for candidate, needed in ((NEW, 1.0), (trials[1], 5 / 6)):
        total = full_runs_of(trials) + 1.0 - full_runs(promoted) + needed
        for budget, is_affordable in ((total, True), (total - 0.01, False)):
            account = TrainingBudget(budget, LADDER, POINTS).account(trials, by_hand={1})
            assert account.affords(candidate) is is_affordable
            assert account.affords(promoted)


def test_where_evaluations_are_unknown_the_latest_seen_at_a_rung_is_reserved() -> None:
    unknown = TrainingBudget(1.9, LADDER)
    assert not unknown.account([running(1)]).affords(NEW)  # it may be evaluated at its end only
    seen = trial(1, 0.5, epochs=(6,))
    assert unknown.account([seen, running(2)]).affords(NEW)  # a third each, and two thirds for one of them


def test_a_trial_costs_what_it_has_trained_also_if_only_its_reports_tell() -> None:
    assert [full_runs(each) for each in (AT_A_HALF, COMPLETE, FAILED, NEW)] == [0.5, 1.0, 0.4, 0.0]
    study = _Study(n_trials=8, budget=20.0)
    assert progress_in_words(study, [COMPLETE, FAILED]) == "2 of 8 trials and 1.4 of 20 full training runs"
    assert progress_in_words(_Study(n_trials=None, budget=None), [FAILED]) == "1 trial"


class _Study:
    def __init__(self, n_trials: int | None, budget: float | None) -> None:
        self.n_trials, self.budget = n_trials, budget


@pytest.mark.parametrize("budget", [0, 0.5, -3, math.nan, math.inf, True, "20"])
def test_a_budget_that_completes_no_trial_is_refused_before_any_work(tmp_path: Path, budget: Any) -> None:
    with pytest.raises(StudyError, match=r"budget must be None or a number of full training runs of at least 1"):
        search(tmp_path, None, budget=budget)
    assert not (tmp_path / "study").exists()


def test_without_a_budget_a_search_has_twenty_trials_by_default(tmp_path: Path) -> None:
    class Ends(HearsNotices):
        def on_search_begin(self, study: Any, records: Any, notes: Any) -> None:
            raise RuntimeError(f"{study.n_trials} trials")

    with pytest.raises(RuntimeError, match=r"^20 trials$"):
        search(tmp_path, None, progress=Ends())


def test_without_rungs_as_many_trials_train_as_there_are_runs(tmp_path: Path) -> None:
    events = HearsNotices()
    records = records_of(search(tmp_path, None, budget=3, progress=events))
    assert [each.state for each in records] == [TrialState.COMPLETE] * 3
    assert "budget 3 full training runs" in events.notes
    assert events.notices[-1] == "the search ends: the budget of 3 full training runs is exhausted (3)"


def test_what_is_reached_first_ends_the_search(tmp_path: Path) -> None:
    assert len(records_of(search(tmp_path / "trials", 2, budget=5))) == 2
    assert len(records_of(search(tmp_path / "budget", 5, budget=2.5))) == 2


@pytest.mark.parametrize("limit", [{}, {"trial_max_epochs": 3}], ids=["to completion", "half of that"])
def test_a_budget_buys_more_trials_where_they_pause_and_is_not_overshot(tmp_path: Path, limit: dict[str, Any]) -> None:
    records = records_of(search(tmp_path, None, budget=4, pruner="rungs", trainer=SIX_EPOCHS, **limit))
    assert len(records) > 4
    assert 3.0 < full_runs_of(records) <= 4.0 + 1e-6
    assert sum(each.state.has_result for each in records) >= 2
    settings = json.loads((tmp_path / "study" / "study.json").read_text())
    assert (settings["n_trials"], settings["budget"]) == (None, 4)
    assert settings["defaults"]["ladder"]["complete_first"] == 1  # that of eight trials


@pytest.mark.slow
def test_a_larger_budget_continues_with_the_paused_trials(tmp_path: Path) -> None:
    options: dict[str, Any] = {"pruner": Ladder((1 / 6, 1 / 2), 2), "trainer": SIX_EPOCHS}
    before = records_of(search(tmp_path, None, budget=3, **options))
    paused = {each.number for each in before if each.state is TrialState.PAUSED}
    assert paused
    again = records_of(search(tmp_path, None, budget=3, **options))
    assert [each.to_json() for each in again] == [each.to_json() for each in before]
    events = HearsNotices()
    after = records_of(search(tmp_path, None, budget=4, progress=events, **options))
    assert any(each.startswith("budget 4 full training runs, of which ") for each in events.notes)
    assert full_runs_of(before) <= 3.0 + 1e-6 < full_runs_of(after) <= 4.0 + 1e-6
    assert any(each.number in paused and full_runs(each) > full_runs(before[each.number]) for each in after)


@pytest.mark.slow
def test_what_is_noted_of_a_trial_at_a_rung_keeps_when_it_was_trained_before(tmp_path: Path) -> None:
    class Interrupts(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if Path(args.output_dir).name == "run-5" and state.global_step == 2:
                raise KeyboardInterrupt

    class ReadsRecord(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if Path(args.output_dir).name == "run-5" and state.global_step == 6:
                noted.update(json.loads((Path(args.output_dir) / "trial.json").read_text()))

    noted: dict[str, Any] = {}
    options: dict[str, Any] = {"budget": 6, "pruner": Ladder((1 / 6, 1 / 2), 2), "trainer": SIX_EPOCHS}
    with pytest.raises(SearchInterrupted):
        search(tmp_path, None, Interrupts(), **options)
    search(tmp_path, None, ReadsRecord(), **options)
    assert len(noted["reports"]) == 1  # it has passed a rung
    assert len(noted["spans"]) == 1


@pytest.mark.slow
def test_a_trial_at_a_rung_leaves_the_budget_to_trials_that_another_search_has_just_taken(tmp_path: Path) -> None:
    class TakesTrials(HearsNotices, TrainerCallback):
        """Another search that takes twenty new trials, which are not on disk yet, while one is about to reach a rung.

        Its process dies when that trial has ended.
        """

        session = Session(tmp_path / "study")
        steps = 0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if Path(args.output_dir).name == "run-5" and not self.ended_so_far():
                self.steps = state.global_step
            if self.steps == 3 and not self.session.is_alive(self.session.name):
                self.session.begin()
                about: dict[str, Any] = {"user_attrs": {"hpsearch:session": self.session.name}}
                taken = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING, **about)
                load(tmp_path / "study").add_trials([taken] * 20)

        def on_trial_end(self, record: TrialRecord) -> None:
            super().on_trial_end(record)
            if record.number == 5 and len(self.ended_so_far()) == 1:
                self.session.end()

        def ended_so_far(self) -> list[TrialRecord]:
            return [each for each in self.ended if each.number == 5]

    other = TakesTrials()
    options: dict[str, Any] = {"budget": 6, "pruner": Ladder((1 / 6, 1 / 2), 2), "trainer": SIX_EPOCHS}
    records = records_of(search(tmp_path, None, other, progress=other, **options))
    assert other.steps == 4  # alone, it would be promoted
    assert 5.0 < full_runs_of(records) <= 6.0 + 1e-6


def test_a_trial_that_fails_before_its_first_evaluation_costs_what_it_has_trained(tmp_path: Path) -> None:
    failing = AtStep(_fail, run=0, step=3)
    first, *others = records_of(search(tmp_path, None, failing, budget=3, trainer=SIX_EPOCHS))
    assert (first.state, first.reports) == (TrialState.FAILED, ())
    assert full_runs(first) in (2 / 24, 3 / 24)
    assert [each.state for each in others] == [TrialState.COMPLETE] * 2


def _fail() -> None:
    raise RuntimeError("out of luck")


def test_the_summary_and_the_table_of_a_stored_study_know_the_budget(tmp_path: Path) -> None:
    best = search(tmp_path, None, budget=1)
    stored = StoredStudy.read(tmp_path / "study")
    assert (stored.n_trials, stored.budget) == (None, 1.0)
    assert budget_in_words(stored, records_of(best)) == "; 1 of 1 full training runs"


@pytest.mark.process
def test_two_workers_do_not_overshoot_the_budget(tmp_path: Path) -> None:
    best = search_in_workers(tmp_path, None, budget=3, pruner=Ladder((1 / 6, 1 / 2), 2), n_jobs=2, trainer=SIX_EPOCHS)
    records = records_of(best)
    assert 2.0 < full_runs_of(records) <= 3.0 + 1e-6
    assert any(each.state is TrialState.COMPLETE for each in records)


@pytest.mark.parametrize("limit", ["budget", "max_epochs"])
def test_a_limit_on_training_alone_needs_an_end_of_failures_that_cost_nothing(limit: str) -> None:
    objectives = resolve_objectives("loss", "minimize", has_metrics=True)
    limits: dict[str, Any] = {limit: 2, "max_failures": None}
    with pytest.raises(StudyError, match=f"{limit}= without n_trials needs max_failures"):
        Study("s", Path("s"), SearchSpace(RATE), objectives, None, **limits)
    Study("s", Path("s"), SearchSpace(RATE), objectives, None, timeout=60.0, **limits)  # which ends them


def test_a_study_without_any_limit_needs_a_number_of_trials() -> None:
    objectives = resolve_objectives("loss", "minimize", has_metrics=True)
    with pytest.raises(StudyError, match="n_trials must be a whole number"):
        Study("s", Path("s"), SearchSpace(RATE), objectives, None)
