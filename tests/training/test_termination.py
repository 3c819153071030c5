"""`enable_jit_checkpoint`: a process that is asked to end writes a whole checkpoint first; training goes on from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from hpsearch import ArgumentError, Categorical, Trainer, TrainingArguments
from tests.support.models import Line, bert_classifier, classification_data, weights_of
from tests.support.small_trainer import small_trainer
from tests.support.small_training import make_trainer

ROOT = Path(__file__).parents[2]
LISTENS = {"enable_jit_checkpoint": True}
STEPS = 12


@pytest.fixture(autouse=True)
def own_handler() -> Iterator[list[int]]:
    """A handler of the program's own, so that a signal that nobody catches does not end the tests."""
    received: list[int] = []
    earlier = signal.signal(signal.SIGTERM, lambda signum, frame: received.append(signum))
    yield received
    signal.signal(signal.SIGTERM, earlier)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class Terminates(TrainerCallback):
    """Sends SIGTERM to this process at an event of a step; counts the events after it."""

    def __init__(self, step: int, event: str = "on_step_begin") -> None:
        self._step, self.after = step, 0
        setattr(self, event, self._send)

    def _send(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._step:
            terminate()
        self.after += state.global_step > self._step


class Handlers(TrainerCallback):
    """Remembers which handler SIGTERM has at every step."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append(signal.getsignal(signal.SIGTERM))


class Slowly(TrainerCallback):
    """Leaves the time for a signal between two steps, and tells when there is something to save."""

    def __init__(self, ready: Path) -> None:
        self._ready = ready

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(0.1)
        if state.global_step == 2:
            self._ready.touch()


def classifier_trainer(folder: Path, *callbacks: Any, **changes: Any) -> Any:
    """A classifier with dropout, shuffled data and accumulation, for `STEPS` updates in three epochs."""
    torch.manual_seed(0)
    values: dict[str, Any] = {
        "model": bert_classifier(hidden=8, dropout=0.2),
        "train_dataset": classification_data(32),
        "eval_dataset": classification_data(8, seed=1),
        "callbacks": list(callbacks),
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 3,
        "learning_rate": 1e-3,
        "eval_strategy": "steps",
        "eval_steps": 3,
        **changes,
    }
    return make_trainer(folder, **values)


def timeless(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in entry.items() if not name.endswith(("runtime", "per_second"))}
        for entry in history
        if "train_runtime" not in entry
    ]


def assert_same_course(resumed: Any, whole: Any) -> None:
    assert timeless(resumed.state.log_history) == timeless(whole.state.log_history)
    expected = weights_of(whole.model)
    for name, weights in weights_of(resumed.model).items():
        assert torch.equal(weights, expected[name]), name


def checkpoints(folder: Path) -> list[int]:
    return sorted(int(each.name.split("-")[1]) for each in folder.glob("checkpoint-*"))


WHOLE = {
    "config.json",
    "model.safetensors",
    "optimizer.pt",
    "rng_state.pth",
    "run_state.json",
    "scheduler.pt",
    "trainer_state.json",
    "training_args.bin",
}
PROGRAM = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.training.test_termination import LISTENS, Slowly, classifier_trainer
folder, ready = map(Path, sys.argv[1:])
trainer = classifier_trainer(folder, Slowly(ready), **LISTENS)
output = trainer.train()
print("ended after", output.global_step)
"""


@pytest.mark.process
def test_a_program_that_is_terminated_saves_ends_by_itself_and_is_resumed_as_if_nothing_had_happened(
    tmp_path: Path,
) -> None:
    ready = tmp_path / "ready"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "parts"), str(ready)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not ready.exists() and program.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        program.send_signal(signal.SIGTERM)
        output, errors = program.communicate(timeout=60)
    finally:
        program.kill()
    assert program.returncode == 0, errors
    [step] = checkpoints(tmp_path / "parts")
    assert 2 <= step < STEPS
    assert output.strip().splitlines()[-1] == f"ended after {step}"
    assert {each.name for each in (tmp_path / "parts" / f"checkpoint-{step}").iterdir()} == WHOLE

    resumed = classifier_trainer(tmp_path / "parts")
    assert resumed.train(resume_from_checkpoint=True).global_step == STEPS
    whole = classifier_trainer(tmp_path / "whole")
    whole.train()
    assert_same_course(resumed, whole)


@pytest.mark.parametrize("event", ["on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_step_end"])
def test_the_update_that_is_under_way_is_finished_first(tmp_path: Path, event: str) -> None:
    sender = Terminates(5, event)
    trainer = classifier_trainer(tmp_path, sender, **LISTENS)
    output = trainer.train()
    # The listener hears of the end of a step before the sender does.
    last = 6
    assert output.global_step == last
    assert checkpoints(tmp_path) == [last]
    resumed, whole = classifier_trainer(tmp_path), classifier_trainer(tmp_path / "whole")
    resumed.train(resume_from_checkpoint=True)
    whole.train()
    assert_same_course(resumed, whole)


