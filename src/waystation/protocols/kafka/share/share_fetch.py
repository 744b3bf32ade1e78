"""ShareFetch (KIP-932): records for a share consumer, locked for it; with acknowledgements of earlier ones.

Batches are sent as they are stored, with a list of which of their records were acquired. A fetch that finds nothing
waits: appends, and records that come back, wake it. Acknowledgements in the request are applied first, and the answer
waits until they are durable.
"""

from __future__ import annotations

import asyncio
import contextlib
from uuid import UUID

import msgspec
from kio.schema.errors import ErrorCode

from waystation.broker.access.types import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    Grant,
    InvalidShareRequest,
    OtherShareGroup,
    Partition,
    SharedGroup,
    SharedPartition,
    ShareSession,
    TopicPartition,
    UnknownShareSession,
    traced_from,
)
from waystation.errors import NotLeader, Unavailable, WaystationError
from waystation.observe.spans import TracedPlace
from waystation.protocols.kafka.coordinators.groups import milliseconds
from waystation.protocols.kafka.requests import nodes
from waystation.protocols.kafka.requests.nodes import Leader
from waystation.protocols.kafka.requests.registry import Call
from waystation.protocols.kafka.share import share_acks
from waystation.protocols.kafka.share.share_acknowledge import close, enter

MAX_WAIT_MS = 300_000
ASK_AGAIN_FIRST_S = 0.1
ASK_AGAIN_MOST_S = 1.0
"""Between two questions to the group's coordinator, while a fetch waits that finds nothing."""
RECORD_LIMIT = 1
"""Acquire mode: no more than `max_records`. The other one, 0, takes batches that are begun to their end."""


class SharePartitionAnswer(msgspec.Struct):
    """What is told of one partition."""

    error: WaystationError | None = None
    ack_error: WaystationError | None = None
    grants: list[Grant] = msgspec.field(default_factory=list)
    records: bytes = b""


Answers = dict[TopicPartition, SharePartitionAnswer]


async def share_fetch(call: Call) -> object:
    try:
        group = call.access.shares.open(call.request.group_id or "")
        answers = await _fetch(call, group)
    except WaystationError as error:
        return call.make("ShareFetchResponse", throttle_time=0, error_code=call.code(error), error_message=str(error))
    topics: dict[UUID, list[object]] = {}
    leaders: list[Leader] = []
    for (topic_id, index), answer in answers.items():
        leader = nodes.leader_asked(call, topic_id, index, answer.error or answer.ack_error)
        leaders.append(leader)
        topics.setdefault(topic_id, []).append(_partition(call, index, answer, leader))
    return call.make(
        "ShareFetchResponse",
        throttle_time=0,
        error_code=ErrorCode.none,
        acquisition_lock_timeout=share_acks.lock_ms(call, group),
        node_endpoints=nodes.endpoint_entities(call, leaders),
        responses=tuple(
            call.make("ShareFetchableTopicResponse", topic_id=topic_id, partitions=tuple(found))
            for topic_id, found in topics.items()
        ),
    )


def _partition(call: Call, index: int, answer: SharePartitionAnswer, leader: Leader) -> object:
    return call.make(
        "PartitionData",
        partition_index=index,
        error_code=call.code(answer.error),
        error_message=None if answer.error is None else str(answer.error),
        acknowledge_error_code=int(call.code(answer.ack_error)),
        acknowledge_error_message=None if answer.ack_error is None else str(answer.ack_error),
        current_leader=call.make("LeaderIdAndEpoch", leader_id=leader.node_id, leader_epoch=leader.epoch),
        records=answer.records,
        acquired_records=tuple(
            call.make(
                "AcquiredRecords",
                first_offset=grant.first,
                last_offset=grant.first + grant.count - 1,
                delivery_count=min(grant.deliveries, 2**15 - 1),
            )
            for grant in answer.grants
        ),
    )


