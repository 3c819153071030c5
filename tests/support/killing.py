"""Searches that are killed with SIGKILL at a chosen moment, and what is left of them.

The process of a search begins at once (see `warm`). It counts its events, by phase of the search (`PHASES`), and kills
itself at the event that a `Kill` names; or it is killed after some time.
"""

from __future__ import annotations

import builtins
import contextlib
import fnmatch
import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
import torch
import transformers
from optuna.storages.journal import JournalFileBackend
from transformers import TrainerCallback

from hpsearch import Categorical, Float, SearchListener, TrialRecord, TrialState, tune
from tests.support import warm
from tests.support.models import accuracy
from tests.support.small_trainer import TwoLayers, small_trainer, transformers_trainer

START, ASKING, END = "start of the session", "between asking and the first record", "end of the session"
MODEL_INIT, STEP, EVALUATION = "model_init", "step", "evaluation"
CHECKPOINT, STORAGE, RETENTION = "checkpoint write", "storage write", "retention"
RECORD, BEST, RESUMING = "record write", "best.json write", "reading a checkpoint"
PHASES = (START, ASKING, MODEL_INIT, RESUMING, STEP, EVALUATION, CHECKPOINT, STORAGE, RETENTION, RECORD, BEST, END)
ANY_TIME = "any time"


@dataclass(frozen=True)
class Plan:
    """A study to search: `trainer` are arguments of the trainer, `options` of the search.

    The trainer is ours, or transformers' own if `is_brought`.

    Nothing is pruned before `warmup` epochs (or samples, if evaluation is by steps).
    """

    seed: int = 0
    warmup: int = 0
    trainer: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    is_brought: bool = False


@dataclass(frozen=True)
class Kill:
    """When a search is killed: at the first of the moments that are given.

    Attributes:
        phase, event: at so many events of a phase.
        seconds: after some time.
        update: after an update of a trial.
        report: after the report of a trial at this resource has reached the storage.
        file: as soon as a file is written or a folder made of this name (a pattern), such as ``run-0/checkpoint-4``;
            temporary names are without the number of the process: ``study/.partial-run-1``.
    """

    phase: str | None = None
    event: int = 1
    seconds: float | None = None
    update: tuple[int, int] | None = None
    report: tuple[int, int] | None = None
    file: str | None = None

    def __str__(self) -> str:
        if self.phase is not None:
            return f"at event {self.event} of phase {self.phase!r}"
        given = {name: each for name, each in asdict(self).items() if each is not None and name != "event"}
        return f"after {given}"


@dataclass(frozen=True)
class End:
    """How a search ended: its exit code; the events by phase and what the search returned, unless it was killed."""

    code: int
    seconds: float
    events: dict[str, int] = field(default_factory=dict)
    best: list[Any] = field(default_factory=list)
    output: str = ""

    @property
    def was_killed(self) -> bool:
        return self.code == -signal.SIGKILL


def search(folder: Path, plan: Plan, kill: Kill | None = None) -> End:
    """Search in `folder`, in a process of its own; the same again continues."""
    folder.mkdir(parents=True, exist_ok=True)
    kill = kill or Kill()
    ended = folder / "end.json"
    begin = time.monotonic()
    with warm.call(_be_the_search, folder, plan, kill, ended) as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(warm.SECONDS if kill.seconds is None else kill.seconds)
        process.kill()
        output, _ = process.communicate()
        seconds = time.monotonic() - begin
        assert process.returncode is not None
        end = json.loads(ended.read_text()) if process.returncode == 0 else {}
        return End(process.returncode, seconds, output=output, **end)


def updates(folder: Path, trial: int) -> list[int]:
    """Return the updates of a trial that all searches in `folder` have made."""
    if not (folder / "updates").exists():
        return []
    lines = (line.split() for line in (folder / "updates").read_text().splitlines())
    return [int(step) for number, step in lines if int(number) == trial]


# In the process that searches.


def _be_the_search(folder: Path, plan: Plan, kill: Kill, ended: Path) -> None:
    events = Events(kill, folder)
    best = _search(folder, plan, events)
    checkpoint = best.checkpoint and str(best.checkpoint.relative_to(folder))
    told = [best.run_id, best.objective, best.hyperparameters, checkpoint]
    ended.write_text(json.dumps({"events": events.counted, "best": told}))


def _search(folder: Path, plan: Plan, events: Events) -> Any:
    space = {
        "learning_rate": Float(1e-3, 0.3, log=True),
        "weight_decay": Float(0.0, 0.3),
        "per_device_train_batch_size": Categorical([4, 8]),
    }

    def model_init(trial: Any) -> TwoLayers:
        events.happened(MODEL_INIT)
        hidden = trial.suggest_int("hidden", 2, 9)
        if hidden == 3:
            raise RuntimeError("no model has three hidden units")
        events.happened(MODEL_INIT)
        return TwoLayers(hidden)

    def compute_metrics(prediction: Any) -> dict[str, float]:
        events.happened(EVALUATION)
        return accuracy(prediction)

    arguments = {"num_train_epochs": 3, "compute_metrics": compute_metrics, **plan.trainer}

    def make_trainer(trial: Any) -> transformers.Trainer:
        return transformers_trainer(
            folder, model_init(trial), InTraining(events), **arguments, **{name: trial.params[name] for name in space}
        )

    if plan.is_brought:
        search = partial(tune, make_trainer)
    else:
        trainer = small_trainer(folder, InTraining(events), model_init=model_init, **arguments)
        search = trainer.hyperparameter_search
    options = {
        "n_trials": 8,
        "compute_objective": "loss",
        "direction": "minimize",
        "pruner": optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=plan.warmup),
        **plan.options,
    }
    events.watch()
    best = search(space, seed=plan.seed, progress=OfSearch(events), **options)
    events.happened(END)
    return best


