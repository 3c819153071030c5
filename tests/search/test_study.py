"""A study checks its settings, knows its folder again, and records trials so that nothing is lost."""

from __future__ import annotations

import dataclasses
import importlib.machinery
import inspect
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from hpsearch import (
    Categorical,
    FixedTrial,
    Float,
    Int,
    MissingPackageError,
    Report,
    SearchSpace,
    SpaceError,
    Study,
    StudyError,
    Trainer,
    TrialRecord,
    TrialState,
)
from hpsearch.backends import get_backend
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.space.search_space import default_space
from hpsearch.search.store.study_folder import StudyFolder
from hpsearch.search.study import as_space, check_name
from hpsearch.searching.search_arguments import POSITIONAL, SearchArguments
from tests.support.all_fields import all_fields
from tests.support.small_trainer import small_trainer

SPACE = SearchSpace({"x": Int(0, 4), "y": Categorical({"a": {"z": Float(0.0, 1.0)}, "b": {}})})


def make_study(folder: Path, **changes: Any) -> Study:
    name = changes.pop("name", "study")
    settings = {"space": SPACE, "objectives": resolve_objectives("loss", None, False), "n_trials": 4, **changes}
    return Study(name=name, folder=folder, **settings)


def leave_a_trial(study: Study) -> None:
    StudyFolder(study).write_settings({}, {})
    StudyFolder(study).write_record(TrialRecord(0, "run-0", TrialState.FAILED, {}))


def test_results_of_sessions_whose_settings_are_lost_are_not_known(tmp_path: Path) -> None:
    now = {"arguments": {"seed": 1}, "data": {}, "versions": {}}
    folder = StudyFolder(make_study(tmp_path))
    folder.write_settings(now, {}, [TrialRecord(0, "run-0", TrialState.COMPLETE, {}, session=1)])
    assert (folder.session, folder.same_sessions) == (2, {2})
    folder.write_settings(now, {})
    assert (folder.session, folder.same_sessions) == (2, {2})


ESCAPES = [
    "../x",
    "..",
    ".",
    "a/b",
    "/tmp/x",
    "a\\b",
    "~/x",
    "",
    " ",
    "x\n",
    "x\0y",
    ".hidden",
    "x.",
    "x ",
    "a" * 201,
    None,
    3,
]


@pytest.mark.parametrize("name", ESCAPES)
def test_a_study_name_that_is_no_plain_folder_name_is_refused(tmp_path: Path, name: Any) -> None:
    with pytest.raises(StudyError) as caught:
        make_study(tmp_path / "study", name=name)
    assert f"study_name is {name!r}" in str(caught.value)
    assert "letters, digits" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["study", "my study-2", "a.b", "lr=0.1,bs=8", "größe_3", "user@host+1"])
def test_readable_names_are_study_names(name: str) -> None:
    assert check_name(name, "study_name") == name


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"n_trials": 0}, ["n_trials", "0", "at least 1"]),
        ({"n_trials": -3}, ["n_trials", "-3", "at least 1"]),
        ({"n_trials": 2.0}, ["n_trials", "2.0", "whole number"]),
        ({"n_trials": True}, ["n_trials", "True", "whole number"]),
        ({"n_trials": "4"}, ["n_trials", "'4'", "whole number"]),
        ({"keep_checkpoints": -1}, ["keep_checkpoints", "-1", "at least 0"]),
        ({"keep_checkpoints": True}, ["keep_checkpoints", "True", "whole number"]),
        ({"keep_checkpoints": "1"}, ["keep_checkpoints", "'1'", "None"]),
        ({"timeout": 0}, ["timeout", "0", "above 0"]),
        ({"timeout": -1.5}, ["timeout", "-1.5", "above 0"]),
        ({"timeout": math.nan}, ["timeout", "nan", "above 0"]),
        ({"timeout": "60"}, ["timeout", "'60'", "seconds"]),
        ({"timeout": True}, ["timeout", "True", "seconds"]),
        ({"trial_timeout": 0}, ["trial_timeout", "0", "above 0"]),
        ({"trial_timeout": -1}, ["trial_timeout", "-1", "above 0"]),
        ({"scope": "best"}, ["scope='best'", "'last'", "'all'"]),
        ({"hp_name": "run"}, ["hp_name", "'run'", "function"]),
        ({"seed": "7"}, ["seed", "'7'"]),
        ({"seed": -1}, ["seed", "-1"]),
    ],
)
def test_a_setting_out_of_range_is_refused_with_its_value(
    tmp_path: Path, changes: dict[str, Any], shown: list[str]
) -> None:
    with pytest.raises(StudyError) as caught:
        make_study(tmp_path, **changes)
    for text in shown:
        assert text in str(caught.value)


