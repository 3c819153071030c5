"""A damaged study: what is damaged is named in one line, the rest is shown and continued, and nothing is deleted."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from hpsearch import StorageError, StudyError, open_study
from hpsearch.cli import main
from hpsearch.errors import CannotResumeError
from hpsearch.search.store.provenance import is_known
from hpsearch.search.store.read_study import read_settings
from tests.support.outside import make_outside, untouched
from tests.support.searching import HearsNotices
from tests.support.small_search import interrupted_study, records_of, search
from tests.support.small_trainer import small_trainer

NUMBERS = [0, 1, 2, 3]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of three trials that have ended, and one that was interrupted after its first checkpoint."""
    return interrupted_study(tmp_path_factory.mktemp("whole"), 4)


@pytest.fixture
def study(whole: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(whole, tmp_path / "study", symlinks=True))


def some_in_make_test(cases: Iterable[str], *cheap: str) -> list[Any]:
    """Return cases of which `make test` runs some, and the full tier all."""
    return [pytest.param(each, marks=() if each in cheap else pytest.mark.fault) for each in cases]


def goes_on(study: Path, n_trials: int = 4, **options: Any) -> tuple[list[Any], list[str]]:
    """Continue a study; return its records, and what the search said of damage."""
    events = HearsNotices()
    best = search(study.parent, n_trials, progress=events, trainer={"save_strategy": "epoch"}, **options)
    return records_of(best), [each for each in events.notes if each.startswith("DAMAGED: ")]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, tuple[Callable[[Path], Any], str, list[int]]] = {
    "renamed": (lambda s: (s / "run-1").rename(s / "mine"), "trial 1 was renamed from 'run-1' to 'mine'", NUMBERS),
    "renamed to no name of a run": (
        lambda s: (s / "run-1").rename(s / "run-1 (old)"),
        "is not a valid name of a run.* rename it to 'run-1'",
        [0, 2, 3],
    ),
    "copied": (
        lambda s: shutil.copytree(s / "run-1", s / "run-1 copy"),
        "'run-1 copy' is a copy of the folder of trial 1 .'run-1'., and is ignored",
        NUMBERS,
    ),
    "copied, and the original is unreadable": (
        lambda s: (shutil.copytree(s / "run-1", s / "backup"), truncate(s / "run-1" / "trial.json")),
        "'run-1/trial.json' cannot be read.*'backup' is a copy",
        [0, 2, 3],
    ),
    "deleted": (lambda s: shutil.rmtree(s / "run-1"), "trial 1 has no folder", [0, 2, 3]),
    "no trial.json": (lambda s: (s / "run-1" / "trial.json").unlink(), "run-1/trial.json.* no such file", [0, 2, 3]),
    "truncated": (lambda s: truncate(s / "run-1" / "trial.json"), "run-1/trial.json.* is not JSON", [0, 2, 3]),
    "a folder": (lambda s: make_folder(s / "run-1" / "trial.json"), "run-1/trial.json.* is a folder", [0, 2, 3]),
    "a number": (lambda s: (s / "run-1" / "trial.json").write_text("3"), "must be an object, but is 3", [0, 2, 3]),
    "no text": (lambda s: (s / "run-1" / "trial.json").write_bytes(b"\xff\xfe\x00"), "is not a text file", [0, 2, 3]),
    "too deep": (lambda s: (s / "run-1" / "trial.json").write_text("[" * 100_000), "not JSON", [0, 2, 3]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_named_in_one_line_and_the_rest_is_shown(
    study: Path, damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    act, told, numbers = DAMAGE[damage]
    act(study)
    summary = open_study(study)
    assert [each.number for each in summary.records] == numbers
    assert re.search(told, " ".join(summary.problems))
    assert not any("\n" in each for each in summary.problems)
    for command in ("show", "best"):
        assert main([command, str(study)]) == 0
        assert f"damaged: {summary.problems[0]}" in capfd.readouterr().err
    assert main(["doctor", str(study)]) == 1
    assert summary.problems[0] in capfd.readouterr().out


def test_a_study_that_is_whole_has_no_problems(study: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in study.rglob("*")}
    assert open_study(study).problems == ()
    assert main(["doctor", str(study)]) == 0
    assert "sound" in capfd.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in study.rglob("*")} == before


@pytest.mark.parametrize("damage", [truncate, Path.unlink])
def test_doctor_names_weights_that_are_damaged(
    study: Path, damage: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    best = next(each for each in open_study(study).best() if each.checkpoint is not None)
    damage(best.checkpoint / "model.safetensors")
    assert main(["doctor", str(study)]) == 1
    told = capfd.readouterr().out
    assert f"the weights of trial {best.number}: " in told
    assert f"hpsearch replay {best.number}" in told


def test_the_report_says_what_is_damaged(study: Path, tmp_path: Path) -> None:
    truncate(study / "run-1" / "trial.json")
    assert main(["report", str(study), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "What is damaged in the study" in page
    assert "run-1/trial.json" in page


def test_a_damaged_study_is_continued_and_what_is_damaged_is_left_alone(study: Path) -> None:
    (study / "run-0").rename(study / "first")
    copy = Path(shutil.copytree(study / "first", study / "first copy"))
    truncate(study / "run-1" / "trial.json")
    shutil.rmtree(study / "run-2")
    before = {each: each.read_bytes() for each in [*(study / "run-1").iterdir(), *copy.rglob("*")] if each.is_file()}
    records, told = goes_on(study, 5)
    assert [(each.number, each.name) for each in records] == [(0, "first"), (3, "run-3"), (4, "run-4")]
    assert all(each.state.is_counted for each in records)
    assert len(told) == 4
    assert {each: each.read_bytes() for each in before} == before
    assert goes_on(study, 6)[0][-1].number == 5


@pytest.mark.fault
def test_an_interrupted_trial_whose_folder_was_renamed_or_deleted_resumes_or_begins_again(study: Path) -> None:
    renamed = Path(shutil.copytree(study, study.parent / "other" / "study"))
    (renamed / "run-3").rename(renamed / "last")
    shutil.rmtree(study / "run-3")
    for folder, name in ((renamed, "last"), (study, "run-3")):
        last = goes_on(folder)[0][-1]
        assert (last.number, last.name, last.state.value) == (3, name, "complete")
        assert [each.step for each in last.reports] == [4, 8]
    assert [each.params for each in open_study(study).records] == [each.params for each in open_study(renamed).records]


# The settings, and folders in place of files.


@pytest.mark.parametrize("content", ["3", "", "[]", '{"sessions": []}', "{", None])
def test_damaged_settings_are_an_error_with_a_remedy(
    study: Path, content: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    if content is None:
        make_folder(study / "study.json")
    else:
        (study / "study.json").write_text(content)
    with pytest.raises(StudyError, match=r"study\.json.* is damaged"):
        open_study(study)
    with pytest.raises(StudyError, match=r"study\.json.*([Rr]estore a copy|Move it away)"):
        goes_on(study)
    assert main(["doctor", str(study)]) == 1
    assert "study.json" in capfd.readouterr().out


@pytest.mark.parametrize("content", ["{", "3", "{}", "[]", '{"trial": "x"}'])
def test_a_damaged_best_trial_is_an_error_with_a_remedy(study: Path, content: str) -> None:
    (study / "best.json").write_text(content)
    with pytest.raises(StudyError, match=r"best.json' is damaged.*pass the number"):
        small_trainer(study.parent).replay(study_name="study", progress=False)


def test_settings_that_were_moved_away_are_written_anew(study: Path) -> None:
    (study / "study.json").rename(study.parent / "moved away")
    assert [each.number for each in goes_on(study)[0]] == NUMBERS
    assert open_study(study).problems == ()


def test_trials_of_lost_settings_are_not_taken_for_those_of_the_new_session(tmp_path: Path) -> None:
    """Their arguments are unknown: no later call fails of it, and none believes that their results are its own."""
    search(tmp_path, 1)
    rewrite(tmp_path / "study" / "run-0" / "trial.json", session=2)
    (tmp_path / "study" / "study.json").unlink()
    for _ in range(2):
        [record] = records_of(search(tmp_path, 1))
    settings = read_settings(tmp_path / "study")
    assert settings is not None
    assert (record.session, settings["session"], len(settings["sessions"])) == (2, 3, 4)
    assert not any(is_known(each) for each in settings["sessions"][:3])
    assert main(["best", str(tmp_path / "study"), "--format", "flags"]) == 0
    assert main(["report", str(tmp_path / "study"), "-o", str(tmp_path / "page.html")]) == 0
    with pytest.raises(StudyError, match="does not have"):
        small_trainer(tmp_path).replay(number=0, progress=False)


def test_a_session_that_the_settings_do_not_have_ends_no_later_call(tmp_path: Path) -> None:
    search(tmp_path, 1)
    rewrite(tmp_path / "study" / "run-0" / "trial.json", session=10**12)
    assert len(records_of(search(tmp_path, 1))) == 1


@pytest.mark.parametrize("functions", [5, {"model_init": 3}])
def test_functions_of_a_session_that_are_no_texts_are_damage(tmp_path: Path, functions: Any) -> None:
    search(tmp_path, 1)
    file = tmp_path / "study" / "study.json"
    [session] = json.loads(file.read_text())["sessions"]
    rewrite(file, sessions=[{**session, "functions": functions}])
    with pytest.raises(StudyError, match=r"is damaged.*functions"):
        search(tmp_path, 1)


def test_a_replay_of_a_trial_whose_arguments_are_lost_says_so(study: Path) -> None:
    rewrite(study / "run-0" / "trial.json", session=7)
    with pytest.raises(StudyError, match=r"Trial 0 .*study\.json' does not have .* Put back a copy"):
        small_trainer(study.parent).replay(number=0, progress=False)


@pytest.mark.parametrize("name", ["best.json", "study.lock", "sessions"])
def test_something_else_in_place_of_a_file_of_the_study_is_named(study: Path, name: str) -> None:
    path = study / name
    if name == "sessions":
        path.write_text("")
    else:
        make_folder(path)
    with pytest.raises(StudyError, match=rf"{name}.* is not a (file|folder). Move it away"):
        goes_on(study)


# The storage in the folder.


def garbage(path: Path) -> None:
    path.write_bytes(b"no database at all\n" * 100)


LOSSES: dict[str, Callable[[Path], Any]] = {
    "deleted": lambda path: [each.unlink() for each in path.parent.glob(f"{path.name}*")],
    "truncated": truncate,
    "empty": lambda path: path.write_bytes(b""),
    "garbage": garbage,
    "a folder": make_folder,
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    best = search(tmp_path_factory.mktemp("undisturbed"), 7, trainer={"save_strategy": "epoch"})
    return [(each.number, each.params, each.values) for each in records_of(best)]


@pytest.mark.parametrize("loss", some_in_make_test(LOSSES, "deleted", "truncated"))
def test_a_storage_that_is_lost_is_built_again_and_the_study_ends_as_if_nothing_had_happened(
    study: Path, undisturbed: list[Any], loss: str, capfd: pytest.CaptureFixture[str]
) -> None:
    LOSSES[loss](study / "study.db")
    assert main(["doctor", str(study)]) == 1
    assert "study.db" in capfd.readouterr().out
    records, told = goes_on(study, 7)
    assert [(each.number, each.params, each.values) for each in records] == undisturbed
    assert any("built again from the folders of 4 trials" in each for each in told)
    assert (study / "study.db.damaged").exists() is (loss in ("truncated", "garbage", "a folder"))
    assert main(["doctor", str(study)]) == 0
    assert goes_on(study, 7)[1] == []


@pytest.mark.parametrize("loss", some_in_make_test(["deleted", "garbage", "a folder"], "garbage"))
def test_a_journal_that_is_lost_is_built_again(tmp_path: Path, loss: str) -> None:
    search(tmp_path, 2, storage="journal")
    LOSSES[loss](tmp_path / "study" / "study.log")
    records, told = goes_on(tmp_path / "study", 3, storage="journal")
    assert [each.number for each in records] == [0, 1, 2]
    assert any("built again from the folders of 2 trials" in each for each in told)
    assert (tmp_path / "study" / "study.log.damaged").exists() is (loss != "deleted")


def execute(path: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(statement)
        database.commit()


def test_a_storage_that_lacks_an_earlier_trial_is_set_aside_and_built_again(
    study: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    execute(study / "study.db", "DELETE FROM trials WHERE number = 1")
    assert main(["doctor", str(study)]) == 1
    assert "study.db is damaged (it lacks trial 1); repeat the call of the search" in capfd.readouterr().out
    records, told = goes_on(study)
    assert [each.number for each in records] == NUMBERS
    assert any("it lacks trial 1" in each for each in told)
    assert (study / "study.db.damaged").is_file()
    assert main(["doctor", str(study)]) == 0


def test_a_study_whose_run_folders_were_all_deleted_says_how_to_begin_again(
    study: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for each in study.glob("run-*"):
        shutil.rmtree(each)
    with pytest.raises(StudyError, match=r"folders of all its trials were deleted.*delete sqlite:.*study\.db to begin"):
        goes_on(study)
    assert main(["doctor", str(study)]) == 1
    assert "delete study.db to start again" in capfd.readouterr().out
    LOSSES["deleted"](study / "study.db")
    assert [each.number for each in goes_on(study, 1)[0]] == [0]


def test_a_storage_of_another_version_of_optuna_is_named_by_doctor(
    study: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    execute(study / "study.db", "UPDATE alembic_version SET version_num = 'v9.9.9'")
    assert main(["doctor", str(study)]) == 1
    assert "study.db cannot be read (RuntimeError: " in capfd.readouterr().out
    with pytest.raises(StorageError, match=r"study\.db' cannot be opened"):
        goes_on(study)


@pytest.mark.fault
def test_a_second_damaged_storage_is_set_aside_beside_the_first(study: Path) -> None:
    for _ in range(2):
        garbage(study / "study.db")
        goes_on(study)
    assert (study / "study.db.damaged").is_file()
    assert (study / "study.db.damaged-2").is_file()


def test_a_number_is_not_given_again_although_its_trial_cannot_be_read(study: Path) -> None:
    truncate(study / "run-3" / "trial.json")
    LOSSES["deleted"](study / "study.db")
    records, _ = goes_on(study)
    assert [each.number for each in records] == [0, 1, 2, 4]


def test_a_storage_elsewhere_is_never_built_again(tmp_path: Path) -> None:
    elsewhere = f"sqlite:///{tmp_path}/mine.db"
    search(tmp_path, 2, storage=elsewhere)
    with pytest.raises(StudyError, match="that the storage does not know"):
        search(tmp_path, 3)
    garbage(tmp_path / "mine.db")
    with pytest.raises(StudyError, match=r"mine\.db.* cannot be opened"):
        search(tmp_path, 3, storage=elsewhere)
    assert (tmp_path / "mine.db").read_bytes().startswith(b"no database")


@pytest.mark.fault
def test_the_first_parameters_are_not_tried_again_when_the_storage_is_built_again(tmp_path: Path) -> None:
    options = {"start_with": [{"learning_rate": 0.01}, {"learning_rate": 0.02}]}
    search(tmp_path, 2, **options)
    LOSSES["deleted"](tmp_path / "study" / "study.db")
    records, _ = goes_on(tmp_path / "study", 3, **options)
    assert [each.params["learning_rate"] for each in records][:2] == [0.01, 0.02]
    assert records[2].params["learning_rate"] not in (0.01, 0.02)


# Studies that were crafted.


_REFUSED_LINKS = ("settings that are", "a best trial that is", "a lock that is", "sessions that are")
REFUSED = {f"{each} a link" for each in _REFUSED_LINKS}
CONTINUED_IN_MAKE_TEST = ("a checkpoint that is a link", "sessions that are a link")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return make_outside(tmp_path / "outside")


def rewrite(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def replace_by_link(path: Path, target: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(target)


CRAFTED: dict[str, Callable[[Path, Path], Any]] = {
    "a name that leads out": lambda s, o: rewrite(s / "run-0" / "trial.json", name="../outside/run-0"),
    "an absolute name": lambda s, o: rewrite(s / "run-0" / "trial.json", name=str(o / "run-0")),
    "a checkpoint that leads out": lambda s, o: rewrite(s / "run-0" / "trial.json", checkpoint="../../outside"),
    "a checkpoint that is a link": lambda s, o: [
        replace_by_link(each, o / "checkpoint-8") for each in s.glob("run-*/checkpoint-*")
    ],
    "weights that are a link": lambda s, o: [
        replace_by_link(each / "model.safetensors", o / "secret") for each in s.glob("run-*/checkpoint-*")
    ],
    "a run that is a link": lambda s, o: replace_by_link(s / "run-0", o / "run-0"),
    "a record that is a link": lambda s, o: replace_by_link(s / "run-0" / "trial.json", o / "secret"),
    "a log that is a link": lambda s, o: (s / "run-3" / "runs").symlink_to(o),
    "settings that are a link": lambda s, o: replace_by_link(s / "study.json", o / "secret"),
    "a best trial that is a link": lambda s, o: replace_by_link(s / "best.json", o / "secret"),
    "a lock that is a link": lambda s, o: replace_by_link(s / "study.lock", o / "secret"),
    "sessions that are a link": lambda s, o: replace_by_link(s / "sessions", o),
    "a database that is a link": lambda s, o: replace_by_link(s / "study.db", o / "secret"),
    "a write-ahead log that is a link": lambda s, o: replace_by_link(s / "study.db-wal", o / "secret"),
    "memory of 0.8.0": lambda s, o: (s / "memory.json").write_text(
        json.dumps({"place": str(o), "host": os.uname().nodename})
    ),
}


@pytest.mark.parametrize("crafted", CRAFTED)
def test_a_crafted_study_is_shown_without_a_look_outside(study: Path, outside: Path, crafted: str) -> None:
    CRAFTED[crafted](study, outside)
    with untouched(outside):
        codes = [main([command, str(study)]) for command in ("show", "doctor")]
    assert codes[0] == (2 if crafted == "settings that are a link" else 0)
    assert codes[1] == (0 if crafted == "memory of 0.8.0" else 1)


@pytest.mark.parametrize("crafted", some_in_make_test(CRAFTED, *CONTINUED_IN_MAKE_TEST))
def test_a_crafted_study_is_continued_without_a_look_outside(study: Path, outside: Path, crafted: str) -> None:
    CRAFTED[crafted](study, outside)
    with untouched(outside):
        if crafted in REFUSED:
            with pytest.raises(StudyError, match=r"link.* [Mm]ove it away"):
                goes_on(study, 5)
            return
        records, told = goes_on(study, 5)
        assert main(["report", str(study)]) == 0
    assert records[-1].number == 4
    assert told or crafted == "memory of 0.8.0"
    kept = [each.checkpoint for each in records if each.checkpoint is not None]
    assert all(each.resolve().is_relative_to(study.resolve()) for each in kept)


@pytest.mark.parametrize("arguments", [{"output_dir": "OUTSIDE"}, {"push_to_hub": True, "hub_model_id": "evil/x"}])
def test_a_crafted_checkpoint_sets_no_argument(study: Path, outside: Path, arguments: dict[str, Any]) -> None:
    changed = {name: str(outside) if value == "OUTSIDE" else value for name, value in arguments.items()}
    for file in study.glob("run-3/checkpoint-*/trainer_state.json"):
        state = json.loads(file.read_text())
        so_far = state["stateful_callbacks"]["ReportingCallback"]["attributes"]["so_far"]
        so_far["fallbacks"] = [{"arguments": changed, "reason": "x"}]
        file.write_text(json.dumps(state))
    with untouched(outside):
        events = HearsNotices()
        records = records_of(search(study.parent, 4, progress=events, trainer={"save_strategy": "epoch"}))
    assert (records[3].state.value, records[3].fallbacks) == ("complete", ())
    assert ["is not used ('fallbacks': item 0: 'arguments'" in each for each in events.notices] == [True]


def test_a_crafted_trial_that_is_half_done_sets_nothing_that_acts_elsewhere(study: Path) -> None:
    file = study / "run-3" / "trial.json"
    arguments = json.loads(file.read_text())["arguments"]
    for crafted in ({"hub_model_id": "evil/x"}, {"tensorboard_logging_dir": "/etc"}):
        rewrite(file, arguments={**arguments, **crafted})
        with pytest.raises(CannotResumeError, match=f"does not resume with {next(iter(crafted))}=.*move 'run-3' out"):
            goes_on(study)
    rewrite(file, arguments=arguments)
    assert goes_on(study)[0][3].state.value == "complete"


def test_a_replay_does_not_write_where_a_link_leads(study: Path, outside: Path) -> None:
    replace_by_link(study / "replays", outside)
    with untouched(outside), pytest.raises(StudyError, match=r"replays.* is a link.* Move it away"):
        small_trainer(study.parent).replay(number=0, progress=False)


def test_what_a_study_says_cannot_act_on_the_terminal(study: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rewrite(study / "run-0" / "trial.json", params={"\x1b[2Jx": "\x1b]0;title\x07"}, reason="\x1b[1m")
    rewrite(study / "study.json", objective="\x1b[2Jloss")
    (study / "run-1").rename(study / "\x1b[2J")
    for command in ("show", "best", "doctor"):
        main([command, str(study)])
        told = capfd.readouterr()
        assert "\x1b" not in told.out + told.err
        assert "\\x1b" in told.out + told.err
