"""A function that makes trainers of transformers, as something that can be searched."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import transformers
from transformers.trainer_utils import has_length

from ..errors import ArgumentError, SpaceError, StudyError
from ..search.folds import Folds
from ..search.metrics.known_trainers import is_rewarded
from ..search.result.best_run import BestRun
from ..search.space.parameters import Params
from ..search.space.read_parameters import check_read
from ..search.store.provenance import MODEL, fingerprint, names_of
from ..search.study import SEEDS_IN_ALL, SpaceLike, as_space, known_space
from ..search.time_and_epoch_limits import NO_FIRST_CALL, FirstCall
from ..search.trial import FixedTrial, Trial
from ..search.trial_record import TrialRecord
from ..searching.replay import Replay, replay
from ..searching.run_search import search
from ..searching.search_arguments import DEFAULT_STUDY_NAME, SearchArguments
from ..searching.searched_recipe import Evaluation
from ..system.ctrl_c import ctrl_c_as_interruption
from ..system.json_types import JsonObject
from ..system.progress_bars import no_progress_bars
from ..training.callbacks import ExportableState, check_early_stopping
from ..training.randomness import preserved_streams, seed_run
from ..training.shared_parts import EarlierParts
from ..trial.searchable import PreflightTrainer
from .exact_resume import why_inexact
from .first_call import FirstTrial, Space, call_first, name_of, not_suggested, seed_of
from .optuna_names import UNKNOWN_STUDY, StudyOfTrial
from .prepared_data import folder_of_prepared_data, mapping_once
from .transformers_trainer import TransformersTrainer, read_state, resumable_checkpoints


class TrainerFunction:
    """A function that makes a `transformers.Trainer` for a trial, as something that can be searched.

    Args:
        make_trainer, hp_space, output_dir: as in `tune`.
    """

    user_code = "make_trainer"
    default_seed = 42
    defaults = object()  # it has none: only make_trainer knows what a parameter is for
    has_fixed_model = False
    writes_its_checkpoints = False
    notices: Sequence[str] = ()
    names: Mapping[str, str] = MappingProxyType({})
    # Until `prepare` has made something.
    args: Any = None
    evaluation = Evaluation(1, False)
    cannot_pause: str | None = None
    cannot_extend: str | None = "make_trainer sets the length of a trial"
    training_samples: int | None = None
    data_to_split: None = None
    has_own_data = True
    sets_arguments_by_name = True

    def __init__(
        self,
        make_trainer: Callable[[Trial], transformers.Trainer],
        hp_space: SpaceLike = None,
        output_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.make_trainer, self.hp_space, self.output_dir = make_trainer, hp_space, output_dir
        self._earlier_parts = EarlierParts()
        self._fingerprints: dict[str, object] = {}
        self.suggested_names: Sequence[str] = ()
        self._made_class: type | None = None
        self._prepared_data: Path | None = None  # the folder that keeps them
        self._first: tuple[object, FirstTrial, dict[str, str]] | None = None  # what `prepare` inspects

    def search(self, given: SearchArguments, first_call: FirstCall = NO_FIRST_CALL) -> BestRun | list[BestRun]:
        """Search, as `Trainer.hyperparameter_search` does, after a first call of `make_trainer`.

        Raises:
            StudyError: an argument needs `hpsearch.Trainer`.
        """
        if given.oom_fallback:
            raise StudyError(
                f"oom_fallback={given.oom_fallback!r} needs hpsearch.Trainer: what make_trainer(trial) makes cannot be "
                "made again in smaller batches."
            )
        return search(self, given, first_call)

    def space_or_default(self, hp_space: SpaceLike) -> SpaceLike:
        """Return a space; if it is None, that of this function, or an empty one: the function suggests."""
        hp_space = self.hp_space if hp_space is None else hp_space
        return _left_to_make_trainer if hp_space is None else hp_space

    def replay(
        self, study_name: str = DEFAULT_STUDY_NAME, number: int | None = None, *positional: Any, **arguments: Any
    ) -> Replay:
        """Run one trial of a study again, as `Trainer.replay` does."""
        return replay(self, study_name, number, *positional, **arguments)

    def with_arguments(self, **parameters: Any) -> TrainerFunction:
        """Return the same recipe with another `output_dir`; only `make_trainer` sets all other arguments.

        Raises:
            ArgumentError: another argument is given.
        """
        others = sorted(parameters.keys() - {"output_dir"})
        if others:
            code = name_of(self.make_trainer)
            raise ArgumentError(f"{others[0]} cannot be set from outside: {code}(trial) decides it.")
        other = copy.copy(self)
        other.output_dir = parameters.get("output_dir", self.output_dir)
        return other

    def is_read_by_user_code(self, name: str) -> bool:
        """Return True: `make_trainer` reads all parameters."""
        return True

    def is_set_before_user_code(self, name: str) -> bool:
        """Return False: `make_trainer` makes the arguments, too."""
        return False

    def for_trial(self, trial: Trial, output_dir: str | None = None) -> TransformersTrainer:
        """Seed the random streams, and return the trainer of a trial, which writes to `output_dir`.

        The seed is the trial's parameter ``seed`` if it has one, else that of the arguments. Where `make_trainer` gives
        its arguments another one, it is called again, after that one is set. The arguments of a replica get its seeds.

        Raises:
            StudyError: it cannot be searched, or shares something with an earlier one.
            SpaceError: a function as space returns something that it has not suggested.
        """
        if unread := trial.arguments.keys() - trial.params.values_by_name.keys():
            name = min(unread)
            raise SpaceError(not_suggested(name, trial.arguments[name], "make_trainer"))
        environment = dict(os.environ)
        seed = seed_of(trial, self.args.seed)
        made = self._make(trial, seed)
        if trial.seed_offset:
            self._set_seeds(made, seed, trial.seed_offset)
        if made.args.seed != seed:  # it is known only now, so the model is made again
            seed = made.args.seed
            del made
            made = self._make(trial, seed)
        if self.output_dir is None and made.args.output_dir != self.args.output_dir:
            raise StudyError(
                f"make_trainer(trial) gives each trial another output_dir ({self.args.output_dir!r}, "
                f"{made.args.output_dir!r}), but the study has one: pass output_dir= to tune."
            )
        return TransformersTrainer(made, trial, output_dir or made.args.output_dir, environment)

    def _set_seeds(self, made: transformers.Trainer, seed: int, offset: int) -> None:
        """Give a trainer the seeds of a replica.

        Raises:
            StudyError: `make_trainer` gives each trial a seed of its own.
        """
        if made.args.seed != self.args.seed:
            raise StudyError(
                f"make_trainer(trial) gives each trial another seed ({self.args.seed}, {made.args.seed}), so trials "
                "cannot be repeated with others: take the seed out of make_trainer, or leave repeats out."
            )
        made.args.seed = seed
        if made.args.data_seed is not None:
            made.args.data_seed = (made.args.data_seed + offset) % SEEDS_IN_ALL
            made.accelerator.dataloader_config.data_seed = made.args.data_seed
        seed_run(made.args)  # the trainer has set the seed that it was made with

    @contextlib.contextmanager
    def preflight_trainer(self, trial: Trial, output_dir: str) -> Iterator[PreflightTrainer]:
        """Yield the trainer of a trial for its preflight; then it is dropped, and the random streams are put back."""
        with preserved_streams():
            trainer = self.for_trial(trial, output_dir)
            try:
                left_out = trainer.prepare_preflight()
                with no_progress_bars():  # TRL's trainers map what they are given to evaluate
                    yield PreflightTrainer(trainer, left_out, trainer.skips)
            finally:
                trainer.release()

    def let_user_code_suggest(self, trial: Trial) -> None:
        """Call `make_trainer(trial)` once, so that the trial has the parameters which it suggests."""
        with preserved_streams():
            self.for_trial(trial).release()

    def _make(self, trial: Trial, seed: int) -> transformers.Trainer:
        args = copy.copy(self.args)
        args.seed = seed
        seed_run(args)
        with mapping_once(self._prepared_data), no_progress_bars():
            made = self.make_trainer(trial)
        return self._checked(made)

    def check_parameter(self, name: str, value: object, conditions: Mapping[str, object] | None = None) -> None:
        """Do nothing: what a parameter may be, `make_trainer` knows."""

    def check_changeable(self, name: str) -> None:
        """Refuse: transformers resumes from a checkpoint with the optimizer and schedule as they were.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(f"{name!r} cannot change when a transformers.Trainer resumes; hpsearch.Trainer can.")

    def resumable_checkpoints(self, folder: Path) -> list[Path]:
        """Return the whole checkpoints in a folder that hold more than weights, newest first."""
        return resumable_checkpoints(folder)

    def read_state(self, checkpoint: Path) -> JsonObject:
        """Return the trainer state of a checkpoint, with what it records of the trial; empty if it cannot be read."""
        return read_state(checkpoint)

    def smaller_batches(self, args: object) -> None:
        """Return None: a trainer cannot be made with other arguments than those that `make_trainer` gives it."""

    def build_best_model(self, record: TrialRecord, folder: Path) -> torch.nn.Module:
        """Build the model of a trial, with the weights in a folder, in evaluation mode."""
        trial = FixedTrial.of(record)
        with preserved_streams():
            trainer = self.for_trial(trial, str(folder.parent))
            try:
                return trainer.load_model(folder)
            finally:
                trainer.release()

    def evaluate_weights(self, trial: Trial, folder: Path, dataset: Any, prefix: str) -> dict[str, float]:
        """Return the metrics of the weights in a folder, which a trial has trained; the names begin with `prefix`."""
        with preserved_streams():
            trainer = self.for_trial(trial, str(folder.parent))
            try:
                trainer.prepare_preflight()
                with no_progress_bars():
                    return trainer.evaluate_weights(folder, dataset, prefix)
            finally:
                trainer.release()

    def with_defaults(self, space: Space) -> tuple[TrainerFunction, Params]:
        """Return this recipe, and the defaults of a space in which every parameter has one.

        Raises:
            StudyError: a parameter has none, or only the function knows what it asks for.
        """
        known = known_space(space)
        if known is None or not known.contains(known.defaults()):
            raise StudyError(
                "only make_trainer(trial) knows them, unless every parameter of the space has one, as in "
                "Float(1e-5, 1e-3, default=5e-5)"
            )
        return self, known.defaults()

    def data(self) -> dict[str, object]:
        """Return the fingerprints of the datasets by name."""
        return self._fingerprints

    def functions(self) -> dict[str, object]:
        """Return `make_trainer`, and the class of the trainers, by name."""
        return {"trainer": self._made_class, "make_trainer": self.make_trainer}

    def prepare(self, space: Space | None, folds: Folds | None = None) -> None:
        """Call `make_trainer` with parameters drawn from the space, and keep what is the same for all trials.

        Raises:
            StudyError: it fails, or makes something that cannot be searched.
            SpaceError: it does not read a parameter.
        """
        if space is None:
            space = as_space(self.space_or_default(None))
        if self._first is None:
            self.call_first(space, folds=folds)
        assert self._first is not None
        (returned, trial, environment), self._first = self._first, None  # not to be pickled with the recipe
        if trial.reads_names_of_optuna:
            raise StudyError("make_trainer(trial) reads trial.study or trial.datetime_start; only plain functions can.")
        with preserved_streams():
            made = self._checked(returned)
            del returned
            _check_data(made)
            args = self.args = _without(made.args, trial.params.values_by_name)
            args.output_dir = args.output_dir if self.output_dir is None else os.fspath(self.output_dir)
            args.ray_scope = getattr(args, "ray_scope", "last")
            sets = len(made.eval_dataset) if isinstance(made.eval_dataset, dict) else 1
            self.evaluation = Evaluation(sets, made.compute_metrics is not None, type(made))
            self.suggested_names = list(trial.params.values_by_name)
            named = {"train_dataset": made.train_dataset, "eval_dataset": made.eval_dataset}
            self.cannot_pause = why_inexact(made)
            self.training_samples = _samples(made)
            self.sets_arguments_by_name = all(hasattr(args, name) for name in self.suggested_names)
            self.names = {**names_of(named), MODEL: _name_of_model(made.model, trial.params.values_by_name.values())}
            self._fingerprints = {name: fingerprint(each) for name, each in named.items() if each is not None}
            sample = TransformersTrainer(made, trial, args.output_dir, environment)
            self._made_class = type(made)
            del made
            sample.release()
            check_read(trial, self)

    def call_first(
        self,
        space: Space,
        code: str = "make_trainer",
        start: Mapping[str, object] | None = None,
        seed: int | None = None,
        study: StudyOfTrial = UNKNOWN_STUDY,
        folds: Folds | None = None,
    ) -> tuple[object, FirstTrial]:
        """Call the function with drawn parameters; return what it returns, which `prepare` inspects, and the trial.

        Args:
            space, code, start, study, folds: see `first_call.call_first`.
            seed: of the random streams; None: the default.

        Raises:
            FirstReport: it is a plain function, which reports.
        """
        environment, self._prepared_data = dict(os.environ), folder_of_prepared_data()

        def call(trial: Trial) -> object:
            with ctrl_c_as_interruption(), mapping_once(self._prepared_data, at_once=True):
                return self.make_trainer(trial)

        with preserved_streams():
            seed = self.default_seed if seed is None else seed
            returned, trial = call_first(call, space, code, seed, start, study, folds)
        self._first = returned, trial, environment
        return returned, trial

    def _checked(self, made: object) -> transformers.Trainer:
        if not isinstance(made, transformers.Trainer):
            shown = "an hpsearch.Trainer, which searches itself" if _is_ours(made) else repr(made)
            raise StudyError(f"make_trainer(trial) must return a transformers.Trainer, but returned {shown}.")
        args = made.args
        for name, why in _REFUSED.items():
            if getattr(args, name, None):
                raise StudyError(f"make_trainer(trial) made a trainer with {name}={getattr(args, name)!r}: {why}")
        if args.save_strategy == "best":
            raise StudyError(
                "make_trainer(trial) made a trainer with save_strategy='best', which leaves a paused trial without "
                "a checkpoint; use 'epoch' or 'no'. The search keeps the best weights itself (scope='all')."
            )
        if args.fsdp or args.deepspeed or made.is_fsdp_enabled or made.is_deepspeed_enabled:
            name = "fsdp" if args.fsdp or made.is_fsdp_enabled else "deepspeed"
            raise StudyError(
                f"make_trainer(trial) made a trainer with {name}, which spreads its model over processes; to search "
                "that needs hpsearch.Trainer."
            )
        check_early_stopping(made.callback_handler.callbacks, args)
        keeps_state = [each for each in made.callback_handler.callbacks if isinstance(each, ExportableState)]
        others = {"trainer": made, "args": args, **{f"callback {type(each).__name__}": each for each in keeps_state}}
        self._earlier_parts.check("make_trainer", made.model, others)
        return made


