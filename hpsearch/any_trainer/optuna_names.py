"""Names of Optuna's trial and study that objectives read: some hold in any process, others have something in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import StudyError
from ..search.study import Study

if TYPE_CHECKING:
    from ..ledger.directions import StudyDirection

_TRIALS = (
    "a trial does not see the others, which may run in other processes. The result of the search has them, "
    "best.run_summary.records; while it runs, hpsearch.open_study({folder!r}).records has them"
)
_BEST = (
    "a trial does not see the others, which may run in other processes. The search returns the best run; while it "
    "runs, hpsearch.open_study({folder!r}).best() has the best trial so far"
)
_START = "the search starts trials: pass start_with= or start_from= to tune"
_ATTRIBUTES = "a study has no attributes of the user: use trial.set_user_attr, or a variable of the program"
_CHOICES = "the search has it: pass sampler= and pruner= to tune"
_OF_STUDY = {
    **dict.fromkeys(("trials", "get_trials", "trials_dataframe"), _TRIALS),
    **dict.fromkeys(("best_value", "best_params", "best_trial", "best_trials"), _BEST),
    **dict.fromkeys(("user_attrs", "set_user_attr", "system_attrs", "set_system_attr"), _ATTRIBUTES),
    **dict.fromkeys(("ask", "tell", "optimize", "enqueue_trial", "add_trial", "add_trials"), _START),
    **dict.fromkeys(("sampler", "pruner"), _CHOICES),
    "stop": "pass callbacks= to tune: a callback of Optuna's study and trial may call study.stop()",
}
_STORED = "only the process of the search reads the storage; best.run_summary.engine_study has it afterwards"
_OF_TRIAL = {
    "system_attrs": "use trial.user_attrs and trial.set_user_attr",
    "set_system_attr": "use trial.set_user_attr",
    "distributions": "trial.params has the values, and the search space the ranges",
    "storage": _STORED,
    "relative_params": "use trial.params",
    "suggest_uniform": "use trial.suggest_float",
    "suggest_loguniform": "use trial.suggest_float(..., log=True)",
    "suggest_discrete_uniform": "use trial.suggest_float(..., step=)",
    "set_constraint": "report the metric, and pass constraints= to tune",
}


class StudyOfTrial:
    """The study of a trial, as far as it is the same in every process.

    Attributes:
        study_name: its name.

    Args:
        name: as above.
        folder: of the study.
        directions: of its objectives, ``minimize`` or ``maximize``; None: not known yet.
    """

    def __init__(self, name: str, folder: str, directions: Sequence[str] | None) -> None:
        self.study_name, self._folder, self._directions = name, folder, directions

    @classmethod
    def of(cls, study: Study) -> StudyOfTrial:
        """Return a study as its trials see it."""
        return cls(study.name, str(study.folder), [each.direction for each in study.objectives])

    @property
    def directions(self) -> list[StudyDirection]:
        """The directions of the objectives, as Optuna's.

        Raises:
            StudyError: the first call of the function has to show what it reports, and `tune` has no direction.
        """
        from ..ledger.directions import optuna_directions

        if self._directions is None:
            raise StudyError(
                "trial.study has no direction yet: this is the first call of the function, which has reported nothing. "
                "Pass direction= to tune."
            )
        return optuna_directions(self._directions)

    @property
    def direction(self) -> StudyDirection:
        """The direction of the objective, as Optuna's.

        Raises:
            StudyError: there are several objectives, or it is not known yet.
        """
        directions = self.directions
        if len(directions) > 1:
            raise StudyError("trial.study.direction is one, but there are several objectives: use directions.")
        return directions[0]

    if not TYPE_CHECKING:  # else any name would be taken for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            folder = self.__dict__.get("_folder", "")
            raise AttributeError(_explained("trial.study", name, _OF_STUDY, folder=folder))


UNKNOWN_STUDY = StudyOfTrial("", "", None)


class ReadAsInOptuna:
    """A trial with names of Optuna's.

    Attributes:
        reads_names_of_optuna: whether one of them was read.
    """

    reads_names_of_optuna = False

    def set_names_of_optuna(self, study: StudyOfTrial, began: datetime) -> None:
        """Set the study, and the time at which the trial began."""
        self._study_of_trial, self._began = study, began

    @property
    def study(self) -> StudyOfTrial:
        """The study: its name and directions, and for other names what takes their place."""
        self.reads_names_of_optuna = True
        return self._study_of_trial

    @property
    def datetime_start(self) -> datetime:
        """The local time at which the trial began."""
        self.reads_names_of_optuna = True
        return self._began

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(_explained("trial", name, _OF_TRIAL))


def _explained(owner: str, name: str, instead: Mapping[str, str], **values: Any) -> str:
    """Return that an attribute does not exist, and what takes its place if Optuna has it."""
    there_is = f"{owner}.{name} does not exist"
    return f"{there_is}: {instead[name].format(**values)}." if name in instead else f"{there_is}."
