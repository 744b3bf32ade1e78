"""Policies: which one is in force, what it does to what was declared, and that nothing of it stays when it goes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.broker.kit import broker_on, run, snapshot
from waystation.admin import policies as policies_module
from waystation.admin.policy_rules import Policy, check_policy, under, under_stream
from waystation.broker.broker import Broker
from waystation.config import BrokerSettings, resolve_topic
from waystation.errors import Conflict, Invalid, NotFound, StorageFailed
from waystation.message import MAX_HORIZON_MS, Message
from waystation.queues.settings import QueueSettings, declared
from waystation.topics.partitions.partition import log_of
from waystation.wire.amqp.template import AT_ONCE_MS

CLASSIC = QueueSettings(queue_type="classic", overflow="drop-oldest")


def policy(name: str = "p", pattern: str = "^jobs", namespace: str = "/", **more: Any) -> Policy:
    known = {key: more.pop(key) for key in ("priority", "apply_to") if key in more}
    return Policy(namespace, name, pattern, {key.replace("_", "-"): value for key, value in more.items()}, **known)


def settings_of(broker: Broker, name: str) -> QueueSettings:
    return broker.queues.describe(name).settings


# -- what meets what ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("definition", "declaration", "effective"),
    [
        ({"message_ttl": 5}, {}, {"ttl_ms": 5}),
        ({"message_ttl": 5}, {"ttl_ms": 3}, {"ttl_ms": 3}),
        ({"message_ttl": 5}, {"ttl_ms": 9}, {"ttl_ms": 5}),
        ({"message_ttl": 0}, {}, {"ttl_ms": AT_ONCE_MS}),
        ({"message_ttl": 0}, {"ttl_ms": 3}, {"ttl_ms": 3}),
        ({"expires": 7}, {"expires_ms": 70}, {"expires_ms": 7}),
        ({"max_length": 10}, {"max_length": 20}, {"max_length": 10}),
        ({"max_length_bytes": 10}, {}, {"max_bytes": 10}),
        ({"overflow": "reject-publish"}, {}, {"overflow": "reject"}),
        ({"overflow": "reject-publish-dlx"}, {}, {"overflow": "reject-dead-letter"}),
        ({"overflow": "drop-head"}, {"overflow": "reject"}, {"overflow": "reject"}),
        ({"dead_letter_exchange": "dlx"}, {}, {"dead_letter_exchange": "dlx"}),
        ({"dead_letter_exchange": ""}, {}, {"dead_letter_exchange": ""}),
        ({"dead_letter_exchange": "dlx"}, {"dead_letter_exchange": "own"}, {"dead_letter_exchange": "own"}),
        ({"dead_letter_exchange": "dlx"}, {"dead_letter": "own"}, {"dead_letter_exchange": None}),
        ({"dead_letter_routing_key": "k"}, {"dead_letter_exchange": "own"}, {"dead_letter_key": "k"}),
        ({"delivery_limit": 3}, {"queue_type": "quorum"}, {"max_deliveries": 4}),
        ({"delivery_limit": 3}, {"queue_type": "quorum", "max_deliveries": 2}, {"max_deliveries": 2}),
        ({"delivery_limit": -1}, {"queue_type": "quorum"}, {"max_deliveries": 0}),
        ({"delivery_limit": -1}, {"queue_type": "quorum", "max_deliveries": 2}, {"max_deliveries": 2}),
        ({"delivery_limit": 3}, {}, {"max_deliveries": 0}),
        ({"delivery_limit": 3}, {"queue_type": None}, {"max_deliveries": 4}),
        ({"consumer_timeout": 5000}, {"hold_ms": MAX_HORIZON_MS}, {"hold_ms": 5000}),
        ({"consumer_timeout": 5000}, {"hold_ms": 1000}, {"hold_ms": 1000}),
        ({"ha_mode": "all"}, {}, {}),
    ],
)
def test_of_limits_the_smaller_counts_and_of_anything_else_what_was_declared(
    definition: dict[str, Any], declaration: dict[str, Any], effective: dict[str, Any]
) -> None:
    from msgspec.structs import replace

    given = replace(CLASSIC, **declaration)
    found = under(check_policy(policy(**definition)), given, "")
    assert {field: getattr(found, field) for field in effective} == effective
    assert found.policy == "p"
    assert declared(found) == given, "what was declared is remembered"


@pytest.mark.parametrize(
    "wrong",
    [
        policy(pattern="(", max_length=1),
        policy(pattern="a)b(", max_length=1),
        policy(pattern="(?=a)", max_length=1),
        policy(max_length="1"),
        policy(max_length=True),
        policy(max_length=-1),
        policy(expires=0),
        policy(overflow="burn"),
        policy(dead_letter_exchange=3),
        policy(max_age="7 days"),
        policy(max_age=7),
        policy(stream_max_segment_size_bytes="big"),
        policy(stream_max_segment_size_bytes=3_000_000_001),
        policy(),
        policy(max_length=1, apply_to="everything"),
        policy(max_length=1, priority=2**40),
        policy(name="", max_length=1),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: Policy) -> None:
    with pytest.raises(Invalid):
        check_policy(wrong)


def test_a_setting_that_nobody_knows_is_misspelt_unless_it_comes_from_another_broker(tmp_path: Path) -> None:
    async def story() -> None:
        unknown = policy("plugin", shards_per_node=3, max_length=5)
        async with broker_on(tmp_path) as broker:
            await broker.queues.declare("jobs", CLASSIC)
            with pytest.raises(Invalid, match="'shards-per-node' is not a recognised policy setting"):
                await broker.policies.set(unknown)
            await broker.policies.set_all([unknown])
            assert settings_of(broker, "jobs").max_length == 5
        async with broker_on(tmp_path) as broker:
            assert broker.policies.listing() == [unknown], "it is remembered as it came"
            assert settings_of(broker, "jobs").max_length == 5

    run(story())


@pytest.mark.parametrize(
    ("definition", "own", "effective"),
    [
        ({"max_age": "1h"}, {}, {"retention.ms": "3600000"}),
        ({"max_age": "1h"}, {"retention.ms": "-1"}, {"retention.ms": "3600000"}),
        ({"max_age": "1h"}, {"retention.ms": "60000"}, {}),
        ({"max_age": "999999999Y"}, {}, {"retention.ms": str(MAX_HORIZON_MS)}),
        ({"max_length_bytes": 10}, {"retention.bytes": "20"}, {"retention.bytes": "10"}),
        ({"stream_max_segment_size_bytes": 3_000_000_000}, {}, {"segment.bytes": str(2**31 - 1)}),
        ({"stream_max_segment_size_bytes": 0}, {}, {"segment.bytes": "1024"}),
        ({"max_length": 10, "message_ttl": 5}, {}, {}),
    ],
)
def test_a_streams_limits_are_settings_of_its_topic(
    definition: dict[str, Any], own: dict[str, str], effective: dict[str, str]
) -> None:
    found = under_stream(check_policy(policy(**definition)), own)
    assert found == effective
    resolve_topic({**own, **found}, BrokerSettings())


def test_patterns_are_found_anywhere_in_a_name_unless_they_are_anchored() -> None:
    assert policy(pattern="ob", max_length=1).matches("jobs")
    assert not policy(pattern="^ob", max_length=1).matches("jobs")
    assert policy(pattern="^jobs$|x", max_length=1).matches("jobs")
    assert not policy(pattern="^jobs$", max_length=1).matches("jobs2")
    assert policy(pattern="(?i)JOB", max_length=1).matches("my-jobs")
    assert policy(pattern="", max_length=1).matches("")


def test_a_hostile_pattern_takes_no_time() -> None:
    assert not policy(pattern="^(a+)+$", max_length=1).matches("a" * 200 + "b")


# -- on a broker -------------------------------------------------------------------------------------------------------


def test_the_highest_priority_that_matches_is_in_force_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.queues.declare("jobs", CLASSIC)
            await broker.queues.declare("other", CLASSIC)
            assert await broker.policies.set(policy("low", max_length=10, message_ttl=10_000)) is True
            assert settings_of(broker, "jobs").max_length == 10
            assert settings_of(broker, "other") == CLASSIC
            await broker.policies.set(policy("high", priority=5, max_length=20))
            there = settings_of(broker, "jobs")
            assert (there.policy, there.max_length, there.ttl_ms) == ("high", 20, None)
            await broker.queues.declare("jobs-2", CLASSIC)
            assert settings_of(broker, "jobs-2").policy == "high", "what is declared later, too"
            assert await broker.policies.set(policy("high", "^other", priority=5, max_length=20)) is False
            assert settings_of(broker, "jobs").policy == "low"
            assert settings_of(broker, "other").policy == "high"
            await broker.policies.delete("/", "low")
            await broker.policies.delete("/", "high")
            assert {settings_of(broker, name) for name in ("jobs", "jobs-2", "other")} == {CLASSIC}
            with pytest.raises(NotFound):
                await broker.policies.delete("/", "high")

    run(story())


def test_it_is_for_the_kind_of_queue_that_it_names(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            quorum = QueueSettings(queue_type="quorum", overflow="drop-oldest")
            await broker.queues.declare("jobs-c", CLASSIC)
            await broker.queues.declare("jobs-q", quorum)
            await broker.queues.declare("jobs-n", QueueSettings())
            await broker.policies.set(policy(max_length=3, apply_to="quorum_queues"))
            assert [settings_of(broker, f"jobs-{kind}").policy for kind in "cqn"] == [None, "p", None]
            await broker.policies.set(policy(max_length=3, apply_to="classic_queues"))
            assert [settings_of(broker, f"jobs-{kind}").policy for kind in "cqn"] == ["p", None, "p"]
            await broker.policies.set(policy(max_length=3, apply_to="exchanges"))
            assert [settings_of(broker, f"jobs-{kind}").policy for kind in "cqn"] == [None, None, None]

    run(story())


def test_a_stream_has_the_age_and_the_size_that_its_policy_says(tmp_path: Path) -> None:
    stream = {"waystation.stream": "true", "retention.ms": "-1", "retention.bytes": "-1"}

    def limits(broker: Broker, *names: str) -> list[tuple[int, int]]:
        found = [broker.topics.get(name).settings for name in names]
        return [(one.retention_ms, one.retention_bytes) for one in found]

    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.namespaces.create("shop")
            await broker.topics.create("jobs", 1, stream)
            await broker.topics.create("shop.jobs", 1, stream)
            await broker.topics.create("jobs-topic", 1, {"retention.ms": "-1"})
            await broker.policies.set(policy(max_age="1h", max_length_bytes=4096, apply_to="streams"))
            there = broker.topics.get("jobs")
            assert limits(broker, "jobs") == [(3_600_000, 4096)]
            assert log_of(there.partitions[0]).settings is there.settings, "retention goes by these"
            assert limits(broker, "shop.jobs", "jobs-topic") == [(-1, -1)] * 2, "elsewhere, and no stream"
            await broker.topics.create("jobs-2", 1, {**stream, "retention.ms": "1000"})
            assert limits(broker, "jobs-2") == [(1000, 4096)], "what is declared later, too"
            await broker.topics.alter("jobs", {**stream, "retention.bytes": "2048"})
            assert limits(broker, "jobs") == [(3_600_000, 2048)]
            await broker.policies.set(policy(max_age="2h", namespace="shop", pattern="^jobs$"))
            assert limits(broker, "shop.jobs") == [(7_200_000, -1)]
        async with broker_on(tmp_path) as broker:
            async with asyncio.timeout(30):
                while limits(broker, "jobs") != [(3_600_000, 2048)]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await broker.policies.delete("/", "p")
            assert limits(broker, "jobs", "jobs-2") == [(-1, 2048), (1000, -1)]

    run(story())


def test_a_policy_for_queues_of_a_kind_is_for_no_stream() -> None:
    wanted = {"all": True, "queues": True, "streams": True, "classic_queues": False, "quorum_queues": False}
    assert {kind: policy(max_age="1h", apply_to=kind).for_streams for kind in wanted} == wanted
    assert not policy(max_age="1h", apply_to="streams").for_queues("quorum")
    assert not policy(max_age="1h", apply_to="streams").for_exchanges


def test_it_survives_a_restart_and_so_does_what_was_declared(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.queues.declare("jobs", QueueSettings(ttl_ms=1000))
            await broker.policies.set(policy(message_ttl=10, max_length=5))
            killed = snapshot(tmp_path / "a", "b")
        for folder in (tmp_path / "a", killed):
            async with broker_on(folder) as broker:
                there = settings_of(broker, "jobs")
                assert (there.ttl_ms, there.max_length, there.policy) == (10, 5, "p")
                assert broker.policies.listing() == [policy(message_ttl=10, max_length=5)]
                await broker.policies.delete("/", "p")
                assert settings_of(broker, "jobs") == QueueSettings(ttl_ms=1000)

    run(story())


def test_what_a_dead_broker_left_undone_is_done_after_its_next_start(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.queues.declare("jobs", CLASSIC)
            await broker.policies.set(policy(max_length=5))
            await broker.queues.declare("other", CLASSIC)
            # As if it died between the catalog and the queues: it hears of nothing more.
            await broker.follower.stop()
            await asyncio.to_thread(broker.catalog.delete_definition, "policy", "%2F/p")
            value = msgspec.msgpack.encode(policy("o", "^other", max_length=6))
            await asyncio.to_thread(broker.catalog.save_definition, "policy", "%2F/o", value)
        async with broker_on(tmp_path) as broker:
            async with asyncio.timeout(30):
                while settings_of(broker, "jobs") != CLASSIC or settings_of(broker, "other").max_length != 6:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    run(story())


def test_a_policy_of_the_catalog_that_cannot_be_used_keeps_no_broker_from_starting(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            for name, value in (("a", b"\xc1"), ("b", msgspec.msgpack.encode(policy("b", "(", max_length=1)))):
                await asyncio.to_thread(broker.catalog.save_definition, "policy", name, value)
        async with broker_on(tmp_path) as broker:
            assert broker.policies.listing() == []

    run(story())


def test_declaring_again_compares_what_was_declared(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.policies.set(policy(max_length=5))
            wanted = QueueSettings(ttl_ms=1000)
            await broker.queues.declare("jobs", wanted)
            assert (await broker.queues.declare("jobs", wanted)).settings.max_length == 5
            with pytest.raises(Conflict, match="ttl_ms is 1000, not 2000"):
                await broker.queues.declare("jobs", QueueSettings(ttl_ms=2000))
            there = settings_of(broker, "jobs")
            assert (await broker.queues.declare("jobs", there)).settings == there

    run(story())


def test_whoever_alters_a_queue_does_not_make_the_policys_values_its_own(tmp_path: Path) -> None:
    from msgspec.structs import replace

    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.policies.set(policy(max_length=5))
            await broker.queues.declare("jobs", QueueSettings(max_length=50))
            read = settings_of(broker, "jobs")
            await broker.queues.declare("jobs", replace(read, ttl_ms=1000), alter=True)
            assert settings_of(broker, "jobs").max_length == 5
            assert declared(settings_of(broker, "jobs")) == QueueSettings(max_length=50, ttl_ms=1000)
            forged = QueueSettings(policy="none", own=(("hold_ms", 1),))
            await broker.queues.declare("other", forged)
            assert settings_of(broker, "other") == QueueSettings(), "nobody declares a policy"

    run(story())


def test_the_limit_of_a_policy_is_kept(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.queues.declare("jobs", CLASSIC)
            await broker.policies.set(policy(max_length=2))
            for i in range(5):
                await broker.queues.put_durable("jobs", [Message(b"%d" % i)])
            kept = [one.delivered.message.payload for one in broker.queues.peek("jobs", 10)]
            assert kept == [b"3", b"4"]

    run(story())


def test_an_exchange_gets_its_alternate_from_a_policy_unless_it_has_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            for name in ("unrouted", "own"):
                await broker.queues.declare(name)
                await broker.routing.declare_exchange(name, "fanout")
                await broker.routing.bind(name, f"queue:{name}")
            await broker.routing.declare_exchange("events-a", "direct")
            await broker.routing.declare_exchange("events-b", "direct", alternate="own")
            await broker.policies.set(policy(pattern="^events", alternate_exchange="unrouted"))
            await broker.routing.declare_exchange("events-c", "direct")
            ways = [broker.routing.route(f"events-{which}", Message(b"")) for which in "abc"]
            assert ways == [["queue:unrouted"], ["queue:own"], ["queue:unrouted"]]
            assert broker.routing.exchange("events-a").policy == "p"
        async with broker_on(tmp_path) as broker:
            assert broker.routing.route("events-a", Message(b"")) == ["queue:unrouted"]
            await broker.policies.delete("/", "p")
            assert broker.routing.route("events-a", Message(b"")) == []

    run(story())


def test_a_namespace_has_its_own_and_takes_them_with_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.namespaces.create("shop")
            await broker.queues.declare("shop/jobs", CLASSIC)
            await broker.queues.declare("jobs", CLASSIC)
            await broker.policies.set(policy(namespace="shop", max_length=5, dead_letter_exchange="dlx"))
            there = settings_of(broker, "shop/jobs")
            assert (there.policy, there.max_length, there.dead_letter_exchange) == ("p", 5, "shop/dlx")
            assert settings_of(broker, "jobs") == CLASSIC
            await broker.policies.set(policy(max_length=7))
            assert settings_of(broker, "shop/jobs").max_length == 5
            await broker.namespaces.delete("shop")
            assert [one.namespace for one in broker.policies.listing()] == ["/"]
        async with broker_on(tmp_path) as broker:
            assert [one.namespace for one in broker.policies.listing()] == ["/"]

    run(story())


def test_many_queues_are_looked_through_in_slices_and_many_changes_share_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies_module, "SLICE", 10)

    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            names = [f"jobs-{i:03}" for i in range(200)]
            await asyncio.gather(*(broker.queues.declare(name, CLASSIC) for name in names))
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            counting = asyncio.create_task(count())
            await asyncio.gather(
                *(broker.policies.set(policy(f"p{i}", priority=i, max_length=i + 1)) for i in range(9))
            )
            counting.cancel()
            assert {settings_of(broker, name).policy for name in names} == {"p8"}
            assert turns > 20, "others had their turn in between"
            assert len({id(settings_of(broker, name)) for name in names}) < 10, "queues alike share their settings"

    run(story())


def test_a_disk_that_refuses_is_told_and_the_policy_is_kept(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.queues.declare("jobs", CLASSIC)

            def refuse(name: str) -> None:
                raise StorageFailed("no room")

            usual, broker.queues.govern = broker.queues.govern, refuse  # type: ignore[method-assign]
            with pytest.raises(StorageFailed, match="not applied to every queue"):
                await broker.policies.set(policy(max_length=5))
            broker.queues.govern = usual  # type: ignore[method-assign]
            assert broker.policies.find("/", "p") is not None
            await broker.policies.set(policy(max_length=5))
            assert settings_of(broker, "jobs").max_length == 5

    run(story())
