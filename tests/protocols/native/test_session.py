"""A session without any bytes: what the client in the broker's own process uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from waystation.broker.broker import Broker
from waystation.broker.open import open_broker
from waystation.config import BrokerSettings
from waystation.errors import UnknownTopic
from waystation.message import Message
from waystation.protocol import (
    Answer,
    AnyCommand,
    Cease,
    Ceased,
    Consume,
    CreateTopic,
    Credit,
    DeclareQueue,
    DeleteQueue,
    Deliver,
    DescribeQueue,
    Failure,
    Get,
    OpenInbox,
    Outgoing,
    Ping,
    Publish,
    PurgeQueue,
    Put,
    Reply,
    Subscribe,
)
from waystation.protocols.native import session as sessions
from waystation.protocols.native.commands import refused_series
from waystation.protocols.native.session import NativeSession
from waystation.queues.settings import QueueSettings

X = Message(b"x")


class Client:
    """A session and all that it sent."""

    def __init__(self, broker: Broker, name: str, **options: Any) -> None:
        self.sent: list[Outgoing] = []
        self.session = NativeSession(broker, self.sent.append, name, **options)
        self._ids = 0

    async def ask(self, command: Any) -> Any:
        self._ids += 1
        command.id = self._ids
        self.session.handle(command)
        return await self.answer(command.id)

    async def answer(self, id: int) -> Any:
        found = await until(
            lambda: [each for each in self.sent if isinstance(each, Answer | Failure) and each.id == id]
        )
        return found[0].value if isinstance(found[0], Answer) else found[0]

    @property
    def messages(self) -> list[bytes]:
        return [each.message.payload for sent in self.sent if isinstance(sent, Deliver) for each in sent.messages]


async def until(condition: Callable[[], Any]) -> Any:
    async with asyncio.timeout(30):
        while True:
            await asyncio.sleep(0.001)
            if found := condition():
                return found


@asynccontextmanager
async def _broker(folder: Path) -> AsyncIterator[Broker]:
    broker = await open_broker(str(folder), BrokerSettings({"waystation.flush": "os"}))
    try:
        yield broker
    finally:
        await broker.stop()


Story = Callable[[Broker], Awaitable[None]]
Tell = Callable[[Story], None]


@pytest.fixture
def tell(tmp_path: Path) -> Tell:
    """Runs a story with a broker."""

    def run(story: Story) -> None:
        async def told() -> None:
            async with _broker(tmp_path) as broker:
                await story(broker)

        asyncio.run(told())

    return run


def test_structs_go_through_as_they_are(tell: Tell) -> None:
    async def story(broker: Broker) -> None:
        client = Client(broker, "a")
        assert (await client.ask(DeclareQueue(queue="q"))).queue == "q"
        assert (await client.ask(Put(queue="q", messages=[X, X]))).count == 2
        got = await client.ask(Get(queue="q", count=5))
        assert [delivered.message for delivered in got.messages] == [X, X]
        client.session.close()

    tell(story)


def test_a_paused_session_is_sent_nothing_and_catches_up(tell: Tell) -> None:
    async def story(broker: Broker) -> None:
        client, other = Client(broker, "a"), Client(broker, "b")
        await client.ask(DeclareQueue(queue="q"))
        await client.ask(Consume(consumer=1, queue="q", credit=10_000))
        client.session.pause()
        for i in range(1_000):
            await other.ask(Put(queue="q", messages=[Message(b"%d" % i)]))
        assert client.messages == []
        held = (await other.ask(DescribeQueue(queue="q"))).held
        assert held == 0  # whatever the credit: it does not read, so others may have them
        client.session.resume()
        await until(lambda: len(client.messages) == 1_000)
        assert client.messages == [b"%d" % i for i in range(1_000)]

    tell(story)


def test_an_inbox_of_a_paused_session_keeps_the_newest(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waystation.protocols.native.commands.consuming.INBOX_KEPT", 5)

    async def story(broker: Broker) -> None:
        client, other = Client(broker, "a"), Client(broker, "b")
        inbox = await client.ask(OpenInbox(consumer=1))
        client.session.pause()
        for i in range(20):
            assert await other.ask(Reply(to=inbox, message=Message(b"%d" % i))) is True
        client.session.resume()
        assert await until(lambda: client.messages) == [b"15", b"16", b"17", b"18", b"19"]

    tell(story)


def test_large_messages_come_in_pieces(tell: Tell) -> None:
    async def story(broker: Broker) -> None:
        client = Client(broker, "a")
        await client.ask(DeclareQueue(queue="q"))
        for _ in range(20):
            await client.ask(Put(queue="q", messages=[Message(b"x" * 1_000_000)]))
        await client.ask(Consume(consumer=1, queue="q", credit=100))
        await until(lambda: len(client.messages) == 20)
        sizes = [len(sent.messages) for sent in client.sent if isinstance(sent, Deliver)]
        assert max(sizes) <= 4

    tell(story)


def test_a_busy_session_says_when_it_has_room(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_UNDER_WAY", 3)

    async def story(broker: Broker) -> None:
        rooms: list[bool] = []
        client = Client(broker, "a", on_room=lambda: rooms.append(True))
        await client.ask(DeclareQueue(queue="q"))
        for i in range(3):
            client.session.handle(Get(id=100 + i, queue="q", wait_ms=60_000))
        assert client.session.busy
        other = Client(broker, "b")
        await other.ask(Put(queue="q", messages=[X]))
        await client.answer(100)
        await until(lambda: rooms)
        assert not client.session.busy
        client.session.close()

    tell(story)


def test_a_full_session_takes_no_more_commands(tell: Tell) -> None:
    async def story(broker: Broker) -> None:
        client = Client(broker, "a")
        client.session.full = True
        assert client.session.handle_all([Ping(id=1)]) == 0
        client.session.full = False
        assert client.session.handle_all([Ping(id=1), Ping(id=2)]) == 2
        assert client.sent == [Answer(1), Answer(2)]

    tell(story)


def test_a_closed_session_says_nothing_and_holds_nothing(tell: Tell) -> None:
    async def story(broker: Broker) -> None:
        client, other = Client(broker, "a"), Client(broker, "b")
        await client.ask(DeclareQueue(queue="q"))
        await client.ask(Put(queue="q", messages=[X] * 3))
        await client.ask(Consume(consumer=1, queue="q", credit=1))
        await client.ask(Get(queue="q"))
        client.session.handle(Get(id=9, queue="q", wait_ms=60_000))
        client.session.handle(Subscribe(id=10, consumer=2, topics=["t"], mode="shared", group="g"))
        said = len(client.sent)
        client.session.close()
        client.session.close()
        client.session.handle(Ping(id=11))
        info = await other.ask(DescribeQueue(queue="q"))
        assert (info.ready, info.held, info.consumers) == (3, 0, 0)
        assert len(client.sent) == said
        assert broker.subscriptions.count("t") == 0

    tell(story)


def test_a_consumer_that_is_ceased_while_it_opens(tell: Tell) -> None:
    async def story(broker: Broker) -> None:
        client = Client(broker, "a")
        client.session.handle(Subscribe(id=50, consumer=2, topics=["t"], mode="shared", group="g", credit=5))
        assert await client.ask(Cease(consumer=2)) is None
        await client.answer(50)
        assert client.session.consumers == {}

    tell(story)


def test_the_broker_ends_a_consumer_after_its_last_messages(tell: Tell) -> None:
    async def story(broker: Broker) -> None:
        client, other = Client(broker, "a"), Client(broker, "b")
        await client.ask(DeclareQueue(queue="q"))
        await other.ask(Put(queue="q", messages=[X]))
        await client.ask(Consume(consumer=1, queue="q", credit=5))
        await until(lambda: client.messages)
        await other.ask(DeleteQueue(queue="q"))
        (ceased,) = await until(lambda: [each for each in client.sent if isinstance(each, Ceased)])
        assert (ceased.consumer, ceased.error) == (1, "NotFound")
        client.session.handle(Credit(consumer=1, count=5))  # too late, and no mistake

    tell(story)


def test_a_fault_of_ours_is_told_and_logged_and_is_nobody_elses(
    tell: Tell, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(broker: Broker) -> None:
        client = Client(broker, "a")
        await client.ask(DeclareQueue(queue="q"))

        def broken(*_: object, **__: object) -> None:
            raise ZeroDivisionError("a secret")

        monkeypatch.setattr(broker.queues, "put", broken)
        monkeypatch.setattr(broker.queues, "describe", broken)
        for command in (Put(queue="q", messages=[X]), DescribeQueue(queue="q")):
            failure = await client.ask(command)
            assert failure.error == "internal"
            assert "secret" not in failure.text
        assert await client.ask(Ping()) is None
        assert "ZeroDivisionError" in caplog.text

    tell(story)


def test_errors_are_named_by_the_nearest_class_that_everybody_knows() -> None:
    class Special(UnknownTopic):
        """Known here only."""

    assert sessions.error_name(Special("x")) == "UnknownTopic"


def test_puts_of_a_series_behind_a_refused_one_are_refused_and_no_others(tell: Tell) -> None:
    async def story(broker: Broker) -> None:
        client = Client(broker, "series")
        await client.ask(DeclareQueue(queue="q", settings=QueueSettings(max_length=3)))
        puts = [
            Put(id=101, queue="q", messages=[X] * 2, series=7),
            Put(id=102, queue="q", messages=[X] * 2, series=7),
            Put(id=103, queue="q", messages=[X], series=8),
            Put(id=104, queue="q", messages=[X], series=7),
        ]
        client.session.handle_all(puts)
        await client.ask(PurgeQueue(queue="q"))  # there is room now, but not for the rest of that series
        client.session.handle_all(
            [Put(id=105, queue="q", messages=[X], series=7), Put(id=106, queue="q", messages=[X])]
        )
        answers = [await client.answer(number) for number in range(101, 107)]
        assert [getattr(answer, "error", "stored") for answer in answers] == [
            "stored", "Full", "stored", "Full", "Full", "stored",
        ]  # fmt: skip

    tell(story)


def test_a_session_remembers_only_so_many_refused_series(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_series, "MAX_REFUSED_SERIES", 10)

    async def story(broker: Broker) -> None:
        client = Client(broker, "series")
        for number in range(1, 30):
            failure = await client.ask(Put(queue="nowhere", messages=[X], series=number))
            assert failure.error == "NotFound"
        assert [number for number in range(30) if number in client.session.refused_series] == [*range(20, 30)]

    tell(story)


def test_publishes_of_a_series_behind_a_refused_one_are_refused_and_no_others(tell: Tell) -> None:
    async def story(broker: Broker) -> None:
        client = Client(broker, "series")
        large = Message(bytes(2000))
        await client.ask(CreateTopic(topic="t", partitions=1, settings={"max.message.bytes": "1000"}))
        publishes: list[AnyCommand] = [
            Publish(id=101, topic="t", messages=[X] * 2, series=7),
            Publish(id=102, topic="t", messages=[X, large], series=7),
            Publish(id=103, topic="t", messages=[X], series=8),
            Publish(id=104, topic="t", messages=[X], series=7),
            Put(id=105, queue="q", messages=[X], series=7),  # a series may be of both
            Publish(id=106, topic="t", messages=[X]),
            Publish(id=107, topic="new", messages=[X], series=7),
        ]
        await client.ask(DeclareQueue(queue="q"))
        client.session.handle_all(publishes)
        answers = [await client.answer(number) for number in range(101, 108)]
        assert [getattr(answer, "error", "stored") for answer in answers] == [
            "stored", "TooLarge", "stored", "TooLarge", "TooLarge", "stored", "TooLarge",
        ]  # fmt: skip
        assert broker.topics.get("t").partitions[0].visible_offset == 4
        for command in (
            Publish(exchange="amq.direct", messages=[X], series=9),
            Publish(topic="t", messages=[X], series=9, tx=1),
        ):
            failure = await client.ask(command)
            assert (failure.error, failure.text.split(":")[0]) == ("Invalid", "series")

    tell(story)
