"""Before the first trial: one step and two batches on a model that is thrown away; a mistake costs no trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from hpsearch import (
    Categorical,
    Float,
    InvalidInputError,
    MissingMetricError,
    NoCompletedTrialError,
    ObjectiveError,
    PreflightError,
    SearchListener,
    SpaceError,
    StudyError,
    TrainerCallback,
    UnknownParameterError,
)
from tests.support.models import accuracy
from tests.support.search_processes import RATE, records_on_disk
from tests.support.searching import states
from tests.support.small_trainer import CountsModels, TwoLayers, points, small_trainer, transformers_trainer
from tests.support.small_tune import search as search_by_function


class Hears(SearchListener):
    """Remembers notices, how trials ended, and counts what they do."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.ended: list[tuple[int, str]] = []
        self.steps = self.evaluations = 0

    def on_progress(self, *arguments: Any) -> None:
        self.steps += 1

    def on_report(self, *arguments: Any) -> None:
        self.evaluations += 1

    def on_notice(self, notice: str) -> None:
        self.notices.append(notice)

    def on_trial_end(self, record: Any) -> None:
        self.ended.append((record.number, record.state.value))


class CountsSteps(TrainerCallback):
    """Counts what trials do; a preflight has no callbacks."""

    def __init__(self) -> None:
        self.steps = self.evaluations = self.saves = 0

    def on_step_end(self, *arguments: Any, **kwargs: Any) -> None:
        self.steps += 1

    def on_evaluate(self, *arguments: Any, **kwargs: Any) -> None:
        self.evaluations += 1

    def on_save(self, *arguments: Any, **kwargs: Any) -> None:
        self.saves += 1


def search(folder: Path, n_trials: int = 2, space: Any = None, **changes: Any) -> Any:
    """Search with a small trainer; `changes` are of the search, those in `trainer` of the trainer."""
    trainer = small_trainer(folder, *changes.pop("callbacks", ()), **changes.pop("trainer", {}))
    settings = {"compute_objective": "accuracy", "pruner": "none", "progress": False, "storage": "journal", **changes}
    return trainer.hyperparameter_search(RATE if space is None else space, n_trials=n_trials, **settings)


def refused(error: Any, match: str, folder: Path, **changes: Any) -> pytest.ExceptionInfo[Any]:
    """Check that a search ends with an error before any trial has made a step, and return it."""
    hears = Hears()
    with pytest.raises(error, match=match) as raised:
        search(folder, 5, **{"progress": hears, **changes})
    assert (hears.steps, hears.evaluations) == (0, 0)
    assert hears.ended == [(0, "refused")]
    assert str(raised.value).count("\n") <= 5  # it fits on one screen
    return raised


# Mistakes.


def test_a_misspelt_read_of_a_parameter_ends_the_search_with_the_nearest_name(tmp_path: Path) -> None:
    def model_init(trial: Any) -> TwoLayers:
        return TwoLayers(trial.params["model.widht"])

    space = {**RATE, "model.width": Categorical([4, 8])}
    error = refused(
        UnknownParameterError, "Did you mean 'model.width'", tmp_path, space=space, trainer={"model_init": model_init}
    )
    assert isinstance(error.value, KeyError)
    assert isinstance(error.value, SpaceError)


def test_a_misspelt_read_in_a_later_trial_ends_the_search_too(tmp_path: Path) -> None:
    def model_init(trial: Any) -> TwoLayers:
        return TwoLayers(trial.params["model.width" if trial.number < 2 else "model.widht"])

    hears = Hears()
    with pytest.raises(UnknownParameterError):
        search(
            tmp_path,
            5,
            {"model.width": Categorical([4, 8, 9, 10, 11])},
            trainer={"model_init": model_init},
            progress=hears,
        )
    assert hears.ended == [(0, "complete"), (1, "complete"), (2, "refused")]


def test_parameters_of_branches_that_are_not_open_are_asked_for_as_those_of_a_dict(tmp_path: Path) -> None:
    seen: list[Any] = []

    def model_init(trial: Any) -> TwoLayers:
        trial.params["model.kind"]
        seen.append((trial.params.get("model.width", 6), "model.width" in trial.params))
        try:
            width = trial.params["model.width"]
        except SpaceError:
            raise AssertionError("a branch that is not open is no mistake") from None
        except KeyError:
            width = 6
        return TwoLayers(width)

    kinds = Categorical({"narrow": {}, "wide": {"model.width": Categorical([9])}})
    start = [{"model.kind": "narrow"}, {"model.kind": "wide"}]
    best = search(tmp_path, 2, {"model.kind": kinds}, trainer={"model_init": model_init}, start_with=start)
    assert states(best) == ["complete"] * 2
    assert seen == [(6, False), (6, False), (9, True)]


