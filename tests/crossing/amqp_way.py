"""AMQP as a way into the broker and out of it, by pika; messages are spelled as the page's AMQP column says.

Two things are always said in AMQP: the exchange and the routing key. Without a word about them, it is the default
exchange (no name) and the name of the queue or topic; a reader of AMQP cannot tell that from nothing at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from tests.crossing import page
from tests.crossing.samples import Sample
from tests.crossing.ways import Fields, Mode, Seen, collect
from tests.support.names import unique
from tests.support.ports import split_address
from tests.support.server import Server

KEYS = "crossing-keys"
"""The exchange of messages that are about their routing key."""
PREFETCH = 1000


class AmqpWay:
    """pika's blocking connection."""

    def __init__(self, server: Server) -> None:
        host, port = split_address(server.addresses["amqp"])
        self.connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, heartbeat=0))
        self.channel: BlockingChannel = self.connection.channel()
        self.channel.confirm_delivery()
        self.channel.exchange_declare(KEYS, "direct")

    def publish(self, topic: str, samples: Sequence[Sample], partition: int | None = None) -> None:
        if partition is not None:
            raise NotImplementedError("AMQP cannot choose a partition")
        self._ensure(topic)
        self.put(topic, samples)

    def _ensure(self, topic: str) -> None:
        channel = self.connection.channel()
        try:
            channel.queue_declare(topic, passive=True)
        except ChannelClosedByBroker:
            self.channel.queue_declare(topic, durable=True, arguments={"x-queue-type": "stream"})
        else:
            channel.close()

    def put(self, queue: str, samples: Sequence[Sample]) -> None:
        for sample in samples:
            exchange, key = address_of(sample, queue)
            if exchange:
                self.channel.exchange_declare(exchange, "fanout" if sample.field == "exchange" else "direct")
                self.channel.queue_bind(queue, exchange, key)
            self.send(exchange, key, sample)
            if exchange:
                self.channel.queue_unbind(queue, exchange, key)

    def route(self, exchange: str, samples: Sequence[Sample]) -> None:
        for sample in samples:
            self.send(exchange, "", sample)

    def send(self, exchange: str, key: str, sample: Sample) -> None:
        """Confirmed, and never without a target: pika raises an error otherwise."""
        self.channel.basic_publish(exchange, key, sample.payload, properties_of(sample), mandatory=True)

    def read(self, topics: Sequence[str], count: int, mode: Mode | None = None) -> list[Seen]:
        """A stream of each topic, or a queue on it."""
        mode = mode or "stream"
        found: list[Seen] = []
        channel = self.connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        places: dict[str, tuple[str, str]] = {}

        def arrived(from_channel: BlockingChannel, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
            queue, topic = places[method.consumer_tag]
            found.append(seen_content(method, properties, body, topic, queue))
            from_channel.basic_ack(method.delivery_tag)

        for topic in topics:
            queue, arguments = topic, {"x-stream-offset": "first"}
            if mode == "shared":
                queue, arguments = unique("on-topic"), {}
                channel.queue_declare(queue, arguments={"x-topic": topic})
            tag = unique("tag")
            places[tag] = (queue, topic)
            channel.basic_consume(queue, arrived, consumer_tag=tag, arguments=arguments)

        def more() -> list[Seen]:
            self.connection.process_data_events(time_limit=0.05)
            arrivals = found.copy()
            found.clear()
            return arrivals

        try:
            return collect(count, more)
        finally:
            channel.close()
            for queue, topic in places.values():
                if queue != topic:
                    self.channel.queue_delete(queue)

    def take(self, queue: str, count: int) -> list[Seen]:
        def more() -> list[Seen]:
            method, properties, body = self.channel.basic_get(queue, auto_ack=True)
            return [] if method is None else [seen_content(method, properties, body, queue)]

        return collect(count, more)

    def close(self) -> None:
        self.connection.close()


def address_of(sample: Sample, place: str) -> tuple[str, str]:
    """The exchange and the routing key that a sample is published with."""
    if sample.field == "exchange":
        return sample.value, place
    return (KEYS, sample.value) if sample.field == "routing_key" else ("", place)


def properties_of(sample: Sample) -> pika.BasicProperties:
    """The properties that say what the sample says."""
    place, name = page.amqp_place(sample.field)
    if place in ("body", "method"):
        return pika.BasicProperties()
    if sample.field == "timestamp_ms":
        rest = page.amqp_milliseconds()
        return pika.BasicProperties(timestamp=sample.value // 1000, headers={rest: sample.value})
    if place == "header":
        return pika.BasicProperties(headers={name: sample.value})
    value = str(sample.value) if sample.field == "ttl_ms" else sample.value
    return pika.BasicProperties(**{name: value})


def seen_content(
    method: Any, properties: pika.BasicProperties, body: bytes, place: str, queue: str | None = None
) -> Seen:
    """`queue`: what was consumed, if that is not `place` itself."""
    headers = {header: plain(value) for header, value in (properties.headers or {}).items()}
    for of_the_delivery in ("x-stream-offset", "x-stream-partition", "x-delivery-count"):
        headers.pop(of_the_delivery, None)
    fields: Fields = {}
    for field in page.FIELDS.rows:
        where, name = page.amqp_place(field)
        if where == "body":
            fields[field] = body
        elif where == "method":
            value = getattr(method, name)
            fields[field] = None if value == {"exchange": "", "routing_key": queue or place}[name] else value
        elif where == "header":
            fields[field] = _field(field, headers, name)
        elif field != "headers":
            fields[field] = getattr(properties, name)
    if fields["timestamp_ms"] is not None:
        fields["timestamp_ms"] = headers.pop(page.amqp_milliseconds(), fields["timestamp_ms"] * 1000)
    if fields["ttl_ms"] is not None:
        fields["ttl_ms"] = int(fields["ttl_ms"])
    fields["headers"] = headers or None
    said = {field: value for field, value in fields.items() if value is not None}
    return Seen(said, place, (method, properties, body))


def _field(field: str, headers: dict[str, Any], name: str) -> Any:
    value = headers.get(name)
    if value is None or (field == "delay_ms" and not (isinstance(value, int) and value < 0)):
        return None
    del headers[name]
    if field == "key":
        return value.encode() if isinstance(value, str) else value
    return -value if field == "delay_ms" else value


def plain(value: Any) -> Any:
    """pika has an integer type of its own for what came with 64 bits."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value
