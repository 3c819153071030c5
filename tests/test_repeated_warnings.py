"""In a search, a warning that a library repeats in each trial is shown once; all other output is not touched."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import datasets
import pytest
import torch
import transformers

from hpsearch import Float
from hpsearch.searching.repeated_warnings import warnings_once
from hpsearch.system.progress_bars import no_progress_bars
from tests.support.small_trainer import TwoLayers, small_trainer


@pytest.fixture
def shown() -> Iterator[io.StringIO]:
    """Return what the root logger shows."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    yield stream
    logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize(
    ("logger", "level", "times"),
    [
        ("trl.trainer.sft_trainer", logging.WARNING, 1),
        ("accelerate", logging.WARNING, 1),
        ("trl.trainer.sft_trainer", logging.ERROR, 2),
        ("trl_of_mine", logging.WARNING, 2),
        ("hpsearch", logging.WARNING, 2),
        ("__main__", logging.WARNING, 2),
    ],
)
def test_the_same_warning_of_a_library_is_shown_once(logger: str, level: int, times: int, shown: io.StringIO) -> None:
    with warnings_once():
        for _ in range(2):
            logging.getLogger(logger).log(level, "lower than %s", 1)
        logging.getLogger(logger).log(level, "lower than %s", 2)
    assert shown.getvalue().splitlines() == ["lower than 1"] * times + ["lower than 2"]


def test_the_next_search_shows_it_again(shown: io.StringIO) -> None:
    for _ in range(2):
        with warnings_once():
            logging.getLogger("trl").warning("again")
    logging.getLogger("trl").warning("again")
    assert shown.getvalue() == "again\n" * 3


def test_a_handler_of_the_library_itself_shows_it_once() -> None:
    handler = logging.StreamHandler(io.StringIO())
    logging.getLogger("transformers").addHandler(handler)
    try:
        with warnings_once():
            for _ in range(2):
                logging.getLogger("transformers.trainer").warning("new tokens")
    finally:
        logging.getLogger("transformers").removeHandler(handler)
    assert handler.stream.getvalue() == "new tokens\n"


def test_a_log_file_gets_all(tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "log")
    logging.getLogger().addHandler(handler)
    try:
        with warnings_once():
            for _ in range(2):
                logging.getLogger("trl").warning("again")
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
    assert (tmp_path / "log").read_text() == "again\n" * 2


def warn(text: str) -> None:
    with warnings.catch_warnings():  # Python forgets which warnings it has shown
        pass
    warnings.warn_explicit(text, FutureWarning, torch.__file__, 1)


def test_a_warning_of_the_programs_own_is_shown_each_time() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with warnings_once():
            for _ in range(2):
                warnings.warn("mine", UserWarning, stacklevel=1)
    assert [str(each.message) for each in found] == ["mine", "mine"]


def test_the_same_warning_of_python_is_shown_once_also_after_its_filters_have_changed() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        show = warnings.showwarning
        with warnings_once():
            for text in ("old", "old", "older"):
                warn(text)
        assert warnings.showwarning is show
    assert [str(each.message) for each in found] == ["old", "older"]


def test_a_search_shows_a_warning_of_a_library_once(tmp_path: Path) -> None:
    def model_init() -> TwoLayers:
        warn("old")
        return TwoLayers()

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trainer = small_trainer(tmp_path, model_init=model_init)
        trainer.hyperparameter_search({"weight_decay": Float(0.0, 0.1)}, "loss", n_trials=3, progress=False)
    assert [str(each.message) for each in found].count("old") == 1


def test_the_program_may_record_warnings_meanwhile() -> None:
    with warnings_once():
        for _ in range(2):
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                warn("old")
            assert [str(each.message) for each in found] == ["old"]


def test_progress_bars_are_off_in_the_block_and_as_they_were_after_it() -> None:
    def are_on() -> list[bool]:
        return [not datasets.are_progress_bars_disabled(), transformers.logging.is_progress_bar_enabled()]

    before = are_on()
    try:
        datasets.enable_progress_bars()
        transformers.logging.enable_progress_bar()
        with no_progress_bars():
            assert are_on() == [False, False]
        assert are_on() == [True, True]
        datasets.disable_progress_bars()
        with no_progress_bars():
            assert are_on() == [False, False]
        assert are_on() == [False, True]
    finally:
        (datasets.enable_progress_bars if before[0] else datasets.disable_progress_bars)()
        (transformers.logging.enable_progress_bar if before[1] else transformers.logging.disable_progress_bar)()
