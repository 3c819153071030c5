"""Parameters whose best value is at a bound of their range."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from ...space.parameters import Float, Int, Params
from ...space.search_space import SearchSpace

# So near to the end of its range, as a fraction of it, a value is at its bound.
_AT_THE_END = 0.01
# A range of fewer whole numbers is at a bound too often.
_FEWEST_VALUES = 5
# One more factor of a log range is this, unless the range itself spans less.
_FACTOR = 10
# Parameters that are below 1, such as `hidden_dropout_prob`, `adam_beta2`, `optim.momentum` and `warmup_ratio`.
_BELOW_ONE = re.compile(r"dropout|momentum|smoothing|beta_?[12]$|prob$|ratio$|fraction$|top_p$")


def at_bounds(space: SearchSpace, params: Params, but: Collection[str] = ()) -> list[str]:
    """Return a sentence for each parameter whose best value is at a bound of its range, with a wider bound.

    Nothing is said of the names in `but`, of the seed, of ranges of fewer than five whole numbers, and of a bound that
    is natural: 0 and below it, 1 for whole numbers, and what would be 1 or more for a probability (`_BELOW_ONE`).

    >>> at_bounds(SearchSpace({"learning_rate": Float(1e-6, 1e-4, log=True)}), {"learning_rate": 1e-4})
    ['The best learning_rate, 0.0001, is at its upper bound: widen to 1e-3.']
    """
    sentences = []
    for name, parameter in space.all_parameters().items():
        value = params.get(name)
        if name in {"seed", *but} or not isinstance(parameter, (Float, Int)) or not parameter.contains(value):
            continue
        bound = _bound(parameter, float(params[name]))
        wider = None if bound is None else _wider(name, parameter, bound)
        if wider is not None:
            sentences.append(f"The best {name}, {value:g}, is at its {bound} bound: widen to {_shown(wider)}.")
    return sentences


def _bound(parameter: Float | Int, value: float) -> str | None:
    """Return at which bound of its range a value is; None: at neither."""
    low, high = (float(each) for each in parameter.edges())
    is_short = isinstance(parameter, Int) and (high - low) / parameter.step + 1 < _FEWEST_VALUES
    if is_short or low == high:
        return None
    if parameter.log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    margin = _AT_THE_END * (high - low)
    return "upper" if high - value <= margin else "lower" if value - low <= margin else None


def _wider(name: str, parameter: Float | Int, bound: str) -> float | None:
    """Return the next bound, one factor further in a log range, else half of the width; None: there is none."""
    low, high = (float(each) for each in parameter.edges())
    is_whole, half = isinstance(parameter, Int), (high - low) / 2
    factor = min(_FACTOR, high / low) if parameter.log else 0.0
    if bound == "upper":
        further = high * factor if parameter.log else high + half
        if not math.isfinite(further):
            return None
        wider = _rounded(further, beyond=high)
        return None if wider >= 1 and high <= 1 and _BELOW_ONE.search(name) else wider
    if low == 0 or (is_whole and low == 1):
        return None
    wider = low / factor if parameter.log else low - half
    if low > 0 and wider <= 0:  # a linear range that begins near 0
        wider = low / _FACTOR
    return max(1.0, _rounded(wider, beyond=low)) if is_whole and low > 0 else _rounded(wider, beyond=low)


def _rounded(value: float, beyond: float) -> float:
    """Return a value with one significant digit, further away from the bound if it would not lie beyond it.

    >>> [_rounded(*each) for each in ((0.95, 0.095), (0.15, 0.1), (11.5, 8.0), (-0.15, -0.1), (0.0025, 0.0026))]
    [0.9, 0.2, 10.0, -0.2, 0.002]
    """
    is_up = value > beyond
    nearest = float(f"{value:.0e}")
    if nearest > beyond if is_up else nearest < beyond:
        return nearest
    unit = 10.0 ** math.floor(math.log10(abs(value)))
    steps = value / unit
    return float(f"{(math.ceil(steps) if is_up else math.floor(steps)) * unit:.0e}")


def _shown(value: float) -> str:
    """Return a number of one digit as one writes it in code.

    >>> [_shown(each) for each in (1e-3, 0.02, 8.0, 500.0, 2e6)]
    ['1e-3', '0.02', '8', '500', '2e6']
    """
    if value == 0 or 0.01 <= abs(value) < 1e5:
        return f"{value:g}"
    digit, _, exponent = f"{value:.0e}".partition("e")
    return f"{digit}e{int(exponent)}"