def test_a_misspelt_metric_is_known_after_two_batches(tmp_path: Path) -> None:
    refused(MissingMetricError, "acuracy.*Did you mean 'eval_accuracy'", tmp_path, compute_objective="acuracy")


@pytest.mark.parametrize("changes", [{}, {"load_best_model_at_end": True, "save_strategy": "epoch"}])
def test_a_misspelt_metric_for_best_model_is_known_after_two_batches(tmp_path: Path, changes: dict[str, Any]) -> None:
    trainer = {"metric_for_best_model": "acuracy", **changes}
    refused(
        MissingMetricError, "metric_for_best_model.*acuracy.*Did you mean 'eval_accuracy'", tmp_path, trainer=trainer
    )


def test_a_metric_of_a_constraint_that_is_missing_is_known_before_any_trial(tmp_path: Path) -> None:
    refused(MissingMetricError, "latency", tmp_path, constraints="latency <= 3")


def test_an_error_in_compute_metrics_names_its_place(tmp_path: Path) -> None:
    def compute_metrics(prediction: Any) -> dict[str, float]:
        raise IndexError("too many axes")

    match = r"evaluating raises IndexError: too many axes \(test_preflight.py, line \d+, in compute_metrics\)"
    refused(PreflightError, match, tmp_path, trainer={"compute_metrics": compute_metrics})


def test_an_error_in_the_data_names_its_place(tmp_path: Path) -> None:
    class Vectors(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> Any:
            return {"x": points(1, seed=index)[0]["vector"]}

    match = r"KeyError: 'vector' \(test_preflight.py, line \d+, in __getitem__\).*preflight=False"
    refused(PreflightError, match, tmp_path, trainer={"train_dataset": Vectors()})


def test_a_dataset_of_tuples_is_refused(tmp_path: Path) -> None:
    data = [(each["x"], each["labels"]) for each in points(16, seed=0)]
    refused(PreflightError, "samples must be dicts", tmp_path, trainer={"train_dataset": data})


def test_a_parameter_that_nobody_reads_is_known_before_any_trial(tmp_path: Path) -> None:
    refused(
        SpaceError,
        "Parameter 'model.width' is never used",
        tmp_path,
        space={"model.width": Categorical([4, 8])},
        trainer={"model_init": lambda trial: TwoLayers()},
    )


def test_all_parameters_that_nobody_reads_are_named_with_those_that_are_meant(tmp_path: Path) -> None:
    refused(
        SpaceError,
        r"Parameters 'lr', 'batch_size', 'depth' are never used: .* must read trial\.params\['lr'\], .* "
        r"Did you mean 'learning_rate' for 'lr' and 'per_device_train_batch_size' for 'batch_size'\?",
        tmp_path,
        space={"lr": Float(1e-4, 1e-1), "batch_size": Categorical([4, 8]), "depth": Categorical([1, 2])},
        trainer={"model_init": lambda trial: TwoLayers()},
    )


def a_report(prediction: Any) -> dict[str, Any]:
    return {**accuracy(prediction), "report": "precision and recall of each class" * 20}


def a_matrix(prediction: Any) -> dict[str, Any]:
    return {**accuracy(prediction), "confusion": np.zeros((25, 25))}


@pytest.mark.parametrize(
    ("compute_metrics", "objective", "match"),
    [
        (lambda prediction: 0.9, "accuracy", r"compute_metrics returned 0\.9 \(float\); it must return a dict of"),
        (lambda prediction: None, None, "compute_metrics returned None; it must return a dict of"),
        (a_report, None, r"eval_report is the text '.{1,40}', which is no number\. Name .* \('accuracy'\)"),
        (a_matrix, None, r"eval_confusion is an array of shape \(25, 25\), which is no number"),
        (a_matrix, "confusion", r"eval_confusion must be a number, but it is an array of shape \(25, 25\)\."),
        (a_report, lambda metrics: metrics["eval_f1"], r"^The objective needs 'eval_f1', but"),
    ],
)
def test_a_metric_that_is_no_number_ends_the_search(
    tmp_path: Path, compute_metrics: Any, objective: Any, match: str
) -> None:
    """Also where a function is the space, of which no other parameters can be drawn."""
    refused(
        ObjectiveError,
        match,
        tmp_path,
        space=lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1)},
        trainer={"compute_metrics": compute_metrics},
        compute_objective=objective,
        direction="maximize",
    )


