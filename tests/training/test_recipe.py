"""A trainer is a recipe: its constructor only stores and checks, and every run or changed copy starts from it."""

from __future__ import annotations

import gc
import inspect
import json
import random
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import safetensors.torch
import torch
import transformers
from tokenizers import Tokenizer, models
from transformers import (
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    PrinterCallback,
    TrainerCallback,
    default_data_collator,
)

from hpsearch import Float, Trainer, TrainingArguments
from hpsearch.errors import ArgumentError, InvalidInputError, UnknownArgumentError
from tests.support.models import Line, accuracy, bert_classifier, classification_data, line_data, weights_of
from tests.support.small_trainer import CountsModels, small_trainer
from tests.support.small_training import Look, make_trainer


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    values: dict[str, Any] = {
        "num_train_epochs": 1,
        "save_strategy": "no",
        "logging_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        **changes,
    }
    return TrainingArguments(str(folder), **values)


def line_trainer(folder: Path, **changes: Any) -> Trainer:
    """A trainer of `Line`; names that the constructor takes go there, the others into the arguments."""
    names = ("model", "model_init", "eval_dataset", "train_dataset", "callbacks", "data_collator", "compute_metrics")
    parts = {name: changes.pop(name) for name in names if name in changes}
    if "model" not in parts:
        parts.setdefault("model_init", Line)
    trainer = Trainer(args=arguments(folder, **changes), **{"train_dataset": line_data(), **parts})
    trainer.remove_callback(PrinterCallback)
    return trainer


@pytest.mark.feature(64)
def test_exactly_one_of_model_and_model_init_is_required() -> None:
    with pytest.raises(InvalidInputError, match="neither"):
        Trainer(train_dataset=line_data())
    with pytest.raises(InvalidInputError, match="both"):
        Trainer(model=Line(), model_init=Line)


@pytest.mark.feature(2)
@pytest.mark.parametrize("place", [0, 1])
def test_an_optimizer_or_a_schedule_with_model_init_is_refused(place: int) -> None:
    optimizer = torch.optim.SGD(Line().parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    pair = (optimizer, None) if place == 0 else (None, schedule)
    with pytest.raises(InvalidInputError, match="model_init"):
        Trainer(model_init=Line, optimizers=pair)


def test_an_optimizer_and_an_optimizer_class_together_are_refused() -> None:
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidInputError, match=r"incompatible.*Pass one of them"):
        Trainer(model, optimizers=(optimizer, None), optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.1}))


@pytest.mark.feature(20)
def test_evaluating_during_training_without_an_eval_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="eval_dataset"):
        line_trainer(tmp_path, eval_strategy="epoch")


def test_saving_the_best_without_naming_the_metric_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^`args\.metric_for_best_model` must be provided"):
        line_trainer(tmp_path, save_strategy="best", eval_strategy="epoch", eval_dataset=line_data())


def test_batch_wise_metrics_need_a_function_that_takes_compute_result(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="compute_result"):
        line_trainer(tmp_path, batch_eval_metrics=True, compute_metrics=accuracy)


@pytest.mark.feature(64)
def test_without_arguments_the_output_folder_is_tmp_trainer() -> None:
    trainer = Trainer(Line())
    assert trainer.args.output_dir == "tmp_trainer"
    assert isinstance(trainer.args, TrainingArguments)


def test_plain_transformers_arguments_are_taken_over_with_every_value(tmp_path: Path) -> None:
    plain = transformers.TrainingArguments(
        str(tmp_path), learning_rate=0.3, warmup_steps=0.1, eval_strategy="steps", logging_steps=7, use_cpu=True
    )
    trainer = Trainer(Line(), plain, eval_dataset=line_data())
    assert type(trainer.args) is TrainingArguments
    ours = trainer.args.to_dict()
    assert (ours.pop("ray_scope"), ours.pop("tensorboard_logging_dir")) == ("last", None)
    assert ours == plain.to_dict()


def test_a_class_of_arguments_whose_extra_fields_would_be_lost_is_refused(tmp_path: Path) -> None:
    @dataclass
    class WithAnExtraField(transformers.TrainingArguments):
        extra: int = 0

    with pytest.raises(ArgumentError, match="WithAnExtraField"):
        Trainer(Line(), WithAnExtraField(str(tmp_path), use_cpu=True))


