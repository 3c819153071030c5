"""A real browser without a screen opens the report offline, draws all plots, and runs nothing that users wrote."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("plotly")

from hpsearch import TrialState, open_study
from hpsearch.reports.page import write_report
from hpsearch.reports.plots import plots
from tests.support.browser import chromium as chromium
from tests.support.rendering import hostile_records, made_up, summary_of
from tests.support.stored_studies_0_8_0 import STORED

pytestmark = pytest.mark.process
# The table of all trials, as the browser shows it: the cells of the column that it is sorted by, and its order.
SORTED = """(() => {
  const head = document.querySelector('th[aria-sort]');
  const rows = [...document.querySelectorAll('table.sortable tbody tr')];
  return [head.getAttribute('aria-sort'), rows.map(each => +each.cells[head.cellIndex].textContent)];
})()"""


class Opened:
    """A report in the browser, without a network, scrolled to its end."""

    def __init__(self, chromium: Any, file: Path, width: int = 1280, color_scheme: str = "light") -> None:
        self.context = chromium.new_context(
            viewport={"width": width, "height": 900}, offline=True, color_scheme=color_scheme
        )
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requested: list[str] = []
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda each: self.errors.append(str(each)))
        self.page.on("request", lambda each: self.requested.append(each.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_function("typeof Plotly !== 'undefined'")
        for place in self.page.query_selector_all("[data-plot]"):
            place.evaluate("each => each.scrollIntoView()")  # what moves meanwhile may keep moving
            self.page.wait_for_selector(f"#{place.get_attribute('id')} .main-svg", state="attached")

    def _note(self, message: Any) -> None:
        if message.type == "error" and "GL Driver Message" not in message.text:  # of a GPU made of software
            self.errors.append(message.text)

    def js(self, script: str) -> Any:
        return self.page.evaluate(script)

    @property
    def drawn(self) -> list[str]:
        names: list[str] = self.js("[...document.querySelectorAll('.js-plotly-plot')].map(each => each.dataset.plot)")
        return names

    def check(self, width: int) -> None:
        """Check that nothing went wrong, no network was needed, nobody's text ran, and the page fits the window."""
        assert self.errors == []
        assert [each for each in self.requested if not each.startswith(("file:", "data:", "blob:"))] == []
        assert self.js("window.harm") is None
        assert self.js("document.documentElement.scrollWidth") <= width
        assert self.js(
            "[...document.querySelectorAll('.plot:not([data-plot=parallel]) .main-svg')].every("
            "each => each.getBoundingClientRect().right <= document.documentElement.clientWidth)"
        )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of 200 trials, two of them with a text of HTML as a parameter and as the reason of a failure."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    write_report(summary_of([*hostile_records(), *made_up(200)[12:]]), file)
    return file


@pytest.mark.smoke
def test_every_plot_is_drawn_offline_without_an_error_and_a_keyboard_reaches_and_sorts_the_table(
    chromium: Any, report: Path
) -> None:
    opened = Opened(chromium, report)
    assert opened.drawn == [
        *("progress", "curves", "history", "importances", "slices", "contour", "parallel", "timeline")
    ]
    opened.check(1280)
    lefts = opened.js(
        "[...document.querySelectorAll('[data-plot=slices] .bglayer .bg')].map(e => Math.round(e.getBBox().x))"
    )
    assert len(set(lefts)) == 3  # side by side
    opened.page.reload()  # where the page was scrolled to decides where Tab begins
    opened.page.keyboard.press("Tab")
    assert opened.js("document.activeElement.className") == "skip"
    opened.page.locator("table.sortable th button", has_text="learning_rate").focus()
    for order in ("ascending", "descending"):
        opened.page.keyboard.press("Enter")
        is_sorted_as, shown = opened.js(SORTED)
        assert is_sorted_as == order
        assert len(shown) == 200
        assert shown == sorted(shown, reverse=order == "descending")


