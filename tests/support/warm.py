"""Python programs that begin at once: each is forked from a server which has imported everything they import.

A test process has one server, started when it is first needed. The server trains nothing and starts no thread; for
each program it forks a process, which becomes the program: arguments, folder, environment, files, signals and
`__main__` are those that ``python`` would give it, and it ends as a Python process ends. A program has a session of its
own, as with ``start_new_session=True``, and dies with its `Program`.

    output = warm.run("-m", "studies.digits", "--trials", "5", folder=folder).stdout
    program = warm.start("-c", "import time; time.sleep(60)", folder=folder)
    program.send_signal(signal.SIGINT)
    program = warm.call(function, 1, 2)

Where imports are what a test is about, it starts ``sys.executable``.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import os
import pickle
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

ROOT = Path(__file__).parents[2]
SECONDS = 240.0
# What programs import, and what they import late.
IMPORTED = (
    *(
        "alembic.command",
        "datasets",
        "hpsearch.cli.main",
        "hpsearch.trainer.trainer",
        "hpsearch.executors.processes.worker",
        "numpy",
    ),
    *("optuna.importance", "peft", "rich.table", "safetensors.torch", "sklearn.datasets", "sklearn.model_selection"),
    *("torch", "transformers", "transformers.models.auto", "transformers.models.bert.modeling_bert"),
    *("transformers.models.vit.modeling_vit", "transformers.trainer", "tests.support.killing"),
)
_ADDRESS = "HPSEARCH_TESTS_WARM"  # the variable that says where the server listens
_LARGEST_ORDER = 150_000


@dataclass(frozen=True)
class _Order:
    """What a forked process has to be.

    Attributes:
        command: as after ``python``: ``-m`` and a module, ``-c`` and code, or a file; then its arguments.
        call: a pickled function without arguments, in place of a command.
    """

    folder: str
    environment: dict[str, str]
    command: tuple[str, ...] = ()
    call: bytes | None = None


class Program:
    """A program that runs, as `subprocess.Popen` would show it; one that has not been waited for ends with its block.

    Attributes:
        pid: of the process; its session and process group have the same number.
        stdout: what it prints: a pipe, or of a call a file.
        stderr: a file with what it prints there; None if that goes to `stdout`.
        returncode: None as long as it runs.
    """

    def __init__(self, address: str, order: _Order, files: Sequence[int]) -> None:
        self._command = order.command or ("a call",)
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(address)
        message = pickle.dumps(asdict(order))
        assert len(message) < _LARGEST_ORDER, "give large data in a file"
        socket.send_fds(self._connection, [message], files)
        self.pid = self._receive()
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None if it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code.

        Raises:
            subprocess.TimeoutExpired: it has not ended.
        """
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                self.returncode = self._receive()
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(self._command, timeout or 0.0) from None
        return self.returncode

    def communicate(self, timeout: float = SECONDS) -> tuple[str, str]:
        """Wait for the end and close all; return what it prints, of a pipe what has not been read, and its `stderr`.

        Raises:
            subprocess.TimeoutExpired: it has not ended, and was killed.
        """
        assert self.stdout is not None
        is_late = threading.Event()

        def kill() -> None:
            is_late.set()
            self.kill_group()

        timer = threading.Timer(timeout, kill)
        timer.start()
        try:
            output = "" if self.stdout.seekable() else self.stdout.read()
            self.wait()
        finally:
            timer.cancel()
        output, errors = output or _whole(self.stdout), _whole(self.stderr)
        self.close()
        if is_late.is_set():
            raise subprocess.TimeoutExpired(self._command, timeout, output + errors)
        return output, errors

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens if it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def kill_group(self) -> None:
        """Kill it and the processes it has started, unless they have a session of their own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill what still runs, and close all files."""
        if self.poll() is None:
            self.kill_group()
            self.wait()
        self._connection.close()
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _receive(self) -> int:
        told = self._connection.recv(100)
        assert told, "the server of warm programs has died"
        return int(told)


