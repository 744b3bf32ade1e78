"""What a filter looks at: one message, and where it was sent. Its JSON is read at most once, and only if asked for.

A field that is not there is `MISSING`, which is neither null nor anything else. Whoever puts one message before many
filters makes one `Subject` for all of them. Pure; for the filters of this package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from waystation.message import Message


class Missing:
    """The type of `MISSING`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


_decode = msgspec.json.decode

MISSING: Final = Missing()
_UNREAD: Final = Missing()

Step = str | int
Getter = Callable[["Subject"], Any]


class Subject:
    """One message before the filters."""

    __slots__ = ("_json", "_text", "message", "routing_key", "topic")

    def __init__(self, message: Message, topic: str = "", routing_key: str = "") -> None:
        self.message = message
        self.topic = topic
        self.routing_key = routing_key
        self._json: Any = _UNREAD
        self._text: str | Missing = _UNREAD

    @property
    def json(self) -> Any:
        """The payload as JSON; MISSING if it is none."""
        if self._json is _UNREAD:
            self._json = _read_json(self.message.payload)
        return self._json

    @property
    def text(self) -> str | Missing:
        """The payload as text; MISSING if it is none."""
        if self._text is _UNREAD:
            try:
                self._text = self.message.payload.decode()
            except UnicodeDecodeError:
                self._text = MISSING
        return self._text


def _read_json(payload: bytes) -> Any:
    try:
        return _decode(payload)
    except (ValueError, RecursionError):  # every error of msgspec's, and of UTF-8, is a ValueError
        return MISSING


def plain(value: Any) -> Any:
    """Bytes are text where they decode: a header that came by Kafka compares like one that came by JSON."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


def _given(value: Any) -> Any:
    """A property of a message that its sender did not set is missing, not null."""
    return MISSING if value is None else value


FIELDS: dict[str, Getter] = {
    "topic": lambda subject: subject.topic or MISSING,
    "routing_key": lambda subject: subject.routing_key,
    "id": lambda subject: _given(subject.message.id),
    "key": lambda subject: _given(plain(subject.message.key)),
    "priority": lambda subject: subject.message.priority,
    "type": lambda subject: _given(subject.message.type),
    "content_type": lambda subject: _given(subject.message.content_type),
    "correlation_id": lambda subject: _given(subject.message.correlation_id),
    "reply_to": lambda subject: _given(subject.message.reply_to),
    "timestamp_ms": lambda subject: _given(subject.message.timestamp_ms),
    "delay_ms": lambda subject: subject.message.delay_ms,
    "deliver_at_ms": lambda subject: _given(subject.message.deliver_at_ms),
    "ttl_ms": lambda subject: _given(subject.message.ttl_ms),
    "max_deliveries": lambda subject: subject.message.max_deliveries,
    "size": lambda subject: len(subject.message.payload),
    "text": lambda subject: subject.text,
}
"""Fields of one value each."""

ROOTS = ("headers", "json", "payload")
"""Fields that have fields: `headers.NAME`, `json.NAME`; `payload` is another word for `json`."""


def getter(root: str, steps: tuple[Step, ...]) -> Getter:
    """Reads `root` and then goes down `steps`. The root is one of FIELDS (without steps) or of ROOTS."""
    if root == "headers":
        return _header(str(steps[0]), steps[1:])
    if root in ROOTS:
        return _json(steps)
    return FIELDS[root]


def _header(name: str, steps: tuple[Step, ...]) -> Getter:
    if not steps:
        return lambda subject: plain(subject.message.headers.get(name, MISSING))
    return lambda subject: _down(subject.message.headers.get(name, MISSING), steps)


def _json(steps: tuple[Step, ...]) -> Getter:
    if len(steps) == 1 and isinstance(steps[0], str):
        name = steps[0]

        def one_name(subject: Subject) -> Any:
            value = subject.json
            return value.get(name, MISSING) if isinstance(value, dict) else MISSING

        return one_name
    return lambda subject: _down(subject.json, steps)


def _down(value: Any, steps: tuple[Step, ...]) -> Any:
    for step in steps:
        if isinstance(step, str):
            value = value.get(step, MISSING) if isinstance(value, dict) else MISSING
        elif isinstance(value, list | tuple) and -len(value) <= step < len(value):
            value = value[step]
        else:
            return MISSING
    return plain(value)
