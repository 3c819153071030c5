"""Replay: run one trial of a study again, alone, from the study's folder."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..coordinator.follower_processes import follow
from ..coordinator.search_session import SearchSession
from ..errors import ArgumentError, ObjectiveError, SearchInterrupted, StudyError
from ..search.folds import Folds
from ..search.listener import SearchListener
from ..search.metrics.objective import Objective, resolve_objectives
from ..search.metrics.older_metric_names import named_as_recorded
from ..search.process_group import Ranks
from ..search.store.checked_json import Unreadable, whole
from ..search.store.folds_file import FOLDS_FILE, read_folds
from ..search.store.provenance import WITHOUT_EFFECT, describe_environment, differences, is_known, without_secrets
from ..search.store.read_study import read_own_json
from ..search.store.study_folder import (
    BEST_FILE,
    REPLAYS_FOLDER,
    STUDY_FILE,
    StudyFolder,
    check_own_files,
    read_records,
    read_settings,
)
from ..search.study import Study, check_name
from ..search.trial import FixedTrial, Verdict
from ..search.trial_record import TrialRecord, TrialState
from ..system.files import remove_folder, working_folder
from ..system.interruption import Interruption, noticing_signals, set_exit_code
from ..system.json_types import JsonObject
from ..system.redaction import holds_hidden
from ..system.spelling import nearest_name
from ..training.randomness import preserved_streams
from ..trial.acting_arguments import acts_outside, reaching_out
from ..trial.distributed_ranks import ranks_of
from ..trial.ending import TrialEndedSearch
from ..trial.messages import Reported
from .run_search import ending_for_all_ranks
from .search_arguments import DEFAULT_STUDY_NAME, Metric, listener_of, objectives_of
from .searched_recipe import SearchedRecipe


class Replay(NamedTuple):
    """A trial that was run again, and how it compares.

    Attributes:
        record: the record of the replay; its checkpoint has the selected weights of the trial.
        original: the record of the trial in the study.
        notes: the differences from the study, known before the replay began: arguments (those of the study were used),
            versions, data.
    """

    record: TrialRecord
    original: TrialRecord
    notes: list[str]

    @property
    def is_equal(self) -> bool:
        """True if the replay made the same reports: the same values after the same optimizer steps."""
        return self.first_difference is None

    @property
    def first_difference(self) -> str | None:
        """The first report that differs, in words; None if all are the same."""
        before, now = self.original.reports, self.record.reports
        for old, new in zip(before, now, strict=False):
            if repr((old.step, old.values)) != repr((new.step, new.values)):
                return f"step {new.step}: {list(new.values)}, in the study step {old.step}: {list(old.values)}"
        return None if len(before) == len(now) else f"{len(now)} reports, in the study {len(before)}"


class _ReplayedTrial(FixedTrial):
    """A trial whose parameters are known, and which is pruned where it was pruned.

    Args:
        original: the trial.
        part: of its schedule, if it has one.
        until: the update that the part ends with, with a checkpoint; None: it is the last.
        earlier: the record of the part before.
    """

    def __init__(
        self,
        original: TrialRecord,
        part: JsonObject | None = None,
        until: int | None = None,
        earlier: TrialRecord | None = None,
    ) -> None:
        arguments = original.arguments if part is None else part["arguments"]
        number = original.number if part is None else original.schedule[0]["trial"]
        super().__init__({**original.params, **arguments}, number, arguments)
        self.given = dict(arguments)
        self.earlier, self.until = earlier, until
        self.name = original.name
        self.origin = None if original.replica is None else original.origin
        self.steps = 0
        pruned = original.state is TrialState.PRUNED and original.reports
        self._pruned_at = int(original.reports[-1].resource) if pruned else None
        self._seen = -1

    def report(self, value: float, resource: int) -> None:
        self._seen = resource

    def should_prune(self) -> bool:
        return self._seen == self._pruned_at

    def verdict(self, so_far: TrialRecord, is_comparable: bool, is_last: bool) -> Verdict:
        """Pause the trial where its parameters changed."""
        is_there = self.steps == self.until
        return Verdict(pause=True) if is_there else super().verdict(so_far, is_comparable, is_last)


class _ReplayReporter:
    """Judges a trial as it was judged, and ends a part of its schedule with a pause.

    Args:
        trial: that is trained again.
        session: of the replay.
    """

    def __init__(self, trial: _ReplayedTrial, session: SearchSession) -> None:
        self._trial, self._session, self._listener = trial, session, session.listener

    def progress(self, step: int, max_steps: int) -> None:
        """Show it."""
        self._listener.on_progress(self._trial, step, max_steps)

    def report(self, reported: Reported) -> Verdict:
        """Show it, and return whether the trial was pruned here."""
        self._trial.steps = reported.report.step
        for value, resource in reported.new_values:
            self._trial.report(value, resource)
        self._listener.on_report(self._trial, reported.report)
        return self._trial.verdict(reported.so_far, reported.is_comparable, reported.is_last)

    def note(self, so_far: TrialRecord) -> None:
        """Write it to the trial's record."""
        self._session.on_disk.note(so_far)

    def checkpoint(self, step: int) -> None:
        """Do nothing."""

    def notice(self, text: str) -> None:
        """Show it."""
        self._session.announce(text)


