"""Searches whose trials are repeated with other seeds: their runs, folders, weights, limits, and how they continue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer as TransformersTrainer
from transformers import TrainingArguments

from hpsearch import (
    BestRun,
    Float,
    Int,
    SearchInterrupted,
    SpaceError,
    StudyError,
    TrialRecord,
    TrialState,
    open_study,
    tune,
)
from tests.support.searching import AtStep, HearsNotices, interrupt, same_but_time, states
from tests.support.small_trainer import TwoLayers, points, small_trainer

SPACE = {"learning_rate": Float(1e-3, 1.0, log=True)}


def search(folder: Path, *callbacks: Any, trainer: dict[str, Any] | None = None, **options: Any) -> BestRun:
    given: dict[str, Any] = {"n_trials": 4, "repeats": 3, "pruner": None, "progress": False, **options}
    found = small_trainer(folder, *callbacks, **(trainer or {})).hyperparameter_search(
        given.pop("space", SPACE), **given
    )
    assert isinstance(found, BestRun)
    return found


def replicas(best: BestRun) -> list[TrialRecord]:
    return [each for each in best.run_summary.records if each.replica is not None]


def test_the_best_trials_are_trained_with_further_seeds_and_the_best_has_the_mean(tmp_path: Path) -> None:
    best = search(tmp_path, trainer={"seed": 7, "data_seed": 70})
    records = best.run_summary.records
    assert states(best) == ["complete"] * len(records)
    assert sum(each.is_counted for each in records) == 4
    assert len({each.replica for each in replicas(best)}) == len(replicas(best)) >= 3
    for each in replicas(best):
        base = records[each.replica.trial]
        assert (each.seed, base.seed, each.params) == (7 + each.replica.offset, 7, base.params)
        assert each.reports != base.reports
        assert (tmp_path / "study" / each.name / "trial.json").is_file()
    runs = [
        each for each in records if str(each.number) == best.run_id or str((each.replica or [None])[0]) == best.run_id
    ]
    assert best.values == {each.seed: each.value for each in runs}
    assert list(best.values or {}) == [7, 8, 9][: len(runs)]
    assert len(runs) > 1
    assert best.objective == pytest.approx(sum((best.values or {}).values()) / len(runs))
    assert best.objective_std == pytest.approx(
        torch.tensor(list((best.values or {}).values()), dtype=torch.double).std()
    )
    assert best.chance_of_best is not None
    assert 0 < best.chance_of_best <= 1
    table = best.run_summary.trials_dataframe()
    assert table["runs"][int(best.run_id)] == len(runs)
    assert table[best.run_summary.objective.name][int(best.run_id)] == best.objective
    table = best.run_summary.trials_dataframe(runs=True)
    assert list(table["repeats"].dropna()) == [each.replica.trial for each in replicas(best)]


def test_the_model_is_that_of_the_run_nearest_to_the_mean_or_of_the_seed_that_is_asked_for(tmp_path: Path) -> None:
    best = search(tmp_path)
    values = best.values or {}
    nearest = min(values, key=lambda seed: abs(values[seed] - best.objective))  # type: ignore[operator]
    models = {seed: best.load_model(seed=seed).output.weight.tolist() for seed in values}
    assert best.load_model().output.weight.tolist() == models[nearest]
    assert len({str(each) for each in models.values()}) == 3
    with pytest.raises(StudyError, match="was not trained with seed 5; its runs have 42, 43, 44"):
        best.load_model(seed=5)
    kept = {path.parent.name for path in (tmp_path / "study").glob("*/checkpoint-*")}
    of_best = [each.name for each in best.run_summary.records if each.seed in values and each.checkpoint is not None]
    assert kept == set(of_best)
    assert len(kept) == 3


def test_a_search_that_is_interrupted_in_a_replica_continues_as_one_that_was_not(tmp_path: Path) -> None:
    whole = search(tmp_path / "whole")
    at = next(place for place, each in enumerate(whole.run_summary.records) if each.replica is not None)
    with pytest.raises(SearchInterrupted):
        search(tmp_path / "cut", AtStep(interrupt, at, 6), trainer={"save_strategy": "epoch"})
    stored = open_study(tmp_path / "cut" / "study")
    assert stored.records[at].state is TrialState.INTERRUPTED
    assert stored.records[at].replica is not None
    assert same_but_time(search(tmp_path / "cut", trainer={"save_strategy": "epoch"})) == same_but_time(whole)
    again = search(tmp_path / "cut", trainer={"save_strategy": "epoch"})
    assert same_but_time(again) == same_but_time(whole)


def test_a_replica_is_replayed_with_its_own_seed(tmp_path: Path) -> None:
    best = search(tmp_path)
    replay = small_trainer(tmp_path).replay(number=replicas(best)[0].number, progress=False)
    assert replay.is_equal, replay.first_difference
    assert replay.record.seed == 43


@pytest.mark.slow
def test_replicas_are_known_where_the_storage_is_lost(tmp_path: Path) -> None:
    before = search(tmp_path)
    (tmp_path / "study" / "study.db").unlink()
    after = search(tmp_path, n_trials=5)
    assert same_but_time(after)[: len(before.run_summary.records)] == same_but_time(before)
    assert sum(each.is_counted for each in after.run_summary.records) == 5


@pytest.mark.parametrize("limit", [{"max_epochs": 9}, {"budget": 4.0, "n_trials": None}])
def test_the_last_line_names_the_limit_that_ended_the_search_before_its_repeats(
    tmp_path: Path, limit: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    best = search(tmp_path, progress=True, **limit)
    assert max((each.replica.offset for each in replicas(best)), default=0) < 2
    out = " ".join(capsys.readouterr().out.split())
    assert "A limit has ended the search before all repeats were done (next would be replica" in out
    assert "exhausted" in out
    more = {"max_epochs": None} if "max_epochs" in limit else {"budget": 12.0, "n_trials": 4}
    assert max(each.replica.offset for each in replicas(search(tmp_path, **{**limit, **more}))) == 2


@pytest.mark.slow
def test_a_study_that_has_ended_is_confirmed_until_the_best_is_clear(tmp_path: Path) -> None:
    once = search(tmp_path, repeats=1)
    assert once.objective_std is once.chance_of_best is None
    assert once.values == {42: once.objective}
    heard = HearsNotices()
    answer = open_study(tmp_path / "study").confirm(repeats=4, top=99)
    assert " (no others may be the best), " in answer
    (tmp_path / "study" / "requests.json").unlink()
    answer = open_study(tmp_path / "study").confirm(repeats=4, top=2)
    assert "no other" not in answer
    assert "are trained with up to 4 seeds each, until the best of them is clear, when the search continues" in answer
    best = search(tmp_path, repeats=1, progress=heard)
    top = [each.number for each in once.run_summary.ranked()[:2]]
    assert {each.replica.trial for each in replicas(best)} == set(top)
    assert 1 <= max(each.replica.offset for each in replicas(best)) <= 3
    assert len(best.values or {}) > 1
    again = search(tmp_path, repeats=1)
    assert same_but_time(again) == same_but_time(best)
    with pytest.raises(StudyError, match=rf"is replica \d of trial {top[0]}, so it cannot be tried again"):
        open_study(tmp_path / "study").retry(
            next(each.number for each in replicas(best) if each.replica.trial == top[0])
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"repeats": 1}, "repeats must be"),
        ({"repeats": True}, "repeats must be"),
        ({"top": 0}, "top must be"),
    ],
)
def test_a_confirmation_that_cannot_be_right_is_refused(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    search(tmp_path, repeats=1, n_trials=1)
    with pytest.raises(StudyError, match=message):
        open_study(tmp_path / "study").confirm(**arguments)
    assert not (tmp_path / "study" / "requests.json").exists()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"repeats": 0}, StudyError, "repeats must be a whole number of at least 1, but got 0"),
        ({"repeats": 2.0}, StudyError, "repeats must be"),
        ({"backend": "ray", "scheduler": "asha"}, StudyError, "a scheduler of Ray Tune judges every trial: leave repe"),
        (
            {"space": {"seed": Int(0, 9)}},
            StudyError,
            "repeats=3 trains trials again with other seeds, but 'seed' is sear",
        ),
        ({"space": lambda trial: {"seed": trial.suggest_int("seed", 0, 9)}}, SpaceError, "but the space has seed="),
    ],
)
def test_repeats_that_cannot_be_are_refused_before_any_trial(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        search(tmp_path, **options)


class WithBuffer(TwoLayers):
    """A model with a random part that its weights do not hold: only its seed builds it again."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turned", torch.randn(2, 2), persistent=False)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return super().forward(x @ self.turned, labels)


