"""Whether the study in a storage is the one in the study's folder, or another one."""

from __future__ import annotations

from collections.abc import Sequence

import optuna
from optuna.study import StudySummary
from optuna.trial import TrialState as EngineState

from ..errors import StudyError
from ..search.study import Study
from ..search.trial_record import TrialRecord
from ..search.wording import counted
from .storage import storage_url
from .stored_source import is_of_optuna, warm_start_from
from .warm_starts import ORIGIN


def check_stored(
    study: Study,
    storage: optuna.storages.BaseStorage,
    stored_studies: Sequence[StudySummary],
    records: Sequence[TrialRecord],
    may_exist: bool,
) -> None:
    """Check that a search can continue the study that the storage has under this name, if it has one.

    Args:
        study: the settings.
        storage: of the study.
        stored_studies: all that the storage has.
        records: the trials in the study's folder.
        may_exist: False refuses a study that the storage has already.

    Raises:
        StudyError: it cannot, or `may_exist` is False.
    """
    known = next((each for each in stored_studies if each.study_name == study.name), None)
    if known is None:
        return
    if not records and is_of_optuna(optuna.load_study(study_name=study.name, storage=storage)):
        trials = counted(known.n_trials, "trial")
        raise StudyError(
            f"The study {study.name!r} in the storage has {trials} that Optuna itself has run, so a search cannot "
            "continue it. To learn from them, pass "
            f"{warm_start_from(storage_url(storage), study.name)}, and another study_name or storage."
        )
    if not may_exist:
        raise StudyError(
            f"load_if_exists=False, but the storage has a study {study.name!r} already, with {known.n_trials} "
            "trials. Pass another study_name."
        )
    stored, wanted = [each.name.lower() for each in known.directions], [each.direction for each in study.objectives]
    if stored != wanted:
        before, now = (shown[0] if len(shown) == 1 else shown for shown in (stored, wanted))
        raise StudyError(
            f"The study {study.name!r} in the storage was made with direction={before!r}, now {now!r}. Pass "
            "another study_name."
        )


def note_of_another_study(
    study: Study, storage: optuna.storages.BaseStorage, stored_studies: Sequence[StudySummary]
) -> list[str]:
    """Return how a new study could learn from the only one in the storage, if that is one of Optuna itself.

    Of several studies it would be a guess.
    """
    if len(stored_studies) != 1 or stored_studies[0].study_name == study.name:
        return []
    name = stored_studies[0].study_name
    if not is_of_optuna(optuna.load_study(study_name=name, storage=storage)):
        return []
    return [f"a new study beside {name!r}; to learn from that one: {warm_start_from(storage_url(storage), name)}"]


def check_same_trials(
    engine: optuna.Study, study: Study, records: Sequence[TrialRecord], left_alone: frozenset[int], is_own: bool
) -> list[str]:
    """Check that the storage and the folder hold the same trials; return which folders were deleted, in words.

    That the storage knows more is no other study, if the folder has later trials, or the storage lies in it.
    """
    trials = engine.get_trials(deepcopy=False)
    place = storage_url(engine._storage) or "in memory"
    stored = {trial.number for trial in trials if trial.state.is_finished() and ORIGIN not in trial.user_attrs}
    running = {trial.number for trial in trials if trial.state is EngineState.RUNNING}
    on_disk = {record.number for record in records}
    last = max(on_disk, default=-1)
    deleted = stored - on_disk - left_alone
    after_the_last = {each for each in deleted if each > last}
    is_same = bool(on_disk) and (is_own or not after_the_last)
    if is_own and deleted and not on_disk:
        raise StudyError(
            f"The study {study.name!r}: the folders of all its trials were deleted from {str(study.folder)!r}. Restore "
            f"them, delete {place} to begin again, or pass another study_name."
        )
    for numbers, here, there in (
        (on_disk - stored - running, "the folder", "the storage"),
        (set() if is_same else deleted, "the storage", "the folder"),
    ):
        if numbers:
            raise StudyError(
                f"The study {study.name!r}: {here} has trials {sorted(numbers)[:5]} that {there} does not know "
                f"(folder {str(study.folder)!r}, storage {place}). Pass the storage it was made with, or another "
                "study_name. (If a power cut has cost the storage its last trials: delete their folders.)"
            )
    return [f"DAMAGED: the folder of trial {each} was deleted; the trial still counts" for each in after_the_last]