def test_a_function_of_metrics_that_returns_no_dict_is_said_also_of_a_trainer_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def make(trial: Any) -> transformers.Trainer:
        return transformers_trainer("made", TwoLayers(), compute_metrics=lambda prediction: 0.9, **trial.params)

    with pytest.raises(ObjectiveError, match=r"compute_metrics returned 0\.9 \(float\)"):
        search_by_function(make)


def test_an_input_that_the_trainer_refuses_for_all_parameters_ends_the_search(tmp_path: Path) -> None:
    def model_init(trial: Any) -> TwoLayers:
        raise InvalidInputError("the model cannot generate")

    refused(PreflightError, "cannot generate.*3 other configurations", tmp_path, trainer={"model_init": model_init})


@pytest.mark.parametrize("given", [None, 1, "no"])
def test_preflight_is_true_or_false(tmp_path: Path, given: Any) -> None:
    with pytest.raises(StudyError, match="preflight must be True or False, but got"):
        search(tmp_path, preflight=given)


# What is left to the trial.


def one_class(prediction: Any) -> dict[str, float]:
    """A metric that needs more samples than two batches have."""
    if len(prediction.label_ids) < 32:
        raise ValueError("only one class is present")
    return accuracy(prediction)


def test_a_metric_that_two_batches_are_too_few_for_is_tried_on_the_whole_set(tmp_path: Path) -> None:
    hears = Hears()
    best = search(tmp_path, trainer={"compute_metrics": one_class, "per_device_eval_batch_size": 4}, progress=hears)
    assert states(best) == ["complete"] * 2
    assert "one step and the whole evaluation work" in hears.notices[0]


@pytest.mark.parametrize("where", ["model", "step", "evaluation"])
def test_memory_that_is_exhausted_ends_no_search(tmp_path: Path, where: str) -> None:
    built: list[int] = []

    class OutOfMemory(TwoLayers):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            if len(built) == 1 and where == ("step" if self.training else "evaluation"):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
            return super().forward(x, labels)

    def model_init(trial: Any) -> TwoLayers:
        built.append(trial.number)
        if len(built) == 1 and where == "model":
            raise MemoryError
        return OutOfMemory()

    hears = Hears()
    best = search(tmp_path, trainer={"model_init": model_init}, progress=hears)
    assert states(best) == ["complete"] * 2
    assert "runs out of memory, which the trial will record" in hears.notices[0]


def test_an_objective_that_is_not_finite_ends_no_search(tmp_path: Path) -> None:
    values = iter([np.nan, *[0.5] * 4])
    metrics = {"compute_metrics": lambda prediction: {"accuracy": next(values)}}
    assert states(search(tmp_path, trainer=metrics)) == ["complete"] * 2


def test_an_error_of_the_parameters_of_one_trial_is_for_that_trial_to_record(tmp_path: Path) -> None:
    def model_init(trial: Any) -> TwoLayers:
        if trial.params["model.width"] == 5:
            raise ValueError("5 is not divisible by 2")
        return TwoLayers(trial.params["model.width"])

    hears = Hears()
    best = search(
        tmp_path,
        space={"model.width": Categorical([4, 5, 6, 8])},
        trainer={"model_init": model_init},
        start_with=[{"model.width": 5}, {"model.width": 6}],
        progress=hears,
    )
    assert states(best) == ["failed", "complete"]
    assert "ValueError: 5 is not divisible by 2 with these parameters, but not with others" in hears.notices[0]


