"""Contradictions between the documents, the choice docs/feature-table.md names, and what no other test shows of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

import hpsearch
from hpsearch import TrainingArguments
from hpsearch.errors import ArgumentError
from tests.support.rows import logged
from tests.support.small_training import make_trainer


@pytest.mark.feature("P9")
def test_a_number_of_beams_is_a_whole_number_and_a_warm_up_may_be_a_share() -> None:
    args = hpsearch.Seq2SeqTrainingArguments("out", use_cpu=True, generation_num_beams=4, warmup_steps=0.25)
    assert type(args.replace(generation_num_beams=4.0).generation_num_beams) is int  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match="generation_num_beams"):
        args.replace(generation_num_beams=True)
    assert args.warmup_steps == 0.25


@pytest.mark.feature("P10")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_options_of_the_command_line_begin_with_two_dashes() -> None:
    parser = transformers.HfArgumentParser(TrainingArguments)
    common = ["--output_dir", "out", "--use_cpu"]
    (args,) = parser.parse_args_into_dataclasses([*common, "--seed", "5"])
    assert args.seed == 5
    with pytest.raises((SystemExit, ValueError)):
        parser.parse_args_into_dataclasses([*common, "-seed", "5"])


@pytest.mark.feature("P10")
def test_hard_restarts_are_counted_and_one_by_default(tmp_path: Path) -> None:
    rates = []
    for kind, kwargs in (("cosine", None), ("cosine_with_restarts", None), ("cosine_with_restarts", {"num_cycles": 2})):
        trainer = make_trainer(
            tmp_path, num_train_epochs=2, lr_scheduler_type=kind, lr_scheduler_kwargs=kwargs, learning_rate=1.0
        )
        trainer.train()
        rates.append(list(logged(trainer, "learning_rate").values()))
    assert rates[0] == pytest.approx(rates[1])
    assert rates[2][3] == pytest.approx(1.0)