@pytest.mark.feature(65)
def test_the_default_collator_pads_for_a_tokenizer_and_stacks_otherwise() -> None:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"[PAD]": 0, "a": 1}, unk_token="[PAD]")), pad_token="[PAD]"
    )
    collator = Trainer(Line(), processing_class=tokenizer).data_collator
    assert isinstance(collator, DataCollatorWithPadding)
    assert collator.tokenizer is tokenizer
    assert Trainer(Line()).data_collator is default_data_collator
    own = list
    assert Trainer(Line(), data_collator=own, processing_class=tokenizer).data_collator is own


def test_a_collator_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="data_collator"):
        Trainer(Line(), data_collator="stack")


def test_the_constructor_draws_no_random_number_makes_no_folder_and_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    calls = []
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    trainer = Trainer(
        model_init=lambda: calls.append("model_init") or Line(), train_dataset=line_data(), callbacks=[PrinterCallback]
    )
    trainer.with_arguments(learning_rate=0.1)
    assert trainer.is_in_train is False
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert random.getstate() == before[2]
    assert calls == []
    assert list(tmp_path.iterdir()) == []


def test_with_arguments_gives_a_new_trainer_and_leaves_the_first_as_it_was(tmp_path: Path) -> None:
    trainer = line_trainer(tmp_path, learning_rate=0.1)
    trainer.train()
    model, weights, callbacks = trainer.model, weights_of(trainer.model), list(trainer.callbacks)
    other = trainer.with_arguments(learning_rate=0.5, **{"optim.eps": 1e-3})
    other.add_callback(TrainerCallback())
    other.remove_callback(transformers.DefaultFlowCallback)
    other.train()
    assert other.args.learning_rate == 0.5
    assert trainer.args.learning_rate == 0.1
    assert trainer.model is model
    assert all(torch.equal(weights[name], each) for name, each in weights_of(trainer.model).items())
    assert trainer.callbacks == callbacks
    assert trainer.removed_callbacks == [PrinterCallback]
    assert trainer.optimizer_parameters == {}
    assert trainer.optimizer.param_groups[0]["eps"] == 1e-8
    assert other.optimizer.param_groups[0]["eps"] == 1e-3


def test_with_arguments_copies_callbacks_that_keep_state_and_shares_the_others(tmp_path: Path) -> None:
    class Plain(TrainerCallback):
        pass

    plain, stopping = Plain(), EarlyStoppingCallback(early_stopping_patience=3)
    trainer = line_trainer(tmp_path, callbacks=[plain, stopping])
    other = trainer.with_arguments(seed=1)
    assert other.callbacks[0] is plain
    assert other.callbacks[1] is not stopping
    assert other.callbacks[1].early_stopping_patience == 3
    other.callbacks[1].early_stopping_patience_counter = 2
    assert stopping.early_stopping_patience_counter == 0


def test_a_second_call_of_train_starts_with_a_fresh_patience_counter(tmp_path: Path) -> None:
    stopping = EarlyStoppingCallback(early_stopping_patience=1)
    trainer = line_trainer(
        tmp_path,
        num_train_epochs=4,
        learning_rate=0.0,
        eval_strategy="epoch",
        metric_for_best_model="loss",
        eval_dataset=line_data(),
        callbacks=[stopping],
    )
    first = trainer.train().global_step
    assert first == 6
    assert trainer.train().global_step == first


def test_with_arguments_refuses_unknown_names_and_unknown_groups(tmp_path: Path) -> None:
    trainer = line_trainer(tmp_path)
    with pytest.raises(UnknownArgumentError, match="learning_rate"):
        trainer.with_arguments(lerning_rate=0.1)
    with pytest.raises(UnknownArgumentError, match="optm"):
        trainer.with_arguments(**{"optm.eps": 0.1})


@pytest.mark.feature(14)
def test_train_with_a_dict_uses_its_values_and_leaves_the_arguments_alone(tmp_path: Path) -> None:
    seen = []
    trainer = line_trainer(tmp_path, learning_rate=0.1, model_init=lambda trial: seen.append(trial) or Line())
    trial = {"learning_rate": 0.5, "seed": 3, "num_train_epochs": 2, "optim.eps": 1e-4, "model.width": 8}
    before = trainer.args.to_dict()
    output = trainer.train(trial=trial)
    assert trainer.args.to_dict() == before
    assert seen == [trial]
    assert output.global_step == 6
    assert trainer.optimizer.param_groups[0]["initial_lr"] == 0.5
    assert trainer.optimizer.param_groups[0]["eps"] == 1e-4
    assert trainer.state.is_hyper_param_search is True
    assert trainer.state.trial_params == trial
    same = line_trainer(tmp_path, learning_rate=0.5, seed=3, num_train_epochs=2, model_init=Line)
    same = same.with_arguments(**{"optim.eps": 1e-4})
    same.train()
    assert all(torch.equal(each, weights_of(same.model)[name]) for name, each in weights_of(trainer.model).items())


