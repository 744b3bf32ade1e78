"""What administrators do with share groups: list, describe, delete; see and change how far they have come."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from waystation.errors import UnknownTopic, WaystationError
from waystation.groups.machines.calls import DeleteResult, GroupListing, OffsetResult
from waystation.groups.machines.errors import InconsistentProtocol, NonEmptyGroup, UnknownGroup
from waystation.share.group import SharedGroup
from waystation.share.machines.calls import ShareGroupView, ShareOffset
from waystation.share.machines.records import PARTITION, ShareKey

if TYPE_CHECKING:
    from waystation.share.share_groups import SharedGroups
    from waystation.topics.partitions.partition import Partition

KIND = "Share"
PROTOCOL = "share"


class SharedAdmin:
    """Over the groups of a broker."""

    def __init__(self, groups: SharedGroups) -> None:
        self._groups = groups

    def listing(self, states: Collection[str] = (), kinds: Collection[str] = ()) -> list[GroupListing]:
        """Empty filters let everything through; case does not matter."""
        wanted_states = {state.lower() for state in states}
        if kinds and KIND.lower() not in {kind.lower() for kind in kinds}:
            return []
        listings = [GroupListing(group.id, PROTOCOL, group.machine.state, KIND) for group in self._groups]
        return [one for one in listings if not wanted_states or one.state.lower() in wanted_states]

    def describe(self, group_ids: Sequence[str]) -> list[ShareGroupView]:
        views = []
        for group_id in group_ids:
            try:
                views.append(self._groups.get(group_id).machine.view(self._groups.topics))
            except WaystationError as error:
                views.append(ShareGroupView(group_id=group_id, error=error, state="Dead"))
        return views

    async def delete(self, group_id: str) -> DeleteResult:
        """A group without members, with its positions. Answers when it is durably deleted."""
        try:
            await self._groups.durability.wait(self._groups.remove(self._empty(group_id)))
        except WaystationError as error:
            return DeleteResult(group_id, error)
        return DeleteResult(group_id, None)

    # -- offsets -----------------------------------------------------------------------------------------------------

    def offsets(self, group_id: str, wanted: Sequence[tuple[str, Sequence[int]]] | None = None) -> list[ShareOffset]:
        """How far the group has come in these partitions; None: in all that it has a position in."""
        group = self._groups.get(group_id)
        if wanted is None:
            names = [(self._groups.topics.name_of(topic_id), index) for topic_id, index in group.places()]
            return [self._offset(group, name, index) for name, index in names if name is not None]
        return [self._offset(group, topic, index) for topic, indexes in wanted for index in indexes]

    def _offset(self, group: SharedGroup, topic: str, index: int) -> ShareOffset:
        try:
            partition = self._partition(topic, index)
        except WaystationError as error:
            return ShareOffset(topic=topic, partition=index, error=error)
        key = (partition.topic.id, index)
        if not group.has(key):
            return ShareOffset(topic=topic, partition=index)
        saved = group.remembered.get(key)
        if saved is not None and not saved.marks:  # nobody has used it since the start: a look is no use
            first, done = min(saved.start, partition.end_offset) if partition.leads else saved.start, 0
        else:
            core = group.partition(partition).core
            first, done = core.start, core.marks.done
        start = max(first, partition.start_offset)
        lag = max(0, partition.visible_offset - start - done) if partition.here else -1
        return ShareOffset(topic=topic, partition=index, start=start, leader_epoch=partition.epoch, lag=lag)

    async def alter_offsets(self, group_id: str, offsets: Sequence[tuple[str, int, int]]) -> list[OffsetResult]:
        """(topic, partition, offset): the group goes on there, as if it had not taken anything. It has no members. A
        group that is not there is made, for the first of the partitions that is."""
        results = []
        receipt = None
        group = self._empty(group_id) if group_id in self._groups else None
        for topic, index, offset in offsets:
            try:
                partition = self._partition(topic, index)
            except WaystationError as error:
                results.append(OffsetResult(topic, index, error))
                continue
            group = group or self._made(group_id)
            start = max(offset, partition.start_offset)
            if partition.leads:  # else its leader says, when it first fetches, where the log ends
                start = min(start, partition.end_offset)
            receipt = group.partition(partition).reset(start)
            results.append(OffsetResult(topic, index, None))
        await self._groups.durability.wait(receipt)
        return results

    async def delete_offsets(self, group_id: str, topics: Sequence[str]) -> list[OffsetResult]:
        """The group's positions in these topics; it starts over there. It has no members."""
        group = self._empty(group_id)
        results = []
        receipt = None
        for name in topics:
            topic_id = self._groups.topics.id_of(name)
            keys = [key for key in group.places() if key[0] == topic_id]
            for key in keys:
                group.forget(key)
                receipt = self._groups.journal.note(ShareKey(PARTITION, group.id, *key), lambda: None)
            error = None if keys else UnknownTopic(f"share group {group_id!r} has no position in a topic {name!r}")
            results.append(OffsetResult(name, -1, error))
        await self._groups.durability.wait(receipt)
        return results

    # -- parts -------------------------------------------------------------------------------------------------------

    def _partition(self, topic: str, index: int) -> Partition:
        return self._groups.topics.get(topic).partition(index)

    def _made(self, group_id: str) -> SharedGroup:
        try:
            return self._groups.make(group_id)
        except InconsistentProtocol as error:  # there is no share group of this name, and there cannot be
            raise UnknownGroup(str(error)) from error

    def _empty(self, group_id: str) -> SharedGroup:
        group = self._groups.get(group_id)
        if not group.machine.is_empty:
            raise NonEmptyGroup(f"share group {group_id!r} has members; stop its consumers first")
        return group
