"""The file that a study is described in, and what is left of it in the study's folder, to continue later."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ..any_trainer.search_plan import SearchPlan
from ..errors import HpsearchError, StudyError
from ..search.listener import PassingListener, SearchListener
from ..search.store.study_folder import COMMAND_FILE
from ..search.study import Study
from ..search.trial_record import TrialRecord
from ..system.files import write_json
from ..system.json_types import JsonObject
from ..system.redaction import holds_secret
from .text_classification import read_toml


@dataclass(frozen=True)
class Command:
    """The command with which a search began.

    Attributes:
        file: the study file.
        folder: the folder that the command was given in.
        arguments: training arguments in place of the file's.
        search: arguments of the search in place of the file's.
        left_out: the names of those that are secret, and were not written to disk.
    """

    file: str
    folder: str
    arguments: JsonObject = field(default_factory=dict)
    search: JsonObject = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def plan(self) -> SearchPlan:
        """Return the plan of the study file, loaded in the folder of the command."""
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise StudyError(
                f"The folder {self.folder!r}, in which the study began, cannot be entered: {error}."
            ) from error
        return read_plan(Path(self.file))

    def write(self, study: Path) -> None:
        """Leave it in the folder of the study, but for what is secret in it: that has to be given again."""
        arguments = {name: value for name, value in self.arguments.items() if not holds_secret(name, value)}
        search = {name: value for name, value in self.search.items() if not holds_secret(name, value)}
        given, kept = {**self.arguments, **self.search}, {**arguments, **search}
        left_out = [name for name in given if name not in kept]
        write_json(study / COMMAND_FILE, asdict(replace(self, arguments=arguments, search=search, left_out=left_out)))


class LeavesCommand(PassingListener):
    """Leaves in the study's folder how its search was begun.

    Attributes:
        folder: of the study; None before the search begins.
    """

    def __init__(self, command: Command, listener: SearchListener) -> None:
        super().__init__(listener)
        self._command = command
        self.folder: Path | None = None

    def on_search_begin(self, study: Study, records: Sequence[TrialRecord], notes: Sequence[str]) -> None:
        """Leave the command, and pass on."""
        self._command.write(study.folder)
        self.folder = study.folder.absolute()
        super().on_search_begin(study, records, notes)


def read_plan(file: Path) -> SearchPlan:
    """Return the plan that a study file defines.

    Raises:
        StudyError: there is no such file, it is none, or it cannot be imported.
    """
    if not file.is_file():
        raise StudyError(f"There is no file {str(file)!r}.")
    if file.suffix == ".toml":
        return read_toml(file)
    if file.suffix != ".py":
        raise StudyError(
            f"{str(file)!r} is not a study file: study files are Python files (.py) or TOML files (.toml)."
        )
    plans = {name: each for name, each in vars(_imported(file)).items() if isinstance(each, SearchPlan)}
    if len({id(each) for each in plans.values()}) == 1:
        return next(iter(plans.values()))
    if not plans:
        raise StudyError(
            f"{str(file)!r} defines no study; it needs a line such as "
            "study = SearchPlan(make_trainer, space, n_trials=20)."
        )
    if "study" not in plans:
        raise StudyError(f"{str(file)!r} defines {len(plans)} plans, {', '.join(plans)}: name one of them study.")
    return plans["study"]


def _imported(file: Path) -> ModuleType:
    """Import a file as a program imports it that lies beside it, or as a module of the current folder, if it is one.

    Workers find it by name: they get the search path.
    """
    path = file.resolve()
    parts = path.relative_to(Path.cwd()).with_suffix("").parts if path.is_relative_to(Path.cwd()) else (path.stem,)
    is_module = all((Path.cwd().joinpath(*parts[:depth]) / "__init__.py").is_file() for depth in range(1, len(parts)))
    name = ".".join(parts) if is_module else path.stem
    if name in sys.stdlib_module_names or name in _installed_packages():
        raise StudyError(f"{str(file)!r} has the name of the package {name!r}; rename the file.")
    for folder in (str(Path.cwd()), str(path.parent)):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        raise StudyError(f"{str(file)!r} ended the program when it was imported (sys.exit({error.code!r})).") from error
    except Exception as error:
        raise StudyError(
            f"{str(file)!r} cannot be read: {type(error).__name__}: {error}{line_of(error, path)}"
        ) from error
    return module


@functools.cache
def _installed_packages() -> frozenset[str]:
    """Return the names of all packages that are installed: reading them takes a third of a second."""
    return frozenset(importlib.metadata.packages_distributions())


def make_trainer(plan: SearchPlan, command: Command) -> Any:
    """Return the trainer of a plan, with the arguments of the command.

    Raises:
        StudyError: the study file raised an error while it made the trainer.
    """
    try:
        return plan.trainer(command.arguments)
    except HpsearchError:
        raise
    except Exception as error:
        told = f"{type(error).__name__}: {error}{line_of(error, Path(command.file))}"
        raise StudyError(f"{command.file!r} cannot create its trainer: {told}") from error


def line_of(error: BaseException, path: Path) -> str:
    """Return in which line of a file an error was raised."""
    at, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            at = trace.tb_lineno
        trace = trace.tb_next
    at = getattr(error, "lineno", None) if at is None else at
    return "" if at is None else f" (line {at})"
