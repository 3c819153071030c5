"""The studies that are scripts: two loops written by hand, and a complete script; each runs as a user would run it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ViTForImageClassification, set_seed

pytest.importorskip("sklearn")

from studies import accelerate_loop, complete_script, manual_loop
from studies.digits import load_data
from tests.support import warm
from tests.support.programs import surroundings

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[1]
METRICS = {"test_accuracy", "test_loss", "test_runtime", "test_samples_per_second", "test_steps_per_second"}


def run(*command: str, folder: Path) -> str:
    """Run a command in `folder` and return what it prints."""
    done = warm.run(*command, folder=folder, environment=surroundings())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.feature(136, "P15")
def test_the_loop_by_hand_gives_the_losses_of_the_trainers_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    dataset = load_data()["train"].select(range(60))
    by_hand = manual_loop.losses_by_hand(dataset, epochs=3)
    ours = manual_loop.losses_of_trainer(dataset)
    assert len(by_hand) == 3 * 8  # 60 samples are 7 batches of 8 and a short one.
    assert ours == pytest.approx(by_hand, rel=1e-6)
    assert len(set(by_hand)) == len(by_hand)
    assert manual_loop.main(["--epochs", "1", "--samples", "20"]) == 0
    assert "3 updates; largest difference" in capsys.readouterr().out


@pytest.mark.feature(136)
@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": 6e-5},
        {"weight_decay": 0.1},
        {"lr_scheduler_type": "constant"},
        {"max_grad_norm": 0.0},
        {"seed": 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_any_other_argument_gives_other_losses_than_the_loop_by_hand(changes: dict[str, Any]) -> None:
    dataset = load_data()["train"].select(range(40))
    by_hand = manual_loop.losses_by_hand(dataset, epochs=3)
    assert manual_loop.losses_of_trainer(dataset, **changes) != pytest.approx(by_hand, rel=1e-6)


@pytest.mark.feature(136)
def test_the_number_of_updates_by_default_is_three_times_the_batches_of_eight(tmp_path: Path) -> None:
    from hpsearch.training.data import TrainingLength
    from tests.support.line_trainer import line_trainer
    from tests.support.models import line_data

    trainer = line_trainer(tmp_path, {"train_dataset": line_data(1) * 3668}, num_train_epochs=3)
    assert TrainingLength.of(trainer.args, trainer.get_train_dataloader()).max_steps == 1377


@pytest.mark.feature(122)
def test_the_loop_with_accelerate_gives_the_losses_of_the_trainer() -> None:
    dataset = load_data()["train"].select(range(60))
    with_accelerate = accelerate_loop.losses_with_accelerate(dataset, epochs=2)
    arguments = {"learning_rate": accelerate_loop.LEARNING_RATE, "num_train_epochs": 2}
    assert len(with_accelerate) == 16
    assert manual_loop.losses_of_trainer(dataset, **arguments) == pytest.approx(with_accelerate, rel=1e-6)


@pytest.mark.feature(122)
def test_two_processes_of_accelerate_launch_give_the_losses_of_the_trainer(tmp_path: Path) -> None:
    configuration = ROOT / "studies" / "accelerate" / "cpu_two_processes.yaml"
    launch = ("-m", "accelerate.commands.launch", "--config_file", str(configuration), "--main_process_port", "0")
    output = run(*launch, "-m", "studies.accelerate_loop", "--epochs", "1", "--samples", "48", folder=tmp_path)
    assert "2 process(es)" in output
    assert "3 updates; largest difference" in output


@pytest.mark.feature(136)
def test_a_loop_by_hand_that_resumes_gives_the_losses_of_one_that_does_not(tmp_path: Path) -> None:
    dataset = load_data()["train"].select(range(40))
    whole = manual_loop.losses_by_hand(dataset, epochs=3)
    set_seed(manual_loop.SEED)
    first = manual_loop.Loop(manual_loop.model_init(), dataset, 3)
    losses = first.train_epoch()
    torch.save(first.state(), tmp_path / "loop.pt")
    torch.manual_seed(0)
    second = manual_loop.Loop(manual_loop.model_init(), dataset, 3)
    second.load(torch.load(tmp_path / "loop.pt", weights_only=True))
    assert [*losses, *second.train_epoch(), *second.train_epoch()] == whole
    assert second.epoch == 3


@pytest.mark.feature(122)
def test_a_loop_with_accelerate_that_resumes_gives_the_losses_of_one_that_does_not(tmp_path: Path) -> None:
    dataset = load_data()["train"].select(range(40))
    whole = accelerate_loop.losses_with_accelerate(dataset, epochs=3)
    first = accelerate_loop.AcceleratedLoop(accelerate_loop.model_init, dataset, 3)
    losses = first.train_epoch()
    first.accelerator.save_state(str(tmp_path / "saved"))
    second = accelerate_loop.AcceleratedLoop(accelerate_loop.model_init, dataset, 3)
    second.load(tmp_path / "saved")
    assert [*losses, *second.train_epoch(), *second.train_epoch()] == whole
    assert second.epoch == 3


@pytest.mark.feature(138)
def test_the_complete_script_runs_through_with_its_debug_flag(tmp_path: Path) -> None:
    output = run("-m", "studies.complete_script", "--output_dir", "out", "--debug_flag", folder=tmp_path)
    assert re.findall(r"\*\*\*\*\* (\w+) metrics", output) == ["train", "eval", "test"]
    assert "the model that was saved predicts the same: True" in output
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"model.safetensors", "config.json", "trainer_state.json", "all_results.json"} <= written
    assert len([name for name in written if name.startswith("checkpoint-")]) == 1
    everything = json.loads((tmp_path / "out" / "all_results.json").read_text())
    assert METRICS | {"train_loss", "eval_accuracy"} <= set(everything)
    assert json.loads((tmp_path / "out" / "trainer_state.json").read_text())["global_step"] == 6


@pytest.mark.feature(138)
def test_the_complete_script_learns_the_digits_and_saves_what_it_learned() -> None:
    script, args = complete_script.parse(["--output_dir", "out", "--num_train_epochs", "4", "--use_cpu"])
    metrics = complete_script.run(script, args)
    assert metrics["test_accuracy"] > 0.8
    model = ViTForImageClassification.from_pretrained("out")
    test = load_data()["test"]
    with torch.no_grad():
        found = model(pixel_values=test["pixel_values"][:]).logits.argmax(-1)
    accuracy = (found == test["labels"][:]).float().mean().item()
    assert accuracy == pytest.approx(metrics["test_accuracy"], abs=1e-6)


def test_the_complete_script_takes_its_arguments_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "arguments.json"
    path.write_text(json.dumps({"output_dir": "from_file", "learning_rate": 1e-4, "debug_flag": True}))
    script, args = complete_script.parse([str(path)])
    assert script.debug_flag
    assert (args.output_dir, args.learning_rate, args.max_steps) == ("from_file", 1e-4, 6)
    assert args.metric_for_best_model == "accuracy"


def test_the_debug_flag_changes_the_length_and_nothing_that_was_chosen() -> None:
    words = ["--output_dir", "out", "--learning_rate", "1e-4", "--lr_scheduler_type", "cosine"]
    (_, whole), (_, small) = complete_script.parse(words), complete_script.parse([*words, "--debug_flag"])
    different = {name for name, value in whole.to_dict().items() if value != small.to_dict()[name]}
    assert different == {"max_steps", "eval_strategy", "eval_steps", "save_strategy", "save_steps"}
    assert small.learning_rate == 1e-4


def test_a_resumed_run_of_the_complete_script_goes_on_from_its_checkpoint() -> None:
    words = ["--output_dir", "out", "--debug_flag", "--use_cpu"]
    first = complete_script.run(*complete_script.parse(words))
    Path("out/model.safetensors").unlink()
    again = complete_script.run(*complete_script.parse([*words, "--resume_from_checkpoint", "out/checkpoint-3"]))
    assert again["test_loss"] == pytest.approx(first["test_loss"], rel=1e-6)
