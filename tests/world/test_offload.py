"""Blocking work on threads: what was handed in is done, and whoever waits for it is told on the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from waystation.world.offload import ThreadOffload


@pytest.fixture
def offload() -> Iterator[ThreadOffload]:
    made = ThreadOffload(threads=2)
    yield made
    made.close()


def test_it_returns_what_the_work_returns_from_another_thread(offload: ThreadOffload) -> None:
    def work(number: int) -> tuple[int, int]:
        return number + 1, threading.get_ident()

    async def main() -> tuple[int, int]:
        return await offload(work, 41)

    result, thread = asyncio.run(main())
    assert result == 42
    assert thread != threading.get_ident()


def test_it_raises_what_the_work_raises(offload: ThreadOffload) -> None:
    def fail(error: BaseException) -> None:
        raise error

    async def main() -> None:
        with pytest.raises(OSError, match="no disk"):
            await offload(fail, OSError("no disk"))
        with pytest.raises(RuntimeError, match="StopIteration"):
            await offload(fail, StopIteration())

    asyncio.run(main())


def test_as_many_run_at_once_as_there_are_threads_and_the_others_wait(offload: ThreadOffload) -> None:
    met = threading.Barrier(2)  # passed only by two at once
    names: set[str] = set()

    def meet() -> None:
        met.wait(timeout=30)
        names.add(threading.current_thread().name)

    async def main() -> None:
        await asyncio.gather(*(offload(meet) for _ in range(6)))

    asyncio.run(main())
    assert len(names) == 2


def test_one_thread_is_enough_for_one_who_waits_each_time(offload: ThreadOffload) -> None:
    async def main() -> set[int]:
        return {await offload(threading.get_ident) for _ in range(20)}

    assert len(asyncio.run(main())) == 1


def test_work_is_done_though_nobody_waits_for_it_any_more(offload: ThreadOffload) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(timeout=30)
        done.set()

    async def main() -> None:
        task = asyncio.ensure_future(offload(work))
        assert await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        assert await offload(threading.get_ident)  # the threads are as usable as before

    asyncio.run(main())
    offload.close()
    assert done.is_set()


def test_close_waits_for_what_is_running() -> None:
    offload = ThreadOffload()
    begun, done = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        threading.Event().wait(0.05)  # it takes a moment: close() has to wait
        done.set()

    async def main() -> None:
        task = asyncio.ensure_future(offload(work))
        assert await asyncio.to_thread(begun.wait, 30)
        offload.close()
        assert done.is_set()
        await task

    asyncio.run(main())
