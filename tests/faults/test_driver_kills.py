"""A search in workers whose driver is killed, again and again, loses, doubles and fails no trial."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hpsearch import open_study
from hpsearch.search.trial import TrialState
from tests.support import warm
from tests.support.driver_processes import have_ended, processes_in, start, trainer_of
from tests.support.search_processes import (
    assert_disk_and_storage_agree,
    assert_nothing_is_left_over,
    wait_until,
)
from tests.support.searching import Diary

pytestmark = pytest.mark.fault

KILLS = int(os.environ.get("HPSEARCH_DRIVER_KILLS", "40"))
SEED = int(os.environ.get("HPSEARCH_KILL_SEED", "1"))
TRIALS = 16


@pytest.mark.timeout(max(600, 20 * KILLS))
def test_a_search_in_workers_with_rungs_whose_driver_is_killed_loses_doubles_and_fails_no_trial(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    kills, studies = 0, 0
    states: Counter[str] = Counter()
    while kills < KILLS:
        folder = tmp_path / f"study-{studies}"
        (folder / "tmp").mkdir(parents=True)
        kills += kill_until_it_ends(folder, draw, seed=SEED * 1000 + studies)
        states.update(check(folder))
        studies += 1
    print(f"{kills} kills of drivers in {studies} studies of {TRIALS} trials: {dict(states)}")


def kill_until_it_ends(folder: Path, draw: random.Random, seed: int) -> int:
    """Search, kill and continue until the search ends by itself; return the number of kills."""
    kills = 0
    while True:
        diary = folder / f"session-{kills}.diary"
        with start(folder, diary, folder / "tmp", TRIALS, seed) as driver:
            wait_until(moment(folder, diary, driver, draw.choice([0, draw.randint(1, 20), draw.randint(1, 60)])))
            if driver.poll() is not None:
                assert driver.returncode == 0, driver.communicate()[0]
                return kills
            driver.kill()
            driver.wait()
        kills += 1
        wait_until(have_ended(processes_in(diary)), 20.0)


def moment(folder: Path, diary: Path, driver: warm.Program, steps: int) -> Callable[[], bool]:
    """Return a condition: the workers have made so many steps (0: the search has begun), or the driver has ended."""
    sessions = folder / "study" / "sessions"
    has_come = sessions.exists if steps == 0 else lambda: len(Diary(diary).read()) >= steps
    return lambda: has_come() or driver.poll() is not None


def check(folder: Path) -> Counter[str]:
    """Check what is left of a study, and that each trial's reports are those that it makes alone."""
    study = folder / "study"
    records = assert_disk_and_storage_agree(study)
    assert [record["number"] for record in records] == list(range(TRIALS))
    assert {record["state"] for record in records} <= {"complete", "pruned"}
    assert_nothing_is_left_over(study)
    assert list((folder / "tmp").iterdir()) == []
    for record in open_study(study).records:
        again = trainer_of(folder).replay("study", record.number, progress=False)
        assert again.is_equal, f"trial {record.number} ({record.state}): {again.first_difference}"
        assert record.state in (TrialState.COMPLETE, TrialState.PRUNED)
    return Counter(record["state"] for record in records)