@pytest.mark.feature(15)
def test_values_of_one_trial_do_not_leak_into_the_next_training(tmp_path: Path) -> None:
    trainer = line_trainer(tmp_path, learning_rate=0.1)
    trainer.train()
    expected = weights_of(trainer.model)
    trainer.train(trial={"learning_rate": 0.9, "optim.eps": 0.5, "seed": 1})
    assert not torch.equal(weights_of(trainer.model)["linear.weight"], expected["linear.weight"])
    trainer.train()
    assert trainer.state.is_hyper_param_search is False
    assert all(torch.equal(each, expected[name]) for name, each in weights_of(trainer.model).items())


@pytest.mark.feature(2, 75)
def test_each_training_with_model_init_starts_from_a_new_model_and_repeats_exactly(tmp_path: Path) -> None:
    trainer = line_trainer(tmp_path, learning_rate=0.1)
    trainer.train()
    first_model, first = trainer.model, weights_of(trainer.model)
    torch.manual_seed(999)
    trainer.train()
    assert trainer.model is not first_model
    assert all(torch.equal(each, first[name]) for name, each in weights_of(trainer.model).items())


@pytest.mark.feature(36)
def test_the_seed_of_the_arguments_decides_the_weights_that_model_init_draws(tmp_path: Path) -> None:
    drawn = {}
    for seed in (1, 2):
        torch.manual_seed(0)
        drawn[seed] = line_trainer(tmp_path, seed=seed).model.linear.weight.detach().clone()
        torch.manual_seed(seed)
        assert torch.equal(drawn[seed], Line().linear.weight)
    assert not torch.equal(drawn[1], drawn[2])


def test_training_goes_on_with_a_given_model(tmp_path: Path) -> None:
    model = Line()
    trainer = line_trainer(tmp_path, model=model, learning_rate=0.1)
    trainer.train()
    after_first = weights_of(model)
    trainer.train()
    assert trainer.model is model
    assert not torch.equal(model.linear.weight, after_first["linear.weight"])


@pytest.mark.feature(3)
def test_model_init_may_take_nothing_or_the_trial_but_not_two_arguments(tmp_path: Path) -> None:
    seen: list[Any] = []
    trial = {"learning_rate": 0.2}
    line_trainer(tmp_path, model_init=lambda: seen.append("none") or Line()).train(trial=trial)
    line_trainer(tmp_path, model_init=lambda trial: seen.append(trial) or Line()).train(trial=trial)
    line_trainer(tmp_path, model_init=lambda trial: seen.append(trial) or Line()).train()
    line_trainer(tmp_path, model_init=lambda trial=None: seen.append(trial) or Line()).train(trial=trial)
    line_trainer(tmp_path, model_init=lambda size=2: seen.append(size) or Line()).train(trial=trial)
    assert seen == ["none", trial, None, trial, 2]
    with pytest.raises(InvalidInputError, match="it has 2: trial, other"):
        line_trainer(tmp_path, model_init=lambda trial, other: Line())


@pytest.mark.feature(3)
def test_model_init_that_returns_none_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="should not return None"):
        line_trainer(tmp_path, model_init=lambda: None).train()


def test_training_without_training_data_is_an_error_before_a_model_is_built(tmp_path: Path) -> None:
    calls: list[int] = []
    trainer = line_trainer(tmp_path, train_dataset=None, model_init=lambda: calls.append(1) or Line())
    with pytest.raises(InvalidInputError, match="train_dataset"):
        trainer.train()
    assert calls == []


def test_a_subclass_that_brings_its_own_loader_needs_no_train_dataset(tmp_path: Path) -> None:
    class OwnLoader(Trainer):
        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(line_data(16), batch_size=4)

    trainer = OwnLoader(model_init=Line, args=arguments(tmp_path))
    trainer.remove_callback(PrinterCallback)
    assert trainer.train().global_step == 4


