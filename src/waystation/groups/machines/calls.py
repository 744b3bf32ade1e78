"""What protocols say to the coordinator and hear from it: plain frozen data, no behaviour.

Errors that concern the whole request are raised; where a request has parts that fail one by one, each part's result
carries its `error` (None when it went well).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol
from uuid import UUID

import msgspec

from waystation.errors import WaystationError

TopicPartition = tuple[UUID, int]
"""A partition as KIP-848 names it. The id, not the name: a topic re-created under an old name is another topic."""


class TopicView(Protocol):
    """The topics, as far as groups need to know them; the broker implements it."""

    def partitions_of(self, topic: str) -> int | None:
        """How many partitions; None where there is no such topic."""

    def id_of(self, topic: str) -> UUID | None: ...

    def name_of(self, topic_id: UUID) -> str | None: ...

    def names(self) -> Iterable[str]:
        """All but the internal ones."""

    def meant_by(self, group_id: str) -> Iterable[str]:
        """Those of them that a pattern of this group can mean: in a namespace, the topics of that one."""

    def subscribe_changes(self, callback: Callable[[], None]) -> None:
        """`callback` is called after any topic was created, deleted or grown."""


# -- the classic protocol ----------------------------------------------------------------------------------------


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str
    member_id: str
    """Empty: not a member yet."""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """(name, metadata), the preferred one first; the metadata is the clients' own affair."""
    needs_member_id: bool = True
    """The client can be asked to join again with an id (KIP-394; JoinGroup 4 and up)."""
    can_skip_assignment: bool = True
    """The client understands a leader that need not assign (KIP-814; JoinGroup 9 and up)."""


class JoinedMember(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    generation_id: int
    protocol_type: str
    protocol_name: str
    leader: str
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()
    """For the leader, who assigns; empty for everybody else."""


class SyncRequest(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str
    member_id: str
    generation_id: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class SyncAnswer(msgspec.Struct, frozen=True):
    protocol_type: str
    protocol_name: str
    assignment: bytes


class LeavingMember(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None = None


class LeaveResult(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    error: WaystationError | None


# -- the consumer protocol (KIP-848) -----------------------------------------------------------------------------


class ConsumerBeat(msgspec.Struct, frozen=True, kw_only=True):
    """One heartbeat. None (or -1) means: as in my last one."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: frozenset[TopicPartition] | None = None


class ConsumerBeatAnswer(msgspec.Struct, frozen=True):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: frozenset[TopicPartition] | None
    """None: nothing new."""


class ConsumerMemberView(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    pattern: str | None
    assignment: frozenset[TopicPartition]
    target: frozenset[TopicPartition]
    classic: bool = False
    """It speaks the classic protocol still, or again."""


class ConsumerGroupView(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str
    error: WaystationError | None
    state: str = ""
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[ConsumerMemberView, ...] = ()


# -- offsets -----------------------------------------------------------------------------------------------------


class OffsetToCommit(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class OffsetResult(msgspec.Struct, frozen=True):
    """What became of one partition of a commit or a deletion."""

    topic: str
    partition: int
    error: WaystationError | None


class FetchedOffset(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int = -1
    """-1: none committed."""
    leader_epoch: int = -1
    metadata: str = ""
    error: WaystationError | None = None


# -- administration ----------------------------------------------------------------------------------------------


class GroupListing(msgspec.Struct, frozen=True):
    group_id: str
    protocol_type: str
    state: str
    kind: str
    """`Classic` or `Consumer`."""


class GroupSummary(msgspec.Struct, frozen=True):
    kind: str
    """`classic` or `consumer`."""
    state: str
    members: int
    subscribed: frozenset[str]
    """The topics that members read, as far as that can be known."""
    protocol_type: str = "consumer"
    """What its members are, as they say themselves: consumers, or Connect's workers, or nothing yet."""


class MemberView(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str
    error: WaystationError | None
    state: str = "Dead"
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[MemberView, ...] = ()
    generation: int = 0


class DeleteResult(msgspec.Struct, frozen=True):
    group_id: str
    error: WaystationError | None