def test_a_study_goes_on_in_its_folder_with_a_larger_total(tmp_path: Path) -> None:
    for total, sampler in ((5, "TPE"), (9, "Random")):
        study = make_study(tmp_path / "new" / "study", n_trials=total)
        assert StudyFolder(study).open() == []
        StudyFolder(study).write_settings({}, {"sampler": sampler})
    written = json.loads((tmp_path / "new" / "study" / "study.json").read_text())
    assert (written["n_trials"], written["sampler"], written["study_name"]) == (9, "Random", "study")


@pytest.mark.parametrize(
    ("changes", "key", "earlier", "now"),
    [
        ({"name": "other"}, "study_name", "'study'", "'other'"),
        ({"space": SearchSpace({"x": Int(0, 5)})}, "space of 'x'", "high=4", "high=5"),
        ({"objectives": resolve_objectives("wer", None, True)}, "objective", "'eval_loss'", "'eval_wer'"),
        ({"scope": "all"}, "scope", "'last'", "'all'"),
    ],
)
def test_a_folder_of_another_study_is_refused_naming_what_differs_and_left_as_it_was(
    tmp_path: Path, changes: dict[str, Any], key: str, earlier: str, now: str
) -> None:
    leave_a_trial(make_study(tmp_path))
    before = (tmp_path / "study.json").read_text()
    with pytest.raises(StudyError) as caught:
        StudyFolder(make_study(tmp_path, **changes)).open()
    for text in (f"another {key}", earlier, now, str(tmp_path), "another study_name"):
        assert text in str(caught.value)
    assert (tmp_path / "study.json").read_text() == before


