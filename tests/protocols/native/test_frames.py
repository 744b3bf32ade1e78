"""The msgpack framing's engine, byte by byte and with bytes that nobody meant."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.native.kit import frame_of
from waystation.message import Delivered, Message
from waystation.protocol import MAGIC, Answer, Deliver, Failure, Outgoing, Ping, Put, Settle
from waystation.protocols.native.framing.frames import (
    LARGE_FRAME_BYTES,
    BadFrame,
    Frames,
    UnreadableRequest,
    check_values,
    encode_into,
)

PUT = Put(id=7, queue="q", messages=[Message(b"\x00\xff", headers={"a": 1}, priority=3), Message(b"")])
SETTLE = Settle(id=8, consumer=1, runs=[(0, 5), (9, 1)])


def _fed(data: bytes, **options: int) -> Frames:
    frames = Frames(**options)
    frames.intake.feed(data)
    return frames


def test_commands_come_out_as_they_went_in() -> None:
    frames = _fed(MAGIC + frame_of(PUT) + frame_of(SETTLE))
    assert frames.commands() == [PUT, SETTLE]
    assert frames.commands() == []


def test_bytes_may_come_one_by_one() -> None:
    frames = Frames()
    found = []
    for byte in MAGIC + frame_of(PUT) + frame_of(SETTLE):
        frames.intake.feed(bytes([byte]))
        found += frames.commands()
    assert found == [PUT, SETTLE]


@given(st.lists(st.integers(1, 60), max_size=30), st.integers(0, 2**32))
def test_however_the_bytes_are_cut(cuts: list[int], seed: int) -> None:
    rng = random.Random(seed)
    sent = [Put(id=i + 1, queue="q", messages=[Message(rng.randbytes(rng.randrange(200)))]) for i in range(8)]
    data = MAGIC + b"".join(map(frame_of, sent))
    frames, found = Frames(), []
    for cut in [*cuts, len(data)]:
        frames.intake.feed(data[:cut])
        data = data[cut:]
        found += frames.commands()
    assert found == sent


def test_no_more_than_asked_for_at_once() -> None:
    frames = _fed(MAGIC + frame_of(Ping(id=1)) * 10)
    assert [len(frames.commands(4)) for _ in range(4)] == [4, 4, 2, 0]


def test_another_greeting_is_refused() -> None:
    with pytest.raises(BadFrame, match="greeting"):
        _fed(b"\xd7WS9" + frame_of(PUT)).commands()


@pytest.mark.parametrize("size", [0, 2**32 - 1, 64 * 1024 * 1024 + 1])
def test_a_length_that_lies_ends_it_after_what_came_before(size: int) -> None:
    frames = _fed(MAGIC + frame_of(PUT) + size.to_bytes(4, "big") + b"x")
    assert frames.commands() == [PUT]
    with pytest.raises(BadFrame, match=str(size)):
        frames.commands()


def test_a_length_alone_takes_no_memory() -> None:
    frames = _fed(MAGIC + (60 * 1024 * 1024).to_bytes(4, "big"))
    assert frames.commands() == []
    assert len(frames.intake.buffer()) < 1024 * 1024


def test_bytes_that_are_not_msgpack_end_it_after_what_came_before() -> None:
    frames = _fed(MAGIC + frame_of(PUT) + b"\x00\x00\x00\x02\xc1\xc1")
    assert frames.commands() == [PUT]
    with pytest.raises(BadFrame, match="msgpack"):
        frames.commands()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ({"action": "nonsense", "id": 5}, "nonsense"),
        ({"action": "put", "id": 5}, "queue"),
        ({"action": "put", "id": 5, "queue": 1, "messages": []}, "queue"),
        ({"action": "put", "id": 5, "queue": "q", "messages": [["text"]]}, "bytes"),
        ({"id": 5}, "action"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused_by_its_id(command: dict[str, Any], said: str) -> None:
    frames = _fed(MAGIC + frame_of(command) + frame_of(PUT))
    refused, put = frames.commands()
    assert isinstance(refused, UnreadableRequest)
    assert refused.id == 5
    assert said in refused.why
    assert put == PUT


@pytest.mark.parametrize("value", [5, "text", [1, 2], None, {"action": "ping", "id": "text"}])
def test_what_is_not_even_a_map_is_refused_without_an_id(value: object) -> None:
    (refused,) = _fed(MAGIC + frame_of(value)).commands()
    assert refused == UnreadableRequest(0, refused.why)  # type: ignore[union-attr]


def test_deep_nesting_is_no_danger() -> None:
    deep = b"\x91" * 200_000 + b"\xc0"
    body = b"\x83\xa6action\xa3put\xa5queue\xa1q\xa8messages" + deep
    frames = _fed(MAGIC + len(body).to_bytes(4, "big") + body)
    try:
        assert all(isinstance(each, UnreadableRequest) for each in frames.commands())
    except BadFrame:
        pass


def test_a_large_frame_of_tiny_values_is_refused_before_it_is_decoded() -> None:
    body = b"\xdd" + LARGE_FRAME_BYTES.to_bytes(4, "big") + b"\x80" * LARGE_FRAME_BYTES
    with pytest.raises(BadFrame, match="values"):
        _fed(MAGIC + len(body).to_bytes(4, "big") + body).commands()


def test_a_large_frame_of_large_messages_is_taken() -> None:
    put = Put(id=1, queue="q", messages=[Message(b"x" * 1024 * 1024)] * 6)
    assert _fed(MAGIC + frame_of(put)).commands() == [put]


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=5), inner, max_size=20),
    max_leaves=50,
)


def _values(value: object) -> int:
    if isinstance(value, list):
        return 1 + sum(map(_values, value))
    if isinstance(value, dict):
        return 1 + sum(1 + _values(inner) for inner in value.values())
    return 1


@given(json_like)
def test_values_are_counted_right(value: object) -> None:
    frame = memoryview(msgspec.msgpack.encode(value))
    check_values(frame, _values(value))
    with pytest.raises(BadFrame):
        check_values(frame, _values(value) - 1)


@given(st.binary(max_size=200))
def test_counting_never_fails_otherwise(data: bytes) -> None:
    try:
        check_values(memoryview(data), 1000)
    except BadFrame:
        pass


def test_mutated_frames_give_commands_or_refusals_or_the_end() -> None:
    rng = random.Random(11)
    originals = [MAGIC + frame_of(PUT) + frame_of(SETTLE), MAGIC + frame_of(Ping(id=1)) * 3]
    for _ in range(5_000):
        data = bytearray(rng.choice(originals))
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    del data[at:]
                case 2:
                    data[at:at] = rng.randbytes(rng.randrange(1, 9))
                case 3:
                    data[at] ^= 1 << rng.randrange(8)
            if not data:
                break
        frames = _fed(bytes(data))
        with contextlib.suppress(BadFrame):
            while frames.commands():
                pass


def test_answers_and_pushes_are_frames() -> None:
    sent: list[Outgoing] = [
        Answer(1, {"a": b"\x00"}),
        Failure(2, "NotFound", "there is no queue 'x'"),
        Deliver(3, [Delivered(0, 1, 5, Message(b"p"))]),
    ]
    out = bytearray()
    for outgoing in sent:
        encode_into(out, outgoing)
    found, at = [], 0
    while at < len(out):
        size = int.from_bytes(out[at : at + 4], "big")
        found.append(msgspec.msgpack.decode(out[at + 4 : at + 4 + size], type=Outgoing))
        at += 4 + size
    assert found == sent
