"""The scoped checkpoints of the best trials stay on disk, and no others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from hpsearch import Float, TrialRecord, TrialState
from hpsearch.search.metrics.objective import Objective, resolve_objectives
from hpsearch.search.store.retention import is_worth_keeping, remove_surplus
from tests.support.models import weights_of
from tests.support.small_trainer import small_trainer

MINIMIZE = resolve_objectives("loss", "minimize", has_metrics=False)
MAXIMIZE = resolve_objectives("accuracy", "maximize", has_metrics=True)


def ended_trial(
    study: Path, number: int, value: float | None, state: TrialState = TrialState.COMPLETE, scoped: int | None = 4
) -> TrialRecord:
    """A trial with checkpoints of steps 2, 4 and 6 on disk, of which `scoped` stands for it."""
    folder = study / f"run-{number}"
    for step in (2, 4, 6):
        (folder / f"checkpoint-{step}" / "inner").mkdir(parents=True)
        (folder / f"checkpoint-{step}" / "inner" / "weights").write_bytes(b"1234")
    (folder / "trial.json").write_text("{}")
    (folder / "checkpoints.txt").write_text("mine")
    checkpoint = None if scoped is None else folder / f"checkpoint-{scoped}"
    return TrialRecord(number, folder.name, state, {}, values=() if value is None else (value,), checkpoint=checkpoint)


def on_disk(study: Path) -> list[str]:
    return sorted(str(path.relative_to(study)) for path in study.glob("*/*checkpoint-*"))


@pytest.mark.parametrize(
    ("objective", "keep", "kept"),
    [
        (MINIMIZE, 1, [1]),
        (MINIMIZE, 2, [1, 2]),
        (MAXIMIZE, 1, [0]),
        (MAXIMIZE, 2, [0, 3]),
        (MINIMIZE, 9, [0, 1, 2, 3]),
        (MINIMIZE, 0, []),
    ],
)
def test_only_the_scoped_checkpoints_of_the_best_trials_stay(
    tmp_path: Path, objective: tuple[Objective, ...], keep: int, kept: list[int]
) -> None:
    records = [ended_trial(tmp_path, number, value) for number, value in enumerate([0.9, 0.1, 0.2, 0.8])]
    remove_surplus(records, tmp_path, objective, keep)
    assert on_disk(tmp_path) == [f"run-{number}/checkpoint-4" for number in kept]
    for record in records:
        assert {path.name for path in (tmp_path / record.name).iterdir()} >= {"trial.json", "checkpoints.txt"}
    for number in kept:
        assert (tmp_path / f"run-{number}" / "checkpoint-4" / "inner" / "weights").read_bytes() == b"1234"


def test_a_checkpoint_that_is_not_read_because_of_a_link_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("notes")
    records = [ended_trial(tmp_path / "study", number, value) for number, value in enumerate([0.1, 0.9])]
    (tmp_path / "study" / "run-0" / "checkpoint-4" / "inner" / "notes").symlink_to(tmp_path / "outside")
    records[0] = dataclasses.replace(records[0], checkpoint=None)  # as the reader of the study returns it
    remove_surplus(records, tmp_path / "study", MINIMIZE, 1)
    assert on_disk(tmp_path / "study") == ["run-0/checkpoint-4"]
    assert (tmp_path / "study" / "run-0" / "checkpoint-4" / "inner" / "weights").read_bytes() == b"1234"


def test_keep_none_deletes_nothing(tmp_path: Path) -> None:
    records = [ended_trial(tmp_path, number, float(number)) for number in range(3)]
    before = on_disk(tmp_path)
    remove_surplus(records, tmp_path, MINIMIZE, None)
    assert on_disk(tmp_path) == before
    assert len(before) == 9


def test_trials_without_a_result_keep_nothing_and_those_that_are_to_go_on_everything(tmp_path: Path) -> None:
    records = [
        ended_trial(tmp_path, 0, 0.5),
        ended_trial(tmp_path, 1, 0.1, TrialState.PRUNED),
        ended_trial(tmp_path, 2, 0.1, TrialState.FAILED, scoped=None),
        ended_trial(tmp_path, 3, None, TrialState.RUNNING, scoped=None),
        ended_trial(tmp_path, 4, None, TrialState.INTERRUPTED, scoped=None),
    ]
    remove_surplus(records, tmp_path, MINIMIZE, 1)
    to_go_on = [f"run-{number}/checkpoint-{step}" for number in (3, 4) for step in (2, 4, 6)]
    assert on_disk(tmp_path) == ["run-0/checkpoint-4", *to_go_on]


def test_of_equal_trials_the_earlier_one_is_kept(tmp_path: Path) -> None:
    records = [ended_trial(tmp_path, number, 0.5) for number in (2, 0, 1)]
    remove_surplus(records, tmp_path, MINIMIZE, 1)
    assert on_disk(tmp_path) == ["run-0/checkpoint-4"]


@pytest.mark.parametrize(
    ("value", "keep", "worth"),
    [(0.05, 1, True), (0.15, 1, False), (0.1, 1, False), (0.15, 2, True), (0.25, 2, False), (9.0, 3, True)],
)
def test_a_trial_is_worth_keeping_if_it_beats_the_last_of_those_kept(value: float, keep: int, worth: bool) -> None:
    records = [
        TrialRecord(number, f"run-{number}", TrialState.COMPLETE, {}, values=(each,))
        for number, each in enumerate([0.1, 0.2])
    ]
    records.append(TrialRecord(2, "run-2", TrialState.PRUNED, {}, values=(0.01,)))
    assert is_worth_keeping((value,), records, MINIMIZE, keep) is worth
    flipped = [dataclasses.replace(record, values=(-record.value,)) for record in records if record.value is not None]
    assert is_worth_keeping((-value,), flipped, MAXIMIZE, keep) is worth


def test_nothing_is_worth_keeping_with_zero_and_everything_with_none() -> None:
    assert not is_worth_keeping((0.0,), [], MINIMIZE, 0)
    assert is_worth_keeping((1e9,), [TrialRecord(0, "run-0", TrialState.COMPLETE, {}, values=(0.0,))], MINIMIZE, None)


def scripted(values: Sequence[float]) -> tuple[object, object]:
    """A space with nothing to choose that matters, and an objective that gives these values in turn."""
    remaining = iter(values)
    return (lambda trial: {"seed": trial.suggest_int("seed", 1, 40)}), (lambda metrics: next(remaining))


@pytest.mark.parametrize("save_strategy", ["no", "epoch"])
@pytest.mark.parametrize(
    ("scope", "kept"),
    [
        # Trials report 5 1 9, 4 4 4 and 3 8 3.5 after steps 4, 8 and 12.
        ("last", ["run-2/checkpoint-12"]),
        ("all", ["run-0/checkpoint-8"]),
        ("avg", ["run-1/checkpoint-12"]),
    ],
)
def test_a_search_leaves_the_one_checkpoint_that_its_scope_selects(
    tmp_path: Path, save_strategy: str, scope: str, kept: list[str]
) -> None:
    space, objective = scripted([5, 1, 9, 4, 4, 4, 3, 8, 3.5])
    best = small_trainer(tmp_path, num_train_epochs=3, save_strategy=save_strategy).hyperparameter_search(
        space, objective, 3, "minimize", scope=scope, pruner="none", storage="journal", preflight=False, progress=False
    )
    assert on_disk(tmp_path / "study") == kept
    assert best.checkpoint == tmp_path / "study" / kept[0]
    assert best.scope == scope
    assert best.objective == {"last": 3.5, "all": 1.0, "avg": 4.0}[scope]


@pytest.mark.parametrize(("keep", "kept"), [(0, []), (2, [0, 2]), (None, [0, 1, 2])])
def test_a_search_keeps_as_many_trials_as_asked(tmp_path: Path, keep: int | None, kept: list[int]) -> None:
    space, objective = scripted([0.1, 0.9, 0.2])
    best = small_trainer(
        tmp_path, num_train_epochs=1, save_strategy="no" if keep is not None else "epoch"
    ).hyperparameter_search(
        space, objective, 3, "minimize", keep_checkpoints=keep, storage="journal", preflight=False, progress=False
    )
    assert on_disk(tmp_path / "study") == [f"run-{number}/checkpoint-4" for number in kept]
    assert (best.checkpoint is None) is (keep == 0)


def test_after_a_search_no_record_points_to_a_checkpoint_that_was_deleted(tmp_path: Path) -> None:
    space, objective = scripted([0.3, 0.2, 0.1])
    best = small_trainer(tmp_path, num_train_epochs=1).hyperparameter_search(
        space, objective, 3, "minimize", storage="journal", preflight=False, progress=False
    )
    checkpoints = [record.checkpoint for record in best.run_summary.records]
    assert [each is not None and each.is_dir() for each in checkpoints] == [False, False, True]
    assert checkpoints == [None, None, best.checkpoint]


class CountsCheckpoints(TrainerCallback):
    """Watches how many folders of weights a study has at once, half-written ones included."""

    def __init__(self, study: Path) -> None:
        self._study = study
        self.most = 0

    def _count(self, *args: object, **kwargs: object) -> None:
        found = [path for path in self._study.glob("*/*") if "checkpoint-" in path.name or "selected-" in path.name]
        self.most = max(self.most, len(found))

    on_step_end = on_evaluate = on_save = on_train_begin = on_train_end = _count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep", "arguments", "most"),
    [
        (1, {"scope": "last"}, 3),
        (1, {"scope": "all"}, 4),
        (2, {"scope": "all", "load_best_model_at_end": True, "metric_for_best_model": "accuracy"}, 6),
        (0, {"scope": "all"}, 3),
    ],
)
def test_the_disk_holds_the_best_and_what_the_running_trial_needs_however_long_the_search(
    tmp_path: Path, keep: int, arguments: dict[str, Any], most: int
) -> None:
    scope = arguments.pop("scope")
    watching = CountsCheckpoints(tmp_path / "study")
    trainer = small_trainer(tmp_path, watching, num_train_epochs=8, save_strategy="epoch", **arguments)
    trainer.hyperparameter_search(
        {"learning_rate": Float(1e-3, 1.0, log=True)},
        "loss",
        6,
        scope=scope,
        pruner="none",
        keep_checkpoints=keep,
        storage="journal",
        progress=False,
    )
    assert 0 < watching.most <= most
    assert len(on_disk(tmp_path / "study")) == keep


class KeepsWeights(TrainerCallback):
    """Keeps the weights after the first epoch, and those at the end of the training."""

    def on_epoch_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.epoch == 1:
            self.first = weights_of(model)

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.best_step, self.at_end = state.best_global_step, weights_of(model)


def test_the_best_model_of_a_run_is_loaded_at_its_end_though_the_search_selects_another(tmp_path: Path) -> None:
    keeps = KeepsWeights()
    worst: dict[str, Any] = {"metric_for_best_model": "loss", "greater_is_better": True}  # after the first epoch
    trainer = small_trainer(
        tmp_path, keeps, num_train_epochs=3, save_strategy="epoch", load_best_model_at_end=True, **worst
    )
    space = {"learning_rate": Float(1e-2, 1e-1)}
    trainer.hyperparameter_search(space, "loss", 1, preflight=False, storage="journal", progress=False)
    assert keeps.best_step == 4
    assert all(torch.equal(keeps.first[name], each) for name, each in keeps.at_end.items())
    assert on_disk(tmp_path / "study") == ["run-0/checkpoint-12"]


def test_of_equal_trials_the_one_with_the_lower_number_is_worth_keeping() -> None:
    records = [TrialRecord(1, "run-1", TrialState.COMPLETE, {}, values=(0.5,))]
    assert is_worth_keeping((0.5,), records, MINIMIZE, 1, number=0)
    assert not is_worth_keeping((0.5,), records, MINIMIZE, 1, number=2)
