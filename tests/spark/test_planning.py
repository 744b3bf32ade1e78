"""Options, positions, ranges, shares and filters: plain data, without Spark and without a broker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.errors import Invalid
from waystation.spark.options import EARLIEST, LATEST, pattern_of, read_options
from waystation.spark.reading.filters import wanted_by
from waystation.spark.reading.planning import Position, Range, ranges_between, share, split

pytestmark = pytest.mark.quick

HERE = {"servers": "127.0.0.1:9092", "topics": "orders"}


# -- options -----------------------------------------------------------------------------------------------------------


def test_options_are_read_whatever_their_case() -> None:
    options = read_options(
        {
            "SERVERS": "one:1, two:2,three",
            "topics": "a, b,a",
            "startingoffsets": '{"a": {"0": 5, "1": -2, "2": "latest"}}',
            "maxRowsPerTrigger": "10",
            "failondataloss": "False",
            "isolation": "READ_UNCOMMITTED",
        },
        streaming=True,
    )
    assert options.servers.addresses == (("one", 1), ("two", 2), ("three", 9092))
    assert options.topics == ("a", "b")
    assert options.starting.each == {("a", 0): 5, ("a", 1): EARLIEST, ("a", 2): LATEST}
    assert (options.max_rows, options.fail_on_data_loss, options.committed) == (10, False, False)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOfsets": "latest"}, "did you mean 'startingOffsets'"),
        ({"topic": "x"}, "called 'topics' here"),
        ({"subscribe": "x"}, "called 'topics' here"),
        ({"kafka.bootstrap.servers": "x:1"}, "called 'servers' here"),
        ({"maxOffsetsPerTrigger": "5"}, "called 'maxRowsPerTrigger' here"),
        ({"zzzzz": "1"}, "the options are servers, topics"),
        ({"servers": ""}, "the option servers is missing"),
        ({"servers": "host:port"}, "is not host:port"),
        ({"pattern": "a.*"}, "exactly one of the options topics, pattern and assign"),
        ({"topics": ""}, "none was given"),
        ({"topics": "", "pattern": "a*b"}, "stand for whole words"),
        ({"topics": "", "assign": "[1]"}, 'for instance {"orders": [0, 1]}'),
        ({"topics": "", "assign": '{"a": [-1]}'}, "topic 'a' has [-1]"),
        ({"startingOffsets": "first"}, "'first' is not JSON"),
        ({"startingOffsets": '{"a": {"x": 1}}'}, "topic 'a' has 'x': 1"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "topic 'a' has '0': -3"),
        ({"startingOffsets": "latest", "startingTimestamp": "5"}, "give one of startingOffsets, startingTimestamp"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": "noon"}}'}, "topic 'a' has {'0': 'noon'}"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "'earliest' is none of latest, error"),
        ({"startingOffsetsByTimestamp": '{"a": 5}'}, "topic 'a' has 5"),
        ({"startingTimestamp": "yesterday"}, "is no time"),
        ({"endingOffsets": "earliest"}, "cannot be the earliest"),
        ({"maxRowsPerTrigger": "0"}, "whole number above zero"),
        ({"maxBytesPerTrigger": "1k"}, "whole number above zero"),
        (
            {"minRowsPerTrigger": "5", "maxRowsPerTrigger": "4"},
            "minRowsPerTrigger: 5 is more than maxRowsPerTrigger, 4",
        ),
        ({"maxTriggerDelay": "5m"}, "give that too"),
        ({"minRowsPerTrigger": "5", "maxTriggerDelay": "soon"}, "maxTriggerDelay: 'soon' is not a duration"),
        ({"subscribePatern": "a"}, "did you mean 'subscribePattern'"),
        ({"minOffsetsPerTriger": "5"}, "did you mean 'minOffsetsPerTrigger'"),
        ({"failOnDataLoss": "maybe"}, "neither true nor false"),
        ({"isolation": "read_commited"}, "did you mean 'read_committed'"),
        ({"valueFormat": "xml"}, "none of binary, json"),
        ({"valueFormat": "avro"}, "needs the option avroSchema"),
        ({"retryTimeout": "long"}, "no number of seconds"),
    ],
)
def test_a_wrong_option_gets_one_clear_sentence(given: dict[str, str], says: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_options({**HERE, **given}, streaming=False)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(Invalid, match="for batch reads"):
        read_options({**HERE, "endingOffsets": "latest"}, streaming=True)


def test_times_are_milliseconds_or_iso() -> None:
    for text in ("1714996800000", "2024-05-06T12:00:00+00:00", "2024-05-06T12:00:00", "2024-05-06T14:00:00+02:00"):
        options = read_options({**HERE, "startingTimestamp": text}, streaming=False)
        assert options.starting.timestamp_ms == 1714996800000


def test_patterns_are_wildcards_or_regular_expressions() -> None:
    assert pattern_of("orders.*").matches("orders.eu")
    assert not pattern_of("orders.*").matches("orders.eu.berlin")
    assert pattern_of("orders.#").matches("orders.eu.berlin")
    assert pattern_of("^orders.*").matches("orders2")


# -- positions ---------------------------------------------------------------------------------------------------------

partitions = st.tuples(st.sampled_from(["a", "b", "c.d"]), st.integers(0, 20))
offsets = st.dictionaries(partitions, st.integers(0, 2**62), max_size=8)


@given(offsets, offsets, offsets)
def test_a_position_is_always_the_same_text(at: Any, begun: Any, lost: Any) -> None:
    one = Position(at, begun, {"b": "1", "a": "2"}, lost)
    text = json.dumps(one.to_json())
    assert json.dumps(one.to_json(), sort_keys=True) == text
    back = Position.from_json(json.loads(text))
    assert back == one
    turned = Position(dict(reversed(at.items())), begun, {"a": "2", "b": "1"}, lost)
    assert json.dumps(turned.to_json()) == text


def test_the_checkpoint_of_another_query_is_refused() -> None:
    with pytest.raises(Invalid, match="belongs to another query"):
        Position.from_json({"logOffset": 5})


def test_a_replayed_first_batch_begins_where_it_began_the_first_time() -> None:
    first = Position({("t", 0): 10}, {("t", 0): 10}, {"t": "id"})
    end = Position({("t", 0): 15}, {("t", 0): 10}, {"t": "id"})
    asked_again = Position({("t", 0): 15}, {("t", 0): 15}, {"t": "id"})  # "latest" has moved
    assert ranges_between(first, end) == ranges_between(asked_again, end) == [Range("t", 0, 10, 15)]
    assert ranges_between(end, end) == []


def test_a_new_partition_begins_where_it_was_first_seen() -> None:
    start = Position({("t", 0): 10}, {("t", 0): 0}, {"t": "id"})
    end = Position({("t", 0): 12, ("t", 1): 7}, {("t", 0): 0, ("t", 1): 3}, {"t": "id"})
    assert ranges_between(start, end) == [Range("t", 0, 10, 12), Range("t", 1, 3, 7)]


def test_a_recreated_topic_is_read_from_its_own_beginning() -> None:
    start = Position({("t", 0): 10}, {("t", 0): 0}, {"t": "old"})
    end = Position({("t", 0): 20}, {("t", 0): 0}, {"t": "new"})
    assert ranges_between(start, end) == [Range("t", 0, 0, 20)]


# -- ranges and shares -------------------------------------------------------------------------------------------------

ranges = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 1000), st.integers(0, 1000)).map(
        lambda r: Range("t", *r[:2], r[1] + r[2])
    ),
    max_size=5,
)


@given(ranges, st.none() | st.integers(1, 50), st.none() | st.integers(1, 50))
def test_splitting_keeps_every_offset_once_and_makes_enough_ranges(
    whole: list[Range], least: int | None, most: int | None
) -> None:
    found = split(whole, least, most)
    total = sum(one.size for one in whole)
    assert sum(one.size for one in found) == total
    assert all(one.size > 0 for one in found)
    for one in whole:
        inside = [part for part in found if part.partition == one.partition and one.start <= part.start < one.end]
        assert not one.size or inside
    if least is not None:
        assert len(found) >= min(least, total)
    if most is not None:
        assert all(one.size <= most for one in found)


@given(st.dictionaries(partitions, st.integers(0, 500)), st.integers(1, 1000), st.integers(0, 10**6))
def test_a_limit_is_shared_so_that_nobody_starves(available: Any, limit: int, turn: int) -> None:
    given_ = share(available, limit, turn)
    waiting = {one: amount for one, amount in available.items() if amount}
    assert sum(given_.values()) == min(limit, sum(available.values()))
    assert all(0 <= amount <= available[one] for one, amount in given_.items())
    if limit >= len(waiting):
        assert all(given_[one] > 0 for one in waiting)


# -- filters -----------------------------------------------------------------------------------------------------------


@dataclass
class EqualTo:
    attribute: tuple[str, ...]
    value: Any


class In(EqualTo):
    pass


class GreaterThan(EqualTo):
    pass


class LessThanOrEqual(EqualTo):
    pass


class StringContains(EqualTo):
    pass


def test_filters_leave_what_they_may_want() -> None:
    noon = datetime(2024, 5, 6, 12, 0, 0, 1500, UTC)
    wanted = wanted_by(
        [
            In(("partition",), (0, 2, 5)),
            GreaterThan(("partition",), 0),
            GreaterThan(("offset",), 99),
            LessThanOrEqual(("offset",), 200),
            EqualTo(("topic",), "a"),
            GreaterThan(("timestamp",), noon),
            StringContains(("topic",), "zzz"),
            EqualTo(("value", "partition"), 3),
            EqualTo(("offset",), None),
        ]
    )
    assert [index for index in range(8) if wanted.has("a", index)] == [2, 5]
    assert not wanted.has("b", 2)
    assert (wanted.first, wanted.last) == (100, 200)
    assert wanted.since_us == int(noon.timestamp()) * 1_000_000 + 1501
    assert wanted.since_ms == int(noon.timestamp()) * 1000 + 2
