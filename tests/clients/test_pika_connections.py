"""pika, blocking: connections and channels from the first byte to the last, also those that end badly."""

from __future__ import annotations

import socket

import pika
import pytest
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ChannelWrongStateError,
    ConnectionClosedByBroker,
    ConnectionWrongStateError,
    NoFreeChannels,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
    StreamLostError,
)

from tests.clients.amqp_kit import FRAME_MIN, AmqpTarget, Relay, free_of_reply, numbered
from tests.clients.pika_kit import (
    Inbox,
    Pikas,
    depth,
    drain,
    get,
    get_one,
    gone,
    new_queue,
    parameters,
    put,
    until,
)
from tests.support.waiting import wait_for

CAPABILITIES = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)


def test_server_introduces_itself_and_its_capabilities(pikas: Pikas) -> None:
    connection = pikas.connect()
    properties = connection._impl.server_properties
    assert {"product", "version", "platform", "capabilities"} <= set(properties)
    assert {name: properties["capabilities"].get(name) for name in CAPABILITIES} == dict.fromkeys(CAPABILITIES, True)
    assert connection.basic_nack_supported
    assert connection.consumer_cancel_notify_supported
    assert connection.exchange_exchange_bindings_supported
    assert connection.publisher_confirms_supported


def test_connection_and_channels_open_and_close(pikas: Pikas) -> None:
    connection = pikas.connect()
    first, second = connection.channel(), connection.channel()
    assert (first.channel_number, second.channel_number) == (1, 2)
    first.close()
    assert first.is_closed
    assert second.is_open
    with pytest.raises(ChannelWrongStateError):
        first.queue_declare("")
    again = connection.channel(channel_number=1)
    assert again.queue_declare("", exclusive=True).method.queue
    connection.close()
    assert connection.is_closed
    with pytest.raises(ConnectionWrongStateError):
        connection.channel()


def test_many_channels_of_one_connection_work_side_by_side(pikas: Pikas) -> None:
    connection = pikas.connect()
    channels = [connection.channel() for _ in range(300)]
    queue = new_queue(channels[0])
    for number, channel in enumerate(channels):
        channel.basic_publish("", queue, b"%d" % number)
    collector = Inbox(channels[0], queue, auto_ack=True)
    assert sorted(int(d.body) for d in collector.take(300)) == list(range(300))
    for channel in channels[1:]:
        channel.close()
    assert depth(channels[0], queue) == 0


def test_channel_max_is_negotiated_down(pikas: Pikas) -> None:
    connection = pikas.connect(channel_max=3)
    for _ in range(3):
        connection.channel()
    with pytest.raises(NoFreeChannels):
        connection.channel()


def test_frame_max_is_negotiated_down_and_kept_both_ways(pikas: Pikas) -> None:
    connection = pikas.connect(frame_max=FRAME_MIN)
    assert connection._impl.params.frame_max == FRAME_MIN
    channel = connection.channel()
    queue = new_queue(channel)
    # 8 bytes of a frame are its own; the sizes around that border are where an off-by-one shows.
    bodies = [b"x" * size for size in (0, 1, FRAME_MIN - 9, FRAME_MIN - 8, FRAME_MIN - 7, 2 * (FRAME_MIN - 8), 50_000)]
    put(channel, queue, bodies)
    assert [get_one(channel, queue).body for _ in bodies] == bodies


def test_heartbeats_keep_a_quiet_connection_and_end_a_dead_one(pikas: Pikas) -> None:
    alive, dead = pikas.connect(heartbeat=1), pikas.connect(heartbeat=1)
    assert alive._impl.params.heartbeat == 1
    # The client at `dead` does nothing at all: after two intervals without a byte from it, the broker hangs up.
    line: socket.socket = dead._impl._transport._sock
    until(alive, lambda: free_of_reply(line), "the broker gave up a client that sends no heartbeats")
    # `alive` has been idle, but served, all the while; pika itself would have left a broker without heartbeats.
    assert alive.channel().is_open
    with pytest.raises(AMQPConnectionError):
        dead.channel()


def test_client_that_wants_no_heartbeats_gets_none(pikas: Pikas) -> None:
    assert not pikas.connect(heartbeat=0)._impl.params.heartbeat


