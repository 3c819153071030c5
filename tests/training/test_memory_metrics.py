"""Memory metrics: what a stage took at its peak and kept at its end; nothing of it unless it is asked for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from hpsearch import Categorical, Trainer
from hpsearch.search.metrics.objective import sum_of_metrics
from hpsearch.training.memory_metrics import MemoryTracker
from tests.support.models import Line, line_data
from tests.support.small_trainer import small_trainer
from tests.support.small_training import make_trainer

MEGABYTE = 2**20
BIG = 200 * MEGABYTE
MEASURED = {"skip_memory_metrics": False}
INIT = {"before_init_mem_cpu", "init_mem_cpu_alloc_delta", "init_mem_cpu_peaked_delta"}


def figures(metrics: Any) -> dict[str, int]:
    return {name: value for name, value in metrics.items() if "_mem_" in name}


def of(*stages: str) -> set[str]:
    return {f"{stage}_mem_cpu_{kind}_delta" for stage in stages for kind in ("alloc", "peaked")}


def touched(size: int = BIG) -> torch.Tensor:
    """Memory that is really there: every page was written to."""
    return torch.ones(size, dtype=torch.uint8)


def samplers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if type(each).__name__ == "_PeakSampler"]


class AllocatesAt(TrainerCallback):
    """Takes memory at an event, for a moment or for good, and looks which threads are there."""

    def __init__(self, event: str, keep: bool) -> None:
        self.kept: Any = None
        self.threads: list[int] = []
        setattr(self, event, self._allocate)
        self._keep = keep

    def _allocate(self, *args: Any, **kwargs: Any) -> None:
        self.threads.append(len(samplers()))
        big = touched()
        if self._keep and self.kept is None:
            self.kept = big
        threading.Event().wait(0.01)  # several times as long as the pause between two samples


@pytest.mark.feature(91)
def test_every_stage_reports_what_it_took_and_the_first_one_what_building_took(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, **MEASURED)
    trained = figures(trainer.train().metrics)
    assert set(trained) == INIT | of("train")
    evaluated = figures(trainer.evaluate())
    assert set(evaluated) == of("eval")
    predicted = figures(trainer.predict(line_data(4)).metrics)
    assert set(predicted) == of("test")
    for each in (trained, evaluated, predicted):
        assert all(isinstance(value, int) for value in each.values())
        assert all(value >= 0 for name, value in each.items() if "peaked" in name)
    assert trained["before_init_mem_cpu"] > MEGABYTE


def test_the_figures_are_in_the_log_history_too(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, **MEASURED)
    trained = trainer.train().metrics
    evaluated = trainer.evaluate()
    shown = [entry for entry in trainer.state.log_history if figures(entry)]
    assert [figures(entry) for entry in shown] == [figures(trained), figures(evaluated)]
    assert "train_runtime" in shown[0]
    assert "eval_loss" in shown[1]


def test_evaluation_before_any_training_reports_what_building_took_and_training_then_does_again(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, **MEASURED)
    assert set(figures(trainer.evaluate())) == INIT | of("eval")
    assert set(figures(trainer.evaluate())) == of("eval")
    assert set(figures(trainer.train().metrics)) == INIT | of("train")
    assert set(figures(trainer.train().metrics)) == INIT | of("train")


@pytest.mark.feature(91)
def test_evaluations_inside_training_are_part_of_it_and_not_reported(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, **MEASURED, eval_strategy="epoch", num_train_epochs=2)
    trainer.train()
    evaluations = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(evaluations) == 2
    assert all(figures(entry) == {} for entry in evaluations)
    assert set(figures(trainer.evaluate())) == of("eval")


def test_memory_taken_for_a_moment_shows_in_the_peak_only(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, **MEASURED, callbacks=[AllocatesAt("on_step_end", keep=False)])
    taken = figures(trainer.train().metrics)
    assert taken["train_mem_cpu_peaked_delta"] > 0.8 * BIG
    assert taken["train_mem_cpu_alloc_delta"] < 0.5 * BIG
    assert make_trainer(tmp_path, **MEASURED).train().metrics["train_mem_cpu_peaked_delta"] < 0.5 * BIG


def test_memory_that_is_kept_shows_in_what_was_allocated(tmp_path: Path) -> None:
    keeper = AllocatesAt("on_epoch_begin", keep=True)
    taken = figures(make_trainer(tmp_path, **MEASURED, callbacks=[keeper]).train().metrics)
    assert keeper.kept is not None
    assert taken["train_mem_cpu_alloc_delta"] > 0.8 * BIG
    assert taken["train_mem_cpu_peaked_delta"] < 0.5 * BIG


def test_memory_given_back_makes_the_allocation_negative(tmp_path: Path) -> None:
    class GivesBack(TrainerCallback):
        def __init__(self) -> None:
            self.held: Any = touched()

        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            self.held = None

    trainer = make_trainer(tmp_path, **MEASURED, callbacks=[GivesBack()])
    assert trainer.train().metrics["train_mem_cpu_alloc_delta"] < -0.8 * BIG


def test_the_model_shows_in_what_building_took(tmp_path: Path) -> None:
    class Large(Line):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("large", touched())

    taken = figures(make_trainer(tmp_path, **MEASURED, model_init=Large).train().metrics)
    assert taken["init_mem_cpu_alloc_delta"] > 0.8 * BIG
    assert taken["train_mem_cpu_alloc_delta"] < 0.5 * BIG


@pytest.mark.parametrize("stage", ["eval", "test"])
def test_memory_that_an_evaluation_takes_for_a_moment_shows_in_its_peak(tmp_path: Path, stage: str) -> None:
    trainer = make_trainer(tmp_path, **MEASURED, callbacks=[AllocatesAt("on_prediction_step", keep=False)])
    metrics = trainer.evaluate() if stage == "eval" else trainer.predict(line_data(4)).metrics
    assert metrics[f"{stage}_mem_cpu_peaked_delta"] > 0.8 * BIG


def test_by_default_nothing_is_measured_and_no_thread_samples(tmp_path: Path) -> None:
    look = AllocatesAt("on_step_end", keep=False)
    trainer = make_trainer(tmp_path, callbacks=[look])
    metrics = {**trainer.train().metrics, **trainer.evaluate(), **trainer.predict(line_data(4)).metrics}
    assert figures(metrics) == {}
    assert not any(figures(entry) for entry in trainer.state.log_history)
    assert set(look.threads) == {0}


def test_a_thread_samples_while_training_goes_on_and_only_then(tmp_path: Path) -> None:
    look = AllocatesAt("on_step_end", keep=False)
    make_trainer(tmp_path, **MEASURED, callbacks=[look]).train()
    assert set(look.threads) == {1}
    assert samplers() == []


class Broken(Line):
    """A model that fails when it is run, or while it is built."""

    def __init__(self, while_built: bool = False) -> None:
        super().__init__()
        if while_built:
            raise RuntimeError("broken")

    def forward(self, x: Any, labels: Any = None) -> Any:
        raise RuntimeError("broken")


@pytest.mark.parametrize("method", ["train", "evaluate", "predict", "build"])
def test_a_failure_leaves_no_thread_behind_and_the_next_stage_is_measured(tmp_path: Path, method: str) -> None:
    broken = [True]
    trainer = make_trainer(tmp_path, **MEASURED, model_init=lambda: Broken(method == "build") if broken[0] else Line())
    with pytest.raises(RuntimeError, match="broken"):
        trainer.predict(line_data(4)) if method == "predict" else getattr(
            trainer, "evaluate" if method == "evaluate" else "train"
        )()
    assert samplers() == []
    broken[0] = False
    assert of("train") <= set(figures(trainer.train().metrics))
    assert samplers() == []


@pytest.mark.feature(91)
def test_only_the_main_process_measures(tmp_path: Path) -> None:
    args = make_trainer(tmp_path, **MEASURED).args.replace()
    other = type("OtherProcess", (), {"skip_memory_metrics": False, "process_index": 1, "device": args.device})()
    tracker = MemoryTracker(other)  # type: ignore[arg-type]
    with tracker.stage("train"):
        assert samplers() == []
        assert tracker.stop("train") == {}


def test_log_metrics_shows_the_figures_in_megabytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer(tmp_path, **MEASURED)
    trainer.log_metrics("train", {"train_mem_cpu_alloc_delta": 3 * MEGABYTE})
    assert "train_mem_cpu_alloc_delta = 3MB" in " ".join(capsys.readouterr().out.split())


@pytest.mark.feature(91)
def test_the_default_objective_of_a_search_leaves_the_figures_out(tmp_path: Path) -> None:
    def best(**changes: Any) -> tuple[float, Any]:
        trainer = small_trainer(tmp_path / str(len(changes)), eval_strategy="no", **changes)
        found = trainer.hyperparameter_search({"learning_rate": Categorical([1e-2])}, n_trials=1, progress=False)
        [record] = found.run_summary.records
        return found.objective, record.reports[-1].metrics

    value, metrics = best(**MEASURED)
    assert set(figures(metrics)) >= of("eval")
    assert value == metrics["eval_accuracy"] == best()[0]
    assert sum_of_metrics(metrics) == metrics["eval_accuracy"]
    assert sum_of_metrics({"eval_loss": 0.5, **dict.fromkeys(INIT | of("init", "eval"), 1e9)}) == 0.5


def test_a_measured_trainer_is_still_one(tmp_path: Path) -> None:
    plain, measured = make_trainer(tmp_path), make_trainer(tmp_path, **MEASURED)
    assert isinstance(measured, Trainer)
    assert plain.train().training_loss == measured.train().training_loss
