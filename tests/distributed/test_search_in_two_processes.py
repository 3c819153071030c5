"""A search that `torchrun` or `accelerate launch` starts: the main process decides, all of them hear, nobody hangs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.launch import start
from tests.support.search_processes import assert_disk_and_storage_agree, records_on_disk

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

SCENARIOS = [
    *("healthy", "pruned", "timeout", "study_timeout", "fails", "init_fails", "dataset_fails", "too_many_failures"),
    *("model_init_suggests", "mistake", "read_in_one", "oom_fallback", "several_objectives", "rungs"),
    *("rungs_and_a_budget", "brought", "brought_rungs", "objective_fails", "time_is_set", "paused_by_hand"),
    "held_out",
]
Reports = dict[str, list[dict[str, Any]]]


def run(folder: Path, how: str, *names: str) -> Reports:
    start(how, "tests.support.distributed_search", [str(folder), *names])
    return {name: [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}-*.json"))] for name in names}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def reports(folder: Path) -> Reports:
    """What both processes reported of every scenario; they ran one after the other in the same two processes."""
    return run(folder, "torchrun", *SCENARIOS, "replay")


def states(report: dict[str, Any]) -> list[str]:
    return [record["state"] for record in report["records"]]


def values(report: dict[str, Any]) -> list[Any]:
    return [record["values"] for record in report["records"]]


@pytest.mark.parametrize("name", SCENARIOS)
def test_both_processes_end_and_know_the_same(reports: Reports, name: str) -> None:
    main, other = reports[name]
    if main["raised"] is None:
        assert (main["records"], main["best"]) == (other["records"], other["best"])
        assert main.get("weights") == other.get("weights")
    else:
        assert main["raised"] == other["raised"]
    assert main["seconds"] < 60
    assert other["seconds"] < 60


@pytest.mark.feature(119)
def test_a_search_in_two_processes_finds_what_one_process_finds(reports: Reports, tmp_path: Path) -> None:
    [alone] = run(tmp_path, "plain", "one_process")["one_process"]
    together = reports["healthy"][0]
    assert states(together) == states(alone) == ["complete"] * 3
    assert [each["params"] for each in together["records"]] == [each["params"] for each in alone["records"]]
    for ours, theirs in zip(values(together), values(alone), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert together["best"] == alone["best"]


def test_a_time_limit_that_is_set_while_a_trial_runs_ends_it_in_both_processes(reports: Reports) -> None:
    records = reports["time_is_set"][0]["records"]
    assert [each["state"] for each in records] == ["complete", "stopped"]
    assert records[1]["reason"] == "the study's timeout of 0.01 s, as set by hand, is over"


def test_a_search_that_is_paused_for_a_moment_finds_what_an_undisturbed_one_finds(reports: Reports) -> None:
    paused, healthy = reports["paused_by_hand"][0], reports["healthy"][0]
    assert states(paused) == ["complete"] * 3
    assert values(paused) == values(healthy)


def test_trials_wait_at_rungs_and_go_on_in_both_processes(reports: Reports) -> None:
    records = reports["rungs"][0]["records"]
    assert [each["number"] for each in records] == list(range(9))
    assert set(states(reports["rungs"][0])) == {"complete", "pruned"}
    assert {len(each["reports"]) for each in records if each["state"] == "complete"} == {6}
    assert sum(each["epochs"] for each in records) < 9 * 6 / 2


def test_a_budget_ends_a_search_in_both_with_the_best_of_those_that_wait(reports: Reports) -> None:
    main = reports["rungs_and_a_budget"][0]
    [stopped] = [each for each in main["records"] if each["state"] == "stopped"]
    assert "paused" in states(main)
    assert main["best"] == [str(stopped["number"])]
    assert stopped["values"][0] == min(each["reports"][-1]["values"][0] for each in main["records"] if each["reports"])


def test_a_trainer_of_transformers_is_searched_by_both(reports: Reports) -> None:
    ours, theirs = reports["healthy"][0], reports["brought"][0]
    assert states(theirs) == ["complete"] * 3
    assert [each["params"] for each in theirs["records"]] == [each["params"] for each in ours["records"]]
    for one, other in zip(values(theirs), values(ours), strict=True):
        assert one == pytest.approx(other, rel=1e-4)
    assert set(states(reports["brought_rungs"][0])) == {"complete", "pruned"}


@pytest.mark.feature(120)
def test_accelerate_launch_searches_as_torchrun_does(reports: Reports, tmp_path: Path) -> None:
    launched = run(tmp_path, "accelerate", "healthy", "fails")
    for name in ("healthy", "fails"):
        assert values(launched[name][0]) == values(reports[name][0])
        assert states(launched[name][0]) == states(reports[name][0])


@pytest.mark.feature(119)
def test_a_prune_is_heard_by_both(reports: Reports) -> None:
    for report in reports["pruned"]:
        assert report["raised"].startswith("NoCompletedTrialError: No trial has a result: 3 pruned.")
    records = reports["pruned"][0]["records"]
    assert [record["state"] for record in records] == ["pruned"] * 3
    assert [[report["epoch"] for report in record["reports"]] for record in records] == [[1.0]] * 3


def test_a_budget_of_the_trial_is_heard_by_both_and_the_search_goes_on(reports: Reports) -> None:
    assert states(reports["timeout"][0]) == ["stopped", "complete", "complete"]
    assert reports["timeout"][0]["records"][0]["reports"][-1]["step"] == 3


def test_the_time_of_the_study_ends_it_in_both(reports: Reports) -> None:
    assert states(reports["study_timeout"][0])[-1] == "stopped"
    assert len(reports["study_timeout"][0]["records"]) < 3


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fails", "RuntimeError: a bad batch"),
        ("init_fails", "MemoryError: no memory in process "),
        ("objective_fails", "ValueError: no such objective"),  # called in the main process, for all
    ],
)
def test_an_error_in_all_processes_fails_the_trial_and_the_next_is_as_it_would_have_been(
    reports: Reports, name: str, reason: str
) -> None:
    report, healthy = reports[name][0], reports["healthy"][0]
    assert states(report) == ["complete", "failed", "complete"]
    assert report["records"][1]["reason"].startswith(reason)
    assert reason in report["records"][1]["traceback"]
    assert [values(report)[0], values(report)[2]] == [values(healthy)[0], values(healthy)[2]]


@pytest.mark.parametrize(
    ("name", "rank", "reason"),
    [
        ("fails_0", 0, "RuntimeError: a bad batch"),
        ("fails_1", 1, "RuntimeError: a bad batch"),
        ("init_fails_1", 1, "MemoryError: no memory in process 1"),
        ("metrics_fail", 0, "ValueError: labels and predictions do not fit"),
    ],
)
def test_an_error_in_one_process_ends_the_search_in_both_and_the_next_launch_continues_with_the_next_trial(
    reports: Reports, tmp_path: Path, name: str, rank: int, reason: str
) -> None:
    for report in run(tmp_path, "torchrun", name)[name]:
        assert report["raised"].startswith(f"ProcessFailedError: Process {rank} failed with {reason}")
        assert report["seconds"] < 30
    trials = assert_disk_and_storage_agree(tmp_path / name / "study")
    assert [each["state"] for each in trials] == ["complete", "failed"]
    assert trials[1]["reason"] == (f"{reason} (in process 1)" if rank else reason)
    assert reason in trials[1]["traceback"]
    assert_continues(tmp_path, name, reports["healthy"][0])


def test_a_trial_whose_main_process_never_leaves_its_collective_is_recorded_by_the_process_that_failed(
    reports: Reports, tmp_path: Path
) -> None:
    [report] = run(tmp_path, "torchrun", "main_is_stuck")["main_is_stuck"]
    assert report["raised"].startswith("ProcessFailedError: Process 1 failed with RuntimeError: a bad batch")
    failed = records_on_disk(tmp_path / "main_is_stuck" / "study")[1]
    assert (failed["state"], failed["reason"]) == ("failed", "RuntimeError: a bad batch (in process 1)")
    assert_continues(tmp_path, "main_is_stuck", reports["healthy"][0])


def test_an_error_in_all_processes_ends_the_search_if_they_have_not_begun_the_same_collectives(
    reports: Reports, tmp_path: Path
) -> None:
    for report in run(tmp_path, "torchrun", "half_begun")["half_begun"]:
        assert "failed with RuntimeError: a bad batch" in report["raised"]
    assert_continues(tmp_path, "half_begun", reports["healthy"][0])


def assert_continues(folder: Path, name: str, healthy: dict[str, Any]) -> None:
    """Check that another launch of a search of which trial 1 failed has the results of one that did not fail."""
    for report in run(folder, "torchrun", name)[name]:
        assert report["raised"] is None
        assert states(report) == ["complete", "failed", "complete"]
        assert [values(report)[0], values(report)[2]] == [values(healthy)[0], values(healthy)[2]]
    assert_disk_and_storage_agree(folder / name / "study")


def test_samples_that_no_process_can_read_fail_every_trial_with_that_reason(reports: Reports) -> None:
    records = reports["dataset_fails"][0]["records"]
    assert [record["state"] for record in records] == ["failed"] * 3
    assert all(record["reason"].startswith("OSError: samples cannot be read") for record in records)


def test_too_many_failures_end_the_search_in_both(reports: Reports) -> None:
    for report in reports["too_many_failures"]:
        assert report["raised"].startswith("TooManyFailuresError: The last 2 trials failed")
        assert "samples cannot be read" in report["raised"]


def test_what_model_init_suggests_in_the_main_process_is_heard_by_the_other(reports: Reports) -> None:
    assert states(reports["model_init_suggests"][0]) == ["complete"] * 3
    assert all(2 <= record["params"]["hidden"] <= 9 for record in reports["model_init_suggests"][0]["records"])


def test_a_mistake_in_the_study_is_raised_in_both(reports: Reports) -> None:
    for report in reports["mistake"]:
        assert report["raised"].startswith("SpaceError: 'lerning_rate' is not a training argument")


def test_an_error_of_a_preflight_in_one_process_ends_the_search_in_both_and_fails_the_trial(tmp_path: Path) -> None:
    for report in run(tmp_path, "torchrun", "never_built")["never_built"]:
        assert report["raised"].startswith("ProcessFailedError: Process 1 failed with RuntimeError: no such layer")
    [trial] = assert_disk_and_storage_agree(tmp_path / "never_built" / "study")
    assert (trial["state"], trial["reason"]) == ("failed", "RuntimeError: no such layer (in process 1)")


def test_a_parameter_that_only_one_process_reads_is_an_error_in_both(reports: Reports) -> None:
    for report in reports["read_in_one"]:
        assert report["raised"].startswith("SpaceError: Parameter 'model.width' is never used")


def test_an_interruption_of_one_process_ends_the_search_in_both_and_it_continues_from_the_checkpoint(
    reports: Reports, tmp_path: Path
) -> None:
    main, other = run(tmp_path, "torchrun", "interrupted")["interrupted"]
    assert main["raised"].startswith("SearchInterrupted")
    assert other["raised"].startswith("KeyboardInterrupt")
    assert states(main) == ["complete", "interrupted"]
    continued = run(tmp_path, "torchrun", "goes_on")["goes_on"][0]
    assert values(continued) == values(reports["healthy"][0])
    assert [len(record["reports"]) for record in continued["records"]] == [2, 2, 2]
    assert list((tmp_path / "interrupted" / "study").rglob(".partial-*")) == []


def test_a_replay_makes_the_same_reports_in_both(reports: Reports) -> None:
    for report in reports["replay"]:
        assert (report["raised"], report["difference"]) == (None, None)
        assert values(report) == values(reports["healthy"][0])[1:2]


def test_a_replay_leaves_nothing_if_one_process_is_interrupted(reports: Reports, folder: Path) -> None:
    interrupted = run(folder, "torchrun", "interrupted_replay")["interrupted_replay"]
    assert [report["raised"] for report in interrupted] == ["KeyboardInterrupt"] * 2
    assert list((folder / "healthy" / "study" / "replays").glob("run-*")) == []


def test_out_of_memory_in_both_processes_makes_the_batches_of_both_smaller(reports: Reports) -> None:
    [record] = reports["oom_fallback"][0]["records"]
    assert record["state"] == "complete"
    [fallback] = record["fallbacks"]
    assert fallback["arguments"]["per_device_train_batch_size"] == 1
    assert fallback["arguments"]["gradient_accumulation_steps"] == 2
    assert record["reports"][-1]["step"] == reports["healthy"][0]["records"][0]["reports"][-1]["step"]
    assert record["values"] == pytest.approx(values(reports["healthy"][0])[0], abs=1e-5)


def test_a_test_set_is_refused_in_both_before_the_first_trial(reports: Reports, folder: Path) -> None:
    for each in reports["held_out"]:
        assert each["raised"].startswith(
            "StudyError: test_dataset is evaluated in one process, but torchrun has started 2"
        )
    assert not (folder / "held_out" / "study").exists()


def test_several_objectives_give_both_the_same_front(reports: Reports) -> None:
    assert reports["several_objectives"][0]["best"]
    assert all(len(each) == 2 for each in values(reports["several_objectives"][0]))


@pytest.mark.smoke
def test_the_weights_of_a_sharded_model_are_kept_whole(tmp_path: Path) -> None:
    main, other = run(tmp_path, "torchrun", "sharded")["sharded"]
    assert states(main) == ["complete"] * 2
    assert main["records"][int(main["best"][0])]["checkpoint"] == "checkpoint-8"
    assert main["weights"]
    assert main["weights"] == other["weights"]
