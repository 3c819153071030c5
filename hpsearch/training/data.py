"""Loaders and samplers of a run, column removal, and how much data an epoch holds."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import datasets
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, Subset
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase, default_data_collator
from transformers.feature_extraction_sequence_utils import SequenceFeatureExtractor
from transformers.trainer_pt_utils import BatchRebalanceSampler
from transformers.trainer_utils import has_length, seed_worker

from ..arguments import TrainingArguments
from ..errors import ArgumentError, InvalidInputError
from .hooks import Hooks

if TYPE_CHECKING:
    from .run import TrainingRun


def default_collator(processing_class: object) -> Callable[..., object]:
    """Return the collator for a processing class: padding for tokenizers and sequence features, else plain stacking."""
    if isinstance(processing_class, (PreTrainedTokenizerBase, SequenceFeatureExtractor)):
        return DataCollatorWithPadding(processing_class)
    return default_data_collator


def select_samples(dataset: Any, indices: Any) -> Any:
    """Return the samples of a map-style dataset with these indices, in their order."""
    if isinstance(dataset, datasets.Dataset):
        return dataset.select(indices)
    return Subset(dataset, [int(each) for each in indices])


def make_loader(
    trainer: Hooks, dataset: Any, description: str, batch_size: int, sampler: Sampler[int] | None, training: bool
) -> DataLoader[object]:
    """Build the loader of `dataset` for this run, without columns the model ignores.

    Batches stay on the host; the run moves them, once. Training in a single process uses torch's loader as it is, which
    loads nothing ahead; everything else is prepared by accelerate.
    """
    run = trainer.run
    args = run.args
    collator = trainer.data_collator
    if args.remove_unused_columns:
        if isinstance(dataset, datasets.Dataset):
            dataset = without_unused_columns(dataset, run.traits.signature_columns, description)
        else:
            collator = CollatorWithoutUnusedColumns(collator, frozenset(run.traits.signature_columns))
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "collate_fn": collator,
        "num_workers": args.dataloader_num_workers,
        "pin_memory": args.dataloader_pin_memory and args.device.type != "cpu",
        "persistent_workers": args.dataloader_persistent_workers,
        "multiprocessing_context": args.dataloader_multiprocessing_context,
        "prefetch_factor": args.dataloader_prefetch_factor,
        "in_order": args.dataloader_in_order,
    }
    if not isinstance(dataset, IterableDataset):
        if isinstance(sampler, BatchRebalanceSampler):  # makes whole batches, for this process alone
            del options["batch_size"]
            options["batch_sampler"] = sampler
        else:
            options["sampler"] = sampler
            options["drop_last"] = args.dataloader_drop_last
        if training:
            options["worker_init_fn"] = functools.partial(
                seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index
            )
    loader = DataLoader(dataset, **options)
    if isinstance(sampler, BatchRebalanceSampler) or (training and run.accelerator.num_processes == 1):
        return loader
    return _shared_between_processes(run, loader, training)


def _shared_between_processes(run: TrainingRun, loader: DataLoader[object], training: bool) -> DataLoader[object]:
    """Return a loader that gives each process its share of every batch.

    A stream that is evaluated is read by the main process alone, which knows how many samples the last batch has; a
    stream to train on is read by every process, unless `dispatch_batches` says otherwise.
    """
    config = run.accelerator.dataloader_config
    dispatches = config.dispatch_batches
    if dispatches is None:
        dispatches = not training and isinstance(loader.dataset, IterableDataset) and run.accelerator.num_processes > 1
    config.dispatch_batches, wanted = dispatches, config.dispatch_batches
    try:
        return run.accelerator.prepare_data_loader(loader, device_placement=dispatches)
    finally:
        config.dispatch_batches = wanted


def check_training_data(dataset: Any, args: TrainingArguments) -> None:
    """Check that there is something to train on, and that it is known for how long.

    Raises:
        InvalidInputError: the dataset is empty, or has no length while `max_steps` is not set.
    """
    if not has_length(dataset):
        if args.max_steps <= 0:
            raise ArgumentError(
                f"max_steps={args.max_steps}, but the training data has no length; set max_steps to the number of "
                "updates to train for."
            )
    elif len(dataset) == 0:
        raise InvalidInputError("The train_dataset holds no samples.")


def without_unused_columns(dataset: datasets.Dataset, accepted: list[str], description: str) -> datasets.Dataset:
    """Return `dataset` without the columns that are not in `accepted`.

    Raises:
        InvalidInputError: no column would be left.
    """
    unused = [name for name in dataset.column_names if name not in accepted]
    if len(unused) == len(dataset.column_names):
        raise InvalidInputError(
            f"None of the columns {unused} of the {description} dataset is an argument of the model's forward "
            f"({', '.join(accepted)}). Rename them, or set remove_unused_columns=False."
        )
    return dataset.remove_columns(unused) if unused else dataset


@dataclass(frozen=True)
class CollatorWithoutUnusedColumns:
    """A collator that first drops, from samples that are dicts, the keys the model does not take."""

    collator: Callable[..., object]
    accepted: frozenset[str]

    def __call__(self, samples: list[Any]) -> object:
        """Collate `samples`."""
        if samples and isinstance(samples[0], dict) and not self.accepted.issuperset(samples[0]):
            samples = [{key: value for key, value in each.items() if key in self.accepted} for each in samples]
        return self.collator(samples)


@dataclass(frozen=True)
class TrainingLength:
    """The length of a run.

    Attributes:
        max_steps: updates in the whole run.
        num_epochs: passes over the data, the last one perhaps partial.
        updates_per_epoch: updates in a full pass; leftover micro-batches make one more.
        batches_per_epoch: micro-batches in a full pass on this process.
        num_examples: samples in a full pass, all processes together.
        num_train_samples: samples over the whole run, as reported by the speed metrics.
    """

    max_steps: int
    num_epochs: int
    updates_per_epoch: int
    batches_per_epoch: int
    num_examples: int
    num_train_samples: float

    @classmethod
    def of(cls, args: TrainingArguments, loader: DataLoader[object]) -> TrainingLength:
        """Work out the length of a run over `loader`.

        Raises:
            ArgumentError: the loader has no length and `max_steps` is not set, or there is nothing to train on.
        """
        accumulation = args.gradient_accumulation_steps
        total_batch = args.train_batch_size * accumulation * args.world_size
        if not has_length(loader):
            if args.max_steps <= 0:
                raise ArgumentError(
                    f"max_steps={args.max_steps}, but the training data has no length; set max_steps to the number of "
                    "updates to train for."
                )
            return cls(
                max_steps=args.max_steps,
                num_epochs=sys.maxsize,
                updates_per_epoch=args.max_steps,
                batches_per_epoch=args.max_steps * accumulation,
                num_examples=total_batch * args.max_steps,
                num_train_samples=total_batch * args.max_steps,
            )
        if args.max_steps == 0 or (args.max_steps < 0 and args.num_train_epochs == 0):
            raise ArgumentError(
                f"Nothing to train: max_steps={args.max_steps} and num_train_epochs={args.num_train_epochs}."
            )
        batches = len(loader)
        if batches == 0:
            raise InvalidInputError(
                "The training data holds no batch: it is empty, or dropped by dataloader_drop_last."
            )
        updates = math.ceil(batches / accumulation)
        examples = num_examples(loader, args.per_device_train_batch_size)
        if args.max_steps > 0:
            steps, epochs = args.max_steps, math.ceil(args.max_steps / updates)
            samples: float = steps * total_batch
        else:
            steps = math.ceil(args.num_train_epochs * updates)
            epochs = math.ceil(args.num_train_epochs)
            samples = examples * args.num_train_epochs
        return cls(steps, epochs, updates, batches, examples, samples)


def num_examples(loader: DataLoader[object], batch_size: int) -> int:
    """Return the number of samples behind `loader`, estimated from its batches if its dataset has no length."""
    dataset = getattr(loader, "dataset", None)
    if dataset is not None and has_length(dataset):
        return len(dataset)
    return len(loader) * batch_size


def move_to(value: Any, device: torch.device) -> Any:
    """Return `value` with every tensor in it on `device`; containers keep their type."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict) or hasattr(value, "items"):
        return type(value)({key: move_to(each, device) for key, each in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(move_to(each, device) for each in value))
    if isinstance(value, (tuple, list)):
        return type(value)(move_to(each, device) for each in value)
    return value
