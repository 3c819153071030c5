"""The Trainer: a recipe with the public API of transformers' Trainer: its hooks, training, evaluation and search.

`train()` builds a `TrainingRun` and shows the latest one through attributes (`model`, `state`, ...). A trial is another
trainer, never a change to this one. Every hook here may be overridden; what they do by default is in `training/`.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput, TrainOutput, speed_metrics

from .arguments import TrainingArguments
from .errors import InvalidInputError, nearest_name
from .hyperparameter_search import hyperparameter_search
from .recipe import Recipe
from .search.best_run import BestRun
from .search.listener import SearchListener
from .search.study import SpaceLike
from .search.trial import FixedTrial, TrialRecord
from .training import (
    batch_size,
    checkpoints,
    data,
    evaluation,
    hub,
    loop,
    losses,
    metrics,
    model_card,
    optimization,
    resume,
    samplers,
    sharding,
    steps,
    weights,
)
from .training.randomness import preserved_streams, seed_run


class Trainer(Recipe):
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

    def _check(self) -> None:
        super()._check()
        if self.train_dataset is not None and not self._makes_its_own_batches:
            data.check_training_data(self.train_dataset, self.args)

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
    ) -> TrainOutput:
        """Train a new run to its end and return its step count, mean training loss and metrics.

        With `model_init`, every call builds a new model; without it, calls go on training the given model, each with
        a new optimizer and schedule.

        Args:
            resume_from_checkpoint: a checkpoint folder, or True for the newest in `args.output_dir`. The run goes on
                exactly where the checkpoint was written.
            trial: a trial, or a dict of parameters, to train with: the run's arguments are those of this trainer with
                the parameters applied. The trainer's own arguments stay as they are.
            ignore_keys_for_eval: keys of the model's output that evaluations during training do not gather.

        Raises:
            CheckpointError: there is no such checkpoint, or it is damaged or of another model.
            ArgumentError: a parameter of the trial is not valid.
        """
        if trial is not None:
            recipe = self.for_trial(trial)
            recipe._shown_on, self._run = self, None
            return recipe.train(resume_from_checkpoint, None, ignore_keys_for_eval)
        if not self.has_training_data:
            raise InvalidInputError("train() needs a train_dataset.")
        folder = resume.resolve(resume_from_checkpoint, self.args.output_dir)
        point = None
        if folder is not None:
            point = resume.read_resume_point(folder, self.args)
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
        """Hook: floating-point operations of forward and backward on `inputs`; 0 if the model cannot tell."""
        traits = self.run.traits
        tokens = inputs.get(traits.main_input_name) if traits.flos_per_token else None
        return 0 if tokens is None else traits.flos_per_token * tokens.numel()

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

    # Search.

    def hyperparameter_search(
        self,
        hp_space: SpaceLike = None,
        compute_objective: str | Callable[[dict[str, float]], float] | None = None,
        n_trials: int = 20,
        direction: str | None = None,
        backend: str | None = None,
        hp_name: Callable[[Any], str] | None = None,
        *,
        study_name: str = "study",
        scope: str | None = None,
        keep_checkpoints: int | None = 1,
        timeout: float | None = None,
        trial_timeout: float | None = None,
        seed: int | None = None,
        progress: bool | SearchListener = True,
        **options: Any,
    ) -> BestRun:
        """Search for the best hyperparameters and return the best run, with its model.

        Each trial is a new trainer with the trial's parameters as arguments, a new model from `model_init`, and the
        trial's own seed; this trainer is not changed. A trial that fails is recorded with its reason, and the search
        goes on. The same call again goes on with the same study.

        Args:
            hp_space: a mapping of names to `Float`, `Int` or `Categorical` (or a `SearchSpace`); a function of a trial
                that suggests (``trial.suggest_float(...)``) and returns the parameters as a dict, or None to use all
                it suggested; or None for the default space. Names are training arguments, or dotted: ``optim.*`` for
                the optimizer; ``model.*``, ``lora.*``, ``data.*`` for ``model_init(trial)`` to read.
            compute_objective: a metric's name, or a function from an evaluation's metrics to a number. Default: the
                evaluation loss; with `compute_metrics`, the sum of all metrics except losses, speed and memory.
            n_trials: the study's total of trials; failed and pruned ones count.
            direction: ``"minimize"`` or ``"maximize"``; default: losses and errors are minimised, other metrics
                maximised.
            backend: ``"optuna"``.
            hp_name: a function of a trial that names its run and folder; default ``run-<number>``.
            study_name: names the study and its folder inside `args.output_dir`.
            scope: which reports of a trial give its value and its checkpoint: ``last``, ``all`` (the best), ``avg``,
                ``last-5-avg`` or ``last-10-avg``; default: `args.ray_scope`.
            keep_checkpoints: how many of the best trials keep their weights on disk; 0: none; None: every trial.
            timeout: seconds for this call; a trial that is running then is stopped at its next step.
            trial_timeout: seconds for one trial.
            seed: seed of the sampler; default `args.seed`.
            progress: show a live view; or a `SearchListener` of your own.
            options: of the backend; for Optuna `sampler`, `pruner` and `storage`.

        Raises:
            InvalidInputError: something about the search cannot be right; raised before the first trial where it can
                be known, and in the first trial otherwise.
            MissingPackageError: the backend's package is not installed.
            SearchInterrupted: the user pressed Ctrl-C; it carries the best run so far.
        """
        with preserved_streams():
            return hyperparameter_search(
                self,
                self._build_best_model,
                hp_space,
                compute_objective,
                n_trials,
                direction,
                backend,
                hp_name,
                study_name,
                scope,
                keep_checkpoints,
                timeout,
                trial_timeout,
                seed,
                progress,
                options,
            )

    def _build_best_model(self, record: TrialRecord, folder: Path) -> torch.nn.Module:
        trial = FixedTrial(record.params, record.number, record.arguments)
        recipe = self.for_trial(trial)
        with preserved_streams():
            seed_run(recipe.args)
            model = recipe.call_model_init(trial)
        weights.load_weights(model, folder)
        return model.eval()

    # Data.

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Hook: return the loader of the training data: shuffled, or in order for a dataset without a length."""
        if self.train_dataset is None:
            raise InvalidInputError("Training needs a train_dataset.")
        sampler = samplers.train_sampler(self, self.train_dataset)
        return data.make_loader(self, self.train_dataset, "training", self.run.args.train_batch_size, sampler, True)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Hook: return the loader of an evaluation dataset: the one given, or one of `self.eval_dataset` by name."""
        dataset = self._eval_dataset(eval_dataset)

        def make() -> DataLoader[Any]:
            sampler = samplers.eval_sampler(self, dataset)
            return data.make_loader(self, dataset, "evaluation", self.args.eval_batch_size, sampler, False)

        return self.run.eval_loader(dataset, make)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        """Hook: return the loader of a test dataset, in its order."""
        sampler = samplers.eval_sampler(self, test_dataset)
        return data.make_loader(self, test_dataset, "test", self.args.eval_batch_size, sampler, False)

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
            raise InvalidInputError("Evaluation needs an eval_dataset: pass it here or to the Trainer.")
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

    # Saving, logging, callbacks.

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save model, configuration and processing class, loadable by `from_pretrained`, on the main process.

        With `args.push_to_hub` it is uploaded too, except while a checkpoint is written.

        Args:
            output_dir: default `args.output_dir`.
            _internal_call: True saves without uploading.
        """
        state_dict = sharding.whole_weights(self.run)
        if self.args.should_save:
            folder = Path(self.args.output_dir if output_dir is None else output_dir)
            self.save_weights(folder, state_dict)
            torch.save(hub.without_token(self.args), folder / checkpoints.ARGUMENTS_FILE)
        if self.args.push_to_hub and not _internal_call and not self.run.hub.is_paused:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def save_weights(self, folder: str | Path, state_dict: Mapping[str, Any] | None = None) -> None:
        """Save what loads a model: its weights (or `state_dict`, from `capture_weights`) and configuration."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        weights.save_weights(self.accelerator.unwrap_model(self.model), target, state_dict)
        processing = self.processing_class
        if processing is None:
            processing = getattr(self.data_collator, "tokenizer", None)
        if processing is not None and hasattr(processing, "save_pretrained"):
            processing.save_pretrained(str(target))

    def capture_weights(self) -> dict[str, torch.Tensor]:
        """Return a copy of the model's present weights, on the host."""
        core = self.accelerator.unwrap_model(self.model)
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in core.state_dict().items()}

    def load_weights(self, folder: str | Path) -> None:
        """Load the weights of a checkpoint folder into the model of the latest run.

        Raises:
            CheckpointError: they are missing, damaged or of another model.
        """
        weights.load_weights(self.model, folder)

    def save_state(self) -> None:
        """Write `trainer_state.json` into `args.output_dir`, on the main process."""
        if self.is_world_process_zero():
            Path(self.args.output_dir).mkdir(parents=True, exist_ok=True)
            checkpoints.save_state(self.run, Path(self.args.output_dir, checkpoints.STATE_FILE))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Hook: add the epoch to `logs`, append them to the log history and announce them.

        With `include_num_input_tokens_seen` the count of tokens is added too and, to the lines of training, whose
        `start_time` is given, the tokens per second since then.
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

    def log_metrics(self, split: str, values: Mapping[str, Any]) -> None:
        """Print the metrics of a split as a table, on the main process."""
        if self.is_world_process_zero():
            print(metrics.metrics_table(split, values))

    def save_metrics(self, split: str, values: Mapping[str, Any], combined: bool = True) -> None:
        """Write `<split>_results.json`, and merge into `all_results.json` if `combined`, on the main process."""
        if self.is_world_process_zero():
            metrics.save_metrics(self.args.output_dir, split, values, combined)

    def is_local_process_zero(self) -> bool:
        """True on the main process of each machine."""
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        """True on the main process of all machines."""
        return self.args.process_index == 0

    # The Hub.

    @property
    def hub_model_id(self) -> str | None:
        """Namespace and name of the repository that the latest run uploads to; None before it is made."""
        return None if self._run is None else self._run.hub.repo_id

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Find or make the repository of the run, on the main process; the first upload does so by itself.

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

        It holds metadata, hyperparameters, results and versions, and is meant to be completed by hand: the text of an
        earlier card is replaced, its tags and other metadata are kept.

        Args:
            language: the language, or languages, of the model.
            license: its licence; default: that of the base model on the Hub, if that can be reached.
            tags: added to those of the model and of an earlier card.
            model_name: default: the name of the output folder.
            finetuned_from: the base model; default: where the model was loaded from, unless that is a folder.
            tasks: task ids such as ``text-classification``; default: what the model's class is for.
            dataset_tags, dataset, dataset_args: ids, names and configurations of the datasets; default: what a dataset
                of the Hub tells.

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
        **kwargs: Any,
    ) -> Any:
        """Save the model, write its card and upload `args.output_dir`; all processes call it, the main one uploads.

        Checkpoints, studies and names that start with an underscore are left out.

        Args:
            commit_message: of the commit.
            blocking: False returns at once; leave the folder as it is until the upload has ended.
            token: default `args.hub_token`, else the one that `hf auth login` stored.
            revision: a branch, made if there is none; default `args.hub_revision`, else the main one.
            private: whether a new repository is private; default `args.hub_private_repo`.
            kwargs: for `create_model_card`.

        Returns:
            huggingface_hub's `CommitInfo`, or its future if not `blocking`; None on other processes.

        Raises:
            ArgumentError: `hub_model_id` cannot name a repository.
            HfHubHTTPError: the Hub refuses, or cannot be reached.
        """
        return hub.push(self, commit_message or "End of training", blocking, token, revision, private, kwargs)
