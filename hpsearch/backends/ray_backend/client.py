"""A search on a cluster that is reached by Ray Client: it runs on the cluster, and tells here what happens."""

from __future__ import annotations

import contextlib
import logging
import pickle
import sys
import time
import urllib.parse
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...errors import HpsearchError, MissingPackageError, SearchInterrupted, StudyError
from ...search.following import SearchIsOver
from ...search.listener import SearchListener
from ...search.study import Study
from ..base import DistantSearch
from .connection import authentication
from .wire import Exchange, Relay, Wire

# A file that another machine has just written may take a moment to be seen.
_SECONDS_TO_APPEAR = 3.0
_SECONDS_TO_ANSWER = 4.0
_PORT = 10001
_LOST = (ConnectionError, RayError)


def run_on_cluster(search: DistantSearch, address: str) -> SearchIsOver:
    """Run a search on the head node of a cluster, and tell its listener here what happens.

    Raises:
        StudyError: the cluster cannot be reached, cannot load the search, or does not see the study's folder.
        HpsearchError: the connection is lost.
    """
    study = replace(search.study, folder=search.study.folder.absolute())
    sent = _pickled(search.told_to(study, SearchListener()))
    with _connected(address):
        head = _head()
        _check_folder(study, head)
        try:
            wire = Wire(ray.remote(num_cpus=0, scheduling_strategy=head)(Exchange).remote())
            future = _begin(head, _search, tuple(sys.path), sent, wire)
            try:
                over = _listen(future, wire, search.listener)
            except KeyboardInterrupt:
                wire.interrupt()
                over = _listen(future, wire, search.listener)
                if over.error is not None and not isinstance(over.error, SearchInterrupted):
                    raise  # it had not begun
            wire.cut()
        except RayTaskError as error:
            reason = str(error).strip().splitlines()[-1]
            raise StudyError(
                f"The head node of the cluster cannot run the search: {reason}. What the trainer and the search are "
                "made of (functions, classes, data) must be importable there, and hpsearch be installed."
            ) from error
        except _LOST as error:
            raise HpsearchError(
                f"The connection to the Ray cluster at {address} is lost: {str(error).strip().partition(chr(10))[0]} "
                "Nothing in the study's folder is; run the same command again to continue."
            ) from error
    return over


def _listen(future: Any, wire: Wire, listener: SearchListener) -> SearchIsOver:
    """Pass on what the search tells until it has ended."""
    while True:
        ended, _ = ray.wait([future], timeout=0)
        wire.listen(listener)
        if ended:
            over: SearchIsOver = ray.get(future)
            return over


def _search(paths: Sequence[str], sent: bytes, wire: Wire) -> SearchIsOver:
    """Run the search; on the cluster."""
    sys.path += [each for each in paths if each not in sys.path]
    search: DistantSearch = pickle.loads(sent)  # noqa: S301 - our own bytes
    with wire.interrupting():
        return search.told_to(search.study, Relay(wire)).outcome()


def _pickled(search: DistantSearch) -> bytes:
    try:
        return bytes(cloudpickle.dumps(search))  # type: ignore[no-untyped-call]
    except Exception as error:
        raise StudyError(
            "The search cannot be sent to the cluster, because the trainer, or something that was passed to "
            f"hyperparameter_search, cannot be pickled: {type(error).__name__}: {error}. Open files, locks, "
            "connections and the like must be made where they are used."
        ) from error


def _check_folder(study: Study, head: Any) -> None:
    """Check that the head node sees the study's folder.

    Raises:
        StudyError: it does not.
    """
    study.folder.parent.mkdir(parents=True, exist_ok=True)
    token = study.folder.parent / f".hpsearch-{uuid.uuid4().hex}"
    token.touch()
    try:
        if not ray.get(_begin(head, _appears, str(token), _SECONDS_TO_APPEAR)):
            raise StudyError(
                f"The head node of the cluster does not see the folder {str(study.folder.parent)!r} of this machine, "
                "where the study is to be. Put output_dir on a folder that both share, or run the script on the "
                "cluster, as `ray job submit` does, with address='auto'."
            )
    finally:
        token.unlink(missing_ok=True)


def _appears(path: str, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not Path(path).exists():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def _head() -> Any:
    """Return what places tasks on the head node of the cluster."""
    nodes: Any = ray.nodes()  # type: ignore[no-untyped-call]
    head = next(node["NodeID"] for node in nodes if "node:__internal_head__" in node["Resources"])
    return NodeAffinitySchedulingStrategy(head, soft=False)


def _begin(head: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Begin some work on the head node of the cluster."""
    return ray.remote(function).options(num_cpus=0, scheduling_strategy=head, max_retries=0).remote(*arguments)


def _check_answers(address: str) -> None:
    """Check that there is a server for Ray Client: Ray itself waits for half a minute.

    Raises:
        StudyError: there is none.
    """
    import grpc
    from ray._private.grpc_utils import init_grpc_channel

    parts = urllib.parse.urlsplit(address)
    place = f"{parts.hostname}:{parts.port or _PORT}"
    nothing = {
        grpc.StatusCode.UNAVAILABLE: "nobody listens there",
        grpc.StatusCode.DEADLINE_EXCEEDED: "no answer",
        grpc.StatusCode.UNIMPLEMENTED: "something else listens there",
    }
    with init_grpc_channel(place) as channel:
        try:
            channel.unary_unary("/ray.rpc.RayletDriver/ClusterInfo")(b"", timeout=_SECONDS_TO_ANSWER)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                raise StudyError(
                    f"The Ray cluster at address={address!r} wants another token than this process has, or none. Set "
                    "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) to that of the cluster; for a "
                    "cluster without tokens set RAY_AUTH_MODE=disabled."
                ) from error
            if error.code() in nothing:
                raise StudyError(
                    f"No Ray cluster answers at address={address!r}: {nothing[error.code()]}. The port must be that of "
                    f"`ray start --head --ray-client-server-port=...`, {_PORT} if none was named."
                ) from error


def _connection(address: str) -> Any:
    """Connect; once more if the server that Ray starts for each connection has died while it started, as some do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionAbortedError:
            return ray.init(address, log_to_driver=False, logging_level=logging.ERROR)


@contextlib.contextmanager
def _connected(address: str) -> Iterator[None]:
    """Connect to a cluster, and disconnect afterwards.

    Raises:
        MissingPackageError: Ray Client needs another package.
        StudyError: there is no such cluster, or it cannot be joined.
    """
    try:
        import grpc  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(f"address={address!r} needs the package grpcio: pip install 'ray[client]'") from error
    if ray.is_initialized():
        if not ray.util.client.ray.is_connected():  # type: ignore[no-untyped-call]
            raise StudyError(
                f"address={address!r}: this process has joined a Ray cluster already. Leave address out to search "
                "there, or call ray.shutdown() first."
            )
        yield  # the program's own connection
        return
    with authentication():
        _check_answers(address)
        try:
            connection = _connection(address)
        except (ConnectionError, RayError, RuntimeError) as error:
            raise StudyError(
                f"The Ray cluster at address={address!r} cannot be joined: {str(error).strip().partition(chr(10))[0]}"
            ) from error
        try:
            yield
        finally:
            connection.disconnect()
            ray.shutdown()