@pytest.mark.parametrize("where", ["evaluation", "compute_metrics"])
def test_an_evaluation_that_fails_with_the_parameters_of_one_trial_is_for_that_trial_to_record(
    tmp_path: Path, where: str
) -> None:
    class FailsAtFive(TwoLayers):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            is_five = self.hidden.out_features == 5 and not self.training
            if is_five and where == "evaluation":
                raise ValueError("not five")
            outputs = super().forward(x, labels)
            return {**outputs, "logits": outputs["logits"] * torch.nan} if is_five else outputs

    def without_nan(prediction: Any) -> dict[str, float]:
        if np.isnan(prediction.predictions).any():
            raise ValueError("Input contains NaN.")
        return accuracy(prediction)

    hears = Hears()
    best = search(
        tmp_path,
        space={"model.width": Categorical([4, 5, 6, 8])},
        trainer={
            "model_init": lambda trial: FailsAtFive(trial.params["model.width"]),
            "compute_metrics": without_nan,
        },
        start_with=[{"model.width": 5}, {"model.width": 6}],
        progress=hears,
    )
    assert states(best) == ["failed", "complete"]
    assert "with these parameters, but not with others" in hears.notices[0]


def test_weights_that_are_not_finite_after_the_step_are_for_the_trial_to_record(tmp_path: Path) -> None:
    built: list[int] = []

    class Diverges(TwoLayers):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            outputs = super().forward(x, labels)
            return {**outputs, "loss": outputs["loss"] * torch.inf} if self.training else outputs

    def without_nan(prediction: Any) -> dict[str, float]:
        if np.isnan(prediction.predictions).any():
            raise ValueError("Input contains NaN.")
        return accuracy(prediction)

    def model_init(trial: Any) -> TwoLayers:
        built.append(trial.number)
        return Diverges() if trial.number == 0 else TwoLayers()

    hears = Hears()
    trainer = {"model_init": model_init, "compute_metrics": without_nan}
    assert states(search(tmp_path, trainer=trainer, progress=hears)) == ["failed", "complete"]
    assert "the weights are not finite, which the trial will record" in hears.notices[0]


class AddsMetric(TrainerCallback):
    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        metrics["eval_calibration"] = 0.5


class SetsMargin(TrainerCallback):
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        model.margin = 1.0


class NeedsMargin(TwoLayers):
    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        outputs = super().forward(x, labels)
        return {**outputs, "logits": outputs["logits"] * self.margin}


@pytest.mark.parametrize(
    ("callback", "changes", "said"),
    [
        (
            AddsMetric(),
            {"compute_objective": "calibration"},
            "without AddsMetric, the objective eval_calibration",
        ),
        (SetsMargin(), {"trainer": {"model_init": NeedsMargin}}, "without SetsMargin; the trial will show"),
    ],
)
def test_a_callback_without_which_nothing_works_costs_nothing(
    tmp_path: Path, callback: TrainerCallback, changes: dict[str, Any], said: str
) -> None:
    hears = Hears()
    assert states(search(tmp_path, callbacks=[callback], progress=hears, **changes)) == ["complete"] * 2
    assert said in hears.notices[0]


def test_a_misspelt_metric_is_known_although_a_callback_might_add_it(tmp_path: Path) -> None:
    hears = Hears()
    with pytest.raises(MissingMetricError, match="Did you mean 'eval_accuracy'"):
        search(tmp_path, callbacks=[AddsMetric()], compute_objective="acuracy", progress=hears)
    assert hears.steps == 0


def by_function(trial: Any) -> dict[str, Any]:
    return {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)}


def test_with_a_function_as_space_one_bad_trial_ends_no_search(tmp_path: Path) -> None:
    def model_init(trial: Any) -> TwoLayers:
        if trial.number == 0:
            raise ValueError("not divisible by 2")
        return TwoLayers()

    hears = Hears()
    best = search(tmp_path, 3, by_function, trainer={"model_init": model_init}, progress=hears)
    assert states(best) == ["failed", "complete", "complete"]
    assert "the trial will show whether this is a mistake" in hears.notices[0]


@pytest.mark.parametrize(
    "callbacks", [pytest.param([], id="function"), pytest.param([SetsMargin()], id="static space, with a callback")]
)
def test_a_mistake_that_only_a_second_trial_can_show_costs_one_trial_that_does_not_count(
    tmp_path: Path, callbacks: list[Any]
) -> None:
    def broken(trial: Any) -> TwoLayers:
        raise ValueError("not divisible by 2")

    space = RATE if callbacks else by_function
    hears = Hears()
    with pytest.raises(PreflightError, match=r"not divisible by 2.* trial 0 has failed in the same way"):
        search(tmp_path, 3, space, trainer={"model_init": broken}, callbacks=callbacks, progress=hears)
    assert hears.ended == [(0, "failed"), (1, "refused")]
    assert states(search(tmp_path, 3, space)).count("complete") == 3


