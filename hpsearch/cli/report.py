"""`hpsearch report`: a study as one page that can be sent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import StudyError
from ..reports.page import write_report
from ..search.store.study_folder import REPORT_FILE
from ..searching.opened_study import open_study
from .which_study import say_problems, study_folder


def report(
    study: Annotated[Path | None, typer.Argument(help="Folder of the study.", show_default="the newest")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file.", show_default="report.html in the study")
    ] = None,
    title: Annotated[str | None, typer.Option(help="The heading.", show_default="the name of the study")] = None,
    note: Annotated[str | None, typer.Option(help="A text below the heading.", show_default=False)] = None,
) -> None:
    """Write one HTML file that shows the study, and needs neither network nor program.

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
    write_report(summary, file, title=title, note=note)
    print(file)
    say_problems(summary)
