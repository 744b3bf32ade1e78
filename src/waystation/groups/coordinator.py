"""The group coordinator: everything the broker and its listeners ask about groups goes through here.

Construct, `recover` from the logs there are, `start` inside the event loop, `close` when done. One coordinator serves
all groups of a broker; it is made of services, each for one kind of business, that share the shards. Everything runs on
the event loop; nothing here blocks and nothing is locked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from waystation.errors import WaystationError
from waystation.groups.admin_service import AdminService
from waystation.groups.classic_service import ClassicService
from waystation.groups.consumer_service import ConsumerService
from waystation.groups.history import GroupHistory
from waystation.groups.machines.calls import (
    ConsumerBeat,
    ConsumerBeatAnswer,
    ConsumerGroupView,
    DeleteResult,
    FetchedOffset,
    GroupListing,
    GroupSummary,
    GroupView,
    JoinAnswer,
    JoinRequest,
    LeaveResult,
    LeavingMember,
    OffsetResult,
    OffsetToCommit,
    SyncAnswer,
    SyncRequest,
    TopicView,
)
from waystation.groups.machines.classic import ClassicGroup
from waystation.groups.machines.consumer import ConsumerGroup
from waystation.groups.machines.settings import GroupSettings
from waystation.groups.offset_service import OffsetService
from waystation.groups.records import partition_for
from waystation.groups.shard import GroupShard
from waystation.groups.shards import GroupShards
from waystation.log.state import StateLog
from waystation.observe.events import event_logger
from waystation.world import Clock, Random
from waystation.world.alarm import Alarm

log = event_logger(__name__)

_GROUPS_PER_TURN = 100
"""Expiry lets others have the event loop after so many groups."""


class GroupCoordinator:
    """See the module. `log_for` is called for a partition when its first record is written."""

    def __init__(
        self,
        clock: Clock,
        random: Random,
        settings: GroupSettings,
        topics: TopicView,
        log_for: Callable[[int], StateLog],
        partition_count: int,
        history: GroupHistory | None = None,
    ) -> None:
        self.topics = topics
        self.partition_count = partition_count
        self._shards = GroupShards(clock, settings, topics, log_for, partition_count, history)
        self._alarm = Alarm(clock, self._ring)
        self._classic = ClassicService(self._shards, random, self._alarm)
        self._consumer = ConsumerService(self._shards, self._alarm)
        self._offsets = OffsetService(self._shards)
        self._admin = AdminService(self._shards)
        self._expiry: asyncio.Task[None] | None = None
        self._look_at_topics: asyncio.Handle | None = None
        self._on_resolved: Callable[[set[str]], None] | None = None
        self._started = False
        self._closed = False

    # -- life ------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> GroupSettings:
        return self._shards.settings

    @settings.setter
    def settings(self, settings: GroupSettings) -> None:
        """A dynamic setting of the broker has changed."""
        self._shards.settings = settings

    @property
    def waiting(self) -> int:
        """Joins and syncs held at the moment."""
        return self._classic.waiting

    def partition_for(self, group_id: str) -> int:
        """The `__consumer_offsets` partition that a group lives on; transactions put their markers there."""
        return partition_for(group_id, self.partition_count)

    def exists(self, group_id: str) -> bool:
        """Whether it is known here: of groups that another broker coordinates this one cannot say."""
        return self._shards.knows(group_id)

    def reserve_names(self, taken: Callable[[object], bool]) -> None:
        """`taken` says which names belong to groups of another kind (share groups)."""
        self._shards.taken = taken

    def tell_whereabouts(self, whereabouts: Callable[[int], str]) -> None:
        """`whereabouts`: of a partition that is not led here, for people: "on node 2, …"."""
        self._shards.whereabouts = whereabouts

    def recover(self, logs: Iterable[StateLog]) -> None:
        """A broker alone leads all partitions: those that exist are replayed, the others are empty. Before `start`."""
        for shard in self._shards:
            shard.led = True
        for state_log in logs:
            self.lead(state_log)

    def lead(self, state_log: StateLog) -> None:
        """This broker coordinates the groups of a partition from now on: they are what its log says. Blocks."""
        shard = self._shards[state_log.partition]
        shard.replay(state_log)
        if self._started:
            self._start_sessions(shard)
            self.topics_changed()

    def drop(self, partition: int) -> None:
        """Another broker coordinates the groups of the partition: whoever waits is told, and they are forgotten."""
        shard = self._shards[partition]
        self._classic.drop(shard.groups)
        for group_id in shard.groups:
            self._alarm.set(group_id, None)
        shard.drop()

    def start(self, *, restarted: bool = False) -> None:
        """Sessions begin: members that the log remembers have a full session timeout to show up. `restarted`: all that
        lived in a broker lived in this one, and have ended with the process before."""
        self._started = True
        for shard in self._shards:
            self._start_sessions(shard, restarted=restarted)
        self.topics.subscribe_changes(self.topics_changed)
        self.topics_changed()
        self._expiry = asyncio.get_running_loop().create_task(self._expire_forever(), name="group-expiry")

    def _start_sessions(self, shard: GroupShard, *, restarted: bool = False) -> None:
        now_ms = self._shards.now_ms()
        for group in shard.groups.values():
            group.start_sessions(now_ms)
            if restarted and isinstance(group, ConsumerGroup):
                group.end_sessions_in_broker(now_ms)
            self._alarm.set(group.group_id, group.next_deadline_ms())

    async def close(self) -> None:
        """Ends the timers and answers everybody who waits. Groups stay as they are, in the log."""
        self._closed = True
        self._alarm.close()
        self._classic.close()
        if self._look_at_topics is not None:
            self._look_at_topics.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.gather(self._expiry, return_exceptions=True)

    # -- classic members -------------------------------------------------------------------------------------

    async def join(self, request: JoinRequest) -> JoinAnswer:
        """Returns when the next generation is made; MemberIdRequired tells the client to ask again with an id."""
        if self._consumer.has_members(request.group_id):
            self._classic.check_join(request)
            return await self._consumer.classic_join(request, self._classic.fresh_id(request))
        return await self._classic.join(request)

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """Returns the member's assignment when the leader has handed it in and it is durable."""
        if self._consumer.has_members(request.group_id):
            return await self._consumer.classic_sync(request)
        return await self._classic.sync(request)

    async def heartbeat(
        self, group_id: str, member_id: str, generation_id: int, instance_id: str | None = None
    ) -> None:
        """Returns if all is well; RebalanceInProgress calls the member back to join."""
        heartbeat = (
            self._consumer.classic_heartbeat if self._consumer.has_members(group_id) else self._classic.heartbeat
        )
        heartbeat(group_id, member_id, generation_id, instance_id)

    async def leave(self, group_id: str, members: Sequence[LeavingMember]) -> list[LeaveResult]:
        if self._consumer.has_members(group_id):
            return await self._consumer.classic_leave(group_id, members)
        return await self._classic.leave(group_id, members)

    # -- KIP-848 members -------------------------------------------------------------------------------------

    async def consumer_heartbeat(self, beat: ConsumerBeat) -> ConsumerBeatAnswer:
        return await self._consumer.heartbeat(beat)

    def describe_consumer_groups(self, group_ids: Sequence[str]) -> list[ConsumerGroupView]:
        return self._consumer.describe(group_ids)

    # -- settings of KIP-848 groups --------------------------------------------------------------------------

    def own_settings(self, group_id: str) -> dict[str, str]:
        """Those that were set on the group itself."""
        return self._consumer.own_settings(group_id)

    def groups_with_settings(self) -> list[str]:
        return self._consumer.with_settings()

    def check_settings(self, group_id: str, own: Mapping[str, str]) -> None:
        """Raises what `alter_settings` would raise now."""
        self._consumer.check_settings(group_id, own)

    async def alter_settings(self, group_id: str, own: Mapping[str, str]) -> None:
        """Replaces the group's own settings, durably. The group need not be there."""
        await self._consumer.alter_settings(group_id, own)

    # -- offsets ---------------------------------------------------------------------------------------------

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
        """For KIP-848 members the generation is the member's epoch. One result per offset, in the same order."""
        return await self._offsets.commit(
            group_id,
            offsets,
            member_id=member_id,
            generation_id=generation_id,
            instance_id=group_instance_id,
            retention_ms=retention_ms,
        )

    def write_offsets(self, group_id: str, offsets: Sequence[OffsetToCommit], member_id: str) -> list[OffsetResult]:
        """For members that live in the broker: written when this returns, to the group's partition of the offsets
        topic, and durable when that is."""
        return self._offsets.write(group_id, offsets, member_id)

    async def commit_transactional_offsets(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        offsets: Sequence[OffsetToCommit],
        *,
        member_id: str = "",
        generation_id: int = -1,
        group_instance_id: str | None = None,
    ) -> list[OffsetResult]:
        """As `commit_offsets`, but seen by fetches only after the producer's commit marker (`on_marker`)."""
        return await self._offsets.commit_transactional(
            group_id,
            producer_id,
            producer_epoch,
            offsets,
            member_id=member_id,
            generation_id=generation_id,
            instance_id=group_instance_id,
        )

    def fetch_offsets(
        self,
        group_id: str,
        keys: Iterable[tuple[str, int]] | None = None,
        *,
        require_stable: bool = False,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> list[FetchedOffset]:
        """What is replicated. `keys` None: all that the group has."""
        return self._offsets.fetch(
            group_id, keys, require_stable=require_stable, member_id=member_id, member_epoch=member_epoch
        )

    def newest_offset(self, group_id: str, topic: str, partition: int) -> int:
        """Replicated or not; -1: none. For members that live in the broker."""
        return self._offsets.newest(group_id, topic, partition)

    def committed(self, group_id: str) -> list[tuple[str, int, int]]:
        """(topic, partition, offset) of all that `fetch_offsets` shows, in no order."""
        return self._offsets.committed(group_id)

    async def delete_offsets(self, group_id: str, keys: Sequence[tuple[str, int]]) -> list[OffsetResult]:
        return await self._offsets.delete(group_id, keys)

    # -- administration --------------------------------------------------------------------------------------

    def list_groups(self, states: Collection[str] = (), kinds: Collection[str] = ()) -> list[GroupListing]:
        return self._admin.listing(states, kinds)

    def names(self) -> list[str]:
        """Every group, in no order."""
        return self._admin.names()

    def summary(self, group_id: str) -> GroupSummary | None:
        """A group in a few words; None if there is none."""
        return self._admin.summary(group_id)

    def describe_groups(self, group_ids: Sequence[str]) -> list[GroupView]:
        return self._admin.describe(group_ids)

    async def delete_groups(self, group_ids: Sequence[str]) -> list[DeleteResult]:
        return await self._admin.delete(group_ids)

    # -- what the broker reports -----------------------------------------------------------------------------

    def on_marker(self, partition: int, producer_id: int, producer_epoch: int, commit: bool) -> None:
        """A transaction marker was appended to this partition of `__consumer_offsets`."""
        moved = self._shards[partition].resolve_offsets(producer_id, commit=commit)
        if commit and moved and self._on_resolved is not None:
            self._on_resolved(moved)

    def tell_resolved(self, callback: Callable[[set[str]], None]) -> None:
        """`callback` hears of groups whose offsets a transaction has moved: members in the broker stand elsewhere."""
        self._on_resolved = callback

    def on_topics_deleted(self, names: Iterable[str]) -> None:
        """Their offsets go with them; the deletions are appended, nobody waits for them."""
        self._offsets.drop_topics(frozenset(names))

    async def expire(self, now_ms: int) -> None:
        """Drops offsets and groups whose retention has passed. `now_ms` is wall time."""
        for shard in self._shards:
            for number, group in enumerate(list(shard.groups.values())):
                if number % _GROUPS_PER_TURN == _GROUPS_PER_TURN - 1:
                    await asyncio.sleep(0)
                if shard.groups.get(group.group_id) is group:
                    self._offsets.expire_group(shard, group, now_ms)

    # -- timers ----------------------------------------------------------------------------------------------

    def _ring(self, group_id: str) -> None:
        group = self._shards.find(group_id)
        if isinstance(group, ClassicGroup):
            self._classic.tick(group)
        elif isinstance(group, ConsumerGroup):
            self._consumer.tick(group)

    def topics_changed(self) -> None:
        """There are others, or they are in another namespace. Many may change at once; the groups look when that is
        over."""
        if self._look_at_topics is None and not self._closed:
            self._look_at_topics = asyncio.get_running_loop().call_soon(self._tell_groups)

    def _tell_groups(self) -> None:
        self._look_at_topics = None
        for shard in self._shards:
            self._consumer.topics_changed(
                [group for group in shard.groups.values() if isinstance(group, ConsumerGroup)]
            )

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.retention_check_interval_ms / 1000)
            try:
                await self.expire(self._shards.wall_ms())
            except WaystationError as error:  # the log cannot be written now; the next round tries again
                log.warning("group.expiry_failed", "groups and offsets could not be expired: {error}", error=error)
