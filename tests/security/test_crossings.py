"""Ways from one tenant's things to another's that go by what a client wrote: a failure history, a name, a pattern."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.security.test_permissions import access, with_users
from waystation.broker.access import Access
from waystation.broker.access.types import ConsumerBeat, Policy, Principal
from waystation.broker.broker import Broker
from waystation.errors import Invalid, NotAllowed
from waystation.message import Message
from waystation.protocol import Subscribe
from waystation.queues.settings import QueueSettings
from waystation.security.rules import RESOURCES, Rule
from waystation.share.topic_queue_settings import TopicQueueSettings

ADMIN, ALICE = Principal("admin"), Principal("alice")
INSIDE = [
    *(
        Rule("User:alice", "all", kind, "*", namespace="shop")
        for kind in RESOURCES
        if kind not in ("cluster", "namespace")
    ),
    Rule("User:alice", "read", "namespace", "shop"),
]


# -- redriving ---------------------------------------------------------------------------------------------------------


def test_a_made_up_failure_history_leads_to_no_place_that_its_redriver_may_not_write_to(tmp_path: Path) -> None:
    """`x-death` is a header: whoever puts a message into a dead-letter queue can say that it died anywhere."""

    async def story(broker: Broker) -> None:
        await broker.namespaces.create("shop")
        await broker.permissions.add(INSIDE)
        await broker.topics.create("theirs", 1)
        for queue in ("theirs", "shop/own", "shop/dead"):
            await broker.queues.declare(queue, QueueSettings())
        alice = access(broker, ALICE.inside("shop"), "shop")
        deaths: list[dict[str, Any]] = [
            {"queue": "theirs"},
            {"queue": "topic:theirs"},
            {"queue": "topic:theirs", "group": "theirs", "partition": 0, "offset": 0},
            {"queue": "shop/own"},
            {"queue": "not-there"},
        ]
        await alice.put_durable("shop/dead", [Message(b"x", headers={"x-death": [death]}) for death in deaths])
        foreseen = await alice.redrive("shop/dead", dry_run=True)
        assert foreseen.targets == {"shop/own": 1}, "what is there elsewhere is not told"
        assert foreseen.skipped == 4
        answer = await alice.redrive("shop/dead")
        assert (answer.moved, answer.skipped) == (1, 4)
        job = await alice.views.act("redrive", {"queue": "shop/dead"})
        for _ in range(1_000):
            if broker.jobs.get(job.job).state != "running":
                break
            await asyncio.sleep(0.001)
        assert broker.jobs.get(job.job).state == "done"
        assert broker.queues.describe("theirs").ready == 0
        assert broker.topics.partition("theirs", 0).end_offset == 0
        assert broker.queues.describe("shop/own").ready == 1
        assert (await access(broker, ADMIN).redrive("shop/dead")).moved == 2, "a superuser may"

    with_users(tmp_path, story)


# -- a namespace whose name begins with another's ----------------------------------------------------------------------


def of_shop_and_shop_eu(story: Callable[[Broker, Access], Awaitable[None]]) -> Callable[[Broker], Awaitable[None]]:
    """The topic `shop.orders` is in the namespace `shop`, `shop.eu.orders` in `shop.eu`."""

    async def play(broker: Broker) -> None:
        for namespace in ("shop", "shop.eu"):
            await broker.namespaces.create(namespace)
            await broker.topics.create(f"{namespace}.orders", 1)
        await broker.permissions.add(INSIDE)
        await story(broker, access(broker, ALICE.inside("shop"), "shop"))

    return play


def nothing(*_: object) -> None:
    pass


@pytest.mark.parametrize("mode", ["live", "stream", "shared"])
@pytest.mark.parametrize(("topics", "syntax"), [(["shop.*.#"], "wildcard"), (["shop\\.(?:.*)"], "regex")])
def test_a_pattern_does_not_lead_into_a_namespace_beneath(
    tmp_path: Path, mode: Any, topics: list[str], syntax: Any
) -> None:
    async def story(broker: Broker, alice: Access) -> None:
        wanted = Subscribe(
            consumer=1, mode=mode, topics=topics, syntax=syntax, group=None if mode == "live" else "shop/g"
        )
        outside = access(broker, ALICE)
        for one in (alice, outside):
            with pytest.raises(NotAllowed, match="may not read topic"):
                await one.subscriptions.open(wanted, "c", nothing, nothing)
        await broker.permissions.add([Rule("User:alice", "read", "topic", "*", namespace="shop.eu")])
        feed, _ = await outside.subscriptions.open(wanted, "c", nothing, nothing)
        feed.close()
        with pytest.raises(NotAllowed):
            await alice.subscriptions.open(wanted, "c", nothing, nothing)

    with_users(tmp_path, of_shop_and_shop_eu(story))


def test_a_pattern_that_cannot_match_what_is_beneath_is_fine_until_a_namespace_of_such_a_name_comes(
    tmp_path: Path,
) -> None:
    async def story(broker: Broker, alice: Access) -> None:
        ended: list[object] = []
        wanted = Subscribe(consumer=1, mode="live", topics=["shop.us.#", "shop.orders"])
        await alice.subscriptions.open(wanted, "c", nothing, ended.append)
        assert not ended
        await broker.namespaces.create("shop.us")
        assert len(ended) == 1

    with_users(tmp_path, of_shop_and_shop_eu(story))


def test_the_right_to_create_every_topic_creates_none_in_a_namespace_beneath(tmp_path: Path) -> None:
    async def story(broker: Broker, alice: Access) -> None:
        await broker.permissions.add([Rule("User:alice", "create", "cluster", "*")])
        await alice.create_topic("shop.more", 1)
        with pytest.raises(NotAllowed, match=r"may not create topic 'shop\.eu\.more'"):
            await alice.create_topic("shop.eu.more", 1)

    with_users(tmp_path, of_shop_and_shop_eu(story))


def test_a_message_is_not_found_by_its_id_in_a_namespace_beneath(tmp_path: Path) -> None:
    async def story(broker: Broker, alice: Access) -> None:
        for topic in ("shop.orders", "shop.eu.orders"):
            await broker.durability.wait(*broker.messages.publish(topic, [Message(b"x", id=f"of {topic}")]).receipts)
        for place in ("eu.orders-0@0", "shop.eu.orders-0@0", "of shop.eu.orders"):
            assert await alice.find_stored(place) is None
        for place in ("orders-0@0", "of shop.orders"):
            assert await alice.find_stored(place) is not None
        broker.messages.publish("shop.eu.orders", [Message(b"x", id="later", delay_ms=60_000)])
        broker.messages.publish("shop.orders", [Message(b"x", id="later here", delay_ms=60_000)])
        assert alice.find_queued("later") is None
        assert alice.find_queued("later here") is not None
        listed = await alice.views.view("delayed", {"topics": True, "topic_prefix": "shop."})
        assert [one.topic for one in listed.messages] == ["shop.orders"]

    with_users(tmp_path, of_shop_and_shop_eu(story))


# -- exchanges ---------------------------------------------------------------------------------------------------------


def test_an_alternate_exchange_is_one_that_its_maker_may_write_to(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        for exchange in ("theirs", "own-other"):
            await broker.routing.declare_exchange(exchange, "fanout")
        await broker.permissions.add([Rule("User:alice", "create", "exchange", "own", match="prefixed")])
        alice = access(broker)
        for name in ("theirs", "not-there", "own-other"):
            with pytest.raises(NotAllowed, match="may not read exchange 'own'"):
                await alice.declare_exchange("own", alternate=name)
        await broker.permissions.add([Rule("User:alice", "read", "exchange", "own", match="prefixed")])
        for name in ("theirs", "not-there", "own-other"):
            with pytest.raises(NotAllowed, match=f"may not write exchange '{name}'"):
                await alice.declare_exchange("own", alternate=name)
        assert broker.routing.find("own") is None
        await broker.permissions.add([Rule("User:alice", "write", "exchange", "own", match="prefixed")])
        await alice.declare_exchange("own", alternate="own-other")
        await broker.namespaces.create("shop")
        await broker.permissions.add(INSIDE)
        with pytest.raises(NotAllowed, match="may not write exchange ''"):  # which leads to every queue outside
            await access(broker, ALICE.inside("shop"), "shop").declare_exchange("shop/own", alternate="")

    with_users(tmp_path, story)


@pytest.mark.parametrize("setting", ["dead-letter-exchange", "alternate-exchange"])
def test_a_policy_names_no_exchange_of_another_namespace(tmp_path: Path, setting: str) -> None:
    async def story(broker: Broker) -> None:
        await broker.namespaces.create("shop")
        await broker.permissions.add([Rule("User:alice", "alter", "namespace", "/")])
        policies = access(broker).policies
        policy = Policy("/", "p", "^own", {setting: "shop/in"})
        with pytest.raises(Invalid, match=f"{setting}: 'shop/in' is not in namespace '/'"):
            await policies.set(policy)
        with pytest.raises(Invalid, match="is not in namespace"):
            await policies.set_all([policy])
        for name in ("lab/in", "in", ""):
            await policies.set(Policy("/", "p", "^own", {setting: name}))
        await access(broker, ADMIN).policies.set(Policy("shop", "p", "^own", {setting: "in/side"}))

    with_users(tmp_path, story)


# -- what refusals tell ------------------------------------------------------------------------------------------------


def test_the_default_exchange_does_not_tell_what_a_key_names(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await broker.topics.create("secret-a", 1)
        await broker.queues.declare("secret-b", QueueSettings())
        alice = access(broker)
        for key in ("secret-a", "secret-b", "secret-c"):
            with pytest.raises(NotAllowed, match=f"^User:alice may not write queue '{key}'$"):
                alice.resolve("", key)
            with pytest.raises(NotAllowed, match=f"^User:alice may not write queue '{key}'$"):
                await alice.publish_through("", key, [Message(b"x")])
        await broker.permissions.add([Rule("User:alice", "write", "queue", "secret-a")])
        with pytest.raises(NotAllowed, match="may not write topic"):
            alice.resolve("", "secret-a")
        await broker.permissions.add([Rule("User:alice", "write", "topic", "secret-a")])
        alice.resolve("", "secret-a")

    with_users(tmp_path, story)


def test_a_queue_with_the_name_of_all_is_one_that_has_to_be_allowed(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await broker.queues.declare("*", QueueSettings())
        await broker.queues.put_durable("*", [Message(b"x", key=b"secret", delay_ms=60_000)])
        with pytest.raises(NotAllowed, match="may not read queue"):
            await access(broker).views.view("delayed", {"queue": "*"})
        assert (await access(broker, ADMIN).views.view("delayed", {"queue": "*"})).total == 1
        await broker.routing.declare_exchange("*", "fanout")
        for view in ("bindings", "routing"):
            with pytest.raises(NotAllowed, match="may not describe exchange"):
                await access(broker).views.view(view, {"exchange": "*"})

    with_users(tmp_path, story)


# -- dead letters of groups --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["stream", "shared"])
def test_a_subscriber_sends_dead_letters_where_it_may_write(tmp_path: Path, mode: Any) -> None:
    async def story(broker: Broker) -> None:
        await broker.topics.create("own", 1)
        await broker.topics.create("theirs", 1)
        await broker.queues.declare("theirs", QueueSettings())
        await broker.permissions.add(
            [Rule("User:alice", "read", kind, "own", match="prefixed") for kind in ("topic", "group")]
        )
        alice = access(broker)

        def wanted(target: str) -> Subscribe:
            return Subscribe(consumer=1, mode=mode, topics=["own"], group="own-g", dead_letter=target)

        for target, said in (
            ("theirs", "write queue 'theirs'"),
            ("topic:theirs", "write topic 'theirs'"),
            ("own.dead", "write queue 'own.dead'"),
        ):
            with pytest.raises(NotAllowed, match=f"may not {said}"):
                await alice.subscriptions.open(wanted(target), "c", nothing, nothing)
        await broker.permissions.add([Rule("User:alice", "write", "queue", "own.dead")])
        with pytest.raises(NotAllowed, match=r"may not create queue 'own\.dead'"):
            await alice.subscriptions.open(wanted("own.dead"), "c", nothing, nothing)
        await broker.permissions.add([Rule("User:alice", "create", "queue", "own.dead")])
        ended: list[object] = []
        await alice.subscriptions.open(wanted("own.dead"), "c", nothing, ended.append)
        assert not ended
        await broker.permissions.remove([Rule("User:alice", "write", "queue", "own.dead")])
        assert len(ended) == 1

    with_users(tmp_path, story)


@pytest.mark.parametrize("target", ["queue:shop/x", "exchange:shop/x"])
def test_a_word_before_a_name_leads_out_of_no_namespace(tmp_path: Path, target: str) -> None:
    """A stream subscription takes these for names of queues, which are in `/`."""

    async def story(broker: Broker) -> None:
        await broker.namespaces.create("shop")
        await broker.topics.create("shop.own", 1)
        await broker.permissions.add(INSIDE)
        wanted = Subscribe(consumer=1, mode="stream", topics=["shop.own"], group="shop/g", dead_letter=target)
        with pytest.raises(NotAllowed, match="may not write queue"):
            await access(broker, ALICE.inside("shop"), "shop").subscriptions.open(wanted, "c", nothing, nothing)

    with_users(tmp_path, story)


def test_a_group_that_subscribes_by_a_pattern_is_assigned_nothing_of_a_namespace_beneath(tmp_path: Path) -> None:
    """KIP-848: an assignment has ids and partitions, by which one can count what others have."""

    async def story(broker: Broker, alice: Access) -> None:
        def beat(group: str, member: str, epoch: int) -> ConsumerBeat:
            return ConsumerBeat(
                group_id=group,
                member_id=member,
                member_epoch=epoch,
                rebalance_timeout_ms=1_000,
                topics=(),
                pattern="shop\\..*",
                owned=frozenset(),
            )

        async def assigned(group: str) -> set[str | None]:
            answer = await access(broker, ADMIN).groups.consumer_heartbeat(beat(group, "m", 0))
            return {broker.topics.name_of(topic) for topic, _ in answer.assignment or ()}

        await broker.topics.create("shop.us.orders", 1)
        answer = await alice.groups.consumer_heartbeat(beat("shop/g", "a", 0))
        names = {broker.topics.name_of(topic) for topic, _ in answer.assignment or ()}
        assert names == {"shop.orders", "shop.us.orders"}
        assert await assigned("outside") == {"shop.orders", "shop.us.orders", "shop.eu.orders"}
        await broker.namespaces.create("shop.us")
        await asyncio.sleep(0)  # the groups look in the next turn
        await alice.groups.consumer_heartbeat(beat("shop/g", "a", answer.member_epoch))
        (member,) = alice.groups.describe_consumer("shop/g").members
        assert {broker.topics.name_of(topic) for topic, _ in member.target} == {"shop.orders"}

    with_users(tmp_path, of_shop_and_shop_eu(story))


@pytest.mark.parametrize("by_policy", [False, True], ids=["declared", "policy"])
def test_who_alters_part_of_where_dead_letters_go_may_write_there(tmp_path: Path, by_policy: bool) -> None:
    """An administrator's exchange with a key of one's own, or a target beside one that is not taken."""

    async def story(broker: Broker) -> None:
        await broker.permissions.add(
            Rule("User:alice", operation, "queue", "own") for operation in ("create", "read", "describe")
        )
        await broker.permissions.add([Rule("User:alice", "write", "exchange", "hers")])
        admin, alice = access(broker, ADMIN), access(broker)
        for exchange in ("theirs", "hers"):
            await admin.declare_exchange(exchange, "direct")
        if by_policy:
            policy = Policy("/", "dlx", "own", {"dead-letter-exchange": "theirs"}, apply_to="queues")
            await broker.policies.set(policy)
        await admin.declare_queue("own", None if by_policy else QueueSettings(dead_letter_exchange="theirs"))

        key = QueueSettings(dead_letter_key="k")
        for only in (["dead_letter_key"], None) if by_policy else (["dead_letter_key"],):
            with pytest.raises(NotAllowed, match="may not write exchange 'theirs'"):
                await alice.declare_queue("own", key, alter=True, only=only)
        both = QueueSettings(dead_letter="topic:theirs", dead_letter_exchange="hers")
        with pytest.raises(NotAllowed, match=r"may not write (topic|exchange) 'theirs'"):
            await alice.declare_queue("own", both, alter=True, only=["dead_letter"])
        found = broker.queues.describe("own").settings
        assert (found.dead_letter, found.dead_letter_exchange, found.dead_letter_key) == (None, "theirs", None)
        await alice.declare_queue("own", QueueSettings(max_length=5), alter=True, only=["max_length"])
        await admin.declare_queue("own", key, alter=True, only=["dead_letter_key"])
        assert broker.queues.describe("own").settings.dead_letter_key == "k"

    with_users(tmp_path, story)


def test_settings_of_a_group_send_dead_letters_where_their_maker_may_write(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        for kind in ("read", "create", "alter-configs"):
            await broker.permissions.add(
                [
                    Rule("User:alice", kind, resource, "own", match="prefixed")
                    for resource in ("group", "topic", "queue")
                ]
            )
        await broker.topics.create("own", 1)
        shares = access(broker).shares
        for settings, said in (
            ({"waystation.dead.letter": "theirs"}, "write queue 'theirs'"),
            ({"waystation.dead.letter": "exchange:theirs"}, "write exchange 'theirs'"),
            ({"errors.deadletterqueue.topic.name": "theirs"}, "write topic 'theirs'"),
        ):
            with pytest.raises(NotAllowed, match=f"may not {said}"):
                shares.check_settings("own-g", settings)
            with pytest.raises(NotAllowed, match=f"may not {said}"):
                await shares.alter_settings("own-g", settings)
        with pytest.raises(NotAllowed, match="may not write queue 'theirs'"):
            await access(broker).topic_queues.declare("own-q", TopicQueueSettings("own", dead_letter="theirs"))
        await access(broker, ADMIN).shares.alter_settings("own-g", {"waystation.dead.letter": "theirs"})
        more = {"waystation.dead.letter": "theirs", "share.delivery.count.limit": "3"}
        await shares.alter_settings("own-g", more)  # which leaves that as it is

    with_users(tmp_path, story)


def test_a_publisher_is_not_told_the_names_of_what_it_may_not_see(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        for name in ("seen", "theirs"):
            await broker.queues.declare(name, QueueSettings())
            await broker.topics.create(name, 1)
        await broker.routing.declare_exchange("news", "fanout")
        for target in ("queue:seen", "queue:theirs", "topic:seen", "topic:theirs"):
            await broker.routing.bind("news", target)
        await broker.permissions.add(
            [
                Rule("User:alice", "write", "exchange", "news"),
                *(Rule("User:alice", "describe", kind, "seen") for kind in ("queue", "topic")),
            ]
        )
        for principal, names in ((ALICE, ["seen"]), (ADMIN, ["seen", "theirs"])):
            answer = await access(broker, principal).publish_through("news", "", [Message(b"x")])
            assert sorted(answer.queues) == sorted(topic for topic, _, _ in answer.places) == names
            assert not answer.unroutable
            found = access(broker, principal).route("news", Message(b"x"))
            assert sorted(found) == sorted(f"{kind}:{name}" for kind in ("queue", "topic") for name in names)
        assert broker.queues.describe("theirs").ready == 2

    with_users(tmp_path, story)
