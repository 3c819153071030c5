"""One execution of a trainer: everything that lives and dies with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import (
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    DistributedType,
    GradientAccumulationPlugin,
    TorchDynamoPlugin,
)
from transformers import PreTrainedTokenizerBase, ProcessorMixin
from transformers.integrations.neftune import activate_neftune, deactivate_neftune
from transformers.trainer_utils import align_special_tokens

from ..arguments import TrainingArguments
from ..callbacks import CallbackHandler, TrainerCallback, TrainerControl, TrainerState
from .checkpoints import Position, ResumePoint
from .data import TrainingLength
from .hooks import Hooks
from .losses import LossWindow, make_label_smoother
from .model_traits import ModelTraits
from .randomness import RandomStreams, seed_run

_NO_CONTEXT: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


class TrainingRun:
    """The model, optimizer, schedule, accelerator, state and position of one run.

    Built in a fixed order: the arguments are there, then the seed is set, then `build_model()` is called. A run is
    dropped whole by `release()`; nothing of it stays behind in the trainer.

    Attributes:
        args: the arguments of this run.
        trial: what the run was started for (None outside a search).
        accelerator: devices, distribution and precision.
        model, model_wrapped: the core model; the same inside its distributed wrapper.
        traits: what the loop needs to know of the model.
        optimizer, lr_scheduler: None until training is prepared.
        state, control, callback_handler: as in transformers.
        position: where in the data the run is.
        loss_window: the running training loss.
        has_trained: True once training has been prepared.
        is_in_train: True from the start of `train()` to its end, evaluations included.
    """

    def __init__(
        self,
        args: TrainingArguments,
        processing_class: Any,
        build_model: Callable[[], torch.nn.Module],
        callbacks: list[TrainerCallback],
        trial: Any = None,
    ) -> None:
        self.args = args
        self.trial = trial
        seed_run(args)
        self.accelerator = make_accelerator(args)
        self.model: Any = build_model()
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
        self.position = Position()
        self.loss_window = LossWindow(args.device, args.logging_nan_inf_filter)
        self.current_flos = 0.0
        self.is_in_train = False
        self.micro_batches_in_update = 1
        self.epoch_streams: RandomStreams | None = None
        self.interrupted_streams: RandomStreams | None = None
        self._parameters: list[torch.nn.Parameter] = []
        self.has_trained = False
        self._is_prepared = False
        self._neftune_hook: Any = None
        self.control = self.callback_handler.on_init_end(args, self.state, self.control)

    @property
    def is_plain(self) -> bool:
        """True if one process trains in full precision, so that torch's own optimizer step is all there is to it."""
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
        if args.neftune_noise_alpha is not None:
            self._neftune_hook = activate_neftune(self.model, args.neftune_noise_alpha, self.accelerator)
        if args.n_gpu > 1:
            self.model_wrapped = torch.nn.DataParallel(self.model)
        else:
            self.model_wrapped = self.accelerator.prepare_model(self.model)
        self._is_prepared = self.has_trained = True
        trainer.create_optimizer_and_scheduler(num_training_steps=length.max_steps)
        if not self.is_plain:
            self.optimizer = self.accelerator.prepare_optimizer(self.optimizer)
        handler = self.callback_handler
        handler.model, handler.optimizer, handler.lr_scheduler = self.model, self.optimizer, self.lr_scheduler
        self.state.train_batch_size = args.train_batch_size
        self.state.compute_steps(args, length.max_steps)
        self.state.max_steps, self.state.num_train_epochs = length.max_steps, length.num_epochs
        self.refresh_parameters()

    def prepare_for_evaluation(self) -> None:
        """Put the model on its device and in its evaluation precision, if no training has done so."""
        if not self._is_prepared:
            self.model_wrapped = self.accelerator.prepare_model(self.model, evaluation_mode=True)
            self._is_prepared = True
        if not self.is_in_train and (self.args.fp16_full_eval or self.args.bf16_full_eval):
            kind = torch.float16 if self.args.fp16_full_eval else torch.bfloat16
            self.model_wrapped.to(dtype=kind, device=self.args.device)

    def describe_trial(self, params: dict[str, Any], name: str | None) -> None:
        """Record in the state that this run is a trial of a search, with its parameters and name."""
        self.state.is_hyper_param_search = True
        self.state.trial_params = params
        self.state.trial_name = name

    def restore(self, point: ResumePoint, length: TrainingLength) -> None:
        """Take over the state of a checkpoint: counters, log history, position and running loss."""
        fresh, self.state = self.state, point.state
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
        self._restore_callbacks()
        self.position = point.position or _position_of(self.state.global_step, length, self.args)
        self.loss_window = LossWindow(self.args.device, self.args.logging_nan_inf_filter, self.state.global_step)
        if point.loss is not None:
            self.loss_window.load(point.loss)

    def accumulating(self, is_last: bool) -> contextlib.AbstractContextManager[None]:
        """Return the context of one micro-batch: gradients are synchronised between processes at the last one."""
        if self.is_plain:
            return _NO_CONTEXT
        self.accelerator.gradient_state._set_sync_gradients(is_last)
        return _NO_CONTEXT if is_last else self.accelerator.no_sync(self.model_wrapped)

    def _restore_callbacks(self) -> None:
        """Give callbacks that keep state (early stopping's patience) the state they had at the checkpoint.

        What they were constructed with stays, unless `restore_callback_states_from_checkpoint` asks for that too.
        """
        for name, saved in self.state.stateful_callbacks.items():
            same_kind = [each for each in self.callback_handler.callbacks if type(each).__name__ == name]
            for callback, state in zip(same_kind, saved if isinstance(saved, list) else [saved], strict=False):
                arguments = state["args"] if self.args.restore_callback_states_from_checkpoint else {}
                for attribute, value in {**arguments, **state["attributes"]}.items():
                    setattr(callback, attribute, value)

    def refresh_parameters(self) -> None:
        """Look up the model's parameters again; done once per epoch, so that adapters added in between are seen."""
        self._parameters = list(self.model.parameters())

    def zero_grad(self) -> None:
        """Drop all gradients."""
        if not self.is_plain:
            self.optimizer.zero_grad()
        for parameter in self._parameters:
            parameter.grad = None

    def clip_gradients(self) -> torch.Tensor:
        """Clip the global gradient norm to `max_grad_norm` (0: do not clip) and return it as it was before."""
        limit = self.args.max_grad_norm if self.args.max_grad_norm > 0 else float("inf")
        if not self.is_plain:
            return self.accelerator.clip_grad_norm_(self._parameters, limit)
        if limit == float("inf"):
            return torch.nn.utils.get_total_norm([each.grad for each in self._parameters if each.grad is not None])
        return torch.nn.utils.clip_grad_norm_(self._parameters, limit)

    def remove_noise(self) -> None:
        """Take NEFTune's hook off the embeddings."""
        if self._neftune_hook is not None:
            deactivate_neftune(self.model, self._neftune_hook, self.accelerator)
            self._neftune_hook = None

    def release(self) -> None:
        """Drop model, optimizer, schedule and loaders, so that their memory is free when this returns."""
        self.remove_noise()
        self._unwrap_forward()
        for callback in self.callback_handler.callbacks:
            if getattr(callback, "tb_writer", None) is not None:  # on_train_end has not come: the run failed
                callback.tb_writer.close()
                callback.tb_writer = None
        for loader in (self.callback_handler.train_dataloader, self.callback_handler.eval_dataloader):
            self._forget_loader(loader)
        self.callback_handler.release()
        for held in ("_models", "_optimizers", "_schedulers", "_dataloaders"):
            setattr(self.accelerator, held, [])
        self._parameters = []
        self.model = self.model_wrapped = self.optimizer = self.lr_scheduler = self.label_smoother = None
        self._is_prepared = False

    def _unwrap_forward(self) -> None:
        """Take accelerate's autocast off the model's `forward`; it refers to the model, which would outlive the run."""
        if self.model is not None and "_original_forward" in self.model.__dict__:
            for name in ("forward", "_original_forward"):
                self.model.__dict__.pop(name, None)

    def _forget_loader(self, loader: Any) -> None:
        """Take a loader whose iteration was cut short off accelerate's list of active loaders."""
        state = GradientState()
        if loader is not None and loader in state.dataloader_references:
            state._remove_dataloader(loader)


