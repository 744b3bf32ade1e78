"""Where a connection's bytes arrive: what comes is what is read, however the buffer grows meanwhile."""

from __future__ import annotations

import random

import pytest

from waystation.protocols.budget import FREE_BYTES
from waystation.protocols.native.framing.intake import FIRST_BUFFER, KEPT_BUFFER, LARGEST_STEP, Intake


@pytest.mark.parametrize("somebody_looks", [False, True])
def test_a_long_line_is_the_same_behind_every_growth(somebody_looks: bool) -> None:
    sent = random.Random(1).randbytes(5 * LARGEST_STEP + 123)
    intake = Intake()
    views = []
    for at in range(0, len(sent), 300_000):
        if somebody_looks:
            views.append(intake.view())  # a buffer that somebody looks at cannot grow where it is
        intake.feed(sent[at : at + 300_000])
    assert intake.unread == len(sent)
    assert bytes(intake.view()) == sent
    assert intake.kept <= len(sent) + LARGEST_STEP + len(sent) // 2


def test_what_was_read_makes_room_and_an_empty_buffer_is_small_again() -> None:
    intake = Intake()
    intake.feed(bytes(3 * LARGEST_STEP))
    intake.drop(3 * LARGEST_STEP - 10)
    intake.feed(b"x" * LARGEST_STEP)
    assert bytes(intake.view()) == bytes(10) + b"x" * LARGEST_STEP
    assert intake.kept <= 5 * LARGEST_STEP
    intake.drop(intake.unread)
    intake.buffer()
    assert intake.kept == FIRST_BUFFER <= KEPT_BUFFER


@pytest.mark.parametrize("left", [0, 700])
def test_reads_that_fill_the_buffer_make_it_larger_up_to_what_is_free(left: int) -> None:
    """`left`: bytes of a request that is not whole yet, as at the end of nearly every read of many small ones."""
    intake, sizes = Intake(), []
    for _ in range(8):
        room = intake.buffer()
        room[:] = bytes(len(room))
        intake.received(len(room))
        sizes.append(intake.kept)
        intake.drop(intake.unread - left)
    assert sizes[:3] == [FIRST_BUFFER, 2 * FIRST_BUFFER, 4 * FIRST_BUFFER]
    assert max(sizes) == FREE_BYTES


def test_reads_that_leave_room_keep_the_buffer_as_it_is() -> None:
    intake = Intake()
    for _ in range(100):
        intake.feed(bytes(700))
        intake.drop(700)
    assert intake.kept == FIRST_BUFFER


def test_frames_that_have_room_stay_in_one_buffer() -> None:
    """Of 700 KB each, as they come: often more than half of the buffer is unread when its end is reached."""
    frame, chance = 700_000, random.Random(2)
    intake = Intake()
    sent = chance.randbytes(40 * frame)
    fed = read = 0
    buffers: list[object] = []
    while read < len(sent):
        room = intake.buffer()
        if intake.kept == KEPT_BUFFER:
            buffers.append(room.obj)
        size = min(len(room), len(sent) - fed, chance.randrange(1, 300_000))
        room[:size] = sent[fed : fed + size]
        intake.received(size)
        fed += size
        while intake.unread >= frame:
            assert intake.view(0, frame) == sent[read : read + frame]
            intake.drop(frame)
            read += frame
        intake.expected = frame if intake.unread else 0
        assert intake.kept <= KEPT_BUFFER
    assert len(buffers) > 100
    assert all(buffer is buffers[0] for buffer in buffers)
