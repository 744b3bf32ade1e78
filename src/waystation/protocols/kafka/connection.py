"""One client's connection: requests are done in their order, and answered in their order.

Produce requests are done as they come, behind one another and behind a fetch that waits for records: many may be under
way, each is appended before the next is looked at, each has a slot, and a slot is sent when it and all before it are
filled. Any other request is done when all before it are answered, and nothing passes it: each sees what those before it
did, and nothing that a client asks for is read before it can be sent. While too much is under way, or the client does
not read its answers, or there is no room for a large request (`protocols/budget.py`), the socket is not read: its
memory here stays bounded, and nobody else notices.

Whatever a client sends, the worst that happens is that its own connection ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from waystation.broker.access.types import DEFAULT, LoginPeer, Principal
from waystation.errors import NotAllowed, NotFound
from waystation.observe.connections import ConnectionInfo
from waystation.observe.events import event_logger
from waystation.observe.histogram import Histogram
from waystation.protocols.budget import FEW_BYTES, FREE_BYTES, MUCH_BYTES, SMALL_BYTES
from waystation.protocols.kafka.apis import APIS
from waystation.protocols.kafka.engine import KEPT_BUFFER, Engine, Request, response_head
from waystation.protocols.kafka.records import fetch, fetch_codec, produce, produce_codec
from waystation.protocols.kafka.requests import api_versions, codec
from waystation.protocols.kafka.requests.login import MAX_REQUEST_BYTES, KafkaLogin
from waystation.protocols.kafka.requests.namespaces import Way, inward, outward, translated
from waystation.protocols.kafka.requests.registry import Api, Call, Listener
from waystation.protocols.kafka.requests.throttling import Throttle, Timed, with_throttle
from waystation.wire.kafka_types import Malformed

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.protocols.kafka.server import KafkaListener

logger = event_logger("waystation.kafka")

READ_BYTES = 1024 * 1024
"""In one read: half a millisecond, and a batch of the usual largest size."""
SHORT_READ_BYTES = 256 * 1024
"""Of a large request, while others wait."""
OTHERS_AT_ONCE = 32
"""Requests that are looked at in one turn of the loop; with more, the connection gets in the line. Each takes some
hundred microseconds."""
PRODUCES_AT_ONCE = 128
"""Of those that only append. A small one takes a sixth of that."""
MAX_IN_FLIGHT = 1_000
"""Produce requests that are not answered yet."""
MAX_FINISHED_BYTES = 1024 * 1024
"""Answers to produce requests that wait behind one that is not finished."""

MAX_CLIENT_ID = 255
"""Of a client's own name, for quotas."""

PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
NO_API = -1

Parts = list[bytes | bytearray | memoryview]
NOBODY = ("", "")


class Slot:
    """The place of one answer in the order of answers."""

    __slots__ = ("began", "cancel", "correlation_id", "done", "flexible", "parts", "times")

    def __init__(self, correlation_id: int, flexible: bool, times: Histogram, began: float) -> None:
        self.correlation_id = correlation_id
        self.flexible = flexible
        self.times = times
        self.began = began
        self.parts: Parts | None = None
        self.done = False
        self.cancel: Callable[[], object] | None = None


