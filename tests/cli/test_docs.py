"""The pages about the command line are those of the program."""

from __future__ import annotations

import pytest

from hpsearch.cli.main import app
from tests.support.reference_pages import COMMANDS_PAGE, JSON_PAGE, SCHEMAS, commands_page, json_page

HOW = "run python -m tests.support.reference_pages"


def test_the_reference_is_that_of_the_program() -> None:
    page = COMMANDS_PAGE.read_text(encoding="utf-8")
    for each in app.registered_commands:
        assert each.callback is not None
        assert f"## hpsearch {each.callback.__name__}\n" in page
    if page != commands_page():
        pytest.fail(HOW)


def test_the_page_about_json_has_the_fields_of_all_schemas() -> None:
    page = JSON_PAGE.read_text(encoding="utf-8")
    if page != json_page(page):
        pytest.fail(HOW)
    assert all(f"<!-- schema: {schema.stem} -->" in page for schema in SCHEMAS.glob("*.json"))
