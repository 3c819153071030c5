"""The recipe a Trainer is: what it was given, the trainers made from it, and its latest run.

Stores and checks; what a run derives from the arguments lives in the run.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import transformers
from torch.optim.lr_scheduler import LRScheduler

from ..arguments import TrainingArguments, adopt
from ..arguments.casting import argument_names, cast_argument
from ..arguments.older_spellings import successor_of_argument
from ..errors import ArgumentError, InvalidInputError, UnknownArgumentError
from ..search.study import SEEDS_IN_ALL
from ..search.trial import FixedTrial, Trial
from ..system.spelling import misspelling_of, nearest_name
from ..training import data, optimization
from ..training.callbacks import (
    TrainerCallback,
    copy_for_new_trainer,
    default_callbacks,
    is_display,
)
from ..training.model_init import check_model_init, takes_trial
from ..training.optimization import OptimizerClass
from ..training.randomness import preserved_streams
from ..training.run import TrainingRun
from ..training.shared_parts import EarlierParts
from ..training.trackers import end_trial
from .attributes import OfLatestRun, Removed

if TYPE_CHECKING:
    from ..training.hooks import ProcessingClass

PARAMETER_GROUPS = ("model", "lora", "optim", "data")
_READ_FROM_THE_TRIAL = ("model.", "lora.", "data.")

Self = TypeVar("Self", bound="Recipe")


class Recipe:
    """The arguments of a trainer, and how other trainers and runs are made from them.

    `hpsearch.Trainer` documents the arguments and adds training, the hooks, evaluation, saving and the search.
    """

    model = OfLatestRun("The core model of the latest run; the first look builds a run.")
    model_wrapped = OfLatestRun("The outermost model: `model` inside its distributed wrapper, or `model` itself.")
    optimizer = OfLatestRun("The optimizer of the latest run; None before training.")
    lr_scheduler = OfLatestRun("The learning-rate schedule of the latest run; None before training.")
    accelerator = OfLatestRun("The accelerate Accelerator of the latest run.")
    state = OfLatestRun("The TrainerState of the latest run.")
    control = OfLatestRun("The TrainerControl of the latest run.")
    callback_handler = OfLatestRun("The handler that calls the callbacks of the latest run.")
    label_smoother = OfLatestRun("The label smoother of the latest run, or None.")
    current_flos = OfLatestRun("The floating-point operations of this process that are not in the state yet.")
    _accepts_loss_kwargs: bool | None = None
    _is_of_a_search = False
    prediction_loop = Removed("evaluation_loop")
    init_git_repo = Removed("init_hf_repo, which makes the repository over HTTP")

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        args: transformers.TrainingArguments | None = None,
        data_collator: Callable[..., object] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: ProcessingClass | None = None,
        model_init: Callable[..., torch.nn.Module] | None = None,
        compute_loss_func: Callable[..., torch.Tensor] | None = None,
        compute_metrics: Callable[..., dict[str, Any]] | None = None,
        callbacks: Sequence[TrainerCallback | type[TrainerCallback]] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, LRScheduler | None] = (None, None),
        optimizer_cls_and_kwargs: tuple[OptimizerClass, dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[..., object] | None = None,
        *,
        tokenizer: ProcessingClass | None = None,
    ) -> None:
        if tokenizer is not None:
            processing_class = _renamed_tokenizer(tokenizer, processing_class)
        self.args: TrainingArguments = adopt(args)
        self.model_init = model_init
        self.data_collator: Callable[..., object] = (
            data.default_collator(processing_class) if data_collator is None else data_collator
        )
        self.train_dataset = train_dataset
        self.eval_dataset = eval_dataset
        self.processing_class = processing_class
        self.compute_loss_func = compute_loss_func
        self.compute_metrics = compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizers = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self.optimizer_parameters: Mapping[str, object] = {}
        self.callbacks: list[TrainerCallback] = [_instance(each) for each in callbacks or []]
        self.removed_callbacks: list[type] = []
        self.trial: Any = None
        self._given_model = model
        if not isinstance(optimizers, (tuple, list)) or len(optimizers) != 2:
            raise InvalidInputError(
                f"optimizers must be a pair (optimizer, schedule), each of which may be None, but got {optimizers!r}."
            )
        self._run: TrainingRun | None = None
        self._shown_on: Recipe | None = None
        self._parts_of_trials = EarlierParts()
        self._check()

    def _check(self) -> None:
        args = self.args
        if (self._given_model is None) == (self.model_init is None):
            raise InvalidInputError(
                "`Trainer` requires either a `model` or `model_init` argument, "
                + ("and was given neither." if self.model_init is None else "but not both.")
            )
        if self.model_init is not None:
            check_model_init(self.model_init)
            if any(each is not None for each in self.optimizers):
                raise InvalidInputError(
                    "Passing a `model_init` is incompatible with providing the `optimizers` argument: they belong to "
                    "one model, and every run builds its own. Pass optimizer_cls_and_kwargs, or override "
                    "create_optimizer_and_scheduler."
                )
        if self.optimizer_cls_and_kwargs is not None and self.optimizers[0] is not None:
            raise InvalidInputError(
                "Passing both `optimizers` and `optimizer_cls_and_kwargs` arguments is incompatible: each gives the "
                "optimizer. Pass one of them."
            )
        if args.auto_find_batch_size and any(each is not None for each in self.optimizers):
            raise InvalidInputError(
                "auto_find_batch_size starts training anew after running out of memory, which a ready optimizer in "
                "`optimizers` cannot; pass optimizer_cls_and_kwargs."
            )
        if not isinstance(inspect.getattr_static(type(self), "prediction_loop"), Removed):
            raise InvalidInputError(
                f"{type(self).__name__}.prediction_loop would never be called; override evaluation_loop instead."
            )
        default_callbacks(args)
        if self.optimizers[1] is None and args.lr_scheduler_kwargs:
            optimization.check_schedule(args)
        if self._given_model is not None and not isinstance(self._given_model, torch.nn.Module):
            raise InvalidInputError(
                f"model must be a torch.nn.Module, but got {self._given_model!r}; load it first, for example with "
                "AutoModelForSequenceClassification.from_pretrained(...), or pass model_init."
            )
        if self.optimizer_cls_and_kwargs is not None:
            kind, kwargs = self.optimizer_cls_and_kwargs
            for name in kwargs.keys() - optimization.GROUPS_BY_NAME:
                optimization.check_override(kind, name, kwargs[name], shown_as="optimizer_cls_and_kwargs: ")
        self._check_data()
        if not callable(self.data_collator):
            raise InvalidInputError(f"data_collator must be callable, but got {self.data_collator!r}.")
        if args.eval_strategy != "no" and self.eval_dataset is None:
            raise InvalidInputError(
                f"`args.eval_strategy` is {args.eval_strategy.value!r}, but you didn't pass an `eval_dataset` to "
                "`Trainer`. Pass one, or set eval_strategy='no'; a search with folds makes its own, and evaluates each "
                "epoch."
            )
        if args.save_strategy == "best" and args.metric_for_best_model is None:
            raise InvalidInputError("`args.metric_for_best_model` must be provided when using 'best' save_strategy.")
        metrics_hook = self.compute_metrics if args.batch_eval_metrics else None
        if metrics_hook is not None and "compute_result" not in inspect.signature(metrics_hook).parameters:
            raise InvalidInputError(
                "When using `batch_eval_metrics`, your `compute_metrics` function must take a `compute_result` "
                "argument: it is True for the last batch, whose metrics are those of the whole set."
            )

    def _check_data(self) -> None:
        for name in ("train_dataset", "eval_dataset"):
            if isinstance(getattr(self, name), str):
                raise InvalidInputError(
                    f"{name} must be a dataset, but got the text {getattr(self, name)!r}; load it first, for example "
                    "with datasets.load_dataset(...)."
                )

    @property
    def run(self) -> TrainingRun:
        """The latest run. The first access builds one: seeded, and with a new model if `model_init` is set."""
        if self._run is None:
            with preserved_streams():
                self._build_run()
        assert self._run is not None
        return self._run

    @property
    def tokenizer(self) -> ProcessingClass | None:
        """The older name of `processing_class`."""
        warnings.warn("tokenizer is an older spelling; use processing_class instead.", DeprecationWarning, stacklevel=2)
        return self.processing_class

    @property
    def is_in_train(self) -> bool:
        """True while `train()` is running, evaluations included."""
        return self._run is not None and self._run.is_in_train

    @property
    def model_accepts_loss_kwargs(self) -> bool:
        """True if the model normalises its loss by `num_items_in_batch`; detected, unless it is set."""
        return self.run.traits.accepts_loss_kwargs

    @model_accepts_loss_kwargs.setter
    def model_accepts_loss_kwargs(self, value: bool) -> None:
        self._accepts_loss_kwargs = bool(value)
        if self._run is not None:
            self._run.traits = dataclasses.replace(self._run.traits, accepts_loss_kwargs=bool(value))

    @property
    def is_model_parallel(self) -> bool:
        """True if the model was loaded onto several devices."""
        placement = getattr(self.model, "hf_device_map", None) or {}
        return len({device for device in placement.values() if device not in ("cpu", "disk")}) > 1

    @property
    def place_model_on_device(self) -> bool:
        """True if a run moves its model to `args.device`."""
        return self.args.place_model_on_device is not False and getattr(self.model, "hf_device_map", None) is None

    def with_arguments(self: Self, **parameters: object) -> Self:
        """Return a new trainer with other arguments; this one does not change.

        The new trainer shares the data, the functions and the callbacks, except callbacks with state, which it copies.
        If a `model` was passed, both trainers share it. The new trainer has no run yet.

        Args:
            parameters: training arguments by name, cast without loss and validated together; and dotted names:
                ``optim.*`` are arguments of the optimizer; ``model.*``, ``lora.*`` and ``data.*`` are for
                `model_init(trial)` to read, as is any other name that is not a misspelt training argument.

        Raises:
            ArgumentError: a name or a value is not valid.

        Examples:
            ``trainer.with_arguments(learning_rate=1e-3, seed=7).train()``
        """
        for name in parameters:
            _check_group(name)
        arguments = self._arguments_among(parameters)
        other = copy.copy(self)
        other.args = self.args.replace(**arguments)
        other.callbacks = [copy_for_new_trainer(each) for each in self.callbacks]
        other.removed_callbacks = list(self.removed_callbacks)
        other.optimizer_parameters = {
            **self.optimizer_parameters,
            **{name.split(".", 1)[1]: value for name, value in parameters.items() if name.startswith("optim.")},
        }
        if any(self.is_read_by_user_code(name) for name in parameters):
            other.trial = FixedTrial(parameters)
        other._run = other._shown_on = None
        other._check()
        return other

    def for_trial(self: Self, trial: object, output_dir: str | None = None) -> Self:
        """Return a new trainer with a trial's parameters as arguments; its runs call ``model_init(trial)``.

        A trial of a cross-validation trains on the samples of its fold, and is evaluated on the others.

        With an `output_dir`, as in a search, the new trainer writes there, prints nothing, uploads nothing to the Hub,
        deletes no checkpoints and ignores SIGTERM. Its models must not share anything with those of earlier trials.

        Raises:
            ArgumentError: a parameter is not a valid training argument.
        """
        place: dict[str, object] = {} if output_dir is None else _as_part_of_a_search(output_dir)
        other = self.with_arguments(**place, **{**self._seeds_of_replica(trial), **trial_parameters(trial)})
        other.trial = trial
        fold = trial.fold if isinstance(trial, Trial) else None
        if fold is not None:
            other.train_dataset = data.select_samples(self.train_dataset, fold.train)
            other.eval_dataset = data.select_samples(self.train_dataset, fold.evaluation)
        if output_dir is not None:
            other._is_of_a_search = True
        return other

    def _seeds_of_replica(self, trial: object) -> dict[str, object]:
        """Return the training seed and the data seed of a replica; nothing for another trial."""
        offset = trial.seed_offset if isinstance(trial, Trial) else 0
        seeds = {"seed": self.args.seed, "data_seed": self.args.data_seed}
        return {name: (seed + offset) % SEEDS_IN_ALL for name, seed in seeds.items() if offset and seed is not None}

    def evaluated_on(self: Self, dataset: Any) -> Self:
        """Return a new trainer with evaluation data; it evaluates each epoch, unless its arguments say when."""
        other = copy.copy(self)
        other.eval_dataset = dataset
        return other.with_arguments(**({"eval_strategy": "epoch"} if self.args.eval_strategy == "no" else {}))

    def check_parameter(self, name: str, value: object, conditions: Mapping[str, object] | None = None) -> None:
        """Check that a trial could set parameter `name` to `value` together with `conditions`.

        Raises:
            UnknownArgumentError: the training argument or the parameter group does not exist.
            ArgumentError: the arguments, the optimizer or `model_init` cannot take the value.
        """
        if self._is_own_name(name):
            return
        arguments = self._arguments_among(conditions or {})
        if "." not in name:
            cast_argument(name, value, type(self.args))
            self.with_arguments(**{**arguments, name: value})
            return
        _check_group(name)
        group, _, key = name.partition(".")
        if group == "optim":
            args = self.args.replace(**arguments)
            kind, _ = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(args)
            optimization.check_override(kind, key, value)
        elif self.model_init is not None and not takes_trial(self.model_init):
            raise ArgumentError(f"{name!r} is for model_init(trial) to read, but this model_init takes no trial.")

    def is_read_by_user_code(self, name: str) -> bool:
        """Return True if `model_init(trial)` reads a parameter, False if it is a training or optimizer argument."""
        return name.startswith(_READ_FROM_THE_TRIAL) or self._is_own_name(name)

    def _is_own_name(self, name: str) -> bool:
        """Return True if `model_init(trial)` reads a name without a dot: it is no misspelt training argument."""
        if not name.isidentifier() or name in PARAMETER_GROUPS or self.model_init is None:
            return False
        if not takes_trial(self.model_init):
            return False
        arguments = argument_names(type(self.args))
        return name not in arguments and not successor_of_argument(name) and misspelling_of(name, arguments) is None

    def _arguments_among(self, parameters: Mapping[str, object]) -> dict[str, object]:
        """Return the training arguments among the parameters of a trial."""
        return {name: value for name, value in parameters.items() if "." not in name and not self._is_own_name(name)}

    def end_trackers(self, state: str, reason: str | None = None) -> None:
        """Report the end of a trial to the trackers of the latest run, which then close their runs."""
        if self._run is not None:
            end_trial(self._run.callback_handler.callbacks, state, reason)

    def release(self) -> None:
        """Drop the latest run and free its memory: model, optimizer, schedule, loaders.

        A model that was passed to the constructor is kept.
        """
        if self._run is not None:
            self._run.release()
            self._run = None

    def _build_run(self, args: TrainingArguments | None = None) -> TrainingRun:
        """Build a run; with a given model, an optimizer made for it before any training is kept."""
        earlier, self._run = self._run, None
        optimizers = self.optimizers
        if earlier is not None and self.model_init is None and earlier.model is not None:
            self._given_model = earlier.model
            if not earlier.has_trained:
                optimizers = (earlier.optimizer, earlier.lr_scheduler)
        del earlier
        run = TrainingRun(
            args or self.args,
            self.processing_class,
            lambda: self.call_model_init(self.trial),
            self._all_callbacks(),
            self.trial,
        )
        if self._accepts_loss_kwargs is not None:
            run.traits = dataclasses.replace(run.traits, accepts_loss_kwargs=self._accepts_loss_kwargs)
        if self.trial is not None:
            suggested = getattr(getattr(self.trial, "params", None), "values_by_name", {})  # model_init may suggest too
            run.describe_trial({**suggested, **trial_parameters(self.trial)}, getattr(self.trial, "name", None))
        if self._is_of_a_search:
            self._parts_of_trials.check("model_init", run.model)
        run.optimizer, run.lr_scheduler = optimizers
        self._run = run
        if self._shown_on is not None:
            self._shown_on._run = run
        return run

    def call_model_init(self, trial: object = None) -> torch.nn.Module:
        """Return the model of a new run: the one passed to the constructor, or a new one from `model_init`.

        Raises:
            InvalidInputError: `model_init` returned None.
        """
        if self.model_init is None:
            assert self._given_model is not None
            return self._given_model
        model = self.model_init(trial) if takes_trial(self.model_init) else self.model_init()
        if model is None:
            raise InvalidInputError("model_init should not return None; it must return the model.")
        return model

    @staticmethod
    def get_optimizer_cls_and_kwargs(
        args: TrainingArguments, model: torch.nn.Module | None = None
    ) -> tuple[OptimizerClass, dict[str, Any]]:
        """Return the optimizer class that `args.optim` names, and the arguments it takes from `args`."""
        return optimization.optimizer_class_and_kwargs(args, model)

    # Callbacks.

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        """Add a callback (a class or an instance) to this trainer and its latest run."""
        instance = _instance(callback)
        self.removed_callbacks = [each for each in self.removed_callbacks if each is not type(instance)]
        self.callbacks.append(instance)
        if self._run is not None:
            self._run.callback_handler.add_callback(instance)

    def pop_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> TrainerCallback | None:
        """Remove the first callback that matches a class or instance and return it; None if there is none."""
        if self._run is not None:
            present = self._run.callback_handler.callbacks
        else:
            present = [*self._default_callbacks(), *self.callbacks]
        kind = callback if isinstance(callback, type) else ()
        found = next((each for each in present if each is callback or isinstance(each, kind)), None)
        if found is None:
            return None
        if self._run is not None:
            self._run.callback_handler.remove_callback(found)
        if any(each is found for each in self.callbacks):
            self.callbacks = [each for each in self.callbacks if each is not found]
        else:
            self.removed_callbacks.append(type(found))
        return found

    def _all_callbacks(self) -> list[TrainerCallback]:
        """Return the callbacks of a new run; bar or printer are called last, when others may have changed the logs."""
        defaults = self._default_callbacks()
        shows = [each for each in defaults if is_display(each)]
        return [*(each for each in defaults if each not in shows), *self.callbacks, *shows]

    def _default_callbacks(self) -> list[TrainerCallback]:
        defaults = [each for each in default_callbacks(self.args) if type(each) not in self.removed_callbacks]
        return [each for each in defaults if not (self._is_of_a_search and is_display(each))]

    def remove_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        """Remove the first callback that matches a class or instance."""
        self.pop_callback(callback)


def trial_parameters(trial: Any) -> dict[str, object]:
    """Return the parameters to train with: a dict itself, the `arguments` of our trials, the `params` of Optuna's."""
    if isinstance(trial, Mapping):
        return dict(trial)
    return dict(trial.arguments if hasattr(trial, "arguments") else trial.params)


