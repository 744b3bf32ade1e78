"""One connection that lasts: requests and their answers, and the way back after the link was lost.

Invariants: every request is answered exactly once, by the broker, by its deadline or by the loss of the link. What was
not sent yet, and what may be sent twice (`resend`), outlives a lost link; everything else fails with ConnectionLost,
since nobody knows whether it was done. Consumers are opened again before anything is resent. Only the thread of the
client's loop may call this.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from waystation.client.links.failures import failure
from waystation.client.links.forks import no_loop
from waystation.client.links.link import Dial, Link
from waystation.client.links.login import LoginSource
from waystation.errors import ConnectionLost, Invalid, NotAuthenticated, RequestTimeout, WaystationError
from waystation.message import Delivered
from waystation.observe.events import event_logger
from waystation.protocol import Authenticate, Command, Hello, HelloAnswer, Ping

T = TypeVar("T")

log = event_logger("waystation.client")

TICK_S = 0.5
SILENCE_S = 20.0
"""A broker that says nothing for so long is asked; after twice as long it counts as lost."""
BACKOFF_FIRST_S = 0.05
BACKOFF_MOST_S = 5.0
SHORT_S = 1.0
SHORT_PAUSE_S = 0.1
"""After a link that did not even last a second there is a pause before the next: else a broker that hangs up on
everybody would be called without end."""
NEVER = float("inf")


class Waiter(Protocol):
    """Who waits for an answer: an asyncio future, a thread's future, or anything that takes it as they do."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, error: WaystationError, /) -> None: ...


class Ignored:
    """A waiter for what nobody waits for."""

    def done(self) -> bool:
        return False

    def set_result(self, answer: Any) -> None:
        pass

    def set_exception(self, error: WaystationError) -> None:
        pass


class Consumer(Protocol):
    """Who messages are pushed to."""

    def delivered(self, messages: list[Delivered]) -> None: ...

    def ended(self, error: WaystationError) -> None: ...

    def cut(self) -> None:
        """The link is lost, and with it all that was in flight."""

    def resume(self) -> None:
        """There is a link again."""

    def forked(self, error: WaystationError) -> None:
        """In a forked child: nothing will come."""


class _Pending:
    __slots__ = ("command", "deadline", "kind", "orphan", "resend", "sent", "waiter")

    def __init__(
        self,
        command: Command,
        kind: Any,
        waiter: Waiter,
        deadline: float,
        resend: bool,
        orphan: Callable[[Any], None] | None,
    ) -> None:
        self.command = command
        self.kind = kind
        self.waiter = waiter
        self.deadline = deadline
        self.resend = resend
        self.orphan = orphan
        self.sent = False


