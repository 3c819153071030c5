"""A plain function whose trials are called by groups of two processes: what these see, agree on, and survive."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import psutil
import pytest
import torch
from torch import distributed
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from hpsearch import BestRun, Float, FunctionTrial, HpsearchError, TrialState, tune
from hpsearch.executors.processes import group_checks
from tests.support.in_groups import DoesNotWaitLong
from tests.support.search_processes import assert_disk_and_storage_agree, assert_nothing_is_left_over
from tests.support.searching import Diary, HearsNotices, states

pytestmark = pytest.mark.process
LR = {"lr": Float(1e-3, 1e-1, log=True)}
STEPS = 6
X = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
Y = X.sum(1, keepdim=True)


def search(folder: Path, function: Callable[[Any], Any], **arguments: Any) -> BestRun:
    given = {"n_trials": 2, "pruner": None, "seed": 3, "progress": False, "processes_per_trial": 2, **arguments}
    best = tune(function, given.pop("space", LR), output_dir=folder, max_resource=STEPS, **given)
    assert isinstance(best, BestRun)
    return best


def reports(best: BestRun) -> list[list[float]]:
    return [[report.value for report in record.reports] for record in best.run_summary.records]


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


class TrainsALine:
    """A loop over batches of eight, which the processes of torch's group divide among them.

    Args:
        diary: notes what each process sees.
    """

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def __call__(self, trial: FunctionTrial) -> None:
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size > 1:
            distributed.init_process_group("gloo")
        names = ("LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        self.diary.write(
            [trial.number, rank(), os.getpid(), *map(os.environ.get, names), trial.seed, trial.params["lr"]]
        )
        model: Any = torch.nn.Linear(4, 1)
        if size > 1:
            model = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["lr"])
        for step in range(1, STEPS + 1):
            for batch in torch.arange(len(X)).split(8):
                mine = batch[rank() :: size]
                optimizer.zero_grad()
                mse_loss(model(X[mine]), Y[mine]).backward()
                optimizer.step()
            trial.report({"loss": mse_loss(model(X), Y)}, step)
            if trial.should_prune():
                return


def test_a_loop_in_a_group_reports_what_one_process_reports_with_the_same_effective_batch(tmp_path: Path) -> None:
    diary, heard = Diary(tmp_path / "diary"), HearsNotices()
    best = search(tmp_path / "group", TrainsALine(diary), progress=heard)
    alone = search(tmp_path / "alone", TrainsALine(Diary(tmp_path / "other")), processes_per_trial=1)
    assert states(best) == ["complete"] * 2
    for ours, theirs in zip(reports(best), reports(alone), strict=True):
        assert len(ours) == STEPS
        assert ours == pytest.approx(theirs, abs=1e-5)
    of_first_call, calls = diary.read()[:2], diary.read()[2:]
    assert sorted(each[1] for each in of_first_call) == [0, 1], "the first call is one of a group, too"
    assert sorted(each[:2] for each in calls) == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert len({pid for _, _, pid, *_ in calls}) == 2, "the group has made torch's process group twice"
    assert {tuple(each[3:6]) for each in calls} == {("0", "2", "127.0.0.1"), ("1", "2", "127.0.0.1")}
    of_trials = [{tuple(each[6:]) for each in calls if each[0] == number} for number in (0, 1)]
    [[(port, seed, rate)], [(next_port, next_seed, next_rate)]] = of_trials
    assert seed == next_seed
    assert rate != next_rate
    assert port != next_port, "else torch could find the addresses of the last trial's process group"
    assert any("1 group of 2 processes on the CPU" in note for note in heard.notes)
    assert not any("batch" in note for note in heard.notes)


class AsksInAll:
    """A loop without torch's process group: both processes report, save their parts, and ask whether to end.

    Args:
        diary: notes what each process sees.
        act: is called after a report, with the trial and the step.
    """

    def __init__(self, diary: Diary, act: Callable[[FunctionTrial, int], None] = lambda trial, step: None) -> None:
        self.diary, self.act = diary, act

    def __call__(self, trial: FunctionTrial) -> None:
        begin = 0
        if trial.checkpoint is not None:
            parts = sorted(trial.checkpoint.glob("part-*"))
            assert [each.name for each in parts] == ["part-0", "part-1"]
            [begin] = {int(each.read_text()) for each in parts}
        lr = trial.suggest_float("lr", 1e-3, 1e-1, log=True)
        for step in range(begin + 1, STEPS + 1):
            trial.report((lr + 1 / step) if rank() == 0 else "process 1 reports nothing", step)
            self.act(trial, step)
            with trial.save() as folder:
                (folder / f"part-{rank()}").write_text(str(step))
            answer: Any = "paused"
            try:
                answer = trial.should_prune()
            finally:
                self.diary.write([trial.number, rank(), begin, step, answer, lr, os.getpid()])
            if answer:
                return


def suggests(trial: Any) -> None:
    """Leave all parameters to the function."""


OF_ITS_OWN = {"space": suggests, "direction": "minimize"}


def test_all_processes_get_the_same_answers_and_parameters_and_resume_from_parts_of_both(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    arguments = {**OF_ITS_OWN, "n_trials": 8, "pruner": "rungs"}
    best = search(tmp_path / "group", AsksInAll(diary), **arguments)
    first, second = ([[*each[:1], *each[2:6]] for each in diary.read() if each[1] == rank] for rank in (0, 1))
    assert first == second
    answers = [answer for _, _, _, answer, _ in first]
    assert {"paused", False} <= set(answers)
    assert any(begin > 0 for _, begin, *_ in first), "a trial was promoted"
    alone = search(tmp_path / "alone", DoesTheSameAlone(), **{**arguments, "processes_per_trial": 1})
    assert reports(best) == reports(alone)
    assert states(best) == states(alone)
    assert_disk_and_storage_agree(tmp_path / "group" / "study")
    assert_nothing_is_left_over(tmp_path / "group" / "study")


class DoesTheSameAlone:
    """The loop of `AsksInAll` in one process."""

    def __call__(self, trial: FunctionTrial) -> None:
        begin = 0 if trial.checkpoint is None else int((trial.checkpoint / "part-0").read_text())
        lr = trial.suggest_float("lr", 1e-3, 1e-1, log=True)
        for step in range(begin + 1, STEPS + 1):
            trial.report(lr + 1 / step, step)
            with trial.save() as folder:
                (folder / "part-0").write_text(str(step))
            if trial.should_prune():
                return


class Once:
    """Does something after the report of a step in one process, once."""

    def __init__(self, act: Callable[[], None], number: int, step: int, at: int, flag: Path) -> None:
        self.act, self.moment, self.flag = act, (number, step, at), flag

    def __call__(self, trial: FunctionTrial, step: int) -> None:
        if (trial.number, step, rank()) == self.moment and not self.flag.exists():
            self.flag.touch()
            self.act()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("at", [0, 1])
def test_a_trial_of_which_a_process_dies_resumes_from_its_checkpoint_in_a_new_group(tmp_path: Path, at: int) -> None:
    diary, heard = Diary(tmp_path / "diary"), HearsNotices()
    dies = AsksInAll(diary, Once(kill, 1, 4, at, tmp_path / "flag"))
    best = search(tmp_path / "died", dies, **OF_ITS_OWN, n_trials=3, progress=heard)
    assert states(best) == ["complete"] * 3
    assert any(f"trial 1 has lost its worker (process {at} of 2: SIGKILL" in each for each in heard.notices)
    begins = {begin for number, _, begin, *_ in diary.read() if number == 1}
    assert begins == {0, 3}
    assert reports(best) == reports(
        search(tmp_path / "whole", AsksInAll(Diary(tmp_path / "d")), **OF_ITS_OWN, n_trials=3)
    )
    pids = [{each[-1] for each in diary.read() if each[0] == number} for number in (0, 2)]
    assert not pids[0] & pids[1]
    assert not any(map(psutil.pid_exists, pids[0]))
    assert_disk_and_storage_agree(tmp_path / "died" / "study")


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_process_that_hangs_is_replaced_with_its_group_after_the_timeout_that_the_user_gives(tmp_path: Path) -> None:
    heard = HearsNotices()
    hangs = AsksInAll(Diary(tmp_path / "diary"), Once(stop, 0, 2, 1, tmp_path / "flag"))
    best = search(tmp_path / "s", hangs, **OF_ITS_OWN, n_trials=1, group_timeout=4, progress=heard)
    assert states(best) == ["complete"]
    assert any("trial 0 has lost its worker (no answer for 4 s)" in each for each in heard.notices)


def computes_for_long(trial: FunctionTrial) -> float:
    if isinstance(trial, FunctionTrial):
        threading.Event().wait(2.5)
    return float(trial.params["lr"])


def test_without_a_timeout_a_function_may_compute_for_as_long_as_it_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_checks, "_GROUP_TIMEOUT", 1.0)
    heard = HearsNotices()
    best = search(tmp_path, computes_for_long, direction="minimize", progress=heard)
    assert states(best) == ["complete"] * 2
    assert not any("lost" in each for each in heard.notices)


def fail() -> None:
    raise ValueError("a bad batch")


@pytest.mark.parametrize("at", [0, 1])
def test_an_error_of_one_process_fails_the_trial_though_the_other_one_waits_for_its_answer(
    tmp_path: Path, at: int
) -> None:
    begun = time.monotonic()
    fails = AsksInAll(Diary(tmp_path / "diary"), Once(fail, 1, 3, at, tmp_path / "flag"))
    best = search(tmp_path / "failed", fails, **OF_ITS_OWN, n_trials=3)
    assert states(best) == ["complete", "failed", "complete"]
    failed = best.run_summary.records[1]
    assert failed.reason == f"ValueError: a bad batch{' (in process 1)' if at else ''}"
    assert "in fail" in str(failed.traceback)
    assert [report.step for report in failed.reports][:2] == [1, 2]
    assert time.monotonic() - begun < 25, "no process waits for one that cannot come"
    assert_disk_and_storage_agree(tmp_path / "failed" / "study")


class KilledThenFails:
    """Kills process 1 at a step; then, later, that process fails while process 0 computes for long."""

    def __init__(self, flag: Path) -> None:
        self.kills, self.part = Once(kill, 1, 4, 1, flag), DoesNotWaitLong()

    def __call__(self, trial: FunctionTrial, step: int) -> None:
        self.kills(trial, step)
        if (trial.number, step) == (1, 5):
            if rank() == 1:
                fail()
            threading.Event().wait()


def test_an_error_of_a_process_fails_the_trial_and_a_new_group_continues_if_the_other_one_does_not_leave(
    tmp_path: Path,
) -> None:
    diary = Diary(tmp_path / "diary")
    best = search(tmp_path / "s", AsksInAll(diary, KilledThenFails(tmp_path / "flag")), **OF_ITS_OWN, n_trials=3)
    assert states(best) == ["complete", "failed", "complete"]
    failed = best.run_summary.records[1]
    assert failed.reason == "ValueError: a bad batch (in process 1)"
    assert [report.step for report in failed.reports] == [1, 2, 3, 4, 5]
    assert_disk_and_storage_agree(tmp_path / "s" / "study")


class FailsInTraining:
    """A loop of collectives, which one process leaves with an error in the first trial."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, trial: FunctionTrial) -> None:
        distributed.init_process_group("gloo")
        for step in range(1, STEPS + 1):
            if (trial.number, step, rank()) == (0, 3, self.at):
                raise ValueError("a bad batch")
            sum_of_ranks = torch.tensor(float(rank()))
            distributed.all_reduce(sum_of_ranks)
            trial.report({"loss": sum_of_ranks + trial.params["lr"]}, step)


