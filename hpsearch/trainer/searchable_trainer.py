"""A Trainer as a search sees it: the recipe that the trainers of the trials are made from."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerControl, TrainerState
from transformers.trainer_utils import has_length

from ..arguments import TrainingArguments
from ..arguments.casting import is_of_library
from ..search.folds import Fold, Folds
from ..search.space.parameters import Params
from ..search.space.search_space import SearchSpace
from ..search.space.static_checks import check_trainer
from ..search.space.without_effect import SETTLING, notices_without_effect
from ..search.store.code_origin import is_package_class
from ..search.store.provenance import CALLBACKS
from ..search.study import SpaceFunction
from ..search.trial import FixedTrial, Trial
from ..search.trial_record import TrialRecord
from ..searching.searched_recipe import Evaluation
from ..system.checkpoint_files import STATE_FILE
from ..system.files import read_json
from ..system.json_types import JsonObject
from ..training import batch_size, hyperparameters, resume, weights
from ..training.callbacks import (
    EarlyStoppingCallback,
    ExportableState,
    TrainerCallback,
    check_early_stopping,
    is_of_package,
)
from ..training.data import select_samples
from ..training.model_init import takes_trial
from ..training.randomness import preserved_streams, seed_run
from ..training.shared_parts import refers_to_model
from ..trial.searchable import PreflightTrainer

if TYPE_CHECKING:
    from .trainer import Trainer

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
# What a training on the data of all folds does without: there is nothing to evaluate on.
_ON_ALL_DATA = {"eval_strategy": "no", "eval_on_start": False, "save_strategy": "no", "load_best_model_at_end": False}
# What an evaluation of stored weights does without.
_IN_AN_EVALUATION = {"report_to": "none", "torch_compile": False}


class SearchableTrainer:
    """Adapts a `Trainer` to what a search asks of a recipe; see `SearchedRecipe`.

    The trainers of the trials are Trainers themselves.

    Args:
        trainer: it is not changed.
    """

    user_code = "model_init"
    cannot_pause: str | None = None
    cannot_extend: str | None = None
    sets_arguments_by_name = True
    writes_its_checkpoints = False
    has_own_data = False
    notices: Sequence[str] = ()
    names: Mapping[str, str] = MappingProxyType({})
    suggested_names: Sequence[str] = ()

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._first_fold: Fold | None = None

    @property
    def args(self) -> TrainingArguments:
        """The training arguments that trials have in common."""
        return self.trainer.args

    @property
    def default_seed(self) -> int:
        """The seed of the sampler if none is given."""
        return int(self.args.seed)

    @property
    def defaults(self) -> TrainingArguments:
        """The arguments: a parameter without a default of its own has the value that they have."""
        return self.args

    @property
    def training_samples(self) -> int | None:
        """The number of samples to train on; None if the data has no length."""
        data = self.trainer.train_dataset if self._first_fold is None else self._first_fold.train
        return len(data) if has_length(data) else None

    @property
    def data_to_split(self) -> Any:
        """The training data, which folds split."""
        return self.trainer.train_dataset

    @property
    def has_fixed_model(self) -> bool:
        """True if no parameter of a trial changes the number of the model's weights in this process."""
        model_init = self.trainer.model_init
        is_sharded = bool(self.args.fsdp or self.args.deepspeed)  # each process counts its own part
        makes_it_itself = not type(self.trainer).call_model_init.__module__.startswith("hpsearch.")
        takes_nothing = model_init is not None and not takes_trial(model_init)
        return takes_nothing and not makes_it_itself and not is_sharded

    @property
    def evaluation(self) -> Evaluation:
        """What the evaluations are."""
        data = self.trainer.eval_dataset
        sets = len(data) if isinstance(data, dict) else 1
        return Evaluation(sets, self.trainer.compute_metrics is not None, type(self.trainer))

    def prepare(self, space: object, folds: Folds | None = None) -> None:
        """Check that the trainer has what a search needs.

        Raises:
            StudyError, ArgumentError: it has not.
        """
        check_trainer(self.trainer, folds is not None)
        if folds is not None:
            self._first_fold = folds[0]
            evaluation = select_samples(self.trainer.train_dataset, folds[0].evaluation)
            self.trainer = self.trainer.evaluated_on(evaluation)  # of the first fold; each trial has those of its own
        if space is None or isinstance(space, SearchSpace):  # what a function sets is not known yet
            searched = () if space is None else space.all_parameters()
            check_early_stopping(self.trainer.callbacks, self.trainer.args, searched)
            is_derived = not type(self.trainer).__module__.startswith("hpsearch.")
            has_own_optimizer = is_derived or self.trainer.optimizer_cls_and_kwargs is not None
            settling = {name: getattr(self.args, name) for name in SETTLING}
            self.notices = notices_without_effect(searched, settling, has_own_optimizer)

    def with_arguments(self, **parameters: object) -> SearchableTrainer:
        """Return the same recipe with other arguments, and without a run."""
        other = copy.copy(self)
        other.trainer = self.trainer.with_arguments(**parameters)
        return other

    def for_trial(self, trial: Trial, output_dir: str) -> Trainer:
        """Return a new trainer with the trial's parameters, which writes to `output_dir`."""
        return self.trainer.for_trial(trial, output_dir)

    @contextlib.contextmanager
    def preflight_trainer(self, trial: Trial, output_dir: str) -> Iterator[PreflightTrainer]:
        """Yield the trainer of a trial for its preflight; then it is dropped, and the random streams are restored."""
        with preserved_streams():
            trainer = self.for_trial(trial, output_dir).with_arguments(**_IN_A_PREFLIGHT)
            left_out = [each for each in trainer.callbacks if not is_of_package(each, "hpsearch", "transformers")]
            trainer.callbacks = []
            try:
                if trainer.model_init is not None and refers_to_model(trainer.model_init):
                    trainer._build_run()  # once more, so that a model that is shared is found before it is trained
                    trainer.release()
                yield PreflightTrainer(trainer, left_out)
            finally:
                trainer.release()

    def let_user_code_suggest(self, trial: Trial) -> None:
        """Call `model_init(trial)` once, so that the trial has the parameters which it suggests; drop the model."""
        model_init = self.trainer.model_init
        if model_init is not None and takes_trial(model_init):
            with preserved_streams():
                self._build_model(trial)

    def check_parameter(self, name: str, value: object, conditions: Mapping[str, object] | None = None) -> None:
        """Check that a trial could set parameter `name` to `value` under `conditions`; see `Trainer`."""
        self.trainer.check_parameter(name, value, conditions)

    def check_changeable(self, name: str) -> None:
        """Check that training can resume from a checkpoint with another value of a parameter, and that it takes effect.

        Raises:
            ArgumentError: it cannot.
        """
        optimizer = self.trainer.optimizer_cls_and_kwargs
        kind = None if optimizer is None else optimizer[0]
        hyperparameters.check_changeable(name, self.args, kind, self.is_read_by_user_code(name))

    def is_read_by_user_code(self, name: str) -> bool:
        """Return True if `model_init(trial)` reads a parameter, False if it is an argument that is set."""
        return self.trainer.is_read_by_user_code(name)

    def is_set_before_user_code(self, name: str) -> bool:
        """Return True for an argument that is set before `model_init` is called, which is too late to suggest it."""
        return is_of_library(name, type(self.args))

    def resumable_checkpoints(self, folder: Path) -> list[Path]:
        """Return the checkpoints in a folder that training can resume from, newest first."""
        return resume.resumable_checkpoints(folder)

    def read_state(self, checkpoint: Path) -> JsonObject:
        """Return the trainer state that a checkpoint holds, as JSON gives it; empty if it cannot be read."""
        try:
            return dict(read_json(checkpoint / STATE_FILE) or {})
        except (OSError, ValueError):
            return {}

    def smaller_batches(self, args: TrainingArguments) -> dict[str, int] | None:
        """Return arguments for the same optimizer steps with less memory; None if the batch cannot be divided."""
        return batch_size.smaller_batches(args)

    def data(self) -> dict[str, object]:
        """Return the datasets by name."""
        return {"train_dataset": self.trainer.train_dataset, "eval_dataset": self.trainer.eval_dataset}

    def functions(self) -> dict[str, object]:
        """Return the functions that trials are made of, and the class of the trainer, by name."""
        found = {"trainer": type(self.trainer), **{name: getattr(self.trainer, name) for name in _FUNCTIONS}}
        return {**found, CALLBACKS: [each for one in self.trainer.callbacks for each in _deciding(one)]}

    def build_best_model(self, record: TrialRecord, folder: Path) -> torch.nn.Module:
        """Build the model of a trial, with the weights in a folder, in evaluation mode."""
        with preserved_streams():
            model = self._build_model(FixedTrial.of(record))
        weights.load_weights(model, folder)
        return model.eval()

    def evaluate_weights(self, trial: Trial, folder: Path, dataset: Any, prefix: str) -> dict[str, float]:
        """Return the metrics of the weights in a folder, which a trial has trained; the names begin with `prefix`."""
        with preserved_streams():
            trainer = self.for_trial(trial, str(folder.parent)).with_arguments(**_IN_AN_EVALUATION)
            trainer.callbacks = []
            try:
                trainer.load_weights(folder)
                return trainer.evaluate(dataset, metric_key_prefix=prefix)
            finally:
                trainer.release()

    def train_on_all_data(
        self, trial: FixedTrial, folder: Path, fraction: float, is_interrupted: Callable[[], bool]
    ) -> None:
        """Train without evaluations until this fraction of the training run, and write the weights to a folder.

        Where `is_interrupted` returns True, the training ends early, and no weights are written.
        """
        with preserved_streams():
            trainer = self.for_trial(trial, str(folder)).with_arguments(**_ON_ALL_DATA)
            trainer.callbacks = [each for each in trainer.callbacks if not isinstance(each, EarlyStoppingCallback)]
            trainer.add_callback(_EndsAfter(fraction, is_interrupted))
            try:
                trainer.train()
                if not is_interrupted():
                    trainer.save_weights(folder)
                trainer.end_trackers("interrupted" if is_interrupted() else "complete")
            finally:
                trainer.release()

    def with_defaults(self, space: SearchSpace | SpaceFunction) -> tuple[SearchableTrainer, Params]:
        """Return a recipe of trainers that train as this one does by itself, and no parameters."""
        return _WithDefaults(self.trainer), {}

    def _build_model(self, trial: Trial) -> torch.nn.Module:
        trainer = self.trainer.for_trial(trial)
        seed_run(trainer.args)
        return trainer.call_model_init(trial)


class _WithDefaults(SearchableTrainer):
    """A recipe whose trainers train as in `Trainer.train`: their own arguments, a model from ``model_init(None)``."""

    def for_trial(self, trial: Trial, output_dir: str) -> Trainer:
        """Return a new trainer, which writes to `output_dir`."""
        trainer = super().for_trial(trial, output_dir)
        trainer.trial = None
        return trainer


class _EndsAfter(TrainerCallback):
    """Ends training after a fraction of its optimizer steps, or when it is interrupted."""

    def __init__(self, fraction: float, is_interrupted: Callable[[], bool]) -> None:
        self._fraction, self._is_interrupted = fraction, is_interrupted

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if state.global_step >= round(self._fraction * state.max_steps) or self._is_interrupted():
            control.should_training_stop = True
        return control


def _deciding(callback: TrainerCallback) -> list[object]:
    """Return what identifies a callback that may decide something: one of the user, or early stopping."""
    if not is_package_class(type(callback)):
        return [callback]
    return [(type(callback), callback.state().get("args"))] if isinstance(callback, ExportableState) else []
