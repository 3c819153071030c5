"""The trackers in a search: a run for every trial, in its place, grouped by study, and ended as the trial ended.

What they wrote is read back: event files, MLflow's store, W&B's offline runs.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from transformers import TrainerCallback

from hpsearch import Float, SearchInterrupted
from tests.support.event_files import Events, event_folders, records
from tests.support.mlflow_stores import ENDS_AT_ONCE, new_store
from tests.support.small_trainer import TwoLayers, small_trainer

SPACE = {"learning_rate": Float(1e-3, 1e-1, log=True), "optim.weight_decay": Float(0.01, 0.1)}
UPDATES = 8
ENVIRONMENT = ("WANDB_", "MLFLOW_", "TENSORBOARD_")
ITS_OWN = {"WANDB_SERVICE"}  # where W&B's service process listens, until this one ends

# MLflow's tables use a loader that SQLAlchemy is giving up.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


class Raises(TrainerCallback):
    """Raises an error in one trial after its first evaluation."""

    def __init__(self, trial: str, error: type[BaseException]) -> None:
        self._trial, self._error = trial, error

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.trial_name == self._trial and state.global_step == 6:
            raise self._error("in the middle")


class PrunesTheThird(optuna.pruners.BasePruner):
    def prune(self, study: Any, trial: Any) -> bool:
        return bool(trial.number == 2)


def search(
    folder: Path,
    tracker: str | list[str],
    n_trials: int = 4,
    hp_name: Any = None,
    model_init: Any = None,
    **changes: Any,
) -> Any:
    """A study "digits": run-1 fails, run-2 is pruned, the others complete."""
    failing = changes.pop("failing", Raises("run-1", RuntimeError))
    trainer = small_trainer(
        folder,
        failing,
        model_init=model_init,
        **{"report_to": tracker, "logging_strategy": "steps", "logging_steps": 1, **changes},
    )
    return trainer.hyperparameter_search(
        SPACE, n_trials=n_trials, study_name="digits", hp_name=hp_name, pruner=PrunesTheThird(), progress=False
    )


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty working folder, in which nothing may appear; settings of trackers must be left as they were."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    for name in settings():
        monkeypatch.delenv(name)
    yield
    assert list((tmp_path / "cwd").iterdir()) == []


@pytest.fixture
def settings_stay() -> Iterator[None]:
    before = settings()
    yield
    assert settings() == before


def settings(prefixes: str | tuple[str, ...] = ENVIRONMENT) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k.startswith(prefixes) and k not in ITS_OWN}


# TensorBoard.


class Hparams:
    """What TensorBoard's table of hyperparameters finds in a folder."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

        self.values: dict[str, Any] = {}
        self.has_ended = False
        for path in folder.glob("events.out.tfevents.*"):
            for record in records(path.read_bytes()):
                for value in Event.FromString(record).summary.value:
                    data = HParamsPluginData.FromString(value.metadata.plugin_data.content)
                    if value.tag == "_hparams_/session_start_info":
                        for name, each in data.session_start_info.hparams.items():
                            self.values[name] = getattr(each, str(each.WhichOneof("kind")))
                    self.has_ended |= value.tag == "_hparams_/session_end_info"


@pytest.fixture
def _tensorboard() -> None:
    pytest.importorskip("tensorboardX")


@pytest.mark.usefixtures("_tensorboard", "settings_stay")
class TestTensorBoard:
    @pytest.mark.feature(30)
    def test_the_folder_of_a_study_shows_its_trials_by_name_with_parameters_and_curve_and_only_failed_ones_have_no_end(
        self, tmp_path: Path
    ) -> None:
        failing = Raises("try 1", RuntimeError)
        best = search(tmp_path, "tensorboard", hp_name=lambda trial: f"try {trial.number}", failing=failing)
        folders = [tmp_path / "digits" / f"try {number}" for number in range(4)]
        assert event_folders(tmp_path) == folders
        assert [len(Events(each).scalars["train/loss"]) for each in folders] == [8, 5, 4, 8]
        hparams = [Hparams(each) for each in folders]
        assert [each.values for each in hparams] == [pytest.approx(each.params) for each in best.run_summary.records]
        assert [each.has_ended for each in hparams] == [True, False, True, True]

    def test_an_evaluation_after_the_training_leaves_the_curve_there(self, tmp_path: Path) -> None:
        search(tmp_path, "tensorboard", n_trials=1, eval_strategy="no")
        scalars = Events(tmp_path / "digits" / "run-0").scalars
        assert len(scalars["train/loss"]) == UPDATES
        assert list(scalars["eval/loss"]) == [UPDATES]

    @pytest.mark.feature(30)
    def test_a_folder_of_the_users_has_a_folder_of_the_study_and_in_it_one_for_each_trial(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patched:
            patched.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "boards"))
            search(tmp_path / "out", "tensorboard", n_trials=2)
        assert event_folders(tmp_path) == [tmp_path / "boards" / "digits" / f"run-{number}" for number in range(2)]

    def test_what_model_init_suggests_is_a_parameter_too(self, tmp_path: Path) -> None:
        search(tmp_path, "tensorboard", 1, model_init=lambda trial: TwoLayers(trial.suggest_int("hidden_size", 2, 9)))
        assert set(Hparams(tmp_path / "digits" / "run-0").values) == {*SPACE, "hidden_size"}


