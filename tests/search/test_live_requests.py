"""Requests are followed by the search that is running, and by the next one: stop, retry, add, extend, pause, set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest

from hpsearch import (
    Categorical,
    Float,
    Ladder,
    NoCompletedTrialError,
    SearchInterrupted,
    SpaceError,
    StudyError,
    TrialRecord,
    TrialState,
    open_study,
)
from hpsearch.cli import main
from hpsearch.search.study import Study
from tests.support.live_requests import EPOCHS, RATE, Asks, search
from tests.support.small_trainer import small_trainer

JOBS = pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.process)])


@JOBS
def test_a_running_trial_stops_after_its_next_evaluation_and_its_value_competes(tmp_path: Path, n_jobs: int) -> None:
    asks = Asks(tmp_path / "study", lambda study: study.stop(1))
    stopped = search(tmp_path, asks, n_jobs=n_jobs).run_summary.records[1]
    assert asks.answers == [
        "trial 1 stops after its next evaluation; its value competes with those of the other trials"
    ]
    assert (stopped.state, stopped.reason) == (TrialState.STOPPED, "stopped by hand")
    assert len(stopped.reports) in (2, 3)
    assert stopped.is_eligible
    assert stopped.value == stopped.reports[-1].value
    assert "requested: stop 1" in asks.notices


def test_a_paused_trial_stops_immediately(tmp_path: Path) -> None:
    class StopsAPausedOne(Asks):
        def on_trial_end(self, record: TrialRecord) -> None:
            super().on_trial_end(record)
            if record.state is TrialState.PAUSED and not self.answers:
                self.answers.append(f"{record.number} {open_study(self._folder).stop(record.number)}")

    asks = StopsAPausedOne(tmp_path / "study")
    records = search(tmp_path, asks, 9, pruner="rungs").run_summary.records
    number = int(asks.answers[0].partition(" ")[0])
    assert f"trial {number} stops immediately" in asks.answers[0]
    assert (records[number].state, records[number].reason) == (TrialState.STOPPED, "stopped by hand")
    assert records[number].checkpoint is None or records[number].checkpoint.is_dir()


@JOBS
def test_a_trial_with_given_parameters_comes_next_and_raises_the_total(tmp_path: Path, n_jobs: int) -> None:
    asks = Asks(tmp_path / "study", at_end=lambda study: study.add({"learning_rate": 0.25}))
    summary = search(tmp_path, asks, n_jobs=n_jobs).run_summary
    assert len(summary.records) == 5
    (added,) = [each for each in summary.records if each.origin is not None]
    assert added.params == {"learning_rate": 0.25}
    assert added.number == 2 or n_jobs == 2  # the other worker may have begun more before
    assert (added.origin["kind"], added.origin["trial"]) == ("add", None)
    assert asks.answers == ["a new trial begins as soon as a worker is free, with learning_rate=0.25 (5 trials in all)"]
    assert asks.totals == [5]
    assert summary.study.n_trials == 5
    assert open_study(tmp_path / "study").study.n_trials == 5


def test_the_total_of_the_next_call_contains_what_was_added(tmp_path: Path) -> None:
    search(tmp_path, Asks(tmp_path / "study", at_end=lambda study: study.add({"learning_rate": 0.25})), 3)
    assert len(search(tmp_path, n_trials=3).run_summary.records) == 4
    assert "(one trial more than its n_trials)" in open_study(tmp_path / "study").retry(0)
    asks = Asks(tmp_path / "study")
    summary = search(tmp_path, asks, 5).run_summary
    assert [each.number for each in asks.ended] == [4, 5, 6]
    assert len(summary.records) == 7
    assert summary.records[4].origin["kind"] == "retry"
    assert any("requested before: retry 0" in note for note in asks.notes)


def test_a_retried_trial_has_the_parameters_of_the_other_one_although_its_result_is_known(tmp_path: Path) -> None:
    records = search(tmp_path, Asks(tmp_path / "study", at_end=lambda study: study.retry(1))).run_summary.records
    again = next(each for each in records if each.origin is not None)
    assert again.params == records[1].params
    assert again.value == records[1].value  # the seed is the same
    assert again.origin["trial"] == 1


def test_a_trial_like_another_one_has_its_other_parameters(tmp_path: Path) -> None:
    space = {**RATE, "weight_decay": Float(0.0, 0.1)}
    folder = tmp_path / "study"
    asks = Asks(folder, at_end=lambda study: study.add({"weight_decay": 0.05}, like=0))
    trainer = small_trainer(tmp_path, num_train_epochs=1)
    found: Any = trainer.hyperparameter_search(space, "loss", n_trials=3, progress=asks)
    records = found.run_summary.records
    added = next(each for each in records if each.origin is not None)
    assert added.params == {"learning_rate": records[0].params["learning_rate"], "weight_decay": 0.05}
    assert "with weight_decay=0.05; the others are those of trial 0 (4 trials in all)" in asks.answers[0]
    assert "with weight_decay=0.05; the sampler chooses the others (" in open_study(folder).add({"weight_decay": 0.05})


def test_a_requested_trial_trains_to_completion_whatever_the_rungs_decide(tmp_path: Path) -> None:
    ladder = Ladder((1 / 6, 1 / 2), 3)
    search(tmp_path, n_trials=6, pruner=ladder)
    study = open_study(tmp_path / "study")
    pruned = next(each for each in study.records if each.state is TrialState.PRUNED)
    worst = "with learning_rate=0.0001; it trains to completion (one trial more than its n_trials)"
    assert study.add({"learning_rate": 1e-4}).endswith(worst)
    study.retry(pruned.number)
    records = search(tmp_path, n_trials=6, pruner=ladder).run_summary.records
    assert [each.state for each in records[6:]] == [TrialState.COMPLETE] * 2
    assert records[7].params == pruned.params


def test_requests_to_a_finished_study_are_followed_by_the_next_call_and_never_by_looking(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search(tmp_path)
    study = open_study(tmp_path / "study")
    assert study.retry(2).startswith("a new trial begins when the search continues (run its program again), with")
    study.add({"learning_rate": 0.5})
    assert main(["show", str(tmp_path / "study")]) == 0
    assert "requested: retry 2, add learning_rate=0.5\n" in capsys.readouterr().out
    opened = open_study(tmp_path / "study")
    assert (len(opened.records), opened.requested) == (4, ("retry 2", "add learning_rate=0.5"))
    summary = search(tmp_path).run_summary
    assert [each.origin["kind"] for each in summary.records[4:]] == ["retry", "add"]
    assert len(search(tmp_path).run_summary.records) == 6


def test_a_trial_that_is_added_to_a_study_without_a_number_of_trials_is_not_called_one_more_than_it(
    tmp_path: Path,
) -> None:
    small_trainer(tmp_path, num_train_epochs=1).hyperparameter_search(RATE, "loss", max_epochs=2, progress=False)
    answer = open_study(tmp_path / "study").retry(0)
    assert "n_trials" not in answer
    assert answer.startswith("a new trial begins when the search continues")


def test_a_trial_can_be_retried_although_everything_was_tried(tmp_path: Path) -> None:
    space = {"learning_rate": Categorical((0.1, 0.2))}
    for count in (2, 3):
        found: Any = small_trainer(tmp_path).hyperparameter_search(space, "loss", n_trials=9, progress=False)
        assert len(found.run_summary.records) == count
        open_study(tmp_path / "study").retry(0)


OPTIMIZERS: Any = {"sgd": {"weight_decay": Float(0.0, 0.1)}, "adamw_torch": {"adam_beta1": Float(0.5, 0.9)}}
BRANCHES: dict[str, Any] = {
    "optim": Categorical(OPTIMIZERS),
    **RATE,
}


def branched(trial: Any) -> dict[str, Any]:
    optim = trial.suggest_categorical("optim", ["sgd", "adamw_torch"])
    other = ("weight_decay", 0.0, 0.1) if optim == "sgd" else ("adam_beta1", 0.5, 0.9)
    return {"optim": optim, other[0]: trial.suggest_float(*other)}


@pytest.mark.parametrize("space", [BRANCHES, branched], ids=["static", "function"])
def test_a_trial_like_another_one_may_be_of_another_branch(tmp_path: Path, space: Any) -> None:
    def run() -> list[TrialRecord]:
        trainer = small_trainer(tmp_path, num_train_epochs=1)
        start = [{"optim": "sgd", "weight_decay": 0.02}, {"optim": "adamw_torch"}]
        found: Any = trainer.hyperparameter_search(space, "loss", n_trials=2, progress=False, start_with=start)
        return list(found.run_summary.records)

    run()
    study = open_study(tmp_path / "study")
    study.add({"optim": "adamw_torch"}, like=0)
    study.add({"weight_decay": 0.05}, like=0)
    if space is BRANCHES:
        with pytest.raises(SpaceError, match="exists only under optim='sgd'"):
            study.add({"weight_decay": 0.05}, like=1)
    other, same = run()[2:]
    assert (other.state, other.params["optim"], "weight_decay" in other.params) == (
        TrialState.COMPLETE,
        "adamw_torch",
        False,
    )
    assert (same.params["optim"], same.params["weight_decay"]) == ("sgd", 0.05)


def test_a_request_that_does_not_fit_the_space_fails_alone(tmp_path: Path) -> None:
    def run() -> list[TrialRecord]:
        trainer = small_trainer(tmp_path, num_train_epochs=1)
        found: Any = trainer.hyperparameter_search(branched, "loss", n_trials=2, progress=False)
        return list(found.run_summary.records)

    run()
    study = open_study(tmp_path / "study")
    study.add({"optim": "sgdd"})
    study.add({"optim": "sgd", "weight_decay": 0.05})
    wrong, right = run()[2:]
    assert wrong.state is TrialState.FAILED
    assert "optim='sgdd'" in str(wrong.reason)
    assert right.params == {"optim": "sgd", "weight_decay": 0.05}


@pytest.mark.parametrize("storage", ["journal", None])
def test_a_request_is_followed_once_although_the_storage_was_lost(tmp_path: Path, storage: Any) -> None:
    options = {"storage": storage}
    search(tmp_path, n_trials=2, **options)
    open_study(tmp_path / "study").retry(0)
    search(tmp_path, n_trials=2, **options)
    for each in [*(tmp_path / "study").glob("study.db*"), *(tmp_path / "study").glob("study.log*")]:
        each.unlink()
    records = search(tmp_path, n_trials=3, **options).run_summary.records
    assert [each.origin is not None for each in records] == [False, False, True, False]


def test_a_trial_can_be_retried_when_one_point_of_a_grid_is_left(tmp_path: Path) -> None:
    points = {"learning_rate": [0.1, 0.2, 0.3]}
    space = {"learning_rate": Categorical((0.1, 0.2, 0.3))}
    found: Any = small_trainer(tmp_path).hyperparameter_search(
        space,
        "loss",
        n_trials=9,
        sampler=optuna.samplers.GridSampler(points),
        progress=Asks(tmp_path / "study", at_end=lambda study: study.retry(0)),
    )
    assert [each.state for each in found.run_summary.records] == [TrialState.COMPLETE] * 4


def test_the_total_at_the_end_of_an_interrupted_search_contains_what_was_added(tmp_path: Path) -> None:
    class Interrupts(Asks):
        def on_trial_end(self, record: TrialRecord) -> None:
            super().on_trial_end(record)
            if record.number == 2:
                raise KeyboardInterrupt

        def on_search_end(self, study: Any, records: Any) -> None:
            self.totals.append(study.n_trials)

    asks = Interrupts(tmp_path / "study", at_end=lambda study: study.add({"learning_rate": 0.25}))
    with pytest.raises(SearchInterrupted, match="interrupted after 3 of 5 trials"):
        search(tmp_path, asks)
    assert asks.totals == [5, 5]


def test_the_number_of_trials_can_be_set_until_the_search_ends(tmp_path: Path) -> None:
    asks = Asks(tmp_path / "study", at_end=lambda study: study.set(n_trials=6))
    assert len(search(tmp_path, asks, 3).run_summary.records) == 6
    assert asks.totals == [6]
    again = Asks(tmp_path / "study")
    assert len(search(tmp_path, again, 3).run_summary.records) == 6
    assert any("n_trials=6 was set by hand for the last search; now it is 3" in note for note in again.notes)
    assert not any("set by hand" in note for note in (_notes(search, tmp_path)))


def _notes(search: Callable[..., Any], folder: Path) -> list[str]:
    asks = Asks(folder / "study")
    search(folder, asks, 3)
    return asks.notes


@JOBS
def test_a_time_limit_can_be_set_while_a_trial_runs_and_views_know_it(tmp_path: Path, n_jobs: int) -> None:
    timeouts = []

    class Notes(Asks):
        def on_study_changed(self, study: Study) -> None:
            super().on_study_changed(study)
            timeouts.append(study.timeout)

        def on_search_end(self, study: Study, records: Sequence[TrialRecord]) -> None:
            super().on_search_end(study, records)
            timeouts.append(study.timeout)

    asks = Notes(tmp_path / "study", lambda study: study.set(timeout=0.001))
    summary = search(tmp_path, asks, 50, n_jobs=n_jobs).run_summary
    assert timeouts == [0.001, 0.001]
    assert len(summary.records) < 50
    assert "timeout of 0.001 s, as set by hand, is over" in "".join(map(str, (each.reason for each in summary.records)))


class Unpauses(Asks):
    """Unpauses the search when its running trials have left."""

    def on_trial_end(self, record: TrialRecord) -> None:
        super().on_trial_end(record)
        if record.state is TrialState.INTERRUPTED and record.number == self._of:
            self.answers.append(open_study(self._folder).unpause())


@JOBS
def test_a_paused_search_trains_nothing_and_continues_with_the_trials_that_it_left(tmp_path: Path, n_jobs: int) -> None:
    asks = Unpauses(tmp_path / "study", lambda study: study.pause())
    records = search(tmp_path, asks, n_jobs=n_jobs).run_summary.records
    left = [each for each in asks.ended if each.state is TrialState.INTERRUPTED]
    assert {each.reason for each in left} == {"the search is paused by hand"}
    assert 1 in {each.number for each in left}
    assert asks.answers[-1] == "the search continues immediately"
    undisturbed = search(tmp_path / "undisturbed").run_summary.records
    assert [each.state for each in records] == [TrialState.COMPLETE] * 4
    assert [[one.values for one in each.reports] for each in records] == [
        [one.values for one in each.reports] for each in undisturbed
    ]


def test_a_paused_search_says_so_and_how_it_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "study")

    class Looks(Asks):
        def on_trial_end(self, record: TrialRecord) -> None:
            if record.state is TrialState.INTERRUPTED:
                assert (main(["show", folder]), main(["requests", folder])) == (0, 0)
                open_study(folder).unpause()

    search(tmp_path, Looks(tmp_path / "study", lambda study: study.pause()))
    out = capsys.readouterr().out
    told = [each for each in out.splitlines() if "paused by hand since" in each]
    assert [each.endswith(f"hpsearch unpause {folder} lets it continue") for each in told] == [True, True]
    assert "no pending requests" not in out
    assert main(["requests", folder]) == 0
    assert capsys.readouterr().out == "no pending requests\n"


def test_a_trial_of_a_paused_search_is_judged_before_it_leaves(tmp_path: Path) -> None:
    pruner = optuna.pruners.ThresholdPruner(upper=-1.0, n_warmup_steps=2)

    class EndsThePause(Unpauses):
        def on_trial_end(self, record: TrialRecord) -> None:
            Asks.on_trial_end(self, record)
            if record.number == self._of:
                self.answers.append(open_study(self._folder).unpause())

    asks = EndsThePause(tmp_path / "study", lambda study: study.pause(), of=0)
    trainer = small_trainer(tmp_path, num_train_epochs=EPOCHS)
    with pytest.raises(NoCompletedTrialError) as raised:
        trainer.hyperparameter_search(RATE, "loss", n_trials=1, progress=asks, pruner=pruner)
    (record,) = raised.value.run_summary.records
    assert (record.state, len(record.reports)) == (TrialState.PRUNED, 2)


def test_a_pause_ends_with_the_search(tmp_path: Path) -> None:
    class Interrupts(Asks):
        def on_trial_end(self, record: TrialRecord) -> None:
            super().on_trial_end(record)
            if record.state is TrialState.INTERRUPTED:
                raise KeyboardInterrupt

    with pytest.raises((SearchInterrupted, KeyboardInterrupt)):
        search(tmp_path, Interrupts(tmp_path / "study", lambda study: study.pause()))
    assert len(search(tmp_path).run_summary.records) == 4
    with pytest.raises(StudyError, match="No search is running"):
        open_study(tmp_path / "study").unpause()


def test_unpausing_a_search_that_is_not_paused_is_refused(tmp_path: Path) -> None:
    asks = Asks(tmp_path / "study", lambda study: study.unpause())
    with pytest.raises(StudyError, match="is not paused"):
        search(tmp_path, asks)


def test_a_study_with_damaged_requests_can_be_read(tmp_path: Path) -> None:
    search(tmp_path, n_trials=1)
    (tmp_path / "study" / "requests.json").write_text('[{"kind": "halt"}]')
    opened = open_study(tmp_path / "study")
    assert len(opened.records) == 1
    assert "requests.json" in opened.problems[0]
    with pytest.raises(StudyError, match="is damaged"):
        opened.retry(0)
