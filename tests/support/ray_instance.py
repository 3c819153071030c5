"""One local instance of Ray in a test process, for all tests that ask for it by the fixture `ray_instance`.

A test that does not ask for it finds none: the instance is ended before, so that the test can start its own, or join
a cluster, and is started again for the next test that asks. `tests/support/tiers.py` puts those that ask first.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

import pytest

from tests.support.warm_workers import end_server, warm_workers

_running = contextlib.ExitStack()
_is_running = False
_SECONDS_TO_BE_FREE = 20.0


@pytest.fixture
def ray_instance() -> None:
    """Search on a local instance that other tests have used and will use; its workers are forked."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the instance before all fixtures of a test that asks for it, or end it before those of another one."""
    if "ray_instance" in getattr(item, "fixturenames", ()):
        _start()
    else:
        _end()


@pytest.fixture(scope="session", autouse=True)
def _no_instance_is_left() -> Iterator[None]:
    yield
    _end()
    end_server()


def _start() -> None:
    global _is_running
    if _is_running and not _is_free():
        logging.getLogger(__name__).error("An earlier test has left a CPU of the instance of Ray in use.")
        _end()
    if not _is_running:
        from hpsearch.executors.ray_executor.cluster import joined

        with warm_workers():
            _running.enter_context(joined(None))
        _is_running = True


def _is_free() -> bool:
    """Return whether all CPUs are free, or will be in a moment; else a test that needs them all would never begin."""
    import ray

    until = time.monotonic() + _SECONDS_TO_BE_FREE
    while ray.available_resources().get("CPU") != ray.cluster_resources().get("CPU"):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _end() -> None:
    global _is_running
    _is_running = False
    _running.close()
