"""Handlers, requests and replies, transactions and routing, in each of the four ways to use the client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import waystation
from tests.support.names import unique
from tests.support.waiting import wait_for
from waystation import Retry, errors

Client = Any


def collect(into: list[Any]) -> Callable[[Any], None]:
    """A handler of its own for each use."""

    def handler(message: Any) -> None:
        into.append(message.value)

    return handler


def test_a_handler_gets_every_message_and_acks_it(mq: Client) -> None:
    root, seen = unique("events"), list[Any]()
    handler = mq.on(f"{root}.#", group=unique("audit"), concurrency=4)(collect(seen))
    for number in range(50):
        mq.publish(f"{root}.created", {"n": number})
    wait_for(lambda: len(seen) == 50, "all were handled")
    assert sorted(value["n"] for value in seen) == list(range(50))
    mq.off(handler)


def test_a_live_handler_is_an_event_bus(mq: Client) -> None:
    topic, one, other = unique("user.created"), list[Any](), list[Any]()
    handlers = [mq.on(topic)(collect(one)), mq.on(topic)(collect(other))]
    mq.publish(topic, "anna")
    wait_for(lambda: (one, other) == (["anna"], ["anna"]), "both heard it")
    mq.off(handlers[0])
    mq.publish(topic, "bert")
    wait_for(lambda: other == ["anna", "bert"], "one still listens")
    assert one == ["anna"]
    mq.off(handlers[1])


def test_a_handler_that_raises_rejects_and_lives_on(mq: Client, caplog: pytest.LogCaptureFixture) -> None:
    dead = mq.queue(unique("dead"))
    jobs = mq.queue(unique("jobs"), max_deliveries=3, retry=Retry(0), dead_letter=dead.name)
    seen: list[tuple[str, int]] = []

    def work(message: Any) -> None:
        seen.append((message.text(), message.deliveries))
        if message.text() == "bad":
            raise ValueError("cannot resize")

    mq.on(queue=jobs, concurrency=2)(work)
    jobs.put_many(["bad", "good", "good"])
    with dead.get(timeout=30) as letter:
        assert letter.text() == "bad"
        assert "ValueError: cannot resize" in str(letter.deaths)
    wait_for(lambda: jobs.describe().acked >= 2, "the others are done")
    assert sorted(seen) == [("bad", 1), ("bad", 2), ("bad", 3), ("good", 1), ("good", 1)]
    jobs.put("good")
    wait_for(lambda: len(seen) == 6, "the consumer lives")
    mq.off(work)
    assert "cannot resize" in caplog.text


def test_a_handler_may_say_itself_what_became_of_a_message(mq: Client) -> None:
    jobs = mq.queue(unique("jobs"), retry=Retry(0))
    calls: list[int] = []

    def refuse_once(message: Any) -> bool:
        calls.append(message.deliveries)
        return len(calls) > 1

    consumer = jobs.consume()
    consumer.start_consuming(refuse_once)
    with pytest.raises(errors.Conflict, match="handler already"):
        consumer.start_consuming(refuse_once)
    jobs.put("x")
    wait_for(lambda: calls == [1, 2], "False is a rejection")
    consumer.stop_consuming()
    assert jobs.describe().acked == 1
    consumer.close()


def test_a_handler_needs_a_place(mq: Client) -> None:
    with pytest.raises(errors.Invalid, match="on:"):
        mq.on()
    with pytest.raises(errors.Invalid, match="on:"):
        mq.on("topic", queue="queue")


def test_a_request_is_answered(mq: Client) -> None:
    name = unique("sum")

    def total(message: Any) -> int:
        return sum(message.json())

    mq.respond(name)(total)
    assert mq.request(name, [1, 2, 3], timeout=30).json() == 6
    assert [mq.request(name, [number], timeout=30).json() for number in range(20)] == list(range(20))
    mq.off(total)


def test_a_request_that_fails_says_why(mq: Client) -> None:
    name = unique("divide")

    def divide(message: Any) -> float:
        return 1 / float(message.json())

    mq.respond(name, concurrency=3)(divide)
    with pytest.raises(errors.RequestFailed, match="ZeroDivisionError"):
        mq.request(name, 0, timeout=30)
    assert mq.request(name, 4, timeout=30).json() == 0.25
    mq.off(divide)


def test_a_request_that_nobody_answers(mq: Client) -> None:
    with pytest.raises(errors.NotFound):
        mq.request(unique("nobody"), 1, timeout=30)
    silent = mq.queue(unique("silent"))
    with pytest.raises(errors.RequestTimeout, match="within"):
        mq.request(silent.name, 1, timeout=0.1)
    wait_for(lambda: silent.describe().ready == 0, "the request expired with the wait")


def test_a_reply_can_be_given_by_hand_and_to_a_queue(mq: Client) -> None:
    questions, answers = mq.queue(unique("questions")), mq.queue(unique("answers"))
    questions.put("how many?", reply_to=answers.name, correlation_id="c-1")
    with questions.get(timeout=30) as question:
        assert question.reply({"n": 3}) is True
    with answers.get(timeout=30) as answer:
        assert (answer.json(), answer.correlation_id) == ({"n": 3}, "c-1")


def test_a_request_may_go_to_a_topic(mq: Client) -> None:
    topic = unique("ask")
    mq.publish(topic, b"")
    live = mq.subscribe(topic)
    replies: list[bool] = []

    def answer() -> None:
        replies.append(live.get_message(30).reply("me"))

    thread = threading.Thread(target=answer)
    thread.start()
    assert mq.request(topic, "who?", topic=True, timeout=30).text() == "me"
    thread.join()
    assert replies == [True]
    live.close()


def test_a_transaction_happens_whole(mq: Client) -> None:
    jobs, done, topic = mq.queue(unique("jobs")), mq.queue(unique("done")), unique("log")
    mq.publish(topic, "begin")
    jobs.put("work")
    with mq.transaction(unique("t")) as tx:
        message = jobs.get(timeout=30)
        tx.put(done, "worked")
        tx.put_many(done.name, ["more", "still more"])
        tx.publish(topic, "committed")
        tx.ack(message)
        assert done.get_message_nowait() is None
    assert [message.text() for message in done.get_many(10)] == ["worked", "more", "still more"]
    assert (jobs.describe().held, jobs.describe().acked) == (0, 1)
    with mq.subscribe(topic, group=unique("g"), mode="stream", start="earliest") as stream:
        assert [stream.get_message(30).text() for _ in range(2)] == ["begin", "committed"]


def test_a_transaction_that_fails_leaves_nothing(mq: Client) -> None:
    jobs, done, topic = mq.queue(unique("jobs")), mq.queue(unique("done")), unique("log")
    mq.publish(topic, "begin")
    jobs.put("work")
    message = jobs.get(timeout=30)

    def half() -> None:
        with mq.transaction(unique("t")) as tx:
            tx.put(done, "half")
            tx.publish(topic, "half")
            tx.ack(message)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert message.settled == "release"
    mq.publish(topic, "end")
    with mq.subscribe(topic, group=unique("g"), mode="stream", start="earliest") as stream:
        assert [stream.get_message(30).text() for _ in range(2)] == ["begin", "end"]
    assert done.describe().ready == 0
    with jobs.get(timeout=30) as again:
        assert again.text() == "work"


def test_a_newer_transaction_with_the_same_id_fences_the_older_one(mq: Client) -> None:
    done, name = mq.queue(unique("done")), unique("t")

    def overtaken() -> None:
        with mq.transaction(name) as old:
            old.put(done, "old")
            with mq.transaction(name) as new:
                new.put(done, "new")
            old.put(done, "too late")

    with pytest.raises(errors.Conflict):
        overtaken()
    assert [message.text() for message in done.get_many(10)] == ["new"]


def test_a_stream_is_read_exactly_once_with_its_offsets_in_the_transaction(mq: Client) -> None:
    source, done, group = unique("source"), mq.queue(unique("done")), unique("g")
    mq.publish_many(source, ["a", "b", "c"])
    options = {"group": group, "guarantee": "exactly-once", "start": "earliest"}
    with mq.subscribe(source, **options) as stream:
        first = stream.get_message(30)
        with pytest.raises(errors.Conflict, match="transaction"):
            first.ack()
        with mq.transaction(unique("t")) as tx:
            tx.put(done, first.text())
            tx.ack(first)
        second = stream.get_message(30)
        with mq.transaction(unique("t")) as tx:
            tx.put(done, second.text())
            tx.ack(second)
            tx.abort()
    with mq.subscribe(source, **options) as stream:
        assert stream.get_message(30).text() == "b"
    assert [message.text() for message in done.get_many(10)] == ["a"]


def test_handlers_can_work_in_transactions(mq: Client, request: pytest.FixtureRequest) -> None:
    jobs, done = mq.queue(unique("jobs"), retry=Retry(0)), mq.queue(unique("done"))
    failed: list[str] = []
    asynchronous = "aio" in request.node.callspec.id

    def check(message: Any) -> None:
        if message.text() == "c" and not failed:
            failed.append("c")
            raise ValueError("once")

    async def work_async(message: Any, tx: Any) -> None:
        await tx.put(done.name, message.text())
        check(message)

    def work(message: Any, tx: Any) -> None:
        tx.put(done.name, message.text())
        check(message)

    handler = work_async if asynchronous else work
    mq.on(queue=jobs, guarantee="exactly-once", concurrency=2)(handler)
    jobs.put_many(["a", "b", "c", "d"])
    wait_for(lambda: jobs.describe().acked == 4, "all are done")
    assert sorted(message.text() for message in done.get_many(10)) == ["a", "b", "c", "d"]
    mq.off(handler)


def test_exchanges_route_to_queues_and_topics(mq: Client) -> None:
    orders, audit, topic = mq.queue(unique("orders")), mq.queue(unique("audit")), unique("copy")
    mq.publish(topic, b"")
    exchange = mq.exchange(unique("x"), "topic")
    exchange.bind(orders, "order.*.eu")
    exchange.bind(audit.name, "order.#")
    exchange.bind(f"topic:{topic}", "order.#")
    assert sorted(exchange.route(b"", "order.new.eu")) == sorted(
        [f"queue:{orders.name}", f"queue:{audit.name}", f"topic:{topic}"]
    )
    exchange.publish("one", "order.new.eu")
    exchange.publish("two", "order.new.us")
    assert [message.text() for message in orders.get_many(10)] == ["one"]
    assert [message.text() for message in audit.get_many(10)] == ["one", "two"]
    lost = exchange.publish("three", "nobody", mandatory=False)
    assert (len(lost), lost.unroutable, list(lost.queues), list(lost.places)) == (0, 1, [], [])
    assert repr(lost) == "<Published 0, 1 unroutable: nobody got them>"
    with pytest.raises(errors.NotFound):
        exchange.publish("four", "nobody", mandatory=True)
    exchange.unbind(orders, "order.*.eu")
    exchange.publish("five", "order.new.eu")
    assert orders.get_message_nowait() is None
    assert exchange.name in [name for name, _, _ in mq.routing().exchanges]
    exchange.delete()
    assert exchange.name not in [name for name, _, _ in mq.routing().exchanges]


def test_headers_and_filters_route_by_content(mq: Client) -> None:
    some, large = mq.queue(unique("some")), mq.queue(unique("large"))
    by_headers = mq.exchange(unique("h"), "headers")
    by_headers.bind(some, headers={"kind": "pdf", "urgent": True}, match="any")
    by_filter = mq.exchange(unique("f"), "filter")
    by_filter.bind(large, filter="json.total > 100")
    by_headers.publish("a", headers={"kind": "pdf"})
    by_headers.publish("b", headers={"kind": "png"})
    by_filter.publish({"total": 7})
    by_filter.publish({"total": 700})
    assert [message.text() for message in some.get_many(10)] == ["a"]
    assert [message.json()["total"] for message in large.get_many(10)] == [700]


def test_the_broker_says_what_it_has(mq: Client) -> None:
    assert mq.ping() >= 0
    stats = mq.stats()
    assert stats["messages_published"] >= 0
    assert "queues" in stats


@pytest.mark.parametrize("away", [False, True], ids=["the broker is there", "the broker is away"])
def test_close_waits_for_handlers_that_are_being_opened(away: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is left that fails afterwards, and a broker that is away keeps nobody from closing."""

    async def story() -> None:
        host = await waystation.aio.open(":memory:")
        mq = await waystation.aio.connect(host.url)
        jobs = await mq.queue("jobs")
        if away:
            await host.close()
        before = asyncio.all_tasks()
        mq.on(queue=jobs)(collect([]))
        await mq.close()
        assert not [task for task in asyncio.all_tasks() - before if not task.done()]
        if not away:
            queue = await host.queue("jobs")
            assert (await queue.describe()).consumers == 0
            await host.close()

    asyncio.run(story())
    assert not [record for record in caplog.records if "a handler gets no messages" in record.getMessage()]
