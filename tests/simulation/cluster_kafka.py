"""Clients of the Kafka protocol in a simulated cluster: bytes to the listener's own connections, and bytes back.

A client finds out who leads from Metadata, whichever node answers it, and never goes back to an earlier epoch, as real
ones do. What must hold, besides all that `Promises` says:

- an idempotent producer never hears that its numbers do not follow;
- a consumer of committed records gets each of them once, in order, and no other; it is never told that the offset
  where it goes on is out of range, whoever leads;
- every answer has a code that a client knows how to go on from.
"""

from __future__ import annotations

import asyncio
import contextvars
import struct
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from tests.simulation.cluster_clients import PARTITIONS, REFUSED, TOPIC, Clients
from tests.simulation.cluster_world import Life, Lost, Node, ended
from tests.simulation.promises import expect
from waystation.broker.access.types import Entrance
from waystation.log.batches import batch as batches
from waystation.protocols.budget import Budgets
from waystation.protocols.kafka.server import KafkaListener
from waystation.security.entrance import ListenerTerms
from waystation.transactions.machine import Producer
from waystation.wire.kafka_types import Reader

PRODUCE, FETCH, METADATA, INIT_PRODUCER_ID = 0, 1, 3, 22
VERSIONS = {PRODUCE: 7, FETCH: 11, METADATA: 7, INIT_PRODUCER_ID: 1}
DELAY_S = 0.002
TIMEOUT_S = 3.0
FETCH_WAIT_MS = 300
READ_COMMITTED = 1
NOBODY = -1

AGAIN = {
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.leader_not_available,
    ErrorCode.not_leader_or_follower,
    ErrorCode.request_timed_out,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.kafka_storage_error,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.offset_not_available,
}
"""After these a client looks who leads now, and tries again."""


class _Line:
    """A connection to one process. One request at a time."""

    def __init__(self, kafka: Kafka, node: Node) -> None:
        self._node, self._life = node, node.life
        self._context = node.context.copy()
        self._loop = asyncio.get_running_loop()
        self._rng = kafka.clients.rng
        self._number = 0
        self._incoming = bytearray()
        self._on_the_way: deque[bytes] = deque()
        self._answer: asyncio.Future[bytes] | None = None
        self.open = True
        self._protocol = self._context.run(kafka.listener(node).connection, lambda: None)
        self._context.run(self._protocol.connection_made, _Transport(self))

    async def ask(self, api: int, body: bytes) -> Reader:
        """Lost: no answer, and the connection is over."""
        if not self.open or self._node.life != self._life:
            raise Lost("connection closed")
        self._number += 1
        frame = struct.pack(">hhih", api, VERSIONS[api], self._number, -1) + body
        self._answer = self._loop.create_future()
        self._later(self._arrive, struct.pack(">i", len(frame)) + frame, context=self._context)
        if not await ended(self._answer, TIMEOUT_S):
            self._later(self._hang_up, context=self._context)
            self.open = False
            raise Lost("no answer in time")
        answer = Reader(self._answer.result(), compact=False)
        expect(answer.i32() == self._number, "an answer to another request")
        return answer

    def _later(self, work: Any, *args: Any, context: contextvars.Context) -> None:
        self._loop.call_later(self._rng.expovariate(1 / DELAY_S), work, *args, context=context)

    # -- at the node --------------------------------------------------------------------------------------------------

    def _arrive(self, frame: bytes) -> None:
        while frame and self.open and self._node.life == self._life:
            room = self._protocol.get_buffer(len(frame))
            size = min(len(room), len(frame))
            room[:size], frame = frame[:size], frame[size:]
            self._protocol.buffer_updated(size)

    def _hang_up(self) -> None:
        if self._node.life == self._life:
            self._protocol.connection_lost(None)

    def sent(self, data: bytes) -> None:
        """Arrives behind what was sent before it, however long each of them takes."""
        self._on_the_way.append(data)
        self._later(self._arrived, context=contextvars.Context())

    def closed(self) -> None:
        """By the node."""
        if self.open:
            self.open = False
            self._loop.call_soon(self._hang_up, context=self._context)

    # -- at the client ------------------------------------------------------------------------------------------------

    def _arrived(self) -> None:
        self._incoming += self._on_the_way.popleft()
        if len(self._incoming) < 4:
            return
        (size,) = struct.unpack_from(">i", self._incoming)
        if len(self._incoming) >= 4 + size and self._answer is not None and not self._answer.done():
            self._answer.set_result(bytes(self._incoming[4 : 4 + size]))
            del self._incoming[: 4 + size]


