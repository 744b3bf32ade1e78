"""pika, blocking: exchanges of every kind, what is bound to them, and what they refuse."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker, UnroutableError

from tests.clients.amqp_kit import ORACLE, numbered, ours_only
from tests.clients.pika_kit import (
    Pikas,
    bound_queue,
    cut_off,
    depth,
    drain,
    get_one,
    new_exchange,
    new_queue,
    put,
    refused,
)
from tests.support.names import unique
from tests.support.waiting import wait_for


def test_direct_exchange_goes_by_the_whole_key(pikas: Pikas) -> None:
    channel = pikas.channel()
    exchange = new_exchange(channel, "direct")
    red, both = bound_queue(channel, exchange, "red"), bound_queue(channel, exchange, "red")
    channel.queue_bind(both, exchange, "blue")
    for key in ("red", "blue", "Red", ""):
        channel.basic_publish(exchange, key, key.encode())
    assert (drain(channel, red), drain(channel, both)) == ([b"red"], [b"red", b"blue"])


def test_fanout_exchange_ignores_the_key(pikas: Pikas) -> None:
    channel = pikas.channel()
    exchange = new_exchange(channel, "fanout")
    queues = [bound_queue(channel, exchange, key) for key in ("", "a", "b")]
    channel.basic_publish(exchange, "whatever", b"x")
    assert [drain(channel, queue) for queue in queues] == [[b"x"]] * 3


TOPICS = [
    ("a.b.c", {"a.b.c", "#", "a.#", "*.*.*", "#.c", "a.*.c", "a.#.c"}),
    ("a.c", {"#", "a.#", "#.c", "a.#.c"}),
    ("a", {"#", "a.#"}),
    ("", {"#"}),
    ("a..c", {"#", "a.#", "*.*.*", "#.c", "a.*.c", "a.#.c"}),
    ("x.y", {"#"}),
]


def test_topic_exchange_knows_stars_and_hashes(pikas: Pikas) -> None:
    channel = pikas.channel()
    exchange = new_exchange(channel, "topic")
    patterns = ("a.b.c", "#", "a.#", "*.*.*", "#.c", "a.*.c", "a.#.c")
    queues = {pattern: bound_queue(channel, exchange, pattern) for pattern in patterns}
    for key, _ in TOPICS:
        channel.basic_publish(exchange, key, key.encode())
    got = {pattern: drain(channel, queue) for pattern, queue in queues.items()}
    assert got == {p: [key.encode() for key, matches in TOPICS if p in matches] for p in patterns}


HEADER_BINDINGS: list[tuple[dict[str, Any], list[bytes]]] = [
    ({"x-match": "all", "kind": "a", "size": 1}, [b"both"]),
    ({"x-match": "any", "kind": "a", "size": 1}, [b"kind", b"both"]),
    ({"kind": "a"}, [b"kind", b"both"]),
    ({"x-match": "all"}, [b"kind", b"other", b"both", b"none"]),
    ({"x-match": "any"}, []),
    ({"x-match": "all", "kind": None}, [b"kind", b"other", b"both"]),
]


def test_headers_exchange_compares_headers(pikas: Pikas) -> None:
    channel = pikas.channel()
    exchange = new_exchange(channel, "headers")
    queues = [bound_queue(channel, exchange, "", arguments) for arguments, _ in HEADER_BINDINGS]
    messages: list[tuple[bytes, dict[str, Any] | None]] = [
        (b"kind", {"kind": "a"}),
        (b"other", {"kind": "b"}),
        (b"both", {"kind": "a", "size": 1, "more": True}),
        (b"none", None),
    ]
    for body, headers in messages:
        channel.basic_publish(exchange, "ignored", body, pika.BasicProperties(headers=headers))
    assert [drain(channel, queue) for queue in queues] == [expected for _, expected in HEADER_BINDINGS]


def test_default_exchange_reaches_every_queue_by_name(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    channel.basic_publish("", queue, b"x", mandatory=True)
    assert drain(channel, queue) == [b"x"]


def test_queue_bound_in_several_ways_gets_one_copy(pikas: Pikas) -> None:
    channel = pikas.channel()
    exchange = new_exchange(channel, "topic")
    queue = bound_queue(channel, exchange, "#")
    for key in ("a.*", "a.b", "a.b"):
        channel.queue_bind(queue, exchange, key)
    channel.basic_publish(exchange, "a.b", b"once")
    assert drain(channel, queue) == [b"once"]


def test_unbound_queue_gets_nothing_more(pikas: Pikas) -> None:
    channel = pikas.channel()
    exchange = new_exchange(channel, "direct", auto_delete=False)
    queue = bound_queue(channel, exchange, "k")
    channel.queue_unbind(queue, exchange, "k")
    channel.basic_publish(exchange, "k", b"x")
    assert depth(channel, queue) == 0
    # A binding that is not there can be taken away as often as one likes.
    channel.queue_unbind(queue, exchange, "never")
    channel.exchange_delete(exchange)


def test_exchanges_hand_on_to_exchanges(pikas: Pikas) -> None:
    channel = pikas.channel()
    first, second = new_exchange(channel, "topic"), new_exchange(channel, "fanout", auto_delete=False)
    queue, direct = bound_queue(channel, second), bound_queue(channel, first, "news.local")
    channel.exchange_bind(second, first, "news.#")
    channel.basic_publish(first, "news.local", b"both ways")
    channel.basic_publish(first, "sport", b"nowhere")
    assert (drain(channel, queue), drain(channel, direct)) == ([b"both ways"], [b"both ways"])
    channel.exchange_unbind(second, first, "news.#")
    channel.basic_publish(first, "news.local", b"only here")
    assert (drain(channel, queue), drain(channel, direct)) == ([], [b"only here"])
    channel.exchange_delete(second)


def test_exchanges_bound_in_a_circle_deliver_once(pikas: Pikas) -> None:
    channel = pikas.channel()
    first, second = (new_exchange(channel, "fanout", auto_delete=False) for _ in range(2))
    channel.exchange_bind(second, first)
    channel.exchange_bind(first, second)
    queue = bound_queue(channel, second)
    channel.basic_publish(first, "", b"x")
    assert drain(channel, queue) == [b"x"]
    for name in (first, second):
        channel.exchange_delete(name)


def test_alternate_exchange_takes_what_nobody_wants(pikas: Pikas) -> None:
    channel = pikas.channel()
    lost = new_exchange(channel, "fanout")
    exchange = new_exchange(channel, "direct", {"alternate-exchange": lost})
    wanted, rest = bound_queue(channel, exchange, "k"), bound_queue(channel, lost)
    channel.basic_publish(exchange, "k", b"wanted", mandatory=True)
    channel.basic_publish(exchange, "other", b"unwanted", mandatory=True)
    assert drain(channel, wanted) == [b"wanted"]
    got = get_one(channel, rest)
    assert (got.body, got.method.exchange, got.method.routing_key) == (b"unwanted", exchange, "other")
    channel.queue_delete(rest)
    with pytest.raises(UnroutableError):
        channel.basic_publish(exchange, "other", b"nobody at all", mandatory=True)


def test_sender_selects_further_keys_with_cc_and_bcc(pikas: Pikas) -> None:
    channel = pikas.channel()
    exchange = new_exchange(channel, "direct")
    queues = [bound_queue(channel, exchange, key) for key in ("to", "cc1", "cc2", "bcc")]
    headers = {"CC": ["cc1", "cc2", "to"], "BCC": ["bcc"], "kept": 1}
    channel.basic_publish(exchange, "to", b"x", pika.BasicProperties(headers=headers))
    got = [get_one(channel, queue) for queue in queues]
    assert [d.method.routing_key for d in got] == ["to"] * 4
    assert [d.headers for d in got] == [{"CC": ["cc1", "cc2", "to"], "kept": 1}] * 4
    assert [depth(channel, queue) for queue in queues] == [0] * 4


def test_cc_that_is_no_list_is_refused(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    code, text = refused(lambda: put(channel, queue, [b"x"], headers={"CC": "not-a-list"}))
    assert code == 406
    assert "CC" in text


def test_predeclared_exchanges_are_there(pikas: Pikas) -> None:
    channel = pikas.channel()
    for name in ("amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"):
        channel.exchange_declare(name, passive=True)
    channel.exchange_declare("amq.direct", "direct", durable=True)
    queue = bound_queue(channel, "amq.topic", "pika.#")
    channel.basic_publish("amq.topic", "pika.blocking", b"x")
    assert drain(channel, queue) == [b"x"]


def test_names_of_the_broker_are_refused(pikas: Pikas) -> None:
    for name in ("amq.mine", "amq.direct2"):
        code, text = refused(lambda name=name: pikas.channel().exchange_declare(name, "direct"))  # type: ignore[misc]
        assert code == 403
        assert text.startswith("ACCESS_REFUSED - exchange name 'amq.")
    assert refused(lambda: pikas.channel().exchange_delete("amq.direct"))[0] == 403
    channel = pikas.channel()
    queue = new_queue(channel)
    assert refused(lambda: channel.queue_bind(queue, "", "k"))[0] == 403


def test_internal_exchange_takes_nothing_from_clients(pikas: Pikas) -> None:
    channel = pikas.channel()
    front, inner = new_exchange(channel, "fanout"), new_exchange(channel, "fanout", internal=True)
    queue = bound_queue(channel, inner)
    channel.exchange_bind(inner, front)
    channel.basic_publish(front, "", b"through the front")
    assert drain(channel, queue) == [b"through the front"]
    code, text = refused(lambda: channel.basic_publish(inner, "", b"x"))
    assert code == 403
    assert inner in text


def test_passive_declaration_finds_or_is_refused(pikas: Pikas) -> None:
    channel = pikas.channel()
    exchange = new_exchange(channel, "direct", auto_delete=False)
    channel.exchange_declare(exchange, passive=True)
    channel.exchange_delete(exchange)
    code, text = refused(lambda: channel.exchange_declare(exchange, passive=True))
    assert (code, text) == (404, f"NOT_FOUND - no exchange '{exchange}' in vhost '/'")


@pytest.mark.parametrize(
    ("differing", "names"),
    [
        ({"exchange_type": "topic"}, "type"),
        ({"durable": True}, "durable"),
        ({"auto_delete": True}, "auto_delete"),
        ({"internal": True}, "internal"),
    ],
)
def test_declaring_again_differently_is_refused(pikas: Pikas, differing: dict[str, Any], names: str) -> None:
    channel = pikas.channel()
    exchange = new_exchange(channel, "direct", auto_delete=False)
    channel.exchange_declare(exchange, "direct")
    same = {"exchange_type": "direct", **differing}
    code, text = refused(lambda: channel.exchange_declare(exchange, **same))
    assert code == 406
    assert text.startswith(
        f"PRECONDITION_FAILED - inequivalent arg '{names}' for exchange '{exchange}' in vhost '/': received "
    )
    channel.connection.channel().exchange_delete(exchange)


def test_unknown_kind_of_exchange_is_refused(pikas: Pikas) -> None:
    # RabbitMQ 3 ends the connection with 503; RabbitMQ 4, and Waystation, the channel with 406.
    with pytest.raises((ChannelClosedByBroker, ConnectionClosedByBroker)) as caught:
        pikas.channel().exchange_declare(unique("x"), "x-no-such-kind")
    assert caught.value.reply_code == (503 if ORACLE else 406)


def test_delete_only_if_unused(pikas: Pikas) -> None:
    connection = pikas.connect()
    channel = connection.channel()
    exchange = new_exchange(channel, "direct", auto_delete=False)
    queue = bound_queue(channel, exchange, "k")
    code, text = refused(lambda: channel.exchange_delete(exchange, if_unused=True))
    assert code == 406
    assert "in use" in text
    fresh = connection.channel()
    fresh.queue_unbind(queue, exchange, "k")
    fresh.exchange_delete(exchange, if_unused=True)
    assert refused(lambda: fresh.exchange_declare(exchange, passive=True))[0] == 404


def test_deleting_what_is_not_there_is_no_error(pikas: Pikas) -> None:
    channel = pikas.channel()
    channel.exchange_delete(unique("never-was"))
    assert channel.is_open


def test_auto_delete_exchange_leaves_with_its_last_binding(pikas: Pikas) -> None:
    channel = pikas.channel()
    exchange = new_exchange(channel, "direct", auto_delete=True)
    first, second = bound_queue(channel, exchange, "k"), bound_queue(channel, exchange, "k")
    channel.queue_unbind(first, exchange, "k")
    channel.exchange_declare(exchange, passive=True)
    channel.queue_delete(second)
    assert refused(lambda: channel.exchange_declare(exchange, passive=True))[0] == 404


def test_bindings_leave_with_their_queue(pikas: Pikas) -> None:
    channel = pikas.channel()
    exchange = new_exchange(channel, "direct", auto_delete=False)
    queue = bound_queue(channel, exchange, "k")
    channel.queue_delete(queue)
    channel.queue_declare(queue, exclusive=True)
    channel.basic_publish(exchange, "k", b"x")
    assert depth(channel, queue) == 0
    channel.exchange_delete(exchange)


def test_binding_what_is_not_there_is_not_found(pikas: Pikas) -> None:
    exchange, queue = unique("no-x"), unique("no-q")
    code, text = refused(lambda: pikas.channel().queue_bind(queue, "amq.direct", "k"))
    assert (code, text) == (404, f"NOT_FOUND - no queue '{queue}' in vhost '/'")
    channel = pikas.channel()
    there = new_queue(channel)
    code, text = refused(lambda: channel.queue_bind(there, exchange, "k"))
    assert (code, text) == (404, f"NOT_FOUND - no exchange '{exchange}' in vhost '/'")
    assert refused(lambda: pikas.channel().exchange_bind(exchange, "amq.direct", "k"))[0] == 404


def test_consistent_hash_keeps_a_key_in_one_place(pikas: Pikas) -> None:
    channel = pikas.channel()
    try:
        exchange = new_exchange(channel, "x-consistent-hash")
    except AMQPError:
        if not ORACLE:
            raise
        pytest.skip("the broker does not have the plugin")
    queues = [bound_queue(channel, exchange, "10") for _ in range(3)]
    for _ in range(3):
        for key in range(60):
            channel.basic_publish(exchange, f"key-{key}", b"%d" % key)
    shares = [drain(channel, queue) for queue in queues]
    assert sum(map(len, shares)) == 180
    assert all(shares)
    assert [set(shares[a]) & set(shares[b]) for a, b in ((0, 1), (0, 2), (1, 2))] == [set(), set(), set()]


@ours_only
def test_delayed_exchange_holds_a_message_back(pikas: Pikas) -> None:
    channel = pikas.channel()
    exchange = new_exchange(channel, "x-delayed-message", {"x-delayed-type": "topic"})
    queue = bound_queue(channel, exchange, "late.*")
    channel.basic_publish(exchange, "late.a", b"late", pika.BasicProperties(headers={"x-delay": 400}))
    channel.basic_publish(exchange, "late.b", b"now")
    channel.basic_publish(exchange, "early", b"nowhere", pika.BasicProperties(headers={"x-delay": 1}))
    assert drain(channel, queue) == [b"now"]
    late = get_one(channel, queue)
    assert (late.body, late.method.routing_key, late.headers["x-delay"]) == (b"late", "late.a", -400)


@ours_only
def test_delay_works_with_every_exchange(pikas: Pikas) -> None:
    channel = pikas.channel()
    queue = new_queue(channel)
    put(channel, queue, [b"late"], headers={"x-delay": 300})
    put(channel, queue, numbered(2))
    assert drain(channel, queue) == numbered(2)
    assert get_one(channel, queue).body == b"late"


@ours_only
def test_delayed_exchange_needs_to_know_its_type(pikas: Pikas) -> None:
    channel = pikas.channel()
    code, _text = refused(lambda: new_exchange(channel, "x-delayed-message"))
    assert code == 406


def test_exchange_name_that_is_too_odd_is_still_a_name(pikas: Pikas) -> None:
    channel = pikas.channel()
    name = unique("čárka : with space/slash")
    channel.exchange_declare(name, "fanout", auto_delete=True)
    queue = bound_queue(channel, name)
    channel.basic_publish(name, "", b"x")
    got = get_one(channel, queue)
    assert (got.body, got.method.exchange) == (b"x", name)


def test_publishing_to_a_closed_connection_tells_so(pikas: Pikas) -> None:
    channel = pikas.channel()
    assert cut_off(lambda: channel.basic_qos(prefetch_size=1))[0] == 540
    with pytest.raises(AMQPError):
        channel.basic_publish("", "q", b"x")


def test_auto_delete_exchange_used_as_source_of_an_exchange_binding_leaves(pikas: Pikas) -> None:
    channel = pikas.channel()
    source = new_exchange(channel, "fanout", auto_delete=True)
    sink = new_exchange(channel, "fanout", auto_delete=False)
    channel.exchange_bind(sink, source)
    channel.exchange_delete(sink)

    def left() -> bool:
        probe = channel.connection.channel()
        try:
            probe.exchange_declare(source, passive=True)
        except ChannelClosedByBroker:
            return True
        return False

    wait_for(left, "the exchange without bindings is gone")
