"""Acknowledgements of a share consumer, as they stand in ShareFetch and ShareAcknowledge: checked, then applied.

Each batch names a range of offsets and one type for all of them, or a type for each. Per partition: a batch that makes
no sense refuses all; records that are not in flight to the member are left alone and reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from waystation.broker.access.types import (
    RENEW_LOCKS,
    InvalidRecordState,
    InvalidShareRequest,
    OtherShareGroup,
    Partition,
    Receipt,
    Settling,
    SharedGroup,
    SharedPartition,
    TopicPartition,
    Verdict,
    count_of,
)
from waystation.errors import UnknownTopicId, WaystationError
from waystation.message import Run
from waystation.observe.meters import ProtocolMeter
from waystation.protocols.kafka.requests.registry import Call

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)

VERDICTS = {GAP: Verdict.ACK, ACCEPT: Verdict.ACK, RELEASE: Verdict.RELEASE, REJECT: Verdict.KILL}
MAX_OFFSETS = 1_000_000
"""In the batches of one partition: far more than anybody can have in flight."""

Acks = dict[TopicPartition, Sequence[Any]]
Typed = tuple[int, int, int]
"""(first offset, how many, type)."""


def acks_of(topics: Iterable[Any]) -> Acks:
    """The acknowledgement batches of a request by partition; partitions without any are left out."""
    return {
        (topic.topic_id, partition.partition_index): partition.acknowledgement_batches
        for topic in topics
        for partition in topic.partitions
        if partition.acknowledgement_batches
    }


def find(call: Call, group: SharedGroup, key: TopicPartition) -> SharedPartition:
    if key[0] is None:
        raise UnknownTopicId("the request names a topic without an id")
    return call.access.shares.partition(group, *key)


def led(call: Call, key: TopicPartition) -> Partition:
    if key[0] is None:
        raise UnknownTopicId("the request names a topic without an id")
    return call.access.shares.led(*key)


def lock_ms(call: Call, group: SharedGroup | OtherShareGroup) -> int:
    """For how long records are locked, as far as it is known."""
    if isinstance(group, OtherShareGroup):
        return group.lock_ms or call.broker.settings.integer("group.share.record.lock.duration.ms")
    return group.settings.lock_ms


async def apply(
    call: Call, group: SharedGroup | OtherShareGroup, acks: Acks
) -> tuple[dict[TopicPartition, WaystationError | None], list[Receipt]]:
    """What became of each partition's acknowledgements, and what to wait for until they are durable."""
    if isinstance(group, OtherShareGroup):
        return (await _apply_elsewhere(call, group, acks) if acks else {}), []
    member = call.request.member_id
    renews = getattr(call.request, "is_renew_ack", False) and group.settings.renews
    results: dict[TopicPartition, WaystationError | None] = {}
    receipts: list[Receipt] = []
    for key, found in acks.items():
        try:
            typed = list(_typed(found, renews=renews))
            receipts += _settle(find(call, group, key), member, typed, call.access.meter)
            results[key] = None
        except WaystationError as error:
            results[key] = error
    return results, receipts


async def _apply_elsewhere(
    call: Call, group: OtherShareGroup, acks: Acks
) -> dict[TopicPartition, WaystationError | None]:
    """The same where another node coordinates the group; durable when it returns."""
    member, renews = call.request.member_id, getattr(call.request, "is_renew_ack", False)
    results: dict[TopicPartition, WaystationError | None] = {}
    settling: dict[TopicPartition, Settling] = {}
    for key, found in acks.items():
        try:
            by_kind = _by_kind(list(_typed(found, renews=renews)))
            partition = led(call, key)
            settling[key] = Settling(
                partition.topic.id, partition.index, tuple((_name(kind), tuple(runs)) for kind, runs in by_kind)
            )
        except WaystationError as error:
            results[key] = error
    try:
        told = await group.settle(member, list(settling.values())) if settling else []
    except WaystationError as error:
        return {**dict.fromkeys(acks, error), **results}
    for (key, asked), settled in zip(settling.items(), told, strict=True):
        unknown = dict(settled.unknown)
        for name, runs in asked.runs:
            if name != RENEW_LOCKS and settled.error is None:
                call.access.meter.settled(name, count_of(runs) - unknown.get(name, 0))
        topic = call.access.topics.name_of(asked.topic) or str(asked.topic)
        missed = _not_acquired(member, topic, asked.index) if any(unknown.values()) else None
        results[key] = settled.error or missed
    return results


def _name(kind: int) -> str:
    return RENEW_LOCKS if kind == RENEW else VERDICTS[kind].value


def _by_kind(typed: Sequence[Typed]) -> list[tuple[int, list[Run]]]:
    """GAP and ACCEPT are one verdict."""
    found: dict[str, tuple[int, list[Run]]] = {}
    for first, count, kind in typed:
        found.setdefault(_name(kind), (kind, []))[1].append((first, count))
    return list(found.values())


def _not_acquired(member: str, topic: str, index: int) -> InvalidRecordState:
    return InvalidRecordState(
        f"member {member!r} has not acquired all of these records of {topic}-{index}: they were settled before, or"
        " their lock ran out"
    )


def _typed(found: Sequence[Any], *, renews: bool) -> Iterator[Typed]:
    """The batches as runs of one type each."""
    behind = total = 0
    for batch in found:
        count = batch.last_offset - batch.first_offset + 1
        types = batch.acknowledge_types
        total += count
        if batch.first_offset < behind or count < 1 or total > MAX_OFFSETS:
            raise InvalidShareRequest("acknowledgements have to be in the order of their offsets, without overlaps")
        if len(types) not in (1, count):
            raise InvalidShareRequest(f"{len(types)} acknowledge types for {count} records; one, or one for each")
        if any(not GAP <= kind <= (RENEW if renews else REJECT) for kind in types):
            raise InvalidShareRequest("an acknowledge type that does not exist, or is not allowed here")
        behind = batch.last_offset + 1
        at = batch.first_offset
        if len(types) == 1:
            yield at, count, types[0]
            continue
        for kind, same in groupby(types):
            length = len(list(same))
            yield at, length, kind
            at += length


def _settle(one: SharedPartition, member: str, typed: Sequence[Typed], meter: ProtocolMeter) -> list[Receipt]:
    receipts: list[Receipt] = []
    unknown = 0
    for kind in sorted({kind for _, _, kind in typed}):
        runs = [(first, count) for first, count, of in typed if of == kind]
        if kind == RENEW:
            unknown += len(one.touch(member, runs, one.group.settings.lock_ms))
            continue
        verdicts = one.settle(member, VERDICTS[kind], runs)
        unknown += len(verdicts.unknown)
        meter.settled(VERDICTS[kind].value, count_of(runs) - count_of(verdicts.unknown))
        if verdicts.receipt is not None:
            receipts.append(verdicts.receipt)
    if unknown:
        raise _not_acquired(member, one.topic, one.partition.index)
    return receipts
