"""The result of a search."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...errors import NoCompletedTrialError, StudyError
from ...system.html_table import html_pairs, html_table
from ..metrics.objective import MINIMIZE, Objective
from ..metrics.replicas import has_replicas, run_with_checkpoint, runs_of_trial, without_replicas
from ..metrics.selection import best_records, ranking
from ..store.checked_json import printable
from ..store.held_out_file import read_held_out
from ..store.refit_file import with_model_of_all_data
from ..store.stored_study import StoredStudy
from ..study import STEP, Study
from ..trial_record import TrialRecord, TrialState
from ..wording import counted, format_chance, format_value
from .chance_of_best import chance_of_best
from .dataframe import ranked_rows, short_rows, trials_dataframe, trials_markdown
from .findings.ties import tied_with_best
from .held_out_result import HeldOutResult, held_out_result
from .known_study import known_noise, on_disk
from .no_best_trial import explain_absence
from .parameter_importances import Importances
from .trial_rows import below_their_trials

if TYPE_CHECKING:
    import pandas

_ROWS = 10


class Engine(Protocol):
    """The interface of a backend that the summary uses."""

    def engine_study(self) -> Any:
        """Return the engine's own study object."""

    def importances(self) -> Importances:
        """Return how much of the objective's variation each parameter explains."""

    def dashboard_command(self) -> str | None:
        """Return the command that opens the study in a dashboard."""


class SearchSummary:
    """All trials of a search.

    Attributes:
        study: the settings; a `StoredStudy` if it was read from its folder.
        records: one `TrialRecord` per trial, by number.
        problems: the damage in a study that was read from its folder, one line each.

    Args:
        study: as above.
        records: as above, in any order.
        engine: a function that returns the engine, called only if needed: showing trials does not import Optuna.
        problems: as above.
    """

    def __init__(
        self,
        study: Study | StoredStudy,
        records: Sequence[TrialRecord],
        engine: Callable[[], Engine],
        problems: Sequence[str] = (),
    ) -> None:
        self.study = study
        self.records = sorted(records, key=lambda record: record.number)
        self.problems = tuple(problems)
        self._engine = engine

    def with_study(self, study: Study | StoredStudy) -> SearchSummary:
        """Return a summary of the same trials with another `study`."""
        return SearchSummary(study, self.records, self._engine, self.problems)

    @property
    def engine_study(self) -> Any:
        """The engine's own study: an `optuna.Study` for the Optuna backend."""
        return self._engine().engine_study()

    def importances(self) -> Importances:
        """Return the fraction of the objective's variation that each parameter explains, largest first.

        The result, a dict, is empty if there are too few trials; its `trials` is the number that it rests on.
        """
        return self._engine().importances()

    def dashboard_command(self) -> str | None:
        """Return the command line that opens the study in a dashboard, on this machine only; None if there is none."""
        return self._engine().dashboard_command()

    @property
    def objective(self) -> Objective:
        """The objective of the study, or the first of several."""
        return self.study.objective

    @property
    def held_out(self) -> HeldOutResult | None:
        """The metrics on the test set, of the best trial and of the defaults; None if there is no evaluation on one.

        They are read from the folder of the study, so also those of an earlier call. None too if the file is damaged.
        """
        with contextlib.suppress(StudyError):
            return held_out_result(read_held_out(self.study.folder))
        return None

    def ranked(self) -> list[TrialRecord]:
        """Return the trials that have a result and satisfy the constraints, best first.

        With several objectives, those on the Pareto front come first.
        """
        return ranking(self.records, self.study.objectives)

    def best_first(self) -> list[TrialRecord]:
        """Return all trials: first those of `ranked()`, then the remaining ones by their last value.

        Each further run of a trial, with another seed or on another fold, comes after the trial.
        """
        ranked = self.ranked()
        numbers = {each.number for each in ranked}
        others = sorted((each for each in self.records if each.number not in numbers), key=self._last_cost)
        return below_their_trials([*ranked, *others], lambda record: record)

    def _last_cost(self, record: TrialRecord) -> float:
        value = record.reports[-1].value if record.reports else math.nan
        if math.isnan(value):
            return math.inf
        return value if self.objective.direction == MINIMIZE else -value

    def best(self) -> list[TrialRecord]:
        """Return the best trial or, with several objectives, the Pareto front; empty if no trial may be the best.

        Where trials have several runs, its values are their means, and its checkpoint that of the run which is nearest
        to them; with folds, that of the model which was trained on all data.
        """
        best = best_records(self.records, self.study.objectives)
        return with_model_of_all_data(best, self.study.folder) if self.study.fold_count else best

    def tied_with_best(self) -> list[TrialRecord]:
        """Return the trials that cannot be told apart from the best one, best first, without the best one.

        Their values differ from the best one by at most two standard errors of the difference. The standard error is
        the larger one of what the ends of the learning curves show, and of the binomial error where the objective is a
        fraction of the evaluation samples, such as an accuracy. Trials with other seeds may differ by more.

        The list is empty with several objectives, if trials were repeated with other seeds (`BestRun.chance_of_best`
        tells more then), and if the noise is unknown: with few evaluations of a metric that is
        no fraction of samples.
        """
        if has_replicas(self.records):
            return []
        return tied_with_best(self.records, self.study.objectives, known_noise(on_disk(self.study), self.records))

    def trials_dataframe(self, *, runs: bool = False) -> pandas.DataFrame:
        """Return a DataFrame with a row for each trial: state, objectives, parameters, epochs, seconds.

        Where trials were repeated, or cross-validated, an objective is the mean of the trial's runs, beside its
        standard deviation (``<objective>_std``) and the number of `runs`; epochs and seconds are those of all runs.

        Args:
            runs: return a row for each training run instead, whose `repeats` is the number of the trial that it
                repeats.
        """
        return trials_dataframe(self.records, self.study.objectives, runs)

    def trials_markdown(self, limit: int = 10) -> str:
        """Return the best trials as a Markdown table, for example for a paper."""
        return trials_markdown(self.records, self.study.objectives, limit, self.study.unit)

    def count(self, state: TrialState) -> int:
        """Return the number of trials in `state`; further runs of a trial do not count."""
        return sum(record.state is state for record in without_replicas(self.records))

    def explain_absence(self, call: str = "The same call") -> str:
        """Return why no trial may be the best: the first failure, or the constraint that the closest trial breaks.

        Args:
            call: the call or command that continues the study, as the beginning of a sentence.
        """
        study = self.study
        return explain_absence(self.records, study.constraints, getattr(study, "max_epochs", None), study.budget, call)

    def __repr__(self) -> str:
        return f"SearchSummary({self.study.name!r}, {counted(len(without_replicas(self.records)), 'trial')})"

    def _repr_html_(self) -> str:
        """Return the ten best trials as a table, for a notebook."""
        ranked, count = ranked_rows(self.records, self.study.objectives), len(without_replicas(self.records))
        head, *rows = short_rows(ranked[:_ROWS], self.study.objectives, self.study.unit)
        of = f" ({len(rows)} best of {count} trials)" if len(rows) < count else ""
        return html_table(head, rows, printable(f"{self.study.name}: {self.study.description}{of}"))


