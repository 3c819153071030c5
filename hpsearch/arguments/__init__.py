"""The training arguments: transformers' own, plus two, validated copies, lossless casting, older spellings.

Knows nothing of models, runs or studies.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import inspect
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import transformers
from accelerate.state import AcceleratorState, PartialState
from transformers.debug_utils import DebugOption
from transformers.trainer_utils import IntervalStrategy

from ..errors import ArgumentError, MissingPackageError
from ..system.spelling import nearest_name
from .argument_checks import check_values
from .casting import argument_names, cast_argument, number_names
from .older_spellings import translate_arguments

# Fields that transformers fills in from others if they are not given.
_DERIVED = ("greater_is_better", "metric_for_best_model", "eval_steps", "do_eval", "disable_tqdm")
# Fields of transformers that this version cannot honour, and their neutral values: better refused than ignored.
_NOT_HONOURED: dict[str, tuple[object, ...]] = {
    "parallelism_config": (None,),
}


class _AcceptsOlderSpellings(type):
    """Translates older spellings of arguments before the constructor, which a dataclass generates, sees them."""

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        given = translate_arguments(kwargs)
        allowed = _parameters(cls)
        unknown = next((name for name in given if name not in allowed), None)
        if unknown is not None and not any(each.kind == each.VAR_KEYWORD for each in allowed.values()):
            raise TypeError(f"{unknown!r} is not an argument of {cls.__name__}.{nearest_name(unknown, allowed)}")
        return super().__call__(*args, **given)

    @property
    def __signature__(cls) -> inspect.Signature:
        return inspect.Signature(list(_parameters(cls).values()))


@functools.cache
def _parameters(kind: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of the constructor of `kind`, by name."""
    return dict(list(inspect.signature(kind.__init__).parameters.items())[1:])


