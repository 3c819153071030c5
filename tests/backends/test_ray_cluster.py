"""The Ray clusters that a search runs on, with real ones: joined and left, their room, their nodes."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import platform
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ray")

import ray
from ray import tune
from ray._common.usage.usage_constants import CLUSTER_METADATA_KEY
from ray._raylet import GcsClient

from hpsearch.backends.ray_backend import RayBackend
from hpsearch.errors import StudyError
from hpsearch.executors.ray_executor.cluster import Resources, joined, quiet_tune
from tests.support.ray_clusters import (
    StartedCluster,
    are_gone,
    ray_processes,
    started_cluster,
)

pytestmark = pytest.mark.ray

ODD = "node-1"
NAMESPACE = b"cluster"  # of what a cluster knows of itself


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that the odd node does not share."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that the odd node cannot write to."""
    return tmp_path_factory.mktemp("read_only")


@pytest.fixture(scope="module")
def cluster(hidden: Path, read_only: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedCluster]:
    """Return a cluster with an odd node: one with a GPU, another view of two folders, and another transformers."""
    packages = tmp_path_factory.mktemp("packages")
    metadata = packages / "transformers-0.0.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 0.0.1\n")
    with started_cluster(2) as started:
        started.add_node(
            cpus=1,
            gpus=1,
            resources={"my_resource": 2},
            environment={"PYTHONPATH": str(packages)},
            hidden=hidden,
            read_only=read_only,
        )
        yield started


@pytest.fixture(autouse=True)
def _nothing_stays_joined() -> Iterator[None]:
    yield
    assert not ray.is_initialized()


class Stopped(BaseException):
    """Ends a block, as Ctrl-C does."""


def refusal(address: Any) -> str:
    """Return why a cluster cannot be joined."""
    with pytest.raises(StudyError) as error, joined(address):
        pass
    return str(error.value)


def changed_by_ray() -> dict[str, Any]:
    """Return what Ray changes in a process that starts or joins a cluster."""
    return {
        "variables": {name: value for name, value in os.environ.items() if "RAY" in name or "TUNE" in name}
        | {"PYTHONBREAKPOINT": os.environ.get("PYTHONBREAKPOINT")},
        "handlers": [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)],
        "levels": [logging.getLogger(name).level for name in ("ray", "ray.tune")],
    }


def loopback(connection: Any) -> bool:
    return connection.laddr.ip.removeprefix("::ffff:") in ("127.0.0.1", "::1")


# A local instance -----------------------------------------------------------------------------------------------------


def test_a_local_instance_is_private_and_ends_with_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "somewhere:6379")
    before = changed_by_ray()
    with contextlib.suppress(Stopped), joined(None) as own:
        cpus = int(ray.cluster_resources()["CPU"])
        assert own.description == (
            f"a local Ray instance with {cpus} CPU{'s' if cpus > 1 else ''} "
            "(RAY_ADDRESS names a cluster: address='auto' joins it)"
        )
        assert own.slots(Resources(cpu=1)) == cpus
        own.check_nodes(tmp_path / "study")
        assert not (tmp_path / "study").exists()  # nothing had to be checked
        ray.get(ray.remote(lambda: None).remote())
        processes = [psutil.Process(), *ray_processes()]
        assert {"raylet", "gcs_server"} <= {process.name() for process in processes}
        listening = [
            each for process in processes for each in process.net_connections("tcp") if each.status == "LISTEN"
        ]
        assert len(listening) > 3
        assert [each.laddr for each in listening if not loopback(each)] == []
        raise Stopped
    assert are_gone(processes[1:])
    assert ray_processes() == []
    assert changed_by_ray() == before
    assert list(tmp_path.rglob("*")) == []


