"""One local instance of Ray in a test process, for all tests that ask for it by the fixture `ray_instance`.

A test that does not ask for it finds none: the instance is ended before, so that the test can start its own, or join
a cluster, and is started again for the next test that asks. `tests/support/tiers.py` puts those that ask first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

_running = contextlib.ExitStack()
_is_running = False


@pytest.fixture
def ray_instance() -> None:
    """Search on a local instance that other tests have used and will use; its workers are forked."""
    global _is_running
    if not _is_running:
        from hpsearch.backends.ray_backend.cluster import joined
        from tests.support.warm_workers import warm_workers

        with warm_workers():
            _running.enter_context(joined(None))
        _is_running = True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """End the instance before the fixtures of a test that does not ask for it."""
    if "ray_instance" not in getattr(item, "fixturenames", ()):
        _end()


@pytest.fixture(scope="session", autouse=True)
def _no_instance_is_left() -> Iterator[None]:
    yield
    _end()


def _end() -> None:
    global _is_running
    _is_running = False
    _running.close()
