"""What the broker does with priorities, delays, times to live and retry limits, whichever protocol they came by.

One test for each cell of the page's table, through all protocols; and the same of what the text around the table says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.clients.share_kit import share_consumer, take
from tests.crossing import page
from tests.crossing.samples import HOUR_MS, LONG_AGO_MS, Sample, number, text
from tests.crossing.ways import MODES, FramesWay, HttpWay, KafkaWay, LinesWay, Mode, Seen, Way, modes_of_way, now_ms
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for

QUEUE, SHARED, FOLLOWED, KAFKA = page.DEEDS.columns
MODES_OF: dict[str, tuple[Mode, ...]] = {SHARED: ("shared",), FOLLOWED: ("stream", "live")}


def modes_of(way: str, column: str) -> list[Mode]:
    return [mode for mode in MODES_OF[column] if mode in modes_of_way(way)]


WAIT_MS = 200
"""A delay that is long enough to see that it is kept, and short enough to wait for."""


@dataclass
class Protocols:
    """All ways, and those by name that do more than the others."""

    ways: dict[str, Way]
    server: Server

    @property
    def kafka(self) -> KafkaWay:
        way = self.ways["kafka"]
        assert isinstance(way, KafkaWay)
        return way

    @property
    def lines(self) -> LinesWay:
        way = self.ways["lines"]
        assert isinstance(way, LinesWay)
        return way

    @property
    def frames(self) -> FramesWay:
        way = self.ways["frames"]
        assert isinstance(way, FramesWay)
        return way

    @property
    def http(self) -> HttpWay:
        way = self.ways["http"]
        assert isinstance(way, HttpWay)
        return way

    def queue(self, **settings: Any) -> str:
        return self.lines.lines.queue(unique("q"), **settings)

    def await_counts(self, queue: str, counts: tuple[int, int, int]) -> None:
        """Waits until so many are ready, delayed and in flight."""
        wait_for(lambda: self.lines.lines.counts(queue) == counts, f"{queue} has {counts}")

    def readings(self, column: str, topics: Sequence[str], count: int) -> list[list[Seen]]:
        """What is read of topics by all protocols that the column is about, in each of its modes; by topic, in
        order."""
        readers: list[tuple[Way, Mode | None]] = [(self.kafka, None)]
        if column != KAFKA:
            readers = [(self.ways[name], mode) for name in page.QUEUE_WAYS for mode in modes_of(name, column)]
        found = []
        for reader, mode in readers:
            seen = reader.read(topics, count * len(topics), mode)
            assert len(seen) == count * len(topics)
            found += [[one for one in seen if one.place == topic] for topic in topics]
        return found


@pytest.fixture
def protocols(ways: dict[str, Way], server: Server) -> Protocols:
    return Protocols(ways, server)


def payloads(messages: Sequence[Seen]) -> list[str]:
    return [(one.fields["payload"] or b"").decode() for one in messages]


def carried(one: Seen, field: str) -> Any:
    """A field as a number, however this way shows it."""
    value = one.fields.get(field)
    return int(value) if isinstance(value, bytes) else value


def plain(name: str) -> Sample:
    return text("correlation_id", name, "c")


def past(moment_ms: int) -> None:
    wait_for(lambda: now_ms() > moment_ms, "the time is over", every_s=0.005)


# -- priority ----------------------------------------------------------------------------------------------------------


def priorities() -> list[Sample]:
    return [number("priority", str(value), value) for value in (1, 9, 5)] + [plain("none")]


def higher_first(protocols: Protocols) -> None:
    for writer, reader in zip(page.QUEUE_WAYS, page.QUEUE_WAYS[1:] + page.QUEUE_WAYS[:1], strict=True):
        queue = protocols.queue()
        protocols.ways[writer].put(queue, priorities())
        found = protocols.ways[reader].take(queue, 4)
        assert [carried(one, "priority") for one in found] == [9, 5, 1, None]


def priority_carried(column: str) -> Callable[[Protocols], None]:
    def check(protocols: Protocols) -> None:
        topics = [unique("priorities") for _ in protocols.ways]
        for topic, way in zip(topics, protocols.ways.values(), strict=True):
            way.publish(topic, priorities())
        for messages in protocols.readings(column, topics, 4):
            assert [carried(one, "priority") for one in messages] == [1, 9, 5, None]

    return check


# -- delays ------------------------------------------------------------------------------------------------------------


def delayed(field: str, wait_ms: int = WAIT_MS) -> list[Sample]:
    """Much later, soon, and now."""
    begin_ms = now_ms() if field == "deliver_at_ms" else 0
    return [
        number(field, "later", begin_ms + HOUR_MS, waits=True),
        number(field, "soon", begin_ms + wait_ms, waits=True),
        plain("now"),
    ]


def delivered_when_due(protocols: Protocols) -> None:
    for field in ("delay_ms", "deliver_at_ms"):
        for way in page.QUEUE_WAYS:
            queue = protocols.queue()
            begin_ms = now_ms()
            protocols.ways[way].put(queue, delayed(field))
            found = protocols.ways[way].take(queue, 2)
            assert now_ms() >= begin_ms + WAIT_MS
            assert set(payloads(found)) == {"correlation_id: now", f"{field}: soon"}
            assert protocols.lines.lines.counts(queue) == (0, 1, 0)


def in_the_topic_when_due(column: str) -> Callable[[Protocols], None]:
    def check(protocols: Protocols) -> None:
        for field in ("delay_ms", "deliver_at_ms"):
            begin_ms = now_ms()
            topics = [unique("delayed") for _ in page.QUEUE_WAYS]
            for topic, way in zip(topics, page.QUEUE_WAYS, strict=True):
                protocols.ways[way].publish(topic, delayed(field))
            for messages in protocols.readings(column, topics, 2):
                found = dict(zip(payloads(messages), messages, strict=True))
                assert found.keys() == {"correlation_id: now", f"{field}: soon"}
                assert found[f"{field}: soon"].fields["timestamp_ms"] >= begin_ms + WAIT_MS
                assert field not in found[f"{field}: soon"].fields

    return check


def kafka_delays(protocols: Protocols, wait_ms: int = WAIT_MS) -> str:
    """A topic with records of a Kafka producer, some of them early."""
    topic = unique("kafka-delays")
    for field in ("delay_ms", "deliver_at_ms"):
        protocols.kafka.publish(topic, delayed(field, wait_ms)[:2])
    protocols.kafka.publish(topic, [plain("now")])
    return topic


def cannot_be(protocols: Protocols) -> None:
    queue = protocols.queue()
    protocols.kafka.publish(queue, delayed("delay_ms"))  # it goes to a topic of that name
    assert protocols.lines.lines.counts(queue) == (0, 0, 0)


def held_back(protocols: Protocols) -> None:
    for way in page.QUEUE_WAYS:
        topic = kafka_delays(protocols)
        messages = protocols.ways[way].read([topic], 3, "shared")
        received_ms = now_ms()
        found = dict(zip(payloads(messages), messages, strict=True))
        # Those of an hour later are the first in the topic: they would have come before these.
        assert found.keys() == {"correlation_id: now", "delay_ms: soon", "deliver_at_ms: soon"}
        delayed_one = found["delay_ms: soon"].fields
        assert received_ms >= delayed_one["timestamp_ms"] + delayed_one["delay_ms"]
        assert received_ms >= found["deliver_at_ms: soon"].fields["deliver_at_ms"]
        assert {deliveries_of(one) for one in messages} == {1}


def deliveries_of(one: Seen) -> int:
    if isinstance(one.raw, tuple):
        return 2 if one.raw[0].redelivered else 1
    if isinstance(one.raw, list):
        return int(one.raw[1])
    return int(one.raw["deliveries"] if isinstance(one.raw, dict) else one.raw.deliveries)


def delay_carried(column: str) -> Callable[[Protocols], None]:
    def check(protocols: Protocols) -> None:
        topic = kafka_delays(protocols)
        for messages in protocols.readings(column, [topic], 5):
            fields = ["delay_ms", "delay_ms", "deliver_at_ms", "deliver_at_ms"]
            assert [name.partition(":")[0] for name in payloads(messages)[:4]] == fields
            values = [carried(one, field) for one, field in zip(messages, fields, strict=False)]
            assert values[:2] == [HOUR_MS, WAIT_MS]
            assert values[2] - values[3] >= HOUR_MS - WAIT_MS - 30_000

    return check


# -- times to live -----------------------------------------------------------------------------------------------------

SHORT_MS = 30


def mortal() -> list[Sample]:
    return [number("ttl_ms", "gone", SHORT_MS), number("ttl_ms", "stays", HOUR_MS)]


def dead_in_queue(protocols: Protocols) -> None:
    for way in page.QUEUE_WAYS:
        dead = protocols.queue()
        for target in (dead, None):
            queue = protocols.queue(dead_letter=target)
            protocols.ways[way].put(queue, mortal())
            past(now_ms() + SHORT_MS)
            (seen,) = protocols.ways[way].take(queue, 1)
            assert payloads([seen]) == ["ttl_ms: stays"]
            protocols.await_counts(queue, (0, 0, 0))
        (letter,) = protocols.ways[way].take(dead, 1)
        assert payloads([letter]) == ["ttl_ms: gone"]
        (death,) = letter.fields["headers"]["x-death"]
        assert (death["reason"], death.get("deliveries")) == ("expired", None if way == "amqp" else 0)


@pytest.fixture(scope="session")
def mortals(ways: dict[str, Way]) -> list[str]:
    """A topic for each writer, in which the first message has expired."""
    topics = [unique("mortal") for _ in ways]
    for topic, way in zip(topics, ways.values(), strict=True):
        way.publish(topic, mortal())
    past(now_ms() + SHORT_MS)
    return topics


def dead_in_shared(protocols: Protocols, topics: list[str]) -> None:
    for messages in protocols.readings(SHARED, topics, 1):
        assert payloads(messages) == ["ttl_ms: stays"]
    dead_topic = unique("dead")
    protocols.lines.lines.ask("create_topic", topic=dead_topic)
    for target in (protocols.queue(), f"topic:{dead_topic}"):
        topic = topics[0]
        consumer = protocols.lines.subscribe(
            [topic], mode="shared", group=unique("g"), start="earliest", dead_letter=target
        )
        (message,) = protocols.lines.lines.delivered(1)
        assert message["payload"] == "ttl_ms: stays"
        if target.startswith("topic:"):
            (letter,) = protocols.kafka.read([dead_topic], 1)
            assert b'"reason":"expired"' in letter.fields["headers"]["x-death"]
            assert letter.fields["headers"]["__dlq.errors.topic"] == topic.encode()
        else:
            (letter,) = protocols.http.take(target, 1)
            (death,) = letter.fields["headers"]["x-death"]
            assert (death["reason"], death["queue"], death["deliveries"]) == ("expired", f"topic:{topic}", 0)
        assert payloads([letter]) == ["ttl_ms: gone"]
        protocols.lines.lines.ask("cease", consumer=consumer)


def passed_over(protocols: Protocols, topics: list[str]) -> None:
    for messages in protocols.readings(FOLLOWED, topics, 1):
        assert payloads(messages) == ["ttl_ms: stays"]


def ttl_carried(protocols: Protocols, topics: list[str]) -> None:
    for messages in protocols.readings(KAFKA, topics, 2):
        assert payloads(messages) == ["ttl_ms: gone", "ttl_ms: stays"]
        assert [carried(one, "ttl_ms") for one in messages] == [SHORT_MS, HOUR_MS]


# -- retry limits ------------------------------------------------------------------------------------------------------


def before_the_queues(protocols: Protocols) -> None:
    for way in page.QUEUE_WAYS:
        dead = protocols.queue()
        queue = protocols.queue(dead_letter=dead, max_deliveries=5)
        protocols.ways[way].put(queue, [number("max_deliveries", "once", 1), plain("often")])
        for message in protocols.lines.lines.get(queue, 2, 30_000):
            protocols.lines.lines.settle(message, "reject", delay_ms=0)
        (letter,) = protocols.ways[way].take(dead, 1)
        assert payloads([letter]) == ["max_deliveries: once"]
        reason = "delivery_limit" if way == "amqp" else "delivery-limit"  # RabbitMQ's word
        assert letter.fields["headers"]["x-death"][0]["reason"] == reason
        (again,) = protocols.ways[way].take(queue, 1)
        assert payloads([again]) == ["correlation_id: often"]


def limit_carried(column: str) -> Callable[[Protocols], None]:
    def check(protocols: Protocols) -> None:
        topics = [unique("once") for _ in protocols.ways]
        for topic, way in zip(topics, protocols.ways.values(), strict=True):
            way.publish(topic, [number("max_deliveries", "once", 1)])
        for messages in protocols.readings(column, topics, 1):
            assert [carried(one, "max_deliveries") for one in messages] == [1]

    return check


def before_the_groups(column: str) -> Callable[[Protocols], None]:
    """The receiver can read it, and a group's members do not get the message again after so many failures."""

    def check(protocols: Protocols) -> None:
        limit_carried(column)(protocols)
        topics = [unique("once") for _ in protocols.ways]
        for topic, way in zip(topics, protocols.ways.values(), strict=True):
            way.publish(topic, [number("max_deliveries", "once", 1), plain("often")])
        for mode in set(MODES_OF[column]) - {"live"}:
            group = unique("g")
            consumer = protocols.lines.subscribe(topics, mode=mode, group=group, start="earliest", max_deliveries=5)
            first = protocols.lines.lines.delivered(2 * len(topics))
            protocols.lines.lines.ask(
                "settle", tags=[one["tag"] for one in first], consumer=consumer, verdict="reject", delay_ms=0
            )
            again = protocols.lines.lines.delivered(len(topics))
            assert {(one["payload"], one["deliveries"]) for one in again} == {("correlation_id: often", 2)}
            protocols.lines.lines.ask("cease", consumer=consumer)
            for topic in topics:
                dead = f"{topic}.{group}.dead"
                protocols.lines.lines.ask(
                    "declare_queue", queue=dead
                )  # as the first letter does, which may be on its way
                (letter,) = protocols.lines.lines.get(dead, 1, 30_000)
                assert letter["payload"] == "max_deliveries: once"

    return check


