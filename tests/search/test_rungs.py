"""Trials pause at rungs, the best go on from exactly where they were, and nothing else about them changes."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from transformers import TrainerCallback

from hpsearch import NoCompletedTrialError, SearchInterrupted, TooManyFailuresError, TrialRecord
from hpsearch.search.decisions.ladder import LADDER_OF_0_8_0
from hpsearch.search.decisions.promotion_at_rungs import Rungs
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.space.search_space import SearchSpace
from hpsearch.search.store.live_sessions import Session
from hpsearch.search.study import Study
from hpsearch.search.trial_record import Report, TrialState
from tests.support.at_rungs import EPOCHS, GO_ON, PAUSE, PRUNE, RATE, rungs, running, trial
from tests.support.searching import Events
from tests.support.small_trainer import CountsModels, small_trainer

# Which trials go on.


def test_the_first_trials_wait_and_the_best_third_goes_on() -> None:
    waiting = [trial(0, 0.5), trial(1, 0.4)]
    assert rungs().verdict(running(0, 0.5), []) == PAUSE
    assert rungs().verdict(running(2, 0.3), waiting) == GO_ON
    assert rungs().verdict(running(2, 0.45), waiting) == PAUSE
    assert rungs().next([*waiting, trial(2, 0.45)]) is waiting[1]
    assert rungs().next(waiting) is None


def test_the_highest_rung_comes_first() -> None:
    low = [trial(number, 0.1 * number) for number in range(1, 7)]
    high = [trial(number, 0.5, 0.05 * number) for number in range(7, 10)]
    assert rungs().next([*low, *high]) is high[0]


def test_a_trial_is_judged_once_at_each_rung_and_not_between_them() -> None:
    better = [trial(number, 0.1, 0.1) for number in range(6)]
    between = running(9, 0.5, 0.5, epochs=(1, 2))
    assert rungs().verdict(between, better) == GO_ON
    went_on = trial(9, 0.5, 0.5)
    began_again = running(9, 0.6, 0.6)
    assert rungs().verdict(began_again, better) != GO_ON
    assert rungs().verdict(began_again, better, earlier=went_on) == GO_ON


def test_what_is_known_of_a_trial_is_that_of_its_reports_as_they_are_now() -> None:
    better, judge = [trial(number, 0.1, 0.1) for number in range(6)], rungs()
    for now, found in (
        (running(9, 0.5), PAUSE),
        (running(9, 0.5, 0.05), GO_ON),  # it has grown
        (running(9, 0.05), GO_ON),  # it has begun again, and become another one
        (running(9, 0.05, 0.5), PAUSE),
        (running(9, 0.05, 0.5, 0.4), PAUSE),
    ):
        assert judge.verdict(now, better) == rungs().verdict(now, better) == found
    earlier = trial(9, 0.05, 0.5)
    assert judge.verdict(running(9, 0.05, 0.5), better, earlier=earlier) == GO_ON


def test_what_a_budget_leaves_as_the_best_holds_the_constraints_by_the_scope() -> None:
    holds = trial(0, 0.5, 0.4, violations={"size": -1.0})
    breaks = trial(1, 0.3, 0.2, violations={"size": 1.0})
    assert rungs().best_paused([holds, breaks]) is holds
    assert rungs().best_paused([breaks]) is None
    late = replace(holds.reports[1], violations={"size": 1.0})  # its first report stands for it
    of_the_best = replace(holds, reports=(holds.reports[0], late))
    assert rungs(scope="all").best_paused([of_the_best]) is of_the_best


def test_a_trial_with_many_reports_is_judged_in_no_time() -> None:
    judge, epochs = rungs(), tuple(epoch / 100 for epoch in range(1, 1001))
    long = running(9, *(1 / epoch for epoch in epochs), epochs=epochs)
    begun = time.process_time()
    for count in range(900, 1001):
        judge.verdict(replace(long, reports=long.reports[:count]), [], earlier=replace(long, reports=long.reports[:50]))
    assert time.process_time() - begun < 3.0  # a quarter of a second each, if all are looked at again


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_report_that_is_not_a_number_is_never_among_the_best(loss: float) -> None:
    waiting = [trial(0, 0.5), trial(1, 0.4), trial(3, loss), trial(4, loss), trial(5, loss)]
    assert rungs().verdict(running(2, 0.1, loss), [trial(7, 0.2, 0.2), trial(8, 0.2, 0.2)]) == PAUSE
    assert rungs().next([each for each in waiting if each.number >= 3]) is None


@pytest.mark.parametrize("n_trials", [None, 6])
def test_trials_that_have_diverged_are_pruned_with_a_budget_alone_too(n_trials: int | None) -> None:
    judge = rungs(n_trials, budget=20.0)
    finite, diverged = [trial(number, 0.5) for number in (0, 1, 2)], [trial(number, math.nan) for number in (3, 4)]
    assert judge.unpromotable([*finite, *diverged]) == diverged
    assert judge.verdict(running(5, math.inf), [*finite, *diverged]) == PRUNE
    assert judge.unpromotable([*finite[:1], *diverged]) == []  # the best may fail
    complete = trial(6, 0.1, 0.1, 0.1, 0.1, state=TrialState.COMPLETE)
    assert rungs(None, budget=20.0).unpromotable([complete, *diverged]) == diverged


def test_with_a_budget_alone_all_others_stay_paused_as_it_may_be_raised() -> None:
    waiting = [trial(number, 0.1 * number) for number in range(9)]
    assert rungs(None, budget=1.0).unpromotable(waiting) == []
    assert rungs(None, budget=1.0).verdict(running(9, 5.0), waiting) == PAUSE


def test_a_report_without_the_metric_judges_nobody_and_the_next_one_does() -> None:
    def sparse(number: int, *values: float) -> TrialRecord:
        found = running(number, *values, epochs=(1, 2, 3, 4))
        reports = [replace(each, metrics={"eval_loss": 0.5}) for each in found.reports]
        return replace(found, reports=tuple(reports))

    f1 = Rungs(
        Study("s", Path("s"), SearchSpace(RATE), resolve_objectives("f1", None, has_metrics=True), 30, "last"),
        LADDER_OF_0_8_0,
    )
    better = [trial(number, 0.9, 0.9) for number in range(6)]
    assert f1.verdict(sparse(9, math.nan), better) == GO_ON
    assert f1.verdict(sparse(10, math.nan, 0.1), better) == PAUSE
    assert f1.verdict(sparse(11, math.nan, 0.95), better) == GO_ON
    assert f1.verdict(sparse(12, 0.95, math.nan, math.nan), better) == GO_ON
    diverged = replace(sparse(13, math.nan), reports=(Report((math.nan,), 1, 1, 1, {"eval_loss": math.inf}, {}, 18.0),))
    assert f1.verdict(diverged, better) == PAUSE


def test_the_last_chance_is_not_for_one_that_has_diverged_while_others_wait() -> None:
    diverged, good = trial(0, 0.1, math.nan), [trial(1, 0.5), trial(2, 0.4)]
    assert rungs().next([diverged, *good], is_last_chance=True) is good[1]
    assert rungs().next([diverged, trial(1, math.nan)], is_last_chance=True) is diverged


def test_what_breaks_a_constraint_comes_after_all_that_holds_them() -> None:
    waiting = [trial(0, 0.1, violations={"size": 3.0}), trial(1, 0.9), trial(2, 0.2, violations={"size": 1.0})]
    assert rungs().next(waiting) is waiting[1]
    assert rungs().next([waiting[0], waiting[2], trial(3, 0.3, violations={"size": 2.0})]) is waiting[2]


def test_the_scope_of_the_study_tells_what_a_report_is_worth() -> None:
    waiting = [trial(0, 0.1, 0.5), trial(1, 0.6, 0.4), trial(2, 0.6, 0.6)]
    assert rungs().next(waiting) is waiting[1]
    assert rungs(scope="all").next(waiting) is waiting[0]


def test_what_is_expected_decides_among_those_that_wait() -> None:
    waiting = [trial(0, 0.5), trial(1, 0.4), trial(2, 0.6)]
    asked: list[int] = []

    def promise(candidates: Any, trials: Any) -> list[float]:
        asked.append(len(trials))
        return [float(each.number == 2) for each in candidates]

    assert rungs().next(waiting, promise) is waiting[2]
    assert asked == [3]
    assert rungs().next(waiting[:2], promise) is None
    gone_on = [*waiting[:2], running(2, 0.6)]
    assert rungs().next(gone_on, promise) is None
    assert rungs().verdict(running(3, 0.9), waiting, promise) == PAUSE


def test_where_what_is_expected_decides_one_that_was_pruned_at_a_rung_has_taken_nobodys_place() -> None:
    waiting = [trial(1, 0.5), trial(2, 0.4)]

    def promise(candidates: Any, trials: Any) -> list[float]:
        return [float(each.number == 1) for each in candidates]

    assert rungs().next([trial(0, 0.9, state=TrialState.PRUNED), *waiting], promise) is waiting[0]
    assert rungs().next([trial(0, 0.9, 0.9, state=TrialState.PRUNED), *waiting], promise) is None


def test_one_that_more_trials_beat_than_can_go_on_is_pruned() -> None:
    better = [trial(number, 0.1) for number in range(4)]
    done = trial(9, 0.1, 0.1, 0.1, 0.1, state=TrialState.COMPLETE)
    assert rungs(n_trials=12).verdict(running(5, 0.5), [*better, done]) == PRUNE
    assert rungs(n_trials=60).verdict(running(5, 0.5), [*better, done]) == PAUSE
    assert rungs(n_trials=6).unpromotable([*better, done]) == better[2:]
    assert rungs(n_trials=60).unpromotable([*better, done]) == []


def test_at_the_end_those_go_on_that_were_ahead_of_the_best_until_a_ninth_or_three_have_trained_to_their_end() -> None:
    best = trial(0, 0.5, 0.45, 0.42, 0.1, state=TrialState.COMPLETE)
    others = [trial(number, 0.3, 0.3, 0.3, 0.2, state=TrialState.COMPLETE) for number in range(1, 5)]
    waiting = [trial(5, 0.6, 0.44), trial(6, 0.3), trial(7, 0.35), trial(8, 0.9), trial(9, 0.9, math.nan)]
    assert rungs().next([best, *waiting], is_last_chance=True) is waiting[0]
    assert rungs().next([best, *waiting[1:]], is_last_chance=True) is waiting[1]
    assert rungs().next([best, others[0], *waiting[2:]], is_last_chance=True) is waiting[2]
    assert rungs().next([best, *waiting[3:]], is_last_chance=True) is None
    assert rungs().next([best, *others[:2], *waiting], is_last_chance=True) is None
    assert rungs(n_trials=45).next([best, *others[:3], *waiting], is_last_chance=True) is waiting[0]
    assert rungs(n_trials=45).next([best, *others, *waiting], is_last_chance=True) is None


def test_until_one_has_trained_to_its_end_three_may_wait() -> None:
    waiting = [trial(number, 0.1 * number) for number in range(1, 6)]
    assert [each.number for each in rungs(n_trials=5).unpromotable(waiting)] == [4, 5]


def test_at_the_end_the_best_of_the_highest_rung_goes_on_until_one_has_a_result() -> None:
    waiting = [trial(0, 0.5, 0.4), trial(1, 0.9), trial(2, 0.3, 0.3)]
    assert rungs().next(waiting) is None
    assert rungs().next(waiting, is_last_chance=True) is waiting[2]
    failed = trial(2, 0.3, 0.3, state=TrialState.FAILED)
    assert rungs().next([*waiting[:2], failed], is_last_chance=True) is waiting[0]
    by_budget = trial(3, 0.2, state=TrialState.STOPPED, reason="the study's 6 epochs are exhausted")
    assert rungs().next([*waiting, by_budget], is_last_chance=True) is waiting[2]
    by_its_own = trial(3, 0.2, state=TrialState.STOPPED, reason="the trial's 6 epochs are exhausted")
    assert rungs().next([waiting[0], by_its_own], is_last_chance=True) is None
    complete = trial(3, 0.5, 0.4, 0.5, 0.5, state=TrialState.COMPLETE)
    assert rungs().next([waiting[0], complete], is_last_chance=True) is None
    breaks = trial(3, 0.5, 0.5, 0.5, 0.5, state=TrialState.COMPLETE, violations={"size": 1.0})
    assert rungs().next([waiting[0], breaks], is_last_chance=True) is waiting[0]


def test_of_short_trainings_a_report_may_pass_several_rungs() -> None:
    one = Report((0.5,), 1, 1, 1, {}, horizon=2.0)  # half of the training
    short = [TrialRecord(number, f"run-{number}", TrialState.PAUSED, {}, reports=(one,)) for number in range(3)]
    assert rungs().next(short) is short[0]


def shorter(number: int, *losses: float, epochs: int, state: TrialState = TrialState.COMPLETE) -> TrialRecord:
    """A trial of so many epochs, which was evaluated after each of them."""
    reports = [Report((loss,), place, place, place, {}, horizon=float(epochs)) for place, loss in enumerate(losses, 1)]
    values = (losses[-1],) if state.has_result else ()
    return TrialRecord(number, f"run-{number}", state, {}, reports=tuple(reports), values=values)


def test_a_training_that_is_over_before_its_first_evaluation_is_nothing_to_compare_with_at_a_rung() -> None:
    waiting = [trial(0, 0.5), trial(1, 0.4)]
    over = [shorter(number, 0.01, epochs=1) for number in range(2, 6)]
    assert rungs().verdict(running(6, 0.3), [*waiting, *over]) == GO_ON
    assert rungs(n_trials=9).unpromotable([*waiting, *over, trial(6, 0.6)]) == []
    assert rungs(n_trials=7).next([*waiting, *over, trial(6, 0.6)], is_last_chance=True) is waiting[1]


def test_the_last_chance_beside_a_shorter_training_is_for_what_may_be_better() -> None:
    over = shorter(0, 0.3, epochs=1)
    diverged, breaks = trial(1, math.nan), trial(2, 0.1, violations={"size": 2.0})
    assert rungs(n_trials=3).next([over, diverged, breaks], is_last_chance=True) is None
    assert rungs(n_trials=4).next([over, diverged, breaks, one := trial(3, 0.5)], is_last_chance=True) is one
    ended = [trial(number, 0.6, 0.6, 0.6, 0.6, state=TrialState.COMPLETE) for number in (4, 5)]
    assert rungs(n_trials=6).next([over, *ended, diverged, trial(3, 0.9)], is_last_chance=True) is None


def test_trials_of_several_lengths_meet_where_they_are_evaluated_between_the_same_rungs() -> None:
    of_five = [shorter(number, 0.5 + number / 10, epochs=5, state=TrialState.PAUSED) for number in range(2)]
    of_two = [shorter(number, 0.1, epochs=2, state=TrialState.PAUSED) for number in range(2, 5)]
    third = shorter(5, 0.4, epochs=4, state=TrialState.RUNNING)
    assert rungs().verdict(third, [*of_five, *of_two]) == GO_ON
    assert rungs().verdict(shorter(5, 0.55, epochs=4, state=TrialState.RUNNING), [*of_five, *of_two]) == PAUSE
    assert rungs().next([*of_five, *of_two]) is of_two[0]


def test_one_that_has_passed_a_rung_without_an_evaluation_takes_nobodys_place_there() -> None:
    jumped = [shorter(number, 0.1, 0.1, epochs=2) for number in range(3)]
    waiting = [trial(3, 0.5), trial(4, 0.4), trial(5, 0.6)]
    assert (
        rungs().next([*jumped, *waiting], lambda candidates, known: [-each.number for each in candidates]) is waiting[0]
    )


# Whole searches.

IN_WORKERS_TOO = pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="in this process"),
        pytest.param({"n_jobs": 2}, id="in workers", marks=pytest.mark.process),
    ],
)


class Counts(TrainerCallback):
    """Counts the updates of all trials."""

    def __init__(self) -> None:
        self.updates = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.updates += 1


def search(folder: Path, *callbacks: Any, n_trials: int = 9, **options: Any) -> Any:
    arguments = {"num_train_epochs": EPOCHS, **options.pop("trainer", {})}
    return small_trainer(folder, *callbacks, **arguments).hyperparameter_search(
        RATE,
        "loss",
        n_trials=n_trials,
        **{"progress": False, "storage": "journal", "pruner": LADDER_OF_0_8_0, **options},
    )


@IN_WORKERS_TOO
@pytest.mark.parametrize("evaluation", [{}, {"eval_strategy": "steps", "eval_steps": 3}], ids=["epochs", "steps"])
def test_a_trial_that_has_waited_ends_as_one_that_has_not(tmp_path: Path, options: Any, evaluation: Any) -> None:
    events = Events()
    best = search(tmp_path, progress=events, trainer=evaluation, **options)
    paused = {each.number for each in events.ended if each.state is TrialState.PAUSED}
    whole = [each for each in best.run_summary.records if each.state is TrialState.COMPLETE]
    assert paused & {each.number for each in whole}
    for record in whole:
        again = small_trainer(tmp_path, num_train_epochs=EPOCHS, **evaluation).replay(
            number=record.number, progress=False
        )
        assert again.is_equal, again.first_difference


@pytest.mark.slow
@IN_WORKERS_TOO
def test_few_are_trained_to_their_end_and_all_are_accounted_for(tmp_path: Path, options: Any) -> None:
    best = search(tmp_path, n_trials=18, **options)
    records = best.run_summary.records
    assert [each.number for each in records] == list(range(18))
    complete = [each for each in records if each.state is TrialState.COMPLETE]
    assert 1 <= len(complete) <= 6
    assert {each.state for each in records} == {TrialState.COMPLETE, TrialState.PRUNED}
    assert sum(each.epochs for each in records) < 18 * EPOCHS / 2
    assert best.objective == min(each.value for each in complete)
    assert best.load_model() is not None
    left = [path.parent.name for path in (tmp_path / "study").glob("*/checkpoint-*")]
    assert left == [f"run-{best.run_id}"]
    stored = best.run_summary.engine_study.trials
    assert {each.state.name for each in stored} == {"COMPLETE", "PRUNED"}
    for each, record in zip(stored, records, strict=True):
        assert each.value == record.reports[-1].value
    assert sum(best.run_summary.importances().values()) == pytest.approx(1.0)


@pytest.mark.slow
def test_a_trial_that_waits_runs_for_optuna_and_has_its_state_beside_it(tmp_path: Path) -> None:
    seen: list[tuple[str, str | None]] = []

    class Looks(Events):
        def on_trial_end(self, record: TrialRecord) -> None:
            if record.state is TrialState.PAUSED:
                study = optuna.load_study(study_name="study", storage=f"sqlite:///{tmp_path}/study/study.db")
                stored = study.trials[record.number]
                seen.append((stored.state.name, stored.user_attrs.get("hpsearch:state")))
                assert (tmp_path / "study" / record.name / f"checkpoint-{record.reports[-1].step}").is_dir()

    search(tmp_path, progress=Looks(), storage=None)
    assert seen
    assert set(seen) == {("RUNNING", "paused")}


@pytest.mark.slow
def test_a_budget_ends_the_search_with_the_best_of_those_that_wait(tmp_path: Path) -> None:
    best = search(tmp_path, n_trials=18, max_epochs=6)
    records = best.run_summary.records
    assert TrialState.PAUSED in {each.state for each in records}
    assert best.objective == min(each.reports[-1].value for each in records if each.reports)
    assert best.load_model() is not None
    goes_on = search(tmp_path, n_trials=18)
    assert {each.state for each in goes_on.run_summary.records} == {
        TrialState.COMPLETE,
        TrialState.PRUNED,
        TrialState.STOPPED,
    }


@pytest.mark.parametrize(
    ("n_jobs", "is_leaving"), [(1, False), (1, True), pytest.param(2, True, marks=pytest.mark.process)]
)
def test_of_several_searches_that_a_budget_ends_the_last_one_lets_the_best_that_waits_stand(
    tmp_path: Path, n_jobs: int, is_leaving: bool
) -> None:
    (tmp_path / "study").mkdir()
    other = Session(tmp_path / "study")
    other.begin()
    if is_leaving:  # it has come to its end, and ends its workers, say
        other.leave()
    records = search(tmp_path, n_trials=18, max_epochs=6, n_jobs=n_jobs).run_summary.records
    best = min((each for each in records if each.reports), key=lambda each: each.reports[-1].value)
    waits = {TrialState.STOPPED, TrialState.COMPLETE} if is_leaving else {TrialState.PAUSED}
    other.end()
    assert best.state in waits
    if not is_leaving:
        again = search(tmp_path, n_trials=18, max_epochs=6, n_jobs=n_jobs).run_summary.records
        assert again[best.number].state is TrialState.STOPPED


@pytest.mark.parametrize("budget", [{"trial_max_epochs": 2}, {"max_epochs": 12}], ids=["of a trial", "of the search"])
def test_a_whole_epoch_that_a_budget_ends_is_evaluated(tmp_path: Path, budget: Any) -> None:
    best = search(tmp_path, n_trials=9, trainer={"save_strategy": "epoch"}, **budget)
    stopped = [each for each in best.run_summary.records if each.state is TrialState.STOPPED]
    assert stopped
    for each in stopped:
        assert [report.epoch for report in each.reports] == [1.0 + place for place in range(int(each.epochs))]
        assert each.value == each.reports[-1].value
    assert max(each.epochs for each in stopped) > 1


class PausesLast(TrainerCallback, Events):
    """Holds the other trials until trial 1 has written its checkpoint, and holds trial 1 there until the search ends.

    Trials are held in the workers; the process that searches notices the end of the search.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._saved, self._is_over = folder / "saved", folder / "over"

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if Path(args.output_dir).name != "run-1":
            wait_for(self._saved)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if Path(args.output_dir).name == "run-1":
            self._saved.touch()
            wait_for(self._is_over)

    def on_notice(self, notice: str) -> None:
        if notice.startswith("the search ends early"):
            self._is_over.touch()


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


