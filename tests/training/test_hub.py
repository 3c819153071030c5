"""What is uploaded to the Hub, when and by whom; the Hub is a real HTTP server on this machine."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from huggingface_hub import CommitInfo, constants
from huggingface_hub.errors import HfHubHTTPError
from transformers import AutoConfig, AutoTokenizer, BertForSequenceClassification, PrinterCallback, TrainerCallback

from hpsearch import Float, Trainer, TrainingArguments
from hpsearch.errors import ArgumentError
from hpsearch.search.store import study_folder
from hpsearch.system.files import PARTIAL_MARK
from hpsearch.training import hub as hub_module
from tests.support.hub_server import TOKEN, USER, HubServer
from tests.support.models import Line, bert_classifier, classification_data, line_data, small_tokenizer, weights_of

MODEL = ["README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
MODEL_AND_ARGUMENTS = sorted([*MODEL, "training_args.bin"])
CHECKPOINT = sorted(
    [
        *MODEL_AND_ARGUMENTS[1:],
        *("optimizer.pt", "rng_state.pth", "run_state.json", "scheduler.pt", "trainer_state.json"),
    ]
)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub with nothing on it; the real clients of huggingface_hub and transformers talk to it."""
    with HubServer() as server:
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        for name, value in {
            "ENDPOINT": server.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": template,
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,
        }.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", server.url)
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server
        huggingface_hub.close_session()


class Events(TrainerCallback):
    """Counts the events that matter here; `at_step` does something at the end of a step."""

    def __init__(self, **at_step: Any) -> None:
        self.pushes = self.trainings = self.steps = 0
        self.at_step = {int(name.removeprefix("step_")): action for name, action in at_step.items()}

    def on_push_begin(self, *args: Any, **kwargs: Any) -> None:
        self.pushes += 1

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.trainings += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self.steps += 1
        if state.global_step in self.at_step:
            self.at_step[state.global_step]()
        return control


def stop(trainer: Trainer) -> None:
    trainer.control.should_training_stop = True


