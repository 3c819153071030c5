"""The verbosity of the libraries' loggers and of ours."""

from __future__ import annotations

import logging

from transformers.utils import logging as transformers_logging


class _ToTransformers(logging.Handler):
    """Shows our messages where, and how, transformers shows its own, unless the program has set up handlers itself."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            transformers_logging.get_logger("transformers").handle(record)


_set_here: int | None = None


def set_level(level: int, is_passive: bool = False) -> None:
    """Set the level of the loggers of transformers and hpsearch.

    If `is_passive`, `level` is what transformers' loggers have already, and ours keeps one that the program gave it.

    Examples:
        >>> set_level(logging.WARNING)
        >>> logging.getLogger("hpsearch").level
        30
    """
    global _set_here
    transformers_logging.set_verbosity(level)
    ours = logging.getLogger("hpsearch")
    if not is_passive or ours.level in (logging.NOTSET, _set_here):
        ours.setLevel(level)
        _set_here = level
    if not ours.handlers:
        ours.addHandler(_ToTransformers())
