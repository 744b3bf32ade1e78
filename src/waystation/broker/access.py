"""`Access`: what a protocol's session holds of the broker, bound to a principal and a namespace.

The rules of publishing are asked here, once for every protocol, before anything is stored:

- may the principal write there (`security/permissions.py`);
- is there room: while a resource alarm or a limit of the namespace is on, a publish is refused (ResourceAlarm). A
  protocol that holds its publishers back instead says `waits=True` and asks `alarm`. What such a client has sent before
  it was held back is stored;
- are enough replicas in sync, where durability is promised (`Topic.check_in_sync`);
- is the topic there, or to be created on first use.

What was taken is metered here, too, and waiting until it is durable goes through `durable` and `when_durable`.

What the broker does by itself (dead letters, delayed messages, staged commits of what was taken) does not come through
here: it was admitted when it was published. On the loop's thread only; the face costs one call per batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from waystation.errors import ResourceAlarm
from waystation.log.batch import Header
from waystation.log.log import Appended
from waystation.message import Message
from waystation.protocol import PublishAnswer, PutAnswer
from waystation.queues.shard.shard import PutEach, PutResult
from waystation.security.principals import Principal
from waystation.topics.batch_publishing import Placed, append_batches, check_batches
from waystation.topics.messages import Published
from waystation.topics.partition import Receipt
from waystation.transactions.transacting import Tx

if TYPE_CHECKING:
    from waystation.broker.broker import Broker
    from waystation.health.resource_alarms import ResourceAlarms
    from waystation.observe.meters import DoorMeter
    from waystation.topics.partition import Partition
    from waystation.topics.topics import Topic


class Access:
    """Made by `Broker.access`."""

    __slots__ = (
        "_alarms", "_broker", "_permissions", "durable", "meter", "namespace", "principal", "waits", "when_durable",
        "when_each_durable",
    )  # fmt: skip

    def __init__(
        self, broker: Broker, principal: Principal, namespace: str, meter: DoorMeter, *, waits: bool = False
    ) -> None:
        self._broker = broker
        self._alarms: ResourceAlarms = broker.resource_alarms
        self._permissions = broker.permissions
        self.principal = principal
        self.namespace = namespace
        self.meter = meter
        self.waits = waits
        self.durable = broker.durability.wait
        self.when_durable = broker.durability.when_durable
        self.when_each_durable = broker.durability.when_each_durable

    # -- may it, is there room --------------------------------------------------------------------------------------

    @property
    def alarm(self) -> str | None:
        """Why publishers of the namespace have to wait; None: they need not."""
        return self._alarms.reason(self.namespace)

    def admit_queue(self, queue: str) -> None:
        """Raises what a publish to the queue would be refused with before the queue is asked."""
        self._permissions.check(self.principal, "write", "queue", queue)
        if self._alarms.on and not self.waits:
            self._check_room(self._broker.namespaces.of(queue), f"queue {queue!r}")

    def admit_topic(self, topic: str) -> None:
        self._permissions.check(self.principal, "write", "topic", topic)
        if self._alarms.on and not self.waits:
            self._check_room(self._broker.namespaces.of_topic(topic), f"topic {topic!r}")

    def admit_exchange(self, exchange: str) -> None:
        self._permissions.check(self.principal, "write", "exchange", exchange)
        if self._alarms.on and not self.waits:
            self._check_room(self._broker.namespaces.of(exchange), f"exchange {exchange!r}")

    def _check_room(self, namespace: str, what: str) -> None:
        reason = self._alarms.reason(namespace)
        if reason is not None:
            raise ResourceAlarm(f"{what} takes no messages now: {reason}. Publish again later")

    # -- queues -----------------------------------------------------------------------------------------------------

    def put(self, queue: str, messages: Sequence[Message]) -> PutResult:
        """Messages to a queue; they are durable when the receipt is."""
        self.admit_queue(queue)
        result = self._broker.queues.put(queue, messages)
        self.count(result.count, result.bytes)
        return result

    async def put_durable(self, queue: str, messages: Sequence[Message], *, wait_ms: int = 0) -> PutAnswer:
        """The same, and waits: for room in a full queue, for so long, and until they are durable."""
        self.admit_queue(queue)
        answer = await self._broker.queues.put_durable(queue, messages, wait_ms=wait_ms)
        left_out = set(answer.duplicates)
        taken = [message for i, message in enumerate(messages) if i not in left_out] if left_out else messages
        self.count(len(taken), sum(len(message.payload) for message in taken))
        return answer

    # -- topics -----------------------------------------------------------------------------------------------------

    async def ensure_topic(self, topic: str) -> Topic:
        """The topic, created if it is not there and topics are created on first use."""
        if topic not in self._broker.topics:
            self._permissions.check(self.principal, "create", "topic", topic)
        return await self._broker.messages.ensure(topic)

    def publish(
        self, topic: str, messages: Sequence[Message], partition: int | None = None, *, promised: bool = True
    ) -> Published:
        """Messages to a topic; they are durable when the receipts are. `promised`: somebody will be told so."""
        self.admit_topic(topic)
        published = self._broker.messages.publish(topic, messages, partition, promised=promised)
        self.count(len(messages), published.bytes)
        return published

    async def publish_batches(self, topic: str, placed: Sequence[Placed]) -> Published:
        """Record batches that the client has built, each for its partition."""
        self.admit_topic(topic)
        checked = await check_batches(self._broker.publishing, await self.ensure_topic(topic), placed)
        published = append_batches(self._broker.publishing, checked)
        self.count(sum(header.record_count for _, _, header in checked), sum(len(batch) for _, batch, _ in checked))
        return published

    def partition(self, topic: str | UUID, index: int) -> Partition:
        topics = self._broker.topics
        found = topics.by_id(topic) if isinstance(topic, UUID) else topics.get(topic)
        return found.partition(index)

    def append(
        self, partition: Partition, batch: bytearray | memoryview, header: Header, *, promised: bool
    ) -> Appended:
        """One record batch that `Publishing.check` has passed."""
        topic = partition.topic
        self.admit_topic(topic.name)
        if promised:
            topic.check_in_sync()
        appended = self._broker.publishing.append(partition, batch, header)
        if not appended.duplicate:
            self.count(appended.last_offset - appended.base_offset + 1, len(batch))
        return appended

    # -- exchanges --------------------------------------------------------------------------------------------------

    async def publish_through(
        self, exchange: str, routing_key: str, messages: Sequence[Message], *, mandatory: bool = False
    ) -> PublishAnswer:
        """Messages to whatever the exchange routes them to; durable there when this returns."""
        self.admit_exchange(exchange)
        answer = await self._broker.routing.publish(exchange, routing_key, messages, mandatory=mandatory)
        self.count(len(messages), sum(len(message.payload) for message in messages))
        return answer

    # -- by protocols that route themselves, and meter what they have routed once (`count`) --------------------------

    def put_each(self, queue: str, messages: Sequence[Message]) -> PutEach:
        """Each message by itself: those that the queue refuses are told, the others are taken."""
        self.admit_queue(queue)
        return self._broker.queues.put_each(queue, messages)

    def put_same(self, queues: Sequence[str], messages: Sequence[Message]) -> Iterator[tuple[Sequence[str], Receipt]]:
        """The same messages to several queues, stored once for each shard."""
        for queue in queues:
            self.admit_queue(queue)
        return self._broker.queues.put_same(queues, messages)

    def publish_each(self, topic: str, messages: Sequence[Message], *, promised: bool) -> Published:
        """The topic's share of what was routed."""
        self.admit_topic(topic)
        return self._broker.messages.publish(topic, messages, promised=promised)

    def count(self, messages: int, size: int) -> None:
        """So much was published."""
        self.meter.published += messages
        self.meter.published_bytes += size

    # -- transactions -----------------------------------------------------------------------------------------------

    async def begin(self, transactional_id: str, timeout_ms: int = 60_000) -> Tx:
        """A transaction; what is published in it is asked about as it is published, and metered by who publishes."""
        self._permissions.check(self.principal, "write", "transactional-id", transactional_id)
        return await self._broker.transacting.begin(transactional_id, timeout_ms, gate=self)
