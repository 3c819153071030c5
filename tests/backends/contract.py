"""What every way of running trials must hold, seen through `hyperparameter_search` and through the storage.

Only what can differ between them is here: a trial's parameters, data and results on their way to another process and
back, failures, interruptions, kills, verdicts and budgets. `test_searches.py` has what holds of every search.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from transformers import TrainerCallback

from hpsearch import BestRun, SearchInterrupted, TrialRecord, TrialState
from hpsearch.search.store.study_folder import StudyFolder
from tests.support.all_fields import all_fields
from tests.support.models import weights_of
from tests.support.searching import (
    RATE,
    ROOT,
    AtStep,
    Diary,
    Events,
    StoredTrial,
    interrupt,
    scripted,
    states,
    stored_trials,
)
from tests.support.small_trainer import CountsModels, TwoLayers, small_trainer

# A trial is pruned once its best report is worse than all others at that point.
PRUNING = {"pruner": optuna.pruners.PercentilePruner(0.0, n_startup_trials=1)}
OF_SEARCH = (
    "preflight",
    *("compute_objective", "direction", "hp_name", "study_name", "scope", "keep_checkpoints", "timeout"),
    *("trial_timeout", "seed", "sampler", "pruner", "storage"),
)


class Searching:
    """Searches with a small trainer.

    Attributes:
        options: what `hyperparameter_search` needs to run the trials in this way, pruning off.
    """

    options: dict[str, Any] = {"backend": "optuna", "pruner": "none"}

    def search(self, folder: Path, space: Any = None, n_trials: int = 3, **changes: Any) -> BestRun:
        """Search with a small trainer; `changes` are of the search or of the trainer."""
        of_search = {name: changes.pop(name) for name in OF_SEARCH if name in changes}
        options = {"progress": False, **self.options, **of_search, **changes.pop("search", {})}
        trainer = small_trainer(folder, *changes.pop("callbacks", ()), **changes)
        return trainer.hyperparameter_search(RATE if space is None else space, n_trials=n_trials, **options)

    def stored(self, study: Path) -> list[StoredTrial]:
        """Read the trials of a study from the default storage, by number."""
        return stored_trials(study)

    def pruning_options(self) -> dict[str, Any]:
        return PRUNING


class WritesWeights(TrainerCallback):
    """Writes down the weights that are evaluated, and in which process."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        weights = {name: each.tolist() for name, each in weights_of(model).items()}
        run = Path(args.output_dir).name
        self._diary.write({"run": run, "step": state.global_step, "weights": weights, "pid": os.getpid()})


def build(trial: Any) -> TwoLayers:
    """Ask for a parameter; the second trial fails."""
    hidden = trial.suggest_int("hidden", 2, 9)
    if trial.number == 1:
        raise RuntimeError("out of luck")
    return TwoLayers(hidden)


def values_of_mixed() -> Any:
    """Return an objective for the trials of `Mixed`."""
    return scripted([0.5, 0.4, 0.3], [0.9], [0.4, 0.3, 0.2])


@dataclass
class Mixed:
    """A study of four trials: the first and the last complete, the second fails, the third is pruned."""

    folder: Path
    best: BestRun
    events: Events
    evaluated: list[dict[str, Any]]


def curve(record: TrialRecord) -> list[list[float]]:
    return [[report.step, *report.values, report.metrics["eval_loss"]] for report in record.reports]


