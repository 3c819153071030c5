"""Population-based training: a trial goes on from the weights of another one with other parameters, and says so."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining
from transformers import TrainerCallback

from hpsearch import BestRun, Categorical, Float, SearchInterrupted, StudyError, TrialRecord
from tests.support.on_ray import ON_RAY, loss_of
from tests.support.scarce_memory import BATCH, Memory, NeedsMemory
from tests.support.searching import Diary, HearsNotices, states
from tests.support.small_trainer import TwoLayers, small_trainer

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_instance")]

# So small that nothing is learned; a perturbation draws 0.1, and nothing else.
TINY = {"learning_rate": Float(1e-9, 1e-8)}


def population(**changes: Any) -> PopulationBasedTraining:
    """Every second epoch, the worse half goes on from the better one at a learning rate of 0.1."""
    options = {
        "time_attr": "training_iteration",
        "perturbation_interval": 2,
        "quantile_fraction": 0.5,
        "resample_probability": 1.0,
        "hyperparam_mutations": {"learning_rate": [0.1]},
        **changes,
    }
    return PopulationBasedTraining(**options)


def search(folder: Path, n_trials: int, *callbacks: Any, trainer: Any = None, **options: Any) -> BestRun:
    """Search on Ray with a small trainer of six epochs."""
    options = {"compute_objective": "loss", "scheduler": population(), "preflight": False, **ON_RAY, **options}
    small = small_trainer(folder, *callbacks, **{"num_train_epochs": 6, **(trainer or {})})
    return small.hyperparameter_search(options.pop("hp_space", TINY), n_trials=n_trials, **options)


class SavesSlowly(TrainerCallback):
    """So that the last trial reports while others still write the checkpoints that it is to go on from."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 8:
            time.sleep(0.5)


def test_only_the_perturbed_learning_rate_learns_and_everything_says_so(tmp_path: Path) -> None:
    events, saving = HearsNotices(), {"save_strategy": "epoch"}
    options = {"scheduler": population(synch=True), "progress": events, "keep_checkpoints": None}
    best = search(tmp_path, 4, SavesSlowly(), trainer=saving, **options)
    records = best.run_summary.records
    assert states(best) == ["complete"] * 4
    assert best.hyperparameters == {"learning_rate": 0.1}
    assert loss_of(best.load_model()) == pytest.approx(best.objective, rel=1e-6)
    trainer = small_trainer(tmp_path, num_train_epochs=6, **saving)
    for record in records:
        assert [report.step for report in record.reports] == [4, 8, 12, 16, 20, 24]
        values = [report.value for report in record.reports]
        assert values[1] == pytest.approx(values[0], abs=1e-6)
        assert values[2] < values[1] - 0.05

        first, *others = record.schedule
        assert first["step"] == 0
        assert first["arguments"]["learning_rate"] < 1e-7
        assert [part["step"] for part in others] in ([8], [8, 16])
        assert [part["arguments"]["learning_rate"] for part in others] == [0.1] * len(others)
        assert record.schedule[-2]["trial"] != others[-1]["trial"] == record.number
        assert record.hyperparameters == {"learning_rate": 0.1}
        told = f"trial {record.number} resumes from trial {record.schedule[-2]['trial']}"
        assert sum(notice.startswith(told) for notice in events.notices) == 1

        again = trainer.replay(number=record.number, progress=False)
        assert again.is_equal, again.first_difference
        assert weights_in(again.record) == weights_in(record)
    assert "with learning_rate=0.1" in events.notices[0]
    stored = best.run_summary.engine_study.trials
    assert [trial.user_attrs["hpsearch:schedule"] for trial in stored] == [list(each.schedule) for each in records]


def weights_in(record: TrialRecord) -> bytes:
    assert record.checkpoint is not None
    return (record.checkpoint / "model.safetensors").read_bytes()


class WritesSteps(TrainerCallback):
    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._diary.write((Path(args.output_dir).name, state.global_step))


class EndsWhenAllHaveBegun(TrainerCallback):
    """A trial waits before its last epoch for those that have not begun, as a machine may be slow to start them."""

    def __init__(self, diary: Diary, trials: int, seconds: float = 60) -> None:
        self._diary, self._trials, self._seconds = diary, trials, seconds

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 20:
            until = time.monotonic() + self._seconds
            while time.monotonic() < until and len({run for run, _ in self._diary.read()}) < self._trials:
                time.sleep(0.05)


def build(trial: Any) -> TwoLayers:
    return TwoLayers(trial.suggest_int("hidden", 2, 9))


