"""Searches on a Ray cluster, each in a process of its own, which write down what they and their workers do."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
import ray
import torch
from ray import cloudpickle

from hpsearch.system.files import write_text
from tests.support import warm
from tests.support.search_processes import (
    RATE,
    Diary,
    Hold,
    assert_disk_and_storage_agree,
    assert_nothing_is_left_over,
    comparable,
    described,
    records_on_disk,
    trial_number,
    wait_until,
)
from tests.support.small_trainer import small_trainer
from tests.support.warm_workers import warm_if_there_is_a_server

# A search on a machine with other things to do may take as long to begin, and to end.
SECONDS = 150.0
HELD_STEP = 6


class RayDiary(Diary):
    """Writes down what a search does, and in which process and on which node of the cluster.

    Args:
        path: of the diary.
        workers: so many have to be there before any of them trains.
        hold: where a worker stands still until the file `<path>.go` is there.
    """

    def __init__(self, path: Path, workers: int = 1, hold: Hold | None = None) -> None:
        super().__init__(path, hold)
        self.path = path
        self._workers = workers

    def write(self, **entry: Any) -> None:
        super().write(**entry, pid=os.getpid(), node=_node(), time=time.time())

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for the other workers: Tune gives all trials to those that are there first."""
        self.write(trains=trial_number(args))
        wait_until(lambda: len({each["pid"] for each in self.entries() if "trains" in each}) >= self._workers, SECONDS)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take some time, or stand still, if the workers of this node are to."""
        super().on_step_end(args, state, control, **kwargs)
        if self._pause_file(_node()).exists():
            time.sleep(float(self._pause_file(_node()).read_text()))
        if state.global_step == HELD_STEP and self._hold_file(_node()).exists():
            self.write(held=trial_number(args))
            while self._hold_file(_node()).exists():
                time.sleep(0.02)

    def entries(self) -> list[dict[str, Any]]:
        """Return what has been written down so far."""
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().split("\n")[:-1]]

    def held(self) -> int:
        """Wait until a worker stands still at the place that was told, and return its process."""
        wait_until(lambda: any(each.get("held") is True for each in self.entries()), SECONDS)
        return next(each["pid"] for each in self.entries() if each.get("held") is True)

    def let_go(self) -> None:
        """Let it go on, and all others."""
        self.path.with_suffix(".go").touch()

    def segments(self, trial: int) -> list[tuple[int, int]]:
        """Return the updates that workers have made in a trial: the first and the last of each that was at it."""
        found: dict[int, list[int]] = {}
        for each in self.entries():
            if each.get("trial") == trial:
                found.setdefault(each["pid"], []).append(each["step"])
        for steps in found.values():
            assert steps == list(range(steps[0], steps[0] + len(steps)))
        return [(steps[0], steps[-1]) for steps in found.values()]

    def slow_down(self, node: str, seconds: float) -> None:
        """Let every update of the workers of a node take so long."""
        write_text(self._pause_file(node), str(seconds))

    def hold(self, node: str) -> None:
        """Let the workers of a node stand still at update `HELD_STEP` of the trials that come there."""
        self._hold_file(node).touch()

    def _pause_file(self, node: str) -> Path:
        return self.path.with_suffix(f".pause-{node}")

    def _hold_file(self, node: str) -> Path:
        return self.path.with_suffix(f".hold-{node}")


class RaySearch:
    """A search in a process of its own, which imports Ray alone: see `warm`.

    Args:
        diary: what it and its workers write into; their own one.
        search: runs the search; the diary that it gets is a callback and a listener.
    """

    def __init__(self, diary: RayDiary, search: Callable[[RayDiary], Any]) -> None:
        self.diary = diary
        work = diary.path.with_suffix(".pickle")
        work.write_bytes(cloudpickle.dumps((search, diary)))  # type: ignore[no-untyped-call]
        self._process = warm.call(run, work)

    @property
    def pid(self) -> int:
        return self._process.pid

    def made(self, node: str) -> list[dict[str, Any]]:
        """Return the updates that the workers of a node have made."""
        return [each for each in self.diary.entries() if "step" in each and each["node"] == node]

    def ended(self) -> list[int]:
        """Return the numbers of the trials that have ended, as its listener has heard."""
        return [each["ended"] for each in self.diary.entries() if "ended" in each]

    def held(self, node: str) -> list[int]:
        """Return the trials in which workers of a node stand still."""
        return [each["held"] for each in self.diary.entries() if "held" in each and each["node"] == node]

    def nodes(self) -> list[str]:
        """Return the nodes, that of the search itself first."""
        return list(dict.fromkeys(each["node"] for each in self.diary.entries() if each["node"]))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds that this search brings about."""
        wait_until(lambda: condition() or self._process.poll() is not None, SECONDS)
        assert condition(), f"the process ended before: {self.diary.entries()[-1:]}\n{self._output()}"

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        assert self._process.wait(SECONDS) == -signal.SIGKILL

    def result(self) -> dict[str, Any]:
        """Wait for its end; return what the search returned (`best` and `records`), or its `error`."""
        try:
            self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            pytest.fail(f"the search has not ended: {self.diary.entries()[-3:]}\n{self._output()}")
        ends = [each for each in self.diary.entries() if "best" in each or "error" in each]
        assert ends, f"the process ended with {self._process.returncode}:\n{self._output()}"
        return ends[-1]

    def __enter__(self) -> RaySearch:
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.close()

    def _output(self) -> str:
        assert self._process.stdout is not None
        self._process.stdout.seek(0)
        return self._process.stdout.read()


