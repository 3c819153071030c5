"""The order in which samples are seen: random, sequential, grouped or balanced by length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import datasets
import torch
from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import RandomSampler, Sampler, SequentialSampler
from transformers.trainer_pt_utils import BatchRebalanceSampler, LengthGroupedSampler
from transformers.trainer_utils import has_length

from ..arguments import TrainingArguments
from ..errors import InvalidInputError
from .hooks import Hooks


def train_sampler(trainer: Hooks, dataset: Any) -> Sampler[int] | None:
    """Return the order of the training samples, as `train_sampling_strategy` says; None for data without a length.

    With ``"batch_rebalance"`` the sampler gives whole batches, of this process alone.
    """
    args = trainer.run.args
    if dataset is None or not has_length(dataset):
        return None
    if args.train_sampling_strategy == "group_by_length":
        group = args.train_batch_size * args.gradient_accumulation_steps
        if args.world_size > 1:
            return _EpochSeeded(_length_grouped(trainer, dataset, group, torch.Generator()), seed_of_data(args))
        return _length_grouped(trainer, dataset, group, generator=None)
    if args.train_sampling_strategy == "batch_rebalance":
        return _batch_rebalanced(trainer, dataset)
    if args.train_sampling_strategy == "sequential":
        return SequentialSampler(dataset)
    if trainer.run.accelerator.num_processes == 1 and args.accelerator_config.use_seedable_sampler:
        return SeedableRandomSampler(dataset, data_seed=args.data_seed)
    return RandomSampler(dataset)


def eval_sampler(trainer: Hooks, dataset: Any) -> Sampler[int] | None:
    """Return the order of the evaluation samples: as they come, or grouped by length if training is."""
    args = trainer.run.args
    if dataset is None or not has_length(dataset):
        return None
    if args.train_sampling_strategy == "group_by_length":
        generator = torch.Generator().manual_seed(seed_of_data(args))
        return _length_grouped(trainer, dataset, args.eval_batch_size, generator)
    return SequentialSampler(dataset)


def seed_of_data(args: TrainingArguments) -> int:
    """Return the seed of the samplers: `data_seed`, or else `seed`."""
    return args.seed if args.data_seed is None else args.data_seed


class _EpochSeeded(Sampler[int]):
    """A sampler whose order depends on seed and epoch alone, so that several processes draw the same one."""

    def __init__(self, sampler: LengthGroupedSampler, seed: int) -> None:
        self._sampler, self._seed = sampler, seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[int]:
        self._sampler.generator.manual_seed(self._seed + self._epoch)
        return iter(self._sampler)


def _length_grouped(
    trainer: Hooks, dataset: object, group: int, generator: torch.Generator | None
) -> LengthGroupedSampler:
    return LengthGroupedSampler(
        group,
        dataset=dataset,
        lengths=_length_column(trainer, dataset),
        model_input_name=_input_name(trainer),
        generator=generator,
    )


def _batch_rebalanced(trainer: Hooks, dataset: Any) -> BatchRebalanceSampler:
    args = trainer.run.args
    lengths = _length_column(trainer, dataset)
    if lengths is None:
        name = _input_name(trainer) or "input_ids"
        try:
            lengths = [len(sample[name]) for sample in dataset]
        except (KeyError, TypeError, IndexError) as error:
            raise InvalidInputError(
                f"train_sampling_strategy='batch_rebalance' needs the samples' lengths, but they have no {name!r}: "
                f"give the dataset a column {args.length_column_name!r}."
            ) from error
    return BatchRebalanceSampler(
        lengths=list(map(int, lengths)),
        effective_batch_size=args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        dp_size=args.world_size,
        grad_accum=args.gradient_accumulation_steps,
        rank=args.process_index,
        drop_last=args.dataloader_drop_last,
    )


def _length_column(trainer: Hooks, dataset: object) -> list[int] | None:
    column = trainer.run.args.length_column_name
    return dataset[column] if isinstance(dataset, datasets.Dataset) and column in dataset.column_names else None


def _input_name(trainer: Hooks) -> str | None:
    processing_class = trainer.processing_class
    return processing_class.model_input_names[0] if processing_class is not None else None
