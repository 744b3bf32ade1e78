"""Requests for a few bytes that are answered with megabytes: one in a turn of the loop, whoever asks; nothing is lost
and the order is kept."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

import waystation
from tests.protocols.test_long_work import ByHand
from tests.support.entrances import entrance_of
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S
from waystation.broker.broker import Broker
from waystation.broker.open import open_broker
from waystation.client.links.connection import Connection
from waystation.config import BrokerSettings
from waystation.message import Message
from waystation.protocol import (
    MAGIC,
    AnyCommand,
    Consume,
    CreateTopic,
    DeclareQueue,
    Get,
    Got,
    ListQueues,
    Peek,
    Ping,
    Publish,
    Put,
    ReadBatches,
    ReadEntries,
)
from waystation.protocols.budget import FIRST_ANSWER_BYTES
from waystation.protocols.native.binary import OTHERS_AT_ONCE, BinaryTalk
from waystation.protocols.native.commands import requests
from waystation.protocols.native.commands.connection_info import NOWHERE, Address
from waystation.protocols.native.commands.consuming import SHORT_GET, SHORT_GET_BYTES
from waystation.protocols.native.connection import FULL_BYTES, SHORT_ANSWER_BYTES, Out
from waystation.security.entrance import Entrance
from waystation.security.principals import Principal
from waystation.world.long_work import LATELY_S, LongWork


@dataclass
class Allows:
    """A wire that says how long an answer may be."""

    answer_bytes: int
    entrance: Entrance
    others_wait: bool = False
    certificate: Principal | None = None
    peer: Address = NOWHERE
    host: Address = NOWHERE

    def end(self, reason: str) -> None:
        raise AssertionError(reason)


class Client:
    """A talk without a socket."""

    def __init__(self, broker: Broker, name: str, line: ByHand) -> None:
        self.called = 0
        self.out = Out(lambda: None)
        self.talk = BinaryTalk(broker, name, line, self.out, self._on_room)
        self.talk.intake.feed(MAGIC)

    def _on_room(self) -> None:
        self.called += 1

    def send(self, *commands: AnyCommand) -> None:
        for command in commands:
            body = msgspec.msgpack.encode(command)
            self.talk.intake.feed(len(body).to_bytes(4, "big") + body)
        self.work()

    def work(self) -> None:
        """As a connection does: what was said is written, until there is nothing more to say or it has to wait."""
        self.answers = bytearray()
        while not self.talk.busy and self.talk.work():
            self.answers += self.out.take()
        self.answers += self.out.take()

    @property
    def ids(self) -> list[int]:
        """Of the answers to the last call."""
        return [int(answer["id"]) for answer in values(self.answers)]


async def filled(broker: Broker) -> None:
    """A queue and a topic with more than an answer's worth, and a queue with next to nothing."""
    client = Client(broker, "filler", ByHand())
    message = Message(bytes(FULL_BYTES // 2))
    client.send(DeclareQueue(id=1, queue="q"), DeclareQueue(id=2, queue="small"))
    await answered(client, 2)
    puts = [Put(id=3 + i, queue="q", messages=[message]) for i in range(4)]
    client.send(*puts, Put(id=9, queue="small", messages=[Message(b"x")]))
    await answered(client, 5)
    client.send(CreateTopic(id=1, topic="t", partitions=1))
    await answered(client, 1)
    client.send(*(Publish(id=2 + i, topic="t", messages=[message]) for i in range(4)))
    await answered(client, 4)
    client.talk.close()


async def answered(client: Client, count: int) -> None:
    async with asyncio.timeout(30):
        while len(client.ids) < count:
            await asyncio.sleep(0.001)
            client.answers += client.out.take()


@pytest.mark.parametrize(
    "look",
    [
        Peek(id=1, queue="q", count=100),
        ReadEntries(id=1, queue="q", runs=[(0, 4)]),
        ReadBatches(id=1, positions=[("t", 0, 0), ("t", 0, 2)]),
    ],
)
def test_a_look_behind_a_long_answer_waits_for_its_turn_and_so_does_what_is_behind_it(
    tmp_path: Path, look: Peek | ReadEntries | ReadBatches
) -> None:
    async def story() -> None:
        broker = await open_broker(str(tmp_path), BrokerSettings({"waystation.flush": "os"}))
        try:
            await filled(broker)
            line = ByHand()
            greedy, another = Client(broker, "greedy", line), Client(broker, "another", line)
            ordinary = Client(broker, "ordinary", line)
            greedy.send(look, msgspec.structs.replace(look, id=2), Ping(id=3))
            assert greedy.ids == [1]
            assert line.taken
            assert greedy.talk.busy
            another.send(Ping(id=1), msgspec.structs.replace(look, id=2))
            assert another.ids == [1], "what comes before it is answered"
            ordinary.send(*(Ping(id=number) for number in range(1, 50)))
            assert ordinary.ids == list(range(1, 50)), "whoever asks for little waits for nobody"
            await line.turns()
            assert (greedy.called, another.called) == (0, 0)
            await line.rested()
            assert (greedy.called, another.called) == (1, 0)
            greedy.work()
            assert greedy.ids == [2, 3]
            await line.rested()
            another.work()
            assert another.ids == [2]
            for client in (greedy, another, ordinary):
                client.talk.close()
        finally:
            await broker.stop()

    asyncio.run(story())


def test_looks_with_short_answers_wait_for_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        broker = await open_broker(str(tmp_path), BrokerSettings({"waystation.flush": "os"}))
        try:
            await filled(broker)
            line = ByHand()
            client = Client(broker, "modest", line)
            client.send(*(Peek(id=number, queue="small", count=10) for number in range(1, 300)))
            assert client.ids == list(range(1, 300))
            assert not line.taken
            client.talk.close()
        finally:
            await broker.stop()

    asyncio.run(story())


def test_many_requests_at_once_are_done_some_in_a_turn_and_in_their_order(tmp_path: Path) -> None:
    async def story() -> None:
        broker = await open_broker(str(tmp_path), BrokerSettings({"waystation.flush": "os"}))
        try:
            await filled(broker)
            line = ByHand()
            client, ordinary = Client(broker, "busy", line), Client(broker, "ordinary", line)
            count = 3 * OTHERS_AT_ONCE + 5
            client.send(*(Consume(id=n, consumer=n, queue="small", credit=0) for n in range(1, count + 1)))
            assert client.ids == list(range(1, OTHERS_AT_ONCE + 1))
            done = OTHERS_AT_ONCE
            await line.turns()
            while done < count:
                ordinary.send(Ping(id=1))
                assert ordinary.ids == [1], "others are answered in between"
                assert client.talk.busy == (client.called == 0)
                client.called = 0
                client.work()
                assert client.ids == list(range(done + 1, min(done + OTHERS_AT_ONCE, count) + 1))
                done += len(client.ids)
                await line.rested()
            for talk in (client.talk, ordinary.talk):
                talk.close()
        finally:
            await broker.stop()

    asyncio.run(story())


def test_an_answer_to_who_looks_has_so_many_bytes_or_one_message(tmp_path: Path) -> None:
    async def story() -> None:
        broker = await open_broker(str(tmp_path), BrokerSettings({"waystation.flush": "os"}))
        try:
            await filled(broker)
            looks = Peek(id=1, queue="q", count=100), ReadEntries(id=1, queue="q", runs=[(0, 4)])
            for most, expected in ((1, 1), (FULL_BYTES // 2, 1), (FULL_BYTES, 2), (8 * FULL_BYTES, 4)):
                for look in looks:
                    client = Client(broker, "looks", ByHand())
                    client.talk.session.wire = Allows(most, entrance_of(broker))
                    client.send(look)
                    assert expected * FULL_BYTES // 2 < len(client.answers) < expected * FULL_BYTES // 2 + 1_000
                    client.talk.close()
        finally:
            await broker.stop()

    asyncio.run(story())


def test_behind_a_long_answer_the_next_look_waits_for_its_turn(tmp_path: Path) -> None:
    async def story() -> None:
        broker = await open_broker(str(tmp_path), BrokerSettings({"waystation.flush": "os"}))
        try:
            await filled(broker)
            line = ByHand()
            client = Client(broker, "looks", line)
            client.talk.session.wire = Allows(SHORT_ANSWER_BYTES, entrance_of(broker))
            client.send(*(Peek(id=number, queue="q", count=100) for number in range(1, 4)))
            assert client.ids == [1]
            assert client.talk.busy
            client.talk.close()
        finally:
            await broker.stop()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("size", "stored", "short"),
    [(10, SHORT_GET + 500, SHORT_GET), (SHORT_GET_BYTES // 8, 20, 8)],
    ids=["many", "large"],
)
def test_a_get_is_short_while_others_wait_and_says_that_there_is_more(
    tmp_path: Path, size: int, stored: int, short: int
) -> None:
    async def story() -> None:
        broker = await open_broker(str(tmp_path), BrokerSettings({"waystation.flush": "os"}))
        try:
            await broker.queues.declare("q")
            await broker.queues.put_durable("q", [Message(bytes(size))] * stored)
            client = Client(broker, "gets", ByHand())
            wire = client.talk.session.wire = Allows(FULL_BYTES, entrance_of(broker), others_wait=True)
            client.send(Get(id=1, queue="q", count=stored))
            first = got(client)
            assert (len(first.messages), first.more) == (short, True)
            wire.others_wait = False
            client.send(Get(id=2, queue="q", count=stored))
            rest = got(client)
            assert (len(rest.messages), rest.more) == (stored - short, False)
            tags = [delivered.tag for delivered in first.messages + rest.messages]
            assert tags == list(range(stored)), "none is left out, and none comes twice"
            client.talk.close()
        finally:
            await broker.stop()

    asyncio.run(story())


def got(client: Client) -> Got:
    """The answer to the last get."""
    answer = msgspec.msgpack.decode(client.answers[4:])
    return msgspec.convert(answer["value"], Got)


def test_queues_are_listed_in_slices_with_turns_for_others_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "LISTED_AT_ONCE", 2)

    async def story() -> None:
        broker = await open_broker(str(tmp_path), BrokerSettings({"waystation.flush": "os"}))
        try:
            for name in ("a", "b", "c", "d", "e"):
                await broker.queues.declare(name)
            client = Client(broker, "lists", ByHand())
            client.send(ListQueues(id=1), Ping(id=2), ListQueues(id=3, after="b", limit=2))
            assert client.ids == [2], "who asks for little does not wait for the list"
            await answered(client, 3)
            frames = list(values(client.answers))
            names = {frame["id"]: [one["queue"] for one in frame["value"]] for frame in frames if "value" in frame}
            assert names == {1: ["a", "b", "c", "d", "e"], 3: ["c", "d"]}
            client.talk.close()
        finally:
            await broker.stop()

    asyncio.run(story())


def values(answers: bytearray) -> Iterator[dict[str, Any]]:
    at = 0
    while at < len(answers):
        size = int.from_bytes(answers[at : at + 4], "big")
        yield msgspec.msgpack.decode(answers[at + 4 : at + 4 + size])
        at += 4 + size


def peek_frame(number: int) -> bytes:
    body = msgspec.msgpack.encode(Peek(id=number, queue="q", count=1_000))
    return len(body).to_bytes(4, "big") + body


def peeked_bytes(reader: socket.socket, number: int) -> int:
    reader.sendall(peek_frame(number))
    with reader.makefile("rb") as answers:
        return len(answers.read(int.from_bytes(answers.read(4), "big")))


def test_answers_to_who_looks_are_short_while_another_client_waits(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        address = server.addresses["kafka"]
        with waystation.connect(address) as client:
            queue = client.queue("q")
            for _ in range(40):
                queue.put(bytes(40_000))
            place = split_address(address)
            with socket.create_connection(place, timeout=DEADLINE_S) as reader:
                reader.sendall(MAGIC)
                sizes = []
                for number in range(1, 6):
                    queue.put(b"small")  # another one has just asked, and got its answer
                    sizes.append(peeked_bytes(reader, number))
            assert min(sizes) > 0
            assert sorted(sizes)[2] <= SHORT_ANSWER_BYTES + 1_000, "unless this machine stood still in between"


def test_the_client_gets_on_where_the_broker_gives_less_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is in this process, and believes that somebody waits."""
    monkeypatch.setattr(LongWork, "others_wait", lambda self, who: True)
    stored = 3 * SHORT_GET
    with waystation.open(":memory:") as host, waystation.connect(host.url) as client:
        queue = client.queue("q")
        queue.put_many([str(number) for number in range(stored)])
        messages = queue.get_many(stored - 1)
        assert [int(message.text()) for message in messages] == list(range(stored - 1))
        queue.ack_many(messages)
        assert [message.text() for message in queue.get_many(10)] == [str(stored - 1)]


def test_a_get_that_is_given_up_in_the_middle_gives_back_what_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LongWork, "others_wait", lambda self, who: True)
    stored = 3 * SHORT_GET
    asked = Connection.ask

    async def story() -> None:
        async with waystation.aio.open(":memory:") as host, waystation.aio.connect(host.url) as client:
            queue = await client.queue("q")
            await queue.put_many([b"x"] * stored)
            gets = 0

            async def ask(connection: Connection, command: Any, *given: Any, **options: Any) -> Any:
                nonlocal gets
                gets += isinstance(command, Get)
                if gets == 2:
                    getting.cancel()
                return await asked(connection, command, *given, **options)

            monkeypatch.setattr(Connection, "ask", ask)
            getting = asyncio.ensure_future(queue.get_many(stored))
            with pytest.raises(asyncio.CancelledError):
                await getting
            again = 0
            while again < stored:
                messages = await queue.get_many(stored, timeout=DEADLINE_S)
                assert messages, "what came is not in flight to nobody"
                again += len(messages)

    asyncio.run(story())


def test_the_client_asks_on_until_it_has_what_it_wants(tmp_path: Path) -> None:
    with Server(tmp_path) as server, waystation.connect(server.addresses["kafka"]) as client:
        queue = client.queue("q")
        for _ in range(12):
            queue.put(bytes(400_000))
        assert len(queue.peek(12)) == 12, "of which one answer has two or so at first"
        assert len(queue.peek(5, after=3)) == 5
        assert len(queue.peek(100)) == 12


def test_an_answer_to_who_looks_has_a_megabyte_at_first_and_twice_what_was_read_from_then_on(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        address = server.addresses["kafka"]
        with waystation.connect(address) as client:
            queue = client.queue("q")
            for _ in range(20):
                queue.put(bytes(400_000))
        with socket.create_connection(split_address(address), timeout=DEADLINE_S) as reader:
            reader.sendall(MAGIC)
            time.sleep(2 * LATELY_S)  # nobody else waits for an answer any more
            sizes = [peeked_bytes(reader, number) for number in range(1, 6)]
    assert sizes[0] <= FIRST_ANSWER_BYTES
    assert all(later <= 2 * earlier + 1_000 for earlier, later in pairwise(sizes))
    assert sizes[-1] > 4 * FIRST_ANSWER_BYTES, "and 8 MiB in the end"
