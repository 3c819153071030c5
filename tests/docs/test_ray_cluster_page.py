"""The code of docs/cluster.md does what the page says, as it stands there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ray")
pytest.importorskip("sklearn")

from hpsearch import BestRun
from tests.support.ray_clusters import are_gone, free_ports
from tests.support.searching import states
from tests.support.small_trainer import points, small_trainer

pytestmark = [pytest.mark.docs, pytest.mark.ray]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cluster.md"
PORT, TRIALS = "6399", 4
SECONDS = 240


@dataclass(frozen=True)
class Block:
    """A piece of code of the page: under which heading it stands, and behind how many lines."""

    heading: str
    code: str
    line: int


def blocks(language: str) -> list[Block]:
    """Return the code of the page in a language."""
    text = PAGE.read_text(encoding="utf-8")
    found = []
    for match in re.finditer(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        before = text[: match.start(1)]
        found.append(Block(re.findall(r"^##? (.*)", before, re.MULTILINE)[-1], match[1], before.count("\n")))
    return found


@dataclass
class Shell:
    """A shell, and all that it starts, also what leaves it: a variable of the environment tells.

    Attributes:
        folder: where it works.
        environment: of the shell.
    """

    folder: Path
    environment: dict[str, str]

    def run(self, code: str) -> str:
        """Run code in bash to its end, and return what it prints."""
        output = self.folder / "output"
        with output.open("w") as stream:
            process = subprocess.Popen(
                ["bash", "-c", code],
                cwd=self.folder,
                env=self.environment,
                stdout=stream,
                stderr=stream,
                start_new_session=True,  # with jobs of its own, it would take the terminal
            )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS)
        assert process.poll() == 0, output.read_text()
        return output.read_text()

    def processes(self) -> list[psutil.Process]:
        """Return the processes that are alive."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                if process.cmdline() and process.environ().get("SHELL_OF_THE_TEST") == str(self.folder):
                    found.append(process)
        return found


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell in this environment; what it has left is ended afterwards."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "SHELL_OF_THE_TEST": str(tmp_path),
    }
    shell = Shell(tmp_path, environment)
    yield shell
    for process in shell.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            folder = process.environ().get("RAY_TMPDIR")
            process.kill()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


def test_the_recipe_of_two_nodes_searches_with_both_and_leaves_no_process(shell: Shell) -> None:
    """It runs as it stands there, but for the port: another one, which is free."""
    [code] = [each.code for each in blocks("bash") if each.heading == "Two nodes"]
    assert code.count(PORT) == 3
    [port] = free_ports(1)
    told = shell.run(code.replace(PORT, str(port)))
    assert re.search(rf"the Ray cluster at \S+:{port} with 2 nodes, 2 CPUs: 2 parallel trials", told), told
    assert re.search(r"^best trial \d: accuracy 0\.\d+, weights in \S+$", told, re.MULTILINE), told
    trials = [json.loads(path.read_text()) for path in shell.folder.glob("quickstart/cluster/*/trial.json")]
    assert len(trials) == TRIALS
    assert {"complete"} <= {trial["state"] for trial in trials} <= {"complete", "pruned"}
    assert are_gone(shell.processes())


@pytest.mark.usefixtures("ray_instance")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="the trials of the first example have two CPUs")
def test_the_searches_of_the_page_run_as_they_stand_there_one_after_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All with the local instance of the tests and a small trainer; what a block imports or makes, later ones use."""
    names: dict[str, Any] = {"trainer": small_trainer(tmp_path, train_dataset=points(64, seed=0), num_train_epochs=4)}
    found: dict[str, BestRun] = {}
    for block in blocks("python"):
        exec(compile("\n" * block.line + block.code, PAGE, "exec"), names)
        found[block.heading] = names["best"]
        assert len(states(names["best"])) == int(re.findall(r"n_trials=(\d+)", block.code)[0])
        assert set(states(names["best"])) <= {"complete", "pruned", "stopped"}

    assert list(found) == [
        "On one machine",
        "Trials of several processes",
        "Schedulers",
        "Population-based training",
        "Spaces of Ray",
        "Searchers of Ray",
    ]
    assert "pruned" in states(found["Schedulers"])

    population = found["Population-based training"]
    assert f"{population.hyperparameters} {population.run_summary.ranked()[0].schedule}" in capsys.readouterr().out
    [replay] = re.findall(r"`(trainer\.replay\(.*?\))`", PAGE.read_text(encoding="utf-8"))
    again = eval(replay, names)
    assert again.is_equal, again.first_difference

    arguments = [record.arguments for record in found["Spaces of Ray"].run_summary.records]
    assert Counter(each["per_device_train_batch_size"] for each in arguments) == {4: 2, 8: 2}
    for each in arguments:
        assert each["weight_decay"] == pytest.approx(10 * each["learning_rate"])
