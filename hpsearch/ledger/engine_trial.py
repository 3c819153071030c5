"""An Optuna trial behind our Trial interface."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import optuna
from optuna.trial import FrozenTrial

from ..errors import SpaceError
from ..search.space.parameters import Categorical, Float, Parameter, Params
from ..search.trial import Trial
from ..search.trial_record import TrialRecord
from .quiet import quiet_optuna
from .sampling import RepeatableSampling
from .storage import naming_the_storage

# Raises an error if a parameter that user code suggests, given those suggested before, has changed its range.
CheckRange = Callable[[str, Parameter, Params], None]


class OptunaTrial(Trial):
    """A trial whose values Optuna suggests.

    Args:
        engine_trial: the `optuna.Trial`, new or taken over from an earlier session.
        sampling: seeds the sampler for each choice.
        judged: the trial that the pruner judges, where that is another one: with several objectives.
        earlier: what an earlier session left of it.
        stored: the trial as it was in the storage, if it was taken over.
        may_repeat: whether the sampler's first proposal is taken, whatever is known of it.
        may_be_given: see `Trial`.
        check_range: checks what is suggested after the values that the space asked for; None: nothing does.
        request: the id of the request of the user that a new trial fulfils; None: it fulfils none.

    Attributes:
        engine_trial: the `optuna.Trial`, for what only Optuna has.
        told_before: the user attributes and constraints that earlier sessions have set.
    """

    def __init__(
        self,
        engine_trial: optuna.Trial,
        sampling: RepeatableSampling,
        judged: optuna.Trial | None,
        earlier: TrialRecord | None = None,
        stored: FrozenTrial | None = None,
        may_repeat: bool = False,
        may_be_given: bool = False,
        check_range: CheckRange | None = None,
        request: str | None = None,
    ) -> None:
        super().__init__(engine_trial.number, earlier)
        self.request = request
        self.engine_trial, self.judged = engine_trial, judged
        self._sampling, self._check_range = sampling, check_range
        self.told_before = set() if stored is None else {*stored.user_attrs, *stored.constraints}
        self._reported = set() if stored is None else set(stored.intermediate_values)
        self._seen: set[int] = set()
        self._known = set() if stored is None else set(stored.params)
        self._is_sampled_together = False
        self.fixed = engine_trial._fixed_params
        self.may_be_given, self._may_repeat, self._attempt = may_be_given, may_repeat, 0
        self._proposed: _Proposed | None = None
        self._asked: dict[str, Parameter] = {}
        if earlier is None:
            self._proposed = _Proposed(engine_trial.storage)
            engine_trial.storage = cast(optuna.storages.BaseStorage, self._proposed)

    def propose_again(self, params: Mapping[str, object] | None = None) -> bool:
        """Let the sampler propose again, or propose these; not for a trial that was given values, or has stored some.

        A trial that was killed while its values were stored keeps those that were stored.
        """
        trial = self.engine_trial
        if self._proposed is None or self._may_repeat or self.fixed or self._known:
            return False
        self._attempt += 1
        self._proposed.calls.clear()
        self.params.values_by_name.clear()
        self._is_sampled_together, trial._relative_params = False, None
        trial._cached_frozen_trial.params, trial._cached_frozen_trial.distributions = {}, {}
        trial._fixed_params = dict(params or {})
        return True

    def keep(self) -> None:
        """Store the values; those of a later attempt first all together, so that a killed search has them all."""
        proposed, self._proposed = self._proposed, None
        if proposed is None:
            return
        trial = self.engine_trial
        trial.storage = storage = proposed.storage
        with self._talking():
            if self._attempt:
                given = dict(trial._cached_frozen_trial.params)
                storage.set_trial_system_attr(trial._trial_id, "fixed_params", given)
            for number, name, *value in proposed.calls:
                try:
                    storage.set_trial_param(number, name, *value)
                except ValueError as error:
                    raise self._cannot_be_suggested(name, self._asked[name], error) from error

    def _cannot_be_suggested(self, name: str, parameter: Parameter, error: ValueError) -> SpaceError:
        return SpaceError(
            f"Trial {self.number}: {name} cannot be suggested from {parameter!r}: {error} A study keeps the "
            "kind of a parameter, and the choices of a Categorical."
        )

    def report(self, value: float, resource: int) -> None:
        """Report the objective after `resource` units of data, unless an earlier session has."""
        self._seen.add(resource)
        if resource in self._reported:
            return
        self._reported.add(resource)
        with self._talking():
            (self.judged or self.engine_trial).report(value, resource)

    def begin_again(self) -> None:
        """Forget how far the trial was: another process resumes from its last checkpoint."""
        self._seen.clear()

    def should_prune(self) -> bool:
        """Ask the pruner; what a session that was killed has reported further on is not for it to know."""
        trial = self.judged or self.engine_trial
        with self._talking():
            if self._reported <= self._seen:
                return trial.should_prune()
            stored = trial.study._storage.get_trial(trial._trial_id)
            known = {each: value for each, value in stored.intermediate_values.items() if each in self._seen}
            seen = copy.copy(stored)
            seen.intermediate_values = known
            return trial.study.pruner.prune(trial.study, seen)

    def has_been_further(self, so_far: TrialRecord) -> bool:
        """Return whether a trial that has resumed was further before than it is now."""
        return max(self._reported, default=0) > so_far.reports[-1].resource

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        """Silence Optuna while the block runs, and let an error of its storage say what is wrong."""
        with quiet_optuna(), naming_the_storage(self.engine_trial.study._storage):
            yield

    def _choose(self, name: str, parameter: Parameter) -> object:
        with self._talking():
            return self._chosen(name, parameter)

    def _chosen(self, name: str, parameter: Parameter) -> object:
        if name not in self._known and not self._is_sampled_together:
            self._sampling.seed_for(self.number, attempt=self._attempt)
            _ = self.engine_trial.relative_params  # those that a sampler chooses together, whichever comes first
            self._is_sampled_together = True
        self._sampling.seed_for(self.number, name, self._attempt)
        if name in self.fixed and not parameter.contains(self.fixed[name]):
            raise SpaceError(
                f"Trial {self.number} was given {name}={self.fixed[name]!r} to start with, which is not in "
                f"{parameter!r}."
            )
        if self._check_range is not None and self._proposed is None and name not in self._known:
            self._check_range(name, parameter, self.params.values_by_name)
        self._asked[name] = parameter
        try:
            value = self._suggest(name, parameter)
        except ValueError as error:
            raise self._cannot_be_suggested(name, parameter, error) from error
        if not parameter.contains(value):
            raise SpaceError(f"Trial {self.number} was given {name}={value!r}, which is not in {parameter!r}.")
        return value

    def _suggest(self, name: str, parameter: Parameter) -> object:
        trial = self.engine_trial
        if isinstance(parameter, Categorical):
            return trial.suggest_categorical(name, parameter.choices)
        if isinstance(parameter, Float):
            return trial.suggest_float(name, parameter.low, parameter.top, step=parameter.step, log=parameter.log)
        return trial.suggest_int(name, parameter.low, parameter.top, step=parameter.step, log=parameter.log)


class _Proposed:
    """Stands in for the storage while the values of a trial are only proposed.

    Attributes:
        storage: everything but the values goes there.
        calls: what is to be stored.
    """

    def __init__(self, storage: optuna.storages.BaseStorage) -> None:
        self.storage = storage
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.storage, name)

    def set_trial_param(self, *call: Any) -> None:
        """Note what is to be stored."""
        self.calls.append(call)
