"""The five codecs of Kafka's record batches, with a bound on what a few bytes may swell to.

Batches are stored and sent as they came; what is opened here is what a producer's batch is checked by, what topics
need that ask for per-record work (compaction, dedup, another codec than the producer's), and what readers other than
Kafka's get. No codec ever writes more than the limit that it is given. `cramjam` brings all of them in one wheel; it is
imported on first use, since many brokers never need it.

Snappy comes in two framings: plain blocks, and the chunked one of the Java client (magic "\x82SNAPPY\\0").
"""

from __future__ import annotations

import struct
import zlib

from waystation.errors import InvalidRecord, TooLarge

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_MASK = 0x07
CODEC_NAMES = {"none": NONE, "uncompressed": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}

MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024
"""A batch is at most some MiB compressed; one that opens to more than this is an attack or a mistake."""

OPENED_FACTOR = 16
"""How many times a topic's `max.message.bytes` the records of a batch may have when they are decompressed. Logs and
JSON shrink to a tenth; a batch that shrinks to a thousandth is a bomb."""

_LEAST_OPENED_BYTES = 16 * 1024 * 1024
"""Also for topics that take small batches only, and for those whose `max.message.bytes` was lowered."""

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER_SIZE = 16
_CHUNK = struct.Struct(">I")

_LZ4_HEADER = bytes.fromhex("04224d18 60 40 82")  # magic; version 1, independent blocks; of 64 KiB; header checksum
_LZ4_BLOCK = 64 * 1024
_LZ4_SIZE = struct.Struct("<I")


def opened_limit(max_message_bytes: int) -> int:
    """The most bytes that a batch of a topic may have when it is decompressed."""
    most = min(OPENED_FACTOR * max_message_bytes, MAX_DECOMPRESSED_BYTES)
    return max(most, _LEAST_OPENED_BYTES, max_message_bytes)


def decompress(codec: int, data: bytes | memoryview, limit: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """The plain bytes; InvalidRecord if they do not decompress, TooLarge if they are more than `limit`."""
    if codec == NONE:
        return bytes(data)
    opener = _OPENERS.get(codec)
    if opener is None:
        raise InvalidRecord(f"unknown compression codec {codec}")
    try:
        return opener(data, limit)
    except (InvalidRecord, TooLarge):
        raise
    except Exception as error:  # each library has exceptions of its own
        raise InvalidRecord(f"the batch does not decompress: {error}") from error


def compress(codec: int, data: bytes) -> bytes:
    if codec == NONE:
        return data
    if codec == GZIP:
        return zlib.compress(data, wbits=31)
    import cramjam

    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    if codec == LZ4:
        return _lz4_frame(data)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=3))
    raise InvalidRecord(f"unknown compression codec {codec}")


def _lz4_frame(data: bytes) -> bytes:
    """An LZ4 frame of independent blocks: Java's client refuses frames whose blocks refer to each other."""
    import cramjam

    parts = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK):
        chunk = data[start : start + _LZ4_BLOCK]
        packed = bytes(cramjam.lz4.compress_block(chunk, store_size=False))
        if len(packed) < len(chunk):
            parts += (_LZ4_SIZE.pack(len(packed)), packed)
        else:
            parts += (_LZ4_SIZE.pack(len(chunk) | 0x80000000), chunk)  # stored as it is
    parts.append(_LZ4_SIZE.pack(0))
    return b"".join(parts)


def _gunzip(data: bytes | memoryview, limit: int) -> bytes:
    opener = zlib.decompressobj(wbits=47)
    out = opener.decompress(data, limit)
    if opener.unconsumed_tail:
        raise _bomb(limit)
    if not opener.eof:
        raise InvalidRecord("the gzip stream ends in the middle")
    return out


def _unsnappy(data: bytes | memoryview, limit: int) -> bytes:
    data = bytes(data)
    if not data.startswith(_XERIAL_MAGIC):
        return _unsnappy_block(data, limit)
    out = bytearray()
    position = _XERIAL_HEADER_SIZE
    while position < len(data):
        (size,) = _CHUNK.unpack_from(data, position)
        position += _CHUNK.size
        out += _unsnappy_block(data[position : position + size], limit - len(out))
        position += size
    return bytes(out)


def _unsnappy_block(data: bytes, limit: int) -> bytes:
    import cramjam

    if cramjam.snappy.decompress_raw_len(data) > limit:  # the size is written in front
        raise _bomb(limit)
    return bytes(cramjam.snappy.decompress_raw(data))


def _unlz4(data: bytes | memoryview, limit: int) -> bytes:
    import cramjam

    return _stream(cramjam.lz4.decompress_into, data, limit)


def _unzstd(data: bytes | memoryview, limit: int) -> bytes:
    import cramjam

    return _stream(cramjam.zstd.decompress_into, data, limit)


def _stream(decompress_into: object, data: bytes | memoryview, limit: int) -> bytes:
    """Decompresses into a buffer of fixed size, made larger until it is enough or too much."""
    data = bytes(data)
    size = min(limit, max(64 * 1024, len(data) * 8))
    while True:
        out = bytearray(size + 1)
        try:
            written = int(decompress_into(data, out))  # type: ignore[operator]
        except Exception as error:
            if size >= limit and _overflowed(error):
                raise _bomb(limit) from error
            if not _overflowed(error):
                raise
            written = size + 1
        if written <= size:
            return bytes(memoryview(out)[:written])
        if size >= limit:
            raise _bomb(limit)
        size = min(limit, size * 8)


def _overflowed(error: Exception) -> bool:
    return "write" in str(error).lower() or "buffer" in str(error).lower()


def _bomb(limit: int) -> TooLarge:
    return TooLarge(f"the batch decompresses to more than {limit} bytes")


_OPENERS = {GZIP: _gunzip, SNAPPY: _unsnappy, LZ4: _unlz4, ZSTD: _unzstd}
