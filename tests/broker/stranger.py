"""A reader of data folders written from `docs/reference/on-disk.md` alone: it imports nothing of Waystation."""

from __future__ import annotations

import gzip
import json
import sqlite3
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lz4.frame
import msgspec
import snappy
import zstandard
from crc32c import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")


@dataclass(frozen=True)
class Batch:
    position: int
    base: int
    last: int
    epoch: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer: int
    count: int
    body: bytes


@dataclass(frozen=True)
class Seen:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def topics(data: Path) -> dict[str, tuple[Path, int]]:
    """Folder and number of partitions of every topic."""
    db = sqlite3.connect(data / "catalog.sqlite")
    [(version,)] = db.execute("SELECT version FROM format").fetchall()
    if version != 5:
        raise ValueError(f"format {version}")
    values = db.execute("SELECT value FROM entries WHERE key >= 'topics/' AND key < 'topics0'").fetchall()
    db.close()
    found = [json.loads(value) for (value,) in values]
    return {
        each["name"]: (
            data / "topics" / f"{each['name'][:200]}.{each['id'].replace('-', '')[:8]}",
            each["partitions"],
        )
        for each in found
    }


def batches(path: Path) -> Iterator[Batch]:
    data = path.read_bytes()
    at = 0
    while data[at:].strip(b"\0"):
        base, length, epoch, magic, crc, attributes, delta, first, latest, producer, _, _, count = HEADER.unpack_from(
            data, at
        )
        end = at + 12 + length
        if magic != 2 or end > len(data) or crc32c(data[at + 21 : end]) != crc:
            raise ValueError(f"{path} at {at}")
        yield Batch(at, base, base + delta, epoch, attributes, first, latest, producer, count, data[at + 61 : end])
        at = end


def segments(partition: Path) -> list[Path]:
    found = {int(path.stem): path for path in partition.glob("*.log")}
    for swap in partition.glob("*.swap"):
        base, _, end = swap.stem.partition("-")
        if int(base) in found:
            continue  # it has not begun
        found = {b: path for b, path in found.items() if not int(base) <= b <= int(end)}
        found[int(base)] = swap
    return [found[base] for base in sorted(found)]


def committed(partition: Path) -> list[Seen]:
    """What a consumer that reads committed records sees."""
    start_file = partition / "log-start"
    start = int(start_file.read_text()) if start_file.exists() else 0
    everything = [batch for path in segments(partition) for batch in batches(path)]
    open_transactions: dict[int, list[Batch]] = {}
    dropped: set[int] = set()
    for batch in everything:
        if batch.attributes & 0x20:
            [marker] = records(batch)
            (kind,) = struct.unpack_from(">h", marker.key or b"", 2)
            ended = open_transactions.pop(batch.producer, [])
            if kind == 0:
                dropped |= {one.base for one in ended}
        elif batch.attributes & 0x10:
            open_transactions.setdefault(batch.producer, []).append(batch)
    dropped |= {one.base for many in open_transactions.values() for one in many}
    return [
        record
        for batch in everything
        if not batch.attributes & 0x20 and batch.base not in dropped
        for record in records(batch)
        if record.offset >= start
    ]


def records(batch: Batch) -> list[Seen]:
    data = _opened(batch.attributes & 7, batch.body)
    at = 0
    found = []
    for _ in range(batch.count):
        size, at = _varint(data, at)
        end = at + size
        timestamp, at = _varint(data, at + 1)
        offset, at = _varint(data, at)
        key, at = _bytes(data, at)
        value, at = _bytes(data, at)
        count, at = _varint(data, at)
        headers = []
        for _ in range(count):
            name, at = _bytes(data, at)
            content, at = _bytes(data, at)
            headers.append(((name or b"").decode(), content))
        if at != end:
            raise ValueError("record length")
        when = batch.max_timestamp if batch.attributes & 8 else batch.base_timestamp + timestamp
        found.append(Seen(batch.base + offset, when, key, value, tuple(headers)))
    return found


def _opened(codec: int, body: bytes) -> bytes:
    if codec == 0:
        return body
    return bytes(
        {
            1: gzip.decompress,
            2: snappy.decompress,
            3: lz4.frame.decompress,
            4: zstandard.ZstdDecompressor().decompressobj().decompress,
        }[codec](body)
    )


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at)
    return (None, at) if size < 0 else (data[at : at + size], at + size)


# -- derived files -----------------------------------------------------------------------------------------------------


def index(path: Path) -> list[tuple[int, int]]:
    return list(struct.iter_unpack(">II", path.read_bytes()))


def time_index(path: Path) -> list[tuple[int, int]]:
    return list(struct.iter_unpack(">qI", path.read_bytes()))


def aborted(path: Path) -> list[tuple[int, int, int]]:
    return list(struct.iter_unpack(">qqq", path.read_bytes()))


def checked(path: Path) -> bytes:
    data = path.read_bytes()
    if crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
        raise ValueError(path)
    return data[4:]


def snapshot(path: Path) -> dict[str, object]:
    found: dict[str, object] = msgspec.msgpack.decode(checked(path))
    return found


def points(data: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(checked(data / "recovery-points"))
    return found


def epochs(partition: Path) -> list[tuple[int, int]]:
    version, count, *lines = (partition / "leader-epoch-checkpoint").read_text().splitlines()
    if version != "0" or int(count) != len(lines):
        raise ValueError("leader-epoch-checkpoint")
    return [(int(epoch), int(offset)) for epoch, offset in (line.split() for line in lines)]
