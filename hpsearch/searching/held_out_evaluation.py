"""The end of a search with a test set: its best run is evaluated on it once, and so is a run of the defaults.

Nothing else in a search reads the test set. Every evaluation is recorded in the folder of the study.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import HpsearchError, StudyError
from ..search.metrics.replicas import run_with_checkpoint
from ..search.result.best_run import BestRun
from ..search.result.held_out_result import PREFIX, held_out_result
from ..search.store.held_out_file import HELD_OUT_LOCK, HeldOutEvaluation, read_held_out, write_held_out
from ..search.store.live_sessions import sessions_at_work
from ..search.store.provenance import CALLBACKS, HP_SPACE, WITHOUT_EFFECT, fingerprint
from ..search.store.read_study import read_settings
from ..search.study import Study
from ..search.trial import FixedTrial
from ..system.files import file_lock
from ..system.interruption import Interruption
from ..system.json_types import JsonObject
from .default_run import DefaultRunEnded, train_defaults
from .held_out_dataset import HeldOut
from .searched_recipe import EvaluatesWeights

logger = logging.getLogger(__name__)
_DEFAULTS = "the defaults"
_ABOUT_NONE = (
    " (they have no trial: model_init gets None. Let it build the default model then, as in "
    "def model_init(trial=None), or leave them out by test_defaults=False)"
)


@dataclass(frozen=True)
class HeldOutEvaluator:
    """Evaluates the test set at the end of a search.

    Attributes:
        held_out: the test set.
        recipe: of the trials.
        study: the settings.
        session: which of the sessions in `study.json` is that of the search.
        interruption: notes a signal, which ends the run of the defaults.
        announce: shows what happens.
        warn: shows a notice, or logs it.
    """

    held_out: HeldOut
    recipe: Any
    study: Study
    session: int
    interruption: Interruption
    announce: Callable[[str], None]
    warn: Callable[[str], None]

    def evaluate(self, best: BestRun) -> BestRun:
        """Return the best run with its metrics on the test set, and record and show them, and those of the defaults.

        If an evaluation fails, a notice says why, and the best run has no such metrics.

        Raises:
            KeyboardInterrupt: the user interrupted it; the same call of the search evaluates what is left.
        """
        if sessions_at_work(self.study.folder):
            self.warn("another process still searches in this study: the one that ends last evaluates the test set")
            return best
        with file_lock(self.study.folder / HELD_OUT_LOCK):
            found = self._guarded(f"trial {best.run_id}", lambda: self._of_best(best))
            if found is None:
                return best
            if self.held_out.with_defaults and self.held_out.why_no_defaults(self.recipe, self.study) is None:
                self._guarded(_DEFAULTS, self._of_defaults)
            result = held_out_result(read_held_out(self.study.folder))
        if result is not None:
            self.announce(result.describe(self.study.objective.name))
        return best._replace(test_metrics=dict(found.metrics))

    def _guarded(self, what: str, evaluate: Callable[[], HeldOutEvaluation]) -> HeldOutEvaluation | None:
        """Return an evaluation; None, after a notice, if it fails: the search has ended, and its result is whole."""
        try:
            return evaluate()
        except Exception as error:
            is_told = isinstance(error, HpsearchError | DefaultRunEnded | FileNotFoundError)
            reason = str(error) if is_told else f"{type(error).__name__}: {error}"
            if not is_told:
                logger.info("an evaluation on the test set has failed", exc_info=True)
            is_without_trial = what == _DEFAULTS and "'NoneType'" in reason
            self.warn(
                f"{what} could not be evaluated on the test set: {reason}{_ABOUT_NONE if is_without_trial else ''}"
            )
            return None

    def _of_best(self, best: BestRun) -> HeldOutEvaluation:
        record = next(each for each in best.run_summary.best() if str(each.number) == best.run_id)
        if best.checkpoint is None or not best.checkpoint.is_dir():
            raise StudyError("its weights are not on disk")
        trial = FixedTrial.of(run_with_checkpoint(best.run_summary.records, record.number, best.checkpoint))
        return self._evaluation(self.recipe, trial, record.number, record.values, best.checkpoint)

    def _of_defaults(self) -> HeldOutEvaluation:
        recipe, params = self.recipe.with_defaults(self.study.space)
        trial = FixedTrial(params)
        try:
            run = train_defaults(recipe, self.study, trial, self._arguments, self.interruption, self.announce)
        except DefaultRunEnded as ended:
            if ended.cause is not None:
                raise ended.cause from None
            raise
        return self._evaluation(recipe, trial, None, run.values, run.checkpoint, run.epochs, run.seconds)

    def _evaluation(
        self,
        recipe: EvaluatesWeights,
        trial: FixedTrial,
        number: int | None,
        values: tuple[float, ...],
        checkpoint: Path,
        epochs: float = 0.0,
        seconds: float = 0.0,
    ) -> HeldOutEvaluation:
        """Return an evaluation: the one on record if it is of the same weights and data, else a new one, recorded."""
        folder, data = self.study.folder, fingerprint(self.held_out.dataset)
        made = HeldOutEvaluation(number, values, {}, data, self._arguments, time.time(), epochs, seconds)
        known = read_held_out(folder)
        for each in known:
            if each.is_of_same(made):
                return each
        metrics = recipe.evaluate_weights(trial, checkpoint, self.held_out.dataset, PREFIX)
        made.metrics.update(_numbers(metrics))
        write_held_out(folder, [*known, made])
        return made

    @property
    def _arguments(self) -> str:
        """The fingerprint of what the runs of this session are trained with."""
        return fingerprint_of_session(session_settings(self.study.folder, self.session))


def session_settings(folder: Path, number: int) -> JsonObject:
    """Return what `study.json` holds of a session: its arguments, versions, data and functions."""
    settings = read_settings(folder) or {"sessions": []}
    return dict(settings["sessions"][number])


def fingerprint_of_session(session: JsonObject) -> str:
    """Return a short text that changes with the arguments, the data or the functions of a session.

    As where trials of two sessions are compared, not with the function that chooses parameters, and with callbacks.

    >>> one, other = {"arguments": {"seed": 1, "output_dir": "a"}}, {"arguments": {"seed": 1, "output_dir": "b"}}
    >>> fingerprint_of_session(one) == fingerprint_of_session(other) != fingerprint_of_session({})
    True
    """
    arguments = {name: each for name, each in session.get("arguments", {}).items() if name not in WITHOUT_EFFECT}
    functions = {name: each for name, each in session.get("functions", {}).items() if name not in (HP_SPACE, CALLBACKS)}
    described = [arguments, session.get("data", {}), functions]
    return hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are numbers, as JSON can hold them; without the epoch, not that of the weights."""
    scalars = {name: each.item() if getattr(each, "size", None) == 1 else each for name, each in metrics.items()}
    return {name: each for name, each in scalars.items() if isinstance(each, int | float) and name != "epoch"}
