"""A preflight runs in the first worker, and what it finds ends the search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.in_workers import search
from tests.support.mistakes import MISTAKES, check_that_it_ends_the_search, check_that_it_runs_once_elsewhere

pytestmark = pytest.mark.process


def test_it_runs_once_and_is_said(tmp_path: Path) -> None:
    check_that_it_runs_once_elsewhere(search, tmp_path)


@pytest.mark.parametrize(("options", "error", "match"), MISTAKES)
def test_a_mistake_ends_the_search_and_fails_no_trial(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    check_that_it_ends_the_search(search, tmp_path, options, error, match)
