"""Creating, growing, emptying and deleting topics, and where their partitions live.

Invariant: an item of a request succeeds or fails on its own, and what is answered as done is durable; what is refused
has changed nothing. The rules of topics are the broker's (`topics/topics.py`); here are only those that exist because
of the protocol: duplicates within a request, replica counts and assignments. Called through the registry only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from kio.schema.errors import ErrorCode

from waystation.broker.access.types import WantedReplicas
from waystation.errors import (
    DeletionDisabled,
    Invalid,
    InvalidReplicaAssignment,
    InvalidSetting,
    NotAllowed,
    WaystationError,
)
from waystation.protocols.kafka.admin.config_entries import topic_entries
from waystation.protocols.kafka.requests.registry import Call

if TYPE_CHECKING:
    from waystation.broker.access.types import Topic

DEFAULT = -1
"""Partitions or replicas: as the broker's settings say."""

NO_LOW_WATERMARK = -1

MOVES_AT_ONCE = 16
"""Of DeleteRecords: enough to keep the disk busy, few enough that a request of millions costs no memory."""


class NotForCompacted(NotAllowed):
    """Records of a topic that is only compacted are not deleted by offset."""

    kafka_code: ClassVar[str | None] = "POLICY_VIOLATION"


class NotForInternal(Invalid):
    """The topic belongs to the broker."""


class RecordsOfInternal(Invalid):
    """The topic belongs to the broker; DeleteRecords has a code of its own for it."""

    kafka_code: ClassVar[str | None] = "INVALID_TOPIC_EXCEPTION"


def _repeated(keys: Iterable[Any]) -> set[Any]:
    return {key for key, count in Counter(keys).items() if count > 1}


def _not_internal(topic: Topic, what: str) -> Topic:
    if topic.internal:
        raise NotForInternal(f"topic {topic.name!r} belongs to the broker and cannot be {what}")
    return topic


# -- CreateTopics ----------------------------------------------------------------------------------------------------


async def create_topics(call: Call) -> object:
    request = call.request
    repeated = _repeated(wanted.name for wanted in request.topics)
    results = []
    for wanted in {wanted.name: wanted for wanted in request.topics}.values():
        try:
            if wanted.name in repeated:
                raise Invalid(f"topic {wanted.name!r} stands in the request more than once")
            results.append(await _create(call, wanted))
        except WaystationError as error:
            results.append(_not_created(call, wanted.name, error))
    return call.make("CreateTopicsResponse", throttle_time=0, topics=tuple(results))


async def _create(call: Call, wanted: Any) -> object:
    partitions, replicas = _partition_count(call, wanted), _replicas(wanted)
    overrides = _overrides(wanted)
    topic_id = None
    if call.request.validate_only:
        factor = call.access.topics.check_new(wanted.name, partitions, overrides, replicas)
    else:
        topic_id = (await call.access.create_topic(wanted.name, partitions, overrides, replicas)).id
        placed = call.access.view.placed(topic_id, 0)
        factor = DEFAULT if placed is None else len(placed.replicas)
    make = call.make
    return make(
        "CreatableTopicResult",
        name=wanted.name,
        topic_id=topic_id,
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=partitions,
        replication_factor=factor,
        configs=tuple(
            make(
                "CreatableTopicConfigs",
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=False,
            )
            for entry in topic_entries(overrides, call.broker.settings, factor)
        ),
    )


def _not_created(call: Call, name: str, error: WaystationError) -> object:
    return call.make("CreatableTopicResult", name=name, error_code=call.code(error), error_message=str(error))


def _partition_count(call: Call, wanted: Any) -> int:
    """The number asked for, explicitly, by default or by a manual assignment."""
    if wanted.assignments:
        if wanted.num_partitions != DEFAULT or wanted.replication_factor != DEFAULT:
            raise Invalid(f"topic {wanted.name!r}: with assignments, partitions and replicas must both be {DEFAULT}")
        indexes = sorted(assignment.partition_index for assignment in wanted.assignments)
        if indexes != list(range(len(indexes))):
            raise InvalidReplicaAssignment(
                f"topic {wanted.name!r}: assignments must cover partitions 0, 1, 2, … once each"
            )
        return len(indexes)
    if wanted.num_partitions == DEFAULT:
        return call.broker.settings.integer("num.partitions")
    return int(wanted.num_partitions)


def _replicas(wanted: Any) -> WantedReplicas:
    """By number, by an assignment in the order of the partitions, or neither."""
    if wanted.assignments:
        ordered = sorted(wanted.assignments, key=lambda assignment: int(assignment.partition_index))
        return WantedReplicas(assignment=[assignment.broker_ids for assignment in ordered])
    factor = int(wanted.replication_factor)
    return WantedReplicas(factor=None if factor == DEFAULT else factor)


