"""A search from its arguments to its best run, whatever makes the trainers of its trials."""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NoReturn

from ..backends.base import Backend
from ..coordinator.follower_processes import SearchIsOver, follow
from ..coordinator.search_session import SearchSession
from ..coordinator.study_records import StudyRecords
from ..errors import (
    CommunicationError,
    HpsearchError,
    InvalidInputError,
    NoCompletedTrialError,
    SearchInterrupted,
    TooManyFailuresError,
)
from ..search.decisions.evaluation_points import points_of
from ..search.decisions.training_budget import TrainingBudget, is_exhausted, progress_in_words
from ..search.half_done_trials import check_processes
from ..search.listener import SearchListener, showing
from ..search.metrics.selection import best_records
from ..search.process_group import Ranks
from ..search.requests.in_effect import InEffect
from ..search.requests.request_file import RequestFile
from ..search.result.best_run import BestRun, Engine, SearchSummary, best_runs
from ..search.space.static_checks import check_space
from ..search.store.forgiven_failures import UNCOUNTED_BEFORE, count_uncounted
from ..search.store.last_checkpoint import with_last_checkpoints
from ..search.store.live_sessions import sessions_at_work
from ..search.store.provenance import describe_environment, differences, differences_in_results
from ..search.store.study_folder import ADDED, CANNOT_EXTEND, StudyFolder
from ..search.study import Study
from ..search.study_callbacks import CallsBack, StudyCallback, check_callbacks
from ..search.time_and_epoch_limits import NO_FIRST_CALL, FirstCall, SearchBudget
from ..search.trial_record import TrialRecord, TrialState, after_a_kill
from ..search.wording import all_trials
from ..system.ctrl_c import ctrl_c_as_interruption, ignoring_ctrl_c
from ..system.interruption import Interruption, finishing_at_ctrl_c, noticing_signals, own_command, set_exit_code
from ..system.json_types import JsonObject
from ..training.randomness import preserved_streams
from ..trial.distributed_ranks import ranks_of
from ..trial.ending import TrialEndedSearch, naming_the_disk
from .held_out_dataset import HeldOut
from .held_out_evaluation import HeldOutEvaluator, fingerprint_of_session, session_settings
from .refit import TrainsOnAllData, check_refit, refit_best
from .search_arguments import SearchArguments, listener_of
from .searched_recipe import SearchedRecipe

logger = logging.getLogger(__name__)


def search(
    recipe: SearchedRecipe, arguments: SearchArguments, first_call: FirstCall = NO_FIRST_CALL
) -> BestRun | list[BestRun]:
    """Search as `Trainer.hyperparameter_search` documents it; `first_call` is that of a function, for `tune`.

    Raises:
        HpsearchError: as documented there.
    """
    held_out = HeldOut.of(arguments.test_dataset, arguments.test_defaults)
    backend = arguments.make_backend()
    listener, callbacks = listener_of(arguments.progress), check_callbacks(arguments.callbacks)
    space = arguments.make_space(backend, recipe)
    folds = arguments.make_folds(recipe)
    recipe.prepare(space, folds)
    study, notices = arguments.make_study(backend, space, recipe, folds)
    check_space(space, recipe)
    has_refit = check_refit(arguments.refit, recipe, study)
    notices += [] if held_out is None else held_out.check(recipe, study, has_refit)
    with preserved_streams():
        ranks = ranks_of(recipe.args)
        return Search(
            recipe,
            study,
            backend,
            listener,
            ranks,
            notices=notices,
            callbacks=callbacks,
            first_call=first_call,
            held_out=held_out,
            has_refit=has_refit,
        ).run()


