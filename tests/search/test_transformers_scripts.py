"""Scripts that were written for transformers' `hyperparameter_search` run with the import swapped."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.hp_naming import TrialShortNamer

from hpsearch import BestRun, Float, Int, ObjectiveError, SpaceError, Trainer, TrainingArguments, tune
from tests.support.searching import states
from tests.support.small_trainer import TwoLayers, points, small_trainer, transformers_trainer


@dataclasses.dataclass
class OwnArguments(TrainingArguments):
    hidden: int = 0


def regression_script(folder: Path, **search: Any) -> Any:
    """Search as transformers' own tests do: `model_init` suggests names that its TrainingArguments have too."""

    class Namer(TrialShortNamer):
        DEFAULTS = {"hidden": 0, "depth": 0}

    def model_init(trial: Any) -> TwoLayers:
        if trial is None:
            return TwoLayers()
        trial.suggest_int("depth", -4, 4)
        return TwoLayers(trial.suggest_int("hidden", 1, 4))

    arguments = OwnArguments(
        str(folder),
        learning_rate=0.1,
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="epoch",
        num_train_epochs=4,
        disable_tqdm=True,
        load_best_model_at_end=True,
        run_name="test",
        use_cpu=True,
        report_to="none",
    )
    data = {"train_dataset": points(16, seed=0), "eval_dataset": points(32, seed=1)}
    trainer = Trainer(args=arguments, model_init=model_init, **data)
    return trainer.hyperparameter_search(
        hp_space=lambda trial: {}, hp_name=lambda trial: Namer.shortname(trial.params), n_trials=4, **search
    )


def test_model_init_suggests_what_the_class_of_the_arguments_has_too(tmp_path: Path) -> None:
    best = regression_script(tmp_path, direction="minimize")
    assert isinstance(best, BestRun)
    assert set(best.hyperparameters) == {"hidden", "depth"}
    assert best.load_model().hidden.out_features == best.hyperparameters["hidden"]


def test_with_the_evaluation_before_the_first_step_and_after_every_step(tmp_path: Path) -> None:
    def model_init(trial: Any) -> TwoLayers:
        return TwoLayers() if trial is None else TwoLayers(trial.suggest_int("hidden", 1, 4))

    often = {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True, "num_train_epochs": 1}
    trainer = small_trainer(tmp_path, model_init=model_init, **often)
    best = trainer.hyperparameter_search(
        direction="minimize",
        hp_space=lambda trial: {},
        compute_objective=lambda metrics: metrics["eval_loss"],
        n_trials=2,
    )
    assert [len(each.reports) for each in best.run_summary.records] == [5, 5]


@pytest.mark.parametrize("argument", ["direction", "directions"])
def test_one_function_returns_all_objectives_and_a_list_tells_their_directions(tmp_path: Path, argument: str) -> None:
    called: list[int] = []

    def compute_objective(metrics: dict[str, float]) -> tuple[float, float]:
        called.append(1)
        return metrics["eval_loss"], metrics["eval_accuracy"]

    front = small_trainer(tmp_path).hyperparameter_search(
        hp_space=lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)},
        compute_objective=compute_objective,
        n_trials=3,
        progress=False,
        **{argument: ["minimize", "maximize"]},
    )
    assert isinstance(front, list)
    metrics = {record.number: record.reports[-1].metrics for record in front[0].run_summary.records}
    for best in front:
        of_trial = metrics[int(best.run_id)]
        assert best.objective == [of_trial["eval_loss"], of_trial["eval_accuracy"]]
    assert len(called) == 3 * 2 + 1  # once for each evaluation, that of the preflight included
    names = [each.name for each in front[0].run_summary.study.objectives]
    assert names == ["compute_objective[0]", "compute_objective[1]"]


@pytest.mark.parametrize(
    ("returned", "search", "said"),
    [
        (
            (1.0, 2.0, 3.0),
            {"direction": ["minimize", "maximize"]},
            r"must return 2 values, .* but got \(1.0, 2.0, 3.0\)",
        ),
        (1.0, {"direction": ["minimize", "maximize"]}, r"must return 2 values, .* but got 1.0"),
        ((1.0, 2.0), {"direction": "minimize"}, "Of 2 objectives, pass a list of as many directions"),
        (1.0, {"direction": "minimize", "directions": ["minimize"]}, "say the same"),
        (1.0, {"directions": "minimize"}, "must be a list"),
    ],
)
def test_objectives_and_directions_that_do_not_fit_cost_no_trial(
    tmp_path: Path, returned: Any, search: dict[str, Any], said: str
) -> None:
    with pytest.raises(ObjectiveError, match=said):
        small_trainer(tmp_path).hyperparameter_search(
            {"learning_rate": Float(1e-3, 1e-2)}, lambda metrics: returned, n_trials=2, progress=False, **search
        )
    assert not list(tmp_path.glob("study/run-*/checkpoint-*"))


