"""A study remembers what it needs of its trials: it keeps and deletes what it would if it looked at all of them."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpsearch.coordinator.study_records import StudyRecords
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.space.search_space import SearchSpace
from hpsearch.search.store.study_folder import StudyFolder
from hpsearch.search.study import Study
from hpsearch.search.trial_record import TrialRecord, TrialState
from tests.support.at_rungs import RATE

STATES = [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.PAUSED, TrialState.INTERRUPTED, TrialState.FAILED]
STATES += [TrialState.PRUNED, TrialState.STOPPED]
TRIALS, EVENTS = 12, 25


class LooksAtAll(StudyRecords):
    """Remembers nothing: every trial is compared with all others."""

    def take(self, record: TrialRecord) -> None:
        self._leading = [], []
        self.refresh()
        others = [each for each in self.records if each.number != record.number]
        self._tidy([*others, record], among=[record, *(each for each in others if each.checkpoint is not None)])

    def _leaders(self) -> list[TrialRecord]:
        return self.records


def records_of(kind: type[StudyRecords], folder: Path, objectives: Any, keep: int | None) -> StudyRecords:
    folder.mkdir()
    study = Study("s", folder, SearchSpace(RATE), objectives, 40, keep_checkpoints=keep)
    records = kind(study, StudyFolder(study))
    records.refresh = lambda: None  # type: ignore[method-assign]
    records.open([])
    return records


def left(records: StudyRecords, folder: Path) -> tuple[Any, ...]:
    """Return what is on disk, what is known of the trials, and what a trial is given of its peers."""
    best = folder / "best.json"
    known = [(each.number, each.state, each.values, each.checkpoint is not None) for each in records.records]
    peers = [records.others(number) for number in range(TRIALS) if not is_eligible(records, number)]
    return (
        sorted(str(path.relative_to(folder)) for path in folder.rglob("checkpoint-*")),
        best.read_text().replace(str(folder), "") if best.exists() else None,
        known,
        [([each.number for each in one.kept], one.epochs, one.were_evaluated) for one in peers],
    )


def is_eligible(records: StudyRecords, number: int) -> bool:
    record = records.ended(number)
    return record is not None and record.is_eligible


@pytest.mark.parametrize("seed", range(40))
def test_what_is_kept_is_what_would_be_kept_if_all_trials_were_looked_at(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    several = draw.random() < 0.4
    names, directions = (["loss", "acc"], ["minimize", "maximize"]) if several else (["loss"], ["minimize"])
    objectives = resolve_objectives(names if several else "loss", directions if several else "minimize", True)
    keep = draw.choice([0, 1, 2, 3, None])
    folders = tmp_path / "remembers", tmp_path / "all"
    both = [
        records_of(kind, folder, objectives, keep)
        for kind, folder in zip((StudyRecords, LooksAtAll), folders, strict=True)
    ]
    for step in range(EVENTS):
        number = draw.randrange(TRIALS)
        state = draw.choice(STATES)
        has_values = state in (TrialState.COMPLETE, TrialState.STOPPED, TrialState.PRUNED) and draw.random() < 0.9
        values = tuple(float(draw.randrange(4)) for _ in objectives) if has_values else ()
        violations = {"m": draw.choice([-1.0, 1.0])} if draw.random() < 0.4 else {}
        has_weights, deleted = draw.random() < 0.8, draw.randrange(TRIALS) if draw.random() < 0.1 else None
        for records, folder in zip(both, folders, strict=True):
            run = folder / f"run-{number}"
            checkpoint = run / f"checkpoint-{step}" if has_weights else None
            (checkpoint or run).mkdir(parents=True, exist_ok=True)
            for each in (folder / f"run-{deleted}").glob("checkpoint-*"):
                shutil.rmtree(each)
            record = TrialRecord(
                number,
                run.name,
                state,
                {"learning_rate": 0.1},
                values=values,
                violations=violations,
                checkpoint=checkpoint,
                epochs=float(step),
            )
            records.take(record)
        assert left(both[0], folders[0]) == left(both[1], folders[1]), f"after event {step}"


@pytest.mark.parametrize("state", [TrialState.PAUSED, TrialState.INTERRUPTED])
def test_the_epochs_of_a_trial_that_has_resumed_count_once_as_far_as_it_is_now(
    tmp_path: Path, state: TrialState
) -> None:
    objectives = resolve_objectives("loss", "minimize", True)
    records = records_of(StudyRecords, tmp_path / "s", objectives, None)
    complete = TrialRecord(0, "run-0", TrialState.COMPLETE, {}, values=(0.5,), epochs=4.0)
    half_done = TrialRecord(1, "run-1", state, {}, epochs=2.0)
    for each in (complete, half_done):
        (tmp_path / "s" / each.name).mkdir()
        records.take(each)
    assert records.epochs() == 6.0
    records.running[1] = replace(half_done, state=TrialState.RUNNING, epochs=3.0)
    records.running[2] = TrialRecord(2, "run-2", TrialState.RUNNING, {}, epochs=0.5)
    assert records.epochs() == 7.5
    assert [records.epochs(but=number) for number in range(3)] == [3.5, 4.5, 7.0]
