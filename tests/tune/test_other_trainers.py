"""Trainers of other packages that derive from transformers' are searched, with the weights as they keep them."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import datasets
import peft
import pytest
import torch
import transformers

from hpsearch import Float, MissingMetricError, TrialState, tune
from tests.support.models import bert_classifier, gpt2_language_model, word_tokenizer
from tests.support.searching import HearsNotices

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

SHARED: dict[str, Any] = {
    "use_cpu": True,
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "per_device_train_batch_size": 4,
    "report_to": [],
    "disable_tqdm": True,
}


@pytest.fixture(autouse=True)
def _without_progress_bars() -> None:
    datasets.disable_progress_bars()


def counting(start: int, length: int = 6) -> str:
    return " ".join(f"w{(start + step) % 96}" for step in range(length))


def search(make: Any, **options: Any) -> Any:
    space = {"learning_rate": Float(1e-4, 1e-2, log=True)}
    return tune(make, space, output_dir="out", n_trials=3, progress=False, pruner=None, **options)


def assert_searched(best: Any) -> None:
    assert [record.state for record in best.run_summary.records] == [TrialState.COMPLETE] * 3
    losses = [min(report.metrics["eval_loss"] for report in record.reports) for record in best.run_summary.records]
    assert best.objective == min(losses)
    assert len(set(losses)) == 3


@pytest.mark.packages
@pytest.mark.smoke
def test_supervised_fine_tuning_of_trl_with_lora() -> None:
    from trl import SFTConfig, SFTTrainer

    text = datasets.Dataset.from_dict({"text": [counting(start) for start in range(24)]})

    def make(trial: Any) -> SFTTrainer:
        args = SFTConfig("made", max_length=16, num_train_epochs=2, **SHARED, **trial.params)
        lora = peft.LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)
        return SFTTrainer(
            gpt2_language_model(),
            args,
            train_dataset=text,
            eval_dataset=text,
            processing_class=word_tokenizer(),
            peft_config=lora,
        )

    best = search(make, scope="all")
    assert_searched(best)
    model = best.load_model()
    assert isinstance(model, peft.PeftModel)
    assert Path(best.checkpoint, "adapter_model.safetensors").is_file()
    adapter = peft.load_peft_weights(str(best.checkpoint))
    loaded = peft.get_peft_model_state_dict(model)
    assert all(loaded[name].equal(each) for name, each in adapter.items())
    assert any(each.abs().sum() > 0 for name, each in loaded.items() if "lora_B" in name), "it was trained"


@pytest.mark.packages
def test_preference_training_of_trl_waits_at_rungs() -> None:
    from trl import DPOConfig, DPOTrainer

    pairs = datasets.Dataset.from_dict(
        {
            "prompt": [counting(start, 2) for start in range(16)],
            "chosen": [" " + counting(start + 2, 2) for start in range(16)],
            "rejected": [" " + counting(start + 50, 2) for start in range(16)],
        }
    )

    def make(trial: Any) -> DPOTrainer:
        args = DPOConfig("made", max_length=16, num_train_epochs=4, **SHARED, **trial.params)
        model = gpt2_language_model()
        reference = copy.deepcopy(model)
        return DPOTrainer(
            model, reference, args, train_dataset=pairs, eval_dataset=pairs, processing_class=word_tokenizer()
        )

    space = {"learning_rate": Float(1e-5, 1e-3, log=True), "beta": Float(0.05, 0.5)}
    events = HearsNotices()
    best = tune(make, space, output_dir="out", n_trials=4, progress=events, compute_objective="rewards/accuracies")
    assert not any("WARNING" in notice for notice in events.notices)
    states = [record.state for record in best.run_summary.records]
    assert TrialState.COMPLETE in states
    assert TrialState.PRUNED in states
    assert isinstance(best.load_model(), transformers.GPT2LMHeadModel)


def reward_of_length(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(len(each)) for each in completions]


def rewarded(trial: Any) -> Any:
    from trl import GRPOConfig, GRPOTrainer

    prompts = datasets.Dataset.from_dict({"prompt": [counting(start, 2) for start in range(4)]})
    args = GRPOConfig(
        "made", max_steps=1, num_generations=2, max_completion_length=3, bf16=False, **SHARED, **trial.params
    )
    return GRPOTrainer(
        gpt2_language_model(), reward_of_length, args, prompts, prompts, processing_class=word_tokenizer()
    )


@pytest.mark.packages
def test_online_reinforcement_learning_is_judged_by_its_reward_and_a_study_by_its_loss_continues(
    tmp_path: Path,
) -> None:
    space = {"learning_rate": Float(1e-5, 1e-3, log=True)}
    events = HearsNotices()
    best = tune(rewarded, space, output_dir=tmp_path, n_trials=1, progress=events)
    assert best.run_summary.objective.name == "eval_reward"
    assert "maximize eval_reward (default of GRPOTrainer: its evaluation loss is noise)" in events.study.description
    assert best.objective == best.run_summary.records[0].reports[-1].metrics["eval_reward"]
    [skipped] = events.notices
    assert "the step and the evaluation are skipped, because the rewards of a GRPOTrainer may come from" in skipped

    by_loss = {"output_dir": tmp_path, "study_name": "0.8.0", "n_trials": 1}
    tune(rewarded, space, compute_objective="loss", progress=False, **by_loss)
    events = HearsNotices()
    best = tune(rewarded, space, progress=events, **by_loss)
    assert best.run_summary.objective.name == "eval_loss"
    [warning] = events.notices
    assert "'eval_loss' is noise for GRPOTrainer" in warning


@pytest.mark.packages
def test_sentence_transformers_with_weights_of_a_report_before_the_last() -> None:
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    folder = Path("bert")
    bert_classifier().bert.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    data = datasets.Dataset.from_dict(
        {"anchor": [counting(start) for start in range(24)], "positive": [counting(start + 1) for start in range(24)]}
    )

    def make(trial: Any) -> SentenceTransformerTrainer:
        words = Transformer(str(folder))
        model = SentenceTransformer(modules=[words, Pooling(words.get_word_embedding_dimension())], device="cpu")
        args = SentenceTransformerTrainingArguments(
            "made", num_train_epochs=3, **{**SHARED, "save_strategy": "no"}, **trial.params
        )
        return SentenceTransformerTrainer(
            model, args, train_dataset=data, eval_dataset=data, loss=MultipleNegativesRankingLoss(model)
        )

    best = search(make, scope="all")
    assert_searched(best)
    model = best.load_model()
    assert isinstance(model, SentenceTransformer)
    sentences = [counting(start) for start in range(5)]
    again = SentenceTransformer(str(best.checkpoint), device="cpu")
    assert torch.equal(model.encode(sentences, convert_to_tensor=True), again.encode(sentences, convert_to_tensor=True))
    fresh = SentenceTransformer(modules=[Transformer(str(folder)), *itertools.islice(again, 1, None)], device="cpu")
    assert not torch.equal(
        fresh.encode(sentences, convert_to_tensor=True), again.encode(sentences, convert_to_tensor=True)
    )


@pytest.mark.packages
def test_an_evaluator_of_sentence_transformers_is_enough() -> None:
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.evaluation import TripletEvaluator
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    folder = Path("bert")
    bert_classifier().bert.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    texts = [counting(start) for start in range(12)]
    data = datasets.Dataset.from_dict({"anchor": texts, "positive": texts[1:] + texts[:1]})
    evaluator = TripletEvaluator(texts, texts[1:] + texts[:1], texts[6:] + texts[:6], name="dev")

    def make(trial: Any) -> SentenceTransformerTrainer:
        words = Transformer(str(folder))
        model = SentenceTransformer(modules=[words, Pooling(words.get_word_embedding_dimension())], device="cpu")
        args = SentenceTransformerTrainingArguments("made", num_train_epochs=2, **SHARED, **trial.params)
        loss = MultipleNegativesRankingLoss(model)
        return SentenceTransformerTrainer(model, args, train_dataset=data, evaluator=evaluator, loss=loss)

    best = search(make, compute_objective="dev_cosine_accuracy")
    values = [record.value for record in best.run_summary.records]
    assert best.objective == max(values)
    with pytest.raises(MissingMetricError, match="default objective is the evaluation loss"):
        search(make, study_name="no loss")
