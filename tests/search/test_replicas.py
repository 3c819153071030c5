"""Which trial is repeated with another seed, which is the best by its mean, and with what chance: on records alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpsearch import TrialRecord, TrialState
from hpsearch.search.decisions.decide import End, Repeat, Resume, Rules, Snapshot, Start, Wait, decide
from hpsearch.search.decisions.repeats import Confirmation, Repeats
from hpsearch.search.decisions.training_budget import TrainingBudget
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.metrics.replicas import runs_of
from hpsearch.search.metrics.selection import best_records, ranking
from hpsearch.search.result.chance_of_best import RunsOfTrials, chance_of_best, chances_of_best
from hpsearch.search.result.dataframe import trials_dataframe
from hpsearch.search.result.findings.repeated_best import repeated_best as sentences
from hpsearch.search.store.checked_json import Unreadable
from hpsearch.search.store.retention import kept_records
from hpsearch.search.store.stored_record import record_from_json
from hpsearch.search.trial_record import Replica

LOSS = resolve_objectives(None, None, has_metrics=False)
TWO = resolve_objectives(["loss", "size"], ["minimize", "minimize"], has_metrics=True)


def run(number: int, *values: float, of: tuple[int, int] | None = None, **changes: Any) -> TrialRecord:
    """Return a complete trial, or with `of`, a replica: the number of its trial, and its offset."""
    origin = None if of is None else Replica(*of).origin
    state = TrialState.COMPLETE
    record = TrialRecord(number, f"run-{number}", state, {}, values=values, fraction=1.0, seed=42, origin=origin)
    return replace(record, **changes)


def trials(*values: float) -> list[TrialRecord]:
    return [run(number, value) for number, value in enumerate(values)]


def replica(number: int, of: int, offset: int, value: float = 0.5, **changes: Any) -> TrialRecord:
    return run(number, value, of=(of, offset), **changes)


def due(records: list[TrialRecord], most: int = 3, more: bool = False, **changes: Any) -> tuple[int, int] | None:
    found = Repeats(most, LOSS, **changes).next(records, more_may_come=more)
    return None if found is None else (found.trial, found.offset)


NINE = trials(0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
SECOND = [replica(9, 8, 1, 0.15), replica(10, 7, 1, 0.25), replica(11, 6, 1, 0.35)]


@pytest.mark.parametrize(
    ("records", "more", "expected"),
    [
        ([], False, None),
        (trials(0.5, 0.4), True, None),  # a third of two trials is none yet
        (trials(0.5, 0.4), False, (1, 1)),
        (trials(0.5, 0.4, 0.6), True, (1, 1)),
        (NINE, True, (8, 1)),
        ([*NINE, SECOND[0]], True, (7, 1)),
        ([*NINE, replica(9, 8, 1, state=TrialState.RUNNING)], True, (7, 1)),
        ([*NINE, *SECOND[:2]], True, (6, 1)),
        ([*NINE, *SECOND], True, (8, 2)),
        ([*NINE, *SECOND, replica(12, 8, 2, 0.1)], False, None),
        # the best of two, while a third one may still come: a third of two is none
        ([*NINE, *SECOND[:2], replica(11, 6, 1, state=TrialState.RUNNING)], False, None),
        # a mean that is worse than it looked
        ([*NINE, replica(9, 8, 1, 0.9), *SECOND[1:]], True, (7, 2)),
        # a replica that has failed: its trial gets no further one, and it is not tried again
        ([*NINE, replica(9, 8, 1, state=TrialState.FAILED, values=()), *SECOND[1:]], False, (7, 2)),
        ([*NINE, replica(9, 8, 1, state=TrialState.STOPPED, fraction=0.5), *SECOND[1:]], False, (7, 2)),
    ],
)
def test_the_best_third_of_those_with_as_many_runs_gets_one_more(
    records: list[TrialRecord], more: bool, expected: tuple[int, int] | None
) -> None:
    assert due(records, more=more) == expected


def trained_on_folds_of(complete: int, folds: int) -> list[TrialRecord]:
    """The training runs of this number of complete trials, when no other trial can come."""
    known, rule = trials(*(number / 100 for number in range(complete))), Repeats(folds, LOSS, are_folds=True)
    while (found := rule.next(known, more_may_come=False)) is not None:
        known.append(replace(run(len(known), found.trial / 100), origin=found.origin))
    return known


@pytest.mark.parametrize("folds", [2, 5, 10])
def test_one_complete_trial_in_nine_is_trained_on_all_folds(folds: int) -> None:
    on_all = {2: 9, 5: 3, 10: 3}  # of two folds, a third of the trials
    known = trained_on_folds_of(27, folds)
    assert sum(each.replica is not None and each.replica.offset == folds - 1 for each in known) == on_all[folds]


def test_the_documentation_says_what_folds_cost() -> None:
    page = Path(__file__).parents[2].joinpath("docs/cross-validation.md").read_text()
    rows = re.findall(r"^\| `folds=(\d+)` \|(.*)\|$", page, re.MULTILINE)
    assert {int(folds) for folds, _ in rows} == {2, 3, 5, 10}
    for folds, cells in rows:
        runs = [len(trained_on_folds_of(complete, int(folds))) for complete in (9, 27)]
        shown = [f"{each} training runs, {10 * each} evaluations" for each in runs]
        assert [cell.strip() for cell in cells.split("|")] == [*shown, f"{27 * int(folds)} training runs"]


def test_a_deviation_does_not_take_the_place_of_an_objective_of_its_name() -> None:
    objectives = resolve_objectives(["loss", "loss_std"], ["minimize", "minimize"], has_metrics=True)
    table = trials_dataframe([run(0, 0.5, 0.1), run(1, 0.3, 0.2, of=(0, 1))], objectives)
    row = table.loc[0]
    assert (row["eval_loss"], row["eval_loss_std"]) == pytest.approx((0.4, 0.15))
    assert row["eval_loss_std_of_runs"] == pytest.approx(0.2 / 2**0.5)


def test_trials_that_break_a_constraint_or_were_pruned_are_not_repeated() -> None:
    broken = replace(run(0, 0.1), violations={"size": 1.0})
    pruned = replace(run(1, 0.2), state=TrialState.PRUNED)
    assert due([broken, pruned, run(2, 0.5)]) == (2, 1)


def test_trials_that_cannot_be_trained_again_from_the_beginning_and_copies_are_not_repeated() -> None:
    extended = run(1, 0.1, origin={"request": "a", "kind": "extend", "trial": 0, "arguments": {"max_steps": 9}})
    assert due([run(0, 0.5), extended]) == (0, 1)
    copy = run(1, 0.5, origin={"request": "b", "kind": "retry", "trial": 0, "arguments": {}})
    assert due([run(0, 0.5), copy, replica(2, 0, 1)]) == (0, 2)
    changed = run(1, 0.1, schedule=({"trial": 1, "step": 0, "arguments": {}},))
    assert due([run(0, 0.5), changed]) == (0, 1)


def test_a_trial_with_fewer_runs_that_is_ahead_keeps_its_weights_and_is_named() -> None:
    at = {number: Path(f"run-{number}") for number in range(5)}
    ahead = [run(0, 0.2), replica(1, 0, 1, 0.4), run(2, 0.28), run(3, 0.6), run(4, 0.8)]
    assert [each.number for each in best_records(ahead, LOSS)] == [0]
    ahead = [replace(each, checkpoint=at[each.number]) for each in ahead]
    assert {each.number for each in kept_records(ahead, LOSS, 1)} == {0, 1, 2}
    assert any("`hpsearch confirm` decides" in each for each in sentences(ahead, Repeats(1, LOSS)))


def test_replicas_that_fail_or_change_nothing_are_named() -> None:
    failed = replica(1, 0, 1, state=TrialState.FAILED, values=())
    assert "1 further run failed, so their trials get no more of them: replica 1 of trial 0." in sentences(
        [run(0, 0.5), failed], Repeats(2, LOSS)
    )
    assert any(
        "the seed changes nothing" in each for each in sentences([run(0, 0.5), replica(1, 0, 1)], Repeats(2, LOSS))
    )


def test_a_confirmation_repeats_in_turn_and_ends_when_the_best_is_clear() -> None:
    asked = {"most": 1, "confirmations": (Confirmation((8, 7), 4),)}
    assert due(NINE, more=True, **asked) is None  # all else comes first
    assert due(NINE, **asked) == (8, 1)
    assert due([*NINE, SECOND[0]], **asked) == (7, 1)
    close = [replica(9, 8, 1, 0.3), replica(10, 7, 1, 0.1)]
    assert due([*NINE, *close], **asked) == (7, 2)  # with as many runs, that with the better mean
    assert due([*NINE, replica(9, 8, 1, 0.1001), replica(10, 7, 1, 0.2001)], **asked) is None
    four = [replica(20 + 2 * k + i, 8 - i, k, 0.1 + 0.1 * (k % 2)) for k in (1, 2, 3) for i in (0, 1)]
    assert due([*NINE, *four], **asked) is None


def test_the_best_is_the_trial_whose_mean_is_lowest_when_it_is_shrunk_for_few_runs() -> None:
    records = [*NINE, *SECOND, replica(12, 8, 2, 0.75)]
    ranked = ranking(records, LOSS)
    assert [each.number for each in ranked][:4] == [7, 8, 6, 5]
    assert ranked[1].values == (pytest.approx((0.1 + 0.15 + 0.75) / 3),)
    assert [each.number for each in ranking([*NINE, *SECOND], LOSS)][:3] == [8, 7, 6]
    assert ranking(NINE, LOSS)[0] is NINE[8]


NOISY = [*trials(0.9, 0.7, 0.5, 0.3), replica(4, 3, 1, 0.5), replica(5, 2, 1, 0.7)]


@pytest.mark.parametrize(("value", "best"), [(0.39, 3), (0.2, 6), (-5.0, 6)])
def test_a_trial_with_one_run_is_the_best_if_it_is_ahead_by_more_than_its_luck(value: float, best: int) -> None:
    records = [*NOISY, run(6, value)]
    assert [each.number for each in best_records(records, LOSS)] == [best]
    told = sentences(records, Repeats(1, LOSS))[0]
    assert ("on one seed, ahead of the means of trials with several" in told) == (best == 6)


def test_without_noise_the_means_are_in_their_order() -> None:
    same = [replica(9, 8, 1, 0.1), replica(10, 7, 1, 0.2)]
    assert [each.number for each in ranking([*NINE, *same], LOSS)] == [8, 7, 6, 5, 4, 3, 2, 1, 0]


def test_the_front_of_several_objectives_is_that_of_the_means_and_is_repeated_first() -> None:
    records = [run(0, 0.1, 5.0), run(1, 0.2, 4.0), run(2, 0.3, 1.0)]
    repeated = [run(3, 0.5, 5.0, of=(0, 1)), run(4, 0.2, 4.0, of=(1, 1))]
    assert [each.number for each in best_records([*records, *repeated], TWO)] == [1, 2]
    assert Repeats(3, TWO).next([run(0, 0.9, 0.9), run(1, 0.5, 0.5), run(2, 0.6, 0.6)], True) == Replica(1, 1)
    assert [each.number for each in best_records(records, TWO)] == [0, 1, 2]


def test_the_weights_of_the_best_are_those_of_the_run_that_is_nearest_to_the_mean_and_all_its_runs_keep_theirs() -> (
    None
):
    at = {number: Path(f"run-{number}") for number in range(20)}
    records = [replace(each, checkpoint=at[each.number]) for each in [*NINE, *SECOND, replica(12, 8, 2, 0.3)]]
    [best] = best_records(records, LOSS)  # 0.1, 0.15 and 0.3: the mean is 0.183
    assert best.checkpoint == at[9]
    assert {each.number for each in kept_records(records, LOSS, 1)} == {8, 9, 12}
    while_running = {each.number for each in kept_records(records, LOSS, 1, may_be_repeated=True)}
    assert while_running == {8, 7, 6, 9, 10, 11, 12}
    assert kept_records(records, LOSS, 0, may_be_repeated=True) == []
    without = [replace(each, checkpoint=None) if each.number == 9 else each for each in records]
    assert best_records(without, LOSS)[0].checkpoint == at[8]


def decided(*records: TrialRecord, n_trials: int = 3, budget: float | None = None, **changes: Any) -> object:
    limit = None if budget is None else TrainingBudget(budget)
    rules = Rules(n_trials, None, limit, repeats=Repeats(3, LOSS))
    return decide(Snapshot(rules, records, next_number=len(records), **changes))


THREE = trials(0.3, 0.2, 0.1)
RUNNING = TrialState.RUNNING


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (decided(*THREE[:2]), Start()),
        (decided(*THREE, n_trials=6), Repeat(Replica(2, 1))),
        (decided(*THREE, replica(3, 2, 1, state=RUNNING), n_trials=4), Start()),  # replicas are no trials
        (decided(*THREE, replica(3, 2, 1, state=RUNNING)), Wait()),
        (decided(*THREE, replica(3, 2, 1, state=TrialState.INTERRUPTED)), Resume(3)),
        (decided(*THREE, replica(3, 2, 1)), Repeat(Replica(2, 2))),
        (decided(*THREE, replica(3, 2, 1), replica(4, 2, 2)), End()),
        (decided(*THREE[:2], replace(THREE[2], state=RUNNING, values=())), Wait()),
        (decided(*THREE, budget=4.0), Repeat(Replica(2, 1))),
        (decided(*THREE, budget=3.5), End("the budget of 3.5 full training runs is exhausted (3)")),
        (decided(*THREE, is_paused=True), Wait()),
    ],
)
def test_replicas_are_no_trials_and_come_before_new_ones(found: object, expected: object) -> None:
    assert found == expected


def test_the_last_lines_name_the_mean_the_chance_the_provisional_ones_and_missing_repeats() -> None:
    said = sentences([*NINE, *SECOND, replica(12, 8, 2, 0.3)], Repeats(3, LOSS))
    assert said[0].startswith(
        "0.1833 is the mean of trial 8 over 3 seeds (0.1000, 0.1500, 0.3000; standard deviation 0.1)"
    )
    assert "the chance that it is the best trial is" in said[0]
    assert said[1].startswith(
        "Provisional, as they have fewer runs: 0.2250 (trial 7, 2 runs), 0.3250 (trial 6, 2 runs)"
    )
    assert len(said) == 2
    [missing] = sentences(NINE, Repeats(3, LOSS))
    assert "before all repeats were done (next would be replica 1 of trial 8)" in missing
    assert sentences(NINE, Repeats(1, LOSS)) == []


@pytest.mark.slow
def test_the_chance_to_be_the_best_is_calibrated_in_simulated_searches() -> None:
    """100 searches for each of three amounts of noise, relative to the spread among the best ten of 20 trials.

    The stated chances of the lower, middle and upper third of the searches are right to ten points.
    """
    random = np.random.default_rng(1)
    found: list[tuple[float, bool]] = []
    for ratio in (0.5, 1.0, 2.0):
        for draw in range(100):
            true = random.standard_normal(20) if draw % 2 else random.exponential(size=20)
            noise = ratio * np.std(np.sort(true)[:10])
            records = [run(number, value + noise * random.standard_normal()) for number, value in enumerate(true)]
            while (due := Repeats(3, LOSS).next(records, more_may_come=False)) is not None:
                value = true[due.trial] + noise * random.standard_normal()
                records.append(replica(len(records), due.trial, due.offset, value))
            [best] = best_records(records, LOSS)
            chances = chance_of_best(records, LOSS[0])
            assert chances is not None
            found.append((chances[best.number], bool(true.argmin() == best.number)))
    for third in np.array_split(np.array(sorted(found), dtype=float), 3):
        stated, seen = third.mean(axis=0)
        assert abs(stated - seen) < 0.1, (stated, seen)


def test_the_chance_is_unknown_without_repeats_and_high_where_the_noise_is_small() -> None:
    assert chance_of_best(NINE, LOSS[0]) is None
    same = [*NINE, *(replica(9 + offset, 8, offset, 0.1) for offset in (1, 2, 3))]
    assert (chance_of_best(same, LOSS[0]) or {})[8] > 0.98
    equal = RunsOfTrials(np.zeros(2), np.zeros(2), np.ones(2), np.zeros(2))
    assert chances_of_best(equal).sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    "origin",
    [
        {"request": "replica-1", "kind": "replica", "trial": 1, "arguments": {}},
        {"request": "replica-1-2", "kind": "replica", "trial": 3, "arguments": {"offset": 2}},
    ],
)
def test_a_damaged_origin_of_a_replica_is_refused(origin: dict[str, Any]) -> None:
    stored = replica(5, 1, 2).to_json()
    with pytest.raises(Unreadable, match="is not the origin of a replica"):
        record_from_json({**stored, "origin": origin}, Path())


def test_runs_are_in_the_order_of_their_seeds_whenever_they_ended() -> None:
    [runs] = runs_of([replica(7, 0, 2, 0.7), replica(5, 0, 1, 0.5), run(0, 0.3)])
    assert (runs.values, runs.begun) == ([0.3, 0.5, 0.7], 2)
