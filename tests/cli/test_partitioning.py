"""A key lands where other clients put it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.log.batches.partitioning import murmur2, partition_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_the_java_clients(text: bytes, expected: int) -> None:
    assert murmur2(text) == expected & 0xFFFFFFFF


@given(st.binary(max_size=20), st.integers(1, 1000))
def test_a_partition_is_always_one_of_the_topics(key: bytes, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions
