"""A member of a consumer group that lives in the broker, on behalf of a native or HTTP consumer.

It speaks KIP-848 with the group coordinator as a Kafka consumer does, heartbeat by heartbeat, so that consumers of all
protocols share the partitions of one group. What the owner has is what it says it has (`owned`): a partition that is
taken back stays with it until it says that it let go.

It is in the broker, so it is told at once when another such member changed something; a change by a Kafka consumer is
seen with the next heartbeat, a second later at most.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from waystation.errors import StorageFailed, Unavailable, WaystationError
from waystation.groups.coordinator import GroupCoordinator
from waystation.groups.machines.calls import ConsumerBeat, TopicPartition
from waystation.groups.machines.consumer_member import LEAVE_EPOCH
from waystation.groups.machines.errors import FencedMemberEpoch, UnknownMember
from waystation.groups.machines.reconcile import JOIN_EPOCH
from waystation.observe.events import event_logger

logger = event_logger("waystation.streams")

LONGEST_INTERVAL_MS = 1_000
"""A heartbeat costs 30 µs here, so that members of other protocols need not wait for ours as long as for each other."""

REBALANCE_TIMEOUT_MS = 60_000
"""How long the group waits for a member to let go; ours do it much sooner (`streams.LET_GO_S`)."""


class MembershipOwner(Protocol):
    """Whoever reads the partitions."""

    def owned(self) -> frozenset[TopicPartition]: ...

    def names(self) -> tuple[str, ...]:
        """The topics that it subscribes to."""

    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """From now on these are its own; others it has it should let go of."""

    def heartbeat(self) -> None:
        """All is well."""

    def lost(self) -> None:
        """It was taken for dead: nothing is its own any longer."""

    def failed(self, error: WaystationError) -> None:
        """It cannot be in the group."""


class GroupMembership:
    """`join`, then it lives by itself until `leave`."""

    def __init__(
        self,
        groups: GroupCoordinator,
        group_id: str,
        member_id: str,
        client_id: str,
        owner: MembershipOwner,
        moved: Callable[[GroupMembership], None],
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self._groups = groups
        self._client_id = client_id
        self._owner = owner
        self._moved = moved  # called after a change that others of the group may be waiting for
        self._epoch = JOIN_EPOCH
        self._said: tuple[frozenset[TopicPartition], tuple[str, ...]] = (frozenset(), ())
        self._interval_ms = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def join(self) -> None:
        """Raises what keeps it out of the group."""
        await self._beat()
        self._task = asyncio.get_running_loop().create_task(self._live(), name=f"member-{self.member_id}")

    def nudge(self) -> None:
        """Something changed: do not wait for the next heartbeat's time."""
        self._wake.set()

    async def leave(self) -> None:
        """Gives everything back; others get it at once."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._epoch != JOIN_EPOCH:
            beat = ConsumerBeat(group_id=self.group_id, member_id=self.member_id, member_epoch=LEAVE_EPOCH)
            with contextlib.suppress(WaystationError):  # if it is not known any more, it has left
                await self._groups.consumer_heartbeat(beat)
            self._moved(self)

    async def _live(self) -> None:
        while True:
            # Not `wait_for`: in Python 3.11 it forgets that we were cancelled if we are woken in the same turn.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self._interval_ms, LONGEST_INTERVAL_MS) / 1000):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._beat()
            except (FencedMemberEpoch, UnknownMember) as error:
                logger.info(
                    "member.rejoins",
                    "member {member} of group {group!r} joins again: {error}",
                    member=self.member_id,
                    group=self.group_id,
                    error=error,
                )
                self._epoch = JOIN_EPOCH
                self._owner.lost()
                self._wake.set()
            except (Unavailable, StorageFailed) as error:
                logger.warning(
                    "member.waits",
                    "member {member} of group {group!r} waits: {error}",
                    member=self.member_id,
                    group=self.group_id,
                    error=error,
                )
                self._interval_ms = LONGEST_INTERVAL_MS
            except WaystationError as error:
                self._owner.failed(error)
                return

    async def _beat(self) -> None:
        joins = self._epoch == JOIN_EPOCH
        owned, names = self._owner.owned(), self._owner.names()
        answer = await self._groups.consumer_heartbeat(
            ConsumerBeat(
                group_id=self.group_id,
                member_id=self.member_id,
                member_epoch=self._epoch,
                client_id=self._client_id,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if joins else -1,
                topics=names if joins or names != self._said[1] else None,
                owned=owned,
            )
        )
        moved = answer.member_epoch != self._epoch or (owned, names) != self._said
        self._epoch = answer.member_epoch
        self._interval_ms = answer.heartbeat_interval_ms
        self._said = (owned, names)
        if answer.assignment is not None:
            self._owner.assigned(answer.assignment)
        self._owner.heartbeat()
        if moved:
            self._moved(self)
