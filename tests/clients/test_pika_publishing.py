"""pika, blocking: confirms, returns, replies and transactions, and the methods that end a channel or a connection."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from tests.clients.amqp_kit import numbered, ours_only
from tests.clients.pika_kit import (
    Delivery,
    Inbox,
    Pikas,
    cut_off,
    depth,
    drain,
    get_one,
    gone,
    new_exchange,
    new_queue,
    put,
    refused,
    until,
)
from tests.support.names import unique
from tests.support.waiting import wait_for


def test_mandatory_message_without_a_queue_is_returned(pikas: Pikas) -> None:
    channel = pikas.channel()
    with pytest.raises(UnroutableError) as caught:
        channel.basic_publish("amq.direct", "to-nobody", b"lost", pika.BasicProperties(message_id="m"), mandatory=True)
    (returned,) = caught.value.messages
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.exchange, returned.method.routing_key) == ("amq.direct", "to-nobody")
    assert (returned.body, returned.properties.message_id) == (b"lost", "m")
    queue = new_queue(channel)
    channel.basic_publish("", queue, b"found", mandatory=True)
    assert drain(channel, queue) == [b"found"]


@pytest.mark.parametrize(
    "said",
    [{"priority": 0}, {"headers": {}}, {"message_id": ""}, {"cluster_id": "a"}, {"cluster_id": ""}, {}],
    ids=["priority 0", "no headers", "empty message id", "cluster id", "empty cluster id", "nothing"],
)
def test_properties_that_say_nothing_come_back_as_they_were_sent(pikas: Pikas, said: dict[str, Any]) -> None:
    channel = pikas.channel()
    dead = new_queue(channel)
    queue = new_queue(channel, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    sent = pika.BasicProperties(**said)
    channel.basic_publish("", queue, b"x", sent)
    for _ in range(2):
        found = get_one(channel, queue, auto_ack=False)
        assert found.properties == sent
        channel.basic_reject(found.tag, requeue=True)
    channel.basic_reject(get_one(channel, queue, auto_ack=False).tag, requeue=False)
    letter = get_one(channel, dead).properties
    letter.headers = said.get("headers")  # the failure history is in them
    assert letter == sent


def test_message_without_a_queue_that_is_not_mandatory_is_confirmed(pikas: Pikas) -> None:
    channel = pikas.channel()
    channel.basic_publish("amq.direct", "to-nobody", b"dropped")
    channel.basic_publish("", unique("nobody"), b"dropped")
    assert channel.is_open


def test_returns_come_without_confirms_too(pikas: Pikas) -> None:
    channel = pikas.channel(confirm=False)
    returned: list[bytes] = []
    channel.add_on_return_callback(lambda _ch, _method, _properties, body: returned.append(body))
    for body in numbered(3):
        channel.basic_publish("amq.fanout", "", body, mandatory=True)
    until(channel.connection, lambda: len(returned) == 3, "three returns")
    assert returned == numbered(3)


def test_full_queue_that_rejects_publishes_nacks(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel, {"x-max-length": 2, "x-overflow": "reject-publish"})
    put(channel, queue, numbered(2))
    with pytest.raises(NackError):
        channel.basic_publish("", queue, b"too many")
    assert drain(channel, queue) == numbered(2)
    put(channel, queue, [b"room again"])


def test_publish_to_an_unknown_exchange_closes_the_channel(pikas: Pikas) -> None:
    name = unique("no-exchange")
    code, text = refused(lambda: pikas.channel().basic_publish(name, "k", b"x"))
    assert (code, text) == (404, f"NOT_FOUND - no exchange '{name}' in vhost '/'")


def test_user_id_must_be_that_of_the_connection(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    put(channel, queue, [b"it is me"], user_id="guest")
    code, text = refused(lambda: put(channel, queue, [b"no"], user_id="somebody"))
    assert code == 406
    assert "user_id" in text


def test_request_and_reply_through_direct_reply_to(pikas: Pikas) -> None:
    asker, answerer = pikas.channel(), pikas.channel()
    queue = new_queue(answerer, exclusive=False, auto_delete=True)
    requests = Inbox(answerer, queue, auto_ack=True)
    replies = Inbox(asker, "amq.rabbitmq.reply-to", auto_ack=True)
    for number in numbered(3):
        ask = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id=number.decode())
        asker.basic_publish("", queue, b"ask " + number, ask)
    for request in requests.take(3):
        to = request.properties.reply_to
        assert to not in ("", "amq.rabbitmq.reply-to")
        answer = pika.BasicProperties(correlation_id=request.properties.correlation_id)
        answerer.basic_publish("", to, request.body.replace(b"ask", b"answer"), answer)
    got = replies.take(3)
    assert [d.body for d in got] == [b"answer " + number for number in numbered(3)]
    assert [d.properties.correlation_id for d in got] == [n.decode() for n in numbered(3)]


def test_direct_reply_to_has_its_rules(pikas: Pikas) -> None:
    acking = pikas.channel()
    code, text = refused(lambda: Inbox(acking, "amq.rabbitmq.reply-to"))
    assert code == 406
    assert "reply consumer" in text
    without = pikas.channel()
    queue = new_queue(without)
    ask = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
    code, text = refused(lambda: without.basic_publish("", queue, b"ask", ask))
    assert code == 406
    assert "fast reply consumer" in text


def test_asker_may_declare_the_queue_of_its_replies(pikas: Pikas) -> None:
    channel = pikas.channel()
    for passive in (True, False):
        declared = channel.queue_declare("amq.rabbitmq.reply-to", passive=passive).method
        assert (declared.queue, declared.message_count, declared.consumer_count) == ("amq.rabbitmq.reply-to", 0, 1)


def test_answerer_can_ask_whether_the_asker_is_still_there(pikas: Pikas) -> None:
    asker, answerer = pikas.channel(), pikas.channel()
    queue = new_queue(answerer, exclusive=False, auto_delete=True)
    requests = Inbox(answerer, queue, auto_ack=True)
    Inbox(asker, "amq.rabbitmq.reply-to", auto_ack=True)
    asker.basic_publish("", queue, b"ask", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    (request,) = requests.take(1)
    to = request.properties.reply_to
    for passive in (True, False):
        declared = answerer.queue_declare(to, passive=passive).method
        assert (declared.queue, declared.message_count, declared.consumer_count) == (to, 0, 1)
    asker.connection.close()
    wait_for(lambda: gone(pikas, to), "nobody is there any more")
    code, _ = refused(lambda: pikas.channel().queue_declare(to))
    assert code == 404
    # An answer to nobody is dropped and does no harm.
    answerer.basic_publish("", to, b"answer")
    assert answerer.is_open


def test_committed_publishes_and_acks_happen_and_rolled_back_ones_do_not(pikas: Pikas) -> None:
    channel, other = pikas.channel(confirm=False), pikas.channel()
    queue, work = new_queue(other, exclusive=False), new_queue(other, exclusive=False)
    put(other, work, numbered(2))
    channel.tx_select()
    first = get_one(channel, work, auto_ack=False)
    channel.basic_publish("", queue, b"rolled back")
    channel.basic_ack(first.tag)
    assert depth(other, queue) == 0
    channel.tx_rollback()
    channel.basic_publish("", queue, b"committed")
    channel.basic_ack(first.tag)
    assert depth(other, queue) == 0
    channel.tx_commit()
    assert drain(other, queue) == [b"committed"]
    channel.close()
    assert drain(other, work) == [b"000001"]
    for name in (queue, work):
        other.queue_delete(name)


def test_channel_that_closes_rolls_its_transaction_back(pikas: Pikas) -> None:
    channel = pikas.channel(confirm=False)
    queue = new_queue(channel)
    channel.tx_select()
    put(channel, queue, numbered(3))
    channel.close()
    assert depth(channel.connection.channel(), queue) == 0


def test_mandatory_message_of_a_transaction_is_returned_at_commit(pikas: Pikas) -> None:
    channel = pikas.channel(confirm=False)
    returned: list[bytes] = []
    channel.add_on_return_callback(lambda _ch, _method, _properties, body: returned.append(body))
    channel.tx_select()
    channel.basic_publish("amq.direct", "to-nobody", b"lost", mandatory=True)
    channel.tx_commit()
    until(channel.connection, lambda: returned, "the message is returned")
    assert returned == [b"lost"]


def test_channel_is_transactional_or_confirming_but_not_both(pikas: Pikas) -> None:
    assert refused(pikas.channel().tx_select)[0] == 406
    channel = pikas.channel(confirm=False)
    channel.tx_select()
    assert refused(channel.confirm_delivery)[0] == 406
    assert refused(pikas.channel(confirm=False).tx_commit)[0] == 406
    assert refused(pikas.channel(confirm=False).tx_rollback)[0] == 406


def test_flow_can_be_asked_for(pikas: Pikas) -> None:
    assert pikas.channel().flow(True)


@ours_only
def test_channel_without_flow_is_not_fed(pikas: Pikas) -> None:
    # RabbitMQ has not implemented this one (540).
    channel = pikas.channel()
    queue = new_queue(channel)
    inbox = Inbox(channel, queue, auto_ack=True)
    assert not channel.flow(False)
    put(channel, queue, numbered(3))
    assert inbox.settled() == []
    assert depth(channel, queue) == 3
    assert channel.flow(True)
    assert [d.body for d in inbox.take(3)] == numbered(3)


def test_prefetch_in_bytes_is_not_implemented(pikas: Pikas) -> None:
    assert cut_off(lambda: pikas.channel().basic_qos(prefetch_size=1000))[0] == 540


def test_recover_without_requeue_is_not_implemented(pikas: Pikas) -> None:
    assert cut_off(lambda: pikas.channel().basic_recover(requeue=False))[0] == 540


def test_method_on_a_channel_that_is_not_open_is_a_channel_error(pikas: Pikas) -> None:
    channel = pikas.channel()
    channel.connection._impl._send_method(77, pika.spec.Queue.Declare(queue="", exclusive=True))
    assert cut_off(lambda: depth(channel, "whatever"))[0] == 504


def test_opening_a_channel_twice_is_a_channel_error(pikas: Pikas) -> None:
    channel = pikas.channel()
    channel.connection._impl._send_method(channel.channel_number, pika.spec.Channel.Open())
    assert cut_off(lambda: depth(channel, "whatever"))[0] == 504


def test_content_without_its_header_is_an_unexpected_frame(pikas: Pikas) -> None:
    channel = pikas.channel()
    impl = channel.connection._impl
    impl._send_method(channel.channel_number, pika.spec.Basic.Publish(exchange="", routing_key="x"))
    assert cut_off(lambda: depth(channel, "whatever"))[0] == 505


def test_everything_published_before_a_channel_error_is_kept(pikas: Pikas) -> None:
    channel, other = pikas.channel(confirm=False), pikas.channel()
    queue = new_queue(other, exclusive=False)
    for body in numbered(10):
        channel.basic_publish("", queue, body)
    with pytest.raises(ChannelClosedByBroker):
        channel.queue_declare(unique("missing"), passive=True)
    assert drain(other, queue) == numbered(10)
    other.queue_delete(queue)


def test_consumer_sees_messages_of_exchange_with_its_key(pikas: Pikas) -> None:
    channel = pikas.channel()
    exchange, queue = new_exchange(channel, "direct"), new_queue(channel)
    channel.queue_bind(queue, exchange, "k")
    inbox = Inbox(channel, queue, auto_ack=True)
    channel.basic_publish(exchange, "k", b"x")
    got: Delivery = inbox.take(1)[0]
    assert (got.method.exchange, got.method.routing_key) == (exchange, "k")