@pytest.mark.process
def test_a_trial_that_pauses_when_a_budget_has_ended_the_search_may_be_its_best(tmp_path: Path) -> None:
    rates = [{"learning_rate": rate} for rate in (1e-4, 0.05, 2e-4, 3e-4, 4e-4, 5e-4)]
    events = PausesLast(tmp_path)
    best = search(tmp_path, events, max_epochs=5, n_jobs=2, start_with=rates, progress=events)
    ended = [each.number for each in events.ended]
    others = ended[: ended.index(1)]
    assert set(others) >= {0, 2, 3}
    assert set(ended[len(others) :]) == {1}  # the others had ended, and the search had looked for the best of them
    assert best.run_id == "1"
    assert best.objective == min(each.reports[-1].value for each in best.run_summary.records if each.reports)
    assert best.load_model() is not None


class FailsToGoOn(TrainerCallback):
    """Raises in a trial that has waited, before it trains any further."""

    def __init__(self, error: Any) -> None:
        self._error = error

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step:
            raise self._error


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["model_init", "on_train_begin"])
def test_one_that_ends_before_it_has_gone_on_keeps_what_it_has_shown(tmp_path: Path, error: Any, where: str) -> None:
    def fails_to_go_on(trial: Any) -> None:
        if trial.earlier is not None:
            raise error

    events = Events()
    in_model_init = where == "model_init"
    trainer = {"model_init": CountsModels(fails_to_go_on)} if in_model_init else {}
    callbacks = [] if in_model_init else [FailsToGoOn(error)]
    with contextlib.suppress(NoCompletedTrialError, TooManyFailuresError, SearchInterrupted):
        search(tmp_path, *callbacks, progress=events, trainer=trainer)
    shown = {each.number: each for each in events.ended if each.state is TrialState.PAUSED}
    ended = [each for each in events.ended if each.number in shown and each.state is not TrialState.PAUSED]
    assert {each.state for each in ended} <= {TrialState.FAILED, TrialState.INTERRUPTED, TrialState.PRUNED}
    assert any(each.state is not TrialState.PRUNED for each in ended)
    for each in ended:
        before = shown[each.number]
        assert (each.reports, each.epochs, each.values) == (before.reports, before.epochs, before.values)


