"""One process's share of a batch of an evaluation: what of it is samples, and what stays as it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from hpsearch.training.gathering import Share


def share(process: int, counts: tuple[int, ...], size: int = 4) -> Share:
    run: Any = SimpleNamespace(args=SimpleNamespace(process_index=process))
    return Share(run, size, counts)


def batch() -> dict[str, Any]:
    return {
        "x": torch.arange(8).reshape(4, 2),
        "labels": torch.arange(4),
        "temperature": torch.tensor(0.5),
        "class_weights": torch.ones(5),
        "names": ["a", "b"],
    }


def test_rows_that_pad_the_last_batch_are_taken_off() -> None:
    rows = share(1, (4, 3)).without_padding(batch())
    assert rows["x"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert rows["labels"].tolist() == [0, 1, 2]


def test_what_is_not_one_row_a_sample_stays_as_it_is() -> None:
    rows = share(1, (4, 1)).without_padding(batch())
    assert rows["temperature"].item() == 0.5
    assert rows["class_weights"].shape == (5,)
    assert rows["names"] == ["a", "b"]


def test_a_process_without_samples_keeps_a_row_without_a_label() -> None:
    rows = share(1, (2, 0)).without_padding(batch())
    assert rows["x"].tolist() == [[0, 1]]
    assert rows["labels"].tolist() == [-100]


def test_a_full_batch_is_not_touched() -> None:
    whole = batch()
    assert share(0, (4, 4)).without_padding(whole) is whole
