"""The commands, or the Python code, that continue or repeat a study, or repeat one of its trials."""

from __future__ import annotations

import json
import logging
import shlex
from pathlib import Path
from typing import NamedTuple

from ..search.store.read_study import read_own_json
from ..search.store.study_folder import COMMAND_FILE
from ..system.json_types import JsonObject
from ..system.redaction import holds_secret

logger = logging.getLogger(__name__)
_OPTIONS = {
    "n_trials": "--n-trials",
    "budget": "--budget",
    "n_jobs": "--n-jobs",
    "trials_per_device": "--trials-per-device",
    "processes_per_trial": "--processes-per-trial",
    "placement": "--placement",
    "backend": "--backend",
    "storage": "--storage",
}


class HowToRepeat(NamedTuple):
    """Instructions for repeating a study.

    Attributes:
        trial: the command, or the Python code, that repeats a trial.
        study: the command that the study was last searched with; None if not by `hpsearch run`.
        folder: where to give that command.
        left_out: names of what is secret and not in it.
    """

    trial: str
    study: str | None = None
    folder: str = ""
    left_out: tuple[str, ...] = ()


def how_to_repeat(folder: Path, name: str, number: int) -> HowToRepeat:
    """Return how to repeat a study and one of its trials.

    Args:
        folder: of the study, where it is now.
        name: of the study.
        number: of the trial.
    """
    in_python = HowToRepeat(f"trainer.replay({json.dumps(name, ensure_ascii=False)}, number={number})")
    try:
        begun = dict(read_own_json(folder / COMMAND_FILE))
        return HowToRepeat(
            f"hpsearch replay {number} {shlex.quote(str(folder))}",
            _command(begun, folder.resolve()),
            str(begun["folder"]),
            (*begun.get("left_out", ()), *(name for name, each in _given(begun).items() if holds_secret(name, each))),
        )
    except FileNotFoundError:
        return in_python
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        logger.warning("%s is damaged (%r): the report cannot show how the study began.", COMMAND_FILE, error)
        return in_python


def _given(begun: JsonObject) -> JsonObject:
    """Return the options of the command, including secrets that 0.8.0 has written to disk."""
    return {**begun.get("arguments", {}), **begun.get("search", {})}


def _command(begun: JsonObject, place: Path) -> str:
    """Return the command that a study was last searched with, as it is for the place where the study is now."""
    known = {name: each for name, each in _given(begun).items() if not holds_secret(name, each)}
    search = {name: known[name] for name in begun.get("search", {}) if name in known}
    arguments = {name: known[name] for name in begun.get("arguments", {}) if name in known and name != "output_dir"}
    parts = ["hpsearch", "run", str(begun["file"]), "--output", str(place.parent), "--study-name", place.name]
    for key, option in _OPTIONS.items():
        if key in search:
            parts += [option, str(search[key])]
    if "devices" in search:
        parts += ["--devices", ",".join(map(str, search["devices"]))]
    if "timeout" in search:
        parts += ["--time", "none" if search["timeout"] is None else f"{search['timeout']:.0f}s"]
    for key, value in arguments.items():
        parts += ["--set", f"{key}={json.dumps(value)}"]
    return shlex.join(parts)
