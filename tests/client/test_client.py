"""The client itself: threads, futures, back-pressure, pooling, waiting callers who give up, opening and closing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

import pytest

import waystation
from tests.cli.kit import environment
from tests.client.conftest import Connect
from tests.client.kit import Proxy
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for
from waystation import aio, errors


def test_many_threads_share_a_client(mq: Any) -> None:
    jobs = mq.queue(unique("threads"))
    failures: list[BaseException] = []
    seen: list[str] = []

    def produce(worker: int) -> None:
        try:
            for number in range(50):
                jobs.put(f"{worker}-{number}")
        except BaseException as error:
            failures.append(error)

    def consume() -> None:
        try:
            while len(seen) < 400:
                for message in jobs.get_many(20, timeout=0.1):
                    seen.append(message.text())
                    message.ack()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=produce, args=(worker,)) for worker in range(8)]
    threads += [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(seen) == sorted(f"{worker}-{number}" for worker in range(8) for number in range(50))
    for worker in range(8):
        mine = [text for text in seen if text.startswith(f"{worker}-")]
        assert len(mine) == 50


def test_order_of_one_sender_is_kept(mq: Any) -> None:
    jobs = mq.queue(unique("order"))
    pending = [jobs.put_nowait(str(number)) for number in range(3000)]
    assert [one.result() for one in pending] == [f"{jobs.name}#{number}" for number in range(3000)]
    texts: list[str] = []
    while messages := jobs.get_many(1000):
        texts += [message.text() for message in messages]
    assert texts == [str(number) for number in range(3000)]


def test_one_bad_message_spoils_no_other_that_travels_with_it(mq: Any) -> None:
    jobs = mq.queue(unique("together"), max_length=3)
    pending = [jobs.put_nowait(str(number)) for number in range(6)]
    outcomes: list[bool] = []
    for one in pending:
        try:
            one.result()
            outcomes.append(True)
        except errors.Full:
            outcomes.append(False)
    assert outcomes.count(True) == 3
    assert jobs.describe().ready == 3


def test_senders_feel_what_is_not_acknowledged(connect: Connect) -> None:
    mq = connect(max_in_flight=20_000)
    jobs = mq.queue(unique("pressure"))
    assert len(jobs.put_many(b"x" * 1000 for _ in range(500))) == 500
    jobs.put(b"x" * 100_000)  # larger than everything: it passes alone
    pending = []
    full = 0
    for _ in range(200):
        try:
            pending.append(jobs.put_nowait(b"x" * 1000))
        except errors.Full:  # asyncio cannot block; threads do
            full += 1
            pending[-1].result()
    for one in pending:
        one.result()
    assert jobs.describe().ready == 501 + 200 - full


def test_several_connections_are_one_client(url: str) -> None:
    with waystation.connect(url, connections=4) as mq:
        queues = [mq.queue(unique("pool")) for _ in range(8)]
        for queue in queues:
            queue.put_many(str(number) for number in range(100))
        for queue in queues:
            messages = queue.get_many(100, timeout=30)
            assert [message.text() for message in messages] == [str(number) for number in range(100)]
            with mq.transaction(unique("t")) as tx:
                tx.ack(*messages)
                tx.put(queues[0], "done")
        assert queues[0].describe().ready == 8
    with pytest.raises(errors.Invalid, match="connections"):
        waystation.connect(url, connections=0)


def test_messages_for_a_caller_who_gave_up_go_back(url: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as mq:
            jobs = await mq.queue(unique("orphans"))
            waiting = asyncio.create_task(jobs.get_many(1, 30))
            await asyncio.sleep(0.05)  # it is on its way to the broker
            waiting.cancel()
            await jobs.put("x")
            async with jobs.get(timeout=30) as message:
                assert message.text() == "x"

    asyncio.run(main())


def test_a_cancelled_task_gives_its_message_back(url: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as mq:
            jobs = await mq.queue(unique("cancelled"))
            await jobs.put("x")
            started = asyncio.Event()

            async def work() -> None:
                async with jobs.get(timeout=30):
                    started.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await started.wait()
            task.cancel()
            async with jobs.get(timeout=30) as message:
                assert message.redelivered

    asyncio.run(main())


def test_a_subscription_that_is_forgotten_keeps_nothing(mq: Any) -> None:
    jobs = mq.queue(unique("forgotten"))
    jobs.put_many(["a", "b"])
    consumer = jobs.consume()
    assert consumer.get_message(30).text() == "a"
    del consumer
    wait_for(lambda: jobs.describe().consumers == 0 and jobs.describe().ready == 2, "both are there for others")


def test_messages_that_wait_here_are_not_taken_away(mq: Any) -> None:
    jobs = mq.queue(unique("renewed"), hold=0.4)
    jobs.put_many(["a", "b"])
    with jobs.consume() as consumer, jobs.consume() as rival:
        wait_for(lambda: jobs.describe().held == 2, "they are here")
        assert rival.get_message(timeout=1.2) is None
        first = consumer.get_message(30)
        assert (first.text(), first.deliveries) == ("a", 1)
        first.ack()


def test_a_future_may_be_given_up(url: str) -> None:
    with waystation.connect(url) as mq:
        jobs = mq.queue(unique("future"))
        future = jobs.put_nowait("x")
        assert isinstance(future, Future)
        called: list[str] = []
        future.add_done_callback(lambda done: called.append(done.result()))
        future.result(DEADLINE_S)
        wait_for(lambda: called == [f"{jobs.name}#0"], "the callback was called")

        errors_seen: list[BaseException] = []

        def block(done: Future[str]) -> None:
            try:
                jobs.put("never from here")
            except errors.Conflict as error:
                errors_seen.append(error)

        jobs.put_nowait("y").add_done_callback(block)
        wait_for(lambda: errors_seen, "the client's own thread is kept from waiting for itself")
        with pytest.raises(FutureTimeout):
            mq._bridge.wait(Future(), 0.01)


def test_closing_waits_for_handlers_and_keeps_their_verdicts(connect: Connect) -> None:
    mq, other = connect(), connect()
    jobs = mq.queue(unique("closing"))
    seen: list[str] = []
    mq.on(queue=jobs, concurrency=2)(lambda message: seen.append(message.text()))
    jobs.put_many(str(number) for number in range(100))
    wait_for(lambda: len(seen) >= 10, "handlers work")
    counted = other.queue(jobs.name)
    for handler in mq._handlers.all():
        mq.off(handler)
    info = counted.describe()
    assert (info.acked, info.held, info.ready) == (len(seen), 0, 100 - len(seen))


def test_run_waits_until_the_client_is_closed(connect: Connect) -> None:
    mq, seen = connect(), list[str]()
    jobs = mq.queue(unique("running"))
    mq.on(queue=jobs)(lambda message: seen.append(message.text()))
    running = threading.Thread(target=mq.run)
    running.start()
    jobs.put("a")
    wait_for(lambda: seen == ["a"], "handlers work meanwhile")
    assert running.is_alive()
    assert not mq.closed
    mq.close()
    running.join(DEADLINE_S)
    assert not running.is_alive()
    assert mq.closed


def test_off_with_a_timeout_leaves_a_handler_alone_that_needs_longer(connect: Connect) -> None:
    mq, other = connect(), connect()
    jobs, begun, go_on = mq.queue(unique("stuck")), threading.Event(), threading.Event()

    def blocks(message: object) -> None:
        begun.set()
        go_on.wait(DEADLINE_S)

    async def waits(message: object) -> None:
        await asyncio.to_thread(blocks, message)

    handler = waits if isinstance(mq, Proxy) else blocks
    mq.on(queue=jobs)(handler)
    jobs.put("a")
    assert begun.wait(DEADLINE_S)
    mq.off(handler, 0.01)
    with other.queue(jobs.name).get(DEADLINE_S) as message:
        assert message.text() == "a"
    go_on.set()


def test_a_closed_client_says_so(connect: Connect) -> None:
    mq = connect()
    jobs = mq.queue(unique("closed"))
    mq.close()
    mq.close()
    for call in (lambda: jobs.put("x"), lambda: jobs.put("y"), lambda: jobs.get_many(1), jobs.consume, mq.ping):
        with pytest.raises(errors.Unavailable, match="closed"):
            call()


def test_loops_end_when_the_client_is_closed(url: str) -> None:
    mq = waystation.connect(url)
    consumer = mq.queue(unique("loop")).consume()
    ended = threading.Event()

    def loop() -> None:
        for _ in consumer:
            pass
        ended.set()

    thread = threading.Thread(target=loop)
    thread.start()
    mq.close()
    thread.join(DEADLINE_S)
    assert ended.is_set()
    assert consumer.get_message(30) is None


def test_nothing_is_left_of_a_closed_client(url: str) -> None:
    before = threading.active_count()
    with waystation.connect(url) as mq:
        mq.on(unique("t"), concurrency=3)(lambda message: None)
        assert threading.active_count() == before + 4
    assert threading.active_count() == before
    with pytest.raises(errors.ConnectionLost):
        waystation.connect("waystation://127.0.0.1:1")
    assert threading.active_count() == before


FORGETFUL = """
import sys, waystation
mq = waystation.connect(sys.argv[1])
jobs = mq.queue(sys.argv[2])
for message in jobs.get_many(10, timeout=30):
    message.ack(wait=False)