@pytest.mark.parametrize("at", [0, 1])
def test_an_error_of_one_process_is_the_reason_though_the_other_one_was_in_a_collective(
    tmp_path: Path, at: int
) -> None:
    begun = time.monotonic()
    best = search(tmp_path, FailsInTraining(at), n_trials=2)
    assert states(best) == ["failed", "complete"]
    assert best.run_summary.records[0].reason == f"ValueError: a bad batch{' (in process 1)' if at else ''}"
    assert reports(best)[1] == [pytest.approx(1 + best.hyperparameters["lr"])] * STEPS
    assert time.monotonic() - begun < 25


def saves_in_process_0(trial: FunctionTrial) -> None:
    begin = 0 if trial.checkpoint is None else int((trial.checkpoint / "step").read_text())
    for step in range(begin + 1, STEPS + 1):
        if rank() == 0:
            trial.report({"loss": trial.params["lr"] / step}, step)
            with trial.save() as folder:
                (folder / "step").write_text(str(step))
        if trial.should_prune():
            return


def test_process_0_may_report_and_save_alone_if_all_ask_whether_the_trial_ends(tmp_path: Path) -> None:
    best = search(tmp_path, saves_in_process_0, n_trials=6, pruner="rungs")
    assert set(states(best)) <= {"complete", "pruned"}
    assert best.checkpoint is not None
    assert (best.checkpoint / "step").read_text() == str(STEPS)


