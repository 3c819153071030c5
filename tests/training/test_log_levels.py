"""Log levels by process, and where our messages appear: once, on transformers' handler or on the program's own."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.utils import logging as transformers_logging

from hpsearch import Trainer, TrainingArguments
from tests.support.models import (
    Line,
    line_data,
)
from tests.support.small_training import args_of, make_trainer

ROOT = Path(__file__).parents[2]
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    names = ("transformers", "hpsearch")
    before = {name: logging.getLogger(name).level for name in names}
    logging.getLogger("hpsearch").setLevel(logging.NOTSET)
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


def levels() -> tuple[int, int]:
    return logging.getLogger("transformers").level, logging.getLogger("hpsearch").level


def build(args: Any) -> None:
    """Build a run, which sets the levels, and train nothing."""
    assert Trainer(Line(), args, train_dataset=line_data(8)).model is not None


def arguments_of(process: int, local_process: int, **values: Any) -> TrainingArguments:
    """The arguments as process number `process` of all, and `local_process` of its machine, has them."""

    class Elsewhere(TrainingArguments):
        process_index = property(lambda self: process)  # type: ignore[assignment]
        local_process_index = property(lambda self: local_process)  # type: ignore[assignment]

    return Elsewhere("out", use_cpu=True, **values)


MAIN, SECOND, MAIN_OF_SECOND_MACHINE, LAST = (0, 0), (1, 1), (2, 0), (3, 1)


@pytest.mark.feature(29)
@pytest.mark.parametrize(
    ("process", "on_each_node", "is_shown"),
    [
        (MAIN, True, True),
        (SECOND, True, False),
        (MAIN_OF_SECOND_MACHINE, True, True),
        (LAST, True, False),
        (MAIN, False, True),
        (SECOND, False, False),
        (MAIN_OF_SECOND_MACHINE, False, False),
        (LAST, False, False),
    ],
)
def test_the_process_decides_which_of_the_two_levels_holds(
    process: tuple[int, int], on_each_node: bool, is_shown: bool
) -> None:
    args = arguments_of(*process, log_level="info", log_level_replica="error", log_on_each_node=on_each_node)
    assert args.should_log is is_shown
    assert args.get_process_log_level() == (20 if is_shown else 40)
    build(args)
    assert levels() == ((20, 20) if is_shown else (40, 40))


@pytest.mark.feature(29)
@pytest.mark.parametrize("process", [MAIN, SECOND])
def test_passive_is_the_level_that_transformers_has_on_the_main_process_and_warning_on_others(
    process: tuple[int, int],
) -> None:
    transformers_logging.set_verbosity(15)
    peer = transformers.TrainingArguments("out", use_cpu=True)
    assert (peer.log_level, peer.log_level_replica) == ("passive", "warning")
    args = arguments_of(*process)
    assert (args.log_level, args.log_level_replica) == ("passive", "warning")
    assert args.get_process_log_level() == (15 if process == MAIN else 30)
    build(args)
    assert transformers_logging.get_verbosity() == (15 if process == MAIN else 30)


def test_passive_leaves_a_level_that_the_program_gave_our_logger(tmp_path: Path) -> None:
    transformers_logging.set_verbosity_error()
    logging.getLogger("hpsearch").setLevel(logging.INFO)
    for _ in range(2):
        make_trainer(tmp_path).train()
        assert levels() == (40, 20)


def test_passive_follows_transformers_if_the_program_said_nothing_of_our_logger(tmp_path: Path) -> None:
    for level in (40, 20, 30):
        transformers_logging.set_verbosity(level)
        make_trainer(tmp_path).train()
        assert levels() == (level, level)


@pytest.mark.parametrize("name", LEVELS)
def test_a_level_that_is_asked_for_wins_over_one_that_was_set(tmp_path: Path, name: str) -> None:
    logging.getLogger("hpsearch").setLevel(37)
    transformers_logging.set_verbosity(37)
    make_trainer(tmp_path, log_level=name).train()
    assert levels() == (LEVELS[name], LEVELS[name])


def test_the_level_is_set_by_a_run_and_not_by_the_arguments_or_the_constructor(tmp_path: Path) -> None:
    transformers_logging.set_verbosity(37)
    trainer = make_trainer(tmp_path, log_level="debug")
    assert levels() == (37, 0)
    trainer.train()
    assert levels() == (10, 10)


def announcements(records: list[logging.LogRecord]) -> list[str]:
    return [each.getMessage() for each in records if each.getMessage().startswith("Training: ")]


@pytest.mark.parametrize(("level", "expected"), [("debug", 1), ("info", 1), ("warning", 0), ("error", 0)])
def test_a_programs_own_handlers_receive_every_message_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, level: str, expected: int
) -> None:
    for _ in range(2):
        caplog.clear()
        make_trainer(tmp_path, log_level=level, num_train_epochs=2).train()
        assert len(announcements(caplog.records)) == expected
    if expected:
        [told] = announcements(caplog.records)
        assert "24 examples, 2 epochs, 6 steps" in told
        assert "3 trainable parameters; from step 0" in told


def test_runs_do_not_add_up_handlers(tmp_path: Path) -> None:
    make_trainer(tmp_path, log_level="info").train()
    count = len(logging.getLogger("hpsearch").handlers)
    for _ in range(3):
        make_trainer(tmp_path, log_level="info").train()
    assert len(logging.getLogger("hpsearch").handlers) == count == 1


PROGRAM = """
import logging, sys, torch
from transformers.utils import logging as of_transformers
from hpsearch import PrinterCallback, Trainer, TrainingArguments
from tests.support.models import Line, line_data

