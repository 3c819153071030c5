"""`hpsearch dashboard`: the study in Optuna's dashboard, on this machine only."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
from pathlib import Path
from typing import Annotated

import typer

from ..errors import MissingPackageError, StudyError
from ..searching.opened_study import open_study
from .trust import Trust
from .which_study import study_folder

_HOST = "127.0.0.1"


def dashboard(
    study: Annotated[Path | None, typer.Argument(help="Folder of the study.", show_default="the newest")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 8080,
    storage: Annotated[str | None, typer.Option(help="Storage of the study, if it lies outside of its folder.")] = None,
    trust: Trust = False,
) -> None:
    """Open the study in Optuna's dashboard, while it is searched or later. Ctrl-C ends it.

    Only this machine can reach it; from another one: ssh -L 8080:127.0.0.1:8080 this-machine

    \b
    hpsearch dashboard runs/digits --port 8081
    hpsearch dashboard runs/digits --storage postgresql://user@host/studies
    """
    if importlib.util.find_spec("optuna_dashboard") is None:
        raise MissingPackageError("The dashboard is a separate package: pip install 'hpsearch[dashboard]'")
    summary = open_study(study_folder(study), storage=storage, trust=trust)
    opened = summary.engine_study._storage
    _check_free(port)
    import optuna_dashboard

    print(f"{summary.study.name}: http://{_HOST}:{port}/dashboard (stop it with Ctrl-C)", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        optuna_dashboard.run_server(opened, host=_HOST, port=port)


def _check_free(port: int) -> None:
    """Check that a port is free.

    Raises:
        StudyError: somebody does, or this user may not; with one that is free.
    """
    with socket.socket() as wanted, socket.socket() as other:
        wanted.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            wanted.bind((_HOST, port))
        except OSError as error:
            other.bind((_HOST, 0))
            free = other.getsockname()[1]
            raise StudyError(f"Port {port} cannot be used: {error.strerror}. Try --port {free}.") from error
