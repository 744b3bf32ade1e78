"""Namespaces: what is in one, what it may hold, that it survives a restart, and takes all with it when it goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.broker.kit import broker_on, run
from waystation.errors import Conflict, Full, Invalid, NotAllowed, NotFound, StorageFailed
from waystation.message import Message
from waystation.observe.connections import ConnectionInfo
from waystation.routing.namespaces import Limits, Namespaces
from waystation.routing.resolving import ResolvedRoute
from waystation.routing.table import PREDECLARED
from waystation.share.topic_queue_settings import TopicQueueSettings

HELLO = Message(b"hello")


class Guest:
    """A connection to a namespace."""

    protocol = "amqp"
    login = "guest"
    credential = ""
    asked_with_users = True

    def __init__(self, name: str, namespace: str) -> None:
        self.name = name
        self.namespace = namespace
        self.ended: str | None = None

    def info(self) -> ConnectionInfo:
        return ConnectionInfo(self.name, "amqp", "guest", self.namespace, ("", 0), ("", 0), 0, "running", {})

    def check_entry(self) -> None:
        pass

    def texts(self) -> list[str]:
        return [self.name]

    def end(self, reason: str) -> None:
        self.ended = reason


def test_namespaces_are_made_once_and_survive_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            namespaces = broker.namespaces
            assert (namespaces.names(), "/" in namespaces, "shop" in namespaces) == (["/"], True, False)
            assert await namespaces.create("shop", description="the shop", tags=["eu"]) is True
            assert await namespaces.create("shop") is False
            assert await namespaces.create("/staging") is True
            await namespaces.set_limits("/", Limits(max_connections=5))
        async with broker_on(tmp_path) as broker:
            namespaces = broker.namespaces
            assert namespaces.names() == ["/", "/staging", "shop"]
            assert len(namespaces) == 3
            assert (namespaces.get("shop").description, namespaces.get("shop").tags) == ("the shop", ["eu"])
            assert namespaces.limits("/") == Limits(max_connections=5)
            with pytest.raises(NotFound, match="there is no namespace 'shp'"):
                namespaces.get("shp")
            for name in PREDECLARED:
                assert broker.routing.describe(f"shop/{name}").kind == PREDECLARED[name]

    run(story())


@pytest.mark.parametrize("name", ["", "//", "a/b", "/a/b", "a/", "__mine", "amq.x", "a\nb", "n" * 128, "\udcff"])
def test_names_that_could_be_mistaken_are_refused(tmp_path: Path, name: str) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            with pytest.raises(Invalid, match="namespace"):
                await broker.namespaces.create(name)
            assert broker.namespaces.names() == ["/"]

    run(story())


def test_two_namespaces_never_share_the_names_of_topics(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.namespaces.create("shop")
            with pytest.raises(Conflict, match="'/shop' is too like 'shop'"):
                await broker.namespaces.create("/shop")

    run(story())


@pytest.mark.parametrize("kind", ["queue", "exchange", "queue on a topic"])
def test_a_namespace_is_new_when_it_is_created(tmp_path: Path, kind: str) -> None:
    """Else an exchange that somebody outside has bound to a queue of its own would tell what is published inside."""

    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            if kind == "queue":
                await broker.queues.declare("shop/jobs")
            elif kind == "exchange":
                await broker.routing.declare_exchange("shop/orders", "fanout")
            else:
                await broker.topic_queues.declare("shop/shared", TopicQueueSettings("clicks"))
            await broker.queues.declare("shopping/jobs")
            await broker.topics.create("shop.clicks", 1)
            with pytest.raises(Conflict, match="begin with 'shop/'"):
                await broker.namespaces.create("shop")
            assert await broker.namespaces.create("shop.eu")
            if kind == "queue":
                await broker.queues.delete("shop/jobs")
            elif kind == "exchange":
                await broker.routing.delete_exchange("shop/orders")
            else:
                await broker.topic_queues.delete("shop/shared")
            assert await broker.namespaces.create("shop")
            assert broker.namespaces.of_topic("shop.clicks") == "shop", "topics are taken in"

    run(story())


def test_full_names_lead_to_the_namespace_that_there_is(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            namespaces = broker.namespaces
            for name in ("shop", "shop.eu", "/staging"):
                await namespaces.create(name)
            expected = {
                "jobs": ("/", "jobs"),
                "shop/jobs": ("shop", "jobs"),
                "shop/a/b": ("shop", "a/b"),
                "shop/": ("shop", ""),
                "shop": ("/", "shop"),
                "other/jobs": ("/", "other/jobs"),
                "/staging/jobs": ("/staging", "jobs"),
                "/jobs": ("/", "/jobs"),
                "": ("/", ""),
            }
            for full, (namespace, local) in expected.items():
                assert (namespaces.of(full), namespaces.local(full)) == (namespace, local), full
            topics = {"a": "/", "shop.a": "shop", "shop.eu.a": "shop.eu", "shop.us.a": "shop", "staging.a": "/staging"}
            for topic, namespace in topics.items():
                assert namespaces.of_topic(topic) == namespace

    run(story())


def test_the_exchanges_of_a_namespace_are_its_own_and_as_lasting_as_the_first_ones(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            routing = broker.routing
            await broker.namespaces.create("shop")
            await broker.queues.declare("shop/jobs")
            await routing.bind("shop/amq.direct", "queue:shop/jobs", "k")
            assert routing.resolve("shop/amq.direct", "k") == ResolvedRoute(("shop/jobs",), ())
            assert routing.resolve("amq.direct", "k") == ResolvedRoute((), ())
            for name in PREDECLARED:
                with pytest.raises(NotAllowed, match="cannot be deleted"):
                    await routing.delete_exchange(f"shop/{name}")
                await routing.declare_exchange(f"shop/{name}", PREDECLARED[name])
            with pytest.raises(NotAllowed, match=r"begin with 'amq\.'"):
                await routing.declare_exchange("shop/amq.mine")
        async with broker_on(tmp_path) as broker:
            assert broker.routing.resolve("shop/amq.direct", "k") == ResolvedRoute(("shop/jobs",), ())

    run(story())


def test_messages_carry_the_names_of_their_namespace(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.namespaces.create("shop")
            await broker.queues.declare("shop/jobs")
            await broker.routing.bind("shop/amq.fanout", "queue:shop/jobs")
            await broker.routing.publish("shop/amq.fanout", "a/b", [HELLO])
            await broker.routing.publish("", "shop/jobs", [HELLO])
            said = [peeked.delivered.message for peeked in broker.queues.peek("shop/jobs", 10)]
            assert [(message.exchange, message.routing_key) for message in said] == [
                ("amq.fanout", "a/b"),
                ("", "jobs"),
            ]

    run(story())


def test_a_deleted_namespace_takes_all_that_is_in_it_and_nothing_else(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            asked: list[str] = []

            async def on_delete(name: str) -> None:
                asked.append(name)

            broker.namespaces.subscribe_deletions(on_delete)
            for name in ("shop", "shop.eu"):
                await broker.namespaces.create(name)
            for name in ("jobs", "shop/jobs", "shop/mail", "shopping/jobs", "shop.eu/jobs"):
                await broker.queues.declare(name)
                await broker.routing.publish("", name, [HELLO])
            for name in ("shop/orders", "orders", "shop.eu/orders"):
                await broker.routing.declare_exchange(name, "fanout")
            await broker.routing.bind("shop/amq.fanout", "queue:shop/jobs")
            await broker.routing.bind("orders", "exchange:shop/orders")
            for topic in ("shop.clicks", "shop.eu.clicks"):
                await broker.topics.create(topic, 1, {"waystation.stream": "true"})
            await broker.topics.create("shop.theirs", 1)
            await broker.topic_queues.declare("shop/shared", TopicQueueSettings("shop.theirs"))
            inside, outside = Guest("in", "shop"), Guest("out", "shop.eu")
            broker.connections.add(inside)
            broker.connections.add(outside)

            await broker.namespaces.delete("shop")

            assert asked == ["shop"]
            assert (inside.ended, outside.ended) == ("vhost 'shop' is deleted", None)
            assert "shop" not in broker.namespaces
            assert list(broker.queues.names()) == ["jobs", "shop.eu/jobs", "shopping/jobs"]
            assert set(broker.topics.names()) == {"shop.eu.clicks", "shop.theirs"}
            assert broker.topic_queues.names() == []
            assert not [name for name in broker.routing.exchange_names() if name.startswith("shop/")]
            assert broker.routing.listing().bindings == []
            with pytest.raises(NotFound, match="'shop'"):
                await broker.namespaces.delete("shop")
        async with broker_on(tmp_path) as broker:
            assert broker.namespaces.names() == ["/", "shop.eu"]
            assert list(broker.queues.names()) == ["jobs", "shop.eu/jobs", "shopping/jobs"]
            assert broker.catalog.bindings() == []
            assert {row.name for row in broker.catalog.exchanges()} == {"orders", "shop.eu/orders"}

    run(story())


def test_many_queues_go_with_a_namespace(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.namespaces.create("shop")
            for number in range(1_200):
                broker.queues.ensure_own(f"shop/{number}")
            assert broker.namespaces.queue_count("shop") == 1_200
            await broker.namespaces.delete("shop")
            assert len(broker.queues) == 0

    run(story())


def test_the_first_namespace_stays(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            with pytest.raises(NotAllowed, match="always there"):
                await broker.namespaces.delete("/")

    run(story())


def test_a_deletion_that_fails_can_be_tried_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.namespaces.create("shop", limits=Limits(max_bytes=10))
            failing = True

            async def on_delete(name: str) -> None:
                if failing:
                    raise StorageFailed("the disk is full")

            broker.namespaces.subscribe_deletions(on_delete)
            with pytest.raises(StorageFailed):
                await broker.namespaces.delete("shop")
            assert broker.namespaces.limits("shop").max_bytes == 10
            assert broker.namespaces.byte_limits == {"shop": 10}
            assert broker.routing.describe("shop/amq.topic").kind == "topic"
            failing = False
            await broker.namespaces.delete("shop")
            assert (broker.namespaces.names(), broker.namespaces.byte_limits) == (["/"], {})

    run(story())


def test_a_namespace_has_no_more_queues_than_its_limit(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.namespaces.create("shop", limits=Limits(max_queues=2))
            await broker.queues.declare("shop/early")
            await broker.queues.declare("shop/jobs")
            with pytest.raises(Full, match=r"namespace 'shop' has 2 queues already.*'mail'"):
                await broker.queues.declare("shop/mail")
            await broker.queues.declare("shop/jobs")
            await broker.queues.declare("mail")
        async with broker_on(tmp_path) as broker:
            with pytest.raises(Full):
                await broker.queues.declare("shop/mail")
            await broker.queues.delete("shop/early")
            await broker.queues.declare("shop/mail")
            assert (broker.namespaces.queue_count("shop"), broker.namespaces.queue_count("/")) == (2, 1)
            await broker.namespaces.set_limits("shop", Limits())
            await broker.queues.declare("shop/more")

    run(story())


def test_connections_are_limited_per_namespace(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.namespaces.create("shop", limits=Limits(max_connections=2))
            broker.namespaces.check_connections("shop", 1)
            broker.namespaces.check_connections("/", 1_000_000)
            with pytest.raises(NotAllowed, match="2 connections; its limit is 2"):
                broker.namespaces.check_connections("shop", 2)

    run(story())


@pytest.mark.parametrize("limits", [{"max_queues": -1}, {"max_bytes": 2**63}])
def test_limits_that_make_no_sense_are_refused(tmp_path: Path, limits: dict[str, Any]) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            with pytest.raises(Invalid, match=next(iter(limits))):
                await broker.namespaces.create("shop", limits=Limits(**limits))
            assert "shop" not in broker.namespaces

    run(story())


def test_there_is_an_end_to_how_many_there_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr("waystation.routing.namespaces.MAX_NAMESPACES", 2)
        async with broker_on(tmp_path) as broker:
            await broker.namespaces.create("shop")
            with pytest.raises(Full, match="'one too many'"):
                await broker.namespaces.create("one too many")

    run(story())


def test_what_cannot_be_read_of_a_namespace_does_not_keep_the_broker_from_starting(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.namespaces.create("shop")
            broker.catalog.save_definition("namespace", "shop", msgspec.msgpack.encode({"limits": "many"}))
        async with broker_on(tmp_path) as broker:
            assert isinstance(broker.namespaces, Namespaces)
            assert broker.namespaces.names() == ["/", "shop"]

    run(story())
