"""How many trials share a GPU if memory decides it, and what happens to a trial for which it was not enough.

Without a GPU, the numbers of a measurement are made up, and the trainings use the CPU.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from hpsearch import BestRun, StudyError
from hpsearch.executors.processes import process_executor
from hpsearch.executors.processes.device_memory import DeviceMemory
from hpsearch.executors.processes.shared_devices import SharedDevices
from tests.support import in_workers
from tests.support.searching import Diary, HearsNotices, states

GIB = 2**30


def memory(peak: float, total: float = 80, others: float = 0.5) -> DeviceMemory:
    return DeviceMemory(int(total * GIB), int(peak * GIB), int(others * GIB))


@pytest.mark.parametrize(
    ("used", "trials"),
    [
        (memory(peak=7.5), 9),  # 72 / 8
        (memory(peak=7.6), 8),
        (memory(peak=71.5), 1),
        (memory(peak=79), 1),  # it did fit, once
        (memory(peak=7.5, total=24), 2),
        (memory(peak=7, others=1), 9),
        (memory(peak=7, others=9), 8),  # 1 GiB for a context, 8 of other programs: 64 / 8
        (memory(peak=7, others=75), 1),
        (memory(peak=0, others=0), int(0.9 * 80 * GIB)),
    ],
)
def test_as_many_trials_share_a_gpu_as_fit_into_nine_tenths_of_it(used: DeviceMemory, trials: int) -> None:
    assert used.parallel_trials == trials


@pytest.mark.parametrize(
    ("most_workers", "machine", "of_worker", "counts"),
    [
        (24, 1024, 1, (4, 9)),
        (9, 1024, 1, (4, 4)),  # 5 and 4
        (3, 1024, 1, (2, 1)),
        (2, 1024, 1, (1, 1)),
        (1, 1024, 1, (1, 1)),
        (16, 10, 1.5, (3, 3)),  # 9 GiB for six workers
        (16, 1, 4, (1, 1)),
    ],
)
def test_no_more_workers_than_the_cores_and_the_memory_of_the_machine_allow(
    most_workers: int, machine: float, of_worker: float, counts: tuple[int, int]
) -> None:
    shared = SharedDevices([0, 3], most_workers, machine * GIB)
    assert shared.note(0, memory(peak=17), int(of_worker * GIB))
    assert shared.note(3, memory(peak=7.5), int(of_worker * GIB))
    assert (shared.workers_on(0), shared.workers_on(3)) == counts


def test_the_largest_trial_so_far_decides_and_what_others_used_at_first() -> None:
    shared = SharedDevices([0], 16)
    assert shared.workers_on(0) == 1
    assert shared.note(0, memory(peak=7.5), GIB)
    assert shared.workers_on(0) == 9
    assert not shared.note(0, memory(peak=3, others=70), GIB)  # by then the others are workers of the search
    assert shared.workers_on(0) == 9
    assert not shared.note(0, memory(peak=35, others=40), GIB)
    assert shared.workers_on(0) == 2
    assert not shared.note(0, memory(peak=7.5), GIB)
    assert shared.workers_on(0) == 2
    assert shared.workers_on(1) is None


@pytest.mark.parametrize(
    ("most", "peak", "said"),
    [
        (16, 7.5, "GPU 0: 9 trials in parallel, as the largest so far takes 8.6 GB of 85.9 GB"),
        (4, 7.5, "GPU 0: 4 trials in parallel (its memory has room for 9), as the largest so far takes 8.6 GB of 85.9"),
        (4, 60, "GPU 0: 1 trial at a time, as the largest so far takes 65.0 GB of 85.9 GB"),
    ],
)
def test_the_search_says_how_many_share_a_gpu_and_why(most: int, peak: float, said: str) -> None:
    shared = SharedDevices([0], most)
    shared.note(0, memory(peak), GIB)
    assert said in shared.described(0)


def test_a_gpu_is_kept_for_one_trial_after_the_other() -> None:
    shared = SharedDevices([0, 1], 4)
    assert shared.alone_on(0) is None
    shared.keep_for(0, 7)
    shared.keep_for(0, 5)
    assert (shared.alone_on(0), shared.alone_on(1)) == (7, None)
    shared.share_again(0)
    assert shared.alone_on(0) == 5
    shared.share_again(0)
    assert shared.alone_on(0) is None
    assert SharedDevices().alone_on(0) is None


class Uses(TrainerCallback):
    """Lets its process find that it has used this much of a GPU of 80 GiB; writes down when runs begin and end.

    Args:
        diary: for what happens.
        peaks: in GiB, by number of the trial.
        together: the trials that wait until all of them have begun.
        fails: the trial that runs out of memory once.
    """

    def __init__(
        self, diary: Diary, peaks: dict[int, float], together: tuple[int, ...] = (), fails: int | None = None
    ) -> None:
        self.diary, self.peaks, self.together, self.fails = diary, peaks, together, fails

    def number(self, args: Any) -> int:
        return int(Path(args.output_dir).name.split("-")[1])

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        used = memory(self.peaks.get(self.number(args), 7.5))
        DeviceMemory.measured = classmethod(lambda cls: used)  # type: ignore[method-assign, assignment]
        self.diary.write(("begin", self.number(args), os.getpid()))
        until = time.monotonic() + 100
        while self.number(args) in self.together and time.monotonic() < until:
            if {number for what, number, _ in self.diary.read() if what == "begin"}.issuperset(self.together):
                break
            time.sleep(0.01)
        if self.number(args) == self.fails and not self.has_failed():
            self.diary.write(("failed", self.number(args), os.getpid()))
            raise torch.OutOfMemoryError("CUDA out of memory.")

    def has_failed(self) -> bool:
        return any(what == "failed" for what, _, _ in self.diary.read())

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.diary.write(("end", self.number(args), os.getpid()))


def running_of(entries: list[Any]) -> set[int]:
    """Return the trials that have begun and neither ended nor failed."""
    running = set()
    for what, number, _ in entries:
        (running.add if what == "begin" else running.discard)(number)
    return running


def search(
    folder: Path, monkeypatch: pytest.MonkeyPatch, n_trials: int, *callbacks: Any, gpus: int = 1, **options: Any
) -> BestRun:
    monkeypatch.setattr(process_executor, "_gpus", lambda: gpus)
    given = {"n_jobs": 3, "trials_per_device": "auto", "trainer": {"use_cpu": False}, **options}
    return in_workers.search(folder, n_trials, *callbacks, **given)


process = pytest.mark.process
made_up = pytest.mark.skipif(torch.cuda.is_available(), reason="it makes one up")


@process
@made_up
def test_the_first_report_starts_further_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diary, events = Diary(tmp_path / "diary"), HearsNotices()
    best = search(tmp_path, monkeypatch, 6, Uses(diary, {}, together=(1, 2, 3)), progress=events)
    assert states(best) == ["complete"] * 6
    assert len({pid for what, _, pid in diary.read() if what == "begin"}) == 3
    assert any(note.startswith("1 worker on GPU 0, each with 1 thread; more as soon as") for note in events.notes)
    assert any("GPU 0: 3 trials in parallel (its memory has room for 9)" in each for each in events.notices)


@process
@made_up
def test_a_larger_trial_leaves_fewer_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diary, events = Diary(tmp_path / "diary"), HearsNotices()
    best = search(tmp_path, monkeypatch, 8, Uses(diary, {2: 60}, together=(1, 2, 3)), progress=events)
    assert states(best) == ["complete"] * 8
    begun = [entry for entry in diary.read() if entry[0] == "begin"]
    assert len({pid for _, _, pid in begun}) == 3
    assert len({pid for _, _, pid in begun[-3:]}) == 1  # two have ended
    assert any("GPU 0: 1 trial at a time, as the largest so far takes 65.0 GB" in each for each in events.notices)


@process
@made_up
def test_a_trial_that_runs_out_of_memory_beside_others_runs_again_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diary, events = Diary(tmp_path / "diary"), HearsNotices()
    best = search(tmp_path, monkeypatch, 8, Uses(diary, {}, together=(1, 2, 3), fails=2), progress=events)
    assert states(best) == ["complete"] * 8
    assert best.run_summary.records[2].reason is None
    assert any("trial 2 has run out of memory on a shared GPU: it runs again alone" in each for each in events.notices)
    entries = diary.read()
    again = entries.index(next(each for each in entries[::-1] if each[:2] == ["begin", 2]))
    assert running_of(entries[:again]) == set()
    assert entries[again + 1][:2] == ["end", 2]
    assert len(entries) > again + 2  # others follow


class FailsAtItsEnd(TrainerCallback):
    """The run 0 runs out of memory once, at its last step, when the run 2 has begun."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        is_at_end = args.output_dir.endswith("run-0") and state.global_step == state.max_steps
        if not is_at_end or any(what == "failed" for what, _, _ in self.diary.read()):
            return
        until = time.monotonic() + 100
        while not any(each[:2] == ["begin", 2] for each in self.diary.read()) and time.monotonic() < until:
            time.sleep(0.01)
        self.diary.write(("failed", 0, os.getpid()))
        raise torch.OutOfMemoryError("CUDA out of memory.")


