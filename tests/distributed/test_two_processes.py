"""Training in two processes equals training in one with the same effective batch; real processes, on the CPU."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from transformers import BertForSequenceClassification

from hpsearch.training.samplers import train_sampler
from tests.support.distributed_training import build
from tests.support.launch import Reports, launch

pytestmark = pytest.mark.distributed

COMMON: dict[str, Any] = {
    "num_train_epochs": 2,
    "logging_steps": 1,
    "eval_strategy": "epoch",
    "save_strategy": "no",
    "learning_rate": 1e-3,
}
OWN_LOSS = {
    "task": "language",
    "own_loss": True,
    "eval_size": 9,
    "args": {"max_steps": 1, "learning_rate": 0.0},
}
AT_EPOCHS = {"save_strategy": "steps", "save_steps": 8}
EVERY_FIVE = {"save_strategy": "steps", "save_steps": 5, "num_train_epochs": 1}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation_with_a_leftover": {"args": {"gradient_accumulation_steps": 3}},
    "language_model": {"task": "language"},
    "accumulated_language_model": {"task": "language", "args": {"gradient_accumulation_steps": 2}},
    "stream": {"task": "stream", "args": {"max_steps": 8}},
    "evaluated_first": {"evaluates_a_given_model_first": True, "args": {"num_train_epochs": 1}},
    "fewer_samples_to_evaluate_than_processes": {"eval_size": 1, "args": {"num_train_epochs": 1}},
    "outputs_gathered_as_objects": {"args": {"eval_use_gather_object": True, "num_train_epochs": 1}},
    "tokens": {"args": {"include_num_input_tokens_seen": "all", "num_train_epochs": 1}},
    "best_at_the_end": {
        "args": {"save_strategy": "epoch", "load_best_model_at_end": True, "save_total_limit": 1},
    },
}
ONLY_IN_TWO: dict[str, dict[str, Any]] = {
    "whole": {"dropout": 0.2, "args": EVERY_FIVE},
    "resumed": {"dropout": 0.2, "args": EVERY_FIVE, "resume": "whole/checkpoint-5"},
    "log_levels": {
        "args": {"log_level": "info", "log_level_replica": "error", "max_steps": 1, "eval_strategy": "no"},
    },
    "whole_epochs": {"dropout": 0.2, "args": AT_EPOCHS},
    "resumed_at_the_end_of_an_epoch": {"dropout": 0.2, "args": AT_EPOCHS, "resume": "whole_epochs/checkpoint-8"},
    "own_loss": OWN_LOSS,
    "uneven_streams": {"task": "uneven_streams", "args": {"max_steps": 9, "eval_strategy": "no"}},
    "grouped_by_length": {
        "task": "ragged",
        "dropout": 0.2,
        "args": {"train_sampling_strategy": "group_by_length", "num_train_epochs": 1},
    },
}
IGNORED = ("runtime", "per_second")


def settings(folder: Path, cases: dict[str, dict[str, Any]], batch_size: int) -> dict[str, Any]:
    return {
        name: {
            **case,
            **({"resume": str(folder / case["resume"])} if "resume" in case else {}),
            "args": {
                **COMMON,
                **case.get("args", {}),
                "output_dir": str(folder / name),
                "per_device_train_batch_size": batch_size,
                "per_device_eval_batch_size": batch_size,
            },
        }
        for name, case in cases.items()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    place = tmp_path_factory.mktemp("one")
    return launch(place, settings(place, CASES, batch_size=8), "plain")


@pytest.fixture(scope="module")
def two(folder: Path) -> Reports:
    return launch(folder, settings(folder, {**CASES, **ONLY_IN_TWO}, batch_size=4), "torchrun")


def numbers(report: dict[str, Any]) -> list[dict[str, float]]:
    entries = [*report["history"], report["final"], {"train_loss": report["loss"], "flos": report["flos"]}]
    return [{key: value for key, value in each.items() if not key.endswith(IGNORED)} for each in entries]


def assert_same_numbers(received: dict[str, Any], expected: dict[str, Any]) -> None:
    assert len(received["history"]) == len(expected["history"])
    for ours, theirs in zip(numbers(received), numbers(expected), strict=True):
        assert list(ours) == list(theirs)
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5)


@pytest.mark.feature(40, 79, 119)
@pytest.mark.parametrize("case", CASES)
def test_training_in_two_processes_equals_one_with_the_same_effective_batch(
    one: Reports, two: Reports, case: str
) -> None:
    [alone], [first, second] = one[case], two[case]
    assert (alone["world_size"], first["world_size"]) == (1, 2)
    assert_same_numbers(first, alone)
    assert numbers(first) == numbers(second)
    assert first["weights"] == second["weights"] == pytest.approx(alone["weights"], rel=1e-6)
    assert first["tokens"] == alone["tokens"]


@pytest.mark.feature(119)
@pytest.mark.parametrize("case", ["plain", "stream"])
def test_evaluation_in_two_processes_sees_every_sample_once_and_in_order(one: Reports, two: Reports, case: str) -> None:
    for report in two[case]:
        assert report["final"]["eval_rows"] == report["predictions"] == 21
        assert report["final"]["eval_digest"] == pytest.approx(one[case][0]["final"]["eval_digest"], rel=1e-5)


@pytest.mark.feature(120)
def test_accelerate_launch_gives_the_same_numbers_as_torchrun(tmp_path: Path, two: Reports) -> None:
    launched = launch(tmp_path, settings(tmp_path, {"plain": CASES["plain"]}, batch_size=4), "accelerate")
    assert numbers(launched["plain"][0]) == numbers(two["plain"][0])
    assert launched["plain"][0]["distribution"] == "DistributedType.MULTI_CPU"


@pytest.mark.parametrize(
    ("first", "second"), [("whole", "resumed"), ("whole_epochs", "resumed_at_the_end_of_an_epoch")]
)
def test_a_run_of_two_processes_resumes_exactly_with_dropout(two: Reports, first: str, second: str) -> None:
    for whole, resumed in zip(two[first], two[second], strict=True):
        assert numbers(resumed)[:-1] == numbers(whole)[:-1]
        assert resumed["loss"] == pytest.approx(whole["loss"])
        assert resumed["weights"] == whole["weights"]


@pytest.mark.feature(119)
def test_only_the_main_process_writes_and_keeps_the_streams_of_both(folder: Path, two: Reports) -> None:
    assert two["whole"][0]["saved"] == two["whole"][1]["saved"] == [5, 8]
    checkpoint = folder / "whole" / "checkpoint-5"
    files = {path.name for path in checkpoint.iterdir()}
    assert {"rng_state_0.pth", "rng_state_1.pth", "model.safetensors", "optimizer.pt", "run_state.json"} <= files
    assert sorted(path.name for path in (folder / "whole").iterdir()) == ["checkpoint-5", "checkpoint-8", "final"]
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    assert state["is_world_process_zero"] is True


@pytest.mark.feature(61)
def test_the_main_process_goes_first_where_it_is_asked_to(folder: Path, two: Reports) -> None:
    assert two["plain"]
    lines = (folder / "plain.order").read_text().splitlines()
    assert lines == ["0 begins", "0 ends", "1 begins", "1 ends"]


@pytest.mark.feature(29)
def test_the_log_level_is_that_of_the_main_process_or_of_the_replicas(two: Reports) -> None:
    assert [report["log_level"] for report in two["log_levels"]] == [logging.INFO, logging.ERROR]


def test_one_process_goes_on_from_the_checkpoint_of_two_at_the_same_sample(tmp_path: Path, two: Reports) -> None:
    assert two["whole"]
    checkpoint = Path(two["whole"][0]["output_dir"], "checkpoint-5")
    case = settings(tmp_path, {"alone": {"args": EVERY_FIVE, "resume": str(checkpoint)}}, batch_size=4)["alone"]
    trainer = build(case)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert [each["step"] for each in trainer.state.log_history if "loss" in each] == list(range(1, 12))
    assert trainer.state.epoch == 1.0


def test_the_evaluation_loss_of_an_overridden_compute_loss_counts_every_sample_once(
    tmp_path: Path, two: Reports
) -> None:
    """Nine samples: four and four, then one, which makes the batches of one process with a batch of four."""
    alone = build(settings(tmp_path, {"own_loss": OWN_LOSS}, batch_size=4)["own_loss"]).evaluate()
    assert [each["final"]["eval_loss"] for each in two["own_loss"]] == pytest.approx([alone["eval_loss"]] * 2)


@pytest.mark.feature(67)
def test_streams_that_hold_unequally_much_end_together(two: Reports) -> None:
    """One process has ten batches a pass, the other six: both make six updates, then go on with the next pass."""
    for report in two["uneven_streams"]:
        assert report["steps"] == 9
        assert [each["step"] for each in report["history"] if "loss" in each] == list(range(1, 10))


@pytest.mark.feature(54)
def test_grouping_by_length_trains_alike_in_both_processes(two: Reports) -> None:
    first, second = two["grouped_by_length"]
    assert first["steps"] == 8
    assert numbers(first) == numbers(second)


def test_two_processes_draw_the_same_order_by_length_whatever_was_drawn_before(tmp_path: Path) -> None:
    class TwoProcesses:
        def __init__(self, trainer: Any) -> None:
            self.processing_class = None
            self.run = trainer.run
            self.run.args._n_gpu, self.run.args.distributed_state = 1, _State(2)

    orders = []
    for draws in (0, 3):
        case = settings(tmp_path, {"ragged": ONLY_IN_TWO["grouped_by_length"]}, batch_size=4)["ragged"]
        trainer = build(case)
        sampler = train_sampler(TwoProcesses(trainer), trainer.train_dataset)  # type: ignore[arg-type]
        torch.rand(draws)
        assert sampler is not None
        sampler.set_epoch(1)  # type: ignore[attr-defined]
        orders.append(list(sampler))
        sampler.set_epoch(2)  # type: ignore[attr-defined]
        assert list(sampler) != orders[-1]
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == list(range(64))


class _State:
    """What the arguments ask of accelerate's state."""

    def __init__(self, processes: int) -> None:
        self.num_processes, self.process_index, self.local_process_index = processes, 0, 0


