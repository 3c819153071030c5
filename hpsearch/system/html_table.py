"""Tables in HTML for notebooks; all texts are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """Return a table with a row of headings.

    >>> html_table(["trial", "loss"], [["3", "<0.1"]])
    '<table><thead><tr><th>trial</th><th>loss</th></tr></thead><tbody><tr><td>3</td><td>&lt;0.1</td></tr></tbody></table>'
    """
    titles = "".join(f"<th>{escape(each)}</th>" for each in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(each)}</td>' for each in row)}</tr>" for row in rows)
    return f"<table>{_caption(caption)}<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def html_pairs(pairs: Mapping[str, str], caption: str = "") -> str:
    """Return a table with a row for each name and its value.

    >>> html_pairs({"loss": "0.1"})
    '<table><tbody><tr><th style="text-align: left">loss</th><td style="text-align: left">0.1</td></tr></tbody></table>'
    """
    left = 'style="text-align: left"'
    rows = [f"<tr><th {left}>{escape(name)}</th><td {left}>{escape(pairs[name])}</td></tr>" for name in pairs]
    return f"<table>{_caption(caption)}<tbody>{''.join(rows)}</tbody></table>"


def _caption(text: str) -> str:
    return f'<caption style="text-align: left">{escape(text)}</caption>' if text else ""
