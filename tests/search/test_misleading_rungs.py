"""Trials that run on whatever they report show which rungs mislead, and from those all go on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from hpsearch import Float, Ladder, SearchInterrupted, TrialRecord, open_study, tune
from hpsearch.cli import main
from hpsearch.ledger.curve_sampler import CurveSampler
from hpsearch.ledger.rated_rungs import RatedRungs
from hpsearch.reports.page import write_report
from hpsearch.search.decisions.agreement import Agreement, describe
from hpsearch.search.decisions.promotion_at_rungs import Rungs
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.result.rung_agreements import agreement_sentences
from hpsearch.search.space.search_space import SearchSpace
from hpsearch.search.store.stored_study import StoredStudy
from hpsearch.search.study import Study
from hpsearch.search.trial import Verdict
from hpsearch.search.trial_record import Replica, TrialState
from tests.support.at_rungs import EPOCHS, GO_ON, PAUSE, RATE, rungs, running, trial
from tests.support.html_pages import parse_html, text_of
from tests.support.searching import HearsNotices
from tests.support.small_trainer import TwoLayers, small_trainer

HEDGED = Ladder((1 / 18, 1 / 6, 1 / 2), 3, complete_first=3, complete_every=8)


def hedged() -> Rungs:
    return rungs(n_trials=60, ladder=HEDGED)


def misleading(known: Sequence[TrialRecord], ladder: Ladder = HEDGED) -> dict[float, Agreement]:
    found = rungs(n_trials=60, ladder=ladder).agreements(known)
    return {fraction: each for fraction, each in found.items() if each.misleads}


def of_pairs(agreeing: int, pairs: int, trials: int, fraction: float) -> Agreement:
    return Agreement(agreeing, pairs, trials, (fraction, fraction))


def ended(*losses: Sequence[float]) -> list[TrialRecord]:
    """Return trials that have trained to their end, with losses after epochs 1, 3, 9 and 18."""
    return [trial(number, *each, state=TrialState.COMPLETE) for number, each in enumerate(losses)]


def test_trials_in_full_are_not_judged_and_others_are_not_compared_with_them() -> None:
    better = [running(number, 0.1) for number in range(3)]
    assert hedged().verdict(running(2, 0.9), better[:2]) == GO_ON
    assert hedged().verdict(running(8, 0.9), better) == GO_ON
    assert hedged().verdict(running(3, 0.9), better) == PAUSE
    waiting = [trial(4, 0.9), trial(5, 0.95)]
    assert hedged().verdict(running(3, 0.8), [*better, *waiting]) == GO_ON
    assert hedged().next([*better, *waiting, trial(3, 0.8)]) is not None


PROBED = Ladder((1 / 18, 1 / 6, 1 / 2), 3, probe_first=3, complete_every=8)


@pytest.mark.parametrize(
    ("number", "losses", "verdict"),
    [(2, (0.9,), GO_ON), (2, (0.9, 0.9), GO_ON), (2, (0.9, 0.9, 0.9), PAUSE), (3, (0.9,), PAUSE), (8, (0.9,), GO_ON)],
)
def test_the_first_probes_run_to_the_last_rung_whatever_they_report(
    number: int, losses: tuple[float, ...], verdict: Verdict
) -> None:
    better = [running(each, *[0.1] * len(losses)) for each in range(2)]
    assert rungs(n_trials=60, ladder=PROBED).verdict(running(number, *losses), better) == verdict


def test_a_probe_that_has_diverged_pauses_at_the_first_rung_where_it_is_ranked() -> None:
    assert rungs(n_trials=60, ladder=PROBED).verdict(running(0, math.nan), []) == PAUSE
    others = [running(7, 0.3, 0.3), trial(3, 0.7), trial(4, 0.8), trial(6, 0.65)]
    # With the diverged one there are six at the rung, of which two are promoted.
    for first, expected in ((running(0, math.nan), GO_ON), (running(0), PAUSE)):
        assert rungs(n_trials=60, ladder=PROBED).verdict(running(5, 0.6), [first, *others]) == expected


def test_probes_are_compared_with_others_at_the_last_rung_only() -> None:
    at_rungs = rungs(n_trials=60, ladder=PROBED)
    better, worse = ([trial(number, *[loss] * 3) for number in range(3)] for loss in (0.1, 0.9))
    paused = [trial(number, 0.6) for number in (3, 4)]
    for known in (better, worse):
        assert at_rungs.verdict(running(5, 0.5), [*known, *paused]) == GO_ON
        assert at_rungs.verdict(running(5, 0.7), [*known, *paused]) == PAUSE
    assert at_rungs.verdict(running(5, 0.5, 0.5, 0.5), worse) == GO_ON
    assert at_rungs.verdict(running(5, 0.5, 0.5, 0.5), better) == PAUSE
    assert at_rungs.next(better) is better[0]


def test_a_probe_that_paused_before_the_last_rung_is_ranked_where_it_is() -> None:
    others = [trial(number, 0.5 + number / 100) for number in range(3, 12)]
    for loss, best in ((0.1, 0), (0.9, 3)):
        at_rungs, known = rungs(n_trials=None, budget=10, ladder=PROBED), [trial(0, loss), *others]
        following, last = at_rungs.next(known), at_rungs.last(known)
        assert following is not None
        assert last is not None
        assert (following.number, last.number) == (best, best)
    at_rungs = rungs(n_trials=12, ladder=PROBED)
    known = [trial(number, 0.9 if number == 0 else 0.5 + number / 100) for number in range(12)]
    assert 0 in [each.number for each in at_rungs.unpromotable(known)]


def probes(*losses: Sequence[float], state: TrialState = TrialState.PAUSED) -> list[TrialRecord]:
    """Return probes that have come to the last rung, with losses after epochs 1, 3 and 9."""
    return [trial(number, *each, state=state) for number, each in enumerate(losses)]


CROSSING = ((0.1, 0.1, 0.4), (0.2, 0.2, 0.3), (0.3, 0.3, 0.2))


@pytest.mark.parametrize("state", [TrialState.PAUSED, TrialState.PRUNED, TrialState.RUNNING, TrialState.STOPPED])
def test_probes_at_the_last_rung_show_that_earlier_rungs_mislead(state: TrialState) -> None:
    known = probes(*CROSSING, state=state)
    found = {fraction: each[:3] for fraction, each in misleading(known, PROBED).items()}
    assert found == dict.fromkeys(PROBED.fractions[:2], (0, 3, 3))
    assert rungs(n_trials=60, ladder=PROBED).verdict(running(9, 0.9), known) == GO_ON
    assert misleading(probes(*CROSSING, state=TrialState.FAILED), PROBED) == {}
    not_there = [*known[:2], trial(2, 0.3, 0.3, state=state)]
    assert misleading(not_there, PROBED) == {}


def test_trials_promoted_for_their_early_reports_show_nothing_at_the_last_rung() -> None:
    promoted = [trial(9 + number, *losses) for number, losses in enumerate(CROSSING)]
    assert misleading([trial(0, 0.5, state=TrialState.FAILED), *promoted], PROBED) == {}


def test_two_complete_trials_are_compared_by_their_results_and_a_probe_by_its_value_at_the_last_rung() -> None:
    complete = ended((0.1, 0.1, 0.4, 0.1), (0.2, 0.2, 0.3, 0.2))  # they have crossed twice
    known = [*complete, trial(2, 0.3, 0.3, 0.2)]
    found = rungs(n_trials=60, ladder=PROBED).agreements(known)
    counts = {fraction: each[:3] for fraction, each in found.items()}
    assert counts == {1 / 18: (1, 3, 3), 1 / 6: (1, 3, 3), 1 / 2: (0, 0, 0)}


def test_of_a_study_that_learns_from_another_one_the_first_trials_are_in_full_too() -> None:
    begun = [running(number, 0.1) for number in (30, 31)]
    assert hedged().verdict(running(32, 0.9), begun) == GO_ON
    assert hedged().verdict(running(33, 0.9), begun) == PAUSE


AGREEING = ended((0.1, 0.1, 0.1, 0.1), (0.2, 0.2, 0.2, 0.2), (0.3, 0.3, 0.3, 0.3), (0.4, 0.4, 0.4, 0.4))
MISLEADING = ended((0.1, 0.1, 0.1, 0.4), (0.2, 0.2, 0.2, 0.3), (0.3, 0.3, 0.3, 0.2), (0.4, 0.4, 0.4, 0.1))
LATE = ended((0.1, 0.1, 0.4, 0.4), (0.2, 0.2, 0.3, 0.3), (0.3, 0.3, 0.2, 0.2), (0.4, 0.4, 0.1, 0.1))


@pytest.mark.parametrize(
    ("known", "losses", "verdict"),
    [
        (AGREEING, (0.9,), PAUSE),
        (MISLEADING, (0.9,), GO_ON),
        (MISLEADING, (0.9, 0.9), GO_ON),
        (LATE, (0.9, 0.9), GO_ON),
        (LATE, (0.9, 0.9, 0.9), PAUSE),
    ],
)
def test_from_a_rung_whose_order_is_not_that_of_the_end_all_trials_go_on(
    known: list[TrialRecord], losses: tuple[float, ...], verdict: Verdict
) -> None:
    assert hedged().verdict(running(9, *losses), known) == verdict
    waiting = trial(9, *losses)
    assert hedged().next([*known, waiting]) is (waiting if verdict == GO_ON else None)
    assert rungs().verdict(running(9, *losses), known) == PAUSE  # without trials in full it is not asked


def test_of_those_that_wait_at_a_rung_that_misleads_the_best_goes_on_first_and_none_is_hopeless() -> None:
    waiting = [trial(number, 0.5 + number / 100) for number in range(5, 8)]
    assert hedged().next([*MISLEADING, *waiting]) is waiting[0]
    assert hedged().next([*MISLEADING, *waiting], lambda each, known: [one.number for one in each]) is waiting[2]
    many = [trial(number, 0.5 + number / 100) for number in range(5, 60) if number % 8]
    assert hedged().unpromotable([*AGREEING, *many])
    assert hedged().unpromotable([*MISLEADING, *many]) == []


def test_a_trial_that_has_diverged_waits_also_at_a_rung_that_misleads() -> None:
    assert hedged().verdict(running(9, math.nan), MISLEADING) == PAUSE
    assert hedged().next([*MISLEADING, trial(9, math.inf)]) is None
    assert hedged().verdict(running(0, math.nan), []) == PAUSE  # it would be trained in full


def test_trials_that_a_callback_has_ended_early_are_compared_by_what_they_ended_with() -> None:
    early = [trial(0, 0.1, 0.1, 0.1, state=TrialState.COMPLETE), trial(1, 0.2, 0.2, 0.2, state=TrialState.COMPLETE)]
    late = [trial(number, *[number / 10] * 4, state=TrialState.COMPLETE) for number in (3, 4)]
    assert misleading([*early, *late]) == {}


def test_how_well_orders_agree_is_said_for_the_rungs_that_mislead() -> None:
    assert misleading(AGREEING) == {}
    assert misleading(MISLEADING) == {each: of_pairs(0, 6, 4, each) for each in HEDGED.fractions}
    assert list(misleading(LATE)) == [1 / 18, 1 / 6]
    assert rungs().agreements(MISLEADING) == {}
    diverged = ended((math.inf, 0.5, 0.5, 0.5), (math.inf, 0.4, 0.4, 0.4))
    assert misleading(diverged) == {}


def test_at_a_rung_that_misleads_those_that_have_diverged_are_hopeless_as_elsewhere() -> None:
    paused = [trial(number, 0.5 + number / 100) for number in range(5, 60) if number % 8]
    diverged = [trial(number, math.inf) for number in (60, 61)]
    assert hedged().unpromotable([*MISLEADING, *paused, *diverged]) == diverged


@pytest.mark.parametrize(
    ("agreeing", "pairs", "trials", "share", "deviation"),
    [(0, 0, 0, 0.667, 0.178), (3, 6, 4, 0.598, 0.147), (95, 190, 20, 0.523, 0.074), (190, 190, 20, 0.955, 0.031)],
)
def test_the_agreement_is_as_uncertain_as_its_trials_are_few(
    agreeing: int, pairs: int, trials: int, share: float, deviation: float
) -> None:
    found = Agreement(agreeing, pairs, trials)
    assert (found.share, found.deviation) == (pytest.approx(share, abs=6e-4), pytest.approx(deviation, abs=6e-4))
    assert found.misleads == (share < 0.6)


@pytest.mark.parametrize(
    ("known", "ladder", "fraction"),
    [
        ([], HEDGED, 0.0),
        (AGREEING, HEDGED, 0.0),
        (LATE, HEDGED, 1 / 2),
        (MISLEADING, HEDGED, 1.0),
        (probes(*CROSSING), PROBED, 1 / 2),
        (MISLEADING, Ladder((1 / 18, 1 / 6, 1 / 2), 3), 0.0),
    ],
)
def test_reports_are_reliable_from_the_rung_after_the_last_that_misleads(
    known: list[TrialRecord], ladder: Ladder, fraction: float
) -> None:
    assert rungs(n_trials=60, ladder=ladder).reliable_from(known) == fraction


def test_where_rungs_mislead_the_model_is_asked_after_eight_trials(tmp_path: Path) -> None:
    objectives = resolve_objectives("loss", "minimize", has_metrics=True)
    study = Study("s", tmp_path, SearchSpace(RATE), objectives, 60)
    engine = optuna.create_study(sampler=CurveSampler(0, study.objective, first=20))
    for rate in (0.001, 0.002, 0.004, 0.008, 0.01, 0.02, 0.04, 0.08):
        had = {"learning_rate": optuna.distributions.FloatDistribution(1e-4, 1.0, log=True)}
        params = {"learning_rate": rate}
        engine.add_trial(optuna.trial.create_trial(params=params, distributions=had, value=0.0))
    at_rungs = RatedRungs(study, engine, HEDGED)
    others = [trial(number, 0.5) for number in range(4, 8)]
    assert at_rungs.rating([*AGREEING, *others]) is None
    assert at_rungs.rating([*LATE, *others[:3]]) is None
    assert at_rungs.rating([*LATE, *others]) is not None


def test_a_rung_that_misleads_no_longer_is_announced_once(tmp_path: Path) -> None:
    notices: list[str] = []
    objectives = resolve_objectives("loss", "minimize", has_metrics=True)
    study = Study("s", tmp_path, SearchSpace(RATE), objectives, 60)
    at_rungs = RatedRungs(study, optuna.create_study(), HEDGED)
    for known in (AGREEING, LATE, LATE, AGREEING, AGREEING):
        notices += at_rungs.changes_of_agreement(known)
    assert notices == [
        describe(of_pairs(agreeing, 6, 4, fraction)) for agreeing in (0, 6) for fraction in HEDGED.fractions[:2]
    ]
    assert [each.partition("): ")[2] for each in notices[2:]] == ["trials are paused there"] * 2


def stored(tmp_path: Path, **changes: Any) -> StoredStudy:
    objectives = resolve_objectives("loss", "minimize", has_metrics=True)
    defaults = {"ladder": HEDGED.to_json(), "at_random": 8, "models_in_full": True}
    settings = {"scope": "last", "trials_wait": True, "defaults": defaults, **changes}
    return StoredStudy(tmp_path, settings, objectives, ())


def test_of_a_stored_study_each_rung_is_described_that_three_complete_trials_were_at(tmp_path: Path) -> None:
    first, second, third = HEDGED.fractions
    late = [trial(number, *[number / 10] * 2, state=TrialState.COMPLETE) for number in range(3)]
    for known, expected in (
        (AGREEING, {first: (6, 6, 4), second: (6, 6, 4), third: (6, 6, 4)}),
        (LATE, {first: (0, 6, 4), second: (0, 6, 4), third: (6, 6, 4)}),
        (late, {first: (3, 3, 3), second: (3, 3, 3)}),
        (AGREEING[:2], {}),
        ([trial(number, 0.1, 0.2) for number in range(9)], {}),
    ):
        said = [describe(of_pairs(*found, fraction)) for fraction, found in expected.items()]
        assert agreement_sentences(stored(tmp_path), known) == [f"A{each[1:]}." for each in said]


def test_a_further_run_of_a_trial_is_no_pair_of_its_own(tmp_path: Path) -> None:
    again = [replace(each, number=each.number + 4, origin=Replica(each.number, 1).origin) for each in MISLEADING]
    assert agreement_sentences(stored(tmp_path), [*AGREEING, *again]) == agreement_sentences(stored(tmp_path), AGREEING)


@pytest.mark.parametrize(
    ("epochs", "named"),
    [([(4, 10, 18)] * 3, ["22%", "56%"]), ([(4, 10, 18), (5, 10, 18), (4, 10, 18)], ["22% to 28%", "56%"])],
)
def test_a_rung_is_named_by_where_trials_are_evaluated_as_in_the_first_lines(
    tmp_path: Path, epochs: list[tuple[float, ...]], named: list[str]
) -> None:
    known = [
        trial(number, *[number / 10] * 3, state=TrialState.COMPLETE, epochs=each) for number, each in enumerate(epochs)
    ]
    said = agreement_sentences(stored(tmp_path), known)
    assert [each.partition(" of the training ")[0] for each in said] == [f"After {each}" for each in named]
    first_line = HEDGED.describe([each / 18 for each in epochs[0]])
    assert first_line.startswith("trials pause after 22% and 56% of their training, ")


def test_without_trials_that_run_to_completion_no_sentence_says_that_a_rung_heeds_its_agreement(tmp_path: Path) -> None:
    study = stored(tmp_path, defaults=None)  # of 0.8.0
    said = agreement_sentences(study, MISLEADING)
    assert said[0] == (
        "After 6% of the training 0 of 6 pairs of trials are in their later order (estimated agreement 0.39 ± 0.15)."
    )
    assert len(said) == 3


@pytest.mark.parametrize("changes", [{"trials_wait": False}, {"trials_wait": None}])
def test_of_a_study_without_rungs_no_agreement_is_described(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert agreement_sentences(stored(tmp_path, **changes), AGREEING) == []


def test_of_settings_that_are_not_from_a_folder_no_agreement_is_described() -> None:
    objectives = resolve_objectives("loss", "minimize", has_metrics=True)
    assert agreement_sentences(Study("s", Path("s"), SearchSpace(RATE), objectives, 60), AGREEING) == []


@pytest.fixture(scope="module")
def misled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of a study whose early losses are in the reverse order of the last ones, and its search's notices."""
    folder, events = tmp_path_factory.mktemp("misled"), HearsNotices()

    def overfits(metrics: dict[str, float]) -> float:
        early = overfits.rate  # type: ignore[attr-defined]
        return early if metrics["epoch"] < EPOCHS else -early

    def model_init(trial: Any) -> Any:
        overfits.rate = trial.params["learning_rate"]  # type: ignore[attr-defined]
        return TwoLayers(2)

    ladder = Ladder((1 / 6, 1 / 2), 2, complete_first=2, complete_every=8)
    small_trainer(folder, num_train_epochs=EPOCHS, model_init=model_init).hyperparameter_search(
        RATE, overfits, 12, "minimize", pruner=ladder, preflight=False, progress=events, storage="journal"
    )
    return folder / "study", events.notices


