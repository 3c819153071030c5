"""The embedded backend: Optuna's samplers, pruners and storages, in this process."""

from .backend import OptunaBackend

__all__ = ["OptunaBackend"]
