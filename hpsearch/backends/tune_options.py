"""The options of `ray.tune.run` that transformers passes through, as far as they are not simply taken here."""

from __future__ import annotations

from collections.abc import Mapping

from .engine_options import EngineOption

_OF_ALL_TRIALS = "pass keep_checkpoints=None, which keeps every checkpoint of every trial"
_OF_THE_SELECTED = "the best trial keeps its selected checkpoint (keep_checkpoints= and scope= decide)"
_SAVING = "set save_strategy in the TrainingArguments"
_CONTINUES = "the same call continues the study"
_PROGRESS = "progress= decides what is shown"


def _keeps_one(value: object) -> bool:
    return not isinstance(value, bool) and value == 1


def _keeps_at_most_one(config: object) -> bool:
    """Return True if a `CheckpointConfig` asks for no checkpoints beyond the one that a trial needs."""
    kept = getattr(config, "num_to_keep", 0)
    is_saved = getattr(config, "checkpoint_frequency", 0) or getattr(config, "checkpoint_at_end", False)
    return (kept is None or _keeps_one(kept)) and not is_saved


def _is_off(value: object) -> bool:
    return not value


def _continues(value: object) -> bool:
    return value is True or value in ("AUTO", "LOCAL")


TUNE_OPTIONS: Mapping[str, EngineOption] = {
    # Taken: nothing about the result depends on them.
    "log_to_file": EngineOption.harmless(
        "what trials print is in the logs of Ray, in /tmp/ray/session_latest/logs of their node"
    ),
    "verbose": EngineOption.harmless(_PROGRESS),
    "progress_reporter": EngineOption.harmless(_PROGRESS),
    "reuse_actors": EngineOption.harmless("workers are always reused"),
    "chdir_to_trial_dir": EngineOption.harmless("workers stay in their working folder"),
    "local_dir": EngineOption.harmless("the study's folder is in the trainer's output_dir"),
    "checkpoint_score_attr": EngineOption.harmless(_OF_THE_SELECTED),
    # Taken with some values.
    "keep_checkpoints_num": EngineOption(_OF_ALL_TRIALS, _OF_THE_SELECTED, _keeps_one),
    "checkpoint_config": EngineOption(f"{_OF_ALL_TRIALS}, and {_SAVING}", _OF_THE_SELECTED, _keeps_at_most_one),
    "checkpoint_freq": EngineOption(_SAVING, "save_strategy decides", _is_off),
    "checkpoint_at_end": EngineOption(_SAVING, "save_strategy decides", _is_off),
    "fail_fast": EngineOption("pass max_failures=1", "max_failures= ends a search", _is_off),
    "raise_on_failed_trial": EngineOption("pass max_failures=1", "a failed trial is recorded", _is_off),
    "resume": EngineOption(f"{_CONTINUES}; pass another study_name for a new one", _CONTINUES, _continues),
    # Taken, and acted upon.
    "name": EngineOption("pass study_name", "it is the study_name", lambda value: isinstance(value, str)),
    "stop": EngineOption(
        "pass a dict such as {'training_iteration': 4}, or trial_max_epochs, trial_timeout, timeout or a scheduler",
        takes=lambda value: isinstance(value, Mapping),
    ),
    # Refused: the search has its own.
    "num_samples": EngineOption("pass n_trials"),
    "config": EngineOption("pass hp_space"),
    "param_space": EngineOption("pass hp_space"),
    "metric": EngineOption("pass compute_objective"),
    "mode": EngineOption("pass direction"),
    "n_jobs": EngineOption(
        "pass max_concurrent_trials", "max_concurrent_trials= sets the number of parallel trials", _keeps_one
    ),
    "devices": EngineOption("pass resources_per_trial, such as {'gpu': 1}"),
    "trials_per_device": EngineOption("pass resources_per_trial, such as {'gpu': 0.5}"),
    "time_budget_s": EngineOption("pass timeout, in seconds"),
    "max_retries": EngineOption("pass trial_retries"),
    "failure_config": EngineOption("pass trial_retries, for lost workers, and max_failures, for failing trials"),
    "trial_name_creator": EngineOption("pass hp_name, a function of a trial"),
    "trial_dirname_creator": EngineOption("pass hp_name, a function of a trial"),
    "storage_filesystem": EngineOption("pass storage_path, a path or URL that all nodes reach"),
    "sync_config": EngineOption("pass storage_path, a path or URL that all nodes reach"),
    "export_formats": EngineOption("BestRun.load_model() and BestRun.checkpoint have the best model"),
    "restore": EngineOption(f"{_CONTINUES}, trials from their last checkpoints"),
    "resume_config": EngineOption(f"{_CONTINUES}, trials from their last checkpoints"),
}
"""The options by name; those that are refused with every value say what to pass instead."""
