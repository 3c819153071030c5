"""Facts about the trainers of TRL and sentence-transformers, by class names; neither package is imported.

Some trainers report an evaluation loss that does not say how good a model is: that of online reinforcement learning is
noise around zero. Some parameters scale the loss, so that a search that is judged by it finds the smallest scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from .objective import Objective, resolve_objectives, sum_of_losses

_REWARDED = ("GRPOTrainer", "RLOOTrainer", "A2POTrainer")
LOSS = "eval_loss"
# Words that users put before the name of a parameter of a loss.
_OF_A_LOSS = ("cpo", "dpo", "gkd", "kto", "loss", "mnrl", "orpo", "tpo")
LIBRARIES_OF_TRAINERS = ("sentence_transformers", "trl")


@dataclass(frozen=True)
class LossScale:
    """Parameters with which the evaluation loss of a trainer is another quantity.

    Attributes:
        package: that the class of the trainer comes from.
        trainers: names of the class, or of one that it derives from.
        parameters: their names; a search may put words and dots before them.
        instead: which metrics compare trials that differ in these parameters.
    """

    package: str
    trainers: tuple[str, ...]
    parameters: tuple[str, ...]
    instead: str


_PREFERENCES = "'rewards/accuracies'"
_OWN_METRIC = "a metric of your own (compute_metrics)"
LOSS_SCALES = (
    LossScale("transformers", ("Trainer",), ("label_smoothing_factor",), _OWN_METRIC),
    LossScale("hpsearch", ("Trainer",), ("label_smoothing_factor",), _OWN_METRIC),
    LossScale("trl", ("SFTTrainer",), ("loss_type",), "'mean_token_accuracy'"),
    LossScale(
        "trl",
        ("DPOTrainer",),
        (
            "beta",
            "discopop_tau",
            "f_alpha_divergence_coef",
            "f_divergence_type",
            "label_smoothing",
            "ld_alpha",
            "loss_type",
            "loss_weights",
            "use_weighting",
        ),
        _PREFERENCES,
    ),
    LossScale("trl", ("KTOTrainer",), ("beta", "desirable_weight", "undesirable_weight", "loss_type"), _OWN_METRIC),
    LossScale(
        "trl",
        ("CPOTrainer",),
        ("alpha", "beta", "cpo_alpha", "label_smoothing", "loss_type", "simpo_gamma"),
        _PREFERENCES,
    ),
    LossScale("trl", ("ORPOTrainer",), ("beta",), _PREFERENCES),
    LossScale(
        "trl", ("TPOTrainer",), ("beta", "label_smoothing", "loss_type", "tpo_alpha", "tpo_l_gamma"), _PREFERENCES
    ),
    LossScale("trl", ("RewardTrainer",), ("center_rewards_coefficient",), "'accuracy'"),
    LossScale("trl", ("DistillationTrainer", "GKDTrainer", "GOLDTrainer"), ("beta", "temperature"), _OWN_METRIC),
    LossScale(
        "sentence_transformers",
        ("SentenceTransformerTrainer", "SparseEncoderTrainer", "CrossEncoderTrainer", "MultiVectorEncoderTrainer"),
        (
            "document_regularizer_weight",
            "kl_div_weight",
            "kl_temperature",
            "last_layer_weight",
            "margin",
            "matryoshka_weights",
            "mean_weight",
            "negative_margin",
            "positive_margin",
            "prior_layers_weight",
            "query_regularizer_weight",
            "scale",
            "second_moment_weight",
            "sigma",
            "student_temperature",
            "teacher_temperature",
            "temperature",
            "triplet_margin",
        ),
        "a metric of an evaluator, such as 'dev_cosine_accuracy'",
    ),
)


def is_rewarded(trainer: type) -> bool:
    """Return whether the evaluations of a trainer report a reward, while their loss is noise."""
    return _derives_from(trainer, "trl", _REWARDED)


def reward_of(trainer: type, direction: object) -> Objective:
    """Return the default objective of such a trainer.

    Raises:
        ObjectiveError: the direction is not one, or not that of a reward.
    """
    [reward] = resolve_objectives("reward", direction, has_metrics=False)
    why = f"default of {trainer.__name__}: its evaluation loss is noise"
    return replace(reward, description=f"{reward.description} ({why})")


def notices_about_loss(trainer: type, searched: Iterable[str], objectives: Sequence[Objective]) -> list[str]:
    """Return warnings about an objective that is a loss: that it is noise, or that a searched parameter scales it.

    Args:
        trainer: the class of the trainer.
        searched: names of the parameters.
        objectives: of the search.
    """
    loss = next((each for each in objectives if _is_loss(each)), None)
    if loss is None:
        return []
    if is_rewarded(trainer):
        return [
            f"WARNING: the objective {loss.name!r} is noise for {trainer.__name__}: it does not measure how good a "
            "model is. Pass compute_objective='reward', with another study_name if this study exists already."
        ]
    scales = [each for each in LOSS_SCALES if _derives_from(trainer, each.package, each.trainers)]
    found: dict[str, str] = {}
    for name in searched:
        word = name.rpartition(".")[2]
        prefix, _, last = word.partition("_")  # "dpo_beta", "loss_scale"
        words = {word, last} if prefix in _OF_A_LOSS else {word}
        instead = [each.instead for each in scales if not words.isdisjoint(each.parameters)]
        if instead:
            found[name] = instead[-1]
    return [
        f"WARNING: {name!r} is searched, and changes what the objective {loss.name!r} measures: the best trial may be "
        f"the one whose {name!r} makes the loss small, not the one with the best model. Pass as compute_objective "
        f"{instead}."
        for name, instead in found.items()
    ]


def _is_loss(objective: Objective) -> bool:
    if objective.metric is sum_of_losses:
        return True
    return isinstance(objective.metric, str) and (objective.metric == LOSS or objective.metric.endswith("_loss"))


def _derives_from(trainer: type, package: str, names: Sequence[str]) -> bool:
    return any(each.__name__ in names and each.__module__.partition(".")[0] == package for each in trainer.__mro__)
