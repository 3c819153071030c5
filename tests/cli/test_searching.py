"""A study is run, gone on with and replayed from the command line."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import signal
import textwrap
from pathlib import Path

import pytest

from tests.support.command_line import TRIALS, Told
from tests.support.programs import start


def states(study: Path) -> list[str]:
    return [json.loads(path.read_text())["state"] for path in study.glob("*/trial.json")]


def test_the_same_command_again_has_nothing_to_do(here: Path, told: Told) -> None:
    code, out, _ = told("run", "first/study.py", "-n", str(TRIALS), "--set", "num_train_epochs=4")
    assert code == 0
    assert "no new one begins" in out
    assert len(states(here / "runs/spirals")) == TRIALS


@pytest.mark.slow
def test_resume_goes_on_from_anywhere_with_the_options_of_the_run(
    here: Path, told: Told, tmp_path: Path, monkeypatch: object
) -> None:
    os.chdir(tmp_path)  # the fixture puts it back
    code, out, _ = told("resume", str(here / "runs/spirals"), "-n", str(TRIALS + 3))
    assert code == 0
    assert f"continues after {TRIALS} of {TRIALS + 3} trials" in out
    records = [json.loads(path.read_text()) for path in (here / "runs/spirals").glob("*/trial.json")]
    assert len(records) == TRIALS + 3
    assert max(each["epochs"] for each in records) == 4.0  # of --set, not the nine of the file


def test_resume_takes_a_limit_of_time_back_and_changes_arguments(here: Path, told: Told) -> None:
    limited = ["-n", "2", "--study-name", "limited", "--time", "1h", "--set", "num_train_epochs=1"]
    assert told("run", "first/study.py", *limited)[0] == 0
    assert json.loads((here / "runs/limited/command.json").read_text())["search"]["timeout"] == 3600
    code, out, _ = told("resume", "runs/limited", "-n", "3", "--time", "none", "--set", "num_train_epochs=2")
    assert code == 0
    command = json.loads((here / "runs/limited/command.json").read_text())
    assert command["search"]["timeout"] is None
    assert command["arguments"]["num_train_epochs"] == 2
    assert "CHANGED since earlier trials: num_train_epochs 1.0 -> 2.0" in " ".join(out.split())
    records = [json.loads(path.read_text()) for path in (here / "runs/limited").glob("*/trial.json")]
    assert max(each["epochs"] for each in records) == 2.0


def test_confirm_continues_a_study_of_run_until_the_best_is_clear(here: Path, told: Told) -> None:
    few = ["-n", "3", "--study-name", "confirmed", "--set", "num_train_epochs=1"]
    assert told("run", "first/study.py", *few)[0] == 0
    code, out, err = told("confirm", "runs/confirmed", "--repeats", "2", "--top", "2")
    assert code == 0, err
    assert "are trained with up to 2 seeds each, until the best of them is clear\n" in out
    records = [json.loads(path.read_text()) for path in (here / "runs/confirmed").glob("*/trial.json")]
    replicas = [each for each in records if "origin" in each]
    assert len(records) - len(replicas) == 3
    assert [each["origin"]["kind"] for each in replicas] == ["replica"] * 2
    assert "is the mean of trial" in " ".join(out.split())
    best, model = out.splitlines()[-3:-1] if "to be surer" in out else out.splitlines()[-2:]
    assert re.fullmatch(r"trial \d is (still the best|the best now), with a chance of [<>]?\d+%", best)
    assert model == "its parameters, and its model: hpsearch best runs/confirmed --export model"
    assert told("show", "runs/confirmed")[0] == 0
    assert "mean of 2 seeds with standard deviation" in told("best", "runs/confirmed")[1]


def test_a_run_without_a_result_ends_with_its_reason_and_the_code_of_a_failure(here: Path, told: Told) -> None:
    failing = """
    def fail(trial):
        raise RuntimeError("no such layer")

    settings = {"n_trials": 2, "study_name": "failing", "preflight": False}
    study = SearchPlan(lambda: small_trainer("runs", model_init=fail), RATE, **settings)
    """
    imports = "from hpsearch import SearchPlan\nfrom tests.support.searching import RATE\n"
    imports += "from tests.support.small_trainer import small_trainer\n"
    (here / "failing.py").write_text(imports + textwrap.dedent(failing))
    code, _, err = told("run", "failing.py")
    assert code == 1
    assert "No trial has a result: 2 failed. The first failure, trial 0: RuntimeError: no such layer (" in err
    assert "failing.py, line 6, in fail)" in err
    assert told("best", "runs/failing")[0] == 1


def test_no_limit_of_time_lifts_the_one_that_the_file_plans(here: Path, told: Told) -> None:
    file = here / "first/study.py"
    file.write_text(f"{file.read_text()}\nstudy.search['timeout'] = 1e-9\n")
    options = ["-n", "2", "--study-name", "lifted", "--set", "num_train_epochs=1"]
    assert told("run", "first/study.py", *options)[0] == 1  # the time is over before a trial has a result
    code, _, err = told("resume", "runs/lifted", "-n", "1", "--time", "none")
    assert code == 0, err
    assert told("resume", "runs/lifted", "-n", "2")[0] == 0  # the command in the folder has no limit now
    assert states(here / "runs/lifted") == ["complete"] * 2
    assert told("run", "first/study.py", *options, "--time", "none")[0] == 0


def test_options_of_a_run_change_the_plan(here: Path, told: Told) -> None:
    options = ["-n", "2", "--study-name", "other", "--output", "elsewhere", "--storage", "journal", "--time", "1h"]
    code, _, _ = told("run", "first/study.py", *options, "--set", "num_train_epochs=1", "--set", "optim=sgd")
    assert code == 0
    study = json.loads((here / "elsewhere/other/study.json").read_text())
    assert (here / "elsewhere/other/study.log").is_file()
    assert study["n_trials"] == 2
    [session] = study["sessions"]
    assert session["arguments"]["num_train_epochs"] == 1
    assert session["arguments"]["optim"] == "sgd"


LOOP = """
from hpsearch import Float, SearchPlan