def make_accelerator(args: TrainingArguments) -> Accelerator:
    """Build the accelerator that `args` describe; the loop accumulates gradients itself, so accelerate does not.

    accelerate keeps one shared state per process; it is set anew when this run's precision differs from the last's.
    """
    if (
        AcceleratorState._shared_state
        and AcceleratorState._shared_state.get("_mixed_precision") != args.mixed_precision
    ):
        AcceleratorState._reset_state(reset_partial_state=False)
    config = args.accelerator_config
    ddp = {
        "find_unused_parameters": args.ddp_find_unused_parameters,
        "bucket_cap_mb": args.ddp_bucket_cap_mb,
        "broadcast_buffers": args.ddp_broadcast_buffers,
        "static_graph": args.ddp_static_graph,
    }
    if ddp["find_unused_parameters"] is None:
        ddp["find_unused_parameters"] = not args.activation_checkpointing
    options: dict[str, Any] = {}
    if args.torch_compile:
        options["dynamo_plugin"] = TorchDynamoPlugin(backend=args.torch_compile_backend, mode=args.torch_compile_mode)
    return Accelerator(
        mixed_precision=args.mixed_precision,
        deepspeed_plugin=args.deepspeed_plugin,
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        dataloader_config=DataLoaderConfiguration(
            split_batches=config.split_batches,
            dispatch_batches=config.dispatch_batches,
            even_batches=config.even_batches,
            use_seedable_sampler=config.use_seedable_sampler,
            data_seed=args.data_seed,
            non_blocking=config.non_blocking,
        ),
        kwargs_handlers=[
            DistributedDataParallelKwargs(**{name: value for name, value in ddp.items() if value is not None})
        ],
        **options,
    )


def _checkpoint_activations(model: Any, kwargs: dict[str, Any]) -> None:
    if hasattr(model, "activation_checkpointing_enable"):
        every, offload = kwargs.pop("every_n_layers", 1), kwargs.pop("offload", False)
        model.activation_checkpointing_enable(
            activation_checkpointing_kwargs=kwargs or None, every_n_layers=every, offload=offload
        )
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs or None)


def _position_of(global_step: int, length: TrainingLength, args: TrainingArguments) -> Position:
    """Work out the position from the step count alone, for checkpoints that transformers wrote."""
    epoch, updates = divmod(global_step, length.updates_per_epoch)
    return Position(epoch, updates * args.gradient_accumulation_steps)
