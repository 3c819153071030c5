"""The embedded backend: Optuna proposes parameters and stores trials, which run on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from ..coordinator.coordinator import Coordinator
from ..coordinator.search_session import SearchSession
from ..executors.inline import run_inline
from ..executors.processes.process_executor import ProcessExecutor
from ..ledger.optuna_study import OptunaStudy
from ..ledger.sampler_and_pruner import Given
from ..search.decisions.ladder import RUNGS
from ..search.decisions.paused_limit import PausedLimit
from ..search.study import Study
from ..search.trial_record import TrialRecord
from ..trial.searchable import Searchable
from .base import Backend
from .engine_options import EngineOption

# Options of `optuna.Study.optimize` on which nothing about the result depends.
OPTIMIZE_OPTIONS: Mapping[str, EngineOption] = {
    "gc_after_trial": EngineOption.harmless("the memory of a trial is always released"),
    "catch": EngineOption.harmless("an error in a trial is always recorded, and the search continues"),
    "show_progress_bar": EngineOption.harmless("progress= decides what is shown"),
}


class OptunaBackend(Backend):
    """Optuna in this process; trials run in this process too, one at a time, or in parallel workers of this machine.

    Several processes may search one study.

    Args:
        sampler, pruner, storage, terminator, start_from, n_jobs, devices, trials_per_device, processes_per_trial: see
            `Trainer.hyperparameter_search`.
        load_if_exists: False refuses to continue a study that the storage has already.
        max_paused: the largest number of paused trials, at least three; the worst of the others are pruned.
        max_paused_bytes: the most bytes that checkpoints of paused trials may take, the three best apart; None: half of
            the free disk space, plus the space that they take already.
        trials_per_worker: the number of trials after which a worker is replaced by a new one; None: no limit. With
            `n_jobs=1` it runs the trials in a worker, as does `worker_memory`.
        worker_memory: a worker is replaced after a trial that leaves it with more bytes of memory than these; None: its
            share of nine tenths of the memory of the machine, or of its container.
        trial_retries: the number of times that a trial is resumed in another worker after its worker has died.
        group_timeout: with `processes_per_trial`, the seconds without progress after which a group of processes is
            ended, and its trial is resumed in another group; None: 600, and no limit for a plain function.

    Raises:
        StudyError: an option is not one of these, or has another value.
    """

    name: ClassVar[str] = "optuna"
    options: ClassVar[tuple[str, ...]] = (
        "sampler",
        "pruner",
        "storage",
        "load_if_exists",
        "terminator",
        "start_from",
        "max_paused",
        "max_paused_bytes",
        "n_jobs",
        "devices",
        "trials_per_device",
        "processes_per_trial",
        "trials_per_worker",
        "worker_memory",
        "trial_retries",
        "group_timeout",
    )
    engine_options: ClassVar[Mapping[str, EngineOption]] = {
        **OPTIMIZE_OPTIONS,
        "max_concurrent_trials": EngineOption("pass n_jobs"),
        "resources_per_trial": EngineOption("pass devices and trials_per_device (or backend='ray')"),
        "scheduler": EngineOption("pass pruner (or backend='ray')"),
        "search_alg": EngineOption("pass sampler (or backend='ray')"),
        "address": EngineOption("pass backend='ray'"),
        "placement": EngineOption("the processes of a trial are on this machine (or pass backend='ray')"),
        "autoscaling": EngineOption("pass backend='ray'"),
        "storage_path": EngineOption("pass storage, and the trainer's output_dir (or backend='ray')"),
    }

    def __init__(
        self,
        sampler: object = None,
        pruner: object = RUNGS,
        storage: object = None,
        load_if_exists: bool = True,
        terminator: object = None,
        start_from: object = None,
        max_paused: int = 50,
        max_paused_bytes: float | None = None,
        n_jobs: int | None = None,
        devices: Sequence[int] | None = None,
        trials_per_device: int | str | None = None,
        processes_per_trial: int = 1,
        trials_per_worker: int | None = None,
        worker_memory: float | None = None,
        trial_retries: int = 3,
        group_timeout: float | None = None,
    ) -> None:
        self._processes = ProcessExecutor(
            n_jobs,
            devices,
            trials_per_device,
            processes_per_trial,
            trials_per_worker,
            worker_memory,
            trial_retries,
            group_timeout,
        )
        self.processes_per_trial = self._processes.processes
        self.trains_here = not self._processes.is_wanted
        given, limit = Given(sampler, pruner, terminator), PausedLimit(max_paused, max_paused_bytes)
        self.stored = OptunaStudy(given, storage, load_if_exists, start_from, limit)

    @contextmanager
    def connected(self, study: Study, recipe: Searchable) -> Iterator[None]:
        """Check the options, open a storage outside of the study's folder, and pack the trainer for the workers."""
        self.stored.connect(study, recipe)
        with self._processes.packed(study, recipe):
            yield

    def call_in_group(self, recipe: Searchable, function: Callable[[], Any]) -> Any:
        """Call it in a group of processes, if trials have several."""
        return self._processes.call_in_group(recipe, function) if self.processes_per_trial > 1 else function()

    def prepare(
        self,
        study: Study,
        records: Sequence[TrialRecord],
        left_alone: frozenset[int] = frozenset(),
        is_alone: bool = False,
    ) -> list[str]:
        """Open the study in the storage."""
        notes = self.stored.prepare(study, records, left_alone, is_alone, self._processes.is_wanted)
        return [*self._processes.notes, *notes]

    def search(self, session: SearchSession) -> None:
        """Run trials here or in workers until the study has its total, or a limit is exhausted."""
        coordinator = Coordinator.of(session, self.stored, self._processes.retries)
        if self._processes.is_wanted:
            self._processes.run(coordinator)
        else:
            run_inline(coordinator, session.local)