def test_of_one_that_had_shown_nothing_before_what_it_has_been_trained_with_now_counts() -> None:
    begun = replace(running(0), hyperparameters={"learning_rate": 0.1})
    failed = replace(begun, state=TrialState.FAILED, hyperparameters={"learning_rate": 0.1, "hidden": 3})
    assert failed.going_on_from(begun) == failed


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.process)])
def test_those_that_wait_are_trained_to_their_end_if_nothing_is_pruned_any_more(tmp_path: Path, n_jobs: int) -> None:
    waiting = [each.number for each in search(tmp_path, max_epochs=6).run_summary.records if each.state == "paused"]
    assert waiting
    records = search(tmp_path, pruner=None, n_jobs=n_jobs).run_summary.records
    assert all(records[number].state is TrialState.COMPLETE for number in waiting)
    assert all(len(records[number].reports) == EPOCHS for number in waiting)


def test_without_what_a_checkpoint_needs_to_go_on_a_trial_begins_again_and_ends(tmp_path: Path) -> None:
    best = search(tmp_path, trainer={"save_only_model": True})
    assert len(best.run_summary.records) == 9
    assert best.run_summary.count(TrialState.COMPLETE) >= 1


def test_an_interrupted_search_goes_on_with_those_that_wait(tmp_path: Path) -> None:
    class Interrupts(Events):
        def on_trial_end(self, record: TrialRecord) -> None:
            if record.number == 4:
                raise KeyboardInterrupt

    whole = search(tmp_path / "whole")
    with pytest.raises((SearchInterrupted, KeyboardInterrupt)):
        search(tmp_path / "parts", progress=Interrupts())
    parts = search(tmp_path / "parts")
    for one, other in zip(parts.run_summary.records, whole.run_summary.records, strict=True):
        assert (one.state, one.params, one.values) == (other.state, other.params, other.values)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"pruner": "rungs"},
            "the first 3 run to 50% and the first one and every 8th to completion (default; pruner=",
        ),
        ({"pruner": None}, "pruner none: every trial runs to completion"),
        ({"n_trials": 3}, "pruner none: every trial runs to completion, as there are fewer than 4"),
        (
            {"trainer": {"eval_strategy": "no"}},
            "pruner none: every trial runs to completion, as there is no evaluation during training",
        ),
        ({"pruner": "median"}, "pruner MedianPruner"),
        ({"sampler": optuna.samplers.GridSampler({"learning_rate": [1e-3, 1e-2, 1e-1, 1.0]})}, "to completion"),
    ],
    ids=["default", "None", "three trials", "no evaluation", "median", "grid"],
)
def test_what_happens_to_trials_is_said(tmp_path: Path, options: Any, said: str) -> None:
    events = Events()
    search(tmp_path, progress=events, **{"n_trials": 4, **options})
    assert said in "; ".join(events.notes)


