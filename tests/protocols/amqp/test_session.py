"""Promises of a session that clients rarely test: verdicts in transactions, namespaces apart, limits with consumers."""

from __future__ import annotations

import http.client
import socket
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from pamqp import commands

from tests.protocols.amqp.kit import Amqp, connected, method, publish
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for

MiB = 1024 * 1024
REPLY_TO = "amq.rabbitmq.reply-to"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("session")) as server:
        yield server


def declare(amqp: Amqp, queue: str, **arguments: Any) -> None:
    answer = amqp.ask(commands.Queue.Declare(0, queue, arguments=arguments))
    assert isinstance(answer, commands.Queue.DeclareOk), dict(answer)


def ready(amqp: Amqp, queue: str) -> int:
    return int(amqp.ask(commands.Queue.Declare(0, queue, True)).message_count)


def fill(amqp: Amqp, queue: str, count: int) -> None:
    for i in range(count):
        amqp.send(publish(1, str(i).encode(), queue))
    wait_for(lambda: ready(amqp, queue) == count, "the messages are in the queue")


def get(amqp: Amqp, queue: str, *, no_ack: bool = False) -> tuple[int, bytes, bool] | None:
    """(delivery tag, body, redelivered)."""
    amqp.say(commands.Basic.Get(0, queue, no_ack))
    answer = amqp.next()
    if isinstance(answer, commands.Basic.GetEmpty):
        return None
    amqp.next()
    return answer.delivery_tag, amqp.next().value, answer.redelivered


def make_vhost(server: Server, name: str) -> None:
    host, port = server.addresses["http"].rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port))
    login = b64encode(b"guest:guest").decode()
    connection.request("PUT", f"/api/vhosts/{name}", b"{}", {"Authorization": f"Basic {login}"})
    assert connection.getresponse().status in (200, 201, 204)
    connection.close()


# -- transactions ------------------------------------------------------------------------------------------------------


def test_a_later_verdict_in_a_transaction_leaves_an_earlier_one_alone(server: Server) -> None:
    queue = unique("tx")
    with connected(server) as amqp:
        declare(amqp, queue)
        fill(amqp, queue, 2)
        amqp.ask(commands.Tx.Select())
        first, second = get(amqp, queue), get(amqp, queue)
        assert first is not None
        assert second is not None
        amqp.say(commands.Basic.Nack(first[0], False, True))
        amqp.say(commands.Basic.Ack(0, True))
        amqp.say(commands.Tx.Commit())
        amqp.expect(commands.Tx.CommitOk)
        assert ready(amqp, queue) == 1, "what was given back is there again"
        again = get(amqp, queue)
        assert again is not None
        assert again[1:] == (b"0", True)


def test_a_delivery_is_settled_once_in_a_transaction_unless_that_is_rolled_back(server: Server) -> None:
    queue = unique("tx")
    with connected(server) as amqp:
        declare(amqp, queue)
        fill(amqp, queue, 1)
        amqp.ask(commands.Tx.Select())
        found = get(amqp, queue)
        assert found is not None
        amqp.say(commands.Basic.Ack(found[0]))
        amqp.ask(commands.Tx.Rollback())
        amqp.say(commands.Basic.Ack(found[0]))
        amqp.say(commands.Basic.Ack(found[0]))
        closed = amqp.expect(commands.Channel.Close)
        assert closed.reply_code == 406
        assert "unknown delivery tag" in closed.reply_text


def test_recover_leaves_alone_what_a_transaction_has_acknowledged(server: Server) -> None:
    queue = unique("tx")
    with connected(server) as amqp:
        declare(amqp, queue)
        fill(amqp, queue, 2)
        amqp.ask(commands.Tx.Select())
        first, second = get(amqp, queue), get(amqp, queue)
        assert first is not None
        assert second is not None
        amqp.say(commands.Basic.Ack(first[0]))
        amqp.ask(commands.Basic.Recover(True))
        amqp.ask(commands.Tx.Commit())
        again = get(amqp, queue)
        assert again is not None
        assert again[1] == b"1"
        assert get(amqp, queue) is None, "the first one was acknowledged"


