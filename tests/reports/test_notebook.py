"""A search in a notebook shows itself in one output of the cell, without widgets."""

from __future__ import annotations

import html
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from hpsearch import FixedTrial, SearchInterrupted, TrialState
from hpsearch.reports.notebook import NotebookView
from hpsearch.search.listener import showing
from hpsearch.system.interruption import own_command
from tests.support.rendering import make_study, record, report

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
from hpsearch import NoCompletedTrialError
try:
    space = {"learning_rate": Float(1e-4, 1e-1, log=True)}
    trainer.hyperparameter_search(space, n_trials=2, study_name="failing", preflight=False)
except NoCompletedTrialError as error:
    print(error)
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


def text_of(page: str) -> str:
    return html.unescape(re.sub("(<[^>]+>)+", " ", page))


@pytest.fixture
def process_as_before() -> Iterator[None]:
    """Undo what a shell changes in this process: attributes of `sys`, and variables such as FORCE_COLOR."""
    attributes = dict(vars(sys))
    with mock.patch.dict(os.environ):
        yield
    sys.displayhook = attributes["displayhook"]
    for name in ("ps1", "ps2", "ps3"):  # a program that has them is taken for a console
        if name not in attributes:
            vars(sys).pop(name, None)


@pytest.fixture
def shell(process_as_before: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """IPython in this process, as a kernel has it."""
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # it warns of one that is not that of this interpreter
    pytest.importorskip("ipykernel")
    from IPython.core.interactiveshell import InteractiveShell

    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


@pytest.mark.usefixtures("process_as_before")
def test_a_shell_of_a_kernel_has_no_command_that_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "ipykernel_launcher"])
    command = own_command()
    shell = pytest.importorskip("ipykernel.zmqshell").ZMQInteractiveShell
    try:
        shell.instance()
        assert (command, own_command()) == ("python -m ipykernel_launcher", None)
    finally:
        shell.clear_instance()


def test_an_interrupted_cell_shows_the_message_in_place_of_a_traceback(shell: Any, capsys: Any) -> None:
    def search() -> None:
        raise SearchInterrupted("Ended.", command="python a.py")

    shell.push({"search": search})
    shell.run_cell("search()")
    assert capsys.readouterr().out == "Ended.\nTo continue: python a.py\n"


def test_the_cell_has_one_output_that_ends_with_all_trials_and_the_best(shell: Any) -> None:
    from IPython.utils.capture import capture_output

    view, hostile = NotebookView(), "shape [batch, 3] <b>is</b> not 4"
    ended = [record(number, number / 8) for number in range(3)]
    ended.append(record(3, state=TrialState.FAILED, reason=hostile))
    with capture_output() as captured:
        view.on_search_begin(make_study(4), [], ["storage: in memory"])
        for each in ended:
            view.on_trial_begin(FixedTrial({"x": 0.5}, each.number))
            view.on_trial_end(each)
        view.on_search_end(make_study(4), ended)
    first, *updates = captured.outputs
    assert not first.update
    assert updates
    assert all(each.update and each.transient == first.transient for each in updates)
    page = captured.outputs[-1].data["text/html"]
    assert "<b>" not in page
    text = text_of(page)
    for part in ("search 'digits'", "storage: in memory", "4/4", hostile, "best 0.25 (trial 2)"):
        assert part in text
    rows = text_of("".join(re.findall("<tr style.*?</tr>", page)))
    assert re.findall(r"(\d) (complete|failed)", rows) == [(str(n), "complete") for n in range(3)] + [("3", "failed")]
    assert "2 complete, best 100% 0.25" in rows


def test_a_row_changes_in_place_while_its_trial_runs_and_its_curve_is_drawn(shell: Any) -> None:
    from IPython.utils.capture import capture_output

    view, trial = NotebookView(clock=lambda: 60.0), FixedTrial({"x": 0.5}, 0)
    with capture_output():
        view.on_search_begin(make_study(4), [], [])
        view.on_trial_begin(trial)
        assert "0 starting 0% 0:00 0.5" in text_of(view._html())
        view.on_progress(trial, 3, 12)
        view.on_report(trial, report(0.75, 3))
        page = view._html()
        assert "0 running 25% 0.75 0:00 0.5" in text_of(page)
        assert "best so far 0.75 (trial 0, running)" in text_of(page)
        assert 'aria-label="learning curve from 0.75 to 0.75"' in page
        view.on_trial_end(record(0, 0.75, reports=(report(0.75, 3),)))
        assert "0 complete, best 100% 0.75 0:01 0.1235" in text_of(view._html())
        view.on_search_end(make_study(4), [])


def test_a_search_that_cannot_begin_leaves_an_output_that_is_not_written_any_more(shell: Any) -> None:
    from IPython.utils.capture import capture_output

    view = NotebookView()

    def fail() -> None:
        with showing(view, "opening the study"):
            view.on_search_prepare(make_study(4))
            raise ValueError("the study is locked")

    with capture_output(), pytest.raises(ValueError, match="locked"):
        fail()
    assert view._output._thread is None


def test_what_is_said_after_the_search_is_in_the_output_too(shell: Any) -> None:
    from IPython.utils.capture import capture_output

    view = NotebookView()
    with capture_output() as captured:
        view.on_search_begin(make_study(1), [], [])
        view.on_search_end(make_study(1), [])
        view.on_notice("On the test set: accuracy 0.75 of trial 0.")
    assert "accuracy 0.75" in text_of(captured.outputs[-1].data["text/html"])


def test_the_first_call_of_a_function_is_shown_at_once_in_a_cell(capsys: pytest.CaptureFixture[str]) -> None:
    NotebookView().on_first_call("the first call of [f] is running")
    assert capsys.readouterr().out == "the first call of [f] is running\n"


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    folder = tmp_path_factory.mktemp("notebook")
    cells = [SEARCH.format(root=str(ROOT), folder=str(folder)), FAILING, IN_WORKERS]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(folder)}}).execute()
    return [cell.outputs for cell in notebook.cells]


def html_of(outputs: list[Any]) -> str:
    [shown] = [each for each in outputs if each.output_type == "display_data" and "text/html" in each.data]
    return str(shown.data["text/html"])


@pytest.mark.process
def test_a_search_in_a_kernel_is_one_output_without_widgets_and_workers_train_what_a_cell_defines(
    outputs: list[list[Any]],
) -> None:
    assert len(re.findall(r"<tr style.*?</tr>", html_of(outputs[0]))) == 5
    assert len(re.findall(r"\d complete(, best)? 100%", text_of(html_of(outputs[0])))) == 5
    assert re.search(r"best [\d.]+ \(trial \d\)", text_of(html_of(outputs[0])))
    assert "shape [batch, 3] <b>is</b> not 4" in text_of(html_of(outputs[1]))
    kinds = {kind for cell in outputs for each in cell if "data" in each for kind in each.data}
    assert not any("widget" in kind for kind in kinds)
    printed = "".join(each.text for each in outputs[2] if each.output_type == "stream" and each.name == "stdout")
    assert "['complete', 'complete', 'complete'] OfTheCell" in printed
    assert "3 True" in printed
