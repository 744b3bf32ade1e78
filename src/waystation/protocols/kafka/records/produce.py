"""Produce: batches in, appended in the order they came, answered when `acks` says so.

acks=0: no answer. acks=1: answered when written to the page cache. acks=all: answered when fsynced (one group commit
serves everybody), unless the broker was told to flush otherwise.

Batches that take long to check (`Access.check_batch_here`) are checked on a thread, all of a request before the first
of it is appended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from waystation.broker.access.types import (
    CheckProduce,
    ConcurrentTransactions,
    CoordinatorAway,
    Failures,
    Header,
    InvalidTransactionState,
    NamespaceNames,
    NotCoordinator,
    Producer,
    Receipt,
    TransactionAbortable,
    may_be_slow,
)
from waystation.errors import InvalidRecord, InvalidTimestamp, NotLeader, WaystationError
from waystation.protocols.kafka.records import produce_codec
from waystation.protocols.kafka.records.produce_codec import PartitionData, PartitionResult, ProduceRequest
from waystation.protocols.kafka.requests.errors_map import refused
from waystation.protocols.kafka.requests.nodes import Leader, leader_of
from waystation.protocols.kafka.requests.throttling import told_ms

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.broker.access.node import Node
    from waystation.broker.access.types import Partition
    from waystation.protocols.kafka.requests.registry import Listener

ALL = -1
ABORTABLE = 11  # from this version on, a producer knows that it may abort and go on

Parts = list[bytes | bytearray | memoryview]
Answer = Callable[[Parts | None], None]


def handle(
    broker: Node, access: Access, version: int, data: memoryview, place: int, answer: Answer, listener: Listener
) -> Awaitable[None] | None:
    """Appends and calls `answer` now or later. An awaitable is returned when appending itself has to wait: then
    nothing else of the connection may be looked at until it is done.

    `data` is a view into the connection's buffer, and begins at `place` of that; `listener` is what the client has
    reached."""
    request = produce_codec.decode(data, version, place)
    request.listener = listener
    if access.names.topic_prefix:
        _within(request, access.names)
    if broker.tracing is not None:
        broker.tracing.arrived("kafka", waits=request.acks == ALL)
    if request.acks not in (0, 1, ALL):
        results = [_refused(part, ErrorCode.invalid_required_acks, None) for part in request.partitions]
        answer([_encoded(access, request, results)])
        return None
    if not _checked_here(access, request):
        return _check_away(access, _copy(request, data), answer)
    return _proceed(access, request, data, answer)


def _within(request: ProduceRequest, names: NamespaceNames) -> None:
    """The names in a request of a client in a namespace, as the broker knows them."""
    if request.transactional_id:
        request.transactional_id = names.full(request.transactional_id)
    for part in request.partitions:
        if isinstance(part.topic, str):
            part.topic = names.topic(part.topic)


def _encoded(access: Access, request: ProduceRequest, results: list[PartitionResult]) -> bytearray:
    """The answer, in the words of the client's namespace, and for how long it is to wait."""
    throttle_ms = told_ms(access.publish_wait_s()) if access.quotas.on else 0
    return produce_codec.encode(request.version, results, throttle_ms, access.names.topic_prefix)


def _proceed(
    access: Access, request: ProduceRequest, data: memoryview | None, answer: Answer
) -> Awaitable[None] | None:
    """`data`: what the request was read from, and may be written over; None: it is the request's own."""
    transactional_id = request.transactional_id
    if transactional_id is not None and _may_have_to_join(access, request, transactional_id):
        missing = _outside_transaction(access, request)
        if missing:
            own = request if data is None else _copy(request, data)
            return _join_and_append(access, own, transactional_id, missing, answer)
    _append_all(access, request, answer)
    return None


def _may_have_to_join(access: Access, request: ProduceRequest, transactional_id: str) -> bool:
    """Whether batches may have to be announced to the coordinator: they join by that, or it is another broker."""
    if request.version >= produce_codec.IMPLICIT_TRANSACTION:
        return True
    try:
        return access.transactions.elsewhere(transactional_id)
    except WaystationError:
        return True  # it is met again, and answered, when the coordinator is asked


def _copy(request: ProduceRequest, data: memoryview) -> ProduceRequest:
    """The request in memory of its own, with what is known of it."""
    copied = produce_codec.decode(memoryview(bytearray(data)), request.version)
    copied.listener = request.listener
    copied.transactional_id = request.transactional_id
    for part, known in zip(copied.partitions, request.partitions, strict=True):
        part.topic, part.header, part.refusal = known.topic, known.header, known.refusal
    return copied


# -- checking ahead ----------------------------------------------------------------------------------------------------


def _checked_here(access: Access, request: ProduceRequest) -> bool:
    """Checks what is compressed or large; False if some of it takes too long here. The rest is checked when it is
    appended."""
    here = True
    for part in request.partitions:
        records = part.records
        if records is None or not may_be_slow(records):
            continue
        try:
            part.header = access.check_batch_here(access.partition(part.topic, part.index), records, part.place)
        except WaystationError as error:
            part.refusal = error
        else:
            here = here and part.header is not None
    return here


async def _check_away(access: Access, request: ProduceRequest, answer: Answer) -> None:
    for part in request.partitions:
        if part.records and part.header is None and part.refusal is None:
            try:
                part.header = await access.checked_batch(
                    access.partition(part.topic, part.index), part.records, part.place
                )
            except WaystationError as error:
                part.refusal = error
    waiting = _proceed(access, request, None, answer)
    if waiting is not None:
        await waiting


