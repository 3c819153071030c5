"""Where workers on Ray keep the checkpoints of a run: in the study's folder, or at a place that all nodes reach."""

from __future__ import annotations

import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")


import tests.support.shelf  # registers shelf://  # noqa: F401
from hpsearch import StorageError, StudyError, TrialRecord, TrialState
from hpsearch.executors.ray_executor.remote_folders import RemoteFolders, check_place, remote_name
from hpsearch.executors.ray_executor.run_folders import RunFolders, SharedFolder
from hpsearch.search.store.live_sessions import Session
from hpsearch.search.store.study_folder import write_record

pytestmark = pytest.mark.ray

RUN = "run-0"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for temporary files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


Make = Callable[[], RunFolders]


@pytest.fixture(params=["shared", "path", "file://", "shelf://"])
def worker(request: pytest.FixtureRequest, tmp_path: Path, scratch: Path) -> Iterator[Make]:
    """Return what makes the folders as a further worker of one search sees them."""
    study = tmp_path / "study"
    study.mkdir()
    session = Session(study)
    session.begin()
    if request.param == "shared":
        folders: RunFolders = SharedFolder(study, session.name, f".ray-{session.name}")
    else:
        url = f"{request.param}{tmp_path / 'place'}" if "://" in request.param else str(tmp_path / "place")
        folders = RemoteFolders(url, "study-1", session.name, f".ray-{session.name}")
    yield lambda: pickle.loads(pickle.dumps(folders))
    session.end()


def write_checkpoint(folders: RunFolders, name: str) -> None:
    checkpoint = folders.folder / RUN / name
    (checkpoint / "inside").mkdir(parents=True)
    (checkpoint / "inside" / "weights").write_text(name)


def checkpoints(folder: Path) -> dict[str, str]:
    """Return the checkpoints in a folder, and what is in them."""
    return {path.parts[-3]: path.read_text() for path in sorted(folder.glob("*-*/inside/weights"))}


def seen_by(folders: RunFolders) -> dict[str, str]:
    return checkpoints(folders.folder / RUN)


def test_a_worker_goes_on_with_the_checkpoints_that_another_one_has_kept(worker: Make) -> None:
    first = worker()
    first.begin(RUN)
    for name in ("checkpoint-4", "selected-4", "checkpoint-8"):
        write_checkpoint(first, name)
        first.keep(RUN)
    second = worker()
    second.begin(RUN)
    assert list(seen_by(second)) == ["checkpoint-4", "checkpoint-8", "selected-4"]
    assert all(name == text for name, text in seen_by(second).items())


def test_what_a_killed_worker_has_half_written_is_not_gone_on_with(worker: Make, tmp_path: Path) -> None:
    first = worker()
    first.begin(RUN)
    write_checkpoint(first, "checkpoint-4")
    first.keep(RUN)
    if isinstance(first, RemoteFolders):
        half = tmp_path / "place" / "study-1" / RUN / "checkpoint-8" / "inside"
    else:
        half = first.folder / RUN / ".partial-1-checkpoint-8" / "inside"
    half.mkdir(parents=True)
    (half / "weights").write_text("chec")
    (half / "more").write_text("of it")
    second = worker()
    second.begin(RUN)
    assert seen_by(second) == {"checkpoint-4": "checkpoint-4"}
    write_checkpoint(second, "checkpoint-8")
    second.keep(RUN)
    third = worker()
    third.begin(RUN)
    assert seen_by(third) == {name: name for name in ("checkpoint-4", "checkpoint-8")}


def test_checkpoints_that_a_run_has_deleted_are_gone_for_others(worker: Make) -> None:
    first = worker()
    first.begin(RUN)
    for name in ("checkpoint-4", "checkpoint-8"):
        write_checkpoint(first, name)
        first.keep(RUN)
    shutil.rmtree(first.folder / RUN / "checkpoint-4")
    first.keep(RUN)
    second = worker()
    second.begin(RUN)
    assert seen_by(second) == {"checkpoint-8": "checkpoint-8"}


