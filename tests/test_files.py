"""Files and folders are there whole or not at all, whatever kills the writer."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from hpsearch.system.files import (
    disk_problem,
    is_disk_of,
    read_json,
    remove_folder,
    remove_partial,
    whole_folder,
    write_json,
    write_text,
)

ROOT = Path(__file__).parents[1]


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def make_folder(folder: Path, text: str = "old") -> Path:
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "weights").write_text(text)
    (folder / f"{text}.txt").write_text(text)
    return folder


def run_and_be_killed(code: str, *arguments: Any) -> None:
    """Run code in another process which kills itself with SIGKILL."""
    header = "import os, signal, sys\nfrom pathlib import Path\nfrom hpsearch.system.files import *\n"
    header += "kill = lambda: os.kill(os.getpid(), signal.SIGKILL)\n"
    died = subprocess.run(
        [sys.executable, "-c", header + textwrap.dedent(code), *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr


def test_no_link_is_followed_where_a_file_is_written(tmp_path: Path) -> None:
    private, folder = tmp_path / "private", tmp_path / "folder"
    private.write_text("private")
    folder.mkdir()
    for name in ("x.json", f".partial-{os.getpid()}-y.json"):
        (folder / name).symlink_to(private)
    write_text(folder / "x.json", "new")
    with pytest.raises(OSError, match="symbolic link"):
        write_text(folder / "y.json", "new")
    assert private.read_text() == "private"
    assert (folder / "x.json").read_text() == "new"


def test_a_folder_appears_whole_and_with_its_parents(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "checkpoint-4"
    with whole_folder(target) as partial:
        assert partial != target
        assert partial.parent == target.parent
        make_folder(partial / "x", "new")
        assert not target.exists()
    assert content(target) == {"x/inner/weights": "new", "x/new.txt": "new"}
    assert [path.name for path in target.parent.iterdir()] == ["checkpoint-4"]


def test_a_folder_replaces_the_one_that_was_there_completely(tmp_path: Path) -> None:
    target = make_folder(tmp_path / "checkpoint-4")
    with whole_folder(target) as partial:
        (partial / "new.txt").write_text("new")
        assert content(target) == {"inner/weights": "old", "old.txt": "old"}
    assert content(target) == {"new.txt": "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-4"]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt(), SystemExit(1)])
def test_an_error_inside_leaves_the_old_folder_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    target = make_folder(tmp_path / "checkpoint-4")
    with pytest.raises(type(error)), whole_folder(target) as partial:  # noqa: PT012 - the block is what raises
        make_folder(partial / "x", "new")
        raise error
    assert content(target) == {"inner/weights": "old", "old.txt": "old"}
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-4"]
    with pytest.raises(type(error)), whole_folder(tmp_path / "other") as partial:
        raise error
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-4"]


@pytest.mark.smoke
@pytest.mark.fault
def test_a_process_killed_while_writing_a_folder_leaves_the_old_one(tmp_path: Path) -> None:
    target = make_folder(tmp_path / "checkpoint-4")
    code = """
        with whole_folder(sys.argv[1]) as partial:
            (partial / "weights").write_text("half")
            kill()
    """
    run_and_be_killed(code, target)
    assert content(target) == {"inner/weights": "old", "old.txt": "old"}
    assert len(list(tmp_path.iterdir())) == 2
    remove_partial(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-4"]
    assert content(target) == {"inner/weights": "old", "old.txt": "old"}


@pytest.mark.smoke
@pytest.mark.fault
@pytest.mark.parametrize("rename", [1, 2])
def test_a_process_killed_at_any_rename_leaves_the_old_folder_or_the_new_one(tmp_path: Path, rename: int) -> None:
    target = make_folder(tmp_path / "checkpoint-4")
    code = """
        seen = []
        def listen(event, arguments):
            if event == "os.rename":
                seen.append(arguments)
                if len(seen) == int(sys.argv[2]):
                    kill()
        sys.addaudithook(listen)
        with whole_folder(sys.argv[1]) as partial:
            (partial / "new.txt").write_text("new")
        kill()
    """
    run_and_be_killed(code, target, rename)
    remove_partial(tmp_path)
    assert target.is_dir(), "neither the old folder nor the new one is there"
    assert content(target) in ({"inner/weights": "old", "old.txt": "old"}, {"new.txt": "new"})


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    write_json(path, {"a": 1, "ä": [1.5, None, True, "→"]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": 1, "ä": [1.5, None, True, "→"]}
    assert read_json(path) == {"a": 1, "ä": [1.5, None, True, "→"]}
    write_json(path, {"b": 2})
    assert read_json(path) == {"b": 2}
    assert [each.name for each in tmp_path.iterdir()] == ["study.json"]


@pytest.mark.parametrize("value", [object(), {"a": {1, 2}}])
def test_a_value_that_cannot_be_written_leaves_the_old_file_and_nothing_else(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "trial.json"
    write_json(path, {"a": 1})
    with pytest.raises((TypeError, ValueError)):
        write_json(path, value)
    assert read_json(path) == {"a": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["trial.json"]


@pytest.mark.smoke
@pytest.mark.fault
def test_a_process_killed_before_the_rename_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "trial.json"
    write_json(path, {"a": 1})
    code = """
        sys.addaudithook(lambda event, arguments: kill() if event == "os.rename" else None)
        write_json(sys.argv[1], {"a": 2})
    """
    run_and_be_killed(code, path)
    assert read_json(path) == {"a": 1}
    remove_partial(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["trial.json"]


def test_a_missing_file_reads_as_none_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    assert read_json(tmp_path / "none.json") is None
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match="line 1"):
        read_json(tmp_path / "bad.json")


def test_a_folder_is_removed_with_all_it_holds_and_a_missing_one_is_no_error(tmp_path: Path) -> None:
    remove_folder(make_folder(tmp_path / "checkpoint-4"))
    assert list(tmp_path.iterdir()) == []
    remove_folder(tmp_path / "checkpoint-4")


@pytest.mark.smoke
@pytest.mark.fault
def test_a_process_killed_while_removing_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    target = make_folder(tmp_path / "checkpoint-4")
    code = """
        sys.addaudithook(lambda event, arguments: kill() if event == "os.remove" else None)
        remove_folder(sys.argv[1])
    """
    run_and_be_killed(code, target)
    assert not target.exists()
    remove_partial(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_only_leftovers_are_cleaned_up(tmp_path: Path) -> None:
    make_folder(tmp_path / "checkpoint-4")
    (tmp_path / ".hidden").write_text("mine")
    (tmp_path / ".partial-1-trial.json").write_text("{")
    make_folder(tmp_path / ".partial-1-checkpoint-8")
    make_folder(tmp_path / "inner" / ".partial-1-checkpoint-8")
    remove_partial(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "checkpoint-4", "inner"]
    assert (tmp_path / "inner" / ".partial-1-checkpoint-8").is_dir()


def test_text_is_written_as_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "größe → 7")
    assert (tmp_path / "a.txt").read_bytes() == "größe → 7".encode()


def test_what_somebody_else_has_linked_stays_when_the_link_goes(tmp_path: Path) -> None:
    theirs, link = tmp_path / "theirs", tmp_path / "run" / "checkpoint"
    theirs.mkdir()
    (theirs / "thesis").write_text("years of work")
    link.parent.mkdir()
    link.symlink_to(theirs)
    remove_folder(link)
    assert not link.is_symlink()
    assert (theirs / "thesis").read_text() == "years of work"
    link.symlink_to(theirs)
    with whole_folder(link):
        pass
    assert not link.is_symlink()
    assert (theirs / "thesis").exists()


def hidden_behind(error: BaseException) -> BaseException:
    """Return an error of a library that tells the system's text alone."""
    return RuntimeError(
        f"Error while serializing: I/O error: {os.strerror(errno.ENOSPC)} (os error 28), from {error!r}"
    )


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_an_error_of_a_full_or_read_only_disk_is_known_behind_those_of_libraries(code: int) -> None:
    direct = OSError(code, os.strerror(code), "/study/trial.json")
    wrapped = ValueError("cannot save")
    wrapped.__cause__ = direct
    for error in (direct, wrapped):
        assert "/study/trial.json" in (disk_problem(error) or "")
    assert os.strerror(errno.ENOSPC) in (disk_problem(hidden_behind(KeyError())) or "")


@pytest.mark.parametrize("error", [None, ValueError("full of errors"), FileNotFoundError(errno.ENOENT, "none", "x")])
def test_other_errors_are_not_those_of_the_disk(error: BaseException | None) -> None:
    assert disk_problem(error) is None


@pytest.mark.timeout(20)
def test_an_error_that_is_its_own_cause_ends_the_look_for_a_full_disk() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert disk_problem(first) is None


def test_a_leftover_that_was_to_replace_nothing_is_cleaned_up(tmp_path: Path) -> None:
    (tmp_path / ".partial-1-replaced-").write_text("")
    remove_partial(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_an_error_of_another_disk_is_not_one_of_the_disk_of_the_folder(tmp_path: Path, code: int) -> None:
    error = OSError(code, os.strerror(code), "/another/disk/cache.lock")
    assert disk_problem(error) is not None
    assert not is_disk_of(tmp_path, error)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_too_large_for_the_disk_is_an_error_of_its_disk(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as raised, whole_folder(tmp_path / "checkpoint"):
        raise hidden_behind(KeyError())
    assert is_disk_of(tmp_path, raised.value)