# MLflow.


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of MLflow on a SQLite file, which users name in the environment."""
    mlflow = pytest.importorskip("mlflow")
    place = new_store(tmp_path)
    mlflow.set_tracking_uri(None)
    monkeypatch.setattr("mlflow.tracking.fluent._active_experiment_id", None)  # of another test's store
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place)
    monkeypatch.setenv(*ENDS_AT_ONCE)
    before = settings("MLFLOW_")
    yield mlflow.MlflowClient(place)
    assert mlflow.active_run() is None
    assert settings("MLFLOW_") == before


def runs_of(store: Any, experiment: str) -> list[Any]:
    found = store.get_experiment_by_name(experiment)
    return store.search_runs([found.experiment_id], order_by=["attributes.start_time ASC"])


def length(store: Any, run: Any, name: str) -> int:
    return len(store.get_metric_history(run.info.run_id, name))


@pytest.mark.slow
@pytest.mark.feature(108)
def test_mlflow_has_an_experiment_for_the_study_and_in_it_a_run_for_each_trial_that_tells_how_it_ended(
    tmp_path: Path, store: Any
) -> None:
    best = search(tmp_path, "mlflow")
    runs = runs_of(store, "digits")
    assert [run.info.run_name for run in runs] == ["run-0", "run-1", "run-2", "run-3"]
    assert [run.info.status for run in runs] == ["FINISHED", "FAILED", "FINISHED", "FINISHED"]
    assert [length(store, run, "loss") for run in runs] == [8, 5, 4, 8]
    for run, record in zip(runs, best.run_summary.records, strict=True):
        assert {name: float(run.data.params[name]) for name in SPACE} == pytest.approx(record.params)
        assert run.data.tags["hpsearch.study"] == "digits"
        assert run.data.tags["hpsearch.state"] == record.state.value
        assert run.data.tags.get("hpsearch.reason") == record.reason
    assert runs_of(store, "Default") == []


def test_an_evaluation_after_the_training_is_in_the_trials_run_of_mlflow(tmp_path: Path, store: Any) -> None:
    search(tmp_path, "mlflow", n_trials=1, eval_strategy="no")
    assert [length(store, run, "eval_loss") for run in runs_of(store, "digits")] == [1]


def test_an_experiment_that_users_chose_is_kept_to(tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("MLFLOW_EXPERIMENT_NAME", "theirs")
        before = settings()
        search(tmp_path, "mlflow", n_trials=1)
        assert settings() == before
    assert [run.data.tags["hpsearch.trial"] for run in runs_of(store, "theirs")] == ["run-0"]
    assert store.get_experiment_by_name("digits") is None


@pytest.mark.parametrize("asks_for_nested_runs", [True, False])
def test_trials_are_nested_in_a_run_that_is_open_and_leave_it_open(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch, asks_for_nested_runs: bool
) -> None:
    import mlflow

    with monkeypatch.context() as patched:
        if asks_for_nested_runs:
            patched.setenv("MLFLOW_NESTED_RUN", "TRUE")
        with mlflow.start_run(run_name="mine") as mine:
            search(tmp_path, "mlflow", n_trials=2)
            assert mlflow.active_run().info.run_id == mine.info.run_id
    runs = {run.info.run_name: run for run in runs_of(store, "Default")}
    assert set(runs) == {"mine", "run-0", "run-1"}
    assert runs["mine"].data.params == {}
    assert [runs[name].data.tags["mlflow.parentRunId"] for name in ("run-0", "run-1")] == [mine.info.run_id] * 2


def test_the_run_of_an_interrupted_trial_is_killed(tmp_path: Path, store: Any) -> None:
    with pytest.raises(SearchInterrupted):
        search(tmp_path, "mlflow", failing=Raises("run-0", KeyboardInterrupt))
    assert [run.info.status for run in runs_of(store, "digits")] == ["KILLED"]


class FixedlyNamed:
    """A trial as a backend would hand it over: for the folder run-7 of a study."""

    name, number, arguments, params = "run-7", 7, {"learning_rate": 0.01}, {}


def continued(tmp_path: Path, tracker: str) -> None:
    """A trial that fails after its checkpoint, and a trainer made later that goes on with it."""
    options = {"report_to": tracker, "save_strategy": "epoch", "logging_strategy": "steps", "logging_steps": 1}
    folder = str(tmp_path / "digits" / "run-7")
    trainer = small_trainer(tmp_path, Raises("run-7", RuntimeError), **options).for_trial(FixedlyNamed(), folder)
    with pytest.raises(RuntimeError):
        trainer.train()
    trainer.end_trackers("interrupted")
    trainer.release()
    trainer = small_trainer(tmp_path, **options).for_trial(FixedlyNamed(), folder)
    trainer.train(resume_from_checkpoint=True)
    trainer.end_trackers("complete")
    trainer.release()


def test_a_trial_that_is_continued_goes_on_in_its_run_of_mlflow(tmp_path: Path, store: Any) -> None:
    continued(tmp_path, "mlflow")
    (run,) = runs_of(store, "digits")
    assert (run.info.run_name, run.info.status) == ("run-7", "FINISHED")
    assert {each.step for each in store.get_metric_history(run.info.run_id, "loss")} == set(range(1, UPDATES + 1))


def test_a_run_that_is_not_in_the_store_any_more_is_begun_anew(tmp_path: Path, store: Any) -> None:
    folder = tmp_path / "digits" / "run-7"
    folder.mkdir(parents=True)
    (folder / "trackers.json").write_text(json.dumps({"mlflow": "0" * 32}))
    trainer = small_trainer(tmp_path, report_to="mlflow").for_trial(FixedlyNamed(), str(folder))
    trainer.train()
    trainer.end_trackers("complete")
    assert [run.info.run_name for run in runs_of(store, "digits")] == ["run-7"]


# W&B.


class OfflineRun:
    """What the file of an offline run of W&B holds; LevelDB's log format."""

    def __init__(self, path: Path) -> None:
        from wandb.proto.wandb_internal_pb2 import Record

        self.folder = path.parent
        self.name = self.group = self.project = self.id = ""
        self.exit_code: int | None = None
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.history: list[dict[str, Any]] = []
        for content in log_records(path.read_bytes()):
            record = Record.FromString(content)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                run = record.run
                self.name, self.group, self.project, self.id = run.display_name, run.run_group, run.project, run.run_id
                self._update(self.config, run.config.update)
            elif kind == "config":
                self._update(self.config, record.config.update)
            elif kind == "summary":
                self._update(self.summary, record.summary.update)
            elif kind == "history":
                self._update(self.history.append({}) or self.history[-1], record.history.item)
            elif kind == "exit":
                self.exit_code = record.exit.exit_code

    @staticmethod
    def _update(values: dict[str, Any], items: Any) -> None:
        values.update({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items})


