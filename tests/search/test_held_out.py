"""A test set of a search: evaluated once, at the end, for the best run and for the defaults."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hpsearch import BestRun, ObjectiveError, SearchInterrupted, StudyError, Trainer, open_study
from hpsearch.reports.tables import describe_best
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.result.held_out_result import held_out_result
from hpsearch.search.space.search_space import SearchSpace
from hpsearch.search.store.held_out_file import HeldOutEvaluation, read_held_out, write_held_out
from hpsearch.search.store.live_sessions import Session
from hpsearch.search.study import Study
from hpsearch.searching.held_out_dataset import HeldOut
from hpsearch.trainer.searchable_trainer import SearchableTrainer
from tests.support.models import accuracy
from tests.support.searching import RATE, AtStep, HearsNotices, interrupt
from tests.support.small_search import records_of, search
from tests.support.small_trainer import CountsModels, TwoLayers, points, small_trainer

HELD_OUT = points(32, seed=2)


class Reads(list[Any]):
    """A dataset that counts how often its samples are read."""

    reads = 0

    def __getitem__(self, place: Any) -> Any:
        self.reads += 1
        return super().__getitem__(place)


def searched(folder: Path, n_trials: int | None = 2, *callbacks: Any, **options: Any) -> BestRun:
    best: BestRun = search(folder, n_trials, *callbacks, **{"test_dataset": HELD_OUT, **options})
    return best


def evaluations(folder: Path) -> list[int | None]:
    """The trials that were evaluated on the test set, in their order; None: the defaults."""
    return [each.trial for each in read_held_out(folder / "study")]


# The record, and what it says.


def evaluation(trial: int | None, data: str = "32 samples", **metrics: float) -> HeldOutEvaluation:
    return HeldOutEvaluation(trial, (0.5,), metrics, data, "arguments", 0.0)


def test_what_was_written_is_read_again_also_with_more_than_this_version_writes(tmp_path: Path) -> None:
    written = (evaluation(3, test_loss=0.25), replace(evaluation(None, test_loss=0.5), epochs=2.0, seconds=1.5))
    write_held_out(tmp_path, written)
    assert read_held_out(tmp_path) == written
    path = tmp_path / "test_set.json"
    kept = json.loads(path.read_text())
    kept["evaluations"][0]["later"] = True
    path.write_text(json.dumps(kept))
    assert read_held_out(tmp_path) == written
    assert read_held_out(tmp_path / "new") == ()


@pytest.mark.parametrize("text", ["", "[]", '{"evaluations": 3}', '{"evaluations": [{"trial": "3"}]}'])
def test_a_damaged_record_is_an_error_that_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "test_set.json").write_text(text)
    with pytest.raises(StudyError, match=r"damaged.*move it away"):
        read_held_out(tmp_path)


def test_the_last_evaluation_of_a_trial_counts_and_those_on_other_data_do_not() -> None:
    assert held_out_result([]) is None
    assert held_out_result([evaluation(None, test_loss=0.5)]) is None
    found = held_out_result(
        [evaluation(1), evaluation(1, "old"), evaluation(None, "old"), evaluation(None), evaluation(4)]
    )
    assert found is not None
    assert (found.best, found.defaults, found.times) == (evaluation(4), evaluation(None), 2)
    other = held_out_result([evaluation(None), evaluation(4, "new")])
    assert other is not None
    assert (other.defaults, other.times) == (None, 1)


def test_without_the_metric_of_the_objective_all_metrics_of_the_model_are_shown() -> None:
    found = held_out_result([evaluation(1, test_loss=0.5, test_f1=0.75, test_runtime=3.0, epoch=2.0)])
    assert found is not None
    assert found.describe("eval_accuracy") == "On the test set: loss 0.5, f1 0.75 of trial 1."
    assert found.describe("f1") == "On the test set: f1 0.75 of trial 1."


# The end of a search.


def test_best_and_defaults_are_evaluated_once_and_nothing_else_reads_the_test_set(tmp_path: Path) -> None:
    held_out, listener = Reads(HELD_OUT), HearsNotices()
    reads_during_search: list[int] = []
    watching = AtStep(lambda: reads_during_search.append(held_out.reads), run=1, step=4)
    best = searched(tmp_path, 2, watching, test_dataset=held_out, progress=listener)
    assert reads_during_search == [0]
    assert evaluations(tmp_path) == [int(best.run_id or -1), None]

    by_hand = Trainer(
        model=best.load_model(), args=small_trainer(tmp_path).args, compute_metrics=accuracy, eval_dataset=HELD_OUT
    ).evaluate(metric_key_prefix="test")
    assert best.test_metrics is not None
    assert best.test_metrics["test_loss"] == by_hand["test_loss"]
    assert best.test_metrics["test_accuracy"] == by_hand["test_accuracy"]

    defaults = small_trainer(tmp_path / "alone")
    defaults.train()
    found = best.run_summary.held_out
    assert found.defaults.metrics["test_loss"] == defaults.evaluate(HELD_OUT)["eval_loss"]
    assert (found.defaults.epochs, found.times) == (2.0, 1)

    said = f"On the test set: loss {by_hand['test_loss']:.4g} of trial {best.run_id}; loss "
    assert listener.notices[-1].startswith(said)
    assert any("trained with the defaults: 2 epochs in" in each for each in listener.notices)
    assert said in describe_best(best)


@pytest.mark.parametrize("limit", [{"timeout": 3600.0}, {"max_epochs": 6}, {"budget": 2}])
def test_a_limit_that_a_search_has_in_place_of_a_number_of_trials_is_not_that_of_the_defaults(
    tmp_path: Path, limit: dict[str, Any]
) -> None:
    best = searched(tmp_path, None, callbacks=[lambda study, trial: study.stop()], **limit)
    assert evaluations(tmp_path) == [0, None]
    found = best.run_summary.held_out
    assert found is not None
    assert found.defaults is not None


def test_the_defaults_are_no_trial(tmp_path: Path) -> None:
    models = CountsModels()
    best = searched(tmp_path, 2, max_epochs=4, trial_max_epochs=1, trainer={"model_init": models})
    assert [record.epochs for record in records_of(best)] == [1.0, 1.0]
    assert best.run_summary.held_out.defaults.epochs == 2.0
    assert models.trials[-2:] == [None, None]  # to train, and to evaluate
    assert [record.number for record in records_of(best)] == [0, 1]
    assert len(best.run_summary.engine_study.trials) == 2
    assert [record.number for record in open_study(tmp_path / "study").records] == [0, 1]
    assert open_study(tmp_path / "study").problems == ()
    assert not (tmp_path / "study" / "defaults" / "trial.json").exists()


def test_without_a_test_set_there_are_no_metrics_of_one(tmp_path: Path) -> None:
    best = search(tmp_path, 1)
    assert (best.test_metrics, best.run_summary.held_out) == (None, None)
    assert "test set" not in describe_best(best)
    assert not (tmp_path / "study" / "defaults").exists()


def test_the_defaults_can_be_left_out(tmp_path: Path) -> None:
    best = searched(tmp_path, 1, test_defaults=False)
    assert evaluations(tmp_path) == [0]
    assert best.run_summary.held_out.defaults is None
    assert not (tmp_path / "study" / "defaults").exists()


def test_the_same_best_on_the_same_data_is_read_from_the_record(tmp_path: Path) -> None:
    first = searched(tmp_path, 2)
    models, listener = CountsModels(), HearsNotices()
    again = searched(tmp_path, 2, trainer={"model_init": models}, progress=listener)
    assert again.test_metrics == first.test_metrics
    assert models.trials == []
    assert len(evaluations(tmp_path)) == 2
    assert not any("trained with the defaults" in each for each in listener.notices)


def test_another_best_is_another_evaluation_and_the_number_is_shown(tmp_path: Path) -> None:
    options = {"sampler": "random", "seed": 1}
    first = searched(tmp_path, 1, **options)
    n_trials = 2
    while (best := searched(tmp_path, n_trials, **options)).run_id == first.run_id:
        n_trials += 1
    assert evaluations(tmp_path) == [0, None, int(best.run_id or -1)]
    stored = open_study(tmp_path / "study")
    assert stored.held_out is not None
    assert stored.held_out.best.metrics == best.test_metrics
    assert stored.held_out.times == 2
    assert "evaluated 2 times" in describe_best(best)


def test_other_data_and_other_arguments_are_evaluated_again(tmp_path: Path) -> None:
    searched(tmp_path, 1)
    searched(tmp_path, 1, test_dataset=points(32, seed=3))
    assert evaluations(tmp_path) == [0, None, 0, None]
    searched(tmp_path, 1, trainer={"weight_decay": 0.5})
    assert evaluations(tmp_path) == [0, None, 0, None, 0, None]


def test_the_selected_weights_of_the_defaults_are_chosen_by_the_scope_of_the_study(tmp_path: Path) -> None:
    options = {"scope": "all", "trainer": {"learning_rate": 0.9, "num_train_epochs": 6}}
    best = searched(tmp_path, 1, **options)
    [_, defaults] = read_held_out(tmp_path / "study")
    trainer = small_trainer(tmp_path / "alone", learning_rate=0.9, num_train_epochs=6)
    trainer.train()
    losses = [each["eval_loss"] for each in trainer.state.log_history if "eval_loss" in each]
    assert min(losses) < losses[-1]
    assert defaults.values == (min(losses),)
    assert best.run_summary.held_out.defaults == defaults


def test_interrupted_defaults_resume_with_the_same_call_and_lose_nothing(tmp_path: Path) -> None:
    kept = {"trainer": {"save_strategy": "epoch"}}
    stopped = AtStep(interrupt, run=1, step=6)
    with pytest.raises(SearchInterrupted) as caught:
        searched(tmp_path, 1, stopped, **kept)
    assert caught.value.best_run.run_id == "0"
    assert evaluations(tmp_path) == [0]
    steps = AtStep(lambda: None, run=-1, step=-1)
    best = searched(tmp_path, 1, steps, **kept)
    assert steps.steps == [(0, step) for step in (5, 6, 7, 8)]
    undisturbed = searched(tmp_path / "other", 1, **kept).run_summary.held_out
    assert best.run_summary.held_out.defaults.metrics["test_loss"] == undisturbed.defaults.metrics["test_loss"]


def test_a_signal_ends_the_run_of_the_defaults_with_a_checkpoint(tmp_path: Path) -> None:
    preempted = AtStep(lambda: os.kill(os.getpid(), signal.SIGTERM), run=1, step=6)
    with pytest.raises(SearchInterrupted) as caught:
        searched(tmp_path, 1, preempted)
    assert caught.value.signal == signal.SIGTERM
    assert evaluations(tmp_path) == [0]
    assert [each.name for each in (tmp_path / "study" / "defaults").glob("checkpoint-*")] == ["checkpoint-6"]
    steps = AtStep(lambda: None, run=-1, step=-1)
    searched(tmp_path, 1, steps)
    assert steps.steps == [(0, 7), (0, 8)]
    assert evaluations(tmp_path) == [0, None]


def test_only_the_search_that_ends_last_evaluates(tmp_path: Path) -> None:
    search(tmp_path, 1)
    peer, listener = Session(tmp_path / "study"), HearsNotices()
    peer.begin()
    assert searched(tmp_path, 1, progress=listener).test_metrics is None
    assert listener.notices[-1].startswith("another process still searches in this study")
    peer.end()
    assert searched(tmp_path, 1).test_metrics is not None


def test_a_search_that_was_interrupted_evaluates_nothing(tmp_path: Path) -> None:
    with pytest.raises(SearchInterrupted):
        searched(tmp_path, 2, AtStep(interrupt, run=1, step=2))
    assert evaluations(tmp_path) == []


def test_a_model_that_needs_a_trial_has_no_defaults_and_the_search_says_so(tmp_path: Path) -> None:
    def model_init(trial: Any) -> TwoLayers:
        return TwoLayers(trial.suggest_int("hidden", 4, 8))

    listener = HearsNotices()
    best = searched(tmp_path, 1, trainer={"model_init": model_init}, progress=listener)
    assert best.test_metrics is not None
    assert best.run_summary.held_out.defaults is None
    [notice] = [each for each in listener.notices if each.startswith("the defaults could not be evaluated on the test")]
    assert "AttributeError: 'NoneType'" in notice
    assert "def model_init(trial=None), or leave them out by test_defaults=False" in notice


def test_defaults_that_would_train_on_several_gpus_are_left_out_if_each_trial_has_one(tmp_path: Path) -> None:
    held_out, trainer = HeldOut.of(HELD_OUT, True), small_trainer(tmp_path)
    assert held_out is not None
    study = Study("study", tmp_path / "study", SearchSpace(RATE), resolve_objectives("loss", None, has_metrics=True), 1)
    recipe = SearchableTrainer(trainer)
    assert held_out.why_no_defaults(recipe, study) is None
    trainer.args._n_gpu = 4
    assert "on the 4 GPUs of this process together, and each trial on one" in str(
        held_out.why_no_defaults(recipe, study)
    )
    assert held_out.why_no_defaults(recipe, replace(study, gpus=4)) is None


def test_lost_weights_are_a_notice_and_the_best_run_is_whole(tmp_path: Path) -> None:
    search(tmp_path, 1)
    shutil.rmtree(tmp_path / "study" / "run-0" / "checkpoint-8")
    listener = HearsNotices()
    best = searched(tmp_path, 1, progress=listener)
    assert (best.run_id, best.test_metrics, evaluations(tmp_path)) == ("0", None, [])
    assert listener.notices[-1] == "trial 0 could not be evaluated on the test set: its weights are not on disk"


def test_a_test_set_that_the_model_cannot_take_is_a_notice_and_the_best_run_is_whole(tmp_path: Path) -> None:
    listener = HearsNotices()
    best = searched(tmp_path, 1, test_dataset=[{"y": 1.0}], progress=listener)
    assert (best.run_id, best.test_metrics, evaluations(tmp_path)) == ("0", None, [])
    assert listener.notices[-1].startswith("trial 0 could not be evaluated on the test set: ")


def test_a_dict_of_test_sets_and_a_stream_are_evaluated(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(HELD_OUT)

    best = searched(tmp_path / "a", 1, test_dataset={"one": HELD_OUT, "two": points(8, seed=4)}, test_defaults=False)
    assert {"test_one_accuracy", "test_two_accuracy"} <= (best.test_metrics or {}).keys()
    stream = searched(tmp_path / "b", 1, test_dataset=Stream(), test_defaults=False)
    assert (stream.test_metrics or {})["test_loss"] == (best.test_metrics or {})["test_one_loss"]
    searched(tmp_path / "b", 1, test_dataset=Stream(), test_defaults=False)
    assert evaluations(tmp_path / "b") == [0]


# Bad input fails before the first trial.


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"test_dataset": "glue"}, StudyError, "must be a dataset"),
        ({"test_dataset": []}, StudyError, "is empty"),
        ({"test_dataset": {}}, StudyError, "is empty"),
        ({"test_defaults": "no"}, StudyError, "test_defaults must be True or False"),
        ({"keep_checkpoints": 0}, StudyError, "keep_checkpoints=0 keeps none"),
        ({"compute_objective": ["loss", "accuracy"]}, ObjectiveError, "for one objective"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    models = CountsModels()
    with pytest.raises(error, match=message):
        searched(tmp_path, 1, trainer={"model_init": models}, **options)
    assert models.trials == []
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("name", ["train_dataset", "eval_dataset"])
def test_the_data_of_the_trials_are_no_test_set(tmp_path: Path, name: str) -> None:
    for given in (HELD_OUT, {"one": points(8, seed=3), "two": HELD_OUT}):
        with pytest.raises(StudyError, match=f"test_dataset is the {name} itself"):
            searched(tmp_path, 1, trainer={name: HELD_OUT}, test_dataset=given)


def test_a_damaged_record_is_found_before_the_first_trial(tmp_path: Path) -> None:
    searched(tmp_path, 1)
    (tmp_path / "study" / "test_set.json").write_text("{")
    models = CountsModels()
    with pytest.raises(StudyError, match=r"test_set\.json' is damaged"):
        searched(tmp_path, 2, trainer={"model_init": models})
    assert models.trials == []
    summary = open_study(tmp_path / "study")
    assert summary.held_out is None
    assert "damaged" in summary.problems[-1]
