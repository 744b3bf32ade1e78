"""AMQP clients in namespaces of their own, and publishers that are told to wait: what a test sets up itself."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator

import pytest
from pika.exceptions import ProbableAccessDeniedError

from tests.clients.amqp_kit import ours_only, target_of
from tests.clients.pika_kit import Inbox, Pikas, bound_queue, cut_off, drain, gone, new_queue, put, until
from tests.support.names import unique
from tests.support.server import Server
from tests.support.short_disk import ShortDiskServer
from tests.support.waiting import DEADLINE_S, wait_for

pytestmark = ours_only


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShortDiskServer]:
    running = ShortDiskServer(tmp_path_factory.mktemp("amqp-places"))
    with running:
        yield running


@pytest.fixture
def clients(server: Server) -> Iterator[Pikas]:
    made = Pikas(target_of(server))
    yield made
    made.close()


def call(server: Server, method: str, path: str) -> int:
    """A call of the management API, as tools for RabbitMQ make it; returns its status."""
    connection = http.client.HTTPConnection(server.addresses["http"], timeout=DEADLINE_S)
    try:
        connection.request(method, path, body=json.dumps({}), headers={"content-type": "application/json"})
        return connection.getresponse().status
    finally:
        connection.close()


def new_vhost(server: Server) -> str:
    name = unique("vhost")
    assert call(server, "PUT", f"/api/vhosts/{name}") == 201
    return name


def test_virtual_hosts_keep_their_things_apart(server: Server, clients: Pikas) -> None:
    shop, bank = new_vhost(server), new_vhost(server)
    here, there = clients.channel(virtual_host=shop), clients.channel(virtual_host=bank)
    plain = clients.channel()
    name = unique("jobs")
    for channel in (here, there, plain):
        channel.queue_declare(name, exclusive=True)
        channel.queue_bind(name, "amq.topic", "news.#")
    put(here, name, [b"of the shop"])
    there.basic_publish("amq.topic", "news.bank", b"of the bank")
    plain.basic_publish("amq.topic", "news.all", b"of the plain")
    assert drain(here, name) == [b"of the shop"]
    assert drain(there, name) == [b"of the bank"]
    assert drain(plain, name) == [b"of the plain"]


def test_names_are_told_as_the_client_knows_them(server: Server, clients: Pikas) -> None:
    channel = clients.channel(virtual_host=new_vhost(server))
    dead = new_queue(channel)
    exchange = unique("x")
    channel.exchange_declare(exchange, "direct", auto_delete=True)
    queue = new_queue(channel, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    channel.queue_bind(queue, exchange, "k")
    channel.basic_publish(exchange, "k", b"x")
    (got,) = Inbox(channel, queue).take(1)
    assert (got.method.exchange, got.method.routing_key) == (exchange, "k")
    channel.basic_reject(got.tag, requeue=False)
    (moved,) = Inbox(channel, dead).take(1)
    assert (moved.headers["x-death"][0]["queue"], moved.headers["x-death"][0]["exchange"]) == (queue, exchange)
    assert channel.queue_declare("", exclusive=True).method.queue.startswith("amq.gen-")


def test_deleted_virtual_host_takes_its_queues_along_and_is_unknown_then(server: Server, clients: Pikas) -> None:
    vhost = new_vhost(server)
    channel = clients.channel(virtual_host=vhost)
    name = unique("q")
    channel.queue_declare(name, durable=True)
    assert call(server, "DELETE", f"/api/vhosts/{vhost}") == 204
    code, _text = cut_off(lambda: until(channel.connection, lambda: False, "the broker hangs up"))
    assert code == 320
    with pytest.raises(ProbableAccessDeniedError):
        clients.connect(virtual_host=vhost)
    assert gone(clients, name)


def test_publisher_is_blocked_while_the_disk_is_short_and_consumers_go_on(
    server: ShortDiskServer, clients: Pikas
) -> None:
    publisher, consumer = clients.channel(confirm=False), clients.channel()
    queue = new_queue(consumer, exclusive=False)
    told: list[str] = []
    publisher.connection.add_on_connection_blocked_callback(lambda _c, frame: told.append(frame.method.reason))
    publisher.connection.add_on_connection_unblocked_callback(lambda _c, _frame: told.append("unblocked"))
    put(publisher, queue, [b"before"])
    inbox = Inbox(consumer, queue)
    assert inbox.take(1)[0].body == b"before"
    server.set_free_bytes(1000)
    try:
        until(publisher.connection, lambda: told, "the publisher is told to wait")
        assert "disk" in told[0]
        put(publisher, queue, [b"waits"])
        assert inbox.settled() == []
    finally:
        server.set_free_bytes(None)
    until(publisher.connection, lambda: len(told) == 2, "the publisher is told to go on")
    assert told[1] == "unblocked"
    assert inbox.take(1)[0].body == b"waits"


def test_many_publishers_share_a_queue_without_mixing(server: Server, clients: Pikas) -> None:
    keeper = clients.channel()
    exchange = unique("x")
    keeper.exchange_declare(exchange, "fanout", durable=True)
    queues = [bound_queue(keeper, exchange) for _ in range(2)]

    def publish(who: int) -> None:
        mine = Pikas(target_of(server))
        channel = mine.channel()
        for number in range(50):
            channel.basic_publish(exchange, "", b"%d %d" % (who, number))
        mine.close()

    threads = [threading.Thread(target=publish, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: keeper.queue_declare(queues[0], passive=True).method.message_count == 200, "all are there")
    for queue in queues:
        bodies = drain(keeper, queue)
        for who in range(4):
            mine = [int(body.split()[1]) for body in bodies if int(body.split()[0]) == who]
            assert mine == list(range(50))
    keeper.exchange_delete(exchange)
