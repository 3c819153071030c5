"""The Trainer: a recipe with the public API of transformers' Trainer: its hooks, training, evaluation and search.

`train()` builds a `TrainingRun` and shows the latest one through attributes (`model`, `state`, ...). A trial is another
trainer, never a change to this one. Every hook here may be overridden; what they do by default is in `training/`.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Sampler
from transformers.trainer_pt_utils import metrics_format
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput, TrainOutput, speed_metrics

from ..arguments import TrainingArguments
from ..errors import InvalidInputError
from ..search.listener import SearchListener
from ..search.metrics.constraints import Constraint
from ..search.result.best_run import BestRun
from ..search.study import SpaceLike
from ..search.study_callbacks import StudyCallback
from ..search.trial import Trial
from ..searching.repeated_warnings import warnings_once
from ..searching.replay import Replay, replay
from ..searching.run_search import search
from ..searching.search_arguments import Metric, SearchArguments
from ..system.spelling import nearest_name
from ..training import (
    batch_size,
    batches,
    checkpoints,
    data,
    evaluation,
    flops,
    hub,
    loop,
    losses,
    model_card,
    optimization,
    resume,
    samplers,
    sharding,
    steps,
    weights,
)
from ..training.hooks import Batch
from ..training.metrics import metrics_table, save_metrics
from .recipe import Recipe
from .searchable_trainer import SearchableTrainer

# Methods of the Trainer of hpsearch 0.8.0 that only a search called.
_ONLY_A_SEARCH_CALLED = (
    "check_changeable",
    "evaluate_batches",
    "is_out_of_memory",
    "is_set_before_user_code",
    "let_user_code_suggest",
    "preflight_trainer",
    "read_state",
    "resumable_checkpoints",
    "smaller_batches",
)


class Trainer(Recipe):
    """Train and evaluate a model, and search its hyperparameters; the API is that of `transformers.Trainer`.

    The constructor only stores its arguments and checks that they are consistent: it sets no seed, builds no model and
    creates no folder. Each run holds what it derives from the arguments.

    Args:
        model: the model to train. Exactly one of `model` and `model_init` is required.
        args: the training arguments; default `TrainingArguments("tmp_trainer")`. A plain
            `transformers.TrainingArguments` is converted to `hpsearch.TrainingArguments`.
        data_collator: a function that makes a batch from samples. Default: padding if `processing_class` is a tokenizer
            or a sequence feature extractor, otherwise stacking.
        train_dataset: a map-style or iterable dataset. Columns that the model does not take are dropped.
        eval_dataset: a dataset, or a dict of datasets: each is evaluated, and its metrics begin with ``eval_<name>_``.
        processing_class: a tokenizer, processor or feature extractor; it is saved with the model.
        model_init: a function of nothing or of the trial that returns a new model. It is called once per run, after the
            seed is set. Required for a search.
        compute_loss_func: ``(outputs, labels, num_items_in_batch) -> loss``; it replaces the model's own loss.
        compute_metrics: ``EvalPrediction -> dict`` of metrics.
        callbacks: instances or classes, added to the default ones.
        optimizers: a ready optimizer and schedule; each may be None. Cannot be combined with `model_init`.
        optimizer_cls_and_kwargs: the optimizer class and its arguments; they replace `args.optim`.
        preprocess_logits_for_metrics: ``(logits, labels) -> logits``, applied to each batch before it is kept.

    Raises:
        InvalidInputError: the arguments contradict each other.

    Examples:
        >>> from hpsearch import PrinterCallback, Trainer, TrainingArguments
        >>> class Line(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.weight = torch.nn.Parameter(torch.zeros(1))
        ...     def forward(self, x, labels):
        ...         return {"loss": ((self.weight * x - labels) ** 2).mean()}
        >>> points = [{"x": torch.tensor([1.0]), "labels": torch.tensor([2.0])}] * 32
        >>> args = TrainingArguments("out", learning_rate=0.1, use_cpu=True, disable_tqdm=True)
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
                if name in _ONLY_A_SEARCH_CALLED:
                    raise InvalidInputError(
                        f"{kind.__name__}.{name} would never be called: it is a method of "
                        "SearchableTrainer now, which a search makes of a Trainer."
                    )
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
        trial: object = None,
        ignore_keys_for_eval: list[str] | None = None,
        *,
        reapply_arguments: bool = False,
    ) -> TrainOutput:
        """Train a new run to completion; return its step count, mean training loss and metrics.

        With `model_init`, every call builds a new model. Without it, every call trains the given model further, with a
        new optimizer and schedule.

        Args:
            resume_from_checkpoint: a checkpoint folder, or True for the newest in `args.output_dir`. The run resumes
                exactly where the checkpoint was written.
            trial: a trial, or a dict of parameters, to train with: the run's arguments are those of this trainer with
                the parameters applied. The trainer's own arguments stay as they are.
            ignore_keys_for_eval: keys of the model's output that evaluations during training do not gather.
            reapply_arguments: resume from the checkpoint with the hyperparameters of this trainer's arguments. Weights,
                moments, counts, random streams and the position in data and schedule come from the checkpoint; the
                hyperparameters of the optimizer, and the learning rate that the schedule scales, from this trainer.
                Without it, all of them come from the checkpoint. See
                `hpsearch.training.hyperparameters.check_changeable` for what may change on resume.

        Raises:
            CheckpointError: the checkpoint does not exist, is damaged or belongs to another model; or, with
                `reapply_arguments`, its optimizer steps have another number of samples.
            ArgumentError: a parameter of the trial is not valid.
        """
        reapplied: dict[str, bool] = {"reapply_arguments": True} if reapply_arguments else {}
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
        self, model: torch.nn.Module, inputs: Batch, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Hook: run forward and backward on one micro-batch; return the detached loss."""
        return steps.training_step(self, model, inputs, num_items_in_batch)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Hook: return the loss of a micro-batch, or (loss, outputs) with `return_outputs`.

        An override may omit `num_items_in_batch`.
        """
        return losses.compute_loss(self, model, inputs, return_outputs, num_items_in_batch)

    def compute_loss_context_manager(self) -> contextlib.AbstractContextManager[object]:
        """Hook: return the context for computing the loss; an empty one, as accelerate handles precision."""
        return contextlib.nullcontext()

    def autocast_smart_context_manager(
        self, cache_enabled: bool | None = True
    ) -> contextlib.AbstractContextManager[Any]:
        """Return an empty context, for scripts that enter it; accelerate does the casting."""
        return contextlib.nullcontext()

    def floating_point_ops(self, inputs: Batch) -> int:
        """Hook: return the floating-point operations of forward and backward on `inputs`.

        The model's own `floating_point_ops` counts them; otherwise they are six per token and weight, or 0 if these
        numbers are unknown.
        """
        traits = self.run.traits
        if traits.counts_own_operations:
            return self.model.floating_point_ops(inputs)
        tokens = inputs.get(traits.main_input_name) if traits.flos_per_token else None
        return 0 if tokens is None else traits.flos_per_token * tokens.numel()

    def operations_so_far(self) -> float:
        """Return the cost of the latest run so far in floating-point operations; 0 if unknown.

        This is the cost by which a search compares trials: see `hpsearch.training.flops`. If `floating_point_ops` is
        overridden, here or in the model, the cost is the sum of its values.
        """
        run = self.run
        is_overridden = getattr(self.floating_point_ops, "__func__", None) is not Trainer.floating_point_ops
        samples = flops.samples_so_far(run.state, self.args, run.callback_handler.train_dataloader)
        is_own_count = is_overridden or run.traits.counts_own_operations
        return flops.operations_so_far(run.state, run.model, samples, is_own_count)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Hook: draw the micro-batches of one optimizer step; return them, and the number of items in its loss.

        An override may draw more than it returns: the position in the data counts all that were drawn. If it draws some
        but returns none, these are skipped; if it draws none, the epoch ends. The number is None if the loss does not
        use it.

        Args:
            epoch_iterator: the rest of the epoch.
            num_batches: `gradient_accumulation_steps`; the end of the epoch may have fewer micro-batches.
            device: the device for the number of items.
        """
        group = batches.take(epoch_iterator, num_batches)
        return group, losses.count_items(self, group, device)

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Hook: create the optimizer, and the schedule over `num_training_steps` optimizer steps."""
        self.create_optimizer()
        self.create_scheduler(num_training_steps)

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """Hook: create the optimizer unless it exists, and return it."""
        if self.optimizer is None:
            target = self.model if model is None else model
            groups = optimization.parameter_groups(
                target, self.args.weight_decay, self.get_decay_parameter_names(target)
            )
            kind, kwargs = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(self.args, target)
            self.optimizer = optimization.make_optimizer(target, groups, kind, kwargs, self.optimizer_parameters)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LRScheduler:
        """Hook: create the learning-rate schedule unless it exists, and return it."""
        if self.lr_scheduler is None:
            target = self.optimizer if optimizer is None else optimizer
            self.lr_scheduler = optimization.make_schedule(self.args, target, num_training_steps)
        return self.lr_scheduler

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        """Return the names of the parameters with weight decay: all but biases and normalisation layers."""
        return optimization.decay_parameter_names(model)

    # Data.

    def get_train_dataloader(self) -> DataLoader[object]:
        """Hook: return the loader of the training data: shuffled, or in order if the dataset has no length."""
        if self.train_dataset is None:
            raise InvalidInputError("Trainer: training requires a train_dataset.")
        sampler = self._get_train_sampler(self.train_dataset)
        return data.make_loader(self, self.train_dataset, "training", self.run.args.train_batch_size, sampler, True)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[object]:
        """Hook: return the loader of an evaluation dataset: `self.eval_dataset`, another one, or one by name."""
        dataset = self._eval_dataset(eval_dataset)

        def make() -> DataLoader[object]:
            sampler = self._get_eval_sampler(dataset)
            return data.make_loader(self, dataset, "evaluation", self.args.eval_batch_size, sampler, False)

        return self.run.eval_loader(dataset, make)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[object]:
        """Hook: return the loader of a test dataset, in order."""
        sampler = self._get_eval_sampler(test_dataset)
        return data.make_loader(self, test_dataset, "test", self.args.eval_batch_size, sampler, False)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        """Hook, under the name it has in transformers: the order of the training samples."""
        return samplers.train_sampler(self, self.train_dataset if train_dataset is None else train_dataset)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int] | None:
        """Hook, under the name it has in transformers: the order of the evaluation samples."""
        return samplers.eval_sampler(self, eval_dataset)

    def _prepare_inputs(self, inputs: Batch) -> Batch:
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
        """The number of micro-batches in the current optimizer step; the last one of an epoch may have fewer."""
        return self.run.micro_batches_in_update

    @property
    def is_fsdp_enabled(self) -> bool:
        """True if FSDP shards the model over the processes."""
        return sharding.is_sharded(self.run) and not sharding.uses_deepspeed(self.run)

    @property
    def is_deepspeed_enabled(self) -> bool:
        """True if DeepSpeed runs the training."""
        return sharding.uses_deepspeed(self.run)

    @property
    def deepspeed(self) -> Any:
        """The DeepSpeed engine, once training with it has begun; otherwise None."""
        return self.model_wrapped if self.is_deepspeed_enabled and self.run.has_trained else None

    def end(self) -> None:
        """Leave the process group, at the end of a distributed script; do nothing in a single process."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def get_num_trainable_parameters(self) -> int:
        """Return the number of trainable weights."""
        return sum(each.numel() for each in self.model.parameters() if each.requires_grad)

    def get_learning_rates(self) -> list[float]:
        """Return the current learning rate of every parameter group of the optimizer."""
        if self.optimizer is None:
            raise InvalidInputError("Trainer optimizer is None: there is none yet. Call create_optimizer() or train().")
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_optimizer_group(self, param: str | torch.nn.Parameter | None = None) -> Any:
        """Return the optimizer's parameter group that holds `param`; without `param`, the parameters of every group.

        Args:
            param: a parameter of the model, or its name.

        Raises:
            InvalidInputError: the optimizer does not exist yet, or none of its groups has `param`.
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
        """Return the number of samples in an optimizer step, over all processes and accumulated micro-batches."""
        own = self.args if args is None else args
        return own.train_batch_size * own.gradient_accumulation_steps * own.world_size

    def num_examples(self, dataloader: DataLoader[object]) -> int:
        """Return the number of samples in a loader, estimated from its batches if its dataset has no length."""
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
        """Evaluate the model of the latest run; return and log the metrics, and notify the callbacks.

        Args:
            eval_dataset: a dataset, a dict of datasets, or the name of one in `self.eval_dataset`; default:
                `self.eval_dataset`.
            ignore_keys: keys of the model's output that are not gathered.
            metric_key_prefix: the beginning of every key; with a dict, ``<prefix>_<name>``.
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
        """Predict on a dataset; if it has labels, also compute its metrics.

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
        dataloader: DataLoader[object],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Hook: run the model over a loader; return predictions, labels, prefixed metrics and number of samples."""
        return evaluation.evaluation_loop(
            self, dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
        )

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: Batch,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Any, Any, Any]:
        """Hook: return (loss, logits, labels) of one batch; each may be None."""
        return evaluation.prediction_step(self, model, inputs, prediction_loss_only, ignore_keys)

    # Model and state.

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save model, configuration and processing class for `from_pretrained`, on the main process.

        With `args.push_to_hub` they are uploaded too, except while a checkpoint is written.

        Args:
            output_dir: default `args.output_dir`.
            _internal_call: True saves without uploading.
        """
        state_dict = sharding.whole_weights(self.run)
        if self.args.should_save:
            folder = Path(self.args.output_dir if output_dir is None else output_dir)
            self.save_weights(folder, state_dict)
            checkpoints.save_tensors(hub.without_token(self.args), folder / checkpoints.ARGUMENTS_FILE)
        if self.args.push_to_hub and not _internal_call and not self.run.hub.is_paused:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def save_weights(self, folder: str | Path, state_dict: Mapping[str, torch.Tensor] | None = None) -> None:
        """Save the files that load a model: its weights (or `state_dict`, from `capture_weights`) and configuration."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        weights.save_weights(self.accelerator.unwrap_model(self.model), target, state_dict)
        processing = self.processing_class
        if processing is None:
            processing = getattr(self.data_collator, "tokenizer", None)
        if processing is not None and hasattr(processing, "save_pretrained"):
            processing.save_pretrained(str(target))

    def capture_weights(self) -> dict[str, torch.Tensor]:
        """Return a copy of the model's current weights, on the host.

        If the model is sharded, all processes must call this together, and only the main process gets the weights.
        """
        whole = sharding.whole_weights(self.run)
        if whole is not None:
            return whole
        core = self.accelerator.unwrap_model(self.model)
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in core.state_dict().items()}

    def load_weights(self, folder: str | Path) -> None:
        """Load the weights of a checkpoint folder into the model of the latest run.

        Raises:
            CheckpointError: the weights are missing, damaged or of another model.
        """
        weights.load_weights(self.model, folder)

    def save_state(self) -> None:
        """Write `trainer_state.json` into `args.output_dir`, on the main process."""
        if self.is_world_process_zero():
            Path(self.args.output_dir).mkdir(parents=True, exist_ok=True)
            checkpoints.save_state(self.run, Path(self.args.output_dir, checkpoints.STATE_FILE))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Hook: add the epoch to `logs`, append them to the log history, and notify the callbacks.

        With `include_num_input_tokens_seen`, the number of tokens is added too and, given a `start_time`, the tokens
        per second since then.
        """
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        if self.args.include_num_input_tokens_seen != "no":
            seen = logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
            if start_time is not None:
                logs.update(speed_metrics("train", start_time, num_tokens=seen - self.run.first_tokens))
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)

    def store_flos(self) -> None:
        """Add the operations counted since the last call to `state.total_flos`."""
        loop.store_flos(self.run)

    def log_metrics(self, split: str, metrics: Mapping[str, object]) -> None:
        """Print the metrics of a split as a table, on the main process."""
        if self.is_world_process_zero():
            print(metrics_table(split, metrics))

    def save_metrics(self, split: str, metrics: Mapping[str, object], combined: bool = True) -> None:
        """Write `<split>_results.json` and, if `combined`, update `all_results.json`, on the main process."""
        if self.is_world_process_zero():
            save_metrics(self.args.output_dir, split, metrics, combined)

    @staticmethod
    def metrics_format(metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return metrics in readable form: memory in MB, run times as h:mm:ss.cc, four decimals."""
        return metrics_format(dict(metrics))

    def is_local_process_zero(self) -> bool:
        """True on the main process of each machine."""
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        """True on the main process of all machines."""
        return self.args.process_index == 0

    # The Hub.

    @property
    def hub_model_id(self) -> str | None:
        """The repository of the latest run, as ``namespace/name``; None before it is created."""
        return None if self._run is None else self._run.hub.repo_id

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Find or create the repository of the run, on the main process; the first upload does this automatically.

        Args:
            token: default `args.hub_token`, else the one that `hf auth login` stored.
            private: whether a new repository is private; default `args.hub_private_repo`.
        """
        if self.is_world_process_zero():
            self.run.hub.create(token, private)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Write the model card of the run, `README.md` in `args.output_dir`, on the main process.

        The card has metadata, hyperparameters, results and versions, and is a draft to complete by hand. It replaces
        the text of an earlier card, and keeps its tags and other metadata.

        Args:
            language: the language, or languages, of the model.
            license: the licence of the model; default: that of the base model, if the Hub can be reached.
            tags: tags to add to those of the model and of an earlier card.
            model_name: the name of the model; default: the name of the output folder.
            finetuned_from: the base model; default: the source of the loaded model, unless that is a folder.
            tasks: task ids such as ``text-classification``; default: the task of the model's class.
            dataset_tags, dataset, dataset_args: ids, names and configurations of the datasets; default: those in the
                dataset's card on the Hub.

        Raises:
            InvalidInputError: the metadata of the earlier card cannot be read.
        """
        if self.is_world_process_zero():
            model_card.write_model_card(
                self,
                language=language,
                license=license,
                tags=tags,
                model_name=model_name,
                finetuned_from=finetuned_from,
                tasks=tasks,
                dataset_tags=dataset_tags,
                dataset=dataset,
                dataset_args=dataset_args,
            )

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: object,
    ) -> Any:
        """Save the model, write its card and upload `args.output_dir`; all processes call it, the main one uploads.

        Checkpoints, studies and names that start with an underscore are not uploaded.

        Args:
            commit_message: the message of the commit.
            blocking: False returns immediately; do not change the folder until the upload has ended.
            token: default `args.hub_token`, else the one that `hf auth login` stored.
            revision: a branch, created if it does not exist; default `args.hub_revision`, else the main branch.
            private: whether a new repository is private; default `args.hub_private_repo`.
            kwargs: arguments of `create_model_card`.

        Returns:
            huggingface_hub's `CommitInfo`, or its future if not `blocking`; None on other processes.

        Raises:
            ArgumentError: `hub_model_id` cannot name a repository.
            HfHubHTTPError: the Hub refuses the upload, or cannot be reached.
        """
        return hub.push(self, commit_message or "End of training", blocking, token, revision, private, kwargs)

    # The search.

    def hyperparameter_search(
        self,
        hp_space: SpaceLike = None,
        compute_objective: Metric | Sequence[Metric] | None = None,
        n_trials: int | None = None,
        direction: str | Sequence[str | None] | None = None,
        backend: str | None = None,
        hp_name: Callable[[Trial], str] | None = None,
        *,
        directions: Sequence[str | None] | None = None,
        study_name: str = "study",
        scope: str | None = None,
        constraints: str | Constraint | Sequence[str | Constraint] | None = None,
        pruning_metric: str | None = None,
        keep_checkpoints: int | None = 1,
        timeout: float | None = None,
        trial_timeout: float | None = None,
        max_epochs: float | None = None,
        trial_max_epochs: float | None = None,
        budget: float | None = None,
        repeats: int = 1,
        folds: Any = None,
        groups: str | None = None,
        stratify: str | None = None,
        refit: bool = False,
        max_failures: int | None = 5,
        oom_fallback: bool = False,
        start_with: object = None,
        seed: int | None = None,
        preflight: bool = True,
        callbacks: Sequence[StudyCallback] | None = None,
        progress: bool | SearchListener = True,
        test_dataset: Any = None,
        test_defaults: bool = True,
        sampler: object = None,
        pruner: object = "rungs",
        storage: object = None,
        terminator: object = None,
        start_from: object = None,
        n_jobs: int | None = None,
        devices: Sequence[int] | None = None,
        trials_per_device: int | str | None = None,
        processes_per_trial: int = 1,
        **options: object,
    ) -> BestRun | Any:
        """Search for the best hyperparameters and return the best run, with its model.

        Each trial is a new trainer with the trial's parameters as arguments, a new model from `model_init`, and the
        trial's own seed; this trainer is not changed. A trial that fails is recorded with its reason, and the search
        continues. The same call again continues the study: half-done trials resume first, from their last checkpoint.
        Several processes may make the call at the same time. Under `torchrun`, all processes make it, and train each
        trial together.

        Args: Space and objective
            hp_space: a mapping of names to `Float`, `Int` or `Categorical` (or a `SearchSpace`); a function of a trial
                that suggests (``trial.suggest_float(...)``) and returns the parameters as a dict, or None to use all
                it suggested; or None for the default space. Names are training arguments, or dotted: ``optim.*`` for
                the optimizer; ``model.*``, ``lora.*``, ``data.*`` for ``model_init(trial)`` to read.
            compute_objective: a metric's name, or a function from an evaluation's metrics to a number; or a list of
                these, or a function that returns a tuple, with a list of directions. Default: the evaluation loss;
                with `compute_metrics`, the sum of all metrics except losses, speed and memory; for TRL's trainers of
                online reinforcement learning (GRPO, RLOO), the reward.
            direction: ``"minimize"`` or ``"maximize"``, or a list of them; default: losses and errors are minimised,
                other metrics maximised.
            directions: a list of directions, as Optuna calls it; the same as `direction`.
            scope: the reports of a trial that determine its value and its checkpoint: ``last``, ``all`` (the best),
                ``avg``, ``last-5-avg`` or ``last-10-avg``; default: `args.ray_scope`.
            constraints: the bounds that the best trial must satisfy: texts such as ``"num_parameters <= 1e6"`` or
                ``"runtime <= 2"``, or `Constraint`s.

        Args: Budgets
            n_trials: the study's total of trials, with failed and pruned ones. Default: no limit with a `budget`, a
                `timeout` or `max_epochs`, else 20.
            budget: full training runs, of all trials of the study together, at least 1. A trial costs the fraction of
                its own training run that it has trained. No trial is stopped in the middle.
            timeout: seconds for this call; at its end, a running trial is stopped at its next step. Without `n_trials`,
                `max_epochs` and `budget`, a trial's cost is its measured seconds, so the choices are not reproducible.
            trial_timeout: seconds for one trial.
            max_epochs: passes over the data, of all trials of the study together.
            trial_max_epochs: passes over the data for one trial; its learning-rate schedule is still that of its
                `num_train_epochs`.
            terminator: True ends the search when it stops improving: with rungs, after 30 consecutive trials without a
                new best at any rung (15 if the Gaussian process expects no improvement); without rungs, after 30
                results without a new best. Or an `optuna.terminator.BaseTerminator`, which sees the trials with a
                result.

        Args: Sampling and pruning
            sampler: an `optuna.samplers.BaseSampler`, or the name of one, which uses `seed`: ``"tpe"``,
                ``"random"``, ``"gp"``, ``"cmaes"``, ``"qmc"``, ``"nsgaii"``, ``"nsgaiii"``, ``"brute_force"``.
                Default: a Gaussian process over the learning curves of all trials; with an Optuna pruner or several
                objectives, TPE.
            pruner: ``"rungs"``: trials pause at rungs, which depend on the number of trials, and the best of them are
                promoted, with several objectives by non-dominated sorting; a `Ladder` sets the rungs. If trials cannot
                pause (trainers of `tune` that do not resume exactly), or with a `pruning_metric`, the median pruner
                replaces the rungs. Nothing is pruned with several objectives if trials cannot pause and there is no
                `pruning_metric`, with a sampler that tries everything, or with fewer than four trials. Or an
                `optuna.pruners.BasePruner`, or ``"median"``, ``"successive_halving"``, ``"hyperband"``. None or
                ``"none"``: every trial runs to completion.
            pruning_metric: with several objectives, a metric by which trials are pruned in place of rungs.
            start_with: parameters to try first: a dict, ``"defaults"`` (the defaults of the space, else this trainer's
                own arguments), or a list of these. The sampler chooses the missing ones.
            start_from: another study, which warm-starts the sampler: an `optuna.Study`, the best run or summary of a
                search, the URL or journal file of a storage, or a `WarmStart`, which names the study in a storage or
                renames parameters.
            seed: the seed of the sampler; default `args.seed`.

        Args: Repeats, folds and test set
            repeats: the most training runs of a trial: 3 trains the best third of the complete trials with another
                seed, and the best third of these with a third one, and compares means. Replicas do not count in
                `n_trials`, but in the budgets; see `docs/repeats.md`.
            folds: cross-validation on `train_dataset`, without an `eval_dataset`: the number of folds (shuffled with
                `seed`), a splitter of scikit-learn, or pairs of training and evaluation indices. A trial is trained on
                the first fold, and the best trials on the others too; the result is the mean. See
                `docs/cross-validation.md`.
            groups: the column of `train_dataset` whose equal values stay in one fold.
            stratify: the column of `train_dataset` whose values are about as frequent in each fold.
            refit: with `folds`, train the best parameters on all of `train_dataset` at the end, which is the model of
                the best run; without it there is none. It counts in no budget.
            test_dataset: a dataset, or a dict of datasets, that nothing else in the search reads. When the search has
                come to its end, the best run is evaluated on it once, and so are the defaults. For one objective and
                one process; see `docs/test-set.md`.
            test_defaults: whether to train a model with this trainer's own arguments, once, to compare it with the best
                run on `test_dataset`. It is no trial and counts in no budget.

        Args: Failures
            preflight: before the first trial of a study, train one step and evaluate two batches with its parameters,
                where it will run, on a model that is then discarded, so that a mistake costs no trial.
            max_failures: stop after this many consecutive failures; None: no limit.
            oom_fallback: continue a trial that runs out of memory with half the micro-batch and twice the accumulation.

        Args: The study
            study_name: the name of the study, and of its folder inside `args.output_dir`.
            hp_name: a function of a trial that names its run and folder; default ``run-<number>``.
            storage: a URL such as ``"postgresql://user:password@host/name"``, the name of a journal file (``.log``),
                ``"journal"`` for one in the study's folder, or an Optuna storage; default: SQLite in that folder.
            keep_checkpoints: the number of best trials that keep their weights on disk (with several objectives, 1
                keeps those of the whole Pareto front); 0: none; None: every trial, and every checkpoint.
            progress: show a live view; or a `SearchListener` of your own.
            callbacks: functions of Optuna's study and its trial, called after each trial, as in `Study.optimize`;
                after `study.stop()` no further trial starts.

        Args: Parallel trials
            backend: ``"optuna"``, the default: in this process, or with `n_jobs` or `devices` in workers on this
                machine; or ``"ray"``: on a cluster.
            n_jobs: the number of parallel trials on this machine, each in its own worker; -1: one on each GPU, or on
                each core if there is no GPU; None: as many as `devices`, `trials_per_device` and `processes_per_trial`
                allow; 1, or None without these: one trial at a time, in this process. On Ray, use
                `max_concurrent_trials`.
            devices: the numbers of the GPUs to use, such as ``[0, 1]``; default: all. On Ray, use `resources_per_trial`
                instead of this and the next argument.
            trials_per_device: the number of trials that share a GPU; "auto": as many as fit into nine tenths of its
                memory, by what the first trial uses (see `docs/parallel.md`), and no more than `n_jobs` or the cores.
            processes_per_trial: the number of processes that train each trial together (DDP, or FSDP and DeepSpeed as
                the arguments say), each on its own GPU, or on the CPU. The batch of an optimizer step is as many times
                larger. `n_jobs` counts trials; by default as many as the GPUs allow, or 1 on the CPU. On Ray the
                processes may be on several nodes: see `RayBackend`.
            options: options of the backend: `load_if_exists`, `max_paused`, `max_paused_bytes`, `trial_retries`; in
                workers `trials_per_worker`, `worker_memory`, `group_timeout`; on Ray `address`, `resources_per_trial`,
                `placement`, `group_timeout`, `max_concurrent_trials`, `autoscaling`, `storage_path`, `scheduler`,
                `search_alg`, `stop`. Options of the engine that do not affect the result are accepted with a notice;
                others are refused, with their replacement.

        Returns:
            A `BestRun`; with several objectives a list of them, the Pareto front.

        Raises:
            InvalidInputError: an argument of the search, or its combination with others, is invalid; raised before the
                first trial where possible, otherwise in the first trial.
            MissingPackageError: the backend's package is not installed.
            StorageError: the storage cannot be reached or written; the same call continues once it can.
            NoCompletedTrialError: no trial may be the best, because none has a result or all break a constraint. The
                message explains why, and `run_summary` has all trials. If a budget ended the search before the first
                evaluation, the same call continues.
            TooManyFailuresError: `max_failures` consecutive trials failed; the error has the best run so far.
            SearchInterrupted: Ctrl-C, SIGTERM or SIGUSR1 ended the search; the error has the best run so far.

        Examples:
            ``best = trainer.hyperparameter_search({"learning_rate": Float(1e-5, 1e-3, log=True)}, n_trials=20)``
        """
        given = SearchArguments(
            hp_space=hp_space,
            compute_objective=compute_objective,
            n_trials=n_trials,
            direction=direction,
            backend=backend,
            hp_name=hp_name,
            directions=directions,
            study_name=study_name,
            scope=scope,
            constraints=constraints,
            pruning_metric=pruning_metric,
            keep_checkpoints=keep_checkpoints,
            timeout=timeout,
            trial_timeout=trial_timeout,
            max_epochs=max_epochs,
            trial_max_epochs=trial_max_epochs,
            budget=budget,
            repeats=repeats,
            folds=folds,
            groups=groups,
            stratify=stratify,
            refit=refit,
            max_failures=max_failures,
            oom_fallback=oom_fallback,
            start_with=start_with,
            seed=seed,
            preflight=preflight,
            callbacks=callbacks,
            progress=progress,
            test_dataset=test_dataset,
            test_defaults=test_defaults,
            sampler=sampler,
            pruner=pruner,
            storage=storage,
            terminator=terminator,
            start_from=start_from,
            n_jobs=n_jobs,
            devices=devices,
            trials_per_device=trials_per_device,
            processes_per_trial=processes_per_trial,
            options=options,
        )
        with warnings_once():
            return search(SearchableTrainer(self), given)

    def replay(
        self,
        study_name: str = "study",
        number: int | None = None,
        compute_objective: Metric | Sequence[Metric] | None = None,
        direction: str | Sequence[str | None] | None = None,
        progress: bool | SearchListener = True,
    ) -> Replay:
        """Run one trial of a study again, alone, from the study's folder; on CPU the reports are the same.

        The trial uses the parameters, the seed and the arguments that the study recorded, even if those of this trainer
        have changed since. Changes, including those of versions and data, are listed before it begins. The study is not
        changed: the replay, its weights included, goes to ``<study>/replays/<run>``.

        Args:
            study_name: the name of the study inside `args.output_dir`.
            number: the number of the trial; default: the best one.
            compute_objective, direction: as in the search; needed again if the objective was a function.
            progress: show a live view; or a `SearchListener` of your own.

        Raises:
            StudyError: the study or the trial does not exist, or the objective differs.
        """
        return replay(SearchableTrainer(self), study_name, number, compute_objective, direction, progress)
