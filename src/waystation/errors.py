"""Every error a caller can meet, typed once; each protocol translates these to its own codes.

The first group is the vocabulary that all protocols share. The second group names situations precisely where a protocol
tells them apart (Kafka has a code for each); every one of them *is* one of the first group, so a protocol that knows
only the vocabulary still answers sensibly. An error's text says what happened, to what, and what to do next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import ClassVar, TypeVar


class WaystationError(Exception):
    """Base of everything raised on purpose. `kafka_code` names a Kafka error where its mapping is too coarse."""

    kafka_code: ClassVar[str | None] = None
    stored: int | None = None
    """Of `put_many`, `publish_many` and `send_ordered`: how many of the given messages are stored, from the first on.
    None: not known, or nothing was to be stored."""


class NotFound(WaystationError):
    """The named thing does not exist. `kind`, `name`: what it is, and its full name, where others of the kind may be
    called nearly so: which of them a client is told is for `Access.told`, which knows what it may see."""

    def __init__(self, text: str = "", kind: str = "", name: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.name = name


class AlreadyExists(WaystationError):
    """The name is taken."""


class Invalid(WaystationError):
    """The request is malformed or asks for something that makes no sense; nothing was changed."""


class TooLarge(WaystationError):
    """A size limit was passed; nothing was stored."""


class Full(WaystationError):
    """A bound set by the user was reached; nothing was stored."""


class NotAllowed(WaystationError):
    """The caller may not do this. `resource`: the kind of thing for which it has no permission; None: it is refused to
    everybody."""

    def __init__(self, text: str = "", resource: str | None = None) -> None:
        super().__init__(text)
        self.resource = resource


class NotAuthenticated(NotAllowed):
    """The client has not shown who it is, or what it has shown was not right."""


class NotLeader(WaystationError):
    """Another broker owns this; refresh metadata and ask there."""


class Conflict(WaystationError):
    """The request is well formed but contradicts the present state; nothing was changed."""


class Expired(WaystationError):
    """It was valid once, but its time has passed."""


class Unavailable(WaystationError):
    """Temporarily not possible; try again."""


class Corrupt(WaystationError):
    """Stored or received bytes do not match their checksum."""


class StorageFailed(WaystationError):
    """The disk refused (full, broken); nothing was acknowledged."""


E = TypeVar("E", bound=WaystationError)


def without_frames(error: E) -> E:
    """The error as a value, to be told or kept: as it was caught, it holds on to everything that its callers had in
    hand, messages among them; and in a circle, where one of them keeps the error."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


# -- precise situations ------------------------------------------------------------------------------------------


class UnknownTopic(NotFound):
    """No such topic or partition."""


class UnknownTopicId(NotFound):
    """No topic has this id."""


class InvalidTopicName(Invalid):
    """The name is empty, too long, or has characters that a topic name cannot have."""


class DeletionDisabled(NotAllowed):
    """The broker's `delete.topic.enable` is off."""

    kafka_code: ClassVar[str | None] = "TOPIC_DELETION_DISABLED"


class InvalidPartitions(Invalid):
    """A partition count that is not positive, or would shrink a topic."""


class InvalidReplicationFactor(Invalid):
    """More replicas than brokers, or none."""

    kafka_code: ClassVar[str | None] = "INVALID_REPLICATION_FACTOR"


class InvalidReplicaAssignment(Invalid):
    """A partition was given to brokers that do not exist, to none, or twice to the same."""

    kafka_code: ClassVar[str | None] = "INVALID_REPLICA_ASSIGNMENT"


class InvalidSetting(Invalid):
    """A setting that does not exist or a value that it cannot take."""


class InvalidPattern(Invalid):
    """A pattern that does not compile, is too large, or would take too long to match."""

    kafka_code: ClassVar[str | None] = "INVALID_REGULAR_EXPRESSION"


class FilterSyntax(Invalid):
    """A filter expression that does not compile. `position` is the character, from 0; -1 where it is not known."""

    def __init__(self, text: str, position: int = -1) -> None:
        super().__init__(text)
        self.position = position


class OffsetOutOfRange(Invalid):
    """The offset is below the log's start or above its end."""


class UnsupportedFormat(Invalid):
    """A message format other than record batch v2."""


class CorruptBatch(Corrupt):
    """A record batch's checksum or structure is wrong."""


class InvalidRecord(Invalid):
    """The batch is intact but breaks a rule of the topic (for instance: no key on a compacted topic)."""

    records: Sequence[tuple[int, str]] = ()
    """Which records of the batch, counted from 0, and why; empty where it is the whole batch, or not known."""


class InvalidTimestamp(Invalid):
    """The record's timestamp is further from the broker's clock than the topic allows."""

    records: Sequence[tuple[int, str]] = ()
    """As those of InvalidRecord."""


class OutOfOrderSequence(Conflict):
    """An idempotent producer skipped a sequence number: something before this batch was lost."""


class DuplicateSequence(Conflict):
    """An idempotent producer sent a batch that was stored so long ago that its offset is no longer known."""


class UnknownProducer(Conflict):
    """The broker holds no state for this producer id."""


class ProducerEpochStale(Conflict):
    """The producer was fenced by a newer one with the same transactional id."""


class FencedLeaderEpoch(Conflict):
    """The client's leader epoch is older than the broker's."""


class UnexpectedOffset(Conflict):
    """A leader's batches do not begin where the follower's log ends; ask for those from its end on."""


