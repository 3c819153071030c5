"""What may change between the sessions of a study: some things are refused, with what differs; others are said."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch

from hpsearch import Categorical, Float, Int, SearchInterrupted, StudyError, TrialRecord, TrialState
from hpsearch.searching.run_search import changes_of_sessions
from tests.support.searching import ROOT, AtStep, Events, interrupt, states
from tests.support.small_trainer import TwoLayers, points, small_trainer

MOMENTUM = {"optim.momentum": Float(0.0, 0.9)}
SPACE: dict[str, Any] = {
    "learning_rate": Float(1e-3, 1e-1, log=True),
    "seed": Int(1, 9),
    "optim": Categorical({"adamw_torch": {}, "sgd": MOMENTUM}),
}


def search(folder: Path, n_trials: int = 1, callbacks: Sequence[Any] = (), **options: Any) -> Any:
    changes = {"num_train_epochs": 1, "train_dataset": points(4, seed=0), **options.pop("trainer", {})}
    settings = {"progress": False, "compute_objective": "loss", "storage": "journal", **options}
    return small_trainer(folder, *callbacks, **changes).hyperparameter_search(
        settings.pop("space", SPACE), settings.pop("compute_objective"), n_trials=n_trials, **settings
    )


def changes_said(folder: Path, n_trials: int, **options: Any) -> str:
    """What a session says is other than in the last one; empty if it says nothing."""
    events = Events()
    search(folder, n_trials, progress=events, **options)
    said = [note for note in events.notes if "CHANGED" in note]
    assert len(said) <= 1
    assert all(note.startswith("CHANGED since earlier trials: ") for note in said)
    return said[0].removeprefix("CHANGED since earlier trials: ") if said else ""


def files(folder: Path) -> dict[str, bytes]:
    """Everything in a study but the lock, and what SQLite keeps beside an open database."""
    skipped = ("-shm", "-wal", ".lock")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(skipped)
    }


# Refused.


@pytest.mark.parametrize(
    ("options", "what", "before", "now"),
    [
        ({"compute_objective": "accuracy"}, "objective", "'eval_loss'", "'eval_accuracy'"),
        ({"compute_objective": ["loss", "accuracy"]}, "objective", "'eval_loss'", "['eval_loss', 'eval_accuracy']"),
        (
            {"compute_objective": lambda metrics: 1.0, "direction": "minimize"},
            "objective",
            "'eval_loss'",
            "objective",
        ),
        ({"scope": "avg"}, "scope", "'last'", "'avg'"),
        ({"trainer": {"ray_scope": "all"}}, "scope", "'last'", "'all'"),
        ({"constraints": "num_parameters <= 50"}, "constraint", "[]", "['num_parameters <= 50']"),
    ],
    ids=["objective", "objectives", "function", "scope", "scope of the arguments", "constraints"],
)
def test_what_makes_trials_incomparable_is_refused_with_what_differs(
    tmp_path: Path, options: dict[str, Any], what: str, before: str, now: str
) -> None:
    search(tmp_path)
    kept = files(tmp_path / "study")
    with pytest.raises(StudyError) as caught:
        search(tmp_path, 2, **options)
    said = str(caught.value)
    assert f"was made with another {what}" in said
    assert f": {before}" in said
    assert now in said.partition(", now ")[2]
    assert str(tmp_path / "study") in said
    assert "Pass another study_name" in said
    assert files(tmp_path / "study") == kept
    assert states(search(tmp_path, 2)) == ["complete"] * 2


def test_another_direction_is_refused(tmp_path: Path) -> None:
    def objective(metrics: dict[str, float]) -> float:
        return metrics["eval_loss"]

    search(tmp_path, compute_objective=objective, direction="minimize")
    with pytest.raises(StudyError, match="another direction: 'minimize', now 'maximize'"):
        search(tmp_path, 2, compute_objective=objective, direction="maximize")


def with_space(**changes: Any) -> dict[str, Any]:
    return {**SPACE, **changes}


@pytest.mark.parametrize(
    ("space", "name", "now"),
    [
        (with_space(learning_rate=Float(1e-3, 0.2, log=True)), "learning_rate", "high=0.2"),
        (with_space(learning_rate=Float(1e-3, 1e-1)), "learning_rate", "Float(low=0.001, high=0.1)"),
        (with_space(learning_rate=Categorical([0.01, 0.1])), "learning_rate", "Categorical"),
        (with_space(seed=Int(1, 9, step=2)), "seed", "step=2"),
        (with_space(seed=Float(1, 9, step=1)), "seed", "Float"),
        (with_space(optim=Categorical(["sgd", "adamw_torch"])), "optim", "['sgd', 'adamw_torch']"),
        (with_space(optim=Categorical(["adamw_torch", "sgd", "rmsprop"])), "optim", "'rmsprop'"),
        (with_space(optim=Categorical(["adamw_torch"])), "optim", "['adamw_torch']"),
        (
            with_space(optim=Categorical({"adamw_torch": {}, "sgd": {"optim.momentum": Float(0.0, 0.5)}})),
            "optim.momentum",
            "high=0.5",
        ),
    ],
    ids=["bound", "log", "kind", "step", "int to float", "order", "more choices", "fewer choices", "in a branch"],
)
def test_another_space_of_an_existing_parameter_is_refused(
    tmp_path: Path, space: dict[str, Any], name: str, now: str
) -> None:
    search(tmp_path)
    kept = files(tmp_path / "study")
    with pytest.raises(StudyError, match=f"another space of '{name}'") as caught:
        search(tmp_path, 2, space=space)
    assert now in str(caught.value).partition(", now ")[2]
    assert files(tmp_path / "study") == kept


@pytest.mark.parametrize("now", [[0.0, 1.0], [False, True]])
def test_choices_that_only_look_equal_are_other_choices(tmp_path: Path, now: list[Any]) -> None:
    def model_init(trial: Any) -> TwoLayers:
        return TwoLayers(2 + int(trial.params["model.more"]))

    changes = {"trainer": {"model_init": model_init}}
    search(tmp_path, space={"model.more": Categorical([0, 1])}, **changes)
    with pytest.raises(StudyError, match=r"another space of 'model\.more'"):
        search(tmp_path, 2, space={"model.more": Categorical(now)}, **changes)


def test_a_study_that_only_has_a_half_done_trial_is_kept_too(tmp_path: Path) -> None:
    changes = {"num_train_epochs": 3, "save_strategy": "epoch"}
    with pytest.raises(SearchInterrupted):
        search(tmp_path, 1, [AtStep(interrupt, run=0, step=2)], trainer=changes)
    kept = files(tmp_path / "study")
    assert any("checkpoint-1" in name for name in kept)
    with pytest.raises(StudyError, match="another scope"):
        search(tmp_path, 1, scope="avg", trainer=changes)
    assert files(tmp_path / "study") == kept
    assert states(search(tmp_path, 1, trainer=changes)) == ["complete"]


def test_a_study_whose_first_trial_another_search_is_at_is_kept_too(tmp_path: Path) -> None:
    refused: list[str] = []

    class AsksMeanwhile(Events):
        def on_report(self, trial: Any, report: Any) -> None:
            with pytest.raises(StudyError) as caught:
                search(tmp_path, 1, compute_objective="accuracy")
            refused.append(str(caught.value))

    best = search(tmp_path, 1, progress=AsksMeanwhile())
    assert states(best) == ["complete"]
    assert len(refused) == 1
    assert "another objective" in refused[0]
    assert best.load_model() is not None


# Said.


def test_the_same_settings_say_nothing(tmp_path: Path) -> None:
    assert changes_said(tmp_path, 1) == ""
    assert changes_said(tmp_path, 2) == ""
    assert changes_said(tmp_path, 2) == ""


def test_what_a_run_shows_and_where_it_is_started_is_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    search(tmp_path / "out")
    shown = {"disable_tqdm": False, "run_name": "again", "report_to": "none"}
    assert changes_said(Path("out"), 2, trainer=shown) == ""


def test_arguments_that_changed_are_said_with_both_values(tmp_path: Path) -> None:
    search(tmp_path, trainer={"weight_decay": 0.1})
    said = changes_said(tmp_path, 2, trainer={"weight_decay": 0.2, "lr_scheduler_type": "cosine", "warmup_steps": 3})
    assert "weight_decay 0.1 -> 0.2" in said
    assert "lr_scheduler_type 'linear' -> 'cosine'" in said
    assert "warmup_steps 0 -> 3" in said
    assert said.count("->") == 3


def test_versions_that_changed_are_said(tmp_path: Path) -> None:
    search(tmp_path)
    settings = json.loads((tmp_path / "study" / "study.json").read_text())
    now = settings["sessions"][-1]["versions"]["torch"]
    settings["sessions"][-1]["versions"]["torch"] = "1.0"
    (tmp_path / "study" / "study.json").write_text(json.dumps(settings))
    assert changes_said(tmp_path, 2) == f"torch '1.0' -> {now!r}"


def test_data_that_changed_are_said(tmp_path: Path) -> None:
    search(tmp_path)
    said = changes_said(tmp_path, 2, trainer={"train_dataset": points(4, seed=5), "eval_dataset": points(31, seed=1)})
    assert said.count("->") == 2
    assert "train_dataset '4 samples, " in said
    assert "eval_dataset '32 samples, " in said
    assert "-> '31 samples, " in said


def test_parameters_that_come_and_go_are_said(tmp_path: Path) -> None:
    search(tmp_path)
    space = {"learning_rate": SPACE["learning_rate"], "optim": SPACE["optim"], "weight_decay": Float(0.0, 0.1)}
    said = changes_said(tmp_path, 2, space=space)
    assert said == "weight_decay is searched now, seed is no longer searched"
    best = search(tmp_path, 3, space=space)
    assert [set(record.params) & {"seed", "weight_decay"} for record in best.run_summary.records] == [
        {"seed"},
        {"weight_decay"},
        {"weight_decay"},
    ]


def test_a_space_that_becomes_a_function_is_said(tmp_path: Path) -> None:
    search(tmp_path)

    def function(trial: Any) -> dict[str, Any]:
        return {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)}

    assert "space by a mapping -> by a function" in changes_said(tmp_path, 2, space=function)
    assert changes_said(tmp_path, 3, space=function) == ""
    assert "space by a function -> by a mapping" in changes_said(tmp_path, 4)


def test_what_chooses_and_prunes_is_said(tmp_path: Path) -> None:
    search(tmp_path, seed=7)
    assert json.loads((tmp_path / "study" / "study.json").read_text())["seed"] == 7
    said = changes_said(tmp_path, 2, seed=8, sampler=optuna.samplers.RandomSampler(seed=1), pruner="hyperband")
    assert "seed 7 -> 8" in said
    assert "sampler 'CurveSampler' -> 'RandomSampler'" in said
    assert "pruner 'rungs' -> 'HyperbandPruner'" in said


def test_back_and_forth_each_session_is_compared_with_all_that_trained_trials(tmp_path: Path) -> None:
    values = [0.1, 0.2, 0.1, 0.1, 0.2]
    said = [
        changes_said(tmp_path, number, trainer={"weight_decay": value}, sampler=optuna.samplers.RandomSampler(seed=1))
        for number, value in enumerate(values, start=1)
    ]
    there, back = "weight_decay 0.1 -> 0.2", "weight_decay 0.2 -> 0.1"
    assert said == ["", there, back, back, there]


def test_a_session_that_trained_nothing_is_not_what_the_next_one_is_compared_with(tmp_path: Path) -> None:
    search(tmp_path, 2, trainer={"weight_decay": 0.1})
    changed = {"trainer": {"weight_decay": 0.2}}
    said = [changes_said(tmp_path, 2, **changed), changes_said(tmp_path, 2, trainer={"weight_decay": 0.1})]
    assert said == ["weight_decay 0.1 -> 0.2", ""]
    search(tmp_path, 2, **changed)
    assert changes_said(tmp_path, 3, **changed) == "weight_decay 0.1 -> 0.2"


@pytest.mark.parametrize(
    ("trials", "said"),
    [
        ([], ["seed 3 -> 1"]),
        ([(TrialState.COMPLETE, 0)], []),
        ([(TrialState.COMPLETE, 1)], ["seed 2 -> 1"]),
        ([(TrialState.PRUNED, 1), (TrialState.COMPLETE, 0), (TrialState.STOPPED, 1)], ["seed 2 -> 1"]),
        ([(TrialState.PAUSED, 1), (TrialState.INTERRUPTED, 2)], ["seed 2 -> 1", "seed 3 -> 1"]),
        ([(TrialState.COMPLETE, 0), (TrialState.FAILED, 1), (TrialState.REFUSED, 1)], []),
        ([(TrialState.FAILED, 1)], ["seed 3 -> 1"]),
        ([(TrialState.COMPLETE, 0), (TrialState.RUNNING, 0)], ["seed 3 -> 1"]),
        ([(TrialState.COMPLETE, 9)], []),
    ],
    ids=str,
)
def test_the_sessions_that_trained_trials_are_those_compared(trials: list[tuple[TrialState, int]], said: Any) -> None:
    records = [
        TrialRecord(number, f"run-{number}", state, {}, session=place) for number, (state, place) in enumerate(trials)
    ]
    sessions = [{"arguments": {"seed": each}} for each in (1, 2, 3)]
    assert changes_of_sessions(records, {"sessions": sessions, "session": 2}, sessions[0]) == said


def test_what_is_not_part_of_a_study_may_change_in_silence(tmp_path: Path) -> None:
    search(tmp_path, keep_checkpoints=1, timeout=100, max_failures=3)
    assert changes_said(tmp_path, 2, keep_checkpoints=2, timeout=50.0, max_failures=None, trial_timeout=9.0) == ""


def test_a_mistake_in_the_first_trial_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lss"):
        search(tmp_path, 2, compute_objective="lss")
    best = search(tmp_path, 2, scope="avg")
    assert [record.state.value for record in best.run_summary.records if record.state.is_counted] == ["complete"] * 2


# Another process.


@pytest.mark.process
def test_another_process_with_the_same_settings_says_nothing(tmp_path: Path) -> None:
    code = """
        import sys, torch; torch.set_num_threads(1)
        from pathlib import Path
        from tests.search.test_settings_changed import everything, search
        search(Path(sys.argv[1]), int(sys.argv[2]), **everything())
    """
    lines = "\n".join(line.strip() for line in code.splitlines())
    ended = subprocess.run(
        [sys.executable, "-c", lines, str(tmp_path), "1"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "5", "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert changes_said(tmp_path, 2, **everything()) == ""


def everything() -> dict[str, Any]:
    """Settings of many kinds, made anew at every call."""
    return {
        "sampler": optuna.samplers.TPESampler(seed=1),
        "constraints": ["num_parameters <= 1e6"],
        "trainer": {
            "eval_dataset": {"near": points(8, seed=1), "far": points(8, seed=2)},
            "compute_metrics": None,
            "lr_scheduler_type": "cosine_with_min_lr",
            "lr_scheduler_kwargs": {"min_lr": 1e-4},
            "model_init": lambda: TwoLayers(4),
            "label_names": ["labels"],
            "warmup_steps": 1,
        },
        "compute_objective": None,
        "start_with": {"learning_rate": 0.01},
    }


def test_the_seed_of_torch_is_no_setting(tmp_path: Path) -> None:
    torch.manual_seed(1)
    search(tmp_path)
    torch.manual_seed(2)
    assert changes_said(tmp_path, 2) == ""
