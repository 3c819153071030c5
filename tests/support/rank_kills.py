"""Searches that `torchrun` starts in two processes, one of which, or the agent of `torchrun`, is killed at some event.

    torchrun --nproc_per_node 2 -m tests.support.rank_kills FOLDER KILLS

Each process counts its own events: what happens to a trial that it trains, and in rank 0 what happens in the search.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import optuna
import torch
from torch.distributed import run
from transformers import TrainerCallback

from hpsearch import Float, SearchListener, TrialRecord
from hpsearch.system.files import write_json
from hpsearch.trial import distributed_ranks
from tests.support import warm
from tests.support.launch import run_warm, torchrun
from tests.support.programs import surroundings
from tests.support.search_processes import wait_until
from tests.support.small_trainer import TwoLayers, small_trainer

AGENT = "agent"
FAILS = "fails"
SPACE = {"learning_rate": Float(1e-3, 0.3, log=True)}
RANK = int(os.environ.get("RANK", "0"))


@dataclass(frozen=True)
class Kill:
    """At so many events of a rank, `victim` is killed: this rank itself, or the agent; FAILS: this rank raises."""

    rank: int
    event: int
    victim: str = "itself"


@dataclass(frozen=True)
class Launch:
    """What is left of a launch, all processes of which have ended.

    Attributes:
        ends: how each process has ended, by its restart and rank: the kind of its error, or "done"; nothing if it was
            killed.
        events: the number of events, in the same way.
        code: the exit code of the agent; it was killed unless it restarts processes.
        output: what all of them printed.
    """

    ends: dict[tuple[int, int], str]
    events: dict[tuple[int, int], int]
    code: int | None
    output: str


def launch(folder: Path, kill: Kill | None = None) -> Launch:
    """Search in `folder`, or continue, with an agent that looks after no process: they have to end by themselves."""
    return _launch(folder, [] if kill is None else [kill], "--monitor-interval", "600")


def launch_with_restarts(folder: Path, kills: Sequence[Kill]) -> Launch:
    """Search in `folder`, with an agent that starts both processes again after each of the kills.

    Rank 0 has the store: in one that the agent keeps, restarted processes may find addresses of dead ones.
    """
    restarts = ["--monitor-interval", "0.05", "--max-restarts", str(len(kills))]
    return _launch(folder, kills, "--standalone", *restarts, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")


def _launch(folder: Path, kills: Sequence[Kill], *options: str, **environment: str) -> Launch:
    folder.mkdir(exist_ok=True)
    diary = folder / f"launch-{len(list(folder.glob('launch-*')))}"
    diary.mkdir()
    arguments = [str(folder), str(diary), json.dumps([asdict(each) for each in kills])]
    command = [*torchrun(2), *options, *run_warm(), "-m", __name__, *arguments]
    with warm.call(_be_the_agent, command, environment) as agent:
        (diary / f"{AGENT}-{agent.pid}").touch()
        if "--max-restarts" in options:
            agent.wait(warm.SECONDS)
        wait_until(lambda: len(_pids(diary, "rank")) > 1 and not any(map(_is_running, _pids(diary, "rank"))))
        agent.kill()
        output, _ = agent.communicate()
    told = {path.stem: json.loads(path.read_text()) for path in diary.glob("end-*.json")}
    ends = {(int(name[4]), int(name[6])): each for name, each in told.items()}
    return Launch(
        {process: each["end"] for process, each in ends.items()},
        {process: each["events"] for process, each in ends.items()},
        agent.returncode,
        output,
    )


def _be_the_agent(command: list[str], environment: dict[str, str]) -> None:
    os.environ.update(surroundings(**environment))
    run.main(command)


def _pids(diary: Path, what: str) -> list[int]:
    return [int(path.name.rpartition("-")[2]) for path in diary.glob(f"{what}-*")]


def _is_running(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


# In the processes that search.


class Events(TrainerCallback, SearchListener):
    """Counts what happens in this process, and kills at the event that it was told."""

    def __init__(self, kill: Kill | None, diary: Path) -> None:
        self._kill, self._diary = kill, diary
        self.counted = 0

    def happened(self, *_: Any, **__: Any) -> None:
        self.counted += 1
        if self._kill is None or (RANK, self.counted) != (self._kill.rank, self._kill.event):
            return
        if self._kill.victim == AGENT:
            wait_until(lambda: bool(_pids(self._diary, AGENT)))
            os.kill(_pids(self._diary, AGENT)[0], signal.SIGKILL)
        elif self._kill.victim == FAILS:
            raise RuntimeError("a bad batch")
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    on_step_begin = on_step_end = on_evaluate = on_save = on_train_end = happened

    def on_trial_begin(self, trial: Any) -> None:
        self.happened()

    def on_trial_end(self, record: TrialRecord) -> None:
        self.happened()


def main() -> None:
    folder, diary, kills = Path(sys.argv[1]), Path(sys.argv[2]), [Kill(**each) for each in json.loads(sys.argv[3])]
    torch.set_num_threads(1)
    distributed_ranks.SECONDS_TO_ARRIVE = 1.0
    restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    (diary / f"rank-{os.getpid()}").touch()
    events = Events(kills[restart] if restart < len(kills) else None, diary)
    end = "done"
    try:
        _search(folder, events)
    except BaseException as error:
        end = type(error).__name__
        raise
    finally:
        told = {"end": end, "events": events.counted}
        write_json(diary / f"end-{restart}-{RANK}.json", told)  # the agent may kill this process meanwhile
    sys.stdout.flush()
    os._exit(0)  # gloo may abort a process that ends in the ordinary way


def _search(folder: Path, events: Events) -> None:
    def model_init(trial: Any) -> TwoLayers:
        events.happened()
        return TwoLayers(trial.suggest_int("hidden", 2, 9))

    trainer = small_trainer(folder, events, model_init=model_init, per_device_train_batch_size=2, save_strategy="epoch")
    trainer.hyperparameter_search(
        SPACE,
        n_trials=5,
        compute_objective="loss",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=2),
        progress=events,
    )


if __name__ == "__main__":
    main()
