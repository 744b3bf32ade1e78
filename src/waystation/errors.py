"""Every error a caller can meet, typed once; each door translates these to its own protocol's codes.

The first group is the vocabulary that all doors share. The second group names situations precisely where a protocol
tells them apart (Kafka has a code for each); every one of them *is* one of the first group, so a door that knows only
the vocabulary still answers sensibly. An error's text says what happened, to what, and what to do next.
"""

from __future__ import annotations

from typing import ClassVar


class WaystationError(Exception):
    """Base of everything raised on purpose. `kafka_code` names a Kafka error where the door's mapping is too coarse."""

    kafka_code: ClassVar[str | None] = None


class NotFound(WaystationError):
    """The named thing does not exist."""


class AlreadyExists(WaystationError):
    """The name is taken."""


class Invalid(WaystationError):
    """The request is malformed or asks for something that makes no sense; nothing was changed."""


class TooLarge(WaystationError):
    """A size limit was passed; nothing was stored."""


class Full(WaystationError):
    """A bound set by the user was reached; nothing was stored."""


class NotAllowed(WaystationError):
    """The caller may not do this."""


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


# -- precise situations ------------------------------------------------------------------------------------------


class UnknownTopic(NotFound):
    """No such topic or partition."""


class UnknownTopicId(NotFound):
    """No topic has this id."""


class InvalidTopicName(Invalid):
    """The name is empty, too long, or has characters that a topic name cannot have."""


class InvalidPartitions(Invalid):
    """A partition count that is not positive, or would shrink a topic."""


class InvalidSetting(Invalid):
    """A setting that does not exist or a value that it cannot take."""


class OffsetOutOfRange(Invalid):
    """The offset is below the log's start or above its end."""


class UnsupportedFormat(Invalid):
    """A message format other than record batch v2."""


class CorruptBatch(Corrupt):
    """A record batch's checksum or structure is wrong."""


class InvalidRecord(Invalid):
    """The batch is intact but breaks a rule of the topic (for instance: no key on a compacted topic)."""


class InvalidTimestamp(Invalid):
    """The record's timestamp is further from the broker's clock than the topic allows."""


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


class UnknownLeaderEpoch(Unavailable):
    """The client's leader epoch is newer than the broker's."""


class DataInUse(Conflict):
    """Another broker process has this data folder."""


class NewerFormat(Conflict):
    """The data folder was written by a newer version; it is left untouched."""
