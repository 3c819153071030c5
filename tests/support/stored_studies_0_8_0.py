"""Three studies that hpsearch 0.8.0 wrote and did not finish, and the searches that wrote them.

The studies are in `stored_studies/`, with `expected.json`: their trials as 0.8.0 read them. They are never written
again: a later version must open, show, replay and continue the files of 0.8.0. This is how they were made, with 0.8.0
first on the path, and under a neutral host name:

    unshare --uts sh -c 'hostname lab-1; python tests/support/stored_studies_0_8_0.py tests/support/stored_studies'
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback

from hpsearch import (
    Categorical,
    Float,
    Int,
    SearchInterrupted,
    SearchListener,
    Trainer,
    TrainingArguments,
    open_study,
    promote,
)
from hpsearch import __version__ as version

STORED = Path(__file__).parent / "stored_studies"
EXPECTED_FILE = "expected.json"
MADE_IN = Path("/tmp/study-of-0.8.0")
MACHINE = {"name": "lab-1", "system": "Linux", "cores": 2}
# The exit status of a process that ends itself in the middle of a search.
KILLED = 17


class Classifier(torch.nn.Module):
    """A network with one hidden layer for points in the plane."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(2, hidden)
        self.output = torch.nn.Linear(hidden, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.output(torch.tanh(self.hidden(x)))
        outputs = {"logits": logits}
        return outputs if labels is None else {"loss": torch.nn.functional.cross_entropy(logits, labels), **outputs}


def points(size: int, seed: int) -> list[dict[str, Any]]:
    """Return random points in the plane; the label is 1 outside of a circle."""
    drawn = torch.randn(size, 2, generator=torch.Generator().manual_seed(seed))
    return [{"x": point, "labels": int(point.norm() > 1.1)} for point in drawn]


def accuracy(prediction: Any) -> dict[str, float]:
    """Return the fraction of correct labels."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def trainer_of(
    folder: Path, model_init: Callable[[Any], Classifier], epochs: int, *callbacks: TrainerCallback
) -> Trainer:
    """Return a trainer with 2 steps an epoch, and an evaluation and a checkpoint after each epoch."""
    args = TrainingArguments(
        str(folder),
        learning_rate=1e-2,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=32,
        num_train_epochs=epochs,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(
        args=args,
        model_init=model_init,
        train_dataset=points(16, seed=0),
        eval_dataset=points(32, seed=1),
        compute_metrics=accuracy,
        callbacks=list(callbacks),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


# With rungs.


def sized_by_space(trial: Any) -> Classifier:
    """Return a model of the size that the search space suggested."""
    return Classifier(trial.params["model.hidden"])


def trainer_with_rungs(folder: Path, *callbacks: TrainerCallback) -> Trainer:
    """Return the trainer of `sqlite_with_rungs`."""
    return trainer_of(folder, sized_by_space, 12, *callbacks)


def search_with_rungs(folder: Path, *callbacks: TrainerCallback, n_trials: int = 12, **options: Any) -> Any:
    """Search with all defaults: SQLite, rungs, the default sampler."""
    space = {
        "learning_rate": Float(1e-3, 1e-1, log=True),
        "model.hidden": Int(2, 4),
        "optim": Categorical({"adamw_torch": {}, "sgd": {"optim.momentum": Float(0.1, 0.9)}}),
    }
    return trainer_with_rungs(folder, *callbacks).hyperparameter_search(
        space, "loss", n_trials, study_name="sqlite_with_rungs", **{"progress": False, **options}
    )


# In workers.


def sized_by_model_init(trial: Any) -> Classifier:
    """Return a model whose size `model_init` itself suggests."""
    return Classifier(trial.suggest_int("hidden", 2, 4))


def define_by_run(trial: Any) -> dict[str, Any]:
    """Suggest `warmup_steps` for one of the schedules only."""
    schedule = trial.suggest_categorical("lr_scheduler_type", ["linear", "constant"])
    suggested = {"lr_scheduler_type": schedule, "learning_rate": trial.suggest_float("learning_rate", 1e-2, 1.0)}
    if schedule == "linear":
        suggested["warmup_steps"] = trial.suggest_int("warmup_steps", 0, 3)
    return suggested


def trainer_with_workers(folder: Path, *callbacks: TrainerCallback) -> Trainer:
    """Return the trainer of `journal_with_workers`."""
    return trainer_of(folder, sized_by_model_init, 6, *callbacks)


def search_with_workers(
    folder: Path, *callbacks: TrainerCallback, n_trials: int = 8, n_jobs: int = 2, **options: Any
) -> Any:
    """Search with two workers, a journal, the median pruner, a define-by-run space and `scope="all"`."""
    return trainer_with_workers(folder, *callbacks).hyperparameter_search(
        define_by_run,
        "accuracy",
        n_trials,
        study_name="journal_with_workers",
        **{"n_jobs": n_jobs, "storage": "journal", "pruner": "median", "scope": "all", "progress": False, **options},
    )


# Several objectives.


def sized_or_failing(trial: Any) -> Classifier:
    """Return a model; fail in trial 1."""
    if trial.number == 1:
        raise RuntimeError("a failure in model_init")
    return Classifier(trial.params["model.hidden"])


def trainer_of_several(folder: Path, *callbacks: TrainerCallback) -> Trainer:
    """Return the trainer of `several_objectives`."""
    return trainer_of(folder, sized_or_failing, 3, *callbacks)


def search_several(folder: Path, *callbacks: TrainerCallback, n_trials: int = 7, **options: Any) -> Any:
    """Search for a small loss and a small model, under a constraint."""
    space = {"learning_rate": Float(1e-3, 1e-1, log=True), "model.hidden": Int(2, 4), "seed": Int(1, 99)}
    return trainer_of_several(folder, *callbacks).hyperparameter_search(
        space,
        options.pop("compute_objective", ["loss", "parameters"]),
        n_trials,
        study_name="several_objectives",
        **{"constraints": "parameters <= 20", "storage": None, "progress": False, **options},
    )


SEARCHES: dict[str, Callable[..., Any]] = {
    "sqlite_with_rungs": search_with_rungs,
    "journal_with_workers": search_with_workers,
    "several_objectives": search_several,
}
TRAINERS: dict[str, Callable[..., Trainer]] = {
    "sqlite_with_rungs": trainer_with_rungs,
    "journal_with_workers": trainer_with_workers,
    "several_objectives": trainer_of_several,
}


def expected(name: str) -> dict[str, Any]:
    """Return what 0.8.0 read from a stored study."""
    found: dict[str, Any] = json.loads((STORED / EXPECTED_FILE).read_text())[name]
    return found


def copy_study(name: str, folder: Path) -> Path:
    """Copy a stored study into an output directory, and return the folder of the copy.

    A file in `sessions/` belongs to a process of another machine that was killed. Its heartbeat is its modification
    time, which a checkout of the repository makes new, so the copy gets an old one.
    """
    copy = shutil.copytree(STORED / name, folder / name)
    for file in copy.glob("sessions/*"):
        os.utime(file, (0, 0))
    return copy


def described_report(report: Any) -> dict[str, Any]:
    """Return what must stay the same in a report."""
    metrics = {name: report.metrics[name] for name in ("eval_loss", "eval_accuracy", "parameters")}
    return {"step": report.step, "epoch": report.epoch, "values": list(report.values), "metrics": metrics}


# What follows made the studies.


class AtSteps(TrainerCallback):
    """Call a function after some steps of some trials; the keys are the number of the trial and the step."""

    def __init__(self, actions: dict[tuple[int, int], Callable[[], Any]]) -> None:
        self._actions = actions

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        number = int(Path(args.output_dir).name.removeprefix("run-"))
        act = self._actions.pop((number, state.global_step), None)
        if act is not None:
            act()


class InterruptsAtReport(SearchListener):
    """Press Ctrl-C, in the process that searches, at a report of a trial."""

    def __init__(self, number: int, step: int) -> None:
        self._number, self._step = number, step

    def on_report(self, trial: Any, report: Any) -> None:
        if trial.number == self._number and report.step == self._step:
            signal.raise_signal(signal.SIGINT)


def _interrupt() -> None:
    raise KeyboardInterrupt


def write_with_rungs(folder: Path) -> None:
    """Promote trial 0 by hand; interrupt trial 6 between two checkpoints; then promote trial 1, which is paused."""
    study = folder / "sqlite_with_rungs"
    try:
        search_with_rungs(folder, AtSteps({(0, 1): lambda: promote(study, 0), (6, 3): _interrupt}))
    except SearchInterrupted:
        promote(study, 1)
        return
    raise AssertionError


def write_with_workers(folder: Path) -> None:
    """Interrupt the search while trial 5 and another one train; which trial that is, and how far, depends on timing."""
    try:
        search_with_workers(folder, progress=InterruptsAtReport(5, 6))
    except SearchInterrupted:
        return
    raise AssertionError


def write_several(folder: Path) -> None:
    """Kill the process after step 5 of trial 4, which has a checkpoint of step 4."""
    search_several(folder, AtSteps({(4, 5): lambda: os._exit(KILLED)}))
    raise AssertionError


_WRITERS = {
    "sqlite_with_rungs": write_with_rungs,
    "journal_with_workers": write_with_workers,
    "several_objectives": write_several,
}


def _described(folder: Path) -> dict[str, Any]:
    """Return the trials of a study, and its best ones, as this version reads them."""
    summary = open_study(folder)
    trials = [
        {
            "number": each.number,
            "name": each.name,
            "state": each.state.value,
            "params": each.params,
            "seed": each.seed,
            "values": list(each.values),
            "reports": [described_report(report) for report in each.reports],
            "violations": each.violations,
            "reason": each.reason,
            "checkpoints": sorted(path.name for path in (folder / each.name).glob("checkpoint-*")),
        }
        for each in summary.records
    ]
    best = [{"number": each.number, "values": list(each.values)} for each in summary.best()]
    return {"n_trials": summary.study.n_trials, "trials": trials, "best": best}


def _make_neutral(folder: Path) -> None:
    """Remove traces of the machine and the folders of the program, and make the database small."""
    for path in [folder / "study.json", *folder.glob("*/trial.json")]:
        text = re.sub(r'File \\"/[^"]*/(hpsearch|site-packages|tests)/', r'File \\"/lab/\1/', path.read_text())
        path.write_text(text)
    settings = json.loads((folder / "study.json").read_text())
    for session in settings["sessions"]:
        session["machine"] = MACHINE
    (folder / "study.json").write_text(json.dumps(settings, indent=2))
    for file in folder.glob("sessions/*"):
        process = json.loads(file.read_text())
        file.write_text(json.dumps({**process, "host": "lab-1 pid:[1]", "pid": 1, "started": "1 1"}))
    if (folder / "study.db").exists():
        with sqlite3.connect(folder / "study.db") as database:
            mode = database.execute("PRAGMA journal_mode").fetchone()[0]
            database.execute("PRAGMA journal_mode=DELETE")
            database.execute("PRAGMA page_size=1024")
            database.execute("VACUUM")
            database.execute(f"PRAGMA journal_mode={mode}")
        database.close()


def _remove_training_state(folder: Path) -> None:
    """Delete what only resuming needs from the checkpoints of complete trials."""
    for path in folder.glob("*/trial.json"):
        if json.loads(path.read_text())["state"] == "complete":
            for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
                for file in path.parent.glob(f"checkpoint-*/{name}"):
                    file.unlink()


def main(target: Path) -> None:
    """Write the studies, each in a process of its own, and copy them to a folder."""
    if version != "0.8.0":
        raise SystemExit(f"These studies are of version 0.8.0; this is {version}.")
    shutil.rmtree(MADE_IN, ignore_errors=True)
    found = {}
    for name in _WRITERS:
        subprocess.run([sys.executable, __file__, "--write", name], check=False)
        study = MADE_IN / name
        _make_neutral(study)
        found[name] = _described(study)
        shutil.rmtree(target / name, ignore_errors=True)
        shutil.copytree(study, target / name)
        _remove_training_state(target / name)
    (target / EXPECTED_FILE).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "--write":
        _WRITERS[sys.argv[2]](MADE_IN)
    else:
        main(Path(sys.argv[1]))
