"""Folds of a cross-validation: how they are made, what is refused, their file, and which trial gets the next one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit, StratifiedKFold, TimeSeriesSplit
from torch.utils.data import IterableDataset

from hpsearch import StudyError, TrialRecord, TrialState
from hpsearch.search.decisions.repeats import Repeats
from hpsearch.search.folds import Folds
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.metrics.selection import best_records
from hpsearch.search.result.chance_of_best import chance_of_best
from hpsearch.search.result.findings.repeated_best import repeated_best
from hpsearch.search.store.checked_json import Unreadable
from hpsearch.search.store.folds_file import FOLDS_FILE, read_folds, write_folds
from hpsearch.search.store.stored_record import record_from_json
from hpsearch.search.study import Study
from hpsearch.search.trial import FixedTrial
from hpsearch.search.trial_record import FOLD, Replica
from hpsearch.searching.make_folds import make_folds

LOSS = resolve_objectives(None, None, has_metrics=False)
USERS = [f"user {i // 5}" for i in range(40)]
KINDS = ["rare" if i % 8 == 0 else "common" for i in range(40)]
TABLE = datasets.Dataset.from_dict({"x": [float(i) for i in range(40)], "user": USERS, "kind": KINDS})
SAMPLES = [{"x": torch.tensor(float(i)), "user": USERS[i], "kind": torch.tensor(i % 4)} for i in range(40)]


def made(folds: Any, data: Any = TABLE, groups: Any = None, stratify: Any = None, seed: int = 42) -> Folds:
    found = make_folds(folds, groups, stratify, data, seed, None if data is not None else "train")
    assert found is not None
    return found


def pairs(folds: Any) -> list[tuple[list[int], list[int]]]:
    return [(list(map(int, train)), list(map(int, evaluation))) for train, evaluation in folds]


def as_pairs(folds: Folds) -> list[tuple[list[int], list[int]]]:
    return pairs((each.train, each.evaluation) for each in folds.splits)


EMPTY = np.zeros(40)
LABELS = np.array(KINDS)
GROUPS = np.array(USERS)


@pytest.mark.parametrize("data", [TABLE, TABLE.with_format("torch"), SAMPLES])
@pytest.mark.parametrize(
    ("given", "options", "expected"),
    [
        (5, {}, lambda: KFold(5, shuffle=True, random_state=42).split(EMPTY)),
        (np.int64(4), {"seed": 7}, lambda: KFold(4, shuffle=True, random_state=7).split(EMPTY)),
        (4, {"groups": "user"}, lambda: GroupKFold(4).split(EMPTY, None, GROUPS)),
        (TimeSeriesSplit(3), {}, lambda: TimeSeriesSplit(3).split(EMPTY)),
        (GroupKFold(2), {"groups": "user"}, lambda: GroupKFold(2).split(EMPTY, None, GROUPS)),
        ([([0, 1], [2]), ([2], np.array([0, 1]))], {}, lambda: [([0, 1], [2]), ([2], [0, 1])]),
        (KFold(3).split(EMPTY), {}, lambda: KFold(3).split(EMPTY)),
    ],
)
def test_folds_are_those_of_scikit_learn(data: Any, given: Any, options: dict[str, Any], expected: Any) -> None:
    if not isinstance(given, (int, np.integer, list)) and not hasattr(given, "split"):
        given = list(KFold(3).split(EMPTY))  # a generator serves one of the cases only
    assert as_pairs(made(given, data, **options)) == pairs(expected())


def test_stratified_folds_have_each_value_as_often_and_groups_stay_together() -> None:
    stratified = made(5, stratify="kind")
    expected = StratifiedKFold(5, shuffle=True, random_state=42).split(EMPTY, LABELS)
    assert as_pairs(stratified) == pairs(expected)
    assert [sum(KINDS[i] == "rare" for i in each.evaluation) for each in stratified.splits] == [1] * 5
    for each in made(4, groups="user", stratify="kind").splits:
        assert not {USERS[i] for i in each.train} & {USERS[i] for i in each.evaluation}
    assert made(4, groups="user", stratify="kind").by == (
        "StratifiedGroupKFold(n_splits=4, random_state=42, shuffle=True), groups='user', stratify='kind'"
    )


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(SAMPLES)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (1, {}, "folds must be a whole number of at least 2, but got 1"),
        (True, {}, "folds must be a whole number of at least 2, but got True"),
        (2.5, {}, "folds must be a number, a splitter of scikit-learn or pairs of indices, but got 2.5"),
        ("5", {}, "folds must be a number, a splitter of scikit-learn or pairs of indices, but got '5'"),
        (41, {}, "folds=41 cannot split the train_dataset: .*n_splits=41 greater than the number of samples"),
        (5, {"stratify": "knd"}, "stratify='knd' is no column of the train_dataset.*Did you mean 'kind'"),
        (5, {"groups": 3}, "groups=3 is no column of the train_dataset: it has 'x', 'user', 'kind'"),
        (9, {"groups": "user"}, "cannot split the train_dataset: .*n_splits=9"),
        (5, {"data": Stream()}, "need a map-style train_dataset, .* but it is a Stream"),
        (5, {"data": None}, r"Only train has the data, so folds must be pairs of indices, such as folds=list\(KFold"),
        (5, {"data": [[1.0]] * 9, "groups": "user"}, "groups='user' is no column .*: its samples are no mappings"),
        (5, {"data": [{"a": [1, 2]}] * 9, "groups": "a"}, "groups='a' must be a column with one value for each"),
        ([([0], [1])], {}, "A cross-validation needs at least 2 folds, but folds has 1"),
        ([([0], [1]), ([0, 1], [1, 2])], {}, "Fold 1 trains on samples that evaluate it: 1 of 2, the first is 1"),
        ([([0], [1, 1]), ([1], [0])], {}, "Fold 0 is evaluated on a sample more than once"),
        ([([0], [1]), ([1], [])], {}, "The evaluation indices of fold 1 must be whole numbers, at least one"),
        ([([0.5], [1]), ([1], [0])], {}, "The training indices of fold 0 must be whole numbers"),
        ([([0], [40]), ([1], [0])], {}, "The evaluation indices of fold 0 must be from 0 to 39, but go from 40 to 40"),
        ([([-1], [1]), ([1], [0])], {"data": None}, "The training indices of fold 0 must be at least 0"),
        ([1, 2], {}, "folds must be pairs of training and evaluation indices, but fold 0 is int"),
        ([([0], [1]), ([1], [0])], {"groups": "user"}, "groups='user' has no effect on folds that are pairs"),
        (KFold, {}, "folds must be a number, a splitter of scikit-learn or pairs of indices, but got <class"),
        (
            StratifiedKFold(3),
            {},
            "cannot split the train_dataset: .* names the column that a stratified splitter needs",
        ),
        (KFold(3), {"stratify": "kind"}, r"stratify='kind' has no effect on folds=KFold\(.*makes the same without it"),
        (GroupKFold(3), {"groups": "user", "stratify": "kind"}, "stratify='kind' has no effect on folds=GroupKFold"),
        (KFold(3, shuffle=True), {}, "makes other folds each time, .* give it a random_state"),
        (5, {"data": [{"a": torch.ones(4)}] * 9, "stratify": "a"}, "stratify='a' must be a column with one value"),
        (None, {"stratify": "kind"}, "stratify='kind' says how folds are made; pass folds too"),
    ],
)
def test_folds_that_cannot_be_are_refused(given: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        made(given, **options)


@pytest.mark.parametrize(
    "given",
    [5, TimeSeriesSplit(3), ShuffleSplit(3, test_size=0.1, random_state=0), [([3, 1, 1], [2]), ([2], [0])]],
)
def test_folds_are_read_from_their_file_as_they_were(given: Any, tmp_path: Path) -> None:
    folds = made(given)
    write_folds(tmp_path, folds)
    read = read_folds(tmp_path)
    assert read is not None
    assert as_pairs(read) == as_pairs(folds)
    assert read.identity == folds.identity
    assert read.identity != made(4, seed=1).identity


def test_there_are_no_folds_without_a_file_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    assert read_folds(tmp_path) is None
    write_folds(tmp_path, made(5))
    huge = '{"by": "x", "samples": 9007199254740991, "folds": [{"evaluation": [0], "train": null}]}'
    for damage in (
        huge,
        '{"by": "x"}',
        "[",
        '{"by": "x", "samples": 3, "folds": [{"evaluation": [-1], "train": null}]}',
    ):
        (tmp_path / FOLDS_FILE).write_text(damage)
        with pytest.raises(StudyError, match=r"folds.json' is damaged"):
            read_folds(tmp_path)
    link = tmp_path / "linked"
    link.mkdir()
    (tmp_path / "elsewhere.json").write_text("{}")
    (link / FOLDS_FILE).symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(StudyError, match="links are not followed"):
        read_folds(link)


def run(number: int, value: float, of: tuple[int, int] | None = None, **changes: Any) -> TrialRecord:
    origin = None if of is None else Replica(*of, FOLD).origin
    return TrialRecord(
        number, f"run-{number}", TrialState.COMPLETE, {}, values=(value,), fraction=1.0, origin=origin, **changes
    )


def table(*columns: list[float]) -> list[TrialRecord]:
    """Return trials with the values of their folds; a column for each fold, shorter than the one before."""
    found = [run(place, value) for place, value in enumerate(columns[0])]
    for fold, column in enumerate(columns[1:], start=1):
        for trial, value in enumerate(column):
            found.append(run(len(found), value, of=(trial, fold)))
    return found


FOLDS = Repeats(5, LOSS, are_folds=True)
SIX = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]


@pytest.mark.parametrize(
    ("records", "more", "expected"),
    [
        (table(SIX[:1]), False, (0, 1)),
        (table(SIX), False, (0, 1)),
        (table(SIX, [0.1]), False, (1, 1)),  # the second fold of all that get it comes before a third one
        (table(SIX, [0.1, 0.2, 0.3]), False, (3, 1)),  # four of six
        (table(SIX, [0.1, 0.2, 0.3, 0.4]), False, (0, 2)),
        (table(SIX, [0.9, 0.2, 0.3, 0.4]), False, (1, 2)),  # by the mean of both
        (table(SIX, [0.1, 0.2, 0.3, 0.4], [0.1]), False, (1, 2)),  # two of six
        (table(SIX, [0.1, 0.2, 0.3, 0.4], [0.1, 0.2]), False, (0, 3)),
        (table(SIX, [0.1, 0.2, 0.3, 0.4], [0.1, 0.2], [0.1, 0.2]), False, (0, 4)),
        (table(SIX, [0.1, 0.2, 0.3, 0.4], [0.1, 0.2], [0.1, 0.2], [0.1]), False, None),
        (table(SIX), True, (0, 1)),
        (table(SIX[:1]), True, None),
    ],
)
def test_the_best_share_gets_the_next_fold(records: list[TrialRecord], more: bool, expected: Any) -> None:
    due = FOLDS.next(records, more_may_come=more)
    assert due == (None if expected is None else Replica(*expected, FOLD))


def study(**changes: Any) -> Study:
    return Study("study", Path("nowhere"), lambda trial: {}, LOSS, **{"n_trials": 5, **changes})


@pytest.mark.parametrize(
    ("limits", "come_last"),
    [({}, True), ({"timeout": 9}, False), ({"budget": 9}, False), ({"max_epochs": 9}, False)],
)
def test_further_folds_wait_for_the_last_trial_unless_a_limit_may_come_before_and_further_seeds_do_not(
    limits: dict[str, Any], come_last: bool
) -> None:
    for several, waits in (({"folds": made(5)}, come_last), ({"repeats": 5}, False)):
        repeats = Repeats.in_search(study(**limits, **several))
        assert repeats.come_last is waits
        assert repeats.next(table(SIX), more_may_come=False) is not None
        assert (repeats.next(table(SIX), more_may_come=True) is None) is waits


def test_folds_and_repeats_are_refused_together() -> None:
    with pytest.raises(StudyError, match="repeats=2 and folds are two ways to train a trial several times"):
        study(folds=made(5), repeats=2)


def test_a_trial_knows_the_fold_of_its_run_and_whether_it_was_asked_for() -> None:
    first, third = FixedTrial({}), FixedTrial({})
    third.origin = Replica(0, 2, FOLD).origin
    assert first.fold is None
    first.folds = third.folds = made(5)
    assert not first.has_read_fold
    for number, trial in ((0, first), (2, third)):
        assert trial.fold is not None
        assert trial.fold.number == number
        assert trial.has_read_fold
        assert trial.seed_offset == 0


def test_a_record_of_a_fold_is_read_as_it_was_and_a_false_origin_is_refused() -> None:
    record = run(7, 0.5, of=(3, 2))
    assert record_from_json(json.loads(json.dumps(record.to_json())), Path("run-7")).replica == Replica(3, 2, FOLD)
    assert str(record.replica) == "fold 2 of trial 3"
    assert not record.is_counted
    damaged = {**record.to_json(), "origin": {**Replica(3, 2, FOLD).origin, "request": "replica-3-2"}}
    with pytest.raises(Unreadable, match="is not the origin of a replica"):
        record_from_json(damaged, Path("run-7"))


def test_the_best_has_the_lowest_mean_beside_others_on_the_same_folds_and_the_sentences_speak_of_folds() -> None:
    hard = table([0.3, 0.4, 0.35], [0.9, 1.0])  # the second fold is harder, which says nothing about the trials
    assert [each.number for each in best_records(hard, LOSS)] == [0]
    assert [each.number for each in best_records(table([0.3, 0.4, 0.1], [0.3, 0.4]), LOSS)] == [2]
    assert [each.number for each in best_records(table([0.3, 0.4], [0.9]), LOSS)] == [0]
    records = table([0.3, 0.5, 0.29], [0.3, 0.7])
    assert [each.number for each in best_records(records, LOSS)] == [0]
    told = " ".join(repeated_best(records, Repeats(2, LOSS, are_folds=True)))
    assert "0.3000 is the mean of trial 0 over 2 folds (0.3000, 0.3000; standard deviation 0)" in told
    assert "Provisional, as they have fewer runs: 0.2900 (trial 2, 1 fold, where trial 0 has 0.3000)." in told
    assert "hpsearch confirm" not in told
    told = " ".join(repeated_best(table([0.3, 0.4]), FOLDS))
    assert "before all folds were done (next would be fold 1 of trial 0)" in told


def test_what_all_trials_have_in_common_on_a_fold_is_no_noise() -> None:
    """The folds differ by 10, the trials by 1, with noise of 0.1: unpaired, nobody could tell them apart."""
    effects, random = np.array([0.0, 10.0, -10.0, 5.0]), np.random.default_rng(0)
    values = np.array([0.0, 1.0, 2.0])[None] + effects[:, None] + random.normal(0, 0.1, (4, 3))
    chances = chance_of_best(table(*values.tolist()), LOSS[0])
    assert chances is not None
    assert chances[0] > 0.98
    equal = chance_of_best(table([0.7] * 7 + [0.8, 0.9], [0.7, 0.7], [0.6, 0.7]), LOSS[0])
    assert equal is not None
    assert equal[0] < 0.9  # a single difference of 0.1
    assert chance_of_best(table([0.0, 1.0], [0.5]), LOSS[0]) is None  # the noise is not known yet
    assert chance_of_best(table([0.0, 1.0]), LOSS[0]) is None


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_the_chance_among_folds_is_calibrated(noise: float) -> None:
    """Over 150 simulated cross-validations, the stated chances of the best are right to 0.12 on average."""
    stated, right = [], []
    for seed in range(150):
        random = np.random.default_rng(seed)
        true = random.normal(size=8)
        values = true[None] + 3 * random.normal(size=(5, 1)) + noise * random.normal(size=(5, 8))
        order = np.argsort(values[:3].mean(axis=0))
        columns = [list(values[fold][order][: (8, 5, 3, 2, 1)[fold]]) for fold in range(5)]
        records = table(*columns)
        chances = chance_of_best(records, LOSS[0])
        assert chances is not None
        best = best_records(records, LOSS)[0].number
        stated.append(chances[best])
        right.append(order[best] == true.argmin())
    assert np.mean(stated) == pytest.approx(np.mean(right), abs=0.12)
