"""What only a scheduler of Ray perturbs enters the search space; what cannot be is refused before Ray starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.schedulers.pb2 import PB2

from hpsearch import Categorical, FixedTrial, Float, Int, SearchSpace, StudyError
from hpsearch.backends import ray_backend as backend
from hpsearch.executors.ray_executor.perturbations import with_perturbed
from hpsearch.executors.ray_executor.ray_spaces import RaySpace, from_ray
from hpsearch.search.study import Study
from tests.support.on_ray import search

RATE = Float(1e-5, 1e-1, log=True)


class Chooses(FixedTrial):
    """A trial of no study, which gets the lowest value or the first choice of each parameter."""

    def __init__(self) -> None:
        super().__init__({})

    def _choose(self, name: str, parameter: Any) -> Any:
        return parameter.edges()[0]


def pbt(**mutations: Any) -> PopulationBasedTraining:
    return PopulationBasedTraining("training_iteration", hyperparam_mutations=mutations)


def space_of(hp_space: Any, scheduler: TrialScheduler | None) -> Any:
    return from_ray(with_perturbed(hp_space, scheduler), seed=1)


@pytest.mark.parametrize(
    ("scheduler", "space"),
    [
        (pbt(learning_rate=[0.1]), {"learning_rate": RATE}),
        (pbt(weight_decay=[0.0, 0.1]), {"learning_rate": RATE, "weight_decay": Categorical((0.0, 0.1))}),
        (pbt(weight_decay=(0.0, 0.1)), {"learning_rate": RATE, "weight_decay": Categorical((0.0, 0.1))}),
        (pbt(weight_decay=tune.uniform(0.0, 0.3)), {"learning_rate": RATE, "weight_decay": Float(0.0, 0.3)}),
        (pbt(logging_steps=tune.randint(1, 5)), {"learning_rate": RATE, "logging_steps": Int(1, 4)}),
        (
            PB2("training_iteration", hyperparam_bounds={"weight_decay": [0.0, 0.3]}),
            {"learning_rate": RATE, "weight_decay": Float(0.0, 0.3)},
        ),
        (ASHAScheduler(), {"learning_rate": RATE}),
        (None, {"learning_rate": RATE}),
    ],
)
def test_what_only_the_scheduler_names_enters_the_space_as_the_parameter_with_its_values(
    scheduler: TrialScheduler | None, space: Any
) -> None:
    given = {"learning_rate": RATE}
    assert space_of(given, scheduler) == space
    assert given == {"learning_rate": RATE}
    assert space_of(SearchSpace(given), scheduler) == space


def test_a_function_is_drawn_from_for_each_trial_and_never_gets_the_config() -> None:
    values = iter([0.1, 0.2])
    space = space_of({"learning_rate": RATE}, pbt(weight_decay=lambda scale=1.0: scale * next(values)))
    assert isinstance(space, RaySpace)
    assert space.drawn == ("weight_decay",)
    assert [space(Chooses())["weight_decay"] for _ in range(2)] == [0.1, 0.2]


def test_the_default_space_and_branches_are_looked_into() -> None:
    default = space_of(None, pbt(learning_rate=[0.1], weight_decay=[0.0, 0.1]))
    assert default["weight_decay"] == Categorical((0.0, 0.1))
    assert default["learning_rate"] == Float(1e-6, 1e-4, log=True)
    assert space_of(None, None) is None
    branches = {"optim": Categorical({"sgd": {"optim.momentum": Float(0.0, 0.9)}, "adamw_torch": {}})}
    assert space_of(branches, pbt(**{"optim.momentum": [0.5]})) == branches


@pytest.mark.parametrize("returns", ["None", "a mapping", "domains"])
def test_a_function_of_a_trial_gets_them_too_unless_it_has_them(returns: str) -> None:
    def space(trial: Any) -> Any:
        if returns == "domains":
            return {"learning_rate": tune.uniform(0.1, 0.2)}
        trial.suggest_float("learning_rate", 1e-5, 1e-1)
        return None if returns == "None" else dict(trial.params)

    scheduler = pbt(learning_rate=[0.1], weight_decay=[0.0, 0.3])
    study = Study("study", Path("study"), space_of(space, scheduler), (), 1)
    assert set(study.suggest(Chooses())) == {"learning_rate", "weight_decay"}
    without = Study("study", Path("study"), space_of(space, pbt(learning_rate=[0.1])), (), 1)
    assert set(without.suggest(Chooses())) == {"learning_rate"}


SPACE = {"learning_rate": RATE}


@pytest.mark.parametrize(
    ("scheduler", "space", "message"),
    [
        (pbt(seed=[4, 8]), {"seed": Int(1, 9)}, "perturbs 'seed': 'seed' cannot change when a run resumes"),
        (
            pbt(per_device_train_batch_size=[4, 8]),
            {"per_device_train_batch_size": Categorical([4, 8])},
            "perturbs 'per_device_train_batch_size': .* cannot change when a run resumes: the length of a run",
        ),
        (pbt(learning_rat=[0.1]), SPACE, "perturbs 'learning_rat': .*Did you mean 'learning_rate'"),
        (pbt(learning_rat=lambda: 0.1), SPACE, "perturbs 'learning_rat': .*Did you mean 'learning_rate'"),
        (pbt(learning_rate=[0.1, "fast"]), SPACE, "perturbs 'learning_rate' with the value 'fast': "),
        (pbt(learning_rate=tune.uniform(-1.0, 0.1)), SPACE, "perturbs 'learning_rate' with the value -1.0: "),
        (pbt(learning_rate=[]), SPACE, "perturbs 'learning_rate' with an empty list"),
        (pbt(optim={"momentum": [0.1]}), SPACE, "perturbs 'optim' with a dict; .*'optim.momentum'"),
        (ASHAScheduler(metric="loss", mode="min"), SPACE, "metric='loss', which the reports.*Did you mean 'eval_loss'"),
        (ASHAScheduler(time_attr="epochs"), SPACE, "time_attr='epochs', which the reports.*Did you mean 'epoch'"),
        (ASHAScheduler(mode="max"), SPACE, "made with mode='max', but eval_loss is to be minimized"),
        (ASHAScheduler(metric="eval_loss", mode="max"), SPACE, "made with mode='max', but eval_loss is to be min"),
        (ASHAScheduler(metric="eval_accuracy"), SPACE, "metric='eval_accuracy' and no mode"),
    ],
)
def test_a_scheduler_that_cannot_work_is_refused_before_ray_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: TrialScheduler, space: Any, message: str
) -> None:
    def no_ray(*arguments: Any, **options: Any) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr(ray, "init", no_ray)
    monkeypatch.setattr(backend, "joined", no_ray)
    with pytest.raises(StudyError, match=message):
        search(tmp_path, 2, scheduler=scheduler, hp_space=space)
    assert not (tmp_path / "study").exists()


def test_all_that_a_scheduler_cannot_perturb_is_named_in_one_error(tmp_path: Path) -> None:
    with pytest.raises(StudyError) as caught:
        search(tmp_path, 2, scheduler=pbt(seed=[4, 8], learning_rate=[0.1], weight_decay=[]), hp_space=SPACE)
    first, seed, decay = str(caught.value).splitlines()
    assert first == "scheduler=PopulationBasedTraining perturbs what it cannot:"
    assert seed.startswith("  'seed': 'seed' cannot change when a run resumes: ")
    assert decay == "  'weight_decay' with an empty list; give at least one value."