def test_the_model_of_each_run_is_built_with_its_seed(tmp_path: Path) -> None:
    best = search(tmp_path, trainer={"model_init": WithBuffer}, test_dataset=points(32, 9), test_defaults=False)
    trainer = small_trainer(tmp_path / "alone", model_init=WithBuffer)
    for seed, value in (best.values or {}).items():
        trainer = small_trainer(tmp_path / "alone", model=best.load_model(seed=seed))
        assert trainer.evaluate()["eval_accuracy"] == pytest.approx(value)
    trainer = small_trainer(tmp_path / "alone", model=best.load_model())
    assert trainer.evaluate(points(32, 9))["eval_loss"] == pytest.approx((best.test_metrics or {})["test_loss"])


@pytest.mark.slow
def test_a_replica_that_was_queued_when_the_search_was_killed_is_not_queued_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = search(tmp_path / "whole")

    def killed(*args: object, **kwargs: object) -> object:
        raise KeyboardInterrupt

    from hpsearch.ledger.ledger import Ledger

    search(tmp_path / "cut", repeats=1)
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "_begin", killed)
        with pytest.raises((SearchInterrupted, KeyboardInterrupt)):
            search(tmp_path / "cut")
    found = search(tmp_path / "cut")
    replicas_found = [each.replica for each in replicas(found)]
    assert len(set(replicas_found)) == len(replicas_found)
    assert best_of(found) == best_of(whole)


