"""A search in workers or groups whose driver is killed, again and again, loses, doubles and fails no trial."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.driver_kills import KILLS, kill_drivers
from tests.support.driver_processes import kill_all, processes_in, processes_of, start
from tests.support.group_kills import kill_in_groups
from tests.support.search_processes import assert_nothing_is_left_over, wait_until

pytestmark = pytest.mark.fault


@pytest.mark.timeout(max(600, 20 * KILLS))
@pytest.mark.parametrize(
    ("way", "share"),
    [("workers", 0.5), ("tune in workers", 0.25), ("repeats in workers", 0.25), ("folds in workers", 0.25)],
)
def test_a_search_with_rungs_whose_driver_is_killed_loses_doubles_and_fails_no_trial(
    tmp_path: Path, way: str, share: float
) -> None:
    kill_drivers(tmp_path, int(share * KILLS), way=way)


@pytest.mark.timeout(max(600, 30 * KILLS))
@pytest.mark.parametrize("way", ["groups", "loop in groups"])
def test_a_search_in_groups_of_which_a_process_is_killed_or_whose_driver_is_killed_loses_doubles_and_fails_no_trial(
    tmp_path: Path, way: str
) -> None:
    kill_in_groups(tmp_path, KILLS if "HPSEARCH_DRIVER_KILLS" in os.environ else 6, way)


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
