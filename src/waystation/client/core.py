"""The client's heart: connections, lanes, consumers, and every request there is, on one event loop.

Both faces are made of it: the asyncio one calls it on the caller's loop, the other one from threads, through `soon` and
coroutines handed over. The first connection carries consumers, transactions and rare requests; if there are more, they
carry messages to queues and topics, each place always by the same one, so that order is kept.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar
from uuid import uuid4
from zlib import crc32

import msgspec

from waystation.client.consuming.feeding import ConsumerRequest, Feed, Unsettled
from waystation.client.consuming.settler import Settler, Soon, runs_of
from waystation.client.inbox import Inbox
from waystation.client.links.connection import Connection, Ignored, Waiter
from waystation.client.links.forks import no_loop
from waystation.client.links.link import Dial
from waystation.client.links.login import LoginSource
from waystation.client.options.command_check import check
from waystation.client.options.payloads import Value
from waystation.client.options.values import MessageOptions, make_message, outgoing, seconds
from waystation.client.sending.budget import Budget
from waystation.client.sending.producing import Group, Guarantee, Lane, PublishLane, PutLane, chosen, size_of
from waystation.errors import ConnectionLost, Invalid, NotFound, RequestFailed, RequestTimeout, WaystationError
from waystation.message import Delivered, Message
from waystation.observe.events import event_logger
from waystation.protocol import (
    Command,
    DeclareQueue,
    Get,
    Got,
    HelloAnswer,
    Publish,
    Put,
    QueueInfo,
    Reply,
    Settle,
)

T = TypeVar("T")

log = event_logger("waystation.client")

MOST_LANES = 10_000
GIVE_UP_S = 1.0
"""How long a client that is closed waits for a broker that is away."""
LONG_POLL_S = 30.0
GET_BYTES = 8 * 1024 * 1024
"""Payloads that one `get` returns, about: as many as the broker's longest answer has."""
FAILED_HEADER = "x-error"
"""On a reply: whoever was to answer failed, and this is what they said."""


