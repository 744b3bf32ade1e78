"""What is sent through each protocol, field by field, and what has to be found behind each other.

A sample is a message with one field set. `value` is that field as our own protocols have it, `record` what a Kafka
record has in its place, `behind` what is read by our own protocols when it went through a topic. Written by hand, and
not made by the code that is tested.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LONG_AGO_MS = 1_700_000_000_123
HOUR_MS = 3_600_000
SHORT_MS, SOON_MS = 40, 800


@dataclass(frozen=True)
class Sample:
    field: str
    name: str
    value: Any
    record: Any
    behind: Any
    waits: bool = False
    """Whether our own protocols keep it back: then it comes to a topic without the field."""

    @property
    def label(self) -> str:
        return f"{self.field}: {self.name}"

    @property
    def payload(self) -> bytes:
        """What it is known by: no two are alike."""
        if self.field == "payload":
            return bytes(self.value)
        return b"" if self.is_tombstone else self.label.encode()

    @property
    def is_tombstone(self) -> bool:
        return self.name == "tombstone"


def text(field: str, name: str, value: str) -> Sample:
    return Sample(field, name, value, value.encode(), value)


def number(field: str, name: str, value: int, *, waits: bool = False) -> Sample:
    return Sample(field, name, value, str(value).encode(), value, waits)


def raw(field: str, name: str, value: bytes) -> Sample:
    return Sample(field, name, value, value, value)


def header(name: str, value: Any, record: bytes | None, behind: Any) -> Sample:
    return Sample("headers", name, {"h": value}, {"h": record}, {"h": behind})


def samples_at(now_ms: int) -> list[Sample]:
    """The samples, for somebody who sends them now. First what must be sent before its time has come."""
    return [number("deliver_at_ms", "soon", now_ms + SOON_MS, waits=True), *_SAMPLES]


_SAMPLES = (
    raw("payload", "text", "grüße".encode()),
    raw("payload", "json", b'{"a": [1, null, 0.5]}'),
    raw("payload", "binary", bytes(range(256))),
    raw("payload", "empty", b""),
    text("id", "plain", "m-1"),
    text("id", "not ASCII", "größe/ü#1"),
    text("id", "the longest", "i" * 255),
    raw("key", "text", "schlüssel".encode()),
    raw("key", "binary", b"\xff\x00\xfe"),
    raw("key", "empty", b""),
    header("text", "grüße", "grüße".encode(), "grüße"),
    header("empty text", "", b"", ""),
    header("a number in text", "5", b"5", "5"),
    header("bytes", b"\xff\x00", b"\xff\x00", b"\xff\x00"),
    header("bytes that are text", b"abc", b"abc", "abc"),
    header("whole number", 5, b"5", "5"),
    header("below zero", -7, b"-7", "-7"),
    header("large number", 2**53 + 1, b"9007199254740993", "9007199254740993"),
    header("fraction", 0.5, b"0.5", "0.5"),
    header("true", True, b"true", "true"),
    header("false", False, b"false", "false"),
    header("null", None, None, None),
    header("list", [1, "ä", None], '[1,"ä",null]'.encode(), '[1,"ä",null]'),
    header("object", {"a": {"b": [True]}}, b'{"a":{"b":[true]}}', '{"a":{"b":[true]}}'),
    Sample(
        "headers",
        "several",
        {"a": "1", "": "no name", "grüße": b"\xfe"},
        {"a": b"1", "": b"no name", "grüße": b"\xfe"},
        {"a": "1", "": "no name", "grüße": b"\xfe"},
    ),
    # No field's: the number cannot be a priority, so it is a header like any other, also behind a topic.
    Sample("headers", "of a field's name", {"x-priority": "256"}, {"x-priority": b"256"}, {"x-priority": "256"}),
    number("priority", "some", 7),
    number("priority", "the highest", 255),
    number("delay_ms", "a little", SHORT_MS, waits=True),
    number("deliver_at_ms", "long ago", LONG_AGO_MS),
    number("ttl_ms", "an hour", HOUR_MS),
    text("correlation_id", "plain", "c-ü"),
    text("reply_to", "plain", "inbox/1"),
    text("content_type", "plain", "text/plain; charset=utf-8"),
    text("type", "event", "event"),
    text("type", "free", "größe"),
    text("type", "tombstone", "tombstone"),
    Sample("type", "tombstone with a payload", "tombstone", b"tombstone", "tombstone"),
    number("max_deliveries", "three", 3),
    Sample("timestamp_ms", "long ago", LONG_AGO_MS, LONG_AGO_MS, LONG_AGO_MS),
    text("exchange", "plain", "crossing-exchange"),
    text("routing_key", "plain", "a.größe.#"),
    text("content_encoding", "plain", "gzip"),
    number("delivery_mode", "transient", 1),
    number("delivery_mode", "persistent", 2),
    text("user_id", "plain", "guest"),
    text("app_id", "plain", "größe/1"),
)

UNSPEAKABLE = {"amqp": {"headers: fraction"}}
"""By way: pika neither writes nor reads fractions."""


def speakable(way: str, samples: list[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.label not in UNSPEAKABLE.get(way, ())]


def name_of(payload: bytes | None, type_: object) -> str:
    """Which sample a message is."""
    if not payload:
        return "type: tombstone" if payload is None or type_ == "tombstone" else "payload: empty"
    own = [sample.label for sample in _SAMPLES if sample.field == "payload" and sample.value == payload]
    return own[0] if own else payload.decode(errors="replace")
