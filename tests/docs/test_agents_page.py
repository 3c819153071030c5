"""What other programs read: every name on the page for coding agents exists; llms.txt and the citation are in order."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import hpsearch
from hpsearch.cli.main import FAILED, INTERRUPTED, MISTAKEN, app
from hpsearch.search.store.held_out_file import HELD_OUT_FILE
from hpsearch.search.store.storage_files import STORAGE_FILES
from hpsearch.search.store.study_folder import BEST_FILE, REPORT_FILE, STUDY_FILE, TRIAL_FILE
from tests.support.run_page import Block, blocks

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "for-coding-agents.md"
TEXT = PAGE.read_text(encoding="utf-8")
COMMANDS: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
# What users read of a trial and what `open_study` gives, beside what dataclasses and named tuples list.
INSTANCE_ATTRIBUTES = {"SearchSummary": {"records"}}


def the_block(start: str) -> Block:
    (found,) = (each for each in blocks(PAGE) if each.code.startswith(start))
    return found


def stubs() -> list[tuple[str, ast.FunctionDef]]:
    """Return the functions and methods of the page, with their dotted names."""
    found = []
    for each in ast.parse(the_block("class Float").code).body:
        if isinstance(each, ast.FunctionDef):
            found.append((each.name, each))
        elif isinstance(each, ast.ClassDef):
            methods = (every for every in each.body if isinstance(every, ast.FunctionDef))
            found += [(f"{each.name}.{every.name}", every) for every in methods]
    return found


def defaults_of(stub: ast.FunctionDef) -> dict[str, object]:
    """Return the arguments of a stub with their defaults, `inspect.Parameter.empty` without one."""
    given, empty = stub.args, inspect.Parameter.empty
    positional = [each.arg for each in given.args]
    values: list[Any] = [empty] * (len(positional) - len(given.defaults)) + given.defaults
    pairs = [*zip(positional, values, strict=True)]
    pairs += zip((each.arg for each in given.kwonlyargs), given.kw_defaults, strict=True)
    return {name: value if value is empty else ast.literal_eval(value) for name, value in pairs if name != "self"}


@pytest.mark.parametrize(("name", "stub"), stubs(), ids=[name for name, _ in stubs()])
def test_the_arguments_and_defaults_of_the_page_are_those_of_the_code(name: str, stub: ast.FunctionDef) -> None:
    real: Any = hpsearch
    for part in name.split("."):
        real = getattr(real, part)
    parameters = inspect.signature(real).parameters
    for argument, default in defaults_of(stub).items():
        assert argument in parameters
        assert parameters[argument].default == default, argument
    if name == "Trainer.hyperparameter_search":
        named = {each for each, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD}
        assert named - {"self"} == set(defaults_of(stub))


def test_the_attributes_of_results_exist() -> None:
    for each in ast.parse(the_block("class Float").code).body:
        if not isinstance(each, ast.ClassDef):
            continue
        real = getattr(hpsearch, each.name)
        known = {*getattr(real, "_fields", ()), *getattr(real, "__dataclass_fields__", ())}
        known |= INSTANCE_ATTRIBUTES.get(each.name, set())
        names = {ast.unparse(every.target) for every in each.body if isinstance(every, ast.AnnAssign)}
        assert names <= known, each.name


def test_states_and_errors_exist() -> None:
    states = re.search(r"state: str  # (.*)", TEXT)
    assert states is not None
    assert set(states[1].split()) == {each.value for each in hpsearch.TrialState}
    errors = set(re.findall(r"`(\w+Error|SearchInterrupted)`", TEXT))
    assert len(errors) >= 9
    assert errors <= set(hpsearch.__all__)


def test_every_command_and_option_exists() -> None:
    shown = the_block("hpsearch init").code
    also = re.findall(r"also: ([\w, ]+)", shown)
    assert {each.strip() for some in also for each in some.split(",")} <= set(COMMANDS)
    for command, rest in re.findall(r"^hpsearch (\w+)(.*(?:\n +.*)*)", shown, re.MULTILINE):
        options = {every for each in COMMANDS[command].params for every in (*each.opts, *each.secondary_opts)}
        assert set(re.findall(r"--[\w-]+", rest)) <= options, command
    named = {*re.findall(r"^hpsearch (\w+)", shown, re.MULTILINE), *", ".join(also).split(", ")}
    assert named == set(COMMANDS)


def test_exit_codes_and_files_are_those_of_the_code() -> None:
    codes = {int(each) for row in re.findall(r"^\| ([\d, ]+) \|", TEXT, re.MULTILINE) for each in row.split(", ")}
    assert codes == {0, FAILED, MISTAKEN, INTERRUPTED, 128 + 15, 128 + 10}
    files = set(re.findall(r"^  ([\w.]+\.\w+) ", the_block("<output_dir>").code, re.MULTILINE))
    assert files == {STUDY_FILE, BEST_FILE, HELD_OUT_FILE, REPORT_FILE, "study.db"}
    assert "study.db" in STORAGE_FILES
    assert TRIAL_FILE in TEXT


def test_llms_txt_follows_its_convention_and_lists_pages_that_exist() -> None:
    lines = (DOCS / "llms.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    assert next(line for line in lines[1:] if line).startswith("> ")
    links = [line for line in lines if line.startswith("- ")]
    listed = [each[1] for line in links if (each := re.match(r"- \[[^]]+\]\(([\w/-]+)/\): \S", line))]
    assert len(links) == len(listed) == len(set(listed)) >= 30
    pages = {page.relative_to(DOCS).with_suffix("").as_posix().removesuffix("/index") for page in DOCS.rglob("*.md")}
    assert [each for each in listed if each not in pages] == []


def test_the_citation_has_what_its_format_requires_and_the_version_of_the_package() -> None:
    cited = yaml.safe_load((DOCS.parent / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert cited["version"] == hpsearch.__version__
    assert f"version = {{{hpsearch.__version__}}}" in (DOCS / "cite.md").read_text(encoding="utf-8")
