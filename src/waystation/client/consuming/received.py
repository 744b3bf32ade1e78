"""A message that was received: what it says. What can be done with it is added by each face (`sync`, `aio`).

An object is made when a message is handed out, not before; it is a thin look at what came over the link.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from waystation.client.consuming.feeding import Unsettled
from waystation.client.consuming.settler import Settler
from waystation.client.options.payloads import TYPE_HEADER, decode_json, decode_text, message_type, value_of
from waystation.client.options.values import moment
from waystation.errors import Conflict, Invalid
from waystation.message import Delivered, Message
from waystation.protocol import Command, Put, PutAnswer, Reply

INBOX = "inbox:"
"""How the address of somebody who waits for a reply begins; others are queues."""


class Received:
    """What a receiver can read."""

    __slots__ = ("_delivered", "_settler", "_verdict")

    def __init__(self, unsettled: Unsettled) -> None:
        self._delivered = unsettled.delivered
        self._settler = unsettled.settler
        self._verdict: str | None = None

    # -- what it carries -----------------------------------------------------------------------------------------------

    @property
    def payload(self) -> bytes:
        return self._delivered.message.payload

    def text(self) -> str:
        """The payload as UTF-8."""
        return decode_text(self._delivered.message.payload)

    def json(self) -> Any:
        """The payload as JSON."""
        return decode_json(self._delivered.message.payload)

    @property
    def value(self) -> Any:
        """What was sent: JSON decoded, text as str, bytes as they are, by the content type, or else by the type."""
        message = self._delivered.message
        return value_of(message.payload, message.content_type, type_said(message))

    @property
    def id(self) -> str:
        """Its own id, or its position: `QUEUE#NUMBER`, `TOPIC-PARTITION@OFFSET`."""
        delivered = self._delivered
        return delivered.message.id or place_id(self._settler.queue, delivered)

    @property
    def key(self) -> str | None:
        """The key as text; `key_bytes` as bytes."""
        key = self._delivered.message.key
        return None if key is None else key.decode(errors="replace")

    @property
    def key_bytes(self) -> bytes | None:
        return self._delivered.message.key

    @property
    def headers(self) -> Mapping[str, Any]:
        return self._delivered.message.headers

    @property
    def priority(self) -> int:
        return self._delivered.message.priority

    @property
    def correlation_id(self) -> str | None:
        return self._delivered.message.correlation_id

    @property
    def reply_to(self) -> str | None:
        return self._delivered.message.reply_to

    @property
    def content_type(self) -> str | None:
        return self._delivered.message.content_type

    @property
    def content_encoding(self) -> str | None:
        return self._delivered.message.content_encoding

    @property
    def exchange(self) -> str | None:
        """The exchange it was published to, if any; empty: AMQP's default exchange."""
        return self._delivered.message.exchange

    @property
    def routing_key(self) -> str | None:
        return self._delivered.message.routing_key

    @property
    def delivery_mode(self) -> int:
        """Set by AMQP senders: 1 transient, 2 persistent; 0: not set."""
        return self._delivered.message.delivery_mode

    @property
    def user_id(self) -> str | None:
        return self._delivered.message.user_id

    @property
    def app_id(self) -> str | None:
        return self._delivered.message.app_id

    @property
    def type(self) -> str:
        """The sender's type, also from the header `message_type`; else json, text or binary, by the content
        type."""
        message = self._delivered.message
        said = type_said(message)
        if said is not None:
            return said
        base = (message.content_type or "").partition(";")[0]
        return "json" if base.endswith("json") else "text" if base.startswith("text/") else "binary"

    @property
    def ttl(self) -> float | None:
        """Its own time to live, in seconds, counted from `taken`; None: it has none. See `expires`."""
        ttl_ms = self._delivered.message.ttl_ms
        return None if ttl_ms is None else ttl_ms / 1000

    @property
    def max_deliveries(self) -> int:
        """Its own delivery limit; 0: that of the queue or group."""
        return self._delivered.message.max_deliveries

    # -- where it was, and how often -----------------------------------------------------------------------------------

    @property
    def queue(self) -> str | None:
        return self._settler.queue or None

    @property
    def topic(self) -> str | None:
        return self._delivered.source or None

    @property
    def partition(self) -> int:
        """-1 for a message of a queue."""
        return self._delivered.partition

    @property
    def offset(self) -> int:
        """-1 for a message of a queue."""
        return self._delivered.offset

    @property
    def deliveries(self) -> int:
        """The delivery count, this delivery included."""
        return self._delivered.deliveries

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before and not acknowledged."""
        return self._delivered.deliveries > 1

    @property
    def deaths(self) -> list[dict[str, Any]]:
        """The failure history of a dead letter, newest failure first: reason, time, queue, count, error."""
        history = self._delivered.message.headers.get("x-death")
        if isinstance(history, str):  # it came through a topic, where headers are text
            try:
                history = decode_json(history.encode())
            except Invalid:
                return []
        return [death for death in history if isinstance(death, dict)] if isinstance(history, list) else []

    @property
    def taken(self) -> datetime:
        """When the broker enqueued it, in UTC."""
        return moment(self._delivered.taken_ms)

    @property
    def timestamp(self) -> datetime:
        """The sender's timestamp, or else when the broker enqueued it."""
        said = self._delivered.message.timestamp_ms
        return moment(self._delivered.taken_ms if said is None else said)

    @property
    def expires(self) -> datetime | None:
        """When its own time to live ends; the queue may have a shorter one."""
        at = self._delivered.message.expires_at_ms(self._delivered.taken_ms)
        return None if at is None else moment(at)

    @property
    def delivered(self) -> Delivered:
        """The message as it was received."""
        return self._delivered

    # -- verdicts ------------------------------------------------------------------------------------------------------

    @property
    def settled(self) -> str | None:
        """How it was settled: `ack`, `reject`, `release`, `kill`; None until then."""
        return self._verdict

    def _judge(self, verdict: str) -> bool:
        """Notes the verdict; False if none is needed. A second one is a Conflict."""
        if not self._settler.settles:
            if verdict == "ack":
                return False
            raise Conflict(f"{self.id}: {verdict}: this message is not in flight, it needs no acknowledgement")
        if self._verdict is not None:
            raise Conflict(f"{self.id}: {verdict}: it is settled already ({self._verdict})")
        if self._settler.transactional and verdict == "ack":
            raise Conflict(f"{self.id}: it was asked for exactly-once: ack it in a transaction, with tx.ack(message)")
        self._verdict = verdict
        return True

    def _reply_address(self) -> str:
        if self._delivered.message.reply_to is None:
            raise Invalid(f"{self.id}: nobody asked for a reply (it has no reply_to)")
        return self._delivered.message.reply_to

    def __len__(self) -> int:
        return len(self._delivered.message.payload)

    def __bool__(self) -> bool:
        return True  # an empty payload is a message too

    def __repr__(self) -> str:
        again = f" delivery {self.deliveries}" if self.redelivered else ""
        return f"<Message {self.id!r} {len(self)} bytes{again}>"


