"""The trials of this session on disk: their folders and records, from their beginning to their end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from ..errors import CannotResumeError
from ..search.half_done_trials import check_processes
from ..search.space.search_space import SearchSpace
from ..search.space.tried_configurations import choose
from ..search.store.own_files import hide_checkpoints_outside
from ..search.store.study_folder import StudyFolder, remove_leftovers
from ..search.study import Study
from ..search.trial import FixedTrial, Trial, Verdict
from ..search.trial_record import Span, TrialRecord, TrialState, extended_by, replica_of
from ..trial.acting_arguments import reaching_out
from ..trial.assignment import Assignment
from ..trial.ending import Ended, TrialEndedSearch, run_to_end
from ..trial.execution import Execution
from ..trial.local_trials import LocalTrials
from ..trial.preflight import PreflightPlan, plan_preflight
from ..trial.searchable import Searchable
from .extension import continue_from
from .reasons_to_end import Limits
from .study_records import StudyRecords


class TrialsOnDisk:
    """Begins trials, and writes their records: how far they are, and how they ended.

    Args:
        trainer: the recipe of the trials.
        study: the settings.
        folder: of the study.
        records: of the study.
        limits: of this session.
        local: makes trials in this process.
        show: called with each trial that has begun.
    """

    def __init__(
        self,
        trainer: Searchable,
        study: Study,
        folder: StudyFolder,
        records: StudyRecords,
        limits: Limits,
        local: LocalTrials,
        show: Callable[[Trial], None],
    ) -> None:
        self._trainer, self._study, self._folder = trainer, study, folder
        self._records, self._limits, self._local, self._show = records, limits, local, show
        self._last_preflight: int | None = None  # the trial that has had one
        self._begun: dict[int, tuple[float, TrialRecord | None]] = {}  # when, and what was known

    def begin(self, trial: Trial) -> Assignment | TrialRecord:
        """Prepare a trial, and return what the process that trains it must know; `finish` when it has ended.

        If the trial ended before it could be trained, return its record, as `finish` does.

        Raises:
            TrialEndedSearch: as in `finish`.
        """
        others = self._records.others(trial.number)
        execution = self._local.execution(trial, others)

        def prepare() -> tuple[TrialState, str | None]:
            self._begin(trial, execution)
            return TrialState.RUNNING, None

        ended = run_to_end(execution, prepare)
        if ended.record.state is TrialState.RUNNING:
            return Assignment.of(trial, others, self._limits.seconds_left, self._plan(trial))
        return self.finish(ended)

    def note(self, record: TrialRecord) -> None:
        """Write the state of a trial that its checkpoints do not hold.

        Should the trial begin again, that is what is known of it.
        """
        begun, known = self._begun[record.number]
        record = record.going_on_from(known)
        self._folder.write_record(record)
        self._begun[record.number] = begun, record

    def finish(self, ended: Ended) -> TrialRecord:
        """Write the record of an ended trial, and return it as it was written.

        Raises:
            TrialEndedSearch: the search ends with it: the study itself is mistaken, or the user ended the search.
        """
        begun, known = self._begun.pop(ended.record.number, (None, None))
        record = replace(ended.record.going_on_from(known), session=self._folder.session)
        if begun is not None:
            earlier = () if known is None else known.spans
            record = replace(record, spans=(*earlier, Span(begun, time.time(), ended.where)))
        interruption = self._limits.budget.interruption
        if interruption.signal and record.state is TrialState.FAILED and ended.cause is None:
            # The signal may have ended processes of the trial, such as those that load its data. A launcher sends it to
            # a process after another one has failed, which is the cause then.
            reason = f"{interruption.reason}: {record.reason}"
            record = replace(record, state=TrialState.INTERRUPTED, reason=reason)
        self._folder.write_record(record)
        if ended.cause is not None:
            raise TrialEndedSearch(record, ended.cause)
        return record

    def stop_paused(self, trial: Trial, record: TrialRecord, reason: str) -> TrialRecord:
        """Stop a paused trial with the result that it has, and return its record, written to disk."""
        hide_checkpoints_outside(self._study.folder / record.name)
        execution = self._local.execution(trial, self._records.others(trial.number))
        return self.finish(Ended(execution.record_of_waiting(record, Verdict(stop=reason))))

    def _plan(self, trial: Trial) -> PreflightPlan | None:
        """Return the plan of a trial's preflight; None if it has none.

        The first trial has one while the study has no report; if that trial fails, the next one has one too.
        """
        failed = {each.number: each.reason or "" for each in self._limits.failures}
        if not self._study.preflight or not (self._last_preflight is None or self._last_preflight in failed):
            return None
        earlier = () if trial.earlier is None else trial.earlier.reports
        if earlier or any(each.reports for each in self._records.known()):
            return None
        self._last_preflight = trial.number
        return plan_preflight(self._study, trial.number, max(failed.items(), default=None))

    def _begin(self, trial: Trial, execution: Execution) -> None:
        """Ask for the trial's parameters, and give it a folder with its first record in it."""
        self._begun[trial.number] = time.time(), trial.earlier
        suggested = self._study.suggest(trial)
        if not isinstance(self._study.space, SearchSpace):  # in a function, what other trials have is in a branch
            trial.params.of_all_branches |= {name for each in self._records.known() for name in each.params}
        if trial.earlier is None:
            self._begin_new(trial, suggested, execution)
        else:
            self._resume(trial, trial.earlier, suggested)
        extended = extended_by(trial.origin)
        if extended is not None:
            continue_from(self._records.ended(extended), trial, self._study.folder, self._trainer)
        self._show(trial)

    def _begin_new(self, trial: Trial, suggested: dict[str, object], execution: Execution) -> None:
        with self._folder.locked():
            origin = trial.origin
            given = {} if origin is None or replica_of(origin) is not None else origin["arguments"]
            trial.arguments = {**self._not_known(trial, suggested), **given}
            trial.keep()
            trial.suggested_by_space = set(trial.params.values_by_name)
            wanted = self._study.run_name(trial, is_complete=False)
            if wanted is not None:
                trial.name = self._folder.begin_run(execution.record(TrialState.RUNNING), wanted)
        if wanted is None:
            self._begin_named_by_user_code(trial, execution)

    def _resume(self, trial: Trial, earlier: TrialRecord, suggested: dict[str, object]) -> None:
        _check_reach(earlier, suggested)
        check_processes(self._study, earlier)
        trial.arguments, trial.suggested_by_space = suggested, set(trial.params.values_by_name)
        if earlier.schedule:
            trial.arguments = dict(earlier.arguments)
            trial.params.values_by_name.update(earlier.params)
            trial.suggested_by_space |= trial.arguments.keys()
        else:  # arguments that are searched no longer stay as they were; user code may have dropped what it reads
            is_read = self._trainer.is_read_by_user_code
            kept = {name: each for name, each in earlier.arguments.items() if not is_read(name)}
            trial.arguments = {**kept, **trial.arguments}
            trial.params.values_by_name.update({**kept, **trial.params.values_by_name})
            trial.suggested_by_space |= kept.keys()
        remove_leftovers(self._study.folder / trial.name)
        hide_checkpoints_outside(self._study.folder / trial.name)
        resumed = replace(earlier, state=TrialState.RUNNING, reason=None, processes=self._study.processes)
        self._folder.write_record(resumed)

    def _begin_named_by_user_code(self, trial: Trial, execution: Execution) -> None:
        """Begin a trial whose name needs what the user's code suggests; an error of that code is the trial's."""
        name: str | None = None
        try:
            self._trainer.let_user_code_suggest(trial)
            name = self._study.run_name(trial)
        finally:
            with self._folder.locked():
                record = execution.record(TrialState.RUNNING)
                trial.name = self._folder.begin_run(record, name or f"run-{trial.number}")

    def _not_known(self, trial: Trial, suggested: dict[str, object]) -> dict[str, object]:
        """Return the arguments of a new trial; of another configuration, if the result of this one is known."""
        if self._study.goes_by_number or isinstance(trial, FixedTrial):  # a replay's parameters are given
            return suggested
        self._records.refresh()
        stream = f"{self._study.seed}/{trial.number}"
        return dict(choose(trial, self._study.suggest, suggested, self._records.tried(), stream))


def _check_reach(record: TrialRecord, suggested: Mapping[str, object]) -> None:
    """Check that no argument of a half-done trial acts elsewhere, unless the space of this search asks for it.

    Raises:
        CannotResumeError: one does.
    """
    reaching = reaching_out(replace(record, params={}), suggested)  # what is no argument configures nothing
    if reaching is not None:
        raise CannotResumeError(
            f"Trial {record.number} does not resume with {reaching}: it comes from the study's folder, not from the "
            "search space, and reaches beyond the folder. If the study is yours, put the parameter back into the "
            f"space; if the folder is from someone else, move {record.name!r} out of it."
        )