def test_an_error_after_one_of_another_kind_is_no_mistake_yet(tmp_path: Path) -> None:
    def model_init(trial: Any) -> TwoLayers:
        if trial.number == 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        if trial.number == 1:
            raise ValueError("not divisible by 2")
        return TwoLayers()

    best = search(tmp_path, 3, by_function, trainer={"model_init": model_init})
    assert states(best) == ["failed", "failed", "complete"]


def test_configurations_that_exhaust_memory_are_no_evidence_of_a_mistake(tmp_path: Path) -> None:
    def model_init(trial: Any) -> TwoLayers:
        if trial.params["model.width"] != 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        raise ValueError("5 is not divisible by 2")

    with pytest.raises(NoCompletedTrialError):
        search(
            tmp_path,
            1,
            {"model.width": Categorical([4, 5, 6, 8])},
            trainer={"model_init": model_init},
            start_with={"model.width": 5},
        )


def test_other_configurations_are_other_ones_also_where_model_init_suggests(tmp_path: Path) -> None:
    suggested: list[int] = []

    def model_init(trial: Any) -> TwoLayers:
        suggested.append(trial.suggest_int("width", 1, 10**6))
        raise ValueError("no")

    with pytest.raises(PreflightError, match="3 other configurations"):
        search(tmp_path, 1, trainer={"model_init": model_init})
    assert len(set(suggested)) == 4


def test_values_of_a_function_that_the_arguments_refuse_cost_one_trial(tmp_path: Path) -> None:
    hears = Hears()
    with pytest.raises(PreflightError, match="learning_rate"):
        search(tmp_path, 3, lambda trial: {"learning_rate": -1.0}, progress=hears)
    assert hears.ended == [(0, "failed"), (1, "refused")]


def test_the_time_of_a_preflight_is_not_that_of_the_trial(tmp_path: Path, clock: Any) -> None:
    def model_init(trial: Any) -> TwoLayers:
        if not built:
            clock.move(5.0)()
        built.append(trial.number)
        return TwoLayers()

    built: list[int] = []
    best = search(tmp_path, 1, trainer={"model_init": model_init}, trial_timeout=4.0)
    assert states(best) == ["complete"]
    assert best.run_summary.records[0].seconds == 0.0


def test_names_that_an_earlier_trial_of_a_function_had_are_those_of_a_branch(tmp_path: Path) -> None:
    def space(trial: Any) -> dict[str, Any]:
        kind = trial.suggest_categorical("model.kind", ["wide", "narrow"])
        return {
            "model.kind": kind,
            **({"model.width": trial.suggest_int("model.width", 4, 8)} if kind == "wide" else {}),
        }

    def model_init(trial: Any) -> TwoLayers:
        trial.params["model.kind"]
        return TwoLayers(trial.params["model.width"])

    start = [{"model.kind": "wide"}, {"model.kind": "narrow"}, {"model.kind": "wide"}]
    best = search(tmp_path, 3, space, trainer={"model_init": model_init}, start_with=start)
    assert states(best) == ["complete", "failed", "complete"]


# It leaves nothing.


def test_trials_are_the_same_with_and_without_a_preflight(tmp_path: Path) -> None:
    counts = [CountsSteps(), CountsSteps()]
    found = []
    for each, preflight in zip(counts, (False, True), strict=True):
        best = search(
            tmp_path / str(preflight), 3, callbacks=[each], preflight=preflight, trainer={"save_strategy": "epoch"}
        )
        found.append(
            [(record.number, record.params, record.seed, record.values) for record in best.run_summary.records]
        )
    assert found[0] == found[1]
    assert vars(counts[0]) == vars(counts[1])
    names = [sorted(path.name for path in (tmp_path / each / "study").rglob("*")) for each in ("False", "True")]
    assert names[0] == names[1]


