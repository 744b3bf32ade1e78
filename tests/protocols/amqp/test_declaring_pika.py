"""exchange.* and queue.* methods through pika against a real server: RabbitMQ's answers, and what messages do then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from tests.protocols.amqp.declaring_cases import OURS, SEEN
from tests.protocols.amqp.declaring_steps import Case, Step, declare, exchange
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.wire.amqp.errors import NAMES


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("declaring")) as server:
        yield server


def connect(server: Server) -> pika.BlockingConnection:
    host, _, port = server.addresses["amqp"].rpartition(":")
    return pika.BlockingConnection(
        pika.ConnectionParameters(host, int(port), socket_timeout=20, blocked_connection_timeout=20)
    )


class Clients:
    """Connections that are closed whatever happens."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._open: list[pika.BlockingConnection] = []

    def channel(self) -> BlockingChannel:
        connection = connect(self._server)
        self._open.append(connection)
        return connection.channel()

    def close(self) -> None:
        for connection in self._open:
            with suppress(AMQPError):
                connection.close()
        self._open.clear()


@pytest.fixture
def clients(server: Server) -> Iterator[Clients]:
    clients = Clients(server)
    yield clients
    clients.close()


@pytest.fixture
def channel(clients: Clients) -> BlockingChannel:
    return clients.channel()


def do(channel: BlockingChannel, step: Step) -> Any:
    if step.method == "publish":
        channel.confirm_delivery()
        return channel.basic_publish("", step.fields["queue"], b"x")
    if step.method == "consume":
        return channel.basic_consume(step.fields["queue"], lambda *_: None)
    return getattr(channel, step.method)(**step.fields)


def clean(server: Server, case: Case) -> None:
    """Nothing that a case declared is there for the next one."""
    connection = connect(server)
    for step in case.steps:
        queue = step.fields.get("queue")
        if queue:
            connection.channel().queue_delete(queue)
        for end in ("exchange", "source", "destination"):
            name = step.fields.get(end, "")
            if name and not name.startswith("amq."):
                connection.channel().exchange_delete(name)
    connection.close()


@pytest.mark.parametrize("case", [*SEEN, *OURS], ids=lambda case: case.name)
def test_answers_as_rabbitmq(case: Case, server: Server, clients: Clients) -> None:
    mine = clients.channel()
    other = clients.channel() if any(step.other for step in case.steps) else mine
    *before, last = case.steps
    try:
        for step in before:
            do(other if step.other else mine, step)
        if case.refusal is None:
            do(mine, last)
        else:
            with pytest.raises((ChannelClosedByBroker, ConnectionClosedByBroker)) as caught:
                do(mine, last)
            code, text = case.refusal
            assert (caught.value.reply_code, caught.value.reply_text) == (code, f"{NAMES[code]} - {text}")
            assert mine.connection.is_open == (code != 540)
    finally:
        clients.close()
        clean(server, case)


def bodies(channel: BlockingChannel, queue: str) -> list[bytes]:
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2])
    return found


def test_what_no_binding_matches_goes_to_the_alternate_exchange(channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    channel.exchange_declare("alternate", "fanout")
    channel.exchange_declare("main", "direct", arguments={"alternate-exchange": "alternate"})
    for queue in ("known", "unknown"):
        channel.queue_declare(queue)
    channel.queue_bind("known", "main", "k")
    channel.queue_bind("unknown", "alternate")
    channel.basic_publish("main", "k", b"bound")
    channel.basic_publish("main", "nobody", b"not bound", mandatory=True)
    assert bodies(channel, "known") == [b"bound"]
    assert bodies(channel, "unknown") == [b"not bound"]


def test_messages_go_from_exchange_to_exchange_until_they_are_unbound(channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    for name, kind in (("source", "topic"), ("middle", "direct"), ("sink", "fanout")):
        channel.exchange_declare(name, kind)
    channel.queue_declare("end")
    channel.queue_bind("end", "sink")
    channel.exchange_bind("middle", "source", "logs.#")
    channel.exchange_bind("sink", "middle", "logs.a")
    channel.exchange_bind("source", "sink", "")  # a circle
    channel.basic_publish("source", "logs.a", b"through")
    channel.basic_publish("source", "logs.b", b"only to the middle")
    assert bodies(channel, "end") == [b"through"]
    channel.exchange_unbind("middle", "source", "logs.#")
    channel.basic_publish("source", "logs.a", b"not any more")
    assert bodies(channel, "end") == []


def test_an_exclusive_queue_goes_with_its_connection(clients: Clients, channel: BlockingChannel) -> None:
    mine = clients.channel()
    name = mine.queue_declare("", exclusive=True).method.queue
    assert name.startswith("amq.gen-")
    mine.connection.close()

    def is_gone() -> bool:
        with pytest.raises(ChannelClosedByBroker) as caught:
            channel.connection.channel().queue_declare(name, passive=True)
        return bool(caught.value.reply_code == 404)

    wait_for(is_gone, "the queue is gone")


def test_an_auto_delete_queue_goes_with_its_last_consumer(channel: BlockingChannel) -> None:
    channel.queue_declare("brief", auto_delete=True)
    assert channel.queue_declare("brief", passive=True).method.consumer_count == 0
    first = channel.basic_consume("brief", lambda *_: None)
    second = channel.basic_consume("brief", lambda *_: None)
    channel.basic_cancel(first)
    assert channel.queue_declare("brief", passive=True).method.consumer_count == 1
    channel.basic_cancel(second)
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_declare("brief", passive=True)
    assert caught.value.reply_code == 404


def test_what_is_durable_survives_a_restart_and_the_rest_does_not(tmp_path: Path) -> None:
    arguments = {"x-max-length": 5, "x-dead-letter-exchange": "kept"}
    with Server(tmp_path) as server:
        channel = connect(server).channel()
        channel.exchange_declare("kept", "topic", durable=True, arguments={"alternate-exchange": "other"})
        channel.exchange_declare("lost", "topic")
        channel.queue_declare("kept", durable=True, arguments=arguments)
        channel.queue_declare("lost")
        channel.queue_bind("kept", "kept", "#")
        channel.connection.close()
        server.stop()
        server.restart()
        channel = connect(server).channel()
        channel.exchange_declare("kept", "topic", durable=True, arguments={"alternate-exchange": "other"})
        channel.queue_declare("kept", durable=True, arguments=arguments)
        channel.confirm_delivery()
        channel.basic_publish("kept", "any", b"bound", mandatory=True)
        assert bodies(channel, "kept") == [b"bound"]
        for step in (declare("lost", passive=True), exchange("lost", passive=True)):
            with pytest.raises(ChannelClosedByBroker) as caught:
                do(channel.connection.channel(), step)
            assert caught.value.reply_code == 404
        channel.connection.close()
