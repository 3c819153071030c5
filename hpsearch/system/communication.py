"""Which errors are of the communication between processes, and not of what the processes compute."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from torch import distributed

from ..errors import CommunicationError

# gloo raises a RuntimeError, which begins with the place in gloo's code. A check of what it was called with has another
# beginning: "[enforce fail at ...".
_OF_GLOO = re.compile(r"(Gloo connectFullMesh failed with )?\[\S*gloo/\S*:\d+\] ")
# NCCL fails too where CUDA has failed in this process, or where it was called with what it cannot take.
_OF_THIS_PROCESS = ("ncclUnhandledCudaError", "unhandled cuda error", "ncclInvalidArgument", "ncclInvalidUsage")


def is_of_communication(error: BaseException) -> bool:
    """Return whether an error says that another process, or the store of the process group, cannot be reached."""
    if isinstance(error, (CommunicationError, distributed.DistNetworkError, distributed.DistStoreError)):
        return True
    if isinstance(error, distributed.DistBackendError):
        return not any(each in str(error) for each in _OF_THIS_PROCESS)
    return type(error) is RuntimeError and _OF_GLOO.match(str(error)) is not None


def communication_error(error: BaseException) -> CommunicationError:
    """Return an error of the communication as a `CommunicationError`, which names the remedy."""
    if isinstance(error, CommunicationError):
        return error
    first_line = str(error).strip().partition("\n")[0]
    named = CommunicationError(
        f"The processes of this search have lost their connection ({type(error).__name__}: {first_line}): one of "
        "them, the "
        "launcher or a node has died. Nothing is lost: run the same command again to continue, or let torchrun "
        "restart the processes (--max-restarts)."
    )
    named.__cause__ = error
    return named


@contextlib.contextmanager
def naming_lost_processes() -> Iterator[None]:
    """Turn an error of the communication into one that names the remedy.

    Raises:
        CommunicationError: in place of the error of torch, gloo or NCCL.
    """
    try:
        yield
    except CommunicationError:
        raise
    except Exception as error:
        if not is_of_communication(error):
            raise
        raise communication_error(error) from error
