"""Random values that no engine can suggest, drawn for each trial: the same values in each session."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from ray.tune.search import sample
from transformers import set_seed

from ...errors import SpaceError
from ...training.randomness import preserved_streams
from .ray_domains import holds_ray


class Draw:
    """The draws of one trial, each from streams of its own; functions of `sample_from` see the other values."""

    def __init__(self, domains: Mapping[str, sample.Domain], values: dict[str, object], stream: str) -> None:
        self._domains, self._values, self._stream = domains, values, stream
        self._asking: list[str] = []

    def all(self) -> None:
        """Draw all that is not known yet."""
        for name in self._domains:
            self.value(name)

    def names(self) -> list[str]:
        """Return the names that a function can see: all but those drawn after it."""
        return [name for name in dict.fromkeys([*self._values, *self._domains]) if name not in self._asking]

    def value(self, name: str) -> object:
        """Return a value, and draw it first if that is to be done."""
        if name in self._asking:
            raise SpaceError(f"{name!r} depends on itself: the sample_from function of {self._asking[-1]!r} reads it.")
        if name not in self._values and name in self._domains:
            self._asking.append(name)
            try:
                self._values[name] = self._drawn(name, self._domains[name])
            finally:
                self._asking.remove(name)
        return self._values[name]

    def _drawn(self, name: str, domain: sample.Domain) -> object:
        seed = int.from_bytes(hashlib.sha256(f"{self._stream}/{name}".encode()).digest()[:4], "big")
        if not isinstance(domain, sample.Function):
            return domain.sample(random_state=np.random.default_rng(seed))
        try:
            with preserved_streams():
                set_seed(seed)
                value = domain.func(_Config(self)) if domain.pass_config else domain.func()
        except SpaceError:
            raise
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
            raise SpaceError(
                f"{name!r}: its sample_from function raised {raised}. It can read {self.names()}."
            ) from error
        if holds_ray(value):
            raise SpaceError(f"{name!r}: its sample_from function must return a value, but returned {value!r}.")
        return value


class _Config(Mapping[str, Any]):
    """The argument of a `sample_from` function:
    ``config["x"]``, ``config.x`` and, as in older ones, ``spec.config.x``."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def __getitem__(self, name: str) -> object:
        return self if name == "config" and name not in self._draw.names() else self._draw.value(name)

    def __getattr__(self, name: str) -> Any:
        try:
            if not name.startswith("_"):
                return self[name]
            raise KeyError(name)
        except KeyError:
            raise AttributeError(f"there is no {name!r}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._draw.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._draw.names())

    def __len__(self) -> int:
        return len(self._draw.names())
