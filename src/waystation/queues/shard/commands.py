"""What a shard's log says: every change of every queue on it, in order.

A command is one record of the log. Queues are known by numbers that are never used again, entries by numbers that
ascend within their queue. Commands are arrays with a number in front that says which they are: fields may be added at
the end, never moved. `docs/reference/on-disk.md` describes them to strangers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from waystation.message import Message, Run
from waystation.queues.settings import QueueSettings

MAX_BLOCK_MESSAGES = 4096
MAX_BLOCK_BYTES = 1024 * 1024
"""A larger publish is several blocks of one batch, so that looking up one message never reads much more."""


class Declare(msgspec.Struct, array_like=True, tag=1, frozen=True, gc=False):
    queue: int
    name: str
    settings: QueueSettings


class Delete(msgspec.Struct, array_like=True, tag=2, frozen=True, gc=False):
    queue: int


class Alter(msgspec.Struct, array_like=True, tag=3, frozen=True, gc=False):
    queue: int
    settings: QueueSettings


class Enqueue(msgspec.Struct, array_like=True, tag=4, frozen=True, gc=False):
    """A block of messages, as they were sent. `first` -1: in a transaction, numbered when it commits."""

    queue: int
    first: int
    count: int
    taken_ms: int
    plain: bool  # nothing in it needs to be looked at: no ids, priorities, delays, expiries
    sizes: int | bytes  # of the payloads: one number for all, or four bytes each
    messages: msgspec.Raw  # an array of Message
    moved: bool = False  # by the broker, from where they were before: the window of ids does not count for them


class Forward(msgspec.Struct, array_like=True, tag=5, frozen=True, gc=False):
    """Entries of an old segment, written again so that the segment can go. Nothing changes but where they are."""

    queue: int
    first: int
    taken_ms: list[int]
    messages: msgspec.Raw


class Done(msgspec.Struct, array_like=True, tag=6, frozen=True, gc=False):
    """Acknowledged, cancelled, purged, expired, dropped, or moved elsewhere."""

    queue: int
    runs: list[Run]


class HandedOut(msgspec.Struct, array_like=True, tag=7, frozen=True, gc=False):
    """Delivered once more. Written with whatever comes next: a crash may forget the last of them."""

    queue: int
    runs: list[Run]


class Delay(msgspec.Struct, array_like=True, tag=8, frozen=True, gc=False):
    """Requeued, not to be delivered before a time."""

    queue: int
    until_ms: int
    runs: list[Run]


class Bury(msgspec.Struct, array_like=True, tag=9, frozen=True, gc=False):
    """Dead; on the way to the dead-letter target."""

    queue: int
    runs: list[Run]
    reason: str
    at_ms: int
    error: str | None = None


class Forgive(msgspec.Struct, array_like=True, tag=10, frozen=True, gc=False):
    """Requeued without fault: one delivery more than the limit says."""

    queue: int
    runs: list[Run]


class FanOut(msgspec.Struct, array_like=True, tag=11, frozen=True, gc=False):
    """A block of messages that several queues take in, written once: it says what an enqueue for each would say."""

    queues: list[tuple[int, int]]  # (queue, first)
    count: int
    taken_ms: int
    plain: bool
    sizes: int | bytes
    messages: msgspec.Raw

    def each(self) -> Iterator[Enqueue]:
        for queue, first in self.queues:
            yield Enqueue(queue, first, self.count, self.taken_ms, self.plain, self.sizes, self.messages)


Command = Declare | Delete | Alter | Enqueue | Forward | Done | HandedOut | Delay | Bury | Forgive
Stored = Command | FanOut
"""What a record of the log may be: a change of one queue, or the same change of several."""


class OpenedEnqueue(msgspec.Struct, array_like=True, tag=4, frozen=True, gc=False):
    """`Enqueue` for who wants its messages: to find where they end, and to open them then, would take half as long
    again."""

    queue: int
    first: int
    count: int
    taken_ms: int
    plain: bool
    sizes: int | bytes
    messages: list[Message]


class OpenedForward(msgspec.Struct, array_like=True, tag=5, frozen=True, gc=False):
    """`Forward`."""

    queue: int
    first: int
    taken_ms: list[int]
    messages: list[Message]


class OpenedFanOut(msgspec.Struct, array_like=True, tag=11, frozen=True, gc=False):
    """`FanOut`."""

    queues: list[tuple[int, int]]
    count: int
    taken_ms: int
    plain: bool
    sizes: int | bytes
    messages: list[Message]


Opened = OpenedEnqueue | OpenedForward | OpenedFanOut

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Stored] = msgspec.msgpack.Decoder(Stored)
_messages: msgspec.msgpack.Decoder[list[Message]] = msgspec.msgpack.Decoder(list[Message])
_message: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_unopened: msgspec.msgpack.Decoder[list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw])
_opened: msgspec.msgpack.Decoder[Opened] = msgspec.msgpack.Decoder(Opened)
_NOTHING = msgspec.Raw(b"")
_BLOCK_TAGS = frozenset((4, 5, 11))


def encode(stored: Stored) -> bytes:
    return _encoder.encode(stored)


def encode_pieces(stored: Stored) -> Sequence[bytes | memoryview]:
    """The same in pieces, so that the messages of a block are not copied: they are most of it."""
    if not isinstance(stored, Enqueue):
        return (_encoder.encode(stored),)
    around = _encoder.encode(
        Enqueue(
            stored.queue,
            stored.first,
            stored.count,
            stored.taken_ms,
            stored.plain,
            stored.sizes,
            _NOTHING,
            stored.moved,
        )
    )
    # Behind the messages is `moved`, which is one byte; what is before them does not depend on them.
    return around[:-1], memoryview(stored.messages), around[-1:]


def decode(data: bytes | bytearray | memoryview) -> Stored:
    return _decoder.decode(data)


def holds_messages(data: bytes | bytearray | memoryview) -> bool:
    """Whether this is a block of messages. Commands are short arrays: a byte says so, and the next is the number."""
    return data[1] in _BLOCK_TAGS


def decode_opened(data: bytes | bytearray | memoryview) -> Opened:
    """A block of messages, with all of them."""
    return _opened.decode(data)


def payload_bytes(sizes: int | bytes, count: int) -> int:
    """Of all payloads of a block."""
    return sizes * count if isinstance(sizes, int) else sum(array("I", sizes))


def changes_of(stored: Stored) -> Iterable[Command]:
    """The same, queue by queue."""
    return stored.each() if isinstance(stored, FanOut) else (stored,)


def encode_messages(messages: list[Message]) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(messages))


def decode_messages(raw: msgspec.Raw) -> list[Message]:
    return _messages.decode(raw)


def decode_some(raw: msgspec.Raw, indexes: Iterable[int]) -> list[Message]:
    """Some of them; the others stay as they are, which takes a fraction of the time."""
    unopened = _unopened.decode(raw)
    return [_message.decode(unopened[index]) for index in indexes]


def entries_of(runs: Iterable[Run]) -> Iterator[int]:
    """Every entry of some runs."""
    for first, count in runs:
        yield from range(first, first + count)


def count_of(runs: Iterable[Run]) -> int:
    """How many entries some runs have."""
    return sum(count for _, count in runs)
