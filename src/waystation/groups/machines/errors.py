"""What can go wrong in a group, named by the situation.

Each class is one of the general errors, so that any protocol can answer it, and names the Kafka code that group clients
act upon: a client rejoins on one, retries on another and gives up on a third.
"""

from __future__ import annotations

from typing import ClassVar

from waystation.errors import Conflict, Full, Invalid, NotFound, NotLeader, TooLarge, Unavailable


class UnknownMember(NotFound):
    """The member is not, or no longer, in the group; it has to join again with an empty member id."""

    kafka_code: ClassVar[str | None] = "UNKNOWN_MEMBER_ID"


class NotCoordinator(NotLeader):
    """Another broker is the group's coordinator; ask for it again (FindCoordinator)."""

    kafka_code: ClassVar[str | None] = "NOT_COORDINATOR"


class UnknownGroup(NotFound):
    """There is no such group."""

    kafka_code: ClassVar[str | None] = "GROUP_ID_NOT_FOUND"


class IllegalGeneration(Conflict):
    """The member speaks of another generation than the group's present one; it has to rejoin."""

    kafka_code: ClassVar[str | None] = "ILLEGAL_GENERATION"


class RebalanceInProgress(Conflict):
    """The group is forming its next generation; the member has to rejoin."""

    kafka_code: ClassVar[str | None] = "REBALANCE_IN_PROGRESS"


class InconsistentProtocol(Conflict):
    """The member's protocol does not fit the group's (another type, or no assignor in common)."""

    kafka_code: ClassVar[str | None] = "INCONSISTENT_GROUP_PROTOCOL"


class FencedInstance(Conflict):
    """Another process has joined with the same `group.instance.id`; this one must stop."""

    kafka_code: ClassVar[str | None] = "FENCED_INSTANCE_ID"


class UnreleasedInstance(Conflict):
    """The `group.instance.id` is still in use; the new process may retry when the old one left or timed out."""

    kafka_code: ClassVar[str | None] = "UNRELEASED_INSTANCE_ID"


class FencedMemberEpoch(Conflict):
    """The member's epoch is not one that the group gave it; it must drop its partitions and rejoin with epoch 0."""

    kafka_code: ClassVar[str | None] = "FENCED_MEMBER_EPOCH"


class StaleMemberEpoch(Conflict):
    """The request carries an epoch that the member has left behind; it may retry after its next heartbeat."""

    kafka_code: ClassVar[str | None] = "STALE_MEMBER_EPOCH"


class NonEmptyGroup(Conflict):
    """The group has members; stop its consumers first."""

    kafka_code: ClassVar[str | None] = "NON_EMPTY_GROUP"


class GroupSubscribed(Conflict):
    """A member of the group is subscribed to the topic, so its offsets cannot be deleted."""

    kafka_code: ClassVar[str | None] = "GROUP_SUBSCRIBED_TO_TOPIC"


class MemberIdRequired(Conflict):
    """Not a fault: the client must join again with the member id given here (KIP-394)."""

    kafka_code: ClassVar[str | None] = "MEMBER_ID_REQUIRED"

    def __init__(self, member_id: str) -> None:
        super().__init__(f"join again with the member id {member_id!r}")
        self.member_id = member_id


class InvalidGroupId(Invalid):
    """The group id is empty where it may not be, or too long."""

    kafka_code: ClassVar[str | None] = "INVALID_GROUP_ID"


class InvalidSessionTimeout(Invalid):
    """The session timeout is outside `group.min.session.timeout.ms` … `group.max.session.timeout.ms`."""

    kafka_code: ClassVar[str | None] = "INVALID_SESSION_TIMEOUT"


class InvalidGroupRequest(Invalid):
    """A field of the request is missing, malformed or over its limit."""

    kafka_code: ClassVar[str | None] = "INVALID_REQUEST"


class UnsupportedAssignor(Invalid):
    """The member asks for a server-side assignor that this broker does not have."""

    kafka_code: ClassVar[str | None] = "UNSUPPORTED_ASSIGNOR"


class GroupFull(Full):
    """The group has `group.max.size` members."""

    kafka_code: ClassVar[str | None] = "GROUP_MAX_SIZE_REACHED"


class TooManyGroups(Full):
    """The broker holds as many groups as it may; delete some, or raise the limit."""

    kafka_code: ClassVar[str | None] = "POLICY_VIOLATION"


class OffsetMetadataTooLarge(TooLarge):
    """The text committed with an offset is longer than `offset.metadata.max.bytes`."""

    kafka_code: ClassVar[str | None] = "OFFSET_METADATA_TOO_LARGE"


class UnstableOffset(Unavailable):
    """A transaction that has not ended yet committed this offset, or not all replicas have it; ask again shortly."""

    kafka_code: ClassVar[str | None] = "UNSTABLE_OFFSET_COMMIT"


class CoordinatorUnavailable(Unavailable):
    """The group cannot be served now: the broker is stopping, the group was just dropped, or its log cannot be written.

    Clients look for the coordinator again and retry.
    """

    kafka_code: ClassVar[str | None] = "COORDINATOR_NOT_AVAILABLE"