def train(trial):
    begin = 0 if trial.checkpoint is None else int((trial.checkpoint / "step").read_text())
    for step in range(begin + 1, 7):
        trial.report({"loss": (trial.params["x"] - 1) ** 2 + 1 / step}, step)
        with trial.save() as folder:
            (folder / "step").write_text(str(step))
        if trial.should_prune():
            return

study = SearchPlan(train, {"x": Float(-3.0, 3.0)}, n_trials=9, study_name="loop")
"""


@pytest.mark.slow
def test_the_last_step_of_a_function_is_an_option_of_run_and_resume(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop.py").write_text(LOOP)
    code, out, err = told("run", "loop.py", "--max-resource", "6", "-n", "6")
    assert code == 0, err
    assert "after 1/6 and 1/2 of their training" in " ".join(out.split()), "it pauses at rungs"
    assert json.loads(Path("output/loop/command.json").read_text())["search"]["max_resource"] == 6
    code, out, err = told("resume", "output/loop", "-n", "7")
    assert code == 0, err
    assert "CHANGED" not in out
    code, out, err = told("resume", "output/loop", "-n", "8", "--max-resource", "12")
    assert code == 0, err
    assert "CHANGED since earlier trials: max_resource 6 -> 12" in " ".join(out.split())
    assert told("run", "loop.py", "--max-resource", "0")[0] == 2


def test_the_last_step_of_a_function_is_refused_where_a_trainer_is_searched(here: Path, told: Told) -> None:
    code, _, err = told("run", "first/study.py", "--max-resource", "6", "--study-name", "refused")
    assert code == 2
    assert "max_resource=6 is not taken: it is the last step of a plain function" in " ".join(err.split())
    assert not (here / "runs/refused").exists()


def test_a_budget_of_full_training_runs_is_an_option_of_run_and_resume(here: Path, told: Told) -> None:
    options = ["--study-name", "paid", "--set", "num_train_epochs=1", "-n", "9"]
    code, out, err = told("run", "first/study.py", "--budget", "1", *options)
    assert code == 0, err
    assert "1 of 1 full training runs" in out
    assert told("resume", "runs/paid", "--budget", "2")[0] == 0
    study = json.loads((here / "runs/paid/study.json").read_text())
    assert (study["n_trials"], study["budget"]) == (9, 2.0)
    assert states(here / "runs/paid") == ["complete"] * 2
    assert "2 of 2 full training runs" in told("show", "runs/paid")[1]
    assert told("run", "first/study.py", "--budget", "0.5", *options)[0] == 2


@pytest.mark.process
def test_a_study_file_that_no_worker_could_import_runs_in_workers(here: Path, told: Told) -> None:
    options = ["-n", "2", "-j", "2", "--study-name", "workers", "--set", "num_train_epochs=1"]
    code, _, err = told("run", "first/study.py", *options)
    assert code == 0, err
    assert len(states(here / "runs/workers")) == 2
    assert "failed" not in states(here / "runs/workers")


def test_a_study_of_a_trainer_of_transformers_runs_and_is_replayed(here: Path, told: Told) -> None:
    (here / "brought.py").write_text(
        """