def replay(
    recipe: SearchedRecipe,
    study_name: str = DEFAULT_STUDY_NAME,
    number: int | None = None,
    compute_objective: Metric | Sequence[Metric] | None = None,
    direction: str | Sequence[str | None] | None = None,
    progress: bool | SearchListener = True,
) -> Replay:
    """Run one trial of a study again, as `Trainer.replay` documents it.

    Raises:
        StudyError: there is no such study or trial, or its objectives differ.
    """
    began_in = working_folder()  # the user's code may change it
    recipe.prepare(None, _folds(recipe, check_name(study_name, "study_name")))
    listener = listener_of(progress)
    folder = Path(began_in, recipe.args.output_dir, study_name)
    is_given = compute_objective is not None or direction is not None
    objectives = objectives_of(recipe, compute_objective, direction) if is_given else None
    with preserved_streams():
        return _replay(recipe, folder, number, objectives, listener)


def _folds(recipe: SearchedRecipe, study_name: str) -> Folds | None:
    """Return the folds of a study; None if it has none, or its place is not known before a first call."""
    place = getattr(recipe, "output_dir", None) if recipe.args is None else recipe.args.output_dir
    return None if place is None else _folds_in(Path(place, study_name))


def _folds_in(folder: Path) -> Folds | None:
    """Return the folds that the trials of a study were trained on; None if it has none.

    Raises:
        StudyError: they are lost.
    """
    settings, folds = read_settings(folder), read_folds(folder)
    if settings is not None and settings.get("folds") != (None if folds is None else folds.identity):
        raise StudyError(
            f"{str(folder / FOLDS_FILE)!r} does not have the folds that the trials were trained on (any more): put "
            "back a copy of it."
        )
    return folds


def _replay(
    recipe: SearchedRecipe,
    folder: Path,
    number: int | None,
    objectives: tuple[Objective, ...] | None,
    listener: SearchListener,
) -> Replay:
    settings = _read_settings(folder)
    check_own_files(folder)
    original = _read_trial(folder, number)
    if original.session >= len(settings["sessions"]) or not is_known(settings["sessions"][original.session]):
        raise StudyError(
            f"Trial {original.number} was trained with arguments that {str(folder / STUDY_FILE)!r} does not have (any "
            "more): the file was damaged, or written anew. Put back a copy of it; or train the trial's parameters with "
            f"start_with={original.params!r} in another study."
        )
    session = settings["sessions"][original.session]
    data, ranks = recipe.data(), ranks_of(recipe.args)
    recipe, notes = _as_it_was(recipe, session["arguments"], original)
    here = describe_environment(recipe.args, data, processes=ranks.size)
    notes += differences({**session, "arguments": {}}, here)
    if not original.state.is_counted:
        notes.append(f"the trial is {original.state.value}: it has not come to its end in the study, and does so here")
    pruning_metric = settings["pruning_metric"]
    study = Study(
        name=folder.name,
        folder=folder / REPLAYS_FOLDER,
        space=lambda trial: dict(trial.given),  # type: ignore[attr-defined]
        objectives=_check_objectives(settings, objectives),
        n_trials=1,
        scope=settings["scope"],
        pruning_objective=None if pruning_metric is None else _recorded_objective(pruning_metric, None),
        trial_max_epochs=original.epochs if original.state is TrialState.STOPPED else None,
        hp_name=lambda trial: original.name,
        processes=ranks.size,
        unit=recipe.evaluation.unit,
        folds=_folds_in(folder),
    )
    interruption = Interruption()
    with noticing_signals(interruption):
        if not ranks.is_main:
            [record] = follow(recipe, study, ranks, interruption)
            return Replay(record, original, notes)
        return Replay(_train(recipe, study, original, listener, ranks, interruption, notes), original, notes)


