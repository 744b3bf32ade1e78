"""Requests to etcd's JSON gateway and its answers, as far as the store needs them.

Keys and values are base64 (which is how msgspec writes bytes), 64-bit numbers are strings (which is why answers are
decoded with `strict=False`); what has its default is left out, on both sides.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    pass


def encode(request: Message) -> bytes:
    return msgspec.json.encode(request)


def decode(body: bytes, kind: type[T]) -> T:
    """Raises msgspec.DecodeError."""
    return msgspec.json.decode(body, type=kind, strict=False)


class Header(Message, frozen=True):
    cluster_id: int = 0  # of etcd's own cluster
    revision: int = 0


class Refusal(Message, frozen=True):
    """The body of an answer that is not 200. `code` is gRPC's."""

    code: int = 2
    message: str = ""
    error: str = ""


# -- reading ----------------------------------------------------------------------------------------------------------


class KeyValue(Message, frozen=True):
    key: bytes = b""
    value: bytes = b""
    mod_revision: int = 0


class Range(Message, frozen=True):
    key: bytes
    range_end: bytes = b""
    limit: int = 0
    revision: int = 0
    keys_only: bool = False


class RangeAnswer(Message, frozen=True):
    header: Header = Header()
    kvs: tuple[KeyValue, ...] = ()
    more: bool = False


# -- writing ----------------------------------------------------------------------------------------------------------


class Put(Message, frozen=True):
    key: bytes
    value: bytes = b""
    lease: int = 0


class DeleteRange(Message, frozen=True):
    key: bytes


class Compare(Message, frozen=True, omit_defaults=False):
    """Every field is written: what gRPC takes for a target that is left out is another one."""

    key: bytes
    mod_revision: int
    target: str = "MOD"
    result: str = "EQUAL"


class Operation(Message, frozen=True):
    request_range: Range | None = None
    request_put: Put | None = None
    request_delete_range: DeleteRange | None = None


class Txn(Message, frozen=True):
    compare: tuple[Compare, ...] = ()
    success: tuple[Operation, ...] = ()
    failure: tuple[Operation, ...] = ()


class DeleteRangeAnswer(Message, frozen=True):
    deleted: int = 0


class OperationAnswer(Message, frozen=True):
    response_range: RangeAnswer | None = None
    response_delete_range: DeleteRangeAnswer | None = None


class TxnAnswer(Message, frozen=True):
    header: Header = Header()
    succeeded: bool = False
    responses: tuple[OperationAnswer, ...] = ()


class PutAnswer(Message, frozen=True):
    header: Header = Header()


# -- leases -----------------------------------------------------------------------------------------------------------


class Grant(Message, frozen=True):
    TTL: int


class KeepAlive(Message, frozen=True):
    ID: int


class LeaseAnswer(Message, frozen=True):
    ID: int = 0
    TTL: int = 0


class KeepAliveAnswer(Message, frozen=True):
    result: LeaseAnswer = LeaseAnswer()


class Nothing(Message, frozen=True):
    """An answer of which nothing is needed."""


# -- users ------------------------------------------------------------------------------------------------------------


class Authenticate(Message, frozen=True):
    name: str
    password: str


class Token(Message, frozen=True):
    token: str = ""


# -- watching ---------------------------------------------------------------------------------------------------------


class CreateWatch(Message, frozen=True):
    key: bytes
    range_end: bytes
    start_revision: int


class Watching(Message, frozen=True):
    create_request: CreateWatch


class Event(Message, frozen=True):
    kv: KeyValue
    type: str = "PUT"


class WatchResult(Message, frozen=True):
    header: Header = Header()
    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: int = 0
    events: tuple[Event, ...] = ()


class WatchLine(Message, frozen=True):
    result: WatchResult | None = None
    error: Refusal | None = None
