"""Showing and saving the metrics of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from transformers.trainer_pt_utils import metrics_format

from ..system.files import read_json, write_json


def metrics_table(split: str, metrics: Mapping[str, object]) -> str:
    """Return an aligned table headed ``***** <split> metrics *****``: memory in MB, run times as h:mm:ss.cc.

    >>> print(metrics_table("train", {"train_loss": 0.123456, "train_runtime": 61.5}))
    ***** train metrics *****
      train_loss    =     0.1235
      train_runtime = 0:01:01.50
    """
    shown = {name: str(value) for name, value in metrics_format(dict(metrics)).items()}
    name_width = max(map(len, shown), default=0)
    value_width = max(map(len, shown.values()), default=0)
    rows = [f"  {name:<{name_width}} = {shown[name]:>{value_width}}" for name in sorted(shown)]
    return "\n".join([f"***** {split} metrics *****", *rows])


def save_metrics(folder: str, split: str, metrics: Mapping[str, object], combined: bool) -> None:
    """Write `<split>_results.json`; with `combined`, merge the metrics into `all_results.json` as well."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_json(Path(folder, f"{split}_results.json"), dict(sorted(metrics.items())))
    if combined:
        path = Path(folder, "all_results.json")
        write_json(path, dict(sorted({**(read_json(path) or {}), **metrics}.items())))
