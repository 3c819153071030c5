"""Tokens that workers find in their own environment: they are left out where training arguments are pickled."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import huggingface_hub
import transformers

from ...system.redaction import is_secret_name

logger = logging.getLogger(__name__)


class LeavesOutTokens:
    """A mixin of picklers: training arguments, wherever they are, lose the token that this process's environment has.

    Where they are loaded, they get the token that Hugging Face's library finds there: in HF_TOKEN, or in the file that
    `hf auth login` has written.
    """

    def reducer_override(self, value: object) -> Any:
        """Reduce training arguments to their attributes without the token; leave all else to the pickler."""
        if isinstance(value, transformers.TrainingArguments):
            token, reduced = _token_here(), value.__reduce_ex__(5)
            if token is not None and len(reduced) > 2 and isinstance(reduced[2], dict):
                return (*reduced[:2], _with_placeholders(reduced[2], token), *reduced[3:])
        return super().reducer_override(value)  # type: ignore[misc]


def _with_placeholders(values: Mapping[str, object], token: str) -> dict[str, object]:
    """Replace the token in arguments, and in what they keep of how they were given."""
    return {
        name: _with_placeholders(value, token)
        if isinstance(value, dict)
        else _Placeholder()
        if is_secret_name(name) and value == token
        else value
        for name, value in values.items()
    }


class _Placeholder:
    """Becomes the token when it is loaded."""

    def __reduce__(self) -> tuple[object, ...]:
        return _token_of_worker, ()


def _token_of_worker() -> str | None:
    token = _token_here()
    if token is None:
        logger.warning("hub_token is None in this worker: set HF_TOKEN on its machine, or run `hf auth login` there.")
    return token


def _token_here() -> str | None:
    try:
        return huggingface_hub.get_token()
    except Exception:  # it may have to ask a server for one
        return None
