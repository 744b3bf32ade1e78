"""Groups as they are shown, whatever their kind: consumer groups of both protocols, share groups, and the shared
subscriptions of our own protocols. And moving them to another place, with a look at what would change first.

Lag is how many records lie between a group and the end of a partition that committed readers see; of a shared group,
how many it has not acknowledged. A list sums it up for the groups of its page only, in slices.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from msgspec import Meta

from waystation.admin.sight import EVERYTHING, Sight
from waystation.errors import NotFound
from waystation.groups.history import HistoryEntry
from waystation.groups.machines.calls import TopicPartition
from waystation.groups.machines.classic_member import assigned_partitions
from waystation.paging import After, Limit, Next, Pace, Search, Total, page_of, sort_in_steps
from waystation.queues.redriven import is_redrive_topic
from waystation.share.admin import PROTOCOL

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker
    from waystation.topics.partitions.partition import Partition


class GroupsQuery(msgspec.Struct):
    search: Search = ""
    after: After = ""
    limit: Limit = 100
    kind: Annotated[str, Meta(description="classic, consumer, share or shared; empty: all")] = ""
    state: Annotated[str, Meta(description="only groups in this state, like Stable or Empty; empty: all")] = ""


class GroupOut(msgspec.Struct):
    group: str
    kind: Annotated[
        str, Meta(description="classic or consumer (KIP-848); share: of Kafka clients; shared: of our own protocols")
    ]
    state: str
    members: int
    lag: Annotated[int, Meta(description="over all partitions that it has a position in")]
    topics: list[str]
    protocol: Annotated[
        str, Meta(description="what its members are: consumer, share, connect…; empty: nothing is known yet")
    ]


class GroupsOut(msgspec.Struct):
    groups: list[GroupOut]
    next: Next
    total: Total


class GroupTerms(msgspec.Struct, kw_only=True):
    internal: Annotated[bool, Meta(description="the broker's own topics, too: what was redriven to the group")] = False


class GroupQuery(GroupTerms, kw_only=True):
    group: str


class Assigned(msgspec.Struct):
    topic: str
    partitions: list[int]


class GroupMember(msgspec.Struct):
    member: str
    instance: str | None
    client: str
    host: str
    assignment: list[Assigned]


class GroupPartition(msgspec.Struct):
    topic: str
    partition: int
    committed: Annotated[int | None, Meta(description="the next offset that the group wants; null: none yet")]
    start: int
    end: Annotated[int, Meta(description="where committed readers come to the end")]
    lag: int | None
    member: str | None
    metadata: Annotated[str | None, Meta(description="what the group stored with its committed offset")] = None


class GroupDetail(msgspec.Struct):
    group: str
    kind: str
    state: str
    assignor: str
    members: list[GroupMember]
    partitions: list[GroupPartition]
    lag: int
    redriven: Annotated[int, Meta(description="of the lag: in what was redriven to the group")]
    history: Annotated[list[HistoryEntry], Meta(description="since the broker was started; at most 100, oldest first")]
    generation: Annotated[int, Meta(description="of a classic group; the group epoch of the other kinds")]
    coordinator: Annotated[int, Meta(description="node id of the broker that keeps the group")]


class _Summary(NamedTuple):
    kind: str
    state: str
    members: int
    subscribed: Iterable[str]
    protocol: str


# -- the list ----------------------------------------------------------------------------------------------------------


async def groups_view(broker: ManagedBroker, query: GroupsQuery, sight: Sight = EVERYTHING) -> GroupsOut:
    """In the order of names."""
    pace = Pace(broker.world.clock)
    names = [*broker.groups.names(), *broker.shared.names()]
    if query.kind or query.state:
        names = await _filtered(broker, names, query, pace)
    seen = await sight.names("group", await sort_in_steps(names), query.search)
    page = await page_of(seen, "", query.after, query.limit)
    ends = _Ends(broker)
    groups: list[GroupOut] = []
    for name in page.names:
        group = await _line(broker, name, ends, pace)
        if group is not None:
            groups.append(group)
    return GroupsOut(groups, page.next, page.total)


async def _filtered(broker: ManagedBroker, names: list[str], query: GroupsQuery, pace: Pace) -> list[str]:
    kind, state = query.kind.lower(), query.state.lower()
    found: list[str] = []
    for name in names:
        one = _summary(broker, name)
        if one is not None and (not kind or one.kind == kind) and (not state or one.state.lower() == state):
            found.append(name)
        await pace.breathe()
    return found


def _summary(broker: ManagedBroker, name: str) -> _Summary | None:
    if name in broker.shared:
        shared = broker.shared.get(name)
        machine = shared.machine
        return _Summary("shared" if shared.ours else "share", machine.state, len(machine.members), (), PROTOCOL)
    found = broker.groups.summary(name)
    if found is None:
        return None
    return _Summary(found.kind, found.state, found.members, found.subscribed, found.protocol_type)


class _Ends:
    """Where partitions begin and end for committed readers, looked up once for all groups of a page."""

    def __init__(self, broker: ManagedBroker) -> None:
        self._broker = broker
        self._known: dict[tuple[str, int], tuple[int, int] | None] = {}

    def lag(self, topic: str, partition: int, committed: int) -> int:
        place = (topic, partition)
        if place not in self._known:
            known = _partition(self._broker, topic, partition)
            self._known[place] = None if known is None else (known.start_offset, known.stable_offset)
        ends = self._known[place]
        return 0 if ends is None else max(0, ends[1] - max(committed, ends[0]))


async def _line(broker: ManagedBroker, name: str, ends: _Ends, pace: Pace) -> GroupOut | None:
    """A line of the list; None if the group was deleted meanwhile."""
    summary = _summary(broker, name)
    if summary is None:
        return None
    lag = 0
    topics = set(summary.subscribed)
    if name in broker.shared:
        for offset in broker.shared_admin.offsets(name):
            topics.add(offset.topic)
            lag += max(0, offset.lag)
    else:
        for topic, partition, committed in broker.groups.committed(name):
            topics.add(topic)
            lag += ends.lag(topic, partition, committed)
    await pace.breathe()
    shown = sorted(topic for topic in topics if not is_redrive_topic(topic))
    return GroupOut(name, summary.kind, summary.state, summary.members, lag, shown, summary.protocol)


def _partition(broker: ManagedBroker, topic: str, partition: int) -> Partition | None:
    found = broker.topics.find(topic)
    return found.partitions[partition] if found is not None and partition < len(found.partitions) else None


# -- one group ---------------------------------------------------------------------------------------------------------


def group_view(broker: ManagedBroker, query: GroupQuery) -> GroupDetail:
    name = query.group
    summary = _summary(broker, name)
    if summary is None:
        raise NotFound(f"there is no group {name[:200]!r}", "group", name)
    assignor, generation, members = _members(broker, name, summary.kind)
    if name in broker.shared:
        partitions = _shared_partitions(broker, name)
    else:
        partitions = _partitions(broker, name, members)
    lag = sum(one.lag or 0 for one in partitions)
    redriven = sum(one.lag or 0 for one in partitions if is_redrive_topic(one.topic))
    if not query.internal:
        partitions = [one for one in partitions if not is_redrive_topic(one.topic)]
        for member in members:
            member.assignment = [one for one in member.assignment if not is_redrive_topic(one.topic)]
    return GroupDetail(
        name,
        summary.kind,
        summary.state,
        assignor,
        members,
        partitions,
        lag,
        redriven,
        broker.group_history.of(name),
        generation,
        broker.node_id,
    )


def _members(broker: ManagedBroker, name: str, kind: str) -> tuple[str, int, list[GroupMember]]:
    """With its assignor and generation."""
    if name in broker.shared:
        (shared,) = broker.shared_admin.describe([name])
        return (
            shared.assignor,
            shared.epoch,
            [
                GroupMember(one.member_id, None, one.client_id, one.client_host, _named(broker, one.assignment))
                for one in shared.members
            ],
        )
    if kind == "consumer":
        (consumer,) = broker.groups.describe_consumer_groups([name])
        return (
            consumer.assignor,
            consumer.epoch,
            [
                GroupMember(
                    one.member_id, one.instance_id, one.client_id, one.client_host, _named(broker, one.assignment)
                )
                for one in consumer.members
            ],
        )
    (classic,) = broker.groups.describe_groups([name])
    return (
        classic.protocol_name,
        classic.generation,
        [
            GroupMember(one.member_id, one.instance_id, one.client_id, one.client_host, _parsed(one.assignment))
            for one in classic.members
        ],
    )


def _named(broker: ManagedBroker, partitions: Iterable[TopicPartition]) -> list[Assigned]:
    topics: dict[str, list[int]] = {}
    for topic_id, index in sorted(partitions, key=lambda one: one[1]):
        name = broker.topics.name_of(topic_id)
        if name is not None:
            topics.setdefault(name, []).append(index)
    return [Assigned(name, indexes) for name, indexes in sorted(topics.items())]


def _parsed(assignment: bytes) -> list[Assigned]:
    """What a classic leader gave a member; nothing if it is in a language of its own (Connect's, say)."""
    return [Assigned(topic, sorted(indexes)) for topic, indexes in sorted(assigned_partitions(assignment) or ())]


def _partitions(broker: ManagedBroker, name: str, members: list[GroupMember]) -> list[GroupPartition]:
    """All that it has committed, and all that its members have."""
    owners = {
        (assigned.topic, index): member.member
        for member in members
        for assigned in member.assignment
        for index in assigned.partitions
    }
    committed = {(one.topic, one.partition): one for one in broker.groups.fetch_offsets(name) if one.offset >= 0}
    found = []
    for topic, index in sorted(owners.keys() | committed.keys()):
        known = _partition(broker, topic, index)
        if known is None:
            continue  # deleted a moment ago
        start, end, owner = known.start_offset, known.stable_offset, owners.get((topic, index))
        offset = committed.get((topic, index))
        if offset is None:
            found.append(GroupPartition(topic, index, None, start, end, None, owner))
        else:
            lag = max(0, end - max(offset.offset, start))
            found.append(GroupPartition(topic, index, offset.offset, start, end, lag, owner, offset.metadata))
    return found


def _shared_partitions(broker: ManagedBroker, name: str) -> list[GroupPartition]:
    found = []
    for one in sorted(broker.shared_admin.offsets(name), key=lambda offset: (offset.topic, offset.partition)):
        known = _partition(broker, one.topic, one.partition)
        if known is not None:
            lag = None if one.lag < 0 else one.lag
            end = known.stable_offset
            found.append(GroupPartition(one.topic, one.partition, one.start, known.start_offset, end, lag, None))
    return found
