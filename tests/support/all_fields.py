"""What a record holds, to compare two of them."""

from __future__ import annotations

import dataclasses

from hpsearch import TrialRecord


def all_fields(record: TrialRecord) -> str:
    """Return all fields of a record as text, in which NaN equals NaN."""
    return repr({each.name: getattr(record, each.name) for each in dataclasses.fields(record)})
