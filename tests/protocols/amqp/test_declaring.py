"""exchange.* and queue.* methods, as the protocol's own code answers them. See declaring_cases.py for what is
expected."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocols.amqp.declaring_cases import OURS, SEEN
from tests.protocols.amqp.declaring_kit import Client, with_broker
from tests.protocols.amqp.declaring_steps import (
    Case,
    Refusal,
    bind,
    consume,
    declare,
    delete,
    differs,
    drop,
    durable,
    exchange,
    link,
    publish,
    purge,
)
from waystation.broker.broker import Broker
from waystation.message import MAX_HORIZON_MS, Message
from waystation.queues.settings import QueueSettings
from waystation.vhosts.arguments import arguments_of
from waystation.wire.amqp.template import AT_ONCE_MS


@pytest.mark.parametrize("case", [*SEEN, *OURS], ids=lambda case: case.name)
def test_answers_as_rabbitmq(case: Case) -> None:
    async def work(broker: Broker) -> None:
        mine, other = Client(broker, "one"), Client(broker, "two")
        *before, last = case.steps
        for step in before:
            await (other if step.other else mine).do(step)
        assert await mine.refusal(last) == case.refusal

    with_broker(work)


def test_server_named_queues_have_names_of_their_own_and_are_found_by_them() -> None:
    async def work(broker: Broker) -> None:
        client = Client(broker)
        first, second = [await client.do(declare("", exclusive=True)) for _ in range(2)]
        assert first.queue != second.queue
        assert first.queue.startswith("amq.gen-")
        assert len(first.queue) == len("amq.gen-JzTY20BRgKO-HjmUJj0wLg")
        assert client.last_queue == second.queue
        assert (await client.do(declare(first.queue, passive=True))).queue == first.queue
        assert client.last_queue == first.queue

    with_broker(work)


def test_declare_ok_counts_ready_messages_and_consumers() -> None:
    async def work(broker: Broker) -> None:
        client = Client(broker)
        await client.do(declare())
        await client.do(publish())
        await client.do(publish())
        await client.do(consume())
        answer = await client.do(declare(passive=True))
        assert (answer.queue, answer.message_count, answer.consumer_count) == ("q", 2, 1)
        assert (await client.do(purge())).message_count == 2
        await client.do(publish())
        assert (await client.do(delete())).message_count == 1
        assert (await client.do(delete())).message_count == 0

    with_broker(work)


def test_names_of_any_kind_can_be_written_to_the_wire() -> None:
    async def work(broker: Broker) -> None:
        for name in ("n" * 255, "Ümläut 日本", "a b"):
            answer = await Client(broker).do(declare(name))
            assert name.encode() in answer.marshal()

    with_broker(work)


def test_line_ends_are_no_part_of_a_name() -> None:
    async def work(broker: Broker) -> None:
        client = Client(broker)
        assert (await client.do(declare("q\r\n"))).queue == "q"
        await client.do(exchange("e\n"))
        await client.do(bind("q\n", "e\r"))
        assert broker.routing.route("e", Message(b""), "k") == ["queue:q"]

    with_broker(work)


def test_an_empty_key_with_an_empty_queue_is_the_queues_name() -> None:
    async def work(broker: Broker) -> None:
        client = Client(broker)
        await client.do(exchange())
        await client.do(declare("jobs"))
        await client.do(bind("", "e", ""))
        assert broker.routing.route("e", Message(b""), "jobs") == ["queue:jobs"]
        await client.do(bind("jobs", "e", ""))
        assert broker.routing.route("e", Message(b""), "") == ["queue:jobs"]

    with_broker(work)


def test_an_exclusive_queue_goes_with_its_connection() -> None:
    async def work(broker: Broker) -> None:
        await Client(broker, "one").do(declare(exclusive=True))
        broker.queues.release_owner("one")
        assert await Client(broker, "two").refusal(declare(exclusive=True)) is None

    with_broker(work)


SETTINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"x-message-ttl": 0}, {"ttl_ms": AT_ONCE_MS}),
    ({"x-overflow": "reject-publish", "x-max-length": 5}, {"overflow": "reject", "max_length": 5}),
    ({"x-overflow": "reject-publish-dlx"}, {"overflow": "reject-dead-letter"}),
    ({"x-delivery-limit": 0}, {"max_deliveries": 1}),
    ({"x-queue-type": "quorum", "x-delivery-limit": 4}, {"queue_type": "quorum", "max_deliveries": 5}),
    (
        {"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "k"},
        {"dead_letter_exchange": "dlx", "dead_letter_key": "k"},
    ),
    ({"x-dead-letter-exchange": ""}, {"dead_letter_exchange": ""}),
    ({"x-single-active-consumer": True, "x-expires": 9}, {"single_active": True, "expires_ms": 9}),
    ({"x-consumer-timeout": 5000}, {"hold_ms": 5000}),
]
"""Arguments, and what differs from the settings of a plain AMQP queue."""


@pytest.mark.parametrize(("arguments", "fields"), SETTINGS)
def test_arguments_become_settings(arguments: dict[str, Any], fields: dict[str, Any]) -> None:
    async def work(broker: Broker) -> None:
        await Client(broker).do(durable(**arguments))
        usual: dict[str, Any] = {
            "retry_base_ms": 0,
            "hold_ms": MAX_HORIZON_MS,
            "overflow": "drop-oldest",
            "max_priority": 0,
            "queue_type": "classic",
        }
        assert broker.queues.describe("q").settings == QueueSettings(**(usual | fields))

    with_broker(work)


def test_a_queue_of_another_protocol_has_to_agree_in_what_is_named() -> None:
    async def work(broker: Broker) -> None:
        client = Client(broker)
        await broker.queues.declare("q", QueueSettings(max_length=10, ttl_ms=5000, dead_letter="dead"))
        for step in (
            declare(),
            durable(),
            durable(x_queue_type="quorum"),
            durable(x_max_length=10),
            durable(x_dead_letter_exchange="", x_dead_letter_routing_key="dead"),
            durable(**arguments_of(broker.queues.describe("q").settings)),
        ):
            assert await client.refusal(step) is None
        assert await client.refusal(durable(x_max_length=11)) == differs("x-max-length", "'11'", "'10'")
        assert await client.refusal(durable(x_max_length_bytes=11)) == differs(
            "x-max-length-bytes", "the value '11' of type 'signedint'", "none"
        )
        assert await client.refusal(declare(auto_delete=True)) == differs("auto_delete", "'true'", "'false'")
        assert broker.queues.describe("q").settings.queue_type is None

    with_broker(work)


def test_the_names_of_another_virtual_host_are_its_own() -> None:
    async def work(broker: Broker) -> None:
        plain, shop = Client(broker, "one"), Client(broker, "two", "shop")
        for client in (plain, shop):
            await client.do(durable(x_dead_letter_exchange="dlx"))
            await client.do(exchange(arguments={"alternate-exchange": "other"}))
            await client.do(exchange("d"))
            await client.do(bind())
            await client.do(link())
        assert {"q", "shop/q"} <= set(broker.queues.names())
        assert broker.queues.describe("shop/q").settings.dead_letter_exchange == "shop/dlx"
        assert broker.routing.describe("shop/e").alternate == "shop/other"
        assert broker.routing.route("shop/e", Message(b""), "k") == ["queue:shop/q"]
        assert await shop.refusal(durable()) == Refusal(
            406,
            "inequivalent arg 'x-dead-letter-exchange' for queue 'q' in vhost 'shop': received none but current is"
            " the value 'dlx' of type 'longstr'",
        )
        assert await shop.refusal(exchange()) == Refusal(
            406,
            "inequivalent arg 'alternate-exchange' for exchange 'e' in vhost 'shop': received none but current is"
            " the value 'other' of type 'longstr'",
        )
        await shop.do(delete())
        await shop.do(drop())
        assert "q" in broker.queues
        assert (await plain.do(declare(passive=True))).queue == "q"

    with_broker(work)


def test_refusals_of_the_heart_name_no_virtual_host_twice() -> None:
    async def work(broker: Broker) -> None:
        refusal = await Client(broker, vhost="shop").refusal(declare("q\t"))
        assert refusal is not None
        assert refusal.code == 406
        assert "shop/" not in refusal.text

    with_broker(work)


def test_the_brokers_own_queues_are_nobodys() -> None:
    async def work(broker: Broker) -> None:
        client = Client(broker)
        for step in (declare("__x"), delete("__x"), purge("__x")):
            refusal = await client.refusal(step)
            assert refusal is None or refusal.code in (403, 404)

    with_broker(work)


def test_what_is_in_another_virtual_host_is_out_of_reach() -> None:
    async def work(broker: Broker) -> None:
        await broker.namespaces.create("shop")
        await Client(broker, "one", "shop").do(declare())
        plain = Client(broker, "two")
        await plain.do(exchange())
        for step in (
            declare("shop/q"),
            declare("shop/q", passive=True),
            durable(x_dead_letter_exchange="shop/amq.fanout"),
            exchange("new", arguments={"alternate-exchange": "shop/amq.fanout"}),
            purge("shop/q"),
            delete("shop/q"),
            bind("shop/q"),
            exchange("shop/e"),
            exchange("shop/amq.topic", passive=True),
            drop("shop/e"),
            link("shop/amq.fanout", "e"),
        ):
            refusal = await plain.refusal(step)
            assert refusal is not None
            assert refusal.code == 403
        await plain.do(declare("a/b"))

    with_broker(work)


def test_a_virtual_host_has_its_usual_type_of_queue() -> None:
    async def work(broker: Broker) -> None:
        await broker.namespaces.create("shop", default_queue_type="quorum")
        client = Client(broker, vhost="shop")
        await client.do(durable())
        await client.do(declare("plain"))
        assert broker.queues.describe("shop/q").settings.queue_type == "quorum"
        assert broker.queues.describe("shop/plain").settings.queue_type == "classic"
        assert await client.refusal(durable(x_queue_type="quorum")) is None

    with_broker(work)


def test_predeclared_exchanges_of_a_virtual_host_can_be_used_and_not_deleted() -> None:
    async def work(broker: Broker) -> None:
        await broker.namespaces.create("shop")
        client = Client(broker, vhost="shop")
        await client.do(declare())
        await client.do(bind(exchange="amq.topic"))
        assert broker.routing.route("shop/amq.topic", Message(b""), "k") == ["queue:shop/q"]
        assert await client.refusal(drop("amq.topic")) == Refusal(
            403, "deletion of system exchange 'amq.topic' in vhost 'shop' not allowed"
        )

    with_broker(work)
