"""A lock keeps peers away while it is held, and no longer: not after its holder died, nor by what that has started.

So a held lock shows that a process is alive. The lock is that of filelock; these are the guarantees that we rely on.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout
from torch.utils.data import DataLoader

from hpsearch.executors.processes.payload import pack
from hpsearch.system import temporary_folders as scratch
from hpsearch.system.files import file_lock
from hpsearch.system.liveness import claimed, is_alive, show_alive
from hpsearch.system.sockets import keep_sockets_in
from hpsearch.system.temporary_folders import Scratch, remove_scratch_of_the_dead
from tests.support.forked import Forked

SECONDS = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def is_free(path: Path) -> bool:
    try:
        with file_lock(path).acquire(timeout=0):
            return True
    except Timeout:
        return False


def in_a_thread(act: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(act()))
    thread.start()
    thread.join(SECONDS)
    return found[0]


def fork_a_child() -> None:
    if os.fork() == 0:
        signal.pause()


STARTED: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "a child": fork_a_child,
    "a program": lambda: subprocess.Popen(["sleep", "600"]),
}


@pytest.mark.smoke
@pytest.mark.process
@pytest.mark.parametrize("started", list(STARTED))
def test_a_lock_is_held_until_its_process_dies_whatever_that_has_started(path: Path, started: str) -> None:
    def hold() -> FileLock:
        lock = show_alive(path)
        STARTED[started]()
        return lock

    holder = Forked(hold)
    try:
        assert not is_free(path)
        assert is_alive(path)
        holder.stop()
        assert is_alive(path)
        holder.kill()
        assert not is_alive(path)  # though it is a zombie
        assert is_free(path)
    finally:
        holder.end()


def test_a_lock_may_be_nested_and_keeps_other_threads_away(path: Path) -> None:
    lock = file_lock(path)

    def can_take() -> bool:
        try:
            with lock.acquire(timeout=0):
                return True
        except Timeout:
            return False

    with lock:
        with lock:
            assert lock.is_locked
            assert not in_a_thread(lambda: lock.is_locked)
            assert not in_a_thread(can_take)
        assert lock.is_locked
        assert not in_a_thread(can_take)
    assert not lock.is_locked
    assert in_a_thread(can_take)


def test_a_lock_whose_file_was_deleted_is_that_of_the_new_file(path: Path) -> None:
    first, second = file_lock(path), file_lock(path)
    with first:
        path.unlink()
        with second.acquire(timeout=0):
            first.release()
            with pytest.raises(Timeout):
                first.acquire(timeout=0)
    assert is_free(path)


def test_a_lock_that_is_waited_for_while_its_file_is_deleted_is_that_of_the_new_file(path: Path) -> None:
    first, second, waits = file_lock(path), file_lock(path), file_lock(path)
    looked, got = threading.Event(), threading.Event()

    def has_looked() -> bool:
        looked.set()
        return False

    def wait() -> None:
        with waits.acquire(cancel_check=has_looked):
            got.set()

    thread = threading.Thread(target=wait)
    with first:
        thread.start()
        assert looked.wait(SECONDS)
        path.unlink()
        with second.acquire(timeout=0):
            first.release()
            looked.clear()
            assert looked.wait(SECONDS)
            assert not got.is_set()
    assert got.wait(SECONDS)
    thread.join()


def test_ctrl_c_while_a_lock_is_waited_for_leaves_nothing_held(path: Path) -> None:
    lock, waits = file_lock(path), threading.Event()
    presses = threading.Thread(target=lambda: waits.wait(SECONDS) and os.kill(os.getpid(), signal.SIGINT))
    presses.start()
    with file_lock(path):
        with pytest.raises(KeyboardInterrupt):
            lock.acquire(timeout=SECONDS, cancel_check=lambda: bool(waits.set()))
        assert not lock.is_locked
    presses.join()
    assert is_free(path)
    with lock.acquire(timeout=0):
        assert lock.is_locked


def test_a_file_system_without_locks_is_an_error_and_no_file_is_left_that_looks_like_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any) -> None:
        raise OSError(errno.ENOSYS, "not implemented")

    monkeypatch.setattr(fcntl, "flock", fails)
    with pytest.raises(OSError, match="not implemented"):
        file_lock(path).acquire(timeout=0)


@pytest.mark.smoke
@pytest.mark.process
def test_a_forked_child_neither_holds_nor_releases_the_lock_of_its_parent_and_can_wait_for_a_new_one(
    path: Path,
) -> None:
    lock = file_lock(path)
    says, writes = os.pipe()
    with lock:
        child = os.fork()
        if child == 0:
            try:
                is_held = lock.is_locked
                lock.release()
                lock.release(force=True)
                os.write(writes, b"held" if is_held or is_free(path) else b"free")
                with pytest.raises(RuntimeError, match="inherited across fork"):
                    lock.acquire()
                with file_lock(path).acquire(timeout=SECONDS):
                    os._exit(0)
            finally:
                os._exit(1)
        assert os.read(says, 4) == b"free"
        assert lock.is_locked
        assert not in_a_thread(lambda: is_free(path))
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    assert os.waitpid(child, 0)[1] == 0
    os.close(says)
    os.close(writes)


def test_a_process_is_alive_while_it_holds_the_lock_on_its_file(path: Path) -> None:
    assert not is_alive(path)
    assert not path.exists()
    lock = show_alive(path)
    assert is_alive(path)
    in_a_thread(lock.release)
    assert not is_alive(path)
    assert path.exists()


def test_only_one_may_take_what_a_dead_process_has_left(path: Path) -> None:
    path.touch()
    with claimed(path) as first, claimed(path) as second:
        assert first
        assert not second
    with claimed(path) as third:
        assert third


def test_what_belongs_to_another_user_is_not_taken(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.touch()

    def refused(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(FileLock, "acquire", refused)
    with claimed(path) as is_dead:
        assert not is_dead


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o277])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_a_temporary_folder_is_empty_the_user_s_alone_and_gone_at_its_end(temporary: Path) -> None:
    folders = Scratch()
    for _ in range(2):
        before = set(temporary.iterdir())
        folders.begin()
        assert folders.folder.parent == temporary
        assert folders.folder not in before
        assert list(folders.folder.iterdir()) == []
        assert folders.folder.stat().st_mode & 0o777 == 0o700
        assert [each.stat().st_mode & 0o777 for each in temporary.glob("*.lock")] == [0o600]
        payload = pack({"training": "data"}, folders.folder / "data")
        assert payload.file.stat().st_mode & 0o777 == 0o600
        assert payload.load() == {"training": "data"}
    assert len(list(temporary.glob("*/data"))) == 1
    folders.end()
    folders.end()
    assert list(temporary.iterdir()) == []


@pytest.mark.smoke
@pytest.mark.process
def test_temporary_folders_of_dead_processes_are_deleted_and_those_of_living_ones_stay(temporary: Path) -> None:
    def begin() -> Scratch:
        folders = Scratch()
        folders.begin()
        (folders.folder / "data").touch()
        return folders

    alive, dead = Forked(begin), Forked(begin)
    try:
        assert len(list(temporary.glob("*/data"))) == 2
        dead.kill()
        alive.stop()
        kept = begin()
        assert len(list(temporary.glob("*/data"))) == 2
        assert (kept.folder / "data").exists()
        alive.kill()
        remove_scratch_of_the_dead()
        assert list(temporary.glob("*/data")) == [kept.folder / "data"]
        kept.end()
        assert list(temporary.iterdir()) == []
    finally:
        alive.end()
        dead.end()


def test_a_temporary_folder_that_is_written_to_while_it_is_deleted_is_deleted_the_next_time(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of a killed worker's DataLoader lives on for seconds, and may make a socket at any moment."""
    removes = scratch.shutil.rmtree

    def removes_and_another_process_writes(folder: Path, **options: Any) -> None:
        removes(folder, **options)
        folder.mkdir()

    folders = Scratch()
    folders.begin()
    with monkeypatch.context() as patch:
        patch.setattr(scratch.shutil, "rmtree", removes_and_another_process_writes)
        folders.end()
    remove_scratch_of_the_dead()
    assert list(temporary.iterdir()) == []


@pytest.mark.process
def test_sockets_of_a_killed_data_loader_are_in_the_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="s") as temporary:  # a short path: sockets have no long ones
        monkeypatch.setattr(scratch.tempfile, "tempdir", temporary)

        def load() -> Any:
            folders = Scratch()
            folders.begin()
            keep_sockets_in(folders.folder)
            batches = iter(DataLoader([1.0, 2.0], num_workers=1, multiprocessing_context="fork"))
            return folders, batches, next(batches)

        loading = Forked(load)
        loading.end()
        assert list(Path(temporary).glob("hpsearch-scratch-*/listener-*"))
        assert list(Path(temporary).glob("pymp-*")) == []
        remove_scratch_of_the_dead()
        assert list(Path(temporary).iterdir()) == []
