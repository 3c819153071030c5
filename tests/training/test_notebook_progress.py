"""A training run in a notebook shows transformers' bar and table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpsearch import FixedTrial, PrinterCallback, TrainingArguments
from hpsearch.training import callbacks
from hpsearch.training.callbacks import default_callbacks, is_display
from tests.support.small_trainer import small_trainer

pytest.importorskip("IPython")

IN_AN_EVALUATION = {"eval_loss", "eval_accuracy", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second"}


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a notebook would show, as the process is one."""
    import IPython.display

    htmls: list[str] = []
    monkeypatch.setattr(callbacks, "is_in_notebook", lambda: True)
    monkeypatch.setattr(IPython.display, "display", lambda shown, **_: htmls.append(shown.data))
    monkeypatch.setattr(IPython.display.DisplayHandle, "update", lambda _, shown: htmls.append(shown.data))
    return htmls


def test_train_shows_the_table_of_transformers_and_evaluate_returns_all_metrics(
    tmp_path: Path, shown: list[str]
) -> None:
    trainer = small_trainer(tmp_path, num_train_epochs=2, disable_tqdm=False)
    trainer.train()
    assert any("Validation Loss" in each and "Epoch 2/2" in each for each in shown)
    assert set(trainer.evaluate()) == IN_AN_EVALUATION | {"epoch"}
    [logged] = [each for each in trainer.state.log_history if each.get("epoch") == 1 and "eval_loss" in each]
    assert set(logged) >= IN_AN_EVALUATION


def test_a_trial_of_a_search_shows_nothing(tmp_path: Path, shown: list[str]) -> None:
    trainer = small_trainer(tmp_path, num_train_epochs=1, disable_tqdm=False)
    trial: Any = trainer.for_trial(FixedTrial({"learning_rate": 0.1}), str(tmp_path / "run-0"))
    assert not any(is_display(each) for each in trial.callback_handler.callbacks)
    trial.train()
    assert not shown


@pytest.mark.usefixtures("shown")
def test_with_disable_tqdm_a_notebook_gets_the_printer(tmp_path: Path) -> None:
    *_, display = default_callbacks(TrainingArguments(str(tmp_path), disable_tqdm=True, report_to="none"))
    assert isinstance(display, PrinterCallback)
