"""A journal tells what stands in its file, whoever has written it, and however it was cut off."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from optuna.exceptions import StorageInternalError
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._storage import JournalOperation

from hpsearch.ledger.journal import JournalFile


def entry(number: int) -> dict[str, Any]:
    return {"op_code": JournalOperation.SET_TRIAL_PARAM, "number": number, "name": "größe\u2028\r"}


class Reader:
    """Reads a journal as Optuna's storage does: from the first line on that it has not read yet."""

    def __init__(self, path: Path) -> None:
        self.journal = JournalFile(path)
        self.seen: list[dict[str, Any]] = []

    def read(self) -> None:
        self.seen += self.journal.read_logs(len(self.seen))


@pytest.mark.parametrize("writers", list(product([0, 1], repeat=4)))
@pytest.mark.parametrize("reads", ["at the end", "after each", "after every other", "one of them after each"])
def test_all_that_several_processes_have_written_is_read_in_order(
    tmp_path: Path, writers: tuple[int, ...], reads: str
) -> None:
    path = tmp_path / "study.log"
    both = [Reader(path), Reader(path)]
    for number, writer in enumerate(writers):
        both[writer].journal.append_logs([entry(2 * number), entry(2 * number + 1)])
        if reads == "after each" or (reads == "after every other" and number % 2):
            both[0].read()
            both[1].read()
        if reads == "one of them after each":
            both[0].read()
    wanted = [entry(number) for number in range(2 * len(writers))]
    for reader in (*both, *both):  # nothing is read twice
        reader.read()
        assert reader.seen == wanted
    assert list(JournalFileBackend(str(path)).read_logs(0)) == wanted


def test_half_a_line_of_a_killed_process_is_dropped_and_what_comes_after_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    one = Reader(path)
    one.journal.append_logs([entry(0)])
    one.read()
    with path.open("ab") as stream:
        stream.write(b'{"op_code": 4, "numb')
    one.journal.append_logs([entry(1)])
    one.read()
    assert one.seen == [entry(0), entry(1)]
    assert len(path.read_bytes().splitlines()) == 2


def test_lines_that_did_not_get_on_the_disk_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    one, other = Reader(path), Reader(path)
    one.journal.append_logs([entry(0)])
    one.read()
    with no_more_than(path.stat().st_size), pytest.raises(StorageInternalError):
        one.journal.append_logs([entry(1)])
    other.journal.append_logs([entry(2)])  # as long as the one that was lost
    one.read()
    other.read()
    assert one.seen == other.seen == [entry(0), entry(2)]


@contextlib.contextmanager
def no_more_than(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
