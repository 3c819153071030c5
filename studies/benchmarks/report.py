"""How long the report of a study of 1,000 trials takes to write and to open, and how large it is.

    python -m studies.benchmarks.report [--trials 1000] [--rounds 5]

Needs Chromium and the package playwright. The clock of "open" runs from the navigation until the plots of the first
screen are drawn (target: 3 s, 3 MB), in a browser that has never seen the page.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from hpsearch.reports.page import write_report
from tests.support.rendering import made_up, summary_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    summary = summary_of(made_up(options.trials))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder, "report.html")
        written, opened, whole = [], [], []
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(options.rounds):
            begin = time.perf_counter()
            write_report(summary, file)
            written.append(time.perf_counter() - begin)
            page = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True).new_page()
            begin = time.perf_counter()
            page.goto(file.as_uri(), wait_until="commit")
            page.wait_for_selector("#plot-progress .main-svg .trace", state="attached")
            opened.append(time.perf_counter() - begin)
            for place in page.query_selector_all("[data-plot]"):
                place.scroll_into_view_if_needed()
                page.wait_for_selector(f"#{place.get_attribute('id')} .main-svg", state="attached")
            whole.append(time.perf_counter() - begin)
            page.close()
        browser.close()
        print(f"{options.trials} trials: {file.stat().st_size / 1e6:.2f} MB; medians of {options.rounds} rounds, in s")
        for name, seconds in (("write", written), ("open", opened), ("all plots", whole)):
            print(f"{name:<10}{statistics.median(seconds):6.2f}")


if __name__ == "__main__":
    main()
