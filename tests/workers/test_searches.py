"""Searches whose trials run in workers: at once, as alone, and whatever becomes of the workers."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import tracemalloc
import types
from ast import literal_eval
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
import torch
from transformers import AutoModelForSequenceClassification, TrainerCallback

from hpsearch import (
    BestRun,
    Constraint,
    Float,
    FromPretrained,
    SearchInterrupted,
    SearchListener,
    StudyError,
    TooManyFailuresError,
)
from hpsearch.executors.processes import process_executor, worker_process
from hpsearch.executors.processes.pickling import culprit
from hpsearch.executors.processes.worker import OUTPUT_FILE
from hpsearch.executors.processes.worker import _output_to as output_to
from tests.support import small_search
from tests.support.in_workers import search
from tests.support.searching import (
    RATE,
    ROOT,
    Diary,
    Events,
    FailsBesideASlowOne,
    HearsNotices,
    MeetsTheOther,
    states,
)
from tests.support.small_trainer import CountsModels, TwoLayers, points, small_trainer

pytestmark = pytest.mark.process


class Prints(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        print(f"{Path(args.output_dir).name} is at {state.global_step}")
        os.write(2, b"and says so\n")


@pytest.mark.smoke
def test_trials_run_at_once_in_workers_that_are_used_again_and_what_they_print_is_in_the_folder_of_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    diary, events = Diary(tmp_path / "diary"), Events()
    best = search(tmp_path, 8, MeetsTheOther(diary), Prints(), progress=events)
    assert states(best) == ["complete"] * 8
    entries = diary.read()
    workers = {pid for _, _, pid in entries}
    assert len(workers) == 2
    assert os.getpid() not in workers
    assert {run for _, run, _ in entries} == {f"run-{number}" for number in range(8)}
    assert any(note.startswith("2 workers on the CPU, each with") for note in events.notes)
    assert [psutil.pid_exists(pid) for pid in workers] == [False, False]
    assert best.load_model() is not None
    for number in range(8):
        lines = (tmp_path / "study" / f"run-{number}" / OUTPUT_FILE).read_text().splitlines()
        assert sorted(lines)[1:] == ["and says so"] * 7 + sorted(f"run-{number} is at {step}" for step in range(1, 9))
    assert "is at" not in capfd.readouterr().out


def build(trial: Any) -> TwoLayers:
    return TwoLayers(trial.suggest_int("hidden", 2, 9))


def test_a_trial_is_that_of_a_search_in_one_process_also_with_what_model_init_suggests(tmp_path: Path) -> None:
    given = {"trainer": {"model_init": build, "num_train_epochs": 4}}
    alone, beside = (
        search(tmp_path / name, 6, n_jobs=n_jobs, sampler=optuna.samplers.RandomSampler(seed=3), **given).run_summary
        for name, n_jobs in (("alone", 1), ("beside", 2))
    )
    for one, other in zip(alone.records, beside.records, strict=True):
        assert one.params == other.params
        assert [(each.step, each.values) for each in one.reports] == [
            (each.step, each.values) for each in other.reports
        ]
    assert len({record.params["hidden"] for record in beside.records}) > 1
    assert [trial.params for trial in beside.engine_study.trials] == [record.params for record in beside.records]


def test_several_objectives_with_a_constraint_and_pruning_work_in_workers(tmp_path: Path) -> None:
    front = search(
        tmp_path,
        10,
        trainer={"model_init": build, "num_train_epochs": 4},
        compute_objective=["eval_loss", "num_parameters"],
        direction=["minimize", "minimize"],
        constraints=Constraint("num_parameters", at_most=40),
        pruning_metric="eval_loss",
        pruner=optuna.pruners.PercentilePruner(30.0, n_startup_trials=1),
    )
    records = front[0].run_summary.records
    assert {record.state.value for record in records} == {"complete", "pruned"}
    assert all(run.run_summary is front[0].run_summary for run in front)
    stored = {trial.number: trial.state.name.lower() for trial in front[0].run_summary.engine_study.trials}
    assert stored == {record.number: record.state.value for record in records}


def test_trials_of_several_objectives_pause_and_resume_in_workers(tmp_path: Path) -> None:
    front = search(
        tmp_path,
        12,
        trainer={"model_init": build, "num_train_epochs": 6},
        compute_objective=["eval_loss", "num_parameters"],
        direction=["minimize", "minimize"],
        pruner="rungs",
    )
    records = front[0].run_summary.records
    assert {record.state.value for record in records} == {"complete", "pruned"}
    assert any(len(record.reports) == 1 for record in records)
    assert records[0].state.value == "complete"
    assert all(run.load_model() is not None for run in front)


# Workers that die.


def kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail_in_memory() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def leave() -> None:
    os._exit(3)


ENDS = (leave, fail_in_memory, kill_oneself)
REASONS = ("it ended with exit code 3", "SIGSEGV", "SIGKILL, possibly because memory ran out")


class Dies(TrainerCallback):
    """Writes down the steps; ends its process after step 6 of run-1 once, and of run-2 every time in another way."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        run = Path(args.output_dir).name
        before = [(name, step) for name, step, _ in self._diary.read()].count((run, 6))
        self._diary.write((run, state.global_step, os.getpid()))
        if state.global_step == 6 and (run == "run-2" or (run == "run-1" and not before)):
            ENDS[before]()


