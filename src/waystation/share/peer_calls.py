"""What nodes of a cluster say to each other about share groups: plain data, and how it travels.

A group's state is where its coordinator is; the records are where a partition is led. The partition's leader tells the
coordinator which batches its log has (`Offered`), and is told which records a member may have (`Taken`); their bytes
never leave the leader but for the client. Errors travel by name.
"""

from __future__ import annotations

from typing import Any, TypeVar
from uuid import UUID

import msgspec

from waystation.cluster.links.peer_errors import error_named
from waystation.errors import WaystationError
from waystation.groups.machines.calls import OffsetResult, TopicPartition
from waystation.message import Run
from waystation.queues.ledger.ledger import Grant
from waystation.share.machines.calls import ShareBeat, ShareBeatAnswer, ShareGroupView, ShareOffset
from waystation.share.machines.window import Batch

T = TypeVar("T")

RECORDS, NOTHING, ABORTED = range(3)
"""What is in a batch: records, none that anybody is to have, or those of a transaction that was aborted."""


class SeenBatch(msgspec.Struct, frozen=True, array_like=True):
    base: int
    last: int
    size: int
    kind: int = RECORDS


class Offered(msgspec.Struct, frozen=True, array_like=True):
    """What a partition's leader has, from `first` on."""

    topic: UUID
    index: int
    first: int
    log_start: int
    log_end: int
    visible: int
    stable: int
    batches: tuple[SeenBatch, ...] = ()
    start: int | None = None
    """Where the group begins, if it has no position: as `Taken.reset` asked for."""
    epoch: int = -1
    """The leader epoch. -1: a node of an earlier version does not say."""


class Acquire(msgspec.Struct, frozen=True, array_like=True):
    """A member wants records: so many, in batches of about so many bytes."""

    member: str
    count: int
    size: int
    whole: bool
    offered: tuple[Offered, ...]


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """Of one partition. `end`: from where on the coordinator wants to be told what there is."""

    end: int
    grants: tuple[Grant, ...] = ()
    batches: tuple[Batch, ...] = ()
    reset: str | None = None
    """The group has no position: where does it begin, by this setting?"""
    error: WaystationError | None = None


class Acquired(msgspec.Struct, frozen=True, array_like=True):
    lock_ms: int
    taken: tuple[Taken, ...]


class Settling(msgspec.Struct, frozen=True, array_like=True):
    """What a member says of records of one partition: runs, each with a verdict; RENEW_LOCKS: it goes on."""

    topic: UUID
    index: int
    runs: tuple[tuple[str, tuple[Run, ...]], ...]


class Settle(msgspec.Struct, frozen=True, array_like=True):
    member: str
    partitions: tuple[Settling, ...]


class SettledFor(msgspec.Struct, frozen=True, array_like=True):
    """`unknown`: how many of the records are not in flight to the member, of each verdict."""

    unknown: tuple[tuple[str, int], ...] = ()
    error: WaystationError | None = None


class AllSettled(msgspec.Struct, frozen=True, array_like=True):
    lock_ms: int
    partitions: tuple[SettledFor, ...]


class Release(msgspec.Struct, frozen=True, array_like=True):
    """The member has left these partitions, or starts over there: others get what is in flight to it."""

    member: str
    partitions: tuple[TopicPartition, ...]


class WantedOffsets(msgspec.Struct, frozen=True, array_like=True):
    topics: tuple[tuple[str, tuple[int, ...]], ...] | None


class NewOffsets(msgspec.Struct, frozen=True, array_like=True):
    offsets: tuple[tuple[str, int, int], ...]


class TopicNames(msgspec.Struct, frozen=True, array_like=True):
    names: tuple[str, ...] = ()


class OwnSettings(msgspec.Struct, frozen=True, array_like=True):
    own: dict[str, str]


class OffsetList(msgspec.Struct, frozen=True, array_like=True):
    offsets: tuple[ShareOffset, ...]


class ResultList(msgspec.Struct, frozen=True, array_like=True):
    results: tuple[OffsetResult, ...]


class NoFields(msgspec.Struct, frozen=True, array_like=True):
    pass


RENEW_LOCKS = "renew"

VERBS: dict[str, tuple[type, type]] = {
    "heartbeat": (ShareBeat, ShareBeatAnswer),
    "acquire": (Acquire, Acquired),
    "settle": (Settle, AllSettled),
    "release": (Release, NoFields),
    "describe": (NoFields, ShareGroupView),
    "delete": (NoFields, NoFields),
    "offsets": (WantedOffsets, OffsetList),
    "alter_offsets": (NewOffsets, ResultList),
    "delete_offsets": (TopicNames, ResultList),
    "settings": (NoFields, OwnSettings),
    "alter_settings": (OwnSettings, NoFields),
}
"""What is asked, and what is answered."""


def _plain(value: Any) -> Any:
    if isinstance(value, WaystationError):
        return type(value).__name__, str(value)
    raise NotImplementedError(f"{type(value)} does not travel between nodes")


def _typed(wanted: type, value: Any) -> Any:
    if issubclass(wanted, WaystationError):
        name, text = value
        return error_named(name, text)
    raise NotImplementedError(f"{wanted} does not travel between nodes")


_encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode


def encode(call: msgspec.Struct) -> bytes:
    return _encode(call)


def decode(data: bytes, wanted: type[T]) -> T:
    """msgspec.DecodeError: this is none."""
    return msgspec.msgpack.decode(data, type=wanted, dec_hook=_typed)
