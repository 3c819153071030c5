"""What a worker logs: what the program does."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, TypeGuard

import transformers


@dataclass(frozen=True)
class LoggingSettings:
    """How a process logs.

    Attributes:
        level: of the root logger and its first handler; None: there is no handler, so nothing was set up.
        format: of that handler; None: it is one that needs more than a record.
        dates: how times are written there.
        verbosity: of transformers.
    """

    level: int | None
    format: str | None
    dates: str | None
    verbosity: int

    @classmethod
    def here(cls) -> LoggingSettings:
        """Return those of this process."""
        root, verbosity = logging.getLogger(), transformers.logging.get_verbosity()
        if not root.handlers:
            return cls(None, None, None, verbosity)
        formatter = root.handlers[0].formatter
        written = (formatter._fmt, formatter.datefmt) if _is_plain(formatter) else (None, None)
        return cls(max(root.level, root.handlers[0].level), *written, verbosity)

    def apply(self) -> None:
        """Let this process log likewise, to its standard error."""
        if self.level is not None:
            written = self.format or logging.BASIC_FORMAT
            logging.basicConfig(level=self.level, format=written, datefmt=self.dates, force=True)
        transformers.logging.set_verbosity(self.verbosity)


def _is_plain(formatter: Any) -> TypeGuard[logging.Formatter]:
    """Tell whether a formatter writes any record by a format with %."""
    if type(formatter) is not logging.Formatter or type(formatter._style) is not logging.PercentStyle:
        return False
    try:
        logging.Formatter(formatter._fmt).format(logging.makeLogRecord({}))
    except (KeyError, ValueError):  # what a filter or its defaults give
        return False
    return True
