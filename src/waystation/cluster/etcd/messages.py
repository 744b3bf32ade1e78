"""Requests to etcd's JSON gateway and its answers, as far as the store needs them.

Keys and values are base64 (which is how msgspec writes bytes), 64-bit numbers are strings (which is why answers are
decoded with `strict=False`); what has its default is left out, on both sides.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


class EtcdMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    pass


def encode(request: EtcdMessage) -> bytes:
    return msgspec.json.encode(request)


def decode(body: bytes, kind: type[T]) -> T:
    """Raises msgspec.DecodeError."""
    return msgspec.json.decode(body, type=kind, strict=False)


class Header(EtcdMessage, frozen=True):
    cluster_id: int = 0  # of etcd's own cluster
    revision: int = 0


class Refusal(EtcdMessage, frozen=True):
    """The body of an answer that is not 200. `code` is gRPC's."""

    code: int = 2
    message: str = ""
    error: str = ""


# -- reading ----------------------------------------------------------------------------------------------------------


class KeyValue(EtcdMessage, frozen=True):
    key: bytes = b""
    value: bytes = b""
    mod_revision: int = 0


class RangeRequest(EtcdMessage, frozen=True):
    key: bytes
    range_end: bytes = b""
    limit: int = 0
    revision: int = 0
    keys_only: bool = False


class RangeAnswer(EtcdMessage, frozen=True):
    header: Header = Header()
    kvs: tuple[KeyValue, ...] = ()
    more: bool = False


# -- writing ----------------------------------------------------------------------------------------------------------


class Put(EtcdMessage, frozen=True):
    key: bytes
    value: bytes = b""
    lease: int = 0


class DeleteRange(EtcdMessage, frozen=True):
    key: bytes


class Compare(EtcdMessage, frozen=True, omit_defaults=False):
    """Every field is written: what gRPC takes for a target that is left out is another one."""

    key: bytes
    mod_revision: int
    target: str = "MOD"
    result: str = "EQUAL"


class Operation(EtcdMessage, frozen=True):
    request_range: RangeRequest | None = None
    request_put: Put | None = None
    request_delete_range: DeleteRange | None = None


class Txn(EtcdMessage, frozen=True):
    compare: tuple[Compare, ...] = ()
    success: tuple[Operation, ...] = ()
    failure: tuple[Operation, ...] = ()


class DeleteRangeAnswer(EtcdMessage, frozen=True):
    deleted: int = 0


class OperationAnswer(EtcdMessage, frozen=True):
    response_range: RangeAnswer | None = None
    response_delete_range: DeleteRangeAnswer | None = None


class TxnAnswer(EtcdMessage, frozen=True):
    header: Header = Header()
    succeeded: bool = False
    responses: tuple[OperationAnswer, ...] = ()


class PutAnswer(EtcdMessage, frozen=True):
    header: Header = Header()


# -- leases -----------------------------------------------------------------------------------------------------------


class LeaseGrant(EtcdMessage, frozen=True):
    TTL: int


class KeepAlive(EtcdMessage, frozen=True):
    ID: int


class LeaseAnswer(EtcdMessage, frozen=True):
    ID: int = 0
    TTL: int = 0


class KeepAliveAnswer(EtcdMessage, frozen=True):
    result: LeaseAnswer = LeaseAnswer()


class EmptyResponse(EtcdMessage, frozen=True):
    """An answer of which nothing is needed."""


# -- users ------------------------------------------------------------------------------------------------------------


class Authenticate(EtcdMessage, frozen=True):
    name: str
    password: str


class Token(EtcdMessage, frozen=True):
    token: str = ""


# -- watching ---------------------------------------------------------------------------------------------------------


class CreateWatch(EtcdMessage, frozen=True):
    key: bytes
    range_end: bytes
    start_revision: int


class Watching(EtcdMessage, frozen=True):
    create_request: CreateWatch


class WatchEvent(EtcdMessage, frozen=True):
    kv: KeyValue
    type: str = "PUT"


class WatchResult(EtcdMessage, frozen=True):
    header: Header = Header()
    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: int = 0
    events: tuple[WatchEvent, ...] = ()


class WatchLine(EtcdMessage, frozen=True):
    result: WatchResult | None = None
    error: Refusal | None = None
