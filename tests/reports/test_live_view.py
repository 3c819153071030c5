"""The live view: what it shows of the trials that run, one or thousands at once, in a terminal of any size."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hpsearch import FixedTrial, Report, TrialState
from hpsearch.reports.live_view import LiveView
from hpsearch.search.listener import showing
from hpsearch.search.metrics.objective import resolve_objectives
from tests.support.rendering import Screen, make_study, record, report, reports, shown, text_console

Begin = Callable[..., Screen]


@pytest.fixture
def begin() -> Iterator[Begin]:
    begun: list[Screen] = []

    def begin(width: int = 80, height: int = 40, **settings: Any) -> Screen:
        begun.append(Screen(width, height))
        begun[-1].begin(**settings)
        return begun[-1]

    yield begin
    for screen in begun:
        screen.view.on_search_end(make_study(), [])


@pytest.fixture
def screen(begin: Begin) -> Screen:
    return begin()


def test_before_a_search_nothing_is_shown() -> None:
    assert Screen().lines == [""]


def test_a_single_trial_is_shown_with_its_progress_its_curve_and_below_its_parameters(screen: Screen) -> None:
    screen.end(0)
    trial = FixedTrial({"x": 0.123456, "kind": "[bold]"}, number=1)
    screen.view.on_trial_begin(trial)
    assert "trial 1" in screen.lines[2]
    assert "starting" in screen.lines[2]
    for step, value in enumerate([0.1, 0.5, 0.9], start=1):
        screen.view.on_progress(trial, step, 12)
        screen.view.on_report(trial, report(value, step))
    assert screen.lines[0].endswith("1%, trials 1/100, 0:00")
    assert screen.lines[1] == "  best so far 0.9 (trial 1, running); best result 0.5 (trial 0)"
    assert screen.lines[2].endswith("3/12 ▁▅█ 0.9")
    assert screen.lines[3:] == ["  x=0.1235, kind=[bold]"]
    assert "[1/100] trial 0 complete 0.5" in screen.printed.getvalue()


@pytest.mark.parametrize(("width", "running"), [(80, 1), (120, 1), (80, 2), (80, 4), (120, 4)])
def test_no_value_of_a_parameter_is_lost_where_there_is_room(begin: Begin, width: int, running: int) -> None:
    params = {"learning_rate": 0.03154, "weight_decay": 3.535e-05, "lr_scheduler_type": "cosine", "adam_beta1": 0.8153}
    params |= {"warmup_steps": 0.1358, "max_grad_norm": 0.3465}
    screen = begin(width, 40)
    for number in range(running):
        trial = FixedTrial(dict(params), number)
        screen.view.on_trial_begin(trial)
        for step in range(1, 13):
            screen.view.on_progress(trial, step, 1200)
            screen.view.on_report(trial, report(0.1234 * step, step))
    shown = "\n".join(screen.lines)
    assert "…" not in shown
    assert all(shown.count(f"{name}={value}") == running for name, value in params.items()), shown
    assert all(len(line) <= width for line in screen.lines)


def test_the_end_of_a_search_closes_the_display_also_with_trials_that_still_run(screen: Screen) -> None:
    screen.run(0, 1)
    assert screen.view._live.is_started
    screen.view.on_search_end(make_study(), [])
    assert not screen.view._live.is_started
    assert not screen.trials


def test_trials_that_run_at_once_have_a_line_each_whatever_the_order_of_their_events(screen: Screen) -> None:
    first, second, third = screen.run(7, 5, 12)
    screen.view.on_progress(third, 3, 10)
    screen.view.on_progress(first, 1, 20)
    screen.view.on_report(third, report(0.25, 3))
    screen.view.on_progress(second, 9, 10)
    screen.view.on_report(first, report(0.5, 2))
    screen.view.on_report(third, report(0.75, 6))
    words = {number: line.replace("━", "").replace("╸", "").split() for number, line in screen.trials.items()}
    assert list(words) == [5, 7, 12]
    assert words[5][2:] == ["9/10", "x=0.625"]
    assert words[7][2:] == ["2/20", "▅", "0.5", "x=0.875"]  # on the scale of all curves
    assert words[12][2:] == ["6/10", "▁█", "0.75", "x=1.5"]
    bars = {number: line.count("━") for number, line in screen.trials.items()}
    assert bars[5] > bars[12] > bars[7]
    screen.end(7)
    assert list(screen.trials) == [5, 12]


@pytest.mark.parametrize("width", [30, 80, 200])
@pytest.mark.parametrize("height", [4, 15, 40])
@pytest.mark.parametrize("running", [1, 4, 45, 3000])
def test_the_display_fits_any_terminal_and_leaves_room_for_the_lines_above(
    begin: Begin, width: int, height: int, running: int
) -> None:
    screen = begin(width, height, n_trials=10_000)
    names = [f"a.rather.long.name.{index}" for index in range(20)]
    for number in range(running):
        trial = FixedTrial(dict.fromkeys(names, "two\nlines"), number)
        screen.view.on_trial_begin(trial)
        screen.view.on_progress(trial, 1, 10)
    lines = screen.lines
    more = running - len([line for line in lines if line.startswith("trial")])
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= max(height * 2 // 3, 4)
    is_cut = any(line.endswith("…") for line in lines[2:])
    assert is_cut or all(" ".join(lines).count(f"{name}=two") == running for name in names)
    assert lines[-1].startswith(f"and {more} more running") if more else "more running" not in lines[-1]


def test_what_there_is_room_for_is_shown(begin: Begin) -> None:
    screen = begin(height=15)
    screen.run(*range(8))
    assert list(screen.trials) == list(range(8))
    screen.run(8)
    assert len(screen.trials) == 7
    assert screen.lines[-1] == "and 2 more running"


def test_lines_stay_where_they_are_while_their_trials_go_on_and_then_go_to_those_heard_last(begin: Begin) -> None:
    screen = begin(height=15)
    trials = screen.run(*range(20))
    before = list(screen.trials)
    for step in range(1, 4):
        for trial in trials:
            screen.now += 0.1
            screen.view.on_progress(trial, step, 10)
            assert list(screen.trials) == before
    for number in (12, 9):
        screen.now += 0.1
        screen.view.on_progress(trials[number], 5, 10)
    screen.end(*before[:2])
    assert list(screen.trials) == [*before[2:], 9, 12]


def test_a_trial_that_waits_without_a_worker_says_so_and_gives_its_place_to_others(begin: Begin) -> None:
    screen = begin(width=200, height=15)
    trials = screen.run(*range(10))
    waiting = list(screen.trials)
    screen.now += 125
    assert all("no news for 2:05" in line for line in screen.trials.values())
    assert screen.lines[-1] == "and 3 more running, 3 of them without news for two minutes"
    told = [trial for trial in trials if trial.number not in waiting]
    for trial in told:
        screen.view.on_progress(trial, 5, 10)
    assert [number for number, line in screen.trials.items() if "no news" not in line] == [7, 8, 9]
    assert screen.lines[-1] == "and 3 more running, 3 of them without news for two minutes"
    screen.view.on_progress(trials[0], 5, 10)
    assert "no news" not in screen.trials[0]


def test_a_trial_that_lost_its_worker_falls_back_with_its_progress_and_its_curve(screen: Screen) -> None:
    trial, _ = screen.run(0, 1)
    for step, value in [(10, 0.1), (20, 0.2), (30, 0.9)]:
        screen.view.on_report(trial, report(value, step))
        screen.view.on_progress(trial, step, 100)
    assert "30/100 ▁▂█ 0.9" in screen.trials[0]
    screen.view.on_notice("trial 0 has lost its worker (killed): it resumes in another one")
    assert "trial 0 has lost its worker (killed)" in screen.printed.getvalue()
    screen.view.on_progress(trial, 0, 0)
    assert "starting 0:00 ▁▂█ 0.9" in screen.trials[0]
    screen.view.on_progress(trial, 21, 100)
    assert "21/100 ▁▂ 0.2" in screen.trials[0]
    screen.view.on_report(trial, report(0.15, 20))
    assert "▁▁ 0.15" in screen.trials[0]


def test_a_trial_of_an_earlier_session_begins_with_the_curve_that_it_had(screen: Screen) -> None:
    trial = FixedTrial({}, 3)
    trial.earlier = record(3, state=TrialState.INTERRUPTED, reports=reports(0.1, 0.5, 0.9))
    screen.view.on_records([trial.earlier])
    screen.view.on_trial_begin(trial)
    assert "starting 0:00 ▁▅█ 0.9" in screen.trials[3]
    screen.view.on_progress(trial, 2, 10)
    assert "2/10 ▁▅ 0.5" in screen.trials[3]


def test_a_trial_that_ends_without_having_begun_is_told_and_counted(screen: Screen) -> None:
    screen.run(0)
    screen.end(1, state=TrialState.FAILED)
    assert "[1/100] trial 1 failed" in screen.printed.getvalue()
    assert screen.lines[0].endswith("trials 1/100, 0:00")
    assert list(screen.trials) == [0]


def test_what_is_told_of_a_trial_after_its_end_does_not_bring_it_back(screen: Screen) -> None:
    (trial,) = screen.run(0)
    screen.end(0)
    screen.view.on_progress(trial, 5, 10)
    screen.view.on_report(trial, report(0.5, 5))
    assert not screen.trials


def test_parameters_that_a_trial_asks_for_while_it_is_drawn_are_shown_the_next_time(screen: Screen) -> None:
    trial, _ = screen.run(0, 1)

    class Asks:
        def __str__(self) -> str:
            trial.params.values_by_name["layers"] = 2
            return "small"

    trial.params.values_by_name["size"] = Asks()
    assert screen.trials[0].endswith("x=0, size=small")
    assert screen.trials[0].endswith("x=0, size=small, layers=2")


def test_of_several_objectives_all_latest_values_are_shown(begin: Begin) -> None:
    screen = begin(objectives=resolve_objectives(["accuracy", "loss"], ["maximize", "minimize"], has_metrics=True))
    (trial,) = screen.run(0)
    screen.view.on_report(trial, Report((0.75, 12.5), 1, 1, 1.0, {}))
    assert screen.trials[0].endswith("▁ 0.75, 12.5")


def run_waves(screen: Screen, waves: int, at_once: int = 4, seconds: float = 60.0) -> None:
    for wave in range(waves):
        numbers = range(wave * at_once, (wave + 1) * at_once)
        screen.run(*numbers)
        screen.now += seconds
        screen.end(*numbers)


def test_the_time_left_is_that_of_the_trials_that_remain_at_the_pace_of_this_session(begin: Begin) -> None:
    screen = begin(records=[record(number, 0.5) for number in range(50, 90)])
    assert screen.lines[0].endswith("40%, trials 40/100, 0:00")
    run_waves(screen, 1)
    screen.end(90)  # has not run here
    assert screen.lines[0].endswith("45%, trials 45/100, 1:00, about 14 min left")


def test_the_time_left_runs_down_between_the_ends_of_trials(begin: Begin) -> None:
    screen = begin(n_trials=12)
    run_waves(screen, 2)
    trials = screen.run(*range(8, 12))
    told = []
    for step in range(4):
        for trial in trials:
            screen.view.on_progress(trial, step, 3)
        told.append(screen.lines[0].partition("about ")[2])
        screen.now += 20
    assert told == ["60 s left", "40 s left", "20 s left", ""]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"timeout": 300}, "40%, trials 8/100, 2:00, about 3 min left"),
        ({"max_epochs": 10}, "80%, trials 8/100, 2:00, about 52 s left"),
        ({"budget": 10.0}, "80%, trials 8/100, 8/10 full runs, 2:00, about 52 s left"),
    ],
)
def test_of_several_limits_the_nearest_one_decides(begin: Begin, settings: dict[str, Any], told: str) -> None:
    screen = begin(120, **settings)
    for wave in (0, 4):
        screen.run(*range(wave, wave + 4))
        screen.now += 60
        for number in range(wave, wave + 4):
            screen.view.on_trial_end(record(number, 0.5, epochs=1.0, fraction=1.0))
    assert screen.lines[0].endswith(told)


def test_a_trial_that_resumes_is_paused_no_more(screen: Screen) -> None:
    for number in range(4):
        screen.run(number)
        screen.now += 15
        screen.view.on_trial_end(record(number, 0.5, TrialState.PAUSED, reports=reports(0.5), fraction=0.5))
    assert ", trials 0/100, 4 paused, 1:00" in screen.lines[0]
    assert screen.lines[1] == "  best so far 0.5 (trial 0, paused)"
    goes_on = FixedTrial({"x": 0.0}, 0)
    goes_on.earlier = record(0, 0.5, TrialState.PAUSED, reports=reports(0.5))
    screen.view.on_trial_begin(goes_on)
    assert ", 3 paused, " in screen.lines[0]
    assert screen.lines[1] == "  best so far 0.5 (trial 0, running)"
    screen.now += 60
    screen.view.on_trial_end(record(0, 0.5, reports=reports(0.5), fraction=1.0))
    assert ", trials 1/100, 3 paused, 2:00" in screen.lines[0]
    assert screen.lines[1] == "  best 0.5 (trial 0)"


def test_the_curves_of_all_trials_are_on_one_scale(screen: Screen) -> None:
    low, high = screen.run(0, 1)
    for step in (1, 2):
        screen.view.on_report(low, report(0.1 * step, step))
        screen.view.on_report(high, report(0.8 + 0.1 * step, step))
    assert " ▁▂ " in screen.trials[0]
    assert " ▇█ " in screen.trials[1]


def test_before_the_first_step_a_spinner_turns_beside_what_is_done() -> None:
    screen = Screen()
    with showing(screen.view, "importing study.py"):
        first = screen.lines
        screen.now += 3.25
        assert [first, screen.lines] == [["⠋ importing study.py 0:00"], ["⠸ importing study.py 0:03"]]
    assert screen.lines == [""]
    assert not screen.view._live.is_started
    with showing(screen.view, "opening the study"):
        screen.begin()
    screen.now += 4
    assert screen.lines[2].endswith("preparing the first trial 0:04")
    screen.run(0)
    screen.now += 9
    assert "starting 0:09" in screen.lines[2]
    screen.view.on_search_end(make_study(), [])


def test_events_of_several_threads_and_the_display_do_not_disturb_each_other() -> None:
    console, stream = text_console(120, height=15, force_terminal=True)
    view, n_trials = LiveView(console), 300
    errors: list[BaseException] = []

    def work(first: int) -> None:
        rng = random.Random(first)
        waiting, running = list(range(first, n_trials, 2)), []
        try:
            while waiting or running:
                while waiting and len(running) < 20:
                    running.append(FixedTrial({"x": 0.5}, waiting.pop()))
                    view.on_trial_begin(running[-1])
                trial = running.pop(rng.randrange(len(running)))
                trial.params.values_by_name[f"y{rng.random()}"] = 1
                view.on_progress(trial, rng.randrange(10), 10)
                view.on_report(trial, report(rng.random(), rng.randrange(10)))
                if rng.random() < 0.5:
                    view.on_trial_end(record(trial.number, rng.random()))
                else:
                    running.append(trial)
        except BaseException as error:
            errors.append(error)

    view.on_search_begin(make_study(n_trials), [], [])
    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 1)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        view._render()
        time.sleep(0)
    rendered = shown(view._render())
    view.on_search_end(make_study(n_trials), [])
    assert not errors
    assert "300/300" in rendered
    assert "trial " not in "".join(rendered.splitlines()[2:])
    assert all(f"] trial {number} complete" in stream.getvalue() for number in range(n_trials))
