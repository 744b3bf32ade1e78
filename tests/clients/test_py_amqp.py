"""py-amqp, the client under kombu: what it says in its own way, and the exceptions it makes of our errors."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import amqp as pyamqp
import pytest
from amqp.exceptions import (
    AccessRefused,
    AMQPNotImplementedError,
    ChannelNotOpen,
    ConsumerCancelled,
    MessageNacked,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
    UnexpectedFrame,
)

from tests.clients.amqp_kit import FRAME_MIN, AmqpTarget, numbered, ours_only
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for

Connect = Callable[..., Any]


def serve(connection: Any, done: Callable[[], object], what: str) -> None:
    """Let a connection read until something is true."""

    def step() -> object:
        try:
            connection.drain_events(timeout=0.02)
        except TimeoutError:
            pass
        return done()

    wait_for(step, what, every_s=0)


@pytest.fixture
def connect(amqp: AmqpTarget) -> Iterator[Connect]:
    """Opens connections, and closes them."""
    opened: list[Any] = []

    def open_one(**options: Any) -> Any:
        connection = pyamqp.Connection(host=amqp.address, connect_timeout=DEADLINE_S, **options)
        connection.connect()
        opened.append(connection)
        return connection

    yield open_one
    for connection in opened:
        try:
            connection.close()
        except (pyamqp.AMQPError, OSError):
            pass


@pytest.fixture
def channel(connect: Connect) -> Any:
    return connect().channel()


def new_queue(channel: Any, **options: Any) -> str:
    """A fresh queue of the connection's own."""
    name = unique("q")
    channel.queue_declare(name, **{"exclusive": True, "auto_delete": False, **options})
    return name


@pytest.mark.parametrize("method", ["PLAIN", "AMQPLAIN", None])
def test_login_by_every_mechanism_and_by_the_clients_choice(connect: Connect, method: str | None) -> None:
    connection = connect(login_method=method)
    assert connection.connected
    assert {"PLAIN", "AMQPLAIN"} <= {m.decode() if isinstance(m, bytes) else m for m in connection.mechanisms}
    assert connection.server_capabilities["publisher_confirms"]
    assert connection.channel().queue_declare(exclusive=True).queue.startswith("amq.gen-")


@ours_only
def test_external_login_is_the_local_guest_while_authentication_is_off(connect: Connect) -> None:
    # RabbitMQ offers this with a plugin, for clients that TLS has identified.
    assert connect(login_method="EXTERNAL").channel().queue_declare(exclusive=True).queue.startswith("amq.gen-")


@pytest.mark.parametrize("method", ["PLAIN", "AMQPLAIN"])
def test_wrong_password_is_refused(connect: Connect, method: str) -> None:
    with pytest.raises(AccessRefused) as caught:
        connect(login_method=method, password="wrong")
    assert caught.value.reply_code == 403


def test_unknown_virtual_host_is_not_allowed(connect: Connect) -> None:
    with pytest.raises(NotAllowed) as caught:
        connect(virtual_host="no-such-place")
    assert caught.value.reply_code == 530


def test_tuning_is_agreed_on(connect: Connect) -> None:
    # This client takes the broker's frame-max and channel-max whatever it was told, and the shorter heartbeat.
    connection = connect(heartbeat=33)
    assert connection.frame_max >= FRAME_MIN
    assert connection.channel_max >= 1
    assert connection.heartbeat == 33


def test_heartbeats_go_both_ways(connect: Connect) -> None:
    connection = connect(heartbeat=1)
    received = connection.bytes_recv

    def beat() -> bool:
        connection.heartbeat_tick()
        return bool(connection.bytes_recv > received)

    serve(connection, beat, "a heartbeat of the broker")
    assert connection.channel().is_open


def test_message_goes_there_and_back(channel: Any) -> None:
    queue = new_queue(channel)
    message = pyamqp.Message(
        "žluťoučký",
        content_type="text/plain",
        content_encoding="utf-8",
        application_headers={"n": 1, "list": [1, "a"], "f": 1.5, "none": None},
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        message_id="m",
        type="t",
        app_id="a",
    )
    channel.basic_publish(message, routing_key=queue)
    got = channel.basic_get(queue, no_ack=True)
    assert got.body == "žluťoučký"
    assert got.properties == message.properties
    assert got.headers == {"n": 1, "list": [1, "a"], "f": 1.5, "none": None}
    assert got.delivery_info["message_count"] == 0
    assert channel.basic_get(queue) is None


def test_message_of_many_frames(channel: Any) -> None:
    queue = new_queue(channel)
    body = bytes(range(256)) * 4000
    channel.basic_publish(pyamqp.Message(body), routing_key=queue)
    assert channel.basic_get(queue, no_ack=True).body == body


