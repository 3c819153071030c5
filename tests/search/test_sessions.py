"""Which processes are at work in a study's folder, and which have died."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpsearch.search import sessions
from hpsearch.search.sessions import SESSIONS_FOLDER, Session
from tests.support.searching import ROOT

WAITS = """
import sys
from pathlib import Path
from hpsearch.search.sessions import Session
session = Session(Path(sys.argv[1]))
session.begin()
print(session.name, flush=True)
sys.stdin.read()
session.end()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that is at work in the folder, and the name of its session."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    name = process.stdout.readline().strip()
    yield process, name
    process.kill()
    process.communicate()


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


def rewrite(folder: Path, name: str, **changes: Any) -> None:
    path = folder / SESSIONS_FOLDER / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


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


def test_another_process_is_alive_until_it_signs_out(
    session: Session, other: tuple[subprocess.Popen[str], str]
) -> None:
    process, name = other
    assert session.is_alive(name)
    process.communicate("")
    assert process.returncode == 0
    assert not session.is_alive(name)


def test_a_killed_process_is_known_to_be_dead_at_once_and_is_cleared_away(
    tmp_path: Path, session: Session, other: tuple[subprocess.Popen[str], str]
) -> None:
    process, name = other
    process.send_signal(signal.SIGKILL)
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.005)
    assert not session.is_alive(name)  # not even its parent has taken note
    process.wait()
    assert not session.is_alive(name)
    assert name in signed_in(tmp_path)
    third = Session(tmp_path)
    third.begin()
    assert signed_in(tmp_path) == {session.name, third.name}
    third.end()


def test_a_stopped_process_is_alive(session: Session, other: tuple[subprocess.Popen[str], str]) -> None:
    process, name = other
    process.send_signal(signal.SIGSTOP)
    try:
        assert session.is_alive(name)
    finally:
        process.send_signal(signal.SIGCONT)


def test_a_number_that_went_to_another_process_is_not_taken_for_the_old_one(
    tmp_path: Path, session: Session, other: tuple[subprocess.Popen[str], str]
) -> None:
    _, name = other
    rewrite(tmp_path, name, started="another boot 1")
    assert not session.is_alive(name)


def test_on_another_machine_the_heartbeat_tells(
    tmp_path: Path, session: Session, other: tuple[subprocess.Popen[str], str]
) -> None:
    _, name = other
    rewrite(tmp_path, name, host="elsewhere", pid=1)
    assert session.is_alive(name)
    silent = time.time() - sessions.SILENCE_SECONDS
    os.utime(tmp_path / SESSIONS_FOLDER / name, (silent + 5, silent + 5))
    assert session.is_alive(name)
    os.utime(tmp_path / SESSIONS_FOLDER / name, (silent - 5, silent - 5))
    assert not session.is_alive(name)


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
    (tmp_path / "study.json").write_text(json.dumps({"host": "x", "pid": os.getpid(), "created": 1.0}))
    assert not session.is_alive(name)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"pid": 1}', "null", "5"])
def test_a_damaged_file_is_nobody_s(tmp_path: Path, session: Session, content: str) -> None:
    (tmp_path / SESSIONS_FOLDER / "damaged").write_text(content)
    assert not session.is_alive("damaged")
    other = Session(tmp_path)
    other.begin()
    assert signed_in(tmp_path) == {session.name, other.name}
    other.end()


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
        path.write_text(json.dumps({"host": "elsewhere", "pid": 1, "started": "x"}))
    assert session.end() is False
    assert signed_in(tmp_path) == {f"{name}-elsewhere-{place}" for place, name in enumerate(names)}
    assert not session.is_alive(session.name)


def test_who_was_taken_for_dead_signs_in_again_and_takes_nobody_for_dead(tmp_path: Path, session: Session) -> None:
    there = tmp_path / SESSIONS_FOLDER / "elsewhere-1"
    there.write_text(json.dumps({"host": "elsewhere", "pid": 1, "started": "x"}))
    (tmp_path / SESSIONS_FOLDER / session.name).unlink()
    assert session.is_alive("elsewhere-1")
    assert signed_in(tmp_path) == {session.name, "elsewhere-1"}
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