@pytest.mark.feature(72)
def test_is_in_train_is_true_during_training_and_its_evaluations_only(tmp_path: Path) -> None:
    seen: dict[str, list[bool]] = {"step": [], "evaluate": []}

    class Look(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            seen["step"].append(trainer.is_in_train)

        def on_evaluate(self, *_: Any, **__: Any) -> None:
            seen["evaluate"].append(trainer.is_in_train)

    trainer = line_trainer(tmp_path, eval_strategy="epoch", eval_dataset=line_data(), callbacks=[Look])
    assert trainer.is_in_train is False
    trainer.train()
    assert trainer.is_in_train is False
    trainer.evaluate()
    assert seen == {"step": [True] * 3, "evaluate": [True, False]}


def test_is_in_train_is_false_again_after_an_error(tmp_path: Path) -> None:
    class Break(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("broken")

    trainer = line_trainer(tmp_path, callbacks=[Break])
    with pytest.raises(RuntimeError, match="broken"):
        trainer.train()
    assert trainer.is_in_train is False


def test_is_in_train_of_the_trainer_is_true_while_it_trains_a_trial(tmp_path: Path) -> None:
    seen: list[bool] = []

    class Look(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            seen.append(trainer.is_in_train)

    trainer = line_trainer(tmp_path, callbacks=[Look])
    trainer.train(trial={"seed": 2})
    assert seen == [True] * 3


@pytest.mark.feature(72)
def test_model_is_the_core_model_and_equals_model_wrapped_when_nothing_wraps_it(tmp_path: Path) -> None:
    model = Line()
    trainer = line_trainer(tmp_path, model=model)
    assert trainer.model is model
    assert trainer.model_wrapped is model
    trainer.train()
    assert trainer.model is model
    assert trainer.model_wrapped is model


@pytest.mark.feature(72)
@pytest.mark.parametrize(
    ("placement", "is_parallel", "is_placed"),
    [(None, False, True), ({"a": 0, "b": 1}, True, False), ({"a": "cpu", "b": 0}, False, False)],
)
def test_a_model_spread_over_devices_is_recognised_and_left_where_it_is(
    tmp_path: Path, placement: Any, is_parallel: bool, is_placed: bool
) -> None:
    model = Line()
    if placement is not None:
        model.hf_device_map = placement
    trainer = line_trainer(tmp_path, model=model)
    assert trainer.is_model_parallel is is_parallel
    assert trainer.place_model_on_device is is_placed


@pytest.fixture
def no_garbage_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collector")
@pytest.mark.parametrize("cut_short", [False, True])
def test_release_frees_model_and_optimizer_at_once(tmp_path: Path, cut_short: bool) -> None:
    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            control.should_training_stop = cut_short
            return control

    trainer = Trainer(
        model_init=lambda: bert_classifier(dropout=0.0),
        args=arguments(tmp_path, max_steps=3, eval_strategy="epoch"),
        train_dataset=classification_data(24),
        eval_dataset=classification_data(8),
        compute_metrics=accuracy,
        callbacks=[Stop],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    held = [weakref.ref(each) for each in (trainer.model, next(trainer.model.parameters()), trainer.optimizer)]
    kept_by_the_caller = trainer.run, trainer.callback_handler, trainer.accelerator
    trainer.release()
    assert [each() for each in held] == [None, None, None]
    assert kept_by_the_caller[0].model is None


@pytest.mark.usefixtures("no_garbage_collector")
def test_the_model_of_the_last_training_is_free_when_the_next_one_is_built(tmp_path: Path) -> None:
    models: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def model_init() -> Line:
        alive.append(sum(each() is not None for each in models))
        model = Line()
        models.append(weakref.ref(model))
        return model

    trainer = line_trainer(tmp_path, model_init=model_init)
    trainer.train()
    trainer.train()
    trainer.train(trial={"seed": 1})
    trainer.train(trial={"seed": 2})
    assert alive == [0, 0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("bf16", [False, True])
def test_each_training_of_a_process_is_compiled_as_its_own_arguments_say(tmp_path: Path, bf16: bool) -> None:
    compiled: list[str | None] = []
    for backend in (None, "eager", "aot_eager", None, "eager"):
        trainer = line_trainer(tmp_path, torch_compile_backend=backend, bf16=bf16)
        trainer.train()
        is_compiled = isinstance(trainer.run.model_wrapped, torch._dynamo.OptimizedModule)
        assert is_compiled == (backend is not None)
        plugin = trainer.accelerator.state.dynamo_plugin
        compiled.append(plugin.backend.value.lower() if is_compiled else None)
        trainer.release()
    assert compiled == [None, "eager", "aot_eager", None, "eager"]


def test_release_keeps_a_given_model_usable(tmp_path: Path) -> None:
    model = Line()
    trainer = line_trainer(tmp_path, model=model)
    trainer.train()
    weights = weights_of(model)
    trainer.release()
    trainer.release()
    assert trainer.model is model
    assert all(torch.equal(each, weights[name]) for name, each in weights_of(model).items())


def test_attributes_that_are_set_reach_the_latest_run(tmp_path: Path) -> None:
    trainer = line_trainer(tmp_path)
    trainer.train()
    assert trainer.run.optimizer is trainer.optimizer
    trainer.label_smoother = "other"
    assert trainer.run.label_smoother == "other"


@pytest.mark.feature(63)
def test_the_constructor_takes_what_the_peers_takes_in_the_same_order() -> None:
    ours, theirs = (
        [
            name
            for name, each in inspect.signature(kind.__init__).parameters.items()
            if each.kind is each.POSITIONAL_OR_KEYWORD
        ]
        for kind in (Trainer, transformers.Trainer)
    )
    assert ours == theirs


@pytest.mark.feature(120, "P2", "P13")
@pytest.mark.parametrize("kind", [None, "model"])
def test_an_argument_the_constructor_does_not_have_is_an_error(tmp_path: Path, kind: Any) -> None:
    with pytest.raises(TypeError, match="callback"):
        Trainer(Line(), callback=[TrainerCallback()])  # type: ignore[call-arg]
    for name in ("distributed", "device"):
        with pytest.raises((TypeError, AttributeError), match=name):
            TrainingArguments(str(tmp_path), **{name: kind})


class Wrapper(torch.nn.Module):
    """What a distributed wrapper looks like from outside."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **inputs: Any) -> Any:
        return self.module(**inputs)


@pytest.mark.feature(72)
def test_the_wrapped_model_is_what_trains_and_the_core_model_is_what_is_saved(tmp_path: Path) -> None:
    trained_with: list[Any] = []

    class Own(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
            trained_with.append(model)
            return super().compute_loss(model, inputs, return_outputs)

    def wrap(model: Any, **_: Any) -> None:
        trainer.model_wrapped = Wrapper(model)

    trainer = make_trainer(tmp_path, Own, callbacks=[Look("on_train_begin", wrap)])
    trainer.train()
    assert type(trained_with[0]) is Wrapper
    assert trained_with[0].module is trainer.model
    assert type(trainer.model) is Line
    trainer.save_model()
    assert set(safetensors.torch.load_file(tmp_path / "model.safetensors")) == {"linear.weight", "linear.bias"}


@pytest.mark.feature(7, 16)
def test_the_state_of_a_trial_tells_its_name_and_parameters_and_is_saved_with_every_checkpoint(tmp_path: Path) -> None:
    states: list[tuple[Any, ...]] = []

    def note(state: Any, **_: Any) -> None:
        states.append((state.is_hyper_param_search, state.trial_name, state.trial_params))

    trainer = small_trainer(tmp_path, Look("on_step_end", note), save_strategy="epoch")
    best = trainer.hyperparameter_search(
        {"learning_rate": Float(1e-3, 1e-1)},
        n_trials=2,
        hp_name=lambda trial: f"rate-{trial.number}",
        keep_checkpoints=None,
        progress=False,
    )
    first, second = best.run_summary.records
    assert states[0] == (True, "rate-0", first.params)
    assert states[-1] == (True, "rate-1", second.params)
    for record in (first, second):
        assert record.checkpoint.parent == tmp_path / "study" / record.name
        saved = json.loads((record.checkpoint / "trainer_state.json").read_text())
        assert saved["is_hyper_param_search"] is True
        assert (saved["trial_name"], saved["trial_params"]) == (record.name, record.params)
    trainer.train()
    assert states[-1] == (False, None, None)


@pytest.mark.feature(14)
def test_a_trial_of_optuna_is_trained_with_its_values(tmp_path: Path) -> None:
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask()
    rate = trial.suggest_float("learning_rate", 1e-3, 1e-1)
    trainer = small_trainer(tmp_path, model_init=(init := CountsModels()))
    trainer.train(trial=trial)
    assert trainer.optimizer.param_groups[0]["initial_lr"] == rate
    assert trainer.state.trial_params == {"learning_rate": rate}
    assert init.trials == [trial]