@dataclass(frozen=True)
class Search:
    """One call of the search: what it works with.

    Attributes:
        recipe: that trials are made from.
        study, backend: the settings, and what runs the trials.
        listener: shows it.
        ranks: the processes of each trial; the main one searches, the others train with it.
        clock: measures the budgets of time; see `SearchBudget`.
        notices: what the user should know before the first trial.
        callbacks: called after each trial with the engine's study and its trial.
        own_trials: the total number of trials without those that the user has requested.
        first_call: of the function that is searched, before this call.
        held_out: the test set, which is evaluated when the search has come to its end; None: there is none.
        has_refit: whether the best parameters are trained on the data of all folds then.
    """

    recipe: SearchedRecipe
    study: Study
    backend: Backend
    listener: SearchListener
    ranks: Ranks
    clock: Callable[[], float] = time.monotonic
    notices: Sequence[str] = ()
    callbacks: Sequence[StudyCallback] = ()
    own_trials: int | None = None
    first_call: FirstCall = NO_FIRST_CALL
    held_out: HeldOut | None = None
    has_refit: bool = False

    def run(self) -> BestRun | list[BestRun]:
        """Run the trials of the study and return the best run; of several objectives, the Pareto front.

        Raises:
            NoCompletedTrialError: no trial may be the best; with all trials.
            SearchInterrupted, TooManyFailuresError: with what was found so far. The first also in place of another
                error, once a signal has come; it names that error, its cause. Not of `CommunicationError`.
            BaseException: what the program's own handler of the signal has raised, in place of `SearchInterrupted`.
        """
        interruption = Interruption()
        try:
            with noticing_signals(interruption):
                best = (self._with_requested()._counting_anew() if self.ranks.is_main else self)._run(interruption)
            if interruption.signal:  # it came after the last trial
                summary = (best if isinstance(best, list) else [best])[0].run_summary
                raise self._interrupted(summary.records, interruption)
        except SearchInterrupted as interrupted:
            set_exit_code()
            raise interruption.error or interrupted from None
        except Exception as error:
            # A launcher that has lost a process sends SIGTERM to its peers: the loss is the reason then.
            if interruption.error or (interruption.signal and not isinstance(error, CommunicationError)):
                self._end_as_asked(interruption, error)
            raise
        return best

    def _counting_anew(self) -> Search:
        """Return this search with a larger total, if trials failed before the first success: they do not count."""
        folder = StudyFolder(self.study)
        settings = folder.read_settings()
        left = count_uncounted(settings, folder.read_records())
        if settings is None or not left:
            return self
        total = None if self.study.n_trials is None else self.study.n_trials + left
        were = "1 trial that failed does" if left == 1 else f"{left} trials that failed do"
        notice = f"{were} not count, as there was no success before: {total} trials in all"
        notices = self.notices if total is None else [*self.notices, notice]
        study = replace(self.study, n_trials=total, uncounted_before=settings[UNCOUNTED_BEFORE])
        own = None if self.own_trials is None else self.own_trials + left
        return replace(self, study=study, notices=notices, own_trials=own)

    def _with_requested(self) -> Search:
        """Return this search with a larger total, if the user has requested trials of the study."""
        own, folder = self.study.n_trials, self.study.folder
        requested = InEffect.of(RequestFile(folder).read(), sessions_at_work(folder).__contains__)
        return replace(self, study=replace(self.study, n_trials=requested.total(own)), own_trials=own)

    def _end_as_asked(self, interruption: Interruption, error: Exception) -> NoReturn:
        """End as a signal has asked for, though the search has ended with an error of its own."""
        if interruption.error is not None:
            raise interruption.error from error
        set_exit_code()
        raise SearchInterrupted(
            f"Search {self.study.name!r} {interruption.reason}, and ended by an error: {type(error).__name__}: {error}",
            getattr(error, "best_run", None),
            interruption.signal,
            own_command(),
        ) from error

    def _run(self, interruption: Interruption) -> BestRun | list[BestRun]:
        if not self.ranks.is_main:
            with finishing_at_ctrl_c(interruption, lambda notice: None):  # the main process announces it
                return self._result(follow(self.recipe, self.study, self.ranks, interruption))
        self.listener.on_search_prepare(self.study)
        folder = StudyFolder(self.study)
        session = SearchSession(
            self.recipe,
            self.study,
            folder,
            self.listener,
            self.ranks,
            self.clock,
            interruption,
            self.own_trials,
            self.first_call,
        )
        if self.callbacks:
            session.listener = CallsBack(self.listener, self.callbacks, self._stored, session.limits.end_early)
        with (
            contextlib.ExitStack() as opening,
            ending_for_all_ranks(self.ranks, session.records),
            naming_the_disk(self.study.folder),
        ):
            opening.enter_context(showing(self.listener, "opening the study"))
            with self.backend.connected(self.study, self.recipe), session.at_work():
                self._open(folder, session)
                opening.close()
                try:
                    self._run_trials(session)
                except InvalidInputError:
                    folder.note_end(session.records.records)
                    raise
                session.records.end_repeats()
                folder.note_end(session.records.records)
            if session.limits.has_too_many_failures:
                raise _too_many_failures(session.limits.failures, self._best(session.records.records))
        return self._as_changed(session)._finished(folder.session, session)

    def _finished(self, number: int, session: SearchSession) -> BestRun | list[BestRun]:
        """Return the best run: trained on all data if it is to be, evaluated on the test set if there is one.

        `number` is that of the session on disk.
        """
        best = self._result(session.records.records)
        if isinstance(best, list):
            return best
        try:
            with ctrl_c_as_interruption():
                if self.has_refit:
                    best = self._refitted(best, number, session)
                return best if self.held_out is None else self._evaluated(best, self.held_out, number, session)
        except KeyboardInterrupt:
            raise self._interrupted(session.records.records, session.interruption) from None

    def _refitted(self, best: BestRun, number: int, session: SearchSession) -> BestRun:
        """Return the best run with a model that was trained on all data; without one, after a notice, if that fails."""
        assert isinstance(self.recipe, TrainsOnAllData), "check_refit has checked it"
        if sessions_at_work(self.study.folder):
            self._warn("another process still searches in this study: the one that ends last refits")
            return best
        arguments = fingerprint_of_session(session_settings(self.study.folder, number))
        try:
            refit_best(self.recipe, self.study, best, arguments, session.interruption, self.listener.on_notice)
        except Exception as error:
            logger.info("the refit has failed", exc_info=True)
            self._warn(
                f"trial {best.run_id}'s parameters could not be trained on all data: {type(error).__name__}: {error}"
            )
            return best
        session.records.write_best()
        found = self._best(session.records.records)
        assert isinstance(found, BestRun), "there is one objective"
        return found

    def _evaluated(self, best: BestRun, held_out: HeldOut, number: int, session: SearchSession) -> BestRun:
        evaluator = HeldOutEvaluator(
            held_out, self.recipe, self.study, number, session.interruption, self.listener.on_notice, self._warn
        )
        return evaluator.evaluate(best)

    def _warn(self, notice: str) -> None:
        """Show a notice; where nothing shows it, in the log."""
        is_shown = type(self.listener) is not SearchListener
        logger.log(logging.INFO if is_shown else logging.WARNING, "%s", notice)
        self.listener.on_notice(notice)

    def _open(self, folder: StudyFolder, session: SearchSession) -> None:
        """Open folder and storage; announce the decisions, and what has changed since earlier trials."""
        functions = {**self.recipe.functions(), **self.study.functions()}
        recipe, processes = self.recipe, self.study.processes
        environment = describe_environment(recipe.args, recipe.data(), functions, processes, recipe.names)
        with folder.locked():
            records = folder.open()
            for record in records:
                check_processes(self.study, record)
            damaged = [f"DAMAGED: {each}" for each in folder.problems]
            prepared = self.backend.prepare(self.study, records, folder.left_alone, session.records.is_alone())
            notes = [*damaged, *prepared, f"scope {self.study.scope}"]
            if points_of(self.recipe, self.study) == (1.0,):
                notes.append(
                    "one evaluation at the end of each trial: nothing can be pruned (eval_strategy='steps' with "
                    "eval_steps=0.05 would allow it)"
                )
            if self.recipe.args.save_total_limit is not None:
                notes.append("save_total_limit is left aside: the search decides which checkpoints stay")
            if self.recipe.args.enable_jit_checkpoint:
                notes.append("enable_jit_checkpoint is off in a search: trials resume from their last checkpoint")
            earlier = folder.read_settings()
            if earlier is not None:
                now = {**self.study.about_choosing(), **self.backend.describe()}
                chosen_by = [name for name in ("seed", "sampler", "pruner", "pruning_metric") if name in earlier]
                changes = [
                    *self.study.changes_of_space(earlier),
                    *(f"{each} {earlier[each]!r} -> {now[each]!r}" for each in chosen_by if earlier[each] != now[each]),
                    *changes_of_sessions(records, earlier, environment),
                ]
                notes += [f"CHANGED since earlier trials: {', '.join(changes)}"] if changes else []
                notes += outdated(self.study, records, earlier, environment)
            notes += session.requests.open(records, session.records.is_alone(), self.study)
            added = session.requests.now().new
            about = {**self.backend.describe(), **({ADDED: len(added)} if added else {})}
            if self.recipe.cannot_extend is not None:
                about[CANNOT_EXTEND] = self.recipe.cannot_extend
            folder.write_settings(environment, about, records)
            session.open(records)
            killed = [each for each in records if each.state is TrialState.RUNNING and session.records.is_alone()]
            known = [*session.records.records, *after_a_kill(with_last_checkpoints(killed, self.study))]
            known.sort(key=attrgetter("number"))
        logger.info("%s; %s", self.study.description, "; ".join(notes))
        self.listener.on_search_begin(self.study, known, notes)
        for notice in self.notices:
            self._warn(notice)

    def _run_trials(self, session: SearchSession) -> None:
        try:
            with finishing_at_ctrl_c(session.interruption, session.announce), ctrl_c_as_interruption():
                self.backend.search(session)
                self.listener.on_records(session.records.records)  # it may have waited for trials of other searches
        except TrialEndedSearch as ended:
            if not isinstance(ended.cause, KeyboardInterrupt):
                raise ended.cause from None
            raise self._as_changed(session)._interrupted(session.records.records, session.interruption) from None
        except KeyboardInterrupt:
            raise self._as_changed(session)._interrupted(session.records.records, session.interruption) from None
        finally:
            with ignoring_ctrl_c():  # the trials are recorded: all that is left is to say so
                self.listener.on_search_end(session.study_in_effect, session.records.records)
        if session.interruption.signal:
            raise self._as_changed(session)._interrupted(session.records.records, session.interruption)

    def _as_changed(self, session: SearchSession) -> Search:
        """Return this search with the total of trials that the user has requested while it ran."""
        return replace(self, study=session.study)

    def _stored(self, number: int) -> tuple[object, object]:
        return self.backend.stored.engine_study(), self.backend.stored.engine_trial(number)

    def _result(self, records: list[TrialRecord]) -> BestRun | list[BestRun]:
        """Return the best run, or raise an error if there is none; every process of a trial does the same."""
        summary = self._summary(records)
        if not summary.best():
            raise NoCompletedTrialError(summary.explain_absence(), summary)
        return self._best(records)

    def _best(self, records: list[TrialRecord]) -> BestRun | list[BestRun]:
        found = best_runs(self._summary(records), self.recipe.build_best_model)
        return found if len(self.study.objectives) > 1 else found[0]

    def _summary(self, records: list[TrialRecord]) -> SearchSummary:
        return SearchSummary(self.study, records, functools.partial(_same, self.backend.stored))

    def _interrupted(self, records: list[TrialRecord], interruption: Interruption) -> SearchInterrupted:
        by = "" if interruption.is_by_user else f" by {interruption.name}"
        return SearchInterrupted(
            f"Search {self.study.name!r} interrupted{by} after "
            f"{progress_in_words(self.study, records)}. Run the same command again to continue; nothing in "
            f"{str(self.study.folder)!r} is lost.",
            self._best(records),
            interruption.signal or signal.SIGINT,
            own_command(),
        )