def log_records(content: bytes) -> Iterator[bytes]:
    """The records of a log of LevelDB, behind W&B's seven bytes: blocks of 32 KiB, records in one or more pieces.

    A record that is only half written yet, at the end, is left out.
    """
    start, whole = 7, b""
    while start < len(content):
        left_in_block = 32768 - start % 32768
        if left_in_block < 7:
            start += left_in_block
            continue
        if start + 7 > len(content):
            return
        _, length, piece = struct.unpack_from("<IHB", content, start)
        if start + 7 + length > len(content):
            return  # it is still being written
        whole += content[start + 7 : start + 7 + length]
        start += 7 + length
        if piece in (1, 4):  # the whole of a record, or its last piece
            yield whole
            whole = b""


def offline_runs(folder: Path) -> list[OfflineRun]:
    """The runs below a folder, by name and time; W&B's service writes the end of a file just after `finish()`."""
    paths = [path for path in folder.rglob("offline-run-*/*.wandb") if "latest-run" not in path.parts]
    deadline = time.monotonic() + 10
    while True:
        runs = [OfflineRun(path) for path in paths]
        if all(run.exit_code is not None for run in runs) or time.monotonic() > deadline:
            return sorted(runs, key=lambda run: (run.name, run.folder.name))
        time.sleep(0.05)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    package = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    before = settings("WANDB_")
    yield package
    assert package.run is None
    assert settings("WANDB_") == before


