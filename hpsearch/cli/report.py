"""`hpsearch report`: a study as one page that can be sent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..reports.page import write_report
from ..stored_studies import open_study
from .which_study import study_folder


def report(
    study: Annotated[Path | None, typer.Argument(help="Folder of the study.", show_default="the newest")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file.", show_default="report.html in the study")
    ] = None,
) -> None:
    """Write one HTML file that shows the study, and needs neither network nor program.

    \b
    hpsearch report runs/digits
    hpsearch report runs/digits -o digits.html
    """
    folder = study_folder(study)
    file = folder / "report.html" if output is None else output
    write_report(open_study(folder), file)
    print(file)
