"""The connection of this process to Ray: to a cluster that is there already, or to a local instance of its own."""

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
from ray._private import ray_constants

from ...errors import StudyError
from ...surroundings import environment, put_back, restored_signals
from .address import AUTO, found_address
from .surroundings import restored_levels

# What `ray.init` leaves in the environment.
_LEFT_BY_RAY = ("RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED", "PYTHONBREAKPOINT")
_SECONDS_TO_END = 10.0


@contextlib.contextmanager
def own_instance() -> Iterator[None]:
    """Start an instance for this process alone, and end it afterwards.

    It listens on the loopback address, and its token is in no file: whoever can reach Ray can run code.

    Raises:
        StudyError: it cannot be started.
    """
    settings = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}
    if not os.environ.get("RAY_AUTH_TOKEN"):
        settings["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    enabled, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        with _connected("No local Ray instance can be started", settings, address="local", include_dashboard=False):
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = enabled


@contextlib.contextmanager
def existing_cluster(address: str) -> Iterator[None]:
    """Connect to a cluster, and disconnect afterwards.

    Args:
        address: "auto" or "host:port".

    Raises:
        StudyError: there is no such cluster, or it cannot be joined.
    """
    place = found_address(address)
    settings = {
        # Ray refuses another patch level of Python otherwise.
        "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
        # The cluster has just answered; Ray itself tries twenty times.
        "RAY_gcs_server_port_wait_time_s": "1",
    }
    # With "auto", and only then, Ray takes the token in the home folder if there is one.
    named = place if address != AUTO or os.environ.get("RAY_ADDRESS") else AUTO
    with _connected(f"The Ray cluster at {place} cannot be joined", settings, address=named):
        yield


@contextlib.contextmanager
def _connected(failure: str, settings: dict[str, str], **options: Any) -> Iterator[None]:
    """Call `ray.init` without its messages; disconnect and put back what it changed afterwards.

    Raises:
        StudyError: in place of Ray's errors.
    """
    with (
        restored_signals("SIGTERM") as handlers,
        restored_levels("ray"),
        environment(settings, *_LEFT_BY_RAY),
        authentication(),
    ):
        try:
            try:
                with _whole_start():
                    ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
            except Exception as error:
                raise StudyError(f"{failure}: {_reason(error)}") from error
            # Ray's handler ends the process in good order. That is better than none, but not than the user's.
            put_back({number: handler for number, handler in handlers.items() if handler != signal.SIG_DFL})
            yield
        finally:
            ray.shutdown(wait_for_processes=True)


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


@contextlib.contextmanager
def authentication() -> Iterator[None]:
    """Let Ray read the mode and the token anew, which it does only once in a process; again afterwards."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    def read() -> None:
        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()

    read()
    try:
        yield
    finally:
        read()


def _reason(error: BaseException) -> str:
    """Return in a line why Ray could not be joined, and what helps."""
    told = [str(error)]
    while error.__cause__ is not None:
        error = error.__cause__
        told.append(str(error))
    everything = "\n".join(told)
    if isinstance(error, ray.exceptions.AuthenticationError) or "AuthenticationError" in everything:
        return (
            "it wants another token than this process has, or none. Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN (or "
            "RAY_AUTH_TOKEN_PATH) to that of the cluster; for a cluster without tokens set RAY_AUTH_MODE=disabled."
        )
    rays, pythons = re.findall(r"Ray: (\S+)", everything), re.findall(r"Python: (\S+)", everything)
    if "Version mismatch" in everything and len(rays) > 1 and len(pythons) > 1:
        return (
            f"it was started with Ray {rays[0]} and Python {pythons[0]}, this process has Ray {rays[1]} and Python "
            f"{pythons[1]}. Install the same versions."
        )
    return told[-1].strip().partition("\n")[0] or type(error).__name__
