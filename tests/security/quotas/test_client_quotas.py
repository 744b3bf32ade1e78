"""Quotas: the arithmetic of buckets, Kafka's precedence, bounds, and that they are durable."""

from __future__ import annotations

import asyncio
import gc
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.kit import broker_on
from waystation.broker.access.messaging.used import Used
from waystation.broker.broker import Broker
from waystation.catalog import rows
from waystation.errors import Invalid, QuotaExceeded
from waystation.observe.meters import Meters
from waystation.security.principals import LOCAL, Principal
from waystation.security.quotas import client_quotas
from waystation.security.quotas.bucket import Bucket
from waystation.security.quotas.client_quotas import KIND, ClientQuotas
from waystation.security.quotas.entities import QuotaEntity, check_entity

ALICE = Principal("alice")


def quotas_of(values: dict[QuotaEntity, dict[Any, float]]) -> tuple[ClientQuotas, list[float]]:
    """Without a catalog; the list has the time."""
    clock = [1000.0]
    nothing: Any = None
    quotas = ClientQuotas(nothing, nothing, lambda: clock[0])
    quotas._values.update(values)
    quotas._renew()
    return quotas, clock


# -- buckets -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 10_000)), max_size=50))
def test_whoever_waits_as_told_never_takes_more_than_rate_and_burst_and_the_last_piece(
    steps: list[tuple[float, int]],
) -> None:
    rate, burst_s, now = 1000.0, 1.0, 50.0
    bucket = Bucket(rate, burst_s, now)
    taken, began, last = 0, now, 0
    for pause, amount in steps:
        now += pause
        now += bucket.wait_s(now)
        assert taken - last <= rate * (now - began + burst_s) + 1
        bucket.take(amount, now)
        taken, last = taken + amount, amount


def test_a_bucket_that_was_quiet_gives_its_burst_and_no_more() -> None:
    bucket = Bucket(100.0, 1.0, 0.0)
    bucket.take(100, 1_000.0)
    assert bucket.wait_s(1_000.0) == 0.0
    bucket.take(50, 1_000.0)
    assert bucket.wait_s(1_000.0) == pytest.approx(0.5)
    assert bucket.wait_s(1_000.5) == 0.0
    assert not bucket.is_full(1_000.5)
    assert bucket.is_full(1_001.5)


# -- whose quota it is -------------------------------------------------------------------------------------------------

LEVELS = [
    (QuotaEntity("alice", "app"), ("alice", "app")),
    (QuotaEntity("alice", ""), ("alice", "app")),
    (QuotaEntity("alice"), ("alice", "")),
    (QuotaEntity("", "app"), ("alice", "app")),
    (QuotaEntity("", ""), ("alice", "app")),
    (QuotaEntity(""), ("alice", "")),
    (QuotaEntity(None, "app"), ("", "app")),
    (QuotaEntity(None, ""), ("", "app")),
]
"""As Kafka's documentation lists them, and who shares each."""


@pytest.mark.parametrize("first", range(len(LEVELS)))
def test_the_most_special_quota_counts(first: int) -> None:
    values: dict[QuotaEntity, dict[Any, float]] = {
        entity: {"producer_byte_rate": 100.0 + at} for at, (entity, _) in enumerate(LEVELS) if at >= first
    }
    quotas, _ = quotas_of(values)
    found = quotas.of_client("producer_byte_rate", "alice", "app")
    assert found is not None
    assert found.rate == 100.0 + first
    assert list(quotas._buckets) == [("producer_byte_rate", *LEVELS[first][1])]
    assert quotas.of_client("consumer_byte_rate", "alice", "app") is None


def test_each_kind_of_quota_is_looked_for_by_itself() -> None:
    quotas, _ = quotas_of(
        {QuotaEntity("alice"): {"producer_byte_rate": 5.0}, QuotaEntity(""): {"consumer_byte_rate": 6.0}}
    )
    consumed = quotas.of_client("consumer_byte_rate", "alice", "app")
    assert consumed is not None
    assert consumed.rate == 6.0


def test_clients_of_a_user_share_its_bucket_and_users_under_a_default_do_not() -> None:
    quotas, _ = quotas_of({QuotaEntity(""): {"producer_byte_rate": 5.0}})
    one, same = (quotas.of_client("producer_byte_rate", "alice", client) for client in ("a", "b"))
    assert one is same
    assert quotas.of_client("producer_byte_rate", "bob", "a") is not one