@pytest.mark.process  # W&B writes in a service of its own
@pytest.mark.smoke
@pytest.mark.feature(108)
def test_wandb_has_a_run_for_each_trial_in_its_folder_in_the_group_of_the_study_that_tells_how_it_ended(
    tmp_path: Path, wandb: Any
) -> None:
    best = search(tmp_path, "wandb")
    runs = offline_runs(tmp_path)
    for run, record in zip(runs, best.run_summary.records, strict=True):
        assert (run.name, run.group) == (record.name, "digits")
        assert run.folder.parent == tmp_path / "digits" / record.name / "wandb"
        assert {name: run.config[name] for name in SPACE} == pytest.approx(record.params)
        assert run.summary["hpsearch/state"] == record.state.value
        assert run.summary.get("hpsearch/reason") == record.reason
    assert [run.exit_code for run in runs] == [0, 1, 0, 0]
    assert [sum("train/loss" in each for each in run.history) for run in runs] == [8, 5, 4, 8]


@pytest.mark.process
def test_an_evaluation_after_the_training_is_in_the_trials_run_of_wandb(tmp_path: Path, wandb: Any) -> None:
    search(tmp_path, "wandb", n_trials=1, eval_strategy="no")
    (run,) = offline_runs(tmp_path)
    assert sum("eval/loss" in each for each in run.history) == 1


@pytest.mark.process
def test_the_run_of_an_interrupted_trial_ends_with_its_code(tmp_path: Path, wandb: Any) -> None:
    with pytest.raises(SearchInterrupted):
        search(tmp_path, "wandb", failing=Raises("run-0", KeyboardInterrupt))
    assert [run.exit_code for run in offline_runs(tmp_path)] == [255]


@pytest.mark.process
def test_group_folder_and_project_of_the_environment_are_kept_to(
    tmp_path: Path, wandb: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").mkdir()
    with monkeypatch.context() as patched:
        patched.setenv("WANDB_RUN_GROUP", "their group")
        patched.setenv("WANDB_PROJECT", "their-project")
        patched.setenv("WANDB_DIR", str(tmp_path / "theirs"))
        patched.setenv("WANDB_RUN_ID", "one-for-all")
        search(tmp_path / "out", "wandb", n_trials=2)
    runs = offline_runs(tmp_path)
    assert [(run.name, run.group, run.project) for run in runs] == [
        (name, "their group", "their-project") for name in ("run-0", "run-1")
    ]
    assert {run.folder.parents[1] for run in runs} == {tmp_path / "theirs"}
    assert len({run.id for run in runs}) == 2


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*resume.*")
def test_a_trial_that_is_continued_has_the_id_that_its_run_of_wandb_had(tmp_path: Path, wandb: Any) -> None:
    continued(tmp_path, "wandb")
    ids = {run.id for run in offline_runs(tmp_path)}
    assert ids == {json.loads((tmp_path / "digits" / "run-7" / "trackers.json").read_text())["wandb"]}


# Several.


@pytest.mark.process
def test_with_several_trackers_each_has_the_trials_name(tmp_path: Path, wandb: Any, store: Any) -> None:
    search(tmp_path, ["wandb", "mlflow", "tensorboard"], n_trials=1)
    assert [run.info.run_name for run in runs_of(store, "digits")] == ["run-0"]
    assert [run.name for run in offline_runs(tmp_path)] == ["run-0"]
    assert [folder.name for folder in event_folders(tmp_path / "digits")] == ["run-0"]


def test_a_tracker_that_cannot_close_its_run_does_not_end_the_search(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    def unreachable(status: str) -> None:
        original(status)
        raise ConnectionError("no server")

    original = mlflow.end_run
    with monkeypatch.context() as patched:
        patched.setattr(mlflow, "end_run", unreachable)
        best = search(tmp_path, "mlflow", n_trials=2)
    assert [record.state.value for record in best.run_summary.records] == ["complete", "failed"]


def test_outside_a_search_the_trackers_are_those_of_transformers(tmp_path: Path, store: Any) -> None:
    trainer = small_trainer(tmp_path, report_to=["tensorboard", "mlflow"], run_name="alone")
    trainer.train()
    assert [run.info.run_name for run in runs_of(store, "Default")] == ["alone"]
    (folder,) = event_folders(tmp_path)
    assert folder.parent == tmp_path / "runs"
    assert not (tmp_path / "trackers.json").exists()
    assert Hparams(folder).values == {}
