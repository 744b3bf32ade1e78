"""Transactions through Kafka: producer ids, partitions and offsets that join, the end, and what operators ask.

Translation only: the rules live in `waystation.transactions`. Old versions do not know some of the newer error codes;
`_code` gives them the one that they do know. A disk that refuses is told as COORDINATOR_NOT_AVAILABLE, as Kafka does:
every client repeats the request then, while a storage error makes some give up on a transaction that may be committed.
So is a partition of the transaction that changes its leader while its end is written there: clients do not expect
NOT_LEADER_OR_FOLLOWER in these answers, though the outcome stands and the end comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from waystation.broker.access.types import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    NamedPartition,
    NotCoordinator,
    OffsetToCommit,
    Partition,
    Producer,
    TransactionAbortable,
    TransactionFilter,
)
from waystation.errors import Invalid, NotLeader, StorageFailed, WaystationError
from waystation.protocols.kafka.coordinators.groups import milliseconds
from waystation.protocols.kafka.requests.registry import Call

NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_EPOCH)

KNOWS_FENCED = {"init_producer_id": 4, "add_partitions_to_txn": 2, "add_offsets_to_txn": 2, "end_txn": 2}
KNOWS_ABORTABLE = {"add_partitions_to_txn": 5, "add_offsets_to_txn": 4, "end_txn": 4, "txn_offset_commit": 4}
"""From which version on clients know PRODUCER_FENCED and TRANSACTION_ABORTABLE; others never do."""
NEVER = 2**15
FOR_COORDINATORS = frozenset({"init_producer_id", "add_partitions_to_txn", "add_offsets_to_txn", "end_txn"})
"""Asked of a transaction's coordinator, which may have to wait for leaders of partitions."""


def _code(call: Call, error: BaseException | None) -> ErrorCode:
    """The error's code, or what this version has in its place."""
    if isinstance(error, StorageFailed):
        return ErrorCode.coordinator_not_available
    if isinstance(error, NotLeader) and not isinstance(error, NotCoordinator) and call.name in FOR_COORDINATORS:
        return ErrorCode.coordinator_not_available
    code = call.code(error)
    if code is ErrorCode.producer_fenced and call.version < KNOWS_FENCED.get(call.name, NEVER):
        return ErrorCode.invalid_producer_epoch
    if code is ErrorCode.transaction_abortable and call.version < KNOWS_ABORTABLE.get(call.name, NEVER):
        return ErrorCode.invalid_txn_state
    return code


def _producer(request: Any) -> Producer:
    return Producer(request.producer_id, request.producer_epoch)


# -- beginning -----------------------------------------------------------------------------------------------------


async def init_producer_id(call: Call) -> object:
    request = call.request
    producer, error = NO_PRODUCER, None
    try:
        producer = await call.access.transactions.init_producer_id(
            request.transactional_id,
            milliseconds(request.transaction_timeout),
            _expected(request),
            two_phase=getattr(request, "enable2_pc", False),
            keep_prepared=getattr(request, "keep_prepared_txn", False),
        )
    except WaystationError as failure:
        error = failure
    return call.make(
        "InitProducerIdResponse",
        throttle_time=0,
        error_code=_code(call, error),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        ongoing_txn_producer_id=-1,
        ongoing_txn_producer_epoch=-1,
    )


def _expected(request: Any) -> Producer | None:
    """Who the producer says it is, when it goes on after an error (KIP-360; version 3 and up)."""
    said = Producer(getattr(request, "producer_id", NO_PRODUCER_ID), getattr(request, "producer_epoch", NO_EPOCH))
    if said == NO_PRODUCER:
        return None
    if NO_PRODUCER_ID in said:
        raise Invalid("a producer id and an epoch go together")
    return said


# -- joining -------------------------------------------------------------------------------------------------------


async def add_partitions_to_txn(call: Call) -> object:
    request = call.request
    if call.version < 4:
        codes = await _join(
            call,
            request.v3_and_below_transactional_id,
            Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            request.v3_and_below_topics,
        )
        topics = _topic_results(call, request.v3_and_below_topics, codes)
        return call.make("AddPartitionsToTxnResponse", throttle_time=0, results_by_topic_v3_and_below=topics)
    results = []
    for asked in request.transactions:
        codes = await _join(call, asked.transactional_id, _producer(asked), asked.topics, verify=asked.verify_only)
        topics = _topic_results(call, asked.topics, codes)
        results.append(
            call.make("AddPartitionsToTxnResult", transactional_id=asked.transactional_id, topic_results=topics)
        )
    return call.make(
        "AddPartitionsToTxnResponse",
        throttle_time=0,
        error_code=ErrorCode.none,
        results_by_transaction=tuple(results),
    )