# -- the table ---------------------------------------------------------------------------------------------------------

NO_TOPICS: dict[tuple[str, str], tuple[str, Callable[[Protocols], None]]] = {
    ("priority", QUEUE): ("higher first", higher_first),
    ("priority", SHARED): ("carried along", priority_carried(SHARED)),
    ("priority", FOLLOWED): ("carried along", priority_carried(FOLLOWED)),
    ("priority", KAFKA): ("carried along", priority_carried(KAFKA)),
    ("delay_ms, deliver_at_ms", QUEUE): ("delivered when due", delivered_when_due),
    ("delay_ms, deliver_at_ms", SHARED): ("in the topic when due", in_the_topic_when_due(SHARED)),
    ("delay_ms, deliver_at_ms", FOLLOWED): ("in the topic when due", in_the_topic_when_due(FOLLOWED)),
    ("delay_ms, deliver_at_ms", KAFKA): ("in the topic when due", in_the_topic_when_due(KAFKA)),
    ("x-delay, x-deliver-at by a Kafka producer", QUEUE): ("cannot be", cannot_be),
    ("x-delay, x-deliver-at by a Kafka producer", SHARED): ("delivered when due", held_back),
    ("x-delay, x-deliver-at by a Kafka producer", FOLLOWED): ("carried along", delay_carried(FOLLOWED)),
    ("x-delay, x-deliver-at by a Kafka producer", KAFKA): ("carried along", delay_carried(KAFKA)),
    ("ttl_ms", QUEUE): ("dead when over", dead_in_queue),
    ("max_deliveries", QUEUE): ("goes before the queue's", before_the_queues),
    ("max_deliveries", SHARED): ("goes before the group's", before_the_groups(SHARED)),
    ("max_deliveries", FOLLOWED): ("stream: goes before the consumer's", before_the_groups(FOLLOWED)),
    ("max_deliveries", KAFKA): ("carried along", limit_carried(KAFKA)),
}
WITH_TOPICS: dict[tuple[str, str], tuple[str, Callable[[Protocols, list[str]], None]]] = {
    ("ttl_ms", SHARED): ("dead when over", dead_in_shared),
    ("ttl_ms", FOLLOWED): ("passed over when over", passed_over),
    ("ttl_ms", KAFKA): ("carried along", ttl_carried),
}


