"""What rules allow, on a broker: who may what, in which namespace, and what a change does to what is open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.kit import broker_on, run
from waystation.broker.access import Access
from waystation.broker.access.types import ANONYMOUS, DEFAULT, LOCAL, Principal
from waystation.broker.broker import Broker
from waystation.catalog import CatalogChange, Update
from waystation.errors import NotAllowed, WaystationError
from waystation.message import Message
from waystation.protocol import Subscribe
from waystation.queues.settings import QueueSettings
from waystation.routing.namespace_names import prefix_of, split_full_name
from waystation.security.permissions import Operation, Permissions, Resource, key_of
from waystation.security.rules import Rule
from waystation.security.users import User
from waystation.security.whereabouts import Whereabouts
from waystation.share.topic_queue_settings import TopicQueueSettings
from waystation.subscriptions.tailing import NEXT

ALICE = Principal("alice")


def with_users(folder: Path, story: Callable[[Broker], Awaitable[None]], **users: User) -> None:
    """A broker with the users alice and admin, a superuser."""

    async def play() -> None:
        async with broker_on(folder, offsets_topic_num_partitions="1", waystation_queue_shards="1") as broker:
            for name, user in ({"alice": User(), "admin": User(superuser=True)} | users).items():
                await broker.users.add(name, user)
            await story(broker)

    run(play())


def access(broker: Broker, principal: Principal = ALICE, namespace: str = DEFAULT) -> Access:
    return broker.access(principal, namespace, broker.meters.native)


def may(operation: Operation, resource: Resource, name: str, **more: Any) -> Rule:
    return Rule(f"User:{ALICE.name}", operation, resource, name, **more)


def test_a_broker_without_users_asks_nobody_and_the_first_user_closes_it(tmp_path: Path) -> None:
    async def play() -> None:
        async with broker_on(tmp_path) as broker:
            await access(broker, ANONYMOUS).create_topic("orders", 1)
            assert not broker.permissions.enforced
            await broker.users.add("admin", User(superuser=True))
            with pytest.raises(NotAllowed, match="User:ANONYMOUS may not delete topic 'orders'"):
                await access(broker, ANONYMOUS).delete_topic("orders")
            await access(broker, Principal("admin")).delete_topic("orders")

    run(play())


def test_what_no_rule_allows_is_refused_and_a_rule_holds_at_once(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        alice = access(broker)
        with pytest.raises(NotAllowed, match="User:alice may not create topic 'orders'"):
            await alice.create_topic("orders", 1)
        await broker.permissions.add([may("create", "topic", "orders"), may("write", "topic", "orders")])
        await alice.create_topic("orders", 1)
        alice.publish("orders", [Message(b"x")])
        await broker.permissions.add([may("write", "topic", "ord", match="prefixed", allow=False)])
        with pytest.raises(NotAllowed, match="may not write topic"):
            alice.publish("orders", [Message(b"x")])

    with_users(tmp_path, story)


def test_a_rule_holds_in_its_namespace_by_the_names_in_it(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await broker.namespaces.create("shop")
        await broker.permissions.add([may("create", "queue", "jobs", namespace="shop")])
        await access(broker).declare_queue("shop/jobs", QueueSettings())
        with pytest.raises(NotAllowed):
            await access(broker).declare_queue("jobs", QueueSettings())
        await broker.permissions.add([may("read", "topic", "*", namespace="shop")])
        assert broker.permissions.allows(ALICE, "read", "topic", "shop.clicks")
        assert not broker.permissions.allows(ALICE, "read", "topic", "clicks")
        assert not broker.permissions.allows(ALICE, "read", "topic", "*"), "which is all of them, wherever"

    with_users(tmp_path, story)


def test_groups_hosts_and_superusers_of_the_settings(tmp_path: Path) -> None:
    async def play() -> None:
        async with broker_on(tmp_path, auth_superusers="root") as broker:
            await broker.users.add("alice", User(groups=("ops",)))
            allows = broker.permissions.allows
            assert allows(Principal("root"), "alter", "cluster", "*")
            assert allows(LOCAL, "alter", "cluster", "*")
            await broker.permissions.add(
                [
                    Rule("Group:ops", "describe", "cluster", "*"),
                    may("read", "topic", "*", host="10.0.0.1"),
                    may("write", "topic", "*"),
                    may("write", "topic", "*", host="10.0.0.2", allow=False),
                ]
            )
            assert allows(ALICE, "describe", "cluster", "*")
            assert allows(ALICE.at("10.0.0.1"), "read", "topic", "t")
            assert not allows(ALICE.at("10.0.0.2"), "read", "topic", "t")
            assert allows(ALICE.at("10.0.0.1"), "write", "topic", "t")
            assert not allows(ALICE.at("10.0.0.2"), "write", "topic", "t")

    run(play())


def test_rules_survive_a_restart(tmp_path: Path) -> None:
    async def play() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.users.add("alice", User())
            await broker.permissions.add([may("read", "topic", "orders")])
        async with broker_on(tmp_path) as broker:
            assert broker.permissions.rules() == [may("read", "topic", "orders")]
            assert broker.permissions.allows(ALICE, "read", "topic", "orders")
            await broker.permissions.remove(broker.permissions.rules())
            assert not broker.permissions.allows(ALICE, "read", "topic", "orders")

    run(play())


def test_open_consumers_end_when_they_may_no_longer_read(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await broker.queues.declare("jobs", QueueSettings())
        await broker.queues.put_durable("jobs", [Message(b"one")])
        await broker.topics.create("orders", 1)
        rights = [may("read", "queue", "jobs"), may("read", "topic", "orders"), may("read", "group", "readers")]
        await broker.permissions.add(rights)
        ended: list[str] = []
        delivered: list[Any] = []
        alice = access(broker)

        def note(kind: str) -> Callable[[WaystationError], None]:
            return lambda error: ended.append(f"{kind}: {error}")

        alice.consume("jobs", "c", delivered.extend, on_end=note("queue")).credit(1)
        alice.stream_queues.read("orders", NEXT, print, note("stream"))
        for group, mode in ((None, "live"), ("readers", "stream"), ("readers2", "shared")):
            if group is not None:
                await broker.permissions.add([may("read", "group", group)])
            command = Subscribe(consumer=1, topics=["orders"], mode=mode, group=group)  # type: ignore[arg-type]
            await alice.subscriptions.open(command, "c", print, note(mode))
        await asyncio.sleep(0)
        assert len(broker.open_consumers) == 5
        await broker.permissions.add([Rule("User:bob", "read", "queue", "jobs")])  # nobody's concern here
        assert ended == []
        await broker.permissions.remove([may("read", "queue", "jobs")])
        assert ended == ["queue: User:alice may not read queue 'jobs'"]
        assert broker.queues.describe("jobs").consumers == 0
        await broker.permissions.add([may("read", "topic", "*", allow=False)])
        assert sorted(one.partition(":")[0] for one in ended) == ["live", "queue", "shared", "stream", "stream"]
        assert len(broker.open_consumers) == 0

    with_users(tmp_path, story)


def test_a_pattern_is_for_who_may_read_all_that_it_can_match(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        async def subscribe(*topics: str, syntax: Any = "wildcard") -> None:
            command = Subscribe(consumer=1, topics=list(topics), mode="live", syntax=syntax)
            feed, _ = await access(broker).subscriptions.open(command, "c", print, print)
            feed.close()

        await broker.permissions.add([may("read", "topic", "orders.", match="prefixed")])
        await subscribe("orders.*.eu")
        await subscribe("orders.eu")
        for refused in ("#", "*.eu", "orders.#"):  # which is `orders`, too
            with pytest.raises(NotAllowed):
                await subscribe(refused)
        with pytest.raises(NotAllowed):
            await subscribe("orders.*", syntax="regex")
        await broker.permissions.add([may("read", "topic", "orders", match="prefixed")])
        await subscribe("orders.#")
        await subscribe("orders[.]eu", syntax="regex")
        with pytest.raises(NotAllowed):
            await subscribe("orders|secret", syntax="regex")
        await broker.permissions.add([may("read", "topic", "orders.secret", allow=False)])
        with pytest.raises(NotAllowed):
            await subscribe("orders.#")

    with_users(tmp_path, story)


def test_to_publish_through_an_exchange_is_to_write_to_it_and_to_nothing_else(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await broker.queues.declare("jobs", QueueSettings())
        await broker.routing.declare_exchange("events", "fanout")
        await broker.routing.bind("events", "queue:jobs")
        alice = access(broker)
        for exchange in ("events", ""):
            with pytest.raises(NotAllowed):
                await alice.publish_through(exchange, "jobs", [Message(b"x")])
        await broker.permissions.add([may("write", "exchange", "events")])
        await alice.publish_through("events", "jobs", [Message(b"x")])
        await broker.permissions.add([may("write", "queue", "jobs")])
        await alice.publish_through("", "jobs", [Message(b"x")])
        with pytest.raises(NotAllowed, match="may not write queue 'other'"):
            alice.resolve("", "other")
        await broker.permissions.add([may("write", "exchange", "amq.default")])
        alice.resolve("", "other")
        assert broker.queues.describe("jobs").ready == 2

    with_users(tmp_path, story)


def test_tags_show_the_broker_and_no_message(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        allows = broker.permissions.allows
        watcher, boss = Principal("watcher"), Principal("boss")
        assert allows(watcher, "describe", "cluster", "*")
        assert not allows(watcher, "alter", "cluster", "*")
        assert allows(boss, "alter", "cluster", "*")
        assert not allows(boss, "read", "queue", "jobs")

    with_users(tmp_path, story, watcher=User(tags=("monitoring",)), boss=User(tags=("administrator",)))


def test_a_publisher_that_is_remembered_is_asked_again_when_anything_has_changed(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        asked = 0
        real = broker.permissions.check

        def check(principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
            nonlocal asked
            asked += 1
            real(principal, operation, resource, name)

        broker.permissions.check = check  # type: ignore[method-assign]
        await broker.topics.create("shop.orders", 1)
        rule = Rule("User:alice", "write", "topic", "shop.orders")
        own = Rule("User:alice", "write", "topic", "shop.orders", allow=False, namespace="/")
        await broker.permissions.add([rule, own])
        alice = access(broker)
        with pytest.raises(NotAllowed):
            alice.publish("shop.orders", [Message(b"x")])
        await broker.namespaces.create("shop")  # now it is a topic of this namespace, for which nothing denies it
        asked = 0
        for _ in range(10):
            alice.publish("shop.orders", [Message(b"x")])
        assert asked == 1
        await broker.namespaces.delete("shop")
        if "shop.orders" not in broker.topics:
            await broker.topics.create("shop.orders", 1)
        with pytest.raises(NotAllowed):
            alice.publish("shop.orders", [Message(b"x")])
        await broker.permissions.remove([own])
        alice.publish("shop.orders", [Message(b"x")])
        await broker.permissions.remove([rule])
        with pytest.raises(NotAllowed):
            alice.publish("shop.orders", [Message(b"x")])

    with_users(tmp_path, story)


def test_what_creates_its_topic_needs_the_right_to_create_it(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        alice = access(broker)
        await access(broker, Principal("admin")).declare_exchange("events", "topic")
        await broker.permissions.add(
            [
                may("read", "exchange", "events"),
                may("write", "topic", "orders"),
                may("read", "topic", "orders"),
                may("create", "queue", "jobs"),
            ]
        )
        on_topic = TopicQueueSettings("orders")
        for refused in (alice.bind("events", "topic:orders", "k"), alice.topic_queues.declare("jobs", on_topic)):
            with pytest.raises(NotAllowed, match="may not create topic 'orders'"):
                await refused
            assert "orders" not in broker.topics
        await broker.permissions.add([may("create", "topic", "orders")])
        await alice.topic_queues.declare("jobs", on_topic)
        await broker.permissions.remove([may("create", "topic", "orders")])
        await alice.bind("events", "topic:orders", "k")  # it is there
        assert "orders" in broker.topics

    with_users(tmp_path, story)


class _Tenants:
    """Namespaces, of which one's name begins with another's."""

    def of(self, name: str) -> str:
        namespace = split_full_name(name)[0]
        return namespace if namespace in ("shop", "shop.eu") else DEFAULT

    def local(self, name: str) -> str:
        return name[len(prefix_of(self.of(name))) :]

    def of_topic(self, topic: str) -> str:
        return next((one for one in ("shop.eu", "shop") if topic.startswith(f"{one}.")), DEFAULT)


LISTED: tuple[Resource, ...] = ("topic", "queue", "exchange", "group", "namespace")
SOME_NAMES = [
    f"{namespace}{between}{name}"
    for namespace, between in (("", ""), ("shop", "/"), ("shop", "."), ("shop.eu", "/"), ("shop.eu", "."))
    for name in ("a", "ab", "amq.default", "eu", "eu.a", "")
] + ["shop", "shop.eu"]
SOME_RULES = st.builds(
    Rule,
    st.just("User:alice"),
    st.sampled_from(["describe", "read", "all"]),
    st.sampled_from(LISTED),
    st.sampled_from(["a", "*", "amq.", "shop/", "shop.", "s", *SOME_NAMES[:-8]]).filter(bool),
    match=st.sampled_from(["literal", "literal", "prefixed", "regex"]),
    allow=st.sampled_from([True, True, False]),
    namespace=st.sampled_from(["*", "*", "shop", "shop.eu", "/"]),
).filter(lambda rule: rule.name != "*" or rule.match == "literal")


@given(st.lists(SOME_RULES, max_size=4), st.sampled_from(["", "shop", "shop.eu"]))
def test_all_or_nothing_of_a_kind_is_what_asking_for_each_would_say(rules: list[Rule], within: str) -> None:
    users: Any = SimpleNamespace(subscribe_changes=lambda callback: None, find=lambda name: None)
    nothing: Any = None
    tenants: Any = _Tenants()
    asked = Permissions(nothing, nothing, users, superusers=(), enforced=lambda: True, whereabouts=Whereabouts(tenants))
    update = Update(1, tuple(CatalogChange(key_of(rule), msgspec.json.encode(rule)) for rule in rules))
    run(asked.apply(update))
    alice = ALICE.inside(within)
    for resource in LISTED:
        extent = asked.extent(alice, "describe", resource)
        begin = prefix_of(within) if within else ""
        names = [name for name in SOME_NAMES if name.startswith(begin) and (name or resource == "exchange")]
        if extent is not None:
            assert {asked.allows(alice, "describe", resource, name) for name in names} <= {extent}


def test_a_rule_about_everything_needs_no_look_at_names(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        extent = broker.permissions.extent
        assert extent(ALICE, "describe", "queue") is False
        await broker.namespaces.create("shop")
        await broker.permissions.add([may("read", "queue", "*", namespace="shop")])
        assert extent(ALICE, "describe", "queue") is None
        assert extent(ALICE.inside("shop"), "describe", "queue") is True
        await broker.permissions.add([may("describe", "queue", "*")])
        assert extent(ALICE, "describe", "queue") is True
        await broker.permissions.add([may("describe", "queue", "x", allow=False)])
        assert extent(ALICE, "describe", "queue") is None
        assert extent(Principal("admin"), "describe", "queue") is True

    with_users(tmp_path, story)
