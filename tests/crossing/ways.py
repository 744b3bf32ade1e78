"""The ways into the broker and out of it, each spelling messages as its column of the page says.

A way writes samples (`samples.Sample`) to topics and queues, and reads what is there as `Seen`: the fields that a
message says, by name, each taken from the place that the page names. What is at no such place is an error.
"""

from __future__ import annotations

import socket
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

import waystation as ws
from tests.crossing import page
from tests.crossing.samples import Sample
from tests.protocols.http.kit import Http, name
from tests.protocols.native.kit import JsonLines
from tests.support.names import unique
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, NotInTime, wait_for
from waystation.message import Message
from waystation.protocol import MAGIC

Fields = dict[str, Any]
Mode = Literal["shared", "stream", "live"]
MODES: tuple[Mode, ...] = ("shared", "stream", "live")


def modes_of_way(way: str) -> tuple[Mode, ...]:
    """AMQP has no live subscriptions to topics."""
    return MODES if way != "amqp" else ("shared", "stream")


NUMBERS_THAT_SAY_NOTHING = {"priority": 0, "delay_ms": 0, "max_deliveries": 0, "delivery_mode": 0}
OF_THE_DELIVERY = {"tag", "deliveries", "taken_ms", "source", "partition", "offset", "queue", "ack_id", "consumer"}


@dataclass(frozen=True)
class Seen:
    """A message as one way shows it."""

    fields: Fields
    place: str  # the topic or queue
    raw: Any  # as it came


class Way(Protocol):
    def publish(self, topic: str, samples: Sequence[Sample], partition: int | None = None) -> None: ...

    def read(self, topics: Sequence[str], count: int, mode: Mode | None = None) -> list[Seen]:
        """The first `count` messages, by a subscription in this mode (Kafka has its own)."""

    def put(self, queue: str, samples: Sequence[Sample]) -> None: ...

    def route(self, exchange: str, samples: Sequence[Sample]) -> None:
        """Publishes to a fanout exchange."""

    def take(self, queue: str, count: int) -> list[Seen]: ...

    def close(self) -> None: ...


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def terms(mode: Mode) -> Fields:
    """How to subscribe so that everything comes from the beginning, and needs no verdict."""
    if mode == "live":
        return {"mode": mode, "history": 1000}
    return {"mode": mode, "group": unique("g"), "start": "earliest", "auto_ack": True}


def collect(count: int, more: Callable[[], Iterable[Seen]]) -> list[Seen]:
    """Asks for more until there are `count`."""
    found: list[Seen] = []

    def enough() -> bool:
        found.extend(more())
        return len(found) >= count

    try:
        wait_for(enough, f"{count} messages", every_s=0.001)
    except NotInTime as error:
        raise NotInTime(f"{error}: {[one.fields['payload'] for one in found]}") from None
    return found


# -- Kafka -------------------------------------------------------------------------------------------------------------


class KafkaWay:
    """confluent_kafka."""

    def __init__(self, server: Server) -> None:
        self._bootstrap = server.bootstrap
        self._producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 0})

    def publish(self, topic: str, samples: Sequence[Sample], partition: int | None = None) -> None:
        for sample in samples:
            self.send(topic, **record_of(sample), partition=partition or 0)
        assert self._producer.flush(DEADLINE_S) == 0

    def send(self, topic: str, value: bytes | None, **more: Any) -> None:
        failures: list[Any] = []
        self._producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error), **more)
        assert self._producer.flush(DEADLINE_S) == 0
        assert failures == [None]

    def read(self, topics: Sequence[str], count: int, mode: Mode | None = None) -> list[Seen]:
        found = [self._partitions(topic) for topic in topics]
        return self.read_partitions([one for partitions in found for one in partitions], count)

    def _partitions(self, topic: str) -> list[TopicPartition]:
        listed = self._producer.list_topics(topic, DEADLINE_S).topics[topic].partitions
        return [TopicPartition(topic, index, 0) for index in listed]

    def read_partitions(self, partitions: list[TopicPartition], count: int) -> list[Seen]:
        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": unique("g"), "enable.auto.commit": False}
        )
        try:
            consumer.assign(partitions)
            return collect(count, lambda: [seen_record(one) for one in consumer.consume(count, 0.1)])
        finally:
            consumer.close()

    def put(self, queue: str, samples: Sequence[Sample]) -> None:
        raise NotImplementedError("Kafka has no queues")

    def route(self, exchange: str, samples: Sequence[Sample]) -> None:
        raise NotImplementedError("Kafka has no exchanges")

    def take(self, queue: str, count: int) -> list[Seen]:
        raise NotImplementedError("Kafka has no queues")

    def close(self) -> None:
        self._producer.flush(DEADLINE_S)


