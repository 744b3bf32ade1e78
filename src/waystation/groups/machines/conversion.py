"""A group changes from one protocol to the other with its members in it (KIP-848's migration), as pure functions.

A classic group of consumers becomes a KIP-848 group when the first member of that protocol joins; a KIP-848 group
becomes a classic one when its last member of that protocol has left and classic ones are there. Nobody loses what it
has by it: assignments are carried over, and the rebalance that follows moves what has to move.
"""

from __future__ import annotations

from waystation.groups.machines.calls import TopicView
from waystation.groups.machines.classic import ClassicGroup
from waystation.groups.machines.classic_member import (
    CONSUMER,
    ClassicMember,
    assigned_partitions,
    read_subscription,
    vote,
)
from waystation.groups.machines.consumer import ConsumerGroup, partitions_of
from waystation.groups.machines.consumer_member import ClassicSide, ConsumerMember
from waystation.groups.machines.reconcile import Holding, Partitions, ReconcilePhase
from waystation.groups.machines.settings import GroupSettings


def to_consumer(group: ClassicGroup, topics: TopicView, settings: GroupSettings, now_ms: int) -> ConsumerGroup | None:
    """None if its members are no consumers, or have an assignment that nobody but them understands."""
    if group.protocol_type != CONSUMER:
        return None
    made = ConsumerGroup(group.group_id, settings)
    made.restore(epoch=group.generation_id, assignment_epoch=group.generation_id, seen={})
    taken: set[object] = set()
    for member in group.roster.members.values():
        converted = _consumer_member(member, group, topics)
        if converted is None or not taken.isdisjoint(converted.target):
            return None
        taken |= converted.target
        made.restore_member(converted)
    made.mark_changed()
    made.start_sessions(now_ms)
    return made


def _consumer_member(member: ClassicMember, group: ClassicGroup, topics: TopicView) -> ConsumerMember | None:
    wishes = [read_subscription(metadata) for _, metadata in member.protocols]
    if not wishes or wishes[0] is None or None in wishes:
        return None
    had: Partitions = frozenset()
    if member.assignment:
        assigned = assigned_partitions(member.assignment)
        if assigned is None:
            return None
        had = partitions_of(assigned, topics)
    return ConsumerMember(
        member.member_id,
        member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topics=tuple(sorted(wishes[0].topics)),
        previous_epoch=group.generation_id,
        holding=Holding(group.generation_id, ReconcilePhase.STABLE, had),
        target=had,
        classic=ClassicSide(member.session_timeout_ms, member.protocols),
    )


def to_classic(group: ConsumerGroup, topics: TopicView, settings: GroupSettings, now_ms: int) -> ClassicGroup:
    """Of a group whose members are all classic ones. They know their epochs as generations, so the highest of those is
    the generation: their next heartbeats are understood, and call them back to join."""
    members = []
    for member in group.members.values():
        side = member.classic
        if side is None:
            raise ValueError(f"{member.member_id!r} does not speak the classic protocol")
        members.append(
            ClassicMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                side.session_timeout_ms,
                member.rebalance_timeout_ms,
                side.protocols,
                group.classic_assignment(member, topics),
            )
        )
    made = ClassicGroup(group.group_id, settings)
    made.restore(
        generation_id=max(member.epoch for member in group.members.values()),
        protocol_type=CONSUMER,
        protocol_name=vote(members, members[0]),
        leader=members[0].member_id,
        members=members,
    )
    made.start_sessions(now_ms)
    return made
