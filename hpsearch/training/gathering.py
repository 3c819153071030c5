"""The outputs of an evaluation's batches, gathered from all processes: each sample once."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import gather_object
from accelerate.utils.operations import recursively_apply
from torch.utils.data import DataLoader
from transformers.trainer_pt_utils import EvalLoopContainer, nested_concat
from transformers.trainer_utils import has_length

from ..errors import InvalidInputError
from . import data
from .hooks import Batch, Hooks

if TYPE_CHECKING:
    from .run import TrainingRun


@dataclass(frozen=True)
class Share:
    """This process's share of one batch.

    Attributes:
        size: rows of the batch in this process; in the last batch, some may only pad it to the size of the others.
        counts: for each process, how many of its rows are samples.
    """

    run: TrainingRun
    size: int
    counts: tuple[int, ...]

    @classmethod
    def of(cls, run: TrainingRun, dataloader: DataLoader[object], size: int) -> Share:
        """Find the share: accelerate's loaders pad the last batch with samples of the first one, others do not."""
        accelerator = run.accelerator
        if accelerator.num_processes == 1:
            return cls(run, size, (size,))
        if not hasattr(dataloader, "end_of_dataloader"):
            sizes = accelerator.gather(torch.tensor([size], device=accelerator.device))
            return cls(run, size, tuple(sizes.tolist()))
        managed: Any = dataloader
        remainder = managed.remainder if managed.end_of_dataloader else 0
        if remainder <= 0:
            return cls(run, size, (size,) * accelerator.num_processes)
        return cls(
            run,
            size,
            tuple(min(max(remainder - rank * size, 0), size) for rank in range(accelerator.num_processes)),
        )

    @property
    def samples(self) -> int:
        """How many rows of this process are samples."""
        return self.counts[self.run.args.process_index] if len(self.counts) > 1 else self.counts[0]

    def without_padding(self, inputs: Batch) -> Batch:
        """Return the samples alone; a process that has none keeps one row, without a label, so that it takes part."""
        if self.samples == self.size:
            return inputs
        kept = max(self.samples, 1)
        rows = recursively_apply(lambda each: each[:kept] if each.dim() and len(each) == self.size else each, inputs)
        labels = rows.get("labels")
        if self.samples == 0 and isinstance(labels, torch.Tensor) and not labels.is_floating_point():
            rows["labels"] = torch.full_like(labels, -100)
        return rows

    def gather_rows(self, rows: object) -> object:
        """Return the rows of all processes, those that are samples, in the order of the data."""
        accelerator = self.run.accelerator
        if self.run.args.eval_use_gather_object:
            own = recursively_apply(lambda each: each[: self.samples].cpu(), rows)
            parts = [part for part, count in zip(gather_object([own]), self.counts, strict=True) if count]
            return functools.reduce(nested_concat, parts)
        if len(set(self.counts)) == 1:
            return accelerator.gather(rows)
        longest = max(self.counts)
        gathered = accelerator.gather(accelerator.pad_across_processes(rows, dim=0))
        return recursively_apply(lambda each: self._samples_of(each, longest), gathered)

    def loss_of_all(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss of the whole batch, once for every sample: what one process would have computed.

        A loss that is normalised over the items of all processes is their mean, another one that over the samples.
        """
        reduce = self.run.accelerator.reduce
        weight = torch.tensor(1.0 if self.run.loss_is_of_all_processes else float(self.samples), device=loss.device)
        own = loss.float() * weight if self.samples else torch.zeros_like(loss, dtype=torch.float32)
        return (reduce(own, "sum") / reduce(weight, "sum")).repeat(sum(self.counts))

    def _samples_of(self, rows: torch.Tensor, longest: int) -> torch.Tensor:
        starts = (rank * longest for rank in range(len(self.counts)))
        return torch.cat([rows[start : start + count] for start, count in zip(starts, self.counts, strict=True)])


@dataclass(frozen=True)
class BatchOutputs:
    """The outputs of one batch, from all processes; None where there are none."""

    losses: object = None
    predictions: object = None
    labels: Any = None
    inputs: Any = None


@dataclass(frozen=True)
class Outputs:
    """The outputs that an evaluation keeps of every batch."""

    losses: EvalLoopContainer
    predictions: EvalLoopContainer
    labels: EvalLoopContainer
    inputs: EvalLoopContainer
    wanted: tuple[str, ...] = field(default=())

    @classmethod
    def for_run(cls, run: TrainingRun) -> Outputs:
        """Return empty containers, for what the arguments of the run ask to keep."""
        make = functools.partial(EvalLoopContainer, run.args.eval_do_concat_batches, padding_index=-100)
        return cls(make(), make(), make(), make(), tuple(run.args.include_for_metrics))

    def gather(
        self,
        trainer: Hooks,
        inputs: Batch,
        share: Share,
        loss: torch.Tensor | None,
        logits: object,
        labels: object,
    ) -> BatchOutputs:
        """Bring one batch together from all processes; the samples that padded the last batch are dropped."""
        run = trainer.run
        shown = data.move_to(_main_input(run, inputs), run.args.device) if "inputs" in self.wanted else None
        if run.accelerator.num_processes == 1:
            if logits is not None and trainer.preprocess_logits_for_metrics is not None:
                logits = trainer.preprocess_logits_for_metrics(logits, labels)
            return BatchOutputs(None if loss is None else loss.repeat(max(share.samples, 1)), logits, labels, shown)
        pad, gather = run.accelerator.pad_across_processes, share.gather_rows
        if labels is not None:
            labels = pad(labels, dim=1, pad_index=-100)
        if logits is not None:
            logits = pad(logits, dim=1, pad_index=-100)
            if trainer.preprocess_logits_for_metrics is not None:
                logits = trainer.preprocess_logits_for_metrics(logits, labels)
        return BatchOutputs(
            None if loss is None else share.loss_of_all(loss),
            None if logits is None else gather(logits),
            None if labels is None else gather(labels),
            None if shown is None else gather(pad(shown, dim=1, pad_index=-100)),
        )

    def add(self, batch: BatchOutputs) -> None:
        """Keep a batch."""
        self.add_loss(batch)
        for container, value in ((self.predictions, batch.predictions), (self.labels, batch.labels)):
            if value is not None:
                container.add(value)
        if batch.inputs is not None:
            self.inputs.add(batch.inputs)

    def add_loss(self, batch: BatchOutputs) -> None:
        """Keep of a batch its loss alone."""
        if batch.losses is not None:
            self.losses.add(batch.losses)

    def to_host(self) -> None:
        """Move what was kept so far to the host."""
        for container in (self.losses, self.predictions, self.labels, self.inputs):
            container.to_cpu_and_numpy()

    def mean_loss(self, filter_nonfinite: bool) -> float | None:
        """Return the mean loss over all samples; with `filter_nonfinite`, over those whose loss is finite."""
        losses = self.losses.get_arrays()
        if losses is None:
            return None
        values = np.concatenate(losses) if isinstance(losses, list) else losses
        finite = np.isfinite(values)
        if filter_nonfinite and finite.any():
            values = values[finite]
        return float(values.mean())


def _main_input(run: TrainingRun, inputs: Batch) -> object:
    name = run.traits.main_input_name
    if name not in inputs:
        raise InvalidInputError(
            f"include_for_metrics=['inputs'] shows the main input of the model, {name!r}, but the batch holds only "
            f"{', '.join(inputs)}. Give the model's class an attribute main_input_name that names one of these."
        )
    return inputs[name]


def num_samples_of(run: TrainingRun, dataloader: DataLoader[object], seen: int) -> int:
    """Return how many samples were evaluated: the length of the dataset, or those that were seen."""
    dataset = getattr(dataloader, "dataset", None)
    if dataset is not None and has_length(dataset) and len(dataset):
        return len(dataset)
    if run.accelerator.num_processes == 1:
        return seen
    return int(run.accelerator.reduce(torch.tensor(seen, device=run.accelerator.device), reduction="sum"))
