"""How to repeat a study, and one of its trials: the commands, or what to write in Python."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files import read_json
from ..search.folder import COMMAND_FILE

_OPTIONS = {
    "study_name": "--study-name",
    "n_trials": "--n-trials",
    "n_jobs": "--n-jobs",
    "backend": "--backend",
    "storage": "--storage",
}


def how_to_repeat(folder: Path, name: str, number: int) -> tuple[str | None, str]:
    """Return how the whole study was begun, None if not by `hpsearch run`; and how to repeat a trial.

    Args:
        folder: of the study.
        name: of the study.
        number: of the trial.
    """
    begun = read_json(folder / COMMAND_FILE) if folder.is_dir() else None
    if not isinstance(begun, Mapping) or "file" not in begun:
        return None, f"trainer.replay({json.dumps(name, ensure_ascii=False)}, number={number})"
    return _command(begun), f"hpsearch replay {number} {shlex.quote(str(folder))}"


def _command(begun: Mapping[str, Any]) -> str:
    """Return the command line that a study was begun with; what was secret is not known."""
    parts = ["hpsearch", "run", str(begun["file"])]
    search, arguments = dict(begun.get("search", {})), dict(begun.get("arguments", {}))
    for key, option in _OPTIONS.items():
        if key in search:
            parts += [option, str(search[key])]
    if "devices" in search:
        parts += ["--devices", ",".join(map(str, search["devices"]))]
    if "timeout" in search:
        parts += ["--time", f"{search['timeout']:g}s"]
    if "output_dir" in arguments:
        parts += ["--output", str(arguments.pop("output_dir"))]
    for key, value in arguments.items():
        parts += ["--set", f"{key}={json.dumps(value)}"]
    return shlex.join(parts)
