"""What a search chooses itself depends on the first call of its study, and stays as long as the study lives."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hpsearch import Int, SearchSpace, StudyError
from hpsearch.ledger.recorded_defaults import DEFAULTS, Defaults
from hpsearch.search.decisions.ladder import LADDER_OF_0_8_0, Ladder, ladder_for
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.store.read_study import read_settings
from hpsearch.search.study import Study
from tests.support.searching import RATE, Events
from tests.support.short_searches import search
from tests.support.small_trainer import small_trainer


class Said(Exception):
    """What a search says before its first trial."""


class Ends(Events):
    """Ends a search before its first trial, with the note that begins like this."""

    def __init__(self, beginning: str) -> None:
        super().__init__()
        self._beginning = beginning

    def on_search_begin(self, study: Any, records: Any, notes: Any) -> None:
        raise Said(next(each for each in notes if each.startswith(self._beginning)))


def study(n_trials: int | None, **limits: Any) -> Study:
    objectives = resolve_objectives("loss", "minimize", has_metrics=True)
    return Study("s", Path("s"), SearchSpace(RATE), objectives, n_trials, **limits)


@pytest.mark.parametrize(
    ("n_trials", "is_limited", "ladder"),
    [
        (4, False, Ladder((1 / 6, 1 / 2), 3, complete_first=1, complete_every=8, probe_first=3)),
        (15, False, Ladder((1 / 6, 1 / 2), 3, complete_first=1, complete_every=8, probe_first=3)),
        (16, False, Ladder((1 / 6, 1 / 2), 2, complete_first=3, complete_every=8)),
        (20, False, Ladder((1 / 6, 1 / 2), 2, complete_first=4, complete_every=8)),
        (39, False, Ladder((1 / 6, 1 / 2), 2, complete_first=4, complete_every=8)),
        (40, False, Ladder((1 / 6, 1 / 2), 3, complete_first=4, complete_every=8)),
        (99, False, Ladder((1 / 6, 1 / 2), 3, complete_first=4, complete_every=8)),
        (100, False, Ladder((1 / 18, 1 / 6, 1 / 2), 3, probe_first=3, complete_every=24)),
        (20, True, Ladder((1 / 18, 1 / 6, 1 / 2), 3, probe_first=3, complete_every=24)),
        (None, True, Ladder((1 / 18, 1 / 6, 1 / 2), 3, probe_first=3, complete_every=24)),
    ],
)
def test_the_fewer_trials_there_are_the_later_they_pause(
    n_trials: int | None, is_limited: bool, ladder: Ladder
) -> None:
    assert ladder_for(n_trials or 20, is_limited) == ladder
    limits = {"timeout": 60.0} if is_limited else {}
    assert Defaults.of(study(n_trials, **limits), None).ladder == ladder


@pytest.mark.parametrize(
    ("n_trials", "budget", "is_cheap"),
    [
        *((None, 3, True), (None, 11, True), (None, 12, False)),
        *((20, 20, False), (20, 5, True), (15, 20, True), (20, 10, True), (22, 11, True), (24, 12, False)),
    ],
)
def test_a_small_budget_pays_for_more_trials_by_a_cheaper_ladder(
    n_trials: int | None, budget: float, is_cheap: bool
) -> None:
    ladder = Defaults.of(study(n_trials, budget=budget), None).ladder
    assert ladder.reduction_factor == (3 if is_cheap else 2)
    assert ladder.probe_first == (3 if is_cheap else 0)
    repeated = Defaults.of(study(n_trials, budget=budget, repeats=2), None).ladder
    assert repeated.reduction_factor == 2, "results are needed, to repeat the best of them"


@pytest.mark.parametrize(
    ("epochs", "fractions"),
    [
        (None, (1 / 18, 1 / 6, 1 / 2)),
        (1, (1 / 18, 1 / 6, 1 / 2)),
        (2, (1 / 2,)),
        (3, (1 / 3, 1 / 2)),
        (10, (1 / 10, 1 / 6, 1 / 2)),
        (18, (1 / 18, 1 / 6, 1 / 2)),
    ],
)
def test_no_rung_is_below_one_epoch_and_trainings_of_few_epochs_pause_late(
    epochs: float | None, fractions: tuple[float, ...]
) -> None:
    ladder = Defaults.of(study(500, timeout=60.0), None, epochs=epochs).ladder
    assert ladder.fractions == fractions
    assert ladder.reduction_factor == (2 if epochs in (2, 3) else 3)


@pytest.mark.parametrize(
    ("arguments", "searched", "pauses"),
    [
        ({"num_train_epochs": 2}, (), "after 50% of their training"),
        ({"num_train_epochs": 2}, ("num_train_epochs",), "after 1/18, 1/6 and 1/2"),
        ({"max_steps": 20}, (), "after 10%, 20% and 50%"),
    ],
)
def test_evaluations_within_the_first_of_few_epochs_are_no_rungs(
    tmp_path: Path, arguments: dict[str, Any], searched: tuple[str, ...], pauses: str
) -> None:
    space = {**RATE, **{name: Int(1, 3) for name in searched}}
    every = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, **arguments}
    ends = Ends("trials pause")
    with pytest.raises(Said, match=f"trials pause .*{re.escape(pauses)}"):
        search(tmp_path, 100, pruner="rungs", preflight=False, progress=ends, space=space, trainer=every)


@pytest.mark.parametrize(
    ("n_trials", "pruner", "sampler"),
    [(9, None, "CurveSampler"), (5000, "none", "CurveSampler"), (9, "median", "TPESampler")],
)
def test_where_every_trial_runs_to_completion_the_model_of_curves_chooses(
    tmp_path: Path, n_trials: int, pruner: Any, sampler: str
) -> None:
    with pytest.raises(Said, match=f"^sampler {sampler}$"):
        search(tmp_path, n_trials, pruner=pruner, preflight=False, progress=Ends("sampler"))


def test_a_search_without_evaluations_during_training_asks_the_model_of_curves(tmp_path: Path) -> None:
    events = Events()
    search(tmp_path, 4, pruner="rungs", preflight=False, progress=events, trainer={"eval_strategy": "no"})
    assert "sampler CurveSampler" in events.notes


@pytest.mark.parametrize(
    ("limits", "is_said"),
    [
        ({"timeout": 60.0}, True),
        ({"timeout": 60.0, "n_trials": 20}, False),
        ({"timeout": 60.0, "max_epochs": 9}, False),
        ({}, False),
        ({"max_epochs": 9}, False),
        ({"timeout": 60.0, "sampler": "random"}, False),
    ],
)
def test_measured_seconds_are_the_cost_only_where_timeout_alone_limits_the_search_and_it_says_so(
    tmp_path: Path, limits: dict[str, Any], is_said: bool
) -> None:
    class Ends(Events):
        def on_search_begin(self, study: Any, records: Any, notes: Any) -> None:
            assert study.n_trials == limits.get("n_trials", None if limits else 20)
            raise Said([each for each in notes if "measured seconds" in each])

    with pytest.raises(Said) as caught:
        small_trainer(tmp_path).hyperparameter_search(
            RATE, "loss", preflight=False, storage="journal", progress=Ends(), **limits
        )
    [notes] = caught.value.args
    assert [("cannot be repeated" in each) for each in notes] == [True] * is_said


def test_a_study_that_goes_on_keeps_what_it_was_begun_with() -> None:
    begun = Defaults.of(study(20), None)
    stored = json.loads(json.dumps({DEFAULTS: begun.to_json()}))
    assert Defaults.of(study(500, timeout=60.0), stored) == begun
    assert begun.first(study(500)) == begun.at_random


def test_a_study_of_0_8_0_keeps_what_all_of_them_had() -> None:
    old = Defaults.of(study(20), {"sampler": "CurveSampler"})
    assert old.ladder == LADDER_OF_0_8_0
    assert [old.first(study(n_trials)) for n_trials in (10, 50, 1000)] == [8, 16, 24]


@pytest.mark.slow
def test_a_try_out_of_three_trials_fixes_nothing_for_the_search_that_follows(tmp_path: Path) -> None:
    search(tmp_path, 1)
    assert json.loads((tmp_path / "study" / "study.json").read_text())[DEFAULTS] is None
    told(tmp_path, 12)
    recorded = json.loads((tmp_path / "study" / "study.json").read_text())[DEFAULTS]
    assert recorded == Defaults.of(study(12), None, epochs=6).to_json()


def test_a_study_whose_settings_are_lost_says_that_it_chooses_anew(tmp_path: Path) -> None:
    told(tmp_path, 4)
    (tmp_path / "study" / "study.json").unlink()
    assert any(each.startswith("DAMAGED: study.json is lost, so the defaults") for each in told(tmp_path, 5))


def test_a_ladder_that_has_no_use_is_said_to_be_left_aside(tmp_path: Path) -> None:
    said = told(tmp_path, 3, pruner=Ladder((0.5,)))
    assert "pruner none: every trial runs to completion, as there are fewer than 4; the Ladder is left aside" in said


@pytest.mark.parametrize(
    ("ladder", "said"),
    [
        (
            Ladder((1 / 6, 0.9), 3, 2, 3),
            "the best third is promoted; whatever they report, the first 2 and every 3rd run to completion",
        ),
        (
            Ladder((1 / 18, 1 / 2), 3, probe_first=3, complete_every=24),
            "; whatever they report, the first 3 run to 1/2 and every 24th to completion",
        ),
        (Ladder((1 / 2,), 3, probe_first=3), "and the best third is promoted"),  # there is no earlier rung
        (Ladder((1 / 2,), 3, complete_every=8), "is promoted; whatever they report, every 8th runs to completion"),
        (Ladder((1 / 2,), 3, complete_first=1), "is promoted; whatever they report, the first one runs to completion"),
        (Ladder((0.25,), 5), "1/4 of their training, and the best of 5 is promoted"),
    ],
)
def test_a_ladder_is_described(ladder: Ladder, said: str) -> None:
    assert said in ladder.describe(None)


def test_probes_run_to_completion_where_no_evaluation_is_at_the_last_rung() -> None:
    ladder = Ladder((1 / 6, 1 / 2, 0.95), 3, probe_first=3)
    tenths = [each / 10 for each in range(1, 11)]
    assert ladder.describe(tenths).endswith("; whatever they report, the first 3 run to completion")
    assert ladder.describe([*tenths[:-1], 0.96, 1.0]).endswith("; whatever they report, the first 3 run to 96%")


def told(folder: Path, n_trials: int, **options: Any) -> list[str]:
    """Search with rungs, and return what is said before the first trial."""
    events = Events()
    changes = {"num_train_epochs": 6}
    search(folder, n_trials, **{"pruner": "rungs", **options}, preflight=False, progress=events, trainer=changes)
    return events.notes


def test_a_search_records_its_ladder_and_a_later_call_and_another_version_keep_it(tmp_path: Path) -> None:
    by_third = "trials pause after 17% and 50% of their training, and the best third is promoted"
    few = f"{by_third}; whatever they report, the first 3 run to 50% and the first one and every 8th to completion"
    limited = f"{by_third}; whatever they report, the first 3 run to 50% and every 24th to completion"
    assert any(each.startswith(few) for each in told(tmp_path, 4))
    assert any(each.startswith(few) for each in told(tmp_path, 5, max_epochs=1000))
    assert any(each.startswith(limited) for each in told(tmp_path, 5, max_epochs=1000, study_name="another"))
    file = tmp_path / "study" / "study.json"
    settings = json.loads(file.read_text())
    assert settings.pop(DEFAULTS) == Defaults.of(study(4), None, epochs=6).to_json()
    file.write_text(json.dumps(settings))  # as 0.8.0 has written it
    assert any(each.startswith(by_third) for each in told(tmp_path, 6))


def test_a_ladder_of_the_user_takes_the_place_of_the_default_also_of_one_that_was_recorded(tmp_path: Path) -> None:
    told(tmp_path, 4)
    said = told(tmp_path, 5, pruner=Ladder([1 / 3], 4))
    assert any(
        each.startswith("trials pause after 33% of their training, and the best quarter is promoted") for each in said
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fractions": (0.5, 0.5)}, "must ascend"),
        ({"fractions": ("half",)}, "must ascend"),
        ({"fractions": 0.5}, "must ascend"),
        ({"fractions": (0.5,), "reduction_factor": 1.5}, "whole number of at least 2"),
        ({"fractions": (0.5,), "complete_every": -8}, "whole number of at least 0"),
        ({"fractions": (0.5,), "probe_first": -1}, "probe_first of a Ladder must be a whole number of at least 0"),
    ],
)
def test_what_is_no_ladder_is_refused(given: Any, said: str) -> None:
    with pytest.raises(StudyError, match=said):
        Ladder(**given)


@pytest.mark.parametrize(
    ("ladder", "said"),
    [
        ({"fractions": [0.5, 0.1]}, r"must ascend, between 0 and 1, but are \(0.5, 0.1\)"),
        ({"fractions": []}, "must ascend"),
        ({"fractions": [1.5]}, "must ascend"),
        ({"fractions": ["half"]}, "number"),
        ({"reduction_factor": 1}, "reduction_factor of a Ladder must be .* at least 2, but got 1"),
        ({"complete_first": -1}, "at least 0, but is -1"),
        ({"probe_first": -1}, "at least 0, but is -1"),
        ({"reduction_factor": None}, "must be a number, but is None"),
    ],
)
def test_a_damaged_ladder_is_an_error_that_says_what_is_wrong(tmp_path: Path, ladder: Any, said: str) -> None:
    search(tmp_path, 4)
    file = tmp_path / "study" / "study.json"
    settings = json.loads(file.read_text())
    settings[DEFAULTS]["ladder"] |= ladder
    file.write_text(json.dumps(settings))
    with pytest.raises(StudyError, match=f"is damaged.*ladder.*{said}"):
        read_settings(tmp_path / "study")
