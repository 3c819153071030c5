"""Searches whose driver is killed, again and again, until they end by themselves; and what must be left of them."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpsearch import open_study
from hpsearch.search.decisions.repeats import Repeats
from hpsearch.search.store.stored_study import StoredStudy
from hpsearch.search.trial_record import TrialState
from tests.support import warm
from tests.support.driver_processes import SEVERAL_RUNS, have_ended, processes_in, recipe_of, start
from tests.support.search_processes import assert_disk_and_storage_agree, assert_nothing_is_left_over, wait_until
from tests.support.searching import Diary

# In all; `HPSEARCH_DRIVER_KILLS=200` asks for more, of the ways that are run.
KILLS = int(os.environ.get("HPSEARCH_DRIVER_KILLS", "40"))
SEED = int(os.environ.get("HPSEARCH_KILL_SEED", "1"))
TRIALS = 16


def kill_drivers(place: Path, kills: int, **options: Any) -> None:
    """Kill the drivers of searches so many times, and check every study; `options` are those of `start`."""
    draw = random.Random(SEED)
    done, studies = 0, 0
    states: Counter[str] = Counter()
    while done < kills:
        folder = place / f"study-{studies}"
        (folder / "tmp").mkdir(parents=True)
        done += _kill_until_it_ends(folder, draw, SEED * 1000 + studies, kills - done, options)
        states.update(_check(folder, options.get("way", "workers")))
        studies += 1
    print(f"{options}: {done} kills of drivers in {studies} studies of {TRIALS} trials: {dict(states)}")


def _kill_until_it_ends(folder: Path, draw: random.Random, seed: int, most: int, options: dict[str, Any]) -> int:
    """Search, kill and continue until the search ends by itself; return the number of kills."""
    kills = 0
    while True:
        diary = folder / f"session-{kills}.diary"
        with start(folder, diary, folder / "tmp", TRIALS, seed, **options) as driver:
            steps = draw.choice([0, draw.randint(1, 20), draw.randint(1, 60)])
            if kills == most:
                driver.wait(warm.SECONDS)
            wait_until(_moment(folder, diary, driver, steps), warm.SECONDS)
            if driver.poll() is not None:
                assert driver.returncode == 0, driver.communicate()[0]
                return kills
            driver.kill()
            driver.wait()
        kills += 1
        wait_until(have_ended(processes_in(diary)), 20.0)


def _moment(folder: Path, diary: Path, driver: warm.Program, steps: int) -> Callable[[], bool]:
    """Return a condition: the workers have made so many steps (0: the search has begun), or the driver has ended."""
    sessions = folder / "study" / "sessions"
    has_come = sessions.exists if steps == 0 else lambda: len(Diary(diary).read()) >= steps
    return lambda: has_come() or driver.poll() is not None


def _check(folder: Path, way: str) -> Counter[str]:
    """Check what is left of a study, and that each trial's reports are those that it makes alone."""
    study = folder / "study"
    records = assert_disk_and_storage_agree(study)
    assert [record["number"] for record in records] == list(range(len(records)))
    assert {record["state"] for record in records} <= {"complete", "pruned"}
    assert_nothing_is_left_over(study)
    # wandb, which Ray Tune imports, makes folders that a killed process leaves.
    assert [each for each in (folder / "tmp").iterdir() if "wandb-" not in each.name] == []
    found = open_study(study).records
    replicas = [record.replica for record in found if record.replica is not None]
    assert len(found) - len(replicas) == TRIALS
    assert len(set(replicas)) == len(replicas)
    assert bool(replicas) == (way in SEVERAL_RUNS)
    assert Repeats.of(StoredStudy.read(study)).next(found, more_may_come=False) is None  # none is missing
    for record in found:
        again = recipe_of(folder, way).replay("study", record.number, "loss", progress=False)
        assert again.is_equal, f"trial {record.number} ({record.state}): {again.first_difference}"
        assert record.state in (TrialState.COMPLETE, TrialState.PRUNED)
    return Counter(record["state"] for record in records)
