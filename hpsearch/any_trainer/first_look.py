"""What a function is that is searched: one that makes trainers, or a plain one; its first call shows it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import transformers

from ..errors import StudyError, described_value
from ..search.folds import Folds
from ..search.listener import SearchListener
from ..search.space.search_space import SearchSpace
from ..search.time_and_epoch_limits import NO_FIRST_CALL, FirstCall
from ..search.wording import format_value
from ..searching.search_arguments import SearchArguments, listener_of
from ..training.randomness import preserved_streams
from .first_call import FirstReport, FirstTrial, KnownResult, Space, call_first, name_of
from .first_call_in_group import MadeTrainer
from .function_call import FunctionArguments
from .function_trial import as_metrics
from .optuna_names import StudyOfTrial
from .plain_function import PlainFunction
from .trainer_function import TrainerFunction


class Found(NamedTuple):
    """What a function is.

    Attributes:
        recipe: of its trials.
        start: what the search starts with; None: as it was given.
        first_call: which showed it; none if the study has it on record.
    """

    recipe: TrainerFunction | PlainFunction
    start: list[object] | None = None
    first_call: FirstCall = NO_FIRST_CALL


@dataclass(frozen=True)
class FirstLook:
    """The first call of a function.

    Attributes:
        function: that is searched.
        given: the arguments of its search.
        args: what is known of it, if it is a plain function.
        trainers: the same function, if it makes trainers.
        space: of its parameters.
        start: the parameters of the first trials.
        study: as the function sees it.
        is_new: whether its study has no trials of a plain function yet.
        clock: measures what the call takes, in seconds.
        in_group: calls the function in a group of processes; None: its trials have one process each.
        folds: of the cross-validation; None: there is none.
    """

    function: Callable[[Any], object]
    given: SearchArguments
    args: FunctionArguments
    trainers: TrainerFunction
    space: Space
    start: Sequence[Mapping[str, object]]
    study: StudyOfTrial
    is_new: bool
    clock: Callable[[], float]
    in_group: Callable[[FirstTrial], object] | None
    folds: Folds | None = None

    def call(self) -> Found:
        """Call the function, and return what it is.

        Raises:
            StudyError: the call fails, or returns something that cannot be searched.
        """
        code, listener, began = name_of(self.function), self._listener(), self.clock()
        listener.on_first_call(f"the first call of {code} is running: it shows what {code} is")
        try:
            start = self.start[0] if self.start else None
            returned, trial = self._called(code, start)
        except FirstReport as first:
            took = FirstCall(self.clock() - began)
            self.args.reads_checkpoint, self.args.objective = first.trial.reads_checkpoint, _names(first.value, code)
            listener.on_first_call(_ended_at(first, code, took.seconds))
            return Found(PlainFunction(self.function, self.args), None, took)
        took = FirstCall(self.clock() - began)
        if isinstance(returned, transformers.Trainer) or hasattr(returned, "hyperparameter_search"):
            return Found(self.trainers, None, took)
        return self._with_result(returned, trial, took)

    def _called(self, code: str, start: Mapping[str, object] | None) -> tuple[object, FirstTrial]:
        """Call the function in a group if its trials have several processes; here, if not, or if it makes a trainer."""
        seed = self.args.seed
        if self.in_group is not None:
            with preserved_streams():
                returned, trial = call_first(self.in_group, self.space, code, seed, start, self.study, self.folds)
            if not isinstance(returned, MadeTrainer):
                return returned, trial
        return self.trainers.call_first(self.space, code, start, seed, self.study, self.folds)

    def _with_result(self, returned: object, trial: FirstTrial, took: FirstCall) -> Found:
        """Return a function that has returned a result, which is that of trial 0 if it can be."""
        code, args = name_of(self.function), self.args
        if returned is None or isinstance(returned, str):
            raise StudyError(
                f"{code}(trial) must return a transformers.Trainer, a number or a dict of metrics, or report some, "
                f"but returned {described_value(returned)}."
            )
        metrics, params = as_metrics(returned, code), dict(trial.params.values_by_name)
        args.reports, args.objective = False, _names(returned, code)
        if trial.has_saved or trial.draw > 0 or not (self.is_new and self._can_start_with(params)):
            return Found(PlainFunction(self.function, args), None, took)
        result = KnownResult(metrics, params, trial.suggested, took.seconds, trial.user_attrs, trial.has_read_fold)
        recipe = PlainFunction(self.function, args, result)
        return Found(recipe, [params, *self.start[1:]], took._replace(is_first_trial=True))

    def _can_start_with(self, params: Mapping[str, object]) -> bool:
        """Return whether trial 0 can be given parameters: they are in the space, and no other engine chooses."""
        is_in_space = not isinstance(self.space, SearchSpace) or params.keys() <= self.space.all_parameters().keys()
        return is_in_space and self.given.sampler is None and not self.given.options

    def _listener(self) -> SearchListener:
        """Return what shows the search, in the main one of the processes that a launcher has started."""
        is_main = int(os.environ.get("RANK", "0")) == 0
        return listener_of(self.given.progress) if is_main else SearchListener()


def _ended_at(first: FirstReport, code: str, seconds: float) -> str:
    """Return that a first call has ended at its first report, in words."""
    metrics = as_metrics(first.value, code)
    reported = ", ".join(f"{name.removeprefix('eval_')}={format_value(each)}" for name, each in metrics.items())
    step = "" if first.step is None else f" at step {first.step}"
    again = f"trial 0 calls {code} again"
    return f"the first call of {code} has reported {reported}{step} after {seconds:.1f} s, and ends here: {again}"


def _names(value: object, code: str) -> tuple[str, ...]:
    """Return the names of the metrics that a function has reported, as it names them."""
    return tuple(map(str, value)) if isinstance(value, Mapping) else tuple(each[5:] for each in as_metrics(value, code))
