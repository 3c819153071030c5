"""Trials in this process: made, and trained together with the processes that follow it."""

from __future__ import annotations

import time

from ..search.peer_summary import PeerTrials
from ..search.process_group import Ranks
from ..search.study import Study
from ..search.time_and_epoch_limits import SearchBudget, TrialBudget
from ..search.trial import Trial
from ..search.trial_record import TrialState
from ..system.sockets import keeping_sockets
from .assignment import Assignment
from .ending import Ended, run_to_end
from .execution import Execution
from .preflight import PreflightPlan
from .reporter import Reporter, SilentReporter
from .searchable import Searchable

_SECONDS_BETWEEN_LOOKS = 0.5


class LocalTrials:
    """Makes and trains trials in this process.

    Args:
        trainer: the recipe of the trials.
        study: the settings.
        budget: of the session.
        ranks: the processes that train each trial.
    """

    def __init__(self, trainer: Searchable, study: Study, budget: SearchBudget, ranks: Ranks) -> None:
        self._trainer, self._study, self._budget, self._ranks = trainer, study, budget, ranks

    def execution(
        self, trial: Trial, others: PeerTrials, reporter: Reporter | None = None, plan: PreflightPlan | None = None
    ) -> Execution:
        """Return a trial as it would run in this process, beside these other ones; by default it reports nothing."""
        budget = TrialBudget(self._study, self._budget, others)
        reporter = reporter or SilentReporter()
        return Execution(self._trainer, self._study, trial, others, budget, self._ranks, reporter, plan=plan)

    def train(self, trial: Trial, assignment: Assignment, reporter: Reporter) -> Ended:
        """Train a trial, together with the processes that follow this one, and return its outcome.

        Args:
            trial: of the study.
            assignment: what there is to know of it.
            reporter: receives what the trial reports.
        """
        execution = self.execution(trial, assignment.others, reporter, assignment.preflight)

        def train() -> tuple[TrialState, str | None]:
            self._ranks.decide(lambda: assignment)
            trial.ranks = self._ranks
            with keeping_sockets(execution.loads_in_processes):
                return execution.run()

        return run_to_end(execution, train)

    def wait(self) -> None:
        """Wait a moment for trials of other sessions, and notify the processes that follow this one."""
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        self._ranks.decide(lambda: None)
