"""Progress bars of the libraries: off while something runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import datasets
from transformers.utils import logging as transformers_logging


@contextlib.contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep transformers and datasets from drawing bars while the block runs, over whatever the terminal shows.

    A value of HF_DATASETS_DISABLE_PROGRESS_BARS in the environment decides about the bars of datasets.
    """
    were_enabled = transformers_logging.is_progress_bar_enabled()
    is_decided = datasets.config.HF_DATASETS_DISABLE_PROGRESS_BARS is not None
    of_datasets = not is_decided and not datasets.are_progress_bars_disabled()
    transformers_logging.disable_progress_bar()
    if of_datasets:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if were_enabled:
            transformers_logging.enable_progress_bar()
        if of_datasets:
            datasets.enable_progress_bars()
