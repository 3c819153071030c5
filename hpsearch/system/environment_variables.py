"""Temporary changes of environment variables."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def environment(settings: Mapping[str, str], *others: str) -> Iterator[None]:
    """Set variables of the environment; put back these and `others` afterwards."""
    before = {name: os.environ.get(name) for name in (*settings, *others)}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
