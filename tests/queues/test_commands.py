"""The commands of a shard's log as bytes: the ways to write and to read them say the same."""

from __future__ import annotations

from array import array

import msgspec
import pytest

from waystation.message import Message
from waystation.queues.shard import commands
from waystation.queues.shard.commands import Delete, Done, Enqueue, FanOut, Forward, HandedOut, Stored

MESSAGES = [Message(b"a" * 70_000), Message(b"bc", id="7", headers={"n": 1})]
RAW = commands.encode_messages(MESSAGES)
SIZES = array("I", [70_000, 2]).tobytes()
BLOCKS: list[Stored] = [
    Enqueue(3, 10, 2, 1_772_366_400_000, False, SIZES, RAW),
    Enqueue(2**40, -1, 2, 0, False, SIZES, RAW, True),
    Enqueue(3, 12, 1, 5, True, 4, commands.encode_messages([Message(b"four")])),
    FanOut([(1, 2), (3, 4)], 2, 5, False, SIZES, RAW),
    Forward(3, 10, [5, 6], RAW),
]
OTHERS: list[Stored] = [Delete(1), Done(3, [(1, 200)]), HandedOut(4, [(5, 6), (70_000, 8)])]


@pytest.mark.parametrize("stored", [*BLOCKS, *OTHERS], ids=lambda stored: type(stored).__name__)
def test_the_pieces_of_a_command_are_the_command(stored: Stored) -> None:
    assert b"".join(commands.encode_pieces(stored)) == commands.encode(stored)


@pytest.mark.parametrize("stored", BLOCKS, ids=lambda stored: type(stored).__name__)
def test_an_opened_block_has_what_the_block_has(stored: Enqueue | FanOut | Forward) -> None:
    data = memoryview(commands.encode(stored))
    assert commands.holds_messages(data)
    opened = commands.decode_opened(data)
    assert opened.messages == commands.decode_messages(stored.messages)
    assert opened.__struct_config__.tag == stored.__struct_config__.tag
    for field in opened.__struct_fields__:
        if field != "messages":
            assert getattr(opened, field) == getattr(stored, field), field


@pytest.mark.parametrize("stored", OTHERS, ids=lambda stored: type(stored).__name__)
def test_other_commands_hold_no_messages(stored: Stored) -> None:
    assert not commands.holds_messages(commands.encode(stored))


def test_the_bytes_of_payloads_are_known_without_them() -> None:
    assert commands.payload_bytes(SIZES, 2) == 70_002
    assert commands.payload_bytes(4, 25) == 100


def test_a_block_that_is_cut_is_not_opened() -> None:
    with pytest.raises(msgspec.DecodeError):
        commands.decode_opened(commands.encode(BLOCKS[0])[:-9])
