"""Pages of the documentation that are made from the program: its commands, and the schemas of its JSON.

python -m tests.support.reference_pages
"""

from __future__ import annotations

import enum
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COMMANDS_PAGE = ROOT / "docs" / "reference" / "command-line.md"
JSON_PAGE = ROOT / "docs" / "json.md"
SCHEMAS = ROOT / "docs" / "schemas"
_GENERATED = re.compile(r"(?P<begin><!-- schema: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end -->\n)", re.DOTALL)
_HEADING = """\
# Command line

All commands with their arguments and options, as `hpsearch COMMAND --help` lists them. [The command
line](../command-line.md) explains how to use them, and [JSON output](../json.md) what `--json` prints.

<!-- This page is made by: python -m tests.support.reference_pages -->
"""


def commands_page() -> str:
    """Return the page about all commands."""
    import typer

    from hpsearch.cli.main import app

    root = typer.main.get_command(app)
    callbacks = {each.callback.__name__: each.callback for each in app.registered_commands if each.callback}
    sections = [_section(name, root.commands[name], callback) for name, callback in callbacks.items()]  # type: ignore[attr-defined]
    return "\n".join([_HEADING, *sections])


def json_page(page: str) -> str:
    """Return the page about JSON output with the tables of its schemas."""

    def table(found: re.Match[str]) -> str:
        schema = json.loads((SCHEMAS / f"{found['name']}.json").read_text(encoding="utf-8"))
        rows = "\n".join(f"| `{name}` | {kind} | {about} |" for name, kind, about in fields_of(schema))
        return f"{found['begin']}\n| field | type | meaning |\n|---|---|---|\n{rows}\n\n{found['end']}"

    return _GENERATED.sub(table, page)


def fields_of(schema: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Return the fields of a schema, those of its parts after it: the path, the type in words, the meaning."""
    if schema.get("type") == "array":
        yield from fields_of(schema.get("items", {}), f"{prefix}[]")
        return
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}.{name}" if prefix else name
        yield path, _type_in_words(field), str(field["description"])
        yield from fields_of(field, path)


def _type_in_words(field: dict[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{each}`" for each in field["enum"])
    kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
    return " or ".join(kinds)


def _section(name: str, command: Any, callback: Any) -> str:
    hints = typing.get_type_hints(callback)
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and each.name != "help"]
    about, examples = _help_of(command.help)
    usage = " ".join(["hpsearch", name, *map(_argument, arguments), "[OPTIONS]" if options else ""]).rstrip()
    parts = [f"## hpsearch {name}", f"`{usage}`", about, "```text\n" + "\n".join(examples) + "\n```"]
    if arguments:
        rows = [f"| `{_name(each)}` | {_meaning(each, hints)} |" for each in arguments]
        parts.append("\n".join(["| argument | meaning |", "|---|---|", *rows]))
    if options:
        rows = [f"| {_spellings(each)} | {_meaning(each, hints)} |" for each in options]
        parts.append("\n".join(["| option | meaning |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _help_of(text: str) -> tuple[str, list[str]]:
    """Return what a help says, and its examples, which are its last lines."""
    paragraphs = [each.strip("\n\b ") for each in re.split(r"\n\s*\n|\x08", text)]
    examples = [each for each in paragraphs[-1].splitlines() if each.strip()]
    return "\n\n".join(each for each in paragraphs[:-1] if each), examples


def _name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name).upper()


def _argument(parameter: Any) -> str:
    name = _name(parameter) + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _spellings(parameter: Any) -> str:
    return ", ".join(f"`{each}`" for each in [*parameter.opts, *parameter.secondary_opts])


def _meaning(parameter: Any, hints: dict[str, Any]) -> str:
    """Return the help of a parameter with its choices, its range and its default."""
    notes = []
    choices = [each for hint in _flat(hints.get(parameter.name)) for each in _choices(hint)]
    if choices:
        notes.append(", ".join(f"`{each}`" for each in choices))
    if parameter.min is not None or parameter.max is not None:
        bounds = [f"at least {parameter.min}" if parameter.min is not None else ""]
        bounds.append(f"at most {parameter.max}" if parameter.max is not None else "")
        notes.append(", ".join(each for each in bounds if each))
    default = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    if default is not None and default is not False and default != []:
        notes.append(f"default: {getattr(default, 'value', default)}")
    text = str(parameter.help or "").replace("|", "\\|")
    return f"{text} ({'; '.join(notes)})" if notes else text


def _flat(hint: Any) -> list[Any]:
    return [each for one in typing.get_args(hint) for each in _flat(one)] if typing.get_args(hint) else [hint]


def _choices(hint: Any) -> list[str]:
    return [each.value for each in hint] if isinstance(hint, type) and issubclass(hint, enum.Enum) else []


if __name__ == "__main__":
    COMMANDS_PAGE.write_text(commands_page(), encoding="utf-8")
    JSON_PAGE.write_text(json_page(JSON_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