def misled_search(folder: Path, is_stopped: Callable[[], bool] = lambda: False, **options: Any) -> Any:
    """Search a function of which small values are best at the end, and worst before the middle."""

    def train(trial: Any) -> None:
        x, begun = trial.params["x"], 0
        if trial.checkpoint is not None:
            begun = int((trial.checkpoint / "step").read_text())
        for step in range(begun + 1, 13):
            if is_stopped():
                raise KeyboardInterrupt
            trial.report(x if step >= 6 else 1 - x, step=step)
            with trial.save() as place:
                (place / "step").write_text(str(step))
            if trial.should_prune():
                return

    space, options = {"x": Float(0.0, 1.0)}, {"n_trials": 14, **options}
    return tune(train, space, direction="minimize", max_resource=12, output_dir=folder, **options)


def choices(folder: Path, steps: int) -> list[tuple[dict[str, Any], int]]:
    """Return parameters and number of reports of the trials of a search that is repeated, each time for some steps."""
    while True:
        counted = itertools.count(1)
        try:
            found = misled_search(folder, lambda counted=counted: next(counted) == steps)
        except SearchInterrupted:
            continue
        return [(each.params, len(each.reports)) for each in found.run_summary.records]


@pytest.mark.slow
def test_where_rungs_mislead_a_search_that_is_stopped_again_and_again_makes_the_same_choices(tmp_path: Path) -> None:
    whole = choices(tmp_path / "whole", 9999)
    later = [params["x"] for params, _ in whole[8:]]
    assert sorted(later)[len(later) // 2] < 0.2  # the model was asked, and is not misled
    assert choices(tmp_path / "stopped", 47) == whole


def test_a_sampler_that_another_search_uses_again_forgets_the_rungs_of_the_first(tmp_path: Path) -> None:
    sampler = misled_search(tmp_path / "first", n_trials=4).run_summary.engine_study.sampler
    assert sampler.reliable_from is not None
    misled_search(tmp_path / "second", n_trials=4, sampler=sampler, pruner=None)
    assert sampler.reliable_from is None


def test_a_search_whose_early_losses_mislead_says_so_and_prunes_nothing(misled: tuple[Path, list[str]]) -> None:
    folder, notices = misled
    said = [each for each in notices if "pairs of trials are in their later order" in each]
    assert said == [
        f"after {share} of the training 0 of 3 pairs of trials are in their later order (estimated "
        "agreement 0.47 ± 0.16, at least 0.6 is needed): until that changes, no trial is paused or pruned there"
        for share in ("17%", "50%")
    ]
    records = open_study(folder).records
    assert {each.state for each in records} == {TrialState.COMPLETE}
    assert len(records) == 12


def test_the_report_and_show_say_of_all_trials_what_the_search_said_of_those_so_far(
    misled: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = misled
    sentences = [
        f"After {share} of the training 0 of 66 pairs of trials are in their later order (estimated "
        "agreement 0.15 ± 0.07, at least 0.6 is needed): until that changes, no trial is paused or pruned there."
        for share in ("17%", "50%")
    ]
    assert main(["show", str(folder)]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("After")] == sentences
    pytest.importorskip("plotly")
    write_report(open_study(folder), folder / "report.html")
    page = text_of(parse_html((folder / "report.html").read_text(encoding="utf-8")).find(".//main"))
    assert " ".join(sentences) in " ".join(page.split())