def suggests_or_says(trial: Any) -> dict[str, Any]:
    """A space in which one kind of trial suggests what another one has as a constant, outside of what is suggested."""
    params = {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1.0, log=True)}
    if trial.suggest_categorical("lr_scheduler_type", ["linear", "constant"]) == "linear":
        params["optim"] = trial.suggest_categorical("optim", ["sgd", "adamw_torch"])
        params["weight_decay"] = trial.suggest_float("weight_decay", 0.1, 0.3, log=True)
    else:
        params |= {"optim": "rmsprop", "weight_decay": 0.0}
    return {**params, "lr_scheduler_type": trial.params["lr_scheduler_type"]}


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.process)])
def test_what_a_function_says_without_suggesting_it_is_nothing_to_learn_from(tmp_path: Path, n_jobs: int) -> None:
    trainer = small_trainer(tmp_path, num_train_epochs=EPOCHS)
    best = trainer.hyperparameter_search(
        suggests_or_says, "loss", n_trials=12, storage="journal", n_jobs=n_jobs, progress=False
    )
    records = best.run_summary.records
    assert {each.state for each in records} == {TrialState.COMPLETE, TrialState.PRUNED}
    assert {each.params["optim"] for each in records} == {"sgd", "adamw_torch", "rmsprop"}


