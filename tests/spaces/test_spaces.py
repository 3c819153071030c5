"""Every ready-made space can be searched as it is, and what it says reaches the training."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback, ViTConfig, ViTForImageClassification
from transformers.optimization import Adafactor
from transformers.trainer_utils import default_hp_space_optuna
from transformers.training_args import OptimizerNames

from hpsearch import BestRun, Categorical, FixedTrial, Trainer, TrialState
from tests.support.models import bert_classifier, classification_data, gpt2_language_model, language_data
from tests.support.ready_spaces import MODULES, NAMES, SPACES
from tests.support.small_trainer import TwoLayers, points, small_trainer

WITH_OPTIMIZERS = [
    (name, choice)
    for name, space in SPACES.items()
    if isinstance(space.get("optim"), Categorical)
    for choice in space["optim"].choices
]
every_space = pytest.mark.parametrize("name", NAMES)


def tiny_vit() -> ViTForImageClassification:
    return ViTForImageClassification(
        ViTConfig(
            image_size=4,
            patch_size=2,
            num_channels=1,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            num_labels=2,
        )
    )


def images(size: int) -> list[dict[str, Any]]:
    """Images of one channel; the label tells whether they are bright."""
    drawn = torch.randn(size, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    return [{"pixel_values": image, "labels": int(image.mean() > 0)} for image in drawn]


def tiny_adapter(trial: Any) -> Any:
    """The `model_init` of the docstring of spaces/lora.py, on a model that is made here."""
    import peft

    adapter = peft.LoraConfig(
        task_type="SEQ_CLS",
        r=trial.params["lora.r"],
        lora_alpha=trial.params["lora.alpha"],
        lora_dropout=trial.params["lora.dropout"],
        target_modules=trial.params["lora.target_modules"],
    )
    return peft.get_peft_model(bert_classifier(hidden=8), adapter)


def trainer_for(name: str, folder: Path, *callbacks: Any) -> Trainer:
    """A tiny trainer of the kind that the space is for."""
    classification = {"train_dataset": classification_data(8), "eval_dataset": classification_data(8, seed=1)}
    made_for: dict[str, dict[str, Any]] = {
        "encoder": {"model_init": bert_classifier, **classification},
        "language_model": {
            "model_init": gpt2_language_model,
            "train_dataset": language_data(8),
            "eval_dataset": language_data(8, seed=1),
            "compute_metrics": None,
        },
        "lora": {"model_init": tiny_adapter, **classification},
        "optimizers": {"model_init": TwoLayers},
        "peer_defaults": {"model_init": TwoLayers},
        "vision": {"model_init": tiny_vit, "train_dataset": images(8), "eval_dataset": images(8)},
    }
    return small_trainer(folder, *callbacks, **{"train_dataset": points(8, seed=0), **made_for[name]})


def search(trainer: Trainer, space: Any, n_trials: int, start_with: Any) -> BestRun:
    best: BestRun = trainer.hyperparameter_search(
        space, n_trials=n_trials, start_with=start_with, pruner=None, storage="journal", progress=False
    )
    return best


def draws(name: str, count: int) -> list[dict[str, Any]]:
    generator = random.Random(0)
    return [SPACES[name].sample(generator) for _ in range(count)]


# What the files say.


def test_all_ready_made_spaces_are_tested() -> None:
    assert NAMES == ["encoder", "language_model", "lora", "optimizers", "peer_defaults", "vision"]


@every_space
def test_the_first_line_can_stand_in_a_listing(name: str) -> None:
    first, blank, *_ = (MODULES[name].__doc__ or "").splitlines()
    assert re.fullmatch(r"[A-Z].{20,88}\.", first)
    assert blank == ""


@every_space
def test_what_model_init_must_read_is_said(name: str) -> None:
    said = MODULES[name].__doc__ or ""
    read = [each for each in SPACES[name].all_parameters() if each.split(".")[0] in ("model", "lora", "data")]
    assert ("`model_init` reads nothing" in said) == (not read)
    assert [each for each in read if f'trial.params["{each}"]' not in said] == []


@every_space
def test_every_range_has_a_comment_with_its_source(name: str) -> None:
    lines = Path(str(MODULES[name].__file__)).read_text(encoding="utf-8").splitlines()
    ranges = [
        place for place, line in enumerate(lines) if re.search(r"\b(Float|Int|Categorical|default_space)\(", line)
    ]
    assert ranges
    assert [lines[place] for place in ranges if not lines[place - 1].lstrip().startswith("# ")] == []


# What the spaces hold.


@pytest.mark.parametrize("name", [name for name in NAMES if name != "peer_defaults"])
def test_the_defaults_are_a_whole_configuration_inside_and_the_priors_among_them(name: str) -> None:
    space = SPACES[name]
    assert space.contains(space.defaults())
    for parameter, belief in space.priors().items():
        assert space.all_parameters()[parameter].contains(belief)
        assert space.all_parameters()[parameter].default == belief


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("encoder", {"learning_rate", "weight_decay", "warmup_steps"}),
        ("lora", {"learning_rate", "lora.r", "lora.alpha", "lora.dropout", "lora.target_modules"}),
        ("optimizers", {"learning_rate", "weight_decay", "optim.momentum", "warmup_steps"}),
    ],
)
def test_where_the_field_has_a_settled_default_it_is_the_prior(name: str, parameters: set[str]) -> None:
    assert parameters <= SPACES[name].priors().keys()


@every_space
def test_200_random_draws_are_valid_arguments_and_reach_every_choice(name: str, tmp_path: Path) -> None:
    space, trainer = SPACES[name], trainer_for(name, tmp_path)
    seen: dict[str, set[Any]] = {}
    for values in draws(name, 200):
        assert space.contains(values)
        changed = trainer.with_arguments(**values)
        for parameter, value in values.items():
            if "." not in parameter:
                assert getattr(changed.args, parameter) == value
            if parameter.startswith("optim."):
                trainer.check_parameter(parameter, value, {"optim": values["optim"]})
            seen.setdefault(parameter, set()).add(value)
    assert set(seen) == set(space.all_parameters())
    for parameter, each in space.all_parameters().items():
        if isinstance(each, Categorical):
            assert seen[parameter] == set(each.choices)
        else:
            assert each.low <= min(seen[parameter]) < max(seen[parameter]) <= each.high


def test_the_default_space_of_the_peer_is_that_of_the_installed_transformers() -> None:
    class Asked:
        """Notes what the peer's function asks for."""

        def __init__(self) -> None:
            self.ranges: dict[str, Any] = {}

        def suggest_float(self, name: str, low: float, high: float, log: bool = False) -> float:
            self.ranges[name] = ("Float", low, high, log)
            return low

        def suggest_int(self, name: str, low: int, high: int) -> int:
            self.ranges[name] = ("Int", low, high, False)
            return low

        def suggest_categorical(self, name: str, choices: list[Any]) -> Any:
            self.ranges[name] = tuple(choices)
            return choices[0]

    asked = Asked()
    default_hp_space_optuna(asked)
    ours = {
        name: each.choices if isinstance(each, Categorical) else (type(each).__name__, each.low, each.high, each.log)
        for name, each in SPACES["peer_defaults"].items()
    }
    assert ours == asked.ranges