@contextlib.contextmanager
def ending_for_all_ranks(ranks: Ranks, study: StudyRecords) -> Iterator[None]:
    """Notify the other ranks, when the block ends, that the search is over, and how.

    Ranks that cannot be reached notice it themselves.
    """
    try:
        yield
    except CommunicationError:
        raise
    except BaseException as error:
        ending = SearchIsOver(study.records, _bare(error))
        with contextlib.suppress(CommunicationError):
            ranks.decide(lambda: ending)
        raise
    ranks.decide(lambda: SearchIsOver(study.records))


def changes_of_sessions(records: Sequence[TrialRecord], earlier: JsonObject, now: JsonObject) -> list[str]:
    """Return in what the sessions that trained the trials of a study differ from this one, each difference once.

    A session that trained nothing has nothing to compare with; only if no session has trials is it the last one.

    Args:
        records: the trials on disk; a failed one has no result to compare with.
        earlier: what `study.json` holds.
        now: the arguments, versions, data and functions of this session.
    """
    begun = [each for each in records if each.state not in (TrialState.FAILED, TrialState.REFUSED)]
    running = [each for each in begun if each.state is TrialState.RUNNING]  # their records have no session yet
    trained = {each.session for each in begun if each.state is not TrialState.RUNNING}
    if running or not trained:
        trained.add(earlier["session"])
    sessions = (each for place, each in enumerate(earlier["sessions"]) if place in trained)
    return list(dict.fromkeys(change for each in sessions for change in differences(each, now)))