jobs.put_nowait("sent in the last moment")
"""


def test_a_program_that_forgets_to_close_sends_what_it_has(url: str) -> None:
    with waystation.connect(url) as mq:
        jobs = mq.queue(unique("forgetful"))
        jobs.put("x")
        done = subprocess.run(
            [sys.executable, "-c", FORGETFUL, url, jobs.name],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        info = jobs.describe()
        assert (info.acked, info.ready, info.held) == (1, 1, 0)


def test_data_of_an_embedded_broker_is_kept(tmp_path: Path) -> None:
    with waystation.open(tmp_path) as mq:
        mq.queue("jobs").put("kept", delay=0.01)
        assert mq.url == f"waystation://{mq.kafka}"
    with waystation.open(tmp_path, kafka="off") as mq:
        assert (mq.kafka, mq.url, mq.http) == ("", "", "")
        with mq.queue("jobs").get(timeout=30) as message:
            assert message.text() == "kept"


def test_an_embedded_broker_serves_others_too(tmp_path: Path) -> None:
    with waystation.open(tmp_path) as mq, waystation.connect(mq.url, name="guest") as guest:
        guest.queue("jobs").put("from outside")
        with mq.queue("jobs").get(timeout=30) as message:
            assert message.text() == "from outside"
        assert "closed" not in repr(mq)
    assert "closed" in repr(mq)
    assert "closed" in repr(guest)


def test_an_asyncio_program_runs_a_broker_of_its_own() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        heard = asyncio.Event()
        async with aio.open(":memory:") as mq:
            folder.append(mq.data)

            @mq.on("greetings.*", concurrency=2)
            async def hear(message: aio.Message) -> None:
                seen.append(message.text())
                heard.set()

            await mq.publish("greetings.en", "hello")
            jobs = await mq.queue("jobs")
            await asyncio.gather(*(jobs.put(str(number)) for number in range(20)))
            async for message in jobs.consume():
                if message.text() == "19":
                    await message.ack()
                    break
            await heard.wait()
            with pytest.raises(errors.NotFound):
                await mq.queue("nowhere", passive=True)
        return seen

    folder: list[str] = []
    assert asyncio.run(main()) == ["hello"]
    assert not Path(folder[0]).exists()


def test_a_handler_that_is_refused_is_told_at_the_next_call() -> None:
    async def main() -> None:
        async with aio.open(":memory:", kafka="off") as mq:
            mq.on(queue="nowhere")(print)
            with pytest.raises(errors.NotFound):
                await mq.ready()

    asyncio.run(main())


def test_the_example_of_the_front_page_runs(url: str) -> None:
    import waystation as ws

    worked: list[Any] = []
    audited: list[Any] = []
    work = worked.append
    with ws.connect(url) as mq:

        @mq.respond("sum")
        def total_of(message: ws.Message) -> int:
            return sum(message.json())

        @mq.on("orders.#", group="audit", concurrency=4)
        def audit(message: ws.Message) -> None:
            audited.append(message.json())

        mq.publish("orders.eu", {"id": 7}, key="u1", headers={"src": "web"})
        mq.queue("jobs.dead")
        jobs = mq.queue("jobs", max_deliveries=5, dead_letter="jobs.dead")
        jobs.put({"resize": "a.png"}, priority=9, delay=0.05, ttl=3600, id="resize-a")
        with jobs.get(timeout=30) as message:
            work(message.json())
        assert worked == [{"resize": "a.png"}]

        for message in mq.subscribe("orders.*", group="billing", start="earliest"):
            assert message.json() == {"id": 7}
            break

        total = mq.request("sum", [1, 2, 3], timeout=30).json()
        assert total == 6
        with mq.transaction("t-1") as tx:
            tx.publish("orders.eu", {"id": 8})
            tx.put(jobs, {"resize": "b.png"})
        with jobs.get(timeout=30) as message:
            assert message.json() == {"resize": "b.png"}
        wait_for(lambda: [order["id"] for order in audited] == [7, 8], "the auditor saw both")


def test_what_is_asked_in_the_moment_of_close_is_refused(url: str) -> None:
    """The loop takes it, and has made its last turn."""

    class Deaf:
        def call_soon_threadsafe(self, *call: Any) -> None:
            pass

    mq = waystation.connect(url)
    jobs = mq.queue(unique("late"))
    mq.close()
    mq._bridge.loop = Deaf()  # type: ignore[assignment]
    refused: list[errors.WaystationError] = []

    def ask(call: Callable[[], Any]) -> None:
        try:
            call()
        except errors.ConnectionLost as error:
            refused.append(error)

    for call in (lambda: jobs.put("x"), lambda: jobs.put_nowait("x").result(), mq.ping, lambda: jobs.get(timeout=1)):
        asking = threading.Thread(target=ask, args=(call,), daemon=True)
        asking.start()
        asking.join(DEADLINE_S)
        assert not asking.is_alive()
    assert [str(error) for error in refused] == ["the client is closed"] * 4
