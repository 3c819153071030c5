"""Trials that would share a model are refused, in place of one going on with what another has left in it."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hpsearch import StudyError
from hpsearch.training.shared_parts import EarlierParts, refers_to_model
from tests.support.searching import RATE, states
from tests.support.small_trainer import TwoLayers, small_trainer

SHARED = TwoLayers()
OF_A_FILE = {name: each.clone() for name, each in SHARED.state_dict().items()}


def with_a_new_head(body: torch.nn.Module) -> TwoLayers:
    model = TwoLayers()
    model.hidden = body  # type: ignore[assignment]
    return model


def assigned() -> TwoLayers:
    model = TwoLayers()
    model.load_state_dict(OF_A_FILE, assign=True)
    return model


def of_tensors(tensors: dict[str, torch.Tensor]) -> TwoLayers:
    model = TwoLayers()
    for name, each in model.named_parameters():
        each.data = tensors[name]
    return model


FROZEN = torch.nn.Linear(2, 8).requires_grad_(False)


@pytest.mark.parametrize(
    ("make", "shared"),
    [
        (lambda: SHARED, "model"),
        (lambda: copy.copy(SHARED), "weights hidden.weight"),
        (lambda: with_a_new_head(SHARED.hidden), "weights hidden.weight"),
        (assigned, "weights hidden.weight"),
        (lambda: of_tensors(OF_A_FILE), "weights hidden.weight"),
        (TwoLayers, None),
        (lambda: copy.deepcopy(SHARED), None),
        (lambda: with_a_new_head(FROZEN), None),
    ],
)
def test_what_two_models_share_is_named_unless_it_is_not_trained(make: Callable[[], Any], shared: str | None) -> None:
    parts = EarlierParts()
    first = make()
    parts.check("model_init", first)
    if shared is None:
        parts.check("model_init", make())
        return
    del first
    with pytest.raises(StudyError, match=f"model_init returned the same {shared} as for an earlier trial"):
        parts.check("model_init", make())


def test_it_holds_no_memory_and_what_was_freed_is_no_earlier_part() -> None:
    parts, model = EarlierParts(), TwoLayers()
    parts.check("model_init", model)
    is_there, storage = weakref.ref(model), weakref.ref(model.hidden.weight.untyped_storage())
    del model
    gc.collect()
    assert is_there() is None
    assert storage() is None
    for _ in range(50):  # some of these get the places of those that were freed
        parts.check("model_init", TwoLayers())
    assert len(parts._objects) + len(parts._storages) <= 2 * len(list(TwoLayers().parameters())) + 1 + 9
    pickle.loads(pickle.dumps(parts)).check("model_init", SHARED)


class Makes:
    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, trial: Any = None) -> Any:
        return self.model or TwoLayers()

    def method(self) -> Any:
        return self.model


def enclosing(model: Any) -> Callable[[], Any]:
    return lambda: model


@pytest.mark.parametrize(
    ("function", "refers"),
    [
        (enclosing(SHARED), True),
        (enclosing([SHARED]), True),
        (enclosing({"a": SHARED}), True),
        (lambda: SHARED, True),
        (lambda trial=None, model=SHARED: model, True),
        (functools.partial(enclosing, SHARED), True),
        (Makes(SHARED), True),
        (Makes(SHARED).method, True),
        (enclosing(3), False),
        (TwoLayers, False),
        (Makes(None), False),
        (Makes(None).method, False),
        (lambda: TwoLayers(), False),
    ],
)
def test_a_function_that_may_return_a_model_that_exists_is_known_from_what_it_refers_to(
    function: Any, refers: bool
) -> None:
    assert refers_to_model(function) is refers


def search(folder: Path, model_init: Any, **options: Any) -> Any:
    given = {"compute_objective": "loss", "pruner": "none", "progress": False, "storage": "journal", **options}
    return small_trainer(folder, model_init=model_init).hyperparameter_search(RATE, n_trials=3, **given)


def test_one_model_for_all_trials_is_refused_before_it_is_trained(tmp_path: Path) -> None:
    model = TwoLayers()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(StudyError, match=r"same model .* or return copy\.deepcopy"):
        search(tmp_path, lambda trial=None: model)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    best = search(tmp_path, lambda trial=None: copy.deepcopy(model))
    assert states(best).count("complete") == 3


def test_a_model_that_comes_again_later_is_refused_then(tmp_path: Path) -> None:
    made: list[TwoLayers] = []

    def model_init(trial: Any) -> TwoLayers:
        made.append(TwoLayers() if len(made) < 2 else made[-1])
        return made[-1]

    with pytest.raises(StudyError, match="model_init returned the same model as for an earlier trial"):
        search(tmp_path, model_init)
    made.clear()
    with pytest.raises(StudyError, match="model_init returned the same model as for an earlier trial"):
        search(tmp_path / "without", model_init, preflight=False)
    assert len(made) == 3


def test_outside_of_a_search_a_trainer_may_train_one_model_again(tmp_path: Path) -> None:
    model = TwoLayers()
    trainer = small_trainer(tmp_path, model_init=lambda: model)
    with pytest.raises(StudyError):
        trainer.hyperparameter_search(RATE, n_trials=2, progress=False)
    for _ in range(2):
        trainer.train()
        trainer.with_arguments(learning_rate=1e-3).train()


@dataclasses.dataclass(slots=True)
class Maker:
    """Makes models, and has no `__dict__`."""

    width: int

    def make(self) -> TwoLayers:
        return TwoLayers(self.width)


def test_a_method_of_an_object_with_slots_makes_models_like_any_other_function() -> None:
    assert not refers_to_model(Maker(2).make)