@pytest.mark.parametrize("user", ["guest", "nobody-knows-me"])
def test_wrong_credentials_are_refused(amqp: AmqpTarget, user: str) -> None:
    wrong = parameters(amqp, credentials=pika.PlainCredentials(user, "wrong"))
    with pytest.raises(ProbableAuthenticationError) as caught:
        pika.BlockingConnection(wrong)
    assert "ACCESS_REFUSED" in str(caught.value)


def test_unknown_virtual_host_is_refused(amqp: AmqpTarget) -> None:
    with pytest.raises((ConnectionClosedByBroker, ProbableAccessDeniedError)) as caught:
        pika.BlockingConnection(parameters(amqp, virtual_host="no-such-place"))
    assert "530" in str(caught.value)
    assert "no-such-place" in str(caught.value)


def test_secret_can_be_updated_on_a_living_connection(pikas: Pikas) -> None:
    connection = pikas.connect()
    connection.update_secret("guest", "the old one expires")
    assert connection.channel().queue_declare("", exclusive=True).method.queue


def test_channel_error_ends_the_channel_and_nothing_else(pikas: Pikas) -> None:
    connection = pikas.connect()
    broken, whole = connection.channel(), connection.channel()
    queue = new_queue(whole)
    put(broken, queue, [b"before"])
    with pytest.raises(ChannelClosedByBroker):
        broken.queue_declare("nobody-declared-me", passive=True)
    assert broken.is_closed
    assert get_one(whole, queue).body == b"before"
    assert connection.channel(channel_number=broken.channel_number).is_open


def test_unacked_messages_come_back_when_the_channel_closes(pikas: Pikas) -> None:
    connection = pikas.connect()
    holder, other = connection.channel(), connection.channel()
    queue = new_queue(holder)
    put(other, queue, numbered(3))
    inbox = Inbox(holder, queue)
    inbox.take(3)
    assert get(other, queue) is None
    holder.close()
    back = [get_one(other, queue) for _ in range(3)]
    assert [d.body for d in back] == numbered(3)
    assert all(d.redelivered for d in back)


def test_unacked_messages_come_back_when_the_connection_dies(pikas: Pikas, relay: Relay) -> None:
    watcher = pikas.channel()
    queue = new_queue(watcher, exclusive=False, auto_delete=False)
    put(watcher, queue, numbered(5))
    broken = Pikas(relay.target).channel()
    inbox = Inbox(broken, queue)
    first = inbox.take(5)[0]
    broken.basic_ack(first.tag)
    wait_for(lambda: depth(broken, queue) == 0, "everything is held")
    relay.cut()
    back = [get_one(watcher, queue) for _ in range(4)]
    assert [(d.body, d.redelivered) for d in back] == [(body, True) for body in numbered(4, start=1)]
    with pytest.raises((StreamLostError, AMQPConnectionError)):
        broken.queue_declare(queue, passive=True)
    watcher.queue_delete(queue)


def test_publisher_that_dies_half_way_through_a_message_leaves_only_whole_ones(pikas: Pikas, relay: Relay) -> None:
    watcher = pikas.channel()
    queue = new_queue(watcher, exclusive=False)
    channel = Pikas(relay.target).channel()
    put(channel, queue, [b"whole"])
    impl = channel.connection._impl
    publish = pika.frame.Method(channel.channel_number, pika.spec.Basic.Publish(exchange="", routing_key=queue))
    header = pika.frame.Header(channel.channel_number, 1000, pika.BasicProperties())
    body = pika.frame.Body(channel.channel_number, b"only a part")
    impl._output_marshaled_frames([publish.marshal(), header.marshal(), body.marshal()])
    channel.connection.process_data_events(0.05)
    relay.cut()
    assert drain(watcher, queue) == [b"whole"]
    put(watcher, queue, [b"after"])
    assert drain(watcher, queue) == [b"after"]
    watcher.queue_delete(queue)


def test_exclusive_queue_goes_with_a_connection_that_dies(pikas: Pikas, relay: Relay) -> None:
    channel = Pikas(relay.target).channel()
    queue = new_queue(channel, exclusive=True)
    relay.cut()
    wait_for(lambda: gone(pikas, queue), "the exclusive queue is gone")
