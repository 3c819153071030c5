"""How values and counts are written: in tables, in sentences and beside curves."""

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


def format_mean(value: float, deviation: float, runs: int) -> str:
    """Return the mean of several training runs with their standard deviation.

    >>> format_mean(0.80912, 0.0253, 3)
    '0.8091 ± 0.025 (3 runs)'
    """
    return f"{format_value(value)} ± {deviation:.2g} ({counted(runs, 'run')})"


def format_chance(chance: float) -> str:
    """Return a chance in percent; it is estimated, so it is never 0% nor 100%.

    >>> format_chance(0.634), format_chance(1.0), format_chance(0.99), format_chance(0.0)
    ('63%', '>99%', '99%', '<1%')
    """
    return ">99%" if chance > 0.99 else "<1%" if chance < 0.01 else f"{chance:.0%}"


def metric_label(name: str, unit: str) -> str:
    """Return the name of a metric for readers: a plain function, which counts steps, writes no ``eval_``.

    >>> metric_label("eval_loss", "epoch"), metric_label("eval_loss", "step")
    ('eval_loss', 'loss')
    """
    return name.removeprefix("eval_") if unit == "step" else name


def all_trials(n_trials: int, done: int) -> tuple[str, str]:
    """Return that a study has all of its trials, or more than the call asks for, and which `n_trials` adds some.

    >>> all_trials(5, done=12)
    ('has 12 trials, more than the 5 asked for', 'n_trials= above 12')
    """
    if done > n_trials:
        return f"has {done} trials, more than the {n_trials} asked for", f"n_trials= above {done}"
    return f"has all of its {n_trials} trials", "a larger n_trials="


def counted(number: float, word: str) -> str:
    """Return a number with the word for what it counts.

    >>> counted(1, "trial"), counted(2.5, "epoch")
    ('1 trial', '2.5 epochs')
    """
    shown = f"{number:.4g}" if isinstance(number, float) else str(number)
    return f"{shown} {word}{'' if shown == '1' else 's'}"
