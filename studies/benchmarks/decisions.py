"""What a decision of the default search costs, in CPU time, as the number of trials grows.

    python -m studies.benchmarks.decisions [--trials 10000] [--workers 1000] [--evaluations 10] [--dimensions 5]
        [--pruner rungs|none] [--window 500]

The trials, the rungs, the model and the sampler are those of a search with Optuna; nothing is trained: the reports are
made up, and the storage is in memory. A decision is whatever is decided between two pieces of training: what a free
worker does next, with all parameters of a new trial, and whether a trial goes on after a report at a rung.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import resource
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import optuna

from hpsearch.backends.optuna_backend.at_rungs import AtRungs
from hpsearch.backends.optuna_backend.curve_sampler import CurveSampler
from hpsearch.backends.optuna_backend.defaults import Defaults
from hpsearch.backends.optuna_backend.paused_limit import PausedLimit
from hpsearch.backends.optuna_backend.sampling import RepeatableSampling
from hpsearch.backends.optuna_backend.trial import OptunaTrial
from hpsearch.backends.optuna_backend.trials import StoredTrials
from hpsearch.search.ending import Ended
from hpsearch.search.objective import resolve_objectives
from hpsearch.search.parameters import Categorical, Float, Parameter
from hpsearch.search.runner import TrialRunner
from hpsearch.search.space import SearchSpace
from hpsearch.search.study import Study
from hpsearch.search.trial import Report, TrialRecord, TrialState


class MadeUpTrials:
    """Stands for a `TrialRunner` whose trials are trained in no time."""

    session = "benchmark"

    def __init__(self) -> None:
        self._trials: dict[int, TrialRecord] = {}

    @property
    def records(self) -> list[TrialRecord]:
        """The trials that do not run."""
        return [each for each in self.known_trials() if each.state is not TrialState.RUNNING]

    def known_trials(self) -> list[TrialRecord]:
        """Return all trials, by number."""
        return list(self._trials.values())

    def earlier_record(self, number: int) -> TrialRecord | None:
        """Return a trial that has begun."""
        return self._trials.get(number)

    def recover(self, record: TrialRecord) -> None:
        """Take a trial as it is now."""
        self._trials[record.number] = record

    def finish(self, ended: Ended) -> TrialRecord:
        """Take a trial that was given up."""
        self.recover(ended.record)
        return ended.record

    def settle(self, record: TrialRecord, has_run: bool = True) -> None:
        """Do nothing: there are no checkpoints."""

    def refresh(self) -> None:
        """Do nothing: nobody else is at the study."""

    def is_alive(self, session: str | None) -> bool:
        """Tell whether a session is this one."""
        return session == self.session

    def reason_to_stop(self) -> str | None:
        """Return None: there are no budgets."""
        return None

    def is_everything_tried(self, *_: Any) -> bool:
        """Return False: there are floats."""
        return False

    def announce(self, notice: str) -> None:
        """Print what a search would say."""
        print(notice)


def value_at(params: Mapping[str, Any], share: float, random: np.random.Generator) -> float:
    """Return a loss that falls along a curve to what the parameters are worth, with some noise."""
    apart = sum((float(each) - 0.3) ** 2 for name, each in params.items() if name != "kind")
    return apart + (params["kind"] != "b") * 0.1 + 0.5 * math.exp(-4 * share) + 0.01 * float(random.standard_normal())


def watch(options: argparse.Namespace, folder: Path) -> None:
    """Decide a whole search, and print what it cost."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    random, horizon = np.random.default_rng(0), options.evaluations
    space = SearchSpace(parameters(options.dimensions))
    objectives = resolve_objectives("eval_loss", "minimize", has_metrics=True)
    study = Study("decisions", folder, space, objectives, options.trials)
    defaults = Defaults.of(study, None)
    sampler = CurveSampler(0, objectives[0], defaults.first(study))
    engine = optuna.create_study(sampler=sampler, pruner=optuna.pruners.NopPruner())
    at_rungs = AtRungs(study, engine, defaults.ladder, PausedLimit()) if options.pruner == "rungs" else None
    stored = StoredTrials(study, engine, RepeatableSampling(sampler), None, at_rungs, lambda _: False)
    made_up = MadeUpTrials()
    runner = cast(TrialRunner, made_up)
    order = itertools.count()
    busy: list[tuple[float, int, OptunaTrial]] = []
    idle, now, window = options.workers, 0.0, []
    ended = 0
    print(f"{'trials ended':>12}{'decisions':>12}{'CPU ms each':>14}{'worst':>8}{'memory MB':>12}")
    while True:
        while idle:
            begin = time.process_time()
            trial = stored.next(runner)
            if isinstance(trial, OptunaTrial) and trial.earlier is None:
                study.suggest(trial)
                trial.keep()
            window.append(time.process_time() - begin)
            if not isinstance(trial, OptunaTrial):
                break
            idle -= 1
            new = TrialRecord(trial.number, f"run-{trial.number}", TrialState.RUNNING, trial.params.values_by_name)
            made_up.recover(replace(trial.earlier or new, state=TrialState.RUNNING))
            heapq.heappush(busy, (now + random.uniform(0.5, 1.5), next(order), trial))
        if not busy:
            break
        now, _, trial = heapq.heappop(busy)
        record = cast(TrialRecord, made_up.earlier_record(trial.number))
        epoch = len(record.reports) + 1
        value = value_at(record.params, epoch / horizon, random)
        report = Report((value,), epoch, epoch, epoch, {"num_parameters": 1000.0, "eval_loss": value}, horizon=horizon)
        record = replace(record, reports=(*record.reports, report), epochs=epoch)
        begin = time.process_time()
        verdict = trial.verdict(record, True, epoch == horizon)
        window.append(time.process_time() - begin)
        if verdict.pause or verdict.prune or epoch == horizon:
            idle += 1
            state = TrialState.PAUSED if verdict.pause else TrialState.PRUNED if verdict.prune else TrialState.COMPLETE
            record = replace(record, state=state, values=(value,) if state is TrialState.COMPLETE else ())
            begin = time.process_time()
            stored.end(trial, record)
            window.append(time.process_time() - begin)
            ended += 1
        else:
            heapq.heappush(busy, (now + random.uniform(0.5, 1.5), next(order), trial))
        made_up.recover(record)
        if ended and ended % options.window == 0 and (verdict.pause or verdict.prune or epoch == horizon):
            used = [each for each in window if each > 1e-4]
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
            print(
                f"{ended:12}{len(window):12}{1e3 * sum(window) / max(len(used), 1):14.1f}{1e3 * max(window):8.0f}"
                f"{memory:12.0f}",
                flush=True,
            )
            window = []


def parameters(dimensions: int) -> dict[str, Parameter]:
    """Return a space of so many numbers, and a choice."""
    return {**{f"x{place}": Float(0, 1) for place in range(dimensions)}, "kind": Categorical(["a", "b", "c"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--evaluations", type=int, default=10)
    parser.add_argument("--dimensions", type=int, default=5)
    parser.add_argument("--pruner", choices=["rungs", "none"], default="rungs")
    parser.add_argument("--window", type=int, default=500)
    with tempfile.TemporaryDirectory() as folder:
        watch(parser.parse_args(), Path(folder))


if __name__ == "__main__":
    main()
