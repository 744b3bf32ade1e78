"""Who is too fast or too slow: publishers are blocked, consumers are not fed, and nobody else feels it."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import psutil
import pytest
from pamqp import commands

from tests.protocols.amqp.kit import Amqp, connected, method, publish
from tests.support.names import unique
from tests.support.server import Server
from tests.support.short_disk import ShortDiskServer
from tests.support.waiting import DEADLINE_S, wait_for

MiB = 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShortDiskServer]:
    server = ShortDiskServer(tmp_path_factory.mktemp("flow"))
    with server:
        yield server


def rss(server: Server) -> int:
    assert server.process is not None
    return int(psutil.Process(server.process.pid).memory_info().rss)


def declare(amqp: Amqp, queue: str, **arguments: object) -> int:
    answer = amqp.ask(commands.Queue.Declare(0, queue, False, True, arguments=dict(arguments)))  # type: ignore[arg-type]
    assert isinstance(answer, commands.Queue.DeclareOk), answer
    return answer.message_count or 0


def fill(server: Server, queue: str, count: int, size: int) -> None:
    with connected(server) as amqp:
        declare(amqp, queue)
        amqp.ask(commands.Confirm.Select())
        for _ in range(count):
            amqp.send(publish(1, bytes(size), queue))
        confirmed = 0
        while confirmed < count:
            confirmed = amqp.expect(commands.Basic.Ack).delivery_tag


@pytest.mark.parametrize("prefetch", [0, 50])
def test_a_consumer_that_does_not_read_is_not_fed(server: Server, prefetch: int) -> None:
    queue = unique("deep")
    fill(server, queue, 80, MiB)
    before = rss(server)
    with connected(server) as sleeper, connected(server) as other:
        sleeper.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sleeper.ask(commands.Basic.Qos(0, prefetch))
        sleeper.ask(commands.Basic.Consume(0, queue))
        fill(server, unique("others"), 100, 1000)  # the broker had its time
        other.say(commands.Basic.Get(0, queue))
        other.content()
        assert rss(server) - before < 30 * MiB
        assert declare(other, queue) >= 80 - 51 if prefetch else declare(other, queue) >= 60
    with connected(server) as amqp:
        wait_for(lambda: declare(amqp, queue) == 80, "what the sleeper held is back")
        amqp.ask(commands.Queue.Purge(0, queue))


def test_a_publisher_that_does_not_read_its_confirms_is_served_for_long_and_then_waits(server: Server) -> None:
    """Confirms are small; the broker keeps megabytes of them before it stops reading, and loses none."""
    queue = unique("deaf")
    count = 20_000
    with connected(server) as amqp:
        declare(amqp, queue)
        amqp.ask(commands.Confirm.Select())
        amqp.send(publish(1, b"x", queue) * count)
        confirmed = 0
        while confirmed < count:
            confirmed = amqp.expect(commands.Basic.Ack).delivery_tag
        assert declare(amqp, queue) == count


def test_a_publisher_is_told_when_the_disk_is_short_and_when_it_is_not_any_more(server: ShortDiskServer) -> None:
    queue = unique("short")
    fill(server, queue, 10, 1000)
    with connected(server) as publisher, connected(server) as consumer:
        publisher.ask(commands.Confirm.Select())
        publisher.send(publish(1, b"before", queue))
        publisher.expect(commands.Basic.Ack)
        server.set_free_bytes(1000)
        try:
            told = publisher.expect(commands.Connection.Blocked)
            assert "disk" in told.reason
            publisher.send(publish(1, b"later", queue))
            consumer.ask(commands.Basic.Consume(0, queue, no_ack=True))
            for _ in range(11):
                consumer.content()  # whoever only consumes goes on
        finally:
            server.set_free_bytes(None)
        publisher.expect(commands.Connection.Unblocked)
        publisher.expect(commands.Basic.Ack)
        assert consumer.content()[2] == b"later"


def test_a_namespace_that_stores_little_goes_on_publishing(server: ShortDiskServer) -> None:
    queue = unique("many")
    fill(server, queue, 50, 10_000)
    web = http.client.HTTPConnection(server.addresses["http"], timeout=DEADLINE_S)
    web.request("PUT", "/api/vhosts/small", headers={"content-type": "application/json"})
    assert web.getresponse().status in (201, 204)
    with connected(server) as large, connected(server, "small") as small:
        declare(small, "few")
        for amqp in (large, small):
            amqp.ask(commands.Confirm.Select())
        large.send(publish(1, b"x", queue))
        large.expect(commands.Basic.Ack)
        server.set_free_bytes(1000)
        try:
            large.expect(commands.Connection.Blocked)
            for _ in range(3):
                small.send(publish(1, b"x", "few"))
                small.expect(commands.Basic.Ack)
        finally:
            server.set_free_bytes(None)
        large.expect(commands.Connection.Unblocked)


def test_heartbeats_come_and_a_silent_client_is_taken_for_dead(server: Server) -> None:
    with Amqp(server.addresses["amqp"]) as amqp:
        amqp.open(heartbeat_s=1)
        amqp.channel()
        queue = unique("mine")
        amqp.ask(commands.Queue.Declare(0, queue, exclusive=True))
        beats = 0
        while data := amqp.socket.recv(65536):
            beats += data.count(b"\x08\x00\x00\x00\x00\x00\x00\xce")
        assert beats >= 2
    with connected(server) as other:
        answer = other.ask(commands.Queue.Declare(0, queue, True))
        assert isinstance(answer, commands.Channel.Close)
        assert answer.reply_code == 404


def test_a_namespace_may_have_so_many_connections_and_no_more(server: Server) -> None:
    web = http.client.HTTPConnection(server.addresses["http"], timeout=DEADLINE_S)
    json = {"content-type": "application/json"}
    for method_name, path, body in (
        ("PUT", "/api/vhosts/narrow", None),
        ("PUT", "/api/vhost-limits/narrow/max-connections", '{"value": 1}'),
    ):
        web.request(method_name, path, body, json)
        answer = web.getresponse()
        answer.read()
        assert answer.status in (201, 204)
    refused = pytest.raises(AssertionError, match="refused")
    with connected(server, "narrow"), Amqp(server.addresses["amqp"]) as second, refused:
        second.open("narrow")
    wait_for(lambda: _opens(server, "narrow"), "the first one is gone, and there is room")


def _opens(server: Server, vhost: str) -> bool:
    try:
        with connected(server, vhost):
            return True
    except AssertionError:
        return False


def test_what_has_more_frames_than_a_turn_arrives_as_it_was_sent_and_in_order(server: Server) -> None:
    queue = unique("tiny")
    bodies = [bytes(i % 251 for i in range(20_000)), *(str(i).encode() for i in range(10_000))]
    with connected(server) as amqp:
        declare(amqp, queue)
        amqp.ask(commands.Confirm.Select())
        amqp.socket.sendall(
            publish(1, bodies[0], queue, frame_max=9)  # one byte in each frame
            + b"".join(publish(1, body, queue) for body in bodies[1:])
            + method(commands.Queue.Declare(0, queue, True), 1)
        )
        confirmed, answered = 0, False
        while confirmed < len(bodies) or not answered:
            answer = amqp.next()
            if isinstance(answer, commands.Basic.Ack):
                confirmed = int(answer.delivery_tag)
            else:
                assert isinstance(answer, commands.Queue.DeclareOk), answer
                answered = True
        amqp.ask(commands.Basic.Consume(0, queue, no_ack=True))
        assert [amqp.content()[2] for _ in bodies] == bodies