def _overrides(wanted: Any) -> dict[str, str]:
    overrides: dict[str, str] = {}
    for config in wanted.configs:
        if config.value is None:
            raise InvalidSetting(f"topic {wanted.name!r}: setting {config.name!r} has no value")
        overrides[config.name] = config.value
    return overrides


# -- DeleteTopics ----------------------------------------------------------------------------------------------------


async def delete_topics(call: Call) -> object:
    if call.version >= 6:
        asked = [(entry.name, entry.topic_id) for entry in call.request.topics]
    else:
        asked = [(name, None) for name in call.request.topic_names]
    repeated = _repeated(asked)
    results = [
        await _delete(call, name, topic_id, (name, topic_id) in repeated) for name, topic_id in dict.fromkeys(asked)
    ]
    return call.make("DeleteTopicsResponse", throttle_time=0, responses=tuple(results))


async def _delete(call: Call, name: str | None, topic_id: Any, repeated: bool) -> object:
    error: WaystationError | None = None
    try:
        if repeated:
            raise Invalid("the topic stands in the request more than once")
        topic = _to_delete(call, name, topic_id)
        name, topic_id = topic.name, topic.id
        await call.access.delete_topic(name)
    except WaystationError as caught:
        error = caught
    code, message = call.code(error), None if error is None else str(error)
    if isinstance(error, DeletionDisabled) and call.version < 3:
        code = ErrorCode.invalid_request  # what there was before v3 had the precise code
    return call.make("DeletableTopicResult", name=name, topic_id=topic_id, error_code=code, error_message=message)


def _to_delete(call: Call, name: str | None, topic_id: Any) -> Topic:
    if (name is None) == (topic_id is None):
        raise Invalid("a topic is deleted by its name or by its id: give one of them")
    topic = call.access.topics.get(topic_id if name is None else name)
    return _not_internal(topic, "deleted")


# -- CreatePartitions ------------------------------------------------------------------------------------------------


async def create_partitions(call: Call) -> object:
    request = call.request
    repeated = _repeated(wanted.name for wanted in request.topics)
    results = []
    for wanted in {wanted.name: wanted for wanted in request.topics}.values():
        error: WaystationError | None = None
        try:
            if wanted.name in repeated:
                raise Invalid(f"topic {wanted.name!r} stands in the request more than once")
            _not_internal(call.access.topics.get(wanted.name), "given more partitions")
            assigned = wanted.assignments
            assignment = None if assigned is None else [one.broker_ids for one in assigned]
            if request.validate_only:
                call.access.topics.check_growth(wanted.name, wanted.count, assignment)
            else:
                await call.access.topics.add_partitions(wanted.name, wanted.count, assignment)
        except WaystationError as caught:
            error = caught
        message = None if error is None else str(error)
        results.append(
            call.make(
                "CreatePartitionsTopicResult", name=wanted.name, error_code=call.code(error), error_message=message
            )
        )
    return call.make("CreatePartitionsResponse", throttle_time=0, results=tuple(results))


# -- DeleteRecords ---------------------------------------------------------------------------------------------------


async def delete_records(call: Call) -> object:
    """Moves the start of partitions. Each move waits for the disk, so a few are made side by side."""
    make = call.make
    topics = []
    for asked in call.request.topics:
        results: list[object] = []
        for first in range(0, len(asked.partitions), MOVES_AT_ONCE):
            some = asked.partitions[first : first + MOVES_AT_ONCE]
            results += await asyncio.gather(*(_delete_records(call, asked.name, entry) for entry in some))
        topics.append(make("DeleteRecordsTopicResult", name=asked.name, partitions=tuple(results)))
    return make("DeleteRecordsResponse", throttle_time=0, topics=tuple(topics))


async def _delete_records(call: Call, name: str, asked: Any) -> object:
    error: WaystationError | None = None
    low = NO_LOW_WATERMARK
    try:
        topic = call.access.topics.get(name)
        topic.partition(asked.partition_index)  # raises if there is none
        if topic.internal:
            raise RecordsOfInternal(f"topic {name!r} belongs to the broker; its records cannot be deleted")
        if topic.settings.compacts and not topic.settings.deletes:
            raise NotForCompacted(f"topic {name!r} is compacted; delete a record by writing its key without a value")
        low = await call.access.topics.delete_records(name, asked.partition_index, asked.offset)
    except WaystationError as caught:
        error = caught
    return call.make(
        "DeleteRecordsPartitionResult",
        partition_index=asked.partition_index,
        low_watermark=low,
        error_code=call.code(error),
    )
