"""What a search of a topic asks for, and whether a message is it. Pure; `searching.py` searches."""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Annotated

import msgspec
from msgspec import Meta

from waystation.errors import Invalid
from waystation.message import Message
from waystation.paging import Limit


class SearchTerms(msgspec.Struct):
    """What to look for. What is empty is not asked for."""

    key: Annotated[str, Meta(description="messages with this key")] = ""
    key_base64: Annotated[str, Meta(description="the same, where the key is not text")] = ""
    id: Annotated[str, Meta(description="its own id, or TOPIC-PARTITION@OFFSET")] = ""
    text: Annotated[str, Meta(description="what the payload contains, capitals as they are")] = ""
    header: Annotated[list[str], Meta(description="NAME=VALUE, or NAME: has such a header; may be repeated")] = []
    partition: Annotated[int, Meta(ge=0, description="only this one")] | None = None
    from_ms: Annotated[int, Meta(ge=0, description="not older than this")] | None = None
    newest: Annotated[bool, Meta(description="the newest first")] = False
    cursor: Annotated[str, Meta(description="`cursor` of the answer before: where to continue")] = ""
    limit: Limit = 50


class SearchQuery(SearchTerms, kw_only=True):
    topic: str


class MessageMatcher:
    """What a message has to be like."""

    def __init__(self, query: SearchQuery) -> None:
        if query.key and query.key_base64:
            raise Invalid("key: is given twice, as key and key_base64")
        self.key = _base64(query.key_base64) if query.key_base64 else _utf8("key", query.key)
        self.id = query.id
        self.text = _utf8("text", query.text)
        self.headers = [_header(text) for text in query.header if text]
        needles = [self.key, _utf8("id", query.id), self.text]
        for name, value in self.headers:
            needles += [_utf8("header", name), _utf8("header", value or "")]
        self._needles = [needle for needle in needles if needle]

    def may_be_in(self, data: bytes, start: int, end: int) -> bool:
        """Whether a batch that is not compressed can hold one."""
        return all(data.find(needle, start, end) >= 0 for needle in self._needles)

    def matches(self, message: Message) -> bool:
        return (not self.id or message.id == self.id) and self.fits(message)

    def fits(self, message: Message) -> bool:
        """The same without the id."""
        if self.key and message.key != self.key:
            return False
        if self.text and self.text not in message.payload:
            return False
        return all(_has(message, name, value) for name, value in self.headers)


def _has(message: Message, name: str, value: str | None) -> bool:
    if name not in message.headers:
        return False
    there = message.headers[name]
    if isinstance(there, list) and value in there:  # several headers with one name
        return True
    return value is None or there == value or (not isinstance(there, str | bytes) and str(there) == value)


def _header(text: str) -> tuple[str, str | None]:
    name, sign, value = text.partition("=")
    if not name:
        raise Invalid(f"header: {text[:60]!r} has no name; write NAME=VALUE, or NAME alone")
    return name, value if sign else None


def _utf8(field: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{field}: has half of a surrogate pair, which no text can have") from None


def _base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Invalid(f"key_base64: is not base64: {error}") from None
