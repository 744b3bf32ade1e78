"""A session: one connection's events (`engine.py`) become calls of the broker, its answers become frames.

It has no socket: bytes come in by `receive`, and go out through `Outside`, which is the connection in real life and a
test elsewhere. Events are worked off in order. One that has to wait (a declaration that must be durable) makes those
behind it wait, and the peer is not read meanwhile; publishes and acks wait for nothing and are written once a turn.

Invariant: whatever a peer sends, its session ends with the protocol's own error at worst; nobody else notices.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from pamqp import commands
from pamqp.base import Frame

from waystation.broker.access.types import ANONYMOUS, DEFAULT, EXPIRED, LoggedIn, LoginPeer, Outcome, Principal
from waystation.errors import NotAllowed, NotFound, WaystationError
from waystation.observe.connections import ConnectionInfo, doing_at
from waystation.observe.events import event_logger
from waystation.protocols.amqp import handshake, publishing, settling
from waystation.protocols.amqp.channel import Channel
from waystation.protocols.amqp.declaring import Declaring
from waystation.protocols.amqp.engine import Engine
from waystation.protocols.amqp.events import (
    Acked,
    Broken,
    ChannelOpened,
    ChannelState,
    Event,
    Greeted,
    Method,
    Phase,
    PublishEvent,
    WrongHeader,
)
from waystation.protocols.amqp.frames import PROTOCOL_HEADER, method_frame
from waystation.protocols.amqp.methods import HANDLERS
from waystation.protocols.amqp.room import Room, RoomShare
from waystation.protocols.budget import FREE_BYTES
from waystation.vhosts.routes import Routes
from waystation.vhosts.sources import Sources
from waystation.wire.amqp.errors import (
    CONNECTION_FORCED,
    INTERNAL_ERROR,
    NAMES,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    AmqpError,
    of_error,
)

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.broker.access.node import Node
    from waystation.broker.access.types import Entrance, NamespaceNames
    from waystation.message import Message
    from waystation.protocols.amqp.consumer import AmqpConsumer

logger = event_logger("waystation.amqp")

MOST_IN_FLIGHT = 8 * 1024 * 1024
"""Bytes that a connection may have published and that are not kept yet; then it is not read until they are."""
MOST_OUT_BYTES = 1024 * 1024
"""Messages that are written at the end of this turn of the loop; with more, they are written at once."""
FEW_EVENTS = 8
"""In one read, which is no part of something longer: from a client that sends little and waits for the answer."""
ASKING = (PublishEvent, Method)
"""What such a client sends first. Not acks, which are not answered, and no handshake, which comes before much too."""
TOLD_AFTER_S = 1.0
"""A client that has to wait for its quota for longer is told that it is blocked."""
LONGEST_WAIT_S = 60.0
"""Between two looks at whether it still has to: a quota that was removed is noticed by then."""
FEW_S = 0.001
"""Less is not worth waiting for."""
MAX_CLIENT_ID = 255
"""Of what a client calls its connection, for quotas."""
PUBLISH = "basic.publish"
_NONE: deque[Event] = deque(maxlen=0)
"""Nothing is to be worked off. One for all who have nothing: an empty deque takes 760 bytes."""
CLOSE_OK = method_frame(commands.Connection.CloseOk(), 0)


class Outside(Protocol):
    """What is around a session."""

    peer: tuple[str, int]
    host: tuple[str, int]

    @property
    def congested(self) -> bool:
        """Whether the peer has not read so much that it shall be sent nothing that it can do without."""

    @property
    def full(self) -> bool:
        """Whether the peer has to read before it is sent another message."""

    @property
    def others_wait(self) -> bool:
        """Whether other clients wait for answers, so that this one's turns are to be short."""

    def asked(self) -> None:
        """The peer sends little, and waits for the answer."""

    def to_flush(self) -> None:
        """There is something in `out`; it is to be written when this turn is over."""

    def write_out(self) -> None:
        """There is much in `out`; it is to be written now."""

    def to_work(self) -> None:
        """Events wait, and now they can be worked off."""

    def to_get(self) -> None:
        """The next event gets a message that may be long: `get_one` is to be called when nobody has long work to do."""

    def over(self) -> None:
        """What is in `out` is the last that is sent."""