class Connection:
    """A link, and the next one after it."""

    def __init__(
        self, dials: Sequence[Dial], *, client: str, timeout_s: float, credentials: LoginSource | None = None
    ) -> None:
        self.epoch = 0
        """Grows with every link that is lost: what was in flight before is not any more."""
        self._dials = dials
        self._at = 0  # the one that worked last
        self._client = client
        self._credentials = credentials
        self.timeout_s = timeout_s
        self.loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._greeting: asyncio.Future[HelloAnswer] | None = None
        self._up = False
        self._restoring = False
        self.restorers: list[Callable[[], Awaitable[None]]] = []
        """What has to be there again before consumers are."""
        self._closed = False
        self._pending: dict[int, _Pending] = {}
        self._consumers: dict[int, Consumer] = {}
        self.series = itertools.count(1)
        """Numbers of what is sent in several requests that belong together."""
        self._number = 0
        self._last_id = 0
        self._heard = 0.0
        self._ticked = 0.0
        self._since = 0.0
        self._cut: WaystationError | None = None  # why the last link ended; None while it lives
        self._said = ""  # the broker's last words about the connection as a whole
        self._why: WaystationError = ConnectionLost("not connected yet")
        self._ticker: asyncio.TimerHandle | None = None
        self._reconnecting: asyncio.Task[None] | None = None

    # -- life ------------------------------------------------------------------------------------------------------

    async def open(self, wait_s: float = 0.0) -> HelloAnswer:
        """The first link. If nobody listens there yet it keeps trying for `wait_s`, then raises ConnectionLost."""
        until = self.loop.time() + wait_s
        delay = BACKOFF_FIRST_S
        while True:
            try:
                answer = await self._connect()
                self._up = True
                break
            except ConnectionLost:
                if self.loop.time() + delay > until:
                    raise
            await asyncio.sleep(delay)
            delay = min(delay * 2, 1.0)
        self._ticked = self.loop.time()
        self._ticker = self.loop.call_later(TICK_S, self._tick)
        return answer

    @property
    def up(self) -> bool:
        return self._up

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def busy(self) -> bool:
        """Whether senders who can should wait."""
        return self._link is None or self._link.busy

    def close(self, why: str = "the client is closed") -> None:
        """Every request that is not answered fails."""
        if self._closed:
            return
        self._closed = True
        self._up = False
        self._why = ConnectionLost(why)
        if self._ticker is not None:
            self._ticker.cancel()
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        link, self._link = self._link, None
        if link is not None:
            link.close()
        for consumer in list(self._consumers.values()):
            consumer.ended(ConnectionLost(why))
        self._consumers.clear()
        self._fail_all(lambda _: True, why)

    def forked(self, error: WaystationError) -> None:
        """In a forked child: its loop does not run here, so nothing is called on it."""
        self._closed = True
        self._up = False
        self._why = error
        self.loop = no_loop(error)
        if self._link is not None:
            self._link.forked()
        for consumer in list(self._consumers.values()):
            consumer.forked(error)

    # -- asking ----------------------------------------------------------------------------------------------------

    def request(
        self,
        command: Command,
        kind: Any,
        waiter: Waiter,
        *,
        timeout_s: float | None = None,
        resend: bool = False,
        first: bool = False,
        orphan: Callable[[Any], None] | None = None,
    ) -> None:
        """Sends, now or when there is a link again; `waiter` gets the answer as `kind`.

        `orphan` takes an answer whose waiter was cancelled: messages in it must go back. `first`: it is part of coming
        back after a lost link, and goes before everything that waits.
        """
        if self._closed:
            reject(waiter, self._why)
            return
        self._last_id += 1
        command.id = self._last_id
        deadline = self.loop.time() + (self.timeout_s if timeout_s is None else timeout_s)
        pending = _Pending(command, kind, waiter, deadline, resend, orphan)
        self._pending[command.id] = pending
        if self._up or first:
            self._send(pending)

    async def ask(
        self,
        command: Command,
        kind: type[T],
        *,
        timeout_s: float | None = None,
        resend: bool = False,
        first: bool = False,
        orphan: Callable[[T], None] | None = None,
    ) -> T:
        """The same for a coroutine."""
        waiter: asyncio.Future[T] = self.loop.create_future()
        self.request(command, kind, waiter, timeout_s=timeout_s, resend=resend, first=first, orphan=orphan)
        try:
            return await waiter
        except asyncio.CancelledError:
            # The answer may have come in the very turn in which its task was cancelled.
            if orphan is not None and not waiter.cancelled() and waiter.exception() is None:
                orphan(waiter.result())
            raise

    def tell(self, command: Command) -> None:
        """Sends what has no answer; without a link it is forgotten."""
        if self._up and self._link is not None:
            self._link.send(command)

    def add_consumer(self, consumer: Consumer) -> int:
        """Its number on this connection."""
        self._number += 1
        self._consumers[self._number] = consumer
        return self._number

    def consumers(self) -> list[Consumer]:
        return list(self._consumers.values())

    def drop_consumer(self, number: int) -> None:
        self._consumers.pop(number, None)

    def _send(self, pending: _Pending) -> None:
        if self._link is None:
            return
        pending.sent = True
        try:
            self._link.send(pending.command)
        except WaystationError as error:
            self._unsendable(pending, error)
        except (TypeError, ValueError, OverflowError) as error:
            self._unsendable(pending, Invalid(f"{pending.command.__struct_config__.tag} cannot be sent: {error}"))

    def _unsendable(self, pending: _Pending, error: WaystationError) -> None:
        self._pending.pop(pending.command.id, None)
        reject(pending.waiter, error)

    # -- what the link says ----------------------------------------------------------------------------------------

    def answered(self, id: int, value: Any) -> None:
        self._heard = self.loop.time()
        pending = self._pending.pop(id, None)
        if pending is None or self._link is None:
            return
        try:
            answer = self._link.read(value, pending.kind)
        except msgspec.ValidationError as error:
            reject(pending.waiter, WaystationError(f"an answer that this client does not understand: {error}"))
            return
        if not resolve(pending.waiter, answer) and pending.orphan is not None:
            pending.orphan(answer)

    def failed(self, id: int, error: str, text: str) -> None:
        self._heard = self.loop.time()
        if id == 0:
            self._said = text
            log.warning("broker.notice", "the broker says: {notice}", notice=text)
            return
        pending = self._pending.pop(id, None)
        if pending is not None:
            reject(pending.waiter, failure(error, text))

    def delivered(self, consumer: int, messages: list[Delivered]) -> None:
        self._heard = self.loop.time()
        taker = self._consumers.get(consumer)
        if taker is not None:
            taker.delivered(messages)

    def ceased(self, consumer: int, error: str, text: str) -> None:
        taker = self._consumers.pop(consumer, None)
        if taker is not None:
            taker.ended(failure(error, text))

    def lost(self, error: WaystationError) -> None:
        if self._said:
            error, self._said = ConnectionLost(f"{error}: {self._said}"), ""
        self._link = None
        self._cut = error
        if self._greeting is not None:
            reject(self._greeting, error)
            return
        if self._closed or not (self._up or self._restoring):
            return
        self._up = False
        self._why = error
        self.epoch += 1
        log.warning("connection.lost", "{error}; reconnecting", error=error)
        for consumer in list(self._consumers.values()):
            consumer.cut()
        self._fail_all(
            lambda pending: pending.sent and not pending.resend,
            f"{error}, before it answered: the request may have been carried out, or not",
        )
        if not self._restoring:
            self._reconnecting = self.loop.create_task(self._reconnect())

    # -- links come and go -----------------------------------------------------------------------------------------

    async def _connect(self) -> HelloAnswer:
        """A link to the first that answers, beginning with the one that did last."""
        errors: list[WaystationError] = []
        for i in range(len(self._dials)):
            at = (self._at + i) % len(self._dials)
            try:
                answer = await self._greet(self._dials[at])
            except WaystationError as error:
                errors.append(error)
            else:
                self._at = at
                return answer
        if len(errors) == 1 or isinstance(errors[0], NotAuthenticated):
            raise errors[0]
        raise ConnectionLost(f"none of {len(errors)} addresses answers: {'; '.join(map(str, errors))}")

    async def _greet(self, dial: Dial) -> HelloAnswer:
        timeout_s = self.timeout_s / len(self._dials)
        peer = ""
        hello = Hello(client=self._client)
        login = None if self._credentials is None else self._credentials.exchange()
        if self._credentials is not None and login is not None:
            hello.mechanism, hello.data = self._credentials.mechanism, login.first()
        self._cut = None
        try:
            self._link = link = await dial(self)
            peer = link.peer
            async with asyncio.timeout(timeout_s):
                answer = await self._say(link, hello)
                while answer.challenge is not None and login is not None:
                    answer = await self._say(link, Authenticate(data=login.answer(answer.challenge)))
            if login is not None:
                login.finish(answer.data)
            self._check_link()
        except BaseException as error:
            if self._link is not None:
                self._link.close()
                self._link = None
            if isinstance(error, TimeoutError):
                raise ConnectionLost(f"the broker at {peer} did not greet within {timeout_s:g} s") from None
            raise
        finally:
            self._greeting = None
        self._heard = self._since = self.loop.time()
        return answer

    async def _say(self, link: Link, command: Hello | Authenticate) -> HelloAnswer:
        """One step of the greeting."""
        self._check_link()
        self._last_id += 1
        command.id = self._last_id
        greeting: asyncio.Future[HelloAnswer] = self.loop.create_future()
        self._greeting = greeting
        self._pending[command.id] = _Pending(command, HelloAnswer, greeting, NEVER, False, None)
        link.send(command)
        try:
            return await greeting
        finally:
            self._pending.pop(command.id, None)

    def _check_link(self) -> None:
        """A link may end while nothing waits for it: before the greeting, between two steps of it, right after it."""
        if self._cut is not None:
            raise self._cut

    async def _reconnect(self) -> None:
        """First what lives with a connection, then its consumers, then what was asked meanwhile, in its order."""
        delay = BACKOFF_FIRST_S
        if self.loop.time() - self._since < SHORT_S:
            self._at += 1  # if there is another, it may be better
            await asyncio.sleep(SHORT_PAUSE_S * random.uniform(0.5, 1.0))
        while True:
            try:
                await self._connect()
                if await self._restored():
                    break
            except WaystationError as error:
                self._why = error
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, BACKOFF_MOST_S)
        log.info("connection.restored", "connected again", epoch=self.epoch)
        waiting = list(self._pending.values())
        for consumer in list(self._consumers.values()):
            consumer.resume()
        self._up = True
        for pending in waiting:
            if pending.waiter.done():
                self._pending.pop(pending.command.id, None)
            elif not pending.sent or pending.resend:
                self._send(pending)

    async def _restored(self) -> bool:
        """False if the new link was lost meanwhile."""
        epoch = self.epoch
        self._restoring = True
        try:
            for restore in self.restorers:
                await restore()
        finally:
            self._restoring = False
        return self.epoch == epoch

    def _tick(self) -> None:
        """Deadlines, and whether the broker still lives."""
        self._ticker = self.loop.call_later(TICK_S, self._tick)
        now = self.loop.time()
        late_s, self._ticked = now - self._ticked - TICK_S, now
        if late_s > TICK_S:
            self._heard += late_s  # this loop stood still: what the broker has said meanwhile is yet to be read
        for id, pending in list(self._pending.items()):
            if pending.deadline < now:
                if pending.orphan is None or not pending.sent:
                    del self._pending[id]
                pending.deadline = NEVER
                reject(pending.waiter, self._too_late(pending))
        if self._up and self._link is not None and self._link.remote and now - self._heard > SILENCE_S:
            if now - self._heard > 2 * SILENCE_S:
                link = self._link
                link.close()
                self.lost(ConnectionLost(f"the broker was silent for {now - self._heard:.0f} s"))
            elif not any(isinstance(pending.command, Ping) for pending in self._pending.values()):
                self.request(Ping(), None, Ignored())

    def _too_late(self, pending: _Pending) -> WaystationError:
        what = pending.command.__struct_config__.tag
        if not self._up:
            return ConnectionLost(f"{what} was not sent or not answered in time: {self._why}")
        return RequestTimeout(
            f"the broker did not answer {what} in time; the request may have been carried out, or not"
        )

    def _fail_all(self, chosen: Callable[[_Pending], bool], text: str) -> None:
        for id, pending in list(self._pending.items()):
            if chosen(pending):
                self._pending.pop(id, None)
                reject(pending.waiter, ConnectionLost(text))


def resolve(waiter: Waiter, result: Any) -> bool:
    """False if nobody waits any more."""
    if waiter.done():
        return False
    try:
        waiter.set_result(result)
    except (asyncio.InvalidStateError, RuntimeError):  # given up by its thread in this very moment
        return False
    return True


def reject(waiter: Waiter, error: WaystationError) -> None:
    if not waiter.done():
        try:
            waiter.set_exception(error)
        except (asyncio.InvalidStateError, RuntimeError):
            pass
