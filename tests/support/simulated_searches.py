"""Searches that `decide` and `judge` drive to their end; nothing is trained, and an evaluation takes no time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hpsearch.search.decisions.decide import (
    Decision,
    End,
    Prune,
    Resume,
    Rules,
    Snapshot,
    Start,
    Stop,
    Wait,
    decide,
    judge,
)
from hpsearch.search.decisions.training_budget import full_runs_of
from hpsearch.search.trial_record import Report, TrialRecord, TrialState

# Changes a snapshot before it is decided by, such as by what the user has promoted.
Change = Callable[[Snapshot], Snapshot]


@dataclass
class SimulatedSearch:
    """A search with many workers, whose next report comes from any of the trials that run.

    Args:
        rules: of the search; a new one is asked for each decision, if this is a function.
        workers: the number of trials that run at once.
        seed: of the values, of which trial reports next, and of which fail.
        evaluations: of a complete trial.
        failing: the fraction of the trials that fail at some evaluation.
        killed: the fraction of the reports before which the trial's process is killed.
        change: changes each snapshot.

    Attributes:
        trials: by number.
        decisions: in their order.
    """

    rules: Rules | Callable[[], Rules]
    workers: int
    seed: int = 0
    evaluations: int = 6
    failing: float = 0.0
    killed: float = 0.0
    change: Change = lambda now: now
    trials: dict[int, TrialRecord] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)

    def run(self) -> End:
        """Run until the end; check that each decision is possible."""
        self._random, running = random.Random(self.seed), list[int]()
        while True:
            while len(running) < self.workers:
                decision = self._decide()
                match decision:
                    case Start():
                        number = len(self.trials)
                        self.trials[number] = TrialRecord(number, f"run-{number}", TrialState.RUNNING, {}, fraction=0.0)
                        running.append(number)
                    case Resume(number):
                        assert self.trials[number].state in (TrialState.PAUSED, TrialState.INTERRUPTED)
                        self._set(number, TrialState.RUNNING)
                        running.append(number)
                    case Prune(numbers):
                        assert numbers
                        for number in numbers:
                            assert self.trials[number].state is TrialState.PAUSED
                            self._set(number, TrialState.PRUNED)
                    case Stop(number):
                        assert self.trials[number].state is TrialState.PAUSED
                        self._set(number, TrialState.STOPPED)
                    case Wait():
                        assert running, "waits for nothing"
                        break
                    case End():
                        assert not running or self._now().closing is not None, "ends while trials are running"
                        return decision
            place = self._random.randrange(len(running))
            if self._random.random() < self.killed:
                self._set(running[place], TrialState.INTERRUPTED)
            if self.trials[running[place]].state is TrialState.INTERRUPTED or not self._evaluate(running[place]):
                running[place] = running[-1]
                running.pop()

    def count(self, *states: TrialState) -> int:
        """Return the number of trials in these states."""
        return sum(each.state in states for each in self.trials.values())

    @property
    def spent(self) -> float:
        """The cost of all trials in full training runs."""
        return full_runs_of(list(self.trials.values()))

    def _now(self) -> Snapshot:
        rules = self.rules() if callable(self.rules) else self.rules
        return self.change(Snapshot(rules, tuple(self.trials.values()), next_number=len(self.trials)))

    def _decide(self) -> Decision:
        decision = decide(self._now())
        self.decisions.append(decision)
        return decision

    def _set(self, number: int, state: TrialState) -> None:
        self.trials[number] = replace(self.trials[number], state=state)

    def _evaluate(self, number: int) -> bool:
        """Let a trial report; return whether it continues."""
        trial = self.trials[number]
        epoch = len(trial.reports) + 1
        of_trial = random.Random(f"{self.seed}/{number}")
        value = of_trial.random() + random.Random(f"{self.seed}/{number}/{epoch}").gauss(0, 0.2 / epoch)
        report = Report((value,), epoch, epoch, epoch, {}, horizon=self.evaluations)
        trial = replace(trial, reports=(*trial.reports, report), epochs=epoch, fraction=epoch / self.evaluations)
        self.trials[number] = trial
        if of_trial.random() < self.failing and of_trial.randint(1, self.evaluations) == epoch:
            self._set(number, TrialState.FAILED)
        elif epoch == self.evaluations:
            self.trials[number] = replace(trial, state=TrialState.COMPLETE, values=(value,))
        else:
            verdict = judge(self._now(), number)
            if verdict.prune or verdict.pause:
                self._set(number, TrialState.PRUNED if verdict.prune else TrialState.PAUSED)
        return self.trials[number].state is TrialState.RUNNING
