"""What one consumer has in flight on one connection, and its verdicts on the way to the broker.

Verdicts are collected while earlier ones are being made durable and leave together, consecutive tags as one run: the
slower the disk, the larger the frames. When the link is lost the settler is dead: its messages are the broker's again,
a verdict that somebody waits for fails with Conflict, and one that nobody waits for is dropped, since the message is
redelivered anyway. `ack` and `say` may be called on any thread; everything else belongs to the client's loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from waystation.client.links.connection import Waiter, reject, resolve
from waystation.errors import Conflict, NotFound, WaystationError
from waystation.message import Delivered, Run
from waystation.protocol import Settle, SettleAnswer, Touch

if TYPE_CHECKING:
    from waystation.client.links.connection import Connection

Verdict = Literal["ack", "reject", "release", "kill"]
Soon = Callable[[Callable[[], None]], object]
"""Has something called on the client's loop, from whatever thread it is used on."""

MOST_FLYING = 2
"""With one frame being made durable, the next one already waits at the broker; more would only be smaller frames."""


class Say(NamedTuple):
    """A verdict with everything that can be said, on one message or on many."""

    tags: Sequence[int]
    verdict: Verdict
    delay_ms: int | None
    error: str | None
    waiter: Waiter | None
    deliveries: int = 1
    """Which delivery of them is meant: a later one, also to this client, is another's to settle."""


_Waiting = tuple[Sequence[int], Waiter]
"""Tags and who waits for a verdict on them."""


class Settler:
    """A consumer's number on one link."""

    def __init__(
        self,
        connection: Connection,
        consumer: int,
        *,
        soon: Soon,
        queue: str = "",
        group: str = "",
        settles: bool = True,
        transactional: bool = False,
    ) -> None:
        self.connection = connection
        self.consumer = consumer
        self.queue = queue
        """Whose messages these are; empty for topics."""
        self.group = group
        """Of a stream subscription: its offsets may be committed in a transaction."""
        self.transactional = transactional
        """Whether verdicts are for transactions only."""
        self.settles = settles
        """Whether messages wait for a verdict at all."""
        self.ended: WaystationError | None = None
        """Why the broker ended the consumer: then there is nothing to settle."""
        self._epoch = connection.epoch
        self.soon = soon
        self._says: deque[int | Say] = deque()
        self._scheduled = False
        self._flying = 0
        self._idle: list[Waiter] = []

    @property
    def alive(self) -> bool:
        return self._epoch == self.connection.epoch

    def ack(self, delivered: Delivered) -> None:
        """Acks without a word back."""
        tag, deliveries = delivered.tag, delivered.deliveries
        self._says.append(tag if deliveries == 1 else Say((tag,), "ack", None, None, None, deliveries))
        if not self._scheduled:
            self._scheduled = True
            self.soon(self._flush)

    def say(self, say: Say) -> None:
        self._says.append(say)
        if not self._scheduled:
            self._scheduled = True
            self.soon(self._flush)

    def when_idle(self, waiter: Waiter) -> None:
        """Done when every verdict given so far is durable, or lost with its link."""
        self._idle.append(waiter)
        self._flush()

    def touch(self, runs: list[Run], visibility_timeout_ms: int | None, waiter: Waiter, deliveries: int = 0) -> None:
        """More time. `deliveries`: as in `Say`; 0: whichever it is."""
        if not self.alive:
            reject(waiter, _link_lost())
            return
        command = Touch(consumer=self.consumer, runs=runs, hold_ms=visibility_timeout_ms, deliveries=deliveries)
        self.connection.request(command, SettleAnswer, waiter)

    def known(self, tags: Sequence[int], waiter: Waiter) -> Waiter:
        """Takes an answer for certain messages: a Conflict if they are not in flight."""
        return _Flight(None, [(tags, waiter)])

    def _flush(self) -> None:
        # `_scheduled` stays set while frames fly: then those who add need not wake the loop, for the answer will.
        while self._says and self._flying < MOST_FLYING:
            self._scheduled = False
            self._send(_drain(self._says))
        if not self._says and not self._flying:
            self._scheduled = False
            if self._says:  # added just now, by one who still saw it set
                self._scheduled = True
                self.soon(self._flush)
                return
            idle, self._idle = self._idle, []
            for waiter in idle:
                resolve(waiter, None)
        elif self._says:
            self._scheduled = True

    def _send(self, says: list[int | Say]) -> None:
        if not self.alive:
            for say in says:
                if isinstance(say, Say) and say.waiter is not None:
                    reject(say.waiter, _link_lost())
            return
        for settle, waiters in _frames(self.consumer, says):
            self._flying += 1
            self.connection.request(settle, SettleAnswer, _Flight(self, waiters))

    def landed(self) -> None:
        self._flying -= 1
        self._flush()

    def forked(self, error: WaystationError) -> None:
        """In a forked child: what is in flight is the parent's, and so are the verdicts that were not sent yet."""

        def soon(call: Callable[[], None]) -> None:
            raise error

        self.soon = soon
        self._says.clear()
        self._scheduled = False


