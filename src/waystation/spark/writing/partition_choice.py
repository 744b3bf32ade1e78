"""Which partition each row goes to: the one it names, its key's, or one that changes from batch to batch.

A key goes where the Java client and our own protocols put it (`log/batches/partitioning.py`); here the hash is computed
for a whole column at once, 60 ns a key instead of 2 µs. Pure; for this package.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waystation.errors import Invalid
from waystation.spark.writing.sink_columns import Rows

_SEED = 0x9747B28C
_MULTIPLIER = np.uint32(0x5BD1E995)

Numbers = npt.NDArray[Any]


def choose(rows: Rows, partitions: int, turn: int, topic: str) -> list[tuple[int, Rows]]:
    """(partition, its rows in order) for each partition that gets some. `turn` says who has those without a key."""
    chosen = _named(rows, partitions, topic)
    if chosen is None and partitions == 1:
        return [(0, rows)]
    keys = rows.column("key")
    if keys is None:
        keys = rows.column("id")  # a topic that deduplicates must meet the first copy
    if keys is None:
        chosen = np.full(rows.count, -1, np.int64) if chosen is None else chosen
    elif chosen is None and not keys.null_count:
        chosen = _by_key(keys, partitions)
    else:
        chosen = np.full(rows.count, -1, np.int64) if chosen is None else chosen
        open_rows = np.flatnonzero((chosen < 0) & keys.is_valid().to_numpy(zero_copy_only=False))
        if open_rows.size:
            chosen[open_rows] = _by_key(keys.take(pa.array(open_rows)), partitions)
    if chosen.min() < 0:
        chosen[chosen < 0] = turn % partitions
    rows = rows.without("partition")
    counts = np.bincount(chosen, minlength=partitions)
    if counts.max() < rows.count:  # a stable sort of small numbers is a few passes over them
        order = np.argsort(chosen.astype(np.min_scalar_type(partitions)), kind="stable")
        rows = rows.take(pa.Array.from_buffers(pa.int64(), rows.count, [None, pa.py_buffer(order)]))  # without pandas
    starts = np.cumsum(counts) - counts
    return [(int(one), rows.slice(int(starts[one]), int(counts[one]))) for one in np.flatnonzero(counts)]


def _named(rows: Rows, partitions: int, topic: str) -> Numbers | None:
    column = rows.column("partition")
    if column is None:
        return None
    named = column.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    wrong = named[valid & ((named < 0) | (named >= partitions))]
    if wrong.size:
        raise Invalid(
            f"column 'partition': a row names partition {wrong[0]}, and topic {topic!r} has {partitions}, from 0 on"
        )
    return cast(Numbers, named)


def _by_key(keys: pa.Array, partitions: int) -> Numbers:
    """Where keys go, none of which is null."""
    return (murmur2(keys.cast(pa.binary())) & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)


def murmur2(keys: pa.Array) -> Numbers:
    """The hash of each key, none of which is null. Keys of one length are done together."""
    _, offsets, data = keys.buffers()
    bounds = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    raw = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    lengths = np.diff(bounds)
    if lengths.size and (lengths == lengths[0]).all():
        return _hash_alike(raw[bounds[0] : bounds[-1]].reshape(len(keys), -1), int(lengths[0]))
    result = np.empty(len(keys), np.uint32)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        result[rows] = _hash_alike(raw[bounds[rows][:, None] + np.arange(length)], int(length))
    return result


def _hash_alike(letters: Numbers, length: int) -> Numbers:
    """Of keys that are all so long; a row of `letters` is one."""
    whole = length - length % 4
    hashed: Numbers = np.full(len(letters), (_SEED ^ length) & 0xFFFFFFFF, np.uint32)
    words = np.ascontiguousarray(letters[:, :whole]).view("<u4")
    for i in range(whole // 4):
        word = words[:, i] * _MULTIPLIER
        word = (word ^ (word >> np.uint32(24))) * _MULTIPLIER
        hashed = (hashed * _MULTIPLIER) ^ word
    if whole < length:
        rest = np.zeros(len(letters), np.uint32)
        for i in range(length - whole):
            rest |= letters[:, whole + i].astype(np.uint32) << np.uint32(8 * i)
        hashed = (hashed ^ rest) * _MULTIPLIER
    hashed = (hashed ^ (hashed >> np.uint32(13))) * _MULTIPLIER
    return cast(Numbers, hashed ^ (hashed >> np.uint32(15)))
