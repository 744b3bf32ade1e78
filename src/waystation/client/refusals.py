"""From Kafka's error codes to our typed errors: what a server refused, to what, and what to do next.

The inverse of the Kafka door's table. Where only the server knows what was wrong its own words are passed on.
Everything in `client/` raises through `refusal`, so that callers see one vocabulary (`errors.py`).
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from waystation import errors


class Refused(errors.WaystationError):
    """The server answered with an error code that has no class of its own here."""


class Outdated(errors.Conflict):
    """The group moved on without this member (fenced, expired or unknown): it has to join again."""


_Row = tuple[type[errors.WaystationError], str]

_TABLE: dict[str, _Row] = {
    "unknown_topic_or_partition": (
        errors.UnknownTopic,
        "there is no {what} on this server; `waystation topics list` shows what there is",
    ),
    "unknown_topic_id": (errors.UnknownTopicId, "{what} was deleted (or created anew) meanwhile; try again"),
    "topic_already_exists": (errors.AlreadyExists, "{what} exists already; `waystation topics alter` changes it"),
    "invalid_topic_exception": (
        errors.InvalidTopicName,
        "{what} has an invalid name: use up to 249 letters, digits, '.', '_' and '-'",
    ),
    "invalid_partitions": (
        errors.InvalidPartitions,
        "{what} cannot have that number of partitions: it has to be positive, and can only grow",
    ),
    "policy_violation": (errors.Full, "{what}: a limit of the server was reached"),
    "invalid_config": (errors.InvalidSetting, "{what}: a setting was refused"),
    "offset_out_of_range": (
        errors.OffsetOutOfRange,
        "{what} does not have that offset; `waystation topics describe` shows which it has",
    ),
    "message_too_large": (
        errors.TooLarge,
        "a message for {what} is larger than its max.message.bytes; `waystation topics alter` can raise it",
    ),
    "record_list_too_large": (errors.TooLarge, "a batch for {what} is larger than a segment of its log"),
    "corrupt_message": (
        errors.CorruptBatch,
        "{what} has a batch whose checksum is wrong; the server's log names file and position, and"
        " `waystation log skip-corrupt` lets readers pass it",
    ),
    "kafka_storage_error": (
        errors.StorageFailed,
        "the server's disk refused a write for {what}; see its log, then try again",
    ),
    "group_id_not_found": (errors.NotFound, "there is no {what}; `waystation groups list` shows what there is"),
    "non_empty_group": (errors.Conflict, "{what} has members; stop them first"),
    "group_subscribed_to_topic": (errors.Conflict, "{what} is still subscribed to that topic; stop its members first"),
    "invalid_group_id": (errors.Invalid, "{what} has an invalid name"),
    "group_max_size_reached": (errors.Full, "{what} has as many members as the server allows (group.max.size)"),
    "unknown_member_id": (Outdated, "{what} does not know this member any more"),
    "fenced_member_epoch": (Outdated, "{what} fenced this member"),
    "stale_member_epoch": (Outdated, "{what} moved to a newer epoch"),
    "illegal_generation": (Outdated, "{what} moved to a newer generation"),
    "rebalance_in_progress": (Outdated, "{what} is rebalancing"),
    "unsupported_version": (errors.Invalid, "the server does not speak the version of the protocol that {what} needs"),
    "topic_authorization_failed": (errors.NotAllowed, "you may not do this with {what}"),
    "group_authorization_failed": (errors.NotAllowed, "you may not do this with {what}"),
    "cluster_authorization_failed": (errors.NotAllowed, "you may not do this on this server ({what})"),
    "topic_deletion_disabled": (errors.NotAllowed, "{what} stays: the server has delete.topic.enable=false"),
    "coordinator_not_available": (errors.Unavailable, "the server is not ready for {what} yet; try again"),
    "coordinator_load_in_progress": (errors.Unavailable, "the server is still loading {what}; try again"),
    "leader_not_available": (errors.Unavailable, "{what} has no leader yet; try again"),
    "request_timed_out": (errors.Unavailable, "the server did not finish in time with {what}; try again"),
    "not_coordinator": (errors.NotLeader, "another broker is the coordinator of {what}; use --server with its address"),
    "not_leader_or_follower": (errors.NotLeader, "another broker leads {what}; use --server with its address"),
}

RETRIABLE = frozenset({"coordinator_not_available", "coordinator_load_in_progress", "leader_not_available"})
"""A server that has just started, or just created the thing, answers these for a moment."""


_SERVER_KNOWS = frozenset({"invalid_config", "invalid_partitions", "invalid_topic_exception", "policy_violation"})
"""What was wrong depends on the request: the server's words say more than a general sentence."""


def refusal(code: ErrorCode, what: str, message: str | None = None) -> errors.WaystationError:
    """The error to raise for a code other than `none`. `what` is a noun with a name: "topic 'orders'"."""
    row = _TABLE.get(code.name)
    if row is None:
        said = f": {message}" if message else ""
        return Refused(f"the server refused {what} with {code.name.upper()}{said}")
    cls, sentence = row
    return cls(f"{what}: {message}" if message and code.name in _SERVER_KNOWS else sentence.format(what=what))


def check(code: ErrorCode, what: str, message: str | None = None) -> None:
    """Raises unless the code is `none`."""
    if code is not ErrorCode.none:
        raise refusal(code, what, message)
