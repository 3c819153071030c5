"""What holds of every search, whoever runs its trials: tested once, in this process."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from hpsearch import (
    BestRun,
    Categorical,
    Float,
    Int,
    SearchInterrupted,
    SearchSpace,
    StudyError,
    TrialState,
)
from hpsearch.search.store.study_folder import StudyFolder
from tests.backends.contract import Searching
from tests.support.all_fields import all_fields
from tests.support.clock import Clock
from tests.support.clock import clock as clock
from tests.support.models import weights_of
from tests.support.searching import (
    AtStep,
    Diary,
    Events,
    interrupt,
    scripted,
    states,
    storage_in_memory,
    without_result,
)
from tests.support.small_trainer import CountsModels, TwoLayers, small_trainer


class TestSearches(Searching):
    """Its searches are the simplest ones there are: one trial after the other, in this process."""

    # Spaces.

    @pytest.mark.feature(9)
    def test_a_static_space_gives_values_inside_it(self, tmp_path: Path) -> None:
        space = SearchSpace(
            {
                "learning_rate": Float(1e-3, 1e-1, log=True),
                "weight_decay": Float(0.0, 0.3, step=0.1),
                "num_train_epochs": Int(1, 2),
                "per_device_train_batch_size": Categorical([4, 8]),
            }
        )
        events = Events()
        best = self.search(tmp_path, space, 8, search={"progress": events})
        assert len(best.run_summary.records) == 8
        for record in best.run_summary.records:
            assert space.contains(record.params)
            assert record.state is TrialState.COMPLETE
            assert record.reports[-1].epoch == record.params["num_train_epochs"]
        assert events.begun == [record.params for record in best.run_summary.records]
        assert len({record.params["learning_rate"] for record in best.run_summary.records}) == 8

    def test_a_branch_is_suggested_only_under_its_choice(self, tmp_path: Path) -> None:
        momentum = {"optim.momentum": Float(0.1, 0.9)}
        nested = {**momentum, "optim.nesterov": Categorical({False: {"optim.dampening": Float(0.1, 0.2)}, True: {}})}
        space = SearchSpace({"optim": Categorical({"adamw_torch": {}, "sgd": nested})})
        best = self.search(
            tmp_path, space, 32, num_train_epochs=1, compute_objective=lambda metrics: 0.0, direction="minimize"
        )
        assert states(best) == ["complete"] * 32
        seen = {tuple(sorted(record.params)) for record in best.run_summary.records}
        assert seen == {
            ("optim",),
            ("optim", "optim.momentum", "optim.nesterov"),
            ("optim", "optim.dampening", "optim.momentum", "optim.nesterov"),
        }
        for record, stored in zip(best.run_summary.records, self.stored(tmp_path / "study"), strict=True):
            assert space.contains(record.params)
            assert stored.params == record.params

    @pytest.mark.feature(5)
    def test_a_define_by_run_function_may_return_the_arguments(self, tmp_path: Path) -> None:
        def space(trial: Any) -> dict[str, Any]:
            return {"learning_rate": 10.0 ** trial.suggest_int("exponent", -3, -1), "weight_decay": Float(0.0, 0.1)}

        best = self.search(tmp_path, space)
        for record in best.run_summary.records:
            assert record.state is TrialState.COMPLETE
            assert set(record.arguments) == {"learning_rate", "weight_decay"}
            assert record.arguments["learning_rate"] == 10.0 ** record.params["exponent"]
        assert set(best.hyperparameters) == {"learning_rate", "weight_decay"}

    @pytest.mark.feature(5)
    def test_a_define_by_run_function_may_return_nothing(self, tmp_path: Path) -> None:
        def space(trial: Any) -> None:
            if trial.suggest_categorical("optim", ["adamw_torch", "sgd"]) == "sgd":
                trial.suggest_float("optim.momentum", 0.0, 0.9)

        best = self.search(tmp_path, space, 8)
        assert states(best) == ["complete"] * 8
        for record in best.run_summary.records:
            assert ("optim.momentum" in record.arguments) is (record.arguments["optim"] == "sgd")
        assert {record.arguments["optim"] for record in best.run_summary.records} == {"adamw_torch", "sgd"}

    def test_a_define_by_run_function_may_return_numbers_of_numpy(self, tmp_path: Path) -> None:
        def space(trial: Any) -> dict[str, Any]:
            exponent = np.int64(trial.suggest_int("exponent", 1, 2))
            return {"per_device_train_batch_size": np.int64(2) ** exponent, "weight_decay": np.float32(0.5)}

        best = self.search(tmp_path, space, 2)
        assert states(best) == ["complete"] * 2
        assert best.hyperparameters["weight_decay"] == 0.5

    @pytest.mark.feature(3)
    def test_model_init_may_suggest(self, tmp_path: Path) -> None:
        diary = Diary(tmp_path / "built")

        def model_init(trial: Any) -> TwoLayers:
            hidden = trial.suggest_int("hidden", 2, 9)
            diary.write(hidden)
            return TwoLayers(hidden)

        best = self.search(tmp_path, n_trials=4, model_init=model_init)
        in_preflight, *built = diary.read()
        assert in_preflight == built[0]
        assert [record.params["hidden"] for record in best.run_summary.records] == built
        assert [stored.params["hidden"] for stored in self.stored(tmp_path / "study")] == built
        assert all("hidden" not in record.arguments for record in best.run_summary.records)
        assert best.load_model().hidden.out_features == best.hyperparameters["hidden"]

    def test_equal_looking_choices_stay_apart_or_are_refused(self, tmp_path: Path) -> None:
        try:
            best = self.search(tmp_path, lambda trial: {"seed": 1 + trial.suggest_categorical("x", (1, True, 1.0))}, 6)
        except ValueError:
            return
        kinds = [type(record.params["x"]) for record in best.run_summary.records]
        assert [type(stored.params["x"]) for stored in self.stored(tmp_path / "study")] == kinds

    # Seeds and records.

    def test_the_same_seed_gives_the_same_trials(self, tmp_path: Path) -> None:
        random.seed(1)
        first = self.search(tmp_path / "a", n_trials=12, seed=7, num_train_epochs=1)
        np.random.seed(2)
        random.seed(2)
        torch.manual_seed(2)
        second = self.search(tmp_path / "b", n_trials=12, seed=7, num_train_epochs=1)
        other = self.search(tmp_path / "c", n_trials=2, seed=8, num_train_epochs=1)
        told = [
            [(record.params, record.value, record.seed) for record in best.run_summary.records]
            for best in (first, second, other)
        ]
        assert told[0] == told[1]
        assert told[0][:2] != told[2]

    def test_a_session_that_goes_on_does_not_suggest_the_first_ones_again(self, tmp_path: Path) -> None:
        self.search(tmp_path, n_trials=3)
        best = self.search(tmp_path, n_trials=6)
        assert len({record.params["learning_rate"] for record in best.run_summary.records}) == 6

    @pytest.mark.feature(9)
    def test_the_storage_and_the_disk_tell_the_same(self, tmp_path: Path) -> None:
        def fail_in_the_second(trial: Any) -> None:
            if trial.number == 1:
                raise RuntimeError("out of luck")

        best = self.search(tmp_path, n_trials=4, model_init=CountsModels(fail_in_the_second))
        stored, kept = self.stored(tmp_path / "study"), StudyFolder(best.run_summary.study).read_records()
        assert [each.number for each in stored] == [0, 1, 2, 3] == [record.number for record in kept]
        assert [*map(all_fields, kept)] == [*map(all_fields, best.run_summary.records)]
        for each, record in zip(stored, kept, strict=True):
            assert (each.state, each.value) == (record.state.value, record.value)
            assert each.params == {name: record.params[name] for name in each.params}
            assert each.resources == [int(report.resource) for report in record.reports]
            if record.number != 1:
                assert each.resources == [1, 2]

    def test_a_failed_trial_is_recorded_with_its_reason_and_the_search_goes_on(self, tmp_path: Path) -> None:
        def fail_in_the_second(trial: Any) -> None:
            if trial.number == 1:
                raise RuntimeError("out of luck")

        events = Events()
        init = CountsModels(fail_in_the_second)
        best = self.search(tmp_path, n_trials=3, model_init=init, search={"progress": events})
        assert states(best) == ["complete", "failed", "complete"]
        failed = best.run_summary.records[1]
        assert failed.reason == "RuntimeError: out of luck"
        assert "fail_in_the_second" in failed.traceback
        assert failed.value is None
        assert self.stored(tmp_path / "study")[1].notes["reason"] == failed.reason
        assert self.stored(tmp_path / "study")[1].state == "failed"
        assert [record.number for record in events.ended] == [0, 1, 2]

    def test_a_trial_whose_objective_is_never_finite_fails_and_says_so(self, tmp_path: Path) -> None:
        objective = scripted([float("nan"), float("nan")], [0.5, float("nan")], [float("inf"), 0.25])
        options = {"direction": "minimize", "sampler": "random"}  # which does not ask the objective again
        best = self.search(tmp_path, n_trials=3, compute_objective=objective, **options)
        assert states(best) == ["failed", "complete", "complete"]
        assert "never finite" in best.run_summary.records[0].reason
        assert [record.value for record in best.run_summary.records] == [None, 0.5, 0.25]
        assert self.stored(tmp_path / "study")[2].value == 0.25

    def test_a_study_without_a_result_says_why(self, tmp_path: Path) -> None:
        def fail(trial: Any) -> None:
            raise RuntimeError("out of luck")

        error = without_result(self.search, tmp_path, n_trials=2, model_init=CountsModels(fail), preflight=False)
        assert re.search(r"2 failed.*trial 0: RuntimeError: out of luck \(.*, in fail\)", str(error))

    # Totals and interruptions.

    def test_n_trials_is_the_total_of_the_study(self, tmp_path: Path) -> None:
        diary = Diary(tmp_path / "built")
        init = CountsModels(lambda trial: diary.write(trial.number))
        self.search(tmp_path, n_trials=2, model_init=init, preflight=False)
        assert diary.read() == [0, 1]
        best = self.search(tmp_path, n_trials=5, model_init=init)
        assert diary.read() == [0, 1, 2, 3, 4]
        assert [record.number for record in best.run_summary.records] == [0, 1, 2, 3, 4]
        again = self.search(tmp_path, n_trials=5, model_init=init)
        assert diary.read() == [0, 1, 2, 3, 4]
        assert (again.run_id, again.objective, again.checkpoint) == (best.run_id, best.objective, best.checkpoint)
        assert again.load_model() is not None

    def test_failed_trials_count(self, tmp_path: Path) -> None:
        diary = Diary(tmp_path / "built")

        def fail_at_first(trial: Any) -> None:
            diary.write(trial.number)
            if trial.number == 0:
                raise RuntimeError("out of luck")

        init = CountsModels(fail_at_first)
        self.search(tmp_path, n_trials=2, model_init=init, preflight=False)
        self.search(tmp_path, n_trials=2, model_init=init)
        assert diary.read() == [0, 1]

    def test_a_trial_interrupted_twice_runs_once_in_the_end(self, tmp_path: Path) -> None:
        for _ in range(2):
            with pytest.raises(SearchInterrupted):
                self.search(tmp_path, n_trials=2, callbacks=[AtStep(interrupt, run=0, step=1)])
        best = self.search(tmp_path, n_trials=2)
        assert states(best) == ["complete", "complete"]
        undisturbed = self.search(tmp_path / "again", n_trials=2)
        assert [record.params for record in best.run_summary.records] == [
            record.params for record in undisturbed.run_summary.records
        ]

    # Pruning.

    @pytest.mark.feature(9)
    def test_trials_are_pruned_after_the_same_data_whatever_their_batch_size(self, tmp_path: Path) -> None:
        sizes = iter([2, 8, 8, 2])
        best = self.search(
            tmp_path,
            lambda trial: {"per_device_train_batch_size": next(sizes), "seed": trial.suggest_int("seed", 1, 9)},
            4,
            num_train_epochs=3,
            compute_objective=scripted([0.5, 0.4, 0.3], [0.9, 0.9, 0.9], [0.4, 0.3, 0.2], [0.35, 0.9, 0.1]),
            direction="minimize",
            search=self.pruning_options(),
        )
        assert states(best) == ["complete", "pruned", "complete", "pruned"]
        stored = self.stored(tmp_path / "study")
        assert [each.resources for each in stored] == [[1, 2, 3], [1], [1, 2, 3], [1, 2]]
        records = best.run_summary.records
        assert [record.reports[-1].step for record in records] == [24, 2, 6, 16]
        assert [each.state for each in stored] == ["complete", "pruned", "complete", "pruned"]
        assert "pruned after 1 epoch" in records[1].reason
        assert best.run_id == "2"
        assert records[1].checkpoint is None

    def test_by_steps_the_resource_is_the_number_of_samples(self, tmp_path: Path) -> None:
        sizes = iter([2, 4])
        best = self.search(
            tmp_path,
            lambda trial: {
                "per_device_train_batch_size": next(sizes),
                "gradient_accumulation_steps": 2,
                "seed": trial.suggest_int("seed", 1, 9),
            },
            2,
            num_train_epochs=1,
            eval_strategy="steps",
            eval_steps=1,
        )
        assert states(best) == ["complete"] * 2
        assert [each.resources for each in self.stored(tmp_path / "study")] == [[4, 8, 12, 16], [8, 16]]

    def test_a_trial_is_not_pruned_at_its_end(self, tmp_path: Path) -> None:
        objective = scripted([0.1, 0.1], [0.1, 0.9])
        best = self.search(
            tmp_path, n_trials=2, compute_objective=objective, direction="minimize", search=self.pruning_options()
        )
        assert states(best) == ["complete", "complete"]
        assert best.run_summary.records[1].value == 0.9

    def test_a_study_whose_trials_have_no_comparable_report_prunes_nothing(self, tmp_path: Path) -> None:
        objective = scripted([0.1, 0.1], [float("nan"), 0.9])
        best = self.search(
            tmp_path, n_trials=2, compute_objective=objective, direction="minimize", search=self.pruning_options()
        )
        assert states(best) == ["complete", "complete"]
        assert [each.resources for each in self.stored(tmp_path / "study")] == [[1, 2], [2]]

    # The best run.

    @pytest.mark.feature(6, 13)
    def test_the_best_run_tells_what_won(self, tmp_path: Path) -> None:
        best = self.search(tmp_path, n_trials=4, compute_objective="loss")
        records = best.run_summary.records
        winner = min(records, key=lambda record: record.value)
        assert BestRun._fields[:4] == ("run_id", "objective", "hyperparameters", "run_summary")
        assert (best.run_id, best.objective) == (str(winner.number), winner.value)
        assert best.hyperparameters == winner.params
        assert best.objective == winner.reports[-1].metrics["eval_loss"]
        assert best.checkpoint == tmp_path / "study" / f"run-{winner.number}" / "checkpoint-8"
        assert best.scope == "last"
        assert best.run_summary.ranked()[0] == winner
        assert f"run_id='{winner.number}'" in repr(best)

    @pytest.mark.feature(11)
    @pytest.mark.parametrize("save_strategy", ["no", "epoch"])
    @pytest.mark.parametrize("scope", ["last", "all", "avg"])
    def test_the_loaded_model_is_the_one_that_was_selected(
        self, tmp_path: Path, scope: str, save_strategy: str
    ) -> None:
        diary = Diary(tmp_path / "evaluated")

        class Watches(TrainerCallback):
            def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
                weights = {name: each.tolist() for name, each in weights_of(model).items()}
                diary.write({"seed": args.seed, "step": state.global_step, "weights": weights})

        best = self.search(
            tmp_path,
            {"seed": Int(1, 1000), "learning_rate": Float(0.5, 2.0)},
            4,
            num_train_epochs=4,
            compute_objective="loss",
            scope=scope,
            save_strategy=save_strategy,
            save_total_limit=1 if save_strategy == "epoch" else None,
            callbacks=[Watches()],
        )
        model = best.load_model()
        step = int(best.checkpoint.name.split("-")[1])
        evaluated = {(each["seed"], each["step"]): each["weights"] for each in diary.read()}
        expected = evaluated[(best.hyperparameters["seed"], step)]
        assert all(torch.equal(weights, torch.tensor(expected[name])) for name, weights in weights_of(model).items())
        assert not model.training
        if scope != "avg":
            measured = small_trainer(tmp_path / "again", model=model).evaluate()["eval_loss"]
            assert measured == pytest.approx(best.objective, rel=1e-6)

    def test_the_loaded_model_does_not_touch_the_random_streams(self, tmp_path: Path) -> None:
        best = self.search(tmp_path, n_trials=1)
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        best.load_model()
        assert torch.equal(torch.rand(3), expected)

    def test_without_checkpoints_the_best_run_says_how_to_get_them(self, tmp_path: Path) -> None:
        best = self.search(tmp_path, n_trials=2, keep_checkpoints=0)
        assert best.objective is not None
        assert best.checkpoint is None
        assert list((tmp_path / "study").rglob("checkpoint-*")) == []
        with pytest.raises(FileNotFoundError, match=r"keep_checkpoints=0.*keep_checkpoints=1"):
            best.load_model()

    @pytest.mark.feature(4)
    def test_one_evaluation_at_the_end_is_enough(self, tmp_path: Path) -> None:
        best = self.search(tmp_path, n_trials=2, eval_strategy="no", compute_objective="loss")
        assert [len(record.reports) for record in best.run_summary.records] == [1, 1]
        measured = small_trainer(tmp_path / "again", model=best.load_model()).evaluate()["eval_loss"]
        assert measured == pytest.approx(best.objective, rel=1e-6)

    def test_what_is_optimised_by_default_is_said_as_it_is(self, tmp_path: Path) -> None:
        sets = {name: small_trainer(tmp_path).eval_dataset for name in ("dev", "test")}
        events = Events()
        best = self.search(tmp_path, n_trials=1, eval_dataset=sets, compute_metrics=None, search={"progress": events})
        metrics = best.run_summary.records[0].reports[-1].metrics
        assert len(best.run_summary.records[0].reports) == 2
        assert best.objective == pytest.approx(metrics["eval_dev_loss"] + metrics["eval_test_loss"])
        assert "sum" in events.study.objective.description

    # Budgets.

    @pytest.mark.parametrize("budget", ["timeout", "trial_timeout"])
    def test_a_budget_stops_a_running_trial_at_its_next_step(self, tmp_path: Path, clock: Clock, budget: str) -> None:
        slow = AtStep(clock.move(60.0), run=0, step=6)
        best = self.search(tmp_path, n_trials=1, callbacks=[slow], num_train_epochs=50, **{budget: 60.0})
        assert slow.steps[-1] == (0, 6)
        assert states(best) == ["stopped"]
        (record,) = best.run_summary.records
        assert "timeout of 60.0 s is over" in record.reason
        assert best.run_id == "0"
        assert best.load_model() is not None

    def test_when_time_is_over_no_further_trial_starts_and_the_study_can_go_on(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        slow = AtStep(clock.move(60.0), run=0, step=8)
        best = self.search(tmp_path, n_trials=3, callbacks=[slow], timeout=60.0)
        assert len(best.run_summary.records) == 1
        assert states(self.search(tmp_path, n_trials=3))[1:] == ["complete", "complete"]

    def test_a_trial_stopped_before_its_first_evaluation_runs_again_in_the_next_session(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        slow = AtStep(clock.move(60.0), run=0, step=2)
        error = without_result(self.search, tmp_path, n_trials=1, callbacks=[slow], timeout=60.0, eval_strategy="no")
        assert states(error) == ["interrupted"]
        assert str(error).endswith("before its first evaluation. The same call continues the study.")
        again = self.search(tmp_path, n_trials=1, eval_strategy="no")
        assert states(again) == ["complete"]
        assert again.hyperparameters == error.run_summary.records[0].params

    def test_trials_that_never_reach_an_evaluation_in_their_time_do_not_run_for_ever(self, tmp_path: Path) -> None:
        def give_up(trial: Any) -> None:
            if len(init.trials) > 8:
                raise KeyboardInterrupt

        init = CountsModels(give_up)
        try:
            best = self.search(tmp_path, n_trials=2, model_init=init, trial_timeout=1e-6, eval_strategy="no")
        except SearchInterrupted:
            pytest.fail("the search went on after 8 trials, of 2")
        records = best.run_summary.records
        assert [record.state for record in records] == [TrialState.STOPPED] * 2
        assert [len(record.reports) for record in records] == [1, 1]

    # Names.

    @pytest.mark.feature(7)
    def test_runs_are_named_by_the_function_and_equal_names_get_their_number(self, tmp_path: Path) -> None:
        best = self.search(tmp_path, n_trials=3, hp_name=lambda trial: "x" if trial.number else "first")
        assert [record.name for record in best.run_summary.records] == ["first", "x", "x-2"]
        folders = {path.name for path in (tmp_path / "study").iterdir() if path.is_dir()}
        assert folders == {"first", "x", "x-2"}

    def test_an_engine_that_forgot_the_trials_on_disk_does_not_run_them_again_under_the_same_number(
        self, tmp_path: Path
    ) -> None:
        self.search(tmp_path, n_trials=2, search=storage_in_memory())
        try:
            best = self.search(tmp_path, n_trials=2, search=storage_in_memory())
        except StudyError:
            return
        assert [record.number for record in best.run_summary.records] == [0, 1]
