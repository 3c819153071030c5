"""The search on a Ray cluster: Optuna chooses and stores as in the embedded backend, Ray Tune runs the trials."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import ray
from ray import tune
from ray.tune.schedulers import HyperBandScheduler, PopulationBasedTraining

from ..coordinator.coordinator import Coordinator
from ..coordinator.search_session import SearchSession
from ..errors import StudyError
from ..executors.processes.group_checks import check_alone, check_group, checked_timeout, effective_batch
from ..executors.processes.pickling import check_objectives, for_workers
from ..executors.ray_executor.cluster import (
    Cluster,
    Resources,
    as_resources,
    check_address,
    checked_placement,
    joined,
    quiet_tune,
)
from ..executors.ray_executor.group_training import GroupSettings
from ..executors.ray_executor.object_store import put
from ..executors.ray_executor.perturbations import check_perturbations, with_perturbed
from ..executors.ray_executor.ray_spaces import drawn, from_ray
from ..executors.ray_executor.remote_folders import RemoteFolders, check_place, remote_name
from ..executors.ray_executor.run_folders import TUNE_FOLDER, RunFolders, SharedFolder
from ..executors.ray_executor.schedulers import as_scheduler, check_scheduler, is_gathering
from ..executors.ray_executor.searchers import Proposals, as_searcher, check_searcher
from ..executors.ray_executor.stopping import as_stop
from ..executors.ray_executor.study_scheduler import StudyScheduler
from ..executors.ray_executor.trial_artifacts import TrialArtifacts
from ..executors.ray_executor.tune_dispatch import TuneDispatch
from ..executors.ray_executor.tune_parts import StudySearcher, StudyStopper, StudyTrials, WorkerEvents
from ..executors.ray_executor.tune_worker import OBJECTIVE, Shared, TrialWorker
from ..ledger.optuna_study import OptunaStudy
from ..ledger.pruning import is_rungs
from ..ledger.sampler_and_pruner import Given
from ..search.decisions.ladder import RUNGS
from ..search.decisions.paused_limit import PausedLimit
from ..search.space.static_checks import TakesParameters
from ..search.study import Study, check_whole
from ..search.trial_record import TrialRecord
from ..system.ctrl_c import at_ctrl_c
from ..system.json_types import JsonObject
from ..trial.searchable import Searchable
from .base import Backend
from .engine_options import EngineOption
from .optuna_backend import OPTIMIZE_OPTIONS
from .tune_options import TUNE_OPTIONS

# How often a worker reports progress, and how many such reports a second the search receives at most.
_LEAST_SECONDS, _PROGRESS_A_SECOND = 2.0, 50
# The most trials that are queued for a worker: each takes some time to choose, in which Tune does nothing else.
_MOST_PENDING = 16
_PAUSING = (HyperBandScheduler, PopulationBasedTraining)


class RayBackend(Backend):
    """Trials in the actors of a Ray cluster, as many in parallel as it has room for.

    Args:
        address: None: the cluster that this process has joined, else a local one for the time of the search;
            ``"auto"`` or ``"host:port"``: an existing cluster, of which this machine is a node.
        resources_per_trial: of one trial, such as ``{"cpu": 2, "gpu": 0.5, "my_resource": 1}``; default 1 CPU, and 1
            GPU if the cluster has any, for each process. With `processes_per_trial` its processes get equal parts.
        processes_per_trial: see `Trainer.hyperparameter_search`; the processes of a trial may be on several nodes.
        placement: with `processes_per_trial`, ``"pack"``: the processes of a trial are on as few nodes as possible
            (the default), or ``"spread"``: on as many.
        group_timeout: see `OptunaBackend`.
        max_concurrent_trials: the most trials that run in parallel; default: as many as fit.
        trial_retries: the number of times that a trial is resumed in another worker after its worker has died.
        autoscaling: the cluster grows: wait for resources that no node has yet.
        storage_path: where running trials keep their checkpoints if the nodes do not share the study's folder: a path
            or URL that all of them reach, such as ``"s3://bucket/searches"``.
        scheduler: a scheduler of Ray Tune, or its name; in place of a pruner.
        search_alg: a searcher of Ray Tune, or its name; in place of a sampler.
        stop: numbers in a report at which a trial ends with a result, such as ``{"training_iteration": 4}``, after four
            evaluations.
        name: the study's name, as Tune calls it.
        pruner: see `Trainer.hyperparameter_search`; median pruning takes the place of rungs with a `search_alg`, which
            receives only ended trials.
        sampler, storage, load_if_exists, terminator, start_from, max_paused, max_paused_bytes: see `OptunaBackend`.

    Raises:
        StudyError: an option is not one of these, or has another value.
    """

    name: ClassVar[str] = "ray"
    options: ClassVar[tuple[str, ...]] = (
        "address",
        "resources_per_trial",
        "processes_per_trial",
        "placement",
        "group_timeout",
        "max_concurrent_trials",
        "trial_retries",
        "autoscaling",
        "storage_path",
        "scheduler",
        "search_alg",
        "stop",
        "name",
        "sampler",
        "pruner",
        "storage",
        "load_if_exists",
        "terminator",
        "start_from",
        "max_paused",
        "max_paused_bytes",
    )
    engine_options: ClassVar[Mapping[str, EngineOption]] = {**OPTIMIZE_OPTIONS, **TUNE_OPTIONS}

    def __init__(
        self,
        address: str | None = None,
        resources_per_trial: object = None,
        processes_per_trial: int = 1,
        placement: str | None = None,
        group_timeout: float | None = None,
        max_concurrent_trials: int | None = None,
        trial_retries: int = 3,
        autoscaling: bool = False,
        storage_path: str | os.PathLike[str] | None = None,
        scheduler: object = None,
        search_alg: object = None,
        stop: Mapping[str, object] | None = None,
        name: str | None = None,
        sampler: object = None,
        pruner: object = RUNGS,
        terminator: object = None,
        max_paused: int = 50,
        max_paused_bytes: float | None = None,
        **of_the_study: Any,
    ) -> None:
        if scheduler is not None and not (pruner is None or is_rungs(pruner)):
            raise StudyError(
                f"scheduler={scheduler!r} and pruner={pruner!r} would both stop trials; pass only one of them."
            )
        if search_alg is not None and sampler is not None:
            raise StudyError(
                f"search_alg={search_alg!r} and sampler={sampler!r} would both choose parameters; pass only one."
            )
        if max_concurrent_trials is not None:
            check_whole("max_concurrent_trials", max_concurrent_trials, 1, "None or ")
        check_whole("trial_retries", trial_retries, 0)
        check_whole("processes_per_trial", processes_per_trial, 1)
        if processes_per_trial > 1 and storage_path is not None:
            raise StudyError(
                f"processes_per_trial={processes_per_trial} and storage_path={os.fspath(storage_path)!r} contradict "
                "each other: the processes of a trial write its checkpoints together, into a folder that all nodes "
                "share. Leave storage_path out, and put output_dir on such a folder."
            )
        check_address(address)
        self._address, self._concurrent, self._retries = address, max_concurrent_trials, trial_retries
        self._autoscaling = autoscaling
        self._storage_path = None if storage_path is None else os.fspath(storage_path)
        self.processes_per_trial = processes_per_trial
        self._placement = checked_placement(placement, processes_per_trial)
        self._group_timeout = checked_timeout(group_timeout, processes_per_trial)
        self._resources = as_resources(resources_per_trial, processes_per_trial, self._placement)
        self._scheduler = as_scheduler(scheduler)
        self._searcher = as_searcher(search_alg)
        self._proposals: Proposals | None = None
        if self._scheduler is not None:
            pruner = None
        elif self._searcher is not None and is_rungs(pruner):
            pruner = "median"
        given = Given(sampler, pruner, terminator, is_scheduled=self._scheduler is not None)
        limit = PausedLimit(max_paused, max_paused_bytes)
        may_repeat = isinstance(self._scheduler, PopulationBasedTraining)
        self.stored = OptunaStudy(given, limit=limit, may_repeat=may_repeat, **of_the_study)
        self._stop = as_stop(stop)
        self.study_name = name
        self._notes = [f"a trial ends at {key}={limit:g} (stop)" for key, limit in self._stop.items()]
        self._cluster: Cluster | None = None
        self._each = Resources()
        self._recipe: Any = None

    def native_space(self, hp_space: object, seed: int, recipe: TakesParameters) -> Any:
        """Take Ray's domains, in a mapping or in what a function returns, and what only the scheduler names."""
        check_perturbations(self._scheduler, recipe)
        hp_space = with_perturbed(hp_space, self._scheduler)
        by_chance = drawn(hp_space)
        if by_chance:
            self._notes.append(f"drawn at random, not learned: {', '.join(by_chance)}")
        return from_ray(hp_space, seed)

    @contextlib.contextmanager
    def connected(self, study: Study, recipe: Searchable) -> Iterator[None]:
        """Join the cluster, and check that the trials can run there."""
        processes = self.processes_per_trial
        if processes == 1:
            check_alone(recipe)
        elif recipe.args.world_size > 1:
            raise StudyError(
                f"processes_per_trial={processes} starts processes on the cluster for the trials, but this search was "
                f"started in {recipe.args.world_size} processes, which train each trial together. Start it without "
                "torchrun or accelerate launch."
            )
        elif recipe.writes_its_checkpoints:
            raise StudyError(
                f"processes_per_trial={processes}: on Ray, each trial of a plain function has one process. Leave it "
                "out, or search without backend='ray'."
            )
        check_scheduler(self._scheduler, study, recipe)
        check_searcher(self._searcher, study)
        check_objectives(study, "Ray's workers")
        self.stored.connect(study, recipe)
        with joined(self._address) as cluster:
            self._each = self._resources or cluster.default_resources(processes, self._placement)
            short = cluster.check_fits(self._each, autoscaling=self._autoscaling)
            self._notes += [short] if short else []
            if processes > 1:
                check_group(recipe, processes, has_gpus=self._each.gpu > 0)
                self._notes.append(effective_batch(recipe, study, processes))
            self._recipe = put(recipe.with_arguments())
            self._cluster = cluster
            try:
                yield
            finally:
                self._cluster = self._recipe = None

    def prepare(
        self,
        study: Study,
        records: Sequence[TrialRecord],
        left_alone: frozenset[int] = frozenset(),
        is_alone: bool = False,
    ) -> list[str]:
        """Open the storage, and check that all nodes see the study's folder."""
        cluster = self._joined()
        place = study.folder if self._storage_path is None else check_place(self._storage_path)
        cluster.check_nodes(place)
        notes = self.stored.prepare(study, records, left_alone, is_alone, has_parallel_trials=self._slots() > 1)
        if self._scheduler is not None:
            counts = getattr(self._scheduler, "_time_attr", None)
            judge = f"scheduler {type(self._scheduler).__name__}{f' (by {counts})' if counts else ''}"
            notes = [judge if each.startswith("pruner ") else each for each in notes]
        if self._searcher is not None:
            proposals = self._proposals = Proposals(self._searcher, study, records)
            notes = [
                _in_place_of_sampler(proposals.note, each) if each.startswith("sampler ") else each for each in notes
            ]
        slots = self._slots() - self._takes_turns
        trials = f"{slots} parallel trial{'s' if slots != 1 else ''}, each with {self._each}"
        return [f"{cluster.description}: {trials}", *self._notes, *notes]

    def describe(self) -> JsonObject:
        """Return what `study.json` records, as the Optuna backend does."""
        described = {**super().describe(), "ray_version": ray.__version__}
        if self._scheduler is not None:
            described["pruner"] = type(self._scheduler).__name__
        if self._searcher is not None:
            described["sampler"] = type(self._searcher).__name__
        return described

    def search(self, session: SearchSession) -> None:
        """Let Tune run trials until the study has its total, or a limit is exhausted."""
        study, name = session.study, session.records.session
        tune_folder = f"{TUNE_FOLDER}{name}"
        with session.records.locked():
            folders = self._folders(study, name, tune_folder)
        folders.tidy(study.folder)

        dispatch = TuneDispatch(
            Coordinator.of(session, self.stored, self._retries, self._proposals),
            self._slots,
            has_room=(lambda: True) if self._autoscaling else (lambda: self._room() > 0),
            is_gathering=lambda: is_gathering(self._scheduler),
            artifacts=TrialArtifacts(folders, study),
            proposals=self._proposals,
        )
        try:
            with (
                quiet_tune(min(self._slots(), _MOST_PENDING)) as put_back_signals,
                at_ctrl_c(dispatch.take_ctrl_c, times=2),
            ):
                self._tuner(study, folders, dispatch, tune_folder, put_back_signals).fit()
            if not dispatch.is_over:
                dispatch.end_with(KeyboardInterrupt())
        except BaseException as error:  # Tune's own, or a third Ctrl-C
            dispatch.end_with(error)
        finally:
            try:
                dispatch.close()
            finally:
                folders.close()
        if dispatch.error is not None:
            raise dispatch.error

    def _tuner(
        self,
        study: Study,
        folders: RunFolders,
        dispatch: TuneDispatch,
        name: str,
        put_back_signals: Callable[[], None],
    ) -> tune.Tuner:
        seconds = max(_LEAST_SECONDS, self._slots() / _PROGRESS_A_SECOND)
        are_copied, processes = isinstance(self._scheduler, PopulationBasedTraining), self.processes_per_trial
        paths = tuple(sys.path)
        settings = GroupSettings(processes, self._each.as_bundle(), self._group_timeout, paths)
        group = settings if processes > 1 else None
        shared = Shared(self._recipe, for_workers(study), folders, paths, seconds, are_copied, group)
        worker = tune.with_resources(tune.with_parameters(TrialWorker, shared=shared), self._each.as_request())
        return tune.Tuner(
            worker,
            tune_config=tune.TuneConfig(
                metric=OBJECTIVE,
                mode="min" if (study.pruning_objective or study.objective).direction == "minimize" else "max",
                search_alg=StudyTrials(StudySearcher(dispatch)),
                scheduler=StudyScheduler(dispatch, self._scheduler, self._concurrent, self._stop),
                num_samples=-1,
                reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name=name,
                storage_path=folders.url_for_tune,
                storage_filesystem=folders.filesystem_for_tune,
                stop=StudyStopper(dispatch),
                callbacks=[WorkerEvents(dispatch, put_back_signals)],
                failure_config=tune.FailureConfig(max_failures=self._retries),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                verbose=0,
            ),
        )

    def _folders(self, study: Study, session: str, tune_folder: str) -> RunFolders:
        if self._storage_path is None:
            return SharedFolder(study.folder.absolute(), session, tune_folder)
        return RemoteFolders(self._storage_path, remote_name(study.folder), session, tune_folder)

    def _slots(self) -> int:
        """Return the number of trials that workers may train in parallel."""
        room = self._room()
        if self._autoscaling:  # a cluster grows for queued trials
            room = room + _MOST_PENDING if self._concurrent is None else self._concurrent
        slots = room if self._concurrent is None else min(room, self._concurrent)
        # These schedulers let trials take turns, which they only do for a queued one.
        return slots + self._takes_turns

    def _room(self) -> int:
        return self._joined().slots(self._each)

    @property
    def _takes_turns(self) -> bool:
        return isinstance(self._scheduler, _PAUSING)

    def _joined(self) -> Cluster:
        assert self._cluster is not None, "connected() comes first"
        return self._cluster


def _in_place_of_sampler(note: str, of_sampler: str) -> str:
    """Return the note on a searcher: that on the sampler with another name, as the text on priors holds for both."""
    return note + of_sampler[len(of_sampler.partition(",")[0]) :]