def judged(messages: Iterable[Received], verdict: str) -> dict[tuple[Settler, int], list[int]]:
    """Notes the verdict on all of them; their tags, by who settles them and how often they were delivered."""
    found: dict[tuple[Settler, int], list[int]] = {}
    for message in messages:
        if message._judge(verdict):
            delivered = message._delivered
            found.setdefault((message._settler, delivered.deliveries), []).append(delivered.tag)
    return found


def type_said(message: Message) -> str | None:
    """What a message says of its type: in its own field, or in the header of programs that know no such field."""
    if message.type is not None:
        return message.type
    return message_type(message.headers.get(TYPE_HEADER))


def place_id(queue: str, delivered: Delivered) -> str:
    if queue:
        return f"{queue}#{delivered.tag}"
    return f"{delivered.source}-{delivered.partition}@{delivered.offset}" if delivered.offset >= 0 else ""


def error_text(error: BaseException) -> str:
    """What is kept of an exception with a rejected message."""
    return _as_utf8(f"{type(error).__name__}: {error}"[:2000])


def reason(error: str | BaseException | None) -> str | None:
    """What is kept with a message that failed; raises Invalid for what is no reason."""
    if isinstance(error, BaseException):
        return error_text(error)
    if error is None:
        return None
    if isinstance(error, str):
        return _as_utf8(error)
    raise Invalid(f"error: {error!r:.60} is neither text nor an exception")


def _as_utf8(text: str) -> str:
    """Names of files may have characters that UTF-8 has not (surrogates); the verdict is sent all the same."""
    return text.encode(errors="backslashreplace").decode()


def reply_command(request: Received, message: Message) -> tuple[Command, Any]:
    """The command that sends the reply, and what it is answered with."""
    to = request._reply_address()
    if message.correlation_id is None:
        message = msgspec.structs.replace(message, correlation_id=request.correlation_id)
    if to.startswith(INBOX):
        return Reply(to=to, message=message), bool
    return Put(queue=to, messages=[message]), PutAnswer