from hpsearch import Float, SearchPlan


def make_trainer(trial):
    from tests.support.small_trainer import TwoLayers, transformers_trainer

    return transformers_trainer("brought", TwoLayers(), **trial.params)


study = SearchPlan(make_trainer, {"learning_rate": Float(1e-3, 0.1, log=True)}, compute_objective="loss")
"""
    )
    code, out, err = told("run", "brought.py", "-n", "2", "--output", "brought")
    assert code == 0, err
    assert "[2/2]" in out
    code, out, err = told("resume", "brought/study", "-n", "3")
    assert code == 0, err
    code, out, err = told("replay", "1", "brought/study")
    assert code == 0, err
    code, _, err = told("run", "brought.py", "-n", "2", "--set", "seed=3", "--output", "other")
    assert (code, "Traceback" in err) == (2, False)
    assert "seed cannot be set from outside: make_trainer(trial) decides it" in err


def test_replay_makes_the_same_reports_and_says_when_it_does_not(here: Path, told: Told) -> None:
    code, out, err = told("replay", "0", "runs/spirals")
    assert code == 0, err
    assert "gave the same" in out
    file = here / "first/study.py"
    file.write_text(file.read_text().replace("make_data(400, seed=0)", "make_data(400, seed=5)"))
    code, out, _ = told("replay", "0", "runs/spirals")
    assert code == 1
    assert "differs from its record" in out


def test_the_replay_of_a_pruned_trial_names_no_weights(here: Path, told: Told) -> None:
    known = [json.loads(each.read_text()) for each in (here / "runs/spirals").glob("*/trial.json")]
    pruned = next(each["number"] for each in known if each["state"] == "pruned")
    code, out, err = told("replay", str(pruned), "runs/spirals")
    assert code == 0, err
    assert out.splitlines()[-1].endswith("; no weights were kept")


def test_a_study_that_was_moved_or_copied_goes_on_where_it_is_now(here: Path, told: Told) -> None:
    shutil.copytree("runs/spirals", "archive/spirals")
    code, _, err = told("resume", "archive/spirals", "-n", str(TRIALS + 1))
    assert code == 0, err
    assert len(states(here / "archive/spirals")) == TRIALS + 1
    assert len(states(here / "runs/spirals")) == TRIALS
    shutil.rmtree("runs/spirals")
    code, out, err = told("replay", "0", "archive/spirals")
    assert code == 0, err
    assert "gave the same" in out
    assert not (here / "runs/spirals").exists()


@pytest.mark.filterwarnings("ignore:Query string argument")  # SQLite has no password
def test_what_is_secret_on_the_command_line_is_not_written_and_asked_for_again(here: Path, told: Told) -> None:
    options = ["-n", "1", "--study-name", "secret", "--storage", "sqlite:///books.db?password=hunter2"]
    told("run", "first/study.py", *options, "--set", "hub_token=hf_SECRET", "--set", "num_train_epochs=1")
    files = [path for path in (here / "runs/secret").rglob("*") if path.suffix in (".json", ".log")]
    assert files
    assert not [path for path in files if "hunter2" in path.read_text() or "hf_SECRET" in path.read_text()]
    code, _, err = told("resume", "runs/secret")
    assert code == 2
    assert "hub_token, storage" in err


STUDY_WITH_CLASSES = """
from dataclasses import dataclass
from .data import make_data
import hpsearch
from first.study import model_init, compute_metrics

