"""Starting the tests' script in one process, or in several by torchrun or accelerate, all of which begin warm."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from tests.support import warm
from tests.support.programs import ROOT, surroundings

Reports = dict[str, list[dict[str, Any]]]


def launch(folder: Path, cases: dict[str, Any], how: str, processes: int = 2, **environment: str) -> Reports:
    """Run the cases and return, for each, what every process reported."""
    settings = folder / "settings.json"
    settings.write_text(json.dumps(cases))
    start(how, "tests.support.distributed_training", [str(settings)], processes, **environment)
    return {name: [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}-*.json"))] for name in cases}


def start(how: str, module: str, arguments: list[str], processes: int = 2, **environment: str) -> None:
    """Run a module in one process (``plain``), or in several by ``torchrun`` or ``accelerate``; it must succeed."""
    command = [*_launcher(how, processes), "-m", module, *arguments]
    done = warm.run(*command, environment=surroundings(**environment), timeout=280)
    assert done.returncode == 0, done.stderr[-12000:]


def begin(how: str, module: str, arguments: list[str], processes: int = 2, **environment: str) -> warm.Program:
    """Begin what `start` runs; what it prints, errors included, is its `stdout`."""
    command = [*_launcher(how, processes), "-m", module, *arguments]
    return warm.start(*command, environment=surroundings(**environment))


def _launcher(how: str, processes: int) -> list[str]:
    """Return what is put in front of ``-m module``."""
    launchers: dict[str, list[str]] = {
        "plain": [],
        "torchrun": ["-m", "torch.distributed.run", *torchrun(processes), *run_warm()],
        "accelerate": [
            *("-m", "accelerate.commands.launch", "--num_processes", str(processes)),
            *("--main_process_port", _free_port()),
            *("--config_file", str(ROOT / "studies" / "accelerate" / "cpu_two_processes.yaml")),
            *run_warm("--no_python"),
        ],
    }
    return launchers[how]


def torchrun(processes: int) -> list[str]:
    """Return the options of ``torchrun`` for several processes of this machine."""
    return ["--nproc_per_node", str(processes), "--master_port", _free_port()]


def run_warm(option: str = "--no-python") -> list[str]:
    """Return the options of a launcher with which its processes begin warm; what ``python`` is given follows."""
    return [option, str(warm.programs_folder() / "python")]


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
