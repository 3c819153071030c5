"""The Optuna backend holds the contract, and takes any sampler, pruner and storage of Optuna."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend

from hpsearch import Categorical, Float, Int, NoCompletedTrialError, SearchInterrupted, StudyError
from hpsearch.ledger.quiet import quiet_optuna
from tests.backends.contract import BackendContract
from tests.support.optuna_logging import optuna_logs
from tests.support.searching import (
    RATE,
    AtStep,
    Events,
    HearsNotices,
    interrupt,
    load,
    scripted,
    states,
)
from tests.support.small_trainer import small_trainer


class TestOptuna(BackendContract):
    """One trial after the other, in this process."""

    @pytest.mark.feature(8)
    @pytest.mark.parametrize(
        ("kind", "make"),
        [
            ("InMemoryStorage", lambda folder: optuna.storages.InMemoryStorage()),
            ("JournalStorage", lambda folder: optuna.storages.JournalStorage(JournalFileBackend(str(folder / "log")))),
            ("RDBStorage", lambda folder: optuna.storages.RDBStorage(f"sqlite:///{folder / 'mine.db'}")),
            ("mine.db", lambda folder: f"sqlite:///{folder / 'mine.db'}"),
        ],
    )
    def test_any_storage_is_accepted_and_goes_on(self, tmp_path: Path, kind: str, make: Callable[[Path], Any]) -> None:
        storage = make(tmp_path)
        self.search(tmp_path, n_trials=2, storage=storage)
        best = self.search(tmp_path, n_trials=3, storage=storage)
        assert states(best) == ["complete"] * 3
        kept = load(tmp_path / "study", storage)
        assert [each.params for each in kept.trials] == [record.params for record in best.run_summary.records]
        assert [each.value for each in kept.trials] == [record.value for record in best.run_summary.records]
        assert not (tmp_path / "study" / "study.db").exists()

    def test_a_journal_file_goes_on_when_it_is_opened_anew(self, tmp_path: Path) -> None:
        for n_trials in (1, 3):
            storage = optuna.storages.JournalStorage(JournalFileBackend(str(tmp_path / "log")))
            best = self.search(tmp_path, n_trials=n_trials, storage=storage)
        assert [record.number for record in best.run_summary.records] == [0, 1, 2]

    @pytest.mark.feature(8)
    def test_the_sampler_of_the_user_chooses(self, tmp_path: Path) -> None:
        sampler = optuna.samplers.GridSampler({"per_device_train_batch_size": [2, 4, 8]}, seed=1)
        events = Events()
        best = self.search(
            tmp_path,
            {"per_device_train_batch_size": Categorical([2, 4, 8])},
            3,
            sampler=sampler,
            search={"progress": events},
        )
        chosen = [record.params["per_device_train_batch_size"] for record in best.run_summary.records]
        assert sorted(chosen) == [2, 4, 8]
        assert "sampler GridSampler" in events.notes

    @pytest.mark.feature(8)
    def test_a_sampler_may_be_named_and_gets_the_seed_of_the_study(self, tmp_path: Path) -> None:
        events = Events()
        best = self.search(tmp_path / "name", n_trials=3, sampler="random", search={"progress": events, "seed": 5})
        assert "sampler RandomSampler" in events.notes
        same = self.search(
            tmp_path / "object", n_trials=3, sampler=optuna.samplers.RandomSampler(seed=5), search={"seed": 6}
        )
        assert [each.params for each in best.run_summary.records] == [each.params for each in same.run_summary.records]

    @pytest.mark.feature(8)
    @pytest.mark.parametrize("name", ["median", "none", "successive_halving", "hyperband"])
    def test_a_pruner_may_be_named(self, tmp_path: Path, name: str) -> None:
        events = Events()
        best = self.search(tmp_path, n_trials=2, pruner=name, search={"progress": events})
        said = {
            "median": "MedianPruner",
            "none": "none: every trial runs to completion",
            "successive_halving": "SuccessiveHalvingPruner",
            "hyperband": "HyperbandPruner",
        }
        assert f"pruner {said[name]}" in events.notes
        assert len(best.run_summary.records) == 2

    @pytest.mark.feature(9)
    def test_the_default_pruner_and_sampler_are_said_and_recorded(self, tmp_path: Path) -> None:
        events = Events()
        small_trainer(tmp_path).hyperparameter_search(RATE, n_trials=4, progress=events)
        told = "; ".join(events.notes)
        for text in ("sampler CurveSampler", "every 8th run to completion (default; pruner=None trains", "scope last"):
            assert text in told
        assert str(tmp_path / "study" / "study.db") in told
        recorded = json.loads((tmp_path / "study" / "study.json").read_text())
        assert recorded["sampler"] == "CurveSampler"
        assert recorded["pruner"] == "rungs"
        assert recorded["optuna_version"] == optuna.__version__

    @pytest.mark.feature(13)
    def test_the_summary_holds_the_study_of_optuna(self, tmp_path: Path) -> None:
        best = self.search(tmp_path, n_trials=2)
        assert isinstance(best.run_summary.engine_study, optuna.Study)
        assert best.run_summary.engine_study.best_trial.number == int(best.run_id)
        assert best.run_summary.engine_study.best_value == best.objective

    def test_the_reason_of_a_failure_is_in_the_user_attributes(self, tmp_path: Path) -> None:
        def model_init(trial: Any) -> Any:
            raise MemoryError("80 GB are not enough")

        with pytest.raises(NoCompletedTrialError):
            self.search(tmp_path, n_trials=1, model_init=model_init)
        (trial,) = load(tmp_path / "study").trials
        assert trial.state.name == "FAIL"
        assert trial.user_attrs["hpsearch:reason"] == "MemoryError: 80 GB are not enough"

    @pytest.mark.feature(9)
    def test_reports_are_compared_at_equal_epochs_whatever_the_batch_size(self, tmp_path: Path) -> None:
        sampler = optuna.samplers.GridSampler({"per_device_train_batch_size": [2, 8]}, seed=1)
        self.search(
            tmp_path, {"per_device_train_batch_size": Categorical([2, 8])}, 2, sampler=sampler, num_train_epochs=3
        )
        trials = load(tmp_path / "study").trials
        assert {each.params["per_device_train_batch_size"] for each in trials} == {2, 8}
        assert [sorted(each.intermediate_values) for each in trials] == [[1, 2, 3], [1, 2, 3]]

    def test_another_direction_in_the_storage_is_refused(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'mine.db'}"
        self.search(tmp_path / "a", n_trials=1, storage=url, compute_objective="loss")
        with pytest.raises(StudyError, match="direction='minimize', now 'maximize'"):
            self.search(tmp_path / "b", n_trials=1, storage=url, compute_objective="accuracy")

    def test_a_storage_that_knows_more_than_the_folder_is_not_a_silent_empty_result(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'mine.db'}"
        self.search(tmp_path / "a", n_trials=2, storage=url)
        try:
            best = self.search(tmp_path / "b", n_trials=2, storage=url)
        except StudyError:
            return
        assert best.run_id is not None

    @pytest.mark.parametrize("objective", ["loss", lambda metrics: 1.0])
    def test_importances_are_shares_of_every_parameter(self, tmp_path: Path, objective: Any) -> None:
        space = {"learning_rate": Float(1e-3, 1e-1), "weight_decay": Float(0.0, 0.1)}
        best = self.search(tmp_path, space, 8, num_train_epochs=1, compute_objective=objective, direction="minimize")
        found = best.run_summary.importances()
        assert set(found) == set(space)
        assert sum(found.values()) == pytest.approx(1.0)
        assert all(0.0 <= share <= 1.0 for share in found.values())
        assert list(found.values()) == sorted(found.values(), reverse=True)

    def test_too_few_trials_tell_no_importances(self, tmp_path: Path) -> None:
        assert self.search(tmp_path, n_trials=1).run_summary.importances() == {}

    def test_the_dashboard_opens_the_storage_on_this_machine_only(self, tmp_path: Path) -> None:
        command = self.search(tmp_path, n_trials=1).run_summary.dashboard_command()
        program, *arguments = command.split()
        assert program.endswith("optuna-dashboard")
        assert arguments == ["--host", "127.0.0.1", f"sqlite:///{tmp_path / 'study' / 'study.db'}"]
        in_memory = self.search(tmp_path, n_trials=1, study_name="memory", storage=optuna.storages.InMemoryStorage())
        assert in_memory.run_summary.dashboard_command() is None

    def test_an_interrupted_trial_is_a_running_one_that_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(SearchInterrupted):
            self.search(tmp_path, n_trials=2, callbacks=[AtStep(interrupt, run=0, step=1)])
        trial = load(tmp_path / "study").trials[0]
        assert trial.state.name == "RUNNING"
        assert trial.user_attrs["hpsearch:state"] == "interrupted"
        assert trial.user_attrs["hpsearch:reason"] == "interrupted by the user"

    @pytest.mark.process
    def test_a_trial_that_ended_just_before_its_process_was_killed_is_not_repeated(self, tmp_path: Path) -> None:
        setup = "; ".join(
            [
                "import optuna",
                "kill_now = lambda *a: os.kill(os.getpid(), signal.SIGKILL) if a[2].number == 1 else None",
                "Killing = type('Killing', (optuna.samplers.RandomSampler,), {'after_trial': kill_now})",
            ]
        )
        self.run_until_killed(tmp_path, setup, run=99, options="sampler=Killing(seed=1), pruner='none'")
        study = tmp_path / "study"
        assert [each.state for each in self.stored(study)] == ["complete", "running"]
        assert (study / "run-1" / "trial.json").exists()
        events = Events()
        best = self.search(tmp_path, n_trials=2, compute_objective="loss", search={"progress": events})
        assert events.begun == []
        assert states(best) == ["complete", "complete"]
        assert [each.state for each in self.stored(study)] == ["complete", "complete"]
        assert json.loads((study / "best.json").read_text())["trial"] == int(best.run_id)
        left = [path.parent.name for path in study.glob("run-*/checkpoint-*")]
        assert left == [f"run-{best.run_id}"]

    def test_logging_of_optuna_is_as_it_was_after_a_search(self, tmp_path: Path) -> None:
        level = optuna.logging.get_verbosity()
        self.search(tmp_path, n_trials=1, compute_objective=scripted([0.5, 0.5]), direction="minimize")
        assert optuna.logging.get_verbosity() == level

    def test_optuna_is_silent_until_the_outermost_block_ends_however_it_ends(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = optuna.logging.get_logger("optuna.made.afterwards")
        with optuna_logs(optuna.logging.INFO), caplog.at_level("INFO"):
            with contextlib.suppress(KeyError), quiet_optuna():
                with quiet_optuna():
                    log.info("inner")
                log.info("outer")
                log.warning("warned")
                raise KeyError
            log.info("after")
            with quiet_optuna():
                log.info("again")
            assert optuna.logging.get_verbosity() == optuna.logging.INFO
        assert list(dict.fromkeys(record.message for record in caplog.records)) == ["warned", "after"]


def search(folder: Path, n_trials: int, **options: Any) -> Any:
    return small_trainer(folder).hyperparameter_search(RATE, n_trials=n_trials, progress=False, **options)


@pytest.mark.feature(8)
def test_options_that_scripts_pass_on_to_optuna_are_taken_and_one_notice_says_what_the_search_does(
    tmp_path: Path,
) -> None:
    heard = HearsNotices()
    harmless = {"gc_after_trial": True, "catch": (ValueError,), "show_progress_bar": False}
    options = {"load_if_exists": True, "n_jobs": 1, "study_name": "mine", "progress": heard, **harmless}
    assert small_trainer(tmp_path).hyperparameter_search(RATE, n_trials=1, preflight=False, **options).objective
    [notice] = heard.notices
    assert notice.startswith("Options of optuna, and what the search does: gc_after_trial: the memory of a trial")
    assert all(f"{name}: " in notice for name in harmless)


def test_all_options_that_are_refused_are_named_in_one_error(tmp_path: Path) -> None:
    with pytest.raises(StudyError) as caught:
        search(tmp_path, n_trials=1, scheduler="asha", samplr=7, gc_after_trial=True, paused_memory=1, storage=None)
    first, *lines, last = str(caught.value).splitlines()
    assert first == "hyperparameter_search(backend='optuna') does not take 3 of its options:"
    assert lines[:2] == [
        "  scheduler='asha' is not taken: pass pruner (or backend='ray').",
        "  samplr=7 is unknown. Did you mean 'sampler'?",
    ]
    assert lines[2].startswith("  paused_memory=1 was removed: ")
    assert last.startswith("The optuna backend takes 'devices', ")
    assert not (tmp_path / "study").exists()


def test_a_study_that_must_be_new_is_refused_if_the_storage_has_it(tmp_path: Path) -> None:
    search(tmp_path, n_trials=1)
    with pytest.raises(StudyError, match=r"load_if_exists=False.*with 1 trials"):
        search(tmp_path, n_trials=2, load_if_exists=False)


def test_parameters_are_drawn_from_the_distributions_that_they_describe(tmp_path: Path) -> None:
    space = {
        "learning_rate": Float(1e-5, 1e-2, log=True),
        "weight_decay": Float(0.0, 0.3, step=0.1),
        "gradient_accumulation_steps": Int(1, 4, log=True),
        "per_device_train_batch_size": Int(2, 8, step=2),
        "optim": Categorical(["adamw_torch", "sgd"]),
    }
    small_trainer(tmp_path).hyperparameter_search(space, n_trials=1, progress=False)
    assert load(tmp_path / "study").trials[0].distributions == {
        "learning_rate": optuna.distributions.FloatDistribution(1e-5, 1e-2, log=True),
        "weight_decay": optuna.distributions.FloatDistribution(0.0, 0.3, step=0.1),
        "gradient_accumulation_steps": optuna.distributions.IntDistribution(1, 4, log=True),
        "per_device_train_batch_size": optuna.distributions.IntDistribution(2, 8, step=2),
        "optim": optuna.distributions.CategoricalDistribution(["adamw_torch", "sgd"]),
    }
