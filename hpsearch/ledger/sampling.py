"""Samplers of Optuna whose choices depend on the trial's number and the trials before it, and on nothing else."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator

import optuna
from optuna.samplers._lazy_random_state import LazyRandomState


class RepeatableSampling:
    """Seeds a sampler again for every choice: from its seed, the trial's number, the attempt and the parameter's name.

    A sampler of Optuna draws from one stream of random numbers. When a search continues in another process, that stream
    would start again, and repeat the first configurations; and a trial that was half-chosen would get other values.
    With this, a search that was killed and continued makes the choices of one that was not.

    A sampler that was made without a seed draws a new one each session. One that has random streams of another kind
    than Optuna's keeps them.

    Args:
        sampler: any sampler of Optuna.
    """

    def __init__(self, sampler: optuna.samplers.BaseSampler) -> None:
        self._streams = list(_streams_of(sampler))
        # What its first stream would draw next: the same for the same seed, another one for none.
        self._own_seed = [int(copy.deepcopy(stream.rng).randint(2**31)) for stream in self._streams[:1]]

    def seed_for(self, number: int, name: str = "", attempt: int = 0) -> None:
        """Seed the sampler for trial `number` as a whole, or for one parameter of it.

        Where what it proposed was not taken, the sampler is asked again: each attempt has other seeds.
        """
        text = f"{self._own_seed}/{number}/{name}" + (f"/{attempt}" if attempt else "")
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
        for place, stream in enumerate(self._streams):
            stream.rng.seed((seed + place) % 2**32)


def _streams_of(holder: object, seen: set[int] | None = None) -> Iterator[LazyRandomState]:
    """Yield every random stream that a sampler holds, itself or in a sampler or strategy inside it."""
    seen = set() if seen is None else seen
    for value in list(getattr(holder, "__dict__", {}).values()):
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, LazyRandomState):
            yield value
        elif type(value).__module__.startswith("optuna.samplers"):
            yield from _streams_of(value, seen)
