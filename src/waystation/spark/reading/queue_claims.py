"""The driver's hold on a queue: the one connection that is the queue's reader, and what it has claimed.

It lives in the long-lived Python process that serves a streaming query's offsets. A lost connection is opened again
within seconds, by whoever asks next or by the thread that looks after it, and the batch that is being worked on is
claimed again; so the queue is without its reader for a moment only.

Invariant: what `ack` was given and returned for is durably deleted. All else can be asked twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from waystation.errors import Conflict, NotFound, WaystationError
from waystation.message import Run
from waystation.observe.events import event_logger
from waystation.protocol import (
    ClaimEntries,
    DescribeQueue,
    OpenReader,
    Ping,
    QueueInfo,
    ReaderAnswer,
    Settle,
    SettleAnswer,
)
from waystation.spark.links.native_link import NativeLink, link_to_any
from waystation.spark.links.retrying import patiently
from waystation.spark.links.servers import Servers
from waystation.spark.reading.queue_offsets import portions

T = TypeVar("T")

log = event_logger("waystation.spark")

READER = 1
"""The reader's number on its connection."""
LOOK_AFTER_S = 2.0
"""How often the connection is looked after: a broker that was restarted has its reader again so soon."""
ALONE_S = 30.0
"""How long to wait until others have left the queue: the driver before this one may not be noticed to be dead yet."""
ACKED_AT_ONCE = 100_000
SEEN_S = 1.0


class QueueClaims:
    """One queue's. Connects with the first question."""

    def __init__(self, servers: Servers, queue: str, retry_s: float) -> None:
        self._servers = servers
        self._queue = queue
        self._retry_s = retry_s
        self._lock = threading.RLock()
        self._link: NativeLink | None = None
        self._number = -1
        self._batch: list[Run] = []
        self._seen: tuple[float, QueueInfo] | None = None
        self.retries = 0
        """Questions that had to be asked again."""
        self._over = threading.Event()
        self._keeper: threading.Thread | None = None

    # -- questions --------------------------------------------------------------------------------------------------

    def number(self) -> int:
        """Which queue it is: one that was deleted and re-created has another number."""
        return self._do(lambda link: self._number)

    def waiting(self) -> int:
        """How many messages could be claimed now."""
        return self._do(lambda link: link.ask(DescribeQueue(queue=self._queue), QueueInfo).ready)

    def seen(self) -> QueueInfo | None:
        """How the queue was within the last second; None if that cannot be found out at once."""
        if self._seen is None or time.monotonic() - self._seen[0] >= SEEN_S:
            try:
                info = self._once(lambda link: link.ask(DescribeQueue(queue=self._queue), QueueInfo))
            except (OSError, WaystationError):
                return None
            self._seen = time.monotonic(), info
        return self._seen[1]

    def claim(self, count: int, max_bytes: int, wait_ms: int) -> list[Run]:
        """The next messages, which are the batch from now on."""
        wanted = ClaimEntries(consumer=READER, count=count, max_bytes=max_bytes, wait_ms=wait_ms)
        found = self._do(lambda link: link.ask(wanted, list[Run]))
        if found:
            self._batch = found
        return found

    def claim_these(self, runs: Sequence[Run]) -> list[Run]:
        """Those of a batch that are there, and are the reader's now."""
        self._batch = list(runs)
        return self._do(self._claim_batch)

    def _claim_batch(self, link: NativeLink) -> list[Run]:
        found: list[Run] = []
        for some in portions(self._batch, ACKED_AT_ONCE):
            found += link.ask(ClaimEntries(consumer=READER, runs=some), list[Run])
        return found

    def ack(self, runs: Sequence[Run]) -> int:
        """These are done: durably deleted when this returns. Says how many were still there."""

        def end(link: NativeLink) -> int:
            count = 0
            for some in portions(runs, ACKED_AT_ONCE):
                have = link.ask(ClaimEntries(consumer=READER, runs=some), list[Run])
                if have:
                    link.ask(Settle(consumer=READER, runs=have), SettleAnswer)
                    count += sum(count for _, count in have)
            return count

        count = self._do(end)
        self._batch = []
        return count

    def close(self) -> None:
        self._over.set()
        with self._lock:
            self._drop()

    # -- the connection -----------------------------------------------------------------------------------------------

    def _do(self, ask: Callable[[NativeLink], T]) -> T:
        return patiently(lambda: self._once(ask), self._servers, self._retry_s, forget=self._count_retry)

    def _count_retry(self) -> None:
        self.retries += 1

    def _once(self, ask: Callable[[NativeLink], T]) -> T:
        """On the link that there is, or a new one; OSError if that fails."""
        with self._lock:
            link = self._link or self._open()
            try:
                return ask(link)
            except NotFound as error:
                # The queue may have been deleted, and its reader with it; then opening a new one says so.
                self._drop()
                raise ConnectionError(f"the queue's reader was closed: {error}") from None
            except OSError:
                self._drop()
                raise

    def _open(self) -> NativeLink:
        link = link_to_any(self._servers, f"spark reads queue {self._queue}")
        try:
            self._number = self._become_reader(link)
            if self._batch:
                self._claim_batch(link)
        except BaseException:
            link.close()
            raise
        self._link = link
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._look_after, name="waystation-queue", daemon=True)
            self._keeper.start()
        return link

    def _become_reader(self, link: NativeLink) -> int:
        until = time.monotonic() + ALONE_S
        said = False
        while True:
            try:
                return link.ask(OpenReader(consumer=READER, queue=self._queue), ReaderAnswer).number
            except Conflict as error:
                if time.monotonic() >= until:
                    raise Conflict(
                        f"{error}: Spark reads a queue alone, so that no other consumer takes what is in a batch; stop"
                        " the others, or let Spark have a queue of its own"
                    ) from None
                if not said:
                    said = True
                    log.warning(
                        "claim.waits",
                        "{error}; waiting up to {wait_s} s until it is alone",
                        error=error,
                        wait_s=ALONE_S,
                    )
            time.sleep(0.2)

    def _look_after(self) -> None:
        while not self._over.wait(LOOK_AFTER_S):
            try:
                self._once(lambda link: link.ask(Ping(), object))
            except (OSError, WaystationError):
                continue  # whoever asks next is told

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
