"""The Hub: the repository a run uploads to, and what it uploads when.

Uploads during training run in the background, from a snapshot, so that neither the training waits for them nor they
see files change or vanish. Knows of the Hub only through huggingface_hub.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import functools
import glob
import logging
import os
import shutil
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.utils import (
    HFValidationError,
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
    validate_repo_id,
)
from transformers.trainer_utils import HubStrategy, SaveStrategy

from ..arguments import TrainingArguments
from ..errors import ArgumentError
from ..system.files import PARTIAL_MARK
from ..version import __version__
from . import checkpoints
from .hooks import Hooks
from .model_card import CARD_FILE

logger = logging.getLogger(__name__)

LAST_CHECKPOINT = "last-checkpoint"
STUDY_FILE = "study.json"
# Never uploaded from an output folder.
_LEFT_OUT = (
    "_*",
    "checkpoint-*",
    f"{PARTIAL_MARK}*",
    f"*/{PARTIAL_MARK}*",
    ".env*",
    ".git",
    ".git/*",
    ".cache",
    ".cache/*",
)
# What a checkpoint holds beside the model.
_FOR_RESUMING = (
    checkpoints.OPTIMIZER_FILE,
    checkpoints.SCHEDULER_FILE,
    checkpoints.SCALER_FILE,
    checkpoints.STATE_FILE,
    checkpoints.RUN_STATE_FILE,
    "rng_state*.pth",
    "optimizer*",
    "pytorch_model_fsdp*",
    "global_step*",
    "latest",
    "zero_to_fp32.py",
)
_WEIGHTS = ("model*.safetensors*", "pytorch_model*", "adapter_model*")
_SNAPSHOT_MARK = "-upload-"


class HubRepository:
    """The repository of a run, made when it is first needed, and the uploads to it.

    Attributes:
        args: the arguments of the run.
        repo_id: namespace and name of the repository; None before it was made or found.
        is_paused: True while saving the model does not upload it.
    """

    def __init__(self, args: TrainingArguments) -> None:
        self.args = args
        self.repo_id: str | None = None
        self.is_paused = False
        self._jobs: list[tuple[str, concurrent.futures.Future[Any]]] = []
        self._snapshots = 0
        self._held_api: HfApi | None = None

    @property
    def is_busy(self) -> bool:
        """True while an upload runs or waits in the background."""
        return any(not job.done() for _, job in self._jobs)

    def create(self, token: str | None = None, private: bool | None = None) -> str:
        """Create the repository, unless it exists, and return its id.

        Raises:
            ArgumentError: its name cannot be one.
            HfHubHTTPError: the Hub refuses.
        """
        private = self.args.hub_private_repo if private is None else private
        made = self._api.create_repo(repository_name(self.args), token=token, private=private, exist_ok=True)
        self.repo_id = made.repo_id
        return self.repo_id

    def upload_output(self, message: str, token: str | None, revision: str | None, blocking: bool) -> object:
        """Upload the output folder and return the `CommitInfo`, or its future if not `blocking`."""
        self._make_branch(revision, token)
        studies = [f"{glob.escape(path.parent.name)}/*" for path in Path(self.args.output_dir).glob(f"*/{STUDY_FILE}")]
        upload = functools.partial(
            self._api.upload_folder,
            repo_id=self.repo_id or "",
            folder_path=self.args.output_dir,
            commit_message=message,
            token=token,
            revision=revision,
            ignore_patterns=[*_LEFT_OUT, *studies],
        )
        if blocking:
            return upload()
        job = self._api.run_as_future(upload)
        self._jobs.append((message, job))
        return job

    def upload_checkpoint(self, folder: Path, message: str) -> None:
        """Upload the model of a checkpoint in the background; with `hub_strategy`, the checkpoint too."""
        snapshot = Path(self.args.output_dir, f"{PARTIAL_MARK}{os.getpid()}{_SNAPSHOT_MARK}{self._snapshots}")
        self._snapshots += 1
        try:
            _take_snapshot(Path(self.args.output_dir), folder, snapshot)
        except OSError as error:  # a full disk, a file that went away
            shutil.rmtree(snapshot, ignore_errors=True)
            logger.warning("%s is not uploaded: its files could not be copied (%s).", folder.name, error)
            return
        common = {"repo_id": self.repo_id, "revision": self.args.hub_revision}
        uploads: list[dict[str, Any]] = [{**common, "folder_path": snapshot / "model", "commit_message": message}]
        if self.args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            is_last_only = self.args.hub_strategy == HubStrategy.CHECKPOINT
            uploads.append(
                {
                    **common,
                    "folder_path": snapshot / "checkpoint",
                    "path_in_repo": LAST_CHECKPOINT if is_last_only else folder.name,
                    "commit_message": f"{message}, checkpoint",
                    "delete_patterns": "*" if is_last_only else None,
                }
            )
        self._jobs.append((message, self._api.run_as_future(_upload_snapshot, self._api, uploads, snapshot)))

    def report_failures(self) -> None:
        """Warn of every upload in the background that has failed since the last call."""
        ended = [each for each in self._jobs if each[1].done()]
        self._jobs = [each for each in self._jobs if each not in ended]
        for message, job in ended:
            error = None if job.cancelled() else job.exception()
            if error is not None:
                logger.warning(
                    "The upload %r to %s failed: %s. The files are in %r; trainer.push_to_hub() uploads the model.",
                    message,
                    self.repo_id,
                    error,
                    self.args.output_dir,
                )

    def wait(self) -> None:
        """Return when all uploads in the background have ended, and warn of those that failed."""
        if self.is_busy:
            logger.info("Waiting for the uploads to %s to finish.", self.repo_id)
        concurrent.futures.wait([job for _, job in self._jobs])
        self.report_failures()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Keep `save_model` from uploading: a checkpoint is being written, or an upload is under way."""
        was_paused, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = was_paused

    def release(self) -> None:
        """Release the connection; uploads that have begun are completed."""
        self._held_api, self._jobs = None, []

    @property
    def _api(self) -> HfApi:
        if self._held_api is None:
            self._held_api = HfApi(token=self.args.hub_token, library_name="hpsearch", library_version=__version__)
        return self._held_api

    def _make_branch(self, revision: str | None, token: str | None) -> None:
        """Make the branch `revision`, which an upload does not do by itself."""
        if revision is not None and not revision.startswith("refs/"):
            self._api.create_branch(self.repo_id or "", branch=revision, token=token, exist_ok=True)

    def prepare(self) -> None:
        """Make everything ready for uploads during training, so that mistakes show before the first step."""
        _remove_old_snapshots(Path(self.args.output_dir))
        self.create()
        self._make_branch(self.args.hub_revision, None)