class Core:
    """One client. Everything but the lanes' and settlers' own exceptions is for the loop's thread."""

    def __init__(
        self,
        dials: Sequence[Dial],
        *,
        budget: Budget,
        soon: Soon | None = None,
        name: str | None = None,
        connections: int = 1,
        guarantee: Guarantee = "at-least-once",
        timeout_s: float = 30.0,
        defaults: MessageOptions | None = None,
        credentials: LoginSource | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.soon: Soon = soon or self.loop.call_soon
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self.guarantee = chosen(None, guarantee)
        self.timeout_s = timeout_s
        self._defaults: MessageOptions = defaults or {}
        self.budget = budget
        self._connections = [
            Connection(dials, client=self.name, timeout_s=timeout_s, credentials=credentials)
            for _ in range(connections)
        ]
        self.main = self._connections[0]
        self._lanes: dict[tuple[Any, ...], Lane] = {}
        self._getters: dict[int, Settler] = {}
        self._inbox: Inbox | None = None
        self._mine: dict[str, DeclareQueue] = {}
        self.main.restorers.append(self._declare_mine)
        self.closed = False

    async def open(self, wait_s: float = 0.0) -> HelloAnswer:
        """Connects; raises ConnectionLost."""
        try:
            answers = [await connection.open(wait_s) for connection in self._connections]
        except BaseException:
            self.end()
            raise
        return answers[0]

    async def close(self) -> None:
        """Waits for what is on its way, as long as a request may take, then says goodbye."""
        if self.closed:
            return
        self.closed = True
        try:
            async with asyncio.timeout(self.timeout_s if self.main.up else GIVE_UP_S):
                await self.flush()
        except (TimeoutError, WaystationError):
            pass
        finally:
            self.end()

    def end(self) -> None:
        self.closed = True
        for connection in self._connections:
            connection.close()

    def forked(self, error: WaystationError) -> None:
        """In a forked child: this copy cannot be used."""
        self.closed = True
        self.loop = no_loop(error)
        for connection in self._connections:
            connection.forked(error)
        for settler in self._getters.values():
            settler.forked(error)

    async def ask(self, command: Command, kind: type[T], *, resend: bool = False, timeout_s: float | None = None) -> T:
        """A request of its own, over the first connection. Raises Invalid, naming what is wrong in it."""
        check(command)
        return await self.main.ask(command, kind, resend=resend, timeout_s=timeout_s)

    # -- sending -----------------------------------------------------------------------------------------------------

    def message(self, value: Value, options: MessageOptions) -> Message:
        """What is sent, with the client's defaults where the caller says nothing. On any thread."""
        if self._defaults and not isinstance(value, Message):
            options = {**self._defaults, **options}
        return make_message(value, options)

    def messages(self, values: Iterable[Value], options: MessageOptions) -> Iterator[Message]:
        """Many; those that are messages already stay as they are."""
        if self._defaults:
            options = {**self._defaults, **options}
        return outgoing(values, options)

    def put_lane(self, queue: str, wait_ms: int, guarantee: Guarantee) -> PutLane:
        key = ("queue", queue, wait_ms, guarantee)
        lane = self._lanes.get(key)
        if lane is None:
            check(Put(queue=queue, messages=[], wait_ms=wait_ms))
            made = PutLane(self._to(queue), self.budget, queue, wait_ms=wait_ms, guarantee=guarantee)
            lane = self._keep(key, made)
        return lane  # type: ignore[return-value]

    def publish_lane(self, shape: Publish, guarantee: Guarantee) -> PublishLane:
        key = (shape.topic, shape.exchange, shape.routing_key, shape.partition, shape.acks, shape.mandatory, guarantee)
        lane = self._lanes.get(key)
        if lane is None:
            check(shape)
            made = PublishLane(self._to(shape.topic or shape.exchange or ""), self.budget, shape, guarantee=guarantee)
            lane = self._keep(key, made)
        return lane  # type: ignore[return-value]

    def _keep(self, key: tuple[Any, ...], lane: Lane) -> Lane:
        """On any thread. Who sends to a million places shall not keep a million lanes."""
        if len(self._lanes) >= MOST_LANES:
            for old in list(self._lanes):
                if self._lanes[old].idle:
                    self._lanes.pop(old, None)
        return self._lanes.setdefault(key, lane)

    def _to(self, place: str) -> Connection:
        others = len(self._connections) - 1
        return self._connections[1 + crc32(place.encode()) % others] if others else self.main

    async def flush(self) -> None:
        """Waits until everything given so far is answered, and every verdict durable."""
        waiters: list[asyncio.Future[None]] = []
        for idle in [*(lane.when_idle for lane in self._lanes.values()), *self._settlers()]:
            waiters.append(self.loop.create_future())
            idle(waiters[-1])
        for waiter in waiters:
            await waiter

    def _settlers(self) -> list[Callable[[Waiter], None]]:
        feeds = [feed.settler for feed in self.main.consumers() if isinstance(feed, Feed)]
        return [settler.when_idle for settler in (*feeds, *self._getters.values())]

    # -- receiving ---------------------------------------------------------------------------------------------------

    async def get(
        self,
        queue: str,
        count: int,
        timeout_s: float | None,
        *,
        visibility_timeout_ms: int | None = None,
        auto_ack: bool = False,
    ) -> list[Unsettled]:
        """At least one message, or none when the time is over; None waits for ever. Up to `count` of those that are
        ready, in as many answers as the broker makes of them."""
        check(Get(queue=queue, count=count, hold_ms=visibility_timeout_ms, auto_ack=auto_ack))
        timeout_s = seconds("timeout", timeout_s)
        until = None if timeout_s is None else self.loop.time() + timeout_s
        while True:
            left = LONG_POLL_S if until is None else max(0.0, until - self.loop.time())
            wait_s = min(left, LONG_POLL_S)
            command = Get(
                queue=queue,
                count=count,
                wait_ms=round(wait_s * 1000),
                hold_ms=visibility_timeout_ms,
                auto_ack=auto_ack,
            )
            got = await self.main.ask(
                command,
                Got,
                timeout_s=wait_s + self.timeout_s,
                resend=True,
                orphan=None if auto_ack else self._give_back,
            )
            if got.messages:
                return await self._get_on(command, got)
            if left <= wait_s and until is not None:
                return []

    async def _get_on(self, command: Get, got: Got) -> list[Unsettled]:
        """What came, and what follows where the broker gave less at once because others wait; all of it is no more than
        one long answer. An error ends it: what came is there."""
        answers = [got]
        left, room = command.count, GET_BYTES
        give_back = None if command.auto_ack else self._give_back
        try:
            while True:
                left -= len(got.messages)
                room -= sum([len(delivered.message.payload) for delivered in got.messages])
                if not (got.more and got.messages) or left <= 0 or room <= 0:
                    break
                command = msgspec.structs.replace(command, count=left, wait_ms=0)
                got = await self.main.ask(command, Got, timeout_s=self.timeout_s, orphan=give_back)
                answers.append(got)
        except WaystationError:
            pass
        except asyncio.CancelledError:
            if give_back is not None:
                for answer in answers:
                    give_back(answer)
            raise
        unsettled: list[Unsettled] = []
        for answer in answers:
            settler = self._getter(answer.consumer, command.queue, settles=not command.auto_ack)
            unsettled += [Unsettled(delivered, settler) for delivered in answer.messages]
        return unsettled

    def _getter(self, consumer: int, queue: str, *, settles: bool) -> Settler:
        settler = self._getters.get(consumer)
        if settler is None or not settler.alive:
            settler = Settler(self.main, consumer, queue=queue, settles=settles, soon=self.soon)
            self._getters[consumer] = settler
        return settler

    def _give_back(self, got: Got) -> None:
        """Messages came for a caller who had gone away."""
        if got.messages:
            runs = runs_of([delivered.tag for delivered in got.messages])
            self.main.request(Settle(consumer=got.consumer, runs=runs, verdict="release"), Any, Ignored())

    def feed(
        self,
        wanted: ConsumerRequest,
        notify: Callable[[], None],
        *,
        before: Command | None = None,
        visibility_timeout_ms: int | None = None,
    ) -> Feed:
        """A consumer that is not open yet."""
        return Feed(
            self.main, wanted, soon=self.soon, notify=notify, before=before, visibility_timeout_ms=visibility_timeout_ms
        )

    # -- queues that go with the connection --------------------------------------------------------------------------

    async def declare(self, command: DeclareQueue) -> QueueInfo:
        """What lives with a connection or with its consumers is declared again after a lost link."""
        info = await self.ask(command, QueueInfo, resend=True)
        settings = command.settings
        if settings is not None and (settings.exclusive or settings.auto_delete):
            self._mine[command.queue] = command
        return info

    async def alter(self, command: DeclareQueue) -> QueueInfo:
        """What is declared again after a lost link is what it was altered to."""
        info = await self.ask(command, QueueInfo, resend=True)
        if command.queue in self._mine:
            self._mine[command.queue] = DeclareQueue(queue=command.queue, settings=info.settings)
        return info

    def forget(self, queue: str) -> None:
        """It was deleted on purpose."""
        self._mine.pop(queue, None)

    async def _declare_mine(self) -> None:
        for command in list(self._mine.values()):
            try:
                await self.main.ask(command, QueueInfo, first=True)
            except ConnectionLost:
                return  # the next link tries again
            except WaystationError as error:
                log.warning(
                    "queue.not_declared",
                    "queue {queue!r} could not be declared again: {error}",
                    queue=command.queue,
                    error=error,
                )

    # -- request and reply -------------------------------------------------------------------------------------------

    async def request(self, lane: Lane, what: str, message: Message, timeout_s: float) -> Delivered:
        """Sends and waits for the reply; the request expires with the wait."""
        if seconds("timeout", timeout_s) is None:
            raise Invalid("timeout: how long to wait for the reply, in seconds")
        if self._inbox is None:
            self._inbox = Inbox(self.main)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._request(self._inbox, lane, what, message, timeout_s)
        except TimeoutError:
            raise RequestTimeout(f"nobody replied to the request to {what} within {timeout_s:g} s") from None

    async def _request(self, inbox: Inbox, lane: Lane, what: str, message: Message, timeout_s: float) -> Delivered:
        name = await inbox.name()
        correlation_id = message.correlation_id or uuid4().hex
        message = msgspec.structs.replace(
            message,
            reply_to=name,
            correlation_id=correlation_id,
            ttl_ms=message.ttl_ms or max(1, round(timeout_s * 1000)),
        )
        reply = inbox.expect(correlation_id)
        sent: asyncio.Future[Any] = self.loop.create_future()
        size = size_of(message)
        self.budget.take_anyway(size)
        lane.add(Group([message], size, sent, single=True))
        try:
            await asyncio.wait((sent, reply), return_when=asyncio.FIRST_COMPLETED)
            if not reply.done():
                _raise_refusal(sent, what)  # else the reply is on its way
            delivered = await reply
        finally:
            reply.cancel()
            if not sent.cancel() and not sent.cancelled():
                sent.exception()  # it was looked at, or does not matter any more
        said = delivered.message.headers.get(FAILED_HEADER)
        if said is not None:
            raise RequestFailed(str(said))
        return delivered

    async def reply(self, to: str, message: Message) -> bool:
        """Whether somebody was there to take it."""
        return await self.ask(Reply(to=to, message=message), bool)


def _raise_refusal(sent: asyncio.Future[Any], what: str) -> None:
    """Raises if a request was not taken; a queue that is not there is the one that responders would consume from."""
    try:
        sent.result()
    except NotFound as error:
        raise NotFound(f"nobody responds to {what} ({error}); is the program running that answers?") from None