# Python drops an error that a signal raises inside a destructor, and remarks on it: then it has not been interrupted.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_local_instance_that_is_interrupted_while_it_starts_leaves_nothing() -> None:
    for _ in range(4):
        was_interrupted = _start_and_interrupt()
        assert are_gone(ray_processes())
        if was_interrupted:
            return
    pytest.fail("no start was interrupted")


def _start_and_interrupt() -> bool:
    """Start an instance, and interrupt that when its first server is there; tell whether it was in time."""

    has_started = False

    def interrupt(*_: Any) -> None:
        if not has_started:
            raise Stopped

    def wait_for_the_first_server() -> None:
        while not has_started and not any(process.name() == "gcs_server" for process in ray_processes()):
            time.sleep(0.05)
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    watching = threading.Thread(target=wait_for_the_first_server)
    watching.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # Ray forgets its servers, which Python remarks
            with contextlib.suppress(Stopped), joined(None):
                has_started = True
            gc.collect()
    finally:
        watching.join()
        signal.signal(signal.SIGUSR1, before)
    return not has_started


# A cluster that is there already --------------------------------------------------------------------------------------


@pytest.mark.feature(10)
@pytest.mark.parametrize("way", ["address", "auto", "RAY_ADDRESS"])
def test_a_cluster_is_joined_and_left_as_it_was(
    cluster: StartedCluster, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "RAY_ADDRESS":
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        monkeypatch.setenv("RAY_TMPDIR", "/nowhere")
    before = changed_by_ray()
    with joined(cluster.address if way == "address" else "auto") as found:
        assert found.description == f"the Ray cluster at {cluster.address} with 2 nodes, 3 CPUs, 1 GPU"
        assert ray.get(ray.remote(num_cpus=0)(lambda: 1).remote()) == 1
    assert changed_by_ray() == before
    with joined(cluster.address) as found:
        assert found.slots(Resources(cpu=1)) == 3


def test_a_cluster_that_the_program_has_joined_stays_joined(cluster: StartedCluster) -> None:
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        for address in (None, "auto", cluster.address):
            with joined(address) as found:
                assert found.address == cluster.address
            assert ray.is_initialized()
        why = refusal("other:6379")
        assert f"address='other:6379' is not the Ray cluster that this process has joined, at {cluster.address}" in why
        assert "or call ray.shutdown() first" in why
    finally:
        ray.shutdown()


def connect_by_client(cluster: StartedCluster) -> None:
    """Connect; Ray gives up a server for a client that does not start within seconds, and starts another when asked."""
    until = time.monotonic() + 300
    while True:
        try:
            ray.init(cluster.client_address, log_to_driver=False)
        except ConnectionAbortedError:
            if time.monotonic() > until:
                raise
        else:
            return


def test_a_process_that_is_connected_by_ray_client_is_told_to_submit_the_script(cluster: StartedCluster) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            connect_by_client(cluster)
        with pytest.raises(StudyError, match=r"^The connection of this process to Ray uses Ray Client.*ray job submit"):
            RayBackend()
    finally:
        ray.shutdown()


def test_a_handler_of_the_program_is_in_force_while_a_cluster_is_joined(cluster: StartedCluster) -> None:
    def handler(*_: Any) -> None: ...

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with joined(cluster.address):
            assert signal.getsignal(signal.SIGTERM) is handler
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_address_without_a_node_here_is_refused_with_the_clusters_that_have_one(cluster: StartedCluster) -> None:
    host, port = cluster.address.split(":")
    why = refusal(f"{host}:{int(port) + 1}")
    assert f"no node of a Ray cluster at {host}:{int(port) + 1} runs on this machine" in why
    assert cluster.address in why.partition("(Nodes of ")[2].partition(" run here.)")[0]


def test_a_cluster_that_does_not_answer_is_refused_within_seconds(cluster: StartedCluster) -> None:
    before = changed_by_ray()
    with cluster.nodes[0].suspended("gcs_server"):
        start = time.monotonic()
        why = refusal(cluster.address)
        assert time.monotonic() - start < 20
    assert f"The Ray cluster at address='{cluster.address}' cannot be joined: Failed to connect to Ray cluster" in why
    assert "Start a cluster here with `ray start --head`" in why
    assert "\n" not in why
    assert changed_by_ray() == before
    with joined(cluster.address):
        pass


def test_a_cluster_that_wants_a_token_says_so_within_seconds(
    cluster: StartedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    before, start = changed_by_ray(), time.monotonic()
    why = refusal(cluster.address)
    assert time.monotonic() - start < 10
    assert f"{cluster.address}' cannot be joined: it requires a different token than that of this process" in why
    assert "RAY_AUTH_TOKEN" in why
    assert changed_by_ray() == before


def test_a_cluster_of_another_ray_or_python_is_refused_with_both_versions(cluster: StartedCluster) -> None:
    mine = f"this process has Ray {ray.__version__} and Python {platform.python_version()}"
    for ray_version, python in (("2.0.0", platform.python_version()), (ray.__version__, "2.7.1")):
        with claimed_versions(cluster, ray_version=ray_version, python_version=python):
            assert f"it was started with Ray {ray_version} and Python {python}, {mine}" in refusal(cluster.address)
    with claimed_versions(cluster, python_version=f"3.{sys.version_info.minor}.99"), joined(cluster.address):
        pass


@contextlib.contextmanager
def claimed_versions(cluster: StartedCluster, **versions: str) -> Iterator[None]:
    """Let a cluster say that it was started with other versions."""
    store = GcsClient(address=cluster.address)
    true = store.internal_kv_get(CLUSTER_METADATA_KEY, NAMESPACE)
    store.internal_kv_put(CLUSTER_METADATA_KEY, json.dumps({**json.loads(true), **versions}).encode(), True, NAMESPACE)
    try:
        yield
    finally:
        store.internal_kv_put(CLUSTER_METADATA_KEY, true, True, NAMESPACE)


# Room for trials ------------------------------------------------------------------------------------------------------


def test_a_cluster_knows_what_it_has_room_for(cluster: StartedCluster) -> None:
    with joined(cluster.address) as found:
        assert found.default_resources() == Resources(cpu=1, gpu=1)
        assert found.slots(Resources(cpu=1)) == 3
        assert found.slots(Resources(cpu=2)) == 1
        assert found.slots(Resources(cpu=0.5, gpu=0.5)) == 2
        assert found.slots(Resources(cpu=0, others={"my_resource": 1})) == 2
        assert found.check_fits(Resources(cpu=2)) is None


@pytest.mark.parametrize(
    ("resources", "told"),
    [
        (Resources(cpu=4), "asks for 4 CPUs, but no node of the Ray cluster at .*: the largest has 2 CPUs"),
        (Resources(cpu=2, gpu=1), "the largest has 2 CPUs, 0 GPUs and another one 1 CPU, 1 GPU"),
        (Resources(cpu=1, others={"my_resources": 1}), r"has 2 CPUs, 0 my_resources\. Did you mean 'my_resource'\?"),
    ],
)
def test_a_request_that_no_node_can_fulfil_is_refused_unless_the_cluster_grows(
    cluster: StartedCluster, resources: Resources, told: str
) -> None:
    with joined(cluster.address) as found:
        with pytest.raises(StudyError, match=told):
            found.check_fits(resources)
        assert found.check_fits(resources, autoscaling=True) == (
            f"no node has {resources} yet: the first trials wait until the cluster has grown"
        )


# Nodes ----------------------------------------------------------------------------------------------------------------


def test_a_node_that_does_not_see_the_folder_of_the_study_is_named(cluster: StartedCluster, hidden: Path) -> None:
    with joined(cluster.address) as found:
        with pytest.raises(StudyError, match=rf"node [\d.]+ \({ODD}\) does not see it\. .*storage_path") as error:
            found.check_nodes(hidden)
        assert "node-0" not in str(error.value)
        assert list(hidden.iterdir()) == []
        with pytest.raises(StudyError, match=rf"\({ODD}\) does not see it"):
            found.check_nodes(hidden / "new")
        assert list(hidden.iterdir()) == []


def test_a_node_that_cannot_write_to_the_folder_of_the_study_is_named(cluster: StartedCluster, read_only: Path) -> None:
    with joined(cluster.address) as found:
        with pytest.raises(StudyError, match=rf"\({ODD}\) cannot use it: Read-only file system\. Put output_dir on"):
            found.check_nodes(read_only)
        assert list(read_only.iterdir()) == []


def test_a_node_with_another_package_is_named_with_both_versions(cluster: StartedCluster, tmp_path: Path) -> None:
    ours = version("transformers")
    with joined(cluster.address) as found, pytest.raises(StudyError) as error:
        found.check_nodes(tmp_path / "study")
    assert re.search(
        rf"node [\d.]+ \({ODD}\) has transformers 0\.0\.1, this process {ours}\. Install", str(error.value)
    )
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_does_not_answer_is_named(cluster: StartedCluster, tmp_path: Path) -> None:
    with joined(cluster.address) as found:
        with contextlib.suppress(StudyError):
            found.check_nodes(tmp_path)  # starts a worker on the other node, too
        with cluster.nodes[1].suspended():
            start = time.monotonic()
            with pytest.raises(StudyError, match=rf"Node [\d.]+ \({ODD}\) of the Ray cluster did not answer within 3"):
                found.check_nodes(tmp_path, seconds=3)
            assert time.monotonic() - start < 10
    assert list(tmp_path.iterdir()) == []


# Tune -----------------------------------------------------------------------------------------------------------------


def report_where(config: dict[str, Any]) -> None:
    tune.report({"folder": os.getcwd()})


def test_tune_runs_without_output_files_and_changes(
    cluster: StartedCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = changed_by_ray()
    with joined(cluster.address), quiet_tune(slots=2):
        capfd.readouterr()
        # Each trial reports something, but not what is asked for.
        analysis = tune.run(
            report_where, num_samples=2, metric="loss", mode="min", storage_path=str(tmp_path), name="quiet", verbose=0
        )
        assert [trial.last_result["folder"] for trial in analysis.trials] == [os.getcwd()] * 2
        assert capfd.readouterr() == ("", "")
    written = {path.name.partition("-")[0] for path in tmp_path.rglob("*") if path.is_file()}
    assert written <= {"experiment_state", "basic", ".validate_storage_marker"}
    assert changed_by_ray() == before


def test_the_environment_of_tune_is_put_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "1")
    before = changed_by_ray()
    with contextlib.suppress(Stopped), quiet_tune(slots=0):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        tune_logger = logging.getLogger("ray.tune.analysis.experiment_analysis")
        assert tune_logger.getEffectiveLevel() == logging.ERROR
        assert os.environ["RAY_AIR_NEW_OUTPUT"] == "0"
        assert os.environ["TUNE_MAX_PENDING_TRIALS_PG"] == "1"  # with none, no trial would ever begin
        raise Stopped
    assert changed_by_ray() == before


# The end: the odd node dies ------------------------------------------------------------------------------------------


def test_a_node_that_dies_is_not_counted_and_not_asked_any_more(cluster: StartedCluster, tmp_path: Path) -> None:
    with joined(cluster.address) as found:
        assert found.slots(Resources(cpu=1)) == 3
        cluster.nodes[1].kill()
        until = time.monotonic() + 30
        while found.slots(Resources(cpu=1)) != 2:
            assert time.monotonic() < until
            time.sleep(0.2)
        assert found.description == f"the Ray cluster at {cluster.address} with 1 node, 2 CPUs"
        found.check_nodes(tmp_path / "study")
        assert list((tmp_path / "study").iterdir()) == []
