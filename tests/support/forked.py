"""A forked process that does something, and then lives until a test ends it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any


class Forked:
    """A process in which a function has been called, in a group with all that it has started."""

    def __init__(self, act: Callable[[], Any]) -> None:
        reads, writes = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                _kept = act()
                os.write(writes, b"x")
                while True:
                    signal.pause()
            finally:
                os._exit(1)
        os.close(writes)
        try:
            assert os.read(reads, 1) == b"x", "the function has raised"
        finally:
            os.close(reads)

    def stop(self) -> None:
        """Let the process stand still; return when it does."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def kill(self) -> None:
        """Kill the process, though not what it has started; return when it is a zombie."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def end(self) -> None:
        """End the process, and all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
