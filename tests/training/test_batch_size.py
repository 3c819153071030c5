"""`auto_find_batch_size`: the largest batch that fits trains as if asked for; attempts that failed leave no trace."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from hpsearch import Categorical, InvalidInputError, StudyError, Trainer
from hpsearch.training.batch_size import is_out_of_memory
from tests.support.models import Line, bert_classifier, classification_data, weights_of
from tests.support.small_trainer import small_trainer
from tests.support.small_training import (
    _quick_collections,  # noqa: F401 - every attempt collects garbage
    losses,
    make_trainer,
)

SEARCHED = {"auto_find_batch_size": True}


def out_of_memory() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


class Small(Line):
    """A model whose memory holds `most` samples; from its forward number `after` on."""

    def __init__(self, most: int, after: int = 0) -> None:
        super().__init__()
        self.most, self.after = most, after
        self.sizes: list[int] = []
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor, labels: Any = None) -> Any:
        if self.training:
            self.sizes.append(len(x))
            self.seen += 1
            if len(x) > self.most and len(self.sizes) > self.after:
                raise out_of_memory()
        return super().forward(x, labels)


def small(most: int, after: int = 0) -> Small:
    torch.manual_seed(0)
    return Small(most, after)


def timeless(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in entry.items() if not name.endswith(("runtime", "per_second"))}
        for entry in history
    ]


def assert_same_course(found: Any, asked: Any) -> None:
    """Assert that both trainings were the same, to the last bit."""
    assert timeless(found.state.log_history) == timeless(asked.state.log_history)
    assert found.state.global_step == asked.state.global_step
    expected = weights_of(asked.model)
    for name, weights in weights_of(found.model).items():
        assert torch.equal(weights, expected[name]), name


@pytest.mark.feature(58)
@pytest.mark.parametrize(("most", "expected"), [(8, 8), (7, 7), (6, 6), (3, 3), (1, 1)])
def test_training_ends_with_the_first_size_that_fits(tmp_path: Path, most: int, expected: int) -> None:
    trainer = make_trainer(tmp_path, model=small(most), **SEARCHED)
    trainer.train()
    assert trainer.state.train_batch_size == expected
    assert max(trainer.model.sizes[-3:]) == expected
    assert trainer.state.global_step == -(-24 // expected)


def test_sizes_go_down_by_a_tenth_and_no_size_is_tried_twice(tmp_path: Path) -> None:
    tried: list[int] = []

    class Look(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            tried.append(args.per_device_train_batch_size)

    trainer = make_trainer(tmp_path, model=small(12), per_device_train_batch_size=20, callbacks=[Look()], **SEARCHED)
    trainer.train()
    assert tried == [20, 18, 16, 14, 12]


def test_the_arguments_of_the_trainer_stay_as_they_are(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=small(3), **SEARCHED)
    before = trainer.args.to_dict()
    args = trainer.args
    trainer.train()
    assert trainer.args is args
    assert trainer.args.to_dict() == before
    assert trainer.args.per_device_train_batch_size == 8


@pytest.mark.feature(58)
@pytest.mark.parametrize("after", [0, 4])
@pytest.mark.parametrize("given", [True, False])
def test_the_training_equals_one_that_was_started_with_that_size(tmp_path: Path, given: bool, after: int) -> None:
    """The failure comes at once, or after some updates that must be forgotten; the weights are those of the start."""

    def trainer(**changes: Any) -> Any:
        common: dict[str, Any] = {"num_train_epochs": 3, "eval_strategy": "epoch", **changes}
        if given:
            return make_trainer(tmp_path, model=small(5, after), **common)
        return make_trainer(tmp_path, model_init=lambda: Small(5, after), **common)

    found, asked = trainer(**SEARCHED), trainer(per_device_train_batch_size=5)
    found.train()
    asked.train()
    assert found.state.train_batch_size == 5
    assert_same_course(found, asked)
    assert float(found.model.seen) == float(asked.model.seen) == 15.0


def test_dropout_and_shuffling_are_those_of_a_training_that_was_started_with_that_size(tmp_path: Path) -> None:
    limit = [True]

    class Limited(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            if limit[0] and len(inputs["labels"]) > 4 and self.state.global_step == 1:
                raise out_of_memory()
            return super().compute_loss(model, inputs, return_outputs, **kwargs)

    def trainer(**changes: Any) -> Any:
        torch.manual_seed(0)
        model, data = bert_classifier(hidden=8, dropout=0.3), classification_data(20)
        return make_trainer(tmp_path, Limited, model=model, train_dataset=data, eval_dataset=None, **changes)

    found, asked = trainer(per_device_train_batch_size=5, **SEARCHED), trainer(per_device_train_batch_size=4)
    found.train()
    limit[0] = False
    asked.train()
    assert found.state.train_batch_size == 4
    assert_same_course(found, asked)


def test_the_history_holds_nothing_of_the_attempts_that_failed(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=small(6, after=2), **SEARCHED)
    trainer.train()
    assert trainer.state.train_batch_size == 6
    assert trainer.model.sizes[:3] == [8, 8, 8]
    assert [entry["step"] for entry in trainer.state.log_history if "loss" in entry] == [1, 2, 3, 4]
    assert len(losses(trainer)) == 4


def test_gradients_of_the_attempt_that_failed_are_gone(tmp_path: Path) -> None:
    """The second micro-batch of the first update fails: the first one's gradients are there when it does."""
    common: dict[str, Any] = {"gradient_accumulation_steps": 2, "optim": "sgd", "max_grad_norm": 0.0}
    found = make_trainer(tmp_path, model=small(6, after=1), **SEARCHED, **common)
    asked = make_trainer(tmp_path, model=small(6), per_device_train_batch_size=7, **common)
    found.train()
    asked.args.per_device_train_batch_size = 6
    asked.train()
    assert_same_course(found, asked)


