"""Typer's errors about a command line in the words of our own: what is wrong, what is allowed, the nearest name."""

from __future__ import annotations

import re
from typing import Any

from ..system.spelling import nearest_name

_NOT_A_CHOICE = re.compile(r"'(?P<given>.*)' is not one of (?P<allowed>.*?)\.?", re.DOTALL)
_OF_OTHERS = "Value error, "  # Typer leaves in this beginning of a message


def usage_in_words(error: Any) -> str:
    """Return what is wrong with a command line, in one line.

    Args:
        error: a `ClickException`; Typer has a click of its own in newer versions, so it is known by its names.
    """
    kinds = {each.__name__ for each in type(error).__mro__}
    context = getattr(error, "ctx", None)
    if "NoSuchOption" in kinds:
        message = f"No such option {error.option_name!r}.{nearest_name(error.option_name, _options(context))}"
    elif "MissingParameter" not in kinds and "BadParameter" in kinds and error.param is not None:
        message = f"{_named(error.param)} {_about_value(error.message)}"
    else:
        message = error.format_message()
    command = re.match(r"No such command '(.*?)'\.", message)
    if command is not None and context is not None:
        message = f"{command[0]}{nearest_name(command[1], list(context.command.commands))}"
    message = message if message.endswith((".", "?")) else f"{message}."
    return message if context is None else f"{message} See {context.command_path} --help."


def _about_value(message: str) -> str:
    """Return what is wrong with the value of an option, with the nearest of its choices.

    >>> _about_value("Value error, 'jsn' is not one of 'text', 'json'.")
    "'jsn' is not one of 'text', 'json'. Did you mean 'json'?"
    >>> _about_value("Input should be a valid integer")
    'is invalid: input should be a valid integer'
    """
    message = message.removeprefix(_OF_OTHERS)
    found = _NOT_A_CHOICE.fullmatch(message)
    if found is None:
        return f"is invalid: {message[:1].lower()}{message[1:]}"
    allowed = re.findall(r"'(.*?)'", found["allowed"])
    return f"{message.rstrip('.')}.{nearest_name(found['given'], allowed)}"


def _named(parameter: Any) -> str:
    return str(max(parameter.opts, key=len)) if parameter.param_type_name == "option" else str(parameter.name).upper()


def _options(context: Any) -> list[str]:
    parameters = [] if context is None else context.command.get_params(context)
    return [each for one in parameters if one.param_type_name == "option" for each in (*one.opts, *one.secondary_opts)]