def searching(
    folder: Path, n_trials: int, changes: Mapping[str, Any] | None = None, **options: Any
) -> Callable[[RayDiary], Any]:
    """Return a search that can be sent to another process: trials of four epochs, with a checkpoint after each.

    Args:
        folder: of the trainer.
        n_trials: how many.
        changes: of the trainer's arguments.
        options: of the search.
    """

    def search(diary: RayDiary) -> Any:
        trainer = small_trainer(folder, diary, **{"num_train_epochs": 4, "save_strategy": "epoch", **(changes or {})})
        return trainer.hyperparameter_search(
            RATE,
            "loss",
            n_trials=n_trials,
            # Suggests for a trial what it suggests for it, whatever other trials have found, and when.
            sampler=optuna.samplers.RandomSampler(seed=1),
            **{"pruner": "none", "progress": diary, **options},
        )

    return search


def told(record: dict[str, Any]) -> dict[str, Any]:
    """Return what a record tells of a trial alone; whether it kept its weights depends on those that had ended.

    A search that is held for a kill has other callbacks, so it is another session.
    """
    return {**comparable(record), "checkpoint": None, "session": None}


def assert_equal(study: Path, undisturbed: Path) -> None:
    """Check that a study has the records, and the best weights, of one that was left in peace."""
    records, other = assert_disk_and_storage_agree(study), records_on_disk(undisturbed)
    assert [told(each) for each in records] == [told(each) for each in other[: len(records)]]
    assert (study / "best.json").read_text() == (undisturbed / "best.json").read_text()
    (weights,) = study.glob("*/checkpoint-*/model.safetensors")
    assert weights.read_bytes() == (undisturbed / weights.relative_to(study)).read_bytes()
    assert_nothing_is_left_over(study)


def _node() -> str:
    """Return the node of the cluster that this process is on; empty if it is on none."""
    is_on_one = ray.is_initialized() and not ray.util.client.ray.is_connected()
    return ray.get_runtime_context().get_node_id() if is_on_one else ""


def run(work: Path) -> None:
    """Run a search in this process, and write down how it went."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    search, diary = pickle.loads(work.read_bytes())
    try:
        with warm_if_there_is_a_server():
            best = search(diary)
    except BaseException as error:
        trace = "".join(traceback.format_exception(error))
        diary.write(error=type(error).__name__, message=str(error), traceback=trace)
    else:
        diary.write(**described(best))
