"""The run of the defaults: trained once, with what a trial is trained with, and no trial of the study.

No storage knows it, and it counts in no budget. It lies in ``<study>/defaults``, and is used again while arguments,
data and functions are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import StudyError
from ..reports.tables import format_duration
from ..search.peer_summary import PeerTrials
from ..search.process_group import OneProcess
from ..search.store.checked_json import Check, Unreadable, amount, fields, is_folder_name, items, number, optional, text
from ..search.store.held_out_file import DEFAULTS_FOLDER
from ..search.store.own_files import is_own_folder
from ..search.store.read_study import read_own_json
from ..search.store.retention import remove_checkpoints
from ..search.store.study_folder import TRIAL_FILE, remove_leftovers
from ..search.study import Study
from ..search.time_and_epoch_limits import SearchBudget
from ..search.trial import FixedTrial
from ..search.trial_record import TrialState
from ..search.wording import counted
from ..system.files import remove_folder, write_json
from ..system.interruption import Interruption
from ..system.json_types import JsonObject
from ..trial.assignment import Assignment
from ..trial.local_trials import LocalTrials
from ..trial.reporter import SilentReporter
from .searched_recipe import SearchedRecipe

_FILE = "defaults.json"


@dataclass(frozen=True)
class DefaultRun:
    """A complete run of the defaults.

    Attributes:
        checkpoint: the folder of its selected weights.
        values: the objective on the evaluation data, by scope.
        epochs, seconds: the cost of its training.
    """

    checkpoint: Path
    values: tuple[float, ...]
    epochs: float
    seconds: float


class DefaultRunEnded(Exception):
    """The run of the defaults did not complete; `cause` is the error that ends the search too, or None."""

    def __init__(self, reason: str, cause: BaseException | None = None) -> None:
        super().__init__(reason)
        self.cause = cause


def train_defaults(
    recipe: SearchedRecipe,
    study: Study,
    trial: FixedTrial,
    arguments: str,
    interruption: Interruption,
    announce: Callable[[str], None],
) -> DefaultRun:
    """Train the defaults to completion, or return the run that did so earlier; an interrupted one resumes.

    Args:
        recipe: of the defaults.
        study: the settings; its budgets, limits and constraints do not apply.
        trial: with the parameters of the defaults.
        arguments: the fingerprint of what the run is trained with; a run with another one is deleted.
        interruption: notes a signal, which ends the run after its next optimizer step.
        announce: shows a notice.

    Raises:
        DefaultRunEnded: it failed, or was interrupted.
        StudyError: a trial has the name of its folder.
    """
    folder = study.folder / DEFAULTS_FOLDER
    is_of_a_trial = (folder / TRIAL_FILE).exists() or (folder.exists() and not (folder / _FILE).exists())
    if is_of_a_trial and any(folder.iterdir()):
        raise StudyError(f"{str(folder)!r} is the folder of a trial")
    known = _read(folder)
    if known.get("arguments") != arguments:
        remove_folder(folder)
        folder.mkdir()
        write_json(folder / _FILE, {"arguments": arguments})
    elif known.get("checkpoint") is not None and is_own_folder(folder / known["checkpoint"], folder):
        return DefaultRun(folder / known["checkpoint"], known["values"], known["epochs"], known["seconds"])
    remove_leftovers(folder)
    announce("training with the defaults, once, to compare them on the test set")
    run = _train(recipe, _unlimited(study), trial, interruption)
    cost = f"{counted(run.epochs, study.unit)} in {format_duration(run.seconds)}"
    announce(f"trained with the defaults: {cost}, which count in no budget")
    remove_checkpoints(folder, [run.checkpoint])
    about = {"values": run.values, "epochs": run.epochs, "seconds": run.seconds}
    write_json(folder / _FILE, {"arguments": arguments, "checkpoint": run.checkpoint.name, **about})
    return run


def _train(recipe: SearchedRecipe, study: Study, trial: FixedTrial, interruption: Interruption) -> DefaultRun:
    trial.name, alone = DEFAULTS_FOLDER, PeerTrials()
    budget = SearchBudget(study, interruption=interruption)
    local = LocalTrials(recipe, study, budget, OneProcess())
    ended = local.train(trial, Assignment.of(trial, alone, None), SilentReporter())
    record = ended.record
    if record.state is not TrialState.COMPLETE or record.checkpoint is None:
        raise DefaultRunEnded(record.reason or "it has no weights", ended.cause)
    return DefaultRun(record.checkpoint, record.values, record.epochs, record.seconds)


def _unlimited(study: Study) -> Study:
    """Return a study in which a run is trained to completion, and keeps its selected weights."""
    return replace(
        study,
        keep_checkpoints=1,
        constraints=(),
        n_trials=1,
        timeout=None,
        trial_timeout=None,
        max_epochs=None,
        trial_max_epochs=None,
    )


def _folder_name(value: object) -> str:
    if not is_folder_name(value):
        raise Unreadable("it is not the name of a folder")
    return str(value)


_FIELDS: dict[str, Check] = {
    "arguments": text,
    "checkpoint": optional(_folder_name),
    "values": items(number),
    "epochs": amount,
    "seconds": amount,
}


def _read(folder: Path) -> JsonObject:
    """Return what is known of the run in a folder; nothing if there is none, or the file is damaged."""
    try:
        read = fields(read_own_json(folder / _FILE), _FIELDS, ("arguments",))
    except (OSError, Unreadable, RecursionError):
        return {}
    is_whole = all(name in read for name in _FIELDS)
    return read if is_whole else {"arguments": read["arguments"]}