class _Flight:
    """Waits for one frame of verdicts, for all who wait for one in it."""

    __slots__ = ("_done", "_settler", "_waiters")

    def __init__(self, settler: Settler | None, waiters: list[_Waiting]) -> None:
        self._settler = settler
        self._waiters = waiters
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, answer: SettleAnswer) -> None:
        self._done = True
        for tags, waiter in self._waiters:
            expired = [tag for tag in tags if within(tag, answer.unknown)] if answer.unknown else []
            if expired:
                said = f"messages {expired[:10]} are not in flight any more: their visibility timeout ended"
                reject(waiter, Conflict(f"{said}; they may be redelivered"))
            else:
                resolve(waiter, None)
        if self._settler is not None:
            self._settler.landed()

    def set_exception(self, error: WaystationError) -> None:
        self._done = True
        if self._settler is not None and self._settler.ended is not None and isinstance(error, NotFound):
            error = Conflict(f"{self._settler.ended}; there is nothing to settle any more")
        for _, waiter in self._waiters:
            reject(waiter, error)
        if self._settler is not None:
            self._settler.landed()


def within(tag: int, runs: Sequence[Run]) -> bool:
    return any(first <= tag < first + count for first, count in runs)


def _link_lost() -> Conflict:
    return Conflict("the message was in flight on a connection that was lost since: it is redelivered")


def _drain(says: deque[int | Say]) -> list[int | Say]:
    taken: list[int | Say] = []
    while says:
        taken.append(says.popleft())
    return taken


def _frames(consumer: int, says: list[int | Say]) -> list[tuple[Settle, list[_Waiting]]]:
    """One frame for each kind of verdict and count of deliveries, in the order in which they first came."""
    kinds: dict[Any, tuple[list[int], list[_Waiting]]] = {}
    plain = kinds.setdefault(("ack", None, None, 1), ([], []))
    for say in says:
        if isinstance(say, int):
            plain[0].append(say)
            continue
        tags, waiters = kinds.setdefault((say.verdict, say.delay_ms, say.error, say.deliveries), ([], []))
        tags.extend(say.tags)
        if say.waiter is not None:
            waiters.append((say.tags, say.waiter))
    frames: list[tuple[Settle, list[_Waiting]]] = []
    for (verdict, delay_ms, error, deliveries), (tags, waiters) in kinds.items():
        if tags:
            settle = Settle(
                consumer=consumer,
                runs=runs_of(tags),
                verdict=verdict,
                delay_ms=delay_ms,
                error=error,
                deliveries=deliveries,
            )
            frames.append((settle, waiters))
    return frames


def runs_of(tags: list[int]) -> list[Run]:
    """(first, how many) pairs."""
    if any(later < earlier for earlier, later in pairwise(tags)):
        tags = sorted(tags)
    runs: list[Run] = []
    first = last = None
    for tag in tags:
        if last is not None and first is not None and tag == last + 1:
            last = tag
            continue
        if last is not None and first is not None:
            if tag == last:
                continue
            runs.append((first, last - first + 1))
        first = last = tag
    if first is not None and last is not None:
        runs.append((first, last - first + 1))
    return runs
