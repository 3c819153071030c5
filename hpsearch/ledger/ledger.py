"""The trials of a study in Optuna's storage: read, started, resumed and ended. It decides nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import optuna
from optuna.samplers import GridSampler
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as EngineState

from ..search.decisions.decide import Wait
from ..search.metrics.replicas import without_replicas
from ..search.requests.request import Request
from ..search.space.parameters import Params
from ..search.study import Study
from ..search.trial_record import Replica, TrialRecord, TrialState
from .curve_sampler import CurveSampler
from .engine_trial import OptunaTrial
from .finite_space import has_values_left
from .proposer import Proposer, proposed_by
from .pruning import PruningByOneObjective
from .quiet import quiet_optuna
from .ranges import RangesOfTrials
from .sampling import RepeatableSampling
from .storage import naming_the_storage
from .trial_cache import forget_trials, read_trials, renew_trial
from .warm_starts import ORIGIN, can_be_compared, far_off, is_taught

# User attributes of Optuna's trials: how a trial ended where Optuna's state does not say it, why; whose it is; its
# place among the trials that the user wants the search to start with; what a scheduler has changed; and the request of
# the user that it fulfils.
_STATE, _REASON, _SESSION, _PLACE, _SCHEDULE, REQUEST = (
    f"hpsearch:{each}" for each in ("state", "reason", "session", "place", "schedule", "request")
)
# A user attribute of Optuna's study: with which sampler and space everything has been tried.
_EXHAUSTED = "hpsearch:exhausted"
_STATES_THAT_OPTUNA_HAS = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAILED)


@dataclass(frozen=True)
class Entry:
    """A trial that has begun and has not ended, as the storage has it.

    Attributes:
        trial: of Optuna.
    """

    trial: FrozenTrial

    @property
    def is_paused(self) -> bool:
        """Whether it is paused at a rung."""
        return self.trial.user_attrs.get(_STATE) == TrialState.PAUSED.value

    @property
    def is_left(self) -> bool:
        """Whether its process has left it, to resume later: it is paused, or was interrupted."""
        return self.is_paused or self.trial.user_attrs.get(_STATE) == TrialState.INTERRUPTED.value

    @property
    def session(self) -> str | None:
        """The session that trains it, or was the last to do so; None if none is known."""
        return self.trial.user_attrs.get(_SESSION)

    @property
    def replica(self) -> Replica | None:
        """Which trial it repeats with another seed; None: none."""
        return Replica.of_id(self.trial.user_attrs.get(REQUEST))

    @property
    def told_before(self) -> set[str]:
        """The names of its user attributes and constraints."""
        return {*self.trial.user_attrs, *self.trial.constraints}


@dataclass(frozen=True)
class Entries:
    """The trials of the storage as they were read.

    Attributes:
        trials: all of them, by number.
        counted: the number of those that have ended and count towards the total.
        queued: the numbers of those that somebody has queued.
        open: by number, those that have begun and have not ended.
    """

    trials: Sequence[FrozenTrial]
    counted: int
    queued: Sequence[int]
    open: Mapping[int, Entry]

    @property
    def next_number(self) -> int:
        """The number of the next new trial."""
        return self.queued[0] if self.queued else len(self.trials)


class Ledger:
    """Reads, starts, resumes and ends trials in Optuna's storage.

    Every method but `talking` is called in a block of it; all but `renew` under the lock of the study, `end` by the
    session that trained the trial.

    Args:
        study: the settings.
        engine: Optuna's study.
        sampling: seeds the sampler for each trial.
        by_one: prunes where there are several objectives; None with one.
        may_give: whether a configuration that was never tried may take the place of what the sampler proposes.
        may_repeat: whether a configuration may be trained again although its result is known.
    """

    def __init__(
        self,
        study: Study,
        engine: optuna.Study,
        sampling: RepeatableSampling,
        by_one: PruningByOneObjective | None = None,
        may_give: bool = False,
        may_repeat: bool = False,
    ) -> None:
        self._study, self._engine, self._sampling = study, engine, sampling
        self._by_one, self._may_give, self.may_repeat = by_one, may_give, may_repeat
        self._ended = _Ended()
        self._ranges: RangesOfTrials | None = None
        self._is_compared: bool | None = None  # with another study; None: it is not known whether there is one

    @contextmanager
    def talking(self) -> Iterator[None]:
        """Silence Optuna while the block runs, and let an error of its storage say what is wrong."""
        with quiet_optuna(), naming_the_storage(self._engine._storage):
            yield

    def read(self) -> Entries:
        """Read all trials anew."""
        trials = read_trials(self._engine)
        self._ranges = self._ranges or RangesOfTrials(self._study, trials)
        counted, unfinished = self._ended.count(trials)
        return Entries(
            trials,
            counted,
            [each.number for each in unfinished if each.state is EngineState.WAITING],
            {each.number: Entry(each) for each in unfinished if each.state is EngineState.RUNNING},
        )

    def start(
        self,
        entries: Entries,
        session: str,
        records: Sequence[TrialRecord],
        proposer: Proposer | None = None,
        known_trial: Callable[[Params], TrialRecord | None] = lambda params: None,
        request: Request | None = None,
    ) -> OptunaTrial | Wait | None:
        """Return a new trial; `Wait` if the proposer has no parameters now, None if it has no more.

        Requested trials come first, then those that the user wants the search to start with.

        Args:
            entries: as they were just read.
            session: that trains it.
            records: all trials that are known.
            proposer: chooses the parameters in place of the sampler.
            known_trial: returns the trial that has these parameters already; the proposer then proposes others.
            request: for a new trial; None: there is none.
        """
        place, is_queued = self._place(entries.trials), bool(entries.queued)
        if request is not None:
            self._engine.enqueue_trial(dict(request.params), user_attrs={REQUEST: request.id})
            is_queued = True
        elif not is_queued and place < len(self._study.start_with):
            self._engine.enqueue_trial(dict(self._study.start_with[place]), user_attrs={_PLACE: place})
            is_queued = True
        elif not is_queued and proposer is not None:
            known = (lambda params: None) if self.may_repeat else known_trial
            proposed = proposed_by(proposer, len(entries.trials), known)
            if proposed is None or isinstance(proposed, Wait):
                return proposed
            self._engine.enqueue_trial(dict(proposed))
            is_queued = True
        return self._begin(entries.next_number, session, records, is_queued)

    def repeat(
        self, entries: Entries, repeated: FrozenTrial, request: str, session: str, records: Sequence[TrialRecord]
    ) -> OptunaTrial:
        """Return a new trial with the parameters of another one.

        Args:
            entries: as they were just read.
            repeated: the other one.
            request: the id by which the storage knows what the new trial is.
            session: that trains it.
            records: all trials that are known.
        """
        if not any(entries.trials[each].user_attrs.get(REQUEST) == request for each in entries.queued):
            self._engine.enqueue_trial(dict(repeated.params), user_attrs={REQUEST: request})
        return self._begin(entries.next_number, session, records, is_queued=True)

    def _begin(self, number: int, session: str, records: Sequence[TrialRecord], is_queued: bool) -> OptunaTrial:
        self._prepare_sampler(number, records)
        trial = self._ask(session, is_queued)
        renew_trial(self._engine, trial)
        return OptunaTrial(
            trial,
            self._sampling,
            self._judged(trial.number, records),
            may_repeat=self.may_repeat,
            may_be_given=self._may_give,
            check_range=None if self._ranges is None else self._ranges.check,
            request=trial.user_attrs.get(REQUEST),
        )

    def resume(
        self, entry: Entry, session: str, records: Sequence[TrialRecord], earlier: TrialRecord | None
    ) -> OptunaTrial:
        """Return a trial that has begun, and that this session trains from now on.

        Args:
            entry: as it was just read.
            session: that trains it.
            records: all trials that are known.
            earlier: the record that the trial has on disk; None if it has none.
        """
        number = entry.trial.number
        self._prepare_sampler(number, records)
        taken = optuna.Trial(self._engine, entry.trial._trial_id)
        taken.set_user_attr(_SESSION, session)
        if entry.is_left:
            taken.set_user_attr(_STATE, TrialState.RUNNING.value)  # until then nobody trains it
        renew_trial(self._engine, taken)
        return OptunaTrial(
            taken,
            self._sampling,
            self._judged(number, records),
            earlier,
            entry.trial,
            may_repeat=self.may_repeat,
            may_be_given=self._may_give,
            request=entry.trial.user_attrs.get(REQUEST),
        )

    def end(self, trial: OptunaTrial, record: TrialRecord) -> None:
        """Record how a trial ended; one that was interrupted stays running in the storage, and can be resumed."""
        if trial.judged is not None and self._by_one is not None:
            self._by_one.end(trial.judged, record)
        self._record(trial.engine_trial, record, trial.told_before)

    def end_without_process(self, entry: Entry, record: TrialRecord) -> None:
        """Record how a trial ended that no process trains."""
        self._record(optuna.Trial(self._engine, entry.trial._trial_id), record, entry.told_before)

    def renew(self, trial: OptunaTrial) -> None:
        """Let the sampler and the pruner see what a running trial has reported."""
        renew_trial(self._engine, trial.engine_trial)

    def exhausted(self) -> str | None:
        """Return, in words, that the sampler has tried everything; None if it has not."""
        engine = self._engine
        is_exhausted = isinstance(engine.sampler, GridSampler) and engine.sampler.is_exhausted(engine)
        tried = engine.user_attrs.get(_EXHAUSTED)
        if is_exhausted or (tried is not None and tried == self._what_is_tried()):
            return f"{type(engine.sampler).__name__} has tried every configuration of this space"
        return None

    def requests_begun(self, entries: Entries) -> frozenset[str]:
        """Return the requests for new trials that have been queued, or have begun."""
        return frozenset(each.user_attrs[REQUEST] for each in entries.trials if REQUEST in each.user_attrs)

    def has_given_parameters(self, entries: Entries) -> bool:
        """Return whether the user has given parameters for the next trial: queued ones, or some to start with."""
        return bool(entries.queued) or self._place(entries.trials) < len(self._study.start_with)

    def has_parameters_left(self, entries: Entries) -> bool:
        """Return whether there are parameters for another trial in any case, however few the space has."""
        return self.has_given_parameters(entries) or self.may_repeat or has_values_left(entries.trials)

    def compare_with_warm_start(self, entries: Entries) -> str | None:
        """Return a warning, once, if the study of the warm start was about another task."""
        if self._is_compared is None:
            self._is_compared = not any(map(is_taught, entries.trials))
        if self._is_compared or not can_be_compared(entries.trials):
            return None
        self._is_compared = True
        return far_off(entries.trials, self._study.objectives[0])

    def _place(self, trials: Sequence[FrozenTrial]) -> int:
        """Return how many of the trials that the user wants the search to start with have begun."""
        if not self._study.start_with:
            return 0
        bound = self._study.uncounted_before
        uncounted = {each.number for each in trials[:bound] if each.state is EngineState.FAIL}
        started_with = [each for each in trials if _PLACE in each.user_attrs and each.number not in uncounted]
        return sum(is_counted(each) or not each.state.is_finished() for each in started_with)

    def _ask(self, session: str, is_queued: bool) -> optuna.Trial:
        """Return the queued trial, or a new one, as `optuna.Study.ask` does, with the name of the session on it.

        A new one is written together with it: one write in place of two, and no moment without a session.
        """
        engine = self._engine
        if is_queued:
            trial = engine.ask()
            trial.set_user_attr(_SESSION, session)
            return trial
        begun = optuna.trial.create_trial(state=EngineState.RUNNING, user_attrs={_SESSION: session})
        return optuna.Trial(engine, engine._storage.create_new_trial(engine._study_id, begun))

    def _prepare_sampler(self, number: int, records: Sequence[TrialRecord]) -> None:
        """Seed the sampler for a trial; the one that learns from curves gets them."""
        self._sampling.seed_for(number)
        if isinstance(self._engine.sampler, CurveSampler):
            self._engine.sampler.trials = without_replicas(records) if self._study.folds is not None else records

    def _judged(self, number: int, records: Sequence[TrialRecord]) -> optuna.Trial | None:
        return None if self._by_one is None else self._by_one.begin(records, number)

    def _record(self, trial: optuna.Trial, record: TrialRecord, told_before: Collection[str]) -> None:
        """Record how a trial ended; `told_before` are the attributes and constraints of earlier sessions."""
        forget_trials(self._engine)
        if record.state not in _STATES_THAT_OPTUNA_HAS or _STATE in told_before:
            trial.set_user_attr(_STATE, record.state.value)
        if record.reason is not None or _REASON in told_before:
            trial.set_user_attr(_REASON, record.reason)
        if record.schedule:
            trial.set_user_attr(_SCHEDULE, list(record.schedule))
        for name, value in record.user_attrs.items():
            trial.set_user_attr(name, value)
        if record.state in (TrialState.INTERRUPTED, TrialState.PAUSED):
            return
        for name, violation in record.violations.items():
            if name not in told_before:
                trial.set_constraint(name, violation)
        try:
            if record.state.has_result:
                self._engine.tell(trial, list(record.values), state=EngineState.COMPLETE)
            else:
                is_pruned = record.state is TrialState.PRUNED
                self._engine.tell(trial, state=EngineState.PRUNED if is_pruned else EngineState.FAIL)
        except KeyError as error:
            if error.args != ("grid_id",):  # GridSampler looks for it, but a trial that the user has requested has none
                raise
        except RuntimeError as error:
            # A sampler that has tried everything (GridSampler) stops the study, which Optuna allows only in `optimize`.
            # The trial is recorded all the same.
            if "Study.stop" not in str(error):
                raise
            self._engine.set_user_attr(_EXHAUSTED, self._what_is_tried())

    def _what_is_tried(self) -> str:
        return f"{type(self._engine.sampler).__name__} {json.dumps(self._study.described_space())}"


class _Ended:
    """Counts the trials that have ended and count: each is looked at until it has ended, and no more."""

    def __init__(self) -> None:
        self._looked_at, self._counted = 0, 0
        self._unfinished: list[int] = []

    def count(self, trials: Sequence[FrozenTrial]) -> tuple[int, list[FrozenTrial]]:
        """Return how many count, and those that have not ended.

        Args:
            trials: all trials, by number.
        """
        later = [*self._unfinished, *range(self._looked_at, len(trials))]
        self._unfinished = [number for number in later if not trials[number].state.is_finished()]
        ended = set(later).difference(self._unfinished)
        self._counted += sum(is_counted(trials[number]) for number in ended)
        self._looked_at = len(trials)
        return self._counted, [trials[number] for number in self._unfinished]


def attributes_of(record: TrialRecord, place: int | None) -> dict[str, object]:
    """Return the user attributes of a trial that is known from its record only; see `Ledger`.

    Args:
        record: of the trial.
        place: which of the parameters that the search starts with it has; None if none.
    """
    has_state = record.state in (*_STATES_THAT_OPTUNA_HAS, TrialState.RUNNING)
    attributes = {
        _STATE: None if has_state else record.state.value,
        _REASON: record.reason,
        _SCHEDULE: list(record.schedule) or None,
        _PLACE: place,
        REQUEST: None if record.origin is None else record.origin["request"],
        **record.user_attrs,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def is_counted(trial: FrozenTrial) -> bool:
    """Return whether a trial counts towards the study's total: it has ended, here, not refused, and is no replica."""
    is_refused = trial.user_attrs.get(_STATE) == TrialState.REFUSED.value
    is_replica = Replica.of_id(trial.user_attrs.get(REQUEST)) is not None
    return trial.state.is_finished() and not is_refused and not is_replica and ORIGIN not in trial.user_attrs