@dataclass
class OwnArguments(hpsearch.TrainingArguments):
    own: int = 3

def make_trainer():
    args = OwnArguments("runs", num_train_epochs=2, eval_strategy="epoch", save_strategy="epoch", disable_tqdm=True)
    data = {name: make_data(100, seed=0) for name in ("train_dataset", "eval_dataset")}
    return hpsearch.Trainer(model_init=model_init, args=args, compute_metrics=compute_metrics, **data)

study = hpsearch.SearchPlan(
    make_trainer, {"learning_rate": hpsearch.Float(1e-3, 1e-1, log=True), "model.width": hpsearch.Categorical((8, 16))},
    n_trials=3, compute_objective="accuracy", study_name="classes",
)
"""


@pytest.mark.process
def test_a_file_of_a_package_with_classes_and_modules_of_its_own_runs_in_workers(here: Path, told: Told) -> None:
    (here / "lab").mkdir()
    (here / "lab/__init__.py").touch()
    (here / "lab/data.py").write_text("from first.study import make_data\n")
    (here / "lab/classes.py").write_text(STUDY_WITH_CLASSES)
    code, _, err = told("run", "lab/classes.py", "-j", "2")
    assert code == 0, err
    assert "failed" not in states(here / "runs/classes")


@pytest.mark.process
def test_ctrl_c_exits_with_130_and_the_same_command_continues(here: Path, told: Told) -> None:
    arguments = ["run", "first/study.py", "--study-name", "long", "--set", "num_train_epochs=1"]
    process = start("hpsearch", *arguments, "-n", "400", folder=here)
    assert process.stdout is not None
    ended = (line for line in process.stdout if re.search(r"trial \d+ (complete|pruned|paused)", line))
    assert len(list(itertools.islice(ended, 3))) == 3
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in output
    assert "Run the same command again to continue" in output
    begun = len(states(here / "runs/long"))
    assert 3 <= begun < 400
    code, _, err = told(*arguments, "-n", str(begun + 1))
    assert code == 0, err
    assert len(states(here / "runs/long")) == begun + 1
    assert "interrupted" not in states(here / "runs/long")


STUDY_THAT_IS_PREEMPTED = """
import signal
from pathlib import Path
from transformers import TrainerCallback
import hpsearch
from first.study import SPACE, make_trainer

class Preempts(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3 and not Path("preempted").exists():
            Path("preempted").touch()
            signal.raise_signal(signal.{signal})

def make():
    trainer = make_trainer()
    trainer.add_callback(Preempts())
    return trainer

study = hpsearch.SearchPlan(make, SPACE, n_trials=1, compute_objective="accuracy", study_name="long one")
"""


@pytest.mark.parametrize(("name", "exit_code"), [("SIGTERM", 143), ("SIGUSR1", 138)])
def test_a_signal_exits_with_its_code_and_names_the_command_that_continues(
    here: Path, told: Told, name: str, exit_code: int
) -> None:
    (here / "preempted.py").write_text(STUDY_THAT_IS_PREEMPTED.format(signal=name))
    code, _, err = told("run", "preempted.py", "--set", "num_train_epochs=1")
    assert code == exit_code
    told_by, _, command = err.strip().rpartition("To continue: ")
    assert f"interrupted by {name} after 0 of 1 trials" in told_by
    assert shlex.split(command) == ["hpsearch", "resume", str(here / "runs/long one")]
    assert states(here / "runs/long one") == ["interrupted"]
    assert told(*shlex.split(command)[1:])[0] == 0
    assert states(here / "runs/long one") == ["complete"]


STUDY_WITH_A_FUNCTION = """
import hpsearch
from first.study import make_trainer

def space(trial):
    return {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)}

