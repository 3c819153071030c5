"""A study that was searched some time, by whatever program: a look at all of it, from its folder."""

from __future__ import annotations

import os
from typing import Any

from ..search.result.best_run import Engine, SearchSummary
from ..search.store.stored_study import StoredStudy


def open_study(folder: str | os.PathLike[str], *, storage: Any = None, trust: bool = False) -> SearchSummary:
    """Read a study from its folder, also while it is being searched: settings, trials, best, importances.

    Nothing is written, and no trainer is needed. What it knows is of this moment; call it again for news. All but
    `engine_study` and `dashboard_command()` comes from the files of the folder, so no storage is opened for it.

    Args:
        folder: of the study, ``<output_dir>/<study_name>``.
        storage: of the study, where it lies outside of its folder: a URL, a journal file or an Optuna storage. For
            `engine_study` and `dashboard_command()`, which raise a StudyError without it.
        trust: open the storage that the folder names, wherever it lies. For folders that you, or someone you trust,
            have made.

    Returns:
        The `SearchSummary` that a search returns as ``best.run_summary``. Its objectives and constraints are known by
        name.

    Raises:
        StudyError: there is no study, its `study.json` is damaged, or another version of hpsearch wrote it. Trials that
            cannot be read are left out; `SearchSummary.problems` names them.

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
