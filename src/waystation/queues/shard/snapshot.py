"""Snapshots of a shard: all queues in one file, so that a start need not read the whole past.

    magic "WSQ1" · pieces: u32 length, u32 CRC-32C, msgpack · an end piece with the count of queues

A snapshot is taken while the shard works on, queue by queue; so each queue carries its *stamp*, the offset of the log
at which it was true, and a replay skips a queue's commands below its stamp. `Head.replay_from` is where a replay
begins: where the snapshot was begun, or where the oldest transaction that was open then had written first.

What a queue is at its stamp is taken in one go (`parts_of`); to write it down, a part at a time, is a thread's work. So
the places of a deep queue follow it in pieces of their own.

A file is written beside, synced and renamed: it is there whole or not at all. Its name is the offset of its beginning.
The one before it is kept, and so is the log from there on: if the newest turns out to be damaged, it will do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from waystation.encryption.key_ring import KeyRing, NotOpened, UnknownKey
from waystation.encryption.sealed_file import opened_whole
from waystation.message import HIGHEST_PRIORITY
from waystation.queues.ledger.ledger import Ledger, LedgerState
from waystation.queues.ledger.moves import LEVELS
from waystation.queues.ledger.old_levels import with_priorities
from waystation.queues.settings import QueueSettings
from waystation.queues.shard.message_index import ChunkState, MessageIndex
from waystation.queues.shard.queue import Death, Queue
from waystation.queues.shard.used_ids import UsedIds
from waystation.wire.crc32c import crc32c
from waystation.world.disk import Disk

MAGIC = b"WSQ1"
SUFFIX = ".queues"
PRIORITIES = HIGHEST_PRIORITY + 1
CHUNKS_AT_ONCE = 64
"""Of places, in one piece: about a megabyte, which takes a millisecond to encode."""
_FRAME = struct.Struct(">II")


class Head(msgspec.Struct, array_like=True, tag="head"):
    replay_from: int
    priorities: int = LEVELS  # how many the ledgers tell apart: 256, or 16 in files that do not say


class Piece(msgspec.Struct, array_like=True, tag="queue"):
    """One queue."""

    id: int
    name: str
    settings: QueueSettings
    stamp: int
    ledger: LedgerState | None = None
    places: list[ChunkState] = []
    ids: dict[str, int] | None = None
    deaths: dict[int, Death] | None = None
    bytes: int = 0


class More(msgspec.Struct, array_like=True, tag="places"):
    """More of a queue's places; the queue comes before them."""

    queue: int
    places: list[ChunkState]


class Tail(msgspec.Struct, array_like=True, tag="tail"):
    queues: int


Part = Head | Piece | More | Tail

_decoder: msgspec.msgpack.Decoder[Part] = msgspec.msgpack.Decoder(Part)
_encoder = msgspec.msgpack.Encoder()


class Damaged(Exception):
    """The file is not what was written."""


def frame(part: Part) -> bytes:
    body = _encoder.encode(part)
    return _FRAME.pack(len(body), crc32c(body)) + body


def parts(data: bytes) -> Iterator[Part]:
    """Everything in a file; Damaged where it is not whole."""
    if data[: len(MAGIC)] != MAGIC:
        raise Damaged("it does not begin as a snapshot does")
    position = len(MAGIC)
    view = memoryview(data)
    count = 0
    while True:
        if position + _FRAME.size > len(data):
            raise Damaged("it ends in the middle")
        length, crc = _FRAME.unpack_from(data, position)
        body = view[position + _FRAME.size : position + _FRAME.size + length]
        if len(body) != length or crc32c(body) != crc:
            raise Damaged(f"it is damaged at position {position}")
        try:
            part = _decoder.decode(body)
        except msgspec.DecodeError as error:
            raise Damaged(f"it is not understood at position {position}: {error}") from error
        position += _FRAME.size + length
        if isinstance(part, Tail):
            if part.queues != count:
                raise Damaged("queues are missing")
            return
        count += isinstance(part, Piece)
        yield part


def parts_of(queue: Queue, stamp: int) -> list[Part]:
    """A queue as it is now: what happens to it afterwards does not change them."""
    places = [] if queue.places is None else queue.places.dump()
    piece = Piece(
        queue.id,
        queue.name,
        queue.settings,
        stamp,
        None if queue.ledger is None else queue.ledger.dump(),
        places[:CHUNKS_AT_ONCE],
        None if queue.ids is None else queue.ids.copy(),
        queue.deaths.copy() if queue.deaths else None,
        queue.bytes,
    )
    more = range(CHUNKS_AT_ONCE, len(places), CHUNKS_AT_ONCE)
    return [piece, *[More(queue.id, places[at : at + CHUNKS_AT_ONCE]) for at in more]]


def queue_of(piece: Piece, priorities: int) -> Queue:
    queue = Queue(piece.id, piece.name, piece.settings)
    queue.stamp = piece.stamp
    queue.bytes = piece.bytes
    queue.ids = UsedIds(piece.ids) if piece.ids else None
    queue.deaths = piece.deaths
    if piece.ledger is not None:
        stored = piece.ledger
        if priorities == LEVELS:
            states = with_priorities(stored.states, piece.settings.max_priority)
            stored = msgspec.structs.replace(stored, states=states)
        ledger = Ledger.load(
            stored,
            max_deliveries=piece.settings.max_deliveries,
            single_active=piece.settings.single_active,
            keeps_dead=piece.settings.keeps_dead,
        )
        queue.adopt(ledger, MessageIndex.load(piece.places))
    return queue


def queues_of(data: bytes) -> tuple[int, dict[int, Queue]]:
    """(where a replay begins, the queues by their numbers) of a file; Damaged where it is not whole."""
    begin, priorities = -1, LEVELS
    queues: dict[int, Queue] = {}
    for part in parts(data):
        if isinstance(part, Head):
            begin, priorities = part.replay_from, part.priorities
        elif isinstance(part, Piece):
            queues[part.id] = queue_of(part, priorities)
        elif isinstance(part, More):
            places = queues[part.queue].places
            if places is not None:
                places.add_loaded(part.places)
    for queue in queues.values():
        if queue.deaths and queue.places is not None:
            queue.dead_bytes = sum(queue.places.bytes_of(entry, 1) for entry in queue.deaths)
    return begin, queues


def newest_in(disk: Disk, folder: str, keys: KeyRing | None = None) -> tuple[int, dict[int, Queue]] | None:
    """The newest that is whole, without changing anything: None if there is none. For a thread; raises OSError."""
    for name in sorted((name for name in disk.list(folder) if name.endswith(SUFFIX)), reverse=True):
        try:
            return queues_of(opened_whole(keys, disk.read_file(f"{folder}/{name}") or b""))
        except (Damaged, NotOpened, UnknownKey):
            continue  # whoever leads says so
    return None