@pytest.mark.smoke
def test_the_trial_of_a_dead_worker_goes_on_in_another_one_and_is_given_up_at_last(tmp_path: Path) -> None:
    diary, events = Diary(tmp_path / "diary"), HearsNotices()
    best = search(tmp_path, 4, Dies(diary), trainer={"save_strategy": "epoch"}, trial_retries=2, progress=events)
    assert states(best) == ["complete", "complete", "failed", "complete"]
    record = best.run_summary.records[2]
    assert record.reason == f"its worker died: {REASONS[2]}"
    assert len(record.reports) == 1
    entries = diary.read()
    steps = {run: [step for name, step, _ in entries if name == run] for run in ("run-0", "run-1", "run-2", "run-3")}
    assert steps["run-0"] == steps["run-3"] == [*range(1, 9)]
    assert steps["run-1"] == [1, 2, 3, 4, 5, 6, 5, 6, 7, 8]
    assert steps["run-2"] == [1, 2, 3, 4, 5, 6, 5, 6, 5, 6]
    told = [notice for notice in events.notices if "has lost its worker" in notice]
    assert [sum(f"({reason})" in notice for notice in told) for reason in REASONS] == [2, 1, 0]
    alone = search(tmp_path / "alone", 2, n_jobs=1, trainer={"save_strategy": "epoch"}).run_summary.records
    assert [record.values for record in best.run_summary.records[:2]] == [record.values for record in alone]


def test_a_worker_that_cannot_load_the_trainer_refuses_the_search(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"cannot be loaded in a worker: RuntimeError: not here"):
        search(tmp_path, 2, trainer={"model_init": LoadsNowhere()})
    assert not (tmp_path / "study" / "sessions").exists()


class LoadsNowhere(CountsModels):
    def __reduce__(self) -> Any:
        return (_fail, ())


def _fail() -> None:
    raise RuntimeError("not here")


def test_workers_that_die_at_once_end_the_search(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"No worker can be started: it ended with exit code 3"):
        search(tmp_path, 2, trainer={"model_init": LeavesWhenLoaded()})


class LeavesWhenLoaded(CountsModels):
    def __reduce__(self) -> Any:
        return (leave, ())


# Workers that are replaced.


class WritesProcess(TrainerCallback):
    def __init__(self, diary: Diary, hoards: bool = False) -> None:
        self._diary, self._hoards = diary, hoards

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._diary.write(os.getpid())
        if self._hoards and Path(args.output_dir).name == "run-1":
            HOARD.append(bytearray(os.urandom(1)) * (1200 * 2**20))


HOARD: list[bytearray] = []


