"""Which processes are at work in a study's folder, and which have died."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpsearch.search.store import live_sessions as sessions
from hpsearch.search.store.live_sessions import SESSIONS_FOLDER, Session
from hpsearch.system.liveness import is_alive
from tests.support.forked import Forked


def sign_in(folder: Path) -> Session:
    session = Session(folder)
    session.begin()
    return session


@pytest.fixture
def other(tmp_path: Path, session: Session) -> Iterator[tuple[Forked, str]]:
    """Another process that is at work in the folder, and the name of its session."""
    process = Forked(lambda: sign_in(tmp_path))
    (name,) = signed_in(tmp_path) - {session.name}
    yield process, name
    process.end()


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    found = Session(tmp_path)
    found.begin()
    yield found
    found.end()


def signed_in(folder: Path) -> set[str]:
    place = folder / SESSIONS_FOLDER
    return {path.name for path in place.iterdir()} if place.is_dir() else set()


def beats(name: str = "hpsearch heartbeat") -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def write_session(folder: Path, name: str, **process: Any) -> Path:
    """Write the file of a session that nobody is at."""
    path = folder / SESSIONS_FOLDER / name
    path.write_text(json.dumps(process))
    return path


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_session_is_signed_in_while_it_lasts_and_leaves_nothing(tmp_path: Path) -> None:
    session = Session(tmp_path)
    assert not (tmp_path / SESSIONS_FOLDER).exists()
    before = beats()
    session.begin()
    assert signed_in(tmp_path) == {session.name}
    assert session.is_alive(session.name)
    assert beats() == before + 1
    session.end()
    assert list(tmp_path.iterdir()) == []
    assert beats() == before


def test_two_sessions_of_one_process_have_their_own_names(tmp_path: Path, session: Session) -> None:
    second = Session(tmp_path)
    assert second.name != session.name
    second.begin()
    assert signed_in(tmp_path) == {session.name, second.name}
    assert session.is_alive(second.name)
    second.end()
    assert signed_in(tmp_path) == {session.name}
    assert not session.is_alive(second.name)


@pytest.mark.smoke
@pytest.mark.process
def test_a_killed_process_is_dead_at_once_a_hanging_one_is_alive(
    tmp_path: Path, session: Session, other: tuple[Forked, str]
) -> None:
    process, name = other
    assert session.is_alive(name)
    process.stop()
    assert session.is_alive(name)
    assert not session.is_alone()
    process.kill()
    assert not session.is_alive(name)  # not even its parent has taken note
    assert session.is_alone()
    assert name in signed_in(tmp_path)
    third = sign_in(tmp_path)
    assert signed_in(tmp_path) == {session.name, third.name}
    third.end()


def test_a_session_of_this_machine_whose_file_nobody_holds_is_dead_whatever_it_records(
    tmp_path: Path, session: Session
) -> None:
    write_session(tmp_path, "left", machine=sessions.machine(), pid=os.getpid())
    assert not session.is_alive("left")


@pytest.mark.process
def test_a_session_of_another_machine_is_alive_while_its_lock_is_seen(
    tmp_path: Path, session: Session, other: tuple[Forked, str]
) -> None:
    process, name = other
    age(write_session(tmp_path, name, machine="elsewhere", pid=1), sessions.SILENCE_SECONDS + 5)
    assert session.is_alive(name)
    process.kill()
    assert not session.is_alive(name)


ELSEWHERE = {
    "another machine": {"machine": "elsewhere", "pid": 1},
    "a container of this machine": {"machine": f"{sessions.machine()}1", "pid": 1},
    "a process of 0.8.0, which locked nothing": {
        "host": sessions.machine(),
        "pid": 1,
        "started": "1",
        "leaving": False,
    },
    "a file that is half-written": {},
}


@pytest.mark.parametrize("place", list(ELSEWHERE))
def test_where_no_lock_is_seen_the_heartbeat_decides(tmp_path: Path, session: Session, place: str) -> None:
    path = write_session(tmp_path, "other", **ELSEWHERE[place])
    assert session.is_alive("other")
    age(path, sessions.SILENCE_SECONDS - 5)
    assert session.is_alive("other")
    age(path, sessions.SILENCE_SECONDS + 5)
    assert not session.is_alive("other")


def test_the_heart_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "HEARTBEAT_SECONDS", 0.01)
    session = Session(tmp_path)
    session.begin()
    path = tmp_path / SESSIONS_FOLDER / session.name
    os.utime(path, (1.0, 1.0))
    end = time.monotonic() + 10
    while path.stat().st_mtime == 1.0 and time.monotonic() < end:
        time.sleep(0.005)
    assert path.stat().st_mtime > 1.0
    path.unlink()  # the folder may be deleted while a search runs: the heart goes on, and nobody hears of it
    time.sleep(0.05)
    session.end()


def test_a_heart_beats_several_times_before_others_take_it_for_silent() -> None:
    assert 3 * sessions.HEARTBEAT_SECONDS <= sessions.SILENCE_SECONDS


@pytest.mark.parametrize("name", [None, "", "nobody", "../study.json", "a/b", ".", "..", "x\0y"])
def test_what_names_no_session_is_not_alive(tmp_path: Path, session: Session, name: str | None) -> None:
    (tmp_path / "study.json").write_text(json.dumps({"machine": "x", "pid": os.getpid()}))
    assert not session.is_alive(name)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"pid": 1}', "null", "5", "\xff"])
def test_a_damaged_file_is_deleted_once_nobody_touches_it(tmp_path: Path, session: Session, content: str) -> None:
    damaged = tmp_path / SESSIONS_FOLDER / "damaged"
    damaged.write_bytes(content.encode("latin-1"))
    assert session.is_alive("damaged")  # another machine may be about to write it
    assert not session.is_last()
    age(damaged, sessions.SILENCE_SECONDS + 5)
    assert not session.is_alive("damaged")
    sign_in(tmp_path).end()
    assert signed_in(tmp_path) == {session.name}


def test_nobody_sees_a_session_before_its_file_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def observed(path: Path, *args: Any, **kwargs: Any) -> int:
        seen.append((signed_in(tmp_path), is_alive(path)))  # a process that is killed now leaves this
        return write(path, *args, **kwargs)

    write = Path.write_text
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", observed)
        session = sign_in(tmp_path)
    assert seen == [(set(), True)]
    assert signed_in(tmp_path) == {session.name}
    assert is_alive(tmp_path / SESSIONS_FOLDER / session.name)
    session.end()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_leaves_no_session_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space"):
            sign_in(tmp_path)
    assert signed_in(tmp_path) == set()
    sign_in(tmp_path).end()


def test_a_name_is_that_of_a_file_on_any_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions.socket, "gethostname", lambda: "my host:8/ä")
    session = Session(tmp_path)
    assert set(session.name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-ä")
    session.begin()
    assert session.is_alive(session.name)
    assert Session(tmp_path).is_alive(session.name)
    session.end()


@pytest.mark.parametrize("names", [("0", "0"), ("z", "z"), ("0", "z")])
def test_who_signs_out_leaves_the_sessions_of_other_machines(tmp_path: Path, names: tuple[str, str]) -> None:
    session = Session(tmp_path)
    session.begin()
    for place, name in enumerate(names):
        path = tmp_path / SESSIONS_FOLDER / f"{name}-elsewhere-{place}"
        path.write_text(json.dumps({"machine": "elsewhere", "pid": 1}))
    assert session.end() is False
    assert signed_in(tmp_path) == {f"{name}-elsewhere-{place}" for place, name in enumerate(names)}
    assert not session.is_alive(session.name)


def test_who_was_taken_for_dead_signs_in_again_and_takes_nobody_for_dead(tmp_path: Path, session: Session) -> None:
    there = tmp_path / SESSIONS_FOLDER / "elsewhere-1"
    there.write_text(json.dumps({"machine": "elsewhere", "pid": 1}))
    (tmp_path / SESSIONS_FOLDER / session.name).unlink()
    assert session.is_alive("elsewhere-1")
    assert signed_in(tmp_path) == {session.name, "elsewhere-1"}
    assert is_alive(tmp_path / SESSIONS_FOLDER / session.name)
    shutil.rmtree(tmp_path / SESSIONS_FOLDER)
    assert session.others_were_here()
    session._touch()
    assert signed_in(tmp_path) == {session.name}


def test_who_is_left_with_none_but_those_that_leave_is_the_last(tmp_path: Path) -> None:
    first, second = Session(tmp_path), Session(tmp_path)
    first.begin()
    second.begin()
    assert not first.is_last()
    first.leave()
    assert not first.is_last()
    assert second.is_last()
    assert not second.is_alone()
    shutil.rmtree(tmp_path / SESSIONS_FOLDER)  # another machine took them for dead
    for each in (first, second):
        each._touch()
    assert second.is_last()
    first.end()
    second.end()


def test_who_finds_all_gone_at_its_end_is_the_last(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.begin()
    shutil.rmtree(tmp_path / SESSIONS_FOLDER)
    assert session.is_alone()
    assert session.end() is True


def test_what_is_no_file_is_no_session(tmp_path: Path) -> None:
    place = tmp_path / SESSIONS_FOLDER
    (place / "a-1-folder").mkdir(parents=True)
    os.mkfifo(place / "a-1-pipe")
    (tmp_path / "elsewhere").write_text("precious")
    (place / "a-1-link").symlink_to(tmp_path / "elsewhere")
    session = sign_in(tmp_path)
    assert signed_in(tmp_path) == {session.name}
    assert session.is_alone()
    assert session.end()
    assert (tmp_path / "elsewhere").read_text() == "precious"