def test_a_worker_that_comes_back_leaves_its_run_to_the_one_that_has_it_now(worker: Make) -> None:
    first, second = worker(), worker()
    first.begin(RUN)
    write_checkpoint(first, "checkpoint-4")
    first.keep(RUN)
    assert first.is_wanted(RUN)
    second.begin(RUN)
    assert not first.is_wanted(RUN)
    assert second.is_wanted(RUN)
    if isinstance(first, RemoteFolders):
        write_checkpoint(first, "checkpoint-8")
        with pytest.raises(StorageError, match="another worker has taken over run-0"):
            first.keep(RUN)
    assert second.is_wanted(RUN)
    third = worker()
    third.begin(RUN)
    assert seen_by(third) == {"checkpoint-4": "checkpoint-4"}


def test_a_worker_whose_search_has_signed_out_is_not_wanted(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.begin()
    folders = SharedFolder(tmp_path, session.name, ".ray-1")
    folders.begin(RUN)
    assert folders.is_wanted(RUN)
    session.end()
    assert not folders.is_wanted(RUN)


@pytest.mark.parametrize("wanted", [None, ["checkpoint-8"], []])
def test_what_an_ended_run_has_left_comes_into_the_study_and_is_gone_elsewhere(
    worker: Make, tmp_path: Path, scratch: Path, wanted: list[str] | None
) -> None:
    first = worker()
    first.begin(RUN)
    for name in ("checkpoint-4", "checkpoint-8"):
        write_checkpoint(first, name)
        first.keep(RUN)
    first.leave(RUN)
    assert list(scratch.iterdir()) == []
    there = worker()
    is_shared = isinstance(there, SharedFolder)
    expected = ["checkpoint-4", "checkpoint-8"] if wanted is None or is_shared else wanted
    for _ in range(2):  # a search that is killed before the record is written does so again
        there.fetch(RUN, tmp_path / "study", wanted)
        assert checkpoints(tmp_path / "study" / RUN) == {name: name for name in expected}
    there.forget(RUN)
    there.close()
    assert list((tmp_path / "study").glob(".ray-*")) == []
    assert is_shared or list((tmp_path / "place").iterdir()) == []


def test_what_a_search_without_the_place_has_left_is_sent_there_unless_there_is_something(
    worker: Make, tmp_path: Path
) -> None:
    left = tmp_path / "study" / RUN / "checkpoint-4" / "inside"
    left.mkdir(parents=True)
    (left / "weights").write_text("checkpoint-4")
    for name in ("checkpoint-4", "checkpoint-8"):
        worker().send(RUN, tmp_path / "study")
        there = worker()
        there.begin(RUN)
        assert name in seen_by(there)
        if name == "checkpoint-4":
            write_checkpoint(there, "checkpoint-8")
            there.keep(RUN)
    assert seen_by(there) == {name: name for name in ("checkpoint-4", "checkpoint-8")}


@pytest.mark.parametrize(("state", "stays"), [("running", True), ("interrupted", True), ("complete", False)])
def test_a_search_deletes_what_is_left_of_ended_trials_whose_search_was_killed(
    tmp_path: Path, scratch: Path, state: str, stays: bool
) -> None:
    write_record(tmp_path, TrialRecord(0, RUN, TrialState(state), {}))
    folders = RemoteFolders(str(tmp_path / "place"), "study-1", "session", ".ray-session")
    folders.begin(RUN)
    write_checkpoint(folders, "checkpoint-4")
    folders.keep(RUN)
    folders.tidy(tmp_path)
    assert (tmp_path / "place" / "study-1" / RUN).exists() == stays


def test_the_checkpoints_of_another_run_are_taken_once(worker: Make, tmp_path: Path) -> None:
    donor, taker = worker(), worker()
    (donor.folder if isinstance(donor, SharedFolder) else tmp_path).joinpath("run-1").mkdir()
    donor.begin(RUN)
    write_checkpoint(donor, "checkpoint-8")
    donor.keep(RUN)
    copy = donor.copy(RUN)
    taker.begin("run-1")
    own = taker.folder / "run-1" / "checkpoint-4"
    own.mkdir()
    taker.keep("run-1")
    taker.take(copy, "run-1")
    taker.keep("run-1")
    assert checkpoints(taker.folder / "run-1") == {"checkpoint-8": "checkpoint-8"}
    assert not own.exists()
    (taker.folder / "run-1" / "checkpoint-12" / "inside").mkdir(parents=True)
    (taker.folder / "run-1" / "checkpoint-12" / "inside" / "weights").write_text("of its own")
    taker.keep("run-1")
    again = worker()
    again.begin("run-1")
    again.take(copy, "run-1")
    again.keep("run-1")
    assert checkpoints(again.folder / "run-1") == {"checkpoint-12": "of its own", "checkpoint-8": "checkpoint-8"}
    again.fetch("run-1", tmp_path / "study", None)
    again.forget("run-1")
    assert list((tmp_path / "study").rglob("taken-from")) == []


def test_of_a_run_only_the_newest_copies_stay(worker: Make, tmp_path: Path) -> None:
    donor = worker()
    for name in ("run-1", RUN):
        donor.begin(name)
        (donor.folder / name / "checkpoint-4").mkdir()
        donor.keep(name)
        made = [donor.copy(name) for _ in range(6)]
    place = tmp_path / ("study" if isinstance(donor, SharedFolder) else "place/study-1")
    left = sorted(path.name for path in place.glob(".ray-*/copies/*"))
    assert [name for name in left if name.startswith(f"{RUN}@")] == sorted(made[2:])
    assert len(left) == 8


def interleaved(monkeypatch: pytest.MonkeyPatch, worker: RemoteFolders, name: str, act: Callable[[], None]) -> None:
    """Let something happen once, right after a worker has called a method."""
    method, has_acted = getattr(RemoteFolders, name), []

    def then_act(self: RemoteFolders, *given: Any) -> Any:
        given_back = method(self, *given)
        if self is worker and not has_acted:
            has_acted.append(True)
            act()
        return given_back

    monkeypatch.setattr(RemoteFolders, name, then_act)


@pytest.mark.parametrize("moment", ["_write", "_index"])
def test_a_worker_that_begins_while_the_one_before_replaces_its_checkpoint_has_the_new_one(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    place = str(tmp_path / "place")
    first, second, third = (RemoteFolders(place, "study-1", "session", ".ray-session") for _ in range(3))
    first.begin(RUN)
    write_checkpoint(first, "checkpoint-4")
    first.keep(RUN)
    shutil.rmtree(first.folder / RUN / "checkpoint-4")
    write_checkpoint(first, "checkpoint-8")

    def replace() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(first, "_check_own", lambda run: None)  # it looked a moment before
            first.keep(RUN)

    interleaved(monkeypatch, second, moment, replace)
    second.begin(RUN)
    assert seen_by(second) == {"checkpoint-8": "checkpoint-8"}
    assert second.is_wanted(RUN)
    assert not first.is_wanted(RUN)
    third.begin(RUN)
    assert seen_by(third) == {"checkpoint-8": "checkpoint-8"}


def test_of_two_workers_that_begin_at_once_the_one_that_is_there_longer_has_the_run(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, alive = (RemoteFolders(str(tmp_path / "place"), "study-1", "session", ".ray-session") for _ in range(2))
    interleaved(monkeypatch, alive, "_write", lambda: killed.begin(RUN))
    alive.begin(RUN)
    assert alive.is_wanted(RUN)
    assert not killed.is_wanted(RUN)


def test_a_checkpoint_that_somebody_has_deleted_at_the_place_is_an_error(tmp_path: Path, scratch: Path) -> None:
    first, second = (RemoteFolders(str(tmp_path / "place"), "study-1", "session", ".ray-session") for _ in range(2))
    first.begin(RUN)
    write_checkpoint(first, "checkpoint-4")
    first.keep(RUN)
    shutil.rmtree(tmp_path / "place" / "study-1" / RUN / "checkpoint-4")
    with pytest.raises(StorageError, match=r"The files of run-0 at storage_path='.*place' cannot be fetched"):
        second.begin(RUN)


@pytest.mark.parametrize("left", ["", "{", "{}x", None])
def test_what_a_killed_worker_has_half_written_of_a_run_is_known_from_its_copy(
    tmp_path: Path, scratch: Path, left: str | None
) -> None:
    def worker() -> RemoteFolders:
        return RemoteFolders(str(tmp_path / "place"), "study-1", "session", ".ray-session")

    first = worker()
    first.begin(RUN)
    write_checkpoint(first, "checkpoint-4")
    first.keep(RUN)
    indices = sorted((tmp_path / "place" / "study-1" / RUN).glob("*.json"))
    assert len(indices) == 4
    for index in indices:
        whole = index.read_text()
        if left is None:
            index.unlink()
        else:
            index.write_text(left)
        assert first.is_wanted(RUN)
        index.write_text(whole)
    second = worker()
    second.begin(RUN)
    assert seen_by(second) == {"checkpoint-4": "checkpoint-4"}


def test_a_relative_place_is_the_same_for_workers_in_other_folders(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = RemoteFolders("place", "study-1", "session", ".ray-session")
    monkeypatch.chdir(scratch)
    folders.begin(RUN)
    assert (tmp_path / "place" / "study-1" / RUN).is_dir()
    assert not (scratch / "place").exists()


def test_studies_of_one_name_have_places_of_their_own(tmp_path: Path) -> None:
    names = []
    for folder in (tmp_path / "a" / "study", tmp_path / "b" / "study"):
        folder.mkdir(parents=True)
        names += [remote_name(folder), remote_name(folder)]
    assert names[0] == names[1] != names[2] == names[3]
    assert all(name.startswith("study-") for name in names)


@pytest.mark.parametrize(
    ("url", "told", "seconds"),
    [
        ("FOLDER/file/place", "Not a directory", 5),
        ("file://FOLDER/file/place", "Not a directory", 5),
        ("shelf://FOLDER/file/place", "Not a directory", 5),
        ("/proc/place", "Permission denied|No such file", 5),
        ("nowhere://bucket/place", "Protocol not known: nowhere", 5),
        # Nobody listens there; pyarrow tries it a few times.
        ("s3://key:secret@bucket/place?endpoint_override=127.0.0.1:9&scheme=http", "bucket", 30),
    ],
)
def test_a_place_that_cannot_be_used_is_refused_within_seconds(
    tmp_path: Path, url: str, told: str, seconds: float
) -> None:
    (tmp_path / "file").touch()
    url = url.replace("FOLDER", str(tmp_path))
    start = time.monotonic()
    with pytest.raises(StudyError, match=f"cannot be written to and read from: .*({told})") as error:
        check_place(url)
    assert time.monotonic() - start < seconds
    assert str(error.value).startswith(f"storage_path={url.replace('secret', '***')!r} ")


@pytest.mark.parametrize(("kind", "is_folder"), [("", True), ("file://", True), ("shelf://", False)])
def test_a_place_that_can_be_used_is_left_as_it_was(tmp_path: Path, kind: str, is_folder: bool) -> None:
    (tmp_path / "place" / "study-1").mkdir(parents=True)
    assert check_place(f"{kind}{tmp_path / 'place'}") == (tmp_path / "place" if is_folder else None)
    assert [path.name for path in (tmp_path / "place").rglob("*")] == ["study-1"]


def test_what_killed_searches_have_left_of_tune_is_deleted(worker: Make, tmp_path: Path) -> None:
    folders = worker()
    place = tmp_path / ("study" if isinstance(folders, SharedFolder) else "place/study-1")
    for name in (".ray-killed", f".ray-{folders.session}", "run-3"):
        (place / name / "some").mkdir(parents=True)
    folders.tidy(tmp_path / "study")
    assert sorted(path.name for path in place.iterdir() if path.name != "sessions") == [
        f".ray-{folders.session}",
        "run-3",
    ]
