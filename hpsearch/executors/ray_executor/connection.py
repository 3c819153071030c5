"""Connect this process to a Ray cluster, or to a local Ray instance of its own, and disconnect again."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import ray

from ...errors import StudyError
from ...system.ctrl_c import put_back, restored_signals
from ...system.environment_variables import environment
from .address import check_is_node, how_to_join
from .driver_process import restored_levels
from .ray_internals import loopback_only, reread_environment

# `ray.init` leaves these in the environment.
_LEFT_BY_RAY = ("RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED", "PYTHONBREAKPOINT")
_SECONDS_TO_END = 10.0
_FOR_CLUSTERS = {
    # Ray refuses another patch level of Python otherwise.
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
    # The time limit of `ray.init`: one attempt, some 8 seconds in all. By default it tries for twelve minutes.
    "RAY_gcs_server_port_wait_time_s": "1",
    "RAY_gcs_rpc_server_connect_timeout_s": "1",
    "RAY_py_gcs_connect_timeout_s": "5",
}


@contextlib.contextmanager
def own_instance() -> Iterator[None]:
    """Start a local Ray instance for this process alone, and end it afterwards.

    It listens on the loopback address only, and its token is in no file: anyone who can reach Ray can run code.

    Raises:
        StudyError: it cannot be started.
    """
    settings = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # for the processes that Ray starts
    if not os.environ.get("RAY_AUTH_TOKEN"):
        settings["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    failure = "No local Ray instance can be started: {}"
    with loopback_only(), _connected(failure, settings, address="local", include_dashboard=False):
        yield


@contextlib.contextmanager
def existing_cluster(address: str) -> Iterator[None]:
    """Connect to a cluster, and disconnect afterwards.

    Args:
        address: "auto" or "host:port".

    Raises:
        StudyError: this machine is not a node of such a cluster, or `ray.init` cannot connect.
    """
    check_is_node(address)
    variable = os.environ.get("RAY_ADDRESS")
    origin = f" (RAY_ADDRESS={variable!r})" if address == "auto" and variable else ""
    failure = f"The Ray cluster at address={address!r}{origin} cannot be joined: {{}}"
    with _connected(failure, _FOR_CLUSTERS, address=address):
        yield


@contextlib.contextmanager
def _connected(failure: str, settings: dict[str, str], **options: Any) -> Iterator[None]:
    """Call `ray.init` without its messages; disconnect and restore everything that it changed afterwards.

    Raises:
        StudyError: in place of Ray's errors.
    """
    with (
        restored_signals("SIGTERM") as handlers,
        restored_levels("ray"),
        _environment(settings),
    ):
        try:
            try:
                with _whole_start():
                    ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
            except Exception as error:
                raise StudyError(failure.format(_reason(error, options["address"]))) from error
            # Without a handler of the user's, Ray's stays: it shuts down in good order at SIGTERM.
            put_back({number: handler for number, handler in handlers.items() if handler != signal.SIG_DFL})
            yield
        finally:
            ray.shutdown(wait_for_processes=True)


@contextlib.contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """Set variables that Ray reads, and restore them afterwards."""
    try:
        with environment(settings, *_LEFT_BY_RAY):
            reread_environment()
            yield
    finally:
        reread_environment()


@contextlib.contextmanager
def _whole_start() -> Iterator[None]:
    """End the servers that Ray has started if it is interrupted before it knows of them all."""
    before = set(psutil.Process().children())
    try:
        yield
    except BaseException:
        ray.shutdown()
        servers = [child for child in set(psutil.Process().children()) - before if _is_of_ray(child)]
        for server in servers:
            server.kill()
        psutil.wait_procs(servers, timeout=_SECONDS_TO_END)
        raise


def _is_of_ray(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(part.startswith(os.path.dirname(ray.__file__)) for part in process.cmdline())
    return False


def _reason(error: BaseException, address: str) -> str:
    """Return in one line why `ray.init` failed, and what to do."""
    reported = [str(error)]
    while error.__cause__ is not None:
        error = error.__cause__
        reported.append(str(error))
    everything = "\n".join(reported)
    if isinstance(error, ray.exceptions.AuthenticationError) or "AuthenticationError" in everything:
        return (
            "it requires a different token than that of this process. Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN (or "
            "RAY_AUTH_TOKEN_PATH) to the token of the cluster; for a cluster without tokens set RAY_AUTH_MODE=disabled."
        )
    rays, pythons = re.findall(r"Ray: (\S+)", everything), re.findall(r"Python: (\S+)", everything)
    if "Version mismatch" in everything and len(rays) > 1 and len(pythons) > 1:
        return (
            f"it was started with Ray {rays[0]} and Python {pythons[0]}, this process has Ray {rays[1]} and Python "
            f"{pythons[1]}. Install the same versions."
        )
    first, last = reported[0].strip(), reported[-1].strip()
    line = f"{first.splitlines()[0]} ({last.splitlines()[-1]})" if first and last != first else first or repr(error)
    return line if address == "local" else f"{line} {how_to_join('HEAD:6379')}"
