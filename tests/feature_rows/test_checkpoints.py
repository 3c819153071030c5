"""What docs/feature-table.md says of checkpoints and no other test shows, row by row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.trainer_utils import get_last_checkpoint

from tests.support.models import (
    Line,
    line_data,
)
from tests.support.rows import Look
from tests.support.small_training import make_trainer


@pytest.mark.feature(92, "P17")
def test_a_checkpoint_is_named_by_its_step_and_holds_optimizer_schedule_streams_and_state(tmp_path: Path) -> None:
    make_trainer(tmp_path, save_strategy="epoch").train()
    (folder,) = tmp_path.iterdir()
    assert folder.name == "checkpoint-3"
    assert {path.name for path in folder.iterdir()} == {
        "model.safetensors",
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "trainer_state.json",
        "training_args.bin",
        "run_state.json",
    }
    state = torch.load(folder / "optimizer.pt", weights_only=True)
    assert all(float(each["exp_avg"].abs().sum()) > 0 for each in state["state"].values())


@pytest.mark.feature(95)
def test_the_newest_checkpoint_is_the_one_of_the_highest_number_and_can_be_loaded_to_predict(tmp_path: Path) -> None:
    assert get_last_checkpoint(str(tmp_path)) is None
    trainer = make_trainer(tmp_path, save_strategy="steps", save_steps=1, num_train_epochs=4)
    trainer.train()
    expected = trainer.predict(line_data(4)).predictions
    newest = get_last_checkpoint(str(tmp_path))
    assert newest == str(tmp_path / "checkpoint-12")
    other = make_trainer(tmp_path, model=Line())
    assert not np.array_equal(other.predict(line_data(4)).predictions, expected)
    other.load_weights(newest)
    np.testing.assert_array_equal(other.predict(line_data(4)).predictions, expected)
    steps: list[int] = []
    look = Look("on_step_end", lambda state, **_: steps.append(state.global_step))
    make_trainer(tmp_path, num_train_epochs=5, callbacks=[look]).train(resume_from_checkpoint=True)
    assert steps == [13, 14, 15]