def start(
    *command: str, folder: Path | str = ROOT, has_stderr: bool = False, environment: dict[str, str] | None = None
) -> Program:
    """Start what ``python`` would start with these arguments.

    Args:
        command: what stands after ``python``.
        folder: the folder it runs in.
        has_stderr: keep what it prints on stderr apart.
        environment: in place of this process's own.
    """
    variables = dict(os.environ) if environment is None else environment
    reading, writing = os.pipe()
    errors = tempfile.TemporaryFile("w+") if has_stderr else None  # noqa: SIM115 - the program closes it
    try:
        program = _start(_Order(str(folder), variables, command), writing, errors.fileno() if errors else writing)
    finally:
        os.close(writing)
    program.stdout, program.stderr = os.fdopen(reading, "r", errors="replace"), errors
    return program


def call(function: Callable[..., object], *arguments: Any) -> Program:
    """Start a process that calls `function`, which it and its own processes import by name; its output is a file."""
    output = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - the program closes it
    work = pickle.dumps(functools.partial(function, *arguments))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = _start(_Order(str(ROOT), environment, call=work), output.fileno(), output.fileno())
    program.stdout = output
    return program


def run(
    *command: str, folder: Path | str = ROOT, timeout: float = SECONDS, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run what ``python`` would run with these arguments to its end; `stdout` and `stderr` are apart."""
    program = start(*command, folder=folder, has_stderr=True, environment=environment)
    output, errors = program.communicate(timeout)
    assert program.returncode is not None
    return subprocess.CompletedProcess(command, program.returncode, output, errors)


def programs_folder() -> Path:
    """Return a folder with programs ``python`` and ``hpsearch`` that begin at once, for the PATH of other programs."""
    return Path(_server().programs)


def _start(order: _Order, output: int, errors: int) -> Program:
    sys.audit("tests.support.warm")
    with open(os.devnull) as nothing:
        return Program(_server().address, order, [nothing.fileno(), output, errors])


def _whole(stream: IO[str] | None) -> str:
    if stream is None or not stream.seekable():
        return ""
    stream.seek(0)
    return stream.read()


@dataclass
class _Server:
    """The server process as this process sees it."""

    folder: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="warm-"))

    def __post_init__(self) -> None:
        self.address, self.programs = f"{self.folder}/socket", f"{self.folder}/bin"
        os.mkdir(self.programs)
        for name, first in (("python", ""), ("hpsearch", "-m hpsearch")):
            program = Path(self.programs, name)
            program.write_text(
                f'#!/bin/sh\n{_ADDRESS}={self.address} exec {sys.executable} -IS {__file__} {first} "$@"\n'
            )
            program.chmod(0o755)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(self.address)
        listener.listen(100)
        with listener:
            code = f"from tests.support import warm; warm.serve({listener.fileno()})"
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,  # its end is that of this process
                stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        atexit.register(self.close, os.getpid())

    def close(self, owner: int) -> None:
        if os.getpid() == owner:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(20)
            shutil.rmtree(self.folder, ignore_errors=True)


_lock = threading.Lock()
_started: _Server | None = None


def _server() -> _Server:
    """Return the server of this process, which may still import: orders wait for it."""
    global _started
    with _lock:
        if _started is None:
            _started = _Server()
    return _started


# In the server.


def serve(listener: int) -> None:
    """Fork a process for each order that arrives, until the process that has started this one ends."""
    for name in IMPORTED:
        importlib.import_module(name)
    importlib.import_module("torch").set_num_threads(1)
    gc.collect()
    gc.freeze()  # so that forked processes keep sharing it
    order = _Forks(listener).first_order_in_child()
    if order is not None:
        _be(order)


class _Forks:
    """Forks processes and tells how they end, those that have asked."""

    def __init__(self, listener: int) -> None:
        self._listener = socket.socket(fileno=listener)
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, socket.socket] = {}  # by the descriptor of the process
        self._pids: dict[int, int] = {}

    def first_order_in_child(self) -> _Order | None:
        """Return in each forked process with its order, and in this one with None at the very end."""
        self._selector.register(0, selectors.EVENT_READ, self._end)
        self._selector.register(self._listener, selectors.EVENT_READ, self._fork)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj not in self._selector.get_map():
                    continue  # it has gone with one before it
                order = key.data(key.fileobj)
                if order is not None or key.data == self._end:
                    return order

    def _fork(self, _: Any) -> _Order | None:
        connection, _ = self._listener.accept()
        message, files, *_ = socket.recv_fds(connection, _LARGEST_ORDER, 3)
        if not message:
            connection.close()
            return None
        order = _Order(**pickle.loads(message))
        pid = os.fork()
        if pid == 0:
            self._become_child(files, connection)
            return order
        for each in files:
            os.close(each)
        process = os.pidfd_open(pid)
        self._running[process], self._pids[process] = connection, pid
        self._selector.register(process, selectors.EVENT_READ, self._tell_end)
        self._selector.register(connection, selectors.EVENT_READ, functools.partial(self._abandon, process))
        _tell(connection, pid)
        return None

    def _become_child(self, files: list[int], connection: socket.socket) -> None:
        os.setsid()
        for number, each in enumerate(files):
            os.dup2(each, number)
            os.close(each)
        self._selector.close()
        self._listener.close()
        connection.close()
        for process, other in self._running.items():
            os.close(process)
            other.close()

    def _tell_end(self, process: int) -> None:
        _, status = os.waitpid(self._pids.pop(process), 0)
        connection = self._running.pop(process)
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
        self._selector.unregister(process)
        os.close(process)
        _tell(connection, os.waitstatus_to_exitcode(status))
        connection.close()

    def _abandon(self, process: int, connection: socket.socket) -> None:
        """Kill a process that nobody waits for."""
        self._selector.unregister(connection)
        _kill_group(self._pids[process])

    def _end(self, _: Any) -> None:
        for pid in self._pids.values():
            _kill_group(pid)


def _tell(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it
        connection.send(str(number).encode())


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # it may have no group yet
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


# In the forked process.


def _be(order: _Order) -> NoReturn:
    """Be the program, and end as Python ends; only the modules are not taken down, which would take a second."""
    try:
        _prepare(order)
        _run(order)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException as error:
        code = -signal.SIGINT if type(error) is KeyboardInterrupt else 1
        try:
            sys.excepthook(type(error), error, error.__traceback__)
        except SystemExit as ended:
            code = int(ended.code or 0)
    threading._shutdown()  # type: ignore[attr-defined] # waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _prepare(order: _Order) -> None:
    """Give this process the surroundings of the program."""
    places = sys.path[1 + len(_listed(os.environ.get("PYTHONPATH", ""))) :]
    os.environ.clear()
    os.environ.update(order.environment)
    sys.orig_argv[:] = ["python", *order.command]
    os.chdir(order.folder)
    sys.path[:] = [*_listed(os.environ.get("PYTHONPATH", "")), *places]
    importlib.invalidate_caches()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout.reconfigure(write_through=bool(os.environ.get("PYTHONUNBUFFERED")))  # type: ignore[union-attr]
    importlib.import_module("numpy").random.seed()  # as each new process draws its own
    program = sys.modules["__main__"]
    for name in [each for each in vars(program) if not each.startswith("__")]:
        delattr(program, name)


def _run(order: _Order) -> None:
    if order.call is not None:
        pickle.loads(order.call)()
        return
    program = sys.modules["__main__"]
    first, *arguments = order.command
    if first == "-m":
        sys.argv = ["-m", *arguments[1:]]
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(arguments[0])  # type: ignore[attr-defined] # as ``python -m`` itself does
    elif first == "-c":
        sys.argv = ["-c", *arguments[1:]]
        sys.path.insert(0, "")
        exec(compile(arguments[0], "<string>", "exec"), vars(program))
    else:
        sys.argv = [first, *arguments]
        sys.path.insert(0, str(Path(first).resolve().parent))
        program.__file__, program.__cached__ = first, None  # type: ignore[attr-defined]
        exec(compile(Path(first).read_bytes(), first, "exec"), vars(program))


def _listed(places: str) -> list[str]:
    return [each for each in places.split(os.pathsep) if each]


def _main() -> None:
    """Be ``python``: let the server fork a program with the files of this process, and end as it ends."""
    address = os.environ.pop(_ADDRESS)
    program = Program(address, _Order(os.getcwd(), dict(os.environ), tuple(sys.argv[1:])), [0, 1, 2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):  # what a launcher sends to its processes
        signal.signal(number, lambda each, _: os.kill(program.pid, each))
    code = program.wait()
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    _main()
