"""What particular AMQP clients rely on, shown on the wire: none of them has to be installed for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pamqp import commands

from tests.protocols.amqp.kit import Amqp, connected, method, publish
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.protocols.amqp.frames import HEARTBEAT_FRAME, OVERHEAD


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("habits")) as server:
        yield server


@pytest.mark.parametrize("size", [131_065, 131_072, 300_000])
def test_a_body_that_is_cut_at_frame_max_arrives(server: Server, size: int) -> None:
    """AMQPStorm cuts bodies at frame_max, as if a frame had no head and no end."""
    queue, sent = unique("cut"), bytes(range(256)) * (size // 256) + bytes(size % 256)
    with connected(server, frame_max=131_072) as amqp:
        amqp.ask(commands.Queue.Declare(0, queue, exclusive=True))
        amqp.ask(commands.Confirm.Select())
        amqp.send(publish(1, sent, queue, frame_max=131_072 + OVERHEAD))
        amqp.expect(commands.Basic.Ack)
        amqp.say(commands.Basic.Get(0, queue, True))
        assert amqp.content()[2] == sent


def test_delete_ok_comes_before_the_cancels_that_it_causes_on_its_channel(server: Server) -> None:
    queue = unique("order")
    with connected(server) as amqp:
        amqp.ask(commands.Queue.Declare(0, queue))
        amqp.ask(commands.Basic.Consume(0, queue, "first"))
        amqp.ask(commands.Basic.Consume(0, queue, "second"))
        amqp.say(commands.Queue.Delete(0, queue))
        amqp.expect(commands.Queue.DeleteOk)
        assert {amqp.expect(commands.Basic.Cancel).consumer_tag for _ in range(2)} == {"first", "second"}


def test_a_delete_that_wants_no_answer_cancels_all_the_same(server: Server) -> None:
    queue = unique("order")
    with connected(server) as amqp:
        amqp.ask(commands.Queue.Declare(0, queue))
        amqp.ask(commands.Basic.Consume(0, queue, "mine"))
        amqp.say(commands.Queue.Delete(0, queue, nowait=True))
        assert amqp.expect(commands.Basic.Cancel).consumer_tag == "mine"


def test_a_queue_with_a_delayed_message_is_not_empty(server: Server) -> None:
    queue = unique("delayed")
    with connected(server) as amqp:
        amqp.ask(commands.Queue.Declare(0, queue))
        later = commands.Basic.Properties(headers={"x-delay": 3_600_000})
        amqp.send(publish(1, b"later", queue, properties=later))
        amqp.say(commands.Queue.Delete(0, queue, if_empty=True))
        assert "not empty" in amqp.expect(commands.Channel.Close).reply_text


def test_what_comes_behind_connection_close_is_read_and_discarded(server: Server) -> None:
    """amqplib sends what waits in its channels behind it. A reset of the connection would cost it the close-ok."""
    queue = unique("behind")
    with connected(server) as amqp:
        amqp.ask(commands.Queue.Declare(0, queue))
        late = publish(1, bytes(100_000), queue)
        amqp.send(method(commands.Connection.Close(200, "bye", 0, 0), 0) + late * 10)
        amqp.expect(commands.Connection.CloseOk)
        for _ in range(3):
            assert amqp.socket.recv(1) == b"", "the broker has said its last word, and still reads"
            amqp.send(late)
    with connected(server) as amqp:
        assert amqp.ask(commands.Queue.Declare(0, queue, passive=True)).message_count == 0


def test_a_client_that_never_closes_its_end_is_let_go(server: Server) -> None:
    with connected(server) as amqp:
        amqp.say(commands.Connection.Close(200, "bye", 0, 0), 0)
        amqp.expect(commands.Connection.CloseOk)
        wait_for(lambda: _is_reset(amqp), "the broker closes the socket")


def _is_reset(amqp: Amqp) -> bool:
    """Whether the broker has closed its end for reading too."""
    try:
        amqp.send(HEARTBEAT_FRAME)
    except ConnectionError:
        return True
    return False


def test_a_channel_may_have_a_number_above_channel_max(server: Server) -> None:
    with connected(server, channel_max=2) as amqp:
        assert amqp.channel(40_000) == 40_000
        amqp.say(commands.Channel.Open(), 2)
        closed = amqp.expect(commands.Connection.Close)
        assert (closed.reply_code, "channel_max (2)" in closed.reply_text) == (530, True)
