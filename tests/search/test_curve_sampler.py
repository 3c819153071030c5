"""What the default sampler learns from trials, and at which points of its cube it compares what it may propose."""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from threadpoolctl import threadpool_info, threadpool_limits

from hpsearch import Categorical, Float, Report, SearchSpace, TrialRecord, TrialState
from hpsearch.ledger import curve_sampler
from hpsearch.ledger.branches import branches_of, branches_shown
from hpsearch.ledger.curve_data import CurveData
from hpsearch.ledger.curve_sampler import CurveSampler
from hpsearch.ledger.unit_cube import Cube
from hpsearch.search.learning_curves import curves, proposal
from hpsearch.search.metrics.objective import resolve_objectives

[OBJECTIVE] = resolve_objectives("loss", "minimize", has_metrics=False)
BETWEEN = {"x": FloatDistribution(0.0, 1.0)}
CHOICES = CategoricalDistribution(("adam", "sgd", "lion"))
OF_SGD = FloatDistribution(0.0, 1.0)
SGD_ONLY = SearchSpace({"optim": Categorical({"adam": {}, "sgd": {"momentum": Float(0.0, 1.0)}, "lion": {}})})


def record(number: int, state: TrialState, *reports: tuple[float, float]) -> TrialRecord:
    """Return a trial with these shares of its training and losses."""
    shown = [Report((loss,), share, 1, share, {}, horizon=1.0) for share, loss in reports]
    return TrialRecord(number, f"run-{number}", state, {}, reports=tuple(shown))


def study_of(params: Sequence[dict[str, Any]], distributions: dict[str, BaseDistribution]) -> optuna.Study:
    study = optuna.create_study()
    for each in params:
        had = {name: distributions[name] for name in each}
        study.add_trial(optuna.trial.create_trial(params=each, distributions=had, value=0.0))
    return study


def proposals(sampler: CurveSampler, study: optuna.Study, records: Sequence[TrialRecord]) -> list[dict[str, Any]]:
    """Return what the model proposes in ten draws, of which some are left to chance."""
    sampler.trials = records
    trial = study.get_trials()[-1]
    space = sampler.infer_relative_search_space(study, trial)
    asked = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING)
    asked.number = len(records)
    found = [sampler.sample_relative(study, asked, space) for _ in range(10)]
    return [each for each in found if each]


def test_where_trials_fail_is_left_however_good_their_reports_were_before() -> None:
    places = np.linspace(0.02, 0.98, 25)
    study = study_of([{"x": float(x)} for x in places], BETWEEN)
    curve = [(1 / 18, 1.0), (1 / 6, 0.9)]
    records = [
        record(number, TrialState.FAILED, (1 / 18, 0.1 - x / 100))
        if x > 0.6
        else record(number, TrialState.PAUSED, *((share, loss - x / 10) for share, loss in curve))
        for number, x in enumerate(places)
    ]
    proposed = proposals(CurveSampler(0, OBJECTIVE, first=8), study, records)
    assert len(proposed) >= 6
    assert all(each["x"] < 0.65 for each in proposed), proposed


def misled() -> tuple[optuna.Study, list[TrialRecord]]:
    """Trials of which those with a large x lead at first, and most are paused then; at the end a small x is best."""
    places = np.random.default_rng(0).random(24)
    records = [
        record(number, TrialState.COMPLETE, (1 / 6, 1 - x), (1 / 2, x), (1.0, x))
        if number < 5
        else record(number, TrialState.PAUSED, (1 / 6, 0.5 - x))
        for number, x in enumerate(places)
    ]
    return study_of([{"x": float(x)} for x in places], BETWEEN), records


def test_early_reports_that_mislead_are_ignored() -> None:
    study, records = misled()
    sampler = CurveSampler(0, OBJECTIVE, first=8)
    assert max(each["x"] for each in proposals(sampler, study, records)) > 0.9
    sampler.reliable_from = lambda trials: 1 / 2
    assert max(each["x"] for each in proposals(sampler, study, records)) < 0.4


