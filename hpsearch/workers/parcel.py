"""A trainer on its way to the workers: pickled once, into a file that all workers map.

Workers see the arrays, tensors and Arrow tables of the trainer in the same memory; whoever writes to one gets a page of
its own (a private mapping), so nothing that one worker does can be seen by another.
"""

from __future__ import annotations

import io
import mmap
import pickle
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch

# Smaller buffers are part of the pickle.
_LEAST_BYTES = 16 * 1024
_ALIGNMENT = 64


@dataclass(frozen=True)
class Parcel:
    """A pickled object, in a file.

    Attributes:
        file: holds the large buffers of the pickle, and then the pickle without them.
        content: where the pickle is in the file: offset and length.
        extents: the same of each buffer.
    """

    file: Path
    content: tuple[int, int]
    extents: tuple[tuple[int, int], ...]

    @property
    def bytes_in_file(self) -> int:
        """How much is in the file."""
        return self.file.stat().st_size

    def open(self) -> Any:
        """Return the object; its large data stay in the file, and are read as they are needed.

        Functions and classes of the program itself that came with it are found in `__main__` here, too, by those who
        know them by name: standard pickle does.
        """
        with self.file.open("rb") as stream:
            memory = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY))
        content, *buffers = (memory[start : start + length] for start, length in (self.content, *self.extents))
        value, of_the_program = pickle.loads(content, buffers=buffers)  # noqa: S301 - our own pickle
        vars(sys.modules["__main__"]).update(of_the_program)
        return value


class CannotBeWritten(Exception):
    """The file of a parcel cannot be written: there is no room for it, or no right to it."""


def pack(value: Any, file: Path) -> Parcel:
    """Pickle an object into `file`.

    Raises:
        CannotBeWritten: the file cannot.
        Exception: whatever a part of the object raises that cannot be pickled.
    """
    extents: list[tuple[int, int]] = []
    with _opened(file) as stream:

        def outside(buffer: pickle.PickleBuffer) -> bool:
            """Write a buffer into the file; tell whether it is to be part of the pickle instead."""
            content = buffer.raw()
            if content.nbytes < _LEAST_BYTES:
                return True
            _write(stream, b"\0" * (-stream.tell() % _ALIGNMENT))
            extents.append((stream.tell(), content.nbytes))
            _write(stream, content)
            return False

        pickled = io.BytesIO()
        pickler = Pickler(pickled, buffer_callback=outside)
        pickler.dump((value, pickler.of_the_program))
        begin = stream.tell()
        _write(stream, pickled.getbuffer())
    return Parcel(file, (begin, pickled.getbuffer().nbytes), tuple(extents))


def _opened(file: Path) -> io.FileIO:
    try:
        return io.FileIO(file, "w")
    except OSError as error:
        raise CannotBeWritten(str(error)) from error


def _write(stream: io.FileIO, content: bytes | memoryview) -> None:
    """Write all of it; the system may take only a part at a time."""
    left = memoryview(content)
    while left:
        try:
            left = left[stream.write(left) :]
        except OSError as error:
            raise CannotBeWritten(str(error)) from error


class Pickler(cloudpickle.Pickler):
    """Pickles functions and classes of `__main__` by value, and tensors of the CPU as parts of their storages.

    Torch itself would pickle the whole storage with each of its views.

    Attributes:
        of_the_program: the functions and classes of `__main__` so far, by name.
    """

    def __init__(self, stream: Any, buffer_callback: Any) -> None:
        super().__init__(stream, protocol=5, buffer_callback=buffer_callback)
        self.of_the_program: dict[str, Any] = {}
        self._storages: dict[tuple[int, int], _Storage] = {}

    def reducer_override(self, value: Any) -> Any:
        """Return how a tensor is made of its storage; for anything else what cloudpickle does."""
        if type(value) is torch.Tensor and _is_plain(value):
            parts = (value.storage_offset(), tuple(value.shape), value.stride())
            return _tensor, (self._storage_of(value), value.dtype, *parts, value.requires_grad)
        if isinstance(value, (type, types.FunctionType)) and _is_of_the_program(value):
            self.of_the_program[value.__qualname__] = value
        return super().reducer_override(value)

    def _storage_of(self, tensor: torch.Tensor) -> _Storage:
        storage = tensor.untyped_storage()
        place = (storage.data_ptr(), storage.nbytes())
        known = self._storages.get(place)
        if known is None:
            known = self._storages[place] = _Storage(storage)
        return known


def _is_of_the_program(value: Any) -> bool:
    """Tell whether a function or class is known in `__main__` by its name."""
    return value.__module__ == "__main__" and getattr(sys.modules["__main__"], value.__qualname__, None) is value


class _Storage:
    """The memory of tensors, which becomes a buffer of a pickle."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8).set_(storage)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _storage, (pickle.PickleBuffer(self._bytes.numpy()),)  # type: ignore[arg-type]


def _is_plain(tensor: torch.Tensor) -> bool:
    is_here = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized
    is_whole = tensor.is_leaf and not tensor.is_conj() and not tensor.is_neg() and not vars(tensor)
    return is_here and is_whole and tensor.untyped_storage().nbytes() > 0


def _storage(content: Any) -> torch.UntypedStorage:
    """Return a storage over the memory of a buffer; one that cannot be written to is copied."""
    array = np.frombuffer(content, dtype=np.uint8)
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array).untyped_storage()


def _tensor(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride).requires_grad_(requires_grad)
