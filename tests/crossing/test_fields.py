"""Every field of a message through every pair of protocols: what is written at one is found at the other.

One test for each field, writer and reader, in topics and in queues. Where a field stands behind a protocol is read from
the page, so neither the page nor the broker can change without the other.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.crossing import page
from tests.crossing.amqp_way import address_of
from tests.crossing.conftest import Crossed
from tests.crossing.samples import Sample, samples_at
from tests.crossing.ways import Fields, Seen, now_ms

TOPIC_CELLS = [(field, here, there) for field in page.FIELDS.rows for here in page.WAYS for there in page.WAYS]
QUEUE_CELLS = [
    (field, here, there) for field in page.FIELDS.rows for here in page.QUEUE_WAYS for there in page.QUEUE_WAYS
]


def test_every_cell_of_the_page_is_tested_as_where_to_write_and_where_to_read() -> None:
    on_page = {(row, way) for row, column in page.FIELDS.cells() for way in page.ways_of(column)}
    assert {(field, here) for field, here, _ in TOPIC_CELLS} == on_page
    assert {(field, there) for field, _, there in TOPIC_CELLS} == on_page
    assert {(field, here) for field, here, _ in QUEUE_CELLS} == {cell for cell in on_page if cell[1] != "kafka"}
    assert {sample.field for sample in samples_at(0)} == set(page.FIELDS.rows)


@pytest.mark.parametrize(("field", "here", "there"), TOPIC_CELLS)
def test_through_a_topic(field: str, here: str, there: str, topics: Crossed) -> None:
    for sample, seen in of_field(topics, field, here, there):
        expected = addressed(sample, here, there, seen) | expected_behind_topic(sample, here, there)
        fields = dict(seen.fields)
        if field != "timestamp_ms":  # nobody said one, so it has the time of its arrival
            stamp = fields.pop("timestamp_ms")
            assert topics.began_ms - 1_000 <= stamp <= now_ms() + 1_000
        assert fields == expected, sample.label
        assert_same_types(fields, expected)


@pytest.mark.parametrize(("field", "here", "there"), QUEUE_CELLS)
def test_through_a_queue(field: str, here: str, there: str, queues: Crossed) -> None:
    for sample, seen in of_field(queues, field, here, there):
        expected = {"payload": sample.payload, **addressed(sample, here, there, seen), sample.field: sample.value}
        assert seen.fields == expected, sample.label
        assert_same_types(seen.fields, expected)


def of_field(crossed: Crossed, field: str, here: str, there: str) -> list[tuple[Sample, Seen]]:
    sent = [sample for sample in crossed.sent[here, there] if sample.field == field]
    assert sent
    return [(sample, crossed.seen[here, there][sample.label]) for sample in sent]


def expected_behind_topic(sample: Sample, here: str, there: str) -> Fields:
    if sample.waits and here != "kafka":  # it came to the topic when it was due, without the field
        return {"payload": sample.payload}
    if there != "kafka":
        return {"payload": sample.payload, sample.field: sample.behind}
    if sample.is_tombstone:
        return {"payload": None}
    return {"payload": sample.payload, sample.field: sample.record}


def addressed(sample: Sample, here: str, there: str, seen: Seen) -> Fields:
    """What a message says besides that was written in AMQP: where it was published to."""
    if here != "amqp":
        return {}
    exchange, key = address_of(sample, seen.place)
    said: Fields = {"exchange": exchange, "routing_key": key}
    if there == "amqp":  # there, nothing said is the same as what is usual
        said = {name: value for name, value in said.items() if value not in ("", seen.place)}
    return {name: value.encode() for name, value in said.items()} if there == "kafka" else said


def assert_same_types(found: Any, expected: Any) -> None:
    """1 is equal to 1.0 and to true; here it must be the same."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert_same_types(found[key], value)
    elif isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            assert_same_types(one, other)
