"""Training with the largest batch that fits: `auto_find_batch_size`."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from accelerate.utils import find_executable_batch_size
from accelerate.utils.memory import should_reduce_batch_size
from transformers.trainer_utils import sort_checkpoints

from ..arguments import TrainingArguments
from ..system.files import remove_folder
from .resume import ResumePoint

# What accelerate does not know: the errors of a GPU whose memory other processes have taken.
_MEMORY_OF_CUDA = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
logger = logging.getLogger(__name__)
Result = TypeVar("Result")


def with_executable_batch_size(
    train: Callable[[TrainingArguments], Result],
    args: TrainingArguments,
    resume: ResumePoint | None,
    release: Callable[[], object],
) -> Result:
    """Return `train(args)` with the first batch size, from that of `args` downwards, that fits into the memory.

    A resumed run starts with the batch size of its checkpoint. accelerate decides what an out-of-memory error is and
    by how much to go down (a tenth). After a failure `release()` drops what the attempt had built, and the checkpoints
    it wrote are deleted, so that nothing is resumed from them. Every attempt starts from the beginning.

    Raises:
        RuntimeError: no batch size is left.

    Examples:
        >>> def train(args):
        ...     if args.per_device_train_batch_size > 6:
        ...         raise RuntimeError("CUDA out of memory.")
        ...     return args.per_device_train_batch_size
        >>> args = TrainingArguments("out", use_cpu=True, per_device_train_batch_size=8)
        >>> with_executable_batch_size(train, args, None, lambda: None)
        6
    """
    earlier = _checkpoints(args.output_dir)
    start = args.per_device_train_batch_size
    if resume is not None and resume.state.train_batch_size:
        start = resume.state.train_batch_size // max(1, args.n_gpu)

    last: list[BaseException] = []

    def once(batch_size: int) -> Result:
        try:
            return train(args.replace(per_device_train_batch_size=batch_size))
        except Exception as error:
            if isinstance(error, MemoryError) or not is_out_of_memory(error):
                raise _OtherError(error) from None
            logger.warning("Out of memory with a batch size of %d: trying a smaller one.", batch_size)
            last[:] = [error]
            traceback.clear_frames(error.__traceback__)  # they hold the model and the optimizer
            release()
            for checkpoint in _checkpoints(args.output_dir) - earlier:
                remove_folder(checkpoint)
            raise

    try:
        return find_executable_batch_size(once, starting_batch_size=start)()
    except _OtherError as other:
        raise other.error from other.error.__cause__
    except RuntimeError:
        raise RuntimeError(
            "auto_find_batch_size: not even a batch of one sample fits into the memory. Shorten the samples, set "
            "activation_checkpointing=True, train fewer weights (PEFT) or take a smaller model."
        ) from last[0]


class _OtherError(Exception):
    """Carries an error that is not about memory past accelerate, which only looks at the text of errors."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the memory, of the host or of a device, was exhausted."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if not error.args or not isinstance(error.args[0], str):
        return False
    is_of_cuda = isinstance(error, RuntimeError) and any(each in error.args[0] for each in _MEMORY_OF_CUDA)
    return is_of_cuda or should_reduce_batch_size(error)


def smaller_batches(args: TrainingArguments) -> dict[str, int] | None:
    """Return arguments for the same updates in smaller micro-batches; None if no batch can be divided any further.

    Micro-batches are halved, and twice as many accumulated; one of an odd size is divided by its smallest factor.
    Batches of evaluations are halved too.

    >>> smaller_batches(TrainingArguments("out", use_cpu=True, per_device_train_batch_size=16))
    {'per_device_train_batch_size': 8, 'gradient_accumulation_steps': 2, 'per_device_eval_batch_size': 4}
    """
    size = args.per_device_train_batch_size
    factor = next((each for each in range(2, size + 1) if size % each == 0), 1)
    if factor == 1 and args.per_device_eval_batch_size == 1:
        return None
    return {
        "per_device_train_batch_size": size // factor,
        "gradient_accumulation_steps": args.gradient_accumulation_steps * factor,
        "per_device_eval_batch_size": max(1, args.per_device_eval_batch_size // max(2, factor)),
    }


def _checkpoints(output_dir: str) -> set[str]:
    return set(sort_checkpoints(output_dir)) if Path(output_dir).is_dir() else set()
