"""What docs/feature-table.md says of callbacks, state and control and no other test shows, row by row."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState

import hpsearch
from tests.support.rows import Look
from tests.support.small_training import make_trainer


@pytest.mark.feature(101, 102)
def test_a_second_callback_of_one_class_is_added_and_warned_of(tmp_path: Path) -> None:
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    transformers.utils.logging.add_handler(handler)
    try:
        trainer = make_trainer(tmp_path, callbacks=[TrainerCallback, TrainerCallback])
        count = sum(type(each) is TrainerCallback for each in trainer.callback_handler.callbacks)
        assert count == 2
        assert any("already" in message for message in heard)
        heard.clear()
        without_flow = make_trainer(tmp_path)
        without_flow.remove_callback(hpsearch.DefaultFlowCallback)
        assert without_flow.state.global_step == 0
        assert any("DefaultFlowCallback" in message for message in heard)
    finally:
        transformers.utils.logging.remove_handler(handler)


@pytest.mark.feature(104)
def test_the_bar_moves_by_the_updates_made_and_evaluations_have_their_own(tmp_path: Path) -> None:
    moves: list[tuple[int, int]] = []

    def note(state: Any, **_: Any) -> None:
        bar = progress.training_bar
        moves.append((state.global_step, bar.n))

    progress = ProgressCallback()
    total: list[Any] = []
    trainer = make_trainer(
        tmp_path,
        disable_tqdm=True,
        eval_strategy="epoch",
        gradient_accumulation_steps=2,
        callbacks=[
            progress,
            Look("on_step_end", note),
            Look("on_prediction_step", lambda **_: total.append(progress.prediction_bar.total)),
        ],
    )
    trainer.train()
    assert moves == [(1, 1), (2, 2)]
    assert total == [2, 2]
    assert (progress.training_bar, progress.prediction_bar) == (None, None)


@pytest.mark.feature(109, 110)
def test_a_fresh_state_and_control_have_the_documented_fields() -> None:
    state = TrainerState()
    documented = {
        "epoch",
        "global_step",
        "max_steps",
        "num_train_epochs",
        "total_flos",
        "log_history",
        "best_metric",
        "best_model_checkpoint",
        "is_local_process_zero",
        "is_world_process_zero",
        "is_hyper_param_search",
        "trial_name",
        "trial_params",
    }
    assert documented <= set(vars(state))
    assert (state.global_step, state.log_history, state.is_hyper_param_search) == (0, [], False)
    assert hpsearch.TrainerState is TrainerState
    assert hpsearch.TrainerControl is TrainerControl
    assert vars(TrainerControl()) == {
        "should_training_stop": False,
        "should_epoch_stop": False,
        "should_save": False,
        "should_evaluate": False,
        "should_log": False,
    }


@pytest.mark.feature("P9")
def test_the_best_checkpoint_in_the_state_is_text(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, eval_strategy="epoch", save_strategy="epoch", metric_for_best_model="loss")
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-3")
