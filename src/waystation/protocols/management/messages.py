"""RabbitMQ's management API: publish a message through an exchange, get some from a queue. For looking and trying.

Properties are read and written by AMQP's codec: a message published here is what it would be if an AMQP client had
published it.
"""

from __future__ import annotations

import base64
import binascii
import struct
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pamqp import commands

from waystation.broker.access.types import Getter, NamespaceNames, Receipt, Settled, Verdict
from waystation.errors import NotFound
from waystation.message import Delivered, Message, size_of
from waystation.protocols.http.transport.calls import LONGEST_WAIT_S
from waystation.protocols.management import declaring
from waystation.protocols.management.calls import ApiCall, bad_request, body_of, number, table, text
from waystation.protocols.management.shapes import plain
from waystation.vhosts.routes import Routes
from waystation.wire.amqp import properties

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.protocols.management.api import Management

MAX_GET = 1_000
VISIBILITY_TIMEOUT_MS = 60_000
ANSWER_BYTES = 8 * 1024 * 1024
VERDICTS = {
    "ack_requeue_true": Verdict.RELEASE,
    "reject_requeue_true": Verdict.REJECT,
    "ack_requeue_false": Verdict.ACK,
    "reject_requeue_false": Verdict.KILL,
}
ACK_MODES = tuple(VERDICTS)
_SHORT = ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "user_id", "app_id")
_flags = struct.Struct(">H")


async def publish(api: Management, access: Access, exchange: str, call: ApiCall) -> dict[str, bool]:
    said = body_of(call, "properties", "routing_key", "payload", "payload_encoding")
    key = text(said["routing_key"], "routing_key")
    payload = _payload(text(said["payload"], "payload"), said["payload_encoding"])
    access.check_publish_quota(LONGEST_WAIT_S)
    template = properties.template_of(_written(table(said["properties"], "properties")))
    message = template.make(payload, exchange, key)
    try:
        queues, topics = _targets(api, access, Destination(exchange, key), template.keys, message)
    except NotFound:
        raise bad_request(f"404 NOT_FOUND - no exchange '{exchange}' in vhost '{access.namespace}'") from None
    receipts: list[Receipt | None] = []
    have: set[str] = set()
    for taken, receipt in access.put_same_routed(queues, [message]):
        have.update(taken)
        receipts.append(receipt)
    receipts += [access.put_routed(name, [message]).receipt for name in queues if name not in have]
    for topic in topics:
        receipts += access.publish_routed(topic, [message], promised=True).receipts
    access.count(1, len(payload))
    await access.durable(*receipts)
    return {"routed": bool(queues or topics)}


class Destination(NamedTuple):
    """Where a publish goes, as it says it."""

    exchange: str
    key: str


def _targets(
    api: Management, access: Access, to: Destination, more: tuple[str, ...], message: Message
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Queues and topics, as for an AMQP client of the virtual host. `more`: keys in the message's headers."""
    routes = Routes(access, declaring.sources(api, access))
    queues, topics, depends = routes.resolve(to.exchange, to.key)
    return routes.route_all(to, more, message) if depends or more else (queues, topics)


def _payload(said: str, encoding: object) -> bytes:
    if encoding == "string":
        return said.encode(errors="surrogatepass")
    if encoding != "base64":
        raise bad_request(f"payload_encoding: {encoding!r} is neither string nor base64")
    try:
        return base64.b64decode(said, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("payload: it is not base64") from None


def _written(said: dict[str, Any]) -> bytes:
    """Properties in JSON as the bytes of a content header."""
    known: dict[str, Any] = {name: text(said[name], name) for name in _SHORT if name in said}
    if "type" in said:
        known["message_type"] = text(said["type"], "type")
    if "expiration" in said:
        known["expiration"] = str(said["expiration"])
    for name in ("delivery_mode", "priority"):
        if name in said:
            known[name] = number(said[name], name)
            if not 0 <= known[name] <= 255:
                raise bad_request(f"{name}: {known[name]} is not between 0 and 255")
    if "headers" in said:
        known["headers"] = table(said["headers"], "headers")
    try:
        if "timestamp" in said:
            known["timestamp"] = datetime.fromtimestamp(number(said["timestamp"], "timestamp"), UTC)
        return commands.Basic.Properties(**known).marshal()
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        raise bad_request(f"properties: {error}") from None


async def get(api: Management, access: Access, name: str, call: ApiCall) -> list[dict[str, Any]]:
    """Messages from the front of a queue. With `ack_requeue_true` they are back at once, and no delivery is counted."""
    said = body_of(call, "ackmode", "encoding", "count")
    count = min(max(number(said["count"], "count"), 0), MAX_GET)
    mode = said["ackmode"]
    if mode not in ACK_MODES:
        raise bad_request(f"ackmode: {mode!r} is none; it is one of {', '.join(ACK_MODES)}")
    if said["encoding"] not in ("auto", "base64"):
        raise bad_request(f"encoding: {said['encoding']!r} is neither auto nor base64")
    truncate = number(said["truncate"], "truncate") if "truncate" in said else None
    names = access.names
    if declaring.sources(api, access).find(name) is not None:
        raise bad_request(f"basic.get not supported by queue '{name}' in vhost '{names.vhost}': it is on a topic")
    getter = access.getter(names.full(name), call.peer.name, VISIBILITY_TIMEOUT_MS, silent=True)
    shown: list[dict[str, Any]] = []
    size = 0
    try:
        taken_runs: list[tuple[int, int]] = []
        while len(shown) < count and size < ANSWER_BYTES and (taken := getter.take(1)):
            taken_runs.append((taken[0].tag, 1))
            size += size_of(taken[0].message)
            access.count_delivered(1, len(taken[0].message.payload))
            shown.append(_shown(taken[0], names, said["encoding"], truncate, getter.queue.open_ledger().ready))
        if taken_runs:
            settled = _settle(getter, VERDICTS[mode], taken_runs)
            api.meter.settled(VERDICTS[mode].value, len(taken_runs))
            await access.durable(settled.receipt)
    finally:
        getter.close()
    return shown


def _settle(getter: Getter, verdict: Verdict, taken_runs: list[tuple[int, int]]) -> Settled:
    return getter.settle(verdict, taken_runs, delay_ms=0 if verdict is Verdict.REJECT else None)


def _shown(
    delivered: Delivered, names: NamespaceNames, encoding: str, truncate: int | None, left: int
) -> dict[str, Any]:
    message = delivered.message
    payload = message.payload if truncate is None else message.payload[: max(truncate, 0)]
    try:
        if encoding != "auto":
            raise UnicodeError
        said, encoded = payload.decode(), "string"
    except UnicodeError:
        said, encoded = base64.b64encode(payload).decode(), "base64"
    return {
        "payload_bytes": len(message.payload),
        "redelivered": delivered.deliveries > 1,
        "exchange": message.exchange or "",
        "routing_key": message.routing_key if message.routing_key is not None else "",
        "message_count": left,
        "properties": _read(properties.encode(message, names)),
        "payload": said,
        "payload_encoding": encoded,
    }


def _read(data: bytes) -> dict[str, Any]:
    """The bytes of a content header as properties in JSON."""
    known = commands.Basic.Properties()
    known.unmarshal(_flags.unpack_from(data)[0], data[_flags.size :])
    shown: dict[str, Any] = {}
    for name in commands.Basic.Properties.__slots__:
        value = getattr(known, name)
        if value is not None and value != "":
            shown["type" if name == "message_type" else name] = plain(value)
    return shown