@dataclass
class TrainingArguments(transformers.TrainingArguments, metaclass=_AcceptsOlderSpellings):
    """All arguments of a training run: the fields of `transformers.TrainingArguments`, and two more.

    The additional fields are `ray_scope` and `tensorboard_logging_dir`.

    Differences from transformers:

    - `replace(**changes)` returns a new, fully validated object and does not change this one. Values that transformers
      derives from others (`greater_is_better`, `eval_steps`, ...) are derived again for the copy.
    - Every value is first checked alone (`argument_checks`), so that an error names the argument.
    - Older spellings (`evaluation_strategy`, `no_cuda`, `warmup_ratio`, ...) are translated to their successors with a
      DeprecationWarning, or refused with an error that names the successor.
    - Options that this version cannot honour are refused: `parallelism_config`.

    Raises:
        ArgumentError: a value is not allowed, or transformers refuses a combination of values.

    Examples:
        >>> args = TrainingArguments("out", learning_rate=1e-3, use_cpu=True)
        >>> args.replace(learning_rate=1e-4).learning_rate, args.learning_rate
        (0.0001, 0.001)
    """

    # As in transformers, but for the text of the arguments, which does not show it.
    hub_token: str | None = field(
        default=None, repr=False, metadata=transformers.TrainingArguments.__dataclass_fields__["hub_token"].metadata
    )
    ray_scope: str = field(
        default="last",
        metadata={
            "help": "Which reports of a trial determine its value and its checkpoint in a search: last, all (the "
            "best one), "
            "avg, last-5-avg or last-10-avg."
        },
    )
    tensorboard_logging_dir: str | None = field(
        default=None,
        metadata={
            "help": "Where TensorBoard's files go; a trial of a search writes below its own folder instead. Default: "
            "the variable TENSORBOARD_LOGGING_DIR of the environment, else output_dir/runs/<time>_<host>."
        },
    )

    def __post_init__(self) -> None:
        kind: Any = type(self)
        given = {name: copy.copy(getattr(self, name)) for name in argument_names(kind)}
        self._cast_numbers()
        check_values(self)
        for name, neutral in _NOT_HONOURED.items():
            if getattr(self, name, neutral[0]) not in neutral:
                raise ArgumentError(
                    f"{name}={getattr(self, name)!r} is not supported by this version of hpsearch; leave it at "
                    f"{neutral[0]!r}."
                )
        if self.deepspeed and importlib.util.find_spec("deepspeed") is None:
            raise MissingPackageError("deepspeed=... needs the package deepspeed: pip install deepspeed")
        self._own_configuration()
        try:
            with _undisturbed_accelerate(), self._without_unused_backend():
                super().__post_init__()
        except (ValueError, TypeError, NotImplementedError, OSError) as error:
            raise ArgumentError(f"TrainingArguments: {error}") from error
        self._take_over_accumulation()
        if self.mixed_precision == "fp16" and self.device.type == "cpu":
            raise ArgumentError("fp16=True needs a GPU; on a CPU set bf16=True with use_cpu=True, or neither.")
        if DebugOption.TPU_METRICS_DEBUG in self.debug:
            raise ArgumentError("debug='tpu_metrics_debug' needs a TPU; 'underflow_overflow' works everywhere.")
        self._given = given
        self._resolved = {name: copy.copy(getattr(self, name)) for name in given}

    @contextlib.contextmanager
    def _without_unused_backend(self: Any) -> Iterator[None]:
        """Hide `ddp_backend` in a process that no launcher has started: accelerate would ask for its process group.

        The groups of processes that a search starts use it.
        """
        backend, is_launched = self.ddp_backend, "LOCAL_RANK" in os.environ or "WORLD_SIZE" in os.environ
        self.ddp_backend = backend if is_launched else None
        try:
            yield
        finally:
            self.ddp_backend = backend

    def _cast_numbers(self: object) -> None:
        """Take numbers as the type their field is annotated with, if that loses nothing; refuse them otherwise."""
        kind: Any = type(self)
        for name in number_names(kind):
            value = getattr(self, name)
            if value == _default(kind, name):
                continue
            cast = cast_argument(name, value, kind)
            if type(value) is not int:  # a whole number stays one where fractions are allowed, as in transformers
                setattr(self, name, cast)

    def _own_configuration(self: Any) -> None:
        """Take a copy of what transformers writes into."""
        if isinstance(self.fsdp_config, dict):
            self.fsdp_config = dict(self.fsdp_config)

    def _take_over_accumulation(self: Any) -> None:
        """Take the accumulation that `accelerator_config` may ask for; the loop accumulates, not accelerate."""
        wanted = dict(self.accelerator_config.gradient_accumulation_kwargs or {})
        steps = wanted.pop("num_steps", None)
        if wanted:
            raise ArgumentError(
                f"accelerator_config: gradient_accumulation_kwargs={wanted!r} has no effect, because the loop "
                "accumulates, not accelerate; leave it out."
            )
        if steps is None:
            return
        if self.gradient_accumulation_steps > 1:
            raise ArgumentError(
                f"accelerator_config asks for num_steps={steps!r} and gradient_accumulation_steps is "
                f"{self.gradient_accumulation_steps!r}; set only gradient_accumulation_steps."
            )
        self.gradient_accumulation_steps = cast_argument("gradient_accumulation_steps", steps, type(self))

    def set_evaluate(
        self,
        strategy: str | IntervalStrategy = "no",
        steps: int = 500,
        batch_size: int = 8,
        accumulation_steps: int | None = None,
        delay: float | None = None,
        loss_only: bool = False,
    ) -> TrainingArguments:
        """Set all evaluation arguments together, as in transformers; the default `delay` is 0."""
        super().set_evaluate(strategy, steps, batch_size, accumulation_steps, delay or 0, loss_only)
        return self

    def replace(self, **changes: object) -> TrainingArguments:
        """Return new arguments with `changes` applied, cast and validated; this object does not change.

        Attributes that were assigned after construction count as given.

        Raises:
            ArgumentError: a name is not a training argument, a value cannot be cast without loss, or transformers
                refuses the result.
        """
        values = {
            name: copy.copy(given if _is_same(getattr(self, name), self._resolved[name]) else getattr(self, name))
            for name, given in self._given.items()
        }
        values.update({name: cast_argument(name, value, type(self)) for name, value in changes.items()})
        try:
            changed = type(self)(**values)
            for name in vars(self).keys() - vars(changed).keys():
                setattr(changed, name, getattr(self, name))  # what a script has added to its arguments
            return changed
        except ArgumentError as error:
            shown = ", ".join(f"{name}={value!r}" for name, value in changes.items())
            if any(str(error).startswith(f"{name} must") for name in changes):  # it names the value itself
                raise
            raise ArgumentError(f"TrainingArguments refuses {shown}: {error}") from error