def record_of(sample: Sample) -> Fields:
    """What `produce` is given."""
    record: Fields = {"value": None if sample.is_tombstone else sample.payload}
    header = page.kafka_header(sample.field)
    if header is None:
        place = page.kafka_place(sample.field)
        record[place] = list(sample.record.items()) if place == "headers" else sample.record
    elif not sample.is_tombstone:
        record["headers"] = [(header, sample.record)]
    return record


def seen_record(record: Any) -> Seen:
    assert record.error() is None, record.error()
    places = {"value": record.value(), "key": record.key(), "timestamp": record.timestamp()[1]}
    own: dict[str, bytes | None] = {}
    fields: Fields = {}
    for header, value in record.headers() or []:
        field = page.HEADER_FIELDS.get(header)
        number = field in NUMBERS_THAT_SAY_NOTHING or (field or "").endswith("_ms")
        # What is no number is nobody's field, as the page says.
        if field is None or (number and not (value.isdigit() and (field != "priority" or int(value) < 256))):
            own[header] = value
        else:
            fields[field] = value
    if own:
        fields["headers"] = own
    for field in page.FIELDS.rows:
        place = page.kafka_place(field)
        if place in places and (places[place] is not None or field == "payload"):
            fields[field] = places[place]
    return Seen(fields, record.topic(), record)


# -- msgpack frames ----------------------------------------------------------------------------------------------------


class FramesWay:
    """msgpack frames over a plain socket, made and read without any of the broker's types."""

    def __init__(self, server: Server) -> None:
        self._socket = socket.create_connection(split_address(server.bootstrap), DEADLINE_S)
        self._file = self._socket.makefile("rb")
        self._socket.sendall(MAGIC)
        self._ids = 0
        self._pushed: list[Any] = []

    def ask(self, action: str, **fields: Any) -> Any:
        """The answer's value; what is pushed meanwhile is kept."""
        self._ids += 1
        body = msgspec.msgpack.encode({"action": action, "id": self._ids, **fields})
        self._socket.sendall(len(body).to_bytes(4, "big") + body)
        while (frame := self._frame())["kind"] == "deliver":
            self._pushed += frame["messages"]
        assert frame["kind"] == "answer", frame
        return frame.get("value")

    def _frame(self) -> Any:
        size = int.from_bytes(self._file.read(4), "big")
        return msgspec.msgpack.decode(self._file.read(size))

    def publish(self, topic: str, samples: Sequence[Sample], partition: int | None = None) -> None:
        messages = [array_of(sample) for sample in samples]
        self.ask("publish_messages", topic=topic, messages=messages, partition=partition)

    def read(self, topics: Sequence[str], count: int, mode: Mode | None = None) -> list[Seen]:
        self._pushed.clear()
        consumer = self._ids + 1
        self.ask("subscribe_topics", consumer=consumer, topics=list(topics), credit=1000, **terms(mode or "live"))
        while len(self._pushed) < count:
            self._pushed += self._frame()["messages"]
        self.ask("cease", consumer=consumer)
        return [seen_array(one, one[4]) for one in self._pushed]

    def put(self, queue: str, samples: Sequence[Sample]) -> None:
        self.ask("put", queue=queue, messages=[array_of(sample) for sample in samples])

    def route(self, exchange: str, samples: Sequence[Sample]) -> None:
        self.ask("publish_messages", exchange=exchange, messages=[array_of(sample) for sample in samples])

    def take(self, queue: str, count: int) -> list[Seen]:
        def more() -> list[Seen]:
            got = self.ask("get", queue=queue, count=count, wait_ms=1_000, auto_ack=True)
            return [seen_array(one, queue) for one in got.get("messages", ())]

        return collect(count, more)

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def array_of(sample: Sample) -> list[Any]:
    array: list[Any] = [sample.payload, None, None, {}, 0, 0, *[None] * 6, 0, *[None] * 4, 0, None, None]
    index, kind = page.msgpack_place(sample.field)
    assert type(sample.value) is kind
    array[index] = sample.value
    return array


def seen_array(delivered: list[Any], place: str) -> Seen:
    array = delivered[3]
    fields: Fields = {}
    for field in page.FIELDS.rows:
        index, kind = page.msgpack_place(field)
        value = array[index]
        assert value is None or type(value) is kind
        if value is not None and value != NUMBERS_THAT_SAY_NOTHING.get(field) and value != {}:
            fields[field] = value
    assert len(array) == len(page.FIELDS.rows) + 1, "behind them is what AMQP has for its own receivers"
    return Seen(fields, place, delivered)


# -- the Python client -------------------------------------------------------------------------------------------------


