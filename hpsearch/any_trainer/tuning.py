"""`tune`: search a function that makes trainers of transformers, or a plain function that trains and reports."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import StudyError
from ..executors.processes.rendezvous import is_in_group
from ..search.result.best_run import BestRun
from ..search.space.initial_trials import resolve_start
from ..search.store.provenance import was_edited
from ..search.store.read_study import read_settings
from ..search.study import SpaceLike, check_name, check_whole
from ..searching.held_out_dataset import HeldOut
from ..searching.repeated_warnings import warnings_once
from ..searching.replay import Replay, replay
from ..searching.run_search import search
from ..searching.search_arguments import DEFAULT_STUDY_NAME, POSITIONAL, SearchArguments, listener_of
from .first_call import FirstReport, name_of
from .first_call_in_group import in_group
from .first_look import FirstLook, Found
from .function_call import FunctionArguments
from .plain_function import FUNCTION, PlainFunction, check_direction, check_processes, study_before_first_call
from .trainer_function import TrainerFunction


def tune(
    function: Callable[[Any], object],
    hp_space: SpaceLike = None,
    *,
    output_dir: str | os.PathLike[str] | None = None,
    max_resource: int | None = None,
    **arguments: object,
) -> BestRun | Any:
    """Search for the best hyperparameters of any `transformers.Trainer`, or of any function that trains and reports.

    `function` is one of two kinds; its first call, before the first trial, shows which:

    - It **makes a trainer**: it returns a `transformers.Trainer`, or one derived from it, such as the trainers of TRL
      and sentence-transformers. It is called once with values drawn from the space, to inspect its trainer, and then
      once for each trial, after the random streams are seeded. It must create everything anew: the trainer, its
      arguments, the model, and callbacks with state. The search sets `output_dir`, `run_name` and `save_total_limit` of
      the arguments. See docs/bring-your-trainer.md.
    - It is a **plain function**: it trains, or computes something, and returns a number or a dict of metrics, or
      reports them with ``trial.report``. It receives a `FunctionTrial`. If it returns before it reports, the first
      call was trial 0; otherwise that call ends at the first report, and trial 0 starts again. See
      docs/plain-functions.md.

    Either must read every parameter from `trial.params`, or suggest it with ``trial.suggest_float`` and the like.
    Pruning, pausing at rungs, resuming after a kill, selection by scope, workers, clusters and reports are those of
    `hpsearch.Trainer.hyperparameter_search`. Trials that cannot resume with the same numbers do not pause.

    Args:
        function: a function of a trial.
        hp_space: as in `Trainer.hyperparameter_search`, but with any names. None: the function suggests.
        output_dir: the parent of the study's folder; default: the `output_dir` of the trainer's arguments, or
            ``output``.
        max_resource: the last step that a plain function reports; with it, trials pause at rungs if the function reads
            ``trial.checkpoint``. Limits in epochs count these steps.
        arguments: those of `Trainer.hyperparameter_search`: `n_trials`, `budget`, `compute_objective`, `direction`,
            `backend`, `n_jobs`, `storage`, ... `seed` is 42 by default. `direction` is required for a number,
            and for a metric whose name implies none. `oom_fallback`, and parameters that change during a trial
            (population-based training), need `hpsearch.Trainer`.

    Returns:
        A `BestRun`; with several objectives a list of them.

    Raises:
        StudyError: the function fails, or returns something that cannot be searched.
        SpaceError: the function does not read a parameter.
        ObjectiveError: the objective or its direction is not clear.
        HpsearchError: as in `Trainer.hyperparameter_search`.

    Examples:
        >>> def make_trainer(trial):
        ...     args = transformers.TrainingArguments("out", eval_strategy="epoch", **trial.params)
        ...     return transformers.Trainer(make_model(), args, train_dataset=train, eval_dataset=dev)
        >>> best = tune(make_trainer, {"learning_rate": Float(1e-5, 1e-3, log=True)})  # doctest: +SKIP
        >>> best = tune(lambda trial: trial.suggest_float("x", -9, 9) ** 2, direction="minimize")  # doctest: +SKIP
    """
    return TunedFunction(function, hp_space, output_dir).hyperparameter_search(max_resource=max_resource, **arguments)


class TunedFunction:
    """A function that can be searched, of either kind.

    Args:
        function, hp_space, output_dir: as in `tune`.
        clock: measures what the first call takes, in seconds.

    Raises:
        StudyError: it is no function.
    """

    def __init__(
        self,
        function: Callable[[Any], object],
        hp_space: SpaceLike = None,
        output_dir: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not callable(function):
            raise StudyError(f"tune needs a function of a trial, but got {function!r}.")
        self.function, self.hp_space, self.output_dir, self._clock = function, hp_space, output_dir, clock

    def hyperparameter_search(
        self, *positional: object, max_resource: int | None = None, **arguments: object
    ) -> BestRun | Any:
        """Search, as `tune` does; `hp_space` defaults to that of this function."""
        given = SearchArguments.of({**dict(zip(POSITIONAL, positional, strict=False)), **arguments})
        space = TrainerFunction(self.function, self.hp_space).space_or_default(given.hp_space)
        folds = list(given.folds) if isinstance(given.folds, Iterator) else given.folds  # it is read twice
        given = dataclasses.replace(given, hp_space=space, folds=folds)
        with _cheap_collections(), warnings_once():
            return self._search(given, max_resource)

    def _search(self, given: SearchArguments, max_resource: int | None) -> BestRun | list[BestRun]:
        given = dataclasses.replace(given, progress=listener_of(given.progress))
        HeldOut.of(given.test_dataset, given.test_defaults)  # before the first call, which may take long
        found, start, first_call = self._look(given, max_resource)
        if isinstance(found, TrainerFunction):
            if max_resource is not None:
                raise StudyError(
                    f"max_resource={max_resource} is for a plain function; a trainer knows its own length."
                )
            return found.search(given, first_call)
        check_processes(found.user_code)
        if given.oom_fallback:
            raise StudyError(
                f"oom_fallback={given.oom_fallback!r} needs hpsearch.Trainer: {found.user_code} makes its batches."
            )
        has_objective = given.compute_objective is not None
        check_direction(found.args, found.user_code, has_objective, given.direction or given.directions)
        found.earlier = _recorded(Path(given.began_in, self._folder(given.study_name)))
        start_with = given.start_with if start is None else start
        return search(found, dataclasses.replace(given, start_with=start_with, preflight=False), first_call)

    def replay(
        self, study_name: str = DEFAULT_STUDY_NAME, number: int | None = None, *positional: Any, **arguments: Any
    ) -> Replay:
        """Run one trial of a study again, as `Trainer.replay` does."""
        known = _recorded(self._folder(check_name(study_name, "study_name")))
        if known is None:
            recipe = TrainerFunction(self.function, self.hp_space, self.output_dir)
            try:
                return recipe.replay(study_name, number, *positional, **arguments)
            except FirstReport:
                raise StudyError(
                    f"There is no study {study_name!r} of {name_of(self.function)} in {str(self._folder(''))!r}."
                ) from None
        args = dataclasses.replace(known, output_dir=str(self._folder("").resolve()))
        return replay(PlainFunction(self.function, args), study_name, number, *positional, **arguments)

    def with_arguments(self, **parameters: Any) -> TunedFunction:
        """Return the same function with another `output_dir`; it sets all other arguments itself.

        Raises:
            ArgumentError: another argument is given.
        """
        other = TrainerFunction(self.function, self.hp_space, self.output_dir).with_arguments(**parameters)
        return TunedFunction(self.function, self.hp_space, other.output_dir, self._clock)

    def _look(self, given: SearchArguments, max_resource: int | None) -> Found:
        """Return what the function is: as the study has it on record, or as its first call shows."""
        if max_resource is not None:
            check_whole("max_resource", max_resource, 1)
        makes_trainers = TrainerFunction(self.function, self.hp_space, self.output_dir)
        seed = makes_trainers.default_seed if given.seed is None else given.seed
        args = FunctionArguments(os.fspath(self._folder("")), seed, max_resource)
        folder = self._folder(check_name(given.study_name, "study_name"))
        known = _recorded(folder, self.function)
        if known is not None:
            args = dataclasses.replace(known, output_dir=args.output_dir, seed=seed, max_resource=max_resource)
            return Found(PlainFunction(self.function, args))
        backend = given.make_backend()
        space = given.make_space(backend, makes_trainers)
        recipe = PlainFunction(self.function, args)
        folds = given.make_folds(recipe)
        study = study_before_first_call(recipe, given, backend, space)
        start, is_new = resolve_start(given.start_with, space, makes_trainers.defaults), _recorded(folder) is None
        has_group = backend.processes_per_trial > 1 and not is_in_group()  # a launcher's processes are refused later
        group = in_group(backend, recipe, self.function) if has_group else None
        return FirstLook(
            self.function, given, args, makes_trainers, space, start, study, is_new, self._clock, group, folds
        ).call()

    def _folder(self, study_name: str) -> Path:
        return Path("output" if self.output_dir is None else self.output_dir, study_name)


@contextlib.contextmanager
def _cheap_collections() -> Iterator[None]:
    """Leave what there is already out of garbage collections while the block runs, unless the program does so itself.

    transformers collects whenever it trains, and so do we after a trial, as trainers refer to themselves: a third of a
    second each, with all that is imported by then.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _recorded(folder: Path, function: Callable[..., object] | None = None) -> FunctionArguments | None:
    """Return what a study knows of its plain function; None if there is no study, or one of trainers.

    If `function` is given: None also if it was edited since.
    """
    settings = None
    with contextlib.suppress(StudyError):  # it may be the folder of another study; a search says what is wrong with it
        settings = read_settings(folder) if folder.is_dir() else None
    if not settings or not settings.get("sessions"):
        return None
    last = settings["sessions"][settings["session"]]
    if function is not None and was_edited(last, FUNCTION, function):
        return None
    recorded = last.get("arguments") or {}
    is_of_a_function = {each.name for each in dataclasses.fields(FunctionArguments)} <= recorded.keys()
    return FunctionArguments.of(recorded) if is_of_a_function else None
