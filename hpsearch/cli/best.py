"""`hpsearch best`: the best trial's parameters, and its model."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import NoCompletedTrialError, StudyError
from ..files import whole_folder, write_json
from ..reports.tables import format_value
from ..search.best_run import SearchSummary
from ..search.trial import TrialRecord
from ..stored_studies import open_study
from .which_study import say_problems, study_folder, trial_of

HYPERPARAMETERS_FILE = "hyperparameters.json"


class Format(StrEnum):
    """How parameters are printed."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"
    FLAGS = "flags"


def best(
    study: Annotated[Path | None, typer.Argument(help="Folder of the study.", show_default="the newest")] = None,
    form: Annotated[Format, typer.Option("--format", help="How the parameters are printed.")] = Format.TEXT,
    trial: Annotated[int | None, typer.Option(help="Another trial than the best.")] = None,
    export: Annotated[Path | None, typer.Option(help="Copy the trial's model to this folder.")] = None,
) -> None:
    """Print the parameters of the best trial; with several objectives, of all on the Pareto front.

    \b
    hpsearch best runs/digits --format json
    eval "python train.py $(hpsearch best --format flags)"
    hpsearch best runs/digits --export model/
    """
    summary = open_study(study_folder(study))
    say_problems(summary)
    records = summary.best() if trial is None else [trial_of(summary.records, trial)]
    if not records:
        raise NoCompletedTrialError(summary.explain_absence())
    if export is not None:
        if len(records) > 1:
            numbers = ", ".join(str(each.number) for each in records)
            raise StudyError(
                f"--export copies one model, but {len(records)} trials are best; add --trial, one of {numbers}."
            )
        _export(records[0], summary, export)
    print(_printed(records, summary, form))


def _printed(records: list[TrialRecord], summary: SearchSummary, form: Format) -> str:
    found = [each.hyperparameters for each in records]
    if form is Format.TEXT:
        return "\n".join(_in_words(each, summary) for each in records)
    if form is Format.FLAGS:
        known = _training_arguments(summary)
        _say_what_is_no_flag(found, known)
        return "\n".join(_flags(each, known) for each in found)
    told: Any = found if len(summary.study.objectives) > 1 else found[0]
    if form is Format.JSON:
        return json.dumps(told, indent=2, default=str)
    import yaml

    return str(yaml.safe_dump(told, sort_keys=False)).rstrip()


def _in_words(record: TrialRecord, summary: SearchSummary) -> str:
    named = zip(summary.study.objectives, record.values, strict=False)
    values = ", ".join(f"{objective.name} {format_value(value)}" for objective, value in named)
    weights = "not kept" if record.checkpoint is None else str(record.checkpoint)
    width = max((len(name) for name in record.hyperparameters), default=0)
    parameters = [f"  {name:<{width}}  {value}" for name, value in record.hyperparameters.items()]
    return "\n".join(
        [f"trial {record.number}: {values} (scope {summary.study.scope})", *parameters, f"weights: {weights}"]
    )


def _flags(values: Mapping[str, Any], known: Collection[str]) -> str:
    """Return parameters as options of a program; one that is None, or no training argument, is left out."""
    told = {name: value for name, value in values.items() if value is not None and name in known}
    return " ".join(f"--{name}={shlex.quote(_text(value))}" for name, value in told.items())


def _training_arguments(summary: SearchSummary) -> Collection[str]:
    sessions = getattr(summary.study, "settings", {}).get("sessions", [])
    return {name for session in sessions for name in session["arguments"]}


def _say_what_is_no_flag(found: Sequence[Mapping[str, Any]], known: Collection[str]) -> None:
    """Tell, apart from the flags, which parameters no program that reads training arguments knows."""
    for values in found:
        left_out = ", ".join(f"{name}={value!r}" for name, value in values.items() if name not in known)
        if left_out:
            print(f"left out, as they are no training arguments: {left_out}", file=sys.stderr)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _export(record: TrialRecord, summary: SearchSummary, target: Path) -> None:
    """Copy a trial's model, whole or not at all, without what only training needs.

    Raises:
        StudyError: the weights were not kept, or the folder is not empty.
    """
    if record.checkpoint is None:
        raise StudyError(
            f"The weights of trial {record.number} are not on disk: its search kept those of its best trials only "
            "(keep_checkpoints=)."
        )
    from ..training.checkpoints import TO_GO_ON

    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StudyError(f"--export {str(target)!r} exists and is not an empty folder.")
    with whole_folder(target.resolve()) as partial:
        for entry in os.scandir(record.checkpoint):
            if entry.name not in TO_GO_ON and not entry.name.startswith("rng_state"):
                copy = shutil.copytree if entry.is_dir() else shutil.copy2
                copy(entry.path, partial / entry.name)
        write_json(partial / HYPERPARAMETERS_FILE, record.hyperparameters)
