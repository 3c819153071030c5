"""What a search on a cluster tells the process that has begun it, which is not there, and hears of it."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import pickle
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError

from ...search.listener import SearchListener
from ...search.study import Study
from ...search.trial import FixedTrial, Trial

_SECONDS_TO_LISTEN = 0.5


class Exchange:
    """An actor between the search and the process that has begun it."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[bytes] = asyncio.Queue()
        self._interrupt = asyncio.Event()

    async def put(self, event: bytes) -> None:
        """Take an event of the search."""
        self._events.put_nowait(event)

    async def get(self, seconds: float) -> list[bytes]:
        """Return the events that there are; wait for one if there is none."""
        with contextlib.suppress(asyncio.TimeoutError):
            events = [await asyncio.wait_for(self._events.get(), seconds)]
            while not self._events.empty():
                events.append(self._events.get_nowait())
            return events
        return []

    async def interrupt(self) -> None:
        """Ask the search to end."""
        self._interrupt.set()

    async def is_interrupted(self) -> None:
        """Wait until the search is asked to end."""
        await self._interrupt.wait()


class Wire:
    """The exchange, from either end.

    Args:
        exchange: handle of an `Exchange`.
    """

    def __init__(self, exchange: Any) -> None:
        self._exchange = exchange
        self._trials: dict[int, Trial] = {}

    def listen(self, listener: SearchListener) -> None:
        """Pass on what the search has told; wait a moment if it is nothing."""
        for event in ray.get(self._exchange.get.remote(_SECONDS_TO_LISTEN)):
            method, arguments = pickle.loads(event)  # noqa: S301 - our own bytes
            getattr(listener, method)(*map(self._as_known, arguments))

    def tell(self, method: str, *arguments: Any) -> None:
        """Tell an event; as bytes, because the actor does not know the user's modules."""
        ray.get(self._exchange.put.remote(cloudpickle.dumps((method, arguments))))  # type: ignore[no-untyped-call]

    def interrupt(self) -> None:
        """Interrupt the search, as Ctrl-C does. (Ray would not let a task that it cancels use Ray any more.)"""
        ray.get(self._exchange.interrupt.remote())

    def cut(self) -> None:
        """End the exchange."""
        ray.kill(self._exchange)

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raise KeyboardInterrupt in this block of the main thread when the search is interrupted."""
        is_over = threading.Event()

        def watch() -> None:
            with contextlib.suppress(RayError):
                ray.get(self._exchange.is_interrupted.remote())
                if not is_over.is_set():
                    _thread.interrupt_main()

        threading.Thread(target=watch, name="hpsearch interrupt", daemon=True).start()
        try:
            yield
        finally:
            is_over.set()

    def _as_known(self, value: Any) -> Any:
        """Return the same object for the same trial, every time."""
        if not isinstance(value, Trial):
            return value
        same = self._trials.setdefault(value.number, value)
        same.params.values_by_name.update(value.params.values_by_name)
        return same


class Relay(SearchListener):
    """Tells of a search in another process; trials are told by number, name and parameters."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def on_search_begin(self, study: Study, records: Sequence[Any], notes: Sequence[str]) -> None:
        """Tell."""
        self._wire.tell("on_search_begin", study, list(records), list(notes))

    def on_trial_begin(self, trial: Trial) -> None:
        """Tell."""
        self._wire.tell("on_trial_begin", _plain(trial))

    def on_report(self, trial: Trial, report: Any) -> None:
        """Tell."""
        self._wire.tell("on_report", _plain(trial), report)

    def on_progress(self, trial: Trial, step: int, max_steps: int) -> None:
        """Tell."""
        self._wire.tell("on_progress", _plain(trial), step, max_steps)

    def on_records(self, records: Sequence[Any]) -> None:
        """Tell."""
        self._wire.tell("on_records", list(records))

    def on_trial_end(self, record: Any) -> None:
        """Tell."""
        self._wire.tell("on_trial_end", record)

    def on_notice(self, notice: str) -> None:
        """Tell."""
        self._wire.tell("on_notice", notice)

    def on_search_end(self, study: Study, records: Sequence[Any]) -> None:
        """Tell."""
        self._wire.tell("on_search_end", study, list(records))


def _plain(trial: Trial) -> Trial:
    plain = FixedTrial(dict(trial.params.values_by_name), trial.number, dict(trial.arguments))
    plain.name = trial.name
    return plain