class CountsCalls:
    """Returns a number without a report; its calls are counted."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def __call__(self, trial: FunctionTrial) -> float:
        self.diary.write([trial.params["lr"], rank(), os.environ["WORLD_SIZE"]])
        return trial.params["lr"] if rank() == 0 else -1.0


def test_the_first_call_of_a_function_that_returns_is_trial_0_also_in_a_group(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    best = search(tmp_path, CountsCalls(diary), direction="minimize", n_trials=3)
    calls = diary.read()
    rates = [record.params["lr"] for record in best.run_summary.records]
    assert [lr for lr, at, _ in calls if at == 0] == rates
    assert [lr for lr, at, _ in calls if at == 1 and lr != rates[0]] == rates[1:]  # it may be ended before it calls
    assert {size for *_, size in calls} == {"2"}
    assert [record.value for record in best.run_summary.records] == rates


def with_accelerate(trial: FunctionTrial) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    model, optimizer = torch.nn.Linear(4, 1), None
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["lr"])
    loader: Any = torch.utils.data.DataLoader(list(zip(X, Y, strict=True)), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step in range(1, STEPS + 1):
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(mse_loss(model(x), y))
            optimizer.step()
        loss = accelerator.reduce(mse_loss(model(X), Y).detach(), "mean")
        if accelerator.is_main_process:
            trial.report({"loss": loss}, step)
            with trial.save() as folder:
                torch.save(accelerator.unwrap_model(model).state_dict(), folder / "model.pt")
        if trial.should_prune():
            return


def test_a_loop_with_accelerate_trains_one_trial_after_the_other_in_a_group(tmp_path: Path) -> None:
    best = search(tmp_path, with_accelerate, n_trials=3)
    assert states(best) == ["complete"] * 3
    assert all(values[-1] < values[0] for values in reports(best))


def asks_more_often_in_process_1(trial: FunctionTrial) -> None:
    trial.report(trial.params["lr"])
    for _ in range(1 + rank()):
        trial.should_prune()


def test_a_process_that_waits_for_an_answer_that_cannot_come_fails_the_trial(tmp_path: Path) -> None:
    with pytest.raises(HpsearchError, match=r"process 1 waits for 'answer 2 to should_prune' of process 0"):
        search(tmp_path, asks_more_often_in_process_1, direction="minimize", n_trials=1)


def fails_at_once_in_process_1(trial: FunctionTrial) -> None:
    if rank() == 1:
        raise ValueError("no data")
    distributed.init_process_group("gloo")


def test_an_error_of_any_process_in_the_first_call_ends_the_search_before_its_first_trial(tmp_path: Path) -> None:
    with pytest.raises(HpsearchError, match=r"raised ValueError: no data\. It was called with"):
        search(tmp_path, fails_at_once_in_process_1)
    assert not (tmp_path / "study").exists()


def leaves_its_process_group(trial: FunctionTrial) -> None:
    distributed.init_process_group("gloo")
    try:
        for step in range(1, 4):
            distributed.all_reduce(torch.ones(1))
            if rank() == 0:
                trial.report(trial.params["lr"], step)
            if trial.should_prune():
                return
    finally:
        distributed.destroy_process_group()


def test_the_first_report_is_heard_also_if_it_costs_the_other_process_its_connection(tmp_path: Path) -> None:
    best = search(tmp_path, leaves_its_process_group, direction="minimize")
    assert states(best) == ["complete"] * 2


class DiesInTheFirstCall:
    """Kills process 1 so many times before the first report."""

    def __init__(self, flags: Path, deaths: int) -> None:
        self.flags, self.deaths = flags, deaths

    def __call__(self, trial: FunctionTrial) -> None:
        so_far = len(list(self.flags.glob("flag-*")))
        if rank() == 1 and so_far < self.deaths:
            (self.flags / f"flag-{so_far}").touch()
            kill()
        distributed.init_process_group("gloo")
        distributed.barrier()
        trial.report(trial.params["lr"])


def test_a_process_that_dies_in_the_first_call_is_replaced_with_its_group(tmp_path: Path) -> None:
    best = search(tmp_path, DiesInTheFirstCall(tmp_path, 2), direction="minimize")
    assert states(best) == ["complete"] * 2
    assert len(list(tmp_path.glob("flag-*"))) == 2


def test_a_process_that_dies_in_each_first_call_ends_the_search(tmp_path: Path) -> None:
    with pytest.raises(HpsearchError, match=r"cannot be called in a group of processes: process 1 of 2: SIGKILL"):
        search(tmp_path, DiesInTheFirstCall(tmp_path, 99), direction="minimize")


def test_a_signal_of_the_search_lets_both_processes_leave_with_a_checkpoint(tmp_path: Path) -> None:
    diary, driver = Diary(tmp_path / "diary"), os.getpid()
    signals = Once(lambda: os.kill(driver, signal.SIGUSR1), 0, 2, 0, tmp_path / "flag")
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "s", AsksInAll(diary, Waits(signals)), **OF_ITS_OWN, n_trials=1)
    ends = [step for _, at, _, step, answer, *_ in diary.read() if answer is True]
    assert len(ends) == 2
    assert ends[0] == ends[1] < STEPS
    best = search(tmp_path / "s", AsksInAll(diary), **OF_ITS_OWN, n_trials=1)
    assert states(best) == [TrialState.COMPLETE]
    assert {begin for _, _, begin, *_ in diary.read()} == {0, ends[0]}


class Waits:
    """Does something, and gives the search time to notice."""

    def __init__(self, act: Callable[[FunctionTrial, int], None]) -> None:
        self.act = act

    def __call__(self, trial: FunctionTrial, step: int) -> None:
        self.act(trial, step)
        time.sleep(0.3)