@pytest.mark.slow
def test_a_replica_that_was_killed_before_its_first_record_begins_again_and_is_not_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpsearch.coordinator.trials_on_disk import TrialsOnDisk

    search(tmp_path, repeats=1)

    def killed(self: TrialsOnDisk, trial: Any) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TrialsOnDisk, "begin", killed)
        with pytest.raises((SearchInterrupted, KeyboardInterrupt)):
            search(tmp_path)
    best = search(tmp_path)
    found = [each.replica for each in replicas(best)]
    assert len(set(found)) == len(found)
    assert [each.number for each in best.run_summary.records] == list(range(len(best.run_summary.records)))
    assert all(each.state is TrialState.COMPLETE for each in best.run_summary.records)
    assert list(best.values or {}) == [42, 43, 44]


def test_the_largest_seed_is_followed_by_the_smallest(tmp_path: Path) -> None:
    best = search(tmp_path, trainer={"seed": 2**32 - 1})
    assert list(best.values or {}) == [2**32 - 1, 0, 1]


def test_a_confirmation_of_a_function_that_suggests_the_seed_is_refused(tmp_path: Path) -> None:
    def space(trial: Any) -> dict[str, Any]:
        return {"seed": trial.suggest_int("seed", 0, 9)}

    search(tmp_path, space=space, repeats=1)
    with pytest.raises(StudyError, match="cannot be trained again with other seeds: 'seed' is searched"):
        open_study(tmp_path / "study").confirm()


def test_a_plain_function_gets_the_seeds_of_its_replicas(tmp_path: Path) -> None:
    def function(trial: Any) -> float:
        return float(trial.params["x"] + torch.rand(()) / 100 + trial.seed)

    best = tune(
        function,
        {"x": Float(0.0, 1.0)},
        n_trials=4,
        repeats=3,
        direction="maximize",
        output_dir=tmp_path,
        progress=False,
    )
    assert list(best.values or {}) == [42, 43, 44]
    first, second, third = (best.values or {}).values()
    assert second - first == pytest.approx(1, abs=0.02)
    assert third - second == pytest.approx(1, abs=0.02)
    assert len({round(each % 1, 6) for each in (first, second, third)}) == 3


class NotesBatches(TwoLayers):
    """Notes the first batch that it is trained on."""

    def __init__(self, batches: list[list[float]]) -> None:
        super().__init__()
        self.batches: list[list[float]] | None = batches

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        if self.training and self.batches is not None:
            self.batches.append(x[:, 0].tolist())
            self.batches = None
        return super().forward(x, labels)


def test_a_trainer_whose_seed_is_another_one_in_each_trial_cannot_be_repeated(tmp_path: Path) -> None:
    def make_trainer(trial: Any) -> TransformersTrainer:
        rate = trial.params["learning_rate"]
        args = TrainingArguments(str(tmp_path), learning_rate=rate, seed=42 + trial.number, report_to=[])
        return TransformersTrainer(TwoLayers(), args, train_dataset=points(16, 0), eval_dataset=points(16, 1))

    with pytest.raises(StudyError, match=r"make_trainer\(trial\) gives each trial another seed"):
        tune(make_trainer, SPACE, n_trials=3, repeats=2, pruner=None, progress=False, preflight=False)


@pytest.mark.parametrize("own", [{}, {"seed": 5, "data_seed": 9}])
def test_a_trainer_of_transformers_gets_the_seeds_of_its_replicas(tmp_path: Path, own: dict[str, int]) -> None:

    seen: list[tuple[int, int | None]] = []
    batches: list[list[float]] = []

    class Notes(TransformersTrainer):
        def train(self, *args: Any, **kwargs: Any) -> Any:
            seen.append((self.args.seed, self.args.data_seed))
            return super().train(*args, **kwargs)

    def make_trainer(trial: Any) -> TransformersTrainer:
        args = TrainingArguments(
            str(tmp_path), learning_rate=trial.params["learning_rate"], eval_strategy="epoch", report_to=[], **own
        )
        return Notes(NotesBatches(batches), args, train_dataset=points(16, 0), eval_dataset=points(16, 1))

    best = tune(make_trainer, SPACE, n_trials=3, repeats=2, pruner=None, progress=False, preflight=False)
    first, *_, last = batches
    assert first != last
    seed, data_seed = own.get("seed", 42), own.get("data_seed")
    assert [each.seed for each in best.run_summary.records] == [seed] * 3 + [seed + 1]
    assert seen[-1] == (seed + 1, None if data_seed is None else data_seed + 1)
    assert seen[0] == (seed, data_seed)


@pytest.mark.process
def test_workers_repeat_trials_in_parallel_and_each_replica_has_the_numbers_of_its_seed(tmp_path: Path) -> None:
    best = search(tmp_path, n_jobs=2)
    assert sum(each.is_counted for each in best.run_summary.records) == 4
    assert list(best.values or {}) == [42, 43, 44]
    assert len({each.replica for each in replicas(best)}) == len(replicas(best))
    replay = small_trainer(tmp_path).replay(number=replicas(best)[-1].number, progress=False)
    assert replay.is_equal, replay.first_difference


def best_of(best: BestRun) -> tuple[object, ...]:
    return best.run_id, best.objective, best.values