def make_trainer(folder: Path, *callbacks: Any, kind: type[Trainer] = Trainer, **changes: Any) -> Trainer:
    """A small classifier that trains 4 steps, saves at steps 2 and 4, and uploads to `model`."""
    values: dict[str, Any] = {
        "learning_rate": 0.01,
        "per_device_train_batch_size": 4,
        "max_steps": 4,
        "save_steps": 2,
        "push_to_hub": True,
        "hub_model_id": "model",
        "hub_always_push": True,
        "logging_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        **changes,
    }
    trainer = kind(
        model_init=lambda: bert_classifier(hidden=8),
        args=TrainingArguments(str(folder), **values),
        train_dataset=classification_data(16),
        processing_class=small_tokenizer(),
        callbacks=list(callbacks),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def download(tmp_path: Path, repo_id: str = f"{USER}/model", **options: Any) -> Path:
    return Path(huggingface_hub.snapshot_download(repo_id, cache_dir=tmp_path / "cache", **options))


def snapshots_in(folder: Path) -> list[Path]:
    return list(folder.glob(f"{PARTIAL_MARK}*"))


# Strategies.


@pytest.mark.feature(129)
@pytest.mark.parametrize(
    ("strategy", "checkpoint_folders", "messages"),
    [
        ("every_save", [], ["step 2", "step 4"]),
        ("checkpoint", ["last-checkpoint"], ["step 2", "step 2, checkpoint", "step 4", "step 4, checkpoint"]),
        (
            "all_checkpoints",
            ["checkpoint-2", "checkpoint-4"],
            ["step 2", "step 2, checkpoint", "step 4", "step 4, checkpoint"],
        ),
    ],
)
def test_each_strategy_uploads_its_files_and_no_others(
    tmp_path: Path, hub: HubServer, strategy: str, checkpoint_folders: list[str], messages: list[str]
) -> None:
    trainer = make_trainer(tmp_path / "out", hub_strategy=strategy)
    trainer.train()
    expected = [*MODEL_AND_ARGUMENTS, *(f"{folder}/{name}" for folder in checkpoint_folders for name in CHECKPOINT)]
    assert hub.files(f"{USER}/model") == sorted(expected)
    assert hub.messages(f"{USER}/model") == [f"Training in progress, {each}" for each in messages]
    assert snapshots_in(tmp_path / "out") == []


def test_the_strategy_end_uploads_nothing_before_the_user_saves_or_pushes(tmp_path: Path, hub: HubServer) -> None:
    trainer = make_trainer(tmp_path / "out", hub_strategy="end")
    trainer.train()
    assert hub.files(f"{USER}/model") == []
    trainer.save_model()
    assert hub.files(f"{USER}/model") == MODEL_AND_ARGUMENTS
    assert hub.messages(f"{USER}/model") == ["Model save"]


def test_saving_by_epochs_names_the_epoch_in_the_commit(tmp_path: Path, hub: HubServer) -> None:
    make_trainer(tmp_path / "out", save_strategy="epoch", max_steps=-1, num_train_epochs=2).train()
    assert hub.messages(f"{USER}/model") == ["Training in progress, epoch 1", "Training in progress, epoch 2"]


def test_an_uploaded_model_loads_with_the_weights_that_were_trained(tmp_path: Path, hub: HubServer) -> None:
    trainer = make_trainer(tmp_path / "out")
    trainer.train()
    cache = str(tmp_path / "cache")
    loaded = BertForSequenceClassification.from_pretrained(f"{USER}/model", cache_dir=cache)
    for name, weight in weights_of(trainer.model).items():
        assert torch.equal(weight, loaded.state_dict()[name])
    tokenizer = AutoTokenizer.from_pretrained(f"{USER}/model", cache_dir=cache)
    assert tokenizer.get_vocab() == trainer.processing_class.get_vocab()


@pytest.mark.feature("P8")
def test_a_downloaded_last_checkpoint_resumes_exactly(tmp_path: Path, hub: HubServer) -> None:
    whole = make_trainer(tmp_path / "whole", push_to_hub=False)
    whole.train()
    events = Events(step_2=lambda: stop(halted))
    halted = make_trainer(tmp_path / "halted", events, hub_strategy="checkpoint")
    halted.train()
    assert halted.state.global_step == 2
    checkpoint = download(tmp_path) / "last-checkpoint"
    resumed = make_trainer(tmp_path / "resumed", push_to_hub=False)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.state.global_step == 4
    for name, weight in weights_of(whole.model).items():
        assert torch.equal(weight, weights_of(resumed.model)[name])


def test_last_checkpoint_on_the_hub_holds_nothing_of_an_earlier_one(tmp_path: Path, hub: HubServer) -> None:
    trainer = make_trainer(tmp_path / "out", hub_strategy="checkpoint")
    trainer.init_hf_repo()
    huggingface_hub.upload_file(
        path_or_fileobj=b"old", path_in_repo="last-checkpoint/rng_state_1.pth", repo_id=f"{USER}/model"
    )
    trainer.train()
    assert [each for each in hub.files(f"{USER}/model") if each.startswith("last")] == [
        f"last-checkpoint/{name}" for name in CHECKPOINT
    ]


def test_files_of_the_user_in_the_output_folder_are_uploaded_with_every_save(tmp_path: Path, hub: HubServer) -> None:
    folder = tmp_path / "out"
    for name in ("notes.txt", "runs/events", "_private/notes.txt", "model-00001-of-00002.safetensors", "s/study.json"):
        Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
        Path(folder, name).write_text(name)
    Path(folder, "README.md").write_text("written by hand")
    make_trainer(folder).train()
    assert hub.files(f"{USER}/model") == sorted([*MODEL_AND_ARGUMENTS, "notes.txt", "runs/events"])
    assert hub.content(f"{USER}/model", "README.md") == b"written by hand"


# In the background.


def test_training_goes_on_while_an_upload_waits_and_its_end_waits_for_it(tmp_path: Path, hub: HubServer) -> None:
    hub.gate.clear()
    events = Events(step_4=lambda: at_last_step.append(hub.messages(f"{USER}/model")))
    at_last_step: list[list[str]] = []
    trainer = make_trainer(tmp_path / "out", events)
    threading.Timer(0.5, hub.gate.set).start()
    trainer.train()
    assert at_last_step == [[]]
    assert hub.messages(f"{USER}/model") == ["Training in progress, step 2", "Training in progress, step 4"]


def test_a_save_during_an_upload_is_left_out_unless_hub_always_push(tmp_path: Path, hub: HubServer) -> None:
    hub.gate.clear()
    events = Events(step_5=hub.gate.set)
    trainer = make_trainer(tmp_path / "out", events, hub_always_push=False, max_steps=5, save_strategy="steps")
    trainer.train()
    assert hub.messages(f"{USER}/model")[:1] == ["Training in progress, step 2"]
    assert "Training in progress, step 4" not in hub.messages(f"{USER}/model")


def test_a_checkpoint_that_is_deleted_before_its_upload_is_uploaded_whole(tmp_path: Path, hub: HubServer) -> None:
    hub.gate.clear()
    kept: dict[int, bytes] = {}

    def keep(step: int) -> None:
        kept[step] = (tmp_path / f"out/checkpoint-{step}/model.safetensors").read_bytes()

    events = Events(step_3=lambda: keep(2), step_4=hub.gate.set)
    trainer = make_trainer(tmp_path / "out", events, hub_strategy="all_checkpoints", save_total_limit=1)
    trainer.train()
    assert not (tmp_path / "out/checkpoint-2").exists()
    assert hub.content(f"{USER}/model", "checkpoint-2/model.safetensors") == kept[2]
    assert hub.content(f"{USER}/model", "checkpoint-4/model.safetensors") != kept[2]


def test_what_a_killed_upload_left_behind_is_removed_when_training_starts(tmp_path: Path, hub: HubServer) -> None:
    left = tmp_path / "out" / f"{PARTIAL_MARK}1-upload-0"
    (left / "model").mkdir(parents=True)
    (left / "model" / "model.safetensors").write_text("old")
    make_trainer(tmp_path / "out").train()
    assert not left.exists()


def test_a_hub_that_fails_costs_a_warning_but_not_the_training(
    tmp_path: Path, hub: HubServer, caplog: pytest.LogCaptureFixture
) -> None:
    hub.fails_commits = 500
    trainer = make_trainer(tmp_path / "out")
    with caplog.at_level(logging.WARNING, logger="hpsearch"):
        assert trainer.train().global_step == 4
    warnings = [record.getMessage() for record in caplog.records if record.name == hub_module.__name__]
    assert [each.split(" to ")[0] for each in warnings] == [
        "The upload 'Training in progress, step 2'",
        "The upload 'Training in progress, step 4'",
    ]
    assert "500" in warnings[0]
    assert snapshots_in(tmp_path / "out") == []
    with pytest.raises(HfHubHTTPError, match="500"):
        trainer.push_to_hub()
    hub.fails_commits = None
    trainer.push_to_hub()
    assert hub.files(f"{USER}/model") == MODEL_AND_ARGUMENTS


def test_a_file_that_cannot_be_copied_costs_a_warning_but_not_the_training(
    tmp_path: Path, hub: HubServer, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "out"
    (folder / "notes").mkdir(parents=True)
    (folder / "notes" / "gone").symlink_to(tmp_path / "nowhere")
    (folder / "gone").symlink_to(tmp_path / "nowhere")
    os.mkfifo(folder / "notes" / "pipe")
    with caplog.at_level(logging.WARNING, logger="hpsearch"):
        assert make_trainer(folder).train().global_step == 4
    assert "checkpoint-2 is not uploaded" in caplog.text
    assert snapshots_in(folder) == []


# What is found wrong before the first step.


@pytest.mark.parametrize("name", ["a/b/c", "my model", "-model", "model.git", "a--b"])
def test_an_impossible_hub_model_id_is_an_error_before_the_first_step(
    tmp_path: Path, hub: HubServer, name: str
) -> None:
    events = Events()
    with pytest.raises(ArgumentError, match="hub_model_id") as raised:
        make_trainer(tmp_path / "out", events, hub_model_id=name).train()
    assert repr(name) in str(raised.value)
    assert (events.trainings, hub.requests) == (0, [])


def test_the_output_folders_name_stands_in_for_hub_model_id_and_is_checked_too(tmp_path: Path, hub: HubServer) -> None:
    make_trainer(tmp_path / "from-folder", hub_model_id=None).train()
    assert list(hub.repositories) == [f"{USER}/from-folder"]
    with pytest.raises(ArgumentError, match=r"The name of output_dir.*'my out'"):
        make_trainer(tmp_path / "my out", hub_model_id=None).train()


def test_a_refused_token_is_an_error_before_the_first_step(tmp_path: Path, hub: HubServer) -> None:
    events = Events()
    with pytest.raises(HfHubHTTPError, match="401"):
        make_trainer(tmp_path / "out", events, hub_token="wrong").train()
    assert events.trainings == 0


def test_a_hub_that_cannot_be_reached_is_an_error_before_the_first_step(
    tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    events = Events()
    with pytest.raises(ConnectionError, match="offline"):
        make_trainer(tmp_path / "out", events).train()
    assert events.trainings == 0


# push_to_hub, save_model, the repository.


@pytest.mark.feature(130)
def test_push_to_hub_uploads_the_folder_without_checkpoints_studies_and_partial_files(
    tmp_path: Path, hub: HubServer
) -> None:
    folder = tmp_path / "out"
    trainer = make_trainer(folder, push_to_hub=False)
    trainer.train()
    unwanted = [
        "_cache/x",
        f"{PARTIAL_MARK}1-x/y",
        f"runs/{PARTIAL_MARK}1-y",
        "study [1]/study.json",
        "study [1]/run-0/x",
    ]
    for name in [*unwanted, "runs/events", "all_results.json"]:
        Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
        Path(folder, name).write_text(name)
    assert trainer.hub_model_id is None
    assert hub.requests == []
    info = trainer.push_to_hub(commit_message="Done", tags="mine")
    assert isinstance(info, CommitInfo)
    assert info.oid == hub.repositories[f"{USER}/model"].branches["main"][-1].sha
    assert hub.messages(f"{USER}/model") == ["Done"]
    assert hub.files(f"{USER}/model") == sorted([*MODEL_AND_ARGUMENTS, "runs/events", "all_results.json"])
    assert b"- mine" in hub.content(f"{USER}/model", "README.md")
    assert trainer.hub_model_id == f"{USER}/model"


def test_the_name_of_a_studys_file_is_the_one_that_the_search_writes() -> None:
    assert hub_module.STUDY_FILE == study_folder.STUDY_FILE


@pytest.mark.feature(130)
def test_push_to_hub_without_blocking_returns_the_future_of_the_commit(tmp_path: Path, hub: HubServer) -> None:
    hub.gate.clear()
    trainer = make_trainer(tmp_path / "out", push_to_hub=False)
    future = trainer.push_to_hub(blocking=False)
    assert isinstance(future, Future)
    assert hub.files(f"{USER}/model") == []
    hub.gate.set()
    assert isinstance(future.result(timeout=10), CommitInfo)
    assert hub.files(f"{USER}/model") == MODEL_AND_ARGUMENTS


@pytest.mark.feature(129)
def test_save_model_uploads_only_with_push_to_hub_and_never_for_an_internal_call(
    tmp_path: Path, hub: HubServer
) -> None:
    make_trainer(tmp_path / "local", push_to_hub=False).save_model()
    make_trainer(tmp_path / "internal").save_model(_internal_call=True)
    assert hub.requests == []
    make_trainer(tmp_path / "pushed").save_model(str(tmp_path / "elsewhere"))
    assert (tmp_path / "elsewhere" / "model.safetensors").is_file()
    assert hub.files(f"{USER}/model") == MODEL_AND_ARGUMENTS


def test_an_override_of_save_model_in_either_form_is_called_and_uploads_once(tmp_path: Path, hub: HubServer) -> None:
    class Short(Trainer):
        def save_model(self, output_dir: Any = None) -> None:
            super().save_model(output_dir)

    class Long(Trainer):
        def save_model(self, output_dir: Any = None, _internal_call: bool = False) -> None:
            super().save_model(output_dir, _internal_call)

    for kind in (Short, Long):
        trainer = make_trainer(tmp_path / kind.__name__, kind=kind, hub_model_id=kind.__name__, hub_strategy="end")
        trainer.train()
        trainer.save_model()
        assert hub.messages(f"{USER}/{kind.__name__}") == ["Model save"]


def test_a_branch_is_made_and_uploaded_to_if_hub_revision_names_one(tmp_path: Path, hub: HubServer) -> None:
    trainer = make_trainer(tmp_path / "out", hub_revision="try/1")
    trainer.train()
    trainer.push_to_hub(revision="second")
    assert hub.files(f"{USER}/model") == []
    assert hub.files(f"{USER}/model", "try/1") == MODEL_AND_ARGUMENTS
    assert hub.files(f"{USER}/model", "second") == MODEL_AND_ARGUMENTS


@pytest.mark.parametrize(
    ("by_argument", "by_call", "visibility"),
    [(True, None, "private"), (None, True, "private"), (True, False, "public")],
)
def test_a_new_repository_is_private_if_the_arguments_or_the_call_say_so(
    tmp_path: Path, hub: HubServer, by_argument: bool | None, by_call: bool | None, visibility: str
) -> None:
    trainer = make_trainer(tmp_path / "out", hub_private_repo=by_argument)
    trainer.init_hf_repo(private=by_call)
    assert hub.repositories[f"{USER}/model"].settings["visibility"] == visibility
    assert trainer.hub_model_id == f"{USER}/model"
    assert trainer.args.hub_model_id == "model"


@pytest.mark.feature(129)
def test_the_token_is_sent_but_never_written_into_a_file(
    tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    trainer = make_trainer(tmp_path / "out", hub_token=TOKEN, hub_strategy="checkpoint")
    trainer.train()
    trainer.push_to_hub()
    assert set(hub.tokens) == {TOKEN}
    for name in hub.files(f"{USER}/model"):
        assert TOKEN.encode() not in hub.content(f"{USER}/model", name), name
    saved = torch.load(io.BytesIO(hub.content(f"{USER}/model", "training_args.bin")), weights_only=False)
    assert (saved.hub_token, saved.hub_model_id, saved.learning_rate) == (None, "model", 0.01)
    assert trainer.args.hub_token == TOKEN


def test_a_token_given_to_push_to_hub_is_the_one_that_is_sent(
    tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    trainer = make_trainer(tmp_path / "out", hub_token="wrong", push_to_hub=False)
    trainer.push_to_hub(token=TOKEN, revision="branch")
    assert hub.files(f"{USER}/model", "branch") == MODEL_AND_ARGUMENTS


def test_every_upload_is_announced_to_the_callbacks(tmp_path: Path, hub: HubServer) -> None:
    events = Events()
    trainer = make_trainer(tmp_path / "out", events)
    trainer.train()
    assert events.pushes == 2
    trainer.push_to_hub()
    assert events.pushes == 3


def test_only_the_main_process_talks_to_the_hub(tmp_path: Path, hub: HubServer) -> None:
    class Second(Trainer):
        def is_world_process_zero(self) -> bool:
            return False

    trainer = make_trainer(tmp_path / "out", kind=Second)
    trainer.train()
    trainer.init_hf_repo()
    trainer.save_model()
    assert trainer.push_to_hub() is None
    assert hub.requests == []
    assert not (tmp_path / "out" / "README.md").exists()


def test_a_plain_module_is_uploaded_too(tmp_path: Path, hub: HubServer) -> None:
    args = TrainingArguments(str(tmp_path / "line"), max_steps=1, push_to_hub=True, use_cpu=True, disable_tqdm=True)
    trainer = Trainer(model_init=Line, args=args, train_dataset=line_data(8))
    trainer.train()
    trainer.push_to_hub()
    assert hub.files(f"{USER}/line") == ["README.md", "model.safetensors", "training_args.bin"]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft asks transformers
def test_an_adapter_is_uploaded_without_its_base(tmp_path: Path, hub: HubServer) -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"])
    trainer = make_trainer(tmp_path / "out")
    trainer.model_init = lambda: peft.get_peft_model(bert_classifier(hidden=8), settings)
    trainer.train()
    adapter = ["README.md", "adapter_config.json", "adapter_model.safetensors", *MODEL_AND_ARGUMENTS[-3:]]
    assert hub.files(f"{USER}/model") == adapter
    loaded = peft.PeftModel.from_pretrained(bert_classifier(hidden=8), download(tmp_path))
    weights = weights_of(trainer.model)
    for name, weight in weights_of(loaded).items():
        if "lora" in name:
            assert torch.equal(weight, weights[name])


def test_uploads_work_with_hf_xet_switched_on(tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client then uploads through another pipeline."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    trainer = make_trainer(tmp_path / "out", hub_strategy="checkpoint")
    trainer.train()
    trainer.push_to_hub()
    expected = sorted([*MODEL_AND_ARGUMENTS, *(f"last-checkpoint/{name}" for name in CHECKPOINT)])
    assert hub.files(f"{USER}/model") == expected


def test_release_lets_an_upload_go_on_to_its_end(tmp_path: Path, hub: HubServer) -> None:
    hub.gate.clear()
    trainer = make_trainer(tmp_path / "out", push_to_hub=False)
    future = trainer.push_to_hub(blocking=False)
    trainer.release()
    hub.gate.set()
    assert isinstance(future.result(timeout=10), CommitInfo)


@pytest.mark.feature(130)
def test_init_git_repo_names_its_successor(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="init_hf_repo"):
        make_trainer(tmp_path, push_to_hub=False).init_git_repo(at_init=True)


def test_the_trials_of_a_search_upload_nothing_and_the_best_one_can_be_pushed(tmp_path: Path, hub: HubServer) -> None:
    trainer = make_trainer(tmp_path / "out", hub_strategy="all_checkpoints", eval_strategy="no")
    trainer.eval_dataset = classification_data(8, seed=1)
    best = trainer.hyperparameter_search(
        {"learning_rate": Float(1e-4, 1e-2)}, n_trials=2, study_name="lr", progress=False
    )
    assert hub.requests == []
    best.load_model().push_to_hub("best")
    assert hub.files(f"{USER}/best") == ["README.md", "config.json", "model.safetensors"]
    trainer.push_to_hub()
    assert hub.files(f"{USER}/model") == MODEL_AND_ARGUMENTS


# The Hub without a trainer.


@pytest.mark.slow
@pytest.mark.feature(132)
def test_model_configuration_and_tokenizer_are_pushed_and_loaded_directly(tmp_path: Path, hub: HubServer) -> None:
    model, tokenizer, cache = bert_classifier(hidden=8), small_tokenizer(), str(tmp_path / "cache")
    model.push_to_hub(f"{USER}/parts", token=TOKEN, commit_message="A model")
    tokenizer.push_to_hub(f"{USER}/parts")
    model.config.push_to_hub("team/settings")
    assert hub.messages(f"{USER}/parts") == ["A model", "Upload tokenizer"]
    loaded = BertForSequenceClassification.from_pretrained(f"{USER}/parts", cache_dir=cache)
    assert torch.equal(weights_of(loaded)["classifier.weight"], weights_of(model)["classifier.weight"])
    assert AutoTokenizer.from_pretrained(f"{USER}/parts", cache_dir=cache).get_vocab() == tokenizer.get_vocab()
    assert AutoConfig.from_pretrained("team/settings", cache_dir=cache).hidden_size == 8


@pytest.mark.feature(132)
def test_the_client_makes_fills_lists_and_changes_repositories(tmp_path: Path, hub: HubServer) -> None:
    assert huggingface_hub.whoami()["name"] == USER
    assert huggingface_hub.create_repo("things").repo_id == f"{USER}/things"
    with pytest.raises(HfHubHTTPError, match="409"):
        huggingface_hub.create_repo("things")
    huggingface_hub.upload_file(path_or_fileobj=b"\x00content", path_in_repo="a/b.bin", repo_id=f"{USER}/things")
    assert huggingface_hub.list_repo_files(f"{USER}/things") == [".gitattributes", "a/b.bin"]
    assert [each.id for each in huggingface_hub.list_models(author=USER)] == [f"{USER}/things"]
    fetched = huggingface_hub.hf_hub_download(f"{USER}/things", "a/b.bin", cache_dir=tmp_path)
    assert Path(fetched).read_bytes() == b"\x00content"
    huggingface_hub.update_repo_settings(f"{USER}/things", private=True)
    assert huggingface_hub.model_info(f"{USER}/things").private is True


@pytest.mark.process
@pytest.mark.feature(132)
def test_a_login_is_enough_for_a_script_that_pushes(tmp_path: Path, hub: HubServer) -> None:
    """A process of its own, set up by its environment alone, as a user's script is."""
    script = """
import huggingface_hub, sys, torch
from hpsearch import Trainer, TrainingArguments
from tests.support.models import Line, line_data

huggingface_hub.login(token=sys.argv[1])
args = TrainingArguments(sys.argv[2], max_steps=2, save_steps=1, push_to_hub=True, use_cpu=True, disable_tqdm=True)
trainer = Trainer(model=Line(), args=args, train_dataset=line_data(8))
trainer.train()
trainer.push_to_hub()
"""
    home = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "OMP_NUM_THREADS": "1"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, TOKEN, str(tmp_path / "scripted")],
        env={**environment, **home},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert hub.files(f"{USER}/scripted") == ["README.md", "model.safetensors", "training_args.bin"]
    assert hub.messages(f"{USER}/scripted")[-1] == "End of training"
