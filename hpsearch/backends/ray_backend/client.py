"""A search on a cluster that is reached by Ray Client: it runs on the cluster, and tells here what happens."""

from __future__ import annotations

import contextlib
import logging
import queue
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, TaskCancelledError
from ray.util.queue import Empty, Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...errors import MissingPackageError, SearchInterrupted, StudyError
from ...search.folder import StudyFolder
from ...search.following import SearchIsOver
from ...search.listener import SearchListener
from ...search.study import Study
from ...search.trial import FixedTrial, Trial, TrialState
from ..base import DistantSearch

_SECONDS_BETWEEN_LOOKS = 0.5


def run_on_cluster(search: DistantSearch, address: str) -> SearchIsOver:
    """Run a search on the head node of a cluster, and tell its listener here what happens.

    Raises:
        StudyError: the cluster cannot be reached, or does not see the study's folder.
    """
    study = replace(search.study, folder=search.study.folder.absolute())
    with _connected(address):
        _check_folder(study)
        told = Queue(actor_options={"num_cpus": 0})
        sent = search.told_to(study, _Relay(told))
        future = _remote(lambda: sent.outcome())
        try:
            over = _listen(future, told, search.listener)
        except KeyboardInterrupt:
            ray.cancel(future)
            over = _listen(future, told, search.listener)
        except TaskCancelledError:
            records = [each for each in StudyFolder(study).read_records() if each.state is not TrialState.RUNNING]
            over = SearchIsOver(records, SearchInterrupted(f"Search {study.name!r} interrupted.", None))
        told.shutdown()
    return over


def _listen(future: Any, told: Queue, listener: SearchListener) -> SearchIsOver:
    """Pass on what the search tells until it has ended."""
    known: dict[int, Trial] = {}
    while True:
        ended, _ = ray.wait([future], timeout=0)
        with contextlib.suppress(Empty, queue.Empty):
            while True:
                method, arguments = told.get(timeout=_SECONDS_BETWEEN_LOOKS)
                getattr(listener, method)(*(_as_known(each, known) for each in arguments))
        if ended:
            over: SearchIsOver = ray.get(future)
            return over


def _as_known(value: Any, known: dict[int, Trial]) -> Any:
    """Return the same object for the same trial, every time."""
    if not isinstance(value, Trial):
        return value
    same = known.setdefault(value.number, value)
    same.params.values_by_name.update(value.params.values_by_name)
    return same


class _Relay(SearchListener):
    """Tells of a search in another process; trials are told by number, name and parameters."""

    def __init__(self, told: Queue) -> None:
        self._told = told
        self._last = 0

    def on_search_begin(self, study: Study, records: Sequence[Any], notes: Sequence[str]) -> None:
        """Tell."""
        self._told.put(("on_search_begin", (study, list(records), list(notes))))

    def on_trial_begin(self, trial: Trial) -> None:
        """Tell."""
        self._told.put(("on_trial_begin", (_plain(trial),)))

    def on_report(self, trial: Trial, report: Any) -> None:
        """Tell."""
        self._told.put(("on_report", (_plain(trial), report)))

    def on_progress(self, trial: Trial, step: int, max_steps: int) -> None:
        """Tell."""
        self._told.put(("on_progress", (_plain(trial), step, max_steps)))

    def on_records(self, records: Sequence[Any]) -> None:
        """Tell."""
        self._told.put(("on_records", (list(records),)))

    def on_trial_end(self, record: Any) -> None:
        """Tell."""
        self._told.put(("on_trial_end", (record,)))

    def on_notice(self, notice: str) -> None:
        """Tell."""
        self._told.put(("on_notice", (notice,)))

    def on_search_end(self, study: Study, records: Sequence[Any]) -> None:
        """Tell."""
        self._told.put(("on_search_end", (study, list(records))))


def _plain(trial: Trial) -> Trial:
    plain = FixedTrial(dict(trial.params.values_by_name), trial.number, dict(trial.arguments))
    plain.name, plain.earlier = trial.name, trial.earlier
    return plain


def _check_folder(study: Study) -> None:
    """Check that the head node sees the study's folder.

    Raises:
        StudyError: it does not.
    """
    study.folder.parent.mkdir(parents=True, exist_ok=True)
    token = study.folder.parent / f".hpsearch-{uuid.uuid4().hex}"
    token.touch()
    try:
        path = str(token)
        if not ray.get(_remote(lambda: Path(path).exists())):
            raise StudyError(
                f"The head node of the cluster does not see the folder {str(study.folder.parent)!r} of this machine, "
                "where the study is to be. Put output_dir on a folder that both share, or run the script on the "
                "cluster, as `ray job submit` does, with address='auto'."
            )
    finally:
        token.unlink(missing_ok=True)


def _remote(work: Any) -> Any:
    """Begin some work on the head node of the cluster."""
    nodes: Any = ray.nodes()  # type: ignore[no-untyped-call]
    head = next(node["NodeID"] for node in nodes if "node:__internal_head__" in node["Resources"])
    place = NodeAffinitySchedulingStrategy(head, soft=False)
    return ray.remote(lambda: work()).options(num_cpus=0, scheduling_strategy=place, max_retries=0).remote()


@contextlib.contextmanager
def _connected(address: str) -> Iterator[None]:
    try:
        import grpc  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(f"address={address!r} needs the package grpcio: pip install 'ray[client]'") from error
    try:
        connection: Any = ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RayError, RuntimeError) as error:
        raise StudyError(
            f"No Ray cluster answers at address={address!r}: {str(error).strip().splitlines()[0]} The port is that of "
            "`--ray-client-server-port`, 10001 unless it was set."
        ) from error
    try:
        yield
    finally:
        connection.disconnect()
        ray.shutdown()
