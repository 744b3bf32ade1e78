r"""`consume --format`: a text with fields in braces, like `{partition}:{offset} {key} {value}\n`.

Fields: topic, partition, offset, timestamp (epoch ms), time (ISO 8601, UTC), key, value, headers. `\n`, `\t`, `\0` and
`\\` are what they look like; `{{` and `}}` are braces. Keys and values are written byte for byte, an absent one not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from waystation.errors import Invalid

if TYPE_CHECKING:
    from waystation.client.records.reading import IncomingRecord

M = TypeVar("M")

DEFAULT = r"{value}\n"

_Field = Callable[["IncomingRecord"], bytes]
_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|\\(.)|[{}]|[^{}\\]+|\\", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def _headers(message: IncomingRecord) -> bytes:
    return b",".join(name.encode() + b"=" + (content or b"") for name, content in message.record.headers)


def _time(message: IncomingRecord) -> bytes:
    moment = datetime.fromtimestamp(message.record.timestamp / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()


FIELDS: dict[str, _Field] = {
    "topic": lambda message: message.topic.encode(),
    "partition": lambda message: b"%d" % message.partition,
    "offset": lambda message: b"%d" % message.record.offset,
    "timestamp": lambda message: b"%d" % message.record.timestamp,
    "time": _time,
    "key": lambda message: message.record.key or b"",
    "value": lambda message: message.record.value or b"",
    "headers": _headers,
}


def compile_template(text: str) -> _Field:
    """A function from a record to the bytes to print; raises Invalid for a field that there is not."""
    return compile_with(text, FIELDS)


def compile_with(text: str, fields: Mapping[str, Callable[[M], bytes]]) -> Callable[[M], bytes]:
    """The same for any kind of message, by its own fields."""
    parts: list[Callable[[M], bytes]] = []
    for token in _TOKEN.finditer(text):
        name, escape = token[1], token[2]
        if name is not None:
            if name not in fields:
                raise Invalid(f"--format has no field {name!r}; there are {', '.join(fields)}")
            parts.append(fields[name])
        else:
            parts.append(_constant(_ESCAPES.get(escape, token[0].encode()) if escape else _literal(token[0])))
    return lambda message: b"".join([part(message) for part in parts])


def _literal(text: str) -> bytes:
    return text[:1].encode() if text in ("{{", "}}") else text.encode()


def _constant(data: bytes) -> Callable[[object], bytes]:
    return lambda message: data
