"""A study that was searched some time, by whatever program: a look at all of it, from its folder."""

from __future__ import annotations

import os

from ..search.result.best_run import Engine, SearchSummary
from ..search.store.stored_study import StoredStudy


def open_study(folder: str | os.PathLike[str], *, storage: object = None, trust: bool = False) -> SearchSummary:
    """Read a study from its folder, also during its search: settings, trials, best run, importances.

    Nothing is written, and no trainer is needed. The summary shows the state at the time of the call. All but
    `engine_study` and `dashboard_command()` comes from the files of the folder, without opening a storage.

    Args:
        folder: the folder of the study, ``<output_dir>/<study_name>``.
        storage: the storage of the study, if it lies outside of its folder: a URL, a journal file or an Optuna storage.
            Without it, `engine_study` and `dashboard_command()` of such a study raise a StudyError.
        trust: open the storage that the folder names, wherever it lies. Use it only for folders from people whom you
            trust.

    Returns:
        The `SearchSummary` that a search returns as ``best.run_summary``, with its objectives and constraints known
        only by name.

    Raises:
        StudyError: there is no study, its `study.json` is damaged, or another version of hpsearch wrote it. (Trials
            that cannot be read are omitted; `SearchSummary.problems` names them.)

    Examples:
        >>> open_study("runs/study")
        Traceback (most recent call last):
        ...
        hpsearch.errors.StudyError: There is no study in 'runs/study': it has no study.json.
    """
    study = StoredStudy.read(folder)
    records, problems, _ = study.trials()

    def engine() -> Engine:
        from ..ledger.study_from_records import StudyFromRecords

        return StudyFromRecords(study, records, storage, trust)

    return SearchSummary(study, records, engine, problems)
