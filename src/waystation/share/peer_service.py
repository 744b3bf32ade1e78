"""What a coordinator of share groups does for other nodes: for those that clients ask, and those that lead partitions.

They have asked permissions already. A verb of a group that this node does not coordinate is refused (NotCoordinator).
Called by the link's table (`cluster/links/peers.py`); on the loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from waystation.cluster.links.peer import ShareAsk, ShareTold
from waystation.errors import Invalid, WaystationError
from waystation.queues.feed import Verdict
from waystation.queues.shard.commands import count_of
from waystation.share.admin import SharedAdmin
from waystation.share.group import SharedGroup
from waystation.share.machines.calls import ShareBeat, ShareBeatAnswer, ShareGroupView
from waystation.share.machines.errors import InvalidShareRequest
from waystation.share.peer_calls import (
    RENEW_LOCKS,
    VERBS,
    Acquire,
    Acquired,
    AllSettled,
    NewOffsets,
    NoFields,
    Offered,
    OffsetList,
    OwnSettings,
    Release,
    ResultList,
    Settle,
    SettledFor,
    Settling,
    Taken,
    TopicNames,
    WantedOffsets,
    decode,
    encode,
)
from waystation.share.share_groups import SharedGroups
from waystation.topics.partitions.partition import Receipt
from waystation.topics.topics import Topics

Verb = Callable[[str, Any], Awaitable[msgspec.Struct]]


class SharePeerService:
    """One per node."""

    def __init__(self, groups: SharedGroups, admin: SharedAdmin, topics: Topics) -> None:
        self._groups = groups
        self._admin = admin
        self._topics = topics
        self._verbs: dict[str, Verb] = {
            "heartbeat": self._heartbeat,
            "acquire": self._acquire,
            "settle": self._settle,
            "release": self._release,
            "describe": self._describe,
            "delete": self._delete,
            "offsets": self._offsets,
            "alter_offsets": self._alter_offsets,
            "delete_offsets": self._delete_offsets,
            "settings": self._settings,
            "alter_settings": self._alter_settings,
        }

    async def answer(self, asked: ShareAsk) -> ShareTold:
        verb = self._verbs.get(asked.verb)
        if verb is None:
            raise Invalid(f"share groups have no verb {asked.verb!r}; is the other node of a later version?")
        try:
            call: Any = decode(asked.body, VERBS[asked.verb][0])
        except msgspec.DecodeError as error:
            raise Invalid(f"{asked.verb}: a request of another node cannot be read: {error}") from error
        return ShareTold(encode(await verb(asked.group_id, call)))

    # -- members ----------------------------------------------------------------------------------------------------

    async def _heartbeat(self, group_id: str, beat: ShareBeat) -> ShareBeatAnswer:
        return await self._groups.heartbeat(beat)

    async def _acquire(self, group_id: str, call: Acquire) -> Acquired:
        group = self._groups.get(group_id)
        count, size = call.count, call.size
        taken: list[Taken] = []
        for offered in call.offered:
            if count <= 0 or size <= 0:
                break
            try:
                one = self._take(group, call, offered, count, size)
            except WaystationError as error:
                one = Taken(offered.first, error=error)
            taken.append(one)
            count -= sum(grant.count for grant in one.grants)
            size -= sum(batch.size for batch in one.batches)
        return Acquired(group.settings.lock_ms, tuple(taken))

    def _take(self, group: SharedGroup, call: Acquire, offered: Offered, count: int, size: int) -> Taken:
        partition = self._topics.partition(offered.topic, offered.index)
        start = offered.start
        if start is None and not group.has((offered.topic, offered.index)):
            return Taken(offered.first, reset=group.settings.reset)
        one = group.partition(partition, None if start is None else lambda _: start)
        one.take_in(offered, count)
        grants = one.acquire_bytes(call.member, count, size, group.settings.lock_ms, whole=call.whole)
        return Taken(one.core.end, tuple(grants), tuple(one.window.of(grants)))

    async def _settle(self, group_id: str, call: Settle) -> AllSettled:
        group = self._groups.get(group_id)
        receipts: list[Receipt] = []
        found: list[SettledFor] = []
        for settling in call.partitions:
            try:
                found.append(self._settle_one(group, call.member, settling, receipts))
            except WaystationError as error:
                found.append(SettledFor(error=error))
        await self._groups.durability.wait(*receipts)
        return AllSettled(group.settings.lock_ms, tuple(found))

    def _settle_one(self, group: SharedGroup, member: str, settling: Settling, receipts: list[Receipt]) -> SettledFor:
        if any(kind == RENEW_LOCKS for kind, _ in settling.runs) and not group.settings.renews:
            raise InvalidShareRequest("records cannot be renewed in this group (share.renew.acknowledge.enable)")
        if not group.has((settling.topic, settling.index)):
            return SettledFor(tuple((kind, count_of(runs)) for kind, runs in settling.runs))
        one = group.partition(self._topics.partition(settling.topic, settling.index))
        unknown: list[tuple[str, int]] = []
        for kind, runs in settling.runs:
            if kind == RENEW_LOCKS:
                missed = one.touch(member, runs, group.settings.lock_ms)
            else:
                verdicts = one.settle(member, Verdict(kind), runs)
                missed = verdicts.unknown
                if verdicts.receipt is not None:
                    receipts.append(verdicts.receipt)
            unknown.append((kind, count_of(missed)))
        return SettledFor(tuple(unknown))

    async def _release(self, group_id: str, call: Release) -> NoFields:
        self._groups.get(group_id).release(call.member, call.partitions)
        return NoFields()

    # -- administration ---------------------------------------------------------------------------------------------

    async def _describe(self, group_id: str, _: NoFields) -> ShareGroupView:
        self._groups.journal.check_led(group_id)
        return self._admin.describe([group_id])[0]

    async def _delete(self, group_id: str, _: NoFields) -> NoFields:
        result = await self._admin.delete(group_id)
        if result.error is not None:
            raise result.error
        return NoFields()

    async def _offsets(self, group_id: str, call: WantedOffsets) -> OffsetList:
        return OffsetList(tuple(self._admin.offsets(group_id, call.topics)))

    async def _alter_offsets(self, group_id: str, call: NewOffsets) -> ResultList:
        return ResultList(tuple(await self._admin.alter_offsets(group_id, call.offsets)))

    async def _delete_offsets(self, group_id: str, call: TopicNames) -> ResultList:
        return ResultList(tuple(await self._admin.delete_offsets(group_id, call.names)))

    async def _settings(self, group_id: str, _: NoFields) -> OwnSettings:
        return OwnSettings(self._groups.own_settings(group_id))

    async def _alter_settings(self, group_id: str, call: OwnSettings) -> NoFields:
        await self._groups.durability.wait(self._groups.change_settings(group_id, call.own))
        return NoFields()