def folders(path: Path) -> set[str]:
    return {each.name for each in path.glob("checkpoint-*")}


def test_checkpoints_of_failed_attempts_are_deleted_and_older_ones_stay(tmp_path: Path) -> None:
    earlier = make_trainer(tmp_path, model=small(8), save_strategy="steps", save_steps=20, num_train_epochs=20)
    earlier.train()
    older = folders(tmp_path)
    assert older == {"checkpoint-20", "checkpoint-40", "checkpoint-60"}
    kept = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in older}
    seen: list[set[str]] = []

    class Look(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            seen.append(folders(tmp_path))

        def on_save(self, *args: Any, **kwargs: Any) -> None:
            seen.append(folders(tmp_path))

    trainer = make_trainer(
        tmp_path,
        model=small(7, after=2),
        save_strategy="steps",
        save_steps=2,
        logging_strategy="no",
        callbacks=[Look()],
        **SEARCHED,
    )
    trainer.train()
    assert seen[:3] == [older, older | {"checkpoint-2"}, older]
    assert folders(tmp_path) == older | {"checkpoint-2", "checkpoint-4"}
    assert {name: (tmp_path / name / "model.safetensors").read_bytes() for name in older} == kept


def stopped(folder: Path, at: int, **changes: Any) -> Any:
    class Stops(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_save = control.should_training_stop = state.global_step == at

    trainer = make_trainer(folder, callbacks=[Stops()], num_train_epochs=2, **changes)
    trainer.train()
    return trainer


def test_a_resumed_training_starts_with_the_size_of_its_checkpoint(tmp_path: Path) -> None:
    first = stopped(tmp_path / "parts", 5, model=small(6), **SEARCHED)
    assert first.state.train_batch_size == 6
    resumed = make_trainer(tmp_path / "parts", model=small(6), num_train_epochs=2, **SEARCHED)
    resumed.train(resume_from_checkpoint=True)
    assert set(resumed.model.sizes) == {6}
    assert resumed.state.train_batch_size == 6
    whole = make_trainer(tmp_path / "whole", model=small(6), num_train_epochs=2, per_device_train_batch_size=6)
    whole.train()
    assert_same_course(resumed, whole)


def test_a_resumed_training_may_go_down_further_and_starts_again_at_its_checkpoint(tmp_path: Path) -> None:
    stopped(tmp_path, 3, model=small(6), **SEARCHED)
    resumed = make_trainer(tmp_path, model=small(4), num_train_epochs=2, **SEARCHED)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.train_batch_size == 4
    assert [entry["step"] for entry in resumed.state.log_history if "loss" in entry][:3] == [1, 2, 3]
    assert folders(tmp_path) >= {"checkpoint-3"}


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        RuntimeError("shapes do not fit"),
        RuntimeError("the counter reached zero"),
        RuntimeError(5),
        KeyError("x"),
        KeyboardInterrupt(),
    ],
    ids=repr,
)
def test_other_errors_are_raised_as_they_are_with_the_place_they_came_from(tmp_path: Path, error: Any) -> None:
    class Fails(Line):
        def forward(self, x: Any, labels: Any = None) -> Any:
            raise error

    trainer = make_trainer(tmp_path, model=Fails(), **SEARCHED)
    with pytest.raises(type(error)) as caught:
        trainer.train()
    assert caught.value is error
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.line) == (__file__, "raise error")


