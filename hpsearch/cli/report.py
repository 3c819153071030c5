"""`hpsearch report`: a study as one page that can be sent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import StudyError
from ..reports.earlier_heading import Heading, earlier_heading
from ..reports.page import write_report
from ..search.store.study_folder import REPORT_FILE
from ..searching.opened_study import open_study
from .which_study import say_problems, study_folder

_NAMES = Heading._fields


def report(
    study: Annotated[Path | None, typer.Argument(help="Folder of the study.", show_default="the newest")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file.", show_default="report.html in the study")
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="The heading.", show_default="as in the file, or the name of the study")
    ] = None,
    note: Annotated[
        str | None, typer.Option(help="A text below the heading; '' removes it.", show_default="as in the file")
    ] = None,
) -> None:
    """Write one HTML file that shows the study, and needs neither network nor program.

    A report that is made again keeps its title and its note.

    \b
    hpsearch report runs/digits
    hpsearch report runs/digits -o digits.html
    hpsearch report runs/digits --title "Digits, second try" --note "With the new tokenizer."
    """
    folder = study_folder(study)
    file = folder / REPORT_FILE if output is None else output
    if file.is_dir():
        raise StudyError(f"--output {str(file)!r} is a folder; name a file in it, such as {str(file / REPORT_FILE)!r}.")
    summary = open_study(folder)
    earlier = earlier_heading(file, folder)
    kept = [name for name, given, each in zip(_NAMES, (title, note), earlier, strict=True) if given is None and each]
    title, note = (each if given is None else given for given, each in zip((title, note), earlier, strict=True))
    write_report(summary, file, title=title, note=note)
    print(file)
    if kept:
        options = " ".join(f"--{name} ''" for name in kept)
        them = "them" if len(kept) > 1 else "it"
        print(f"kept the {' and the '.join(kept)} of the earlier report; {options} removes {them}", file=sys.stderr)
    say_problems(summary)