class Events:
    """Counts what happens, by phase, and kills this process at the event that it was told."""

    def __init__(self, kill: Kill, folder: Path) -> None:
        self._kill, self._folder = kill, folder
        self.counted: Counter[str] = Counter()
        self.window: str | None = START

    def happened(self, phase: str) -> None:
        """Count an event; one outside the training of a trial belongs to the phase that the search is in."""
        phase = self.window or phase
        self.counted[phase] += 1
        if (phase, self.counted[phase]) == (self._kill.phase, self._kill.event):
            die()

    def made_update(self, trial: int, step: int) -> None:
        with (self._folder / "updates").open("a") as stream:
            stream.write(f"{trial} {step}\n")
        self.came_to(update=(trial, step))

    def came_to(self, **moment: Any) -> None:
        """Die if this is the moment that was told."""
        if all(getattr(self._kill, name) == value for name, value in moment.items()):
            die()

    def made_file(self, path: str) -> None:
        name = re.sub(r"\.partial-\d+-", ".partial-", "/".join(Path(path).parts[-2:]))
        if self._kill.file is not None and fnmatch.fnmatchcase(name, self._kill.file):
            die()

    def watch(self) -> None:
        """Count what happens to files and in the storage from now on."""
        for name in ("replace", "rename", "unlink", "rmdir", "mkdir", "symlink", "fsync"):
            self._wrap(os, name, _phase_of_file)
        self._wrap(builtins, "open", _phase_of_file)
        self._wrap(torch, "save", lambda *_: CHECKPOINT)
        self._wrap(torch, "load", lambda *_: RESUMING)
        self._wrap(JournalFileBackend, "append_logs", lambda *_: STORAGE)
        for name in ("ask", "tell"):
            self._wrap(optuna.Study, name, lambda *_: STORAGE)
        engine = sqlalchemy.engine.Engine
        sqlalchemy.event.listen(engine, "before_cursor_execute", lambda *given: self._statement(given[2]))
        sqlalchemy.event.listen(engine, "after_cursor_execute", lambda *given: self._statement(given[2]))
        sqlalchemy.event.listen(engine, "commit", lambda *_: self.happened(STORAGE))

    def _statement(self, statement: str) -> None:
        if not statement.lstrip().upper().startswith(("SELECT", "PRAGMA")):
            self.happened(STORAGE)

    def _wrap(self, owner: Any, name: str, phase: Callable[..., str]) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not _writes(*args):
                return original(*args, **kwargs)
            of = phase(name, *args)
            self.happened(of)
            result = original(*args, **kwargs)
            if name in ("replace", "mkdir", "fsync"):
                self.made_file(_path_of(args[0]) if name == "fsync" else str(args[name == "replace"]))
            self.happened(of)
            return result

        setattr(owner, name, wrapped)


def _phase_of_file(name: str, path: Any, target: Any = None, *_: Any) -> str:
    """Tell from the name of a file what is being done to it."""
    if name == "fsync":
        path = _path_of(path)
    shown = f"{path} {target}"
    if "-removed-" in shown or name in ("unlink", "rmdir"):
        return RETENTION
    if "checkpoint-" in shown or "selected-" in shown:
        return CHECKPOINT
    marks = {"trial.json": RECORD, "best.json": BEST, "study.log": STORAGE}
    return next((phase for mark, phase in marks.items() if mark in shown), CHECKPOINT)


def _writes(path: Any, mode: str = "r", *_: Any) -> bool:
    return not isinstance(path, int) and mode[0] in "wax" and Path(path).name != "updates"


def _path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


class InTraining(TrainerCallback):
    """Counts the events of training."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._events.happened(STEP)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._events.happened(STEP)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._events.happened(STEP)
        self._events.made_update(int(Path(args.output_dir).name.split("-")[1]), state.global_step)
        if args.weight_decay > 0.27 and state.global_step == 5:
            raise RuntimeError("too much weight decay")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._events.happened(EVALUATION)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._events.happened(CHECKPOINT)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._events.happened(STEP)


class OfSearch(SearchListener):
    """Tells the events where in the search they are."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def on_search_begin(self, study: Any, records: Any, notes: Any) -> None:
        print("half-done:", [each.number for each in records if each.state is TrialState.INTERRUPTED])
        self._events.window = ASKING

    def on_trial_begin(self, trial: Any) -> None:
        self._events.window = None

    def on_report(self, trial: Any, report: Any) -> None:
        self._events.happened(EVALUATION)
        self._events.came_to(report=(trial.number, report.resource))

    def on_trial_end(self, record: TrialRecord) -> None:
        self._events.window = ASKING

    def on_search_end(self, study: Any, records: Any) -> None:
        self._events.window = END
