"""Older spellings of arguments and names, and what became of them in transformers 5.

A spelling with a faithful successor is translated, with a DeprecationWarning; every other one is refused with an error
that names the successor. A value that asked for nothing (`jit_mode_eval=False`) is dropped.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

from ..errors import ArgumentError

Translation = Callable[[str, object], dict[str, object]]


def _renamed(successor: str) -> Translation:
    return lambda name, value: {} if value is None else {successor: value}


def _switch(**successors: object) -> Translation:
    def translate(name: str, value: object) -> dict[str, object]:
        if value is not None and not isinstance(value, bool):
            raise ArgumentError(f"{name}={value!r} must be True or False; its successor is {', '.join(successors)}.")
        return dict(successors) if value else {}

    return translate


def _dropped(*neutral: object, advice: str) -> Translation:
    """Accept the values that asked for nothing; refuse the others with `advice`."""

    def translate(name: str, value: object) -> dict[str, object]:
        if value not in neutral:
            raise ArgumentError(f"{name}={value!r} is an older spelling that transformers 5 no longer has: {advice}.")
        return {}

    return translate


def _warmup_ratio(name: str, value: object) -> dict[str, object]:
    if value is None:
        return {}
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ArgumentError(
            f"warmup_ratio={value!r} must be at least 0 and below 1; its successor is warmup_steps, where 0.1 means a "
            "tenth of all steps and 1 or more is a number of steps."
        )
    return {"warmup_steps": value}


_NATIVE_AUTOCAST = "mixed precision is torch's own autocast; set fp16=True or bf16=True"
_COMPILE = "set torch_compile=True (torch_compile_backend=..., torch_compile_mode=...)"

# Each older argument: what it is called now, as people should read it, and how a value is translated.
_ARGUMENTS: dict[str, tuple[str, Translation]] = {
    "adafactor": ("optim='adafactor'", _switch(optim="adafactor")),
    "dispatch_batches": (
        "accelerator_config={'dispatch_batches': ...}",
        lambda name, value: {} if value is None else {"accelerator_config": {"dispatch_batches": value}},
    ),
    "evaluation_strategy": ("eval_strategy", _renamed("eval_strategy")),
    "fp16_backend": ("fp16 or bf16", _dropped("auto", "amp", "cuda_amp", "cpu_amp", None, advice=_NATIVE_AUTOCAST)),
    "fp16_opt_level": ("fp16 or bf16", _dropped("O1", None, advice=_NATIVE_AUTOCAST)),
    "fsdp_min_num_params": (
        "fsdp_config={'min_num_params': ...}",
        lambda name, value: {"fsdp_config": {"min_num_params": value}} if value else {},
    ),
    "fsdp_transformer_layer_cls_to_wrap": (
        "fsdp_config={'transformer_layer_cls_to_wrap': ...}",
        lambda name, value: {"fsdp_config": {"transformer_layer_cls_to_wrap": value}} if value else {},
    ),
    "group_by_length": (
        "train_sampling_strategy='group_by_length'",
        _switch(train_sampling_strategy="group_by_length"),
    ),
    "half_precision_backend": (
        "fp16 or bf16",
        _dropped("auto", "amp", "cuda_amp", "cpu_amp", None, advice=_NATIVE_AUTOCAST),
    ),
    "include_inputs_for_metrics": ("include_for_metrics=['inputs']", _switch(include_for_metrics=["inputs"])),
    "include_tokens_per_second": (
        "include_num_input_tokens_seen",
        _switch(include_num_input_tokens_seen="all"),
    ),
    "jit_mode_eval": ("torch_compile", _dropped(False, None, advice=_COMPILE)),
    "logging_dir": ("tensorboard_logging_dir", _renamed("tensorboard_logging_dir")),
    "mp_parameters": (
        "accelerate launch",
        _dropped("", None, advice="SageMaker's model parallelism was removed; use fsdp"),
    ),
    "no_cuda": ("use_cpu", _switch(use_cpu=True)),
    "overwrite_output_dir": (
        "train(resume_from_checkpoint=...)",
        # The Trainer never deleted anything: both values only ever steered scripts.
        lambda name, value: {},
    ),
    "past_index": ("past_key_values", _dropped(-1, None, advice="the model's own past_key_values replaced it")),
    "per_gpu_eval_batch_size": ("per_device_eval_batch_size", _renamed("per_device_eval_batch_size")),
    "per_gpu_train_batch_size": ("per_device_train_batch_size", _renamed("per_device_train_batch_size")),
    "push_to_hub_model_id": ("hub_model_id", _renamed("hub_model_id")),
    "push_to_hub_organization": (
        "hub_model_id='organization/name'",
        _dropped(None, "", advice="write it into hub_model_id='organization/name'"),
    ),
    "push_to_hub_token": ("hub_token", _renamed("hub_token")),
    "save_safetensors": (
        "nothing instead (weights are always safetensors)",
        _dropped(True, None, advice="weights are always written as safetensors; leave it out"),
    ),
    "sharded_ddp": ("fsdp", _dropped("", False, None, [], advice="FairScale's sharding became fsdp=True")),
    "split_batches": (
        "accelerator_config={'split_batches': ...}",
        lambda name, value: {} if value is None else {"accelerator_config": {"split_batches": value}},
    ),
    "torchdynamo": ("torch_compile_backend", _renamed("torch_compile_backend")),
    "tpu_metrics_debug": ("debug='tpu_metrics_debug'", _switch(debug=["tpu_metrics_debug"])),
    "tpu_num_cores": (
        "accelerate launch",
        _dropped(None, advice="start one process per core with `accelerate launch`"),
    ),
    "use_ipex": ("torch_compile", _dropped(False, None, advice=f"Intel's extension is part of torch; {_COMPILE}")),
    "use_legacy_prediction_loop": (
        "evaluation_loop",
        _dropped(False, None, advice="prediction_loop became evaluation_loop; override that"),
    ),
    "use_mps_device": (
        "nothing instead (Apple's device is detected automatically)",
        _dropped(True, False, None, advice="Apple's device is detected automatically; leave it out"),
    ),
    "warmup_ratio": ("warmup_steps, where 0.1 means a tenth of all steps,", _warmup_ratio),
    "xpu_backend": ("ddp_backend", _renamed("ddp_backend")),
}

# Values of present arguments that are gone.
_VALUES = {
    ("optim", "adamw_hf"): "adamw_torch",
    ("optim", "adamw_apex_fused"): "adamw_torch_fused",
}

# Names that scripts import, and their successors.
_NAMES = {
    "AdamW": "torch.optim.AdamW (its defaults differ: lr, eps, weight_decay)",
    "AdamWeightDecay": "torch.optim.AdamW; TensorFlow's optimizers were removed with TensorFlow",
    "GradientAccumulator": "TrainingArguments(gradient_accumulation_steps=...)",
    "KerasMetricCallback": "Trainer(compute_metrics=...) or a TrainerCallback",
    "PushToHubCallback": "TrainingArguments(push_to_hub=True)",
    "Repository": "huggingface_hub.upload_folder; repositories are no longer cloned with git",
    "ShardedDDPOption": "TrainingArguments(fsdp=True)",
    "WarmUp": "transformers.get_scheduler(..., num_warmup_steps=...)",
    "create_optimizer": "torch.optim.AdamW and transformers.get_scheduler",
    "default_hp_space_sigopt": "transformers.trainer_utils.default_hp_space_optuna; SigOpt is no longer supported",
    "load_metric": "evaluate.load",
}


def translate_arguments(given: Mapping[str, object]) -> dict[str, object]:
    """Return the keyword arguments `given` with every older spelling replaced by its successor.

    Lists and dicts of several spellings are joined; a positive `warmup_steps` wins over `warmup_ratio`, as it always
    did.

    Raises:
        ArgumentError: a spelling has no faithful successor, or its successor is given too, with another value.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     translate_arguments({"no_cuda": True, "warmup_ratio": 0.1, "seed": 1})
        {'seed': 1, 'use_cpu': True, 'warmup_steps': 0.1}
    """
    translated = {name: value for name, value in given.items() if name not in _ARGUMENTS}
    for name, value in given.items():
        if isinstance(value, str) and (name, value) in _VALUES:
            raise ArgumentError(f"{name}={value!r} was removed from transformers 5; use {_VALUES[name, value]!r}.")
    if given.get("push_to_hub_organization") and given.get("push_to_hub_model_id"):
        given = dict(given)
        given["push_to_hub_model_id"] = f"{given.pop('push_to_hub_organization')}/{given['push_to_hub_model_id']}"
    for name in [each for each in given if each in _ARGUMENTS]:
        successor, translate = _ARGUMENTS[name]
        for new_name, new_value in translate(name, given[name]).items():
            if name == "warmup_ratio" and translated.pop("warmup_steps", None):
                translated["warmup_steps"] = given["warmup_steps"]
                continue
            translated[new_name] = _joined(name, new_name, translated.get(new_name), new_value)
        warnings.warn(f"{name} is an older spelling; use {successor} instead.", DeprecationWarning, stacklevel=3)
    return translated


def _joined(name: str, successor: str, present: object, added: object) -> object:
    if present is None or present == added:
        return added
    if isinstance(present, dict) and isinstance(added, dict):
        return {**added, **present}
    if isinstance(present, list) and isinstance(added, list):
        return [*present, *(each for each in added if each not in present)]
    if isinstance(present, str) and isinstance(added, list):
        return [*present.split(), *added]
    raise ArgumentError(
        f"{name} (an older spelling) and {successor}={present!r} contradict each other; keep the second."
    )


def successor_of_argument(name: str) -> str:
    """Return a sentence that names the successor of an older argument; empty if `name` is none."""
    return f" It is an older spelling; use {_ARGUMENTS[name][0]}." if name in _ARGUMENTS else ""


def successor_of_name(name: str) -> str | None:
    """Return what became of a name that transformers or datasets used to export, or None if it is none."""
    return _NAMES.get(name)