class KafkaConnection(asyncio.BufferedProtocol):
    """Made by the listener for each client."""

    def __init__(self, listener: KafkaListener, on_closed: Callable[[], None]) -> None:
        self._listener = listener
        self._on_closed = on_closed
        self._engine = Engine(listener.broker.settings.integer("socket.request.max.bytes"))
        self._access = listener.anonymous
        self._login: KafkaLogin | None = None  # made when it is asked for
        self._inward: Way | None = None  # names of its namespace; None: it is in none
        self._outward: Way | None = None
        self._guarded = False  # each request is asked for at the login
        self._slots: deque[Slot] = deque()
        self._at_close: dict[object, Callable[[], None]] = {}  # what else ends with this connection
        self._transport: asyncio.Transport | None = None
        self._requests = listener.budgets.requests.share(self, lambda: self._engine.unread)
        self.unsent = listener.budgets.unsent.share(self, lambda: self._unsent_bytes() + self.unsent.size)
        self._awaited = 0  # bytes of the large request that is arriving
        self._finished_bytes = 0
        self._much = False  # of a large request much has come: more of it is for another turn
        self._sending = 0  # bytes of what was written last, while it has not left
        self._in_line = False  # it has looked at enough requests for one turn
        self._held = False  # an append has to wait: nothing behind it may be looked at
        self._throttle: Throttle | None = None  # made with the first quota
        self._writing_paused = False
        self._reading_paused = False
        self.client_host = ""
        self.listener = Listener("", 0)
        self.last_active = 0.0
        self.name = ""
        self.since_ms = 0
        self.client = NOBODY  # what it calls itself, and what program it is

    # -- the transport's calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a TCP server makes full transports
        transport.set_write_buffer_limits(high=FREE_BYTES)  # type: ignore[attr-defined]
        peer = transport.get_extra_info("peername") or ("", 0)
        local = transport.get_extra_info("sockname") or ("127.0.0.1", 0)
        self.client_host = str(peer[0])
        encrypted = transport.get_extra_info("ssl_object") is not None
        self.listener = self._listener.advertised(str(local[0]), int(local[1]), encrypted=encrypted)
        clock = self._listener.broker.world.clock
        self.last_active = clock.monotonic()
        self.since_ms = clock.now_ms()
        self.name = f"kafka:{self.client_host}:{peer[1]}"
        certificate = self._listener.entrance.certificate(transport.get_extra_info("ssl_object"))
        if certificate is not None or self._listener.entrance.required:
            self._ask_login(certificate)
        elif self._access.namespace != DEFAULT:
            self._let_in(self._access)
            self._speak(self._access)
        self._listener.broker.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._listener.broker.connections.discard(self)
        self._on_closed()
        self._requests.end()
        self.unsent.end()
        self._listener.budgets.letting_go.add(self._engine.let_go())
        for slot in self._slots:
            cancel, slot.cancel = slot.cancel, None
            if cancel is not None:
                cancel()
        self._slots.clear()
        self._login = None  # it knows this object
        if self._throttle is not None:
            self._throttle.close()
        for end in tuple(self._at_close.values()):
            end()

    def get_buffer(self, sizehint: int) -> memoryview:
        most = SHORT_READ_BYTES if self._awaited > FREE_BYTES and self._others_wait else READ_BYTES
        return self._engine.buffer()[:most]

    @property
    def _others_wait(self) -> bool:
        return self._listener.budgets.long_work.others_wait(self)

    def buffer_updated(self, nbytes: int) -> None:
        self._engine.received(nbytes)
        if nbytes <= FEW_BYTES:
            self._listener.budgets.long_work.asked(self)
        self._work()
        awaited = self._engine.awaited
        if (
            nbytes >= MUCH_BYTES
            and not self._much
            and (awaited > SMALL_BYTES or (awaited > FREE_BYTES and self._others_wait))
        ):
            self._much = True
            self._listener.budgets.read_much(self, self._read_on)
            self._balance()

    def _read_on(self) -> None:
        self._much = False
        self._balance()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writing_paused = True
        self.unsent.hold(self._unsent_bytes())
        self._balance()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self.unsent.drop()
        self.unsent.was_read(self._sending)
        self._work()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- among those who share the memory -----------------------------------------------------------------------------

    def on_room(self) -> None:
        if self._transport is not None:
            self._work()

    def spare(self) -> bool:
        if self._requests.size and not self._held and self._engine.shrink():
            self._requests.drop()
        return not (self._requests.size or self.unsent.size)

    def _unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def overdue(self, why: str) -> bool:
        if self._held or self._in_line:
            return False
        self._abort(why)
        if self._transport is not None:
            self._transport.abort()  # what it does not read would keep the connection open
        return True

    # -- among the connections ----------------------------------------------------------------------------------------

    @property
    def protocol(self) -> str:
        return "kafka"

    @property
    def namespace(self) -> str:
        return "" if self._access.namespace == DEFAULT else self._access.namespace

    @property
    def logs_in(self) -> bool:
        """Whether it has to log in, and has not yet."""
        return self._access.principal.anonymous and self._listener.entrance.required

    @property
    def login(self) -> str:
        principal = self._access.principal
        return "" if principal.anonymous else principal.name

    @property
    def asked_with_users(self) -> bool:
        return self._listener.entrance.asked_with_users

    @property
    def credential(self) -> str:
        return self._access.principal.credential

    def check_entry(self) -> None:
        if self._inward is not None:
            self._access.namespaces.check_entry(self._access.namespace)

    def info(self) -> ConnectionInfo:
        address = None if self._transport is None else self._transport.get_extra_info("peername")
        client = {"client_id": self.client[0], "software": self.client[1]}
        return ConnectionInfo(
            self.name,
            self.protocol,
            self.login,
            self.namespace,
            (self.client_host, int(address[1]) if address else 0),
            (self.listener.host, self.listener.port),
            self.since_ms,
            "running",
            {key: value for key, value in client.items() if value},
            doing=self._doing(),
        )

    def texts(self) -> Iterable[str]:
        return (self.name, *self.client)

    def _doing(self) -> str:
        """Told by what is under way and for how long nothing was: nothing is noted for it as requests come."""
        fetch, produce = self._listener.fetch_times, self._listener.produce_times
        times = [slot.times for slot in self._slots if not slot.done]
        parts = ["waits for records"] if any(one is fetch for one in times) else []
        parts += ["publishes"] if any(one is produce for one in times) else []
        others = sum(one is not fetch and one is not produce for one in times)
        if others:
            parts.append(f"{others} {'request' if others == 1 else 'requests'} under way")
        idle_s = int(self._listener.broker.world.clock.monotonic() - self.last_active)
        return ", ".join(parts) or (f"idle for {idle_s} s" if idle_s else "idle")

    def end(self, reason: str) -> None:
        """Kafka's protocol has no word for it: the connection is closed, and clients connect again."""
        logger.info(
            "connection.closed",
            "connection of {client} closed: {reason}",
            protocol="kafka",
            client=self.client_host,
            reason=reason,
        )
        self.close()

    # -- who it is ----------------------------------------------------------------------------------------------------

    def _ask_login(self, certificate: Principal | None) -> KafkaLogin:
        broker = self._listener.broker
        peer = LoginPeer("kafka", self.client_host, certificate)
        self._login = login = KafkaLogin(self._listener.entrance, peer, self._listener.now_s, self._entered)
        self._guarded = not login.idle
        if certificate is not None:
            self._entered(broker.authenticator.certified(certificate, peer))
        elif self._listener.entrance.required:
            self._engine.allow(MAX_REQUEST_BYTES)
        return login

    def _find_login(self) -> KafkaLogin:
        return self._login or self._ask_login(None)

    def _entered(self, principal: Principal) -> None:
        """The client has shown who it is."""
        broker = self._listener.broker
        namespace = self._listener.entrance.namespace(principal)
        access = broker.access(principal.inside(namespace), namespace, self._listener.meter)
        again = (self.login, self._access.namespace) == (principal.name, namespace)
        if not again and not self._let_in(access):
            return
        self._access = access
        broker.connections.entered(self)
        self._speak(access)
        self._engine.allow(broker.settings.integer("socket.request.max.bytes"))
        self._guarded = self._login is not None and not self._login.idle

    def _let_in(self, access: Access) -> bool:
        """Whether it may be here; if not, the connection is closed."""
        try:
            access.namespaces.connect_home(access.namespace)
        except (NotAllowed, NotFound) as error:
            self._abort(str(error))
            return False
        return True

    def _speak(self, access: Access) -> None:
        """Names are those of the namespace from now on."""
        self._inward = None if access.namespace == DEFAULT else inward(access.names)
        self._outward = None if access.namespace == DEFAULT else outward(access.names)

    # -- requests -----------------------------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return (
            self._held
            or self._in_line
            or self._writing_paused
            or len(self._slots) >= MAX_IN_FLIGHT
            or (self._throttle is not None and self._throttle.muted)
            or self._finished_bytes > MAX_FINISHED_BYTES
        )

    def _work(self) -> None:
        """Dispatches the whole requests that have arrived, as far as this connection may: as many as one turn has time
        for, and the rest when nobody else has long work to do."""
        self.last_active = self._listener.now_s()
        engine = self._engine
        left = PRODUCES_AT_ONCE
        try:
            while self._transport is not None and not self._busy:
                if left <= 0 and engine.unread:
                    self._in_line = True
                    self._listener.budgets.long_work.then(self._go_on, self)
                    break
                request = engine.next_request(self._next_api())
                if request is None:
                    break
                left -= 1 if request.api_key == PRODUCE else PRODUCES_AT_ONCE // OTHERS_AT_ONCE
                if self._metered:
                    self._dispatch_timed(request)
                else:
                    self._dispatch(request)
                self._awaited = 0
            if engine.awaited > FREE_BYTES or self._requests.size:
                self._claim(engine.awaited)
        except Malformed as error:
            self._abort(str(error))
        except Exception:
            logger.exception(
                "request.failed", "request failed, connection closed", protocol="kafka", client=self.client_host
            )
            self._abort("internal error")
        self._balance()

    def _go_on(self) -> None:
        self._in_line = False
        if self._transport is not None:
            self._work()

    def _next_api(self) -> int | None:
        """The one API that may be done now, behind what is under way; None: any."""
        if not self._slots:
            return None
        first = self._slots[0].times
        return PRODUCE if first is self._listener.produce_times or first is self._listener.fetch_times else NO_API

    def _claim(self, awaited: int) -> None:
        """Asks for room for a large request that has begun to arrive. Between two of them the room goes with the
        buffer, which is kept until somebody else needs room: a producer of large batches does not ask for each."""
        if awaited != self._awaited:
            self._awaited = awaited
            self._requests.renew()
        if awaited > FREE_BYTES:
            self._requests.want(awaited)
        elif not self._engine.unread:
            self._requests.hold(self._engine.kept if self._engine.kept <= KEPT_BUFFER else 0)

    def _balance(self) -> None:
        """Reads the socket only while there is something to be done with what comes. A little may come in any case:
        a client that has disconnected is noticed by reading."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        engine = self._engine
        stop = (
            self._requests.wanted > 0 or self._much or ((self._busy or engine.blocked) and engine.unread >= FREE_BYTES)
        )
        if stop and not self._reading_paused:
            self._reading_paused = True
            transport.pause_reading()
        elif not stop and self._reading_paused:
            self._reading_paused = False
            transport.resume_reading()

    def _abort(self, why: str) -> None:
        self._listener.meter.failed("connection_closed")
        logger.info(
            "connection.closed",
            "connection of {client} closed: {reason}",
            protocol="kafka",
            client=self.client_host,
            reason=why,
        )
        if self._transport is not None:
            self._transport.close()

    def _dispatch(self, request: Request) -> None:
        key, version = request.api_key, request.version
        if self._guarded and self._login is not None:
            refused = self._login.refuses(key)
            if refused is not None:
                raise Malformed(refused)
        if key == PRODUCE and produce_codec.MIN_VERSION <= version <= produce_codec.MAX_VERSION:
            self._produce(request)
        elif key == FETCH and fetch_codec.MIN_VERSION <= version <= fetch_codec.MAX_VERSION:
            self._fetch(request)
        else:
            self._dispatch_other(request)

    def _produce(self, request: Request) -> None:
        flexible = request.version >= produce_codec.FIRST_FLEXIBLE
        client_id, body = request.body(flexible)
        if self._metered:
            self._meter_for(client_id)
        answer = self._slot(request.correlation_id, flexible, self._listener.produce_times)[1]
        broker, place = self._listener.broker, request.end - len(body)
        waiting = produce.handle(broker, self._access, request.version, body, place, answer, self.listener)
        if waiting is not None:
            self._hold(waiting)
        elif self._metered:
            self._look_at_quotas()  # at once: what is behind it waits, though its answer waits for the disk

    def _fetch(self, request: Request) -> None:
        flexible = request.version >= fetch_codec.FIRST_FLEXIBLE
        client_id, body = request.body(flexible)
        if self._metered:
            self._meter_for(client_id)
        slot, answer = self._slot(request.correlation_id, flexible, self._listener.fetch_times)
        listener = self._listener
        cancel = fetch.handle(
            listener.broker,
            self._access,
            listener.sessions,
            request.version,
            body,
            answer,
            self.unsent,
            listener.budgets.long_work,
            self.listener,
        )
        if not slot.done:
            slot.cancel = cancel

    def _dispatch_other(self, request: Request) -> None:
        api = APIS.get(request.api_key)
        if api is None:
            raise Malformed(f"unknown API {request.api_key}")
        if not api.min_version <= request.version <= api.max_version:
            if api.key != API_VERSIONS:
                raise Malformed(f"{api.name} version {request.version} is not supported")
            self._unsupported_api_versions(request)
            return
        flexible = codec.flexible(api.name, request.version)
        client_id, body = request.body(flexible)
        entity = codec.decode_request(api.name, request.version, bytes(body))
        if self._inward is not None:
            entity = translated(api.name, entity, self._inward)
        if (client_id or "") != self.client[0] or api.key == API_VERSIONS:
            self.client = self._listener.known(client_id, entity, self.client[1])
        if self._metered:
            self._meter_for(client_id)
        call = self._call(api, request.version, entity, client_id)
        times = self._listener.meter.call(api.name)
        slot, answer = self._slot(request.correlation_id, flexible and api.key != API_VERSIONS, times)
        result = api.handler(call)
        if isinstance(result, Awaitable):
            task = asyncio.ensure_future(self._finish(api, request.version, result, answer))
            slot.cancel = partial(_cancel, task, result)
        else:
            answer([self._encoded(api, request.version, result)])
            self._end_if_refused()

    def _encoded(self, api: Api, version: int, response: Any) -> bytes:
        if self._metered:
            response = with_throttle(response, self._access.request_wait_s())
        if self._outward is not None:
            response = translated(api.name, response, self._outward)
        return codec.encode_response(api.name, version, response)

    def _end_if_refused(self) -> None:
        """After the answer to a login that has failed."""
        if self._login is not None and self._login.over:
            self._abort("the login has failed")

    def _call(self, api: Api, version: int, entity: Any, client_id: str | None) -> Call:
        return Call(
            api.name,
            version,
            entity,
            self._listener.broker,
            self._access,
            client_id,
            self.client_host,
            self.listener,
            self._at_close,
            self.unsent,
            APIS,
            self._find_login,
        )

    def _unsupported_api_versions(self, request: Request) -> None:
        """A client newer than we are: told in the oldest form, which every client can read, so that it tries again."""
        call = self._call(APIS[API_VERSIONS], 0, None, None)
        response = api_versions.answer(call, ErrorCode.unsupported_version)
        times = self._listener.meter.call(call.name)
        self._slot(request.correlation_id, False, times)[1]([codec.encode_response("api_versions", 0, response)])

    async def _finish(
        self, api: Api, version: int, result: Awaitable[Any], answer: Callable[[Parts | None], None]
    ) -> None:
        try:
            if self._metered:
                result = Timed(result, self._listener.now_s, self._access.worked)
            answer([self._encoded(api, version, await result)])
            self._end_if_refused()
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception(
                "request.failed",
                "request failed, connection closed",
                protocol="kafka",
                api=api.name,
                client=self.client_host,
            )
            self._abort("internal error")

    def _hold(self, waiting: Awaitable[None]) -> None:
        self._held = True

        async def wait() -> None:
            try:
                await waiting
            except Exception:
                logger.exception(
                    "request.failed", "request failed, connection closed", protocol="kafka", client=self.client_host
                )
                self._abort("internal error")
            finally:
                self._held = False
            if self._metered:
                self._look_at_quotas()
            self._work()

        self._listener.keep(asyncio.ensure_future(wait()))

    # -- quotas -------------------------------------------------------------------------------------------------------

    @property
    def _metered(self) -> bool:
        """Whether what it takes counts. Until it has logged in, if it has to, it does not: all who have yet to log in
        would share what strangers use up, and nobody could."""
        return self._access.quotas.on and not self.logs_in

    def _dispatch_timed(self, request: Request) -> None:
        began_s = self._listener.now_s()
        self._dispatch(request)
        self._access.worked(self._listener.now_s() - began_s)

    def _meter_for(self, client_id: str | None) -> None:
        """What is counted from now on is of this client. Those that have not shown who they are share an access while
        there is nothing to count."""
        if self._access is self._listener.anonymous:
            self._access = self._listener.access_of_nobody()
        self._access.client_id = (client_id or "")[:MAX_CLIENT_ID]

    def _look_at_quotas(self) -> None:
        if self._transport is None:
            return
        if self._throttle is None:
            self._throttle = Throttle(self._work)
        if self._throttle.look(self._access):
            self._listener.meter.throttled += 1
            self._balance()

    # -- answers ------------------------------------------------------------------------------------------------------

    def _slot(
        self, correlation_id: int, flexible: bool, times: Histogram
    ) -> tuple[Slot, Callable[[Parts | None], None]]:
        slot = Slot(correlation_id, flexible, times, self.last_active)
        self._slots.append(slot)

        def answer(parts: Parts | None) -> None:
            slot.parts = parts
            slot.done = True
            slot.cancel = None
            slot.times.add(self._listener.now_s() - slot.began)
            if self._slots and self._slots[0] is slot:
                self._send()
            elif parts is not None:
                self._finished_bytes += sum(map(len, parts))
            if self._metered:
                self._look_at_quotas()

        return slot, answer

    def _send(self) -> None:
        """Sends the answers that are next in order."""
        slots = self._slots
        waits = self._reading_paused or self._busy or self._engine.blocked
        out: Parts = []
        while slots and slots[0].done:
            slot = slots.popleft()
            if slot.parts is not None:
                size = sum(map(len, slot.parts))
                self._finished_bytes = max(0, self._finished_bytes - size)
                out.append(response_head(slot.correlation_id, slot.flexible, size))
                out += slot.parts
        if not slots:
            self._finished_bytes = 0
        if out and self._transport is not None and not self._transport.is_closing():
            self._sending = sum(map(len, out))
            if len(out) == 2 and len(out[1]) < 4096:
                self._transport.write(out[0] + out[1])  # type: ignore[operator]
            else:
                self._transport.writelines(out)
            if not self._writing_paused:
                self.unsent.was_read(self._sending)
        if self.unsent.size and not self._writing_paused:
            self.unsent.drop()
        if waits and not self._busy:
            asyncio.get_running_loop().call_soon(self._work)


def _cancel(task: asyncio.Task[None], work: Awaitable[Any]) -> None:
    """Ends a task that awaits `work`, also before its first step: then nobody ever awaits it."""
    task.cancel()
    if isinstance(work, Coroutine):
        coroutine = work
        task.add_done_callback(lambda _: coroutine.close())