class ResourceAlarm(Unavailable):
    """Publishers have to wait: the disk, the memory or the namespace's share is nearly full. Nothing was stored."""


class QuotaExceeded(Unavailable):
    """Somebody is faster than a quota allows; nothing was changed. `retry_after_s`: when to try again."""

    kafka_code: ClassVar[str | None] = "THROTTLING_QUOTA_EXCEEDED"

    def __init__(self, text: str = "", retry_after_s: float = 1.0) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class NotEnoughReplicas(Unavailable):
    """Fewer replicas are in sync than the topic's `min.insync.replicas` asks for. Nothing was stored."""


class OffsetNotAvailable(Unavailable):
    """A new leader does not know yet up to where readers have seen the partition; ask again."""


class UnknownLeaderEpoch(Unavailable):
    """The client's leader epoch is newer than the broker's."""


class RevisionConflict(Conflict):
    """Somebody else changed the same entry of the catalog first; read it again."""


class StoreUnavailable(Unavailable):
    """The cluster's store gives no answer. A change that was asked for may have been made: look, then try again."""


class WriteInDoubt(StorageFailed):
    """The disk failed in the middle: the change is not in force, but may be after a restart."""


class WrongCluster(Conflict):
    """A data folder belongs to another cluster. It was left untouched."""


class NodeIdTaken(Conflict):
    """Another process runs under the same node id."""

    kafka_code: ClassVar[str | None] = "DUPLICATE_BROKER_REGISTRATION"


class NoSuchNode(NotFound):
    """No node of the cluster has this id."""

    kafka_code: ClassVar[str | None] = "BROKER_ID_NOT_REGISTERED"


class ElectionNotNeeded(Conflict):
    """The partition has the leader that the election would give it, or can have one that lacks nothing."""

    kafka_code: ClassVar[str | None] = "ELECTION_NOT_NEEDED"


class NoEligibleLeader(Unavailable):
    """The replica that is to lead cannot: it is not alive, or not in sync."""

    kafka_code: ClassVar[str | None] = "ELIGIBLE_LEADERS_NOT_AVAILABLE"


class NoPreferredLeader(Unavailable):
    """The replica that the partition prefers as its leader is not alive, or has not caught up."""

    kafka_code: ClassVar[str | None] = "PREFERRED_LEADER_NOT_AVAILABLE"


class NoReassignment(Invalid):
    """Nothing is being moved that could be cancelled."""

    kafka_code: ClassVar[str | None] = "NO_REASSIGNMENT_IN_PROGRESS"


class DataInUse(Conflict):
    """Another broker process has this data folder."""


class WrongKey(Conflict):
    """The master key does not open the data folder, which is encrypted; nothing was touched."""


class NewerFormat(Conflict):
    """The data folder was written by a newer version; it is left untouched."""


# -- what a client meets on its own side -------------------------------------------------------------------------


class ConnectionLost(Unavailable):
    """The broker cannot be reached, or went away before it answered: whether it did what was asked is not known."""


class RequestTimeout(Expired):
    """No answer came in time: the request may have been carried out, or not."""


class Empty(Expired):
    """No message came in the time that the caller was ready to wait."""


class RequestFailed(WaystationError):
    """Whoever responds to a request failed at it; the text is what they said."""


# -- what errors say ---------------------------------------------------------------------------------------------

_MOST_CANDIDATES = 2_000
_MOST_ASKED = 40
_MOST_COMPARED = 20
_LONGEST_CANDIDATE = 100


def near_matches(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'orders'?`, to be put behind a text that says what is not there; empty if nothing is near."""
    return did_you_mean(near_names(name, known))


def did_you_mean(names: Sequence[str]) -> str:
    return f"; did you mean {' or '.join(map(repr, names))}?" if names else ""


def near_names(name: str, known: Iterable[str], seen: Callable[[str], bool] | None = None) -> list[str]:
    """The names that are most like `name`, the nearest first: three at most. `seen`: whether one may be told at all.

    This runs on the loop, and whoever mistypes can do it often. So it looks at the first few thousand names only, and
    takes a close look at no more than the few of them that begin and end most like `name`, of a few more that it asks
    about: 30 ms at worst, 5 as a rule.
    """
    # Imported here because only those who make mistakes need them.
    from difflib import get_close_matches
    from heapq import nlargest

    if len(name) > _LONGEST_CANDIDATE:
        return []
    wanted = name.lower()
    folded: dict[str, str] = {}
    for candidate in islice(known, _MOST_CANDIDATES):
        if candidate and abs(len(candidate) - len(name)) <= 1 + len(name) // 2:
            folded.setdefault(candidate.lower(), candidate)
    likely = nlargest(_MOST_ASKED, folded, key=lambda other: _ends_in_common(wanted, other))
    told = likely if seen is None else (one for one in likely if seen(folded[one]))
    return [folded[match] for match in get_close_matches(wanted, list(islice(told, _MOST_COMPARED)), n=3, cutoff=0.7)]


def nearest_field(name: str, known: Iterable[str]) -> str:
    """`; did you mean ttl_ms?`, to be put behind a text that says that there is no such field; empty if nothing is
    near. For few known names, all of which are compared."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _ends_in_common(one: str, other: str) -> int:
    """How many characters are the same from the front and from the back."""
    shorter = min(len(one), len(other))
    front = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), shorter)
    back = next((i for i, (a, b) in enumerate(zip(one[::-1], other[::-1], strict=False)) if a != b), shorter)
    return front + back
