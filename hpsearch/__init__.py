"""hpsearch: the Trainer built for search.

Every public name is imported when it is first used, so that `import hpsearch` itself loads neither torch nor optuna.

    >>> import hpsearch
    >>> hpsearch.Float(0.0, 1.0)
    Float(0.0, 1.0)
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from .version import __version__

_HOMES = {
    "any_trainer.search_plan": ["SearchPlan"],
    "any_trainer.function_trial": ["FunctionTrial"],
    "any_trainer.tuning": ["tune"],
    "arguments": ["Seq2SeqTrainingArguments", "TrainingArguments"],
    "errors": [
        "ArgumentError",
        "ArgumentTypeError",
        "CannotResumeError",
        "CheckpointError",
        "CommunicationError",
        "HpsearchError",
        "InvalidInputError",
        "MissingMetricError",
        "MissingPackageError",
        "NoCompletedTrialError",
        "ObjectiveError",
        "PreflightError",
        "ProcessFailedError",
        "SearchInterrupted",
        "SpaceError",
        "StorageError",
        "StudyError",
        "TooManyFailuresError",
        "TrialPaused",
        "TrialPruned",
        "UnknownArgumentError",
        "UnknownParameterError",
        "WeightsMismatchError",
    ],
    "search.metrics.constraints": ["Constraint"],
    "search.decisions.ladder": ["Ladder"],
    "search.listener": ["SearchListener"],
    "search.metrics.objective": ["Objective"],
    "search.space.parameters": ["Categorical", "Float", "Int"],
    "search.result.best_run": ["BestRun", "SearchSummary"],
    "search.space.search_space": ["SearchSpace"],
    "search.requests.make_request": ["promote"],
    "search.study": ["Study"],
    "search.trial": ["FixedTrial", "Trial"],
    "search.trial_record": ["Report", "TrialRecord", "TrialState"],
    "search.warm_start": ["WarmStart"],
    "searching.replay": ["Replay"],
    "searching.opened_study": ["open_study"],
    "trainer.seq2seq": ["Seq2SeqTrainer"],
    "trainer.trainer": ["Trainer"],
    "training.callbacks": [
        "DefaultFlowCallback",
        "EarlyStoppingCallback",
        "ExportableState",
        "PrinterCallback",
        "ProgressCallback",
        "TrainerCallback",
        "TrainerControl",
        "TrainerState",
    ],
    "training.pretrained": ["FromPretrained"],
    "training.run": ["TrainingRun"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]

if TYPE_CHECKING:
    from .any_trainer.function_trial import FunctionTrial as FunctionTrial
    from .any_trainer.search_plan import SearchPlan as SearchPlan
    from .any_trainer.tuning import tune as tune
    from .arguments import Seq2SeqTrainingArguments as Seq2SeqTrainingArguments
    from .arguments import TrainingArguments as TrainingArguments
    from .errors import ArgumentError as ArgumentError
    from .errors import ArgumentTypeError as ArgumentTypeError
    from .errors import CannotResumeError as CannotResumeError
    from .errors import CheckpointError as CheckpointError
    from .errors import CommunicationError as CommunicationError
    from .errors import HpsearchError as HpsearchError
    from .errors import InvalidInputError as InvalidInputError
    from .errors import MissingMetricError as MissingMetricError
    from .errors import MissingPackageError as MissingPackageError
    from .errors import NoCompletedTrialError as NoCompletedTrialError
    from .errors import ObjectiveError as ObjectiveError
    from .errors import PreflightError as PreflightError
    from .errors import ProcessFailedError as ProcessFailedError
    from .errors import SearchInterrupted as SearchInterrupted
    from .errors import SpaceError as SpaceError
    from .errors import StorageError as StorageError
    from .errors import StudyError as StudyError
    from .errors import TooManyFailuresError as TooManyFailuresError
    from .errors import TrialPaused as TrialPaused
    from .errors import TrialPruned as TrialPruned
    from .errors import UnknownArgumentError as UnknownArgumentError
    from .errors import UnknownParameterError as UnknownParameterError
    from .errors import WeightsMismatchError as WeightsMismatchError
    from .search.decisions.ladder import Ladder as Ladder
    from .search.listener import SearchListener as SearchListener
    from .search.metrics.constraints import Constraint as Constraint
    from .search.metrics.objective import Objective as Objective
    from .search.requests.make_request import promote as promote
    from .search.result.best_run import BestRun as BestRun
    from .search.result.best_run import SearchSummary as SearchSummary
    from .search.space.parameters import Categorical as Categorical
    from .search.space.parameters import Float as Float
    from .search.space.parameters import Int as Int
    from .search.space.search_space import SearchSpace as SearchSpace
    from .search.study import Study as Study
    from .search.trial import FixedTrial as FixedTrial
    from .search.trial import Trial as Trial
    from .search.trial_record import Report as Report
    from .search.trial_record import TrialRecord as TrialRecord
    from .search.trial_record import TrialState as TrialState
    from .search.warm_start import WarmStart as WarmStart
    from .searching.opened_study import open_study as open_study
    from .searching.replay import Replay as Replay
    from .trainer.seq2seq import Seq2SeqTrainer as Seq2SeqTrainer
    from .trainer.trainer import Trainer as Trainer
    from .training.callbacks import DefaultFlowCallback as DefaultFlowCallback
    from .training.callbacks import EarlyStoppingCallback as EarlyStoppingCallback
    from .training.callbacks import ExportableState as ExportableState
    from .training.callbacks import PrinterCallback as PrinterCallback
    from .training.callbacks import ProgressCallback as ProgressCallback
    from .training.callbacks import TrainerCallback as TrainerCallback
    from .training.callbacks import TrainerControl as TrainerControl
    from .training.callbacks import TrainerState as TrainerState
    from .training.pretrained import FromPretrained as FromPretrained
    from .training.run import TrainingRun as TrainingRun


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        try:
            value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
        except ImportError as error:
            raise _missing(f"{__name__}.{name} cannot be imported: {error}") from error
        globals()[name] = value
        return value
    if name.startswith("_") or not name.isidentifier() or importlib.util.find_spec(f"{__name__}.{name}") is not None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")  # Python imports submodules after this
    raise _missing(_why_unknown(name))


def _missing(text: str) -> Exception:
    """Return the error for a name that is missing: an AttributeError, so that `hasattr` is False.

    Behind `from hpsearch import ...` it is an ImportError: Python replaces an AttributeError there, and hides its text.
    """
    asking = sys._getframe(2).f_code
    is_import_statement = asking.co_name == "_handle_fromlist" and "importlib" in asking.co_filename
    return ImportError(text) if is_import_statement else AttributeError(text)


def _why_unknown(name: str) -> str:
    from .arguments.older_spellings import successor_of_name
    from .system.spelling import nearest_name

    if successor := successor_of_name(name):
        return f"transformers 5 has removed {name}, and hpsearch does not have it; use {successor}."
    import transformers

    if name in transformers.__all__:
        return f"{name} is part of transformers and works with hpsearch: from transformers import {name}"
    return f"module {__name__!r} has no attribute {name!r}.{nearest_name(name, __all__)}"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
