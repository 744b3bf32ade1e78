"""`kill -9` and clean restarts, seen by AMQP clients: what was confirmed is there, what was settled is not.

A process that is killed leaves the page cache behind, so this does not show that fsync was called (the simulated disk
does that); it shows that the real process finds everything again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from pika.exceptions import AMQPError

from tests.clients.amqp_kit import QUORUM, numbered, ours_only, target_of
from tests.clients.pika_kit import (
    PERSISTENT,
    Inbox,
    Pikas,
    depth,
    drain,
    get_one,
    gone,
    new_exchange,
    new_queue,
    put,
    refused,
)
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for

pytestmark = ours_only


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Shared by these tests, which all leave it running."""
    with Server(tmp_path_factory.mktemp("amqp-killed")) as running:
        yield running


@pytest.fixture
def clients(server: Server) -> Iterator[Pikas]:
    made = Pikas(target_of(server))
    yield made
    made.close()


@pytest.mark.parametrize("arguments", [{}, QUORUM, {"x-max-priority": 5}], ids=["classic", "quorum", "priority"])
def test_confirmed_persistent_messages_survive_kill_9(
    server: Server, clients: Pikas, arguments: dict[str, object]
) -> None:
    channel = clients.channel()
    queue = new_queue(channel, arguments, durable=True)
    exchange = new_exchange(channel, "topic", durable=True, auto_delete=False)
    channel.queue_bind(queue, exchange, "a.#")
    put(channel, queue, numbered(20), delivery_mode=2, message_id="m", headers={"h": 1})
    channel.basic_publish(exchange, "a.b", b"routed", PERSISTENT)
    server.kill()
    server.restart()
    fresh = clients.channel()
    assert depth(fresh, queue) == 21
    first = get_one(fresh, queue)
    assert (first.body, first.properties.message_id, first.headers) == (b"000000", "m", {"h": 1})
    assert drain(fresh, queue) == [*numbered(19, start=1), b"routed"]
    fresh.basic_publish(exchange, "a.c", b"bindings too", PERSISTENT)
    assert drain(fresh, queue) == [b"bindings too"]


def test_what_was_settled_does_not_come_back_and_what_was_held_does(server: Server, clients: Pikas) -> None:
    channel = clients.channel()
    queue = new_queue(channel, durable=True)
    put(channel, queue, numbered(10), delivery_mode=2)
    got = Inbox(channel, queue).take(10)
    channel.basic_ack(got[3].tag, multiple=True)
    channel.basic_nack(got[4].tag, requeue=False)
    # What is confirmed after the settlements was stored after them.
    put(channel, queue, [b"last"], delivery_mode=2)
    server.kill()
    server.restart()
    assert drain(clients.channel(), queue) == [*numbered(5, start=5), b"last"]


def test_committed_transaction_survives_kill_9_whole_and_an_open_one_not_at_all(server: Server, clients: Pikas) -> None:
    keeper, channel = clients.channel(), clients.channel(confirm=False)
    first, second = new_queue(keeper, durable=True), new_queue(keeper, durable=True)
    put(keeper, first, [b"work"], delivery_mode=2)
    channel.tx_select()
    work = get_one(channel, first, auto_ack=False)
    for queue in (first, second):
        channel.basic_publish("", queue, b"result", PERSISTENT)
    channel.basic_ack(work.tag)
    channel.tx_commit()
    for queue in (first, second):
        channel.basic_publish("", queue, b"never committed", PERSISTENT)
    server.kill()
    server.restart()
    fresh = clients.channel()
    assert (drain(fresh, first), drain(fresh, second)) == ([b"result"], [b"result"])


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_what_is_not_durable_is_gone_after_a_restart(server: Server, clients: Pikas, how: str) -> None:
    channel = clients.channel()
    queue, exchange = unique("transient"), unique("transient")
    channel.queue_declare(queue)
    channel.exchange_declare(exchange, "fanout")
    lasting = new_queue(channel, durable=True)
    getattr(server, how)()
    server.restart()
    assert gone(clients, queue)
    assert refused(lambda: clients.channel().exchange_declare(exchange, passive=True))[0] == 404
    assert depth(clients.channel(), lasting) == 0


def test_confirmed_transient_messages_survive_in_a_durable_queue(server: Server, clients: Pikas) -> None:
    """They do not wait for an fsync, but they are written before they are confirmed: only a power cut can lose them."""
    channel = clients.channel()
    queue = new_queue(channel, durable=True)
    put(channel, queue, numbered(50), delivery_mode=1)
    server.kill()
    server.restart()
    assert drain(clients.channel(), queue) == numbered(50)


def test_arguments_of_a_queue_survive_and_still_hold(server: Server, clients: Pikas) -> None:
    channel = clients.channel()
    dead = new_queue(channel, durable=True)
    arguments = {
        "x-max-length": 2,
        "x-message-ttl": 60000,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
        "x-max-priority": 3,
    }
    queue = new_queue(channel, arguments, durable=True)
    server.kill()
    server.restart()
    fresh = clients.channel()
    assert fresh.queue_declare(queue, durable=True, arguments=arguments).method.queue == queue
    for priority in (1, 2, 3):
        put(fresh, queue, [b"%d" % priority], priority=priority, delivery_mode=2)
    assert get_one(fresh, dead).headers["x-death"][0]["reason"] == "maxlen"
    assert len(drain(fresh, queue)) == 2


def test_clean_stop_tells_clients_and_keeps_everything(server: Server, clients: Pikas) -> None:
    channel = clients.channel()
    queue = new_queue(channel, durable=True)
    put(channel, queue, numbered(5), delivery_mode=2)
    assert server.stop() == 0
    with pytest.raises(AMQPError):
        depth(channel, queue)
    server.restart()
    assert drain(clients.channel(), queue) == numbered(5)


class Publisher(threading.Thread):
    """Publishes numbers with confirms until told to stop, connecting again when the broker is back."""

    def __init__(self, clients: Pikas, queue: str) -> None:
        super().__init__(daemon=True)
        self._clients, self._queue = clients, queue
        self.confirmed: list[int] = []
        self.tried = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._session()
            except (AMQPError, OSError):
                self.stopping.wait(0.02)

    def _session(self) -> None:
        channel = self._clients.channel()
        while not self.stopping.is_set():
            number = self.tried
            self.tried += 1
            channel.basic_publish("", self._queue, b"%d" % number, PERSISTENT)
            self.confirmed.append(number)


def test_nothing_confirmed_is_lost_when_the_broker_is_killed_again_and_again(server: Server, clients: Pikas) -> None:
    queue = new_queue(clients.channel(), durable=True)

    publisher = Publisher(Pikas(target_of(server)), queue)
    publisher.start()
    for _ in range(3):
        so_far = len(publisher.confirmed)
        wait_for(lambda so_far=so_far: len(publisher.confirmed) > so_far + 100, "a hundred more confirms")  # type: ignore[misc]
        server.kill()
        server.restart()
    publisher.stopping.set()
    publisher.join()
    channel = clients.channel()
    left = depth(channel, queue)
    inbox = Inbox(channel, queue)
    got = [int(delivery.body) for delivery in inbox.take(left)]
    assert set(publisher.confirmed) <= set(got)
    assert got == sorted(got)
    assert len(got) == len(set(got))
    assert set(got) <= set(range(publisher.tried))
