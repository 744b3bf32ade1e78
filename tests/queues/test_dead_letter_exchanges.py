"""Dead letters that an exchange sends on: to whoever is bound at that moment, all at once, with RabbitMQ's details."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.broker.queue_kit import Inbox, Machine, consumer, on_a_machine, put
from waystation.broker.broker import Broker
from waystation.errors import Invalid, NotAllowed
from waystation.message import Message
from waystation.queues.failure_history import failure_history_of
from waystation.queues.feed import Verdict
from waystation.queues.settings import QueueSettings


def _messages(broker: Broker, queue: str) -> list[Message]:
    return [peeked.delivered.message for peeked in broker.queues.peek(queue, 10_000)]


def _payloads(broker: Broker, queue: str) -> list[bytes]:
    return [message.payload for message in _messages(broker, queue)]


async def _kill_all(broker: Broker, queue: str) -> None:
    async with consumer(broker, queue) as inbox:
        await inbox.settle(Verdict.KILL, *inbox.got, error="no")
    await asyncio.sleep(1)


async def _declare(broker: Broker, name: str, exchange: str, key: str | None = None, **more: Any) -> None:
    await broker.queues.declare(name, QueueSettings(dead_letter_exchange=exchange, dead_letter_key=key, **more))


async def _exchange(broker: Broker, kind: str, bindings: dict[str, str]) -> None:
    await broker.routing.declare_exchange("dlx", kind)
    for queue, key in bindings.items():
        if queue not in broker.queues:
            await broker.queues.declare(queue)
        await broker.routing.bind("dlx", f"queue:{queue}", key)


# -- where they go -----------------------------------------------------------------------------------------------------


@on_a_machine
async def test_a_letter_goes_to_every_queue_and_topic_that_is_bound_at_once(machine: Machine) -> None:
    broker = machine.broker
    await _exchange(broker, "topic", {"a": "jobs.#", "b": "#.red", "c": "other"})
    await broker.messages.ensure("failures")
    await broker.routing.bind("dlx", "topic:failures", "#")
    await _declare(broker, "jobs", "dlx")
    await put(broker, "jobs", b"one", routing_key="jobs.red", exchange="work")
    await _kill_all(broker, "jobs")
    broker = await machine.again()
    assert [_payloads(broker, queue) for queue in ("a", "b", "c", "jobs")] == [[b"one"], [b"one"], [], []]
    assert [one.message.payload for one in broker.messages.history("failures", 10)] == [b"one"]


@on_a_machine
async def test_a_key_of_the_queue_goes_before_the_messages_own(machine: Machine) -> None:
    broker = machine.broker
    await _exchange(broker, "direct", {"a": "dead", "b": "own", "c": "copy"})
    await _declare(broker, "keyed", "dlx", "dead")
    await _declare(broker, "plain", "dlx")
    for queue in ("keyed", "plain"):
        headers = {"CC": ["copy"], "BCC": ["nowhere"], "x": 1}
        await put(broker, queue, queue.encode(), routing_key="own", exchange="work", headers=headers)
        await _kill_all(broker, queue)
    assert [_payloads(broker, queue) for queue in "abc"] == [[b"keyed"], [b"plain"], [b"plain"]]
    (keyed,), (plain,) = _messages(broker, "a"), _messages(broker, "b")
    assert (keyed.exchange, keyed.routing_key, plain.routing_key) == ("dlx", "dead", "own")
    assert ("CC" in keyed.headers, "BCC" in keyed.headers, keyed.headers["x"]) == (False, False, 1)
    assert plain.headers["CC"] == ["copy"]
    assert failure_history_of(keyed)[0]["routing-keys"] == ["own", "copy"]


@on_a_machine
async def test_the_default_exchange_leads_to_a_queue_by_its_name(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("graves")
    await _declare(broker, "jobs", "", "graves")
    await _declare(broker, "lost", "", "nobody")
    await _declare(broker, "round", "")
    for queue in ("jobs", "lost", "round"):
        await put(broker, queue, queue.encode())
        await _kill_all(broker, queue)
    assert _payloads(broker, "graves") == [b"jobs"]
    (letter,) = _messages(broker, "graves")
    assert (letter.exchange, letter.routing_key, letter.id) == ("", "graves", None)
    assert _payloads(broker, "lost") == []
    assert "nobody" not in broker.queues, "nothing is made for them"
    assert _payloads(broker, "round") == [b"round"], "its own key is the name of its queue, and a consumer rejected it"


@on_a_machine
async def test_without_an_exchange_or_a_binding_a_dead_message_ends(machine: Machine) -> None:
    broker = machine.broker
    await broker.routing.declare_exchange("deaf", "fanout")
    for queue, exchange in (("a", "nothing"), ("b", "deaf")):
        await _declare(broker, queue, exchange)
        await put(broker, queue, b"x", b"y")
        await _kill_all(broker, queue)
        assert broker.queues.describe(queue).bytes == 0
    broker = await machine.again()
    assert (_payloads(broker, "a"), _payloads(broker, "b")) == ([], [])


@on_a_machine
async def test_an_internal_exchange_takes_letters_and_the_brokers_own_queues_none(machine: Machine) -> None:
    broker = machine.broker
    await broker.routing.declare_exchange("inner", "fanout", internal=True)
    await broker.queues.declare("graves")
    await broker.routing.bind("inner", "queue:graves")
    await _declare(broker, "a", "inner")
    await _declare(broker, "b", "", "__delayed")
    broker.queues.ensure_own("__delayed")
    for queue in ("a", "b"):
        await put(broker, queue, queue.encode())
        await _kill_all(broker, queue)
    assert _payloads(broker, "graves") == [b"a"]
    assert (_payloads(broker, "b"), _payloads(broker, "__delayed")) == ([], [])


@on_a_machine
async def test_the_bindings_of_the_moment_count(machine: Machine) -> None:
    broker = machine.broker
    await _exchange(broker, "fanout", {"a": ""})
    await _declare(broker, "jobs", "dlx")
    await put(broker, "jobs", b"1")
    await _kill_all(broker, "jobs")
    await broker.queues.declare("b")
    await broker.routing.bind("dlx", "queue:b")
    await broker.queues.delete("a")
    await put(broker, "jobs", b"2")
    await _kill_all(broker, "jobs")
    assert _payloads(broker, "b") == [b"2"]


@on_a_machine
async def test_in_a_namespace_names_are_its_own(machine: Machine) -> None:
    broker = machine.broker
    await broker.namespaces.create("shop")
    for name in ("graves", "shop/graves", "shop/direct"):
        await broker.queues.declare(name)
    await _declare(broker, "shop/a", "", "graves")
    await _declare(broker, "shop/b", "shop/amq.direct", "dead")
    await broker.routing.bind("shop/amq.direct", "queue:shop/direct", "dead")
    for queue in ("shop/a", "shop/b"):
        await put(broker, queue, queue.encode())
        await _kill_all(broker, queue)
    assert [_payloads(broker, name) for name in ("graves", "shop/graves", "shop/direct")] == [
        [],
        [b"shop/a"],
        [b"shop/b"],
    ]
    (letter,) = _messages(broker, "shop/direct")
    assert (letter.exchange, letter.routing_key) == ("amq.direct", "dead")


# -- the story ---------------------------------------------------------------------------------------------------------


@on_a_machine
async def test_the_story_has_what_clients_of_rabbitmq_look_for(machine: Machine) -> None:
    broker = machine.broker
    await _exchange(broker, "fanout", {"dead": ""})
    await _declare(broker, "jobs", "dlx")
    await broker.queues.declare("dead", QueueSettings(dead_letter_exchange="", dead_letter_key="worse"), alter=True)
    await broker.queues.declare("worse")
    await put(
        broker, "jobs", b"x", exchange="work", routing_key="k", ttl_ms=500, headers={"h": "v"}, priority=4, id="i"
    )
    await asyncio.sleep(2)
    (letter,) = _messages(broker, "dead")
    (death,) = failure_history_of(letter)
    assert {name: death[name] for name in death if name != "time"} == {
        "queue": "jobs",
        "reason": "expired",
        "count": 1,
        "deliveries": 0,
        "exchange": "work",
        "routing-keys": ["k"],
        "original-expiration": "500",
    }
    assert (letter.ttl_ms, letter.exchange, letter.routing_key, letter.priority, letter.id) == (
        None,
        "dlx",
        "k",
        4,
        "i",
    )
    first = {"x-first-death-queue": "jobs", "x-first-death-reason": "expired", "x-first-death-exchange": "work"}
    last = {"x-last-death-queue": "jobs", "x-last-death-reason": "expired", "x-last-death-exchange": "work"}
    assert {name: value for name, value in letter.headers.items() if name != "x-death"} == {"h": "v", **first, **last}
    await _kill_all(broker, "dead")
    (letter,) = _messages(broker, "worse")
    last = {"x-last-death-queue": "dead", "x-last-death-reason": "rejected", "x-last-death-exchange": "dlx"}
    assert {name: value for name, value in letter.headers.items() if name != "x-death"} == {"h": "v", **first, **last}
    assert [(death["queue"], death["reason"]) for death in failure_history_of(letter)] == [
        ("dead", "rejected"),
        ("jobs", "expired"),
    ]


@on_a_machine
async def test_a_retry_by_two_queues_goes_round_as_long_as_a_consumer_rejects(machine: Machine) -> None:
    """The pattern of many: rejected jobs wait in a queue with a time to live, which gives them back."""
    broker = machine.broker
    await _declare(broker, "jobs", "", "waiting")
    await _declare(broker, "waiting", "", "jobs", ttl_ms=1000)
    await put(broker, "jobs", b"x", exchange="", routing_key="jobs")
    for tries in range(1, 6):
        async with consumer(broker, "jobs") as inbox:
            assert [len(failure_history_of(one.message)) for one in inbox.got] == [min(2, 2 * (tries - 1))]
            await inbox.settle(Verdict.KILL, *inbox.got)
        await asyncio.sleep(3)
        (letter,) = _messages(broker, "jobs")
        assert {(death["queue"], death["reason"], death["count"]) for death in failure_history_of(letter)} == {
            ("waiting", "expired", tries),
            ("jobs", "rejected", tries),
        }


@on_a_machine
async def test_a_circle_without_a_consumer_ends_but_not_for_those_outside_it(machine: Machine) -> None:
    broker = machine.broker
    await _exchange(broker, "fanout", {"witness": ""})
    await _declare(broker, "a", "dlx", ttl_ms=100)
    await _declare(broker, "b", "", "a", ttl_ms=100)
    await broker.routing.bind("dlx", "queue:b")
    await broker.routing.bind("dlx", "queue:a")  # where it just died: a circle of one
    await put(broker, "a", b"x")
    await asyncio.sleep(5)
    assert (_payloads(broker, "a"), _payloads(broker, "b"), _payloads(broker, "witness")) == ([], [], [b"x"])


# -- trouble -----------------------------------------------------------------------------------------------------------


@on_a_machine
async def test_a_full_target_keeps_all_of_a_letters_targets_waiting_and_none_gets_it_twice(machine: Machine) -> None:
    broker = machine.broker
    await _exchange(broker, "fanout", {"a": "", "b": ""})
    await broker.queues.declare("b", QueueSettings(max_length=1), alter=True)
    await _declare(broker, "jobs", "dlx")
    await put(broker, "jobs", *[b"%d" % i for i in range(3)])
    await _kill_all(broker, "jobs")
    await asyncio.sleep(30)
    assert _payloads(broker, "a") == _payloads(broker, "b") == [b"0"]
    await broker.queues.declare("b", QueueSettings(), alter=True)
    await asyncio.sleep(60)
    assert _payloads(broker, "a") == _payloads(broker, "b") == [b"0", b"1", b"2"]


@on_a_machine
async def test_dead_letters_of_an_exchange_survive_a_restart_on_their_way(machine: Machine) -> None:
    broker = machine.broker
    await _exchange(broker, "fanout", {"a": "", "c": ""})
    assert broker.shards.of("c") is not broker.shards.of("jobs"), "so that it takes a transaction"
    await _declare(broker, "jobs", "dlx", max_length=2, overflow="dead-letter")
    fault = machine.refuse(path_part="__transaction_state")
    await put(broker, "jobs", b"0", b"1")
    await put(broker, "jobs", b"2", b"3")
    await asyncio.sleep(1)
    assert len(broker.queues.peek("jobs", 10, state="leaving")) == 2
    machine.allow(fault)
    broker = await machine.again()
    await asyncio.sleep(1)
    assert _payloads(broker, "a") == _payloads(broker, "c") == [b"0", b"1"]
    assert _payloads(broker, "jobs") == [b"2", b"3"]


@on_a_machine
async def test_a_queue_that_no_longer_keeps_its_dead_lets_those_go_that_waited(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("full", QueueSettings(max_length=1))
    await put(broker, "full", b"there")
    await _declare(broker, "jobs", "", "full")
    await put(broker, "jobs", b"x")
    await _kill_all(broker, "jobs")
    assert len(broker.queues.peek("jobs", 10)) == 1
    await broker.queues.declare("jobs", QueueSettings(), alter=True)
    await asyncio.sleep(60)
    assert (_payloads(broker, "jobs"), _payloads(broker, "full")) == ([], [b"there"])


@on_a_machine
async def test_a_letter_of_an_exchange_is_redriven_to_where_it_died(machine: Machine) -> None:
    broker = machine.broker
    await _exchange(broker, "fanout", {"dead": ""})
    await _declare(broker, "jobs", "dlx")
    await put(broker, "jobs", b"x")
    await _kill_all(broker, "jobs")
    assert (await broker.queues.redrive("dead")).moved == 1
    inbox = Inbox(broker, "jobs")
    await asyncio.sleep(0.1)
    assert [(one.message.payload, one.deliveries) for one in inbox.got] == [(b"x", 1)]


@on_a_machine
async def test_names_that_cannot_be_are_refused(machine: Machine) -> None:
    queues = machine.broker.queues
    for settings, field in (
        (QueueSettings(dead_letter_exchange="x" * 256), "dead_letter_exchange"),
        (QueueSettings(dead_letter_exchange="a\nb"), "dead_letter_exchange"),
        (QueueSettings(dead_letter_exchange="x", dead_letter_key="k" * 256), "dead_letter_key"),
    ):
        with pytest.raises((Invalid, NotAllowed), match=rf"^{field}"):
            await queues.declare("jobs", settings)
    assert "jobs" not in queues