SHARDED: dict[str, dict[str, Any]] = {
    "whole": {"args": {**EVERY_FIVE, "load_best_model_at_end": False}},
    "resumed": {"args": EVERY_FIVE, "resume": "whole/checkpoint-5"},
    "best": {"args": {"save_strategy": "epoch", "load_best_model_at_end": True}},
    "evaluated": {"args": {"eval_on_start": True}},
    "bf16": {"args": {"bf16": True, "num_train_epochs": 1}},
    "adapters": {"args": {**EVERY_FIVE, "load_best_model_at_end": False}, "adapters": True},
    "adapters_resumed": {"args": EVERY_FIVE, "adapters": True, "resume": "adapters/checkpoint-5"},
}
FSDP = {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["BertLayer"]}}


def sharded(folder: Path, cases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return settings(folder, {name: {**case, "args": {**case["args"], **FSDP}} for name, case in cases.items()}, 4)


@pytest.mark.feature(51, 123)
def test_a_model_sharded_over_two_processes_trains_saves_and_resumes_like_a_whole_one(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    alone = launch(tmp_path / "one", settings(tmp_path / "one", SHARDED, batch_size=8), "plain")
    both = launch(tmp_path, sharded(tmp_path, SHARDED), "torchrun")
    for name in ("whole", "resumed", "best", "evaluated", "adapters", "adapters_resumed"):
        for report in both[name]:
            assert report["distribution"] == "DistributedType.FSDP"
            assert report["is_sharded"] is True
            assert_same_numbers(report, alone[name][0])
    held = [report["own_parameters"] for report in both["whole"]]
    assert max(held) < 0.6 * alone["whole"][0]["own_parameters"]
    assert [round(each["loss"], 2) for each in both["bf16"][0]["history"] if "loss" in each] == [
        round(each["loss"], 2) for each in alone["bf16"][0]["history"] if "loss" in each
    ]
    whole, saved = (place / "whole" / "final" for place in (tmp_path / "one", tmp_path))
    expected = safetensors.torch.load_file(whole / "model.safetensors")
    for name, tensor in safetensors.torch.load_file(saved / "model.safetensors").items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)
    BertForSequenceClassification.from_pretrained(saved)
    assert not list((tmp_path / "adapters").rglob("model.safetensors"))
    for place in ("final", "checkpoint-5"):
        expected = safetensors.torch.load_file(tmp_path / "one" / "adapters" / place / "adapter_model.safetensors")
        received = safetensors.torch.load_file(tmp_path / "adapters" / place / "adapter_model.safetensors")
        torch.testing.assert_close(received, expected, rtol=1e-4, atol=1e-5)


ZERO_2 = {
    "zero_optimization": {"stage": 2},
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_allow_untested_optimizer": True,
}


@pytest.mark.feature(51)
@pytest.mark.distributed
def test_deepspeed_over_two_processes_trains_and_resumes_like_one_process(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    (tmp_path / "one").mkdir()
    cases = {name: SHARDED[name] for name in ("whole", "resumed")}
    options = {"deepspeed": ZERO_2, "optim": "adamw_torch"}
    zero = {name: {**case, "args": {**case["args"], **options}} for name, case in cases.items()}
    alone = launch(tmp_path / "one", settings(tmp_path / "one", cases, batch_size=8), "plain")
    both = launch(tmp_path, settings(tmp_path, zero, batch_size=4), "torchrun", DS_ACCELERATOR="cpu")
    for name in cases:
        for report in both[name]:
            assert report["distribution"] == "DistributedType.DEEPSPEED"
            assert_same_numbers(report, alone[name][0])