def test_a_namespace_counts_beside_the_client() -> None:
    quotas, clock = quotas_of(
        {
            QuotaEntity("alice"): {"producer_byte_rate": 1000.0},
            QuotaEntity(namespace="shop"): {"producer_byte_rate": 10.0},
        }
    )
    used = Used(quotas, ALICE, "", "shop")
    used.publish(1, 100)
    assert used.publish_wait_s() == pytest.approx(9.0)  # ten a second, and a second's burst
    other = Used(quotas, Principal("bob"), "", "shop")
    assert other.publish_wait_s() == pytest.approx(9.0)
    assert Used(quotas, ALICE, "", "/").publish_wait_s() == 0.0
    clock[0] += 9.0
    assert used.publish_wait_s() == 0.0


def test_messages_count_as_bytes_do() -> None:
    quotas, _ = quotas_of({QuotaEntity("alice"): {"producer_message_rate": 2.0, "consumer_message_rate": 4.0}})
    used = Used(quotas, ALICE, "", "/")
    used.publish(4, 0)
    used.consume(12, 10**9)
    assert used.publish_wait_s() == pytest.approx(1.0)
    assert used.consume_wait_s() == pytest.approx(2.0)


def test_request_time_makes_both_wait() -> None:
    quotas, _ = quotas_of({QuotaEntity("alice"): {"request_percentage": 50.0}})
    used = Used(quotas, ALICE, "", "/")
    used.work(1.0)  # two seconds' worth, one of which was saved
    assert used.publish_wait_s() == used.consume_wait_s() == used.request_wait_s() == pytest.approx(1.0)


def test_who_mutates_too_fast_is_refused_and_takes_nothing() -> None:
    quotas, clock = quotas_of({QuotaEntity("alice"): {"controller_mutation_rate": 1.0}})
    used = Used(quotas, ALICE, "", "/")
    used.mutate(15)  # ten are saved; it is what begins beyond that which is refused
    for _ in range(3):
        with pytest.raises(QuotaExceeded) as refused:
            used.mutate(1)
        assert refused.value.retry_after_s == pytest.approx(5.0)
    clock[0] += 5.0
    used.mutate(1)


def test_the_program_that_the_broker_runs_in_has_no_quota() -> None:
    quotas, _ = quotas_of({QuotaEntity(""): {"producer_byte_rate": 1.0}})
    used = Used(quotas, LOCAL, "", "/")
    used.publish(1, 10**6)
    assert used.publish_wait_s() == 0.0


def test_addresses_that_connect_too_fast_are_told_for_how_long() -> None:
    quotas, clock = quotas_of(
        {
            QuotaEntity(ip=""): {"connection_creation_rate": 2.0},
            QuotaEntity(ip="::1"): {"connection_creation_rate": 9.0},
        }
    )
    assert [quotas.connection_wait_s("10.0.0.1") for _ in range(2)] == [0.0, 0.0]
    assert quotas.connection_wait_s("10.0.0.1") == 0.0  # the burst is over with this one
    assert quotas.connection_wait_s("10.0.0.1") == pytest.approx(0.5)
    assert quotas.connection_wait_s("10.0.0.1") == pytest.approx(0.5)  # those that were refused do not count
    assert quotas.connection_wait_s("10.0.0.2") == 0.0
    assert [quotas.connection_wait_s("::1") for _ in range(9)] == [0.0] * 9
    clock[0] += 0.5
    assert quotas.connection_wait_s("10.0.0.1") == 0.0


def test_buckets_of_names_that_clients_choose_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "MOST_BUCKETS", 100)
    quotas, _ = quotas_of({QuotaEntity(None, ""): {"producer_byte_rate": 1.0}})
    for number in range(1_000):
        used = Used(quotas, ALICE, f"client-{number}", "/")
        used.publish(1, 1000)
        assert len(quotas._buckets) <= 100


# -- which there can be ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        (QuotaEntity(), "producer_byte_rate", 1.0),
        (QuotaEntity("alice", ip="10.0.0.1"), "producer_byte_rate", 1.0),
        (QuotaEntity("alice", namespace="shop"), "producer_byte_rate", 1.0),
        (QuotaEntity(ip="nowhere"), "connection_creation_rate", 1.0),
        (QuotaEntity(ip="10.0.0.1"), "producer_byte_rate", 1.0),
        (QuotaEntity("alice"), "connection_creation_rate", 1.0),
        (QuotaEntity("alice"), "producer_bite_rate", 1.0),
        (QuotaEntity("alice"), "producer_byte_rate", 0.0),
        (QuotaEntity("alice"), "producer_byte_rate", -1.0),
        (QuotaEntity("alice"), "producer_byte_rate", 1.5),
        (QuotaEntity("alice"), "request_percentage", float("nan")),
        (QuotaEntity("alice"), "request_percentage", float("inf")),
        (QuotaEntity("a" * 256), "producer_byte_rate", 1.0),
        (QuotaEntity("a\nb"), "producer_byte_rate", 1.0),
    ],
)
def test_what_cannot_be_is_refused(entity: QuotaEntity, key: str, value: float) -> None:
    quotas, _ = quotas_of({})
    with pytest.raises(Invalid):
        quotas.check(entity, {key: value})


