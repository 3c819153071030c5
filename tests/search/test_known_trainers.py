"""Trainers whose evaluation loss does not compare trials: online reinforcement learning, and losses that are scaled."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import sentence_transformers
import transformers
import trl
from sentence_transformers.cross_encoder import losses as of_cross_encoders
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sparse_encoder import losses as of_sparse_encoders

import hpsearch
from hpsearch import Float, ObjectiveError
from hpsearch.search.metrics.known_trainers import LOSS_SCALES, is_rewarded, notices_about_loss, reward_of
from hpsearch.search.metrics.objective import resolve_objectives
from tests.support.searching import HearsNotices
from tests.support.small_trainer import small_trainer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of TRL: these may change
    from trl.experimental.cpo import CPOConfig, CPOTrainer
    from trl.experimental.gmpo import GMPOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer
    from trl.experimental.tpo import TPOConfig, TPOTrainer

LOSS = resolve_objectives(None, None, has_metrics=False)


class MyDPOTrainer(trl.DPOTrainer):
    """A trainer that a user derives."""


@pytest.mark.parametrize(
    ("trainer", "rewarded"),
    [
        (trl.GRPOTrainer, True),
        (trl.RLOOTrainer, True),
        (GMPOTrainer, True),
        (trl.DPOTrainer, False),
        (trl.RewardTrainer, False),
        (transformers.Trainer, False),
        (type("GRPOTrainer", (transformers.Trainer,), {}), False),
    ],
)
def test_trainers_of_online_reinforcement_learning_are_known_by_their_class(trainer: type, rewarded: bool) -> None:
    assert is_rewarded(trainer) is rewarded


def test_their_default_objective_is_the_reward_and_says_why() -> None:
    reward = reward_of(GMPOTrainer, None)
    assert (reward.metric, reward.direction) == ("eval_reward", "maximize")
    assert reward.description == "maximize eval_reward (default of GMPOTrainer: its evaluation loss is noise)"
    with pytest.raises(ObjectiveError, match="'minimize' contradicts the objective 'eval_reward'"):
        reward_of(GMPOTrainer, "minimize")


@pytest.mark.parametrize(
    ("trainer", "parameter", "instead"),
    [
        (hpsearch.Trainer, "label_smoothing_factor", "compute_metrics"),
        (hpsearch.Seq2SeqTrainer, "label_smoothing_factor", "compute_metrics"),
        (transformers.Trainer, "label_smoothing_factor", "compute_metrics"),
        (trl.SFTTrainer, "label_smoothing_factor", "compute_metrics"),
        (trl.SFTTrainer, "loss_type", "'mean_token_accuracy'"),
        (trl.DPOTrainer, "beta", "'rewards/accuracies'"),
        (MyDPOTrainer, "dpo.beta", "'rewards/accuracies'"),
        (trl.DPOTrainer, "loss_weights", "'rewards/accuracies'"),
        (trl.DPOTrainer, "dpo_beta", "'rewards/accuracies'"),
        (sentence_transformers.SentenceTransformerTrainer, "mnrl_scale", "evaluator"),
        (sentence_transformers.SentenceTransformerTrainer, "model.loss_scale", "evaluator"),
        (trl.KTOTrainer, "beta", "compute_metrics"),
        (CPOTrainer, "simpo_gamma", "'rewards/accuracies'"),
        (ORPOTrainer, "beta", "'rewards/accuracies'"),
        (TPOTrainer, "tpo_alpha", "'rewards/accuracies'"),
        (trl.RewardTrainer, "center_rewards_coefficient", "'accuracy'"),
        (sentence_transformers.SentenceTransformerTrainer, "scale", "evaluator"),
        (sentence_transformers.SentenceTransformerTrainer, "loss.temperature", "evaluator"),
        (sentence_transformers.CrossEncoderTrainer, "scale", "evaluator"),
        (sentence_transformers.SparseEncoderTrainer, "document_regularizer_weight", "evaluator"),
    ],
)
@pytest.mark.parametrize("objective", [None, "loss", "eval_dev_loss", ["loss", "runtime"]])
def test_a_searched_parameter_that_scales_the_loss_is_warned_about(
    trainer: type, parameter: str, instead: str, objective: Any
) -> None:
    objectives = resolve_objectives(objective, None, has_metrics=False)
    [notice] = notices_about_loss(trainer, ["learning_rate", parameter], objectives)
    assert repr(parameter) in notice
    assert repr(objectives[0].name) in notice
    assert instead in notice


@pytest.mark.parametrize(
    ("trainer", "parameter", "objective"),
    [
        (trl.DPOTrainer, "beta", "rewards/accuracies"),
        (trl.DPOTrainer, "learning_rate", None),
        (trl.DPOTrainer, "adam_beta", None),
        (trl.GRPOTrainer, "beta", "reward"),
        (CPOTrainer, "lora_alpha", None),
        (sentence_transformers.SentenceTransformerTrainer, "init_scale", None),
        (hpsearch.Trainer, "model.scale", None),
        (hpsearch.Trainer, "label_smoothing_factor", "accuracy"),
        (transformers.Trainer, "beta", None),
        (sentence_transformers.SentenceTransformerTrainer, "scale", "dev_cosine_accuracy"),
    ],
)
def test_what_does_not_scale_the_objective_is_not_warned_about(trainer: type, parameter: str, objective: Any) -> None:
    assert notices_about_loss(trainer, [parameter], resolve_objectives(objective, None, has_metrics=False)) == []


def test_a_loss_that_is_noise_is_warned_about_if_it_is_asked_for() -> None:
    [notice] = notices_about_loss(trl.GRPOTrainer, [], resolve_objectives("loss", None, has_metrics=False))
    assert "compute_objective='reward'" in notice


def test_a_search_says_it_before_the_first_trial(tmp_path: Path) -> None:
    events = HearsNotices()
    space = {"label_smoothing_factor": Float(0.0, 0.3)}
    small_trainer(tmp_path, num_train_epochs=1).hyperparameter_search(space, "loss", 1, progress=events)
    [warning] = [each for each in events.notices if "WARNING" in each]
    assert "'label_smoothing_factor' is searched, and changes what the objective 'eval_loss' measures" in warning


@pytest.mark.parametrize(
    ("trainer", "config"),
    [
        ("SFTTrainer", trl.SFTConfig),
        ("DPOTrainer", trl.DPOConfig),
        ("KTOTrainer", trl.KTOConfig),
        ("CPOTrainer", CPOConfig),
        ("ORPOTrainer", ORPOConfig),
        ("TPOTrainer", TPOConfig),
        ("RewardTrainer", trl.RewardConfig),
    ],
)
def test_the_parameters_of_the_table_are_arguments_of_trl(trainer: str, config: type) -> None:
    [row] = [each for each in LOSS_SCALES if each.package == "trl" and trainer in each.trainers]
    assert set(row.parameters) <= {each.name for each in fields(config)}


def test_the_parameters_of_the_table_are_those_of_losses_of_sentence_transformers() -> None:
    modules = (losses, of_cross_encoders, of_sparse_encoders)
    classes = [each for module in modules for each in vars(module).values() if inspect.isclass(each)]
    known = {name for each in classes for name in inspect.signature(each.__init__).parameters}
    [row] = [each for each in LOSS_SCALES if each.package == "sentence_transformers"]
    assert set(row.parameters) <= known
