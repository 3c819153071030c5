"""The Trainer: a recipe with the public API of transformers' Trainer: its hooks, training, evaluation and search.

`train()` builds a `TrainingRun` and shows the latest one through attributes (`model`, `state`, ...). A trial is another
trainer, never a change to this one. Every hook here may be overridden; what they do by default is in `training/`.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch.utils.data import DataLoader
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput, TrainOutput

from ..arguments import TrainingArguments
from ..errors import InvalidInputError
from ..system.spelling import nearest_name
from ..training import (
    batch_size,
    batches,
    data,
    evaluation,
    loop,
    losses,
    operations,
    optimization,
    resume,
    samplers,
    sharding,
    steps,
    weights,
)
from .saving import Saving
from .searchable import SearchableRecipe


class Trainer(SearchableRecipe, Saving):
    """Trains, evaluates and searches a model; the API is that of `transformers.Trainer`.

    The constructor stores its arguments, checks that they fit together and does nothing else: no seed is set, no
    model is built, no folder made. What a run derives from them lives in the run.

    Args:
        model: the model to train. Exactly one of `model` and `model_init` is required.
        args: the training arguments; default `TrainingArguments("tmp_trainer")`. A plain
            `transformers.TrainingArguments` is taken over as ours.
        data_collator: makes a batch of samples. Default: padding if `processing_class` is a tokenizer or a sequence
            feature extractor, else stacking.
        train_dataset: a map-style or iterable dataset. Columns that the model does not take are dropped.
        eval_dataset: a dataset, or a dict of them; each is evaluated, its metrics prefixed ``eval_<name>_``.
        processing_class: tokenizer, processor or feature extractor; saved beside the model.
        model_init: called with nothing or with the trial, returns a new model; called once per run, after the seed
            is set. Required for a search.
        compute_loss_func: ``(outputs, labels, num_items_in_batch) -> loss``, in place of the model's own loss.
        compute_metrics: ``EvalPrediction -> dict`` of metrics.
        callbacks: instances or classes, added to the default ones.
        optimizers: a ready optimizer and schedule, each or both None. Not together with `model_init`.
        optimizer_cls_and_kwargs: the optimizer class and its arguments, in place of `args.optim`.
        preprocess_logits_for_metrics: ``(logits, labels) -> logits``, applied to each batch before it is kept.

    Raises:
        InvalidInputError: the arguments contradict each other.

    Example:
        >>> from hpsearch import PrinterCallback, Trainer, TrainingArguments
        >>> class Line(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.weight = torch.nn.Parameter(torch.zeros(1))
        ...     def forward(self, x, labels):
        ...         return {"loss": ((self.weight * x - labels) ** 2).mean()}
        >>> points = [{"x": torch.tensor([1.0]), "labels": torch.tensor([2.0])}] * 32
        >>> args = TrainingArguments("out", learning_rate=0.1, use_cpu=True, disable_tqdm=True, save_strategy="no")
        >>> trainer = Trainer(model_init=Line, args=args, train_dataset=points)
        >>> trainer.remove_callback(PrinterCallback)
        >>> trainer.train().global_step
        12
    """

    # Whether the loss that `compute_loss` returns is normalised over all micro-batches of an update; None: by the rule.
    loss_is_scaled_for_ga: bool | None = None

    def _check(self) -> None:
        super()._check()
        self._check_overrides()
        if self.train_dataset is not None and not self._makes_its_own_batches:
            data.check_training_data(self.train_dataset, self.args)

    def _check_overrides(self) -> None:
        """Refuse a subclass that overrides what only transformers' Trainer has: it would never be called."""
        for kind in type(self).__mro__[: type(self).__mro__.index(Trainer)]:
            for name, value in vars(kind).items():
                if callable(value) and hasattr(transformers.Trainer, name) and not hasattr(Trainer, name):
                    raise InvalidInputError(
                        f"{kind.__name__}.{name} would never be called: it is a part of transformers' loop, not of "
                        "this one. Override a public hook (training_step, compute_loss, get_train_dataloader, ...), or "
                        "use a callback."
                    )

    # Training.

    @property
    def _makes_its_own_batches(self) -> bool:
        return type(self).get_train_dataloader is not Trainer.get_train_dataloader

    @property
    def has_training_data(self) -> bool:
        """True if there is a `train_dataset`, or `get_train_dataloader` is overridden."""
        return self.train_dataset is not None or self._makes_its_own_batches

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
        *,
        reapply_arguments: bool = False,
    ) -> TrainOutput:
        """Train a new run to its end and return its step count, mean training loss and metrics.

        With `model_init`, every call builds a new model; without it, calls continue to train the given model, each with
        a new optimizer and schedule.

        Args:
            resume_from_checkpoint: a checkpoint folder, or True for the newest in `args.output_dir`. The run resumes
                exactly where the checkpoint was written.
            trial: a trial, or a dict of parameters, to train with: the run's arguments are those of this trainer with
                the parameters applied. The trainer's own arguments stay as they are.
            ignore_keys_for_eval: keys of the model's output that evaluations during training do not gather.
            reapply_arguments: resume from the checkpoint with the hyperparameters of this trainer's arguments. Weights,
                moments, counts, the position in data and schedule and the random streams are those of the checkpoint;
                every hyperparameter of the optimizer, and the learning rate that the schedule scales, are this
                trainer's. Without it, those of the checkpoint stay in force. What may differ from before says
                `hpsearch.training.hyperparameters.check_changeable`.

        Raises:
            CheckpointError: there is no such checkpoint, or it is damaged or of another model; or, with
                `reapply_arguments`, of updates with another number of samples.
            ArgumentError: a parameter of the trial is not valid.
        """
        reapplied: dict[str, Any] = {"reapply_arguments": True} if reapply_arguments else {}
        if trial is not None:
            recipe = self.for_trial(trial)
            recipe._shown_on, self._run = self, None
            return recipe.train(resume_from_checkpoint, None, ignore_keys_for_eval, **reapplied)
        if not self.has_training_data:
            raise InvalidInputError("Trainer: training requires a train_dataset.")
        folder = resume.resolve(resume_from_checkpoint, self.args.output_dir)
        point = None
        if folder is not None:
            point = resume.read_resume_point(folder, self.args, **reapplied)
        if not self.args.auto_find_batch_size:
            return self._train_run(self.args, point, ignore_keys_for_eval)
        given = self._given_model
        at_start = {} if given is None else copy.deepcopy(given.state_dict())

        def start_again() -> None:
            self.release()
            if given is not None:
                given.load_state_dict(at_start)

        return batch_size.with_executable_batch_size(
            lambda args: self._train_run(args, point, ignore_keys_for_eval), self.args, point, start_again
        )

    def _train_run(
        self, args: TrainingArguments, point: resume.ResumePoint | None, ignore_keys: list[str] | None
    ) -> TrainOutput:
        run = self._build_run(args)
        if point is not None:
            weights.load_weights(run.model, point.folder)
        return loop.train(self, point, ignore_keys)

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Hook: forward and backward of one micro-batch; return the detached loss."""
        return steps.training_step(self, model, inputs, num_items_in_batch)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Hook: return the loss of a micro-batch, or (loss, outputs) if asked.

        An override may leave out `num_items_in_batch`.
        """
        return losses.compute_loss(self, model, inputs, return_outputs, num_items_in_batch)

    def compute_loss_context_manager(self) -> contextlib.AbstractContextManager[Any]:
        """Hook: the context the loss is computed in; precision is accelerate's business, so by default an empty one."""
        return contextlib.nullcontext()

    def autocast_smart_context_manager(
        self, cache_enabled: bool | None = True
    ) -> contextlib.AbstractContextManager[Any]:
        """Return an empty context; kept for scripts that enter it (accelerate does the casting)."""
        return contextlib.nullcontext()

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Hook: floating-point operations of forward and backward on `inputs`.

        As the model's own `floating_point_ops` counts them, else six per token and weight; 0 if it tells neither.
        """
        traits = self.run.traits
        if traits.counts_own_operations:
            return self.model.floating_point_ops(inputs)
        tokens = inputs.get(traits.main_input_name) if traits.flos_per_token else None
        return 0 if tokens is None else traits.flos_per_token * tokens.numel()

    def operations_so_far(self) -> float:
        """Return the cost of the latest run up to now in floating-point operations; 0 if it is not known.

        As a search compares trials: see `hpsearch.training.operations`. An override of `floating_point_ops`, or one of
        the model, is taken as it is.
        """
        run = self.run
        is_overridden = getattr(self.floating_point_ops, "__func__", None) is not Trainer.floating_point_ops
        samples = operations.samples_so_far(run.state, self.args, run.callback_handler.train_dataloader)
        is_own_count = is_overridden or run.traits.counts_own_operations
        return operations.operations_so_far(run.state, run.model, samples, is_own_count)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Hook: draw the micro-batches of one update; return them, and the number of items that enter its loss.

        An override may draw more than it returns: the position in the data counts what was drawn. One that returns no
        micro-batch although it drew some skips these; one that draws none ends the epoch. The number is None if the
        loss does not use it.

        Args:
            epoch_iterator: what is left of the epoch.
            num_batches: as many as `gradient_accumulation_steps`; at the end of the epoch there may be fewer.
            device: where the number is to be.
        """
        group = batches.take(epoch_iterator, num_batches)
        return group, losses.count_items(self, group, device)

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Hook: create the optimizer and the schedule over `num_training_steps` updates."""
        self.create_optimizer()
        self.create_scheduler(num_training_steps)

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """Hook: create the optimizer, unless there is one, and return it."""
        if self.optimizer is None:
            target = self.model if model is None else model
            groups = optimization.parameter_groups(
                target, self.args.weight_decay, self.get_decay_parameter_names(target)
            )
            kind, kwargs = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(self.args, target)
            self.optimizer = optimization.make_optimizer(target, groups, kind, kwargs, self.optimizer_parameters)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Hook: create the learning-rate schedule, unless there is one, and return it."""
        if self.lr_scheduler is None:
            target = self.optimizer if optimizer is None else optimizer
            self.lr_scheduler = optimization.make_schedule(self.args, target, num_training_steps)
        return self.lr_scheduler

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        """Return the names of the parameters with weight decay: all but biases and normalisation layers."""
        return optimization.decay_parameter_names(model)

    # Data.

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Hook: return the loader of the training data: shuffled, or in order for a dataset without a length."""
        if self.train_dataset is None:
            raise InvalidInputError("Trainer: training requires a train_dataset.")
        sampler = self._get_train_sampler(self.train_dataset)
        return data.make_loader(self, self.train_dataset, "training", self.run.args.train_batch_size, sampler, True)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Hook: return the loader of an evaluation dataset: the one given, or one of `self.eval_dataset` by name."""
        dataset = self._eval_dataset(eval_dataset)

        def make() -> DataLoader[Any]:
            sampler = self._get_eval_sampler(dataset)
            return data.make_loader(self, dataset, "evaluation", self.args.eval_batch_size, sampler, False)

        return self.run.eval_loader(dataset, make)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        """Hook: return the loader of a test dataset, in its order."""
        sampler = self._get_eval_sampler(test_dataset)
        return data.make_loader(self, test_dataset, "test", self.args.eval_batch_size, sampler, False)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """Hook, under the name it has in transformers: the order of the training samples."""
        return samplers.train_sampler(self, self.train_dataset if train_dataset is None else train_dataset)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        """Hook, under the name it has in transformers: the order of the evaluation samples."""
        return samplers.eval_sampler(self, eval_dataset)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Hook, under the name it has in transformers: bring a batch onto the device."""
        return data.move_to(inputs, self.args.device)

    @property
    def label_names(self) -> list[str]:
        """The keys of a batch that hold labels."""
        return self.run.traits.label_names

    @property
    def can_return_loss(self) -> bool:
        """True if the model returns a loss without labels, as CLIP does."""
        return self.run.traits.can_return_loss

    @property
    def current_gradient_accumulation_steps(self) -> int:
        """The number of micro-batches in the present update; the last one of an epoch may have fewer."""
        return self.run.micro_batches_in_update

    @property
    def is_fsdp_enabled(self) -> bool:
        """True if the model is spread over the processes by FSDP."""
        return sharding.is_sharded(self.run) and not sharding.uses_deepspeed(self.run)

    @property
    def is_deepspeed_enabled(self) -> bool:
        """True if DeepSpeed runs the training."""
        return sharding.uses_deepspeed(self.run)

    @property
    def deepspeed(self) -> Any:
        """The engine of DeepSpeed once training has begun with it; else None."""
        return self.model_wrapped if self.is_deepspeed_enabled and self.run.has_trained else None

    def end(self) -> None:
        """Leave the process group: the last call in a script of several processes. In a single one it does nothing."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def get_num_trainable_parameters(self) -> int:
        """Return the number of weights that are trained."""
        return sum(each.numel() for each in self.model.parameters() if each.requires_grad)

    def get_learning_rates(self) -> list[float]:
        """Return the present learning rate of every parameter group of the optimizer."""
        if self.optimizer is None:
            raise InvalidInputError("Trainer optimizer is None: there is none yet. Call create_optimizer() or train().")
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_optimizer_group(self, param: str | torch.nn.Parameter | None = None) -> Any:
        """Return the parameter group of the optimizer that holds `param`; without it, the parameters of every group.

        Args:
            param: a parameter of the model, or its name.

        Raises:
            InvalidInputError: there is no optimizer yet, or `param` is in none of its groups.
        """
        if self.optimizer is None:
            raise InvalidInputError("Trainer optimizer is None: there is none yet. Call create_optimizer() or train().")
        groups = self.optimizer.param_groups
        if param is None:
            return [group["params"] for group in groups]
        named = dict(self.model.named_parameters())
        wanted = named.get(param) if isinstance(param, str) else param
        for group in groups:
            if any(each is wanted for each in group["params"]):
                return group
        if isinstance(param, str) and wanted is None:
            raise InvalidInputError(f"The model has no parameter {param!r}.{nearest_name(param, named)}")
        raise InvalidInputError(
            f"The optimizer does not train {param if isinstance(param, str) else 'this parameter'!r}: it is in none of "
            f"its {len(groups)} groups."
        )

    def get_total_train_batch_size(self, args: TrainingArguments | None = None) -> int:
        """Return the samples of one update, over all processes and accumulated micro-batches."""
        own = self.args if args is None else args
        return own.train_batch_size * own.gradient_accumulation_steps * own.world_size

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """Return the number of samples behind a loader, estimated from its batches if its dataset has no length."""
        return data.num_examples(dataloader, self.args.per_device_train_batch_size)

    def _eval_dataset(self, eval_dataset: Any) -> Any:
        if isinstance(eval_dataset, str):
            sets = self.eval_dataset if isinstance(self.eval_dataset, dict) else {}
            if eval_dataset not in sets:
                raise InvalidInputError(
                    f"There is no evaluation set {eval_dataset!r}; eval_dataset has {sorted(sets) or 'no named sets'}."
                    f"{nearest_name(eval_dataset, sets)}"
                )
            return sets[eval_dataset]
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if dataset is None:
            raise InvalidInputError("Trainer: evaluation requires an eval_dataset. Pass it here or to the Trainer.")
        return dataset

    # Evaluation and prediction.

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Evaluate the model of the latest run; return, log and announce its metrics.

        Args:
            eval_dataset: a dataset, a dict of them, or the name of one in `self.eval_dataset`; default: that.
            ignore_keys: keys of the model's output that are not gathered.
            metric_key_prefix: every key starts with it; for dicts with ``<prefix>_<name>``.
        """
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, dict):
            collected: dict[str, float] = {}
            for name, each in dataset.items():
                target = name if eval_dataset is None else each
                collected.update(self.evaluate(target, ignore_keys, f"{metric_key_prefix}_{name}"))
            return collected
        loader = self.get_eval_dataloader(eval_dataset)
        start_time = time.time()
        with self.run.memory.stage("eval"):
            output = self.evaluation_loop(
                loader,
                description="Evaluation",
                prediction_loss_only=True if self.compute_metrics is None else None,
                ignore_keys=ignore_keys,
                metric_key_prefix=metric_key_prefix,
            )
            evaluation.add_speed_metrics(self.run, output, metric_key_prefix, start_time)
            output.metrics.update(self.run.memory.stop("eval"))
        self.log(output.metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, output.metrics)
        return output.metrics

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Predict on a dataset; metrics are there too if it has labels.

        Predictions of unequal length are padded on the right with -100.
        """
        loader = self.get_test_dataloader(test_dataset)
        start_time = time.time()
        with self.run.memory.stage("test"):
            output = self.evaluation_loop(
                loader, description="Prediction", ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix
            )
            evaluation.add_speed_metrics(self.run, output, metric_key_prefix, start_time)
            output.metrics.update(self.run.memory.stop("test"))
        self.control = self.callback_handler.on_predict(self.args, self.state, self.control, output.metrics)
        return PredictionOutput(output.predictions, output.label_ids, output.metrics)

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Hook: run the model over a loader; return predictions, labels, prefixed metrics and the sample count."""
        return evaluation.evaluation_loop(
            self, dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
        )

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Any, Any, Any]:
        """Hook: return (loss, logits, labels) of one batch, each None where there is none."""
        return evaluation.prediction_step(self, model, inputs, prediction_loss_only, ignore_keys)