async def _join(
    call: Call, transactional_id: str, producer: Producer, topics: Iterable[Any], *, verify: bool = False
) -> dict[NamedPartition, ErrorCode]:
    """A code per partition. All join, or none does: with one that does not exist, the others are not attempted."""
    wanted = [(str(topic.name), int(index)) for topic in topics for index in topic.partitions]
    known = call.access.topics
    missing = {pair for pair in wanted if not 0 <= pair[1] < (known.partitions_of(pair[0]) or 0)}
    if missing:
        return {
            pair: ErrorCode.unknown_topic_or_partition if pair in missing else ErrorCode.operation_not_attempted
            for pair in wanted
        }
    transactions = call.access.transactions
    try:
        if verify:
            verified = transactions.verify_partitions(transactional_id, producer, wanted)
            refused = _code(call, TransactionAbortable("not part of the transaction"))
            return {pair: ErrorCode.none if joined else refused for pair, joined in verified.items()}
        await transactions.add_partitions(transactional_id, producer, wanted)
    except WaystationError as error:
        return dict.fromkeys(wanted, _code(call, error))
    return dict.fromkeys(wanted, ErrorCode.none)


def _topic_results(call: Call, topics: Iterable[Any], codes: dict[NamedPartition, ErrorCode]) -> tuple[object, ...]:
    return tuple(
        call.make(
            "AddPartitionsToTxnTopicResult",
            name=topic.name,
            results_by_partition=tuple(
                call.make(
                    "AddPartitionsToTxnPartitionResult",
                    partition_index=index,
                    partition_error_code=codes[topic.name, index],
                )
                for index in topic.partitions
            ),
        )
        for topic in topics
    )


async def add_offsets_to_txn(call: Call) -> object:
    request = call.request
    error = None
    try:
        await call.access.transactions.add_offsets(request.transactional_id, _producer(request), request.group_id)
    except WaystationError as failure:
        error = failure
    return call.make("AddOffsetsToTxnResponse", throttle_time=0, error_code=_code(call, error))


