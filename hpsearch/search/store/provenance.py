"""The arguments, versions and data of a study's sessions, and the differences between sessions."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import platform
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from ...system.json_types import JsonObject
from ...system.machine import cores
from ...system.redaction import hidden
from .code_origin import name_of
from .fingerprints import SCHEME, fingerprints, is_comparable

if TYPE_CHECKING:
    from transformers import TrainingArguments

_RECORDED_PACKAGES = ("hpsearch", "torch", "transformers", "accelerate", "datasets", "numpy", "optuna")
_SAMPLES = 16
HP_SPACE, CALLBACKS = "hp_space", "callbacks"
PROCESSES = "processes_per_trial"
# In a session: the names of the model and of the datasets, which are compared with nothing.
NAMES, MODEL, MODEL_INIT = "names", "model", "model_init"
# Data that was read from files has the name of their format.
_FILE_FORMATS = {"arrow", "csv", "generator", "json", "pandas", "parquet", "sql", "text", "webdataset"}
# Where a run writes, and what it shows: these change no numbers.
WITHOUT_EFFECT = {"output_dir", "run_name", "logging_dir", "tensorboard_logging_dir", "disable_tqdm", "report_to"}


def describe_environment(
    args: TrainingArguments,
    data: Mapping[str, object],
    functions: Mapping[str, object] | None = None,
    processes: int = 1,
    names: Mapping[str, str] | None = None,
) -> JsonObject:
    """Return arguments, package versions, machine, names and fingerprints of data and functions, for `study.json`.

    Args:
        args: the training arguments.
        data: names to datasets, such as ``{"train_dataset": ...}``, or to their fingerprints.
        functions: names to functions, such as ``{"model_init": ...}``.
        processes: the number of processes that train each trial.
        names: of the model and the datasets, where `data` and `functions` do not show them.
    """
    return {
        "machine": {"name": platform.node(), "system": platform.platform(), "cores": cores()},
        "versions": dict(_versions()),
        "arguments": without_secrets(json.loads(json.dumps(args.to_dict(), default=str))),
        "data": {name: fingerprint(dataset) for name, dataset in data.items() if dataset is not None},
        "functions": fingerprints(functions or {}),
        "fingerprint_scheme": SCHEME,
        PROCESSES: processes,
        NAMES: {**names_of(data, (functions or {}).get(MODEL_INIT)), **(names or {})},
    }


@functools.cache  # to read them takes longer than everything else that is described
def _versions() -> Mapping[str, str]:
    versions = {"python": platform.python_version()}
    for package in _RECORDED_PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def names_of(data: Mapping[str, object], model_init: Any = None) -> dict[str, str]:
    """Return the names of the model and of the datasets, as far as they have any; they only inform readers."""
    names = {name: _name_of_dataset(each) for name, each in data.items()}
    if model_init is not None:
        is_named = hasattr(model_init, "__qualname__") and "<" not in model_init.__qualname__
        made = f"made by {name_of(model_init)}" if is_named else None
        names[MODEL] = getattr(model_init, "model_name", made)
    return {name: each for name, each in names.items() if isinstance(each, str)}


def _name_of_dataset(dataset: object) -> str | None:
    """Return the name of a dataset of the Hub, with its configuration and split; None if it has none."""
    info = getattr(dataset, "info", None)
    name = getattr(info, "dataset_name", None)
    if not name or name in _FILE_FORMATS:
        return None
    parts = [name, getattr(info, "config_name", None), getattr(dataset, "split", None)]
    return " ".join(str(each) for each in parts if each and each != "default")


def is_known(session: Mapping[str, object]) -> bool:
    """Return whether a session is described; what took place under a `study.json` that is lost is not."""
    return any(session.get(group) for group in ("arguments", "versions", "data"))


def differences(earlier: JsonObject, now: JsonObject) -> list[str]:
    """Return in what two descriptions differ, in words; what only one of them knows is left out."""
    values = _changed_values(earlier, now, ("arguments", "versions", "data"))
    return [*values, *_changed_processes(earlier, now), *_changed_functions(earlier, now)]


def differences_in_results(
    earlier: JsonObject, now: JsonObject, but: Collection[str] = (HP_SPACE, CALLBACKS)
) -> list[str]:
    """Return in what two descriptions differ for which a trial with the same parameters may have other results.

    Args:
        earlier, now: the descriptions.
        but: the functions that are left out; the one that chooses the parameters has no part in what they lead to, and
            most callbacks only show or count something.
    """
    values = _changed_values(earlier, now, ("arguments", "data"))
    return [*values, *_changed_processes(earlier, now), *_changed_functions(earlier, now, but)]


def _changed_processes(earlier: JsonObject, now: JsonObject) -> list[str]:
    """Return that trials have another number of processes, and so another effective batch; nothing if it is unknown."""
    was, is_now = earlier.get(PROCESSES), now.get(PROCESSES)
    return [] if None in (was, is_now) or was == is_now else [f"{PROCESSES} {was} -> {is_now}"]


def _changed_functions(earlier: JsonObject, now: JsonObject, but: Collection[str] = ()) -> list[str]:
    """Return which functions have changed, of those that both sessions recorded by the same scheme."""
    if earlier.get("fingerprint_scheme") != now.get("fingerprint_scheme"):
        return []
    before, found = earlier.get("functions", {}), []
    for name, value in now.get("functions", {}).items():
        known = before.get(name, value)
        if name not in but and known != value and is_comparable(known, value):
            is_named = ":" not in known and ":" not in value
            was = "were" if name == CALLBACKS else "was"
            found.append(f"{name} {known} -> {value}" if is_named else f"{name} {was} edited")
    return found


def was_edited(session: JsonObject, name: str, function: object) -> bool:
    """Return whether a function is another one than a session has recorded under a name, as far as that is known."""
    now = {"functions": fingerprints({name: function}), "fingerprint_scheme": SCHEME}
    return bool(_changed_functions(session, now))


def _changed_values(earlier: JsonObject, now: JsonObject, groups: Collection[str]) -> list[str]:
    found = []
    for group in groups:
        before = earlier.get(group, {})
        for name, value in now.get(group, {}).items():
            was, now_is = hidden(name, before.get(name)), hidden(name, value)
            if name in before and was != now_is and name not in WITHOUT_EFFECT:
                found.append(f"{name} {was!r} -> {now_is!r}")
    return found


def without_secrets(arguments: Mapping[str, object]) -> JsonObject:
    """Return arguments with their secrets hidden, also those that an earlier version has recorded."""
    return {name: hidden(name, value) for name, value in arguments.items()}


def fingerprint(dataset: Any) -> str:
    """Return a short text that identifies the data by a few samples.

    The length, and a hash over up to 16 samples spread over a dataset that gives the same sample each time; a dict of
    datasets has the fingerprints of all. A stream cannot be looked into: it is ``"stream"``.

    >>> fingerprint([{"x": 1}, {"x": 2}]) == fingerprint([{"x": 1}, {"x": 2}]) != fingerprint([{"x": 1}, {"x": 3}])
    True
    """
    if isinstance(dataset, str):
        return dataset  # a fingerprint that was taken before
    if isinstance(dataset, Mapping):
        return ", ".join(f"{name}: {fingerprint(each)}" for name, each in dataset.items())
    try:
        size = len(dataset)
    except TypeError:
        return "stream"
    places = sorted({place * (size - 1) // (_SAMPLES - 1) for place in range(_SAMPLES)}) if size else []
    hashes = [_hash_of(dataset, places) for _ in range(2)]
    is_stable = hashes[0] is not None and hashes[0] == hashes[1]
    return f"{size} samples, {hashes[0]}" if is_stable else f"{size} samples"


def _hash_of(dataset: Any, places: list[int]) -> str | None:
    try:
        return hashlib.sha256(b"".join(_bytes_of(dataset[place]) for place in places)).hexdigest()[:12]
    except Exception:
        return None


def _bytes_of(value: object) -> bytes:
    if isinstance(value, Mapping):
        pairs = (repr(key).encode() + b":" + _bytes_of(value[key]) for key in sorted(value, key=str))
        return b"{" + b",".join(pairs) + b"}"
    if isinstance(value, (list, tuple)):
        return b"[" + b",".join(_bytes_of(each) for each in value) + b"]"
    if hasattr(value, "tolist"):  # a tensor or an array
        return repr(value.tolist()).encode()
    if hasattr(value, "tobytes"):  # an image
        return bytes(value.tobytes())
    is_plain = isinstance(value, (str, int, float, bool, bytes, type(None)))
    return repr(value if is_plain else type(value)).encode()
