"""What was sealed opens with its key, as it was, and not otherwise; and no nonce is used twice."""

from __future__ import annotations

import os

import pytest

from waystation.encryption import key_ring
from waystation.encryption.key_ring import OVERHEAD, KeyRing, NotOpened, UnknownKey
from waystation.encryption.sealed_file import SealedWriter, opened_whole, read_opened, sealed_whole
from waystation.errors import Corrupt
from waystation.world import MemoryDisk, SystemRandom

SECRET = os.urandom(32)


def ring(secret: bytes = SECRET, number: int = 7) -> KeyRing:
    return KeyRing({number: secret}, number, SystemRandom())


def sealed(keys: KeyRing, data: bytes, associated: bytes = b"about it") -> bytes:
    return b"".join(keys.new_data_key().seal(data, associated))


@pytest.mark.parametrize("data", [b"", b"x", os.urandom(100_000)])
def test_what_was_sealed_opens_in_another_process_with_the_same_key(data: bytes) -> None:
    found = sealed(ring(), data)
    assert len(found) == len(data) + OVERHEAD
    assert ring().open(found, b"about it") == data
    assert ring().open(memoryview(found), b"about it") == data


def test_a_changed_bit_anywhere_is_noticed() -> None:
    keys = ring()
    found = sealed(keys, b"a message")
    for position in range(len(found)):
        changed = bytearray(found)
        changed[position] ^= 1
        with pytest.raises(Corrupt):
            keys.open(bytes(changed), b"about it")
    for size in range(len(found)):
        with pytest.raises(NotOpened):
            keys.open(found[:size], b"about it")


def test_it_is_bound_to_what_it_was_sealed_with() -> None:
    found = sealed(ring(), b"a message")
    with pytest.raises(NotOpened):
        ring().open(found, b"about something else")
    with pytest.raises(NotOpened, match="another folder"):
        ring(os.urandom(32)).open(found, b"about it")
    with pytest.raises(UnknownKey, match="00000007"):
        ring(number=8).open(found, b"about it")


def test_the_same_bytes_are_never_sealed_alike() -> None:
    keys = ring()
    one = keys.new_data_key()
    found = [b"".join(one.seal(b"same", b"")) for _ in range(100)] + [sealed(keys, b"same", b"") for _ in range(100)]
    assert len({each[:24] for each in found}) == 200, "a salt and a counter are used twice"
    assert len({each[24:] for each in found}) == 200


def test_a_data_key_that_has_counted_to_its_end_gives_way_to_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ring, "_LAST", 3)
    key = ring().new_data_key()
    found = [b"".join(key.seal(b"same", b"")) for _ in range(10)]
    assert len({each[4:20] for each in found}) == 4, "salts"
    assert [ring().open(each, b"") for each in found] == [b"same"] * 10


def test_a_rotation_is_for_what_is_sealed_afterwards() -> None:
    keys = ring()
    key = keys.new_data_key()
    before = b"".join(key.seal(b"before", b""))
    keys.take({9: os.urandom(32)}, 9)
    after = b"".join(key.seal(b"after", b""))
    assert int.from_bytes(before[:4], "big") == 7
    assert int.from_bytes(after[:4], "big") == 9
    assert keys.open(before, b"") == b"before"
    assert keys.open(after, b"") == b"after"


def test_ready_ciphers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ring, "CIPHERS", 10)
    keys = ring()
    found = [sealed(keys, b"%d" % number) for number in range(50)]
    for _ in range(2):
        assert [keys.open(each, b"about it") for each in found] == [b"%d" % number for number in range(50)]
    assert len(keys._ciphers) == 10


# -- files in pieces ---------------------------------------------------------------------------------------------------


def test_a_file_in_pieces_is_read_at_once_and_in_parts() -> None:
    keys, disk = ring(), MemoryDisk(10_000_000)
    pieces = [os.urandom(size) for size in (5, 1, 70_000, 300, 0, 12)]
    writer = SealedWriter(keys)
    data = b"".join(b"".join(writer.piece([piece[:2], piece[2:]])) for piece in pieces)
    content = b"".join(pieces)
    assert opened_whole(keys, data) == content
    disk.replace_file("/file", data)
    file = disk.open("/file")
    for size, position in ((10, 0), (10, 3), (1, 6), (1_000_000, 5), (500, 70_000), (100, len(content) - 4)):
        assert read_opened(keys, file, size, position) == (len(content), content[position : position + size])
    disk.replace_file("/plain", content)
    assert read_opened(keys, disk.open("/plain"), 100, 50) == (len(content), content[50:150])
    assert opened_whole(keys, content) == content


def test_pieces_cannot_be_left_out_repeated_or_cut() -> None:
    keys = ring()
    writer = SealedWriter(keys)
    first, second, third = (b"".join(writer.piece([text])) for text in (b"first", b"second", b"third"))
    for wrong in (first + third, first + third + second, first + second + second, first + second[:-1], first + b"\0\0"):
        with pytest.raises(NotOpened):
            opened_whole(keys, wrong)
    with pytest.raises(NotOpened, match="no key"):
        opened_whole(None, first)


def test_a_large_file_is_sealed_in_several_pieces() -> None:
    keys = ring()
    data = os.urandom(2_500_000)
    found = sealed_whole(keys, data)
    assert opened_whole(keys, found) == data
    assert len(found) == 4 + len(data) + 3 * (OVERHEAD + 4)
    assert opened_whole(keys, sealed_whole(keys, b"")) == b""