class BestRun(NamedTuple):
    """The best trial of a search or, with several objectives, a trial on the Pareto front.

    Attributes:
        run_id: the trial's number as text; None in the `best_run` of an error, if no trial may be the best.
        objective: its value by scope; with several objectives, a list of values; None without a result.
        hyperparameters: the parameters that it trained with.
        run_summary: the whole search, a `SearchSummary`.
        checkpoint: the folder of its selected weights; None if they were not kept.
        scope: the scope that selected the value and the checkpoint.
        build_model: the function that builds the trial's model from a folder of weights.
        test_metrics: the metrics of its selected weights on the `test_dataset` of the search; None without one.
        objective_std: the standard deviation of the objective between seeds, or folds; None of one run, and of several
            objectives. `objective` is the mean then, and `checkpoint` that of the run which is nearest to it; with
            folds, that of the model which was trained on all data, None without one.
        values: the objective of each run, by its training seed, or, with folds, by the number of the fold; of several
            objectives, a list for each.
        chance_of_best: the chance that no other trial of the study is truly better, from 0 to 1; None if no trial was
            repeated with another seed (in a cross-validation, until two were trained on two folds), and of several
            objectives. See `hpsearch.search.result.chance_of_best`.
    """

    run_id: str | None
    objective: float | list[float] | None
    hyperparameters: dict[str, Any]
    run_summary: Any = None
    checkpoint: Path | None = None
    scope: str = "last"
    build_model: Callable[[Path], object] | None = None
    test_metrics: dict[str, float] | None = None
    objective_std: float | None = None
    values: dict[int, Any] | None = None
    chance_of_best: float | None = None

    def load_model(self, seed: int | None = None) -> Any:
        """Build the best trial's model, with the selected weights, in evaluation mode on the host.

        This works for any model: `model_init` builds it, with the trial's parameters and seed. With folds, it is the
        model that was trained on all data (``refit=True``).

        Args:
            seed: which of the runs in `values` to load; None: the one whose value is nearest to their mean.

        Raises:
            StudyError: the trial was not trained with this seed; the study has folds, and no model of all data; or a
                plain function has saved no checkpoint.
            NoCompletedTrialError: no trial may be the best; the message explains why.
            FileNotFoundError: the weights were not kept (`keep_checkpoints=0`) or have been deleted.
        """
        if self.run_id is None or self.build_model is None:
            raise NoCompletedTrialError(self.run_summary.explain_absence(), self.run_summary)
        folds = self.run_summary.study.fold_count
        if folds and (seed is not None or self.checkpoint is None):
            raise StudyError(
                f"A cross-validation has no single model, but one for each of its {folds} folds: search with "
                "refit=True, which trains the best parameters on all data, and load that with load_model()."
            )
        if seed is not None:
            return self._replace(checkpoint=self._checkpoint_of(seed)).load_model()
        if self.checkpoint is None and self.run_summary.study.unit == STEP:
            raise StudyError(
                f"Trial {self.run_id} of a plain function has saved no checkpoint (trial.save()); with one, only the "
                "function's own code can build the model, from the folder best.checkpoint."
            )
        if self.checkpoint is None or not self.checkpoint.is_dir():
            raise FileNotFoundError(
                f"The weights of trial {self.run_id} are not on disk (keep_checkpoints="
                f"{self.run_summary.study.keep_checkpoints}); train it again with its hyperparameters, or search with "
                "keep_checkpoints=1."
            )
        return self.build_model(self.checkpoint)

    def _checkpoint_of(self, seed: int) -> Path | None:
        assert self.run_id is not None, "load_model has checked it"
        runs = runs_of_trial(self.run_summary.records, int(self.run_id))
        checkpoints = {each.seed: each.checkpoint for each in runs.records}
        if seed not in checkpoints:
            seeds = ", ".join(map(str, checkpoints))
            raise StudyError(f"Trial {self.run_id} was not trained with seed {seed!r}; its runs have {seeds}.")
        return checkpoints[seed]

    def __repr__(self) -> str:
        """Return all that has a value, apart from the function that builds the model."""
        shown = self._asdict() | {"checkpoint": None if self.checkpoint is None else str(self.checkpoint)}
        optional = self._field_defaults.keys() - {"checkpoint"}
        shown = {name: value for name, value in shown.items() if value is not None or name not in optional}
        shown.pop("build_model", None)
        return f"BestRun({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def _repr_html_(self) -> str:
        """Return the result, the parameters and the folder of the weights as a table, for a notebook."""
        if self.run_id is None:
            return html_pairs({"no best trial": printable(self.run_summary.explain_absence())})
        objectives = self.run_summary.study.objectives
        values = self.objective if isinstance(self.objective, list) else [self.objective]
        deviation = "" if self.objective_std is None else f" ± {self.objective_std:.2g} ({len(self.values or {})} runs)"
        pairs = {
            **{each.name: f"{format_value(value)}{deviation}" for each, value in zip(objectives, values, strict=True)},
            **{name: format_value(value) for name, value in self.hyperparameters.items()},
            **{f"on the test set: {name}": format_value(value) for name, value in (self.test_metrics or {}).items()},
            "weights": "not kept" if self.checkpoint is None else printable(str(self.checkpoint)),
        }
        if self.chance_of_best is not None:
            pairs["chance that it is the best"] = format_chance(self.chance_of_best)
        return html_pairs(pairs, f"Best trial {self.run_id}")


