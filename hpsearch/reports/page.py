"""The report of a study: one HTML file that works offline, in any browser."""

from __future__ import annotations

import base64
import functools
import gzip
import importlib.util
import json
import math
import os
import re
from datetime import UTC, datetime
from pathlib import Path

import jinja2

from ..errors import MissingPackageError, StudyError
from ..search.metrics.added_metrics import NUM_PARAMETERS
from ..search.metrics.replicas import runs_of
from ..search.result.advice import advice
from ..search.result.best_run import SearchSummary
from ..search.result.parameter_importances import Importances
from ..search.result.rung_agreements import agreement_sentences
from ..search.store.provenance import MODEL, NAMES, without_secrets
from ..search.store.stored_study import StoredStudy
from ..search.trial_record import TrialState
from ..search.wording import format_value
from ..system.files import write_text
from ..version import __version__
from .best_by_cost import label, resource_unit
from .commands_to_repeat import how_to_repeat
from .earlier_heading import NOTE, STUDY, TITLE, label_of
from .headline import Headline, headline, tiles
from .machines_used import places
from .tables import budget_in_words, count_states, format_duration, held_out_in_words

_PAGE = "page.html.jinja"
# In the columns of `SearchSummary.trials_dataframe`: a folder of this machine, which helps no reader.
_NOT_SENT = "checkpoint"
# With fewer results for each parameter, the order of the importances is chance.
_TRIALS_FOR_EACH = 5
# A parameter is called the most important if its share is this many times that of the next one.
_CLEARLY = 1.5
_FINGERPRINT = re.compile(r", [0-9a-f]{12}(?=,|$)")


def write_report(
    summary: SearchSummary,
    file: str | os.PathLike[str],
    *,
    title: str | None = None,
    note: str | None = None,
) -> None:
    """Write the report of a study into one HTML file, whole or not at all.

    The file includes Plotly, so it works offline and can be sent. The text and the tables also say everything that the
    plots show.

    Args:
        summary: of the study, from `open_study` or ``best.run_summary``.
        file: the HTML file; its folder is made if need be.
        title: the heading of the page; None or empty: the name of the study.
        note: text below the heading, with its line breaks.

    Raises:
        MissingPackageError: plotly is not installed.
    """
    if importlib.util.find_spec("plotly") is None:
        raise MissingPackageError("The report's plots need the package plotly: pip install 'hpsearch[report]'")
    from plotly.io.json import to_json_plotly
    from plotly.offline import get_plotlyjs

    from .figure import COLORS, DARK_COLORS
    from .plots import plots

    summary = _from_folder(summary)
    importances, figures = summary.importances(), headline(summary)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["value"] = format_value
    environment.filters["duration"] = format_duration
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False, default=str)
    shown, ordered = plots(summary, importances, figures.defaults), summary.best_first()
    number, best = ordered[0].number if ordered else 0, summary.best()
    page = environment.get_template(_PAGE).render(
        study=summary.study,
        title=title or summary.study.name,
        note=note,
        heading={STUDY: label_of(Path(summary.study.folder)), TITLE: title, NOTE: note},
        about=_model_and_data(summary),
        tiles=tiles(summary, figures),
        sentences=_in_words(summary, importances, figures),
        facts=_facts(summary),
        best=best,
        best_numbers={each.number for each in best},
        records=ordered,
        runs={each.trial.number: len(each.records) for each in runs_of(summary.records)},
        parameters=list(dict.fromkeys(name for each in summary.records for name in each.params)),
        problems=summary.problems,
        failures=[each for each in summary.records if each.state is TrialState.FAILED],
        plots=shown,
        places=places(summary.records),
        figures=_packed(to_json_plotly({each.name: each.figure for each in shown}, engine="json")),
        trials=_packed(_trials(summary)),
        plotly=_packed_once(get_plotlyjs()),
        again=how_to_repeat(Path(summary.study.folder), summary.study.name, number),
        settings=_settings(summary),
        sessions=_sessions(summary),
        colors=COLORS,
        dark_colors=DARK_COLORS,
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


def _in_words(summary: SearchSummary, importances: Importances, figures: Headline) -> list[str]:
    """Return the sentences that no tile of the headline has."""
    sentences = held_out_in_words(summary) if figures.test is None else []
    shares = [*importances.values(), 0.0]
    if importances.trials >= _TRIALS_FOR_EACH * len(importances) > 0 and shares[0] > _CLEARLY * shares[1]:
        (name, share), unit = next(iter(importances.items())), resource_unit(summary)
        explains = f"{share:.0%} of the variation of {label(summary)}"
        sentences.append(f"The most important parameter is {name}: {explains}, by {importances.basis(unit)}.")
    sentences += agreement_sentences(summary.study, summary.records)
    sentences += advice(summary.study, summary.records)
    failed = summary.count(TrialState.FAILED)
    sentences.append(f"{failed} trial{'s' if failed != 1 else ''} failed." if failed else "No trial failed.")
    return sentences


def _facts(summary: SearchSummary) -> list[tuple[str, str]]:
    settings = getattr(summary.study, "settings", {})
    spans = [span for each in summary.records for span in each.spans]
    facts = [("trials", count_states(summary.records) + budget_in_words(summary.study, summary.records))]
    facts += [(name, str(settings[name])) for name in ("sampler", "pruner", "backend") if settings.get(name)]
    if spans:
        begin, end = min(each.begin for each in spans), max(each.end for each in spans)
        facts.append(("searched", f"{_clock(begin)} to {_clock(end)}, {format_duration(end - begin)}"))
    return facts


def _model_and_data(summary: SearchSummary) -> list[tuple[str, str]]:
    """Return what the last session of the study recorded of its model and its data."""
    sessions = getattr(summary.study, "settings", {}).get("sessions") or [{}]
    names, data = sessions[-1].get(NAMES, {}), sessions[-1].get("data", {})
    metrics = [report.metrics for best in summary.best() for report in best.reports]
    sizes = {int(each[NUM_PARAMETERS]) for each in metrics if each.get(NUM_PARAMETERS)}
    size = [f"{max(sizes):,} weights in the best trial"] if len(sizes) == 1 else []
    found = [("model", ", ".join([*([names[MODEL]] if MODEL in names else []), *size]))]
    for name, text in (("train_dataset", "training data"), ("eval_dataset", "evaluation data")):
        described = _FINGERPRINT.sub("", str(data.get(name, "")))
        found.append((text, ", ".join(each for each in (names.get(name, ""), described) if each)))
    return [(name, each) for name, each in found if each]


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


def _trials(summary: SearchSummary) -> str:
    """Return all trials as JSON, for the file that the page saves and for the texts at the points of the plots."""
    table = summary.trials_dataframe(runs=True).drop(columns=_NOT_SENT).reset_index().astype(object)
    known = table.where(table.notna(), None)  # JSON has no NaN
    rows = [[_plain(each) for each in row] for row in known.itertuples(index=False, name=None)]
    return json.dumps({"columns": list(table.columns), "rows": rows}, default=str)


def _plain(value: object) -> object:
    """Return a value as JSON can hold it: an infinite one as text."""
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _packed(text: str) -> str:
    """Return a text as a page holds it: compressed, and in characters that mean nothing in HTML."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


_packed_once = functools.cache(_packed)  # of Plotly, which takes tenths of a second
