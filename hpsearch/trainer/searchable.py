"""What a search asks of a recipe and of the trainers that it makes; `hpsearch.Trainer` adds the rest."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers.trainer_utils import has_length

from ..search.static_checks import check_trainer
from ..search.store.code_origin import is_package_class
from ..search.store.provenance import CALLBACKS
from ..search.trial import FixedTrial, Trial, TrialRecord
from ..searching.search_methods import Evaluation, Searching
from ..system.files import read_json
from ..training import batch_size, hyperparameters, resume, weights
from ..training.callbacks import ExportableState, is_of_package
from ..training.checkpoints import STATE_FILE
from ..training.first_samples import first_samples
from ..training.model_init import takes_trial
from ..training.randomness import preserved_streams, seed_run
from ..training.shared_parts import refers_to_model
from .recipe import Recipe

_FUNCTIONS = (
    "model_init",
    "compute_metrics",
    "compute_loss_func",
    "preprocess_logits_for_metrics",
    "data_collator",
    "optimizer_cls_and_kwargs",
)


# What a preflight, which trains a single step, does without.
_IN_A_PREFLIGHT = {
    "report_to": "none",
    "eval_on_start": False,
    "load_best_model_at_end": False,
    "dataloader_num_workers": 0,
    "dataloader_persistent_workers": False,
    "dataloader_prefetch_factor": None,
    "torch_compile": False,
}
Self = TypeVar("Self", bound="SearchableRecipe")


class SearchableRecipe(Recipe, Searching):
    """A recipe that can be searched."""

    skips = None
    left_out: Sequence[Any] = ()

    @property
    def has_training_data(self) -> bool:
        """True if there is something to train on."""
        return self.train_dataset is not None

    @property
    def training_samples(self) -> int | None:  # type: ignore[override]
        """How many samples there are to train on; None if the data has no length."""
        return len(self.train_dataset) if has_length(self.train_dataset) else None

    @property
    def has_fixed_model(self) -> bool:  # type: ignore[override]
        """True if no parameter of a trial changes the number of the model's weights in this process."""
        is_sharded = bool(self.args.fsdp or self.args.deepspeed)  # each process counts its own part
        makes_it_itself = not type(self).call_model_init.__module__.startswith("hpsearch.")
        takes_nothing = self.model_init is not None and not takes_trial(self.model_init)
        return takes_nothing and not makes_it_itself and not is_sharded

    def resumable_checkpoints(self, folder: Path) -> list[Path]:
        """Return the checkpoints in a folder that training can resume from, newest first."""
        return resume.resumable_checkpoints(folder)

    def read_state(self, checkpoint: Path) -> dict[str, Any]:
        """Return the trainer state that a checkpoint holds, as JSON gives it; empty if it cannot be read."""
        try:
            return dict(read_json(checkpoint / STATE_FILE) or {})
        except (OSError, ValueError):
            return {}

    @contextlib.contextmanager
    def preflight_trainer(self: Self, trial: Trial, output_dir: str) -> Iterator[Self]:
        """Yield the trainer of a trial for its preflight; then it is dropped, and the random streams are put back."""
        with preserved_streams():
            trainer = self.for_trial(trial, output_dir).with_arguments(**_IN_A_PREFLIGHT)
            trainer.left_out = [
                each for each in trainer.callbacks if not is_of_package(each, "hpsearch", "transformers")
            ]
            trainer.callbacks = []
            try:
                if trainer.model_init is not None and refers_to_model(trainer.model_init):
                    trainer._build_run()  # once more, so that a model that is shared is found before it is trained
                    trainer.release()
                yield trainer
            finally:
                trainer.release()

    def let_user_code_suggest(self, trial: Trial) -> None:
        """Call `model_init(trial)` once, so that the trial has the parameters which it suggests; drop the model."""
        if self.model_init is not None and takes_trial(self.model_init):
            with preserved_streams():
                self._build_model(trial)

    def evaluate_batches(self, count: int) -> dict[str, float]:
        """Evaluate the model of the latest run on the first batches of each evaluation set."""
        samples = count * self.args.eval_batch_size * self.args.world_size
        return self.evaluate(first_samples(self.eval_dataset, samples))

    @abstractmethod
    def evaluate(self, eval_dataset: Any = None) -> dict[str, float]:
        """Evaluate the model of the latest run."""

    def check_changeable(self, name: str) -> None:
        """Check that training can resume from a checkpoint with another value of a parameter, and that it takes effect.

        Raises:
            ArgumentError: it cannot.
        """
        kind = None if self.optimizer_cls_and_kwargs is None else self.optimizer_cls_and_kwargs[0]
        hyperparameters.check_changeable(name, self.args, kind, self.is_read_by_user_code(name))

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Tell whether an error is one of memory, of the host or of a device, that is exhausted."""
        return batch_size.is_out_of_memory(error)

    def smaller_batches(self) -> dict[str, Any] | None:
        """Return arguments for the same updates with less memory; None if the batch cannot be divided any further."""
        return batch_size.smaller_batches(self.args)

    def _prepare(self, space: Any) -> None:
        check_trainer(self)

    @property
    def _evaluation(self) -> Evaluation:
        sets = len(self.eval_dataset) if isinstance(self.eval_dataset, dict) else 1
        return Evaluation(sets, self.compute_metrics is not None, type(self))

    def _data(self) -> dict[str, Any]:
        return {"train_dataset": self.train_dataset, "eval_dataset": self.eval_dataset}

    def _functions(self) -> dict[str, Any]:
        found = {"trainer": type(self), **{name: getattr(self, name) for name in _FUNCTIONS}}
        return {**found, CALLBACKS: [each for one in self.callbacks for each in _deciding(one)]}

    def _build_best_model(self, record: TrialRecord, folder: Path) -> torch.nn.Module:
        with preserved_streams():
            model = self._build_model(FixedTrial(record.params, record.number, record.arguments))
        weights.load_weights(model, folder)
        return model.eval()

    def _build_model(self, trial: Trial) -> torch.nn.Module:
        recipe = self.for_trial(trial)
        seed_run(recipe.args)
        return recipe.call_model_init(trial)


def _deciding(callback: Any) -> list[Any]:
    """Return what is known of a callback that may decide something: one of the user, or early stopping."""
    if not is_package_class(type(callback)):
        return [callback]
    return [(type(callback), callback.state().get("args"))] if isinstance(callback, ExportableState) else []
