"""Who is in a classic group: members in order of arrival, the leader among them, static members by instance id.

Invariants: the leader is a member, or None when there is none; an instance id names exactly one member; an id is
either a member's or pending, never both. The group's state machine is the only caller.
"""

from __future__ import annotations

from collections.abc import Collection

from waystation.groups.machines.calls import JoinedMember, JoinRequest
from waystation.groups.machines.classic_member import CONSUMER, ClassicMember, common_protocols, subscribed_topics, vote
from waystation.groups.machines.errors import FencedInstance, UnknownMember


class Roster:
    """Plain bookkeeping; knows nothing of states and time."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self.members: dict[str, ClassicMember] = {}
        self.pending: set[str] = set()
        """Ids that were handed out (MEMBER_ID_REQUIRED) and have not been used yet."""
        self.leader: str | None = None
        self._statics: dict[str, str] = {}  # instance id → member id

    def __len__(self) -> int:
        return len(self.members)

    def find(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """The member, or the error that tells the client what it has become."""
        if instance_id is not None:
            current = self._statics.get(instance_id)
            if current is None:
                raise UnknownMember(f"group {self._group_id!r} has no member with group.instance.id {instance_id!r}")
            if current != member_id:
                raise FencedInstance(f"{instance_id!r} is another member of group {self._group_id!r} by now")
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMember(f"{member_id!r} is not a member of group {self._group_id!r}")
        return member

    def static(self, instance_id: str | None) -> str | None:
        """The id of the member that has this instance id."""
        return None if instance_id is None else self._statics.get(instance_id)

    def add(self, member: ClassicMember) -> None:
        self.pending.discard(member.member_id)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._statics[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def rename(self, old_id: str, new_id: str) -> ClassicMember:
        """A static member comes back under a new id; it keeps its role."""
        member = self.members.pop(old_id)
        member.member_id = new_id
        self.members[new_id] = member
        if member.instance_id is not None:
            self._statics[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        return member

    def remove(self, member_id: str) -> ClassicMember | None:
        """Forgets a member or a pending id; returns the member, if it was one."""
        self.pending.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        if member.instance_id is not None:
            self._statics.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def replace(self, members: Collection[ClassicMember], leader: str | None) -> None:
        """Everything replaced, from a record."""
        self.members = {member.member_id: member for member in members}
        self._statics = {member.instance_id: member.member_id for member in members if member.instance_id is not None}
        self.leader = leader if leader in self.members else next(iter(self.members), None)

    def fits(self, join: JoinRequest, protocol_type: str | None) -> bool:
        """Whether the joining member has something in common with all who are here."""
        if not join.protocol_type or not join.protocols:
            return False
        if not self.members:
            return True
        offered = {name for name, _ in join.protocols}
        return join.protocol_type == protocol_type and not offered.isdisjoint(common_protocols(self.members.values()))

    def vote(self) -> str:
        return vote(self.members.values(), self.members[self.leader or ""])

    def joined(self, protocol_name: str | None) -> tuple[JoinedMember, ...]:
        """What the leader is told of everybody."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(protocol_name))
            for member in self.members.values()
        )

    def still_fits(
        self, before: bytes, member: ClassicMember, protocol_type: str | None, protocol_name: str | None
    ) -> bool:
        """Whether the generation holds although the member came back: the same protocol would be chosen, for the same
        topics. Its metadata may differ for no good reason: a consumer that was restarted does not list what it owned.
        """
        if self.vote() != protocol_name:
            return False
        after = member.metadata(protocol_name)
        if before == after:
            return True
        topics = subscribed_topics(before) if protocol_type == CONSUMER else None
        return topics is not None and topics == subscribed_topics(after)

    def size_bytes(self) -> int:
        return sum(member.size_bytes() for member in self.members.values())

    def rebalance_timeout_ms(self) -> int:
        """The slowest member's."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def subscribed(self, protocol_type: str | None, protocol_name: str | None) -> frozenset[str] | None:
        """The topics that members read; None if that cannot be known."""
        if not self.members:
            return frozenset()
        if protocol_type != CONSUMER or protocol_name is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            names = subscribed_topics(member.metadata(protocol_name))
            if names is None:
                return None
            topics |= names
        return frozenset(topics)
