"""One execution of a trainer: everything that lives and dies with it."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase, ProcessorMixin
from transformers.integrations.deepspeed import deepspeed_init
from transformers.integrations.liger import apply_liger_kernel
from transformers.trainer_utils import align_special_tokens

from ..arguments import TrainingArguments
from ..errors import InvalidInputError
from ..system import logs
from . import sharding
from .acceleration import forget_loader, make_accelerator
from .callbacks import (
    CallbackHandler,
    CheckpointOnTermination,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    restore_callbacks,
)
from .checkpoints import LastUpdate, Position
from .data import TrainingLength
from .hooks import Hooks, takes_argument
from .hub import HubRepository
from .losses import LossWindow, make_label_smoother
from .memory_metrics import MemoryTracker
from .model_hooks import ModelHooks
from .model_traits import ModelTraits
from .optimization import follows_a_metric
from .precision import unwrap_forward
from .randomness import RandomStreams, seed_run
from .resume import ResumePoint, check_same_updates, position_of
from .trackers import FAILED, end_trial

_NO_CONTEXT: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


class TrainingRun:
    """The model, optimizer, schedule, accelerator, state and position of one run.

    The constructor has a fixed order: it stores the arguments, then sets the seed, then calls `build_model()`.
    `release()` drops the whole run; nothing of it remains in the trainer.

    Attributes:
        args: the arguments of this run.
        trial: the trial that the run belongs to; None outside a search.
        accelerator: devices, distribution and precision.
        model: the core model.
        model_wrapped: the model inside its distributed wrapper.
        traits: the properties of the model that the loop needs.
        optimizer: the optimizer; None until training is prepared.
        lr_scheduler: the learning-rate schedule; None until training is prepared.
        state: the `TrainerState`, as in transformers.
        control: the `TrainerControl`, as in transformers.
        callback_handler: the handler of the callbacks, as in transformers.
        hub: the repository on the Hub that it uploads to.
        memory: the memory of its stages, with `skip_memory_metrics=False`.
        position: the position of the run in the data.
        loss_window: the running training loss.
        loss_is_of_all_processes: whether the last loss was normalised over the items of all processes.
        last_update: the learning rate and gradient norm of the last optimizer step.
        reapplies_arguments: whether a restored checkpoint continues with the hyperparameters of `args`, not its own.
        training_began: the time at which this call of `train()` began.
        first_step: the optimizer step at which it began.
        first_tokens: the number of tokens at which it began.
        step_takes_items: whether the trainer's `training_step` accepts `num_items_in_batch`.
        has_trained: True once training has been prepared.
        is_in_train: True from the start of `train()` to its end, evaluations included.
    """

    def __init__(
        self,
        args: TrainingArguments,
        processing_class: object,
        build_model: Callable[[], torch.nn.Module],
        callbacks: list[TrainerCallback],
        trial: object = None,
    ) -> None:
        self.args = args
        self.trial = trial
        is_passive = (args.log_level if args.should_log else args.log_level_replica) == "passive"
        logs.set_level(args.get_process_log_level(), is_passive)
        self.memory = MemoryTracker(args)
        seed_run(args)
        with self.memory.stage("init"):
            self.accelerator = make_accelerator(args)
            self.model: Any = build_model()
            unwrap_forward(self.model)
            if args.place_model_on_device is not False and getattr(self.model, "hf_device_map", None) is None:
                self.model.to(args.device)
        self.model_wrapped: Any = self.model
        config = getattr(self.model, "config", None)
        if config is not None:
            config.use_cache = args.use_cache
        self.traits = ModelTraits.of(self.model, args)
        self.label_smoother = make_label_smoother(args, self.model)
        self.optimizer: Any = None
        self.lr_scheduler: Any = None
        self.state = TrainerState(
            is_local_process_zero=args.local_process_index == 0, is_world_process_zero=args.process_index == 0
        )
        self.control = TrainerControl()
        self.callback_handler = CallbackHandler(callbacks, self.model, processing_class)
        self.hub = HubRepository(args)
        self.position = Position()
        self.loss_window = LossWindow(args.device, args.logging_nan_inf_filter)
        self.last_update: LastUpdate | None = None
        self.reapplies_arguments = False
        self.current_flos = 0.0
        self.loss_is_of_all_processes = False
        self.is_in_train = False
        self.training_began, self.first_step, self.first_tokens = 0.0, 0, 0
        self.micro_batches_in_update = 1
        self.step_takes_items = True
        self.epoch_streams: RandomStreams | None = None
        self.interrupted_streams: RandomStreams | None = None
        self._parameters: list[torch.nn.Parameter] = []
        self._eval_loaders: list[tuple[object, DataLoader[object]]] = []
        self.has_trained = False
        self._is_prepared = False
        self._model_hooks: ModelHooks | None = None
        self.control = self.callback_handler.on_init_end(args, self.state, self.control)

    @property
    def is_plain(self) -> bool:
        """True if one process trains in float32, so torch's own optimizer step is sufficient."""
        return self.accelerator.distributed_type == DistributedType.NO and self.accelerator.scaler is None

    def prepare_for_training(self, trainer: Hooks, length: TrainingLength) -> None:
        """Wrap the model, create optimizer and schedule through the trainer's hooks, and fill in the state."""
        args = self.args
        if args.activation_checkpointing:
            _checkpoint_activations(self.model, dict(args.activation_checkpointing_kwargs or {}))
        if isinstance(trainer.processing_class, (PreTrainedTokenizerBase, ProcessorMixin)) and hasattr(
            self.model, "config"
        ):
            align_special_tokens(self.model, trainer.processing_class)
        if args.use_liger_kernel:
            apply_liger_kernel(self.model, args.liger_kernel_config)
        self._model_hooks = ModelHooks(self.model, args, self.accelerator)
        if sharding.uses_deepspeed(self):
            self.optimizer, self.lr_scheduler = deepspeed_init(trainer, length.max_steps)
            trainer.create_scheduler(length.max_steps)
        else:
            trainer.create_optimizer_and_scheduler(num_training_steps=length.max_steps)
            if follows_a_metric(self.lr_scheduler):  # others note it themselves
                for group in self.optimizer.param_groups:
                    group.setdefault("initial_lr", group["lr"])
        self._distribute()
        self._is_prepared = self.has_trained = True
        handler = self.callback_handler
        handler.model, handler.optimizer, handler.lr_scheduler = self.model, self.optimizer, self.lr_scheduler
        self.state.train_batch_size = args.train_batch_size
        self.state.compute_steps(args, length.max_steps)
        self.state.max_steps, self.state.num_train_epochs = length.max_steps, length.num_epochs
        self.refresh_parameters()

    def _distribute(self) -> None:
        """Bring model and optimizer onto the devices, as accelerate's settings say."""
        if sharding.is_sharded(self):
            sharding.shard(self)
        elif self.args.n_gpu > 1:
            self.model_wrapped = torch.nn.DataParallel(self.model)
        else:
            self.model_wrapped = self.accelerator.prepare_model(self.model)
        if not self.is_plain and not sharding.is_sharded(self):
            self.optimizer = self.accelerator.prepare_optimizer(self.optimizer)

    def prepare_for_evaluation(self) -> None:
        """Put the model on its device, unless training has already done so."""
        if not self._is_prepared and not sharding.is_sharded(self):
            self.model_wrapped = self.accelerator.prepare_model(self.model, evaluation_mode=True)
            self._is_prepared = True

    def eval_loader(self, dataset: object, make: Callable[[], DataLoader[object]]) -> DataLoader[object]:
        """Return a loader of `dataset`: a new one or, if its workers persist, the existing one."""
        if not (self.args.dataloader_persistent_workers and self.args.dataloader_num_workers):
            return make()
        for known, loader in self._eval_loaders:
            if known is dataset:
                return loader
        self._eval_loaders.append((dataset, make()))
        return self._eval_loaders[-1][1]

    def describe_trial(self, params: dict[str, Any], name: str | None) -> None:
        """Record in the state that this run is a trial of a search, with its parameters and name."""
        self.state.is_hyper_param_search = True
        self.state.trial_params = params
        self.state.trial_name = name

    def restore(self, point: ResumePoint, length: TrainingLength) -> None:
        """Restore the state of a checkpoint: counters, log history, position and running loss."""
        fresh, self.state = self.state, copy.deepcopy(point.state)
        for name in (
            "max_steps",
            "num_train_epochs",
            "logging_steps",
            "eval_steps",
            "save_steps",
            "is_local_process_zero",
            "is_world_process_zero",
            "is_hyper_param_search",
            "trial_name",
            "trial_params",
            "train_batch_size",
        ):
            setattr(self.state, name, getattr(fresh, name))
        if self.state.best_model_checkpoint is not None:
            beside = point.folder.parent / Path(self.state.best_model_checkpoint).name
            if beside.is_dir():  # the checkpoints may have been moved together
                self.state.best_model_checkpoint = str(beside)
        restore_callbacks(
            self.callback_handler.callbacks,
            self.state.stateful_callbacks,
            with_arguments=self.args.restore_callback_states_from_checkpoint,
        )
        self.position = position_of(point, length, self.args)
        self.reapplies_arguments = point.reapplies_arguments
        if point.reapplies_arguments:
            check_same_updates(point, self.position, length, self.args)
        self.loss_window = LossWindow(self.args.device, self.args.logging_nan_inf_filter, self.state.global_step)
        if point.loss is not None:
            self.loss_window.load(point.loss)
        self.last_update = point.last_update

    def begin_training(self, trainer: Hooks) -> None:
        """Record the time and counts at which training begins, and the signature of the trainer's step."""
        self.is_in_train = True
        self.step_takes_items = takes_argument(trainer.training_step, "num_items_in_batch")
        self.memory.start("train")
        self.training_began = time.time()
        self.first_step, self.first_tokens = self.state.global_step, self.state.num_input_tokens_seen

    def end_training(self) -> None:
        """Remove the settings that apply only during training, also if it failed."""
        self.remove_hooks()
        self.memory.abandon()
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, CheckpointOnTermination):
                callback.close()
        self.is_in_train = False

    def accumulating(self, is_last: bool) -> contextlib.AbstractContextManager[None]:
        """Return the context of one micro-batch: gradients are synchronised between processes at the last one."""
        if self.is_plain:
            return _NO_CONTEXT
        self.accelerator.gradient_state._set_sync_gradients(is_last)
        return _NO_CONTEXT if is_last else self.accelerator.no_sync(self.model_wrapped)

    def refresh_parameters(self) -> None:
        """Look up the model's parameters again; done once per epoch, so that adapters added in between are seen."""
        if sharding.is_sharded(self):
            sharding.reshard(self.model)
        self._parameters = list(self.model.parameters())

    def zero_grad(self) -> None:
        """Drop all gradients."""
        if not self.is_plain:
            self.optimizer.zero_grad()
        for parameter in self._parameters:
            parameter.grad = None

    def clip_gradients(self) -> torch.Tensor:
        """Clip the global gradient norm to `max_grad_norm` (0: do not clip); return the norm before clipping."""
        limit = self.args.max_grad_norm if self.args.max_grad_norm > 0 else float("inf")
        if not self.is_plain:
            return self.accelerator.clip_grad_norm_(self._parameters, limit)
        if limit == float("inf"):
            return torch.nn.utils.get_total_norm([each.grad for each in self._parameters if each.grad is not None])
        return torch.nn.utils.clip_grad_norm_(self._parameters, limit)

    def remove_hooks(self) -> None:
        """Remove the hooks of NEFTune's noise and of the overflow detector."""
        if self._model_hooks is not None:
            self._model_hooks.remove()
            self._model_hooks = None

    def release(self) -> None:
        """Drop model, optimizer, schedule and loaders, and free their memory before this returns.

        This includes GPU memory, which other processes, such as workers, can then use.
        """
        self.remove_hooks()
        unwrap_forward(self.model)
        end_trial(self.callback_handler.callbacks, FAILED)  # no other state has been set
        for callback in self.callback_handler.callbacks:
            if getattr(callback, "tb_writer", None) is not None:  # on_train_end has not come: the run failed
                callback.tb_writer.close()
                callback.tb_writer = None
        for loader in (self.callback_handler.train_dataloader, self.callback_handler.eval_dataloader):
            forget_loader(loader)
        self.callback_handler.release()
        self.hub.release()
        for held in ("_models", "_optimizers", "_schedulers", "_dataloaders"):
            setattr(self.accelerator, held, [])
        self._parameters, self._eval_loaders = [], []
        self.model = self.model_wrapped = self.optimizer = self.lr_scheduler = self.label_smoother = None
        self._is_prepared = False
        if torch.cuda.is_initialized():
            with contextlib.suppress(RuntimeError):  # the GPU is in no good state any more
                torch.cuda.empty_cache()


def _checkpoint_activations(model: Any, kwargs: dict[str, object]) -> None:
    if hasattr(model, "activation_checkpointing_enable"):
        every, offload = kwargs.pop("every_n_layers", 1), kwargs.pop("offload", False)
        model.activation_checkpointing_enable(
            activation_checkpointing_kwargs=kwargs or None, every_n_layers=every, offload=offload
        )
    elif not hasattr(model, "gradient_checkpointing_enable"):
        raise InvalidInputError(
            f"activation_checkpointing=True (gradient_checkpointing) asks the model to recompute its activations, but "
            f"{type(model).__name__} cannot: it has no method gradient_checkpointing_enable()."
        )
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs or None)