def test_a_point_shows_its_row_by_a_click_and_by_keys_also_where_the_filter_hides_it(
    chromium: Any, report: Path
) -> None:
    opened = Opened(chromium, report)
    page, picked = opened.page, "[...document.querySelectorAll('tr.picked')].map(each => +each.dataset.trial)"
    rows = "[...document.querySelectorAll('tr[data-trial]')]"
    page.fill("#filter", "complete  ADAMW")
    shown = opened.js(f"{rows}.filter(each => !each.hidden).map(each => each.textContent)")
    assert 0 < len(shown) < 200
    assert all("complete" in each and "adamw" in each for each in shown)
    assert page.text_content("#shown") == f"{len(shown)} of 200 trials"

    history = page.locator("[data-plot=history]")
    history.scroll_into_view_if_needed()
    history.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    assert "trial 1, " in page.text_content("#said-history")
    page.keyboard.press("Enter")
    assert opened.js(picked) == [1]
    assert opened.js("document.activeElement.dataset.trial") == "1"
    assert page.input_value("#filter") == ""
    page.wait_for_function("document.querySelector('tr.picked').getBoundingClientRect().top < innerHeight")

    history.scroll_into_view_if_needed()
    page.locator("[data-plot=history] .point").nth(7).click(force=True)
    page.wait_for_function(f"{picked}[0] !== 1")
    assert len(opened.js(picked)) == 1
    page.get_by_role("button", name="seconds").click()
    page.get_by_role("button", name="Best first").click()
    assert opened.js(f"{rows}.map(each => +each.dataset.trial)") == [
        each.number for each in summary_of([*hostile_records(), *made_up(200)[12:]]).best_first()
    ]
    opened.check(1280)


def test_the_saved_table_has_a_row_for_each_trial_and_no_text_that_a_spreadsheet_would_compute(
    chromium: Any, tmp_path: Path
) -> None:
    records = made_up(3)
    records[1] = replace(records[1], params={**records[1].params, "optim": '=1+1, "x"'})
    write_report(summary_of(records), tmp_path / "report.html")
    opened = Opened(chromium, tmp_path / "report.html")
    with opened.page.expect_download() as saved:
        opened.page.get_by_role("button", name="Download CSV").click()
    assert saved.value.suggested_filename == "digits.csv"
    with Path(saved.value.path()).open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [each["number"] for each in table] == ["0", "1", "2"]
    assert [float(each["params.learning_rate"]) for each in table] == [each.params["learning_rate"] for each in records]
    assert table[1]["params.optim"] == '\'=1+1, "x"'
    opened.check(1280)


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_the_plots_follow_the_color_scheme_and_axe_finds_nothing(
    chromium: Any, report: Path, color_scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    opened = Opened(chromium, report, color_scheme=color_scheme)
    opened.page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    found = axe.Axe().run(opened.page).response["violations"]
    assert [(each["id"], each["impact"], [node["html"] for node in each["nodes"][:3]]) for each in found] == []
    font = "document.querySelector('[data-plot=history]')._fullLayout.font.color"
    ink = {"light": "#111827", "dark": "#e5e7eb"}
    assert opened.js(font) == ink[color_scheme]
    opened.page.emulate_media(color_scheme="dark" if color_scheme == "light" else "light")
    opened.page.wait_for_function(f"{font} !== '{ink[color_scheme]}'")
    opened.js("dispatchEvent(new Event('beforeprint'))")
    assert opened.js(font) == ink["light"]  # on paper
    opened.check(1280)


def test_on_a_narrow_screen_nothing_is_wider_than_the_page_and_slices_are_below_each_other(
    chromium: Any, report: Path
) -> None:
    opened = Opened(chromium, report, 400)
    opened.check(400)
    lefts = opened.js(
        "[...document.querySelectorAll('[data-plot=slices] .bglayer .bg')].map(e => Math.round(e.getBBox().x))"
    )
    assert len(lefts) == 3
    assert len(set(lefts)) == 1


def test_a_report_is_drawn_whatever_the_study_holds(chromium: Any, tmp_path: Path) -> None:
    failed = replace(made_up(1)[0], state=TrialState.FAILED, values=(), reports=(), reason="out of memory", spans=())
    for summary in (
        summary_of([]),
        summary_of([failed]),
        summary_of(made_up(1)),
        open_study(STORED / "several_objectives"),
    ):
        write_report(summary, tmp_path / "report.html")
        opened = Opened(chromium, tmp_path / "report.html")
        opened.check(1280)
        assert opened.drawn == [each.name for each in plots(summary, summary.importances())]
        opened.context.close()