def _train(
    recipe: SearchedRecipe,
    study: Study,
    original: TrialRecord,
    listener: SearchListener,
    ranks: Ranks,
    interruption: Interruption,
    notes: list[str],
) -> TrialRecord:
    """Train the trial again and return its record; if that is interrupted, or refused, its folder is deleted."""
    study.folder.mkdir(exist_ok=True)
    if study.folder.is_symlink():
        raise StudyError(f"{str(study.folder)!r} is a link, where the replay would write: delete it.")
    remove_folder(study.folder / original.name)
    folder = StudyFolder(study)
    session = SearchSession(recipe, study, folder, listener, ranks, interruption=interruption)
    with _deleted_after_an_error(study.folder / original.name), ending_for_all_ranks(ranks, session.records):
        listener.on_search_begin(study, [], [f"replay of trial {original.number}", *notes])
        try:
            record = replace(_run(session, original), hyperparameters=original.hyperparameters, number=original.number)
        except TrialEndedSearch as ended:
            raise ended.cause from None
        finally:
            listener.on_search_end(study, [])
        if interruption.signal:
            set_exit_code()
            raise interruption.error or _interrupted(original, interruption)
        session.records.records = [record]
        listener.on_trial_end(record)
    return record


@contextlib.contextmanager
def _deleted_after_an_error(folder: Path) -> Iterator[None]:
    """Delete a folder if the block raises: a replay does not resume."""
    try:
        yield
    except BaseException:
        remove_folder(folder)
        raise


def _interrupted(original: TrialRecord, interruption: Interruption) -> SearchInterrupted:
    return SearchInterrupted(
        f"The replay of trial {original.number} was interrupted by {interruption.name}. The study is unchanged; a "
        "replay does not resume, so the same call trains the trial from the beginning.",
        signal=interruption.signal,
    )


def _run(session: SearchSession, original: TrialRecord) -> TrialRecord:
    """Run the trial again: of one whose parameters changed, part by part."""
    earlier: TrialRecord | None = None
    for part, following in itertools.pairwise((*original.schedule, None)) if original.schedule else ():
        trial = _ReplayedTrial(original, part, None if following is None else following["step"], earlier)
        record = _train_part(session, trial)
        if record.state is not TrialState.PAUSED:
            return record
        earlier = replace(record, schedule=(), arguments={})
    return _train_part(session, _ReplayedTrial(original))


def _train_part(session: SearchSession, trial: _ReplayedTrial) -> TrialRecord:
    """Train a trial, or a part of one, and return its record, written to disk.

    Raises:
        TrialEndedSearch: the trial, or the user, ended the replay; it carries the record.
    """
    begun = session.on_disk.begin(trial)
    if isinstance(begun, TrialRecord):
        return begun
    return session.on_disk.finish(session.local.train(trial, begun, _ReplayReporter(trial, session)))


def _read_settings(folder: Path) -> JsonObject:
    settings = read_settings(folder)
    if settings is None:
        there = [path.parent.name for path in folder.parent.glob(f"*/{STUDY_FILE}")]
        raise StudyError(
            f"There is no study {folder.name!r} in {str(folder.parent)!r}; there "
            f"{'are ' + ', '.join(sorted(there)) if there else 'is none'}.{nearest_name(folder.name, there)}"
        )
    return settings