async def _fetch(call: Call, group: SharedGroup | OtherShareGroup) -> Answers:
    request = call.request
    acks = share_acks.acks_of(request.topics)
    wanted = [(topic.topic_id, one.partition_index) for topic in request.topics for one in topic.partitions]
    renews = getattr(request, "is_renew_ack", False)
    if request.share_session_epoch == INITIAL_EPOCH:
        session = _begin(call, group, bool(acks))
        if isinstance(group, OtherShareGroup):
            await group.release(request.member_id, wanted)
        forgotten: list[TopicPartition] = []
    else:
        session = enter(call)
        forgotten = [(topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions]
    if session.poke is not None:
        session.poke()
    results, receipts = await share_acks.apply(call, group, acks)
    answers = {key: SharePartitionAnswer(ack_error=error) for key, error in results.items()}
    if request.share_session_epoch == FINAL_EPOCH:
        close(call, session)
    else:
        call.access.shares.change_session(session, wanted, forgotten)
        if renews:
            pass
        elif isinstance(group, OtherShareGroup):
            await _OtherAcquisition(call, group, session, answers).run()
        else:
            await _Acquisition(call, group, session, answers).run()
    await call.access.durable(*receipts)
    return answers


def _begin(call: Call, group: SharedGroup | OtherShareGroup, has_acks: bool) -> ShareSession:
    request = call.request
    if not request.member_id:
        raise InvalidShareRequest("the request names no member")
    if has_acks:
        raise InvalidShareRequest("acknowledgements in the first fetch of a session: nothing is in flight yet")
    shares, at_close = call.access.shares, call.at_close
    session = shares.begin_session(group, request.member_id)
    # A consumer that dies takes its connection with it, and what is in flight to it goes to the others at once. A
    # connection that lives may begin any number of sessions which others end.
    at_close[session.key] = lambda: shares.end_session(session)
    session.on_end = lambda: at_close.pop(session.key, None)
    return session


class _Acquisition:
    """The part of a fetch that takes records, and waits for them if there are none."""

    def __init__(self, call: Call, group: SharedGroup, session: ShareSession, answers: Answers) -> None:
        self._call = call
        self._group = group
        self._session = session
        self._answers = answers
        self._watched: list[SharedPartition] = []
        self._woken: asyncio.Future[None] | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(milliseconds(self._call.request.max_wait), MAX_WAIT_MS) / 1000
        try:
            if self._take() or loop.time() >= deadline:
                return
            self._woken = loop.create_future()
            self._watch()
            self._session.poke = self._stop
            await asyncio.wait([self._woken], timeout=max(0.0, deadline - loop.time()))
            self._check_alive()
        finally:
            for one in self._watched:
                one.unwait(self._wake)
            if self._session.poke == self._stop:
                self._session.poke = None

    def _take(self) -> bool:
        """Acquires what there is; whether there is something to tell."""
        request = self._call.request
        count, size = request.max_records, min(request.max_bytes, _most_bytes(self._call))
        whole = getattr(request, "share_acquire_mode", 0) != RECORD_LIMIT
        told = False
        for key in list(self._session.partitions):
            if count <= 0 or size <= 0:
                break
            answer = self._answers.get(key) or SharePartitionAnswer()
            try:
                one = share_acks.find(self._call, self._group, key)
                self._acquire(one, answer, count, size, whole=whole)
            except WaystationError as error:
                answer.error = error
            if answer.grants:
                self._session.served(key)
            if answer.grants or answer.error is not None:
                told = True
                self._answers[key] = answer
                count -= sum(grant.count for grant in answer.grants)
                size -= len(answer.records)
        return told

    def _acquire(
        self, one: SharedPartition, answer: SharePartitionAnswer, count: int, size: int, *, whole: bool
    ) -> None:
        """A client takes an acquired record that it was not sent for a gap, and acknowledges it: none may go so."""
        member = self._call.request.member_id
        grants = one.acquire_bytes(member, count, size, self._group.settings.lock_ms, whole=whole)
        if not grants:
            return
        try:
            answer.records = b"".join(one.window.stored(grants))
        except WaystationError as error:
            one.not_readable(member, grants, error)
            raise
        answer.grants = grants
        _delivered(self._call, one.partition, answer)

    def _watch(self) -> None:
        if self._watched:
            return
        for key in self._session.partitions:
            one = share_acks.find(self._call, self._group, key)
            one.wait(self._wake)
            self._watched.append(one)

    def _wake(self) -> None:
        """Takes at once, so that those who wait behind this one are not woken for nothing."""
        if self._woken is None or self._woken.done() or not any(one.has_more for one in self._watched):
            return
        if self._session.ended or self._take():
            self._stop()

    def _stop(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def _check_alive(self) -> None:
        """The member may have left, or was thrown out, while it waited."""
        if self._session.ended:
            raise UnknownShareSession("the share session ended while the fetch was waiting")


class _OtherAcquisition:
    """The same where another node coordinates the group: it says which records the member may have, and this one, which
    leads the partitions, sends them. What comes back to the group does so on that node: it is asked again now and
    then while the fetch waits."""

    def __init__(self, call: Call, group: OtherShareGroup, session: ShareSession, answers: Answers) -> None:
        self._call = call
        self._group = group
        self._session = session
        self._answers = answers
        self._woken = asyncio.Event()
        self._stop = self._woken.set

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(milliseconds(self._call.request.max_wait), MAX_WAIT_MS) / 1000
        led, told = self._led()
        pause_s = ASK_AGAIN_FIRST_S
        self._session.poke = self._stop
        for partition in led:
            partition.watchers.add(self._stop)
        try:
            while True:
                self._woken.clear()
                told = await self._take(led) or told
                left = deadline - loop.time()
                if told or left <= 0 or self._session.poke is not self._stop:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(pause_s, left)):
                        await self._woken.wait()
                pause_s = min(ASK_AGAIN_MOST_S, pause_s * 2)
                if self._session.ended:
                    raise UnknownShareSession("the share session ended while the fetch was waiting")
        finally:
            for partition in led:
                partition.watchers.discard(self._stop)
            if self._session.poke is self._stop:
                self._session.poke = None

    def _led(self) -> tuple[list[Partition], bool]:
        """The session's partitions that are led here; and whether there is an error to tell of others."""
        led: list[Partition] = []
        for key in list(self._session.partitions):
            try:
                led.append(share_acks.led(self._call, key))
            except WaystationError as error:
                self._answers.setdefault(key, SharePartitionAnswer()).error = error
        return led, any(answer.error is not None for answer in self._answers.values())

    async def _take(self, led: list[Partition]) -> bool:
        """Whether there is something to tell."""
        request = self._call.request
        whole = getattr(request, "share_acquire_mode", 0) != RECORD_LIMIT
        size = min(request.max_bytes, _most_bytes(self._call))
        if not led or request.max_records <= 0 or size <= 0:
            return False
        try:
            given = await self._group.acquire(
                self._session, led, request.member_id, request.max_records, size, whole=whole
            )
        except (Unavailable, NotLeader):
            return False  # the coordinator is away, or moves: nothing is delivered meanwhile
        for partition in led:
            key = (partition.topic.id, partition.index)
            found = given.get(key)
            if found is None:
                continue
            answer = self._answers.setdefault(key, SharePartitionAnswer())
            answer.error, answer.grants, answer.records = found.error, found.grants, found.records
            if found.grants:
                self._session.served(key)
                _delivered(self._call, partition, answer)
        return bool(given)


def _most_bytes(call: Call) -> int:
    most = call.broker.settings.integer("fetch.max.bytes")
    return most if call.unsent is None else min(most, call.unsent.room_for_answer)


def _delivered(call: Call, partition: Partition, answer: SharePartitionAnswer) -> None:
    """Counts, and traces where messages ask for it."""
    delivered = sum(grant.count for grant in answer.grants)
    call.access.count_delivered(delivered, len(answer.records))
    partition.topic.delivered += delivered
    tracing = call.broker.tracing
    if tracing is None:
        return
    place = TracedPlace("subscription", partition.topic.name, "kafka", call.request.member_id, call.request.group_id)
    given = [range(grant.first, grant.first + grant.count) for grant in answer.grants]
    found = traced_from(answer.records, given[0].start)
    tracing.fetched(place, partition.index, [each for each in found if any(each.offset in run for run in given)])