def test_a_worker_is_replaced_after_so_many_trials(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    best = search(tmp_path, 7, WritesProcess(diary), n_jobs=1, trials_per_worker=3)
    assert states(best) == ["complete"] * 7
    assert sorted(Counter(diary.read()).values()) == [1, 3, 3]


def test_a_worker_that_keeps_too_much_memory_is_replaced(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    limit = psutil.Process().memory_info().rss + 200 * 2**20
    best = search(tmp_path, 4, WritesProcess(diary, hoards=True), n_jobs=1, worker_memory=limit)
    assert states(best) == ["complete"] * 4
    first, second, third, fourth = diary.read()
    assert first == second != third == fourth


def test_workers_that_are_replaced_after_each_trial_are_said_to_be_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    diary = Diary(tmp_path / "diary")
    search(tmp_path, 3, WritesProcess(diary), n_jobs=1, worker_memory=1e6)
    assert len(set(diary.read())) == 3
    (said,) = [each.getMessage() for each in caplog.records if "worker_memory" in each.getMessage()]
    assert "more than the limit of 1 MB" in said


# How many there are, and how they are started.


def test_there_are_no_more_workers_than_trials(tmp_path: Path) -> None:
    events, diary = Events(), Diary(tmp_path / "diary")
    search(tmp_path, 2, WritesProcess(diary), n_jobs=7, progress=events)
    (note,) = [each for each in events.notes if "workers on" in each]
    assert re.fullmatch(r"2 workers on the CPU, each with \d+ threads? \(no more workers than trials\)", note)
    assert len(set(diary.read())) <= 2


def test_a_search_of_one_trial_has_one_worker(tmp_path: Path) -> None:
    events, diary = Events(), Diary(tmp_path / "diary")
    search(tmp_path, 1, WritesProcess(diary), n_jobs=-1, progress=events)
    assert any(each.startswith("1 worker on the CPU") for each in events.notes)
    assert diary.read() != [os.getpid()]


def test_a_file_that_the_trainer_misses_is_no_want_of_room(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="cannot be pickled") as error:
        search(tmp_path, 2, trainer={"model_init": MissesAFile()})
    assert "TMPDIR" not in str(error.value)


def test_a_pretrained_model_that_is_not_there_is_what_the_error_says(tmp_path: Path) -> None:
    pretrained = FromPretrained(AutoModelForSequenceClassification, tmp_path / "no-such-model")
    with pytest.raises(
        StudyError, match=r"FromPretrained\(AutoModelForSequenceClassification, .*no-such-model'\)"
    ) as error:
        search(tmp_path / "out", 2, trainer={"model_init": pretrained})
    assert "pickle" not in str(error.value)


def test_to_name_what_cannot_be_pickled_takes_no_memory_to_speak_of() -> None:
    rows = torch.zeros(2000, 2**15)  # 262 MB; plainly pickled, each of its rows is all of it
    held = types.SimpleNamespace(train_dataset=list(rows), compute_metrics=threading.Lock())
    tracemalloc.start()
    try:
        found = culprit(held)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found is not None
    assert found[0] == ".compute_metrics"
    assert most < 50e6


class MissesAFile(CountsModels):
    def __getstate__(self) -> Any:
        return Path("/nowhere/weights").read_bytes()


def test_where_processes_cannot_be_forked_each_worker_is_a_fresh_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "_FORK_IS_SAFE", False)
    diary = Diary(tmp_path / "diary")
    options = {"n_jobs": 1, "trials_per_worker": 2}
    best = search(tmp_path, 2, WritesParent(diary), trainer={"model_init": lambda: TwoLayers(3)}, **options)
    assert states(best) == ["complete"] * 2
    assert {parent for _, parent in diary.read()} == {os.getpid()}  # there is no server between


class WritesParent(TrainerCallback):
    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._diary.write((os.getpid(), os.getppid()))


def test_where_there_is_no_room_for_the_data_the_error_says_how_to_put_it_elsewhere(tmp_path: Path) -> None:
    class Large(list[Any]):
        def __init__(self) -> None:
            super().__init__(points(16, seed=0))
            self.more = torch.zeros(4 * 2**20)

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**23, before[1]))  # bytes a file may have
    try:
        with pytest.raises(StudyError, match=r"cannot be written for workers: .*TMPDIR"):
            search(tmp_path, 2, trainer={"train_dataset": Large()})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# The end of a search.


def test_too_many_failures_end_the_search_although_a_trial_beside_them_goes_well(tmp_path: Path) -> None:
    with pytest.raises(TooManyFailuresError, match=r"last 2 trials failed.*out of luck") as caught:
        search(tmp_path, 8, FailsBesideASlowOne(), max_failures=2)
    assert states(caught.value.best_run)[:3] == ["complete", "failed", "failed"]
    assert caught.value.best_run.run_id == "0"


def test_trials_at_once_share_the_epochs_of_the_study(tmp_path: Path) -> None:
    best = search(tmp_path, 8, trainer={"num_train_epochs": 50}, max_epochs=20)
    records = best.run_summary.records
    assert set(states(best)) == {"stopped"}
    assert all("the study's 20 epochs are exhausted" in record.reason for record in records)
    assert 20 <= sum(record.epochs for record in records) <= 22


