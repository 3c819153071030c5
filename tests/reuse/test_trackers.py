"""Experiment trackers under our trainer: TensorBoard and MLflow for real, the others by contract (rows 107 and 108)."""

from __future__ import annotations

import ast
import functools
import gc
import inspect
import json
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import TrainerCallback
from transformers.integrations import integration_utils
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK, rewrite_logs

from hpsearch import Float, Trainer, TrainerControl, TrainerState
from tests.support.event_files import Events, event_folders
from tests.support.line_trainer import arguments, line_trainer
from tests.support.mlflow_stores import ENDS_AT_ONCE, new_store
from tests.support.models import bert_classifier, classification_data

SPACE = {"learning_rate": Float(1e-3, 1e-1, log=True)}


# TensorBoard.


def expected_scalars(trainer: Trainer) -> dict[str, dict[int, float]]:
    expected: dict[str, dict[int, float]] = {}
    for entry in trainer.state.log_history:
        for name, value in rewrite_logs({key: value for key, value in entry.items() if key != "step"}).items():
            expected.setdefault(name, {})[entry["step"]] = value
    return expected


@pytest.mark.feature(107)
def test_tensorboard_holds_every_number_of_the_log_history_at_its_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    trainer = line_trainer(tmp_path, report_to="tensorboard", num_train_epochs=2, eval_strategy="epoch")
    trainer.train()
    (folder,) = event_folders(tmp_path)
    assert folder.parent == tmp_path / "runs"
    scalars = Events(folder).scalars
    assert list(scalars["train/loss"]) == [1, 2, 3, 4, 5, 6]
    assert list(scalars["eval/loss"]) == [3, 6]
    assert list(scalars["train/train_loss"]) == [6]
    expected = expected_scalars(trainer)
    assert set(scalars) == set(expected)
    for name, by_step in expected.items():
        assert scalars[name] == pytest.approx(by_step, rel=1e-6), name


