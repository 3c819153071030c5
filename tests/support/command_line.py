"""A study that the command line has made, as a user makes the first one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TRIALS = 8


Told = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `first/study.py`, with less data so that it trains at once, and its study in `runs/spirals`."""
    from hpsearch.cli import main  # not before it is used: `tests/conftest.py` says why

    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        assert main(["init", "first"]) == 0
        file = Path("first/study.py")
        file.write_text(
            file.read_text().replace("make_data(1000,", "make_data(400,").replace("make_data(500,", "make_data(200,")
        )
        assert main(["run", "first/study.py", "-n", str(TRIALS), "--set", "num_train_epochs=4"]) == 0
    return folder