def test_of_paused_trials_those_are_promoted_that_reliable_reports_promise_most_of() -> None:
    study, records = misled()
    sampler = CurveSampler(0, OBJECTIVE, first=8)
    places = np.array([study.trials[each.number].params["x"] for each in records[5:]])
    small, large = records[5 + int(places.argmin())], records[5 + int(places.argmax())]

    def promised() -> tuple[float, float]:
        first, second = sampler.promise(study, [small, large], records)
        return first, second

    of_small, of_large = promised()
    early = sampler.most_expected(study, records)
    assert early is not None
    assert of_small < 10 * of_large
    sampler.reliable_from = lambda trials: 1 / 2
    of_small, of_large = promised()
    later = sampler.most_expected(study, records)
    assert later is not None
    assert of_small > 1e6 * of_large
    assert later > 1e3 * early


def test_a_result_counts_however_early_the_trial_ended() -> None:
    data = CurveData(OBJECTIVE)
    data.read(study_of([{"x": 0.3}] * 4, BETWEEN))
    ended = [
        record(0, TrialState.COMPLETE, (0.2, 0.5)),
        record(1, TrialState.PRUNED, (0.2, 0.6)),
        record(2, TrialState.COMPLETE, (0.2, 0.5), (0.7, 0.4)),
        replace(record(3, TrialState.STOPPED, (0.2, 0.5)), reason="the study's timeout of 60 s is over"),
    ]
    seen = data.seen(ended, BETWEEN).curves
    assert [each.reports for each in curves.since(seen, 0.5)] == [[(0.2, 0.5)], [(0.7, 0.4)]]
    assert curves.since(seen, 0.0) is seen
    assert [*map(id, curves.since(seen, 0.5))] == [*map(id, curves.since(seen, 0.5))]  # so the model of them stays, too


@pytest.mark.parametrize("reports", [(), ((0.5, 0.1),), ((0.5, 0.1), (1.0, 0.2))])
def test_a_failure_is_the_worst_value_at_the_end_of_the_training(reports: Any) -> None:
    study = study_of([{"x": 0.3}], BETWEEN)
    data = CurveData(OBJECTIVE)
    data.read(study)
    [curve] = data.seen([record(0, TrialState.FAILED, *reports)], BETWEEN).curves
    assert curve.reports == [*reports[:1], (1.0, math.inf)]


def test_a_curve_is_the_same_whether_its_trial_runs_is_paused_or_was_interrupted() -> None:
    data = CurveData(OBJECTIVE)
    data.read(study_of([{"x": 0.3}], BETWEEN))
    running, paused, interrupted, complete = (
        data.seen([record(0, state, (0.5, 0.1))], BETWEEN).curves[0]
        for state in (TrialState.RUNNING, TrialState.PAUSED, TrialState.INTERRUPTED, TrialState.COMPLETE)
    )
    assert running is paused is interrupted  # so the model of the curves stays, too
    assert (interrupted.is_open, complete.is_open) == (True, False)


def test_branches_are_what_the_space_says() -> None:
    inner = {"nesterov": Categorical({"yes": {"beta": Float(0.0, 1.0)}, "no": {}})}
    space = SearchSpace({"x": Float(0.0, 1.0), "optim": Categorical({"adam": {"beta": Float(0.0, 1.0)}, "sgd": inner})})
    assert branches_of(space) == {
        "beta": [{"optim": "adam"}, {"optim": "sgd", "nesterov": "yes"}],
        "nesterov": [{"optim": "sgd"}],
    }


