"""Promotions by hand in studies of hpsearch 0.8.0, which marked the folder of the run; now they are requests."""

from __future__ import annotations

from pathlib import Path

_MARK = "promoted"


def is_marked(study_folder: Path, run: str) -> bool:
    """Return whether the trial of a run was promoted by hand."""
    return (study_folder / run / _MARK).exists()