def test_every_cell_of_the_page_is_tested_for_what_it_says() -> None:
    tested = {cell: words for cell, (words, _) in [*NO_TOPICS.items(), *WITH_TOPICS.items()]}
    assert tested == {(row, column): page.DEEDS.rows[row][column] for row, column in page.DEEDS.cells()}


@pytest.mark.parametrize("cell", NO_TOPICS, ids=": ".join)
def test_what_the_broker_does(cell: tuple[str, str], protocols: Protocols) -> None:
    NO_TOPICS[cell][1](protocols)


@pytest.mark.parametrize("cell", WITH_TOPICS, ids=": ".join)
def test_what_the_broker_does_with_what_has_expired(
    cell: tuple[str, str], protocols: Protocols, mortals: list[str]
) -> None:
    WITH_TOPICS[cell][1](protocols, mortals)


# -- and more about it -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", page.QUEUE_WAYS)
def test_a_time_to_live_counts_from_when_the_broker_took_the_message_in(way: str, protocols: Protocols) -> None:
    topic, begin_ms = unique("old-news"), now_ms()
    message = {"payload": "x", "ttl_ms": HOUR_MS, "timestamp_ms": LONG_AGO_MS}
    protocols.lines.lines.ask("publish_messages", topic=topic, message=message)
    for mode in modes_of_way(way):
        (seen,) = protocols.ways[way].read([topic], 1, mode)
        assert seen.fields == {"payload": b"x", "ttl_ms": HOUR_MS, "timestamp_ms": LONG_AGO_MS}
        if way != "amqp":  # which does not tell it
            assert begin_ms <= taken_of(seen) <= now_ms()
    (record,) = protocols.kafka.read([topic], 1)
    assert record.fields["timestamp_ms"] == LONG_AGO_MS
    assert begin_ms <= int(record.fields["headers"]["x-taken-at"]) <= now_ms()


