"""What the tests of searches share: recorders, moments, and values that a script gives."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import pytest
from transformers import TrainerCallback

from hpsearch import (
    BestRun,
    Float,
    NoCompletedTrialError,
    SearchListener,
    TrialRecord,
)

ROOT = Path(__file__).parents[2]


RATE = {"learning_rate": Float(1e-3, 1e-1, log=True)}


@dataclass
class StoredTrial:
    """A trial as the backend's own storage has it.

    `state` is "complete", "pruned", "failed" or "running"; an interrupted trial is a running one that says so.
    """

    number: int
    state: str
    params: dict[str, Any]
    value: float | None
    resources: list[int] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)


class Events(SearchListener):
    """Remembers what a search told its listener."""

    def __init__(self) -> None:
        self.study: Any = None
        self.notes: list[str] = []
        self.begun: list[dict[str, Any]] = []
        self.ended: list[TrialRecord] = []
        self.is_over = False

    def on_search_begin(self, study: Any, records: Sequence[TrialRecord], notes: Sequence[str]) -> None:
        self.study, self.notes = study, list(notes)

    def on_trial_begin(self, trial: Any) -> None:
        self.begun.append(dict(trial.params.values_by_name))

    def on_trial_end(self, record: TrialRecord) -> None:
        self.ended.append(record)

    def on_search_end(self, study: Any, records: Sequence[TrialRecord]) -> None:
        self.is_over = True


class HearsNotices(Events):
    """Remembers the notices, too."""

    def __init__(self) -> None:
        super().__init__()
        self.notices: list[str] = []

    def on_notice(self, notice: str) -> None:
        self.notices.append(notice)


class FailsBesideASlowOne(TrainerCallback):
    """Fails in all runs but the first, which takes longer."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if Path(args.output_dir).name != "run-0":
            raise RuntimeError("out of luck")
        time.sleep(1.0)


class AtStep(TrainerCallback):
    """Does something after the given update of the run of the given number, counted over the session."""

    def __init__(self, act: Callable[[], None], run: int, step: int) -> None:
        self._act, self._run, self._step = act, run, step
        self.runs = -1
        self.steps: list[tuple[int, int]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.runs += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps.append((self.runs, state.global_step))
        if (self.runs, state.global_step) == (self._run, self._step):
            self._act()


class AtMoment(AtStep):
    """Does something in the second run of the session: at its "begin", at its sixth "step" or at its "end"."""

    def __init__(self, act: Callable[[], None], moment: str) -> None:
        super().__init__(act, run=1, step=6 if moment == "step" else -1)
        self._moment = moment

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self._at("begin")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._at("end")

    def _at(self, moment: str) -> None:
        if (self.runs, self._moment) == (self._run, moment):
            self._act()


class Diary:
    """A file in which callbacks, models and objectives write down what they saw, in whichever process they run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, entry: Any) -> None:
        with self._path.open("a") as stream:
            stream.write(json.dumps(entry) + "\n")

    def read(self) -> list[Any]:
        return [json.loads(line) for line in self._path.read_text().splitlines()] if self._path.exists() else []


class MeetsTheOther(TrainerCallback):
    """Writes down which process trains which run, and that it ends; the first two runs wait for each other."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._diary.write(("begin", Path(args.output_dir).name, os.getpid()))
        until = time.monotonic() + 100
        while sum(what == "begin" for what, _, _ in self._diary.read()) < 2 and time.monotonic() < until:
            time.sleep(0.01)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._diary.write(("end", Path(args.output_dir).name, os.getpid()))


def interrupt() -> None:
    raise KeyboardInterrupt


def same_but_time(best: BestRun) -> list[tuple[object, ...]]:
    """Return all of a search that is the same when it is repeated."""
    return [
        (each.number, each.state, each.values, each.seed, each.replica, tuple(report.value for report in each.reports))
        for each in best.run_summary.records
    ]


def states(best: BestRun | NoCompletedTrialError) -> list[str]:
    return [record.state.value for record in best.run_summary.records]


def outcome_of(search: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a search, and return its best run, or the error of a search without a result; both carry all trials."""
    try:
        return search(*arguments, **options)
    except NoCompletedTrialError as error:
        return error.with_traceback(None)


def without_result(search: Callable[..., Any], *arguments: Any, **options: Any) -> NoCompletedTrialError:
    """Call a search that ends without a result, and return its error, which carries all trials."""
    with pytest.raises(NoCompletedTrialError) as caught:
        search(*arguments, **options)
    assert str(caught.value) == caught.value.run_summary.explain_absence()
    return caught.value


def scripted(*trials: Sequence[float]) -> Callable[[dict[str, float]], float]:
    """An objective that gives these values in turn; a trial that is pruned skips the rest of its own."""
    left = [list(values) for values in trials]
    position = {"trial": -1}

    def objective(metrics: dict[str, float]) -> float:
        if metrics["epoch"] == 1.0:
            position["trial"] += 1
        return left[position["trial"]][round(metrics["epoch"]) - 1]

    return objective


STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}


def load(study: Path, storage: Any = None) -> optuna.Study:
    return optuna.load_study(study_name=study.name, storage=storage or f"sqlite:///{study / 'study.db'}")


def stored_trials(study: Path) -> list[StoredTrial]:
    """Read the trials of a study from its SQLite file by Optuna alone, by number."""
    return [
        StoredTrial(
            each.number,
            STATES[each.state.name],
            each.params,
            each.value if each.state.name == "COMPLETE" else None,
            sorted(each.intermediate_values),
            {name.removeprefix("hpsearch:"): value for name, value in each.user_attrs.items()},
        )
        for each in load(study).trials
        if each.state.name != "WAITING"
    ]


def storage_in_memory() -> dict[str, Any]:
    """Return options with a storage that starts empty each time."""
    return {"storage": optuna.storages.InMemoryStorage()}
