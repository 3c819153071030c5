"""The ready-made search spaces."""

from __future__ import annotations

import importlib
import pkgutil

import spaces
from hpsearch import SearchSpace

NAMES = [each.name for each in pkgutil.iter_modules(spaces.__path__)]


MODULES = {name: importlib.import_module(f"spaces.{name}") for name in NAMES}


SPACES: dict[str, SearchSpace] = {name: module.SPACE for name, module in MODULES.items()}
