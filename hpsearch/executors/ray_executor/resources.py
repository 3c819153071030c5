"""The resources of one trial."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...errors import StudyError

if TYPE_CHECKING:
    from ray.tune import PlacementGroupFactory

# Ray counts resources in ten-thousandths.
_LEAST = 0.0001
_OTHER_SPELLINGS = {"cpus": "cpu", "num_cpus": "cpu", "gpus": "gpu", "num_gpus": "gpu"}


@dataclass(frozen=True)
class Resources:
    """The resources of one trial.

    Args:
        cpu: CPUs.
        gpu: 1, a fraction of 1 (several trials then share a GPU), or 0.
        others: further resources by the names they have in Ray, such as ``{"memory": 2**30, "my_resource": 1}``.

    Raises:
        StudyError: an amount cannot be asked for.
    """

    cpu: float = 1
    gpu: float = 0
    others: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, amount in {"cpu": self.cpu, "gpu": self.gpu, **self.others}.items():
            _check_amount(name, amount)
        if self.gpu > 1:
            raise StudyError(
                f"resources_per_trial asks for {self.gpu:g} GPUs for one trial, but a trial on Ray uses at most one "
                "GPU. For several GPUs in a trial start the search with `torchrun` or `accelerate launch`, without "
                "backend='ray' (docs/distributed.md); several such searches may share a study."
            )
        if not self.as_bundle():
            raise StudyError("resources_per_trial is empty: a trial needs a resource, such as cpu=1.")

    def as_bundle(self) -> dict[str, float]:
        """Return the amounts by the names that Ray has for them, without those that are 0."""
        named = {"CPU": self.cpu, "GPU": self.gpu, **self.others}
        return {name: float(amount) for name, amount in named.items() if amount}

    def as_request(self) -> PlacementGroupFactory:
        """Return the resources in Tune's form: a `ray.tune.PlacementGroupFactory` with one bundle."""
        from ray.tune import PlacementGroupFactory

        return PlacementGroupFactory([self.as_bundle()])

    def fit_on(self, node: Mapping[str, float]) -> int:
        """Return the number of parallel trials on a node that has these resources."""
        return min(_fits(name, amount, node.get(name, 0.0)) for name, amount in self.as_bundle().items())

    def __str__(self) -> str:
        return described(self.as_bundle())


def as_resources(given: object) -> Resources | None:
    """Return the resources that a search's argument `resources_per_trial` asks for; None if it is None.

    Args:
        given: names to amounts, such as ``{"cpu": 1, "gpu": 0.5, "my_resource": 1}`` (what is not named is not asked
            for), a `ray.tune.PlacementGroupFactory` with one bundle, or None.

    Raises:
        StudyError: it is none of these, or an amount cannot be asked for.

    Examples:
        >>> print(as_resources({"cpu": 2, "gpu": 0.5}))
        2 CPUs, 0.5 GPUs
    """
    if given is None:
        return None
    amounts = given if isinstance(given, Mapping) else _bundle_of(given)
    named: dict[str, Any] = {}
    for name, amount in amounts.items():
        if not isinstance(name, str) or not name:
            raise StudyError(f"resources_per_trial names a resource {name!r}; a name is a text, such as 'cpu'.")
        if name in _OTHER_SPELLINGS:
            raise StudyError(
                f"resources_per_trial does not take {name!r}: {amount!r}. Did you mean {_OTHER_SPELLINGS[name]!r}?"
            )
        plain = name.lower() if name in ("CPU", "GPU") else name
        if plain in named:
            raise StudyError(f"resources_per_trial has both {plain!r} and {plain.upper()!r}; pass only one of them.")
        named[plain] = amount
    return Resources(cpu=named.pop("cpu", 0), gpu=named.pop("gpu", 0), others=named)


def described(bundle: Mapping[str, float]) -> str:
    """Return amounts in words.

    >>> described({"CPU": 2.0, "GPU": 1.0, "my_resource": 0.5})
    '2 CPUs, 1 GPU, 0.5 my_resource'
    """
    return ", ".join(
        f"{amount:g} {name}{'s' if name in ('CPU', 'GPU') and amount != 1 else ''}" for name, amount in bundle.items()
    )


def _check_amount(name: str, amount: Any) -> None:
    is_number = isinstance(amount, (int, float)) and not isinstance(amount, bool) and math.isfinite(amount)
    if not is_number or amount < 0:
        raise StudyError(f"resources_per_trial[{name!r}] must be a number of at least 0, but got {amount!r}.")
    if 0 < amount < _LEAST:
        raise StudyError(f"resources_per_trial[{name!r}]={amount!r} is too little: Ray counts in steps of {_LEAST}.")


def _bundle_of(given: object) -> Mapping[str, float]:
    """Return the one bundle of a `PlacementGroupFactory`; such an object implies that Ray Tune is imported."""
    tune = sys.modules.get("ray.tune")
    if tune is None or not isinstance(given, tune.PlacementGroupFactory):
        raise StudyError(
            "resources_per_trial must be a dict, such as {'cpu': 1, 'gpu': 0.5}, a ray.tune.PlacementGroupFactory "
            f"with one bundle, or None, but got {given!r}."
        )
    bundles = given.bundles
    if len(bundles) != 1 or given.head_bundle_is_empty:
        raise StudyError(
            f"resources_per_trial is a PlacementGroupFactory with {len(bundles) + given.head_bundle_is_empty} bundles, "
            "but a trial on Ray is one process: pass one bundle."
        )
    if given != tune.PlacementGroupFactory(bundles, given.strategy):
        raise StudyError(
            "resources_per_trial is a PlacementGroupFactory with more than bundles and a strategy, which would be "
            f"ignored: {given!r}. Pass the bundle only."
        )
    bundle: dict[str, float] = bundles[0]
    return bundle


def _fits(name: str, amount: float, there: float) -> int:
    """Return how often an amount fits into what a node has; a fraction of a GPU is one of a single GPU."""
    steps = round(amount / _LEAST)
    if name == "GPU" and amount < 1:
        return int(there) * (round(1 / _LEAST) // steps)
    return round(there / _LEAST) // steps
