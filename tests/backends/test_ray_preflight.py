"""A preflight on Ray runs in the worker of the first trial, and what it finds ends the search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from tests.support.mistakes import MISTAKES, check_that_it_ends_the_search, check_that_it_runs_once_elsewhere
from tests.support.on_ray import search

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_instance")]


def test_it_runs_once_and_is_said(tmp_path: Path) -> None:
    check_that_it_runs_once_elsewhere(search, tmp_path)


@pytest.mark.parametrize(("options", "error", "match"), MISTAKES)
def test_a_mistake_ends_the_search_and_fails_no_trial(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    check_that_it_ends_the_search(search, tmp_path, options, error, match)
