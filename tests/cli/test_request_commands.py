"""Each request to a search is a command, which answers with what will happen."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpsearch.cli import main
from tests.support.live_requests import search


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["retry", "1"], "a new trial begins when the search continues"),
        (["add", "--learning_rate", "0.5"], "with learning_rate=0.5 (one trial more than its n_trials)"),
        (["add", "--like", "0"], "with the parameters of trial 0"),
        (["stop", "1"], "Trial 1 is complete"),
        (["extend", "1", "--num_train_epochs", "9"], "no checkpoint with the state of its optimizer"),
        (["add", "--learning_rate=0.5", "here"], "Expected the folder of one study, but got here, "),
        (["confirm", "--repeats", "3", "--top", "2"], "are trained with up to 3 seeds each, until the best"),
        (["pause"], "No search is running"),
        (["unpause"], "No search is running"),
        (["set", "n_trials=9"], "No search is running"),
        (["set", "timeout=2h"], "No search is running"),
    ],
)
def test_each_request_is_a_command_that_answers(
    finished: Path,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    said: str,
) -> None:
    (finished / "requests.json").unlink(missing_ok=True)
    main([*command, str(finished)])
    shown = capsys.readouterr()
    assert said in " ".join(f"{shown.out} {shown.err}".split())


def test_an_option_without_a_value_is_refused(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["add", str(finished), "--learning_rate"]) == 2
    assert "--learning_rate has no value; write it as --learning_rate 0.1" in " ".join(capsys.readouterr().err.split())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    search(folder)
    return folder / "study"