async def txn_offset_commit(call: Call) -> object:
    request = call.request
    offsets = [
        OffsetToCommit(
            topic.name,
            partition.partition_index,
            partition.committed_offset,
            getattr(partition, "committed_leader_epoch", -1),
            partition.committed_metadata or "",
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
    codes = iter(await _commit_offsets(call, offsets))
    topics = tuple(
        call.make(
            "TxnOffsetCommitResponseTopic",
            name=topic.name,
            partitions=tuple(
                call.make(
                    "TxnOffsetCommitResponsePartition",
                    partition_index=partition.partition_index,
                    error_code=next(codes),
                )
                for partition in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return call.make("TxnOffsetCommitResponse", throttle_time=0, topics=topics)


async def _commit_offsets(call: Call, offsets: list[OffsetToCommit]) -> list[ErrorCode]:
    """One code per offset, in the same order. From version 5 on, committing is joining (KIP-890)."""
    request = call.request
    try:
        results = await call.access.transactions.commit_offsets(
            request.transactional_id,
            _producer(request),
            request.group_id,
            offsets,
            joins=call.version >= 5,
            member_id=getattr(request, "member_id", ""),
            generation_id=getattr(request, "generation_id", -1),
            group_instance_id=getattr(request, "group_instance_id", None),
        )
    except WaystationError as error:
        return [_code(call, error)] * len(offsets)
    return [_code(call, result.error) for result in results]


# -- ending --------------------------------------------------------------------------------------------------------


async def end_txn(call: Call) -> object:
    request = call.request
    producer, error = NO_PRODUCER, None
    try:
        producer = await call.access.transactions.end(
            request.transactional_id, _producer(request), request.committed, bumps_epoch=call.version >= 5
        )
    except WaystationError as failure:
        error = failure
    return call.make(
        "EndTxnResponse",
        throttle_time=0,
        error_code=_code(call, error),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )


async def write_txn_markers(call: Call) -> object:
    """An operator's tool ends a transaction that hangs on a partition. Durable when it is answered."""
    results = []
    for marker in call.request.markers:
        topics = []
        for topic in marker.topics:
            partitions = [await _write_marker(call, marker, topic.name, index) for index in topic.partition_indexes]
            topics.append(call.make("WritableTxnMarkerTopicResult", name=topic.name, partitions=tuple(partitions)))
        results.append(call.make("WritableTxnMarkerResult", producer_id=marker.producer_id, topics=tuple(topics)))
    return call.make("WriteTxnMarkersResponse", markers=tuple(results))


async def _write_marker(call: Call, marker: Any, topic: str, index: int) -> object:
    error = None
    try:
        await call.access.transactions.write_marker(
            topic, index, _producer(marker), marker.transaction_result, marker.coordinator_epoch
        )
    except WaystationError as failure:
        error = failure
    return call.make("WritableTxnMarkerPartitionResult", partition_index=index, error_code=_code(call, error))


# -- looking -------------------------------------------------------------------------------------------------------


def describe_transactions(call: Call) -> object:
    states = tuple(_described(call, name) for name in call.request.transactional_ids)
    return call.make("DescribeTransactionsResponse", throttle_time=0, transaction_states=states)


def _described(call: Call, transactional_id: str) -> object:
    try:
        txn = call.access.transactions.describe(transactional_id)
    except WaystationError as error:
        return call.make("TransactionState", error_code=_code(call, error), transactional_id=transactional_id)
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(txn.partitions):
        by_topic.setdefault(topic, []).append(index)
    return call.make(
        "TransactionState",
        error_code=ErrorCode.none,
        transactional_id=transactional_id,
        transaction_state=txn.state.label,
        transaction_timeout=txn.timeout_ms,
        transaction_start_time=txn.begun_ms,
        producer_id=txn.producer.producer_id,
        producer_epoch=txn.producer.epoch,
        topics=tuple(call.make("TopicData", topic=name, partitions=tuple(found)) for name, found in by_topic.items()),
    )


def list_transactions(call: Call) -> object:
    request = call.request
    wanted = TransactionFilter(
        frozenset(request.state_filters),
        frozenset(request.producer_id_filters),
        getattr(request, "duration_filter", -1),
        getattr(request, "transactional_id_pattern", None) or "",
    )
    try:
        listing = call.access.transactions.listing(wanted)
    except WaystationError as error:
        return call.make("ListTransactionsResponse", throttle_time=0, error_code=_code(call, error))
    states = tuple(
        call.make(
            "TransactionState",
            transactional_id=txn.transactional_id,
            producer_id=txn.producer.producer_id,
            transaction_state=txn.state.label,
        )
        for txn in listing.transactions
    )
    return call.make(
        "ListTransactionsResponse",
        throttle_time=0,
        error_code=ErrorCode.none,
        unknown_state_filters=listing.unknown_states,
        transaction_states=states,
    )


def describe_producers(call: Call) -> object:
    topics = tuple(
        call.make(
            "TopicResponse",
            name=topic.name,
            partitions=tuple(_producers_of(call, topic.name, index) for index in topic.partition_indexes),
        )
        for topic in call.request.topics
    )
    return call.make("DescribeProducersResponse", throttle_time=0, topics=topics)


def _producers_of(call: Call, topic: str, index: int) -> object:
    try:
        partition = call.access.topics.partition_to_read(topic, index)
        partition.check_leads()
    except WaystationError as error:
        return call.make(
            "PartitionResponse", partition_index=index, error_code=_code(call, error), error_message=str(error)
        )
    return call.make(
        "PartitionResponse", partition_index=index, error_code=ErrorCode.none, active_producers=_active(call, partition)
    )


def _active(call: Call, partition: Partition) -> tuple[object, ...]:
    return tuple(
        call.make(
            "ProducerState",
            producer_id=state.producer_id,
            producer_epoch=state.epoch,
            last_sequence=state.last_sequence,
            last_timestamp=state.last_timestamp,
            coordinator_epoch=state.coordinator_epoch,
            current_txn_start_offset=-1 if state.transaction_start is None else state.transaction_start,
        )
        for state in partition.producers.by_id.values()
    )
