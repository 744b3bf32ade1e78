"""Frames as bytes: what the broker sends, with the hot ones (deliver, get-ok, ack) put together by hand.

A frame is its type, its channel, its length, its payload and one byte that ends it. Everything that is sent often is
made of pieces that are made once: `Envelope` keeps the parts of a delivery that a consumer's messages have in common.
Pure; used by the session and its channels.
"""

from __future__ import annotations

from struct import Struct

from pamqp.base import Frame

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
END = 0xCE
END_BYTE = b"\xce"
HEAD_BYTES = 7
OVERHEAD = 8
"""Bytes of a frame beside its payload."""
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"
MIN_FRAME_MAX = 4096
BASIC = 60

PUBLISH = b"\x00\x3c\x00\x28"
ACK = b"\x00\x3c\x00\x50"
_DELIVER = b"\x00\x3c\x00\x3c"
_GET_OK = b"\x00\x3c\x00\x47"
_RETURN = b"\x00\x3c\x00\x32"

frame_head = Struct(">BHI")
_ack = Struct(">BHIHHQBB")
_tag = Struct(">QB")
_content = Struct(">BHIHHQ")
_body = Struct(">BBHI")
MOST_ENVELOPES = 64
"""Exchanges and routing keys whose parts of a delivery a consumer remembers."""


def method_frame(method: Frame, channel: int) -> bytes:
    """A method that is not sent often."""
    payload = method.marshal()
    return frame_head.pack(METHOD, channel, len(payload) + 4) + method.index.to_bytes(4, "big") + payload + END_BYTE


def short(text: str) -> bytes:
    """A short string; as much of it as fits."""
    data = text.encode()[:255]
    return bytes((len(data),)) + data


def ack_frame(channel: int, tag: int, multiple: bool) -> bytes:
    return _ack.pack(METHOD, channel, 13, BASIC, 80, tag, multiple, END)


def nack_frame(channel: int, tag: int, multiple: bool) -> bytes:
    return _ack.pack(METHOD, channel, 13, BASIC, 120, tag, multiple, END)


class Envelope:
    """What comes around a message on its way to one consumer of one channel."""

    __slots__ = ("_channel", "_frame_max", "_known", "_prefix")

    def __init__(self, channel: int, consumer_tag: str, frame_max: int) -> None:
        self._channel = channel
        self._prefix = _DELIVER + short(consumer_tag)
        self._frame_max = frame_max
        self._known: dict[tuple[str | None, str | None], tuple[bytes, bytes]] = {}

    def _around(self, exchange: str | None, routing_key: str | None, queue: str) -> tuple[bytes, bytes]:
        """The method frame before and behind the delivery tag."""
        address = short(exchange or "") + short(routing_key if routing_key is not None else queue)
        size = len(self._prefix) + 9 + len(address)
        around = frame_head.pack(METHOD, self._channel, size) + self._prefix, address + END_BYTE
        if len(self._known) >= MOST_ENVELOPES:
            self._known.clear()
        self._known[exchange, routing_key] = around
        return around

    def add(
        self,
        out: list[bytes],
        tag: int,
        redelivered: bool,
        exchange: str | None,
        routing_key: str | None,
        queue: str,
        properties: bytes,
        payload: bytes,
    ) -> None:
        """Appends the frames of a delivery. A message that never went through an exchange says its queue's name."""
        known = self._known.get((exchange, routing_key))
        head, tail = known if known is not None else self._around(exchange, routing_key, queue)
        size = len(payload)
        channel = self._channel
        if 0 < size <= self._frame_max - OVERHEAD:
            out += (
                head,
                _tag.pack(tag, redelivered),
                tail,
                _content.pack(HEADER, channel, 12 + len(properties), BASIC, 0, size),
                properties,
                _body.pack(END, BODY, channel, size),
                payload,
                END_BYTE,
            )
        else:
            out += (head, _tag.pack(tag, redelivered), tail)
            add_content(out, channel, properties, payload, self._frame_max)


def add_content(out: list[bytes], channel: int, properties: bytes, payload: bytes, frame_max: int) -> None:
    """Appends a content header and as many body frames as it takes."""
    size = len(payload)
    out += (_content.pack(HEADER, channel, 12 + len(properties), BASIC, 0, size), properties, END_BYTE)
    most = frame_max - OVERHEAD
    for start in range(0, size, most):
        piece = payload[start : start + most]
        out += (frame_head.pack(BODY, channel, len(piece)), piece, END_BYTE)


def get_ok_head(channel: int, tag: int, redelivered: bool, exchange: str, routing_key: str, left: int) -> bytes:
    payload = _GET_OK + _tag.pack(tag, redelivered) + short(exchange) + short(routing_key) + left.to_bytes(4, "big")
    return frame_head.pack(METHOD, channel, len(payload)) + payload + END_BYTE


def return_head(channel: int, code: int, text: str, exchange: str, routing_key: str) -> bytes:
    payload = _RETURN + code.to_bytes(2, "big") + short(text) + short(exchange) + short(routing_key)
    return frame_head.pack(METHOD, channel, len(payload)) + payload + END_BYTE
