"""A script that is submitted to a cluster: the commands of docs/cluster.md do what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("ray")
pytest.importorskip("aiohttp_cors")
pytest.importorskip("sklearn")

from ray.job_submission import JobStatus, JobSubmissionClient

from hpsearch import open_study
from tests.support.ray_clusters import StartedCluster, started_cluster
from tests.support.run_page import blocks
from tests.support.warm_workers import warm_workers

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
SECONDS = 200
NAME = r"Job '(\w+)' submitted successfully"


@pytest.mark.feature(10)
@pytest.mark.timeout(2 * SECONDS)
def test_a_submitted_script_searches_on_two_workers_and_continues_after_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "here").mkdir()
    study = tmp_path / "shared" / "cluster"
    with warm_workers(), started_cluster(2, takes_jobs=True) as cluster:
        assert listening_at(cluster) == {"127.0.0.1"}
        jobs = JobSubmissionClient(cluster.jobs_address)

        first = begin("submit", cluster, tmp_path)
        wait_for_a_checkpoint(study, first)
        [job] = jobs.list_jobs()
        stop = begin("stop", cluster, tmp_path, str(job.submission_id))
        told, _ = stop.communicate(timeout=SECONDS)
        assert stop.returncode == 0, told
        told, _ = first.communicate(timeout=SECONDS)
        assert re.findall(NAME, told) == [job.submission_id]
        assert jobs.get_job_status(str(job.submission_id)) == JobStatus.STOPPED
        before = {record.number: record.params for record in open_study(study).records}
        assert before

        second = begin("submit", cluster, tmp_path)
        told, _ = second.communicate(timeout=SECONDS)
        assert second.returncode == 0, told
        assert jobs.get_job_status(re.findall(NAME, told)[0]) == JobStatus.SUCCEEDED
    assert "with 1 node, 2 CPUs: 2 parallel trials" in told
    summary = open_study(study)
    records = {record.number: record for record in summary.records}
    assert sorted(records) == list(range(8))
    assert {number: records[number].params for number in before} == before
    [best] = summary.best()
    assert re.search(rf"best trial {best.number}: accuracy {best.value:.4f}, weights in {study}/", told), told
    assert list((tmp_path / "here").iterdir()) == []


def begin(title: str, cluster: StartedCluster, folder: Path, job: str = "") -> subprocess.Popen[str]:
    """Begin a command of the page, with the addresses and the folder of this test."""
    [code] = [block.code for block in blocks(ROOT / "docs" / "cluster.md") if block.title == title]
    for shown, meant in (("http://HEAD:8265", cluster.jobs_address), ("/shared/quickstart", f"{folder}/shared")):
        code = code.replace(shown, meant)
    return subprocess.Popen(
        ["bash", "-c", re.sub(r"\bJOB\b", job, code)],
        cwd=folder / "here",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_a_checkpoint(study: Path, submission: subprocess.Popen[str]) -> None:
    until = time.monotonic() + SECONDS
    while not list(study.glob("run-*/checkpoint-*")):
        assert submission.poll() is None, submission.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.1)


def listening_at(cluster: StartedCluster) -> set[str]:
    """Return the addresses at which the server that takes jobs listens."""
    port = int(cluster.jobs_address.rpartition(":")[2])
    listening = [each for each in psutil.net_connections("tcp") if each.status == "LISTEN" and each.laddr.port == port]
    return {each.laddr.ip for each in listening}
