"""JSON of long answers in pieces, so that nobody else waits while one is made.

Invariant: the pieces together are the very bytes that `encode_json` makes of the whole value. A piece has at most
`PIECE_CHARS` of one text, or `PIECE_MESSAGES` short messages. What escapes make of a text (`\\u0000`: six bytes)
takes more time than all the rest.

Pure; used by the dispatcher for answers that show messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from waystation.protocols.http.transport.replies import encode_json

PIECE_CHARS = 16 * 1024
"""A sixth of a millisecond if all of them have to be escaped."""
PIECE_MESSAGES = 256


def json_pieces(value: Any) -> Iterator[bytes]:
    """What is short is one piece."""
    if isinstance(value, dict) and any(map(_is_long, value.values())):
        before = b"{"
        for name, inner in value.items():
            yield before + encode_json(name) + b":"
            yield from json_pieces(inner)
            before = b","
        yield b"}"
    elif isinstance(value, list) and value:
        yield from _of_list(value)
    elif isinstance(value, str) and _is_long(value):
        yield b'"'
        for at in range(0, len(value), PIECE_CHARS):
            yield encode_json(value[at : at + PIECE_CHARS])[1:-1]
        yield b'"'
    else:
        yield encode_json(value)


def chars_of(value: Any) -> int:
    """Of the texts in an answer that may be long: its messages' payloads."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return chars_of(value.get("payload")) + chars_of(value.get("messages"))
    return sum(map(chars_of, value)) if isinstance(value, list) else 0


def _is_long(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) > PIECE_CHARS
    return isinstance(value, list) or (isinstance(value, dict) and any(map(_is_long, value.values())))


def _of_list(values: list[Any]) -> Iterator[bytes]:
    """Short ones together, a long one by itself."""
    before = b"["
    together: list[Any] = []
    chars = 0
    for value in values:
        long = isinstance(value, dict) and _is_long(value.get("payload"))
        if together and (long or len(together) == PIECE_MESSAGES or chars > PIECE_CHARS):
            yield before + encode_json(together)[1:-1]
            before, together, chars = b",", [], 0
        if long:
            yield before
            yield from json_pieces(value)
            before = b","
        else:
            together.append(value)
            chars += chars_of(value)
    if together:
        yield before + encode_json(together)[1:-1]
    yield b"]"
