"""Requests to a search are data: checked when they are made and when they are read, and their effect is a function."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpsearch import Float, SpaceError, StudyError, TrialState, open_study, tune
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.requests.in_effect import InEffect, unfulfilled
from hpsearch.search.requests.request import Kind, Request
from hpsearch.search.requests.request_file import RequestFile
from hpsearch.search.store.checked_json import Unreadable
from hpsearch.search.store.study_folder import REQUESTS_FILE
from hpsearch.search.trial_record import Replica, TrialRecord
from tests.support.small_trainer import small_trainer
from tests.support.small_tune import make_trainer

LOSS = resolve_objectives(None, None, has_metrics=False)
RATE = {"learning_rate": Float(1e-4, 1.0, log=True), "weight_decay": Float(0.0, 0.1)}


def request(kind: str, trial: int | None = None, *sessions: str, **arguments: Any) -> Request:
    return Request(Kind(kind), trial, arguments=arguments, sessions=sessions, id=f"{kind}-{trial}-{sessions}")


@pytest.mark.parametrize(
    ("requests", "effect"),
    [
        ([], {}),
        ([request("stop", 7), request("stop", 2)], {"stopped": {2, 7}}),
        ([request("promote", 7)], {"promoted": {7}}),
        ([request("pause", None, "here")], {"is_paused": True}),
        ([request("pause", None, "here"), request("unpause", None, "here")], {"is_paused": False}),
        ([request("unpause", None, "here"), request("pause", None, "here")], {"is_paused": True}),
        ([request("pause", None, "gone")], {"is_paused": False}),
        ([request("pause", None, "gone", "here")], {"is_paused": True}),
        ([request("set", None, "here", n_trials=5)], {"settings": {"n_trials": 5}}),
        (
            [request("set", None, "here", n_trials=5), request("set", None, "here", timeout=9, n_trials=6)],
            {"settings": {"n_trials": 6, "timeout": 9}},
        ),
        ([request("set", None, "gone", n_trials=5)], {"settings": {}}),
    ],
)
def test_what_requests_come_to_follows_from_them_and_from_who_is_at_work(
    requests: list[Request], effect: dict[str, Any]
) -> None:
    found = InEffect.of(requests, {"here"}.__contains__)
    expected = {"stopped": set(), "promoted": set(), "is_paused": False, "settings": {}, **effect}
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("requests", "own", "total"),
    [
        ([], 20, 20),
        ([request("retry", 7), request("add"), request("extend", 3), request("stop", 2)], 20, 23),
        ([request("retry", 7), request("set", None, "here", n_trials=50)], 20, 51),
        ([request("retry", 7)], None, None),
        ([request("set", None, "here", n_trials=50)], None, 50),
    ],
)
def test_each_requested_trial_raises_the_total_by_one(
    requests: list[Request], own: int | None, total: int | None
) -> None:
    assert InEffect.of(requests, {"here"}.__contains__).total(own) == total


def test_what_no_search_has_fulfilled_is_left_over() -> None:
    requests = [request("add"), request("retry", 0), request("stop", 0), request("stop", 1), request("promote", 1)]
    records = [
        TrialRecord(0, "run-0", TrialState.COMPLETE, {}),
        TrialRecord(1, "run-1", TrialState.PAUSED, {}),
        TrialRecord(2, "run-2", TrialState.COMPLETE, {}, origin=requests[1].origin),
    ]
    assert unfulfilled(requests, records, LOSS) == [requests[0], requests[3], requests[4]]
    assert InEffect.of(requests).without_trial({requests[1].id}) == (requests[0],)
    pauses = [request("pause", None, "here"), request("unpause", None, "here"), request("pause", None, "here")]
    assert [unfulfilled(pauses[:count], records, LOSS, {"here"}) for count in (1, 2)] == [pauses[:1], []]
    assert unfulfilled(pauses, records, LOSS, {"gone"}) == []


@pytest.mark.parametrize(("values", "is_left"), [([0.5], True), ([0.5, 0.6], True), ([0.5, 0.6, 0.5], False)])
def test_a_request_to_confirm_is_left_over_until_all_runs_are_done(values: list[float], is_left: bool) -> None:
    asked = request("confirm", trials=[0], repeats=3)
    done = [
        TrialRecord(
            number,
            f"run-{number}",
            TrialState.COMPLETE,
            {},
            values=(each,),
            origin=Replica(0, number).origin if number else None,
        )
        for number, each in enumerate(values)
    ]
    assert unfulfilled([asked], done, LOSS) == ([asked] if is_left else [])


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (request("stop", 7), "stop 7"),
        (Request(Kind.RETRY, 7, {"learning_rate": 0.1}), "retry 7"),
        (Request(Kind.ADD, 7, {"learning_rate": 0.1}), "add --like 7 learning_rate=0.1"),
        (Request(Kind.ADD, None, {"learning_rate": 0.1}), "add learning_rate=0.1"),
        (Request(Kind.EXTEND, 7, {"learning_rate": 0.1}, {"num_train_epochs": 4}), "extend 7 num_train_epochs=4"),
        (request("set", None, n_trials=5), "set n_trials=5"),
        (request("pause"), "pause"),
        (Request(Kind.ADD, None, {"a": "\x1b]0;b\x07\nc"}), "add a=\\x1b]0;b\\x07\\nc"),
    ],
)
def test_a_request_is_shown_as_in_a_command_and_survives_its_file(made: Request, shown: str) -> None:
    assert str(made) == shown
    assert Request.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "halt"}, "'kind': it must be one of add, confirm, extend"),
        ({"trial": "seven"}, "'trial': it must be a number"),
        ({"trial": -1}, "'trial': it must be a finite number of at least 0"),
        ({"colour": "red"}, "does not know its field 'colour'"),
        ({"params": [1]}, "'params': it must be an object"),
        ({"arguments": {"num_train_epochs": 2**70}}, "64 bits"),
        ({"kind": "extend", "arguments": {"push_to_hub": True}}, "a request to extend cannot have push_to_hub=True"),
        ({"kind": "extend", "arguments": {"max_steps": -1}}, "a request to extend cannot have max_steps=-1"),
        ({"kind": "set", "arguments": {"n_trials": 1e9}}, "a request to set cannot have n_trials"),
        ({"kind": "add", "arguments": {"max_steps": 9}}, "a request to add cannot have max_steps=9"),
        ({"sessions": "one"}, "'sessions': it must be a list"),
        ({"id": None}, "'id': it must be text"),
    ],
)
def test_a_file_with_anything_else_is_damaged(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    values = {**request("stop", 7).to_json(), **changes}
    with pytest.raises(Unreadable, match=message):
        Request.from_json(values)
    (tmp_path / REQUESTS_FILE).write_text(json.dumps([values]))
    with pytest.raises(StudyError, match="is damaged"):
        RequestFile(tmp_path).read()


def test_a_file_is_read_again_only_if_it_has_changed(tmp_path: Path) -> None:
    file, other = RequestFile(tmp_path), RequestFile(tmp_path)
    assert file.read() == ()
    asked = request("stop", 7)
    with file.locked():
        file.add(asked)
    assert other.read() == file.read() == (asked,)
    assert other.read() is other.read()
    assert file.keep(lambda each: each.kind is not Kind.STOP)[0].trial == 7
    assert other.read() == ()


@pytest.mark.parametrize("name", ["requests.json", "requests.lock"])
def test_a_link_in_the_place_of_a_file_of_requests_is_not_followed(tmp_path: Path, finished: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.write_text("[]")
    (finished / name).unlink(missing_ok=True)
    (finished / name).symlink_to(outside)
    try:
        with pytest.raises(StudyError, match="links are not followed"):
            open_study(finished).retry(0)
    finally:
        (finished / name).unlink()
    assert outside.read_text() == "[]"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of three complete trials, of which the last has no checkpoint that training can resume from."""
    folder = tmp_path_factory.mktemp("requests")
    small_trainer(folder).hyperparameter_search(RATE, "loss", n_trials=3, progress=False, pruner=None)
    return folder / "study"


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda study: study.stop(0), StudyError, "Trial 0 is complete; only one that is 'interr"),
        (lambda study: study.stop(9), StudyError, r"has no trial 9; it has 3, up to 2"),
        (lambda study: study.stop(True), StudyError, r"has no trial True"),
        (lambda study: study.promote(0), StudyError, "no trial pauses at a rung"),
        (lambda study: study.retry(9), StudyError, "has no trial 9"),
        (lambda study: study.add(), StudyError, "needs at least one parameter, or a trial"),
        (lambda study: study.add({"learning_rat": 0.1}), SpaceError, "The new trial has learning_rat=0.1.*'learning_r"),
        (lambda study: study.add({"learning_rate": 7.0}), SpaceError, "learning_rate=7.0, which is not in Float"),
        (lambda study: study.add({"learning_rate": "high"}), SpaceError, "learning_rate='high', which is not in"),
        (lambda study: study.add({"learning_rate": 0.1}, like=9), StudyError, "has no trial 9"),
        (lambda study: study.extend(0, num_train_epochs=1), StudyError, "num_train_epochs=1 does not extend it"),
        (lambda study: study.extend(0, num_train_epochs="long"), StudyError, "a number of epochs above 0, but got 'l"),
        (lambda study: study.extend(0, max_steps=1.5), StudyError, "max_steps must be a whole number"),
        (lambda study: study.extend(0, learning_rate=1.0), StudyError, "learning_rate cannot change when a trial is"),
        (lambda study: study.extend(0), StudyError, "needs its new length: one of 'max_steps'"),
        (lambda study: study.extend(0, num_train_epochs=9), StudyError, "no checkpoint with the state of its optimiz"),
        (lambda study: study.pause(), StudyError, "No search is running in .* so none can be paused"),
        (lambda study: study.unpause(), StudyError, "No search is running in .* so none can be unpaused"),
        (lambda study: study.set(n_trials=9), StudyError, "No search is running in .* pass it to the next call"),
        (lambda study: study.set(), StudyError, "nothing to set; allowed: 'n_trials'"),
        (lambda study: study.set(n_trial=9), StudyError, "n_trial cannot be set while.*'n_trials'"),
        (lambda study: study.set(n_trials=0), StudyError, "n_trials must be a whole number of at least 1, but got 0"),
        (lambda study: study.set(timeout="1h"), StudyError, "timeout must be a number of seconds above 0"),
        (lambda study: study.set(timeout=float("nan")), StudyError, "timeout must be a number of seconds above 0"),
    ],
)
def test_a_request_that_cannot_be_right_is_refused_when_it_is_made(
    finished: Path, ask: Callable[[Any], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ask(open_study(finished))
    assert not (finished / REQUESTS_FILE).exists()


def test_a_parameter_of_a_function_must_be_one_that_trials_have(tmp_path: Path) -> None:
    small_trainer(tmp_path).hyperparameter_search(
        lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 0.1, 1.0)},
        "loss",
        n_trials=1,
        progress=False,
    )
    study = open_study(tmp_path / "study")
    with pytest.raises(StudyError, match=r"learning_rte=0.1, but no trial .*'learning_rate'"):
        study.add({"learning_rte": 0.1})
    assert "with learning_rate=0.1" in study.add({"learning_rate": 0.1})


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (make_trainer, "make_trainer sets the length of a trial"),
        (lambda trial: trial.params["learning_rate"], "the function sets the length of a trial"),
    ],
)
def test_a_trial_of_a_function_is_not_extended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Callable[[Any], Any], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    objective = {"compute_objective": "loss"} if function is make_trainer else {}
    rate = {"learning_rate": RATE["learning_rate"]}
    tune(function, rate, n_trials=1, direction="minimize", output_dir="out", progress=False, **objective)
    study = open_study("out/study")
    with pytest.raises(StudyError, match=rf"Only trials of an hpsearch\.Trainer can be extended: {reason}\. Use retry"):
        study.extend(0, num_train_epochs=9)
    assert "with the parameters of trial 0" in study.retry(0)