@pytest.mark.slow
def test_the_storage_is_read_once_for_every_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    read = optuna.storages.RDBStorage._get_trials

    def counted(storage: Any, *args: Any, **kwargs: Any) -> Any:
        reads.append(1)
        return read(storage, *args, **kwargs)

    monkeypatch.setattr(optuna.storages.RDBStorage, "_get_trials", counted)
    events = Events()
    search(tmp_path, progress=events, n_trials=12, storage=None)
    at_the_ends_of_the_search = 10
    assert len(events.ended) > 12  # those that have waited have ended twice
    assert len(reads) <= len(events.ended) + at_the_ends_of_the_search


@pytest.mark.slow
def test_rungs_spare_most_of_the_training(tmp_path: Path) -> None:
    with_rungs, in_full = Counts(), Counts()
    search(tmp_path / "rungs", with_rungs, n_trials=18)
    search(tmp_path / "full", in_full, n_trials=18, pruner=None)
    assert in_full.updates == 18 * EPOCHS * 4
    assert with_rungs.updates < in_full.updates / 2


# Trials without an improvement.


def test_trials_without_an_improvement_are_counted_since_the_last_one_that_was_best_so_far_at_any_rung() -> None:
    def count(*trials: TrialRecord) -> int:
        return rungs().count_since_improvement(list(trials)[::-1])

    first = trial(0, 0.5, 0.4)
    assert count() == count(first) == 0
    assert count(first, trial(1, 0.6), trial(2, 0.5)) == 2  # equals are no better
    assert count(first, trial(1, 0.6), trial(2, 0.4)) == 0
    assert count(first, trial(1, 0.6), trial(2, 0.45, 0.45)) == 0  # at the lower rung
    assert count(first, trial(1, 0.6), trial(2, 0.7, 0.3)) == 0  # at the higher one
    assert count(first, trial(1, 0.6), trial(2, 0.7, 0.4, 0.4)) == 0  # the first that came so far
    assert count(first, trial(1, 0.6, state=TrialState.FAILED), trial(2, state=TrialState.FAILED)) == 2
    assert count(first, trial(1, 0.1, state=TrialState.FAILED)) == 1
    assert count(first, running(1), trial(2, 0.1, state=TrialState.REFUSED)) == 0
    assert count(first, running(1, 0.6), running(2, 0.6, 0.6)) == 0  # they may become better
    assert count(first, trial(1, 0.6), running(2, 0.3)) == 0
    assert count(first, trial(1, math.inf), trial(2, math.nan)) == 2


def test_of_the_waiting_trials_those_of_higher_rungs_are_better_and_at_a_rung_those_with_better_reports() -> None:
    waiting = [trial(0, 0.5), trial(1, 0.1), trial(2, 0.9, 0.8), trial(3, 0.2), trial(4, 0.9, 0.7), trial(5)]
    over = [trial(6, 0.0, state=TrialState.PRUNED), running(7, 0.0)]
    assert [each.number for each in rungs().paused([*over, *waiting])] == [4, 2, 1, 3, 0, 5]
