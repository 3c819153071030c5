"""How a value is written where there is little room: in tables, in sentences and beside curves."""

from __future__ import annotations

from .store.checked_json import printable


def format_value(value: object) -> str:
    """Return a parameter's or objective's value in at most about eight characters, which a terminal can show.

    >>> format_value(0.00012345), format_value(0.97512), format_value(16), format_value("adamw")
    ('0.0001234', '0.9751', '16', 'adamw')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    return printable(str(value))
