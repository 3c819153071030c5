"""Functions that users want called after each trial, as `optuna.Study.optimize` calls its callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import StudyError
from .listener import PassingListener, SearchListener
from .trial_record import TrialRecord

# Called with the engine's study and its trial.
StudyCallback = Callable[[Any, Any], None]
# Objects that belong elsewhere, by the method that identifies them.
_ELSEWHERE = {
    "on_report": "a SearchListener: pass it as progress=",
    "on_train_begin": "a callback of trainers: pass it to the trainer, Trainer(callbacks=...)",
    "on_trial_result": "a callback of Ray Tune, which hpsearch does not call: pass a SearchListener as progress=",
}


def check_callbacks(callbacks: object) -> tuple[StudyCallback, ...]:
    """Return the callbacks of a search as a tuple; None: there are none.

    Raises:
        StudyError: one of them is no function of a study and a trial.
    """
    if callbacks is None:
        return ()
    if not isinstance(callbacks, (list, tuple)):
        raise StudyError(f"callbacks must be a list of functions (study, trial), but got {callbacks!r}.")
    for each in callbacks:
        elsewhere = next((said for method, said in _ELSEWHERE.items() if hasattr(each, method)), None)
        if elsewhere is not None:
            raise StudyError(f"callbacks holds {each!r}, which is {elsewhere}.")
        if not callable(each):
            raise StudyError(f"callbacks must hold functions (study, trial), but got {each!r}.")
    return tuple(callbacks)


class CallsBack(PassingListener):
    """A listener that calls functions after each trial, and notifies another listener.

    Args:
        listener: is notified first.
        callbacks: called one after the other, in the process that searches.
        stored: returns the engine's study, and its trial of a number.
        stop: ends the search once the running trials have ended; for `study.stop()`.
    """

    def __init__(
        self,
        listener: SearchListener,
        callbacks: Sequence[StudyCallback],
        stored: Callable[[int], tuple[object, object]],
        stop: Callable[[str], None],
    ) -> None:
        super().__init__(listener)
        self._callbacks, self._stored, self._stop = callbacks, stored, stop

    def on_trial_end(self, record: TrialRecord) -> None:
        """Notify the listener; call the callbacks if the trial counts."""
        super().on_trial_end(record)
        if not record.state.is_counted:
            return
        study, trial = self._stored(record.number)
        for callback in self._callbacks:
            callback(_StoppableStudy(study, self._stop), trial)


class _StoppableStudy:
    """The engine's study, which can be stopped: engines allow that in a loop of their own only."""

    def __init__(self, study: object, stop: Callable[[str], None]) -> None:
        self._study, self._stop = study, stop

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # it is an `optuna.Study`, as far as callbacks look
        return type(self._study)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._study, name)

    def stop(self) -> None:
        """Begin no further trial in this call of the search."""
        self._stop("a callback has stopped it")
