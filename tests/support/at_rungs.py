"""Trials at rungs, as records, and what is to become of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpsearch import Float, Ladder, TrialRecord
from hpsearch.search.decisions.ladder import LADDER_OF_0_8_0
from hpsearch.search.decisions.promotion_at_rungs import Rungs
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.space.search_space import SearchSpace
from hpsearch.search.study import Study
from hpsearch.search.trial import Verdict
from hpsearch.search.trial_record import Report, TrialState

RATE = {"learning_rate": Float(1e-4, 1.0, log=True)}
GO_ON, PAUSE, PRUNE = Verdict(), Verdict(pause=True), Verdict(prune=True)
EPOCHS = 6  # pauses after 1 and 3 of them


def rungs(
    n_trials: int | None = 30, scope: str = "last", ladder: Ladder = LADDER_OF_0_8_0, budget: float | None = None
) -> Rungs:
    objectives = resolve_objectives("loss", "minimize", has_metrics=True)
    return Rungs(Study("s", Path("s"), SearchSpace(RATE), objectives, n_trials, scope, budget=budget), ladder)


def trial(number: int, *losses: float, state: TrialState = TrialState.PAUSED, **changes: Any) -> TrialRecord:
    """A trial of eighteen epochs that was evaluated after epochs 1, 3, 9 and 18, or as many of them."""
    epochs = changes.pop("epochs", (1, 3, 9, 18))
    violations = changes.pop("violations", {})
    reports = [
        Report((loss,), epoch, epoch, epoch, {"eval_loss": loss}, violations, horizon=18.0)
        for epoch, loss in zip(epochs, losses, strict=False)
    ]
    values = (losses[-1],) if losses and state.has_result else ()
    about: dict[str, Any] = {"reports": tuple(reports), "values": values, "violations": violations, **changes}
    return TrialRecord(number, f"run-{number}", state, {}, **about)


def running(number: int, *losses: float, **changes: Any) -> TrialRecord:
    return trial(number, *losses, state=TrialState.RUNNING, **changes)