def test_a_reply_in_a_transaction_arrives_with_the_commit(server: Server) -> None:
    with connected(server) as asker, connected(server) as replier:
        queue = unique("rpc")
        declare(replier, queue)
        asker.ask(commands.Basic.Consume(0, REPLY_TO, no_ack=True))
        asker.send(publish(1, b"?", queue, properties=commands.Basic.Properties(reply_to=REPLY_TO)))
        wait_for(lambda: ready(replier, queue) == 1, "the question is there")
        replier.say(commands.Basic.Get(0, queue, True))
        _, head, _ = replier.content()
        replier.ask(commands.Tx.Select())
        replier.send(publish(1, b"!", head.properties.reply_to or ""))
        replier.ask(commands.Tx.Commit())
        assert asker.content()[2] == b"!"


def test_a_transaction_may_put_more_than_a_queue_holds_that_drops_its_oldest(server: Server) -> None:
    queue = unique("tx")
    with connected(server) as amqp:
        declare(amqp, queue, **{"x-max-length": 2})
        amqp.ask(commands.Tx.Select())
        for i in range(5):
            amqp.send(publish(1, str(i).encode(), queue))
        assert isinstance(amqp.ask(commands.Tx.Commit()), commands.Tx.CommitOk)
        found = [get(amqp, queue, no_ack=True), get(amqp, queue, no_ack=True), get(amqp, queue, no_ack=True)]
        assert [one and one[1] for one in found] == [b"3", b"4", None]


# -- namespaces --------------------------------------------------------------------------------------------------------


def test_another_virtual_hosts_queues_are_out_of_reach(server: Server) -> None:
    make_vhost(server, "shop")
    queue = unique("jobs")
    with connected(server, "shop") as owner, connected(server) as stranger:
        declare(owner, queue)
        owner.ask(commands.Queue.Bind(0, queue, "amq.direct", queue))
        fill(owner, queue, 1)
        stranger.send(publish(1, b"intruder", f"shop/{queue}", mandatory=True))
        assert isinstance(stranger.content()[0], commands.Basic.Return)
        copies = commands.Basic.Properties(headers={"CC": [f"shop/{queue}"]})
        stranger.send(publish(1, b"intruder", "nowhere", mandatory=True, properties=copies))
        assert isinstance(stranger.content()[0], commands.Basic.Return)
        for number, frames in enumerate(
            (
                method(commands.Basic.Get(0, f"shop/{queue}"), 2),
                method(commands.Basic.Consume(0, f"shop/{queue}"), 3),
                publish(4, b"intruder", queue, "shop/amq.direct"),
            ),
            2,
        ):
            stranger.channel(number)
            stranger.send(frames)
            assert stranger.expect(commands.Channel.Close).reply_code == 404
        assert ready(owner, queue) == 1


def test_another_virtual_hosts_streams_are_out_of_reach(server: Server) -> None:
    make_vhost(server, "shop")
    stream = unique("events")
    kind: dict[str, Any] = {"x-queue-type": "stream"}
    with connected(server, "shop") as owner, connected(server) as stranger:
        assert isinstance(
            owner.ask(commands.Queue.Declare(0, stream, durable=True, arguments=kind)), commands.Queue.DeclareOk
        )
        stranger.ask(commands.Queue.Delete(0, f"shop.{stream}"))
        stranger.send(publish(1, b"intruder", f"shop.{stream}", mandatory=True))
        assert isinstance(stranger.content()[0], commands.Basic.Return)
        assert ready(owner, stream) == 0, "it is still there, and empty"
        for number, asked in enumerate(
            (
                commands.Queue.Declare(0, f"shop.{stream}", durable=True, arguments=kind),
                commands.Queue.Declare(0, f"shop.{stream}", True),
                commands.Basic.Consume(0, f"shop.{stream}"),
            ),
            2,
        ):
            stranger.channel(number)
            stranger.say(commands.Basic.Qos(0, 1), number)
            stranger.expect(commands.Basic.QosOk)
            assert isinstance(stranger.ask(asked, number), commands.Channel.Close)


