"""Tasks that are cancelled at a bad moment: nothing stays in flight to somebody who has gone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for
from waystation import aio
from waystation.errors import Conflict


def test_a_get_cancelled_as_its_message_arrives_gives_it_back(url: str) -> None:
    """The answer is here, and the task that asked for it has not run yet."""

    async def main() -> None:
        async with aio.connect(url) as mq:
            jobs = await mq.queue(unique("jobs"), hold=3600)
            asking = asyncio.ensure_future(jobs.get_many(1, DEADLINE_S))
            connection = mq._core.main
            answered = connection.answered

            def cancelled_then(id: int, value: Any) -> None:
                waiting_for_it = connection._pending[id].command.__struct_config__.tag == "get"
                answered(id, value)
                if waiting_for_it:
                    asking.cancel()

            connection.answered = cancelled_then  # type: ignore[method-assign]
            await asyncio.sleep(0)  # it is sent
            await jobs.put("x")
            await asyncio.wait([asking])
            assert asking.cancelled()
            connection.answered = answered  # type: ignore[method-assign]
            async with jobs.get(DEADLINE_S) as message:
                assert message.text() == "x"

    asyncio.run(main())


def test_a_close_that_is_cancelled_gives_back_what_was_prefetched(url: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as mq:
            jobs = await mq.queue(unique("jobs"), hold=3600)
            await jobs.put_many(["a", "b"])
            consumer = await jobs.consume()
            message = await consumer.get_message(DEADLINE_S)
            assert message is not None
            await message.ack(wait=False)
            closing = asyncio.ensure_future(consumer.close())
            await asyncio.sleep(0)  # it waits for the ack
            closing.cancel()
            await asyncio.wait([closing])
            assert closing.cancelled()
            async with jobs.get(DEADLINE_S) as message:
                assert message.text() == "b"

    asyncio.run(main())


def test_a_client_whose_close_is_cancelled_is_closed(url: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as other:
            jobs = await other.queue(unique("jobs"), hold=3600)
            await jobs.put("x")
            mq = await aio.connect(url)
            message = await (await mq.queue(jobs.name)).get(DEADLINE_S)
            (await mq.queue(unique("slow"))).put_nowait("y")
            closing = asyncio.ensure_future(mq.close())
            await asyncio.sleep(0)  # it waits for the put
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            assert closing.cancelled()
            async with jobs.get(DEADLINE_S) as again:
                assert again.id == message.id

    asyncio.run(main())


def test_an_embedded_broker_whose_start_is_cancelled_leaves_its_folder(tmp_path: Path) -> None:
    async def main() -> None:
        opening = asyncio.ensure_future(aio.open(tmp_path).__aenter__())
        await asyncio.to_thread(wait_for, (tmp_path / "waystation.lock").exists, "it is on its way")
        opening.cancel()
        await asyncio.wait([opening])
        assert opening.cancelled()
        async with aio.open(tmp_path) as mq:
            await mq.ping()

    asyncio.run(main())


def test_what_was_acked_for_a_cancelled_task_wakes_the_one_that_waits(url: str) -> None:
    """At most once: the ack of the first is still on its way when the second begins to wait."""

    async def main() -> None:
        async with aio.connect(url) as mq:
            jobs = await mq.queue(unique("jobs"))
            async with jobs.consume(guarantee="at-most-once") as consumer:
                await jobs.put("x")
                await asyncio.to_thread(wait_for, lambda: consumer._feed.waiting, "it is here")
                first = asyncio.ensure_future(consumer.get_message(None))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                first.cancel()
                async with asyncio.timeout(DEADLINE_S):
                    message = await consumer.get_message(None)
                assert message is not None
                assert message.text() == "x"

    asyncio.run(main())


def test_a_worker_gets_what_was_acked_for_a_cancelled_task(url: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as mq:
            jobs = await mq.queue(unique("jobs"))
            async with jobs.consume(guarantee="at-most-once") as consumer:
                await jobs.put("a")
                await asyncio.to_thread(wait_for, lambda: consumer._feed.waiting, "it is here")
                first = asyncio.ensure_future(consumer.get_message(None))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                first.cancel()
                seen: list[str] = []
                both = asyncio.Event()

                def work(message: Any) -> None:
                    seen.append(message.text())
                    if len(seen) == 2:
                        both.set()

                consumer.start_consuming(work)
                await jobs.put("b")
                await asyncio.wait_for(both.wait(), DEADLINE_S)
                assert sorted(seen) == ["a", "b"]

    asyncio.run(main())


def test_a_first_request_that_is_cancelled_leaves_others_their_replies(url: str) -> None:
    """The broker opens the inbox for a request that nobody waits for any more."""

    async def main() -> None:
        async with aio.connect(url) as mq:
            name = unique("double")

            @mq.respond(name)
            def double(message: Any) -> Any:
                return 2 * message.json()

            await mq.ready()
            first = asyncio.ensure_future(mq.request(name, 1))
            await asyncio.sleep(0)
            first.cancel()
            replies = await asyncio.gather(*(mq.request(name, number, timeout=DEADLINE_S) for number in range(3)))
            assert [reply.json() for reply in replies] == [0, 2, 4]

    asyncio.run(main())


def test_two_requests_with_one_correlation_id_do_not_take_each_others_replies(url: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as mq:
            name = unique("echo")

            @mq.respond(name)
            def echo(message: Any) -> Any:
                return message.json()

            await mq.ready()
            asking = [mq.request(name, number, timeout=DEADLINE_S, correlation_id="c") for number in range(2)]
            one, other = await asyncio.gather(*asking, return_exceptions=True)
            assert not isinstance(one, BaseException)
            assert one.json() == 0
            assert isinstance(other, Conflict)
            assert (await mq.request(name, 2, timeout=DEADLINE_S, correlation_id="c")).json() == 2

    asyncio.run(main())
