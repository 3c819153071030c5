"""Starting the tests' script in one process, or in several by torchrun or accelerate."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
Reports = dict[str, list[dict[str, Any]]]


def launch(folder: Path, cases: dict[str, Any], how: str, processes: int = 2, **environment: str) -> Reports:
    """Run the cases and return, for each, what every process reported."""
    settings = folder / "settings.json"
    settings.write_text(json.dumps(cases))
    start(how, "tests.support.distributed_training", [str(settings)], processes, **environment)
    return {name: [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}-*.json"))] for name in cases}


def start(how: str, module: str, arguments: list[str], processes: int = 2, **environment: str) -> None:
    """Run a module in one process (``plain``), or in several by ``torchrun`` or ``accelerate``; it must succeed."""
    several = ["--nproc_per_node" if how == "torchrun" else "--num_processes", str(processes)]
    command = {
        "plain": [sys.executable],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", *several, "--master_port", _free_port()],
        "accelerate": [
            *(sys.executable, "-m", "accelerate.commands.launch", *several, "--main_process_port", _free_port()),
            *("--config_file", str(REPOSITORY / "studies" / "accelerate" / "cpu_two_processes.yaml")),
        ],
    }[how]
    done = subprocess.run(
        [*command, "-m", module, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-12000:]


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
