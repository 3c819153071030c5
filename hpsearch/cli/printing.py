"""What a terminal may be sent of names and messages that others wrote."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return a text whose characters that a terminal would obey are written as escapes; lines stay.

    >>> printable("runs/\x1b[2J\u202etrial")
    'runs/\\x1b[2J\\u202etrial'
    """
    return "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text)
