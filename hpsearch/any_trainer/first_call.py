"""The first call of a function that is searched: it shows what the function is, before the first trial."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NoReturn, TypeVar

from ..errors import HpsearchError, SpaceError, StudyError, TrialPruned
from ..search.folds import Folds
from ..search.space.drawn_trial import DrawnTrial
from ..search.space.parameters import Parameter
from ..search.space.search_space import SearchSpace
from ..search.study import SEEDS_IN_ALL
from ..search.trial import Trial
from ..system.spelling import nearest_name
from ..system.temporary_folders import scratch_folder
from ..training.randomness import set_seed
from .optuna_names import UNKNOWN_STUDY, ReadAsInOptuna, StudyOfTrial

Made = TypeVar("Made")
Space = SearchSpace | Callable[[Trial], object]


class FirstReport(BaseException):
    """The function reports, so it is a plain function, and its first call ends here.

    Attributes:
        trial: of the call.
        value: what was reported.
        step: after which step; None if the function does not count them.
    """

    def __init__(self, trial: FirstTrial, value: object, step: object = None) -> None:
        super().__init__()
        self.trial, self.value, self.step = trial, value, step


class FirstTrial(ReadAsInOptuna, DrawnTrial):
    """A trial with parameters drawn at random that ends the call at the first report.

    Args:
        draw: the number of the attempt; the first one may become trial 0, the others only show what the function is.
        seed: of the random streams.
        start: values in place of drawn ones.
        study: that will be searched.
        folds: of its cross-validation; None: there is none.

    Attributes:
        reads_checkpoint: whether the function asked for a checkpoint to resume from.
        suggested: what was asked for, by the space and by the function.
        first_report: what ends the call, though the function may catch it, or report in another thread.
        has_saved: whether the function saved a checkpoint, which is deleted again.
    """

    def __init__(
        self, draw: int, seed: int, start: Mapping[str, object], study: StudyOfTrial, folds: Folds | None = None
    ) -> None:
        super().__init__(f"{seed}/0" if draw == 0 else draw)
        self.folds = folds
        self.set_names_of_optuna(study, datetime.now())
        self._start = start if draw == 0 else {}
        self.draw, self.seed, self.reads_checkpoint, self.has_saved = draw, seed, False, False
        self.suggested: dict[str, Parameter] = {}
        self.first_report: FirstReport | None = None

    @property
    def checkpoint(self) -> Path | None:
        """None, as in a trial that begins."""
        self.reads_checkpoint = True
        return None

    def report(self, value: object, step: object = None) -> NoReturn:
        """End the call."""
        self.first_report = self.first_report or FirstReport(self, value, step)
        raise self.first_report

    @contextlib.contextmanager
    def save(self) -> Iterator[Path]:
        """Give a folder that is deleted again."""
        with scratch_folder() as folder:
            yield folder
        self.has_saved = True

    def _choose(self, name: str, parameter: Parameter) -> object:
        self.suggested[name] = parameter
        if name not in self._start:
            return super()._choose(name, parameter)
        given = self._start[name]
        if not parameter.contains(given):
            raise SpaceError(f"start_with gives {name}={given!r}, which is not in {parameter!r}.")
        return given


@dataclass(frozen=True)
class KnownResult:
    """What a function has returned at its first call, before it reported anything.

    Attributes:
        metrics: it returned, as `as_metrics` names them.
        params: of that call.
        suggested: the parameters as they were asked for.
        seconds: that it took.
        user_attrs: what the function has noted.
        has_read_fold: whether it asked for the fold of its trial.
    """

    metrics: Mapping[str, float]
    params: Mapping[str, object]
    suggested: Mapping[str, Parameter]
    seconds: float
    user_attrs: Mapping[str, object]
    has_read_fold: bool = False

    def is_of(self, trial: Trial) -> bool:
        """Return whether a trial is the first, with the parameters of that call, or will be given them."""
        return trial.number == 0 and {**trial.fixed, **trial.params.values_by_name} == self.params

    def take(self, trial: Trial) -> Mapping[str, float]:
        """Ask for what was asked for in that call, note what was noted, and return its result."""
        for name, parameter in self.suggested.items():
            trial.suggest(name, parameter)
        trial.user_attrs.update(self.user_attrs)
        if self.has_read_fold:
            _ = trial.fold
        return self.metrics


def call_first(
    call: Callable[[FirstTrial], Made],
    space: Space,
    code: str,
    seed: int,
    start: Mapping[str, object] | None = None,
    study: StudyOfTrial = UNKNOWN_STUDY,
    folds: Folds | None = None,
) -> tuple[Made, FirstTrial]:
    """Call a function with parameters drawn from a space; return what it returns, and the trial.

    Some draws may fail, as trials may.

    Args:
        call: the function.
        space: of its parameters.
        code: its name.
        seed: of the random streams.
        start: values in place of drawn ones.
        study: that will be searched.
        folds: of its cross-validation; None: there is none.

    Raises:
        StudyError: it fails with every draw.
        SpaceError: the space does.
        FirstReport: it is a plain function.
    """
    for draw in range(_DRAWS):
        trial = FirstTrial(draw, seed, start or {}, study, folds)
        params = trial.arguments = ask(space, trial, code)
        trial.seed = seed_of(trial, seed)
        set_seed(trial.seed)
        try:
            returned = call(trial)
            if trial.first_report is not None:
                raise trial.first_report
            return returned, trial
        except Exception as error:
            if trial.first_report is not None:
                raise trial.first_report from error
            if isinstance(error, HpsearchError) and not isinstance(error, TrialPruned):
                raise
            unknown = error.args[0] if isinstance(error, KeyError) and error.args else None
            near = "" if unknown is None else nearest_name(str(unknown), params)
            if near or draw == _DRAWS - 1:
                raise StudyError(
                    f"{code}(trial) raised {type(error).__name__}: {str(error).rstrip(' .')}. It was called with "
                    f"{dict(trial.params)}, before the first trial.{near}"
                ) from error
    raise AssertionError


def ask(space: Space, trial: Trial, code: str) -> dict[str, object]:
    """Let a space suggest to a trial, and return its parameters; they are not read yet.

    Raises:
        SpaceError: the space fails, or returns something that it has not suggested.
    """
    try:
        returned = space.suggest(trial) if isinstance(space, SearchSpace) else space(trial)
        for name, value in dict(returned or {}).items():  # type: ignore[call-overload]
            if isinstance(value, Parameter):  # type: ignore[arg-type]
                trial.suggest(name, value)
            elif name not in trial.params.values_by_name:
                raise SpaceError(not_suggested(name, value, code))
    except HpsearchError:
        raise
    except Exception as error:
        raise SpaceError(f"hp_space(trial) raised {type(error).__name__}: {error}") from error
    trial.suggested_by_space = set(trial.params.values_by_name)
    trial.params.read.clear()
    return dict(trial.params.values_by_name)


def seed_of(trial: Trial, default: int) -> int:
    """Return the seed of a trial: its parameter ``seed`` if the space has one, else the default, or a replica's."""
    seed = trial.params.values_by_name.get("seed")
    return seed if isinstance(seed, int) else (default + trial.seed_offset) % SEEDS_IN_ALL


def name_of(function: Callable[..., object]) -> str:
    """Return the name of a function, for messages.

    >>> name_of(len), name_of(functools.partial(functools.partial(len)))
    ('len', 'len')
    """
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def not_suggested(name: str, value: object, code: str) -> str:
    """Return why a space may not return a value that it has not suggested."""
    return (
        f"hp_space(trial) returns {name}={value!r}, which it has not suggested under that name: {code} would not see "
        f"it. Constants belong into {code}."
    )


_DRAWS = 3
