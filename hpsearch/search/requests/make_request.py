"""Makes requests to a study, from any process: each is checked, written to the study's folder, and answered.

An answer says what will happen, and when.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, cast

from ...errors import StudyError, one_of
from ...system.files import entries, short_path
from ...system.json_types import JsonObject
from ...system.spelling import nearest_name
from ..metrics.selection import ranking
from ..space.initial_trials import check_given, in_open_branches, left_to_sampler
from ..space.parameters import Params
from ..space.search_space import SearchSpace
from ..store.live_sessions import sessions_at_work
from ..store.read_study import read_run
from ..store.retention import CHECKPOINT
from ..store.stored_study import TRIALS_WAIT, StoredStudy
from ..store.study_folder import CANNOT_EXTEND, COMMAND_FILE
from ..study import DEFINE_BY_RUN, SEEDS, check_whole, flat
from ..trial_record import TrialRecord, TrialState
from .in_effect import InEffect
from .request import LENGTHS, SETTINGS, Kind, Request, is_allowed
from .request_file import RequestFile

_OPEN = one_of(each.value for each in TrialState if each.is_open)


class _Found(NamedTuple):
    """The study that a request is made to."""

    study: StoredStudy
    sessions: tuple[str, ...]
    in_effect: InEffect

    @property
    def when_free(self) -> str:
        """When a trial begins or continues that a request asks for."""
        if not self.sessions:
            return self.when_it_continues
        return "when the search is unpaused" if self.in_effect.is_paused else "as soon as a worker is free"

    @property
    def when_it_continues(self) -> str:
        """When the search follows a request, if none is running."""
        return when_it_continues(self.study.folder)

    def trial(self, number: int) -> TrialRecord:
        """Return the record of a trial.

        Raises:
            StudyError: there is none.
        """
        records = self.study.records()
        found = next((each for each in records if each.number == number and type(number) is int), None)
        if found is None:
            known = f"it has {len(records)}, up to {records[-1].number}" if records else "it has none yet"
            raise StudyError(f"The study in {str(self.study.folder)!r} has no trial {number!r}; {known}.")
        return found


def when_it_continues(folder: Path) -> str:
    """Return when a request to a study is followed for which no search is running, and by which command."""
    if not Path(folder, COMMAND_FILE).exists():
        return "when the search continues (run its program again)"
    return f"when the search continues (the same command again, or hpsearch resume {shlex.quote(short_path(folder))})"


def stop(folder: str | os.PathLike[str], number: int) -> str:
    """Request that a trial stops with the value that it has; see `OpenedStudy.stop`."""

    def ask(found: _Found) -> tuple[Request, str]:
        trial = found.trial(number)
        if not trial.state.is_open:
            raise StudyError(f"Trial {number} is {trial.state.value}; only one that is {_OPEN} can be stopped.")
        value = "its value competes with those of the other trials"
        if trial.state is TrialState.RUNNING and found.sessions:
            when = "after its next evaluation"
        elif _has_recorded_reports(found, trial):
            when = "immediately" if found.sessions else found.when_it_continues
        else:
            when = f"after its first evaluation, {found.when_it_continues if not found.sessions else 'when it has one'}"
        return Request(Kind.STOP, number), f"trial {number} stops {when}; {value}"

    return _make(folder, ask)


def _has_recorded_reports(found: _Found, trial: TrialRecord) -> bool:
    """Return whether a search can stop a trial as it is; reports in its checkpoints are known once it resumes."""
    recorded = read_run(Path(found.study.folder), trial.name)
    return recorded is not None and bool(recorded.reports)


def promote(study_folder: str | os.PathLike[str], number: int) -> str:
    """Train a trial to completion, whatever its reports at the rungs.

    The search that is running in the folder, in any process, resumes the trial as soon as a worker is free; if none is
    running, the next search does. A second call has no effect until the trial has ended. The trial counts as promoted
    from its rung, so another trial may have to stay paused. A trial that is being judged at the time of the call may
    still be pruned.

    Args:
        study_folder: the folder of the study, ``<output_dir>/<study_name>``.
        number: the number of a trial that is paused, running or interrupted.

    Returns:
        What will happen, and when.

    Raises:
        StudyError: the study or the trial does not exist, the study has no rungs, or the trial has ended.

    Examples:
        >>> promote("runs/study", 7)
        Traceback (most recent call last):
        ...
        hpsearch.errors.StudyError: There is no study in 'runs/study': it has no study.json.
    """

    def ask(found: _Found) -> tuple[Request, str]:
        settings = found.study.settings
        if not settings.get(TRIALS_WAIT):
            raise StudyError(
                f"In the study in {str(study_folder)!r} no trial pauses at a rung: its pruner is "
                f"{settings.get('pruner')}, with n_trials={settings.get('n_trials')}."
            )
        trial = found.trial(number)
        if not trial.state.is_open:
            raise StudyError(
                f"Trial {number} is {trial.state.value}; only one that is {_OPEN} can be promoted. To train its "
                f"parameters again, request a new trial: hpsearch retry {number}."
            )
        is_running = trial.state is TrialState.RUNNING and found.sessions
        when = "trains to completion" if is_running else f"resumes and trains to completion, {found.when_free}"
        return Request(Kind.PROMOTE, number), f"trial {number} {when}"

    return _make(study_folder, ask)


def retry(folder: str | os.PathLike[str], number: int) -> str:
    """Request a new trial with the parameters of one that has ended; see `OpenedStudy.retry`."""

    def ask(found: _Found) -> tuple[Request, str]:
        trial = _ended(found, number, "tried again")
        if trial.extends is not None:
            again = f"to try that again, extend {trial.extends} again"
            raise StudyError(f"Trial {number} extends trial {trial.extends}; {again}.")
        told = _new_trial(found, f"with the parameters of trial {number}")
        return Request(Kind.RETRY, number, trial.params), told

    return _make(folder, ask)


def add(folder: str | os.PathLike[str], params: Mapping[str, object], like: int | None = None) -> str:
    """Request a new trial with given parameters; see `OpenedStudy.add`."""

    def ask(found: _Found) -> tuple[Request, str]:
        if not params and like is None:
            raise StudyError("A new trial needs at least one parameter, or a trial that it is like.")
        original = None if like is None else found.trial(like).replica
        if original is not None:
            raise StudyError(f"Trial {like} is {original}: a new trial is like that one.")
        earlier = {} if like is None else found.trial(like).params
        _check_params(found.study, params, earlier)
        given = ", ".join(f"{name}={value!r}" for name, value in params.items())
        told = f"with {given}{_others(found.study, params, like)}" if given else f"with the parameters of trial {like}"
        together = _in_open_branches(found.study, {**earlier, **params})
        return Request(Kind.ADD, like, together), _new_trial(found, told)

    return _make(folder, ask)


def extend(folder: str | os.PathLike[str], number: int, arguments: Mapping[str, object]) -> str:
    """Request a new trial that continues from the checkpoint of another one; see `OpenedStudy.extend`."""

    def ask(found: _Found) -> tuple[Request, str]:
        name, length = _length(arguments)
        trial = _ended(found, number, "extended")
        reason = found.study.settings.get(CANNOT_EXTEND)
        if reason is not None:
            raise StudyError(f"Only trials of an hpsearch.Trainer can be extended: {reason}. Use retry or add.")
        _check_longer(found.study, trial, name, length)
        run = found.study.folder / trial.name
        if not any(any(each.glob("optimizer*")) for each in entries(run, CHECKPOINT)):
            raise StudyError(
                f"Trial {number} cannot be extended: no checkpoint with the state of its optimizer is left in "
                f"{str(run)!r}. A search keeps those of its keep_checkpoints= best trials, where a checkpoint was "
                "written after the last evaluation (save_strategy='epoch')."
            )
        told = (
            f"from the last checkpoint of trial {number}, with {name}={length}; its schedule is that of the new "
            "length from there on"
        )
        return Request(Kind.EXTEND, number, trial.params, {name: length}), _new_trial(found, told)

    return _make(folder, ask)


def confirm(folder: str | os.PathLike[str], repeats: int = 5, top: int = 4) -> str:
    """Request that the best trials are trained again with other seeds; see `OpenedStudy.confirm`."""

    def ask(found: _Found) -> tuple[Request, str]:
        check_whole("repeats", repeats, 2)
        check_whole("top", top, 1)
        if found.study.fold_count:
            raise StudyError(
                "confirm trains the best trials again with other seeds, but this study is a cross-validation, whose "
                "trials are compared on its folds."
            )
        records = found.study.records()
        searched = {*flat(found.study.described_space()), *(name for each in records for name in each.params)}
        seed = next((each for each in SEEDS if each in searched), None)
        if seed is not None:
            raise StudyError(f"Trials cannot be trained again with other seeds: {seed!r} is searched.")
        best = [each.number for each in ranking(records, found.study.objectives)][:top]
        if not best:
            raise StudyError(f"The study in {str(found.study.folder)!r} has no trial yet that may be the best.")
        *first, last = map(str, best)
        several = f"trials {', '.join(first)} and {last} are" if first else f"trial {last} is"
        until = ", until the best of them is clear" if len(best) > 1 else ""
        told = f"{several} trained with up to {repeats} seeds{' each' if len(best) > 1 else ''}{until}"
        if len(best) < top:
            told += f" (no {'others' if len(best) > 1 else 'other'} may be the best)"
        arguments: JsonObject = {"trials": best, "repeats": repeats}
        return Request(Kind.CONFIRM, arguments=arguments), f"{told}, {found.when_free}"

    return _make(folder, ask)


def pause(folder: str | os.PathLike[str]) -> str:
    """Request that the search pauses; see `OpenedStudy.pause`."""

    def ask(found: _Found) -> tuple[Request, str]:
        _check_at_work(found, "paused")
        return Request(Kind.PAUSE, sessions=found.sessions), (
            "the search pauses: no trial begins or resumes, and running ones write a checkpoint after their next "
            "evaluation and leave their workers, or, on Ray, continue to their next rung. A time limit keeps counting"
        )

    return _make(folder, ask)


def unpause(folder: str | os.PathLike[str]) -> str:
    """Request that a paused search continues; see `OpenedStudy.unpause`."""

    def ask(found: _Found) -> tuple[Request, str]:
        _check_at_work(found, "unpaused")
        if not found.in_effect.is_paused:
            raise StudyError(f"The search in {str(found.study.folder)!r} is not paused.")
        return Request(Kind.UNPAUSE, sessions=found.sessions), "the search continues immediately"

    return _make(folder, ask)


def change(folder: str | os.PathLike[str], settings: Mapping[str, object]) -> str:
    """Request other settings of the running search; see `OpenedStudy.set`."""

    def ask(found: _Found) -> tuple[Request, str]:
        _check_settings(settings)
        given = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        if not found.sessions:
            raise StudyError(
                f"No search is running in {str(found.study.folder)!r}, so {given} cannot be set; pass it to the next "
                "call, or to hpsearch resume."
            )
        told = f"{given} from now on, until the search ends; the next call has its own arguments"
        if "n_trials" in settings and found.in_effect.new:
            told += f". Added trials ({len(found.in_effect.new)}) come on top of n_trials"
        return Request(Kind.SET, arguments=dict(settings), sessions=found.sessions), told

    return _make(folder, ask)


def _make(folder: str | os.PathLike[str], ask: Callable[[_Found], tuple[Request, str]]) -> str:
    """Check and write a request; return the answer."""
    study = StoredStudy.read(folder)
    file = RequestFile(study.folder)
    with file.locked():
        sessions = tuple(sessions_at_work(study.folder))
        request, answer = ask(_Found(study, sessions, InEffect.of(file.read(), sessions.__contains__)))
        file.add(request)
    return answer


def _ended(found: _Found, number: int, what: str) -> TrialRecord:
    trial = found.trial(number)
    if trial.state.is_open:
        remedy = "promote trains it to completion" if trial.state is TrialState.PAUSED else "it has not ended yet"
        raise StudyError(f"Trial {number} is {trial.state.value}; only one that has ended can be {what} ({remedy}).")
    if trial.replica is not None:
        raise StudyError(f"Trial {number} is {trial.replica}, so it cannot be {what}; that trial can.")
    return trial


def _new_trial(found: _Found, told: str) -> str:
    total = found.in_effect.total(found.study.own_trials)
    if total is None:
        in_all = ""
    else:
        in_all = f" ({total + 1} trials in all)" if found.sessions else " (one trial more than its n_trials)"
    to_its_end = "; it trains to completion" if found.study.settings.get(TRIALS_WAIT) else ""
    return f"a new trial begins {found.when_free}, {told}{to_its_end}{in_all}"


def _others(study: StoredStudy, params: Mapping[str, object], like: int | None) -> str:
    """Return, to follow on given parameters, where the others are from; empty if there are none."""
    described = study.described_space()
    if isinstance(described, Mapping) and not left_to_sampler(params, SearchSpace.from_description(described)):
        return ""
    return "; the sampler chooses the others" if like is None else f"; the others are those of trial {like}"


def _check_at_work(found: _Found, what: str) -> None:
    if not found.sessions:
        raise StudyError(f"No search is running in {str(found.study.folder)!r}, so none can be {what}.")


def _check_params(study: StoredStudy, params: Mapping[str, object], earlier: Mapping[str, object]) -> None:
    """Check the parameters of a new trial against the space, or, of a function, against those of the trials so far.

    Those of an earlier trial, which the new one is like, may open branches.
    """
    described = study.described_space()
    if isinstance(described, Mapping):
        check_given(params, SearchSpace.from_description(described), "The new trial has", earlier)
        return
    assert described == DEFINE_BY_RUN
    known = {name for each in study.records() for name in each.params}
    for name in params:
        if name not in known:
            raise StudyError(
                f"The new trial has {name}={params[name]!r}, but no trial of the study has a parameter of this name."
                f"{nearest_name(name, known)}"
            )


def _in_open_branches(study: StoredStudy, params: Params) -> Params:
    """Return parameters without those of branches that others of them close; those of a function stay."""
    described = study.described_space()
    if not isinstance(described, Mapping):
        return params
    return in_open_branches(params, SearchSpace.from_description(described))


def _check_settings(settings: Mapping[str, object]) -> None:
    if not settings:
        raise StudyError(f"There is nothing to set; allowed: {one_of(SETTINGS)}.")
    for name, value in settings.items():
        if name not in SETTINGS:
            near = nearest_name(name, SETTINGS)
            raise StudyError(f"{name} cannot be set while a search runs; allowed: {one_of(SETTINGS)}.{near}")
        if not is_allowed(name, value):
            kind = "a whole number of at least 1" if name == "n_trials" else "a number of seconds above 0"
            raise StudyError(f"{name} must be {kind}, but got {value!r}.")


def _length(arguments: Mapping[str, object]) -> tuple[str, float]:
    """Return the one argument that gives the new length of a trial."""
    unknown = next((name for name in arguments if name not in LENGTHS), None)
    if unknown is not None:
        near = nearest_name(unknown, LENGTHS)
        raise StudyError(f"{unknown} cannot change when a trial is extended; allowed: {one_of(LENGTHS)}.{near}")
    if len(arguments) != 1:
        raise StudyError(f"An extension needs its new length: one of {one_of(LENGTHS)}.")
    ((name, value),) = arguments.items()
    if not is_allowed(name, value):
        kind = "a whole number of at least 1" if name == "max_steps" else "a number of epochs above 0"
        raise StudyError(f"{name} must be {kind}, but got {value!r}.")
    return name, cast(float, value)


def _check_longer(study: StoredStudy, trial: TrialRecord, name: str, length: float) -> None:
    """Check that a length is more than a trial has trained with, and is not hidden by another limit."""
    before = {each: trial.arguments.get(each, _recorded_argument(study, trial, each)) for each in LENGTHS}
    limits = {each: value for each, value in before.items() if isinstance(value, int | float) and value > 0}
    if name in limits and length <= limits[name]:
        raise StudyError(
            f"Trial {trial.number} was trained with {name}={limits[name]}; {name}={length} does not extend it."
        )
    if name == "num_train_epochs" and "max_steps" in limits:
        raise StudyError(
            f"Trial {trial.number} was trained with max_steps={limits['max_steps']}, which comes before "
            f"num_train_epochs; give it a larger max_steps."
        )
    trained = max((each.epoch if name == "num_train_epochs" else each.step for each in trial.reports), default=0)
    if length <= trained:
        raise StudyError(
            f"Trial {trial.number} was trained up to {name}={trained}; {name}={length} does not extend it."
        )


def _recorded_argument(study: StoredStudy, trial: TrialRecord, name: str) -> object:
    """Return a training argument of the session in which a trial ended; None if it is not recorded."""
    sessions = study.settings.get("sessions", [])
    session = sessions[trial.session] if trial.session < len(sessions) else {}
    arguments = session.get("arguments", {}) if isinstance(session, Mapping) else {}
    return arguments.get(name) if isinstance(arguments, Mapping) else None