def test_the_callers_random_streams_and_the_trial_are_as_they_would_be(tmp_path: Path) -> None:
    drawn: list[tuple[int, float]] = []

    def model_init(trial: Any) -> TwoLayers:
        drawn.append((trial.number, float(torch.rand(1))))
        return TwoLayers(trial.suggest_int("hidden", 2, 64))

    best = search(tmp_path, trainer={"model_init": model_init})
    assert [number for number, _ in drawn] == [0, 0, 1]
    assert drawn[0] == drawn[1]  # the parameters and the seed of trial 0
    assert best.run_summary.records[0].params["hidden"] == best.run_summary.engine_study.trials[0].params["hidden"]


def test_it_runs_only_while_the_study_has_no_report_and_is_said_with_its_cost(tmp_path: Path) -> None:
    first, second = Hears(), Hears()
    init = CountsModels()
    search(tmp_path, 2, trainer={"model_init": init}, progress=first)
    search(tmp_path, 3, trainer={"model_init": init}, progress=second)
    assert [each.number for each in init.trials] == [0, 0, 1, 2]
    [notice] = first.notices
    assert notice.startswith("Preflight in 0.")
    assert notice.endswith("s: one step and an evaluation of 2 batches work (preflight=False skips it)")
    assert second.notices == []


def test_without_it_each_model_is_one_of_a_trial(tmp_path: Path) -> None:
    init = CountsModels()
    search(tmp_path, 2, trainer={"model_init": init}, preflight=False)
    assert [each.number for each in init.trials] == [0, 1]


def test_several_evaluation_sets_are_each_tried(tmp_path: Path) -> None:
    sizes: list[int] = []

    def compute_metrics(prediction: Any) -> dict[str, float]:
        sizes.append(len(prediction.label_ids))
        return accuracy(prediction)

    sets = {"a": points(40, seed=1), "b": points(50, seed=2)}
    changes = {"eval_dataset": sets, "compute_metrics": compute_metrics, "per_device_eval_batch_size": 8}
    search(tmp_path, 1, trainer=changes, compute_objective="eval_b_accuracy")
    assert sizes == [16, 16, *[40, 50] * 2]


# Trainers of transformers.


def test_a_function_that_makes_trainers_has_a_preflight_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    counts = CountsSteps()

    def make(trial: Any) -> transformers.Trainer:
        return transformers_trainer("made", TwoLayers(), counts, **trial.params)

    hears = Hears()
    with pytest.raises(MissingMetricError, match="acuracy"):
        search_by_function(make, compute_objective="acuracy", direction="maximize", progress=hears)
    assert (counts.steps, hears.ended) == (0, [(0, "refused")])
    best = search_by_function(make, progress=hears, study_name="right")
    assert "one step and an evaluation of 2 batches work" in hears.notices[0]
    assert states(best) == ["complete"] * 3
    assert counts.steps == 3 * 8


def test_memory_that_a_function_exhausts_as_it_makes_its_trainer_ends_no_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made: list[int] = []

    def make(trial: Any) -> transformers.Trainer:
        made.append(trial.number)
        if len(made) == 2:  # the first one shows what is made
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return transformers_trainer("made", TwoLayers(), **trial.params)

    assert states(search_by_function(make)) == ["complete"] * 3


def test_the_step_of_a_trainer_that_asks_for_rewards_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rewarded = type("GRPOTrainer", (transformers.Trainer,), {"__module__": "trl.trainer"})
    hears = Hears()

    def make(trial: Any) -> transformers.Trainer:
        return transformers_trainer("made", TwoLayers(), kind=rewarded, **trial.params)

    search_by_function(make, progress=hears)
    [skipped] = [each for each in hears.notices if each.startswith("Preflight")]
    assert "skipped, because the rewards of a GRPOTrainer may come from another service" in skipped


def test_a_refused_trial_is_not_counted(tmp_path: Path) -> None:
    refused(MissingMetricError, "accuracy", tmp_path, trainer={"compute_metrics": lambda prediction: {"f1": 0.5}})
    best = search(tmp_path, 2)
    assert [each["state"] for each in records_on_disk(tmp_path / "study")] == ["refused", "complete", "complete"]
    assert best.objective is not None


def test_the_first_of_two_searches_that_share_a_space_with_a_range_has_it(tmp_path: Path) -> None:
    """A function as space suggests in the preflight what it suggests in the trial."""

    def space(trial: Any) -> dict[str, Any]:
        return {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1), "weight_decay": Float(0.0, 0.1)}

    best = search(tmp_path, 2, space)
    assert states(best) == ["complete"] * 2
