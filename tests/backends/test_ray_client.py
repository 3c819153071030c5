"""A search from a process that reaches the cluster by Ray Client: it runs there, and tells here."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
pytest.importorskip("grpc")

import ray

from hpsearch import HpsearchError, SearchListener, StudyError, TooManyFailuresError
from tests.support.ray_clusters import HIDDEN, StartedCluster, started_cluster
from tests.support.ray_searching import RayDiary, RaySearch, assert_equal, searching
from tests.support.search_processes import RATE, Hold
from tests.support.small_trainer import CountsModels, small_trainer

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[StartedCluster]:
    with started_cluster(2) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def _nothing_stays_joined() -> Iterator[None]:
    yield
    assert not ray.is_initialized()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the study of a search of three trials in this process, undisturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    searching(folder, 3)(RayDiary(folder / "diary"))
    return folder / "study"


class Everything(SearchListener):
    """Remembers all that a search told its listener, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.trials: dict[int, Any] = {}

    def on_search_begin(self, study: Any, records: Sequence[Any], notes: Sequence[str]) -> None:
        self.events.append(("search begins", study.name, len(records)))

    def on_trial_begin(self, trial: Any) -> None:
        self.trials[trial.number] = trial
        self.events.append(("trial begins", trial.number, trial.params["learning_rate"]))

    def on_report(self, trial: Any, report: Any) -> None:
        assert self.trials[trial.number] is trial
        self.events.append(("report", trial.number, report.step, report.value))

    def on_trial_end(self, record: Any) -> None:
        self.events.append(("trial ends", record.number, record.state.value, record.value))

    def on_search_end(self, study: Any, records: Sequence[Any]) -> None:
        self.events.append(("search ends", study.name, len(records)))


def test_a_search_from_afar_returns_the_best_run_and_tells_everything_in_order(
    cluster: StartedCluster, tmp_path: Path, undisturbed: Path
) -> None:
    diary, heard = RayDiary(tmp_path / "diary", workers=2), Everything()
    options = {"backend": "ray", "address": cluster.client_address, "resources_per_trial": {"cpu": 1}}
    best = searching(tmp_path, 3, progress=heard, **options)(diary)
    assert_equal(tmp_path / "study", undisturbed)
    assert best.load_model() is not None
    assert best.run_summary.engine_study.best_value == best.objective
    assert heard.events[0] == ("search begins", "study", 0)
    assert heard.events[-1] == ("search ends", "study", 3)
    for record in best.run_summary.records:
        assert [
            event
            for event in heard.events
            if event[0] not in ("search begins", "search ends") and event[1] == record.number
        ] == [
            ("trial begins", record.number, record.params["learning_rate"]),
            *(("report", record.number, report.step, report.value) for report in record.reports),
            ("trial ends", record.number, "complete", record.value),
        ]

    with pytest.raises(StudyError, match="another scope: 'last', now 'all'"):
        searching(tmp_path, 3, scope="all", **options)(diary)


def test_too_many_failures_are_raised_here_with_the_best_run(cluster: StartedCluster, tmp_path: Path) -> None:
    def fail(trial: Any) -> None:
        raise RuntimeError("out of luck")

    trainer = small_trainer(tmp_path, model_init=CountsModels(fail))
    with pytest.raises(TooManyFailuresError, match="RuntimeError: out of luck") as error:
        trainer.hyperparameter_search(
            RATE,
            "loss",
            3,
            backend="ray",
            address=cluster.client_address,
            max_concurrent_trials=1,
            max_failures=1,
            progress=False,
        )
    assert error.value.best_run.run_id is None
    assert [record.state.value for record in error.value.best_run.run_summary.records] == ["failed"]


def test_ctrl_c_here_interrupts_the_search_there_and_the_same_call_goes_on(
    cluster: StartedCluster, tmp_path: Path, undisturbed: Path
) -> None:
    options = {"backend": "ray", "address": cluster.client_address, "resources_per_trial": {"cpu": 1}}
    interrupted = RayDiary(tmp_path / "interrupted", workers=2, hold=Hold(1, 6))
    with RaySearch(interrupted, searching(tmp_path, 3, **options)) as process:
        interrupted.held()
        process.wait_until(lambda: 0 in process.ended())
        process.send(signal.SIGINT)
        interrupted.let_go()
        told = process.result()
    assert told["error"] == "SearchInterrupted"
    assert "interrupted after" in told["message"]
    assert not (tmp_path / "study" / "sessions").exists()
    going_on = RayDiary(tmp_path / "going on")
    searching(tmp_path, 3, **options)(going_on)
    ((first, last),) = going_on.segments(1)
    assert (first % 4, last) == (1, 16)
    assert first > 4
    assert going_on.segments(0) == []
    assert_equal(tmp_path / "study", undisturbed)


