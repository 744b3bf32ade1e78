"""Where requests become calls of the broker: finds the route, reads what it needs, calls its handler, says what came.

One per listener. It has what handlers share: the broker, the ack ids of clients without a connection of their own, and
the calls under way, which end before the broker does.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.broker.access.types import ANONYMOUS, DEFAULT, Entrance, Principal
from waystation.errors import Invalid, NotFound, WaystationError
from waystation.observe.events import event_logger
from waystation.protocols.http.api.dashboard_files import DashboardFiles
from waystation.protocols.http.api.routes import ROUTES
from waystation.protocols.http.auth.fair_share import oldest_of_most
from waystation.protocols.http.auth.guard import Guard
from waystation.protocols.http.auth.login import NOBODY, HttpLogin
from waystation.protocols.http.auth.token import is_free, is_login
from waystation.protocols.http.deliveries.ack_ids import AckIds
from waystation.protocols.http.deliveries.takers import Takers
from waystation.protocols.http.live_view import LiveView
from waystation.protocols.http.mounted import Mounted, MountedApi, Mounts
from waystation.protocols.http.router import Router
from waystation.protocols.http.transport.bodies import NAMESPACE_HEADER, read_messages, with_trace
from waystation.protocols.http.transport.calls import (
    LONGEST_WAIT_S,
    SHORT_STEP_BYTES,
    STEP_BYTES,
    AnyRoute,
    Call,
    Messages,
    Nothing,
    Peer,
    Stream,
    read_body,
    read_query,
    split_target,
)
from waystation.protocols.http.transport.engine import Request
from waystation.protocols.http.transport.json_pieces import chars_of, json_pieces
from waystation.protocols.http.transport.problems import problem_of_status
from waystation.protocols.http.transport.replies import END, JSON_TYPE, Reply, error_reply, json_reply, problem_reply
from waystation.protocols.spoken_names import SpokenNames

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.broker.access.node import Node
    from waystation.message import Delivered
    from waystation.protocols.http.connection import HttpConnection
    from waystation.world.long_work import LongWork

logger = event_logger("waystation.http")

MOST_DISPATCHERS = 1_000
"""Of users who have sent requests. With more, the user who has most loses the one that was quiet for longest, and what
it has taken by it: there is one for each address, key and namespace that a user comes by, or just names."""


class RequestDispatcher:
    """What handlers are given: one for requests of nobody, and one like it for each user, with an access of its own."""

    def __init__(self, broker: Node, entrance: Entrance, host: str, long_work: LongWork, mounts: Mounts) -> None:
        self.broker = broker
        self.entrance = entrance
        self.long_work = long_work
        self.meter = broker.meters.http
        self.login = HttpLogin(broker, entrance)
        self._bind(ANONYMOUS.inside(entrance.namespace(ANONYMOUS)))
        self._others: OrderedDict[Principal, RequestDispatcher] = OrderedDict()
        self.openapi: bytes | None = None
        self.files = DashboardFiles()
        self._guard = Guard(host, entrance.terms.advertised_host)
        self._router = Router(ROUTES)
        self._mounted = Mounted(mounts)
        self._under_way: set[asyncio.Task[Any]] = set()

    def _bind(self, principal: Principal) -> None:
        broker = self.broker
        self.principal = principal
        namespace = principal.within or DEFAULT
        self.access = broker.access(principal, namespace, self.meter)
        self.spoken = None if namespace == DEFAULT else SpokenNames(self.access.names)
        self.ack_ids = AckIds(broker.world.random.below(2**32), self.meter)
        self.takers = Takers(self.access, broker.world.clock, self.ack_ids)
        self.live = LiveView(self.access.views)

    def of(self, principal: Principal) -> RequestDispatcher:
        """The one for requests of this principal."""
        if principal == self.principal:
            return self
        found = self._others.get(principal)
        if found is None:
            found = self._others[principal] = copy(self)
            found._bind(principal)
            if len(self._others) > MOST_DISPATCHERS:
                quiet = oldest_of_most(self._others, lambda one: one.name)
                self._others.pop(quiet).ack_ids.close()
        self._others.move_to_end(principal)
        return found

    async def answer(self, request: Request, connection: HttpConnection) -> Reply | Stream:
        """What a request gets, whatever happens."""
        try:
            return await self._answer(request, connection)
        except WaystationError as error:
            self.meter.failed(type(error).__name__)
            api = self._mounted.at(request.target)
            return error_reply(error) if api is None else api.error_reply(error)
        except Exception:
            self.meter.failed("internal")
            logger.exception(
                "request.failed", "a request could not be answered", protocol="http", method=request.method
            )
            return problem_reply(problem_of_status(500, "the broker failed at this; its log says more"))

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """What the present task answers is waited for when the broker stops."""
        task = asyncio.current_task()
        if task is not None:
            self._under_way.add(task)
        try:
            yield
        finally:
            if task is not None:
                self._under_way.discard(task)

    async def _answer(self, request: Request, connection: HttpConnection) -> Reply | Stream:
        parts, query = split_target(request.target)
        api = self._mounted.at(request.target)
        if api is None and is_login(request.method, parts):
            shown = NOBODY
        else:
            shown = await self.login.principal(request.headers, parts, connection.login_peer, own=api is None)
        principal = shown.principal
        connection.entered(shown)
        served: RequestDispatcher | MountedApi
        spoken: SpokenNames | None = None
        inside: Access | None = None
        if api is not None:  # its paths have namespaces in them
            bound = self.entrance.terms.namespace
            served = api = api.of(principal.inside(bound) if bound else principal)
            route, names = api.find(request.method, parts)
        else:
            free = is_free(parts) or is_login(request.method, parts)
            wanted = "" if free else request.headers.get(NAMESPACE_HEADER, "")
            namespace = self.entrance.namespace(principal, wanted)
            if wanted:  # before there is a dispatcher for it: those are few
                self.of(principal.inside(DEFAULT)).check_entry(wanted)
            served = own = self.of(principal.inside(namespace))
            route, names = self._router.find(request.method, parts)
            if not free and own.spoken is not None:
                own.check_entry(namespace)
                inside = own.access
            spoken = own.spoken
        hosts = self.broker.settings.text("waystation.http.hosts")
        self._guard.check(request.headers, hosts, changes=route.changing or route.streams)
        if route.method == "POST":
            self._guard.check_post(request.headers)
        if route.changing:
            self.login.check_change(request.headers)
        if request.websocket and not route.streams:
            raise Invalid(f"{route.path} is no WebSocket")
        call = self._call(route, names, query, request, connection, spoken)
        if route.method == "GET" and not request.websocket and route.is_changed_by(call.query):
            # A browser's WebSocket says its origin always, which was compared above.
            what = f"GET {route.path}"
            self._guard.check_read(request.headers, what, route.instead, lenient=route.lenient)
        connection.serving(route, inside)
        await connection.room_for(route)
        if self.broker.tracing is not None:
            self.broker.tracing.arrived("http")
        now_s = self.broker.world.clock.monotonic
        began = now_s()
        access = served.access
        if access.quotas.on and route.body is Messages:
            await self._wait_to_publish(access)
        if access.quotas.on and route.shows_messages and not route.streams:
            access.check_consume_quota(LONGEST_WAIT_S)
        try:
            outcome = await route.handler(served, call)
        except WaystationError as error:
            raise served.explained(error) if isinstance(served, RequestDispatcher) else error from error.__cause__
        finally:
            self.meter.call(f"{route.method} {route.path}").add(now_s() - began)
        # Whoever probes the broker, or loads the dashboard's page, is nobody, and may share that with a publisher.
        if access.quotas.on and not isinstance(outcome, Stream) and not (api is None and is_free(parts)):
            await self._wait_for_quota(access)
        if outcome is None:
            return Reply(204)
        if spoken is not None:
            outcome = _told(spoken, outcome)
        if isinstance(outcome, Reply | Stream):
            return outcome
        if route.shows_messages:
            return _made_in_turns(outcome, route.status, SHORT_STEP_BYTES if connection.others_wait else STEP_BYTES)
        return json_reply(outcome, route.status)

    async def _wait_to_publish(self, access: Access) -> None:
        """Until what others of the same user have published meanwhile is paid for: all of its connections together get
        one request more than their quota, and not each of them at the same moment."""
        access.check_publish_quota(LONGEST_WAIT_S)
        now_s = self.broker.world.clock.monotonic
        until_s = now_s() + LONGEST_WAIT_S
        while (wait_s := access.publish_wait_s()) > 0:
            access.check_publish_quota(max(0.0, until_s - now_s()))
            await asyncio.sleep(wait_s)

    async def _wait_for_quota(self, access: Access) -> None:
        """The answer to one who has used too much comes later, and what is behind it on its connection with it."""
        wait_s = access.wait_s()
        if wait_s > 0:
            self.meter.throttled += 1
            await asyncio.sleep(min(wait_s, LONGEST_WAIT_S))

    def check_entry(self, namespace: str) -> None:
        """Raises unless the principal may be in this namespace. Which others may be meant is seen from outside."""
        try:
            self.access.namespaces.check_entry(namespace)
        except NotFound as error:
            outside = self.broker.access(self.principal.inside(DEFAULT), DEFAULT, self.meter)
            error.args = (outside.told(error),)
            raise

    def _call(
        self,
        route: AnyRoute,
        names: dict[str, str],
        query: str,
        request: Request,
        peer: Peer,
        spoken: SpokenNames | None,
    ) -> Call[Any, Any]:
        asked = read_query(query, route.query, route.bare)
        body: Any = None
        if route.body is Messages:
            body = read_messages(request, raw=bool(getattr(asked, "raw", False)))
            if self.broker.tracing is not None:
                body = with_trace(body, request.headers)
        elif route.body is not Nothing and (request.body or not route.optional_body):
            body = read_body(request.body, route.body)
        if spoken is None:
            return Call(names, asked, body, request, peer)
        about = {"queue": names.get("queue", ""), "topic": names.get("topic", "")}
        body = body if route.body is Messages else spoken.asked(body, **about)
        return Call(spoken.path(names), spoken.asked(asked, **about), body, request, peer)

    def explained(self, error: WaystationError) -> WaystationError:
        """The error, as the client is told of it."""
        if isinstance(error, NotFound):
            error.args = (self.access.told(error),)
        return error if self.spoken is None else self.spoken.retold(error)

    def delivered(self, messages: Sequence[Delivered], *, acked: bool = False) -> None:
        """A consumer gets these; `acked`: which is all there is to acknowledge."""
        self.access.count_delivered(len(messages), sum(len(delivered.message.payload) for delivered in messages))
        if acked:
            self.meter.acked += len(messages)

    def sweep(self) -> None:
        """Every few seconds: forgets what is over."""
        self.takers.sweep()
        for dispatcher in self._others.values():
            dispatcher.takers.sweep()

    async def close(self, within_s: float) -> None:
        """Ends what is under way, and requeues what is in flight."""
        if self._under_way:
            _, late = await asyncio.wait(set(self._under_way), timeout=within_s)
            for task in late:
                task.cancel()
        await asyncio.sleep(0)  # what they answer is written
        self.ack_ids.close()
        for dispatcher in self._others.values():
            dispatcher.ack_ids.close()


def _told(spoken: SpokenNames, outcome: Any) -> Any:
    """What a handler returns, with the names that those in the namespace say. A stream does that for each message."""
    if isinstance(outcome, Stream):
        return outcome
    if not isinstance(outcome, Reply):
        return spoken.told(msgspec.to_builtins(outcome))
    if outcome.content_type != JSON_TYPE or not outcome.body or outcome.pieces is not None:
        return outcome
    told = json_reply(spoken.told(msgspec.json.decode(outcome.body)), outcome.status)
    return msgspec.structs.replace(told, headers=outcome.headers)


def _made_in_turns(outcome: Any, status: int, at_once: int = STEP_BYTES) -> Reply:
    """The answer: as a whole if it is short, else what is made while the client reads it."""
    pieces = json_pieces(outcome)
    made: list[bytes] = []
    size = 0
    for piece in pieces:
        made.append(piece)
        size += len(piece)
        if size > at_once:
            return Reply(status, b"".join(made), pieces=chain(pieces, (END,)), text=chars_of(outcome))
    return Reply(status, b"".join((*made, END)))
