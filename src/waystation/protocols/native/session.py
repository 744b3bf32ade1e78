"""A session: one client's conversation with the broker, whatever it is carried by.

Commands in by `handle`, answers and pushes out by the `send` that it was given; no bytes, no sockets. Msgpack frames,
JSON lines and the client in the broker's own process all use it. All calls are for the loop's thread.

Invariants: every request with an id is answered once, with an Answer or a Failure. An answer to a change is sent when
the change is durable. Whatever a client asks, the worst that it gets is a Failure. While `busy`, nothing more should be
handed in; while paused, consumers are sent no more than what is under way. After `close` nothing is sent, nothing is in
flight, and what was asked for alone (exclusive queues, open transactions, inboxes) is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from waystation.broker.access.types import ANONYMOUS, DEFAULT, EXPIRED, LOCAL, NODE_MECHANISM, LoginPeer, Principal, Tx
from waystation.errors import Invalid, NotAllowed, NotAuthenticated, NotFound, WaystationError
from waystation.observe.connections import ConnectionInfo
from waystation.observe.events import event_logger
from waystation.observe.histogram import Histogram
from waystation.protocol import (
    Answer,
    AnyCommand,
    Authenticate,
    Ceased,
    Command,
    Deliver,
    Failure,
    Get,
    Hello,
    HelloAnswer,
    Outgoing,
    Publish,
    Put,
    ReadBatches,
    ReadEntries,
    Settle,
)
from waystation.protocols.native.commands.connection_info import Wire, info_of
from waystation.protocols.native.commands.consumers import NativeConsumer
from waystation.protocols.native.commands.login import BEFORE_LOGIN, LOG_IN, NativeLogin, greeting
from waystation.protocols.native.commands.publishing import publish, publishes_together
from waystation.protocols.native.commands.putting import put, puts_together
from waystation.protocols.native.commands.refused_series import RefusedSeries
from waystation.protocols.native.commands.requests import HANDLERS
from waystation.protocols.native.commands.settling import settle, settles_together
from waystation.protocols.native.commands.turns import UNANSWERED, Turns
from waystation.protocols.spoken_names import SpokenNames

if TYPE_CHECKING:
    from waystation.broker.access.node import Node
    from waystation.message import Delivered

logger = event_logger("waystation.native")

MAX_UNDER_WAY = 10_000
"""Requests of one session that are not answered yet; then nothing more is read from its client."""

MAX_WAITING_BYTES = 8 * 1024 * 1024
"""Messages in requests that wait (for room in a queue, for a topic to be made, for the step of a transaction before
them); then nothing more is read either."""

ANSWER_BYTES = 8 * 1024 * 1024
"""Payloads in an answer to one who only looks, at most: whoever reads what it asks for gets so much."""

MAX_CONSUMERS = 100_000
LONGEST_WAIT_S = 60.0
"""Between two looks at whether it still has to wait for a quota: one that was removed is noticed by then."""
FEW_S = 0.001
"""Less is not worth waiting for."""
PULLS: frozenset[type] = frozenset((Get, ReadBatches, ReadEntries))
"""Requests that are answered with messages."""
INTERNAL = "internal"
CALLS: dict[type, str] = {
    kind: str(cast(type[Command], kind).__struct_config__.tag) for kind in (*HANDLERS, Put, Settle, Publish)
}
"""What requests are called in the metrics: as on the wire."""

Send = Callable[[Outgoing], None]


Timing = tuple[Histogram, float]
"""The times of a kind of request, and when those that are being handled came."""
_NOTHING_YET = Histogram(())


class NativeSession:
    """`send` is called on the loop's thread and must not block. `on_room`: `busy` is over, hand in more."""

    def __init__(self, broker: Node, send: Send, name: str, *, on_room: Callable[[], None] | None = None) -> None:
        self.broker = broker
        self.name = name
        self.client = ""  # what the client calls itself
        self.wire: Wire | None = None  # None: its client is in this process
        self.since_ms = broker.world.clock.now_ms()
        self.consumers: dict[int, NativeConsumer] = {}
        self.getters: dict[Hashable, NativeConsumer] = {}
        self.transactions: dict[int, Tx] = {}
        self.turns = Turns()
        self.refused_series = RefusedSeries()
        self.closed = False
        self.guarded = False  # nothing is done before the login
        self._login: NativeLogin | None = None
        self._expiry: asyncio.TimerHandle | None = None  # of the token that it has logged in by
        self.full = False  # set by whoever sends: so much waits to be written that no more may be asked for
        self.awaited = 0  # positions at which it waits for records
        self._send = self._hand_out = send
        self.spoken: SpokenNames | None = None  # it is in a namespace
        self._on_room = on_room
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = 0
        self._waiting_bytes = 0
        self._paused = False
        self._quota_timer: asyncio.TimerHandle | None = None  # until then, it has used up a quota
        self._feed_timer: asyncio.TimerHandle | None = None  # and its consumers one
        self._pulls = False  # it has asked for messages, and did not only have them pushed
        self._to_send: dict[NativeConsumer, None] = {}  # as a set, but in the order of delivery
        self._number = 0
        self.meter = broker.meters.native
        self.access = broker.access(ANONYMOUS, DEFAULT, self.meter)
        self.now_s = broker.world.clock.monotonic
        self.timing: Timing = (_NOTHING_YET, 0.0)
        """Of what is being handled."""
        self._times: dict[type, Histogram] = {}

    def __repr__(self) -> str:
        return f"<Session {self.name} {self.client!r} consumers={len(self.consumers)} under_way={self._under_way}>"

    # -- requests ---------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Too much is under way: hand in more when `on_room` is called."""
        return (
            self._under_way >= MAX_UNDER_WAY or self._waiting_bytes > MAX_WAITING_BYTES or self._quota_timer is not None
        )

    def log_in(self, command: Hello | Authenticate) -> HelloAnswer | Awaitable[HelloAnswer]:
        """A step of its login. Who runs in this process, or asks a broker that nobody can log in to, is greeted."""
        node = isinstance(command, Authenticate) or command.mechanism == NODE_MECHANISM
        if self.wire is None or not (node or self.wire.entrance.offered):
            return greeting(self)
        if self._login is None:
            peer = LoginPeer("native", self.wire.peer[0], self.wire.certificate)
            self._login = NativeLogin(self, self.wire.entrance, peer)
        return self._login.begin(command) if isinstance(command, Hello) else self._login.go_on(command.data)

    def enter(self, principal: Principal, expires_ms: int | None = None) -> None:
        """The client has shown who it is."""
        namespace = principal.namespace if self.wire is None else self.wire.entrance.namespace(principal)
        access = self.broker.access(principal.inside(namespace), namespace, self.meter)
        if (self.login, self.access.namespace) != (principal.name, namespace):  # else it is counted already
            access.namespaces.connect_home(namespace)
        access.client_id = self.client
        self.access = access
        self.broker.connections.entered(self)
        self._speak(None if namespace == DEFAULT else SpokenNames(access.names))
        self.guarded = False
        if expires_ms is not None and self.wire is not None:
            left_s = max(0.0, (expires_ms - self.broker.world.clock.now_ms()) / 1000)
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(left_s, self.wire.end, EXPIRED)

    def _speak(self, spoken: SpokenNames | None) -> None:
        """Names are those of a namespace from now on, or full ones."""
        self.spoken = spoken
        hand_out = self._hand_out
        self._send = hand_out if spoken is None else lambda outgoing: hand_out(spoken.outgoing(outgoing))

    def handle(self, command: AnyCommand) -> None:
        self.handle_all((command,))

    def handle_all(self, commands: Sequence[AnyCommand]) -> int:
        """Several commands that came together: neighbours that the broker can take as one are given to it as one.

        Returns how many were taken: fewer than all if `full` was set meanwhile, and none of the rest was looked at.
        """
        at = 0
        now_s = self.now_s()
        tracing = self.broker.tracing
        if self.spoken is not None:
            commands = [self.spoken.asked(command) for command in commands]
        while at < len(commands) and not self.full and not self.closed:
            command = commands[at]
            kind = type(command)
            behind = at + 1
            if self.guarded and kind not in BEFORE_LOGIN:
                self.fail(command.id, NotAuthenticated(LOG_IN))
                at = behind
                continue
            self.timing = (self._times.get(kind) or self._times_of(kind), now_s)
            if tracing is not None:
                tracing.arrived("native", waits=getattr(command, "acks", "durable") == "durable")
            try:
                if kind is Put:
                    behind = puts_together(commands, at)
                    put(self, commands[at:behind])  # type: ignore[arg-type]  # what puts_together counts
                elif kind is Settle:
                    behind = settles_together(commands, at)
                    settle(self, commands[at:behind])  # type: ignore[arg-type]
                elif kind is Publish:
                    behind = publishes_together(self, commands, at)
                    publish(self, commands[at:behind])  # type: ignore[arg-type]
                else:
                    self._pulls = self._pulls or kind in PULLS
                    self._other(command)
            except Exception as error:
                # A mistake of ours, or the storage's: each request that was meant is told.
                for failed in commands[at:behind]:
                    self.fail(failed.id, error)
            at = behind
        if self.access.quotas.on:
            self._wait_for_quota()
        return at

    def _other(self, command: AnyCommand) -> None:
        result = HANDLERS[type(command)](self, command)
        if isinstance(result, Awaitable):
            self.spawn(command.id, result)
        elif result is not UNANSWERED:
            self.took(self.timing, 1)
            self.answer(command.id, result)

    def took(self, timing: Timing, count: int) -> None:
        """Requests of one kind that came together are answered."""
        times, began_s = timing
        times.add(self.now_s() - began_s, count)

    def _times_of(self, kind: type) -> Histogram:
        times = self._times[kind] = self.meter.call(CALLS[kind])
        return times

    def spawn(self, request: int, work: Awaitable[Any]) -> None:
        """Answers with what `work` returns, when it does."""
        self.began(1)
        task = asyncio.get_running_loop().create_task(self._finish(request, work, self.timing))
        self._tasks.add(task)

        def done(_: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if isinstance(work, Coroutine):
                work.close()  # it was never begun if the session was closed at once

        task.add_done_callback(done)

    def in_turn(self, key: Hashable, request: int, work: Callable[[], Awaitable[Any]], size: int = 0) -> None:
        """The same, after everything that was to be done in turn under this key. `size`: bytes that wait with it."""
        self.began(1)
        self._waiting_bytes += size
        timing = self.timing

        async def step() -> None:
            try:
                await self._finish(request, work(), timing)
            finally:
                self.waited(size)

        self.turns.add(key, step)

    async def _finish(self, request: int, work: Awaitable[Any], timing: Timing) -> None:
        try:
            value = await work
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.fail(request, error)
        else:
            if value is not UNANSWERED:
                self.took(timing, 1)
                self.answer(request, value)
        finally:
            if self.access.quotas.on:
                self._wait_for_quota()
            self.ended(1)

    def waited(self, size: int) -> None:
        was_busy = self.busy
        self._waiting_bytes -= size
        self._tell_room(was_busy)

    def began(self, count: int) -> None:
        self._under_way += count

    def ended(self, count: int) -> None:
        was_busy = self.busy
        self._under_way -= count
        self._tell_room(was_busy)

    def _tell_room(self, was_busy: bool) -> None:
        if was_busy and not self.busy and self._on_room is not None and not self.closed:
            self._on_room()

    # -- quotas -----------------------------------------------------------------------------------------------------

    def _wait_for_quota(self) -> None:
        """A client that has used too much is not read until that is paid for. One that is pushed messages can still
        acknowledge them: it is given no credit meanwhile."""
        wait_s = self._quota_wait_s()
        if wait_s > FEW_S and self._quota_timer is None and not self.closed:
            self.meter.throttled += 1
            self._quota_timer = asyncio.get_running_loop().call_later(min(wait_s, LONGEST_WAIT_S), self._quota_over)

    def _quota_wait_s(self) -> float:
        return self.access.wait_s() if self._pulls else self.access.publish_wait_s()

    def _quota_over(self) -> None:
        self._quota_timer = None
        wait_s = self._quota_wait_s()
        if wait_s > FEW_S and not self.closed:  # others of the same user have used it, too
            self._quota_timer = asyncio.get_running_loop().call_later(min(wait_s, LONGEST_WAIT_S), self._quota_over)
        elif not self.busy and self._on_room is not None and not self.closed:
            self._on_room()

    def _feed_later(self, wait_s: float) -> None:
        """Consumers get no more credit until then."""
        if self._feed_timer is None and not self.closed:
            self.meter.throttled += 1
            self._feed_timer = asyncio.get_running_loop().call_later(min(wait_s, LONGEST_WAIT_S), self._feed_again)

    def _feed_again(self) -> None:
        self._feed_timer = None
        for consumer in list(self.consumers.values()):
            self.credited(consumer)

    # -- answers ----------------------------------------------------------------------------------------------------

    def answer(self, request: int, value: Any = None) -> None:
        if request and not self.closed:
            self._send(Answer(request, value))

    def answer_all(self, answers: Iterable[tuple[int, Any]]) -> None:
        """Answers requests that came together. Each of them has an id."""
        if not self.closed:
            send = self._send
            for request, value in answers:
                send(Answer(request, value))

    def fail(self, request: int, error: Exception) -> None:
        """Tells the client; an error that nobody meant is also logged."""
        name, text = describe(error, self)
        self.meter.failed(name)
        if request and not self.closed:
            self._send(Failure(request, name, text))

    # -- consumers --------------------------------------------------------------------------------------------------

    def new_consumer(self, number: int, queue: str = "", *, live: bool = False) -> NativeConsumer:
        """Takes the client's number for a consumer that is about to be opened."""
        if number <= 0:
            raise Invalid(f"consumer: {number} is not above zero")
        if number in self.consumers:
            raise Invalid(f"consumer: {number} is taken on this connection; cease it first, or choose another number")
        if len(self.consumers) >= MAX_CONSUMERS:
            raise Invalid(f"consumer: this connection has {MAX_CONSUMERS} already; open another one")
        consumer = self.consumers[number] = NativeConsumer(number, queue, live=live)
        return consumer

    def consumer(self, number: int) -> NativeConsumer:
        found = self.consumers.get(number)
        if found is None or found.feed is None:
            raise NotFound(f"consumer: this connection has no consumer {number}")
        return found

    def transaction(self, number: int) -> Tx:
        found = self.transactions.get(number)
        if found is None:
            raise NotFound(f"tx: this connection has no transaction {number}; begin one, and use it until it is ended")
        return found

    def next_number(self) -> int:
        """For what this session opens by itself."""
        self._number += 1
        return self._number

    def delivered(self, consumer: NativeConsumer, messages: list[Delivered]) -> None:
        """The feed of a consumer gives messages: they are sent when this turn of the loop is over."""
        if consumer.ceased:
            return
        consumer.pending += messages
        if not self._to_send and not self._paused:
            asyncio.get_running_loop().call_soon(self._push)
        self._to_send[consumer] = None

    def _push(self) -> None:
        if self.closed or self._paused:
            return
        consumers, self._to_send = self._to_send, {}
        for consumer in consumers:
            self._deliver(consumer)
        for consumer in consumers:
            self.credited(consumer)

    def _deliver(self, consumer: NativeConsumer) -> None:
        if consumer.pending and not consumer.ceased:
            count = len(consumer.pending)
            for piece in consumer.take():
                self._send(Deliver(consumer.number, piece))
            self.count_delivered(consumer, count, consumer.taken_bytes)

    def count_delivered(self, consumer: NativeConsumer, count: int, size: int) -> None:
        self.access.count_delivered(count, size)
        if consumer.queue and not consumer.acks:
            self.meter.acked += count

    def credited(self, consumer: NativeConsumer) -> None:
        """A consumer has credit that its feed may not know of."""
        if self.access.quotas.on and (wait_s := self.access.consume_wait_s()) > FEW_S:
            self._feed_later(wait_s)
        elif not self._paused:
            consumer.pass_on()

    def pause(self) -> None:
        """The client does not read: no more messages are asked for on its behalf."""
        self._paused = True
        for consumer in self.consumers.values():
            if consumer.feed is not None:
                consumer.feed.pause()

    def resume(self) -> None:
        self._paused = False
        self._push()
        for consumer in list(self.consumers.values()):
            if consumer.feed is not None:
                consumer.feed.resume()
            self.credited(consumer)  # as long as that does not fill the client's socket again

    def feed_ended(self, consumer: NativeConsumer, error: WaystationError) -> None:
        """The broker ends a consumer."""
        if self.consumers.get(consumer.number) is consumer:
            del self.consumers[consumer.number]
        if consumer.ceased or self.closed:
            return
        self._deliver(consumer)
        consumer.ceased = True
        self._send(Ceased(consumer.number, error_name(error), self.access.told(error)))

    # -- among the connections --------------------------------------------------------------------------------------

    def appear(self, wire: Wire | None = None) -> None:
        """It is one of the broker's connections from now on, until it is closed."""
        self.wire = wire
        if wire is None:
            self.enter(LOCAL)
        elif wire.certificate is not None:
            self._let_in(wire.certificate, wire)
        else:
            self.guarded = wire.entrance.required
            if wire.entrance.terms.namespace and not self.guarded:
                self._let_in(ANONYMOUS, wire)
        self.broker.connections.add(self)

    @property
    def answer_bytes(self) -> int:
        """Of messages in an answer to one who only looks."""
        return ANSWER_BYTES if self.wire is None else self.wire.answer_bytes

    @property
    def others_wait(self) -> bool:
        """Whether clients of other connections wait for small answers."""
        return self.wire is not None and self.wire.others_wait

    @property
    def protocol(self) -> str:
        return "native"

    def _let_in(self, principal: Principal, wire: Wire) -> None:
        """Who need not log in is in its namespace at once; who may not be there is sent away."""
        try:
            self.enter(principal)
        except WaystationError as error:
            self.guarded = True
            wire.end(str(error))

    @property
    def namespace(self) -> str:
        return "" if self.access.namespace == DEFAULT else self.access.namespace

    @property
    def login(self) -> str:
        principal = self.access.principal
        return "" if principal.anonymous else principal.name

    @property
    def asked_with_users(self) -> bool:
        return self.wire is not None and self.wire.entrance.asked_with_users

    @property
    def credential(self) -> str:
        return self.access.principal.credential

    def check_entry(self) -> None:
        if self.wire is not None and self.spoken is not None and not self.guarded:
            self.access.namespaces.check_entry(self.access.namespace)

    def info(self) -> ConnectionInfo:
        return info_of(self, self._under_way)

    def texts(self) -> Iterable[str]:
        peer = "" if self.wire is None else self.wire.peer[0]
        return (self.name, self.client, peer, *(consumer.subject for consumer in self.consumers.values()))

    def end(self, reason: str) -> None:
        """Somebody who runs the broker wants it to end."""
        if self.wire is None:
            raise NotAllowed(f"connection {self.name!r} is the one of the program that the broker runs in; it stays")
        if not self.closed:
            self._send(Failure(0, "Unavailable", reason))
        self.wire.end(reason)

    # -- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """The client has disconnected. What was in flight to it is for others, at once."""
        if self.closed:
            return
        self.closed = True
        for timer in (self._expiry, self._quota_timer, self._feed_timer):
            if timer is not None:
                timer.cancel()
        self.broker.connections.discard(self)
        self.turns.close()
        for task in list(self._tasks):
            task.cancel()
        for consumer in list(self.consumers.values()):
            try:
                consumer.end()
            except Exception:
                logger.exception("consumer.not_closed", "a consumer could not be closed", session=self.name)
        self.consumers.clear()
        self.getters.clear()
        transactions, self.transactions = list(self.transactions.values()), {}
        if transactions:
            task = asyncio.get_running_loop().create_task(self._undo(transactions))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self.access.release_owner(self.name)
        self.access.cluster.disconnected(self.name)

    async def _undo(self, transactions: list[Tx]) -> None:
        """What the client left open."""
        for transaction in transactions:
            try:
                await transaction.end(False)
            except WaystationError as error:
                logger.info(
                    "transaction.abandoned",
                    "an abandoned transaction is left to its timeout: {error}",
                    session=self.name,
                    error=error,
                )


def describe(error: Exception, session: NativeSession) -> tuple[str, str]:
    """(class, text) for the client. What nobody meant is logged, with all that is known of it."""
    if isinstance(error, WaystationError):
        return error_name(error), session.access.told(error)
    logger.exception(
        "request.failed", "request failed", protocol="native", session=session.name, client=session.client, cause=error
    )
    return INTERNAL, "the broker failed to do this; its log says more"


def error_name(error: WaystationError) -> str:
    """The nearest class that everybody knows."""
    for kind in type(error).__mro__:
        if kind.__module__ == "waystation.errors":
            return kind.__name__
    return INTERNAL
