"""Check that the code of the user reads the parameters of a trial; a parameter that is not read has no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ...errors import SpaceError, StudyError
from ...system.spelling import nearest, nearest_name
from ..trial import Trial

if TYPE_CHECKING:
    from transformers import TrainingArguments


class ReadsParameters(Protocol):
    """The recipe of the trials, and the user's code that takes part in making their trainers."""

    @property
    def args(self) -> TrainingArguments:
        """The training arguments that trials have in common."""

    @property
    def user_code(self) -> str:
        """The name of the user's code."""

    def is_read_by_user_code(self, name: str) -> bool:
        """Return whether the parameter is for the user's code to read, not an argument that the trainer sets."""

    def is_set_before_user_code(self, name: str) -> bool:
        """Return whether it is an argument of the trainer, which has its value before the user's code is called."""


def check_read(trial: Trial, recipe: ReadsParameters) -> None:
    """Check that the user's code has read what it is to read, and suggested only what it may.

    Raises:
        SpaceError: it has not.
        StudyError: it has not read the fold of a cross-validation.
    """
    params, code = trial.params, recipe.user_code
    if trial.folds is not None and not trial.has_read_fold:
        raise StudyError(
            f"{code}(trial) never reads trial.fold, so all folds would train on the same samples: trial.fold.train are "
            "the indices to train on, trial.fold.evaluation those to evaluate on."
        )
    for name in params.values_by_name:
        if name not in trial.suggested_by_space and recipe.is_set_before_user_code(name):
            raise SpaceError(
                f"{code} suggested {name!r}, a training argument, when the arguments were already set; suggest it in "
                "hp_space."
            )
    is_like_another = trial.origin is not None and trial.origin["trial"] is not None  # which may have other branches
    for name, value in trial.fixed.items():
        if name not in params.values_by_name and not is_like_another:
            given = "start_with gives" if trial.origin is None else "The request gives"
            raise SpaceError(
                f"{given} {name}={value!r}, which no code has suggested.{nearest_name(name, params.values_by_name)}"
            )
    unread = [
        name
        for name in params.values_by_name
        if name not in params.read and recipe.is_read_by_user_code(name) and ("." in name or name in trial.arguments)
    ]  # a function as space may suggest a plain name for itself, which it does not return
    if unread:
        arguments = vars(recipe.args)
        meant = {name: None if name in arguments else nearest(name, arguments) for name in unread}
        near = " and ".join(
            repr(each) if len(unread) == 1 else f"{each!r} for {name!r}" for name, each in meant.items() if each
        )
        names = ", ".join(map(repr, unread))
        subject, them = (f"{names} is", "it") if len(unread) == 1 else (f"{names} are", "them")
        reads = ", ".join(f"trial.params[{name!r}]" for name in unread)
        raise SpaceError(
            f"Parameter{'' if len(unread) == 1 else 's'} {subject} never used: no training argument takes {them}, so "
            f"{code}(trial) must read {reads} when it is called." + (f" Did you mean {near}?" if near else "")
        )
