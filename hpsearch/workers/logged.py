"""What a worker logs: what the program does."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import transformers


@dataclass(frozen=True)
class LoggingSettings:
    """How a process logs.

    Attributes:
        level: of the root logger; None: the program has no handler there, so nothing was set up.
        format: of its first handler.
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
        formatter = root.handlers[0].formatter if root.handlers else None
        is_plain = type(formatter) is logging.Formatter and isinstance(formatter._style, logging.PercentStyle)
        written = (formatter._fmt, formatter.datefmt) if formatter is not None and is_plain else (None, None)
        return cls(root.level if root.handlers else None, *written, verbosity)

    def apply(self) -> None:
        """Let this process log likewise, to its standard error."""
        if self.level is not None:
            written = self.format or logging.BASIC_FORMAT
            logging.basicConfig(level=self.level, format=written, datefmt=self.dates, force=True)
        transformers.logging.set_verbosity(self.verbosity)
