"""The state that transformers' checkpoints leave out, so that a resumed trial equals an uninterrupted one.

transformers restores weights, optimizer, schedule and the random streams of the process, and skips the batches that
the epoch has had. It does not restore:

- the generators that samplers own, such as those of TRL's GRPO and RLOO trainers: they would start again, and the
  order of the data with them;
- the random streams at the beginning of the epoch, from which other samplers drew its order;
- the attributes in which trainers of TRL keep what later steps need (`_ATTRIBUTES`);
- the reference model of a trainer that updates it (`sync_ref_model`).
"""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from accelerate.utils import send_to_device
from safetensors.torch import load_model, save_model
from torch.utils.data import DataLoader, Sampler
from transformers.trainer_pt_utils import safe_globals
from transformers.trainer_utils import has_length

from ..training.callbacks import TrainerCallback
from ..training.randomness import RandomStreams

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

# Where TRL's trainers are between two generations, the completions they still train on, the tokens they have counted.
_ATTRIBUTES = ("_step", "_buffered_inputs", "_total_train_tokens")
_REFERENCE_MODEL = "reference_model.safetensors"
FILES = ("exact_resume_", _REFERENCE_MODEL)  # how the names of the files begin
_SAMPLERS = ("sampler", "batch_sampler")  # torch takes any iterable
_GENERATORS = (torch.Generator, random.Random, np.random.Generator)

logger = logging.getLogger(__name__)


def why_inexact(trainer: transformers.Trainer) -> str | None:
    """Return why a trainer cannot resume with the same numbers, whatever its checkpoints hold; None if it can."""
    args = trainer.args
    if getattr(args, "use_vllm", False):
        return "use_vllm=True draws completions from random streams that no checkpoint holds"
    if trainer.train_dataset is not None and not has_length(trainer.train_dataset):
        return "train_dataset is a stream without a length, so transformers cannot resume after its first pass"
    if args.ignore_data_skip and args.eval_strategy == "steps":
        return "with ignore_data_skip=True, transformers resumes at the beginning of an epoch"
    if args.dataloader_persistent_workers and args.dataloader_num_workers and _draws_for_evaluation(trainer):
        return "with dataloader_persistent_workers=True, the order of an evaluation depends on those before"
    if len(getattr(trainer.model, "peft_config", None) or ()) > 1:
        return "transformers cannot resume a model with several adapters of PEFT as it was"
    return None


def _draws_for_evaluation(trainer: transformers.Trainer) -> bool:
    sets = trainer.eval_dataset.values() if isinstance(trainer.eval_dataset, dict) else [trainer.eval_dataset]
    return any(_places(trainer.get_eval_dataloader(each)) for each in sets if each is not None)


