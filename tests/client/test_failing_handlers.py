"""What functions that are called for messages can do wrong: none of it stops the others, or keeps a message."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.names import unique
from tests.support.waiting import wait_for
from waystation import Retry, errors

Client = Any


@pytest.fixture
def asynchronous(request: pytest.FixtureRequest) -> bool:
    return "aio" in request.node.callspec.id


def test_handlers_of_one_name_do_not_fence_each_other_off(mq: Client, asynchronous: bool) -> None:
    """Each with a queue of its own, as a loop registers them."""
    queues = [mq.queue(unique("jobs")) for _ in range(2)]
    done, deliveries = mq.queue(unique("done")), list[int]()

    def registered() -> Callable[..., Any]:
        async def work_async(message: Any, tx: Any) -> None:
            deliveries.append(message.deliveries)
            await tx.put(done.name, message.text())

        def work(message: Any, tx: Any) -> None:
            deliveries.append(message.deliveries)
            tx.put(done.name, message.text())

        return work_async if asynchronous else work

    handlers = [mq.on(queue=queue, guarantee="exactly-once")(registered()) for queue in queues]
    for queue in queues:
        queue.put_many(str(number) for number in range(20))
    wait_for(lambda: all(queue.describe().acked == 20 for queue in queues), "all are done")
    assert deliveries == [1] * 40
    for handler in handlers:
        mq.off(handler)


def test_a_reply_that_cannot_be_sent_fails_the_request(mq: Client) -> None:
    name, calls = unique("odd"), list[str]()

    def respond(message: Any) -> Any:
        calls.append(message.text())
        return {1, 2}  # JSON has no sets

    mq.respond(name)(respond)
    with pytest.raises(errors.RequestFailed, match="set"):
        mq.request(name, "x", timeout=30)
    assert calls == ["x"]
    mq.off(respond)


def test_a_handler_whose_inner_task_was_cancelled_has_failed(mq: Client, asynchronous: bool) -> None:
    jobs = mq.queue(unique("jobs"), retry=Retry(0))
    seen: list[tuple[str, int]] = []

    def work(message: Any) -> None:
        seen.append((message.text(), message.deliveries))
        if message.text() == "a" and message.deliveries == 1:
            if asynchronous:
                raise asyncio.CancelledError
            sys.exit("stop")

    mq.on(queue=jobs)(work)
    jobs.put("a")
    jobs.put("b")
    wait_for(lambda: jobs.describe().acked == 2, "it goes on")
    assert sorted(seen) == [("a", 1), ("a", 2), ("b", 1)]
    mq.off(work)


def test_an_error_that_is_no_utf_8_rejects_all_the_same(mq: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "waystation")  # what is logged cannot be handed from one test process to another
    dead = mq.queue(unique("dead"))
    jobs = mq.queue(unique("jobs"), max_deliveries=1, dead_letter=dead.name, hold=3600)

    def work(message: Any) -> None:
        raise OSError("no such file: caf\udce9.txt")

    mq.on(queue=jobs)(work)
    jobs.put("x")
    assert dead.get(30).deaths[0]["error"] == r"OSError: no such file: caf\udce9.txt"
    mq.off(work)
    jobs.put("y")
    jobs.get(30).reject("caf\udce9.txt")
    assert dead.get(30).deaths[0]["error"] == r"caf\udce9.txt"