def best_runs(summary: SearchSummary, build_model: Callable[[TrialRecord, Path], object]) -> list[BestRun]:
    """Return the best run of a search, or, of several objectives, one for each trial on the Pareto front.

    One without a result if no trial has one that holds the constraints.
    """
    best = summary.best()
    if not best:
        return [BestRun(None, None, {}, summary, scope=summary.study.scope)]
    return [_best_run(record, summary, build_model) for record in best]


def _best_run(
    record: TrialRecord, summary: SearchSummary, build_model: Callable[[TrialRecord, Path], object]
) -> BestRun:
    runs = runs_of_trial(summary.records, record.number)
    is_single = len(summary.study.objectives) == 1
    chances = chance_of_best(summary.records, summary.objective) if is_single else None
    folds = summary.study.fold_count
    return BestRun(
        run_id=str(record.number),
        objective=record.value if len(summary.study.objectives) == 1 else list(record.values),
        hyperparameters=dict(record.hyperparameters),
        run_summary=summary,
        checkpoint=record.checkpoint,
        scope=summary.study.scope,
        build_model=lambda folder: build_model(run_with_checkpoint(summary.records, record.number, folder), folder),
        objective_std=runs.deviation if is_single else None,
        values={
            name: each.values[0] if is_single else list(each.values)
            for each in runs.records
            if (name := _name_of_run(each, bool(folds))) is not None
        },
        chance_of_best=None if chances is None else chances.get(record.number),
    )


def _name_of_run(run: TrialRecord, is_fold: bool) -> int | None:
    """Return the number of the fold that a run was evaluated on, or the seed that it was trained with."""
    if not is_fold:
        return run.seed
    return 0 if run.replica is None else run.replica.offset
