"""A search learns from a study in a storage, and from one whose parameters have other names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from hpsearch import Float, StudyError, WarmStart
from hpsearch.ledger.warm_starts import learn_from
from tests.support.searching import Events
from tests.support.short_searches import params_of, search_for_70, study_about_70

SPACE = {"weight_decay": Float(0.0, 100.0)}
HERE = (None, "study")


def optuna_study(storage: Any, name: str = "rates", parameter: str = "weight_decay", n_trials: int = 30) -> None:
    """Store a study as Optuna itself makes it: the best value of the parameter is 70."""
    study = optuna.create_study(storage=storage, study_name=name)
    for trial in study_about_70(n_trials).trials:
        [value] = trial.params.values()
        study.add_trial(
            optuna.trial.create_trial(
                params={parameter: value},
                distributions={parameter: FloatDistribution(0.0, 100.0)},
                value=trial.value,
            )
        )


def stored(folder: Path, kind: str, **study: Any) -> Any:
    """Store a study of Optuna in a folder, and return what `start_from` is given."""
    if kind == "database":
        url = f"sqlite:///{folder / 'optuna.db'}"
        optuna_study(url, **study)
        return url
    path = folder / "optuna_journal.log"
    optuna_study(JournalStorage(JournalFileBackend(str(path))), **study)
    return path if kind == "path" else str(path)


@pytest.mark.parametrize("kind", ["database", "journal", "path"])
def test_the_only_study_of_a_storage_is_learned_from(tmp_path: Path, kind: str) -> None:
    learned = learn_from(stored(tmp_path, kind, n_trials=5), HERE)
    assert (learned.name, learned.direction, len(learned.trials)) == ("rates", "minimize", 5)


def test_a_storage_of_several_studies_names_them_and_says_how_to_name_one(tmp_path: Path) -> None:
    url = stored(tmp_path, "database", n_trials=2)
    optuna_study(url, "sizes", n_trials=3)
    with pytest.raises(StudyError) as caught:
        learn_from(url, HERE)
    assert f"2 studies: 'rates', 'sizes'. Name one: start_from=hpsearch.WarmStart({url!r}, study_name='rates')" in str(
        caught.value
    )
    assert len(learn_from(WarmStart(url, study_name="sizes"), HERE).trials) == 3
    with pytest.raises(StudyError, match=r"'rates', 'sizes'\. Did you mean 'sizes'\?"):
        learn_from(WarmStart(url, study_name="size"), HERE)


def test_the_study_that_is_to_learn_is_not_meant_in_its_own_storage_only(tmp_path: Path) -> None:
    url = stored(tmp_path, "database", n_trials=2)
    optuna_study(url, "ours", n_trials=3)
    assert learn_from(url, (url, "ours")).name == "rates"
    with pytest.raises(StudyError, match="2 studies"):
        learn_from(url, (f"sqlite:///{tmp_path / 'another.db'}", "ours"))


@pytest.fixture(scope="module")
def various(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with files that are something else than a storage with a study."""
    folder = tmp_path_factory.mktemp("various")
    stored(folder, "database", n_trials=1)
    (folder / "notes.txt").write_text("no journal\nat all\n")
    (folder / "study.json").write_text("{}")
    optuna.storages.RDBStorage(f"sqlite:///{folder / 'empty.db'}").engine.dispose()
    return folder


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("sqlite:///{folder}/missing.db", "the file '{folder}/missing.db' does not exist"),
        ("{folder}/missing.log", "neither a URL"),
        ("first", "neither a URL"),
        ("{folder}/optuna.db", "start_from='sqlite:///{folder}/optuna.db'"),
        ("{folder}/notes.txt", "cannot be opened"),
        ("sqlite:///{folder}/empty.db", "holds no study"),
        ("nonsense://user:secret@host", "start_from='nonsense://user:***@host' cannot be opened"),
        ("{folder}", "start_from=hpsearch.open_study('{folder}')"),
        (5, "but got 5"),
    ],
)
def test_what_is_no_storage_with_a_study_is_refused_and_nothing_is_created(
    various: Path, given: Any, shown: str
) -> None:
    before = sorted(os.listdir(various))
    with pytest.raises(StudyError) as caught:
        learn_from(given.format(folder=various) if isinstance(given, str) else given, HERE)
    assert shown.format(folder=various) in str(caught.value)
    assert "secret" not in str(caught.value)
    assert sorted(os.listdir(various)) == before


@pytest.mark.parametrize(
    ("rename", "shown"),
    [
        (["wd"], "rename must be a mapping"),
        ({"wd": 3}, "rename must be a mapping"),
        ({"wd": "weight_decay", "lr": "weight_decay"}, "two parameters the name 'weight_decay'"),
        ({"w": "weight_decay"}, "has no parameter 'w' to rename; it has 'lr', 'wd'."),
        ({"wd": "lr"}, "rename gives two parameters of trial 0 the name 'lr'"),
    ],
)
def test_a_renaming_that_cannot_be_is_refused(rename: Any, shown: str) -> None:
    other = optuna.create_study(study_name="rates")
    distributions = {"wd": FloatDistribution(0.0, 1.0), "lr": FloatDistribution(0.0, 1.0)}
    other.add_trial(optuna.trial.create_trial(params={"wd": 0.5, "lr": 0.5}, distributions=distributions, value=1.0))
    with pytest.raises(StudyError, match=shown):
        learn_from(WarmStart(other, rename=rename), HERE)


