"""Where the best parameters are believed to be, some are tried, and less and less weight is given to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from hpsearch import Categorical, Float, Int, SpaceError
from hpsearch.search.learning_curves.curves import Curve, LatestModel
from hpsearch.search.learning_curves.proposal import MOST_AT_RANDOM, propose
from hpsearch.search.space.priors import Belief
from tests.support.searching import Events
from tests.support.small_trainer import TwoLayers, small_trainer

CENTRE = np.array([0.8, np.nan])
CHOICES = {"optim": Categorical(["a", "b", "c"], prior="a"), "kind": Categorical([1, 2, 3], prior=2)}


def near(points: Any) -> float:
    """The share of points that are within two fifths of the centre, along the side on which there is one."""
    return float((np.abs(np.array(points)[:, 0] - 0.8) < 0.2).mean())


def proposed(known: list[Curve], belief: Belief | None, count: int = 60) -> list[Any]:
    model_by = LatestModel().of  # one for all
    draws = map(np.random.default_rng, range(count))
    found = [propose(known, [], draw, model_by=model_by, belief=belief) for draw in draws]
    return [point for point in found if point is not None]


def curves(count: int) -> list[Curve]:
    """Trials that were at their best at 0.2, and report so from the beginning."""
    points = np.random.default_rng(0).random((count, 2))
    return [Curve(point, [(1.0, (point[0] - 0.2) ** 2)]) for point in points]


def test_half_of_what_is_drawn_at_random_is_drawn_near_the_prior() -> None:
    drawn = proposed(curves(MOST_AT_RANDOM - 1), Belief(CENTRE))
    assert 0.3 < len(drawn) / 60 < 0.7  # the others are drawn anywhere
    assert near(drawn) > 0.6
    assert np.ptp([point[1] for point in drawn]) > 0.8
    assert proposed(curves(MOST_AT_RANDOM - 1), None) == []


def test_a_prior_that_is_wrong_is_given_up_as_trials_come_in() -> None:
    belief = Belief(CENTRE)
    assert near(proposed(curves(200), belief, 20)) < 0.2
    there, away = belief.weights(np.array([[0.8, 0.1], [0.1, 0.1]]), 10)
    assert (there, away) == pytest.approx((1.0, 0.01), abs=0.005)
    assert belief.weights(np.array([[0.1, 0.1]]), 200)[0] == pytest.approx(0.8, abs=0.02)


def test_a_choice_is_mostly_the_prior_and_sometimes_another_one() -> None:
    belief = Belief(np.array([1.0, 0.0, 0.0, np.nan]), [slice(0, 3)])
    chosen = belief.near(1000, np.random.default_rng(0))[:, :3].argmax(axis=1)
    assert 0.7 < (chosen == 0).mean() < 0.9
    assert set(chosen) == {0, 1, 2}


def search(folder: Path, space: Any, **options: Any) -> Any:
    return small_trainer(folder, num_train_epochs=3).hyperparameter_search(
        space, "loss", **{"n_trials": 6, "progress": False, "storage": "journal", **options}
    )


SPACE = {
    "learning_rate": Float(1e-4, 1.0, log=True, prior=2e-2),
    "per_device_train_batch_size": Int(2, 8, step=2, prior=6),
    "gradient_accumulation_steps": Int(1, 4, log=True, prior=2),
    "lr_scheduler_type": Categorical(
        {"constant": {}, "cosine": {"warmup_steps": Float(0.0, 0.5, prior=0.25)}}, prior="cosine"
    ),
    "weight_decay": Float(0.0, 0.1),
}


def test_the_first_trial_has_the_priors_and_a_later_session_may_change_them(tmp_path: Path) -> None:
    events = Events()
    records = search(tmp_path, SPACE, progress=events).run_summary.records
    first = records[0].params
    assert {name: first[name] for name in first if name != "weight_decay"} == {
        "learning_rate": 2e-2,
        "per_device_train_batch_size": 6,
        "gradient_accumulation_steps": 2,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.25,
    }
    assert first["weight_decay"] != records[1].params["weight_decay"]
    assert isinstance(first["per_device_train_batch_size"], int)
    assert isinstance(first["gradient_accumulation_steps"], int)
    assert "sampler CurveSampler, with the prior learning_rate=0.02, " in "; ".join(events.notes)
    now = {**SPACE, "learning_rate": Float(1e-4, 1.0, log=True, prior=5e-2), "adam_beta1": Float(0.8, 0.99, prior=0.85)}
    later = search(tmp_path, now, n_trials=8, progress=events).run_summary.records
    assert [each.params.get("adam_beta1") for each in later[:7]] == [*[None] * 6, 0.85]
    assert "with the prior learning_rate=0.05, " in "; ".join(events.notes)


def test_what_the_user_starts_with_comes_before_the_priors(tmp_path: Path) -> None:
    records = search(tmp_path, SPACE, start_with={"learning_rate": 0.5}).run_summary.records
    assert records[0].params["learning_rate"] == 0.5
    assert records[0].params["lr_scheduler_type"] == "cosine"


def test_a_sampler_that_takes_no_priors_says_so(tmp_path: Path) -> None:
    events = Events()
    search(tmp_path, SPACE, n_trials=1, sampler=optuna.samplers.RandomSampler(seed=0), progress=events)
    assert "sampler RandomSampler, which does not use the prior learning_rate=0.02, " in "; ".join(events.notes)


def test_priors_of_choices_alone_do_not_make_trials_alike(tmp_path: Path) -> None:
    def build(trial: Any) -> TwoLayers:
        return TwoLayers(4 if trial.params["model.optim"] == "a" else 6)

    space = {f"model.{name}": each for name, each in CHOICES.items()}
    trainer = small_trainer(tmp_path, num_train_epochs=3, model_init=reads_all(build))
    records = trainer.hyperparameter_search(space, "loss", n_trials=9, progress=False).run_summary.records
    assert records[0].params == {"model.optim": "a", "model.kind": 2}
    assert len({tuple(sorted(each.params.items())) for each in records}) >= 6


def reads_all(build: Any) -> Any:
    def model_init(trial: Any) -> Any:
        for name in CHOICES:
            _ = trial.params[f"model.{name}"]
        return build(trial)

    return model_init


@pytest.mark.parametrize(
    "space",
    [
        lambda trial: {"learning_rate": Float(1e-4, 1.0, log=True, prior=2e-2)},
        lambda trial: {"learning_rate": trial.suggest("learning_rate", Float(1e-4, 1.0, log=True, prior=2e-2))},
    ],
)
@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.process)])
def test_a_prior_that_only_a_function_of_the_trial_knows_comes_too_late(
    tmp_path: Path, space: Any, n_jobs: int
) -> None:
    with pytest.raises(SpaceError, match=r"prior 0.02 of learning_rate comes too late.* a mapping of names"):
        search(tmp_path, space, n_jobs=n_jobs)


def test_a_prior_that_only_model_init_knows_comes_too_late(tmp_path: Path) -> None:
    def build(trial: Any) -> TwoLayers:
        return TwoLayers(trial.suggest("model.width", Int(2, 8, prior=4)))

    trainer = small_trainer(tmp_path, model_init=build)
    with pytest.raises(SpaceError, match=r"prior 4 of model.width comes too late"):
        trainer.hyperparameter_search({"learning_rate": Float(1e-4, 1.0)}, "loss", n_trials=2, progress=False)
