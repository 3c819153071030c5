"""The page docs/spaces.md says of the spaces what they hold, and its code does what it says, as it stands there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from hpsearch import Categorical, SearchSpace, TrialState
from tests.support.models import bert_classifier, classification_data
from tests.support.ready_spaces import NAMES, SPACES
from tests.support.small_trainer import small_trainer

pytestmark = pytest.mark.docs

PAGE = Path(__file__).parents[2] / "docs" / "spaces.md"
TEXT = PAGE.read_text(encoding="utf-8")


def model_init(trial: Any) -> torch.nn.Module:
    return bert_classifier(hidden=8, dropout=trial.params.get("model.hidden_dropout_prob", 0.1))


def number(value: Any) -> str:
    """A number as the page writes it: ``5e-5``, ``0.01``, ``2``."""
    is_tiny = isinstance(value, float) and 0 < abs(value) < 0.01
    return re.sub(r"\.?0*e-0", "e-", f"{value:e}") if is_tiny else f"{value:g}"


def shown(value: Any) -> str:
    return "" if value is None else f"`{value}`" if isinstance(value, (str, bool)) else number(value)


def rows_of(space: SearchSpace) -> list[str]:
    """The rows of a space, up to the column with the sources."""
    rows = []
    for name, parameter, conditions in space.walk():
        where = "".join(f" (`{choice}`)" for choice in conditions.values())
        if isinstance(parameter, Categorical):
            choices = ", ".join("`None`" if choice is None else shown(choice) for choice in parameter.choices)
        else:
            choices = f"{number(parameter.low)} to {number(parameter.high)}{', log' if parameter.log else ''}"
        rows.append(f"| `{name}`{where} | {choices} | {shown(parameter.default)} | {shown(parameter.prior)} |")
    return rows


def test_every_space_is_offered_for_a_task() -> None:
    offered = re.findall(r"^\| .* \| `spaces\.(\w+)` \| .* \|$", TEXT, re.MULTILINE)
    assert sorted(offered) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_table_has_every_parameter_as_it_is_with_a_source(name: str) -> None:
    section = re.findall(rf"^`spaces\.{name}`:\n\n(.*?)\n\n", TEXT, re.DOTALL | re.MULTILINE)[0]
    expected = rows_of(SPACES[name])
    rows = section.splitlines()[2:]
    assert [row[: len(start)] for row, start in zip(rows, expected, strict=True)] == expected
    sources = [row[len(start) :].strip(" |") for row, start in zip(rows, expected, strict=True)]
    assert [row for row, source in zip(rows, sources, strict=True) if len(source) < 4] == []


def test_every_objective_that_the_page_names_is_there() -> None:
    named = re.findall(r"^\| `objectives\.(\w+)`: (.*?) \|(.*?)\|", TEXT, re.MULTILINE)
    assert {module for module, *_ in named} == {"weighted", "cost_aware", "latency", "size", "several"}
    for module, *cells in named:
        functions = [name for cell in cells for name in re.findall(r"`([a-z]+_\w+|weighted|priced)(?=[`(])", cell)]
        assert functions
        assert [name for name in functions if not hasattr(importlib.import_module(f"objectives.{module}"), name)] == []


def test_the_links_of_the_page_lead_somewhere() -> None:
    for page, heading in re.findall(r"\]\((\S+?\.md)(?:#(\S+?))?\)", TEXT):
        headings = re.findall(r"^#+ (.*)", (PAGE.parent / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert not heading or heading in [each.lower().replace(" ", "-") for each in headings]


def test_the_code_of_the_page_runs_as_it_stands_there(tmp_path: Path) -> None:
    """All with one small trainer; what a block imports or makes, later ones use."""
    data = {"train_dataset": classification_data(16), "eval_dataset": classification_data(8, seed=1)}
    names: dict[str, Any] = {"trainer": small_trainer(tmp_path, model_init=model_init, **data)}
    for match in re.finditer(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE):
        exec(compile("\n" * TEXT[: match.start(1)].count("\n") + match[1], PAGE, "exec"), names)
        trials = int(re.findall(r"n_trials=(\d+)", match[1])[0])
        records = names["best"].run_summary.records
        assert len(records) == trials
        assert {record.state for record in records} <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "as it is",
        "changed",
        "good or fast",
        "optimizers too",
        "worth its size",
    ]
    assert names["smaller"]["num_train_epochs"].high == 20
    assert names["smaller"]["learning_rate"].prior == 1e-5
    assert "weight_decay" not in names["smaller"]
    assert set(names["of_optimizers"]) < set(names["space"].all_parameters())
    assert names["front"][0].run_summary.study.pruning_objective is None
