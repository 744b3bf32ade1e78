"""Where offsets are committed, fetched and deleted, alone or inside a transaction.

A commit is checked against the group, appended, applied, and answered when it is durable. A fetch answers from memory,
what every replica that counts has: where another broker may coordinate the group next, nobody is shown an offset that
this one may not know, and who asks for stable offsets is told to ask again (as Kafka's coordinator does). A broker
alone shows what is not on its disk yet, too: it was nevertheless handed in by a client that had come so far, and if the
power goes first, its successor starts a little earlier, which is what at-least-once means. (Inside transactions nothing
can be built on it either: the coordinator's own commit is written after everything that came before it.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from waystation.errors import UnknownTopic, WaystationError
from waystation.groups import records
from waystation.groups.machines.calls import FetchedOffset, OffsetResult, OffsetToCommit
from waystation.groups.machines.classic_member import CONSUMER
from waystation.groups.machines.consumer import ConsumerGroup
from waystation.groups.machines.errors import (
    GroupSubscribed,
    InvalidGroupRequest,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    UnknownGroup,
    UnknownMember,
    UnstableOffset,
)
from waystation.groups.machines.offsets import Committed, Key, OffsetStore
from waystation.groups.shard import Group, GroupShard
from waystation.groups.shards import GroupShards

_STRING_BYTES = 32_767
"""What the record's format can hold of the metadata, whatever the setting says."""


