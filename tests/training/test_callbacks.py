"""Callbacks see the events that transformers' trainer fires, in its order, and steer training through the control."""

from __future__ import annotations

import inspect
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import (
    DefaultFlowCallback,
    EarlyStoppingCallback,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)

import hpsearch
from hpsearch import Trainer, TrainingArguments
from hpsearch.errors import InvalidInputError
from tests.support.models import (
    Line,
    line_data,
)
from tests.support.small_training import Look, args_of, logged
from tests.support.small_training import make_trainer as line_trainer

EVENTS = [name for name in vars(TrainerCallback) if name.startswith("on_")]


class Recorder(TrainerCallback):
    """Keeps the name of every event with the control flags and the names of the keyword arguments it came with."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.seen: list[tuple[str, int, dict[str, bool], dict[str, Any]]] = []


def _recording(event: str) -> Any:
    def record(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.events.append(event)
        self.seen.append((event, state.global_step, dict(vars(control)), kwargs))

    return record


for _event in EVENTS:
    setattr(Recorder, _event, _recording(_event))


class StopAfter(TrainerCallback):
    """Stops training after a number of updates."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if state.global_step >= self.steps:
            control.should_training_stop = True
        return control


def make_trainer(folder: Path, *callbacks: Any, kind: Any = Trainer, **changes: Any) -> Any:
    """52 points in batches of 4: 13 micro-batches an epoch."""
    parts = {name: changes.pop(name) for name in ("model_init", "compute_metrics") if name in changes}
    values: dict[str, Any] = {
        "learning_rate": 0.05,
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "logging_steps": 2,
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        **changes,
    }
    arguments = TrainingArguments if kind is Trainer else transformers.TrainingArguments
    trainer = kind(
        args=arguments(str(folder), **values),
        train_dataset=line_data(52),
        eval_dataset=line_data(10, seed=1),
        callbacks=list(callbacks),
        **{"model_init": Line, **parts},
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


SCRIPTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation_with_a_leftover": {"gradient_accumulation_steps": 3},
    "evaluation_and_saving_by_epoch": {"eval_strategy": "epoch", "save_strategy": "epoch"},
    "evaluation_and_saving_by_steps": {
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "eval_steps": 4,
        "save_steps": 8,
        "gradient_accumulation_steps": 2,
    },
    "saving_the_best": {"eval_strategy": "epoch", "save_strategy": "best", "metric_for_best_model": "loss"},
    "loading_the_best": {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True},
    "logging_by_epoch": {"logging_strategy": "epoch", "num_train_epochs": 1.5},
    "logging_the_first_step": {"logging_first_step": True, "logging_steps": 5},
    "no_logging": {"logging_strategy": "no", "max_steps": 5},
    "evaluation_after_a_delay": {"eval_strategy": "epoch", "eval_delay": 2},
    "evaluation_on_start": {"eval_strategy": "epoch", "eval_on_start": True},
}


def events_of(trainer: Any, recorder: Recorder) -> list[str]:
    trainer.train()
    trainer.evaluate()
    trainer.predict(line_data(6))
    return recorder.events[recorder.events.index("on_train_begin") :]


@pytest.mark.feature(75, 82, 99)
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_whole_order_of_events_is_that_of_the_peer(tmp_path: Path, script: str) -> None:
    orders = []
    for kind in (transformers.Trainer, Trainer):
        recorder = Recorder()
        orders.append(
            events_of(make_trainer(tmp_path / kind.__module__, recorder, kind=kind, **SCRIPTS[script]), recorder)
        )
    assert orders[1] == orders[0]


