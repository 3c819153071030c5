"""Values of one column as texts: numbers with the same decimals, so that a reader compares them by their digits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ..search.store.checked_json import printable

_LONGEST_TEXT = 24
_MOST_DECIMALS = 6
# Columns whose typical value is outside of these bounds are written with exponents.
_SMALLEST, _LARGEST = 5e-3, 1e6


def is_number(value: object) -> bool:
    """Return whether a value is a number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def aligned(values: Sequence[object], digits: int = 3) -> list[str]:
    """Return the values of a column as texts; None is empty.

    Args:
        values: of one parameter, or one figure.
        digits: the number of significant digits of the largest number.

    >>> aligned([0.1209, 0.0, 0.2698])
    ['0.121', '0    ', '0.270']
    >>> aligned([0.0002151, None, 0.00117]), aligned([1e-4, 3e-5]), aligned([16, 128])
    (['2.15e-4', '', '1.17e-3'], ['1e-4', '3e-5'], ['16', '128'])
    >>> aligned([0.1, 0.0003])
    ['1e-1', '3e-4']
    >>> aligned(["cosine", True, 0.5])
    ['cosine', 'True', '0.5']
    """
    given = [each for each in values if each is not None]
    if any(isinstance(each, float) for each in given) and all(is_number(each) for each in given):
        return _floats([None if each is None else float(each) for each in values], digits)  # type: ignore[arg-type]
    return ["" if each is None else _text(each) for each in values]


def _text(value: object) -> str:
    text = " ".join(printable(f"{value:.4g}" if isinstance(value, float) else str(value)).split())
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


def _floats(values: Sequence[float | None], digits: int) -> list[str]:
    sizes = [abs(each) for each in values if each and math.isfinite(each)]
    if sizes and (statistics.median(sizes) < _SMALLEST or max(sizes) >= _LARGEST):
        return _with_exponents(values, digits)
    decimals = _decimals(sizes, digits)
    if decimals > min(digits + 1, _MOST_DECIMALS):
        return _with_exponents(values, digits)
    while decimals and all(f"{each:.{decimals}f}".endswith("0") for each in sizes):
        decimals -= 1
    return ["" if each is None else _fixed(each, decimals) for each in values]


def _decimals(sizes: Sequence[float], digits: int) -> int:
    """Return how many decimals give the largest number all digits, and the smallest one digit less."""
    if not sizes:
        return 0
    wanted = [digits - 1 - _exponent(max(sizes)), digits - 2 - _exponent(min(sizes))]
    return max(0, *wanted)


def _exponent(size: float) -> int:
    return math.floor(math.log10(size))


def _fixed(value: float, decimals: int) -> str:
    if value == 0:
        return "0" + " " * (decimals + 1 if decimals else 0)
    if not math.isfinite(value):
        return str(value)
    shown = f"{value:.{decimals}f}"
    return shown if float(shown) else f"{value:.0e}".replace("e-0", "e-")  # it is small, not nothing


def _with_exponents(values: Sequence[float | None], digits: int) -> list[str]:
    parts = [f"{each:.{digits - 1}e}".partition("e") for each in values if each and math.isfinite(each)]
    decimals = max(len(mantissa.rstrip("0").partition(".")[2]) for mantissa, _, _ in parts)
    texts = []
    for each in values:
        if each is None or each == 0 or not math.isfinite(each):
            texts.append("" if each is None else f"{each:g}")
        else:
            mantissa, _, exponent = f"{each:.{decimals}e}".partition("e")
            texts.append(f"{mantissa}e{int(exponent)}")
    return texts
