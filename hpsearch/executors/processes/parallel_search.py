"""A search whose trials run in workers: gives them trials, answers their reports and records the results."""

from __future__ import annotations

from ...coordinator.coordinator import Coordinator
from ...coordinator.lost_worker import Loss
from ...errors import StorageError
from ...system.ctrl_c import at_ctrl_c, ignoring_ctrl_c
from ...trial.ending import Ended
from ...trial.messages import Message, Progress
from .device_memory import DeviceMemory
from .device_slots import Slot
from .pool import Lost, Worker, Workers
from .shared_devices import SharedDevices
from .worker import Measured

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_WORTH_TELLING = 1.0


class ParallelSearch:
    """Lets workers train the trials of a search.

    Args:
        coordinator: gives the trials, and receives what they report.
        workers: train them.
        shared: the GPUs that as many trials share as their memory allows.
    """

    def __init__(self, coordinator: Coordinator, workers: Workers, shared: SharedDevices) -> None:
        self._coordinator, self._workers, self._shared = coordinator, workers, shared
        self._trials: dict[Worker, int] = {}  # the number of the trial that each worker trains
        self._has_announced_start = False

    def run(self) -> None:
        """Run trials until there are none left; record an error that ends the search early, then raise it."""
        coordinator = self._coordinator
        try:
            with at_ctrl_c(coordinator.take_ctrl_c, times=2):
                self._workers.start()
                while not coordinator.is_ending:
                    self._give()
                    if coordinator.is_over:
                        break
                    for worker, message in self._workers.wait(_SECONDS_BETWEEN_LOOKS):
                        self._take(worker, message)
                    self._announce_start()
                if coordinator.interruption.signal:
                    self._finish_steps()
        except BaseException as error:
            coordinator.end_with(error)
        finally:
            with ignoring_ctrl_c():
                self._end()
        if coordinator.error is not None:
            raise coordinator.error

    def _announce_start(self) -> None:
        """Say once how long the first worker took to be ready, if that was long enough to wonder."""
        seconds = self._workers.seconds_to_first
        if seconds is not None and not self._has_announced_start:
            self._has_announced_start = True
            if seconds >= _SECONDS_WORTH_TELLING:
                self._coordinator.announce(f"First worker ready after {seconds:.1f} s")

    def _finish_steps(self) -> None:
        """Let the trials finish their steps and write checkpoints, as long as there is time; they are recorded."""
        interruption = self._coordinator.interruption
        self._coordinator.end_with(KeyboardInterrupt())
        if self._trials:
            self._coordinator.announce(interruption.announcement)
        self._workers.finish_steps(interruption.signal)
        while self._trials and not interruption.is_overdue:
            for worker, message in self._workers.wait(_SECONDS_BETWEEN_LOOKS):
                self._take(worker, message)

    def _give(self) -> None:
        """Give a trial to each worker that is ready."""
        for worker in self._workers.ready():
            if not self._has_place(worker):
                continue
            alone = self._alone_on_gpu_of(worker)
            assignment = self._coordinator.next() if alone is None else self._coordinator.resume(alone)
            if assignment is None:  # a worker of another GPU may have a trial that its GPU is kept for
                continue
            if self._workers.train(worker, assignment):
                self._trials[worker] = assignment.number
            elif alone is None:  # the worker has died: another one takes the trial
                self._coordinator.give_back(assignment.number)
        for device in self._shared.kept():
            if not self._workers.on_device(device):  # none could be started
                number = self._shared.share_again(device)
                self._coordinator.give_back(number)
        if not self._trials and not self._coordinator.running:  # no worker is ready, and perhaps none is needed
            assignment = self._coordinator.next()
            if assignment is not None:
                self._coordinator.give_back(assignment.number)

    def _has_place(self, worker: Worker) -> bool:
        """Return whether a worker that is ready may train a trial now; end it if its GPU has too many workers.

        While a GPU is kept for a trial, that trial may begin when no other one runs there, in the only worker.
        """
        for device in worker.slot.devices:
            beside = self._workers.on_device(device)
            wanted = 1 if self._shared.alone_on(device) is not None else self._shared.workers_on(device)
            if wanted is not None and len(beside) > wanted:
                self._workers.retire(worker)
                return False
        return True

    def _alone_on_gpu_of(self, worker: Worker) -> int | None:
        """Return the trial that the GPU of this worker is kept for."""
        return next((self._shared.alone_on(device) for device in worker.slot.devices), None)

    def _take(self, worker: Worker, message: Message | Measured | Ended | Lost) -> None:
        """Record a message of a worker, and answer it."""
        if isinstance(message, Measured):
            self._share(worker, message.memory)
            return
        number = self._trials[worker]
        if isinstance(message, Ended):
            del self._trials[worker]
            worker.is_ready = True  # also if the result cannot be recorded
            if not self._runs_again_alone(worker, message):
                self._coordinator.ended(message)
            self._workers.release(worker, has_failed=message.record.traceback is not None)
        elif isinstance(message, Lost):
            del self._trials[worker]
            self._share_again(worker, number)
            ended = self._coordinator.lost(number, Loss(message.reason))
            if ended is not None:
                self._coordinator.ended(ended)
        else:
            answer = self._coordinator.receive(number, message)
            if not isinstance(message, Progress):
                worker.send(answer)

    def _share(self, worker: Worker, memory: DeviceMemory) -> None:
        """Note what a trial has used of its GPU, and let as many trials share that as there is memory for."""
        if self._coordinator.is_ending:
            return
        [device] = worker.slot.devices
        before = self._shared.workers_on(device)
        is_first = self._shared.note(device, memory, worker.memory)
        if is_first or self._shared.workers_on(device) != before:
            self._coordinator.announce(self._shared.described(device))
        if is_first:
            self._fill(worker.slot)

    def _fill(self, slot: Slot) -> None:
        """Start the workers that are missing on the GPU of a slot."""
        [device] = slot.devices
        if self._shared.alone_on(device) is None:
            for _ in range((self._shared.workers_on(device) or 0) - len(self._workers.on_device(device))):
                self._workers.add(slot)

    def _runs_again_alone(self, worker: Worker, ended: Ended) -> bool:
        """Keep the GPU of a trial for it that has run out of memory beside others; return whether that is so."""
        number = ended.record.number
        was_alone = self._share_again(worker, number)
        if not ended.is_out_of_memory or was_alone or not worker.slot.is_measured:
            return False
        [device] = worker.slot.devices
        if len(self._workers.on_device(device)) == 1:
            return False
        self._shared.keep_for(device, number)
        self._coordinator.leave_for_later(number, "has run out of memory on a shared GPU: it runs again alone")
        return True

    def _share_again(self, worker: Worker, number: int) -> bool:
        """Let others use the GPU again that was kept for this trial; return whether one was."""
        kept = [device for device in worker.slot.devices if self._shared.alone_on(device) == number]
        for device in kept:
            self._shared.share_again(device)
            self._fill(worker.slot)
        return bool(kept)

    def _end(self) -> None:
        """Let the workers leave their trials, and record these as interrupted: they can be resumed."""
        error = self._coordinator.error
        try:
            if error is not None and not isinstance(error, StorageError):
                for worker, message in self._workers.abandon():
                    if worker in self._trials and isinstance(message, Ended):
                        worker.is_ready = True
                        del self._trials[worker]
                        self._coordinator.left(message)
        finally:
            try:
                self._workers.end()
            finally:
                self._coordinator.close()