@pytest.mark.feature(107)
def test_tensorboard_holds_the_arguments_and_the_configuration_as_text(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    data = classification_data(8)
    trainer = line_trainer(
        tmp_path,
        {"model_init": bert_classifier, "train_dataset": data},
        report_to="tensorboard",
        learning_rate=0.0123,
        max_steps=1,
        ray_scope="all",
    )
    trainer.train()
    texts = Events(event_folders(tmp_path)[0]).texts
    assert json.loads(texts["args"]) == json.loads(trainer.args.to_json_string())
    assert json.loads(texts["args"])["ray_scope"] == "all"
    assert json.loads(texts["model_config"])["hidden_size"] == 32


@pytest.mark.slow
def test_what_is_logged_after_training_is_added_to_what_training_wrote(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    trainer = line_trainer(tmp_path, report_to="tensorboard")
    trainer.train()
    time.sleep(1.1)  # The names of event files tell the second they were opened in.
    trainer.evaluate(metric_key_prefix="eval_later")
    trainer.log({"test_score": 0.5})
    trainer.release()  # closes the files
    found = {name: each for folder in event_folders(tmp_path) for name, each in Events(folder).scalars.items()}
    assert found["test/score"] == {3: 0.5}
    assert list(found["train/loss"]) == [1, 2, 3]
    assert list(found["eval/later_loss"]) == [3]


@pytest.mark.feature(30)
def test_the_environment_names_the_folder_of_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboardX")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "boards"))
    line_trainer(tmp_path / "out", report_to="tensorboard").train()
    assert event_folders(tmp_path) == [tmp_path / "boards"]


@pytest.mark.feature(107)
def test_a_writer_of_ones_own_is_written_to(tmp_path: Path) -> None:
    tensorboardx = pytest.importorskip("tensorboardX")
    writer = tensorboardx.SummaryWriter(log_dir=str(tmp_path / "own"))
    callback = integration_utils.TensorBoardCallback(writer)
    trainer = line_trainer(tmp_path / "out", {"callbacks": [callback]})
    trainer.train()
    assert event_folders(tmp_path) == [tmp_path / "own"]
    assert list(Events(tmp_path / "own").scalars["train/loss"]) == [1, 2, 3]


@pytest.mark.feature(7)
def test_each_trial_of_a_search_has_its_own_folder_with_its_own_numbers_and_arguments(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    trainer = line_trainer(tmp_path, report_to="tensorboard", eval_strategy="epoch")
    best = trainer.hyperparameter_search(
        SPACE, n_trials=3, hp_name=lambda trial: f"lr-{trial.number}", progress=False, pruner="none"
    )
    folders = event_folders(tmp_path)
    assert [folder.name for folder in folders] == ["lr-0", "lr-1", "lr-2"]
    for folder, record in zip(folders, best.run_summary.records, strict=True):
        events = Events(folder)
        assert json.loads(events.texts["args"])["learning_rate"] == record.params["learning_rate"]
        assert events.scalars["eval/loss"][3] == pytest.approx(record.reports[-1].metrics["eval_loss"], rel=1e-6)
        assert list(events.scalars["train/loss"]) == [1, 2, 3]


@pytest.mark.feature(30)
def test_tensorboard_writes_where_tensorboard_logging_dir_says_and_trials_in_their_own_folder_there(
    tmp_path: Path,
) -> None:
    place = tmp_path / "board"
    options = {"report_to": "tensorboard", "tensorboard_logging_dir": str(place), "eval_strategy": "epoch"}
    line_trainer(tmp_path / "out", **options).train()
    assert event_folders(place) == [place]
    line_trainer(tmp_path / "searched", **options).hyperparameter_search(SPACE, n_trials=2, progress=False)
    assert event_folders(place) == [place, place / "study" / "run-0", place / "study" / "run-1"]
    assert event_folders(tmp_path / "searched") == []


# MLflow.


@pytest.fixture
def mlflow_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of MLflow on a SQLite file, which the callbacks find through the environment."""
    mlflow = pytest.importorskip("mlflow")
    place = new_store(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place)
    monkeypatch.setenv(*ENDS_AT_ONCE)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "tests")
    mlflow.set_tracking_uri(place)
    yield mlflow.MlflowClient()
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.flush_async_logging()
    mlflow.set_tracking_uri(None)


def mlflow_runs(client: Any) -> list[Any]:
    import mlflow

    mlflow.flush_async_logging()
    (experiment,) = [each for each in client.search_experiments() if each.name == "tests"]
    return client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])


def history(client: Any, run: Any, name: str) -> dict[int, float]:
    return {each.step: each.value for each in client.get_metric_history(run.info.run_id, name)}


# MLflow's tables use a loader that SQLAlchemy is giving up.
@pytest.mark.feature(108)
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
def test_mlflow_holds_arguments_and_numbers_of_a_training_and_knows_that_it_ended(
    tmp_path: Path, mlflow_client: Any
) -> None:
    trainer = line_trainer(
        tmp_path, report_to="mlflow", run_name="a line", eval_strategy="epoch", num_train_epochs=2, ray_scope="all"
    )
    trainer.train()
    (run,) = mlflow_runs(mlflow_client)
    assert (run.info.run_name, run.info.status) == ("a line", "FINISHED")
    assert run.data.params["learning_rate"] == "0.01"
    assert run.data.params["ray_scope"] == "all"
    for name, steps in {"loss": [1, 2, 3, 4, 5, 6], "eval_loss": [3, 6], "train_loss": [6]}.items():
        expected = {each["step"]: each[name] for each in trainer.state.log_history if name in each}
        assert list(expected) == steps
        assert history(mlflow_client, run, name) == pytest.approx(expected)


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
def test_each_trial_of_a_search_is_a_run_of_mlflow_even_after_one_that_failed(
    tmp_path: Path, mlflow_client: Any
) -> None:
    class FailsInTheSecondTrial(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2 and state.trial_name == "run-1":
                raise RuntimeError("the second trial fails")

    trainer = line_trainer(tmp_path, {"callbacks": [FailsInTheSecondTrial]}, report_to="mlflow", eval_strategy="epoch")
    best = trainer.hyperparameter_search(SPACE, n_trials=3, progress=False, pruner="none")
    assert [record.state.name for record in best.run_summary.records] == ["COMPLETE", "FAILED", "COMPLETE"]
    runs = mlflow_runs(mlflow_client)
    assert [len(history(mlflow_client, run, "loss")) for run in runs] == [3, 1, 3]
    rates = [float(run.data.params["learning_rate"]) for run in runs]
    assert rates == pytest.approx([record.params["learning_rate"] for record in best.run_summary.records])
    assert all(run.info.status != "RUNNING" for run in runs)


# The others, by contract: what their code asks of a trainer is there.


class Reads(ast.NodeVisitor):
    """What the source of a callback reads: attributes of `args`, `state`, `control` and `model`, and keyword names."""

    def __init__(self) -> None:
        self.attributes: dict[str, set[str]] = {"args": set(), "state": set(), "control": set(), "model": set()}
        self.keywords: dict[str, set[str]] = {}
        self._event = ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer, self._event = self._event, node.name if node.name.startswith("on_") else self._event
        if node.name.startswith("on_"):
            names = [each.arg for each in [*node.args.posonlyargs, *node.args.args][4:] + node.args.kwonlyargs]
            self.keywords.setdefault(node.name, set()).update(names)
        self.generic_visit(node)
        self._event = outer

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in self.attributes:
            self.attributes[node.value.id].add(node.attr)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.value, ast.Name) and node.value.id == "kwargs" and isinstance(node.slice, ast.Constant):
            self.keywords.setdefault(self._event, set()).add(node.slice.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        constants = [each.value for each in node.args if isinstance(each, ast.Constant)]
        if name in ("kwargs.get", "kwargs.pop") and constants:
            self.keywords.setdefault(self._event, set()).add(constants[0])
        if name == "getattr" and len(node.args) == 2 and isinstance(node.args[0], ast.Name) and constants:
            self.attributes.get(node.args[0].id, set()).add(constants[0])
        self.generic_visit(node)


def reads_of(kind: type) -> Reads:
    reads = Reads()
    for each in kind.__mro__:
        if each not in (object, TrainerCallback):
            reads.visit(ast.parse(textwrap.dedent(inspect.getsource(each))))
    return reads


class KeywordRecorder(TrainerCallback):
    """The keyword names and the kinds of `args`, `state`, `control` that came with each event."""

    def __init__(self) -> None:
        self.keywords: dict[str, set[str]] = {}
        self.kinds: set[tuple[type, ...]] = set()

    def hear(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.keywords.setdefault(event, set()).update(kwargs)
        self.kinds.add((type(args), type(state), type(control)))


for _event in [name for name in vars(TrainerCallback) if name.startswith("on_")]:
    setattr(KeywordRecorder, _event, functools.partialmethod(KeywordRecorder.hear, _event))


@functools.cache
def what_our_trainer_passes() -> KeywordRecorder:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        recorder = KeywordRecorder()
        trainer = line_trainer(folder, {"callbacks": [recorder]}, eval_strategy="epoch", save_strategy="epoch")
        trainer.train()
        trainer.predict(trainer.eval_dataset)
    return recorder


def test_the_reader_of_sources_finds_what_a_callback_reads() -> None:
    class Reading(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            print(args.first, state.second, kwargs["third"], kwargs.get("fourth"), getattr(args, "fifth"))  # noqa: B009

    reads = reads_of(Reading)
    assert reads.attributes == {"args": {"first", "fifth"}, "state": {"second"}, "control": set(), "model": set()}
    assert reads.keywords == {"on_log": {"logs", "third", "fourth"}}


@pytest.mark.feature(108)
@pytest.mark.parametrize("name", INTEGRATION_TO_CALLBACK)
def test_what_an_integration_reads_is_there(tmp_path: Path, name: str) -> None:
    reads = reads_of(INTEGRATION_TO_CALLBACK[name])
    assert reads.keywords
    bert = bert_classifier()
    there = {
        "args": (arguments(tmp_path),),
        "state": (TrainerState(),),
        "control": (TrainerControl(),),
        # A transformers model, and what PEFT and model cards add to one; the integrations ask before they read those.
        "model": (
            bert,
            type("Added", (), {"peft_config": {}, "model_tags": [], "get_nb_trainable_parameters": None})(),
        ),
    }
    for role, names in reads.attributes.items():
        missing = [each for each in names if not any(hasattr(holder, each) for holder in there[role])]
        assert missing == [], f"{name} reads {role}.{missing}"
    passed = what_our_trainer_passes().keywords
    for event, names in reads.keywords.items():
        if event in passed:
            assert names <= passed[event], f"{name}.{event} takes {names - passed[event]}"


def test_integrations_are_given_the_kinds_they_were_written_for() -> None:
    ((args, state, control),) = what_our_trainer_passes().kinds
    assert issubclass(args, transformers.TrainingArguments)
    assert issubclass(state, TrainerState)
    assert issubclass(control, TrainerControl)


@pytest.mark.slow
@pytest.mark.feature(108)
def test_every_event_that_an_integration_hears_is_fired_by_our_trainer() -> None:
    heard = {event for kind in INTEGRATION_TO_CALLBACK.values() for event in reads_of(kind).keywords}
    fired = set(what_our_trainer_passes().keywords)
    assert heard - fired <= {"on_push_begin"}


def test_a_trainer_of_transformers_made_from_our_arguments_saves_the_model(tmp_path: Path) -> None:
    """Wandb and Trackio make one at the end of training to save the model that they upload."""
    ours = line_trainer(tmp_path / "ours", {"model_init": bert_classifier, "train_dataset": classification_data(8)})
    ours.train()
    fake = transformers.Trainer(args=ours.args, model=ours.model, eval_dataset=["fake"])
    fake.save_model(str(tmp_path / "artifact"))
    assert (tmp_path / "artifact" / "model.safetensors").is_file()


@pytest.mark.feature(55)
def test_an_unknown_tracker_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tensorbord") as error:
        line_trainer(tmp_path, report_to="tensorbord").train()
    assert all(name in str(error.value) for name in INTEGRATION_TO_CALLBACK)


# What the message of a tracker that is not there names.
PACKAGES = {
    "azure_ml": "azureml",
    "comet_ml": "comet-ml",
    "flyte": "flytekit",
    "kubeflow": "KUBEFLOW_TRAINER_SERVER_URL",
}


NOT_INSTALLED = [
    name
    for name in INTEGRATION_TO_CALLBACK
    if name not in {"tensorboard", "mlflow", *integration_utils.get_available_reporting_integrations()}
]


@pytest.mark.feature(55)
@pytest.mark.filterwarnings("ignore:The NeptuneCallback is deprecated:FutureWarning")
@pytest.mark.parametrize("name", NOT_INSTALLED)
def test_a_tracker_whose_package_is_not_installed_is_an_error_that_names_it(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Neptune's destructor expects what its constructor did not get to.
    monkeypatch.delattr(integration_utils.NeptuneCallback, "__del__")
    with pytest.raises((RuntimeError, ImportError, ValueError), match=PACKAGES.get(name, name)):
        line_trainer(tmp_path, report_to=name).train()
    gc.collect()


@pytest.mark.parametrize("name", ["tensorbord", *(each for each in NOT_INSTALLED if each == "wandb")])
def test_a_search_with_a_tracker_that_cannot_be_used_ends_before_its_first_trial(tmp_path: Path, name: str) -> None:
    with pytest.raises((ValueError, ImportError), match=name):
        line_trainer(tmp_path, report_to=name, eval_strategy="epoch").hyperparameter_search(
            SPACE, n_trials=2, progress=False
        )
    assert not list(tmp_path.rglob("run-*"))


@pytest.mark.feature(55)
def test_all_means_every_tracker_that_is_installed_and_none_means_none(tmp_path: Path) -> None:
    installed = integration_utils.get_available_reporting_integrations()
    assert arguments(tmp_path, report_to="all").report_to == installed
    assert arguments(tmp_path, report_to="none").report_to == []
