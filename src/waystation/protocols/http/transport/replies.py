"""Answers, and their bytes. Pure: the connection writes what this makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from math import ceil

import msgspec

from waystation.errors import Full, QuotaExceeded, Unavailable, WaystationError
from waystation.protocols.http.transport.problems import (
    PROBLEM_TYPE,
    MethodNotAllowed,
    Problem,
    Unauthorized,
    problem_of,
)

JSON_TYPE = "application/json"
EVENTS_TYPE = "text/event-stream"
RETRY_AFTER_S = "1"
BODILESS = (204, 304)

encode_json = msgspec.json.Encoder().encode

END = b"\n"
"""Of a JSON body: a prompt in a terminal stands on a line of its own."""

_LINES = {int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\n" for status in HTTPStatus}


class Reply(msgspec.Struct):
    """An answer. One that is long is made while its client reads it: `pieces` follow `body`, `text` is about how many
    bytes they hold in memory until they are made."""

    status: int = 200
    body: bytes = b""
    content_type: str = JSON_TYPE
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    pieces: Iterator[bytes] | None = None
    text: int = 0


def json_reply(value: object, status: int = 200) -> Reply:
    return Reply(status, encode_json(value) + END)


def problem_reply(problem: Problem, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(problem.status, encode_json(problem) + END, PROBLEM_TYPE, headers or {})


def error_reply(error: WaystationError) -> Reply:
    headers: dict[str, str] = {}
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.allowed)
    elif isinstance(error, Unauthorized):
        headers["www-authenticate"] = error.challenge
    elif isinstance(error, QuotaExceeded):
        headers["retry-after"] = str(max(1, ceil(error.retry_after_s)))
    elif isinstance(error, Full | Unavailable):
        headers["retry-after"] = RETRY_AFTER_S
    return problem_reply(problem_of(error), headers)


def reply_bytes(reply: Reply, date: str, keep_alive: bool, *, head_only: bool = False, chunked: bool = False) -> bytes:
    """The whole answer as it goes out; of one in pieces the head. Without chunks its end is that of the connection."""
    lines = [_LINES[reply.status], f"date: {date}\r\n"]
    if reply.status not in BODILESS:
        lines.append(f"content-type: {reply.content_type}\r\n")
        if reply.pieces is None:
            lines.append(f"content-length: {len(reply.body)}\r\n")
        elif chunked:
            lines.append("transfer-encoding: chunked\r\n")
    lines += [f"{name}: {value}\r\n" for name, value in reply.headers.items()]
    lines.append("\r\n" if keep_alive else "connection: close\r\n\r\n")
    head = "".join(lines).encode("latin-1")
    return head if head_only or reply.pieces is not None or reply.status in BODILESS else head + reply.body


def chunk(parts: list[bytes]) -> bytes:
    """A part of an answer in chunks."""
    return b"".join((b"%x\r\n" % sum(map(len, parts)), *parts, b"\r\n"))


LAST_CHUNK = b"0\r\n\r\n"


def stream_head(date: str) -> bytes:
    """The head of an event stream: no length, so it ends with the connection, which HTTP/1.0 understands as well."""
    return (
        f"{_LINES[200]}date: {date}\r\ncontent-type: {EVENTS_TYPE}\r\ncache-control: no-store\r\n"
        "x-accel-buffering: no\r\nconnection: close\r\n\r\n"
    ).encode("latin-1")
