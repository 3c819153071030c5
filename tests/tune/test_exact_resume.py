"""A trial resumes with the batches that it would have had, wherever its sampler draws their order from."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.utils.data import DataLoader, IterableDataset, Sampler

from hpsearch import BestRun, SearchInterrupted, TrialState
from hpsearch.any_trainer.exact_resume import generator_states, restore_generators, why_inexact
from hpsearch.cli.main import main
from hpsearch.search.decisions.ladder import LADDER_OF_0_8_0
from tests.support.interrupting import InterruptsOnce
from tests.support.searching import Events
from tests.support.small_trainer import TwoLayers, points, transformers_trainer
from tests.support.small_tune import curves, make_trainer, search

Make = Callable[[Any], transformers.Trainer]
SIZE = 16


class Shuffles(Sampler[int]):
    """Shuffles anew in each epoch, with what it is given."""

    def __init__(self, generator: Any = None) -> None:
        self.generator = generator

    def __len__(self) -> int:
        return SIZE


class ByTorch(Shuffles):
    """With a generator, as the samplers of TRL."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(SIZE, generator=self.generator).tolist())


class ByNumpy(Shuffles):
    def __iter__(self) -> Iterator[int]:
        return iter(self.generator.permutation(SIZE).tolist())


class ByPython(Shuffles):
    def __iter__(self) -> Iterator[int]:
        return iter(self.generator.sample(range(SIZE), SIZE))


