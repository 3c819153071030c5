"""The model card of a run: README.md with its metadata, hyperparameters and results.

transformers' TrainingSummary words the card; here it is given what it needs and kept from guessing wrong.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from huggingface_hub.repocard import metadata_load
from huggingface_hub.utils import yaml_dump
from transformers import PreTrainedModel
from transformers.modelcard import TrainingSummary

from ..errors import InvalidInputError
from ..system.files import write_text
from ..version import __version__
from .hooks import Hooks

CARD_FILE = "README.md"
# What a card reports of its own run; everything else in an earlier card's metadata is kept.
_MEASURED = ("model-index", "metrics")


def write_model_card(trainer: Hooks, **fields: object) -> Path:
    """Write the card of the trainer's run into its output folder, whole or not at all.

    The text of an earlier card is replaced. Its metadata is kept where this one has none; its tags are added to.

    Args:
        trainer: the trainer whose run is described.
        fields: language, license, tags, model_name, finetuned_from, tasks, dataset_tags, dataset, dataset_args; what is
            left out is inferred as far as possible.

    Raises:
        InvalidInputError: the metadata of the earlier card cannot be read.
    """
    run = trainer.run
    path = Path(run.args.output_dir, CARD_FILE)
    summary = _summary(trainer, fields)
    text = _body(summary, trainer)
    metadata = _metadata(summary, run.accelerator.unwrap_model(run.model), _earlier_metadata(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, f"---\n{yaml_dump(metadata, sort_keys=False)}---\n{text}")
    return path


def _summary(trainer: Hooks, fields: dict[str, object]) -> TrainingSummary:
    run = trainer.run
    core = _core(run.accelerator.unwrap_model(run.model))
    # The summary infers the task from the class's name, and a base model even from an empty name or a folder.
    stand_in = type(type(core).__name__, (), {"config": SimpleNamespace()})()
    described = SimpleNamespace(
        args=run.args,
        state=run.state,
        model=stand_in,
        train_dataset=_with_a_name(trainer.train_dataset),
        eval_dataset=_with_a_name(trainer.eval_dataset),
    )
    given = dict(fields)
    given["tags"] = [*_as_list(fields.get("tags")), *_as_list(getattr(core, "model_tags", None)), "hpsearch"]
    if not given.get("model_name"):
        given["model_name"] = Path(run.args.output_dir).absolute().name or type(core).__name__
    if given.get("finetuned_from") is None:
        given["finetuned_from"] = _base_model(core)
    summary = TrainingSummary.from_trainer(described, **given)
    summary.hyperparameters = {**(summary.hyperparameters or {}), **_own_optimizer(trainer)}
    summary.eval_lines = _same_columns(summary.eval_lines)
    return summary


def _body(summary: TrainingSummary, trainer: Hooks) -> str:
    _, _, text = summary.to_model_card().split("---\n", 2)
    text += f"- hpsearch {__version__}\n"
    if hasattr(trainer.run.accelerator.unwrap_model(trainer.run.model), "peft_config"):
        text += f"- PEFT {importlib.metadata.version('peft')}\n"
    state = trainer.run.state
    if state.is_hyper_param_search:
        name = "a trial" if state.trial_name is None else f"the trial `{state.trial_name}`"
        text += f"\n### Hyperparameter search\n\nThis run is {name} of a search, with these values:\n\n"
        text += "".join(f"- {key}: {value}\n" for key, value in (state.trial_params or {}).items())
    return text


def _metadata(summary: TrainingSummary, model: object, earlier: dict[str, object]) -> dict[str, object]:
    metadata = summary.create_metadata()
    if hasattr(model, "peft_config"):
        metadata["library_name"] = "peft"
    elif not isinstance(model, PreTrainedModel):
        metadata["library_name"] = "hpsearch"
    kept = {name: value for name, value in earlier.items() if name not in _MEASURED}
    tags = list(dict.fromkeys([*_as_list(metadata.get("tags")), *_as_list(earlier.get("tags"))]))
    return {**kept, **metadata, "tags": tags}


def _earlier_metadata(path: Path) -> dict[str, object]:
    if not path.is_file():
        return {}
    try:
        return metadata_load(path) or {}
    except (ValueError, yaml.YAMLError) as error:
        raise InvalidInputError(
            f"The metadata of {str(path)!r} (between its --- lines) is not a YAML mapping: {error}. Correct it or "
            "remove the file."
        ) from error


def _core(model: Any) -> Any:
    """Return the model that adapters were added to, or the model itself."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


def _base_model(core: object) -> str | None:
    name = getattr(getattr(core, "config", None), "_name_or_path", None)
    return name if name and not Path(name).is_dir() else None


def _with_a_name(dataset: object) -> object:
    """Return `dataset` unless it is an in-memory one of datasets, which a card would call "None"."""
    return None if getattr(dataset, "builder_name", "") is None else dataset


def _own_optimizer(trainer: Hooks) -> dict[str, str]:
    """Describe an optimizer that the user has passed, since `args.optim` does not name it."""
    optimizer = getattr(trainer.run.optimizer, "optimizer", trainer.run.optimizer)
    if optimizer is None or (trainer.optimizer_cls_and_kwargs is None and trainer.optimizers[0] is None):
        return {}
    settings = {name: value for name, value in optimizer.defaults.items() if not isinstance(value, (bool, type(None)))}
    shown = ", ".join(f"{name}={value}" for name, value in settings.items())
    return {"optimizer": f"{type(optimizer).__name__}({shown})"}


def _same_columns(lines: list[dict[str, object]] | None) -> list[dict[str, object]] | None:
    """Give every row of the results table every column; evaluations may differ in their metrics."""
    if lines is None:
        return None
    columns = dict.fromkeys(name for line in lines for name in line)
    return [{name: line.get(name, "") for name in columns} for line in lines]


def _as_list(value: Any) -> list[object]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)
