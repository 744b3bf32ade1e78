"""Which partition a key belongs to: the same answer as the Java client, kafka-python and aiokafka give.

So a key written by the command line lands where those clients put it. (librdkafka's default is another hash; its
setting `partitioner=murmur2_random` makes it agree.)
"""

from __future__ import annotations

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_WORD = 0xFFFFFFFF


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
    return (murmur2(key) & 0x7FFFFFFF) % partitions
