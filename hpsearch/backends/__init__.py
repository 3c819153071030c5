"""The engines a search can run on, behind one interface."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable

from ..errors import MissingPackageError, StudyError, one_of
from ..system.spelling import nearest_name
from .base import Backend
from .engine_options import take_options

_BACKENDS = {
    "optuna": ("optuna_backend", "OptunaBackend", "optuna", "optuna"),
    "ray": ("ray_backend", "RayBackend", "ray", "'hpsearch[ray]'"),
}
# Backends that transformers has, or had, beside those here.
_GONE = {
    "sigopt": "its service was closed, and transformers 5 dropped it",
    "wandb": "its sweeps choose parameters in the cloud, so a trial could not be repeated from the study's folder",
}


def get_backend(name: str | None, options: dict[str, object], arguments: Iterable[str] = ()) -> Backend:
    """Return a backend by name, made with the user's options; None gives Optuna.

    `arguments` are those of the search itself, one of which may have been misspelled.

    Raises:
        StudyError: there is no such backend, or it does not take some of the options.
        MissingPackageError: the backend's package is not installed.
    """
    wanted = "optuna" if name is None else name
    if isinstance(wanted, str) and wanted in _GONE:
        raise StudyError(f"backend={wanted!r} is no longer there: {_GONE[wanted]}. Use {one_of(_BACKENDS)}.")
    if not isinstance(wanted, str) or wanted not in _BACKENDS:
        raise StudyError(
            f"backend={wanted!r} is not a backend; allowed: {one_of(_BACKENDS)}.{nearest_name(str(wanted), _BACKENDS)}"
        )
    module, kind, package, installed_by = _BACKENDS[wanted]
    if importlib.util.find_spec(package) is None:
        raise MissingPackageError(f"backend={wanted!r} needs the package {package}: pip install {installed_by}")
    backend: type[Backend] = getattr(importlib.import_module(f".{module}", __name__), kind)
    taken, notices = take_options(wanted, options, backend.options, backend.engine_options, arguments)
    made = backend(**taken)
    made.notices = notices
    return made
