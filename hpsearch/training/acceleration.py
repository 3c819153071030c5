"""The accelerate Accelerator that the arguments of a run describe: precision, distribution, compilation."""

from __future__ import annotations

import atexit
import functools

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import (
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    DistributedType,
    FullyShardedDataParallelPlugin,
    GradientAccumulationPlugin,
    TorchDynamoPlugin,
)

from ..arguments import TrainingArguments
from ..errors import ArgumentError


def forget_loader(loader: object) -> None:
    """Take a loader whose iteration was cut short off accelerate's list of active loaders."""
    state = GradientState()
    if loader is not None and loader in state.dataloader_references:
        state._remove_dataloader(loader)


def make_accelerator(args: TrainingArguments) -> Accelerator:
    """Build the accelerator that `args` describe; the loop accumulates gradients itself, so accelerate does not.

    accelerate keeps one shared state per process; it is set anew when this run's precision or compilation differs from
    the last's, and for DeepSpeed.

    Raises:
        ArgumentError: `fsdp` is asked for in a single process, or after or before a run in this process that did not
            shard its model.
    """
    _check_sharding(args)
    compiling = {"backend": args.torch_compile_backend, "mode": args.torch_compile_mode} if args.torch_compile else {}
    dynamo_plugin = TorchDynamoPlugin(**compiling)
    if _is_other(AcceleratorState._shared_state, args, dynamo_plugin):
        AcceleratorState._reset_state(reset_partial_state=False)
        if args.fsdp_plugin_args is not None:  # accelerate takes the plugin only where FSDP is not yet switched on
            kind = {"cpu": "CPU", "cuda": "GPU"}.get(args.device.type, args.device.type.upper())
            PartialState._shared_state["distributed_type"] = DistributedType(f"MULTI_{kind}")
    config = args.accelerator_config
    if not config.even_batches and args.world_size > 1:
        raise ArgumentError(
            "accelerator_config={'even_batches': False} makes one process wait forever for a batch that another "
            "does not have; leave it out. Evaluation counts every sample once in any case."
        )
    ddp = {
        "find_unused_parameters": args.ddp_find_unused_parameters,
        "bucket_cap_mb": args.ddp_bucket_cap_mb,
        "broadcast_buffers": args.ddp_broadcast_buffers,
        "static_graph": args.ddp_static_graph,
    }
    if ddp["find_unused_parameters"] is None:
        ddp["find_unused_parameters"] = not args.activation_checkpointing
    options: dict[str, object] = {}
    if args.fsdp_plugin_args is not None:
        options["fsdp_plugin"] = FullyShardedDataParallelPlugin(**args.fsdp_plugin_args)
    accelerator = Accelerator(
        mixed_precision=args.mixed_precision,
        deepspeed_plugin=args.deepspeed_plugin,
        dynamo_plugin=dynamo_plugin,
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
    if accelerator.num_processes > 1:
        _leave_gloo_at_exit()
    if "fsdp_plugin" in options and accelerator.distributed_type == DistributedType.MULTI_CPU:
        _shard_over_cpus(accelerator, options["fsdp_plugin"], args)
    return accelerator


def _is_other(state: dict[str, object], args: TrainingArguments, dynamo_plugin: TorchDynamoPlugin) -> bool:
    """Return whether accelerate's state is that of a run that is trained in another way."""
    had = state.get("_mixed_precision"), state.get("dynamo_plugin")
    return bool(state) and (had != (args.mixed_precision, dynamo_plugin) or args.deepspeed_plugin is not None)


@functools.cache
def _leave_gloo_at_exit() -> None:
    """Close gloo's connections when the program ends; left open, its threads now and then abort the process."""

    def leave() -> None:
        if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
            torch.distributed.destroy_process_group()

    atexit.register(leave)


def _check_sharding(args: TrainingArguments) -> None:
    wants_shards = args.fsdp_plugin_args is not None
    if wants_shards and args.world_size == 1:
        raise ArgumentError(
            f"fsdp={args.fsdp!r} shards a model over several processes, but this is a single process; start the "
            "program "
            "with `accelerate launch --num_processes N` or `torchrun --nproc_per_node N`."
        )
    has_shards = PartialState._shared_state.get("distributed_type") == DistributedType.FSDP
    if AcceleratorState._shared_state and wants_shards != has_shards:
        raise ArgumentError(
            f"fsdp={args.fsdp!r}, but an earlier run of this process had another value, and accelerate keeps it for "
            "the life of the process; start another process."
        )


def _shard_over_cpus(accelerator: Accelerator, plugin: FullyShardedDataParallelPlugin, args: TrainingArguments) -> None:
    """Switch FSDP on for CPUs, as accelerate itself does only for accelerators."""
    if args.mixed_precision != "no":
        plugin.set_mixed_precision(args.mixed_precision)
    accelerator.state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin
