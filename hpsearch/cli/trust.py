"""Which parts of a command in a study's folder are used: the folder may come from someone else."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

from ..errors import StudyError
from ..system.redaction import HIDDEN, holds_secret
from ..trial.acting_arguments import acts_outside, names_a_place
from .study_file import Command

File = Annotated[Path | None, typer.Option("--file", help="Run this study file, in the current folder.")]
Trust = Annotated[bool, typer.Option("--trust", help="Run and open everything that the study's folder names.")]
_AT_ONCE = ("n_jobs", "devices")
_SET_BY_THE_FOLDER = ("output_dir", "study_name")


@dataclass(frozen=True)
class Given:
    """The options of the user on the command line, besides the folder of a study.

    Attributes:
        command: the command that is given, for messages: ``hpsearch resume``.
        file: the study file.
        trust: whether all that the folder names may be run and opened.
        arguments: training arguments.
        search: arguments of the search.
    """

    command: str
    file: Path | None = None
    trust: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)
    search: Mapping[str, object] = field(default_factory=dict)


def admitted(recorded: Command, study: Path, given: Given) -> Command:
    """Return the command to run: what the study's folder records, with what the user gives in its place.

    Raises:
        StudyError: a part of the recorded command needs trust, or is secret and was not recorded.
    """
    again = f"{given.command} {shlex.quote(str(study))}"
    left_out = [name for name in recorded.left_out if name not in {*given.arguments, *given.search}]
    if left_out:
        raise StudyError(
            f"The study in {str(study)!r} was begun with {', '.join(left_out)}, which is secret and not on disk: "
            f"pass it again, with `hpsearch run {shlex.quote(recorded.file)}`."
        )
    command = recorded
    if given.file is not None:
        command = replace(command, file=os.path.realpath(given.file), folder=str(Path.cwd()))
    if not given.trust:
        _check_program(command, study, again, is_given=given.file is not None)
        _check_arguments(command, given, again)
        command = _with_safe_storage(command, study, given, again)
    replaced = _AT_ONCE if any(name in given.search for name in _AT_ONCE) else ()
    kept = {name: each for name, each in command.search.items() if name not in replaced}
    return replace(
        command, arguments={**command.arguments, **given.arguments}, search={**kept, **given.search}, left_out=[]
    )


def speaks() -> bool:
    """Return whether this process prints: under torchrun the first one does."""
    return int(os.environ.get("RANK", "0")) == 0


def announce(command: Command, given: Given) -> None:
    """Print on stderr which program runs, and the arguments and options that come from the study's folder."""
    if not speaks():
        return
    print(f"program {command.file!r}, in the folder {command.folder!r}", file=sys.stderr)
    known = {*_SET_BY_THE_FOLDER, *given.arguments, *given.search}
    options = {name: each for name, each in {**command.arguments, **command.search}.items() if name not in known}
    shown = ", ".join(f"{name}={HIDDEN if holds_secret(name, each) else repr(each)}" for name, each in options.items())
    if shown:
        print(f"with {shown}", file=sys.stderr)


def _check_program(command: Command, study: Path, again: str, is_given: bool) -> None:
    """Check that the program may run, and the folder that it runs in, from which it may import modules.

    Raises:
        StudyError: the program or the folder needs trust.
    """
    output, here, file = study.resolve().parent, Path.cwd().resolve(), Path(command.file)
    with_trust = f"{again} --trust"
    if file.is_relative_to(output):
        raise StudyError(
            f"The program {command.file!r} does not run: it lies in {str(output)!r}, the output folder of the study, "
            f"so it may come from the author of the study. If you trust it: {with_trust}"
        )
    if is_given:
        if here.is_relative_to(output):
            raise StudyError(
                f"The program {command.file!r} does not run in the current folder {str(here)!r}, from which modules "
                f"are imported: it is the output folder of the study, or lies in it, so its modules may come from "
                "the author of the study. Change to another folder and repeat the command; or, if you trust it: "
                f"{again} --file {shlex.quote(command.file)} --trust"
            )
        return
    with_file = f"{again} --file {shlex.quote(command.file)}"
    if not file.is_relative_to(here):
        raise StudyError(
            f"The program {command.file!r} of the study in {str(study)!r} does not run: it lies outside of the current "
            f"folder {str(here)!r}. If you trust it: {with_file}, which runs it in the current folder; or, to trust "
            f"everything that the study's folder names: {with_trust}"
        )
    folder = Path(command.folder)
    if not folder.is_relative_to(here) or folder.is_relative_to(output):
        raise StudyError(
            f"The program {command.file!r} does not run in the folder {command.folder!r}, in which the study began "
            f"and from which modules are imported: it lies outside of the current folder {str(here)!r}, or in "
            f"the study's output. To run the program in the current folder: {with_file}; or, if you trust the folder: "
            f"{with_trust}"
        )


def _check_arguments(command: Command, given: Given, again: str) -> None:
    """Check that the recorded arguments reach nothing outside of the folder, but for those that are given again.

    Raises:
        StudyError: one of them needs trust.
    """
    for name, value in command.arguments.items():
        if name in _SET_BY_THE_FOLDER or name in given.arguments:
            continue
        if acts_outside(name, value) or names_a_place(value):
            give_again = f"give it again with --set {shlex.quote(f'{name}={json.dumps(value)}')}, or "
            raise StudyError(
                f"The study was begun with {name}={value!r}, which may upload, or read and write files elsewhere, so "
                f"it is not taken from the study's folder. If you want it: {give_again if _takes_set(given) else ''}"
                f"trust all that the folder names: {again} --trust"
            )


def _takes_set(given: Given) -> bool:
    return given.command.endswith("resume")


def _with_safe_storage(command: Command, study: Path, given: Given, again: str) -> Command:
    """Return the command with a storage that the user gives, or that lies in the study's folder.

    Raises:
        StudyError: the recorded storage differs.
    """
    from ..ledger.storage import is_in_study_folder
    from ..ledger.study_from_records import outside_of_folder, storage_in_folder

    if is_in_study_folder(command.search.get("storage")) or "storage" in given.search:
        return command
    recorded = str(command.search["storage"])
    inside = storage_in_folder(recorded, study, Path(command.folder))
    if inside is None:
        raise outside_of_folder(recorded, f"{again} --storage URL, or {again} --trust")
    return replace(command, search={**command.search, "storage": inside})
