"""Searchers and search spaces of Ray Tune: what they propose is what is trained, and they hear what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.search import ConcurrencyLimiter, Searcher
from ray.tune.search.optuna import OptunaSearch

from hpsearch import BestRun, Categorical, Float, InvalidInputError, SpaceError, StudyError
from tests.support.on_ray import ON_RAY
from tests.support.searching import RATE, Diary, Events, HearsNotices, states, stored_trials
from tests.support.small_trainer import CountsModels, small_trainer

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_instance")]


def search(folder: Path, hp_space: Any, n_trials: int, *, trainer: Any = None, **options: Any) -> BestRun:
    """Search on Ray with a small trainer of one epoch."""
    options = {"compute_objective": "loss", "pruner": "none", "preflight": False, **ON_RAY, **options}
    small = small_trainer(folder, **{"num_train_epochs": 1, **(trainer or {})})
    return small.hyperparameter_search(hp_space, n_trials=n_trials, **options)


class Told(Searcher):
    """Proposes what it was given, one after the other, and writes down what it hears."""

    def __init__(self, diary: Diary, *proposals: dict[str, Any], is_told_of_earlier: bool = False) -> None:
        super().__init__()
        self._diary, self._left, self._is_told = diary, list(proposals), is_told_of_earlier

    def set_search_properties(self, metric: Any, mode: Any, config: Any, **spec: Any) -> bool:
        self._diary.write(("space", sorted(config), metric, mode))
        return True

    def suggest(self, trial_id: str) -> Any:
        return self._left.pop(0) if self._left else Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._diary.write(("result", trial_id, result["objective"], result["training_iteration"]))

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self._diary.write(("complete", trial_id, result and result["objective"], error))

    def add_evaluated_point(self, parameters: Any, value: float, *args: Any, **kwargs: Any) -> None:
        if not self._is_told:
            raise NotImplementedError
        self._diary.write(("earlier", parameters, value))


def test_a_searcher_of_the_users_own_chooses_and_hears_values_by_scope_and_failures(tmp_path: Path) -> None:
    def fail_in_the_second(trial: Any) -> None:
        if trial.number == 1:
            raise RuntimeError("out of luck")

    rates, diary, events = [0.01, 0.02, 0.03], Diary(tmp_path / "diary"), HearsNotices()
    best = search(
        tmp_path,
        RATE,
        9,
        trainer={"num_train_epochs": 2, "model_init": CountsModels(fail_in_the_second)},
        search_alg=Told(diary, *({"learning_rate": rate} for rate in rates)),
        scope="avg",
        progress=events,
    )
    records = best.run_summary.records
    assert states(best) == ["complete", "failed", "complete"]
    assert [record.params for record in records] == [{"learning_rate": rate} for rate in rates]
    assert [each.params for each in stored_trials(tmp_path / "study")] == [record.params for record in records]
    assert events.notices == ["the search ends early: the searcher has nothing left to try"]
    assert any(note.startswith("searcher Told") for note in events.notes)
    told = diary.read()
    assert ["space", ["learning_rate"], "objective", "min"] in told
    reports = [
        ("result", f"trial-{each.number}", it.value, n) for each in records for n, it in enumerate(each.reports, 1)
    ]
    assert sorted(each for each in told if each[0] == "result") == sorted(map(list, reports))
    assert sorted(each[1:] for each in told if each[0] == "complete") == [
        ["trial-0", records[0].value, False],
        ["trial-1", None, True],
        ["trial-2", records[2].value, False],
    ]
    assert records[0].value not in [report.value for report in records[0].reports]

    again = Diary(tmp_path / "again")
    search(tmp_path, RATE, 4, search_alg=Told(again, {"learning_rate": 0.04}, is_told_of_earlier=True), scope="avg")
    earlier = [each[1:] for each in again.read() if each[0] == "earlier"]
    assert earlier == [[record.params, record.value] for record in (records[0], records[2])]
    assert sorted(each[1] for each in again.read() if each[0] == "complete") == ["trial-3"]


class CountsPoints(OptunaSearch):
    """Writes down how many trials it has known of at each proposal, and how many ran at once."""

    def __init__(self, diary: Diary, **options: Any) -> None:
        super().__init__(**options)
        self._diary = diary

    def suggest(self, trial_id: str) -> Any:
        known = [len(self._ot_study.trials), sum(not each.state.is_finished() for each in self._ot_study.trials)]
        proposed = super().suggest(trial_id)
        self._diary.write([trial_id, proposed, *known])
        return proposed


def test_optuna_search_knows_all_trials_also_those_of_earlier_sessions(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    limited = ConcurrencyLimiter(CountsPoints(diary, seed=3), max_concurrent=1)
    space = {
        "learning_rate": tune.loguniform(1e-3, 1e-1),
        "weight_decay": tune.quniform(0.0, 0.3, 0.1),
        "per_device_train_batch_size": tune.choice([4, 8]),
    }
    search(tmp_path, space, 3, search_alg=limited)
    best = search(tmp_path, space, 5, search_alg=limited)
    told, records = diary.read(), best.run_summary.records
    # The same seed makes the same first proposals: what came of them is known.
    assert [each[1] for each in told[3:6]] == [each[1] for each in told[:3]]
    told[3:6] = []
    assert [known for _, _, known, _ in told] == [0, 1, 2, 6, 7]
    assert [running for _, _, _, running in told] == [0] * 5
    assert states(best) == ["complete"] * 5
    for (_, proposed, _, _), record, stored in zip(told, records, stored_trials(tmp_path / "study"), strict=True):
        assert record.params == stored.params == pytest.approx(proposed)
        assert record.arguments == record.params
    assert len({record.params["learning_rate"] for record in records}) == 5


def test_a_searcher_hears_of_a_trial_that_ends_before_it_is_trained_and_proposes_the_next(tmp_path: Path) -> None:
    class FailsAtTheFirst(Events):
        def on_trial_begin(self, trial: Any) -> None:
            if trial.number == 0:
                raise OSError("no room for its log")

    limited = ConcurrencyLimiter(OptunaSearch(seed=3), max_concurrent=1)
    best = search(tmp_path, RATE, 3, search_alg=limited, progress=FailsAtTheFirst())
    assert states(best) == ["failed", "complete", "complete"]


@pytest.mark.parametrize(
    ("proposed", "error", "message"),
    [
        ({"learning_rate": 5.0}, SpaceError, r"proposed learning_rate=5.0, which is not in Float\(0.001"),
        ({"learning_rat": 0.01}, StudyError, r"proposes \['learning_rat'\], but the search space has"),
        ({}, StudyError, r"search_alg=Told proposes \[\], but .*'learning_rate' is in only one of them"),
    ],
)
def test_what_a_searcher_proposes_must_be_in_the_space(
    tmp_path: Path, proposed: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        search(tmp_path, RATE, 2, search_alg=Told(Diary(tmp_path / "diary"), proposed))


@pytest.mark.parametrize(
    ("space", "searcher", "message"),
    [
        (RATE, OptunaSearch(metric="objective", mode="max"), r"mode='max', but eval_loss is to be minimized"),
        (lambda trial: {}, OptunaSearch(), r"must know the space beforehand, but hp_space is a function"),
        (lambda trial: {}, ConcurrencyLimiter(OptunaSearch(), 1), r"must know the space beforehand"),
        (
            {"optim": Categorical({"sgd": {"optim.momentum": Float(0, 1)}, "adamw_torch": {}})},
            OptunaSearch(),
            "branches",
        ),
    ],
)
def test_a_searcher_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, space: Any, searcher: Searcher, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        search(tmp_path, space, 2, search_alg=searcher)
    assert not (tmp_path / "study").exists()


def test_a_mapping_of_ray_is_searched_and_what_is_drawn_or_enumerated_is_said(tmp_path: Path) -> None:
    events = Events()
    space = {
        "learning_rate": tune.loguniform(1e-3, 1e-1),
        "weight_decay": tune.grid_search([0.0, 0.05]),
        "per_device_train_batch_size": tune.grid_search([4, 8]),
        "adam_beta2": tune.sample_from(lambda config: 0.9 + config["weight_decay"]),
        "adam_beta1": 0.8,
    }
    best = search(tmp_path, space, 4, progress=events)
    assert states(best) == ["complete"] * 4
    arguments = [record.arguments for record in best.run_summary.records]
    grid = {(each["weight_decay"], each["per_device_train_batch_size"]) for each in arguments}
    assert grid == {(0.0, 4), (0.0, 8), (0.05, 4), (0.05, 8)}
    assert all(each["adam_beta2"] == 0.9 + each["weight_decay"] for each in arguments)
    assert all(each["adam_beta1"] == 0.8 for each in arguments)
    assert len({each["learning_rate"] for each in arguments}) == 4
    assert "drawn at random, not learned: adam_beta2" in events.notes
    assert [set(each.params) for each in stored_trials(tmp_path / "study")] == [{"learning_rate"}] * 4


def test_a_function_of_the_transformers_kind_is_searched_too(tmp_path: Path) -> None:
    def space(trial: Any) -> dict[str, Any]:
        return {"learning_rate": tune.loguniform(1e-3, 1e-1), "seed": tune.choice(range(1, 41))}

    best = search(tmp_path, space, 2)
    assert states(best) == ["complete"] * 2
    stored = stored_trials(tmp_path / "study")
    for record, each in zip(best.run_summary.records, stored, strict=True):
        assert record.arguments == each.params
        assert record.seed == each.params["seed"] in range(1, 41)
        assert 1e-3 <= each.params["learning_rate"] <= 1e-1