def _header_of(access: Access, partition: Partition, part: PartitionData) -> Header:
    """Of a batch that can be taken; the check's error otherwise."""
    if part.refusal is not None:
        raise part.refusal
    if part.header is None:
        part.header = access.check_batch(partition, part.records or memoryview(b""), part.place)
    return part.header


def _outside_transaction(access: Access, request: ProduceRequest) -> list[tuple[Producer, str, int]]:
    """Partitions that the producer writes to for the first time in its transaction (KIP-890: they join by that)."""
    missing: list[tuple[Producer, str, int]] = []
    for part in request.partitions:
        try:
            partition = access.partition(part.topic, part.index)
            header = _header_of(access, partition, part)
            if header.transactional and not (request.check_produce or _may_produce(access, request))(
                request.transactional_id, header.producer_id, header.producer_epoch, partition.topic.name, part.index
            ):
                producer = Producer(header.producer_id, header.producer_epoch)
                missing.append((producer, partition.topic.name, part.index))
        except WaystationError:
            continue  # found again, and answered, when it comes to appending
    return missing


def _may_produce(access: Access, request: ProduceRequest) -> CheckProduce:
    """Asked for the first transactional batch of a request."""
    request.check_produce = access.transactions.producing(request.transactional_id)
    return request.check_produce


async def _join_and_append(
    access: Access,
    request: ProduceRequest,
    transactional_id: str,
    missing: list[tuple[Producer, str, int]],
    answer: Answer,
) -> None:
    for producer, topic, index in missing:
        try:
            joins = request.version >= produce_codec.IMPLICIT_TRANSACTION
            await access.transactions.add_producing(transactional_id, producer, topic, index, joins=joins)
        except WaystationError as error:
            code = _code(access, error)
            results = [_refused(part, code, str(error)) for part in request.partitions]
            answer(None if request.acks == 0 else [_encoded(access, request, results)])
            return
    _append_all(access, request, answer)


def _code(access: Access, error: WaystationError) -> ErrorCode:
    """Where a transaction's coordinator cannot be asked now, or reads what its predecessor has left: of the codes that
    mean "later", the one that all producers retry. Those about coordinators they expect in other answers, and
    CONCURRENT_TRANSACTIONS here has confluent-kafka abort the transaction."""
    code = refused(access.meter, error)
    later = isinstance(error, CoordinatorAway | NotCoordinator | ConcurrentTransactions)
    return ErrorCode.not_enough_replicas if later else code


def _append_all(access: Access, request: ProduceRequest, answer: Answer) -> None:
    results: list[PartitionResult] = []
    receipts: list[Receipt] = []
    appended: list[PartitionResult] = []
    for part in request.partitions:
        result = PartitionResult(part.topic, part.index)
        results.append(result)
        try:
            receipts.append(_append(access, request, part, result))
            appended.append(result)
        except WaystationError as error:
            result.error = _code(access, error)
            result.message = str(error)
            result.base_offset = -1
            if isinstance(error, InvalidRecord | InvalidTimestamp):
                result.records = error.records
            elif isinstance(error, NotLeader):
                result.leader = _leader_of(access, request, result)
    if request.acks == 0:
        answer(None)
    elif request.acks == 1:
        answer([_encoded(access, request, results)])
    else:
        request.let_go()
        access.when_each_durable(receipts, _Answering(access, request, results, appended, answer))


def _append(access: Access, request: ProduceRequest, part: PartitionData, result: PartitionResult) -> Receipt:
    """Appends one partition's batch; returns up to where its log must be durable."""
    partition = access.partition(part.topic, part.index)
    if not part.records:
        raise InvalidRecord("no records were sent")
    header = _header_of(access, partition, part)
    if header.transactional and not (request.check_produce or _may_produce(access, request))(
        request.transactional_id, header.producer_id, header.producer_epoch, partition.topic.name, part.index
    ):
        outside = f"{partition.topic.name}-{part.index} is not part of the producer's transaction"
        raise TransactionAbortable(outside) if request.version >= ABORTABLE else InvalidTransactionState(outside)
    appended = access.append(partition, part.records, header, promised=request.acks == ALL)
    result.base_offset = appended.base_offset
    result.append_time_ms = appended.append_time_ms
    result.start_offset = partition.start_offset
    return Receipt(partition, appended.last_offset + 1)


def _refused(part: PartitionData, code: ErrorCode, message: str | None) -> PartitionResult:
    return PartitionResult(part.topic, part.index, code, message=message)


def _leader_of(access: Access, request: ProduceRequest, result: PartitionResult) -> Leader | None:
    if request.listener is None:
        raise RuntimeError("nobody said what the client of this request has reached")
    return leader_of(access, result.topic, result.index, request.listener)


class _Answering:
    """Called when everything that was appended is durable, or never will be. A class: it is made for every request."""

    __slots__ = ("_access", "_answer", "_appended", "_request", "_results")

    def __init__(
        self,
        access: Access,
        request: ProduceRequest,
        results: list[PartitionResult],
        appended: list[PartitionResult],
        answer: Answer,
    ) -> None:
        self._access = access
        self._request = request
        self._results = results
        self._appended = appended
        self._answer = answer

    def __call__(self, failures: Failures) -> None:
        for number, failure in failures.items():
            result = self._appended[number]
            code = refused(self._access.meter, failure)
            result.error, result.message, result.base_offset = code, str(failure), -1
            if isinstance(failure, NotLeader):
                result.leader = _leader_of(self._access, self._request, result)
        self._answer([_encoded(self._access, self._request, self._results)])
