"""Requests are followed by the search that is running, and by the next one: stop, retry, add, extend, pause, set."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest

from hpsearch import (
    BestRun,
    Categorical,
    Float,
    Ladder,
    NoCompletedTrialError,
    Report,
    SearchInterrupted,
    SpaceError,
    StudyError,
    Trial,
    TrialRecord,
    TrialState,
    open_study,
)
from hpsearch.cli import main
from tests.support.searching import HearsNotices
from tests.support.small_trainer import small_trainer

EPOCHS = 6
RATE = {"learning_rate": Float(1e-4, 1.0, log=True)}
Ask = Callable[[Any], str]


def search(folder: Path, progress: Any = False, n_trials: int | None = 4, **options: Any) -> BestRun:
    options = {"pruner": None, "storage": "journal", **options}
    trainer = small_trainer(folder, num_train_epochs=EPOCHS, **options.pop("arguments", {}))
    found = trainer.hyperparameter_search(RATE, "loss", n_trials=n_trials, progress=progress, **options)
    assert isinstance(found, BestRun)
    return found


class Asks(HearsNotices):
    """Makes a request to the search when a trial reports for the second time, and another one when a trial ends."""

    def __init__(self, folder: Path, at_report: Ask | None = None, at_end: Ask | None = None, of: int = 1) -> None:
        super().__init__()
        self._folder, self._at_report, self._at_end, self._of = folder, at_report, at_end, of
        self.answers: list[str] = []
        self.totals: list[int | None] = []

    def _ask(self, ask: Ask | None) -> None:
        if ask is not None:
            self.answers.append(ask(open_study(self._folder)))

    def on_report(self, trial: Trial, report: Report) -> None:
        if trial.number == self._of and report.epoch == 2:
            self._ask(self._at_report)

    def on_trial_end(self, record: TrialRecord) -> None:
        super().on_trial_end(record)
        if record.number == self._of:
            ask, self._at_end = self._at_end, None
            self._ask(ask)

    def on_study_changed(self, study: Any) -> None:
        self.totals.append(study.n_trials)


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
    assert asks.answers == [
        "a new trial begins as soon as a worker is free, with learning_rate=0.25; the sampler chooses the others "
        "(5 trials in all)"
    ]
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


def test_requests_to_a_finished_study_are_followed_by_the_next_call_and_never_by_looking(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search(tmp_path)
    study = open_study(tmp_path / "study")
    assert re.search(r"when the search continues \(the same command again, or hpsearch resume", study.retry(2))
    study.add({"learning_rate": 0.5})
    assert main(["show", str(tmp_path / "study")]) == 0
    assert "requested: retry 2, add learning_rate=0.5\n" in capsys.readouterr().out
    opened = open_study(tmp_path / "study")
    assert (len(opened.records), opened.requested) == (4, ("retry 2", "add learning_rate=0.5"))
    summary = search(tmp_path).run_summary
    assert [each.origin["kind"] for each in summary.records[4:]] == ["retry", "add"]
    assert len(search(tmp_path).run_summary.records) == 6


@pytest.mark.parametrize("to", [{"num_train_epochs": 9}, {"max_steps": 36}], ids=str)
def test_an_extended_trial_trains_on_from_the_checkpoint_with_the_schedule_of_its_new_length(
    tmp_path: Path, to: dict[str, int]
) -> None:
    arguments = {"save_strategy": "epoch", "logging_steps": 1}
    search(tmp_path, n_trials=2, keep_checkpoints=None, arguments=arguments)
    answer = open_study(tmp_path / "study").extend(0, **to)
    assert "from the last checkpoint of trial 0" in answer
    records = search(tmp_path, n_trials=2, keep_checkpoints=None, arguments=arguments).run_summary.records
    first, extended = records[0], records[2]
    assert (extended.state, len(extended.reports)) == (TrialState.COMPLETE, 9)
    assert [each.values for each in extended.reports[:EPOCHS]] == [each.values for each in first.reports]
    assert [round(each.fraction, 6) for each in extended.reports] == [round(each / 9, 6) for each in range(1, 10)]
    assert extended.arguments == {**first.arguments, **to}
    assert [part["trial"] for part in extended.schedule] == [0, 2]
    assert extended.origin["trial"] == 0
    with pytest.raises(StudyError, match="Trial 2 extends trial 0; to try that again, extend 0 again"):
        open_study(tmp_path / "study").retry(2)
    trainer = small_trainer(tmp_path, num_train_epochs=EPOCHS, save_strategy="epoch", logging_steps=1)
    with pytest.raises(StudyError, match=r"Trial 2 extends trial 0, .* trial 0 can be"):
        trainer.replay(number=2, progress=False)


def test_an_extended_trial_is_not_judged_at_rungs(tmp_path: Path) -> None:
    options: dict[str, Any] = {"pruner": Ladder((1 / 2,), 2), "keep_checkpoints": None, "n_trials": 6}
    options["arguments"] = {"save_strategy": "epoch"}
    records = search(tmp_path, **options).run_summary.records
    pruned = [each for each in records if each.state is TrialState.PRUNED]
    worst = max(pruned, key=lambda each: each.reports[-1].value)
    open_study(tmp_path / "study").extend(worst.number, num_train_epochs=12)
    asks = HearsNotices()
    extended = search(tmp_path, asks, **options).run_summary.records[6]
    assert (extended.state, len(extended.reports)) == (TrialState.COMPLETE, 12)
    assert [each.state for each in asks.ended] == [TrialState.COMPLETE]


def test_a_trial_can_be_retried_although_everything_was_tried(tmp_path: Path) -> None:
    space = {"learning_rate": Categorical((0.1, 0.2))}
    for count in (2, 3):
        found: Any = small_trainer(tmp_path).hyperparameter_search(space, "loss", n_trials=9, progress=False)
        assert len(found.run_summary.records) == count
        open_study(tmp_path / "study").retry(0)


def test_a_trial_without_a_checkpoint_fails_alone_if_it_is_extended(tmp_path: Path) -> None:
    arguments = {"save_strategy": "epoch"}
    search(tmp_path, n_trials=2, keep_checkpoints=None, arguments=arguments)
    open_study(tmp_path / "study").extend(0, num_train_epochs=9)
    for each in (tmp_path / "study" / "run-0").glob("checkpoint-*/optimizer.pt"):
        each.unlink()
    for each in (tmp_path / "study" / "run-0").glob("checkpoint-*/run_state.json"):
        each.unlink()
    records = search(tmp_path, n_trials=2, arguments=arguments).run_summary.records
    assert records[2].state is TrialState.FAILED
    assert "No checkpoint of trial 0 is left" in records[2].reason


def test_an_extension_that_was_killed_before_its_checkpoints_were_copied_copies_them(tmp_path: Path) -> None:
    arguments = {"save_strategy": "epoch"}
    search(tmp_path, n_trials=1, keep_checkpoints=None, arguments=arguments)
    open_study(tmp_path / "study").extend(0, num_train_epochs=9)

    class Interrupts(HearsNotices):
        def on_trial_begin(self, trial: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises((SearchInterrupted, KeyboardInterrupt)):
        search(tmp_path, Interrupts(), n_trials=1, keep_checkpoints=None, arguments=arguments)
    for each in (tmp_path / "study" / "run-1").glob("checkpoint-*"):
        shutil.rmtree(each)
    records = search(tmp_path, n_trials=1, keep_checkpoints=None, arguments=arguments).run_summary.records
    assert [part["trial"] for part in records[1].schedule] == [0, 1]
    assert len(records[1].reports) == 9


def test_an_extension_that_was_killed_while_its_checkpoints_were_copied_begins_at_the_last_one(tmp_path: Path) -> None:
    options: dict[str, Any] = {"n_trials": 1, "keep_checkpoints": None, "arguments": {"save_strategy": "epoch"}}
    search(tmp_path, **options)
    open_study(tmp_path / "study").extend(0, num_train_epochs=9)

    class Interrupts(HearsNotices):
        def on_trial_begin(self, trial: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises((SearchInterrupted, KeyboardInterrupt)):
        search(tmp_path, Interrupts(), **options)
    for each in (tmp_path / "study" / "run-1").glob("checkpoint-*"):
        if each.name != "checkpoint-8":
            shutil.rmtree(each)
    extended = search(tmp_path, **options).run_summary.records[1]
    assert [part["step"] for part in extended.schedule] == [0, 24]


def test_a_length_that_is_no_extension_is_refused(tmp_path: Path) -> None:
    arguments = {"save_strategy": "epoch"}
    search(tmp_path / "epochs", n_trials=1, keep_checkpoints=None, arguments=arguments)
    study = open_study(tmp_path / "epochs" / "study")
    for steps in (5, 24):
        with pytest.raises(StudyError, match=f"was trained up to max_steps=24; max_steps={steps} does not extend it"):
            study.extend(0, max_steps=steps)
    search(tmp_path / "steps", n_trials=1, keep_checkpoints=None, arguments={**arguments, "max_steps": 12})
    with pytest.raises(StudyError, match="max_steps=12, which comes before num_train_epochs"):
        open_study(tmp_path / "steps" / "study").extend(0, num_train_epochs=9)


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
def test_a_time_limit_can_be_set_while_a_trial_runs(tmp_path: Path, n_jobs: int) -> None:
    asks = Asks(tmp_path / "study", lambda study: study.set(timeout=0.001))
    summary = search(tmp_path, asks, 50, n_jobs=n_jobs).run_summary
    assert len(summary.records) < 50
    assert "timeout of 0.001 s, as set by hand, is over" in "".join(map(str, (each.reason for each in summary.records)))


@JOBS
def test_a_longer_time_limit_reaches_trials_that_run(tmp_path: Path, n_jobs: int) -> None:
    asks = Asks(tmp_path / "study", lambda study: study.set(timeout=3600), of=0)
    records = search(tmp_path, asks, 2, n_jobs=n_jobs, timeout=60).run_summary.records
    assert [each.state for each in records] == [TrialState.COMPLETE] * 2
    assert "requested: set timeout=3600" in asks.notices


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


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["retry", "1"], "a new trial begins when the search continues"),
        (
            ["add", "--learning_rate", "0.5"],
            "with learning_rate=0.5; the sampler chooses the others (one trial more than its n_trials)",
        ),
        (["add", "--like=0", "--learning_rate=0.5"], "with learning_rate=0.5; the others are those of trial 0"),
        (["add", "--like", "0"], "with the parameters of trial 0"),
        (["stop", "1"], "Trial 1 is complete"),
        (["extend", "1", "--num_train_epochs", "9"], "no checkpoint with the state of its optimizer"),
        (["add", "--learning_rate=0.5", "here"], "Expected the folder of one study, but got here, "),
        (["pause"], "No search is running"),
        (["unpause"], "No search is running"),
        (["set", "n_trials=9"], "No search is running"),
        (["set", "timeout=2h"], "No search is running"),
    ],
)
def test_each_request_is_a_command_that_answers(
    tmp_path_factory: pytest.TempPathFactory,
    finished: Path,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    said: str,
) -> None:
    (finished / "requests.json").unlink(missing_ok=True)
    main([*command, str(finished)])
    shown = capsys.readouterr()
    assert said in " ".join(f"{shown.out} {shown.err}".split())


def test_a_study_with_damaged_requests_can_be_read(tmp_path: Path) -> None:
    search(tmp_path, n_trials=1)
    (tmp_path / "study" / "requests.json").write_text('[{"kind": "halt"}]')
    opened = open_study(tmp_path / "study")
    assert len(opened.records) == 1
    assert "requests.json" in opened.problems[0]
    with pytest.raises(StudyError, match="is damaged"):
        opened.retry(0)


def test_an_option_without_a_value_is_refused(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["add", str(finished), "--learning_rate"]) == 2
    assert "--learning_rate has no value; write it as --learning_rate 0.1" in " ".join(capsys.readouterr().err.split())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    search(folder)
    return folder / "study"