class AmqpSession:
    """One connection's, from its first byte to its last."""

    __slots__ = (
        "_answering", "_blocked", "_cancels", "_events", "_expiry", "_feed_timer", "_in_flight", "_long_gets",
        "_pressed", "_published", "_quota_timer", "_quota_told", "_stuck", "_task", "_writing", "access",
        "certificate", "channels", "client", "closed", "declaring", "engine", "entrance", "heartbeat_s", "hungry",
        "is_guest", "meter", "name", "names", "node", "out", "out_bytes", "outside", "principal", "publish_times",
        "room", "routes", "routing", "since_ms", "sources", "tx_ids", "user",
    )  # fmt: skip

    access: Access
    names: NamespaceNames
    sources: Sources
    declaring: Declaring
    routes: Routes

    def __init__(
        self,
        node: Node,
        entrance: Entrance,
        outside: Outside,
        name: str,
        tx_ids: list[str],
        room: Room,
        certificate: Principal | None = None,
    ) -> None:
        self.node = node
        self.entrance = entrance
        self.meter = node.meters.amqp
        self.publish_times = self.meter.call(PUBLISH)
        self.outside = outside
        self.name = name
        self.tx_ids = tx_ids  # free ones, shared by all sessions
        self.room = RoomShare(room)
        self.engine = Engine(room.largest)
        self._enter(node.access(ANONYMOUS, DEFAULT, self.meter, waits=True))
        self.routing = self.access.route_table
        self.out: list[bytes] = []
        self.out_bytes = 0  # of the messages in it
        self.hungry: dict[AmqpConsumer, None] = {}  # may have room for more
        self.channels: dict[int, Channel] = {}
        self.client: dict[str, Any] = {}
        self.user = ""
        self.is_guest = True  # until somebody else has logged in
        self.principal = ANONYMOUS
        self.certificate = certificate  # whom the client's certificate stands for
        self._expiry: asyncio.TimerHandle | None = None  # of the token that it has logged in by
        self.heartbeat_s = 0
        self.closed = False
        self.since_ms = node.world.clock.now_ms()
        self._events = _NONE
        self._task: asyncio.Task[None] | None = None
        self._answering: Channel | None = None  # what the task answers came on it
        self._cancels: list[Frame] = []  # for that channel, behind the answer
        self._writing = False  # the task writes what was published
        self._in_flight = 0
        self._pressed: str | None = None  # why the namespace cannot take more
        self._published = False
        self._blocked = False
        self._quota_timer: asyncio.TimerHandle | None = None  # until then, it has used up a quota
        self._quota_told = False  # and its client knows
        self._feed_timer: asyncio.TimerHandle | None = None  # until then, its consumers have used up a quota
        self._stuck = False  # the next event gets a message, and there is no room for one
        self._long_gets = False  # the last one that was got was long: the next one waits for its turn

    def _enter(self, access: Access) -> None:
        """From now on it is in the namespace of `access`."""
        self.access = access
        self.names = access.names
        self.sources = Sources(access, self.node.world)
        self.declaring = Declaring(access, self.node.world, self.name, self.sources)
        self.routes = Routes(access, self.sources)

    # -- bytes in, frames out -----------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Bytes have come. `engine.more`: those were too many for one turn, and it wants to be called without any."""
        if self.closed:
            if CLOSE_OK in data:
                self.outside.over()
            return
        begins = not self.engine.unread
        events = self.engine.receive(data, short=self.outside.others_wait)
        if begins and 0 < len(events) <= FEW_EVENTS and isinstance(events[0], ASKING):
            self.outside.asked()
        if self._events:
            self._events.extend(events)
        else:
            self._events = deque(events)
        self.work()

    @property
    def busy(self) -> bool:
        """Whether more bytes are of no use now."""
        return (
            self._task is not None
            or self._blocked
            or self._in_flight > MOST_IN_FLIGHT
            or self._stuck
            or self._quota_timer is not None
        )

    @property
    def waiting(self) -> bool:
        """Whether there are events that were not worked off."""
        return bool(self._events)

    def work(self) -> None:
        """Works off events, as far as none of them has to wait."""
        if self.node.tracing is not None:
            self.node.tracing.arrived("amqp")
        try:
            self._work_off()
        except Exception:
            self._broke()

    def _work_off(self) -> None:
        events = self._events
        touched: dict[Channel, None] = {}
        self._stuck = False
        while events and self._task is None and not self.closed:
            event = events.popleft()
            if isinstance(event, PublishEvent):
                channel: Channel | None = event.channel.owner
                if channel is not None and not channel.closed:
                    touched[channel] = None
                    try:
                        publishing.publish(self, channel, event)
                    except AmqpError as error:
                        self._fail(channel, error, 60, 40)
                    except WaystationError as error:
                        self._fail(channel, self.translated(error), 60, 40)
            elif isinstance(event, Acked):
                channel = event.channel.owner
                if channel is not None and not channel.closed:
                    touched[channel] = None
                    try:
                        settling.ack(channel, event.tag, event.multiple)
                    except AmqpError as error:
                        self._fail(channel, error, 60, 80)
            elif (
                isinstance(event, Method)
                and isinstance(event.method, commands.Basic.Get)
                and (self._long_gets or self._full)
            ):
                self._put_back(events, event)
                self._stuck = True
                if not self._full:
                    self.outside.to_get()
                break
            else:
                self._finish(touched)
                if self._task is not None:
                    self._put_back(events, event)  # what was published before it is not written yet
                    break
                self._handle(event)
        if not self._events:
            self._events = _NONE
        self._finish(touched)

    def _put_back(self, events: deque[Event], event: Event) -> None:
        events.appendleft(event)
        self._events = events

    def get_one(self) -> None:
        """It is this session's turn to get a long message."""
        self._long_gets = False
        self.work()

    def got(self, size: int) -> None:
        """A message of this size was got."""
        self._long_gets = size > FREE_BYTES
        self.delivering(size)

    @property
    def _full(self) -> bool:
        """No message is got for a peer that has not read those before: a request of twenty bytes gets a megabyte."""
        return self.out_bytes > MOST_OUT_BYTES or self.outside.full

    def _finish(self, touched: dict[Channel, None]) -> None:
        """Writes what channels have collected."""
        wide: list[Channel] = []
        for channel in touched:
            if channel.settled and not channel.closed:
                try:
                    channel.settle_acked()
                except WaystationError as error:
                    self._fail(channel, self.translated(error), 60, 80)
            if channel.published > channel.metered:
                publishing.count(self, channel)
                self._published = True
            if channel.pending or channel.pending_topics or channel.written < channel.sequence:
                if publishing.is_wide(channel):
                    wide.append(channel)
                else:
                    publishing.write(self, channel)
            else:
                channel.pending_bytes = 0  # nobody wants them, or they wait for their transaction
        if touched and self._pressed is not None and self._published:
            self._block()
        if touched and self.access.quotas.on:
            self.wait_for_quota(self.access.publish_wait_s())
        touched.clear()
        if wide:
            self._writing = True
            self._task = asyncio.get_running_loop().create_task(self._write_in_turns(wide))

    async def _write_in_turns(self, channels: list[Channel]) -> None:
        """Large messages to many queues; events behind them wait. It goes on if the connection ends meanwhile."""
        try:
            for channel in channels:
                await publishing.write_in_turns(self, channel)
        except Exception:
            self._broke()
        finally:
            self._task, self._writing = None, False
            self.outside.to_work()

    def send(self, frame: bytes) -> None:
        self.out.append(frame)
        self.outside.to_flush()

    def answer(self, channel: int, method: Frame) -> None:
        self.send(method_frame(method, channel))

    def to_flush(self) -> None:
        self.outside.to_flush()

    def delivering(self, size: int) -> None:
        """Messages of this size were put into `out`."""
        self.out_bytes += size
        if self.out_bytes > MOST_OUT_BYTES:
            self.outside.write_out()

    def written(self) -> None:
        """What was in `out` is the socket's."""
        self.out.clear()
        self.out_bytes = 0
        if self._stuck and not self.outside.full:
            self.outside.to_work()

    def fed(self, *, sparingly: bool = False) -> None:
        """The socket can take more: consumers with room get credit. `sparingly`: only for what is small."""
        if self.hungry and (wait_s := self.starved_s()) > FEW_S:
            self.feed_later(wait_s)
            return
        hungry, self.hungry = self.hungry, {}
        for consumer in hungry:
            if not consumer.pass_on(sparingly=sparingly):
                self.hungry[consumer] = None

    def starve(self, stop: bool) -> None:
        """The peer does not read, or does again: credit that consumers have is of no use meanwhile."""
        for channel in self.channels.values():
            for consumer in channel.consumers.values():
                if consumer.feed is not None:
                    if stop:
                        consumer.feed.pause()
                    else:
                        consumer.feed.resume()

    # -- publishes on their way to the disk ---------------------------------------------------------------------------

    def took_off(self, size: int) -> None:
        self._in_flight += size

    def landed(self, size: int) -> None:
        before = self._in_flight
        self._in_flight = before - size
        if before > MOST_IN_FLIGHT >= self._in_flight:
            self.outside.to_work()

    def publish_failed(self, channel: Channel, error: WaystationError) -> None:
        """A publish without confirms was not stored: closing the channel is all there is to tell it."""
        if not channel.closed:
            self._fail(channel, self.translated(error), 60, 40)

    def alarm(self, reason: str | None) -> None:
        """The namespace is short of something, or is no more."""
        self._pressed = reason
        if reason is not None and self._published:
            self._block()
        elif reason is None and self._blocked:
            self._blocked = False
            if self._knows("connection.blocked"):
                self.answer(0, commands.Connection.Unblocked())
            self.outside.to_work()

    def _block(self) -> None:
        if self._blocked or self.closed or self.engine.phase is not Phase.OPEN:
            return
        self._blocked = True
        if self._knows("connection.blocked"):
            self.answer(0, commands.Connection.Blocked((self._pressed or "")[:200]))
        self.outside.to_work()

    # -- quotas -------------------------------------------------------------------------------------------------------

    def wait_for_quota(self, wait_s: float) -> None:
        """It has used too much, and is not read for so long. A client that can be told is told, if it takes long."""
        if wait_s <= FEW_S or self._quota_timer is not None or self.closed:
            return
        self.meter.throttled += 1
        if wait_s > TOLD_AFTER_S and not self._blocked and self._knows("connection.blocked"):
            self._quota_told = True
            self.answer(0, commands.Connection.Blocked("it publishes faster than a quota allows"))
        self._quota_timer = asyncio.get_running_loop().call_later(min(wait_s, LONGEST_WAIT_S), self._quota_over)

    def _quota_over(self) -> None:
        self._quota_timer = None
        wait_s = self.access.publish_wait_s()
        if wait_s > FEW_S and not self.closed:  # others of the same user have used it, too
            self._quota_timer = asyncio.get_running_loop().call_later(min(wait_s, LONGEST_WAIT_S), self._quota_over)
            return
        if self._quota_told:
            self._quota_told = False
            if not self._blocked and not self.closed:
                self.answer(0, commands.Connection.Unblocked())
        self.outside.to_work()

    def starved_s(self) -> float:
        """For how long its consumers get nothing more, since they have had too much."""
        return self.access.consume_wait_s()

    def feed_later(self, wait_s: float) -> None:
        """Its hungry consumers are asked again then."""
        if self._feed_timer is None and not self.closed:
            self.meter.throttled += 1
            self._feed_timer = asyncio.get_running_loop().call_later(min(wait_s, LONGEST_WAIT_S), self._feed_again)

    def _feed_again(self) -> None:
        self._feed_timer = None
        if not self.closed:
            self.outside.to_flush()

    def _knows(self, capability: str) -> bool:
        capabilities = self.client.get("capabilities")
        return isinstance(capabilities, dict) and bool(capabilities.get(capability))

    def give_back(self, channel: Channel, message: Message) -> None:
        publishing.give_back(self, channel, message)

    # -- events -------------------------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        try:
            if isinstance(event, Method):
                if event.channel is None:
                    self._connection_method(event.method)
                else:
                    self._method(event.channel, event.method)
            elif isinstance(event, ChannelOpened):
                self._open_channel(event.channel)
            elif isinstance(event, Greeted):
                self.answer(0, handshake.start(self.node.cluster_id, self._mechanisms))
            elif isinstance(event, WrongHeader):
                self.send(PROTOCOL_HEADER)
                self.closed = True
                self.outside.over()
            elif isinstance(event, Broken):
                self._broken(event)
        except AmqpError as error:
            self.close(error)

    def _broke(self) -> None:
        """A mistake of ours ends this session, and no other."""
        logger.exception("session.failed", "a session failed and is closed", protocol="amqp", connection=self.name)
        self.close(AmqpError(INTERNAL_ERROR, "the broker failed at this; its log says more"))

    def _broken(self, event: Broken) -> None:
        if event.channel is None:
            self.close(event.error)
        elif event.channel.owner is not None:
            self._fail(event.channel.owner, event.error, 60, 40)

    def _check_channels(self) -> None:
        """RabbitMQ's limit of a user, over all of its connections."""
        limit = self.access.users.own_limit("max-channels")
        if limit is None:
            return
        mine = (one for one in self.node.connections if isinstance(one, AmqpSession) and one.login == self.login)
        if sum(len(one.channels) for one in mine) >= limit:
            raise AmqpError(
                NOT_ALLOWED,
                f"number of channels opened for user '{self.login}' has reached the maximum allowed user limit of"
                f" ({limit})",
            )

    def _open_channel(self, state: ChannelState) -> None:
        self._check_channels()
        state.owner = self.channels[state.number] = Channel(self, state)
        self.answer(state.number, commands.Channel.OpenOk())

    def _method(self, state: ChannelState, method: Frame) -> None:
        channel: Channel | None = state.owner
        if isinstance(method, commands.Channel.Close):
            self.engine.closed(state)
            if channel is not None:
                channel.end(politely=True)
                self.channels.pop(state.number, None)
            self.answer(state.number, commands.Channel.CloseOk())
            return
        if channel is None or channel.closed:
            return
        handler = HANDLERS.get(method.name)
        if handler is None:
            raise AmqpError(NOT_IMPLEMENTED, f"{method.name} is not for clients to send")
        began = self.node.world.clock.monotonic()
        try:
            answer = handler(self, channel, method)
        except AmqpError as error:
            self._fail(channel, error, *divmod(method.index, 1 << 16))
            return
        except WaystationError as error:
            self._fail(channel, self.translated(error), *divmod(method.index, 1 << 16))
            return
        if answer is None or isinstance(answer, Frame):
            self._took(method, began)
            if answer is not None:
                self._reply(channel, method, answer)
        else:
            self._answering = channel
            self._task = _task(self._wait(channel, method, answer, began), answer)

    def _took(self, method: Frame, began: float) -> None:
        self.meter.call(method.name.lower()).add(self.node.world.clock.monotonic() - began)

    async def _wait(self, channel: Channel, method: Frame, work: Awaitable[Frame | None], began: float) -> None:
        """Something that takes a while; events behind it wait."""
        try:
            answer = await work
            self._took(method, began)
            if answer is not None and not channel.closed:
                self._reply(channel, method, answer)
        except AmqpError as error:
            self._fail(channel, error, *divmod(method.index, 1 << 16))
        except WaystationError as error:
            self._fail(channel, self.translated(error), *divmod(method.index, 1 << 16))
        except asyncio.CancelledError:
            raise
        except Exception:
            self._broke()
        finally:
            self._task = self._answering = None
            if self._cancels:
                self._send_cancels(channel)
            self.outside.to_work()

    def _reply(self, channel: Channel, method: Frame, answer: Frame) -> None:
        if not getattr(method, "nowait", False):
            self.answer(channel.number, answer)

    def _connection_method(self, method: Frame) -> None:
        if isinstance(method, commands.Connection.StartOk):
            self._authenticate(method)
        elif isinstance(method, commands.Connection.TuneOk):
            frame_max, channel_max, self.heartbeat_s = handshake.tuned(method)
            self.engine.tuned(frame_max, channel_max)
        elif isinstance(method, commands.Connection.Open):
            self._open(method)
        elif isinstance(method, commands.Connection.Close):
            self.answer(0, commands.Connection.CloseOk())
            self.ended(politely=True)
            self.outside.over()
        elif isinstance(method, commands.Connection.CloseOk):
            self.outside.over()
        elif isinstance(method, commands.Connection.UpdateSecret):
            self._wait_for(self._update_secret(_bytes(method.new_secret)))

    # -- who it is ----------------------------------------------------------------------------------------------------

    @property
    def _mechanisms(self) -> str:
        """That are offered. EXTERNAL needs a certificate, but for a guest."""
        if self.entrance.guests:
            return handshake.MECHANISMS
        offered = self.entrance.mechanisms("amqp")
        return " ".join(one for one in offered if one != "EXTERNAL" or self.certificate is not None)

    @property
    def _login_peer(self) -> LoginPeer:
        return LoginPeer("amqp", self.outside.peer[0], self.certificate)

    def _authenticate(self, method: commands.Connection.StartOk) -> None:
        self.client = dict(method.client_properties or {})
        response = _bytes(method.response)
        if self.entrance.guests:
            try:
                self.user = handshake.guest_of(method.mechanism, response)
            except AmqpError as error:
                logger.warning(
                    "login.refused",
                    "login of {client} refused",
                    protocol="amqp",
                    mechanism=method.mechanism[:20],
                    client=self.outside.peer[0],
                )
                self._refuse_login(error)
                return
            self.principal = Principal(self.user)
            self.answer(0, handshake.tune())
        else:
            self._wait_for(self._log_in(method.mechanism, response))

    async def _log_in(self, mechanism: str, response: bytes) -> None:
        offered = self._mechanisms
        exchange = self.entrance.begin(mechanism, self._login_peer) if mechanism in offered.split() else None
        if exchange is None:
            self._refuse_login(handshake.unknown_mechanism(mechanism, offered))
            return
        outcome = await self.entrance.authenticator.step(exchange, response, self._login_peer)
        if not isinstance(outcome, LoggedIn):
            self._refuse_login(handshake.refused(mechanism))
            return
        self.principal = outcome.principal
        self.user = outcome.principal.name
        self.is_guest = False
        self._note_expiry(outcome)
        self.answer(0, handshake.tune())

    def _refuse_login(self, error: AmqpError) -> None:
        """A client that can be told is told; another one sees the connection end, as with RabbitMQ."""
        if self._knows("authentication_failure_close"):
            self.close(error)
            return
        logger.debug("login.closed", "{reason}", client=self.outside.peer[0], reason=error)
        self.closed = True
        self.outside.over()

    async def _update_secret(self, token: bytes) -> None:
        """A client that has logged in by a token has a new one. Others are answered, and nothing changes. An API key is
        not renewed: another one may have another role, and be revoked alone."""
        if self._expiry is not None:
            outcome = await self.entrance.authenticator.bearer(token.decode("latin-1"), self._login_peer)
            before = (self.principal.name, self.principal.credential)
            if not isinstance(outcome, LoggedIn) or (outcome.principal.name, outcome.principal.credential) != before:
                raise AmqpError(NOT_ALLOWED, "the new secret is no token of the same user")
            self._note_expiry(outcome)
        self.answer(0, commands.Connection.UpdateSecretOk())

    def _note_expiry(self, outcome: Outcome) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if isinstance(outcome, LoggedIn) and outcome.expires_ms is not None:
            left_s = max(0.0, (outcome.expires_ms - self.node.world.clock.now_ms()) / 1000)
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(left_s, self.end, EXPIRED)

    def _wait_for(self, work: Coroutine[Any, Any, None]) -> None:
        """A method of the connection that takes a while; events behind it wait."""

        async def run() -> None:
            try:
                await work
            except AmqpError as error:
                self.close(error)
            except asyncio.CancelledError:
                raise
            except Exception:
                self._broke()
            finally:
                self._task = None
                self.outside.to_work()

        self._task = _task(run(), work)

    def _open(self, method: commands.Connection.Open) -> None:
        vhost = method.virtual_host
        access = self.node.access(self.principal, vhost, self.meter, waits=True)
        try:
            access.namespaces.connect(vhost)
        except NotFound as error:
            raise AmqpError(NOT_ALLOWED, f"vhost {vhost[:100]} not found") from error
        except NotAllowed as error:
            raise AmqpError(NOT_ALLOWED, f"access to vhost '{vhost}' refused: {error}") from error
        called = self.client.get("connection_name")
        access.client_id = called[:MAX_CLIENT_ID] if isinstance(called, str) else ""
        self._enter(access)
        self._pressed = access.alarm
        self.node.connections.add(self)
        self.answer(0, commands.Connection.OpenOk())

    # -- ends ---------------------------------------------------------------------------------------------------------

    def translated(self, error: WaystationError) -> AmqpError:
        return of_error(error, self.access.told(error))

    def consumer_ended(self, consumer: AmqpConsumer) -> None:
        """Its queue was deleted: the client is told, if it can be. Who deletes a queue on the channel that consumes it
        is answered first, as with RabbitMQ: some clients take a cancel for the failure of what they wait for."""
        channel = consumer.channel
        channel.consumers.pop(consumer.tag, None)
        if self._knows("consumer_cancel_notify") and not self.closed:
            cancel = commands.Basic.Cancel(consumer.tag, True)
            if channel is self._answering:
                self._cancels.append(cancel)
            else:
                self.answer(channel.number, cancel)

    def _send_cancels(self, channel: Channel) -> None:
        cancels, self._cancels = self._cancels, []
        if not channel.closed:
            for cancel in cancels:
                self.answer(channel.number, cancel)

    def _fail(self, channel: Channel, error: AmqpError, class_id: int, method_id: int) -> None:
        """An error on a channel: it ends the channel, or all of them."""
        if error.hard:
            self.close(error, class_id, method_id)
        elif not channel.closed and not self.closed:
            self.meter.failed(NAMES[error.code])
            logger.info(
                "channel.closed",
                "channel {channel} of {connection} closed: {reason}",
                connection=self.name,
                channel=channel.number,
                reason=error.reply_text,
            )
            self.engine.closing(channel.state)
            channel.end(politely=False)
            self.channels.pop(channel.number, None)
            self.answer(channel.number, commands.Channel.Close(error.code, error.reply_text, class_id, method_id))

    def close(self, error: AmqpError, class_id: int = 0, method_id: int = 0) -> None:
        """Ends the connection, saying why. The peer's agreement is awaited for a moment by whoever is outside."""
        if self.closed:
            return
        self.meter.failed(NAMES[error.code])
        logger.info(
            "connection.closed",
            "connection {connection} closed: {reason}",
            protocol="amqp",
            connection=self.name,
            reason=error.reply_text,
        )
        if self.engine.phase is not Phase.HEADER:
            self.answer(0, commands.Connection.Close(error.code, error.reply_text, class_id, method_id))
        self.ended(politely=False)

    def end(self, reason: str) -> None:
        """Somebody who runs the broker wants it to end."""
        self.close(AmqpError(CONNECTION_FORCED, reason))

    def ended(self, *, politely: bool) -> None:
        """Nothing more is worked off; what was in flight to it is requeued, and what was its own goes."""
        if self.closed:
            return
        self.closed = True
        for timer in (self._expiry, self._quota_timer, self._feed_timer):
            if timer is not None:
                timer.cancel()
        self._events = _NONE
        self.hungry.clear()
        if self._task is not None and not self._writing:
            self._task.cancel()
        for channel in list(self.channels.values()):
            channel.end(politely=politely)
        self.channels.clear()
        self.room.end()
        self.node.connections.discard(self)
        self.access.release_owner(self.name)

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def namespace(self) -> str:
        return self.names.vhost

    @property
    def login(self) -> str:
        return "" if self.is_guest else self.user

    @property
    def asked_with_users(self) -> bool:
        return self.entrance.asked_with_users

    @property
    def credential(self) -> str:
        return self.principal.credential

    def check_entry(self) -> None:
        self.access.namespaces.check_entry(self.access.namespace)

    @property
    def protocol(self) -> str:
        return "amqp"

    def token(self) -> str:
        """Part of a name that nobody has."""
        return self.node.world.random.uuid().hex

    def texts(self) -> Iterable[str]:
        said = (value for value in self.client.values() if isinstance(value, str))
        consumers = (one for channel in self.channels.values() for one in channel.consumers.values())
        return (self.name, self.user, *said, *(consumer.info().queue for consumer in consumers))

    def info(self) -> ConnectionInfo:
        channels = [channel.info() for channel in self.channels.values()]
        return ConnectionInfo(
            self.name,
            "amqp",
            self.user,
            self.names.vhost,
            self.outside.peer,
            self.outside.host,
            self.since_ms,
            "blocked" if self._blocked else "running",
            self.client,
            self.engine.channel_max,
            self.engine.frame_max,
            self.heartbeat_s,
            getattr(self.outside, "received_bytes", 0),
            getattr(self.outside, "sent_bytes", 0),
            channels,
            doing_at(channels),
        )


def _task(step: Coroutine[Any, Any, None], work: Awaitable[Any]) -> asyncio.Task[None]:
    """Runs `step`, which awaits `work`. If it is cancelled before it began, nobody ever awaits that."""
    task = asyncio.get_running_loop().create_task(step)
    if isinstance(work, Coroutine):
        coroutine = work
        task.add_done_callback(lambda _: coroutine.close())
    return task


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value or b"")
