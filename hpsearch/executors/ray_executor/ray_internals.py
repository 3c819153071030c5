"""The two things that Ray has no public way to do. No other module of hpsearch uses `ray._private` or `ray._raylet`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ray._private import ray_constants
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]


def reread_environment() -> None:
    """Let Ray read its variables (token, authentication mode, timeouts) again, which it reads once in a process."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def loopback_only() -> Iterator[None]:
    """Let the servers that `ray.init` starts listen on the loopback address only.

    `ray.init` replaces ``_node_ip_address="127.0.0.1"`` with the machine's address, and its servers then listen on all
    interfaces. It keeps the loopback address only if clusters of several machines are off: this is the variable
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER, which Ray reads when it is imported.
    """
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
