"""A search in a notebook shows itself in one output of the cell, in a real kernel, without widgets."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parents[2]
SEARCH = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from hpsearch import Float
from tests.support.small_trainer import small_trainer
trainer = small_trainer(Path({folder!r}), num_train_epochs=2)
best = trainer.hyperparameter_search({{"learning_rate": Float(1e-4, 1e-1, log=True)}}, n_trials=5, pruner=None)
"""
FAILING = """
def broken(trial):
    raise ValueError("shape [batch, 3] <b>is</b> not 4")
trainer.model_init = broken
best = trainer.hyperparameter_search({"learning_rate": Float(1e-4, 1e-1, log=True)}, n_trials=2, study_name="failing")
"""
IN_WORKERS = """
import os
from tests.support.small_trainer import TwoLayers
class OfTheCell(TwoLayers):
    pass
def of_the_cell(trial):
    print("in worker", os.getpid())
    return OfTheCell(trial.suggest_int("hidden", 2, 5))
trainer.model_init = of_the_cell
options = {"n_trials": 3, "study_name": "workers", "n_jobs": 2, "progress": False}
best = trainer.hyperparameter_search({"learning_rate": Float(1e-4, 1e-1, log=True)}, **options)
print([each.state.value for each in best.run_summary.records], type(best.load_model()).__name__, os.getpid())
logs = [each.read_text() for each in Path(best.run_summary.study.folder).glob("*/output.log")]
print(len(logs), all("in worker" in each and str(os.getpid()) not in each for each in logs))
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    folder = tmp_path_factory.mktemp("notebook")
    cells = [SEARCH.format(root=str(ROOT), folder=str(folder)), FAILING, IN_WORKERS]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(folder)}}).execute()
    return [cell.outputs for cell in notebook.cells]


def html_of(outputs: list[Any]) -> str:
    [shown] = [each for each in outputs if each.output_type == "display_data" and "text/html" in each.data]
    return str(shown.data["text/html"])


def test_a_search_is_one_output_that_ends_with_all_trials_and_the_best(outputs: list[list[Any]]) -> None:
    text = html.unescape(re.sub("<[^>]+>", "", html_of(outputs[0])))
    assert "search 'study'" in text
    assert "5/5" in text
    assert len(re.findall(r"trial \d complete", text)) == 5
    assert re.search(r"best [\d.]+ \(trial \d\)", text)


def test_nothing_in_it_needs_a_widget(outputs: list[list[Any]]) -> None:
    kinds = {kind for cell in outputs for each in cell if "data" in each for kind in each.data}
    assert not any("widget" in kind for kind in kinds)


def test_what_a_trial_failed_of_is_text_in_it(outputs: list[list[Any]]) -> None:
    assert "shape [batch, 3] &lt;b&gt;is&lt;/b&gt; not 4" in html_of(outputs[1])


def test_workers_train_what_is_defined_in_a_cell(outputs: list[list[Any]]) -> None:
    printed = "".join(each.text for each in outputs[2] if each.output_type == "stream" and each.name == "stdout")
    assert "['complete', 'complete', 'complete'] OfTheCell" in printed
    assert "3 True" in printed
