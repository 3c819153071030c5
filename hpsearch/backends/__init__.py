"""The engines a search can run on, behind one interface."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from typing import Any

from ..errors import MissingPackageError, StudyError, nearest_name, one_of
from .base import Backend

_BACKENDS = {
    "optuna": ("optuna_backend.backend", "OptunaBackend", "optuna", "optuna"),
    "ray": ("ray_backend.backend", "RayBackend", "ray", "'hpsearch[ray]'"),
}
# Backends that transformers has, or had, beside those here.
_GONE = {
    "sigopt": "its service was closed, and transformers 5 dropped it",
    "wandb": "its sweeps choose parameters in the cloud, so a trial could not be repeated from what is on disk",
}
# Options that an earlier version had.
_REMOVED = {
    "paused_memory": "the checkpoints of paused trials are on disk. If the disk is slow, put output_dir on a RAM disk, "
    "such as /dev/shm, and copy the study's folder away afterwards."
}


def get_backend(name: str | None, options: dict[str, Any], arguments: Iterable[str] = ()) -> Backend:
    """Return a backend by name, made with the user's options; None gives Optuna.

    `arguments` are those of the search itself, one of which may have been misspelled.

    Raises:
        StudyError: there is no such backend, or it does not take one of the options.
        MissingPackageError: the backend's package is not installed.
    """
    wanted = "optuna" if name is None else name
    if isinstance(wanted, str) and wanted in _GONE:
        raise StudyError(f"backend={wanted!r} is no longer there: {_GONE[wanted]}. Use {one_of(_BACKENDS)}.")
    if not isinstance(wanted, str) or wanted not in _BACKENDS:
        raise StudyError(
            f"backend={wanted!r} is not a backend; allowed: {one_of(_BACKENDS)}.{nearest_name(str(wanted), _BACKENDS)}"
        )
    removed = next((option for option in options if option in _REMOVED), None)
    if removed is not None:
        raise StudyError(f"{removed}={options[removed]!r} was removed: {_REMOVED[removed]}")
    module, kind, package, installed_by = _BACKENDS[wanted]
    if importlib.util.find_spec(package) is None:
        raise MissingPackageError(f"backend={wanted!r} needs the package {package}: pip install {installed_by}")
    backend: type[Backend] = getattr(importlib.import_module(f".{module}", __name__), kind)
    unknown = next((option for option in options if option not in backend.options), None)
    if unknown is not None:
        if unknown in backend.elsewhere:
            raise StudyError(
                f"The {wanted} backend does not take {unknown}={options[unknown]!r}; what does it here is "
                f"{backend.elsewhere[unknown]}."
            )
        raise StudyError(
            f"hyperparameter_search does not take {unknown}={options[unknown]!r}; the {wanted} backend takes "
            f"{one_of(backend.options)}.{nearest_name(unknown, [*backend.options, *arguments])}"
        )
    return backend(**options)
