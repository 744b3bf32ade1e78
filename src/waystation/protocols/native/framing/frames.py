"""The msgpack framing, sans I/O: bytes in, commands out; answers in, bytes out.

A connection begins with `MAGIC`. Then each frame is a four-byte big-endian length and one command (or, the other way,
one answer or push) in msgpack. A command that is well-formed msgpack but makes no sense is refused and the connection
lives; a frame that is no frame (`BadFrame`) is the end of it, since nobody knows where the next one begins.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from waystation.protocol import MAGIC, MAX_FRAME_BYTES, AnyCommand, Outgoing
from waystation.protocols.native.framing.intake import Intake

LARGE_FRAME_BYTES = 4 * 1024 * 1024
"""msgpack of one byte can become an object of a hundred: a frame larger than this is counted before it is decoded."""

MAX_VALUES_IN_LARGE_FRAME = 300_000

COMMANDS_AT_ONCE = 1_024

_LENGTH = struct.Struct(">I")
_length = _LENGTH.unpack_from
_pack_length = _LENGTH.pack_into
_decode = msgspec.msgpack.Decoder(AnyCommand).decode
_encode_into = msgspec.msgpack.Encoder().encode_into


class BadFrame(Exception):
    """The peer does not speak this protocol, or breaks it. A fault of theirs, not of ours."""


class UnreadableRequest(NamedTuple):
    """A request that cannot be understood; the connection is fine."""

    id: int
    why: str


class Frames:
    """One connection's side of the framing."""

    def __init__(self, max_frame: int = MAX_FRAME_BYTES) -> None:
        self.intake = Intake()
        self.max_frame = max_frame
        self._greeted = False
        self.awaited = 0  # bytes of the frame that has begun to arrive, as it says itself

    def commands(self, limit: int = COMMANDS_AT_ONCE) -> list[AnyCommand | UnreadableRequest]:
        """The next whole commands, up to `limit`; none until more bytes come. Raises BadFrame."""
        if not self._greeted and not self._greet():
            return []
        # One view and one loop for all of them: a view and three calls for each were a tenth of what a put costs.
        found: list[AnyCommand | UnreadableRequest] = []
        self.awaited = 0
        view = self.intake.view()
        at, end = 0, len(view)
        try:
            while len(found) < limit and end - at >= 4:
                size = _length(view, at)[0]
                if not 0 < size <= self.max_frame:
                    raise BadFrame(f"a frame of {size} bytes; 1 to {self.max_frame} are taken")
                begin = at + 4
                if begin + size > end:
                    self.awaited = 4 + size
                    break
                found.append(_open(view[begin : begin + size]))
                at = begin + size
        except BadFrame:
            if not found:
                raise
            # What came before it was right and is answered first; the next call meets it again.
        finally:
            view.release()
            self.intake.drop(at)
        self.intake.expected = self.awaited
        return found

    def _greet(self) -> bool:
        if self.intake.unread < len(MAGIC):
            return False
        if bytes(self.intake.view(0, len(MAGIC))) != MAGIC:
            raise BadFrame("the connection does not begin with the native protocol's greeting, version 1")
        self.intake.drop(len(MAGIC))
        self._greeted = True
        return True


def _open(frame: memoryview) -> AnyCommand | UnreadableRequest:
    if len(frame) > LARGE_FRAME_BYTES:
        check_values(frame, MAX_VALUES_IN_LARGE_FRAME)
    try:
        command: AnyCommand = _decode(frame)
        return command
    except msgspec.ValidationError as error:
        return UnreadableRequest(_id_of(frame), str(error))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadFrame(f"a frame that is not msgpack: {error}") from None


def encode_into(out: bytearray, outgoing: Outgoing) -> None:
    """Appends the frame of an answer or a push."""
    at = len(out)
    out += b"\0\0\0\0"
    _encode_into(outgoing, out, -1)
    _pack_length(out, at, len(out) - at - 4)


class _Numbered(msgspec.Struct):
    id: int = 0


_decode_numbered = msgspec.msgpack.Decoder(_Numbered).decode


def _id_of(frame: memoryview) -> int:
    """The id of a command whose rest makes no sense; 0 if that makes none either."""
    try:
        return _decode_numbered(frame).id
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return 0


def check_values(frame: memoryview, limit: int) -> None:
    """Raises BadFrame if more than `limit` values are in a frame. Steps over them without making any."""
    at, left, seen = 0, 1, 0
    try:
        while left:
            left -= 1
            seen += 1
            if seen + left > limit:
                raise BadFrame(f"a frame of {len(frame)} bytes with more than {limit} values; send smaller frames")
            code = frame[at]
            at += 1
            if code < 0x80 or code >= 0xE0 or code in (0xC0, 0xC2, 0xC3):
                continue
            if code < 0x90:
                left += 2 * (code & 0x0F)
            elif code < 0xA0:
                left += code & 0x0F
            elif code < 0xC0:
                at += code & 0x1F
            else:
                at, more = _step(frame, code, at)
                left += more
    except IndexError:
        pass  # too short: decoding it says so


def _step(frame: memoryview, code: int, at: int) -> tuple[int, int]:
    """(where the value ends, how many values are inside it), for those with a length or a size behind their code."""
    width, multiple, head = _SIZED.get(code, (0, 0, _FIXED.get(code, 0)))
    if not width:
        return at + head, 0
    count = int.from_bytes(frame[at : at + width], "big")
    at += width
    return (at, count * multiple) if multiple else (at + head + count, 0)


# code: (bytes of length, values per unit or 0 where the unit is a byte, bytes between length and body)
_SIZED = {
    0xC4: (1, 0, 0),
    0xC5: (2, 0, 0),
    0xC6: (4, 0, 0),
    0xC7: (1, 0, 1),
    0xC8: (2, 0, 1),
    0xC9: (4, 0, 1),
    0xD9: (1, 0, 0),
    0xDA: (2, 0, 0),
    0xDB: (4, 0, 0),
    0xDC: (2, 1, 0),
    0xDD: (4, 1, 0),
    0xDE: (2, 2, 0),
    0xDF: (4, 2, 0),
}
# code: bytes of the value
_FIXED = {
    0xCA: 4,
    0xCB: 8,
    0xCC: 1,
    0xCD: 2,
    0xCE: 4,
    0xCF: 8,
    0xD0: 1,
    0xD1: 2,
    0xD2: 4,
    0xD3: 8,
    0xD4: 2,
    0xD5: 3,
    0xD6: 5,
    0xD7: 9,
    0xD8: 17,
}
