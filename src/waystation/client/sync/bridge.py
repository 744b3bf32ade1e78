"""The way from any thread to the client's loop, which runs on a thread of its own (or is the broker's).

What many threads post while the loop is busy is taken in one turn. A thread that waits may be interrupted (Ctrl-C):
then what it asked for is cancelled on the loop, so that nothing is left behind.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from waystation.client.consuming.feeding import Feed
from waystation.client.links.forks import no_loop
from waystation.client.sending.budget import ThreadBudget
from waystation.client.sending.producing import Group, Lane, Series, in_groups, partly_stored, size_of
from waystation.errors import Conflict, ConnectionLost, WaystationError
from waystation.message import Message
from waystation.observe.events import event_logger

T = TypeVar("T")

log = event_logger("waystation.client")


class Bridge:
    """Posts to one loop. `budget` is what may be sent and not yet acknowledged."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread_id: int, budget: ThreadBudget) -> None:
        self.loop = loop
        self.budget = budget
        self.over = threading.Event()
        """Set when the client is closed."""
        self._thread_id = thread_id
        self._forked: WaystationError | None = None
        self._ended = False
        self._posted: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._scheduled = False

    def post(self, call: Callable[..., None], *arguments: Any) -> None:
        """Has something called on the loop, after all that was posted before."""
        self._posted.append((call, arguments))
        # First append, then look; `_drain` first clears, then takes: so nothing is left behind.
        if not self._scheduled:
            self._scheduled = True
            self._wake()
        self._check_ended()

    def end(self) -> None:
        """The loop is about to stop. What was posted before is taken; all that comes later is refused, since it might
        be posted to a loop that has made its last turn, and be waited for without end."""
        self._ended = True
        try:
            self.loop.call_soon_threadsafe(self._drain)
        except (RuntimeError, WaystationError):
            pass  # it has stopped already

    def _check_ended(self) -> None:
        # Looked at behind the posting: then either `end` drains it, or we see that it has ended.
        if self._ended:
            raise ConnectionLost("the client is closed")

    def soon(self, call: Callable[[], None]) -> None:
        self.post(call)

    def _wake(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self._drain)
        except (RuntimeError, WaystationError) as error:
            self._posted.clear()
            self._scheduled = False  # else the next one would wait for a turn that does not come
            if isinstance(error, WaystationError):
                raise
            raise ConnectionLost("the client is closed") from None

    def _drain(self) -> None:
        self._scheduled = False
        posted = self._posted
        while posted:
            call, arguments = posted.popleft()
            try:
                call(*arguments)
            except Exception:
                log.exception(
                    "client.failed", "a mistake of the client itself"
                )  # the others must not wait for ever for it

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop and waits for it."""
        try:
            self.check_thread()
        except WaystationError:
            work.close()
            raise
        return self.wait(self.start(work))

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begins to run a coroutine on the loop; those of one thread begin in the order of the calls."""
        try:
            self._check_ended()
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:
            work.close()
            raise ConnectionLost("the client is closed") from None
        except WaystationError:
            work.close()
            raise
        self._check_ended()
        return future

    def wait(self, future: Future[T], timeout: float | None = None) -> T:
        self.check_thread()
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def send(self, lane: Lane, message: Message) -> Any:
        """Sends one message and waits for its answer."""
        return self.wait(self.send_nowait(lane, message))

    def send_nowait(self, lane: Lane, message: Message) -> Future[Any]:
        """Sends one message; blocks only for room."""
        size = size_of(message)
        self.budget.take_waiting(size)
        future: Future[Any] = Future()
        self.post(lane.add, Group([message], size, future, single=True))
        return future

    def send_many(self, lane: Lane, messages: Iterable[Message]) -> list[Any]:
        """Sends many, in groups that fit in a frame each; the answers of the groups. It stops at the first that fails,
        and the error says how many messages are stored."""
        futures: list[Future[Any]] = []
        series: Series | None = None
        portions = in_groups(messages)
        failed: WaystationError | None = None
        while series is None or series.refused is None:
            try:
                portion = next(portions, None)
            except WaystationError as error:  # a value that is no message
                failed = error
                break
            if portion is None:
                break
            if portion.more and series is None:
                series = lane.begin_series()
            self.budget.take_waiting(portion.size)
            futures.append(Future())
            self.post(lane.add, Group(portion.messages, portion.size, futures[-1], single=False, series=series))
        answers: list[Any] = []
        try:
            for future in futures:
                answers.append(self.wait(future))
        except WaystationError as error:
            failed = error
        if failed is not None:
            raise partly_stored(failed, answers) from None
        return answers

    def abandon(self, feed: Feed) -> None:
        """Has a consumer closed that nobody refers to any more."""
        try:
            self.post(feed.abandon)
        except ConnectionLost:
            pass

    def rest(self) -> None:
        """Waits until the client is closed, or until Ctrl-C."""
        self.check_forked()
        try:
            self.over.wait()
        except KeyboardInterrupt:
            pass

    def forked(self, error: WaystationError) -> None:
        """In a forked child: nobody takes what is posted."""
        self._forked = error
        self.loop = no_loop(error)
        self.budget = ThreadBudget(sys.maxsize)
        self._posted = deque()
        self._scheduled = False
        self.over = threading.Event()
        self.over.set()

    def check_forked(self) -> None:
        """Nothing comes to a forked child."""
        if self._forked is not None:
            raise self._forked

    def check_thread(self) -> None:
        """Waiting on the loop's own thread would never end, nor would waiting for it in a forked child."""
        self.check_forked()
        if threading.get_ident() == self._thread_id and not self._ended:  # then another thread may have its number
            raise Conflict(
                "this is the client's own thread (a future's callback runs here): it must not wait; "
                "use another thread, or a form that does not wait"
            )


def ends_worker(error: BaseException) -> bool:
    """Whether a handler was stopped from outside, which threads never are: `sys.exit()` in a handler is its failure,
    and else would end nothing but its thread, while messages went on coming."""
    return False


def gathered(futures: list[Future[Any]]) -> list[Any]:
    """All results; the first error."""
    return [future.result() for future in futures]


_LAST_TURNS = 5
"""In which what was posted to a client that is closed fails: it is drained, sent, refused, and its task ends."""


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
        for _ in range(_LAST_TURNS):
            await asyncio.sleep(0)
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