def repository_name(args: TrainingArguments) -> str:
    """Return the name of the repository: `hub_model_id`, or the name of the output folder.

    Raises:
        ArgumentError: it cannot be the name of a repository.

    >>> repository_name(TrainingArguments("work/my-model", use_cpu=True))
    'my-model'
    """
    given = args.hub_model_id is not None
    name = args.hub_model_id if given else Path(args.output_dir).absolute().name
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        origin = "hub_model_id" if given else "The name of output_dir, the default of hub_model_id,"
        raise ArgumentError(
            f"{origin} is {name!r}, which cannot name a repository: {error} Pass hub_model_id='name' or "
            "hub_model_id='namespace/name'."
        ) from error
    return str(name)


def prepare(trainer: Hooks) -> None:
    """Find or make the repository before training starts, if the run is to upload to it."""
    if trainer.run.args.push_to_hub and trainer.is_world_process_zero():
        trainer.run.hub.prepare()


def push_checkpoint(trainer: Hooks, folder: Path) -> None:
    """Start to upload a checkpoint that was just written, as `args.hub_strategy` asks.

    While an earlier upload runs, this one is left out, unless `hub_always_push`.
    """
    run = trainer.run
    args, repository = run.args, run.hub
    if not args.push_to_hub or args.hub_strategy == HubStrategy.END or not trainer.is_world_process_zero():
        return
    repository.report_failures()
    if repository.is_busy and not args.hub_always_push:
        return
    run.control = run.callback_handler.on_push_begin(args, run.state, run.control)
    if not Path(args.output_dir, CARD_FILE).exists():
        trainer.create_model_card(model_name=_card_name(args))
    is_by_steps = args.save_strategy == SaveStrategy.STEPS
    reached = f"step {run.state.global_step}" if is_by_steps else f"epoch {int(run.state.epoch or 0)}"
    repository.upload_checkpoint(folder, f"Training in progress, {reached}")