def outdated(study: Study, records: Sequence[TrialRecord], earlier: JsonObject, now: JsonObject) -> list[str]:
    """Warn, and return the warning, if no trial will run and the best one had other code, arguments or data.

    Args:
        study: the settings.
        records: the trials on disk.
        earlier: what `study.json` holds.
        now: the arguments, versions, data and functions of this session.
    """
    best = best_records(records, study.objectives)
    used_up = SearchBudget(study).passed(sum(each.epochs for each in records))
    done = sum(each.is_counted for each in records)
    if study.n_trials is not None and done >= study.n_trials:
        has_all, larger = all_trials(study.n_trials, done)
        why = f"study {study.name!r} {has_all}"
    elif used_up is not None:
        why, larger = f"of study {study.name!r}, {used_up.reason}", "a larger max_epochs="
    elif study.budget is not None and is_exhausted(study.budget, records):
        why, larger = f"of study {study.name!r}, {TrainingBudget(study.budget).exhausted(records)}", "a larger budget="
    else:
        return []
    if not best:
        return []
    session = best[0].session
    is_there = session < len(earlier["sessions"])  # else the file was damaged, or written anew
    changes = differences_in_results(earlier["sessions"][session], now, but=()) if is_there else []
    if not changes:
        return []
    warning = (
        f"{why}, so nothing runs, but its best trial was trained before a change: {', '.join(changes)}. Pass another "
        f"study_name= to search with the change, or {larger} to add trials to this study"
    )
    logger.warning("%s.", warning)
    return [warning]


def _same(engine: Engine) -> Engine:
    """Return the engine of a summary that knows it already; unlike a lambda, it can be pickled with the summary."""
    return engine


def _bare(error: BaseException) -> BaseException:
    """Return an error that can be sent to another process: without a best run, and of a kind that is known there."""
    if isinstance(error, SearchInterrupted):
        return SearchInterrupted(error.args[0], None, error.signal, error.command)
    if isinstance(error, TooManyFailuresError):
        return TooManyFailuresError(str(error))
    is_known = isinstance(error, HpsearchError | KeyboardInterrupt)
    return error if is_known else HpsearchError(f"{type(error).__name__}: {error}")


def _too_many_failures(failures: list[TrialRecord], best: object) -> TooManyFailuresError:
    first = failures[0]
    return TooManyFailuresError(
        f"The last {len(failures)} trials failed, so the search ended (max_failures). The first of them, trial "
        f"{first.number}: {first.reason}\n\n{first.traceback or ''}",
        best,
    )
