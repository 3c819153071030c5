"""The verbosity of the libraries' loggers and of ours."""

from __future__ import annotations

import logging

from transformers.utils import logging as transformers_logging


class _ToTransformers(logging.Handler):
    """Shows our messages where, and how, transformers shows its own, unless the program has set up handlers itself."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            transformers_logging.get_logger("transformers").handle(record)


def set_level(level: int) -> None:
    """Set the level of the loggers of transformers and hpsearch.

    Example:
        >>> set_level(logging.WARNING)
        >>> logging.getLogger("hpsearch").level
        30
    """
    transformers_logging.set_verbosity(level)
    ours = logging.getLogger("hpsearch")
    ours.setLevel(level)
    if not ours.handlers:
        ours.addHandler(_ToTransformers())