study = hpsearch.SearchPlan(make_trainer, space, n_trials=2)
"""


@pytest.mark.slow
def test_an_argument_that_is_set_is_not_searched(here: Path, told: Told) -> None:
    code, out, err = told("run", "first/study.py", "-n", "2", "--study-name", "set", "--set", "learning_rate=0.01")
    assert code == 0, err
    assert "not searched, as --set gives them: learning_rate=0.01" in out
    trials = [json.loads(each.read_text()) for each in (here / "runs/set").glob("run-*/trial.json")]
    assert len(trials) == 2
    assert all("learning_rate" not in each["params"] for each in trials)
    assert told("replay", "0", "runs/set")[0] == 0


def test_a_parameter_of_model_init_that_is_set_reaches_it_in_every_trial(here: Path, told: Told) -> None:
    command = ["first/study.py", "-n", "2", "--study-name", "wide", "--set", "model.width=24"]
    code, out, err = told("run", *command, "--set", "num_train_epochs=1")
    assert code == 0, err
    assert "not searched, as --set gives them: model.width=24" in out
    trials = [json.loads(each.read_text()) for each in (here / "runs/wide").glob("run-*/trial.json")]
    assert [each["params"]["model.width"] for each in trials] == [24, 24]
    sizes = {report["metrics"]["num_parameters"] for each in trials for report in each["reports"]}
    assert sizes == {2 * 24 + 24 + 24 * 24 + 24 + 24 * 2 + 2}
    assert told("replay", "0", "runs/wide")[0] == 0


@pytest.mark.parametrize(("name", "nearest"), [("model.widht", "Did you mean 'model.width'?"), ("nonexist", "")])
def test_a_set_name_that_nothing_reads_is_refused_before_any_work(
    here: Path, told: Told, name: str, nearest: str
) -> None:
    code, _, err = told("run", "first/study.py", "--study-name", "typo", "--set", f"{name}=16")
    assert code == 2
    assert f"'{name}' cannot be set: it is neither a training argument nor in the search space." in err
    assert nearest in err
    assert not (here / "runs/typo").exists()


def test_an_argument_that_is_set_and_that_a_function_of_the_trial_suggests_is_a_mistake(here: Path, told: Told) -> None:
    (here / "function.py").write_text(STUDY_WITH_A_FUNCTION)
    code, _, err = told("run", "function.py", "--set", "learning_rate=0.01")
    assert code == 2
    assert "learning_rate is set, but hp_space(trial) searches it too" in err


STUDY_WHOSE_IMPORT_TURNS_CTRL_C_INTO = """
import signal

try:  # as compiled code does while it is imported
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    raise {error}
"""


@pytest.mark.parametrize("error", ["TypeError('a message')", "ImportError('torch')", "OSError(5, 'x')"])
def test_ctrl_c_that_comes_out_of_an_import_as_another_error_is_an_interruption_still(
    here: Path, told: Told, error: str
) -> None:
    (here / "interrupted.py").write_text(STUDY_WHOSE_IMPORT_TURNS_CTRL_C_INTO.format(error=error))
    code, _, err = told("run", "interrupted.py")
    assert (code, err.strip()) == (130, "Interrupted.")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_same_error_without_ctrl_c_is_the_error_that_it_is(here: Path, told: Told) -> None:
    (here / "wrong.py").write_text("raise TypeError('expected a message argument')")
    code, _, err = told("run", "wrong.py")
    assert code == 2
    assert "TypeError: expected a message argument" in err