def test_a_population_that_is_larger_than_the_cluster_takes_turns_and_copies_models_of_any_shape(
    tmp_path: Path,
) -> None:
    diary = Diary(tmp_path / "diary")
    space = {"learning_rate": Float(1e-4, 1e-3)}
    callbacks = [WritesSteps(diary), EndsWhenAllHaveBegun(diary, 5)]
    best = search(tmp_path, 5, *callbacks, trainer={"model_init": build}, hp_space=space)
    records = best.run_summary.records
    assert states(best) == ["complete"] * 5
    assert [[report.step for report in record.reports] for record in records] == [[4, 8, 12, 16, 20, 24]] * 5
    steps = diary.read()
    until_one_is_done = steps[: next(place for place, (_, step) in enumerate(steps) if step == 24)]
    assert {run for run, _ in until_one_is_done} == {f"run-{number}" for number in range(5)}
    assert len({record.params["hidden"] for record in records}) > 1
    changed = [record for record in records if record.schedule]
    assert changed
    for record in changed:
        assert record.arguments == {"learning_rate": 0.1}
    assert loss_of(best.load_model()) == pytest.approx(best.objective, rel=1e-6)
    trainer = small_trainer(tmp_path, num_train_epochs=6, model_init=build)
    for record in records:
        again = trainer.replay(number=record.number, progress=False)
        assert again.is_equal, again.first_difference


