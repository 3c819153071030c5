"""A trial of a study again, alone, from what is on disk: on CPU the same reports, exactly."""

from __future__ import annotations

import gc
import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch

from hpsearch import (
    BestRun,
    Categorical,
    Float,
    Int,
    Replay,
    SearchInterrupted,
    SpaceError,
    StudyError,
    Trainer,
    TrialRecord,
    TrialState,
)
from hpsearch.searching.replay import _as_it_was
from tests.support.models import weights_of
from tests.support.pruners import PrunesAt
from tests.support.searching import RATE, AtStep, Events, interrupt, states, without_result
from tests.support.small_trainer import TwoLayers, points, small_trainer

SPACE = {
    **RATE,
    "seed": Int(1, 1000),
    "model.hidden": Int(4, 12),
    "optim": Categorical({"adamw_torch": {}, "sgd": {"optim.momentum": Float(0.1, 0.9)}}),
    "lora.dropout": Float(0.1, 0.5),
}
WITH_SGD = {"optim": "sgd", "optim.momentum": 0.5}


class WithDropout(TwoLayers):
    """Draws random numbers in every step."""

    def __init__(self, hidden: int, dropout: float, extra: int) -> None:
        super().__init__(hidden)
        self.extra = torch.nn.Linear(2, extra)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        x = self.dropout(x) + self.extra(x).mean()
        return super().forward(x, labels)


def model_init(trial: Any) -> WithDropout:
    """Reads two parameters of the space and suggests one for itself."""
    return WithDropout(trial.params["model.hidden"], trial.params["lora.dropout"], trial.suggest_int("extra", 2, 5))


def trainer_of(folder: Path, *callbacks: Any, **changes: Any) -> Trainer:
    return small_trainer(folder, *callbacks, **{"model_init": model_init, **changes})


def search(
    folder: Path, n_trials: int = 2, objective: Any = "loss", callbacks: Sequence[Any] = (), **options: Any
) -> Any:
    """Search with the trainer that `replay` will be called on."""
    changes = options.pop("trainer", {})
    settings = {"progress": False, "pruner": "none", "storage": "journal", **options}
    space = settings.pop("space", SPACE)
    return trainer_of(folder, *callbacks, **changes).hyperparameter_search(
        space, objective, n_trials=n_trials, **settings
    )


def replay(folder: Path, number: int | None = None, trainer: dict[str, Any] | None = None, **options: Any) -> Replay:
    return trainer_of(folder, **(trainer or {})).replay(number=number, **{"progress": False, **options})


def assert_equal(again: Replay) -> None:
    assert again.first_difference is None
    assert again.is_equal
    assert [(each.step, each.values, each.resource) for each in again.record.reports] == [
        (each.step, each.values, each.resource) for each in again.original.reports
    ]
    for name in ("state", "values", "params", "arguments", "seed", "epochs"):
        assert getattr(again.record, name) == getattr(again.original, name), name


