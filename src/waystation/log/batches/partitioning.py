"""Which partition a key belongs to: the same answer as the Java client, kafka-python and aiokafka give.

So a key written by any protocol of ours lands where those clients put it. (librdkafka's default is another hash; its
setting `partitioner=murmur2_random` makes it agree.) Pure; called by whoever publishes without a partition.
"""

from __future__ import annotations

from functools import lru_cache

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_WORD = 0xFFFFFFFF
_CACHED_KEY_BYTES = 64
"""Longer keys are hashed each time: what is remembered must stay small."""


def murmur2(data: bytes) -> int:
    """The 32-bit hash, as an unsigned number."""
    length = len(data)
    result = _SEED ^ length
    whole = length - length % 4
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _MULTIPLIER & _WORD
        word = (word ^ word >> 24) * _MULTIPLIER & _WORD
        result = (result * _MULTIPLIER & _WORD) ^ word
    if whole < length:
        result = (result ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _WORD
    result = (result ^ result >> 13) * _MULTIPLIER & _WORD
    return result ^ result >> 15


def partition_of(key: bytes, partitions: int) -> int:
    if partitions == 1:
        return 0
    hashed = _remembered(key) if len(key) <= _CACHED_KEY_BYTES else murmur2(key)
    return (hashed & 0x7FFFFFFF) % partitions


# Keys repeat: a hash of 16 bytes takes 2.2 µs, a look into the table 0.1 µs.
_remembered = lru_cache(maxsize=32_768)(murmur2)
