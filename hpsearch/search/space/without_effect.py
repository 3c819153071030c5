"""Parameters that are searched without effect, as a training argument of all trials does not let them have any."""

from __future__ import annotations

from collections.abc import Collection, Mapping

SETTLING = ("max_steps", "optim", "lr_scheduler_type", "deepspeed")
"""The training arguments that decide whether a parameter has an effect."""
WITHOUT_ADAM = frozenset(
    {
        *("adafactor", "adagrad", "adalomo", "grokadamw", "lomo", "schedule_free_sgd", "sgd"),
        *("rmsprop", "rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit"),
        *("galore_adafactor", "galore_adafactor_layerwise", "galore_adamw", "galore_adamw_layerwise"),
        *("galore_adamw_8bit", "galore_adamw_8bit_layerwise"),
    }
)
"""The values of `optim` whose optimizers transformers gives no `adam_*` argument."""
WITHOUT_WARMUP = frozenset(("constant", "greedy", "reduce_lr_on_plateau"))
"""The values of `lr_scheduler_type` whose schedules ignore `warmup_steps`."""
_WITH_OWN_WARMUP = "schedule_free"
_ADAM = ("adam_beta1", "adam_beta2", "adam_epsilon")
_WARMUP = ("warmup_steps", "warmup_ratio")


def without_effect(
    searched: Collection[str], arguments: Mapping[str, object], has_own_optimizer: bool
) -> dict[str, str]:
    """Return the parameters that change no trial, each with the reason.

    Args:
        searched: the names of the parameters; an argument among them settles nothing, as trials differ in it.
        arguments: the training arguments of all trials, of which those of `SETTLING` count; one that is missing is not
            known.
        has_own_optimizer: whether code of the user's may make the optimizer or the schedule, and read any argument
            for it, as DeepSpeed may.

    >>> without_effect(["learning_rate", "num_train_epochs"], {"max_steps": 20}, True)
    {'num_train_epochs': 'max_steps=20 ends each training run'}
    >>> without_effect(["max_steps", "num_train_epochs"], {"max_steps": 20}, True)
    {}
    >>> without_effect(["adam_beta2", "warmup_steps"], {"optim": "sgd", "lr_scheduler_type": "constant"}, False)
    {'adam_beta2': "optim='sgd' does not use it", 'warmup_steps': "lr_scheduler_type='constant' does not use it"}
    """
    settled = {name: _text(arguments[name]) for name in SETTLING if name in arguments and name not in searched}
    steps, optimizer, schedule = settled.get("max_steps"), settled.get("optim"), settled.get("lr_scheduler_type")
    reasons = {}
    if isinstance(steps, int) and steps > 0:
        reasons["num_train_epochs"] = f"max_steps={steps} ends each training run"
    if isinstance(optimizer, str) and not has_own_optimizer and not settled.get("deepspeed"):
        if optimizer in WITHOUT_ADAM:
            reasons |= dict.fromkeys(_ADAM, f"optim={optimizer!r} does not use it")
        if isinstance(schedule, str) and schedule in WITHOUT_WARMUP and not optimizer.startswith(_WITH_OWN_WARMUP):
            reasons |= dict.fromkeys(_WARMUP, f"lr_scheduler_type={schedule!r} does not use it")
    return {name: reason for name, reason in reasons.items() if name in searched}


def notices_without_effect(
    searched: Collection[str], arguments: Mapping[str, object], has_own_optimizer: bool
) -> list[str]:
    """Return a notice for each parameter that is searched without effect; see `without_effect`.

    >>> notices_without_effect(["num_train_epochs"], {"max_steps": 20}, False)
    ['num_train_epochs has no effect, as max_steps=20 ends each training run: leave out one of the two']
    """
    return [
        f"{name} has no effect, as {reason}: leave out one of the two"
        for name, reason in without_effect(searched, arguments, has_own_optimizer).items()
    ]


def _text(value: object) -> object:
    """Return the value of an enumeration, else the argument as it is."""
    return getattr(value, "value", value)
