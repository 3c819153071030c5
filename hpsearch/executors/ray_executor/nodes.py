"""Check that the nodes of a cluster see the study's folder and have the packages of this process."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...errors import StudyError
from ...system.files import PARTIAL_MARK

_PACKAGES = (
    "ray",
    "hpsearch",
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "numpy",
    "optuna",
    "peft",
    "safetensors",
    "tokenizers",
)
# A file that another machine has just written may take a moment to be seen.
_SECONDS_TO_APPEAR = 3.0


def check_nodes(nodes: Mapping[str, str], folder: Path | None, seconds: float) -> None:
    """Check that all nodes read and write the study's folder, and have the same versions of the packages.

    Args:
        nodes: the ids of the nodes, and what to call them.
        folder: of the study; it is made, if need be. None: there is none to share, and versions are compared only.
        seconds: to wait for all nodes together.

    Raises:
        StudyError: a node does not answer, does not share the folder, or has other versions.
    """
    if folder is None:
        look = _look_around()
        here = look(os.devnull, "", "driver", _PACKAGES, 0.0)["versions"]
        seen = _ask(look, nodes, Path(os.devnull), "", seconds)
        _check_versions(here, {nodes[node]: told["versions"] for node, told in seen.items()})
        return
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    token = f"{PARTIAL_MARK}ray-{uuid.uuid4().hex}"
    try:
        (folder / token).write_text(token, encoding="utf-8")
        look = _look_around()
        here = look(str(folder), token, "driver", _PACKAGES, _SECONDS_TO_APPEAR)["versions"]
        seen = _ask(look, nodes, folder, token, seconds)
        _check_folder({nodes[node]: _problem(folder, f"{token}-{node}", told) for node, told in seen.items()})
        _check_versions(here, {nodes[node]: told["versions"] for node, told in seen.items()})
    except BaseException:
        _remove(folder, token)
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    _remove(folder, token)


def _look_around() -> Callable[..., dict[str, Any]]:
    """Return the function that runs on a node; it is sent by value, so it uses only the standard library."""

    def look(folder: str, token: str, node: str, packages: tuple[str, ...], patience: float) -> dict[str, Any]:
        import importlib.metadata
        import importlib.util
        import pathlib
        import re
        import sys
        import time

        versions = {"python": ".".join(map(str, sys.version_info[:2]))}
        for package in packages:
            try:
                # Which build it is (1.0+cpu, 1.0+cu130) depends on the node.
                versions[package] = importlib.metadata.version(package).partition("+")[0]
            except importlib.metadata.PackageNotFoundError:
                continue
        source = importlib.util.find_spec("hpsearch")
        if source is not None and source.origin is not None:
            # What an editable installation says of itself may be old.
            text = pathlib.Path(source.origin).with_name("version.py").read_text(encoding="utf-8")
            versions["hpsearch"] = re.findall(r'__version__ = "(.+)"', text)[0]
        path, problem = pathlib.Path(folder, token), ""
        until = time.monotonic() + patience
        try:
            while not path.exists() and time.monotonic() < until:
                time.sleep(0.2)
            text = path.read_text(encoding="utf-8")
            path.with_name(f"{token}-{node}").write_text(text, encoding="utf-8")
        except FileNotFoundError:
            problem = "does not see it"
        except OSError as error:
            problem = f"cannot use it: {error.strerror}"
        return {"versions": versions, "problem": problem}

    return look


def _ask(
    look: Callable[..., dict[str, Any]], nodes: Mapping[str, str], folder: Path, token: str, seconds: float
) -> dict[str, dict[str, Any]]:
    """Return the answer of each node; nodes that have left the cluster meanwhile are omitted."""
    asked = {}
    remote = ray.remote(num_cpus=0, max_retries=0)(look)
    for node in nodes:
        there = remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        asked[there.remote(str(folder), token, node, _PACKAGES, _SECONDS_TO_APPEAR)] = node
    answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=seconds)
    for each in silent:
        ray.cancel(each, force=True)
    seen, failed = {}, {}
    for each in answered:
        try:
            seen[asked[each]] = ray.get(each)
        except ray.exceptions.RayError as error:
            failed[asked[each]] = str(error).strip().partition("\n")[0]
    alive = {each["NodeID"] for each in ray.nodes() if each["Alive"]}  # type: ignore[no-untyped-call]
    quiet = [nodes[asked[each]] for each in silent if asked[each] in alive]
    if quiet:
        raise StudyError(
            f"{_named(quiet)} of the Ray cluster did not answer within {seconds:g} seconds. Check `ray status`, and "
            "remove a node that hangs from the cluster."
        )
    reasons = [f"{nodes[node]}: {reason}" for node, reason in failed.items() if node in alive]
    if reasons:
        raise StudyError(f"Nodes of the Ray cluster cannot run a task. {'; '.join(reasons)}.")
    return seen


def _problem(folder: Path, answer: str, told: Mapping[str, object]) -> str:
    """Return the problem with the folder on a node; empty if the node's file is visible here."""
    if told["problem"]:
        return str(told["problem"])
    until = time.monotonic() + _SECONDS_TO_APPEAR
    while not (folder / answer).exists():
        if time.monotonic() > until:
            return "writes into another folder of that name"
        time.sleep(0.2)
    return ""


def _check_folder(problems: Mapping[str, str]) -> None:
    bad = [f"node {name} {problem}" for name, problem in problems.items() if problem]
    if bad:
        raise StudyError(
            f"The study's folder is not the same on all nodes of the Ray cluster: {'; '.join(bad)}. Put output_dir on "
            "a folder that all nodes share, such as one on NFS, or pass such a folder as storage_path."
        )


def _check_versions(here: Mapping[str, str], there: Mapping[str, Mapping[str, str]]) -> None:
    bad = [
        f"node {name} has {package} {versions.get(package, '- not installed')}, this process {version}"
        for name, versions in there.items()
        for package, version in here.items()
        if versions.get(package) != version
    ]
    if bad:
        raise StudyError(
            f"Not all nodes of the Ray cluster have the packages of this process: {'; '.join(bad)}. Install the same "
            "versions everywhere."
        )


def _remove(folder: Path, token: str) -> None:
    for path in folder.glob(f"{token}*"):
        path.unlink(missing_ok=True)


def _named(names: list[str]) -> str:
    return f"{'Node' if len(names) == 1 else 'Nodes'} {', '.join(names)}"
