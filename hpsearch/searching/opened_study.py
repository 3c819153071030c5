"""A study that was searched some time, by whatever program: a look at all of it, and requests to its search."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import StudyError
from ..search.requests import make_request
from ..search.requests.in_effect import unfulfilled
from ..search.requests.request import Request
from ..search.requests.request_file import RequestFile
from ..search.result.best_run import Engine, SearchSummary
from ..search.store.held_out_file import read_held_out
from ..search.store.live_sessions import sessions_at_work
from ..search.store.stored_study import StoredStudy


class OpenedStudy(SearchSummary):
    """All trials of a study as its folder knew them when it was opened, and requests to its search.

    Each request is checked, written to the folder and answered with what will happen, and when. A search that is
    running in the folder, in any process, follows it; if none is running, the next one does: the same call again, or
    ``hpsearch resume``. Reading a study never does. See `SearchSummary` for what can be read.

    Attributes:
        requests: the requests that no search had fulfilled when the study was opened, in the order in which they were
            made: each has the attributes `kind`, `trial`, `params`, `arguments`, `made` and `id`, and its text is that
            of a command. A request to pause is among them if the search was paused.
        requested: their texts.
    """

    requests: tuple[Request, ...] = ()

    @property
    def requested(self) -> tuple[str, ...]:
        """The requests that no search had fulfilled when the study was opened, as in a command."""
        return tuple(map(str, self.requests))

    def stop(self, number: int) -> str:
        """Stop a trial with the value that it has: its state is then *stopped*, and it may be the best.

        A running trial stops after its next evaluation, one that no process trains immediately.

        Args:
            number: the number of a trial that is running, paused or interrupted.

        Returns:
            What will happen, and when.

        Raises:
            StudyError: there is no such trial, or it has ended.

        Examples:
            ``open_study("runs/study").stop(7)``
        """
        return make_request.stop(self.study.folder, number)

    def promote(self, number: int) -> str:
        """Train a trial to completion, whatever its reports at the rungs; see `hpsearch.promote`.

        Examples:
            ``open_study("runs/study").promote(7)``
        """
        return make_request.promote(self.study.folder, number)

    def retry(self, number: int) -> str:
        """Begin a new trial with the parameters of one that has ended; the total of trials rises by one.

        The record of the new trial names the other one (`TrialRecord.origin`). It trains with the same seed, unless the
        seed is searched, so retrying a trial that ended well gives the same result.

        Args:
            number: the number of a trial that has ended, in whatever way.

        Returns:
            What will happen, and when.

        Raises:
            StudyError: there is no such trial, or it has not ended.

        Examples:
            ``open_study("runs/study").retry(7)``
        """
        return make_request.retry(self.study.folder, number)

    def add(self, params: Mapping[str, object] | None = None, *, like: int | None = None) -> str:
        """Begin a new trial with given parameters, also if their result is known; the total rises by one.

        Args:
            params: names to values, in the space of the study; the sampler chooses missing ones.
            like: the number of a trial whose parameters take the place of missing ones; None: the sampler chooses.

        Returns:
            What will happen, and when.

        Raises:
            StudyError: there is no such trial, or neither a parameter nor a trial is given.
            SpaceError: a parameter, or its value, is not in the space.

        Examples:
            ``open_study("runs/study").add({"learning_rate": 3e-4}, like=7)``
        """
        return make_request.add(self.study.folder, params or {}, like)

    def extend(self, number: int, **arguments: object) -> str:
        """Begin a new trial that continues from the checkpoint of another one; the total of trials rises by one.

        The schedule is made for the new length: from the checkpoint on, the learning rate is what a trial of that
        length would have there. The new trial trains to completion, and its record names the other one. Of a trial of a
        `Trainer` only: what a trainer function, or another function, does with its length is its own.

        Args:
            number: the number of a trial that has ended and has a checkpoint with the state of its optimizer.
            arguments: ``num_train_epochs`` or ``max_steps``, larger than before.

        Returns:
            What will happen, and when.

        Raises:
            StudyError: there is no such trial, it has not ended or has no checkpoint, or the length is not larger.

        Examples:
            ``open_study("runs/study").extend(7, num_train_epochs=10)``
        """
        return make_request.extend(self.study.folder, number, arguments)

    def confirm(self, *, repeats: int = 5, top: int = 4) -> str:
        """Train the best trials again with other seeds, until the best of them is clear.

        Each time, the trial with the fewest runs is trained once more. A trial whose mean is worse than that of another
        one by more than two standard errors is out. Replicas do not count in `n_trials`. The result of a trial is then
        the mean of its runs, and the best one has the best mean, shrunk for few runs; see `BestRun`.

        Args:
            repeats: the most training runs of each trial, those that it has had included; at least 2.
            top: how many of the best trials to train again.

        Returns:
            What will happen, and when.

        Raises:
            StudyError: no trial may be the best, the seed is searched, or an argument is out of range.

        Examples:
            ``open_study("runs/study").confirm(repeats=5, top=4)``
        """
        return make_request.confirm(self.study.folder, repeats, top)

    def pause(self) -> str:
        """Pause the running search: no trial begins or resumes, and running ones leave after their next evaluation.

        They write a checkpoint, from which they resume first when the search is unpaused. On Ray, they continue to
        their next rung. A time limit keeps counting. The pause ends with the search.

        Returns:
            What will happen, and when.

        Raises:
            StudyError: no search is running in the folder.

        Examples:
            ``open_study("runs/study").pause()``
        """
        return make_request.pause(self.study.folder)

    def unpause(self) -> str:
        """Let a paused search continue.

        Returns:
            What will happen, and when.

        Raises:
            StudyError: no search is running in the folder, or it is not paused.

        Examples:
            ``open_study("runs/study").unpause()``
        """
        return make_request.unpause(self.study.folder)

    def set(self, **settings: object) -> str:
        """Change settings of the running search, until it ends; the next call has its own arguments.

        Args:
            settings: ``n_trials``, the total of trials without those that were added by requests; ``timeout``, seconds
                from the begin of the search. Trials that run learn of a new timeout with their next report; on Ray,
                they keep the old one.

        Returns:
            What will happen, and when.

        Raises:
            StudyError: no search is running in the folder, or a setting or its value is not allowed.

        Examples:
            ``open_study("runs/study").set(n_trials=100)``
        """
        return make_request.change(self.study.folder, settings)


def open_study(folder: str | os.PathLike[str], *, storage: object = None, trust: bool = False) -> OpenedStudy:
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
        only by name; its methods `stop`, `retry`, `add` and others make requests to the search, see `OpenedStudy`.

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

    requests, damage = _requests(study.folder)
    opened = OpenedStudy(study, records, engine, [*problems, *damage, *_damage_of_held_out(study.folder)])
    opened.requests = tuple(unfulfilled(requests, records, study.objectives, sessions_at_work(study.folder)))
    return opened


def _damage_of_held_out(folder: Path) -> list[str]:
    """Return that the evaluations on the test set cannot be read, if that is so."""
    try:
        read_held_out(folder)
    except StudyError as error:
        return [str(error)]
    return []


def _requests(folder: Path) -> tuple[Sequence[Request], list[str]]:
    """Return the requests to a study, and what is damaged."""
    try:
        return RequestFile(folder).read(), []
    except StudyError as error:
        return (), [str(error)]