def taken_of(one: Seen) -> int:
    if isinstance(one.raw, list):
        return int(one.raw[2])
    return int(one.raw["taken_ms"] if isinstance(one.raw, dict) else one.raw.delivered.taken_ms)


@pytest.mark.parametrize("way", page.QUEUE_WAYS)
def test_a_dead_letter_in_a_topic_does_not_wait_and_does_not_expire_again(way: str, protocols: Protocols) -> None:
    topic, dead, lines = unique("dying"), unique("dead"), protocols.lines.lines
    lines.ask("create_topic", topic=dead)
    protocols.kafka.publish(topic, [number("ttl_ms", "gone", SHORT_MS), number("delay_ms", "past", 1)])
    past(now_ms() + SHORT_MS)
    target = f"topic:{dead}"
    consumer = protocols.lines.subscribe(
        [topic], mode="shared", group=unique("g"), start="earliest", dead_letter=target
    )
    (message,) = lines.delivered(1)
    lines.ask("settle", consumer=consumer, tags=[message["tag"]], verdict="kill")
    past(now_ms() + SHORT_MS)
    for mode in modes_of_way(way):
        letters = protocols.ways[way].read([dead], 2, mode)
        assert payloads(letters) == ["ttl_ms: gone", "delay_ms: past"]
        assert not any(one.fields.keys() & {"ttl_ms", "delay_ms"} for one in letters)
    lines.ask("cease", consumer=consumer)