@pytest.mark.feature(58)
def test_a_single_sample_that_does_not_fit_is_an_error_that_says_so(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=small(0), per_device_train_batch_size=3, **SEARCHED)
    with pytest.raises(RuntimeError, match=r"(?i)batch.size") as caught:
        trainer.train()
    assert trainer.args.per_device_train_batch_size == 3
    assert "not even a batch of one sample fits" in str(caught.value)


def test_without_the_argument_running_out_of_memory_is_the_end(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=small(4))
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        trainer.train()
    assert trainer.model.sizes == [8]


def test_every_attempt_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_trainer(tmp_path, model=small(6), **SEARCHED).train()
    told = [each.getMessage() for each in caplog.records if "Out of memory" in each.getMessage()]
    assert len(told) == 2
    assert ["8" in told[0], "7" in told[1]] == [True, True]


@pytest.mark.parametrize("part", ["optimizer", "schedule"])
def test_a_ready_optimizer_or_schedule_is_refused_because_it_cannot_start_again(tmp_path: Path, part: str) -> None:
    model = small(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    pair = (optimizer, None) if part == "optimizer" else (None, schedule)
    with pytest.raises(InvalidInputError, match=r"auto_find_batch_size.*optimizer_cls_and_kwargs"):
        make_trainer(tmp_path, model=model, optimizers=pair, **SEARCHED)


def test_an_optimizer_class_is_made_anew_for_every_attempt(tmp_path: Path) -> None:
    kind = (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
    found = make_trainer(tmp_path, model=small(6, after=2), optimizer_cls_and_kwargs=kind, **SEARCHED)
    asked = make_trainer(tmp_path, model=small(6), optimizer_cls_and_kwargs=kind, per_device_train_batch_size=6)
    found.train()
    asked.train()
    assert_same_course(found, asked)


def test_a_search_refuses_it_before_the_first_trial(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path, **SEARCHED)
    with pytest.raises(StudyError, match=r"auto_find_batch_size=True.*per_device_train_batch_size"):
        trainer.hyperparameter_search({"learning_rate": Categorical([1e-2])}, n_trials=1, progress=False)
    assert trainer.model_init.trials == []


def test_memory_of_a_failed_attempt_is_free_before_the_next_begins(tmp_path: Path) -> None:
    import weakref

    made: list[Callable[[], Any]] = []
    alive: list[int] = []

    def model_init() -> Any:
        alive.append(sum(each() is not None for each in made))
        model = Small(6, after=1)
        made.append(weakref.ref(model))
        return model

    make_trainer(tmp_path, model_init=model_init, **SEARCHED).train()
    assert alive == [0, 0, 0]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError(),
        torch.OutOfMemoryError("Allocation would exceed the memory"),
        # As an H100 says it in torch 2.11 when no memory is left for a context.
        RuntimeError(
            "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/..."
        ),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_an_error_of_memory_is_known_by_its_kind_or_by_what_it_says(error: Exception) -> None:
    assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("another one"))
