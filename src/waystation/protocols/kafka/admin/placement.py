"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments and UnregisterBroker: who has and leads what.

Invariant: each partition of a request succeeds or fails on its own. What is answered as done is in force: a leader is
elected, a reassignment has begun (its end is when ListPartitionReassignments has it no more). Called through the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kio.schema.errors import ErrorCode

from waystation.broker.access.types import Reassignment
from waystation.errors import ElectionNotNeeded, InvalidReplicationFactor, WaystationError
from waystation.protocols.kafka.requests.registry import Call

PREFERRED, UNCLEAN = 0, 1

# -- ElectLeaders ----------------------------------------------------------------------------------------------------


async def elect_leaders(call: Call) -> object:
    request, make = call.request, call.make
    kind = getattr(request, "election_type", PREFERRED)
    known = kind in (PREFERRED, UNCLEAN)
    results = []
    for topic, indexes in _to_elect(call):
        partitions = [await _elect(call, topic, index, kind) for index in indexes]
        if request.topic_partitions is None:  # of all there are, only elections that were held are told
            partitions = [one for one in partitions if one.error_code is not ErrorCode.election_not_needed]
        if partitions or request.topic_partitions is not None:
            results.append(make("ReplicaElectionResult", topic=topic, partition_result=tuple(partitions)))
    error = ErrorCode.none if known else ErrorCode.invalid_request
    return make("ElectLeadersResponse", throttle_time=0, error_code=error, replica_election_results=tuple(results))


def _to_elect(call: Call) -> Iterator[tuple[str, tuple[int, ...]]]:
    asked = call.request.topic_partitions
    if asked is None:
        for topic in call.access.topics.listing():
            yield topic.name, tuple(range(len(topic.partitions)))
    else:
        for one in asked:
            yield one.topic, tuple(one.partitions)


async def _elect(call: Call, topic: str, index: int, kind: int) -> Any:
    code, message = ErrorCode.none, None
    if kind not in (PREFERRED, UNCLEAN):
        code, message = ErrorCode.invalid_request, f"there is no election type {kind}"
    elif not 0 <= index < (call.access.topics.partitions_of(topic) or 0):
        code, message = ErrorCode.unknown_topic_or_partition, f"there is no partition {topic}-{index}"
    else:
        try:
            await call.access.placement.elect(topic, index, unclean=kind == UNCLEAN)
        except ElectionNotNeeded as error:  # no failure: it is as it was asked for
            code, message = ErrorCode.election_not_needed, str(error)
        except WaystationError as error:
            code, message = call.code(error), str(error)
    return call.make("PartitionResult", partition_id=index, error_code=code, error_message=message)


# -- AlterPartitionReassignments -------------------------------------------------------------------------------------


async def alter_partition_reassignments(call: Call) -> object:
    request, make = call.request, call.make
    responses = [
        make(
            "ReassignableTopicResponse",
            name=asked.name,
            partitions=tuple([await _reassign(call, asked.name, entry) for entry in asked.partitions]),
        )
        for asked in request.topics
    ]
    return make(
        "AlterPartitionReassignmentsResponse",
        throttle_time=0,
        allow_replication_factor_change=getattr(request, "allow_replication_factor_change", True),
        error_code=ErrorCode.none,
        error_message=None,
        responses=tuple(responses),
    )


async def _reassign(call: Call, name: str, asked: Any) -> object:
    error: WaystationError | None = None
    index, placement = asked.partition_index, call.access.placement
    try:
        call.access.topics.get(name).partition(index)
        if asked.replicas is None:
            await placement.cancel_reassignment(name, index)
        else:
            _check_factor(call, name, index, asked.replicas)
            await placement.reassign(name, index, asked.replicas)
    except WaystationError as caught:
        error = caught
    return call.make(
        "ReassignablePartitionResponse",
        partition_index=index,
        error_code=call.code(error),
        error_message=None if error is None else str(error),
    )


def _check_factor(call: Call, name: str, index: int, replicas: tuple[int, ...]) -> None:
    """Raises if the request moves partitions only, and this would have another number of replicas (KIP-860)."""
    if not getattr(call.request, "allow_replication_factor_change", True):
        present = len(call.access.placement.replicas(name, index))
        if len(replicas) != present:
            raise InvalidReplicationFactor(
                f"partition {name}-{index} has {present} replicas, and {len(replicas)} are asked for; the request does"
                " not allow another replication factor"
            )


# -- ListPartitionReassignments --------------------------------------------------------------------------------------


def list_partition_reassignments(call: Call) -> object:
    make, asked = call.make, call.request.topics
    name = "ListPartitionReassignmentsResponse"
    wanted = None if asked is None else {(one.name, index) for one in asked for index in one.partition_indexes}
    try:
        found = call.access.placement.reassignments(None if asked is None else {one.name for one in asked})
    except WaystationError as error:
        return make(name, throttle_time=0, error_code=call.code(error), error_message=str(error), topics=())
    by_topic: dict[str, list[Reassignment]] = {}
    for one in found:
        if wanted is None or (one.topic, one.index) in wanted:
            by_topic.setdefault(one.topic, []).append(one)
    topics = tuple(
        make("OngoingTopicReassignment", name=topic, partitions=tuple(_ongoing(call, one) for one in partitions))
        for topic, partitions in by_topic.items()
    )
    return make(name, throttle_time=0, error_code=ErrorCode.none, error_message=None, topics=topics)


def _ongoing(call: Call, one: Reassignment) -> object:
    return call.make(
        "OngoingPartitionReassignment",
        partition_index=one.index,
        replicas=one.placed.replicas,
        adding_replicas=one.placed.adding,
        removing_replicas=one.placed.removing,
    )


# -- UnregisterBroker ------------------------------------------------------------------------------------------------


async def unregister_broker(call: Call) -> object:
    error: WaystationError | None = None
    try:
        await call.access.placement.unregister(call.request.broker_id)
    except WaystationError as caught:
        error = caught
    return call.make(
        "UnregisterBrokerResponse",
        throttle_time=0,
        error_code=call.code(error),
        error_message=None if error is None else str(error),
    )
