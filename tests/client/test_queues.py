"""Work queues through the client: what a user is promised, in each of the four ways to use it."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for
from waystation import Priority, Retry, aio, errors
from waystation.message import Message as Outgoing

Client = Any


def test_a_message_goes_through(mq: Client) -> None:
    jobs = mq.queue(unique("jobs"))
    before = datetime.now(UTC) - timedelta(seconds=5)
    id = jobs.put({"resize": "a.png"}, key="u1", headers={"src": "web", "n": 3, "raw": b"\xff"}, type="command")
    assert id == f"{jobs.name}#0"
    with jobs.get(timeout=30) as message:
        assert message.id == id
        assert message.json() == message.value == {"resize": "a.png"}
        assert (message.key, message.key_bytes) == ("u1", b"u1")
        assert message.headers == {"src": "web", "n": 3, "raw": b"\xff"}
        assert (message.type, message.content_type) == ("command", "application/json")
        assert (message.queue, message.topic, message.deliveries, message.redelivered) == (jobs.name, None, 1, False)
        assert before < message.taken < datetime.now(UTC) + timedelta(seconds=5)
    assert message.settled == "ack"
    assert jobs.get_message_nowait() is None


@pytest.mark.parametrize(
    ("value", "type"),
    [(b"\x00\xff raw", "binary"), ("grüße", "text"), ([1, {"a": None}], "json"), (7, "json"), (b"", "binary")],
)
def test_a_value_comes_back_as_it_was(mq: Client, value: Any, type: str) -> None:
    jobs = mq.queue(unique("values"))
    jobs.put(value)
    with jobs.get(timeout=30) as message:
        assert message.value == value
        assert message.type == type


def test_priorities_come_first_and_equals_in_their_order(mq: Client) -> None:
    jobs = mq.queue(unique("priority"))
    jobs.put("a")
    jobs.put("b", priority=Priority.HIGH)
    jobs.put("c", priority=9)
    jobs.put("d", priority=Priority.HIGH)
    assert [message.text() for message in jobs.get_many(10)] == ["c", "b", "d", "a"]


def test_many_are_put_and_taken_at_once_and_acked_together(mq: Client) -> None:
    jobs = mq.queue(unique("many"))
    stored = jobs.put_many(f"{number}" for number in range(2500))
    assert len(stored) == 2500
    assert stored.ids[0] == f"{jobs.name}#0"
    assert stored.ids[-1] == f"{jobs.name}#2499"
    seen: list[int] = []
    while messages := jobs.get_many(1000):
        seen += [int(message.text()) for message in messages]
        jobs.ack_many(messages)
    assert seen == list(range(2500))
    info = jobs.describe()
    assert (info.ready, info.held, info.put, info.acked) == (0, 0, 2500, 2500)


def test_messages_with_options_of_their_own_can_be_put_together(mq: Client) -> None:
    jobs = mq.queue(unique("own"))
    jobs.put_many([Outgoing(b"low"), Outgoing(b"high", priority=5, id="h")])
    assert [message.id for message in jobs.get_many(2)] == ["h", f"{jobs.name}#0"]


def test_an_exception_rejects_and_the_error_is_kept_with_the_dead_letter(mq: Client) -> None:
    dead = mq.queue(unique("dead"))
    jobs = mq.queue(unique("jobs"), max_deliveries=2, retry=Retry(0), dead_letter=dead.name)
    jobs.put("bad", headers={"keep": "me"})
    for delivery in (1, 2):
        message = jobs.get(timeout=30)
        assert (message.deliveries, message.redelivered) == (delivery, delivery > 1)
        with pytest.raises(ZeroDivisionError), message:
            raise ZeroDivisionError("on purpose")
    with dead.get(timeout=30) as letter:
        assert letter.text() == "bad"
        assert letter.headers["keep"] == "me"
        death = letter.deaths[0]
        assert (death["queue"], death["reason"]) == (jobs.name, "delivery-limit")
        assert "ZeroDivisionError" in str(death)
    assert jobs.dead_letters().name == dead.name


def test_dead_letters_are_sent_back(mq: Client) -> None:
    dead = mq.queue(unique("dead"))
    jobs = mq.queue(unique("jobs"), dead_letter=dead.name)
    jobs.put_many(["one", "two"])
    for message in jobs.get_many(2):
        message.kill("useless")
    wait_for(lambda: dead.describe().ready == 2, "both are dead")
    assert dead.redrive(dry_run=True).matched == 2
    assert dead.redrive(limit=1).moved == 1
    with jobs.get(timeout=30) as message:
        assert message.text() == "one"
    assert dead.redrive().moved == 1
    with jobs.get(timeout=30) as message:
        assert message.text() == "two"


def test_a_rejected_message_waits_as_the_policy_says(mq: Client) -> None:
    jobs = mq.queue(unique("retry"), max_deliveries=5, retry=Retry(base=0.3, factor=1))
    jobs.put("again")
    first = jobs.get(timeout=30)
    rejected = datetime.now(UTC)
    first.reject("not yet")
    assert jobs.describe().parked == 1
    with jobs.get(timeout=30) as message:
        assert datetime.now(UTC) - rejected >= timedelta(seconds=0.299), "the broker counts in whole milliseconds"
        assert message.deliveries == 2


def test_released_messages_come_back_without_being_failures(mq: Client) -> None:
    jobs = mq.queue(unique("release"), max_deliveries=3)
    jobs.put("x")
    jobs.get(timeout=30).release()
    message = jobs.get(timeout=30)
    assert message.redelivered
    message.release(delay=0.2)
    assert jobs.get_message_nowait() is None
    jobs.get(timeout=30).ack()


def test_delays_are_never_early_and_can_be_cancelled(mq: Client) -> None:
    jobs = mq.queue(unique("delay"))
    jobs.put("later", delay=0.4)
    jobs.put("at", deliver_at=datetime.now(UTC) + timedelta(seconds=3600), id="in-an-hour")
    assert jobs.get_message_nowait() is None
    looked = jobs.find("in-an-hour")
    assert looked.state == "parked"
    assert looked.ready_at > datetime.now(UTC) + timedelta(minutes=50)
    assert jobs.cancel("in-an-hour") is True
    assert jobs.cancel("in-an-hour") is False
    with jobs.get(timeout=30) as message:
        assert datetime.now(UTC) - message.taken >= timedelta(seconds=0.4)
        assert message.text() == "later"


def test_expired_messages_are_not_delivered(mq: Client) -> None:
    dead = mq.queue(unique("dead"))
    jobs = mq.queue(unique("ttl"), dead_letter=dead.name)
    jobs.put("short", ttl=0.1)
    with dead.get(timeout=30) as letter:
        assert letter.deaths[0]["reason"] == "expired"
    assert jobs.get_message_nowait() is None


def test_a_full_queue_refuses_and_stores_nothing_or_waits_for_room(mq: Client) -> None:
    jobs = mq.queue(unique("full"), max_length=2)
    jobs.put_many(["a", "b"])
    with pytest.raises(errors.Full, match="full"):
        jobs.put("c")
    assert jobs.describe().ready == 2
    pending = jobs.put_nowait("refused")
    with pytest.raises(errors.Full):
        pending.result()
    jobs.get(timeout=30).ack()
    jobs.put("d", wait=30)
    assert [message.text() for message in jobs.get_many(10)] == ["b", "d"]


def test_an_id_is_taken_once_within_the_window(mq: Client) -> None:
    jobs = mq.queue(unique("dedup"), dedup_window=600)
    jobs.put("first", id="a")
    with pytest.raises(errors.AlreadyExists, match=r"id: 'a'"):
        jobs.put("second", id="a")
    stored = jobs.put_many([Outgoing(b"", id="b"), Outgoing(b"", id="a"), Outgoing(b"", id="b")])
    assert (len(stored), stored.duplicates) == (1, [1, 2])
    assert [message.id for message in jobs.get_many(10)] == ["a", "b"]


def test_a_message_is_looked_at_without_being_taken(mq: Client) -> None:
    jobs = mq.queue(unique("peek"))
    jobs.put_many(["a", "b", "c"])
    first = jobs.peek(2)
    assert [(looked.text(), looked.state, looked.deliveries) for looked in first] == [
        ("a", "ready", 0),
        ("b", "ready", 0),
    ]
    assert [looked.text() for looked in jobs.peek(2, after=first[-1].tag)] == ["c"]
    assert mq.find(f"{jobs.name}#1").text() == "b"
    assert jobs.find("nothing") is None
    with pytest.raises(errors.Conflict, match="not in flight"):
        first[0]._judge("reject")


def test_a_held_message_can_be_kept_longer(mq: Client) -> None:
    jobs = mq.queue(unique("touch"), hold=0.5)
    jobs.put("slow")
    message = jobs.get(timeout=30)
    for _ in range(4):
        time.sleep(0.2)  # the time passes that the hold is about
        message.touch()
    message.ack()
    assert jobs.describe().held == 0


def test_a_hold_that_ran_out_is_a_conflict_and_the_message_comes_again(mq: Client) -> None:
    jobs = mq.queue(unique("hold"), hold=0.1)
    jobs.put("x")
    late = jobs.get(timeout=30)
    again = jobs.get(timeout=30, hold=60)
    assert again.deliveries == 2
    with pytest.raises(errors.Conflict, match="not in flight any more"):
        late.ack()
    again.ack()
    with pytest.raises(errors.Conflict, match="is settled already"):
        again.reject()


def test_consuming_acks_a_message_when_the_next_is_asked_for(mq: Client) -> None:
    jobs = mq.queue(unique("consume"))
    jobs.put_many(str(number) for number in range(500))
    seen: list[int] = []
    with jobs.consume(prefetch=50) as consumer:
        for message in consumer:
            seen.append(int(message.text()))
            if len(seen) == 500:
                break
    assert seen == list(range(500))
    info = jobs.describe()
    assert (info.ready, info.held, info.acked, info.consumers) == (0, 0, 500, 0)


def test_a_loop_that_fails_leaves_its_message_to_others(mq: Client) -> None:
    jobs = mq.queue(unique("fails"))
    jobs.put_many(["a", "b"])

    def fail_at_the_second() -> None:
        with jobs.consume() as consumer:
            for message in consumer:
                if message.text() == "b":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_at_the_second()
    with jobs.get(timeout=30) as message:
        assert (message.text(), message.deliveries) == ("b", 2)


def test_prefetch_shares_fairly_between_consumers(mq: Client) -> None:
    jobs = mq.queue(unique("fair"))
    jobs.put_many(["a", "b", "c"])
    with jobs.consume(prefetch=1) as one, jobs.consume(prefetch=1) as other:
        first, second = one.get_message(30), other.get_message(30)
        assert {first.text(), second.text()} == {"a", "b"}
        assert one.get_message_nowait() is None
        first.ack()
        assert one.get_message(30).text() == "c"


def test_poll_and_commit(mq: Client) -> None:
    jobs = mq.queue(unique("poll"))
    with jobs.consume() as consumer:
        assert consumer.poll(timeout=0.01) == []
        jobs.put_many(["a", "b", "c"])
        got: list[Any] = []
        while len(got) < 3:
            more = consumer.poll(timeout=30, max=2)
            assert 0 < len(more) <= 2
            got += more
        got[0].reject("no")
        consumer.commit()
        assert [message.settled for message in got] == ["reject", "ack", "ack"]
    assert jobs.describe().acked == 2


def test_at_most_once_is_acked_before_it_is_worked_on(mq: Client) -> None:
    jobs = mq.queue(unique("most"), guarantee="at-most-once")
    jobs.put("x")
    message = jobs.get(timeout=30)
    assert jobs.describe().held == 0
    message.ack()  # nothing to say, and no mistake
    jobs.put("y")
    with jobs.consume() as consumer:
        assert consumer.get_message(30).text() == "y"
        wait_for(lambda: jobs.describe().acked == 2, "it counts as done")


def test_an_id_that_was_used_is_told_in_a_transaction_too(mq: Client) -> None:
    jobs = mq.queue(unique("used"), dedup_window=600)
    jobs.put("x", id="a")
    with mq.transaction(unique("used")) as tx:
        with pytest.raises(errors.AlreadyExists, match="'a' was used"):
            tx.put(jobs, "again", id="a")
        tx.put(jobs.name, "y", id="b")
        with pytest.raises(errors.AlreadyExists, match="'b' was used"):
            tx.put(jobs, "twice in one transaction", id="b")
        stored = tx.put_many(jobs, [Outgoing(b"1", id="a"), Outgoing(b"2", id="c")])
        assert (len(stored), stored.duplicates) == (1, [0])
    assert [message.text() for message in jobs.get_many(10)] == ["x", "y", "2"]
    with mq.transaction(unique("used")) as tx:
        tx.put(jobs, "undone", id="d")
        tx.abort()
    with mq.transaction(unique("used")) as tx:
        tx.put(jobs, "z", id="d")  # what was undone was not used
    once = mq.queue(jobs.name, guarantee="exactly-once")
    with mq.transaction(unique("used")) as tx:
        tx.put(once, "x", id="a")  # a repetition ends here, and that is meant
    assert jobs.describe().put == 4


PREFETCHED = 50


def handed_out(feed: Any, ways: str) -> list[str]:
    """Three messages, in one of the ways in which a subscription gives them."""
    if ways == "poll":
        return [message.text() for message in feed.poll(DEADLINE_S, 3)]
    if ways == "iterate":
        loop = iter(feed)
        return [next(loop).text() for _ in range(3)]
    return [feed.get_message(DEADLINE_S).text() for _ in range(3)]


@pytest.mark.parametrize("ways", ["poll", "iterate", "get_message"])
def test_at_most_once_gives_back_what_was_prefetched_and_not_handed_out(mq: Client, ways: str) -> None:
    jobs = mq.queue(unique("most"))
    jobs.put_many([str(number) for number in range(PREFETCHED)])
    with jobs.consume(guarantee="at-most-once") as feed:
        first = handed_out(feed, ways)
        wait_for(lambda: jobs.describe().held == PREFETCHED - 3, "the rest is prefetched")
    assert first == ["0", "1", "2"]
    info = jobs.describe()
    assert (info.ready, info.held, info.acked) == (PREFETCHED - 3, 0, 3)
    assert [message.text() for message in jobs.get_many(100)] == [str(number) for number in range(3, PREFETCHED)]


def test_at_most_once_is_acked_when_it_is_handed_out(mq: Client) -> None:
    jobs = mq.queue(unique("most"), hold=0.3)
    jobs.put_many(["a", "b", "c"])
    with jobs.consume(guarantee="at-most-once") as feed:
        assert feed.get_message(DEADLINE_S).text() == "a"
        assert (jobs.describe().acked, jobs.describe().held) == (1, 2)
        time.sleep(0.7)  # the others are kept for this consumer, and renewed
        assert [feed.get_message(DEADLINE_S).text() for _ in range(2)] == ["b", "c"]
        assert feed.get_message(0.01) is None


def test_a_handler_with_at_most_once_gets_each_once_and_close_loses_none(connect: Any) -> None:
    mq = connect()
    jobs = mq.queue(unique("most"))
    jobs.put_many([str(number) for number in range(PREFETCHED)])
    seen: list[str] = []

    def handle(message: Any) -> None:
        seen.append(message.text())
        if len(seen) > 5:
            time.sleep(0.05)

    with jobs.consume(guarantee="at-most-once") as feed:
        feed.start_consuming(handle, concurrency=2)
        wait_for(lambda: len(seen) > 6, "some were handled")
    rest = [message.text() for message in jobs.get_many(100)]
    assert sorted([*seen, *rest], key=int) == [str(number) for number in range(PREFETCHED)]


def test_at_most_once_loses_nothing_to_a_task_that_is_cancelled(url: str) -> None:
    async def work() -> None:
        async with aio.connect(url) as mq:
            jobs = await mq.queue(unique("most"))
            await jobs.put_many([str(number) for number in range(PREFETCHED)])
            async with jobs.consume(guarantee="at-most-once") as feed:
                seen: list[str] = []
                while len(seen) < PREFETCHED:
                    asking = asyncio.ensure_future(feed.get_message(DEADLINE_S))
                    for _ in range(len(seen) % 7):  # here and there on its way
                        await asyncio.sleep(0)
                    asking.cancel()
                    await asyncio.wait([asking])
                    message = await feed.get_message(DEADLINE_S) if asking.cancelled() else asking.result()
                    assert message is not None
                    seen.append(message.text())
                with pytest.raises(errors.Invalid, match="at-most-once"):
                    feed.get_message_nowait()
            assert sorted(seen, key=int) == [str(number) for number in range(PREFETCHED)]

    asyncio.run(work())


@pytest.mark.parametrize("mode", ["shared", "stream"])
def test_at_most_once_of_a_group_gives_back_what_was_prefetched_too(mq: Client, mode: str) -> None:
    topic = unique("most")
    mq.create_topic(topic, 1)
    options: dict[str, Any] = {"group": unique("g"), "mode": mode, "guarantee": "at-most-once", "start": "earliest"}
    mq.publish_many(topic, [str(number) for number in range(PREFETCHED)])
    with mq.subscribe(topic, **options) as feed:
        assert handed_out(feed, "get_message") == ["0", "1", "2"]
    with mq.subscribe(topic, **options) as feed:
        assert handed_out(feed, "get_message") == ["3", "4", "5"]


def test_queues_are_listed_altered_purged_and_deleted(mq: Client) -> None:
    prefix = unique("admin")
    jobs = mq.queue(f"{prefix}.b", ttl=60, hold=5)
    mq.queue(f"{prefix}.a")
    assert [info.queue for info in mq.queues(prefix)] == [f"{prefix}.a", f"{prefix}.b"]
    assert (jobs.describe().settings.ttl_ms, jobs.describe().settings.hold_ms) == (60_000, 5_000)
    with pytest.raises(errors.Conflict):
        mq.queue(jobs.name, ttl=90)
    assert jobs.alter(ttl=90).settings.ttl_ms == 90_000
    jobs.put_many(["a", "b"])
    assert jobs.purge() == 2
    jobs.put("c")
    with pytest.raises(errors.Conflict):
        jobs.delete(if_empty=True)
    assert jobs.delete() == 1
    with pytest.raises(errors.NotFound, match=prefix):
        jobs.put("x")
    with pytest.raises(errors.NotFound):
        mq.queue(jobs.name, passive=True)


def test_a_consumer_of_a_deleted_queue_is_told(mq: Client) -> None:
    jobs = mq.queue(unique("gone"))
    consumer = jobs.consume()
    jobs.delete()
    with pytest.raises(errors.NotFound):
        consumer.get_message(30)
    consumer.close()


def test_one_active_consumer_at_a_time(mq: Client) -> None:
    jobs = mq.queue(unique("single"), single_active=True)
    with jobs.consume() as first, jobs.consume() as second:
        jobs.put("a")
        message = first.get_message(30)
        assert second.get_message_nowait() is None
        message.ack()
        first.close()
        jobs.put("b")
        assert second.get_message(30).text() == "b"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"priority": 256}, "priority"),
        ({"priority": -1}, "priority"),
        ({"delay": -1}, "delay"),
        ({"ttl": 0}, "ttl"),
        ({"id": ""}, "id"),
        ({"max_deliveries": -1}, "max_deliveries"),
        ({"deliver_at": "tomorrow"}, "deliver_at"),
        ({"key": 7}, "key"),
        ({"headers": {7: "x"}}, "headers"),
    ],
)
def test_a_mistake_names_its_field_and_stores_nothing(mq: Client, options: dict[str, Any], field: str) -> None:
    jobs = mq.queue(unique("mistakes"))
    with pytest.raises(errors.Invalid, match=field):
        jobs.put("x", **options)
    assert jobs.describe().ready == 0


def test_other_mistakes(mq: Client) -> None:
    jobs = mq.queue(unique("others"))
    with pytest.raises(errors.Invalid, match="payload"):
        jobs.put(object())
    with pytest.raises(TypeError, match="prioriti"):
        jobs.put("x", prioriti=3)
    with pytest.raises(TypeError, match="max_lenght"):
        mq.queue(unique("x"), max_lenght=3)
    with pytest.raises(errors.Invalid, match="retry_jitter"):
        mq.queue(unique("x"), retry=Retry(jitter=2))
    with pytest.raises(errors.Empty, match="others"):
        jobs.get(timeout=0)
    jobs.put("x")
    message = jobs.get(timeout=30)
    with pytest.raises(errors.Invalid, match="reply_to"):
        message.reply("what?")


def test_a_payload_over_the_limit_is_refused_whole(mq: Client) -> None:
    jobs = mq.queue(unique("large"))
    with pytest.raises(errors.TooLarge):
        jobs.put(b"x" * (65 * 1024 * 1024))
    jobs.put(b"x" * 300_000)
    with jobs.get(timeout=30) as message:
        assert len(message.payload) == 300_000


def test_alter_changes_what_is_named_and_nothing_else(mq: Any) -> None:
    jobs = mq.queue(
        unique("altered"), max_deliveries=3, dead_letter="dead", retry=Retry(7), hold=60, max_length=10, ttl=9
    )
    before = jobs.describe().settings
    assert jobs.alter(ttl=50).settings == replace(before, ttl_ms=50_000)
    assert jobs.alter(ttl=None).settings == replace(before, ttl_ms=None)
    assert jobs.alter(overflow="dead-letter").settings.overflow == "dead-letter"  # it has a dead_letter already
    assert jobs.alter().settings.overflow == "dead-letter"
    changed = jobs.alter(retry=None, max_deliveries=0, dead_letter=None, overflow="reject", ttl=9).settings
    assert changed == replace(before, retry_base_ms=1_000, max_deliveries=0, dead_letter=None)
    with pytest.raises(errors.Invalid, match="dead_letter_key"):
        jobs.alter(dead_letter_key="k")
    assert jobs.describe().settings == changed


def test_alter_does_not_make_a_queue_that_was_deleted(mq: Any) -> None:
    jobs = mq.queue(unique("altered"))
    jobs.delete()
    with pytest.raises(errors.NotFound):
        jobs.alter(ttl=50)


def values_in(jobs: Any) -> list[Any]:
    """Everything in a queue, a page at a time."""
    found: list[Any] = []
    page = jobs.peek(1000)
    while page:
        found += page
        page = jobs.peek(1000, after=page[-1].delivered.tag)
    return [looked.value for looked in found]


@pytest.mark.parametrize("wait", [0, 0.2])
def test_put_many_to_a_queue_that_gets_full_leaves_no_hole(mq: Any, wait: float) -> None:
    jobs = mq.queue(unique("hole"), max_length=1500)
    with pytest.raises(errors.Full, match="first 1000 messages of this call are stored, none of the others") as caught:
        jobs.put_many(range(2500), wait=wait)
    assert caught.value.stored == 1000
    assert values_in(jobs) == [*range(1000)]
    jobs.alter(max_length=10_000)
    assert len(jobs.put_many(range(caught.value.stored, 2500))) == 1500
    assert values_in(jobs) == [*range(2500)]


def test_put_many_that_is_refused_at_once_stores_nothing(mq: Any) -> None:
    jobs = mq.queue(unique("hole"), max_length=10)
    for count in (11, 5000):
        with pytest.raises(errors.Full) as caught:
            jobs.put_many(range(count))
        assert caught.value.stored == 0
    assert values_in(jobs) == []
    jobs.put_many(range(10))  # a refusal is of that call alone


def test_put_many_stops_at_a_value_that_is_none(mq: Any) -> None:
    jobs = mq.queue(unique("hole"))
    with pytest.raises(errors.Invalid, match="first 1000 messages of this call are stored") as caught:
        jobs.put_many([*range(1500), object(), *range(1500, 3000)])
    assert caught.value.stored == 1000
    assert values_in(jobs) == [*range(1000)]


def test_calls_of_others_are_not_refused_with_put_many(mq: Any) -> None:
    jobs = mq.queue(unique("hole"), max_length=1600)
    others = [jobs.put_nowait("between") for _ in range(3)]
    with pytest.raises(errors.Full):
        jobs.put_many(range(10_000))
    others += [jobs.put_nowait("after") for _ in range(3)]
    mq.flush()
    assert values_in(jobs) == ["between"] * 3 + [*range(1000)] + ["after"] * 3


SHORT_S = 0.2
"""A visibility timeout that a test can wait for."""


def delivered_twice(jobs: Any, value: str) -> tuple[Any, Any]:
    """The first delivery of a message, whose visibility timeout has ended, and the second one, by the same client."""
    jobs.put(value)
    old = jobs.get(timeout=DEADLINE_S, hold=SHORT_S)
    new = jobs.get(timeout=DEADLINE_S, hold=SHORT_S)
    new.touch(DEADLINE_S)  # from now on it is in flight for as long as the test needs
    assert (old.id, old.deliveries, new.deliveries) == (new.id, 1, 2)
    return old, new


@pytest.mark.parametrize("verdict", ["ack", "reject", "release", "kill", "touch"])
def test_a_delivery_that_timed_out_cannot_settle_the_one_after_it(mq: Any, verdict: str) -> None:
    jobs = mq.queue(unique("stale"))
    old, new = delivered_twice(jobs, "once more")
    with pytest.raises(errors.Conflict, match="not in flight any more"):
        getattr(old, verdict)()
    info = jobs.describe()
    assert (info.held, info.acked) == (1, 0)
    new.ack()
    assert jobs.describe().acked == 1


def test_a_stale_ack_that_nobody_waits_for_does_nothing_either(mq: Any) -> None:
    jobs = mq.queue(unique("stale"))
    old, new = delivered_twice(jobs, "once more")
    old.ack(wait=False)
    mq.flush()
    assert jobs.describe().held == 1
    new.ack(wait=False)
    mq.flush()
    assert jobs.describe().acked == 1


def test_a_stale_delivery_among_many_is_left_out_and_the_others_are_acked(mq: Any) -> None:
    jobs = mq.queue(unique("stale"))
    old, new = delivered_twice(jobs, "once more")
    jobs.put_many(["a", "b"])
    others = jobs.get_many(2, timeout=DEADLINE_S)
    with pytest.raises(errors.Conflict, match="not in flight any more"):
        jobs.ack_many([old, *others])
    info = jobs.describe()
    assert (info.held, info.acked) == (1, 2)
    new.ack()


def test_a_stale_delivery_cannot_be_acked_in_a_transaction(mq: Any) -> None:
    jobs = mq.queue(unique("stale"))
    old, new = delivered_twice(jobs, "once more")
    with pytest.raises(errors.Conflict, match="not in flight"), mq.transaction(unique("stale")) as tx:
        tx.ack(old)
    assert jobs.describe().held == 1
    with mq.transaction(unique("stale")) as tx:
        tx.ack(new)
    assert jobs.describe().held == 0


def test_a_consumer_that_gets_a_message_again_has_two_deliveries_of_it(mq: Any) -> None:
    jobs = mq.queue(unique("stale"), hold=SHORT_S)
    jobs.put("again")
    with jobs.consume(prefetch=2) as feed:
        old = feed.get_message(timeout=DEADLINE_S)
        new = feed.get_message(timeout=DEADLINE_S)
        assert (old.id, new.deliveries) == (new.id, old.deliveries + 1)
        new.touch(DEADLINE_S)
        with pytest.raises(errors.Conflict, match="not in flight any more"):
            old.ack()
        new.ack()
    assert jobs.describe().acked == 1
