"""Messages in a request's body, and what the API answers, as types.

A body of messages is one of three things: a JSON object (a message), a JSON array (a batch), or, with any other content
type or with `?raw=true`, a payload as it is, whose fields are in the request's headers under the names that a field
has in the headers of every protocol (`x-priority`, `x-delay`, `x-ttl`, …), with the message's own headers as
`x-header-NAME`.

The structs describe the JSON that `message_json` reads and writes; a test keeps their fields the same as its.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from waystation.broker.access.types import QueueSettings
from waystation.errors import Invalid
from waystation.message import HIGHEST_PRIORITY, Message, check_sent
from waystation.message_json import HIGHEST_DELIVERY_MODE, JSON_TYPE, from_sender
from waystation.observe.rates import QueueRates
from waystation.observe.traceparent import HEADER, STATE_HEADER
from waystation.protocols.http.transport.calls import Messages, read_json
from waystation.protocols.http.transport.engine import Request

MAX_MESSAGES = 10_000
"""In one request: each takes some microseconds, during which nobody else has a turn."""
CURLS_OWN = "application/x-www-form-urlencoded"
"""What `curl -d` says of every body: no statement about the payload."""

TEXT_HEADERS = {
    "x-message-id": "id",
    "x-correlation-id": "correlation_id",
    "x-reply-to": "reply_to",
    "x-type": "type",
    "x-exchange": "exchange",
    "x-routing-key": "routing_key",
    "x-content-encoding": "content_encoding",
    "x-user-id": "user_id",
    "x-app-id": "app_id",
}
NUMBER_HEADERS = {
    "x-priority": "priority",
    "x-delay": "delay_ms",
    "x-deliver-at": "deliver_at_ms",
    "x-ttl": "ttl_ms",
    "x-max-deliveries": "max_deliveries",
    "x-timestamp": "timestamp_ms",
    "x-delivery-mode": "delivery_mode",
}
NAMESPACE_HEADER = "waystation-namespace"
"""By which a request says in which namespace it is."""
KEY_HEADER = "x-key"
OWN_HEADER = "x-header-"


def read_messages(request: Request, *, raw: bool) -> Messages:
    """The messages of a body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if raw or kind != JSON_TYPE:
        return Messages([_raw_message(request, kind)])
    value = read_json(request.body)
    if isinstance(value, dict) and not value.keys() & {"payload", "payload_base64", "json"}:
        raise Invalid(
            "payload: is missing; give payload (text), payload_base64 or json;"
            " if the body itself is the payload, say ?raw=true"
        )
    if not isinstance(value, list):
        return Messages([from_sender(value)])
    if not 0 < len(value) <= MAX_MESSAGES:
        raise Invalid(f"messages: a batch has 1 to {MAX_MESSAGES} messages, not {len(value)}")
    messages = []
    for i in range(len(value)):
        try:
            messages.append(from_sender(value[i]))
        except Invalid as error:
            raise Invalid(f"messages[{i}].{error}") from None
    return Messages(messages)


def with_trace(messages: Messages, headers: Mapping[str, str]) -> Messages:
    """The request's own trace is that of the messages in it that have none."""
    own = {name: headers[name] for name in (HEADER, STATE_HEADER) if name in headers}
    if HEADER not in own:
        return messages
    return Messages(
        [
            message if HEADER in message.headers else replace(message, headers={**message.headers, **own})
            for message in messages.messages
        ]
    )


def _raw_message(request: Request, kind: str) -> Message:
    fields: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for name, value in request.headers.items():
        if name.startswith(OWN_HEADER):
            own[name[len(OWN_HEADER) :]] = _text(name, value)
        elif name in TEXT_HEADERS:
            fields[TEXT_HEADERS[name]] = _text(name, value)
        elif name in NUMBER_HEADERS:
            fields[NUMBER_HEADERS[name]] = _number(name, value)
        elif name == KEY_HEADER:
            fields["key"] = value.encode("latin-1")
    if kind and kind != CURLS_OWN:
        fields["content_type"] = request.headers["content-type"]
    message = Message(request.body, headers=own, **fields)
    check_sent(message)
    return message


