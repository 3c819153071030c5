"""A worker logs as the program does, as far as a record alone tells how."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import pytest

from hpsearch.executors.processes.process_settings import LoggingSettings


@contextlib.contextmanager
def no_handlers() -> Iterator[logging.Logger]:
    """Let the root logger have none, also none of pytest's, while the block runs."""
    logger = logging.getLogger()
    before = logger.level, logger.handlers
    logger.handlers = []
    try:
        yield logger
    finally:
        logger.handlers = before[1]
        logger.setLevel(before[0])


@pytest.mark.parametrize(
    ("formatter", "written"),
    [
        (logging.Formatter("%(levelname)s: %(message)s", "%H:%M"), "INFO: hello"),
        (logging.Formatter("%(request)s %(message)s"), "INFO:name:hello"),  # a filter gives that
        (logging.Formatter("{message}!", style="{"), "INFO:name:hello"),
        (None, "INFO:name:hello"),
    ],
)
def test_the_format_is_that_of_the_program_if_any_record_can_be_written_by_it(
    capsys: pytest.CaptureFixture[str], formatter: logging.Formatter | None, written: str
) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    with no_handlers() as root:
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        LoggingSettings.here().apply()
        logging.getLogger("name").info("hello")
        logging.getLogger("name").debug("not this")
    assert capsys.readouterr().err == f"{written}\n"


def test_what_the_programs_handler_leaves_out_is_left_out() -> None:
    handler = logging.StreamHandler()
    handler.setLevel(logging.ERROR)
    with no_handlers() as root:
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)
        assert LoggingSettings.here().level == logging.ERROR


def test_where_nothing_was_set_up_nothing_is() -> None:
    with no_handlers() as root:
        LoggingSettings.here().apply()
        assert root.handlers == []