class ByAnother(Shuffles):
    """With samplers of its own."""

    def __iter__(self) -> Iterator[int]:
        first, second = self.generator
        return iter([*list(first)[: SIZE // 2], *list(second)[: SIZE // 2]])


class WhenNeeded(Shuffles):
    """With a generator that is made when the sampler is first iterated."""

    def __init__(self, kind: type[Shuffles], make: Callable[[], Any]) -> None:
        super().__init__()
        self._kind, self._make = kind, make

    def __iter__(self) -> Iterator[int]:
        self.generator = self._make() if self.generator is None else self.generator
        return iter(self._kind(self.generator))


class ByTheProcess(Shuffles):
    """With the random numbers of the process, as transformers' `LengthGroupedSampler`."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(SIZE).tolist())


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


SAMPLERS: dict[str, Callable[[], Shuffles]] = {
    "torch": lambda: ByTorch(seeded(1)),
    "torch, when needed": lambda: WhenNeeded(ByTorch, lambda: seeded(1)),
    "numpy": lambda: ByNumpy(np.random.default_rng(1)),
    "numpy, when needed": lambda: WhenNeeded(ByNumpy, lambda: np.random.default_rng(1)),
    "python": lambda: ByPython(random.Random(1)),
    "python, when needed": lambda: WhenNeeded(ByPython, lambda: random.Random(1)),
    "samplers": lambda: ByAnother([ByTorch(seeded(1)), ByTorch(seeded(2))]),
}


def maker(sampler: Callable[[], Shuffles], **changes: Any) -> Make:
    """Return a function that makes trainers with a sampler, evaluated after each of twelve steps in three epochs."""

    class Ordered(transformers.Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return sampler()

    arguments = {"num_train_epochs": 3, "eval_strategy": "steps", "eval_steps": 1, **changes}

    def make(trial: Any) -> transformers.Trainer:
        trainer = transformers_trainer("made", TwoLayers(), kind=Ordered, **arguments, **trial.params)
        if "save_steps" in changes:
            trainer.add_callback(InterruptsOnce(at=7))
        return trainer

    return make


def assert_resumed_exactly(make: Make) -> None:
    """Search with pauses, and train the trials that have paused and ended again, alone."""
    records = search(make, n_trials=4, pruner=LADDER_OF_0_8_0).run_summary.records
    resumed = [each for each in records if each.state is TrialState.COMPLETE and len(each.spans) > 1]
    assert resumed, "no trial has paused and trained to its end"
    alone = search(make, n_trials=len(resumed), output_dir="whole", start_with=[each.params for each in resumed])
    assert [[report.value for report in each.reports] for each in resumed] == curves(alone)


@pytest.mark.parametrize("name", SAMPLERS)
def test_restored_generators_draw_the_same_orders(name: str) -> None:
    loader, fresh = (DataLoader(range(SIZE), sampler=SAMPLERS[name](), batch_size=4) for _ in range(2))
    list(loader)
    file = io.BytesIO()
    torch.save(generator_states(loader), file)
    expected = [[each.tolist() for each in loader] for _ in range(2)]
    file.seek(0)
    assert restore_generators(fresh, torch.load(file, weights_only=True))
    assert [[each.tolist() for each in fresh] for _ in range(2)] == expected
    assert expected[0] != expected[1]


def test_generators_of_another_kind_of_loader_are_not_restored() -> None:
    states = generator_states(DataLoader(range(SIZE), sampler=SAMPLERS["torch"]()))
    assert not restore_generators(DataLoader(range(SIZE)), states)


@pytest.mark.parametrize("sampler", [SAMPLERS["torch"], ByTheProcess], ids=["generator", "process"])
def test_a_trial_that_paused_in_the_middle_of_an_epoch_resumes_with_the_same_batches(sampler: Any) -> None:
    assert_resumed_exactly(maker(sampler))


@pytest.mark.fault
def test_a_trial_that_paused_at_the_end_of_an_epoch_resumes_with_the_same_batches() -> None:
    assert_resumed_exactly(maker(SAMPLERS["torch"], eval_strategy="epoch"))


def interrupted(make: Make, damage: Callable[[Path], None] = lambda checkpoint: None) -> BestRun:
    with pytest.raises(SearchInterrupted):
        search(make, n_trials=1)
    newest = max(Path("out/study/run-0").glob("checkpoint-*"), key=lambda each: int(each.name.split("-")[1]))
    damage(newest)
    return search(make, n_trials=1)


def test_an_interrupted_trial_resumes_with_the_same_batches() -> None:
    make = maker(SAMPLERS["torch"], save_strategy="steps", save_steps=1)
    resumed = interrupted(make)
    assert curves(resumed) == curves(search(make, n_trials=1, output_dir="whole"))
    assert len(resumed.run_summary.records[0].spans) == 2
    assert Path(str(resumed.checkpoint), "exact_resume_0.pth").is_file()
    assert main(["best", "out/study", "--export", "model"]) == 0
    assert not list(Path("model").glob("exact_resume*")), "only training needs it"


@pytest.mark.fault
def test_a_checkpoint_of_0_8_0_resumes_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    make = maker(SAMPLERS["torch"], save_strategy="steps", save_steps=1)
    best = interrupted(make, lambda checkpoint: (checkpoint / "exact_resume_0.pth").unlink())
    [record] = best.run_summary.records
    assert record.state is TrialState.COMPLETE
    [warning] = [each for each in caplog.messages if "samplers" in each]
    assert "checkpoint-7 does not hold the state of this trainer's samplers" in warning
    assert curves(best) != curves(search(make, n_trials=1, output_dir="whole")), "the warning is needed"


@pytest.mark.fault
def test_an_ordinary_checkpoint_of_0_8_0_resumes_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def make(trial: Any) -> transformers.Trainer:
        trainer = make_trainer(trial)
        trainer.args.set_save(strategy="steps", steps=1)
        trainer.add_callback(InterruptsOnce(at=7))
        return trainer

    best = interrupted(make, lambda checkpoint: (checkpoint / "exact_resume_0.pth").unlink())
    assert not [each for each in caplog.messages if "samplers" in each]
    assert curves(best) == curves(search(n_trials=1, output_dir="whole"))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(points(SIZE, seed=0))


def without_skipping(trainer: transformers.Trainer) -> None:
    trainer.args.ignore_data_skip = True


def with_vllm(trainer: transformers.Trainer) -> None:
    trainer.args.use_vllm = True  # an argument of TRL's


def with_a_stream(trainer: transformers.Trainer) -> None:
    trainer.train_dataset = Stream()
    trainer.args.max_steps = 12


def with_persistent_workers(trainer: transformers.Trainer) -> None:
    trainer.args.dataloader_num_workers, trainer.args.dataloader_persistent_workers = 1, True
    trainer._get_eval_sampler = lambda dataset: ByTorch(seeded(1))


def with_several_adapters(trainer: transformers.Trainer) -> None:
    trainer.model.peft_config = {"default": None, "other": None}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda trainer: None, "None"),
        (without_skipping, "with ignore_data_skip=True, transformers resumes at the beginning of an epoch"),
        (with_vllm, "use_vllm=True draws completions from random streams that no checkpoint holds"),
        (with_a_stream, "train_dataset is a stream without a length"),
        (with_several_adapters, "transformers cannot resume a model with several adapters of PEFT"),
        (with_persistent_workers, "with dataloader_persistent_workers=True, the order of an evaluation depends"),
    ],
)
def test_why_a_trainer_cannot_resume_exactly(change: Callable[[Any], None], reason: str) -> None:
    trainer = transformers_trainer("made", TwoLayers(), eval_strategy="steps")
    change(trainer)
    assert str(why_inexact(trainer)).startswith(reason)


def test_trials_that_cannot_resume_exactly_do_not_pause() -> None:
    def make(trial: Any) -> transformers.Trainer:
        arguments = {"train_dataset": Stream(), "max_steps": 6, "eval_strategy": "steps", "eval_steps": 1}
        return transformers_trainer("made", TwoLayers(), **arguments, **trial.params)

    events = Events()
    best = search(make, n_trials=4, pruner=LADDER_OF_0_8_0, progress=events)
    assert all(len(each.spans) == 1 for each in best.run_summary.records)
    [note] = [each for each in events.notes if each.startswith("pruner ")]
    assert note.startswith("pruner MedianPruner in place of rungs: trials do not pause, as train_dataset is a stream")
