"""A coordinator with its real parts - folder, records, ledger - whose trials are trained by the test."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna

from hpsearch import Report, SearchListener
from hpsearch.coordinator.applied_decisions import AppliedDecisions
from hpsearch.coordinator.coordinator import Coordinator
from hpsearch.coordinator.search_session import SearchSession
from hpsearch.ledger.engine_trial import OptunaTrial
from hpsearch.ledger.ledger import Ledger
from hpsearch.ledger.rated_rungs import RatedRungs
from hpsearch.ledger.sampling import RepeatableSampling
from hpsearch.search.decisions.ladder import Ladder
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.process_group import OneProcess
from hpsearch.search.space.search_space import SearchSpace
from hpsearch.search.store.study_folder import StudyFolder
from hpsearch.search.study import Study
from hpsearch.search.trial_record import TrialRecord, TrialState
from hpsearch.trial.ending import Ended
from hpsearch.trial.messages import Reported
from tests.support.at_rungs import RATE

EPOCHS = 6  # of a trial's training run


class Shown(SearchListener):
    """Notes what is shown."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.reports: list[Report] = []
        self.ended: list[TrialRecord] = []

    def on_notice(self, notice: str) -> None:
        self.notices.append(notice)

    def on_report(self, trial: Any, report: Report) -> None:
        self.reports.append(report)

    def on_trial_end(self, record: TrialRecord) -> None:
        self.ended.append(record)


class Trainer:
    """What a session asks of a recipe before a trial is trained."""

    has_fixed_model = True
    writes_its_checkpoints = False

    @staticmethod
    def is_read_by_user_code(name: str) -> bool:
        return False


class Searching:
    """A search in progress.

    Attributes:
        engine: Optuna's study, in memory.
        shown: what the search has shown.
        alive: the sessions whose processes are there.
    """

    def __init__(
        self,
        folder: Path,
        n_trials: int = 9,
        retries: int = 3,
        proposer: Any = None,
        pruner: optuna.pruners.BasePruner | None = None,
        clock: Callable[[], float] = time.monotonic,
        sampler: optuna.samplers.BaseSampler | None = None,
        ladder: Ladder | None = None,
        **limits: Any,
    ) -> None:
        sampler = sampler or optuna.samplers.RandomSampler(seed=0)
        self.engine = optuna.create_study(sampler=sampler, pruner=pruner or optuna.pruners.NopPruner())
        objectives = resolve_objectives("loss", "minimize", has_metrics=True)
        study = Study("s", folder / "s", SearchSpace(RATE), objectives, n_trials, preflight=False, **limits)
        study.folder.mkdir(parents=True, exist_ok=True)
        store = StudyFolder(study)
        self.shown = Shown()
        recipe: Any = Trainer()
        self.session = SearchSession(recipe, study, store, self.shown, OneProcess(), clock)
        self.records = self.session.records
        with store.locked():
            self.session.open(store.open())
        self.ledger = Ledger(study, self.engine, RepeatableSampling(sampler))
        at_rungs = None if ladder is None else RatedRungs(study, self.engine, ladder)
        self.decisions = AppliedDecisions(self.session, self.ledger, at_rungs, lambda _: False)
        self.coordinator = Coordinator(self.session, self.ledger, self.decisions, proposer, retries)

        self.alive = {self.records.session}
        self.records.is_alive = self.alive.__contains__  # type: ignore[assignment,method-assign]

    def end(self, number: int, state: TrialState = TrialState.COMPLETE, value: float = 0.5) -> TrialRecord:
        """Let a trial that runs end, after an evaluation."""
        return self.coordinator.ended(ended(self.coordinator.running[number].so_far, state, value))

    def give_to_peer(self, trial: OptunaTrial) -> None:
        """Let another session, which is alive, train a trial."""
        self.alive.add("peer")
        trial.engine_trial.set_user_attr("hpsearch:session", "peer")


def reported(so_far: TrialRecord, *values: float, is_last: bool = False) -> Reported:
    """Return what a trial reports that has been evaluated with these values, the last one just now."""
    reports = tuple(
        Report((value,), count, count, count, {}, horizon=float(EPOCHS)) for count, value in enumerate(values, start=1)
    )
    so_far = replace(so_far, reports=reports, epochs=float(len(values)), fraction=len(values) / EPOCHS)
    return Reported(reports[-1], ((values[-1], len(values)),), is_comparable=True, is_last=is_last, so_far=so_far)


def ended(so_far: TrialRecord, state: TrialState = TrialState.COMPLETE, value: float = 0.5) -> Ended:
    """Return how a trial ended after an evaluation."""
    return Ended(replace(reported(so_far, value).so_far, state=state, values=(value,)))
