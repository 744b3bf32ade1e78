"""A batch as an encrypted log stores it: its header, and its records sealed.

    0 the header, as in `batch.py`: the length counts what is stored, the CRC is that of what is stored, attribute bit
    14 is set · 61 folder key u32 · 65 salt 16 bytes · 81 counter u32 · 85 ciphertext of the records · tag 16 bytes

So it is a batch as well. Whoever looks for batches in a file (recovery, indexes, truncation, repair, the search behind
damage) needs no key, and finds torn and damaged ones by the CRC, as everywhere. Positions in a segment are those of
what is stored. Encrypted and plain batches may stand in the same file: encryption begins with the next append.

The whole header, without its CRC, is associated data: nobody changes an offset, a time or a producer unseen. The CRC of
the original is not stored, since it would tell something of the records: it is computed again.
"""

from __future__ import annotations

import struct

from waystation.encryption.key_ring import OVERHEAD, DataKey, KeyRing, NotOpened
from waystation.errors import Corrupt
from waystation.log.batches.batch import CRC_START, ENCRYPTED, HEADER_SIZE, Buffer, Header, scan
from waystation.wire.crc32c import crc32c

_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_CRC_AND_ATTRIBUTES = struct.Struct(">Ih")
_LENGTH_AT, _CRC_AT = 8, 17


def sealed_batch(key: DataKey, batch: Buffer) -> list[Buffer]:
    """Two parts, to be written one after another."""
    view = memoryview(batch)
    head = bytearray(view[:HEADER_SIZE])
    (length,) = _LENGTH.unpack_from(head, _LENGTH_AT)
    _, attributes = _CRC_AND_ATTRIBUTES.unpack_from(head, _CRC_AT)
    _LENGTH.pack_into(head, _LENGTH_AT, length + OVERHEAD)
    _CRC_AND_ATTRIBUTES.pack_into(head, _CRC_AT, 0, attributes | ENCRYPTED)
    prefix, sealed = key.seal(view[HEADER_SIZE:], bytes(head))
    head += prefix
    _CRC.pack_into(head, _CRC_AT, crc32c(sealed, crc32c(memoryview(head)[CRC_START:])))
    return [head, sealed]


def opened_batches(keys: KeyRing, data: bytes) -> tuple[bytes, int]:
    """The whole batches in `data` as they were appended, and the offset behind them. NotOpened or UnknownKey if the
    first does not open; else those before it."""
    parts: list[Buffer] = []
    behind = 0
    for at, header in scan(data):
        if not header.attributes & ENCRYPTED:
            parts.append(memoryview(data)[at : at + header.size])
        else:
            try:
                parts += _opened(keys, data, at, header)
            except Corrupt:
                if not parts:
                    raise
                break
        behind = header.base_offset + header.last_offset_delta + 1
    return b"".join(parts), behind


def _opened(keys: KeyRing, data: bytes, at: int, header: Header) -> list[Buffer]:
    if header.size < HEADER_SIZE + OVERHEAD:
        raise NotOpened("an encrypted batch ends in the middle")
    head = bytearray(data[at : at + HEADER_SIZE])
    _CRC.pack_into(head, _CRC_AT, 0)
    records = keys.open(memoryview(data)[at + HEADER_SIZE : at + header.size], bytes(head))
    _LENGTH.pack_into(head, _LENGTH_AT, header.length - OVERHEAD)
    _CRC_AND_ATTRIBUTES.pack_into(head, _CRC_AT, 0, header.attributes & ~ENCRYPTED)
    _CRC.pack_into(head, _CRC_AT, crc32c(records, crc32c(memoryview(head)[CRC_START:])))
    return [head, records]
