"""Streams: topics as AMQP clients declare and read them, in RabbitMQ's words.

A stream is a topic, and a topic that any other protocol made can be read as a stream. A stream that an AMQP client
declared has the topic setting `waystation.stream`: its name is then taken in the virtual host. Arguments of the
declaration are settings of the topic, so what Kafka's tools change is what AMQP clients see.

A reader says where it begins, with each basic.consume; nothing is remembered of it. For `Sources` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from waystation.broker.access.types import Feed, TailStart, check_partitions
from waystation.errors import NotAllowed, NotFound, WaystationError
from waystation.wire.amqp.errors import ACCESS_REFUSED, NOT_IMPLEMENTED, PRECONDITION_FAILED, AmqpError, of_error
from waystation.wire.amqp.stream_age import UNITS_MS, age_ms

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.broker.access.types import Topic
    from waystation.vhosts.consumer_terms import ConsumerTerms
    from waystation.world.clock import Clock

STREAM = "stream"
STREAM_SETTING = "waystation.stream"
OFFSET = "x-stream-offset"
MAX_AGE = "x-max-age"
MAX_BYTES = "x-max-length-bytes"
SEGMENT_BYTES = "x-stream-max-segment-size-bytes"
PARTITIONS = "x-partitions"

RETENTION_MS, RETENTION_BYTES, TOPIC_SEGMENT_BYTES = "retention.ms", "retention.bytes", "segment.bytes"
SMALLEST_SEGMENT, LARGEST_SEGMENT = 14, 2**31 - 1
"""Of a topic. What a stream may ask for beyond it is cut to it."""
MOST_SEGMENT = 3_000_000_000
"""RabbitMQ's limit."""
FOREVER = "-1"

NEXT = TailStart("next")
_WORDS = {"first": TailStart("first"), "last": TailStart("last"), "next": NEXT}

_NOT_FOR_STREAMS = (
    "x-expires",
    "x-message-ttl",
    "x-max-priority",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-overflow",
    "x-single-active-consumer",
    "x-delivery-limit",
    "x-queue-mode",
)


def start_of(value: object, where: str, now_ms: int) -> TailStart:
    """What `x-stream-offset` means. `where`: the queue, for the text of the refusal."""
    if value is None:
        return NEXT
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return TailStart("time", max(0, int(moment.timestamp() * 1000)))
    if isinstance(value, str):
        if value in _WORDS:
            return _WORDS[value]
        ago_ms = age_ms(value)
        if ago_ms is not None:
            return TailStart("time", max(0, now_ms - ago_ms))
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return TailStart("offset", value)
    raise AmqpError(
        PRECONDITION_FAILED,
        f"invalid arg '{OFFSET}' for {where}: {str(value)[:60]!r} is none of first, last, next, an offset,"
        " a timestamp, or an interval such as 1h",
    )


# -- declaring ---------------------------------------------------------------------------------------------------------


def topic_settings(arguments: Mapping[str, Any], where: str) -> dict[str, str]:
    """The topic's own settings that a declaration asks for; an AmqpError names the argument that makes no sense."""
    for name in _NOT_FOR_STREAMS:
        if name in arguments:
            raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{name}' for {where} of queue type rabbit_stream_queue")
    settings: dict[str, str] = {}
    age = arguments.get(MAX_AGE)
    if age is not None:
        kept_ms = age_ms(age) if isinstance(age, str) else None
        if kept_ms is None:
            raise AmqpError(
                PRECONDITION_FAILED, f"invalid arg '{MAX_AGE}' for {where}: {str(age)[:60]!r} is no age such as 7D"
            )
        settings[RETENTION_MS] = str(kept_ms)
    size = _size(arguments, MAX_BYTES, where)
    if size is not None:
        settings[RETENTION_BYTES] = str(size)
    segment = _size(arguments, SEGMENT_BYTES, where)
    if segment is not None:
        if segment > MOST_SEGMENT:
            raise AmqpError(PRECONDITION_FAILED, f"Exceeded max value for {SEGMENT_BYTES}")
        settings[TOPIC_SEGMENT_BYTES] = str(min(max(segment, SMALLEST_SEGMENT), LARGEST_SEGMENT))
    return settings


def _size(arguments: Mapping[str, Any], name: str, where: str) -> int | None:
    value = arguments.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{name}' for {where}: expected integer")
    if value < 0:
        raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{name}' for {where}: {{value_negative,{value}}}")
    return value


def partitions_of(arguments: Mapping[str, Any], where: str) -> int | None:
    value = arguments.get(PARTITIONS)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{PARTITIONS}' for {where}: expected integer")
    try:
        check_partitions(value)
    except WaystationError as error:
        raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{PARTITIONS}' for {where}: {error}") from None
    return value


def check_properties(where: str, *, durable: bool, exclusive: bool, auto_delete: bool) -> None:
    """What a stream cannot be."""
    for wrong, name in ((not durable, "non-durable"), (exclusive, "exclusive-owner"), (auto_delete, "auto-delete")):
        if wrong:
            raise AmqpError(PRECONDITION_FAILED, f"invalid property '{name}' for {where}")


