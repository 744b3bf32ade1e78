"""Members of a consumer group in a simulated cluster, whose partitions the coordinator assigns (KIP-848).

Each joins, heartbeats, reads what it is assigned, and commits how far it has come, with the epoch that it was told.
Members leave, and others come; some stand still for longer than their session, and go on as if nothing had happened.
What must hold, whoever coordinates the group:

- a member begins where the one before it has committed, or later: what was acknowledged is there;
- an acknowledged commit is never behind an acknowledged one: two members do not have a partition at once, and one
  that was replaced is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.cluster_clients import BARRIER, REFUSED, TOPIC, Clients, access, commit
from waystation.broker.broker import Broker
from waystation.groups.machines.calls import ConsumerBeat, ConsumerBeatAnswer, OffsetToCommit
from waystation.groups.machines.consumer_member import LEAVE_EPOCH
from waystation.groups.machines.errors import FencedMemberEpoch, UnknownMember
from waystation.groups.machines.reconcile import JOIN_EPOCH
from waystation.topics.topics import OFFSETS_TOPIC

GROUP = "members"
SETTINGS = {"group.consumer.session.timeout.ms": "1500", "group.consumer.heartbeat.interval.ms": "500"}
REVOKING_MS = 2_000
STALLS_S = (0.5, 3.0)
"""While a member has read and not committed yet: less than a session, and more."""


@dataclass
class Member:
    """What a consumer knows of itself."""

    id: str
    epoch: int = JOIN_EPOCH
    positions: dict[int, int | None] = field(default_factory=dict)
    """Of what it is assigned; None: it has not asked yet where the group is."""


class Members:
    """Of one run."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._numbers = itertools.count(1)

    def jobs(self) -> list[Coroutine[Any, Any, None]]:
        """Two members have a partition each, and a third has none until one of them is gone."""
        return [self.consume() for _ in range(3)]

    async def consume(self) -> None:
        """One member after another."""
        while True:
            await self._clients._pause(0.2)
            member = Member(f"member-{next(self._numbers)}")
            try:
                await self._belong(member)
            except (UnknownMember, FencedMemberEpoch):
                continue  # it was replaced: it comes back as another one

    async def _belong(self, member: Member) -> None:
        rng = self._clients.rng
        for _ in range(rng.choice((5, 20, 60))):
            await self._clients._pause(0.25)
            try:
                await self._beat(member)
                for index in sorted(member.positions):
                    await self._consume_some(member, index)
            except (UnknownMember, FencedMemberEpoch):
                raise
            except REFUSED:
                continue
        if rng.random() < 0.5:  # else it ends without a word
            member.epoch = LEAVE_EPOCH
            try:
                await self._beat(member)
            except REFUSED:
                return

    async def _beat(self, member: Member) -> None:
        owned = sorted(member.positions)
        answer = await self._clients.leader(OFFSETS_TOPIC).ask(
            lambda broker: _heartbeat(broker, member.id, member.epoch, owned)
        )
        member.epoch = answer.member_epoch
        if answer.assignment is not None:
            assigned = {index for _, index in answer.assignment}
            member.positions = {index: member.positions.get(index) for index in assigned}

    async def _consume_some(self, member: Member, index: int) -> None:
        clients = self._clients
        position = member.positions[index]
        if position is None:
            position = await clients.leader(OFFSETS_TOPIC).ask(lambda broker: _fetch_offset(broker, member, index))
            clients.promises.offset_fetched(GROUP, index, position)
            member.positions[index] = position
        records = clients._read_somewhere(index, position, clients.rng.choice((1, 3, 5)))
        if not records:
            return
        if clients.rng.random() < 0.15:
            await clients._pause(clients.rng.choice(STALLS_S))
        reached = records[-1][0] + 1
        await clients.leader(OFFSETS_TOPIC).ask(lambda broker: _commit(broker, member, index, reached))
        clients.promises.offset_committed_by_owner(GROUP, index, reached)
        member.positions[index] = reached
        clients._succeeded("members")


# -- what a node does for a client, in its own context ----------------------------------------------------------------


async def _heartbeat(broker: Broker, member_id: str, epoch: int, owned: list[int]) -> ConsumerBeatAnswer:
    topic_id = broker.topics.get(TOPIC).id
    return await access(broker).groups.consumer_heartbeat(
        ConsumerBeat(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=REVOKING_MS,
            topics=(TOPIC,),
            owned=frozenset((topic_id, index) for index in owned),
        )
    )


async def _fetch_offset(broker: Broker, member: Member, index: int) -> int:
    await commit(broker, BARRIER, index, 0)  # a node that was deposed and does not know it cannot take this
    (found,) = access(broker).groups.fetch_offsets(
        GROUP, [(TOPIC, index)], require_stable=True, member_id=member.id, member_epoch=member.epoch
    )
    if found.error is not None:
        raise found.error
    return max(0, found.offset)


async def _commit(broker: Broker, member: Member, index: int, offset: int) -> None:
    (result,) = await access(broker).groups.commit_offsets(
        GROUP, [OffsetToCommit(TOPIC, index, offset)], member_id=member.id, generation_id=member.epoch
    )
    if result.error is not None:
        raise result.error