def _as_part_of_a_search(output_dir: str) -> dict[str, object]:
    return {
        "output_dir": output_dir,
        "run_name": Path(output_dir).name,
        "push_to_hub": False,
        "enable_jit_checkpoint": False,
        "save_total_limit": None,  # the search decides which checkpoints stay
    }


def _renamed_tokenizer(tokenizer: ProcessingClass, processing_class: ProcessingClass | None) -> ProcessingClass:
    if processing_class is not None and processing_class is not tokenizer:
        raise InvalidInputError("tokenizer is the older name of processing_class; pass only processing_class.")
    warnings.warn("tokenizer is an older spelling; use processing_class instead.", DeprecationWarning, stacklevel=3)
    return tokenizer


def _check_group(name: str) -> None:
    group, dot, _ = name.partition(".")
    if dot and group not in PARAMETER_GROUPS:
        raise UnknownArgumentError(
            f"{name!r} is in no parameter group; groups are {', '.join(f'{each}.*' for each in PARAMETER_GROUPS)}."
            f"{nearest_name(group, PARAMETER_GROUPS)}"
        )


def _instance(callback: TrainerCallback | type[TrainerCallback]) -> TrainerCallback:
    instance = callback() if isinstance(callback, type) else callback
    if not hasattr(instance, "on_train_begin"):
        raise InvalidInputError(f"{callback!r} is not a callback: derive it from TrainerCallback.")
    return instance
