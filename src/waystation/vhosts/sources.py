"""Names in a virtual host that are no ordinary queues: streams, which are topics, and queues on topics (`x-topic`).

To a client they are queues: declared, bound, consumed and deleted like one. Ordinary queues, queues on topics and
streams share one space of names, and are looked for in this order. A topic of another protocol is found by its name
too, as a stream, but it does not keep anybody from declaring an ordinary queue of that name.

For whoever declares, consumes or shows queues of a virtual host; on the loop's thread only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from waystation.broker.access.types import DEFAULT, EXCHANGE_TARGET, Feed, NamespaceNames, TopicQueueSettings
from waystation.errors import AlreadyExists, Conflict, NotFound, WaystationError
from waystation.message import MAX_HORIZON_MS
from waystation.vhosts.streams import (
    FOREVER,
    RETENTION_BYTES,
    RETENTION_MS,
    STREAM,
    STREAM_SETTING,
    StreamSource,
    check_properties,
    check_same,
    partitions_of,
    topic_settings,
)
from waystation.wire.amqp.errors import (
    ACCESS_REFUSED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    AmqpError,
    of_error,
)

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.broker.access.types import SharedFeed, Topic, TopicQueue
    from waystation.vhosts.consumer_terms import ConsumerTerms
    from waystation.world import World

TOPIC = "topic"
QUEUE_TYPE = "x-queue-type"
X_TOPIC = "x-topic"
X_START = "x-topic-start"
LIMIT = "x-delivery-limit"
EXCHANGE = "x-dead-letter-exchange"
KEY = "x-dead-letter-routing-key"

_NOT_ON_TOPICS = (
    "x-expires",
    "x-message-ttl",
    "x-max-priority",
    "x-max-length",
    "x-max-length-bytes",
    "x-overflow",
    "x-single-active-consumer",
    "x-queue-mode",
)
"""The messages are the topic's, and so are their number and their age."""


