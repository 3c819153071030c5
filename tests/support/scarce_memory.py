"""A model that runs out of memory where the test says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tests.support.small_trainer import TwoLayers

OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 20.00 MiB."
BATCH = {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 16}


@dataclass
class Memory:
    """What fits: so many samples at once, while training and while evaluating; counts what was tried."""

    training: int = 1000
    evaluation: int = 1000
    tried: list[tuple[str, int]] = field(default_factory=list)
    error: type[Exception] = RuntimeError

    def need(self, samples: int, is_training: bool) -> None:
        self.tried.append(("train" if is_training else "eval", samples))
        if samples > (self.training if is_training else self.evaluation):
            raise self.error(OUT_OF_MEMORY)

    def trained(self) -> list[int]:
        return [samples for kind, samples in self.tried if kind == "train"]


class NeedsMemory(TwoLayers):
    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.memory = memory

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        self.memory.need(len(x), self.training)
        return super().forward(x, labels)


@dataclass
class MakesModels:
    """A `model_init` whose models need memory; it can be sent to another process."""

    memory: Memory

    def __call__(self, trial: Any) -> NeedsMemory:
        return NeedsMemory(self.memory)
