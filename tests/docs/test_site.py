"""The documentation is built without a warning, and stands on its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

pytest.importorskip("mkdocs")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    told = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=200
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return folder


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    import hpsearch

    text = "".join(page.read_text(encoding="utf-8") for page in site.glob("reference/*/index.html"))
    of_transformers = {"DefaultFlowCallback", "EarlyStoppingCallback", "ExportableState", "PrinterCallback"}
    of_transformers |= {"ProgressCallback", "TrainerCallback", "TrainerControl", "TrainerState", "__version__"}
    ids = set(re.findall(r'id="hpsearch\.[\w.]*?(\w+)"', text))
    assert set(hpsearch.__all__) - of_transformers <= ids


def test_a_page_asks_no_other_server_for_anything(site: Path) -> None:
    for page in site.rglob("index.html"):
        loaded = re.findall(
            r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="(https?:[^"]*)"', page.read_text()
        )
        assert loaded == [], page
