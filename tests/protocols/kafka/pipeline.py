"""A client that writes several requests at once and then reads their answers: what the real ones do, made exact.

Requests are given with the fields of their version, nested ones as dicts; see `admin_kit.build`.
"""

from __future__ import annotations

import socket
import struct
from io import BytesIO
from types import TracebackType
from typing import Any

from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from tests.protocols.kafka.admin_kit import build, entity
from tests.support.waiting import DEADLINE_S
from waystation.protocols.kafka.requests.codec import API_KEYS


class Pipeline:
    """One connection to a real broker."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._line = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
        self._asked: list[tuple[str, int]] = []
        self._unsent = b""
        self._number = 0

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.close()

    def add(self, name: str, version: int, **fields: Any) -> None:
        """One more request for the next write."""
        request = entity(name, version, EntityType.request)
        buffer = BytesIO()
        entity_writer(request)(buffer, build(request, fields))
        tags = b"\0" if request.__flexible__ else b""
        frame = struct.pack(">hhih", API_KEYS[name], version, self._number, 4) + b"test" + tags + buffer.getvalue()
        self._unsent += struct.pack(">i", len(frame)) + frame
        self._asked.append((name, version))
        self._number += 1

    def write(self) -> None:
        """Everything that was added, in one write."""
        self._line.sendall(self._unsent)
        self._unsent = b""

    def answer(self) -> Any:
        """The next answer in order."""
        name, version = self._asked.pop(0)
        response = entity(name, version, EntityType.response)
        data = memoryview(self._exactly(struct.unpack(">i", self._exactly(4))[0]))
        at = 5 if response.__flexible__ and name != "api_versions" else 4
        read, end = entity_reader(response)(data[at:], 0)
        assert end == len(data) - at
        return read

    def answers(self) -> list[Any]:
        """Writes what was added, and reads an answer to each."""
        self.write()
        return [self.answer() for _ in range(len(self._asked))]

    def ask(self, name: str, version: int, **fields: Any) -> Any:
        """One request and its answer."""
        self.add(name, version, **fields)
        return self.answers()[-1]

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._line.recv(size - len(data))
            if not more:
                raise ConnectionError("the broker closed the connection")
            data += more
        return data
