"""Ways through exchanges as protocols ask for them: resolved, remembered, and told again when something comes or
goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.broker.kit import broker_on, run
from waystation.broker.broker import Broker
from waystation.errors import Conflict, Invalid, NotAllowed, NotFound
from waystation.message import Message
from waystation.queues.settings import QueueSettings
from waystation.routing.resolving import ResolvedRoute

HELLO = Message(b"hello")


def stored(broker: Broker, queue: str) -> list[tuple[str | None, str | None]]:
    found = broker.queues.peek(queue, 100)
    return [(peeked.delivered.message.exchange, peeked.delivered.message.routing_key) for peeked in found]


def test_the_version_grows_with_whatever_can_alter_a_route(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            routing = broker.routing
            steps: tuple[Callable[[], Awaitable[object]], ...] = (
                lambda: routing.declare_exchange("orders", "fanout", alternate="rest"),
                lambda: broker.queues.declare("jobs"),
                lambda: routing.bind("orders", "queue:jobs"),
                lambda: broker.topics.create("audit", 1),
                lambda: routing.bind("orders", "topic:audit"),
                lambda: routing.unbind("orders", "queue:jobs"),
                lambda: routing.bind("orders", "queue:jobs", "again"),
                lambda: broker.queues.delete("jobs"),
                lambda: broker.topics.delete("audit"),
                lambda: routing.delete_exchange("orders"),
                lambda: broker.queues.declare("mine", QueueSettings(exclusive=True), owner="me"),
                lambda: broker.namespaces.create("shop"),
                lambda: broker.namespaces.delete("shop"),
            )
            for number, step in enumerate(steps):
                before = routing.version
                await step()
                assert routing.version > before, f"step {number}"
            before = routing.version
            broker.queues.release_owner("me")
            assert routing.version > before
            before = routing.version
            await broker.queues.declare("jobs", passive=False)
            await routing.publish("", "jobs", [HELLO])
            assert routing.version == before + 1, "messages alter no route"

    run(story())


def test_what_is_resolved_follows_every_change(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            routing = broker.routing
            with pytest.raises(NotFound, match="'orders'"):
                routing.resolve("orders", "k")
            await routing.declare_exchange("orders", "topic", alternate="rest")
            assert routing.resolve("orders", "a.b") == ResolvedRoute((), ())
            await routing.declare_exchange("rest", "fanout", internal=True)
            with pytest.raises(NotAllowed, match="internal"):
                routing.resolve("rest", "k")
            await broker.queues.declare("jobs")
            await routing.bind("rest", "queue:jobs")
            assert routing.resolve("orders", "a.b") == ResolvedRoute(("jobs",), ())
            await routing.bind("orders", "topic:audit", "a.*")
            assert routing.resolve("orders", "a.b") == ResolvedRoute((), ("audit",))
            await broker.topics.delete("audit")
            assert routing.resolve("orders", "a.b") == ResolvedRoute(("jobs",), ())
            await broker.queues.delete("jobs")
            assert routing.resolve("orders", "a.b") == ResolvedRoute((), ())

    run(story())


def test_the_default_exchange_reaches_topics_but_none_of_the_brokers_own(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topics.create("audit", 1)
            await broker.topics.create("shop.audit", 1)
            answer = await broker.routing.publish("", "audit", [HELLO], mandatory=True)
            assert answer.places == [("audit", 0, 0)]
            await broker.queues.declare("audit")
            assert broker.routing.resolve("", "audit") == ResolvedRoute(("audit",), ()), "the queue comes first"
            assert broker.routing.resolve("", "shop/audit") == ResolvedRoute((), ("shop.audit",))
            for name in ("__consumer_offsets", "__queues", "nobody", "", "/"):
                assert broker.routing.resolve("", name) == ResolvedRoute((), ())

    run(story())


def test_a_message_says_what_it_was_published_to(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.queues.declare("jobs")
            await broker.routing.declare_exchange("orders", "fanout")
            await broker.routing.declare_exchange("behind", "fanout")
            await broker.routing.bind("orders", "exchange:behind")
            await broker.routing.bind("behind", "queue:jobs")
            await broker.routing.publish("orders", "eu.new", [HELLO])
            await broker.routing.publish("", "jobs", [HELLO])
            said = Message(b"again", exchange="elsewhere", routing_key="k")
            await broker.routing.publish("orders", "eu.new", [said, HELLO])
            assert stored(broker, "jobs") == [
                ("orders", "eu.new"),
                ("", "jobs"),
                ("elsewhere", "k"),
                ("orders", "eu.new"),
            ]

    run(story())


def test_exchanges_of_the_new_kinds_are_remembered(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            routing = broker.routing
            for name in "abc":
                await broker.queues.declare(name)
            await routing.declare_exchange("later", "x-delayed-message", arguments={"x-delayed-type": "topic"})
            await routing.bind("later", "queue:a", "eu.#")
            await routing.declare_exchange("spread", "x-consistent-hash", arguments={"hash-header": "customer"})
            for name, weight in {"a": "1", "b": "1", "c": "2"}.items():
                await routing.bind("spread", f"queue:{name}", weight)
            with pytest.raises(Invalid, match="weight"):
                await routing.bind("spread", "queue:a", "eu.#")
        async with broker_on(tmp_path) as broker:
            routing = broker.routing
            assert routing.resolve("later", "eu.new") == ResolvedRoute(("a",), ())
            assert routing.resolve("spread", "k").reads_messages
            messages = [Message(b"", headers={"customer": f"c{number}"}) for number in range(300)]
            shares = Counter(name for message in messages for name in routing.route_all("spread", ("k",), message)[0])
            assert shares.total() == 300
            assert shares["c"] > shares["a"] > 30 < shares["b"]

    run(story())


def test_arguments_that_mean_something_have_to_agree_others_do_not(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            declare = broker.routing.declare_exchange
            await declare("later", "x-delayed-message", arguments={"x-delayed-type": "topic"})
            await declare("later", "x-delayed-message", arguments={"x-delayed-type": "topic", "note": 1})
            with pytest.raises(Conflict, match="x-delayed-type 'topic', not 'direct'"):
                await declare("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})
            with pytest.raises(Conflict, match="kind"):
                await declare("later", "topic")
            await declare("spread", "x-consistent-hash")
            with pytest.raises(Conflict, match="hash-header None, not 'a'"):
                await declare("spread", "x-consistent-hash", arguments={"hash-header": "a"})
            with pytest.raises(Invalid, match="x-delayed-type"):
                await declare("bad", "x-delayed-message")

    run(story())


def test_a_delay_is_kept_by_the_queue_behind_the_exchange(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.queues.declare("jobs")
            await broker.routing.declare_exchange("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})
            await broker.routing.bind("later", "queue:jobs", "k")
            await broker.routing.publish("later", "k", [Message(b"", delay_ms=60_000), HELLO])
            info = broker.queues.describe("jobs")
            assert (info.parked, info.ready) == (1, 1)

    run(story())


def test_bindings_of_queues_that_do_not_last_are_not_remembered(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.queues.declare("brief", QueueSettings(durable=False))
            await broker.routing.bind("amq.fanout", "queue:brief")
            assert broker.routing.resolve("amq.fanout", "") == ResolvedRoute(("brief",), ())
            assert broker.catalog.bindings() == []

    run(story())