def test_consumer_is_fed_and_settles_in_every_way(channel: Any) -> None:
    queue = new_queue(channel)
    got: list[Any] = []
    channel.basic_qos(0, 3, False)
    for body in numbered(6):
        channel.basic_publish(pyamqp.Message(body), routing_key=queue)
    tag = channel.basic_consume(queue, callback=got.append)
    serve(channel.connection, lambda: len(got) == 3, "three messages")
    channel.basic_ack(got[1].delivery_tag, multiple=True)
    channel.basic_reject(got[2].delivery_tag, requeue=True)
    serve(channel.connection, lambda: len(got) == 6, "three more")
    bodies = [(m.body, m.delivery_info["redelivered"]) for m in got[3:]]
    assert sorted(bodies) == [(b"000002", True), (b"000003", False), (b"000004", False)]
    channel.basic_recover(requeue=True)
    serve(channel.connection, lambda: len(got) == 9, "all three again")
    assert all(m.delivery_info["redelivered"] for m in got[6:])
    channel.basic_cancel(tag)
    for message in got[6:]:
        channel.basic_ack(message.delivery_tag)
    assert channel.basic_get(queue, no_ack=True).body == b"000005"
    assert channel.queue_declare(queue, passive=True).message_count == 0


def test_recover_async_is_heard(channel: Any) -> None:
    queue = new_queue(channel)
    channel.basic_publish(pyamqp.Message("x"), routing_key=queue)
    assert channel.basic_get(queue).body == "x"
    channel.basic_recover_async(requeue=True)
    again = channel.basic_get(queue, no_ack=True)
    assert (again.body, again.delivery_info["redelivered"]) == ("x", True)


