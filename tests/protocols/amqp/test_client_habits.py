"""What particular AMQP clients rely on, shown on the wire: none of them has to be installed for it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from pamqp import commands

import waystation
from tests.protocols.amqp.kit import Amqp, connected, method, publish, raw
from tests.protocols.http.kit import Http
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


@pytest.mark.parametrize(
    ("asked", "way"),
    [("declared", "consume"), ("declared", "get"), ("consumed", "consume"), ("policy", "consume"), ("policy", "get")],
)
def test_a_consumer_timeout_ends_a_delivery_wherever_it_is_said(server: Server, asked: str, way: str) -> None:
    queue = unique("timeout")
    timeout: dict[str, Any] = {"x-consumer-timeout": 300}
    if asked == "policy":
        policy = {"pattern": f"^{queue}$", "definition": {"consumer-timeout": 300}}
        Http(server.addresses["http"])("PUT", f"/api/policies/%2F/{queue}", policy)
    with connected(server) as amqp:
        amqp.ask(commands.Queue.Declare(0, queue, arguments=timeout if asked == "declared" else {}))
        amqp.send(publish(1, b"slow", queue))
        if way == "consume":
            amqp.ask(commands.Basic.Consume(0, queue, arguments=timeout if asked == "consumed" else {}))
            deliveries = [redelivered(amqp.content()[0]) for _ in range(2)]
        else:
            deliveries = [redelivered(wait_for(lambda: got(amqp, queue), "there is a message")) for _ in range(2)]
    assert deliveries == [False, True]


def redelivered(delivery: Any) -> bool:
    return bool(delivery.redelivered)


def got(amqp: Amqp, queue: str) -> Any:
    amqp.say(commands.Basic.Get(0, queue))
    answer = amqp.next()
    if isinstance(answer, commands.Basic.GetEmpty):
        return None
    amqp.next(), amqp.next()  # its head and its body
    return answer


def test_a_queue_of_another_protocol_has_no_timeout_for_amqps_consumers(server: Server) -> None:
    queue = unique("foreign")
    with waystation.connect(server.bootstrap) as mq, connected(server) as amqp:
        mq.queue(queue, hold=0.2).put("slow")
        amqp.ask(commands.Basic.Consume(0, queue))
        amqp.content()
        amqp.socket.settimeout(1)
        with pytest.raises(TimeoutError):
            amqp.content()


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


TYPES = b"".join(
    bytes([len(name)]) + name + value
    for name, value in {
        b"B": b"B\xff",
        b"b": b"b\x80",
        b"s": b"s\x00\x05",
        b"u": b"u\xff\xff",
        b"i": b"i\xff\xff\xff\xff",
        b"l": b"l" + bytes(7) + b"\x05",
        b"L": b"L" + bytes(7) + b"\x05",
        b"f": b"f" + struct.pack(">f", 2.32),
        b"D": b"D\x02" + struct.pack(">i", 314),
        b"A": b"A" + struct.pack(">I", 4) + b"b\x01b\x02",
        b"F": b"F" + struct.pack(">I", 4) + b"\x01nB\x07",
    }.items()
)


def test_header_values_keep_their_types(server: Server) -> None:
    """Typed clients (Java, Go, .NET) meet the very types that were sent, also behind a dead-lettering."""
    queue, dead = unique("types"), unique("dead")
    table = TYPES + b"\x03endV"
    sent = b"\x20\x00" + struct.pack(">I", len(table)) + table
    with connected(server) as amqp:
        amqp.ask(commands.Queue.Declare(0, dead, exclusive=True))
        to_dead: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        amqp.ask(commands.Queue.Declare(0, queue, exclusive=True, arguments=to_dead))
        amqp.send(method(commands.Basic.Publish(0, "", queue), 1))
        amqp.send(raw(2, 1, b"\x00\x3c\x00\x00" + (1).to_bytes(8, "big") + sent) + raw(3, 1, b"x"))
        for requeue in (True, False):
            amqp.say(commands.Basic.Get(0, queue))
            tag, found = _properties(amqp)
            assert found == sent
            amqp.say(commands.Basic.Reject(tag, requeue))
        amqp.ask(commands.Basic.Consume(0, dead, no_ack=True))
        assert table in _properties(amqp)[1]


def _properties(amqp: Amqp) -> tuple[int, bytes]:
    """Delivery tag and raw properties of the message that comes."""
    what, head, _ = (amqp.next_raw() for _ in range(3))
    at = 4 if what[:4] == b"\x00\x3c\x00\x47" else 5 + what[4]  # get-ok, or deliver with its consumer tag
    return int.from_bytes(what[at : at + 8], "big"), head[12:]