def push(
    trainer: Hooks,
    message: str,
    blocking: bool,
    token: str | None,
    revision: str | None,
    private: bool | None,
    card: dict[str, object],
) -> object:
    """Save the model, write its card and upload the output folder; None on all processes but the main one."""
    run = trainer.run
    run.control = run.callback_handler.on_push_begin(run.args, run.state, run.control)
    is_main = trainer.is_world_process_zero()
    if is_main and run.hub.repo_id is None:
        run.hub.create(token, private)
    with run.hub.paused():
        trainer.save_model()
    if not is_main:
        return None
    trainer.create_model_card(**{"model_name": _card_name(run.args), **card})
    run.hub.wait()
    return run.hub.upload_output(message, token, revision or run.args.hub_revision, blocking)


def without_token(args: TrainingArguments) -> TrainingArguments:
    """Return `args`, or a copy without `hub_token`, fit for a file that others may read.

    >>> without_token(TrainingArguments("out", hub_token="secret", use_cpu=True)).hub_token is None
    True
    """
    if args.hub_token is None:
        return args
    shown = copy.copy(args)  # not replace(): new arguments would reset accelerate's state in the middle of a run
    shown.hub_token = None
    shown._given, shown._resolved = ({**values, "hub_token": None} for values in (args._given, args._resolved))
    return shown


def _card_name(args: TrainingArguments) -> str:
    return repository_name(args).split("/")[-1]


def _take_snapshot(output: Path, checkpoint: Path, target: Path) -> None:
    """Fill `target/model` with the output folder and the checkpoint's model, `target/checkpoint` with all of it.

    The checkpoint's files are linked, not copied: they are never written to again, and survive their folder.
    """
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(checkpoint, target / "checkpoint", copy_function=_link)
    shutil.copytree(checkpoint, target / "model", copy_function=_link, ignore=shutil.ignore_patterns(*_FOR_RESUMING))
    for entry in output.iterdir():
        copy = target / "model" / entry.name
        is_left_out = any(fnmatch(entry.name, pattern) for pattern in (*_LEFT_OUT, *_WEIGHTS))
        if is_left_out or copy.exists() or (entry / STUDY_FILE).exists():
            continue
        if entry.is_dir():
            ignored = shutil.ignore_patterns(f"{PARTIAL_MARK}*")
            shutil.copytree(entry, copy, ignore=ignored, ignore_dangling_symlinks=True)
        elif entry.is_file():
            shutil.copy2(entry, copy)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # no hard links on this file system
        shutil.copy2(source, target)


def _upload_snapshot(api: HfApi, uploads: list[dict[str, Any]], snapshot: Path) -> None:
    try:
        with _no_progress_bars():
            for each in uploads:
                api.upload_folder(**each)
    finally:
        shutil.rmtree(snapshot, ignore_errors=True)


def _remove_old_snapshots(output: Path) -> None:
    """Remove what a process that was killed during an upload has left."""
    for folder in output.glob(f"{PARTIAL_MARK}*{_SNAPSHOT_MARK}*"):
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keep bars of uploads in the background off the terminal, where training draws its own."""
    was_disabled = are_progress_bars_disabled()
    if not was_disabled:
        disable_progress_bars()
    try:
        yield
    finally:
        if not was_disabled:
            enable_progress_bars()
