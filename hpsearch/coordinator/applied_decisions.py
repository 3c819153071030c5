"""Carries out what `hpsearch.search.decisions.decide` decides, in the ledger and in the study's folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

from ..ledger.engine_trial import OptunaTrial
from ..ledger.ledger import Entries, Entry, Ledger
from ..ledger.proposer import Proposer
from ..ledger.rated_rungs import RatedRungs
from ..search.decisions.decide import (
    Closing,
    End,
    Prune,
    Repeat,
    Resume,
    Rules,
    Snapshot,
    Start,
    Stop,
    Wait,
    decide,
    judge,
)
from ..search.decisions.paused_limit import PausedLimit
from ..search.decisions.repeats import Confirmation, Repeats
from ..search.decisions.training_budget import TrainingBudget
from ..search.metrics.replicas import without_replicas
from ..search.requests.promotion_marks import is_marked
from ..search.requests.request import Request
from ..search.space.tried_configurations import EVERYTHING_TRIED
from ..search.trial import Verdict
from ..search.trial_record import Replica, TrialRecord, TrialState, replica_of
from ..search.trials_by_number import updated, with_number
from ..trial.ending import Ended
from ..trial.messages import Reported
from .paused_checkpoints import PausedCheckpoints
from .search_session import SearchSession

# With fewer paused trials, the size of their checkpoints does not matter.
_LEAST_TO_MEASURE = 3


class AppliedDecisions:
    """Executes the decisions of a search; processes that share the study take turns.

    Every method is called under the study's lock, but `verdict`, which takes it where it needs to.

    Args:
        session: whose records, limits and folders these are.
        ledger: the trials in the storage.
        at_rungs: where trials pause; None: a pruner of Optuna judges.
        is_converged: returns whether the search may end early.
        budget: in full training runs; None: no limit.
        paused_limit: on the number of paused trials, and on the size of their checkpoints.

    Attributes:
        ending: why `next` gave None, to announce; None if there is nothing to announce.
    """

    def __init__(
        self,
        session: SearchSession,
        ledger: Ledger,
        at_rungs: RatedRungs | None,
        is_converged: Callable[[Sequence[TrialRecord]], bool],
        budget: TrainingBudget | None = None,
        paused_limit: PausedLimit | None = None,
    ) -> None:
        study = self._study = session.study
        self._session, self._records, self._limits = session, session.records, session.limits
        self._ledger, self._at_rungs, self._is_converged = ledger, at_rungs, is_converged
        rungs = None if at_rungs is None else at_rungs.rungs
        repeats = Repeats.in_search(study)
        self._rules = Rules(study.n_trials, rungs, budget, paused_limit or PausedLimit(), repeats)
        self._begun: frozenset[str] = frozenset()  # the requests for new trials that have begun
        self._checkpoints = PausedCheckpoints(study.folder)
        self._has_said_limit = False
        self._has_proposer_ended = False
        self.ending: str | None = None

    def next(self, proposer: Proposer | None = None) -> OptunaTrial | Wait | None:
        """Return the trial to run next; `Wait` while there is none, but others are running; None at the end.

        Args:
            proposer: chooses the parameters of a new trial in place of the sampler.
        """
        self.ending = None
        nothing_new: str | None = None
        while True:
            entries = self._read()
            decision = decide(self._snapshot(entries, nothing_new))
            match decision:
                case Start():
                    nothing_new = self._reason_not_to_start(entries)
                    if nothing_new is None:
                        started = self._start(entries, proposer)
                        if started is not None:
                            return started
                        nothing_new = "the searcher has nothing left to try"
                case Repeat(replica):
                    return self._repeat(entries, replica)
                case Resume(number, by_hand):
                    if by_hand:
                        self._session.announce(f"trial {number} is promoted by hand: it trains to completion")
                    return self._resume(entries.open[number])
                case Prune(numbers, limit):
                    self._prune([entries.open[number] for number in numbers], limit)
                case Stop(number, reason):
                    self._stop(entries.open[number], reason)
                case Wait() as wait:
                    return wait
                case End(reason, is_early):
                    if reason is not None:
                        self.ending = f"the search ends{' early' if is_early else ''}: {reason}"
                    return None

    def verdict(self, trial: OptunaTrial, reported: Reported) -> Verdict:
        """Return the next action of a trial that has reported, according to the rungs or else a pruner of Optuna.

        A trial that has resumed is not judged where it has been before.
        """
        so_far = reported.so_far
        if replica_of(trial.origin) is not None:
            return Verdict()
        if self._at_rungs is None:
            return trial.verdict(so_far, reported.is_comparable, reported.is_last)
        was_paused = trial.earlier is not None and trial.earlier.state is not TrialState.INTERRUPTED
        earlier = trial.earlier if was_paused else None
        if reported.is_last or trial.has_been_further(so_far):
            return Verdict()
        if not self._at_rungs.rungs.is_at_rung(so_far, earlier) or self._by_hand([so_far]):
            return Verdict()
        if self._rules.budget is None:
            return self._judge(trial, so_far, earlier, self._records.known())
        with self._records.locked():  # other searches reserve what this trial costs up to its next pause
            self._records.refresh()
            said = self._judge(trial, so_far, earlier, self._known(self._ledger.read().open))
            if said == Verdict():
                self._session.on_disk.note(so_far)
        return said

    def _judge(
        self, trial: OptunaTrial, so_far: TrialRecord, earlier: TrialRecord | None, known: Sequence[TrialRecord]
    ) -> Verdict:
        """Judge a trial at a rung beside all that are known."""
        assert self._at_rungs is not None, "it is at a rung"
        self._ledger.renew(trial)
        others = (each for each in known if each.number != so_far.number)
        trials = tuple(sorted([so_far, *others], key=attrgetter("number")))
        by_hand = frozenset() if self._rules.budget is None else self._by_hand(trials)
        now = Snapshot(self._rules, trials, by_hand=by_hand, rating=self._at_rungs.rating(trials))
        return judge(now, so_far.number, earlier)

    def _read(self) -> Entries:
        """Read the trials again; those that ended, or paused, just before their process died are recorded as such."""
        self._records.refresh()
        entries = self._ledger.read()
        warning = self._ledger.compare_with_warm_start(entries)
        if warning is not None:
            self._session.announce(warning)
        recovered = [self._recover(each, self._records.ended(number)) for number, each in entries.open.items()]
        return self._read() if any(recovered) else entries

    def _recover(self, entry: Entry, record: TrialRecord | None) -> bool:
        """Settle a trial that had ended, or paused, when its process died; False if it had not."""
        if not entry.is_paused and self._records.is_alive(entry.session):
            return False
        if record is None or not (record.state.is_counted or record.state is TrialState.PAUSED):
            return False
        if record.state is TrialState.PAUSED and entry.is_paused:  # the storage knows
            return False
        self._ledger.end_without_process(entry, record)
        self._records.take(record)
        return True

    def _snapshot(self, entries: Entries, nothing_new: str | None) -> Snapshot:
        """Return the study as it is now, to decide by."""
        requested = self._session.follow_requests()
        self._set_rules(self._session.study.n_trials, requested.confirmations)
        trials = self._known(entries.open)
        compared = without_replicas(trials)
        paused = [] if self._at_rungs is None else [each for each in compared if each.state is TrialState.PAUSED]
        if self._at_rungs is not None:
            for change in self._at_rungs.changes_of_agreement(compared):
                self._session.announce(change)
        unsettled = [each for each in map(partial(with_number, trials=trials), entries.open) if each is not None]
        ended = sum(each.is_counted for each in trials) - sum(each.is_counted for each in unsettled)
        settling = [entries.open[each.number].session for each in unsettled if not each.state.is_open]
        is_measured = _LEAST_TO_MEASURE < len(paused) <= self._rules.paused_limit.number
        return Snapshot(
            self._rules,
            trials,
            deleted=max(0, entries.counted - ended),
            next_number=entries.next_number,
            by_hand=self._by_hand(trials if self._rules.budget is not None else paused),
            closing=self._closing(paused),
            nothing_new=nothing_new,
            settling=sum(map(self._records.is_alive, settling)),
            rating=self._at_rungs.rating(trials) if self._at_rungs is not None and paused else None,
            sizes=self._checkpoints.sizes(paused) if is_measured else {},
            free_bytes=self._checkpoints.free_bytes if is_measured else math.inf,
            stopped=requested.stopped,
            has_requested=self._requested(entries) is not None,
            is_paused=requested.is_paused,
        )

    def _set_rules(self, n_trials: int | None, confirmations: tuple[Confirmation, ...]) -> None:
        """Decide by another total of trials, or repeat other trials, if the user has requested it."""
        if confirmations != self._rules.repeats.confirmations:
            self._rules = replace(self._rules, repeats=replace(self._rules.repeats, confirmations=confirmations))
        if n_trials != self._rules.n_trials:
            rungs = self._rules.rungs
            self._rules = replace(
                self._rules, n_trials=n_trials, rungs=None if rungs is None else rungs.with_total(n_trials)
            )

    def _requested(self, entries: Entries) -> Request | None:
        """Return the first request for a new trial that has not begun; None if there is none."""
        requested = self._session.requests.now()
        if requested.without_trial(self._begun):
            self._begun = self._ledger.requests_begun(entries)
        return next(iter(requested.without_trial(self._begun)), None)

    def _by_hand(self, trials: Sequence[TrialRecord]) -> frozenset[int]:
        """Return the numbers of those of the trials that the user has promoted, or requested, and of the replicas."""
        folder, promoted = self._study.folder, self._session.requests.now().promoted
        return frozenset(
            each.number
            for each in trials
            if each.state.is_open
            and (each.number in promoted or each.origin is not None or is_marked(folder, each.name))
        )

    def _closing(self, paused: Sequence[TrialRecord]) -> Closing | None:
        """Return why no trial may start or resume in this session; None if one may."""
        reason = self._limits.reason_to_stop()
        if reason is None:
            return None
        selects_best = self._limits.exhausted() is not None and self._records.is_last()
        return Closing(reason, selects_best, self._checkpoints.lost(paused) if selects_best else frozenset())

    def _known(self, entries: Mapping[int, Entry]) -> tuple[TrialRecord, ...]:
        """Return all trials; those that have not ended with their state in the storage, where others take them over.

        Args:
            entries: the trials that have begun and have not ended.
        """
        known = self._records.known()
        changed = [  # they have ended in the storage only
            replace(each, state=TrialState.PRUNED)
            for each in known
            if each.state.is_open and each.number not in entries
        ]
        for number, entry in entries.items():
            found, state = with_number(number, known), TrialState.INTERRUPTED
            if entry.is_paused and found is not None:  # else its folder was deleted
                state = TrialState.PAUSED
            elif not entry.is_left and self._records.is_alive(entry.session):
                state = TrialState.RUNNING
            origin = None if entry.replica is None else entry.replica.origin
            record = found or TrialRecord(number, "", state, {}, origin=origin)
            if record.state.is_open:  # else its process records that in the storage next
                changed.append(record if record.state is state else replace(record, state=state))
        return tuple(updated(known, changed))

    def _reason_not_to_start(self, entries: Entries) -> str | None:
        """Return the reason against another trial: everything was tried, or the terminator ends the search."""
        if self._requested(entries) is not None:
            return None
        exhausted = self._ledger.exhausted()
        if exhausted is not None:
            return exhausted
        if self._is_converged(without_replicas(self._records.known())):
            return "the terminator expects no further improvement"
        if self._ledger.has_parameters_left(entries):
            return None
        alive = {number for number, each in entries.open.items() if self._records.is_alive(each.session)}
        return EVERYTHING_TRIED if self._records.is_everything_tried(len(entries.trials), alive) else None

    def _start(self, entries: Entries, proposer: Proposer | None) -> OptunaTrial | Wait | None:
        """Return a new trial; None if the proposer has no more."""
        request = self._requested(entries)
        if self._has_proposer_ended and request is None and not self._ledger.has_given_parameters(entries):
            return None
        records = self._records.known()
        started = self._ledger.start(
            entries, self._records.session, records, proposer, self._records.known_trial, request
        )
        self._has_proposer_ended = started is None
        return self._with_origin(started) if isinstance(started, OptunaTrial) else started

    def _repeat(self, entries: Entries, replica: Replica) -> OptunaTrial:
        """Return a new trial that repeats another one with another seed, or on another fold."""
        repeated = entries.trials[replica.trial]
        session, records = self._records.session, self._records.known()
        return self._with_origin(self._ledger.repeat(entries, repeated, replica.id, session, records))

    def _with_origin(self, trial: OptunaTrial) -> OptunaTrial:
        """Note on a new trial which request it fulfils, or which trial it repeats, if it does."""
        replica = Replica.of_id(trial.request)
        if replica is not None:
            trial.origin = replica.origin
        of_trial = (each for each in self._session.requests.now().new if each.id == trial.request)
        request = next(of_trial, None)
        if request is not None:
            trial.origin = request.origin
        return trial

    def _resume(self, entry: Entry) -> OptunaTrial:
        earlier = self._records.earlier(entry.trial.number)
        resumed = self._ledger.resume(entry, self._records.session, self._records.known(), earlier)
        return resumed if earlier is not None else self._with_origin(resumed)

    def _prune(self, entries: Sequence[Entry], limit: str | None) -> None:
        """Prune paused trials; announce once that there are too many of them."""
        if limit is not None and not self._has_said_limit:
            self._has_said_limit = True
            self._session.announce(
                f"{limit}: the worst of them are pruned, now and whenever the limit is exceeded again"
            )
        records = {each.number: each for each in self._records.known()}
        for entry in entries:
            record = records[entry.trial.number]
            after = (record.reason or "").removeprefix(TrialState.PAUSED.value)
            why = "" if limit is None else f", as {limit}"
            pruned = self._session.on_disk.finish(
                Ended(replace(record, state=TrialState.PRUNED, reason=f"pruned{after}{why}"))
            )
            self._ledger.end_without_process(entry, pruned)
            self._session.settle(pruned, has_run=False)

    def _stop(self, entry: Entry, reason: str) -> None:
        """Stop a trial that no process trains, with the result that it has."""
        record = next(each for each in self._records.known() if each.number == entry.trial.number)
        taken = self._resume(entry)
        stopped = self._session.on_disk.stop_paused(taken, record, reason)
        self._ledger.end(taken, stopped)
        self._session.settle(stopped)
