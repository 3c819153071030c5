"""What is Ray's own part of a search: trials at once, in workers that are used again, and what can go wrong there."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import BasicVariantGenerator, Searcher
from transformers import TrainerCallback

from hpsearch import Constraint, StudyError, TrialRecord, TrialState, tune
from tests.support import warm
from tests.support.on_ray import ON_RAY, search
from tests.support.programs import surroundings
from tests.support.search_processes import wait_until
from tests.support.searching import RATE, Diary, Events, HearsNotices, MeetsTheOther, states
from tests.support.small_trainer import TwoLayers, points, small_trainer, transformers_trainer

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_instance")]


def curve(record: TrialRecord) -> list[tuple[int, tuple[float, ...]]]:
    return [(report.step, report.values) for report in record.reports]


class CountsPicklings:
    """A dataset that writes down in which process it is pickled."""

    def __init__(self, diary: Diary) -> None:
        self._diary, self._points = diary, points(16, seed=0)

    def __len__(self) -> int:
        return len(self._points)

    def __getitem__(self, place: int) -> Any:
        return self._points[place]

    def __getstate__(self) -> Any:
        self._diary.write(os.getpid())
        return dict(vars(self))


@pytest.mark.feature(10)
def test_trials_run_at_once_in_workers_that_are_used_again_and_the_data_travel_once(tmp_path: Path) -> None:
    picklings, diary = Diary(tmp_path / "picklings"), Diary(tmp_path / "diary")
    data = {"train_dataset": CountsPicklings(picklings)}
    best = search(tmp_path, 4, [MeetsTheOther(diary)], data)
    assert states(best) == ["complete"] * 4
    entries = diary.read()
    assert [what for what, _, _ in entries[:2]] == ["begin", "begin"]
    workers = {pid for _, _, pid in entries}
    assert len(workers) == 2
    assert os.getpid() not in workers
    assert sorted({run for _, run, _ in entries}) == [f"run-{number}" for number in range(4)]
    assert picklings.read() == [os.getpid()]


class Dies(TrainerCallback):
    """Writes down the steps of all runs; ends its process after step 6 of run-1 once, and of run-2 every time."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        run = Path(args.output_dir).name
        is_first = (run, 6) not in [(name, step) for name, step, _ in self._diary.read()]
        self._diary.write((run, state.global_step, os.getpid()))
        if state.global_step == 6 and (run == "run-2" or (run == "run-1" and is_first)):
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.feature(10)
def test_a_trial_whose_worker_dies_goes_on_from_its_checkpoint_and_fails_only_if_it_dies_again(tmp_path: Path) -> None:
    diary, events = Diary(tmp_path / "diary"), HearsNotices()
    saving = {"save_strategy": "epoch", "num_train_epochs": 3}
    best = search(tmp_path, 4, [Dies(diary)], saving, trial_retries=1, progress=events)
    assert states(best) == ["complete", "complete", "failed", "complete"]

    steps = [(step, pid) for run, step, pid in diary.read() if run == "run-1"]
    assert [step for step, _ in steps] == [1, 2, 3, 4, 5, 6, *range(5, 13)]
    assert len({pid for _, pid in steps[:6]}) == len({pid for _, pid in steps[6:]}) == 1
    assert steps[0][1] != steps[-1][1]
    undisturbed = small_trainer(tmp_path / "embedded", **saving).hyperparameter_search(
        RATE, "loss", n_trials=4, progress=False, pruner="none"
    )
    for number in (0, 1, 3):
        here, there = best.run_summary.records[number], undisturbed.run_summary.records[number]
        assert (here.params, here.seed, here.epochs) == (there.params, there.seed, there.epochs)
        assert curve(here) == curve(there)
    assert best.objective == min(undisturbed.run_summary.records[number].value for number in (0, 1, 3))

    failed = best.run_summary.records[2]
    assert "its worker died" in failed.reason
    assert [step for run, step, _ in diary.read() if run == "run-2"] == [1, 2, 3, 4, 5, 6, 5, 6]
    assert len(failed.reports) == 1
    assert sum("trial 1 has lost its worker" in each for each in events.notices) == 1
    assert sum("trial 2 has lost its worker" in each for each in events.notices) == 1


