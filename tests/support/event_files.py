"""What TensorBoard's event files hold."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path


class Events:
    """What the event files of one folder hold: numbers by name and step, and texts by name."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self.scalars: dict[str, dict[int, float]] = {}
        self.texts: dict[str, str] = {}
        for path in sorted(folder.glob("events.out.tfevents.*")):
            for record in records(path.read_bytes()):
                event = Event.FromString(record)
                for value in event.summary.value:
                    if value.HasField("simple_value"):
                        self.scalars.setdefault(value.tag, {})[event.step] = value.simple_value
                    elif value.HasField("tensor"):
                        self.texts[value.tag.removesuffix("/text_summary")] = value.tensor.string_val[0].decode()


def records(content: bytes) -> Iterator[bytes]:
    """The records of a TFRecord file: length, its checksum, the bytes, their checksum."""
    start = 0
    while start < len(content):
        (length,) = struct.unpack_from("<Q", content, start)
        yield content[start + 12 : start + 12 + length]
        start += length + 16


def event_folders(folder: Path) -> list[Path]:
    return sorted({path.parent for path in folder.rglob("events.out.tfevents.*")})
