"""Searches that `torchrun` starts in two processes; each process reports what it has seen.

torchrun --nproc_per_node 2 -m tests.support.distributed_search FOLDER SCENARIO [SCENARIO ...]
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import torch
from torch import distributed
from transformers import TrainerCallback

from hpsearch import (
    BestRun,
    Categorical,
    Float,
    HpsearchError,
    Int,
    NoCompletedTrialError,
    SearchInterrupted,
    TrialState,
    open_study,
    tune,
)
from hpsearch.search.decisions.ladder import LADDER_OF_0_8_0
from hpsearch.trial import distributed_ranks
from tests.support.models import accuracy, bert_classifier, classification_data
from tests.support.search_processes import wait_until
from tests.support.small_trainer import TwoLayers, points, small_trainer, transformers_trainer

RANK = int(os.environ.get("RANK", "0"))
SPACE = {"learning_rate": Float(1e-3, 1e-1, log=True), "seed": Int(1, 99)}
ENDING = (  # one process fails while the other one is in a collective, so the search ends
    *("fails_0", "fails_1", "init_fails_1", "metrics_fail", "main_is_stuck", "half_begun", "never_built"),
    *("interrupted", "interrupted_replay"),
)


class At(TrainerCallback):
    """Does something after an update of the trial of a number, in one of the processes, or in both (rank None)."""

    def __init__(self, act: Callable[[], None], trial: int, step: int, rank: int | None) -> None:
        self._act, self._where = act, (trial, step, RANK if rank is None else rank)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        number = int(args.run_name.rpartition("-")[2])
        if (number, state.global_step, RANK) == self._where:
            self._act()


class Unreadable(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """A dataset of which no sample can be read, by neither process."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, place: int) -> Any:
        raise OSError("samples cannot be read")


def fail(text: str) -> Callable[[], None]:
    def act() -> None:
        raise RuntimeError(text)

    return act


def interrupt() -> None:
    raise KeyboardInterrupt


def pause_for_a_moment(study: Path) -> None:
    """Pause the search, and unpause it when its trial has left."""
    open_study(study).pause()

    def unpause() -> None:
        wait_until(lambda: open_study(study).records[-1].state is TrialState.INTERRUPTED)
        open_study(study).unpause()

    threading.Thread(target=unpause, daemon=True).start()


def begin_a_collective() -> None:
    distributed.all_reduce(torch.ones(1), async_op=True)


def leave_after(report: Path) -> Callable[[], None]:
    """Return an action that ends this process, without a word to anyone, when the other one has written its report."""

    def act() -> None:
        wait_until(report.exists)
        os._exit(0)

    return act


def init_that_raises(rank: int | None, trial: int) -> Callable[[Any], Any]:
    def model_init(given: Any) -> Any:
        if (RANK, given.number) == (RANK if rank is None else rank, trial):
            raise MemoryError(f"no memory in process {rank}")
        return TwoLayers()

    return model_init


def metrics_that_raise(prediction: Any) -> dict[str, float]:
    metrics_that_raise.calls += 1  # type: ignore[attr-defined]
    if RANK == 0 and metrics_that_raise.calls == 3:  # type: ignore[attr-defined]
        raise ValueError("labels and predictions do not fit")
    return accuracy(prediction)


metrics_that_raise.calls = 0  # type: ignore[attr-defined]


def objective_that_raises(metrics: dict[str, float]) -> float:
    objective_that_raises.calls += 1  # type: ignore[attr-defined]
    if objective_that_raises.calls == 3:  # type: ignore[attr-defined]
        raise ValueError("no such objective")
    return metrics["eval_loss"]


objective_that_raises.calls = 0  # type: ignore[attr-defined]


def suggesting_init(trial: Any) -> Any:
    return TwoLayers(trial.suggest_int("hidden", 2, 9))


def never_built_in_the_second(trial: Any) -> Any:
    if RANK == 1:
        raise RuntimeError("no such layer")
    return TwoLayers()


