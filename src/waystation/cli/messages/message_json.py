"""A message as a line of JSON: what `consume --json` prints and `publish --input json` reads back.

Nothing is lost on the way: `null` stays apart from an empty text, header names may come twice, and what is not UTF-8 is
in base64 with a field that says so (`value_encoding`, `key_encoding`, and `value_encoding` in a header).
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from waystation.cli.terminal.output import put_bytes
from waystation.errors import Invalid

if TYPE_CHECKING:
    from waystation.client.records.publishing import OutgoingRecord
    from waystation.client.records.reading import IncomingRecord


def to_json(message: IncomingRecord) -> dict[str, object]:
    record = message.record
    return topic_fields(
        message.topic, message.partition, record.offset, record.timestamp, record.key, record.value, record.headers
    )


def topic_fields(
    topic: str,
    partition: int | None,
    offset: int | None,
    timestamp_ms: int | None,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
) -> dict[str, object]:
    """A message of a topic, as `consume --json` and `export` write it."""
    fields: dict[str, object] = {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp_ms,
    }
    put_bytes(fields, "key", key)
    put_bytes(fields, "value", value)
    shown = []
    for name, content in headers:
        header: dict[str, object] = {"name": name}
        put_bytes(header, "value", content)
        shown.append(header)
    fields["headers"] = shown
    return fields


def from_json(line: bytes, partition: int | None) -> OutgoingRecord:
    """The message to publish: value, key and headers are taken, where it was before is not."""
    from waystation.client.records.publishing import OutgoingRecord

    try:
        fields = json.loads(line)
        if not isinstance(fields, dict) or "value" not in fields:
            raise ValueError("expected an object with a value")
        headers = tuple((str(header["name"]), bytes_of(header, "value")) for header in fields.get("headers") or ())
        return OutgoingRecord(bytes_of(fields, "value"), bytes_of(fields, "key"), headers, partition)
    except (ValueError, KeyError, TypeError) as error:
        raise Invalid(f"a line is not a message in JSON ({error}); see `waystation consume --json`") from None


def bytes_of(fields: dict[str, Any], name: str) -> bytes | None:
    text = fields.get(name)
    if text is None:
        return None
    if not isinstance(text, str):
        raise ValueError(f"{name} has to be a string or null")
    encoding = fields.get(f"{name}_encoding", "utf-8")
    if encoding == "base64":
        return b64decode(text, validate=True)
    if encoding != "utf-8":
        raise ValueError(f"{name}_encoding has to be utf-8 or base64")
    return text.encode()
