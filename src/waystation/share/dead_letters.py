"""Dead letters of share groups: the record, as it was, with its failure history, to a topic or a queue.

The dead letter is written before the group's state says that the record is done, and to a log that is synced before it
(in a cluster, all replicas in sync have it before), so a dead record is never lost on the way. (A crash between the two
writes the dead letter again.) A target that cannot take it now is tried again; until then the record is out of
everybody's reach, and the group's start offset waits for it.

To a topic go the record's own bytes, with the headers `x-death` and Kafka's `__dlq.errors.*` (KIP-1191), and without a
delay and a time to live; to a queue the message that the record is. An exchange sends it to queues and topics as its
bindings are at that moment; where there are none, or no such exchange, the record is dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from waystation.errors import Invalid, NotFound, TooLarge, WaystationError
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import Record
from waystation.message import Message
from waystation.observe.events import event_logger
from waystation.observe.meters import DeathMeter
from waystation.queues.failure_history import (
    EXCHANGE_TARGET,
    TOPIC_TARGET,
    X_DEATH,
    brief,
    failure_history_of,
    with_death,
)
from waystation.queues.redriven import Origin, origin_of
from waystation.queues.shard.shard import PutResult
from waystation.routing.namespace_names import local_name
from waystation.share.group import SharedGroup
from waystation.share.machines.delivery import EXPIRED, REJECTED, Death
from waystation.share.partition import SharedPartition
from waystation.topics.partitions.partition import Partition, Receipt
from waystation.topics.publishing import Publishing
from waystation.topics.records.crossing import OF_TIME, TAKEN_AT, message_of
from waystation.topics.topics import Topic
from waystation.world.clock import Clock

logger = event_logger("waystation.shared")

RETRY_FIRST_S, RETRY_LONGEST_S = 0.5, 30.0
KAFKA_HEADER = "__dlq.errors."
_WORDS = {REJECTED: "Offset rejected by client.", EXPIRED: "Offset expired before it was delivered."}
_LIMIT_WORDS = "Offset delivery count exceeded the threshold."

HeaderPair = tuple[str, bytes | None]
Dead = tuple[SharedPartition, Death, str | None]
ShareGroupDeadLetter = tuple[bytes | None, bytes | None, tuple[HeaderPair, ...], Message]
"""As a record (key, value, headers) and as a message."""
QUEUE_TARGET = "queue:"


class QueueTargets(Protocol):
    """Queues, as far as dead letters need them."""

    def __contains__(self, name: object) -> bool: ...
    async def declare(self, name: str) -> object: ...
    def put(self, name: str, messages: Sequence[Message]) -> PutResult: ...


class Exchanges(Protocol):
    """Exchanges, as far as dead letters need them."""

    def route(self, exchange: str, message: Message, routing_key: str = "") -> list[str]: ...


class ShareGroupDeadLetters:
    """One per broker. `ensure_topic` makes a topic if the broker makes topics by itself."""

    def __init__(
        self,
        clock: Clock,
        publishing: Publishing,
        ensure_topic: Callable[[str], Awaitable[Topic]],
        queues: Callable[[], QueueTargets],
        exchanges: Callable[[], Exchanges],
    ) -> None:
        self._clock = clock
        self._publishing = publishing
        self._ensure_topic = ensure_topic
        self._queues = queues
        self._exchanges = exchanges
        self._waiting: dict[SharedGroup, deque[Dead]] = {}
        self._tasks: dict[SharedGroup, asyncio.Task[None]] = {}
        self.deaths = DeathMeter()

    def bury(self, one: SharedPartition, deaths: list[Death], error: str | None) -> None:
        """Takes care of records that have just died. Does not wait."""
        kept: list[Death] = []
        for death in deaths:
            keeps = one.core.keeps_expired if death.reason == EXPIRED else one.core.keeps_dead
            if keeps:
                kept.append(death)
            self.deaths.add(death.reason, death.count, kept=keeps)
            logger.info(
                "shared.dead",
                "group {group} gave up {count} records: {reason}",
                group=one.group.id,
                topic=one.topic,
                partition=one.partition.index,
                offset=death.first,
                count=death.count,
                reason=death.reason,
                target=one.group.dead_letter_of(one.topic) if keeps else None,
            )
        if not kept:
            return
        waiting = self._waiting.setdefault(one.group, deque())
        waiting += [(one, death, error) for death in kept]
        if one.group not in self._tasks:
            name = f"dead letters of {one.group.id}"
            self._tasks[one.group] = asyncio.get_running_loop().create_task(self._work(one.group, waiting), name=name)

    def drop(self, group: SharedGroup) -> None:
        """Another broker coordinates the group, and sends what has not been sent: dying records are found again."""
        task = self._tasks.get(group)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """What has not been sent is found again at the next start."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, group: SharedGroup, waiting: deque[Dead]) -> None:
        """Sends a group's dead, in the order of their deaths."""
        try:
            while waiting:
                one, death, error = waiting[0]
                await self._bury(one, death, error)
                waiting.popleft()
                if not group.closed:
                    one.buried(death)
        finally:
            self._tasks.pop(group, None)
            self._waiting.pop(group, None)

    async def _bury(self, one: SharedPartition, death: Death, error: str | None) -> None:
        wait_s = RETRY_FIRST_S
        while not one.group.closed:
            try:
                await self._send(one, death, error)
                return
            except (TooLarge, Invalid) as refused:
                # It will never be taken, and it must not keep the group from going on.
                logger.error(
                    "shared.dead_letters_lost",
                    "dead letters of group {group} are lost: {error}",
                    group=one.group.id,
                    topic=one.topic,
                    partition=one.partition.index,
                    offset=death.first,
                    count=death.count,
                    error=refused,
                )
                return
            except WaystationError as refused:
                logger.warning(
                    "shared.dead_letters_wait",
                    "dead letters of group {group} wait: {error}",
                    group=one.group.id,
                    topic=one.topic,
                    error=refused,
                )
                await asyncio.sleep(wait_s)
                wait_s = min(RETRY_LONGEST_S, wait_s * 2)

    async def _send(self, one: SharedPartition, death: Death, error: str | None) -> None:
        dead_letters: dict[str, list[ShareGroupDeadLetter]] = {}
        for record in one.window.records(death.first, death.count):
            message = message_of(record.key, record.value, record.headers, record.timestamp)
            origin = _origin(one, record, message)
            target = one.group.dead_letter_of(origin.topic)
            if target is None:  # somebody has said so since it died
                continue
            via, key, targets = self._targets(one, message, target, origin.topic)
            for each in targets:
                dead_letter = self._dead_letter(origin, death, each, record, message, error)
                if dead_letter is not None:
                    dead_letters.setdefault(each, []).append(_through(dead_letter, via, key))
        for each, mine in dead_letters.items():
            await self._hand_over(one, each, mine)

    def _targets(
        self, one: SharedPartition, message: Message, target: str, topic: str
    ) -> tuple[str | None, str | None, Sequence[str]]:
        """The exchange and the routing key, if it goes through one, and the queues and topics it goes to."""
        if not target.startswith(EXCHANGE_TARGET):
            return None, None, [target]
        exchange = target.removeprefix(EXCHANGE_TARGET)
        key = one.group.settings.dead_letter_key or message.routing_key or topic
        try:
            found = self._exchanges().route(exchange, message, key)
        except (NotFound, Invalid) as error:
            logger.warning(
                "shared.dead_letter_dropped",
                "a dead letter of group {group} is dropped: {error}",
                group=one.group.id,
                exchange=exchange,
                error=error,
            )
            return None, None, []
        return local_name(exchange), key, [each.removeprefix(QUEUE_TARGET) for each in found]

    async def _hand_over(self, one: SharedPartition, target: str, dead_letters: list[ShareGroupDeadLetter]) -> None:
        if target.startswith(TOPIC_TARGET):
            topic = await self._ensure_topic(target.removeprefix(TOPIC_TARGET))
            partition = topic.partitions[one.partition.index % len(topic.partitions)]
            for key, value, headers, _ in dead_letters:
                self._append(partition, (key, value, headers))
            await _replicated(Receipt(partition, partition.end_offset))
            return
        queues = self._queues()
        if target not in queues:
            await queues.declare(target)
        await _replicated(queues.put(target, [message for *_, message in dead_letters]).receipt)

    def _append(
        self, partition: Partition, dead_letter: tuple[bytes | None, bytes | None, tuple[HeaderPair, ...]]
    ) -> None:
        batch = batches.build([dead_letter], self._clock.now_ms())
        self._publishing.append(partition, batch, self._publishing.check(partition, batch))

    def _dead_letter(
        self, origin: Origin, death: Death, target: str, record: Record, message: Message, error: str | None
    ) -> ShareGroupDeadLetter | None:
        """The dead letter as a record and as a message; None if it would go in circles."""
        source = f"{TOPIC_TARGET}{origin.topic}"
        if target == source or _cycles(message, target):
            logger.warning(
                "shared.dead_letter_in_a_circle",
                "a dead letter of group {group} came back to its own topic, and is dropped",
                group=origin.group,
                topic=origin.topic,
                offset=origin.offset,
            )
            return None
        history = with_death(message, source, death.reason, self._clock.now_ms(), death.deliveries, error)
        history[0] |= {"group": origin.group, "partition": origin.partition, "offset": origin.offset}
        headers = _headers(record, history, origin, death, error)
        moved = msgspec.structs.replace(
            message,
            id=message.id if message.id is not None else f"{origin.topic}-{origin.partition}@{origin.offset}",
            headers={name: value for name, value in message.headers.items() if name != TAKEN_AT} | {X_DEATH: history},
            delay_ms=0,
            deliver_at_ms=None,
            ttl_ms=None,
        )
        return record.key, record.value, headers, moved