class _HasLock:
    """A collator, metric or `model_init` that no other process can load."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, *given: Any) -> Any:
        return TwoLayers()


@pytest.mark.parametrize("name", ["model_init", "data_collator", "compute_metrics", "callbacks", "train_dataset"])
def test_what_no_other_process_can_load_is_named_before_anything_is_written(tmp_path: Path, name: str) -> None:
    given = {"callbacks": TrainerCallback(), "train_dataset": points(16, seed=0)}.get(name, _HasLock())
    if name == "callbacks":
        given.lock = threading.Lock()
    elif name == "train_dataset":
        given[3]["lock"] = threading.Lock()
    trainer = small_trainer(tmp_path, **({} if name in ("callbacks", "data_collator") else {name: given}))
    if name == "callbacks":
        trainer.add_callback(given)
    elif name == "data_collator":
        trainer.data_collator = given
    with pytest.raises(StudyError, match=rf"cannot be sent to Ray's workers: [.\w]*{name}.* cannot be pickled.*lock"):
        trainer.hyperparameter_search(RATE, "loss", **ON_RAY)
    assert not (tmp_path / "study").exists()


def test_a_metric_that_no_other_process_can_load_is_named_before_anything_is_written(tmp_path: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(StudyError, match=r"compute_objective: .*'objective' cannot be sent to Ray's workers.*lock"):
        search(tmp_path, compute_objective=lambda metrics: float(lock.locked()), direction="minimize")
    with pytest.raises(StudyError, match=r"constraints: .* cannot be sent to Ray's workers.*lock"):
        search(tmp_path, constraints=Constraint(lambda metrics: float(lock.locked()), at_most=1))
    assert not (tmp_path / "study").exists()


def test_functions_that_only_the_searching_process_calls_need_not_be_loaded_elsewhere(tmp_path: Path) -> None:
    lock = threading.Lock()

    def space(trial: Any) -> dict[str, Any]:
        with lock:
            return {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1)}

    best = search(
        tmp_path, hp_space=space, hp_name=lambda trial: f"free-{lock.locked()}", trainer={"num_train_epochs": 1}
    )
    assert states(best) == ["complete"]
    assert best.run_summary.records[0].name == "free-False"


def test_a_module_that_workers_do_not_have_is_named_in_seconds_and_the_study_goes_on_once_they_do(
    tmp_path: Path,
) -> None:
    only_here = ModuleType("a_module_that_is_only_here")
    exec(
        "def build(trial):\n    from tests.support.small_trainer import TwoLayers\n    return TwoLayers()",
        vars(only_here),
    )
    sys.modules[only_here.__name__] = only_here
    try:
        with pytest.raises(StudyError, match=r"a_module_that_is_only_here.*importable on every node"):
            search(tmp_path, 2, trainer={"model_init": only_here.build})
    finally:
        del sys.modules[only_here.__name__]
    best = search(tmp_path, 2, trainer={"model_init": lambda trial: TwoLayers()})
    assert [record.state for record in best.run_summary.records if record.state.is_counted] == [TrialState.COMPLETE] * 2


def asha(**changes: Any) -> ASHAScheduler:
    return ASHAScheduler(max_t=2, grace_period=1, **changes)


@pytest.mark.feature(8)
@pytest.mark.parametrize(
    ("options", "trainer", "message"),
    [
        ({"scheduler": asha()}, {"eval_strategy": "no"}, r"no evaluation during training: set eval_strategy"),
        ({"scheduler": asha(), "pruner": "median"}, {}, r"scheduler=.*and pruner='median' would both stop trials"),
        ({"search_alg": Searcher(), "sampler": "tpe"}, {}, r"search_alg=.*sampler='tpe' would both choose"),
        ({"search_alg": BasicVariantGenerator()}, {}, r"sampler=optuna.samplers.RandomSampler"),
        ({"search_alg": "random"}, {}, r"sampler=optuna.samplers.RandomSampler"),
        ({"search_alg": "hyperot"}, {}, r"search_alg='hyperot' cannot be made"),
        ({"search_alg": 7}, {}, r"search_alg must be a searcher .* but got 7"),
        ({"scheduler": "ashaa"}, {}, r"scheduler='ashaa' cannot be made.*Did you mean 'asha'"),
        ({"scheduler": ASHAScheduler}, {}, r"scheduler must be a scheduler of ray.tune.schedulers or one of"),
        (
            {"scheduler": asha(), "compute_objective": ["loss", "accuracy"]},
            {},
            r"this search has 2 objectives: name it in pruning_metric",
        ),
        ({"scheduler": asha(mode="max")}, {}, r"mode='max'.*minimized"),
        ({"max_concurrent_trial": 1}, {}, r"Did you mean 'max_concurrent_trials'"),
        ({"max_concurrent_trials": 0}, {}, r"max_concurrent_trials must be None or a whole number of at least 1"),
        ({"trial_retries": True}, {}, r"trial_retries must be a whole number of at least 0, but got True"),
    ],
)
def test_what_cannot_be_right_is_said_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], trainer: dict[str, Any], message: str
) -> None:
    with pytest.raises(StudyError, match=message):
        small_trainer(tmp_path, **trainer).hyperparameter_search(
            RATE, **{"compute_objective": "loss", **ON_RAY, **options}
        )
    assert not (tmp_path / "study").exists()


class _Breaks(RuntimeError):
    """What the user's own code raises."""


