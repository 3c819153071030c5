"""A search that is killed, at whatever moment and however often, ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from hpsearch import TrialState, open_study
from hpsearch.search.decisions.ladder import LADDER_OF_0_8_0
from hpsearch.system.checkpoint_files import TRIAL_FILE
from hpsearch.training.checkpoints import RUN_STATE_FILE
from tests.support.killing import ANY_TIME, END, PHASES, RESUMING, START, End, Kill, Plan, search, updates
from tests.support.search_processes import comparable, load, wait_until

pytestmark = pytest.mark.fault

ROUNDS = 50
SEED = int(os.environ.get("HPSEARCH_KILL_SEED", "1"))
EVERY_EPOCH = {"save_strategy": "epoch"}
EVERY_TWO_STEPS = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps"}
PLANS = {
    "sqlite, a checkpoint an epoch": Plan(trainer=EVERY_EPOCH),
    "sqlite, evaluations between checkpoints": Plan(
        trainer={**EVERY_TWO_STEPS, "save_steps": 3}, options={"scope": "all", "keep_checkpoints": 2}
    ),
    "sqlite, rungs": Plan(options={"pruner": LADDER_OF_0_8_0, "n_trials": 10}),
    "journal, rungs, a checkpoint an epoch": Plan(
        trainer={**EVERY_EPOCH, "num_train_epochs": 4},
        options={"pruner": LADDER_OF_0_8_0, "storage": "journal"},
    ),
    "journal, no checkpoints": Plan(warmup=2, options={"scope": "all", "storage": "journal"}),
    "sqlite, all checkpoints": Plan(
        trainer=EVERY_EPOCH, options={"scope": "avg", "keep_checkpoints": None, "start_with": "defaults"}
    ),
    "journal, a checkpoint an epoch": Plan(
        trainer={**EVERY_EPOCH, "save_total_limit": 1, "load_best_model_at_end": True},
        options={"keep_checkpoints": 2, "storage": "journal"},
    ),
    "a trainer of transformers, a checkpoint an epoch": Plan(trainer=EVERY_EPOCH, is_brought=True),
    "a trainer of transformers, rungs": Plan(
        options={"pruner": LADDER_OF_0_8_0, "storage": "journal"}, is_brought=True
    ),
    "a trainer of transformers, checkpoints between evaluations": Plan(
        trainer={**EVERY_TWO_STEPS, "save_steps": 3}, options={"scope": "all", "keep_checkpoints": 2}, is_brought=True
    ),
    "sqlite, checkpoints between evaluations": Plan(
        trainer={"save_strategy": "steps", "save_steps": 5}, options={"scope": "all", "constraints": "loss <= 0.68"}
    ),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kills", "of_each_phase"),
    [pytest.param(3, 0, marks=pytest.mark.smoke, id="three"), pytest.param(200, 8, id="all")],
)
def test_a_search_killed_again_and_again_ends_like_one_that_was_not(
    tmp_path: Path, kills: int, of_each_phase: int
) -> None:
    draw = random.Random(SEED)
    killed: Counter[str] = Counter()
    states: Counter[str] = Counter()
    plans = list(PLANS.items())
    rounds = 0
    while killed.total() < kills or (min(killed[phase] for phase in PHASES) < of_each_phase and rounds < ROUNDS):
        name, plan = plans[rounds % len(plans)]
        plan = replace(plan, seed=SEED * 1000 + rounds)
        folder = tmp_path / f"round-{rounds}"
        whole = search(folder / "undisturbed", plan)
        assert whole.code == 0, whole.output
        undisturbed = Study.read(folder / "undisturbed", plan)
        states.update(record["state"] for record in undisturbed.records)
        moments: list[str] = []
        try:
            end = search_under_fire(folder / "killed", plan, whole, draw, killed, moments)
            Study.read(folder / "killed", plan).assert_equal(undisturbed)
            assert end.best == whole.best
        except BaseException:
            print(f"{name}, seed {plan.seed} (HPSEARCH_KILL_SEED={SEED}), {folder}; killed:", *moments, sep="\n  ")
            raise
        rounds += 1
    print(f"{killed.total()} kills in {rounds} studies:")
    print(*(f"{number:6} {phase}" for phase, number in killed.most_common()), sep="\n")
    assert min(killed[phase] for phase in (*PHASES, ANY_TIME)) >= of_each_phase
    assert min(states[state] for state in ("complete", "pruned", "failed")) >= min(of_each_phase, 5)


def test_a_search_killed_at_every_moment_of_its_start_goes_on(tmp_path: Path) -> None:
    plan = Plan(6, trainer=EVERY_EPOCH, options={"n_trials": 2})
    whole = search(tmp_path / "undisturbed", plan)
    folder = tmp_path / "killed"
    for half_done in ((0, 1), (1, 3)):
        for event in range(1, whole.events[START] + 1, 2):
            end = search(folder, plan, Kill(START, event, update=half_done))
            assert end.was_killed, end.output
            if updates(folder, half_done[0]).count(half_done[1]) == 3:
                break  # the start has no more events
    end = search(folder, plan)
    assert end.code == 0, end.output
    Study.read(folder, plan).assert_equal(Study.read(tmp_path / "undisturbed", plan))
    assert end.best == whole.best


@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_a_killed_trial_goes_on_from_its_newest_checkpoint(tmp_path: Path, checkpoints: int) -> None:
    plan = Plan(seed=2, trainer=EVERY_EPOCH, options={"n_trials": 2})
    undisturbed = search_undisturbed(tmp_path, plan)
    trial = undisturbed.records[1]
    assert trial["state"] == "complete"
    *_, last = steps = [report["step"] for report in trial["reports"]]
    saved = [0, *steps][checkpoints]
    folder = tmp_path / "killed"
    killed = search(folder, plan, Kill(update=(1, saved + 1)))
    assert killed.was_killed
    run = folder / "study" / "run-1"
    assert [path.name for path in run.glob("checkpoint-*")] == ([f"checkpoint-{saved}"] if saved else [])
    before = seconds_in(run / f"checkpoint-{saved}") if saved else 0.0
    half_done = open_study(folder / "study").records[1]
    assert (half_done.state, half_done.reason) == (TrialState.INTERRUPTED, "its process died")
    assert [each.step for each in half_done.reports] == steps[:checkpoints]
    assert half_done.epochs == pytest.approx(checkpoints)
    goes_on = search(folder, plan)
    assert "half-done: [1]" in goes_on.output
    assert updates(folder, 1) == [*range(1, saved + 2), *range(saved + 1, last + 1)]
    Study.read(folder, plan).assert_equal(undisturbed)
    seconds = records_of(folder / "study")[1]["seconds"]
    assert before < seconds < killed.seconds + goes_on.seconds


def seconds_in(checkpoint: Path) -> float:
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    seconds: float = state["stateful_callbacks"]["ReportingCallback"]["attributes"]["so_far"]["seconds"]
    assert seconds > 0
    return seconds


def search_undisturbed(folder: Path, plan: Plan) -> Study:
    end = search(folder / "undisturbed", plan)
    assert end.code == 0, end.output
    return Study.read(folder / "undisturbed", plan)


def killed_and_continued(folder: Path, plan: Plan, *kills: Kill) -> None:
    """Search, be killed as told, go on, and check that everything is as in the undisturbed study."""
    for kill in kills:
        assert search(folder / "killed", plan, kill).was_killed
    assert search(folder / "killed", plan).code == 0
    Study.read(folder / "killed", plan).assert_equal(Study.read(folder / "undisturbed", plan))


def test_a_trial_killed_between_its_last_checkpoint_and_its_last_evaluation_is_still_evaluated(tmp_path: Path) -> None:
    plan = Plan(2, trainer={"save_strategy": "steps", "save_steps": 5}, options={"n_trials": 2})
    trial = search_undisturbed(tmp_path, plan).records[1]
    last = trial["reports"][-1]["step"]
    killed_and_continued(tmp_path, plan, Kill(file=f"run-1/checkpoint-{last}"))


def test_the_selected_weights_are_not_lost_by_a_kill_between_them_and_a_newer_checkpoint(tmp_path: Path) -> None:
    plan = Plan(
        1,
        trainer={**EVERY_TWO_STEPS, "save_steps": 3},
        options={"n_trials": 1, "scope": "all", "compute_objective": "num_parameters", "direction": "minimize"},
    )
    trial = search_undisturbed(tmp_path, plan).records[0]
    assert (trial["state"], trial["checkpoint"]) == ("complete", "checkpoint-2")
    killed_and_continued(tmp_path, plan, Kill(file="run-0/checkpoint-3"))


def test_a_trial_that_starts_over_is_not_judged_by_reports_that_it_has_not_made_yet(tmp_path: Path) -> None:
    plan = Plan(7012, warmup=2, options={"n_trials": 7})
    trial = search_undisturbed(tmp_path, plan).records[6]
    assert trial["reason"] == "pruned after 2 epochs"
    killed_and_continued(tmp_path, plan, Kill(report=(6, 2)))


@pytest.mark.parametrize("file", ["study/.partial-run-*", "study/.partial-best.json", "run-*/.partial-trial.json"])
def test_a_search_that_goes_on_clears_away_what_another_one_left_when_it_was_killed(tmp_path: Path, file: str) -> None:
    plan = Plan(2, trainer=EVERY_EPOCH, options={"n_trials": 12})
    with ThreadPoolExecutor() as threads:
        going_on = threads.submit(search, tmp_path, plan)
        wait_until(lambda: (tmp_path / "study" / "run-0").exists())
        assert search(tmp_path, plan, Kill(file=file)).was_killed
        assert not going_on.done()
        assert going_on.result().code == 0, going_on.result().output
    left = Study.read(tmp_path, plan)
    left.assert_storage_and_disk_agree()
    left.assert_nothing_is_left_over()
    assert [record["number"] for record in left.records] == list(range(12))


def search_under_fire(
    folder: Path,
    plan: Plan,
    whole: End,
    draw: random.Random,
    killed: Counter[str],
    moments: list[str],
) -> End:
    """Search, kill, go on, until the search comes to its end."""
    finished: dict[int, dict[str, Any]] = {}
    while True:
        kill = some_moment(draw, whole, killed, can_resume=has_half_done_trial(folder / "study"))
        end = search(folder, plan, kill)
        moments.append(f"{kill} (exit {end.code})")
        if not end.was_killed:
            assert end.code == 0, end.output
            return end
        killed[kill.phase or ANY_TIME] += 1
        finished = check_what_a_kill_left(folder / "study", finished, plan.is_brought)


def some_moment(draw: random.Random, whole: End, killed: Counter[str], can_resume: bool) -> Kill:
    """Choose a moment, rather of a phase that had few kills; most often so late that the search comes some way."""
    phases = [phase for phase in (*PHASES, ANY_TIME) if can_resume or phase != RESUMING]
    few = sorted(phases, key=killed.__getitem__)[:4]
    phase = draw.choice(few if draw.random() < 0.5 else phases)
    if can_resume and draw.random() < 0.25:
        phase = RESUMING
    if phase == ANY_TIME:
        return Kill(seconds=draw.uniform(0.0, 0.4))
    if phase == RESUMING:
        return Kill(phase, draw.randint(1, 6))
    events = max(1, whole.events.get(phase, 0))
    if phase in (START, END):
        return Kill(phase, draw.randint(1, events))
    return Kill(phase, 1 + int(draw.expovariate(24 / events)))


def has_half_done_trial(study: Path) -> bool:
    """Tell whether there is a trial that will go on from a checkpoint."""
    return any(
        (checkpoint / name).exists()
        for run in running(study)
        for checkpoint in run.glob("checkpoint-*")
        for name in (RUN_STATE_FILE, TRIAL_FILE)
    )


def running(study: Path) -> list[Path]:
    """Return the folders of the trials that were under way."""
    records = study.glob("[!.]*/trial.json")
    return [path.parent for path in records if json.loads(path.read_text())["state"] == "running"]


def check_what_a_kill_left(
    study: Path, finished: dict[int, dict[str, Any]], is_brought: bool
) -> dict[int, dict[str, Any]]:
    """Check that every file that has its name is whole and that finished trials stay as they are; return those.

    The trainer of transformers writes a checkpoint in place: it is whole when our file is in it.
    """
    begun: list[Path] = []
    for run in running(study) if is_brought else ():
        not_whole = [each for each in run.glob("checkpoint-*") if not (each / TRIAL_FILE).exists()]
        assert len(not_whole) <= 1
        begun += not_whole
    for path in study.rglob("*.json"):
        if ".partial-" not in str(path.relative_to(study)) and not any(each in path.parents for each in begun):
            json.loads(path.read_text())
    for checkpoint in {*study.glob("[!.]*/checkpoint-*"), *study.glob("[!.]*/selected-*")} - {*begun}:
        assert load_file(checkpoint / "model.safetensors")
        assert (checkpoint / "optimizer.pt").exists() == (checkpoint / "trainer_state.json").exists()
    records = {record["number"]: record for record in records_of(study)}
    goes_on = ("running", "paused", "interrupted")
    ended = {number: each for number, each in records.items() if each["state"] not in goes_on}
    assert {number: ended.get(number) for number in finished} == finished
    return ended


@dataclass(frozen=True)
class Study:
    """All that a study has left: its records, files and weights, and what its storage tells."""

    records: list[dict[str, Any]]
    stored: list[dict[str, Any]]
    files: list[str]
    weights: dict[str, bytes]
    settings: dict[str, Any]
    best: Any

    @classmethod
    def read(cls, folder: Path, plan: Plan) -> Study:
        study = folder / "study"
        files = [path for path in sorted(study.rglob("*")) if path.name not in ("study.db-wal", "study.db-shm")]
        weights = [path for path in files if path.name == "model.safetensors"]
        return cls(
            records=[comparable(record) for record in records_of(study)],
            stored=stored_trials(study, plan.options.get("storage")),
            files=[str(path.relative_to(study)) for path in files],
            weights={str(path.relative_to(study)): path.read_bytes() for path in weights},
            settings=json.loads((study / "study.json").read_text().replace(str(folder), "FOLDER")),
            best=json.loads((study / "best.json").read_text()),
        )

    def assert_equal(self, other: Study) -> None:
        self.assert_storage_and_disk_agree()
        assert [each["number"] for each in self.records] == [each["number"] for each in other.records]
        for mine, its in zip(self.records, other.records, strict=True):
            assert mine == its
        for mine, its in zip(self.stored, other.stored, strict=True):
            assert mine == its
        assert self.best == other.best
        assert self.settings == other.settings
        assert self.files == other.files
        assert self.weights == other.weights
        self.assert_nothing_is_left_over()

    def assert_nothing_is_left_over(self) -> None:
        temporary = (".partial-", "selected-", "sessions", ".rename")
        assert [name for name in self.files if any(mark in name for mark in temporary)] == []

    def assert_storage_and_disk_agree(self) -> None:
        of_storage = {"complete": "COMPLETE", "stopped": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
        assert [each["number"] for each in self.stored] == [each["number"] for each in self.records]
        for stored, record in zip(self.stored, self.records, strict=True):
            assert stored["state"] == of_storage[record["state"]]
            assert stored["params"] == record["params"]
            assert stored["reports"] == {int(each["resource"]): each["values"][0] for each in record["reports"]}
            if record["state"] in ("complete", "stopped"):
                assert stored["values"] == record["values"]


def records_of(study: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in study.glob("[!.]*/trial.json")]
    return sorted(found, key=lambda record: record["number"])


def stored_trials(study: Path, storage: Any) -> list[dict[str, Any]]:
    return [
        {
            "number": trial.number,
            "state": trial.state.name,
            "params": trial.params,
            "values": trial.values,
            "reports": trial.intermediate_values,
            "attributes": {name: each for name, each in trial.user_attrs.items() if name != "hpsearch:session"},
            "constraints": trial.constraints,
        }
        for trial in load(study, storage).trials
    ]