def test_a_live_subscriber_that_was_slow_does_not_get_what_has_expired_meanwhile(protocols: Protocols) -> None:
    lines, topic = protocols.lines, unique("slow")
    lines.lines.ask("create_topic", topic=topic)
    consumer = lines.subscribe([topic], credit=0, mode="live")
    lines.publish(topic, mortal())
    past(now_ms() + SHORT_MS)
    lines.lines.ask("credit", consumer=consumer, count=10)
    (message,) = lines.lines.delivered(1)
    assert message["payload"] == "ttl_ms: stays"
    lines.lines.ask("cease", consumer=consumer)


def test_a_stream_goes_on_behind_a_message_that_expired_before_it_could_be_tried_again(protocols: Protocols) -> None:
    lines, topic = protocols.lines, unique("retried")
    lines.publish(topic, [plain("first")])
    consumer = lines.subscribe([topic], mode="stream", group=unique("g"), start="earliest")
    (message,) = lines.lines.delivered(1)  # so the next will not wait for the group
    lines.lines.ask("settle", consumer=consumer, tags=[message["tag"]])
    lines.publish(topic, [number("ttl_ms", "not long", 1_500)])
    (message,) = lines.lines.delivered(1)
    lines.lines.ask("settle", consumer=consumer, tags=[message["tag"]], verdict="reject", delay_ms=1_600)
    lines.publish(topic, [plain("next")])
    (message,) = lines.lines.delivered(1)
    assert (message["payload"], message["deliveries"]) == ("correlation_id: next", 1)
    lines.lines.ask("cease", consumer=consumer)