class _BreaksInScheduler(ASHAScheduler):
    def on_trial_result(self, *args: Any) -> str:
        raise _Breaks("out of luck")


class _BreaksInSuggest(Searcher):
    def suggest(self, trial_id: str) -> Any:
        raise _Breaks("out of luck")

    def on_trial_complete(self, *args: Any, **kwargs: Any) -> None:
        pass


class _BreaksAtReports(Events):
    def on_report(self, trial: Any, report: Any) -> None:
        raise _Breaks("out of luck")


@pytest.mark.parametrize(
    "options",
    [{"scheduler": _BreaksInScheduler()}, {"search_alg": _BreaksInSuggest()}, {"progress": _BreaksAtReports()}],
    ids=["scheduler", "search_alg", "listener"],
)
def test_an_error_in_the_users_own_code_ends_the_search_with_it(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(_Breaks, match="out of luck"):
        search(tmp_path, 3, **options)
    best = search(tmp_path, 3)
    assert states(best) == ["complete"] * 3


SEARCHES = """
    import contextlib, sys, torch
    torch.set_num_threads(1)
    from pathlib import Path
    from hpsearch import SearchInterrupted, SearchListener
    from tests.support.searching import RATE, Diary, MeetsTheOther
    from tests.support.on_ray import ON_RAY
    from tests.backends.test_ray_search import Sleeps
    from tests.support.small_trainer import small_trainer
    from tests.support.warm_workers import warm_if_there_is_a_server

    folder = Path(sys.argv[1])

    class Notices(SearchListener):
        def on_notice(self, notice):
            Diary(folder / "notices").write(notice)

    callbacks = [MeetsTheOther(Diary(folder / "diary")), Sleeps(folder)]
    trainer = small_trainer(folder, *callbacks, save_strategy="epoch", num_train_epochs=3)
    workers = warm_if_there_is_a_server() if "warm" in sys.argv else contextlib.nullcontext()
    try:
        with workers:
            options = {**ON_RAY, "progress": Notices()}
            best = trainer.hyperparameter_search(RATE, "loss", n_trials=4, pruner="none", **options)
    except SearchInterrupted as error:
        print(*(record.state.value for record in error.best_run.run_summary.records), flush=True)
        raise SystemExit(7)
    print(*(record.state.value for record in best.run_summary.records), flush=True)
"""


class Sleeps(TrainerCallback):
    """Stands still in the second epoch of the first two runs, until there is a file named "wake"."""

    def __init__(self, folder: Path) -> None:
        self._diary, self._wake = Diary(folder / "asleep"), folder / "wake"

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        run = Path(args.output_dir).name
        if run in ("run-0", "run-1") and state.global_step == 6 and not self._wake.exists():
            self._diary.write(run)
            while not self._wake.exists():
                time.sleep(0.05)
        self._diary.write((run, state.global_step))


def test_a_second_ctrl_c_ends_a_search_whose_trials_stand_still_with_its_local_instance_and_the_same_command_goes_on(
    tmp_path: Path,
) -> None:
    """The workers are no warm ones while Ctrl-C is pressed: they are processes below the search, and hear of it."""
    command = ("-c", textwrap.dedent(SEARCHES), str(tmp_path))
    asleep = Diary(tmp_path / "asleep")
    with warm.start(*command, has_stderr=True, environment=surroundings()) as process:
        try:
            wait_until(lambda: {"run-0", "run-1"} <= {each for each in asleep.read() if isinstance(each, str)}, 120)
            below = psutil.Process(process.pid).children(recursive=True)
            assert any("raylet" in each.name() for each in below)
            os.killpg(process.pid, signal.SIGINT)
            wait_until(lambda: any("Ctrl-C again" in each for each in Diary(tmp_path / "notices").read()), 60)
            os.killpg(process.pid, signal.SIGINT)
            told, errors = process.communicate(timeout=90)  # Tune gives trials that do not answer ten seconds
            assert process.returncode == 7, errors
            assert told.split() == ["interrupted", "interrupted"]
            assert psutil.wait_procs(below, timeout=30)[1] == []
        finally:
            if process.poll() is None:
                for each in psutil.Process(process.pid).children(recursive=True):
                    each.kill()

    before = len(asleep.read())
    (tmp_path / "wake").touch()
    done = warm.run(*command, "warm", environment=surroundings())
    assert done.stdout.split() == ["complete"] * 4, done.stderr
    steps = [tuple(each) for each in asleep.read()[before:]]
    for run, first in (("run-0", 5), ("run-1", 5), ("run-2", 1), ("run-3", 1)):
        assert [step for name, step in steps if name == run] == list(range(first, 13))


def test_a_plain_function_is_searched_on_ray_as_in_this_process(tmp_path: Path) -> None:
    def loop(trial: Any) -> None:
        begin = 0 if trial.checkpoint is None else int((trial.checkpoint / "step").read_text())
        for step in range(begin + 1, 7):
            trial.report({"loss": trial.params["learning_rate"] + 1 / step}, step)
            with trial.save() as folder:
                (folder / "step").write_text(str(step))
            if trial.should_prune():
                return

    options = {"n_trials": 8, "max_resource": 6, "seed": 1}
    here = tune(loop, RATE, output_dir=tmp_path / "here", progress=False, **options)
    there = tune(loop, RATE, output_dir=tmp_path / "there", **ON_RAY, **options)
    assert [curve(record) for record in there.run_summary.records[:1]] == [curve(here.run_summary.records[0])]
    assert set(states(there)) == {TrialState.COMPLETE, TrialState.PRUNED}
    for record in there.run_summary.records:
        assert [report.value for report in record.reports] == [
            record.params["learning_rate"] + 1 / (step + 1) for step in range(len(record.reports))
        ]
    assert there.checkpoint is not None
    assert (there.checkpoint / "step").read_text() == "6"


def test_a_trainer_of_transformers_is_searched_on_ray_as_in_this_process(tmp_path: Path) -> None:
    def make_trainer(trial: Any) -> Any:
        return transformers_trainer(tmp_path / "made", TwoLayers(), **trial.params)

    options = {"n_trials": 3, "pruner": "none", "compute_objective": "loss", "seed": 1}
    here = tune(make_trainer, RATE, output_dir=tmp_path / "here", progress=False, **options)
    there = tune(make_trainer, RATE, output_dir=tmp_path / "there", **ON_RAY, **options)
    assert [curve(record) for record in there.run_summary.records[:1]] == [curve(here.run_summary.records[0])]
    assert states(there) == [TrialState.COMPLETE] * 3
    assert there.load_model().hidden.weight.shape == here.load_model().hidden.weight.shape
