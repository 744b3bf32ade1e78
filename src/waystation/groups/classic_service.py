"""Where classic members come to: join, sync, heartbeat, leave.

The shell of `ClassicGroup`: it holds the joins and syncs that wait, writes groups, and keeps their timers. A waiting
request whose connection goes away is simply forgotten; its member stays until its session ends, as in Kafka, because
the client may be about to reconnect.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Container, Sequence
from typing import Generic, TypeVar

from waystation.errors import WaystationError
from waystation.groups.machines.calls import (
    JoinAnswer,
    JoinRequest,
    LeaveResult,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from waystation.groups.machines.classic import ClassicGroup
from waystation.groups.machines.classic_decisions import AnswerJoin, AnswerSync, Decision, Save
from waystation.groups.machines.classic_states import ClassicState
from waystation.groups.machines.consumer import ConsumerGroup
from waystation.groups.machines.errors import (
    CoordinatorUnavailable,
    GroupFull,
    InconsistentProtocol,
    InvalidGroupRequest,
    InvalidSessionTimeout,
    MemberIdRequired,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMember,
)
from waystation.groups.shards import GroupShards
from waystation.observe.events import event_logger
from waystation.world import Random
from waystation.world.alarm import Alarm

log = event_logger(__name__)

A = TypeVar("A")
_Key = tuple[str, str]  # group, member
_LARGE_BYTES = 16_384


class _Waiting(Generic[A]):
    """Requests of one kind that wait for their group. What they get says whether it must be durable first."""

    def __init__(self) -> None:
        self._futures: dict[_Key, asyncio.Future[tuple[A | WaystationError, bool]]] = {}

    def __len__(self) -> int:
        return len(self._futures)

    def expect(self, key: _Key) -> asyncio.Future[tuple[A | WaystationError, bool]]:
        """A client that asks again does not want its first answer any more, but a connection answers in order."""
        self.answer(key, RebalanceInProgress("the member has sent this request again"), durably=False)
        future = self._futures[key] = asyncio.get_running_loop().create_future()
        return future

    def answer(self, key: _Key, answer: A | WaystationError, *, durably: bool) -> None:
        future = self._futures.pop(key, None)
        if future is not None and not future.done():
            future.set_result((answer, durably))

    def forget(self, key: _Key, future: asyncio.Future[tuple[A | WaystationError, bool]]) -> None:
        if self._futures.get(key) is future:
            del self._futures[key]

    def close(self) -> None:
        self.end(lambda _: True, CoordinatorUnavailable("the broker is stopping"))

    def end(self, concerns: Callable[[str], object], error: WaystationError) -> None:
        """Answers everybody of these groups with an error."""
        for key in [key for key in self._futures if concerns(key[0])]:
            self.answer(key, error, durably=False)


class ClassicService:
    """See the module."""

    def __init__(self, shards: GroupShards, random: Random, alarm: Alarm[str]) -> None:
        self._shards = shards
        self._random = random
        self._alarm = alarm
        self._joins: _Waiting[JoinAnswer] = _Waiting()
        self._syncs: _Waiting[SyncAnswer] = _Waiting()
        shards.converted = self._converted

    def _converted(self, group_id: str) -> None:
        """The group is of the other protocol from now on: whoever waits joins again, and is a member there."""
        error = RebalanceInProgress(f"group {group_id!r} uses the consumer protocol (KIP-848) from now on; rejoin")
        self._joins.end(group_id.__eq__, error)
        self._syncs.end(group_id.__eq__, error)

    @property
    def waiting(self) -> int:
        """Joins and syncs held at the moment."""
        return len(self._joins) + len(self._syncs)

    def close(self) -> None:
        self._joins.close()
        self._syncs.close()

    def drop(self, groups: Container[str]) -> None:
        """Another broker coordinates these groups: whoever waits is told to ask there."""
        error = NotCoordinator("this broker is not the group's coordinator any more; ask which one is")
        self._joins.end(groups.__contains__, error)
        self._syncs.end(groups.__contains__, error)

    async def join(self, request: JoinRequest) -> JoinAnswer:
        """Returns when the next generation is made. Raises MemberIdRequired to have the client ask again."""
        self.check_join(request)
        known = bool(request.member_id)
        group = self._group(request.group_id) if known else self._shards.classic(request.group_id)
        self._check_bytes(group, request)
        fresh_id = self.fresh_id(request)
        try:
            decisions = group.join(request, fresh_id, self._shards.now_ms())
        except MemberIdRequired:
            self._shards.adopt(group)
            self._alarm.set(group.group_id, group.next_deadline_ms())
            raise
        self._shards.adopt(group)
        why = f"{request.client_id or request.member_id or fresh_id} joined"
        return await self._wait(self._joins, group, request.member_id or fresh_id, decisions, why)

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """Returns when the leader has handed in the assignment, and it is durable."""
        self._shards.check_group_id(request.group_id)
        limit = self._shards.settings.max_member_bytes
        if any(len(assignment) > limit for _, assignment in request.assignments):
            raise InvalidGroupRequest(f"an assignment is larger than {limit} bytes")
        if sum(len(one) for _, one in request.assignments) > self._shards.settings.max_group_bytes:
            raise InvalidGroupRequest("the assignments of the group together are too large to be stored")
        group = self._group(request.group_id)
        decisions = group.sync(request, self._shards.now_ms())
        why = "the leader has assigned the partitions"
        return await self._wait(self._syncs, group, request.member_id, decisions, why)

    def heartbeat(self, group_id: str, member_id: str, generation_id: int, instance_id: str | None) -> None:
        """Returns if the member is fine; raises what it has to do otherwise."""
        self._shards.check_group_id(group_id)
        self._group(group_id).heartbeat(member_id, instance_id, generation_id, self._shards.now_ms())

    async def leave(self, group_id: str, members: Sequence[LeavingMember]) -> list[LeaveResult]:
        self._shards.check_group_id(group_id)
        try:
            group = self._group(group_id)
        except UnknownMember as error:
            return [LeaveResult(member.member_id, member.instance_id, error) for member in members]
        results, decisions = group.leave(members, self._shards.now_ms())
        left = [one.member_id or one.instance_id or "a member" for one in results if one.error is None]
        self._carry_out(group, decisions, f"{', '.join(left[:3])} left")
        return results

    def tick(self, group: ClassicGroup) -> None:
        before = set(group.roster.members)
        decisions = group.tick(self._shards.now_ms())
        silent = sorted(before - set(group.roster.members))
        why = f"{', '.join(silent[:3])} was silent for too long" if silent else "the time to join or to assign is over"
        self._carry_out(group, decisions, why)

    # -- parts -----------------------------------------------------------------------------------------------

    def check_join(self, request: JoinRequest) -> None:
        settings = self._shards.settings
        self._shards.check_group_id(request.group_id)
        self._shards.check_names(
            member_id=request.member_id, instance_id=request.instance_id, protocol_type=request.protocol_type
        )
        if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
            raise InvalidSessionTimeout(
                f"session.timeout.ms={request.session_timeout_ms} is outside "
                f"{settings.min_session_timeout_ms}…{settings.max_session_timeout_ms} of this broker"
            )
        for name, _ in request.protocols:
            self._shards.check_names(protocol=name)
        if _size(request) > settings.max_member_bytes:
            raise InvalidGroupRequest(f"the member's protocols are larger than {settings.max_member_bytes} bytes")

    def _check_bytes(self, group: ClassicGroup, request: JoinRequest) -> None:
        settings = self._shards.settings
        size = _size(request)
        # Only members far above the usual few hundred bytes are worth adding up the whole group for.
        if size > _LARGE_BYTES and size + group.roster.size_bytes() > settings.max_group_bytes:
            raise GroupFull(f"the members of group {group.group_id!r} bring more than {settings.max_group_bytes} bytes")

    def fresh_id(self, request: JoinRequest) -> str:
        # Readable, as Kafka makes them; cut so that the id itself passes the limit on ids.
        return f"{(request.instance_id or request.client_id)[:100]}-{self._random.uuid()}"

    def _group(self, group_id: str) -> ClassicGroup:
        group = self._shards.find(group_id)
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            raise InconsistentProtocol(f"group {group_id!r} has members that use the consumer protocol (KIP-848)")
        if not isinstance(group, ClassicGroup):
            raise UnknownMember(f"there is no classic group {group_id!r}; join first")
        return group

    async def _wait(
        self, waiting: _Waiting[A], group: ClassicGroup, member_id: str, decisions: Sequence[Decision], why: str
    ) -> A:
        key = (group.group_id, member_id)
        future = waiting.expect(key)
        try:
            self._carry_out(group, decisions, why)
            answer, durably = await future
        finally:
            waiting.forget(key, future)
        if durably:
            # Who is in a group is known as long as the broker lives. A full disk must not keep readers from reading.
            with contextlib.suppress(CoordinatorUnavailable):
                await self._shards.shard_of(group.group_id).durable()
        if isinstance(answer, WaystationError):
            raise answer
        return answer

    def _carry_out(self, group: ClassicGroup, decisions: Sequence[Decision], why: str) -> None:
        saved = group.state is ClassicState.STABLE  # what a stable group tells was saved, now or by an earlier request
        self._shards.history.note(group.group_id, group.state.value, len(group.roster), why)
        for decision in decisions:
            if isinstance(decision, Save):
                self._save(group)
                saved = True
            elif isinstance(decision, AnswerJoin):
                self._joins.answer((group.group_id, decision.member_id), decision.answer, durably=saved)
            elif isinstance(decision, AnswerSync):
                self._syncs.answer((group.group_id, decision.member_id), decision.answer, durably=saved)
        self._alarm.set(group.group_id, group.next_deadline_ms())

    def _save(self, group: ClassicGroup) -> None:
        log.info(
            "group.saved",
            "group {group} is {state}, members: {members}",
            group=group.group_id,
            state=group.state.value,
            generation=group.generation_id,
            members=len(group.roster),
        )
        with contextlib.suppress(CoordinatorUnavailable):  # told by the shard; the next change is saved as a whole
            self._shards.shard_of(group.group_id).save_classic(group, self._shards.wall_ms())


def _size(request: JoinRequest) -> int:
    return sum(len(name) + len(metadata) for name, metadata in request.protocols)
