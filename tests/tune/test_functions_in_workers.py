"""A plain function in workers: the numbers of one process, resumption after a kill, isolated workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpsearch import BestRun, Float, FunctionTrial, TrialState, tune
from tests.support.programs import ROOT

pytestmark = pytest.mark.process
X = {"x": Float(-3.0, 3.0)}
STEPS = 6


class KilledLoop:
    """A loop with checkpoints that notes its calls in a file, and kills its process once.

    Args:
        notes: the file.
        killed: the trial whose process is killed after its third step.
    """

    def __init__(self, notes: Path, killed: int | None = None) -> None:
        self.notes, self._killed = notes, killed

    def __call__(self, trial: FunctionTrial) -> None:
        begin = 0
        if trial.checkpoint is not None:
            begin = int((trial.checkpoint / "step").read_text())
        with self.notes.open("a") as stream:
            stream.write(f"{trial.number} {begin} {os.getpid()}\n")
        for step in range(begin + 1, STEPS + 1):
            trial.report({"loss": (trial.params["x"] - 1) ** 2 + 1 / step}, step)
            with trial.save() as folder:
                (folder / "step").write_text(str(step))
            self._kill(trial.number, step)
            if trial.should_prune():
                return

    def _kill(self, number: int, step: int) -> None:
        flag = self.notes.with_suffix(".killed")
        if number == self._killed and step == 3 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def search(folder: Path, function: Any, **arguments: Any) -> BestRun:
    best = tune(
        function, X, output_dir=folder, n_trials=6, max_resource=STEPS, seed=3, pruner=None, progress=False, **arguments
    )
    assert isinstance(best, BestRun)
    return best


def numbers(best: BestRun) -> list[Any]:
    return [
        (record.params, record.state, [(report.step, report.values) for report in record.reports])
        for record in best.run_summary.records
    ]


def calls(notes: Path) -> list[tuple[int, ...]]:
    return [tuple(map(int, line.split())) for line in notes.read_text().splitlines()]


def test_in_workers_a_function_makes_the_numbers_that_it_makes_in_one_process(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    best = search(tmp_path, KilledLoop(notes), n_jobs=2)
    pids = {pid for number, begin, pid in calls(notes)[1:]}
    assert os.getpid() not in pids, "only the first call is in the process that searches"
    for record in best.run_summary.records:
        assert record.state is TrialState.COMPLETE
        x = record.params["x"]
        assert [report.value for report in record.reports] == [(x - 1) ** 2 + 1 / step for step in range(1, STEPS + 1)]
    assert best.checkpoint is not None
    assert (best.checkpoint / "step").read_text() == str(STEPS)


def test_a_trial_whose_worker_is_killed_resumes_from_its_own_checkpoint(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    killed = search(tmp_path / "killed", KilledLoop(notes, killed=1), n_jobs=2)
    assert [begin for number, begin, _ in calls(notes) if number == 1] == [0, 3]
    assert all(record.state is TrialState.COMPLETE for record in killed.run_summary.records)
    assert all(
        [report.step for report in record.reports] == [*range(1, STEPS + 1)] for record in killed.run_summary.records
    )


def test_after_a_kill_of_the_whole_search_the_same_call_continues_the_trial(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    program = (
        "from pathlib import Path; import sys; from tests.tune.test_functions_in_workers import KilledLoop, search;"
        "search(Path(sys.argv[1]), KilledLoop(Path(sys.argv[2]), killed=1))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "study"), str(notes)]
    assert subprocess.run(command, check=False, timeout=120, cwd=ROOT).returncode == -signal.SIGKILL
    subprocess.run(command, check=True, timeout=120, cwd=ROOT)
    begun = [(number, begin) for number, begin, _ in calls(notes)]
    assert begun == [(0, 0), (0, 0), (1, 0), (1, 3), (2, 0), (3, 0), (4, 0), (5, 0)]
    undisturbed = search(tmp_path / "undisturbed", KilledLoop(tmp_path / "other"))
    continued = search(tmp_path / "study", KilledLoop(notes))
    assert numbers(continued) == numbers(undisturbed)