class OffsetService:
    """See the module."""

    def __init__(self, shards: GroupShards) -> None:
        self._shards = shards

    async def commit(
        self,
        group_id: str,
        offsets: Sequence[OffsetToCommit],
        *,
        member_id: str,
        generation_id: int,
        instance_id: str | None,
        retention_ms: int,
    ) -> list[OffsetResult]:
        """Raises if the caller may not commit for this group; otherwise each partition has its own result."""
        group = self._admit(group_id, member_id, generation_id, instance_id, transactional=False)
        results = self._write(group, offsets, retention_ms)
        if any(result.error is None for result in results):
            await self._shards.shard_of(group_id).durable()
        return results

    def write(self, group_id: str, offsets: Sequence[OffsetToCommit], member_id: str) -> list[OffsetResult]:
        """As `commit`, for a member that lives in the broker: written when this returns, not durable yet.

        Such a member knows what it owns without asking, so it may commit while its next epoch is on the way to it.
        """
        group = self._shards.find(group_id)
        if not isinstance(group, ConsumerGroup) or member_id not in group.members:
            raise UnknownMember(f"{member_id!r} is not a member of group {group_id!r} any more")
        return self._write(group, offsets, -1)

    def _write(self, group: Group, offsets: Sequence[OffsetToCommit], retention_ms: int) -> list[OffsetResult]:
        group_id = group.group_id
        shard = self._shards.shard_of(group_id)
        entries, results = self._sort_out(offsets, retention_ms)
        if entries:
            self._shards.adopt(group)
            shard.write([records.offset_record(group_id, *key, entry) for key, entry in entries])
            shard.commit_offsets(group_id, entries)
        return results

    async def commit_transactional(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        offsets: Sequence[OffsetToCommit],
        *,
        member_id: str,
        generation_id: int,
        instance_id: str | None,
    ) -> list[OffsetResult]:
        """As `commit`, seen only after the producer's marker. Durable before the answer: the transaction's commit must
        not outlive its offsets."""
        if producer_id < 0:
            raise InvalidGroupRequest("a transactional commit needs a producer id")
        group = self._admit(group_id, member_id, generation_id, instance_id, transactional=True)
        shard = self._shards.shard_of(group_id)
        entries, results = self._sort_out(offsets, -1)
        if entries:
            self._shards.adopt(group)
            batch = [records.offset_record(group_id, *key, entry) for key, entry in entries]
            shard.write(batch, producer_id=producer_id, producer_epoch=producer_epoch)
            for key, entry in entries:
                shard.offsets.pend(producer_id, group_id, *key, entry)
            await shard.durable()
        return results

    def fetch(
        self,
        group_id: str,
        keys: Iterable[Key] | None,
        *,
        require_stable: bool,
        member_id: str | None,
        member_epoch: int,
    ) -> list[FetchedOffset]:
        """None: everything the group has. A group or partition without offsets is no error: it has -1."""
        self._shards.check_group_id(group_id, may_be_empty=True)
        group = self._shards.find(group_id)
        if isinstance(group, ConsumerGroup):
            group.check_fetch(member_id, member_epoch)
        store = self._shards.shard_of(group_id).shown_offsets()
        fetched: list[FetchedOffset] = []
        for topic, partition in sorted(store.shown_keys(group_id)) if keys is None else keys:
            entry = store.shown(group_id, topic, partition)
            error = _unstable(store, group_id, topic, partition) if require_stable else None
            if error is not None:
                fetched.append(FetchedOffset(topic, partition, error=error))
            elif entry is not None:
                fetched.append(FetchedOffset(topic, partition, entry.offset, entry.leader_epoch, entry.metadata))
            elif keys is not None:
                fetched.append(FetchedOffset(topic, partition))
        return fetched

    def newest(self, group_id: str, topic: str, partition: int) -> int:
        """The offset that was committed last, replicated or not; -1: none. For a member that lives in the broker and
        goes on from there as long as this one coordinates the group."""
        entry = self._shards.shard_of(group_id).offsets.get(group_id, topic, partition)
        return -1 if entry is None else entry.offset

    def committed(self, group_id: str) -> list[tuple[str, int, int]]:
        """(topic, partition, offset) of all that `fetch` shows, in no order. For those who look at many groups."""
        store = self._shards.shard_of(group_id).shown_offsets()
        shown = ((key, store.shown(group_id, *key)) for key in store.shown_keys(group_id))
        return [(*key, entry.offset) for key, entry in shown if entry is not None]

    async def delete(self, group_id: str, keys: Sequence[Key]) -> list[OffsetResult]:
        """Refused for topics that a member reads."""
        group = self._shards.find(group_id)
        if group is None:
            raise UnknownGroup(f"there is no group {group_id!r}")
        subscribed = self._subscribed(group)
        if subscribed is None:
            raise NonEmptyGroup(f"group {group_id!r} has members, and what they read cannot be known; stop them first")
        results: list[OffsetResult] = []
        deleted: list[Key] = []
        for topic, partition in keys:
            error: WaystationError | None = None
            if topic in subscribed:
                error = GroupSubscribed(f"group {group_id!r} reads {topic!r} at the moment")
            elif partition not in range(self._shards.topics.partitions_of(topic) or 0):
                error = UnknownTopic(f"there is no partition {topic}-{partition}")
            else:
                deleted.append((topic, partition))
            results.append(OffsetResult(topic, partition, error))
        shard = self._shards.shard_of(group_id)
        shard.delete_offsets(group_id, deleted)
        await shard.durable()
        return results

    def drop_topics(self, names: frozenset[str]) -> None:
        """The topics are deleted: a topic that gets one of these names later starts without history."""
        for shard in self._shards:
            doomed: dict[str, list[Key]] = {}
            for group_id, key in shard.offsets.keys_of_topics(names):
                doomed.setdefault(group_id, []).append(key)
            for group_id, keys in doomed.items():
                shard.delete_offsets(group_id, keys)

    def expire_group(self, shard: GroupShard, group: Group, now_ms: int) -> None:
        """Drops offsets that outlived their retention, and the group with the last of them."""
        subscribed = self._subscribed(group)
        if subscribed is None:
            return
        emptied_at_ms = (group.emptied_at_ms or 0) if group.is_empty else 0
        retention_ms = self._shards.settings.offsets_retention_ms
        expired = shard.offsets.expired(
            group.group_id, now_ms, retention_ms, emptied_at_ms=emptied_at_ms, subscribed=subscribed
        )
        shard.delete_offsets(group.group_id, expired)
        if shard.is_disposable(group):
            shard.remove(group)
            self._shards.history.forget(group.group_id)

    # -- parts -----------------------------------------------------------------------------------------------

    def _admit(
        self, group_id: str, member_id: str, generation_id: int, instance_id: str | None, *, transactional: bool
    ) -> Group:
        """The group, if the caller may commit for it. A simple consumer makes its group by committing."""
        self._shards.check_group_id(group_id, may_be_empty=True)
        group = self._shards.find(group_id)
        if group is None:
            if generation_id >= 0:
                raise UnknownGroup(f"there is no group {group_id!r}")
            group = self._shards.classic(group_id)
        group.check_commit(member_id, instance_id, generation_id, self._shards.now_ms(), transactional=transactional)
        return group

    def _sort_out(
        self, offsets: Sequence[OffsetToCommit], retention_ms: int
    ) -> tuple[list[tuple[Key, Committed]], list[OffsetResult]]:
        """What can be committed, and what each partition is told."""
        now_ms = self._shards.wall_ms()
        expires_at_ms = now_ms + retention_ms if retention_ms >= 0 else -1
        limit = min(self._shards.settings.offset_metadata_max_bytes, _STRING_BYTES)
        entries: list[tuple[Key, Committed]] = []
        results: list[OffsetResult] = []
        for one in offsets:
            error: WaystationError | None = None
            if len(one.metadata.encode()) > limit:
                error = OffsetMetadataTooLarge(f"the metadata of {one.topic}-{one.partition} has over {limit} bytes")
            elif one.partition not in range(self._shards.topics.partitions_of(one.topic) or 0):
                error = UnknownTopic(f"there is no partition {one.topic}-{one.partition}")
            else:
                entry = Committed(one.offset, one.leader_epoch, one.metadata, now_ms, expires_at_ms)
                entries.append(((one.topic, one.partition), entry))
            results.append(OffsetResult(one.topic, one.partition, error))
        return entries, results

    def _subscribed(self, group: Group) -> frozenset[str] | None:
        if isinstance(group, ConsumerGroup):
            return group.subscribed(self._shards.topics)
        if group.is_empty:
            return frozenset()
        return group.subscribed() if group.protocol_type == CONSUMER else None


def _unstable(store: OffsetStore, group_id: str, topic: str, partition: int) -> UnstableOffset | None:
    if store.is_unstable(group_id, topic, partition):
        return UnstableOffset(f"a transaction that commits {topic}-{partition} has not ended yet")
    if store.is_changing(group_id, topic, partition):
        return UnstableOffset(f"not all replicas have what was committed for {topic}-{partition} yet")
    return None
