"""Subscriptions of every mode side by side: each gets its own, and they are counted."""

from __future__ import annotations

from pathlib import Path

from tests.broker.feeds import subscribe, until
from tests.broker.kit import broker_on, run
from waystation.message import Message
from waystation.queues.feed import Verdict


def test_every_mode_gets_a_message_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            live = [await subscribe(broker, "#") for _ in range(2)]
            stream = await subscribe(broker, "t", mode="stream", group="s", start="earliest")
            shared = [await subscribe(broker, "t", mode="shared", group="x", start="earliest") for _ in range(2)]
            broker.messages.publish("t", [Message(b"%d" % i) for i in range(10)])
            for consumer in (*live, stream):
                await consumer.gets(*map(str, range(10)))
            await until(lambda: sum(len(consumer.got) for consumer in shared) == 10, "one each of the shared ones")
            for consumer in (stream, *shared):
                runs = [(one.tag, 1) for one in consumer.got]
                assert consumer.feed.settle(Verdict.ACK, runs).unknown == []

    run(main())


def test_subscribers_are_counted_by_topic_each_group_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            for name in ("t.a", "t.b", "u"):
                await broker.topics.create(name, 1)
            assert broker.subscriptions.counts() == {}
            wide = await subscribe(broker, "t.*")
            narrow = await subscribe(broker, "t.a")
            group = [await subscribe(broker, "t.b", mode="stream", group="g") for _ in range(2)]
            shared = await subscribe(broker, "t.b", mode="shared", group="x")
            assert broker.subscriptions.counts() == {"t.a": 2, "t.b": 3}
            assert narrow.answer.subscribers == 2
            assert broker.subscriptions.count("u") == 0
            assert broker.subscriptions.count("nowhere") == 0
            await broker.topics.create("t.c", 1)
            assert broker.subscriptions.count("t.c") == 1
            for consumer in (wide, narrow, *group, shared):
                consumer.feed.close()
            assert broker.subscriptions.count("t.a") == 0
            await until(lambda: broker.subscriptions.count("t.b") <= 1, "nobody but a durable subscription")

    run(main())
