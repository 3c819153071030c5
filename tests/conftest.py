"""Settings and fixtures for all tests.

pytest reads this file first, and xdist starts its processes when that is done: what takes seconds to import is imported
where it is used.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

# Before numpy is imported: two threads take ten times as long for small matrices where the cores are busy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from tests.support import disk, migrations
from tests.support.clock import clock as clock
from tests.support.command_line import made as made
from tests.support.postgresql import postgresql as postgresql
from tests.support.postgresql import postgresql_url as postgresql_url

pytest_plugins = ["tests.support.tiers", "tests.support.ray_instance"]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.pop("CI", None)  # a search prints less in CI; the tests check what it prints elsewhere
# A shell that starts pytest in the background lets it ignore Ctrl-C, which some tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import all modules without collecting garbage, of which there is none: that takes a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _frozen_objects_are_not_counted() -> Iterator[None]:
    """Tell at once that there are some: each `tune` asks, and counting a million takes a tenth of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "get_freeze_count", lambda: 1)
        yield


@pytest.fixture(autouse=True, scope="session")
def _migrations_are_read_once() -> None:
    migrations.read_once()


@pytest.fixture(autouse=True, scope="session")
def _the_disk_is_not_waited_for() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        disk.wait_for_nothing(patch)
        disk.write_tables_once(patch)
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_stacks_for_missing_devices() -> Iterator[None]:
    """Let torch keep no stacks when it is seeded: it formats one for each of three missing accelerators."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        for device in (torch.cuda, torch.xpu, torch.mtia):
            patch.setattr(device, "traceback", SimpleNamespace(format_stack=list), raising=False)
        yield


@pytest.fixture(autouse=True, scope="module")
def _small_garbage_collections() -> None:
    """Exclude everything that exists so far from garbage collection: each run would visit a million objects.

    Trainers collect garbage several times a trial. Libraries that earlier modules have imported, such as Ray and TRL,
    would make the tests of later ones take up to 100 times as long.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    """Small models train faster on one thread, and many times faster beside another process."""
    import torch

    torch.set_num_threads(1)