class ClientWay:
    """The Python client."""

    def __init__(self, server: Server) -> None:
        self.mq = ws.connect(f"waystation://{server.bootstrap}")

    def publish(self, topic: str, samples: Sequence[Sample], partition: int | None = None) -> None:
        sent = []
        for sample in samples:
            if sample.field in OF_AMQP:
                self.mq.publish_many(topic, [message_of(sample)])
            else:
                options = options_of(sample)
                sent.append(self.mq.publish_nowait(topic, sample.payload, partition=partition, **options))
        for one in sent:
            one.result(DEADLINE_S)

    def read(self, topics: Sequence[str], count: int, mode: Mode | None = None) -> list[Seen]:
        asked = terms(mode or "shared")
        if asked.pop("auto_ack", False):
            asked["guarantee"] = "at-most-once"
        with self.mq.subscribe(list(topics), **asked) as subscription:
            return collect(count, lambda: [seen_message(one) for one in subscription.poll(1.0)])

    def put(self, queue: str, samples: Sequence[Sample]) -> None:
        there = self.mq.queue(queue)
        plain = [sample for sample in samples if sample.field not in OF_AMQP]
        sent = [there.put_nowait(sample.payload, **options_of(sample)) for sample in plain]
        for one in sent:
            one.result(DEADLINE_S)
        there.put_many([message_of(sample) for sample in samples if sample.field in OF_AMQP])

    def route(self, exchange: str, samples: Sequence[Sample]) -> None:
        there = self.mq.exchange(exchange, "fanout")
        for sample in samples:
            there.publish(sample.payload, **options_of(sample))

    def take(self, queue: str, count: int) -> list[Seen]:
        there = self.mq.queue(queue)

        def more() -> list[Seen]:
            got = there.get_many(count, timeout=1.0)
            there.ack_many(got)
            return [seen_message(one) for one in got]

        return collect(count, more)

    def close(self) -> None:
        self.mq.close()


OF_AMQP = ("exchange", "routing_key", "content_encoding", "delivery_mode", "user_id", "app_id")
"""What the client has no options for: it shows them, and sends messages on that have them."""


def message_of(sample: Sample) -> Message:
    return Message(sample.payload, **{sample.field: sample.value})


def options_of(sample: Sample) -> Any:
    """The client says times in seconds and leaves the unit out of their names."""
    if sample.field == "payload":
        return {}
    if sample.field.endswith("_ms"):
        return {sample.field.removesuffix("_ms"): sample.value / 1000}
    return {sample.field: sample.value}


def seen_message(message: ws.Message) -> Seen:
    place = message.queue or message.topic or ""
    inner = message.delivered.message  # what has no property of its own
    fields: Fields = {
        "payload": message.payload,
        "id": own_id(message.id, f"{place}-{message.partition}@{message.offset}", f"{place}#{message.delivered.tag}"),
        "key": message.key_bytes,
        "headers": dict(message.headers) or None,
        "priority": message.priority or None,
        "delay_ms": inner.delay_ms or None,
        "deliver_at_ms": inner.deliver_at_ms,
        "ttl_ms": inner.ttl_ms,
        "correlation_id": message.correlation_id,
        "reply_to": message.reply_to,
        "content_type": message.content_type,
        "type": inner.type,
        "max_deliveries": inner.max_deliveries or None,
        "timestamp_ms": inner.timestamp_ms,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "content_encoding": message.content_encoding,
        "delivery_mode": message.delivery_mode or None,
        "user_id": message.user_id,
        "app_id": message.app_id,
    }
    assert fields.keys() == page.FIELDS.rows.keys()
    assert message.type == (inner.type or ("text" if (message.content_type or "").startswith("text/") else "binary"))
    assert message.timestamp == at(message.delivered.taken_ms if inner.timestamp_ms is None else inner.timestamp_ms)
    return Seen({field: value for field, value in fields.items() if value is not None}, place, message)


def at(moment_ms: int) -> datetime:
    return datetime.fromtimestamp(moment_ms / 1000, UTC)


def own_id(shown: str | None, *places: str) -> str | None:
    """A message without an id of its own is shown with the place where it is."""
    assert shown, "every message has something to be known by"
    return None if shown in places else shown


# -- JSON: lines and HTTP ----------------------------------------------------------------------------------------------


