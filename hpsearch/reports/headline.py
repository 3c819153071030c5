"""The result of a study in a few figures: what the top of the report shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

from ..errors import SpaceError
from ..search.decisions.training_budget import full_runs_of
from ..search.metrics.replicas import has_replicas, runs_of_trial
from ..search.metrics.selection import sign_of
from ..search.result.best_run import SearchSummary
from ..search.result.chance_of_best import chance_of_best
from ..search.result.held_out_result import PREFIX
from ..search.result.known_study import known_noise, on_disk
from ..search.result.noise import Noise
from ..search.space.initial_trials import DEFAULTS, resolve_start
from ..search.space.search_space import SearchSpace
from ..search.trial_record import TrialRecord
from ..search.wording import counted, format_chance, format_value, metric_label
from .tables import effort_in_words, held_out_in_words, saved_fraction


class NoiseOfBest(NamedTuple):
    """How much the best value varies by chance.

    Attributes:
        error: the standard error of one run, or the standard deviation between the runs of the best trial.
        source: of the error, in words.
        tied: the number of other trials within the noise of the best one; None if it was repeated.
        chance: the chance that no other trial is truly better; None if no trial was repeated.
    """

    error: float
    source: str
    tied: int | None = None
    chance: float | None = None


@dataclass(frozen=True)
class Headline:
    """The figures of a study.

    Attributes:
        trials: the number of trials that are best: 0, 1, or those on the Pareto front.
        best: the objective of the best trial; None without one, and with several objectives, as all that follows.
        trial: its number.
        defaults: the objective with the default parameters; None if the study has no such run.
        defaults_trial: the trial that trained with them; None: the run beside the study, for its test set.
        gain: how much better the best value is than that of the defaults; at least 0 if it is not worse.
        is_gain_in_noise: whether the two are within the noise of each other; None if the noise is unknown.
        test: the objective on the test set; None if it was not evaluated there.
        full_runs: the cost of all trials, in full training runs.
        seconds: the time that all trials together trained.
        saved: the fraction of the epochs that pruning saved; see `saved_fraction`.
        noise: of the best value; None if it is unknown.
    """

    trials: int
    full_runs: float
    seconds: float
    saved: float | None
    best: float | None = None
    trial: int | None = None
    defaults: float | None = None
    defaults_trial: int | None = None
    gain: float | None = None
    is_gain_in_noise: bool | None = None
    test: float | None = None
    noise: NoiseOfBest | None = None


class Tile(NamedTuple):
    """A figure of the headline as the report shows it: its name, the figure, and a sentence or two about it."""

    name: str
    figure: str
    details: tuple[str, ...] = ()


def headline(summary: SearchSummary) -> Headline:
    """Return the figures of a study."""
    records, found = summary.records, summary.best()
    cost = full_runs_of(records), sum(each.seconds for each in records), saved_fraction(records)
    if len(found) != 1 or len(summary.study.objectives) != 1:
        return Headline(len(found), *cost)
    [best], value = found, found[0].values[0]
    defaults, number = _result_of_defaults(summary)
    noise = known_noise(on_disk(summary.study), records)
    return Headline(
        1,
        *cost,
        best=value,
        trial=best.number,
        defaults=defaults,
        defaults_trial=number,
        gain=None if defaults is None else sign_of(summary.objective) * (defaults - value),
        is_gain_in_noise=None if noise is None or defaults is None else noise.is_within(value, defaults),
        test=_on_test_set(summary),
        noise=_noise_of_best(summary, best, noise),
    )


def _noise_of_best(summary: SearchSummary, best: TrialRecord, noise: Noise | None) -> NoiseOfBest | None:
    """Return what is known of the noise: by repeated runs, else by the number of samples or the learning curves."""
    records, value = summary.records, best.values[0]
    if has_replicas(records):
        runs = runs_of_trial(records, best.number)
        chances = chance_of_best(records, summary.objective) or {}
        if runs.deviation is None:
            return None
        kind = "fold" if summary.study.fold_count else "seed"
        return NoiseOfBest(runs.deviation, counted(len(runs.records), kind), None, chances.get(best.number))
    if noise is None:
        return None
    return NoiseOfBest(noise.standard_error(value), noise.source(value), len(summary.tied_with_best()))


def _result_of_defaults(summary: SearchSummary) -> tuple[float | None, int | None]:
    """Return the objective with the default parameters, and the trial that has it, if it is one."""
    known: dict[int, Mapping[str, object]] = {}
    for record in summary.ranked():
        if record.session not in known:
            known[record.session] = _defaults(summary, record.session)
        if record.params and record.params == known[record.session]:
            return record.values[0], record.number
    held_out = summary.held_out
    if held_out is None or held_out.defaults is None or not held_out.defaults.values:
        return None, None
    return held_out.defaults.values[0], None


def _defaults(summary: SearchSummary, session: int) -> Mapping[str, object]:
    """Return the default parameters, with the arguments of a session; empty if they are not known."""
    described, sessions = summary.study.described_space(), getattr(summary.study, "settings", {}).get("sessions", [])
    if not isinstance(described, Mapping) or not 0 <= session < len(sessions):
        return {}
    arguments: dict[str, Any] = sessions[session].get("arguments", {})
    try:
        [params] = resolve_start(DEFAULTS, SearchSpace.from_description(described), SimpleNamespace(**arguments))
    except SpaceError:
        return {}
    return params


def _on_test_set(summary: SearchSummary) -> float | None:
    held_out = summary.held_out
    return (
        None
        if held_out is None
        else held_out.best.metrics.get(f"{PREFIX}_{summary.objective.name.removeprefix('eval_')}")
    )


def tiles(summary: SearchSummary, shown: Headline) -> list[Tile]:
    """Return the figures as the report shows them; what is not known has no tile, but for the noise."""
    found = [_best_tile(summary, shown)]
    if shown.defaults is not None:
        run = "A run beside the trials." if shown.defaults_trial is None else f"Trial {shown.defaults_trial}."
        found += [Tile("Default parameters", format_value(shown.defaults), (run,)), _gain_tile(shown)]
    if shown.test is not None:
        found.append(Tile("Test set", format_value(shown.test), tuple(held_out_in_words(summary))))
    effort = effort_in_words(summary.study, summary.records)
    if shown.full_runs:
        found.append(Tile("Cost in full training runs", f"{shown.full_runs:.3g}", tuple(effort[:1])))
    if shown.saved is not None:
        found.append(Tile("Saved", f"{shown.saved:.0%}", tuple(effort[1:])))
    if shown.best is not None:
        found.append(_noise_tile(shown.noise))
    return found


def _best_tile(summary: SearchSummary, shown: Headline) -> Tile:
    name = metric_label(summary.objective.name, summary.study.unit)
    if shown.best is not None:
        about = f"Of trial {shown.trial} (scope {summary.study.scope})."
        return Tile(f"Best {name}", format_value(shown.best), (about,))
    if not shown.trials:
        return Tile(f"Best {name}", "none", (summary.explain_absence(),))
    names = " and ".join(each.name for each in summary.study.objectives)
    return Tile("Best", counted(shown.trials, "trial"), (f"On the Pareto front of {names}.",))


def _gain_tile(shown: Headline) -> Tile:
    best, defaults, gain = shown.best or 0.0, shown.defaults or 0.0, shown.gain or 0.0
    if gain == 0:
        return Tile("Gain", "0", ("The default parameters are as good as the best trial.",))
    side = "Better" if gain > 0 else "Worse"
    noise = {True: ", by no more than the noise explains", False: ", by more than the noise explains", None: ""}
    return Tile(
        "Gain", f"{best - defaults:+.4g}", (f"{side} than the default parameters{noise[shown.is_gain_in_noise]}.",)
    )


def _noise_tile(noise: NoiseOfBest | None) -> Tile:
    if noise is None:
        return Tile("Noise", "unknown", ("Train the best trials again with other seeds to measure it.",))
    if noise.tied is None:
        chance = (
            [] if noise.chance is None else [f"The chance that it is the best trial is {format_chance(noise.chance)}."]
        )
        return Tile("Noise", f"± {noise.error:.2g}", (f"Standard deviation between {noise.source}.", *chance))
    others = f"{counted(noise.tied, 'other trial')} cannot be told apart from the best."
    return Tile("Noise", f"± {noise.error:.2g}", (f"Standard error, from {noise.source}.", others))
