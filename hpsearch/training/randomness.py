"""Seeds and random streams of a run: set, captured, put back."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import enable_full_determinism, set_seed

from ..arguments import TrainingArguments

_is_deterministic = False


def seed_run(args: TrainingArguments) -> None:
    """Seed Python, numpy and torch with `args.seed`, deterministically if `args.full_determinism`."""
    global _is_deterministic
    if args.full_determinism:
        enable_full_determinism(args.seed)
    else:
        if _is_deterministic:  # an earlier run asked for it
            torch.use_deterministic_algorithms(False)
            torch.backends.cudnn.deterministic = False
        set_seed(args.seed)
    _is_deterministic = args.full_determinism


@dataclass(frozen=True)
class RandomStreams:
    """The states of every random stream a run draws from: Python, numpy, torch on CPU and on each GPU."""

    python: tuple[object, ...]
    numpy: Any
    cpu: torch.Tensor
    cuda: list[torch.Tensor]

    @classmethod
    def capture(cls) -> RandomStreams:
        """Return the present states."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Put the captured states back."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        if self.cuda and torch.cuda.is_available() and len(self.cuda) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(self.cuda)

    def to_dict(self) -> dict[str, object]:
        """Return the states under the names transformers gives them in `rng_state.pth`."""
        states = {"python": self.python, "numpy": self.numpy, "cpu": self.cpu}
        if self.cuda:
            states["cuda"] = self.cuda if len(self.cuda) > 1 else self.cuda[0]
        return states

    @classmethod
    def from_dict(cls, states: dict[str, Any]) -> RandomStreams:
        """Read what `to_dict`, or transformers, wrote."""
        cuda = states.get("cuda", [])
        each_gpu = list(cuda) if isinstance(cuda, (list, tuple)) else [cuda]
        return cls(states["python"], states["numpy"], states["cpu"], each_gpu)


@contextlib.contextmanager
def preserved_streams() -> Iterator[None]:
    """Leave the caller's random streams as they were, whatever the block draws."""
    streams = RandomStreams.capture()
    try:
        yield
    finally:
        streams.restore()
