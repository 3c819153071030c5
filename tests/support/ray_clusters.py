"""Ray clusters of several nodes on this machine, for as long as a test runs.

A cluster has a temporary folder and a token of its own, so that neither another one on this machine nor anybody on the
network can take part in it. While it runs, the environment of the tests is such that `ray.init` finds it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

SECONDS = 60

# Starts a node, says how that ended, and waits. When the other end of stdin is gone, because the tests have ended or
# were killed, it kills its process group, in which all processes of the node are but its workers, and those end then.
WATCH = """
"$@" >&2
echo $?
read -r _
kill -KILL 0
"""
# What only the node sees: an empty file system in the place of a folder; a folder that it cannot write to.
HIDDEN = 'mount -t tmpfs none "$1" && shift && exec "$@"'
READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'


class StartedNode:
    """A node that `ray start` has made, in a process group of its own.

    Attributes:
        name: how Ray calls it.
    """

    def __init__(self, name: str, watch: subprocess.Popen[str]) -> None:
        self.name = name
        self._watch = watch

    def kill(self) -> None:
        """Kill all processes of the node, as the loss of a machine does."""
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._watch.communicate(timeout=SECONDS)

    @contextlib.contextmanager
    def suspended(self, name: str = "") -> Iterator[None]:
        """Suspend the processes of the node, or those with a name; Ray takes it for dead after some 15 seconds."""
        processes = [each for each in self._processes() if each.pid != self._watch.pid and name in each.name()]
        for process in processes:
            process.suspend()
        try:
            yield
        finally:
            for process in processes:
                process.resume()

    def _processes(self) -> list[psutil.Process]:
        group = [process for process in psutil.process_iter() if _group(process) == self._watch.pid]
        # Workers have groups of their own.
        workers = [worker for process in group if process.name() == "raylet" for worker in process.children()]
        return [*group, *workers]


class StartedCluster:
    """A cluster whose nodes `ray start` has made; use it in a `with` block.

    Attributes:
        address: of the cluster.
        client_address: of its server for Ray Client, which a search refuses.
        jobs_address: of the server that takes jobs, if the cluster was started with one.
        nodes: those that were started, the head first.
    """

    def __init__(self, folder: Path) -> None:
        self.address = self.client_address = self.jobs_address = ""
        self.nodes: list[StartedNode] = []
        self._folder = folder

    def add_node(
        self,
        cpus: int = 1,
        gpus: int = 0,
        resources: Mapping[str, float] | None = None,
        environment: Mapping[str, str] | None = None,
        hidden: Path | None = None,
        read_only: Path | None = None,
        takes_jobs: bool = False,
    ) -> StartedNode:
        """Start a further node; skip the test if it shall see other folders and cannot be made to.

        Args:
            cpus: how many CPUs it says it has.
            gpus: how many GPUs it says it has.
            resources: further ones that it says it has.
            environment: variables that only its processes have.
            hidden: a folder that it does not share with the other nodes, but has an empty one of that name.
            read_only: a folder that it cannot write to.
            takes_jobs: start the server of `ray job submit` with the head, which is the first node.
        """
        name = f"node-{len(self.nodes)}"
        command = [str(Path(sys.executable).with_name("ray")), "start", f"--node-name={name}"]
        if self.nodes:
            command += [f"--address={self.address}"]
        else:
            port, client_port, jobs_port, agent_port = free_ports(4)
            self.client_address = f"ray://127.0.0.1:{client_port}"
            command += ["--head", f"--port={port}", f"--ray-client-server-port={client_port}"]
            command += [f"--include-dashboard={takes_jobs}"]
            if takes_jobs:
                self.jobs_address = f"http://127.0.0.1:{jobs_port}"
                command += [f"--dashboard-port={jobs_port}", f"--dashboard-agent-listen-port={agent_port}"]
        command += [f"--num-cpus={cpus}", f"--num-gpus={gpus}", f"--resources={json.dumps(dict(resources or {}))}"]
        command += ["--object-store-memory=100000000", "--min-worker-port=0", "--max-worker-port=0"]
        for script, path in ((HIDDEN, hidden), (READ_ONLY, read_only)):
            if path is not None:
                command = ["sh", "-c", script, "mount", str(path), *command]
        if hidden is not None or read_only is not None:
            if shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "true"]).returncode:
                pytest.skip("a node that sees other folders than the rest needs the right to make mount namespaces")
            command = ["unshare", "--mount", *command]
        log = self._folder / f"{name}.log"
        with log.open("w") as stream:
            watch = subprocess.Popen(
                ["sh", "-c", WATCH, "watch", *command],
                env={**os.environ, **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                start_new_session=True,
            )
        node = StartedNode(name, watch)
        assert watch.stdout is not None
        if watch.stdout.readline().strip() != "0":
            node.kill()
            raise RuntimeError(f"{' '.join(command)} fails:\n{log.read_text()}")
        if not self.nodes:
            self.address = (self._folder / "ray" / "ray_current_cluster").read_text()
        self.nodes.append(node)
        return node


@contextlib.contextmanager
def started_cluster(*cpus: int, takes_jobs: bool = False) -> Iterator[StartedCluster]:
    """Give a cluster of nodes with so many CPUs, each made by `ray start`."""
    with own_surroundings() as folder:
        cluster = StartedCluster(folder)
        try:
            for count in cpus:
                cluster.add_node(count, takes_jobs=takes_jobs)
            yield cluster
        finally:
            for node in cluster.nodes:
                node.kill()


@contextlib.contextmanager
def child_cluster(*cpus: int) -> Iterator[Any]:
    """Give a `ray.cluster_utils.Cluster` of nodes with so many CPUs, which are processes below this one.

    `cluster.add_node(num_cpus=...)` starts a further node, `cluster.remove_node(node, allow_graceful=False)` kills one.
    """
    with own_surroundings():
        from ray.cluster_utils import Cluster

        handler = signal.getsignal(signal.SIGTERM)
        cluster = Cluster()
        try:
            for count in cpus:
                cluster.add_node(num_cpus=count, include_dashboard=False)
            yield cluster
        finally:
            cluster.shutdown()
            signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def own_surroundings() -> Iterator[Path]:
    """Give this process, and those that it starts, a folder and a token for Ray that no other process has."""
    # The names of sockets in it must be short.
    folder = Path(tempfile.mkdtemp(prefix="r"))
    settings = {
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    before = {name: os.environ.pop(name, None) for name in (*settings, "RAY_ADDRESS")}
    os.environ.update(settings)
    _reread_token()
    try:
        yield folder
    finally:
        for name in settings:
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if value is not None})
        _reread_token()
        shutil.rmtree(folder, ignore_errors=True)


def ray_processes(folder: Path | None = None) -> list[psutil.Process]:
    """Return the servers of Ray and its workers that are alive below this process, or that use a folder."""
    below = {process.pid for process in psutil.Process().children(recursive=True)}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            line = " ".join(process.cmdline())
            is_ray = process.name() in ("raylet", "gcs_server") or "ray::" in line or "/ray/" in line
            is_ray = is_ray and "multiprocessing.forkserver" not in line  # of workers, which names the whole path
            is_meant = process.pid in below or (folder is not None and str(folder) in line)
            if is_ray and is_meant and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def are_gone(processes: list[psutil.Process], seconds: float = 10) -> bool:
    """Tell whether processes have ended, at the latest in so many seconds."""
    until = time.monotonic() + seconds
    while any(_is_alive(process) for process in processes):
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _group(process: psutil.Process) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(process.pid)
    return None


def _reread_token() -> None:
    """Let Ray read the token of this process again, if it has read one."""
    if "ray" in sys.modules:
        from hpsearch.executors.ray_executor.ray_internals import reread_environment

        reread_environment()


def free_ports(count: int) -> list[int]:
    """Return free ports, of those that Ray gives to none of its workers."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            listener = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                port = 6300 + secrets.randbelow(700)
                listener.bind(("", port))
                found.append(port)
        return found
