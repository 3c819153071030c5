"""One call of a plain function, as the trainer of a trial: its reports become evaluations, its checkpoints resume."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerControl

from ..errors import ArgumentError, CheckpointError, HpsearchError, StudyError, TrialPaused
from ..search.space.parameters import Parameter
from ..search.trial import Trial
from ..system.checkpoint_files import TRIAL_FILE
from ..system.files import read_json, whole_folder, write_json
from ..training.randomness import seed_run
from ..trial.reporting_callback import ReportingCallback
from .first_call import KnownResult, name_of, seed_of
from .function_in_group import events_in_group
from .function_trial import FunctionTrial, as_metrics, as_number
from .optuna_names import StudyOfTrial


@dataclass
class FunctionArguments:
    """What all calls of a function have in common, in place of training arguments; `study.json` records it.

    Attributes:
        seed: of the random streams, unless it is searched.
        max_resource: the last step of a whole run; None: not known.
        reports: whether the function reports while it runs.
        reads_checkpoint: whether it can resume.
        objective: the metrics that it reports, of which one is optimised if none is named: ``("value",)`` of a number.
    """

    output_dir: str
    seed: int
    max_resource: int | None = None
    reports: bool = True
    reads_checkpoint: bool = False
    objective: tuple[str, ...] = ()

    @classmethod
    def of(cls, recorded: Mapping[str, Any]) -> FunctionArguments:
        """Return the arguments that `study.json` holds; what else it holds is left out."""
        known = {each.name: recorded[each.name] for each in fields(cls)}
        return cls(**{**known, "objective": tuple(known["objective"])})

    # What rooms below read of training arguments.
    ray_scope = "last"
    world_size = n_gpu = 1
    dataloader_num_workers = 0
    full_determinism = False
    save_total_limit = None
    enable_jit_checkpoint = False

    @property
    def eval_strategy(self) -> str:
        """``"report"``: the function decides when; ``"no"``: at its end only."""
        return "report" if self.reports else "no"

    @property
    def use_cpu(self) -> bool:
        """True without a GPU."""
        return not torch.cuda.is_available()

    def to_dict(self) -> dict[str, object]:
        """Return them for `study.json`."""
        return asdict(self)


@dataclass
class _Progress:
    """How far a call is, under the names that trainers have for it; `max_steps` is 0 if it is not known."""

    max_steps: int
    global_step: int = 0
    epoch: float = 0.0
    best_model_checkpoint: None = None
    is_world_process_zero: bool = True

    def reach(self, step: int) -> None:
        self.global_step, self.epoch = step, float(step)


class FunctionCall:
    """One call of a function for a trial; see `Trainable`.

    Args:
        function: of a `FunctionTrial`.
        trial: its parameters are set, or suggested by the function.
        args: what all calls have in common, with the folder and the seed of this one.
        known: its result, if it was called with these parameters already.
        noticed: what the calls of a function have given notice of; each kind is said once.
    """

    eval_dataset = None

    def __init__(
        self,
        function: Callable[[Any], object],
        trial: Trial,
        args: FunctionArguments,
        known: KnownResult | None = None,
        noticed: set[str] | None = None,
    ) -> None:
        self.args = args
        self._function, self._trial, self._known = function, trial, known
        self._noticed = set() if noticed is None else noticed
        self._progress, self._control = _Progress(args.max_resource or 0), TrainerControl()
        self._event: tuple[Any, Any, Any] = (args, self._progress, self._control)  # as callbacks receive it
        self._reporting: ReportingCallback | None = None
        self._first_step = 1  # the number of the first step, as the function counts
        self._saved_at: int | None = None
        self._reported_before: int | None = None  # the step of the report before the last one
        self._resumed_at: int | None = None
        self._last: dict[str, float] | None = None
        self._has_to_end = False

    def with_arguments(self, **parameters: object) -> FunctionCall:
        """Refuse: the function sets everything.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(f"{sorted(parameters)} cannot be set: the function decides everything.")

    def add_callback(self, callback: ReportingCallback) -> None:
        """Add the callback that reports."""
        self._reporting = callback

    def train(self, resume_from_checkpoint: Any = None, *, reapply_arguments: bool = False) -> None:
        """Call the function until it returns, or the trial is paused or pruned; an ended trial is not continued.

        Raises:
            CheckpointError: the checkpoint cannot be resumed from.
            StudyError: the function returns something that is no result.
        """
        reporting, checkpoint = self._callback, None
        if resume_from_checkpoint is not None:
            checkpoint = Path(resume_from_checkpoint)
            if reapply_arguments:
                raise CheckpointError(f"{str(checkpoint)!r} was written with other arguments.")
            self._restore(checkpoint)
        if self._known is not None:
            reporting.continue_after(self._known.seconds)
        reporting.on_train_begin(*self._event)
        if reporting.is_at_its_end:
            return
        seed_run(self.args)  # type: ignore[arg-type]
        with events_in_group(self._trial, self) as events:
            trial = FunctionTrial(self._trial, self.args.seed, checkpoint, events, StudyOfTrial.of(reporting.study))
            result, error = self._call(trial)
        if not self._trial.ranks.is_main or isinstance(error, TrialPaused):
            return
        if error is not None:
            self._end_pruned(error)
        else:
            self._finish(result)

    def _call(self, trial: FunctionTrial) -> tuple[object, Exception | TrialPaused | None]:
        """Return what the function has returned, or the exception by which it has ended the trial."""
        try:
            return (self._function(trial) if self._known is None else self._known.take(trial)), None
        except TrialPaused as error:
            return None, error
        except Exception as error:
            if not _is_pruned(error):
                raise
            return None, error

    def suggest(self, name: str, parameter: Parameter) -> Any:
        """Return the trial's value for a parameter."""
        return self._trial.suggest(name, parameter)

    def report(self, value: object, step: int | None) -> None:
        """Report an evaluation after a step; see `FunctionTrial.report`. The first report of a step counts."""
        metrics, last = as_metrics(value, self._name), self._progress.global_step
        counted = self._counted(step)
        if counted <= last:
            if not counted == last == self._resumed_at:  # else the function repeats the step at which it paused
                ignored = "the first report of a step counts, and others are ignored"
                self._notice_once("repeated step", f"{self._name} reports step {step} more than once: {ignored}")
            return
        # A function that does not count its steps could not repeat one.
        self._reported_before = None if step is None else last
        self._progress.reach(counted)
        self._evaluate(metrics)

    def should_prune(self) -> bool:
        """Return whether the trial ends here; see `FunctionTrial.should_prune`."""
        reporting = self._callback
        if reporting.stop is not None or reporting.pruned:
            self._has_to_end = True
            return True
        if reporting.paused:
            if self._saved_at is not None and self._saved_at in (self._progress.global_step, self._reported_before):
                self._note_in_checkpoint(Path(self.args.output_dir, f"checkpoint-{self._saved_at}"))
                self._has_to_end = True
                raise TrialPaused
            reporting.paused = False  # nothing to resume from: it continues to the next rung
            self._control.should_training_stop = self._control.should_save = False
            if self.args.reads_checkpoint:
                saved_nothing = "has saved nothing since the report before the last one"
                self._notice_once("pause", f"{self._name} {saved_nothing}: its trials do not pause at such rungs")
        if self.args.reads_checkpoint and self._saved_at is not None:  # it will save again, and ask again here
            reporting.on_step_begin(*self._event)
        return False

    @contextlib.contextmanager
    def save(self) -> Iterator[Path]:
        """Give a new folder to write a checkpoint to; see `FunctionTrial.save`."""
        reporting, step = self._callback, self._progress.global_step
        with whole_folder(Path(self.args.output_dir, f"checkpoint-{step}")) as partial:
            yield Path(partial)
            self._note_in_checkpoint(Path(partial))
        self._saved_at = step
        reporting.on_save(*self._event)

    def evaluate(self, eval_dataset: object = None) -> dict[str, float]:
        """Return the last report: a function evaluates itself."""
        return dict(self._last or {})

    def operations_so_far(self) -> float:
        """Return 0: the operations of a function are not known."""
        return 0.0

    def capture_weights(self) -> None:
        """Return None: the weights of a function are in its own checkpoints."""

    def save_weights(self, folder: object, state_dict: object = None) -> None:
        """Do nothing: the function writes its checkpoints."""

    def end_trackers(self, state: str, reason: str | None) -> None:
        """Do nothing: the function has its own trackers."""

    def release(self) -> None:
        """Drop what the call has left."""
        self._reporting = self._last = None
        if torch.cuda.is_available():  # a model may refer to itself, and is in the way of the next one
            gc.collect()
            torch.cuda.empty_cache()

    @property
    def _callback(self) -> ReportingCallback:
        assert self._reporting is not None, "add_callback() comes first"
        return self._reporting

    @property
    def _name(self) -> str:
        return name_of(self._function)

    def _note_in_checkpoint(self, folder: Path) -> None:
        """Write what is known of the trial now into a checkpoint."""
        so_far = {"step": self._progress.global_step, "first_step": self._first_step}
        write_json(folder / TRIAL_FILE, {**self._callback.state(), **so_far})

    def _restore(self, checkpoint: Path) -> None:
        try:
            kept = read_json(checkpoint / TRIAL_FILE)
            self._callback.so_far = kept["attributes"]["so_far"]
            self._first_step = int(kept["first_step"])
            self._resumed_at = int(kept["step"])
            self._progress.reach(self._resumed_at)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{str(checkpoint)!r} cannot be read: {error}.") from error
        reports = self._callback.reports
        self._last = dict(reports[-1].metrics) if reports else None

    def _notice_once(self, kind: str, text: str) -> None:
        if kind not in self._noticed:
            self._noticed.add(kind)
            self._callback.notice(text)

    def _counted(self, step: int | None) -> int:
        """Return a step as counted from 1.

        Raises:
            StudyError: it comes before the last one, and was not reported.
        """
        last = self._progress.global_step
        if step is None:
            return last + 1
        number = None if isinstance(step, bool) else as_number(step)
        if number is None or not number.is_integer() or number < 0:
            raise StudyError(f"The step of a report must be a whole number of at least 0, but got {step!r}.")
        if last == 0 and number == 0:
            self._first_step = 0
        counted = int(number) + 1 - self._first_step
        if counted < last and not any(report.step == counted for report in self._callback.reports):
            raise StudyError(
                f"The steps of reports must increase, but {self._name} reports step {step} after step "
                f"{last - 1 + self._first_step}."
            )
        return counted

    def _evaluate(self, metrics: dict[str, float]) -> None:
        self._callback.on_step_end(*self._event)
        self._callback.on_evaluate(*self._event, metrics=metrics)
        self._last = metrics

    def _finish(self, result: object) -> None:
        """Report the result that the function has returned, unless the trial had to end, or it has been reported."""
        reporting, progress = self._callback, self._progress
        if self._has_to_end or (reporting.stop is not None and not reporting.stop.is_interruption):
            return
        reporting.stop, reporting.pruned, reporting.paused = None, False, False  # it never asked, and is complete
        metrics = None if result is None else as_metrics(result, self._name)
        if metrics is None and self._last is None:
            raise HpsearchError(  # of this trial only: others may have had a result
                f"{self._name} returned None and has reported nothing; it must return a number or a dict of metrics, "
                "or call trial.report."
            )
        if metrics is not None and repr(metrics) != repr(self._last):  # NaN equals NaN here
            self._check_has_reported_some_of(metrics)
            progress.reach(progress.global_step or progress.max_steps or 1)
            self._label_what_was_saved(progress.global_step)
            self._control.should_training_stop = True  # nothing comes after it
            self._evaluate(metrics)
            reporting.stop = None  # a limit that has passed meanwhile stops nothing any more
        if not progress.max_steps:
            reporting.fraction = 1.0

    def _check_has_reported_some_of(self, metrics: Mapping[str, float]) -> None:
        if self._last is not None and not metrics.keys() & self._last.keys():
            returned, reported = (", ".join(sorted(each)).replace("eval_", "") for each in (metrics, self._last))
            raise StudyError(
                f"{self._name} returned {returned}, but has reported {reported}: it must report and return the "
                "objective under the same name."
            )

    def _label_what_was_saved(self, step: int) -> None:
        """Name the checkpoint of a function that has saved but not reported after the step of its result."""
        if self._saved_at == 0 and self._last is None:
            folder = Path(self.args.output_dir)
            os.replace(folder / "checkpoint-0", folder / f"checkpoint-{step}")
            self._saved_at = step

    def _end_pruned(self, error: Exception) -> None:
        """End a trial whose function raised `TrialPruned`, if only of its own accord; it fails without a report."""
        reporting = self._callback
        if not reporting.reports:
            raise error
        if reporting.stop is None:
            reporting.pruned, reporting.paused = True, False


def for_trial(args: FunctionArguments, trial: Trial, output_dir: str | None) -> FunctionArguments:
    """Return the arguments of one call: the seed is the trial's parameter ``seed`` if it has one."""
    return replace(args, output_dir=output_dir or args.output_dir, seed=seed_of(trial, args.seed))


def _is_pruned(error: Exception) -> bool:
    """Return whether an error is our `TrialPruned`, or Optuna's, which this room does not import."""
    return any(
        each.__name__ == "TrialPruned" and each.__module__.partition(".")[0] in ("hpsearch", "optuna")
        for each in type(error).__mro__
    )
