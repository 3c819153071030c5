"""Code that was edited between two sessions of a study: said, warned about, or refused; never mixed in silently."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import EarlyStoppingCallback, PrinterCallback, ProgressCallback, TrainerCallback

from hpsearch import (
    Categorical,
    Float,
    Int,
    SearchInterrupted,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    StudyError,
    Trainer,
    TrainingArguments,
    WeightsMismatchError,
    tune,
)
from hpsearch.search.store.provenance import describe_environment, differences, differences_in_results
from hpsearch.search.store.study_folder import read_records
from hpsearch.search.trial_record import TrialState
from hpsearch.trainer.searchable_trainer import SearchableTrainer
from tests.support.searching import AtStep, Events, HearsNotices, interrupt, states, without_result
from tests.support.short_searches import RATE, params_of, rates, search
from tests.support.small_trainer import TwoLayers, points, small_trainer, transformers_trainer


def notes_of(folder: Path, n_trials: int, **options: Any) -> list[str]:
    events = Events()
    search(folder, n_trials, progress=events, **options)
    return events.notes


def changes(folder: Path, n_trials: int, **options: Any) -> str:
    said = [each for each in notes_of(folder, n_trials, **options) if "CHANGED" in each]
    return said[0].removeprefix("CHANGED since earlier trials: ") if said else ""


def init_with(hidden: int) -> Callable[[Any], TwoLayers]:
    return lambda trial: TwoLayers(hidden)


def measured(factor: float) -> Callable[[Any], dict[str, float]]:
    return lambda prediction: {"score": factor}


# Said.


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"trainer": {"model_init": init_with(4)}}, {"trainer": {"model_init": init_with(5)}}, "model_init was edited"),
        ({"trainer": {"model_init": init_with(4)}}, {"trainer": {"model_init": init_with(4)}}, ""),
        (
            {"objective": "score", "trainer": {"compute_metrics": measured(1.0)}},
            {"objective": "score", "trainer": {"compute_metrics": measured(2.0)}},
            "compute_metrics was edited",
        ),
    ],
    ids=["model_init", "the same", "compute_metrics"],
)
def test_an_edited_function_is_said_when_the_study_continues(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], said: str
) -> None:
    search(tmp_path, 1, **before)
    assert changes(tmp_path, 2, **after) == said


def test_an_edited_objective_is_said(tmp_path: Path) -> None:
    def objective_with(factor: float) -> Callable[[dict[str, float]], float]:
        def score(metrics: dict[str, float]) -> float:
            return factor * metrics["eval_loss"]

        return score

    search(tmp_path, 1, objective=objective_with(1.0), direction="minimize")
    again = {"direction": "minimize", "objective": objective_with(1.0)}
    assert changes(tmp_path, 2, **again) == ""
    assert changes(tmp_path, 3, **{**again, "objective": objective_with(2.0)}) == "objective score was edited"


class StopsAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.last = step

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        control.should_training_stop = state.global_step >= self.last


class StopsOneEarlier(StopsAt):
    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        control.should_training_stop = state.global_step >= self.last - 1


@pytest.mark.parametrize(
    ("before", "after", "is_said"),
    [
        (StopsAt(2), StopsAt(2), False),
        (StopsAt(2), StopsAt(1), True),
        (StopsAt(2), StopsOneEarlier(2), True),
        (EarlyStoppingCallback(1), EarlyStoppingCallback(2), True),
        (EarlyStoppingCallback(1), EarlyStoppingCallback(1), False),
        (PrinterCallback(), ProgressCallback(), False),
    ],
)
def test_callbacks_count_by_their_code_and_arguments(before: Any, after: Any, is_said: bool, tmp_path: Path) -> None:
    one, other = (
        describe_environment(trainer.args, {}, SearchableTrainer(trainer).functions())
        for trainer in (small_trainer(tmp_path, each) for each in (before, after))
    )
    assert differences(one, other) == (["callbacks were edited"] if is_said else [])
    assert differences_in_results(one, other) == [], "known configurations are not trained again"


def test_a_finished_study_warns_of_another_callback(tmp_path: Path) -> None:
    search(tmp_path, 1, [StopsAt(2)])
    assert any("nothing runs" in each and "callbacks" in each for each in notes_of(tmp_path, 1, callbacks=[StopsAt(1)]))


@pytest.mark.parametrize("without", ["functions", "fingerprint_scheme"])
def test_a_study_without_fingerprints_or_with_those_of_another_scheme_says_nothing(
    tmp_path: Path, without: str
) -> None:
    search(tmp_path, 1, trainer={"model_init": init_with(4)})
    file = tmp_path / "study" / "study.json"
    settings = json.loads(file.read_text())
    del settings["sessions"][0][without]
    file.write_text(json.dumps(settings))
    assert changes(tmp_path, 2, trainer={"model_init": init_with(5)}) == ""


def test_a_study_of_trainer_that_tune_continues_says_what_makes_the_trainers(tmp_path: Path) -> None:
    def make(trial: Any) -> transformers.Trainer:
        return transformers_trainer(str(tmp_path), TwoLayers(), num_train_epochs=1, **trial.params)

    search(tmp_path, 1)
    events = Events()
    tune(make, RATE, output_dir=str(tmp_path), compute_objective="loss", storage="journal", n_trials=2, progress=events)
    said = next(each for each in events.notes if "CHANGED" in each)
    assert "trainer hpsearch.trainer.Trainer -> transformers.trainer.Trainer" in said


class Counted(TwoLayers):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        Counted.made += 1


def test_a_model_that_counts_how_often_it_is_made_was_not_edited(tmp_path: Path) -> None:
    for _ in range(2):
        best = search(
            tmp_path,
            10,
            space={"per_device_train_batch_size": Categorical([2, 4])},
            trainer={"model_init": lambda trial: Counted()},
        )
        assert len(params_of(best)) == 2, "known configurations are not trained again"


# Warned about.


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_init": init_with(5)}, "model_init was edited"),
        ({"weight_decay": 0.5}, "weight_decay 0.0 -> 0.5"),
        ({"train_dataset": points(4, seed=9)}, "train_dataset"),
    ],
    ids=["function", "argument", "data"],
)
def test_a_finished_study_that_meets_a_change_warns_each_time_and_returns_its_best(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, Any], said: str
) -> None:
    best = search(tmp_path, 2, trainer={"model_init": init_with(4)})
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="hpsearch"):
            again = search(tmp_path, 2, trainer={"model_init": init_with(4), **change})
        [warning] = [each.getMessage() for each in caplog.records if "nothing runs" in each.getMessage()]
        assert said in warning
        assert "study_name=" in warning
        assert "n_trials=" in warning
        assert (again.run_id, again.objective) == (best.run_id, best.objective)
    assert not any("nothing runs" in each for each in notes_of(tmp_path, 2, trainer={"model_init": init_with(4)}))


# Seen at the model only.


def notices_of(folder: Path, n_trials: int, **options: Any) -> list[str]:
    events = HearsNotices()
    search(folder, n_trials, progress=events, **options)
    return [each for each in events.notices if "parameters, those of earlier trials" in each]


def from_environment() -> TwoLayers:
    return TwoLayers(int(os.environ["WIDTH"]))


class MakesModels(Trainer):
    """Makes a model of its own, by a training argument."""

    def call_model_init(self, trial: Any = None) -> torch.nn.Module:
        return TwoLayers(int(os.environ["WIDTH"]))


@pytest.mark.parametrize("kind", ["variable", "file"])
def test_a_model_of_another_size_is_said_although_no_code_was_edited(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "width"
    model_init = from_environment if kind == "variable" else lambda: TwoLayers(int(file.read_text()))

    def set_width(width: int) -> None:
        monkeypatch.setenv("WIDTH", str(width))
        file.write_text(str(width))

    set_width(8)
    assert notices_of(tmp_path, 1, trainer={"model_init": model_init}) == []
    assert notices_of(tmp_path, 2, trainer={"model_init": model_init}) == []
    set_width(9)
    [notice] = notices_of(tmp_path, 4, trainer={"model_init": model_init})
    assert "CHANGED since earlier trials: the model of trial 2 has 47 parameters, those of earlier trials 42" in notice
    assert "study_name=" in notice
    assert any("has 47 parameters" in each.getMessage() for each in caplog.records if each.levelname == "WARNING")
    assert notices_of(tmp_path, 5, trainer={"model_init": model_init}) == []  # there are both by now


def test_a_model_of_another_size_is_no_change_if_a_trial_may_choose_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    width = {"model.hidden": Int(1, 100)}
    reads = {"model_init": lambda trial: TwoLayers(trial.params["model.hidden"])}
    assert notices_of(tmp_path, 1, trainer=reads, space=width) == []
    assert notices_of(tmp_path, 3, trainer=reads, space=width) == []
    data = {"train_dataset": points(4, seed=0), "eval_dataset": points(4, seed=1)}
    trainer = small_trainer(tmp_path, model_init=from_environment)
    assert has_fixed_model(trainer)
    assert not has_fixed_model(small_trainer(tmp_path, model_init=reads["model_init"]))
    assert not has_fixed_model(MakesModels(args=trainer.args, model_init=from_environment, **data))
    args = Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True)
    assert has_fixed_model(Seq2SeqTrainer(args=args, model_init=from_environment, **data))
    sharded = TrainingArguments(str(tmp_path), fsdp="full_shard")
    assert not has_fixed_model(Trainer(args=sharded, model_init=from_environment))


def has_fixed_model(trainer: Trainer) -> bool:
    return SearchableTrainer(trainer).has_fixed_model


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"n_trials": 5, "max_epochs": 2}, "the study's 2 epochs are exhausted"),
        ({"n_trials": None, "budget": 1}, "the budget of 1 full training run is exhausted (1)"),
    ],
)
def test_a_study_whose_budget_is_exhausted_warns_of_a_change_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limit: dict[str, Any], said: str
) -> None:
    search(tmp_path, **limit, trainer={"model_init": init_with(4)})
    with caplog.at_level(logging.WARNING, logger="hpsearch"):
        search(tmp_path, **limit, trainer={"model_init": init_with(4)})
        assert not any("nothing runs" in each.getMessage() for each in caplog.records)
        search(tmp_path, **limit, trainer={"model_init": init_with(5)})
    [warning] = [each.getMessage() for each in caplog.records if "nothing runs" in each.getMessage()]
    assert said in warning
    assert "model_init was edited" in warning
    assert f"a larger {list(limit)[-1]}=" in warning


# Refused.


def by_run(high: float, name: str = "learning_rate") -> Callable[[Any], dict[str, Any]]:
    def space(trial: Any) -> dict[str, Any]:
        rate = trial.suggest_float(name, 1e-3, high)
        width = trial.suggest_int("weight_decay", 0, max(1, int(rate * 100)))  # depends on another parameter
        return {"learning_rate": rate, "weight_decay": 0.01 * width}

    return space


def test_a_range_that_a_function_has_changed_is_refused_and_loses_no_trial(tmp_path: Path) -> None:
    with pytest.raises(SearchInterrupted):
        search(tmp_path, 3, [AtStep(interrupt, run=2, step=1)], space=by_run(0.1))
    message = r"was made with another space of 'learning_rate'.*high=0.1.*now.*high=0.2.*another study_name"
    with pytest.raises(StudyError, match=message):
        search(tmp_path, 3, space=by_run(0.2))
    assert [each.state for each in read_records(tmp_path / "study")][-1] is TrialState.INTERRUPTED
    best = search(tmp_path, 4, space=by_run(0.1))
    assert states(best) == ["complete"] * 4
    with pytest.raises(StudyError, match=message):  # also where nothing is left to run
        search(tmp_path, 4, space=by_run(0.2))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (lambda trial: trial.suggest_int("width", 2, 4), lambda trial: trial.suggest_int("width", 2, 64), "high=64"),
        (
            lambda trial: trial.suggest_categorical("width", [2, 4]),
            lambda trial: trial.suggest_categorical("width", [2, 4, 8]),
            r"\[2, 4, 8\]",
        ),
    ],
    ids=["range", "choices"],
)
def test_a_range_that_make_trainer_has_changed_is_refused_and_the_study_continues_with_the_former_one(
    tmp_path: Path, before: Any, after: Any, message: str
) -> None:
    def run(suggest: Callable[[Any], int], n_trials: int) -> Any:
        def make(trial: Any) -> transformers.Trainer:
            return transformers_trainer(str(tmp_path), TwoLayers(suggest(trial)), num_train_epochs=1)

        options = {"compute_objective": "loss", "storage": "journal", "progress": False, "preflight": False}
        return tune(make, output_dir=str(tmp_path), n_trials=n_trials, **options)

    run(before, 1)
    with pytest.raises(StudyError, match=f"was made with another space of 'width'.*now .*{message}.*study_name"):
        run(after, 2)
    assert states(run(before, 2)) == ["complete", "refused", "complete"]


def test_a_range_of_model_init_that_may_depend_on_the_space_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def init_up_to(high: int) -> Callable[[Any], TwoLayers]:
        return lambda trial: TwoLayers(trial.suggest_int("width", 2, high))

    with caplog.at_level(logging.WARNING, logger="hpsearch"):
        search(tmp_path, 1, trainer={"model_init": init_up_to(4)})
        assert not any("another space" in each.getMessage() for each in caplog.records)
        best = search(tmp_path, 3, trainer={"model_init": init_up_to(64)})
    assert sum("another space of 'width'" in each.getMessage() for each in caplog.records) == 1
    assert states(best) == ["complete"] * 3


def test_a_function_may_ask_for_another_parameter(tmp_path: Path) -> None:
    search(tmp_path, 1, space=by_run(0.1))
    events = Events()
    best = search(tmp_path, 2, space=by_run(0.2, name="rate"), progress=events)
    assert len(params_of(best)) == 2
    assert any("hp_space was edited" in each for each in events.notes)


class Switch:
    """What a `model_init` asks for the width of its model; not part of its code."""

    def __init__(self) -> None:
        self.is_on = threading.Event()

    def __call__(self, trial: Any) -> TwoLayers:
        return TwoLayers(5 if self.is_on.is_set() else 4)


@pytest.mark.parametrize("kind", ["Trainer", "tune"])
def test_a_half_done_trial_whose_model_is_another_one_is_not_begun_again(tmp_path: Path, kind: str) -> None:
    switch = Switch()

    def run(*callbacks: Any) -> Any:
        settings = {"num_train_epochs": 3, "save_strategy": "epoch"}
        if kind == "Trainer":
            return search(tmp_path, 1, callbacks, trainer={"model_init": switch, **settings})

        def make(trial: Any) -> transformers.Trainer:
            return transformers_trainer(str(tmp_path), switch(trial), *callbacks, **settings, **trial.params)

        return tune(
            make, RATE, output_dir=str(tmp_path), compute_objective="loss", n_trials=1, pruner=None, progress=False
        )

    steps = 3 if kind == "Trainer" else 10
    with pytest.raises(SearchInterrupted):
        run(AtStep(interrupt, run=0, step=steps))
    switch.is_on.set()
    with pytest.raises(StudyError, match=r"cannot resume .*'hidden.bias' has the shape \(4,\) there, but \(5,\)"):
        run()
    [record] = read_records(tmp_path / "study")
    assert record.state is TrialState.INTERRUPTED
    assert list((tmp_path / "study" / record.name).glob("checkpoint-*"))
    switch.is_on.clear()
    assert states(run()) == ["complete"]


def test_a_new_trial_whose_own_code_loads_weights_of_another_model_fails_like_any_other(tmp_path: Path) -> None:
    def model_init(trial: Any) -> TwoLayers:
        raise WeightsMismatchError("weights of another model")

    ended = without_result(search, tmp_path, 1, trainer={"model_init": model_init})
    assert states(ended) == ["failed"]


def test_an_edit_changes_no_choice_of_parameters(tmp_path: Path) -> None:
    at_once = search(tmp_path / "at once", 4)
    search(tmp_path / "edited", 2, trainer={"model_init": init_with(8)})
    edited = search(tmp_path / "edited", 4)
    assert rates(edited) == rates(at_once)


def test_a_space_of_floats_is_not_asked_more_often_than_there_are_trials(tmp_path: Path) -> None:
    asked = []

    def space(trial: Any) -> dict[str, Any]:
        asked.append(trial.number)
        return {"learning_rate": Float(1e-3, 1e-1)}

    search(tmp_path, 4, space=space)
    assert asked == [0, 1, 2, 3]
