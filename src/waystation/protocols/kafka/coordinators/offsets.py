"""Committed offsets through the Kafka protocol: OffsetCommit, OffsetFetch, OffsetDelete.

Topics are named up to version 9 and have ids from version 10; here both become names, and answers speak as the question
did. Translation only: the rules live in `waystation.groups`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from waystation.broker.access.types import FetchedOffset, IllegalGeneration, OffsetToCommit, UnknownGroup
from waystation.errors import UnknownTopicId, WaystationError
from waystation.protocols.kafka.coordinators.groups import milliseconds
from waystation.protocols.kafka.requests.registry import Call


def _name(call: Call, topic: Any) -> str | None:
    """The name of a topic in a request; None for an id that no topic has."""
    if call.version < 10:
        return str(topic.name)
    return None if topic.topic_id is None else call.access.topics.name_of(topic.topic_id)


def _named(topic: Any) -> dict[str, object]:
    """The topic as the request calls it."""
    return {"name": getattr(topic, "name", None), "topic_id": getattr(topic, "topic_id", None)}


# -- commit ------------------------------------------------------------------------------------------------------


async def offset_commit(call: Call) -> object:
    names = [_name(call, topic) for topic in call.request.topics]
    offsets = [
        OffsetToCommit(
            name,
            partition.partition_index,
            partition.committed_offset,
            getattr(partition, "committed_leader_epoch", -1),
            partition.committed_metadata or "",
        )
        for topic, name in zip(call.request.topics, names, strict=True)
        if name is not None
        for partition in topic.partitions
    ]
    codes = iter(await _commit(call, offsets))
    topics = [
        _committed(call, topic, [ErrorCode.unknown_topic_id if name is None else next(codes) for _ in topic.partitions])
        for topic, name in zip(call.request.topics, names, strict=True)
    ]
    return call.make("OffsetCommitResponse", throttle_time=0, topics=tuple(topics))


async def _commit(call: Call, offsets: Sequence[OffsetToCommit]) -> list[ErrorCode]:
    """One code per offset, in the same order."""
    request = call.request
    retention = getattr(request, "retention_time", None)  # versions 2 to 4
    try:
        results = await call.access.groups.commit_offsets(
            request.group_id,
            offsets,
            member_id=request.member_id,
            generation_id=request.generation_id_or_member_epoch,
            group_instance_id=getattr(request, "group_instance_id", None),
            retention_ms=-1 if retention is None else milliseconds(retention),
        )
    except WaystationError as error:
        if isinstance(error, UnknownGroup) and call.version < 9:
            error = IllegalGeneration(str(error))  # what clients of then understand
        return [call.code(error)] * len(offsets)
    return [call.code(result.error) for result in results]


def _committed(call: Call, topic: Any, codes: Sequence[ErrorCode]) -> object:
    partitions = tuple(
        call.make("OffsetCommitResponsePartition", partition_index=partition.partition_index, error_code=code)
        for partition, code in zip(topic.partitions, codes, strict=True)
    )
    return call.make("OffsetCommitResponseTopic", partitions=partitions, **_named(topic))


# -- fetch -------------------------------------------------------------------------------------------------------


async def offset_fetch(call: Call) -> object:
    if call.version < 8:
        return _fetch_one(call)
    groups = tuple(_fetch_group(call, group) for group in call.request.groups)
    return call.make("OffsetFetchResponse", throttle_time=0, groups=groups)


def _fetch_one(call: Call) -> object:
    """Up to version 7: one group, and an error of the whole has a field of its own from version 2 only."""
    request = call.request
    try:
        topics = _fetch(call, request.group_id, request.topics, None, -1, "OffsetFetchResponseTopic")
    except WaystationError as error:
        return call.make(
            "OffsetFetchResponse",
            throttle_time=0,
            error_code=call.code(error),
            topics=_failed(call, request.topics, error) if call.version < 2 else (),
        )
    return call.make("OffsetFetchResponse", throttle_time=0, error_code=ErrorCode.none, topics=topics)


def _failed(call: Call, topics: Iterable[Any], error: WaystationError) -> tuple[object, ...]:
    return tuple(
        call.make(
            "OffsetFetchResponseTopic",
            name=topic.name,
            partitions=tuple(
                _fetched(call, FetchedOffset(topic.name, index, error=error)) for index in topic.partition_indexes
            ),
        )
        for topic in topics
    )


def _fetch_group(call: Call, group: Any) -> object:
    error: WaystationError | None = None
    topics: tuple[object, ...] = ()
    member_id, epoch = getattr(group, "member_id", None), getattr(group, "member_epoch", -1)
    try:
        topics = _fetch(call, group.group_id, group.topics, member_id, epoch, "OffsetFetchResponseTopics")
    except WaystationError as caught:
        error = caught
    return call.make("OffsetFetchResponseGroup", group_id=group.group_id, topics=topics, error_code=call.code(error))


def _fetch(
    call: Call, group_id: str, topics: Sequence[Any] | None, member_id: str | None, epoch: int, topic_class: str
) -> tuple[object, ...]:
    stable = getattr(call.request, "require_stable", False)
    keys = None if topics is None else list(_keys(call, topics))
    fetched = call.access.groups.fetch_offsets(
        group_id, keys, require_stable=stable, member_id=member_id, member_epoch=epoch
    )
    if topics is None:
        return _everything(call, fetched, topic_class)
    found = iter(fetched)
    answers = []
    for topic in topics:
        name = _name(call, topic)
        partitions = tuple(
            _fetched(call, next(found) if name is not None else _no_such_id(index)) for index in topic.partition_indexes
        )
        answers.append(call.make(topic_class, partitions=partitions, **_named(topic)))
    return tuple(answers)


def _keys(call: Call, topics: Iterable[Any]) -> Iterable[tuple[str, int]]:
    for topic in topics:
        name = _name(call, topic)
        if name is not None:
            yield from ((name, index) for index in topic.partition_indexes)


def _no_such_id(index: int) -> FetchedOffset:
    return FetchedOffset("", index, error=UnknownTopicId("no topic has this id"))


def _everything(call: Call, fetched: Iterable[FetchedOffset], topic_class: str) -> tuple[object, ...]:
    by_topic: dict[str, list[object]] = {}
    for one in fetched:
        by_topic.setdefault(one.topic, []).append(_fetched(call, one))
    ids = {name: call.access.topics.id_of(name) for name in by_topic}
    return tuple(
        call.make(topic_class, name=name, topic_id=ids[name], partitions=tuple(partitions))
        for name, partitions in by_topic.items()
        if call.version < 10 or ids[name] is not None
    )


def _fetched(call: Call, one: FetchedOffset) -> object:
    return call.make(
        "OffsetFetchResponsePartitions" if call.version >= 8 else "OffsetFetchResponsePartition",
        partition_index=one.partition,
        committed_offset=one.offset,
        committed_leader_epoch=one.leader_epoch,
        metadata=one.metadata,
        error_code=call.code(one.error),
    )


# -- delete ------------------------------------------------------------------------------------------------------


async def offset_delete(call: Call) -> object:
    request = call.request
    keys = [(topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions]
    try:
        results = iter(await call.access.groups.delete_offsets(request.group_id, keys))
    except WaystationError as error:
        return call.make("OffsetDeleteResponse", throttle_time=0, error_code=call.code(error))
    topics = tuple(
        call.make(
            "OffsetDeleteResponseTopic",
            name=topic.name,
            partitions=tuple(
                call.make(
                    "OffsetDeleteResponsePartition",
                    partition_index=partition.partition_index,
                    error_code=call.code(next(results).error),
                )
                for partition in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return call.make("OffsetDeleteResponse", throttle_time=0, error_code=ErrorCode.none, topics=topics)
