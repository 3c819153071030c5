"""A private PostgreSQL server on this machine, in a temporary folder, for as long as the tests run.

It is the server that is installed (Debian's package `postgresql`, or `initdb` on the PATH), but never one that runs
already: it listens on 127.0.0.1 at a free port, without a Unix socket, and its password is made up anew each time.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

HOST = "127.0.0.1"
USER = "hpsearch"
SECONDS = 60

SETTINGS = f"""
listen_addresses = '{HOST}'
unix_socket_directories = ''
fsync = off
full_page_writes = off
"""

# Runs as the owner of the cluster: starts the server, says so, and waits. "stop" stops the server; when the other end
# of stdin is gone, with or without a word, because the tests have ended or were killed, it deletes the folder, too.
WATCH = """
"$1/pg_ctl" start --pgdata="$2/data" --wait --timeout="$3" --options="-p $4" --log="$2/log" >&2 || exit 1
echo started
read -r word
"$1/pg_ctl" stop --pgdata="$2/data" --mode=immediate >&2
[ "$word" = stop ] || rm -rf "$2"
"""


class Unavailable(Exception):
    """PostgreSQL cannot run here; the message says why."""


class PostgreSQL:
    """A server with an empty cluster of its own; use it in a `with` block.

    Attributes:
        port: where it listens; the same again after `stop()` and `start()`.
        password: of the user `hpsearch`; letters, digits, "-" and "_", so that a URL shows it as it is.

    Raises:
        Unavailable: PostgreSQL or a driver for it is not installed, or it cannot run for the user who runs the tests.
    """

    def __init__(self) -> None:
        self.password = secrets.token_urlsafe(24)
        self.port: int | None = None
        self._programs = _programs()
        self._scheme = _scheme()
        self._identity = _identity()
        self._watch: subprocess.Popen[str] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="hpsearch-postgresql-"))
        try:
            self._make_cluster()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PostgreSQL:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the server, at the port it had before, if any."""
        # Another process may take a free port before the server does.
        ports = [self.port] if self.port else [_free_port() for _ in range(5)]
        for port in ports:
            self._watch = self._popen(port)
            assert self._watch.stdout is not None
            if self._watch.stdout.readline().strip() == "started":
                self.port = port
                return
            self.stop()
        raise RuntimeError(f"PostgreSQL does not start:\n{self.log()}")

    def stop(self) -> None:
        """Stop the server at once, as a crash does; what was committed stays."""
        self._end("stop\n")

    def close(self) -> None:
        """Stop the server and delete the cluster."""
        self._end("")
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str) -> str:
        """Return the URL of a database, as SQLAlchemy and Optuna take it."""
        return f"{self._scheme}://{USER}:{self.password}@{HOST}:{self.port}/{database}"

    def new_database(self) -> str:
        """Make an empty database; return its URL."""
        name = f"test_{secrets.token_hex(8)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run one statement in the maintenance database, outside of any transaction; return its rows."""
        import sqlalchemy  # not before it is used: `tests/conftest.py` says why

        engine = sqlalchemy.create_engine(
            self.url("postgres"), isolation_level="AUTOCOMMIT", poolclass=sqlalchemy.pool.NullPool
        )
        with engine.connect() as connection:
            result = connection.execute(sqlalchemy.text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []

    def log(self) -> str:
        """Return what the server wrote."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _make_cluster(self) -> None:
        try:
            if self._identity:
                os.chown(self.folder, self._identity["user"], self._identity["group"])
            subprocess.run(["true"], **self._surroundings(), check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise Unavailable(f"PostgreSQL refuses root, and no other user can be had in its place: {error}") from error
        secret = self.folder / "password"
        secret.write_text(self.password)
        secret.chmod(0o600)
        if self._identity:
            os.chown(secret, self._identity["user"], self._identity["group"])
        made = subprocess.run(
            [
                self._programs / "initdb",
                f"--pgdata={self.folder / 'data'}",
                f"--username={USER}",
                f"--pwfile={secret}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--no-locale",
                "--no-sync",
            ],
            **self._surroundings(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
        secret.unlink()
        if made.returncode:
            raise RuntimeError(f"initdb makes no cluster:\n{made.stdout}")
        with (self.folder / "data" / "postgresql.conf").open("a") as settings:
            settings.write(SETTINGS)

    def _popen(self, port: int) -> subprocess.Popen[str]:
        # A session of its own: Ctrl-C in the terminal reaches the tests only, and they stop the server.
        return subprocess.Popen(
            ["/bin/sh", "-c", WATCH, "watch", self._programs, self.folder, str(SECONDS), str(port)],
            **self._surroundings(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def _end(self, word: str) -> None:
        if self._watch is None:
            return
        with contextlib.suppress(BrokenPipeError):
            self._watch.communicate(word, timeout=SECONDS)
        self._watch = None

    def _surroundings(self) -> dict[str, Any]:
        # Variables such as PGDATA and PGOPTIONS are about another server.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
        return {"cwd": self.folder, "env": {**environment, "LC_ALL": "C"}, **self._identity}


def _programs() -> Path:
    """Return the folder of PostgreSQL's programs, the newest version's where there are several."""
    found = shutil.which("initdb")
    debian = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = sorted(debian, key=lambda path: [int(part) for part in path.parts[4].split(".") if part.isdigit()])
    for initdb in [Path(found)] if found else reversed(newest):
        # A link on the PATH leads to the folder where the other programs are, too.
        folder = initdb.resolve().parent
        if all(os.access(folder / name, os.X_OK) for name in ("initdb", "pg_ctl", "postgres")):
            return folder
    raise Unavailable("no PostgreSQL server is installed (Debian's package: postgresql)")


def _identity() -> dict[str, Any]:
    """Return the user that the server runs as, as `subprocess` takes it: not root, which PostgreSQL refuses."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise Unavailable("PostgreSQL refuses root, and there is neither a user postgres nor nobody")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def _scheme() -> str:
    """Return how a URL begins for the installed driver: SQLAlchemy 2.0 takes psycopg2 by default, 2.1 psycopg."""
    import sqlalchemy

    for scheme in ("postgresql", "postgresql+psycopg2", "postgresql+psycopg"):
        with contextlib.suppress(ImportError):
            sqlalchemy.make_url(f"{scheme}://").get_dialect().import_dbapi()
            return scheme
    raise Unavailable("no driver for PostgreSQL is installed (psycopg2-binary or psycopg[binary])")


def server_or_skip() -> PostgreSQL:
    """Return a server that is not yet started; skip the tests that ask for it where there can be none."""
    try:
        return PostgreSQL()
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """Return a running server, one for each process that runs tests."""
    with server_or_skip() as server:
        yield server


@pytest.fixture(scope="session")
def postgresql_url(postgresql: PostgreSQL) -> Callable[[], str]:
    """Return a function that makes an empty database and returns its URL."""
    return postgresql.new_database
