"""Finding a message of a topic by its id.

A place (`TOPIC-PARTITION@OFFSET`) is looked up. An id of its own is searched for, since topics have no index of ids:
the newest part of each partition is read, in slices, away from the loop. What that may cost is bounded in bytes. Where
the bound was reached and nothing was found, NotFound says how much was searched and how much was not: None means that
there is no such message.

On the loop's thread only; for `Messages`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from waystation.errors import NotFound
from waystation.log.batches import batch as batches
from waystation.message import Delivered
from waystation.protocol import Found
from waystation.topics.partitions.partition import Partition
from waystation.topics.reading import read_away
from waystation.topics.topics import Topics
from waystation.world import World

FIND_BYTES = 64 * 1024 * 1024
"""How far back a message is looked for by its id, in stored bytes of each partition of a topic that is named."""
ANYWHERE_BYTES = 256 * 1024 * 1024
"""Stored bytes that are searched if no topic is named, in all topics together: small partitions first, so that as many
as possible are searched whole."""

Among = Callable[[str], bool]
"""Whether a topic of this name is one of those that are searched."""


def everywhere(_: str) -> bool:
    return True


_SLICE_BYTES = 1024 * 1024
_MIB = 1024 * 1024
_PLACE = re.compile(r"(.+)-(\d{1,9})@(\d{1,18})", re.DOTALL)


class MessageLookup:
    """One per broker."""

    def __init__(self, world: World, topics: Topics) -> None:
        self._world = world
        self._topics = topics

    async def find(self, message_id: str, topic: str | None = None, among: Among = everywhere) -> Found | None:
        """The newest message with this id, in a topic that is there or, without one, in any of `among`."""
        place = _PLACE.fullmatch(message_id)
        if place is not None and topic in (None, place[1]) and among(place[1]):
            found = await self._at(place[1], int(place[2]), int(place[3]))
            if found is not None:
                return found
        if topic is not None:
            return await self._search(message_id, self._topics.get(topic).partitions, None, f"topic {topic!r}")
        known = [one for one in self._topics if not one.internal and among(one.name)]
        everywhere = [partition for one in known for partition in one.partitions]
        return await self._search(message_id, everywhere, ANYWHERE_BYTES, "all topics")

    async def _at(self, topic: str, partition: int, offset: int) -> Found | None:
        known = self._topics.find(topic)
        if known is None or known.internal or partition >= len(known.partitions):
            return None
        target = known.partitions[partition]
        if not target.start_offset <= offset < target.stable_offset:
            return None
        for delivered in (await read_away(self._world.offload, target, offset, 0, 1)).messages:
            if delivered.offset == offset:
                return _found(delivered)
        return None

    async def _search(self, message_id: str, partitions: list[Partition], left: int | None, where: str) -> Found | None:
        """`left`: bytes for all of them together; None: each may have `FIND_BYTES`."""
        latest: Delivered | None = None
        searched = skipped = 0
        for partition in sorted(partitions, key=lambda one: one.size_bytes):
            size = partition.size_bytes
            most = FIND_BYTES if left is None else min(FIND_BYTES, left)
            first = partition.tail_offset(most) if most > 0 else partition.end_offset
            delivered = await self._search_one(partition, first, message_id)
            if delivered is not None and (latest is None or delivered.taken_ms >= latest.taken_ms):
                latest = delivered
            part = size if first <= partition.start_offset else min(size, most)
            searched, skipped = searched + part, skipped + size - part
            left = None if left is None else left - part
        if latest is None and skipped:
            raise NotFound(
                f"message {message_id[:100]!r} is not in the newest {-(-searched // _MIB)} MiB of {where};"
                f" {-(-skipped // _MIB)} MiB before that were not searched: search the topic by id, which goes through"
                " all of it (`waystation topics search TOPIC --id ID`, GET /v1/topics/TOPIC/search?id=ID)"
            )
        return None if latest is None else _found(latest)

    async def _search_one(self, partition: Partition, offset: int, message_id: str) -> Delivered | None:
        """The newest message of the partition with this id."""
        wanted = message_id.encode(errors="replace")
        best: Delivered | None = None
        while offset < partition.stable_offset and partition.failure is None:
            offset = max(offset, partition.start_offset)
            data = partition.read(offset, _SLICE_BYTES, partition.stable_offset)
            following, hits = await self._world.offload(_batches_with, data, wanted)
            for hit, end in hits:
                while partition.start_offset <= hit < end:
                    chunk = await read_away(self._world.offload, partition, hit, 0)
                    for delivered in chunk.messages:
                        best = delivered if delivered.message.id == message_id else best
                    if chunk.next == hit:
                        break
                    hit = chunk.next
            if following <= offset:
                break
            offset = following
        return best


def _batches_with(data: bytes, wanted: bytes) -> tuple[int, list[tuple[int, int]]]:
    """Where to go on behind `data`, and the offsets (first, behind the last) of the batches that may hold `wanted`.

    Runs on a thread."""
    following = -1
    hits: list[tuple[int, int]] = []
    for position, header in batches.scan(data):
        following = header.last_offset + 1
        if header.control:
            continue
        if header.codec or data.find(wanted, position, position + header.size) >= 0:
            hits.append((header.base_offset, following))
    return following, hits


def _found(delivered: Delivered) -> Found:
    return Found(f"topic:{delivered.source}", "stored", delivered)