# -- in a broker -------------------------------------------------------------------------------------------------------


def wait_of(broker: Broker) -> float:
    access = broker.access(ALICE, "/", Meters().http)
    access.count(1, 10_000)
    return access.publish_wait_s()


def test_quotas_survive_a_restart_and_end_with_the_last(tmp_path: Path) -> None:
    async def first() -> None:
        async with broker_on(tmp_path) as broker:
            assert not broker.quotas.on
            assert wait_of(broker) == 0.0
            assert await broker.quotas.alter(QuotaEntity("alice"), {"producer_byte_rate": 1000.0})
            assert not await broker.quotas.alter(QuotaEntity("alice"), {"producer_byte_rate": 1000.0})
            assert wait_of(broker) > 5

    async def second() -> None:
        async with broker_on(tmp_path) as broker:
            assert broker.quotas.on
            assert wait_of(broker) > 5
            access = broker.access(ALICE, "/", Meters().http)
            access.count(1, 10_000)
            await broker.quotas.alter(QuotaEntity("alice"), {"producer_byte_rate": None})
            assert access.publish_wait_s() == 0.0  # a session that is there is told
            assert not broker.quotas.on
            assert not broker.catalog.definitions(KIND)

    asyncio.run(first())
    asyncio.run(second())


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            broker.catalog.write({rows.definition_key(KIND, "x"): b"{", rows.definition_key(KIND, "y"): b"{}"})
            value = msgspec.json.encode({"entity": {"user": "bob"}, "values": {"producer_byte_rate": -1}})
            broker.catalog.write({rows.definition_key(KIND, "z"): value})
            broker.quotas.load()
            assert not broker.quotas.listing()

    asyncio.run(main())


def test_making_room_for_buckets_is_done_for_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client can make a bucket with each request, and each time all sessions look for theirs again."""
    monkeypatch.setattr(client_quotas, "MOST_BUCKETS", 100)
    quotas, clock = quotas_of({QuotaEntity(None, ""): {"producer_byte_rate": 1.0}})
    before = quotas.version
    for number in range(1000):
        bucket = quotas.of_client("producer_byte_rate", "alice", f"client-{number}")
        assert bucket is not None
        bucket.take(1000, clock[0])
    assert len(quotas._buckets) <= 100
    assert quotas.version - before <= 100


def test_who_is_in_no_namespace_by_its_protocol_is_in_its_home() -> None:
    quotas, _ = quotas_of({QuotaEntity(namespace="shop"): {"producer_byte_rate": 1000.0}})
    tenant, guest = Principal("alice", namespace="shop"), Principal("bob")
    for used, waits in [
        (Used(quotas, guest, "", "/"), False),
        (Used(quotas, tenant, "", "/"), True),
        (Used(quotas, guest, "", "shop"), True),
    ]:
        used.publish(1, 10_000)
        assert bool(used.publish_wait_s()) is waits


@pytest.mark.parametrize("ip", ["2001:DB8::7", "2001:db8:0::7"])
def test_an_address_is_written_as_connections_show_it(ip: str) -> None:
    """Or the quota would be nobody's."""
    with pytest.raises(Invalid, match="2001:db8::7"):
        check_entity(QuotaEntity(ip=ip))


def test_quotas_of_nobody_are_refused_before_anything_is_begun(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            views = broker.access(ALICE, "/", broker.meters.http).views
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                with pytest.raises(Invalid, match="a quota is for somebody"):
                    await views.act("set-quotas", {"user": "", "quotas": {"producer_byte_rate": 1}})
                gc.collect()
            assert [str(one.message) for one in told] == []  # no coroutine that was never awaited

    asyncio.run(main())


def test_what_is_refused_anyway_is_not_waited_for(tmp_path: Path) -> None:
    """A slip of the pen would keep all clients of the user from creating topics for months."""

    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.quotas.alter(QuotaEntity("alice"), {"controller_mutation_rate": 1.0})
            alice = broker.access(ALICE, "/", broker.meters.http)
            await alice.create_topic("orders", 1)
            for refused in (
                alice.create_topic("paid", 1_000_000_000),
                alice.create_topic("no such name/", 50),
                alice.topics.add_partitions("orders", 1_000_000_000),
                alice.views.act("alter-topic", {"topic": "orders", "partitions": 1_000_000_000}),
            ):
                with pytest.raises(Invalid):
                    await refused
            await alice.create_topic("paid", 1)
            assert len((await alice.topics.add_partitions("orders", 2)).partitions) == 2
            await alice.views.act("alter-topic", {"topic": "orders", "partitions": 3})

    asyncio.run(main())
