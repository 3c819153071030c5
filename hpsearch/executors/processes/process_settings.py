"""The settings that a worker takes over from the searching process: folder, variables, module path, logging."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import sys
from dataclasses import dataclass
from typing import TypeGuard

import transformers


def module_path() -> list[str]:
    """Return `sys.path` as another process needs it.

    An interactive session searches its current folder, not the one it was started in. Python ignores entries that are
    no text.
    """
    return [each or os.getcwd() for each in sys.path if isinstance(each, str)]


@dataclass(frozen=True)
class ProcessSettings:
    """The settings of a process.

    Attributes:
        folder: the current one; None if it was deleted.
        variables: the environment.
        module_path: see `module_path`.
        arguments: of the command line.
        start_method: of `multiprocessing`; None: its default.
        authkey: of `multiprocessing`, by which a trainer may reach a manager of the program.
        logging: see `LoggingSettings`.
    """

    folder: str | None
    variables: dict[str, str]
    module_path: list[str]
    arguments: list[str]
    start_method: str | None
    authkey: bytes
    logging: LoggingSettings

    @classmethod
    def here(cls) -> ProcessSettings:
        """Return the settings of this process."""
        folder = None
        with contextlib.suppress(FileNotFoundError):
            folder = os.getcwd()
        start_method = multiprocessing.get_start_method(allow_none=True)
        authkey = bytes(multiprocessing.current_process().authkey)
        rest = (start_method, authkey, LoggingSettings.here())
        return cls(folder, dict(os.environ), module_path(), list(sys.argv), *rest)

    def apply(self) -> None:
        """Give this process the same settings."""
        if self.folder is not None:
            with contextlib.suppress(OSError):
                os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.variables)
        sys.path, sys.argv = list(self.module_path), list(self.arguments)
        if self.start_method is not None:
            multiprocessing.set_start_method(self.start_method, force=True)
        multiprocessing.current_process().authkey = self.authkey
        self.logging.apply()


@dataclass(frozen=True)
class LoggingSettings:
    """How a process logs.

    Attributes:
        level: of the root logger and its first handler; None if there is no handler, so logging was not configured.
        format: of that handler; None if it needs more than a record.
        dates: the format of times.
        verbosity: of transformers.
    """

    level: int | None
    format: str | None
    dates: str | None
    verbosity: int

    @classmethod
    def here(cls) -> LoggingSettings:
        """Return the settings of this process."""
        root, verbosity = logging.getLogger(), transformers.logging.get_verbosity()
        if not root.handlers:
            return cls(None, None, None, verbosity)
        formatter = root.handlers[0].formatter
        written = (formatter._fmt, formatter.datefmt) if _is_plain(formatter) else (None, None)
        return cls(max(root.level, root.handlers[0].level), *written, verbosity)

    def apply(self) -> None:
        """Log in the same way, to the standard error of this process."""
        if self.level is not None:
            written = self.format or logging.BASIC_FORMAT
            logging.basicConfig(level=self.level, format=written, datefmt=self.dates, force=True)
        transformers.logging.set_verbosity(self.verbosity)


def _is_plain(formatter: object) -> TypeGuard[logging.Formatter]:
    """Return whether a formatter can format any record, with a %-style format."""
    if type(formatter) is not logging.Formatter or type(formatter._style) is not logging.PercentStyle:
        return False
    try:
        logging.Formatter(formatter._fmt).format(logging.makeLogRecord({}))
    except (KeyError, ValueError):  # fields that a filter or its defaults add
        return False
    return True
