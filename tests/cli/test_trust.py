"""The folder of a study from someone else does not act: nothing outside of it is run, opened or written."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpsearch import StudyError, open_study
from hpsearch.cli import main
from hpsearch.cli.stored_command import read_command
from hpsearch.cli.trust import Given, admitted
from tests.support.command_line import Told
from tests.support.outside import recorded_files

SECRET = "the words of a private file"
SETTINGS: dict[str, Any] = {
    "study_name": "study",
    "objective": "loss",
    "direction": "minimize",
    "constraints": [],
    "scope": "last",
    "space": "define-by-run",
    "n_trials": 1,
    "sampler": None,
    "pruner": None,
    "seed": 1,
    "pruning_metric": None,
    "storage": None,
    "session": 0,
    "sessions": [{"arguments": {}, "versions": {}, "data": {}, "machine": None}],
}


class Place:
    """A home with a private file and a database, and in it a current folder with a study from someone else.

    Attributes:
        home: outside of the current folder.
        here: the current folder.
        study: the folder of the study, in ``runs``.
    """

    def __init__(self, root: Path) -> None:
        self.home, self.here = root / "home", root / "home/project"
        self.study = self.here / "runs/study"
        (self.study / "own").mkdir(parents=True)
        self.settings({})
        (self.home / "secret.txt").write_text(SECRET)
        (self.home / "books.db").write_bytes(b"")
        for folder in (self.home, self.here, self.study.parent, self.study):
            (folder / "program.py").write_text(f"open({str(root / 'canary')!r}, 'w').close()\n")
        (self.here / "link.py").symlink_to(self.home / "program.py")
        (self.here / "linked").symlink_to(self.home)
        self.canary = root / "canary"

    def command(self, **changed: Any) -> None:
        """Write a command file, by default one that runs."""
        whole = {"file": str(self.here / "program.py"), "folder": str(self.here), "arguments": {}, "search": {}}
        (self.study / "command.json").write_text(json.dumps({**whole, **changed}))

    def settings(self, changed: dict[str, Any]) -> None:
        (self.study / "study.json").write_text(json.dumps({**SETTINGS, **changed}))

    def contents(self) -> dict[str, bytes | None]:
        """Return every file with its content, and every link and folder."""
        found = [each for each in self.home.parent.rglob("*") if "__pycache__" not in each.parts]
        return {str(each): each.read_bytes() if each.is_file() and not each.is_symlink() else None for each in found}

    def outside(self, found: list[Path]) -> list[Path]:
        """Return which of some files lie in the home, but not in the folder of the study."""
        real = [Path(os.path.realpath(each)) for each in found]
        return [
            each
            for each in real
            if each.is_relative_to(self.home) and not each.is_relative_to(self.study) and not each.is_dir()
        ]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    found = Place(tmp_path)
    monkeypatch.setenv("HOME", str(found.home))
    monkeypatch.chdir(found.here)
    return found


@pytest.mark.parametrize("command", [["resume", "runs/study"], ["replay", "0", "runs/study"]])
def test_a_program_in_the_current_folder_runs_and_is_shown_before(place: Place, told: Told, command: list[str]) -> None:
    place.command(arguments={"num_train_epochs": 3}, search={"n_trials": 5})
    code, _, err = told(*command)
    assert place.canary.exists()
    assert (code, "defines no study" in err) == (2, True)
    program, arguments = err.splitlines()[:2]
    assert program == f"program {str(place.here / 'program.py')!r}, in the folder {str(place.here)!r}"
    assert arguments == "with num_train_epochs=3, n_trials=5"


def test_what_is_secret_is_not_shown_and_may_be_given_again(place: Place, told: Told) -> None:
    place.command(arguments={"db_passwd": "Geheimnis", "bf16": True}, left_out=["storage", "hub_token"])
    storage = ["--storage", "postgresql://user:Geheimnis@host/name"]
    code, _, err = told("resume", "runs/study", *storage)
    assert (code, place.canary.exists()) == (2, False)
    assert "begun with hub_token, which is secret" in err
    _, out, err = told("resume", "runs/study", *storage, "--set", "hub_token=Geheimnis")
    assert place.canary.exists()
    assert "Geheimnis" not in out + err
    assert "with db_passwd=***, bf16=True" in err


PROGRAMS: list[tuple[str, str, tuple[str, ...], bool]] = [
    ("outside", "program.py", ("outside of the current folder", "--file", "--trust"), True),
    ("a link that leads outside", "project/link.py", ("outside of the current folder", "--file", "--trust"), True),
    ("beyond a linked folder", "project/linked/program.py", ("outside of the current folder",), True),
    ("not by its plain path", "project/../program.py", ("outside of the current folder",), True),
    ("in the study", "project/runs/study/program.py", ("output folder of the study", "--trust"), False),
    ("in the output folder", "project/runs/program.py", ("output folder of the study", "--trust"), False),
]


@pytest.mark.parametrize(("file", "parts", "by_file"), [each[1:] for each in PROGRAMS], ids=[p[0] for p in PROGRAMS])
def test_another_program_does_not_run(
    place: Place, told: Told, file: str, parts: tuple[str, ...], by_file: bool
) -> None:
    place.command(file=str(place.home / file))
    for command in (["resume", "runs/study"], ["replay", "0", "runs/study"]):
        code, _, err = told(*command)
        assert (code, place.canary.exists()) == (2, False)
        for part in (os.path.realpath(place.home / file), *parts):
            assert part in err
        assert ("--file" in err) is by_file


@pytest.mark.parametrize("file", ["program.py", "project/runs/study/program.py"])
@pytest.mark.parametrize("command", [["resume", "runs/study"], ["replay", "0", "runs/study"]])
def test_another_program_runs_if_it_is_given_or_trusted(
    place: Place, told: Told, command: list[str], file: str
) -> None:
    place.command(file=str(place.home / file))
    told(*command, "--file", str(place.home / file))
    assert place.canary.exists() is (file == "program.py")  # one in the study's folder has to be trusted
    place.canary.unlink(missing_ok=True)
    told(*command, "--trust")
    assert place.canary.exists()


def test_the_command_that_the_refusal_names_runs_the_program(place: Place, told: Told) -> None:
    place.command(file=str(place.home / "program.py"))
    _, _, err = told("resume", "runs/study")
    program, *arguments = shlex.split(err.partition("If you trust it: ")[2].partition(", which runs")[0])
    assert program == "hpsearch"
    told(*arguments)
    assert place.canary.exists()


@pytest.mark.parametrize("folder", ["project/runs/study", "project/linked"])
def test_a_folder_that_modules_would_be_imported_from_is_not_entered(place: Place, told: Told, folder: str) -> None:
    place.command(folder=str(place.home / folder))
    code, _, err = told("resume", "runs/study")
    assert (code, place.canary.exists()) == (2, False)
    assert f"does not run in the folder {os.path.realpath(place.home / folder)!r}" in err
    assert Path.cwd() == place.here
    told("resume", "runs/study", "--file", "program.py")
    assert (place.canary.exists(), Path.cwd()) == (True, place.here)
    told("resume", "runs/study", "--trust")
    assert Path.cwd() == Path(os.path.realpath(place.home / folder))


@pytest.mark.parametrize("folder", ["runs", "runs/study"])
def test_a_given_program_does_not_import_modules_of_the_output_folder(
    place: Place, told: Told, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    place.command()
    monkeypatch.chdir(place.here / folder)
    for command in (["resume", str(place.study)], ["replay", "0", str(place.study)]):
        code, _, err = told(*command, "--file", str(place.home / "program.py"))
        assert (code, place.canary.exists()) == (2, False)
        assert "Change to another folder" in err
    told("resume", str(place.study), "--file", str(place.home / "program.py"), "--trust")
    assert place.canary.exists()


ARGUMENTS: list[tuple[str, Any]] = [
    ("push_to_hub", True),
    ("hub_model_id", "someone"),
    ("hub_private_repo", False),
    ("report_to", "wandb"),
    ("report_to", ["tensorboard", "wandb"]),
    ("trackio_space_id", "someone"),
    ("resume_from_checkpoint", "elsewhere"),
    ("deepspeed", "settings.json"),
    ("fsdp_config", {"version": 2}),
    ("logging_dir", "elsewhere"),
    ("tensorboard_logging_dir", "elsewhere"),
    ("model.trust_remote_code", True),
    ("model.name", "someone/model"),
    ("optim_args", {"file": ["~/secret.txt"]}),
]


@pytest.mark.parametrize(("name", "value"), ARGUMENTS)
def test_an_argument_that_reaches_beyond_the_folder_is_given_again_or_trusted(
    place: Place, told: Told, name: str, value: Any
) -> None:
    place.command(arguments={name: value})
    for command in (["resume", "runs/study"], ["replay", "0", "runs/study"]):
        code, _, err = told(*command)
        assert (code, place.canary.exists()) == (2, False)
        assert f"{name}={value!r}" in err
        assert ("--set" in err) is (command[0] == "resume")
    given_again = Given("hpsearch resume", arguments={name: value})
    assert admitted(read_command(place.study), place.study, given_again).arguments[name] == value


def test_arguments_that_only_train_are_taken_from_the_folder(place: Place) -> None:
    arguments = {"bf16": True, "optim": "sgd", "report_to": "none", "push_to_hub": False, "model.width": 8}
    place.command(arguments=arguments, search={"n_trials": 4, "n_jobs": 2, "timeout": 60.0, "storage": "journal"})
    command = admitted(read_command(place.study), place.study, Given("hpsearch resume", search={"devices": [0]}))
    assert command.arguments == {**arguments, "output_dir": str(place.study.parent)}
    assert command.search == {
        "n_trials": 4,
        "timeout": 60.0,
        "storage": "journal",
        "study_name": "study",
        "devices": [0],  # in place of n_jobs
    }


STORAGES = [
    "sqlite:///{home}/books.db",
    "sqlite:////{home}/books.db",
    "sqlite:///../books.db",
    "sqlite:///file:{home}/books.db?uri=true&mode=rw",
    "sqlite+pysqlite:///{home}/books.db",
    "{home}/secret.txt",
    "{home}/secret.log",
    "secret.log",
    "postgresql://someone@127.0.0.1:9/studies",
    "redis://127.0.0.1:9",
    "sqlite:///{study}/linked.db",
    "sqlite:///{study}/../../../books.db",
]


def named(storage: str, place: Place) -> str:
    return storage.format(home=str(place.home), study=str(place.study))


@pytest.mark.parametrize("storage", STORAGES)
def test_a_storage_outside_of_the_folder_is_not_opened_by_a_command_without_a_word(
    place: Place, told: Told, storage: str
) -> None:
    (place.study / "linked.db").symlink_to(place.home / "books.db")
    place.settings({"storage": named(storage, place)})
    place.command(search={"storage": named(storage, place)})
    before = place.contents()
    with recorded_files() as found:
        code, _, err = told("resume", "runs/study")
        with pytest.raises(StudyError, match="folder"):
            open_study(place.study).engine_study  # noqa: B018
    assert (code, place.canary.exists()) == (2, False)
    assert "lies outside of the study's folder" in err or "leads out of the study's folder" in err
    assert place.contents() == before
    assert not place.outside(found)


@pytest.mark.parametrize("name", ["study.db", "study.log"])
def test_a_storage_in_the_folder_that_is_a_link_is_not_followed(place: Place, told: Told, name: str) -> None:
    pytest.importorskip("optuna_dashboard")
    (place.study / name).symlink_to(place.home / "books.db")
    url = f"sqlite:///{place.study}/study.db" if name == "study.db" else str(place.study / name)
    place.settings({"storage": url})
    before = place.contents()
    with recorded_files() as found:
        code, _, err = told("dashboard", "runs/study")
        shown = [told(command, "runs/study")[0] for command in ("show", "best")]
    assert code == 2
    assert "is a link that leads out of the study's folder" in err
    assert shown == [0, 1]  # there is no best trial
    assert place.contents() == before
    assert not place.outside(found)


def test_a_search_does_not_write_to_a_storage_that_is_a_link(tmp_path: Path) -> None:
    from hpsearch.ledger.storage import open_storage

    (tmp_path / "study").mkdir()
    for name, storage in (("study.db", None), ("study.log", "journal"), ("study.log.flock", "journal")):
        (tmp_path / "study" / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(StudyError, match=f"{name} is a link"):
            open_storage(storage, tmp_path / "study")
        (tmp_path / "study" / name).unlink()
    assert [each.name for each in tmp_path.iterdir()] == ["study"]


# Properties.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**9) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
PATHS = st.sampled_from(
    [
        *("{home}/program.py", "{here}/link.py", "{study}/program.py", "{here}/runs/program.py"),
        *("{here}/linked/program.py", "{here}/runs/../../program.py", "~/program.py", "program.py"),
        *("", "\0", "/", "/\ud800", "\x1b]0;title\x07", "/x" * 3000),
    ]
)
OPTIONS = st.dictionaries(
    st.sampled_from(["storage", "n_trials", "n_jobs", "devices", "timeout", "backend", "compute_objective", "address"]),
    JSON | st.sampled_from(STORAGES) | PATHS,
    max_size=3,
)
COMMANDS = st.fixed_dictionaries(
    {"file": PATHS | JSON},
    optional={
        "folder": PATHS | JSON,
        "arguments": JSON | st.dictionaries(st.sampled_from(["output_dir", "hub_token", "a b", ";x"]), JSON | PATHS),
        "search": OPTIONS | JSON,
        "left_out": JSON,
        "extra": JSON,
    },
)


def filled(value: Any, place: Place) -> Any:
    """Return a value with the names of the folders of a place filled in."""
    if isinstance(value, str):
        for name, path in (("{home}", place.home), ("{here}", place.here), ("{study}", place.study)):
            value = value.replace(name, str(path))
        return value
    if isinstance(value, dict):
        return {key: filled(each, place) for key, each in value.items()}
    return [filled(each, place) for each in value] if isinstance(value, list) else value


def assert_harmless(place: Place, capfd: pytest.CaptureFixture[str], act: Callable[[], Any]) -> None:
    """Assert that nothing outside of the study is opened, written or run, and nothing else shown than text."""
    before = place.contents()
    capfd.readouterr()
    with recorded_files() as found:
        act()
    out, err = capfd.readouterr()
    assert place.contents() == before
    assert not place.outside(found)
    assert SECRET not in out + err
    assert "Traceback" not in err
    assert "\x1b" not in out + err
    assert Path.cwd() == place.here


FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@FEW
@given(content=COMMANDS | JSON)
def test_no_command_file_from_someone_else_runs_opens_or_writes_anything(
    place: Place, capfd: pytest.CaptureFixture[str], content: Any
) -> None:
    (place.study / "command.json").write_text(json.dumps(filled(content, place)))
    codes: list[int] = []
    for command in (["resume", "runs/study"], ["replay", "0", "runs/study"]):
        assert_harmless(place, capfd, lambda: codes.append(main(command)))  # noqa: B023
    assert codes == [2, 2]


@FEW
@given(
    storage=st.sampled_from(STORAGES) | PATHS | st.text(max_size=30) | st.text(max_size=20).map("sqlite:///{}".format)
)
def test_no_storage_that_a_folder_names_is_opened_outside_of_it(
    place: Place, capfd: pytest.CaptureFixture[str], storage: str
) -> None:
    pytest.importorskip("optuna_dashboard")
    place.settings({"storage": filled(named(storage, place) if storage in STORAGES else storage, place)})
    for command in ("show", "best", "dashboard"):
        assert_harmless(place, capfd, lambda: main([command, "runs/study"]))  # noqa: B023


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_command_file_that_is_no_file_is_not_read(place: Place, kind: str) -> None:
    file = place.study / "command.json"
    (place.home / "x.json").write_text(json.dumps({"file": SECRET}))
    os.mkfifo(file) if kind == "pipe" else file.symlink_to(place.home / "x.json")
    with pytest.raises(StudyError, match=r"it is a link|it is not a file") as caught:
        read_command(place.study)
    assert SECRET not in str(caught.value)
