"""What a study's folder keeps of the command that began it: everything but secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpsearch import StudyError
from hpsearch.cli.stored_command import read_command
from hpsearch.cli.study_file import Command
from hpsearch.cli.trust import Given, admitted
from hpsearch.reports.commands_to_repeat import how_to_repeat

WORD = "Geheimnis"
SECRETS: list[tuple[str, dict[str, Any]]] = [
    ("arguments", {"hub_token": WORD}),
    ("arguments", {"secret": WORD}),
    ("arguments", {"api_key": WORD}),
    ("arguments", {"db_passwd": WORD}),
    ("arguments", {"optim_args": {"token": WORD}}),
    ("search", {"storage": f"postgresql://u:{WORD}/x@host/name"}),
    ("search", {"storage": f"postgresql://u:{WORD}/x@host"}),
    ("search", {"storage": f"postgresql://host/name?passwd={WORD}"}),
    ("search", {"storage": f"postgresql://host/name?pwd={WORD}"}),
    ("search", {"storage": f"mysql://host/name?token={WORD}"}),
]


@pytest.mark.parametrize(("part", "secret"), SECRETS)
def test_a_secret_is_not_written_and_asked_for_again(tmp_path: Path, part: str, secret: dict[str, Any]) -> None:
    given = {"arguments": {"num_train_epochs": 3}, "search": {"n_trials": 5}}
    given[part] = {**given[part], **secret}
    Command(str(tmp_path / "study.py"), str(tmp_path), **given).write(tmp_path)
    assert WORD not in (tmp_path / "command.json").read_text()
    with pytest.raises(StudyError, match=rf"{next(iter(secret))}, which is secret"):
        admitted(read_command(tmp_path), tmp_path, Given("hpsearch resume"))


@pytest.mark.parametrize(("part", "secret"), SECRETS)
def test_a_report_does_not_show_a_secret_that_an_earlier_version_wrote(
    tmp_path: Path, part: str, secret: dict[str, Any]
) -> None:
    begun = {"file": "study.py", "folder": "/here", "arguments": {"seed": 3}, "search": {"n_trials": 5}, part: secret}
    (tmp_path / "command.json").write_text(json.dumps(begun))
    told = how_to_repeat(tmp_path, "study", 0)
    assert WORD not in str(told)
    assert told.left_out == tuple(secret)
