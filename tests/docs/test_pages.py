"""Every block of code on every page does what it says, as it stands there, or says why it is not run."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.programs import surroundings
from tests.support.run_page import blocks

pytestmark = pytest.mark.docs

pytest.importorskip("plotly")

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# These have tests of their own: they need a cluster, or check more than that the code runs.
ELSEWHERE = {"cluster": "tests/docs/test_ray_cluster_page.py", "spaces": "tests/spaces/test_docs.py"}
RUN = [page for page in PAGES if page.stem not in ELSEWHERE and any(each.reason is None for each in blocks(page))]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.smoke] if page.stem == "README" else []) for page in RUN],
    ids=[page.stem for page in RUN],
)
def test_the_code_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    (tmp_path / "studies").symlink_to(ROOT / "studies")
    path = (str(warm.programs_folder()), str(Path(sys.executable).parent), os.environ["PATH"])
    ray = {"RAY_AIR_NEW_OUTPUT": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    environment = surroundings(PATH=os.pathsep.join(path), **ray)
    told = warm.run("-m", "tests.support.run_page", str(page), folder=tmp_path, environment=environment)
    assert told.returncode == 0, told.stdout[-3000:] + told.stderr[-5000:]


def test_what_is_not_run_is_little_and_has_a_reason() -> None:
    left_out = [f"{page.stem}: {each.reason}" for page in PAGES for each in blocks(page) if each.reason is not None]
    assert all(len(each) > 20 for each in left_out)
    tested = [
        each for each in left_out if any((ROOT / test).is_file() for test in re.findall(r"tests/[\w/]+\.py", each))
    ]
    assert len(left_out) - len(tested) <= 5, left_out


def test_pages_that_are_run_elsewhere_are(tmp_path: Path) -> None:
    for stem, test in ELSEWHERE.items():
        assert f'"{stem}.md"' in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["resume", "what-is-tested-where"])
def test_the_tests_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
    assert len(set(named)) >= 10
    assert [each for each in named if not (ROOT / each).is_file()] == []
