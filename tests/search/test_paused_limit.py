"""Trials that wait at rungs are so many at the most, and their checkpoints take no more of the disk than they may."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpsearch import Report, StudyError, TrialRecord, TrialState
from hpsearch.coordinator import paused_checkpoints
from hpsearch.coordinator.paused_checkpoints import PausedCheckpoints
from hpsearch.search.decisions.paused_limit import PausedLimit
from tests.support.searching import HearsNotices
from tests.support.short_searches import search, weight_is_measured


def paused_on_disk(folder: Path, *sizes: int) -> list[TrialRecord]:
    """Return trials with checkpoints of so many bytes, in two files."""
    found = []
    for number, size in enumerate(sizes):
        checkpoint = folder / f"run-{number}" / "checkpoint-3" / "inner"
        checkpoint.mkdir(parents=True)
        (checkpoint / "a").write_bytes(b"0" * (size // 2))
        (checkpoint.parent / "b").write_bytes(b"0" * (size - size // 2))
        report = Report((0.5,), 1, 3, 1.0, {}, horizon=3.0)
        found.append(TrialRecord(number, f"run-{number}", TrialState.PAUSED, {}, reports=(report,)))
    return found


@pytest.mark.parametrize(
    ("limit", "pruned", "said"),
    [
        (PausedLimit(6, 1e9), [], ""),
        (PausedLimit(4, 1e9), [4, 5], "more than 4 trials are paused (max_paused)"),
        (PausedLimit(6, 540.0), [], ""),
        (PausedLimit(6, 500.0), [5], "the checkpoints of paused trials take 5.03e-07 of 4.66e-07 GiB"),
        (PausedLimit(6, 1.0), [3, 4, 5], "GiB (max_paused_bytes)"),
    ],
)
def test_the_worst_are_too_many_and_three_may_always_be_paused(limit: PausedLimit, pruned: Any, said: str) -> None:
    trials = [TrialRecord(number, f"run-{number}", TrialState.PAUSED, {}) for number in range(6)]
    surplus, why = limit.surplus(trials, dict.fromkeys(range(6), 90))
    assert [each.number for each in surplus] == pruned
    assert (said in why) if pruned else not surplus


@pytest.mark.parametrize(("free", "kept"), [(1000, 10), (999, 9), (600, 8), (0, 5)])
def test_by_default_checkpoints_take_half_of_what_the_disk_has_room_for(free: float, kept: int) -> None:
    trials = [TrialRecord(number, f"run-{number}", TrialState.PAUSED, {}) for number in range(10)]
    assert PausedLimit().surplus(trials, dict.fromkeys(range(10), 100), free)[0] == trials[kept:]


def test_checkpoints_are_measured_with_all_that_is_in_them_and_those_that_are_gone_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage(NamedTuple):
        free: int

    trials = [*paused_on_disk(tmp_path, 90, 31), TrialRecord(7, "run-7", TrialState.PAUSED, {})]
    checkpoints = PausedCheckpoints(tmp_path)
    assert checkpoints.sizes(trials) == {0: 90, 1: 31, 7: 0}
    assert checkpoints.lost(trials) == {7}
    monkeypatch.setattr(paused_checkpoints.shutil, "disk_usage", lambda folder: Usage(12))
    assert checkpoints.free_bytes == 12


def test_checkpoints_are_measured_once_for_each_rung_at_which_a_trial_has_paused(tmp_path: Path) -> None:
    [first] = paused_on_disk(tmp_path, 90)
    checkpoints = PausedCheckpoints(tmp_path)
    assert checkpoints.sizes([first]) == {0: 90}
    (tmp_path / "run-0" / "checkpoint-3" / "b").write_bytes(b"0" * 100)
    assert checkpoints.sizes([first]) == {0: 90}
    later = replace(first, reports=(*first.reports, replace(first.reports[-1], step=6)))
    assert checkpoints.sizes([later]) == {0: 145}


@pytest.mark.parametrize(
    "given",
    [{"max_paused": 2}, {"max_paused": 3.5}, {"max_paused": None}, {"max_paused_bytes": 0}, {"max_paused_bytes": "1G"}],
)
def test_a_limit_that_is_none_is_refused_before_anything_is_written(tmp_path: Path, given: dict[str, Any]) -> None:
    [(name, value)] = given.items()
    with pytest.raises(StudyError, match=f"{name} must be.*{value!r}"):
        search(tmp_path, **given)
    assert not list(tmp_path.iterdir())


class CountsCheckpoints(HearsNotices):
    """A listener that counts, as each trial begins, how many wait with a checkpoint."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.counts = folder, []

    def on_trial_begin(self, trial: Any) -> None:
        super().on_trial_begin(trial)
        self.counts.append(len({each.parent for each in self.folder.glob("study/*/checkpoint-*")}))


@pytest.mark.slow
def test_a_search_prunes_the_worst_of_those_that_wait_and_says_so_once(tmp_path: Path) -> None:
    events = CountsCheckpoints(tmp_path)
    best = search(tmp_path, 24, pruner="rungs", max_paused=4, preflight=False, progress=events, **weight_is_measured())
    said = "more than 4 trials are paused (max_paused)"
    assert events.notices == [f"{said}: the worst of them are pruned, now and whenever the limit is exceeded again"]
    pruned = [each for each in best.run_summary.records if said in (each.reason or "")]
    assert len(pruned) > 3
    assert all(each.state is TrialState.PRUNED for each in pruned)
    assert max(events.counts) <= 4 + 2  # with those that have trained to their end and may be the best, and the running