def _read_trial(folder: Path, number: int | None) -> TrialRecord:
    wanted = number
    if wanted is not None and (isinstance(wanted, bool) or not isinstance(wanted, int)):
        raise StudyError(f"number must be that of a trial, but got {wanted!r}.")
    if wanted is None:
        wanted = _best_number(folder)
    found = {each.number: each for each in read_records(folder)}
    if wanted not in found:
        raise StudyError(f"The study {folder.name!r} has no trial {wanted!r}; it has {list(found)}.")
    reaching = reaching_out(found[wanted])
    if reaching is not None:
        raise StudyError(
            f"Trial {wanted} sets {reaching}, which reaches beyond the study's folder, so it is not replayed: train "
            "with its hyperparameters instead."
        )
    extended = found[wanted].extends
    if extended is not None:
        raise StudyError(
            f"Trial {wanted} extends trial {extended}, from a checkpoint at which that one had ended, so it is not "
            f"replayed; trial {extended} can be."
        )
    return found[wanted]


def _best_number(folder: Path) -> int:
    """Return the number of the best trial, of several the first, as `best.json` has it."""
    path = folder / BEST_FILE
    try:
        best = read_own_json(path)
        number = (best[0] if isinstance(best, list) else best)["trial"]
        return whole(number)
    except FileNotFoundError as error:
        raise StudyError(
            f"The study {folder.name!r} has no best trial; pass the number of the one to replay."
        ) from error
    except (Unreadable, LookupError, TypeError) as error:
        raise StudyError(
            f"{str(path)!r} is damaged, or not of this study ({error}): pass the number of the trial to replay."
        ) from error


def _as_it_was(
    recipe: SearchedRecipe, arguments: Mapping[str, object], original: TrialRecord
) -> tuple[SearchedRecipe, list[str]]:
    """Return a recipe with the arguments that the trial had, and notes on those that differed."""
    now = describe_environment(recipe.args, {})["arguments"]
    different = {
        name: value
        for name, value in without_secrets(arguments).items()
        if name in now and now[name] != value and name not in WITHOUT_EFFECT and name not in original.arguments
    }
    left_out = {
        name: "a part of it is secret" if holds_hidden(value) else "it reaches beyond the study's folder"
        for name, value in different.items()
        if holds_hidden(value) or acts_outside(name, value)
    }
    changed = {name: value for name, value in different.items() if name not in left_out}
    notes = [
        f"{name}={now[name]!r} as here, not {different[name]!r} as in the study: {reason}"
        for name, reason in left_out.items()
    ]
    notes += [f"{name}={value!r} as in the study, not {now[name]!r}" for name, value in changed.items()]
    for fallback in original.fallbacks[-1:]:
        changed.update(fallback["arguments"])
        notes.append(f"in the smaller batches that it ended with: {fallback['arguments']}")
    if not changed:
        return recipe, notes
    try:
        return recipe.with_arguments(**changed), notes
    except ArgumentError as error:
        raise StudyError(f"The arguments of the study cannot be set any more: {error}") from error


def _check_objectives(settings: JsonObject, objectives: tuple[Objective, ...] | None) -> tuple[Objective, ...]:
    names, directions = settings["objective"], settings["direction"]
    several = isinstance(names, list)
    recorded = list(zip(names, directions, strict=True)) if several else [(names, directions)]
    if objectives is None:
        return tuple(_recorded_objective(*each) for each in recorded)
    objectives = named_as_recorded(objectives, names)
    if [(each.identity, each.direction) for each in objectives] != recorded:
        given = ", ".join(each.description for each in objectives)
        raise StudyError(
            f"The study is to {', '.join(f'{direction} {name}' for name, direction in recorded)}; pass "
            f"compute_objective and direction as in its search, not {given}."
        )
    return objectives


def _recorded_objective(name: str, direction: str | None) -> Objective:
    """Return the objective that `study.json` describes, if it is a metric's name or a default."""
    defaults = [(None, True, 1), (None, False, 1), (None, False, 2)]
    for metric, has_metrics, sets in [*([(name, True, 1)] if re.fullmatch(r"[^ ()]+", name) else []), *defaults]:
        with contextlib.suppress(ObjectiveError):
            [objective] = resolve_objectives(metric, direction, has_metrics, sets)
            if objective.identity == name:
                return objective
    raise StudyError(f"The study's objective {name!r} was a function: pass compute_objective= and direction= again.")