def test_names_may_be_exchanged() -> None:
    other = optuna.create_study()
    distributions = {"a": FloatDistribution(0.0, 1.0), "b": FloatDistribution(0.0, 2.0)}
    other.add_trial(optuna.trial.create_trial(params={"a": 0.5, "b": 1.5}, distributions=distributions, value=1.0))
    [trial] = learn_from(WarmStart(other, rename={"a": "b", "b": "a"}), HERE).trials
    assert trial.params == {"b": 0.5, "a": 1.5}
    assert trial.distributions == {"b": distributions["a"], "a": distributions["b"]}
    assert other.trials[0].params == {"a": 0.5, "b": 1.5}


def test_a_study_name_beside_a_study_object_must_be_its_own() -> None:
    with pytest.raises(StudyError, match="the study that was given is 'about 70'"):
        learn_from(WarmStart(study_about_70(1), study_name="rates"), HERE)


def test_a_parameter_is_renamed_to_one_that_the_search_has(tmp_path: Path) -> None:
    given = WarmStart(study_about_70(2), rename={"weight_decay": "wieght_decay"})
    with pytest.raises(
        StudyError, match=r"'wieght_decay', which this search does not have.*Did you mean 'weight_decay'"
    ):
        search_for_70(tmp_path / "out", 1, start_from=given)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_renamed_parameters_teach_and_the_next_session_continues(tmp_path: Path) -> None:
    url = stored(tmp_path, "database", parameter="wd")
    untaught = Events()
    search_for_70(tmp_path, 1, start_from=url, storage=url, progress=untaught)
    assert (
        "learns from 0 trials of 'rates': its parameters are 'wd', those of this search 'weight_decay'; where they "
        "mean the same, rename them: start_from=hpsearch.WarmStart(..., rename={'wd': 'weight_decay'})"
    ) in untaught.notes
    given = WarmStart(url, rename={"wd": "weight_decay"})
    taught = Events()
    best = search_for_70(tmp_path, 6, start_from=given, storage=url, progress=taught)
    assert "learns from 30 trials of 'rates'" in taught.notes
    assert sum(abs(params["weight_decay"] - 70.0) < 20.0 for params in params_of(best)[1:]) >= 4


def study_with(n_trials: int = 1, value: float | None = 1.0, **params: float) -> optuna.Study:
    other = optuna.create_study(study_name="other")
    for _ in range(n_trials):
        distributions = {name: FloatDistribution(0.0, 1000.0) for name in params}
        other.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=value))
    return other


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (study_with(0), "none of its trials has a result"),
        (
            study_with(weight_decay=5.0, dropout=0.5),
            "its parameters are 'weight_decay', 'dropout', those of this search 'weight_decay'",
        ),
        (
            study_with(3, weight_decay=500.0),
            "3 have values such as weight_decay=500.0, which is not in Float(0.0, ",
        ),
    ],
)
def test_why_nothing_is_learned(tmp_path: Path, other: optuna.Study, why: str) -> None:
    events = Events()
    search_for_70(tmp_path, 1, start_from=other, progress=events)
    assert any(note.startswith(f"learns from 0 trials of 'other': {why}") for note in events.notes)


# A storage that holds a study of Optuna.


@pytest.mark.parametrize("kind", ["database", "object"])
def test_a_study_that_optuna_made_is_not_continued_and_how_to_learn_from_it_is_said(tmp_path: Path, kind: str) -> None:
    url = stored(tmp_path, "database", n_trials=3)
    storage = url if kind == "database" else optuna.storages.RDBStorage(url)
    with pytest.raises(StudyError) as caught:
        search_for_70(tmp_path, 4, study_name="rates", storage=storage, objective="distance", direction="maximize")
    assert (
        "The study 'rates' in the storage has 3 trials that Optuna itself has run, so a search cannot continue it. To "
        f"learn from them, pass start_from=hpsearch.WarmStart({url!r}, study_name='rates')"
    ) in str(caught.value)
    assert not (tmp_path / "rates" / "study.json").exists()


def test_a_new_study_beside_one_of_optuna_says_so_once(tmp_path: Path) -> None:
    url = stored(tmp_path, "database", n_trials=3)
    told = []
    for n_trials in (1, 2):
        events = Events()
        search_for_70(tmp_path, n_trials, storage=url, progress=events)
        told.append([note for note in events.notes if "to learn from" in note])
    named = f"start_from=hpsearch.WarmStart({url!r}, study_name='rates')"
    assert told == [[f"a new study beside 'rates'; to learn from that one: {named}"], []]
