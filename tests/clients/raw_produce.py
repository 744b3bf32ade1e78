"""Record batches that no producer would make, sent by hand: Produce version 8, one partition, acks=all."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

from tests.support.waiting import DEADLINE_S
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import MAGIC, Header, write_varint
from waystation.log.batches.compression import compress


class Answer(NamedTuple):
    error: int
    base_offset: int
    message: str | None


def produce(bootstrap: str, topic: str, batch: bytes | bytearray, partition: int = 0) -> Answer:
    """Sends one batch and returns what the broker says to it."""
    name = topic.encode()
    body = struct.pack(">hhi", -1, -1, 30_000) + struct.pack(">ih", 1, len(name)) + name
    body += struct.pack(">iii", 1, partition, len(batch)) + bytes(batch)
    head = struct.pack(">hhih", 0, 8, 7, 4) + b"test"
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as line:
        line.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        answer = _exactly(line, struct.unpack(">i", _exactly(line, 4))[0])
    at = 4 + 4 + 2 + len(name) + 4  # correlation id, topics, the topic's name, partitions
    _, error, base, _, _ = struct.unpack_from(">ihqqq", answer, at)
    at += 30 + 4  # and no errors of single records
    (size,) = struct.unpack_from(">h", answer, at)
    return Answer(error, base, None if size < 0 else answer[at + 2 : at + 2 + size].decode())


def _exactly(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = line.recv(size - len(data))
        if not more:
            raise ConnectionError("the broker closed the connection")
        data += more
    return data


def batch_of(body: bytes, count: int, now_ms: int, codec: int = 0, *, packed: bytes | None = None) -> bytearray:
    """A batch with a right header and checksum around these records, whatever they are."""
    header = Header(0, 0, -1, MAGIC, 0, codec, count - 1, now_ms, now_ms, -1, -1, -1, count)
    return batches.assemble(header, compress(codec, body) if packed is None else packed)


def tiny_records(count: int) -> bytes:
    """Records with nothing in them, as many as one likes: what compresses best."""
    parts: list[bytes] = []
    for delta in range(count):
        number = bytearray()
        write_varint(number, delta)
        parts.append(bytes((2 * (5 + len(number)),)) + b"\0\0" + number + b"\1\1\0")
    return b"".join(parts)
