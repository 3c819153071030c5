"""What a trainer shows and writes: its model and state, its log and metrics, its model card, its uploads to the Hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from transformers.trainer_pt_utils import metrics_format
from transformers.trainer_utils import speed_metrics

from ..training import checkpoints, hub, loop, model_card, sharding, weights
from ..training.hooks import Hooks
from ..training.metrics import metrics_table, save_metrics
from .recipe import Recipe


class Saving(Recipe):
    """A recipe whose latest run can be saved, logged, described and uploaded; `hpsearch.Trainer` adds the rest."""

    # Model and state.

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save model, configuration and processing class, loadable by `from_pretrained`, on the main process.

        With `args.push_to_hub` it is uploaded too, except while a checkpoint is written.

        Args:
            output_dir: default `args.output_dir`.
            _internal_call: True saves without uploading.
        """
        state_dict = sharding.whole_weights(self.run)
        if self.args.should_save:
            folder = Path(self.args.output_dir if output_dir is None else output_dir)
            self.save_weights(folder, state_dict)
            checkpoints.save_tensors(hub.without_token(self.args), folder / checkpoints.ARGUMENTS_FILE)
        if self.args.push_to_hub and not _internal_call and not self.run.hub.is_paused:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def save_weights(self, folder: str | Path, state_dict: Mapping[str, Any] | None = None) -> None:
        """Save what loads a model: its weights (or `state_dict`, from `capture_weights`) and configuration."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        weights.save_weights(self.accelerator.unwrap_model(self.model), target, state_dict)
        processing = self.processing_class
        if processing is None:
            processing = getattr(self.data_collator, "tokenizer", None)
        if processing is not None and hasattr(processing, "save_pretrained"):
            processing.save_pretrained(str(target))

    def capture_weights(self) -> dict[str, torch.Tensor]:
        """Return a copy of the model's present weights, on the host.

        Of a model that is spread over processes all call it together, and the main one gets the weights.
        """
        whole = sharding.whole_weights(self.run)
        if whole is not None:
            return whole
        core = self.accelerator.unwrap_model(self.model)
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in core.state_dict().items()}

    def load_weights(self, folder: str | Path) -> None:
        """Load the weights of a checkpoint folder into the model of the latest run.

        Raises:
            CheckpointError: they are missing, damaged or of another model.
        """
        weights.load_weights(self.model, folder)

    def save_state(self) -> None:
        """Write `trainer_state.json` into `args.output_dir`, on the main process."""
        if self.is_world_process_zero():
            Path(self.args.output_dir).mkdir(parents=True, exist_ok=True)
            checkpoints.save_state(self.run, Path(self.args.output_dir, checkpoints.STATE_FILE))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Hook: add the epoch to `logs`, append them to the log history and announce them.

        With `include_num_input_tokens_seen` the count of tokens is added too and, to the lines of training, whose
        `start_time` is given, the tokens per second since then.
        """
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        if self.args.include_num_input_tokens_seen != "no":
            seen = logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
            if start_time is not None:
                logs.update(speed_metrics("train", start_time, num_tokens=seen - self.run.first_tokens))
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)

    def store_flos(self) -> None:
        """Add the operations counted since the last call to `state.total_flos`."""
        loop.store_flos(self.run)

    def log_metrics(self, split: str, metrics: Mapping[str, Any]) -> None:
        """Print the metrics of a split as a table, on the main process."""
        if self.is_world_process_zero():
            print(metrics_table(split, metrics))

    def save_metrics(self, split: str, metrics: Mapping[str, Any], combined: bool = True) -> None:
        """Write `<split>_results.json`, and merge into `all_results.json` if `combined`, on the main process."""
        if self.is_world_process_zero():
            save_metrics(self.args.output_dir, split, metrics, combined)

    @staticmethod
    def metrics_format(metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return metrics as people read them: memory in MB, run times as h:mm:ss.cc, four decimals."""
        return metrics_format(dict(metrics))

    def is_local_process_zero(self) -> bool:
        """True on the main process of each machine."""
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        """True on the main process of all machines."""
        return self.args.process_index == 0

    # The Hub.

    @property
    def hub_model_id(self) -> str | None:
        """Namespace and name of the repository that the latest run uploads to; None before it is made."""
        return None if self._run is None else self._run.hub.repo_id

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Find or make the repository of the run, on the main process; the first upload does so by itself.

        Args:
            token: default `args.hub_token`, else the one that `hf auth login` stored.
            private: whether a new repository is private; default `args.hub_private_repo`.
        """
        if self.is_world_process_zero():
            self.run.hub.create(token, private)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Write the model card of the run, `README.md` in `args.output_dir`, on the main process.

        It holds metadata, hyperparameters, results and versions, and is meant to be completed by hand: the text of an
        earlier card is replaced, its tags and other metadata are kept.

        Args:
            language: the language, or languages, of the model.
            license: its licence; default: that of the base model on the Hub, if that can be reached.
            tags: added to those of the model and of an earlier card.
            model_name: default: the name of the output folder.
            finetuned_from: the base model; default: where the model was loaded from, unless that is a folder.
            tasks: task ids such as ``text-classification``; default: what the model's class is for.
            dataset_tags, dataset, dataset_args: ids, names and configurations of the datasets; default: what a dataset
                of the Hub tells.

        Raises:
            InvalidInputError: the metadata of the earlier card cannot be read.
        """
        if self.is_world_process_zero():
            model_card.write_model_card(
                cast(Hooks, self),
                language=language,
                license=license,
                tags=tags,
                model_name=model_name,
                finetuned_from=finetuned_from,
                tasks=tasks,
                dataset_tags=dataset_tags,
                dataset=dataset,
                dataset_args=dataset_args,
            )

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Save the model, write its card and upload `args.output_dir`; all processes call it, the main one uploads.

        Checkpoints, studies and names that start with an underscore are left out.

        Args:
            commit_message: of the commit.
            blocking: False returns at once; leave the folder as it is until the upload has ended.
            token: default `args.hub_token`, else the one that `hf auth login` stored.
            revision: a branch, made if there is none; default `args.hub_revision`, else the main one.
            private: whether a new repository is private; default `args.hub_private_repo`.
            kwargs: for `create_model_card`.

        Returns:
            huggingface_hub's `CommitInfo`, or its future if not `blocking`; None on other processes.

        Raises:
            ArgumentError: `hub_model_id` cannot name a repository.
            HfHubHTTPError: the Hub refuses, or cannot be reached.
        """
        return hub.push(
            cast(Hooks, self), commit_message or "End of training", blocking, token, revision, private, kwargs
        )
