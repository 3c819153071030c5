"""Requests of the user reach a search on Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpsearch import Report, Trial, TrialRecord, TrialState, open_study
from tests.support.on_ray import search
from tests.support.searching import HearsNotices

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_instance")]


class Asks(HearsNotices):
    """Stops the first trial at its first report, and adds one; pauses the search when a trial ends, and unpauses it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self.is_paused = folder, False
        self.begun_in_pause = 0

    def on_report(self, trial: Trial, report: Report) -> None:
        study = open_study(self._folder)
        if trial.number == 0 and report.epoch == 1:
            study.stop(0)
            study.add({"learning_rate": 0.02})

    def on_trial_begin(self, trial: Any) -> None:
        super().on_trial_begin(trial)
        self.begun_in_pause += self.is_paused

    def on_trial_end(self, record: TrialRecord) -> None:
        super().on_trial_end(record)
        study = open_study(self._folder)
        if len(self.ended) == 1:
            study.pause()
            self.is_paused = True
        elif self.is_paused:
            study.unpause()
            self.is_paused = False


def test_a_search_on_ray_follows_requests(tmp_path: Path) -> None:
    asks = Asks(tmp_path / "study")
    records = search(tmp_path, 4, trainer={"num_train_epochs": 4}, progress=asks).run_summary.records
    assert len(records) == 5
    assert (records[0].state, records[0].reason) == (TrialState.STOPPED, "stopped by hand")
    assert len(records[0].reports) < 4
    (added,) = [each for each in records if each.origin is not None]
    assert added.params["learning_rate"] == 0.02
    assert asks.begun_in_pause == 0
    assert {each.state for each in records[1:]} == {TrialState.COMPLETE}


def test_a_trial_is_extended_on_ray(tmp_path: Path) -> None:
    trainer = {"save_strategy": "epoch"}
    first = search(tmp_path, 1, trainer=trainer, keep_checkpoints=None).run_summary.records[0]
    open_study(tmp_path / "study").extend(0, num_train_epochs=4)
    extended = search(tmp_path, 1, trainer=trainer, keep_checkpoints=None).run_summary.records[1]
    assert extended.state is TrialState.COMPLETE
    assert [each.epoch for each in extended.reports] == [1, 2, 3, 4]
    assert [each.values for each in extended.reports[:2]] == [each.values for each in first.reports]
