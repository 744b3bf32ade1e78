"""What a request may have in all is bounded before anything is made of it, whatever array or structure it is in."""

from __future__ import annotations

import struct

import pytest
from kio.schema.metadata.v12.request import MetadataRequest

from waystation.protocols.kafka.engine import Request
from waystation.protocols.kafka.records import fetch_codec, produce_codec
from waystation.protocols.kafka.requests import bounds
from waystation.wire.kafka_types import MAX_ARRAY, MAX_TAGS, Malformed, Reader, write_uvarint

PARTITION = struct.pack(">iqi", 1, 0, 1000)


def fetch(topics: int, partitions: int) -> memoryview:
    """In version 4."""
    topic = struct.pack(">h", 1) + b"t" + struct.pack(">i", partitions) + PARTITION * partitions
    return memoryview(struct.pack(">iiiibi", -1, 0, 1, 1000, 0, topics) + topic * topics)


def tags(count: int) -> bytes:
    """Empty ones."""
    out = bytearray()
    write_uvarint(out, count)
    return bytes(out) + b"\x00\x00" * count


def test_partitions_of_all_topics_of_a_fetch_count_together() -> None:
    assert len(fetch_codec.decode(fetch(2, MAX_ARRAY // 2 - 1), 4).partitions) == MAX_ARRAY - 2
    with pytest.raises(Malformed, match="more than 200000 elements"):
        fetch_codec.decode(fetch(4, MAX_ARRAY // 2), 4)


def test_a_fetch_names_no_topic_that_there_cannot_be() -> None:
    """Its session would keep the name."""

    def of(name: bytes) -> memoryview:
        head = struct.pack(">iiiibih", -1, 0, 1, 1000, 0, 1, len(name))
        return memoryview(head + name + struct.pack(">i", 1) + PARTITION)

    assert len(fetch_codec.decode(of(b"t" * 249), 4).partitions) == 1
    for size in (250, 30_000):
        with pytest.raises(Malformed, match=f"name of {size} characters"):
            fetch_codec.decode(of(b"t" * size), 4)


def test_partitions_of_all_topics_of_a_produce_request_count_together() -> None:
    half = MAX_ARRAY // 2
    topic = struct.pack(">h", 1) + b"t" + struct.pack(">i", half) + struct.pack(">ii", 1, -1) * half
    body = struct.pack(">hhii", -1, 1, 1000, 3) + topic * 3
    with pytest.raises(Malformed, match="more than 200000 elements"):
        produce_codec.decode(memoryview(body), 3)


def test_tagged_fields_are_counted() -> None:
    Reader(tags(MAX_TAGS), True).tags()
    with pytest.raises(Malformed, match="tagged fields"):
        Reader(tags(MAX_TAGS + 1), True).tags()
    several = Reader(tags(MAX_TAGS) * 3, True, 2 * MAX_TAGS)
    several.tags()
    several.tags()
    with pytest.raises(Malformed, match="more than 200 elements"):
        several.tags()


def test_tagged_fields_of_a_header_and_of_a_request_are_counted() -> None:
    header = Request(3, 12, 1, memoryview(b"\xff\xff" + tags(1_000_000)), 0)
    with pytest.raises(Malformed, match="tagged fields"):
        header.body(True)
    metadata = b"\x00\x00\x00"  # of all topics, creating none, without what they allow
    bounds.check(MetadataRequest, metadata + tags(MAX_TAGS))
    with pytest.raises(Malformed, match="tagged fields"):
        bounds.check(MetadataRequest, metadata + tags(1_000_000))