class BackendContract(Searching):
    """Inherited by the tests of each way of running trials.

    Trials may run in another process, with a copy of the trainer and of all that it holds: what happened in a trial is
    read from the records, the storage, a listener or a `Diary`, never from an object that was in the trial.

    Attributes:
        budget_seconds: in which the first trial of a search begins, unless the machine is very busy.
        is_in_this_process: whether trials run in the process that searches.
        has_ray: whether they run on Ray.
        tolerance: by how much values may differ from those of a search in one process.
    """

    budget_seconds = 2.0
    is_in_this_process = True
    has_ray = False
    tolerance = 0.0

    @pytest.fixture(scope="class")
    @classmethod
    def mixed(cls, tmp_path_factory: pytest.TempPathFactory) -> Mixed:
        folder, events = tmp_path_factory.mktemp("mixed"), Events()
        diary = Diary(folder / "diary")
        best = cls().search(
            folder,
            n_trials=4,
            num_train_epochs=3,
            compute_objective=values_of_mixed(),
            direction="minimize",
            model_init=build,
            callbacks=[WritesWeights(diary)],
            search={"progress": events, **PRUNING},
        )
        return Mixed(folder, best, events, diary.read())

    @pytest.mark.smoke
    @pytest.mark.feature(9, 10)
    def test_trials_complete_fail_and_are_pruned_and_a_failure_says_why(self, mixed: Mixed) -> None:
        assert states(mixed.best) == ["complete", "failed", "pruned", "complete"]
        _, failed, pruned, _ = mixed.best.run_summary.records
        assert failed.reason.removesuffix(" (in process 1)") == "RuntimeError: out of luck"  # of several, the first one
        assert "in build" in failed.traceback
        assert failed.value is None
        assert "pruned after 1 epoch" in pruned.reason
        assert len(pruned.reports) == 1
        assert pruned.checkpoint is None
        assert [record.number for record in mixed.events.ended] == [0, 1, 2, 3]

    @pytest.mark.feature(3)
    def test_what_is_suggested_reaches_the_trial_and_the_result_comes_back(self, mixed: Mixed) -> None:
        records = mixed.best.run_summary.records
        assert mixed.events.begun == [{"learning_rate": record.params["learning_rate"]} for record in records]
        assert [record.arguments for record in records] == mixed.events.begun
        for each in mixed.evaluated:
            record = records[int(each["run"].split("-")[1])]
            assert len(each["weights"]["hidden.bias"]) == record.params["hidden"]
            assert (each["pid"] == os.getpid()) is self.is_in_this_process
            assert each["step"] in [report.step for report in record.reports]
        assert len(mixed.evaluated) == 3 + 1 + 3

    def test_the_storage_and_the_disk_have_the_same_records(self, mixed: Mixed) -> None:
        records = mixed.best.run_summary.records
        read = StudyFolder(mixed.best.run_summary.study).read_records()
        assert [*map(all_fields, read)] == [*map(all_fields, records)]
        stored = self.stored(mixed.folder / "study")
        assert [each.number for each in stored] == [0, 1, 2, 3]
        for each, record in zip(stored, records, strict=True):
            assert (each.state, each.params) == (record.state.value, record.params)
            assert each.resources == [int(report.resource) for report in record.reports]
            assert each.value == (record.value if record.state is TrialState.COMPLETE else None)
        assert stored[1].notes["reason"] == records[1].reason

    @pytest.mark.feature(11)
    def test_the_loaded_model_is_the_best_one_that_was_evaluated(self, mixed: Mixed) -> None:
        best = mixed.best
        assert (best.run_id, best.objective) == ("3", 0.2)
        assert best.hyperparameters == best.run_summary.records[3].params
        assert best.checkpoint == mixed.folder / "study" / "run-3" / "checkpoint-12"
        model = best.load_model()
        (expected,) = (
            each["weights"] for each in mixed.evaluated if (each["run"], each["step"]) == (f"run-{best.run_id}", 12)
        )
        assert all(torch.equal(weights, torch.tensor(expected[name])) for name, weights in weights_of(model).items())
        assert [path.parent.name for path in (mixed.folder / "study").glob("*/checkpoint-*")] == [f"run-{best.run_id}"]

    def test_the_trials_are_those_of_a_search_in_one_process(self, mixed: Mixed, tmp_path: Path) -> None:
        alone = Searching().search(
            tmp_path,
            n_trials=4,
            num_train_epochs=3,
            compute_objective=values_of_mixed(),
            direction="minimize",
            model_init=build,
            search=PRUNING,
        )
        for here, there in zip(mixed.best.run_summary.records, alone.run_summary.records, strict=True):
            assert (here.params, here.seed, here.epochs) == (there.params, there.seed, there.epochs)
            assert here.value == (there.value and pytest.approx(there.value, abs=self.tolerance))
            for ours, theirs in zip(curve(here), curve(there), strict=True):
                assert ours == pytest.approx(theirs, abs=self.tolerance)

    @pytest.mark.feature(10)
    @pytest.mark.parametrize("where", ["callback", "model_init", "listener"])
    def test_an_interrupted_trial_runs_again_and_the_total_is_kept(self, tmp_path: Path, where: str) -> None:
        def interrupt_second(trial: Any) -> None:
            if where == "model_init" and trial.number == 1:
                raise KeyboardInterrupt

        class InterruptsAfterTheFirst(Events):
            def on_trial_begin(self, trial: Any) -> None:
                if where == "listener" and trial.number == 1:
                    raise KeyboardInterrupt
                super().on_trial_begin(trial)

        callbacks = [AtStep(interrupt, run=1, step=2)] if where == "callback" else []
        events = InterruptsAfterTheFirst()
        with pytest.raises(SearchInterrupted) as caught:
            self.search(
                tmp_path,
                n_trials=3,
                callbacks=callbacks,
                model_init=CountsModels(interrupt_second),
                search={"progress": events},
            )
        assert events.is_over
        assert "1 of 3 trials" in str(caught.value)
        assert "again" in str(caught.value)
        assert str(tmp_path / "study") in str(caught.value)
        assert caught.value.best_run.run_id == "0"
        assert caught.value.best_run.load_model() is not None
        interrupted = caught.value.best_run.run_summary.records[1]
        assert interrupted.state is TrialState.INTERRUPTED

        events = Events()
        best = self.search(tmp_path, n_trials=3, search={"progress": events})
        assert len(events.begun) == 2
        assert events.begun[0] == interrupted.params
        assert events.begun[1] != interrupted.params
        assert states(best) == ["complete", "complete", "complete"]
        assert best.run_summary.records[1].params == interrupted.params

    KILLED = """
        import contextlib, os, signal, sys, time, torch
        torch.set_num_threads(1)
        from pathlib import Path
        from tests.support.searching import AtStep
        from tests.support.warm_workers import warm_workers
        from {module} import {backend}
        {setup}
        searching = os.getpid()

        def kill():
            os.kill(searching, signal.SIGKILL)
            time.sleep(60)  # a trial in a process of its own does nothing more until the backend ends it

        options = dict(compute_objective="loss", save_strategy="epoch", {options})
        with warm_workers() if {is_warm} else contextlib.nullcontext():
            {backend}().search(Path(sys.argv[1]), n_trials=3, callbacks=[AtStep(kill, {run}, 5)], **options)
    """

    def run_until_killed(self, folder: Path, setup: str = "", run: int = 1, options: str = "") -> None:
        """Search in another process, which is killed: after step 5 of its second trial, or where `setup` says."""
        backend = type(self)
        code = textwrap.dedent(self.KILLED).format(
            module=backend.__module__,
            backend=backend.__name__,
            setup=setup,
            run=run,
            options=options,
            is_warm=self.has_ray,
        )
        died = subprocess.run(
            [sys.executable, "-c", code, str(folder)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert died.returncode == -signal.SIGKILL, died.stderr

    @pytest.fixture(scope="class")
    @classmethod
    def killed_study(cls, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
        """A study whose process was killed in its second trial, and what became of it afterwards."""
        self, folder = cls(), tmp_path_factory.mktemp("killed")
        self.run_until_killed(folder)
        left = self.stored(folder / "study")
        on_disk = {path.parent.name for path in (folder / "study").glob("*/trial.json")}
        events = Events()
        best = self.search(
            folder, n_trials=3, compute_objective="loss", save_strategy="epoch", search={"progress": events}
        )
        return {"folder": folder, "left": left, "on_disk": on_disk, "best": best, "events": events}

    @pytest.mark.process
    def test_a_killed_process_leaves_a_running_trial_and_the_finished_one(self, killed_study: dict[str, Any]) -> None:
        assert [each.state for each in killed_study["left"]] == ["complete", "running"]
        assert killed_study["on_disk"] == {"run-0", "run-1"}

    @pytest.mark.process
    def test_after_a_kill_the_half_done_trial_runs_again_and_the_total_is_kept(
        self, killed_study: dict[str, Any]
    ) -> None:
        events, best = killed_study["events"], killed_study["best"]
        assert len(events.begun) == 2
        assert events.begun[0] == killed_study["left"][1].params
        assert states(best).count("complete") == 3
        stored = self.stored(killed_study["folder"] / "study")
        assert "running" not in [each.state for each in stored]
        assert best.objective == min(record.value for record in best.run_summary.records if record.value is not None)

    @pytest.mark.process
    def test_after_a_kill_the_storage_and_the_disk_know_the_same_trials(self, killed_study: dict[str, Any]) -> None:
        best = killed_study["best"]
        stored = self.stored(killed_study["folder"] / "study")
        assert [each.number for each in stored] == [
            record.number for record in StudyFolder(best.run_summary.study).read_records()
        ]
        assert states(best) == ["complete"] * 3
        assert stored[1].params == killed_study["left"][1].params

    def test_time_that_is_over_stops_a_running_trial_at_its_next_step(self, tmp_path: Path) -> None:
        for seconds in (self.budget_seconds, 5 * self.budget_seconds):
            diary = Diary(tmp_path / f"steps-{seconds}")
            slow = StaysUntilTimeIsOver(diary, seconds)
            best = self.search(
                tmp_path / str(seconds), n_trials=1, callbacks=[slow], num_train_epochs=50, timeout=seconds
            )
            if diary.read():
                break  # else the time was over before the trial had begun: again, with more of it
        assert diary.read()[-1] == max(diary.read()[0], 5)
        assert states(best) == ["stopped"]
        (record,) = best.run_summary.records
        assert f"timeout of {seconds} s is over" in record.reason
        assert best.run_id == "0"
        assert best.load_model() is not None


class StaysUntilTimeIsOver(TrainerCallback):
    """Writes down the steps from the fifth on, after the first evaluation; stays at it for so long."""

    def __init__(self, diary: Diary, seconds: float) -> None:
        self._diary, self._seconds = diary, seconds

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= 5:
            self._diary.write(state.global_step)
            time.sleep(self._seconds)