@process
@made_up
def test_the_workers_of_another_gpu_do_not_keep_a_trial_from_running_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diary, events = Diary(tmp_path / "diary"), HearsNotices()
    callbacks = Uses(diary, {}), FailsAtItsEnd(diary)
    best = search(tmp_path, monkeypatch, 4, *callbacks, gpus=2, n_jobs=4, progress=events)
    assert states(best) == ["complete"] * 4
    assert any("trial 0 has run out of memory on a shared GPU" in each for each in events.notices)
    assert sum("Preflight" in each for each in events.notices) == 1


@process
@made_up
def test_a_trial_that_runs_out_of_memory_alone_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class AlwaysFails(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if args.output_dir.endswith("run-2"):
                raise torch.OutOfMemoryError("CUDA out of memory.")

    diary = Diary(tmp_path / "diary")
    best = search(tmp_path, monkeypatch, 5, Uses(diary, {}), AlwaysFails())
    assert states(best) == ["complete", "complete", "failed", "complete", "complete"]
    assert "CUDA out of memory" in str(best.run_summary.records[2].reason)


@process
@made_up
def test_a_trial_whose_worker_dies_while_it_is_alone_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Dies(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            begun = [each for each in diary.read() if each[:2] == ["begin", 2]]
            if args.output_dir.endswith("run-2") and len(begun) == 2:
                os.kill(os.getpid(), signal.SIGKILL)

    diary = Diary(tmp_path / "diary")
    best = search(tmp_path, monkeypatch, 6, Uses(diary, {}, together=(1, 2, 3), fails=2), Dies())
    assert states(best) == ["complete"] * 6
    assert sum(each[:2] == ["begin", 2] for each in diary.read()) == 3


@made_up
@pytest.mark.parametrize(
    ("trainer", "options", "said"),
    [
        ({}, {"trials_per_device": "atuo"}, r"trials_per_device must be None, 'auto' or a whole number of at least 1"),
        ({}, {"processes_per_trial": 2, "n_jobs": None}, r"trials_per_device='auto' and processes_per_trial=2 contra"),
        ({"use_cpu": True}, {}, r"trials_per_device='auto' is about GPUs, but use_cpu=True"),
        ({}, {"oom_fallback": True}, r"trials_per_device='auto' and oom_fallback=True contradict each other"),
        ({"skip_memory_metrics": False}, {}, r"trials_per_device='auto' and skip_memory_metrics=False both measure"),
    ],
)
def test_what_cannot_be_shared_by_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(StudyError, match=said):
        search(tmp_path, monkeypatch, 2, trainer={"use_cpu": False, **trainer}, **options)
    assert not (tmp_path / "study").exists()


@made_up
def test_a_machine_without_a_gpu_has_none_to_share(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"trials_per_device='auto': this process has no GPU; n_jobs sets"):
        in_workers.search(tmp_path, 2, trials_per_device="auto", trainer={"use_cpu": False})