def test_publisher_confirms(connect: Connect) -> None:
    channel = connect(confirm_publish=True).channel()
    queue = new_queue(channel, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.basic_publish(pyamqp.Message("fits"), routing_key=queue)
    with pytest.raises(MessageNacked):
        channel.basic_publish(pyamqp.Message("does not"), routing_key=queue)
    assert channel.queue_purge(queue) == 1


def test_mandatory_message_is_returned(channel: Any) -> None:
    returned: list[tuple[Any, ...]] = []
    channel.events["basic_return"].add(lambda *what: returned.append(what))
    channel.basic_publish(pyamqp.Message("lost"), "amq.direct", unique("nobody"), mandatory=True)
    serve(channel.connection, lambda: returned, "the message comes back")
    error, exchange, _key, message = returned[0]
    assert (error.reply_code, exchange, message.body) == (312, "amq.direct", "lost")


def test_immediate_is_not_implemented(channel: Any) -> None:
    queue = new_queue(channel)
    channel.basic_publish(pyamqp.Message("x"), routing_key=queue, immediate=True)
    with pytest.raises(AMQPNotImplementedError) as caught:
        channel.queue_declare(queue, passive=True)
    assert caught.value.reply_code == 540


def test_consumer_hears_of_the_end_of_its_queue(connect: Connect) -> None:
    connection = connect()
    channel, other = connection.channel(), connection.channel()
    queue = new_queue(channel)
    told: list[str] = []
    tag = channel.basic_consume(queue, callback=print, on_cancel=told.append)
    other.queue_delete(queue)
    serve(connection, lambda: told, "the consumer is cancelled")
    assert told == [tag]


def test_deleting_a_queue_on_its_consumers_channel_is_answered_before_the_consumer_is_cancelled(
    connect: Connect,
) -> None:
    # Without `on_cancel` this client raises ConsumerCancelled out of whatever it reads at that moment.
    connection = connect()
    channel = connection.channel()
    queue = new_queue(channel)
    channel.basic_consume(queue, callback=print)
    assert channel.queue_delete(queue) == 0
    with pytest.raises(ConsumerCancelled):
        serve(connection, lambda: False, "the consumer is cancelled")


def test_consumer_that_wants_nothing_of_its_own_gets_it_all_the_same(channel: Any) -> None:
    # RabbitMQ has never heeded no-local, and clients rely on that.
    queue = new_queue(channel)
    got: list[str] = []
    channel.basic_consume(queue, no_local=True, no_ack=True, callback=lambda message: got.append(message.body))
    channel.basic_publish(pyamqp.Message("mine"), routing_key=queue)
    serve(channel.connection, lambda: got, "the message")
    assert got == ["mine"]


def test_cancelling_a_consumer_that_is_not_there_is_no_error(channel: Any) -> None:
    channel.basic_consume(new_queue(channel), consumer_tag="there")
    for tag in ("there", "there", "never"):
        channel.send_method((60, 30), "sb", (tag, False), wait=(60, 31))
    assert channel.queue_declare(exclusive=True).queue


def test_transactions(connect: Connect) -> None:
    connection = connect()
    channel, other = connection.channel(), connection.channel()
    queue = new_queue(other)
    channel.tx_select()
    channel.basic_publish(pyamqp.Message("no"), routing_key=queue)
    channel.tx_rollback()
    channel.basic_publish(pyamqp.Message("yes"), routing_key=queue)
    assert other.basic_get(queue, no_ack=True) is None
    channel.tx_commit()
    assert other.basic_get(queue, no_ack=True).body == "yes"
    assert other.basic_get(queue, no_ack=True) is None


def test_no_wait_methods(channel: Any) -> None:
    exchange, second, queue = unique("x"), unique("x"), unique("q")
    for name in (exchange, second):
        channel.exchange_declare(name, "fanout", auto_delete=False, nowait=True)
    channel.exchange_bind(second, exchange, nowait=True)
    channel.queue_declare(queue, exclusive=True, nowait=True)
    channel.queue_bind(queue, second, nowait=True)
    channel.basic_publish(pyamqp.Message("purged"), exchange)
    channel.queue_purge(queue, nowait=True)
    channel.basic_publish(pyamqp.Message("kept"), exchange)
    got: list[str] = []
    tag = channel.basic_consume(
        queue, consumer_tag="mine", no_ack=True, nowait=True, callback=lambda message: got.append(message.body)
    )
    serve(channel.connection, lambda: got, "a message")
    assert (got, tag) == (["kept"], "mine")
    channel.basic_cancel("mine", nowait=True)
    channel.exchange_unbind(second, exchange, nowait=True)
    for name in (exchange, second):
        channel.exchange_delete(name, nowait=True)
    channel.queue_delete(queue, nowait=True)
    channel.confirm_select(nowait=True)
    with pytest.raises(NotFound):
        channel.queue_declare(queue, passive=True)


def test_flow_can_be_asked_for(channel: Any) -> None:
    channel.flow(True)
    assert channel.is_open


ERRORS: list[tuple[str, type[Exception], int, Callable[[Any], object]]] = [
    ("unknown queue", NotFound, 404, lambda ch: ch.queue_declare(unique("missing"), passive=True)),
    ("unknown exchange", NotFound, 404, lambda ch: ch.exchange_declare(unique("missing"), "direct", passive=True)),
    ("reserved name", AccessRefused, 403, lambda ch: ch.queue_declare("amq.mine")),
    ("system exchange", AccessRefused, 403, lambda ch: ch.exchange_delete("amq.topic")),
    ("unknown tag", PreconditionFailed, 406, lambda ch: (ch.basic_ack(99), ch.queue_declare(exclusive=True))),
    ("negative ttl", PreconditionFailed, 406, lambda ch: ch.queue_declare("bad", arguments={"x-message-ttl": -1})),
    ("prefetch size", AMQPNotImplementedError, 540, lambda ch: ch.basic_qos(10, 0, False)),
]


@pytest.mark.parametrize(("kind", "code", "call"), [e[1:] for e in ERRORS], ids=[e[0] for e in ERRORS])
def test_error_has_its_own_exception(
    channel: Any, kind: type[Exception], code: int, call: Callable[[Any], object]
) -> None:
    with pytest.raises(kind) as caught:
        call(channel)
    assert getattr(caught.value, "reply_code", None) == code


def test_declaring_differently_is_a_failed_precondition(channel: Any) -> None:
    queue = new_queue(channel)
    with pytest.raises(PreconditionFailed, match="x-max-length"):
        channel.queue_declare(queue, exclusive=True, auto_delete=False, arguments={"x-max-length": 1})


def test_exclusive_queue_of_another_is_locked(connect: Connect) -> None:
    queue = new_queue(connect().channel())
    with pytest.raises(ResourceLocked):
        connect().channel().queue_declare(queue, passive=True)


def test_second_exclusive_consumer_is_refused(connect: Connect) -> None:
    connection = connect()
    first, second = connection.channel(), connection.channel()
    queue = new_queue(first)
    first.basic_consume(queue, exclusive=True)
    with pytest.raises(AccessRefused):
        second.basic_consume(queue)


def test_consumer_tag_twice_is_not_allowed(channel: Any) -> None:
    queue = new_queue(channel)
    channel.basic_consume(queue, consumer_tag="twice")
    with pytest.raises(NotAllowed):
        channel.basic_consume(queue, consumer_tag="twice")


def test_method_for_a_channel_that_was_never_opened(connect: Connect) -> None:
    connection = connect()
    unopened = pyamqp.Channel(connection, 55, auto_decode=True)
    unopened.send_method((50, 10), "BsbbbbbF", (0, "", False, False, True, False, False, None))
    with pytest.raises(ChannelNotOpen):
        serve(connection, lambda: False, "the connection ends")


def test_body_without_a_method_is_unexpected(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel()
    line: socket.socket = connection.transport.sock
    line.sendall(b"\x03" + channel.channel_id.to_bytes(2, "big") + (3).to_bytes(4, "big") + b"abc\xce")
    with pytest.raises(UnexpectedFrame):
        channel.queue_declare(exclusive=True)


def test_channel_ids_are_used_again(connect: Connect) -> None:
    connection = connect()
    for _ in range(20):
        channels = [connection.channel() for _ in range(5)]
        assert {channel.channel_id for channel in channels} == {1, 2, 3, 4, 5}
        for channel in channels:
            channel.close()
