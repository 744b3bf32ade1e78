"""Moves a group to another place in its topics, or forgets it. Refused while it has members, since they would go on
from where they are and commit over it. What would change can be looked at first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waystation.admin.views.overview import commit_offsets
from waystation.errors import Conflict, Invalid, NotFound
from waystation.groups.machines.errors import UnknownGroup
from waystation.queues.redriving import delete_redriven
from waystation.topics.partitions.start_position import StartPosition, offset_of, parse_start

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

LOOKED_AT_ONCE = 200
"""Partitions that are looked up by time before others have their turn: each may read from the disk."""

TopicPartition = tuple[str, int]


class Reset(msgspec.Struct, kw_only=True):
    to: Annotated[
        str,
        Meta(
            description="earliest, latest, an offset, -N (the last N), a time like 2026-03-01T12:00 or @1772366400000,"
            " or an age like 15m"
        ),
    ]
    topic: Annotated[str | None, Meta(description="only in this topic; default: all that it has a position in")] = None
    partitions: Annotated[list[int] | None, Meta(description="only in these partitions of `topic`")] = None
    dry_run: Annotated[bool, Meta(description="only say what would change")] = False


class ResetGroup(Reset, kw_only=True):
    group: str


class Change(msgspec.Struct):
    topic: str
    partition: int
    from_: Annotated[int | None, Meta(description="null: it had no position there")] = msgspec.field(name="from")
    to: int


class ResetOut(msgspec.Struct):
    changes: list[Change]
    done: bool


class OfTopic(msgspec.Struct):
    topic: Annotated[str | None, Meta(description="only what it committed for this topic; default: the group")] = None


class DeleteGroup(OfTopic, kw_only=True):
    group: str


async def reset_group(broker: ManagedBroker, query: ResetGroup) -> ResetOut:
    """A group need not be there yet, if the topic is named: then it is made, and begins there."""
    name = query.group
    start = parse_start(query.to, broker.world.clock.now_ms())
    _refuse_members(broker, name)
    before = _positions(broker, name)
    places = _places(broker, query, before)
    after = await _resolved(broker, start, places)
    changes = [Change(topic, index, before.get((topic, index)), after[topic, index]) for topic, index in places]
    if query.dry_run:
        return ResetOut(changes, False)
    offsets = [(topic, index, offset) for (topic, index), offset in after.items()]
    if name in broker.shared:
        for result in await broker.shared_admin.alter_offsets(name, offsets):
            if result.error is not None:
                raise result.error
    else:
        _refuse_members(broker, name)
        await commit_offsets(broker, name, offsets)
    return ResetOut(changes, True)


async def delete_group(broker: ManagedBroker, query: DeleteGroup) -> None:
    """With its positions, or only those in one topic. Answers when it is durable."""
    name = query.group
    if query.topic is not None:
        await _forget_topic(broker, name, query.topic)
        return
    await delete_whole_group(broker, name)


async def delete_whole_group(broker: ManagedBroker, name: str) -> None:
    """A group of any kind, without members, with its positions and what was redriven to it. (A crash before the last
    step leaves that to another group of the name.)"""
    if name in broker.shared:
        result = await broker.shared_admin.delete(name)
    else:
        (result,) = await broker.groups.delete_groups([name])
    error = result.error
    if isinstance(error, UnknownGroup):
        other = broker.share_coordinators.elsewhere(name)
        if other is None:
            broker.shared.journal.check_led(name)  # else it may be a share group of another broker
        else:
            await other.delete()
            error = None
    if error is not None:
        raise error
    await delete_redriven(broker.topics, name)


async def _forget_topic(broker: ManagedBroker, name: str, topic: str) -> None:
    if name in broker.shared:
        for shared in await broker.shared_admin.delete_offsets(name, [topic]):
            if shared.error is not None:
                raise shared.error
        return
    places = [(found, index) for found, index, _ in broker.groups.committed(name) if found == topic]
    if not places:
        if not broker.groups.exists(name):
            raise _no_group(broker, name)
        raise NotFound(f"group {name!r} has committed nothing for topic {topic!r}")
    for result in await broker.groups.delete_offsets(name, places):
        if result.error is not None:
            raise result.error


def _no_group(broker: ManagedBroker, name: str) -> NotFound:
    """Raises NotCoordinator instead if there may be a share group of the name, which another broker coordinates."""
    broker.shared.journal.check_led(name)
    return NotFound(f"there is no group {name[:200]!r}", "group", name)


def _refuse_members(broker: ManagedBroker, name: str) -> None:
    if name in broker.shared:
        machine = broker.shared.get(name).machine
        members, state = len(machine.members), machine.state
    else:
        found = broker.groups.summary(name)
        if found is None:
            return
        members, state = found.members, found.state
    if members or state not in ("Empty", "Dead"):
        raise Conflict(
            f"group {name!r} has {members} {'member' if members == 1 else 'members'} ({state}); stop them, then reset"
        )


def _positions(broker: ManagedBroker, name: str) -> dict[TopicPartition, int]:
    if name in broker.shared:
        offsets = broker.shared_admin.offsets(name)
        return {(one.topic, one.partition): one.start for one in offsets if one.start >= 0}
    return {(one.topic, one.partition): one.offset for one in broker.groups.fetch_offsets(name) if one.offset >= 0}


def _places(broker: ManagedBroker, query: ResetGroup, before: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    if query.topic is None:
        if query.partitions is not None:
            raise Invalid("partitions: say of which topic")
        places = sorted(place for place in before if _exists(broker, place))
        if not places:
            if not broker.groups.exists(query.group) and query.group not in broker.shared:
                raise _no_group(broker, query.group)
            raise Invalid(f"topic: group {query.group!r} has no position yet, so say which topic is meant")
        return places
    topic = broker.topics.find(query.topic)
    if topic is None:
        raise NotFound(f"there is no topic {query.topic!r}", "topic", query.topic)
    count = len(topic.partitions)
    wanted = range(count) if query.partitions is None else sorted(set(query.partitions))
    strange = [index for index in wanted if not 0 <= index < count]
    if strange:
        raise Invalid(f"partitions: topic {query.topic!r} has partitions 0 to {count - 1}, not {strange[0]}")
    return [(query.topic, index) for index in wanted]


def _exists(broker: ManagedBroker, place: TopicPartition) -> bool:
    topic = broker.topics.find(place[0])
    return topic is not None and place[1] < len(topic.partitions)


async def _resolved(
    broker: ManagedBroker, start: StartPosition, places: list[TopicPartition]
) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for count, (topic, index) in enumerate(places, 1):
        found[topic, index] = offset_of(start, broker.topics.get(topic).partition(index))
        if not count % LOOKED_AT_ONCE:
            await asyncio.sleep(0)
    return found
