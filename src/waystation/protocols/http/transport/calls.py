"""A call of the API: what a route is, and how a request becomes the typed things that its handler takes.

A route is a row: method, path, the types of its query, its body and its answer, and one handler. The dispatcher, the
OpenAPI document and the tests are all made from these rows, so none of them can know a route that another does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar, get_origin
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from waystation.broker.access.administration import queries
from waystation.broker.access.administration.queries import unknown
from waystation.broker.access.types import LoginPeer
from waystation.errors import Invalid
from waystation.message import Message
from waystation.protocols.http.transport.engine import Request
from waystation.protocols.http.transport.replies import Reply
from waystation.protocols.http.transport.wire import Session

S = TypeVar("S")
Q = TypeVar("Q", bound=msgspec.Struct)
B = TypeVar("B")
Method = Literal["GET", "PUT", "POST", "PATCH", "DELETE"]


class Nothing(msgspec.Struct):
    """No query parameters, or no body."""


class AnyQuery(msgspec.Struct):
    """Query parameters as they are, whatever their names."""

    values: dict[str, str]


class Messages(msgspec.Struct):
    """A body that is one message, many, or a payload as it is (`bodies.py`)."""

    messages: list[Message]


@dataclass(frozen=True, slots=True)
class Stream:
    """The connection is this session's from now on: as a WebSocket if the client asked for one, else as events."""

    session: Session
    single: bool = False  # on a WebSocket, every message is a frame of its own, and nothing around it


Outcome = Reply | Stream | msgspec.Struct | dict[str, Any] | None
"""A struct or a dict is answered as JSON with the route's status; None as 204."""


SHORT_STEP_BYTES = 64 * 1024
"""Of a long answer, while other clients wait for short ones: they meet a step in each of the turns that they need."""
LONGEST_WAIT_S = 10.0
"""By which an answer comes later because of a quota. Who would have to wait for longer is refused."""
STEP_BYTES = 128 * 1024
"""Of an answer; when it is longer, others get their turn before it goes on."""


class Peer(Protocol):
    """The connection that a call came by."""

    @property
    def login_peer(self) -> LoginPeer: ...

    @property
    def secure(self) -> bool:
        """Whether it is encrypted."""

    @property
    def name(self) -> str: ...

    @property
    def disconnected(self) -> bool: ...

    @property
    def answer_bytes(self) -> int:
        """Of messages in an answer to one who only looks."""

    async def rest(self, size: int) -> None:
        """Others get their turn while a long answer is made, of which there are so many bytes."""


@dataclass(slots=True)
class Call(Generic[Q, B]):
    """What a handler gets. `path` has the names in the path, decoded."""

    path: dict[str, str]
    query: Q
    body: B
    request: Request
    peer: Peer


@dataclass(frozen=True, slots=True)
class Route(Generic[S, Q, B]):
    """One row of an API. A handler is given what serves the API (the dispatcher, or a mounted API) and a `Call`, which
    says the same types as `query` and `body`."""

    method: Method
    path: str
    handler: Callable[[S, Call[Q, B]], Awaitable[Outcome]]
    summary: str
    _: KW_ONLY
    tag: str
    query: type[Q] = Nothing  # type: ignore[assignment]  # a handler without one says Nothing too
    body: type[B] = Nothing  # type: ignore[assignment]
    answer: Any = None  # what is answered, as a type; None: nothing
    media: tuple[str, ...] = ()  # what else is answered, by content types
    status: int = 200
    creates: bool = False  # 201 if it made something, 200 if it was there
    empty: str = ""  # why it may answer 204 as well
    later: Any = None  # what it answers with 202, as a type, where it goes on in the background
    description: str = ""
    changes: bool | Callable[[Q], bool] | None = None  # None: unless it is a GET; or: for such a query
    instead: str = ""  # the POST that does what this GET does and changes something
    lenient: bool = False  # a GET that changes something and that programs send as it is, by others' contract
    streams: bool = False  # a WebSocket, or server-sent events
    waits: bool = False  # ended when its client goes away; all others run to their end
    optional_body: bool = False
    bare: str = ""  # the query parameter that a word without a value stands for

    @property
    def changing(self) -> bool:
        return self.method != "GET" if self.changes is None else bool(self.changes)

    def is_changed_by(self, query: Q) -> bool:
        """Whether a call with this query changes something."""
        return self.changes(query) if callable(self.changes) else self.changing

    @property
    def shows_messages(self) -> bool:
        """Whether the answer may be as large as messages are."""
        fields = getattr(self.answer, "__struct_fields__", ())
        return "messages" in fields or "payload" in fields or self.path.endswith("/get")


AnyRoute = Route[Any, Any, Any]

NEEDS_VOUCHER = (
    "A GET that changes something: needs the header `X-Requested-With`, with any value, unless it is a WebSocket or a"
    " page of the broker's own origin."
)


def split_target(target: bytes) -> tuple[list[str], str]:
    """The path's parts, each decoded by itself so that a name may hold a slash, and the query as it is."""
    path, _, query = target.partition(b"?")
    if not path.startswith(b"/"):
        _, found, rest = path.partition(b"://")  # the form that proxies are sent
        path = b"/" + rest.partition(b"/")[2] if found else path
    try:
        parts = [unquote_to_bytes(part).decode() for part in path[1:].split(b"/")]
        return parts, query.decode()
    except UnicodeDecodeError:
        raise Invalid("path: what is percent-encoded has to be UTF-8") from None


def read_query(text: str, wanted: type[Q], bare: str = "") -> Q:
    """The query as its struct. Of a parameter that is no list, the last one counts."""
    values: dict[str, Any] = {}
    known, lists = _fields(wanted)
    try:
        pairs = [] if not text else parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=1000)
    except ValueError as error:
        raise Invalid(f"query: {error}") from None
    if wanted is AnyQuery:
        return convert({"values": dict(pairs)}, wanted)
    for name, value in pairs:
        if bare and not value and name not in known:
            name, value = bare, name
        if name not in known:
            raise unknown(name, "query parameter", known)
        if name in lists:
            values.setdefault(name, []).append(value)
        else:
            values[name] = value
    return convert(values, wanted, strict=False)


def read_json(body: bytes) -> Any:
    """Any JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is not JSON: {error}") from None


def read_body(body: bytes, wanted: type[B]) -> B:
    """A JSON body as its struct; a field that it does not have is refused by name."""
    value = read_json(body)
    if isinstance(value, Mapping) and isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        known, _ = _fields(wanted)
        for name in value:
            if name not in known:
                raise unknown(name, "field", known)
    return convert(value, wanted)


def convert(value: Any, wanted: type[B], *, strict: bool = True) -> B:
    """A body, or a query, as its struct."""
    return queries.convert(value, wanted, whole="the body", strict=strict)


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[frozenset[str], frozenset[str]]:
    """A struct's fields by name, and those of them that are lists. Asking msgspec takes a quarter of a millisecond."""
    fields = msgspec.structs.fields(kind)
    names = frozenset(field.encode_name for field in fields)
    return names, frozenset(field.encode_name for field in fields if _is_list(field.type))


def _is_list(kind: Any) -> bool:
    if get_origin(kind) is Annotated:
        kind = kind.__origin__
    return get_origin(kind) is list
