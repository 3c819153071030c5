"""Datasets in memory that `make_trainer` maps are mapped once in a search, not once in each trial.

TRL's trainers tokenise, truncate and pack their data with `Dataset.map` whenever they are made. `datasets` keeps the
results for data that it has loaded from disk, not for data in memory; here they are kept too, under the same contract:
the same data, function and arguments make the same result.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import shutil
import types
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import datasets
from datasets import Dataset
from datasets.fingerprint import Hasher

from ..search.store.fingerprints import function_fingerprint
from ..system.progress_bars import no_progress_bars
from ..system.temporary_folders import folder_of_process
from ..training.randomness import RandomStreams

# Arguments of `Dataset.map` that do not change the rows of its result.
_WITHOUT_EFFECT = ("desc", "new_fingerprint", "cache_file_name", "keep_in_memory", "load_from_cache_file")
_MARK = ".seen"
_LEAST_FREE = 4  # times the size of a result: the disk of temporary folders may be small, or memory


def folder_of_prepared_data() -> Path | None:
    """Return a folder of this process for `mapping_once`, here and in workers; None if the program disabled caching."""
    if not datasets.is_caching_enabled():
        return None
    folder = folder_of_process() / "prepared-data"
    folder.mkdir(exist_ok=True)
    return folder


@contextlib.contextmanager
def mapping_once(folder: Path | None, at_once: bool = False) -> Iterator[None]:
    """Let `Dataset.map` and `filter` of data in memory keep results in `folder` while the block runs, and reuse them.

    A result is kept when it is asked for a second time, so that those of a single trial take no space. It is not kept
    if the function cannot be hashed, draws random numbers, or changes what it refers to; nor with `num_proc`, where the
    last two cannot be seen.

    Args:
        folder: of the search, shared by its workers; if it is None or does not exist here, nothing changes.
        at_once: keep results when they are asked for the first time.
    """
    if folder is None or not folder.is_dir():
        yield
        return
    original = Dataset.map
    signature = inspect.signature(original)

    @functools.wraps(original)
    def map_once(*args: object, **kwargs: object) -> object:
        given = signature.bind(*args, **kwargs).arguments
        dataset = given.pop("self")
        if _is_decided(given) or any(folder not in Path(each["filename"]).parents for each in dataset.cache_files):
            return original(*args, **kwargs)
        key = _key(dataset, given)
        if key is None:
            return original(dataset, **{**given, "keep_in_memory": True})
        fingerprint = given.setdefault("new_fingerprint", key)
        with contextlib.suppress(FileNotFoundError):
            kept = datasets.load_from_disk(str(folder / key))
            kept._fingerprint = fingerprint
            return kept
        streams = _states()
        made = original(dataset, **{**given, "keep_in_memory": True})
        has_changed_rows = made._fingerprint == fingerprint  # else the function is called for its effects
        if has_changed_rows and _states() == streams and _key(dataset, given) == key:
            _keep(made, folder / key, at_once)
        return made

    Dataset.map = map_once
    try:
        yield
    finally:
        Dataset.map = original


def _is_decided(given: Mapping[str, object]) -> bool:
    """Return True if the program itself decides where a result is kept, or whether it is reused."""
    is_placed = given.get("cache_file_name") is not None or given.get("keep_in_memory")
    return bool(is_placed) or given.get("load_from_cache_file") is False


def _key(dataset: Dataset, given: Mapping[str, object]) -> str | None:
    """Return a key that is the same for the same result of `Dataset.map` only; None if there is no such key."""
    if given.get("num_proc"):
        return None
    relevant = {name: value for name, value in given.items() if name not in _WITHOUT_EFFECT}
    function = given.get("function")
    contents = None if function is None else function_fingerprint(function)
    if function is not None and contents is None:
        return None
    try:
        return str(Hasher.hash((dataset._fingerprint, relevant, _globals_of(function), contents)))
    except Exception:  # the function refers to something that cannot be pickled
        return None


def _globals_of(function: object) -> list[dict[str, object]]:
    """Return the values of the global variables that functions of modules refer to.

    `datasets` hashes such a function by its name, all others by what they are made of. Large values count whole here.
    """
    parts = [function.func, *function.args] if isinstance(function, functools.partial) else [function]
    named = [each for each in parts if isinstance(each, types.FunctionType) and "<" not in each.__qualname__]
    return [dict(inspect.getclosurevars(each).globals) for each in named]


def _keep(made: Dataset, path: Path, at_once: bool) -> None:
    """Write a dataset to `path`, whole or not at all; if it cannot be written, the trials do without."""
    mark = path.with_suffix(_MARK)
    if not at_once and not mark.exists():
        with contextlib.suppress(OSError):
            mark.touch()
        return
    written = path.with_name(uuid.uuid4().hex)
    try:
        if made.data.nbytes * _LEAST_FREE < shutil.disk_usage(path.parent).free:
            with no_progress_bars():
                made.save_to_disk(str(written))
            written.rename(path)
    except Exception:
        shutil.rmtree(written, ignore_errors=True)


def _states() -> object:
    """Return the states of the random streams, to compare them."""
    now = RandomStreams.capture()
    kind, keys, *rest = now.numpy
    return now.python, (kind, keys.tobytes(), *rest), [each.cpu().numpy().tobytes() for each in (now.cpu, *now.cuda)]