@contextmanager
def nobody(cluster: StartedCluster) -> Iterator[str]:
    """Give an address where nobody listens."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        yield f"ray://localhost:{listener.getsockname()[1]}"


@contextmanager
def silence(cluster: StartedCluster) -> Iterator[str]:
    """Give an address where somebody listens, and never answers."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        yield f"ray://localhost:{listener.getsockname()[1]}"


@contextmanager
def no_name(cluster: StartedCluster) -> Iterator[str]:
    """Give an address whose name is none."""
    yield "ray://no-such-host.invalid"


@contextmanager
def other_port(cluster: StartedCluster) -> Iterator[str]:
    """Give another port of the cluster."""
    yield f"ray://{cluster.address}"


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (nobody, "nobody listens there"),
        (silence, "no answer"),
        (no_name, "nobody listens there"),
        (other_port, "something else listens there"),
    ],
)
def test_an_address_where_no_cluster_is_fails_within_seconds(
    cluster: StartedCluster, tmp_path: Path, place: Any, told: str
) -> None:
    start = time.monotonic()
    with place(cluster) as address, pytest.raises(StudyError) as error:
        searching(tmp_path, 1, backend="ray", address=address)(RayDiary(tmp_path / "diary"))
    assert time.monotonic() - start < 10
    assert str(error.value).startswith(f"No Ray cluster answers at address={address!r}: {told}. ")
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_that_wants_another_token_says_so_within_seconds(
    cluster: StartedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    start = time.monotonic()
    with pytest.raises(StudyError, match=r"another token than this process has, or none\. Set .*RAY_AUTH_TOKEN"):
        searching(tmp_path, 1, backend="ray", address=cluster.client_address)(RayDiary(tmp_path / "diary"))
    assert time.monotonic() - start < 10


def test_a_folder_that_the_head_node_does_not_see_is_refused(cluster: StartedCluster, tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "true"]).returncode:
        pytest.skip("a process that sees other folders than the rest needs the right to make mount namespaces")
    own = tmp_path / "own"
    own.mkdir()
    command = ("unshare", "--mount", "sh", "-c", HIDDEN, "mount", str(own))
    search = searching(own / "output", 1, backend="ray", address=cluster.client_address)
    with RaySearch(RayDiary(tmp_path / "diary"), search, command=command) as process:
        told = process.result()
    assert told["error"] == "StudyError"
    assert f"The head node of the cluster does not see the folder '{own}/output' of this machine" in told["message"]
    assert list(own.iterdir()) == []


def test_a_trainer_that_cannot_be_sent_is_refused_before_the_search(cluster: StartedCluster, tmp_path: Path) -> None:
    lock = threading.Lock()
    trainer = small_trainer(tmp_path, model_init=CountsModels(lambda trial: lock.release()))
    with pytest.raises(StudyError, match=r"cannot be pickled: TypeError: .*lock"):
        trainer.hyperparameter_search(RATE, "loss", 1, backend="ray", address=cluster.client_address, progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_a_cluster_that_is_lost_is_an_error_and_the_study_goes_on(tmp_path: Path, undisturbed: Path) -> None:
    lost = RayDiary(tmp_path / "lost", workers=1, hold=Hold(1, 6))
    with started_cluster(1) as nodes:
        options = {"backend": "ray", "address": nodes.client_address, "resources_per_trial": {"cpu": 1}}
        with RaySearch(lost, searching(tmp_path, 3, **options)) as process:
            lost.held()
            nodes.nodes[0].kill()
            start = time.monotonic()
            told = process.result()
            assert time.monotonic() - start < 60
    assert told["error"] == HpsearchError.__name__
    assert "is lost" in told["message"]
    assert "run the same command again to continue" in told["message"]
    going_on = RayDiary(tmp_path / "going on")
    searching(tmp_path, 3)(going_on)
    assert going_on.segments(1) == [(5, 16)]
    assert_equal(tmp_path / "study", undisturbed)
