"""Which errors, while a checkpoint is read, say nothing about the checkpoint."""

from __future__ import annotations

from ..errors import HpsearchError
from ..system.communication import is_of_communication
from ..system.files import disk_problem
from .batch_size import is_out_of_memory


def is_of_outside(error: BaseException) -> bool:
    """Return whether the cause is memory, the disk or another process, or the error already names it."""
    has_name = isinstance(error, HpsearchError)
    return has_name or is_out_of_memory(error) or disk_problem(error) is not None or is_of_communication(error)