def test_a_study_that_was_refused_in_its_first_trial_starts_afresh_with_other_settings(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    StudyFolder(study).write_settings({}, {})
    StudyFolder(study).write_record(TrialRecord(0, "run-0", TrialState.REFUSED, {}))
    (tmp_path / "mine.txt").write_text("not the study's")
    assert len(StudyFolder(study).open()) == 1
    assert StudyFolder(make_study(tmp_path, scope="all")).open() == []
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("state", [TrialState.RUNNING, TrialState.INTERRUPTED])
def test_a_half_done_trial_is_not_thrown_away_for_other_settings(tmp_path: Path, state: TrialState) -> None:
    study = make_study(tmp_path)
    StudyFolder(study).write_settings({}, {})
    StudyFolder(study).write_record(TrialRecord(0, "run-0", state, {}))
    with pytest.raises(StudyError, match="another scope"):
        StudyFolder(make_study(tmp_path, scope="all")).open()
    assert (tmp_path / "run-0" / "trial.json").exists()


def test_another_direction_is_refused(tmp_path: Path) -> None:
    def quality(metrics: dict[str, float]) -> float:
        return 1.0

    leave_a_trial(make_study(tmp_path, objectives=resolve_objectives(quality, "minimize", True)))
    with pytest.raises(StudyError, match="another direction: 'minimize', now 'maximize'"):
        StudyFolder(make_study(tmp_path, objectives=resolve_objectives(quality, "maximize", True))).open()


def full_record(folder: Path) -> TrialRecord:
    checkpoint = folder / "named run" / "checkpoint-12"
    checkpoint.mkdir(parents=True)
    return TrialRecord(
        number=7,
        name="named run",
        state=TrialState.STOPPED,
        params={"x": 1, "y": "ä", "learning_rate": 1.2345678901234567e-5, "flag": True, "none": None},
        arguments={"x": 1},
        seed=42,
        values=(0.1 + 0.2,),
        reports=(
            Report((0.5,), 1.0, 6, 1.0, {"eval_loss": 0.5}),
            Report((math.nan,), 2.0, 12, 2.0, {"eval_loss": math.nan}),
            Report((-math.inf,), 3.0, 18, 3.0, {}),
        ),
        checkpoint=checkpoint,
        reason="the study's timeout of 3 s is over",
        traceback="Traceback\n  line",
        seconds=1.25,
    )


def test_a_record_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    record = full_record(tmp_path)
    StudyFolder(study).write_record(record)
    (read,) = StudyFolder(study).read_records()
    assert all_fields(read) == all_fields(record)
    assert read.params == record.params
    assert read.state is TrialState.STOPPED
    assert read.checkpoint == tmp_path / "named run" / "checkpoint-12"


def test_a_record_has_no_checkpoint_once_its_folder_is_gone_and_moves_with_its_study(tmp_path: Path) -> None:
    StudyFolder(make_study(tmp_path / "a")).write_record(full_record(tmp_path / "a"))
    (tmp_path / "a").rename(tmp_path / "b")
    (read,) = StudyFolder(make_study(tmp_path / "b")).read_records()
    assert read.checkpoint == tmp_path / "b" / "named run" / "checkpoint-12"
    read.checkpoint.rmdir()
    (read,) = StudyFolder(make_study(tmp_path / "b")).read_records()
    assert read.checkpoint is None


def test_records_come_back_by_number_and_leftovers_of_a_killed_write_are_cleaned_up(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    for number in (10, 2, 0):
        StudyFolder(study).write_record(TrialRecord(number, f"run-{number}", TrialState.COMPLETE, {}, values=(1.0,)))
    (tmp_path / "run-2" / ".partial-1-trial.json").write_text("{")
    (tmp_path / "run-2" / ".partial-1-checkpoint-4").mkdir()
    (tmp_path / ".partial-1-study.json").write_text("{")
    records = StudyFolder(study).open()
    assert [record.number for record in records] == [0, 2, 10]
    assert list(tmp_path.rglob(".partial-*")) == []


def test_the_best_trial_is_written_with_its_checkpoint_and_scope(tmp_path: Path) -> None:
    study = make_study(tmp_path, scope="all")
    StudyFolder(study).write_best([])
    assert not (tmp_path / "best.json").exists()
    worse = TrialRecord(0, "run-0", TrialState.COMPLETE, {"x": 0}, values=(0.5,))
    checkpoint = tmp_path / "run-1" / "checkpoint-4"
    better = TrialRecord(
        1, "run-1", TrialState.COMPLETE, {"x": 1}, hyperparameters={"x": 1}, values=(0.25,), checkpoint=checkpoint
    )
    StudyFolder(study).write_best([worse, better])
    assert json.loads((tmp_path / "best.json").read_text()) == {
        "trial": 1,
        "value": 0.25,
        "scope": "all",
        "checkpoint": "run-1/checkpoint-4",
        "hyperparameters": {"x": 1},
    }


@pytest.mark.feature(7)
def test_a_run_is_named_by_its_number_or_by_the_function(tmp_path: Path) -> None:
    trial = FixedTrial({"x": 3}, number=5)
    assert make_study(tmp_path).run_name(trial) == "run-5"
    assert make_study(tmp_path, hp_name=lambda trial: f"x={trial.params['x']}").run_name(trial) == "x=3"


def begin_run(study: Study, number: int) -> str:
    record = TrialRecord(number, f"run-{number}", TrialState.RUNNING, {})
    return StudyFolder(study).begin_run(record, study.run_name(FixedTrial({}, number=number)))


def test_run_names_never_come_twice_and_their_folders_hold_their_records(tmp_path: Path) -> None:
    given = ["a-2", "a", "a", "a", "b", "a", "a-2"]
    study = make_study(tmp_path, hp_name=lambda trial: given[trial.number])
    names = [begin_run(study, number) for number in range(len(given))]
    assert len(set(names)) == len(given)
    assert all(name.startswith(wanted) for name, wanted in zip(names, given, strict=True))
    assert [(each.number, each.name) for each in StudyFolder(study).read_records()] == list(enumerate(names))


@pytest.mark.parametrize("name", ["../x", "a/b", "", None, 3])
def test_a_run_name_that_is_no_folder_name_is_refused(tmp_path: Path, name: Any) -> None:
    with pytest.raises(StudyError) as caught:
        make_study(tmp_path, hp_name=lambda trial: name).run_name(FixedTrial({}))
    assert f"hp_name(trial) is {name!r}" in str(caught.value)


@pytest.mark.parametrize("name", ["study.json", "study.db", "best.json", "Sessions", "replays", "study.lock"])
def test_a_run_is_not_named_like_a_file_of_its_study(tmp_path: Path, name: str) -> None:
    with pytest.raises(StudyError) as caught:
        begin_run(make_study(tmp_path, hp_name=lambda trial: name), 3)
    assert f"hp_name(trial) is {name!r}" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_space_may_be_left_out_or_be_a_mapping_or_a_function() -> None:
    def by_run(trial: Any) -> None:
        trial.suggest_int("x", 0, 1)

    assert as_space(None).describe() == default_space().describe()  # type: ignore[union-attr]
    assert as_space(SPACE) is SPACE
    assert as_space(dict(SPACE)).describe() == SPACE.describe()  # type: ignore[union-attr]
    assert as_space(by_run) is by_run


@pytest.mark.parametrize("space", [3, "learning_rate", [Int(0, 1)], Int(0, 1), {}])
def test_what_is_no_space_is_refused(space: Any) -> None:
    with pytest.raises(SpaceError):
        as_space(space)


def test_a_function_may_return_parameters_values_or_nothing(tmp_path: Path) -> None:
    trial = FixedTrial({"x": 3, "learning_rate": 0.5})
    study = make_study(tmp_path, space=lambda trial: {"x": Int(0, 4), "max_steps": 2 * trial.suggest_int("x", 0, 4)})
    assert study.suggest(trial) == {"x": 3, "max_steps": 6}
    assert make_study(tmp_path, space=lambda trial: None).suggest(trial) == {"x": 3, "learning_rate": 0.5}
    assert make_study(tmp_path, space=lambda trial: {}).suggest(trial) == {}


def test_a_choice_that_a_function_returns_opens_its_branch(tmp_path: Path) -> None:
    space = {"optim": Categorical({"sgd": {"optim.momentum": Float(0.0, 0.9)}, "adamw_torch": {}}), "max_steps": 5}
    study = make_study(tmp_path, space=lambda trial: space)
    with_momentum = {"optim": "sgd", "optim.momentum": 0.5}
    assert study.suggest(FixedTrial(with_momentum)) == {**with_momentum, "max_steps": 5}
    assert study.suggest(FixedTrial({"optim": "adamw_torch"})) == {"optim": "adamw_torch", "max_steps": 5}


@pytest.mark.parametrize("returned", [3, "x", ["x"], True])
def test_a_function_that_returns_something_else_is_refused(tmp_path: Path, returned: Any) -> None:
    with pytest.raises(SpaceError) as caught:
        make_study(tmp_path, space=lambda trial: returned).suggest(FixedTrial({}))
    assert repr(returned) in str(caught.value)
    assert "mapping" in str(caught.value)


def test_a_value_outside_its_parameter_is_refused_at_the_second_suggestion() -> None:
    trial = FixedTrial({"x": 9})
    with pytest.raises(SpaceError) as caught:
        trial.suggest_int("x", 0, 4)
    assert "x=9" in str(caught.value)
    assert "Int(0, 4)" in str(caught.value)


def test_a_fixed_trial_refuses_what_it_was_not_given() -> None:
    with pytest.raises(SpaceError, match=r"'y'.*\['x'\]"):
        FixedTrial({"x": 9}).suggest_float("y", 0.0, 1.0)


NOT_GIVEN = ("options", "began_in")


def test_every_argument_of_a_search_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[SearchArguments] = []
    monkeypatch.setattr("hpsearch.trainer.trainer.search", lambda recipe, arguments: passed.append(arguments))
    names = [each.name for each in dataclasses.fields(SearchArguments) if each.name not in NOT_GIVEN]
    given: dict[str, Any] = {name: object() for name in [*names, "of_the_backend"]}
    small_trainer(tmp_path).hyperparameter_search(**given)
    [arguments] = passed
    assert arguments.options == {"of_the_backend": given.pop("of_the_backend")}
    assert {name: getattr(arguments, name) for name in names} == given


def test_the_arguments_of_a_search_have_one_name_and_one_default_for_a_trainer_and_for_tune() -> None:
    documented = inspect.signature(Trainer.hyperparameter_search).parameters
    taken = {each.name: each.default for each in dataclasses.fields(SearchArguments) if each.name != "began_in"}
    assert list(taken) == [name for name in documented if name != "self"]
    del taken["options"]
    assert taken == {name: documented[name].default for name in taken}


@pytest.mark.feature(1)
def test_a_search_takes_the_documented_arguments_in_their_order() -> None:
    parameters = inspect.signature(Trainer.hyperparameter_search).parameters
    documented = list(POSITIONAL)
    assert [name for name, each in parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD][1:] == documented
    assert list(parameters)[1:7] == documented
    theirs = inspect.signature(transformers.Trainer.hyperparameter_search).parameters
    assert list(theirs)[1:7] == documented


@pytest.mark.feature(6)
def test_without_the_package_of_a_backend_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.machinery.PathFinder.find_spec
    hidden = staticmethod(lambda name, *rest: None if name == "optuna" else found(name, *rest))
    monkeypatch.delitem(sys.modules, "optuna")
    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", hidden)
    for name in (None, "optuna"):
        with pytest.raises(MissingPackageError, match="pip install optuna"):
            get_backend(name, {})
