"""Searches in processes of their own, which a test can hold at a step, stop, kill and compare.

Each of them starts at once (see `warm`), and shares nothing with the others but the study.
"""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend
from transformers import TrainerCallback

from hpsearch import Float, SearchListener, TrialRecord, open_study
from hpsearch.search.store.retention import kept_records
from tests.support import warm
from tests.support.small_trainer import small_trainer

ROOT = Path(__file__).parents[2]
RATE = {"learning_rate": Float(1e-3, 1e-1, log=True)}
SECONDS = 60.0
STATES = {"COMPLETE": ("complete", "stopped"), "PRUNED": ("pruned",), "FAIL": ("failed",)}


@dataclass(frozen=True)
class Hold:
    """Where a search stands still until the file `<diary>.go` is there: at an update of a trial."""

    trial: int
    step: int


class Diary(TrainerCallback, SearchListener):
    """Writes down what a search does, and holds it where it is told to."""

    def __init__(self, path: Path, hold: Hold | None = None) -> None:
        self._path, self._hold = path, hold

    def write(self, **entry: Any) -> None:
        with self._path.open("a") as stream:
            stream.write(json.dumps(entry) + "\n")

    def on_trial_begin(self, trial: Any) -> None:
        self.write(begun=trial.number, params=dict(trial.params.values_by_name))

    def on_trial_end(self, record: TrialRecord) -> None:
        self.write(ended=record.number, state=record.state.value)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        number, step = trial_number(args), state.global_step
        self.write(trial=number, step=step)
        if self._hold is not None and (number, step) == (self._hold.trial, self._hold.step):
            self.write(held=True)
            go = self._path.with_suffix(".go")
            while not go.exists():
                time.sleep(0.01)


class SearchProcess:
    """A search of a small trainer in a process of its own, with checkpoints after each of its two epochs.

    Args:
        folder: the trainer's `output_dir`.
        diary: a file that does not exist, for what the process writes down.
        hold: where it stands still.
        gate: a file that is locked; wait until it is not, just before the search begins.
        options: of `hyperparameter_search`.
    """

    def __init__(
        self, folder: Path, diary: Path, hold: Hold | None = None, gate: Path | None = None, **options: Any
    ) -> None:
        self._diary = diary
        self._process = warm.call(_search, folder, diary, hold, gate, options)

    def entries(self) -> list[dict[str, Any]]:
        """Return what it has written down so far."""
        if not self._diary.exists():
            return []
        lines = self._diary.read_text().split("\n")
        return [json.loads(line) for line in lines[:-1]]

    def begun(self) -> list[int]:
        """Return the numbers of the trials it has begun, or gone on with."""
        return [each["begun"] for each in self.entries() if "begun" in each]

    def ended(self) -> list[int]:
        return [each["ended"] for each in self.entries() if "ended" in each]

    def steps(self, trial: int) -> list[int]:
        """Return the updates it has made in a trial."""
        return [each["step"] for each in self.entries() if each.get("trial") == trial]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds that this process brings about."""
        wait_until(lambda: condition() or self._process.poll() is not None)
        assert condition(), f"the process ended before: {self.entries()[-1:]}"

    def wait_until_held(self) -> None:
        self.wait_until(lambda: any("held" in each for each in self.entries()))

    def let_go(self) -> None:
        self._diary.with_suffix(".go").touch()

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
            pytest.fail(f"the search has not ended: {self.entries()[-3:]}")
        ends = [each for each in self.entries() if "best" in each or "error" in each]
        assert ends, f"the process ended with {self._process.returncode}: {self._process.communicate()[0]}"
        return ends[-1]

    def close(self) -> None:
        self._process.close()


class Searches:
    """Starts search processes in one study; none of them outlives the block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[SearchProcess] = []

    def start(self, **options: Any) -> SearchProcess:
        self.folder.mkdir(parents=True, exist_ok=True)
        diary = self.folder / f"process-{len(self._started)}.diary"
        self._started.append(SearchProcess(self.folder, diary, **options))
        return self._started[-1]

    def start_together(self, count: int, **options: Any) -> list[SearchProcess]:
        """Start several that begin their searches at the very same moment."""
        gate = self.folder / "gate"
        with gate.open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            started = [self.start(gate=gate, **options) for _ in range(count)]
            for each in started:
                each.wait_until(lambda each=each: bool(each.entries()))  # type: ignore[misc]
        return started

    def __enter__(self) -> Searches:
        return self

    def __exit__(self, *_: Any) -> None:
        for each in self._started:
            each.close()


