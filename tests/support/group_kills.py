"""Searches in groups of two processes, of which one, both or the driver are killed; and what must be left of them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hpsearch import open_study
from tests.support import warm
from tests.support.driver_kills import SEED
from tests.support.driver_processes import have_ended, processes_in, recipe_of, start
from tests.support.search_processes import (
    RATE,
    assert_disk_and_storage_agree,
    assert_nothing_is_left_over,
    wait_until,
)
from tests.support.searching import Diary

TRIALS = 8
KINDS = ("first process", "second process", "group", "driver")
_LONGEST = 40  # steps of processes between two kills


def kill_in_groups(place: Path, kills: int, way: str) -> None:
    """Kill so many times in searches, and check every study; `way` is that of `start`."""
    draw = random.Random(SEED)
    killed: Counter[str] = Counter()
    states: Counter[str] = Counter()
    studies = 0
    while killed.total() < kills:
        folder = place / f"study-{studies}"
        (folder / "tmp").mkdir(parents=True)
        seed = SEED * 1000 + studies
        killed += _kill_until_it_ends(folder, draw, seed, kills - killed.total(), way)
        states.update(_check(folder, seed, way))
        studies += 1
    print(f"{way}: {dict(killed)} kills in {studies} studies of {TRIALS} trials: {dict(states)}")


def _kill_until_it_ends(folder: Path, draw: random.Random, seed: int, most: int, way: str) -> Counter[str]:
    """Search, kill and continue until the search ends by itself; return what was killed how often."""
    killed: Counter[str] = Counter()
    session = 0
    while True:
        diary = folder / f"session-{session}.diary"
        with start(folder, diary, folder / "tmp", TRIALS, seed, way=way) as driver:
            while not killed["driver"] > session:
                kind = draw.choice(KINDS) if killed.total() < most else None
                wait_until(_moment(kind, draw, diary, driver), warm.SECONDS)
                if driver.poll() is not None:
                    assert driver.returncode == 0, driver.communicate()[0]
                    return killed
                time.sleep(draw.uniform(0.0, 0.03))  # a moment between two steps: in a checkpoint, or a report
                killed[str(kind)] += _kill(kind, driver, diary)
        session += 1
        wait_until(have_ended(processes_in(diary)), 20.0)


def _moment(kind: str | None, draw: random.Random, diary: Path, driver: warm.Program) -> Callable[[], bool]:
    """Return a condition: so many steps have been made from now on, or the driver has ended."""
    steps = len(Diary(diary).read()) + draw.randint(1, _LONGEST)
    return lambda: driver.poll() is not None or (kind is not None and len(Diary(diary).read()) >= steps)


def _kill(kind: str | None, driver: warm.Program, diary: Path) -> int:
    """Kill the driver, or processes of the group that has made the last step; return whether they were running."""
    if kind == "driver":
        driver.kill()
        driver.wait()
        return 1
    entries = Diary(diary).read()
    run = entries[-1][0]
    latest = {rank: pid for name, _, rank, pid in entries if name == run}
    wanted = {"first process": [0], "second process": [1], "group": [0, 1]}[str(kind)]
    found = 0
    for pid in [latest[rank] for rank in wanted if rank in latest]:
        if not have_ended({pid})():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                found = 1
    return found


def _check(folder: Path, seed: int, way: str) -> Counter[str]:
    """Check what is left of a study, and that each trial's reports are those that a group makes undisturbed."""
    study = folder / "study"
    records = assert_disk_and_storage_agree(study)
    assert [record["number"] for record in records] == list(range(TRIALS))
    assert {record["state"] for record in records} <= {"complete", "pruned"}
    assert_nothing_is_left_over(study)
    assert list((folder / "tmp").iterdir()) == []
    killed = open_study(study).records
    recipe_of(folder / "undisturbed", way).hyperparameter_search(
        RATE,
        "loss",
        n_trials=TRIALS,
        start_with=[record.params for record in killed],
        seed=seed,
        pruner="none",
        processes_per_trial=2,
        progress=False,
    )
    for record, whole in zip(killed, open_study(folder / "undisturbed" / "study").records, strict=True):
        assert record.params == whole.params
        reports = [(report.step, report.values) for report in record.reports]
        assert reports
        assert reports == [(report.step, report.values) for report in whole.reports][: len(reports)], record.number
        assert len(reports) == len(whole.reports) or record.state.value == "pruned"
    return Counter(record["state"] for record in records)
