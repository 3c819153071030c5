"""What a search does next follows from its trials and rules alone: what docs/how-search-decides.md says, in tables."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch import Ladder, TrialRecord
from hpsearch.search.decisions.decide import (
    STOPPED_BY_HAND,
    Closing,
    Decision,
    End,
    Prune,
    Resume,
    Rules,
    Snapshot,
    Start,
    Stop,
    Wait,
    decide,
    judge,
)
from hpsearch.search.decisions.ladder import ladder_for
from hpsearch.search.decisions.paused_limit import PausedLimit
from hpsearch.search.decisions.training_budget import TrainingBudget, full_runs_of
from hpsearch.search.trial_record import TrialState
from tests.support.at_rungs import GO_ON, PAUSE, PRUNE, rungs, running, trial
from tests.support.simulated_searches import SimulatedSearch

THIRD = Ladder((1 / 18, 1 / 6, 1 / 2), 3)
POINTS = (1 / 18, 1 / 6, 1 / 2, 1.0)


def complete(number: int, *losses: float, **changes: Any) -> TrialRecord:
    return trial(number, *(losses or (0.5, 0.4, 0.3, 0.2)), state=TrialState.COMPLETE, **changes)


def ended(number: int, state: TrialState = TrialState.FAILED) -> TrialRecord:
    return TrialRecord(number, f"run-{number}", state, {})


def half_done(number: int) -> TrialRecord:
    return ended(number, TrialState.INTERRUPTED)


def paused(*losses: float, begin: int = 0, **changes: Any) -> list[TrialRecord]:
    """Return trials that are paused at the first rung."""
    return [trial(number, loss, **changes) for number, loss in enumerate(losses, begin)]


def rules(n_trials: int | None = 30, budget: float | None = None, **changes: Any) -> Rules:
    """Return rules with the rungs of 0.8.0."""
    limit = None if budget is None else TrainingBudget(budget, THIRD, POINTS)
    return Rules(n_trials, rungs(n_trials, budget=budget), limit, **changes)


def in_full(n_trials: int | None = 30, budget: float | None = None) -> Rules:
    return Rules(n_trials, None, None if budget is None else TrainingBudget(budget))


def decided(rules: Rules, *trials: TrialRecord, **changes: Any) -> Decision:
    return decide(Snapshot(rules, tuple(sorted(trials, key=lambda each: each.number)), **changes))


BEST_OF_THREE = paused(0.5, 0.4, 0.6)


@pytest.mark.parametrize(
    ("decision", "trials", "rule"),
    [
        # A new trial starts while the total is not reached; what has ended, runs or is paused is part of it.
        (Start(), [], rules(1)),
        (Start(), [complete(0), running(1)], in_full(3)),
        (Wait(), [complete(0), running(1), running(2)], in_full(3)),
        (End(), [complete(0), ended(1), ended(2, TrialState.PRUNED)], in_full(3)),
        (Start(), [complete(0), ended(1, TrialState.REFUSED)], in_full(2)),  # it does not count
        # A half-done trial resumes first; it counts once it has ended.
        (Resume(1), [complete(0), half_done(1), half_done(2), *paused(0.1, 0.2, 0.3, begin=3)], rules()),
        (End(), [complete(0), complete(1), half_done(2)], in_full(2)),
        # A free worker resumes the best promotable trial, or starts a new one if there is none.
        (Resume(1), BEST_OF_THREE, rules()),
        (Start(), BEST_OF_THREE[:2], rules()),
        (Start(), [running(0, 0.5), trial(1, 0.6), trial(2, 0.7)], rules()),
        # The highest rung comes first.
        (Resume(7), [*paused(0.1, 0.2, 0.3), *(trial(number, 0.5, number / 10) for number in (7, 8, 9))], rules()),
        # Before that, those are pruned that more trials have overtaken than can be promoted from their rung.
        (Prune(tuple(range(3, 10))), paused(*[0.1] * 9, 0.2), rules(10)),
        # Nothing can start, and trials are running: their reports may let others resume.
        (Wait(), [*BEST_OF_THREE[:2], running(2)], rules(3)),
        # The last chance: none that was at a rung is complete, so the best paused trial resumes, of the highest rung.
        (Resume(1), BEST_OF_THREE[:2], rules(2)),
        (Resume(1), [trial(0, 0.1), trial(1, 0.5, 0.4)], rules(2)),
        # What is paused at the end is pruned, and then the search ends.
        (Prune((0,)), [trial(0, 0.9), *(complete(number, *[0.1] * 4) for number in (1, 2, 3))], rules(4)),
        (End(), [complete(number) for number in range(3)], rules(3)),
        # Trials that paused in an earlier session resume where there are no rungs, after the half-done ones.
        (Resume(2), [trial(0, 0.5), trial(1, 0.5), half_done(2)], in_full()),
        (Resume(0), [trial(0, 0.5), trial(1, 0.5)], in_full()),
    ],
)
def test_a_free_slot_does_what_the_docs_say(decision: Decision, trials: list[TrialRecord], rule: Rules) -> None:
    assert decided(rule, *trials) == decision


def test_trials_whose_folders_were_deleted_count() -> None:
    assert decided(in_full(2), complete(1), deleted=1) == End()
    assert decided(in_full(3), complete(1), deleted=1) == Start()


def test_a_trial_promoted_by_hand_resumes_before_others_and_is_not_judged() -> None:
    by_hand = frozenset({2})
    assert decided(rules(), *BEST_OF_THREE, by_hand=by_hand) == Resume(2, by_hand=True)
    assert decided(rules(10), *paused(*[0.1] * 9, 0.2), by_hand=frozenset({9})) == Resume(9, by_hand=True)
    trials = (*paused(0.1, 0.2), running(2, 0.9))
    assert judge(Snapshot(rules(), trials, by_hand=by_hand), 2) == GO_ON
    assert judge(Snapshot(rules(), trials), 2) == PAUSE


@pytest.mark.parametrize(
    ("decision", "trials", "changes"),
    [
        # A trial that the user stops ends with the value it has, also when a limit ends the session.
        (Stop(1, STOPPED_BY_HAND), BEST_OF_THREE, {"stopped": frozenset({1})}),
        (Stop(1, STOPPED_BY_HAND), BEST_OF_THREE, {"stopped": frozenset({1}), "closing": Closing("enough")}),
        (Stop(1, STOPPED_BY_HAND), BEST_OF_THREE, {"stopped": frozenset({1}), "is_paused": True}),
        # One without a value resumes, and stops after its next evaluation; a running one is told by its report.
        (Resume(3), [*BEST_OF_THREE, half_done(3)], {"stopped": frozenset({3})}),
        (Start(), [running(0, 0.5)], {"stopped": frozenset({0})}),
        # A requested trial comes before promotions, after half-done trials, and although everything was tried.
        (Start(), BEST_OF_THREE, {"has_requested": True}),
        (Resume(3), [*BEST_OF_THREE, half_done(3)], {"has_requested": True}),
        (Start(), [complete(0)], {"has_requested": True, "nothing_new": "everything was tried"}),
        (End("enough", is_early=True), [complete(0)], {"has_requested": True, "closing": Closing("enough")}),
        # While the user has paused the search, nothing starts or resumes; a limit ends it all the same.
        (Wait(), [*BEST_OF_THREE, half_done(3)], {"is_paused": True}),
        (Wait(), [], {"is_paused": True, "has_requested": True}),
        (End("enough", is_early=True), [half_done(3)], {"is_paused": True, "closing": Closing("enough")}),
    ],
)
def test_the_requests_of_the_user_come_first(
    decision: Decision, trials: list[TrialRecord], changes: dict[str, Any]
) -> None:
    assert decided(rules(), *trials, **changes) == decision


def test_another_total_of_trials_changes_how_many_can_be_promoted() -> None:
    few, trials = rules(10), paused(*[0.1] * 9, 0.2)
    assert few.rungs is not None
    assert isinstance(decided(few, *trials), Prune)
    assert decided(Rules(100, few.rungs.with_total(100)), *trials) == Resume(0)
    assert isinstance(decided(few, *trials), Prune)  # the other rungs are as before


def test_a_requested_trial_waits_for_the_total_and_the_budget() -> None:
    assert decided(in_full(2), complete(0), complete(1), has_requested=True) == End()
    end = End(EXHAUSTED.format(1.5, 1))
    assert decided(rules(None, 1.5), complete(0), has_requested=True, next_number=1) == end


def test_the_worst_are_pruned_where_too_many_are_paused() -> None:
    trials = paused(0.3, 0.1, 0.5, 0.4, 0.2)
    few = rules(None, 100.0, paused_limit=PausedLimit(4))
    assert decided(few, *trials) == Prune((2,), "more than 4 trials are paused (max_paused)")
    small = rules(None, 100.0, paused_limit=PausedLimit(most_bytes=35.0))
    decision = decided(small, *trials, sizes=dict.fromkeys(range(5), 10))
    assert isinstance(decision, Prune)
    assert (decision.numbers, "(max_paused_bytes)" in str(decision.limit)) == ((3, 2), True)


def test_of_promotable_trials_the_one_with_the_largest_expected_improvement_resumes() -> None:
    def rating(candidates: Any, known: Any) -> list[float]:
        return [float(each.number == 2) for each in candidates]

    assert decided(rules(), *BEST_OF_THREE, rating=rating) == Resume(2)


@pytest.mark.parametrize(
    ("closing", "decision"),
    [
        (Closing("enough"), End("enough", is_early=True)),
        (Closing("the time is over", selects_best=True), Stop(1, "the time is over")),
        (Closing("the time is over", selects_best=True, lost=frozenset({1})), Stop(0, "the time is over")),
        (Closing("over", selects_best=True, lost=frozenset({0, 1, 2})), End("over", is_early=True)),
    ],
)
def test_nothing_starts_or_resumes_when_a_limit_ends_the_session(closing: Closing, decision: Decision) -> None:
    trials = [*BEST_OF_THREE, half_done(3), running(4)]
    assert decided(rules(), *trials, closing=closing) == decision


def test_a_limit_selects_the_best_paused_trial_only_if_it_is_better_than_all_results() -> None:
    closing = Closing("over", selects_best=True)
    assert decided(rules(), *BEST_OF_THREE, complete(3, 0.5, 0.45), closing=closing) == Stop(1, "over")
    assert decided(rules(), *BEST_OF_THREE, complete(3, 0.5, 0.39), closing=closing) == End("over", is_early=True)
    breaks = replace(BEST_OF_THREE[1], violations={"size": 1.0})
    assert decided(rules(), BEST_OF_THREE[0], breaks, closing=closing) == Stop(0, "over")
    assert decided(in_full(), *BEST_OF_THREE, closing=closing) == End("over", is_early=True)
    assert decided(in_full(None), *BEST_OF_THREE, closing=closing) == End("over"), "there is no other limit"


@pytest.mark.parametrize(
    ("trials", "decision"),
    [
        ([complete(0)], End("everything was tried", is_early=True)),
        ([complete(0), running(1)], Wait()),
        ([half_done(0)], Resume(0)),
        (BEST_OF_THREE, Resume(1)),
        (BEST_OF_THREE[:2], Resume(1)),  # its last chance
        ([trial(0, 0.9), *(complete(number, *[0.1] * 4) for number in range(1, 4))], Prune((0,))),
    ],
)
def test_where_there_is_no_new_trial_others_come_to_their_end(trials: list[TrialRecord], decision: Decision) -> None:
    few = rules(9)  # of nine trials, three at the most complete in the end
    assert decided(few, *trials, nothing_new="everything was tried") == decision


def test_a_search_that_has_reached_its_total_does_not_end_early() -> None:
    assert decided(in_full(2), complete(0), complete(1), nothing_new="everything was tried") == End()
    assert decided(in_full(3), complete(0), complete(1), nothing_new="all") == End("all", is_early=True)


def test_the_end_waits_for_processes_that_are_recording_theirs() -> None:
    assert decided(in_full(1), complete(0), settling=1) == Wait()
    assert decided(in_full(2), complete(0), settling=1) == Start()


EXHAUSTED = "the budget of {:g} full training runs is exhausted ({:.3g})"


@pytest.mark.parametrize(
    ("budget", "trials", "decision"),
    [
        # A trial starts if it can be brought to its first rung, and one trial completed.
        (1.5, [complete(0)], End(EXHAUSTED.format(1.5, 1), is_early=False)),
        (2.0, [complete(0)], Start()),
        # Half-done trials come first, also where they cannot be paid: then nothing new starts.
        (2.0, [complete(0), half_done(1)], Resume(1)),
        (1.99, [complete(0), half_done(1)], End(EXHAUSTED.format(1.99, 1))),
        # Paused trials are promoted only if the budget pays for it.
        (1.5, BEST_OF_THREE, Resume(1)),
        (1.1, BEST_OF_THREE, End(EXHAUSTED.format(1.1, 1 / 6))),
        # They stay paused at the end: a larger budget may resume them.
        (
            4.2,
            [*(complete(number, *[0.1] * 4) for number in range(4)), trial(4, 0.9)],
            End(EXHAUSTED.format(4.2, 4 + 1 / 18)),
        ),
    ],
)
def test_a_budget_starts_and_resumes_only_what_it_can_pay(
    budget: float, trials: list[TrialRecord], decision: Decision
) -> None:
    assert decided(rules(None, budget), *trials, next_number=len(trials)) == decision


def test_a_trial_at_a_rung_continues_pauses_or_is_pruned() -> None:
    def at_rung(loss: float, *others: TrialRecord, **changes: Any) -> Any:
        trials = (*others, running(len(others), loss))
        return judge(Snapshot(rules(**changes), trials), len(others))

    assert at_rung(0.3, *paused(0.4, 0.5)) == GO_ON
    assert at_rung(0.45, *paused(0.4, 0.5)) == PAUSE
    assert at_rung(0.9, *paused(*[0.1] * 9), n_trials=10) == PRUNE
    assert at_rung(0.3, *paused(0.4, 0.5), n_trials=None, budget=1.2) == PAUSE  # it would be promoted, but not paid
    assert judge(Snapshot(in_full(), (running(0, 0.9),)), 0) == GO_ON
    between = running(0, 0.5, 0.5, epochs=(1, 2))
    assert judge(Snapshot(rules(), (between,)), 0) == GO_ON


# Properties.

ladders = st.sampled_from([THIRD, Ladder((1 / 6, 1 / 2)), Ladder((1 / 2,), 2, complete_first=1, complete_every=4)])
searches = settings(deadline=None, derandomize=True, database=None, max_examples=60)


def of_ladder(
    ladder: Ladder, n_trials: int | None, budget: float | None = None, limit: int = 50
) -> Callable[[], Rules]:
    def make() -> Rules:
        paid = None if budget is None else TrainingBudget(budget, ladder)
        return Rules(n_trials, rungs(n_trials, ladder=ladder, budget=budget), paid, PausedLimit(limit))

    return make


def by_hand(now: Snapshot) -> Snapshot:
    """Promote every seventh trial by hand, and rate trials by their numbers."""
    promoted = frozenset(each.number for each in now.trials if each.number % 7 == 3 and each.state.is_open)
    return replace(now, by_hand=promoted, rating=lambda candidates, known: [each.number % 5 for each in candidates])


@pytest.mark.slow
@searches
@given(
    ladder=ladders,
    n_trials=st.integers(1, 40),
    workers=st.integers(1, 50),
    seed=st.integers(0, 1000),
    failing=st.sampled_from([0.0, 0.3, 1.0]),
    limit=st.integers(3, 50),
    change=st.sampled_from([lambda now: now, by_hand]),
)
def test_each_trial_of_the_total_begins_once_and_comes_to_an_end(
    ladder: Ladder,
    n_trials: int,
    workers: int,
    seed: int,
    failing: float,
    limit: int,
    change: Callable[[Snapshot], Snapshot],
) -> None:
    rule = of_ladder(ladder, n_trials, limit=limit)()
    search = SimulatedSearch(rule, workers, seed, failing=failing, change=change)
    assert search.run() == End()
    assert len(search.trials) == n_trials
    assert all(each.state.is_counted for each in search.trials.values())
    if search.count(TrialState.FAILED) == 0:
        assert search.count(TrialState.COMPLETE) > 0


@pytest.mark.slow
@searches
@given(ladder=ladders, budget=st.floats(1.0, 12.0), workers=st.integers(1, 8), seed=st.integers(0, 1000))
def test_a_budget_is_not_overshot_and_completes_a_trial(ladder: Ladder, budget: float, workers: int, seed: int) -> None:
    search = SimulatedSearch(of_ladder(ladder, None, budget)(), workers, seed)
    end = search.run()
    assert end.reason is not None
    assert not end.is_early
    assert search.spent <= budget + 1e-6
    assert search.count(TrialState.COMPLETE) > 0
    assert search.count(TrialState.RUNNING, TrialState.INTERRUPTED) == 0


@pytest.mark.slow
@searches
@given(
    ladder=ladders,
    n_trials=st.integers(1, 30),
    workers=st.integers(1, 8),
    seed=st.integers(0, 1000),
    change=st.sampled_from([lambda now: now, by_hand]),
)
def test_nothing_is_remembered_between_decisions(
    ladder: Ladder, n_trials: int, workers: int, seed: int, change: Callable[[Snapshot], Snapshot]
) -> None:
    make = of_ladder(ladder, n_trials)
    once, anew = (
        SimulatedSearch(each, workers, seed, failing=0.1, killed=0.1, change=change) for each in (make(), make)
    )
    assert once.run() == anew.run()
    assert once.decisions == anew.decisions
    assert once.trials == anew.trials


@searches
@given(ladder=ladders, n_trials=st.integers(1, 30), workers=st.integers(1, 8), seed=st.integers(0, 1000))
def test_trials_whose_processes_are_killed_come_to_their_end_all_the_same(
    ladder: Ladder, n_trials: int, workers: int, seed: int
) -> None:
    search = SimulatedSearch(of_ladder(ladder, n_trials)(), workers, seed, killed=0.3)
    assert search.run() == End()
    assert len(search.trials) == n_trials
    assert all(each.state.is_counted for each in search.trials.values())


@pytest.mark.parametrize("factor", [2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_promotions_do_not_depend_on_the_order_in_which_trials_came_to_a_rung(factor: int, seed: int) -> None:
    """Of trials that are all paused at one rung, the same are promoted, in the same order, whoever came first."""
    losses = {f"run-{name}": name / 10 for name in range(12)}

    def promoted(names: list[str]) -> list[str]:
        rule = Rules(40, rungs(40, ladder=Ladder((1 / 6, 1 / 2), factor)))
        trials = [replace(trial(number, 0.9, losses[name]), name=name) for number, name in enumerate(names)]
        found = []
        while isinstance(decision := decided(rule, *trials), Resume):
            found.append(trials[decision.number].name)
            done = (*trials[decision.number].reports, *running(0, *[losses[found[-1]]] * 3).reports[2:])
            trials[decision.number] = replace(trials[decision.number], state=TrialState.RUNNING, reports=done)
        return found

    shuffled = list(losses)
    random.Random(seed).shuffle(shuffled)
    assert promoted(list(losses)) == promoted(shuffled) == list(losses)[: 12 // factor]


def test_a_search_ends_at_once_when_a_limit_is_reached_and_selects_the_best_paused_trial() -> None:
    def over(now: Snapshot) -> Snapshot:
        is_over = full_runs_of(now.trials) >= 3.0
        is_last = not now.of(TrialState.RUNNING)
        return replace(now, closing=Closing("over", selects_best=is_last)) if is_over else now

    search = SimulatedSearch(of_ladder(THIRD, 40)(), 1, 5, evaluations=18, change=over)
    assert search.run() == End("over", is_early=True)
    assert 3.0 <= search.spent < 4.0
    results = [each.values[0] for each in search.trials.values() if each.state is TrialState.COMPLETE]
    stopped = [each.reports[-1].value for each in search.trials.values() if each.state is TrialState.STOPPED]
    left = [each.reports[-1].value for each in search.trials.values() if each.state is TrialState.PAUSED]
    assert min([*results, *stopped]) <= min(left)


@pytest.mark.slow
def test_two_hundred_workers_search_as_few_do() -> None:
    search = SimulatedSearch(Rules(400, rungs(400, ladder=ladder_for(1000))), 200, evaluations=18)
    assert search.run() == End()
    assert len(search.trials) == 400
    assert 0.02 < search.count(TrialState.COMPLETE) / 400 < 0.2
