"""The report is one file that shows a study in any browser: whole, offline, readable, and safe to open."""

from __future__ import annotations

import itertools
import json
import math
import platform
import random
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("plotly")

from hpsearch import SearchSummary, TrialRecord, TrialState, open_study
from hpsearch.reports.page import write_report
from hpsearch.reports.plots import plots
from hpsearch.reports.repeat import how_to_repeat
from hpsearch.search.objective import resolve_objectives
from hpsearch.search.trial import Span
from tests.support.rendering import curve, made_up, summary_of


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A real browser without a screen; CI installs it."""
    playwright = pytest.importorskip("playwright.sync_api")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A report in the browser, without a network, seen to its end."""

    def __init__(self, chromium: Any, file: Path, width: int = 1280) -> None:
        self.context = chromium.new_context(viewport={"width": width, "height": 900}, offline=True)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda each: self.errors.append(str(each)))
        self.page.on("request", lambda each: self.asked.append(each.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_function("typeof Plotly !== 'undefined'")
        for place in self.page.query_selector_all("[data-plot]"):
            place.scroll_into_view_if_needed()
            self.page.wait_for_selector(f"#{place.get_attribute('id')} .main-svg", state="attached")

    def _hear(self, message: Any) -> None:
        if message.type == "error" and "GL Driver Message" not in message.text:  # of a GPU made of software
            self.errors.append(message.text)

    def js(self, script: str) -> Any:
        return self.page.evaluate(script)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchSummary, Path]:
    summary = summary_of(made_up(200))
    file = tmp_path_factory.mktemp("report") / "deep" / "report.html"
    write_report(summary, file)
    return summary, file


@pytest.mark.parametrize("width", [1280, 400])
def test_every_plot_is_drawn_offline_without_an_error_and_nothing_is_wider_than_the_page(
    chromium: Any, report: tuple[SearchSummary, Path], width: int
) -> None:
    summary, file = report
    opened = Opened(chromium, file, width)
    expected = [each.name for each in plots(summary, summary.importances())]
    assert expected == ["history", "curves", "importances", "slices", "contour", "parallel", "timeline"]
    drawn = opened.js("[...document.querySelectorAll('.js-plotly-plot')].map(each => each.dataset.plot)")
    assert drawn == expected
    assert opened.errors == []
    assert [each for each in opened.asked if not each.startswith(("file:", "data:", "blob:"))] == []
    assert opened.js("document.documentElement.scrollWidth") <= width
    inside = opened.js(
        "[...document.querySelectorAll('.plot:not([data-plot=parallel]) .main-svg')].every("
        "each => each.getBoundingClientRect().right <= document.documentElement.clientWidth)"
    )
    assert inside


def test_the_report_of_200_trials_is_smaller_than_5_mb(report: tuple[SearchSummary, Path]) -> None:
    assert report[1].stat().st_size < 5e6


def test_the_page_says_what_was_found_and_lists_every_trial_best_first(
    chromium: Any, report: tuple[SearchSummary, Path]
) -> None:
    summary, file = report
    opened = Opened(chromium, file)
    [best] = summary.best()
    text = opened.page.inner_text("main")
    assert f"of trial {best.number} (scope last)" in text
    saved = 1 - sum(each.epochs for each in summary.records) / (9 * 200)
    assert f"{saved:.0%} of it was saved" in text
    numbers = opened.js(
        "[...document.querySelectorAll('table.sortable tbody tr')].map(each => +each.cells[0].textContent)"
    )
    assert sorted(numbers) == list(range(200))
    assert numbers[0] == best.number


def test_a_keyboard_and_a_screen_reader_reach_everything(chromium: Any, report: tuple[SearchSummary, Path]) -> None:
    opened = Opened(chromium, report[1])
    page = opened.page
    text = (
        "(each, name) => (each.getAttribute(name) || '').split(' ').map(id => document.getElementById(id)?.textContent)"
    )
    places = "[...document.querySelectorAll('[role=img], [role=region], section')]"
    assert opened.js(f"{places}.every(each => ({text})(each, 'aria-labelledby').every(Boolean))")
    described = opened.js(f"[...document.querySelectorAll('[role=img]')].flatMap(e => ({text})(e, 'aria-describedby'))")
    assert len(described) == 7
    assert all(len(each) > 20 for each in described)
    assert opened.js("[...document.querySelectorAll('h1,h2,h3')].map(each => +each.tagName[1])")[0] == 1
    assert opened.js("document.documentElement.lang") == "en"
    page.keyboard.press("Tab")
    assert opened.js("document.activeElement.className") == "skip"
    heading = page.locator("table.sortable th button", has_text="learning_rate")
    heading.focus()
    for order in ("ascending", "descending"):
        page.keyboard.press("Enter")
        place, shown = opened.js(
            "(() => { const th = document.querySelector('th[aria-sort]'); const at = th.cellIndex;"
            "return [th.getAttribute('aria-sort'),"
            "[...document.querySelectorAll('table.sortable tbody tr')].map(each => +each.cells[at].textContent)]; })()"
        )
        assert place == order
        assert shown == sorted(shown, reverse=order == "descending")


def test_what_users_wrote_is_text_in_the_page_and_never_runs(chromium: Any, tmp_path: Path) -> None:
    hostile = "</script><script>window.harm = 1</script><img src=x onerror='window.harm = 2'>"
    records = made_up(12)
    records[3] = replace(records[3], params={**records[3].params, "optim": hostile}, hyperparameters={"optim": hostile})
    records[4] = replace(records[4], state=TrialState.FAILED, values=(), reports=(), reason=hostile)
    write_report(summary_of(records), tmp_path / "report.html")
    opened = Opened(chromium, tmp_path / "report.html")
    assert opened.js("window.harm") is None
    assert opened.errors == []
    assert hostile in opened.page.inner_text("section[aria-labelledby=failures]")  # as it is


def test_several_objectives_show_their_front(chromium: Any, tmp_path: Path) -> None:
    objectives = resolve_objectives(["accuracy", "eval_runtime"], None, has_metrics=True)
    generator = random.Random(1)
    records = [
        replace(each, state=TrialState.COMPLETE, values=(generator.random(), generator.random()), reports=())
        for each in made_up(20)
    ]
    summary = summary_of(records, objectives=objectives)
    write_report(summary, tmp_path / "report.html")
    opened = Opened(chromium, tmp_path / "report.html")
    assert opened.errors == []
    front = opened.js("document.querySelector('[data-plot=front]').data.find(each => each.name === 'Pareto front').x")
    assert sorted(front) == sorted(each.values[0] for each in summary.best())


@pytest.mark.parametrize(
    "records",
    [
        [],
        made_up(1),
        [replace(made_up(1)[0], state=TrialState.FAILED, values=(), reports=(), reason="out of memory", spans=())],
        [replace(each, values=(math.nan,), reports=curve(math.nan, 2)) for each in made_up(3)],
    ],
    ids=["none", "one", "a failed one", "nothing but NaN"],
)
def test_a_study_with_hardly_a_trial_has_a_page_that_says_so(
    chromium: Any, tmp_path: Path, records: list[TrialRecord]
) -> None:
    write_report(summary_of(records), tmp_path / "report.html")
    opened = Opened(chromium, tmp_path / "report.html")
    assert opened.errors == []
    if not any(each.state.has_result for each in records):
        assert re.search("No trial has", opened.page.inner_text("main"))


def test_the_figures_hold_the_trials_as_they_are(report: tuple[SearchSummary, Path]) -> None:
    summary, file = report
    [found] = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', file.read_text(), re.DOTALL)
    figures = json.loads(found)
    history = {
        x: y
        for trace in figures["history"]["data"]
        if trace.get("mode") == "markers"
        for x, y in zip(trace["x"], trace["y"], strict=True)
    }
    assert history == {each.number: each.reports[-1].value for each in summary.records}
    drawn = sum(y is not None for trace in figures["curves"]["data"] if "lines" in trace["mode"] for y in trace["y"])
    assert drawn == sum(len(each.reports) for each in summary.records)
    lanes = {y for trace in figures["timeline"]["data"] for y in trace["y"]}
    assert lanes == {1, 2}


def test_what_ran_on_what_is_a_table_with_the_lines_of_the_timeline(tmp_path: Path, chromium: Any) -> None:
    begins = itertools.count()
    records = [
        replace(each, spans=(Span(begin := next(begins), begin + 1.5, where),))
        for each, where in zip(made_up(6), ["b, GPU 1", "a", "<i>b</i>", "a", "b, GPU 1", ""], strict=True)
    ]
    write_report(summary_of(records), tmp_path / "report.html")
    opened = Opened(chromium, tmp_path / "report.html")
    assert opened.errors == []
    rows = opened.page.locator("section[aria-labelledby=places] tbody tr").all_inner_texts()
    assert [row.split("\t") for row in rows] == [
        ["not recorded", "1", "1", "2 s"],
        ["<i>b</i>", "2", "1", "2 s"],
        ["a", "3", "2", "3 s"],
        ["b, GPU 1", "4", "2", "3 s"],
    ]


def test_how_to_go_on_names_the_place_where_the_study_is_now(made: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "moved study"
    shutil.copytree(made / "runs/spirals", moved)
    found = how_to_repeat(moved, "spirals", 3)
    assert found.trial == f"hpsearch replay 3 '{moved}'"
    assert found.study is not None
    words = shlex.split(found.study)
    assert words[:2] == ["hpsearch", "run"]
    assert dict(itertools.pairwise(words))["--output"] == str(tmp_path / "elsewhere")
    assert dict(itertools.pairwise(words))["--study-name"] == "moved study"
    command = json.loads((moved / "command.json").read_text())
    command["search"]["timeout"] = 14 * 86400.0
    (moved / "command.json").write_text(json.dumps({**command, "left_out": ["storage"]}))
    found = how_to_repeat(moved, "spirals", 3)
    assert "--time 1209600s" in str(found.study)
    assert found.left_out == ("storage",)
    for damaged in ("{", "[]", "{}", '{"file": 1}'):
        (moved / "command.json").write_text(damaged)
        assert how_to_repeat(moved, "spirals", 3).trial == 'trainer.replay("spirals", number=3)'


def test_a_real_study_is_reported_from_its_folder(made: Path, tmp_path: Path, chromium: Any) -> None:
    summary = open_study(made / "runs/spirals")
    write_report(summary, tmp_path / "report.html")
    opened = Opened(chromium, tmp_path / "report.html")
    assert opened.errors == []
    text = opened.page.inner_text("main")
    assert "hpsearch replay " in text
    assert "hpsearch run " in text
    assert "worker" not in opened.page.inner_text("section[aria-labelledby=places]")
    assert platform.node() in opened.page.inner_text("section[aria-labelledby=places]")
    assert "searched" in text
    opened.page.locator("summary", has_text="Versions").click()
    assert "transformers" in opened.page.inner_text("main")


def test_choices_that_are_numbers_are_no_axis_of_the_contour_and_lists_are_choices(tmp_path: Path) -> None:
    records = [replace(each, params={**each.params, "model.layers": [each.number % 3, 2]}) for each in made_up(30)]
    found = {each.name: each for each in plots(summary_of(records), {"per_device_train_batch_size": 0.9})}
    assert "contour" not in found  # one parameter, which is a choice
    names = ["per_device_train_batch_size", "weight_decay", "learning_rate", "model.layers"]
    found = {each.name: each for each in plots(summary_of(records), dict.fromkeys(names, 0.25))}
    assert [found["contour"].layout[axis]["title"]["text"] for axis in ("xaxis", "yaxis")] == names[1:3]
    assert found["slices"].layout["xaxis"]["categoryarray"] == ["8", "16", "32"]
    assert found["slices"].layout["xaxis4"]["categoryarray"] == ["[0, 2]", "[1, 2]", "[2, 2]"]


def test_a_parameter_that_only_failed_trials_have_is_left_out_of_the_slices() -> None:
    records = made_up(3)
    failed = replace(records[0], state=TrialState.FAILED, values=(), reports=(), params={"only": 1.0})
    found = {each.name: each for each in plots(summary_of([failed, *records[1:]]), {})}
    assert all(axis["title"]["text"] != "only" for name, axis in found["slices"].layout.items() if "xaxis" in name)


def test_a_trial_that_breaks_a_constraint_is_marked(tmp_path: Path) -> None:
    records = made_up(5)
    records[2] = replace(records[2], violations={"eval_runtime <= 2": 0.5})
    write_report(summary_of(records), tmp_path / "report.html")
    assert "breaks eval_runtime &lt;= 2" in (tmp_path / "report.html").read_text()