def arguments_of(topic: Topic) -> dict[str, Any]:
    """What a declaration of this stream says: its settings, as arguments."""
    own = topic.overrides
    arguments: dict[str, Any] = {"x-queue-type": STREAM}
    if own.get(RETENTION_MS, FOREVER) != FOREVER:
        arguments[MAX_AGE] = _age_text(int(own[RETENTION_MS]))
    if own.get(RETENTION_BYTES, FOREVER) != FOREVER:
        arguments[MAX_BYTES] = int(own[RETENTION_BYTES])
    if TOPIC_SEGMENT_BYTES in own:
        arguments[SEGMENT_BYTES] = int(own[TOPIC_SEGMENT_BYTES])
    if len(topic.partitions) > 1:
        arguments[PARTITIONS] = len(topic.partitions)
    return arguments


def _age_text(kept_ms: int) -> str:
    for unit in ("D", "h", "m"):
        if kept_ms and kept_ms % UNITS_MS[unit] == 0:
            return f"{kept_ms // UNITS_MS[unit]}{unit}"
    return f"{kept_ms // 1000}s"


def check_same(topic: Topic, arguments: Mapping[str, Any], where: str) -> None:
    """Raises 406 if the declaration wants another stream than there is.

    Of a stream, everything has to agree; of a topic that another protocol made, what the declaration names.
    """
    asked = topic_settings(arguments, where)
    partitions = partitions_of(arguments, where)
    declared = topic.settings.stream
    present = arguments_of(topic)
    for argument, setting in (
        (MAX_AGE, RETENTION_MS),
        (MAX_BYTES, RETENTION_BYTES),
        (SEGMENT_BYTES, TOPIC_SEGMENT_BYTES),
    ):
        there = topic.overrides.get(setting, FOREVER if declared else "")
        if argument == SEGMENT_BYTES:
            there = topic.overrides.get(setting, "")
        wanted = asked.get(setting)
        if wanted is None and (not declared or argument not in present):
            continue
        if wanted != there:
            raise _differs(argument, where, arguments.get(argument), present.get(argument))
    if partitions is not None and partitions != len(topic.partitions):
        raise _differs(PARTITIONS, where, partitions, len(topic.partitions))


def _differs(argument: str, where: str, received: object, current: object) -> AmqpError:
    if received is not None and current is not None:
        text = f"received '{received}' but current is '{current}'"
    else:
        text = f"received {_value(received)} but current is {_value(current)}"
    return AmqpError(PRECONDITION_FAILED, f"inequivalent arg '{argument}' for {where}: {text}")


def _value(value: object) -> str:
    if value is None:
        return "none"
    return f"the value '{value}' of type '{'longstr' if isinstance(value, str) else 'signedint'}'"


# -- reading -----------------------------------------------------------------------------------------------------------


class StreamSource:
    """A topic under the name that AMQP clients have for it. See `sources.Source`."""

    kind = STREAM

    def __init__(self, access: Access, clock: Clock, name: str, topic: Topic) -> None:
        self.name = name
        self.topic = topic.name
        self._access = access
        self._streams = access.stream_queues
        self._clock = clock
        self._names = access.names
        self._topic = topic

    @property
    def where(self) -> str:
        return f"queue '{self.name}' in vhost '{self._names.vhost}'"

    @property
    def declared(self) -> bool:
        """By an AMQP client: no ordinary queue can have its name."""
        return self._topic.settings.stream

    @property
    def arguments(self) -> dict[str, Any]:
        return arguments_of(self._topic)

    async def open(self, terms: ConsumerTerms) -> Feed:
        """A reader from where `x-stream-offset` says, the end without it."""
        if terms.no_ack:
            raise AmqpError(
                NOT_IMPLEMENTED, f"automatic acknowledgement not supported by stream queues {self.where}", hard=True
            )
        if not terms.prefetch:
            name, vhost = self.name, self._names.vhost
            raise AmqpError(
                PRECONDITION_FAILED, f"consumer prefetch count is not set for stream '{name}' in vhost '{vhost}'"
            )
        start = start_of(terms.arguments.get(OFFSET), self.where, self._clock.now_ms())
        try:
            return self._streams.read(self.topic, start, terms.deliver, terms.on_end)
        except WaystationError as error:
            raise of_error(error) from error

    async def getter(self, consumer: str, *, no_ack: bool) -> Any:
        raise AmqpError(NOT_IMPLEMENTED, f"basic.get not supported by stream queues {self.where}", hard=True)

    def counts(self) -> tuple[int, int]:
        """What there is to read, and how many read it."""
        ready = sum(max(0, one.stable_offset - one.start_offset) for one in self._topic.partitions)
        return ready, self._streams.readers(self.topic)

    async def purge(self) -> int:
        raise AmqpError(NOT_IMPLEMENTED, f"queue.purge not supported by stream queues {self.where}", hard=True)

    async def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """The topic and all that is in it. The conditions mean nothing to a stream, as with RabbitMQ.

        A topic of another protocol is not deleted: clients delete queues that may not be there, to be sure.
        """
        if not self.declared:
            raise AmqpError(
                ACCESS_REFUSED, f"{self.where} is a topic and was not declared here as a stream; delete it as a topic"
            )
        try:
            await self._access.delete_topic(self.topic)
        except NotFound:
            pass  # by another, meanwhile
        except NotAllowed as error:
            raise AmqpError(ACCESS_REFUSED, f"{self.where} cannot be deleted: {error}") from error
        except WaystationError as error:
            raise of_error(error) from error
        return 0
