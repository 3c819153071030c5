"""Samplers of Optuna by name, and whether the package that one needs is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.samplers import BaseSampler

from ..errors import MissingPackageError, StudyError, one_of
from ..system.spelling import nearest_name
from .quiet import quiet_optuna

TPE = "tpe"
SAMPLERS: Mapping[str, type[BaseSampler]] = {
    "brute_force": optuna.samplers.BruteForceSampler,
    "cmaes": optuna.samplers.CmaEsSampler,
    "gp": optuna.samplers.GPSampler,
    "nsgaii": optuna.samplers.NSGAIISampler,
    "nsgaiii": optuna.samplers.NSGAIIISampler,
    "qmc": optuna.samplers.QMCSampler,
    "random": optuna.samplers.RandomSampler,
    TPE: optuna.samplers.TPESampler,
}
# Packages that Optuna imports when a sampler first uses them, and that are no dependency of ours.
_NEEDS: Mapping[type[BaseSampler], str] = {optuna.samplers.CmaEsSampler: "cmaes"}


def sampler_kind(sampler: object) -> type[BaseSampler]:
    """Return the class of a search's sampler, which is an object, a name, or None (any class).

    Raises:
        StudyError: it is none of these.
        MissingPackageError: the package that the sampler needs is not installed. Optuna itself would import it in the
            second trial.
    """
    if sampler is None:
        return BaseSampler
    kind = SAMPLERS.get(sampler) if isinstance(sampler, str) else type(sampler)
    if kind is None or not issubclass(kind, BaseSampler):
        raise StudyError(
            f"sampler must be an Optuna sampler, None or one of {one_of(SAMPLERS)}, but got {sampler!r}."
            f"{nearest_name(str(sampler), SAMPLERS)}"
        )
    chooses = (kind, type(getattr(sampler, "_base_sampler", None)))  # the second of a PartialFixedSampler
    missing = next((package for each, package in _NEEDS.items() for one in chooses if issubclass(one, each)), None)
    if missing is not None and importlib.util.find_spec(missing) is None:
        shown = repr(sampler) if isinstance(sampler, str) else kind.__name__
        raise MissingPackageError(f"sampler={shown} needs the package {missing}: pip install {missing}")
    return kind


def as_sampler(sampler: str | BaseSampler, seed: int, runs_several: bool) -> BaseSampler:
    """Return a sampler as it is, or the sampler of a name.

    Args:
        sampler: an object, or one of `SAMPLERS`.
        seed: of a sampler that is made here.
        runs_several: whether trials are parallel; TPE then keeps away from the parameters of running ones.
    """
    if isinstance(sampler, BaseSampler):
        return sampler
    options = {"constant_liar": runs_several} if sampler == TPE else {}
    with quiet_optuna():  # Optuna calls some of them experimental
        kind: Any = SAMPLERS[sampler]
        made: BaseSampler = kind(seed=seed, **options)
    return made
