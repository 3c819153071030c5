"""What the tests share: models, data, recorders, fixtures."""

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{each}" for each in ("parity", "search_processes", "ray_searching")))
