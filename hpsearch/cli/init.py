"""`hpsearch init`: a small study of one's own."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from ..errors import StudyError
from ..system.files import write_text


def init(folder: Annotated[Path, typer.Argument(help="A new folder, or one without a study.py.")]) -> None:
    """Write a small study that runs as it is, in a minute, to replace its parts by your own.

    \b
    hpsearch init my-study
    hpsearch run my-study/study.py
    """
    file = folder / "study.py"
    if file.exists():
        raise StudyError(f"{str(file)!r} already exists; name another folder.")
    if folder.exists() and not folder.is_dir():
        raise StudyError(f"{str(folder)!r} is a file; name a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(file, (files(__package__) / "first_study.py").read_text(encoding="utf-8"))
    print(f"{file} is a complete study: hpsearch run {file}")
