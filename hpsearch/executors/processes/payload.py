"""A trainer, pickled once into a file that all workers map.

The workers share the memory of its arrays, tensors and Arrow tables. The mapping is private: a worker that writes to a
page gets a copy of it, so no other worker sees the change.
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

from ...system.files import open_private_file
from .access_tokens import LeavesOutTokens
from .joined_arguments import JoinsGroups

# Smaller buffers are part of the pickle.
_LEAST_BYTES = 16 * 1024
_ALIGNMENT = 64


@dataclass(frozen=True)
class Payload:
    """A pickled object in a file.

    Attributes:
        file: holds the large buffers of the pickle, then the pickle without them.
        content: offset and length of the pickle in the file.
        extents: the same of each buffer.
    """

    file: Path
    content: tuple[int, int]
    extents: tuple[tuple[int, int], ...]

    @property
    def bytes_in_file(self) -> int:
        """The size of the file."""
        return self.file.stat().st_size

    def load(self) -> Any:
        """Return the object; its large data stay in the file, and are read when they are used.

        The functions and classes of the program's `__main__` that the object uses are put into `__main__` here, where
        standard pickle looks for them.
        """
        with self.file.open("rb") as stream:
            memory = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY))
        content, *buffers = (memory[start : start + length] for start, length in (self.content, *self.extents))
        value, program = pickle.loads(content, buffers=buffers)  # noqa: S301 - our own pickle
        vars(sys.modules["__main__"]).update(program)
        return value


class CannotBeWritten(Exception):
    """The file of a payload cannot be written: the disk is full, or permission is missing."""


def pack(value: object, file: Path) -> Payload:
    """Pickle an object into `file`.

    Raises:
        CannotBeWritten: see there.
        Exception: the error of a part of the object that cannot be pickled.
    """
    extents: list[tuple[int, int]] = []
    with _opened(file) as stream:

        def outside(buffer: pickle.PickleBuffer) -> bool:
            """Write a buffer into the file; return whether it must be part of the pickle instead."""
            content = buffer.raw()
            if content.nbytes < _LEAST_BYTES:
                return True
            _write(stream, b"\0" * (-stream.tell() % _ALIGNMENT))
            extents.append((stream.tell(), content.nbytes))
            _write(stream, content)
            return False

        pickled = io.BytesIO()
        pickler = Pickler(pickled, buffer_callback=outside)
        pickler.dump((value, pickler.program))
        begin = stream.tell()
        _write(stream, pickled.getbuffer())
    return Payload(file, (begin, pickled.getbuffer().nbytes), tuple(extents))


def _opened(file: Path) -> io.FileIO:
    try:
        return open_private_file(file)
    except OSError as error:
        raise CannotBeWritten(str(error)) from error


def _write(stream: io.FileIO, content: bytes | memoryview) -> None:
    """Write all bytes; the system may take only some of them at a time."""
    left = memoryview(content)
    while left:
        try:
            left = left[stream.write(left) :]
        except OSError as error:
            raise CannotBeWritten(str(error)) from error


class Pickler(JoinsGroups, LeavesOutTokens, cloudpickle.Pickler):
    """Pickles functions and classes of `__main__` by value, and tensors of the CPU as parts of their storages.

    Torch itself would pickle the whole storage with each of its views.

    Attributes:
        program: the functions and classes of `__main__` so far, by name.
    """

    def __init__(self, stream: object, buffer_callback: object) -> None:
        super().__init__(stream, protocol=5, buffer_callback=buffer_callback)
        self.program: dict[str, object] = {}
        self._storages: dict[tuple[int, int], _Storage] = {}

    def reducer_override(self, value: object) -> object:
        """Reduce a tensor to its storage and its shape; leave all else to cloudpickle."""
        if type(value) is torch.Tensor and _is_plain(value):
            parts = (value.storage_offset(), tuple(value.shape), value.stride())
            return _tensor, (self._storage_of(value), value.dtype, *parts, value.requires_grad)
        if isinstance(value, (type, types.FunctionType)) and _is_in_main(value):
            self.program[value.__qualname__] = value
        return super().reducer_override(value)

    def _storage_of(self, tensor: torch.Tensor) -> _Storage:
        storage = tensor.untyped_storage()
        place = (storage.data_ptr(), storage.nbytes())
        known = self._storages.get(place)
        if known is None:
            known = self._storages[place] = _Storage(storage)
        return known


def _is_in_main(value: type | types.FunctionType) -> bool:
    """Return whether `__main__` holds this function or class under its name."""
    return value.__module__ == "__main__" and getattr(sys.modules["__main__"], value.__qualname__, None) is value


class _Storage:
    """The memory of tensors, pickled as a buffer."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8).set_(storage)

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        return _storage, (pickle.PickleBuffer(self._bytes.numpy()),)  # type: ignore[arg-type]


def _is_plain(tensor: torch.Tensor) -> bool:
    is_here = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized
    is_whole = tensor.is_leaf and not tensor.is_conj() and not tensor.is_neg() and not vars(tensor)
    return is_here and is_whole and tensor.untyped_storage().nbytes() > 0


def _storage(content: Any) -> torch.UntypedStorage:
    """Return a storage over the memory of a buffer, or over a copy if the buffer is read-only."""
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