async def _replicated(receipt: Receipt) -> None:
    """A leader that lacks it may come next, whatever the order in which this broker's logs are synced. NotLeader."""
    if receipt.partition.replicated:
        await receipt.partition.until_durable(receipt.offset)


def _origin(one: SharedPartition, record: Record, message: Message) -> Origin:
    """Where the record is, or was before it was redriven to its group."""
    before = origin_of(message) if one.redriven else None
    return before or Origin(one.topic, one.partition.index, record.offset, one.group.id)


def _through(dead_letter: ShareGroupDeadLetter, exchange: str | None, key: str | None) -> ShareGroupDeadLetter:
    """As an exchange makes it of the dead letter; None: it goes through none."""
    if exchange is None:
        return dead_letter
    *_, message = dead_letter
    headers = {**message.headers, **brief(failure_history_of(message), message)}
    return (*dead_letter[:3], msgspec.structs.replace(message, exchange=exchange, routing_key=key, headers=headers))


def _headers(
    record: Record, history: list[Any], origin: Origin, death: Death, error: str | None
) -> tuple[HeaderPair, ...]:
    lost = {X_DEATH, *OF_TIME}
    own = tuple(pair for pair in record.headers if pair[0] not in lost and not pair[0].startswith(KAFKA_HEADER))
    told = {
        "topic": origin.topic,
        "partition": str(origin.partition),
        "offset": str(origin.offset),
        "group": origin.group,
        "delivery.count": str(death.deliveries),
        "message": error or _WORDS.get(death.reason, _LIMIT_WORDS),
    }
    kafka = tuple((KAFKA_HEADER + name, text.encode()) for name, text in told.items())
    return (*own, (X_DEATH, msgspec.json.encode(history)), *kafka)


def _cycles(message: Message, target: str) -> bool:
    """Whether it died in `target` before and no consumer has rejected it since."""
    for death in failure_history_of(message):
        if death.get("reason") == REJECTED:
            return False
        if death.get("queue") == target:
            return True
    return False