def train(part, **changes):
    print(f"== {part}", file=sys.stderr, flush=True)
    args = TrainingArguments(sys.argv[1], use_cpu=True, disable_tqdm=True, save_strategy="no", max_steps=1, **changes)
    trainer = Trainer(Line(), args, train_dataset=line_data(8))
    trainer.remove_callback(PrinterCallback)
    trainer.train()

train("passive")
train("info", log_level="info")
train("info again", log_level="info")
of_transformers.disable_default_handler()
train("silenced", log_level="info")
of_transformers.enable_default_handler()
train("enabled again", log_level="info")
logging.basicConfig(format="ROOT %(levelname)s %(message)s")
train("root", log_level="info")
train("root again", log_level="info")
train("root at warning", log_level="warning")
"""


@pytest.mark.process
def test_our_message_is_on_the_terminal_exactly_once_wherever_handlers_are(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "TRANSFORMERS_VERBOSITY")}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=ROOT,
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    shown = dict(part.split("\n", 1) for part in ended.stderr.split("== ")[1:])
    told = {part: [line for line in text.splitlines() if "Training: " in line] for part, text in shown.items()}
    assert {part: len(lines) for part, lines in told.items()} == {
        "passive": 0,
        "info": 1,
        "info again": 1,
        "silenced": 0,
        "enabled again": 1,
        "root": 1,
        "root again": 1,
        "root at warning": 0,
    }
    assert told["info"][0].startswith("[transformers] Training: 8 examples")
    assert told["root"][0].startswith("ROOT INFO Training: 8 examples")


@pytest.mark.feature(29)
@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("debug", logging.DEBUG),
        ("info", logging.INFO),
        ("warning", logging.WARNING),
        ("error", logging.ERROR),
        ("critical", logging.CRITICAL),
    ],
)
def test_the_main_process_speaks_at_the_level_of_log_level(tmp_path: Path, name: str, level: int) -> None:
    trainer = make_trainer(tmp_path, log_level=name)
    assert trainer.args.get_process_log_level() == level
    assert trainer.state.global_step == 0  # the first look builds the run
    assert transformers.utils.logging.get_verbosity() == level
    assert logging.getLogger("hpsearch").level == level


@pytest.mark.feature(29, "P12")
def test_the_levels_are_passive_and_warning_by_default() -> None:
    args = args_of()
    assert (args.log_level, args.log_level_replica, args.log_on_each_node) == ("passive", "warning", True)
    assert transformers.utils.logging.get_verbosity() == logging.WARNING
    assert args.get_process_log_level() == logging.WARNING
