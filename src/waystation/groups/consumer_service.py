"""Where KIP-848 members come to: one heartbeat says everything.

The shell of `ConsumerGroup`: it checks requests, writes what changed, and answers when that is durable, or when the
disk refuses: then it is written with the next change. A heartbeat that changes nothing, which is nearly every one,
touches no disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from waystation.groups.machines.assignors import ASSIGNORS
from waystation.groups.machines.calls import (
    ConsumerBeat,
    ConsumerBeatAnswer,
    ConsumerGroupView,
    JoinAnswer,
    JoinRequest,
    LeaveResult,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from waystation.groups.machines.classic_member import CONSUMER, read_subscription
from waystation.groups.machines.consumer import ConsumerGroup
from waystation.groups.machines.consumer_member import AWAY_EPOCH, LEAVE_EPOCH
from waystation.groups.machines.conversion import to_classic
from waystation.groups.machines.errors import (
    CoordinatorUnavailable,
    GroupFull,
    InconsistentProtocol,
    InvalidGroupRequest,
    UnknownGroup,
    UnknownMember,
    UnsupportedAssignor,
)
from waystation.groups.machines.reconcile import JOIN_EPOCH
from waystation.groups.shards import GroupShards
from waystation.observe.events import event_logger
from waystation.world.alarm import Alarm

log = event_logger(__name__)


class ConsumerService:
    """See the module."""

    def __init__(self, shards: GroupShards, alarm: Alarm[str]) -> None:
        self._shards = shards
        self._alarm = alarm

    async def heartbeat(self, beat: ConsumerBeat) -> ConsumerBeatAnswer:
        self._check(beat)
        group = self._group(beat)
        answer = group.heartbeat(beat, self._shards.topics, self._shards.now_ms())
        self._shards.adopt(group)
        try:
            if self._save(group, _why(beat)):
                await self._shards.shard_of(group.group_id).durable()
        except CoordinatorUnavailable:
            # Who is in a group is known as long as the broker lives. A full disk must not keep readers from reading.
            self._not_written(group)
        return answer

    def tick(self, group: ConsumerGroup) -> None:
        before = set(group.members)
        group.tick(self._shards.now_ms())
        silent = sorted(before - set(group.members))
        self._save_unasked(group, f"{', '.join(silent[:3])} was silent for too long")

    # -- classic members, while a group changes from one protocol to the other -------------------------------

    def has_members(self, group_id: str) -> bool:
        """Whether there is a KIP-848 group with members: then classic ones join that."""
        group = self._shards.find(group_id)
        return isinstance(group, ConsumerGroup) and not group.is_empty

    async def classic_join(self, request: JoinRequest, fresh_id: str) -> JoinAnswer:
        wishes = [read_subscription(metadata) for _, metadata in request.protocols]
        if request.protocol_type != CONSUMER or not wishes or wishes[0] is None or None in wishes:
            raise InconsistentProtocol(
                f"group {request.group_id!r} has members that use the consumer protocol (KIP-848); a classic member"
                " beside them has to be a consumer"
            )
        group = self._present(request.group_id)
        size = sum(len(name) + len(metadata) for name, metadata in request.protocols)
        if size + group.classic_bytes() > self._shards.settings.max_group_bytes:
            raise GroupFull(f"the classic members of group {request.group_id!r} bring too many bytes for one record")
        answer = group.classic_join(request, wishes[0], fresh_id, self._shards.topics, self._shards.now_ms())
        await self._saved(group, f"{request.client_id or answer.member_id} joined, with the classic protocol")
        return answer

    async def classic_sync(self, request: SyncRequest) -> SyncAnswer:
        group = self._present(request.group_id)
        answer = group.classic_sync(request, self._shards.topics, self._shards.now_ms())
        await self._saved(group, "a classic member was told its partitions")
        return answer

    def classic_heartbeat(self, group_id: str, member_id: str, generation_id: int, instance_id: str | None) -> None:
        group = self._present(group_id)
        try:
            group.classic_heartbeat(member_id, instance_id, generation_id, self._shards.topics, self._shards.now_ms())
        finally:
            self._save_unasked(group, "its topics or members have changed")

    async def classic_leave(self, group_id: str, members: Sequence[LeavingMember]) -> list[LeaveResult]:
        group = self._present(group_id)
        results = group.classic_leave(members)
        left = [one.member_id or one.instance_id or "a member" for one in results if one.error is None]
        await self._saved(group, f"{', '.join(left[:3])} left")
        return results

    def _present(self, group_id: str) -> ConsumerGroup:
        group = self._shards.find(group_id)
        if not isinstance(group, ConsumerGroup):
            raise UnknownMember(f"there is no consumer group {group_id!r}; rejoin")
        return group

    async def _saved(self, group: ConsumerGroup, why: str) -> None:
        """Durable when it returns, or when the disk refuses: then it is written with the next change."""
        try:
            self._save(group, why)
            await self._shards.shard_of(group.group_id).durable()
        except CoordinatorUnavailable:
            self._not_written(group)

    def _back_to_classic(self, group: ConsumerGroup) -> None:
        """Its last member of this protocol has left, and classic ones are there: they go on among themselves."""
        shards = self._shards
        classic = to_classic(group, shards.topics, shards.settings, shards.now_ms())
        shards.shard_of(group.group_id).convert(group, classic, shards.wall_ms())
        classic.call_back(shards.now_ms())
        shards.history.note(
            group.group_id, classic.state.value, len(classic.roster), "it uses the classic protocol again"
        )
        self._alarm.set(group.group_id, classic.next_deadline_ms())

    def topics_changed(self, groups: Iterable[ConsumerGroup]) -> None:
        for group in groups:
            group.topics_changed(self._shards.topics)
            self._save_unasked(group, "its topics have changed")

    def describe(self, group_ids: Sequence[str]) -> list[ConsumerGroupView]:
        views = []
        for group_id in group_ids:
            group = self._shards.find(group_id)
            if isinstance(group, ConsumerGroup):
                views.append(group.view())
            else:
                what = f"group {group_id!r} is not a consumer group" if group else f"there is no group {group_id!r}"
                views.append(ConsumerGroupView(group_id=group_id, error=UnknownGroup(what)))
        return views

    # -- settings of groups ----------------------------------------------------------------------------------

    def own_settings(self, group_id: str) -> dict[str, str]:
        return dict(self._shards.shard_of(group_id).own.get(group_id, {}))

    def with_settings(self) -> list[str]:
        return sorted(group_id for shard in self._shards for group_id in shard.own)

    def check_settings(self, group_id: str, own: Mapping[str, str]) -> None:
        self._shards.check_own(group_id, own)

    async def alter_settings(self, group_id: str, own: Mapping[str, str]) -> None:
        """They hold from the members' next heartbeats on."""
        self._shards.check_own(group_id, own)
        shard = self._shards.shard_of(group_id)
        shard.change_settings(group_id, own)
        await shard.durable()

    # -- parts -----------------------------------------------------------------------------------------------

    def _group(self, beat: ConsumerBeat) -> ConsumerGroup:
        if beat.member_epoch == JOIN_EPOCH:
            return self._shards.consumer(beat.group_id)
        group = self._shards.find(beat.group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if group is not None and not group.is_empty:
            raise InconsistentProtocol(f"group {beat.group_id!r} has members that use the classic protocol")
        raise UnknownMember(f"there is no consumer group {beat.group_id!r}; rejoin with epoch 0")

    def _save(self, group: ConsumerGroup, why: str) -> bool:
        saved = self._shards.shard_of(group.group_id).save_consumer(group, self._shards.wall_ms())
        self._alarm.set(group.group_id, group.next_deadline_ms())
        if saved:
            state = group.state
            self._shards.history.note(group.group_id, state, len(group.members), why)
            log.info(
                "group.saved",
                "group {group} is {state}, members: {members}",
                group=group.group_id,
                state=state,
                epoch=group.epoch,
                members=len(group.members),
            )
        if group.all_classic:
            self._back_to_classic(group)
        return saved

    def _not_written(self, group: ConsumerGroup) -> None:
        """It is written with the next change. The group goes on, unless it is a classic one by now."""
        group.mark_changed()
        if self._shards.find(group.group_id) is group:
            self._alarm.set(group.group_id, group.next_deadline_ms())

    def _save_unasked(self, group: ConsumerGroup, why: str) -> None:
        """Nobody waits for an answer; what could not be written stays marked and is written with the next change."""
        try:
            self._save(group, why)
        except CoordinatorUnavailable:
            self._not_written(group)

    def _check(self, beat: ConsumerBeat) -> None:
        shards = self._shards
        shards.check_group_id(beat.group_id)
        shards.check_names(member_id=beat.member_id, instance_id=beat.instance_id, rack_id=beat.rack_id)
        if not beat.member_id:
            raise InvalidGroupRequest("the member id is empty")
        if beat.instance_id == "" or beat.rack_id == "":
            raise InvalidGroupRequest("an instance id or rack id is either left out or not empty")
        if beat.member_epoch < AWAY_EPOCH:
            raise InvalidGroupRequest(f"member epoch {beat.member_epoch} means nothing")
        if beat.member_epoch == AWAY_EPOCH and beat.instance_id is None:
            raise InvalidGroupRequest("only a static member can leave for a while (epoch -2)")
        if beat.member_epoch == JOIN_EPOCH:
            self._check_join(beat)
        if beat.assignor is not None and beat.assignor not in ASSIGNORS:
            raise UnsupportedAssignor(f"assignor {beat.assignor!r} is not one of {', '.join(ASSIGNORS)}")
        limit = shards.settings.max_member_bytes
        if beat.member_epoch != LEAVE_EPOCH and sum(len(name) for name in beat.topics or ()) > limit:
            raise InvalidGroupRequest(f"the subscription is larger than {limit} bytes")

    @staticmethod
    def _check_join(beat: ConsumerBeat) -> None:
        if beat.rebalance_timeout_ms < 0:
            raise InvalidGroupRequest("the first heartbeat has to give the rebalance timeout")
        if beat.owned is None or beat.owned:
            raise InvalidGroupRequest("the first heartbeat has to say that the member owns nothing")
        if not beat.topics and not beat.pattern:
            raise InvalidGroupRequest("the first heartbeat has to subscribe to topics, by name or by pattern")


def _why(beat: ConsumerBeat) -> str:
    """What a heartbeat that changes something says."""
    who = beat.client_id or beat.member_id
    if beat.member_epoch == JOIN_EPOCH:
        return f"{who} joined"
    if beat.member_epoch == LEAVE_EPOCH:
        return f"{who} left"
    return f"{who} left for a while" if beat.member_epoch == AWAY_EPOCH else f"{who} took or gave up partitions"
