"""Where the records of a produce request are in the connection's buffer: they are checked there, without a copy."""

from __future__ import annotations

import struct

import pytest

from waystation.protocols.kafka.engine import Engine
from waystation.protocols.kafka.records import produce_codec
from waystation.wire.kafka_types import write_array, write_string, write_uvarint

PARTS: dict[str, dict[int, bytes | None]] = {
    "first": {0: b"a" * 100, 3: b"b" * 70_000},
    "second": {1: b"", 2: None, 7: b"c"},
}


def request(version: int) -> bytes:
    compact = version >= produce_codec.FIRST_FLEXIBLE
    out = bytearray(struct.pack(">hhih", 0, version, 7, 4) + b"name" + b"\0" * compact)
    out += (b"\0" if compact else b"\xff\xff") + struct.pack(">hi", -1, 1000)
    write_array(out, len(PARTS), compact)
    for topic, partitions in PARTS.items():
        write_string(out, topic, compact)
        write_array(out, len(partitions), compact)
        for index, records in partitions.items():
            out += struct.pack(">i", index)
            if compact:
                write_uvarint(out, 0 if records is None else len(records) + 1)
            else:
                out += struct.pack(">i", -1 if records is None else len(records))
            out += (records or b"") + b"\0" * compact
        out += b"\0" * compact
    out += b"\0" * compact
    return struct.pack(">i", len(out)) + out


@pytest.mark.parametrize("version", [3, 9])
def test_every_batch_is_where_its_request_says_in_the_buffer(version: int) -> None:
    """Also that of a second request behind the first one."""
    engine = Engine(1 << 20)
    left = request(version) * 2
    while left:
        room = engine.buffer()
        size = min(len(room), len(left))
        room[:size] = left[:size]
        engine.received(size)
        left = left[size:]
    for _ in range(2):
        found = engine.next_request()
        assert found is not None
        _, body = found.body(version >= produce_codec.FIRST_FLEXIBLE)
        decoded = produce_codec.decode(body, version, found.end - len(body))
        assert {part.topic for part in decoded.partitions} == PARTS.keys()
        for part in decoded.partitions:
            expected = PARTS[str(part.topic)][part.index]
            assert (None if part.records is None else bytes(part.records)) == expected
            if part.records is not None:
                buffer = part.records.obj
                assert isinstance(buffer, bytearray)
                assert bytes(buffer[part.place : part.place + len(part.records)]) == expected