@contextlib.contextmanager
def _undisturbed_accelerate() -> Iterator[None]:
    """Leave accelerate's shared state to the run that uses it: transformers resets it whenever arguments are made."""
    states = (AcceleratorState._shared_state, PartialState._shared_state)
    earlier = [dict(each) for each in states]
    failed = True
    try:
        yield
        failed = False
    finally:
        same_device = earlier[1].get("device") == PartialState._shared_state.get("device")
        if earlier[0] and (failed or same_device):
            for state, content in zip(states, earlier, strict=True):
                state.clear()
                state.update(content)


def _is_same(left: object, right: object) -> bool:
    return left is right or (type(left) is type(right) and bool(left == right))


def adopt(args: transformers.TrainingArguments | None) -> TrainingArguments:
    """Return `args` as our own TrainingArguments; None gives the defaults with `output_dir="tmp_trainer"`.

    Raises:
        ArgumentError: `args` is of a class whose extra fields would be lost, or has been assigned what is not allowed.
    """
    if args is None:
        return TrainingArguments(output_dir="tmp_trainer")
    if isinstance(args, TrainingArguments):
        check_values(args)  # what was assigned after they were made
        return args
    given: Any = type(args)
    ours: Any = {
        transformers.TrainingArguments: TrainingArguments,
        transformers.Seq2SeqTrainingArguments: Seq2SeqTrainingArguments,
    }.get(given)
    if ours is None:
        raise ArgumentError(
            f"args is a {given.__module__}.{given.__qualname__}; expected hpsearch.TrainingArguments, a subclass of "
            "it, or transformers.TrainingArguments. Derive your class from hpsearch.TrainingArguments."
        )
    values = {name: getattr(args, name) for name in argument_names(given)}
    for name in _DERIVED:
        if _is_same(getattr(ours(**{**values, name: _default(given, name)}), name), values[name]):
            values[name] = _default(given, name)
    return ours(**values)


def _default(kind: Any, name: str) -> object:
    return kind.__dataclass_fields__[name].default


@dataclass
class Seq2SeqTrainingArguments(TrainingArguments, transformers.Seq2SeqTrainingArguments):
    """The arguments of a `Seq2SeqTrainer`: all of `TrainingArguments`, and those of generation in evaluations.

    It is also a `transformers.Seq2SeqTrainingArguments`, and has its fields:

    - `predict_with_generate`: predictions are generated token ids instead of logits. Default False.
    - `generation_max_length`, `generation_num_beams`: for every generation; default: the model's generation config.
    - `generation_config`: a `GenerationConfig`, or a folder, a file or a model id to load one from; it replaces the
      model's own in every run.
    - `sortish_sampler`: refused if True, as transformers no longer has such a sampler, and ignores the argument.

    Raises:
        ArgumentError: a value is not allowed.

    Examples:
        >>> args = Seq2SeqTrainingArguments("out", generation_max_length=8, use_cpu=True)
        >>> args.replace(generation_num_beams=4).generation_max_length
        8
    """

    def __post_init__(self) -> None:
        if self.sortish_sampler:
            raise ArgumentError(
                "sortish_sampler=True has no effect in transformers 5; use its successor, "
                "train_sampling_strategy='group_by_length', which puts samples of similar length into one batch."
            )
        super().__post_init__()
