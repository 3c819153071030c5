"""A search in workers whose driver is killed, again and again, loses, doubles and fails no trial."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hpsearch import open_study
from hpsearch.search.trial import TrialState
from tests.support import warm
from tests.support.driver_processes import have_ended, kill_all, processes_in, processes_of, start, trainer_of
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


@pytest.mark.parametrize("n_jobs", [None, 2])
@pytest.mark.parametrize("killed", ["all processes", "driver"])
def test_the_next_session_after_a_kill_leaves_no_temporary_file_of_processes_that_load_data(
    n_jobs: int | None, killed: str
) -> None:
    with TemporaryDirectory(prefix="s") as place:  # a short path: sockets have no long ones
        folder, temporary = Path(place), Path(place, "t")
        temporary.mkdir()
        options = {"n_trials": 2, "seed": 1, "n_jobs": n_jobs, "dataloader_num_workers": 1, "num_train_epochs": 2}
        diary = folder / "killed.diary"
        with start(folder, diary, temporary, holds=True, **options) as driver:
            wait_until(lambda: len(processes_in(diary)) >= (n_jobs or 1) or driver.poll() is not None)
            assert driver.poll() is None, driver.communicate()[0]
            assert list(temporary.glob("hpsearch-scratch-*/listener-*")), "a process that loads data has a socket"
            kill_all(driver) if killed == "all processes" else driver.kill()
            wait_until(lambda: not processes_of(driver))
        assert list(temporary.glob("pymp-*")) == []
        assert list(temporary.iterdir()) != []
        with start(folder, folder / "ended.diary", temporary, **options) as driver:
            assert driver.wait(60.0) == 0, driver.communicate()[0]
            wait_until(lambda: not processes_of(driver))
        assert list(temporary.iterdir()) == []
        assert_nothing_is_left_over(folder / "study")


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