def _text(name: str, value: str) -> str:
    """Header values are bytes; ours are UTF-8."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise Invalid(f"{name}: is not UTF-8") from None


def _number(name: str, value: str) -> int:
    digits = value.strip()
    if not digits.removeprefix("-").isdecimal() or len(digits) > 19:
        raise Invalid(f"{name}: must be a whole number, not {value[:40]!r}")
    return int(digits)


# -- what goes in ------------------------------------------------------------------------------------------------------


class MessageIn(msgspec.Struct, omit_defaults=True):
    """A message to send. Exactly one of `payload`, `payload_base64` and `json` is its payload."""

    payload: Annotated[str, Meta(description="text, or base64 beside `encoding`")] | None = None
    encoding: Literal["base64", "utf-8"] | None = None
    payload_base64: str | None = None
    json: Annotated[Any, Meta(description="any JSON value; stored as its JSON")] = None
    id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, Any] | None = None
    headers_base64: (
        Annotated[dict[str, str | list[str | None]], Meta(description="headers whose values are not text")] | None
    ) = None
    priority: Annotated[int, Meta(ge=0, le=HIGHEST_PRIORITY)] | None = None
    delay_ms: Annotated[int, Meta(ge=0)] | None = None
    deliver_at_ms: Annotated[int, Meta(ge=0, description="since 1970; wins over `delay_ms`")] | None = None
    ttl_ms: Annotated[int, Meta(ge=1)] | None = None
    max_deliveries: Annotated[int, Meta(ge=0)] | None = None
    timestamp_ms: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    content_type: str | None = None
    type: str | None = None
    exchange: Annotated[str, Meta(description="what it was published to, if to an exchange")] | None = None
    routing_key: str | None = None
    content_encoding: str | None = None
    delivery_mode: (
        Annotated[int, Meta(ge=0, le=HIGHEST_DELIVERY_MODE, description="AMQP's; kept for its receivers")] | None
    ) = None
    user_id: str | None = None
    app_id: str | None = None


class Settle(msgspec.Struct, omit_defaults=True):
    """What to settle, all with the same verdict."""

    ack_ids: Annotated[list[str], Meta(min_length=1, max_length=MAX_MESSAGES)]


class Reject(Settle, omit_defaults=True):
    """Rejected messages are tried again as the queue's retry policy says, until they are dead letters."""

    delay_ms: Annotated[int, Meta(ge=0, description="instead of the retry policy's")] | None = None
    error: Annotated[str, Meta(max_length=10_000, description="why; stored with the dead letter")] | None = None
    dead: Annotated[bool, Meta(description="no retry: a dead letter now")] = False


class Release(Settle, omit_defaults=True):
    """Released messages are delivered again; it is no fault of theirs."""

    delay_ms: Annotated[int, Meta(ge=0)] | None = None


class Touch(Settle, omit_defaults=True):
    """More time for messages in flight."""

    hold_ms: Annotated[int, Meta(ge=1, description="from now; the queue's own if left out")] | None = None


# -- what comes out ----------------------------------------------------------------------------------------------------


class MessageOut(MessageIn, omit_defaults=True):
    """A message that was received or looked at. `payload` is always there."""

    queue: str | None = None
    tag: int | None = None
    deliveries: Annotated[int, Meta(description="this one included; 0 where it is only looked at")] | None = None
    taken_ms: Annotated[int, Meta(description="when the broker took it in")] | None = None
    source: Annotated[str, Meta(description="its topic")] | None = None
    partition: int | None = None
    offset: int | None = None
    ack_id: Annotated[str, Meta(description="what ack, reject, release and touch take")] | None = None
    state: str | None = None
    ready_at_ms: int | None = None
    place: Annotated[str, Meta(description="`queue:NAME` or `topic:NAME`")] | None = None


class MessageList(msgspec.Struct):
    messages: list[MessageOut]


class QueueOut(msgspec.Struct):
    """A queue and what is in it. The counters are since the broker's start."""

    queue: str
    settings: QueueSettings
    ready: int
    parked: int
    held: int
    bytes: int
    consumers: int
    oldest_ms: Annotated[int, Meta(description="when the oldest message was enqueued")] | None
    put: int
    delivered: int
    acked: int
    dead: int
    age_ms: Annotated[int, Meta(description="how old the oldest message is")] | None
    rates: Annotated[QueueRates | None, Meta(description="over the last seconds; null: not known yet")]


class Stored(msgspec.Struct):
    """What was stored, and is durable."""

    ids: Annotated[list[str | None], Meta(description="one per message sent; null: a duplicate, left out")]
    stored: int
    duplicates: Annotated[list[int], Meta(description="indexes of messages whose id was used within the window")]


class SettleOut(msgspec.Struct):
    settled: int
    unknown: Annotated[
        list[str], Meta(description="ack ids whose messages are not in flight any more: nothing was done to them")
    ]


class Count(msgspec.Struct):
    messages: int