class _Transport(asyncio.Transport):
    """The node's end."""

    def __init__(self, line: _Line) -> None:
        super().__init__()
        self._line = line

    def write(self, data: Any) -> None:
        self._line.sent(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self._line.sent(b"".join(list_of_data))

    def close(self) -> None:
        self._line.closed()

    def abort(self) -> None:
        self._line.closed()

    def is_closing(self) -> bool:
        return not self._line.open

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is always room."""

    def pause_reading(self) -> None:
        """One request at a time is never too many."""

    def resume_reading(self) -> None:
        """See above."""


class Kafka:
    """Of one run."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self.consumers = [Consumer(self, index) for index in range(PARTITIONS)]
        self._listeners: dict[Life, KafkaListener] = {}

    def jobs(self) -> list[Coroutine[Any, Any, None]]:
        producers = [Client(self).produce(index) for index in range(PARTITIONS)]
        return [*producers, *(consumer.consume() for consumer in self.consumers)]

    def listener(self, node: Node) -> KafkaListener:
        broker, life = node.broker, node.life
        if broker is None or life is None:
            raise Lost("connection refused")
        if life not in self._listeners:
            budgets = Budgets(broker.settings, broker.world.clock)
            entrance = Entrance(broker.authenticator, ListenerTerms("kafka"))
            self._listeners[life] = node.context.copy().run(KafkaListener, broker, budgets, entrance)
        return self._listeners[life]

    def audit(self, index: int, shown: Mapping[int, bytes]) -> None:
        """`shown`: what a reader of committed records gets in the end, by offset."""
        consumer = self.consumers[index]
        there = {offset: value for offset, value in shown.items() if offset < consumer.position}
        wrong = sorted(set(there.items()) ^ set(consumer.seen.items()))
        expect(not wrong, f"a Kafka consumer of partition {index} has come to {consumer.position}; it differs: {wrong}")


class Client:
    """What one client knows of the cluster, and its connections."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._clients = kafka.clients
        self._lines: dict[int, _Line] = {}
        self._leaders: dict[int, tuple[int, int]] = {}  # by partition: node, and its epoch
        self._epochs: dict[int, int] = {}

    async def _ask(self, node_id: int, api: int, body: bytes) -> Reader:
        line = self._lines.get(node_id)
        if line is None or not line.open:
            node = self._clients.nodes[node_id]
            if not node.reachable:
                raise Lost("connection refused")
            line = self._lines[node_id] = _Line(self._kafka, node)
        try:
            return await line.ask(api, body)
        except Lost:
            self._lines.pop(node_id, None)
            raise

    async def _leader(self, index: int) -> tuple[int, int]:
        if index not in self._leaders:
            await self._look(self._clients.rng.choice(sorted(self._clients.nodes)))
        if index not in self._leaders:
            raise Lost("nobody leads, as far as can be known")
        return self._leaders[index]

    async def _look(self, node_id: int) -> None:
        """Asks a node for what it knows. What is older than what is known already is not believed."""
        answer = await self._ask(node_id, METADATA, struct.pack(">i", 1) + _string(TOPIC) + b"\0")
        for index, leader, epoch in _metadata(answer):
            if epoch >= self._epochs.get(index, 0) and leader != NOBODY:
                self._leaders[index], self._epochs[index] = (leader, epoch), epoch

    def _refused(self, index: int, code: int, what: str) -> None:
        """Looks again before it tries again. Broken: no client could go on."""
        self._leaders.pop(index, None)
        error = ErrorCode(code)
        expect(error in AGAIN, f"a Kafka {what} of partition {index} is answered with {error!r}")
        raise Lost(error.name)

    # -- producing ----------------------------------------------------------------------------------------------------

    async def produce(self, index: int) -> None:
        """One batch after another, each until it is acknowledged."""
        producer = await self._producer()
        sequence = 0
        while True:
            await self._clients._pause(0.15)
            count = self._clients.rng.choice((1, 1, 3))
            values = [b"i%d:%d" % (producer.producer_id, sequence + one) for one in range(1, count + 1)]
            first = await self._insist(index, producer, sequence, values)
            for at, value in enumerate(values, first):
                self._clients.promises.acknowledged((TOPIC, index), at, value)
            sequence += count
            self._clients._succeeded("kafka_produce")

    async def _producer(self) -> Producer:
        while True:
            await self._clients._pause(0.1)
            try:
                node_id = self._clients.rng.choice(sorted(self._clients.nodes))
                answer = await self._ask(node_id, INIT_PRODUCER_ID, struct.pack(">hi", -1, 10_000))
            except REFUSED:
                continue
            _, code, producer_id, epoch = answer.unpack(struct.Struct(">ihqh"))
            if code == ErrorCode.none:
                return Producer(producer_id, epoch)
            expect(ErrorCode(code) in AGAIN, f"a producer that begins is answered with {ErrorCode(code)!r}")

    async def _insist(self, index: int, producer: Producer, sequence: int, values: list[bytes]) -> int:
        batch = batches.build(
            [(None, value, ()) for value in values],
            0,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
        )
        body = struct.pack(">hhii", -1, -1, 2_000, 1) + _string(TOPIC) + struct.pack(">iii", 1, index, len(batch))
        while True:
            try:
                node_id, _ = await self._leader(index)
                answer = await self._ask(node_id, PRODUCE, body + batch)
                answer.array(), answer.string(), answer.array()
                _, code, base_offset = answer.unpack(struct.Struct(">ihq"))
                if code != ErrorCode.none:
                    self._refused(index, code, "producer")
                return base_offset
            except REFUSED:
                self._leaders.pop(index, None)
                await self._clients._pause(0.1)


class Consumer(Client):
    """Of the committed records of one partition."""

    def __init__(self, kafka: Kafka, index: int) -> None:
        super().__init__(kafka)
        self._index = index
        self.position = 0
        self.seen: dict[int, bytes] = {}

    async def consume(self) -> None:
        while True:
            await self._clients._pause(0.15)
            try:
                await self._fetch()
            except REFUSED:
                self._leaders.pop(self._index, None)
                await self._clients._pause(0.1)

    async def _fetch(self) -> None:
        index = self._index
        node_id, epoch = await self._leader(index)
        most = self._clients.rng.choice((1, 300, 100_000))
        body = struct.pack(">iiiibiii", -1, FETCH_WAIT_MS, 1, most, READ_COMMITTED, 0, -1, 1) + _string(TOPIC)
        body += struct.pack(">iiiqqii", 1, index, epoch, self.position, -1, most, 0) + _string("")
        answer = await self._ask(node_id, FETCH, body)
        _, code, _ = answer.unpack(struct.Struct(">ihi"))
        if code == ErrorCode.none and answer.array():
            answer.string(), answer.array()
            _, code, _, _, _ = answer.unpack(struct.Struct(">ihqqq"))
        if code != ErrorCode.none:
            self._refused(index, code, "consumer")
        if not answer.left:
            return
        aborted = [answer.unpack(struct.Struct(">qq")) for _ in range(answer.array())]
        answer.i32()  # the replica that it should read from
        self._take(bytes(answer.nullable_bytes() or b""), sorted((first, who) for who, first in aborted))

    def _take(self, data: bytes, aborted: list[tuple[int, int]]) -> None:
        place, promises = (TOPIC, self._index), self._clients.promises
        dropping: set[int] = set()
        for at, header in batches.scan(data):
            while aborted and aborted[0][0] <= header.last_offset:
                dropping.add(aborted.pop(0)[1])
            batch = data[at : at + header.size]
            if header.control:
                if batches.marker_commits(batch, header) is False:
                    dropping.discard(header.producer_id)
            else:
                visible = not (header.transactional and header.producer_id in dropping)
                for record in batches.records_of(batch, header):
                    value = record.value or b""
                    if record.offset < self.position:
                        continue
                    promises.show(place, record.offset, value)
                    promises.show_committed(place, record.offset, value, visible=visible)
                    if visible:
                        self.seen[record.offset] = value
                        self._clients._succeeded("kafka_fetch")
            self.position = max(self.position, header.last_offset + 1)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _metadata(answer: Reader) -> Iterator[tuple[int, int, int]]:
    """(partition, leader, its epoch) of each partition of the one topic."""
    answer.i32()
    for _ in range(answer.array()):
        answer.i32(), answer.string(), answer.i32(), answer.nullable_string()
    answer.nullable_string(), answer.i32()
    for _ in range(answer.array()):
        answer.i16(), answer.nullable_string(), answer.i8()
        for _ in range(answer.array()):
            _, index, leader, epoch = answer.unpack(struct.Struct(">hiii"))
            for _ in range(3):
                for _ in range(answer.array()):
                    answer.i32()
            yield index, leader, epoch
