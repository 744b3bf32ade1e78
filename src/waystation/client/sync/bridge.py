"""The way from any thread to the client's loop, which runs on a thread of its own (or is the broker's).

What many threads post while the loop is busy is taken in one turn. A thread that waits may be interrupted (Ctrl-C):
then what it asked for is cancelled on the loop, so that nothing is left behind.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from waystation.errors import Conflict, ConnectionLost

T = TypeVar("T")

log = logging.getLogger("waystation.client")


class Bridge:
    """Posts to one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        self.loop = loop
        self._thread_id = thread_id
        self._posted: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._scheduled = False

    def post(self, call: Callable[..., None], *arguments: Any) -> None:
        """Has something called on the loop, after all that was posted before."""
        self._posted.append((call, arguments))
        # First append, then look; `_drain` first clears, then takes: so nothing is left behind.
        if not self._scheduled:
            self._scheduled = True
            self._wake()

    def soon(self, call: Callable[[], None]) -> None:
        self.post(call)

    def _wake(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self._drain)
        except RuntimeError:
            self._posted.clear()
            raise ConnectionLost("the client is closed") from None

    def _drain(self) -> None:
        self._scheduled = False
        posted = self._posted
        while posted:
            call, arguments = posted.popleft()
            try:
                call(*arguments)
            except Exception:
                log.exception("a mistake of the client itself")  # the others must not wait for ever for it

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop and waits for it."""
        try:
            self.check_thread()
        except Conflict:
            work.close()
            raise
        return self.wait(self.start(work))

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begins to run a coroutine on the loop; those of one thread begin in the order of the calls."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:
            work.close()
            raise ConnectionLost("the client is closed") from None

    def wait(self, future: Future[T], timeout: float | None = None) -> T:
        self.check_thread()
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def check_thread(self) -> None:
        """Waiting on the loop's own thread would wait for ever."""
        if threading.get_ident() == self._thread_id:
            raise Conflict(
                "this is the client's own thread (a future's callback runs here): it must not wait; "
                "use another thread, or a form that does not wait"
            )


class LoopThread:
    """A thread that runs an event loop for one client."""

    def __init__(self, make_loop: Callable[[], asyncio.AbstractEventLoop], name: str) -> None:
        self.loop = make_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def ident(self) -> int:
        return self._thread.ident or 0

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self._finish())
            self.loop.close()

    async def _finish(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self.loop.stop)
        except RuntimeError:
            return
        if threading.get_ident() != self.ident:
            self._thread.join()
