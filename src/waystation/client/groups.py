"""Consumer groups, asked of a running broker: who is in them, how far they are, and moving or removing their offsets.

Answers are plain values; errors name the group. Both kinds of group are described alike: "classic" ones, whose
members divide the partitions among themselves, and "consumer" ones (KIP-848), where the broker does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from kio.schema.errors import ErrorCode

from waystation.client.refusals import check
from waystation.client.topics import Place, group_places
from waystation.client.wire import Connection, retried
from waystation.errors import Conflict, NotFound


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A line of the list of groups."""

    name: str
    kind: str
    state: str
    protocol: str


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """One member and what it was given."""

    id: str
    instance: str | None
    client: str
    host: str
    assigned: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class GroupDetail:
    """A group with its members. `assignor` is empty while nothing is assigned."""

    name: str
    kind: str
    state: str
    assignor: str
    members: tuple[MemberInfo, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """An offset that a group committed: the next one it wants."""

    offset: int
    metadata: str


def list_groups(connection: Connection, *, states: Sequence[str] = ()) -> list[GroupInfo]:
    answer = retried(lambda: connection.call("list_groups", states_filter=states), lambda found: found.error_code)
    check(answer.error_code, "the list of groups")
    groups = (GroupInfo(str(g.group_id), g.group_type.lower(), g.group_state, g.protocol_type) for g in answer.groups)
    return sorted(groups, key=lambda group: group.name)


def describe_group(connection: Connection, name: str) -> GroupDetail:
    """A group of either kind; NotFound where there is none."""
    found = retried(
        lambda: connection.call("consumer_group_describe", group_ids=[name]).groups[0], lambda group: group.error_code
    )
    if found.error_code is ErrorCode.none:
        return GroupDetail(name, "consumer", found.group_state, found.assignor_name, tuple(map(_member, found.members)))
    if found.error_code is not ErrorCode.group_id_not_found:
        check(found.error_code, f"group {name!r}", found.error_message)
    return _describe_classic(connection, name)


def _describe_classic(connection: Connection, name: str) -> GroupDetail:
    group = retried(lambda: connection.call("describe_groups", groups=[name]).groups[0], lambda g: g.error_code)
    if group.error_code is ErrorCode.group_id_not_found or group.group_state == "Dead":
        raise NotFound(f"there is no group {name!r}; `waystation groups list` shows what there is")
    check(group.error_code, f"group {name!r}")
    members = tuple(
        MemberInfo(m.member_id, m.group_instance_id, m.client_id, m.client_host, _assigned(m.member_assignment))
        for m in group.members
    )
    return GroupDetail(name, "classic", group.group_state, group.protocol_data, members)


def _member(member: Any) -> MemberInfo:
    assigned = tuple(
        (str(topic.topic_name), int(number))
        for topic in member.assignment.topic_partitions
        for number in topic.partitions
    )
    return MemberInfo(member.member_id, member.instance_id, member.client_id, member.client_host, assigned)


def _assigned(data: bytes) -> tuple[Place, ...]:
    """What a classic leader gave a member; empty if it is in a language of its own (not a consumer's)."""
    from kio.schema.consumer_protocol_assignment.v0.data import ConsumerProtocolAssignment
    from kio.serial import entity_reader

    try:
        stream = BytesIO(data)
        stream.read(2)  # the version: every later one begins like v0
        assignment, _ = entity_reader(ConsumerProtocolAssignment)(stream.read(), 0)
    except Exception:  # connect workers and others put bytes of their own here
        return ()
    return tuple((str(t.topic), int(number)) for t in assignment.assigned_partitions for number in t.partitions)


def committed_offsets(
    connection: Connection, name: str, *, member: str | None = None, epoch: int = -1
) -> dict[Place, Committed]:
    """Every offset that the group has committed; a member says who it is and gets Outdated if it no longer is one."""
    asked = {"group_id": name, "member_id": member, "member_epoch": epoch, "topics": None}
    group = retried(
        lambda: connection.call("offset_fetch", groups=[asked], require_stable=member is not None).groups[0],
        lambda found: found.error_code,
    )
    if group.error_code is not ErrorCode.group_id_not_found:
        check(group.error_code, f"group {name!r}")
    return {
        (str(topic.name), int(part.partition_index)): Committed(int(part.committed_offset), part.metadata or "")
        for topic in group.topics
        for part in topic.partitions
        if part.committed_offset >= 0
    }


def commit_offsets(
    connection: Connection, name: str, offsets: Mapping[Place, int], *, member: str = "", epoch: int = -1
) -> None:
    """Commits as a member, or without one: then the group must be empty."""
    topics = [
        {
            "name": topic,
            "partitions": [{"partition_index": n, "committed_offset": offsets[topic, n]} for n in numbers],
        }
        for topic, numbers in group_places(offsets).items()
    ]
    answer = connection.call(
        "offset_commit", group_id=name, generation_id_or_member_epoch=epoch, member_id=member, topics=topics
    )
    for topic in answer.topics:
        for part in topic.partitions:
            if part.error_code is ErrorCode.unknown_member_id and not member:
                raise Conflict(f"group {name!r} has members; stop them first")
            check(part.error_code, f"group {name!r} on partition {part.partition_index} of topic {topic.name!r}")


def delete_group(connection: Connection, name: str) -> None:
    (result,) = connection.call("delete_groups", groups_names=[name]).results
    check(result.error_code, f"group {name!r}")


def delete_offsets(connection: Connection, name: str, places: Sequence[Place]) -> None:
    """Forgets what the group committed for some partitions."""
    topics = [
        {"name": topic, "partitions": [{"partition_index": n} for n in numbers]}
        for topic, numbers in group_places(places).items()
    ]
    answer = connection.call("offset_delete", group_id=name, topics=topics)
    check(answer.error_code, f"group {name!r}")
    for topic in answer.topics:
        for part in topic.partitions:
            check(part.error_code, f"group {name!r} on partition {part.partition_index} of topic {topic.name!r}")
