"""Publishes: neighbours in one read of the socket that go to one place become one batch of the log.

Each is answered separately. A topic that is not there yet is made first, and the later publishes to it wait. When one
of a series is refused, so are those of the series that come behind it (`refused_series.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from waystation.errors import Conflict, Invalid, NotFound, WaystationError
from waystation.message import size_of_all
from waystation.protocol import AnyCommand, Publish, PublishAnswer
from waystation.protocols.native.commands.durability import keep_all
from waystation.protocols.native.commands.turns import UNANSWERED

if TYPE_CHECKING:
    from waystation.broker.access.types import Topic
    from waystation.protocols.native.session import NativeSession, Timing


def publishes_together(session: NativeSession, commands: Sequence[AnyCommand], at: int) -> int:
    """The index behind the publishes from `at` on that surely go to one partition, with one offset after another."""
    first = commands[at]
    behind = at + 1
    if type(first) is not Publish:
        return behind
    topic = _plain_topic(session, first)
    if topic is None or not _dense(first, topic):
        return behind
    while behind < len(commands):
        command = commands[behind]
        if (
            type(command) is not Publish
            or command.topic != first.topic
            or command.partition != first.partition
            or command.acks != first.acks
            or command.exchange is not None
            or command.tx
            or not _dense(command, topic)
        ):
            break
        behind += 1
    return behind


def _plain_topic(session: NativeSession, command: Publish) -> Topic | None:
    """The topic that is published to, if each message in it surely has the offset behind the one before."""
    if command.topic is None or command.exchange is not None or command.tx:
        return None
    topic = session.access.reading.find(command.topic)
    return None if topic is None or topic.settings.dedup_window_ms else topic


def _dense(command: Publish, topic: Topic) -> bool:
    """Whether all its messages go to the same partition, now."""
    keys_count = command.partition is None and len(topic.partitions) > 1
    if not command.messages or command.once:
        return False
    for message in command.messages:
        if message.delay_ms or message.deliver_at_ms is not None or (keys_count and message.key is not None):
            return False
    return True


def publish(session: NativeSession, commands: Sequence[Publish]) -> None:
    """What `publishes_together` found, or one."""
    first = commands[0]
    if (
        len(commands) > 1
        and first.topic is not None
        and ("topic", first.topic) not in session.turns
        and not (session.refused_series and any(command.series in session.refused_series for command in commands))
        and _publish_together(session, commands, first.topic)
    ):
        return
    for command in commands:
        try:
            _publish_one(session, command)
        except WaystationError as error:
            _refuse(session, command, error)


def _publish_together(session: NativeSession, commands: Sequence[Publish], topic: str) -> bool:
    """False if they must be tried one by one."""
    messages = [message for command in commands for message in command.messages]
    try:
        published = session.access.publish(topic, messages, commands[0].partition, promised=_promised(commands[0]))
    except WaystationError:
        return False
    subscribers = session.access.subscriptions.count(topic)
    answers = []
    ((place, partition, offset),) = published.places
    for command in commands:
        answers.append((_answered(command), PublishAnswer([(place, partition, offset)], subscribers=subscribers)))
        offset += len(command.messages)
    keep_all(session, published.receipts if commands[0].acks == "durable" else (), answers)
    return True


def _publish_one(session: NativeSession, command: Publish) -> None:
    if (command.topic is None) == (command.exchange is None):
        raise Invalid("topic: name a topic or an exchange, and only one of them")
    if not command.messages:
        raise Invalid("messages: there is none")
    if command.series and (command.exchange is not None or command.tx):
        raise Invalid("series: is for topics, outside of transactions, which have no holes")
    if command.tx:
        _publish_in_transaction(session, command)
    elif command.exchange is not None:
        answer = session.access.publish_through(
            command.exchange, command.routing_key, command.messages, mandatory=command.mandatory
        )
        session.spawn(_answered(command), answer)
    elif command.topic is not None and (
        ("topic", command.topic) in session.turns or not _publish_now(session, command, command.topic)
    ):
        _publish_in_turn(session, command, command.topic)


def _publish_now(session: NativeSession, command: Publish, topic: str, timing: Timing | None = None) -> bool:
    """False if the topic is not there yet."""
    try:
        session.refused_series.check(command.series)
        if command.once:
            _check_window(session, topic)
        published = session.access.publish(topic, command.messages, command.partition, promised=_promised(command))
    except NotFound as error:
        if session.access.reading.find(topic) is None:
            return False
        _refuse(session, command, error)
    except WaystationError as error:
        _refuse(session, command, error)
    else:
        subscribers = session.access.subscriptions.count(topic)
        answer = PublishAnswer(published.places, subscribers=subscribers, duplicates=list(published.duplicates))
        receipts = () if command.acks == "written" else published.receipts
        keep_all(session, receipts, [(_answered(command), answer)], timing)
    return True


def _refuse(session: NativeSession, command: Publish, error: WaystationError) -> None:
    session.refused_series.note(command.series, error)
    session.fail(_answered(command), error)


def _check_window(session: NativeSession, name: str) -> None:
    """Raises Conflict if the topic does not know a message that comes again."""
    topic = session.access.reading.find(name)
    if topic is not None and not topic.settings.dedup_window_ms:
        raise Conflict(
            f"topic {name!r} has no deduplication window, so exactly-once cannot be kept;"
            " set waystation.dedup.window.ms, or publish at-least-once"
        )


def _publish_in_turn(session: NativeSession, command: Publish, topic: str) -> None:
    """Makes the topic first, if it may be made, and keeps the later ones for it behind this one."""
    timing = session.timing

    async def work() -> object:
        session.refused_series.check(command.series)
        try:
            await session.access.topic_to_publish(topic, deduplicates=command.once)
            if not _publish_now(session, command, topic, timing):
                raise NotFound(f"topic {topic!r} was deleted")
        except WaystationError as error:
            session.refused_series.note(command.series, error)
            raise
        return UNANSWERED

    session.in_turn(("topic", topic), _answered(command), work, size_of_all(command.messages))


def _publish_in_transaction(session: NativeSession, command: Publish) -> None:
    if command.topic is None:
        raise Invalid("exchange: a transaction publishes to topics and queues, not through exchanges")
    transaction = session.transaction(command.tx)
    topic = command.topic

    async def work() -> PublishAnswer:
        await session.access.topic_to_publish(topic)
        published = await transaction.publish(topic, command.messages, command.partition)
        session.access.count(len(command.messages) - len(published.duplicates), published.bytes)
        return PublishAnswer(published.places, duplicates=list(published.duplicates))

    session.in_turn(("tx", command.tx), _answered(command), work, size_of_all(command.messages))


def _answered(command: Publish) -> int:
    return command.id if command.acks != "none" else 0


def _promised(command: Publish) -> bool:
    """Whether its answer says that the messages are durable."""
    return command.acks == "durable"