# Searches.


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft asks transformers
@every_space
def test_two_trials_train_and_the_first_has_the_defaults(name: str, tmp_path: Path) -> None:
    if name == "lora":
        pytest.importorskip("peft")
    best = search(trainer_for(name, tmp_path), SPACES[name], 2, "defaults")
    records = best.run_summary.records
    assert [(record.state, record.reason) for record in records] == [(TrialState.COMPLETE, None)] * 2
    assert all(SPACES[name].contains(record.params) for record in records)
    assert SPACES[name].defaults().items() <= records[0].params.items()
    assert records[0].params != records[1].params
    assert isinstance(best.load_model(), torch.nn.Module)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft asks transformers
@pytest.mark.parametrize("name", ["encoder", "language_model", "lora", "optimizers"])  # those with one for a number
def test_the_first_trial_of_a_search_with_rungs_has_the_priors(name: str, tmp_path: Path) -> None:
    if name == "lora":
        pytest.importorskip("peft")
    best = trainer_for(name, tmp_path).hyperparameter_search(
        SPACES[name], n_trials=4, storage="journal", progress=False
    )
    record = best.run_summary.records[0]
    existing = {parameter: belief for parameter, belief in SPACES[name].priors().items() if parameter in record.params}
    assert existing
    assert existing.items() <= record.params.items()


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft asks transformers
@pytest.mark.parametrize(
    ("modules", "adapted"), [("all-linear", {"query", "key", "value", "dense"}), (None, {"query", "value"})]
)
def test_the_parameters_of_an_adapter_are_those_of_the_trial(modules: str | None, adapted: set[str]) -> None:
    pytest.importorskip("peft")
    params = {"lora.r": 4, "lora.alpha": 10, "lora.dropout": 0.0625, "lora.target_modules": modules}
    assert SPACES["lora"].contains({"learning_rate": 2e-4, **params})
    layers = {
        name.rpartition(".")[2]: module
        for name, module in tiny_adapter(FixedTrial(params)).named_modules()
        if hasattr(module, "lora_A")
    }
    assert set(layers) == adapted
    assert {layer.lora_A["default"].out_features for layer in layers.values()} == {4}
    assert {layer.scaling["default"] for layer in layers.values()} == {10 / 4}
    assert {layer.lora_dropout["default"].p for layer in layers.values()} == {0.0625}


