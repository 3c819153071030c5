"""Parameters that are searched without effect, as a training argument of all trials does not let them have any."""

from __future__ import annotations

from collections.abc import Collection, Mapping

WITHOUT_ADAM = frozenset(
    {
        *("adafactor", "adagrad", "adalomo", "lomo", "schedule_free_sgd", "sgd"),
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


def without_effect(searched: Collection[str], arguments: Mapping[str, object]) -> dict[str, str]:
    """Return the parameters that change no trial, each with the reason.

    Args:
        searched: the names of the parameters; an argument among them settles nothing, as trials differ in it.
        arguments: the training arguments of all trials, of which `max_steps`, `optim` and `lr_scheduler_type` count;
            one that is missing is not known.

    >>> without_effect(["learning_rate", "num_train_epochs"], {"max_steps": 20})
    {'num_train_epochs': 'max_steps=20 ends each training run'}
    >>> without_effect(["max_steps", "num_train_epochs"], {"max_steps": 20}), without_effect(["num_train_epochs"], {})
    ({}, {})
    >>> without_effect(["adam_beta2", "warmup_steps"], {"optim": "sgd", "lr_scheduler_type": "constant"})
    {'adam_beta2': "optim='sgd' does not take it", 'warmup_steps': "lr_scheduler_type='constant' has no warmup"}
    """
    settled = {name: getattr(each, "value", each) for name, each in arguments.items() if name not in searched}
    steps, optimizer, schedule = (settled.get(each) for each in ("max_steps", "optim", "lr_scheduler_type"))
    reasons = {}
    if isinstance(steps, int) and steps > 0:
        reasons["num_train_epochs"] = f"max_steps={steps} ends each training run"
    if optimizer in WITHOUT_ADAM:
        reasons |= dict.fromkeys(_ADAM, f"optim={optimizer!r} does not take it")
    if schedule in WITHOUT_WARMUP and isinstance(optimizer, str) and not optimizer.startswith(_WITH_OWN_WARMUP):
        reasons |= dict.fromkeys(_WARMUP, f"lr_scheduler_type={schedule!r} has no warmup")
    return {name: reason for name, reason in reasons.items() if name in searched}


def notices_without_effect(searched: Collection[str], arguments: Mapping[str, object]) -> list[str]:
    """Return a notice for each parameter that is searched without effect; see `without_effect`.

    >>> notices_without_effect(["num_train_epochs"], {"max_steps": 20})
    ['num_train_epochs has no effect, as max_steps=20 ends each training run: leave out one of the two']
    """
    return [
        f"{name} has no effect, as {reason}: leave out one of the two"
        for name, reason in without_effect(searched, arguments).items()
    ]