def contents(folder: Path) -> dict[str, str]:
    """Everything in a study but its replays, by name; the files of a database in use by what they hold together."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and "replays" not in path.parts and not path.name.endswith(("-shm", "-wal"))
    }


# The same numbers.


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BestRun]:
    folder = tmp_path_factory.mktemp("searched")
    return folder, search(folder, 4, scope="all", start_with=[{}, WITH_SGD], trainer={"num_train_epochs": 3})


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_complete_trial_makes_the_same_reports(searched: tuple[Path, BestRun], number: int) -> None:
    folder, best = searched
    torch.rand(3)
    again = replay(folder, number, {"num_train_epochs": 3})
    assert_equal(again)
    assert again.record.state is TrialState.COMPLETE
    assert again.notes == []
    assert again.original == best.run_summary.records[number] or again.original.checkpoint is None
    assert again.record.hyperparameters == again.original.hyperparameters
    assert "extra" in again.record.hyperparameters
    assert set(again.record.params) >= {"model.hidden", "lora.dropout", "learning_rate", "optim", "extra"}


def test_the_trials_are_told_apart(searched: tuple[Path, BestRun]) -> None:
    _, best = searched
    assert len({record.reports[-1].values for record in best.run_summary.records}) == 4
    assert {record.params["optim"] for record in best.run_summary.records} == {"adamw_torch", "sgd"}
    assert best.run_summary.records[1].params["optim.momentum"] == 0.5


def test_by_default_it_is_the_best_trial_and_the_weights_are_the_same(searched: tuple[Path, BestRun]) -> None:
    folder, best = searched
    again = replay(folder, trainer={"num_train_epochs": 3})
    assert again.record.number == int(best.run_id or -1)
    assert again.record.checkpoint is not None
    assert best.checkpoint is not None
    assert again.record.checkpoint == folder / "study" / "replays" / again.record.name / best.checkpoint.name
    assert best.build_model is not None
    expected, found = best.load_model(), best.build_model(again.record.checkpoint)
    assert all(torch.equal(weights, weights_of(found)[name]) for name, weights in weights_of(expected).items())


@pytest.mark.slow
def test_the_study_is_not_touched_and_goes_on_as_if_there_had_been_no_replay(tmp_path: Path) -> None:
    search(tmp_path / "a", 2, storage=None)
    search(tmp_path / "b", 2, storage=None)
    gc.collect()  # closes the database, which SQLite then writes once more
    before = contents(tmp_path / "a" / "study")
    for number in (0, 1, 1):
        replay(tmp_path / "a", number)
    assert contents(tmp_path / "a" / "study") == before
    assert {path.name for path in (tmp_path / "a" / "study" / "replays").iterdir()} >= {"run-0", "run-1"}
    stored = optuna.load_study(study_name="study", storage=f"sqlite:///{tmp_path / 'a' / 'study' / 'study.db'}")
    assert len(stored.trials) == 2
    with_replays, without = (search(tmp_path / name, 4, storage=None) for name in ("a", "b"))
    assert states(with_replays) == ["complete"] * 4
    assert [record.values for record in with_replays.run_summary.records] == [
        record.values for record in without.run_summary.records
    ]


def test_a_replay_disturbs_no_random_stream_of_the_caller(searched: tuple[Path, BestRun]) -> None:
    folder, _ = searched
    torch.manual_seed(3)
    before = torch.get_rng_state()
    replay(folder, 0, {"num_train_epochs": 3})
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("by", ["epoch", "steps"])
def test_a_pruned_trial_is_pruned_where_it_was(tmp_path: Path, by: str) -> None:
    changes = {"num_train_epochs": 4, "eval_strategy": by, "eval_steps": 3}
    best = without_result(search, tmp_path, 1, pruner=PrunesAt(2), trainer=changes)
    assert states(best) == ["pruned"]
    again = replay(tmp_path, 0, changes)
    assert_equal(again)
    assert len(again.record.reports) == 2
    assert again.record.reason == again.original.reason
    assert again.record.checkpoint is None


def test_a_pruned_trial_of_several_objectives_is_pruned_where_it_was(tmp_path: Path) -> None:
    changes = {"num_train_epochs": 4}
    options = {"pruning_metric": "loss", "pruner": PrunesAt(2), "trainer": changes}
    error = without_result(search, tmp_path, 1, ["loss", "accuracy"], **options)
    assert states(error) == ["pruned"]
    assert_equal(replay(tmp_path, 0, changes))


@pytest.mark.parametrize("epochs", [1.5, 0.5])
def test_a_trial_that_a_budget_stopped_is_stopped_where_it_was(tmp_path: Path, epochs: float) -> None:
    best = search(tmp_path, 1, trial_max_epochs=epochs, trainer={"num_train_epochs": 3})
    assert states(best) == ["stopped"]
    again = replay(tmp_path, 0, {"num_train_epochs": 3})
    assert_equal(again)
    assert again.record.checkpoint is not None
    assert best.checkpoint is not None
    assert again.record.checkpoint.name == best.checkpoint.name


def test_a_trial_that_the_epochs_of_the_study_stopped_is_stopped_where_it_was(tmp_path: Path) -> None:
    best = search(tmp_path, 9, max_epochs=3.5)
    assert states(best) == ["complete", "stopped"]
    assert_equal(replay(tmp_path, 1))


def test_a_failed_trial_fails_with_the_same_reason_after_the_same_reports(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("sample 137 is damaged")

    best = search(tmp_path, 2, callbacks=[AtStep(fail, run=0, step=6)])
    assert states(best) == ["failed", "complete"]
    again = trainer_of(tmp_path, AtStep(fail, run=0, step=6)).replay(number=0, progress=False)
    assert_equal(again)
    assert again.record.reason == again.original.reason == "RuntimeError: sample 137 is damaged"
    assert again.record.traceback is not None
    mended = replay(tmp_path, 0)
    assert mended.record.state is TrialState.COMPLETE
    assert mended.first_difference == "2 reports, in the study 1"


def test_a_trial_that_was_interrupted_and_went_on_is_replayed_in_one_go(tmp_path: Path) -> None:
    changes = {"save_strategy": "steps", "save_steps": 3, "num_train_epochs": 3}
    with pytest.raises(SearchInterrupted):
        search(tmp_path, 1, callbacks=[AtStep(interrupt, run=0, step=8)], trainer=changes)
    assert states(search(tmp_path, 1, trainer=changes)) == ["complete"]
    assert_equal(replay(tmp_path, 0, changes))


def test_several_objectives_and_constraints_are_those_of_the_study(tmp_path: Path) -> None:
    options = {"scope": "avg", "constraints": "num_parameters <= 55"}
    for record in without_result(search, tmp_path, 3, ["loss", "accuracy"], **options).run_summary.records:
        again = replay(tmp_path, record.number)
        assert again.is_equal
        assert again.record.values == record.values


@pytest.mark.parametrize(
    "changes",
    [
        {"compute_metrics": None},
        {},
        {"compute_metrics": None, "eval_dataset": {"near": points(8, seed=1), "far": points(8, seed=2)}},
    ],
    ids=["loss", "sum_of_metrics", "sum_of_losses"],
)
def test_the_default_objective_need_not_be_given_again(tmp_path: Path, changes: dict[str, Any]) -> None:
    search(tmp_path, 1, None, trainer=changes)
    assert_equal(replay(tmp_path, 0, changes))


def eval_loss(metrics: dict[str, float]) -> float:
    """Named like a metric, but not the metric."""
    return 2.0 * metrics["eval_loss"]


@pytest.mark.parametrize("function", [eval_loss, lambda metrics: -metrics["eval_loss"]], ids=["named", "lambda"])
def test_an_objective_that_is_a_function_must_be_given_again(
    tmp_path: Path, function: Callable[[dict[str, float]], float]
) -> None:
    search(tmp_path, 1, function, direction="minimize")
    with pytest.raises(StudyError, match="was a function: pass compute_objective"):
        replay(tmp_path)
    assert_equal(replay(tmp_path, compute_objective=function, direction="minimize"))


# After something has changed.


def test_the_recorded_arguments_win_and_the_notes_say_so(tmp_path: Path) -> None:
    space = {name: parameter for name, parameter in SPACE.items() if name != "seed"}
    search(tmp_path, 1, space=space, trainer={"weight_decay": 0.3, "lr_scheduler_type": "cosine", "seed": 9})
    events = Events()
    changed = {"weight_decay": 0.0, "num_train_epochs": 5, "lr_scheduler_type": "constant", "disable_tqdm": False}
    again = replay(tmp_path, 0, changed, progress=events)
    assert_equal(again)
    assert len(again.notes) == 4
    notes = "; ".join(again.notes)
    assert "weight_decay=0.3 as in the study, not 0.0" in notes
    assert "num_train_epochs=2 as in the study, not 5" in notes
    assert "lr_scheduler_type='cosine' as in the study, not 'constant'" in notes
    assert "seed=9 as in the study, not 42" in notes
    assert events.notes == ["replay of trial 0", *again.notes]
    assert [record.number for record in events.ended] == [0]
    assert events.is_over


def test_a_trial_of_an_earlier_session_has_the_arguments_of_that_session(tmp_path: Path) -> None:
    search(tmp_path, 1, trainer={"weight_decay": 0.0})
    search(tmp_path, 2, trainer={"weight_decay": 0.9})
    assert_equal(replay(tmp_path, 0, {"weight_decay": 0.9}))
    assert_equal(replay(tmp_path, 1, {"weight_decay": 0.0}))


def test_other_data_and_versions_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search(tmp_path, 1)
    settings = json.loads((tmp_path / "study" / "study.json").read_text())
    settings["sessions"][0]["versions"]["torch"] = "1.0"
    (tmp_path / "study" / "study.json").write_text(json.dumps(settings))
    again = replay(tmp_path, 0, {"train_dataset": points(16, seed=5)})
    assert not again.is_equal
    assert again.first_difference is not None
    assert again.first_difference.startswith("step 4: [")
    assert len(again.notes) == 2
    assert f"torch '1.0' -> '{torch.__version__.split('+')[0]}" in "; ".join(again.notes)
    assert "train_dataset '16 samples, " in "; ".join(again.notes)


def test_arguments_that_cannot_be_set_any_more_are_refused(tmp_path: Path) -> None:
    search(tmp_path, 1)
    settings = json.loads((tmp_path / "study" / "study.json").read_text())
    settings["sessions"][0]["arguments"]["lr_scheduler_type"] = "gone"
    (tmp_path / "study" / "study.json").write_text(json.dumps(settings))
    with pytest.raises(StudyError, match="lr_scheduler_type='gone'"):
        replay(tmp_path, 0)


def test_nothing_that_a_study_from_someone_else_says_makes_a_replay_act_elsewhere(tmp_path: Path) -> None:
    search(tmp_path, 1)
    study = tmp_path / "study"
    settings = json.loads((study / "study.json").read_text())
    settings["sessions"][0]["arguments"].update(push_to_hub=True, hub_model_id="someone/model")
    (study / "study.json").write_text(json.dumps(settings))
    again = replay(tmp_path, 0)
    assert_equal(again)
    assert [each.partition("=")[0] for each in again.notes] == ["push_to_hub", "hub_model_id"]
    assert all("reaches beyond the study's folder" in each for each in again.notes)

    (study / "replays").rename(tmp_path / "elsewhere")
    (study / "replays").symlink_to(tmp_path / "elsewhere")
    before = contents(tmp_path / "elsewhere")
    with pytest.raises(StudyError, match="replays' is a link"):
        replay(tmp_path, 0)
    assert contents(tmp_path / "elsewhere") == before
    (study / "replays").unlink()

    record = json.loads((study / "run-0/trial.json").read_text())
    (study / "run-0/trial.json").write_text(json.dumps({**record, "arguments": {"hub_model_id": "someone/model"}}))
    with pytest.raises(StudyError, match="sets hub_model_id='someone/model', which reaches beyond"):
        replay(tmp_path, 0)


def test_parameters_that_model_init_did_not_suggest_then_are_refused(tmp_path: Path) -> None:
    search(tmp_path, 1)

    def suggests_more(trial: Any) -> WithDropout:
        trial.suggest_float("depth", 0.0, 1.0)
        return model_init(trial)

    with pytest.raises(SpaceError, match="No value was given for 'depth'"):
        replay(tmp_path, 0, {"model_init": suggests_more})


# What is not there.


def test_a_study_that_is_not_there_is_refused_with_the_nearest(tmp_path: Path) -> None:
    search(tmp_path, 1, study_name="digits")
    with pytest.raises(StudyError, match=r"no study 'digit'.*digits.*Did you mean 'digits'\?"):
        replay(tmp_path, study_name="digit")
    with pytest.raises(StudyError, match="there is none"):
        replay(tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "digit").exists()


def test_a_trial_that_is_not_there_is_refused_with_those_there_are(tmp_path: Path) -> None:
    search(tmp_path, 2, trainer={"num_train_epochs": 1})
    for number in (2, -1):
        with pytest.raises(StudyError, match=rf"no trial {number}; it has \[0, 1\]"):
            replay(tmp_path, number)
    for wrong in ("0", True, 0.5):
        with pytest.raises(StudyError, match=f"number must be that of a trial, but got {wrong!r}"):
            replay(tmp_path, wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "study" / "replays").exists()


def test_without_a_best_trial_a_number_is_asked_for(tmp_path: Path) -> None:
    without_result(search, tmp_path, 1, constraints="num_parameters <= 1")
    with pytest.raises(StudyError, match="no best trial; pass the number"):
        replay(tmp_path)
    assert_equal(replay(tmp_path, 0))


@pytest.mark.parametrize(
    "options",
    [
        {"compute_objective": "accuracy"},
        {"compute_objective": ["loss", "accuracy"]},
        {"compute_objective": lambda metrics: 0.0, "direction": "minimize"},
        {"direction": "maximize"},
    ],
    ids=["metric", "list", "function", "direction"],
)
def test_another_objective_than_the_study_s_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    search(tmp_path, 1, trainer={"num_train_epochs": 1})
    with pytest.raises(StudyError, match="The study is to minimize eval_loss"):
        replay(tmp_path, 0, **options)
    assert not (tmp_path / "study" / "replays").exists()


def test_a_replay_that_is_interrupted_leaves_the_study_as_it_was(tmp_path: Path) -> None:
    search(tmp_path, 1)
    before = contents(tmp_path / "study")
    with pytest.raises(KeyboardInterrupt):
        trainer_of(tmp_path, AtStep(interrupt, run=0, step=3)).replay(progress=False)
    assert contents(tmp_path / "study") == before
    assert not (tmp_path / "study" / "replays" / "run-0").exists()
    assert_equal(replay(tmp_path))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_ends_a_replay_and_leaves_no_folder_of_it(tmp_path: Path, name: str) -> None:
    search(tmp_path, 1)
    before, number, called = contents(tmp_path / "study"), signal.Signals[name], list[int]()
    earlier = signal.signal(number, lambda number, frame: called.append(number))
    try:
        callback = AtStep(lambda: signal.raise_signal(number), run=0, step=3)
        with pytest.raises(SearchInterrupted, match=f"replay of trial 0 was interrupted by {name}") as caught:
            trainer_of(tmp_path, callback).replay(progress=False)
    finally:
        signal.signal(number, earlier)
    assert (caught.value.exit_code, called) == (128 + number, [number])
    assert callback.steps[-1] == (0, 3)
    assert contents(tmp_path / "study") == before
    assert not (tmp_path / "study" / "replays" / "run-0").exists()
    assert_equal(replay(tmp_path))


def test_a_replay_that_is_refused_leaves_no_folder_of_it(tmp_path: Path) -> None:
    search(tmp_path, 1)

    def refused(trial: Any) -> WithDropout:
        raise SpaceError("refused")

    with pytest.raises(SpaceError, match="refused"):
        replay(tmp_path, trainer={"model_init": refused})
    assert not (tmp_path / "study" / "replays" / "run-0").exists()


@pytest.mark.process
def test_another_process_makes_the_same_reports(tmp_path: Path) -> None:
    search(tmp_path, 1)
    code = (
        "import sys, torch; torch.set_num_threads(1)\n"
        "from pathlib import Path\n"
        "from tests.search.test_replay import replay\n"
        "again = replay(Path(sys.argv[1]), 0)\n"
        "assert again.is_equal and again.notes == [], (again.first_difference, again.notes)\n"
    )
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=root, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr


def test_an_argument_with_a_secret_is_replayed_as_it_is_here(tmp_path: Path) -> None:
    secret = {"optim_args": "a=https://user:hunter2@host", "max_grad_norm": 2.0}
    original = TrialRecord(0, "run-0", TrialState.COMPLETE, {})
    trainer, notes = _as_it_was(small_trainer(tmp_path), secret, original)
    assert trainer.args.optim_args is None
    assert trainer.args.max_grad_norm == 2.0
    assert "hunter2" not in str(notes)
    assert "optim_args=None as here" in notes[0]
