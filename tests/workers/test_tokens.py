"""A token that workers find in their environment does not travel; any other one only in a file of this user alone."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import transformers

from hpsearch.executors.processes.payload import pack
from tests.support.small_trainer import small_trainer

HERE, OTHER = "hf_of_the_environment", "hf_of_another_user"


def trainer_with(folder: Path, token: str) -> Any:
    return small_trainer(folder, hub_token=token)


@pytest.fixture(params=["variable", "file"])
def environment(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A token in the environment of this process, which `huggingface_hub` finds."""
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    if request.param == "variable":
        monkeypatch.setenv("HF_TOKEN", HERE)
    else:
        monkeypatch.delenv("HF_TOKEN", raising=False)
        (tmp_path / "token").write_text(HERE)
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    return HERE


def test_a_token_of_the_environment_is_in_no_pickle_and_set_again(tmp_path: Path, environment: str) -> None:
    trainer = trainer_with(tmp_path, environment)
    payload = pack(trainer.with_arguments(), tmp_path / "data")
    assert environment.encode() not in payload.file.read_bytes()
    again = payload.load()
    assert again.args.hub_token == again.with_arguments(seed=7).args.hub_token == environment
    assert trainer.args.hub_token == environment


class Holds(transformers.TrainerCallback):
    """Keeps what it was given."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts


def test_no_arguments_that_a_part_of_a_trainer_keeps_travel_with_a_token(tmp_path: Path, environment: str) -> None:
    trainer = trainer_with(tmp_path, environment)
    theirs = transformers.TrainingArguments(str(tmp_path), hub_token=environment, use_cpu=True)
    trainer.add_callback(Holds(trainer.args, lambda: theirs))
    payload = pack(trainer, tmp_path / "data")
    assert environment.encode() not in payload.file.read_bytes()
    again = payload.load()
    own, function = again.callbacks[-1].parts
    assert own is again.args
    assert own.hub_token == function().hub_token == environment
    assert function().to_dict() == theirs.to_dict()


def test_a_worker_without_the_token_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_TOKEN", HERE)
    payload = pack(trainer_with(tmp_path, HERE), tmp_path / "data")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with caplog.at_level(logging.WARNING):
        assert payload.load().args.hub_token is None
    assert "HF_TOKEN" in caplog.text


@pytest.mark.parametrize("here", [HERE, None])
def test_another_token_travels_in_a_file_of_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str | None
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: here)
    payload = pack(trainer_with(tmp_path, OTHER).with_arguments(), tmp_path / "data")
    assert payload.load().args.hub_token == OTHER
    assert payload.file.stat().st_mode & 0o777 == 0o600
