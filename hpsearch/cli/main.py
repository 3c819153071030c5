"""The program `hpsearch`: its commands, its exit codes, and how it speaks of mistakes.

Exit codes: 0: done; 1: it did not come out as asked (no trial has a result, a replay differs, trial after trial
failed); 2: something on the command line, or in the study file, cannot be right; 130: interrupted by Ctrl-C; 143, 138:
by SIGTERM, SIGUSR1.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from ..errors import HpsearchError, InvalidInputError, MissingPackageError, SearchInterrupted
from ..search.store.checked_json import printable
from ..system.ctrl_c import ctrl_c_as_interruption
from ..version import __version__
from . import best, compare, confirm, dashboard, doctor, init, ready_made, report, requests, show
from . import replay_command as replay
from . import run_and_resume as run
from .usage_errors import usage_in_words

# Typer has a click of its own in newer versions.
_ClickException: Any = next(each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException")
FAILED, MISTAKEN, INTERRUPTED = 1, 2, 130

app = typer.Typer(
    name="hpsearch",
    help="Hyperparameter search for transformers models: run a study, inspect it, export the best model.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="A study is a folder with a study.json; the default is the newest study below the current folder.",
)
_COMMANDS: tuple[Callable[..., None], ...] = (
    init.init,
    run.run,
    run.resume,
    show.show,
    best.best,
    report.report,
    dashboard.dashboard,
    compare.compare,
    requests.requests,
    requests.stop,
    requests.retry,
    requests.add,
    requests.extend,
    confirm.confirm,
    requests.promote,
    requests.pause,
    requests.unpause,
    requests.set,
    replay.replay,
    ready_made.spaces,
    ready_made.objectives,
    doctor.doctor,
)


class _Interrupted(BaseException):
    """Ctrl-C, or a signal, in a command; Typer ends the program at a KeyboardInterrupt without a word."""

    def __init__(self, cause: KeyboardInterrupt) -> None:
        super().__init__(str(cause))
        self.code = cause.exit_code if isinstance(cause, SearchInterrupted) else INTERRUPTED


def _telling(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def telling(*args: object, **kwargs: object) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt as interruption:
            raise _Interrupted(interruption) from interruption

    return telling


for _function in _COMMANDS:
    _takes_any = _function in (requests.add, requests.extend)
    _usage = "[OPTIONS] --NAME VALUE [STUDY]" if _takes_any else "[OPTIONS]"
    app.command(context_settings=requests.ANY_OPTIONS if _takes_any else None, options_metavar=_usage)(
        _telling(_function)
    )


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"hpsearch {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None: ...


@functools.cache
def _command() -> Any:
    """Return the program as click knows it: Typer would make all commands anew at each call."""
    return typer.main.get_command(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program with these arguments, by default those of the command line; return the exit code."""
    try:
        with ctrl_c_as_interruption():
            given = None if arguments is None else list(arguments)
            outcome = _command()(args=given, prog_name=app.info.name, standalone_mode=False)
        return outcome if isinstance(outcome, int) else 0
    except (_Interrupted, KeyboardInterrupt, typer.Abort) as interruption:
        return _say(str(interruption) or "Interrupted.", getattr(interruption, "code", INTERRUPTED), "")
    except (InvalidInputError, MissingPackageError) as error:
        return _say(str(error), MISTAKEN)
    except HpsearchError as error:
        return _say(str(error), FAILED)
    except _ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            return MISTAKEN
        return _say(usage_in_words(error), MISTAKEN)
    except SystemExit as ended:  # rich ends the program if its output is no longer read
        return ended.code if isinstance(ended.code, int) else FAILED
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _say(str(error), FAILED)


def _say(message: str, code: int, kind: str = "Error: ") -> int:
    """Print a message on stderr; return the code."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(
        Text(kind, style="bold red").append(printable(message), style="not bold default")
    )
    return code
