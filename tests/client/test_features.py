"""The promises to users that queues, publish/subscribe and the client keep, one test for each.

Each runs with the sync and the asyncio client, against a server process and against a broker in this process. Details
are tested elsewhere; here a user does the thing once, as the guides say it.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

import waystation
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.errors import AlreadyExists, Conflict, Empty, FilterSyntax, Full, Invalid, NotFound, RequestTimeout

_numbers = itertools.count(1)


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"feature.{next(_numbers)}"


def size(queue: Any) -> int:
    info = queue.describe()
    return int(info.ready + info.parked + info.held)


def payloads(messages: list[Any]) -> list[bytes]:
    return [message.payload for message in messages]


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_message_keeps_all_its_fields(mq: Any, name: str) -> None:
    queue = mq.queue(name)
    before = time.time()
    queue.put(
        b"\x00\xff", id=f"{name}-id", key="k", headers={"a": "b", "n": 1, "raw": b"\xfe"}, priority=7, ttl=60,
        correlation_id="c", reply_to="r", content_type="image/png", type="event", max_deliveries=3, timestamp=before,
    )  # fmt: skip
    message = queue.get(timeout=10)
    assert (message.payload, message.id, message.key) == (b"\x00\xff", f"{name}-id", "k")
    assert dict(message.headers) == {"a": "b", "n": 1, "raw": b"\xfe"}
    assert (message.priority, message.correlation_id, message.reply_to) == (7, "c", "r")
    assert (message.content_type, message.type, message.deliveries) == ("image/png", "event", 1)
    assert message.timestamp.timestamp() == pytest.approx(before, abs=0.002)
    assert message.expires is not None
    message.ack()


def test_text_json_and_binary_come_back_as_what_they_were(mq: Any, name: str) -> None:
    queue = mq.queue(name)
    values = ["text", {"json": [1, 2.5, None]}, b"\x80binary"]
    for value in values:
        queue.put(value)
    for value in (["a", "command"],):
        queue.put(value, type="command")
    messages = queue.get_many(10, timeout=10)
    assert [message.value for message in messages] == [*values, ["a", "command"]]
    assert [message.type for message in messages] == ["text", "json", "binary", "command"]
    queue.ack_many(messages)


def test_a_message_is_found_by_its_id(mq: Any, name: str) -> None:
    mq.queue(name).put("x", id=f"{name}-1", delay=100)
    found = mq.find(f"{name}-1")
    assert (found.place, found.state, found.text()) == (f"queue:{name}", "parked", "x")
    mq.publish(f"{name}.topic", "y", id=f"{name}-2")
    assert mq.find(f"{name}-2", topic=f"{name}.topic").text() == "y"
    mq.publish(f"{name}.topic", "later", id=f"{name}-3", delay=100, headers={"h": "v"})
    later = mq.find(f"{name}-3")
    assert (later.place, later.state, later.topic) == (f"topic:{name}.topic", "parked", f"{name}.topic")
    assert (later.text(), later.headers) == ("later", {"h": "v"})
    anywhere = mq.find(f"{name}-2")
    assert (anywhere.place, anywhere.text()) == (f"topic:{name}.topic", "y")
    assert mq.find("no such id") is None


def test_an_id_is_used_once_within_the_window(mq: Any, name: str) -> None:
    queue = mq.queue(name, dedup_window=600)
    queue.put("first", id="a")
    with pytest.raises(AlreadyExists, match="id"):
        queue.put("second", id="a")
    queue.put_many(["x", "y"])
    assert payloads(queue.peek(10)) == [b"first", b"x", b"y"]


# -- queues ------------------------------------------------------------------------------------------------------------


def test_queues_are_made_described_purged_and_deleted(mq: Any, name: str) -> None:
    queue = mq.queue(name, max_length=10)
    queue.put_many(["a", "b"])
    assert payloads(queue.peek(10)) == [b"a", b"b"]
    assert (queue.describe().ready, queue.describe().settings.max_length) == (2, 10)
    assert name in [info.queue for info in mq.queues(name)]
    assert queue.purge() == 2
    assert queue.delete() == 0
    with pytest.raises(NotFound):
        queue.put("c")
    with pytest.raises(NotFound, match=f"{name}x"):
        mq.queue(f"{name}x", passive=True)


def test_competing_consumers_get_each_message_once(mq: Any, name: str) -> None:
    queue = mq.queue(name)
    with queue.consume(prefetch=2, manual=True) as first, queue.consume(prefetch=2, manual=True) as second:
        queue.put_many([str(i) for i in range(4)])
        got = [subscription.get_message(timeout=10) for subscription in (first, first, second, second)]
        assert sorted(payloads(got)) == [b"0", b"1", b"2", b"3"]
        assert first.get_message_nowait() is None
        queue.put("more")
        got[0].ack()
        assert first.get_message(timeout=10).payload == b"more"
    queue.delete()


def test_ack_reject_requeue_and_more_time(mq: Any, name: str) -> None:
    queue = mq.queue(name, hold=1, retry=waystation.Retry(0))
    queue.put_many(["a", "b", "c"])
    a, b, c = queue.get_many(3, timeout=10)
    a.ack()
    b.release()
    c.touch(60)
    again = queue.get(timeout=10)
    assert (again.payload, again.deliveries, again.redelivered) == (b"b", 2, True)
    again.reject("not today")
    third = queue.get(timeout=10)
    assert third.deliveries == 3
    with queue.consume(manual=True) as other:
        assert other.get_message(timeout=20).payload == b"b"  # its hold ran out
        c.ack()
        with pytest.raises(Conflict):
            third.ack()


def test_retries_with_backoff_then_the_dead_letter_queue_with_the_story(mq: Any, name: str) -> None:
    queue = mq.queue(name, max_deliveries=2, retry=waystation.Retry(0.01), dead_letter=f"{name}.dead")
    queue.put("poison")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), queue.get(timeout=10):
            1 / 0  # noqa: B018
    dead = wait_for(lambda: mq.queue(f"{name}.dead").peek(1), "the dead letter")[0]
    (death,) = dead.deaths
    assert (death["queue"], death["reason"], death["count"], death["deliveries"]) == (name, "delivery-limit", 1, 2)
    assert "ZeroDivisionError" in death["error"]
    assert abs(death["time"] / 1000 - time.time()) < 60


def test_dead_letters_are_looked_into_and_sent_back(mq: Any, name: str) -> None:
    queue = mq.queue(name, dead_letter=f"{name}.dead")
    assert queue.dead_letters().peek(1) == []
    for n in range(4):
        queue.put({"n": n})
    for message in queue.get_many(4, timeout=10):
        message.kill("no good")
    dead = queue.dead_letters()
    wait_for(lambda: size(dead) == 4, "four dead letters")
    assert dead.redrive(filter="json.n >= 2", dry_run=True).matched == 2
    assert dead.redrive(filter="json.n >= 2", rate=1000).moved == 2
    assert sorted(message.json()["n"] for message in queue.peek(10)) == [2, 3]
    assert size(dead) == 2


def test_higher_priorities_come_first(mq: Any, name: str) -> None:
    queue = mq.queue(name)
    for value, priority in (("a", 0), ("b", 5), ("c", 9), ("d", 5), ("e", waystation.Priority.HIGH)):
        queue.put(value, priority=priority)
    assert payloads(queue.get_many(10, timeout=10)) == [b"c", b"b", b"d", b"e", b"a"]


def test_delayed_messages_wait_and_can_be_cancelled(mq: Any, name: str) -> None:
    queue = mq.queue(name)
    start = time.time()
    queue.put("late", delay=0.5)
    queue.put("never", delay=0.4, id=f"{name}-never")
    assert queue.get_message_nowait() is None
    assert queue.cancel(f"{name}-never")
    message = queue.get(timeout=20)
    assert message.payload == b"late"
    assert time.time() - start >= 0.5


def test_expired_messages_are_never_delivered(mq: Any, name: str) -> None:
    queue = mq.queue(name, ttl=3600, dead_letter=f"{name}.dead")
    queue.put("short", ttl=0.05)
    queue.put("long")
    wait_for(
        lambda: f"{name}.dead" in [info.queue for info in mq.queues(f"{name}.dead")], "the expired one to be moved"
    )
    assert payloads(queue.get_many(10, timeout=10)) == [b"long"]
    dead = wait_for(lambda: mq.queue(f"{name}.dead").peek(1), "the dead letter")[0]
    assert dead.deaths[0]["reason"] == "expired"


def test_bounded_queues_refuse_wait_or_drop(mq: Any, name: str) -> None:
    small = mq.queue(name, max_length=1)
    small.put("a")
    with pytest.raises(Full, match="max_length"):
        small.put("b")
    with pytest.raises(Full):
        small.put("b", wait=0.05)
    rolling = mq.queue(f"{name}.rolling", max_bytes=4, overflow="drop-oldest")
    for value in ("aa", "bb", "cc"):
        rolling.put(value)
    assert payloads(rolling.peek(10)) == [b"bb", b"cc"]


def test_many_queues(mq: Any, name: str) -> None:
    """A million are in the benchmarks."""
    for n in range(300):
        mq.queue(f"{name}.{n}").put(str(n))
    assert sum(info.ready for info in mq.queues(f"{name}.")) == 300


# -- publish/subscribe and routing -------------------------------------------------------------------------------------


def test_patterns_match_topics_that_come_later(mq: Any, name: str) -> None:
    with (
        mq.subscribe(f"{name}.*.eu") as star,
        mq.subscribe(f"{name}.#") as all_of_it,
        mq.subscribe(rf"{name}\.(orders|bills)\..+", regex=True) as regex,
    ):
        mq.publish(f"{name}.orders.eu", "1")
        mq.publish(f"{name}.other.us", "2")
        assert star.get_message(timeout=20).payload == b"1"
        assert {all_of_it.get_message(timeout=20).payload for _ in range(2)} == {b"1", b"2"}
        assert regex.get_message(timeout=20).topic == f"{name}.orders.eu"
        assert star.get_message(timeout=0.05) is None


def test_durable_subscriptions_are_shared_and_remember(mq: Any, name: str) -> None:
    mq.create_topic(name)
    with mq.subscribe(name, group=f"{name}.billing", start="earliest", manual=True) as first:
        mq.publish_many(name, ["a", "b"])
        message = first.get_message(timeout=20)
        message.ack()
    with mq.subscribe(name, group=f"{name}.billing", manual=True) as second:
        again = second.get_message(timeout=20)
        assert {message.payload, again.payload} == {b"a", b"b"}
        again.ack()


def test_the_last_n_come_first(mq: Any, name: str) -> None:
    mq.publish_many(name, ["a", "b", "c"])
    with mq.subscribe(name, history=2) as subscription:
        assert [subscription.get_message(timeout=20).payload for _ in range(2)] == [b"b", b"c"]
        mq.publish(name, "d")
        assert subscription.get_message(timeout=20).payload == b"d"
        assert mq.describe_topic(name).subscribers >= 1


def test_exchanges_route_by_key_header_and_content(mq: Any, name: str) -> None:
    queues = {kind: mq.queue(f"{name}.{kind}") for kind in ("direct", "fanout", "topic", "headers", "filter")}
    bindings: dict[str, dict[str, Any]] = {
        "direct": {"key": "red"},
        "fanout": {},
        "topic": {"key": "orders.*"},
        "headers": {"headers": {"region": "eu"}},
        "filter": {"filter": "json.total > 100"},
    }
    for kind, binding in bindings.items():
        exchange = mq.exchange(f"{name}.x.{kind}", kind)
        exchange.bind(queues[kind], **binding)
        exchange.publish({"total": 50}, routing_key="nothing")
        exchange.publish({"total": 500}, routing_key={"topic": "orders.eu"}.get(kind, "red"), headers={"region": "eu"})
    counts = {kind: size(queue) for kind, queue in queues.items()}
    assert counts == {"direct": 1, "fanout": 2, "topic": 1, "headers": 1, "filter": 1}


def test_request_and_reply(mq: Any, name: str) -> None:
    with pytest.raises(NotFound):
        mq.request(name, [1], timeout=5)

    def total(message: Any) -> int:
        return sum(message.json())

    mq.respond(name)(total)
    assert mq.request(name, [1, 2, 3], timeout=20).json() == 6
    mq.queue(f"{name}.silent")
    with pytest.raises(RequestTimeout):
        mq.request(f"{name}.silent", "anybody?", timeout=0.05)
    mq.off(total)


# -- guarantees --------------------------------------------------------------------------------------------------------


def test_guarantees_are_chosen_by_producer_and_subscription(mq: Any, name: str) -> None:
    queue = mq.queue(name)
    queue.put("a")
    with queue.consume(guarantee="at-most-once") as subscription:
        assert subscription.get_message(timeout=20).payload == b"a"
    assert size(queue) == 0  # gone with the delivery
    queue.put("b")
    with queue.consume(manual=True) as subscription:
        assert subscription.get_message(timeout=20).payload == b"b"
    assert size(queue) == 1  # not acked: still there
    once = mq.queue(f"{name}.once", guarantee="exactly-once")
    once.put("c", id="same")
    once.put("c", id="same")  # as after a lost connection
    assert size(once) == 1


def test_a_transaction_over_topics_and_queues(mq: Any, name: str) -> None:
    queue, out = mq.queue(name), mq.queue(f"{name}.out")
    queue.put("work")
    message = queue.get(timeout=10)
    with pytest.raises(RuntimeError), mq.transaction(f"{name}-tx") as tx:  # noqa: PT012
        tx.put(out, "result")
        tx.publish(f"{name}.events", "done")
        raise RuntimeError
    assert size(out) == 0
    with mq.transaction(f"{name}-tx") as tx:
        tx.put(out, "result")
        tx.publish(f"{name}.events", "done")
        tx.ack(message)
        assert size(out) == 0
    assert (size(queue), size(out)) == (0, 1)
    with mq.subscribe(f"{name}.events", history=5) as subscription:
        assert subscription.get_message(timeout=20).payload == b"done"
        assert subscription.get_message(timeout=0.05) is None


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_bad_input_gets_a_typed_error_that_names_the_field(mq: Any, name: str) -> None:
    queue = mq.queue(name)
    for options in ({"priority": 256}, {"delay": -1}, {"ttl": 0}, {"id": ""}):
        (field,) = options
        with pytest.raises(Invalid, match=field):
            queue.put("x", **options)
    with pytest.raises(waystation.errors.TooLarge, match="payload"):
        queue.put(bytes(17_000_000))
    with pytest.raises(FilterSyntax, match=r"\^"):
        mq.subscribe(name, filter="a = = b").get_message(timeout=5)
    with pytest.raises(Empty):
        queue.get(timeout=0.01)
    assert size(queue) == 0


# -- what survives -----------------------------------------------------------------------------------------------------


def test_queues_delays_ids_and_counts_survive_kill_9(tmp_path: Path) -> None:
    """Q7, M5, Q4 over a crash of the server process."""
    with Server(tmp_path) as server, waystation.connect(f"waystation://{server.bootstrap}") as mq:
        queue = mq.queue("jobs", dedup_window=3600, max_deliveries=5)
        due = time.time() + 3
        queue.put("late", id="late", deliver_at=due)
        queue.put("now", id="now")
        assert queue.get(timeout=10).deliveries == 1
        server.kill()
        server.start()
        queue = mq.queue("jobs")
        with pytest.raises(AlreadyExists):
            queue.put("again", id="now")
        # On a slow machine the restart takes longer than the delay: which one is first says nothing.
        came = {}
        for _ in range(2):
            message = queue.get(timeout=30)
            came[message.payload] = time.time()
            message.ack()
        assert set(came) == {b"now", b"late"}
        assert came[b"late"] >= due
        assert queue.get_message_nowait() is None
