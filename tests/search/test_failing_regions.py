"""A search learns where trials fail, and does not go there again and again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.backends.contract import states
from tests.search.short_searches import params_of, search, weight_is_measured

MOST = 55.0  # from where on a model cannot be made; the best weight would be 70


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_with_rungs_the_place_where_models_cannot_be_made_is_left_although_it_is_promising(
    tmp_path: Path, n_jobs: int
) -> None:
    def check(trial: Any) -> None:
        if trial.params["weight_decay"] > MOST:
            raise RuntimeError("CUDA out of memory")

    settings = weight_is_measured(check)
    best = search(tmp_path, 27, pruner="rungs", max_failures=None, n_jobs=n_jobs, **settings)
    tried = [params["weight_decay"] for params in params_of(best)]
    failed = [state == "failed" for state in states(best)]
    assert sum(failed[9:]) <= 6, list(zip(tried, failed, strict=True))  # 17 of them, if nobody learns of failures
    assert max(weight for weight, has_failed in zip(tried, failed, strict=True) if not has_failed) > 45.0
