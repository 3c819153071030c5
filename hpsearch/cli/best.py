"""`hpsearch best`: the best trial's parameters, and its model."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..errors import NoCompletedTrialError, StudyError
from ..search.result.best_run import SearchSummary
from ..search.result.trial_rows import TrialRow, run_rows, trial_rows
from ..search.store.checked_json import printable
from ..search.store.study_folder import COMMAND_FILE
from ..search.trial_record import TrialRecord
from ..search.wording import counted, format_value, metric_label
from ..searching.opened_study import open_study
from ..system.files import short_path, whole_folder, write_json
from ..system.json_types import JsonObject
from ..trial.acting_arguments import acts_outside
from .json_output import JsonOption, print_json
from .which_study import say_problems, study_folder, trial_of

HYPERPARAMETERS_FILE = "hyperparameters.json"
_IDENTIFIER = re.compile("[A-Za-z_][A-Za-z0-9_]*")


class Format(StrEnum):
    """Output formats of parameters."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"
    FLAGS = "flags"


def best(
    study: Annotated[Path | None, typer.Argument(help="Folder of the study.", show_default="the newest")] = None,
    form: Annotated[Format, typer.Option("--format", help="Format of the parameters.")] = Format.TEXT,
    trial: Annotated[int | None, typer.Option(help="Number of a trial (default: the best).")] = None,
    export: Annotated[Path | None, typer.Option(help="Copy the trial's model to this folder.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the parameters of the best trial; with several objectives, of all on the Pareto front.

    \b
    hpsearch best runs/digits --format json
    eval "python train.py $(hpsearch best --format flags)"
    hpsearch best runs/digits --export model/
    """
    if as_json and form is not Format.TEXT:
        raise StudyError(
            "--format prints the parameters, --json the values and the weights too: leave one of them out."
        )
    folder = study_folder(study)
    summary = open_study(folder)
    say_problems(summary)
    records = summary.best() if trial is None else [trial_of(summary.records, trial)]
    if not records:
        is_of_a_file = (folder / COMMAND_FILE).is_file()
        call = f"hpsearch resume {shlex.quote(str(folder))}" if is_of_a_file else "The same call"
        raise NoCompletedTrialError(summary.explain_absence(call), summary)
    if export is not None:
        if len(records) > 1:
            numbers = ", ".join(str(each.number) for each in records)
            raise StudyError(
                f"--export copies one model, but {len(records)} trials are best; choose one with --trial: {numbers}."
            )
        _export(records[0], summary, export)
        print(f"the model of trial {records[0].number} is in {str(export)!r}", file=sys.stderr)
    if as_json:
        rows = trial_rows(summary.records) if trial is None else run_rows(records)
        print_json(_as_json(records, {each.trial.number: each for each in rows}, summary))
    else:
        print(_printed(records, summary, form))


def _as_json(records: Sequence[TrialRecord], rows: Mapping[int, TrialRow], summary: SearchSummary) -> JsonObject:
    study = summary.study
    return {
        "study": study.name,
        "folder": str(study.folder),
        "scope": study.scope,
        "objectives": [{"name": each.name, "direction": each.direction} for each in study.objectives],
        "trials": [
            {
                "number": each.number,
                "state": each.state.value,
                "values": list(each.values),
                "std": list(rows[each.number].deviations),
                "runs": rows[each.number].runs,
                "hyperparameters": each.hyperparameters,
                "checkpoint": None if each.checkpoint is None else str(each.checkpoint),
            }
            for each in records
        ],
    }


def _printed(records: list[TrialRecord], summary: SearchSummary, form: Format) -> str:
    found = [each.hyperparameters for each in records]
    if form is Format.TEXT:
        return "\n".join(_in_words(each, summary) for each in records)
    if form is Format.FLAGS:
        known = _training_arguments(summary)
        _say_what_is_no_flag(found, known)
        return "\n".join(_flags(each, known) for each in found)
    told: object = found if len(summary.study.objectives) > 1 else found[0]
    if form is Format.JSON:
        return json.dumps(told, indent=2, default=str)
    import yaml

    return str(yaml.safe_dump(told, sort_keys=False)).rstrip()


def _in_words(record: TrialRecord, summary: SearchSummary) -> str:
    named = zip(summary.study.objectives, record.values, strict=False)
    unit = summary.study.unit
    values = ", ".join(f"{metric_label(objective.name, unit)} {format_value(value)}" for objective, value in named)
    values = f"{values or 'no result'}{_place_among_runs(record, summary)}"
    missing = (
        "none, as each fold has its own; refit=True trains on all data" if summary.study.fold_count else "not kept"
    )
    weights = missing if record.checkpoint is None else short_path(record.checkpoint)
    width = max((len(name) for name in record.hyperparameters), default=0)
    parameters = [f"  {name:<{width}}  {printable(str(value))}" for name, value in record.hyperparameters.items()]
    return "\n".join(
        [f"trial {record.number}: {values} (scope {summary.study.scope})", *parameters, f"weights: {weights}"]
    )


def _place_among_runs(record: TrialRecord, summary: SearchSummary) -> str:
    """Return, to follow on a value, of how many training runs it is the mean, or of which runs it is one."""
    number = record.number if record.replica is None else record.replica.trial
    row = next((each for each in trial_rows(summary.records) if each.trial.number == number), None)
    if row is None or row.runs == 1:
        return ""
    of = counted(row.runs, "fold" if summary.study.fold_count else "seed")
    if record.replica is None and record.values == row.record.values:
        deviations = " and ".join(f"{each:.2g}" for each in row.deviations)
        return f", mean of {of} with standard deviation {deviations}"
    return f", one of {of} of trial {number}, whose mean is {' and '.join(map(format_value, row.record.values))}"


def _flags(values: Mapping[str, object], known: Collection[str]) -> str:
    """Return parameters as options of a program: those that `_is_flag` allows."""
    flags = {name: value for name, value in values.items() if value is not None and _is_flag(name, value, known)}
    return " ".join(f"--{name}={shlex.quote(_text(value))}" for name, value in flags.items())


def _is_flag(name: str, value: object, known: Collection[str]) -> bool:
    """Return whether a parameter is a training argument that only trains, and safe in a command line.

    A shell would run a part of a name that is no identifier, and `xargs` ends an argument at the end of a line.
    """
    is_safe = _IDENTIFIER.fullmatch(name) is not None and _text(value).isprintable()
    return name in known and is_safe and not acts_outside(name, value)


def _training_arguments(summary: SearchSummary) -> Collection[str]:
    sessions = getattr(summary.study, "settings", {}).get("sessions", [])
    return {name for session in sessions for name in session["arguments"]}


def _say_what_is_no_flag(found: Sequence[Mapping[str, object]], known: Collection[str]) -> None:
    """Print, apart from the flags, the parameters that are left out."""
    for values in found:
        left_out = ", ".join(
            f"{printable(name)}={value!r}" for name, value in values.items() if not _is_flag(name, value, known)
        )
        if left_out:
            reason = "not a training argument, not safe in a command line, or reaching beyond the study's folder"
            print(f"omitted ({reason}): {left_out}", file=sys.stderr)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _export(record: TrialRecord, summary: SearchSummary, target: Path) -> None:
    """Copy a trial's model, whole or not at all, without what only training needs.

    Raises:
        StudyError: the weights were not kept, the checkpoint has a link in it, or the folder is not empty.
        CheckpointError: the weights are damaged, or a part of them is missing.
    """
    if record.checkpoint is None and summary.study.fold_count:
        raise StudyError(
            "A cross-validation has no single model: search with refit=True, which trains the best parameters on all "
            "data; or choose the run of one fold with --trial."
        )
    if record.checkpoint is None or not record.checkpoint.is_dir():
        raise StudyError(
            f"The weights of trial {record.number} are not on disk: its search kept only those of its best trials "
            "(keep_checkpoints=)."
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StudyError(f"--export {str(target)!r} exists and is not an empty folder.")
    entries = model_in(record.checkpoint, summary.study.folder)
    with whole_folder(target.resolve()) as partial:
        for entry in entries:
            if entry.is_dir():
                shutil.copytree(entry, partial / entry.name, symlinks=True)
            else:
                shutil.copy2(entry, partial / entry.name, follow_symlinks=False)
        write_json(partial / HYPERPARAMETERS_FILE, record.hyperparameters)


def model_in(checkpoint: Path, folder: Path) -> list[Path]:
    """Return the files and folders of the model in a checkpoint, checked.

    Args:
        checkpoint: the folder.
        folder: of the study.

    Raises:
        StudyError: the checkpoint leads out of the study's folder, or has a link in it.
        CheckpointError: the weights are damaged, or a part of them is missing.
    """
    from ..training.stored_weights import check_weights

    _check_inside(checkpoint, folder)
    entries = _exported(checkpoint)
    files = [each for entry in entries for each in (entry, *entry.rglob("*"))]
    _check_no_links(files)
    check_weights(checkpoint, files)
    return entries


def _exported(checkpoint: Path) -> list[Path]:
    """Return the files of a checkpoint that are useful without the trainer that wrote it."""
    from ..any_trainer.exact_resume import FILES
    from ..training.checkpoints import TO_GO_ON

    to_resume = ("rng_state", *FILES)
    names = (each for each in os.listdir(checkpoint) if each not in TO_GO_ON and not each.startswith(to_resume))
    return [checkpoint / each for each in sorted(names)]


def _check_no_links(entries: Sequence[Path]) -> None:
    """Check that there are only files and folders.

    Raises:
        StudyError: there is a link, which could lead anywhere, or a pipe or device.
    """
    for each in entries:
        if each.is_symlink() or not (each.is_file() or each.is_dir()):
            kind = "a link" if each.is_symlink() else "neither a file nor a folder"
            raise StudyError(
                f"{str(each)!r} is {kind}, so the checkpoint is not exported: delete it, or copy the files by hand."
            )


def _check_inside(checkpoint: Path, folder: Path) -> None:
    """Check that a checkpoint lies in the study's folder, also where its path has links."""
    if not Path(os.path.realpath(checkpoint)).is_relative_to(os.path.realpath(folder)):
        raise StudyError(f"The checkpoint {str(checkpoint)!r} leads out of the study's folder, so it is not exported.")