class LinesWay:
    """JSON lines over a plain socket."""

    def __init__(self, server: Server) -> None:
        self.lines = JsonLines(server.bootstrap)
        self._consumers = 0

    def publish(self, topic: str, samples: Sequence[Sample], partition: int | None = None) -> None:
        messages = [object_of(sample) for sample in samples]
        self.lines.ask("publish_messages", topic=topic, messages=messages, partition=partition)

    def read(self, topics: Sequence[str], count: int, mode: Mode | None = None) -> list[Seen]:
        consumer = self.subscribe(topics, **terms(mode or "stream"))
        found = collect(count, lambda: [seen_object(one, one["source"]) for one in self.lines.push()["messages"]])
        self.lines.ask("cease", consumer=consumer)
        return found

    def subscribe(self, topics: Sequence[str], credit: int = 1000, **asked: Any) -> int:
        """A consumer of this connection, by its number. What others were sent before is forgotten."""
        self._consumers += 1
        self.lines.pushes.clear()
        self.lines.ask("subscribe_topics", consumer=self._consumers, topics=list(topics), credit=credit, **asked)
        return self._consumers

    def put(self, queue: str, samples: Sequence[Sample]) -> None:
        self.lines.put(queue, *map(object_of, samples))

    def route(self, exchange: str, samples: Sequence[Sample]) -> None:
        self.lines.ask("publish_messages", exchange=exchange, messages=list(map(object_of, samples)))

    def take(self, queue: str, count: int) -> list[Seen]:
        return collect(
            count, lambda: [seen_object(one, queue) for one in self.lines.get(queue, count, 1_000, auto_ack=True)]
        )

    def close(self) -> None:
        self.lines.close()


class HttpWay:
    """HTTP: plain requests, and server-sent events for subscriptions."""

    def __init__(self, server: Server) -> None:
        self.http = Http(server.addresses["http"])

    def publish(self, topic: str, samples: Sequence[Sample], partition: int | None = None) -> None:
        self.http("POST", f"/v1/topics/{name(topic)}/messages", list(map(object_of, samples)), partition=partition)

    def read(self, topics: Sequence[str], count: int, mode: Mode | None = None) -> list[Seen]:
        with self.http.events("/v1/subscriptions/stream", topic=list(topics), **terms(mode or "shared")) as events:
            return [seen_object(one, one["source"]) for one in events.messages(count)]

    def put(self, queue: str, samples: Sequence[Sample]) -> None:
        self.http("POST", f"/v1/queues/{name(queue)}/messages", list(map(object_of, samples)))

    def route(self, exchange: str, samples: Sequence[Sample]) -> None:
        self.http("POST", f"/v1/exchanges/{name(exchange)}/messages", list(map(object_of, samples)))

    def take(self, queue: str, count: int) -> list[Seen]:
        def more() -> list[Seen]:
            return [seen_object(one, queue) for one in self.http.take(queue, count, 1_000, auto_ack=True)]

        return collect(count, more)

    def close(self) -> None:
        pass


def object_of(sample: Sample) -> Fields:
    """The message as JSON; `json.dumps` must be able to write it."""
    made: Fields = {}
    for field, value in (("payload", sample.payload), (sample.field, sample.value)):
        usual, *others = page.json_names(field)
        if isinstance(value, bytes):
            try:
                made[usual] = value.decode()
            except UnicodeDecodeError:
                made |= _in_base64(usual, others, b64encode(value).decode())
        elif isinstance(value, dict):
            raw = {key: b64encode(one).decode() for key, one in value.items() if isinstance(one, bytes)}
            made[usual] = {key: one for key, one in value.items() if not isinstance(one, bytes)}
            if raw:
                made[others[0]] = raw
        else:
            made[usual] = value
    return made


def _in_base64(usual: str, others: list[str], value: str) -> Fields:
    """Either a name of its own, or the usual one beside a field that says so (`encoding` is `base64`)."""
    return {others[0]: value} if len(others) == 1 else {usual: value, others[0]: others[1]}


def seen_object(given: Fields, place: str) -> Seen:
    left = {key: value for key, value in given.items() if key not in OF_THE_DELIVERY}
    fields: Fields = {}
    for field in page.FIELDS.rows:
        usual, *others = page.json_names(field)
        if field == "headers":
            merged = left.pop(usual, {}) | {key: b64decode(one) for key, one in left.pop(others[0], {}).items()}
            fields[field] = merged or None
        elif len(others) == 2:
            kind = left.pop(others[0], None)
            assert kind in (None, others[1])
            fields[field] = b64decode(left.pop(usual)) if kind else left.pop(usual).encode()
        elif others:
            coded, plain = left.pop(others[0], None), left.pop(usual, None)
            assert coded is None or plain is None
            fields[field] = b64decode(coded) if coded is not None else None if plain is None else plain.encode()
        else:
            fields[field] = left.pop(usual, None)
    assert left == {}, "the page does not know these"
    places = (f"{place}-{given.get('partition')}@{given.get('offset')}", f"{place}#{given.get('tag')}")
    fields["id"] = own_id(fields["id"], *places)
    return Seen({field: value for field, value in fields.items() if value is not None}, place, given)


def open_ways(server: Server) -> dict[str, Way]:
    return {
        "kafka": KafkaWay(server),
        "frames": FramesWay(server),
        "client": ClientWay(server),
        "lines": LinesWay(server),
        "http": HttpWay(server),
    }