def test_priorities_of_a_kafka_producer_count_in_a_queue_that_its_records_come_to(protocols: Protocols) -> None:
    topic, dead = unique("killed"), protocols.queue()
    protocols.kafka.publish(
        topic, [*priorities(), number("delay_ms", "late", HOUR_MS), number("ttl_ms", "short", HOUR_MS)]
    )
    lines = protocols.lines
    consumer = lines.subscribe([topic], mode="shared", group=unique("g"), start="earliest", dead_letter=dead)
    tags = [message["tag"] for message in lines.lines.delivered(5)]  # the late one is not there yet
    lines.lines.ask("settle", consumer=consumer, tags=tags, verdict="kill")
    protocols.await_counts(dead, (5, 0, 0))
    letters = protocols.frames.take(dead, 5)
    assert [carried(one, "priority") for one in letters] == [9, 5, 1, None, None]
    assert "ttl_ms" not in letters[-1].fields  # what is dead already does not expire
    lines.lines.ask("cease", consumer=consumer)


@pytest.mark.parametrize("way", page.QUEUE_WAYS)
def test_through_an_exchange_a_field_means_what_it_means_where_the_message_goes(way: str, protocols: Protocols) -> None:
    exchange, topic, queue = unique("x"), unique("t"), protocols.queue()
    lines = protocols.lines.lines
    lines.ask("declare_exchange", exchange=exchange, kind="fanout")
    for target in (f"queue:{queue}", f"topic:{topic}"):
        lines.ask("bind", exchange=exchange, target=target)
    begin_ms = now_ms()
    protocols.ways[way].route(exchange, [*priorities(), number("ttl_ms", "gone", SHORT_MS), *delayed("delay_ms")[:2]])
    past(begin_ms + WAIT_MS)
    protocols.await_counts(queue, (5, 1, 0))  # one is not due, one has expired
    in_queue = ["priority: 9", "priority: 5", "priority: 1", "correlation_id: none", "delay_ms: soon"]
    assert payloads(protocols.ways[way].take(queue, 5)) == in_queue
    in_topic = ["priority: 1", "priority: 9", "priority: 5", "correlation_id: none", "delay_ms: soon"]
    assert payloads(protocols.ways[way].read([topic], 5)) == in_topic
    assert payloads(protocols.kafka.read([topic], 6)) == [*in_topic[:4], "ttl_ms: gone", in_topic[4]]


def test_what_waits_holds_nobody_up_and_is_not_counted_as_delivered(protocols: Protocols) -> None:
    topic = kafka_delays(protocols, 1_500)
    asked: dict[str, Any] = {"mode": "shared", "group": unique("g"), "start": "earliest"}
    consumer = protocols.lines.subscribe([topic], **asked)
    (now,) = protocols.lines.lines.delivered(1)
    assert now["payload"] == "correlation_id: now"
    protocols.lines.lines.ask("cease", consumer=consumer)  # the early ones have never been this consumer's
    consumer = protocols.lines.subscribe([topic], **asked)
    soon: dict[str, int] = {}
    while len(soon) < 3:
        soon |= {message["payload"]: message["deliveries"] for message in protocols.lines.lines.push()["messages"]}
    assert soon == {"correlation_id: now": 2, "delay_ms: soon": 1, "deliver_at_ms: soon": 1}
    protocols.lines.lines.ask("cease", consumer=consumer)


def test_kafkas_share_consumers_get_what_is_early_and_what_has_expired(protocols: Protocols) -> None:
    topic, group = kafka_delays(protocols), unique("g")
    protocols.kafka.publish(topic, mortal())
    past(now_ms() + SHORT_MS)
    reader = protocols.lines.subscribe([topic], mode="shared", group=group, start="earliest", credit=0)
    protocols.lines.lines.ask("cease", consumer=reader)  # so that the group begins at the beginning
    consumer = share_consumer(protocols.server.bootstrap, group, [topic])
    try:
        records = take(consumer, 7)
    finally:
        consumer.close()
    assert len(records) == 7


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["kafka", "lines"])
def test_a_filter_compares_numbers_that_crossed_a_topic_as_numbers(way: str, mode: Mode, protocols: Protocols) -> None:
    topic = unique("numbers")
    for value in (3, 5, 10):
        protocols.ways[way].publish(topic, [Sample("headers", str(value), {"n": value}, {"n": b"%d" % value}, None)])
    asked: dict[str, Any] = {"history": 10} if mode == "live" else {"group": unique("g"), "start": "earliest"}
    consumer = protocols.lines.subscribe([topic], mode=mode, filter="headers.n > 3", **asked)
    found: list[Any] = []
    while len(found) < 2:
        found += protocols.lines.lines.push()["messages"]
    assert [message["headers"]["n"] for message in found] == ["5", "10"]
    protocols.lines.lines.ask("cease", consumer=consumer)
