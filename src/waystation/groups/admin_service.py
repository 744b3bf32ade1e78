"""What administrators ask about groups: list, describe, delete."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from waystation.errors import WaystationError
from waystation.groups.machines.calls import DeleteResult, GroupListing, GroupSummary, GroupView, MemberView
from waystation.groups.machines.classic import ClassicGroup
from waystation.groups.machines.classic_member import CONSUMER
from waystation.groups.machines.classic_states import ClassicState
from waystation.groups.machines.errors import NonEmptyGroup, UnknownGroup
from waystation.groups.shard import Group
from waystation.groups.shards import GroupShards


class AdminService:
    """Reads and removes; never makes a group."""

    def __init__(self, shards: GroupShards) -> None:
        self._shards = shards

    def listing(self, states: Collection[str], kinds: Collection[str]) -> list[GroupListing]:
        """Empty filters let everything through; case does not matter."""
        wanted_states = {state.lower() for state in states}
        wanted_kinds = {kind.lower() for kind in kinds}
        listings = [_listing(group) for shard in self._shards for group in shard.groups.values()]
        return [
            listing
            for listing in listings
            if (not wanted_states or listing.state.lower() in wanted_states)
            and (not wanted_kinds or listing.kind.lower() in wanted_kinds)
        ]

    def names(self) -> list[str]:
        return [name for shard in self._shards for name in shard.groups]

    def summary(self, group_id: str) -> GroupSummary | None:
        group = self._shards.find(group_id)
        if group is None:
            return None
        if isinstance(group, ClassicGroup):
            topics = group.subscribed() or frozenset()
            return GroupSummary("classic", group.state.value, len(group.roster), topics, group.protocol_type or "")
        return GroupSummary("consumer", group.state, len(group.members), group.subscribed(self._shards.topics))

    def describe(self, group_ids: Sequence[str]) -> list[GroupView]:
        return [self._describe(group_id) for group_id in group_ids]

    def _describe(self, group_id: str) -> GroupView:
        group = self._shards.find(group_id)
        if not isinstance(group, ClassicGroup):
            what = f"group {group_id!r} is not a classic group" if group else f"there is no group {group_id!r}"
            return GroupView(group_id=group_id, error=UnknownGroup(what))
        # Before the group is stable, protocol and metadata are those of a generation that may never be.
        stable = group.state is ClassicState.STABLE
        return GroupView(
            group_id=group_id,
            error=None,
            state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_name=(group.protocol_name or "") if stable else "",
            generation=group.generation_id,
            members=tuple(
                MemberView(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.metadata(group.protocol_name) if stable else b"",
                    member.assignment if stable else b"",
                )
                for member in group.roster.members.values()
            ),
        )

    async def delete(self, group_ids: Sequence[str]) -> list[DeleteResult]:
        """Groups without members, with all their offsets. Answers when they are durably deleted."""
        results: list[DeleteResult] = []
        for group_id in group_ids:
            error: WaystationError | None = None
            try:
                self._delete(group_id)
                await self._shards.shard_of(group_id).durable()
            except WaystationError as caught:
                error = caught
            results.append(DeleteResult(group_id, error))
        return results

    def _delete(self, group_id: str) -> None:
        shard = self._shards.shard_of(group_id)
        group = shard.groups.get(group_id)
        if group is None:
            raise UnknownGroup(f"there is no group {group_id!r}")
        if not group.is_empty:
            raise NonEmptyGroup(f"group {group_id!r} has members; stop its consumers first")
        shard.delete_offsets(group_id, sorted(shard.offsets.keys(group_id)))
        shard.remove(group)
        self._shards.history.forget(group_id)


def _listing(group: Group) -> GroupListing:
    if isinstance(group, ClassicGroup):
        return GroupListing(group.group_id, group.protocol_type or "", group.state.value, "Classic")
    return GroupListing(group.group_id, CONSUMER, group.state, "Consumer")
