"""A search from its arguments to its BestRun; works on anything that is `Searchable` and `Checkable`."""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .backends import get_backend
from .backends.base import Backend
from .errors import SearchInterrupted
from .reports.console import console_listener
from .search.best_run import BestRun, SearchSummary, best_run
from .search.listener import SearchListener
from .search.objective import resolve_objective
from .search.preflight import check_space, check_trainer
from .search.runner import TrialEndedSearch, TrialRunner
from .search.study import Study, as_space, check_name
from .search.trial import TrialRecord

logger = logging.getLogger(__name__)

_RECORDED_PACKAGES = ("hpsearch", "torch", "transformers", "accelerate", "optuna")


def hyperparameter_search(
    trainer: Any,
    build_model: Callable[[TrialRecord, Path], Any],
    hp_space: Any,
    compute_objective: Any,
    n_trials: int,
    direction: Any,
    backend: str | None,
    hp_name: Any,
    study_name: str,
    scope: str | None,
    keep_checkpoints: int | None,
    timeout: float | None,
    trial_timeout: float | None,
    seed: int | None,
    progress: bool | SearchListener,
    options: dict[str, Any],
) -> BestRun:
    """Check everything, run the trials and return the best; the arguments are those of the trainer's method."""
    check_trainer(trainer)
    sets = len(trainer.eval_dataset) if isinstance(trainer.eval_dataset, dict) else 1
    objective = resolve_objective(compute_objective, direction, trainer.compute_metrics is not None, sets)
    engine = get_backend(backend, options)
    study = Study(
        name=study_name,
        folder=Path(trainer.args.output_dir, check_name(study_name, "study_name")),
        space=as_space(hp_space),
        objective=objective,
        n_trials=n_trials,
        scope=trainer.args.ray_scope if scope is None else scope,
        keep_checkpoints=keep_checkpoints,
        timeout=timeout,
        trial_timeout=trial_timeout,
        seed=trainer.args.seed if seed is None else seed,
        hp_name=hp_name,
    )
    check_space(study.space, trainer)
    listener = progress if isinstance(progress, SearchListener) else console_listener(bool(progress))

    with study.locked():
        return _search(trainer, build_model, study, engine, listener)


def _search(
    trainer: Any,
    build_model: Callable[[TrialRecord, Path], Any],
    study: Study,
    engine: Backend,
    listener: SearchListener,
) -> BestRun:
    records = study.open()
    notes = [*engine.prepare(study, records), *_notes(study, trainer), *_changes(study, trainer)]
    study.write_settings({**_versions_and_arguments(trainer), **engine.describe()})
    logger.info("%s; %s", study.objective.description, "; ".join(notes))
    runner = TrialRunner(trainer, study, records, listener)
    try:
        listener.on_search_begin(study, runner.records, notes)
        engine.search(study, runner, listener)
    except TrialEndedSearch as ended:
        if not isinstance(ended.cause, KeyboardInterrupt):
            raise ended.cause from None
        raise _interrupted(study, runner, engine, build_model) from None
    except KeyboardInterrupt:
        raise _interrupted(study, runner, engine, build_model) from None
    finally:
        listener.on_search_end(study, runner.records)
    return best_run(SearchSummary(study, runner.records, engine), build_model)


def _interrupted(
    study: Study, runner: TrialRunner, engine: Backend, build_model: Callable[[TrialRecord, Path], Any]
) -> SearchInterrupted:
    counted = sum(record.state.is_counted for record in runner.records)
    return SearchInterrupted(
        f"Search {study.name!r} interrupted after {counted} of {study.n_trials} trials. Run the same command again to "
        f"continue; nothing in {str(study.folder)!r} is lost.",
        best_run(SearchSummary(study, runner.records, engine), build_model),
    )


def _notes(study: Study, trainer: Any) -> list[str]:
    notes = [f"scope {study.scope}"]
    if trainer.args.eval_strategy == "no":
        notes.append(
            "one evaluation at the end of each trial: nothing can be pruned (eval_strategy='epoch' would allow it)"
        )
    return notes


def _changes(study: Study, trainer: Any) -> list[str]:
    """Say which arguments differ from those of the study's last session: its trials may not be comparable."""
    earlier = (study.read_settings() or {}).get("arguments", {})
    now = json.loads(json.dumps(trainer.args.to_sanitized_dict(), default=str))
    changed = [name for name, value in now.items() if name in earlier and earlier[name] != value]
    shown = ", ".join(f"{name} {earlier[name]!r} -> {now[name]!r}" for name in changed)
    return [f"CHANGED since the last session: {shown}"] if changed else []


def _versions_and_arguments(trainer: Any) -> Mapping[str, Any]:
    versions: dict[str, str] = {"python": platform.python_version()}
    for package in _RECORDED_PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"seed": trainer.args.seed, "versions": versions, "arguments": trainer.args.to_sanitized_dict()}
