"""Warnings that libraries repeat in every trial are shown once in a search."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import TextIO

from ..search.store.code_origin import is_of_package

_LIBRARIES = (
    "accelerate", "datasets", "huggingface_hub", "peft", "sentence_transformers", "torch", "transformers", "trl",
)  # fmt: skip


class _Once(logging.Filter):
    """A filter that lets a handler show each warning of a library once, and all other records."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[tuple[str, str]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING or record.name.partition(".")[0] not in _LIBRARIES:
            return True
        try:
            shown = (record.name, record.getMessage())
        except Exception:  # the handler reports it
            return True
        is_new = shown not in self._seen
        self._seen.add(shown)
        return is_new


@contextlib.contextmanager
def warnings_once() -> Iterator[None]:
    """Show each warning that a library logs, and each Python warning of the same line of a package, once in the block.

    Only on streams such as the terminal: a log file of the program gets all records. Python itself shows a warning of
    a line once, but forgets which whenever something enters ``warnings.catch_warnings``.
    """
    filters = [(each, _Once()) for each in _handlers()]
    show, seen = warnings.showwarning, set()

    def show_once(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        shown = (str(message), category, filename, lineno)
        if shown not in seen or not is_of_package(None, filename):
            seen.add(shown)
            show(message, category, filename, lineno, file, line)

    for handler, once in filters:
        handler.addFilter(once)
    warnings.showwarning = show_once
    try:
        yield
    finally:
        if warnings.showwarning is show_once:
            warnings.showwarning = show
        for handler, once in filters:
            handler.removeFilter(once)


def _handlers() -> list[logging.Handler]:
    """Return the handlers that show what libraries log."""
    loggers = [logging.getLogger(), *(logging.getLogger(each) for each in _LIBRARIES)]
    found = [*(each for logger in loggers for each in logger.handlers), logging.lastResort]
    shown = [each for each in found if isinstance(each, logging.StreamHandler)]
    return [each for each in dict.fromkeys(shown) if not isinstance(each, logging.FileHandler)]