class Source(Protocol):
    """Something that is consumed like a queue and is none."""

    kind: str
    """`stream` or `topic`."""
    name: str
    """As the client says it."""
    topic: str
    """The topic's full name: what is bound to an exchange is `topic:` and this."""

    @property
    def declared(self) -> bool:
        """Whether an AMQP client declared it: then no ordinary queue can have its name."""

    @property
    def arguments(self) -> dict[str, Any]:
        """What a declaration of it says."""

    async def open(self, terms: ConsumerTerms) -> Feed:
        """A consumer; it delivers when it is given credit."""

    async def getter(self, consumer: str, *, no_ack: bool) -> SharedFeed:
        """For basic.get: `take(1)`, then verdicts as with any feed."""

    def counts(self) -> tuple[int, int]:
        """(ready, consumers)."""

    async def purge(self) -> int:
        """Returns how many messages were deleted."""

    async def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Returns how many messages were ready."""


class TopicQueueSource:
    """A queue on a topic. See `Source`."""

    kind = TOPIC
    declared = True

    def __init__(self, access: Access, name: str, queue: TopicQueue) -> None:
        self.name = name
        self.topic = queue.settings.topic
        self._queues = access.topic_queues
        self._names = access.names
        self._queue = queue

    @property
    def full(self) -> str:
        return self._queue.name

    @property
    def where(self) -> str:
        return f"queue '{self.name}' in vhost '{self._names.vhost}'"

    @property
    def settings(self) -> TopicQueueSettings:
        return self._queue.settings

    @property
    def arguments(self) -> dict[str, Any]:
        return arguments_of(self._queue.settings, self._names)

    async def open(self, terms: ConsumerTerms) -> Feed:
        try:
            return await self._queues.consume(
                self.full,
                terms.consumer,
                terms.deliver,
                terms.on_end,
                visibility_timeout_ms=terms.visibility_timeout_ms or MAX_HORIZON_MS,
                auto_ack=terms.no_ack,
                exclusive=terms.exclusive,
            )
        except WaystationError as error:
            raise self._refused(error) from error

    async def getter(self, consumer: str, *, no_ack: bool) -> SharedFeed:
        try:
            return await self._queues.getter(self.full, consumer, visibility_timeout_ms=MAX_HORIZON_MS, auto_ack=no_ack)
        except WaystationError as error:
            raise self._refused(error) from error

    def counts(self) -> tuple[int, int]:
        counts = self._queues.counts(self.full)
        return counts.ready, counts.consumers

    async def purge(self) -> int:
        try:
            return await self._queues.purge(self.full)
        except WaystationError as error:
            raise self._refused(error) from error

    async def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> int:
        try:
            return await self._queues.delete(self.full, if_unused=if_unused, if_empty=if_empty)
        except NotFound:
            return 0  # by another, meanwhile
        except Conflict as error:
            state = "in use" if if_unused and self.counts()[1] else "not empty"
            raise AmqpError(PRECONDITION_FAILED, f"{self.where} {state}") from error
        except WaystationError as error:
            raise self._refused(error) from error

    def _refused(self, error: WaystationError) -> AmqpError:
        if isinstance(error, NotFound):
            return AmqpError(NOT_FOUND, f"no {self.where}")
        if isinstance(error, Conflict):
            return AmqpError(ACCESS_REFUSED, f"{self.where} in exclusive use")
        return of_error(error)


def arguments_of(settings: TopicQueueSettings, names: NamespaceNames) -> dict[str, Any]:
    """What a declaration of a queue on a topic says."""
    arguments: dict[str, Any] = {X_TOPIC: names.local_topic(settings.topic)}
    if settings.start != "earliest":
        arguments[X_START] = settings.start
    if settings.max_deliveries:
        arguments[LIMIT] = settings.max_deliveries - 1
    target = settings.dead_letter
    if target is not None and target.startswith(EXCHANGE_TARGET):
        arguments[EXCHANGE] = names.local(target.removeprefix(EXCHANGE_TARGET))
        if settings.dead_letter_key is not None:
            arguments[KEY] = settings.dead_letter_key
    elif target is not None:
        arguments |= {EXCHANGE: "", KEY: names.local(target)}
    return arguments


class Sources:
    """One virtual host's, for one connection."""

    __slots__ = ("_access", "_world")

    def __init__(self, access: Access, world: World) -> None:
        self._access = access
        self._world = world

    @property
    def _names(self) -> NamespaceNames:
        return self._access.names

    def find(self, name: str) -> Source | None:
        """None: an ordinary queue, or nothing at all."""
        full = self._names.full(name)
        topic = self._access.stream_queues.find(self._names.topic(name))
        queue = None
        if topic is None or self._access.sees_queue(full):
            # Who may not see queues of this name may read the topic all the same.
            if self._access.queue_exists(full):
                return None
            queue = self._access.topic_queues.find(full)
        if queue is not None:
            return TopicQueueSource(self._access, name, queue)
        if topic is None or self.hides(topic.name):
            return None
        return StreamSource(self._access, self._world.clock, name, topic)

    def hides(self, topic: str) -> bool:
        """Whether it is the stream of another virtual host. Topics of other protocols are in none."""
        if not self._is_anothers(topic):
            return False
        found = self._access.stream_queues.find(topic)
        return found is not None and found.settings.stream

    def _is_anothers(self, topic: str) -> bool:
        """Whether a stream is in another virtual host than `/`, which has no prefix that keeps its own apart."""
        return not self._names.prefix and "." in topic and self._access.namespace_of_topic(topic) != DEFAULT

    @staticmethod
    def wants(arguments: Mapping[str, Any]) -> bool:
        """Whether a declaration with these arguments is for `declare`."""
        return X_TOPIC in arguments or arguments.get(QUEUE_TYPE) == STREAM

    def check_ordinary(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Raises 406 if an ordinary queue of this name cannot be declared."""
        source = self.find(name)
        full = self._names.full(name)
        streams = self._access.stream_queues
        # Also where the client may not see it: nobody shall take a stream's name from it.
        taken = source is None and streams.is_declared(self._names.topic(name), full)
        if taken and not self._access.queue_exists(full):
            raise self._other_type(name, arguments.get(QUEUE_TYPE), STREAM)
        if source is None or not source.declared:
            return
        if source.kind == STREAM:
            raise self._other_type(name, arguments.get(QUEUE_TYPE), STREAM)
        raise AmqpError(
            PRECONDITION_FAILED,
            f"inequivalent arg '{X_TOPIC}' for {self._where(name)}: received none but current is the value"
            f" '{self._names.local_topic(source.topic)}' of type 'longstr'",
        )

    async def declare(
        self, name: str, arguments: Mapping[str, Any], *, durable: bool, exclusive: bool, auto_delete: bool
    ) -> Source:
        """A stream or a queue on a topic, made if it is not there; 406 if there is something else of that name."""
        where = self._where(name)
        full = self._names.full(name)
        if self._access.queue_exists(full):
            settings = self._access.describe_queue(full).settings
            if X_TOPIC not in arguments:
                raise self._other_type(name, STREAM, settings.queue_type or "classic")
            raise AmqpError(PRECONDITION_FAILED, f"{where} is there already, and not on a topic")
        try:
            if X_TOPIC in arguments:
                if exclusive:
                    raise AmqpError(
                        PRECONDITION_FAILED, f"invalid property 'exclusive-owner' for {where}: it is on a topic"
                    )
                return await self._declare_on_topic(name, arguments, durable=durable, auto_delete=auto_delete)
            check_properties(where, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
            return await self._declare_stream(name, arguments)
        except WaystationError as error:
            raise of_error(error) from error

    # -- streams ----------------------------------------------------------------------------------------------------

    async def _declare_stream(self, name: str, arguments: Mapping[str, Any]) -> Source:
        where = self._where(name)
        if not name:
            raise AmqpError(PRECONDITION_FAILED, "Cannot declare a server-named queue for type rabbit_stream_queue")
        if self._access.topic_queues.find(self._names.full(name)) is not None:
            raise AmqpError(PRECONDITION_FAILED, f"{where} is there already, as one on a topic; it is no stream")
        asked = topic_settings(arguments, where)
        partitions = partitions_of(arguments, where)
        wanted = {RETENTION_MS: FOREVER, RETENTION_BYTES: FOREVER, **asked, STREAM_SETTING: "true"}
        full = self._names.topic(name)
        if self._is_anothers(full):
            raise AmqpError(ACCESS_REFUSED, f"'{name}' is not in vhost '{self._names.vhost}'")
        topic = self._access.stream_queues.find(full)
        if topic is None:
            self._access.reading.find(full)  # refused before it is made: who declares it is told of it
            topic = await self._create_stream(full, partitions or 1, wanted)
        check_same(topic, arguments, where)
        return StreamSource(self._access, self._world.clock, name, topic)

    async def _create_stream(self, full: str, partitions: int, settings: dict[str, str]) -> Topic:
        try:
            return await self._access.create_topic(full, partitions, settings)
        except AlreadyExists:
            found = self._access.stream_queues.find(full)
            if found is None:
                raise
            return found  # by another, meanwhile

    # -- queues on topics -------------------------------------------------------------------------------------------

    async def _declare_on_topic(
        self, name: str, arguments: Mapping[str, Any], *, durable: bool, auto_delete: bool
    ) -> Source:
        stream = self.find(name)
        if stream is not None and stream.kind == STREAM and stream.declared:
            raise self._other_type(name, arguments.get(QUEUE_TYPE), STREAM)
        settings = self._settings(name, arguments, durable=durable, auto_delete=auto_delete)
        try:
            queue = await self._access.topic_queues.declare(self._names.full(name), settings)
        except Conflict as error:
            raise AmqpError(PRECONDITION_FAILED, f"inequivalent declaration of {self._where(name)}: {error}") from error
        return TopicQueueSource(self._access, name, queue)

    def _settings(
        self, name: str, arguments: Mapping[str, Any], *, durable: bool, auto_delete: bool
    ) -> TopicQueueSettings:
        where = self._where(name)
        for unfit in _NOT_ON_TOPICS:
            if unfit in arguments:
                raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{unfit}' for {where}: it is on a topic")
        topic = arguments[X_TOPIC]
        if not isinstance(topic, str) or not topic:
            raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{X_TOPIC}' for {where}: expected a topic's name")
        start = arguments.get(X_START, "earliest")
        if start not in ("earliest", "latest"):
            raise AmqpError(
                PRECONDITION_FAILED,
                f"invalid arg '{X_START}' for {where}: {str(start)[:60]!r} is not earliest or latest",
            )
        limit = arguments.get(LIMIT)
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
            raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{LIMIT}' for {where}: expected a number from 0 on")
        target, key = self._dead_letter(arguments, where)
        return TopicQueueSettings(
            topic=self._names.topic(topic),
            start=start,
            max_deliveries=0 if limit is None else limit + 1,
            dead_letter=target,
            dead_letter_key=key,
            durable=durable,
            auto_delete=auto_delete,
        )

    def _dead_letter(self, arguments: Mapping[str, Any], where: str) -> tuple[str | None, str | None]:
        """The target, and the routing key where that is an exchange. With the default exchange it is a queue's."""
        exchange, key = arguments.get(EXCHANGE), arguments.get(KEY)
        for name, value in ((EXCHANGE, exchange), (KEY, key)):
            if value is not None and not isinstance(value, str):
                raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{name}' for {where}: expected a name")
        if exchange is None:
            if key is not None:
                raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{KEY}' for {where}: routing_key_but_no_dlx_defined")
            return None, None
        if exchange:
            return EXCHANGE_TARGET + self._names.full(exchange), key
        if not key:
            raise AmqpError(
                PRECONDITION_FAILED, f"invalid arg '{EXCHANGE}' for {where}: the default exchange needs {KEY}, a queue"
            )
        return self._names.full(key), None

    # -- parts ------------------------------------------------------------------------------------------------------

    def _where(self, name: str) -> str:
        return f"queue '{name}' in vhost '{self._names.vhost}'"

    def _other_type(self, name: str, received: object, current: str) -> AmqpError:
        said = "none" if received is None else f"'{received}'"
        there = f"the value '{current}' of type 'longstr'" if received is None else f"'{current}'"
        return AmqpError(
            PRECONDITION_FAILED,
            f"inequivalent arg '{QUEUE_TYPE}' for {self._where(name)}: received {said} but current is {there}",
        )
