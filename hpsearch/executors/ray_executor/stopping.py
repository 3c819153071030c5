"""The option `stop` of Ray Tune: numbers in the reports of a trial at which it ends, with a result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...errors import StudyError
from .events import TuneResult
from .schedulers import check_key, check_reported


def as_stop(stop: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the number at which a trial ends, by its key in the reports; none for None.

    Raises:
        StudyError: a key that no report has, or a limit that is no number.
    """
    limits = dict(stop or {})
    for key, limit in limits.items():
        is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool) and math.isfinite(limit)
        if not is_number:
            raise StudyError(f"stop[{key!r}] must be a number, but got {limit!r}.")
        check_key("stop has", "key", key)
    return limits


def reason_to_stop(stop: Mapping[str, float], result: TuneResult) -> str | None:
    """Return why a trial ends with this report, as Tune has it: a number has come to its limit; None if it continues.

    Raises:
        StudyError: the report lacks one of the numbers.
    """
    for key, limit in stop.items():
        check_reported("stop has", "key", key, result)
        if result[key] >= limit:
            return f"stop={{{key!r}: {limit:g}}}"
    return None
