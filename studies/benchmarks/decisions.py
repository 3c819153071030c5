"""What a decision of the default search costs, in CPU time, as the number of trials grows.

    python -m studies.benchmarks.decisions [--trials 10000] [--workers 1000] [--evaluations 10] [--dimensions 5]
        [--pruner rungs|none] [--known 0] [--window 500]

The trials, the rungs, the model and the sampler are those of a search with Optuna; nothing is trained: the reports are
made up, and the storage is in memory. A decision is what a free worker does next, with all parameters of a new trial,
or whether a trial pauses after a report. What takes less than 0.1 ms, such as a report between rungs, is not counted.

With `--known`, this many trials with random parameters have ended before.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import math
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState as EngineState

from hpsearch.coordinator.applied_decisions import AppliedDecisions
from hpsearch.coordinator.search_session import SearchSession
from hpsearch.ledger.branches import branches_of
from hpsearch.ledger.curve_sampler import CurveSampler
from hpsearch.ledger.engine_trial import OptunaTrial
from hpsearch.ledger.ledger import Ledger
from hpsearch.ledger.rated_rungs import RatedRungs
from hpsearch.ledger.recorded_defaults import Defaults
from hpsearch.ledger.sampling import RepeatableSampling
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.requests.in_effect import InEffect
from hpsearch.search.space.parameters import Categorical, Float, Parameter
from hpsearch.search.space.search_space import SearchSpace
from hpsearch.search.study import Study
from hpsearch.search.trial_record import Report, TrialRecord, TrialState
from hpsearch.trial.ending import Ended
from hpsearch.trial.messages import Reported

# Seconds; what takes less is no decision.
_NOTHING = 1e-4


class MadeUpRecords:
    """The records of trials that take no time."""

    session = "decisions"

    def __init__(self) -> None:
        self._trials: dict[int, TrialRecord] = {}

    @property
    def records(self) -> list[TrialRecord]:
        """The trials that do not run."""
        return [each for each in self.known() if each.state is not TrialState.RUNNING]

    def known(self) -> list[TrialRecord]:
        """Return all trials, by number."""
        return list(self._trials.values())

    def earlier(self, number: int) -> TrialRecord | None:
        """Return a trial that has begun."""
        return self._trials.get(number)

    ended = earlier

    def take(self, record: TrialRecord) -> None:
        """Take a trial as it is now."""
        self._trials[record.number] = record

    def refresh(self) -> None:
        """Do nothing: there is no other session."""

    def is_alive(self, session: str | None) -> bool:
        """Tell whether a session is this one."""
        return session == self.session

    def is_everything_tried(self, *_: Any) -> bool:
        """Return False: there are floats."""
        return False

    def known_trial(self, params: Any) -> TrialRecord | None:
        """Return None: no proposal is repeated."""
        return None


class MadeUpSession:
    """A session without limits, and without files."""

    def __init__(self, study: Study) -> None:
        self.study, self.records = study, MadeUpRecords()
        self.limits = self.on_disk = self.requests = self

    def follow_requests(self) -> InEffect:
        """Return that the user has requested nothing."""
        return InEffect()

    now = follow_requests

    def finish(self, ended: Ended) -> TrialRecord:
        """Take a trial that is pruned."""
        self.records.take(ended.record)
        return ended.record

    def settle(self, record: TrialRecord, has_run: bool = True) -> None:
        """Do nothing: there are no checkpoints."""

    def reason_to_stop(self) -> str | None:
        """Return None: there are no limits."""
        return None

    def announce(self, notice: str) -> None:
        """Print what a search would say."""
        print(notice)


def value_at(params: Mapping[str, Any], share: float, random: np.random.Generator) -> float:
    """Return a loss that falls along a curve to what the parameters are worth, with some noise."""
    apart = sum((float(each) - 0.3) ** 2 for name, each in params.items() if name != "kind")
    return apart + (params["kind"] != "b") * 0.1 + 0.5 * math.exp(-4 * share) + 0.01 * float(random.standard_normal())


class Decided:
    """A search in which only decisions take time.

    Args:
        options: of the command line.
        folder: of the study; nothing is written to it.
    """

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._random, self._horizon = np.random.default_rng(0), options.evaluations
        objectives = resolve_objectives("eval_loss", "minimize", has_metrics=True)
        self._study = Study(
            "decisions", folder, SearchSpace(parameters(options.dimensions)), objectives, options.trials
        )
        defaults = Defaults.of(self._study, None)
        sampler = CurveSampler(0, objectives[0], defaults.first(self._study), branches=branches_of(self._study.space))
        self._engine = optuna.create_study(sampler=sampler, pruner=optuna.pruners.NopPruner())
        has_rungs = options.pruner == "rungs"
        at_rungs = RatedRungs(self._study, self._engine, defaults.ladder) if has_rungs else None
        sampling = RepeatableSampling(sampler)
        ledger = Ledger(self._study, self._engine, sampling)
        session = MadeUpSession(self._study)
        self._ledger = ledger
        self._decisions = AppliedDecisions(cast(SearchSession, session), ledger, at_rungs, lambda _: False)
        self._trials, self._busy, self._order = (
            session.records,
            list[tuple[float, int, OptunaTrial]](),
            itertools.count(),
        )
        self._now = 0.0
        self.seconds: list[float] = []  # of each decision since they were last taken

    def add_known(self, count: int) -> None:
        """Add trials that have ended: every third one is complete, the others were pruned at their first rung."""
        space: dict[str, BaseDistribution] = {
            name: FloatDistribution(0, 1) for name in self._study.space.all_parameters()
        }
        space["kind"] = CategoricalDistribution(("a", "b", "c"))
        for number in range(count):
            params = {name: float(self._random.random()) for name in space} | {"kind": "abc"[number % 3]}
            is_complete = number % 5 == 0
            state = EngineState.COMPLETE if is_complete else EngineState.PRUNED
            value = 0.5 if is_complete else None
            self._engine.add_trial(
                optuna.trial.create_trial(state=state, params=params, distributions=space, value=value)
            )
            record = TrialRecord(number, f"run-{number}", TrialState.RUNNING, params)
            for _ in range(self._horizon if is_complete else max(1, self._horizon // 6)):
                record = self._evaluated(record)
            self._trials.take(_ended(record, TrialState.COMPLETE if is_complete else TrialState.PRUNED))

    def occupy(self, worker_count: int) -> bool:
        """Assign trials to free workers; return whether any trial is running."""
        for _ in range(worker_count):
            with self._timed():
                trial = self._decisions.next()
                if isinstance(trial, OptunaTrial) and trial.earlier is None:
                    self._study.suggest(trial)
                    trial.keep()
            if not isinstance(trial, OptunaTrial):
                break
            new = TrialRecord(trial.number, f"run-{trial.number}", TrialState.RUNNING, trial.params.values_by_name)
            self._trials.take(replace(trial.earlier or new, state=TrialState.RUNNING))
            self._train(trial)
        return bool(self._busy)

    def step(self) -> bool:
        """Let the next evaluation come; return whether its trial has left its worker."""
        self._now, _, trial = heapq.heappop(self._busy)
        record = self._evaluated(cast(TrialRecord, self._trials.earlier(trial.number)))
        is_last = len(record.reports) == self._horizon
        with self._timed():
            reported = Reported(record.reports[-1], (), is_comparable=True, is_last=is_last, so_far=record)
            verdict = self._decisions.verdict(trial, reported)
        if not (verdict.pause or verdict.prune or is_last):
            self._trials.take(record)
            self._train(trial)
            return False
        state = TrialState.PAUSED if verdict.pause else TrialState.PRUNED if verdict.prune else TrialState.COMPLETE
        record = _ended(record, state)
        with self._timed():
            self._ledger.end(trial, record)
        self._trials.take(record)
        return True

    def _train(self, trial: OptunaTrial) -> None:
        heapq.heappush(self._busy, (self._now + self._random.uniform(0.5, 1.5), next(self._order), trial))

    def _evaluated(self, record: TrialRecord) -> TrialRecord:
        epoch = len(record.reports) + 1
        value = value_at(record.params, epoch / self._horizon, self._random)
        metrics = {"num_parameters": 1000.0, "eval_loss": value}
        report = Report((value,), epoch, epoch, epoch, metrics, horizon=self._horizon)
        return replace(record, reports=(*record.reports, report), epochs=epoch)

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        begin = time.process_time()
        yield
        self.seconds.append(time.process_time() - begin)


def _ended(record: TrialRecord, state: TrialState) -> TrialRecord:
    return replace(record, state=state, values=record.reports[-1].values if state is TrialState.COMPLETE else ())


def watch(options: argparse.Namespace, folder: Path) -> None:
    """Decide a whole search, and print what it cost."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search = Decided(options, folder)
    search.add_known(options.known)
    ended, free = options.known, options.workers
    print(f"{'trials ended':>12}{'decisions':>12}{'CPU ms: mean':>14}{'worst':>8}{'memory MB':>12}")
    while search.occupy(free):
        free = search.step()
        ended += free
        if free and ended % options.window == 0:
            decisions = [1e3 * each for each in search.seconds if each > _NOTHING]
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
            mean, worst = statistics.mean(decisions), max(decisions)
            print(f"{ended:12}{len(decisions):12}{mean:14.1f}{worst:8.0f}{memory:12.0f}", flush=True)
            search.seconds.clear()


def parameters(dimensions: int) -> dict[str, Parameter]:
    """Return a space of numbers, and a choice."""
    return {**{f"x{place}": Float(0, 1) for place in range(dimensions)}, "kind": Categorical(["a", "b", "c"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--evaluations", type=int, default=10)
    parser.add_argument("--dimensions", type=int, default=5)
    parser.add_argument("--pruner", choices=["rungs", "none"], default="rungs")
    parser.add_argument("--known", type=int, default=0, help="trials that have ended before")
    parser.add_argument("--window", type=int, default=500)
    with tempfile.TemporaryDirectory() as folder:
        watch(parser.parse_args(), Path(folder))


if __name__ == "__main__":
    main()
