"""The report of a study: one HTML file that works offline, in any browser."""

from __future__ import annotations

import base64
import functools
import gzip
import importlib.util
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import jinja2

from ..errors import MissingPackageError, StudyError
from ..search.metrics.replicas import runs_of
from ..search.result.advice import advice
from ..search.result.best_run import SearchSummary
from ..search.result.rung_agreements import agreement_sentences
from ..search.store.provenance import without_secrets
from ..search.store.stored_study import StoredStudy
from ..search.trial import TrialState
from ..system.files import write_text
from ..version import __version__
from .commands_to_repeat import how_to_repeat
from .machines_used import places
from .tables import (
    budget_in_words,
    count_states,
    effort_in_words,
    format_duration,
    format_value,
    held_out_in_words,
)

_PAGE = "page.html.jinja"


def write_report(summary: SearchSummary, file: str | os.PathLike[str]) -> None:
    """Write the report of a study into one HTML file, whole or not at all.

    The file includes Plotly, so it works offline and can be sent. The text and the tables also say everything that the
    plots show.

    Args:
        summary: of the study, from `open_study` or ``best.run_summary``.
        file: the HTML file; its folder is made if need be.

    Raises:
        MissingPackageError: plotly is not installed.
    """
    if importlib.util.find_spec("plotly") is None:
        raise MissingPackageError("The report's plots need the package plotly: pip install 'hpsearch[report]'")
    from plotly.io.json import to_json_plotly
    from plotly.offline import get_plotlyjs

    from .figure import COLORS
    from .plots import plots

    summary = _from_folder(summary)
    importances = summary.importances()
    packed = _packed(get_plotlyjs())
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["value"] = format_value
    environment.filters["duration"] = format_duration
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False, default=str)
    shown, ordered = plots(summary, importances), summary.best_first()
    number = ordered[0].number if ordered else 0
    page = environment.get_template(_PAGE).render(
        study=summary.study,
        sentences=_in_words(summary, importances),
        facts=_facts(summary),
        best=summary.best(),
        records=ordered,
        runs={each.trial.number: len(each.records) for each in runs_of(summary.records)},
        parameters=list(dict.fromkeys(name for each in summary.records for name in each.params)),
        problems=summary.problems,
        failures=[each for each in summary.records if each.state is TrialState.FAILED],
        plots=shown,
        places=places(summary.records),
        figures=to_json_plotly({each.name: each.figure for each in shown}, engine="json"),
        plotly=packed,
        again=how_to_repeat(Path(summary.study.folder), summary.study.name, number),
        settings=_settings(summary),
        sessions=_sessions(summary),
        colors=COLORS,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
    )
    target = Path(file)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, page)


def _from_folder(summary: SearchSummary) -> SearchSummary:
    """Return the summary with the settings that only the folder of the study knows: versions, arguments, sampler."""
    try:
        return summary.with_study(StoredStudy.read(summary.study.folder))
    except StudyError:
        return summary


def _in_words(summary: SearchSummary, importances: Mapping[str, float]) -> list[str]:
    sentences = [_found(summary), *held_out_in_words(summary), *effort_in_words(summary.study, summary.records)]
    if importances:
        name, share = next(iter(importances.items()))
        sentences.append(
            f"The most important parameter is {name}: {share:.0%} of the variation of {summary.objective.name}."
        )
    sentences += agreement_sentences(summary.study, summary.records)
    sentences += advice(summary.study, summary.records)
    failed = summary.count(TrialState.FAILED)
    sentences.append(f"{failed} trial{'s' if failed != 1 else ''} failed." if failed else "No trial failed.")
    return sentences


def _found(summary: SearchSummary) -> str:
    best = summary.best()
    if not best:
        return summary.explain_absence()
    objectives = summary.study.objectives
    if len(objectives) > 1:
        return f"{len(best)} trials are on the Pareto front of {' and '.join(each.description for each in objectives)}."
    value = format_value(best[0].value)
    return f"The best {objectives[0].name} is {value}, of trial {best[0].number} (scope {summary.study.scope})."


def _facts(summary: SearchSummary) -> list[tuple[str, str]]:
    settings = getattr(summary.study, "settings", {})
    spans = [span for each in summary.records for span in each.spans]
    facts = [
        ("objective", summary.study.description),
        ("trials", count_states(summary.records) + budget_in_words(summary.study, summary.records)),
    ]
    facts += [(name, str(settings[name])) for name in ("sampler", "pruner", "backend") if settings.get(name)]
    if spans:
        begin, end = min(each.begin for each in spans), max(each.end for each in spans)
        facts.append(("searched", f"{_clock(begin)} to {_clock(end)}, {format_duration(end - begin)}"))
    return facts


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _settings(summary: SearchSummary) -> str:
    """Return the settings of the study as they are on disk, but for its sessions."""
    settings = getattr(summary.study, "settings", {})
    return json.dumps({name: each for name, each in settings.items() if name != "sessions"}, indent=2, default=str)


def _sessions(summary: SearchSummary) -> list[dict[str, object]]:
    """Return the arguments of the trials, without the secrets that an earlier version has recorded."""
    sessions = getattr(summary.study, "settings", {}).get("sessions", [])
    return [{**each, "arguments": without_secrets(each.get("arguments", {}))} for each in sessions]


@functools.cache
def _packed(script: str) -> str:
    """Return a script as a page holds it: compressed, which takes tenths of a second, and in characters."""
    return base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode()
