"""transformers' logging through a training of ours: verbosity, handlers, format, progress bars (rows 112 and 113)."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import logging as transformers_logging

from hpsearch import Trainer
from tests.support.line_trainer import line_trainer
from tests.support.models import bert_classifier, classification_data

ROOT = Path(__file__).parents[2]
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class Lines(logging.Handler):
    """Keeps every formatted line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    loggers = [logging.getLogger("transformers"), logging.getLogger("hpsearch")]
    before = [(each.level, list(each.handlers), [handler.formatter for handler in each.handlers]) for each in loggers]
    bars = transformers_logging.is_progress_bar_enabled()
    logging.getLogger("hpsearch").setLevel(logging.NOTSET)
    yield
    for each, (level, handlers, formatters) in zip(loggers, before, strict=True):
        each.setLevel(level)
        each.handlers[:] = handlers
        for handler, formatter in zip(handlers, formatters, strict=True):
            handler.setFormatter(formatter)
    (transformers_logging.enable_progress_bar if bars else transformers_logging.disable_progress_bar)()


@pytest.fixture
def lines() -> Lines:
    handler = Lines()
    transformers_logging.add_handler(handler)
    return handler


def saving_trainer(folder: Path, **changes: Any) -> Trainer:
    """Trains a BERT classifier for one update and saves it, which transformers tells at the level info."""
    data = classification_data(8)
    trainer = {"model_init": bert_classifier, "train_dataset": data, "eval_dataset": data}
    return line_trainer(folder, trainer, max_steps=1, save_strategy="steps", save_steps=1, **changes)


def saved(lines: list[str]) -> list[str]:
    return [line for line in lines if "Configuration saved in" in line]


@pytest.mark.parametrize(
    "choose",
    [
        transformers_logging.set_verbosity_debug,
        transformers_logging.set_verbosity_info,
        transformers_logging.set_verbosity_warning,
        transformers_logging.set_verbosity_error,
    ],
)
def test_training_leaves_a_verbosity_that_was_chosen_before(tmp_path: Path, choose: Callable[[], None]) -> None:
    choose()
    chosen = transformers_logging.get_verbosity()
    line_trainer(tmp_path).train()
    assert transformers_logging.get_verbosity() == chosen
    assert logging.getLogger("hpsearch").getEffectiveLevel() == chosen


@pytest.mark.feature(112)
@pytest.mark.parametrize("name", LEVELS)
def test_a_log_level_in_the_arguments_is_the_verbosity_of_the_run(tmp_path: Path, name: str) -> None:
    transformers_logging.set_verbosity_warning()
    line_trainer(tmp_path, log_level=name).train()
    assert transformers_logging.get_verbosity() == LEVELS[name]


@pytest.mark.feature(112)
@pytest.mark.parametrize(("level", "is_told"), [("info", True), ("warning", False)])
def test_the_verbosity_decides_what_is_told_while_training(
    tmp_path: Path, lines: Lines, level: str, is_told: bool
) -> None:
    saving_trainer(tmp_path, log_level=level).train()
    assert bool(saved(lines.lines)) == is_told


@pytest.mark.feature(113)
def test_a_handler_that_was_removed_hears_nothing_more(tmp_path: Path, lines: Lines) -> None:
    transformers_logging.set_verbosity_info()
    transformers_logging.remove_handler(lines)
    saving_trainer(tmp_path).train()
    assert lines.lines == []


@pytest.mark.feature(113)
def test_the_explicit_format_shows_level_file_line_and_time_until_it_is_reset(tmp_path: Path, lines: Lines) -> None:
    transformers_logging.set_verbosity_info()
    transformers_logging.enable_explicit_format()
    saving_trainer(tmp_path / "explicit").train()
    (line,) = saved(lines.lines)
    assert re.match(r"\[INFO\|\w+\.py:\d+\] \d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} >> Configuration saved in ", line)
    lines.lines.clear()
    transformers_logging.reset_format()
    saving_trainer(tmp_path / "reset").train()
    (line,) = saved(lines.lines)
    assert line.startswith("Configuration saved in ")


@pytest.mark.feature(112)
def test_a_logger_of_the_users_own_follows_the_verbosity(tmp_path: Path, lines: Lines) -> None:
    own = transformers_logging.get_logger("transformers.my_script")
    line_trainer(tmp_path, log_level="error").train()
    own.warning("not told")
    own.error("told")
    assert lines.lines == ["told"]


@pytest.mark.feature(113)
@pytest.mark.parametrize("enabled", [True, False])
def test_training_and_saving_leave_the_progress_bars_of_transformers_as_they_were(
    tmp_path: Path, enabled: bool
) -> None:
    (transformers_logging.enable_progress_bar if enabled else transformers_logging.disable_progress_bar)()
    saving_trainer(tmp_path).train()
    assert transformers_logging.is_progress_bar_enabled() == enabled


SCRIPT = """
import sys
from transformers.utils import logging
from tests.reuse.test_logging import saving_trainer

def part(name, **changes):
    print("---", name, file=sys.stderr, flush=True)
    saving_trainer(f"out/{name}", **changes).train()

part("environment")
logging.enable_explicit_format()
part("explicit")
logging.reset_format()
logging.disable_default_handler()
part("no handler")
logging.enable_default_handler()
part("handler again")
logging.set_verbosity_warning()
part("warning")
"""


@pytest.mark.process
@pytest.mark.feature(112)
def test_what_a_terminal_shows_follows_environment_verbosity_handler_and_format(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "info"}
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    parts = re.split(r"^--- (.+)\n", process.stderr, flags=re.MULTILINE)[1:]
    shown = {name: saved(text.splitlines()) for name, text in zip(parts[::2], parts[1::2], strict=True)}
    assert [name for name, each in shown.items() if each] == ["environment", "explicit", "handler again"]
    assert not shown["environment"][0].startswith("[INFO|")
    assert shown["explicit"][0].startswith("[INFO|")
    assert not shown["handler again"][0].startswith("[INFO|")
    assert all(len(each) <= 1 for each in shown.values())
