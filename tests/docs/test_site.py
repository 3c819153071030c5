"""The documentation is built without a warning, stands on its own, and can be read by everybody."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import chromium as chromium

pytestmark = pytest.mark.docs

pytest.importorskip("zensical")

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))
# Of each kind one: the first page, a guide with tables, an overview, a drawing, a reference.
LOOKED_AT = ("", "spaces", "search", "how-search-decides", "reference/hyperparameter_search")
TRANSFORMERS = {"DefaultFlowCallback", "EarlyStoppingCallback", "ExportableState", "PrinterCallback"}
TRANSFORMERS |= {"ProgressCallback", "TrainerCallback", "TrainerControl", "TrainerState"}
# The words of code in sentences and cells that are on two lines.
BROKEN = """() => [...document.querySelectorAll('.md-content :not(pre) > code .word')]
  .filter(each => each.getClientRects().length > 1).map(each => each.textContent)"""
TABLES_ARE_WRAPPED = "!document.querySelector('.md-content table:not(.md-typeset__table > table, pre table)')"
EMPTY_HEADERS = "[...document.querySelectorAll('th')].filter(each => !each.textContent.trim()).length"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a copy, as the generator writes beside its configuration."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    for each in ("docs", "hpsearch"):
        shutil.copytree(ROOT / each, folder / each, ignore=shutil.ignore_patterns("__pycache__"))
    told = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "No issues found" in told.stdout + told.stderr
    return folder / "build" / "site"


def built(site: Path, page: Path) -> Path:
    folder = page.parent if page.stem == "index" else page.with_suffix("")
    return site / folder / "index.html"


def test_every_public_name_has_a_page_in_the_reference(site: Path) -> None:
    import hpsearch

    errors = (site / "reference" / "errors" / "index.html").read_text(encoding="utf-8")
    names = set(hpsearch.__all__) - TRANSFORMERS - set(re.findall(r'id="hpsearch\.errors\.(\w+)"', errors))
    for name in names - {"__version__"}:
        page = site / "reference" / name / "index.html"
        assert page.is_file(), name
        assert f'id="hpsearch.{name}"' in page.read_text(encoding="utf-8"), name


def test_every_page_is_in_the_navigation_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    assert sorted(re.findall(r"\S+\.md", navigation)) == [str(page) for page in PAGES]


def test_links_into_the_pages_from_outside_of_them_lead_somewhere(site: Path) -> None:
    outside = [*ROOT.glob("*.md"), *(ROOT / "hpsearch").rglob("*.py"), *(ROOT / "studies").rglob("*.py")]
    for file in outside:
        for page, anchor in re.findall(r"\bdocs/([\w/-]+\.md)(?:#([\w-]+))?", file.read_text(encoding="utf-8")):
            assert (ROOT / "docs" / page).is_file(), (file, page)
            if anchor:
                assert f'id="{anchor}"' in built(site, Path(page)).read_text(encoding="utf-8"), (file, page, anchor)


def test_a_page_loads_nothing_from_other_servers(site: Path) -> None:
    for page in PAGES:
        html = built(site, page).read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|link)\b[^>]*(?:src|href)="?((?:https?:)?//[^">]*)', html)
        assert loaded == [], page


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_have_no_serious_barrier_and_no_broken_code(site: Path, chromium: Any, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page = context.new_page()
    requested: list[str] = []
    page.on("request", lambda each: requested.append(each.url))
    for name in LOOKED_AT:
        page.goto((site / name / "index.html").as_uri())
        page.wait_for_function(TABLES_ARE_WRAPPED)
        assert page.evaluate("document.body.dataset.mdColorScheme") == {"light": "default", "dark": "slate"}[scheme]
        assert page.query_selector(".md-content code .word") is not None
        assert page.evaluate(BROKEN) == []
        assert page.evaluate(EMPTY_HEADERS) == 0
        found = axe.run(page).response["violations"]
        assert [each for each in found if each["impact"] in ("serious", "critical")] == [], name
    assert [each for each in requested if not each.startswith(("file:", "data:", "blob:"))] == []
    context.close()
