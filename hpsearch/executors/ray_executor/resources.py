"""The resources of one trial, and how they are divided among its processes."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...errors import StudyError
from ...system.spelling import nearest_name

if TYPE_CHECKING:
    from ray.tune import PlacementGroupFactory

# Ray counts resources in ten-thousandths.
_LEAST = 0.0001
PACK, SPREAD = "pack", "spread"
_OTHER_SPELLINGS = {"cpus": "cpu", "num_cpus": "cpu", "gpus": "gpu", "num_gpus": "gpu"}


@dataclass(frozen=True)
class Resources:
    """The resources of one trial.

    Args:
        cpu: CPUs.
        gpu: 1, a fraction of 1 (several trials then share a GPU), or 0; for several processes, their number, or 0.
        others: further resources by the names they have in Ray, such as ``{"memory": 2**30, "my_resource": 1}``.
        processes: the number of processes of the trial, each with an equal part.
        placement: PACK: the processes on few nodes; SPREAD: on many. Either way one node has them all, or several.

    Raises:
        StudyError: an amount cannot be asked for, or cannot be divided.
    """

    cpu: float = 1
    gpu: float = 0
    others: Mapping[str, float] = field(default_factory=dict)
    processes: int = 1
    placement: str = PACK

    def __post_init__(self) -> None:
        amounts = {"cpu": self.cpu, "gpu": self.gpu, **self.others}
        for name, amount in amounts.items():
            _check_amount(name, amount)
        _check_gpus(self.gpu, self.processes)
        for name, amount in amounts.items():
            _check_divides(name, amount, self.processes)
        if not self.as_bundle():
            raise StudyError("resources_per_trial is empty: a trial needs a resource, such as cpu=1.")

    def as_bundle(self) -> dict[str, float]:
        """Return the amounts of one process by the names that Ray has for them, without those that are 0."""
        return {name: _part(amount, self.processes) for name, amount in self._of_trial().items()}

    def as_request(self) -> PlacementGroupFactory:
        """Return the resources in Tune's form: a `ray.tune.PlacementGroupFactory` with a bundle for each process.

        Tune's own actor trains if there is one process. Otherwise it needs nothing, and is on the node of the first.
        """
        from ray.tune import PlacementGroupFactory

        if self.processes == 1:
            return PlacementGroupFactory([self.as_bundle()])
        bundles = [self.as_bundle() for _ in range(self.processes)]
        return PlacementGroupFactory([{}, *bundles], strategy=self.placement.upper())

    def fit_on(self, node: Mapping[str, float]) -> int:
        """Return the number of processes of trials that have room on a node with these resources."""
        return min(_fits(name, amount, node.get(name, 0.0)) for name, amount in self.as_bundle().items())

    def fit(self, nodes: Iterable[Mapping[str, float]]) -> int:
        """Return the number of parallel trials on nodes with these resources; a trial may span nodes."""
        return sum(map(self.fit_on, nodes)) // self.processes

    def _of_trial(self) -> dict[str, float]:
        named = {"CPU": self.cpu, "GPU": self.gpu, **self.others}
        return {name: float(amount) for name, amount in named.items() if amount}

    def __str__(self) -> str:
        amounts = described(self._of_trial())
        return amounts if self.processes == 1 else f"{amounts} for {self.processes} processes"


def checked_placement(placement: object, processes: int) -> str:
    """Return where the processes of a trial are to be, as `Resources` has it.

    Raises:
        StudyError: it is none of those, or there are no groups.
    """
    if placement is None:
        return PACK
    if not isinstance(placement, str) or placement not in (PACK, SPREAD):
        near = nearest_name(str(placement), (PACK, SPREAD))
        raise StudyError(f"placement must be {PACK!r} or {SPREAD!r}, but got {placement!r}.{near}")
    if processes == 1:
        raise StudyError(
            f"placement={placement!r} is about the processes of a trial; pass processes_per_trial=2 or more with it."
        )
    return placement


def as_resources(given: object, processes: int = 1, placement: str = PACK) -> Resources | None:
    """Return the resources that a search's argument `resources_per_trial` asks for; None if it is None.

    Args:
        given: names to amounts, such as ``{"cpu": 1, "gpu": 0.5, "my_resource": 1}`` (what is not named is not asked
            for), a `ray.tune.PlacementGroupFactory` with one bundle, or None.
        processes, placement: see `Resources`.

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
    cpu, gpu = named.pop("cpu", 0), named.pop("gpu", 0)
    return Resources(cpu=cpu, gpu=gpu, others=named, processes=processes, placement=placement)


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


def _check_gpus(gpus: float, processes: int) -> None:
    """Check that a trial has no GPU, or one for each of its processes; a trial of one process may share one."""
    if processes == 1 and gpus > 1:
        advice = f"pass processes_per_trial={gpus:g} with them" if gpus == int(gpus) else "ask for at most 1"
        raise StudyError(
            f"resources_per_trial asks for {gpus:g} GPUs for a trial of one process, which trains on one GPU: {advice}."
        )
    if processes > 1 and gpus not in (0, processes):
        raise StudyError(
            f"resources_per_trial asks for {described({'GPU': gpus})} for the {processes} processes of a trial "
            f"(processes_per_trial={processes}). Each of them trains on a GPU of its own, or on the CPU: ask for "
            f"{processes} GPUs, or for none."
        )


def _check_divides(name: str, amount: float, processes: int) -> None:
    """Check that an amount can be divided: a whole number for each process, or less than one."""
    if amount >= processes and amount % processes:
        below = amount // processes * processes
        raise StudyError(
            f"resources_per_trial[{name!r}]={amount!r} cannot be divided among {processes} processes "
            f"(processes_per_trial={processes}): ask for {below:g} or {below + processes:g}."
        )
    if 0 < amount < _LEAST * processes:
        raise StudyError(
            f"resources_per_trial[{name!r}]={amount!r} is too little for {processes} processes: Ray counts in steps of "
            f"{_LEAST}."
        )


def _part(amount: float, processes: int) -> float:
    """Return the part of an amount that each process gets; what is less than 1 in the steps in which Ray counts."""
    part = amount / processes
    return part if processes == 1 or part >= 1 else math.floor(round(part / _LEAST, 6)) * _LEAST


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
            "but one is for the whole trial: pass one bundle, which processes_per_trial= divides."
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