@pytest.mark.parametrize("step", [3, 4])
@pytest.mark.parametrize("strategy", ["epoch", "steps"])
def test_with_evaluations_and_checkpoints_of_its_own_it_is_resumed_exactly_too(
    tmp_path: Path, strategy: str, step: int
) -> None:
    """After step 4 an epoch ends; step 3 is inside it, where nothing is evaluated for lack of time."""
    common: dict[str, Any] = {"eval_strategy": strategy, "save_strategy": strategy, "save_steps": 3}
    classifier_trainer(tmp_path, Terminates(step - 1), **common, **LISTENS).train()
    assert checkpoints(tmp_path)[-1] == step
    resumed, whole = classifier_trainer(tmp_path, **common), classifier_trainer(tmp_path / "whole", **common)
    resumed.train(resume_from_checkpoint=True)
    whole.train()
    assert_same_course(resumed, whole)


def test_the_limit_of_checkpoints_holds_for_the_last_one_too(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1}
    classifier_trainer(tmp_path, Terminates(6), **changes, **LISTENS).train()
    assert checkpoints(tmp_path) == [7]


def test_the_signal_goes_to_the_training_while_it_lasts_and_to_the_program_again_after_it(
    tmp_path: Path, own_handler: list[int]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    look = Handlers()
    trainer = make_trainer(tmp_path, callbacks=[Terminates(1), look], **LISTENS)
    trainer.train()
    assert all(each != before for each in look.seen)
    assert len(look.seen) == 2
    assert own_handler == []
    assert signal.getsignal(signal.SIGTERM) is before
    terminate()
    assert own_handler == [signal.SIGTERM]


@pytest.mark.parametrize("earlier", [signal.SIG_DFL, signal.SIG_IGN], ids=["default", "ignored"])
def test_the_systems_own_way_is_put_back_too(tmp_path: Path, earlier: Any) -> None:
    signal.signal(signal.SIGTERM, earlier)
    make_trainer(tmp_path, **LISTENS).train()
    assert signal.getsignal(signal.SIGTERM) == earlier


class Fails(TrainerCallback):
    def __init__(self, event: str) -> None:
        setattr(self, event, self._fail)

    def _fail(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("failed")


@pytest.mark.parametrize("event", ["on_train_begin", "on_step_end", "on_evaluate", "on_train_end"])
def test_a_training_that_fails_gives_the_signal_back(tmp_path: Path, event: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    trainer = make_trainer(tmp_path, callbacks=[Fails(event)], eval_strategy="epoch", **LISTENS)
    with pytest.raises(RuntimeError, match="failed"):
        trainer.train()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_training_that_cannot_begin_never_takes_the_signal(tmp_path: Path) -> None:
    class FailsWhilePreparing(Trainer):
        def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
            raise RuntimeError("failed")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError, match="failed"):
        make_trainer(tmp_path, FailsWhilePreparing, **LISTENS).train()
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_next_training_of_the_same_trainer_is_not_stopped_by_a_signal_to_the_last(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, callbacks=[Terminates(0)], **LISTENS)
    assert trainer.train().global_step == 1
    trainer.callbacks.clear()
    assert trainer.train().global_step == 3


def test_another_thread_than_the_main_one_is_refused_because_signals_do_not_come_there(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    trainer = make_trainer(tmp_path, **LISTENS)
    caught: list[BaseException] = []

    def train() -> None:
        try:
            trainer.train()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    [error] = caught
    assert isinstance(error, ArgumentError)
    assert "enable_jit_checkpoint=True" in str(error)
    assert "main thread" in str(error)
    assert signal.getsignal(signal.SIGTERM) is before
    assert not trainer.is_in_train
    assert make_trainer(tmp_path).args.enable_jit_checkpoint is False


def test_without_the_argument_the_signal_stays_with_the_program(tmp_path: Path, own_handler: list[int]) -> None:
    look = Handlers()
    before = signal.getsignal(signal.SIGTERM)
    assert make_trainer(tmp_path, callbacks=[Terminates(1), look]).train().global_step == 3
    assert look.seen == [before] * 3
    assert own_handler == [signal.SIGTERM]
    assert checkpoints(tmp_path) == []


def test_the_trials_of_a_search_leave_the_signal_to_the_search(tmp_path: Path) -> None:
    look = Handlers()
    before = signal.getsignal(signal.SIGTERM)
    trainer = small_trainer(tmp_path, look, **LISTENS)
    best = trainer.hyperparameter_search({"learning_rate": Categorical([1e-2, 1e-3])}, n_trials=2, progress=False)
    assert best.objective is not None
    assert len(look.seen) == 2 * 2 * 4
    assert len(set(look.seen)) == 1
    assert look.seen[0].__module__ == "hpsearch.system.interruption"
    assert signal.getsignal(signal.SIGTERM) is before
    assert trainer.args.enable_jit_checkpoint is True


def test_a_trial_trained_alone_listens(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model_init=Line, callbacks=[Terminates(1)], **LISTENS)
    assert trainer.train(trial={"learning_rate": 0.01}).global_step == 2
    assert checkpoints(tmp_path) == [2]
    assert TrainingArguments("out", use_cpu=True).enable_jit_checkpoint is False