def reading_in_the_first(trial: Any) -> Any:
    if RANK == 0:
        trial.params["model.width"]
    return TwoLayers()


def bad_space(trial: Any) -> dict[str, Any]:
    return {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1), "lerning_rate": 0.1}


def out_of_memory_once() -> Callable[[Any], Any]:
    calls: list[int] = []

    def model_init(trial: Any) -> Any:
        calls.append(trial.number)
        if calls == [0]:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return TwoLayers()

    return model_init


def scenario(name: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """Arguments of the trainer, of the search, and callbacks."""
    of_trainer: dict[str, Any] = {"per_device_train_batch_size": 2, "save_strategy": "epoch"}
    of_search: dict[str, Any] = {"hp_space": SPACE, "compute_objective": "loss", "n_trials": 3, "pruner": "none"}
    callbacks: list[Any] = []
    if name == "one_process":
        of_trainer["per_device_train_batch_size"] = 4
    elif name == "drawn":
        of_search.update(n_trials=4, sampler="random")
    elif name == "pruned":
        of_search["pruner"] = optuna.pruners.ThresholdPruner(upper=0.0, n_warmup_steps=1)
        of_trainer["num_train_epochs"] = 3
    elif name == "rungs":
        of_search.update(pruner=LADDER_OF_0_8_0, n_trials=9)
        of_trainer.update(num_train_epochs=6, save_strategy="no")
    elif name == "rungs_and_a_budget":
        of_search.update(pruner=LADDER_OF_0_8_0, n_trials=18, max_epochs=6)
        of_trainer.update(num_train_epochs=6, save_strategy="no")
    elif name == "timeout":
        callbacks = [At(lambda: time.sleep(1.5), 0, 3, 0)]
        of_search["trial_timeout"] = 1.0
    elif name == "time_is_set":
        callbacks = [At(lambda: print(open_study(folder / name / "study").set(timeout=0.01)), 1, 2, 0)]
    elif name == "paused_by_hand":
        callbacks = [At(lambda: pause_for_a_moment(folder / name / "study"), 1, 2, 0)]
    elif name == "study_timeout":
        callbacks = [At(lambda: time.sleep(3.0), 1, 3, 1)]
        of_search["timeout"] = 3.0
    elif name in ("fails", "fails_0", "fails_1"):
        callbacks = [At(fail("a bad batch"), 1, 3, None if name == "fails" else int(name[-1]))]
    elif name == "main_is_stuck":
        callbacks = [At(fail("a bad batch"), 1, 3, 1), At(leave_after(folder / f"{name}-1.json"), 1, 3, 0)]
    elif name == "half_begun":
        callbacks = [At(begin_a_collective, 1, 3, 0), At(fail("a bad batch"), 1, 3, None)]
    elif name in ("init_fails", "init_fails_1"):
        of_trainer["model_init"] = init_that_raises(None if name == "init_fails" else 1, 1)
    elif name == "metrics_fail":
        of_trainer["compute_metrics"] = metrics_that_raise
        of_search["preflight"] = False
    elif name == "objective_fails":
        of_search.update(compute_objective=objective_that_raises, direction="minimize", preflight=False)
    elif name == "dataset_fails":
        of_trainer["train_dataset"] = Unreadable()
        of_search.update(max_failures=None, preflight=False)
    elif name == "too_many_failures":
        of_trainer["train_dataset"] = Unreadable()
        of_search.update(max_failures=2, n_trials=9, preflight=False)
    elif name == "model_init_suggests":
        of_trainer["model_init"] = suggesting_init
    elif name == "mistake":
        of_search["hp_space"] = bad_space
    elif name == "never_built":
        of_trainer["model_init"] = never_built_in_the_second
    elif name == "read_in_one":
        of_trainer["model_init"] = reading_in_the_first
        of_search["hp_space"] = {"model.width": Int(4, 8)}
    elif name == "interrupted":
        callbacks = [At(interrupt, 1, 6, 1)]
    elif name == "oom_fallback":
        of_trainer["model_init"] = out_of_memory_once()
        of_search.update(oom_fallback=True, n_trials=1, preflight=False)
    elif name == "sharded":
        of_trainer.update(
            model_init=bert_classifier,
            train_dataset=classification_data(),
            eval_dataset=classification_data(seed=1),
            per_device_train_batch_size=8,
            save_strategy="no",
            fsdp=True,
            fsdp_config={"transformer_layer_cls_to_wrap": ["BertLayer"]},
        )
        of_search.update(hp_space={"learning_rate": SPACE["learning_rate"]}, n_trials=2)
    elif name == "several_objectives":
        of_search["compute_objective"] = ["loss", "accuracy"]
        of_search["hp_space"] = {**SPACE, "optim": Categorical(["adamw_torch", "sgd"])}
    elif name == "held_out":
        of_search["test_dataset"] = points(8, seed=2)
    elif name == "brought_rungs":
        of_search.update(pruner=LADDER_OF_0_8_0, n_trials=6)
        of_trainer.update(num_train_epochs=4, save_strategy="no")
    else:
        assert name in ("healthy", "goes_on", "brought"), name
    return of_trainer, of_search, callbacks


def search(folder: Path, name: str) -> dict[str, Any]:
    of_trainer, of_search, callbacks = scenario(name, folder)
    place = folder / ("interrupted" if name == "goes_on" else name)
    search_for = _search_of_transformers(place, of_trainer) if name.startswith("brought") else None
    if search_for is None:
        search_for = small_trainer(place, *callbacks, **of_trainer).hyperparameter_search
    began = time.monotonic()
    try:
        found = search_for(progress=False, **of_search)
        raised = None
    except (HpsearchError, SearchInterrupted, KeyboardInterrupt) as error:
        found = getattr(error, "best_run", None)
        if isinstance(error, NoCompletedTrialError):
            found = BestRun(None, None, {}, error.run_summary)
        raised = f"{type(error).__name__}: {error}"
    report: dict[str, Any] = {"raised": raised, "seconds": time.monotonic() - began}
    bests = found if isinstance(found, list) else [found]
    if found is not None and bests[0].run_summary is not None:
        report["records"] = [record.to_json() for record in bests[0].run_summary.records]
        report["best"] = [each.run_id for each in bests]
        if bests[0].checkpoint is not None:
            weights = bests[0].load_model().state_dict()
            report["weights"] = {key: value.tolist() for key, value in weights.items()}
    return report


def replay(folder: Path, name: str) -> dict[str, Any]:
    """Train trial 1 of the scenario `healthy` again."""
    of_trainer, _, _ = scenario("healthy", folder)
    callbacks = [At(interrupt, 1, 6, 1)] if name == "interrupted_replay" else []
    try:
        replayed = small_trainer(folder / "healthy", *callbacks, **of_trainer).replay(number=1, progress=False)
    except KeyboardInterrupt as error:
        return {"raised": type(error).__name__}
    return {"raised": None, "difference": replayed.first_difference, "records": [replayed.record.to_json()]}


def _search_of_transformers(place: Path, of_trainer: dict[str, Any]) -> Callable[..., Any]:
    def make_trainer(trial: Any) -> Any:
        return transformers_trainer(place, TwoLayers(), **{**of_trainer, **trial.params})

    return partial(tune, make_trainer)


def main() -> None:
    folder, *names = sys.argv[1:]
    torch.set_num_threads(1)
    for name in names:
        distributed_ranks.SECONDS_TO_ARRIVE = 1.0 if name in ENDING else 60.0
        report = (replay if "replay" in name else search)(Path(folder), name)
        Path(folder, f"{name}-{RANK}.json").write_text(json.dumps(report))
    sys.stdout.flush()
    os._exit(0)  # gloo may abort a process that ends in the ordinary way


if __name__ == "__main__":
    main()