def wait_until(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"waited {seconds} s in vain")
        time.sleep(0.02)


def trial_number(args: Any) -> int:
    return int(Path(args.output_dir).name.split("-")[1])


def described(best: Any) -> dict[str, Any]:
    """Return a best run and all records of its study as JSON has them."""
    return {
        "best": [best.run_id, best.objective, best.hyperparameters, best.checkpoint and str(best.checkpoint)],
        "records": [record.to_json() for record in best.run_summary.records],
    }


def load(study: Path, storage: Any = None) -> optuna.Study:
    """Load a study as Optuna sees it, from what `storage` means in a search."""
    if storage is None:
        storage = f"sqlite:///{study / 'study.db'}"
    elif "://" not in storage:
        path = study / "study.log" if storage == "journal" else Path(storage)
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    return optuna.load_study(study_name=study.name, storage=storage)


def records_on_disk(study: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in study.glob("*/trial.json")]
    return sorted(found, key=lambda record: record["number"])


def assert_disk_and_storage_agree(study: Path, storage: Any = None) -> list[dict[str, Any]]:
    """Check that folder and storage tell the same of the same trials; return the records."""
    records, trials = records_on_disk(study), load(study, storage).trials
    assert [record["number"] for record in records] == [trial.number for trial in trials]
    for record, trial in zip(records, trials, strict=True):
        assert record["state"] in STATES[trial.state.name]
        assert record["params"] == trial.params
        assert record["reason"] == trial.user_attrs.get("hpsearch:reason")
        comparable = {each["resource"]: each["values"][0] for each in record["reports"] if each["resource"] % 1 == 0}
        told = {int(resource): value for resource, value in comparable.items() if abs(value) < float("inf")}
        assert told == trial.intermediate_values
        if record["state"] in ("complete", "stopped"):
            assert record["values"] == trial.values
    return records


def assert_nothing_is_left_over(study: Path) -> None:
    """Check that there is no temporary name, no session, and no checkpoint but those of the best trial's runs.

    Where it was trained several times, a trial that is ahead of it with fewer runs keeps its own too.
    """
    assert [path for path in study.rglob("*") if ".partial-" in path.name or path.name.startswith("selected-")] == []
    assert not (study / "sessions").exists()
    best = json.loads((study / "best.json").read_text())
    left = sorted(str(path.relative_to(study)) for path in study.glob("*/checkpoint-*"))
    found = open_study(study)
    kept = [each.checkpoint for each in kept_records(found.records, found.study.objectives, 1)]
    assert left == sorted(str(each.relative_to(study)) for each in kept if each is not None)
    if all(each.replica is None for each in found.records):
        assert left == [best["checkpoint"]]


def _search(folder: Path, diary: Path, hold: Hold | None, gate: Path | None, options: dict[str, Any]) -> None:
    """Run in the process: search, and write down how it went."""
    written = Diary(diary, hold)
    changes = {"save_strategy": "epoch", **options.pop("trainer", {})}
    arguments = {"compute_objective": "loss", "pruner": "none", "progress": written, **options}
    trainer = small_trainer(folder, written, **changes)
    if gate is not None:
        written.write(at_gate=True)
        with gate.open() as stream:
            fcntl.flock(stream, fcntl.LOCK_SH)
    try:
        best = trainer.hyperparameter_search(RATE, **arguments)
    except BaseException as error:
        trace = "".join(traceback.format_exception(error))
        written.write(error=type(error).__name__, message=str(error), traceback=trace)
    else:
        written.write(**described(best))


def comparable(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without the seconds that things took, and without a traceback's lines of code."""
    assert 0 < record["seconds"] < 60
    reports = [
        {**report, "metrics": {name: each for name, each in report["metrics"].items() if not is_of_time(name)}}
        for report in record["reports"]
    ]
    said = record["traceback"] and record["traceback"].strip().splitlines()[-1]
    return {**record, "reports": reports, "traceback": said, "seconds": None, "spans": None}


def is_of_time(metric: str) -> bool:
    return metric.endswith(("_runtime", "_per_second"))
