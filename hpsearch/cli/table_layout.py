"""Columns of texts, laid out in a width: headings on several lines, shortened, and columns omitted from the right."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

_BETWEEN = "  "
# What a heading may lack at its beginning, longest first.
_PREFIXES = ("per_device_train_", "per_device_", "num_train_", "num_")
# Whether headings are shortened, and on how many lines they may be; the first that fits is used.
_ATTEMPTS = ((False, 1), (False, 2), (True, 2), (True, 3))


@dataclass(frozen=True)
class Column:
    """A column: its whole name, a text for each row, and whether it is text, which is aligned to the left."""

    name: str
    cells: tuple[str, ...]
    is_text: bool = False


@dataclass(frozen=True)
class Layout:
    """A table that fits a width.

    Attributes:
        headings: the lines above the rows.
        rows: one line each.
        short: the names of the columns whose headings are shortened, by heading.
        omitted: the names of the columns that do not fit, those at the right.
    """

    headings: list[str]
    rows: list[str]
    short: dict[str, str]
    omitted: list[str]


def layout(columns: Sequence[Column], width: int) -> Layout:
    """Lay out columns in a width; if all are too wide, omit columns from the right. The first one always stays.

    >>> trials = Column("trial", ("0", "12"))
    >>> sizes = Column("per_device_train_batch_size", ("16", "8"))
    >>> layout([trials, sizes], 80).headings
    ['trial  per_device_train_batch_size']
    >>> layout([trials, sizes], 12)
    Layout(headings=['       batch', 'trial   size'], rows=['    0     16', '   12      8'], \
short={'batch_size': 'per_device_train_batch_size'}, omitted=[])
    >>> layout([trials, sizes], 11).omitted
    ['per_device_train_batch_size']
    """
    short = short_names([each.name for each in columns])
    for is_short, lines in _ATTEMPTS:
        headings = [heading_lines(short[each.name] if is_short else each.name, each.cells, lines) for each in columns]
        widths = [max(map(cell_len, [*heading, *each.cells])) for heading, each in zip(headings, columns, strict=True)]
        if _total(widths) <= width:
            break
    count = len(columns)
    while count > 1 and _total(widths[:count]) > width:
        count -= 1
    shown, headings, widths = columns[:count], headings[:count], widths[:count]
    height = max(map(len, headings), default=0)
    padded = [[*[""] * (height - len(each)), *each] for each in headings]
    return Layout(
        [_line([each[line] for each in padded], widths, shown) for line in range(height)],
        [_line(cells, widths, shown) for cells in zip(*(each.cells for each in shown), strict=True)],
        {short[each.name]: each.name for each in shown if is_short and short[each.name] != each.name},
        [each.name for each in columns[count:]],
    )


def heading_lines(name: str, cells: Sequence[str], lines: int) -> list[str]:
    """Return a name on at most `lines` lines, broken at its words, as narrow as this allows.

    It need not be narrower than the cells below it.

    >>> heading_lines("learning_rate", ["2.15e-4"], 2), heading_lines("model.hidden_size", ["96"], 3)
    (['learning', 'rate'], ['model.', 'hidden', 'size'])
    >>> heading_lines("warmup_steps", ["0.25"], 1)
    ['warmup_steps']
    """
    words = re.findall(r"[^_.]*[_.]+|[^_.]+", name) or [name]
    least = max([cell_len(each) for each in cells] + [len(_without_break(each)) for each in words])
    for width in range(least, len(name)):
        packed = _packed(words, width)
        if len(packed) <= lines:
            return packed
    return [name]


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return a short heading for each name: without a common prefix, where no other name could be meant.

    >>> short_names(["per_device_train_batch_size", "model.width", "seconds"])
    {'per_device_train_batch_size': 'batch_size', 'model.width': 'width', 'seconds': 'seconds'}
    >>> short_names(["encoder.width", "decoder.width", "num_layers", "layers"])
    {'encoder.width': 'encoder.width', 'decoder.width': 'decoder.width', 'num_layers': 'num_layers', 'layers': 'layers'}
    """
    possible = {name: _endings(name) for name in names}
    found = {}
    for name, endings in possible.items():
        others: Collection[str] = {each for other in names if other != name for each in possible[other]}
        found[name] = min((each for each in endings if each not in others), key=len, default=name)
    return found


def _endings(name: str) -> list[str]:
    parts = name.split(".")
    dotted = [".".join(parts[place:]) for place in range(len(parts))]
    without = [each.removeprefix(prefix) for each in dotted for prefix in _PREFIXES]
    return [each for each in [*dotted, *without] if each]


def _packed(words: Sequence[str], width: int) -> list[str]:
    lines = [""]
    for word in words:
        if lines[-1] and len(_without_break(lines[-1] + word)) > width:
            lines.append("")
        lines[-1] += word
    return [_without_break(each) for each in lines]


def _without_break(text: str) -> str:
    """Return a part of a name without the underscore at its end, which the end of the line replaces."""
    return text.rstrip("_") or text


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_BETWEEN) * (len(widths) - 1)


def _line(texts: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> str:
    padded = []
    for text, width, column in zip(texts, widths, columns, strict=True):
        space = " " * (width - cell_len(text))
        padded.append(text + space if column.is_text else space + text)
    return _BETWEEN.join(padded).rstrip()
