"""A `model_init` that loads pretrained weights once, however many trials and workers start from them."""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from transformers.utils import logging

from ..errors import HpsearchError, InvalidInputError, SpaceError, StudyError
from ..system.spelling import nearest_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_MODEL = "model."


class FromPretrained:
    """A `model_init` whose trials all start from the same pretrained weights.

    The first model reads the files and converts the weights; trials on Ray and in workers receive the weights with the
    trainer, and share their memory. Each model equals that of ``model_class.from_pretrained(name_or_path, **options)``
    and has its own copy of the weights; new weights, such as the head of a classifier, are initialised from the trial's
    seed. Parameters named ``model.<name>`` are set in the configuration of the model.

    Args:
        model_class: a model class of transformers, such as `AutoModelForSequenceClassification`.
        name_or_path: a folder, or a name on the Hub.
        options: arguments of `from_pretrained`: ``num_labels``, ``dtype``, ``revision`` and the like.

    Raises:
        InvalidInputError: `model_class` has no `from_pretrained`, or the model or its file is quantized, or the model
            has PEFT adapters, so it cannot be rebuilt from its weights alone.
        StudyError: the files cannot be loaded.
        SpaceError: a parameter ``model.<name>`` is not in the configuration, or does not fit the weights.

    Examples:
        >>> from transformers import AutoModelForSequenceClassification
        >>> name = "answerdotai/ModernBERT-base"
        >>> model_init = FromPretrained(AutoModelForSequenceClassification, name, num_labels=2)
    """

    def __init__(self, model_class: object, name_or_path: object, **options: object) -> None:
        if not hasattr(model_class, "from_pretrained"):
            raise InvalidInputError(f"model_class must be a model class of transformers, but got {model_class!r}.")
        for name in ("config", "state_dict", "output_loading_info", "device_map"):
            if name in options:
                raise InvalidInputError(f"FromPretrained does not take {name}: it sets that itself.")
        for name in ("gguf_file", "quantization_config", "load_in_4bit", "load_in_8bit"):
            if options.get(name):
                raise InvalidInputError(
                    f"FromPretrained does not take {name}: it is for plain models, which can be rebuilt from their "
                    "weights alone. Call from_pretrained in a model_init function instead."
                )
        self._model_class, self._name_or_path, self._options = model_class, name_or_path, options
        self._class: Any = None
        self._config: Any = None
        self._weights: dict[str, torch.Tensor] = {}
        self._of_the_class: dict[str, object] = {}  # options that are arguments of the class, not of its loading
        self._name, self._generation = "", None

    @property
    def model_name(self) -> str:
        """The folder or the name on the Hub, and the model class: studies record it."""
        return f"{self._name_or_path} ({getattr(self._model_class, '__name__', self._model_class)})"

    def __call__(self, trial: Any = None) -> PreTrainedModel:
        """Return a new model, in evaluation mode as `from_pretrained` gives it."""
        self._load()
        changes = (
            {} if trial is None else {name: trial.params[name] for name in trial.params if name.startswith(_MODEL)}
        )
        config = self._changed(changes)
        tensors = {name: each.clone() for name, each in self._weights.items()}
        try:
            with _quietly():  # what is missing was said when the files were read
                model, report = self._class.from_pretrained(
                    None,
                    config=config,
                    state_dict=tensors,
                    dtype=self._options.get("dtype", "auto"),
                    output_loading_info=True,
                    **self._of_the_class,
                )
        except RuntimeError as error:
            if not changes:
                raise
            shown = ", ".join(f"{name}={value!r}" for name, value in changes.items())
            raise SpaceError(
                f"The pretrained weights do not fit {shown}: {str(error).partition(chr(10))[0]}"
            ) from error
        self._check_whole(set(report["missing_keys"]), changes)
        model.name_or_path = model.config._name_or_path = self._name
        if self._generation is not None:
            model.generation_config = copy.deepcopy(self._generation)
        return model

    def __getstate__(self) -> dict[str, object]:
        """Load the weights first, so they are pickled too and no other process reads the files again."""
        self._load()
        return dict(vars(self))

    def _load(self) -> None:
        """Read the files, if that has not been done.

        Raises:
            StudyError: they cannot be read.
        """
        if self._class is not None:
            return
        try:
            with torch.random.fork_rng(devices=[]):  # the first model is no other one than those after it
                model, report = self._model_class.from_pretrained(
                    self._name_or_path, output_loading_info=True, **self._options
                )
        except HpsearchError:
            raise
        except Exception as error:  # of files: some have errors of their own kind
            shown = f"{getattr(self._model_class, '__name__', self._model_class)}, {str(self._name_or_path)!r}"
            raise StudyError(f"FromPretrained({shown}) cannot be loaded: {type(error).__name__}: {error}") from error
        _check_plain(model)
        new = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
        known = inspect.signature(type(model).__init__).parameters
        self._config = model.config
        self._of_the_class = {name: value for name, value in self._options.items() if name in known}
        self._name, self._generation = model.name_or_path, getattr(model, "generation_config", None)
        self._weights = {name: each for name, each in model.state_dict().items() if name not in new}
        self._class = type(model)  # last: its presence means that the other attributes are set

    def _check_whole(self, missing: set[str], changes: dict[str, object]) -> None:
        """Check that no layer is random of a kind that the files have: they have fewer of them."""
        kinds = {_kind(name) for name in self._weights}
        lost = sorted(name for name in missing if _kind(name) in kinds)
        if lost:
            values = ", ".join(f"{name}={value!r}" for name, value in changes.items()) or "this model"
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            raise SpaceError(f"The pretrained weights do not fit {values}: they have no {lost[0]}{more}.")

    def _changed(self, changes: dict[str, object]) -> object:
        """Return the configuration of a model with parameters in place of its own values."""
        config = copy.deepcopy(self._config)
        for name, value in changes.items():
            key = name.removeprefix(_MODEL)
            if not hasattr(config, key):
                known = [f"{_MODEL}{each}" for each in config.to_dict()]
                raise SpaceError(f"{name} is not in {type(config).__name__}.{nearest_name(name, known)}")
            setattr(config, key, value)
        return config


def _check_plain(model: PreTrainedModel) -> None:
    """Check that a model can be made again from its weights alone.

    Raises:
        InvalidInputError: it is quantized, or has adapters of PEFT.
    """
    is_quantized = getattr(model, "is_quantized", False) or getattr(model, "hf_quantizer", None) is not None
    if is_quantized or getattr(model, "_hf_peft_config_loaded", False):
        what = "is quantized" if is_quantized else "has an adapter of PEFT"
        raise InvalidInputError(
            f"{model.name_or_path} {what}: FromPretrained is for plain models, which can be rebuilt from their "
            "weights alone. Call from_pretrained in a model_init function instead."
        )


def _kind(name: str) -> str:
    """Return the name of a weight without the numbers of layers."""
    return re.sub(r"\.\d+(?=\.)", ".*", name)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Silence the report and the progress bar of transformers while the block runs."""
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()
