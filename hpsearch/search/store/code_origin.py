"""Distinguish the user's own code from that of packages."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Callable

# Our modules that code of users refers to, with the names they had in hpsearch 0.8.0.
_IN_0_8_0 = {
    "hpsearch.any_trainer.search_plan": "hpsearch.search_plan",
    "hpsearch.any_trainer.trainer_function": "hpsearch.trainer_function",
    "hpsearch.any_trainer.tuning": "hpsearch.trainer_function",
    "hpsearch.search.metrics.constraints": "hpsearch.search.constraints",
    "hpsearch.search.metrics.objective": "hpsearch.search.objective",
    "hpsearch.search.requests.make_request": "hpsearch.search.promotion",
    "hpsearch.search.result.best_run": "hpsearch.search.best_run",
    "hpsearch.search.space.parameters": "hpsearch.search.parameters",
    "hpsearch.search.space.search_space": "hpsearch.search.space",
    "hpsearch.search.trial_record": "hpsearch.search.trial",
    "hpsearch.searching.replay": "hpsearch.replay",
    "hpsearch.searching.opened_study": "hpsearch.stored_studies",
    "hpsearch.trainer.seq2seq": "hpsearch.seq2seq",
    "hpsearch.trainer.trainer": "hpsearch.trainer",
    "hpsearch.training.callbacks": "hpsearch.callbacks",
    "hpsearch.training.pretrained": "hpsearch.pretrained",
    "hpsearch.training.trackers": "hpsearch.trackers",
}


@functools.cache
def is_of_package(module: str | None, file: str) -> bool:
    """Return whether a module is hpsearch's, Python's, or that of an installed package."""
    top = (module or "").partition(".")[0]
    if top == "hpsearch" or (top in sys.stdlib_module_names and top != "__main__"):
        return True
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(file.startswith(f"{path}/") for path in paths) or "/site-packages/" in file


def is_package_class(kind: type) -> bool:
    """Return whether a class is hpsearch's, Python's, or that of an installed package."""
    module = sys.modules.get(kind.__module__)
    return is_of_package(kind.__module__, getattr(module, "__file__", None) or "")


def name_of(value: Callable[..., object] | type) -> str:
    """Return the full name of a function or a class, which studies record: of ours the one of hpsearch 0.8.0."""
    module = getattr(value, "__module__", None) or "builtins"
    return f"{_IN_0_8_0.get(module, module)}.{value.__qualname__}"