class ExactResume(TrainerCallback):
    """Add to every checkpoint what transformers leaves out, and restore it when training resumes.

    Each process writes a file of its own. Where a checkpoint lacks it (hpsearch 0.8.0 wrote none), training resumes as
    transformers resumes it, and a warning says that this is not exact.

    Args:
        trainer: the trainer that trains.
    """

    def __init__(self, trainer: transformers.Trainer) -> None:
        self._trainer: Any = trainer
        self._begun: dict[str, object] = {}  # the states at the beginning of the epoch
        self._resumed_from: Path | None = None
        self._saved: dict[str, Any] = {}

    def resume_from(self, checkpoint: Path) -> None:
        """Restore the state in a checkpoint when training begins."""
        self._resumed_from = checkpoint

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Restore the attributes and the reference model."""
        if self._resumed_from is None or not (self._resumed_from / self._file_name).is_file():
            return
        with safe_globals():
            self._saved = torch.load(self._resumed_from / self._file_name, map_location="cpu", weights_only=True)
        for name, value in self._saved["attributes"].items():
            setattr(self._trainer, name, send_to_device(value, args.device))
        if (reference := self._updated_reference) is not None:
            load_model(reference, self._resumed_from / _REFERENCE_MODEL)

    def on_epoch_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: object = None,
        **kwargs: object,
    ) -> None:
        """Restore the generators as they were before the order of this epoch was drawn, and note them."""
        if self._resumed_from is not None and not self._restore(train_dataloader):
            logger.warning(
                "%s does not hold the state of this trainer's samplers, as it was written by hpsearch 0.8.0 or by "
                "another number of processes: the batches after the resume differ from those of an undisturbed trial.",
                self._resumed_from,
            )
        self._saved, self._resumed_from = {}, None
        self._begun = {"generators": generator_states(train_dataloader), "streams": RandomStreams.capture().to_dict()}

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: object = None,
        **kwargs: object,
    ) -> None:
        """Write the state; in the middle of an epoch the generators as they were at its beginning."""
        is_mid_epoch = not float(state.epoch or 0.0).is_integer()
        now = {} if is_mid_epoch else {"generators": generator_states(train_dataloader)}
        checkpoint = Path(args.output_dir, f"checkpoint-{state.global_step}")
        torch.save({**self._begun, **now, "attributes": self._attributes}, checkpoint / self._file_name)
        if (reference := self._updated_reference) is not None and state.is_world_process_zero:
            save_model(reference, str(checkpoint / _REFERENCE_MODEL))
        self._trainer.accelerator.wait_for_everyone()  # the main process marks the checkpoint as whole after this

    @property
    def _file_name(self) -> str:
        return f"exact_resume_{self._trainer.args.process_index}.pth"

    @property
    def _attributes(self) -> dict[str, object]:
        present = vars(self._trainer)
        return {name: present[name] for name in _ATTRIBUTES if name in present}

    @property
    def _updated_reference(self) -> torch.nn.Module | None:
        is_updated = getattr(self._trainer.args, "sync_ref_model", False)
        return self._trainer.accelerator.unwrap_model(self._trainer.ref_model) if is_updated else None

    def _restore(self, loader: object) -> bool:
        """Restore the generators; return False if the checkpoint has not all that this trainer needs."""
        if not self._saved:
            return not (self._attributes or generator_states(loader))
        RandomStreams.from_dict(self._saved["streams"]).restore()
        return restore_generators(loader, self._saved["generators"])


def generator_states(loader: object) -> dict[str, object]:
    """Return the states of all generators that a loader and its samplers own, by the path of attributes to them."""
    return {path: _state(getattr(owner, name)) for path, (owner, name) in _places(loader).items()}


def restore_generators(loader: object, states: dict[str, object]) -> bool:
    """Restore the generators of a loader, also those that its samplers make later; return False if one has no place."""
    places = _places(loader, is_made=False)
    for path, state in states.items():
        owner, name = places.get(path, (None, ""))
        if owner is not None and getattr(owner, name) is None:
            setattr(owner, name, _new_generator(state))
        if owner is not None:
            _set_state(getattr(owner, name), state)
    return places.keys() >= states.keys()


def _places(loader: object, is_made: bool = True) -> dict[str, tuple[object, str]]:
    """Return the owner and the attribute of each generator of a loader and its samplers, by the path to it.

    Unless `is_made`, attributes that are None are among them: some samplers make their generator when it is needed.
    """
    found: dict[str, tuple[object, str]] = {}
    seen: set[int] = set()
    waiting = [] if loader is None else [("", loader)]
    while waiting:
        path, owner = waiting.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        for name, value in vars(owner).items():
            here = f"{path}.{name}"
            if isinstance(value, _GENERATORS) or (value is None and not is_made):
                found[here] = owner, name
            elif isinstance(value, (list, tuple)):
                waiting += [(f"{here}.{at}", each) for at, each in enumerate(value) if isinstance(each, Sampler)]
            elif isinstance(value, (DataLoader, Sampler)) or (name in _SAMPLERS and hasattr(value, "__dict__")):
                waiting.append((here, value))
    return found


def _state(generator: torch.Generator | random.Random | np.random.Generator) -> object:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    return generator.getstate() if isinstance(generator, random.Random) else generator.bit_generator.state


def _new_generator(state: Any) -> object:
    """Return a generator of the kind that a state is of."""
    if isinstance(state, torch.Tensor):
        return torch.Generator()
    if isinstance(state, tuple):
        return random.Random()
    return np.random.Generator(getattr(np.random, state["bit_generator"])())


def _set_state(generator: torch.Generator | random.Random | np.random.Generator, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.bit_generator.state = state