@pytest.mark.parametrize("stop", ["should_training_stop", "should_epoch_stop"])
@pytest.mark.parametrize("event", ["on_step_end", "on_substep_end"])
@pytest.mark.parametrize("step", [3, 7], ids=["inside_an_epoch", "between_two_epochs"])
def test_the_order_of_events_is_that_of_the_peer_when_a_callback_stops(
    tmp_path: Path, step: int, event: str, stop: str
) -> None:
    def cut_in(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if state.global_step == step:
            setattr(control, stop, True)
        return control

    orders, steps = [], []
    for kind in (transformers.Trainer, Trainer):
        recorder, stopper = Recorder(), type("Stopper", (TrainerCallback,), {event: cut_in})()
        changes = {"gradient_accumulation_steps": 2, "eval_strategy": "epoch", "num_train_epochs": 3}
        trainer = make_trainer(tmp_path / kind.__module__, recorder, stopper, kind=kind, **changes)
        orders.append(events_of(trainer, recorder))
        steps.append(trainer.state.global_step)
    assert steps[1] == steps[0]
    assert orders[1] == orders[0]


@pytest.mark.feature(82)
def test_an_accumulated_update_begins_once_has_substeps_inside_and_ends_after_the_optimizer(tmp_path: Path) -> None:
    recorder = Recorder()
    make_trainer(tmp_path, recorder, gradient_accumulation_steps=4, num_train_epochs=1, logging_strategy="no").train()
    full = ["on_step_begin", *["on_substep_end"] * 3, "on_pre_optimizer_step", "on_optimizer_step", "on_step_end"]
    leftover = ["on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end"]
    assert recorder.events == [
        "on_init_end",
        "on_train_begin",
        "on_epoch_begin",
        *full * 3,
        *leftover,
        "on_epoch_end",
        "on_log",
        "on_train_end",
    ]


@pytest.mark.feature(100)
def test_every_event_comes_with_model_optimizer_schedule_and_loaders(tmp_path: Path) -> None:
    recorder = Recorder()
    trainer = make_trainer(tmp_path, recorder, eval_strategy="epoch", save_strategy="epoch")
    trainer.train()
    trainer.predict(line_data(4))
    always = {"model", "processing_class", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader"}
    extra = {"on_evaluate": {"metrics"}, "on_predict": {"metrics"}, "on_log": {"logs"}}
    for event, _, _, kwargs in recorder.seen:
        assert set(kwargs) == always | extra.get(event, set()), event
    during = [kwargs for event, _, _, kwargs in recorder.seen if event == "on_step_end"]
    assert all(each["model"] is trainer.model and each["optimizer"] is trainer.optimizer for each in during)
    assert all(each["lr_scheduler"] is trainer.lr_scheduler for each in during)
    assert len(during[0]["train_dataloader"]) == 13
    evaluated = next(kwargs for event, _, _, kwargs in recorder.seen if event == "on_evaluate")
    assert evaluated["metrics"]["eval_loss"] > 0
    assert len(evaluated["eval_dataloader"]) == 2
    predicted = recorder.seen[-1]
    assert predicted[0] == "on_predict"
    assert predicted[3]["metrics"]["test_loss"] > 0
    logged = next(kwargs for event, _, _, kwargs in recorder.seen if event == "on_log")
    assert {"loss", "grad_norm", "learning_rate", "epoch"} == set(logged["logs"])


@pytest.mark.feature(110)
def test_the_flags_are_off_at_the_next_step_and_the_epoch_flag_at_the_next_epoch(tmp_path: Path) -> None:
    class Ask(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            if state.global_step == 2:
                control.should_save = control.should_evaluate = control.should_log = control.should_epoch_stop = True
            return control

    recorder = Recorder()
    trainer = make_trainer(tmp_path, Ask, recorder, logging_strategy="no")
    assert trainer.train().global_step == 2 + 13
    asked = [flags for event, step, flags, _ in recorder.seen if event == "on_step_end" and step == 2]
    assert {name for name, value in asked[0].items() if value} == {
        "should_save",
        "should_evaluate",
        "should_log",
        "should_epoch_stop",
    }
    begun = [flags for event, step, flags, _ in recorder.seen if event == "on_step_begin" and step == 2]
    assert not any(begun[0].values())
    after = [event for event, step, _, _ in recorder.seen if step == 2]
    assert [after.count(event) for event in ("on_save", "on_evaluate")] == [1, 1]
    assert [entry["step"] for entry in trainer.state.log_history if "loss" in entry] == [2]
    assert (tmp_path / "checkpoint-2").is_dir()


@pytest.mark.feature(110)
def test_the_flag_that_stops_training_is_never_taken_back_during_a_run_but_by_the_next_one(tmp_path: Path) -> None:
    recorder, stopper = Recorder(), StopAfter(3)
    trainer = make_trainer(tmp_path, stopper, recorder)
    trainer.train()
    assert all(flags["should_training_stop"] for event, _, flags, _ in recorder.seen if event == "on_train_end")
    stopper.steps = 5
    assert trainer.train().global_step == 5


@pytest.mark.feature(98)
def test_returning_none_changes_nothing_and_the_changed_control_counts(tmp_path: Path) -> None:
    class ChangesInPlace(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step == 2

    class ReturnsAnother(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            return TrainerControl(should_training_stop=state.global_step == 3)

    class ReturnsNone(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            return None

    assert make_trainer(tmp_path, ReturnsNone).train().global_step == 26
    assert make_trainer(tmp_path, ChangesInPlace, ReturnsNone).train().global_step == 2
    assert make_trainer(tmp_path, ReturnsAnother, ReturnsNone).train().global_step == 3


@pytest.mark.feature(106, "P3")
def test_a_callback_that_returns_a_dict_is_refused_naming_it(tmp_path: Path) -> None:
    class Seed(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            return {"should_training_stop": True}

    with pytest.raises(TypeError, match=r"Seed\.on_step_end returned .*should_training_stop.*TrainerControl"):
        make_trainer(tmp_path, Seed).train()


@pytest.mark.feature(106)
def test_stopping_after_some_steps_stops_exactly_there(tmp_path: Path) -> None:
    assert make_trainer(tmp_path, StopAfter(5)).train().global_step == 5


@pytest.mark.feature(101, "P11")
def test_user_callbacks_are_added_behind_the_default_ones_in_their_order(tmp_path: Path) -> None:
    first, second = Recorder(), StopAfter(1)
    callbacks = make_trainer(tmp_path, first, StopAfter(9), second).callback_handler.callbacks
    assert isinstance(callbacks[0], DefaultFlowCallback)
    assert callbacks[-3] is first
    assert callbacks[-1] is second


@pytest.mark.feature(44)
@pytest.mark.parametrize(("silent", "expected"), [(True, PrinterCallback), (False, ProgressCallback)])
def test_a_printer_or_a_progress_bar_is_there_by_default(tmp_path: Path, silent: bool, expected: type) -> None:
    trainer = Trainer(Line(), TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=silent))
    kinds = {type(each) for each in trainer.callback_handler.callbacks}
    assert kinds & {PrinterCallback, ProgressCallback} == {expected}


@pytest.mark.feature(104)
def test_the_printer_prints_logs_until_it_is_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer(tmp_path, max_steps=2)
    trainer.train()
    assert "loss" not in capsys.readouterr().out
    trainer.add_callback(PrinterCallback)
    trainer.train()
    printed = capsys.readouterr().out
    assert "'loss'" in printed
    assert "total_flos" not in printed


@pytest.mark.feature(102)
@pytest.mark.parametrize("is_run_there", [False, True])
@pytest.mark.parametrize("as_class", [False, True])
def test_a_callback_is_added_and_popped_as_class_or_instance(
    tmp_path: Path, as_class: bool, is_run_there: bool
) -> None:
    class Counting(TrainerCallback):
        steps = 0

        def on_step_end(self, *_: Any, **__: Any) -> None:
            type(self).steps += 1

    trainer = make_trainer(tmp_path, max_steps=2)
    if is_run_there:
        trainer.train()
    instance = Counting()
    trainer.add_callback(Counting if as_class else instance)
    trainer.train()
    assert Counting.steps == 2
    popped = trainer.pop_callback(Counting if as_class else instance)
    assert type(popped) is Counting
    assert as_class or popped is instance
    assert trainer.pop_callback(Counting if as_class else instance) is None
    trainer.train()
    assert Counting.steps == 2


def test_a_callback_added_to_or_removed_from_a_trained_trainer_counts_at_once(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=2)
    trainer.train()
    recorder = Recorder()
    trainer.add_callback(recorder)
    trainer.evaluate()
    assert recorder.events[-1] == "on_evaluate"
    trainer.remove_callback(recorder)
    before = len(recorder.events)
    trainer.evaluate()
    assert len(recorder.events) == before


@pytest.mark.feature(102)
@pytest.mark.parametrize("is_run_there", [False, True])
def test_only_the_first_match_is_removed(tmp_path: Path, is_run_there: bool) -> None:
    first, second = StopAfter(1), StopAfter(2)
    trainer = make_trainer(tmp_path, first, second)
    if is_run_there:
        trainer.train()
    assert trainer.pop_callback(StopAfter) is first
    assert trainer.train().global_step == 2
    assert trainer.pop_callback(first) is None
    assert trainer.pop_callback(StopAfter) is second
    assert trainer.train().global_step == 26


@pytest.mark.feature(103)
@pytest.mark.parametrize("is_run_there", [False, True])
def test_default_callbacks_can_be_popped_stay_away_and_be_added_again(tmp_path: Path, is_run_there: bool) -> None:
    trainer = make_trainer(tmp_path, max_steps=2)
    if is_run_there:
        trainer.train()
    popped = trainer.pop_callback(DefaultFlowCallback)
    assert type(popped) is DefaultFlowCallback
    assert trainer.pop_callback(DefaultFlowCallback) is None
    trainer.add_callback(StopAfter(4))
    trainer.train()
    assert trainer.state.global_step >= 4
    assert not any(type(each) is DefaultFlowCallback for each in trainer.callback_handler.callbacks)
    assert not any("loss" in entry for entry in trainer.state.log_history)
    trainer.add_callback(popped)
    assert trainer.train().global_step == 2


def test_a_default_callback_is_removed_as_the_instance_in_the_handler(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=2)
    flow = trainer.callback_handler.callbacks[0]
    assert trainer.pop_callback(flow) is flow
    assert flow not in trainer.callback_handler.callbacks
    trainer.train()
    assert not any(type(each) is DefaultFlowCallback for each in trainer.callback_handler.callbacks)


@pytest.mark.parametrize("is_run_there", [False, True])
@pytest.mark.parametrize("stranger", [TrainerCallback, DefaultFlowCallback, Recorder])
def test_popping_an_instance_that_is_not_there_gives_none_and_removes_nothing(
    tmp_path: Path, stranger: type, is_run_there: bool
) -> None:
    trainer = make_trainer(tmp_path, StopAfter(2))
    if is_run_there:
        trainer.train()
    assert trainer.pop_callback(stranger()) is None
    kinds = [type(each) for each in trainer.with_arguments(seed=1).callback_handler.callbacks]
    assert kinds == [DefaultFlowCallback, StopAfter]


@pytest.mark.parametrize("is_run_there", [False, True])
def test_a_subclass_of_a_default_callback_and_the_default_are_told_apart(tmp_path: Path, is_run_there: bool) -> None:
    class OwnFlow(DefaultFlowCallback):
        pass

    trainer = make_trainer(tmp_path, OwnFlow)
    if is_run_there:
        trainer.train()
    popped = trainer.pop_callback(DefaultFlowCallback)
    assert type(popped) is DefaultFlowCallback
    kinds = [type(each) for each in trainer.with_arguments(seed=1).callback_handler.callbacks]
    assert kinds == [OwnFlow]
    assert [type(each) for each in trainer.callback_handler.callbacks] == kinds


@pytest.mark.feature(98)
def test_something_that_is_no_callback_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="not a callback"):
        make_trainer(tmp_path, print)
    with pytest.raises(InvalidInputError, match="not a callback"):
        make_trainer(tmp_path).add_callback(dict)


class Course:
    """Metrics that follow a given course, evaluation by evaluation."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def __call__(self, prediction: Any) -> dict[str, float]:
        return {"score": self.values.pop(0)}


@pytest.mark.feature(105)
@pytest.mark.parametrize(
    ("course", "patience", "threshold"),
    [
        ((0.1, 0.2, 0.2, 0.3, 0.1, 0.1, 0.1), 1, 0.0),
        ((0.1, 0.2, 0.2, 0.3, 0.1, 0.1, 0.1), 2, 0.0),
        ((0.1, 0.12, 0.14, 0.5, 0.52, 0.53, 0.9), 2, 0.05),
        ((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7), 1, 0.0),
        ((math.nan, 0.2, 0.3, 0.1, 0.5, 0.1, 0.1), 2, 0.0),
    ],
)
def test_early_stopping_stops_where_it_stops_in_the_peer(
    tmp_path: Path, course: tuple[float, ...], patience: int, threshold: float
) -> None:
    stops = []
    for kind in (transformers.Trainer, Trainer):
        trainer = make_trainer(
            tmp_path / kind.__module__,
            EarlyStoppingCallback(patience, threshold),
            kind=kind,
            num_train_epochs=7,
            eval_strategy="epoch",
            save_strategy="epoch",
            metric_for_best_model="score",
            load_best_model_at_end=True,
            compute_metrics=Course(*course),
            per_device_train_batch_size=26,
        )
        stops.append((trainer.train().global_step, trainer.state.best_metric, trainer.state.best_global_step))
    assert stops[1] == stops[0]


@pytest.mark.feature(105)
def test_early_stopping_without_a_metric_or_evaluations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="metric_for_best_model"):
        make_trainer(tmp_path, EarlyStoppingCallback, eval_strategy="epoch").train()
    with pytest.raises(AssertionError, match="IntervalStrategy"):
        make_trainer(tmp_path, EarlyStoppingCallback, metric_for_best_model="loss").train()


@pytest.mark.feature(105)
def test_the_patience_counter_of_early_stopping_survives_resuming(tmp_path: Path) -> None:
    course = (0.5, 0.4, 0.3, 0.2, 0.1)
    changes: dict[str, Any] = {
        "num_train_epochs": 5,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "metric_for_best_model": "score",
        "restore_callback_states_from_checkpoint": True,
    }
    whole = make_trainer(tmp_path, EarlyStoppingCallback(2), compute_metrics=Course(*course), **changes)
    assert whole.train().global_step == 39
    resumed = make_trainer(tmp_path, EarlyStoppingCallback(2), compute_metrics=Course(*course[2:]), **changes)
    assert resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-26")).global_step == 39


@pytest.mark.feature(31)
@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"logging_steps": 5}, [5, 10, 15, 20, 25]),
        ({"logging_steps": 10, "logging_first_step": True}, [1, 10, 20]),
        ({"logging_steps": 1, "logging_first_step": True, "max_steps": 2}, [1, 2]),
        ({"logging_strategy": "epoch"}, [13, 26]),
        ({"logging_strategy": "no"}, []),
        ({"logging_steps": 0.25}, [7, 14, 21]),
    ],
)
def test_the_loss_is_logged_at_the_steps_the_strategy_names(
    tmp_path: Path, changes: dict[str, Any], steps: list[int]
) -> None:
    trainer = make_trainer(tmp_path, **changes)
    trainer.train()
    assert [entry["step"] for entry in trainer.state.log_history if "loss" in entry] == steps


class BreaksAtThird(Line):
    """A model whose third loss is not a number."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Any, labels: Any = None) -> Any:
        outputs = super().forward(x, labels)
        self.calls += 1
        if self.calls == 3:
            outputs["loss"] = outputs["loss"] + float("nan") * outputs["loss"].detach()
        return outputs


def logged_losses(folder: Path, kind: Any, is_filtered: bool) -> list[float]:
    trainer = make_trainer(
        folder,
        kind=kind,
        model_init=BreaksAtThird,
        logging_steps=4,
        max_steps=8,
        max_grad_norm=0.0,
        learning_rate=0.0,
        optim="sgd",
        logging_nan_inf_filter=is_filtered,
    )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.feature(32)
def test_a_loss_that_is_no_number_counts_as_the_mean_so_far_if_filtered(tmp_path: Path) -> None:
    peer, ours = (logged_losses(tmp_path, kind, is_filtered=True) for kind in (transformers.Trainer, Trainer))
    assert all(map(math.isfinite, ours))
    assert ours == pytest.approx(peer, rel=1e-5)


@pytest.mark.feature(32)
def test_a_loss_that_is_no_number_shows_in_its_own_log_line_only_if_not_filtered(tmp_path: Path) -> None:
    first, second = logged_losses(tmp_path, Trainer, is_filtered=False)
    assert math.isnan(first)
    assert second == pytest.approx(logged_losses(tmp_path, Trainer, is_filtered=True)[1])


@pytest.mark.feature(111)
def test_log_adds_epoch_and_step_and_announces_what_it_was_given(tmp_path: Path) -> None:
    recorder = Recorder()
    trainer = make_trainer(tmp_path, recorder)
    trainer.train()
    trainer.log({"my_value": 1.5})
    assert trainer.state.log_history[-1] == {"my_value": 1.5, "epoch": 2.0, "step": 26}
    event, _, _, kwargs = recorder.seen[-1]
    assert event == "on_log"
    assert kwargs["logs"] == {"my_value": 1.5, "epoch": 2.0}


@pytest.mark.feature(109)
def test_the_state_holds_the_fields_of_the_peer_with_the_same_values(tmp_path: Path) -> None:
    states = []
    for kind in (transformers.Trainer, Trainer):
        folder = tmp_path / "same"
        trainer = make_trainer(
            folder,
            kind=kind,
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            gradient_accumulation_steps=3,
            logging_steps=0.25,
            num_train_epochs=1.5,
        )
        trainer.train()
        states.append({**vars(trainer.state), "log_history": len(trainer.state.log_history)})
    peer, ours = states
    assert ours.pop("best_metric") == pytest.approx(peer.pop("best_metric"))
    del ours["stateful_callbacks"], peer["stateful_callbacks"]
    assert ours == peer
    assert (ours["max_steps"], ours["num_train_epochs"], ours["logging_steps"]) == (8, 2, 2)
    assert ours["epoch"] == pytest.approx(1 + 9 / 13)


@pytest.mark.feature(109)
def test_the_state_survives_a_round_trip_through_json(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, EarlyStoppingCallback(3), eval_strategy="epoch", metric_for_best_model="loss")
    trainer.train(trial={"seed": 4})
    trainer.save_state()
    loaded = TrainerState.load_from_json(str(tmp_path / "trainer_state.json"))
    assert vars(loaded) == vars(trainer.state)
    assert loaded.is_hyper_param_search is True
    assert loaded.trial_params == {"seed": 4}
    assert loaded.stateful_callbacks["EarlyStoppingCallback"]["args"]["early_stopping_patience"] == 3
    assert set(loaded.stateful_callbacks["TrainerControl"]["args"]) == set(vars(TrainerControl()))


@pytest.mark.feature(99)
def test_the_handler_calls_every_event_that_transformers_knows(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, Recorder())
    handler = trainer.callback_handler
    recorder = handler.callbacks[-1]
    for event in EVENTS:
        needs = inspect.signature(getattr(handler, event)).parameters
        extra = {name: {} for name in ("metrics", "logs") if name in needs}
        getattr(handler, event)(trainer.args, trainer.state, trainer.control, **extra)
    assert recorder.events[-len(EVENTS) :] == EVENTS


@pytest.mark.feature(20, 103)
@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, []),
        ({"eval_strategy": "no", "eval_steps": 1}, []),
        ({"eval_strategy": "epoch"}, [3, 6, 9]),
        ({"eval_strategy": "steps", "eval_steps": 4}, [4, 8, 9]),
        ({"eval_strategy": "steps", "logging_steps": 5}, [5, 9]),
        ({"eval_strategy": "steps", "eval_steps": 0.3}, [3, 6, 9]),
        ({"eval_strategy": "epoch", "eval_delay": 2}, [6, 9]),
        ({"eval_strategy": "steps", "eval_steps": 2, "eval_delay": 5}, [6, 8, 9]),
        ({"eval_strategy": "steps", "eval_steps": 2, "gradient_accumulation_steps": 3}, [2, 3]),
    ],
)
def test_evaluations_come_at_the_steps_the_strategy_names_and_at_the_last(
    tmp_path: Path, changes: dict[str, Any], steps: list[int]
) -> None:
    trainer = line_trainer(tmp_path, num_train_epochs=3, **changes)
    trainer.train()
    assert list(logged(trainer, "eval_loss")) == steps


@pytest.mark.feature(23)
def test_steps_are_updates_whatever_they_accumulate(tmp_path: Path) -> None:
    trainer = line_trainer(
        tmp_path,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        num_train_epochs=2,
    )
    assert trainer.train().global_step == 6
    assert list(logged(trainer, "loss")) == [1, 2, 3, 4, 5, 6]
    assert list(logged(trainer, "eval_loss")) == [2, 4, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]


@pytest.mark.feature(26)
@pytest.mark.parametrize(
    ("changes", "steps", "epoch"),
    [
        ({}, 9, 3.0),
        ({"num_train_epochs": 1.5}, 5, 5 / 3),
        ({"num_train_epochs": 0.1}, 1, 1 / 3),
        ({"num_train_epochs": 1, "max_steps": 7}, 7, 7 / 3),
        ({"num_train_epochs": 50, "max_steps": 2}, 2, 2 / 3),
    ],
)
def test_training_is_as_long_as_epochs_say_unless_max_steps_does(
    tmp_path: Path, changes: dict[str, Any], steps: int, epoch: float
) -> None:
    trainer = line_trainer(tmp_path, **{"num_train_epochs": args_of().num_train_epochs, **changes})
    assert trainer.train().global_step == trainer.state.max_steps == steps
    assert trainer.state.epoch == pytest.approx(epoch)


@pytest.mark.feature(31, "P12")
def test_the_first_step_is_logged_but_not_evaluated(tmp_path: Path) -> None:
    trainer = line_trainer(
        tmp_path, logging_first_step=True, logging_steps=2, eval_strategy="steps", eval_steps=2, num_train_epochs=1
    )
    trainer.train()
    assert list(logged(trainer, "loss")) == [1, 2]
    assert list(logged(trainer, "eval_loss")) == [2, 3]


@pytest.mark.feature(101, 102)
def test_a_second_callback_of_one_class_is_added_and_warned_of(tmp_path: Path) -> None:
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    transformers.utils.logging.add_handler(handler)
    try:
        trainer = line_trainer(tmp_path, callbacks=[TrainerCallback, TrainerCallback])
        count = sum(type(each) is TrainerCallback for each in trainer.callback_handler.callbacks)
        assert count == 2
        assert any("already" in message for message in heard)
        heard.clear()
        without_flow = line_trainer(tmp_path)
        without_flow.remove_callback(hpsearch.DefaultFlowCallback)
        assert without_flow.state.global_step == 0
        assert any("DefaultFlowCallback" in message for message in heard)
    finally:
        transformers.utils.logging.remove_handler(handler)


@pytest.mark.feature(104)
def test_the_bar_moves_by_the_updates_made_and_evaluations_have_their_own(tmp_path: Path) -> None:
    moves: list[tuple[int, int]] = []

    def note(state: Any, **_: Any) -> None:
        bar = progress.training_bar
        moves.append((state.global_step, bar.n))

    progress = ProgressCallback()
    total: list[Any] = []
    trainer = line_trainer(
        tmp_path,
        disable_tqdm=True,
        eval_strategy="epoch",
        gradient_accumulation_steps=2,
        callbacks=[
            progress,
            Look("on_step_end", note),
            Look("on_prediction_step", lambda **_: total.append(progress.prediction_bar.total)),
        ],
    )
    trainer.train()
    assert moves == [(1, 1), (2, 2)]
    assert total == [2, 2]
    assert (progress.training_bar, progress.prediction_bar) == (None, None)


@pytest.mark.feature(109, 110)
def test_a_fresh_state_and_control_have_the_documented_fields() -> None:
    state = TrainerState()
    documented = {
        "epoch",
        "global_step",
        "max_steps",
        "num_train_epochs",
        "total_flos",
        "log_history",
        "best_metric",
        "best_model_checkpoint",
        "is_local_process_zero",
        "is_world_process_zero",
        "is_hyper_param_search",
        "trial_name",
        "trial_params",
    }
    assert documented <= set(vars(state))
    assert (state.global_step, state.log_history, state.is_hyper_param_search) == (0, [], False)
    assert hpsearch.TrainerState is TrainerState
    assert hpsearch.TrainerControl is TrainerControl
    assert vars(TrainerControl()) == {
        "should_training_stop": False,
        "should_epoch_stop": False,
        "should_save": False,
        "should_evaluate": False,
        "should_log": False,
    }


@pytest.mark.feature("P9")
def test_the_best_checkpoint_in_the_state_is_text(tmp_path: Path) -> None:
    trainer = line_trainer(tmp_path, eval_strategy="epoch", save_strategy="epoch", metric_for_best_model="loss")
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-3")
