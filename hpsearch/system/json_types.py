"""The types of JSON: what a file of a study holds."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]
"""An object as it was parsed from JSON, or as it will be written: its values are checked where they are read."""
