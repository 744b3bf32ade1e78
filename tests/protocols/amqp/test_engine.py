"""The engine byte by byte: what it makes of frames, however they are cut, and what it refuses in which state."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from tests.protocols.amqp.kit import HEADER, method, publish, raw
from waystation.protocols.amqp.engine import (
    FRAME_MAX,
    FRAMES_PER_TURN,
    OTHERS_PER_TURN,
    SHORT_FRAMES,
    SHORT_OTHERS,
    Engine,
)
from waystation.protocols.amqp.events import (
    CHANNEL_MOVES,
    CONNECTION_MOVES,
    Acked,
    Broken,
    ChannelOpened,
    Event,
    Greeted,
    Method,
    Phase,
    PublishEvent,
    WrongHeader,
)
from waystation.protocols.amqp.frames import OVERHEAD, ack_frame

LIMIT = 1_000_000
LOGIN = b"".join(
    [
        HEADER,
        method(commands.Connection.StartOk({}, "PLAIN", "\x00guest\x00guest", "en_US"), 0),
        method(commands.Connection.TuneOk(10, 0, 0), 0),
        method(commands.Connection.Open("/"), 0),
        method(commands.Channel.Open(), 1),
        method(commands.Channel.Open(), 2),
    ]
)


def engine() -> Engine:
    """With channels 1 and 2 open."""
    made = Engine(lambda: LIMIT)
    assert [type(event) for event in made.receive(LOGIN)] == [
        Greeted,
        Method,
        Method,
        Method,
        ChannelOpened,
        ChannelOpened,
    ]
    made.tuned(FRAME_MAX, 10)
    return made


def seen(event: Event) -> tuple[object, ...]:
    """An event as something that can be compared."""
    if isinstance(event, PublishEvent):
        target = event.target
        return "publish", event.channel.number, target.exchange, target.key, target.mandatory, event.body
    if isinstance(event, Acked):
        return "ack", event.channel.number, event.tag, event.multiple
    if isinstance(event, Method):
        return event.method.name, event.channel.number if event.channel else 0, dict(event.method)
    if isinstance(event, Broken):
        return "broken", event.channel.number if event.channel else 0, event.error.code
    return (type(event).__name__,)


def refusal(data: bytes) -> tuple[int, int]:
    """(code, channel; 0: the connection) that these bytes are refused with, on an open connection."""
    events = engine().receive(data)
    assert events, "nothing happened"
    broken = events[-1]
    assert isinstance(broken, Broken), broken
    return broken.error.code, broken.channel.number if broken.channel else 0


STREAM = b"".join(
    [
        publish(1, b"first", "a"),
        publish(2, b"", "b", "x", mandatory=True),
        ack_frame(1, 7, True),
        method(commands.Basic.Get(0, "q"), 2),
        publish(1, b"large" * 60_000, "c"),
        raw(8, 0, b""),
        publish(2, bytes(range(256)), "d"),
        ack_frame(2, 2**63, False),
    ]
)
EXPECTED = [
    ("publish", 1, "", "a", False, b"first"),
    ("publish", 2, "x", "b", True, b""),
    ("ack", 1, 7, True),
    ("Basic.Get", 2, {"ticket": 0, "queue": "q", "no_ack": False}),
    ("publish", 1, "", "c", False, b"large" * 60_000),
    ("publish", 2, "", "d", False, bytes(range(256))),
    ("ack", 2, 2**63, False),
]


def test_a_stream_is_the_same_events_in_one_piece_and_byte_by_byte() -> None:
    assert [seen(event) for event in engine().receive(STREAM)] == EXPECTED
    slow = engine()
    assert [seen(event) for byte in STREAM[:900] for event in slow.receive(bytes([byte]))] == EXPECTED[:4]


@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=12))
def test_a_stream_is_the_same_events_wherever_it_is_cut(cuts: list[int]) -> None:
    receiving = engine()
    edges = [0, *sorted(cuts), len(STREAM)]
    found = [seen(event) for a, b in pairwise(edges) for event in receiving.receive(STREAM[a:b])]
    assert found == EXPECTED
    assert receiving.unread == 0


def test_content_of_two_channels_may_come_in_turns() -> None:
    one = publish(1, b"x" * 10_000, "a", frame_max=4096)
    other = publish(2, b"y" * 10_000, "b", frame_max=4096)
    mixed = b"".join(piece for pair in zip(pieces(one), pieces(other), strict=True) for piece in pair)
    found = [seen(event) for event in engine().receive(mixed)]
    assert found == [("publish", 1, "", "a", False, b"x" * 10_000), ("publish", 2, "", "b", False, b"y" * 10_000)]


def pieces(data: bytes) -> list[bytes]:
    """One by one, the frames."""
    found = []
    while data:
        size = 8 + int.from_bytes(data[3:7], "big")
        found.append(data[:size])
        data = data[size:]
    return found


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"AMQP\x00\x01\x00\x00", b"AMQP\x01\x01\x00\x0a", b"\x00"])
def test_another_protocol_is_told_which_one_is_spoken(data: bytes) -> None:
    made = Engine(lambda: LIMIT)
    assert made.receive(data) == [WrongHeader()]
    assert made.receive(HEADER) == []


PUBLISH = method(commands.Basic.Publish(0, "", "q"), 1)
BODY_OF_TEN = raw(2, 1, b"\x00\x3c\x00\x00" + (10).to_bytes(8, "big") + b"\x00\x00")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (raw(1, 1, b"\x00\x3c\x00\x46\x00\x00\x01q\x00", b"\x00"), (501, 0)),
        (raw(9, 1, b""), (501, 0)),
        (b"\x01\x00\x01\xff\xff\xff\xff" + bytes(1), (501, 0)),
        (raw(1, 1, b"\x00"), (502, 0)),
        (raw(1, 1, b"\x00\x3c\x00\x28\x00\x00\x05q"), (502, 0)),
        (raw(1, 1, b"\x00\x32\x00\x0a\xff"), (502, 0)),
        (raw(1, 1, b"\x00\x99\x00\x99"), (540, 0)),
        (raw(8, 1, b""), (503, 0)),
        (raw(2, 0, bytes(14)), (505, 0)),
        (method(commands.Basic.Get(0, "q"), 3), (504, 0)),
        (method(commands.Channel.Open(), 1), (504, 0)),
        (method(commands.Connection.Open("/"), 0), (503, 0)),
        (method(commands.Connection.Close(200, "bye", 0, 0), 1), (503, 0)),
        (method(commands.Queue.Declare(0, "q"), 0), (504, 0)),
        (BODY_OF_TEN, (505, 0)),
        (raw(3, 1, b"body"), (505, 0)),
        (PUBLISH + PUBLISH, (505, 0)),
        (PUBLISH + raw(3, 1, b"body"), (505, 0)),
        (PUBLISH + raw(2, 1, b"\x00\x3c\x00\x00"), (502, 0)),
        (PUBLISH + raw(2, 1, b"\x00\x0a\x00\x00" + bytes(10)), (505, 0)),
        (PUBLISH + BODY_OF_TEN + BODY_OF_TEN, (505, 0)),
        (PUBLISH + BODY_OF_TEN + raw(3, 1, b"eleven bytes"), (501, 0)),
        (PUBLISH + raw(2, 1, b"\x00\x3c\x00\x00" + bytes(8) + b"\x80\x00"), (502, 0)),
        (PUBLISH + raw(2, 1, b"\x00\x3c\x00\x00" + (LIMIT + 1).to_bytes(8, "big") + b"\x00\x00"), (406, 1)),
        (PUBLISH + raw(2, 1, b"\x00\x3c\x00\x00" + b"\xff" * 8 + b"\x00\x00"), (406, 1)),
    ],
)
def test_what_breaks_the_protocol_is_refused_with_its_code(data: bytes, expected: tuple[int, int]) -> None:
    assert refusal(data) == expected


def test_nothing_is_read_behind_a_broken_frame() -> None:
    receiving = engine()
    events = receiving.receive(raw(9, 1, b"") + STREAM)
    assert len(events) == 1
    assert receiving.phase is Phase.CLOSED
    assert receiving.receive(STREAM) == []
    assert receiving.unread == 0


def test_a_channel_that_we_closed_passes_over_everything_until_the_peer_agrees() -> None:
    receiving = engine()
    receiving.closing(receiving.channels[1])
    rest = method(commands.Basic.Get(0, "q"), 1) + publish(1, b"lost", "a") + publish(2, b"kept", "b")
    assert [seen(event)[:2] for event in receiving.receive(rest)] == [("publish", 2)]
    receiving.receive(method(commands.Channel.CloseOk(), 1))
    assert 1 not in receiving.channels
    assert [type(event) for event in receiving.receive(method(commands.Channel.Open(), 1))] == [ChannelOpened]


def test_channel_max_limits_how_many_channels_are_open_whatever_their_numbers() -> None:
    receiving = engine()
    receiving.tuned(FRAME_MAX, 3)
    assert [type(event) for event in receiving.receive(method(commands.Channel.Open(), 65_535))] == [ChannelOpened]
    receiving.closed(receiving.channels[1])
    assert [type(event) for event in receiving.receive(method(commands.Channel.Open(), 4))] == [ChannelOpened]
    (event,) = receiving.receive(method(commands.Channel.Open(), 1))
    assert isinstance(event, Broken)
    assert (event.error.code, event.channel) == (530, None)
    assert "number of channels opened (3) has reached the negotiated channel_max (3)" in event.error.reply_text


@pytest.mark.parametrize("size", [4096, 9000], ids=["a message of one frame", "a message of several"])
def test_a_payload_may_be_as_long_as_frame_max_and_no_longer(size: int) -> None:
    """RabbitMQ takes eight bytes more than the specification allows, and clients cut there."""
    receiving = engine()
    receiving.tuned(4096, 10)
    message = b"x" * size
    for cut in (4096, 4096 + OVERHEAD):
        events = receiving.receive(publish(1, message, "a", frame_max=cut))
        assert [seen(event) for event in events] == [("publish", 1, "", "a", False, message)]
    (event,) = receiving.receive(publish(1, b"x" * 9000, "a", frame_max=4096 + OVERHEAD + 1))
    assert isinstance(event, Broken)
    assert event.error.code == 501


def test_empty_body_frames_are_passed_over_and_not_kept() -> None:
    made = engine()
    start, empty, last = publish(1, b"x", "key"), raw(3, 1, b""), raw(3, 1, b"x")
    assert made.receive(start.removesuffix(last)) == []
    for _ in range(100):
        assert made.receive(empty) == []
    content = made.channels[1].content
    assert content is not None
    assert content.body.whole() == b""
    assert [seen(event)[-1] for event in made.receive(last)] == [b"x"]


def test_the_tables_can_be_printed() -> None:
    table = "\n".join(f"{phase.value}, {name} → {after.value}" for (phase, name), after in CONNECTION_MOVES.items())
    assert "expects tune-ok, Connection.TuneOk → expects open" in table
    assert all(after in {phase for phase, _ in CHANNEL_MOVES} for after in CHANNEL_MOVES.values())


# -- more frames than fit into a turn ----------------------------------------------------------------------------------


def test_after_its_frames_of_one_turn_it_hands_back_and_goes_on_where_it_was() -> None:
    body = b"x" * (2 * OTHERS_PER_TURN + 10)
    frames = publish(1, body, "queue", frame_max=9)  # one byte in each
    given = engine()
    assert given.receive(frames + ack_frame(1, 7, False)) == []
    assert given.more
    assert given.unread > 0
    assert given.receive(b"") == []
    assert given.more
    assert [seen(event) for event in given.receive(b"")] == [
        ("publish", 1, "", "queue", False, body),
        ("ack", 1, 7, False),
    ]
    assert not given.more
    assert given.unread == 0


def test_what_fits_into_a_turn_is_read_in_one() -> None:
    acks = b"".join(ack_frame(1, tag, False) for tag in range(FRAMES_PER_TURN))
    given = engine()
    assert len(given.receive(acks)) == FRAMES_PER_TURN
    assert not given.more
    assert len(given.receive(acks + acks[:5])) == FRAMES_PER_TURN
    assert given.more, "there are bytes behind them; whether they are a frame is seen in the next turn"
    assert given.receive(b"") == []
    assert not given.more


def test_a_short_turn_reads_few_frames_and_the_next_goes_on_where_it_was() -> None:
    given = engine()
    acks = [ack_frame(1, tag, False) for tag in range(3 * SHORT_FRAMES)]
    tags: list[int] = []
    for short, count in ((True, SHORT_FRAMES), (True, SHORT_FRAMES), (False, SHORT_FRAMES)):
        events = given.receive(b"" if tags else b"".join(acks), short=short)
        assert len(events) == count
        tags += [event.tag for event in events if isinstance(event, Acked)]
        assert given.unread == sum(map(len, acks[len(tags) :]))
    assert tags == list(range(3 * SHORT_FRAMES))
    assert not given.more


def test_bytes_that_come_between_two_short_turns_are_behind_those_that_wait() -> None:
    given = engine()
    acks = [ack_frame(1, tag, False) for tag in range(2 * SHORT_FRAMES)]
    first = given.receive(b"".join(acks[:-1]) + acks[-1][:5], short=True)
    rest = given.receive(acks[-1][5:])
    assert [event.tag for event in (*first, *rest) if isinstance(event, Acked)] == list(range(2 * SHORT_FRAMES))


def test_a_short_turn_is_shorter_still_for_what_takes_longer() -> None:
    given = engine()
    given.receive(publish(1, b"x" * (SHORT_OTHERS + 10), "queue", frame_max=9), short=True)
    assert given.more
    assert len(given.receive(b"")) == 1


def test_a_fault_behind_many_frames_is_met_in_its_turn() -> None:
    given = engine()
    acks = b"".join(ack_frame(1, tag, False) for tag in range(FRAMES_PER_TURN + 1))
    assert len(given.receive(acks + b"\x09" * 20)) == FRAMES_PER_TURN
    events = given.receive(b"")
    assert [type(event) for event in events] == [Acked, Broken]
    assert given.phase is Phase.CLOSED
    assert not given.more
