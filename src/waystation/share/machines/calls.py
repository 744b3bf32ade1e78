"""What protocols say to share groups and hear from them: plain frozen data, no behaviour."""

from __future__ import annotations

import msgspec

from waystation.errors import WaystationError
from waystation.groups.machines.calls import TopicPartition


class ShareBeat(msgspec.Struct, frozen=True, kw_only=True):
    """One heartbeat of a Kafka share consumer. None means: as in my last one."""

    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] | None = None


class ShareBeatAnswer(msgspec.Struct, frozen=True):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: frozenset[TopicPartition] | None
    """None: nothing new."""


class ShareMemberView(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    """Names and patterns, as the member gave them."""
    assignment: frozenset[TopicPartition]


class ShareGroupView(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str
    error: WaystationError | None
    state: str = ""
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[ShareMemberView, ...] = ()


class ShareOffset(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group has come in a partition."""

    topic: str
    partition: int
    start: int = -1
    """-1: the group has no position there."""
    leader_epoch: int = 0
    lag: int = -1
    error: WaystationError | None = None
