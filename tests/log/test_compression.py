"""The codecs, against the packages that clients use, and against those who mean harm."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from waystation.errors import InvalidRecord, TooLarge
from waystation.log.batches.compression import CODEC_NAMES, GZIP, LZ4, NONE, SNAPPY, ZSTD, compress, decompress

MIB = 1024 * 1024

THEIRS: dict[int, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    GZIP: (gzip.compress, gzip.decompress),
    SNAPPY: (snappy.compress, snappy.decompress),
    LZ4: (lz4.frame.compress, lz4.frame.decompress),
    ZSTD: (zstandard.ZstdCompressor().compress, zstandard.ZstdDecompressor().decompress),
}
payloads = st.binary(max_size=300) | st.binary(max_size=20).map(lambda part: part * 20_000)


def xerial(*chunks: bytes) -> bytes:
    """Snappy as Java's client frames it."""
    framed = b"".join(struct.pack(">I", len(part)) + part for part in map(snappy.compress, chunks))
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + framed


@given(data=payloads, codec=st.sampled_from([NONE, *THEIRS]))
def test_every_codec_reads_back_what_it_wrote(data: bytes, codec: int) -> None:
    assert decompress(codec, compress(codec, data)) == data
    assert decompress(codec, memoryview(compress(codec, data))) == data


@given(data=payloads, codec=st.sampled_from([*THEIRS]))
def test_other_packages_read_ours_and_we_read_theirs(data: bytes, codec: int) -> None:
    write, read = THEIRS[codec]
    assert decompress(codec, write(data)) == data
    assert read(compress(codec, data)) == data


@given(chunks=st.lists(st.binary(max_size=100), max_size=5))
def test_the_java_clients_snappy_frames_are_read(chunks: list[bytes]) -> None:
    assert decompress(SNAPPY, xerial(*chunks)) == b"".join(chunks)


def test_frames_without_a_content_size_and_several_frames_are_read() -> None:
    data = b"some text " * 50_000
    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(data)
    assert decompress(ZSTD, streamed) == data
    assert decompress(ZSTD, streamed + streamed) == data * 2
    linked = lz4.frame.compress(data, block_linked=True, store_size=False, content_checksum=True)
    assert decompress(LZ4, linked) == data


@pytest.mark.parametrize("codec", THEIRS)
def test_a_stream_that_ends_early_is_refused_without_looking_for_room(codec: int) -> None:
    whole = compress(codec, bytes(range(256)) * 40)
    for size in {0, 1, 4, 10, len(whole) // 2, len(whole) - 1}:
        with pytest.raises(InvalidRecord):
            decompress(codec, whole[:size])


@pytest.mark.parametrize(
    "data",
    [xerial(b"abc")[:-1], xerial()[:-4] + b"\0\0\0\xff", xerial() + b"\0\0", xerial() + b"\0\0\0\0", b"\x82SNAPPY\0"],
)
def test_a_broken_java_frame_is_refused_or_empty(data: bytes) -> None:
    try:
        assert decompress(SNAPPY, data) == b""
    except InvalidRecord:
        pass


@given(noise=st.binary(max_size=100), codec=st.integers(min_value=0, max_value=7))
def test_noise_gives_bytes_or_a_refusal(noise: bytes, codec: int) -> None:
    try:
        decompress(codec, noise, MIB)
    except (InvalidRecord, TooLarge):
        pass


BOMBS = {
    GZIP: gzip.compress(bytes(20 * MIB)),
    LZ4: lz4.frame.compress(bytes(20 * MIB)),
    ZSTD: zstandard.ZstdCompressor().compress(bytes(20 * MIB)),
    SNAPPY: snappy.compress(bytes(20 * MIB)),
}


@pytest.mark.parametrize("codec", THEIRS)
def test_a_bomb_is_refused_before_it_is_unpacked(codec: int) -> None:
    with pytest.raises(TooLarge):
        decompress(codec, BOMBS[codec], 10 * MIB)
    assert len(decompress(codec, BOMBS[codec], 20 * MIB)) == 20 * MIB


def test_a_bomb_in_many_java_frames_is_refused() -> None:
    with pytest.raises(TooLarge):
        decompress(SNAPPY, xerial(*[bytes(MIB)] * 11), 10 * MIB)


def test_a_snappy_block_that_lies_about_its_size_is_refused() -> None:
    with pytest.raises((TooLarge, InvalidRecord)):
        decompress(SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\0" * 10)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_that_does_not_exist_is_refused(codec: int) -> None:
    with pytest.raises(InvalidRecord):
        decompress(codec, b"x")
    with pytest.raises(InvalidRecord):
        compress(codec, b"x")


def test_zlib_streams_count_as_gzip() -> None:
    assert decompress(GZIP, zlib.compress(b"abc")) == b"abc"


def test_the_names_are_those_of_the_setting() -> None:
    assert {CODEC_NAMES[name] for name in ("uncompressed", "gzip", "snappy", "lz4", "zstd")} == set(range(5))