@pytest.mark.parametrize(
    ("trials", "shown"),
    [
        ([{"optim": "adam"}, {"optim": "sgd", "momentum": 0.1}], {"momentum": [{"optim": "sgd"}]}),
        (
            [{"optim": "adam"}, {"optim": "sgd", "momentum": 0.1}, {"optim": "lion", "momentum": 0.2}],
            {"momentum": [{"optim": "sgd"}, {"optim": "lion"}]},
        ),
        ([{"optim": "sgd"}, {"optim": "sgd", "momentum": 0.1}], {}),  # something else decides
        ([{"optim": "sgd", "momentum": 0.2}, {"optim": "sgd", "momentum": 0.1}], {}),
        ([{}, {"momentum": 0.1}], {}),
        ([], {}),
        (
            [{"optim": "adam"}, {"optim": "sgd", "kind": "a", "m": 0.1}, {"optim": "sgd", "kind": "b"}],
            {"kind": [{"optim": "sgd"}], "m": [{"kind": "a"}]},
        ),
    ],
)
def test_branches_are_what_the_trials_of_a_function_have_shown(trials: Any, shown: Any) -> None:
    assert branches_shown(trials, ["optim", "kind"]) == shown


@pytest.mark.parametrize("branches", [branches_of(SGD_ONLY), None])
def test_what_may_be_proposed_is_compared_at_the_point_that_will_be_recorded(
    branches: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the space is a function, of whose trials three choices were seen."""
    params = [{"optim": "adam"}, {"optim": "sgd", "momentum": 0.9}, {"optim": "lion"}, {"optim": "adam"}]
    space = {"x": OF_SGD, "optim": CHOICES, "momentum": OF_SGD}
    study = study_of([{"x": number / 4, **each} for number, each in enumerate(params)], space)
    compared: list[Any] = []

    def propose(curves: Any, under_way: Any, random: Any, valid: Callable[[Any], Any], *others: Any) -> None:
        compared.append(valid(random.random((200, 5))))

    monkeypatch.setattr(curve_sampler, "propose", propose)
    sampler = CurveSampler(0, OBJECTIVE, first=1, branches=branches)
    proposals(sampler, study, [record(number, TrialState.COMPLETE, (1.0, 0.5)) for number in range(4)])
    cube = Cube(space)
    seen = set()
    for point in compared[0]:
        proposed = cube.params(point)
        if proposed["optim"] != "sgd":
            del proposed["momentum"]
        assert cube.point(proposed) == pytest.approx(point)
        seen.add(proposed["optim"])
    assert seen == {"adam", "sgd", "lion"}


def test_a_branch_of_a_choice_without_a_side_is_as_if_it_always_existed() -> None:
    cube = Cube({"momentum": OF_SGD}, {"momentum": [{"optim": "sgd"}]})
    assert cube.valid(np.array([[0.2]]))[0, 0] == pytest.approx(0.2)


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads take turns often, so that what they can do to each other happens here."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("eager_threads")
def test_a_study_of_optuna_with_this_sampler_can_be_pickled_and_optimized_in_threads() -> None:
    sampler = CurveSampler(0, OBJECTIVE, first=1)
    sampler.reliable_from = lambda trials: 0.0  # of rungs that hold functions of the user
    study = optuna.create_study(sampler=sampler)
    for _ in range(2):
        study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=40, n_jobs=4)
        study = pickle.loads(pickle.dumps(study))
    assert [each.state for each in study.trials] == [optuna.trial.TrialState.COMPLETE] * 80


def test_decisions_leave_the_other_cores_to_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def threads() -> list[int]:
        return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]

    def propose(*args: Any) -> Any:
        counts.extend(threads())
        return proposal.propose(*args)

    monkeypatch.setattr(curve_sampler, "propose", propose)
    with threadpool_limits(2, "blas"):
        study = study_of([{"x": x} for x in (0.1, 0.5, 0.9)], BETWEEN)
        records = [record(number, TrialState.COMPLETE, (1.0, number / 3)) for number in range(3)]
        proposals(CurveSampler(0, OBJECTIVE, first=1), study, records)
        assert set(counts) == {1}
        assert set(threads()) == {2}