class Notes(TrainerCallback):
    """Notes with which optimizer a trial begins, and how far its weights have moved at its end."""

    trials: list[dict[str, Any]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        optimizer = getattr(kwargs["optimizer"], "optimizer", kwargs["optimizer"])
        groups = [{key: each for key, each in group.items() if key != "params"} for group in optimizer.param_groups]
        weights = [each.detach().clone() for each in kwargs["model"].parameters()]
        Notes.trials.append({"kind": type(optimizer), "groups": groups, "weights": weights})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        pairs = zip(Notes.trials[-1]["weights"], kwargs["model"].parameters(), strict=True)
        Notes.trials[-1]["moved"] = max(float((after.detach() - before).abs().max()) for before, after in pairs)


KINDS = {
    "adafactor": Adafactor,
    "adagrad": torch.optim.Adagrad,
    "adamw_torch": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}


@pytest.mark.parametrize(("name", "choice"), WITH_OPTIMIZERS)
def test_every_optimizer_trains_with_all_parameters_of_its_branch(name: str, choice: str, tmp_path: Path) -> None:
    Notes.trials = []
    drawn = next(values for values in draws(name, 100) if values["optim"] == choice)
    best = search(trainer_for(name, tmp_path, Notes), SPACES[name], 1, drawn)
    [record], [noted] = best.run_summary.records, Notes.trials
    assert record.state is TrialState.COMPLETE
    assert record.params == drawn
    assert choice in [each.value for each in OptimizerNames]
    assert noted["kind"] is KINDS[choice]
    assert noted["moved"] > 0
    decayed = noted["groups"][0]
    reached = {
        "learning_rate": decayed["initial_lr"],
        "weight_decay": decayed["weight_decay"],
        "adam_beta2": decayed.get("betas", (None, None))[1],
        "adam_epsilon": decayed.get("eps"),
        **{f"optim.{key}": each for key, each in decayed.items()},
        "optim.lr": decayed["initial_lr"],
    }
    own = SPACES[name]["optim"].branches[choice]
    assert own
    assert {key: reached[key] for key in own} == {key: drawn[key] for key in own}
    assert len({group["initial_lr"] for group in noted["groups"]}) == 1


def test_the_rate_of_adafactor_is_absolute() -> None:
    """As the docstring of spaces/optimizers.py says: neither relative to the step nor scaled by the weights."""
    trainer = small_trainer("unused", optim="adafactor")
    _, arguments = trainer.get_optimizer_cls_and_kwargs(trainer.args)
    assert (arguments["relative_step"], arguments["scale_parameter"]) == (False, False)


def test_the_evaluation_loss_is_smoothed_too(tmp_path: Path) -> None:
    """As the docstring of spaces/vision.py says, which is why it is not to be compared."""
    plain, smoothed = (
        small_trainer(tmp_path, seed=0, label_smoothing_factor=factor).evaluate()["eval_loss"] for factor in (0.0, 0.1)
    )
    assert plain != pytest.approx(smoothed, rel=1e-3)
