"""From the broker's typed errors to Kafka's error codes: the one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from waystation import errors

if TYPE_CHECKING:
    from waystation.observe.meters import ProtocolMeter

_BY_CLASS: dict[type[BaseException], ErrorCode] = {
    errors.NotFound: ErrorCode.resource_not_found,
    errors.AlreadyExists: ErrorCode.topic_already_exists,
    errors.Invalid: ErrorCode.invalid_request,
    errors.TooLarge: ErrorCode.message_too_large,
    errors.Full: ErrorCode.policy_violation,
    errors.NotAllowed: ErrorCode.cluster_authorization_failed,
    errors.NotLeader: ErrorCode.not_leader_or_follower,
    errors.Conflict: ErrorCode.invalid_request,
    errors.Expired: ErrorCode.request_timed_out,
    errors.Unavailable: ErrorCode.coordinator_not_available,
    errors.Corrupt: ErrorCode.corrupt_message,
    errors.StorageFailed: ErrorCode.kafka_storage_error,
    errors.UnknownTopic: ErrorCode.unknown_topic_or_partition,
    errors.UnknownTopicId: ErrorCode.unknown_topic_id,
    errors.InvalidTopicName: ErrorCode.invalid_topic_exception,
    errors.InvalidPartitions: ErrorCode.invalid_partitions,
    errors.InvalidSetting: ErrorCode.invalid_config,
    errors.OffsetOutOfRange: ErrorCode.offset_out_of_range,
    errors.UnsupportedFormat: ErrorCode.unsupported_for_message_format,
    errors.InvalidRecord: ErrorCode.invalid_record,
    errors.InvalidTimestamp: ErrorCode.invalid_timestamp,
    errors.OutOfOrderSequence: ErrorCode.out_of_order_sequence_number,
    errors.DuplicateSequence: ErrorCode.duplicate_sequence_number,
    errors.UnknownProducer: ErrorCode.unknown_producer_id,
    errors.ProducerEpochStale: ErrorCode.invalid_producer_epoch,
    errors.FencedLeaderEpoch: ErrorCode.fenced_leader_epoch,
    errors.ResourceAlarm: ErrorCode.not_enough_replicas,  # of those that mean "later", the one that all producers retry
    errors.NotEnoughReplicas: ErrorCode.not_enough_replicas,
    errors.OffsetNotAvailable: ErrorCode.offset_not_available,
    errors.UnknownLeaderEpoch: ErrorCode.unknown_leader_epoch,
}

NOT_AUTHORIZED: dict[str, ErrorCode] = {
    "topic": ErrorCode.topic_authorization_failed,
    "group": ErrorCode.group_authorization_failed,
    "transactional-id": ErrorCode.transactional_id_authorization_failed,
    "cluster": ErrorCode.cluster_authorization_failed,
}
"""Of who has no permission, by the kind of resource; what Kafka does not know is the cluster's."""


def code_of(error: BaseException | None) -> ErrorCode:
    """The Kafka code for an error: what its class says itself, else the nearest class in the table."""
    if error is None:
        return ErrorCode.none
    named = getattr(error, "kafka_code", None)
    if named is not None:
        return ErrorCode[str(named).lower()]
    if isinstance(error, errors.NotAllowed) and error.resource in NOT_AUTHORIZED:
        return NOT_AUTHORIZED[error.resource]
    for cls in type(error).__mro__:
        code = _BY_CLASS.get(cls)
        if code is not None:
            return code
    return ErrorCode.unknown_server_error


def refused(meter: ProtocolMeter, error: BaseException) -> ErrorCode:
    """The same, for an error that a client is answered with: it is counted."""
    code = code_of(error)
    meter.failed(code.name)
    return code