SEARCHES = """
    import signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from pathlib import Path
    import torch
    from hpsearch import Float, SearchInterrupted
    from tests.support.searching import Diary
    from tests.support.small_trainer import TwoLayers, small_trainer
    from transformers import AutoModelForSequenceClassification, TrainerCallback

    folder = Path(sys.argv[1])

    class OfMain(TwoLayers):
        pass

    class Waits(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            import os
            Diary(folder / "diary").write((Path(args.output_dir).name, state.global_step, os.getpid()))
            if state.global_step >= 6:
                time.sleep(1000)

    # No guard: a worker must not run this file.
    options = {"save_strategy": "epoch", "num_train_epochs": 6}
    trainer = small_trainer(folder, Waits(), model_init=lambda trial: OfMain(), **options)
    try:
        best = trainer.hyperparameter_search(
            lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1)},
            lambda metrics: metrics["eval_loss"], direction="minimize", n_trials=4, n_jobs=2, pruner="none",
        )
    except SearchInterrupted as error:
        print("interrupted", [record.state.value for record in error.best_run.run_summary.records])
        sys.exit(7)
"""


class Script:
    """A program that searches, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        path = folder / "script.py"
        path.write_text(textwrap.dedent(SEARCHES))
        self.diary = Diary(folder / "diary")
        self._process = subprocess.Popen(
            [sys.executable, str(path), str(folder)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def wait_until_held(self) -> None:
        wait_until_held(self.diary, lambda: self._process.poll() is None)

    def press_ctrl_c(self) -> None:
        os.killpg(self._process.pid, signal.SIGINT)

    def read_to(self, words: str) -> None:
        assert self._process.stdout is not None
        assert any(words in line for line in self._process.stdout)

    def result(self) -> tuple[int, str]:
        told, _ = self._process.communicate(timeout=60)
        return self._process.returncode, told

    def workers(self) -> set[int]:
        return {pid for _, _, pid in self.diary.read()}


def wait_until_held(diary: Diary, is_running: Callable[[], bool]) -> None:
    """Wait until two trials hang."""
    until = time.monotonic() + 120
    while len({run for run, step, _ in diary.read() if step >= 6}) < 2:
        assert time.monotonic() < until
        assert is_running()
        time.sleep(0.02)


def are_gone(processes: set[int], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while any(is_alive(pid) for pid in processes):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


class WritesSteps(TrainerCallback):
    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._diary.write((Path(args.output_dir).name, state.global_step, os.getpid()))


def search_with(folder: Path, callback: TrainerCallback) -> BestRun:
    trainer = small_trainer(folder, callback, save_strategy="epoch", num_train_epochs=6)
    return trainer.hyperparameter_search(
        lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1)},
        lambda metrics: metrics["eval_loss"],
        direction="minimize",
        n_trials=4,
        n_jobs=2,
        pruner="none",
        progress=False,
    )


def assert_continues(folder: Path) -> None:
    """Search as the script did, here, and check that its two trials are resumed after a checkpoint."""
    diary = Diary(folder / "continued")
    best = search_with(folder, WritesSteps(diary))
    assert states(best) == ["complete"] * 4
    for run in ("run-0", "run-1", "run-2", "run-3"):
        first, *others = (step for name, step, _ in diary.read() if name == run)
        assert first % 4 == 1, "after a checkpoint"
        assert (first > 1) == (run in ("run-0", "run-1"))
        assert [first, *others] == [*range(first, 25)]


def test_a_second_ctrl_c_ends_all_within_five_seconds_although_the_trials_sleep_and_the_search_continues(
    tmp_path: Path,
) -> None:
    """What the script defines is defined in its `__main__`."""
    with Script(tmp_path) as script:
        script.wait_until_held()
        script.press_ctrl_c()
        script.read_to("Ctrl-C again ends immediately")
        script.press_ctrl_c()
        assert are_gone(script.workers(), 5.0)
        code, told = script.result()
    assert code == 7, told
    assert "interrupted ['interrupted', 'interrupted']" in told
    assert not (tmp_path / "study" / "sessions").exists()
    assert_continues(tmp_path)


class Hangs(WritesSteps):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_step_end(args, state, control)
        if state.global_step >= 6:
            time.sleep(1000)


def search_until_killed(folder: Path, diary: Diary) -> None:
    search_with(folder, Hangs(diary))


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_workers_end_at_once_when_the_process_that_searches_is_killed_and_the_next_search_tidies_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    diary = Diary(tmp_path / "diary")
    process = multiprocessing.get_context("fork").Process(target=search_until_killed, args=(tmp_path, diary))
    process.start()
    try:
        wait_until_held(diary, process.is_alive)
    finally:
        process.kill()
    assert are_gone({pid for _, _, pid in diary.read()}, 2.0)
    process.join()
    assert list(scratch.glob("hpsearch-*/data"))
    assert_continues(tmp_path)
    assert not list(scratch.glob("hpsearch-*"))


class PressesCtrlC(SearchListener):
    """Presses Ctrl-C when both trials have reported."""

    def __init__(self) -> None:
        self.reported: set[int] = set()

    def on_report(self, trial: Any, report: Any) -> None:
        if trial.number not in self.reported:
            self.reported.add(trial.number)
            if len(self.reported) == 2:
                signal.raise_signal(signal.SIGINT)


def test_workers_that_train_leave_their_trials_at_ctrl_c_and_report_how_far_they_are(tmp_path: Path) -> None:
    trainer = {"save_strategy": "epoch", "num_train_epochs": 2000}
    with pytest.raises(SearchInterrupted) as caught:
        search(tmp_path, 4, trainer=trainer, progress=PressesCtrlC())
    records = caught.value.best_run.run_summary.records
    assert [record.state.value for record in records] == ["interrupted", "interrupted"]
    assert all(record.reports and record.spans[-1].where for record in records)
    for record in records:  # at the step after which it has left
        reached = round(record.epochs * 4)
        assert (tmp_path / "study" / record.name / f"checkpoint-{reached}").is_dir()
    assert not (tmp_path / "study" / "sessions").exists()


def search_in_a_child(folder: Path) -> None:
    search(folder, 2, WritesParent(Diary(folder / "diary")), trainer={"num_train_epochs": 1})


def search_as_a_daemon(folder: Path) -> None:
    with pytest.raises(StudyError, match="n_jobs=2 starts workers, which this process may not: it is a daemon"):
        search(folder, 2)
    assert not (folder / "study").exists()


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_process_that_the_program_has_forked_has_workers_of_its_own_and_a_daemon_is_refused(tmp_path: Path) -> None:
    servers = []
    fork = multiprocessing.get_context("fork")
    search_in(tmp_path / "first", servers)
    for target, name, is_daemon in ((search_in_a_child, "second", False), (search_as_a_daemon, "daemon", True)):
        (tmp_path / name).mkdir()
        process = fork.Process(target=target, args=(tmp_path / name,), daemon=is_daemon)
        process.start()
        process.join()
        assert process.exitcode == 0
    (other,) = {parent for _, parent in Diary(tmp_path / "second" / "diary").read()}
    search_in(tmp_path / "third", servers)
    assert servers[0] == servers[1] != other


def search_in(folder: Path, servers: list[int]) -> None:
    folder.mkdir()
    search_in_a_child(folder)
    servers += {parent for _, parent in Diary(folder / "diary").read()}


IN_A_SESSION = """
    import logging, os, sys
    from multiprocessing import forkserver
    from pathlib import Path

    folder, elsewhere, root = sys.argv[1:]
    forkserver.set_forkserver_preload(["string"])
    forkserver.ensure_running()  # it knows nothing of torch

    assert sys.path[0] == ""
    sys.path.insert(1, root)  # nowhere else is hpsearch
    sys.path.insert(1, Path(root))  # Python does not look at it
    from hpsearch import Categorical, Float, Trainer, TrainingArguments
    from tests.support.small_trainer import TwoLayers, points
    from transformers import TrainerCallback

    os.chdir(elsewhere)  # as %cd does
    import evaluate  # the program's own
    import of_the_user

    logging.basicConfig(level=logging.INFO, format="the program: %(levelname)s %(message)s")

    class Arguments(TrainingArguments):
        pass

    class WritesWhatItFinds(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            import gc
            found = [gc.get_freeze_count() > 1000, os.getcwd(), sys.argv[1], __name__, sys.stdin.read()]
            Path(args.output_dir, "found").write_text(repr(found))

    def model_init(trial):
        logging.getLogger("of.the.user").info("hidden units: %d", of_the_user.HIDDEN)
        logging.getLogger("of.the.user").debug("not this")
        return TwoLayers(of_the_user.HIDDEN)

    args = Arguments(folder, num_train_epochs=1, eval_strategy="epoch", use_cpu=True, report_to="none")
    data = {"train_dataset": points(16, 0), "eval_dataset": points(16, 1)}
    trainer = Trainer(args=args, model_init=model_init, callbacks=[WritesWhatItFinds()], **data)
    space = {"learning_rate": Float(1e-3, 1e-1, log=True)}
    best = trainer.hyperparameter_search(
        space, "loss", n_trials=2, n_jobs=2, pruner="none", progress=False, keep_checkpoints=None
    )
    print(type(best.run_summary.records[0]).__name__)
"""


def test_a_session_that_has_gone_elsewhere_finds_all_of_its_own_in_workers_that_are_warm(tmp_path: Path) -> None:
    """Its folder, modules, arguments and log format, whatever it has started before and wherever it finds us."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "of_the_user.py").write_text("HIDDEN = 5\n")
    (elsewhere / "evaluate.py").write_text("import sys\nassert sys.argv[0] != '-c', 'imported by the server'\n")
    told = subprocess.run(
        [sys.executable, "-", str(tmp_path), str(elsewhere), str(ROOT)],
        input=textwrap.dedent(IN_A_SESSION),
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert told.returncode == 0, told.stderr
    for run in ("run-0", "run-1"):
        folder = tmp_path / "study" / run
        assert literal_eval((folder / "found").read_text()) == [True, str(elsewhere), str(tmp_path), "__main__", ""]
        saved = list(folder.glob("checkpoint-*/training_args.bin"))
        assert len(saved) == 1, "the arguments are saved, as standard pickle does it: by name"
        lines = (folder / OUTPUT_FILE).read_text().splitlines()
        assert "the program: INFO hidden units: 5" in lines
        assert not any("not this" in line for line in lines)


def test_a_trial_whose_output_cannot_be_written_is_trained_all_the_same(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / OUTPUT_FILE).mkdir()
    with output_to(tmp_path / OUTPUT_FILE):
        print("trained", flush=True)
    assert capfd.readouterr().out == "trained\n"


# What cannot be.


@pytest.mark.parametrize(
    ("part", "name"),
    [("model_init", r"\.model_init"), ("data_collator", r"\.data_collator"), ("compute_metrics", r"\.compute_metrics")],
)
def test_a_part_that_cannot_be_pickled_is_named_before_anything_is_written(
    tmp_path: Path, part: str, name: str
) -> None:
    lock = threading.Lock()
    trainer = small_trainer(tmp_path)
    setattr(trainer, part, lambda *args: lock)
    with pytest.raises(
        StudyError, match=rf"cannot be sent to workers: {name} cannot be pickled.*created where they are"
    ):
        trainer.hyperparameter_search(RATE, "loss", n_trials=2, n_jobs=2, progress=False)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_jobs": 0}, r"n_jobs must be"),
        ({"devices": [0]}, r"GPU 0 does not exist"),
        ({"trials_per_worker": 0}, r"trials_per_worker must be None or a whole number of at least 1, but got 0"),
        ({"worker_memory": "4 GB"}, r"worker_memory must be None or a number of bytes, but got '4 GB'"),
        ({"worker_memory": True}, r"worker_memory must be None or a number of bytes, but got True"),
        ({"max_concurrent_trials": 2}, r"max_concurrent_trials=2 is not taken: pass n_jobs"),
        ({"scheduler": "asha"}, r"scheduler='asha' is not taken: pass pruner \(or backend='ray'\)"),
        ({"trial_retries": -1}, r"trial_retries must be a whole number of at least 0, but got -1"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_an_option_out_of_range_is_refused(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        search(tmp_path, 2, **options)


@pytest.mark.parametrize("options", [{"devices": [0]}, {"trials_per_device": 2}])
@pytest.mark.skipif(torch.cuda.is_available(), reason="it makes one up")
def test_gpus_are_refused_to_a_trainer_that_is_to_use_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    monkeypatch.setattr(process_executor, "_gpus", lambda: 1)
    with pytest.raises(StudyError, match=r"=.* is about GPUs, but use_cpu=True trains on the CPU"):
        search(tmp_path, 2, **{"n_jobs": None, **options})


@pytest.mark.parametrize("name", ["compute_objective", "constraints"])
def test_an_objective_that_cannot_be_pickled_is_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    lock = threading.Lock()

    def of_metrics(metrics: dict[str, float]) -> float:
        return metrics["eval_loss"] if lock else 0.0

    given = {"constraints": [Constraint(of_metrics, at_most=1.0)]} if name == "constraints" else {name: of_metrics}
    with pytest.raises(
        StudyError, match=rf"{name}: .*'of_metrics.*' cannot be sent to workers.*created where they are used"
    ):
        search(tmp_path, 2, direction="minimize", **given)
    assert not (tmp_path / "study").exists()


class CannotChoose(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("no value for hidden")
        self.lock = threading.Lock()


class ChoosesTwice(optuna.samplers.RandomSampler):
    """Has no value for the size of the third model."""

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        if param_name == "hidden" and trial.number == 2:
            raise CannotChoose
        return super().sample_independent(study, trial, param_name, param_distribution)


def test_an_error_of_the_sampler_that_cannot_be_pickled_is_that_of_its_trial(tmp_path: Path) -> None:
    best = search(tmp_path, 4, trainer={"model_init": build}, sampler=ChoosesTwice(seed=1))
    assert states(best) == ["complete", "complete", "failed", "complete"]
    assert "CannotChoose: no value for hidden" in str(best.run_summary.records[2].reason)


def test_data_loaders_of_workers_may_have_processes_of_their_own(tmp_path: Path) -> None:
    best = search(tmp_path, 1, trainer={"dataloader_num_workers": 1, "num_train_epochs": 1})
    assert states(best) == ["complete"]


def test_a_large_dataset_is_mapped_and_not_copied_by_each_worker(tmp_path: Path) -> None:
    class Wide(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self._x, self._points = torch.zeros(300, 2**18), points(16, seed=0)

        def __len__(self) -> int:
            return len(self._points)

        def __getitem__(self, place: int) -> Any:
            return self._points[place]

    diary = Diary(tmp_path / "diary")
    search(tmp_path, 4, WritesMemory(diary), trainer={"train_dataset": Wide()})
    assert max(diary.read()) < 150 * 2**20


class WritesMemory(TrainerCallback):
    """Writes down how much memory is this process's alone."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._diary.write(psutil.Process().memory_full_info().uss)


def test_tpe_searches_a_space_of_our_own_types_with_running_trials_in_mind(tmp_path: Path) -> None:
    best = search(tmp_path, 4, hp_space={"learning_rate": Float(1e-4, 1e-1, log=True)}, seed=5, sampler="tpe")
    assert best.run_summary.engine_study.sampler._constant_liar


class LeavesAChild(TrainerCallback):
    """Dies in the second run, once, and leaves a process that keeps everything open which it had inherited."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if Path(args.output_dir).name == "run-1" and state.global_step == 6 and not self._diary.read():
            child = os.fork()
            if child == 0:
                time.sleep(600)
                os._exit(0)
            self._diary.write(child)
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_dead_worker_is_noticed_and_what_it_has_started_ends_with_it(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    begin = time.monotonic()
    best = search(tmp_path, 3, LeavesAChild(diary), trainer={"save_strategy": "epoch"})
    assert states(best) == ["complete"] * 3
    assert time.monotonic() - begin < 60
    assert are_gone(set(diary.read()), 2.0)


class WritesVariable(TrainerCallback):
    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._diary.write([os.environ.get("MINE"), os.environ.get("CUDA_VISIBLE_DEVICES"), torch.get_num_threads()])


def test_workers_have_the_variables_of_their_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("first", "second"):
        monkeypatch.setenv("MINE", value)
        monkeypatch.setenv("OMP_NUM_THREADS", "1" if value == "first" else "2")
        diary = Diary(tmp_path / value)
        search(tmp_path, 2 if value == "first" else 4, WritesVariable(diary))
        assert {tuple(each) for each in diary.read()} == {(value, "", 1 if value == "first" else 2)}


def test_the_process_that_searches_evaluates_the_test_set_after_its_workers(tmp_path: Path) -> None:
    held_out = points(32, seed=2)
    best = search(tmp_path, 2, test_dataset=held_out)
    alone = small_search.search(tmp_path / "alone", 2, test_dataset=held_out)
    assert best.test_metrics is not None
    assert best.test_metrics["test_loss"] == alone.test_metrics["test_loss"]
    defaults, same = best.run_summary.held_out.defaults, alone.run_summary.held_out.defaults
    assert defaults.metrics["test_loss"] == same.metrics["test_loss"]