def _name_of_model(model: object, searched: Collection[object]) -> str:
    """Return the class of a model, and where its weights are from, unless a parameter of the trial says that."""
    core: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
    kind, name = type(core).__name__, getattr(getattr(core, "config", None), "_name_or_path", None)
    return f"{name} ({kind})" if name and name not in searched else kind


def _is_ours(made: object) -> bool:
    """Return True for an `hpsearch.Trainer`, which this room must not import."""
    return any(each.__module__.startswith("hpsearch.trainer.") for each in type(made).__mro__)


def _samples(trainer: transformers.Trainer) -> int | None:
    """Return how many samples a trainer has to train on; None if that is not known."""
    data = trainer.train_dataset
    draws_by_itself = is_rewarded(type(trainer)) or isinstance(data, dict)  # prompts; from several sets in turn
    return len(data) if has_length(data) and not draws_by_itself else None


def _without(args: transformers.TrainingArguments, drawn: Mapping[str, object]) -> Any:
    """Return a copy of arguments with their defaults in place of those that have the name of a parameter."""
    other = copy.copy(args)
    for each in dataclasses.fields(args):
        if each.name in drawn and each.default is not dataclasses.MISSING:
            setattr(other, each.name, each.default)
    return other


def _check_data(made: transformers.Trainer) -> None:
    """Check that a trainer has something to train on, and something to be compared by.

    Raises:
        StudyError: it has not.
    """
    makes_batches = type(made).get_train_dataloader is not transformers.Trainer.get_train_dataloader
    if made.train_dataset is None and not makes_batches:
        raise StudyError("A search needs a train_dataset; the trainer that make_trainer(trial) made has none.")
    has_none = made.eval_dataset is None or (isinstance(made.eval_dataset, dict) and not made.eval_dataset)
    if has_none and getattr(made, "evaluator", None) is None:
        raise StudyError("A search compares evaluations, so what make_trainer(trial) makes needs an eval_dataset.")


def _left_to_make_trainer(trial: Trial) -> dict[str, object]:
    return {}


_REFUSED = {
    "push_to_hub": "every trial would upload its model; upload the best one after the search.",
    "auto_find_batch_size": "it would train trials with other batch sizes than their parameters say.",
}
