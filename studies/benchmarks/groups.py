"""What trials of several processes cost: groups of two processes against two launches of torchrun, in one run.

    python -m studies.benchmarks.groups [--rounds 3] [--trials 12] [--work short]

Each side trains the same trials, two at a time, each in two processes on the CPU (DDP over gloo): ours as one search
with `n_jobs=2, processes_per_trial=2`, the other one as two programs side by side, started by `torchrun` with two
processes each, which search half of the trials each. Rounds are interleaved and their order rotates; the ratios of each
round are taken side by side, and their medians printed.

1. From the first optimizer step to the end of the last trial, and the ratio to torchrun (target 1.1).
2. From the start of the search, or of the two programs, until they have ended. Torchrun imports torch each time; ours
   is the second search of a program, whose workers' server is running.
3. Between two trials of a group that is warm: from the last evaluation to the next first step, less `model_init`; also
   of one group that has the machine for itself (target 150 ms).
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hpsearch

from .parallel import WORKS, WorkStamps, make_trainer, search_ours
from .stamps import TrialTimes, gaps, read_stamps
from .step import make_data

SLOTS = PROCESSES = 2
Measured = tuple[float, list[list[TrialTimes]]]  # the seconds in all, and the trials of each program


class MainStamps(WorkStamps):
    """Stamps of the main process of each trial."""

    def write(self, event: str, **values: Any) -> None:
        if os.environ.get("RANK", "0") == "0":
            super().write(event, **values)


def search(folder: Path, name: str, trials: int, stamps: str, **options: Any) -> None:
    """Search in a new folder."""
    trainer = make_trainer(hpsearch, str(folder / "out"), MainStamps(str(folder / stamps), WORKS[name]), make_data(256))
    search_ours(trainer, trials, **options)


def in_groups(name: str, trials: int, groups: int = SLOTS) -> Measured:
    """Search with groups of processes."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        search(Path(folder), name, trials, "stamps", n_jobs=groups, processes_per_trial=PROCESSES)
        seconds = time.perf_counter() - begin
        return seconds, [read_stamps(str(Path(folder, "stamps")))]


def under_torchrun(name: str, trials: int) -> Measured:
    """Start two programs under torchrun, side by side."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        programs = []
        for place in range(SLOTS):
            share = str(len(range(place, trials, SLOTS)))
            launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(PROCESSES)]
            launcher += ["--master_port", free_port(), "-m", "studies.benchmarks.groups"]
            own = Path(folder, str(place))
            own.mkdir()
            programs.append(subprocess.Popen([*launcher, "--of", str(own), "--trials", share, "--work", name]))
        codes = [each.wait() for each in programs]
        seconds = time.perf_counter() - begin
        if any(codes):
            raise SystemExit(f"a program under torchrun has failed: {codes}")
        return seconds, [read_stamps(str(Path(folder, str(place), "stamps"))) for place in range(SLOTS)]


def free_port() -> str:
    """Return a port of this machine that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def inner_seconds(programs: list[list[TrialTimes]]) -> float:
    """Return the seconds in which programs have trained: from the first step of each to its last end, the longest."""
    return max(max(each.end for each in times) - min(each.first_step for each in times) for times in programs)


def compare(name: str, rounds: int, trials: int) -> None:
    """Print the seconds of both sides, their ratios, and what lies between two trials."""
    sides: dict[str, Callable[[str, int], Measured]] = {"torchrun, twice": under_torchrun, "groups": in_groups}
    inner: dict[str, list[float]] = {side: [] for side in sides}
    whole: dict[str, list[float]] = {side: [] for side in sides}
    between: dict[str, list[float]] = {side: [] for side in sides}
    for place in range(rounds):
        for side in list(sides)[:: 1 if place % 2 else -1]:
            seconds, programs = sides[side](name, trials)
            whole[side].append(seconds)
            inner[side].append(inner_seconds(programs))
            for times in programs:
                between[side] += gaps(times, SLOTS if len(programs) == 1 else 1)
    print(f"{trials} trials '{name}', two at a time, of {PROCESSES} processes each; medians of {rounds} rounds")
    print(f"{'':<18}{'training s':>12}{'over torchrun':>15}{'in all s':>10}{'between trials ms':>19}")
    for side in sides:
        ratios = [mine / one for mine, one in zip(inner[side], inner["torchrun, twice"], strict=True)]
        gap = statistics.median(between[side]) * 1e3
        middle = statistics.median(inner[side])
        print(
            f"{side:<18}{middle:12.2f}{statistics.median(ratios):15.2f}{statistics.median(whole[side]):10.2f}{gap:19.0f}"
        )
    _, [times] = in_groups(name, trials, groups=1)
    print(f"between two trials of one group alone: {statistics.median(gaps(times, 1)) * 1e3:.0f} ms")
    print("targets: 1.10 over torchrun, 150 ms between two trials of a group")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=12, help="of each side")
    parser.add_argument("--work", choices=WORKS, default="short")
    parser.add_argument("--of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    if options.of:
        search(Path(options.of), options.work, options.trials, "stamps", n_jobs=None)
        sys.stdout.flush()
        os._exit(0)  # gloo may abort a process that ends in the ordinary way
    in_groups("tiny", SLOTS)  # starts the workers' server
    compare(options.work, options.rounds, options.trials)


if __name__ == "__main__":
    main()
