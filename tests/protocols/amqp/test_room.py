"""What clients publish in open transactions, which the broker cannot store yet, is bounded in bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import psutil
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from tests.support.names import unique
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.protocols.amqp.room import Room, RoomShare
from waystation.wire.amqp.errors import AmqpError

KiB, MiB = 1024, 1024 * 1024
WHOLE = 16 * MiB
PART = WHOLE // 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"waystation.amqp.uncommitted.max.bytes": WHOLE, "waystation.queue.message.max.bytes": 2 * MiB}
    with Server(tmp_path_factory.mktemp("room"), settings=settings) as server:
        yield server


@pytest.fixture
def connections(server: Server) -> Iterator[list[pika.BlockingConnection]]:
    host, port = split_address(server.addresses["amqp"])
    made = [pika.BlockingConnection(pika.ConnectionParameters(host, port)) for _ in range(6)]
    yield made
    for connection in made:
        if connection.is_open:
            connection.close()


def rss(server: Server) -> int:
    assert server.process is not None
    return int(psutil.Process(server.process.pid).memory_info().rss)


def fill(channel: BlockingChannel, queue: str, size: int) -> None:
    """Publishes so many bytes, and waits until the broker has seen them."""
    for _ in range(size // (100 * KiB)):
        channel.basic_publish("", queue, bytes(100 * KiB))
    channel.queue_declare(queue, passive=True)


def test_a_transaction_above_the_bound_costs_its_channel_and_stores_nothing(
    server: Server, connections: list[pika.BlockingConnection]
) -> None:
    connection, other = connections[0], connections[1].channel()
    queue = unique("tx")
    other.queue_declare(queue, durable=True)
    bystander = connection.channel()
    before = rss(server)
    for _ in range(5):
        channel = connection.channel()
        channel.tx_select()
        with pytest.raises(ChannelClosedByBroker) as refused:
            fill(channel, queue, 40 * MiB)
        assert refused.value.reply_code == 406
        assert "uncommitted" in refused.value.reply_text
        assert "waystation.amqp.uncommitted.max.bytes" in refused.value.reply_text
    assert rss(server) - before < 40 * MiB
    assert bystander.queue_declare(queue, passive=True).method.message_count == 0
    again = connection.channel()
    again.tx_select()
    for how in (again.tx_rollback, again.tx_commit, again.tx_commit):  # room is given back each time
        fill(again, queue, PART - MiB)
        how()
    count = 2 * ((PART - MiB) // (100 * KiB))
    assert other.queue_declare(queue, passive=True).method.message_count == count


def test_all_connections_together_have_a_bound_and_a_lost_one_gives_back(
    server: Server, connections: list[pika.BlockingConnection]
) -> None:
    queue = unique("tx")
    connections[0].channel().queue_declare(queue, durable=True)
    channels = [connection.channel() for connection in connections]
    for channel in channels[:4]:
        channel.tx_select()
        fill(channel, queue, PART - 200 * KiB)
    last = channels[4]
    last.tx_select()
    with pytest.raises(ChannelClosedByBroker, match="all connections together"):
        fill(last, queue, PART)
    for connection in connections[:4]:
        connection.close()

    def room_is_back() -> bool:
        channel = connections[5].channel()
        channel.tx_select()
        try:
            fill(channel, queue, PART - 200 * KiB)
        except ChannelClosedByBroker:
            return False
        channel.close()
        return True

    wait_for(room_is_back, "what the closed connections had taken is free")


def test_a_share_gives_back_what_it_took_and_no_more() -> None:
    room = Room(lambda: 100, lambda: 10)
    first, second = RoomShare(room), RoomShare(room)
    first.take(25)
    with pytest.raises(AmqpError):
        first.take(1)
    second.take(20)
    first.give(5)
    assert (first.used, second.used, room.used) == (20, 20, 40)
    first.end()
    first.give(20)  # a commit that ended later than its connection
    first.end()
    assert room.used == 20
    assert (Room(lambda: 100, lambda: 1000).part, Room(lambda: 100, lambda: 1000).whole) == (1000, 1000)
