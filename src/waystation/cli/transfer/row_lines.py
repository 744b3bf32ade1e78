"""Rows as JSON lines: of a topic as `consume --json` prints them, of a queue as `queues peek --json` does.

So such a file can be made and read by those commands too. Two things are different for queues, since nothing may be
lost: a message without an id of its own has none in the file, and headers that JSON cannot say (moments, bytes within
lists) are in `headers_msgpack` as well.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

import msgspec

from waystation.cli.messages.message_json import bytes_of, topic_fields
from waystation.cli.transfer.rows import QueueRow, Row, TopicRow
from waystation.errors import Invalid
from waystation.message_json import from_json_object, to_json_object

EXACT = "headers_msgpack"
_encode = msgspec.json.Encoder().encode
_spell = json.JSONEncoder(ensure_ascii=False).encode
"""Slower, and knows numbers that a header may have and JSON has not: NaN and the infinities."""
_PLAIN = (str, int, bool, type(None), bytes)


def to_line(row: Row) -> bytes:
    if isinstance(row, TopicRow):
        return _encode(_of_topic(row)) + b"\n"
    return _spell(_of_queue(row)).encode() + b"\n"


def from_line(line: bytes) -> Row:
    """The row that a line is; Invalid says what is wrong with it."""
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError("expected an object")
        if "value" in fields:
            return _to_topic(fields)
        if fields.keys() & {"payload", "payload_base64", "json"}:
            return _to_queue(fields)
        raise ValueError("it has neither a value (of a topic) nor a payload (of a queue)")
    except Invalid:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Invalid(f"not a message in JSON ({error}); see `waystation export --help`") from None


# -- topics ------------------------------------------------------------------------------------------------------------


def _of_topic(row: TopicRow) -> dict[str, object]:
    return topic_fields(row.topic, row.partition, row.offset, row.timestamp_ms, row.key, row.value, row.headers)


def _to_topic(fields: dict[str, Any]) -> TopicRow:
    return TopicRow(
        topic=str(fields.get("topic", "")),
        partition=_number_or_none(fields, "partition"),
        offset=_number(fields, "offset", -1),
        timestamp_ms=_number_or_none(fields, "timestamp"),
        key=bytes_of(fields, "key"),
        value=bytes_of(fields, "value"),
        headers=tuple((str(header["name"]), bytes_of(header, "value")) for header in fields.get("headers") or ()),
    )


# -- queues ------------------------------------------------------------------------------------------------------------


def _of_queue(row: QueueRow) -> dict[str, object]:
    fields = to_json_object(row.message)
    if not all(isinstance(value, _PLAIN) for value in row.message.headers.values()) and not _is_exact(row, fields):
        fields[EXACT] = b64encode(msgspec.msgpack.encode(row.message.headers)).decode()
    fields |= {
        "queue": row.queue,
        "tag": row.tag,
        "taken_ms": row.taken_ms,
        "deliveries": row.deliveries,
        "state": row.state,
    }
    if row.ready_at_ms is not None:
        fields["ready_at_ms"] = row.ready_at_ms
    return fields


def _is_exact(row: QueueRow, fields: Mapping[str, Any]) -> bool:
    back = from_json_object(json.loads(json.dumps(fields)))
    return msgspec.msgpack.encode(back.headers) == msgspec.msgpack.encode(row.message.headers)


def _to_queue(fields: dict[str, Any]) -> QueueRow:
    exact = fields.pop(EXACT, None)
    message = from_json_object(fields)
    if exact is not None:
        headers = msgspec.msgpack.decode(b64decode(exact, validate=True))
        message = msgspec.structs.replace(message, headers=headers)
    return QueueRow(
        queue=str(fields.get("queue", "")),
        message=message,
        tag=_number(fields, "tag", -1),
        taken_ms=_number(fields, "taken_ms", 0),
        deliveries=_number(fields, "deliveries", 0),
        state=str(fields.get("state", "ready")),
        ready_at_ms=_number_or_none(fields, "ready_at_ms"),
    )


def _number(fields: Mapping[str, Any], name: str, default: int) -> int:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} has to be a whole number")
    return value


def _number_or_none(fields: Mapping[str, Any], name: str) -> int | None:
    return None if fields.get(name) is None else _number(fields, name, 0)
