"""Attributes of a trainer that are more than a value: shown from its latest run, or gone."""

from __future__ import annotations

from typing import Any


class OfLatestRun:
    """An attribute of the latest run, shown (and settable) on its recipe."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, recipe: Any, owner: type | None = None) -> Any:
        return self if recipe is None else getattr(recipe.run, self._name)

    def __set__(self, recipe: Any, value: object) -> None:
        setattr(recipe.run, self._name, value)


class Removed:
    """A method that transformers' Trainer used to have; asking for it names its successor."""

    def __init__(self, successor: str) -> None:
        self._successor = successor

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, recipe: object, owner: type | None = None) -> Any:
        if recipe is None:
            return self
        raise AttributeError(
            f"{self._name} was removed from transformers 5, and hpsearch does not have it; use {self._successor}."
        )
