"""A disk that is full while trials run on Ray ends the search, costs no trial, and leaves nothing half-written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from hpsearch import StorageError
from tests.support.on_ray import ON_RAY
from tests.support.search_processes import assert_disk_and_storage_agree, assert_nothing_is_left_over, records_on_disk
from tests.support.searching import AtStep, states
from tests.support.small_disk import (
    FULL,
    FULL_FOR_ALL,
    LARGE,
    MIDDLE,
    SMALL,
    Filler,
    assert_checkpoint_is_whole,
    enlarge,
    partial_files,
    search,
)
from tests.support.small_disk import small_disk as small_disk

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_instance")]


def test_a_checkpoint_that_does_not_fit_on_the_disk_ends_the_search_and_is_not_the_fault_of_the_trial(
    small_disk: Path,
) -> None:
    hidden = [SMALL, LARGE, SMALL, SMALL]
    with pytest.raises(StorageError, match=rf"run-1.*cannot be written.*{FULL}.*the same call continues") as error:
        search(small_disk, 4, hidden, **ON_RAY)
    assert "\n" not in str(error.value)
    left = {record["number"]: record["state"] for record in records_on_disk(small_disk / "study")}
    assert left[1] == "interrupted"
    assert "failed" not in left.values()
    assert partial_files(small_disk) == []

    enlarge(small_disk)
    best = search(small_disk, 4, hidden, **ON_RAY)
    assert states(best) == ["complete"] * 4
    assert_disk_and_storage_agree(small_disk / "study")
    assert_nothing_is_left_over(small_disk / "study")


@pytest.mark.parametrize("spare", [0, 200_000])
def test_earlier_checkpoints_of_the_trial_are_intact_and_it_resumes_from_them(small_disk: Path, spare: int) -> None:
    """The disk is full when a trial writes its second checkpoint; without `spare` also for the records and for Tune."""
    filler = Filler(small_disk)
    alone = {**ON_RAY, "max_concurrent_trials": 1, "keep_checkpoints": None}

    class FillsTheDisk(AtStep):
        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if (Path(args.output_dir).name, state.global_step) == ("run-1", 8):
                filler.fill(spare)

    with pytest.raises(StorageError, match=FULL_FOR_ALL) as error:
        search(small_disk, 3, [MIDDLE] * 3, FillsTheDisk(lambda: None, -1, -1), **alone)
    assert "\n" not in str(error.value)
    first, *others = [record["state"] for record in records_on_disk(small_disk / "study")]
    assert first == "complete"
    assert "failed" not in others
    assert partial_files(small_disk) == []
    for path in small_disk.glob("study/*/checkpoint-*"):
        assert_checkpoint_is_whole(path)
    filler.remove()
    best = search(small_disk, 3, [MIDDLE] * 3, **alone)
    assert states(best) == ["complete"] * 3
    assert len(list(small_disk.glob("study/*/checkpoint-*"))) == 6
    assert_disk_and_storage_agree(small_disk / "study")


@pytest.mark.parametrize("trial_retries", [0, 3])
def test_trials_of_a_population_whose_disk_is_full_when_they_pause_are_not_at_fault(
    small_disk: Path, tmp_path: Path, trial_retries: int
) -> None:
    """Their checkpoints fit, Tune's own notes of them do not; the storage is on another disk."""
    filler = Filler(small_disk)
    storage = f"sqlite:///{tmp_path / 'mine.db'}"

    class FillsTheDisk(AtStep):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            filler.fill()

    def population() -> dict[str, Any]:
        scheduler = PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=1,
            quantile_fraction=0.5,
            hyperparam_mutations={"learning_rate": tune.loguniform(1e-3, 1e-1)},
        )
        return {**ON_RAY, "scheduler": scheduler, "pruner": None, "storage": storage, "trial_retries": trial_retries}

    with pytest.raises(StorageError, match=FULL) as error:
        search(small_disk, 2, [MIDDLE] * 2, FillsTheDisk(lambda: None, -1, -1), **population())
    assert "\n" not in str(error.value)
    assert "failed" not in [record["state"] for record in records_on_disk(small_disk / "study")]
    assert partial_files(small_disk) == []
    filler.remove()
    best = search(small_disk, 2, [MIDDLE] * 2, **population())
    assert states(best) == ["complete"] * 2
    assert_nothing_is_left_over(small_disk / "study")