def reads_like_a_dict(config: Any) -> TwoLayers:
    return TwoLayers() if config is None else TwoLayers(config["hidden"])


def test_model_init_reads_plain_names_of_the_space_as_from_the_dict_that_ray_gives(tmp_path: Path) -> None:
    space = {"learning_rate": Float(1e-3, 1e-1, log=True), "hidden": Int(1, 4)}
    trainer = small_trainer(tmp_path, model_init=reads_like_a_dict)
    best = trainer.hyperparameter_search(space, "loss", n_trials=2, progress=False)
    assert states(best) == ["complete"] * 2
    assert best.load_model().hidden.out_features == best.hyperparameters["hidden"]
    again = trainer.with_arguments(**best.hyperparameters)
    again.train()
    assert again.model.hidden.out_features == best.hyperparameters["hidden"]
    assert again.args.learning_rate == best.hyperparameters["learning_rate"]


def test_a_trial_can_be_read_like_a_dict(tmp_path: Path) -> None:
    seen = {}

    def model_init(config: Any = None) -> TwoLayers:
        seen.update(dict(config))
        assert "hidden" in config
        assert "width" not in config
        assert (config.get("width"), config.get("width", 3)) == (None, 3)
        return TwoLayers(config["hidden"])

    def hp_space(trial: Any) -> dict[str, Any]:
        return {"hidden": trial.suggest_int("hidden", 2, 3), "weight_decay": 0.5}

    small_trainer(tmp_path, model_init=model_init).hyperparameter_search(hp_space, "loss", n_trials=1, progress=False)
    assert seen.keys() == {"hidden", "weight_decay"}
    assert seen["weight_decay"] == 0.5


@pytest.mark.parametrize(
    ("model_init", "name", "said"),
    [
        (reads_like_a_dict, "lerning_rate", "'lerning_rate' is not a training argument. Did you mean 'learning_rate'"),
        (lambda: TwoLayers(), "depth", "'depth' is not a training argument"),
        (reads_like_a_dict, "depth", r"'depth' is never used: .*model_init\(trial\) must read trial.params\['depth'\]"),
    ],
    ids=["misspelt", "without a trial", "not read"],
)
def test_a_plain_name_that_nobody_reads_costs_no_trial(tmp_path: Path, model_init: Any, name: str, said: str) -> None:
    space = {"hidden": Int(1, 4), name: Float(0.1, 1.0)} if model_init is reads_like_a_dict else {name: Float(0.1, 1.0)}
    with pytest.raises(SpaceError, match=said):
        small_trainer(tmp_path, model_init=model_init).hyperparameter_search(space, "loss", n_trials=2, progress=False)
    assert not list(tmp_path.glob("study/run-*/checkpoint-*"))


def test_names_of_runs_may_tell_what_model_init_suggests(tmp_path: Path) -> None:
    def model_init(trial: Any) -> TwoLayers:
        return TwoLayers(trial.suggest_int("hidden", 1, 9))

    best = small_trainer(tmp_path, model_init=model_init).hyperparameter_search(
        hp_name=lambda trial: f"hidden-{trial['hidden']}-{trial.number}", n_trials=2, progress=False
    )
    for record in best.run_summary.records:
        assert record.name == f"hidden-{record.params['hidden']}-{record.number}"


def test_a_parameter_that_only_the_name_of_a_run_reads_is_never_used(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="'depth' is never used"):
        small_trainer(tmp_path, model_init=lambda trial: TwoLayers()).hyperparameter_search(
            {"depth": Int(1, 4)}, "loss", 2, hp_name=lambda trial: f"depth-{trial['depth']}", progress=False
        )


def test_user_code_that_fails_while_a_run_is_named_fails_its_trial(tmp_path: Path) -> None:
    def model_init(trial: Any) -> TwoLayers:
        hidden = trial.suggest_int("hidden", 1, 9)
        if trial.number == 1:
            raise ValueError("this width is not possible")
        return TwoLayers(hidden)

    best = small_trainer(tmp_path, model_init=model_init).hyperparameter_search(
        None, "loss", 3, hp_name=lambda trial: f"{trial['hidden']}-{trial.number}", progress=False
    )
    assert states(best) == ["complete", "failed", "complete"]
    failed = best.run_summary.records[1]
    assert (failed.name, "this width is not possible" in (failed.reason or "")) == ("run-1", True)


def test_names_of_runs_may_tell_what_make_trainer_suggests(tmp_path: Path) -> None:
    def make_trainer(trial: Any) -> Any:
        rate = trial.suggest_float("rate", 1e-3, 1e-1)
        return transformers_trainer(tmp_path, TwoLayers(), learning_rate=rate, num_train_epochs=1)

    best = tune(make_trainer, hp_name=lambda trial: f"rate-{trial.params['rate']:.4f}", n_trials=2, progress=False)
    for record in best.run_summary.records:
        assert record.name == f"rate-{record.params['rate']:.4f}"