def test_dead_letters_stay_in_their_virtual_host(server: Server) -> None:
    make_vhost(server, "shop")
    queue, mine = unique("jobs"), unique("mine")
    with connected(server, "shop") as owner, connected(server) as stranger:
        declare(owner, queue)
        declare(stranger, mine)
        source = unique("source")
        declare(stranger, source, **{"x-dead-letter-exchange": ""})
        copies = commands.Basic.Properties(headers={"CC": [f"shop/{queue}", mine]})
        stranger.send(publish(1, b"intruder", source, properties=copies))
        wait_for(lambda: ready(stranger, source) == 1, "the message is there")
        found = get(stranger, source)
        assert found is not None
        stranger.say(commands.Basic.Reject(found[0], False))
        wait_for(lambda: ready(stranger, mine) == 2, "the dead letter has come")
        assert ready(owner, queue) == 0


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_what_consumers_have_room_for_does_not_count_against_a_queues_length(server: Server, overflow: str) -> None:
    queue = unique("short")
    with connected(server) as amqp:
        declare(amqp, queue, **{"x-max-length": 2, "x-overflow": overflow})
        amqp.ask(commands.Basic.Consume(0, queue))
        amqp.send(b"".join(publish(1, str(i).encode(), queue) for i in range(8)))
        assert [amqp.content()[2] for _ in range(8)] == [str(i).encode() for i in range(8)]


def test_a_requester_that_does_not_read_costs_a_bounded_amount_of_memory(server: Server) -> None:
    with connected(server) as asker, connected(server) as replier:
        asker.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        queue = unique("rpc")
        declare(replier, queue)
        asker.ask(commands.Basic.Consume(0, REPLY_TO, no_ack=True))
        asker.send(publish(1, b"?", queue, properties=commands.Basic.Properties(reply_to=REPLY_TO)))
        wait_for(lambda: ready(replier, queue) == 1, "the question is there")
        replier.say(commands.Basic.Get(0, queue, True))
        _, head, _ = replier.content()
        assert server.process is not None
        process = psutil.Process(server.process.pid)
        before = process.memory_info().rss
        replier.ask(commands.Confirm.Select())
        for _ in range(100):
            replier.send(publish(1, bytes(MiB), head.properties.reply_to or ""))
        confirmed = 0
        while confirmed < 100:
            confirmed = replier.expect(commands.Basic.Ack).delivery_tag
        assert process.memory_info().rss - before < 60 * MiB


def test_a_consumer_of_higher_priority_gets_all_that_it_has_room_for(server: Server) -> None:
    queue = unique("first")
    with connected(server) as amqp:
        declare(amqp, queue)
        amqp.ask(commands.Basic.Qos(0, 100))
        amqp.ask(commands.Basic.Consume(0, queue, "low"))
        amqp.ask(commands.Basic.Consume(0, queue, "high", arguments={"x-priority": 1}))
        amqp.send(b"".join(publish(1, b"x", queue) for _ in range(120)))
        tags = [amqp.content()[0].consumer_tag for _ in range(120)]  # type: ignore[attr-defined]
        assert (tags.count("high"), tags.count("low")) == (100, 20)


def test_what_a_deleted_queue_took_along_does_not_count_against_the_channels_prefetch(server: Server) -> None:
    gone, stays = unique("gone"), unique("stays")
    with connected(server) as amqp, connected(server) as other:
        for queue in (gone, stays):
            declare(amqp, queue)
            fill(amqp, queue, 1)
        amqp.ask(commands.Basic.Qos(0, 1, True))
        amqp.ask(commands.Basic.Consume(0, gone, "first"))
        assert amqp.content()[0].consumer_tag == "first"  # type: ignore[attr-defined]
        amqp.ask(commands.Basic.Consume(0, stays, "second"))
        other.ask(commands.Queue.Delete(0, gone))
        amqp.expect(commands.Basic.Cancel)
        assert amqp.content()[0].consumer_tag == "second"  # type: ignore[attr-defined]


def test_what_a_cancelled_consumer_holds_counts_against_the_channels_prefetch(server: Server) -> None:
    queue = unique("global")
    with connected(server) as amqp:
        declare(amqp, queue)
        fill(amqp, queue, 3)
        amqp.ask(commands.Basic.Qos(0, 1, True))
        amqp.ask(commands.Basic.Consume(0, queue, "first"))
        assert amqp.content()[2] == b"0"
        amqp.ask(commands.Basic.Cancel("first"))
        amqp.ask(commands.Basic.Consume(0, queue, "second"))
        assert ready(amqp, queue) == 2, "the channel may hold one message, and does"
        amqp.say(commands.Basic.Ack(1))
        assert amqp.content()[2] == b"1"