class FailsAtTheEndOfAGoodRun(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.learning_rate == 0.1 and state.global_step == 18:
            raise RuntimeError("out of luck")


def test_under_scope_all_the_parameters_are_those_that_the_selected_weights_were_trained_with(tmp_path: Path) -> None:
    # At first the worse trial learns with 0.1. Then the other one goes on from it with a rate that ruins the model.
    rates = [0.1, 50.0]
    scheduler = population(synch=True, hyperparam_mutations={"learning_rate": lambda: rates.pop(0)})
    best = search(tmp_path, 2, FailsAtTheEndOfAGoodRun(), scheduler=scheduler, scope="all")
    assert sorted(states(best)) == ["complete", "failed"]
    record = best.run_summary.records[int(best.run_id)]
    assert record.arguments == {"learning_rate": 50.0}
    assert [part["step"] for part in record.schedule] == [0, 8, 16]
    values = [report.value for report in record.reports]
    assert best.objective == min(values) == min(values[2:4])
    assert max(values[4:]) > values[0]
    assert best.hyperparameters == {"learning_rate": 0.1}
    assert loss_of(best.load_model()) == pytest.approx(best.objective, rel=1e-6)
    again = small_trainer(tmp_path, num_train_epochs=6).replay(progress=False)
    assert again.is_equal, again.first_difference
    assert weights_in(again.record) == weights_in(record)


class InterruptsAfterAPerturbation(HearsNotices):
    """Ends the search at the first report of a perturbed trial, or as soon as a worker has taken it up."""

    def __init__(self, moment: str) -> None:
        super().__init__()
        self._moment = moment

    def on_report(self, trial: Any, report: Any) -> None:
        if self._is_perturbed(trial) and report.step > 8:
            raise KeyboardInterrupt

    def on_progress(self, trial: Any, step: int, max_steps: int) -> None:
        if self._is_perturbed(trial) and self._moment == "update":
            raise KeyboardInterrupt

    def _is_perturbed(self, trial: Any) -> bool:
        """The losses differ by rounding alone, which depends on the processor: either trial may be the worse one."""
        return any(each.startswith(f"trial {trial.number} resumes from") for each in self.notices)


@pytest.mark.parametrize("moment", ["report", "update"])
def test_a_trial_that_is_interrupted_goes_on_with_its_perturbed_parameters(tmp_path: Path, moment: str) -> None:
    interrupts = InterruptsAfterAPerturbation(moment)
    with pytest.raises(SearchInterrupted):
        search(tmp_path, 2, scheduler=population(synch=True), max_concurrent_trials=1, progress=interrupts)
    [notice] = interrupts.notices
    best = search(tmp_path, 2, scheduler=population(perturbation_interval=99))
    assert states(best) == ["complete"] * 2
    [record] = [record for record in best.run_summary.records if record.schedule]
    assert notice.startswith(f"trial {record.number} resumes from")
    assert [part["step"] for part in record.schedule] == [0, 8]
    assert record.hyperparameters == {"learning_rate": 0.1}
    assert record.reports[-1].value < record.reports[1].value - 0.05
    again = small_trainer(tmp_path, num_train_epochs=6).replay(number=record.number, progress=False)
    assert again.is_equal, again.first_difference


def test_a_constant_stays_and_what_only_the_scheduler_names_is_perturbed_also_after_an_interruption(
    tmp_path: Path,
) -> None:
    space = {"learning_rate": tune.uniform(1e-9, 1e-8), "weight_decay": 0.01, "adam_beta1": 0.8}
    mutations = {"learning_rate": [0.1], "max_grad_norm": [2.0, 3.0], "adam_beta2": lambda: 0.9}
    scheduler = population(synch=True, hyperparam_mutations=mutations)
    with pytest.raises(SearchInterrupted):
        search(tmp_path, 2, scheduler=scheduler, hp_space=space, progress=InterruptsAfterAPerturbation("report"))
    best = search(tmp_path, 2, scheduler=scheduler, hp_space=space)
    assert states(best) == ["complete"] * 2
    changed = [record for record in best.run_summary.records if record.schedule]
    assert changed
    constants = {"weight_decay": 0.01, "adam_beta1": 0.8}
    for record in best.run_summary.records:
        parts = [part["arguments"] for part in record.schedule] or [record.arguments]
        assert all(part.items() >= constants.items() for part in parts)
        assert all(part["max_grad_norm"] in (2.0, 3.0) and part["adam_beta2"] == 0.9 for part in parts)
    for record in changed:
        assert record.arguments["learning_rate"] == 0.1
        again = small_trainer(tmp_path, num_train_epochs=6).replay(number=record.number, progress=False)
        assert again.is_equal, again.first_difference


def tight_if_perturbed(trial: Any) -> NeedsMemory:
    return NeedsMemory(Memory(training=2 if trial.params["learning_rate"] == 0.1 else 1000))


def test_a_perturbed_trial_that_runs_out_of_memory_goes_on_in_smaller_batches(tmp_path: Path) -> None:
    trainer = {**BATCH, "model_init": tight_if_perturbed}
    best = search(tmp_path, 2, trainer=trainer, scheduler=population(synch=True), oom_fallback=True)
    assert states(best) == ["complete"] * 2
    changed = [record for record in best.run_summary.records if record.schedule]
    assert changed
    for record in changed:
        assert [each["arguments"]["per_device_train_batch_size"] for each in record.fallbacks] == [4, 2]


def as_numpy_has_it(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "learning_rate": np.float64(config["learning_rate"])}


def test_a_perturbation_by_numpy_is_recorded_as_a_number(tmp_path: Path) -> None:
    best = search(tmp_path, 2, scheduler=population(synch=True, custom_explore_fn=as_numpy_has_it))
    changed = [record for record in best.run_summary.records if record.schedule]
    assert changed
    for record in changed:
        assert type(record.arguments["learning_rate"]) is float
        again = small_trainer(tmp_path, num_train_epochs=6).replay(number=record.number, progress=False)
        assert again.is_equal, again.first_difference


def with_another_seed(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "seed": 7}


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({**TINY, "seed": Categorical([1])}, r"cannot resume with seed=7: 'seed' cannot change when a run resumes"),
        (TINY, r"custom_explore_fn\) may change only values, but 'seed' is in one of them"),
    ],
)
def test_a_function_that_perturbs_what_cannot_change_ends_the_search(tmp_path: Path, space: Any, message: str) -> None:
    scheduler = population(synch=True, perturbation_interval=1, custom_explore_fn=with_another_seed)
    with pytest.raises(StudyError, match=message):
        search(tmp_path, 2, scheduler=scheduler, hp_space=space)


def test_bayesian_perturbations_of_pb2_are_trained_with_and_repeat(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    from ray.tune.schedulers.pb2 import PB2

    scheduler = PB2(
        time_attr="training_iteration",
        perturbation_interval=2,
        quantile_fraction=0.5,
        hyperparam_bounds={"learning_rate": [0.05, 0.1]},
        synch=True,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scikit-learn: the process is fitted to few points
        best = search(tmp_path, 3, scheduler=scheduler)
    assert states(best) == ["complete"] * 3
    changed = [record for record in best.run_summary.records if record.schedule]
    # PB2 may take over the weights of a trial before it has the data to choose other parameters. Which trial that is
    # follows from the rounding of losses, which depends on the processor.
    explored = [record for record in changed if record.hyperparameters["learning_rate"] > 1e-8]
    assert explored
    for record in explored:
        assert 0.05 <= record.hyperparameters["learning_rate"] <= 0.1
        assert record.reports[-1].value < record.reports[0].value - 0.03
    for record in changed:
        again = small_trainer(tmp_path, num_train_epochs=6).replay(number=record.number, progress=False)
        assert again.is_equal, again.first_difference
