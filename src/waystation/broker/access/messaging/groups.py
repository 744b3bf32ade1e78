"""Consumer groups of both protocols, their members and committed offsets, as verbs. `Access.groups`.

Being a member and committing is reading; looking is describing. Share groups are listed and deleted here with the
others, since all groups have their names in common; what is theirs alone is in `shares.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from waystation.admin.operations.group_resetting import delete_whole_group
from waystation.broker.access.messaging.family import Family, in_order, spelled
from waystation.groups.machines.calls import (
    ConsumerBeat,
    ConsumerBeatAnswer,
    ConsumerGroupView,
    FetchedOffset,
    GroupListing,
    GroupView,
    JoinAnswer,
    JoinRequest,
    LeaveResult,
    LeavingMember,
    OffsetResult,
    OffsetToCommit,
    SyncAnswer,
    SyncRequest,
)
from waystation.topics.topics import OFFSETS_TOPIC


class GroupAccess(Family):
    """Made by `Access`."""

    __slots__ = ()

    def coordinator(self, group_id: str) -> int:
        """The node that coordinates the group, whether there is one of this name or not. NOBODY: none does now."""
        self._ask("describe", "group", group_id)
        return self._leader(OFFSETS_TOPIC, self._broker.groups.partition_for(group_id))

    # -- members ----------------------------------------------------------------------------------------------------

    async def join(self, request: JoinRequest) -> JoinAnswer:
        """Returns when the next generation is made; MemberIdRequired tells the client to ask again with an id."""
        self._ask("read", "group", request.group_id)
        return await self._broker.groups.join(request)

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """Returns the member's assignment when the leader has handed it in and it is durable."""
        self._ask("read", "group", request.group_id)
        return await self._broker.groups.sync(request)

    async def heartbeat(
        self, group_id: str, member_id: str, generation_id: int, instance_id: str | None = None
    ) -> None:
        """Of a member of a classic group. RebalanceInProgress calls it back to join."""
        self._ask("read", "group", group_id)
        await self._broker.groups.heartbeat(group_id, member_id, generation_id, instance_id)

    async def leave(self, group_id: str, members: Sequence[LeavingMember]) -> list[LeaveResult]:
        self._ask("read", "group", group_id)
        return await self._broker.groups.leave(group_id, members)

    async def consumer_heartbeat(self, beat: ConsumerBeat) -> ConsumerBeatAnswer:
        """Of a member that the broker assigns to (KIP-848): joining, staying and leaving are all heartbeats."""
        self._ask("read", "group", beat.group_id)
        return await self._broker.groups.consumer_heartbeat(beat)

    # -- offsets ----------------------------------------------------------------------------------------------------

    async def commit_offsets(
        self,
        group_id: str,
        offsets: Sequence[OffsetToCommit],
        *,
        member_id: str = "",
        generation_id: int = -1,
        group_instance_id: str | None = None,
        retention_ms: int = -1,
    ) -> list[OffsetResult]:
        """One result for each offset, in the same order; durable when this returns. In a transaction: see there. A
        topic that the principal may not read is refused by itself."""
        self._ask("read", "group", group_id)
        allowed, refused = self._readable(offsets)
        done = await self._broker.groups.commit_offsets(
            group_id,
            allowed,
            member_id=member_id,
            generation_id=generation_id,
            group_instance_id=group_instance_id,
            retention_ms=retention_ms,
        )
        return in_order(offsets, [*done, *refused])

    def fetch_offsets(
        self,
        group_id: str,
        keys: Iterable[tuple[str, int]] | None = None,
        *,
        require_stable: bool = False,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> list[FetchedOffset]:
        """`keys` None: all that the group has committed."""
        self._ask("describe", "group", group_id)
        return self._broker.groups.fetch_offsets(
            group_id, keys, require_stable=require_stable, member_id=member_id, member_epoch=member_epoch
        )

    async def delete_offsets(self, group_id: str, keys: Sequence[tuple[str, int]]) -> list[OffsetResult]:
        self._ask("delete", "group", group_id)
        for topic in {topic for topic, _ in keys}:
            self._ask("read", "topic", topic)
        work = self._broker.groups.delete_offsets(group_id, keys)
        return await self._changing("delete", "group", group_id, work, "offsets")

    # -- settings ---------------------------------------------------------------------------------------------------

    def settings(self, group_id: str) -> dict[str, str]:
        """Of the new group protocol (KIP-848): those that were set on the group itself."""
        self._ask("describe-configs", "group", group_id)
        return self._broker.groups.own_settings(group_id)

    def check_settings(self, group_id: str, own: Mapping[str, str]) -> None:
        """Raises what `alter_settings` would raise now."""
        self._ask("alter-configs", "group", group_id)
        self._broker.groups.check_settings(group_id, own)

    async def alter_settings(self, group_id: str, own: Mapping[str, str]) -> None:
        """Replaces the group's own settings, durably. The group need not be there."""
        self._ask("alter-configs", "group", group_id)
        work = self._broker.groups.alter_settings(group_id, own)
        await self._changing("alter-configs", "group", group_id, work, spelled(own))

    def with_settings(self) -> list[str]:
        """The groups that have settings of their own and that the principal may see."""
        return [name for name in self._broker.groups.groups_with_settings() if self._sees("group", name)]

    # -- administration ---------------------------------------------------------------------------------------------

    def listing(self, states: Collection[str] = (), kinds: Collection[str] = ()) -> list[GroupListing]:
        """Groups of every kind that the principal may see. Empty filters let everything through."""
        listings = [
            *self._broker.groups.list_groups(states, kinds),
            *self._broker.shared_admin.listing(states, kinds),
        ]
        return [one for one in listings if self._sees("group", one.group_id)]

    def check_describe(self, group_id: str) -> None:
        """Raises if the principal may not look at it, whether it is there or not."""
        self._ask("describe", "group", group_id)

    def describe(self, group_id: str) -> GroupView:
        """A classic group. One that does not exist is described as dead, with the error."""
        self._ask("describe", "group", group_id)
        return self._broker.groups.describe_groups([group_id])[0]

    def describe_consumer(self, group_id: str) -> ConsumerGroupView:
        """A group whose members the broker assigns to (KIP-848); with the error, if there is none."""
        self._ask("describe", "group", group_id)
        return self._broker.groups.describe_consumer_groups([group_id])[0]

    async def delete(self, group_id: str) -> None:
        """A group of any kind, without members, and its offsets; durably deleted when this returns."""
        self._ask("delete", "group", group_id)
        await self._changing("delete", "group", group_id, delete_whole_group(self._broker, group_id))
