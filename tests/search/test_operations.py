"""The cost of a trial is the number of operations of its training run, the same whenever it is trained."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from hpsearch import Categorical, Report, SearchInterrupted, tune
from hpsearch.search.operations import operations_so_far
from hpsearch.search.stored_record import record_from_json
from hpsearch.search.trial import TrialRecord, TrialState
from tests.support.models import bert_classifier, classification_data
from tests.support.searching import AtStep, interrupt
from tests.support.small_trainer import small_trainer, transformers_trainer

LENGTH, SAMPLES = 12, 16
DATA = {
    "train_dataset": classification_data(SAMPLES, length=LENGTH),
    "eval_dataset": classification_data(4, length=LENGTH, seed=1),
}
QUIET: dict[str, Any] = {"progress": False, "preflight": False, "storage": "journal", "pruner": None}


def frozen_encoder() -> Any:
    model = bert_classifier(hidden=8)
    model.bert.requires_grad_(False)
    return model


@pytest.mark.parametrize(("trained", "factor"), [(100, 6), (50, 5), (0, 4)])
def test_a_frozen_weight_costs_two_thirds_of_a_trained_one(trained: int, factor: int) -> None:
    model = torch.nn.ParameterList(
        torch.nn.Parameter(torch.zeros(10), requires_grad=at < trained) for at in range(0, 100, 10)
    )
    counted = SimpleNamespace(total_flos=6 * 100 * 7.0)  # of 7 tokens
    assert operations_so_far(counted, model) == factor * 100 * 7


def test_nothing_is_known_where_the_trainer_counts_nothing() -> None:
    assert operations_so_far(SimpleNamespace(total_flos=0), torch.nn.Linear(2, 2)) == 0
    assert operations_so_far(SimpleNamespace(total_flos=60.0), None) == 60


def test_sums_in_other_parts_are_the_same_beyond_the_precision_of_floats() -> None:
    part, model = 6.0 * (2**51 + 1), torch.nn.Linear(2, 2)
    whole, parts = sum([part] * 9), sum([part] * 4) + sum([part] * 5)
    counted = [
        operations_so_far(SimpleNamespace(total_flos=each), model) for each in (whole, parts, math.fsum([part] * 9))
    ]
    assert len(set(counted)) == 1


def counts(found: Any) -> list[list[float]]:
    return [[each.operations for each in record.reports] for record in found.run_summary.records]


def operations(model: Any, samples: int) -> float:
    """Six for each trained weight, four for each frozen one, and token."""
    sizes = [(each.numel(), each.requires_grad) for each in model.parameters()]
    trained = sum(size for size, is_trained in sizes if is_trained) / sum(size for size, _ in sizes)
    per_token = model.num_parameters(exclude_embeddings=True) * (6 * trained + 4 * (1 - trained))
    return float(samples * LENGTH * per_token)


@pytest.mark.parametrize("make", [bert_classifier, frozen_encoder])
def test_every_report_has_the_operations_up_to_it(tmp_path: Path, make: Any) -> None:
    trainer = small_trainer(tmp_path, model_init=make, **DATA)
    best = trainer.hyperparameter_search({"per_device_train_batch_size": Categorical([4, 8])}, "loss", 2, **QUIET)
    whole = [operations(make(), samples=each * SAMPLES) for each in (1, 2)]
    assert counts(best) == [pytest.approx(whole)] * 2


def test_trainers_of_transformers_count_the_same(tmp_path: Path) -> None:
    def make(trial: Any) -> transformers.Trainer:
        return transformers_trainer(tmp_path / "made", bert_classifier(), **DATA, **trial.params)

    space = {"learning_rate": Categorical([0.01, 0.02])}
    theirs = tune(make, space, output_dir=str(tmp_path / "out"), compute_objective="loss", n_trials=1, **QUIET)
    trainer = small_trainer(tmp_path, model_init=bert_classifier, **DATA)
    assert counts(theirs) == counts(trainer.hyperparameter_search(space, "loss", 1, **QUIET))
    assert counts(theirs)[0][0] > 0


def test_a_trial_that_was_interrupted_has_the_operations_of_one_that_was_not(tmp_path: Path) -> None:
    def search(folder: str, *callbacks: Any) -> Any:
        trainer = small_trainer(
            tmp_path / folder, *callbacks, model_init=bert_classifier, save_strategy="steps", save_steps=3, **DATA
        )
        return trainer.hyperparameter_search({"learning_rate": Categorical([0.01])}, "loss", 1, **QUIET)

    whole = search("whole")
    with pytest.raises(SearchInterrupted):
        search("parts", AtStep(interrupt, run=0, step=5))
    assert counts(search("parts")) == counts(whole)


def test_a_model_that_is_not_of_transformers_is_not_counted(tmp_path: Path) -> None:
    best = small_trainer(tmp_path).hyperparameter_search({"learning_rate": Categorical([0.01])}, "loss", 1, **QUIET)
    assert counts(best) == [[0.0, 0.0]]


def test_a_report_of_0_8_0_is_read_without_operations(tmp_path: Path) -> None:
    record = TrialRecord(
        0, "run-0", TrialState.COMPLETE, {}, values=(0.5,), reports=(Report((0.5,), 1, 1, 1.0, {}, operations=9.0),)
    )
    written = record.to_json()
    assert record_from_json(written, tmp_path).reports == record.reports
    del written["reports"][0]["operations"]
    [read] = record_from_json(written, tmp_path).reports
    assert asdict(read) == {**asdict(record.reports[0]), "operations": 0.0}


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_the_rank_of_an_adapter_is_visible() -> None:
    peft = pytest.importorskip("peft")

    def cost(rank: int) -> float:
        settings = peft.LoraConfig(task_type="SEQ_CLS", r=rank, target_modules=["query", "value"])
        model = peft.get_peft_model(bert_classifier(), settings)
        return operations_so_far(SimpleNamespace(total_flos=6.0 * model.num_parameters(exclude_embeddings=True)), model)

    assert 1.0 < cost(16) / cost(2) < 1.5
    assert cost(2) < 0.8 * 6 * bert_classifier().num_parameters(exclude_embeddings=True)
