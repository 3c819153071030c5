"""Texts of the command line as values."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ..errors import StudyError

_NUMBER = r"\d+(?:\.\d+)?"
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float | None:
    """Return a length of time in seconds; None for ``none``.

    >>> seconds("90"), seconds("30m"), seconds("2h"), seconds("1h30m"), seconds("1.5d")
    (90.0, 1800.0, 7200.0, 5400.0, 129600.0)

    Raises:
        StudyError: it is none.
    """
    if text.lower() == "none":
        return None
    if re.fullmatch(_NUMBER, text):
        return float(text)
    if not re.fullmatch(rf"({_NUMBER}(min|[smhd]))+", text):
        raise StudyError(f"--time {text!r} is not a duration; write it as 90s, 30m, 2h, 1h30m or 1d, or none.")
    return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(rf"({_NUMBER})(min|[smhd])", text))


def settings(texts: Sequence[str]) -> dict[str, object]:
    """Return what ``--set name=value`` sets; a value is JSON, or else a text.

    >>> settings(["learning_rate=1e-4", "bf16=true", "optim=adafactor"])
    {'learning_rate': 0.0001, 'bf16': True, 'optim': 'adafactor'}

    Raises:
        StudyError: there is no ``=``.
    """
    found: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise StudyError(f"--set {text!r} must be name=value, such as --set num_train_epochs=3.")
        found[name] = value_of(value)
    return found


def value_of(text: str) -> object:
    """Return a text as JSON, or else as it is.

    >>> value_of("1e-4"), value_of("true"), value_of("adafactor")
    (0.0001, True, 'adafactor')
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def numbers(text: str) -> list[int]:
    """Return a list of numbers.

    >>> numbers("0,1,3")
    [0, 1, 3]

    Raises:
        StudyError: it is none.
    """
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise StudyError(f"--devices {text!r} must be the numbers of GPUs, such as 0,1.") from None


def trials_sharing_a_device(text: str | None) -> int | str | None:
    """Return how many trials share a GPU.

    >>> trials_sharing_a_device("2"), trials_sharing_a_device("auto"), trials_sharing_a_device(None)
    (2, 'auto', None)

    Raises:
        StudyError: it is neither a number nor "auto".
    """
    if text is None or text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise StudyError(f"--trials-per-device {text!r} must be a number of trials, or auto.") from None
