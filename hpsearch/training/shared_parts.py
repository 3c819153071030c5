"""Parts that trials would share, such as one model for all: a trial would start with what another has left in them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..errors import StudyError


class EarlierParts:
    """The parts that the trials of this process were made of.

    It holds weak references only, so nothing lives longer for it, and what takes the place of something that was freed
    is not mistaken for that. It is pickled empty: another process has copies, which its own trials may share.
    """

    def __init__(self) -> None:
        self._objects: dict[int, weakref.ref[object]] = {}
        self._storages: set[StorageWeakRef] = set()

    def __reduce__(self) -> tuple[type[EarlierParts], tuple[()]]:
        return EarlierParts, ()

    def check(self, code: str, model: torch.nn.Module, others: Mapping[str, object] | None = None) -> None:
        """Check that nothing is of an earlier trial, and keep in mind that it is of this one.

        Of a model: the model itself, a base model with adapters of PEFT in it, and trained weights; also weights that
        have their values in the same memory. What is not trained may be shared.

        Args:
            code: the user's function that made it, in messages.
            model: None: there is none.
            others: further objects, by name.

        Raises:
            StudyError: something is.
        """
        parts = [*(others or {}).items(), *_parts(model)]
        storages = [(f"weights {name}", each) for name, each in _storages(model)]
        shared = [name for name, each in parts if id(each) in self._objects and self._objects[id(each)]() is each]
        shared += [name for name, each in storages if each in self._storages and not each.expired()]
        if shared:
            raise StudyError(
                f"{code} returned the same {shared[0]} as for an earlier trial, so one trial would start from the "
                f"state that another has left. Create it inside {code}{_advice(shared[0])}."
            )
        self._objects = {key: each for key, each in self._objects.items() if each() is not None}
        self._objects.update({id(each): weakref.ref(each) for _, each in parts})
        self._storages = {each for each in self._storages if not each.expired()}
        self._storages.update(each for _, each in storages)


def refers_to_model(function: Callable[..., object]) -> bool:
    """Return whether a function refers to a model that exists already, which it may return each time it is called.

    >>> model = torch.nn.Linear(1, 1)
    >>> refers_to_model(lambda: model), refers_to_model(lambda: torch.nn.Linear(1, 1))
    (True, False)
    """
    values = list(_values_of(function))
    for each in list(values):
        values += each.values() if isinstance(each, dict) else each if isinstance(each, (list, tuple)) else ()
    return any(isinstance(each, torch.nn.Module) for each in values)


def _values_of(function: Any) -> Iterator[object]:
    """Yield what a function encloses, reads of its module, has as defaults, or keeps in the object that it is of."""
    while isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        function = function.func
    yield from getattr(getattr(function, "__self__", None), "__dict__", {}).values()
    if not inspect.isroutine(function):
        yield from getattr(function, "__dict__", {}).values()
        function = type(function).__call__
    function = inspect.unwrap(getattr(function, "__func__", function))
    yield from (
        *(getattr(function, "__defaults__", None) or ()),
        *(getattr(function, "__kwdefaults__", None) or {}).values(),
    )
    with contextlib.suppress(TypeError, ValueError):  # a cell that is empty; no function of Python
        found = inspect.getclosurevars(function)
        yield from (*found.nonlocals.values(), *found.globals.values())


def _parts(model: torch.nn.Module | None) -> Iterator[tuple[str, object]]:
    if model is None:
        return
    yield "model", model
    # PEFT notes adapters in the model that it puts them into, and keeps that within a new one.
    yield from (("base model", each) for each in model.modules() if each is not model and "peft_config" in vars(each))
    yield from ((f"weights {name}", each) for name, each in model.named_parameters() if each.requires_grad)


def _storages(model: torch.nn.Module | None) -> Iterator[tuple[str, StorageWeakRef]]:
    for name, each in [] if model is None else model.named_parameters():
        if each.requires_grad:
            with contextlib.suppress(NotImplementedError, RuntimeError):  # a kind of tensor without a memory of its own
                storage = each.untyped_storage()
                if storage.nbytes():
                    yield name, StorageWeakRef(storage)


def _advice(part: str) -> str:
    return ", or return copy.deepcopy(...) of an object that is never trained itself" if part == "model" else ""
